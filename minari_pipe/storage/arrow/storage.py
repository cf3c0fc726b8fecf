"""Store datasets as Arrow or Parquet files in the layout of Minari 0.5, without loss.

::

    data/
    ├─ metadata.json
    ├─ 0
    │  ├─ part-0.arrow       or part-0.parquet: one batch of T + 1 rows, with the columns
    │  │    observations       Dict space: struct of its keys; Tuple space: struct of 0, 1, ...
    │  │    actions            Box, MultiDiscrete, MultiBinary: lists of fixed size, row-major
    │  │    rewards  double    Discrete: integers of the space's dtype; Text: strings
    │  │    terminations bool  actions, rewards and flags: the last row is padding
    │  │    truncations  bool
    │  │    infos              struct, left out if there are none
    │  │    ...                any other column is extra step data
    │  └─ metadata.json      id, total_steps, seed, options, rewards_sum, ...
    └─ 1 ...

JSON does not distinguish an array or a tuple from a list; where it would not round-trip a value,
the key ``minari_pipe_exact`` of an episode's metadata also holds the exact form. No time is stored:
equal calls write equal bytes. Real Minari misreads any episode of 131,072 steps or more, because it
pairs batches of that many rows with episodes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.files.atomic import current
from minari_pipe.core.files.changes import remove
from minari_pipe.core.files.links import read_below, refuse_links
from minari_pipe.core.messages import is_encodable
from minari_pipe.core.spaces import space_leaves
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    MissingDependencyError,
    UnsupportedSpaceError,
)
from minari_pipe.storage.arrow.files import read_ipc, read_parquet, write_ipc, write_parquet
from minari_pipe.storage.arrow.folders import STEP_COLUMNS, EpisodeFolders, in_range
from minari_pipe.storage.arrow.reading import KnownFiles
from minari_pipe.storage.arrow.values import MOST_NESTED, nesting, pa, read_column, read_tree
from minari_pipe.storage.base import METADATA_FILE_NAME
from minari_pipe.storage.columns import Columns, subscripts
from minari_pipe.storage.directory import DirectoryStorage
from minari_pipe.storage.episode_files import attributes_of, read_attributes, read_files, translated
from minari_pipe.storage.unpacking import FREE_BYTES, Announced

_COLUMNS = frozenset({"observations", "actions", *STEP_COLUMNS, "infos"})


#: on these exceptions, an episode is read again by the slower path, which reports what is wrong
_NOT_QUICK = (
    *(OSError, MemoryError, RecursionError),
    *(ValueError, LookupError, TypeError, AttributeError),
)


class ArrowStorage(DirectoryStorage):
    """A dataset with a folder for each episode, its columns in an Arrow IPC file.

    Example:
        >>> import tempfile
        >>> from gymnasium.spaces import Box, Discrete
        >>> from minari_pipe.storage import MinariStorage
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     storage = MinariStorage.new(
        ...         folder, Box(-1, 1, (2,)), Discrete(2), data_format="arrow"
        ...     )
        ...     storage.total_episodes
        0
    """

    FORMAT = "arrow"

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
    ) -> None:
        _require_pyarrow(self.FORMAT)
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        self._known = KnownFiles()

    @classmethod
    def check_spaces(
        cls,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        jpeg_encoding: bool = False,
    ) -> None:
        """Raise an error if the format cannot store values of these spaces.

        Raises:
            UnsupportedSpaceError: the format cannot store one of the spaces.
            MissingDependencyError: pyarrow is not installed, or Pillow for JPEG images.

        Example:
            >>> from gymnasium.spaces import Discrete
            >>> ArrowStorage.check_spaces(Discrete(2), Discrete(2))
        """
        _require_pyarrow(cls.FORMAT)
        super().check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)
        for root, space in (("observations", observation_space), ("actions", action_space)):
            if (depth := nesting(space)) > MOST_NESTED:
                raise UnsupportedSpaceError(
                    f"the space of {root} nests Dict and Tuple {depth} deep, the format "
                    f"{cls.FORMAT} stores at most {MOST_NESTED}; use data_format='hdf5'"
                )
            for path, _ in space_leaves(space, (root,)):
                if not is_encodable("".join(map(str, path))):  # column names are UTF-8
                    raise UnsupportedSpaceError(
                        f"invalid key in {subscripts(path)}: keys of a Dict space must be strings "
                        "without lone surrogates; rename it"
                    )

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        total, quick = self.total_episodes, self._is_settled()
        for index in episode_indices:
            index = in_range(index, total)
            attributes = self._quick_attributes(index) if quick else None
            if attributes is None:
                attributes = self._read_current(
                    f"{index}/{METADATA_FILE_NAME}", index, read_attributes
                )
            self.check_version()
            yield attributes

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        return self._episodes(episode_indices, frames=False)

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        return self._episodes(episode_indices, frames=True)

    def _episodes(self, indices: Iterable[int], *, frames: bool) -> Iterator[dict[str, Any]]:
        total, quick = self.total_episodes, self._is_settled()
        for index in indices:
            index = in_range(index, total)
            episode = self._quick_episode(index) if quick and self._known else None
            if episode is None:
                try:
                    episode = self._read_episode(index, frames=frames)
                except CorruptDatasetError:
                    self.check_version()
                    raise
            self.check_version()
            yield episode

    def _is_settled(self) -> bool:
        """Return whether no change is being moved into place, so that files need no search."""
        path = self.data_path / METADATA_FILE_NAME
        return current(path, lambda found: found) == path

    def _quick_attributes(self, index: int) -> dict[str, Any] | None:
        """Return attributes read from their usual place, or None if anything is unexpected."""
        try:
            (text,) = read_files(str(index), [METADATA_FILE_NAME], self._opened)
            return attributes_of(text)
        except _NOT_QUICK:
            return None

    def _quick_episode(self, index: int) -> dict[str, Any] | None:
        """Return an episode read from its usual place, or None if its file is of no known kind."""
        try:
            names = (METADATA_FILE_NAME, self._part_name())
            text, data = read_files(str(index), names, self._opened)
            attributes = attributes_of(text)
        except _NOT_QUICK:
            return None
        columns = self._known.columns(data)
        if columns is None or attributes["total_steps"] != len(columns["rewards"]):
            return None
        return _fields(index, attributes, columns)

    def _read_episode(self, index: int, *, frames: bool) -> dict[str, Any]:
        metadata, part = f"{index}/{METADATA_FILE_NAME}", f"{index}/{self._part_name()}"
        for _ in range(3):  # another process may extend the episode between the two reads
            attributes = self._read_current(metadata, index, read_attributes)
            data = self._read_current(part, index, read_below)
            with translated(self.data_path / part, index):
                table = self._table(data, attributes["total_steps"])
            if attributes["total_steps"] == table.num_rows - 1:
                break
        else:
            raise CorruptDatasetError(
                f"{self.data_path / part}: episode {index} has {table.num_rows} rows, but "
                f"{attributes['total_steps']} total_steps in its {METADATA_FILE_NAME} (expected "
                "one more row than steps)"
            )
        with translated(self.data_path / part, index):
            columns = self._columns(table, frames=frames)
        if self._has_layout:
            self._known.learn(data, table.schema, columns)
        return _fields(index, attributes, columns)

    def _table(self, data: bytes, steps: int) -> Any:
        """Return the table of an episode's file, for which the metadata announce these steps."""
        if (steps + 1) * self._announced.all_row_bytes() > FREE_BYTES:
            steps = min(steps, self.total_steps)
        return self._read(data, self._announced, steps + 1)

    @cached_property
    def _announced(self) -> Announced:
        return Announced(self.observation_space, self.action_space)

    def _columns(self, table: Any, *, frames: bool = False) -> Columns:
        """Convert a table to the columns of an episode, with ``extras`` only if there are any."""
        names = table.column_names
        if len(set(names)) < len(names):
            raise CorruptDatasetError(f"it has duplicate column names: {sorted(names)}")
        found = {
            name: (table.schema.field(place), _joined(table.column(place)))
            for place, name in enumerate(names)
        }
        steps = table.num_rows - 1
        columns: Columns = {}
        for name, space, rows in (
            ("observations", self.observation_space, steps + 1),
            ("actions", self.action_space, steps),
        ):
            if name in found:
                field, array = found[name]
                columns[name] = read_column(field, array[:rows], space, (name,), frames=frames)
            else:
                raise CorruptDatasetError(f"the column {name} is missing")
        for name in STEP_COLUMNS:
            if name not in found:
                raise CorruptDatasetError(f"the column {name} is missing")
            field, array = found[name]
            columns[name] = _step_column(read_tree(field, array[:steps], (name,)), name)
        columns["infos"] = {}
        if "infos" in found:
            field, array = found["infos"]
            if not pa.types.is_struct(array.type):
                raise CorruptDatasetError(
                    f"the column infos has the type {array.type}, expected a struct"
                )
            columns["infos"] = read_tree(field, array, ("infos",))
        extras = {
            name: read_tree(field, array, (name,), padded=True)
            for name, (field, array) in found.items()
            if name not in _COLUMNS
        }
        if extras:
            columns["extras"] = extras
        return columns

    def _read_current(self, name: str, index: int, read: Any) -> Any:
        path = self.data_path / name
        with translated(path, index):
            return current(path, lambda found: read(found, self._opened), directory=self.data_path)

    @classmethod
    def _part_name(cls) -> str:
        return f"part-0.{cls.FORMAT}"

    #: True if the format can store a struct without fields
    _empty_structs = True
    #: True if the number of rows determines where the values are in a file
    _has_layout = True
    _read = staticmethod(read_ipc)
    _write = staticmethod(write_ipc)

    @classmethod
    def _create_files(cls, data_path: Path) -> None:
        taken = next(filter(_is_index, os.listdir(data_path)), None)
        if taken is not None:
            raise DatasetExistsError(
                f"{data_path / taken} already exists and is not of a dataset; specify another path"
            )

    @contextmanager
    def _writer(self, stage: Path, total_episodes: int) -> Iterator[EpisodeFolders]:
        folders = {int(name) for name in os.listdir(self.data_path) if _is_index(name)}
        missing = sorted(set(range(total_episodes)) - folders)
        if missing:
            raise CorruptDatasetError(
                f"{self.data_path} has no folder {missing[0]}, metadata.json says "
                f"{total_episodes} episodes"
            )
        left = {index for index in folders if index >= total_episodes}
        if left:
            warnings.warn(
                f"{self.data_path} has {len(folders)} episodes, metadata.json says "
                f"{total_episodes}: the others are from an interrupted append and are removed",
                stacklevel=5,
            )
        if stage == self.data_path:  # new folders take their places
            self._remove(left)
        yield EpisodeFolders(self, stage, total_episodes)
        if stage != self.data_path:
            self._remove(left)

    def _remove(self, indices: Iterable[int]) -> None:
        for index in indices:
            refuse_links(self.data_path / str(index), self.data_path)
            remove(self.data_path / str(index))


