"""Acts with a Stable-Baselines3 checkpoint in environments that step together.

The network runs on one fixed batch (:mod:`batched_network`); what follows it, clipping, scaling and
sampling, is done row by row in NumPy. Noise comes from the episode's own generator, never from
PyTorch's global one, which ``model.predict`` draws from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import ConfigError
from minari_pipe.fetch import Source, locate
from minari_pipe.files import sha256_file
from minari_pipe.policies.algorithms import (
    check_spaces,
    find_algorithm,
    find_policy_class,
    network_observation_space,
    resolve_policy_kwargs,
)
from minari_pipe.policies.base import Policy
from minari_pipe.policies.batched_network import (
    Batch,
    BatchedNetwork,
    pad_small_layers,
    padded,
)
from minari_pipe.policies.checkpoint import load_policy, load_weights, trusted_load
from minari_pipe.policies.normalization import ObservationNormalization
from minari_pipe.trust import is_trusted_sha256

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.policies import BasePolicy

Outputs = tuple[np.ndarray, ...]


class SB3Policy(Policy):
    """The policy of a checkpoint; an episode's actions depend on that episode alone.

    Row ``i`` of the batch is environment ``i``; rows without an episode hold zeros.
    """

    def __init__(
        self,
        *,
        algorithm: str,
        checkpoint: Source | str | os.PathLike[str] | None = None,
        policy_class: str = "MlpPolicy",
        policy_kwargs: Mapping[str, Any] | None = None,
        normalize: Source | str | os.PathLike[str] | None = None,
        deterministic: bool = True,
    ) -> None:
        """Find the files and read the weights; the network is built in :meth:`bind`.

        Args:
            algorithm: a name of ``algorithms.ALGORITHMS``.
            checkpoint: a zip as ``model.save`` of Stable-Baselines3 writes it.
            policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
            policy_kwargs: as in the training, plain values only (``activation_fn: tanh``). Left
                out, they are SB3's defaults, or those of a checkpoint that the user trusts.
            normalize: an ``.npz`` as :mod:`normalization` describes it, if the training normalised
                observations.
            deterministic: act with the mode of the policy; otherwise sample from its distribution.

        Raises:
            ConfigError: an unknown name, no file, a damaged one, or an algorithm that has no
                distribution to sample from.
            RemoteError: a file could not be fetched.
        """
        self._algorithm, self._policy_class = algorithm, policy_class
        self._policy_kwargs = policy_kwargs
        self._deterministic = deterministic
        find_policy_class(algorithm, policy_class)
        resolved = resolve_policy_kwargs(algorithm, policy_class, policy_kwargs)
        self._refuse_unsampled(gsde=bool(resolved.get("use_sde")))
        if checkpoint is None:
            raise ConfigError(
                "an sb3 policy needs a checkpoint (policy.checkpoint.path=FILE) or a policy.train "
                "block"
            )
        self._path = _find(checkpoint, "the checkpoint", "policy.checkpoint.path=FILE")
        self._normalization = None
        if normalize is not None:
            file = _find(normalize, "the normalization", "policy.normalize.path=FILE")
            self._normalization = ObservationNormalization.load(file)
        # Full unpickling only where it is both needed and allowed by the user.
        self._trusted = not policy_kwargs and is_trusted_sha256(sha256_file(self._path))
        self._weights = None if self._trusted else load_weights(self._path)
        self._bound: tuple[Any, ...] = ()

    def bind(self, envs: Sequence[gym.Env]) -> None:
        """Build the network for these environments' spaces, unless it is built already.

        Raises:
            ConfigError: the checkpoint was made for other spaces or another network.
        """
        if not envs:
            raise ConfigError("a policy needs at least one environment")
        bound = (len(envs), envs[0].observation_space, envs[0].action_space)
        self._rngs: list[np.random.Generator | None] = [None] * len(envs)
        if bound == self._bound:
            return
        self._bound = ()
        _, self._observation_space, self._action_space = bound
        check_spaces(self._algorithm, self._policy_class, *bound[1:])
        if self._normalization is not None:
            self._normalization.check(self._observation_space)
        policy = self._build()
        head = find_algorithm(self._algorithm).head
        squashed = head == "squashed" or bool(policy.squash_output and head == "distribution")
        self._choose = _chooser(
            head, self._action_space, squashed=squashed, deterministic=self._deterministic
        )
        self._images = _channels_last_images(self._observation_space)
        self._batch = _zeros(self._observation_space, padded(len(envs)))
        self._network = BatchedNetwork(_forward(head, policy), self._seen(self._example()))
        self._bound = bound

    def start(self, row: int, episode: int, rng: np.random.Generator) -> None:
        self._rngs[row] = rng

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        batch = self._batch
        for column in batch.values() if isinstance(batch, dict) else [batch]:
            column[...] = 0
        for row, observation in zip(rows, observations, strict=True):
            if isinstance(batch, dict):
                for key, column in batch.items():
                    column[row] = observation[key]
            else:
                batch[row] = observation
        outputs = self._network(self._seen(batch))
        return [self._choose(tuple(o[row] for o in outputs), self._rngs[row]) for row in rows]

    def _build(self) -> BasePolicy:
        if self._trusted:
            policy = trusted_load(
                self._path,
                self._algorithm,
                observation_space=self._observation_space,
                action_space=self._action_space,
            )
        else:
            policy = load_policy(
                self._path,
                algorithm=self._algorithm,
                policy_class=self._policy_class,
                policy_kwargs=self._policy_kwargs,
                observation_space=self._observation_space,
                action_space=self._action_space,
                weights=self._weights,
            )
        acting = getattr(policy, "actor", policy)
        self._refuse_unsampled(gsde=bool(getattr(acting, "use_sde", False)))
        pad_small_layers(policy)
        return policy

    def _refuse_unsampled(self, *, gsde: bool) -> None:
        """Refuse to sample where there is no distribution that one episode's generator can draw."""
        if self._deterministic:
            return
        head = find_algorithm(self._algorithm).head
        reasons = {
            "action": "its noise was part of the training, not of the policy",
            "values": "its exploration was part of the training, not of the policy",
        }
        if gsde and head in ("distribution", "squashed"):
            reasons[head] = "gSDE noise (use_sde) spans several steps and is not supported"
        if head in reasons:
            raise ConfigError(
                f"deterministic=false: {self._algorithm} cannot be sampled here; {reasons[head]}. "
                f"Set deterministic: true"
            )

    def _seen(self, batch: Batch) -> Batch:
        """The batch as the network sees it: normalised, channels first."""
        if self._normalization is not None:
            batch = self._normalization(batch)
        if isinstance(batch, dict):
            return {k: _channels_first(c) if k in self._images else c for k, c in batch.items()}
        return _channels_first(batch) if "" in self._images else batch

    def _example(self) -> Batch:
        rng = np.random.default_rng(0)
        space = self._observation_space
        if isinstance(space, spaces.Dict) and isinstance(self._batch, dict):
            return {k: _example(space[k], column, rng) for k, column in self._batch.items()}
        return _example(space, np.asarray(self._batch), rng)


