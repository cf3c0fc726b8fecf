"""Write files that appear whole or not at all, even if a process is killed, and hash them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from minari_pipe.core.datasets_root import check_data_link, root_of, writing_below_root
from minari_pipe.core.files import words
from minari_pipe.core.files.changes import (
    move_below,
    new_file,
    remove,
    remove_folder,
    sync_below,
)
from minari_pipe.core.files.links import (
    PathLike,
    files_below,
    held_folder,
    opener,
    refuse_links,
    replaced,
)
from minari_pipe.core.files.locks import exclusive
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import CorruptDatasetError, DatasetNotFoundError, InvalidMetadataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:  # Windows: no limit on the size of files
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

_STAGE = ".minari_pipe-stage"
_COMMIT = ".minari_pipe-commit"

#: Linux ioctl FS_IOC_RESVSP and its ``struct space_resv``: type, whence, start, size, reserved
_RESERVE, _SPACE = 0x40305828, struct.Struct("=hh4xqq24x")

#: the file beside the data directory of a dataset; a transaction may change it
MANIFEST = "manifest.json"
_METADATA = "data/metadata.json"
#: largest sizes in bytes of files that are read whole, by name, as they may come from a stranger; a
#: manifest has 35 bytes for each MiB of data
LARGEST = {"metadata.json": 2**24, "namespace_metadata.json": 2**24, MANIFEST: 2**28}


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's bytes, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_all_but(folder: Path, sizes: Mapping[Path, int]) -> None:
    """Remove all files below a folder, except those that will be written further.

    Links are removed too, even hard links: writing to one would change a file elsewhere.

    Args:
        folder: a folder that no other process works on.
        sizes: the files to keep, unless they have more bytes than this.
    """
    for place, folders, names in os.walk(folder, topdown=False):
        for path in (Path(place, name) for name in (*names, *folders)):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                with suppress(OSError):  # it holds files to keep
                    path.rmdir()
            elif (
                not stat.S_ISREG(status.st_mode)
                or status.st_nlink > 1
                or status.st_size > sizes.get(path, -1)
            ):
                path.unlink()


def read_whole(path: Path, below: PathLike | None = None) -> bytes:
    """Return the bytes of metadata or a manifest; a reader for :func:`current`.

    Args:
        path: the file, whose name is in :data:`LARGEST`.
        below: the folder below which symlinks are not followed; the file's own by default.

    Raises:
        CorruptDatasetError: it is too large.
        OSError: it cannot be read, is a symlink, or is a FIFO or device, which may never end.
    """
    with open(path, "rb", opener=opener(below or path.parent)) as file:
        size = os.fstat(file.fileno()).st_size
        limit = LARGEST[path.name.lstrip(".")]  # a staged manifest is hidden
        if size > limit:
            raise CorruptDatasetError(f"{path} has {size} bytes; expected {limit} at most")
        return file.read()


def read_text(path: Path, below: PathLike | None = None) -> str:
    """Return the text of metadata or a manifest; see :func:`read_whole`.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_whole(path, below).decode("utf-8")


