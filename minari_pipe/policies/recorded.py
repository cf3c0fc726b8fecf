"""Mark the environment that is recorded below the wrappers that only a policy sees."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from minari_pipe.core.episode import copied
from minari_pipe.errors import ConfigError
from minari_pipe.policies.actions import element


class Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """Marks the environment that is recorded, below wrappers that only the policy sees.

    It keeps what the environment received and returned.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._start: tuple[Any, dict[str, Any]] | None = None
        self._steps: list[tuple[Any, ...]] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._steps.clear()
        observation, info = super().reset(**arguments)
        self._start = copied(observation), copied(info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        action = element(self.action_space, action)
        found = super().step(copied(action))
        # A wrapper may change an observation or an info in place.
        self._steps.append((action, copied(found[0]), *found[1:-1], copied(found[-1])))
        return found

    def start(self) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info of the last reset.

        Raises:
            ConfigError: the wrappers took steps since.
        """
        if self._start is None or self._steps:
            raise ConfigError(
                f"env.policy_wrappers took {len(self._steps)} steps within reset(), of which an "
                "action is unknown; leave out what does, such as noop_max"
            )
        return self._start

    def taken(self) -> tuple[Any, ...]:
        """Return action, observation, reward, flags and info of the step of the last action.

        Raises:
            ConfigError: the wrappers took no step or several.
        """
        if len(self._steps) != 1:
            raise ConfigError(
                f"env.policy_wrappers took {len(self._steps)} steps of the recorded environment "
                "for one action, expected 1; leave out what skips frames, or put it into "
                "env.wrappers"
            )
        return self._steps.pop()


def recorded_env(env: gym.Env[Any, Any]) -> Recorded | None:
    """Return the environment below the policy's wrappers, or None if there are none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Recorded):
            return env
        env = env.env
    return None
