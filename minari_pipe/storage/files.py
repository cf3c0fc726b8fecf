"""Files that appear whole or not at all, and the lock that lets one process write at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows: renames stay atomic, two writers at once are not held apart
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

_STAGE = ".minari_pipe-stage"
_COMMIT = ".minari_pipe-commit"


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


@contextmanager
def transaction(directory: Path) -> Iterator[Path]:
    """Yield a folder for new versions of a directory's files; at a clean exit all of them count.

    On an error, or if the process is killed before the exit, the directory is as before. The
    folder becomes the commit in one rename. Its files are then moved to their places, and
    whoever reads meanwhile, or after a kill in between, finds them with :func:`current`; the next
    transaction ends what was broken off. One process has a transaction at a time, others wait.
    """
    with exclusive(directory):
        _roll_forward(directory)
        stage = directory / _STAGE
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        try:
            yield stage
            os.rename(stage, directory / _COMMIT)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        _roll_forward(directory)


def current(path: Path, read: Callable[[Path], T], *, directory: Path | None = None) -> T:
    """Return ``read`` of a file as the last transaction of its directory left it.

    Args:
        path: the file.
        read: opens or reads the path that it is given; FileNotFoundError says it is not there.
        directory: where the transactions are, if it is not the file's own folder.
    """
    directory = path.parent if directory is None else directory
    commit = directory / _COMMIT
    if commit.is_dir():
        try:
            return read(commit / path.relative_to(directory))
        except FileNotFoundError:
            pass  # not part of the commit, or moved to its place meanwhile
    return read(path)


def _roll_forward(directory: Path) -> None:
    """Move the files of a commit to their places, those at the top last."""
    commit = directory / _COMMIT
    if not commit.is_dir():
        return
    files = [path for path in commit.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (-len(path.parts), path)):
        place = directory / path.relative_to(commit)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
    shutil.rmtree(commit)
