"""Change one word of a file in place, as the moment at which a transaction is committed.

The stage of a transaction can hold a record of a word of eight bytes. When the stage has become the
commit, the word is written, at once for any reader. The commit counts only if the file has it;
before that, whoever reads finds the old state of all files, and the next change drops the commit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path

from minari_pipe.core.files.changes import sync_folder, write_new
from minari_pipe.core.files.links import open_below
from minari_pipe.core.files.names import is_file_name
from minari_pipe.errors import CorruptDatasetError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_RECORD = ".words"
_WORD = struct.Struct("<Q")
#: most bytes of a record, which may come from a stranger
_LARGEST = 4096
#: numbers of the file systems of bcachefs, btrfs, ext2 to ext4, f2fs, overlayfs, tmpfs, xfs and zfs
_LOCAL = frozenset(
    {
        *(0xCA451A4E, 0x9123683E, 0xEF53, 0xF2F52010),
        *(0x794C7630, 0x01021994, 0x58465342, 0x2FC12FC1),
    }
)


class InUseError(Exception):
    """A file is open elsewhere."""


@dataclass(frozen=True)
class Word:
    """A word of a file in the directory of a transaction.

    Attributes:
        name: name of the file.
        place: offset of the word; all its bytes are in one cache line of 64 bytes.
        value: the new value.
        size: if not 0, the file is made so long first, with zeros, and the word is written only if
            no other program has the file open, as it may have seen where it ended.
    """

    name: str
    place: int
    value: int
    size: int = 0

    def is_in(self, path: Path) -> bool:
        """Return whether a file has the word.

        Raises:
            FileNotFoundError: there is no such file.
        """
        handle = open_below(path, path.parent)
        try:
            return os.pread(handle, _WORD.size, self.place) == _WORD.pack(self.value)
        finally:
            os.close(handle)


def stage_word(stage: Path, word: Word) -> None:
    """Record the word that the commit of a stage writes.

    All that it refers to must be on the disk when the transaction ends.
    """
    write_new(stage / _RECORD, json.dumps([*astuple(word)]).encode())


def is_written(commit: Path, directory: Path) -> bool:
    """Return whether a commit counts: it changes no word, or the word is written.

    Raises:
        CorruptDatasetError: its record is damaged.
    """
    word = _recorded(commit)
    if word is None:
        return True
    try:
        return word.is_in(directory / word.name)
    except FileNotFoundError:
        return False


def write_word(commit: Path, directory: Path) -> None:
    """Write the word that a commit records.

    Raises:
        CorruptDatasetError: the record is damaged, or its file has several names.
        InUseError: another program has the file open, which must be closed for this word.
        OSError: it cannot be written.
    """
    word = _recorded(commit)
    if word is None:
        return
    sync_folder(directory)  # the word must not be on the disk before the commit is
    path = directory / word.name
    handle = open_below(path, directory, os.O_RDWR)
    try:
        if os.fstat(handle).st_nlink > 1:
            raise CorruptDatasetError(f"{path} has several names; copy it before it is changed")
        old = os.pread(handle, _WORD.size, word.place)
        if word.size:
            os.ftruncate(handle, max(word.size, os.fstat(handle).st_size))
            os.fsync(handle)
        with _only_user(handle) if word.size else nullcontext():
            try:
                os.pwrite(handle, _WORD.pack(word.value), word.place)
                os.fsync(handle)
            except BaseException:  # whoever is told of an error must be able to try again
                os.pwrite(handle, old, word.place)
                raise
    finally:
        os.close(handle)


@contextmanager
def _only_user(handle: int) -> Iterator[None]:
    """Be the only one who has a file open; who opens it meanwhile waits.

    Raises:
        InUseError: another program has it open, or the system does not say.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        raise InUseError
    try:
        # the signal that says that somebody waits; by default, it is ignored
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        raise InUseError from None
    try:
        yield
    finally:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def remove_record(commit: Path) -> None:
    """Remove the record of a commit whose word is written."""
    (commit / _RECORD).unlink(missing_ok=True)


def _recorded(commit: Path) -> Word | None:
    try:
        handle = open_below(commit / _RECORD, commit)
    except FileNotFoundError:
        return None
    try:
        content = os.read(handle, _LARGEST)
    finally:
        os.close(handle)
    try:
        word = Word(*json.loads(content))
        if not is_file_name(word.name) or "/" in word.name:
            raise ValueError
        if any(type(n) is not int or not 0 <= n < 2**63 for n in astuple(word)[1:]):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise CorruptDatasetError(f"{commit / _RECORD} is damaged; remove {commit}") from None
    return word


def can_commit(path: Path) -> bool:
    """Return whether a word of a file may be the commit of a change.

    Every process must see it at once, and a lock must keep other writers out. So the file has one
    name, may be written, and is on a file system of this machine.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not os.access(path, os.W_OK):
        return False
    return sys.platform == "linux" and _file_system(path) in _LOCAL


def _file_system(path: Path) -> int | None:
    """Return the number of the kind of a file system, as Linux's ``statfs`` has it."""
    libc, found = ctypes.CDLL(None, use_errno=True), (ctypes.c_long * 64)()
    return found[0] if libc.statfs(os.fsencode(path), found) == 0 else None
