"""Meta-World's 50 tasks as environments that can be seeded, stored and recovered.

Those that the package itself registers have a lambda as entry point, which no file can hold, and
draw their goals from a history that ``reset(seed=...)`` does not restart. Importing this module
registers ``MetaWorld/NAME`` for every task, such as ``MetaWorld/reach-v3``.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

#: steps after which the tasks refuse to go on
MAX_EPISODE_STEPS = 500

Array = npt.NDArray[np.float64]


class MetaWorldEnv(gym.Env[Any, npt.NDArray[np.float32]]):
    """One task: its goal is part of the observation, and ``reset(seed=...)`` draws it.

    ``info["success"]`` says whether the goal is reached; no episode terminates.
    """

    def __init__(self, task: str, render_mode: Any = None, **kwargs: Any) -> None:
        """Make a task.

        Args:
            task: such as ``reach-v3``.
            render_mode: of Meta-World, such as ``rgb_array``.
            kwargs: other arguments of the task's class, such as ``camera_name``.
        """
        self._task = ALL_V3_ENVIRONMENTS[task](render_mode=render_mode, **kwargs)
        self.task, self.render_mode, self.metadata = task, render_mode, self._task.metadata
        # as the package does itself for environments with an observable goal
        self._task._partially_observable = False
        self._task._freeze_rand_vec = False
        self._task._set_task_called = True
        self._task.seeded_rand_vec = True
        self._task.__dict__.pop("sawyer_observation_space", None)
        self.observation_space = self._task.sawyer_observation_space
        self.action_space = self._task.action_space

    @property
    def model(self) -> Any:
        """MuJoCo's model."""
        return self._task.model

    @property
    def data(self) -> Any:
        """MuJoCo's data, with the state of the simulator."""
        return self._task.data

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._task.seed(seed)
        observation, info = self._task.reset()
        return observation, info

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._task.step(action)
        return observation, float(reward), terminated, truncated, info

    def render(self) -> Any:
        return self._task.render()

    def close(self) -> None:
        self._task.close()


for _name in ALL_V3_ENVIRONMENTS:
    if (_id := f"MetaWorld/{_name}") not in gym.registry:
        gym.register(
            _id,
            entry_point=f"{__name__}:{MetaWorldEnv.__name__}",
            max_episode_steps=MAX_EPISODE_STEPS,
            kwargs={"task": _name},
            disable_env_checker=True,  # it warns of coordinates that a task's goals share
        )
