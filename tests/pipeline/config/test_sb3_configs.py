"""What a config may say of sb3 policies is checked before anything runs."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

import pytest
from hydra.core.global_hydra import GlobalHydra

from minari_pipe.errors import ConfigError, MissingDependencyError
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.config.schema import RANDOM, PolicySettings
from minari_pipe.pipeline.config.validate_config import prepare

TRAIN = "policy.train.hyperparameters={}"
EPSILON = "{kind: epsilon, scale: 0.1}"
KEPT = "{kind: epsilon, scale: 0.1, keep_clean_action: true}"


def prepared(root, *overrides: str) -> dict:
    GlobalHydra.instance().clear()
    arguments = ["+dataset=cartpole_expert", "policy.policy_kwargs={}", TRAIN, *overrides]
    composed = hydra_compose.recompose(arguments)
    return prepare(composed.name, composed.config, None, root)[0]


def test_a_noisy_policy_is_measured_without_noise(tmp_path):
    noise = {"kind": "epsilon", "scale": 0.1}
    params = prepared(tmp_path, "policy.algorithm=dqn", f"policy.noise={EPSILON}")
    expert, scores = params.ref_scores.expert, params.ref_scores
    assert params.policy.arguments["noise"] == noise
    assert "noise" not in expert.arguments  # or it would be measured again with each noise
    sampled = params.policy.as_measured(replace(scores, deterministic=False)).arguments
    assert (sampled["noise"], sampled["deterministic"]) == (noise, False)
    measured = params.policy.as_measured(scores)
    assert (measured.noise, measured.arguments["deterministic"]) == (None, True)
    assert RANDOM.as_measured(scores) == RANDOM


def test_a_policy_without_noise_has_the_values_that_it_had_before_there_was_noise(tmp_path):
    values = prepared(tmp_path).policy.values
    assert "noise" not in values
    assert (values["exploration"], values["action_noise"]) == (None, None)
    assert PolicySettings.of(values, "policy").values == values


def test_a_key_that_noise_has_replaced_is_refused_with_what_to_write():
    values = {"_target_": "minari_pipe.policies.SB3Policy", "exploration": 0.1}
    with pytest.raises(ConfigError, match="policy.exploration is 0.1; policy.noise has replaced"):
        PolicySettings.of(values, "policy")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["policy.algorithm=dqn", "policy.deterministic=false"],
            "policy: .*dqn has no distribution .*; set policy.noise: {kind: epsilon, scale: 0.05}",
        ),
        (["policy.noise={kind: gaussian, scale: 0.1}"], "needs a Box of floats .* Discrete"),
        ([f"policy.noise={KEPT}"], "policy.noise.keep_clean_action .* collect.record_infos: true"),
        (["policy.noise={kind: epsilom, scale: 1}"], "policy.noise.kind .* mean 'epsilon'"),
        (["policy.algorithm=trpo"], "algorithm 'trpo' is not supported"),
        (
            ["policy.algorithm=dqn", "ref_scores.deterministic=false"],
            "ref_scores.expert: deterministic=false: dqn has no distribution",
        ),
    ],
    ids=["no noise", "discrete", "no infos", "no kind", "unsupported", "expert"],
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
