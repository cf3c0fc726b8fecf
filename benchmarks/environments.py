"""The environments that are collected from."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from benchmarks.work import ACTION, OBSERVATION


class _Shown(gym.Env):
    """Observes one of some arrays that are there already, so that a step costs next to nothing."""

    def __init__(self, shown: npt.NDArray[Any], length: int) -> None:
        self._shown, self._length, self._t = shown, length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._shown[0].copy(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        shown = self._shown[self._t % len(self._shown)].copy()
        return shown, 0.5, False, self._t >= self._length, {}


class Vectors(_Shown):
    """Observes vectors, in episodes of a given length."""

    def __init__(self, length: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (ACTION,), np.float32)
        super().__init__(np.random.default_rng(0).standard_normal((64, OBSERVATION)), length)


class Images(_Shown):
    """Observes images of 96 × 96 pixels in blocks, in episodes of 100 steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (96, 96, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        blocks = np.random.default_rng(0).integers(0, 255, (16, 12, 12, 3), dtype=np.uint8)
        super().__init__(np.kron(blocks, np.ones((1, 8, 8, 1), np.uint8)), 100)


#: vectors for the pipeline, which makes environments by an id; its own time limit ends episodes
VECTORS = f"{__name__}:Vectors-v0"
gym.register("Vectors-v0", f"{__name__}:Vectors", kwargs={"length": 10**9}, max_episode_steps=1000)


def make(name: str) -> gym.Env:
    """Make an environment by its name; ``vectors-1000`` has episodes of 1000 steps."""
    if name == "images":
        return Images()
    if name.startswith("vectors-"):
        return Vectors(int(name.removeprefix("vectors-")))
    if name.startswith("Adroit"):
        import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)
    return gym.make(name)


def actions(env: gym.Env, count: int) -> list[npt.NDArray[Any]]:
    """Return random actions, the same ones each time; some of the first 256, again and again."""
    env.action_space.seed(0)
    some = [env.action_space.sample() for _ in range(256)]
    return [some[number % 256] for number in range(count)]


def recording_fault() -> str | None:
    """Return why Minari cannot record here, None if it can; imports what its first step does."""
    try:
        importlib.import_module("jax.tree_util")
    except ImportError:
        return "jax is not installed, without which Minari records nothing"
    return None


def run(env: gym.Env, chosen: list[Any]) -> None:
    """Step an environment, with a reset where an episode ends."""
    seed = 0
    env.reset(seed=seed)
    step = env.step
    for action in chosen:
        _, _, terminated, truncated, _ = step(action)
        if terminated or truncated:
            seed += 1
            env.reset(seed=seed)
