"""Train a policy by behaviour cloning, so that the same episodes give the same checkpoint bytes.

The counterpart of :mod:`training` for an algorithm that learns from recorded episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.errors import ConfigError
from minari_pipe.policies.algorithms import check_spaces, resolve_policy_kwargs
from minari_pipe.policies.batched_network import one_torch_thread
from minari_pipe.policies.training import (
    WINDOW,
    build_model,
    check_hyperparameters,
    check_seed,
    environments,
    refusing_divergence,
    save_policy,
    seeded,
    vector_environment,
)

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize

    from minari_pipe.policies.bc import Columns


@dataclass(frozen=True)
class Recorded:
    """The episodes of a dataset, each of ``T`` actions and ``T + 1`` observations."""

    id: str
    """Name of the dataset, for messages."""
    observation_space: gym.Space
    action_space: gym.Space
    episodes: Iterable[EpisodeBuffer]


@dataclass(frozen=True)
class Cloned:
    """The result of behaviour cloning."""

    checkpoint: Path
    n_actions: int
    """Number of actions in the dataset."""
    log_likelihood: float
    """Of an action, averaged over the last (at most 100) batches."""


def clone(
    make_env: Callable[[], gym.Env],
    recorded: Recorded,
    *,
    algorithm: str = "bc",
    policy_class: str = "MlpPolicy",
    policy_kwargs: Mapping[str, Any] | None = None,
    gradient_steps: int,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int,
    normalize_observations: bool = False,
    out_dir: Path | str,
) -> Cloned:
    """Learn the actions of a dataset; write ``policy.zip`` (and ``normalize.npz``) to ``out_dir``.

    Args:
        make_env: makes an environment with the spaces of the dataset; it takes no steps.
        recorded: the episodes.
        algorithm: ``bc``.
        policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
        policy_kwargs: plain values, ``activation_fn`` by name.
        gradient_steps: number of batches to learn from.
        hyperparameters: ``learning_rate``, ``batch_size``, ``ent_coef``.
        seed: seed of the weights and of the order of the actions, 0 to 2**32 - 1.
        normalize_observations: whether to normalise by mean and variance of the dataset's
            observations, which are written to ``normalize.npz``.
        out_dir: created if missing; every file in it is written atomically.

    Raises:
        ConfigError: a setting is unknown or unusable, the dataset has other spaces than the
            environment or nothing to learn from, or the weights became NaN.
    """
    check_settings(algorithm, gradient_steps, hyperparameters, seed)
    settings = check_hyperparameters(algorithm, hyperparameters)
    kwargs = resolve_policy_kwargs(algorithm, policy_class, policy_kwargs)
    out_dir = Path(out_dir)
    with seeded(seed), one_torch_thread(), environments(make_env, 1) as envs:
        _check_same_spaces(envs[0], recorded)
        check_spaces(algorithm, policy_class, recorded.observation_space, recorded.action_space)
        env, normalizer = vector_environment(envs, normalize=normalize_observations)
        model = build_model(algorithm, policy_class, env, kwargs, settings, seed)
        observations, actions = _columns(recorded)
        observations = _as_seen(observations, model, normalizer)
        recent: deque[float] = deque(maxlen=WINDOW)
        bar = ProgressBar(f"train {algorithm}", gradient_steps, "step")

        def on_step(step: int, likelihood: float) -> None:
            recent.append(likelihood)
            bar.show(step, [f"log-likelihood {np.mean(recent):.2f}"])

        with refusing_divergence(model):
            try:
                learn: Any = model.learn
                learn(observations, actions, gradient_steps, on_step)
            finally:
                bar.close()
        out_dir.mkdir(parents=True, exist_ok=True)
        save_policy(model, normalizer, out_dir)
    return Cloned(out_dir / "policy.zip", len(actions), float(np.mean(recent)))


def check_settings(
    algorithm: str, gradient_steps: int, hyperparameters: Mapping[str, Any] | None, seed: int
) -> None:
    """Refuse settings that :func:`clone` does not take, before the dataset is there.

    Raises:
        ConfigError: the message names the key.
    """
    check_hyperparameters(algorithm, hyperparameters)
    if type(gradient_steps) is not int or gradient_steps < 1:
        raise ConfigError(
            f"train.gradient_steps is {gradient_steps!r}; expected an integer of at least 1"
        )
    check_seed(seed)


def _check_same_spaces(env: gym.Env, recorded: Recorded) -> None:
    for kind in ("observation", "action"):
        own, other = (getattr(one, f"{kind}_space") for one in (env, recorded))
        if own != other:
            raise ConfigError(
                f"the {kind}s of {recorded.id} are of {other}, but the environment's of {own}; "
                f"behaviour cloning needs the same: use the environment and wrappers of "
                f"{recorded.id}, or another train.dataset"
            )


def _columns(recorded: Recorded) -> tuple[Columns, np.ndarray]:
    """Return all observations before an action, and all actions in the form of SB3's networks."""
    observed: dict[str, list[np.ndarray]] = {}
    acted = []
    for episode in recorded.episodes:
        rows = episode.observations
        for key, column in rows.items() if isinstance(rows, dict) else [("", rows)]:
            observed.setdefault(key, []).append(np.asarray(column)[:-1])
        acted.append(np.asarray(episode.actions))
    if not sum(map(len, acted)):
        raise ConfigError(f"{recorded.id} has no actions to learn from; choose another dataset")
    by_key = {key: np.concatenate(parts) for key, parts in observed.items()}
    for key, column in by_key.items():
        if not np.isfinite(column).all():
            raise ConfigError(
                f"{recorded.id}: {f'observations[{key!r}]' if key else 'observations'} hold NaN or "
                f"infinity, from which nothing can be learned; choose another dataset"
            )
    actions = _network_actions(np.concatenate(acted), recorded)
    is_dict = isinstance(recorded.observation_space, spaces.Dict)
    return (by_key if is_dict else by_key[""]), actions


def _network_actions(actions: np.ndarray, recorded: Recorded) -> np.ndarray:
    space = recorded.action_space
    if isinstance(space, spaces.Box):
        is_valid = np.isfinite(actions)
    else:
        end = {"Discrete": "n", "MultiDiscrete": "nvec"}.get(type(space).__name__)
        is_valid = (actions >= 0) & (actions < (getattr(space, end) if end else 2))
    if not is_valid.all():
        raise ConfigError(f"{recorded.id} has actions outside of {space}; choose another dataset")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return actions.astype(np.int64)
    return actions.reshape(len(actions), -1).astype(np.float32)


def _as_seen(
    observations: Columns, model: BaseAlgorithm, normalizer: VecNormalize | None
) -> Columns:
    """Return observations as the network sees them, after setting the normalizer's statistics."""
    from stable_baselines3.common.vec_env import VecTransposeImage

    if normalizer is not None:
        moments = normalizer.obs_rms
        if isinstance(observations, dict) and isinstance(moments, dict):
            for key, moment in moments.items():
                moment.update(observations[key])
        else:
            moments.update(observations)
        observations = normalizer.normalize_obs(observations)
    if isinstance(model.env, VecTransposeImage):
        observations = model.env.transpose_observations(observations)
    return observations
