"""Summarize the columns of a dataset: range, mean, deviation and quantiles of every element.

The values of a column are those of all rows of all episodes, in the order of the view, including
the last observation of each. NaN and infinities count as missing.

Each statistic is a function of the values alone: how episodes are stored, or read in segments,
changes no digit. Columns of up to :data:`EXACT_VALUES` values are sorted, others too if they have
at most 256 values, such as pictures. The quantiles of longer ones are those of every ``k``-th row,
where ``k`` is a prime, so that it does not follow the length of the episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.tree import Path, leaves
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.columns import layout_name
from minari_pipe.storage.jpeg import Frames, decode
from minari_pipe.storage.segment import Segment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: names of the quantiles, as LeRobot's ``meta/stats.json`` has them
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

#: with at most this many values of an element, its quantiles are exact
EXACT_VALUES = 10_000_000

#: number of values that longer columns keep for their quantiles
SAMPLED_VALUES = 1_000_000

#: bytes of the values that are held at a time, unless those of one element take more
_HELD_BYTES = 2**26
#: values of uint8 and bool
_LEVELS = 256
#: rows whose moments are computed together, so that it does not matter how they were read
_MOMENT_ROWS = 2**14
#: values that are converted at a time
_PART_VALUES = 2**20
#: what an element has
_STATISTICS = ("count", "min", "max", "mean", "std", *QUANTILES)
#: columns of numbers that statistics describe; flags are none
_COLUMNS = ("observations", "actions", "rewards", "infos", "extras")
_FLAGS = ("terminations", "truncations")
#: least height and width of a picture
_PICTURE = 32


@dataclass(frozen=True)
class Element:
    """The values of one element of a column, for example one joint.

    Attributes:
        values: the finite values, sorted; each of them once if there are ``counts``.
        counts: how often each value occurs; None if ``values`` holds each occurrence.
        moments: count, minimum, maximum, mean and deviation, if ``values`` is a sample.

    Example:
        >>> Element(np.array([0.0, 1.0, 2.0, 8.0])).quantile(0.5)
        1.5
        >>> Element(np.array([0.0, 8.0]), counts=np.array([3, 1])).quantile(0.5)
        0.0
    """

    values: Floats
    counts: Ints | None = None
    moments: tuple[float, float, float, float, float] | None = None

    @cached_property
    def _ends(self) -> Ints:
        assert self.counts is not None
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        """Return the number of occurrences in ``values``."""
        if self.counts is None:
            return len(self.values)
        return int(self._ends[-1]) if len(self.counts) else 0

    def _at(self, rank: int) -> float:
        """Return the value of a rank, from 0 on."""
        place = rank
        if self.counts is not None:
            place = int(np.searchsorted(self._ends, rank, side="right"))
        return float(self.values[place])

    def quantile(self, share: float) -> float:
        """Return a quantile, by linear interpolation as :func:`numpy.quantile`; NaN if empty."""
        last = len(self) - 1
        if last < 0:
            return math.nan
        rank = math.floor(share * last)
        low, high = self._at(rank), self._at(min(rank + 1, last))
        weight, gap = share * last - rank, high - low
        if math.isinf(gap):
            return low * (1 - weight) + high * weight
        # from the nearer end, so that greater shares never have less, as in NumPy
        return low + gap * weight if weight < 0.5 else high - gap * (1 - weight)

    def statistics(self) -> dict[str, float]:
        """Return ``count``, ``min``, ``max``, ``mean``, ``std`` and the quantiles.

        The deviation is that of the population, as in LeRobot. NaN where no value is finite.
        """
        count, low, high, mean, std = self.moments or _moments(self.values, self.counts)
        found = {"count": count, "min": low, "max": high, "mean": mean, "std": std}
        return {**found, **{name: self.quantile(share) for name, share in QUANTILES.items()}}

    def histogram(self, bins: int) -> Ints:
        """Return the numbers of values in bins of equal width from the least to the greatest."""
        if not len(self):
            return np.zeros(bins, np.int64)
        low, high = float(self.values[0]), float(self.values[-1])
        # not linspace over the difference, which may overflow
        shares = np.arange(1, bins) / bins
        ends = np.searchsorted(self.values, low * (1 - shares) + high * shares, side="left")
        known = self._ends if self.counts is not None else np.arange(1, len(self.values) + 1)
        below = np.where(ends > 0, known[ends - 1], 0)
        return np.diff(below, prepend=0, append=len(self))

    def share_of(self, value: float) -> float:
        """Return the share of the values that are equal to ``value``."""
        first = int(np.searchsorted(self.values, value, side="left"))
        end = int(np.searchsorted(self.values, value, side="right"))
        count = end - first if self.counts is None else int(self.counts[first:end].sum())
        return count / max(len(self), 1)


def _moments(values: Floats, counts: Ints | None) -> tuple[float, float, float, float, float]:
    if not len(values):
        return 0.0, math.nan, math.nan, math.nan, math.nan
    weights = np.ones(1) if counts is None else counts
    count = len(values) if counts is None else int(counts.sum())
    with np.errstate(over="ignore", invalid="ignore"):  # a sum may exceed float64
        mean = float((values * weights).sum()) / count
        squares = float(((values - mean) ** 2 * weights).sum())
    return float(count), float(values[0]), float(values[-1]), mean, math.sqrt(squares / count)


def parts(
    storage: MinariStorage, episode_indices: Iterable[int]
) -> Iterator[tuple[Ints, dict[Path, Any]]]:
    """Yield episodes, some at a time: the steps of each, and the rows of all by leaf.

    Args:
        storage: holds the episodes.
        episode_indices: the episodes.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> ((steps, rows),) = parts(step_index_dataset(lengths=(2, 3)).storage, [1])
        >>> steps, rows["rewards",]
        (array([3]), array([1., 2., 3.]))
    """
    for item in storage.get_segments(episode_indices):
        if isinstance(item, Segment):
            for one in item.each():
                yield one.steps, {leaf.path: rows for leaf, rows in one.pairs()}
        else:
            tree = {name: getattr(item, name) for name in (*_COLUMNS, *_FLAGS)}
            known = {name: part for name, part in tree.items() if part is not None}
            yield np.array([len(item.rewards)]), dict(leaves(known))


@dataclass
class Column:
    """A leaf of the episodes, over all of them.

    Attributes:
        path: names and indices on the way to the leaf.
        row: shape of a row; None for text, and if it differs between episodes.
        rows: number of rows.
        dtype: NumPy's name of the type of the values, or ``str``; the first, if they differ.
        is_counted: the values are uint8 or bool.
    """

    path: Path
    row: tuple[int, ...] | None
    rows: int
    dtype: str
    is_counted: bool

    @property
    def name(self) -> str:
        """The name in the files, such as ``observations/achieved_goal``."""
        return layout_name(self.path)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the statistics: that of a row, but one value for each channel of pictures."""
        if self.row is None or self.channels is None:
            return self.row
        return tuple(n if axis == self.channels else 1 for axis, n in enumerate(self.row))

    @property
    def channels(self) -> int | None:
        """The axis of a picture's channels, 2 or 0, or -1 if it has none; None if it is none.

        Pictures are uint8 and at least 32 high and wide, as in
        :func:`~minari_pipe.core.spaces.is_image_space`.
        """
        if not self.is_counted or self.row is None or len(self.row) not in (2, 3):
            return None
        if min(self.row[:2]) >= _PICTURE:
            return 2 if len(self.row) == 3 else -1
        return 0 if min(self.row[-2:]) >= _PICTURE and len(self.row) == 3 else None

    @property
    def elements(self) -> int:
        """Number of elements that have statistics of their own."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def values(self) -> int:
        """Number of values of each element."""
        return self.rows * (math.prod(self.row or ()) // max(self.elements, 1))

    def parts_of(self, rows: Any) -> Iterator[npt.NDArray[Any]]:
        """Yield the values of some rows, shape ``(N, elements)``, ``_PART_VALUES`` at a time.

        Raises:
            CorruptDatasetError: an image is damaged.
        """
        step = max(_PART_VALUES // max(math.prod(self.row or ()), 1), 1)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            if isinstance(rows, Frames):
                part = decode(part, self.name)
            if self.channels == 0:
                part = np.moveaxis(part, 1, -1)
            yield part.reshape(math.prod(part.shape) // max(self.elements, 1), self.elements)


class Columns:
    """The columns of some episodes, and the distribution of each of their elements.

    The first pass over the data finds the columns; the elements take one pass for each
    ``_HELD_BYTES`` of values.
    """

    def __init__(self, storage: MinariStorage, episode_indices: Iterable[int]) -> None:
        """Find the columns.

        Args:
            storage: holds the episodes.
            episode_indices: the episodes.

        Raises:
            CorruptDatasetError: an episode is damaged.
        """
        self._storage = storage
        self._indices = [int(index) for index in episode_indices]
        self._found: dict[Path, Column] = {}
        for _, rows_of in parts(storage, self._indices):
            for path, rows in rows_of.items():
                if path[0] in _COLUMNS:
                    self._count(path, rows)

    def __iter__(self) -> Iterator[Column]:
        """Yield the columns: observations, actions, rewards, infos and extras, each by name."""
        return iter(
            sorted(self._found.values(), key=lambda one: (_COLUMNS.index(one.path[0]), one.name))
        )

    def _count(self, path: Path, rows: Any) -> None:
        first = decode(rows[:1], layout_name(path)) if isinstance(rows, Frames) else rows[:1]
        is_numbers = isinstance(first, np.ndarray) and first.dtype.kind in "biuf"
        row = first.shape[1:] if is_numbers else None
        counted = is_numbers and first.dtype in (np.uint8, np.bool_)
        dtype = first.dtype.name if is_numbers else "str"
        known = self._found.setdefault(path, Column(path, row, 0, dtype, counted))
        known.rows += len(rows)
        known.is_counted &= counted
        if known.row != row:
            known.row = None

    def elements(self) -> Iterator[Element]:
        """Yield the elements of all columns, column by column.

        Raises:
            CorruptDatasetError: an episode is damaged, or has changed since the first pass.
        """
        group: list[tuple[Column, slice, _Kept | _Counted]] = []
        held = 0
        for column in self:
            kind = _Counted if column.is_counted else _Kept
            bytes_each = kind.bytes_of(column.values)
            first = 0
            while first < column.elements:
                n = min(column.elements - first, max((_HELD_BYTES - held) // bytes_each, 0))
                if not n and group:
                    yield from self._read(group)
                    group, held = [], 0
                    continue
                n = max(n, 1)
                group.append((column, slice(first, first + n), kind(column.values, n)))
                first, held = first + n, held + n * bytes_each
        if group:
            yield from self._read(group)

    def _read(self, group: list[tuple[Column, slice, _Kept | _Counted]]) -> Iterator[Element]:
        wanted: dict[Path, list[tuple[slice, _Kept | _Counted]]] = {}
        left = {column.path: column.rows for column, _, _ in group}
        for column, chosen, kept in group:
            wanted.setdefault(column.path, []).append((chosen, kept))
        for _, rows_of in parts(self._storage, self._indices):
            for path in wanted.keys() & rows_of.keys():
                left[path] -= len(rows_of[path])
                if left[path] < 0:
                    raise self._changed()
                for values in self._found[path].parts_of(rows_of[path]):
                    for chosen, kept in wanted[path]:
                        kept.add(values[:, chosen])
        if any(left.values()):
            raise self._changed()
        for _, chosen, kept in group:
            for place in range(chosen.stop - chosen.start):
                yield kept.element(place)

    def _changed(self) -> CorruptDatasetError:
        return CorruptDatasetError(
            f"{self._storage.data_path} changed while it was read; read it again"
        )

    def statistics(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return the statistics of all columns; see :func:`statistics_of`."""
        return statistics_of(self, (element.statistics() for element in self.elements()))


