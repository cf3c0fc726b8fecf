"""Progress is a bar on a terminal, also through DVC, and elsewhere a line a minute."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest

from minari_pipe.core import progress_bar
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.pipeline.execution.block_task import Tally
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.signals import INTERRUPTED
from tests.support.interruption import (
    Place,
    Run,
    dvc_status,
    end_all,
    make_place,
    undisturbed,
    wait_until,
)


@pytest.fixture(autouse=True)
def _tidy():
    yield
    end_all()


class Terminal:
    """A run whose standard streams are a terminal, which controls its process group."""

    def __init__(self, place: Place, barrier: dict | None = None) -> None:
        self._folder = place.folder / "talk"
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.shown = ""

        def take() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_DFL)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "minari_pipe", "+dataset=killed"],
            cwd=place.work,
            env=place.environment(barrier),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=take,
        )
        os.close(slave)

    def read(self) -> None:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if ready:
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # everyone else has closed it
                time.sleep(0.05)

    def reached(self) -> bool:
        self.read()
        return (self._folder / "reached").exists()

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def end(self, seconds: float = 60) -> int:
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        os.close(self._master)
        return self.process.wait(1)


@pytest.fixture
def drawn(monkeypatch):
    """Draw the progress of a collection on a terminal of so many columns; what that shows."""

    def draw(columns: int, n_skipped: int = 0) -> str:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(slave, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", terminal)
            progress = Progress("collect", lambda line: None)
            progress.begin(12_000, "episode")
            for index in range(n_skipped):
                progress.skipped(index, "its simulator exploded")
            with progress:
                progress.running([Tally(n_episodes=6_000, n_steps=1_200_000, return_sum=6e6)])
        shown = b""
        with suppress(OSError):  # everything is read, and the other end closed
            while more := os.read(master, 65536):
                shown += more
        os.close(master)
        return shown.decode().rstrip().split("\r")[-1]

    return draw


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_bar_is_legible_on_narrow_and_wide_terminals(columns, drawn):
    line = drawn(columns)
    assert len(line) < columns
    assert line.split("|")[1].count("█") >= 8  # of the half that is done
    assert "6,000/12,000 episodes" in line
    for detail, least in (("steps/s", 80), ("return 1000.0", 120), ("1.2M steps", 120)):
        assert columns < least or detail in line


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_bar_starts_no_process(method):
    """That of a lock that processes share imports modules of the current folder."""
    code = (
        "import multiprocessing, sys\n"
        "from multiprocessing.resource_tracker import _resource_tracker as tracker\n"
        "from minari_pipe.core.progress_bar import ProgressBar\n"
        f"multiprocessing.set_start_method({method!r})\n"
        "sys.stderr.isatty = lambda: True\n"
        "with ProgressBar('validate', 2, 'episode') as bar:\n"
        "    bar.show(1)\n"
        "print(tracker._fd)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert "validate" in done.stderr


def test_what_went_wrong_is_the_last_to_give_way(drawn):
    assert "3 skipped" in drawn(80, n_skipped=3)


def test_without_a_terminal_there_is_a_line_a_minute_and_none_of_what_is_over_sooner(
    monkeypatch, capfd
):
    now = [1000.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    with ProgressBar("create", 300, "episode") as bar:
        for n in range(1, 56):
            now[0] += 1.0
            bar.show(n, ["return 1.5"])
        assert capfd.readouterr().err == ""
        for n in range(56, 301):
            now[0] += 1.0
            bar.show(n, ["return 1.5"])
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0] == "create: 60 of 300 episodes, 4:00 left, return 1.5"
    assert lines[-1] == "create: 300 of 300 episodes in 5:00, return 1.5"


@pytest.mark.parametrize(
    ("unit", "total", "line"),
    [
        ("B", 45_000_000, "upload: 12.3 MB of 45 MB"),
        ("B", None, "upload: 12.3 MB"),
        ("step", None, "upload: 12,345,678 steps"),
    ],
)
def test_a_line_of_progress_reads_well(unit, total, line, monkeypatch, capfd):
    monkeypatch.setattr(progress_bar, "LOG_SECONDS", 0.0)
    ProgressBar("upload", total, unit).show(12_345_678)
    assert capfd.readouterr().err == line + "\n"


MAKE = "minari_pipe.pipeline.execution.blocks:BlockStore.make"
BLOCK = {"role": "collect", "target": MAKE, "call": 3}


def test_bars_are_seen_on_a_terminal_and_go_on_where_the_killed_run_was(tmp_path):
    place = make_place(tmp_path / "place")
    run = Run(place, barrier=BLOCK)
    run.await_barrier()
    run.kill("driver", "stage")
    run.end()
    terminal = Terminal(place)
    assert terminal.end() == 0, terminal.shown
    assert "collect: 2 of 4 blocks were already finished" in terminal.shown
    for bar in ("collect: 100%", "12/12", "ref_scores (random): 100%", "60/60"):
        assert bar in terminal.shown, terminal.shown
    for bar in ("create: 100%", "validate: 100%"):
        assert bar in terminal.shown, terminal.shown


def test_ctrl_c_on_a_terminal_is_one_line(tmp_path):
    place = make_place(tmp_path / "place")
    terminal = Terminal(place, barrier=BLOCK)
    wait_until(terminal.reached, 60, lambda: terminal.shown)
    terminal.press(b"\x03")
    assert terminal.end() == 130
    shown = terminal.shown.replace("\x1b[0m", "")  # colorama's farewell
    assert shown.replace("\r\n", "\n").splitlines()[-1].split("\r")[-1] == INTERRUPTED
    for noise in ("Traceback", "Terminated", "KeyboardInterrupt", "ERROR"):
        assert noise not in terminal.shown
    place.assert_nothing_runs(2)
    dvc_status(place)


def test_nothing_but_lines_where_there_is_no_terminal(tmp_path_factory):
    printed = (undisturbed(tmp_path_factory).folder / "printed").read_text()
    assert "collect: 12 episodes" in printed
    assert "\r" not in printed
    assert "%" not in printed
