"""Convert tables to and from Arrow IPC and Parquet files; damaged or hostile bytes raise errors.

Files are read into memory, because truncating a mapped file kills the process with a signal. No
threads are used, because pyarrow's do not survive a fork.
"""

from __future__ import annotations

import io
import struct
import sys
import warnings
from collections import Counter
from typing import Any

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.arrow.layout import follow, is_big_endian, table_field
from minari_pipe.storage.arrow.parquet_pages import Chunk, column_chunks
from minari_pipe.storage.arrow.values import growth, pa
from minari_pipe.storage.unpacking import FREE_BYTES, Announced, Budget

if pa is not None:
    import pyarrow.parquet as pq

_MAGIC = b"ARROW1\0\0"
_UINT32, _INT64 = struct.Struct("<I"), struct.Struct("<q")
_BUFFER, _BLOCK = struct.Struct("<qq"), struct.Struct("<qi4xq")
#: names of codecs by their number in Parquet files, for codecs whose pages can be inspected
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
#: rows per batch, and rows written by one thread, in files of real Minari
_THEIR_BATCH, _THEIR_PIECE = 32_768, 131_072


def write_ipc(batch: Any) -> bytes:
    """Return a record batch as an Arrow IPC file of one batch; equal batches give equal bytes.

    Example:
        >>> write_ipc(pa.record_batch({"x": [1, 2]}))[:6]
        b'ARROW1'
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(use_threads=False)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def read_ipc(data: bytes, announced: Announced | None = None, rows: int = 0) -> Any:
    """Return the table of an Arrow IPC file after checking all of it.

    Args:
        data: the file.
        announced: bytes per row that the metadata announce; None announces nothing.
        rows: number of rows that the metadata announce.

    Raises:
        CorruptDatasetError: it declares more than the file can hold.
        pyarrow.ArrowException, struct.error: it is damaged.

    Example:
        >>> read_ipc(write_ipc(pa.record_batch({"x": [1, 2]}))).to_pydict()
        {'x': [1, 2]}
    """
    options = pa.ipc.IpcReadOptions(use_threads=False)
    file = pa.ipc.open_file(pa.py_buffer(data), options=options)
    count = file.num_record_batches
    # read the batches as a stream too, to check each one before its buffers are decompressed
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data)[len(_MAGIC) :])
    first = next(iter(messages), None)
    if first is None:
        raise CorruptDatasetError("it has no schema")
    schema = pa.ipc.read_schema(first)
    batches, places = [], [len(_MAGIC) + _encapsulated(first)]
    budget = Budget(len(data))
    expected = announced.all_row_bytes() * rows if announced is not None else 0
    for message in messages:
        if message.type != "record batch":
            raise CorruptDatasetError(
                f"it has a {message.type} message, expected only record batches"
            )
        size = _unpacked_size(message, len(data))
        budget.take(2 * max(0, size - expected))
        expected = max(0, expected - size)
        batches.append(pa.ipc.read_record_batch(message, schema))
        places.append(places[-1] + _encapsulated(message))
    if len(batches) != count:
        raise CorruptDatasetError(f"it has {len(batches)} batches, its footer says {count}")
    if count > 1 and _places_of_batches(data) != places[:-1]:
        raise CorruptDatasetError("its footer lists its batches in the wrong order")
    if is_big_endian(first.metadata.to_pybytes()) != (sys.byteorder == "big"):
        # Only the reader of whole files swaps the byte order of numbers.
        batches = [file.get_batch(number) for number in range(count)]
        schema = file.schema
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    _refuse_growth(table, budget, announced, rows)
    return _in_order(table, [batch.num_rows for batch in batches])


def _encapsulated(message: Any) -> int:
    """Return how many bytes of a file a message takes, with its marker and its length."""
    return int(2 * _UINT32.size + -(-message.metadata.size // 8) * 8 + message.body.size)


def _places_of_batches(data: bytes) -> list[int]:
    """Return the offsets of the batches according to the footer: field 3 of its table."""
    end = len(data) - len(_MAGIC.rstrip(b"\0")) - _UINT32.size
    footer = data[end - _UINT32.unpack_from(data, end)[0] : end]
    vector = follow(footer, table_field(footer, follow(footer, 0), 3))
    count = _UINT32.unpack_from(footer, vector)[0]
    return [_BLOCK.unpack_from(footer, vector + 4 + i * _BLOCK.size)[0] for i in range(count)]


def _unpacked_size(message: Any, file_size: int) -> int:
    """Return the decompressed size of a batch's compressed buffers, 0 if there are none.

    Raises:
        CorruptDatasetError: buffers overlap, and have more bytes than the file.

    pyarrow does not expose this. A message is a flatbuffer, which pyarrow has verified; field 2
    of its table is the batch, whose fields 2 and 3 are the locations of the buffers and their
    compression. A compressed buffer begins with its decompressed size.
    """
    data, body = message.metadata.to_pybytes(), memoryview(message.body)
    batch = follow(data, table_field(data, follow(data, 0), 2))
    is_packed = bool(table_field(data, batch, 3))
    vector = follow(data, table_field(data, batch, 2))
    total = packed = 0
    for number in range(_UINT32.unpack_from(data, vector)[0]):
        offset, length = _BUFFER.unpack_from(data, vector + 4 + number * _BUFFER.size)
        packed += length
        if is_packed and length >= _INT64.size:
            total += max(_INT64.unpack_from(body, offset)[0], 0)
    if packed > file_size:
        raise CorruptDatasetError(f"its buffers declare {packed} bytes, the file has {file_size}")
    return total


def write_parquet(batch: Any) -> bytes:
    """Return a record batch as a Parquet file; equal batches give equal bytes.

    Example:
        >>> write_parquet(pa.record_batch({"x": [1, 2]}))[:4]
        b'PAR1'
    """
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_batches([batch]),
        sink,
        row_group_size=batch.num_rows,
        version="2.6",
        compression="snappy",
        # dictionaries treat NaNs with different bits as one value
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue()


def read_parquet(data: bytes, announced: Announced | None = None, rows: int = 0) -> Any:
    """Return the table of a Parquet file after checking all of it.

    Args:
        data: the file.
        announced: bytes per row that the metadata announce; None announces nothing.
        rows: number of rows that the metadata announce.

    Raises:
        CorruptDatasetError: it declares more than the file can hold.
        pyarrow.ArrowException: it is damaged.

    Example:
        >>> read_parquet(write_parquet(pa.record_batch({"x": [1, 2]}))).to_pydict()
        {'x': [1, 2]}
    """
    with pq.ParquetFile(pa.py_buffer(data), pre_buffer=False) as file:
        # asking for the metadata of a column instead kills the process if they are damaged
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        if min(groups, default=0) < 0:
            raise CorruptDatasetError(f"its row groups have negative sizes: {groups}")
        budget = Budget(len(data))
        _refuse_bomb(data, file.schema_arrow, sum(groups), budget, announced, rows)
        table = file.read(use_threads=False)
    table.validate(full=True)
    _refuse_growth(table, budget, announced, rows)
    return _in_order(table, groups)


def _refuse_growth(table: Any, budget: Budget, announced: Announced | None, rows: int) -> None:
    """Raise an error if a table takes far more memory as NumPy arrays than its file can hold."""
    sizes: Counter[tuple[str, ...]] = Counter()
    for name, column in zip(table.column_names, table.columns, strict=True):
        for array in column.chunks:
            sizes.update(dict(growth(array, (name,))))
    for path, size in sizes.items():
        free = rows * announced.row_bytes(path) if announced is not None else 0
        budget.take(max(0, size - free))


def _refuse_bomb(
    data: bytes, schema: Any, found: int, budget: Budget, announced: Announced | None, rows: int
) -> None:
    """Raise an error if a Parquet file of ``found`` rows declares far more than it can hold."""
    columns: dict[tuple[str, ...], list[Chunk]] = {}
    for chunk in column_chunks(data):
        columns.setdefault(chunk.path, []).append(chunk)
    for path, chunks in columns.items():
        free = rows * announced.row_bytes(path) if announced is not None and rows == found else 0
        # rows of a fixed-size list may be null, for which pyarrow allocates all values
        size, is_any = _fixed_size(schema, path)
        values = sum(chunk.values for chunk in chunks)
        least = size * (values if is_any else found) * (chunks[0].width or 1) if size != 1 else 0
        most = max(least, sum(map(_declared_size, chunks)))
        is_dictionary = chunks[0].width is None and not any(chunk.is_delta for chunk in chunks)
        if is_dictionary and not budget.has(2 * max(0, most - free)):
            # a dictionary stores equal texts once, and each value refers to one with four bytes
            budget.take(max(4 * values, least))
            most = _text_size(data, path)
        budget.take(2 * max(0, most - free))


def _fixed_size(schema: Any, path: tuple[str, ...]) -> tuple[int, bool]:
    """Return the values per row that a column's type fixes, and whether it has variable lists."""
    kind, size, is_any = schema.field(path[0]).type, 1, False
    names = iter(path[1:])
    for name in names:
        if pa.types.is_struct(kind):
            kind = kind.field(name).type
            continue
        next(names, None)  # a list has two names, its own and that of its elements
        if pa.types.is_fixed_size_list(kind):
            kind, size = kind.value_type, size * kind.list_size
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind, is_any = kind.value_type, True
    return size, is_any


