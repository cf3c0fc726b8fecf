"""Read episodes directly from the bytes of Arrow IPC files that match one already read in full.

pyarrow reads the first file of a structure and checks all of it. The bytes around the values mean
the same in every file that has them, see :mod:`minari_pipe.storage.arrow.layout`; of such a file
only the values are read, which may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minari_pipe.core.tree import Path
from minari_pipe.storage.arrow.layout import FileLayout, Frame, schema_message
from minari_pipe.storage.columns import Columns

#: most structures whose layouts are cached, and most episode lengths for each
_MAX_LAYOUTS, _MAX_LENGTHS = 64, 1024


@dataclass(frozen=True)
class _Leaf:
    """How to make an array from a buffer.

    Attributes:
        buffer: index of the buffer in the layout.
        dtype: dtype of the array.
        shape: shape of one row.
        padding: rows at the end that do not count.
    """

    buffer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    padding: int


@dataclass(frozen=True)
class _Recipe:
    """How to make the columns from a file with a given number of rows.

    Attributes:
        frame: the bytes around the values.
        numbers: leaf, shape, dtype and offset of each array that is a view of the file.
        flags: adjacent buffers of bits, which are unpacked at once: offset and length of all, and
            leaf, begin, end and shape of each array.
    """

    frame: Frame
    numbers: list[tuple[int, tuple[int, ...], np.dtype[Any], int]]
    flags: list[tuple[int, int, list[tuple[int, int, int, tuple[int, ...]]]]]

    def arrays(self, data: bytearray) -> list[Any]:
        arrays: list[Any] = [None] * (len(self.numbers) + sum(len(f[2]) for f in self.flags))
        for leaf, shape, dtype, place in self.numbers:
            arrays[leaf] = np.ndarray(shape, dtype, data, place)
        for place, length, parts in self.flags:
            packed = np.ndarray((length,), np.uint8, data, place)
            bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
            for leaf, begin, end, shape in parts:
                part = bits[begin:end]
                arrays[leaf] = part if len(shape) == 1 else part.reshape(shape)
        return arrays


@dataclass(frozen=True)
class _Plan:
    """How to make the columns of an episode from a file; ``tree`` has leaf numbers as leaves."""

    layout: FileLayout
    leaves: tuple[_Leaf, ...]
    tree: Columns
    _recipes: dict[int, _Recipe] = field(default_factory=dict)

    def columns(self, data: bytearray) -> Columns | None:
        rows = self.layout.rows(data)
        if rows is None:
            return None
        recipe = self._recipes.get(rows)
        frame = self.layout.frame(rows) if recipe is None else recipe.frame
        if not frame.encloses(data):
            return None
        if recipe is None:
            if len(self._recipes) >= _MAX_LENGTHS:
                self._recipes.clear()
            recipe = self._recipes[rows] = self._recipe(rows, frame)
        return _filled(self.tree, recipe.arrays(data))

    def _recipe(self, rows: int, frame: Frame) -> _Recipe:
        recipe = _Recipe(frame, [], [])
        after = -1
        for number, leaf in sorted(enumerate(self.leaves), key=lambda pair: pair[1].buffer):
            place = frame.places[leaf.buffer]
            shape = (rows - leaf.padding, *leaf.shape)
            if leaf.dtype != np.bool_:
                recipe.numbers.append((number, shape, leaf.dtype, place))
                continue
            # the bits of the previous buffer may end where these begin
            begin, _, parts = recipe.flags.pop() if leaf.buffer == after else (place, 0, [])
            bit = 8 * (place - begin)
            parts.append((number, bit, bit + math.prod(shape), shape))
            recipe.flags.append((begin, frame.ends[leaf.buffer] - begin, parts))
            after = leaf.buffer + 1
        return recipe


class KnownFiles:
    """Reads files that match one that it has learned.

    Example:
        >>> KnownFiles().columns(bytearray(b"any other")) is None
        True
    """

    def __init__(self) -> None:
        self._plans: dict[bytes, _Plan] = {}
        self._last: _Plan | None = None

    def __bool__(self) -> bool:
        """Return whether it has learned any file."""
        return bool(self._plans)

    def __reduce__(self) -> Any:
        """Pickle as a new instance, which learns files again."""
        return KnownFiles, ()

    def learn(self, data: bytes | bytearray, schema: Any, columns: Columns) -> None:
        """Record how the columns of an episode follow from the bytes of a file, if they do.

        Args:
            data: the file.
            schema: the schema that pyarrow read, after finding the file valid.
            columns: the columns made from the file.
        """
        key = schema_message(data)
        layout = FileLayout.of(data, schema)
        rows = None if layout is None else layout.rows(data)
        if key is None or layout is None or rows is None:
            return
        numbers = {buffer.path: number for number, buffer in enumerate(layout.buffers)}
        found: list[_Leaf | None] = []

        def number(column: Any, path: Path) -> Any:
            if isinstance(column, Mapping):
                return {key: number(part, (*path, key)) for key, part in column.items()}
            if isinstance(column, tuple):
                return tuple(number(part, (*path, i)) for i, part in enumerate(column))
            names = tuple(map(str, path[1:] if path[0] == "extras" else path))
            found.append(_leaf(layout, numbers.get(names), column, rows))
            return len(found) - 1

        tree = {name: number(column, (name,)) for name, column in columns.items()}
        leaves = tuple(leaf for leaf in found if leaf is not None)
        if len(leaves) == len(found):
            if len(self._plans) >= _MAX_LAYOUTS:
                self._plans.clear()
            self._last = self._plans[key] = _Plan(layout, leaves, tree)

    def columns(self, data: bytearray) -> Columns | None:
        """Return the columns of an episode as arrays in the memory of a file, or None if unknown.

        Args:
            data: the file.
        """
        columns = None if self._last is None else self._last.columns(data)
        if columns is None and (key := schema_message(data)) in self._plans:
            self._last = self._plans[key]
            columns = self._last.columns(data)
        return columns


def _leaf(layout: FileLayout, number: int | None, array: Any, rows: int) -> _Leaf | None:
    """Return how an array follows from a buffer, or None if that depends on the values."""
    if number is None or not isinstance(array, np.ndarray):
        return None
    buffer, dtype, shape = layout.buffers[number], array.dtype, array.shape[1:]
    padding = rows - len(array)
    size = int(np.prod(shape, dtype=np.int64))
    is_same = dtype == buffer.dtype and size == buffer.size
    # complex and long numbers are stored as their bytes
    is_bytes = (
        buffer.dtype == np.uint8
        and (dtype.kind == "c" or (dtype.kind in "biuf" and dtype.itemsize > 8))
        and size * dtype.itemsize == buffer.size
    )
    is_aligned = layout.frame(rows).places[number] % min(dtype.alignment, 8) == 0
    if not (is_same or is_bytes) or padding not in (0, 1) or not is_aligned:
        return None
    return _Leaf(number, dtype, shape, padding)


def _filled(tree: Any, arrays: list[Any]) -> Any:
    """Return a tree with arrays in place of leaf numbers; dicts and tuples are new objects."""
    if isinstance(tree, dict):
        return {
            key: arrays[part] if type(part) is int else _filled(part, arrays)
            for key, part in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple([_filled(part, arrays) for part in tree])
    return arrays[tree]
