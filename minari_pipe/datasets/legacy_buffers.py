"""Read episodes in the forms of Minari's older API: plain dictionaries, ``(T, 1)`` columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import InvalidEpisodeError

_NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")
_FIELDS = (*_NEEDED, "infos", "id", "seed", "options")
_COLUMNS = ("rewards", "terminations", "truncations")


def as_buffers(episodes: Iterable[EpisodeBuffer | Mapping[str, Any]]) -> Iterable[EpisodeBuffer]:
    """Return episodes as buffers, as a list if given as one; see :func:`as_buffer`.

    Raises:
        InvalidEpisodeError: a single episode was passed instead of a list.
    """
    if isinstance(episodes, EpisodeBuffer | Mapping) or not isinstance(episodes, Iterable):
        raise InvalidEpisodeError(
            f"`buffer` must be a list of episodes; got one {type(episodes).__name__}, put it in "
            "[...]"
        )
    buffers = map(as_buffer, episodes)
    return list(buffers) if isinstance(episodes, list | tuple) else buffers


def as_buffer(episode: EpisodeBuffer | Mapping[str, Any]) -> EpisodeBuffer:
    """Return an episode as a buffer.

    Args:
        episode: a buffer, or a dictionary with ``observations`` (``T + 1`` rows), ``actions``
            (``T`` rows), ``rewards``, ``terminations`` and ``truncations`` (shape ``(T,)`` or
            ``(T, 1)``), and optionally ``infos``, ``seed``, ``options`` and ``id``. Each other
            key is a group of extra step data.

    Raises:
        InvalidEpisodeError: it is neither, or lacks a key.

    Example:
        >>> as_buffer({
        ...     "observations": [0, 1], "actions": [1], "rewards": np.array([[0.5]]),
        ...     "terminations": np.array([[True]]), "truncations": np.array([[False]]),
        ...     "state": [[0.0], [0.1]],
        ... }).extras
        {'state': [[0.0], [0.1]]}
    """
    if isinstance(episode, EpisodeBuffer):
        try:  # most have arrays with one axis
            if episode.rewards.ndim == episode.terminations.ndim == episode.truncations.ndim == 1:
                return episode
        except AttributeError:
            pass
        changed = {
            name: flat
            for name in _COLUMNS
            if (flat := _flat(getattr(episode, name))) is not getattr(episode, name)
        }
        return replace(episode, **changed) if changed else episode
    if not isinstance(episode, Mapping):
        raise InvalidEpisodeError(
            "`buffer` must be a list of episodes, each an EpisodeBuffer or a dict; got an entry of "
            f"type {type(episode).__name__}"
        )
    missing = [name for name in _NEEDED if name not in episode]
    if missing:
        raise InvalidEpisodeError(
            f"an episode has no {', '.join(missing)}; it has the keys {list(episode)}"
        )
    fields = {name: episode[name] for name in _FIELDS if name in episode}
    fields |= {name: _flat(fields[name]) for name in _COLUMNS}
    for name in ("seed", "id"):  # Minari up to 0.4 wrote "None" for an unknown one
        if isinstance(fields.get(name), str) and fields[name] == "None":
            fields[name] = None
    extras = {name: value for name, value in episode.items() if name not in _FIELDS}
    return EpisodeBuffer(**fields, extras=extras)


def _flat(values: Any) -> Any:
    """Flatten a column of shape ``(T, 1)`` to ``(T,)``; leave anything else for the storage."""
    try:
        array = np.asarray(values)
    except ValueError:
        return values
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else values
