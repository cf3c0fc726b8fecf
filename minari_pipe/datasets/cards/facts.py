"""Gather what a card says about a dataset, from its data, its metadata and its manifest alone.

Nothing here depends on the machine, the date or the place of the dataset, so that equal datasets
have equal cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from minari_pipe.core.env_specs import environment_id
from minari_pipe.core.metadata import is_finite_number, metadata_faults
from minari_pipe.core.spaces import space_leaves
from minari_pipe.core.tree import Path
from minari_pipe.datasets.episodes_table import EpisodeTable
from minari_pipe.datasets.statistics import (
    EXACT_VALUES,
    Column,
    Columns,
    Element,
    parts,
    statistics_of,
)
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.segment import Segment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: infos that say whether an episode has reached its goal, by the names that environments use
SUCCESS = ("success", "is_success", "goal_achieved")
#: what only the author of a dataset can say of it, by the keys of the config below ``card``
AUTHORS_TEXTS = {
    "limitations": "Limitations",
    "biases": "Biases",
    "personal_information": "Personal information",
    "use_cases": "Use cases",
    "social_impact": "Social impact",
}
#: bins of a column's histogram
BINS = 32
#: an episode whose return or length is this many robust deviations from the median is an outlier;
#: Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993)
OUTLYING = 3.5
#: most outliers that are shown, by return and by length
MOST_OUTLIERS = 2

#: odd, from the golden ratio
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ElementFacts:
    """What the report shows of one element of a column.

    Attributes:
        statistics: see :func:`~minari_pipe.datasets.statistics.statistics_of`.
        histogram: number of values in ``BINS`` bins from the least to the greatest; None if it is
            not known.
        at_low: share of the values at the lower bound of its space; None without a finite bound.
        at_high: the same for the upper bound.
    """

    statistics: dict[str, float]
    histogram: Ints | None = None
    at_low: float | None = None
    at_high: float | None = None


@dataclass(frozen=True)
class Outcomes:
    """How the episodes went.

    Attributes:
        ids: number of each episode in the dataset.
        seeds: seed of each reset; None where there is none.
        lengths: steps, shape ``(N,)``.
        returns: undiscounted, in reward units, shape ``(N,)``.
        terminated: whether the last step terminated, shape ``(N,)``; None if it is not known.
        truncated: the same of being truncated.
        succeeded: whether a success was reached at some step, shape ``(N,)``; None if the infos do
            not say.
        pairs: number of distinct pairs of an observation and an action; None if there are too many
            steps to count, or it is not known.
    """

    ids: list[int]
    seeds: list[Any]
    lengths: Ints
    returns: Floats
    terminated: Flags | None = None
    truncated: Flags | None = None
    succeeded: Flags | None = None
    pairs: int | None = None

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """The places from the least return to the greatest; NaN is less than all others."""
        known = np.where(np.isnan(self.returns), -np.inf, self.returns)
        return np.argsort(known, kind="stable")

    @cached_property
    def median(self) -> int | None:
        """The place of the episode of median return; None without episodes."""
        order = self._order
        return int(order[(len(order) - 1) // 2]) if len(order) else None

    @cached_property
    def notable(self) -> dict[str, int]:
        """The places of the best, the median and the worst episode, and of outliers, by name."""
        if self.median is None:
            return {}
        best, worst = int(self._order[-1]), int(self._order[0])
        found = {"best": best, "median": self.median, "worst": worst}
        for name, values in (("return", self.returns), ("length", self.lengths)):
            away = _robust_deviations(values.astype(np.float64))
            outlying = [int(p) for p in np.argsort(-away, kind="stable") if away[p] > OUTLYING]
            for place in outlying[:MOST_OUTLIERS]:
                if place not in found.values():
                    found[f"outlying {name}, episode {self.ids[place]}"] = place
        return found


@dataclass(frozen=True)
class Facts:
    """What a card says.

    Attributes:
        dataset_id: id of the dataset.
        metadata: its metadata, without values that the standard does not allow.
        outcomes: how its episodes went.
        columns: its columns.
        elements: the elements of each column that has a shape, by the column's name.
        files: size and checksum of each file, by names such as ``data/main_data.hdf5``.
        content_sha256: checksum of the content, if it is known.
        findings: what ``validate`` found; None if it has not run.
        texts: what the author says, by the keys of ``AUTHORS_TEXTS``.
        traces: return so far after each step, by the place of an episode in ``outcomes``.
        view_of: number of episodes of the dataset, if this is about some of them only.
    """

    dataset_id: str
    metadata: Mapping[str, Any]
    outcomes: Outcomes
    columns: Sequence[Column]
    elements: Mapping[str, Sequence[ElementFacts]]
    files: Mapping[str, Mapping[str, Any]]
    content_sha256: str | None = None
    findings: Sequence[Mapping[str, Any]] | None = None
    texts: Mapping[str, str | None] = field(default_factory=dict)
    traces: Mapping[int, Floats] = field(default_factory=dict)
    view_of: int | None = None

    @property
    def statistics(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """The content of ``stats.json``."""
        each = (
            element.statistics
            for column in self.columns
            for element in self.elements.get(column.name, ())
        )
        return statistics_of(self.columns, each)

    @property
    def total_episodes(self) -> int:
        """Number of episodes, from the metadata if no more is known of them."""
        return len(self.outcomes.ids) or self._total("total_episodes")

    @property
    def total_steps(self) -> int:
        """Number of steps, see :attr:`total_episodes`."""
        return int(self.outcomes.lengths.sum()) or self._total("total_steps")

    def _total(self, key: str) -> int:
        value: Any = self.metadata.get(key)
        return int(value) if self.view_of is None and is_finite_number(value) else 0

    @property
    def size(self) -> float:
        """Size of the files in bytes, from the metadata if they are not known."""
        known: float = sum(entry["size"] for entry in self.files.values())
        megabytes: Any = self.metadata.get("dataset_size")
        return known or (min(float(megabytes), 1e100) * 1e6 if is_finite_number(megabytes) else 0.0)

    @property
    def random(self) -> float | None:
        """Mean return of the random policy; None if unknown."""
        return self._score("ref_min_score")

    @property
    def expert(self) -> float | None:
        """Mean return of the expert policy; None if unknown."""
        return self._score("ref_max_score")

    def _score(self, key: str) -> float | None:
        value: Any = self.metadata.get(key)
        return float(value) if is_finite_number(value) else None

    @property
    def normalized(self) -> Floats | None:
        """Normalized score of each episode, shape ``(N,)``; None without distinct scores."""
        low, high = self.random, self.expert
        if low is None or high is None or low == high:
            return None
        with np.errstate(all="ignore"):
            return (self.outcomes.returns - low) / (high - low)

    @property
    def environment(self) -> str:
        """Id of the environment; empty if there is none."""
        return environment_id(self.metadata.get("env_spec")) or ""


def facts_of(
    storage: MinariStorage,
    dataset_id: str,
    metadata: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
    *,
    content_sha256: str | None = None,
    findings: Sequence[Mapping[str, Any]] | None = None,
    texts: Mapping[str, str | None] | None = None,
    indices: Ints | None = None,
) -> Facts:
    """Read a dataset and return what its card says.

    Args:
        storage: holds the episodes.
        dataset_id: id of the dataset.
        metadata: its metadata as stored.
        files: its files; see :class:`Facts`.
        content_sha256: checksum of its content, if known.
        findings: what ``validate`` found, if it has run.
        texts: what the author says; see :class:`Facts`.
        indices: the episodes to describe, shape ``(N,)``; None means all.
    """
    faults = dict(metadata_faults(metadata))
    everything = np.arange(storage.total_episodes)
    if indices is None:
        indices = everything
    columns = Columns(storage, indices)
    outcomes = _outcomes(storage, indices, _success_names(metadata))
    return Facts(
        dataset_id,
        {key: value for key, value in metadata.items() if key not in faults},
        outcomes,
        list(columns),
        _elements(columns, storage),
        files,
        content_sha256,
        findings,
        texts or {},
        _traces(storage, indices, outcomes.notable.values()),
        None if np.array_equal(indices, everything) else len(everything),
    )


def _elements(columns: Columns, storage: MinariStorage) -> dict[str, list[ElementFacts]]:
    bounds = dict(
        _bounds({"observations": storage.observation_space, "actions": storage.action_space})
    )
    found: dict[str, list[ElementFacts]] = {}
    remaining = columns.elements()
    for column in columns:
        if column.shape is None:
            continue
        low, high = bounds.get(column.path, (None, None))
        for place in range(column.elements):
            element = next(remaining)
            found.setdefault(column.name, []).append(
                ElementFacts(
                    element.statistics(),
                    element.histogram(BINS),
                    _share_at(element, low, place),
                    _share_at(element, high, place),
                )
            )
    return found


def _share_at(element: Element, bound: Floats | None, place: int) -> float | None:
    if bound is None or place >= len(bound) or not np.isfinite(bound[place]):
        return None
    return element.share_of(float(bound[place]))


def _bounds(spaces: Mapping[str, gym.Space[Any]]) -> Iterator[tuple[Path, tuple[Floats, Floats]]]:
    """Yield the bounds of each leaf that is a Box, flat; those of pictures are all alike."""
    for name, root in spaces.items():
        for path, space in space_leaves(root):
            if isinstance(space, gym.spaces.Box):
                low, high = (end.reshape(-1).astype(np.float64) for end in (space.low, space.high))
                yield (name, *path), (low, high)


def _outcomes(storage: MinariStorage, indices: Ints, successes: Sequence[str]) -> Outcomes:
    table = EpisodeTable(storage, indices)
    lengths = table["total_steps"].astype(np.int64)
    terminated: list[Flags] = []
    truncated: list[Flags] = []
    succeeded: list[Flags | None] = []
    pairs: list[npt.NDArray[np.uint64]] = []
    counts_pairs = int(lengths.sum()) <= EXACT_VALUES
    for steps, rows_of in parts(storage, indices):
        ends = np.cumsum(steps)
        for name, found in (("terminations", terminated), ("truncations", truncated)):
            found.append(rows_of[(name,)][ends - 1])
        succeeded.append(_successes(rows_of, steps, successes))
        if counts_pairs:
            pairs.append(_pairs(rows_of, steps))
    return Outcomes(
        ids=table["id"].tolist(),
        seeds=table["seed"].tolist(),
        lengths=lengths,
        returns=table["return"].astype(np.float64),
        terminated=_joined(terminated, bool),
        truncated=_joined(truncated, bool),
        succeeded=None if any(one is None for one in succeeded) else _joined(succeeded, bool),
        pairs=len(np.unique(_joined(pairs, np.uint64))) if counts_pairs else None,
    )


def _joined(found: list[Any], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate(found) if found else np.zeros(0, dtype)


def stored_successes(storage: MinariStorage) -> Flags | None:
    """Return which episodes reached a success, from the infos alone, shape ``(N,)``.

    None if the infos do not say, or if they cannot be read without the observations: only HDF5
    files that are mapped into memory give one column of all episodes at once.
    """
    found: list[Flags] = []
    names = _success_names(storage.metadata)
    if storage.FORMAT != "hdf5":
        return None
    for item in storage.get_segments(range(storage.total_episodes)):
        if not isinstance(item, Segment):
            return None
        for one in item.each():
            rows_of = {leaf.path: rows for leaf, rows in one.pairs()}
            successes = _successes(rows_of, one.steps, names)
            if successes is None:
                return None
            found.append(successes)
    return _joined(found, bool)


def _success_names(metadata: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the infos that say whether the goal is reached."""
    made = metadata.get("minari_pipe")
    name = made.get("success_key") if isinstance(made, dict) else None
    return (name,) if isinstance(name, str) else SUCCESS


