"""Samples, filters, views and batches of a dataset that is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import work
from benchmarks.cases.reading import FEW
from benchmarks.cases.writing import LONG, MANY, SHORT
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When
from benchmarks.work import Shape

BATCH = 256


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for shape, goal, when in (
        (FEW, Goal(ratio=300), When.SMALL),
        (SHORT, Goal(ratio=300), When.FULL),
        (MANY, Goal(ratio=300), When.FULL),
        (LONG, Goal(ratio=300), When.BOTH),
    ):
        yield _case("sample 32 episodes", shape, _both(shape, _sample), goal, when)
    for shape, goal, when in (
        (FEW, Goal(), When.SMALL),
        (SHORT, Goal(ratio=200), When.FULL),
        (MANY, Goal(ratio=200), When.FULL),
        (LONG, Goal(), When.BOTH),
    ):
        yield _case("filter by a callable", shape, _both(shape, _filter), goal, when)
    for shape, goal, when in (
        (FEW, Goal(), When.SMALL),
        (SHORT, Goal(at_most=0.3e-3), When.FULL),
        (MANY, Goal(at_most=0.3e-3), When.FULL),
    ):
        yield _case("filter by a statistic", shape, filter_by_statistic(shape), goal, when)
    for shape, when in ((FEW, When.SMALL), (SHORT, When.FULL), (MANY, When.FULL)):
        yield _case("total_steps of a view", shape, _both(shape, _total_steps), Goal(), when)
    for shape, when in ((FEW, When.SMALL), (SHORT, When.FULL), (LONG, When.FULL)):
        yield _case("random transitions", shape, _both(shape, _transitions), Goal(), when)
    for shape, when in ((Shape(200, 20), When.SMALL), (SHORT, When.FULL), (LONG, When.FULL)):
        yield _case("DataLoader, 2 workers", shape, partial(_loader, shape), Goal(), when)


def _case(name: str, shape: Shape, prepare: Callable[[], Sides], goal: Goal, when: When) -> Case:
    return Case("read", name, str(shape), prepare, goal, when=when)


def _both(shape: Shape, run: Callable[[str, Any], Any]) -> Callable[[], Sides]:
    """Let each library do something with the dataset that it wrote."""

    def prepare() -> Sides:
        return {
            library: Side(partial(run, library, dataset))
            for library in ("here", "minari")
            for dataset in [work.LIBRARIES[library].load_dataset(work.dataset(library, shape))]
        }

    return prepare


def filter_by_statistic(shape: Shape) -> Callable[[], Sides]:
    """Select the episodes of a positive return."""
    return _both(shape, _where)


def _sample(_: str, dataset: Any) -> Any:
    return list(dataset.sample_episodes(32))


def _filter(_: str, dataset: Any) -> Any:
    return dataset.filter_episodes(lambda episode: episode.rewards.sum() > 0)


def _where(library: str, dataset: Any) -> Any:
    return dataset.where("return > 0") if library == "here" else _filter(library, dataset)


def _total_steps(_: str, dataset: Any) -> int:
    view = type(dataset)(dataset.storage, episode_indices=dataset.episode_indices[::2])
    return view.total_steps


def _transitions(library: str, dataset: Any) -> int:
    """All transitions once, in random batches: the method, or what users of Minari write."""
    if library == "here":
        return sum(len(batch) for batch in dataset.transitions(BATCH, seed=0))
    held = list(dataset.iterate_episodes())
    columns = {
        "observations": np.concatenate([episode.observations[:-1] for episode in held]),
        "actions": np.concatenate([episode.actions for episode in held]),
        "rewards": np.concatenate([episode.rewards for episode in held]),
        "next_observations": np.concatenate([episode.observations[1:] for episode in held]),
        "terminations": np.concatenate([episode.terminations for episode in held]),
        "truncations": np.concatenate([episode.truncations for episode in held]),
    }
    order = np.random.default_rng(0).permutation(len(columns["rewards"]))
    count = 0
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        batch = {name: column[chosen] for name, column in columns.items()}
        count += len(batch["rewards"])
    return count


def _loader(shape: Shape) -> Sides:
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        reason = "torch is not installed"
        return {"here": Skipped(reason), "minari": Skipped(reason)}

    def run(library: str, dataset: Any) -> int:
        loader = DataLoader(
            dataset, batch_size=32, shuffle=True, num_workers=2, collate_fn=_collated
        )
        return sum(len(batch["ids"]) for batch in loader)

    return _both(shape, run)()


def _collated(batch: list[Any]) -> dict[str, Any]:
    """What Minari's documentation gives as an example."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(arrays: Iterator[Any]) -> Any:
        return pad_sequence([torch.as_tensor(array) for array in arrays], batch_first=True)

    return {
        "ids": torch.as_tensor([episode.id for episode in batch]),
        "observations": padded(episode.observations for episode in batch),
        "actions": padded(episode.actions for episode in batch),
        "rewards": padded(episode.rewards for episode in batch),
        "terminations": padded(episode.terminations for episode in batch),
        "truncations": padded(episode.truncations for episode in batch),
    }
