"""The HDF5 format, byte layout of Minari 0.5; only images under ``jpeg_encoding`` are lossy.

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
       │  ├─ infos              groups and datasets of T + 1 rows, empty if none
       │  └─ state              extra step data of any name: like infos, T + 1 or T rows
       └─ episode_1 ...

Every dataset is one chunk and can grow, so that real Minari can append to an episode; only JPEG
images are bytes ``(rows, size)`` of a fixed number of rows, or of variable length if the sizes
differ. No time, no path and no order of creation is stored: equal calls write equal bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.episode import EpisodeData
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    MinariPipeError,
)
from minari_pipe.files import current, replacing, require_space
from minari_pipe.storage.agreement import check_agreement
from minari_pipe.storage.attributes import EXACT, flatten_attributes, unflatten_attributes
from minari_pipe.storage.columns import Columns, check_space_names
from minari_pipe.storage.directory import DirectoryStorage
from minari_pipe.storage.hdf5_format import nodes
from minari_pipe.storage.hdf5_format.checked import check_structure, open_checked, trust
from minari_pipe.storage.hdf5_values import (
    DAMAGE,
    extend_column,
    fit_a_small_header,
    info_paths,
    is_group,
    member,
    new_group,
    read_column,
    read_infos,
    read_leaf,
    write_attribute,
    write_column,
)
from minari_pipe.storage.writer import EpisodeWriter
from minari_pipe.tree import leaves

MAIN_FILE_NAME = "main_data.hdf5"

#: what HDF5 writes beside the values of a dataset, and holds back of all it has to write
_OVERHEAD = 4096
_RESERVE = 2**16

_EPISODE = re.compile(r"episode_(\d+)")
#: groups of an episode that the standard names; any other is extra step data
_GROUPS = frozenset({"observations", "actions", "rewards", "terminations", "truncations", "infos"})


class EpisodeFile(EpisodeWriter):
    """An HDF5 file of ``episode_<i>`` groups, numbered from 0 without gaps.

    Use one of the context managers :meth:`create`, :meth:`open` and :meth:`append_to`.
    """

    def __init__(self, file: nodes.File | h5py.File, path: Path) -> None:
        self._file: Any = file  # of h5py if it is written
        self._path = path
        self._count = sum(1 for name in file if _EPISODE.fullmatch(name))

    @classmethod
    @contextmanager
    def create(cls, path: str | Path) -> Iterator[EpisodeFile]:
        """Write a new file, which appears, replacing one of this name, only at a clean exit."""
        path = Path(path)
        with replacing(path) as beside, _open_to_write(beside, "w", path) as file:
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
        try:
            with _translated(path):
                file = current(path, open_checked)
                episodes = cls(file, path)
        except FileNotFoundError:
            raise DatasetNotFoundError(f"No data found in data path {path.parent}") from None
        with file:
            yield episodes

    @classmethod
    @contextmanager
    def append_to(cls, path: Path, name: Path | None = None) -> Iterator[EpisodeFile]:
        """Append to the file itself, which nobody else reads yet; messages call it ``name``.

        libhdf5, which writes, can crash on what is damaged: check the structure before.
        """
        mode = "r+" if path.stat().st_size else "w"
        with _open_to_write(path, mode, name or path) as file:
            with _translated(name or path):
                episodes = cls(file, name or path)
            yield episodes
        trust(path)  # the next to append need not check all that is there

    def __len__(self) -> int:
        """Number of episodes."""
        return self._count

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        attributes = dict(attributes)
        slashes = [path for path in info_paths(columns["infos"]) if "/" in "".join(path)]
        if slashes:
            attributes["infos_slashes"] = slashes
        groups = {**columns, **columns.get("extras", {})}
        groups.pop("extras", None)
        self._require_space(columns)
        name = f"episode_{len(self)}"
        try:
            flat = _written(attributes)
            group = new_group(self._file, name, flat)
            for attribute, value in flat.items():
                write_attribute(group, attribute, value)
            for key, column in groups.items():
                write_column(group, key, column)
        except BaseException:
            self._discard(name)
            raise
        self._count += 1

    def _require_space(self, columns: Columns) -> None:
        more = sum(_size(leaf) + _OVERHEAD for _, leaf in leaves(columns))
        file = self._file.id
        require_space(self._path, file.get_vfd_handle(), file.get_filesize() + more + _RESERVE)

    def _discard(self, name: str) -> None:
        if name in self._file:
            del self._file[name]

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        group = self._group(index)
        groups = {**columns, **columns.get("extras", {})}
        groups.pop("extras", None)
        stored = {name for name in group if name not in _GROUPS}
        if stored != groups.keys() - _GROUPS:
            raise InvalidEpisodeError(
                f"episode {index}: extras has the keys {sorted(groups.keys() - _GROUPS)}, stored "
                f"are {sorted(stored)}"
            )
        self._require_space(columns)
        with _translated(self._path):
            for key, column in groups.items():
                extend_column(group, key, column, f"episode {index}: {key}")
            return group["rewards"][()]

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        flat = _written(attributes)
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

    def read(
        self,
        index: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        frames: bool = False,
        lenient: bool = False,
    ) -> EpisodeData:
        """Read an episode.

        Args:
            index: the episode.
            observation_space: space of one observation.
            action_space: space of one action.
            frames: leave images of the spaces that are stored as JPEG in that form.
            lenient: return columns that do not fit together too, for those who tell what is wrong.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: it is damaged, its columns do not fit together or to the spaces,
                or it points outside of the file.
            MissingDependencyError: its images are JPEG and Pillow is not installed.
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
            extras = {
                name: _read_extra(member(group, name)) for name in group if name not in _GROUPS
            }
            attributes = group.attrs
            episode = EpisodeData(
                id=index,
                seed=_read_seed(attributes),
                extras=extras,
                observations=read_column(
                    member(group, "observations"), observation_space, frames=frames
                ),
                actions=read_column(member(group, "actions"), action_space, frames=frames),
                infos=infos,
                **flags,
            )
            if not lenient:
                total_steps = attributes.get("total_steps")
                check_agreement(vars(episode), observation_space, action_space, total_steps)
            return episode

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

    def _group(self, index: int) -> Any:
        index = int(index)
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} is out of range: there are {len(self)} episodes")
        group = member(self._file, f"episode_{index}")
        if not is_group(group):
            raise CorruptDatasetError(f"episode_{index} is not a group")
        return group


