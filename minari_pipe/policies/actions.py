"""Turn what a policy returns into elements of an action space."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import InvalidEpisodeError

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_INTEGERS = (int, np.integer)


def element(space: gym.Space, value: Any) -> Any:
    """Return ``value`` as a new element of ``space``, so that the stored action is the one stepped.

    A float64 action recorded as float32 would replay differently, and an environment may modify
    the array that it receives.

    Raises:
        InvalidEpisodeError: the shape is not that of the space, or a value does not fit its integer
            dtype, or is NaN or infinite.
    """
    if isinstance(space, _ARRAYS):
        if isinstance(space, spaces.Discrete) and isinstance(value, _INTEGERS):
            return space.dtype.type(value)
        is_float = space.dtype.kind == "f"
        array = np.array(value, dtype=space.dtype) if is_float else _whole(space, value)
        if array.shape != space.shape:
            raise InvalidEpisodeError(
                f"the policy returned an action of shape {array.shape}, the action space "
                f"{space} has {space.shape}"
            )
        # The sum of squares is faster to check, but finite numbers may overflow it.
        if is_float and not math.isfinite(np.vdot(array, array)) and not np.isfinite(array).all():
            raise InvalidEpisodeError(
                f"the policy returned an action that holds NaN or infinity: {_short(array)}"
            )
        return array[()] if isinstance(space, spaces.Discrete) else array
    if isinstance(space, spaces.Dict):
        return {key: element(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(element(sub, v) for sub, v in zip(space.spaces, value, strict=True))
    return value


def _short(array: np.ndarray) -> str:
    text = " ".join(str(array).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _whole(space: gym.Space, value: Any) -> np.ndarray:
    """Return ``value`` in the integer dtype of ``space``; raise if that would change it."""
    given = np.asarray(value)
    with np.errstate(invalid="ignore"):
        array = given.astype(space.dtype)
    if not np.array_equal(array, given):
        raise InvalidEpisodeError(
            f"the policy returned the action {value!r}, but the action space {space} has dtype "
            f"{space.dtype}"
        )
    return array
