"""Trees of dicts and tuples are walked, mapped and stacked without losing anything."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.tree import as_array, fits_exactly, join_path, leaves, map_leaves, stack
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.testing import assert_same, column, examples
from minari_pipe.testing import spaces as any_space

READ_A_NAME = """
spaces.deserialize_space({'type': 'Box', 'dtype': name, 'shape': [0], 'low': [], 'high': []})
spaces.deserialize_space({'type': 'Discrete', 'dtype': name, 'n': 3})
spaces.deserialize_space({'type': 'MultiDiscrete', 'dtype': name, 'nvec': [3]})
storage.attributes.from_exact_form(['array', name, [0], ''])
storage.arrow.values._marked_dtype(name.encode(), ('rewards',))
journal_format.EpisodeDecoder({f: ['rows', name, [], 1] for f in journal_format.FIELDS})
policies.archive.read_arrays(path)
"""


@pytest.mark.parametrize("name", ["M8[s/0]", "(2,3"])
def test_a_name_of_a_dtype_ends_no_process(name, tmp_path) -> None:
    header = repr({"descr": name, "fortran_order": False, "shape": (0,)}).encode() + b"\n"
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w") as file:
        head = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little")
        file.writestr("mean.npy", head + header)
    script = f"""
import minari_pipe.policies.archive, minari_pipe.storage.arrow.values
from minari_pipe import policies, storage
from minari_pipe.core import spaces
from minari_pipe.recording.journal import format as journal_format
name, path = {name!r}, {str(path)!r}
for read in {READ_A_NAME.strip()!r}.splitlines():
    try:
        eval(read)
    except (OSError, TypeError, ValueError):
        print(read, flush=True)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    refused = found.stdout.splitlines()
    assert refused == READ_A_NAME.split("\n")[1:-1], (found.returncode, found.stderr)


@examples(30)
@given(any_space(), st.integers(0, 2**32))
def test_map_leaves_keeps_the_structure(space, seed) -> None:
    tree = column(space, 3, np.random.default_rng(seed))
    assert_same(map_leaves(lambda leaf: leaf, tree), tree)
    assert len(list(leaves(tree))) == len(list(leaves(map_leaves(len, tree))))


@examples(30)
@given(any_space(), st.integers(0, 2**32))
def test_stack_is_the_inverse_of_taking_rows(space, seed) -> None:
    tree = column(space, 4, np.random.default_rng(seed))
    rows = [map_leaves(lambda leaf, row=row: leaf[row], tree) for row in range(4)]
    assert_same(stack(rows), tree)


def test_leaves_names_every_path() -> None:
    tree = {"a": (1, {"b": [2, 3]}), "c": "text"}
    assert list(leaves(tree)) == [(("a", 0), 1), (("a", 1, "b"), [2, 3]), (("c",), "text")]
    assert join_path(("a", 1, "b")) == "a.1.b"


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ({"a": 1}, {"b": 1}, r"Dict key mismatch at the top: expected keys \['a'\], got \['b'\]"),
        ({"a": {"b": 1}}, {"a": 2}, "Dict key mismatch at a: .* got int"),
        ((1, 2), (1,), "Tuple length mismatch at the top: expected 2 entries, got 1"),
    ],
)
def test_other_structures_are_refused(left, right, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message):
        map_leaves(lambda x, y: x, left, right)


def test_rows_of_different_shapes_are_refused() -> None:
    with pytest.raises(InvalidEpisodeError, match=r"different shapes: \[\(2,\), \(3,\)\]"):
        stack([np.zeros(2), np.zeros(3)])
    with pytest.raises(InvalidEpisodeError, match="empty list"):
        stack([])


@pytest.mark.parametrize(
    ("values", "dtype", "fits"),
    [
        ([1.5], "float32", True),
        ([0.1], "float32", False),
        ([np.nan, np.inf, -0.0], "float32", True),
        ([1e300], "float32", False),
        ([3], "float32", True),
        ([2**53 + 1], "float64", False),
        ([2**53], "float64", True),
        ([300], "uint8", False),
        ([-1], "uint64", False),
        ([1.0], "int64", False),
        ([1], "bool", False),
        ([True], "int64", True),
        ([1 + 1j], "complex64", True),
        ([1 + 1j], "float64", False),
    ],
)
def test_fits_exactly_means_no_value_and_no_kind_is_lost(values, dtype, fits) -> None:
    assert fits_exactly(np.array(values), dtype) is fits


@pytest.mark.parametrize(
    "value", [object(), [1, "a"], [[1], [1, 2]], b"bytes", np.datetime64("2020"), {"a"}, [None]]
)
def test_values_that_cannot_be_stored_are_named(value) -> None:
    with pytest.raises(InvalidEpisodeError, match=r"infos\.x cannot be stored"):
        as_array(value, ("infos", "x"))


def test_strings_become_arrays_of_str() -> None:
    assert_same(as_array(np.array(["a", "bc"]), ()), np.array(["a", "bc"], dtype=object))
