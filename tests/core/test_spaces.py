"""Spaces survive their JSON form, which real Minari reads and writes alike."""

from __future__ import annotations

import json
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st
from minari.serialization import deserialize_space as their_deserialize
from minari.serialization import serialize_space as their_serialize

from minari_pipe.core.spaces import (
    contains_rows,
    deserialize_space,
    is_image_space,
    serialize_space,
    space_leaves,
)
from minari_pipe.core.tree import leaves, map_leaves
from minari_pipe.errors import InvalidMetadataError, UnsupportedSpaceError
from minari_pipe.testing import assert_same, column, examples
from minari_pipe.testing import spaces as any_space


@examples(60)
@given(any_space())
def test_round_trip_and_same_text_as_real_minari(space) -> None:
    text = serialize_space(space)
    again = deserialize_space(text)
    assert again == space
    assert [path for path, _ in space_leaves(again)] == [path for path, _ in space_leaves(space)]
    assert [leaf.dtype for _, leaf in space_leaves(again)] == [
        leaf.dtype for _, leaf in space_leaves(space)
    ]
    if all(
        leaf.dtype == np.int64
        for _, leaf in space_leaves(space)
        if isinstance(leaf, spaces.Discrete)
    ):
        # real Minari makes every Discrete space one of int64
        assert text == their_serialize(space)
        assert their_deserialize(text) == space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(np.float32(0.1), np.float32(0.3), (), np.float32),
        spaces.Box(0, 255, (64, 64, 3), np.uint8),
        spaces.Box(-np.inf, np.arange(2000.0), (2000,), np.float64),
        spaces.Box(np.full((9, 300), -0.0), np.full((9, 300), 0.1), dtype=np.float64),
        spaces.Box(np.where(np.arange(2000) == 7, -0.0, 0.0), 1, (2000,), np.float64),
        spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64),
        spaces.Box(-1, 1, (0, 2)),
        spaces.Discrete(3, start=-7, dtype=np.int32),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, -1]]),
        spaces.MultiBinary(np.array([2, 3])),
        spaces.Text(5, min_length=0, charset="ab"),
        spaces.Dict({}),
        spaces.Tuple(()),
        spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(2))]),
    ],
    ids=str,
)
def test_special_spaces_round_trip(space) -> None:
    text = serialize_space(space)
    assert text == json.dumps(serialize_space(space, to_string=False))
    again = deserialize_space(text)
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Box):
        assert again.low.tobytes() == space.low.tobytes()
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


LIMITS = ["0", "-0.0", "255", "256", "1e400", "-Infinity", "NaN", "null", "00", "[1]", "true"]


@examples(80)
@given(
    st.sampled_from(["uint8", "int64", "float32", "float64", "bool", "S3"]),
    st.sampled_from(
        ["[2000]", "[40, 50]", "[50, 40]", "[-1]", "[2000, 0]", "[99999999, 99999999]"]
    ),
    st.sampled_from(LIMITS),
    st.sampled_from(LIMITS),
    st.sampled_from(LIMITS),
)
def test_one_number_all_over_is_read_as_many_are(dtype, shape, low, odd, high) -> None:
    text = (
        f'{{"type": "Box", "dtype": "{dtype}", "shape": {shape}, '
        f'"low": [{", ".join([low] * 1999 + [odd])}], "high": [{", ".join([high] * 2000)}]}}'
    )

    def read(load: Callable[[str], Any]) -> Any:
        try:
            return deserialize_space(load(text))
        except (InvalidMetadataError, ValueError):
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gymnasium about such limits
        found, expected = read(str), read(json.loads)
    assert type(found) is type(expected)
    if found is not None:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.low.tobytes() == expected.low.tobytes()
        assert found.high.tobytes() == expected.high.tobytes()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", "[100000000, 0]"),  # as lists 6 GB
        ("float32", f"[{'9, ' * 100_000}9]"),  # a product of 100,000 digits
        ("U1000000", "[2000]"),  # 8 GB
    ],
    ids=["none of many", "many dimensions", "long strings"],
)
def test_a_short_text_cannot_take_much_time_or_memory(dtype, shape) -> None:
    limit = f"[{', '.join(['5'] * 2000)}]"
    text = f'{{"type": "Box", "dtype": "{dtype}", "shape": {shape}, "low": {limit}, '
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMetadataError):
            deserialize_space(f'{text}"high": {limit}}}')
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 1


def test_text_does_not_depend_on_the_order_of_a_set() -> None:
    form = serialize_space(spaces.Text(3, charset=frozenset("zyxabc")), to_string=False)
    assert form["charset"] == "abcxyz"


@pytest.mark.parametrize(
    "space",
    [spaces.Graph(spaces.Box(-1, 1), None), spaces.Dict({1: spaces.Discrete(2)})],
    ids=["graph", "integer-keys"],
)
def test_other_spaces_are_refused(space) -> None:
    with pytest.raises(UnsupportedSpaceError):
        serialize_space(space)


