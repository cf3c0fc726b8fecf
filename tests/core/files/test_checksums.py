"""The digests of a file tell it from every other that damage makes of it."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.files.checksums import (
    PIECE,
    Pieces,
    content_differs,
    entry_of,
    entry_of_bytes,
    is_entry,
    is_old_entry,
)
from minari_pipe.testing import examples

SIZES = st.sampled_from([0, 1, 65_536, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 9])


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@examples(40)
@given(SIZES)
def test_an_entry_is_what_the_definition_says(size: int) -> None:
    data = content(size)
    digests = [xxhash.xxh3_128_digest(data[i : i + PIECE]) for i in range(0, size, PIECE)]
    expected = {"size": size, "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    if len(digests) > 1:
        expected["xxh3_128"] = xxhash.xxh3_128_hexdigest(b"".join(digests))
        expected["pieces"] = [digest.hex() for digest in digests]
    assert entry_of_bytes([data]) == expected
    assert is_entry(expected)


@examples(60)
@given(SIZES, st.lists(st.floats(0, 1), max_size=5), st.booleans())
def test_an_entry_does_not_depend_on_how_a_file_was_written(size, cuts, has_sha256) -> None:
    data = content(size)
    bounds = sorted({0, size, *(int(cut * size) for cut in cuts)})
    parts = [data[begin:end] for begin, end in itertools.pairwise(bounds)]
    whole = entry_of_bytes([data], sha256=has_sha256)
    assert entry_of_bytes(parts, sha256=has_sha256) == whole
    assert whole.get("sha256", "") == (hashlib.sha256(data).hexdigest() if has_sha256 else "")
    pieces = Pieces()
    for part in parts:
        pieces.add(part)
    before = pieces.copy()
    pieces.add(b"more")
    assert before.entry() == entry_of_bytes([data])
    assert pieces.entry() == entry_of_bytes([data, b"more"])


@examples(30)
@given(SIZES, st.integers(0, 3 * PIECE))
def test_a_file_that_grows_goes_on_with_the_pieces_it_has(size: int, more: int) -> None:
    """Of what was there, only the last piece is hashed again, and the first that is changed."""
    old, new = content(size), content(more, 1)
    known = entry_of_bytes([old])
    whole = size // PIECE
    pieces = Pieces(known.get("pieces", [known["xxh3_128"]])[:whole])
    pieces.add(old[whole * PIECE :])
    pieces.add(new)
    changed = b"12345678" + (old + new)[8:]
    if size + more >= 8:
        found = pieces.with_first(changed[:PIECE]).entry()
        assert found == entry_of_bytes([changed])
    assert pieces.entry() == entry_of_bytes([old, new])


@pytest.mark.parametrize("has_sha256", [False, True])
@pytest.mark.parametrize("size", [100, 200_001, 3 * PIECE + 7])
def test_every_kind_of_damage_is_seen(size: int, has_sha256: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = content(size)
    path.write_bytes(data)
    entry = entry_of(path, sha256=has_sha256)
    assert is_entry(entry)
    assert entry == entry_of_bytes([data[:7], data[7:]], sha256=has_sha256)
    assert content_differs(path, entry) is None
    for place in (0, size // 2, size - 1):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert content_differs(path, entry) is not None
    for width in (8, 4096, 65_536, PIECE):
        parts = [data[i : i + width] for i in range(0, size, width)]
        exchanged = b"".join([*parts[1:2], *parts[:1], *parts[2:]])
        for other in (exchanged, b"".join(reversed(parts)), data[1:] + b"\0"):
            path.write_bytes(other)
            assert (content_differs(path, entry) is None) == (other == data)


def test_the_first_piece_that_differs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content(3 * PIECE))
    entry = entry_of(path)
    with path.open("r+b") as file:
        file.seek(PIECE + 5)
        file.write(b"other")
    assert content_differs(path, entry) == "first difference between bytes 1048576 and 2097152"


def test_pieces_of_another_size_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(100_000))
    short = Pieces()
    short.add(content(99_999))
    assert entry_of(tmp_path / "file", short) == entry_of(tmp_path / "file")


def test_sums_of_manifests_of_format_1_are_compared_as_far_as_they_see(tmp_path: Path) -> None:
    path = tmp_path / "file"
    words = np.arange(3 * 2**13 + 5, dtype="<u8")
    data = words.tobytes() + b"end"
    sums = [words[i : i + 2**13].sum() for i in range(0, len(words), 2**13)]
    sums[-1] += np.uint64(int.from_bytes(b"end", "little"))
    digest = hashlib.sha256(np.array(sums, "<u8").tobytes()).hexdigest()
    entry = {"size": len(data), "sums": digest}
    assert is_old_entry(entry)
    path.write_bytes(data)
    assert content_differs(path, entry) is None
    path.write_bytes(data[:-1] + b"D")
    assert content_differs(path, entry) == "sums"


GOOD = entry_of_bytes([content(PIECE + 1)], sha256=True)
SIZES_OF_NOTHING = [-1, True, 1.0, "1", None, [], 2**63, 10**400]
NO_ENTRIES = [
    *[None, [], {}, "x", {"size": 3}, {"xxh3_128": GOOD["xxh3_128"]}],
    *[{**GOOD, "size": size} for size in (*SIZES_OF_NOTHING, 0, PIECE, 2 * PIECE + 1)],
    *[{**GOOD, "xxh3_128": digest} for digest in ("", "0" * 32, "0" * 64, "G" * 32, 5, None)],
    *[{**GOOD, "sha256": digest} for digest in ("", "x" * 64, "A" * 64, 5, None, ["0" * 64])],
    *[{**GOOD, "pieces": pieces} for pieces in (None, {}, "00", [], GOOD["pieces"][:1], [1, 2])],
    {**GOOD, "pieces": [*GOOD["pieces"], GOOD["pieces"][0]]},
    {**GOOD, "pieces": GOOD["pieces"][::-1]},
    {**GOOD, "pieces": [GOOD["pieces"][0], "x" * 32]},
    {"size": 3, "xxh3_128": "0" * 32, "pieces": ["0" * 32]},
]
NO_OLD_ENTRIES = [
    *[None, [], {}, {"size": 3}, {"sha256": "0" * 64}, {"size": 3, "sums": "x"}],
    *[{"size": size, "sha256": "0" * 64} for size in SIZES_OF_NOTHING],
    *[{"size": 3, "sha256": digest} for digest in ("", "x", "0" * 63, 5, None)],
    {"size": 3, "sha256": "0" * 64, "sums": ""},
]


def test_what_a_manifest_cannot_say_is_no_entry() -> None:
    assert is_entry(GOOD)
    assert is_old_entry({"size": 3, "sha256": "0" * 64})
    assert [entry for entry in NO_ENTRIES if is_entry(entry)] == []
    assert [entry for entry in NO_OLD_ENTRIES if is_old_entry(entry)] == []
