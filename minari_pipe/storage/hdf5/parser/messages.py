"""Parse the messages of an object header: types, shapes, layouts, filters, links."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser.source import UNDEFINED, NotUnderstoodError

#: a variable-length value in the file: its length, and its location in a global heap
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])

_MAX_RANK = 32
#: class bits and properties of IEEE 754 floats, by size: sign, exponent, mantissa
_FLOATS = {
    2: (15, (0, 16, 10, 5, 0, 10, 15)),
    4: (31, (0, 32, 23, 8, 0, 23, 127)),
    8: (63, (0, 64, 52, 11, 0, 52, 1023)),
}
_FLOAT_PROPERTIES = struct.Struct("<HHBBBBI")
_ATTRIBUTE = struct.Struct("<BBHHH")


@dataclass(frozen=True)
class Type:
    """The type of values in the file.

    Attributes:
        dtype: as h5py reports it.
        raw: as stored in the file.
        encoding: encoding of text, else None.
        base: element dtype of variable-length sequences, else None.
    """

    dtype: np.dtype[Any]
    raw: np.dtype[Any]
    encoding: str | None = None
    base: np.dtype[Any] | None = None


@dataclass(frozen=True)
class Space:
    """The shape of values, None if there are none at all; ``maxshape`` has None where unlimited."""

    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...] | None
    count: int


@dataclass(frozen=True)
class DataLayout:
    """The location of the values of a dataset.

    Attributes:
        kind: compact, contiguous, chunked or virtual.
        address: address of the data, or of the tree of chunks.
        data: the values if compact.
        size: bytes of the data if contiguous.
        chunk: the shape of a chunk, followed by the bytes of an element, if chunked.
    """

    kind: str
    address: int = UNDEFINED
    data: bytes = b""
    size: int = 0
    chunk: tuple[int, ...] = ()


@lru_cache(maxsize=512)
def parse_type(message: bytes) -> Type:
    """Parse a datatype message."""
    return _type(message)[0]


def _type(message: bytes) -> tuple[Type, int]:
    """Return a type and the size of its description."""
    version, kind = message[0] >> 4, message[0] & 15
    bits = int.from_bytes(message[1:4], "little")
    (size,) = struct.unpack_from("<I", message, 4)
    if not 1 <= version <= 5 or kind > 12 or not size:
        raise CorruptDatasetError(f"invalid type: version {version}, class {kind}, {size} bytes")
    order = ">" if bits & 1 else "<"
    if kind == 0:
        offset, precision = struct.unpack_from("<HH", message, 8)
        if size not in (1, 2, 4, 8) or (offset, precision) != (0, 8 * size):
            raise NotUnderstoodError(f"integers of {precision} bits in {size} bytes")
        dtype = np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}")
        return Type(dtype, dtype), 12
    if kind == 1:
        properties = _FLOAT_PROPERTIES.unpack_from(message, 8)
        sign, expected = _FLOATS.get(size, (None, None))
        if bits >> 8 != sign or properties != expected or bits & 0x7E != 0x20:
            raise NotUnderstoodError(f"floats of {size} bytes that are not those of IEEE 754")
        dtype = np.dtype(f"{order}f{size}")
        return Type(dtype, dtype), 20
    if kind == 3:
        padding, charset = bits & 15, bits >> 4 & 15
        if padding != 1 or charset > 1:
            raise NotUnderstoodError("strings that are not padded with NUL")
        encoding = ("ascii", "utf-8")[charset]
        return Type(h5py.string_dtype(encoding, size), np.dtype(f"S{size}"), encoding), 8
    if kind == 6:
        return _complex_type(message, version, bits & 0xFFFF, size)
    if kind == 8:
        return _bool_type(message, version, bits & 0xFFFF, size)
    if kind == 9:
        base, used = _type(message[8:])
        if size != REFERENCE.itemsize or bits & 15 > 1:
            raise CorruptDatasetError(f"invalid variable-length values of {size} bytes each")
        if bits & 15 == 1:
            if bits >> 8 & 15 > 1:
                raise CorruptDatasetError("strings in an unknown character set")
            encoding = ("ascii", "utf-8")[bits >> 8 & 15]
            return Type(h5py.string_dtype(encoding), REFERENCE, encoding), 8 + used
        if base.dtype.kind not in "iuf":
            raise NotUnderstoodError(f"variable-length sequences of {base.dtype}")
        return Type(h5py.vlen_dtype(base.dtype), REFERENCE, base=base.dtype), 8 + used
    raise NotUnderstoodError(f"values of type class {kind}")


def _complex_type(message: bytes, version: int, members: int, size: int) -> tuple[Type, int]:
    """Parse a compound type, which must be a complex number as h5py writes it."""
    parts, at = [], 8
    for _ in range(members if members == 2 else 0):
        end = message.index(b"\0", at)
        name = message[at:end]
        if version >= 3:
            width = (size.bit_length() + 7) // 8
            at = end + 1 + width
            offset = int.from_bytes(message[end + 1 : at], "little")
        else:
            at += (end - at) // 8 * 8 + 8
            (offset,) = struct.unpack_from("<I", message, at)
            if version == 1 and message[at + 4]:
                raise NotUnderstoodError("compounds of arrays")
            at += 32 if version == 1 else 4
        part, used = _type(message[at:])
        at += used
        parts.append((name, offset, part.dtype))
    if len(parts) == 2:
        base = parts[0][2]
        half = base.itemsize
        expected = [(b"r", 0, base), (b"i", half, base)]
        if parts == expected and base.kind == "f" and size == 2 * half and half in (4, 8):
            dtype = np.dtype(f"{base.str[0]}c{size}")
            return Type(dtype, dtype), at
    raise NotUnderstoodError("compounds")


def _bool_type(message: bytes, version: int, members: int, size: int) -> tuple[Type, int]:
    """Parse an enumeration type, which must be a bool as h5py writes it."""
    _, used = _type(message[8:])
    at = 8 + used
    names = []
    for _ in range(members if members == 2 else 0):
        end = message.index(b"\0", at)
        names.append(message[at:end])
        at = end + 1 if version >= 3 else at + (end - at) // 8 * 8 + 8
    values = message[at : at + members]
    if size != 1 or dict(zip(names, values)) != {b"FALSE": 0, b"TRUE": 1}:
        raise NotUnderstoodError("enumerations")
    return Type(np.dtype(bool), np.dtype(bool)), at + members


@lru_cache(maxsize=512)
def parse_space(message: bytes) -> Space:
    """Parse a dataspace message."""
    version, rank, flags = message[:3]
    if version not in (1, 2) or rank > _MAX_RANK or flags > 3:
        raise CorruptDatasetError(f"invalid shape: version {version}, {rank} dimensions")
    if flags & 2:
        raise NotUnderstoodError("permuted dimensions")
    if version == 2:
        kind = message[3]
        if kind > 2 or (kind != 1 and rank):
            raise CorruptDatasetError(f"invalid shape: kind {kind}, {rank} dimensions")
        if kind == 2:
            return Space(None, None, 0)
    at = 8 if version == 1 else 4
    shape = struct.unpack_from(f"<{rank}Q", message, at)
    maxshape: tuple[int | None, ...] = shape
    if flags & 1:
        limits = struct.unpack_from(f"<{rank}Q", message, at + 8 * rank)
        if any(size > limit for size, limit in zip(shape, limits)):
            raise CorruptDatasetError(f"the shape {shape} is larger than its limits {limits}")
        maxshape = tuple(None if limit == UNDEFINED else limit for limit in limits)
    count = 1
    for size in shape:
        count *= size
    if count >= 2**62:
        raise CorruptDatasetError(f"the shape {shape} has more values than any file can hold")
    return Space(shape, maxshape, count)


def parse_layout(message: bytes) -> DataLayout:
    """Parse a layout message."""
    version, kind = message[:2]
    if version in (1, 2):
        raise NotUnderstoodError(f"a layout of version {version}")
    if version not in (3, 4, 5) or kind > 3:
        raise CorruptDatasetError(f"invalid layout: version {version}, class {kind}")
    if kind == 0:
        (size,) = struct.unpack_from("<H", message, 2)
        return DataLayout("compact", data=message[4 : 4 + size], size=size)
    if kind == 1:
        address, size = struct.unpack_from("<QQ", message, 2)
        return DataLayout("contiguous", address, size=size)
    if kind == 3:
        return DataLayout("virtual")
    if version > 3:
        raise NotUnderstoodError(f"chunks in a layout of version {version}")
    rank = message[2]
    (address,) = struct.unpack_from("<Q", message, 3)
    chunk = struct.unpack_from(f"<{rank}I", message, 11)
    if not 2 <= rank <= _MAX_RANK + 1 or 0 in chunk:
        raise CorruptDatasetError(f"invalid chunks of shape {chunk}")
    return DataLayout("chunked", address, chunk=chunk)


def parse_fill(message: bytes, *, old: bool) -> bytes:
    """Parse a fill value message: the bytes of one value, or none if values are zeros."""
    if old:
        at = 0
    else:
        version, flags = message[:2]
        if version not in (1, 2, 3):
            raise CorruptDatasetError(f"a fill value of unknown version {version}")
        at = 2 if version == 3 else 4
        if not (flags & 0x20 if version == 3 else version == 1 or message[3]):
            return b""
    if not message[at : at + 4]:
        return b""
    (size,) = struct.unpack_from("<i", message, at)
    value = message[at + 4 : at + 4 + max(0, size)]
    if len(value) < size:
        raise CorruptDatasetError(f"a fill value of {size} bytes is truncated")
    return value


def parse_filters(message: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Parse a filter pipeline message: number and values of each filter, in writing order."""
    version, count = message[:2]
    if version not in (1, 2) or count > _MAX_RANK:
        raise CorruptDatasetError(f"invalid filter list: version {version}, {count} filters")
    at = 8 if version == 1 else 2
    filters = []
    for _ in range(count):
        (number,) = struct.unpack_from("<H", message, at)
        at += 2
        name = 0
        if version == 1 or number >= 256:
            (name,) = struct.unpack_from("<H", message, at)
            at += 2
        _, values = struct.unpack_from("<HH", message, at)
        at += 4 + (name + 7) // 8 * 8 if version == 1 else 4 + name
        filters.append((number, struct.unpack_from(f"<{values}I", message, at)))
        at += 4 * (values + (values % 2 if version == 1 else 0))
        if number not in (1, 2):
            raise NotUnderstoodError(f"filter {number}")
        if number == 1 and not values:
            raise CorruptDatasetError("its compression has no level")
    if [number for number, _ in filters].count(1) > 1:
        raise CorruptDatasetError("its chunks are compressed more than once")
    return filters


