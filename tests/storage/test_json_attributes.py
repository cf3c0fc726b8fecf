"""Attributes of an episode as JSON: real Minari reads them, and nothing is lost."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minari.dataset._storages.arrow_storage import NumpyEncoder

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.json_attributes import dump_attributes, load_attributes
from minari_pipe.testing import assert_same, examples

VALUES: dict[str, Any] = {
    "an array": np.arange(6.0).reshape(2, 3),
    "an empty array": np.zeros((0, 3), np.float32),
    "halves": np.array([1, np.nan], np.float16),
    "text in an array": np.array([["a", "ü"]], dtype=object),
    "a number of 32 bits": np.float32(0.1),
    "complex": 1j * np.ones(2),
    "a tuple": (1, (2.0, "x"), []),
    "None": None,
    "NaN": math.nan,
    "infinity": -math.inf,
    "minus zero": -0.0,
    "one": [1, 1.0, True],
    "large": [2**64 - 1, -(2**70)],
    "nested": {"a/b": {"": {}}, "list": [{"x": (1,)}, None]},
    "text": "ünï\0code \ud800",
    "empty": {},
}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_comes_back_exactly(name: str) -> None:
    text = dump_attributes({"options": VALUES[name], "id": 0})
    assert_same(load_attributes(text), {"options": VALUES[name], "id": 0})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
tuples = st.recursive(plain, lambda inner: st.tuples(inner) | st.lists(inner, max_size=3))


@examples(50)
@given(st.dictionaries(st.sampled_from("abc"), plain), st.dictionaries(st.just("t"), tuples))
def test_any_values_come_back_and_plain_ones_as_plain_json(values, others) -> None:
    assert_same(load_attributes(dump_attributes(values | others)), values | others)
    assert json.loads(dump_attributes(values)) == values


def test_real_minari_reads_the_nearest_value_that_json_has() -> None:
    options = {"goal": np.arange(2), "pair": (1, 2), "f": np.float32(0.5), "seed": 2**64 - 1}
    found = json.loads(dump_attributes({"options": options}))
    assert found["options"] == {"goal": [0, 1], "pair": [1, 2], "f": 0.5, "seed": 2**64 - 1}


def test_what_real_minari_changes_later_counts() -> None:
    stored = json.loads(dump_attributes({"options": {"goal": (1, 2)}, "weights": np.arange(2)}))
    stored.update({"weights": [5, 6], "note": "later"})
    found = load_attributes(json.dumps(stored, cls=NumpyEncoder))
    assert_same(found, {"options": {"goal": (1, 2)}, "weights": [5, 6], "note": "later"})


@pytest.mark.parametrize(
    "attributes",
    [{"x": object()}, {"x": {1: 2}}, {"x": [b"x"]}, {1: 2}, {"minari_pipe_exact": 1}],
    ids=["an object", "a number as key", "bytes", "a number as name", "our own key"],
)
def test_what_cannot_be_stored_is_refused(attributes) -> None:
    with pytest.raises(InvalidEpisodeError, match=r"x|attribute names"):
        dump_attributes(attributes)
