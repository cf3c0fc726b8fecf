"""The first dataset that a process creates: most users create one, in memory that is new.

As a program, ``python -m benchmarks.cases.first SIDE EPISODES STEPS`` creates it and prints the
seconds of the processor and of the clock. Imports come before.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from functools import partial

from benchmarks import environments, work
from benchmarks.cases import limits
from benchmarks.measure import Case, Goal, Seconds, Side, Sides, When
from benchmarks.work import Shape


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for shape, goal, when in (
        (Shape(200, 20), Goal(), When.SMALL),
        (Shape(2_000, 20), Goal(ratio=70), When.FULL),
        (Shape(100, 1000), Goal(ratio=8), When.BOTH),
    ):
        name = "create hdf5, first in a process"
        yield Case("write", name, str(shape), partial(_first, shape), goal, when=when)


def _first(shape: Shape) -> Sides:
    def side(name: str) -> Side:
        given = ("benchmarks.cases.first", name, shape.episodes, shape.steps)

        def run() -> Seconds:
            return Seconds(*map(float, work.printed_by(*given).split()))

        return Side(run, before=lambda: None)  # once for each measurement

    return {"limit": side("limit"), "here": side("here"), "minari": side("minari")}


def _create(name: str, shape: Shape) -> Seconds:
    if name == "limit":
        side = limits.save(shape)
        assert side.before is not None
        side.before()
        run = side.run
    else:
        # both import some modules when they are first needed
        environments.recording_fault()
        _ = work.LIBRARIES[name].create_dataset_from_buffers
        held = work.buffers(name, shape)
        run = partial(work.create_from, name, work.new_id("first"), held, shape)
    began = Seconds.now()
    run()
    ended = Seconds.now()
    return Seconds(ended.cpu - began.cpu, ended.wall - began.wall)


if __name__ == "__main__":
    with work.workplace(), warnings.catch_warnings(action="ignore"):
        taken = _create(sys.argv[1], Shape(int(sys.argv[2]), int(sys.argv[3])))
        print(taken.cpu, taken.wall)
