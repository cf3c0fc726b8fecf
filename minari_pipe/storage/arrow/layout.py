r"""Locate the values in Arrow IPC files of one structure, which differ only in a few numbers.

::

    ARROW1\0\0
    message       the schema
    message       the batch: its rows, offsets of its buffers, ...      numbers that follow
                                                                        from the rows
    body          buffers, each padded to 8 bytes
    message       end of the stream
    footer        the schema, the offset of the batch                   one such number
    ARROW1

So pyarrow needs to write or read only one file of a structure. The others have the bytes of
:meth:`FileLayout.frame` around their body: a writer puts values between them, and a reader that
finds exactly these bytes knows where the values are, and that pyarrow would accept the file.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minari_pipe.storage.arrow.values import pa

_UINT16, _INT32, _UINT32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_INT64, _PAIR = struct.Struct("<q"), struct.Struct("<qq")
#: magic number; marker at the start of each message; bytes of marker and length of the metadata
_MAGIC, _MARK, _PREFIX = b"ARROW1\0\0", b"\xff\xff\xff\xff", 8
#: bytes of the footer's length and of the magic number without padding
_END = 10
#: most bytes of frames that a layout caches
_KEPT_BYTES = 2**22


def follow(data: bytes, place: int) -> int:
    """Return the position to which an offset in a flatbuffer points.

    Args:
        data: the flatbuffer.
        place: position of the offset.

    Example:
        >>> follow(bytes([4, 0, 0, 0]), 0)
        4
    """
    return place + _UINT32.unpack_from(data, place)[0]


def table_field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer's table, 0 if it is left out.

    Args:
        data: the flatbuffer.
        table: position of the table.
        number: number of the field, as in the tables of Arrow's format.

    Example:
        >>> table_field(bytes([6, 0, 8, 0, 4, 0, 6, 0, 0, 0, 7, 0, 0, 0]), 6, 0)
        10
    """
    fields = table - _INT32.unpack_from(data, table)[0]
    entry = 4 + 2 * number
    if entry >= _UINT16.unpack_from(data, fields)[0]:
        return 0
    offset = _UINT16.unpack_from(data, fields + entry)[0]
    return table + offset if offset else 0


def is_big_endian(message: bytes) -> bool:
    """Return whether the numbers of a file are big-endian, according to its first message.

    Args:
        message: a flatbuffer; its field 2 is the schema, whose field 0 is then 1.
    """
    place = table_field(message, follow(message, table_field(message, follow(message, 0), 2)), 0)
    return bool(place) and _UINT16.unpack_from(message, place)[0] == 1


def schema_message(data: bytes | bytearray) -> bytes | None:
    """Return the beginning of a file up to the end of its schema, or None if that is damaged.

    Example:
        >>> schema_message(b"no such file") is None
        True
    """
    end = _message_end(data, len(_MAGIC))
    return None if end is None else bytes(data[:end])


def _message_end(data: bytes | bytearray, begin: int) -> int | None:
    """Return the end of a message's metadata, or None if it is damaged."""
    if data[begin : begin + len(_MARK)] != _MARK or len(data) < begin + _PREFIX:
        return None
    length = _INT32.unpack_from(data, begin + len(_MARK))[0]
    end = begin + _PREFIX + length
    return end if length > 0 and end <= len(data) else None


