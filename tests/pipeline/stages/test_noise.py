"""A dataset of a noisy policy is replayed exactly; its expert is measured without the noise."""

from __future__ import annotations

import json
from pathlib import Path

import minari
import numpy as np
import pytest

from tests.support.workspaces import make_workspace, minari_pipe, run_ok, validation

NOISY = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/noisy-v0, description: a tiny dataset of a noisy controller}
author: {name: Ada}
env: {id: Pendulum-v1, kwargs: {max_episode_steps: 20}}
policy:
  controller: {_target_: my_policy.swing}
  noise: {kind: gaussian, scale: 0.5, keep_clean_action: true}
collect: {n_episodes: 6, block_episodes: 2, n_envs: 2, record_infos: true}
ref_scores: {n_episodes: 4, ref_min_score: -1800.0, expert: "${policy}"}
"""
CONTROLLER = "def swing(observation):\n    return [1.75 if observation[2] > 0 else -1.75]\n"
TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = make_workspace(tmp_path, noisy=NOISY)
    (folder / "my_policy.py").write_text(CONTROLLER)
    return folder


def test_a_noisy_dataset_is_replayed_exactly_and_says_what_the_policy_wanted(workspace):
    run_ok(workspace, "+dataset=noisy", **TRUSTED)
    found = validation(workspace, "noisy")
    assert (found["ok"], found["replay"]["replayed"]) == (True, 6)
    dataset = minari.load_dataset("tests/noisy-v0")
    noise = {"kind": "gaussian", "scale": 0.5, "keep_clean_action": True}
    assert dataset.storage.metadata["minari_pipe"]["noise"] == noise
    assert "Noise on the actions" in (workspace / "pipelines/noisy/card/report.html").read_text()
    for episode in dataset:
        clean = episode.infos["clean_action"]
        assert set(np.abs(clean[1:]).ravel()) == {np.float32(1.75)}
        noise = episode.actions - clean[1:]
        assert np.abs(episode.actions).max() == 2.0  # clipped to the bounds
        assert 0.2 < noise.std() < 0.7


def test_an_expert_is_measured_with_its_noise_only_if_the_config_says_so(workspace):
    scores = []
    for deterministic in ("true", "false"):
        words = ("+dataset=noisy", f"ref_scores.deterministic={deterministic}")
        run_ok(workspace, *words, **TRUSTED)
        found = json.loads((workspace / "pipelines/noisy/ref_scores.json").read_text())
        scores.append(found["ref_max"]["mean"])
    assert scores[0] != scores[1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.noise.kind=gausian", "policy.noise.kind is 'gausian'. Did you mean 'gaussian'?"),
        ("policy.noise.scale=[1,2]", "policy.noise.scale has 2 numbers, an action of Box"),
        ("collect.record_infos=false", "policy.noise.keep_clean_action is recorded with the infos"),
    ],
)
def test_what_is_wrong_with_noise_is_one_line_before_anything_runs(workspace, override, message):
    done = minari_pipe(workspace, "+dataset=noisy", override, **TRUSTED)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, message in line) == (1, True), line
    assert not (workspace / "pipelines").exists()