class ParquetStorage(ArrowStorage):
    """A dataset with a folder for each episode, its columns in a Parquet file.

    Example:
        >>> ParquetStorage.FORMAT
        'parquet'
    """

    FORMAT = "parquet"
    _empty_structs = False
    _has_layout = False
    _read = staticmethod(read_parquet)
    _write = staticmethod(write_parquet)


def _require_pyarrow(data_format: str) -> None:
    if pa is None:
        raise MissingDependencyError(
            f"the format {data_format} needs the package pyarrow, which is not installed. Run: "
            "pip install 'minari_pipe[arrow]'"
        )


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def _joined(column: Any) -> Any:
    """Join the batches of a column; Minari splits episodes of more than 32,768 rows."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _step_column(values: Any, name: str) -> npt.NDArray[Any]:
    """Check a column of one number per step; Minari stores rewards in the dtype it is given."""
    expected = "biuf" if name == "rewards" else "biu"
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in expected:
        found = f"{values.dtype}{values.shape[1:]}" if isinstance(values, np.ndarray) else "dicts"
        raise CorruptDatasetError(f"the column {name} is {found}, expected one number per step")
    return values


def _fields(index: int, attributes: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    return {
        "id": index,
        "seed": attributes.get("seed"),
        "extras": columns.pop("extras", {}),
        **columns,
    }
