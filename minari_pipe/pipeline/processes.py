"""Processes that must not outlive each other, and locks that die with their process.

A run is a chain: driver (with DVC inside) > shell > stage. Any of them may be killed without
warning; the others must stop, and the next run must not meet them.
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

_watched: list[str] = []
"""The :func:`identity` of each process that this one does not outlive."""


def identity(process: psutil.Process) -> str:
    """``pid:start``: a pid alone may be given to another process."""
    return f"{process.pid}:{_started(process.pid)}"


def is_alive(process_identity: str) -> bool:
    """Whether the very process still runs; a zombie does not."""
    pid, _, started = process_identity.partition(":")
    try:
        if _started(int(pid)) != started:
            return False
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError, ValueError):
        return False


def _started(pid: int) -> str:
    """When a process began, as the system counts it.

    Not ``psutil.create_time()``: on Linux that adds the boot time, which moves whenever the clock
    is set, and then every stage would take its driver for gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        return f"{psutil.Process(pid).create_time():.2f}"  # macOS: recorded, not computed
    # The second field is the program's name in parentheses and may hold anything.
    return stat.rpartition(b")")[2].split()[19].decode()


def stop_with_ancestors() -> None:
    """Let this process exit when its parent, its shell's parent or its driver is gone.

    PR_SET_PDEATHSIG does not help: the parent is a shell, which survives its own parent. Exiting
    on the spot is safe because everything is written under a temporary name and renamed.
    """
    watched = [os.environ[DRIVER_VARIABLE]] if DRIVER_VARIABLE in os.environ else []
    try:
        parent = psutil.Process().parent()
        if parent is not None:
            watched.append(identity(parent))
            if parent.name() in _SHELLS and (above := parent.parent()) is not None:
                watched.append(identity(above))
    except (psutil.Error, OSError):  # gone while we looked
        os._exit(143)

    _watch(watched)


def end_with(driver: str) -> None:
    """Let this process, and all that it started, end as soon as ``driver`` is gone.

    Args:
        driver: its :func:`identity`.
    """
    _watch([driver])


def end_if_orphaned() -> None:
    """End now, without a word, if a process that this one was to end with is gone already.

    To be asked before an error is told: the cause may be that what lives on has cleared away this
    process's files since, and it tells the user itself what happened.
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
    """Kill a process and all that it started, such as a server of an environment.

    This process itself exits, as if by SIGTERM, and tells nothing more: what its threads make of
    the death of its children is of no interest.
    """
    if pid == os.getpid():
        with suppress(OSError):  # such as of too many open files
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
    """Hold an advisory lock on ``path``; the system frees it when the process dies.

    Args:
        path: made if missing.
        wait_seconds: for another process that holds it.
        busy: says that another one does, if it is waited for in vain.
        waiting: told on stderr, once, if it is waited for at all.
        shared: with others that hold it shared.

    Raises:
        ConfigError: with the text ``busy``, if another process holds it for ``wait_seconds``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    # Python's files are not inherited: a stage does not keep its driver's lock alive.
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
