"""Split what a vector environment takes and returns into one row per environment.

Observations and actions are batched, leaf by leaf of their space. Infos are a dict of arrays, in
which the mask ``_key`` says which environments have a ``key``; nested dicts likewise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from minari_pipe.core.spaces import ARRAY_SPACES
from minari_pipe.core.tree import Path, join_path
from minari_pipe.errors import InvalidEpisodeError, UnsupportedSpaceError

Split = Callable[[Any], list[Any]]

#: Infos of an environment that ended and was reset in the same step.
FINAL = ("final_obs", "final_info")


def splitter(space: gym.Space[Any], path: Path, n_envs: int) -> Split:
    """Return a function that splits a batch of a space into a list, one value per environment.

    Args:
        space: space of one value.
        path: path of the values, for error messages.
        n_envs: number of environments ``N``.

    Raises:
        InvalidEpisodeError: by the function: the batch lacks a part, or does not have ``N`` rows.

    Example:
        >>> import numpy as np
        >>> space = gym.spaces.Dict(at=gym.spaces.Box(0, 9, (2,)), name=gym.spaces.Text(5))
        >>> split = splitter(space, ("observations",), 2)
        >>> split({"at": np.array([[0, 1], [2, 3]]), "name": ("a", "b")})
        [{'at': array([0, 1]), 'name': 'a'}, {'at': array([2, 3]), 'name': 'b'}]
        >>> split({"at": np.zeros((3, 2)), "name": ("a", "b")})
        Traceback (most recent call last):
        ...
        minari_pipe.errors.InvalidEpisodeError: observations.at must have a row for each \
of 2 environments, got 3
    """
    if isinstance(space, gym.spaces.Dict):
        keys = list(space.spaces)
        splits = [splitter(space[key], (*path, key), n_envs) for key in keys]

        def of_dict(batch: Any) -> list[Any]:
            _check_parts(batch, Mapping, keys, path)
            parts = [split(batch[key]) for split, key in zip(splits, keys, strict=True)]
            return [dict(zip(keys, row, strict=True)) for row in _rows(parts, n_envs)]

        return of_dict
    if isinstance(space, gym.spaces.Tuple):
        splits = [
            splitter(part, (*path, f"_index_{index}"), n_envs)
            for index, part in enumerate(space.spaces)
        ]

        def of_tuple(batch: Any) -> list[Any]:
            _check_parts(batch, Sequence, range(len(splits)), path)
            parts = [split(part) for split, part in zip(splits, batch, strict=True)]
            return [tuple(row) for row in _rows(parts, n_envs)]

        return of_tuple

    return lambda batch: each_of(batch, path, n_envs)


def each_of(batch: Any, path: Path, n_envs: int) -> list[Any]:
    """Return the rows of an array or a sequence that has one for each environment.

    Raises:
        InvalidEpisodeError: it does not.

    Example:
        >>> import numpy as np
        >>> each_of(np.array([0.5, 1.0]), ("rewards",), 2)
        [np.float64(0.5), np.float64(1.0)]
    """
    try:
        rows = None if isinstance(batch, str | bytes | dict) else list(batch)
    except TypeError:
        rows = None
    if rows is None or len(rows) != n_envs:
        found = f"{type(batch).__name__} {batch!r:.60}" if rows is None else len(rows)
        raise InvalidEpisodeError(
            f"{join_path(path)} must have a row for each of {n_envs} environments, got {found}"
        )
    return rows


def _rows(parts: list[list[Any]], n_envs: int) -> Iterable[tuple[Any, ...]]:
    return zip(*parts, strict=True) if parts else [()] * n_envs


def _check_parts(batch: Any, kind: type, keys: Sequence[Any], path: Path) -> None:
    found: Iterable[Any] = ()
    if isinstance(batch, kind):
        found = batch if isinstance(batch, Mapping) else range(len(batch))  # type: ignore[arg-type]
    if not isinstance(batch, kind) or set(keys) != set(found):
        raise InvalidEpisodeError(
            f"{join_path(path)} of all environments must be a {kind.__name__.lower()} with "
            f"{list(keys)}, got {type(batch).__name__} {batch!r:.60}"
        )


def check_batched(space: gym.Space[Any], batched: gym.Space[Any], path: Path, n_envs: int) -> None:
    """Raise an error unless a space holds ``N`` values of another, as :func:`splitter` assumes.

    Raises:
        UnsupportedSpaceError: it does not; ``path`` says where.

    Example:
        >>> check_batched(gym.spaces.Discrete(2), gym.spaces.Discrete(4), ("actions",), 2)
        Traceback (most recent call last):
        ...
        minari_pipe.errors.UnsupportedSpaceError: actions: the vector environment's space \
Discrete(4) is not 2 times Discrete(2), so it cannot be split
    """
    fits = True
    if isinstance(space, gym.spaces.Dict):
        fits = isinstance(batched, gym.spaces.Dict) and batched.keys() == space.keys()
        for key in space if fits else ():
            check_batched(space[key], batched[key], (*path, key), n_envs)  # type: ignore[index]
    elif isinstance(space, gym.spaces.Tuple):
        fits = isinstance(batched, gym.spaces.Tuple) and len(batched) == len(space)
        for index, part in enumerate(space if fits else ()):
            place = (*path, f"_index_{index}")
            check_batched(part, batched[index], place, n_envs)  # type: ignore[index]
    elif isinstance(space, ARRAY_SPACES):
        fits = batched.shape == (n_envs, *(space.shape or ()))
    elif isinstance(batched, gym.spaces.Tuple):
        fits = len(batched) == n_envs
    if not fits:
        raise UnsupportedSpaceError(
            f"{join_path(path)}: the vector environment's space {batched!s:.100} is not {n_envs} "
            f"times {space!s:.100}, so it cannot be split"
        )


def check_iterable(space: gym.Space[Any], batched: gym.Space[Any], n_envs: int) -> None:
    """Raise an error unless Gymnasium can distribute batched actions to the environments.

    Raises:
        UnsupportedSpaceError: it cannot, as with an empty Dict.

    Example:
        >>> none = gym.spaces.Dict()
        >>> check_iterable(none, none, 2)
        Traceback (most recent call last):
        ...
        minari_pipe.errors.UnsupportedSpaceError: Gymnasium cannot iterate over 2 actions of \