@dataclass(frozen=True)
class Buffer:
    """The values of one leaf.

    Attributes:
        path: names of the fields that lead to the leaf, from the column on.
        dtype: NumPy's dtype for Arrow's type; a bool is one bit.
        size: number of values per row.
    """

    path: tuple[str, ...]
    dtype: np.dtype[Any]
    size: int

    @property
    def row_bits(self) -> int:
        """Bits of one row."""
        return self.size * (1 if self.dtype == np.bool_ else 8 * self.dtype.itemsize)

    def length(self, rows: int) -> int:
        """Return the number of bytes of ``rows`` rows."""
        return -(-rows * self.row_bits // 8)


@dataclass(frozen=True)
class Frame:
    """The bytes around the values of a file, and the offsets of the values.

    Attributes:
        size: bytes of the file.
        head: all bytes before the body.
        tail: all bytes after it.
        places: offset in the file where each buffer begins.
        ends: offset in the file where each buffer ends, with its padding.
    """

    size: int
    head: bytes
    tail: bytes
    places: tuple[int, ...]
    ends: tuple[int, ...]

    def encloses(self, data: bytes | bytearray) -> bool:
        """Return whether a file has this frame, so that all offsets are inside it.

        Args:
            data: the whole file.
        """
        return len(data) == self.size and data.startswith(self.head) and data.endswith(self.tail)


@dataclass(frozen=True)
class FileLayout:
    """The structure of files with one batch of fixed-width columns and without missing values.

    Example:
        >>> from minari_pipe.storage.arrow.files import read_ipc, write_ipc
        >>> data = write_ipc(pa.record_batch({"x": [1, 2]}))
        >>> layout = FileLayout.of(data, read_ipc(data).schema)
        >>> layout.buffers, layout.rows(data)
        ((Buffer(path=('x',), dtype=dtype('int64'), size=1),), 2)
        >>> frame = layout.frame(3)
        >>> body = b"".join(int.to_bytes(x, 8, "little") for x in (7, 8, 9))
        >>> read_ipc(frame.head + body + frame.tail).to_pydict()
        {'x': [7, 8, 9]}

    Attributes:
        buffers: the leaves, in file order.
    """

    buffers: tuple[Buffer, ...]
    _head: bytes
    _tail: bytes
    #: values per row of each Arrow array; for each Arrow buffer its index in ``buffers``, or None
    #: if it has no bytes, such as that of missing values
    _nodes: tuple[int, ...]
    _order: tuple[int | None, ...]
    #: positions of the numbers that follow from the rows
    _rows_at: int
    _nodes_at: int
    _order_at: int
    _length_at: int
    _tail_length_at: int
    _frames: dict[int, Frame] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes | bytearray, schema: Any) -> FileLayout | None:
        """Return the layout of a file, or None if it is not of this kind.

        Args:
            data: a file that pyarrow has read and found valid.
            schema: its schema.
        """
        found = _Structure()
        is_fixed = all(found.add(column, (), 1) for column in schema)
        if sys.byteorder != "little" or not is_fixed or not found.buffers:
            return None
        try:
            if is_big_endian(bytes(data[len(_MAGIC) + _PREFIX :])):
                return None
            layout = cls(*_numbers(bytes(data), found))
            return layout if layout.frame(layout.rows(data) or 0).encloses(data) else None
        except (struct.error, ValueError, IndexError):
            return None

    def rows(self, data: bytes | bytearray) -> int | None:
        """Return the number of rows of a file that may have this layout, or None if it cannot.

        Args:
            data: the whole file.
        """
        if len(data) < len(self._head):
            return None
        rows = _INT64.unpack_from(data, self._rows_at)[0]
        return rows if rows > 0 and rows * self._row_bits <= 8 * len(data) else None

    @cached_property
    def _row_bits(self) -> int:
        return sum(buffer.row_bits for buffer in self.buffers)

    def frame(self, rows: int) -> Frame:
        """Return the bytes around ``rows`` rows, as pyarrow writes them.

        Args:
            rows: number of rows, at least 1.
        """
        frame = self._frames.get(rows)
        if frame is None:
            if len(self._frames) * (len(self._head) + len(self._tail)) >= _KEPT_BYTES:
                self._frames.clear()
            frame = self._frames[rows] = self._framed(rows)
        return frame

    def _framed(self, rows: int) -> Frame:
        head, tail = bytearray(self._head), bytearray(self._tail)
        begin, at = len(head), 0
        places, ends = [], []
        for number, size in enumerate(self._nodes):
            _PAIR.pack_into(head, self._nodes_at + number * _PAIR.size, rows * size, 0)
        for number, buffer in enumerate(self._order):
            length = 0 if buffer is None else self.buffers[buffer].length(rows)
            _PAIR.pack_into(head, self._order_at + number * _PAIR.size, at, length)
            if buffer is not None:
                places.append(begin + at)
                at += length + -length % 8
                ends.append(begin + at)
        _INT64.pack_into(head, self._rows_at, rows)
        _INT64.pack_into(head, self._length_at, at)
        _INT64.pack_into(tail, self._tail_length_at, at)
        size = begin + at + len(tail)
        return Frame(size, bytes(head), bytes(tail), tuple(places), tuple(ends))


class _Structure:
    """The arrays and buffers that pyarrow creates for a schema, in file order."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.order: list[int | None] = []
        self.buffers: list[Buffer] = []

    def add(self, column: Any, above: tuple[str, ...], size: int) -> bool:
        """Add a field with ``size`` values per row; return False if its width is not fixed."""
        kind, path = column.type, (*above, column.name)
        self.nodes.append(size)
        self.order.append(None)
        if pa.types.is_struct(kind):
            return all(self.add(kind.field(i), path, size) for i in range(kind.num_fields))
        while pa.types.is_fixed_size_list(kind):
            kind, size = kind.value_type, size * kind.list_size
            self.nodes.append(size)
            self.order.append(None)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if size == 0 or not (is_number or pa.types.is_boolean(kind)):
            return False
        self.order.append(len(self.buffers))
        self.buffers.append(Buffer(path, np.dtype(kind.to_pandas_dtype()), size))
        return True


def _numbers(data: bytes, found: _Structure) -> Iterator[Any]:
    """Yield the fields of a layout.

    Raises:
        ValueError, struct.error: the file does not have this structure, or is compressed.
    """
    begin = _message_end(data, len(_MAGIC))
    end = None if begin is None else _message_end(data, begin)
    if begin is None or end is None or not data.startswith(_MAGIC):
        raise ValueError("it does not start with a schema and a record batch")
    begin += _PREFIX
    message = data[begin:end]
    top = follow(message, 0)
    length_at, batch = table_field(message, top, 3), follow(message, table_field(message, top, 2))
    rows_at = table_field(message, batch, 0)
    nodes_at = _vector(message, table_field(message, batch, 1), len(found.nodes))
    order_at = _vector(message, table_field(message, batch, 2), len(found.order))
    if not rows_at or not length_at or table_field(message, batch, 3):
        raise ValueError("it has no rows, or compressed ones")
    tail = data[end + _INT64.unpack_from(message, length_at)[0] :]
    footer_at = len(tail) - _END - _INT32.unpack_from(tail, len(tail) - _END)[0]
    footer = tail[footer_at : len(tail) - _END]
    block_at = _vector(footer, table_field(footer, follow(footer, 0), 3), 1)
    yield from (tuple(found.buffers), data[:end], tail, tuple(found.nodes), tuple(found.order))
    yield from (begin + place for place in (rows_at, nodes_at, order_at, length_at))
    # a block: offset of its message, length of the message, length of the body
    yield footer_at + block_at + 2 * _INT64.size


def _vector(data: bytes, place: int, count: int) -> int:
    """Return the position of the entries of a flatbuffer's vector."""
    vector = follow(data, place)
    if not place or _UINT32.unpack_from(data, vector)[0] != count:
        raise ValueError(f"it does not have {count} entries")
    return vector + _UINT32.size
