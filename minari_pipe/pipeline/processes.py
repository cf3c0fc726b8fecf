"""Ends processes whose driver or parent is gone, and holds locks that die with their process.

A run is a chain of processes: driver (which calls DVC) > shell > stage. If any of them is killed,
the others must stop, so that none is left when the next run starts.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from minari_pipe.core.files.links import opener
from minari_pipe.errors import ConfigError

DRIVER_VARIABLE = "MINARI_PIPE_DRIVER"
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"}
_POLL_SECONDS = 0.2

#: The :func:`identity` of each process that this one must not outlive.
_watched: list[str] = []


def identity(process: psutil.Process) -> str:
    """Return ``pid:start``: a pid alone may be given to another process."""
    return f"{process.pid}:{_started(process.pid)}"


def is_alive(process_identity: str) -> bool:
    """Return whether this exact process is still running; a zombie is not."""
    pid, _, started = process_identity.partition(":")
    try:
        if _started(int(pid)) != started:
            return False
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError, ValueError):
        return False


def _started(pid: int) -> str:
    """Return the start time of a process, in the system's own units.

    This is not ``psutil.create_time()``, which on Linux adds the boot time: that changes whenever
    the clock is set, and every stage would then believe that its driver is gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        return f"{psutil.Process(pid).create_time():.2f}"  # macOS: recorded, not computed
    # The second field is the program's name in parentheses, which may contain anything.
    return stat.rpartition(b")")[2].split()[19].decode()


def stop_with_ancestors() -> None:
    """Make this process exit when its parent, its shell's parent or its driver is gone.

    PR_SET_PDEATHSIG does not help: the parent is a shell, which survives its own parent. Exiting
    at once is safe because every file is written under a temporary name and renamed.
    """
    watched = [os.environ[DRIVER_VARIABLE]] if DRIVER_VARIABLE in os.environ else []
    try:
        parent = psutil.Process().parent()
        if parent is not None:
            watched.append(identity(parent))
            if parent.name() in _SHELLS and (above := parent.parent()) is not None:
                watched.append(identity(above))
    except (psutil.Error, OSError):  # it ended in the meantime
        os._exit(143)

    _watch(watched)


def end_with(driver: str) -> None:
    """End this process and all its descendants as soon as ``driver`` is gone.

    Args:
        driver: the :func:`identity` of the driver.
    """
    _watch([driver])


def end_if_orphaned() -> None:
    """End now, silently, if a process that this one must not outlive is already gone.

    Call this before reporting an error: a surviving process may have removed this process's files
    in the meantime, which caused the error, and it reports to the user itself.
    """
    if not all(is_alive(w) for w in _watched):
        end_tree(os.getpid())


def _watch(watched: list[str]) -> None:
    def watch() -> None:
        while True:
            end_if_orphaned()
            time.sleep(_POLL_SECONDS)

    _watched.extend(watched)
    end_if_orphaned()
    threading.Thread(target=watch, name="watch-ancestors", daemon=True).start()


def end_tree(pid: int) -> None:
    """Kill a process and all its descendants, such as a server that an environment started.

    If ``pid`` is this process, it exits with the code of SIGTERM and prints nothing more: errors
    that its threads raise because its children died are of no interest.
    """
    if pid == os.getpid():
        with suppress(OSError):  # for example: too many open files
            silence = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(silence, descriptor)
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for child in [*process.children(recursive=True), process]:
            if child.pid != os.getpid():
                with suppress(psutil.Error):
                    child.kill()
    if pid == os.getpid():
        os._exit(143)


@contextmanager
def exclusive(
    path: Path,
    *,
    wait_seconds: float = math.inf,
    busy: str = "",
    waiting: str = "",
    shared: bool = False,
) -> Iterator[None]:
    """Hold an advisory lock on ``path``; the system releases it when the process dies.

    Args:
        path: the lock file, created if missing.
        wait_seconds: how long to wait while another process holds the lock.
        busy: the error message if the wait times out.
        waiting: a line to print once to stderr if the lock is not free at once.
        shared: take a shared lock instead of an exclusive one.

    Raises:
        ConfigError: another process held the lock for ``wait_seconds``; the message is ``busy``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    # Python's file descriptors are not inherited: a stage does not keep its driver's lock.
    with open(path, "a+", opener=opener(path.parent)) as file:
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ConfigError(busy) from None
                if waiting:
                    print(waiting, file=sys.stderr, flush=True)
                    waiting = ""
                time.sleep(0.1)
        yield