def _successes(rows_of: Mapping[Path, Any], steps: Ints, names: Sequence[str]) -> Flags | None:
    for name in names:
        rows = rows_of.get(("infos", name))
        if isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "biuf":
            starts = np.cumsum(steps + 1) - (steps + 1)
            return np.logical_or.reduceat(rows > 0, starts)
    return None


def _pairs(rows_of: Mapping[Path, Any], steps: Ints) -> npt.NDArray[np.uint64]:
    """Return a hash of the observation and the action of each step."""
    ends = np.cumsum(steps + 1)
    is_step = np.ones(ends[-1], bool)
    is_step[ends - 1] = False  # the final observation has no action
    hashes = np.zeros(int(steps.sum()), np.uint64)
    for path, rows in rows_of.items():
        if path[0] in ("observations", "actions"):
            found = _hashes(rows)
            hashes = hashes * _FACTOR + (found[is_step] if path[0] == "observations" else found)
    return hashes


def _hashes(rows: Any) -> npt.NDArray[np.uint64]:
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "biuf":
        texts = (row if isinstance(row, bytes) else str(row).encode() for row in rows)
        return np.fromiter(map(xxh3_64_intdigest, texts), np.uint64, len(rows))
    flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    width = flat.size // max(len(rows), 1)
    data = flat.data
    each = (data[place * width : (place + 1) * width] for place in range(len(rows)))
    return np.fromiter(map(xxh3_64_intdigest, each), np.uint64, len(rows))


def _robust_deviations(values: Floats) -> Floats:
    """Return the modified z-scores: distances to the median in units of 1.4826 MAD."""
    away = np.abs(values - np.median(values))
    scale = 1.4826 * np.median(away)
    return away / scale if scale > 0 else np.zeros(len(values))


def _traces(storage: MinariStorage, indices: Ints, places: Iterable[int]) -> dict[int, Floats]:
    chosen = list(dict.fromkeys(places))
    episodes = storage.get_episodes(indices[chosen].tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            place: np.cumsum(one["rewards"]) for place, one in zip(chosen, episodes, strict=True)
        }
