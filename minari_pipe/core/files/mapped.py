"""Map files as arrays: as large as the disk allows, in memory only while they are accessed.

The kernel keeps accessed pages of a map until it needs the memory for something else, and counts
them as the process's until then. Code that goes through more than a few megabytes releases them
piece by piece.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

#: size of a piece in bytes
PIECE = 1 << 22

_CAN_RELEASE = hasattr(mmap, "MADV_DONTNEED")

#: a map of fewer bytes may stay in memory as a whole
_SMALL = 1 << 27
#: of a larger map, about this many bytes stay there
_KEPT = 1 << 26


class Watch:
    """Releases the pages of a memory map after many were accessed.

    Accessed data stays valid, views included: the next access loads it again.

    Example:
        >>> watch = Watch(None)
        >>> watch.looked_at(100)
    """

    def __init__(self, pages: mmap.mmap | None) -> None:
        """Watch a read-only map; None stands for no map."""
        is_large = pages is not None and _CAN_RELEASE and len(pages) > _SMALL
        self._pages = pages if is_large else None
        self._bytes = 0

    def looked_at(self, size: int) -> None:
        """Count accessed bytes, and those around them that are loaded with them."""
        if self._pages is None:
            return
        self._bytes += size + mmap.PAGESIZE
        if self._bytes > _KEPT:
            self._bytes = 0
            self._pages.madvise(mmap.MADV_DONTNEED)


def map_array(
    handle: int, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return a read-only array that maps the bytes of a file.

    Args:
        handle: descriptor of the file, which may be closed afterwards.
        offset: where the first row begins; the file holds all rows.
        dtype: dtype of the array.
        shape: shape of the array.

    Raises:
        OSError, ValueError: the file cannot be mapped, or is too short.
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
    r"""Yield the bytes of an array one piece after the other.

    If they are a read-only map of a file, each piece is released when the next one is requested.
    It can be accessed again.

    Args:
        data: an array or another C-contiguous buffer.
        place: offset in a file where they go; pieces end at multiples of their size there.

    Example:
        >>> b"".join(in_pieces(np.arange(3, dtype=np.uint8)))
        b'\x00\x01\x02'
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
    """Yield the rows of an array in parts of whole rows, released as in :func:`in_pieces`.

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
    """Load bytes into memory that may be a map of a file and are about to be written.

    Linux checks whether they are in memory only after it has made room in the other file; it then
    fills that room with zeros, loads the bytes and starts again.

    Example:
        >>> touch(memoryview(b"abc"))
    """
    np.frombuffer(piece, np.uint8)[:: mmap.PAGESIZE].max(initial=0)


def _pages_of(owner: Any) -> mmap.mmap | None:
    """Return the map that an array is a view of, or None if its pages may have been changed."""
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and memoryview(owner).readonly:
        return owner
    return None


def _release(pages: mmap.mmap, piece: memoryview) -> None:
    first = _address(piece) - _address(memoryview(pages))
    # accessing a page also loads some around it, even of the piece before
    start = max(0, first - PIECE)
    start -= start % mmap.PAGESIZE
    pages.madvise(mmap.MADV_DONTNEED, start, first + len(piece) - start)


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]
