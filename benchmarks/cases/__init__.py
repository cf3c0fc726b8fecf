"""All cases, in the order in which they run: those that share data stand together."""

from __future__ import annotations

from functools import partial

from benchmarks.cases import (
    acting,
    cards,
    collecting,
    first,
    large,
    memory,
    reading,
    remotes,
    scale,
    selecting,
    writing,
)
from benchmarks.measure import Case, Goal
from benchmarks.work import Shape


def all_cases() -> list[Case]:
    """Return every case of both runs.

    Example:
        >>> sorted({case.group for case in all_cases()})
        ['act', 'card', 'collect', 'read', 'remote', 'scale', 'write']
    """
    return [
        *writing.cases(),
        *first.cases(),
        *large.cases(),
        *reading.cases(),
        *selecting.cases(),
        *collecting.cases(),
        *memory.cases(),
        *acting.cases(),
        *scale.cases(),
        *remotes.cases(),
        *cards.cases(),
    ]


def tiny_cases() -> list[Case]:
    """Return a few of next to no data: they warm up, and show that everything runs."""
    shape = Shape(3, 4)
    collect = partial(collecting.collect, "vectors-4", steps=8)
    return [
        Case("write", "create hdf5", "tiny", partial(writing.create, shape), Goal(ratio=1e9)),
        Case("write", "create arrow", "tiny", partial(writing.create, shape, "arrow")),
        Case("write", "combine two", "tiny", partial(writing.combine, shape)),
        Case("read", "iterate hdf5", "tiny", partial(reading.iterate, shape, fresh=True)),
        Case("read", "filter by a statistic", "tiny", selecting.filter_by_statistic(shape)),
        Case("act", "predict", "tiny", partial(acting.predicting, "ppo", 4), unit="steps/s"),
        *(
            Case(
                "collect",
                f"collect {data_format}",
                "tiny",
                partial(collect, data_format=data_format),
                Goal(at_most=1e9),
                unit="µs/step",
                steps=8,
            )
            for data_format in ("hdf5", "arrow")
        ),
    ]
