"""Build the Arrow IPC files of a segment's episodes without calling pyarrow for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minari_pipe.core.tree import Path
from minari_pipe.storage.arrow.layout import FileLayout, Frame
from minari_pipe.storage.arrow.values import as_stored
from minari_pipe.storage.episode_files import FEW_BYTES, Chunks
from minari_pipe.storage.segment import AttributeTable, Segment

#: bytes of files that are built together, so that they stay in the CPU cache
_TABLE_BYTES = 2**18
#: from this many consecutive episodes of one length on, building them together is faster
_WORTH_A_TABLE = 4


def shortest_episode(segment: Segment) -> Segment:
    """Return one episode with a single step and the structure of all others.

    Example:
        >>> from minari_pipe.storage.segment import Leaf
        >>> leaf = Leaf(("rewards",), np.dtype(float), (), 0)
        >>> segment = Segment(5, np.array([2, 1]), (leaf,), (np.arange(3.0),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> shortest_episode(segment).columns(0)
        {'rewards': array([0.])}
    """
    first = next(segment.each())
    arrays = tuple(array[: 1 + leaf.more] for leaf, array in first.pairs())
    return Segment(0, np.array([1]), segment.leaves, arrays, AttributeTable({}))


def episode_files(segment: Segment, layout: FileLayout) -> Iterator[Chunks]:
    """Yield the file of each episode of a segment.

    Args:
        segment: the episodes.
        layout: layout of the file that pyarrow makes of one of them.

    Example:
        >>> from minari_pipe.storage.arrow.files import pa, read_ipc, write_ipc
        >>> from minari_pipe.storage.segment import Leaf
        >>> leaf = Leaf(("rewards",), np.dtype(float), (), 0)
        >>> segment = Segment(5, np.array([2, 1]), (leaf,), (np.array([7.0, 8.0, 9.0]),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> data = write_ipc(pa.record_batch({"rewards": [0.0, 0.0]}))
        >>> layout = FileLayout.of(data, read_ipc(data).schema)
        >>> [read_ipc(b"".join(file)).to_pydict() for file in episode_files(segment, layout)]
        [{'rewards': [7.0, 8.0, 0.0]}, {'rewards': [9.0, 0.0]}]
    """
    for part in segment.each():
        yield from _files(part, layout)


def _files(segment: Segment, layout: FileLayout) -> Iterator[Chunks]:
    leaves = {_field_path(leaf.path): (leaf, array) for leaf, array in segment.pairs()}
    sources: list[_Source] = []
    for buffer in layout.buffers:
        leaf, array = leaves[buffer.path]
        values = np.ascontiguousarray(as_stored(array, None, {})).reshape(-1)
        is_bits = buffer.dtype == np.bool_
        width = buffer.size if is_bits else buffer.size * buffer.dtype.itemsize
        sources.append(_Source(values.view(np.uint8), width, segment.bounds(leaf.more), is_bits))
    steps = segment.steps
    first = 0
    for last in [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]:
        frame = layout.frame(int(steps[first]) + 1)
        is_small = frame.size <= FEW_BYTES
        if is_small and last - first >= _WORTH_A_TABLE:
            at_once = _TABLE_BYTES // frame.size
            for begin in range(first, last, at_once):
                for file in _table(frame, sources, begin, min(last, begin + at_once)):
                    yield [file.tobytes()]
        else:
            for place in range(first, last):
                chunks = _chunks(frame, sources, place)
                yield [b"".join(chunks)] if is_small else chunks
        first = last


class _Source(NamedTuple):
    """The values of a buffer for all episodes, as bytes; bits have one byte each."""

    values: npt.NDArray[np.uint8]
    width: int
    bounds: list[int]
    is_bits: bool


def _table(frame: Frame, sources: list[_Source], first: int, end: int) -> npt.NDArray[np.uint8]:
    """Return the files of episodes of one length, one per row."""
    files = np.zeros((end - first, frame.size), np.uint8)
    files[:, : len(frame.head)] = np.frombuffer(frame.head, np.uint8)
    files[:, frame.size - len(frame.tail) :] = np.frombuffer(frame.tail, np.uint8)
    for (values, width, bounds, is_bits), place in zip(sources, frame.places, strict=True):
        rows = values[bounds[first] * width : bounds[end] * width].reshape(end - first, -1)
        if is_bits:
            rows = np.packbits(rows, axis=1, bitorder="little")
        files[:, place : place + rows.shape[1]] = rows
    return files


def _chunks(frame: Frame, sources: list[_Source], place: int) -> Chunks:
    """Return the file of one episode in chunks, without copying numbers."""
    chunks: list[bytes | memoryview] = [frame.head]
    for source, begin, end in zip(sources, frame.places, frame.ends):
        values, width, bounds, is_bits = source
        piece = values[bounds[place] * width : bounds[place + 1] * width]
        if is_bits:
            piece = np.packbits(piece, bitorder="little")
        chunks.append(piece.data)
        chunks.append(bytes(end - begin - piece.size))  # rows that do not count, and alignment
    chunks.append(frame.tail)
    return chunks


def _field_path(path: Path) -> tuple[str, ...]:
    """Return the names of the fields that lead to a leaf; extra step data are columns."""
    return tuple(map(str, path[1:] if path[0] == "extras" else path))
