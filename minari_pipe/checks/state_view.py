"""Compare recorded observations with those that the environment makes of the recorded states.

Versions of a simulator step differently, but the positions and velocities of a state look the same
in all of them. So observations that belong to another row than their state, or were changed, show
however loosely a step is compared.

MuJoCo computes the positions of bodies before the last part of a step, and forces during it. So
only those elements are compared that a random walk of the environment has exactly reproduced.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import Episode
from minari_pipe.checks.stepwise import (
    NO_START,
    ROUNDING,
    Place,
    Steps,
    at,
    row_of,
    states_of,
    walk_of,
)
from minari_pipe.core.tree import Path, leaves


class StateView:
    """Makes observations of recorded states with an environment, without stepping it."""

    def __init__(self, env: gym.Env, place: Place, start: Mapping[str, Any]) -> None:
        self._env = env
        self._place = place
        self._determined: dict[Path, np.ndarray] = {}
        """Which elements of an observation the state determines, by leaf."""
        try:
            walk = walk_of(env, start)
            # The unknown seed decides hidden values, so look with a different one.
            looks = self._looks(walk, {**start, "seed": 1} if start is NO_START else start, None)
        except Exception:  # a third-party environment may raise anything, or has no such method
            return
        for path, column in leaves(walk.observations):
            if isinstance(column, np.ndarray) and column.dtype.kind == "f":
                seen = np.asarray([at(look, path) for look in looks])
                if seen.shape == column.shape:
                    same = (seen.astype(column.dtype) == column).all(axis=0)
                    if (determined := same & (column != column[0]).any(axis=0)).any():
                        self._determined[path] = determined

    def compare(
        self, episode: Episode, start: Mapping[str, Any], n_steps: int
    ) -> tuple[Path, str] | None:
        """Return the path of the first observation that differs and a message, or ``None``.

        Args:
            episode: an episode with recorded states.
            start: arguments of ``reset``.
            n_steps: number of steps whose rows are compared.
        """
        if not self._determined:
            return None
        looks = self._looks(episode, start, n_steps)
        rows = Steps({})
        for path, which in self._determined.items():
            recorded = at(episode.observations, path)[: n_steps + 1]
            seen = np.asarray([at(look, path) for look in looks])
            rows.recorded["observations", *path] = recorded
            rows.simulated["observations", *path] = list(np.where(which, seen, recorded))
        apart = ~rows.at_rounding()
        if not apart.any():
            return None
        row = int(apart.argmax())
        path = max(rows.recorded, key=lambda path: float(rows.excess(path, 0, ROUNDING)[row]))
        return path, (
            f"row {row}: {rows.values(path, row)}, the observation of the recorded state; "
            f"{apart.sum()} of {n_steps + 1} rows differ"
        )

    def _looks(self, episode: Episode, start: Mapping[str, Any], n_steps: int | None) -> list[Any]:
        """Return the observation of each recorded state, up to that after ``n_steps``."""
        base: Any = self._env.unwrapped
        inner = getattr(base, "point_env", None)  # gymnasium-robotics' mazes wrap their simulator
        self._env.reset(**copy.deepcopy(dict(start)))
        states, looks = states_of(episode), []
        last = episode.n_steps if n_steps is None else n_steps
        for row in range((last or 0) + 1):
            self._place(row_of(episode.observations, row), row_of(states, row))
            look = base._get_obs() if inner is None else base._get_obs(inner._get_obs()[0])
            looks.append(copy.deepcopy(look))
        return looks
