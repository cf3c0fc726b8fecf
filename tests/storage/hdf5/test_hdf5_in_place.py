"""An append to an HDF5 file in place: the old dataset or the new one, whatever ends the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

import minari_pipe
from minari_pipe import EpisodeBuffer, load_dataset
from minari_pipe.core.files import words
from minari_pipe.core.files.checksums import entry_of
from minari_pipe.errors import CorruptDatasetError, LinkError
from minari_pipe.storage.hdf5 import storage
from minari_pipe.storage.hdf5.index import cache, mapped
from minari_pipe.storage.hdf5.writer.layout_root import ROOT_WORD
from tests.conftest import FULL
from tests.support.appends import (
    ID,
    append,
    buffer,
    check,
    check_by_h5py,
    check_episode,
    created,
)

CALLS = ("fsync", "ftruncate", "pwrite", "rename", "replace", "rmdir", "unlink", "writev")

pytestmark = pytest.mark.filterwarnings("ignore")


def killed_at(call: int) -> bool:
    """Append two episodes in another process, and kill it before this call; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            calls = itertools.count()

            def dying(name: str) -> Any:
                real = getattr(os, name)

                def replacement(*args: Any, **kwargs: Any) -> Any:
                    if next(calls) == call:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)

                return replacement

            for name in CALLS:
                setattr(os, name, dying(name))
            append(2)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("before", "large"),
    [(0, 2**23), (0, 0), (1, 2**23)],
    ids=["first append", "first append to a large file", "later append"],
)
def test_a_kill_at_any_call_leaves_the_old_dataset_or_the_new_one(
    before: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_LARGE", large)
    place = created(9)  # with the next one, more than a leaf of HDF5's tree of names holds
    if before:
        append(before)
    count = 9 + before
    shutil.copytree(place, tmp_path / "whole")
    seen = []
    for call in itertools.count():
        was_killed = killed_at(call)
        seen.append(check({count, count + 2}))
        if not was_killed:
            break
        append(1)  # goes on from there
        assert check({seen[-1] + 1}) == seen[-1] + 1
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "whole", place)
    assert seen == sorted(seen) and seen[0] == count and seen[-1] == count + 2
    assert len(seen) > 12


def test_an_append_changes_one_word_of_what_was_in_the_file() -> None:
    """The first append makes a copy that has room for more."""
    path = created(20) / "data/main_data.hdf5"
    append(1)
    content, inode = path.read_bytes(), path.stat().st_ino
    used = json.loads((path.parent.parent / "manifest.json").read_text())["data"][path.name]["size"]
    assert used < len(content)
    for _ in range(5):
        append(1)
    after = path.read_bytes()
    assert path.stat().st_ino == inode
    changed = {place for place in range(used) if content[place] != after[place]}
    assert changed and changed <= set(range(68, 76))
    assert check({26}) == 26
    for _ in range(26, 60):  # until there is no more room, and on from there
        append(1)
    assert path.stat().st_size > len(content)
    assert check({60}) == 60


@pytest.fixture
def path() -> Path:
    """A file of 20 episodes with room for a few more."""
    place = created(19) / "data/main_data.hdf5"
    append(1)
    return place


def in_place(path: Path, count: int = 1) -> bool:
    """Append episodes; whether the file itself grew."""
    with open(path, "rb") as file:  # its inode is not used again meanwhile
        append(count)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())


