"""A finished block is taken; whatever is not exactly that is made again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.pipeline.execution.blocks import BlockStore, NotFinishedError


class Maker:
    """Writes a block whose bytes say which one it is, and counts."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.n_made = 0

    def __call__(self, path: Path) -> dict:
        self.n_made += 1
        path.write_bytes(f"block {self.index}".encode() * 100)
        return {"episodes": [self.index]}


def taken(folder: Path, index: int, maker: Maker, key: str = "key") -> dict:
    """The block's record, made anew if it is not finished, as a scheduler does it."""
    store = BlockStore(folder, ".bin")
    try:
        found = store.find(index, key)
    except NotFinishedError:
        found = None
    return store.make(index, key, maker) if found is None else found


def finish(folder: Path, n: int) -> list[dict]:
    return [taken(folder, i, Maker(i)) for i in range(n)]


def test_a_finished_block_is_taken_with_its_record(tmp_path):
    first = finish(tmp_path, 3)
    makers = [Maker(i) for i in range(3)]
    assert [taken(tmp_path, i, maker) for i, maker in enumerate(makers)] == first
    assert [maker.n_made for maker in makers] == [0, 0, 0]
    assert [r["episodes"] for r in first] == [[0], [1], [2]]
    assert first[1]["sha256"] == sha256_file(BlockStore(tmp_path, ".bin").path(1))


def test_a_block_of_another_config_is_made_again_and_it_is_said_why(tmp_path):
    finish(tmp_path, 1)
    with pytest.raises(NotFinishedError, match="made with another config"):
        BlockStore(tmp_path, ".bin").find(0, "another key")
    maker = Maker(0)
    taken(tmp_path, 0, maker, "another key")
    assert maker.n_made == 1
    assert BlockStore(tmp_path, ".bin").find(0, "another key") is not None


def record(folder: Path, index: int) -> Path:
    return folder / f"block_{index:05d}.json.record"


def cut(path: Path) -> None:
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def swap_whole_blocks(folder: Path) -> None:
    """Block 1 in the place of block 0, with its record."""
    (folder / "block_00001.bin").rename(folder / "block_00000.bin")
    record(folder, 1).rename(record(folder, 0))


DAMAGE = {
    "the file is cut": lambda f: cut(f / "block_00000.bin"),
    "the file is empty": lambda f: (f / "block_00000.bin").write_bytes(b""),
    "a bit of the file is flipped": lambda f: flip(f / "block_00000.bin"),
    "the file is gone": lambda f: (f / "block_00000.bin").unlink(),
    "the file is another block's": lambda f: (f / "block_00001.bin").replace(f / "block_00000.bin"),
    "file and record are another block's": swap_whole_blocks,
    "the record is cut": lambda f: cut(record(f, 0)),
    "the record is empty": lambda f: record(f, 0).write_text(""),
    "the record is gone": lambda f: record(f, 0).unlink(),
    "the record is a list": lambda f: record(f, 0).write_text("[]"),
    "the record is deep": lambda f: record(f, 0).write_text("[" * 100_000),
    "the record is no text": lambda f: record(f, 0).write_bytes(b"\xff\xfe\x00"),
    "the record lacks its seal": lambda f: record(f, 0).write_text('{"sha256": "0"}'),
    "the record is a pipe": lambda f: (record(f, 0).unlink(), os.mkfifo(record(f, 0))),
    "the record is edited": lambda f: edit(record(f, 0), episodes=[7]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_not_whole_is_made_again(damage, tmp_path):
    expected = finish(tmp_path, 2)[0]
    content = (tmp_path / "block_00000.bin").read_bytes()
    damage(tmp_path)
    with pytest.raises(NotFinishedError, match="damaged|missing|another config"):
        BlockStore(tmp_path, ".bin").find(0, "key")
    maker = Maker(0)
    assert taken(tmp_path, 0, maker) == expected
    assert maker.n_made == 1
    assert (tmp_path / "block_00000.bin").read_bytes() == content
    maker = Maker(0)
    taken(tmp_path, 0, maker)
    assert maker.n_made == 0


def test_what_killed_processes_left_of_a_block_is_overwritten_or_removed(tmp_path):
    for attempt in ("", "7"):
        half = tmp_path / f".block_00000.bin.{attempt}.tmp"
        half.write_bytes(b"half of a much longer block" * 1000)
    finish(tmp_path, 1)
    BlockStore(tmp_path, ".bin").remove_temporaries()
    assert (tmp_path / "block_00000.bin").read_bytes() == b"block 0" * 100
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "block_00000.bin",
        "block_00000.json.record",
    ]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_shared_block_is_not_written_to_what_a_link_leads_to(link, tmp_path):
    (tmp_path / "mine").write_text("precious")
    finish(tmp_path / "kept", 1)
    other = BlockStore(tmp_path / "shared", ".bin")
    other.folder.mkdir()
    link(other.folder / f".block_00000.bin.{os.getpid()}.tmp", tmp_path / "mine")
    assert BlockStore(tmp_path / "kept", ".bin").share(0, "key", other) == other.find(0, "key")
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_block_that_cannot_be_made_leaves_nothing(tmp_path):
    def fail(path: Path) -> dict:
        path.write_bytes(b"half")
        raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match="No space left"):
        BlockStore(tmp_path, ".bin").make(0, "key", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["block", "record"])
def test_a_kill_between_block_and_record_costs_that_block_only(place, tmp_path, monkeypatch):
    finish(tmp_path, 1)
    real = os.replace

    def replace(source, target):
        if ("record" in str(target)) == (place == "record"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        BlockStore(tmp_path, ".bin").make(1, "key", Maker(1))
    monkeypatch.undo()
    makers = [Maker(0), Maker(1)]
    for i, maker in enumerate(makers):
        taken(tmp_path, i, maker)
    assert [maker.n_made for maker in makers] == [0, 1]
