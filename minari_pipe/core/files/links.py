"""Refuse symlinks below a folder that the user named; the folder itself may be reached by one.

Datasets and workspaces come from strangers, and a symlink in one could have a file of the user's
read, published, moved or overwritten. So a path below a folder is opened component by component,
each relative to the descriptor of the one before, and fails at a symlink, even at one that replaces
a folder meanwhile. On systems without such descriptors, each component is checked first.

DVC makes symlinks to files of its cache if the user's own settings ask for them;
:func:`allow_links_into` names that cache. Such symlinks are followed to read, never to write.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from minari_pipe.errors import ConfigError, DatasetNotFoundError, LinkError, MinariPipeError

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]

HAS_DESCRIPTORS = (
    hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd
)
#: with O_NONBLOCK, opening a FIFO in the place of a file does not wait
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)
#: errors for a symlink with O_NOFOLLOW; some systems raise others with O_DIRECTORY
IS_LINK = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, getattr(errno, "EFTYPE", errno.ELOOP))

#: holds a path to each file that this process has opened, on Linux
_OPENED = "/proc/self/fd"

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

#: maximum depth of nested folders, in datasets and workspaces alike
DEEPEST = 64

#: maximum number of folders kept open; a process may typically open a thousand files of all kinds
_MOST_KEPT = 128
#: Linux ioctl FS_IOC_GETVERSION: a number that differs if another file reuses an inode number
_GENERATION = 0x80087601

#: resolved folders into which symlinks may lead
_allowed: list[str] = []


def allow_links_into(folder: PathLike) -> bool:
    """Allow symlinks below the user's folders to files of another; return whether that is new."""
    place = os.path.realpath(folder)
    is_new = place not in _allowed
    if is_new:
        _allowed.append(place)
    return is_new


def expand_user(path: PathLike) -> Path:
    """Expand ``~`` or ``~name`` at the start of a path to the home of that user.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{os.fspath(path)!r}: this machine has no user of that name; for a folder whose name "
            f"begins with ~, write ./ before it"
        ) from None


def replaced(path: PathLike) -> DatasetNotFoundError:
    """Return the error for a dataset that was replaced by another one."""
    return DatasetNotFoundError(
        f"{os.fspath(path)} was replaced since it was opened, for example by a download. Load "
        "the dataset again"
    )


class OpenedFolder:
    """A folder opened without following symlinks; what is opened through it belongs to it.

    A new folder may reuse the inode number of a removed one, so the folder is kept open, unless
    too many already are. Otherwise, and in another process, its path is opened again, and the
    file system's generation number shows whether it is the same folder.
    """

    _n_kept = 0

    def __init__(
        self,
        path: PathLike,
        below: PathLike | None = None,
        identity: tuple[int, int] | None = None,
        generation: int | None = None,
    ) -> None:
        """Open a folder.

        Args:
            path: the folder; it may itself be a symlink to another place in ``below``.
            below: the folder that the user named, by symlinks or not; None if it is ``path``.
            identity: device and inode number of the expected folder, if it was opened before.
            generation: distinguishes it from a later folder with the same inode number.

        Raises:
            LinkError: a symlink leads out of ``below``.
            OSError: the folder does not exist.
        """
        self._path, self._below = os.fspath(path), below
        self.handle: int | None = None
        self._generation = generation
        """None while the folder is kept open, because its inode number cannot be reused."""
        if not HAS_DESCRIPTORS:
            found = os.stat(path) if below is None else _resolved_status(path, below)
        else:
            handle = _walk(self._path, self._below)
            found = os.fstat(handle)
            if OpenedFolder._n_kept < _most_kept() and identity is None:
                OpenedFolder._n_kept += 1
                self.handle = handle
            else:
                if identity is None:
                    self._generation = _generation(handle)
                os.close(handle)
        self.identity = identity or (found.st_dev, found.st_ino)

    def __fspath__(self) -> str:
        return self._path

    def check(self) -> None:
        """Raise if another folder has taken the place of this one.

        Raises:
            DatasetNotFoundError: the path leads to another folder.
        """
        try:
            if self._generation is not None:
                os.close(self.reopened())
                return
            found = os.stat(self._path)
        except DatasetNotFoundError:
            raise
        except OSError:
            return  # the read that follows reports it
        if (found.st_dev, found.st_ino) != self.identity:
            raise replaced(self._path)

    def kept(self) -> int | None:
        """Return the descriptor, or None if it was closed, as daemons do, and its number reused."""
        if self.handle is not None:
            with suppress(OSError):
                found = os.fstat(self.handle)
                if (found.st_dev, found.st_ino) == self.identity:
                    return self.handle
            self.handle = None
            OpenedFolder._n_kept -= 1
        return None

    def reopened(self) -> int:
        """Return a new descriptor of the folder.

        Raises:
            DatasetNotFoundError: another folder has taken its place.
            OSError: it does not exist any more.
        """
        handle = _walk(self._path, self._below)
        found = os.fstat(handle)
        is_same = (found.st_dev, found.st_ino) == self.identity
        if not is_same or self._generation not in (None, _generation(handle)):
            os.close(handle)
            raise replaced(self._path)
        return handle

    def __reduce__(self) -> tuple[type[OpenedFolder], tuple[object, ...]]:
        kept = self.kept()
        generation = self._generation if kept is None else _generation(kept)
        return OpenedFolder, (self._path, self._below, self.identity, generation)

    def __del__(self) -> None:
        if "handle" in vars(self) and (handle := self.kept()) is not None:
            os.close(handle)
            OpenedFolder._n_kept -= 1


def _most_kept() -> int:
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_KEPT if limit < 0 else min(_MOST_KEPT, limit // 4)  # below 0: unlimited


def _generation(handle: int) -> int:
    """Return the generation number of a folder, or 0 if the file system has none."""
    if fcntl is None or sys.platform != "linux":
        return 0
    try:
        folder = os.open(os.curdir, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
    except OSError:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(folder, _GENERATION, bytes(8)), sys.byteorder)
    except OSError:
        return 0
    finally:
        os.close(folder)


def refuse_links(path: PathLike, below: PathLike) -> None:
    """Raise if a component of a path is a symlink; a missing component is not one.

    Args:
        path: a path in ``below`` that is about to be read or written.
        below: the folder that the user named, by symlinks or not.

    Raises:
        LinkError: a component is a symlink; the message names it.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        status_below(path, below)


