"""What every engine is: it runs calls, some at a time, and says how they ended."""

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
        value: what it returned, if it ended well.
        error: what went wrong, in one line; None if it ended well.
        final: to try again would end as badly: a mistake in the config, or a full disk.
        raised: the policy or the environment raised it; the same a second time, it always will.
        counts: of what was done: episodes, steps, and the sum of the returns.
    """

    value: dict[str, Any] | None = None
    error: str | None = None
    final: bool = False
    raised: bool = False
    counts: tuple[int, int, float] = (0, 0, 0.0)


Call = Callable[[], Outcome]
"""What an engine runs: an instance of a class that pickle can send, which raises nothing."""


class Engine(AbstractContextManager, ABC):
    """Runs calls in places of its own; a context manager, whose end stops what still runs.

    An engine neither retries nor judges: that is the scheduler's, for all engines alike. It is made
    of the keys of ``engine`` in a config, :class:`~minari_pipe.pipeline.config.schema.Engine`.
    """

    n_workers: int
    """How many calls run at a time."""

    in_process: bool = False
    """Whether calls run in this process, while it waits."""

    shares_disk: bool = True
    """Whether calls see the files of this machine."""

    @abstractmethod
    def submit(self, ticket: int, call: Call) -> None:
        """Run ``call`` under the name ``ticket``; there are never more than ``n_workers``."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        """The calls that ended, and how, once there are any or the time is over.

        A call whose process died ended with an error that says so.

        Raises:
            MinariPipeError: the engine itself is lost; a later run goes on.
        """

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """End the processes of a call at once; it is not heard of any more."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that the engine started."""

    def __exit__(self, *_: object) -> None:
        self.close()


def usable_cores() -> int:
    """How many cores this process may use; a job of Slurm has fewer than its machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
