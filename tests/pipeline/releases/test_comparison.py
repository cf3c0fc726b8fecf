"""Datasets are compared: counts exactly, values as nearly as asked; the first place is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.pipeline.releases.comparison import compare
from minari_pipe.storage.base import MinariStorage

OBSERVATIONS = spaces.Dict({"arm": spaces.Box(-9, 9, (2,), np.float64)})
ACTIONS = spaces.Discrete(3)


def episode(seed: int, n_steps: int = 3) -> EpisodeBuffer:
    return EpisodeBuffer(
        seed=seed,
        options={"start": seed},
        observations={"arm": np.arange(2.0 * n_steps + 2).reshape(-1, 2)},
        actions=np.arange(n_steps) % 3,
        rewards=np.full(n_steps, np.nan),
        terminations=np.zeros(n_steps, bool),
        truncations=np.arange(1, n_steps + 1) == n_steps,
        infos={"speed": np.linspace(0, 1, n_steps + 1)},
    )


def written(path: Path, buffers: list[EpisodeBuffer], **metadata: float) -> Path:
    path.mkdir()
    storage = MinariStorage.new(path, OBSERVATIONS, ACTIONS)
    storage.update_episodes(buffers)
    storage.update_metadata({"dataset_id": "ab/c-v0", **metadata})
    return path


def moved(buffer: EpisodeBuffer, by: float) -> EpisodeBuffer:
    """The same with a later observation and an earlier action that are others."""
    arm, actions = buffer.observations["arm"].copy(), buffer.actions.copy()
    arm[2, 1] += by
    return replace(buffer, observations={"arm": arm}, actions=actions)


FIRST, SECOND = episode(1), episode(2)
OTHER_ACTION = replace(SECOND, actions=np.array([0, 2, 2]))
ROWS = {
    "another seed": ([FIRST, replace(SECOND, seed=3)], {}, "episode 1, seed: 3, not 2"),
    "another option": (
        [FIRST, replace(SECOND, options={"start": 7})],
        {},
        "episode 1, options: {'start': 7}, not {'start': 2}",
    ),
    "fewer steps": ([FIRST, replace(episode(2, 2))], {}, "episode 1: 2 steps, not 3"),
    "fewer episodes": ([FIRST], {}, "episodes: 1, not 2"),
    "an action": ([FIRST, OTHER_ACTION], {}, "episode 1, actions[1]: 2, not 1"),
    "what came first": (
        [FIRST, moved(OTHER_ACTION, 1.0)],
        {},
        "episode 1, actions[1]: 2, not 1",
    ),
    "a value": (
        [moved(FIRST, 0.5), SECOND],
        {},
        "episode 0, observations['arm'][2, 1]: 5.5, not 5.0 (largest difference 0.5)",
    ),
    "a score": ([FIRST, SECOND], {"ref_max_score": 2.0}, "ref_max_score: 2.0, not 1.0"),
    "no info": (
        [replace(FIRST, infos={}), replace(SECOND, infos={})],
        {},
        "episode 0: only one dataset has infos['speed']",
    ),
}


@pytest.mark.parametrize(("buffers", "metadata", "message"), ROWS.values(), ids=ROWS)
def test_the_first_difference_is_named(buffers, metadata, message, tmp_path):
    a = written(tmp_path / "a", [FIRST, SECOND], ref_max_score=1.0)
    b = written(tmp_path / "b", buffers, **{"ref_max_score": 1.0, **metadata})
    found = compare(a, b, 0.01)
    assert found.first is not None
    assert found.first.startswith(message)
    assert compare(a, a, 0.0).first is None


def test_values_may_be_as_far_apart_as_the_tolerance_for_their_size(tmp_path):
    a = written(tmp_path / "a", [FIRST, SECOND])
    b = written(tmp_path / "b", [moved(FIRST, 4e-6), SECOND])
    assert compare(a, b, 1e-6).first is None  # of a value of 5
    assert compare(a, b, 1e-6).largest == pytest.approx(4e-6)
    assert compare(a, b, 1e-7).first is not None
    n_values = 2 * (8 + 3 + 3 + 3 + 3 + 4)
    assert compare(a, b, 1e-6).n_values == n_values
