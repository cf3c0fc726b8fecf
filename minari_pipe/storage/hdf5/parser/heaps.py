"""Find damaged string heaps that HDF5 would read forever, before it reads them.

A heap of strings ("GCOL" in section III.E of the HDF5 file format specification) is a sequence of
objects, each with its size. HDF5 walks from one to the next without checking that it advances, so
an object of size zero traps it in an endless loop, and the process must be killed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from minari_pipe.errors import CorruptDatasetError

#: signature and version; HDF5 ignores the three bytes after them
_SIGNATURE = b"GCOL\x01"
_OBJECT = struct.Struct("<HHIQ")
#: a search can be interrupted after this many bytes
_PIECE = 2**26


def refuse_endless_heaps(path: Path) -> None:
    """Raise an error if HDF5 would read the strings of a file forever.

    Raises:
        CorruptDatasetError: it would, or heaps overlap so much that searching them takes long.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    if not size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        left = size // _OBJECT.size  # an intact file has no more objects
        for begin in range(0, size, _PIECE):
            end = begin + _PIECE + len(_SIGNATURE) - 1
            place = data.find(_SIGNATURE, begin, end)
            while place >= 0:
                left = _walk(data, place, left)
                if left < 0:
                    raise CorruptDatasetError(f"a damaged string heap at byte {place}")
                place = data.find(_SIGNATURE, place + 1, end)


def _walk(data: mmap.mmap, place: int, left: int) -> int:
    """Return how many of ``left`` objects remain after those of a heap; negative if too few."""
    if place + 16 > len(data):
        return left
    (length,) = struct.unpack_from("<Q", data, place + 8)
    end = place + length
    if end > len(data):
        return left  # HDF5 reports this itself
    position = place + 16
    while position + _OBJECT.size <= end and left >= 0:
        index, _, _, size = _OBJECT.unpack_from(data, position)
        # object 0 is the free space; its size includes its own header and is not padded
        step = size if index == 0 else (_OBJECT.size + (size + 7) // 8 * 8) % 2**64
        if step == 0 or step >= 2**63:
            return -1
        position += step
        left -= 1
    return left
