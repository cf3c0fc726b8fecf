"""Define segments: consecutive episodes of one structure, with concatenated columns.

Calls into libraries and the kernel cost the same for one short episode as for a thousand, so
storages receive many episodes at a time, as a :class:`Segment`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from minari_pipe.core.tree import Path
from minari_pipe.storage.columns import Columns

Ints = npt.NDArray[np.int64]

#: a segment fits into the CPU cache, so that processing it does not wait for main memory
SEGMENT_BYTES = 2**23


@dataclass(frozen=True)
class Leaf:
    """Describes the rows of one leaf, which are alike in every episode of a segment.

    Attributes:
        path: ``("observations",)``, ``("infos", "goal", "x")``, ``("extras", "state", "qpos")``;
            entries of tuples are integers.
        dtype: dtype of the values: numbers or bools, in any byte order.
        shape: shape of one row.
        more: rows beyond the number of steps: 1 for observations and infos, 0 for actions,
            rewards and flags, either for extras.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    more: int

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class AttributeTable:
    """The attributes of ``N`` episodes: columns for the numbers that all of them have.

    Example:
        >>> table = AttributeTable({"id": np.array([0, 1])}, [{}, {"weather": "rain"}])
        >>> len(table), table[1]
        (2, {'id': 1, 'weather': 'rain'})

    Attributes:
        numbers: arrays of shape ``(N,)`` and dtype int64, uint64, float64 or bool; the values are
            returned as Python numbers.
        others: the other attributes of each episode, nested; None if no episode has any.
    """

    numbers: dict[str, npt.NDArray[Any]]
    others: Sequence[Mapping[str, Any]] | None = None

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(next(iter(self.numbers.values()))) if self.numbers else len(self.others or ())

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return the attributes of one episode, as a format's ``episode_metadata`` does."""
        own = {name: values[place].item() for name, values in self.numbers.items()}
        return own if self.others is None else {**own, **self.others[place]}


@dataclass(frozen=True)
class ScatteredRows:
    """The rows of several episodes as separate arrays: copying long ones costs as much as writing.

    Example:
        >>> leaf = Leaf(("rewards",), np.dtype(float), (), 0)
        >>> table = AttributeTable({"id": np.array([5, 6])})
        >>> rows = ScatteredRows([np.array([0.5]), np.array([1.5, 2.5])])
        >>> segment = Segment(5, np.array([1, 2]), (leaf,), (rows,), table)
        >>> segment.parts("rewards")
        [array([0.5]), array([1.5, 2.5])]
        >>> [one.attributes[0] for one in segment.each()]
        [{'id': 5}, {'id': 6}]

    Attributes:
        rows: one C-contiguous array per episode, all of one dtype and row shape.
    """

    rows: Sequence[npt.NDArray[Any]]


#: the rows of all episodes of a segment
Rows = npt.NDArray[Any] | ScatteredRows


