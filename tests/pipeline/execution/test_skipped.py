"""``collect.on_error``: what is left out is told everywhere, and left out again."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from minari_pipe.pipeline.execution.collection import _stable
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


LOST = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/lost-v0, description: a dataset of a controller that loses its way}
author: {name: Ada}
env: {id: Pendulum-v1, kwargs: {max_episode_steps: 12}}
policy:
  controller: {_target_: my_bot.Bot, turns: 2}
  noise: {kind: gaussian, scale: 0.1}
collect: {n_episodes: 12, block_episodes: 5, n_envs: 4, seed: 4, on_error: skip_episode}
ref_scores: {ref_min_score: -200.0, ref_max_score: 9.0}
"""

MY_BOT = """\
class Bot:
    def __init__(self, rng, turns):
        self.rng, self.turns = rng, turns

    def __call__(self, observation):
        self.turns -= self.rng.random() < 0.15
        assert self.turns > 0, "no way"
        return [2 * self.rng.random() - 1]
"""

BOT = {"MINARI_PIPE_TRUSTED_MODULES": "my_bot"}


def test_an_episode_for_which_the_controller_fails_is_left_out_and_named(tmp_path):
    from minari_pipe.policies.rollout import episode_seed

    workspace = dvc_workspace(tmp_path, lost=LOST)
    (workspace.root / "my_bot.py").write_text(MY_BOT)

    def made(*overrides: str) -> tuple[str, dict]:
        workspace.pipe("+dataset=lost", *overrides, **BOT)
        metadata = workspace.json("datasets/tests/lost-v0/data/metadata.json")
        manifest = workspace.json("datasets/tests/lost-v0/manifest.json")
        return manifest["content_sha256"], metadata

    content, metadata = made()
    failed = metadata["minari_pipe"]["failed_episodes"]
    assert 0 < len(failed) < 12
    assert metadata["total_episodes"] == 12 - len(failed)
    for one in failed:
        assert one["seed"] == episode_seed(4, one["episode"])[0]
        assert re.fullmatch(
            r"step \d+: controller 'Bot' raised AssertionError: no way", one["reason"]
        )
    (found,) = (
        finding["message"]
        for finding in workspace.json("pipelines/lost/validation.json")["findings"]
        if "skip_episode" in finding["message"]
    )
    assert f"{len(failed)} of 12 episodes are left out" in found
    assert f"first episode {failed[0]['episode']}, step" in found
    # Which rows fail beside an episode changes nothing of it.
    other = made("collect.n_envs=1", "collect.block_episodes=7", "engine=processes")
    assert other[0] == content
    assert other[1]["minari_pipe"]["failed_episodes"] == failed
    # A block without its failed episodes is none of a run in which they are errors.
    done = workspace.call(
        sys.executable, "-m", "minari_pipe", "+dataset=lost", "collect.on_error=fail", **BOT
    )
    assert done.returncode == 1
    assert re.search(r"failed at episode \d+, step \d+: controller 'Bot' raised Ass", done.stdout)


def test_a_controller_that_fails_for_every_episode_makes_no_dataset(tmp_path):
    workspace = dvc_workspace(tmp_path, lost=LOST)
    (workspace.root / "my_bot.py").write_text(MY_BOT)
    command = (sys.executable, "-m", "minari_pipe", "+dataset=lost", "policy.controller.turns=0")
    for amount, n in (((), 12), (("collect.n_episodes=null", "collect.n_steps=9"), 1000)):
        done = workspace.call(*command, *amount, "collect.block_episodes=100", **BOT)
        assert done.returncode == 1
        wanted = f"none of the policy's {n} episodes was kept, {n} failed, first episode 0, step 0"
        assert wanted in done.stdout


def test_a_reason_is_the_same_wherever_it_is_made_and_holds_no_password():
    text = (
        "step 3: GET https://ada:pw@host/plan?key=1 failed\n in /home/ada/w/x <Bot at 0x7f6298ab>"
    )
    assert _stable(text, Path("/home/ada/w")) == (
        "step 3: GET https://…@host/plan?… failed in ./x <Bot at 0x…>"
    )
    assert _stable("no map \udcff", Path("/home/ada")) == "no map ?"
    assert len(_stable("x" * 9999, Path("/home/ada"))) == 1000
