"""A mapped array is its file, and takes no memory once it was gone through."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from minari_pipe.core.files.checksums import entry_of, entry_of_bytes
from minari_pipe.core.files.mapped import PIECE, in_parts, in_pieces, map_array
from minari_pipe.storage.episode_files import write_file


def resident() -> int:
    """Bytes of files that are in the memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    np.arange(6 * PIECE // 8 + 5).tofile(path)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_a_map_is_out_of_memory_once_it_was_gone_through(file: Path) -> None:
    with open(file, "rb") as opened:
        array = map_array(opened.fileno(), 8 * 3, np.dtype(np.int64), (6 * PIECE // 8 + 2,))
    before = resident()
    highest, total = 0, 0
    for piece in in_pieces(array[7:]):
        total += int(np.frombuffer(piece, np.int64).sum())
        highest = max(highest, resident() - before)
    assert total == sum(range(10, 6 * PIECE // 8 + 5))
    assert highest < 3 * PIECE
    assert resident() - before < PIECE
    assert array[[0, -1]].tolist() == [3, 6 * PIECE // 8 + 4]  # it can be looked at again


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_what_is_written_and_summed_from_a_map_is_not_in_memory_either(
    file: Path, tmp_path: Path
) -> None:
    with open(file, "rb") as opened:
        array = map_array(opened.fileno(), 0, np.dtype(np.int64), (6 * PIECE // 8 + 5,))
    rows = array[: 6 * PIECE // 8].reshape(-1, 1024)
    before = resident()
    highest, total = 0, 0
    for part in in_parts(rows):
        total += int(part.sum())
        highest = max(highest, resident() - before)
    assert total == sum(range(6 * PIECE // 8))
    assert highest < 3 * PIECE
    chunks = [b"head", array.view(np.uint8).data, b""]
    for copy in (tmp_path / "first", tmp_path / "copy"):
        write_file(str(copy), chunks)
        entry = entry_of_bytes(chunks, in_pieces)
        assert resident() - before < 2 * PIECE
    assert (tmp_path / "copy").read_bytes() == b"head" + file.read_bytes()
    assert entry == entry_of(tmp_path / "copy")


def test_what_was_changed_in_a_private_map_stays(file: Path) -> None:
    private = np.memmap(file, np.int64, "c")
    private[:] = 1
    assert all(set(np.frombuffer(piece, np.int64)) == {1} for piece in in_pieces(private))
    assert set(private.tolist()) == {1}


def test_any_array_comes_in_its_order() -> None:
    for array in (np.zeros(0), np.zeros((2, 0)), np.array(7.0), np.arange(PIECE // 4)):
        assert b"".join(in_pieces(array)) == array.tobytes()


def test_an_array_without_a_byte_needs_no_file(file: Path) -> None:
    with open(file, "rb") as opened:
        found = map_array(opened.fileno(), 0, np.dtype(np.float32), (4, 0))
        with pytest.raises(ValueError, match="length is greater than file size"):
            map_array(opened.fileno(), 0, np.dtype(np.float32), (10**9,))
    assert (found.dtype, found.shape) == (np.float32, (4, 0))
