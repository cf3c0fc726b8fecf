"""Check that the values of an episode are finite and members of the dataset's spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, paired_leaves, shown
from minari_pipe.core.spaces import contains_rows
from minari_pipe.core.tree import join_path


class Finite(Check):
    """Checks that observations, actions and rewards hold neither NaN nor infinity."""

    name = "finite"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound:
            return
        subject = self.subject
        columns = [
            ("observations", subject.observation_space, episode.observations),
            ("actions", subject.action_space, episode.actions),
            ("rewards", None, episode.rewards),
        ]
        for name, space, tree in columns:
            for path, _, leaf in paired_leaves(space, tree):
                rows = np.flatnonzero(~finite_rows(leaf))
                if len(rows):
                    bad = np.argwhere(~np.isfinite(leaf[rows[0]]))[0]
                    value = leaf[rows[0]][tuple(bad)]
                    yield self.error(
                        episode.path(join_path((name, *path))),
                        f"row {rows[0]}{_element(bad)} is {value}{_count(rows)}",
                    )


class Membership(Check):
    """Checks that every observation and action is in its space; skips rows that are not finite.

    NaN is in no ``Box``, so it would be reported twice.
    """

    name = "membership"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound:
            return
        subject = self.subject
        columns = [
            ("observations", subject.observation_space, episode.observations),
            ("actions", subject.action_space, episode.actions),
        ]
        for name, root, tree in columns:
            for path, space, leaf in paired_leaves(root, tree):
                if space is None:
                    continue
                outside = ~np.asarray(contains_rows(space, leaf)) & finite_rows(leaf)
                rows = np.flatnonzero(outside)
                if len(rows):
                    yield self.error(
                        episode.path(join_path((name, *path))),
                        f"row {rows[0]}{_outside(space, leaf[rows[0]])}{_count(rows)}",
                    )


def finite_rows(column: Any) -> np.ndarray:
    """Return which rows are finite, shape ``(N,)``; columns without floats always are."""
    if getattr(column, "dtype", None) is None or column.dtype.kind not in "fc":
        return np.ones(len(column), dtype=bool)
    return np.isfinite(column).reshape(len(column), -1).all(axis=1)


def _outside(space: gym.Space, value: Any) -> str:
    if isinstance(space, gym.spaces.Box):
        bad = np.argwhere((value < space.low) | (value > space.high))
        if len(bad):
            where = tuple(bad[0])
            low, high = space.low[where], space.high[where]
            return f"{_element(bad[0])} is {value[where]}, outside [{low}, {high}]"
    return f" is {shown(value)}, not in {shown(space)}"


def _element(index: np.ndarray) -> str:
    """Return `` element 3``, `` element (3, 1)``, or an empty string for a scalar."""
    if len(index) == 0:
        return ""
    return f" element {index[0] if len(index) == 1 else tuple(int(i) for i in index)}"


def _count(rows: np.ndarray) -> str:
    return f" ({len(rows)} rows in all)" if len(rows) > 1 else ""
