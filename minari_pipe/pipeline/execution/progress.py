"""Show the progress of blocks: one bar, and one line per problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

from minari_pipe.core.progress_bar import ProgressBar, short
from minari_pipe.pipeline.execution.block_task import Tally


class Progress(AbstractContextManager):
    """Shows episodes, steps, steps per second, mean return, time left, failures and retries.

    The bar appears only if stderr is a terminal; otherwise one line a minute is printed.
    """

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        """Start without output.

        Args:
            label: label of the bar.
            say: prints one line.
        """
        self._label = label
        self._say = say
        self._bar: ProgressBar | None = None
        self._began = 0.0
        self._unit = ""
        self._done = Tally()
        self._n_done = 0
        self._n_failed = self._n_skipped = 0
        self.n_reused = 0
        self._ignored: dict[str, list[int]] = {}

    def begin(self, total: int | None, unit: str) -> None:
        """Show the bar with the amount of work.

        Args:
            total: number of units; ``None`` if unknown.
            unit: ``episode``, ``step``, or ``match`` for matching episodes.
        """
        self._unit = unit
        self._began = time.monotonic()
        self._bar = ProgressBar(self._label, total, "matching episode" if unit == "match" else unit)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def running(self, tallies: Sequence[Tally]) -> None:
        """Show the progress of the blocks that run now."""
        self._show(
            sum(t.n_episodes for t in tallies),
            sum(t.n_steps for t in tallies),
            sum(t.return_sum for t in tallies),
        )

    def finished(self, episodes: Sequence[dict[str, Any]], count: Any = None) -> None:
        """Count the next finished block in order.

        Args:
            episodes: entries of its record for the episodes that count.
            count: totals of all blocks so far, for the unit ``match``.
        """
        self._done.n_episodes += len(episodes)
        self._done.n_steps += sum(e["n_steps"] for e in episodes)
        self._done.return_sum += sum(e["return"] for e in episodes)
        self._n_done = {
            "episode": self._done.n_episodes,
            "step": self._done.n_steps,
            "match": getattr(count, "n_matching", 0),
        }[self._unit]
        self._show(0, 0, 0.0)

    def _show(self, n_episodes: int, n_steps: int, return_sum: float) -> None:
        if self._bar is None:
            return
        more = {"episode": n_episodes, "step": n_steps, "match": 0}[self._unit]
        n_episodes += self._done.n_episodes
        n_steps += self._done.n_steps
        return_sum += self._done.return_sum
        details = [
            f"{value} {name}"
            for name, value in (("retried", self._n_failed), ("skipped", self._n_skipped))
            if value
        ]
        if elapsed := time.monotonic() - self._began:
            details.append(f"{short(n_steps / elapsed)} steps/s")
        if n_episodes:
            details.append(f"return {return_sum / n_episodes:.1f}")
        if self._unit != "step":
            details.append(f"{short(n_steps)} steps")
        if self._unit != "episode":
            details.append(f"{n_episodes:,} episodes")
        self._bar.show(self._n_done + more, details)

    def failed(self, index: int, reason: str, *, retry: int, of: int) -> None:
        """Count and print a failed attempt at a block; another one follows."""
        self._n_failed += 1
        self._print(f"block {index} failed, retry {retry} of {of}: {reason}")

    def skipped(self, index: int, reason: str) -> None:
        """Count and print a block that is left out for good."""
        self._n_skipped += 1
        self.warn(f"block {index} is skipped: {reason}")

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._print(f"warning: {text}")

    def ignored(self, index: int, reason: str) -> None:
        """Print that a block on disk is made again, once per reason."""
        self._ignored.setdefault(reason, []).append(index)
        if len(self._ignored[reason]) == 1:
            self._print(f"block {index} runs again: {reason}")

    def reused(self, index: int) -> None:
        """Count a block that an earlier run finished."""
        self.n_reused += 1

    def tell_reused(self, total: int) -> None:
        """Print how many of ``total`` blocks were reused, and how many could not be."""
        for reason, indices in self._ignored.items():
            if len(indices) > 1:
                self._print(f"{len(indices)} blocks ran again, each because {reason}")
        if self.n_reused:
            self._print(f"{self.n_reused} of {total} blocks were already finished")

    def _print(self, line: str) -> None:
        with tqdm.external_write_mode():
            self._say(line)