def test_refusal_begins_as_real_minari_s() -> None:
    with pytest.raises(NotImplementedError, match=r"^No serialization method available for"):
        serialize_space(spaces.Sequence(spaces.Discrete(2)))
    with pytest.raises(NotImplementedError, match=r"^No deserialization method available for Moon"):
        deserialize_space('{"type": "Moon"}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"type": "Box"}',
        '{"type": "Box", "dtype": "f9", "shape": [1], "low": [0], "high": [1]}',
        '{"type": "Box", "dtype": "float32", "shape": [2], "low": [0], "high": [1]}',
        '{"type": "Discrete", "n": -1, "start": 0}',
        '{"type": "Dict", "subspaces": [1]}',
        '{"type": ["Box"]}',
        '{"type": "Tuple", "subspaces": [' * 5000,
    ],
)
def test_damaged_forms_are_named_and_nothing_else_escapes(text) -> None:
    with pytest.raises(InvalidMetadataError, match="not a space of the Minari standard"):
        deserialize_space(text)


def test_a_space_of_texts_is_refused_before_they_are_made() -> None:
    form = '{"type": "MultiDiscrete", "dtype": "S1500000000", "nvec": [1, 2]}'
    with pytest.raises(InvalidMetadataError, match="Invalid MultiDiscrete dtype"):
        deserialize_space(form)


class Angle(gym.Space):
    """A space of another package."""


@examples(30)
@given(any_space())
def test_a_space_that_is_read_twice_is_two_spaces(space) -> None:
    text = serialize_space(space)
    first = deserialize_space(text)
    first.seed(3)
    for _, leaf in space_leaves(first):
        if isinstance(leaf, spaces.Box) and leaf.low.size:
            leaf.low.flat[0] = leaf.high.flat[0] = 1
    second = deserialize_space(text)
    assert second == space
    assert serialize_space(second) == text
    assert second._np_random is None


def test_a_reader_of_another_package_is_asked_each_time(monkeypatch) -> None:
    count = iter(range(1, 9))
    readers = {**deserialize_space.registry, "Discrete": lambda form: spaces.Discrete(next(count))}
    text = serialize_space(spaces.Discrete(7))
    assert deserialize_space(text) == spaces.Discrete(7)
    monkeypatch.setattr(deserialize_space, "registry", readers)
    assert [deserialize_space(text).n for _ in range(3)] == [1, 2, 3]
    monkeypatch.undo()
    assert deserialize_space(text) == spaces.Discrete(7)


def test_other_packages_can_register_their_spaces() -> None:
    @serialize_space.register(Angle)
    def _(space: Angle, to_string: bool = True):
        form = {"type": "Angle"}
        return json.dumps(form) if to_string else form

    @deserialize_space.register("Angle")
    def _(form):
        return Angle()

    text = serialize_space(spaces.Dict(a=Angle()))
    assert isinstance(deserialize_space(text)["a"], Angle)


@examples(60)
@given(any_space(), st.integers(0, 2**32))
def test_contains_rows_agrees_with_contains(space, seed) -> None:
    assume(next(space_leaves(space), None) is not None)  # without a leaf there are no rows
    rows = 5
    rng = np.random.default_rng(seed)
    space.seed(seed % 2**31)
    inside = [space.sample() for _ in range(rows)]
    for values in (column(space, rows, rng), _stacked(space, inside)):
        trees = [map_leaves(lambda leaf, row=row: leaf[row], values) for row in range(rows)]
        expected = np.array([_contains(space, tree) for tree in trees])
        assert_same(contains_rows(space, values), expected)
    assert contains_rows(space, _stacked(space, inside)).all()


def _contains(space, value) -> bool:
    """``space.contains``, which takes scalars of the leaves only as arrays."""
    value = map_leaves(lambda leaf: leaf if isinstance(leaf, str) else np.asarray(leaf), value)
    return bool(space.contains(value))


def _stacked(space, samples):
    from minari_pipe.core.tree import stack

    return stack(samples)


@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (spaces.Box(-1, 1, (1,)), np.array([[0], [2], [np.nan]], np.float32), [True, False, False]),
        (spaces.Box(-1, 1, (1,)), np.zeros((2, 1), np.float64), [False, False]),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 1), np.float32), [False, False]),
        (spaces.Discrete(2, start=1), np.array([0, 1, 2, 3]), [False, True, True, False]),
        (spaces.Discrete(2), np.array([0.0]), [False]),
        (spaces.Text(2), ["a", "abc", "", "é"], [True, False, False, False]),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": np.zeros(2, int)}, [False, False]),
        (spaces.Tuple([spaces.Discrete(2)]), {"b": np.zeros(2, int)}, [False, False]),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]),
            (np.zeros(2, int), np.zeros(1, int)),
            [True, False],
        ),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict({})),
            {"a": [0, 5], "b": {}},
            [True, False],
        ),
    ],
)
def test_contains_rows_says_which_rows_are_outside(space, values, expected) -> None:
    assert contains_rows(space, values).tolist() == expected


def test_is_image_space_only_for_full_range_bytes_of_32_by_32() -> None:
    assert is_image_space(spaces.Box(0, 255, (32, 32, 3), np.uint8))
    assert is_image_space(spaces.Box(0, 255, (32, 32), np.uint8))
    assert not is_image_space(spaces.Box(0, 255, (31, 32, 3), np.uint8))
    assert not is_image_space(spaces.Box(0, 254, (32, 32, 3), np.uint8))
    assert not is_image_space(spaces.Box(0, 255, (32, 32, 3), np.int32))
    assert not is_image_space(spaces.Discrete(2))


def test_space_leaves_agrees_with_leaves_of_a_sample() -> None:
    space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), b=spaces.Box(0, 1))
    paths = [path for path, _ in space_leaves(space)]
    assert paths == [path for path, _ in leaves(space.sample())] == [("a", 0), ("a", 1), ("b",)]
