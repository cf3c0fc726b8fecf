"""Columns answer a query as the rows do, to the bit, or leave it to them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.datasets.query import Query
from minari_pipe.datasets.query_columns import selected
from minari_pipe.errors import ConfigError
from minari_pipe.testing import examples

BIG = (2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 3037000500)
#: of which kind each column is
VALUES = {
    "a": st.one_of(st.integers(-3, 3), st.sampled_from(BIG)),
    "b": st.integers(1, 9),
    "x": st.one_of(
        st.sampled_from([0.0, -0.0, 0.5, 1.0, -2.0, 1e308, 5e-324, math.inf, -math.inf, math.nan]),
        st.floats(),
    ),
    "y": st.floats(-5, 5).filter(bool),
    "f": st.booleans(),
    "u": st.integers(2**63 - 2, 2**64 - 1),
}
DTYPES = {"a": np.int64, "b": np.int64, "x": float, "y": float, "f": bool, "u": np.uint64}

ATOMS = st.one_of(
    st.sampled_from(sorted(VALUES)),
    st.sampled_from(["a", "b", "x", "y", "f"]),
    st.integers(0, 4).map(str),
    st.sampled_from(["0.5", "2.0", "1e999", "True", "9007199254740993", str(2**64), "None"]),
)
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")


def larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of expressions."""
    return st.one_of(
        st.tuples(parts, st.sampled_from(ARITHMETIC), parts).map(" ".join),
        st.tuples(parts, st.sampled_from(COMPARISONS), parts).map(" ".join),
        st.tuples(
            parts, st.sampled_from(COMPARISONS), parts, st.sampled_from(COMPARISONS), parts
        ).map(" ".join),
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(" ".join),
        parts.map("not {}".format),
        parts.map("-{}".format),
        parts.map("+{}".format),
        parts.map("abs({})".format),
        parts.map("isnan({})".format),
        parts.map("{} is None".format),
        parts.map("{} is not None".format),
        st.tuples(parts, st.lists(ATOMS, max_size=3).map(", ".join)).map(
            "{0[0]} in [{0[1]}]".format
        ),
        st.tuples(parts, st.lists(ATOMS, min_size=1, max_size=3).map(", ".join)).map(
            "{0[0]} not in [{0[1]}]".format
        ),
    ).map("({})".format)


EXPRESSIONS = st.recursive(ATOMS, larger, max_leaves=6)


def by_rows(query: Query, rows: Iterable[dict[str, Any]]) -> list[bool] | None:
    """What the rows say; None if one cannot be asked."""
    try:
        return [query(row) for row in rows]
    except ConfigError:
        return None


@examples(400)
@given(EXPRESSIONS, st.lists(st.fixed_dictionaries(VALUES), max_size=4))
def test_columns_say_what_every_row_says_or_nothing(text, rows) -> None:
    try:
        query = Query.parse(text)
    except ConfigError:
        return
    columns = {name: np.array([row[name] for row in rows], DTYPES[name]) for name in VALUES}
    found = selected(query, columns, len(rows))
    if found is not None:
        assert found.dtype == bool
        assert found.tolist() == by_rows(query, rows), text


@pytest.mark.parametrize(
    "text",
    [
        "b > 3",
        "3 < b <= 5 and not f",
        "y * 2 - b / 3 >= 0.5 or f == True",
        "a // b % 3 == 1",
        "-a < b and +f + 1 == 2 and abs(y) < 4",
        "x > 1 or isnan(x)",
        "b in [1, 2.0, 3] and b not in (4,)",
        "f",
        "not b",
        "a is not None",
        "2 ** 3 == 8 and b > 0",
        "y // 0.5 > y % 3",
        "True",
    ],
)
def test_what_is_usually_asked_is_answered_by_columns(text) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "a": rng.integers(-1000, 1000, 500),
        "b": rng.integers(1, 9, 500),
        "x": np.where(rng.random(500) < 0.1, np.nan, rng.standard_normal(500)),
        "y": rng.standard_normal(500),
        "f": rng.random(500) < 0.5,
    }
    names, values = columns.keys(), zip(*(column.tolist() for column in columns.values()))
    query = Query.parse(text)
    found = selected(query, columns, 500)
    assert found is not None
    assert found.tolist() == by_rows(query, (dict(zip(names, own)) for own in values))


@pytest.mark.parametrize(
    "text",
    [
        "b / 0 > 1",
        "b % a == 1",
        "a * a > 0",
        "a + 1 > 0",
        "-a > 0",
        "a == x",
        "b ** 2 == 4",
        "u > 5",
        "a > 18446744073709551615",
        "x // 1 > 0",
        "b == 'text'",
        "b in []",
        "b in [b]",
        "b in 'text'",
        "b.c is None",
        "b[0] is None",
        "len(b) == 1",
        "None",
        "missing > 1",
        "1 / 0 > 1 and b",
    ],
)
def test_what_numpy_computes_otherwise_is_left_to_the_rows(text) -> None:
    columns = {
        "a": np.array([0, 2**63 - 1, -(2**63)]),
        "b": np.array([1, 2, 3]),
        "x": np.array([0.5, math.inf, math.nan]),
        "u": np.array([0, 1, 2**64 - 1], np.uint64),
    }
    assert selected(Query.parse(text), columns, 3) is None
