"""Transitions and windows hold every step once, aligned, and never cross episodes."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeBuffer, EpisodeData
from minari_pipe.core.tree import map_leaves, stack
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.sampling import TransitionBatch, WindowBatch
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.storage import MinariStorage
from minari_pipe.testing import assert_same, episode, examples
from minari_pipe.testing import spaces as any_space

LENGTHS = (4, 1, 6, 2)


def numbered(index: int, steps: int, **changes: Any) -> EpisodeBuffer:
    """An episode whose observation and action are ``100 * index + step``."""
    begin = 100 * index
    return EpisodeBuffer(
        observations=np.arange(begin, begin + steps + 1),
        actions=np.arange(begin, begin + steps),
        rewards=np.arange(begin, begin + steps, dtype=float) / 2,
        terminations=np.arange(steps) == (steps - 1 if index % 2 else -1),
        truncations=np.arange(steps) == (-1 if index % 2 else steps - 1),
        **changes,
    )


def dataset_of(path: Path, buffers: list[EpisodeBuffer], *own: Any) -> MinariDataset:
    own = own or (spaces.Discrete(10_000), spaces.Discrete(10_000))
    storage = MinariStorage.new(path / "data", *own)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(buffers)
    return MinariDataset(storage)


@pytest.fixture
def dataset(tmp_path: Path) -> MinariDataset:
    return dataset_of(tmp_path, [numbered(index, n) for index, n in enumerate(LENGTHS)])


#: ``(episode, step)`` of every transition in order
STEPS = [(index, step) for index, steps in enumerate(LENGTHS) for step in range(steps)]


def places(batches) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch.episode_ids.tolist(), batch.steps.tolist(), strict=True)
    ]


# --- workers of a DataLoader


def epochs(dataset: MinariDataset, n_workers: int, **arguments: Any) -> list[list[Any]]:
    """Batches of two epochs of a DataLoader, in the order in which it gives them."""
    from torch.utils.data import DataLoader, IterableDataset

    persistent = arguments.pop("persistent_workers", False)

    class Batches(IterableDataset):
        def __iter__(self):
            if "length" in arguments:
                return dataset.windows(**arguments)
            return dataset.transitions(**arguments)

    with warnings.catch_warnings(action="ignore"):  # a fork with threads, more workers than cores
        loader = DataLoader(
            Batches(),
            batch_size=None,
            num_workers=n_workers,
            multiprocessing_context="fork" if n_workers else None,
            persistent_workers=persistent,
            collate_fn=list_of_places,
        )
        return [list(loader), list(loader)]


def list_of_places(batch: Any) -> list[tuple[int, int]]:
    steps = batch.steps if isinstance(batch, TransitionBatch) else batch.starts
    return list(zip(batch.episode_ids.tolist(), steps.tolist(), strict=True))


@pytest.mark.parametrize(
    ("n_workers", "arguments"),
    [
        (2, {}),
        (2, {"batch_size": 4}),
        (5, {"batch_size": 4, "seed": 3}),
        (3, {"batch_size": 4, "seed": 3, "drop_last": True, "buffer_episodes": 2}),
        (3, {"batch_size": 2, "length": 2, "pad": None, "seed": 1}),
    ],
    ids=["one batch", "in order", "more workers than batches", "drop_last", "windows"],
)
def test_workers_of_a_dataloader_share_the_batches_of_one_process(
    dataset, n_workers: int, arguments: dict[str, Any]
) -> None:
    assert epochs(dataset, n_workers, **arguments) == epochs(dataset, 0, **arguments)


def test_workers_that_draw_an_order_without_a_seed_draw_the_same(dataset) -> None:
    """Those that persist too, of which PyTorch says in no epoch but the first what to draw by."""
    found = epochs(dataset, 2, batch_size=4, shuffle=True, persistent_workers=True)
    for batches in found:
        assert sorted(place for batch in batches for place in batch) == STEPS
    assert found[0] != found[1]


def test_a_worker_that_chose_its_own_view_gets_all_of_it(dataset) -> None:
    found = epochs(dataset, 2, batch_size=4, split=False)
    assert sorted(place for batch in found[0] for place in batch) == sorted(STEPS * 2)


# --- transitions


@pytest.mark.parametrize("batch_size", [None, 1, 3, 13, 50])
@pytest.mark.parametrize("seed", [None, 5])
def test_every_transition_comes_once_with_its_own_values(dataset, batch_size, seed) -> None:
    batches = list(dataset.transitions(batch_size, seed=seed))
    assert all(isinstance(batch, TransitionBatch) for batch in batches)
    size = batch_size or len(STEPS)
    assert [len(batch) for batch in batches] == [
        min(size, len(STEPS) - begin) for begin in range(0, len(STEPS), size)
    ]
    found = places(batches)
    assert sorted(found) == STEPS
    assert (found == STEPS) == (seed is None)
    for batch in batches:
        name = 100 * batch.episode_ids + batch.steps
        last = batch.steps == np.array(LENGTHS)[batch.episode_ids] - 1
        odd = batch.episode_ids % 2 == 1
        assert_same(batch.observations, name)
        assert_same(batch.next_observations, name + 1)
        assert_same(batch.actions, name)
        assert_same(batch.rewards, name / 2)
        assert_same(batch.terminations, last & odd)
        assert_same(batch.truncations, last & ~odd)


def test_real_minari_has_no_transitions_and_shifts_them_when_columns_are_joined(dataset) -> None:
    """Who concatenates T + 1 observations with T actions, as d3rlpy did, pairs the wrong ones."""
    theirs = minari.MinariDataset(str(dataset.storage.data_path))
    assert not hasattr(theirs, "transitions")
    observations = np.concatenate([found.observations for found in theirs])
    actions = np.concatenate([found.actions for found in theirs])
    assert (observations[: len(actions)] != actions).any()
    (ours,) = dataset.transitions()
    assert_same(ours.observations, ours.actions)


def test_a_seed_makes_an_order_that_can_be_repeated(dataset) -> None:
    orders = [places(dataset.transitions(4, seed=seed)) for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert places(dataset.transitions(3, seed=0)) == orders[0]  # of any batch size
    assert places(dataset.transitions(4, seed=0, shuffle=False)) == STEPS
    assert sorted(places(dataset.transitions(4, shuffle=True))) == STEPS


def test_random_orders_reach_all_of_the_view(dataset) -> None:
    """First places of many seeds cover all transitions about equally."""
    first = [places(dataset.transitions(1, seed=seed))[0] for seed in range(200)]
    counts = [first.count(step) for step in STEPS]
    assert min(counts) > 3
    assert max(counts) < 35


def test_a_buffer_bounds_what_is_held_for_a_random_order(dataset) -> None:
    order = places(dataset.transitions(4, seed=3, buffer_episodes=2))
    assert sorted(order) == STEPS
    episodes = [place[0] for place in order]
    # two random episodes are used up before the other two are read
    for begin in range(1, len(order)):
        first = set(episodes[:begin])
        if len(first) == 2 and not first & set(episodes[begin:]):
            break
    else:
        pytest.fail(f"no two episodes came first: {episodes}")
    assert order != sorted(order)
    with pytest.raises(ConfigError, match="buffer_episodes needs a random order"):
        dataset.transitions(4, buffer_episodes=2)


def test_in_order_episodes_are_read_one_after_another(dataset, monkeypatch) -> None:
    read = []
    original = type(dataset.storage).get_episodes

    def counted(self, indices):
        for found in original(self, indices):
            read.append(found["id"])
            yield found

    monkeypatch.setattr(type(dataset.storage), "get_episodes", counted)
    batches = dataset.transitions(2)
    assert read == []
    next(batches)
    assert read == [0]
    list(batches)
    assert read == [0, 1, 2, 3]


def test_incomplete_batches_can_be_left_out(dataset) -> None:
    assert [len(b) for b in dataset.transitions(5, drop_last=True)] == [5, 5]
    assert [len(b) for b in dataset.transitions(13, drop_last=True, seed=1)] == [13]
    assert [len(b) for b in dataset.transitions(14, drop_last=True)] == []
    assert [len(b) for b in dataset.transitions(drop_last=True)] == [13]


def test_views_give_their_own_transitions(dataset) -> None:
    assert set(places(dataset[[2, 1]].transitions(3, seed=0))) == {
        place for place in STEPS if place[0] in (1, 2)
    }
    assert places(dataset[[2, 1]].transitions(3))[:1] == [(2, 0)]
    assert list(dataset[:0].transitions()) == list(dataset[:0].windows(3, seed=0)) == []


def test_a_final_observation_that_was_never_recorded_is_in_no_transition(tmp_path) -> None:
    missing = {"metadata": {"final_observation_missing": True}}
    dataset = dataset_of(
        tmp_path, [numbered(0, 3, **missing), numbered(1, 2), numbered(2, 1, **missing)]
    )
    assert places(dataset.transitions(2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sorted(places(dataset.transitions(seed=0))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (batch,) = dataset.windows(3)
    assert batch.actions[0].tolist() == [0, 1, 2]  # the action is known
    assert batch.next_mask[0].tolist() == [True, True, False]
    assert batch.next_observations[0].tolist() == [1, 2, 0]
    assert batch.next_mask.sum(axis=1).tolist() == [2, 1, 0, 2, 1, 0]
    assert batch.mask.sum(axis=1).tolist() == [3, 2, 1, 2, 1, 1]


# --- windows


def test_windows_begin_anywhere_and_end_with_their_episode(dataset) -> None:
    (batch,) = dataset.windows(3)
    assert isinstance(batch, WindowBatch)
    assert len(batch) == len(STEPS)
    assert list(zip(batch.episode_ids, batch.starts, strict=True)) == STEPS
    for row, (index, start) in enumerate(STEPS):
        count = min(3, LENGTHS[index] - start)
        names = [100 * index + start + k for k in range(count)]
        pad = [0] * (3 - count)
        assert batch.mask[row].tolist() == [True] * count + [False] * (3 - count)
        assert batch.observations[row].tolist() == names + pad
        assert batch.next_observations[row].tolist() == [name + 1 for name in names] + pad
        assert batch.actions[row].tolist() == names + pad
        assert batch.rewards[row].tolist() == [name / 2 for name in names] + pad
        ends = [start + k == LENGTHS[index] - 1 for k in range(count)] + [False] * (3 - count)
        flags = batch.terminations if index % 2 else batch.truncations
        assert flags[row].tolist() == ends
    assert_same(batch.next_mask, batch.mask)
    assert not (batch.terminations & batch.truncations).any()


def test_padding_goes_to_the_side_that_is_asked_for(dataset) -> None:
    (right,) = dataset.windows(4, stride=3)
    (left,) = dataset.windows(4, stride=3, pad="left")
    (full,) = dataset.windows(4, stride=1, pad=None)
    assert left.observations.tolist() == [
        [0, 1, 2, 3],
        [0, 0, 0, 3],
        [0, 0, 0, 100],
        [200, 201, 202, 203],
        [0, 203, 204, 205],
        [0, 0, 300, 301],
    ]
    assert left.mask.tolist() == right.mask[:, ::-1].tolist()
    assert left.starts.tolist() == right.starts.tolist() == [0, 3, 0, 0, 3, 0]
    assert full.mask.all()
    assert full.observations[:, 0].tolist() == [0, 200, 201, 202]


def test_windows_of_a_seed_are_a_permutation_of_those_in_order(dataset) -> None:
    def rows(batches):
        return [
            (int(e), int(s), a.tolist(), m.tolist())
            for batch in batches
            for e, s, a, m in zip(
                batch.episode_ids, batch.starts, batch.actions, batch.mask, strict=True
            )
        ]

    ordered = rows(dataset.windows(3, 4, stride=2))
    shuffled = rows(dataset.windows(3, 4, stride=2, seed=1))
    assert ordered != shuffled
    assert ordered == sorted(shuffled)
    assert shuffled == rows(dataset.windows(3, 2, stride=2, seed=1))
    assert sorted(rows(dataset.windows(3, 5, stride=2, seed=1, buffer_episodes=1))) == ordered
    assert [len(b) for b in dataset.windows(3, 4, stride=2, drop_last=True)] == [4]


# --- any space


def take(tree: Any, index: int) -> Any:
    return map_leaves(lambda leaf: leaf[index], tree)


def blank(row: Any) -> Any:
    return map_leaves(lambda leaf: "" if isinstance(leaf, str) else np.zeros_like(leaf), row)


def naive_window(found: EpisodeData, start: int, length: int, name: str, shift: int) -> Any:
    count = min(length, len(found) - start)
    column = getattr(found, name)
    rows = [take(column, start + k + shift) for k in range(count)]
    return stack([*rows, *[blank(rows[0])] * (length - count)])


@examples(15)
@given(any_space(), any_space(), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5))
def test_any_space_is_batched_in_its_dicts_and_tuples(
    tmp_path_factory, observation_space, action_space, seed, batch_size, length
) -> None:
    rng = np.random.default_rng(seed)
    buffers = [replace(episode(observation_space, action_space, rng), infos=None) for _ in range(3)]
    path = tmp_path_factory.mktemp("any")
    dataset = dataset_of(path, buffers, observation_space, action_space)
    episodes = list(dataset)
    for batch in dataset.transitions(batch_size, seed=seed):
        for row in range(len(batch)):
            found, step = episodes[batch.episode_ids[row]], int(batch.steps[row])
            assert_same(take(batch.observations, row), take(found.observations, step))
            assert_same(take(batch.next_observations, row), take(found.observations, step + 1))
            assert_same(take(batch.actions, row), take(found.actions, step))
            assert batch.rewards[row] == found.rewards[step]
    for batch in dataset.windows(length, batch_size, stride=2, seed=seed):
        for row in range(len(batch)):
            found, start = episodes[batch.episode_ids[row]], int(batch.starts[row])
            for name, column, shift in (
                ("observations", "observations", 0),
                ("next_observations", "observations", 1),
                ("actions", "actions", 0),
            ):
                expected = naive_window(found, start, length, column, shift)
                assert_same(take(getattr(batch, name), row), expected)


# --- arguments and damage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"batch_size": 2.0}, "batch_size must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"buffer_episodes": -1, "seed": 0}, "buffer_episodes must be"),
        ({"length": 0}, "length must be"),
        ({"stride": 0}, "stride must be"),
        ({"length": 2**70}, "length is too large, expected at most 9223372036854775807"),
        ({"stride": 2**70}, "stride is too large"),
        ({"batch_size": 2**63}, "batch_size is too large"),
        ({"seed": -1}, "seed must be None or a non-negative integer, got -1"),
        ({"seed": "one"}, "seed must be"),
        ({"pad": "middle"}, "pad must be 'right', 'left' or None"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named_at_the_call(dataset, arguments, message) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset.windows(**{"length": 2, **arguments})
    if not {"length", "stride", "pad"} & arguments.keys():
        with pytest.raises(ValueError, match=message):
            dataset.transitions(**arguments)


def test_rows_that_do_not_fit_are_named(dataset, monkeypatch) -> None:
    original = type(dataset.storage).get_episodes

    def cut(self, indices):
        for found in original(self, indices):
            yield {**found, "observations": found["observations"][:-1]}

    monkeypatch.setattr(type(dataset.storage), "get_episodes", cut)
    with pytest.raises(
        CorruptDatasetError, match=r"episode 0: observations has 4 rows, expected 5: it has 4"
    ):
        next(dataset.transitions(2))


def test_batches_are_the_reader_s_own(dataset) -> None:
    """Writing into a batch changes neither the next one nor the data."""
    for batch in dataset.transitions(3):
        for field in fields(batch):
            getattr(batch, field.name)[...] = 0
    assert places(dataset.transitions()) == STEPS


# --- returns


def test_returns_are_those_of_the_view(dataset) -> None:
    expected = [sum(found.rewards) for found in dataset]
    assert_same(dataset.returns(), np.array(expected))
    assert_same(dataset[[3, 1]].returns(), np.array([expected[3], expected[1]]))


def test_normalized_scores_use_the_reference_scores(dataset) -> None:
    with pytest.raises(LookupError, match="Reference score not provided for dataset aa/b-v0"):
        dataset.normalized_scores()
    dataset.storage.update_metadata({"ref_min_score": 1.0, "ref_max_score": 3.0})
    assert_same(dataset.normalized_scores(), (dataset.returns() - 1.0) / 2.0)
    theirs = minari.get_normalized_score(
        minari.MinariDataset(str(dataset.storage.data_path)), dataset.returns()
    )
    assert_same(dataset.normalized_scores(), theirs)
