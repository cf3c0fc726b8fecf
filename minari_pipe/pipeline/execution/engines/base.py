"""The interface of an engine: it runs a number of calls at a time and reports how they ended."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        value: the record that it returned, if it succeeded.
        error: what went wrong, in one line; None if it succeeded.
        final: a retry would fail as well: a mistake in the config, or a full disk.
        raised: the policy or the environment raised it; an error that recurs once always will.
        counts: what was done: episodes, steps, and the sum of the returns.
    """

    value: dict[str, Any] | None = None
    error: str | None = None
    final: bool = False
    raised: bool = False
    counts: tuple[int, int, float] = (0, 0, 0.0)


#: What an engine runs: an instance of a picklable class, which raises nothing.
Call = Callable[[], Outcome]


class Engine(AbstractContextManager, ABC):
    """Runs calls on its workers; a context manager whose exit stops the calls that still run.

    An engine neither retries calls nor judges errors: the scheduler does, for all engines alike. It
    is made from a config's ``engine`` section, :class:`~minari_pipe.pipeline.config.schema.Engine`.
    """

    n_workers: int
    """How many calls run at a time."""

    in_process: bool = False
    """Whether calls run in this process, inside :meth:`wait`."""

    shares_disk: bool = True
    """Whether calls see the files of this machine."""

    @abstractmethod
    def submit(self, ticket: int, call: Call) -> None:
        """Run ``call`` under the id ``ticket``; at most ``n_workers`` calls run at a time."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        """Return the calls that ended, with their outcomes; wait up to ``seconds`` for the first.

        A call whose process died ends with an error that says so.

        Raises:
            MinariPipeError: the engine itself is lost; a later run continues.
        """

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Kill the processes of a call at once; :meth:`wait` does not return it any more."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that the engine started."""

    def __exit__(self, *_: object) -> None:
        self.close()


def usable_cores() -> int:
    """Return how many cores this process may use; a Slurm job has fewer than its machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
