"""Run blocks side by side in processes of this machine (engine ``processes``).

Each worker is a pool of one process. So a process that dies or is killed takes no other block with
it, and it is known which block it ran.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from typing import Any

import psutil

from minari_pipe.core.messages import print_line, show_each_warning_once
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.engines.base import Call, Engine, Outcome, usable_cores
from minari_pipe.pipeline.processes import end_tree, end_with, identity

#: The environment of a worker: workers share the cores, and one thread rounds in only one way.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}

# Workers are forked from a server that has imported what all of them need and started no thread.
_FORKS = sys.platform == "linux"
_PRELOADED = ["minari_pipe.pipeline.execution.block_task"]
_PR_SET_PDEATHSIG = 1
#: After this time the system reports that a killed process has ended.
_SECONDS_TO_DIE = 0.5


class ProcessesEngine(Engine):
    """Runs calls in processes that live at most as long as the engine and this process."""

    def __init__(self, settings: schema.Engine) -> None:
        """Start nothing yet: a worker starts with its first call.

        Args:
            settings: the section ``engine`` of the config; without ``n_workers`` there are as many
                as this process may use cores.
        """
        self.n_workers = settings.n_workers or usable_cores()
        self._context = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
        if _FORKS:
            self._context.set_forkserver_preload(_PRELOADED)
        self._idle: list[_Worker] = []
        self._busy: dict[int, _Worker] = {}

    def submit(self, ticket: int, call: Call) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        self._busy[ticket] = worker
        try:
            worker.run(call)
        except BrokenProcessPool:  # the worker died while it was idle
            worker.end()
            self._busy[ticket] = worker = self._start()
            worker.run(call)

    def _start(self) -> _Worker:
        try:
            return _Worker(self._context)
        except ConnectionError:  # the fork server was killed; multiprocessing restarts it
            time.sleep(_SECONDS_TO_DIE)
            return _Worker(self._context)

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        futures = {worker.future: ticket for ticket, worker in self._busy.items()}
        done, _ = concurrent.futures.wait(
            futures, seconds, return_when=concurrent.futures.FIRST_COMPLETED
        )
        found = []
        for ticket in sorted(futures[future] for future in done):
            worker = self._busy.pop(ticket)
            try:
                found.append((ticket, worker.future.result()))
                self._idle.append(worker)
            except BrokenProcessPool:
                worker.end()
                found.append((ticket, Outcome(error=worker.died())))
        return found

    def cancel(self, ticket: int) -> None:
        worker = self._busy.pop(ticket, None)
        if worker is not None:
            worker.end()

    def close(self) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.end()
        self._idle, self._busy = [], {}


#: Errors of a block whose worker is gone.
DIED = "its process was killed or crashed (out of memory?)"
CALLED_EXIT = "the policy, the environment or one of their libraries caused it"

#: The exit code that multiprocessing reports if the fork server was killed as well.
_UNKNOWN = 255


class _Worker:
    """A pool of one process."""

    def __init__(self, context: Any) -> None:
        # The fork server keeps the environment of its start, so send the current one.
        here = (identity(psutil.Process()), os.getcwd(), {**os.environ, **ONE_THREAD})
        with _for_children():
            self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=here)
            self._pool.submit(os.getpid)  # starts the process
        # Kept from the start, so that a worker that has not begun yet can be killed as well: its
        # call may already be in its queue, and would run to its end.
        (self._process,) = self._pool._processes.values()
        self.future: Future[Outcome] = Future()

    def run(self, call: Call) -> None:
        with _for_children():
            self.future = self._pool.submit(call)

    def died(self) -> str:
        """Return how the process ended, which was not asked to; call :meth:`end` before."""
        code = self._process.exitcode
        if code in (None, -signal.SIGKILL, _UNKNOWN):
            return DIED
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}: {CALLED_EXIT}"
        return f"its process ended with exit code {code}: {CALLED_EXIT}"

    def end(self) -> None:
        """Kill the process and all processes that it started."""
        # Not is_alive(): the pool's thread reads the exit code, which can be read only once.
        has_ended = connection.wait([self._process.sentinel], 0)
        if self._process.pid and not has_ended:  # else the pid may have been reused
            end_tree(self._process.pid)
        # Wait for the pool's thread: if it still runs, interpreter shutdown fails.
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def _for_children() -> Iterator[None]:
    """Set what a process that is started in this context inherits.

    SIGINT and SIGHUP stay blocked until the process ignores them, and its import path leaves out
    the current folder, which may be a stranger's.
    """
    asked = {**ONE_THREAD, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in asked}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    os.environ.update(asked)
    # Unix sockets go to the temporary folder, and their paths may have no more than 107 bytes.
    folder, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        tempfile.tempdir = folder
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin(driver: str, folder: str, environment: dict[str, str]) -> None:
    """Initialize a worker: it ends with its driver and leaves terminal signals to it."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if _FORKS:  # works even if C code never lets the thread of end_with run
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    end_with(driver)
    show_each_warning_once(partial(print_line, "warning"))