Dict()...
    """
    sampled = copy.deepcopy(space)  # sampling must not advance the caller's generator
    values = tuple(sampled.sample() for _ in range(n_envs))
    found, reason = 0, "it finds a different number"
    try:
        found = len(list(iterate(batched, _batch(space, values))))
    except Exception as error:  # a space of another package may raise anything
        reason = str(error)
    if found != n_envs:
        raise UnsupportedSpaceError(
            f"Gymnasium cannot iterate over {n_envs} actions of {space!s:.100}: {reason}; collect "
            "from single environments with a DataCollector"
        )


def info_rows(infos: Any, n_envs: int, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the infos of each environment.

    Args:
        infos: as a vector environment returns them, or a list of dicts as its wrapper
            ``DictInfoToList`` does. An array without a mask has a row for each environment.
        n_envs: number of environments ``N``.
        without: keys to leave out.

    Raises:
        InvalidEpisodeError: they are neither, or a key does not have ``N`` rows.

    Example:
        >>> import numpy as np
        >>> infos = {"x": np.array([0.5, 0.0]), "_x": np.array([True, False])}
        >>> info_rows({"deep": infos, "t": np.arange(2)}, 2)
        [{'deep': {'x': np.float64(0.5)}, 't': np.int64(0)}, {'deep': {}, 't': np.int64(1)}]
    """
    if isinstance(infos, list | tuple) and len(infos) == n_envs:
        return [{key: row[key] for key in row if key not in without} for row in infos]
    if not isinstance(infos, Mapping):
        raise InvalidEpisodeError(
            f"infos of {n_envs} environments must be a dict of arrays, got "
            f"{type(infos).__name__} {infos!r:.60}; use record_infos=False to skip them"
        )
    rows: list[dict[str, Any]] = [{} for _ in range(n_envs)]
    masks = {f"_{key}": key for key in infos if f"_{key}" in infos}
    for key, values in infos.items():
        if key in without or key in masks:
            if key in masks and f"_{key}" in masks:
                raise InvalidEpisodeError(
                    f"infos have {masks[key]!r} and {key!r}, and Gymnasium writes the mask of the "
                    "first over the second; rename one, or use record_infos=False to skip them"
                )
            continue
        mask = infos.get(f"_{key}")
        parts: Any = info_rows(values, n_envs) if isinstance(values, Mapping) else values
        if _length(parts) != n_envs:
            raise InvalidEpisodeError(
                f"infos[{key!r}] must have a row for each of the {n_envs} environments, got "
                f"{type(values).__name__} {values!r:.60}; use record_infos=False to skip infos"
            )
        if mask is None:
            for row, part in zip(rows, parts, strict=True):
                row[key] = part
        else:
            for row, part, has in zip(rows, parts, mask, strict=True):
                if has:
                    row[key] = part
    return rows


def _length(parts: Any) -> int | None:
    try:
        return None if isinstance(parts, str | bytes) else len(parts)
    except TypeError:
        return None


def final_row(infos: Any, key: str, env: int, n_envs: int) -> Any:
    """Return the last observation or info of an environment that was reset in the same step.

    Args:
        infos: as for :func:`info_rows`.
        key: one of :data:`FINAL`.
        env: index of the environment.
        n_envs: number of environments.

    Raises:
        InvalidEpisodeError: the infos do not have it.

    Example:
        >>> import numpy as np
        >>> final_row({"final_obs": np.array([None, 7], object)}, "final_obs", 1, 2)
        7
    """
    if isinstance(infos, Mapping):
        part = {name: infos[name] for name in (key, f"_{key}") if name in infos}
        row = info_rows(part, n_envs)[env]
    else:
        row = infos[env]
    if key not in row or row[key] is None:
        raise InvalidEpisodeError(
            f"environment {env} ended and was reset in the same step, but infos have no "
            f"{key!r} for it, so its last step is unknown; use another autoreset mode"
        )
    return row[key]


def as_batched(space: gym.Space[Any], value: Any) -> Any:
    """Return a copy of an observation with the dtypes that it would have in a batch.

    Example:
        >>> import numpy as np
        >>> as_batched(gym.spaces.Box(0, 1, (2,), np.float32), [0.0, 0.5])
        array([0. , 0.5], dtype=float32)
    """
    return splitter(space, ("observations",), 1)(_batch(space, (value,)))[0]


def _batch(space: gym.Space[Any], values: Sequence[Any]) -> Any:
    empty: Any = create_empty_array(space, len(values))
    return concatenate(space, values, empty)
