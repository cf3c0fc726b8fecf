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

_SIGNATURE = b"GCOL\x01\x00\x00\x00"
_OBJECT = struct.Struct("<HHIQ")
#: part of a file that is searched; the attributes of a file are near its beginning
_SEARCHED_BYTES = 2**26


def refuse_endless_heaps(path: Path) -> None:
    """Raise an error if HDF5 would read the strings of a file forever.

    Raises:
        CorruptDatasetError: it would.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if not size:
            return
        with mmap.mmap(file.fileno(), min(size, _SEARCHED_BYTES), access=mmap.ACCESS_READ) as data:
            place = data.find(_SIGNATURE)
            while place >= 0:
                if _is_endless(data, place, size):
                    raise CorruptDatasetError(f"{path} has a damaged string heap at byte {place}")
                place = data.find(_SIGNATURE, place + 1)


def _is_endless(data: mmap.mmap, place: int, file_size: int) -> bool:
    if place + 16 > len(data):
        return False
    (length,) = struct.unpack_from("<Q", data, place + 8)
    end = place + length
    if end > file_size:
        return False  # HDF5 reports this itself
    position = place + 16
    while position + _OBJECT.size <= min(end, len(data)):
        index, _, _, size = _OBJECT.unpack_from(data, position)
        # object 0 is the free space; its size includes its own header and is not padded
        step = size if index == 0 else (_OBJECT.size + (size + 7) // 8 * 8) % 2**64
        if step == 0 or step >= 2**63:
            return True
        position += step
    return False
