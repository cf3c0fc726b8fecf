"""The environment behind the ``nest`` files; only its spaces matter."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Nest(gym.Env):
    """Dicts in tuples in dicts."""

    observation_space = spaces.Dict(
        a=spaces.Box(-1, 1, (3,), np.float32),
        t=spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 1, (2,), np.float64)]),
    )
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.5, False, False, {}
