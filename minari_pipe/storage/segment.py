"""Consecutive episodes of one structure, their columns one after another: what is written at once.

Calls into libraries and the kernel cost the same for one short episode as for a thousand, so
storages are handed many episodes at a time, as a :class:`Segment`.
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

#: a segment fits into the processor's cache, so that what is done with it costs no memory's time
SEGMENT_BYTES = 2**23


@dataclass(frozen=True)
class Leaf:
    """What the rows of one leaf are, in every episode of a segment.

    Attributes:
        path: ``("observations",)``, ``("infos", "goal", "x")``, ``("extras", "state", "qpos")``;
            entries of tuples are numbers.
        dtype: of the values: numbers or bools, in any byte order.
        shape: of one row.
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
    """The attributes of ``N`` episodes: those that all of them have as numbers in columns.

    Example:
        >>> table = AttributeTable({"id": np.array([0, 1])}, [{}, {"weather": "rain"}])
        >>> len(table), table[1]
        (2, {'id': 1, 'weather': 'rain'})

    Attributes:
        numbers: shape ``(N,)`` each, of the dtypes int64, uint64, float64 or bool, which come back
            as Python's numbers.
        others: what else each episode has, nested; None if none has anything.
    """

    numbers: dict[str, npt.NDArray[Any]]
    others: Sequence[Mapping[str, Any]] | None = None

    def __len__(self) -> int:
        """Number of episodes."""
        return len(next(iter(self.numbers.values()))) if self.numbers else len(self.others or ())

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return the attributes of one episode, as a format's ``episode_metadata`` does."""
        own = {name: values[place].item() for name, values in self.numbers.items()}
        return own if self.others is None else {**own, **self.others[place]}


@dataclass(frozen=True)
class ScatteredRows:
    """The rows of several episodes where they lie: to copy long ones takes as long as to write.

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
        rows: of each episode, C-contiguous, of one dtype and shape of rows.
    """

    rows: Sequence[npt.NDArray[Any]]


Rows = npt.NDArray[Any] | ScatteredRows
"""The rows of all episodes of a segment."""


@dataclass(frozen=True)
class Segment:
    """Consecutive episodes whose columns have the same leaves, dtypes and shapes of rows.

    Every episode has at least one leaf in each of observations and actions, and no empty dict or
    tuple among its columns but for infos without any leaf; all leaves are arrays of numbers.

    Example:
        >>> leaf = Leaf(("observations",), np.dtype(float), (), 1)
        >>> segment = Segment(5, np.array([1, 2]), (leaf,), (np.arange(5.0),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> len(segment), segment.columns(1)
        (2, {'observations': array([2., 3., 4.])})

    Attributes:
        first: number of the first episode.
        steps: ``T`` of each episode, shape ``(N,)``.
        leaves: the leaves, in the order in which the columns have them.
        arrays: for each leaf the rows of all episodes, C-contiguous, shape ``(rows, *shape)``, or
            apart; see :meth:`each`.
        attributes: of each episode, among them ``id`` and ``total_steps``.
    """

    first: int
    steps: Ints
    leaves: tuple[Leaf, ...]
    arrays: tuple[Rows, ...]
    attributes: AttributeTable
    _bounds: dict[int, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.steps)

    def bounds(self, more: int) -> list[int]:
        """Return where the rows of each episode begin and the last ones end, ``N + 1`` numbers.

        Args:
            more: of the leaf.
        """
        if more not in self._bounds:
            ends = np.cumsum(self.steps + more)
            self._bounds[more] = [0, *ends.tolist()]
        return self._bounds[more]

    def numbered(self, first: int) -> Segment:
        """Return the same episodes with numbers from ``first`` on."""
        numbers = {**self.attributes.numbers, "id": np.arange(first, first + len(self))}
        return replace(
            self, first=first, attributes=AttributeTable(numbers, self.attributes.others)
        )

    def columns(self, place: int) -> Columns:
        """Return the columns of one episode, as views; ``infos`` is there if it has a leaf.

        Args:
            place: of the episode in the segment.
        """
        return self._tree(
            (leaf, self._rows(which, place)) for which, leaf in enumerate(self.leaves)
        )

    def parts(self, name: str) -> list[Any]:
        """Return a column of all episodes: as a whole, or of each if rows are apart."""
        return [
            one._tree(pair for pair in one.pairs() if pair[0].path[0] == name)[name]
            for one in self.each()
        ]

    def pairs(self) -> list[tuple[Leaf, npt.NDArray[Any]]]:
        """Return the leaves with their rows, which are not apart; see :meth:`each`."""
        arrays = cast("tuple[npt.NDArray[Any], ...]", self.arrays)
        return list(zip(self.leaves, arrays, strict=True))

    def _rows(self, which: int, place: int) -> npt.NDArray[Any]:
        array = self.arrays[which]
        if isinstance(array, ScatteredRows):
            return array.rows[place]
        bounds = self.bounds(self.leaves[which].more)
        return array[bounds[place] : bounds[place + 1]]

    def each(self) -> Iterator[Segment]:
        """Yield segments of these episodes whose rows are not apart: itself if that is so here."""
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

    def _tree(self, pairs: Iterable[tuple[Leaf, npt.NDArray[Any]]]) -> Columns:
        tree: dict[Any, Any] = {}
        for leaf, rows in pairs:
            branch = tree
            for key in leaf.path[:-1]:
                branch = branch.setdefault(key, {})
            branch[leaf.path[-1]] = rows
        return {key: _with_tuples(part) for key, part in tree.items()}


def _with_tuples(tree: Any) -> Any:
    """Make tuples of the dicts whose keys are numbers."""
    if not isinstance(tree, dict):
        return tree
    parts = {key: _with_tuples(part) for key, part in tree.items()}
    return tuple(parts.values()) if 0 in parts else parts