def _declared_size(chunk: Chunk) -> int:
    """Return the most bytes that the values of a column chunk can take in memory."""
    width = chunk.width
    if width is None:
        width = 4 + (_longest(*chunk.dictionary) if chunk.dictionary is not None else 0)
        width += chunk.unpacked if chunk.is_delta else 0
    return max(chunk.unpacked, chunk.values * width)


def _longest(codec: int, packed: memoryview, size: int) -> int:
    """Return the length of the longest text in a dictionary page."""
    if not 0 < size <= FREE_BYTES or (codec and codec not in _CODECS):
        return size
    data = bytes(packed)
    if codec:
        data = pa.decompress(data, decompressed_size=size, codec=_CODECS[codec], asbytes=True)
    longest = at = 0
    while at + 4 <= len(data):
        length = _UINT32.unpack_from(data, at)[0]
        longest, at = max(longest, length), at + 4 + length
    return min(longest, size)


def _text_size(data: bytes, path: tuple[str, ...]) -> int:
    """Return the bytes of all texts of a column, by reading it as indices into a dictionary."""
    import pyarrow.compute as pc  # takes 0.1 s, and few files need it

    name = ".".join(path)
    with pq.ParquetFile(pa.py_buffer(data), pre_buffer=False, read_dictionary=[name]) as file:
        table = file.read(columns=[name], use_threads=False)
    total = 0
    for array in (chunk for column in table.columns for chunk in column.chunks):
        while not pa.types.is_dictionary(array.type):
            array = array.field(0) if pa.types.is_struct(array.type) else array.flatten()
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        total += pc.sum(lengths).as_py() or 0
    return total


