"""Reference scores: as many episodes as are asked for, or as the standard error needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.schema import EvaluationEnvironment, ReferenceScores
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.engines.base import Engine
from minari_pipe.pipeline.stages.ref_scores import BLOCK_EPISODES, measure
from minari_pipe.policies.evaluation import EpisodeResult
from tests.conftest import FULL
from tests.support.engine_works import ShuffledEngine, Told, scheduler
from tests.support.workspaces import make_workspace, minari_pipe, run_ok, validation

RANDOM = PolicyConfig(schema.RANDOM, "ref_scores.expert")


def measured(
    folder: Path, engine: Engine, env_id: str = "StepIndex-v0", **how: Any
) -> list[EpisodeResult]:
    """The results of a random policy."""
    scores = ReferenceScores(
        **{"seed": 3, "n_envs": 4, **how}, eval_env=EvaluationEnvironment(env_id)
    )
    return measure(RANDOM, scores, scheduler(folder, engine, ".json"), Told())


def stderr(results: list[EpisodeResult]) -> float:
    returns = np.array([r.episode_return for r in results])
    return float(returns.std(ddof=1) / np.sqrt(len(returns)))


@settings(
    deadline=None,
    max_examples=20 if FULL else 5,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(max_stderr=st.floats(0.15, 2.0), n_workers=st.integers(1, 5), order=st.integers(0, 99))
def test_blocks_are_added_until_the_standard_error_is_small_enough_and_no_longer(
    max_stderr, n_workers, order, tmp_path_factory
):
    engine = ShuffledEngine(n_workers, order)
    results = measured(tmp_path_factory.mktemp("stderr"), engine, max_stderr=max_stderr)
    assert [r.episode for r in results] == list(range(len(results)))
    assert stderr(results) < max_stderr
    before = results[:-BLOCK_EPISODES]
    assert not before or stderr(before) >= max_stderr


def test_more_workers_change_neither_the_episodes_nor_their_number(tmp_path):
    alone = measured(tmp_path / "alone", ShuffledEngine(1, 0), max_stderr=0.3)
    several = measured(tmp_path / "several", ShuffledEngine(4, 1), max_stderr=0.3)
    assert several == alone


def test_the_episodes_of_several_processes_are_those_of_one(tmp_path):
    with make_engine(schema.Engine("processes", n_workers=2)) as engine:
        found = measured(tmp_path / "two", engine, "CartPole-v1", n_episodes=60)
    one = ShuffledEngine(1, 0)
    assert found == measured(tmp_path / "one", one, "CartPole-v1", n_episodes=60)
    assert len(found) == 60


@pytest.mark.parametrize(("kind", "reward"), [("NaN reward", "nan"), ("infinite reward", "-inf")])
def test_a_reward_that_is_no_number_is_named_with_its_episode(kind, reward, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "tests")
    kwargs = {"kind": kind, "episode": 30, "seed": 3}
    env = EvaluationEnvironment("tests.support.trouble_env:Trouble-v0", kwargs)
    how = ReferenceScores(n_episodes=60, seed=3, n_envs=4, eval_env=env)
    message = f"block 1: episode 30, step 2: the environment returned the reward {reward}"
    with pytest.raises(MinariPipeError, match=message):
        measure(RANDOM, how, scheduler(tmp_path, ShuffledEngine(1, 0)), Told())


CONFIG = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/scores-v0, description: scores}
author: {name: Ada}
env: {id: CartPole-v1}
collect: {n_episodes: 4}
ref_scores: {ref_max_score: 500.0}
"""


def test_the_jobs_of_a_sweep_measure_the_random_policy_once(tmp_path):
    workspace = make_workspace(tmp_path / "work", scores=CONFIG)
    swept = ["pipeline=s${collect.seed}", "dataset.id=tests/scores-s${collect.seed}-v0"]
    words = ["-m", "+dataset=scores", "collect.seed=1,2", *swept, "ref_scores.n_episodes=30"]
    done = minari_pipe(workspace, *words, "+policy@ref_scores.expert=random")
    assert done.returncode == 0, done.stderr
    measured = [line for line in done.stderr.splitlines() if line.startswith("ref_scores: random")]
    assert len(measured) == 2
    assert measured[1] == f"{measured[0]} (2 blocks were finished before)"
    # Neither with another seed or environment, nor where a block was damaged.
    (kept,) = (workspace / ".minari_pipe" / "measured").iterdir()
    (kept / "block_00001.json").write_text("[]")
    done = minari_pipe(workspace, "+dataset=scores", "ref_scores.n_episodes=30")
    assert "ref_scores: block 1 runs again: its file is damaged" in done.stderr
    assert f"{measured[0]} (1 block was finished before)" in done.stderr
    done = minari_pipe(workspace, "+dataset=scores", "ref_scores.seed=5", "ref_scores.n_episodes=9")
    assert "finished before" not in done.stderr


@pytest.mark.parametrize("limit", [None, 25] if FULL else [25])
def test_a_standard_error_that_is_not_reached_is_a_warning(limit, tmp_path):
    workspace = make_workspace(tmp_path / "work", scores=CONFIG)
    words = ["ref_scores.max_stderr=1.0"]
    words += [f"ref_scores.n_episodes={limit}"] if limit else []
    run_ok(workspace, "+dataset=scores", *words)
    found = validation(workspace, "scores")
    warned = [f["message"] for f in found["findings"] if f["check"] == "ref_scores"]
    if limit is None:
        assert warned == []
    else:
        assert len(warned) == 1
        assert "after 25 episodes, but ref_scores.max_stderr is 1; raise" in warned[0]
    done = minari_pipe(workspace, "+dataset=scores", *words)
    assert "up to date" in done.stdout
