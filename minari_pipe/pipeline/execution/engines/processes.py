"""The engine ``processes``: blocks side by side in processes of this machine.

Each worker is a pool of one process, so that a process that dies or has to be ended takes no
other block with it, and it is known whose it was.
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
from typing import Any

import psutil

from minari_pipe.core.messages import show_each_warning_once, tell
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.engines.base import Call, Engine, Outcome, usable_cores
from minari_pipe.pipeline.processes import end_tree, end_with, identity

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
"""The environment of a worker: workers share the cores, and one thread rounds in one way."""

# Workers are forked from one process that has imported what all need, and started no thread.
_FORKS = sys.platform == "linux"
_PRELOADED = ["minari_pipe.pipeline.execution.block_task"]
_PR_SET_PDEATHSIG = 1
_SECONDS_TO_DIE = 0.5
"""After that the system tells that a process which was killed has ended."""


class ProcessesEngine(Engine):
    """Runs calls in processes that live as long as the engine, and no longer than this one."""

    def __init__(self, settings: schema.Engine) -> None:
        """Start nothing yet: a worker begins with its first call.

        Args:
            settings: the keys of ``engine`` in the config; without ``n_workers`` there are as many
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
        except BrokenProcessPool:  # it died while it had nothing to do
            worker.end()
            self._busy[ticket] = worker = self._start()
            worker.run(call)

    def _start(self) -> _Worker:
        try:
            return _Worker(self._context)
        except ConnectionError:  # what workers are forked from was killed; it is started again
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


DIED = "its process died, killed or crashed (is there too little memory?)"
CALLED_EXIT = "the policy, the environment or a library of theirs ended it"
"""What is said of a block whose worker is gone."""

#: what multiprocessing gives where the process that forks the workers was killed as well
_UNKNOWN = 255


class _Worker:
    """A pool of one process."""

    def __init__(self, context: Any) -> None:
        # The process that workers are forked from has the environment of when it was started.
        here = (identity(psutil.Process()), os.getcwd(), {**os.environ, **ONE_THREAD})
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=here)
        with _for_children():
            self._pool.submit(os.getpid)  # starts the process
        # Known at once, so that one that has not begun yet can be ended as well: its call may
        # already lie in its queue, and would be run to its end.
        (self._process,) = self._pool._processes.values()
        self.future: Future[Outcome] = Future()

    def run(self, call: Call) -> None:
        with _for_children():
            self.future = self._pool.submit(call)

    def died(self) -> str:
        """How the process ended, which has not been asked to."""
        code = self._process.exitcode
        if code in (None, -signal.SIGKILL, _UNKNOWN):
            return DIED
        if code < 0:
            return f"its process died by {signal.Signals(-code).name}: {CALLED_EXIT}"
        return f"its process died with exit code {code}: {CALLED_EXIT}"

    def end(self) -> None:
        """Kill the process and all that it started."""
        if self._process.pid and self._process.is_alive():  # else it may be another's by now
            end_tree(self._process.pid)
        # Waits for the pool's thread, which the end of the interpreter would trip over.
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def _for_children() -> Iterator[None]:
    """What a process that starts inside inherits.

    Signals of the terminal wait until it has told that it does not care for them, and the current
    folder is not where it looks for modules: it may be a stranger's.
    """
    asked = {**ONE_THREAD, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in asked}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    os.environ.update(asked)
    # Sockets have their place there, whose names may have no more than 107 bytes.
    folder, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        tempfile.tempdir = folder
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin(driver: str, folder: str, environment: dict[str, str]) -> None:
    """The first that a worker does: it ends with its driver, which alone hears of signals."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if _FORKS:  # also where C code never lets the thread run that looks after the driver
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    end_with(driver)
    show_each_warning_once(partial(tell, "warning"))
