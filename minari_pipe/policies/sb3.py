"""Act with a Stable-Baselines3 checkpoint in environments that step together.

The network runs on batches of one size (:mod:`batched_network`). Noise, clipping and scaling follow
in :mod:`action_heads`. Noise comes from the episode's own generator, not from PyTorch's global one,
which ``model.predict`` uses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.core.trust import is_trusted_sha256
from minari_pipe.errors import ConfigError
from minari_pipe.policies.acting_network import make_forward, make_head
from minari_pipe.policies.action_masks import ActionMasks
from minari_pipe.policies.algorithms import (
    check_spaces,
    find_algorithm,
    find_policy_class,
    network_observation_space,
    resolve_policy_kwargs,
)
from minari_pipe.policies.base import Policy, RowError
from minari_pipe.policies.batched_network import Batch, BatchedNetwork, pad_small_layers
from minari_pipe.policies.batches import fill, padded, zeros
from minari_pipe.policies.checkpoint import load_policy, load_weights, trusted_load
from minari_pipe.policies.normalization import ObservationNormalization

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy


class SB3Policy(Policy):
    """The policy of a checkpoint; the actions of an episode depend on that episode alone.

    Row ``i`` of the batch is environment ``i``; rows without an episode hold zeros.
    """

    def __init__(
        self,
        *,
        algorithm: str,
        checkpoint: FileSource | str | os.PathLike[str] | None = None,
        policy_class: str = "MlpPolicy",
        policy_kwargs: Mapping[str, Any] | None = None,
        normalize: FileSource | str | os.PathLike[str] | None = None,
        deterministic: bool = True,
    ) -> None:
        """Find the files and read the weights; the network is built in :meth:`bind`.

        Args:
            algorithm: a name of ``algorithms.ALGORITHMS``.
            checkpoint: a zip written by ``model.save`` of Stable-Baselines3.
            policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
            policy_kwargs: as in the training, plain values only (``activation_fn: tanh``). By
                default those that the file names, else SB3's; a trusted checkpoint has its own.
            normalize: an ``.npz`` in the format of :mod:`normalization`, if the training
                normalised observations.
            deterministic: whether to act with the policy's mode; if not, sample its distribution.
                DQN, TD3 and DDPG have none, and always act with their mode.

        Raises:
            ConfigError: a name is unknown, or a file is missing or damaged.
            MissingDependencyError: the algorithm's package is not installed.
            RemoteError: a file could not be fetched.
        """
        self._algorithm, self._policy_class = algorithm, policy_class
        self._policy_kwargs = policy_kwargs
        self._deterministic = deterministic
        find_policy_class(algorithm, policy_class)
        resolve_policy_kwargs(algorithm, policy_class, policy_kwargs)
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
        # Unpickle the whole file only if there are no policy_kwargs and the user trusts the file.
        self._trusted = not policy_kwargs and is_trusted_sha256(sha256_file(self._path))
        self._weights = None if self._trusted else load_weights(self._path)
        self._bound: tuple[Any, ...] = ()

    def bind(self, envs: Sequence[gym.Env]) -> None:
        """Build the network for the spaces of these environments, unless it exists already.

        Raises:
            ConfigError: the checkpoint was made for other spaces or another network, or the
                algorithm needs masks and the environment has none.
        """
        if not envs:
            raise ConfigError("a policy needs at least one environment")
        n_rows = padded(len(envs))
        bound = (n_rows, envs[0].observation_space, envs[0].action_space)
        if bound != self._bound:
            self._bound = ()
            self._build(*bound)
            self._bound = bound
        masked = find_algorithm(self._algorithm).masked
        self._masks = ActionMasks(envs, n_rows) if masked else None

    def start(self, row: int, episode: int, rng: np.random.Generator) -> None:
        self._head.start(row, rng)
        for state in self._state:
            state[row] = 0.0

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        fill(self._batch, observations, rows)
        outputs = self._network(self._seen(self._batch), *self._state)
        for state, after in zip(self._state, outputs[len(outputs) - len(self._state) :]):
            state[...] = 0.0
            state[rows] = after[rows]
        finite = np.isfinite(outputs[0]).all(axis=1)
        if not finite.all():
            self._refuse_diverged(finite, rows)
        masks = None if self._masks is None else self._masks(rows)
        actions = self._head(outputs, rows, masks)
        return [actions[row] for row in rows]

    def _build(self, n_rows: int, observation_space: gym.Space, action_space: gym.Space) -> None:
        self._observation_space = observation_space
        check_spaces(self._algorithm, self._policy_class, observation_space, action_space)
        if self._normalization is not None:
            self._normalization.check(observation_space)
        policy: Any = self._load(action_space)
        algorithm = find_algorithm(self._algorithm)
        self._head = make_head(
            algorithm,
            policy,
            action_space,
            n_rows,
            deterministic=self._deterministic,
        )
        self._state: list[np.ndarray] = []
        if algorithm.recurrent:
            layers, _, size = policy.lstm_hidden_state_shape
            self._state = [np.zeros((n_rows, layers, size), np.float32) for _ in range(2)]
        self._images = _channels_last_images(observation_space)
        self._batch: Batch = zeros(observation_space, n_rows)
        forward = make_forward(algorithm, policy, sampled=not self._deterministic)
        self._network = BatchedNetwork(forward, self._example())

    def _load(self, action_space: gym.Space) -> BasePolicy:
        if self._trusted:
            policy = trusted_load(
                self._path,
                self._algorithm,
                observation_space=self._observation_space,
                action_space=action_space,
            )
        else:
            policy = load_policy(
                self._path,
                algorithm=self._algorithm,
                policy_class=self._policy_class,
                policy_kwargs=self._policy_kwargs,
                observation_space=self._observation_space,
                action_space=action_space,
                weights=self._weights,
            )
        pad_small_layers(policy)
        return policy

    def _refuse_diverged(self, finite: np.ndarray, rows: Sequence[int]) -> None:
        for row in rows:
            if not finite[row]:
                parts = self._batch.values() if isinstance(self._batch, dict) else [self._batch]
                seen = all(np.isfinite(part[row]).all() for part in parts)
                raise RowError(
                    row,
                    "the policy's network returned NaN or infinity"
                    if seen
                    else "the environment's observation holds NaN or infinity",
                )

    def _seen(self, batch: Batch) -> Batch:
        """Return the batch as the network sees it: normalised, channels first."""
        if self._normalization is not None:
            batch = self._normalization(batch)
        if isinstance(batch, dict):
            return {k: _channels_first(c) if k in self._images else c for k, c in batch.items()}
        return _channels_first(batch) if "" in self._images else batch

    def _example(self) -> list[Batch]:
        rng = np.random.default_rng(0)
        space = self._observation_space
        batch: Batch
        if isinstance(space, spaces.Dict) and isinstance(self._batch, dict):
            batch = {k: _example(space[k], column, rng) for k, column in self._batch.items()}
        else:
            batch = _example(space, np.asarray(self._batch), rng)
        states = [rng.uniform(-1, 1, s.shape).astype(s.dtype) for s in self._state]
        return [self._seen(batch), *states]


def _find(source: FileSource | str | os.PathLike[str], what: str, override: str) -> Path:
    if not isinstance(source, FileSource):
        source = FileSource(path=os.fspath(source))
    return locate(source, what=what, override=override)


def _example(space: gym.Space, column: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return distinct rows that the space may hold, in the shape and dtype of ``column``."""
    if isinstance(space, spaces.Box) and column.dtype.kind == "f":
        return rng.standard_normal(column.shape).astype(column.dtype)
    highest = {"Discrete": "n", "MultiDiscrete": "nvec"}.get(type(space).__name__)
    below = getattr(space, highest) if highest else 2
    return rng.integers(0, below, column.shape).astype(column.dtype)


def _channels_last_images(space: gym.Space) -> set[str]:
    """Return the keys of images with channels last; ``""`` is the observation itself."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {key for key, sub in parts.items() if network_observation_space(sub) != sub}


def _channels_first(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(column, -1, 1))
