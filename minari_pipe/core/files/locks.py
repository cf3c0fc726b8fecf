"""Locks on folders, which end with their process, and folders that do not outlive it for long."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from minari_pipe.core.files.changes import remove
from minari_pipe.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: renames stay atomic, two writers at once are not held apart
    fcntl = None  # type: ignore[assignment]

#: A lock may hold on its own host only (NFS), so what is of another host is not judged by it.
_PREFIX = f".new-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"
_HIDDEN = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")

#: what file systems without locks answer, such as Lustre unless it is mounted with them
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)

#: handles of the locks of this process, with the thread and the folder of each
_held: dict[int, tuple[int, int, int]] = {}


@contextmanager
def exclusive(directory: Path, *, wait: bool = True) -> Iterator[os.stat_result]:
    """Hold a directory's lock, so that two appends cannot overwrite each other's result.

    The lock is on the directory itself: a lock file would count as data of the dataset. On a file
    system without locks, two writers at once are not held apart.

    Args:
        directory: what to lock.
        wait: until whoever has the lock gives it up, or dies.

    Yields:
        What the system knows of the directory that is locked; meanwhile there may be another one
        of this name.

    Raises:
        BlockingIOError: somebody has it, and ``wait`` is false.
        OSError: there are no locks, and ``wait`` is false.
        ConfigError: this very thread has it, and would wait for itself.
    """
    if fcntl is None:
        yield os.stat(directory)
        return
    # a pipe in its place is not waited for
    handle = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    status = os.fstat(handle)
    holder = (threading.get_ident(), status.st_dev, status.st_ino)
    waits_for_itself = wait and holder in _held.values()
    _held[handle] = holder
    try:
        if waits_for_itself:
            raise ConfigError(
                f"{directory} is being changed already, by the code that changes it now; let the "
                "first change end, such as an append whose episodes come from a generator"
            )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if not wait or error.errno not in _NO_LOCKS:
                raise
        yield status
    finally:
        if handle in _held:
            del _held[handle]
            # closing would not do: a child that was forked when the handle was new has it too
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _let_go() -> None:
    """Close the locks of the parent, which else would last as long as this forked child."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def hidden_folder(directory: Path) -> Iterator[Path]:
    """Yield a new hidden folder in ``directory``, which is removed at the exit unless it moved.

    What a killed process left behind is removed when the next one on its host makes such a folder.
    """
    with ExitStack() as stack:
        with exclusive(directory):  # so that none is seen before it has its lock
            _remove_abandoned(directory)
            folder = directory / f"{_PREFIX}{secrets.token_hex(8)}"
            stack.callback(remove, folder)
            folder.mkdir()
            stack.enter_context(exclusive(folder))
        yield folder


@contextmanager
def common_folder(directory: Path, name: str) -> Iterator[Path]:
    """Yield the hidden folder of this name in ``directory`` to one at a time, made if missing.

    Whoever comes next finds what the one before left in it, also if that was killed; one that has
    no more use for it removes it.
    """
    folder = directory / f".{name}"
    with ExitStack() as stack:
        while not _hold_common(folder, stack):
            stack.close()
        yield folder


def _hold_common(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder, made if missing; false if who had it removes it meanwhile.

    Raises:
        FileExistsError: it is no folder.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "exists and is no folder", str(folder))
        locked = stack.enter_context(exclusive(folder))
        # as long as it is locked, no other folder gets its number
        return folder.lstat().st_ino == locked.st_ino
    except FileNotFoundError:
        return False


def _remove_abandoned(directory: Path) -> None:
    if fcntl is None:  # nobody knows whether its process lives
        return
    for name in filter(_HIDDEN.fullmatch, os.listdir(directory)):
        with suppress(OSError), exclusive(directory / name, wait=False):
            remove(directory / name)
