"""A million episodes of four numbers a step, without Minari, which takes an hour to write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np

import minari_pipe
from benchmarks import work
from benchmarks.measure import Case, Goal, Side, Sides, When

_EPISODES, _STEPS = 1_000_000, 20
_SIZE = f"{_EPISODES:,} × {_STEPS}"


def cases() -> Iterator[Case]:
    """Yield the cases; the first creates the dataset."""
    yield Case(
        "write", "create hdf5", _SIZE, lambda: {"here": Side(_create)}, repeats=1, when=When.FULL
    )
    for group, name, run, goal in (
        ("read", "load hdf5", _load, Goal(at_most=0.05)),
        ("read", "iterate hdf5, 1,000 episodes of it", _iterate, Goal()),
        ("read", "sample 32 episodes", _sample, Goal()),
        ("read", "filter by a statistic", _filter, Goal()),
        ("write", "append 1 episode, hdf5", partial(_append, 1), Goal()),
        ("write", "append 100 episodes, hdf5", partial(_append, 100), Goal()),
    ):
        yield Case(group, name, _SIZE, partial(_of_dataset, run), goal, when=When.FULL)


def _of_dataset(run: Callable[[Any], Any]) -> Sides:
    dataset = minari_pipe.load_dataset(_create())
    return {"here": Side(partial(run, dataset))}


@cache
def _create() -> str:
    work.ending.callback(_create.cache_clear)
    dataset_id = "bench/large-v0"
    minari_pipe.create_dataset_from_buffers(
        dataset_id,
        _buffers(_EPISODES),
        observation_space=gym.spaces.Box(0, 1, (4,), np.float32),
        action_space=gym.spaces.Discrete(2),
    )
    return dataset_id


def _buffers(count: int) -> Iterator[minari_pipe.EpisodeBuffer]:
    rng = np.random.default_rng(0)
    observations = rng.random((1000, _STEPS + 1, 4), np.float32)
    actions = rng.integers(2, size=(1000, _STEPS))
    rewards = rng.random((1000, _STEPS))
    ends = np.arange(1, _STEPS + 1) == _STEPS
    for seed in range(count):
        yield minari_pipe.EpisodeBuffer(
            seed=seed,
            observations=observations[seed % 1000],
            actions=actions[seed % 1000],
            rewards=rewards[seed % 1000],
            terminations=ends,
            truncations=np.zeros(_STEPS, bool),
        )


def _load(dataset: Any) -> Any:
    return minari_pipe.load_dataset(dataset.id)


def _iterate(dataset: Any) -> int:
    return sum(len(episode) for episode in dataset[:1000])


def _sample(dataset: Any) -> Any:
    return dataset.sample_episodes(32)


def _filter(dataset: Any) -> Any:
    return dataset.where("rewards_sum > 10")


def _append(count: int, dataset: Any) -> None:
    dataset.update_dataset_from_buffer(list(_buffers(count)))
