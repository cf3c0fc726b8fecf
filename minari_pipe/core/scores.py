"""Compute reference scores and normalized scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import CorruptDatasetError, InvalidMetadataError, MissingReferenceScoreError


class _Dataset(Protocol):
    """The part of a ``MinariDataset``, which is in a higher layer, that a score needs."""

    @property
    def id(self) -> str: ...

    @property
    def storage(self) -> Any: ...


@dataclass(frozen=True)
class ReferenceScore:
    """The mean return of one policy in one environment, and how well it is known.

    Attributes:
        mean: mean undiscounted return, in reward units.
        std: sample standard deviation of the returns (``n - 1``), 0 for a single episode.
        stderr: standard error of the mean, ``std / sqrt(n)``, 0 for a single episode.
        n: number of episodes.
        min: smallest return.
        max: largest return.
    """

    mean: float
    std: float
    stderr: float
    n: int
    min: float
    max: float

    @classmethod
    def from_returns(cls, returns: npt.ArrayLike) -> ReferenceScore:
        """Summarise returns.

        Args:
            returns: shape ``(N,)``, at least one, in reward units.

        Raises:
            InvalidMetadataError: there are no returns, or one is not finite.

        Example:
            >>> ReferenceScore.from_returns([1.0, 3.0])
            ReferenceScore(mean=2.0, std=1.4142135623730951, stderr=1.0, n=2, min=1.0, max=3.0)
        """
        values = np.asarray(returns, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise InvalidMetadataError(
                f"a reference score needs at least one return, all finite; got shape "
                f"{values.shape} with {int((~np.isfinite(values)).sum())} non-finite values"
            )
        n = len(values)
        std = float(values.std(ddof=1)) if n > 1 else 0.0
        return cls(
            mean=float(values.mean()),
            std=std,
            stderr=std / math.sqrt(n),
            n=n,
            min=float(values.min()),
            max=float(values.max()),
        )


def normalize_return(
    episode_return: npt.ArrayLike, *, ref_min: float | None, ref_max: float | None
) -> Any:
    """Scale undiscounted returns so that 0 is the random policy and 1 the expert.

    The result is not clipped: below 0 is worse than random, above 1 beats the expert.
    D4RL defined this score (Fu et al. 2020, section 5).

    Args:
        episode_return: shape ``(N,)`` or one number, in reward units of the environment.
        ref_min: mean return of the random policy, same units.
        ref_max: mean return of the expert policy, same units.

    Returns:
        Normalized scores, of the same shape, dimensionless.

    Raises:
        MissingReferenceScoreError: a reference score is None, or they are equal.

    Example:
        >>> normalize_return(np.array([0.0, 50.0, 200.0]), ref_min=0.0, ref_max=100.0)
        array([0. , 0.5, 2. ])
    """
    if ref_min is None or ref_max is None:
        missing = "ref_min" if ref_min is None else "ref_max"
        raise MissingReferenceScoreError(
            f"Reference score not provided: {missing} is None. Can't compute the normalized score."
        )
    if ref_min == ref_max:
        raise MissingReferenceScoreError(
            f"both reference scores are {ref_min}, but the scores of the random and the expert "
            "policy must differ"
        )
    return (np.asarray(episode_return)[()] - ref_min) / (ref_max - ref_min)


def get_normalized_score(dataset: _Dataset, returns: npt.ArrayLike) -> Any:
    """Scale returns by a dataset's reference scores; see :func:`normalize_return`.

    Args:
        dataset: a dataset whose metadata has ``ref_min_score`` and ``ref_max_score``.
        returns: one return or shape ``(N,)``, in reward units.

    Returns:
        Normalized scores, of the same shape, dimensionless.

    Raises:
        MissingReferenceScoreError: the dataset lacks a reference score.
        TypeError: it is not a dataset, but its id, for example.
        CorruptDatasetError: a reference score is not a finite number.

    Example:
        >>> from minari_pipe import get_normalized_score
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> dataset = step_index_dataset()
        >>> dataset.storage.update_metadata({"ref_min_score": 10.0, "ref_max_score": 20.0})
        >>> get_normalized_score(dataset, [10.0, 15.0])
        array([0. , 0.5])
    """
    if not hasattr(dataset, "storage"):
        raise TypeError(f"expected a dataset, got {dataset!r:.60}; open it with load_dataset")
    metadata = dataset.storage.metadata
    ref_min, ref_max = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if ref_min is None or ref_max is None:
        raise MissingReferenceScoreError(
            f"Reference score not provided for dataset {dataset.id}. Can't compute the normalized "
            "score. Set ref_min_score and ref_max_score with dataset.storage.update_metadata"
        )
    for key, value in (("ref_min_score", ref_min), ("ref_max_score", ref_max)):
        try:
            finite = math.isfinite(value)
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise CorruptDatasetError(
                f"{dataset.id}: metadata {key!r} must be a finite number, got {value!r}"
            )
    return normalize_return(returns, ref_min=ref_min, ref_max=ref_max)


class RandomPolicy:
    """Policy of uniformly random actions, always the same (Minari's for ``ref_min_score``).

    Example:
        >>> import gymnasium as gym
        >>> from minari_pipe import RandomPolicy
        >>> policy = RandomPolicy(gym.make("CartPole-v1"))
        >>> [int(policy(observation=None)) for _ in range(6)]
        [0, 1, 1, 0, 1, 0]
    """

    def __init__(self, env: gym.Env) -> None:
        """Seed the action space of an environment with 123.

        Args:
            env: the environment.
        """
        self.action_space = env.action_space
        self.action_space.seed(123)

    def __call__(self, observation: Any) -> Any:
        """Return a random action.

        Args:
            observation: ignored.
        """
        return self.action_space.sample()


def get_average_reference_score(
    env: gym.Env, policy: Callable[[Any], Any], num_episodes: int
) -> float:
    """Return the mean undiscounted return of a policy, with the first reset seeded with 123.

    Args:
        env: environment whose episodes end by themselves.
        policy: maps an observation to an action.
        num_episodes: number of episodes, at least one.

    Raises:
        InvalidMetadataError: there are no episodes, or a return is not finite.

    Example:
        >>> import gymnasium as gym
        >>> from minari_pipe import get_average_reference_score
        >>> env = gym.make("CartPole-v1")
        >>> get_average_reference_score(env, lambda observation: 0, num_episodes=4)
        9.0
    """
    returns = []
    observation, _ = env.reset(seed=123)
    for _ in range(num_episodes):
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
        observation, _ = env.reset()
    return ReferenceScore.from_returns(returns).mean
