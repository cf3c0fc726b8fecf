"""The HDF5 format, byte layout of Minari 0.5; nothing in it is lossy.

::

    data/
    ├─ metadata.json
    └─ main_data.hdf5
       ├─ episode_0             attributes id, total_steps, seed, options/k/k2, rewards_sum, ...
       │  ├─ observations       (T + 1, ...)   Dict space: a group of its keys
       │  ├─ actions            (T, ...)       Tuple space: a group of _index_0, _index_1, ...
       │  ├─ rewards            (T,) float64   Text space: variable-length UTF-8 strings
       │  ├─ terminations       (T,) bool
       │  ├─ truncations        (T,) bool
       │  └─ infos              groups and datasets of T + 1 rows, empty if none
       └─ episode_1 ...

Every dataset is one chunk and can grow, so that real Minari can append to an episode. No time, no
path and no order of creation is stored: equal calls write equal bytes.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py

from minari_pipe.episode import EpisodeBuffer, EpisodeData, reward_statistics
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    InvalidMetadataError,
    MinariPipeError,
    UnsupportedSpaceError,
)
from minari_pipe.spaces import is_image_space, space_leaves
from minari_pipe.storage.attributes import check_options, flatten_attributes, unflatten_attributes
from minari_pipe.storage.base import MinariStorage, buffer_of
from minari_pipe.storage.columns import check_space_names, episode_columns
from minari_pipe.storage.files import exclusive, replacing
from minari_pipe.storage.hdf5_values import (
    extend_column,
    fit_a_small_header,
    info_paths,
    member,
    new_group,
    read_column,
    read_infos,
    read_leaf,
    write_attribute,
    write_column,
)
from minari_pipe.tree import join_path

MAIN_FILE_NAME = "main_data.hdf5"

_EPISODE = re.compile(r"episode_(\d+)")


class EpisodeFile:
    """An HDF5 file of ``episode_<i>`` groups, numbered from 0 without gaps.

    Use one of the context managers :meth:`create`, :meth:`open` and :meth:`extend`. What is
    written appears under the file's name only at a clean exit, wholly or not at all.
    """

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._file = file
        self._path = path
        self._count = sum(1 for name in file if _EPISODE.fullmatch(name))
        self._steps: int | None = None

    @classmethod
    @contextmanager
    def create(cls, path: str | Path) -> Iterator[EpisodeFile]:
        """Write a new file, replacing one of this name at a clean exit."""
        path = Path(path)
        with replacing(path) as beside, h5py.File(beside, "w") as file:
            yield cls(file, path)

    @classmethod
    @contextmanager
    def open(cls, path: str | Path) -> Iterator[EpisodeFile]:
        """Read a file; appends that happen meanwhile are not seen.

        Raises:
            DatasetNotFoundError: there is no such file.
            CorruptDatasetError: it is not an HDF5 file, or is damaged.
        """
        path = Path(path)
        if not path.exists():
            raise DatasetNotFoundError(f"No data found in data path {path.parent}")
        with _translated(path):
            if path.stat().st_size == 0:  # Minari's file before the first episode
                file = h5py.File("empty.hdf5", "w", driver="core", backing_store=False)
            else:
                file = h5py.File(path, "r")
            episodes = cls(file, path)
        with file:
            yield episodes

    @classmethod
    @contextmanager
    def extend(cls, path: str | Path) -> Iterator[EpisodeFile]:
        """Append to a copy of the file, which replaces it at a clean exit."""
        path = Path(path)
        with replacing(path) as beside:
            shutil.copyfile(path, beside)
            with _translated(path):
                file = h5py.File(beside, "r+" if beside.stat().st_size else "w")
                episodes = cls(file, path)
            with file:
                yield episodes

    def __len__(self) -> int:
        """Number of episodes."""
        return self._count

    @property
    def total_steps(self) -> int:
        """Number of steps of all episodes."""
        if self._steps is None:
            with _translated(self._path):
                self._steps = sum(
                    int(self._group(index).attrs["total_steps"]) for index in range(len(self))
                )
        return self._steps

    def append(
        self,
        buffer: EpisodeBuffer,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
    ) -> int:
        """Append an episode; if it is refused, the file is as before.

        Reward statistics are added to its attributes unless ``buffer.metadata`` has them.

        Args:
            buffer: the episode; its ``id`` is ignored, its position is its id.
            observation_space: checked against the observations if given.
            action_space: checked against the actions if given.

        Returns:
            The episode's id.

        Raises:
            InvalidEpisodeError: its values do not fit together or to the spaces.
        """
        index = len(self)
        columns = episode_columns(buffer, observation_space, action_space, episode=index)
        name = f"episode_{index}"
        attributes: dict[str, Any] = {"id": index, "total_steps": len(columns["rewards"])}
        if buffer.seed is not None:
            attributes["seed"] = int(buffer.seed)
        if buffer.options is not None:
            attributes["options"] = buffer.options
        attributes |= reward_statistics(columns["rewards"])
        attributes |= _checked_metadata(buffer.metadata, index)
        slashes = [path for path in info_paths(columns["infos"]) if "/" in "".join(path)]
        if slashes:
            attributes["infos_slashes"] = slashes
        try:
            check_options(buffer.options)
            flat = _written(attributes)
            group = new_group(self._file, name, flat)
            for attribute, value in flat.items():
                write_attribute(group, attribute, value)
            for key, column in columns.items():
                write_column(group, key, column)
        except InvalidEpisodeError as error:
            self._discard(name)
            raise InvalidEpisodeError(f"episode {index}: {error}") from None
        except BaseException:
            self._discard(name)
            raise
        self._count += 1
        if self._steps is not None:
            self._steps += attributes["total_steps"]
        return index

    def _discard(self, name: str) -> None:
        if name in self._file:
            del self._file[name]

    def continue_episode(
        self,
        index: int,
        buffer: EpisodeBuffer,
        observation_space: gym.Space,
        action_space: gym.Space,
    ) -> int:
        """Append steps to a stored episode and bring its attributes up to date.

        Args:
            index: the episode.
            buffer: ``T`` further steps with ``T`` observations and infos.
            observation_space: space of one observation.
            action_space: space of one action.

        Returns:
            The number of steps that were added.

        Raises:
            InvalidEpisodeError: the values do not fit together, or to those that are stored.
        """
        columns = episode_columns(
            buffer, observation_space, action_space, episode=index, continues=True
        )
        stored = self.episode_metadata(index)
        for key in ("seed", "options"):
            if getattr(buffer, key) is not None and stored.get(key) is not None:
                raise InvalidEpisodeError(
                    f"episode {index}: it has a {key} already, a continuation cannot bring another"
                )
        group = self._group(index)
        before = int(stored["total_steps"])
        filled = dict(stored.get("infos_filled", {}))
        for key, ranges in buffer.metadata.get("infos_filled", {}).items():
            shifted = [[begin + before + 1, end + before + 1] for begin, end in ranges]
            filled[key] = [*filled.get(key, []), *shifted]
        with _translated(self._path):
            for key, column in columns.items():
                extend_column(group, key, column, f"episode {index}: {key}")
            rewards = group["rewards"][()]
        attributes = {
            **_checked_metadata(buffer.metadata, index),
            **reward_statistics(rewards),
            "total_steps": len(rewards),
        }
        if filled:
            attributes["infos_filled"] = filled
        for key in ("seed", "options"):
            if getattr(buffer, key) is not None:
                attributes[key] = getattr(buffer, key)
        self.update_metadata(index, attributes)
        self._steps = None
        return len(columns["rewards"])

    def update_metadata(self, index: int, attributes: Mapping[str, Any]) -> None:
        """Add attributes to an episode, replacing those of the same names."""
        kept = {
            key: value
            for key, value in self.episode_metadata(index).items()
            if key not in attributes
        }
        flat = _written({**kept, **attributes})
        group = self._group(index)
        if "infos_slashes" in group.attrs:
            flat["infos_slashes"] = group.attrs["infos_slashes"]
        for name in list(group.attrs):
            del group.attrs[name]
        if not fit_a_small_header(flat):
            # only a new group can have the kind of header that holds them
            new = new_group(self._file, f"episode_{index}_new", flat)
            for name in list(group):
                self._file.move(f"{group.name}/{name}", f"{new.name}/{name}")
            del self._file[f"episode_{index}"]
            self._file.move(new.name, f"episode_{index}")
            group = self._group(index)
        for name, value in flat.items():
            write_attribute(group, name, value)

    def cut(self, episodes: int) -> None:
        """Remove all episodes from number ``episodes`` on."""
        for index in range(episodes, len(self)):
            self._discard(f"episode_{index}")
        self._count = min(self._count, episodes)
        self._steps = None

    def read(
        self, index: int, observation_space: gym.Space, action_space: gym.Space
    ) -> EpisodeData:
        """Read an episode.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: it is damaged, or points outside of the file.
            UnsupportedSpaceError: its images are JPEG.
        """
        with _translated(self._path, f"episode {index}"):
            group = self._group(index)
            flags = {
                key: read_leaf(member(group, key), None)
                for key in ("rewards", "terminations", "truncations")
            }
            infos: dict[str, Any] = {}
            if "infos" in group:
                slashes = json.loads(group.attrs.get("infos_slashes", "[]"))
                infos = read_infos(member(group, "infos"), slashes)
            return EpisodeData(
                id=index,
                observations=read_column(member(group, "observations"), observation_space),
                actions=read_column(member(group, "actions"), action_space),
                infos=infos,
                **flags,
            )

    def read_buffer(
        self, index: int, observation_space: gym.Space, action_space: gym.Space
    ) -> EpisodeBuffer:
        """Read an episode with all its attributes, ready to be appended elsewhere."""
        episode = self.read(index, observation_space, action_space)
        return buffer_of(vars(episode), self.episode_metadata(index))

    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes, options nested again.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: they are damaged.
        """
        with _translated(self._path, f"attributes of episode {index}"):
            attributes = unflatten_attributes(dict(self._group(index).attrs))
            attributes.pop("infos_slashes", None)
            if "infos_filled" in attributes:
                attributes["infos_filled"] = json.loads(attributes["infos_filled"])
            if attributes.get("seed") is not None:
                attributes["seed"] = int(attributes["seed"])
            return attributes

    def _group(self, index: int) -> h5py.Group:
        index = int(index)
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} is out of range: there are {len(self)} episodes")
        group = member(self._file, f"episode_{index}")
        if not isinstance(group, h5py.Group):
            raise CorruptDatasetError(f"episode_{index} is not a group")
        return group


