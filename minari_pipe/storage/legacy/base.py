"""Implement what the older layouts share: they are read-only and report what they do not record."""

from __future__ import annotations

import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.core.dataset_id import gen_dataset_id, parse_dataset_id
from minari_pipe.core.datasets_root import root_of
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.links import PathLike, replaced, status_below
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.core.spaces import serialize_space
from minari_pipe.core.tree import join_path, leaves, map_leaves
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    LinkError,
    MinariPipeError,
    UnsupportedVersionError,
)
from minari_pipe.storage.base import Change, MinariStorage
from minari_pipe.storage.hdf5.parser.checked import check_readable
from minari_pipe.storage.hdf5.values import DAMAGE

Stamp = tuple[int, int, int]

#: attribute of an episode without a final flag in the file; its last truncation was set to True
TRUNCATION_INFERRED = "truncation_inferred"


class LegacyStorage(MinariStorage):
    """A dataset in an older layout, which is read in place.

    ``unknown`` has one sentence for each thing that today's layout records and this data does not;
    :func:`minari_pipe.datasets.migrate.migrate_dataset` records these sentences.
    """

    unknown: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """Files that contain episodes but that no manifest of the dataset lists."""

    @classmethod
    @abstractmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> LegacyStorage:
        """Open data of this layout.

        Args:
            data_path: the file or the directory that holds it.
            trusted_modules: modules from which the environment of the data may run code; layouts
                that store no spaces take them from the environment.

        Raises:
            CorruptDatasetError: the data is damaged, or links to files outside of the dataset.
        """

    @classmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> NoReturn:
        raise UnsupportedVersionError(f"the layout {cls.FORMAT!r} can be read but not written")

    def _change(self) -> AbstractContextManager[Change]:
        raise UnsupportedVersionError(
            f"{self.data_path} has the older layout {self.FORMAT!r}, which can be read but not "
            f"written; run minari-pipe migrate {quote(str(self.data_path))} ID"
        )

    def get_buffers(self, episode_indices: Iterable[int] | None = None) -> Iterator[EpisodeBuffer]:
        """Yield episodes to copy, as for any storage; warn if they are those of other datasets."""
        if self.elsewhere:
            warnings.warn(
                f"{self.data_path} links to episodes in {', '.join(self.elsewhere)}; a copy of it "
                f"holds them",
                stacklevel=2,
            )
        return super().get_buffers(episode_indices)

    def todays_metadata(self) -> dict[str, Any]:
        """Return the raw metadata in the form of today's layout."""
        raw = self.read_raw_metadata(self.data_path)
        namespace, name, version = parse_dataset_id(raw["dataset_id"])
        return {
            **raw,
            "dataset_id": gen_dataset_id(namespace, name, version or 0),
            "observation_space": serialize_space(self.observation_space),
            "action_space": serialize_space(self.action_space),
            "data_format": "hdf5",
            "minari_version": MINARI_VERSION,
        }

    #: stamp of the main file at the first version check
    _stamp: Stamp | None = None

    def check_version(self) -> None:
        """Raise an error if the main file is not the one that was opened.

        Raises:
            DatasetNotFoundError: the file was changed or replaced.
        """
        with reading(self._file_path):
            now = stamp(self._file_path)
        if self._stamp is None:
            self._stamp = now
        elif self._stamp != now:
            raise replaced(self.data_path)

    @property
    def _file_path(self) -> Path:
        return self.data_path

    def get_size(self) -> float:
        """Return the size of the data in MB, rounded to 0.1."""
        if self.data_path.is_dir():
            return super().get_size()
        return round(self.data_path.stat().st_size / 1e6, 1)


@contextmanager
def reading(path: Path, what: str = "file") -> Iterator[None]:
    """Add the file and the place to every error that HDF5 and NumPy raise on damaged data."""
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(error, MinariPipeError):
            raise
        raise DatasetNotFoundError(f"No data found in data path {path}") from None
    except LinkError:
        raise
    except CorruptDatasetError as error:
        if str(path) in str(error):
            raise
        raise CorruptDatasetError(f"{path}: {what}: {error}") from None
    except (MinariPipeError, IndexError):
        raise
    except DAMAGE as error:
        message = f"{path}: {what} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error


def stamp(path: Path) -> Stamp:
    """Return a cache key for a file, which changes when the file does."""
    return _stamp_of(os.stat(path))


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def open_file(path: Path, below: PathLike | None = None) -> h5py.File:
    """Open a file from an untrusted source for reading.

    Args:
        path: the file.
        below: the folder that the user named; None for a named file, or one in the datasets root.

    Raises:
        CorruptDatasetError: the file is damaged, or was replaced while it was opened.
        LinkError: a part of the path below ``below`` is a link.
    """
    below = root_of(path) if below is None else below
    with reading(path):
        checked = stamp(path)
        _check(path, checked)
        file = h5py.File(path, "r")
        try:
            opened = os.fstat(file.id.get_vfd_handle())
            there = os.stat(path) if below is None else status_below(path, below)
            if _stamp_of(opened) != checked or not os.path.samestat(opened, there):
                raise CorruptDatasetError("the file was replaced while it was opened")
        except BaseException:
            file.close()
            raise
        return file


