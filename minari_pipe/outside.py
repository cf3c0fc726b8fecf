"""Finds what an episode holds that its spaces do not: values outside, NaN and other dtypes.

Such values are recorded as they are, with one warning for each episode, or refused if the user
asks for that: at each step of a collector, or for whole columns of a buffer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.spaces import contains_rows
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.columns import episode_columns
from minari_pipe.storage.writer import episode_number, with_values
from minari_pipe.tree import fits_exactly, map_leaves

#: all finite numbers
REWARD_SPACE = spaces.Box(-sys.float_info.max, sys.float_info.max, (), np.float64)


class Outside:
    """Counts an episode's values outside of their space; NaN and other dtypes are outside too.

    Example:
        >>> outside = Outside("action", spaces.Discrete(2), strict=False)
        >>> outside.holds(7, 0)
        False
        >>> outside.count(7, 0)
        >>> print(outside.told(3, 10).splitlines()[1].split(" are")[0])
        Episode 3: 1 of 10 actions
    """

    def __init__(self, name: str, space: gym.Space, *, strict: bool) -> None:
        """Begin to count.

        Args:
            name: what the values are, in the singular.
            space: where they should be.
            strict: refuse a value that is not.
        """
        self._name, self._space, self._strict = name, space, strict
        self._contains = math.isfinite if space is REWARD_SPACE else _membership(space)
        self.clear()

    def clear(self) -> None:
        """Begin with another episode."""
        self._count = self._first = 0
        self._example = ""

    def holds(self, value: Any, step: int) -> bool:
        """Whether the space holds a value.

        Raises:
            InvalidEpisodeError: it does not, and that is to be refused.
        """
        inside = self._contains(value)
        if not inside and self._strict:
            self._refuse(value, step)
        return inside

    def _refuse(self, value: Any, step: int) -> NoReturn:
        name = self._name
        raise InvalidEpisodeError(
            f"{name.capitalize()} is not in {name} space.\n{name.capitalize()} {step}: "
            f"{value!s:.300}\nSpace: {self._space}\nstrict=False records a value of the right "
            "structure and shape, with a warning"
        )

    def count(self, value: Any, step: int) -> None:
        """Count a value that the space does not hold."""
        if not self._count:
            self._first, self._example = step, f"{value!s:.300}"
        self._count += 1

    def count_rows(self, column: Any) -> None:
        """Count the rows of a stacked column that the space does not hold.

        Raises:
            InvalidEpisodeError: there is one, and that is to be refused.
        """
        outside = np.flatnonzero(~contains_rows(self._space, column))
        if len(outside):
            first = int(outside[0])
            value = map_leaves(lambda leaf: leaf[first], column)
            if self._strict:
                self._refuse(value, first)
            self.count(value, first)
            self._count = len(outside)

    def told(self, episode: int, of: int) -> str | None:
        """Return what is to be told of an episode, None if nothing.

        Args:
            episode: its number.
            of: number of all its values.
        """
        if not self._count:
            return None
        name = self._name
        return (
            f"{name.capitalize()} is not in {name} space.\n"
            f"Episode {episode}: {self._count} of {of} {name}s are outside of the space, NaN or of "
            f"another dtype; they are recorded as they are. The first is number "
            f"{self._first}.\n{name.capitalize()}: {self._example}\nSpace: {self._space}"
        )


def judged(
    buffers: Iterable[EpisodeBuffer],
    observation_space: gym.Space,
    action_space: gym.Space,
    *,
    first: int,
    strict: bool,
    told: list[str],
) -> Iterator[EpisodeBuffer]:
    """Yield buffers on their way into a dataset, stacked, and note what their spaces do not hold.

    Args:
        buffers: the episodes.
        observation_space: space of one observation.
        action_space: space of one action.
        first: number of episodes of the dataset.
        strict: refuse an episode of which there is something to tell.
        told: where the warnings are put, one text for each such episode.

    Raises:
        InvalidEpisodeError: a buffer's values do not fit together or to the spaces.

    Example:
        >>> buffer = EpisodeBuffer(observations=[0, 5], actions=[1], rewards=[np.nan],
        ...                        terminations=[False], truncations=[True])
        >>> space, told = spaces.Discrete(3), []
        >>> list(judged([buffer], space, space, first=0, strict=False, told=told))[0].observations
        array([0, 5])
        >>> [line for line in told[0].splitlines() if line.endswith("space.")]
        ['Observation is not in observation space.', 'Reward is not in reward space.']
    """
    outside = {
        "observations": Outside("observation", observation_space, strict=strict),
        "actions": Outside("action", action_space, strict=strict),
        "rewards": Outside("reward", REWARD_SPACE, strict=strict),
    }
    total = first
    for buffer in buffers:
        number = episode_number(buffer, total)
        continues = number < total
        buffer = with_values(buffer, number)
        columns = episode_columns(
            buffer, observation_space, action_space, episode=number, continues=continues
        )
        texts = []
        for name, part in outside.items():
            part.clear()
            try:
                part.count_rows(columns[name])
            except InvalidEpisodeError as error:
                raise InvalidEpisodeError(f"episode {number}: {error}") from None
            of_reset = name == "observations" and not continues
            texts.append(part.told(number, len(columns["rewards"]) + of_reset))
        if not (columns["terminations"][-1] or columns["truncations"][-1]):
            texts.append(_open_end(number))
            if strict:
                raise InvalidEpisodeError(texts[-1])
        if any(texts):
            told.append("\n".join(filter(None, texts)))
        total += not continues
        yield replace(buffer, **{"extras": {}, **columns})


def append_judged(
    storage: MinariStorage, buffers: Iterable[EpisodeBuffer], *, strict: bool
) -> list[str]:
    """Append buffers to a storage and return what is to be told of them, see :func:`judged`.

    Args:
        storage: where they go.
        buffers: the episodes.
        strict: refuse an episode of which there is something to tell.

    Raises:
        InvalidEpisodeError: a buffer's values do not fit together or to the spaces.
    """
    told: list[str] = []
    spaces_of = (storage.observation_space, storage.action_space)
    first = storage.total_episodes
    storage.update_episodes(judged(buffers, *spaces_of, first=first, strict=strict, told=told))
    return told


def _open_end(number: int) -> str:
    return (
        f"Episode {number} ends neither terminated nor truncated, so that readers of the flags "
        "alone do not see its end. Set the last truncation, or append the rest of the episode as "
        f"a buffer with id={number}"
    )


def _membership(space: gym.Space) -> Callable[[Any], bool]:
    """Return ``space.contains``, made not to warn about lists and to cost half of it."""
    if type(space) is spaces.Box:
        return _box_membership(space)
    if type(space) is spaces.Dict:
        parts = {key: _membership(part) for key, part in space.spaces.items()}
        return lambda value: (
            isinstance(value, Mapping)
            and value.keys() == parts.keys()
            and all(contains(value[key]) for key, contains in parts.items())
        )
    if type(space) is spaces.Tuple:
        entries = [_membership(part) for part in space.spaces]
        return lambda value: (
            isinstance(value, tuple | list)
            and len(value) == len(entries)
            and all(contains(part) for contains, part in zip(entries, value, strict=True))
        )
    return space.contains


def _box_membership(space: spaces.Box) -> Callable[[Any], bool]:
    low, high, dtype, shape = space.low, space.high, space.dtype, space.shape

    def contains(value: Any) -> bool:
        array = value
        if not isinstance(value, np.ndarray):
            try:
                array = np.asarray(value)
            except ValueError:  # a ragged list
                return False
            if not isinstance(value, np.generic) and fits_exactly(array, dtype):
                array = array.astype(dtype)  # Python numbers are recorded in the space's dtype
        if array.shape != shape or not (array.dtype == dtype or np.can_cast(array.dtype, dtype)):
            return False
        return bool((array >= low).all() and (array <= high).all())

    return contains
