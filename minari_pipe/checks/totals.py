"""Counts: what metadata and attributes say about episodes, steps and rewards, against a recount."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "rewards_sum": np.sum,
    "rewards_mean": np.mean,
    "rewards_std": np.std,
    "rewards_max": np.max,
    "rewards_min": np.min,
}
# Sums depend in their last bits on the order of the additions, which writers choose differently.
RELATIVE = 1e-9


class Ids(Check):
    """Episodes are numbered 0 to n - 1 without gaps, and the ``id`` of each is its number."""

    name = "ids"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        number = episode.metadata.get("id")
        if number is not None and number != episode.index:
            yield self.error(
                episode.path("id"), f"the id is {number}, its place in the file {episode.index}"
            )


class Totals(Check):
    """``total_episodes`` and ``total_steps`` of the metadata, ``total_steps`` of each episode."""

    name = "totals"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._n_steps = 0
        self._all_counted = True

    def episode(self, episode: Episode) -> Iterator[Finding]:
        self._n_episodes += 1
        if episode.n_steps is None or not episode.is_sound:
            self._all_counted = False
            return
        self._n_steps += episode.n_steps
        recorded = episode.metadata.get("total_steps")
        if recorded is not None and recorded != episode.n_steps:
            yield self.error(
                episode.path("total_steps"),
                f"the attribute says {recorded}, the episode has {episode.n_steps} steps",
            )

    def finish(self) -> Iterator[Finding]:
        if not self._all_counted:  # an episode that is missing or damaged changes both counts
            return
        n_episodes = self.subject.metadata.get("total_episodes")
        n_steps = self.subject.metadata.get("total_steps")
        if _is_count(n_episodes) and n_episodes != self._n_episodes:
            # Another number of episodes has another number of steps: one fault, not two.
            yield self.error(
                "metadata / total_episodes",
                f"the metadata say {n_episodes} episodes of {n_steps} steps together, the data "
                f"hold {self._n_episodes} of {self._n_steps}",
            )
        elif self._n_episodes == 0:
            yield self.error("metadata / total_episodes", "the dataset has no episodes")
        elif _is_count(n_steps) and n_steps != self._n_steps:
            yield self.error(
                "metadata / total_steps",
                f"the metadata say {n_steps} steps, the data hold {self._n_steps}",
            )


class Statistics(Check):
    """The ``rewards_*`` attributes, where an episode has them, against its rewards."""

    name = "statistics"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound or "finite" in episode.faults:
            return
        wrong = []
        # Rounding grows with the terms that were added, not with what they add up to.
        allowed = RELATIVE * max(1.0, float(np.abs(episode.rewards).sum()))
        for name, statistic in STATISTICS.items():
            recorded = episode.metadata.get(name)
            if recorded is None:
                continue
            counted = float(statistic(episode.rewards))
            if not _is_close(recorded, counted, allowed):
                wrong.append(f"{name} is {recorded}, the rewards give {counted}")
        if wrong:
            yield self.error(episode.path("rewards"), "; ".join(wrong))


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_close(recorded: Any, counted: float, allowed: float) -> bool:
    try:
        return abs(float(recorded) - counted) <= allowed
    except (TypeError, ValueError):
        return False
