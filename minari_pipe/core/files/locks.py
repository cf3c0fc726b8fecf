"""Folder locks that end with their process, and temporary folders that are removed after it."""

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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from minari_pipe.core.files.changes import remove
from minari_pipe.core.files.links import open_file
from minari_pipe.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: renames are atomic, but two writers are not kept apart
    fcntl = None  # type: ignore[assignment]

#: A lock may hold on its own host only (NFS), so folders of other hosts are left alone.
_PREFIX = f".new-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"
_HIDDEN = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")

#: errors of file systems without locks, such as Lustre unless it is mounted with them
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)

#: descriptors of this process's locks, each with its thread and the device and inode of its folder
_held: dict[int, tuple[int, int, int]] = {}


@contextmanager
def exclusive(directory: Path, *, wait: bool = True) -> Iterator[os.stat_result]:
    """Hold a directory's lock, so that two appends cannot overwrite each other's result.

    The lock is on the directory itself: a lock file would count as data of the dataset. On a file
    system without locks, two writers are not kept apart.

    Args:
        directory: the directory to lock.
        wait: wait until the lock is free, instead of failing.

    Yields:
        The ``os.stat`` result of the locked directory; another one may have taken its name
        meanwhile.

    Raises:
        BlockingIOError: the lock is taken, and ``wait`` is false.
        OSError: the file system has no locks, and ``wait`` is false.
        ConfigError: this thread already has the lock, and would wait for itself.
    """
    if fcntl is None:
        yield os.stat(directory)
        return
    # O_DIRECTORY: do not wait for a FIFO in its place
    handle = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    status = os.fstat(handle)
    holder = (threading.get_ident(), status.st_dev, status.st_ino)
    waits_for_itself = wait and holder in _held.values()
    _held[handle] = holder
    try:
        if waits_for_itself:
            raise ConfigError(
                f"{directory} is already being changed by this thread; let the first change "
                "finish, such as an append whose episodes come from a generator"
            )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if not wait or error.errno not in _NO_LOCKS:
                raise
        yield status
    finally:
        _unlock(handle)


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """Keep out programs that lock a file to write to it, as libhdf5 does; they fail meanwhile.

    Args:
        path: the file.

    Yields:
        Whether they are kept out; False if one of them writes to the file already, or if there are
        no locks.
    """
    if fcntl is None:
        yield False
        return
    handle = open_file(path, os.O_RDONLY, 0)
    status = os.fstat(handle)
    _held[handle] = (threading.get_ident(), status.st_dev, status.st_ino)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        _unlock(handle)


def _unlock(handle: int) -> None:
    if handle in _held:
        del _held[handle]
        # closing is not enough: a child forked while the handle was new holds it too
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _let_go() -> None:
    """Close the parent's locks, which would otherwise last as long as this forked child."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def hidden_folder(directory: Path) -> Iterator[Path]:
    """Yield a new hidden folder in ``directory``, and remove it at the exit unless it was moved.

    The next process on this host that makes such a folder removes those of killed processes.
    """
    with ExitStack() as stack:
        with exclusive(directory):  # no other process sees the folder before it is locked
            _remove_abandoned(directory)
            folder = directory / f"{_PREFIX}{secrets.token_hex(8)}"
            stack.callback(remove, folder)
            folder.mkdir()
            stack.enter_context(exclusive(folder))
        yield folder


@contextmanager
def common_folder(directory: Path, name: str) -> Iterator[Path]:
    """Yield the hidden folder of this name in ``directory``, made if missing, to one at a time.

    The next holder finds what the one before left in it, even if that was killed. A holder that
    no longer needs the folder removes it.
    """
    folder = directory / f".{name}"
    with ExitStack() as stack:
        while not _hold_common(folder, stack):
            stack.close()
        yield folder


def _hold_common(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder, made if missing; return False if its last holder removed it meanwhile.

    Raises:
        FileExistsError: it is not a folder.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "exists and is not a folder", str(folder))
        locked = stack.enter_context(exclusive(folder))
        # while it is locked, its inode number cannot be reused
        return folder.lstat().st_ino == locked.st_ino
    except FileNotFoundError:
        return False


def _remove_abandoned(directory: Path) -> None:
    if fcntl is None:  # no lock shows whether its process is alive
        return
    for name in filter(_HIDDEN.fullmatch, os.listdir(directory)):
        place = directory / name
        locked = nullcontext() if place.is_symlink() else exclusive(place, wait=False)
        with suppress(OSError), locked:
            remove(place)
