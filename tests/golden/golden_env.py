"""An environment of plain arithmetic, so that its bytes are the same on every machine."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Golden(gym.Env):
    """Observes where it is and the last action; the infos miss keys and hold text."""

    observation_space = gym.spaces.Box(-100, 100, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(3, 6))
        self.t = 0
        return self._observation(0), {"nest": {"start": self.length}}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        info: dict[str, Any] = {"success": self.t == self.length}
        if self.t % 2:
            info["nest"] = {"word": f"step {self.t}"}
        reward = 0.25 * int(action) + self.t
        return self._observation(action), reward, self.t >= self.length, False, info

    def _observation(self, action: int) -> np.ndarray:
        return np.array([self.t, self.length, action], np.float32)


gym.register("Golden-v0", entry_point=Golden, max_episode_steps=20)
