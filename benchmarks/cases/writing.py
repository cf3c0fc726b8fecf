"""Creating, appending to and combining datasets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import work
from benchmarks.cases import limits
from benchmarks.measure import Case, Goal, Side, Sides, When
from benchmarks.work import Shape

SHORT, MANY, LONG = Shape(2_000, 20), Shape(10_000, 20), Shape(100, 1000)
HUGE = Shape(100_000, 20)
NESTED = Shape(2_000, 20, nested=True)


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for shape, goal, when in (
        (Shape(200, 20), Goal(), When.SMALL),
        (Shape(500, 20), Goal(), When.BOTH),
        (SHORT, Goal(ratio=70, of_limit=0.6), When.FULL),
        (MANY, Goal(ratio=100, of_limit=0.6), When.FULL),
        (Shape(2_000, 20, spread=True), Goal(), When.FULL),
        (LONG, Goal(ratio=8, of_limit=0.6), When.BOTH),
    ):
        yield Case("write", "create hdf5", str(shape), partial(create, shape), goal, when=when)
    yield Case(
        "write",
        "create hdf5, 3 + 6 leaves",
        str(NESTED),
        partial(create, NESTED),
        Goal(ratio=50),
        when=When.FULL,
    )
    small_nested = Shape(300, 20, nested=True)
    yield Case(
        "write",
        "create hdf5, 3 + 6 leaves",
        str(small_nested),
        partial(create, small_nested),
        when=When.SMALL,
    )
    for shape, goal, when in (
        (Shape(100, 20), Goal(), When.SMALL),
        (Shape(250, 20), Goal(), When.FULL),
        (Shape(200, 20), Goal(), When.SMALL),
        (Shape(500, 20), Goal(ratio=70, of_limit=0.7), When.FULL),
        (Shape(1_000, 20), Goal(ratio=70, of_limit=0.7), When.FULL),
        (LONG, Goal(), When.FULL),
    ):
        yield Case(
            "write", "create arrow", str(shape), partial(_create_arrow, shape), goal, when=when
        )
    for data_format, shape, count, goal, when in (
        ("hdf5", Shape(500, 20), 1, Goal(), When.BOTH),
        ("hdf5", MANY, 1, Goal(ratio=5), When.FULL),
        ("hdf5", HUGE, 1, Goal(), When.FULL),
        ("hdf5", Shape(500, 20), 100, Goal(), When.BOTH),
        ("hdf5", MANY, 100, Goal(ratio=5), When.FULL),
        ("hdf5", HUGE, 100, Goal(), When.FULL),
        ("arrow", Shape(100, 20), 1, Goal(), When.SMALL),
        ("arrow", Shape(500, 20), 1, Goal(), When.FULL),
        ("arrow", MANY, 1, Goal(ratio=5), When.FULL),
        ("arrow", Shape(500, 20), 100, Goal(), When.FULL),
    ):
        name = f"append {count} episode{'s' * (count > 1)}, {data_format}"
        prepare = partial(_append, shape, count, data_format)
        yield Case("write", name, str(shape), prepare, goal, when=when)
    for loops, when in ((50, When.SMALL), (1000, When.FULL)):
        yield Case(
            "write",
            f"append 1 episode, {loops:,} times",
            str(Shape(500, 20)),
            partial(_loop, Shape(500, 20), loops),
            when=when,
            repeats=3,
        )
    for shape, goal, when in (
        (Shape(100, 20), Goal(), When.SMALL),
        (Shape(250, 20), Goal(), When.FULL),
        (SHORT, Goal(ratio=300), When.FULL),
        (LONG, Goal(ratio=10), When.BOTH),
    ):
        yield Case("write", "combine two", f"2 × {shape}", partial(combine, shape), goal, when=when)
    for data_format, shape, goal in (
        ("hdf5", Shape(500, 20), Goal(ratio=2)),
        ("arrow", Shape(100, 20), Goal()),
    ):
        yield Case(
            "write",
            f"file size {data_format}",
            str(shape),
            partial(_file_size, shape, data_format),
            goal,
            unit="MB",
            repeats=1,
        )


def create(shape: Shape, data_format: str = "hdf5") -> Sides:
    """Create a dataset of buffers."""

    def side(library: str) -> Side:
        held = work.buffers(library, shape)
        made: list[str] = []

        def run() -> None:
            made.append(work.new_id(f"created-{library}"))
            work.create_from(library, made[-1], held, shape, data_format)

        return Side(run, after=lambda: work.remove_if_few(made.pop()))

    return {"limit": limits.save(shape), "here": side("here"), "minari": side("minari")}


def _create_arrow(shape: Shape) -> Sides:
    dataset_id = work.dataset("here", shape, "arrow")
    return {**create(shape, "arrow"), "limit": limits.two_files_each(dataset_id)}


def _append(shape: Shape, count: int, data_format: str) -> Sides:
    def side(library: str) -> Side:
        # real Minari would take minutes to make a large one
        is_large = shape.episodes >= (MANY if data_format == "arrow" else HUGE).episodes
        maker = "here" if is_large else library
        copy = work.copied(work.dataset(maker, shape, data_format), f"grown-by-{library}")
        dataset = work.LIBRARIES[library].load_dataset(copy)
        buffers = work.buffers(library, Shape(count, shape.steps))
        return Side(lambda: dataset.update_dataset_from_buffer(buffers), before=lambda: None)

    return {"here": side("here"), "minari": side("minari")}


def _loop(shape: Shape, loops: int) -> Sides:
    def side(library: str) -> Side:
        copies: list[str] = []
        (buffer,) = work.buffers(library, Shape(1, shape.steps))

        def run() -> None:
            dataset = work.LIBRARIES[library].load_dataset(copies[-1])
            for _ in range(loops):
                dataset.update_dataset_from_buffer([buffer])

        return Side(
            run,
            before=lambda: copies.append(work.copied(work.dataset(library, shape))),
            after=lambda: work.remove(copies.pop()),
        )

    return {"here": side("here"), "minari": side("minari")}


def combine(shape: Shape) -> Sides:
    """Combine two datasets into a new one."""

    def side(library: str) -> Side:
        parts = [work.dataset(library, shape), work.dataset(library, shape, copy="b")]
        new_id = f"bench/combined-{library}-v0"
        module = work.LIBRARIES[library]

        def run() -> Any:
            return module.combine_datasets([module.load_dataset(part) for part in parts], new_id)

        remove = partial(work.remove, new_id)
        return Side(run, before=remove, after=remove)

    copy = limits.copy_files(work.dataset("here", shape), work.dataset("here", shape, copy="b"))
    return {"limit": copy, "here": side("here"), "minari": side("minari")}


def _file_size(shape: Shape, data_format: str) -> Sides:
    def size(library: str) -> float:
        return work.size_of(work.folder(work.dataset(library, shape, data_format))) / 1e6

    payload = sum(array.nbytes for column in work.columns(shape) for array in column)
    return {
        "limit": Side(lambda: payload / 1e6),
        "here": Side(partial(size, "here")),
        "minari": Side(partial(size, "minari")),
    }
