"""Find an episode's values that its spaces do not allow: out of bounds, NaN and other dtypes.

Such values are recorded unchanged, with one warning per episode, or refused if the user asks for
that. They are found at each step of a collector, or in whole columns of a buffer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.spaces import contains_rows
from minari_pipe.core.tree import fits_exactly, map_leaves
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.segment import Segment

#: space of all finite numbers
REWARD_SPACE = spaces.Box(-sys.float_info.max, sys.float_info.max, (), np.float64)


class Outside:
    """Counts an episode's values outside their space; NaN and other dtypes count as outside.

    Example:
        >>> outside = Outside("action", spaces.Discrete(2), strict=False)
        >>> outside.holds(7, 0)
        False
        >>> outside.count(7, 0)
        >>> print(outside.warning(3, 10).splitlines()[1].split(" are")[0])
        Episode 3: 1 of 10 actions
    """

    def __init__(self, name: str, space: gym.Space[Any], *, strict: bool) -> None:
        """Start with a count of zero.

        Args:
            name: singular noun for the values.
            space: the space that should contain them.
            strict: raise for a value outside the space.
        """
        self._name, self.space, self._strict = name, space, strict
        self._contains = math.isfinite if space is REWARD_SPACE else _membership(space)
        if isinstance(space, spaces.Box) and space.low.size:
            self._bounds = (space.low.max(), space.high.min())
        self.clear()

    def clear(self) -> None:
        """Reset the count for another episode."""
        self._count = self._first = 0
        self._example = ""

    def __bool__(self) -> bool:
        """Return whether any value was outside."""
        return self._count > 0

    def holds(self, value: Any, step: int = -1) -> bool:
        """Return whether the space contains a value.

        Raises:
            InvalidEpisodeError: it does not, and ``strict`` is set.
        """
        inside = self._contains(value)
        if not inside and self._strict:
            self._refuse(value, step)
        return inside

    def _refuse(self, value: Any, step: int) -> NoReturn:
        name = self._name
        raise InvalidEpisodeError(
            f"{name.capitalize()} is not in {name} space.\n{name.capitalize()} {step}: "
            f"{value!s:.300}\nSpace: {self.space}\nstrict=False records a value of the right "
            "structure and shape, with a warning"
        )

    def plainly_holds(self, column: Any) -> bool:
        """Return whether a quick test shows that the space contains all rows of a column."""
        space = self.space
        if not isinstance(space, spaces.Box) or not isinstance(column, np.ndarray):
            return False
        if column.dtype != space.dtype or column.shape[1:] != space.shape or not column.size:
            return False
        lowest, highest = self._bounds
        with np.errstate(invalid="ignore"):  # comparisons with NaN, which are false
            if not column.min() >= lowest:
                return False
            return bool(highest == np.inf or column.max() <= highest)

    def count(self, value: Any, step: int, times: int = 1) -> None:
        """Count a value outside the space, and ``times - 1`` others after it."""
        if not self._count or step < self._first:
            self._first, self._example = step, f"{value!s:.300}"
        self._count += times

    def count_rows(self, column: Any) -> None:
        """Count the rows of a stacked column that are outside the space.

        Raises:
            InvalidEpisodeError: a row is outside, and ``strict`` is set.
        """
        outside = np.flatnonzero(~contains_rows(self.space, column))
        if len(outside):
            first = int(outside[0])
            value = map_leaves(lambda leaf: leaf[first], column)
            if self._strict:
                self._refuse(value, first)
            self.count(value, first, len(outside))

    def judge(self, rows: Any, first: int, judged: set[int]) -> None:
        """Count the rows of a part of a column that are outside the space.

        Args:
            rows: rows in the dtypes of the space.
            first: number of the first row.
            judged: numbers of the rows that were checked when they were recorded.
        """
        outside = first + np.flatnonzero(~contains_rows(self.space, rows))
        found = [step for step in outside.tolist() if step not in judged]
        if found:
            value = map_leaves(lambda leaf: leaf[found[0] - first], rows)
            self.count(value, found[0], len(found))

    def warning(self, episode: int, of: int) -> str | None:
        """Return the warning about an episode, None if all its values were inside.

        Args:
            episode: its number.
            of: number of all values of the episode.
        """
        if not self._count:
            return None
        name = self._name
        return (
            f"{name.capitalize()} is not in {name} space.\n"
            f"Episode {episode}: {self._count} of {of} {name}s are outside the space, NaN or of "
            f"another dtype; they are recorded unchanged. The first is number "
            f"{self._first}.\n{name.capitalize()}: {self._example}\nSpace: {self.space}"
        )


class SpaceChecker:
    """Checks episodes on their way into a storage.

    Example:
        >>> from minari_pipe import EpisodeBuffer
        >>> from minari_pipe.storage.columns import episode_columns
        >>> buffer = EpisodeBuffer(observations=[0, 5], actions=[1], rewards=[np.nan],
        ...                        terminations=[False], truncations=[True])
        >>> space = spaces.Discrete(3)
        >>> judge = SpaceChecker(space, space, strict=False)
        >>> judge.columns(0, episode_columns(buffer, space, space, episode=0))
        >>> [line for line in judge.warnings[0].splitlines() if line.endswith("space.")]
        ['Observation is not in observation space.', 'Reward is not in reward space.']

    Attributes:
        warnings: the warnings, one text for each episode with a fault.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, strict: bool
    ) -> None:
        """Start without warnings.

        Args:
            observation_space: space of one observation.
            action_space: space of one action.
            strict: raise for an episode with a fault.
        """
        self.warnings: list[str] = []
        self._strict = strict
        self._outside = {
            "observations": Outside("observation", observation_space, strict=strict),
            "actions": Outside("action", action_space, strict=strict),
            "rewards": Outside("reward", REWARD_SPACE, strict=strict),
        }

    def segment(self, segment: Segment) -> None:
        """Check many episodes.

        Raises:
            InvalidEpisodeError: an episode has a fault, and ``strict`` is set.
        """
        ends = np.cumsum(segment.steps) - 1
        terminated, truncated = (
            np.concatenate(segment.parts(name))[ends] for name in ("terminations", "truncations")
        )
        suspects = ~(terminated | truncated)
        for name, part in self._outside.items():
            columns = segment.parts(name)
            if all(map(part.plainly_holds, columns)):
                continue
            inside = np.concatenate([contains_rows(part.space, column) for column in columns])
            if not inside.all():
                begins = segment.bounds(1 if name == "observations" else 0)[:-1]
                suspects |= ~np.logical_and.reduceat(inside, begins)
        for place in np.flatnonzero(suspects).tolist():
            self.columns(segment.first + place, segment.columns(place))

    def columns(self, episode: int, columns: Columns, *, continues: bool = False) -> None:
        """Check an episode, or an addition to one.

        Args:
            episode: its number.
            columns: the result of :func:`~minari_pipe.storage.columns.episode_columns`.
            continues: whether it has no row for a reset.

        Raises:
            InvalidEpisodeError: the episode has a fault, and ``strict`` is set.
        """
        texts = []
        for name, part in self._outside.items():
            part.clear()
            try:
                part.count_rows(columns[name])
            except InvalidEpisodeError as error:
                raise InvalidEpisodeError(f"episode {episode}: {error}") from None
            of_reset = name == "observations" and not continues
            texts.append(part.warning(episode, len(columns["rewards"]) + of_reset))
        if not (columns["terminations"][-1] or columns["truncations"][-1]):
            texts.append(_open_end(episode))
            if self._strict:
                raise InvalidEpisodeError(texts[-1])
        if any(texts):
            self.warnings.append("\n".join(filter(None, texts)))


def _open_end(number: int) -> str:
    return (
        f"Episode {number} ends neither terminated nor truncated, so readers of the flags alone do "
        "not see its end. Set the last truncation, or append the rest of the episode as a buffer "
        f"with id={number}"
    )


def _membership(space: gym.Space[Any]) -> Callable[[Any], bool]:
    """Return a ``space.contains`` that does not warn about lists and takes half the time."""
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