def refuse_link(link: str) -> NoReturn:
    """Raise for a path that is known to be a symlink.

    Raises:
        LinkError: always; the message names the symlink and its target.
    """
    try:
        target = os.readlink(link)
    except OSError:
        target = "a path that is gone"
    raise LinkError(
        f"{link} is a symlink to {target}; symlinks in a dataset, a workspace or a remote are "
        f"not followed: remove the symlink, or replace it with the file or folder it points to"
    )


def status_below(path: PathLike, below: PathLike) -> os.stat_result:
    """Return the ``os.stat`` result of a path in a folder.

    Raises:
        LinkError: a component below ``below`` is a symlink.
        OSError: nothing is there, or it cannot be accessed.
    """
    *folders, name = _parts(path, below) or [os.curdir]
    try:
        if not HAS_DESCRIPTORS:
            _refuse_first_link(path, below)
            return os.stat(path)
        folder = _descend(folders, below)
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        finally:
            _close(folder, below)
        if not stat.S_ISLNK(status.st_mode):
            return status
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except MinariPipeError:
        raise
    except OSError as error:
        if error.errno in IS_LINK:
            _refuse_first_link(path, below)
            if _led_to(path) is not None:
                return os.stat(path)
        error.filename = os.fspath(path)
        raise


def _refuse_first_link(path: PathLike, below: PathLike) -> None:
    """Raise for the first symlink of a path that does not lead to a file of an allowed folder."""
    place = os.fspath(below)
    for part in _parts(path, below):
        place = os.path.join(place, part)
        if os.path.islink(place) and _led_to(place) is None:
            refuse_link(place)


