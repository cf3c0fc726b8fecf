"""A power failure at any moment of an append leaves the old dataset or the new one.

The recording of an append has the state of all files after each system call that changes names or
writes a file to the disk. What a failure leaves is made from it: names as they were at some moment
since the last ``fsync`` of a folder, since file systems with a journal keep their order; of each
file, any mixture of sectors written since its last ``fsync``.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minari_pipe.core.files import words
from minari_pipe.storage.hdf5 import storage
from tests.conftest import FULL
from tests.support.appends import append, check, created

SECTOR = 512
N_FAILURES = 24 if FULL else 2
"""At each moment of an append."""

pytestmark = pytest.mark.filterwarnings("ignore")


class State(NamedTuple):
    """Files and folders at one moment, each file by a number of its own."""

    folders: frozenset[str]
    files: dict[str, int]
    contents: dict[int, bytes]


class Recording:
    """The states of a folder, and what was known to be on the disk at each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[State] = []
        self.synced: list[dict[int, int]] = []
        """Of each state: that in which a file, or all names (-1), were last written to the disk."""
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._take()

    def _take(self, synced: int | None = None) -> None:
        folders, files, contents, inodes = set(), {}, {}, {}
        for top, _, names in os.walk(self.folder):
            folders.add(os.path.relpath(top, self.folder))
            for name in names:
                path = os.path.join(top, name)
                inode = os.stat(path).st_ino
                if inode not in self._numbers:
                    self._next += 1
                inodes[inode] = self._numbers.get(inode, self._next)
                files[os.path.relpath(path, self.folder)] = inodes[inode]
                with open(path, "rb") as file:
                    contents[inodes[inode]] = file.read()
        self._numbers = inodes  # a new file may get the inode of one that is gone
        state = State(frozenset(folders), files, contents)
        if self.states and state == self.states[-1] and synced is None:
            return
        known = dict(self.synced[-1]) if self.synced else dict.fromkeys([-1, *contents], 0)
        if synced is not None:
            known[self._numbers.get(synced, -1)] = len(self.states)
        self.states.append(state)
        self.synced.append(known)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Record what happens meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink"):
                patch.setattr(os, name, self._recording(name, getattr(os, name)))
            yield
        self._take()

    def _recording(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def recording(*args: Any, **kwargs: Any) -> Any:
            self._take()
            found = real(*args, **kwargs)
            self._take(os.fstat(args[0]).st_ino if name == "fsync" else None)
            return found

        return recording

    def leave(self, target: Path, end: int, rng: random.Random) -> None:
        """Write to a new folder what a power failure in this state may leave."""
        known = self.synced[end]
        named = self.states[rng.randint(known[-1], end)]
        for folder in sorted(named.folders):
            (target / folder).mkdir(parents=True, exist_ok=True)
        for name, number in named.files.items():
            since = range(known.get(number, end + 1), end + 1)
            contents = [self.states[at].contents for at in since]
            states = [found[number] for found in contents if number in found] or [b""]
            (target / name).write_bytes(_torn(states, rng))


def _torn(states: list[bytes], rng: random.Random) -> bytes:
    """Return any mixture of the sectors of a file that was written since it was on the disk."""
    size = rng.choice([len(states[0]), len(states[-1])])
    found = bytearray(size)
    for at in range(0, size, SECTOR):
        here = rng.choice([states[0], states[-1], rng.choice(states)])[at : at + SECTOR]
        found[at : at + len(here)] = here[: size - at]
    return bytes(found)


@pytest.mark.parametrize(
    ("data_format", "before", "large"),
    [("hdf5", 0, 2**23), ("hdf5", 0, 0), ("hdf5", 1, 2**23), ("arrow", 0, 0)],
    ids=["first append", "first append to a large file", "later append", "arrow"],
)
def test_a_power_failure_leaves_the_old_dataset_or_the_new_one(
    data_format: str, before: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_LARGE", large)
    # The recording opens files, too, and would wait 45 s for the user that waits for it.
    monkeypatch.setattr(words, "_only_user", nullcontext)
    place = created(8, data_format=data_format)
    for _ in range(before):
        append(1)
    recording = Recording(place)
    with recording.going_on():
        append(2)
    seen = set()
    for number in range(len(recording.states) * N_FAILURES):
        root, end = tmp_path / str(number), number // N_FAILURES
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
        recording.leave(root / "aa/b-v0", end, random.Random(number))
        count = check({8 + before, 10 + before})
        seen.add(count)
        append(1)  # goes on from there
        assert check({count + 1}) == count + 1
    assert len(seen) == 2
    assert len(recording.states) > 12


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_disk_that_fails_when_it_is_synced_leaves_what_an_error_says(
    data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told of an error may repeat the append, which must not double it."""
    created(8, data_format=data_format)
    sync, count = os.fsync, 8
    for failing in range(40):
        calls = itertools.count()

        def failing_sync(handle: int, failing: int = failing, calls: Any = calls) -> None:
            if next(calls) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing_sync)
            try:
                append(1)
                count += 1
            except OSError:
                pass
        assert check({count}) == count
        if next(calls) <= failing:
            break
    assert failing > 3
