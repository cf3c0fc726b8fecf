"""The formats arrow and parquet, layout of Minari 0.5; nothing in them is lossy.

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
    │  │    ...                any other is extra step data
    │  └─ metadata.json      id, total_steps, seed, options, rewards_sum, ...
    └─ 1 ...

JSON cannot tell an array or a tuple from a list; where it would come back different, the key
``minari_pipe_exact`` of an episode's metadata holds the value's exact form too. No time is stored:
equal calls write equal bytes. Real Minari reads an episode of 131,072 steps or more wrongly,
whoever wrote it: it pairs batches of that many rows with episodes.
"""

from __future__ import annotations

import os
import shutil
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import (
    CorruptDatasetError,
    InvalidEpisodeError,
    MinariPipeError,
    MissingDependencyError,
)
from minari_pipe.files import current
from minari_pipe.storage.arrow_files import read_ipc, read_parquet, write_ipc, write_parquet
from minari_pipe.storage.arrow_values import (
    pa,
    read_column,
    read_tree,
    without_empty_dicts,
    write_column,
)
from minari_pipe.storage.base import METADATA_FILE_NAME
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.directory import DirectoryStorage
from minari_pipe.storage.jpeg import Frames, decode
from minari_pipe.storage.json_attributes import dump_attributes, load_attributes
from minari_pipe.storage.writer import EpisodeWriter

_STEP_COLUMNS = ("rewards", "terminations", "truncations")
_COLUMNS = frozenset({"observations", "actions", *_STEP_COLUMNS, "infos"})


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
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
    ) -> None:
        _require_pyarrow(self.FORMAT)
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)

    @classmethod
    def check_spaces(
        cls, observation_space: gym.Space, action_space: gym.Space, *, jpeg_encoding: bool = False
    ) -> None:
        """Check that these spaces can be stored.

        Raises:
            UnsupportedSpaceError: they cannot.
            MissingDependencyError: pyarrow is not installed, or Pillow for JPEG images.

        Example:
            >>> from gymnasium.spaces import Discrete
            >>> ArrowStorage.check_spaces(Discrete(2), Discrete(2))
        """
        _require_pyarrow(cls.FORMAT)
        super().check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        total = self.total_episodes
        for index in episode_indices:
            index = _in_range(index, total)
            yield self._read_current(f"{index}/{METADATA_FILE_NAME}", index, _read_attributes)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        return self._episodes(episode_indices, frames=False)

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        return self._episodes(episode_indices, frames=True)

    def _episodes(self, indices: Iterable[int], *, frames: bool) -> Iterator[dict[str, Any]]:
        total = self.total_episodes
        for index in indices:
            yield self._read_episode(_in_range(index, total), frames=frames)

    def _read_episode(self, index: int, *, frames: bool) -> dict[str, Any]:
        metadata, part = f"{index}/{METADATA_FILE_NAME}", f"{index}/{self._part_name()}"
        for _ in range(3):  # somebody may continue the episode between one file and the other
            attributes = self._read_current(metadata, index, _read_attributes)
            data = self._read_current(part, index, Path.read_bytes)
            with _translated(self.data_path / part, index):
                table = self._read(data)
            if attributes["total_steps"] == table.num_rows - 1:
                break
        else:
            raise CorruptDatasetError(
                f"{self.data_path / part}: episode {index} has {table.num_rows} rows, but "
                f"{attributes['total_steps']} total_steps in its {METADATA_FILE_NAME} (expected "
                "one row more than steps)"
            )
        with _translated(self.data_path / part, index):
            columns = self._columns(table, frames=frames)
        return {
            "id": index,
            "seed": attributes.get("seed"),
            "extras": columns.pop("extras", {}),
            **columns,
        }

    def _columns(self, table: Any, *, frames: bool = False) -> Columns:
        """Convert a table to the columns of an episode, ``extras`` only if there are any."""
        names = table.column_names
        if len(set(names)) < len(names):
            raise CorruptDatasetError(f"it has columns of the same name: {sorted(names)}")
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
        for name in _STEP_COLUMNS:
            if name not in found:
                raise CorruptDatasetError(f"the column {name} is missing")
            field, array = found[name]
            columns[name] = _step_column(read_tree(field, array[:steps], (name,)), name)
        columns["infos"] = {}
        if "infos" in found:
            field, array = found["infos"]
            if not pa.types.is_struct(array.type):
                raise CorruptDatasetError(f"the column infos has the type {array.type}")
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
        with _translated(path, index):
            return current(path, read, directory=self.data_path)

    @classmethod
    def _part_name(cls) -> str:
        return f"part-0.{cls.FORMAT}"

    #: whether the format can hold a struct without fields
    _empty_structs = True
    _read = staticmethod(read_ipc)
    _write = staticmethod(write_ipc)

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
                f"{total_episodes}: the others are from an append that was broken off before "
                "it was finished, and are removed",
                stacklevel=5,
            )
        yield EpisodeFolders(self, stage, total_episodes)
        for index in left:
            shutil.rmtree(self.data_path / str(index))


