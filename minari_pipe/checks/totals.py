"""Compare the stored totals, ids, sizes and reward statistics with the data."""

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
#: The last bits of a sum depend on the order of the additions, which differs between writers.
RELATIVE = 1e-9
#: Sizes are rounded to 0.1 MB, and the metadata grow a little after the size is written.
SIZE_MB = 0.15
SIZE_SHARE = 0.05


class Ids(Check):
    """Checks that the ``id`` of every episode is its index, from 0 to n - 1 without gaps."""

    name = "ids"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.unreadable:
            return
        fault = _count_fault(episode.metadata, "id", episode.index)
        if fault:
            yield self.error(episode.path("id"), f"{fault}, its position in the file")


class Totals(Check):
    """Checks the totals of episodes and steps in the metadata, and of steps in each episode."""

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
        if not self._all_counted:  # a missing or damaged episode changes both counts
            return
        n_episodes = self.subject.metadata.get("total_episodes")
        n_steps = self.subject.metadata.get("total_steps")
        if is_count(n_episodes) and n_episodes != self._n_episodes:
            # A wrong number of episodes implies a wrong number of steps: one fault, not two.
            yield self.error(
                "metadata / total_episodes",
                f"the metadata say {n_episodes} episodes with {n_steps} steps in total, the data "
                f"have {self._n_episodes} with {self._n_steps}",
            )
        elif self._n_episodes == 0:
            yield self.error("metadata / total_episodes", "the dataset has no episodes")
        elif is_count(n_steps) and n_steps != self._n_steps:
            yield self.error(
                "metadata / total_steps",
                f"the metadata say {n_steps} steps, the data have {self._n_steps}",
            )


class Statistics(Check):
    """Compares the ``rewards_*`` attributes, all or none of them, with the episode's rewards."""

    name = "statistics"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound or "finite" in episode.faults:
            return
        missing = [name for name in STATISTICS if episode.metadata.get(name) is None]
        if missing and len(missing) < len(STATISTICS):
            others = [name for name in STATISTICS if name not in missing]
            verb = "is" if len(missing) == 1 else f"{' and '.join(missing)} are"
            yield self.error(
                episode.path(missing[0]), f"{verb} missing, unlike {', '.join(others)}"
            )
        wrong = []
        # Rounding errors grow with the size of the terms, not with their sum.
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
    """Warns if ``dataset_size`` differs from the size of the files by more than rounding.

    Legacy layouts are skipped: their files had another size when ``dataset_size`` was written.
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
        # The metadata check reports values that are negative or not numbers.
        if (
            is_finite_number(recorded)
            and recorded >= 0
            and abs(recorded - size) > max(SIZE_MB, SIZE_SHARE * size)
        ):
            yield self.warning(
                "metadata / dataset_size",
                f"is {recorded} MB, the files take {size} MB",
                "dataset-size",
            )


def _count_fault(attributes: Mapping[str, Any], name: str, expected: int) -> str | None:
    """Return what is wrong with an attribute that must be the integer ``expected``, or ``None``."""
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
