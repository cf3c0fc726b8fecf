"""Read what a Parquet file declares without decompressing it; pyarrow decompresses first.

::

    PAR1
    column chunk      pages, each a header (number of values, sizes) and its bytes
    ...
    footer            schema, row groups, and for each column chunk the location of its pages
    length of the footer, PAR1

Headers and the footer are structures of Thrift's compact protocol
(https://github.com/apache/parquet-format, ``parquet.thrift``). The numbers of values are read from
the page headers, which pyarrow uses; the footer may contradict them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from minari_pipe.errors import CorruptDatasetError

_LENGTH = struct.Struct("<I")
_END = 8
#: bytes of a value by number of its physical type; types of variable length are left out
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_DICTIONARY_PAGE = 2
#: field of the page header that describes each kind of page; its field 1 is the number of values
_PARTS = {0: 5, 2: 7, 3: 8}
#: its field for the encoding of a data page, and the encoding by which texts can be repeated
_ENCODINGS, _DELTA_TEXTS = {0: 2, 3: 4}, 7
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
#: most nested structures; the format itself nests fewer
_DEEPEST = 16


class Chunk(NamedTuple):
    """What the pages of a column chunk declare.

    Attributes:
        path: names of the fields that lead to its values.
        width: bytes of a value, None if that varies.
        values: number of values, including nulls.
        unpacked: decompressed bytes of all pages.
        is_delta: each text is stored as its difference to the previous one, which may be nothing.
        dictionary: codec, bytes and decompressed size of its dictionary page; None without one.
    """

    path: tuple[str, ...]
    width: int | None
    values: int
    unpacked: int
    is_delta: bool
    dictionary: tuple[int, memoryview, int] | None


def column_chunks(data: bytes) -> Iterator[Chunk]:
    """Yield what each column chunk of a file declares.

    Raises:
        CorruptDatasetError: the file is damaged.
        IndexError, KeyError, struct.error, ValueError, TypeError: the file is damaged.
    """
    begin = len(data) - _END - _LENGTH.unpack_from(data, len(data) - _END)[0]
    if begin < 0:
        raise CorruptDatasetError("its footer is longer than the file")
    footer, _ = _structure(data, begin, 0)
    columns = [column[3] for group in footer.get(4, ()) for column in group.get(1, ())]
    if sum(about[7] for about in columns) > len(data):
        raise CorruptDatasetError("its columns overlap")
    for about in columns:
        yield _chunk(data, about)


def _chunk(data: bytes, about: dict[int, Any]) -> Chunk:
    at = about[9]
    if 0 < about.get(11, 0) < at:
        at = about[11]
    end = at + about[7]
    if not 0 <= at <= end <= len(data):
        raise CorruptDatasetError("the values of a column are outside the file")
    values = unpacked = 0
    dictionary, is_delta = None, False
    while at < end and values < about[5]:  # pyarrow reads no further
        header, at = _structure(data, at, 0)
        kind, size, packed = header[1], header[2], header[3]
        if size < 0 or packed < 0:
            raise CorruptDatasetError(
                f"a page declares a negative size: {packed} bytes, {size} uncompressed"
            )
        unpacked += size
        about_page = header.get(_PARTS.get(kind, 0), {})
        count = about_page.get(1, 0)
        is_delta |= about_page.get(_ENCODINGS.get(kind, 0)) == _DELTA_TEXTS
        if kind == _DICTIONARY_PAGE:
            dictionary = (about[4], memoryview(data)[at : at + packed], size)
        else:
            values += max(count, 0)
        at += packed
    path = tuple(bytes(name).decode("utf-8") for name in about[3])
    return Chunk(path, _WIDTHS.get(about[1]), values, unpacked, is_delta, dictionary)


def _structure(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read a structure; return its fields by their numbers, and where it ends."""
    if depth > _DEEPEST:
        raise CorruptDatasetError("its structures are nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while kind_and_step := data[at]:
        at += 1
        kind, step = kind_and_step & 15, kind_and_step >> 4
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif _BYTE < kind < _DOUBLE and (byte := data[at]) < 128:
            # Most values are like this: function calls for them would take a third of the time.
            fields[number], at = (byte >> 1) ^ -(byte & 1), at + 1
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if _BYTE < kind < _DOUBLE:
        return _integer(data, at)
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        if size > len(data) - at:
            raise CorruptDatasetError("a string is longer than the file")
        return data[at : at + size], at + size
    if kind in (_LIST, _SET):
        size, of = data[at] >> 4, data[at] & 15
        at += 1
        if size == 15:
            size, at = _unsigned(data, at)
        if size > len(data) - at:
            raise CorruptDatasetError("a list is longer than the file")
        values: list[Any] = []
        for _ in range(size):
            value: Any
            if of == _STRUCT:
                value, at = _structure(data, at, depth + 1)
            else:
                value, at = (data[at], at + 1) if of <= _BYTE else _value(data, at, of, depth + 1)
            values.append(value)
        return values, at
    if kind == _STRUCT:
        return _structure(data, at, depth + 1)
    if kind == _BYTE:
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise CorruptDatasetError(f"a field has the unknown type {kind}")


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise CorruptDatasetError("a number has more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