@lru_cache(maxsize=256)
def _check(path: Path, stamp: Stamp) -> None:
    check_readable(path)


def check_index(index: int, total_episodes: int) -> int:
    """Return the number of an existing episode as an int.

    Raises:
        IndexError: there is no such episode.
    """
    index = int(index)
    if not 0 <= index < total_episodes:
        raise IndexError(f"episode {index} is out of range: there are {total_episodes} episodes")
    return index


def dataset_id_of(recorded: Any, path: Path) -> str:
    """Return the recorded id if it is valid, else one made from the file or directory name."""
    name = path.parent.name if path.name == "data" else path.stem
    for candidate in (recorded, name, re.sub(r"\W", "_", name, flags=re.ASCII)):
        try:
            parse_dataset_id(candidate)
            return candidate
        except InvalidDatasetIdError:
            continue
    return "unnamed"


def plain(value: Any) -> Any:
    """Convert a value that h5py read to a JSON-compatible one; None if it was not set."""
    if isinstance(value, h5py.Empty) or value is None:
        return None
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if value == "None":
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def standard_metadata(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Convert recorded values to the types of today's standard, without those that were not set."""
    metadata = {key: value for key, value in recorded.items() if value is not None}
    for key in ("author", "author_email"):
        if isinstance(metadata.get(key), str):
            # Minari 0.4.3 joined the authors of combined datasets
            metadata[key] = [name.strip() for name in metadata[key].split(";") if name.strip()]
    for key in ("combined_datasets", "requirements"):
        if isinstance(metadata.get(key), str):
            metadata[key] = [metadata[key]]
    score = metadata.get("num_episodes_average_score")
    if isinstance(score, float) and score.is_integer():
        metadata["num_episodes_average_score"] = int(score)
    return metadata


def flags(values: Any, name: str) -> npt.NDArray[np.bool_]:
    """Convert a column of flags to booleans, shape ``(T,)``.

    Raises:
        CorruptDatasetError: a value is neither 0 nor 1.
    """
    array = _single(values, name)
    other = np.flatnonzero((array != 0) & (array != 1))
    if len(other):
        raise CorruptDatasetError(f"{name} is {array[other[0]]} at row {other[0]}, expected 0 or 1")
    return array.astype(bool)


def numbers(values: Any, name: str) -> npt.NDArray[np.float64]:
    """Convert a column of rewards to float64, shape ``(T,)``."""
    return _single(values, name).astype(np.float64)


def _single(values: Any, name: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise CorruptDatasetError(f"{name} must be numbers, got {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:  # as some old collectors wrote them
        array = array[:, 0]
    if array.ndim != 1:
        raise CorruptDatasetError(f"{name} has shape {array.shape}, expected one value per step")
    return array


def with_final_row(column: Any, steps: int, name: str) -> Any:
    """Return observations with ``steps + 1`` rows; repeat the last row if one is missing.

    Raises:
        CorruptDatasetError: there are neither ``steps`` nor ``steps + 1`` rows.
    """
    rows = row_count(column, name)
    if rows == steps + 1:
        return column
    if rows != steps or not steps:
        raise CorruptDatasetError(
            f"{name} has {rows} rows, rewards has {steps}; expected {steps + 1}"
        )
    return map_leaves(
        lambda leaf: [*leaf, leaf[-1]] if isinstance(leaf, list) else _append(leaf, leaf[-1:]),
        column,
    )


def with_row_filled(infos: Any, steps: int, row: int) -> Any:
    """Extend infos of ``steps`` rows to ``steps + 1`` by inserting zeros as row number ``row``."""

    def fill(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(leaf) != steps:
            return leaf
        empty = np.full((1, *leaf.shape[1:]), "" if leaf.dtype.kind == "O" else 0, leaf.dtype)
        return np.concatenate([leaf[:row], empty, leaf[row:]])

    return map_leaves(fill, infos)


def _append(leaf: npt.NDArray[Any], row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([leaf, row])


def row_count(column: Any, name: str) -> int:
    """Return the number of rows of a tree of columns.

    Raises:
        CorruptDatasetError: its leaves differ in their number of rows, or there are no leaves.
    """
    counts = {join_path((name, *path)): len(leaf) for path, leaf in leaves(column)}
    if len(set(counts.values())) != 1:
        raise CorruptDatasetError(f"{name} has columns of different lengths: {counts or 'none'}")
    return next(iter(counts.values()))


def indices_of(episode_indices: Iterable[int], total_episodes: int) -> Iterator[int]:
    """Yield the episode numbers and check that each exists."""
    for index in episode_indices:
        yield check_index(index, total_episodes)
