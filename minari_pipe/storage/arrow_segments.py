"""The bytes of the Arrow IPC files of a segment's episodes, without pyarrow for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from minari_pipe.storage.arrow_disk import FEW_BYTES, Chunks
from minari_pipe.storage.arrow_layout import Layout
from minari_pipe.storage.arrow_values import as_stored
from minari_pipe.storage.segment import AttributeTable, Segment
from minari_pipe.tree import Path


def shortest_episode(segment: Segment) -> Segment:
    """Return one episode of a single step that is of the structure of all others.

    Example:
        >>> from minari_pipe.storage.segment import Leaf
        >>> leaf = Leaf(("rewards",), np.dtype(float), (), 0)
        >>> segment = Segment(5, np.array([2, 1]), (leaf,), (np.arange(3.0),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> shortest_episode(segment).columns(0)
        {'rewards': array([0.])}
    """
    pairs = zip(segment.leaves, segment.arrays, strict=True)
    arrays = tuple(array[: 1 + leaf.more] for leaf, array in pairs)
    return Segment(0, np.array([1]), segment.leaves, arrays, AttributeTable({}))


def episode_files(segment: Segment, layout: Layout) -> Iterator[Chunks]:
    """Yield the file of each episode of a segment.

    Args:
        segment: the episodes.
        layout: of the file that pyarrow makes of one of them.

    Example:
        >>> from minari_pipe.storage.arrow_files import pa, read_ipc, write_ipc
        >>> from minari_pipe.storage.segment import Leaf
        >>> leaf = Leaf(("rewards",), np.dtype(float), (), 0)
        >>> segment = Segment(5, np.array([2, 1]), (leaf,), (np.array([7.0, 8.0, 9.0]),),
        ...                   AttributeTable({"id": np.array([5, 6])}))
        >>> data = write_ipc(pa.record_batch({"rewards": [0.0, 0.0]}))
        >>> layout = Layout.of(data, read_ipc(data).schema)
        >>> [read_ipc(b"".join(file)).to_pydict() for file in episode_files(segment, layout)]
        [{'rewards': [7.0, 8.0, 0.0]}, {'rewards': [9.0, 0.0]}]
    """
    leaves = {
        _field_path(leaf.path): (leaf, array)
        for leaf, array in zip(segment.leaves, segment.arrays, strict=True)
    }
    sources: list[tuple[Any, int, list[int]]] = []
    for buffer in layout.buffers:
        leaf, array = leaves[buffer.path]
        values = np.ascontiguousarray(as_stored(array, None, {})).reshape(-1)
        if buffer.dtype == np.bool_:
            sources.append((values, buffer.size, segment.bounds(leaf.more)))
        else:
            data = values.view(np.uint8).data
            width = buffer.size * buffer.dtype.itemsize
            sources.append((data, width, segment.bounds(leaf.more)))
    fillings: dict[int, list[bytes]] = {}
    for place, steps in enumerate(segment.steps.tolist()):
        frame = layout.frame(steps + 1)
        pieces: list[Any] = [
            source[bounds[place] * width : bounds[place + 1] * width]
            for source, width, bounds in sources
        ]
        pieces = [
            piece if isinstance(piece, memoryview) else np.packbits(piece, bitorder="little").data
            for piece in pieces
        ]
        if steps not in fillings:  # what does not count of the last row, and more
            ends = zip(pieces, frame.places, frame.ends, strict=True)
            fillings[steps] = [bytes(end - begin - len(piece)) for piece, begin, end in ends]
        pairs = zip(pieces, fillings[steps], strict=True)
        chunks = [frame.head, *chain.from_iterable(pairs), frame.tail]
        yield [b"".join(chunks)] if frame.size <= FEW_BYTES else chunks


def _field_path(path: Path) -> tuple[str, ...]:
    """Return the names of the fields that lead to a leaf; extra step data are columns."""
    return tuple(map(str, path[1:] if path[0] == "extras" else path))
