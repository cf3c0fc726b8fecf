"""Episodes straight from the bytes of Arrow IPC files that are like one that was read in full.

pyarrow reads the first file of a structure and checks all of it. What the bytes around its values
say holds for every file that has the same bytes there, see :mod:`minari_pipe.storage.arrow.layout`;
of that file only the values are looked at, which may be anything.
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

#: structures whose layouts are kept, and the lengths of episodes of each
_MAX_LAYOUTS, _MAX_LENGTHS = 64, 1024


@dataclass(frozen=True)
class _Leaf:
    """What is made of a buffer.

    Attributes:
        buffer: its number in the layout.
        dtype: of the array.
        shape: of one row.
        padding: rows at the end that do not count.
    """

    buffer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    padding: int


@dataclass(frozen=True)
class _Recipe:
    """How the columns are made of a file of so many rows.

    Attributes:
        frame: the bytes around the values.
        numbers: of each array that is a view of the file: its leaf, shape, dtype and place.
        flags: buffers of bits that follow one another, which are unpacked at once: place and
            length of all, and of each array its leaf, begin, end and shape.
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
    """How the columns of an episode are made of a file; the leaves of its tree are numbers."""

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
            # the bits of a buffer before this one end where these begin
            begin, _, parts = recipe.flags.pop() if leaf.buffer == after else (place, 0, [])
            bit = 8 * (place - begin)
            parts.append((number, bit, bit + math.prod(shape), shape))
            recipe.flags.append((begin, frame.ends[leaf.buffer] - begin, parts))
            after = leaf.buffer + 1
        return recipe


class KnownFiles:
    """Reads files that are like one it has seen.

    Example:
        >>> KnownFiles().columns(bytearray(b"any other")) is None
        True
    """

    def __init__(self) -> None:
        self._plans: dict[bytes, _Plan] = {}
        self._last: _Plan | None = None

    def __bool__(self) -> bool:
        """Whether there is any file that it could read."""
        return bool(self._plans)

    def __reduce__(self) -> Any:
        """What is known is learned again where it is needed."""
        return KnownFiles, ()

    def learn(self, data: bytes | bytearray, schema: Any, columns: Columns) -> None:
        """Remember how the columns of an episode follow from the bytes of a file, if they do.

        Args:
            data: the file.
            schema: as pyarrow, which has found the file whole, read it.
            columns: what was made of it.
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
        """Return the columns of an episode as arrays in the memory of a file, None if not known.

        Args:
            data: the file.
        """
        columns = None if self._last is None else self._last.columns(data)
        if columns is None and (key := schema_message(data)) in self._plans:
            self._last = self._plans[key]
            columns = self._last.columns(data)
        return columns


def _leaf(layout: FileLayout, number: int | None, array: Any, rows: int) -> _Leaf | None:
    """Return how an array follows from a buffer, None if that depends on its values."""
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
    """Put arrays in place of the numbers of leaves; dicts and tuples are new ones."""
    if isinstance(tree, dict):
        return {
            key: arrays[part] if type(part) is int else _filled(part, arrays)
            for key, part in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple([_filled(part, arrays) for part in tree])
    return arrays[tree]
