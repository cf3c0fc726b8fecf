"""What every storage is: the bytes of one dataset in one directory, whatever their format.

A format is one subclass of :class:`~minari_pipe.storage.directory.DirectoryStorage` and one entry
of the registry below, or an entry point of the group ``minari_pipe.storages`` in another package.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from minari_pipe import views
from minari_pipe.environments import recover, spec_json
from minari_pipe.episode import EpisodeBuffer, EpisodeData
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidMetadataError,
    UnknownFormatError,
)
from minari_pipe.files import current, read_text
from minari_pipe.metadata import FIXED_KEYS, metadata_faults, validate_metadata
from minari_pipe.spaces import deserialize_space, serialize_space
from minari_pipe.storage.jpeg import check_jpeg_spaces
from minari_pipe.storage.segment import AttributeTable, Segment
from minari_pipe.storage.writer import EpisodeWriter, Judge, buffer_of
from minari_pipe.tree import map_leaves

METADATA_FILE_NAME = "metadata.json"
"""Name of the file that holds the metadata of a dataset, in its data directory."""

PathLike = str | os.PathLike[str]

#: formats that write, by ``data_format``
_FORMATS = {
    "hdf5": "minari_pipe.storage.hdf5:HDF5Storage",
    "arrow": "minari_pipe.storage.arrow:ArrowStorage",
    "parquet": "minari_pipe.storage.arrow:ParquetStorage",
}
#: formats that write too, but only for this process
_UNLISTED = {
    "memory": "minari_pipe.storage.memory:MemoryStorage",
}
#: storages without ``metadata.json``: each class recognises its data by the path
_OTHERS: tuple[str, ...] = (
    _UNLISTED["memory"],
    "minari_pipe.storage.legacy.attributes:AttributesStorage",
    "minari_pipe.storage.legacy.flat:FlatStorage",
    "minari_pipe.storage.legacy.d4rl:D4RLStorage",
)
_ENTRY_POINTS = "minari_pipe.storages"


def get_storage_keys() -> list[str]:
    """Return the names of the formats that ``data_format`` can take.

    Example:
        >>> from minari_pipe import get_storage_keys
        >>> "hdf5" in get_storage_keys()
        True
    """
    return [*_FORMATS, *(entry.name for entry in entry_points(group=_ENTRY_POINTS))]


def is_file_format(data_format: str) -> bool:
    """Whether this is one of :func:`get_storage_keys`, without a look at all packages if it can.

    Example:
        >>> is_file_format("hdf5"), is_file_format("memory")
        (True, False)
    """
    return data_format in _FORMATS or data_format in get_storage_keys()


def get_minari_storage(storage_type: str) -> type[MinariStorage]:
    """Return the storage class of a format.

    Args:
        storage_type: one of :func:`get_storage_keys`, or ``"memory"``, which is not listed there:
            its datasets end with the process.

    Raises:
        UnknownFormatError: no storage has this name.
        MissingDependencyError: the package that the format needs is not installed.

    Example:
        >>> get_minari_storage("hdf5").__name__
        'HDF5Storage'
    """
    address = (_FORMATS | _UNLISTED).get(storage_type)
    if address is not None:
        return _load(address)
    for entry in entry_points(group=_ENTRY_POINTS):
        if entry.name == storage_type:
            return entry.load()
    raise UnknownFormatError(
        f"No storage implemented for {storage_type}. Available formats: {get_storage_keys()}"
    )


def file_format(data_format: str | None) -> str:
    """Return the format of a new dataset of the local root: hdf5 if none is named.

    Raises:
        UnknownFormatError: its datasets are no files, and would end with the process.

    Example:
        >>> file_format(None)
        'hdf5'
    """
    if data_format in _UNLISTED:
        raise UnknownFormatError(
            f"No storage implemented for {data_format} that keeps files, as a dataset of the local "
            f"root does. Available formats: {get_storage_keys()}"
        )
    return data_format or "hdf5"


def _load(address: str) -> type[MinariStorage]:
    module, name = address.split(":")
    return getattr(importlib.import_module(module), name)


def other_format(data_path: Path) -> type[MinariStorage] | None:
    """Return the storage that knows this data, if it is not of the standard's present layout."""
    known = _OTHERS
    if _is_empty(data_path):  # no older layout; what lives in memory is in a module that is loaded
        known = tuple(address for address in _OTHERS if address.partition(":")[0] in sys.modules)
    return next((c for c in map(_load, known) if c.recognises(data_path)), None)