def test_a_file_with_two_names_or_on_another_kind_of_file_system_is_copied(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_place(path)
    content = path.read_bytes()
    os.link(path, tmp_path / "other name")
    assert not in_place(path)
    assert (tmp_path / "other name").read_bytes() == content
    assert in_place(path)
    with monkeypatch.context() as patch:
        patch.setattr(words, "_file_system", lambda path: 0x6969)  # NFS
        assert not in_place(path)
    assert in_place(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *args, **kwargs: False)
        assert not in_place(path)
    assert check({26}) == 26


def test_the_first_append_to_a_large_file_copies_it_only_if_it_is_open_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage, "_LARGE", 0)
    path = created(20) / "data/main_data.hdf5"
    shutil.copytree(path.parent.parent, tmp_path / "whole")
    inode = path.stat().st_ino
    load_dataset(ID)[3]  # this process does not keep it open for itself
    append(1)
    assert path.stat().st_ino == inode
    assert check({21}) == 21
    assert in_place(path)
    shutil.rmtree(path.parent.parent)
    shutil.copytree(tmp_path / "whole", path.parent.parent)
    with open(path, "rb") as file:
        append(1)
        assert not os.path.samestat(os.fstat(file.fileno()), path.stat())
    assert check({21}) == 21
    shutil.rmtree(path.parent.parent)
    shutil.copytree(tmp_path / "whole", path.parent.parent)
    held = load_dataset(ID)[3].observations
    append(1)
    np.testing.assert_array_equal(held, buffer(3).observations)
    assert check({21}) == 21


def test_episodes_may_come_from_changes_of_another_large_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "_LARGE", 0)
    created(11)
    append(1)
    spaces = {"observation_space": load_dataset(ID).observation_space}
    spaces["action_space"] = load_dataset(ID).action_space
    log = minari_pipe.create_dataset_from_buffers("aa/log-v0", [buffer(0)], **spaces)

    def episodes() -> Iterator[EpisodeBuffer]:
        for number in range(12, 15):
            log.storage.update_episode_metadata([{"note": number}], [0])
            yield buffer(number)

    load_dataset(ID).storage.update_episodes(episodes())
    assert check({15}) == 15


@pytest.mark.parametrize("offset", [0, 16, 504])
def test_a_root_group_in_the_room_of_a_file_is_not_built_upon(path: Path, offset: int) -> None:
    used = json.loads((path.parent.parent / "manifest.json").read_text())["data"][path.name]["size"]
    content = bytearray(path.read_bytes())
    header = struct.unpack_from("<Q", content, ROOT_WORD)[0]
    (top,) = struct.unpack_from("<Q", content, header + 24)
    content[used + offset : used + offset + 544] = content[top : top + 544]
    struct.pack_into("<Q", content, header + 24, used + offset)
    path.write_bytes(content)
    (path.parent.parent / "manifest.json").unlink()
    dataset = load_dataset(ID)
    dataset.update_dataset_from_buffer([buffer(20)])
    for number, episode in enumerate(load_dataset(ID).iterate_episodes()):
        check_episode(number, episode)
    assert check_by_h5py(path, {21}) == 21


def test_a_manifest_hides_no_more_behind_a_file_than_an_append_leaves(path: Path) -> None:
    manifest = path.parent.parent / "manifest.json"
    content = json.loads(manifest.read_text())
    own = content["data"][path.name]
    whole = path.stat().st_size
    few = {"size": 100, "xxh3_128": entry_of(path, size=100)["xxh3_128"], "room": whole - 100}
    for name, entry in (
        (path.name, few),
        (path.name, {**own, "sha256": "0" * 64}),
        (path.name, {**own, "room": 0}),
        (path.name, {**own, "room": True}),
        ("metadata.json", {**content["data"]["metadata.json"], "size": 1, "room": 9}),
    ):
        manifest.write_text(json.dumps({**content, "data": {**content["data"], name: entry}}))
        with pytest.raises(CorruptDatasetError, match="is not a size with checksums"):
            load_dataset(ID, verify=True)


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_zeros_behind_other_files_are_damage(data_format: str) -> None:
    place = created(3, data_format=data_format)
    part = next((place / "data").rglob("part-0.*"))
    part.write_bytes(part.read_bytes() + bytes(64))
    with pytest.raises(CorruptDatasetError, match="bytes, not"):
        load_dataset(ID, verify=True)


