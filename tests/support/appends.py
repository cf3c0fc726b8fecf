"""A small dataset that grows, and what all readers must see of it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np

import minari_pipe
from minari_pipe import EpisodeBuffer, load_dataset

ID = "aa/b-v0"
SPACES: dict[str, Any] = {
    "observation_space": gym.spaces.Box(-9, 9, (3,), np.float64),
    "action_space": gym.spaces.Discrete(2),
}


@functools.cache
def buffer(number: int) -> EpisodeBuffer:
    """The episode of this number."""
    steps = 3 + number % 4
    rng = np.random.default_rng(number)
    return EpisodeBuffer(
        seed=number,
        observations=rng.normal(size=(steps + 1, 3)),
        actions=rng.integers(2, size=steps),
        rewards=rng.normal(size=steps),
        terminations=np.arange(steps) == steps - 1,
        truncations=np.zeros(steps, bool),
        infos={},
    )


def created(count: int, **settings: Any) -> Path:
    """Create the dataset with so many episodes; its folder."""
    buffers = [buffer(number) for number in range(count)]
    dataset = minari_pipe.create_dataset_from_buffers(ID, buffers, **SPACES, **settings)
    return Path(dataset.storage.data_path).parent


def append(count: int) -> None:
    """Append so many episodes."""
    dataset = load_dataset(ID)
    first = dataset.total_episodes
    dataset.update_dataset_from_buffer([buffer(first + number) for number in range(count)])


def check(counts: set[int]) -> int:
    """All readers see one of these numbers of episodes, with the values that were given."""
    dataset = load_dataset(ID, verify=True)
    count = dataset.total_episodes
    assert count in counts
    for number, episode in enumerate(dataset.iterate_episodes()):
        check_episode(number, episode)
    theirs = minari.load_dataset(ID)
    assert theirs.total_episodes in counts
    for number, episode in enumerate(theirs.iterate_episodes()):
        check_episode(number, episode)
    path = dataset.storage.data_path / "main_data.hdf5"
    if path.exists():
        check_by_h5py(path, counts)
    return count


def check_by_h5py(path: Path, counts: set[int]) -> int:
    """A program that knows only HDF5 sees one of these numbers of episodes."""
    with h5py.File(path) as file:
        assert len(file) in counts
        for number in range(len(file)):
            stored = file[f"episode_{number}/observations"]
            np.testing.assert_array_equal(stored, buffer(number).observations)
        return len(file)


def check_episode(number: int, episode: Any) -> None:
    expected = buffer(number)
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(episode, name), getattr(expected, name))
