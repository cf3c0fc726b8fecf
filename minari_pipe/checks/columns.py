"""Warn of suspicious columns in episodes that replay did not verify.

A column may be constant, repeat its last row, or have lost digits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.checks.environment import recover, spec_fault
from minari_pipe.core.tree import Path, join_path, leaves

#: With fewer rows the check does not judge constant columns or repeated last rows.
MIN_ROWS = 8
SAMPLED_STEPS = 200
#: Larger rows, such as pictures, are compared as one sum.
MAX_ELEMENTS = 10_000
#: Up to this many distinct values may fit into half precision by nature.
HALF_VALUES = 100
#: A grid of fewer levels, such as 256 grey values or multiples of 0.5, fits into half precision.
HALF_LEVELS = 2.0**13
#: The last row is suspicious if it repeats the row before this many times as often as others do.
OFTEN = 20
#: It is suspicious in more than this share of the episodes, whatever the other rows do.
NEARLY_ALL = 0.9


class Columns(Check):
    """Warns of columns that never change, repeated last observations and lost digits.

    Episodes that replay verified are skipped. An element that rarely changes in the environment
    under random actions may be constant in the data too. An action column counts only if all its
    elements are constant; without an environment only actions are checked. A repeated last row is
    legitimate if other observations repeat as well, or if the environment repeats some last rows
    under random actions; a recorder's fault would repeat all of them.

    Observations that replay did not verify bit for bit have lost digits if every value fits into
    float16 (11 bits) although the values have more levels than a grid. Whole numbers and other
    grids have fewer levels.
    """

    name = "columns"
    warnings = ("constant-column", "repeated-last-observation", "reduced-precision")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._rows = 0
        self._episodes = 0
        self._first: dict[Path, np.ndarray] = {}
        self._constant: dict[Path, np.ndarray] = {}
        """Elements that had one value in all rows so far, by column."""
        self._half: dict[Path, _HalfPrecision] = {}
        self._repeated: list[int] = []
        """Indices of the episodes whose last two observations are equal."""
        self._repeated_within = 0

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.faults and episode.n_steps and not episode.is_exact:
            for path, column in _numbers(episode):
                if path[0] == "observations" and column.dtype in (np.float32, np.float64):
                    self._half.setdefault(path, _HalfPrecision()).add(_flat(column))
        if episode.is_verified or episode.faults or not episode.n_steps:
            return
        self._episodes += 1
        self._rows += episode.n_steps
        for path, column in _numbers(episode):
            rows = _flat(column)
            first = self._first.setdefault(path, rows[0].copy())
            same = self._constant.get(path)
            if same is None or same.any():
                here = (rows == first).all(axis=0)
                self._constant[path] = here if same is None else same & here
        repeated = np.ones(episode.n_steps, dtype=bool)
        for _, column in leaves(episode.observations):
            column = column if isinstance(column, np.ndarray) else np.array(column, dtype=object)
            rows = column.reshape(len(column), -1)
            repeated &= (rows[1:] == rows[:-1]).all(axis=1)
        self._repeated_within += int(repeated[:-1].sum())
        if repeated[-1]:
            self._repeated.append(episode.index)
        yield from ()

    def finish(self) -> Iterator[Finding]:
        for path, half in self._half.items():
            if half.is_likely:
                yield self.warning(
                    join_path(path),
                    "every value is an exact float16, though the dtype holds more digits: they "
                    "were lost before the data was stored",
                    "reduced-precision",
                )
        if self._rows < MIN_ROWS:
            return
        yield from self._constant_columns()
        # Assume that at least one row within the episodes repeats.
        within = max(self._repeated_within, 1) / self._rows
        last = len(self._repeated) / self._episodes
        is_often = last > OFTEN * within or (self._repeated and not self._repeated_within)
        if last > NEARLY_ALL or (is_often and not self._environment_walk[1]):
            yield self.warning(
                f"episode {self._repeated[0]} / observations",
                f"the last two rows are equal in {len(self._repeated)} of {self._episodes} "
                f"episodes that were not replayed; {self._repeated_within} of {self._rows} other "
                f"rows equal the row before",
                "repeated-last-observation",
            )

    def _constant_columns(self) -> Iterator[Finding]:
        constant = {path: same for path, same in self._constant.items() if same.any()}
        if not constant:
            return
        varying, _ = self._environment_walk
        for path, same in constant.items():
            if varying is None:
                reported = same.all() and path[0] == "actions"
            else:
                # The policy chooses the actions, so the environment says nothing about them.
                always = np.full_like(same, path[0] == "actions" and same.all())
                reported = (same & varying.get(path, always)).any()
            if reported:
                elements = np.flatnonzero(same)
                which = "" if same.all() else f" in {len(elements)} of {same.size} elements"
                yield self.warning(
                    join_path(path),
                    f"constant{which} over all {self._rows} steps that were not replayed, first "
                    f"value {self._first[path][elements[0]]}"
                    + ("; it changes in the environment" if varying and path in varying else ""),
                    "constant-column",
                )

    @cached_property
    def _environment_walk(self) -> tuple[dict[Path, np.ndarray] | None, bool]:
        """Which elements random actions change, and whether the last row of an episode repeats."""
        spec = self.subject.environment
        if spec is None or spec_fault(self.subject, spec):
            return None, False
        sampled: dict[Path, list[Any]] = {}
        is_repeated = False
        try:
            with closing(recover(self.subject, spec)) as env:
                for row, is_last_repeated in _walk(env):
                    is_repeated = is_repeated or is_last_repeated
                    for path, leaf in leaves(row):
                        sampled.setdefault(path, []).append(leaf)
        except Exception:  # a third-party environment may raise anything
            return None, False
        varying = {path: _changes(rows) for path, rows in sampled.items() if _is_number(rows[0])}
        return varying, is_repeated


class _HalfPrecision:
    """Records whether the elements of a column hold float16 values, and how many levels."""

    def __init__(self) -> None:
        self._holds = True
        self._finest: Any = np.inf
        self._largest: Any = 0.0
        self._values: set[float] = set()

    def add(self, rows: np.ndarray) -> None:
        """Take more rows into account, shape ``(N, elements)``."""
        with np.errstate(over="ignore"):
            self._holds = self._holds and bool((rows.astype(np.float16) == rows).all())
        if not self._holds:
            return
        mantissas, exponents = np.frexp(rows.astype(np.float64))
        whole = (mantissas * 2**11).astype(np.int64)
        # The value of the lowest bit that is set; a zero has none.
        steps = np.where(whole == 0, np.inf, np.ldexp((whole & -whole) / 2**11, exponents))
        self._finest = np.minimum(self._finest, steps.min(axis=0))
        self._largest = np.maximum(self._largest, np.abs(rows).max(axis=0))
        if len(self._values) <= HALF_VALUES:
            self._values.update(np.unique(rows)[: HALF_VALUES + 1].tolist())

    @property
    def is_likely(self) -> bool:
        """Whether the column looks rounded: some element has more levels than a grid."""
        levels = self._largest / self._finest
        return (
            self._holds and len(self._values) > HALF_VALUES and bool((levels > HALF_LEVELS).any())
        )


def _walk(env: gym.Env) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the results of random steps, and whether each ended an episode without a change."""
    env.action_space.seed(0)
    before = copy.deepcopy(env.reset(seed=0)[0])
    for step in range(SAMPLED_STEPS):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        observation = copy.deepcopy(observation)
        is_last = bool(terminated or truncated)
        is_repeated = is_last and _are_equal(before, observation)
        yield {"observations": observation, "rewards": reward}, is_repeated
        before = copy.deepcopy(env.reset(seed=step + 1)[0]) if is_last else observation


def _are_equal(first: Any, second: Any) -> bool:
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(np.array_equal(value, other) for (_, value), (_, other) in pairs)


def _numbers(episode: Episode) -> Iterator[tuple[Path, np.ndarray]]:
    tree = {name: getattr(episode, name) for name in ("observations", "actions", "rewards")}
    for path, column in leaves(tree):
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            yield path, column


def _flat(column: np.ndarray) -> np.ndarray:
    rows = column.reshape(len(column), -1)
    if rows.shape[1] <= MAX_ELEMENTS:
        return rows
    return rows.astype(np.float64).sum(axis=1, keepdims=True)


def _is_number(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _changes(rows: list[Any]) -> np.ndarray:
    column = _flat(np.array(rows))
    changes: np.ndarray = (column[1:] != column[:-1]).mean(axis=0) > 0.5
    return changes
