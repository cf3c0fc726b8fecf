"""Untrained Stable-Baselines3 models on any spaces, for the tests of the policies."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1, 1, (11,))
IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
MIXED = spaces.Dict(
    {"wide": spaces.Box(-1, 1, (3,), np.float64), "kind": spaces.Discrete(4), "eye": IMAGE}
)
TABLE = spaces.Dict({key: s for key, s in MIXED.spaces.items() if key != "eye"})
ACTIONS: dict[str, gym.Space] = {
    "box": spaces.Box(-2, 3, (5,)),
    "box64": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), dtype=np.float64),
    "discrete": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 3, 4]),
    "switches": spaces.MultiBinary(4),
}


class Anything(gym.Env):
    """Random observations of the given space, drawn from the seed; rewards by the action."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, length: int = 7):
        # Copies: each environment seeds its own.
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(action_space)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        reward = -float(np.sum(np.square(action)))
        return self.observation_space.sample(), reward, False, self.t >= self.length, {}


def untrained(
    algorithm: str,
    observation_space: gym.Space = VECTOR,
    action_space: gym.Space = ACTIONS["box"],
    policy_class: str = "MlpPolicy",
    **kwargs: Any,
) -> Any:
    """A model of real Stable-Baselines3 with fresh weights."""
    import stable_baselines3

    if algorithm not in ("ppo", "a2c"):
        kwargs.setdefault("buffer_size", 50)
    cls = getattr(stable_baselines3, algorithm.upper())
    env = Anything(observation_space, action_space)
    return silent(cls(policy_class, env, device="cpu", seed=3, **kwargs))


def silent(model: Any) -> Any:
    """The model, without the folder that its logger would make for every training."""
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(folder=None, output_formats=[]))
    return model
