"""Define the read-only half of every storage: metadata and episodes of one data directory."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from minari_pipe.core import views
from minari_pipe.core.datasets_root import open_folder
from minari_pipe.core.environments import recover
from minari_pipe.core.episode import EpisodeBuffer, EpisodeData
from minari_pipe.core.files.atomic import current, read_text
from minari_pipe.core.files.links import OpenedFolder, walk
from minari_pipe.core.files.manifest import NAME_KEY
from minari_pipe.core.json_object import json_object
from minari_pipe.core.metadata import metadata_faults
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import CorruptDatasetError, DatasetNotFoundError
from minari_pipe.storage.formats import (
    METADATA_FILE_NAME,
    get_minari_storage,
    get_storage_keys,
    other_format,
)
from minari_pipe.storage.segment import AttributeTable, Segment
from minari_pipe.storage.writer import buffer_of

if TYPE_CHECKING:
    from minari_pipe.storage.base import MinariStorage

PathLike = str | os.PathLike[str]

#: the data directory of the storage that is being opened
_opening: ContextVar[OpenedFolder | None] = ContextVar("_opening", default=None)


class StoredEpisodes(ABC):
    """Reads the episodes and the metadata in one data directory.

    :class:`~minari_pipe.storage.base.MinariStorage` adds the methods that write.
    """

    FORMAT: str

    #: the opened data directory, which another version may replace; None for other data
    _opened: OpenedFolder | None = None

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
    ) -> None:
        """Open existing data; users call :meth:`read` or :meth:`new`.

        Args:
            data_path: directory of the data.
            observation_space: space of the observations.
            action_space: space of the actions.
            jpeg_encoding: whether images are stored as JPEG.
        """
        self._data_path = Path(data_path)
        self._observation_space = observation_space
        self._action_space = action_space
        self._jpeg_encoding = jpeg_encoding

    @classmethod
    def recognises(cls, data_path: Path) -> bool:
        """Return whether the data has this format; used for formats without ``metadata.json``.

        Args:
            data_path: a directory or a file.
        """
        return False

    @classmethod
    def read_raw_metadata(cls, data_path: PathLike) -> dict[str, Any]:
        """Return the content of ``metadata.json``, or its equivalent in an older layout.

        The manifest digest that a remote adds to the file is left out.

        Args:
            data_path: directory of the data, or the data file of a single-file layout.

        Raises:
            DatasetNotFoundError: the directory or the file does not exist.
            CorruptDatasetError: the file is not valid JSON.
        """
        data_path = Path(data_path)
        metadata = _metadata_file(data_path, _folder(data_path))
        if metadata is not None:
            metadata.pop(NAME_KEY, None)
            return metadata
        other = other_format(data_path)
        if other is not None:
            return other.read_raw_metadata(data_path)
        if data_path.is_file():
            raise CorruptDatasetError(f"{data_path} is a file with an unknown layout")
        if not data_path.is_dir():
            raise DatasetNotFoundError(f"The data path {data_path} doesn't exist")
        raise DatasetNotFoundError(f"No data found in data path {data_path}")

    @staticmethod
    def read(data_path: PathLike, *, trusted_modules: Collection[str] = ()) -> MinariStorage:
        """Open the storage in a data directory, in any format.

        Args:
            data_path: the directory, or the data file of a single-file layout.
            trusted_modules: modules from which the environment of the data may run code; the
                environment is created only if the data lacks spaces.

        Raises:
            DatasetNotFoundError: there is no data.
            CorruptDatasetError: the metadata is damaged or incomplete.
            UnknownFormatError: the ``data_format`` is unknown.
        """
        return opened(Path(data_path), trusted_modules)[0]

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> MinariStorage:
        """Open data of this format; see :meth:`recognises`.

        Args:
            data_path: a directory or a file that this class recognizes.
            trusted_modules: see :meth:`read`.

        Raises:
            NotImplementedError: the class recognizes no data.
        """
        raise NotImplementedError

    @abstractmethod
    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes: ``id, total_steps, seed, options, rewards_*, ...``.

        Args:
            episode_indices: episode numbers, in the order in which to yield them.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: the attributes are damaged.
        """

    @abstractmethod
    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts with the fields of :class:`~minari_pipe.EpisodeData`.

        Args:
            episode_indices: episode numbers, in the order in which to yield them.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: an episode is damaged.
        """

    def read_episodes(
        self, episode_indices: Iterable[int], *, copy: bool | None = None
    ) -> Iterator[EpisodeData]:
        """Yield episodes.

        Args:
            episode_indices: episode numbers, in the order in which to yield them.
            copy: True makes all arrays writable. Otherwise formats may return views of the file,
                which are read-only and about which PyTorch warns. None means False, or True
                when :mod:`minari_pipe.alias` replaces Minari.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: an episode is damaged.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> storage = step_index_dataset(lengths=(2, 3)).storage
            >>> (episode,) = storage.read_episodes([1], copy=True)
            >>> episode.rewards[0] = 7
            >>> episode.rewards
            array([7., 2., 3.])
        """
        copy = not views.unasked if copy is None else copy
        for fields in self.get_episodes(episode_indices):
            episode = EpisodeData(**fields)
            yield replace(episode, **map_leaves(_own, fields)) if copy else episode

    def get_attribute_table(
        self, episode_indices: Iterable[int], names: Collection[str] | None = None
    ) -> AttributeTable | None:
        """Return the attributes of episodes as columns, or None if they are not available that way.

        Args:
            episode_indices: the episodes.
            names: the attributes that are needed; None means all.

        Raises:
            IndexError: there is no such episode.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3))
            >>> dataset.storage.get_attribute_table([1]).numbers["rewards_sum"]
            array([6.])
        """
        return None

    def get_unchecked_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes like :meth:`get_episodes`, for callers that look for damage.

        If the format allows columns of any length, they are yielded unchanged, and ``IndexError``
        is raised after the last episode in the files, whatever count the metadata has.

        Args:
            episode_indices: the episodes.

        Example:
            >>> from gymnasium.spaces import Discrete
            >>> from minari_pipe import MinariStorage
            >>> storage = MinariStorage.new("any", Discrete(3), Discrete(2), data_format="memory")
            >>> list(storage.get_unchecked_episodes([]))
            []
            >>> from minari_pipe.storage.memory import MemoryStorage
            >>> MemoryStorage.forget("any")
        """
        return self.get_episodes(episode_indices)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata, with spaces as Gymnasium spaces and authors as sets."""
        metadata = self._raw_metadata()
        metadata["observation_space"] = self.observation_space
        metadata["action_space"] = self.action_space
        for key in ("author", "author_email"):
            value = metadata.pop(key, None)
            if value is None:
                continue
            names = [value] if isinstance(value, str) else value
            for _, what in metadata_faults({key: names}):
                raise CorruptDatasetError(f"{self.data_path}: metadata {key!r} {what}")
            metadata[key] = set(names)
        return metadata

    def apply(
        self,
        function: Callable[[dict[str, Any]], Any],
        episode_indices: Iterable[int] | None = None,
    ) -> Iterator[Any]:
        """Yield ``function(episode)`` for every episode.

        Args:
            function: takes what :meth:`get_episodes` yields.
            episode_indices: the episodes; None means all.
        """
        if episode_indices is None:
            episode_indices = range(self.total_episodes)
        return map(function, self.get_episodes(episode_indices))

    def get_buffers(self, episode_indices: Iterable[int] | None = None) -> Iterator[EpisodeBuffer]:
        """Yield episodes with all their stored data, ready to be appended to another storage.

        JPEG images stay JPEG, as :class:`~minari_pipe.storage.jpeg.Frames`, so that a copy loses
        no more detail; storages accept them with either ``jpeg_encoding``.

        Args:
            episode_indices: the episodes; None means all.
        """
        if episode_indices is None:
            episode_indices = range(self.total_episodes)
        indices = [int(index) for index in episode_indices]
        stored = self._get_stored_episodes(indices)
        for episode, attributes in zip(stored, self.get_episode_metadata(indices), strict=True):
            yield buffer_of(episode, attributes)

    def get_segments(self, episode_indices: Iterable[int]) -> Iterator[EpisodeBuffer | Segment]:
        """Yield the episodes of :meth:`get_buffers`, in segments if the format supports them.

        The result can be appended to another storage.

        Args:
            episode_indices: the episodes.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> storage = step_index_dataset(lengths=(2, 3)).storage
            >>> storage.update_episodes(storage.get_segments([1, 0]))
            >>> [int(episode["rewards"].sum()) for episode in storage.get_episodes(range(4))]
            [3, 6, 6, 3]
        """
        return self.get_buffers(episode_indices)

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the episodes of :meth:`get_episodes`, with JPEG files instead of image arrays."""
        return self.get_episodes(episode_indices)

    def check_version(self) -> None:
        """Raise an error if another version has replaced the data since they were opened.

        Raises:
            DatasetNotFoundError: another version, such as a download, replaced the data.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> step_index_dataset().storage.check_version()
        """
        if self._opened is not None:
            self._opened.check()

    def is_of(self, folder: OpenedFolder) -> bool:
        """Return whether the data belong to an opened folder; True if that cannot be known.

        Args:
            folder: the opened folder.

        Example:
            >>> from minari_pipe.core.files.links import OpenedFolder
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> storage = step_index_dataset().storage
            >>> storage.is_of(OpenedFolder(storage.data_path))
            True
        """
        return self._opened is None or self._opened.identity == folder.identity

    def get_size(self) -> float:
        """Return the size of the data directory's files in MB, rounded to 0.1."""
        return directory_size(self.data_path)

    @property
    def jpeg_encoding(self) -> bool:
        """Whether images are stored as JPEG, which is lossy."""
        return self._jpeg_encoding

    @property
    def data_path(self) -> Path:
        """The data directory."""
        return self._data_path

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""
        return self._total("total_episodes")

    @property
    def total_steps(self) -> int:
        """Number of steps in all episodes."""
        return self._total("total_steps")

    def _raw_metadata(self) -> dict[str, Any]:
        metadata = _metadata_file(self.data_path, self._opened)
        if metadata is None:  # an older layout, or the file is gone; the next call reports that
            metadata = self.read_raw_metadata(self.data_path)
        metadata.pop(NAME_KEY, None)
        self.check_version()
        return metadata

    def _total(self, key: str) -> int:
        metadata = self._raw_metadata()
        if key not in metadata:
            raise CorruptDatasetError(f"{self.data_path / METADATA_FILE_NAME} has no {key}")
        return metadata[key]

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Space of one observation."""
        return self._observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Space of one action."""
        return self._action_space