class HDF5Storage(DirectoryStorage):
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
        try:
            mode = current(self._file_path, os.stat).st_mode
        except OSError:
            raise DatasetNotFoundError(f"No data found in data path {self.data_path}") from None
        if not stat.S_ISREG(mode):  # a pipe is waited for
            raise CorruptDatasetError(f"{self._file_path} is no file")

    @classmethod
    def check_spaces(
        cls, observation_space: gym.Space, action_space: gym.Space, *, jpeg_encoding: bool = False
    ) -> None:
        """Check that these spaces can be stored."""
        super().check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)
        check_space_names(observation_space, action_space)

    @classmethod
    def _create_files(cls, data_path: Path) -> None:
        with EpisodeFile.create(data_path / MAIN_FILE_NAME):
            pass

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        with EpisodeFile.open(self._file_path) as file:
            for index in episode_indices:
                self._check_index(index, file)
                yield file.episode_metadata(index)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        return self._episodes(episode_indices, frames=False)

    def get_unchecked_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as they are stored, whatever the lengths of their columns."""
        spaces = (self.observation_space, self.action_space)
        with EpisodeFile.open(self._file_path) as file:
            for index in episode_indices:
                yield dict(vars(file.read(int(index), *spaces, lenient=True)))

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        return self._episodes(episode_indices, frames=True)

    def _episodes(self, indices: Iterable[int], *, frames: bool) -> Iterator[dict[str, Any]]:
        spaces = (self.observation_space, self.action_space)
        with EpisodeFile.open(self._file_path) as file:
            for index in indices:
                self._check_index(index, file)
                yield dict(vars(file.read(int(index), *spaces, frames=frames)))

    def _check_index(self, index: int, file: EpisodeFile) -> None:
        """Tell an episode that the metadata count, but the file lacks, from one that is none."""
        if index >= len(file) and index < self.total_episodes:
            raise CorruptDatasetError(
                f"{self._file_path}: episode {index} is missing: there are {len(file)} episodes, "
                f"metadata.json says {self.total_episodes}"
            )

    @contextmanager
    def _writer(self, stage: Path, total_episodes: int) -> Iterator[EpisodeFile]:
        new = stage / MAIN_FILE_NAME
        with _translated(self._file_path):
            check_structure(self._file_path)
        shutil.copyfile(self._file_path, new)
        with EpisodeFile.append_to(new) as file:
            if len(file) < total_episodes:
                raise CorruptDatasetError(
                    f"{self._file_path} has {len(file)} episodes, metadata.json says "
                    f"{total_episodes}"
                )
            if len(file) > total_episodes:
                warnings.warn(
                    f"{self._file_path} has {len(file)} episodes, metadata.json says "
                    f"{total_episodes}: the others are from an append that was broken off before "
                    "it was finished, and are removed",
                    stacklevel=5,
                )
                file.cut(total_episodes)
            yield file


@contextmanager
def _open_to_write(path: Path, mode: str, name: Path) -> Iterator[h5py.File]:
    """Open a file to write it, which raises OSError wherever that fails; messages call it ``name``.

    Without a cache of chunks: what libhdf5 cannot write when a dataset is closed, it tells nobody.
    """
    with _translated(name):
        file = h5py.File(path, mode, rdcc_nbytes=0)
    try:
        yield file
    except BaseException:
        with suppress(OSError, RuntimeError):  # it cannot be written any more; the error says why
            file.close()
        raise
    try:
        file.close()
    except RuntimeError as error:
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(name)) from error


def _size(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind != "O":
        return int(leaf.nbytes)
    texts = leaf.flat if isinstance(leaf, np.ndarray) else leaf
    return sum(4 * len(text) for text in texts)  # UTF-8 takes up to four bytes a letter


@contextmanager
def _translated(path: Path, what: str = "file") -> Iterator[None]:
    """Name the file and the place in everything that HDF5 and NumPy raise on damaged data."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (MinariPipeError, IndexError) as error:
        if isinstance(error, CorruptDatasetError) and str(path) not in str(error):
            raise CorruptDatasetError(f"{path}: {what}: {error}") from None
        raise
    except DAMAGE as error:
        message = f"{path}: {what} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error


def _read_seed(attributes: Mapping[str, Any]) -> int | None:
    seed = attributes.get("seed")
    if not isinstance(seed, np.integer) and EXACT in attributes:  # it may have more than 64 bits
        stored = {key: attributes[key] for key in ("seed", EXACT) if key in attributes}
        seed = unflatten_attributes(stored).get("seed")
    # the checks report one that is no number
    return int(seed) if isinstance(seed, int | np.integer) else None


def _read_extra(found: Any) -> Any:
    return read_infos(found, []) if is_group(found) else read_leaf(found, None)


def _written(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten attributes; the two of this package's own are JSON."""
    attributes = dict(attributes)
    for key in ("infos_filled", "infos_slashes"):
        if key in attributes:
            attributes[key] = json.dumps(attributes[key], sort_keys=True)
    return flatten_attributes(attributes)
