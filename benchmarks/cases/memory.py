"""The memory that a long collection needs, each in a process of its own.

As a program, ``python -m benchmarks.cases.memory LIBRARY FORMAT STEPS LENGTH`` collects and prints
the megabytes by which the process grew at most.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import environments, work
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When

_STATUS = Path("/proc/self/status")


def cases() -> Iterator[Case]:
    """Yield the cases."""
    runs: tuple[tuple[int, When], ...] = ((200_000, When.FULL), (20_000, When.SMALL))
    for steps, when in runs:
        for length in (1_000, steps):
            for data_format in ("hdf5", "arrow") if when == When.FULL else ("hdf5",):
                yield Case(
                    "collect",
                    f"peak memory, {data_format}",
                    f"{steps // length:,} × {length:,} steps",
                    partial(_peak, data_format, steps, length),
                    Goal(at_most=64),
                    unit="MB",
                    repeats=3 if when == When.FULL else 1,
                    when=when,
                )


def _peak(data_format: str, steps: int, length: int) -> Sides:
    def side(library: str) -> Side:
        given = ("benchmarks.cases.memory", library, data_format, steps, length)
        return Side(lambda: float(work.printed_by(*given)))

    if not _STATUS.exists():
        reason = f"there is no {_STATUS} to read the peak from"
        return {"here": Skipped(reason), "minari": Skipped(reason)}
    sides: dict[str, Side | Skipped] = {"here": side("here"), "minari": side("minari")}
    if (fault := environments.recording_fault()) is not None:
        sides["minari"] = Skipped(fault)
    return sides


def _collect(library: str, data_format: str, steps: int, length: int) -> float:
    """Collect, and return by how many megabytes the process grew."""
    module = work.LIBRARIES[library]
    for number, count in enumerate((200, steps)):  # the first lets everything be imported
        env = module.DataCollector(
            environments.make(f"vectors-{min(count, length)}"), data_format=data_format
        )
        chosen = environments.actions(env, count)
        # the highest mark begins anew
        Path("/proc/self/clear_refs").write_text("5")
        before = _kilobytes("VmRSS")
        environments.run(env, chosen)
        env.create_dataset(f"bench/memory{number}-v0")
        peak = _kilobytes("VmHWM")
        env.close()
    return (peak - before) * 1024 / 1e6


def _kilobytes(key: str) -> int:
    (line,) = (text for text in _STATUS.read_text().splitlines() if text.startswith(f"{key}:"))
    return int(line.split()[1])


if __name__ == "__main__":
    with work.workplace(), warnings.catch_warnings(action="ignore"):
        print(_collect(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
