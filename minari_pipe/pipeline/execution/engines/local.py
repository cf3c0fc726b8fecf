"""Run one block after another in the process of the stage (engine ``local``)."""

from __future__ import annotations

from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.engines.base import Call, Engine, Outcome


class LocalEngine(Engine):
    """Runs calls in this process, inside :meth:`wait`."""

    n_workers = 1
    in_process = True

    def __init__(self, settings: schema.Engine) -> None:
        """Start with no calls.

        Args:
            settings: the keys of ``engine`` in the config.
        """
        self._waiting: list[tuple[int, Call]] = []

    def submit(self, ticket: int, call: Call) -> None:
        self._waiting.append((ticket, call))

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        waiting, self._waiting = self._waiting, []
        return [(ticket, call()) for ticket, call in waiting]

    def cancel(self, ticket: int) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] != ticket]

    def close(self) -> None:
        self._waiting = []
