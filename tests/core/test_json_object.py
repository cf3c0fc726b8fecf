"""What is not the text of a JSON object is a ValueError, whatever it is."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.json_object import json_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_an_object_is_read_and_any_other_value_refused(value: Any) -> None:
    if isinstance(value, dict):
        assert json_object(json.dumps(value)) == value
    else:
        with pytest.raises(ValueError, match="expected a JSON object, got "):
            json_object(json.dumps(value))


@given(st.binary() | st.text() | st.none() | st.integers())
def test_what_is_no_json_is_a_value_error(text: Any) -> None:
    with suppress(ValueError):
        json_object(text)


def test_no_depth_is_anything_but_a_value_error() -> None:
    limit = sys.getrecursionlimit()
    for depth in (*range(limit - 300, limit + 300, 7), 100_000):
        for begin, end in ("[", "]"), ('{"a":', "}"):
            with suppress(ValueError):
                json_object(begin * depth + "1" + end * depth)