def statistics_of(
    columns: Iterable[Column], elements: Iterable[Mapping[str, float]]
) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return the statistics of columns, by name, each an array by the name of the statistic.

    Names and shapes are those of LeRobot's ``meta/stats.json``: ``count`` is the number of rows,
    shape ``(1,)`` and int64; ``min``, ``max``, ``mean``, ``std`` (of the population) and the
    quantiles ``q01``, ``q10``, ``q50``, ``q90`` and ``q99`` (linear, as :func:`numpy.quantile`)
    have the shape of a row, ``(1,)`` for numbers, and float64. Pictures (uint8, at least 32 high
    and wide, channels last or first) have one value for each channel, ``(1, 1, 3)`` or
    ``(3, 1, 1)``; unlike LeRobot's, they are not divided by 255. If some values are NaN or
    infinite, ``finite`` is the number of the others, which are all that the statistics describe.

    Args:
        columns: the columns; those without a shape are left out.
        elements: the statistics of their elements, in the same order.
    """
    remaining = iter(elements)
    found = {}
    for column in columns:
        if column.shape is None:
            continue
        made: dict[str, npt.NDArray[Any]] = {
            name: np.empty(column.elements) for name in _STATISTICS
        }
        for place in range(column.elements):
            for name, value in next(remaining).items():
                made[name][place] = value
        counts = made.pop("count").astype(np.int64)
        shape = column.shape or (1,)
        found[column.name] = {name: values.reshape(shape) for name, values in made.items()}
        found[column.name]["count"] = np.array([column.rows])
        if (counts != column.values).any():
            found[column.name]["finite"] = counts.reshape(shape)
    return found


class _Kept:
    """Keeps the values of some elements of a column, all of them or a sample."""

    def __init__(self, rows: int, elements: int) -> None:
        self._stride = _stride(rows)
        self._values = np.empty((elements, -(-rows // self._stride)))
        self._filled = self._seen = 0
        self._moments = None if self._stride == 1 else _Moments(elements)

    @staticmethod
    def bytes_of(rows: int) -> int:
        return 8 * max(1, -(-rows // _stride(rows)))

    def add(self, rows: npt.NDArray[Any]) -> None:
        chosen = rows[-self._seen % self._stride :: self._stride]
        with np.errstate(over="ignore"):  # of a type larger than float64
            self._values[:, self._filled : self._filled + len(chosen)] = chosen.T
        self._filled += len(chosen)
        self._seen += len(rows)
        if self._moments is not None:
            self._moments.add(rows)

    def element(self, place: int) -> Element:
        values = self._values[place]
        values = np.sort(values[np.isfinite(values)])
        moments = None if self._moments is None else self._moments.of(place)
        return Element(values, moments=moments)


class _Counted:
    """Counts the values of some elements of a column of uint8 or bool."""

    def __init__(self, rows: int, elements: int) -> None:
        self._counts = np.zeros((elements, _LEVELS), np.int64)

    @staticmethod
    def bytes_of(rows: int) -> int:
        return 8 * _LEVELS

    def add(self, rows: npt.NDArray[Any]) -> None:
        for place, values in enumerate(rows.T):
            self._counts[place] += np.bincount(values, minlength=_LEVELS)

    def element(self, place: int) -> Element:
        counts = self._counts[place]
        occurring = np.flatnonzero(counts)
        return Element(occurring.astype(float), counts[occurring])


class _Moments:
    """Count, range, mean and deviation of elements whose values are not all kept.

    Parts are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances" (1979).
    """

    def __init__(self, elements: int) -> None:
        self._waiting = np.empty((elements, _MOMENT_ROWS))
        self._filled = 0
        self._count = np.zeros(elements)
        self._mean, self._squares = np.zeros(elements), np.zeros(elements)
        self._low, self._high = np.full(elements, np.inf), np.full(elements, -np.inf)

    def add(self, rows: npt.NDArray[Any]) -> None:
        while len(rows):
            part = rows[: _MOMENT_ROWS - self._filled]
            with np.errstate(over="ignore"):
                self._waiting[:, self._filled : self._filled + len(part)] = part.T
            self._filled += len(part)
            rows = rows[len(part) :]
            if self._filled == _MOMENT_ROWS:
                self._merge()

    @np.errstate(over="ignore", invalid="ignore")
    def _merge(self) -> None:
        values = self._waiting[:, : self._filled]
        self._filled = 0
        is_known = np.isfinite(values)
        count = is_known.sum(axis=1)
        mean = np.where(is_known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
        squares = (np.where(is_known, values - mean[:, None], 0.0) ** 2).sum(axis=1)
        total = np.maximum(self._count + count, 1)
        self._mean = np.where(self._count == 0, mean, self._mean)
        apart = np.where(count == 0, 0.0, mean - self._mean)
        self._squares += squares + apart**2 * (self._count * count / total)
        self._mean += apart * (count / total)
        self._count += count
        self._low = np.minimum(self._low, np.where(is_known, values, np.inf).min(axis=1))
        self._high = np.maximum(self._high, np.where(is_known, values, -np.inf).max(axis=1))

    def of(self, place: int) -> tuple[float, float, float, float, float]:
        if self._filled:
            self._merge()
        count = float(self._count[place])
        if not count:
            return 0.0, math.nan, math.nan, math.nan, math.nan
        low, high = float(self._low[place]), float(self._high[place])
        deviation = math.sqrt(float(self._squares[place]) / count)
        return count, low, high, float(self._mean[place]), deviation


def _stride(rows: int) -> int:
    """Return which share of the rows is kept: 1, or the least prime that keeps few enough."""
    if rows <= EXACT_VALUES:
        return 1
    stride = -(-rows // SAMPLED_VALUES)
    while any(stride % factor == 0 for factor in range(2, math.isqrt(stride) + 1)):
        stride += 1
    return stride
