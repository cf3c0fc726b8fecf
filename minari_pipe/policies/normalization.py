"""Normalise observations as Stable-Baselines3's ``VecNormalize`` does, from plain arrays.

SB3 pickles the whole wrapper; here its statistics are in an ``.npz``, read without unpickling::

    obs_mean, obs_var       shape of an observation, float64, in units of the environment (squared)
    obs_mean.KEY, obs_var.KEY   replace these for each normalised key of a Dict
    clip_obs, epsilon       scalars: bound of the result, and the term added to the variance
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import ConfigError
from minari_pipe.policies.archive import read_arrays, write_arrays
from minari_pipe.policies.batched_network import Batch

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize


@dataclass(frozen=True)
class ObservationNormalization:
    """``clip((obs - mean) / sqrt(var + epsilon), ±clip_obs)``, computed in float64."""

    statistics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """Mean and variance by key; ``""`` for observations that are not a dict."""
    clip_obs: float
    epsilon: float

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ObservationNormalization:
        """Read and check an ``.npz``.

        Raises:
            ConfigError: the file is unreadable, a name missing or unknown, or a value invalid.
        """
        try:
            arrays = read_arrays(path)
        except ConfigError as exc:
            raise ConfigError(
                f"normalization {exc}; expected a file that write_normalization(vec_normalize, "
                f"path) of minari_pipe.policies.normalization wrote"
            ) from exc
        keys = [n.removeprefix("obs_mean") for n in arrays if n.partition(".")[0] == "obs_mean"]
        expected = {f"obs_{what}{key}" for key in keys for what in ("mean", "var")}
        expected |= {"clip_obs", "epsilon"}
        if arrays.keys() != expected or not keys or ("" in keys and len(keys) > 1):
            raise ConfigError(
                f"normalization {path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected "
                f"obs_mean, obs_var (or obs_mean.KEY, obs_var.KEY), clip_obs and epsilon"
            )
        for name, array in arrays.items():
            low = 0.0 if name.startswith("obs_var") else -np.inf
            if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array >= low)).all():
                raise ConfigError(f"normalization {path}: {name} must be finite numbers >= {low}")
        for name in ("clip_obs", "epsilon"):
            if arrays[name].shape != () or arrays[name] <= 0:
                raise ConfigError(f"normalization {path}: {name} must be one positive number")
        statistics = {
            k.removeprefix("."): (arrays[f"obs_mean{k}"], arrays[f"obs_var{k}"]) for k in keys
        }
        return cls(statistics, float(arrays["clip_obs"]), float(arrays["epsilon"]))

    def check(self, space: gym.Space) -> None:
        """Compare the shapes of the statistics with an observation space.

        Raises:
            ConfigError: a key or shape differs, or a space cannot be normalised; it is named.
        """
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        for key, moments in self.statistics.items():
            if key not in parts:
                raise ConfigError(
                    f"normalization: statistics of {key or 'a plain observation'!r} do not fit the "
                    f"observation space {space}"
                )
            part = parts[key]
            if not isinstance(part, spaces.Box) or part.dtype == np.uint8:
                raise ConfigError(
                    f"normalization: {part} cannot be normalised; expected a Box of floats"
                )
            for what, array in zip(("obs_mean", "obs_var"), moments, strict=True):
                if array.shape != part.shape:
                    raise ConfigError(
                        f"normalization: {what} of {key or 'the observations'!r} has shape "
                        f"{array.shape}, the observation space has {part.shape}"
                    )

    def __call__(self, batch: Batch) -> Batch:
        if isinstance(batch, dict):
            return {
                key: self._apply(column, key) if key in self.statistics else column
                for key, column in batch.items()
            }
        return self._apply(batch, "")

    def _apply(self, column: np.ndarray, key: str) -> np.ndarray:
        mean, var = self.statistics[key]
        scaled = (column - mean) / np.sqrt(var + self.epsilon)
        return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)


def write_normalization(wrapper: VecNormalize, path: str | os.PathLike[str]) -> None:
    """Write the observation statistics of a ``VecNormalize`` to an ``.npz``.

    Raises:
        ConfigError: the wrapper does not normalise observations.
    """
    if not wrapper.norm_obs:
        raise ConfigError(
            "this VecNormalize does not normalise observations (norm_obs=False), so its policy "
            "needs no policy.normalize"
        )
    moments = wrapper.obs_rms
    by_key = moments if isinstance(moments, dict) else {"": moments}
    scalars = {"clip_obs": wrapper.clip_obs, "epsilon": wrapper.epsilon}
    arrays = {name: np.asarray(value, np.float64) for name, value in scalars.items()}
    for key, rms in by_key.items():
        suffix = f".{key}" if key else ""
        arrays[f"obs_mean{suffix}"] = np.asarray(rms.mean, np.float64)
        arrays[f"obs_var{suffix}"] = np.asarray(rms.var, np.float64)
    write_arrays(path, arrays)
