"""``env.success_key`` names the info that says whether an episode has reached its goal."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import minari_pipe
from tests.support.workspaces import make_workspace, run_ok
from tests.support.workspaces import minari_pipe as run

LAKE = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/lake-v0, description: a lake without slippery ice}
author: {name: Ada}
env: {id: FrozenLake-v1, kwargs: {is_slippery: false}, success_key: prob}
collect: {n_episodes: 4, record_infos: true}
ref_scores: {n_episodes: 4, ref_max_score: 1.0}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path, lake=LAKE)


def test_the_key_decides_in_collection_in_scores_and_on_the_card(workspace: Path) -> None:
    run_ok(workspace, "+dataset=lake", "collect.until.success=true", "collect.until.n_episodes=3")
    with (workspace / "pipelines/lake/ref_returns.csv").open(newline="") as file:
        assert {row["success"] for row in csv.DictReader(file)} == {"True"}
    dataset = minari_pipe.load_dataset("tests/lake-v0")
    assert dataset.total_episodes == 3
    assert dataset.storage.metadata["minari_pipe"]["success_key"] == "prob"
    with (workspace / "pipelines/lake/card/episodes.csv").open(newline="") as file:
        assert {row["success"] for row in csv.DictReader(file)} == {"1"}


def test_a_key_that_no_info_has_is_a_warning(workspace: Path) -> None:
    done = run(workspace, "+dataset=lake", "env.success_key=arrived")
    assert done.returncode == 0, done.stderr
    assert "warning: no info of any episode has 'arrived'" in done.stderr


def test_a_condition_on_a_success_that_nothing_reports_names_the_key(workspace: Path) -> None:
    words = ("collect.until.success=true", "collect.until.n_episodes=3", "env.success_key=probb")
    done = run(workspace, "+dataset=lake", *words)
    assert done.returncode == 1
    assert "Set env.success_key, or use collect.until.min_return" in done.stderr
    assert "Traceback" not in done.stderr
