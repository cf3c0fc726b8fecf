"""Show the progress of a long task: a bar on a terminal, elsewhere one line per minute."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

#: seconds between two lines if stderr is not a terminal, so that shorter tasks print none
LOG_SECONDS = 60.0
#: seconds between two redraws of a bar
_DRAW_SECONDS = 0.1
#: least columns of the bar itself; details are dropped to keep them
_LEAST_BAR = 16
#: the start of a task does not show its usual pace: finished work is taken over, files are opened
_WARM_UP_SECONDS = 1.0


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """One line on stderr, redrawn while the work goes on.

    Example:
        >>> with ProgressBar("collect", 200, "episode") as bar:
        ...     bar.show(100, ["return 12.5"])
        ...     bar.text(["return 12.5"])
        '100 of 200 episodes, return 12.5'
    """

    def __init__(self, label: str, total: int | None, unit: str, *, leave: bool = True) -> None:
        """Start the clock and, on a terminal, draw the empty bar.

        Args:
            label: the task, such as ``collect``.
            total: number of units; ``None`` if it is unknown.
            unit: singular noun, such as ``episode``; ``B`` for bytes.
            leave: leave the full bar on the terminal at the end.
        """
        self._label, self._total, self._unit, self._leave = label, total, unit, leave
        self._n = 0
        self._details: Sequence[str] = ()
        self._began = self._logged = time.monotonic()
        self._drawn = 0.0
        self._base = (self._began, 0)
        self._draws = sys.stderr is not None and sys.stderr.isatty()
        self._bar = self._new_bar() if self._draws else None

    def _new_bar(self) -> tqdm:
        from tqdm import tqdm  # takes 20 ms, and only a terminal needs it

        # Its default lock may start a Python, which would import modules of the current folder.
        kind: type[tqdm] = type("Bar", (tqdm,), {"_lock": threading.RLock()})
        return kind(
            total=self._total,
            desc=self._label,
            leave=self._leave,
            dynamic_ncols=True,
            bar_format=_bar_format(self.text([]), self._total),
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Draw the last state and close the bar."""
        if self._bar is not None:
            if self._n:
                self._draw(self._bar)
            self._bar.close()
            self._bar = None

    def show(self, n: int, details: Sequence[str] = ()) -> None:
        """Show that ``n`` units are done.

        Args:
            n: units since the start, not since the last call.
            details: further texts, the most important first; those that do not fit are dropped.
        """
        self._n = n if self._total is None else min(n, self._total)
        self._details = details
        now = time.monotonic()
        if now - self._began < _WARM_UP_SECONDS:
            self._base = (now, self._n)
        if self._bar is None:
            if not self._draws and sys.stderr and now - self._logged >= LOG_SECONDS:
                self._logged = now
                sys.stderr.write(f"{self._label}: {self.text(details)}\n")
                sys.stderr.flush()
        elif now - self._drawn >= _DRAW_SECONDS:
            self._drawn = now
            self._draw(self._bar)

    def _draw(self, bar: tqdm) -> None:
        width = bar.format_dict["ncols"] or 80
        shown = list(self._details)
        while shown and self._room(width, shown) < _LEAST_BAR:
            shown.pop()
        bar.n = self._n
        bar.bar_format = _bar_format(self.text(shown), self._total)
        bar.refresh()

    def _room(self, width: int, details: Sequence[str]) -> int:
        """Return the number of columns left for the bar."""
        around = 0 if self._total is None else len(": 100%|| ")
        return width - len(self._label) - around - len(self.text(details))

    def text(self, details: Sequence[str]) -> str:
        """Return counts, time and details as one line."""
        done = self._number(self._n)
        if self._total is not None:
            done += f"{'/' if self._draws else ' of '}{self._number(self._total)}"
        if self._unit != "B":
            done += f" {self._unit}{'' if self._total == 1 else 's'}"
        return ", ".join([done + self._time(), *details])

    def _number(self, n: int) -> str:
        return f"{n:,}" if self._unit != "B" else size(n)

    def _time(self) -> str:
        """Return the remaining time, or at the end the elapsed time."""
        now = time.monotonic()
        if self._n == self._total and now - self._began >= _WARM_UP_SECONDS:
            return f" in {clock(now - self._began)}"
        since, before = self._base
        if self._total is None or self._n <= before or now - since < _WARM_UP_SECONDS:
            return ""
        return f", {clock((now - since) / (self._n - before) * (self._total - self._n))} left"


def _bar_format(text: str, total: int | None) -> str:
    text = text.replace("{", "{{").replace("}", "}}")
    return (
        f"{{desc}}: {text}" if total is None else f"{{desc}}: {{percentage:3.0f}}%|{{bar}}| {text}"
    )


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``.

    Example:
        >>> clock(75.4), clock(3725)
        ('1:15', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def short(value: float) -> str:
    """Return a number with three significant digits and a suffix for thousands.

    Example:
        >>> short(0.5), short(999), short(12_345), short(2_000_000)
        ('0.5', '999', '12.3k', '2M')
    """
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            return f"{value:.3g}{unit}" if abs(value) < 999.5 else f"{value:,.0f}{unit}"
        value /= 1000
    raise AssertionError("the last unit takes any number")


def size(n: int) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> size(3_700_000)
        '3.7 MB'
    """
    text = short(n)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"