def folder_of(data_path: Path) -> OpenedFolder:
    """Open a data directory for a storage, or return the one whose metadata were just read.

    Raises:
        LinkError, OSError: see :func:`.datasets_root.open_folder`.
    """
    folder = _opening.get()
    if folder is not None and os.fspath(folder) == os.fspath(data_path):
        return folder
    return open_folder(data_path)


def opened(
    data_path: Path, trusted_modules: Collection[str] = ()
) -> tuple[MinariStorage, dict[str, Any]]:
    """Open the storage in a data directory and return it with its metadata.

    Args:
        data_path: see :meth:`StoredEpisodes.read`.
        trusted_modules: see :meth:`StoredEpisodes.read`.

    Raises:
        MinariPipeError: see :meth:`StoredEpisodes.read`.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> storage, metadata = opened(step_index_dataset().storage.data_path)
        >>> storage.observation_space, metadata["total_episodes"]
        (Discrete(5), 3)
    """
    folder = _folder(data_path)
    metadata = _metadata_file(data_path, folder)
    if metadata is None:
        other = other_format(data_path)
        if other is not None:
            storage = other.open(data_path, trusted_modules=trusted_modules)
            storage.check_version()  # records the version on the first call
            return storage, storage.read_raw_metadata(storage.data_path)
        metadata = StoredEpisodes.read_raw_metadata(data_path)  # raises an error that says why
    path = data_path / METADATA_FILE_NAME
    spaces: dict[str, gym.Space[Any]] = {}
    for key in ("observation_space", "action_space"):
        if isinstance(metadata.get(key), str):
            spaces[key] = deserialize_space(metadata[key])
    if len(spaces) < 2:
        if not isinstance(metadata.get("env_spec"), str):
            raise CorruptDatasetError(f"{path} must have both spaces or an env_spec")
        env = recover(metadata["env_spec"], trusted_modules=trusted_modules)
        spaces.setdefault("observation_space", env.observation_space)
        spaces.setdefault("action_space", env.action_space)
        env.close()
    if not isinstance(metadata.get("data_format"), str):
        raise CorruptDatasetError(
            f"{path} has no data_format; expected one of {get_storage_keys()}"
        )
    opening = _opening.set(folder)
    try:
        storage = get_minari_storage(metadata["data_format"])(
            data_path,
            spaces["observation_space"],
            spaces["action_space"],
            jpeg_encoding=bool(metadata.get("jpeg_encoding", _encoded_always(metadata))),
        )
        storage.check_version()
        is_other = folder is not None and not storage.is_of(folder)
    except DatasetNotFoundError:
        now = _folder(data_path)
        if folder is None or now is None or now.identity == folder.identity:
            raise
        is_other = True
    finally:
        _opening.reset(opening)
    if is_other:  # a download replaced it meanwhile
        return opened(data_path, trusted_modules)
    return storage, metadata


