"""How a run is stopped: SIGINT, SIGTERM or SIGHUP becomes one exception and one line.

The driver spends its time in two ways. In its own code a signal raises :class:`Stopped`. While
DVC runs, which ignores SIGINT during a stage and must not be torn out of the middle of its locks,
DVC has a thread of its own and the main thread answers: see :func:`run_stoppable`.
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
INTERRUPTED = "stopped; finished work is kept, the same command goes on"

_STAGES = "minari_pipe.pipeline.stages."

_SECONDS_TO_STOP = 10.0
"""After that a stage that was asked to stop is killed; its finished blocks are safe anyway."""

_SECONDS_TO_UNWIND = 4.0
"""After that a repeated signal, or the driver itself, does not wait for Python code to return."""


def stop_on_signals(last_words: str = "") -> None:
    """From here on a signal raises :class:`Stopped` in the main thread, once.

    What the process was told to ignore stays ignored: ``nohup``, or the background of a script.
    A terminal and a parent often tell the same stop twice, so another signal is no new exception.
    Where the exception is lost, the process exits on the spot, which is safe, if less tidy: h5py
    runs Python code in weak references' callbacks, from which nothing can be raised.

    Args:
        last_words: what to say where nobody catches the exception.
    """
    first: list[float] = []
    pid = os.getpid()

    def exit_now(signum: int) -> NoReturn:
        if last_words:
            say(last_words)
        os._exit(128 + signum)

    def on_signal(signum: int, _frame: Any) -> None:
        if os.getpid() != pid:  # forked by an environment; multiprocessing would print a traceback
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
    # The driver lets its stages start with these blocked; see `run_stoppable`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def stoppable(main: Callable[[], int]) -> int:
    """Run ``main``, the driver's whole life, and say one line if a signal stopped it.

    Returns:
        What ``main`` returned. After a signal the process exits with 128 + the signal instead.
    """
    try:
        stop_on_signals(INTERRUPTED)
        code = main()
    except Stopped as stopped:
        say(INTERRUPTED)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        # Python would wait here for threads of DVC that hash, while the user presses Ctrl-C.
        os._exit(stopped.exit_code)
    # What is left is the interpreter's end, where an exception would be a traceback.
    _handle(signal.SIG_DFL)
    return code


def run_stoppable(work: Callable[[], None], *, repair: Callable[[], None]) -> None:
    """Run ``work``, DVC's reproduction, so that a signal stops it cleanly.

    While a stage runs, its processes are told to stop, which ends the stage, and DVC unwinds and
    frees its locks. Between stages, where DVC hashes, its thread is interrupted. Where that
    thread cannot be interrupted because it waits for others that hash large files, the process
    exits as a kill would end it.

    Args:
        work: what DVC does; runs in a thread of its own.
        repair: mends the files of DVC that an interruption can leave half written.

    Raises:
        Stopped: after SIGINT, SIGTERM or SIGHUP; no stage runs any more.
    """
    if threading.current_thread() is not threading.main_thread():
        work()  # in a thread of a Hydra launcher, signals are answered elsewhere
        return
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
    """Run ``work``, which may end at any moment as a kill would end it, so that a signal ends it.

    A transfer sits in calls that no exception reaches. Its thread is left behind when a signal
    raises :class:`Stopped` here, and dies with the process, which is about to exit.

    Args:
        work: what to do; runs in a thread of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        work()  # in a thread of a Hydra launcher, signals are answered elsewhere
        return
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as exc:  # handed to the main thread, whatever it is
            failure.append(exc)

    thread = threading.Thread(target=guarded, name="transfer", daemon=True)
    thread.start()
    try:
        # With pauses: the system may hand a signal to another thread, which does not wake this one.
        while thread.is_alive():
            thread.join(0.1)
    except Stopped:
        if sys.stderr is not None and sys.stderr.isatty():
            say("")  # its bar stays in the line
        raise
    if failure:
        raise failure[0]


def _handle(handler: Callable[[int, Any], None] | signal.Handlers) -> dict[signal.Signals, Any]:
    """Install ``handler`` where the signals are not ignored; the handlers before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    return {signum: signal.signal(signum, handler) for signum in heard}


def _run_in_thread(
    work: Callable[[], None], asked: list[int], repair: Callable[[], None]
) -> list[BaseException]:
    """Run ``work`` in a thread and stop it when a signal is in ``asked``; what it raised."""
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            # Inherited by the stages: until one has its own handlers, a Ctrl-C of the terminal
            # would end it with a traceback from the middle of its imports. SIGTERM is what
            # `_stop` sends, and ends such a process without a word.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
            work()
        except BaseException as exc:  # handed to the main thread, whatever it is
            failure.append(exc)

    hook = threading.excepthook
    # The interruption may arrive when `work` is just over; nobody needs to read of that.
    threading.excepthook = lambda args: None if asked else hook(args)
    try:
        thread = threading.Thread(target=guarded, name="dvc")
        thread.start()
        while thread.is_alive() and not asked:
            thread.join(0.1)
        if asked:
            _stop(thread, asked[0], repair)
    finally:
        threading.excepthook = hook
    return failure


def _stop(thread: threading.Thread, signum: int, repair: Callable[[], None]) -> None:
    """Stop the stage that runs, or else DVC itself; return when both are gone."""
    asked = time.monotonic()
    interrupted = 0.0
    while True:
        children = _children()
        if not thread.is_alive() and not children:
            return
        waited = time.monotonic() - asked
        # A shell that is told as well may be gone before the stage has closed its environments.
        stages = [c for c in children if _is_stage(c)] if waited < _SECONDS_TO_UNWIND else []
        for child in stages or children:
            if waited > _SECONDS_TO_UNWIND or _listens(child):
                _tell(child, kill=waited > _SECONDS_TO_STOP)
        if not children and not interrupted:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
            interrupted = time.monotonic()
        if not children and time.monotonic() - interrupted > _SECONDS_TO_UNWIND:
            # The thread may hold a lock that the repair needs: DVC's progress bars share one. The
            # interruption can reach a thread that it is about to start, for which it then waits.
            mender = threading.Thread(target=_unless_it_fails, args=(repair,), daemon=True)
            mender.start()
            mender.join(_SECONDS_TO_STOP)
            say(INTERRUPTED)
            os._exit(128 + signum)
        time.sleep(0.1)


def _unless_it_fails(repair: Callable[[], None]) -> None:
    with suppress(Exception):  # the next run does it again
        repair()


def say(line: str) -> None:
    """Tell the user one line, unless the terminal is what is gone."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())  # print may be what a signal interrupted


def _children() -> list[Any]:
    """The processes of the stage that runs; those that are only not reaped yet do not count."""
    import psutil  # not needed by a process that only wants to be stoppable

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
    """Whether a process has a handler for SIGTERM: dash reports a child that the signal ends."""
    try:
        status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
    except OSError:
        return True  # gone, or a system without /proc
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _tell(child: Any, *, kill: bool) -> None:
    import psutil

    with suppress(psutil.Error):
        child.kill() if kill else child.terminate()
