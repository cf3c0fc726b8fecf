"""Join episodes into segments, so that a storage writes many of them at once.

Most episodes have plain columns: arrays of numbers with the same leaves, dtypes and row shapes as
the episodes before. The joiner checks many of these at once; the rest are checked value by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EPISODE_COLUMNS, EpisodeBuffer, statistics_of_each
from minari_pipe.core.tree import PADDED, has_other_bools, leaves
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.segment import AttributeTable, Ints, Leaf, Rows, ScatteredRows, Segment

#: most episodes in a segment, however short they are
MOST_EPISODES = 2**12

#: from this many bytes per episode on, rows are written separately instead of being concatenated
APART_BYTES = 2**17

#: attribute types that are read back as Python numbers, and the dtypes of their columns
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
        """Create a joiner without a structure; :meth:`begin` sets one."""
        self.leaves: tuple[Leaf, ...] = ()
        self._form: dict[str, Any] = {}
        self._rewards = 0
        self._scratch: dict[Leaf, npt.NDArray[Any]] = {}

    def begin(self, columns: Columns, found: tuple[Leaf, ...]) -> None:
        """Adopt the structure of an episode.

        Args:
            columns: what :func:`~minari_pipe.storage.columns.episode_columns` returns.
            found: the leaves of the columns, as :func:`structure` returns them.
        """
        self.leaves = found
        self._scratch = {}
        self._rewards = [leaf.path for leaf in found].index(("rewards",))
        self._form = _form(columns, iter(found))
        for name in ("infos", "extras"):  # may be empty or missing
            self._form.setdefault(name, {})

    def segment(self, buffers: Sequence[EpisodeBuffer], first: int) -> Segment | None:
        """Return buffers as a segment, or None if any of them does not have the structure.

        The next call reuses the arrays of the segment.

        Args:
            buffers: at least one; the caller has checked seeds, options and metadata.
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
        given = fields["seed"], fields["options"], fields["metadata"]
        attributes = attribute_table(*given, first, steps, rewards_of_all)
        return Segment(first, steps, self.leaves, tuple(found), attributes)

    def _join(self, trees: Sequence[Any], form: Any, steps: Ints, found: list[Rows]) -> None:
        """Join the leaves of trees.

        Raises:
            _OtherError, TypeError, ValueError, KeyError: a tree does not match the form.
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
            return _plain(np.ascontiguousarray(only))
        if not (np.fromiter(map(len, rows), np.int64, len(rows)) == steps + leaf.more).all():
            raise _OtherError
        if leaf.row_bytes * (int(steps.min()) + leaf.more) >= APART_BYTES and all(
            part.dtype == leaf.dtype and part.shape[1:] == leaf.shape and part.flags.c_contiguous
            for part in rows
        ):
            return ScatteredRows([_plain(part) for part in rows])
        total = int(steps.sum()) + leaf.more * len(steps)
        scratch = self._scratch.get(leaf)
        if scratch is None or len(scratch) < total:
            scratch = np.empty((total + total // 4, *leaf.shape), leaf.dtype)
            self._scratch[leaf] = scratch
        return _plain(np.concatenate(rows, out=scratch[:total], casting="no"))


def _plain(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows without bools whose byte is neither 0 nor 1.

    Raises:
        _OtherError: there are some.
    """
    if has_other_bools(rows):
        raise _OtherError
    return rows


def structure(columns: Columns) -> tuple[Leaf, ...] | None:
    """Return the leaves of an episode's columns, or None if it cannot be joined to others.

    An episode can be joined if all leaves are numbers and no dict or tuple except infos is empty.

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
        if leaf.dtype.char in PADDED:  # the padding of each array must be cleared
            return None
        found.append(Leaf(path, leaf.dtype, leaf.shape[1:], len(leaf) - steps))
    if not all(_is_full(part) for name, part in columns.items() if name != "infos" or part):
        return None
    return tuple(found)


class _OtherError(Exception):
    """An episode has another structure."""


_MISSING: Any = object()
_FIELDS = ("seed", "options", "metadata", *EPISODE_COLUMNS)
_fields_of = attrgetter(*_FIELDS)


def attribute_table(
    seeds: Sequence[Any],
    options: Sequence[Any],
    metadata: Sequence[Mapping[str, Any]],
    first: int,
    steps: Ints,
    rewards: npt.NDArray[np.float64],
) -> AttributeTable:
    """Return the attributes of episodes.

    Args:
        seeds: the seed of each episode, or None.
        options: its options, or None.
        metadata: its further attributes.
        first: number of the first episode.
        steps: its number of steps.
        rewards: the rewards of all episodes, of shape ``(steps.sum(),)``.

    Example:
        >>> attribute_table([7], [None], [{}], 3, np.array([2]), np.array([0.5, 1.0]))[0]["seed"]
        7
    """
    count = len(steps)
    numbers: dict[str, npt.NDArray[Any]] = {
        "id": np.arange(first, first + count),
        "total_steps": steps,
    }
    given: dict[str, Sequence[Any]] = {}
    for name, values in (("seed", seeds), ("options", options)):
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
    """Return whether a tree has no empty dict or tuple."""
    if isinstance(tree, Mapping | tuple):
        parts = tree.values() if isinstance(tree, Mapping) else tree
        return bool(tree) and all(map(_is_full, parts))
    return True


def _form(tree: Any, found: Iterator[Leaf]) -> Any:
    """Return a tree of the same structure with its leaves taken from ``found``."""
    if isinstance(tree, Mapping):
        return {key: _form(part, found) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([_form(part, found) for part in tree])
    return next(found)


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return attribute values as a column, or None unless all are numbers of one type."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        for dtype in _NUMBERS.get(kinds.pop(), ()):
            try:
                return np.array(values, dtype)
            except OverflowError:  # seeds can reach 2**64 - 1 or more
                continue
    return None
