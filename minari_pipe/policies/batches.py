"""Stack the observations of all rows in arrays of one size, zeros in rows without an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import ConfigError
from minari_pipe.policies.base import RowError

BATCH_MULTIPLE = 8


def padded(n_rows: int) -> int:
    """Return ``n_rows`` rounded up to a multiple of ``BATCH_MULTIPLE``.

    Example:
        >>> padded(1), padded(8), padded(9)
        (8, 8, 16)
    """
    return -(-n_rows // BATCH_MULTIPLE) * BATCH_MULTIPLE


def zeros(space: gym.Space, n_rows: int) -> Any:
    """Return a batch of ``n_rows`` zero observations: arrays in the dicts and tuples of ``space``.

    Raises:
        ConfigError: observations of this space cannot be stacked.

    Example:
        >>> zeros(spaces.Dict({"x": spaces.Box(-1, 1, (2,))}), 8)["x"].shape
        (8, 2)
    """
    if isinstance(space, spaces.Dict):
        return {key: zeros(part, n_rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(part, n_rows) for part in space.spaces)
    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise ConfigError(f"observations of {space} cannot be stacked into a batch")
    return np.zeros((n_rows, *(space.shape or ())), space.dtype)


def fill(batch: Any, observations: Sequence[Any], rows: Sequence[int], where: str = "") -> None:
    """Write observations into their rows of a batch of :func:`zeros`, zeros into all others.

    Raises:
        RowError: the shape of an observation is not that of its space.
    """
    if isinstance(batch, dict | tuple):
        for key, part in batch.items() if isinstance(batch, dict) else enumerate(batch):
            fill(part, [o[key] for o in observations], rows, f"{where}[{key!r}]")
        return
    batch[...] = 0
    shape = batch.shape[1:]
    for row, observation in zip(rows, observations, strict=True):
        if np.shape(observation) != shape:
            raise RowError(
                row,
                f"the environment's observation{where} has shape {np.shape(observation)}, its "
                f"space has {shape}",
            )
        batch[row] = observation
