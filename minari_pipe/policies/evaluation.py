"""Measure the returns of a policy over many episodes, as the reference scores need them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.base import Policy
from minari_pipe.policies.rollout import run_lockstep
from minari_pipe.recording.recorder import to_float


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one evaluation episode."""

    episode: int
    seed: int
    episode_return: float
    """Undiscounted sum of the rewards."""
    n_steps: int
    success: bool | None
    """Whether the environment reported a success at any step; see :func:`succeeded`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def succeeded(
    info: Mapping[str, Any], before: bool | None = None, success_key: str | None = None
) -> bool | None:
    """Return whether an episode has had a success up to the step that returned ``info``.

    Environments report it as ``success`` (Adroit, PointMaze, Meta-World) or as ``is_success``
    (Fetch, and the key that Stable-Baselines3 reads); ``None`` means that none was reported.

    Args:
        info: info of a step.
        before: result of this function for the step before.
        success_key: the key of the info, if it is another one.

    Example:
        >>> succeeded({}), succeeded({"success": 1.0}), succeeded({"is_success": False}, True)
        (None, True, True)
    """
    for key in (success_key,) if success_key else ("success", "is_success"):
        if key in info:
            return bool(before) or bool(np.any(info[key]))
    return before


class _Counter:
    """Sums up an episode without storing its steps."""

    def __init__(self, success_key: str | None) -> None:
        self._success_key = success_key

    def start(self, observation: Any, info: dict, *, seed: int, options: dict | None) -> None:
        self._seed, self._return, self._n_steps = seed, 0.0, 0
        self._success: bool | None = None

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict,
    ) -> None:
        if not math.isfinite(reward := to_float(reward)):
            raise InvalidEpisodeError(f"the environment returned the reward {reward}")
        self._return += reward
        self._n_steps += 1
        if info:
            self._success = succeeded(info, self._success, self._success_key)

    def truncate(self) -> None:
        """Do nothing, because truncation does not change the return."""

    def finish(self, episode: int) -> EpisodeResult:
        return EpisodeResult(episode, self._seed, self._return, self._n_steps, self._success)


def evaluate(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    episodes: Collection[int],
    *,
    seed: int,
    n_envs: int = 8,
    success_key: str | None = None,
    options: Mapping[str, Any] | None = None,
    on_step: Callable[[int], None] = lambda n: None,
) -> Iterator[EpisodeResult]:
    """Run ``episodes`` of ``policy`` and yield their results in order.

    For one ``seed``, the results do not depend on how the episodes are divided among calls. The
    other arguments are those of :func:`succeeded` and of :func:`rollout.run_lockstep`.
    """
    return run_lockstep(
        make_env,
        lambda env: _Counter(success_key),
        policy,
        episodes,
        seed=seed,
        n_envs=n_envs,
        options=options,
        on_step=on_step,
    )
