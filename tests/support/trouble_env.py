"""An environment that goes wrong in chosen episodes, known by their reset seeds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

from minari_pipe.policies.rollout import episode_seed


class Panic(BaseException):
    """What Rust raises in Python: no ``Exception``."""


class Trouble(gym.Env):
    """Observes the step index; in episode ``episode`` of ``seed`` there is ``kind`` of trouble.

    ``times`` says how often, counted in the file ``log``; every time without it.
    """

    observation_space = gym.spaces.Box(0, 100, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, kind="", episode=-1, seed=0, times=None, log=None):
        self.kind, self.times, self.log = kind, times, log
        self.bad_seed = episode_seed(seed, episode)[0] if kind else None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.is_bad = seed == self.bad_seed and self._is_due()
        return np.zeros(1), {}

    def _is_due(self):
        if self.log is None:
            return True
        with Path(self.log).open("a") as file:
            file.write(json.dumps(os.getpid()) + "\n")
        n = len(Path(self.log).read_text().splitlines())
        return self.times is None or n <= self.times

    def step(self, action):
        self.t += 1
        observation = np.array([float(self.t)])
        reward = 1.0
        if self.is_bad and self.t == 3:
            if self.kind == "raises":
                raise RuntimeError("no battery")
            if self.kind == "long":
                raise RuntimeError("x" * 1_000_000)
            if self.kind == "panics":
                raise Panic("index out of bounds")
            if self.kind == "hangs":
                time.sleep(600)
            if self.kind == "wrong shape":
                observation = np.zeros(2)
            if self.kind == "NaN observation":
                observation = np.array([np.nan])
            if self.kind == "NaN reward":
                reward = float("nan")
            if self.kind == "infinite observation":
                observation = np.array([np.inf])
            if self.kind == "infinite reward":
                reward = -float("inf")
            if self.kind == "exits":
                raise SystemExit(2)
            if self.kind == "dies":
                os.abort()
        info = {"success": bool(self.np_random.random() < 0.5)} if self.t >= 5 else {}
        return observation, reward, self.t >= 5, False, info


gym.register("Trouble-v0", entry_point=Trouble, max_episode_steps=20)