def _find(source: Source | str | os.PathLike[str], what: str, override: str) -> Path:
    if not isinstance(source, Source):
        source = Source(path=os.fspath(source))
    return locate(source, what=what, override=override)


def _zeros(space: gym.Space, n: int) -> Batch:
    if isinstance(space, spaces.Dict):
        return {key: np.zeros((n, *(s.shape or ())), s.dtype) for key, s in space.spaces.items()}
    return np.zeros((n, *(space.shape or ())), space.dtype)


def _example(space: gym.Space, column: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Distinct rows such as the space may hold, shape and dtype of ``column``."""
    if isinstance(space, spaces.Box) and column.dtype.kind == "f":
        return rng.standard_normal(column.shape).astype(column.dtype)
    highest = {"Discrete": "n", "MultiDiscrete": "nvec"}.get(type(space).__name__)
    below = getattr(space, highest) if highest else 2
    return rng.integers(0, below, column.shape).astype(column.dtype)


def _channels_last_images(space: gym.Space) -> set[str]:
    """Keys of the images whose channels have to be moved; ``""`` for the observation itself."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {key for key, sub in parts.items() if network_observation_space(sub) != sub}


def _channels_first(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(column, -1, 1))


def _forward(head: str, policy: Any) -> Callable[[Any], tuple[torch.Tensor, ...]]:
    """The part of ``policy.predict`` that is a network, one function for each kind of output."""
    from stable_baselines3.common.policies import BasePolicy

    def distribution(observations: Any) -> tuple[torch.Tensor, ...]:
        # As ActorCriticPolicy.get_distribution, which makes a slow torch.distributions object.
        features = BasePolicy.extract_features(policy, observations, policy.pi_features_extractor)
        outputs = policy.action_net(policy.mlp_extractor.forward_actor(features))
        if not hasattr(policy, "log_std") or policy.use_sde:
            return (outputs,)
        return outputs, policy.log_std.expand_as(outputs)

    def squashed(observations: Any) -> tuple[torch.Tensor, ...]:
        mean, log_std, _ = policy.actor.get_action_dist_params(observations)
        return (mean,) if policy.actor.use_sde else (mean, log_std)

    def action(observations: Any) -> tuple[torch.Tensor, ...]:
        return (policy.actor(observations),)

    def values(observations: Any) -> tuple[torch.Tensor, ...]:
        return (policy.q_net(observations),)

    return {
        "distribution": distribution,
        "squashed": squashed,
        "action": action,
        "values": values,
    }[head]


def _chooser(
    head: str, space: Any, *, squashed: bool, deterministic: bool
) -> Callable[[Outputs, np.random.Generator | None], Any]:
    """From one row of the network's outputs to an action, as ``policy.predict`` does it."""

    def gaussian(outputs: Outputs, rng: Any) -> np.ndarray:
        if deterministic:
            return outputs[0]
        mean, log_std = outputs
        noise = rng.standard_normal(mean.shape)
        return (mean + np.exp(log_std, dtype=np.float64) * noise).astype(np.float32)

    def clipped(outputs: Outputs, rng: Any) -> np.ndarray:
        return np.clip(gaussian(outputs, rng).reshape(space.shape), space.low, space.high)

    def scaled(outputs: Outputs, rng: Any) -> np.ndarray:
        action = np.tanh(gaussian(outputs, rng)) if squashed else outputs[0]
        return space.low + (0.5 * (action.reshape(space.shape) + 1.0) * (space.high - space.low))

    def index(logits: np.ndarray, rng: Any) -> int:
        if deterministic:
            return int(np.argmax(logits))
        weights = np.exp(logits.astype(np.float64) - logits.max())
        below = np.cumsum(weights)
        return int(np.searchsorted(below / below[-1], rng.random(), side="right"))

    def one_of(outputs: Outputs, rng: Any) -> np.integer:
        return space.dtype.type(index(outputs[0], rng))

    def several(outputs: Outputs, rng: Any) -> np.ndarray:
        parts = np.split(outputs[0], np.cumsum(space.nvec.ravel())[:-1])
        return np.array([index(p, rng) for p in parts], space.dtype).reshape(space.shape)

    def switches(outputs: Outputs, rng: Any) -> np.ndarray:
        logits = outputs[0].astype(np.float64)
        on = logits > 0 if deterministic else rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
        return on.astype(space.dtype).reshape(space.shape)

    if isinstance(space, spaces.Box):
        return clipped if head == "distribution" and not squashed else scaled
    return {"Discrete": one_of, "MultiDiscrete": several, "MultiBinary": switches}[
        type(space).__name__
    ]