class MinariStorage(ABC):
    """Reads and writes the episodes and the metadata in one data directory.

    The metadata on disk is always that of the episodes on disk: an append is visible wholly or
    not at all, also to a process that reads meanwhile. One process writes at a time, others wait.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> from minari_pipe import EpisodeBuffer, MinariStorage
        >>> storage = MinariStorage.new("some/data", Discrete(9), Discrete(2), data_format="memory")
        >>> storage.update_episodes([
        ...     EpisodeBuffer(
        ...         seed=7,
        ...         observations=[0, 1, 2],
        ...         actions=[1, 1],
        ...         rewards=[0.0, 1.0],
        ...         terminations=[False, True],
        ...         truncations=[False, False],
        ...     )
        ... ])
        >>> (episode,) = storage.get_episodes([0])
        >>> episode["observations"], episode["seed"]
        (array([0, 1, 2]), 7)
        >>> next(storage.get_episode_metadata([0]))["rewards_sum"]
        1.0
        >>> storage.total_episodes, storage.total_steps, storage.observation_space
        (1, 2, Discrete(9))

        Attributes of the dataset and of its episodes:

        >>> storage.update_metadata({"author": {"Ada"}})
        >>> storage.metadata["author"], storage.metadata["action_space"]
        ({'Ada'}, Discrete(2))
        >>> storage.read_raw_metadata(storage.data_path)["author"]
        ['Ada']
        >>> storage.update_episode_metadata([{"weather": "rain"}])
        >>> next(storage.get_episode_metadata([0]))["weather"]
        'rain'

        Everything of some episodes, to append it elsewhere:

        >>> other = MinariStorage.new(
        ...     "other/data", storage.observation_space, storage.action_space, data_format="hdf5"
        ... )
        >>> other.update_from_storage(storage, [0])
        >>> other.update_episodes(storage.get_buffers([0]))
        >>> [buffer.seed for buffer in MinariStorage.read("other/data").get_buffers()]
        [7, 7]
        >>> list(other.apply(lambda episode: float(episode["rewards"].sum())))
        [1.0, 1.0]
        >>> other.check_spaces(Discrete(3), Discrete(2)), other.jpeg_encoding
        (None, False)
        >>> other.get_size() < 1.0  # MB
        True
    """

    FORMAT: str

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
    ) -> None:
        """Open data that is there; users call :meth:`read` or :meth:`new`.

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
        """Whether this is data of this class; asked of the formats without ``metadata.json``.

        Args:
            data_path: a directory or a file.
        """
        return False

    @classmethod
    def read_raw_metadata(cls, data_path: PathLike) -> dict[str, Any]:
        """Return the content of ``metadata.json`` as it is, or what an older layout has of it.

        Args:
            data_path: directory of the data, or the file of a layout that is one file.

        Raises:
            DatasetNotFoundError: the directory or the file does not exist.
            CorruptDatasetError: the file is not JSON.
        """
        data_path = Path(data_path)
        metadata = _metadata_file(data_path)
        if metadata is not None:
            return metadata
        other = other_format(data_path)
        if other is not None:
            return other.read_raw_metadata(data_path)
        if data_path.is_file():
            raise CorruptDatasetError(f"{data_path} is a file of no layout that is known here")
        if not data_path.is_dir():
            raise DatasetNotFoundError(f"The data path {data_path} doesn't exist")
        raise DatasetNotFoundError(f"No data found in data path {data_path}")

    @staticmethod
    def read(data_path: PathLike, *, trusted_modules: Collection[str] = ()) -> MinariStorage:
        """Open the storage in a data directory, whatever its format.

        Args:
            data_path: the directory, or the file of a layout that is one file.
            trusted_modules: modules whose code the environment of the data may name; it is made
                only where the data has no spaces.

        Raises:
            DatasetNotFoundError: there is no data.
            CorruptDatasetError: the metadata is damaged or incomplete.
            UnknownFormatError: its ``data_format`` is unknown.
        """
        return opened(Path(data_path), trusted_modules)[0]

    @staticmethod
    def new(
        data_path: PathLike,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        env_spec: EnvSpec | None = None,
        data_format: str = "hdf5",
        *,
        jpeg_encoding: bool = False,
    ) -> MinariStorage:
        """Begin an empty storage; if that fails, nothing is left behind.

        Args:
            data_path: directory of the data, made if it does not exist.
            observation_space: space of the observations; None takes the environment's.
            action_space: space of the actions; None takes the environment's.
            env_spec: spec of the environment that the data comes from.
            data_format: one of :func:`get_storage_keys`.
            jpeg_encoding: store images lossily; unlike Minari's, the default is lossless.

        Raises:
            InvalidMetadataError: neither both spaces nor ``env_spec`` are given.
            UnknownFormatError: there is no such format.
            UnsupportedSpaceError: a space has no form in the standard.
            DatasetExistsError: the directory holds a dataset.
        """
        storage_class, spaces, metadata = _beginning(
            Path(data_path), observation_space, action_space, env_spec, data_format, jpeg_encoding
        )
        return storage_class._create(Path(data_path), *spaces, jpeg_encoding, metadata)

    @staticmethod
    def create(
        data_path: PathLike,
        episodes: Iterable[EpisodeBuffer | Segment],
        *,
        metadata: Mapping[str, Any],
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        env_spec: EnvSpec | None = None,
        data_format: str = "hdf5",
        jpeg_encoding: bool = False,
        judge: Judge | None = None,
    ) -> MinariStorage:
        """Write a whole storage at once, into a directory that nobody else looks into yet.

        Args:
            data_path: directory of the data, made if it does not exist.
            episodes: taken one after the other.
            metadata: what :meth:`update_metadata` takes.
            observation_space: see :meth:`new`, as for those below.
            action_space: space of the actions.
            env_spec: spec of the environment that the data comes from.
            data_format: one of :func:`get_storage_keys`.
            jpeg_encoding: store images lossily.
            judge: looks at the values before they are written, and may refuse them.

        Raises:
            InvalidMetadataError: a value of the metadata has a wrong type.
            InvalidEpisodeError: a buffer's values do not fit together or to the spaces.
            MinariPipeError: see :meth:`new`.

        Example:
            >>> from gymnasium.spaces import Discrete
            >>> from minari_pipe import MinariStorage
            >>> storage = MinariStorage.create(
            ...     "some/data", [], metadata={"author": ["Ada"]},
            ...     observation_space=Discrete(2), action_space=Discrete(2),
            ... )
            >>> storage.total_episodes, storage.metadata["author"]
            (0, {'Ada'})
        """
        storage_class, spaces, own = _beginning(
            Path(data_path), observation_space, action_space, env_spec, data_format, jpeg_encoding
        )
        validate_metadata(metadata)
        for key in metadata.keys() & own.keys() & FIXED_KEYS:
            raise InvalidMetadataError(f"You are not allowed to update values for {key}")
        return storage_class._create_whole(
            Path(data_path), *spaces, jpeg_encoding, {**own, **metadata}, episodes, judge
        )

    @classmethod
    def _create_whole(
        cls,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool,
        metadata: dict[str, Any],
        episodes: Iterable[EpisodeBuffer | Segment],
        judge: Judge | None,
    ) -> MinariStorage:
        storage = cls._create(data_path, observation_space, action_space, jpeg_encoding, metadata)
        storage.update_episodes(episodes, judge=judge)
        return storage

    @classmethod
    def check_spaces(
        cls, observation_space: gym.Space, action_space: gym.Space, *, jpeg_encoding: bool = False
    ) -> None:
        """Check that this format can store values of these spaces.

        Args:
            observation_space: space of the observations.
            action_space: space of the actions.
            jpeg_encoding: whether images are to be JPEG.

        Raises:
            UnsupportedSpaceError: it cannot.
            MissingDependencyError: images are to be JPEG and Pillow is not installed.
        """
        serialize_space(observation_space)
        serialize_space(action_space)
        if jpeg_encoding:
            check_jpeg_spaces(observation_space, action_space)

    @classmethod
    @abstractmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> MinariStorage:
        """Begin an empty storage with this metadata; if that fails, nothing is left behind."""

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> MinariStorage:
        """Open data of this class; see :meth:`recognises`.

        Args:
            data_path: a directory or a file that this class recognises.
            trusted_modules: see :meth:`read`.

        Raises:
            NotImplementedError: the class recognises no data.
        """
        raise NotImplementedError

    @abstractmethod
    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes: ``id, total_steps, seed, options, rewards_*, ...``.

        Args:
            episode_indices: their numbers, in the order in which they are yielded.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: the attributes are damaged.
        """

    @abstractmethod
    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts with the fields of :class:`~minari_pipe.episode.EpisodeData`.

        Args:
            episode_indices: their numbers, in the order in which they are yielded.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: an episode is damaged.
        """

    def read_episodes(
        self, episode_indices: Iterable[int], *, copy: bool | None = None
    ) -> Iterator[EpisodeData]:
        """Yield episodes.

        Args:
            episode_indices: their numbers, in the order in which they are yielded.
            copy: whether all arrays can be written to. Formats may hand out views of the file
                otherwise, which are read-only, and of which PyTorch warns; None means False, but
                True where :mod:`minari_pipe.alias` stands for Minari.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: an episode is damaged.

        Example:
            >>> from minari_pipe.examples import step_index_dataset
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
        """Return the attributes of episodes in columns; None if they are not at hand in that form.

        Args:
            episode_indices: the episodes.
            names: of the attributes that are needed; None means all.

        Raises:
            IndexError: there is no such episode.

        Example:
            >>> from minari_pipe.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3))
            >>> dataset.storage.get_attribute_table([1]).numbers["rewards_sum"]
            array([6.])
        """
        return None

    def get_unchecked_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes like :meth:`get_episodes`, for those who look for what is wrong in them.

        A format whose columns can be of any length yields them as they are, and raises
        ``IndexError`` after the last episode of its files, however many the metadata count.

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

    @abstractmethod
    def _change(self) -> AbstractContextManager[Change]:
        """Begin a change of metadata and episodes; at a clean exit all of it counts, else nothing.

        One change at a time, in all processes.
        """

    def update_episodes(
        self, episodes: Iterable[EpisodeBuffer | Segment], *, judge: Judge | None = None
    ) -> None:
        """Append episodes, all or none of them.

        A buffer whose ``id`` is that of a stored episode continues that episode: it has no row
        for a reset, so as many observations as actions.

        Args:
            episodes: taken one after the other, so a generator need not hold all of them.
            judge: looks at the values before they are written, and may refuse them.

        Raises:
            InvalidEpisodeError: a buffer's values do not fit together or to the spaces.
        """
        self.check_spaces(
            self.observation_space, self.action_space, jpeg_encoding=self.jpeg_encoding
        )
        with self._change() as change:
            writer = change.writer
            steps = writer.add(
                episodes,
                self.observation_space,
                self.action_space,
                jpeg_encoding=self.jpeg_encoding,
                judge=judge,
            )
            change.metadata["total_episodes"] = len(writer)
            change.metadata["total_steps"] += steps

    def update_episode_metadata(
        self, metadatas: Iterable[dict], episode_indices: Iterable[int] | None = None
    ) -> None:
        """Add attributes to episodes, replacing those of the same names; all or none of them.

        Args:
            metadatas: the attributes, one dict for each episode.
            episode_indices: the episodes; None means all.

        Raises:
            InvalidMetadataError: the two have different lengths, or would change id or steps.
        """
        if episode_indices is None:
            episode_indices = range(self.total_episodes)
        pairs = list(zip_longest(metadatas, episode_indices))
        if any(part is None for pair in pairs for part in pair):
            raise InvalidMetadataError("Metadatas and episode_indices have different lengths")
        with self._change() as change:
            for new, index in pairs:
                change.writer.update_metadata(int(index), new)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata, with spaces as spaces and authors as sets."""
        metadata = self.read_raw_metadata(self.data_path)
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

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add values to the metadata or change them.

        Args:
            metadata: keys of the standard, or any others with what JSON can hold.

        Raises:
            InvalidMetadataError: a value has a wrong type, or a key may not change any more.
        """
        validate_metadata(metadata)
        with self._change() as change:
            forbidden = FIXED_KEYS & metadata.keys() & change.metadata.keys()
            if forbidden:
                raise InvalidMetadataError(
                    f"You are not allowed to update values for {', '.join(sorted(forbidden))}"
                )
            change.metadata.update(metadata)

    def apply(
        self, function: Callable[[dict], Any], episode_indices: Iterable[int] | None = None
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
        """Yield episodes with everything that is stored with them, ready to be appended elsewhere.

        Images that are stored as JPEG stay JPEG, as :class:`~minari_pipe.storage.jpeg.Frames`,
        so that a copy loses nothing more; a storage of either encoding takes them.

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
        """Yield what :meth:`get_buffers` does, many episodes at once where a format has them so.

        What it yields can be appended to another storage.

        Args:
            episode_indices: the episodes.

        Example:
            >>> from minari_pipe.examples import step_index_dataset
            >>> storage = step_index_dataset(lengths=(2, 3)).storage
            >>> storage.update_episodes(storage.get_segments([1, 0]))
            >>> [int(episode["rewards"].sum()) for episode in storage.get_episodes(range(4))]
            [3, 6, 6, 3]
        """
        return self.get_buffers(episode_indices)

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield what :meth:`get_episodes` does, with the JPEG files of images for their arrays."""
        return self.get_episodes(episode_indices)

    def update_from_storage(
        self, storage: MinariStorage, episode_indices: Iterable[int] | None = None
    ) -> None:
        """Append another storage's episodes with their seeds, options, infos and attributes.

        Args:
            storage: where the episodes come from; its authors are added to this one's.
            episode_indices: which of them; None means all.

        Raises:
            InvalidEpisodeError: the episodes are not of this storage's spaces.
        """
        theirs, ours = storage.metadata, self.metadata
        if episode_indices is None:
            episode_indices = range(storage.total_episodes)
        self.update_episodes(storage.get_segments(episode_indices))
        self.update_metadata(
            {
                key: ours.get(key, set()) | theirs.get(key, set())
                for key in ("author", "author_email")
            }
        )

    def get_size(self) -> float:
        """Return the size of the data directory's files in MB, rounded to 0.1."""
        return directory_size(self.data_path)

    @property
    def jpeg_encoding(self) -> bool:
        """Whether images are stored as JPEG, which is lossy."""
        return self._jpeg_encoding

    @property
    def data_path(self) -> Path:
        """Directory of the data."""
        return self._data_path

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""
        return self._total("total_episodes")

    @property
    def total_steps(self) -> int:
        """Number of steps of all episodes."""
        return self._total("total_steps")

    def _total(self, key: str) -> int:
        metadata = self.read_raw_metadata(self.data_path)
        if key not in metadata:
            raise CorruptDatasetError(f"{self.data_path / METADATA_FILE_NAME} has no {key}")
        return metadata[key]

    @property
    def observation_space(self) -> gym.Space:
        """Space of one observation."""
        return self._observation_space

    @property
    def action_space(self) -> gym.Space:
        """Space of one action."""
        return self._action_space


class Change:
    """What one change writes: the metadata, and the episodes if it asks for the writer."""

    def __init__(self, metadata: dict[str, Any], open_writer: Callable[[], EpisodeWriter]) -> None:
        self.metadata = metadata
        self.has_episodes = False
        self._open_writer = open_writer

    @cached_property
    def writer(self) -> EpisodeWriter:
        """The writer of episodes, opened when it is first asked for."""
        self.has_episodes = True
        return self._open_writer()


def _beginning(
    data_path: Path,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
    env_spec: EnvSpec | None,
    data_format: str,
    jpeg_encoding: bool,
) -> tuple[type[MinariStorage], tuple[gym.Space, gym.Space], dict[str, Any]]:
    """Return class, spaces and first metadata of a new storage; see :meth:`MinariStorage.new`."""
    if env_spec is None and (observation_space is None or action_space is None):
        raise InvalidMetadataError(
            "Since env_spec is not specified, you need to specify both action space and "
            "observation space"
        )
    storage_class = get_minari_storage(data_format)
    if (data_path / METADATA_FILE_NAME).exists() or other_format(data_path) is not None:
        raise DatasetExistsError(
            f"A dataset is already available at {data_path}. Delete it or specify another path"
        )
    if observation_space is None or action_space is None:
        assert env_spec is not None
        env = gym.make(env_spec)
        observation_space = observation_space or env.observation_space
        action_space = action_space or env.action_space
        env.close()
    storage_class.check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)
    metadata: dict[str, Any] = {
        "total_episodes": 0,
        "total_steps": 0,
        "data_format": data_format,
        "jpeg_encoding": jpeg_encoding,
        "observation_space": serialize_space(observation_space),
        "action_space": serialize_space(action_space),
    }
    if env_spec is not None:
        try:
            metadata["env_spec"] = spec_json(env_spec)
        except ConfigError as error:
            warnings.warn(
                f"env_spec is not serializable as {error}. "
                "You will not be able to recover the environment from the dataset.",
                stacklevel=3,
            )
    return storage_class, (observation_space, action_space), metadata


