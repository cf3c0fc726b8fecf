"""A controller for the Fetch arm of gymnasium-robotics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import ConfigError

FloatArray = npt.NDArray[np.floating[Any]]

#: metres per unit of an action, as the environments scale it
_STEP = 0.05


class FetchArm:
    """Moves the arm by proportional control: reaches, pushes, or picks up and places.

    What it does follows from the id of the environment: ``FetchReach``, ``FetchPush`` or
    ``FetchPickAndPlace``.
    """

    #: from an object to where the hand passes over it, and metres behind it where it pushes
    _ABOVE, _BEHIND = np.array([0.0, 0.0, 0.08]), 0.08
    #: metres that the hand pushes ahead of where it touches, and may be beside the object's way
    _AHEAD, _ACROSS = 0.03, 0.02
    #: metres from the object's centre to the hand that touches it, and width of the object
    _TOUCH, _WIDTH = 0.03, 0.05

    def __init__(self, env: gym.Env, gain: float = 0.8) -> None:
        """Store what the environment asks for.

        Args:
            env: the environment.
            gain: share of the way to a target that one step makes, as far as an action reaches.

        Raises:
            ConfigError: the environment is none of the three.
        """
        tasks = {"FetchReach": self._reach, "FetchPush": self._push, "FetchPick": self._place}
        name = env.spec.id if env.spec is not None else ""
        found = [task for start, task in tasks.items() if name.startswith(start)]
        if not found:
            raise ConfigError(
                f"FetchArm needs FetchReach, FetchPush or FetchPickAndPlace, got {env}"
            )
        self._task = found[0]
        self._gain = gain
        self._holds = False
        self._pushes = False

    def __call__(self, observation: Mapping[str, FloatArray]) -> npt.NDArray[np.float32]:
        """Return the action, shape ``(4,)``: motion of the hand, and of its fingers (-1 closes)."""
        target, grip = self._task(observation)
        hand = observation["observation"][:3]
        move = self._gain * (target - hand) / _STEP
        return np.clip([*move, grip], -1.0, 1.0).astype(np.float32)

    def _reach(self, observation: Mapping[str, FloatArray]) -> tuple[FloatArray, float]:
        return observation["desired_goal"], 0.0

    def _place(self, observation: Mapping[str, FloatArray]) -> tuple[FloatArray, float]:
        hand, cube = observation["observation"][:3], observation["achieved_goal"]
        fingers = observation["observation"][9:11].sum()
        away = cube - hand
        if np.linalg.norm(away[:2]) > 0.01 and not self._holds:
            return cube + self._ABOVE, 1.0
        if np.linalg.norm(away) > 0.012 and not self._holds:
            return cube, 1.0
        self._holds = bool(np.linalg.norm(away) < 0.03)
        if self._holds and fingers > self._WIDTH + 0.002:
            return cube, -1.0
        return observation["desired_goal"], -1.0

    def _push(self, observation: Mapping[str, FloatArray]) -> tuple[FloatArray, float]:
        hand, cube = observation["observation"][:3], observation["achieved_goal"]
        goal = observation["desired_goal"]
        way = (goal - cube)[:2]
        far = float(np.linalg.norm(way))
        if far < 0.02:  # there it stays
            return hand, -1.0
        way = way / far
        behind = cube.copy()
        behind[:2] -= self._BEHIND * way
        aside = (hand - cube)[:2]
        along, across = aside @ way, abs(aside[0] * way[1] - aside[1] * way[0])
        if across > self._ACROSS or along > -0.02:
            self._pushes = False
        if not self._pushes:
            if np.linalg.norm((hand - behind)[:2]) > 0.015:
                return behind + self._ABOVE, -1.0
            if hand[2] - cube[2] > 0.015:
                return behind, -1.0
            self._pushes = True
        target = cube.copy()
        target[:2] += (min(far, self._AHEAD) - self._TOUCH) * way
        return target, -1.0
