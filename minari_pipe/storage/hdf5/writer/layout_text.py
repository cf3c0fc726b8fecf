"""Where HDF5 keeps text of any length: in global heaps, section III.E.

::

    collection           "GCOL", its size
    ├─ object 1          number, count of references, size; the bytes, padded to 8
    ├─ object 2 ...
    └─ object 0          what is free

A value of variable length holds the address of a collection and the number of an object in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.hdf5.writer.layout_types import padded

#: the value of a text: bytes of it, address of the collection, number of the object
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])

_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
#: libhdf5 makes no smaller collections, and begins another one before they get larger than this
_LEAST, _MOST = 4096, 2**16
_MAX_OBJECTS = 2**16 - 1


def text_heaps(texts: Sequence[bytes], address: int) -> tuple[bytes, npt.NDArray[np.void]]:
    """Lay out global heaps with these texts; return them, and the value of each text.

    Args:
        texts: UTF-8 without NUL; each is stored for itself, as libhdf5 removes it when an
            attribute is replaced.
        address: of the first heap in the file, a multiple of 8.

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
    # what is free counts its own head; less than a head is not told of
    end = _OBJECT.pack(0, 0, 0, free) if free >= _OBJECT.size else b""
    content = _HEAD.pack(b"GCOL", 1, size) + b"".join(objects) + end
    return content + bytes(size - len(content))
