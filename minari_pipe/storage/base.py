"""Define the base class of all storages: one dataset in one directory, in any format.

A format is one subclass of :class:`~minari_pipe.storage.directory.DirectoryStorage` and one entry
of the registry in :mod:`minari_pipe.storage.formats`, or an entry point of the group
``minari_pipe.storages`` in another package.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.datasets_root import refuse_foreign_links
from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.environments import make_by_spec
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.metadata import FIXED_KEYS, validate_metadata
from minari_pipe.core.spaces import serialize_space
from minari_pipe.errors import ConfigError, DatasetExistsError, InvalidMetadataError
from minari_pipe.storage.formats import (
    METADATA_FILE_NAME,
    file_format,
    get_minari_storage,
    get_storage_keys,
    has_metadata_file,
    is_file_format,
    other_format,
)
from minari_pipe.storage.jpeg import check_jpeg_spaces
from minari_pipe.storage.reading import PathLike, StoredEpisodes, directory_size, opened
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.writer import BufferChecker, EpisodeWriter, StableBuffers

__all__ = [
    "METADATA_FILE_NAME",
    "Change",
    "MinariStorage",
    "PathLike",
    "directory_size",
    "file_format",
    "get_minari_storage",
    "get_storage_keys",
    "has_metadata_file",
    "is_file_format",
    "opened",
    "other_format",
]


class MinariStorage(StoredEpisodes):
    """Reads and writes the episodes and the metadata in one data directory.

    The metadata on disk always match the episodes on disk: an append becomes visible as a whole or
    not at all, even to processes that are reading. One process writes at a time; others wait.

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

        Set attributes of the dataset and of its episodes:

        >>> storage.update_metadata({"author": {"Ada"}})
        >>> storage.metadata["author"], storage.metadata["action_space"]
        ({'Ada'}, Discrete(2))
        >>> storage.read_raw_metadata(storage.data_path)["author"]
        ['Ada']
        >>> storage.update_episode_metadata([{"weather": "rain"}])
        >>> next(storage.get_episode_metadata([0]))["weather"]
        'rain'

        Copy episodes with everything stored for them:

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
        >>> other.compact() > 0
        True
    """

    #: True if the format supports gzip compression
    COMPRESSES = False
    _compression: int | None = None

    @staticmethod
    def new(
        data_path: PathLike,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        env_spec: EnvSpec | None = None,
        data_format: str = "hdf5",
        *,
        jpeg_encoding: bool = False,
        compression: int | None = None,
    ) -> MinariStorage:
        """Create an empty storage; leave nothing behind if that fails.

        Args:
            data_path: directory of the data, created if it does not exist.
            observation_space: space of the observations; None takes the environment's.
            action_space: space of the actions; None takes the environment's.
            env_spec: spec of the environment that the data comes from.
            data_format: one of :func:`get_storage_keys`.
            jpeg_encoding: store images lossily; unlike in Minari, the default is lossless.
            compression: gzip level, 1 to 9, for the numbers that this storage appends; only hdf5
                supports it.

        Raises:
            ConfigError: the format does not support this compression level.
            InvalidMetadataError: ``env_spec`` is missing, and so is at least one space.
            UnknownFormatError: there is no such format.
            UnsupportedSpaceError: the standard cannot represent a space.
            DatasetExistsError: the directory already holds a dataset.
        """
        storage_class, spaces, metadata = _beginning(
            Path(data_path), observation_space, action_space, env_spec, data_format, jpeg_encoding
        )
        if compression is not None:
            storage_class.check_compression(compression)
        storage = storage_class._create(Path(data_path), *spaces, jpeg_encoding, metadata)
        storage._compression = compression
        return storage

    @staticmethod
    def create(
        data_path: PathLike,
        episodes: Iterable[EpisodeBuffer | Segment],
        *,
        metadata: Mapping[str, Any],
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        env_spec: EnvSpec | None = None,
        data_format: str = "hdf5",
        jpeg_encoding: bool = False,
        judge: BufferChecker | None = None,
    ) -> MinariStorage:
        """Write a whole storage at once, into a directory that no other process reads yet.

        Args:
            data_path: directory of the data, created if it does not exist.
            episodes: an iterable, consumed one episode at a time.
            metadata: as for :meth:`update_metadata`.
            observation_space: see :meth:`new`, also for the next four arguments.
            action_space: space of the actions.
            env_spec: spec of the environment that the data comes from.
            data_format: one of :func:`get_storage_keys`.
            jpeg_encoding: store images lossily.
            judge: checks the values before they are written, and may reject them.

        Raises:
            InvalidMetadataError: a metadata value has the wrong type.
            InvalidEpisodeError: a buffer's values do not match each other or the spaces.
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
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool,
        metadata: dict[str, Any],
        episodes: Iterable[EpisodeBuffer | Segment],
        judge: BufferChecker | None,
    ) -> MinariStorage:
        storage = cls._create(data_path, observation_space, action_space, jpeg_encoding, metadata)
        storage.update_episodes(episodes, judge=judge)
        return storage

    @classmethod
    def check_spaces(
        cls,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        jpeg_encoding: bool = False,
    ) -> None:
        """Raise an error if this format cannot store values of these spaces.

        Args:
            observation_space: space of the observations.
            action_space: space of the actions.
            jpeg_encoding: whether images will be stored as JPEG.

        Raises:
            UnsupportedSpaceError: the format cannot store one of the spaces.
            MissingDependencyError: images are stored as JPEG and Pillow is not installed.
        """
        serialize_space(observation_space)
        serialize_space(action_space)
        if jpeg_encoding:
            check_jpeg_spaces(observation_space, action_space)

    @classmethod
    def check_compression(cls, level: int) -> None:
        """Raise an error if this format cannot compress numbers at this gzip level.

        Args:
            level: from 1, the fastest, to 9, the smallest.

        Raises:
            ConfigError: the format does not compress, or there is no such level.

        Example:
            >>> from minari_pipe.storage.base import get_minari_storage
            >>> get_minari_storage("hdf5").check_compression(4)
        """
        if not cls.COMPRESSES:
            raise ConfigError(f"the format {cls.FORMAT} does not support compression; hdf5 does")
        if not 1 <= level <= 9:
            raise ConfigError(f"compression is {level}; expected a gzip level from 1 to 9, or none")

    @classmethod
    @abstractmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> MinariStorage:
        """Create an empty storage with this metadata; leave nothing behind if that fails."""

    @abstractmethod
    def _change(self) -> AbstractContextManager[Change]:
        """Begin a change of metadata and episodes; commit all of it on a clean exit, else nothing.

        Only one change runs at a time, across all processes.
        """

    def update_episodes(
        self, episodes: Iterable[EpisodeBuffer | Segment], *, judge: BufferChecker | None = None
    ) -> None:
        """Append episodes, all or none of them.

        A buffer whose ``id`` is that of a stored episode continues that episode: it has no row
        for the reset, so it has as many observations as actions.

        Args:
            episodes: an iterable, consumed one episode at a time, so a generator can reuse the
                arrays of one episode for the next.
            judge: checks the values before they are written, and may reject them.

        Raises:
            InvalidEpisodeError: a buffer's values do not match each other or the spaces.
            CorruptDatasetError: the files do not match their metadata or their manifest.
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

    def compact(self) -> int:
        """Write the files anew if they have bytes that nothing uses, as appends leave them.

        Processes that read the files meanwhile go on with the old ones.

        Returns:
            The number of bytes that were saved.

        Raises:
            CorruptDatasetError: the files are damaged, or do not match their manifest.
        """
        return 0  # a format overrides this if its files can have such bytes

    def update_episode_metadata(
        self, metadatas: Iterable[dict[str, Any]], episode_indices: Iterable[int] | None = None
    ) -> None:
        """Add attributes to episodes or replace those of the same names; change all or none.

        Args:
            metadatas: the attributes, one dict for each episode.
            episode_indices: the episodes; None means all.

        Raises:
            InvalidMetadataError: the two differ in length, or a dict changes an id or step count.
            CorruptDatasetError: the files do not match their metadata or their manifest.
        """
        if episode_indices is None:
            episode_indices = range(self.total_episodes)
        pairs = list(zip_longest(metadatas, episode_indices))
        if any(part is None for pair in pairs for part in pair):
            raise InvalidMetadataError("Metadatas and episode_indices have different lengths")
        with self._change() as change:
            for new, index in pairs:
                change.writer.update_metadata(int(index), new)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add or change metadata values.

        Args:
            metadata: keys of the standard, or any other keys with JSON-compatible values.

        Raises:
            InvalidMetadataError: a value has the wrong type, or a key can no longer change.
            CorruptDatasetError: the metadata do not match the manifest.
        """
        validate_metadata(metadata)
        with self._change() as change:
            forbidden = FIXED_KEYS & metadata.keys() & change.metadata.keys()
            if forbidden:
                raise InvalidMetadataError(
                    f"You are not allowed to update values for {', '.join(sorted(forbidden))}"
                )
            change.metadata.update(metadata)

    def update_from_storage(
        self, storage: MinariStorage, episode_indices: Iterable[int] | None = None
    ) -> None:
        """Append episodes of another storage with their seeds, options, infos and attributes.

        Args:
            storage: source of the episodes; its authors are added to this storage's authors.
            episode_indices: the episodes to copy; None means all.

        Raises:
            InvalidEpisodeError: the episodes do not match this storage's spaces.
        """
        theirs, ours = storage.metadata, self.metadata
        if episode_indices is None:
            episode_indices = range(storage.total_episodes)
        self.update_episodes(StableBuffers(storage.get_segments(episode_indices)))
        self.update_metadata(
            {
                key: ours.get(key, set()) | theirs.get(key, set())
                for key in ("author", "author_email")
            }
        )


