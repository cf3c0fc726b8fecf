"""What a person sees while blocks are made: one bar, and a line for everything that went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

from minari_pipe.pipeline.work import Tally


class Progress(AbstractContextManager):
    """Shows episodes, steps, steps per second, mean return, time left, failures and retries.

    The bar is there only where stderr is a terminal; lines are told anywhere.
    """

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        """Show nothing yet.

        Args:
            label: what the bar is of.
            say: tells the user one line.
        """
        self._label = label
        self._say = say
        self._bar: tqdm | None = None
        self._unit = ""
        self._done = Tally()
        self._n_done = 0
        self._n_failed = self._n_skipped = 0
        self.n_reused = 0
        self._ignored: dict[str, list[int]] = {}

    def begin(self, total: int | None, unit: str) -> None:
        """Say how much there is to do.

        Args:
            total: number of units; ``None`` if nobody knows.
            unit: ``episode``, ``step``, or ``match`` for episodes that match.
        """
        self._unit = unit
        self._bar = tqdm(
            total=total,
            desc=self._label,
            unit=f" {unit}s" if unit != "match" else " matches",
            disable=None,  # silent where stderr is no terminal
            dynamic_ncols=True,
            smoothing=0.05,
        )

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def running(self, tallies: Sequence[Tally]) -> None:
        """How far the blocks are that run now."""
        self._show(
            sum(t.n_episodes for t in tallies),
            sum(t.n_steps for t in tallies),
            sum(t.return_sum for t in tallies),
        )

    def finished(self, episodes: Sequence[dict[str, Any]], count: Any = None) -> None:
        """A block is finished, the next one in order.

        Args:
            episodes: what its record says of those that count.
            count: of all until now, for the unit ``match``.
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
        bar = self._bar
        if bar is None or bar.disable:
            return
        more = {"episode": n_episodes, "step": n_steps, "match": 0}[self._unit]
        n = self._n_done + more
        n_episodes += self._done.n_episodes
        n_steps += self._done.n_steps
        shown: dict[str, Any] = {}
        if self._unit != "episode":
            shown["episodes"] = n_episodes
        if self._unit != "step":
            elapsed = bar.format_dict["elapsed"]
            shown["steps"] = tqdm.format_sizeof(n_steps)
            shown["steps/s"] = tqdm.format_sizeof(n_steps / elapsed) if elapsed > 0 else "?"
        if n_episodes:
            shown["return"] = f"{(return_sum + self._done.return_sum) / n_episodes:.1f}"
        for name, value in (("retried", self._n_failed), ("skipped", self._n_skipped)):
            if value:
                shown[name] = value
        bar.set_postfix(shown, refresh=False)
        bar.update(max(0, min(n, bar.total or n) - bar.n))
        bar.refresh()

    def failed(self, index: int, reason: str, *, retry: int, of: int) -> None:
        """An attempt at a block failed; another one follows."""
        self._n_failed += 1
        self._tell(f"block {index} failed, retry {retry} of {of}: {reason}")

    def skipped(self, index: int, reason: str) -> None:
        """A block is left out for good."""
        self._n_skipped += 1
        self.warn(f"block {index} is left out: {reason}")

    def warn(self, text: str) -> None:
        """Something that deserves a look."""
        self._tell(f"warning: {text}")

    def ignored(self, index: int, reason: str) -> None:
        """A block on disk is made again."""
        self._ignored.setdefault(reason, []).append(index)
        if len(self._ignored[reason]) == 1:
            self._tell(f"block {index} is made again: {reason}")

    def reused(self, index: int) -> None:
        """A block was finished by an earlier run."""
        self.n_reused += 1

    def tell_reused(self, total: int) -> None:
        """Say how many of ``total`` blocks were there, and how many could not be used."""
        for reason, indices in self._ignored.items():
            if len(indices) > 1:
                self._tell(f"{len(indices)} blocks were made again: {reason}")
        if self.n_reused:
            self._tell(f"{self.n_reused} of {total} blocks were finished before")

    def _tell(self, line: str) -> None:
        with tqdm.external_write_mode():
            self._say(line)
