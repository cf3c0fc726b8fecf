"""Controllers for Meta-World."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from metaworld.policies import ENV_POLICY_MAP

from minari_pipe.errors import ConfigError


class MetaWorldExpert:
    """The scripted policy that Meta-World ships for each task."""

    def __init__(self, env: gym.Env) -> None:
        """Make the policy of the environment's task.

        Raises:
            ConfigError: the environment is no ``MetaWorld/NAME``.
        """
        task: Any = getattr(env.unwrapped, "task", None)
        if task not in ENV_POLICY_MAP:
            raise ConfigError(f"MetaWorldExpert needs an environment MetaWorld/NAME, got {env}")
        # It warns at every step of an action that it leaves to be clipped, as it is here.
        warnings.filterwarnings("ignore", "Constant", module="metaworld")
        self._policy: Any = ENV_POLICY_MAP[task]()  # type: ignore[abstract]

    def __call__(self, observation: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Return the action, shape ``(4,)``, each entry within [-1, 1]."""
        action = self._policy.get_action(observation)
        return np.clip(action, -1.0, 1.0).astype(np.float32)
