"""Create, move and remove files and folders, never the targets of symlinks."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from minari_pipe.core.files.links import (
    HAS_DESCRIPTORS,
    IS_LINK,
    PathLike,
    open_file,
    refuse_link,
    refuse_links,
)
from minari_pipe.errors import TrustError

#: errors of file systems that write to no disk of this machine, such as some of FUSE
_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
#: more files than this are written to the disk in one call, with all others of the file system
_MOST_SYNCED = 32


def own_folder(path: Path) -> Path:
    """Create a folder that only this user can write to, where all users may have one; return it.

    Raises:
        TrustError: another user owns it, or it is a symlink.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as common:
        ...     oct(own_folder(Path(common, "of-ada")).stat().st_mode)
        '0o40700'
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
        raise TrustError(f"{path} on {platform.node()} does not belong to this user; remove it")
    return path


def remove_folder(path: PathLike) -> None:
    """Remove a folder of any depth; ``shutil.rmtree`` calls itself for each nested folder.

    Raises:
        OSError: something in it cannot be removed.
    """
    try:
        shutil.rmtree(path)
        return
    except OSError:
        if not HAS_DESCRIPTORS:
            raise
    except RecursionError:
        if not HAS_DESCRIPTORS:
            problem = "is nested too deep to be removed"
            raise OSError(errno.ENAMETOOLONG, problem, os.fspath(path)) from None
    with _folder(os.fspath(path)) as top:
        _flatten(top)
        for entry in list(os.scandir(top.handle)):
            if _is_folder(entry):
                shutil.rmtree(entry.name, dir_fd=top.handle)
            else:
                os.unlink(entry.name, dir_fd=top.handle)
    os.rmdir(path)


def _flatten(top: _Folder) -> None:
    """Move all nested folders to the top level, each before its contents are read."""
    pending = [entry.name for entry in os.scandir(top.handle) if _is_folder(entry)]
    while pending:
        with _folder(os.path.join(top.path, pending.pop()), top) as inner:
            for name in [entry.name for entry in os.scandir(inner.handle) if _is_folder(entry)]:
                pending.append(secrets.token_hex(8))
                os.rename(name, pending[-1], src_dir_fd=inner.handle, dst_dir_fd=top.handle)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def remove(path: PathLike) -> None:
    """Remove a file or a folder if it exists; of a symlink, remove only the link.

    ``shutil.rmtree`` waits for a FIFO, and leaves a symlink.
    """
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            with suppress(OSError):
                remove_folder(path)
        else:
            os.unlink(path)


@contextmanager
def new_file(path: PathLike) -> Iterator[int]:
    """Create a file in place of what a killed process or a stranger left under its name.

    Yields:
        The descriptor, which is closed at the exit.

    Raises:
        OSError: it cannot be created, or another process creates it at the same time.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield handle
    finally:
        with suppress(OSError):  # already closed
            os.close(handle)


def write_new(path: PathLike, data: bytes) -> None:
    """Write a file in place of whatever is there, even a symlink; see :func:`new_file`."""
    with new_file(path) as handle, open(handle, "wb", closefd=False) as file:
        file.write(data)


def sync_below(folder: PathLike) -> None:
    """Write a new folder and all that is in it to the disk, so that a power failure keeps it.

    Raises:
        OSError: the disk reports an error.
    """
    files = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
    if len(files) > _MOST_SYNCED and _sync_file_system(folder):
        return
    for path in files:
        _sync(open_file(path, os.O_RDONLY, 0))
    for top, _, _ in os.walk(folder, topdown=False):
        sync_folder(top)


def sync_folder(folder: PathLike) -> None:
    """Write the names in a folder to the disk.

    Raises:
        OSError: the disk reports an error.
    """
    if not HAS_DESCRIPTORS:
        return  # Windows writes them with the files
    _sync(os.open(folder, os.O_RDONLY))


def _sync(handle: int) -> None:
    """Write what is open to the disk, if its file system can, and close it."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)


def _sync_file_system(folder: PathLike) -> bool:
    """Write all of a folder's file system to the disk, if the system has such a call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        return int(call(handle)) == 0
    finally:
        os.close(handle)


def move_below(source: PathLike, target: PathLike) -> None:
    """Move a folder's contents into another; merge folders that both have, and move top files last.

    Args:
        source: a folder, not a symlink to one; its empty folders remain.
        target: a folder that the user named, by symlinks or not.

    Raises:
        LinkError: ``source`` is or holds a symlink, or ``target`` has one in place of a folder.
    """
    with _folder(os.fspath(source)) as old, _folder(os.fspath(target), named=True) as new:
        _move(old, new)


@dataclass(frozen=True)
class _Folder:
    """A folder: opened, or only checked where a system has no descriptors of folders."""

    path: str
    handle: int | None

    def at(self, name: str) -> str:
        """Return how to name an entry in a call that is also given ``handle``."""
        return os.path.join(self.path, name) if self.handle is None else name


def _move(source: _Folder, target: _Folder) -> None:
    with os.scandir(source.path if source.handle is None else source.handle) as found:
        entries = sorted(found, key=lambda entry: (not entry.is_dir(), entry.name))
    handles = {"src_dir_fd": source.handle, "dst_dir_fd": target.handle}
    for entry in entries:
        if entry.is_symlink():
            refuse_link(os.path.join(source.path, entry.name))
    for name, is_folder in [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]:
        old, new = source.at(name), target.at(name)
        if not is_folder:
            os.replace(old, new, **handles)
            continue
        try:  # move a new folder as a whole, which formats with many small ones need
            os.rename(old, new, **handles)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            inner = [_folder(os.path.join(f.path, name), f) for f in (source, target)]
            with inner[0] as old_folder, inner[1] as new_folder:
                _move(old_folder, new_folder)


@contextmanager
def _folder(path: str, within: _Folder | None = None, *, named: bool = False) -> Iterator[_Folder]:
    if not HAS_DESCRIPTORS:
        if not named:
            refuse_links(path, os.path.dirname(path))
        yield _Folder(path, None)
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if named else os.O_NOFOLLOW)
    try:
        name, handle = (path, None) if within is None else (os.path.basename(path), within.handle)
        opened = os.open(name, flags, dir_fd=handle)
    except OSError as error:
        if error.errno in IS_LINK:
            refuse_links(path, os.path.dirname(path))
        error.filename = path
        raise
    try:
        yield _Folder(path, opened)
    finally:
        os.close(opened)
