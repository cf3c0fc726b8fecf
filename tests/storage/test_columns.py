"""A buffer is stored only if its parts fit together; the message has both numbers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.columns import episode_columns
from minari_pipe.testing import ARRAYS, assert_same, episode, examples
from minari_pipe.testing import spaces as any_space

ARM = spaces.Dict(arm=spaces.Box(-1, 1, (2,)), grip=spaces.Tuple([spaces.Discrete(3)]))
INTEGER = spaces.Discrete(9)


def good(steps: int = 100) -> EpisodeBuffer:
    return episode(INTEGER, ARM, np.random.default_rng(0), steps)


def columns(buffer, observation_space=INTEGER, action_space=ARM, **kwargs):
    return episode_columns(buffer, observation_space, action_space, episode=17, **kwargs)


@examples(30)
@given(any_space(), any_space(), st.integers(0, 2**32))
def test_arrays_pass_unchanged_with_and_without_spaces(observation_space, action_space, seed):
    buffer = episode(observation_space, action_space, np.random.default_rng(seed))
    for spaces_ in ((observation_space, action_space), (None, None)):
        found = columns(buffer, *spaces_)
        for name in ARRAYS:
            assert_same(found[name], getattr(buffer, name))


@examples(30)
@given(any_space(), any_space(), st.integers(0, 2**32))
def test_lists_of_rows_become_the_same_columns(observation_space, action_space, seed):
    buffer = episode(observation_space, action_space, np.random.default_rng(seed))

    def as_rows(tree, count):
        return [map_leaves(lambda leaf, row=row: leaf[row], tree) for row in range(count)]

    steps = len(buffer)
    lists = replace(
        buffer,
        observations=as_rows(buffer.observations, steps + 1),
        actions=map_leaves(list, buffer.actions),
        rewards=buffer.rewards.tolist(),
        terminations=buffer.terminations.tolist(),
        truncations=[int(flag) for flag in buffer.truncations],
        infos=map_leaves(list, buffer.infos),
    )
    found = columns(lists, observation_space, action_space)
    for name in ARRAYS:
        assert_same(found[name], getattr(buffer, name), name)


def test_rows_may_be_ordered_dicts_as_in_real_minari() -> None:
    rows = [OrderedDict(arm=np.full(2, i, np.float32), grip=(i,)) for i in range(2)]
    found = columns(replace(good(2), actions=rows))["actions"]
    assert_same(found["arm"], np.array([[0, 0], [1, 1]], np.float32))
    assert_same(found["grip"], (np.array([0, 1]),))


@pytest.mark.parametrize(
    ("rows", "space", "dtype"),
    [
        ([[0.5], [1]], spaces.Box(-1, 1, (1,)), np.float32),
        ([[0.1], [1]], spaces.Box(-1, 1, (1,)), np.float64),
        ([(0, 1), (1, 0)], spaces.MultiBinary(2), np.int8),
        ([1, 300], spaces.Box(0, 9, (), np.uint8), np.int64),
        ([np.float64(0.5)] * 2, spaces.Box(-1, 1, ()), np.float64),
        (np.zeros((2, 1)), spaces.Box(-1, 1, (1,)), np.float64),
    ],
)
def test_only_python_numbers_take_the_space_s_dtype_and_only_exactly(rows, space, dtype) -> None:
    found = columns(replace(good(2), actions=rows), action_space=space)["actions"]
    assert_same(found, np.asarray(rows, dtype))


EMPTY_ARM = {"arm": np.zeros((101, 2), np.float32), "grip": (np.zeros(100, int),)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": EMPTY_ARM}, r"actions\['arm'\] has 101 steps, rewards has 100"),
        (
            {"actions": {**EMPTY_ARM, "arm": np.zeros((100, 2)), "grip": (np.zeros(99, int),)}},
            r"actions\['grip'\]\[0\] has 99 steps, rewards has 100",
        ),
        (
            {"observations": np.zeros(100, int)},
            r"observations has 100 rows, rewards has 100 \(expected 101: one for the reset and "
            r"one per step\)",
        ),
        ({"infos": {"x": {"y": [0] * 100}}}, r"infos\['x'\]\['y'\] has 100 rows, rewards has 100"),
        ({"terminations": [False] * 99}, "terminations has 99 steps, rewards has 100"),
        ({"truncations": [False] * 101}, "truncations has 101 steps, rewards has 100"),
        ({"truncations": [0.5] * 100}, "truncations must be true or false, got float64"),
        ({"truncations": [2] * 100}, "truncations must be true or false, got int64"),
        ({"truncations": [None] * 100}, "truncations must be true or false, got object"),
        ({"rewards": []}, "rewards has 0 steps, at least 1 is needed"),
        ({"rewards": np.zeros((100, 1))}, r"rewards has shape \(100, 1\), expected one number"),
        ({"rewards": ["a"] * 100}, "rewards must be numbers"),
        ({"rewards": [[1], [1, 2]]}, "rewards has shape"),
        ({"observations": None}, "observations must be an array or a list of rows, got NoneType"),
        ({"observations": 5}, "observations must be an array or a list of rows, got a single"),
        ({"observations": np.zeros((101, 1), int)}, r"of shape \(1,\), the space expects \(\)"),
        ({"observations": ["a"] * 101}, "observations is text, the space expects"),
        ({"observations": [object()] * 101}, "observations cannot be stored"),
        (
            {"observations": [np.zeros(2), *[np.zeros(3)] * 100]},
            r"observations has rows of different shapes: \[\(2,\), \(3,\)\]",
        ),
        ({"actions": {"arm": 1}}, r"must have the keys \['arm', 'grip'\], got \['arm'\]"),
        ({"actions": np.zeros(100)}, "actions must have the keys .* got ndarray"),
        (
            {"actions": {**EMPTY_ARM, "grip": [np.zeros(100)]}},
            r"actions\['grip'\] must be a tuple of 1, got list",
        ),
        ({"infos": {"": [0] * 101}}, "infos has the key ''"),
        ({"infos": {"a//b": [0] * 101}}, "infos has the key 'a//b'"),
        ({"infos": {1: [0] * 101}}, "infos has the key 1"),
        ({"infos": {"x": ["a\0b"] * 101}}, r"infos\['x'\] has the text 'a\\x00b', which HDF5"),
        ({"infos": {"x": ["\ud800"] * 101}}, "which HDF5 cannot store"),
        ({"infos": {"x": [1, "a"] * 50 + [1]}}, r"infos\.x cannot be stored"),
    ],
)
def test_each_fault_is_named_with_its_place(change, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=f"^episode 17: .*{message}"):
        columns(replace(good(), **change))


def test_a_continuation_has_no_row_for_a_reset() -> None:
    buffer = replace(good(3), observations=[1, 2, 3], infos={"x": [1, 2, 3]})
    assert columns(buffer, continues=True)["observations"].tolist() == [1, 2, 3]
    with pytest.raises(InvalidEpisodeError, match="observations has 4 steps, rewards has 3"):
        columns(good(3), continues=True)


def test_tuples_in_infos_get_the_names_that_real_minari_gives_them() -> None:
    buffer = replace(good(1), infos={"x": ([1, 2], {"y": [3, 4]})})
    found = columns(buffer)["infos"]
    assert_same(found, {"x": {"_index_0": np.array([1, 2]), "_index_1": {"y": np.array([3, 4])}}})
