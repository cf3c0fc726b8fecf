"""Check episode indices and numbers of steps, from users and from files."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.storage.base import MinariStorage

#: above this number, the size of the files shows whether it can be true
_MANY_EPISODES = 1_000_000


def check_count(total_episodes: int, storage: MinariStorage) -> None:
    """Raise if a number of episodes cannot be true, before memory is filled with their indices."""
    if total_episodes > _MANY_EPISODES and total_episodes > storage.get_size() * 1e6:
        raise CorruptDatasetError(
            f"{storage.data_path}: its metadata.json says {total_episodes} episodes, more than its "
            f"{storage.get_size()} MB can hold"
        )


def steps_of(attributes: Mapping[str, Any], storage: MinariStorage) -> int:
    """Return the number of steps in the attributes of an episode.

    Raises:
        CorruptDatasetError: they have no valid number.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> steps_of({"total_steps": 3}, step_index_dataset().storage)
        3
    """
    try:
        return int(attributes["total_steps"])
    except (LookupError, TypeError, ValueError, OverflowError):
        raise CorruptDatasetError(
            f"{storage.data_path}: episode {attributes.get('id', '?')} must have total_steps as "
            f"a whole number; it has {attributes.get('total_steps')!r}"
        ) from None


def total_steps(storage: MinariStorage, episode_indices: npt.NDArray[np.int_]) -> int:
    """Return the number of steps of some episodes, as their attributes say.

    Raises:
        CorruptDatasetError: one has no valid number.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> total_steps(step_index_dataset(lengths=(2, 3)).storage, np.array([1]))
        3
    """
    table = storage.get_attribute_table(episode_indices, ["total_steps"])
    steps = table.numbers.get("total_steps") if table is not None else None
    if steps is not None and steps.dtype.kind in "iu":
        return int(steps.sum())
    attributes = storage.get_episode_metadata(episode_indices)
    return sum(steps_of(episode, storage) for episode in attributes)


def positions_of(index: Any) -> npt.NDArray[Any]:
    """Return what a dataset is indexed with as an array: a number, positions, or a mask.

    Raises:
        IndexError: it has more than one axis.
        TypeError: it is none of these.

    Example:
        >>> positions_of([True, False]), positions_of(3).ndim
        (array([ True, False]), 0)
    """
    positions = np.asarray(index)
    if positions.dtype.kind not in "iu" and not (positions.dtype.kind == "b" and positions.ndim):
        if positions.size or not positions.ndim:
            raise TypeError(
                "an index must be a whole number, a slice, or an array of whole numbers or "
                f"booleans; got {index!r}"
            )
        positions = positions.astype(np.int_)
    if positions.ndim > 1:
        raise IndexError(f"an index must have one axis, got shape {positions.shape}")
    return positions


def whole_index(index: Any) -> int:
    """Return an episode index as ``int``; raise TypeError if it is not a whole number."""
    if type(index) is int:
        return index
    if not isinstance(index, bool | np.bool_):
        with suppress(TypeError):
            return operator.index(index)
    raise TypeError(
        f"an episode index must be a whole number, got {index!r}; a mask or slice goes in "
        "brackets: dataset[mask]"
    )


def checked_indices(indices: npt.ArrayLike, total: int | None) -> npt.NDArray[np.int_]:
    """Return episode indices as an array; raise ConfigError if one is invalid."""
    array = np.asarray(indices)
    if not array.size and array.ndim == 1:
        array = array.astype(np.int_)  # NumPy makes an empty list an array of floats
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(
            "episode indices must be whole numbers along one axis, got "
            f"{array.dtype} of shape {array.shape}; a mask or slice goes in brackets: dataset[mask]"
        )
    if total is not None and array.size and not 0 <= array.min() <= array.max() < total:
        raise ConfigError(
            f"episode indices must be from 0 to {total - 1}, the storage has {total} episodes; got "
            f"{array.min()} to {array.max()}"
        )
    return array.astype(np.int_)


def ids_to_delete(
    episodes: Any, episode_indices: npt.NDArray[np.int_], view: object
) -> npt.NDArray[np.int_]:
    """Return the ids of episodes that a user wants to delete from a view.

    Args:
        episodes: the ids, as the user gave them.
        episode_indices: the ids of the view, shape ``(N,)``.
        view: what an error calls it.

    Raises:
        ConfigError: they are no list of ids, or one is not in the view.

    Example:
        >>> ids_to_delete([2], np.array([1, 2]), "the view")
        array([2])
    """
    if not isinstance(episodes, Iterable):
        raise ConfigError(
            f"the episodes to delete must be a list of ids or a view, got {episodes!r}; for a "
            "single episode: dataset.delete_episodes([0], ...)"
        )
    deleted = checked_indices(list(episodes), None)
    unknown = np.setdiff1d(deleted, episode_indices).tolist()
    if unknown:
        raise ConfigError(
            f"{view!r} has no episodes with the ids {unknown[:10]}; its ids are in "
            "dataset.episodes['id']"
        )
    return deleted


def sample_size(n_episodes: Any, total: int) -> int:
    """Return a number of episodes to draw without replacement.

    Raises:
        ConfigError: it is negative, not whole or larger than ``total``.

    Example:
        >>> sample_size(2, 3)
        2
    """
    try:
        size = operator.index(n_episodes)
    except TypeError:
        raise ConfigError(f"n_episodes must be a whole number, got {n_episodes!r}") from None
    if not 0 <= size <= total:
        raise ConfigError(
            "Cannot take a larger sample than population, nor a negative one: asked for "
            f"{size} different episodes of {total}"
        )
    return size
