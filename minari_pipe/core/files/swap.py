"""Puts a finished folder in the place of another, so that a reader sees the old or the new one."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from minari_pipe.core.files.changes import new_file
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
    """Copy by reflink where the file system has them, else by bytes; never a hard link.

    An append through a hard link rewrote an object of DVC's cache.

    Args:
        source: the file.
        target: which it replaces, if it is there.
        below: the folder that the user named, from which no link is followed to ``source``.

    Raises:
        LinkError: there is a link on that way.
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
    """Copy a folder of plain files into one that is made.

    Raises:
        LinkError: one of them, or a folder of them, is a link.
    """
    target.mkdir(parents=True, exist_ok=True)
    for entry in entries_below(source):
        place = target / Path(entry.path).relative_to(source)
        if entry.is_dir():
            place.mkdir(exist_ok=True)
        else:
            copy_file(Path(entry.path), place, below=source)


def swap_in(new: Path, target: Path) -> None:
    """Make ``new`` be ``target``; what was there is removed.

    Both must lie on one file system. With RENAME_EXCHANGE there is no moment without a folder at
    ``target``; elsewhere there is a short one, and :func:`recover` ends it after a kill.
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
    """Finish what a swap into ``target`` was killed in: the old folder comes back, or goes.

    Raises:
        LinkError: a link stands where the old folder would.
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
    """Remove a folder, or what is none; of a link to one the link alone."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step; whether the system did.

    What stops it for another reason than not being able to also stops plain renames, which say so.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b))
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)