def _folder(data_path: Path) -> OpenedFolder | None:
    """Open the data directory, or return None if it is a file or does not exist."""
    try:
        return open_folder(data_path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _metadata_file(data_path: Path, folder: OpenedFolder | None) -> dict[str, Any] | None:
    """Return the content of ``metadata.json``, or None if there is no such file."""
    if folder is None:
        return None
    path = data_path / METADATA_FILE_NAME
    try:
        metadata = json_object(current(path, partial(read_text, below=folder)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptDatasetError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{path} cannot be read: {error}") from error
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CorruptDatasetError(
                f"{path}: {key} must be a non-negative integer, got {value!r}"
            )
    episodes, steps = metadata.get("total_episodes", 0), metadata.get("total_steps", 0)
    if {"total_episodes", "total_steps"} <= metadata.keys() and bool(episodes) != bool(steps):
        raise CorruptDatasetError(
            f"{path} has {episodes} total_episodes and {steps} total_steps; every episode has "
            "at least one step"
        )
    return metadata


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf


def _encoded_always(metadata: Mapping[str, Any]) -> bool:
    """Return whether the writing release encoded all images; Minari 0.5.4 added the key."""
    return metadata.get("minari_version") not in ("0.5.0", "0.5.1", "0.5.2")


def directory_size(data_path: Path) -> float:
    """Return the size of a directory's files in MB, rounded to 0.1."""
    return megabytes(sum(file_sizes(data_path).values()))


def file_sizes(*tops: Path) -> dict[str, int]:
    """Return the sizes of all files in directories, by relative path; later directories win."""
    sizes: dict[str, int] = {}
    for top in tops:
        for folder, below, names in walk(top):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in names:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                if not name.startswith(".") and stat.S_ISREG(status.st_mode):
                    sizes[os.path.relpath(path, top)] = status.st_size
    return sizes


def megabytes(size: int) -> float:
    """Return a size in MB, rounded to 0.1, as in ``dataset_size``."""
    return round(size / 1e6, 1)
