"""Store datasets in the memory of this process, for tests: lossless, without files, not persistent.

::

    resolved path ─→ metadata         what metadata.json would hold
                     episode, ...     its columns and its attributes

Values are copied when they are stored and when they are read, so callers never share arrays.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.metadata import dump_metadata
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.core.tree import leaves, map_leaves
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.storage.attributes import exact_form, flatten_attributes, from_exact_form
from minari_pipe.storage.base import Change, MinariStorage, PathLike
from minari_pipe.storage.columns import Columns, append_rows, check_space_names
from minari_pipe.storage.jpeg import decode_column
from minari_pipe.storage.writer import EpisodeWriter


@dataclass(frozen=True)
class _Episode:
    """The columns and attributes of one episode, never changed in place."""

    columns: Columns
    attributes: dict[str, Any]


@dataclass(frozen=True)
class _Data:
    """One state of a dataset, never changed in place."""

    metadata: str
    episodes: tuple[_Episode, ...] = ()
    lock: threading.RLock = field(default_factory=threading.RLock)


_DATA: dict[Path, _Data] = {}


class MemoryWriter(EpisodeWriter):
    """Adds episodes to a list in memory."""

    def __init__(self, episodes: list[_Episode]) -> None:
        self.episodes = episodes

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.episodes)

    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes.

        Raises:
            IndexError: there is no such episode.
        """
        return _own_attributes(_at(self.episodes, index).attributes)

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        flatten_attributes(attributes)  # reject the names that other formats reject
        own = _own_attributes(attributes)
        self.episodes.append(_Episode(map_leaves(_own_leaf, columns), own))

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        episode = _at(self.episodes, index)
        joined = append_rows(episode.columns, columns, f"episode {index}")
        self.episodes[index] = _Episode(joined, episode.attributes)
        return joined["rewards"]

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        flatten_attributes(attributes)
        columns = _at(self.episodes, index).columns
        self.episodes[index] = _Episode(columns, _own_attributes(attributes))


class MemoryStorage(MinariStorage):
    """A dataset in the memory of this process, registered under the path of its creation.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> storage = MinariStorage.new("no/file", Discrete(2), Discrete(2), data_format="memory")
        >>> MinariStorage.read("no/file").total_episodes
        0
        >>> MemoryStorage.forget("no/file")
    """

    FORMAT = "memory"

    @classmethod
    def recognises(cls, data_path: Path) -> bool:
        """Return whether there is a dataset at this path."""
        return data_path.resolve() in _DATA

    @classmethod
    def read_raw_metadata(cls, data_path: PathLike) -> dict[str, Any]:
        """Return what ``metadata.json`` would hold.

        Raises:
            DatasetNotFoundError: there is no dataset at this path.
        """
        return json.loads(_find(Path(data_path)).metadata)

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> MinariStorage:
        """Open the dataset at this path; its spaces are stored, so nothing needs trust."""
        metadata = cls.read_raw_metadata(data_path)
        return cls(
            data_path,
            deserialize_space(metadata["observation_space"]),
            deserialize_space(metadata["action_space"]),
            metadata["jpeg_encoding"],
        )

    @staticmethod
    def forget(data_path: PathLike) -> None:
        """Remove a dataset, if it exists."""
        _DATA.pop(Path(data_path).resolve(), None)

    @classmethod
    def check_spaces(
        cls,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        jpeg_encoding: bool = False,
    ) -> None:
        """Raise an error if a format with files could not store values of these spaces."""
        super().check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)
        check_space_names(observation_space, action_space)

    @classmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> MemoryStorage:
        _DATA[data_path.resolve()] = _Data(dump_metadata(metadata or {}))
        return cls(data_path, observation_space, action_space, jpeg_encoding)

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        episodes = _find(self.data_path).episodes
        for index in episode_indices:
            yield _own_attributes(_at(episodes, index).attributes)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        for episode in self._get_stored_episodes(episode_indices):
            yield decode_column(episode)

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        episodes = _find(self.data_path).episodes
        for index in episode_indices:
            episode = _at(episodes, index)
            own = map_leaves(_own_leaf, episode.columns)
            seed = episode.attributes.get("seed")
            yield {"id": int(index), "seed": seed, "extras": {}, **own}

    def get_size(self) -> float:
        """Return the size of the arrays in MB, rounded to 0.1."""
        return _size(_find(self.data_path).episodes)

    @contextmanager
    def _change(self) -> Iterator[Change]:
        with _find(self.data_path).lock:
            data = _find(self.data_path)
            episodes = list(data.episodes)
            change = Change(json.loads(data.metadata), lambda: MemoryWriter(episodes))
            yield change
            if change.has_episodes:
                change.metadata["dataset_size"] = _size(episodes)
            new = _Data(dump_metadata(change.metadata), tuple(episodes), lock=data.lock)
            _DATA[self.data_path.resolve()] = new


def _find(data_path: Path) -> _Data:
    data = _DATA.get(data_path.resolve())
    if data is None:
        raise DatasetNotFoundError(
            f"No data found in data path {data_path}: a dataset of the format memory exists only "
            "in the process that made it"
        )
    return data


def _at(episodes: Sequence[_Episode], index: int) -> _Episode:
    if not 0 <= index < len(episodes):
        raise IndexError(f"episode {index} is out of range: there are {len(episodes)} episodes")
    return episodes[index]


def _size(episodes: Iterable[_Episode]) -> float:
    columns = (leaf for episode in episodes for _, leaf in leaves(episode.columns))
    sizes = (sum(map(len, leaf)) if isinstance(leaf, list) else leaf.nbytes for leaf in columns)
    return round(sum(sizes) / 1e6, 1)


def _own_leaf(leaf: Any) -> Any:
    return copy.copy(leaf)


def _own_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy attributes, with the types that a format with files would return."""
    return {key: from_exact_form(exact_form(value, key)) for key, value in attributes.items()}
