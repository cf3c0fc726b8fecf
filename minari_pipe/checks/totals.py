"""Counts: what metadata and attributes say about episodes, steps and rewards, against a recount."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject, is_count, typed
from minari_pipe.core.metadata import is_finite_number
from minari_pipe.storage.legacy.base import LegacyStorage

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "rewards_sum": np.sum,
    "rewards_mean": np.mean,
    "rewards_std": np.std,
    "rewards_max": np.max,
    "rewards_min": np.min,
}
# Sums depend in their last bits on the order of the additions, which writers choose differently.
RELATIVE = 1e-9
# Sizes are rounded to 0.1 MB, and metadata grow a little after they were noted.
SIZE_MB = 0.15
SIZE_SHARE = 0.05


class Ids(Check):
    """Episodes are numbered 0 to n - 1 without gaps, and the ``id`` of each is its number."""

    name = "ids"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.unreadable:
            return
        fault = _count_fault(episode.metadata, "id", episode.index)
        if fault:
            yield self.error(episode.path("id"), f"{fault}, its place in the file")


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
        fault = _count_fault(episode.metadata, "total_steps", episode.n_steps)
        if fault:
            yield self.error(episode.path("total_steps"), f"{fault}, its number of steps")

    def finish(self) -> Iterator[Finding]:
        if not self._all_counted:  # an episode that is missing or damaged changes both counts
            return
        n_episodes = self.subject.metadata.get("total_episodes")
        n_steps = self.subject.metadata.get("total_steps")
        if is_count(n_episodes) and n_episodes != self._n_episodes:
            # Another number of episodes has another number of steps: one fault, not two.
            yield self.error(
                "metadata / total_episodes",
                f"the metadata say {n_episodes} episodes of {n_steps} steps together, the data "
                f"hold {self._n_episodes} of {self._n_steps}",
            )
        elif self._n_episodes == 0:
            yield self.error("metadata / total_episodes", "the dataset has no episodes")
        elif is_count(n_steps) and n_steps != self._n_steps:
            yield self.error(
                "metadata / total_steps",
                f"the metadata say {n_steps} steps, the data hold {self._n_steps}",
            )


class Statistics(Check):
    """The ``rewards_*`` attributes against the rewards of the episode, which has all or none."""

    name = "statistics"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound or "finite" in episode.faults:
            return
        missing = [name for name in STATISTICS if episode.metadata.get(name) is None]
        if missing and len(missing) < len(STATISTICS):
            others = [name for name in STATISTICS if name not in missing]
            verb = "is" if len(missing) == 1 else f"{' and '.join(missing)} are"
            yield self.error(episode.path(missing[0]), f"{verb} missing beside {', '.join(others)}")
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


class Size(Check):
    """Warns of a ``dataset_size`` that is not that of the files, give or take rounding.

    The files of older layouts had other sizes when the size was noted.
    """

    name = "size"
    warnings = ("dataset-size",)

    def begin(self) -> Iterator[Finding]:
        subject = self.subject
        recorded = subject.metadata.get("dataset_size")
        storage = subject.storage
        if storage is None or isinstance(storage, LegacyStorage) or recorded is None:
            return
        size = storage.get_size()
        # The check of the metadata reports what is no number or negative.
        if (
            is_finite_number(recorded)
            and recorded >= 0
            and abs(recorded - size) > max(SIZE_MB, SIZE_SHARE * size)
        ):
            yield self.warning(
                "metadata / dataset_size",
                f"is {recorded} MB, the files have {size} MB",
                "dataset-size",
            )


def _count_fault(attributes: Mapping[str, Any], name: str, expected: int) -> str | None:
    """What is wrong with an attribute that loaders read as the integer ``expected``."""
    value = attributes.get(name)
    if value is None:
        return f"is missing, expected the integer {expected}"
    if is_count(value):
        return None if value == expected else f"is {value}, expected the integer {expected}"
    return f"is {typed(value)}, expected the integer {expected}"


def _is_close(recorded: Any, counted: float, allowed: float) -> bool:
    try:
        return abs(float(recorded) - counted) <= allowed
    except (TypeError, ValueError):
        return False
