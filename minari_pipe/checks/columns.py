"""What columns look like where nothing could be simulated again.

They may be constant, have their last row twice, or have lost digits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.checks.environment import recover, spec_fault
from minari_pipe.core.tree import Path, join_path, leaves

MIN_ROWS = 8
"""Of fewer rows nothing is said."""
SAMPLED_STEPS = 200
MAX_ELEMENTS = 10_000
"""Larger rows, such as pictures, are looked at as a whole."""
HALF_VALUES = 100
"""Fewer different values of half precision may be so by their nature."""
HALF_LEVELS = 2.0**13
"""A grid of fewer levels fits into half precision, such as 256 grey values or multiples of 0.5."""
OFTEN = 20
"""How much more often the last row repeats the one before than other rows do."""


class Columns(Check):
    """Warns of columns that never change, last observations there twice, and lost digits.

    Episodes that replay verified are as the simulator made them, and are passed over. What does
    not change at most steps of the environment itself, under random actions, may be constant in
    the data as well. Of actions only whole columns are looked at, and without an environment only
    actions. A repeated row is legitimate where observations repeat anyway.

    What replay did not verify to the bit has lost digits if each value of an observation is one of
    float16, which has 11 bits, though the values have more levels than those. Whole numbers and
    other grids have fewer.
    """

    name = "columns"
    warnings = ("constant-column", "repeated-last-observation", "reduced-precision")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._rows = 0
        self._episodes = 0
        self._first: dict[Path, np.ndarray] = {}
        self._constant: dict[Path, np.ndarray] = {}
        """Elements that were the same in all rows so far, by column."""
        self._half: dict[Path, _HalfPrecision] = {}
        self._repeated: list[int] = []
        """Numbers of the episodes whose last two observations are equal."""
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
                    "every value is one of float16, though the dtype holds more digits: they were "
                    "lost before this was stored",
                    "reduced-precision",
                )
        if self._rows < MIN_ROWS:
            return
        yield from self._constant_columns()
        # Of rows within the episodes, never fewer than one is taken to repeat.
        within = max(self._repeated_within, 1) / self._rows
        last = len(self._repeated) / self._episodes
        if last > min(OFTEN * within, 0.9) or (self._repeated and not self._repeated_within):
            yield self.warning(
                f"episode {self._repeated[0]} / observations",
                f"the last two rows are equal, in {len(self._repeated)} of {self._episodes} "
                f"episodes that were not replayed; {self._repeated_within} of {self._rows} other "
                f"rows equal the one before",
                "repeated-last-observation",
            )

    def _constant_columns(self) -> Iterator[Finding]:
        constant = {path: same for path, same in self._constant.items() if same.any()}
        if not constant:
            return
        varying = self._varying_in_environment()
        for path, same in constant.items():
            if varying is None:
                reported = same.all() and path[0] == "actions"
            else:
                # An action is what a policy chooses, not the environment.
                always = np.full_like(same, path[0] == "actions" and same.all())
                reported = (same & varying.get(path, always)).any()
            if reported:
                elements = np.flatnonzero(same)
                which = "" if same.all() else f" in {len(elements)} of {same.size} elements"
                yield self.warning(
                    join_path(path),
                    f"the same in all {self._rows} steps that were not replayed{which}, first "
                    f"{self._first[path][elements[0]]}"
                    + ("; in the environment it changes" if varying and path in varying else ""),
                    "constant-column",
                )

    def _varying_in_environment(self) -> dict[Path, np.ndarray] | None:
        """Which elements change when the environment is given random actions."""
        spec = self.subject.environment
        if spec is None or spec_fault(self.subject, spec):
            return None
        sampled: dict[Path, list[Any]] = {}
        try:
            with closing(recover(self.subject, spec)) as env:
                for row in _walk(env):
                    for path, leaf in leaves(row):
                        sampled.setdefault(path, []).append(leaf)
        except Exception:  # whatever a stranger's environment raises
            return None
        return {path: _changes(rows) for path, rows in sampled.items() if _is_number(rows[0])}


class _HalfPrecision:
    """Whether the elements of a column hold float16 values, and of how many levels."""

    def __init__(self) -> None:
        self._holds = True
        self._finest: Any = np.inf
        self._largest: Any = 0.0
        self._values: set[float] = set()

    def add(self, rows: np.ndarray) -> None:
        """Look at more rows, shape ``(N, elements)``."""
        with np.errstate(over="ignore"):
            self._holds = self._holds and bool((rows.astype(np.float16) == rows).all())
        if not self._holds:
            return
        mantissas, exponents = np.frexp(rows.astype(np.float64))
        whole = (mantissas * 2**11).astype(np.int64)
        # The last bit that is set; a zero has none.
        steps = np.where(whole == 0, np.inf, np.ldexp((whole & -whole) / 2**11, exponents))
        self._finest = np.minimum(self._finest, steps.min(axis=0))
        self._largest = np.maximum(self._largest, np.abs(rows).max(axis=0))
        if len(self._values) <= HALF_VALUES:
            self._values.update(np.unique(rows)[: HALF_VALUES + 1].tolist())

    @property
    def is_likely(self) -> bool:
        """Whether some element has more levels than a grid would."""
        levels = self._largest / self._finest
        return (
            self._holds and len(self._values) > HALF_VALUES and bool((levels > HALF_LEVELS).any())
        )


def _walk(env: gym.Env) -> Iterator[dict[str, Any]]:
    env.action_space.seed(0)
    env.reset(seed=0)
    for step in range(SAMPLED_STEPS):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        yield {"observations": copy.deepcopy(observation), "rewards": reward}
        if terminated or truncated:
            env.reset(seed=step + 1)


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