class Change:
    """One change to a storage: the metadata, and the episodes if the writer is used."""

    def __init__(self, metadata: dict[str, Any], open_writer: Callable[[], EpisodeWriter]) -> None:
        self.metadata = metadata
        self.has_episodes = False
        self._open_writer = open_writer

    @cached_property
    def writer(self) -> EpisodeWriter:
        """The episode writer, opened on first access."""
        self.has_episodes = True
        return self._open_writer()


def _beginning(
    data_path: Path,
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    env_spec: EnvSpec | None,
    data_format: str,
    jpeg_encoding: bool,
) -> tuple[type[MinariStorage], tuple[gym.Space[Any], gym.Space[Any]], dict[str, Any]]:
    """Return class, spaces and initial metadata of a new storage; see :meth:`MinariStorage.new`."""
    if env_spec is None and (observation_space is None or action_space is None):
        raise InvalidMetadataError(
            "Since env_spec is not specified, you need to specify both action space and "
            "observation space"
        )
    storage_class = get_minari_storage(data_format)
    refuse_foreign_links(data_path)
    if (data_path / METADATA_FILE_NAME).exists() or other_format(data_path) is not None:
        raise DatasetExistsError(
            f"A dataset is already available at {data_path}. Delete it or specify another path"
        )
    if observation_space is None or action_space is None:
        assert env_spec is not None
        env = make_by_spec(env_spec)
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