class ParquetStorage(ArrowStorage):
    """A dataset with a folder for each episode, its columns in a Parquet file.

    Example:
        >>> ParquetStorage.FORMAT
        'parquet'
    """

    FORMAT = "parquet"
    _empty_structs = False
    _read = staticmethod(read_parquet)
    _write = staticmethod(write_parquet)


class EpisodeFolders(EpisodeWriter):
    """Writes the folders of episodes into the stage of a transaction."""

    def __init__(self, storage: ArrowStorage, stage: Path, total_episodes: int) -> None:
        self._storage = storage
        self._stage = stage
        self._count = total_episodes

    def __len__(self) -> int:
        """Number of episodes."""
        return self._count

    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: they are damaged.
        """
        index = _in_range(index, len(self))
        path = self._current(index, METADATA_FILE_NAME)
        with _translated(path, index):
            return _read_attributes(path)

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        text = dump_attributes(attributes)
        data = self._serialized(_without_empty_groups(columns))
        folder = self._stage / str(len(self))
        try:
            folder.mkdir()
            (folder / self._storage._part_name()).write_bytes(data)
            (folder / METADATA_FILE_NAME).write_text(text, encoding="utf-8")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._count += 1

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        path = self._current(index, self._storage._part_name())
        with _translated(path, index):
            stored = self._storage._columns(self._storage._read(path.read_bytes()), frames=True)
        columns = _without_empty_groups(columns)
        joined: Columns = {}
        for key in ("observations", "actions", *_STEP_COLUMNS, "infos"):
            joined[key] = _join(stored[key], columns[key], f"episode {index}: {key}")
        extras, more = stored.get("extras", {}), columns.get("extras", {})
        if extras or more:
            joined["extras"] = _join(extras, more, f"episode {index}: extras")
        data = self._serialized(joined)
        folder = self._stage / str(index)
        folder.mkdir(exist_ok=True)
        (folder / self._storage._part_name()).write_bytes(data)
        return joined["rewards"]

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        text = dump_attributes(attributes)
        folder = self._stage / str(index)
        folder.mkdir(exist_ok=True)
        (folder / METADATA_FILE_NAME).write_text(text, encoding="utf-8")

    def _current(self, index: int, name: str) -> Path:
        staged = self._stage / str(index) / name
        return staged if staged.exists() else self._storage.data_path / str(index) / name

    def _serialized(self, columns: Columns) -> bytes:
        storage = self._storage
        spaces = {"observations": storage.observation_space, "actions": storage.action_space}
        rows = len(columns["rewards"]) + 1
        keep = storage._empty_structs
        pairs = [
            write_column(name, columns[name], spaces.get(name), rows, empty_structs=keep)
            for name in ("observations", "actions", *_STEP_COLUMNS)
        ]
        if columns["infos"]:
            pairs.append(write_column("infos", columns["infos"], None, rows, empty_structs=keep))
        for name, column in columns.get("extras", {}).items():
            pairs.append(write_column(name, column, None, rows, empty_structs=keep, is_extra=True))
        schema = pa.schema([field for field, _ in pairs])
        return storage._write(
            pa.RecordBatch.from_arrays([array for _, array in pairs], schema=schema)
        )


def _require_pyarrow(data_format: str) -> None:
    if pa is None:
        raise MissingDependencyError(
            f"the format {data_format} needs the package pyarrow, which is not installed. Run: "
            "pip install 'minari_pipe[arrow]'"
        )


def _in_range(index: int, total: int) -> int:
    index = int(index)
    if not 0 <= index < total:
        raise IndexError(f"episode {index} is out of range: there are {total} episodes")
    return index


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def _joined(column: Any) -> Any:
    """Join the batches of a column; Minari cuts episodes of more than 32,768 rows into several."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _step_column(values: Any, name: str) -> npt.NDArray[Any]:
    """Check a column of one number a step; Minari stores rewards in the dtype they came in."""
    expected = "biuf" if name == "rewards" else "biu"
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in expected:
        found = f"{values.dtype}{values.shape[1:]}" if isinstance(values, np.ndarray) else "dicts"
        raise CorruptDatasetError(f"the column {name} is {found}, expected one number a step")
    return values