def opened(
    data_path: Path, trusted_modules: Collection[str] = ()
) -> tuple[MinariStorage, dict[str, Any]]:
    """Open the storage in a data directory, and return its metadata, which say what it is.

    Args:
        data_path: see :meth:`MinariStorage.read`.
        trusted_modules: likewise.

    Raises:
        MinariPipeError: see :meth:`MinariStorage.read`.

    Example:
        >>> from minari_pipe.examples import step_index_dataset
        >>> storage, metadata = opened(step_index_dataset().storage.data_path)
        >>> storage.observation_space, metadata["total_episodes"]
        (Discrete(5), 3)
    """
    metadata = _metadata_file(data_path)
    if metadata is None:
        other = other_format(data_path)
        if other is not None:
            storage = other.open(data_path, trusted_modules=trusted_modules)
            return storage, storage.read_raw_metadata(storage.data_path)
        metadata = MinariStorage.read_raw_metadata(data_path)  # says what is there instead
    path = data_path / METADATA_FILE_NAME
    spaces: dict[str, gym.Space] = {}
    for key in ("observation_space", "action_space"):
        if isinstance(metadata.get(key), str):
            spaces[key] = deserialize_space(metadata[key])
    if len(spaces) < 2:
        if not isinstance(metadata.get("env_spec"), str):
            raise CorruptDatasetError(
                f"{path} has neither both spaces nor an env_spec; they cannot be guessed"
            )
        env = recover(metadata["env_spec"], trusted_modules=trusted_modules)
        spaces.setdefault("observation_space", env.observation_space)
        spaces.setdefault("action_space", env.action_space)
        env.close()
    if not isinstance(metadata.get("data_format"), str):
        raise CorruptDatasetError(
            f"{path} has no data_format; expected one of {get_storage_keys()}"
        )
    storage = get_minari_storage(metadata["data_format"])(
        data_path,
        spaces["observation_space"],
        spaces["action_space"],
        jpeg_encoding=bool(metadata.get("jpeg_encoding", _encoded_always(metadata))),
    )
    return storage, metadata