class HDF5Storage(MinariStorage):
    """A dataset in one HDF5 file."""

    FORMAT = "hdf5"

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
    ) -> None:
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        self._file_path = self.data_path / MAIN_FILE_NAME
        if not self._file_path.exists():
            raise DatasetNotFoundError(f"No data found in data path {self.data_path}")

    @classmethod
    def check_spaces(
        cls, observation_space: gym.Space, action_space: gym.Space, *, jpeg_encoding: bool = False
    ) -> None:
        """Check that these spaces can be stored; JPEG encoding cannot, so far."""
        super().check_spaces(observation_space, action_space)
        check_space_names(observation_space, action_space)
        both = (("observations", observation_space), ("actions", action_space))
        for name, space in both if jpeg_encoding else ():
            for path, leaf in space_leaves(space):
                if is_image_space(leaf):
                    raise UnsupportedSpaceError(
                        f"JPEG encoding of {join_path((name, *path))} is not supported; with "
                        "jpeg_encoding=False it is stored without loss"
                    )

    @classmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
    ) -> HDF5Storage:
        with EpisodeFile.create(data_path / MAIN_FILE_NAME):
            pass
        return cls(data_path, observation_space, action_space, jpeg_encoding)

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        with EpisodeFile.open(self._file_path) as file:
            for index in episode_indices:
                yield file.episode_metadata(index)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        with EpisodeFile.open(self._file_path) as file:
            for index in episode_indices:
                episode = file.read(int(index), self.observation_space, self.action_space)
                yield dict(vars(episode))

    def update_episodes(self, episodes: Iterable[EpisodeBuffer]) -> None:
        """Append episodes, all or none of them."""
        self.check_spaces(
            self.observation_space, self.action_space, jpeg_encoding=self.jpeg_encoding
        )
        with exclusive(self.data_path):
            metadata = self.read_raw_metadata(self.data_path)
            added = 0
            with EpisodeFile.extend(self._file_path) as file:
                self._cut_uncommitted(file, int(metadata["total_episodes"]))
                for buffer in episodes:
                    index = len(file) if buffer.id is None else int(buffer.id)
                    if not 0 <= index <= len(file):
                        raise InvalidEpisodeError(
                            f"Invalid episode id; ids must be sequential. Got {index}, the next "
                            f"one is {len(file)}"
                        )
                    if index == len(file):
                        file.append(buffer, self.observation_space, self.action_space)
                        added += len(buffer)
                    else:
                        added += file.continue_episode(
                            index, buffer, self.observation_space, self.action_space
                        )
                total = len(file)
            metadata["total_episodes"] = total
            metadata["total_steps"] += added
            metadata["dataset_size"] = self.get_size()
            self._write_metadata(metadata)

    def adopt(self, path: Path) -> None:
        """Take a copy of an :class:`EpisodeFile` as the data of this storage, which is empty.

        Raises:
            DatasetExistsError: the storage has episodes.
        """
        with exclusive(self.data_path):
            metadata = self.read_raw_metadata(self.data_path)
            if metadata["total_episodes"]:
                raise DatasetExistsError(
                    f"{self.data_path} has {metadata['total_episodes']} episodes already"
                )
            with EpisodeFile.open(path) as file:
                metadata["total_episodes"] = len(file)
                metadata["total_steps"] = file.total_steps
            with replacing(self._file_path) as beside:
                shutil.copyfile(path, beside)
            metadata["dataset_size"] = self.get_size()
            self._write_metadata(metadata)

    def _cut_uncommitted(self, file: EpisodeFile, committed: int) -> None:
        """Drop what an append left that was killed between renaming its two files."""
        if len(file) < committed:
            raise CorruptDatasetError(
                f"{self._file_path} has {len(file)} episodes, metadata.json says {committed}"
            )
        if len(file) > committed:
            warnings.warn(
                f"{self._file_path} has {len(file)} episodes, metadata.json says {committed}: the "
                "others are from an append that was broken off before it was finished, and are "
                "removed",
                stacklevel=3,
            )
            file.cut(committed)

    def update_episode_metadata(
        self, metadatas: Iterable[dict], episode_indices: Iterable[int] | None = None
    ) -> None:
        """Add attributes to episodes, replacing those of the same names."""
        if episode_indices is None:
            episode_indices = range(self.total_episodes)
        pairs = list(zip_longest(metadatas, episode_indices))
        if any(part is None for pair in pairs for part in pair):
            raise InvalidMetadataError("Metadatas and episode_indices have different lengths")
        with exclusive(self.data_path):
            metadata = self.read_raw_metadata(self.data_path)
            with EpisodeFile.extend(self._file_path) as file:
                for new, index in pairs:
                    for key in {"id", "total_steps"} & new.keys():
                        if new[key] != file.episode_metadata(index).get(key):
                            raise InvalidMetadataError(
                                f"episode {index}: {key} follows from the data and cannot be set"
                            )
                    file.update_metadata(index, new)
            metadata["dataset_size"] = self.get_size()
            self._write_metadata(metadata)


@contextmanager
def _translated(path: Path, what: str = "file") -> Iterator[None]:
    """Name the file and the place in everything that HDF5 and NumPy raise on damaged data."""
    try:
        yield
    except (MinariPipeError, IndexError) as error:
        if isinstance(error, CorruptDatasetError) and str(path) not in str(error):
            raise CorruptDatasetError(f"{path}: {what}: {error}") from None
        raise
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:
        message = f"{path}: {what} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error


def _checked_metadata(metadata: Mapping[str, Any], index: int) -> dict[str, Any]:
    reserved = {"id", "total_steps", "seed", "options", "infos_slashes"} & metadata.keys()
    if reserved:
        raise InvalidEpisodeError(
            f"episode {index}: metadata cannot hold {sorted(reserved)}, which are fields of the "
            "buffer or follow from its data"
        )
    return dict(metadata)


def _written(attributes: dict[str, Any]) -> dict[str, Any]:
    """Flatten attributes; the two of this package's own are JSON."""
    attributes = dict(attributes)
    for key in ("infos_filled", "infos_slashes"):
        if key in attributes:
            attributes[key] = json.dumps(attributes[key], sort_keys=True)
    return flatten_attributes(attributes)
