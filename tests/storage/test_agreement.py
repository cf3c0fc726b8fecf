"""An episode whose columns do not fit together is refused, and the message names the leaf."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.base import MinariStorage

OBSERVATION = spaces.Dict(
    a=spaces.Box(-1, 1, (3,)), t=spaces.Tuple([spaces.Discrete(5), spaces.Text(8)])
)
ACTION = spaces.Box(-1, 1, (2,))
STEPS = 4


@pytest.fixture
def storage(tmp_path: Path) -> MinariStorage:
    storage = MinariStorage.new(tmp_path / "data", OBSERVATION, ACTION)
    rng = np.random.default_rng(0)
    buffer = EpisodeBuffer(
        observations={
            "a": rng.random((STEPS + 1, 3), np.float32),
            "t": (rng.integers(0, 5, STEPS + 1), ["x"] * (STEPS + 1)),
        },
        actions=rng.random((STEPS, 2), np.float32),
        rewards=rng.random(STEPS),
        terminations=np.zeros(STEPS, bool),
        truncations=np.arange(STEPS) == STEPS - 1,
        infos={"n": {"x": rng.random((STEPS + 1, 2))}},
        extras={"state": {"q": rng.random((STEPS, 2)), "v": rng.random(STEPS + 1)}},
    )
    storage.update_episodes([buffer, buffer])
    return storage


def rows(name: str, change: int) -> Callable[[h5py.Group], None]:
    def plant(group: h5py.Group) -> None:
        group[name].resize(len(group[name]) + change, axis=0)

    return plant


def other(name: str, values: Any) -> Callable[[h5py.Group], None]:
    def plant(group: h5py.Group) -> None:
        del group[name]
        group[name] = values

    return plant


def total_steps(value: Any) -> Callable[[h5py.Group], None]:
    def plant(group: h5py.Group) -> None:
        del group.attrs["total_steps"]
        if value is not None:
            group.attrs["total_steps"] = value

    return plant


FAULTS: dict[str, tuple[Callable[[h5py.Group], None], str]] = {
    "an action too few": (rows("actions", -1), "actions has 3 steps, rewards has 4"),
    "an action too many": (rows("actions", 1), "actions has 5 steps, rewards has 4"),
    "a termination too many": (rows("terminations", 1), "terminations has 5 steps"),
    "no truncations": (rows("truncations", -4), "truncations has 0 steps"),
    "a reward too few": (rows("rewards", -1), "has 4 steps, rewards has 3"),
    "as many observations as steps": (
        rows("observations/a", -1),
        "observations['a'] has 4 rows, rewards has 4 steps (expected 5 rows)",
    ),
    "a nested leaf": (rows("observations/t/_index_0", 2), "observations['t'][0] has 7 rows"),
    "text too short": (rows("observations/t/_index_1", -1), "observations['t'][1] has 4 rows"),
    "infos": (rows("infos/n/x", -1), "infos['n']['x'] has 4 rows"),
    "extras": (rows("state/q", -1), "extras['state']['q'] has 3 rows"),
    "rows of another shape": (
        other("actions", np.zeros((4, 3), "f4")),
        "actions has rows of shape (3,), the space expects (2,)",
    ),
    "text for numbers": (other("actions", [b"x"] * 4), "actions is not numeric"),
    "numbers for text": (other("observations/t/_index_1", np.zeros(5)), "is not text"),
    "text for rewards": (other("rewards", [b"x"] * 4), "rewards is object"),
    "rewards of two numbers": (other("rewards", np.zeros((4, 2))), "rewards is float64 in rows"),
    "flags that are fractions": (other("truncations", np.zeros(4)), "truncations is float64"),
    "a single value": (other("infos/n/x", 1.0), "infos['n']['x'] is not an array or a list of"),
    "all step columns cut": (
        lambda group: [rows(name, -2)(group) for name in CUT] and None,
        "the attribute total_steps is 4, rewards has 2 steps",
    ),
    "no steps at all": (total_steps(0), "the attribute total_steps is 0"),
    "steps as text": (total_steps("4"), "the attribute total_steps is '4'"),
    "no number of steps": (total_steps(None), "the attribute total_steps is missing"),
}
CUT = (
    "actions",
    "rewards",
    "terminations",
    "truncations",
    "observations/a",
    "observations/t/_index_0",
    "observations/t/_index_1",
    "infos/n/x",
    "state/q",
    "state/v",
)


def change(storage: MinariStorage, plant: Callable[[h5py.Group], None]) -> Path:
    path = storage.data_path / "main_data.hdf5"
    with h5py.File(path, "r+") as file:
        plant(file["episode_1"])
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_columns_that_do_not_fit_are_refused(storage: MinariStorage, fault: str) -> None:
    plant, message = FAULTS[fault]
    path = change(storage, plant)
    with pytest.raises(CorruptDatasetError) as caught:
        list(storage.get_episodes([1]))
    assert str(caught.value).startswith(f"{path}: episode 1: ")
    assert message in str(caught.value)
    with pytest.raises(CorruptDatasetError):
        list(storage.get_buffers([1]))
    assert len(next(iter(storage.get_episodes([0])))["rewards"]) == STEPS
    assert next(iter(storage.get_unchecked_episodes([1])))["id"] == 1


@pytest.mark.parametrize("fault", ["no number of steps", "steps as text", "all step columns cut"])
def test_an_episode_with_another_number_of_steps_is_not_continued(
    storage: MinariStorage, fault: str
) -> None:
    path = change(storage, FAULTS[fault][0])
    before = path.read_bytes()
    (whole,) = storage.get_buffers([0])
    names = ("observations", "infos", "extras")
    last = {name: map_leaves(lambda leaf: leaf[-STEPS:], getattr(whole, name)) for name in names}
    with pytest.raises(CorruptDatasetError) as caught:
        storage.update_episodes([replace(whole, id=1, seed=None, metadata={}, **last)])
    assert str(caught.value).startswith(f"{path}: episode 1: {FAULTS[fault][1]}")
    assert path.read_bytes() == before


KEPT: dict[str, Callable[[h5py.Group], None]] = {
    "another number's dtype": other("actions", np.zeros((4, 2), "f8")),
    "rewards of float32": other("rewards", np.zeros(4, "f4")),
    "rewards of shape (T, 1)": other("rewards", np.zeros((4, 1))),
    "flags of uint8": other("truncations", np.zeros(4, "u1")),
    # real Minari sets it to the steps that were added
    "the steps of a continuation": total_steps(1),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_real_minari_writes_is_read(storage: MinariStorage, kind: str) -> None:
    change(storage, KEPT[kind])
    (episode,) = storage.get_episodes([1])
    assert len(episode["rewards"]) == len(episode["actions"]) == STEPS


@pytest.mark.parametrize("left", [0, 1])
def test_an_episode_that_only_the_metadata_count_is_missing(
    storage: MinariStorage, left: int
) -> None:
    path = storage.data_path / "main_data.hdf5"
    with h5py.File(path, "r+") as file:
        for index in range(left, 2):
            del file[f"episode_{index}"]
    for read in (storage.get_episodes, storage.get_episode_metadata):
        with pytest.raises(CorruptDatasetError, match="episode 1 is missing"):
            list(read([1]))
        with pytest.raises(IndexError):
            list(read([2]))


@pytest.mark.parametrize(("episodes", "steps"), [(0, 8), (2, 0)])
def test_totals_that_contradict_each_other_are_refused(
    storage: MinariStorage, episodes: int, steps: int
) -> None:
    path = storage.data_path / "metadata.json"
    totals = {"total_episodes": episodes, "total_steps": steps}
    path.write_text(json.dumps(json.loads(path.read_text()) | totals))
    with pytest.raises(CorruptDatasetError, match=f"{episodes} total_episodes and {steps} total_s"):
        MinariStorage.read(storage.data_path)
