"""The random policy: uniform samples of the action space, the lower end of the reference scores."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.policies.base import Policy


class RandomPolicy(Policy):
    """Samples the environment's action space, freshly seeded at the start of every episode."""

    def __init__(self) -> None:
        self._spaces: list[gym.Space] = []

    def bind(self, envs: Sequence[gym.Env]) -> None:
        # Deep copies: seeding must not touch the space of the environment or of another row.
        self._spaces = [copy.deepcopy(env.action_space) for env in envs]

    def start(self, row: int, episode: int, rng: np.random.Generator) -> None:
        self._spaces[row].seed(int(rng.integers(2**31)))

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        return [self._spaces[row].sample() for row in rows]
