"""Replace a folder with a finished one, so that a reader sees either the old or the new one."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from minari_pipe.core.files.changes import new_file, remove_folder
from minari_pipe.core.files.links import entries_below, opener, refuse_links

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FICLONE = 0x40049409
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_PIECE = 2**20


def copy_file(source: Path, target: Path, *, below: Path) -> None:
    """Copy a file by reflink if the file system supports it, else by bytes; never by hard link.

    An append through a hard link rewrote an object of DVC's cache.

    Args:
        source: the file.
        target: the copy, which replaces a file that is there.
        below: the folder that the user named; symlinks between it and ``source`` are refused.

    Raises:
        LinkError: a component below ``below`` is a symlink.
    """
    with open(source, "rb", opener=opener(below)) as reading, new_file(target) as writing:
        if fcntl is not None and sys.platform == "linux":
            try:
                fcntl.ioctl(writing, _FICLONE, reading.fileno())
                return
            except OSError:
                pass
        with open(writing, "wb", closefd=False) as file:
            shutil.copyfileobj(reading, file, _PIECE)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder of plain files into another, which is created if missing.

    Raises:
        LinkError: a file or a folder in it is a symlink.
    """
    target.mkdir(parents=True, exist_ok=True)
    for entry in entries_below(source):
        place = target / Path(entry.path).relative_to(source)
        if entry.is_dir():
            place.mkdir(exist_ok=True)
        else:
            copy_file(Path(entry.path), place, below=source)


def swap_in(new: Path, target: Path) -> None:
    """Move ``new`` to ``target`` and remove what was there.

    Both must be on one file system. With RENAME_EXCHANGE a folder is always at ``target``;
    elsewhere it is missing for a moment, and :func:`recover` restores it after a kill.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    if not target.exists():
        os.replace(new, target)
    elif _exchange(new, target):
        _remove(new)
    else:
        aside = _aside(target)
        os.replace(target, aside)
        try:
            os.replace(new, target)
        except OSError:
            os.replace(aside, target)
            raise
        _remove(aside)


def recover(target: Path) -> None:
    """Finish a killed swap into ``target``: restore the old folder, or remove it.

    Raises:
        LinkError: a symlink is in the place of the old folder.
    """
    aside = _aside(target)
    refuse_links(aside, aside.parent)
    if not aside.exists():
        return
    if target.exists():
        with suppress(OSError):
            _remove(aside)
    else:
        os.replace(aside, target)


def _remove(path: Path) -> None:
    """Remove a folder or a file; of a symlink, remove only the link."""
    remove_folder(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step, and return whether that worked.

    Any error other than a lack of support also stops the plain renames, which report it.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b))
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)
