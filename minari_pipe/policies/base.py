"""What every policy is: it chooses the actions of environments that step together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import InvalidEpisodeError


class RowError(InvalidEpisodeError):
    """What went wrong in one row; whoever runs the policy knows its episode and step."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)
        self.row, self.text = row, text

    def __str__(self) -> str:
        return self.text


class Policy(ABC):
    """Chooses the actions of the environments of one block, which step in lockstep.

    Everything random in an episode comes from the generator handed to :meth:`start`, and rows
    never influence each other: an episode's actions are the same in every row, whatever runs
    beside it. That is what lets a dataset be made again to the byte.
    """

    def bind(self, envs: Sequence[gym.Env]) -> None:  # noqa: B027 - most policies need nothing
        """Take the environments of the coming block; row ``i`` acts in ``envs[i]``.

        Called once per block, before any episode starts. ``len(envs)`` is the batch size before
        padding and the same for all blocks of a run.
        """

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any] | None:
        """Begin episode number ``episode`` in ``row``; return the options of its ``reset``.

        Args:
            row: index into the environments given to :meth:`bind`.
            episode: the episode's number in the dataset.
            rng: the episode's own generator, the only source of randomness.
        """
        return None

    @abstractmethod
    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
        """One action for each of ``rows``, given their current observations, in the same order.

        ``None`` in place of an action says that the policy has no more actions for this row: the
        episode ends there and is recorded as truncated.

        Raises:
            RowError: no action can be chosen in one row.
        """

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any] | None:
        """Report on a finished episode as plain JSON values, ``None`` if there is nothing to say.

        The key ``findings`` of a report, a list of ``{"level", "path", "message"}``, reaches
        ``validation.json``.
        """
        return None

    def n_episodes(self) -> int | None:
        """How many episodes this policy can make, ``None`` if any number."""
        return None