def unfilter(
    data: bytes, filters: list[tuple[int, tuple[int, ...]]], mask: int, size: int
) -> bytes:
    """Undo the filters of a chunk of ``size`` bytes; bits of ``mask`` mark filters not applied."""
    for index, (number, values) in reversed(list(enumerate(filters))):
        if mask >> index & 1:
            continue
        if number == 1:
            inflate = zlib.decompressobj()
            try:
                data = inflate.decompress(data, size + 1)
            except zlib.error as error:
                raise CorruptDatasetError(f"a chunk cannot be decompressed: {error}") from None
            if not inflate.eof and len(data) != size:
                raise CorruptDatasetError("a compressed chunk is truncated")
        elif values and values[0] > 1:
            width = values[0]
            whole = len(data) // width * width
            lines = np.frombuffer(data, np.uint8, whole).reshape(width, -1)
            data = lines.T.tobytes() + data[whole:]
    return data


def parse_attribute(message: bytes) -> tuple[str, Type, Space, bytes]:
    """Parse an attribute message: name, type, shape and the bytes of the value."""
    version, flags, name_size, type_size, space_size = _ATTRIBUTE.unpack_from(message)
    if version not in (1, 2, 3):
        raise CorruptDatasetError(f"an attribute of unknown version {version}")
    if version > 1 and flags & 3:
        raise NotUnderstoodError("attributes with a shared type or shape")
    at = 9 if version == 3 else 8
    name = message[at : at + name_size]
    if version == 1:  # each part ends at a multiple of 8 bytes
        name_size, type_gap, space_gap = (
            size + 7 & ~7 for size in (name_size, type_size, space_size)
        )
    else:
        type_gap, space_gap = type_size, space_size
    at += name_size
    stored = parse_type(message[at : at + type_size])
    at += type_gap
    space = parse_space(message[at : at + space_size])
    at += space_gap
    size = space.count * stored.raw.itemsize
    value = message[at : at + size]
    if len(value) < size:
        raise CorruptDatasetError(f"the attribute {name!r} is truncated")
    if name[-1:] != b"\0":
        raise CorruptDatasetError(f"the name of the attribute {name!r} is not NUL-terminated")
    return as_name(name[:-1]), stored, space, value


