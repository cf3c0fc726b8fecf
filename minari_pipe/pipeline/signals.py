"""Stops a run: SIGINT, SIGTERM or SIGHUP becomes one exception and one line of output.

In the driver's own code, a signal raises :class:`Stopped`. DVC ignores SIGINT during a stage and
must not be interrupted while it holds its locks. It therefore runs in a thread of its own, and the
main thread handles signals: see :func:`run_stoppable`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from minari_pipe.errors import Stopped

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "stopped; finished work is kept; run the same command to continue"

_STAGES = "minari_pipe.pipeline.stages."

#: Seconds after which a stage that was asked to stop is killed; its finished blocks are safe.
_SECONDS_TO_STOP = 10.0

#: Seconds after which a repeated signal, or the driver, no longer waits for Python code to return.
_SECONDS_TO_UNWIND = 4.0


def stop_on_signals(last_words: str = "") -> None:
    """Make the first signal from now on raise :class:`Stopped` in the main thread.

    Signals that the process ignores stay ignored, as under ``nohup`` or in a script's background.
    A terminal and a parent process often both send a signal for the same stop, so later signals
    raise nothing. If the exception is lost, the process exits at once, which is safe but less
    tidy: h5py runs Python code in weakref callbacks, from which no exception can escape.

    Args:
        last_words: the line to print if the exception is lost.
    """
    first: list[float] = []
    pid = os.getpid()

    def exit_now(signum: int) -> NoReturn:
        if last_words:
            say(last_words)
        os._exit(128 + signum)

    def on_signal(signum: int, _frame: Any) -> None:
        if os.getpid() != pid:  # an environment's fork; multiprocessing would print a traceback
            os._exit(128 + signum)
        now = time.monotonic()
        if not first:
            first.append(now)
            raise Stopped(signum)
        if now - first[0] > _SECONDS_TO_UNWIND:
            exit_now(signum)

    def on_unraisable(lost: Any) -> None:
        if isinstance(lost.exc_value, Stopped):
            exit_now(lost.exc_value.exit_code - 128)
        unraisable(lost)

    unraisable, sys.unraisablehook = sys.unraisablehook, on_unraisable
    _handle(on_signal)
    # The driver starts its stages with these signals blocked; see `_run_in_thread`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def stoppable(main: Callable[[], int]) -> int:
    """Run ``main``, the driver, and print one line if a signal stops it.

    Returns:
        The return value of ``main``. After a signal, the process exits with 128 + its number.
    """
    try:
        stop_on_signals(INTERRUPTED)
        code = main()
    except Stopped as stopped:
        say(INTERRUPTED)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        # A normal exit would wait for DVC's hashing threads, while the user presses Ctrl-C.
        os._exit(stopped.exit_code)
    # Only interpreter shutdown is left, where an exception would print a traceback.
    _handle(signal.SIG_DFL)
    return code


def run_stoppable(work: Callable[[], None], *, repair: Callable[[], None]) -> None:
    """Run ``work``, DVC's reproduction, so that a signal stops it cleanly.

    While a stage runs, its processes are terminated; the stage ends, and DVC unwinds and releases
    its locks. Between stages, while DVC hashes, its thread is interrupted. If that thread cannot
    be interrupted because it waits for threads that hash large files, the process exits at once,
    as if it were killed.

    Args:
        work: calls DVC; runs in a thread of its own.
        repair: repairs DVC's files that an interruption can leave half-written.

    Raises:
        Stopped: after SIGINT, SIGTERM or SIGHUP; no stage is running any more.
    """
    asked: list[int] = []
    before = _handle(lambda signum, _frame: asked.append(signum))
    try:
        failure = _run_in_thread(work, asked, repair)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if asked:
        _unless_it_fails(repair)
        raise Stopped(asked[0])
    if failure:
        raise failure[0]


def run_abandonable(work: Callable[[], None]) -> None:
    """Run ``work``, which is safe to kill at any moment, so that a signal ends it.

    A transfer blocks in calls that no exception interrupts. When a signal raises
    :class:`Stopped` here, its thread is abandoned, and dies with the process, which then exits.

    Args:
        work: the transfer; runs in a thread of its own.
    """
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as exc:  # re-raised in the main thread
            failure.append(exc)

    thread = threading.Thread(target=guarded, name="transfer", daemon=True)
    thread.start()
    try:
        # Poll: the system may deliver a signal to another thread, which does not wake this one.
        while thread.is_alive():
            thread.join(0.1)
    except Stopped:
        if sys.stderr is not None and sys.stderr.isatty():
            say("")  # end the line of its progress bar
        raise
    if failure:
        raise failure[0]


def _handle(handler: Callable[[int, Any], None] | signal.Handlers) -> dict[signal.Signals, Any]:
    """Install ``handler`` for each signal that is not ignored; return the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    return {signum: signal.signal(signum, handler) for signum in heard}


