"""``collect.on_error=skip``: what is left out is told everywhere, and left out again."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.repositories import Workspace, dvc_workspace, hashes

CONFIG = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/holes-v0, description: a dataset with a hole}
author: {name: Ada}
env: {id: "my_env:Moody-v0"}
collect: {n_episodes: 12, block_episodes: 3, n_envs: 2, seed: 4, on_error: skip}
engine: {max_retries: 0}
ref_scores: {ref_min_score: 0.0, ref_max_score: 9.0}
"""

MY_ENV = """\
import os
import gymnasium as gym
import numpy as np

class Moody(gym.Env):
    observation_space = gym.spaces.Box(0, 100, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.seed_given = 0, seed
        return np.zeros(1), {}

    def step(self, action):
        self.t += 1
        if str(self.seed_given) in os.environ.get("MOODY", "").split(","):
            raise RuntimeError("not today")
        return np.array([float(self.t)]), 1.0, self.t >= 5, False, {}

gym.register("Moody-v0", entry_point=Moody, max_episode_steps=20)
"""

TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_env"}


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    workspace = dvc_workspace(tmp_path, holes=CONFIG)
    (workspace.root / "my_env.py").write_text(MY_ENV)
    return workspace


def test_a_hole_is_told_and_made_again_where_it_was(workspace):
    from minari_pipe.policies.rollout import episode_seed

    moody = str(episode_seed(4, 7)[0])  # in block 2
    ran = workspace.pipe("+dataset=holes", MOODY=moody, **TRUSTED)
    assert ran == ["collect", "create", "ref_scores", "validate", "card", "publish"]
    folder = workspace.root / "pipelines" / "holes"
    listed = json.loads((folder / "skipped.json").read_text())
    assert [entry["block"] for entry in listed["skipped"]] == [2]
    data = workspace.root / "datasets" / "tests" / "holes-v0" / "data"
    metadata = json.loads((data / "metadata.json").read_text())
    assert metadata["minari_pipe"]["skipped_blocks"] == [2]
    assert metadata["total_episodes"] == 9
    validation = json.loads((folder / "validation.json").read_text())
    (finding,) = [f for f in validation["findings"] if f["check"] == "collect"]
    assert finding["level"] == "warning"
    assert "block 2 is left out" in finding["message"]
    assert "episode 7, step 0: RuntimeError: not today" in finding["message"]
    assert validation["ok"]

    # Somebody else makes it again, from what git has, in a better mood.
    expected = hashes(data)
    for made in (".dvc/cache", ".dvc/tmp", ".minari_pipe", "pipelines/holes/episodes", "datasets"):
        shutil.rmtree(workspace.root / made)
    ran = workspace.pipe("+dataset=holes", **TRUSTED)
    assert "collect" in ran
    assert hashes(data) == expected
    assert json.loads((folder / "skipped.json").read_text()) == listed

    # Another collection is another matter; what is installed is no draft of this workspace now.
    workspace.pipe("+dataset=holes", "collect.seed=5", "publish.replace=true", **TRUSTED)
    assert json.loads((folder / "skipped.json").read_text())["skipped"] == []