def test_zeros_behind_a_file_are_no_damage_and_other_bytes_are(path: Path) -> None:
    assert load_dataset(ID).storage.compact()
    content = path.read_bytes()
    path.write_bytes(content + bytes(5000))  # as a change that was killed leaves it
    assert check({20}) == 20
    append(1)
    assert check({21}) == 21
    assert load_dataset(ID).storage.compact()
    path.write_bytes(path.read_bytes() + bytes(5000) + b"x")
    with pytest.raises(CorruptDatasetError, match="bytes, not"):
        load_dataset(ID, verify=True)


def test_a_program_that_writes_to_the_file_is_kept_out_or_not_overtaken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(path, "r"):
        assert in_place(path)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as libhdf5 does
        assert not in_place(path)
    seen = []

    def opening(*args: Any) -> Any:
        with pytest.raises(BlockingIOError, match="unable to lock file"):
            h5py.File(path, "r+")
        seen.append(args)
        return write(*args)

    write = words.write_word
    monkeypatch.setattr(words, "write_word", opening)
    assert in_place(path)
    assert len(seen) == 1
    assert check({23}) == 23


def test_real_minari_and_h5py_append_to_the_result_and_resize_it(path: Path) -> None:
    assert in_place(path, 2)
    names = ("seed", "observations", "actions", "rewards", "terminations", "truncations")
    given = {name: getattr(buffer(22), name) for name in names}
    theirs = minari.data_collector.EpisodeBuffer(**given, infos={})
    minari.load_dataset(ID).update_dataset_from_buffer([theirs])
    append(1)
    for number, episode in enumerate(load_dataset(ID).iterate_episodes()):
        check_episode(number, episode)
    with h5py.File(path, "r+") as file:
        file["episode_21/rewards"].resize(50, axis=0)
        assert file["episode_21/rewards"].shape == (50,)


def test_what_the_layout_cannot_have_is_written_anew(path: Path) -> None:
    assert in_place(path)
    dataset = load_dataset(ID)
    noted = replace(buffer(21), infos={"note": np.array(["a"] * len(buffer(21).rewards) + ["b"])})
    dataset.update_dataset_from_buffer([noted])
    assert dataset[21].infos["note"][-1] == "b"
    append(1)
    assert check({23}) == 23


def test_an_episode_is_continued_after_an_append_in_place(path: Path) -> None:
    assert in_place(path)
    last = buffer(20)
    more = EpisodeBuffer(
        id=20,
        observations=last.observations[1:],
        actions=last.actions,
        rewards=last.rewards,
        terminations=last.terminations,
        truncations=last.truncations,
        infos={},
    )
    load_dataset(ID).update_dataset_from_buffer([more, buffer(21)])
    dataset = load_dataset(ID, verify=True)
    assert len(dataset[20]) == 2 * len(last.rewards)
    check_episode(21, dataset[21])


@pytest.mark.parametrize("settings", [{"compression": 3}, {"data_format": "arrow"}], ids=str)
def test_other_files_grow_as_before(settings: dict[str, Any]) -> None:
    path = created(20, data_format=settings.get("data_format", "hdf5")) / "data/main_data.hdf5"
    if "compression" in settings:
        compress(path)
    for _ in range(3):
        append(1)
    assert check({23}) == 23
    if "compression" in settings:
        with h5py.File(path) as file:
            assert file["episode_3/rewards"].compression == "gzip"


