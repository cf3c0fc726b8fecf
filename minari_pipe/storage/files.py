"""Files that appear whole or not at all, and the lock that lets one process write at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: renames stay atomic, two writers at once are not held apart
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` at a clean exit.

    On an error it is removed and ``path`` stays as it was. Its name is fixed, so what a killed
    process left behind is overwritten by the next attempt.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, so that two appends cannot overwrite each other's result.

    The lock is on the directory itself: a lock file would count as data of the dataset.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
