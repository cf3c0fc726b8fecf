"""Arrays that are maps of files: as large as the disk allows, in memory only while looked at.

The kernel keeps the pages of a map that were looked at until it needs the memory for something
else, and counts them as the process's until then. Who goes through more than a few megabytes gives
them back piece by piece.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

#: bytes of a piece
PIECE = 1 << 22

_CAN_RELEASE = hasattr(mmap, "MADV_DONTNEED")

#: a map of fewer bytes may stay in memory as a whole
_SMALL = 1 << 27
#: of a larger one this many, about, stay there
_KEPT = 1 << 26


class Watch:
    """Gives the pages of a map of a file back when many were looked at.

    What was looked at stays valid, also views: it is fetched again when it is looked at again.

    Example:
        >>> watch = Watch(None)
        >>> watch.looked_at(100)
    """

    def __init__(self, pages: mmap.mmap | None) -> None:
        """Watch a map that is only read; None stands for no map."""
        is_large = pages is not None and _CAN_RELEASE and len(pages) > _SMALL
        self._pages = pages if is_large else None
        self._bytes = 0

    def looked_at(self, size: int) -> None:
        """Count bytes that were looked at, and those around them that come along."""
        if self._pages is None:
            return
        self._bytes += size + mmap.PAGESIZE
        if self._bytes > _KEPT:
            self._bytes = 0
            self._pages.madvise(mmap.MADV_DONTNEED)


def map_array(
    handle: int, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return an array whose bytes are those of a file, read-only.

    Args:
        handle: of the file, which may be closed afterwards.
        offset: where the first row begins; the file has all of them.
        dtype: of the array.
        shape: of the array.

    Raises:
        OSError, ValueError: the file cannot be mapped, or ends before.
    """
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, dtype)
    before = offset % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        handle, before + count * dtype.itemsize, access=mmap.ACCESS_READ, offset=offset - before
    )
    return np.frombuffer(pages, dtype, count, before).reshape(shape)


def in_pieces(data: Any, place: int = 0) -> Iterator[memoryview]:
    """Yield the bytes of an array one piece after the other.

    If they are a map of a file that is only read, each piece is out of memory when the next one
    is asked for. It can be looked at again.

    Args:
        data: an array, or what has the interface of a buffer; C-contiguous.
        place: where in a file they go, in which a piece ends at a multiple of its size.

    Example:
        >>> b"".join(in_pieces(np.arange(3, dtype=np.uint8)))
        b'\\x00\\x01\\x02'
    """
    view = memoryview(data)
    if not view.nbytes:
        return
    view = view.cast("B")
    pages = _pages_of(view.obj) if _CAN_RELEASE and len(view) > PIECE else None
    for first in range(-(place % PIECE), len(view), PIECE):
        piece = view[max(0, first) : first + PIECE]
        yield piece
        if pages is not None:
            _release(pages, piece)


def in_parts(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of an array some at a time, likewise; a piece has whole rows.

    Example:
        >>> [len(part) for part in in_parts(np.zeros((5, 1 << 21), np.uint8))]
        [2, 2, 1]
    """
    step = max(1, PIECE // max(1, rows[:1].nbytes))
    pages = _pages_of(rows) if _CAN_RELEASE and len(rows) > step else None
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        yield part
        if pages is not None and part.flags.c_contiguous:
            _release(pages, part.reshape(-1).view(np.uint8).data)


def touch(piece: memoryview) -> None:
    """Bring bytes that may be a map of a file into memory, which are about to be written.

    Linux looks whether they are there after it has made room for them in the other file, and then
    fills that with zeros, fetches them and begins again.

    Example:
        >>> touch(memoryview(b"abc"))
    """
    np.frombuffer(piece, np.uint8)[:: mmap.PAGESIZE].max(initial=0)


def _pages_of(owner: Any) -> mmap.mmap | None:
    """Return the map that an array is a view of, if nobody can have changed its pages."""
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and memoryview(owner).readonly:
        return owner
    return None


def _release(pages: mmap.mmap, piece: memoryview) -> None:
    first = _address(piece) - _address(memoryview(pages))
    # whoever looks at a page gets some of those around it too, also of the piece before
    start = max(0, first - PIECE)
    start -= start % mmap.PAGESIZE
    pages.madvise(mmap.MADV_DONTNEED, start, first + len(piece) - start)


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]
