"""Loading datasets and iterating over them, opening included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import environments, work
from benchmarks.cases import limits
from benchmarks.cases.writing import LONG, MANY, NESTED, SHORT
from benchmarks.measure import Case, Goal, Side, Sides, When
from benchmarks.work import Shape
from minari_pipe import EpisodeBuffer
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.datasets.installation import new_dataset
from minari_pipe.storage.base import MinariStorage

FEW = Shape(500, 20)


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for shape, data_format, when in (
        (FEW, "hdf5", When.BOTH),
        (MANY, "hdf5", When.FULL),
        (Shape(100, 20), "arrow", When.BOTH),
    ):
        yield Case(
            "read",
            f"load {data_format}",
            str(shape),
            partial(_load, shape, data_format),
            Goal(ratio=1),
            when=when,
        )
    for name, own, fresh, sizes in (
        (
            "iterate hdf5",
            True,
            False,
            [
                (FEW, Goal(), When.BOTH),
                (SHORT, Goal(), When.FULL),
                (MANY, Goal(ratio=250), When.FULL),
                (Shape(2_000, 20, spread=True), Goal(), When.FULL),
                (LONG, Goal(ratio=60), When.BOTH),
            ],
        ),
        (
            "iterate hdf5, no index",
            True,
            True,
            [
                (FEW, Goal(), When.SMALL),
                (SHORT, Goal(), When.FULL),
                (MANY, Goal(ratio=20), When.FULL),
                (LONG, Goal(), When.BOTH),
            ],
        ),
        (
            "iterate hdf5 of Minari, first pass",
            False,
            True,
            [
                (FEW, Goal(), When.SMALL),
                (SHORT, Goal(ratio=3), When.FULL),
                (LONG, Goal(ratio=2), When.BOTH),
            ],
        ),
        (
            "iterate hdf5 of Minari, indexed",
            False,
            False,
            [
                (FEW, Goal(), When.SMALL),
                (SHORT, Goal(ratio=100), When.FULL),
                (LONG, Goal(ratio=2), When.BOTH),
            ],
        ),
    ):
        for shape, goal, when in sizes:
            prepare = partial(iterate, shape, own=own, fresh=fresh)
            yield Case("read", name, str(shape), prepare, goal, when=when)
    for shape, goal, when in (
        (Shape(300, 20, nested=True), Goal(), When.SMALL),
        (NESTED, Goal(ratio=50), When.FULL),
    ):
        prepare = partial(iterate, shape)
        yield Case("read", "iterate hdf5, 3 + 6 leaves", str(shape), prepare, goal, when=when)
    for shape, when in ((SHORT, When.FULL), (LONG, When.BOTH)):
        prepare = partial(iterate, shape, use=_sum)
        yield Case("read", "iterate hdf5 and sum all", str(shape), prepare, when=when)
    for name, own, ratio in (("iterate arrow", True, 8), ("iterate arrow of Minari", False, 3)):
        for shape, goal, when in (
            (Shape(100, 20), Goal(), When.BOTH),
            (Shape(500, 20), Goal(ratio=ratio), When.FULL),
            (LONG, Goal(ratio=ratio), When.FULL),
        ):
            prepare = partial(iterate, shape, own=own, data_format="arrow")
            yield Case("read", name, str(shape), prepare, goal, when=when)
    yield Case("read", "iterate hdf5, gzip frames", "12 × 100", _frames)


def _load(shape: Shape, data_format: str) -> Sides:
    return {
        library: Side(partial(work.LIBRARIES[library].load_dataset, dataset_id))
        for library in ("here", "minari")
        for dataset_id in [work.dataset(library, shape, data_format)]
    }


def _touch(episode: Any) -> float:
    return episode.rewards[-1]


def _sum(episode: Any) -> float:
    return episode.observations.sum() + episode.actions.sum() + episode.rewards.sum()


def _frames() -> Sides:
    """Iterate over images in one file that both libraries read, compressed losslessly."""
    dataset_id = "bench/frames-v0"
    if not work.folder(dataset_id).exists():
        env = environments.make("images")
        frames = [env.reset()[0], *(env.step(0)[0] for _ in range(100))]
        episode: dict[str, Any] = {
            "observations": np.stack(frames),
            "actions": np.zeros(100, np.int64),
            "rewards": np.zeros(100),
            "terminations": np.zeros(100, bool),
            "truncations": np.arange(1, 101) == 100,
        }
        spaces = env.observation_space, env.action_space
        with new_dataset(dataset_id) as path:
            storage = MinariStorage.new(path, *spaces, compression=1)
            storage.update_episodes([EpisodeBuffer(**episode) for _ in range(12)])
            storage.update_metadata({"dataset_id": dataset_id, "minari_version": MINARI_VERSION})

    def side(library: str) -> Side:
        load = work.LIBRARIES[library].load_dataset
        return Side(
            lambda: sum(
                int(e.observations[-1, 0, 0, 0]) for e in load(dataset_id).iterate_episodes()
            )
        )

    return {library: side(library) for library in ("here", "minari")}


def iterate(
    shape: Shape,
    *,
    own: bool = True,
    fresh: bool = False,
    data_format: str = "hdf5",
    use: Callable[[Any], float] = _touch,
) -> Sides:
    """Load and iterate over all episodes.

    Args:
        shape: of the dataset.
        own: whether this library reads what it wrote; Minari always reads what Minari wrote.
        fresh: whether each run has files that nobody has read before.
        data_format: of the files.
        use: what is done with each episode.
    """

    def side(library: str, dataset_id: str) -> Side:
        load = work.LIBRARIES[library].load_dataset
        kept = f"{dataset_id[: -len('-v0')]}-copy-v0" if fresh else dataset_id

        def run() -> float:
            return sum(use(episode) for episode in load(kept).iterate_episodes())

        if not fresh:
            return Side(run)
        return Side(run, before=partial(work.copied, dataset_id), after=partial(work.remove, kept))

    theirs = work.dataset("minari", shape, data_format)
    ours = work.dataset("here", shape, data_format) if own else theirs
    if not own and not fresh:
        for _ in work.LIBRARIES["here"].load_dataset(ours):
            pass  # from now on there is an index
    limit = limits.memcpy(shape) if data_format == "hdf5" else limits.read_files(ours)
    return {"limit": limit, "here": side("here", ours), "minari": side("minari", theirs)}
