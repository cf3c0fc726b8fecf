"""Lay out text of any length in HDF5 global heaps, section III.E.

::

    collection           "GCOL", its size
    ├─ object 1          number, reference count, size; the bytes, padded to 8
    ├─ object 2 ...
    └─ object 0          the free space

A variable-length value holds the address of a collection and the number of an object in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.hdf5.writer.layout_types import padded

#: the value of a text: its length in bytes, address of the collection, number of the object
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])

_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
#: libhdf5 creates no smaller collections, and starts a new one before one exceeds this size
_LEAST, _MOST = 4096, 2**16
_MAX_OBJECTS = 2**16 - 1


def text_heaps(texts: Sequence[bytes], address: int) -> tuple[bytes, npt.NDArray[np.void]]:
    """Return global heaps that hold these texts, and the value of each text.

    Args:
        texts: UTF-8 without NUL; each is stored separately, since libhdf5 removes it when an
            attribute is replaced.
        address: address of the first heap in the file, a multiple of 8.

    Example:
        >>> heaps, references = text_heaps([b"rain", b"sun"], 800)
        >>> len(heaps), references.tolist()
        (4096, [(4, 800, 1), (3, 800, 2)])
    """
    heaps = bytearray()
    references = np.zeros(len(texts), REFERENCE)
    objects: list[bytes] = []
    size = _HEAD.size
    for place, text in enumerate(texts):
        content = padded(text)
        more = _OBJECT.size + len(content)
        if objects and (size + more > _MOST or len(objects) // 2 == _MAX_OBJECTS):
            heaps += _collection(objects, size)
            objects, size = [], _HEAD.size
        number = len(objects) // 2 + 1
        objects += (_OBJECT.pack(number, 1, 0, len(text)), content)
        references[place] = (len(text), address + len(heaps), number)
        size += more
    if objects:
        heaps += _collection(objects, size)
    return bytes(heaps), references


def _collection(objects: list[bytes], used: int) -> bytes:
    size = max(_LEAST, used)
    free = size - used
    # the size of the free space includes its header; less than a header is not recorded
    end = _OBJECT.pack(0, 0, 0, free) if free >= _OBJECT.size else b""
    content = _HEAD.pack(b"GCOL", 1, size) + b"".join(objects) + end
    return content + bytes(size - len(content))