def _without_empty_groups(columns: Columns) -> Columns:
    groups = {key: columns[key] for key in ("infos", "extras") if key in columns}
    return {**columns, **{key: without_empty_dicts(group) for key, group in groups.items()}}


def _join(stored: Any, more: Any, where: str) -> Any:
    """Append rows to a tree of columns.

    Raises:
        InvalidEpisodeError: keys, shapes or dtypes are not those that are stored.
    """
    if isinstance(stored, tuple):
        return tuple(
            _join(part, entry, f"{where}.{place}")
            for place, (part, entry) in enumerate(zip(stored, more, strict=True))
        )
    if isinstance(stored, Mapping):
        if not isinstance(more, Mapping) or stored.keys() != more.keys():
            keys = sorted(more) if isinstance(more, Mapping) else []
            raise InvalidEpisodeError(f"{where} has the keys {keys}, stored are {sorted(stored)}")
        return {key: _join(part, more[key], f"{where}.{key}") for key, part in stored.items()}
    if isinstance(stored, Frames) and isinstance(more, Frames):
        return Frames([*stored, *more])
    if isinstance(stored, np.ndarray) and isinstance(more, Frames):
        more = decode(more, where)  # Minari up to 0.5.2 encoded nothing, and nothing told so
    if isinstance(stored, list) and type(stored) is type(more):
        return [*stored, *more]
    dtypes = [getattr(part, "dtype", type(part).__name__) for part in (stored, more)]
    if dtypes[0] != dtypes[1]:
        raise InvalidEpisodeError(f"{where} is {dtypes[1]}, stored is {dtypes[0]}")
    if stored.shape[1:] != more.shape[1:]:
        raise InvalidEpisodeError(
            f"{where} has rows of shape {more.shape[1:]}, stored are {stored.shape[1:]}"
        )
    return np.concatenate([stored, more])


def _read_attributes(path: Path) -> dict[str, Any]:
    attributes = load_attributes(path.read_text(encoding="utf-8"))
    for key in ("total_steps", "seed"):
        value = attributes.get(key, None if key == "seed" else "missing")
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not is_count and not (key == "seed" and value is None):
            raise ValueError(f"{key} is {value!r}, expected a number that is not negative")
    return attributes


@contextmanager
def _translated(path: Path, index: int) -> Iterator[None]:
    """Name the file and the episode in everything that pyarrow and NumPy raise on damaged data."""
    where = f"{path}: episode {index}"
    try:
        yield
    except MinariPipeError as error:
        if isinstance(error, CorruptDatasetError) and str(path) not in str(error):
            raise CorruptDatasetError(f"{where}: {error}") from None
        raise
    except FileNotFoundError:
        raise CorruptDatasetError(f"{where}: the file is missing") from None
    except (
        OSError,  # pyarrow's errors are of these classes
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        MemoryError,
        OverflowError,
        NotImplementedError,
        AttributeError,
        AssertionError,
        struct.error,
    ) as error:
        message = f"{where} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error
