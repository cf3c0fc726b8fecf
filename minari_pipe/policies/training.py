"""Train a Stable-Baselines3 policy so that the same arguments give the same checkpoint bytes.

Training uses one thread, steps the environments in this process, seeds all generators before the
first is used, and writes a checkpoint without times and paths (:mod:`checkpoint`).
"""

from __future__ import annotations

import inspect
import random
import types
import typing
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.policies.action_masks import ActionMasks
from minari_pipe.policies.algorithms import (
    UNBUILDABLE,
    check_spaces,
    find_algorithm,
    find_policy_class,
    load_algorithm,
    network_observation_space,
    require_plain,
    resolve_policy_kwargs,
    short_text,
)
from minari_pipe.policies.batched_network import one_torch_thread
from minari_pipe.policies.checkpoint import write_checkpoint
from minari_pipe.policies.checkpoints import checkpoint_folder, share_step
from minari_pipe.policies.normalization import write_normalization

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

_OWN_KEY = "it has its own config key"
#: Arguments of an algorithm that a config must not set, with the reasons.
_REFUSED = {
    "policy": _OWN_KEY,
    "env": _OWN_KEY,
    "policy_kwargs": _OWN_KEY,
    "seed": _OWN_KEY,
    "device": "training runs on the CPU",
    "tensorboard_log": "training writes only its checkpoint",
    "verbose": "a progress bar is shown instead",
}
#: Settings that must be at least 1. Stable-Baselines3 checks few of them; with a lower value it
#: learns nothing or fails midway.
_AT_LEAST_ONE = (
    "batch_size",
    "buffer_size",
    "n_epochs",
    "n_steps",
    "policy_delay",
    "target_update_interval",
    "train_freq",
)
_PLAIN_TYPES = (bool, int, float, str, tuple, type(None))
#: Episodes, or batches of actions, in the mean that is shown and reported.
WINDOW = 100


@dataclass(frozen=True)
class Training:
    """The result of a training."""

    checkpoint: Path
    normalization: Path | None
    n_episodes: int
    mean_return: float | None
    """Mean return of the last (at most 100) training episodes, exploration included; ``None`` if
    none ended."""
    checkpoints: tuple[int, ...]
    """Steps of the checkpoints that were saved during the training and at its end."""


