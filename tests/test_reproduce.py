"""A released version is made again from git alone, or what differs first is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from minari_pipe.errors import ConfigError, DatasetNotFoundError, MinariPipeError
from minari_pipe.pipeline.reproduce import reproduce
from tests.repositories import Workspace, git_workspace, hashes
from tests.test_release import TRUSTED, here

ID = "tests/push-v0"
CONFIG = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/push-v0, description: a tiny dataset}
author: {name: Ada}
env: {id: Pendulum-v1, kwargs: {max_episode_steps: 20}}
policy: {controller: {_target_: my_policy.push}}
collect: {n_episodes: 2, n_envs: 2}
ref_scores: {n_episodes: 2, ref_max_score: 0.0}
"""
MY_POLICY = """\
import numpy as np


def push(observation):
    return np.array([2.0 * np.sign(observation[2])], dtype=np.float32)
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Workspace:
    """A version that is released and tagged, and of whose outputs no cache is left."""
    workspace = git_workspace(tmp_path_factory.mktemp("reproduce"), push=CONFIG)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    workspace.pipe("+dataset=push", "collect.seed=3", **TRUSTED)
    release(workspace, ID)
    return workspace


def release(workspace: Workspace, dataset_id: str) -> None:
    workspace.commit("made")
    workspace.run("minari-pipe", "release", dataset_id, "--no-push")
    workspace.commit("released")
    workspace.git("tag", dataset_id)


@pytest.fixture
def workspace(released: Workspace, tmp_path: Path) -> Workspace:
    return released.copy(tmp_path)


def again(workspace: Workspace, dataset_id: str, *arguments: str, **environment: str) -> str:
    return workspace.run("minari-pipe", "reproduce", dataset_id, *arguments, **environment)


def test_a_scripted_dataset_is_made_again_and_nothing_here_changes(workspace, tmp_path):
    # Neither a cache of the user's nor what is not committed is used.
    workspace.dvc("cache", "dir", "--local", str(tmp_path / "elsewhere"))
    (workspace.root / "my_policy.py").write_text("of tomorrow")
    before = hashes(workspace.root), hashes(workspace.minari_root)
    output = again(workspace, ID, "--trust-module", "my_policy")
    print(output)
    assert "makes tests/push-v0 again" in output
    assert (hashes(workspace.root), hashes(workspace.minari_root)) == before
    assert not list(Path("/tmp").glob("minari_pipe-reproduce-*"))
    assert 0
