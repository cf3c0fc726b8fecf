"""Implement what flat layouts share: one file with the steps of all episodes in one table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.episode import FINAL_OBSERVATION_MISSING
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser.checked import open_checked
from minari_pipe.storage.hdf5.values import check_leaf, member
from minari_pipe.storage.legacy.base import (
    TRUNCATION_INFERRED,
    LegacyStorage,
    Stamp,
    flags,
    indices_of,
    numbers,
    open_file,
    reading,
    stamp,
    with_final_row,
)


@dataclass(frozen=True)
class Rows:
    """The location of one episode: rows ``start`` to ``stop`` of the columns in group ``part``."""

    part: str
    start: int
    stop: int
    flagged: bool
    """Whether its last step is marked as terminated or truncated."""


@dataclass(frozen=True)
class Summary:
    """The parts of a file that are needed repeatedly."""

    metadata: dict[str, Any]
    episodes: tuple[Rows, ...]
    unknown: tuple[str, ...]


class RowsStorage(LegacyStorage):
    """A dataset in one file of columns, which is cut into episodes at its flags.

    A layout defines the names of its columns, where episodes end and what else it holds.
    """

    #: names of the flag columns
    TERMINATIONS: str
    TRUNCATIONS: str

    @classmethod
    def recognises(cls, data_path: Path) -> bool:
        """Return whether this is a file of this layout."""
        try:
            if not data_path.is_file() or not h5py.is_hdf5(data_path):
                return False
            with open_checked(data_path.resolve()) as file:  # the user may name it by a link
                return cls._is_mine(file)
        except Exception:  # the file is untrusted, and this is called on any path
            return False

    @classmethod
    @abstractmethod
    def _is_mine(cls, file: Any) -> bool:
        """Return whether the names in the file are those of this layout."""

    @classmethod
    @abstractmethod
    def _summarise(cls, file: h5py.File, path: Path) -> Summary:
        """Read the flags and the metadata."""

    @classmethod
    @abstractmethod
    def _spaces(
        cls, file: h5py.File, summary: Summary
    ) -> tuple[gym.Space[Any], gym.Space[Any], tuple[str, ...]]:
        """Return the spaces, and sentences about what is unknown about them."""

    @classmethod
    def read_raw_metadata(cls, data_path: Any) -> dict[str, Any]:
        """Return the file's metadata with the keys and types of ``metadata.json``."""
        return deepcopy(cls._summary(Path(data_path)).metadata)

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> RowsStorage:
        """Open a file; it has no environment spec, so ``trusted_modules`` has no effect."""
        summary = cls._summary(data_path)
        with reading(data_path, "spaces"), open_file(data_path) as file:
            observation_space, action_space, unknown = cls._spaces(file, summary)
        storage = cls(data_path, observation_space, action_space)
        storage.unknown = (*summary.unknown, *unknown)
        return storage

    @classmethod
    def _summary(cls, path: Path) -> Summary:
        with reading(path):
            return _cached(cls, path, stamp(path))

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes, which are derived from their rows."""
        self.check_version()
        episodes = self._summary(self.data_path).episodes
        with reading(self.data_path), open_file(self.data_path) as file:
            marks = {part: self._marks(file, part) for part in {rows.part for rows in episodes}}
        for index in indices_of(episode_indices, len(episodes)):
            rows = episodes[index]
            steps = rows.stop - rows.start
            attributes: dict[str, Any] = {"id": index, "total_steps": steps}
            final, infos = marks[rows.part]
            if not final:
                attributes[FINAL_OBSERVATION_MISSING] = True
            if not rows.flagged:
                attributes[TRUNCATION_INFERRED] = True
            if infos:
                attributes["infos_filled"] = {name: [[steps, steps + 1]] for name in infos}
            yield attributes

    def _marks(self, file: h5py.File, part: str) -> tuple[bool, list[str]]:
        """Return whether final observations are recorded, and the names of the infos."""
        return False, []

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        self.check_version()
        episodes = self._summary(self.data_path).episodes
        with open_file(self.data_path) as file:
            for index in indices_of(episode_indices, len(episodes)):
                with reading(self.data_path, f"episode {index}"):
                    episode = self._episode(file, episodes[index], index)
                yield episode

    def _episode(self, file: h5py.File, rows: Rows, index: int) -> dict[str, Any]:
        part = part_of(file, rows.part)
        steps = rows.stop - rows.start
        episode: dict[str, Any] = {"id": index, "seed": None, "infos": {}, "extras": {}}
        observations = column(part, "observations")[rows.start : rows.stop]
        episode["observations"] = with_final_row(observations, steps, "observations")
        episode["actions"] = self._actions(column(part, "actions")[rows.start : rows.stop])
        episode["rewards"] = numbers(column(part, "rewards")[rows.start : rows.stop], "rewards")
        for key, name in (
            ("terminations", self.TERMINATIONS),
            ("truncations", self.TRUNCATIONS),
        ):
            episode[key] = np.zeros(steps, bool)
            if name in part:
                episode[key] = flags(column(part, name)[rows.start : rows.stop], name)
        if not rows.flagged:
            episode["truncations"][-1] = True
        return episode

    def _actions(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.action_space.shape == () and actions.ndim == 2 and actions.shape[1] == 1:
            actions = actions[:, 0]
        if isinstance(self.action_space, spaces.Discrete) and actions.dtype.kind in "iu":
            return actions.astype(self.action_space.dtype)  # 0.2 always stored int32
        return actions


@lru_cache(maxsize=256)
def _cached(layout: type[RowsStorage], path: Path, stamp: Stamp) -> Summary:
    with open_file(path) as file:
        return layout._summarise(file, path)


def part_of(file: Any, part: str) -> Any:
    """Return the group that holds the columns of an episode."""
    return member(file, part) if part else file


def column(group: h5py.Group, key: str) -> h5py.Dataset:
    """Return a column after checking that it is safe to read.

    Raises:
        CorruptDatasetError: it is missing, has no rows of numbers, or is not in this file.
    """
    if key not in group:
        raise CorruptDatasetError(f"there is no dataset {key!r}, only {', '.join(group)[:200]}")
    found = member(group, key)
    check_leaf(found)
    if found.dtype.kind not in "fiub" or not found.ndim:
        raise CorruptDatasetError(
            f"{found.name} has dtype {found.dtype} and {found.ndim} dimensions, expected rows "
            "of numbers"
        )
    return found


def check_lengths(group: h5py.Group, keys: Iterable[str]) -> int:
    """Return the number of rows of those columns in ``keys`` that exist.

    Raises:
        CorruptDatasetError: the numbers differ, or no column exists.
    """
    counts = {key: len(column(group, key)) for key in keys if key in group}
    if len(set(counts.values())) != 1:
        counted = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise CorruptDatasetError(f"columns have different numbers of rows: {counted or 'none'}")
    return next(iter(counts.values()))


def read_flags(group: h5py.Group, key: str, rows: int) -> npt.NDArray[np.bool_]:
    """Return a whole column of flags; a missing column is False everywhere."""
    if key not in group:
        return np.zeros(rows, bool)
    return flags(column(group, key)[()], key)


def episode_bounds(ends_here: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the first row of each episode, and the number of rows, where the last one ends.

    Args:
        ends_here: whether an episode ends at this row, shape ``(N,)``.

    Returns:
        Shape ``(episodes + 1,)``.

    Example:
        >>> episode_bounds(np.array([False, True, False]))
        array([0, 2, 3])
    """
    ends = np.flatnonzero(ends_here) + 1
    rows = len(ends_here)
    if rows and (not len(ends) or ends[-1] != rows):
        ends = np.append(ends, rows)
    return np.concatenate([[0], ends]).astype(np.intp)


def cut(
    part: str, ends_here: npt.NDArray[np.bool_], flagged: npt.NDArray[np.bool_]
) -> Iterator[Rows]:
    """Yield the episodes of a part.

    Args:
        part: name of its group.
        ends_here: whether an episode ends at this row, shape ``(N,)``.
        flagged: whether this row is terminated or truncated, shape ``(N,)``.
    """
    bounds = episode_bounds(ends_here)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield Rows(part, start, stop, bool(flagged[stop - 1]))
