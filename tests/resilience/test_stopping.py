"""A signal becomes one exception, one line and one exit code, whatever the process is at."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minari_pipe.errors import Stopped
from minari_pipe.pipeline.signals import INTERRUPTED, run_abandonable, run_stoppable

START = """
import os, signal, sys, threading, time, weakref
from minari_pipe.errors import Stopped
from minari_pipe.pipeline.signals import run_stoppable, stop_on_signals, stoppable
for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, signal.SIG_DFL)  # whatever the shell that runs the tests ignores
def tell(signum=signal.SIGTERM):
    os.kill(os.getpid(), signum)
def wait():
    for _ in range(6000):
        time.sleep(0.01)
"""


def run(script: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", START + script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


LINE = INTERRUPTED + "\n"

SCRIPTS = {
    "nothing happens": ("sys.exit(stoppable(lambda: 7))", (7, "", "")),
    "terminated": (
        """
def main():
    try:
        tell()
    finally:
        print("tidy")
sys.exit(stoppable(main))
""",
        (143, "tidy\n", LINE),
    ),
    "told twice while it tidies up": (
        """
def main():
    try:
        tell(signal.SIGINT)
    finally:
        tell(signal.SIGINT)
        tell(signal.SIGTERM)
        print("tidy")
sys.exit(stoppable(main))
""",
        (130, "tidy\n", LINE),
    ),
    "in a callback that cannot raise": (
        """
class Thing: pass
def main():
    thing = Thing()
    ref = weakref.ref(thing, lambda ref: tell())
    del thing
    return 0
sys.exit(stoppable(main))
""",
        (143, "", LINE),
    ),
    "the exception is swallowed": (
        """
from minari_pipe.pipeline import signals
signals._SECONDS_TO_UNWIND = 0.2
def main():
    try:
        tell()
    except BaseException:
        time.sleep(0.3)
    tell()
    print("goes on")
    return 0
sys.exit(stoppable(main))
""",
        (143, "", LINE),
    ),
    "a fork of an environment": (
        """
stop_on_signals()
pid = os.fork()
if not pid:
    tell()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        (0, "143\n", ""),
    ),
    "the terminal is gone": (
        """
os.close(2)
sys.exit(stoppable(lambda: tell(signal.SIGHUP)))
""",
        (129, "", ""),
    ),
    "while DVC works": (
        """
def work():
    try:
        tell(signal.SIGINT)
        wait()
    except KeyboardInterrupt:
        print("unwinds")
def main():
    run_stoppable(work, repair=lambda: print("repairs"))
sys.exit(stoppable(main))
""",
        (130, "unwinds\nrepairs\n", LINE),
    ),
    "while DVC works in a finalizer, from which no exception escapes": (
        """
class Finalized:
    def __del__(self):
        tell(signal.SIGINT)
        wait()
def work():
    try:
        del Finalized.only
        wait()
    except KeyboardInterrupt:
        print("unwinds")
Finalized.only = Finalized()
sys.exit(stoppable(lambda: run_stoppable(work, repair=lambda: None)))
""",
        (130, "unwinds\n", LINE),
    ),
    "a repair that fails": (
        """
def work():
    tell(signal.SIGINT)
    wait()
sys.exit(stoppable(lambda: run_stoppable(work, repair=lambda: 1 / 0)))
""",
        (130, "", LINE),
    ),
    "a repair that needs a lock which the work holds for ever": (
        """
import threading
from minari_pipe.pipeline import signals
signals._SECONDS_TO_UNWIND, signals._SECONDS_TO_STOP = 0.3, 0.6
lock = threading.Lock()
def work():
    with lock:
        tell(signal.SIGINT)
        threading.Event().wait()
sys.exit(stoppable(lambda: run_stoppable(work, repair=lock.acquire)))
""",
        (130, "", LINE),
    ),
    "while a transfer works, which nothing interrupts": (
        """
from minari_pipe.pipeline.signals import run_abandonable
def work():
    tell(signal.SIGINT)
    threading.Event().wait()
sys.exit(stoppable(lambda: run_abandonable(work)))
""",
        (130, "", LINE),
    ),
    "children of DVC that have a handler": (
        """
import subprocess
code = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(0)); time.sleep(60)"
def work():
    child = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.5)
    tell()
    print(child.wait(), flush=True)
sys.exit(stoppable(lambda: run_stoppable(work, repair=lambda: None)))
""",
        (143, "0\n", LINE),
    ),
    "a child that does not listen": (
        """
import subprocess
from minari_pipe.pipeline import signals
signals._SECONDS_TO_UNWIND, signals._SECONDS_TO_STOP = 0.3, 0.6
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
def work():
    child = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.5)
    tell()
    print(child.wait(), flush=True)
sys.exit(stoppable(lambda: run_stoppable(work, repair=lambda: None)))
""",
        (143, "-9\n", LINE),
    ),
}


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_process_is_stopped(script, expected):
    assert run(script) == expected


def test_what_work_raises_is_raised():
    def work() -> None:
        raise ZeroDivisionError("in DVC")

    with pytest.raises(ZeroDivisionError, match="in DVC"):
        run_stoppable(work, repair=lambda: None)
    with pytest.raises(ZeroDivisionError, match="in DVC"):
        run_abandonable(work)


def test_the_exit_code_is_the_shell_s():
    assert Stopped(2).exit_code == 130