@dataclass(frozen=True)
class Segment:
    """Consecutive episodes whose columns have the same leaves, dtypes and row shapes.

    Every episode has at least one leaf in each of observations and actions, and no empty dict or
    tuple in its columns, except infos without any leaf; all leaves are arrays of numbers.

    Example:
        >>> leaf = Leaf(("observations",), np.dtype(float), (), 1)
        >>> segment = Segment(5, np.array([1, 2]), (leaf,), (np.arange(5.0),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> len(segment), segment.columns(1)
        (2, {'observations': array([2., 3., 4.])})

    Attributes:
        first: number of the first episode.
        steps: ``T`` of each episode, shape ``(N,)``.
        leaves: the leaves, in the order of the columns.
        arrays: for each leaf the rows of all episodes, C-contiguous, shape ``(rows, *shape)``, or
            scattered; see :meth:`each`.
        attributes: the attributes of each episode, including ``id`` and ``total_steps``.
    """

    first: int
    steps: Ints
    leaves: tuple[Leaf, ...]
    arrays: tuple[Rows, ...]
    attributes: AttributeTable
    _bounds: dict[int, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.steps)

    def bounds(self, more: int) -> list[int]:
        """Return the row at which each episode begins and the last one ends, ``N + 1`` numbers.

        Args:
            more: rows beyond the number of steps, as in :class:`Leaf`.
        """
        if more not in self._bounds:
            ends = np.cumsum(self.steps + more)
            self._bounds[more] = [0, *ends.tolist()]
        return self._bounds[more]

    def numbered(self, first: int) -> Segment:
        """Return the same episodes, numbered from ``first`` on."""
        numbers = {**self.attributes.numbers, "id": np.arange(first, first + len(self))}
        return replace(
            self, first=first, attributes=AttributeTable(numbers, self.attributes.others)
        )

    def ordered(self, leaves: tuple[Leaf, ...]) -> Segment:
        """Return the same episodes with the same leaves in another order."""
        if leaves == self.leaves:
            return self
        arrays = dict(zip(self.leaves, self.arrays, strict=True))
        return replace(self, leaves=leaves, arrays=tuple(arrays[leaf] for leaf in leaves))

    def columns(self, place: int) -> Columns:
        """Return the columns of one episode as views; ``infos`` is present only if it has a leaf.

        Args:
            place: index of the episode in the segment.
        """
        return self._tree(
            (leaf, self._rows(which, place)) for which, leaf in enumerate(self.leaves)
        )

    def parts(self, name: str) -> list[Any]:
        """Return a column as one part for all episodes, or one per episode if scattered."""
        chosen = [pair for pair in enumerate(self.leaves) if pair[1].path[0] == name]
        if not any(isinstance(array, ScatteredRows) for array in self.arrays):
            return [self._tree((leaf, self.arrays[which]) for which, leaf in chosen)[name]]
        return [
            self._tree((leaf, self._rows(which, place)) for which, leaf in chosen)[name]
            for place in range(len(self))
        ]

    def pairs(self) -> list[tuple[Leaf, npt.NDArray[Any]]]:
        """Return the leaves with their rows, which must not be scattered; see :meth:`each`."""
        arrays = cast("tuple[npt.NDArray[Any], ...]", self.arrays)
        return list(zip(self.leaves, arrays, strict=True))

    def _rows(self, which: int, place: int) -> npt.NDArray[Any]:
        array = self.arrays[which]
        if isinstance(array, ScatteredRows):
            return array.rows[place]
        bounds = self.bounds(self.leaves[which].more)
        return array[bounds[place] : bounds[place + 1]]

    def each(self) -> Iterator[Segment]:
        """Yield segments of these episodes without scattered rows: this one, or one per episode."""
        if not any(isinstance(array, ScatteredRows) for array in self.arrays):
            yield self
            return
        numbers, others = self.attributes.numbers, self.attributes.others
        for place in range(len(self)):
            one = slice(place, place + 1)
            table = AttributeTable(
                {name: values[one] for name, values in numbers.items()}, others and others[one]
            )
            rows = tuple(self._rows(which, place) for which in range(len(self.leaves)))
            yield Segment(self.first + place, self.steps[one], self.leaves, rows, table)

    def _tree(self, pairs: Iterable[tuple[Leaf, Any]]) -> Columns:
        tree: dict[Any, Any] = {}
        for leaf, rows in pairs:
            branch = tree
            for key in leaf.path[:-1]:
                branch = branch.setdefault(key, {})
            branch[leaf.path[-1]] = rows
        return {key: _with_tuples(part) for key, part in tree.items()}


def _with_tuples(tree: Any) -> Any:
    """Convert dicts with integer keys to tuples."""
    if not isinstance(tree, dict):
        return tree
    parts = {key: _with_tuples(part) for key, part in tree.items()}
    return tuple(parts.values()) if 0 in parts else parts
