"""Record episodes, and check whether their values lie in their spaces.

An array or a number of the space's own dtype is checked together with many rows, when the episode
ends or its rows leave memory. Any other value is checked when it arrives, before its column
converts it. A strict recorder checks every value when it arrives.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.datasets.bounds import REWARD_SPACE, Outside
from minari_pipe.recording.column_trees import Node
from minari_pipe.recording.recorder import EpisodeRecorder, to_float
from minari_pipe.storage.row_columns import RowStore


class CheckedRecorder(EpisodeRecorder):
    """Records values outside of their space too, and counts them.

    Example:
        >>> recorder = CheckedRecorder(gym.spaces.Discrete(2), gym.spaces.Discrete(2),
        ...                            record_infos=False)
        >>> recorder.start(0, {})
        >>> recorder.step(1, 7, 0.5, False, True, {})
        >>> print(recorder.warning(3).splitlines()[1].split(" are")[0])
        Episode 3: 1 of 2 observations
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        record_infos: bool,
        store: RowStore | None = None,
        n_recorders: int = 1,
    ) -> None:
        """Create the columns; arguments as in :class:`EpisodeRecorder`."""
        self._judged_observations = _Judge("observation", observation_space)
        self._judged_actions = _Judge("action", action_space)
        self._outside_rewards = Outside("reward", REWARD_SPACE, strict=False)
        self._has_judged = False  # whether anything but _is_inside() has checked values
        super().__init__(
            observation_space,
            action_space,
            record_infos=record_infos,
            store=store,
            n_recorders=n_recorders,
        )

    def _clear(self) -> None:
        super()._clear()
        if self._has_judged:
            self._judged_observations.clear()
            self._judged_actions.clear()
            self._outside_rewards.clear()
            self._has_judged = False

    def _set_observation(self, row: int, value: Any) -> None:
        self._has_judged = True
        inside = self._judged_observations.holds(value)
        super()._set_observation(row, value)
        self._judged_observations.add(value, self._stored + row, inside=inside)

    def _set_action(self, row: int, value: Any) -> None:
        self._has_judged = True
        inside = self._judged_actions.holds(value)
        super()._set_action(row, value)
        self._judged_actions.add(value, self._stored + row, inside=inside)

    def _cut(self) -> None:
        super()._cut()
        self._judged_observations.cut(len(self) + 1)
        self._judged_actions.cut(len(self))

    def _leaving(self, rows: int) -> None:
        self._judge(rows, rows)

    def _judge(self, steps: int, observations: int) -> None:
        self._has_judged = True
        self._judged_observations.judge(self._observations, self._stored, observations)
        self._judged_actions.judge(self._actions, self._stored, steps)
        rewards = array("d", self._rewards[:steps])
        if not math.isfinite(sum(rewards)):
            self._outside_rewards.judge(np.array(rewards), self._stored, set())

    def _is_inside(self) -> bool:
        """Return whether one quick check shows that every value is in its space."""
        row = self._row
        return (
            not self._has_judged  # then all rows came through put()
            and self._observations.is_inside(row + 1)
            and self._actions.is_inside(row)
            and math.isfinite(sum(self._rewards))
        )

    def warning(self, episode: int) -> str | None:
        """Return the warning about the episode before it is finished, None if there is none.

        Args:
            episode: number of the episode.
        """
        self._rewards = array("d", self._rewards)  # converted once for all checks below
        if self._is_inside():
            return None
        self._judge(self._row, self._row + 1)
        observations, actions = self._judged_observations.outside, self._judged_actions.outside
        if not (observations or actions or self._outside_rewards):
            return None
        steps = len(self)
        texts = [observations.warning(episode, steps + 1)]
        texts += [part.warning(episode, steps) for part in (actions, self._outside_rewards)]
        return "\n".join(filter(None, texts))


class _Judge:
    """Checks the values of one kind, each of them once."""

    def __init__(self, name: str, space: gym.Space[Any]) -> None:
        self.outside = Outside(name, space, strict=False)
        self.holds = self.outside.holds
        self._judged: list[int] = []  # steps whose values were checked on arrival
        self._found: list[int] = []  # those of them that lie outside
        self._example: Any = None  # the first value of those

    def clear(self) -> None:
        if self._judged:
            self._judged, self._found = [], []
        self.outside.clear()

    def add(self, value: Any, step: int, *, inside: bool) -> None:
        self._judged.append(step)
        if not inside:
            if not self._found:
                self._example = f"{value!s:.300}"
            self._found.append(step)

    def cut(self, step: int) -> None:
        for steps in (self._judged, self._found):
            if steps and steps[-1] >= step:
                steps.pop()

    def judge(self, column: Node, first: int, rows: int) -> None:
        """Check the first rows in memory, which are the steps from ``first`` on."""
        end = first + rows
        judged = sum(step < end for step in self._judged)
        if column.is_array and judged < rows and not column.is_inside(rows):
            self.outside.judge(column.block(rows), first, set(self._judged))
        found = sum(step < end for step in self._found)
        if found:
            self.outside.count(self._example, self._found[0], found)
        self._judged, self._found = self._judged[judged:], self._found[found:]
        # once one is counted, later ones need no example


class StrictRecorder(EpisodeRecorder):
    """Refuses a value outside of its space, NaN and other dtypes, at the step.

    Example:
        >>> recorder = StrictRecorder(gym.spaces.Discrete(2), gym.spaces.Discrete(2),
        ...                           record_infos=False)
        >>> recorder.start(7, {})
        Traceback (most recent call last):
        ...
        minari_pipe.errors.InvalidEpisodeError: Observation is not in observation space.
        ...
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        record_infos: bool,
        store: RowStore | None = None,
        n_recorders: int = 1,
    ) -> None:
        """Create the columns; arguments as in :class:`EpisodeRecorder`."""
        super().__init__(
            observation_space,
            action_space,
            record_infos=record_infos,
            store=store,
            n_recorders=n_recorders,
        )
        self._outside_observations = Outside("observation", observation_space, strict=True)
        self._outside_actions = Outside("action", action_space, strict=True)
        self._outside_rewards = Outside("reward", REWARD_SPACE, strict=True)

    def start(self, observation: Any, info: dict[str, Any], **kwargs: Any) -> None:
        """Start an episode, see :meth:`EpisodeRecorder.start`."""
        self._outside_observations.holds(observation, 0)
        super().start(observation, info, **kwargs)

    def put_action(self, action: Any) -> bool:
        """Return False, as an action is checked with its step."""
        return False

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        extras: Mapping[str, Any] | None = None,
        *,
        has_action: bool = False,
    ) -> None:
        """Record a step, see :meth:`EpisodeRecorder.step`."""
        steps, reward = len(self), to_float(reward)
        self._outside_actions.holds(action, steps)
        self._outside_observations.holds(observation, steps + 1)
        self._outside_rewards.holds(reward, steps)
        super().step(action, observation, reward, terminated, truncated, info, extras)

    def warning(self, episode: int) -> None:
        """Return None, as a strict recorder has no warnings."""
