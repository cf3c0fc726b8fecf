"""Tables as the bytes of Arrow IPC and Parquet files; damaged and hostile bytes give errors.

Files are read from memory: one that is cut short while it is mapped ends the process with a
signal. No threads: those of pyarrow do not survive a fork.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.arrow_layout import follow, table_field
from minari_pipe.storage.arrow_values import pa

if pa is not None:
    import pyarrow.parquet as pq

_MAGIC = b"ARROW1\0\0"
_UINT32, _INT64, _BUFFER = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<qq")
#: data that are more bytes than this must be in proportion to the file; equal values in an
#: ordinary Parquet file come to 2,000 to 1
_FREE_BYTES = 2**28
_MAX_PACKING = 10_000
#: rows of a batch, and of what one thread writes, in files of real Minari
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


def read_ipc(data: bytes) -> Any:
    """Return the table of an Arrow IPC file, checked in full.

    Raises:
        CorruptDatasetError: it declares more than the file can hold.
        pyarrow.ArrowException, struct.error: it is damaged.

    Example:
        >>> read_ipc(write_ipc(pa.record_batch({"x": [1, 2]}))).to_pydict()
        {'x': [1, 2]}
    """
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_file(pa.py_buffer(data), options=options) as file:
        count = file.num_record_batches
    # the same batches as a stream, in which each is looked at before its buffers are unpacked
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data)[len(_MAGIC) :])
    schema = pa.ipc.read_schema(messages.read_next_message())
    batches = []
    for message in messages:
        if message.type != "record batch":
            raise CorruptDatasetError(f"it has a {message.type}, which the standard does not know")
        _refuse_bomb(_unpacked_size(message), len(data))
        batches.append(pa.ipc.read_record_batch(message, schema))
    if len(batches) != count:
        raise CorruptDatasetError(f"it has {len(batches)} batches, its footer says {count}")
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    return _in_order(table, [batch.num_rows for batch in batches])


def _unpacked_size(message: Any) -> int:
    """Return the size of a batch's packed buffers in memory, 0 if they are not packed.

    pyarrow does not tell it. A message is a flatbuffer, which pyarrow has verified; field 2 of
    its table is the batch, whose fields 2 and 3 are the places of the buffers and how they are
    packed. A packed buffer begins with its size.
    """
    data, body = message.metadata.to_pybytes(), memoryview(message.body)
    batch = follow(data, table_field(data, follow(data, 0), 2))
    if not table_field(data, batch, 3):
        return 0
    vector = follow(data, table_field(data, batch, 2))
    total = 0
    for number in range(_UINT32.unpack_from(data, vector)[0]):
        offset, length = _BUFFER.unpack_from(data, vector + 4 + number * _BUFFER.size)
        if length >= _INT64.size:
            total += max(_INT64.unpack_from(body, offset)[0], 0)
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
        # dictionaries take NaNs of different bits for one value
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue()


def read_parquet(data: bytes) -> Any:
    """Return the table of a Parquet file, checked in full.

    Raises:
        CorruptDatasetError: it declares more than the file can hold.
        pyarrow.ArrowException: it is damaged.

    Example:
        >>> read_parquet(write_parquet(pa.record_batch({"x": [1, 2]}))).to_pydict()
        {'x': [1, 2]}
    """
    with pq.ParquetFile(pa.py_buffer(data), pre_buffer=False) as file:
        # asking for the metadata of a column instead ends the process if they are damaged
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        if min(groups, default=0) < 0:
            raise CorruptDatasetError(f"it declares groups of {groups} rows")
        width = sum(_row_size(field.type) for field in file.schema_arrow)
        _refuse_bomb(width * sum(groups), len(data))
        table = file.read(use_threads=False)
    table.validate(full=True)
    return _in_order(table, groups)


def _in_order(table: Any, sizes: list[int]) -> Any:
    """Put the batches of a long episode into the order of its steps.

    Real Minari hands pieces of 131,072 rows to threads, each of which writes batches of 32,768
    rows: those of one piece in their order, those of several in any. Only the last batch is
    short, so where the second piece has no other its place is known.

    Raises:
        CorruptDatasetError: the order is lost.
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
        f"real Minari writes the steps of an episode of {rows - 1} steps in any order, which "
        "cannot be told afterwards"
    )
    if not is_last:
        raise CorruptDatasetError(f"its steps are out of order: {message}")
    warnings.warn(f"the steps of an episode may be out of order: {message}", stacklevel=2)
    return table


def _row_size(kind: Any) -> int:
    """Return the least number of bytes of a row in memory."""
    if pa.types.is_struct(kind):
        return sum(_row_size(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * _row_size(kind.value_type)
    return -(-kind.bit_width // 8) if pa.types.is_primitive(kind) else 1


def _refuse_bomb(size: int, file_size: int) -> None:
    if size > _FREE_BYTES and size > _MAX_PACKING * file_size:
        raise CorruptDatasetError(
            f"it declares {size} bytes of data, far more than a file of {file_size} bytes can hold"
        )