def open_below(path: PathLike, below: PathLike, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file in a folder, as ``os.open`` does.

    Args:
        path: the file, in ``below``.
        below: the folder that the user named, by symlinks or not.
        flags: flags of ``os.open``.
        mode: permissions of a new file.

    Raises:
        LinkError: a component below ``below`` is a symlink.
        OSError: it cannot be opened, or is not a file.
    """
    *folders, name = _parts(path, below)
    try:
        if not HAS_DESCRIPTORS:
            refuse_links(path, below)
            return open_file(path, flags, mode)
        if not folders and not isinstance(below, OpenedFolder):
            return open_file(path, flags, mode)
        folder = _descend(folders, below)
        try:
            return open_file(name, flags, mode, folder, path)
        finally:
            _close(folder, below)
    except OSError as error:
        if error.errno in IS_LINK:
            refuse_links(path, below)
            if flags & _WRITING == 0 and (cache := _led_to(path)) is not None:
                return open_below(os.path.realpath(path), cache, flags)
        if error.filename is not None:
            error.filename = os.fspath(path)
        raise


def _descend(folders: Iterable[str], below: PathLike) -> int:
    """Open nested folders one after another, without following a symlink except at the first.

    Returns:
        The descriptor of the last folder, for :func:`_close`.
    """
    kept = None
    if not isinstance(below, OpenedFolder):
        folder = os.open(below, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
    else:
        kept = below.kept()
        folder = below.reopened() if kept is None else kept
    try:
        for part in folders:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            if folder != kept:
                os.close(folder)
            folder = inner
    except BaseException:
        if folder != kept:
            os.close(folder)
        raise
    return folder


def _walk(path: str, below: PathLike | None) -> int:
    """Open a folder that may itself be a symlink to a place in ``below``; see :func:`_descend`.

    Raises:
        LinkError: a symlink leads out of ``below``.
    """
    if below is None:
        return _descend((), path)
    try:
        return _descend(_parts(path, below), below)
    except OSError as error:
        error.filename = path
        if error.errno not in IS_LINK:
            raise
        _refuse_first_link(os.path.dirname(path), below)
        if not os.path.islink(path):
            raise
    end, top = os.path.realpath(path), os.path.realpath(below)
    if not end.startswith(top + os.sep):
        refuse_link(path)
    return _descend(_parts(end, top), top)


def _close(folder: int, below: PathLike) -> None:
    """Close a descriptor of :func:`_descend`, unless its folder is kept open."""
    if not isinstance(below, OpenedFolder) or folder != below.handle:
        os.close(folder)


def path_of(handle: int) -> str | None:
    """Return a path to what is opened, for libraries that open paths; None where there is none."""
    return f"{_OPENED}/{handle}" if os.path.isdir(_OPENED) else None


@contextmanager
def held_folder(folder: PathLike, below: PathLike, *, may_be_link: bool = False) -> Iterator[Path]:
    """Yield a path that leads to this very folder, even if a symlink takes its place meanwhile.

    Only Linux has such paths; on other systems symlinks are refused first.

    Args:
        folder: a folder in ``below``, or ``below`` itself.
        below: the folder that the user named, by symlinks or not.
        may_be_link: the folder itself may be a symlink to another place in ``below``.

    Raises:
        LinkError: a component below ``below`` is a symlink.
        OSError: it is not a folder.
        Exception: any error of the body, with the folder's usual path in its text.
    """
    if not (HAS_DESCRIPTORS and os.path.isdir(_OPENED)):
        if may_be_link:
            _resolved_status(folder, below)
        else:
            refuse_links(folder, below)
        yield Path(folder)
        return
    try:
        if may_be_link:
            handle = _walk(os.fspath(folder), below)
        else:
            handle = _descend(_parts(folder, below), below)
    except OSError as error:
        if error.errno in IS_LINK:
            refuse_links(folder, below)
        error.filename = os.fspath(folder)
        raise
    held = f"{_OPENED}/{handle}"
    try:
        yield Path(held)
    except Exception as error:
        named = partial(re.sub, rf"{held}(?!\d)", os.fspath(folder).replace("\\", r"\\"))
        error.args = tuple(named(arg) if isinstance(arg, str) else arg for arg in error.args)
        for key in ("filename", "filename2"):
            if isinstance(name := getattr(error, key, None), str):
                setattr(error, key, named(name))
        raise
    finally:
        _close(handle, below)


def open_files(folder: str, names: Iterable[str], below: PathLike) -> list[int]:
    """Open files of one folder for reading, which is cheaper than opening each from the top.

    Args:
        folder: name of the folder in ``below``.
        names: names of the files.
        below: the folder that the user named, by symlinks or not.

    Raises:
        OSError: a file cannot be opened; if a symlink is the cause, the message does not name it.
    """
    if not HAS_DESCRIPTORS:
        top = os.fspath(below)
        return [open_below(f"{top}/{folder}/{name}", below) for name in names]
    found: list[int] = []
    handle = _descend((folder,), below)
    try:
        for name in names:
            found.append(os.open(name, _CAREFUL, dir_fd=handle))
    except BaseException:
        for opened in found:
            os.close(opened)
        raise
    finally:
        _close(handle, below)
    return found


def opener(below: PathLike) -> Callable[[str, int], int]:
    """Return an ``opener`` for the builtin ``open`` that calls :func:`open_below`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/file"
        ...     with open(path, "w", opener=opener(folder)) as file:
        ...         file.write("text")
        4
    """
    return lambda path, flags: open_below(path, below, flags)


def read_below(path: PathLike, below: PathLike) -> bytes:
    """Return the bytes of a file in a folder; see :func:`open_below`."""
    with open(path, "rb", opener=opener(below)) as file:
        return file.read()


def files_below(folder: PathLike, *, hidden: bool = False) -> Iterator[str]:
    """Yield the paths of all files in a folder, relative to it, with slashes.

    Args:
        folder: a folder that the user named, by symlinks or not.
        hidden: also yield names that begin with a dot: traces of a change, and of desktops.

    Raises:
        LinkError: a file or a folder is a symlink.
    """
    for entry in entries_below(folder, lambda entry: not hidden and entry.name.startswith(".")):
        if not entry.is_dir():
            yield os.path.relpath(entry.path, folder).replace(os.sep, "/")


def entries_below(
    folder: PathLike, skips: Callable[[os.DirEntry[str]], bool] = lambda entry: False
) -> Iterator[os.DirEntry[str]]:
    """Yield the files and folders in a folder, recursively; see :func:`files_below`.

    Entries that another process removes meanwhile are left out.

    Args:
        folder: a folder that the user named, by symlinks or not.
        skips: returns whether to leave out an entry, and everything in it.

    Raises:
        LinkError: an entry is a symlink.
        OSError: folders are nested deeper than :data:`DEEPEST`.
    """
    yield from _entries_below(folder, skips, 0)


def _entries_below(
    folder: PathLike, skips: Callable[[os.DirEntry[str]], bool], depth: int
) -> Iterator[os.DirEntry[str]]:
    if depth > DEEPEST:
        problem = f"is nested more than {DEEPEST} folders deep; move it up, or remove it"
        raise OSError(errno.ENAMETOOLONG, problem, os.fspath(folder))
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if skips(entry):
            continue
        if entry.is_symlink() and _led_to(entry.path) is None:
            refuse_link(entry.path)
        yield entry
        if entry.is_dir():
            yield from _entries_below(entry.path, skips, depth + 1)


def walk(
    top: PathLike, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, but not below :data:`DEEPEST` nested folders.

    ``os.walk`` calls itself for each level.
    """
    start = os.fspath(top).count(os.sep)
    for folder, folders, files in os.walk(top, onerror=onerror):
        if folder.count(os.sep) - start >= DEEPEST:
            folders.clear()
        yield folder, folders, files


def open_file(
    path: PathLike,
    flags: int,
    mode: int,
    folder: int | None = None,
    named: PathLike | None = None,
) -> int:
    """Open a regular file that is not a symlink; messages call it ``named``."""
    handle = os.open(path, flags & ~os.O_TRUNC | _CAREFUL, mode, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{os.fspath(named or path)} is not a regular file")
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _resolved_status(path: PathLike, below: PathLike) -> os.stat_result:
    """Return the status of a folder that may be a symlink to another place in ``below``."""
    if os.path.islink(path):
        if not os.path.realpath(path).startswith(os.path.realpath(below) + os.sep):
            refuse_link(os.fspath(path))
        return os.stat(path)
    return status_below(path, below)


def _parts(path: PathLike, below: PathLike) -> list[str]:
    """Return the components of a path below a folder."""
    place, top = os.fspath(path), os.fspath(below).rstrip(os.sep)
    top = "" if top == os.curdir else top  # a Path drops a leading "."
    parts = [part for part in place[len(top) :].split(os.sep) if part not in ("", ".")]
    if not place.startswith(top) or os.pardir in parts:
        raise OSError(errno.EINVAL, f"is not inside {top}", place)
    return parts


def _led_to(link: PathLike) -> str | None:
    """Return the folder of :func:`allow_links_into` with the file that a symlink leads to."""
    place = os.path.realpath(link) if _allowed else ""
    found = next((folder for folder in _allowed if place.startswith(folder + os.sep)), None)
    return found if found is not None and os.path.isfile(place) else None