def parse_link(message: bytes) -> tuple[str, str, int]:
    """Parse a link message: name, kind (hard, soft, external), and address if hard."""
    version, flags = message[:2]
    if version != 1:
        raise CorruptDatasetError(f"a link of unknown version {version}")
    at = 2
    kind = 0
    if flags & 8:
        kind = message[at]
        at += 1
    at += 8 if flags & 4 else 0
    at += 1 if flags & 16 else 0
    width = 1 << (flags & 3)
    size = int.from_bytes(message[at : at + width], "little")
    at += width
    name = message[at : at + size]
    if not size or len(name) < size:
        raise CorruptDatasetError("the name of a link is truncated")
    if kind == 0:
        (address,) = struct.unpack_from("<Q", message, at + size)
        return as_name(name), "hard", address
    if kind not in (1, 64):
        raise NotUnderstoodError(f"links of kind {kind}")
    return as_name(name), "soft" if kind == 1 else "external", UNDEFINED


def as_name(name: bytes) -> str:
    """Decode a name as h5py does."""
    text = name.decode("utf-8", "surrogateescape")
    if not text or "\0" in text:
        raise CorruptDatasetError(f"the name {name!r} is empty or contains NUL")
    return text


def as_text(values: Any, encoding: str, errors: str = "strict") -> npt.NDArray[np.object_]:
    """Decode an array of bytes to one of strings."""
    text = np.empty(len(values), object)
    text[:] = [value.decode(encoding, errors) for value in values]
    return text
