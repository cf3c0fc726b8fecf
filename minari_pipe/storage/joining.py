"""Joins episodes to segments, so that a storage writes many of them at once.

Most episodes have plain columns: arrays of numbers of the same leaves, dtypes and shapes of rows as
those before. Of many that is seen at a glance; what is not is left to those who look at each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EPISODE_COLUMNS, EpisodeBuffer, statistics_of_each
from minari_pipe.core.tree import PADDED, leaves
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.segment import AttributeTable, Ints, Leaf, Rows, ScatteredRows, Segment

#: episodes of a segment, however short they are
MOST_EPISODES = 2**12

#: the rows of episodes are not copied to be one array if all of them have so many bytes
_APART_BYTES = 2**17

#: types of attributes that come back as Python's numbers, and the dtypes of their columns
_NUMBERS: dict[type, tuple[Any, ...]] = {
    bool: (np.bool_,),
    np.bool_: (np.bool_,),
    int: (np.int64, np.uint64),
    np.int64: (np.int64,),
    np.uint64: (np.uint64,),
    float: (np.float64,),
    np.float64: (np.float64,),
}


class Joiner:
    """Joins buffers of one structure.

    Example:
        >>> buffer = EpisodeBuffer(seed=7, observations=np.array([0, 1]), actions=np.array([1]),
        ...                        rewards=np.array([0.5]), terminations=np.array([True]),
        ...                        truncations=np.array([False]))
        >>> joiner = Joiner()
        >>> joiner.segment([buffer], 3) is None
        True
        >>> from minari_pipe.storage.columns import episode_columns
        >>> columns = episode_columns(buffer, None, None, episode=3)
        >>> joiner.begin(columns, structure(columns))
        >>> segment = joiner.segment([buffer, buffer], 3)
        >>> segment.arrays[0], segment.attributes[1]["rewards_sum"]
        (array([0, 1, 0, 1]), 0.5)
    """

    def __init__(self) -> None:
        """Begin without a structure; :meth:`begin` gives it one."""
        self.leaves: tuple[Leaf, ...] = ()
        self._form: dict[str, Any] = {}
        self._rewards = 0
        self._scratch: dict[Leaf, npt.NDArray[Any]] = {}

    def begin(self, columns: Columns, found: tuple[Leaf, ...]) -> None:
        """Take the structure of an episode.

        Args:
            columns: what :func:`~minari_pipe.storage.columns.episode_columns` returns.
            found: their leaves, as :func:`structure` returns them.
        """
        self.leaves = found
        self._scratch = {}
        self._rewards = [leaf.path for leaf in found].index(("rewards",))
        self._form = _form(columns, iter(found))
        for name in ("infos", "extras"):  # which may be empty, or missing
            self._form.setdefault(name, {})

    def segment(self, buffers: Sequence[EpisodeBuffer], first: int) -> Segment | None:
        """Return buffers as a segment, None if not all of them plainly have the structure.

        The arrays of the segment are used again for the next one.

        Args:
            buffers: one at least; their seeds, options and metadata were checked.
            first: number of the first episode.
        """
        fields = dict(zip(_FIELDS, zip(*map(_fields_of, buffers), strict=True), strict=True))
        rewards = fields["rewards"]
        if not self._form or set(map(type, rewards)) != {np.ndarray}:
            return None
        found: list[Rows] = []
        try:
            steps = np.fromiter(map(len, rewards), np.int64, len(rewards))
            if not steps.all():
                return None
            for name, form in self._form.items():
                trees = fields[name]
                if not form and not any(trees):
                    continue
                self._join(trees, form, steps, found)
        except (_OtherError, TypeError, ValueError, KeyError):
            return None
        rewards_of_all = found[self._rewards]
        if isinstance(rewards_of_all, ScatteredRows):
            rewards_of_all = np.concatenate(rewards_of_all.rows)
        attributes = _attributes(fields, first, steps, rewards_of_all)
        return Segment(first, steps, self.leaves, tuple(found), attributes)

    def _join(self, trees: Sequence[Any], form: Any, steps: Ints, found: list[Rows]) -> None:
        """Join the leaves of trees.

        Raises:
            _OtherError, TypeError, ValueError, KeyError: a tree is not of the form.
        """
        kinds = set(map(type, trees))
        if isinstance(form, Leaf):
            if kinds != {np.ndarray}:
                raise _OtherError
            found.append(self._joined(trees, form, steps))
            return
        if kinds != {type(form)} or set(map(len, trees)) != {len(form)}:
            raise _OtherError
        for key, part in form.items() if isinstance(form, dict) else enumerate(form):
            self._join([tree[key] for tree in trees], part, steps, found)

    def _joined(self, rows: Sequence[npt.NDArray[Any]], leaf: Leaf, steps: Ints) -> Rows:
        if len(rows) == 1:
            (only,) = rows
            if only.dtype != leaf.dtype or only.shape != (steps[0] + leaf.more, *leaf.shape):
                raise _OtherError
            return np.ascontiguousarray(only)
        if not (np.fromiter(map(len, rows), np.int64, len(rows)) == steps + leaf.more).all():
            raise _OtherError
        if leaf.row_bytes * (int(steps.min()) + leaf.more) >= _APART_BYTES and all(
            part.dtype == leaf.dtype and part.shape[1:] == leaf.shape and part.flags.c_contiguous
            for part in rows
        ):
            return ScatteredRows(rows)
        total = int(steps.sum()) + leaf.more * len(steps)
        scratch = self._scratch.get(leaf)
        if scratch is None or len(scratch) < total:
            scratch = np.empty((total + total // 4, *leaf.shape), leaf.dtype)
            self._scratch[leaf] = scratch
        return np.concatenate(rows, out=scratch[:total], casting="no")


def structure(columns: Columns) -> tuple[Leaf, ...] | None:
    """Return the leaves of an episode's columns, None if it cannot be joined to others.

    It can if all leaves are numbers, and no dict or tuple but that of the infos is empty.

    Args:
        columns: what :func:`~minari_pipe.storage.columns.episode_columns` returns.

    Example:
        >>> structure({"rewards": np.zeros(2), "observations": ["a", "b", "c"]}) is None
        True
    """
    steps = len(columns["rewards"])
    found: list[Leaf] = []
    for path, leaf in leaves(columns):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc":
            return None
        if leaf.dtype.char in PADDED:  # which have to be looked at one by one
            return None
        found.append(Leaf(path, leaf.dtype, leaf.shape[1:], len(leaf) - steps))
    if not all(_is_full(part) for name, part in columns.items() if name != "infos" or part):
        return None
    return tuple(found)


class _OtherError(Exception):
    """An episode is of another structure."""


_MISSING: Any = object()
_FIELDS = ("seed", "options", "metadata", *EPISODE_COLUMNS)
_fields_of = attrgetter(*_FIELDS)


def _attributes(
    fields: Mapping[str, Sequence[Any]],
    first: int,
    steps: Ints,
    rewards: npt.NDArray[np.float64],
) -> AttributeTable:
    count = len(steps)
    numbers: dict[str, npt.NDArray[Any]] = {
        "id": np.arange(first, first + count),
        "total_steps": steps,
    }
    given: dict[str, Sequence[Any]] = {}
    metadata = fields["metadata"]
    for name in ("seed", "options"):
        values = fields[name]
        missing = values.count(None)
        if missing < count:
            filled = [_MISSING if value is None else value for value in values]
            given[name] = filled if missing else values
    computed = statistics_of_each(rewards, steps)
    if any(metadata):
        for name in dict.fromkeys(name for own in metadata for name in own):
            given[name] = [own.get(name, _MISSING) for own in metadata]
    numbers |= computed
    others: list[dict[str, Any]] = []
    for name, values in given.items():
        column = _numbers(values)
        if column is not None:
            numbers[name] = column
            continue
        numbers.pop(name, None)
        others = others or [{} for _ in range(count)]
        for place, value in enumerate(values):
            if value is not _MISSING:
                others[place][name] = value
            elif name in computed:
                others[place][name] = computed[name][place].item()
    return AttributeTable(numbers, others if any(others) else None)


def _is_full(tree: Any) -> bool:
    """Whether no dict and no tuple of a tree is empty."""
    if isinstance(tree, Mapping | tuple):
        parts = tree.values() if isinstance(tree, Mapping) else tree
        return bool(tree) and all(map(_is_full, parts))
    return True


def _form(tree: Any, found: Iterator[Leaf]) -> Any:
    """Put the leaves in their places in a tree."""
    if isinstance(tree, Mapping):
        return {key: _form(part, found) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([_form(part, found) for part in tree])
    return next(found)


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return attributes as a column if all of them are numbers of one kind."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        for dtype in _NUMBERS.get(kinds.pop(), ()):
            try:
                return np.array(values, dtype)
            except OverflowError:  # seeds go up to 2**64 - 1, and beyond
                continue
    return None
