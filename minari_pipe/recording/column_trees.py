"""Store the values of a space in columns: one per leaf, in the dicts and tuples of the space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from minari_pipe.core.tree import Path, join_path
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.row_columns import Column, RowStore

#: A tuple of types: creating a union each time takes longer than the check.
_SEQUENCES = (tuple, list)


class TextColumn:
    """The rows of a Text leaf, which stay in memory."""

    row_bytes = 0
    is_array = False
    is_regular = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: list[str] = []
        self._data: list[str] = []

    def put(self, row: int, value: Any) -> bool:
        return False

    def is_inside(self, rows: int) -> bool:
        return False

    def block(self, rows: int) -> list[str]:
        return self._data[:rows]

    def add_bytes(self, rows: int, parts: list[bytes | memoryview]) -> None:
        raise AssertionError("text is never regular, and only regular columns have these bytes")

    def cut(self, rows: int) -> None:
        del self._data[rows:]

    def set(self, row: int, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidEpisodeError(
                f"{join_path(self.path)} must be a string, got {type(value).__name__}"
            )
        self._data[row:] = [str(value)]

    def save(self, rows: int) -> None:
        pass

    def drop(self, rows: int, used: int) -> None:
        self._kept += self._data[:rows]
        del self._data[:rows]

    def clear(self) -> None:
        self._kept, self._data = [], []

    def stacked(self, rows: int) -> list[str]:
        return self._kept + self._data[:rows]


class _Composite:
    """The common part of the nodes of Dict and Tuple spaces; ``_all`` holds their children."""

    def __init__(self, path: Path, parts: list[Node]) -> None:
        self.path = path
        self._all = parts
        self.row_bytes: int = sum(part.row_bytes for part in parts)
        self.is_array: bool = all(part.is_array for part in parts)

    def is_inside(self, rows: int) -> bool:
        return all(part.is_inside(rows) for part in self._all)

    @property
    def is_regular(self) -> bool:
        return all(part.is_regular for part in self._all)

    def add_bytes(self, rows: int, parts: list[bytes | memoryview]) -> None:
        for part in self._all:
            part.add_bytes(rows, parts)

    def cut(self, rows: int) -> None:
        for part in self._all:
            part.cut(rows)

    def save(self, rows: int) -> None:
        for part in self._all:
            part.save(rows)

    def drop(self, rows: int, used: int) -> None:
        for part in self._all:
            part.drop(rows, used)

    def clear(self) -> None:
        for part in self._all:
            part.clear()


class DictNode(_Composite):
    """The columns of a Dict space."""

    def __init__(self, path: Path, parts: dict[str, Node]) -> None:
        super().__init__(path, list(parts.values()))
        self.parts = parts

    def put(self, row: int, value: Any) -> bool:
        if not isinstance(value, Mapping) or value.keys() != self.parts.keys():
            return False
        return all(part.put(row, value[key]) for key, part in self.parts.items())

    def set(self, row: int, value: Any) -> None:
        if not isinstance(value, Mapping) or value.keys() != self.parts.keys():
            found = list(value) if isinstance(value, Mapping) else type(value).__name__
            raise InvalidEpisodeError(
                f"{join_path(self.path)} must have the keys {list(self.parts)}, got {found}"
            )
        for key, part in self.parts.items():
            part.set(row, value[key])

    def block(self, rows: int) -> dict[str, Any]:
        return {key: part.block(rows) for key, part in self.parts.items()}

    def stacked(self, rows: int) -> dict[str, Any]:
        return {key: part.stacked(rows) for key, part in self.parts.items()}


class TupleNode(_Composite):
    """The columns of a Tuple space."""

    def put(self, row: int, value: Any) -> bool:
        if not isinstance(value, _SEQUENCES) or len(value) != len(self._all):
            return False
        return all(part.put(row, entry) for part, entry in zip(self._all, value, strict=True))

    def set(self, row: int, value: Any) -> None:
        if not isinstance(value, _SEQUENCES) or len(value) != len(self._all):
            found = len(value) if isinstance(value, _SEQUENCES) else type(value).__name__
            raise InvalidEpisodeError(
                f"{join_path(self.path)} must be a tuple of {len(self._all)}, got {found}"
            )
        for part, entry in zip(self._all, value, strict=True):
            part.set(row, entry)

    def block(self, rows: int) -> tuple[Any, ...]:
        return tuple(part.block(rows) for part in self._all)

    def stacked(self, rows: int) -> tuple[Any, ...]:
        return tuple(part.stacked(rows) for part in self._all)


Node = Column | TextColumn | DictNode | TupleNode


def node(
    space: gym.Space[Any],
    path: Path,
    *,
    store: RowStore | None = None,
) -> Node:
    """Return the columns for the values of a space.

    Args:
        space: the space; for one of another package, the first value determines the column.
        path: path of the values.
        store: storage for the rows that memory has no room for.

    Example:
        >>> column = node(spaces.Discrete(3), ("actions",))
        >>> column.put(0, 2), column.put(1, 0.5)
        (True, False)
        >>> column.set(1, 0.5)
        >>> column.stacked(2)
        array([2. , 0.5])
    """
    if isinstance(space, spaces.Dict):
        parts = {key: node(part, (*path, key), store=store) for key, part in space.spaces.items()}
        return DictNode(path, parts)
    if isinstance(space, spaces.Tuple):
        entries = enumerate(space.spaces)
        return TupleNode(path, [node(part, (*path, index), store=store) for index, part in entries])
    if isinstance(space, spaces.Text):
        return TextColumn(path)
    return Column(path, space, store=store)
