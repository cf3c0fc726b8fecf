"""Check that columns of an episode have one row per step; observations and infos one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import MISSING, Check, Episode, Finding, is_count, paired_leaves, shown
from minari_pipe.core.tree import Path, join_path, leaves
from minari_pipe.storage.legacy.base import LegacyStorage

#: The standard stores these three as plain columns of one dtype.
SCALARS = {
    "rewards": np.dtype(np.float64),
    "terminations": np.dtype(np.bool_),
    "truncations": np.dtype(np.bool_),
}


class Shapes(Check):
    """Checks for ``T`` actions, rewards and flags, ``T + 1`` observations and infos, and shapes.

    ``T`` is the length that most of the five columns have, so that one short column is one finding.
    Dtypes that differ from the space's are reported as ``dtypes``. Flags must be bool, rewards
    float64 or integers, which Minari stores if the environment's rewards are whole numbers.
    Extra step data have ``T`` or ``T + 1`` rows; older layouts have extra columns of any length.
    The rows in ``infos_filled`` and ``extras_filled`` must exist.
    """

    name = "shapes"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.faults:
            return
        subject = self.subject
        columns: dict[str, list[tuple[Path, gym.Space | None, Any]]] = {
            "observations": list(paired_leaves(subject.observation_space, episode.observations)),
            "actions": list(paired_leaves(subject.action_space, episode.actions)),
        }
        columns |= {name: [((), None, getattr(episode, name))] for name in SCALARS}
        episode.n_steps = n_steps = _majority(columns)
        if n_steps is None:
            yield self.error(episode.path(), "no column has rows")
            return
        if n_steps < 1:
            yield self.error(episode.path(), "has no steps; an episode has at least one")
            return
        for name in ("observations", "actions"):
            yield from self._column(episode, name, columns[name], n_steps)
        for name, dtype in SCALARS.items():
            yield from self._scalars(episode, name, dtype, n_steps)
        if isinstance(episode.infos, Mapping):
            infos = [(path, None, leaf) for path, leaf in leaves(episode.infos)]
            yield from self._rows(episode, "infos", infos, n_steps + 1)
        if not isinstance(subject.storage, LegacyStorage):
            extras = [
                (path, None, leaf)
                for path, leaf in leaves(episode.extras or {})
                if _n_rows(leaf) not in (n_steps, n_steps + 1)
            ]
            yield from self._rows(episode, "extras", extras, f"{n_steps} or {n_steps + 1}")
        for name in ("infos_filled", "extras_filled"):
            fault = _filled_fault(episode.metadata.get(name), n_steps + 1)
            if fault:
                yield self.error(episode.path(name), fault)

    def _column(
        self,
        episode: Episode,
        name: str,
        found: list[tuple[Path, gym.Space | None, Any]],
        n_steps: int,
    ) -> Iterator[Finding]:
        n_rows = n_steps + (name == "observations")
        sound = []
        for path, space, leaf in found:
            where = episode.path(join_path((name, *path)))
            if space is None:
                yield self.error(where, f"is not in the {name[:-1]} space of the metadata")
            elif leaf is MISSING or _n_rows(leaf) is None:
                yield self.error(where, f"is missing; the {name[:-1]} space has {space}")
            else:
                sound.append((path, space, leaf))
        if len(sound) > 1 and all(_n_rows(leaf) != n_rows for *_, leaf in sound):
            yield from self._rows(episode, name, sound, n_rows)
            return
        for path, space, leaf in sound:
            where = episode.path(join_path((name, *path)))
            if isinstance(space, gym.spaces.Text):
                fault = _text_fault(leaf, n_rows)
                if fault:
                    yield self.error(where, fault)
                continue
            if space.shape is None:  # a third-party space whose elements are not arrays
                yield from self._rows(episode, name, [(path, space, leaf)], n_rows)
                continue
            expected = (n_rows, *space.shape)
            shape = getattr(leaf, "shape", None)
            if shape != expected:
                got = f"{_n_rows(leaf)} rows of {type(leaf).__name__}" if shape is None else shape
                yield self.error(where, f"shape {got}, expected {expected}")
            elif leaf.dtype != space.dtype:
                yield self._dtype(where, leaf.dtype, space.dtype)

    def _scalars(
        self, episode: Episode, name: str, dtype: np.dtype, n_steps: int
    ) -> Iterator[Finding]:
        column = getattr(episode, name)
        shape = getattr(column, "shape", None)
        if shape is None:
            yield self.error(episode.path(name), f"is {type(column).__name__}, expected an array")
        elif shape != (n_steps,):
            yield self.error(episode.path(name), f"shape {shape}, expected {(n_steps,)}")
        elif column.dtype != dtype and not (name == "rewards" and column.dtype.kind in "iu"):
            yield self._dtype(episode.path(name), column.dtype, dtype)

    def _rows(
        self,
        episode: Episode,
        name: str,
        found: Iterable[tuple[Path, Any, Any]],
        n_rows: int | str,
    ) -> Iterator[Finding]:
        """Yield one finding per leaf with a wrong row count, or one for all if all share it."""
        counts = {path: _n_rows(leaf) for path, _, leaf in found}
        wrong = {path: n for path, n in counts.items() if n != n_rows}
        if len(wrong) > 1 and len(wrong) == len(counts) and len(set(wrong.values())) == 1:
            wrong = {(): next(iter(wrong.values()))}
        for path, n in wrong.items():
            where = episode.path(join_path((name, *path)))
            yield self.error(where, f"{'no' if n is None else n} rows, expected {n_rows}")

    def _dtype(self, path: str, found: Any, expected: Any) -> Finding:
        return Finding("error", "dtypes", path, f"dtype {found}, expected {expected}")


def _n_rows(column: Any) -> int | None:
    try:
        return len(column)
    except TypeError:  # a scalar, an array without dimensions, or None
        return None


def _majority(columns: Mapping[str, list[tuple[Path, Any, Any]]]) -> int | None:
    """Return the number of steps that most columns agree on; the rewards decide a tie."""
    votes: Counter[int] = Counter()
    # Counter.most_common lists equal counts in insertion order, so rewards go first.
    for name in sorted(columns, key=lambda name: name != "rewards"):
        rows = [n for *_, leaf in columns[name] if (n := _n_rows(leaf)) is not None]
        if rows:
            votes[Counter(rows).most_common(1)[0][0] - (name == "observations")] += 1
    return votes.most_common(1)[0][0] if votes else None


def _filled_fault(filled: Any, n_rows: int) -> str | None:
    if filled is None:
        return None
    expected = f"row ranges [begin, end] up to {n_rows} by info key"
    if not isinstance(filled, Mapping):
        return f"is {shown(repr(filled))}, expected {expected}"
    for key, ranges in filled.items():
        pairs = ranges if isinstance(ranges, list) else [ranges]
        for pair in pairs:
            sound = isinstance(pair, list) and len(pair) == 2 and all(map(is_count, pair))
            if not sound or not 0 <= pair[0] < pair[1] <= n_rows:
                return f"has {shown(repr(pair))} for {shown(key)}, expected {expected}"
    return None


def _text_fault(column: Any, n_rows: int) -> str | None:
    if _n_rows(column) != n_rows:
        return f"{_n_rows(column)} rows, expected {n_rows}"
    for row, value in enumerate(column):
        if not isinstance(value, str):
            return f"row {row} is {type(value).__name__}, expected str"
    return None
