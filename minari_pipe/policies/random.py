"""Provide the random policy, which samples the action space and gives the lower reference score."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.policies.action_masks import ActionMasks, sample_allowed
from minari_pipe.policies.base import Policy


class RandomPolicy(Policy):
    """Samples the environment's action space, which it seeds at the start of every episode.

    If the environment has ``action_masks()``, it samples only actions that these allow.
    """

    def __init__(self) -> None:
        self._spaces: list[gym.Space] = []
        self._masks: ActionMasks | None = None

    def bind(self, envs: Sequence[gym.Env]) -> None:
        # Deep copies, because seeding must not affect the space of an environment or another row.
        self._spaces = [copy.deepcopy(env.action_space) for env in envs]
        self._masks = ActionMasks.of(envs, len(envs))

    def start(self, row: int, episode: int, rng: np.random.Generator) -> None:
        self._spaces[row].seed(int(rng.integers(2**31)))

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        if self._masks is None:
            return [self._spaces[row].sample() for row in rows]
        flags = self._masks(rows)
        each = [(self._spaces[row], flags[row]) for row in rows]
        return [sample_allowed(space, allowed, space.np_random) for space, allowed in each]
