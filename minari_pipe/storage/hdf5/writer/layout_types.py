"""Encode the types of values as HDF5 datatype messages, section IV.A.2.d.

The messages are those that libhdf5 writes when h5py maps NumPy dtypes: bools are an enumeration of
FALSE and TRUE, complex numbers a compound of r and i, text is variable-length UTF-8.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np

#: class of a type, with the version of the message in the upper four bits
_INTEGER, _FLOAT, _COMPOUND, _ENUMERATION, _VARIABLE = 0x10, 0x11, 0x16, 0x18, 0x19

#: fields of IEEE 754 floats, by size: position of the sign; position and bits of the exponent and
#: of the mantissa; bias of the exponent
_FLOATS = {
    2: (15, (10, 5, 0, 10, 15)),
    4: (31, (23, 8, 0, 23, 127)),
    8: (63, (52, 11, 0, 52, 1023)),
}


class InexpressibleError(Exception):
    """Something cannot be laid out here and is left to h5py."""


@lru_cache(maxsize=256)
def data_type(dtype: np.dtype[Any]) -> bytes:
    """Return the datatype message of numbers of this dtype.

    Raises:
        InexpressibleError: there is none here.

    Example:
        >>> data_type(np.dtype("<i4")).hex()
        '100800000400000000002000'
    """
    big = dtype.str[0] == ">"
    size = dtype.itemsize
    if dtype.kind in "iu" and size <= 8:
        bits = 8 * (dtype.kind == "i") | big
        return _head(_INTEGER, bits, size) + struct.pack("<HH", 0, 8 * size)
    if dtype.kind == "f" and size in _FLOATS:
        sign, properties = _FLOATS[size]
        # 0x20: the first bit of the mantissa is 1 and not stored
        bits = sign << 8 | 0x20 | big
        return _head(_FLOAT, bits, size) + struct.pack("<HHBBBBI", 0, 8 * size, *properties)
    if dtype.kind == "b":
        names = padded(b"FALSE\0") + padded(b"TRUE\0")
        return _head(_ENUMERATION, 2, 1) + data_type(np.dtype("i1")) + names + b"\0\1"
    if dtype.kind == "c" and size // 2 in _FLOATS:
        part = np.dtype(f"{dtype.str[0]}f{size // 2}")
        members = b"".join(
            # name, offset in the value, and an unused array rank with its sizes
            padded(name) + struct.pack("<I28x", offset) + data_type(part)
            for name, offset in ((b"r\0", 0), (b"i\0", size // 2))
        )
        return _head(_COMPOUND, 2, size) + members
    raise InexpressibleError(f"the type {dtype}")


def text_type() -> bytes:
    """Return the datatype message of text: variable-length UTF-8, ended by a NUL in memory.

    Example:
        >>> len(text_type())
        20
    """
    # 1: a string; 0x100: in UTF-8; its elements are bytes
    return _head(_VARIABLE, 0x101, 16) + _head(_INTEGER, 0, 1) + struct.pack("<HH", 0, 8)


def padded(content: bytes) -> bytes:
    r"""Return bytes with zeros up to a multiple of 8, the alignment of most HDF5 structures.

    Example:
        >>> padded(b"name")
        b'name\x00\x00\x00\x00'
    """
    return content + bytes(-len(content) % 8)


def _head(kind: int, bits: int, size: int) -> bytes:
    return struct.pack("<B", kind) + bits.to_bytes(3, "little") + struct.pack("<I", size)
