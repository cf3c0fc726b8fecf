"""Write the folders of episodes of the formats arrow and parquet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.files.checksums import entry_of_bytes
from minari_pipe.core.files.links import PathLike, read_below
from minari_pipe.core.files.mapped import in_pieces
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.arrow.layout import FileLayout
from minari_pipe.storage.arrow.segments import episode_files, shortest_episode
from minari_pipe.storage.arrow.values import (
    MOST_NESTED,
    nesting,
    pa,
    without_empty_dicts,
    write_column,
)
from minari_pipe.storage.base import METADATA_FILE_NAME
from minari_pipe.storage.columns import Columns, append_rows
from minari_pipe.storage.episode_files import Chunks, read_attributes, translated, write_file
from minari_pipe.storage.json_attributes import dump_attributes, dump_table
from minari_pipe.storage.segment import Leaf, Segment
from minari_pipe.storage.writer import EpisodeWriter

if TYPE_CHECKING:
    from minari_pipe.storage.arrow.storage import ArrowStorage

STEP_COLUMNS = ("rewards", "terminations", "truncations")
#: most segment structures whose layouts are cached
_MAX_LAYOUTS = 64
#: files that are prepared before they are written; long ones are only views of existing data
_READY = 64


class EpisodeFolders(EpisodeWriter):
    """Writes the folders of episodes into the stage of a transaction.

    The stage may be the data directory itself if no other process reads it before the end.
    """

    def __init__(self, storage: ArrowStorage, stage: Path, total_episodes: int) -> None:
        self._storage = storage
        self._stage = stage
        self._folder = str(stage)
        self._count = total_episodes
        self._entries: dict[str, dict[str, Any]] = {}
        #: file layouts of the segments written so far, by their leaves
        self._layouts: dict[tuple[Leaf, ...], FileLayout | None] = {}

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self._count

    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: the attributes are damaged.
        """
        index = in_range(index, len(self))
        path, below = self._current(index, METADATA_FILE_NAME)
        with translated(path, index):
            return read_attributes(path, below)

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the manifest entries of all written files."""
        return self._entries

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        text = dump_attributes(attributes)
        data = self._serialized(_without_empty_groups(columns))
        self._write_folders([[data]], [text])

    def _append_segment(self, segment: Segment) -> None:
        layout = self._layout(segment) if self._storage._has_layout else None
        if layout is None:
            super()._append_segment(segment)
        else:
            self._write_folders(episode_files(segment, layout), dump_table(segment.attributes))

    def _layout(self, segment: Segment) -> FileLayout | None:
        """Return the layout of the episodes' files, or None if pyarrow must write each of them."""
        if segment.leaves not in self._layouts:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            columns = {"infos": {}, **shortest_episode(segment).columns(0)}
            data = self._serialized(columns)
            self._layouts[segment.leaves] = FileLayout.of(data, self._storage._read(data).schema)
        return self._layouts[segment.leaves]

    def _write_folders(self, files: Iterable[Chunks], texts: Iterable[str]) -> None:
        """Write the folders of the next episodes, all or none of them."""
        count = self._count
        pairs = zip(files, texts, strict=True)
        try:
            # Python and the kernel are faster at many equal operations than at alternating ones
            while ready := list(islice(pairs, _READY)):
                for file, text in ready:
                    folder = f"{self._folder}/{count}"
                    os.mkdir(folder)
                    count += 1
                    self._write_file(f"{folder}/{self._storage._part_name()}", file)
                    self._write_file(f"{folder}/{METADATA_FILE_NAME}", [text.encode("utf-8")])
        except BaseException:
            for number in range(self._count, count):
                for name in (self._storage._part_name(), METADATA_FILE_NAME):
                    self._entries.pop(f"{number}/{name}", None)
                shutil.rmtree(f"{self._folder}/{number}", ignore_errors=True)
            raise
        self._count = count

    def _write_file(self, path: str, chunks: Chunks, *, replaces: bool = False) -> None:
        """Write a file of the stage; all files are written here."""
        # first, as it brings mapped data into memory; see minari_pipe.core.files.mapped.touch
        entry = entry_of_bytes(chunks, in_pieces)
        write_file(path, chunks, replaces=replaces)
        self._entries[path[len(self._folder) + 1 :]] = entry

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        path, below = self._current(index, self._storage._part_name())
        with translated(path, index):
            steps = self.episode_metadata(index)["total_steps"]
            table = self._storage._table(read_below(path, below), steps)
            stored = self._storage._columns(table, frames=True)
        columns = _without_empty_groups(columns)
        joined: Columns = {}
        for key in ("observations", "actions", *STEP_COLUMNS, "infos"):
            joined[key] = append_rows(stored[key], columns[key], f"episode {index}: {key}")
        extras, more = stored.get("extras", {}), columns.get("extras", {})
        if extras or more:
            joined["extras"] = append_rows(extras, more, f"episode {index}: extras")
        data = self._serialized(joined)
        self._replace_file(index, self._storage._part_name(), data)
        return joined["rewards"]

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        text = dump_attributes(attributes)
        self._replace_file(index, METADATA_FILE_NAME, text.encode("utf-8"))

    def _replace_file(self, index: int, name: str, data: bytes) -> None:
        folder = self._stage / str(index)
        folder.mkdir(exist_ok=True)
        self._write_file(str(folder / name), [data], replaces=True)

    def _current(self, index: int, name: str) -> tuple[Path, PathLike]:
        """Return the file of an episode, and the folder below which links are not followed."""
        staged = self._stage / str(index) / name
        if staged.exists():
            return staged, self._stage
        return self._storage.data_path / str(index) / name, self._storage._opened

    def _serialized(self, columns: Columns) -> bytes:
        storage = self._storage
        for name, column in {**columns, **columns.get("extras", {})}.items():
            if name != "extras" and (depth := nesting(column)) > MOST_NESTED:
                raise InvalidEpisodeError(
                    f"{name} nests dicts and tuples {depth} deep, the format {storage.FORMAT} "
                    f"stores at most {MOST_NESTED}; use data_format='hdf5'"
                )
        spaces = {"observations": storage.observation_space, "actions": storage.action_space}
        rows = len(columns["rewards"]) + 1
        keep = storage._empty_structs
        pairs = [
            write_column(name, columns[name], spaces.get(name), rows, empty_structs=keep)
            for name in ("observations", "actions", *STEP_COLUMNS)
        ]
        if columns["infos"]:
            pairs.append(write_column("infos", columns["infos"], None, rows, empty_structs=keep))
        for name, column in columns.get("extras", {}).items():
            pairs.append(write_column(name, column, None, rows, empty_structs=keep, is_extra=True))
        schema = pa.schema([field for field, _ in pairs])
        return storage._write(
            pa.RecordBatch.from_arrays([array for _, array in pairs], schema=schema)
        )


def _without_empty_groups(columns: Columns) -> Columns:
    groups = {key: columns[key] for key in ("infos", "extras") if key in columns}
    return {**columns, **{key: without_empty_dicts(group) for key, group in groups.items()}}


def in_range(index: int, total: int) -> int:
    """Return the number of an existing episode as an int.

    Args:
        index: the number.
        total: number of episodes.

    Raises:
        IndexError: there is no such episode.

    Example:
        >>> in_range(1, 2)
        1
    """
    index = int(index)
    if not 0 <= index < total:
        raise IndexError(f"episode {index} is out of range: there are {total} episodes")
    return index
