"""Present episode metadata as a table: what is known of each episode without reading arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import REWARD_STATISTICS, reward_statistics
from minari_pipe.datasets.query import Query
from minari_pipe.datasets.query_columns import selected
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.storage.base import MinariStorage

#: columns that every table has, in this order
COLUMNS = ("id", "seed", "total_steps", "return", *REWARD_STATISTICS, "options")

_SHOWN_ROWS = 10
_SHOWN_WIDTH = 24


class EpisodeTable:
    """The metadata of a view's episodes, in the order of the view; a snapshot.

    The columns are ``id`` (number in the storage), ``seed``, ``total_steps``, ``return`` (which
    is ``rewards_sum``), the statistics ``rewards_sum``, ``_mean``, ``_std``, ``_max`` and
    ``_min``, ``options`` of the reset, and everything else stored with the episodes.

    Only metadata is read. If a dataset was stored without reward statistics (real Minari's
    ``create_dataset_from_buffers`` writes none), they are computed from the rewards when one of
    their columns is requested.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> table = step_index_dataset(lengths=(2, 3)).episodes
        >>> table["total_steps"]
        array([2, 3])
        >>> table["return"]
        array([3., 6.])
        >>> [row["seed"] for row in table]
        [0, 1]
    """

    def __init__(self, storage: MinariStorage, episode_indices: npt.NDArray[np.int_]) -> None:
        """Read the metadata of episodes.

        Args:
            storage: the storage that holds them.
            episode_indices: their indices in the storage, shape ``(N,)``.
        """
        self._storage = storage
        self._indices = np.array(episode_indices, dtype=np.int64)
        #: columns in which every episode has a number, all of one kind
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        #: all other values of the episodes
        self._others: Sequence[Mapping[str, Any]] | None = None
        table = storage.get_attribute_table(self._indices)
        if table is None:
            self._others = list(storage.get_episode_metadata(self._indices.tolist()))
            return
        self._others = table.others
        self._numbers = _with_own_columns(table.numbers, self._indices)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """One dict per episode with all its values; None for a usual column that it lacks."""
        stored = {name: values.tolist() for name, values in self._numbers.items()}
        numbers: Iterable[tuple[Any, ...]] = zip(*stored.values()) if stored else repeat(())
        others: Iterable[Mapping[str, Any]] = repeat({}) if self._others is None else self._others
        rows: list[dict[str, Any]] = []
        for index, own, other in zip(self._indices.tolist(), numbers, others):
            row = {**dict.fromkeys(COLUMNS), **dict(zip(stored, own)), **other, "id": index}
            for name in REWARD_STATISTICS:
                if not isinstance(row[name], int | float | np.integer | np.floating):
                    row[name] = None  # a value that is not a number counts as not stored
            row["return"] = row["rewards_sum"]
            rows.append(row)
        return rows

    @cached_property
    def _columns(self) -> list[str]:
        others = () if self._others is None else self._others
        custom = (name for other in others for name in other)
        return list(dict.fromkeys([*COLUMNS, *self._numbers, *custom]))

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __contains__(self, column: object) -> bool:
        """Return whether there is a column of this name."""
        return column in self._columns

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._indices)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """Return a column, shape ``(N,)``.

        Numbers and flags give an array of their kind; a column with other values, or with None
        for episodes without a value, is an array of objects.

        Raises:
            ConfigError: there is no such column.
        """
        if column not in self._numbers and column not in self._columns:
            raise ConfigError(
                f"no column {column!r}.{did_you_mean(column, self._columns)} "
                f"The columns are {', '.join(self._columns)}"
            )
        if column in self._numbers:
            values = self._numbers[column]
            small = values.dtype.kind == "u" and not (values > np.iinfo(np.int64).max).any()
            return values.astype(np.int64) if small else values.copy()
        self._complete({column})
        return _array([row.get(column) for row in self._rows])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each episode, with all columns; None for missing values."""
        self._complete(set(self._columns))
        for row in self._rows:
            yield {name: row.get(name) for name in self._columns}

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, each a list with a value for each episode.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> step_index_dataset(lengths=(2, 3)).episodes.to_dict()["rewards_max"]
            [2.0, 3.0]
        """
        self._complete(set(self._columns))
        return {name: [row.get(name) for row in self._rows] for name in self._columns}

    def select(self, query: str) -> npt.NDArray[np.bool_]:
        """Return which episodes meet a condition.

        Args:
            query: see :meth:`minari_pipe.MinariDataset.where`.

        Returns:
            Shape ``(N,)``.

        Raises:
            ConfigError: the query is malformed, or names a column that does not exist.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> step_index_dataset(lengths=(2, 3)).episodes.select("total_steps > 2")
            array([False,  True])
        """
        parsed = Query.parse(query)
        if len(self):
            met = selected(parsed, self._numbers, len(self))
            if met is not None:
                return met
            # without episodes it is unknown which columns they would have
            parsed.check_columns(self._columns)
        self._complete(parsed.columns)
        return np.array([parsed(row) for row in self._rows], dtype=bool)

    def _complete(self, columns: set[str] | frozenset[str]) -> None:
        """Compute the statistics that are among these columns and were not stored."""
        wanted = [
            name
            for name in ("return", *REWARD_STATISTICS)
            if name in columns and name not in self._numbers
        ]
        if not wanted:
            return
        lacking = [row for row in self._rows if any(row[name] is None for name in wanted)]
        if not lacking:
            return
        episodes = self._storage.get_episodes([row["id"] for row in lacking])
        for row, episode in zip(lacking, episodes, strict=True):
            rewards = episode["rewards"]
            computed = reward_statistics(rewards) if len(rewards) else {"rewards_sum": 0.0}
            for name, value in computed.items():
                if row[name] is None:
                    row[name] = value
            row["return"] = row["rewards_sum"]

    def __repr__(self) -> str:
        """Return the first rows, aligned; statistics that were not stored are ``-``."""
        shown = [name for name in self._columns if name != "return"]
        lines = [
            shown,
            *([_text(row.get(name)) for name in shown] for row in self._rows[:_SHOWN_ROWS]),
        ]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        rest = len(self) - _SHOWN_ROWS
        more = [f"... and {rest} more"] if rest > 0 else []
        return "\n".join([f"EpisodeTable of {len(self)} episodes", *text, *more])


def select(
    storage: MinariStorage, episode_indices: npt.NDArray[np.int_], query: str
) -> npt.NDArray[np.bool_]:
    """Do what :meth:`EpisodeTable.select` does, at a lower cost for a single condition.

    If a storage has numeric columns, only those of the condition are read.

    Args:
        storage: the storage that holds the episodes.
        episode_indices: their indices in the storage, shape ``(N,)``.
        query: see :meth:`minari_pipe.MinariDataset.where`.

    Raises:
        ConfigError: the query is malformed, or names a column that does not exist.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> select(step_index_dataset(lengths=(2, 3)).storage, np.array([1, 0]), "return > 3")
        array([ True, False])
    """
    parsed = Query.parse(query)
    numbers = _numbers(storage, episode_indices, parsed.columns)
    met = None if numbers is None else selected(parsed, numbers, len(episode_indices))
    return EpisodeTable(storage, episode_indices).select(query) if met is None else met


def returns(
    storage: MinariStorage, episode_indices: npt.NDArray[np.int_]
) -> npt.NDArray[np.float64]:
    """Return the undiscounted return of each episode, shape ``(N,)``, in reward units.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> returns(step_index_dataset(lengths=(2, 3)).storage, np.array([1, 0]))
        array([6., 3.])
    """
    numbers = _numbers(storage, episode_indices, {"return"})
    if numbers is None or "return" not in numbers:
        numbers = {"return": EpisodeTable(storage, episode_indices)["return"]}
    return numbers["return"].astype(np.float64)


def _numbers(
    storage: MinariStorage, indices: npt.NDArray[np.int_], names: Collection[str]
) -> dict[str, npt.NDArray[Any]] | None:
    """Return the named columns that are numeric; None if the storage has no columns."""
    stored = {"rewards_sum" if name == "return" else name for name in names}
    table = storage.get_attribute_table(indices, stored)
    return None if table is None else _with_own_columns(table.numbers, indices)


def _with_own_columns(
    numbers: dict[str, npt.NDArray[Any]], indices: npt.NDArray[np.int_]
) -> dict[str, npt.NDArray[Any]]:
    """Add the columns ``id`` and ``return``, which are not stored under these names."""
    found = {**numbers, "id": indices}
    found.pop("return", None)
    if "rewards_sum" in found:
        found["return"] = found["rewards_sum"]
    return found


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_WIDTH else f"{text[: _SHOWN_WIDTH - 3]}..."


def _array(values: list[Any]) -> npt.NDArray[Any]:
    for kinds, dtypes in _KINDS:
        if values and all(isinstance(value, kinds) for value in values):
            if bool not in kinds and any(isinstance(value, bool) for value in values):
                break  # a flag among numbers stays a flag
            for dtype in dtypes:
                try:
                    array: npt.NDArray[Any] = np.array(values, dtype=dtype)
                except OverflowError:  # seeds go up to 2**64 - 1, and there are larger ones
                    continue
                if dtype is not np.float64 or _are_fractions(values):
                    return array
    return np.fromiter(values, dtype=object, count=len(values))


def _are_fractions(values: list[Any]) -> bool:
    """Return whether float64 holds all integers among the values exactly."""
    whole = [value for value in values if isinstance(value, int | np.integer)]
    return all(int(float(value)) == value for value in whole)


_KINDS: tuple[tuple[tuple[type, ...], tuple[type, ...]], ...] = (
    ((bool, np.bool_), (np.bool_,)),
    ((int, np.integer), (np.int64, np.uint64)),
    ((int, float, np.integer, np.floating), (np.float64,)),
)
