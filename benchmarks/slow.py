"""An environment that waits: its step takes as long as that of a slow simulator, and no processor.

A module of its own, because workers import it, who need nothing else of the benchmark.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

SECONDS = 0.02
ID = f"{__name__}:Slow-v0"


class Slow(gym.Env):
    """Observes four zeros after :data:`SECONDS`."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4), {}

    def step(self, action: Any) -> Any:
        time.sleep(SECONDS)
        return np.zeros(4), 0.0, False, False, {}


gym.register("Slow-v0", f"{__name__}:Slow", max_episode_steps=1000)
