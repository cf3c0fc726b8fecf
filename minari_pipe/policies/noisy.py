"""Add noise to the actions of any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.policies.actions import element
from minari_pipe.policies.base import Policy, RowError, all_valid
from minari_pipe.policies.noise import Noise
from minari_pipe.policies.random import RandomPolicy

FloatArray = npt.NDArray[np.float64]

#: The key of the action without noise in the infos of a step.
CLEAN_ACTION = "clean_action"


class NoisyPolicy(Policy):
    """Adds noise to the actions of another policy, or replaces some by random ones.

    The noise of an episode comes from the episode's own generator, after what the policy itself
    draws for the step. So it does not depend on the row, or on the other rows.
    """

    def __init__(self, policy: Policy, noise: Noise, where: str = "policy.noise") -> None:
        """Store the policy that acts, the noise that is added, and its key in the config."""
        self._policy, self._noise, self._where = policy, noise, where
        self._random = RandomPolicy()
        self._rngs: dict[int, np.random.Generator] = {}
        self._clean: dict[int, Any] = {}

    @property
    def takes_infos(self) -> bool:
        return self._policy.takes_infos

    def see(self, row: int, info: dict[str, Any]) -> None:
        self._policy.see(row, info)

    @property
    def records_infos(self) -> bool:
        return self._noise.keep_clean_action or self._policy.records_infos

    def bind(self, envs: Sequence[gym.Env]) -> None:
        self._policy.bind(envs)
        self._space = envs[0].action_space
        if not self._noise.is_added:
            self._random.bind(envs)
            return
        space, self._scale = scaled_space(self._noise, self._space, self._where)
        self._low, self._high = space.low, space.high
        self._units = np.zeros((len(envs), *space.shape))

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any] | None:
        options = self._policy.start(row, episode, rng)
        self._rngs[row] = rng
        if self._noise.is_added:
            self._units[row] = 0.0
        else:
            self._random.start(row, episode, rng)
        return options

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        try:
            clean = self._policy.act(observations, rows)
        except RowError as error:
            if error.actions is None:
                raise
            clean = error.actions
        if len(clean) != len(rows):
            return list(clean)  # the code that runs the policy says what is wrong
        return all_valid(
            [
                action
                if action is None or isinstance(action, RowError)
                else self._noisy(action, observation, row)
                for action, observation, row in zip(clean, observations, rows, strict=True)
            ]
        )

    def infos(self, row: int) -> dict[str, Any]:
        own = self._policy.infos(row) if self._policy.records_infos else {}
        return {**own, CLEAN_ACTION: self._clean[row]} if self._noise.keep_clean_action else own

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any] | None:
        return self._policy.finish(episode, buffer)

    def n_episodes(self) -> int | None:
        return self._policy.n_episodes()

    def _noisy(self, action: Any, observation: Any, row: int) -> Any:
        try:
            # Noise would hide a wrong shape by broadcasting, and infinity by clipping.
            action = self._clean[row] = element(self._space, action)
        except InvalidEpisodeError as exc:
            return RowError(row, str(exc))
        if self._noise.is_added:
            return self._added(action, row)
        is_random = self._rngs[row].random() < self._noise.scale
        return self._random.act([observation], [row])[0] if is_random else action

    def _added(self, action: FloatArray, row: int) -> FloatArray:
        draw = _DRAWS[self._noise.kind]
        self._units[row] = draw(self._noise, self._units[row], self._rngs[row])
        noisy = np.asarray(action, np.float64) + self._scale * self._units[row]
        return np.clip(noisy, self._low, self._high) if self._noise.clip else noisy


def scaled_space(noise: Noise, space: gym.Space, where: str) -> tuple[spaces.Box, FloatArray]:
    """Return the space of the actions, and the scale of noise in it, shape ``space.shape`` or ().

    Args:
        noise: the noise, which is added to actions.
        space: the action space of the environment.
        where: the key of the noise in the config, for messages.

    Raises:
        ConfigError: such noise cannot be added to actions of this space.
    """
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ConfigError(
            f"{where}: {noise.kind} noise needs a Box of floats as action space, the environment "
            f"has {space}; set {where}.kind: epsilon, for random actions"
        )
    if not noise.clip and (space.bounded_below.any() or space.bounded_above.any()):
        raise ConfigError(
            f"{where}.clip: false needs actions without bounds, the environment has {space}, and "
            "validate refuses actions outside; leave clip out"
        )
    scale = np.asarray(noise.scale, np.float64)
    size = int(np.prod(space.shape))
    if scale.shape not in ((), (size,)):
        raise ConfigError(
            f"{where}.scale has {len(scale)} numbers, an action of {space} has {size}; give "
            "one number, or one for each dimension"
        )
    return space, scale.reshape(space.shape) if scale.shape else scale


def _gaussian(noise: Noise, last: FloatArray, rng: np.random.Generator) -> FloatArray:
    return rng.standard_normal(last.shape)


def _uniform(noise: Noise, last: FloatArray, rng: np.random.Generator) -> FloatArray:
    return rng.uniform(-1.0, 1.0, last.shape)


def _ornstein_uhlenbeck(noise: Noise, last: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the next value of the process, as ``OrnsteinUhlenbeckActionNoise`` of SB3 does."""
    drawn = np.sqrt(noise.dt) * rng.standard_normal(last.shape)
    return last - noise.theta * noise.dt * last + drawn


#: The next noise of scale 1, by kind, from the last one of the episode.
_DRAWS: dict[str, Callable[[Noise, FloatArray, np.random.Generator], FloatArray]] = {
    "gaussian": _gaussian,
    "uniform": _uniform,
    "ornstein_uhlenbeck": _ornstein_uhlenbeck,
}