def _in_order(table: Any, sizes: list[int]) -> Any:
    """Return a table with the batches of a long episode in the order of its steps.

    Real Minari passes pieces of 131,072 rows to threads, each of which writes batches of 32,768
    rows: the batches of one piece are in order, those of several pieces are in any order. Only the
    last batch is short, so if it is the only one of the second piece, its position is known.

    Raises:
        CorruptDatasetError: the order cannot be recovered.
    """
    rows = sum(sizes)
    short = [number for number, size in enumerate(sizes) if size != _THEIR_BATCH]
    is_theirs = len(short) <= 1 and all(sizes[number] < _THEIR_BATCH for number in short)
    if rows <= _THEIR_PIECE or len(sizes) == 1 or not is_theirs:
        return table
    is_last = not short or short[0] == len(sizes) - 1
    if rows < _THEIR_PIECE + _THEIR_BATCH:
        if is_last:
            return table
        begin = _THEIR_BATCH * short[0]
        end = begin + sizes[short[0]]
        return pa.concat_tables([table[:begin], table[end:], table[begin:end]])
    message = (
        f"real Minari writes an episode of {rows - 1} steps in arbitrary order, and the original "
        "order cannot be recovered"
    )
    if not is_last:
        raise CorruptDatasetError(f"its steps are out of order: {message}")
    warnings.warn(f"the steps of an episode may be out of order: {message}", stacklevel=2)
    return table
