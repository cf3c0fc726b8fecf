"""Puts a finished folder in the place of another, so that a reader sees the old or the new one."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FICLONE = 0x40049409
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def copy_file(source: Path, target: Path) -> None:
    """Copy by reflink where the file system has them, else by bytes; never a hard link.

    An append through a hard link rewrote an object of DVC's cache.
    """
    if fcntl is not None and sys.platform == "linux":
        with source.open("rb") as reading, target.open("wb") as writing:
            try:
                fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
                return
            except OSError:
                pass
    shutil.copyfile(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder of plain files."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, place)


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
    """Finish what a swap into ``target`` was killed in: the old folder comes back, or goes."""
    aside = _aside(target)
    if not aside.exists():
        return
    if target.exists():
        with suppress(OSError):
            _remove(aside)
    else:
        os.replace(aside, target)


def _remove(path: Path) -> None:
    """Remove a folder, or a link to one, which stays."""
    path.unlink() if path.is_symlink() else shutil.rmtree(path)


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
