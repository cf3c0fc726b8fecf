"""Progress bars reach the terminal through DVC, and nothing else gets them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from minari_pipe.pipeline.stopping import INTERRUPTED
from tests.interruption import Place, Run, dvc_status, end_all, make_place, undisturbed, wait_until


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


BLOCK = {"role": "collect", "target": "minari_pipe.pipeline.blocks:BlockStore.make", "call": 3}


def test_bars_are_seen_on_a_terminal_and_go_on_where_the_killed_run_was(tmp_path):
    place = make_place(tmp_path / "place")
    run = Run(place, barrier=BLOCK)
    run.await_barrier()
    run.kill("driver", "stage")
    run.end()
    terminal = Terminal(place)
    assert terminal.end() == 0, terminal.shown
    assert "collect: 2 of 4 blocks were finished before" in terminal.shown
    for bar in ("collect: 100%", "12/12", "ref_scores (random): 100%", "60/60"):
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
