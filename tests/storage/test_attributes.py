"""Attributes come back as they were, and as real Minari would have written them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minari.dataset._storages.hdf5_storage import flatten_dict, unflatten_dict

from minari_pipe.core.tree import MAX_DEPTH
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.storage.attributes import (
    EXACT,
    _storable,
    check_options,
    exact_form,
    flatten_attributes,
    from_exact_form,
    unflatten_attributes,
)
from minari_pipe.storage.json_attributes import dump_attributes, load_attributes
from minari_pipe.testing import assert_same, examples

numbers = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.sampled_from("ab/Ω\0\ud800 "), max_size=4),
    st.sampled_from(
        [
            np.float32(0.1),
            np.arange(3),
            np.zeros((0, 2), np.int8),
            np.array(1.5),
            np.array(["a", "b"]),
            np.array(["a", ""], object),
            np.array([1], ">i4"),
            np.array([np.nan, -0.0]),
            np.array([True]),
            np.complex64(1j),
        ]
    ),
)
values = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "a/b", "", "c.d"]), inner, max_size=3),
    ),
    max_leaves=6,
)


def text(value):
    return json.dumps(exact_form(value, ""))


def clash(attributes):
    """Whether a value that is written has the name of another, or of a dict that holds it."""
    paths = [
        tuple("/".join(path).split("/"))
        for path, leaf in leaves_of_dicts(attributes)
        if _storable(leaf) is not None
    ]
    return any(
        i != j and one == other[: len(one)]
        for i, one in enumerate(paths)
        for j, other in enumerate(paths)
    )


def leaves_of_dicts(value, path=()):
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, part in value.items() for leaf in leaves_of_dicts(part, (*path, key))]


@examples(200)
@given(st.dictionaries(st.sampled_from(["options", "x", "y/z", "y"]), values, max_size=3))
def test_any_value_comes_back_exactly(attributes) -> None:
    if clash(attributes):
        with pytest.raises(InvalidEpisodeError, match="means the same as"):
            flatten_attributes(attributes)
        return
    again = unflatten_attributes(flatten_attributes(attributes))
    assert text(again) == text(attributes)


@examples(100)
@given(values)
def test_exact_form_is_reversible(value) -> None:
    assert text(from_exact_form(exact_form(value, ""))) == text(value)


def test_plain_options_are_flat_as_real_minari_writes_them() -> None:
    options = {"low": 0.5, "flag": True, "state": {"qpos": np.arange(3.0), "name": "x"}}
    flat = flatten_attributes({"options": options})
    assert EXACT not in flat
    assert text(flat) == text(flatten_dict(options, "options"))
    assert text(unflatten_dict(flat)["options"]) == text(options)


def test_what_hdf5_cannot_tell_apart_is_kept_exactly_beside() -> None:
    options = {"list": [1, 2], "none": None, "array": np.arange(2)}
    flat = flatten_attributes({"options": options})
    assert set(flat) == {"options/list", "options/array", EXACT}
    assert_same(unflatten_attributes(flat)["options"], options)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ([1], np.array([1])),
        (np.zeros(2, np.float32), np.zeros(2)),
        (np.zeros((1, 2)), np.zeros((2, 1))),
        (0.0, -0.0),
        ({}, None),
        ("1", 1),
        (np.array(1.0), 1.0),
        ([["list", []]], [[]]),
    ],
)
def test_different_values_have_different_forms(left, right) -> None:
    assert text(left) != text(right)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": object()}, r"options\.a cannot be stored: object"),
        ({"a": [1, {2: 3}]}, r"options\.a\[1\]: keys must be strings, got 2"),
        ({"a": np.array([object()])}, r"options\.a cannot be stored: ndarray"),
        ({"a": b"bytes"}, r"options\.a cannot be stored: bytes"),
    ],
)
def test_other_values_are_named(value, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message):
        flatten_attributes({"options": value})


@pytest.mark.parametrize(
    "attributes",
    [
        {"options": {"a": {"x": 1}, "a/x": {"y": 2}}},
        {"options": {"a/x": 1, "a": {"x": 2}}},
        {"options": {"x": 1}, "options/x": 2.0},
        {"seed": 1, "seed/x": 2.0},
    ],
)
def test_keys_that_would_be_one_attribute_are_refused(attributes) -> None:
    with pytest.raises(
        InvalidEpisodeError, match=r"'(options/a/x|options/x|seed)'.*means the same"
    ):
        flatten_attributes(attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"": 1.0}, "''"),
        ({"options": {"a\0b": 1}}, r"'options/a\\x00b'"),
        ({"options": {"a": {"\ud800": 1}}}, r"'options/a/\\ud800'"),
        ({"options": {"ü" * 33_000: 1}}, r"'options/üü.*name of 66008 bytes"),
        ({EXACT: "x"}, f"'{EXACT}'"),
    ],
    ids=["empty", "NUL", "lone surrogate", "too long", "reserved"],
)
def test_names_that_hdf5_cannot_hold_are_refused(attributes, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message) as caught:
        flatten_attributes(attributes)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("options", [None, {}, {"a/b": 1, "a": {"c": None}}, {"x": np.zeros(2)}])
def test_options_that_can_be_stored_pass(options) -> None:
    check_options(options)


@pytest.mark.parametrize("options", ["fast", [1], 0, ""])
def test_options_that_are_no_dict_are_named(options) -> None:
    with pytest.raises(InvalidEpisodeError, match="options must be a dict or None"):
        check_options(options)


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize("kind", [dict, list])
def test_values_in_values_in_values_are_stored_up_to_a_depth(depth, kind) -> None:
    value = 1
    for _ in range(depth):
        value = {"a": value} if kind is dict else [value]
    for write, read in (
        (flatten_attributes, unflatten_attributes),
        (dump_attributes, load_attributes),
    ):
        if depth <= MAX_DEPTH:
            assert read(write({"options": value})) == {"options": value}
        else:
            with pytest.raises(InvalidEpisodeError, match="options is nested more than 100 deep"):
                write({"options": value})


DEEP = {
    "names": {"options/" + "a/" * 900 + "x": 1},
    "exact forms": {EXACT: '{"options": ' + '["dict", {"a": ' * 300 + "1" + "}]" * 300 + "}"},
}


@pytest.mark.parametrize("flat", DEEP.values(), ids=DEEP)
def test_attributes_of_a_stranger_exhaust_no_stack(flat) -> None:
    with pytest.raises(CorruptDatasetError, match="nested more than 100 deep"):
        unflatten_attributes(flat)
    text = '{"options": ' + '{"a": ' * 300 + "1" + "}" * 301
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        load_attributes(text)
