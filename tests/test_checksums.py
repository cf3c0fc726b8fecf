"""Sums tell a file from every other that damage makes of it, in whatever order it was written."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.checksums import (
    Sums,
    content_differs,
    entry_of,
    entry_of_bytes,
    is_entry,
    sums_of_file,
)
from minari_pipe.testing import examples

SIZES = st.sampled_from([0, 1, 7, 8, 9, 65_535, 65_536, 65_537, 200_001])


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@examples(60)
@given(SIZES, st.lists(st.floats(0, 1), max_size=5), st.randoms())
def test_sums_do_not_depend_on_how_a_file_was_written(size, cuts, random) -> None:
    data = content(size)
    whole = Sums()
    whole.add(0, data)
    bounds = sorted({0, size, *(int(cut * size) for cut in cuts)})
    parts = list(itertools.pairwise(bounds))
    random.shuffle(parts)
    sums = Sums()
    for begin, end in parts:
        sums.add(begin, data[begin:end])
    assert (sums.digest(), sums.size) == (whole.digest(), size)


def test_sums_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    data = content(9_000_001)  # more than is read at once
    (tmp_path / "file").write_bytes(data)
    sums = Sums()
    sums.add(0, data)
    assert sums_of_file(tmp_path / "file") == sums.digest()


@pytest.mark.parametrize("size", [100, 200_001])
def test_every_kind_of_damage_is_seen(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = content(size)
    path.write_bytes(data)
    entry = entry_of(path)
    assert is_entry(entry)
    assert entry == entry_of_bytes([data[:7], data[7:]])
    assert content_differs(path, entry) is None
    for place in (0, 1, size // 2, size - 1):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            assert content_differs(path, entry) is not None
    blocks = [data[i : i + 65_536] for i in range(0, size, 65_536)]
    for other in (data[:-1] + b"\0", data[1:] + b"\0", b"".join(reversed(blocks))):
        path.write_bytes(other)
        assert (content_differs(path, entry) is None) == (other == data)


def test_sums_of_another_size_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(100_000))
    short = Sums()
    short.add(0, content(99_999))
    assert entry_of(tmp_path / "file", short) == entry_of(tmp_path / "file")


@pytest.mark.parametrize(
    "entry", [None, [], {}, {"size": 3}, {"sha256": "x"}, {"sha256": 5, "size": 3}]
)
def test_what_a_manifest_cannot_say_is_no_entry(entry: object) -> None:
    assert not is_entry(entry)
