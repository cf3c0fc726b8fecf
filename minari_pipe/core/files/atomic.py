"""Files that appear whole or not at all, whoever dies meanwhile, and what their bytes are."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from minari_pipe.core.datasets_root import root_of, writing_below_root
from minari_pipe.core.files.changes import move_below, new_file, remove
from minari_pipe.core.files.links import (
    PathLike,
    files_below,
    held_folder,
    opener,
    refuse_links,
    replaced,
)
from minari_pipe.core.files.locks import exclusive
from minari_pipe.errors import CorruptDatasetError, DatasetNotFoundError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:  # Windows: there is no limit on the size of files
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

_STAGE = ".minari_pipe-stage"
_COMMIT = ".minari_pipe-commit"

#: the request of Linux, and its ``struct space_resv``: type, whence, start, size, reserved
_RESERVE, _SPACE = 0x40305828, struct.Struct("=hh4xqq24x")

MANIFEST = "manifest.json"
"""The file of a dataset that lies beside the directory of its data; a transaction may change it."""
NO_NAMES = frozenset({"", ".", ".."})
"""Parts with which a path leads elsewhere than it says."""
_SETTINGS_FOLDERS = frozenset({".git", "git~1", ".dvc"})
"""Folders in which git and DVC find commands that they run."""


def is_file_name(name: str) -> bool:
    """Whether a stranger may name a file or folder so: it is one of the folder before it, and no
    settings of git's or DVC's, as any file system reads the name.

    Example:
        >>> [is_file_name(name) for name in ("main_data.hdf5", "..", ".git", ".GIT.")]
        [True, False, False, False]
    """
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    read = visible.casefold().partition(":")[0].rstrip(" .")
    return name not in NO_NAMES and "\0" not in name and read not in _SETTINGS_FOLDERS


def sha256_file(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file's bytes, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_all_but(folder: Path, sizes: Mapping[Path, int]) -> None:
    """Keep files below a folder that are going to be written further, and remove all else.

    To write to a link, also a hard one, would be to write to what is elsewhere.

    Args:
        folder: which nobody else works on.
        sizes: the files to keep, unless they have more bytes than this.
    """
    for place, folders, names in os.walk(folder, topdown=False):
        for path in (Path(place, name) for name in (*names, *folders)):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                with suppress(OSError):  # it holds what is kept
                    path.rmdir()
            elif (
                not stat.S_ISREG(status.st_mode)
                or status.st_nlink > 1
                or status.st_size > sizes.get(path, -1)
            ):
                path.unlink()


def read_text(path: Path, below: PathLike | None = None) -> str:
    """Return a file's text, for :func:`current`.

    Args:
        path: the file.
        below: the folder from which no link is followed to it, its own if not given.

    Raises:
        OSError: it cannot be read, is a link, or a pipe or a device, which would be read for ever.
        UnicodeDecodeError: it is not UTF-8.
    """
    with open(path, encoding="utf-8", opener=opener(below or path.parent)) as file:
        return file.read()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` at a clean exit.

    On an error it is removed and ``path`` stays as it was. Its name is fixed, so what a killed
    process left behind gives way to the next attempt.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with new_file(beside):
            pass
        yield beside
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def require_space(path: Path, handle: int, size: int) -> None:
    """Refuse to let a file grow for which the disk, or the limit of the system, has no room.

    So that what cannot be kept is refused before it is written.

    Args:
        path: the file, or one in its folder.
        handle: the file, open; what it has on the disk already needs no more room.
        size: what it is going to have, in bytes.

    Raises:
        OSError: there is no room.
    """
    free = shutil.disk_usage(path.parent).free
    if hasattr(os.fstat(handle), "st_blocks"):
        free += os.fstat(handle).st_blocks * 512
    if size > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


#: of fewer bytes it takes longer to ask for their place than that saves
RESERVED_BYTES = 2**20


def reserve(handle: int, start: int, size: int) -> None:
    """Have the system find the place of bytes on the disk at once, before they are written.

    Writing them costs a quarter less then, from :data:`RESERVED_BYTES` on. Where that is not
    possible, nothing happens. Not for a file that is to replace another one: ext4 writes that to
    the disk at once, so that a failure of the power takes not both, but overlooks what has its
    place already.

    Args:
        handle: the file, open; its size stays as it is.
        start: where the bytes are going to be.
        size: how many.
    """
    if fcntl is not None and sys.platform == "linux":
        with suppress(OSError):
            fcntl.ioctl(handle, _RESERVE, _SPACE.pack(0, os.SEEK_SET, start, size))


@contextmanager
def transaction(directory: Path) -> Iterator[Path]:
    """Yield a folder for new versions of a directory's files; at a clean exit all of them count.

    On an error, or if the process is killed before the exit, the directory is as before. The
    folder becomes the commit in one rename. Its files are then moved to their places, and
    whoever reads meanwhile, or after a kill in between, finds them with :func:`current`; the next
    transaction ends what was broken off. One process has a transaction at a time, others wait.

    Raises:
        DatasetNotFoundError: the directory is not there, or is deleted or replaced meanwhile.
        LinkError: what an earlier change left there is a link.
        ConfigError: it is read-only.
    """
    root = root_of(directory)
    try:
        with (
            held_folder(directory.parent, root or directory.parent) as parent,
            held_folder(directory, root or directory, may_be_link=True) as held,
            exclusive(held) as locked,
        ):
            _require_same(directory, locked)  # another one may have come while it was waited for
            _roll_forward(held, parent if directory.name == "data" else None)
            stage = held / _STAGE
            refuse_links(directory / _STAGE, directory)
            remove(stage)
            with writing_below_root():
                stage.mkdir()
            try:
                yield stage
                _require_same(directory, locked)
                os.rename(stage, held / _COMMIT)
            except BaseException as error:
                shutil.rmtree(stage, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    _require_same(directory, locked)
                raise
            try:
                _roll_forward(held, parent if directory.name == "data" else None)
            except OSError as error:  # an exception would say that nothing was changed
                warnings.warn(
                    f"{directory} is changed, but the new files could not be moved to their "
                    f"places ({error}). The next change moves them; real Minari sees the old ones "
                    "until then",
                    stacklevel=2,
                )
    except FileNotFoundError as error:
        if directory.is_dir():
            raise
        raise DatasetNotFoundError(
            f"The data path {directory} doesn't exist any more; was the dataset deleted?"
        ) from error


def _require_same(directory: Path, locked: os.stat_result) -> None:
    """Raise DatasetNotFoundError if another directory has taken the place of the locked one."""
    if not os.path.samestat(os.stat(directory), locked):
        raise replaced(directory)


def settle(directory: Path) -> None:
    """End a transaction that was broken off, so that the files are what :func:`current` reads.

    Raises:
        LinkError: what it left is a link.
        ConfigError: the directory is read-only.
    """
    if not is_left(directory):
        return
    root = root_of(directory)
    with (
        held_folder(directory.parent, root or directory.parent) as parent,
        held_folder(directory, root or directory, may_be_link=True) as held,
        exclusive(held),
        writing_below_root(),
    ):
        _roll_forward(held, parent if directory.name == "data" else None)


def staged_manifest(stage: Path) -> Path:
    """Where a transaction finds a new manifest, which is no file of its directory."""
    return stage / f".{MANIFEST}"


def current(path: Path, read: Callable[[Path], T], *, directory: Path | None = None) -> T:
    """Return ``read`` of a file as the last transaction of its directory left it.

    Args:
        path: the file, in the directory of the transactions; or its manifest.
        read: opens or reads the path that it is given; FileNotFoundError says it is not there.
        directory: where the transactions are, if it is not the file's own folder.

    Raises:
        FileNotFoundError: there is no such file.
        LinkError: a link stands where a transaction leaves its files.
    """
    directory = path.parent if directory is None else directory
    is_manifest = path == directory.parent / MANIFEST
    # Others, such as those of the card, no transaction changes.
    if (is_manifest or path.is_relative_to(directory)) and is_left(directory):
        commit = directory / _COMMIT
        try:
            return read(
                staged_manifest(commit) if is_manifest else commit / path.relative_to(directory)
            )
        except FileNotFoundError:
            pass  # not part of the commit, or moved to its place meanwhile
    return read(path)


def files_left(directory: Path) -> Iterator[str]:
    """Yield the paths that files have once a commit is moved to its places, if one is left."""
    if is_left(directory):
        with suppress(FileNotFoundError):  # moved meanwhile
            yield from files_below(directory / _COMMIT)


def is_left(directory: Path) -> bool:
    """Whether a commit has not been moved to its places; asked whenever something is read."""
    commit = f"{directory}{os.sep}{_COMMIT}"
    try:
        mode = os.lstat(commit).st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        refuse_links(commit, directory)
    return stat.S_ISDIR(mode)


def is_manifest(content: Any) -> bool:
    """Whether JSON is a manifest, damaged or not, and no file of another kind."""
    return isinstance(content, dict) and bool(content.keys() & {"format", "files"})


def _holds_manifest(parent: Path) -> bool:
    try:
        return is_manifest(json.loads(read_text(parent / MANIFEST)))
    except (OSError, ValueError, RecursionError, CorruptDatasetError):
        return False


def _roll_forward(directory: Path, parent: Path | None) -> None:
    """Move the files of a commit to their places, those at the top last.

    Args:
        directory: of the transactions.
        parent: of a folder ``data``, the one that has the manifest; else None.

    Raises:
        CorruptDatasetError: something else stands where a commit would.
        LinkError: a link does, or is in the commit.
    """
    commit = directory / _COMMIT
    if is_left(directory):
        refuse_links(staged_manifest(commit), directory)
        if parent is not None and _holds_manifest(parent) and staged_manifest(commit).is_file():
            os.replace(staged_manifest(commit), parent / MANIFEST)
        move_below(commit, directory)
        shutil.rmtree(commit)
    elif os.path.lexists(commit):
        raise CorruptDatasetError(f"{commit} is no folder; remove it")