def train(
    make_env: Callable[[], gym.Env],
    *,
    algorithm: str,
    policy_class: str = "MlpPolicy",
    policy_kwargs: Mapping[str, Any] | None = None,
    total_timesteps: int,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int,
    n_envs: int = 1,
    normalize_observations: bool = False,
    n_checkpoints: int = 0,
    checkpoints_at: Sequence[float] = (),
    vector_env: Callable[[list[gym.Env]], VecEnv] | None = None,
    out_dir: Path | str,
) -> Training:
    """Train a policy and write ``policy.zip`` (and ``normalize.npz``) into ``out_dir``.

    Args:
        make_env: makes one environment; called ``n_envs`` times.
        algorithm: a name of ``algorithms.ALGORITHMS``.
        policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
        policy_kwargs: plain values, ``activation_fn`` by name.
        total_timesteps: steps over all environments; the algorithm rounds up to whole rollouts.
        hyperparameters: plain arguments of the algorithm. ``action_noise`` is a number: the
            standard deviation of normal noise, in units of actions scaled to [-1, 1].
        seed: seed of everything random, 0 to 2**32 - 1.
        n_envs: number of environments that step together.
        normalize_observations: whether to normalise by running mean and variance (SB3's
            ``VecNormalize``), whose final values are written to ``normalize.npz``.
        n_checkpoints: how often to save the policy, evenly over the steps, the last time at the
            end: in folders ``checkpoints/STEP`` with files of the same names. A checkpoint holds
            the policy that has learned from all steps up to ``STEP``, so it is saved between two
            rollouts; there are fewer if the algorithm has fewer rollouts.
        checkpoints_at: shares of the steps, above 0 and at most 1, after which the policy is saved
            as well, and at the end.
        vector_env: combines the environments in SB3's vector form and does not close them;
            ``None``: SB3's ``DummyVecEnv``.
        out_dir: created if missing; every file in it is written atomically.

    Raises:
        ConfigError: a setting is unknown or unusable, or the weights became NaN.
    """
    settings = check_hyperparameters(algorithm, hyperparameters)
    kwargs = resolve_policy_kwargs(algorithm, policy_class, policy_kwargs)
    if "use_sde" in kwargs:
        raise ConfigError("policy_kwargs.use_sde: set hyperparameters.use_sde instead")
    for name, value, low in (
        ("total_timesteps", total_timesteps, 1),
        ("n_envs", n_envs, 1),
        ("n_checkpoints", n_checkpoints, 0),
    ):
        if type(value) is not int or value < low:
            raise ConfigError(f"train.{name} is {value!r}; expected an integer of at least {low}")
    check_seed(seed)
    out_dir = Path(out_dir)
    with seeded(seed), one_torch_thread(), environments(make_env, n_envs) as envs:
        check_spaces(algorithm, policy_class, envs[0].observation_space, envs[0].action_space)
        if find_algorithm(algorithm).masked:
            ActionMasks(envs, n_envs)  # Stable-Baselines3 would fail only midway
        env, normalizer = vector_environment(
            envs, normalize=normalize_observations, make=vector_env or _dummy
        )
        model = build_model(algorithm, policy_class, env, kwargs, settings, seed)
        saved: list[int] = []
        evenly = {-(-total_timesteps * k // n_checkpoints) for k in range(1, n_checkpoints + 1)}
        due = sorted(evenly | {share_step(share, total_timesteps) for share in checkpoints_at})

        def save_checkpoint(*, last: bool = False) -> None:
            passed = bisect_right(due, saved[-1]) if saved else 0
            step = int(model.num_timesteps)
            if due and (last or bisect_right(due, step) > passed):
                folder = checkpoint_folder(out_dir, step)
                folder.mkdir(parents=True, exist_ok=True)
                save_policy(model, normalizer, folder)
                saved.extend([step] if step not in saved else [])

        callback = _learn(model, total_timesteps, f"train {algorithm}", save_checkpoint)
    out_dir.mkdir(parents=True, exist_ok=True)
    save_policy(model, normalizer, out_dir)
    save_checkpoint(last=True)
    return Training(
        checkpoint=out_dir / "policy.zip",
        normalization=out_dir / "normalize.npz" if normalizer else None,
        n_episodes=callback.n_episodes,
        mean_return=float(np.mean(callback.returns)) if callback.returns else None,
        checkpoints=tuple(saved),
    )


def save_policy(model: BaseAlgorithm, normalizer: VecNormalize | None, folder: Path) -> None:
    """Write ``policy.zip``, and ``normalize.npz`` if observations are normalised."""
    normalization = folder / "normalize.npz"
    if normalizer is None:
        normalization.unlink(missing_ok=True)
    else:
        write_normalization(normalizer, normalization)
    write_checkpoint(model, folder / "policy.zip")


def check_seed(seed: int) -> None:
    """Refuse a seed of a training that is not an integer from 0 to 2**32 - 1."""
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise ConfigError(f"train.seed is {seed!r}; expected an integer from 0 to 2**32 - 1")


def check_hyperparameters(
    algorithm: str, hyperparameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Check ``hyperparameters`` against the arguments of the algorithm.

    Returns:
        The same hyperparameters, with lists as tuples.

    Raises:
        ConfigError: a name is unknown (the message suggests the nearest) or must not be set, a
            value has the wrong type, or a count is below 1.
    """
    signature = inspect.signature(load_algorithm(algorithm).__init__, eval_str=True)
    plain = {name: _plain_types(p.annotation) for name, p in signature.parameters.items()}
    known = {n for n, t in plain.items() if t and not n.startswith("_")} - _REFUSED.keys()
    if "action_noise" in plain:
        known.add("action_noise")
        plain["action_noise"] = (float,)
    checked = {}
    for name, value in (hyperparameters or {}).items():
        if name not in known:
            reason = f": {_REFUSED[name]}." if name in _REFUSED else f".{did_you_mean(name, known)}"
            raise ConfigError(
                f"hyperparameters.{name} is not a setting of {algorithm}{reason} "
                f"Known: {', '.join(sorted(known))}"
            )
        require_plain(f"hyperparameters.{name}", value)
        value = tuple(value) if isinstance(value, list) else value
        if not _is_one_of(value, plain[name]):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in plain[name])
            raise ConfigError(
                f"hyperparameters.{name} is {value!r}, a {type(value).__name__}; "
                f"{algorithm} takes {names}"
            )
        least = {**dict.fromkeys(_AT_LEAST_ONE, 1), "action_noise": 0}.get(name)
        if least is not None and isinstance(value, int | float) and not value >= least:
            raise ConfigError(f"hyperparameters.{name} is {value!r}; expected at least {least}")
        checked[name] = value
    return checked


def _plain_types(annotation: Any) -> tuple[type, ...]:
    """Return the plain types that an annotation such as ``float | Callable | None`` allows."""
    parts = typing.get_args(annotation) if not isinstance(annotation, type) else (annotation,)
    if typing.get_origin(annotation) is not None and not _is_union(annotation):
        parts = (typing.get_origin(annotation),)
    found = tuple(typing.get_origin(part) or part for part in parts)
    plain = tuple(t for t in found if t in _PLAIN_TYPES)
    return plain if set(plain) != {type(None)} else ()


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, which SB3 uses, and restore their states on exit."""
    import torch
    from stable_baselines3.common.utils import set_random_seed

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            set_random_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def environments(make_env: Callable[[], gym.Env], n: int) -> Iterator[list[gym.Env]]:
    """Make ``n`` environments, and close them on exit."""
    envs: list[gym.Env] = []
    try:
        for _ in range(n):
            envs.append(make_env())
        yield envs
    finally:
        for env in envs:
            env.close()


def _dummy(envs: list[gym.Env]) -> VecEnv:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([partial(_same, one) for one in envs])


def vector_environment(
    envs: list[gym.Env], *, normalize: bool, make: Callable[[list[gym.Env]], VecEnv] = _dummy
) -> tuple[VecEnv, VecNormalize | None]:
    """Return the environments in SB3's vector form, and the normalising wrapper, if any."""
    from stable_baselines3.common.vec_env import VecNormalize

    env = make(envs)
    if not normalize:
        return env, None
    if network_observation_space(env.observation_space) != env.observation_space:
        raise ConfigError("normalize_observations: the network already scales images")
    try:
        normalizer = VecNormalize(env, norm_reward=False)
    except ValueError as exc:
        raise ConfigError(f"normalize_observations: {short_text(exc)}") from exc
    return normalizer, normalizer


def _same(env: gym.Env) -> gym.Env:
    return env


def build_model(
    algorithm: str,
    policy_class: str,
    env: VecEnv,
    policy_kwargs: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> BaseAlgorithm:
    """Return an untrained model on the CPU.

    Args:
        algorithm: a name of ``algorithms.ALGORITHMS``.
        policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
        env: what :func:`vector_environment` returned.
        policy_kwargs: what ``resolve_policy_kwargs`` returned.
        settings: what :func:`check_hyperparameters` returned.
        seed: seed of the weights.

    Raises:
        ConfigError: Stable-Baselines3 refuses the settings.
    """
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.noise import NormalActionNoise

    if "action_noise" in settings:
        size = env.action_space.shape or ()
        sigma = np.full(size, float(settings["action_noise"]))
        settings = {**settings, "action_noise": NormalActionNoise(np.zeros(size), sigma)}
    try:
        model = load_algorithm(algorithm)(
            find_policy_class(algorithm, policy_class),
            env,
            policy_kwargs=policy_kwargs,
            seed=seed,
            device="cpu",
            **settings,
        )
    except UNBUILDABLE as exc:
        raise ConfigError(f"{algorithm} refuses these settings: {short_text(exc)}") from exc
    # SB3's default logger creates a folder with a timestamp for every training.
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _learn(
    model: BaseAlgorithm, total_timesteps: int, label: str, on_round: Callable[[], None]
) -> Any:
    callback = _progress(total_timesteps, label, on_round)
    with refusing_divergence(model):
        try:
            model.learn(total_timesteps, callback=callback)
        finally:
            callback.bar.close()
    return callback


@contextmanager
def refusing_divergence(model: BaseAlgorithm) -> Iterator[None]:
    """Raise ``ConfigError`` if the weights of a model become NaN in the body."""
    diverged = "the training diverged: its weights became NaN; try a smaller learning_rate"
    try:
        yield
    except ValueError as exc:
        if "invalid values" in str(exc):  # torch.distributions, given NaN
            raise ConfigError(diverged) from exc
        raise
    if not all(parameter.isfinite().all() for parameter in model.policy.parameters()):
        raise ConfigError(diverged)


def _progress(total_timesteps: int, label: str, on_round: Callable[[], None]) -> Any:
    from stable_baselines3.common.callbacks import BaseCallback

    class Progress(BaseCallback):
        """Shows the number of steps and the mean return of recent episodes."""

        def __init__(self) -> None:
            super().__init__()
            self.bar = ProgressBar(label, total_timesteps, "step")
            self._details: list[str] = []
            self.returns: deque[float] = deque(maxlen=WINDOW)
            self.n_episodes = 0
            self._running: np.ndarray | float = 0.0

        def _on_rollout_start(self) -> None:
            on_round()  # the policy has learned from all steps so far

        def _on_step(self) -> bool:
            dones = np.asarray(self.locals["dones"])
            self._running = self._running + np.asarray(self.locals["rewards"], dtype=np.float64)
            if dones.any():
                self.returns.extend(self._running[dones])
                self.n_episodes += int(dones.sum())
                self._running[dones] = 0.0
                self._details = [f"return {np.mean(self.returns):.1f}"]
            self.bar.show(self.num_timesteps, self._details)
            return True

    return Progress()