def compress(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for episode in file.values():
            rewards = episode["rewards"][()]
            del episode["rewards"]
            episode.create_dataset("rewards", data=rewards, maxshape=(None,), compression="gzip")
    entry = json.loads((path.parent.parent / "manifest.json").read_text())
    entry["data"][path.name] = entry_of(path)
    (path.parent.parent / "manifest.json").write_text(json.dumps(entry))


@pytest.mark.parametrize("call", ["writev", "fsync", "pwrite"])
def test_a_full_or_failing_disk_leaves_the_dataset_as_it_was(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    calls = itertools.count()
    for failing in range(8):
        calls = itertools.count()

        def fails(*args: Any, failing: int = failing, calls: Any = calls) -> Any:
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            with contextlib.suppress(OSError):  # the index is optional, so it may be its write
                append(1)
        if check({20 + failing, 21 + failing}) == 20 + failing:
            append(1)
        assert check({21 + failing}) == 21 + failing


def test_damage_where_an_append_goes_on_is_not_signed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    used = json.loads((path.parent.parent / "manifest.json").read_text())["data"][path.name]["size"]
    content[used - 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match="different content"):
        append(1)
    path.write_bytes(content[: used + 100])  # cut
    with pytest.raises(CorruptDatasetError, match="bytes"):
        append(1)


def test_a_record_of_a_stranger_changes_no_other_file(path: Path, tmp_path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_bytes(b"." * 100)
    commit = path.parent / ".minari_pipe-commit"
    for record in (
        '["../secret", 0, 1]',
        '["/etc/passwd", 0, 1]',
        '["x", -1, 1]',
        "[]",
        "9" * 9999,
    ):
        commit.mkdir()
        (commit / ".words").write_text(record)
        with pytest.raises(CorruptDatasetError, match="is damaged; remove"):
            load_dataset(ID)
        with pytest.raises(CorruptDatasetError, match="is damaged; remove"):
            append(1)
        shutil.rmtree(commit)
    commit.mkdir()
    (commit / ".words").symlink_to(secret)
    with pytest.raises(LinkError, match="symlink"):
        load_dataset(ID)
    assert secret.read_bytes() == b"." * 100


def test_a_loop_of_appends_leaves_a_file_that_is_not_much_larger_than_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = created(100) / "data/main_data.hdf5"
    count = 1000 if FULL else 150
    for _ in range(count):
        append(1)
    grown = path.stat().st_size
    assert load_dataset(ID).storage.compact() > 0
    assert path.stat().st_size <= grown <= 1.3 * path.stat().st_size
    assert check({100 + count}) == 100 + count
    assert load_dataset(ID).storage.compact() == 0
    size = path.stat().st_size
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    once = (created(100 + count) / "data/main_data.hdf5").stat().st_size
    assert once == pytest.approx(size, rel=0.01)


def test_readers_go_on_while_a_dataset_is_compacted(path: Path) -> None:
    dataset = load_dataset(ID)
    held = dataset[3]
    assert dataset.storage.compact() > 0
    check_episode(3, held)
    check_episode(4, dataset[4])
    assert check({20}) == 20
    assert not in_place(path)  # there is no room
    assert in_place(path)


def test_another_process_finds_the_index_that_appends_have_extended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        append(1)
    stored = cache._folder() / cache.Stamp.of(path.stat()).name
    records = stored.read_bytes().count(cache._MARK)
    assert records == 5
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_grown", None)
        patch.setattr(mapped, "match_all", lambda *args: pytest.fail("it was built again"))
        mapped.close_mapped()
        assert check({24}) == 24
    content = stored.read_bytes()
    stored.write_bytes(content[:-3])  # as a killed process leaves it
    monkeypatch.setattr(cache, "_grown", None)
    mapped.close_mapped()
    assert check({24}) == 24
    for damage in (content[:40], content + b"?", b"?" * 100, b""):
        stored.write_bytes(damage)
        append(1)
    assert check({28}) == 28
    monkeypatch.setattr(cache, "_MOST_PARTS", 2)
    for _ in range(3):
        append(1)
    assert check({31}) == 31


def test_an_upload_of_a_grown_dataset_is_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_place(path, 3)
    (tmp_path / "remote").mkdir()
    monkeypatch.setenv("MINARI_REMOTE", f"file://{tmp_path / 'remote'}")
    minari_pipe.upload_dataset(ID)
    minari_pipe.delete_dataset(ID)
    minari_pipe.download_dataset(ID)
    assert check({23}) == 23
    append(1)
    assert check({24}) == 24
