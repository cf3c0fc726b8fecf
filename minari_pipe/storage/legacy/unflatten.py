"""Invert ``gymnasium.spaces.flatten`` for whole columns.

Minari 0.3 flattened each value of a Dict or Tuple space to one vector per step.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.errors import CorruptDatasetError, UnsupportedSpaceError

Rows = npt.NDArray[Any]


def unflatten_rows(space: gym.Space[Any], rows: Rows) -> Any:
    """Return a column of values rebuilt from flattened ones.

    Args:
        space: space of one value.
        rows: shape ``(N, flatdim(space))``.

    Returns:
        The column: arrays ``(N, ...)`` of the space's dtypes, lists of strings for Text, in the
        dicts and tuples of the space.

    Raises:
        CorruptDatasetError: the vectors have another length, or are not one-hot where required.
        UnsupportedSpaceError: the space has no flat form of fixed length.

    Example:
        >>> unflatten_rows(spaces.Discrete(3, start=1), np.array([[0.0, 1.0, 0.0]]))
        array([2])
    """
    size = spaces.flatdim(space)
    if rows.ndim != 2 or rows.shape[1] != size:
        raise CorruptDatasetError(
            f"flattened values have shape {rows.shape}, the space {space} expects (N, {size})"
        )
    return _unflatten(space, rows)


def _unflatten(space: gym.Space[Any], rows: Rows) -> Any:
    if isinstance(space, spaces.Dict):
        parts = _split(list(space.spaces.values()), rows)
        return dict(zip(space.spaces, parts, strict=True))
    if isinstance(space, spaces.Tuple):
        return tuple(_split(list(space.spaces), rows))
    if isinstance(space, spaces.Discrete):
        return _index(rows).astype(space.dtype) + space.dtype.type(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        ends = np.cumsum(space.nvec.ravel())[:-1]
        indices = [_index(part) for part in np.split(rows, ends, axis=1)]
        values = np.stack(indices, axis=1).astype(space.dtype)
        return values.reshape(len(rows), *space.shape) + space.start
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return rows.astype(space.dtype).reshape(len(rows), *space.shape)
    if isinstance(space, spaces.Text):
        return _texts(space, rows)
    raise UnsupportedSpaceError(f"values of {space} cannot be unflattened")


def _split(parts: list[gym.Space[Any]], rows: Rows) -> list[Any]:
    ends = np.cumsum([spaces.flatdim(part) for part in parts])[:-1].astype(int)
    pieces = np.split(rows, ends, axis=1) if parts else []
    return [_unflatten(part, piece) for part, piece in zip(parts, pieces, strict=True)]


def _index(one_hot: Rows) -> npt.NDArray[np.intp]:
    wrong = np.flatnonzero((one_hot != 0).sum(axis=1) != 1)
    if len(wrong):
        raise CorruptDatasetError(
            f"row {wrong[0]} of a flattened Discrete is {one_hot[wrong[0]]}, which is not one-hot"
        )
    return (one_hot != 0).argmax(axis=1)


def _texts(space: spaces.Text, rows: Rows) -> list[str]:
    characters = space.character_list
    end = len(characters)  # padding after the last character
    if not np.isin(rows, np.arange(end + 1)).all():
        raise CorruptDatasetError(f"a flattened Text has indices outside 0 to {end}")
    return ["".join(characters[int(index)] for index in row if int(index) != end) for row in rows]
