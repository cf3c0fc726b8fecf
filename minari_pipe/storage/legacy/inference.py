"""Infer spaces that fit stored arrays, for data that no longer records its spaces."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from gymnasium import spaces

from minari_pipe.core.spaces import ARRAY_SPACES
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.values import check_leaf, member


def environment_spaces(make: Callable[[], gym.Env]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Create an environment and return the spaces of its observations and actions."""
    with warnings.catch_warnings():
        # a newer version of the environment is irrelevant when reading old data
        warnings.simplefilter("ignore")
        env = make()
        env.close()
    return env.observation_space, env.action_space


def infer_space(stored: Any) -> gym.Space[Any]:
    """Return an unbounded space that contains the rows of the stored columns.

    Args:
        stored: a dataset, or a group of datasets by key or by ``_index_<i>``.

    Returns:
        Boxes, in Dict and Tuple spaces; Text for strings; MultiBinary for booleans.

    Raises:
        CorruptDatasetError: the stored objects are not columns.
    """
    if isinstance(stored, h5py.Group):
        names = list(stored)
        if not names:  # else rows of other groups would be read as an empty space's values
            raise CorruptDatasetError(f"{stored.name} is an empty group, expected one row per step")
        parts = {name: infer_space(member(stored, name)) for name in names}
        if names and set(names) == {f"_index_{index}" for index in range(len(names))}:
            return spaces.Tuple([parts[f"_index_{index}"] for index in range(len(names))])
        return spaces.Dict(list(parts.items()))
    check_leaf(stored)
    if h5py.check_string_dtype(stored.dtype) is not None:
        texts = stored.asstr()[()].tolist()
        characters = "".join(sorted(set("".join(texts)))) or "a"
        return spaces.Text(max(1, *map(len, texts)), min_length=0, charset=characters)
    if not stored.ndim:
        raise CorruptDatasetError(f"{stored.name} is a single value, expected one row per step")
    return box_of(stored.dtype, stored.shape[1:])


def box_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> gym.Space[Any]:
    """Return a Box that contains every value of a dtype, or MultiBinary for booleans."""
    if dtype.kind == "b":
        return spaces.MultiBinary(shape)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low = np.full(shape, limits.min, dtype)
        return spaces.Box(low, np.full(shape, limits.max, dtype), shape, dtype.type)
    raise CorruptDatasetError(f"no space fits values of the type {dtype}")


def discrete_of(columns: Iterable[Any]) -> spaces.Discrete:
    """Return the Discrete space from the smallest value, at most 0, to the largest one."""
    pieces = [np.asarray(column) for column in columns if len(column)]
    low = min((int(piece.min()) for piece in pieces), default=0)
    high = max((int(piece.max()) for piece in pieces), default=0)
    start = min(low, 0)
    return spaces.Discrete(max(high - start + 1, 1), start=start)


def fits(space: gym.Space[Any], stored: Any, *, flattened: bool = False) -> bool:
    """Return whether stored columns have the structure and the shapes of a space."""
    if flattened and isinstance(stored, h5py.Dataset):
        return stored.shape[1:] == (spaces.flatdim(space),)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = (
            dict(space.spaces)
            if isinstance(space, spaces.Dict)
            else {f"_index_{index}": part for index, part in enumerate(space.spaces)}
        )
        return (
            isinstance(stored, h5py.Group)
            and set(stored) == set(parts)
            and all(fits(part, member(stored, name)) for name, part in parts.items())
        )
    if not isinstance(stored, h5py.Dataset):
        return False
    text = h5py.check_string_dtype(stored.dtype) is not None
    if not isinstance(space, ARRAY_SPACES):
        return text or not isinstance(space, spaces.Text)
    return not text and stored.shape[1:] == space.shape
