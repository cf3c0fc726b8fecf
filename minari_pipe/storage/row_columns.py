"""The rows of an episode that is being recorded: one column of rows for each leaf of its values.

A value of the very dtype and shape of its column, which nearly every value is, is *put*: copied
into an array of rows. Of a short array or a number that takes four times as long as to keep its
bytes or itself in a list, so those are brought to the rows together. Any other value is *set*:
converted, and the column widened if it must be. Rows are numbered by the caller, who cuts those of
a step that is refused.

Rows that a long episode has no room for in memory go to a :class:`RowStore`. What is numbered then
is the rows that are in memory; those before them are counted by ``stored``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.spaces import ARRAY_SPACES, row_limits
from minari_pipe.core.tree import Path, as_array, fits_exactly, join_path
from minari_pipe.errors import InvalidEpisodeError

_FIRST_CAPACITY = 64

#: below this size the limits of so many rows are kept, to compare short episodes at once
_TILED_BYTES = 1 << 14

#: the bytes of shorter arrays are added, and become rows in parts of so many
_SHORT, _PART_ROWS = 1 << 12, 256

#: numbers become rows in parts of so many: in a list each takes 40 bytes
PART_NUMBERS = 1 << 12

#: stored rows are converted in parts of about this size
_PART_BYTES = 1 << 20

#: Python's numbers that a column of a dtype holds as its own scalars, besides whole ones
_PYTHON_NUMBERS: dict[Any, type[Any]] = {np.dtype(np.float64): float, np.dtype(np.bool_): bool}

#: Python's arrays of the same numbers, made without NumPy; of float32 they change some NaN
_CODES = {np.dtype(np.float64): "d", np.dtype(np.int64): "q"}

_INT64, _INT64_MAX = np.dtype(np.int64), (1 << 63) - 1


class RowStore(Protocol):
    """Where the rows of long episodes go, such as the journal."""

    def add_rows(self, place: Any, rows: npt.NDArray[Any]) -> Any:
        """Add rows to those of a place and return where all of them are; None is a new place.

        Raises:
            OSError: the disk is full; the place is as before.
        """

    def add_zeros(self, place: Any, size: int) -> Any:
        """Add so many bytes that are zero, likewise."""

    def rows(self, place: Any, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the rows of a place, of which only what is looked at is read."""


