"""Define the base class of policies, which choose actions for environments in lockstep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import InvalidEpisodeError


class RowError(InvalidEpisodeError):
    """An error in one row; the code that runs the policy adds the episode and the step.

    ``actions`` holds the actions of all rows, with such an error in place of those that failed, if
    a policy chooses them one by one: then the episodes of the other rows can go on.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)
        self.row, self.text = row, text
        self.actions: list[Any] | None = None

    def __str__(self) -> str:
        return self.text


def all_valid(actions: list[Any]) -> list[Any]:
    """Return actions that were chosen one by one.

    Raises:
        RowError: the first error among them; it holds them all.
    """
    for action in actions:
        if isinstance(action, RowError):
            action.actions = actions
            raise action
    return actions


class Policy(ABC):
    """Chooses the actions of the environments of one block, which step in lockstep.

    Everything random in an episode comes from the generator passed to :meth:`start`, and rows
    never influence each other: an episode's actions are the same in every row, whatever runs
    beside it. So a dataset can be reproduced byte for byte.
    """

    def bind(self, envs: Sequence[gym.Env]) -> None:  # noqa: B027 - most policies need nothing
        """Receive the environments of the next block; row ``i`` acts in ``envs[i]``.

        It is called once per block, before any episode starts. ``len(envs)`` is the batch size
        before padding, and it is the same for all blocks of a run.
        """

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any] | None:
        """Start episode ``episode`` in ``row``; return the options of its ``reset``.

        Args:
            row: index into the environments given to :meth:`bind`.
            episode: index of the episode in the dataset.
            rng: the episode's own generator, the only source of randomness.
        """
        return None

    @abstractmethod
    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
        """Return one action for each of ``rows``, in order, given their current observations.

        ``None`` in place of an action means that the policy has no more actions for this row: the
        episode ends there and is recorded as truncated.

        Raises:
            RowError: no action can be chosen in one row.
        """

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any] | None:
        """Return a report on a finished episode as plain JSON values, or ``None``.

        The key ``findings`` of a report, a list of ``{"level", "path", "message"}``, is copied to
        ``validation.json``.
        """
        return None

    @property
    def takes_infos(self) -> bool:
        """Whether :meth:`see` needs the infos of the environments."""
        return False

    def see(self, row: int, info: dict[str, Any]) -> None:  # noqa: B027 - most need none
        """Receive the info of the reset or the step that ``row`` has just made."""

    @property
    def records_infos(self) -> bool:
        """Whether :meth:`infos` has something to record."""
        return False

    def infos(self, row: int) -> dict[str, Any]:
        """Return what to record in the infos of the step that ``row`` has just made."""
        return {}

    def n_episodes(self) -> int | None:
        """Return how many episodes this policy can make, or ``None`` if there is no limit."""
        return None
