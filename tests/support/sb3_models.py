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
        reward = 0.0 if isinstance(action, dict) else -float(np.sum(np.square(action)))
        return self.observation_space.sample(), reward, False, self.t >= self.length, {}


class Lasting(Anything):
    """Episodes of 3 to 11 steps, by their seed; allows actions at random, at least one of each."""

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = 3 + int(self.np_random.integers(9))
        return found

    def action_masks(self):
        """New at every step, the same however often it is asked."""
        rng = np.random.default_rng([self.length, self.t])
        return np.concatenate([allowed(n, rng) for n in choices(self.action_space)])


def choices(space: gym.Space) -> list[int]:
    """How many choices each part of a discrete action has."""
    if isinstance(space, spaces.MultiBinary):
        return [2] * space.n
    return [int(n) for n in np.ravel(getattr(space, "nvec", getattr(space, "n", ())))]


def allowed(n: int, rng: np.random.Generator) -> np.ndarray:
    flags = rng.random(n) < 0.6
    flags[rng.integers(n)] = True
    return flags


def widened(model: Any) -> Any:
    """The model, its last layer so large that modes differ between rows and leave the bounds."""
    import torch

    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if any(part in name for part in ("action_net", "actor.mu", "q_net.q_net")):
                parameter.mul_(50.0)
    return model


def samples(policy: Any, observation: Any, n: int) -> np.ndarray:
    """``n`` actions for one observation, by a policy that is bound to 8 environments."""
    rows = range(8)
    for row in rows:
        policy.start(row, row, np.random.default_rng(row))
    return np.array([a for _ in range(n // 8) for a in policy.act([observation] * 8, rows)])


def untrained(
    algorithm: str,
    observation_space: gym.Space = VECTOR,
    action_space: gym.Space = ACTIONS["box"],
    policy_class: str = "MlpPolicy",
    **kwargs: Any,
) -> Any:
    """A model of real Stable-Baselines3 with fresh weights."""
    import sb3_contrib
    import stable_baselines3

    if algorithm in ("sac", "td3", "ddpg", "dqn", "tqc"):
        kwargs.setdefault("buffer_size", 50)
    contrib = {"maskable_ppo": "MaskablePPO", "recurrent_ppo": "RecurrentPPO", "tqc": "TQC"}
    library = sb3_contrib if algorithm in contrib else stable_baselines3
    cls = getattr(library, contrib.get(algorithm, algorithm.upper()))
    if algorithm == "recurrent_ppo":
        policy_class = policy_class.replace("Policy", "LstmPolicy")
    env = Lasting(observation_space, action_space)
    return silent(cls(policy_class, env, device="cpu", seed=3, **kwargs))


def silent(model: Any) -> Any:
    """The model, without the folder that its logger would make for every training."""
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(folder=None, output_formats=[]))
    return model