def _metadata_file(data_path: Path) -> dict[str, Any] | None:
    """Return what ``metadata.json`` holds, None if there is no such file."""
    path = data_path / METADATA_FILE_NAME
    try:
        text = current(path, read_text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{path} cannot be read: {error}") from error
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise CorruptDatasetError(f"{path} holds no JSON object but {str(metadata)[:60]!r}")
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CorruptDatasetError(
                f"{path} must have {key}, a number that is not negative; it has {value!r}"
            )
    episodes, steps = metadata.get("total_episodes", 0), metadata.get("total_steps", 0)
    if {"total_episodes", "total_steps"} <= metadata.keys() and bool(episodes) != bool(steps):
        raise CorruptDatasetError(
            f"{path} has {episodes} total_episodes and {steps} total_steps; every episode has "
            "a step at least"
        )
    return metadata


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf


def _encoded_always(metadata: Mapping[str, Any]) -> bool:
    """Whether the release that wrote this encoded images; the key was new in Minari 0.5.4."""
    return metadata.get("minari_version") not in ("0.5.0", "0.5.1", "0.5.2")


def directory_size(data_path: Path, stage: Path | None = None) -> float:
    """Return the size of a directory's files in MB, rounded to 0.1; those of ``stage`` replace."""
    sizes: dict[str, int] = {}
    for top in (data_path,) if stage is None else (data_path, stage):
        for folder, below, names in os.walk(top):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in names:
                path = os.path.join(folder, name)
                if not name.startswith(".") and os.path.isfile(path):
                    sizes[os.path.relpath(path, top)] = os.path.getsize(path)
    return round(sum(sizes.values()) / 1e6, 1)


def _is_empty(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and next(path.iterdir(), None) is None)


def has_metadata_file(data_path: Path) -> bool:
    """Whether a data directory is of the standard's present layout."""
    try:
        return current(data_path / METADATA_FILE_NAME, os.stat) is not None
    except OSError:
        return False
