"""Store columns of keys that may come and go: the infos of an episode, and extra step data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import Path, join_path
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.row_columns import PART_NUMBERS, Column, RowStore

#: most Python numbers that all columns together keep before they become rows
_MOST_NUMBERS = 1 << 16

#: the missing rows of a regular column: none, or only that of the reset
_NONE_OR_RESET: tuple[list[Any], ...] = ([], [[0, 1]])


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of infos or extras; ragged tuples count as dicts of ``_index_0``, ..."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_key(key, path)
            yield from _leaves(part, (*path, key))
    elif isinstance(value, tuple) and not _is_regular(value):
        for index, part in enumerate(value):
            yield from _leaves(part, (*path, f"_index_{index}"))
    else:
        yield path, value


def _is_regular(value: tuple[Any, ...]) -> bool:
    if any(isinstance(part, Mapping | tuple) for part in value):
        return False
    return len({np.shape(part) for part in value if not isinstance(part, list)}) < 2


def check_key(key: Any, path: Path) -> None:
    """Raise an error if a key is not a string.

    Raises:
        InvalidEpisodeError: the key is not a string.
    """
    if not isinstance(key, str):
        raise InvalidEpisodeError(
            f"{join_path((*path, str(key)))}: keys of {path[0]} must be strings, got {key!r}"
        )


class OpenTree:
    """Columns of nested dicts whose keys may come and go; falsy while there are none.

    Most infos are a dict of the same few numbers on every step. Such rows are *put* and counted
    here; any other row is *added* and counted by each column.
    """

    def __init__(self, path: Path, store: RowStore | None, stored: int = 0) -> None:
        self._path, self._store = path, store
        self._columns: dict[Path, OpenColumn] = {}
        # the same columns by their keys, in nested dicts
        self._by_key: dict[Any, Any] = {}
        self._stored = stored
        # keys of the last episode's columns, kept until its first row shows whether they fit
        self._waiting: list[Any] | None = None
        # all columns turn their numbers into rows together, this many at a time
        self._part = PART_NUMBERS
        # the row that may be put next, or -1; the columns have all rows before it
        self._next = -1

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self._columns.values())

    def put(self, row: int, value: Any) -> bool:
        """Add a row that fits the dtype and shape of every column; return False for others."""
        by_key = self._by_key
        if row != self._next or type(value) is not dict or len(value) != len(by_key):
            return False
        if not row % self._part:  # leave it to add(), which joins the rows before it
            return False
        try:
            for key, part in value.items():
                column = by_key[key]
                if type(part) in column.number_types:
                    column.added.append(part)
                elif not Column.put(column, row, part):
                    return False  # the next add() cuts the values that were put
        except (KeyError, OverflowError):  # unknown key, or a Python number too large for the dtype
            return False
        self._next = row + 1
        return True

    def add(self, row: int, value: Any) -> bool:
        """Add a row and return whether it added new columns."""
        self._settle()
        if not row % self._part:  # join the values that nested dicts added one by one
            for each in self._columns.values():
                each.cut(row)
        if self._waiting is not None:
            keys, self._waiting = self._waiting, None
            if type(value) is dict and [*value] == keys and self._put(self._by_key, row, value):
                self._plan(row)
                return False
            self._columns, self._by_key = {}, {}
        known = len(self._columns)
        if not (type(value) is dict and self._put(self._by_key, row, value)):
            for path, leaf in _leaves(value, self._path):
                column = self._columns.get(path)
                if column is None:
                    column = self._new(path)
                column.add(row, leaf)
        self._plan(row)
        return len(self._columns) > known

    def _plan(self, row: int) -> None:
        """Allow the next row to be put if all columns have this one and lie in one dict."""
        if self._has_all(row + 1):
            self._next = row + 1

    def _has_all(self, rows: int) -> bool:
        """Return whether this is one flat dict of numbers and arrays with this many rows each."""
        depth = len(self._path) + 1
        return all(
            len(column.path) == depth and column.is_regular and column.rows == rows
            for column in self._columns.values()
        )

    def _settle(self) -> None:
        """Update the row counts of the columns after rows were put."""
        if self._next >= 0:
            for column in self._columns.values():
                column.settle(self._next)
        self._next = -1

    def _put(self, by_key: dict[Any, Any], row: int, value: dict[str, Any]) -> bool:
        """Add a row; return False at the first value that does not fit its column."""
        try:
            for key, part in value.items():
                column = by_key[key]
                if type(column) is OpenColumn:
                    if not column.put(row, part):
                        return False
                elif type(part) is not dict or not self._put(column, row, part):
                    return False
        except KeyError:
            return False
        return True

    def _new(self, path: Path) -> OpenColumn:
        for other in self._columns:
            short = min(len(path), len(other))
            if path[:short] == other[:short]:
                raise InvalidEpisodeError(
                    f"{join_path(path[:short])} is a dict on some steps and a value on "
                    "others. A StepDataCallback can make it one of them; in a pipeline, an "
                    "environment wrapper can"
                )
        column = self._columns[path] = OpenColumn(path, self._store, self._stored)
        self._index()
        return column

    def _index(self) -> None:
        self._by_key = {}
        for path, column in self._columns.items():
            below = path[len(self._path) :]
            if below:
                parent = self._by_key
                for key in below[:-1]:
                    parent = parent.setdefault(key, {})
                parent[below[-1]] = column
        self._part = max(8, min(PART_NUMBERS, _MOST_NUMBERS // max(1, len(self._columns))))

    def is_whole(self, rows: int) -> bool:
        """Return whether this is a flat dict of numbers and arrays, complete but for the reset."""
        self._settle()
        return (
            not self._stored
            and self._has_all(rows)
            and all(column.filled in _NONE_OR_RESET for column in self._columns.values())
        )

    @property
    def form(self) -> list[Any]:
        """The path, dtype and shape of each column in order, and whether it lacks any row."""
        return [
            (part.path, part.dtype, part.shape, bool(part.filled))
            for part in self._columns.values()
        ]

    def add_bytes(self, rows: int, parts: list[bytes | memoryview]) -> None:
        """Append the bytes of each column; see :meth:`Column.add_bytes`."""
        for column in self._columns.values():
            column.add_bytes(rows, parts)

    def clear(self, rows: int) -> None:
        """Begin another episode; keep the columns if this one of ``rows`` rows filled them all."""
        columns = self._columns.values()
        if columns and self.is_whole(rows) and not any(column.filled for column in columns):
            for column in columns:
                column.clear()
            self._waiting = [path[-1] for path in self._columns]
        else:
            self._columns, self._by_key = {}, {}
            self._stored, self._waiting = 0, None
        self._next = -1

    def cut(self, rows: int) -> None:
        self._settle()
        for path in list(self._columns):
            self._columns[path].cut(rows)
            if self._columns[path].first >= self._stored + rows:
                del self._columns[path]
        self._index()

    def save(self, rows: int) -> None:
        self._settle()
        for column in self._columns.values():
            column.fill(rows)
            column.save(rows)

    def drop(self, rows: int) -> None:
        for column in self._columns.values():
            column.drop(rows, column.rows)
        self._stored += rows

    def stacked(self, rows: int) -> tuple[Any, dict[str, list[list[int]]]]:
        """Return the columns in their dicts, and the filled rows of each column."""
        self._settle()
        nested: Any = {}
        filled: dict[str, list[list[int]]] = {}
        for path, column in self._columns.items():
            column.fill(rows)
            below = path[len(self._path) :]
            if column.filled:
                filled[join_path(below)] = column.filled
            if column.data is None:
                continue
            if not below:
                nested = column.stacked(rows)
                break
            parent = nested
            for key in below[:-1]:
                parent = parent.setdefault(key, {})
            parent[below[-1]] = column.stacked(rows)
        return nested, filled


class OpenColumn(Column):
    """The rows of one key of the infos, which may be missing in some of them.

    Attributes:
        rows: number of its rows in memory.
        filled: ranges of episode rows without a value, as ``[begin, end]``.
        first: episode row in which the key first appeared.
    """

    def __init__(self, path: Path, store: RowStore | None = None, stored: int = 0) -> None:
        super().__init__(path, store=store)
        self.stored = stored
        self.rows = 0
        self.filled: list[list[int]] = []
        self.first = -1
        if stored:
            self.filled.append([0, stored])

    def put(self, row: int, value: Any) -> bool:
        if row != self.rows or not super().put(row, value):
            return False
        self.rows = row + 1
        return True

    def add(self, row: int, value: Any) -> None:
        if self.first < 0:
            self.first = self.stored + row
        if value is None:  # None counts as a missing key
            return
        if self.data is None:
            self._converted(0, value)
        self.fill(row)
        if self.rows > row:  # put() stored this value before another value of the step failed
            super().cut(row)
            self.rows = row
        if not self.put(row, value):
            self.set(row, value)
            if self._put_dtype is not self.dtype:
                self._allow_put()
            self.rows = row + 1

    def fill(self, rows: int) -> None:
        """Add rows of zeros up to ``rows`` and record their range."""
        if self.rows >= rows:
            return
        begin, end = self.stored + self.rows, self.stored + rows
        if self.filled and self.filled[-1][1] == begin:
            self.filled[-1][1] = end
        else:
            self.filled.append([begin, end])
        self._join()
        if self.data is not None:
            self._reserve(self.rows, rows)
            self.data[self.rows : rows] = "" if self.data.dtype.kind == "O" else 0
        self.rows = self._used = rows

    def settle(self, rows: int) -> None:
        """Set the row count after :meth:`Column.put` has added some of the rows."""
        super().cut(rows)
        self.rows = rows

    def drop(self, rows: int, used: int) -> None:
        super().drop(rows, used)
        self.rows -= rows

    def clear(self) -> None:
        super().clear()
        self.rows = self.first = 0

    def cut(self, rows: int) -> None:
        super().cut(rows)
        self.rows = min(self.rows, rows)
        last = self.stored + self.rows  # also undoes a fill() that Ctrl-C interrupted
        self.filled = [[begin, min(end, last)] for begin, end in self.filled if begin < last]


def fill_missing(buffer: EpisodeBuffer) -> EpisodeBuffer:
    """Return a buffer whose infos have a value in every row, filled as a recorder fills them.

    Args:
        buffer: an episode; None in a row of an info is a missing value, as in Arrow files of real
            Minari.

    Raises:
        InvalidEpisodeError: the values of an info do not match each other.

    Example:
        >>> infos = {"success": [None, True], "never": [None, None]}
        >>> found = fill_missing(EpisodeBuffer(infos=infos))
        >>> found.infos, found.metadata["infos_filled"]
        ({'success': array([False,  True])}, {'success': [[0, 1]], 'never': [[0, 2]]})
    """
    filled: dict[str, list[list[int]]] = {}
    infos = _filled(buffer.infos, (), filled)
    if not filled:
        return buffer
    known = buffer.metadata.get("infos_filled", {})
    joined = {name: sorted([*known.get(name, []), *filled[name]]) for name in filled}
    metadata = {**buffer.metadata, "infos_filled": {**known, **joined}}
    return replace(buffer, infos=infos, metadata=metadata)


def _filled(value: Any, path: Path, filled: dict[str, list[list[int]]]) -> Any:
    if isinstance(value, Mapping):
        parts = {key: _filled(part, (*path, key), filled) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if not _lacks_values(value):
        return value
    column = OpenColumn(("infos", *path))
    for row, part in enumerate(value):
        column.add(row, part)
    column.fill(len(value))
    filled[join_path(path)] = column.filled
    return None if column.data is None else column.stacked(len(value))


def _lacks_values(column: Any) -> bool:
    is_rows = isinstance(column, list) or (
        isinstance(column, np.ndarray) and column.dtype.kind == "O" and column.ndim > 0
    )
    return is_rows and any(row is None for row in column)
