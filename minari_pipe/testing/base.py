"""Provide the small dataset and the fixtures that all parts of the storage contract share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.storage import METADATA_FILE_NAME, MinariStorage
from minari_pipe.storage.memory import MemoryStorage
from minari_pipe.testing.strategies import episode

OBSERVATION = gym.spaces.Dict(
    a=gym.spaces.Box(-1, 1, (2,)), t=gym.spaces.Tuple([gym.spaces.Text(8)])
)
ACTION = gym.spaces.Discrete(5)


def make(seed: int = 0, count: int = 3) -> list[EpisodeBuffer]:
    """Return episodes of ``OBSERVATION`` and ``ACTION``, always the same for one seed.

    Example:
        >>> [len(buffer) for buffer in make(count=2)] == [len(buffer) for buffer in make(count=2)]
        True
    """
    rng = np.random.default_rng(seed)
    return [episode(OBSERVATION, ACTION, rng) for _ in range(count)]


class Contract:
    """Base class of the parts of the contract, with their fixtures."""

    data_format: str

    @pytest.fixture
    def path(self, tmp_path: Path) -> Iterator[Path]:
        """Yield the data path of a test's dataset."""
        yield tmp_path / "data"
        MemoryStorage.forget(tmp_path / "data")

    @pytest.fixture
    def storage(self, path: Path) -> MinariStorage:
        """Return a storage without episodes."""
        return self.new(path)

    @pytest.fixture
    def in_files(self, storage: MinariStorage, path: Path) -> None:
        """Skip a test of files or other processes if the format has no files."""
        if not (path / METADATA_FILE_NAME).is_file():
            pytest.skip(f"{self.data_format} has no files")

    @pytest.fixture
    def other_processes(self, in_files: None) -> None:
        """Skip a test that needs other processes if there are no files or no ``os.fork``."""
        if not hasattr(os, "fork"):
            pytest.skip("this system has no os.fork")

    def new(
        self,
        path: Path,
        observation_space: gym.Space = OBSERVATION,
        action_space: gym.Space = ACTION,
        *,
        jpeg_encoding: bool = False,
    ) -> MinariStorage:
        """Create a storage of the tested format."""
        return MinariStorage.new(
            path,
            observation_space,
            action_space,
            data_format=self.data_format,
            jpeg_encoding=jpeg_encoding,
        )


def steps_of(buffer: EpisodeBuffer, begin: int, end: int, *, first: bool) -> EpisodeBuffer:
    """Return some steps of an episode.

    Args:
        buffer: an episode whose columns are arrays and lists.
        begin: index of the first step.
        end: index after the last step.
        first: whether to include the observation before the first step, seed and options; if not,
            the result continues an episode.
    """
    total = len(buffer)

    def cut(leaf: Any) -> Any:
        reset = len(leaf) > total
        return leaf[begin + (reset and not first) : end + reset]

    columns = ("observations", "actions", "rewards", "terminations", "truncations")
    parts = {name: map_leaves(cut, getattr(buffer, name)) for name in (*columns, "infos", "extras")}
    own: dict[str, Any] = {} if first else {"seed": None, "options": None}
    return replace(buffer, **parts, **own)
