"""A root group grows at the end of its file: every reader sees the old members or all of them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from minari_pipe.storage.hdf5.file import EpisodeFile
from minari_pipe.storage.hdf5.writer.growth import grow
from minari_pipe.storage.hdf5.writer.layout_root import END_WORD, ROOT_WORD, find_root
from tests.conftest import FULL
from tests.storage.hdf5.test_hdf5_layout import steps_of, write

READER = """\
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    print("open", flush=True)
    sys.stdin.readline()
    print(*file)
"""


def created(path: Path, count: int) -> list[int]:
    """Write a file of so many episodes, at least one; the addresses of their headers."""
    with EpisodeFile.create(path) as file:
        write(file, steps_of(*(1 + np.arange(count) % 3)))
    root = find_root(path.read_bytes())
    assert root is not None
    return root.headers.tolist()


def names(count: int) -> list[str]:
    return sorted(f"episode_{number}" for number in range(count))


@pytest.mark.parametrize("seed", range(20 if FULL else 5))
def test_a_group_grows_by_any_number_of_members_again_and_again(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path / "x"
    count = int(rng.choice([1, 3, 8, 9, 100, 256, 257, 3000]))
    headers = created(path, count)
    for more in rng.choice([1, 1, 1, 2, 7, 50, 700], 12):
        content = path.read_bytes()
        new = [headers[i % len(headers)] for i in range(more)]
        growth = grow(content, len(content), count, new)
        with h5py.File(path) as file:  # what was opened before the change sees nothing of it
            process = subprocess.Popen(
                [sys.executable, "-c", READER, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None and process.stdout.readline() == "open\n"
            assert list(file) == names(count)
        size = len(content) + len(growth.end)
        with open(path, "r+b") as raw:
            os.pwrite(raw.fileno(), growth.end, len(content))
            for place, value in ((END_WORD, size), (ROOT_WORD, growth.root)):
                root = find_root(path.read_bytes())
                assert root is not None and root.headers.tolist() == headers
                with h5py.File(path) as file:
                    assert list(file) == names(count)
                os.pwrite(raw.fileno(), struct.pack("<Q", value), place)
        assert process.communicate("\n")[0].split() == names(count)
        headers += new
        count += int(more)
        assert path.read_bytes()[100 : len(content)] == content[100:]
        root = find_root(path.read_bytes())
        assert root is not None and root.headers.tolist() == headers
        assert root.start == size
    with h5py.File(path, "r+") as file:  # libhdf5 goes on from there
        assert list(file) == names(count)
        for number in range(count, count + 300):
            file.create_group(f"episode_{number}").attrs["id"] = number
    with h5py.File(path) as file:
        assert list(file) == names(count + 300)
        assert file[f"episode_{count}"].attrs["id"] == count


def test_one_more_member_takes_as_much_room_in_a_large_group_as_in_a_small_one(
    tmp_path: Path,
) -> None:
    takes = {}
    for count in (500, 10_000):
        headers = created(tmp_path / "x", count)
        content = (tmp_path / "x").read_bytes()
        first = grow(content, len(content), count, headers[:1])  # makes room for names
        content += first.end
        content = bytearray(content)
        struct.pack_into("<Q", content, ROOT_WORD, first.root)
        takes[count] = len(grow(content, len(content), count + 1, headers[:1]).end)
    assert takes[10_000] <= takes[500] + 600
    assert takes[10_000] < 3000