class Column:
    """The rows of one leaf, of any space or none.

    Attributes:
        path: of the leaf.
        data: the rows in memory but for those in ``added``, and room for more; None until a value
            has shown their shape.
        stored: number of the rows before them.
        added: the rows after those in ``data``: numbers, or the bytes of short arrays.
        number_types: of the numbers that may be added.
    """

    def __init__(
        self,
        path: Path,
        space: gym.Space | None = None,
        *,
        store: RowStore | None = None,
    ) -> None:
        self.path = path
        self.shape: tuple[int, ...] | None = None
        self.dtype: np.dtype[Any] | None = None
        self.data: npt.NDArray[Any] | None = None
        self.stored = 0
        self._store = store
        self._place: Any = None
        self._saved: Any = None
        self._kept: list[npt.NDArray[Any]] = []  # rows that no store takes: text
        self._low, self._high = None, None
        # of numbers and short arrays: the rows in data
        self._used = 0
        self.added: list[Any] = []
        # an array, its bytes, and how many of them are a row
        self._bytes: tuple[Any, memoryview, int] = None, memoryview(b""), 0
        if isinstance(space, ARRAY_SPACES):
            shape = tuple(space.shape or ())
            self.shape, self.dtype = shape, np.dtype(space.dtype)
            self._low, self._high = (_tiled(limit, shape) for limit in row_limits(space))
            self.data = np.zeros((_FIRST_CAPACITY, *shape), dtype=self.dtype)
        self._own_dtype = self.dtype
        # what is put: arrays of this dtype, or numbers of these types
        self._put_dtype: np.dtype[Any] | None = None
        self.number_types: tuple[type, ...] = ()
        self._is_short = False
        self._allow_put()

    def _allow_put(self) -> None:
        self._put_dtype, self.number_types = None, ()
        self._is_short = bool(self.shape) and 0 < self.row_bytes < _SHORT
        if self.dtype is not None and self.dtype.kind in "biufc":
            self._put_dtype = self.dtype
            if self.shape == ():
                numpy_s: type[Any] = self.dtype.type
                self.number_types = (numpy_s, _PYTHON_NUMBERS.get(self.dtype, numpy_s))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 0 if self.data is None else math.prod(self.data.shape[1:]) * self.data.itemsize

    @property
    def is_array(self) -> bool:
        """Whether a space says what the rows are."""
        return self._own_dtype is not None

    def put(self, row: int, value: Any) -> bool:
        """Copy a value of the column's dtype and shape; False, and nothing is done, for others.

        The rows before it are there, and none after them.
        """
        if type(value) is np.ndarray:
            dtype = value.dtype
            if value.shape != self.shape or (
                dtype is not self._put_dtype
                and (self._put_dtype is None or dtype != self._put_dtype)
            ):
                return False
            if self._is_short:
                added = self.added
                added.append(value.tobytes())
                if len(added) >= _PART_ROWS:
                    self._join()
                return True
            if self.shape:
                assert self.data is not None
                if row >= len(self.data):
                    return False
                self.data[row] = value
                return True
            value = value[()]
        elif type(value) not in self.number_types and not (
            type(value) is int and self._holds(value)
        ):
            return False
        self.added.append(value)
        if len(self.added) >= PART_NUMBERS:
            self._join()
        return True

    def _holds(self, value: int) -> bool:
        """Whether the rows are whole numbers of 64 bits, and this is one."""
        is_whole = bool(self.number_types) and self.dtype == _INT64
        return is_whole and -_INT64_MAX <= value <= _INT64_MAX

    def set(self, row: int, value: Any) -> None:
        """Convert a value.

        Raises:
            InvalidEpisodeError: it has another shape, or no dtype holds it and those before.
        """
        self._join()
        value = self._converted(row, value)
        self._reserve(row, row + 1)
        assert self.data is not None
        self.data[row] = value
        self._used = row + 1

    def cut(self, rows: int) -> None:
        """Forget all but the first rows."""
        self._join()
        self._used = min(self._used, rows)

    def _join(self) -> None:
        """Bring what was added to the rows, with as little of NumPy as a few rows are worth."""
        added = self.added
        if not added:
            return
        used, rows = self._used, self._used + len(added)
        self._reserve(used, rows)
        _, data, size = self._data_bytes()
        assert self.dtype is not None
        if self.shape:
            joined = b"".join(added)
        elif self.dtype in _CODES:
            joined = array(_CODES[self.dtype], added).tobytes()
        else:
            joined = np.fromiter(added, self.dtype).tobytes()
        data[used * size : rows * size] = joined
        self._used, self.added = rows, []

    def _data_bytes(self) -> tuple[Any, memoryview, int]:
        data = self.data
        if self._bytes[0] is not data:
            assert data is not None
            self._bytes = data, data.reshape(-1).view(np.uint8).data, self.row_bytes
        return self._bytes

    def hold(self, rows: npt.NDArray[Any]) -> None:
        """Take an array for the rows in memory."""
        self.shape, self.dtype, self.data = rows.shape[1:], rows.dtype, rows

    def _reserve(self, used: int, rows: int) -> None:
        assert self.data is not None
        if rows > len(self.data):
            larger = np.zeros((max(rows, 2 * len(self.data)), *self.data.shape[1:]), self.dtype)
            larger[:used] = self.data[:used]
            self.data = larger

    def _converted(self, used: int, value: Any) -> Any:
        """Bring a value to the column's shape and dtype, widening the column if it must."""
        array = as_array(value, self.path)
        if self.data is None:
            self.shape, self.dtype = array.shape, array.dtype
            self.data = np.zeros((_FIRST_CAPACITY, *array.shape), dtype=array.dtype)
        if array.shape != self.shape:
            raise InvalidEpisodeError(
                f"{join_path(self.path)} has shape {array.shape}, expected {self.shape}"
            )
        assert self.dtype is not None
        if array.dtype != self.dtype and not fits_exactly(array, self.dtype):
            self._widen(used, array)
        if array.dtype.kind == "O" and array.ndim == 0:
            return array.item()  # NumPy would store the array itself in an array of objects
        return array.astype(self.dtype)

    def _widen(self, used: int, array: npt.NDArray[Any]) -> None:
        assert self.data is not None
        assert self.dtype is not None
        if "O" in (array.dtype.kind, self.dtype.kind):
            raise InvalidEpisodeError(
                f"{join_path(self.path)} is text on some steps and a number on others"
            )
        wide = np.result_type(array.dtype, self.dtype)
        before = (self.data[:used], array)
        if not all(fits_exactly(part, wide) for part in (*before, *self._stored_parts())):
            raise InvalidEpisodeError(
                f"{join_path(self.path)} is {self.dtype} on some steps and {array.dtype} on "
                "others, and no dtype holds both exactly"
            )
        place = self._place
        if self._store is not None and place is not None:
            place = None
            for part in self._stored_parts():
                place = self._store.add_rows(place, part.astype(wide))
        # at once, or none of it if Ctrl-C comes: each says how to read the others
        self._place, self.data, self.dtype = place, self.data.astype(wide), wide
        # from now on each value is looked at: the space's dtype is not that of the rows
        self._put_dtype, self.number_types = None, ()

    def _stored_parts(self) -> Iterator[npt.NDArray[Any]]:
        if self._place is not None:
            rows, step = self._stored_rows(), self._part_rows()
            for first in range(0, len(rows), step):
                yield rows[first : first + step]

    def _part_rows(self) -> int:
        return max(8, _PART_BYTES // max(1, self.row_bytes) // 8 * 8)

    def _stored_rows(self) -> npt.NDArray[Any]:
        assert self._store is not None
        assert self.shape is not None
        return self._store.rows(self._place, self.dtype, (self.stored, *self.shape))

    def is_inside(self, rows: int) -> bool:
        """Whether the space holds all of the first rows, which were put."""
        self._join()
        assert self.data is not None
        part = self.data[:rows]
        low, high = self._low, self._high
        if type(low) is type(high) is int and 0 < rows <= _FIRST_CAPACITY:
            found = part.tolist()  # of a short episode in a third of the time of two comparisons
            return low <= min(found) and max(found) <= high
        return (low is None or _all(part >= _of_rows(low, rows))) and (
            high is None or _all(part <= _of_rows(high, rows))
        )

    @property
    def is_regular(self) -> bool:
        """Whether the rows have the shape and the dtype that the space says."""
        return self._put_dtype is not None

    def add_bytes(self, rows: int, parts: list[bytes | memoryview]) -> None:
        """Append the bytes of the first rows, up to a multiple of 8."""
        self._join()
        _, data, row_size = self._data_bytes()
        size = rows * row_size
        parts.append(data[:size])
        if size & 7:
            parts.append(bytes(-size & 7))

    def block(self, rows: int) -> npt.NDArray[Any]:
        """Return the first rows in the dtype of the space."""
        self._join()
        assert self.data is not None
        with np.errstate(all="ignore"):  # of rows that were set
            return self.data[:rows].astype(self._own_dtype, copy=False)

    def save(self, rows: int) -> None:
        """Write the first rows to the store, where they count once they are dropped here.

        Raises:
            OSError: the disk is full; nothing has changed.
        """
        self._join()
        if self.data is not None and self._store is not None and self.data.dtype.kind != "O":
            place = self._place
            if place is None and self.stored:  # of a key that was missing so far
                place = self._store.add_zeros(None, self.stored * self.row_bytes)
            self._saved = self._store.add_rows(place, self.data[:rows])

    def drop(self, rows: int, used: int) -> None:
        """Forget the first rows, which are saved; the others that are used become the first."""
        self._join()
        if self.data is not None:
            if self._store is None or self.data.dtype.kind == "O":
                self._kept.append(self.data[:rows].copy())
            self._place = self._saved
            self.data[: used - rows] = self.data[rows:used].copy()
        self._used = used - rows
        self.stored += rows

    def clear(self) -> None:
        """Begin with another episode, and with the dtype of the space."""
        if self.stored:
            self.stored, self._place, self._saved, self._kept = 0, None, None, []
        if self.data is not None and self.dtype is not self._own_dtype is not None:
            self.data, self.dtype = np.zeros(self.data.shape, self._own_dtype), self._own_dtype
            self._allow_put()
        self._used, self.added = 0, []

    def stacked(self, rows: int) -> npt.NDArray[Any]:
        """Return all rows, of which so many are in memory, as an array that stays as it is.

        If the store has some of them, it has all of them then, unless the disk is full.
        """
        self._join()
        assert self.data is not None
        if not self.stored:
            return self.data[:rows].copy()
        if self._store is None or self.data.dtype.kind == "O":
            missing = self.stored - sum(map(len, self._kept))  # before the first value
            before = np.full((missing, *self.data.shape[1:]), "", self.dtype)
            return np.concatenate([before, *self._kept, self.data[:rows]])
        try:
            self.save(rows)
        except OSError:
            before = np.zeros((self.stored, *self.data.shape[1:]), self.dtype)
            for number, part in enumerate(self._stored_parts()):
                before[number * self._part_rows() :][: len(part)] = part
            return np.concatenate([before, self.data[:rows]])
        self.drop(rows, rows)
        return self._stored_rows()


def _tiled(limit: npt.NDArray[Any] | None, shape: tuple[int, ...]) -> Any:
    """Return the limit of a row as that of many, which compares in a third of the time."""
    if limit is None or not limit.ndim:  # the same for all of a row
        return limit if limit is None or shape else limit.item()
    row = np.broadcast_to(limit, shape)
    count = _FIRST_CAPACITY if row.nbytes * _FIRST_CAPACITY <= _TILED_BYTES else 1
    return np.ascontiguousarray(np.broadcast_to(row, (count, *shape)))


def _of_rows(limit: Any, rows: int) -> Any:
    if type(limit) is not np.ndarray or not limit.ndim:
        return limit
    return limit[:rows] if rows <= len(limit) else limit[0]


def _all(flags: npt.NDArray[np.bool_]) -> bool:
    return b"\0" not in flags.tobytes()  # of a short array in a third of the time of all()
