"""Store the rows of an episode that is being recorded: one column for each leaf of its values.

Nearly every value has the dtype and shape of its column and is *put*: copied into an array of rows.
For short arrays and numbers, that is four times slower than appending their bytes or the number to
a list, so those are joined into rows later. Any other value is *set*: converted, and the column is
widened if necessary. The caller numbers the rows and cuts those of a rejected step.

Rows of a long episode that do not fit into memory go to a :class:`RowStore`. Row numbers then count
the rows in memory only; ``stored`` counts the rows before them.
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

#: up to this size, limits are repeated for many rows, to check short episodes in one comparison
_TILED_BYTES = 1 << 14

#: shorter arrays are appended as bytes, and become rows in parts of this many
_SHORT, _PART_ROWS = 1 << 12, 256

#: numbers become rows in parts of this many: in a list each takes 40 bytes
PART_NUMBERS = 1 << 12

#: stored rows are converted in parts of about this size
_PART_BYTES = 1 << 20

#: Python types, other than int, whose values a column of this dtype holds like its own scalars
_PYTHON_NUMBERS: dict[Any, type[Any]] = {np.dtype(np.float64): float, np.dtype(np.bool_): bool}

#: codes of Python arrays, which need no NumPy; with float32 they would change some NaN values
_CODES = {np.dtype(np.float64): "d", np.dtype(np.int64): "q"}

_INT64, _INT64_MAX = np.dtype(np.int64), (1 << 63) - 1


class RowStore(Protocol):
    """Storage for the rows of long episodes, such as the journal."""

    def add_rows(self, place: Any, rows: npt.NDArray[Any]) -> Any:
        """Append rows to a place and return the place of all of them; None is a new place.

        Raises:
            OSError: the disk is full; the place is unchanged.
        """

    def add_zeros(self, place: Any, size: int) -> Any:
        """Append this many zero bytes to a place; see :meth:`add_rows`."""

    def rows(self, place: Any, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the rows of a place; only the rows that are accessed are read."""