def _run_in_thread(
    work: Callable[[], None], asked: list[int], repair: Callable[[], None]
) -> list[BaseException]:
    """Run ``work`` in a thread, stop it once ``asked`` holds a signal; return what it raised."""
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            # Stages inherit this mask: until a stage installs its own handlers, Ctrl-C would end
            # it with a traceback from the middle of its imports. SIGTERM stays unblocked: `_stop`
            # sends it, and it ends such a process silently.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
            work()
        except BaseException as exc:  # re-raised in the main thread
            failure.append(exc)

    hook, unraisable = threading.excepthook, sys.unraisablehook
    lost = threading.Event()

    def on_unraisable(args: Any) -> None:
        if asked and args.exc_type is KeyboardInterrupt:
            lost.set()  # it was raised in a finalizer, from which no exception can escape
        else:
            unraisable(args)

    # Do not report an interruption that arrives just after `work` has returned.
    threading.excepthook = lambda args: None if asked else hook(args)
    sys.unraisablehook = on_unraisable
    try:
        thread = threading.Thread(target=guarded, name="dvc")
        thread.start()
        while thread.is_alive() and not asked:
            thread.join(0.1)
        if asked:
            _stop(thread, asked[0], repair, lost)
    finally:
        threading.excepthook, sys.unraisablehook = hook, unraisable
    return failure


def _stop(
    thread: threading.Thread, signum: int, repair: Callable[[], None], lost: threading.Event
) -> None:
    """Stop the running stage, or else DVC itself; return when both have ended.

    Args:
        thread: runs DVC.
        signum: the signal that asked for the stop.
        repair: see :func:`run_stoppable`.
        lost: set when the thread's interruption ended nothing, and has to be repeated.
    """
    asked = time.monotonic()
    interrupted = 0.0
    while True:
        children = _children()
        if not thread.is_alive() and not children:
            return
        waited = time.monotonic() - asked
        # Spare the shell at first: it could exit before the stage has closed its environments.
        stages = [c for c in children if _is_stage(c)] if waited < _SECONDS_TO_UNWIND else []
        for child in stages or children:
            if waited > _SECONDS_TO_UNWIND or _listens(child):
                _send_signal(child, kill=waited > _SECONDS_TO_STOP)
        if not children and (not interrupted or lost.is_set()):
            lost.clear()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
            interrupted = time.monotonic()
        if not children and time.monotonic() - interrupted > _SECONDS_TO_UNWIND:
            # The thread may hold a lock that the repair needs: DVC's progress bars share one. The
            # interruption can hit a thread that it is just starting; it then waits for that one.
            mender = threading.Thread(target=_unless_it_fails, args=(repair,), daemon=True)
            mender.start()
            mender.join(_SECONDS_TO_STOP)
            say(INTERRUPTED)
            os._exit(128 + signum)
        time.sleep(0.1)


def _unless_it_fails(repair: Callable[[], None]) -> None:
    with suppress(Exception):  # the next run repeats the repair
        repair()


def say(line: str) -> None:
    """Write one line to stderr, unless the terminal is gone."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())  # not print: the signal may have interrupted one


def _children() -> list[Any]:
    """Return the processes of the running stage, without zombies."""
    import psutil  # imported here: most processes only need the signal handlers

    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def _is_stage(child: Any) -> bool:
    import psutil

    with suppress(psutil.Error):
        return any(a.startswith(_STAGES) for a in child.cmdline())
    return False


def _listens(child: Any) -> bool:
    """Return whether a process handles SIGTERM; dash reports a child that dies of a signal."""
    try:
        status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
    except OSError:
        return True  # gone, or a system without /proc
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _send_signal(child: Any, *, kill: bool) -> None:
    import psutil

    with suppress(psutil.Error):
        child.kill() if kill else child.terminate()
