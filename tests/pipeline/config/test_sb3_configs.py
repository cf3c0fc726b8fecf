"""What a config may say of sb3 policies is checked before anything runs."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

import pytest
from hydra.core.global_hydra import GlobalHydra

from minari_pipe.errors import ConfigError, MissingDependencyError
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.config.schema import RANDOM
from minari_pipe.pipeline.config.validate_config import prepare

TRAIN = "policy.train.hyperparameters={}"


def prepared(root, *overrides: str) -> dict:
    GlobalHydra.instance().clear()
    arguments = ["+dataset=cartpole_expert", "policy.policy_kwargs={}", TRAIN, *overrides]
    composed = hydra_compose.recompose(arguments)
    return prepare(composed.name, composed.config, None, root)[0]


def test_dqn_that_explores_is_measured_without_exploring(tmp_path):
    dqn = ["policy.algorithm=dqn", "policy.deterministic=false", "policy.exploration=0.1"]
    params = prepared(tmp_path, *dqn)
    assert params.policy.arguments["exploration"] == 0.1
    expert, scores = params.ref_scores.expert, params.ref_scores
    assert expert.arguments["exploration"] == 0.1
    measured = expert.as_measured(scores).arguments
    assert (measured["exploration"], measured["deterministic"]) == (None, True)
    sampled = expert.as_measured(replace(scores, deterministic=False)).arguments
    assert (sampled["exploration"], sampled["deterministic"]) == (0.1, False)
    assert RANDOM.as_measured(scores) == RANDOM


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.algorithm=dqn", "policy.deterministic=false"], "dqn has no .*; set exploration"),
        (["policy.algorithm=dqn", "policy.exploration=0.1"], "has no effect with deterministic"),
        (
            ["policy.algorithm=ppo", "policy.action_noise=[0.1]"],
            "is not for ppo, only for td3, ddpg",
        ),
        (["policy.algorithm=tqc"], "algorithm 'tqc' is not supported"),
        (
            ["policy.algorithm=dqn", "ref_scores.deterministic=false"],
            "ref_scores.expert: deterministic=false: dqn has no distribution",
        ),
    ],
    ids=["no exploration", "no effect", "not td3", "unsupported", "expert"],
)
def test_noise_that_does_not_fit_is_refused_before_anything_runs(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, *overrides)


def test_the_version_of_sb3_contrib_is_a_parameter_of_what_it_makes(tmp_path):
    pytest.importorskip("sb3_contrib")
    packages = prepared(tmp_path, "policy.algorithm=recurrent_ppo").packages
    for stage in ("train", "collect", "ref_scores"):
        assert packages[stage]["sb3-contrib"] == importlib.metadata.version("sb3-contrib")
    assert "sb3-contrib" not in prepared(tmp_path, "policy.algorithm=ppo").packages["collect"]


def test_a_missing_sb3_contrib_is_named_before_anything_runs(tmp_path, monkeypatch):
    version = importlib.metadata.version

    def missing(name):
        if name == "sb3-contrib":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'minari_pipe\[contrib\]'"):
        prepared(tmp_path, "policy.algorithm=maskable_ppo")