class Column:
    """The rows of one leaf, with or without a space.

    Attributes:
        path: path of the leaf.
        data: the rows in memory, except those in ``added``, and spare room; None until the first
            value shows the shape.
        stored: number of the rows before them, which are in the store.
        added: the rows after those in ``data``: numbers, or the bytes of short arrays.
        number_types: types of the numbers that can be added.
    """

    def __init__(
        self,
        path: Path,
        space: gym.Space[Any] | None = None,
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
        self._kept: list[npt.NDArray[Any]] = []  # text, which no store takes
        self._low, self._high = None, None
        # number of rows in data, for columns of numbers and of short arrays
        self._used = 0
        self.added: list[Any] = []
        # cached view of data: the array, its bytes, and the bytes per row
        self._bytes: tuple[Any, memoryview, int] = None, memoryview(b""), 0
        if isinstance(space, ARRAY_SPACES):
            shape = tuple(space.shape or ())
            self.shape, self.dtype = shape, np.dtype(space.dtype)
            self._low, self._high = (_tiled(limit, shape) for limit in row_limits(space))
            self.data = np.zeros((_FIRST_CAPACITY, *shape), dtype=self.dtype)
        self._own_dtype = self.dtype
        # put() accepts arrays of this dtype, or numbers of these types
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
        """Whether a space defines the shape and dtype of the rows."""
        return self._own_dtype is not None

    def put(self, row: int, value: Any) -> bool:
        """Copy a value of the column's dtype and shape; return False and do nothing for others.

        All rows before this one exist, and none after.
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
        """Return whether the rows are int64 and can hold this value."""
        is_whole = bool(self.number_types) and self.dtype == _INT64
        return is_whole and -_INT64_MAX <= value <= _INT64_MAX

    def set(self, row: int, value: Any) -> None:
        """Convert a value and store it as a row.

        Raises:
            InvalidEpisodeError: it has another shape, or no dtype holds it and the values before.
        """
        self._join()
        value = self._converted(row, value)
        self._reserve(row, row + 1)
        assert self.data is not None
        self.data[row] = value
        self._used = row + 1

    def cut(self, rows: int) -> None:
        """Keep only the first rows."""
        self._join()
        self._used = min(self._used, rows)

    def _join(self) -> None:
        """Move added values into the rows, with few NumPy calls, which are slow for few rows."""
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
        """Use an array as the rows in memory."""
        self.shape, self.dtype, self.data = rows.shape[1:], rows.dtype, rows

    def _reserve(self, used: int, rows: int) -> None:
        assert self.data is not None
        if rows > len(self.data):
            larger = np.zeros((max(rows, 2 * len(self.data)), *self.data.shape[1:]), self.dtype)
            larger[:used] = self.data[:used]
            self.data = larger

    def _converted(self, used: int, value: Any) -> Any:
        """Convert a value to the column's shape and dtype, widening the column if necessary."""
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
        # assign together, all or none if Ctrl-C comes: each is needed to read the others
        self._place, self.data, self.dtype = place, self.data.astype(wide), wide
        # from now on every value is converted: the rows no longer have the space's dtype
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
        """Return whether the first rows, which were all put, are within the space's limits."""
        self._join()
        assert self.data is not None
        part = self.data[:rows]
        low, high = self._low, self._high
        if type(low) is type(high) is int and 0 < rows <= _FIRST_CAPACITY:
            found = part.tolist()  # three times faster than two comparisons on short episodes
            return low <= min(found) and max(found) <= high
        return (low is None or _all(part >= _of_rows(low, rows))) and (
            high is None or _all(part <= _of_rows(high, rows))
        )

    @property
    def is_regular(self) -> bool:
        """Whether the rows have the shape and dtype of the space."""
        return self._put_dtype is not None

    def add_bytes(self, rows: int, parts: list[bytes | memoryview]) -> None:
        """Append the bytes of the first rows to ``parts``, padded to a multiple of 8."""
        self._join()
        _, data, row_size = self._data_bytes()
        size = rows * row_size
        parts.append(data[:size])
        if size & 7:
            parts.append(bytes(-size & 7))

    def block(self, rows: int) -> npt.NDArray[Any]:
        """Return the first rows, in the dtype of the space."""
        self._join()
        assert self.data is not None
        with np.errstate(all="ignore"):  # rows of a widened column may not fit
            return self.data[:rows].astype(self._own_dtype, copy=False)

    def save(self, rows: int) -> None:
        """Write the first rows to the store; they count there after :meth:`drop`.

        Raises:
            OSError: the disk is full; nothing has changed.
        """
        self._join()
        if self.data is not None and self._store is not None and self.data.dtype.kind != "O":
            place = self._place
            if place is None and self.stored:  # the key was missing until now
                place = self._store.add_zeros(None, self.stored * self.row_bytes)
            self._saved = self._store.add_rows(place, self.data[:rows])

    def drop(self, rows: int, used: int) -> None:
        """Remove the first rows, which are saved, and move the other used rows to the front."""
        self._join()
        if self.data is not None:
            if self._store is None or self.data.dtype.kind == "O":
                self._kept.append(self.data[:rows].copy())
            self._place = self._saved
            self.data[: used - rows] = self.data[rows:used].copy()
        self._used = used - rows
        self.stored += rows

    def clear(self) -> None:
        """Begin another episode, in the dtype of the space."""
        if self.stored:
            self.stored, self._place, self._saved, self._kept = 0, None, None, []
        if self.data is not None and self.dtype is not self._own_dtype is not None:
            self.data, self.dtype = np.zeros(self.data.shape, self._own_dtype), self._own_dtype
            self._allow_put()
        self._used, self.added = 0, []

    def stacked(self, rows: int) -> npt.NDArray[Any]:
        """Return all rows, the last ``rows`` of them from memory, as an array that stays valid.

        If some rows are in the store, the rest are saved there too, unless the disk is full.
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
    """Return the limit of one row repeated for many rows, which compares three times faster."""
    if limit is None or not limit.ndim:  # one limit for the whole row
        return limit if limit is None or shape else limit.item()
    row = np.broadcast_to(limit, shape)
    count = _FIRST_CAPACITY if row.nbytes * _FIRST_CAPACITY <= _TILED_BYTES else 1
    return np.ascontiguousarray(np.broadcast_to(row, (count, *shape)))


def _of_rows(limit: Any, rows: int) -> Any:
    if type(limit) is not np.ndarray or not limit.ndim:
        return limit
    return limit[:rows] if rows <= len(limit) else limit[0]


def _all(flags: npt.NDArray[np.bool_]) -> bool:
    return b"\0" not in flags.tobytes()  # three times faster than all() on a short array