def check_size(name: str, data: bytes) -> None:
    """Refuse to write metadata that :func:`read_whole` would refuse to read.

    Args:
        name: name of the file.
        data: its content.

    Raises:
        InvalidMetadataError: it is too large.
    """
    if len(data) > LARGEST[name]:
        raise InvalidMetadataError(
            f"the metadata have {len(data)} bytes; expected {LARGEST[name]} at most"
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to, and rename it to ``path`` at a clean exit.

    On an error it is removed and ``path`` stays as it was. Its name is fixed, so the next attempt
    replaces what a killed process left behind.
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
    """Raise, before a write, if the disk or the system's file size limit has no room for it.

    Args:
        path: the file, or one in its folder.
        handle: the open file; the space that it already uses counts as free.
        size: the size that it will have, in bytes.

    Raises:
        OSError: there is not enough room.
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


#: for fewer bytes, reserving space takes longer than it saves
RESERVED_BYTES = 2**20


def reserve(handle: int, start: int, size: int) -> None:
    """Allocate disk space for bytes at once, before they are written.

    Writing them then costs a quarter less, from :data:`RESERVED_BYTES` on. If that is not
    possible, nothing happens. Do not use it for a file that will replace another one: ext4 writes
    such a file to disk at once, so that a power failure does not lose both, but skips space that
    is already allocated.

    Args:
        handle: the open file; its size does not change.
        start: offset of the bytes.
        size: number of bytes.
    """
    if fcntl is not None and sys.platform == "linux":
        with suppress(OSError):
            fcntl.ioctl(handle, _RESERVE, _SPACE.pack(0, os.SEEK_SET, start, size))


@contextmanager
def transaction(directory: Path) -> Iterator[Path]:
    """Yield a folder for new versions of a directory's files, and commit them at a clean exit.

    On an error, or if the process is killed or the power fails before the exit, the directory stays
    as it was. The folder becomes the commit in one rename, and counts when the word is written that
    it may record (:mod:`.words`). Its files are then moved into place; meanwhile, or
    after a kill in between, readers find them with :func:`current`, and the next transaction
    finishes the move. One process has a transaction at a time; others wait.

    Raises:
        DatasetNotFoundError: the directory does not exist, or is deleted or replaced meanwhile.
        LinkError: an earlier change left a symlink there.
        ConfigError: the directory is read-only.
    """
    try:
        with _alone(directory) as (held, parent, locked):
            _require_same(directory, locked)  # it may have been replaced while this waited
            _roll_forward(held, parent)
            stage = held / _STAGE
            refuse_links(directory / _STAGE, directory)
            remove(stage)
            with writing_below_root():
                stage.mkdir()
            try:
                yield stage
                _require_same(directory, locked)
                sync_below(stage)
                os.rename(stage, held / _COMMIT)  # without a word, the last that can fail
                words.write_word(held / _COMMIT, held)
            except BaseException as error:
                if not is_left(held):
                    _drop_commit(held)
                shutil.rmtree(stage, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    _require_same(directory, locked)
                raise
            try:
                _move_into_place(held, parent, held / _COMMIT)
            except OSError as error:  # an exception would suggest that nothing was changed
                warnings.warn(
                    f"{directory} was changed, but the new files could not be moved into place "
                    f"({error}). The next change moves them; until then, real Minari sees the old "
                    "ones",
                    stacklevel=2,
                )
    except FileNotFoundError as error:
        if directory.is_dir():
            raise
        raise DatasetNotFoundError(
            f"The data path {directory} doesn't exist any more; the dataset was deleted or moved"
        ) from error


@contextmanager
def _alone(directory: Path) -> Iterator[tuple[Path, Path | None, os.stat_result]]:
    """Hold a directory's lock; yield it, the folder of a dataset's other files, and its status."""
    root = root_of(directory)
    refuse_tracked_links(directory)
    check_data_link(directory)
    with (
        held_folder(directory.parent, root or directory.parent) as parent,
        held_folder(directory, root or directory, may_be_link=True) as held,
        exclusive(held) as locked,
    ):
        yield held, parent if directory.name == "data" else None, locked


def _require_same(directory: Path, locked: os.stat_result) -> None:
    """Raise DatasetNotFoundError if another directory has taken the place of the locked one."""
    if not os.path.samestat(os.stat(directory), locked):
        raise replaced(directory)


def settle(directory: Path) -> None:
    """Finish an interrupted transaction, so that the files are what :func:`current` reads.

    Raises:
        LinkError: it left a symlink.
        ConfigError: the directory is read-only.
    """
    if not _has_commit(directory):
        return
    with _alone(directory) as (held, parent, _), writing_below_root():
        _roll_forward(held, parent)


def staged_manifest(stage: Path) -> Path:
    """Return where a transaction stages a new manifest, which is not a file of its directory."""
    return stage / f".{MANIFEST}"


def current(path: Path, read: Callable[[Path], T], *, directory: Path | None = None) -> T:
    """Apply ``read`` to a file as the last transaction of its directory left it.

    Args:
        path: the file, in the directory of the transactions, or its manifest.
        read: opens or reads a path, and raises FileNotFoundError if it does not exist.
        directory: the directory of the transactions, if it is not the file's own folder.

    Raises:
        FileNotFoundError: the file does not exist.
        LinkError: a symlink is in the place of a commit.
    """
    directory = path.parent if directory is None else directory
    if not is_left(directory):  # first, as every read asks
        return read(path)
    is_manifest = path == directory.parent / MANIFEST
    # No transaction changes other files, such as those of the card.
    is_changed = is_manifest or path.is_relative_to(directory)
    commit = directory / _COMMIT
    if is_changed and (not is_manifest or _replaces_manifest(commit, directory.parent)):
        try:
            return read(
                staged_manifest(commit) if is_manifest else commit / path.relative_to(directory)
            )
        except FileNotFoundError:
            pass  # not part of the commit, or already moved into place
    return read(path)


def files_left(directory: Path) -> Iterator[str]:
    """Yield the final paths of the files of a commit, if one was not yet moved into place."""
    if is_left(directory):
        with suppress(FileNotFoundError):  # moved into place meanwhile
            yield from files_below(directory / _COMMIT)


def is_left(directory: Path) -> bool:
    """Return whether a commit was not yet moved into place; called on every read."""
    return _has_commit(directory) and words.is_written(directory / _COMMIT, directory)


def _has_commit(directory: Path) -> bool:
    commit = f"{directory}{os.sep}{_COMMIT}"
    try:
        mode = os.lstat(commit).st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        refuse_links(commit, directory)
    return stat.S_ISDIR(mode)


def is_manifest(content: Any) -> bool:
    """Return whether JSON is a manifest, damaged or not, and not another kind of file."""
    return isinstance(content, dict) and bool(content.keys() & {"format", "files"})


def _replaces_manifest(commit: Path, parent: Path) -> bool:
    """Return whether a commit holds the next version of the manifest beside ``data/``.

    A stranger's ``data/`` may hold a commit. It replaces no other file of this name, and decides
    nothing about the files outside of ``data/``.
    """
    try:
        old = _listed(parent / MANIFEST)
        new = _listed(staged_manifest(commit))
    except (OSError, ValueError, CorruptDatasetError):
        return False
    return _METADATA in old and all(name.startswith("data/") for name in old ^ new)


def holds_other(parent: Path) -> bool:
    """Return whether a file beside ``data/`` has the name of a manifest, but lists no metadata."""
    try:
        return _METADATA not in _listed(parent / MANIFEST)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, CorruptDatasetError):
        return True


def _listed(manifest: Path) -> set[str]:
    """Return the names that a manifest lists, of format 1 or 2."""
    content = json_object(read_text(manifest))
    files = content.get("files", {})
    found = set(files) if isinstance(files, dict) else set()
    for section in ("data", "policies", "card"):
        names = content.get(section, {})
        found |= {f"{section}/{name}" for name in names} if isinstance(names, dict) else set()
    return found


def _drop_commit(directory: Path) -> None:
    """Remove a commit that does not count, at once: without its record it would count."""
    with suppress(FileNotFoundError):
        os.rename(directory / _COMMIT, directory / _STAGE)
        remove_folder(directory / _STAGE)


def _roll_forward(directory: Path, parent: Path | None) -> None:
    """Finish a change that was interrupted after its commit; drop one that was not committed.

    Args:
        directory: the directory of the transactions.
        parent: the folder with the manifest if the directory is ``data``, else None.

    Raises:
        CorruptDatasetError: something other than a folder is in the place of a commit.
        LinkError: a symlink is in its place, or in the commit.
    """
    commit = directory / _COMMIT
    if _has_commit(directory):
        refuse_links(staged_manifest(commit), directory)
        if not words.is_written(commit, directory):
            _drop_commit(directory)
            return
        has_manifest = parent is not None and _replaces_manifest(commit, parent)
        _move_into_place(directory, parent if has_manifest else None, commit)
    elif os.path.lexists(commit):
        raise CorruptDatasetError(f"{commit} is not a folder; remove it")


def _move_into_place(directory: Path, parent: Path | None, commit: Path) -> None:
    """Move the files of a commit into place, and into ``parent`` the manifest, if it has one."""
    words.remove_record(commit)
    if parent is not None:
        with suppress(FileNotFoundError):
            os.replace(staged_manifest(commit), parent / MANIFEST)
    move_below(commit, directory)
    remove_folder(commit)
