"""Read the trees and heaps in which HDF5 stores group members, chunks and long values.

h5py writes version-1 trees and heaps by default; a group or object that tracks creation order uses
version 2 and a fractal heap. A damaged pointer can lead in a circle, so no node is visited twice,
and a tree may not have more entries than its file has room for.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser.messages import as_name
from minari_pipe.storage.hdf5.parser.nodes import Links
from minari_pipe.storage.hdf5.parser.source import (
    TOO_MUCH,
    UNDEFINED,
    FileBytes,
    NotUnderstoodError,
    check_sum,
)

_NODE = struct.Struct("<4sBBHQQ")
_HEAP = struct.Struct("<4sB3xQQQ")
_SYMBOLS = struct.Struct("<4sBBH")
_SYMBOL = struct.Struct("<QQII16x")
_COLLECTION = struct.Struct("<4sB3xQ")
_HEAP_OBJECT = struct.Struct("<HHIQ")
_FRACTAL = struct.Struct("<4sBHHBIQQQQQQQQQQQQHQQHHQH")
_TREE2 = struct.Struct("<4sBBIHHBBQHQI")
#: deeper than any tree that fits on a disk
_MAX_DEPTH = 24


def symbol_table(source: FileBytes, tree: int, heap: int, reader: str) -> Links:
    """Read the members of a version-1 group; ``reader`` is its name."""
    names = _local_heap(source, heap, reader)
    room = len(names)  # an intact heap has each name once
    found: list[tuple[bytes, str, int]] = []
    for address in _leaves(source, tree, kind=0):
        head = source.take(address, 8, "symbol table")
        signature, version, _, count = _SYMBOLS.unpack(head)
        if signature != b"SNOD" or version != 1:
            raise CorruptDatasetError(f"no symbol table at address {address}")
        if count > source.most_members:
            raise CorruptDatasetError(
                f"a symbol table node has {count} members, the file has at most "
                f"{source.most_members} in one"
            )
        entries = source.take(address + 8, 40 * count, "symbol table")
        if 40 * (len(found) + count) > source.size:
            raise CorruptDatasetError("a group has more members than the file can hold")
        for offset, header, cache, _ in _SYMBOL.iter_unpack(entries):
            end = names.find(b"\0", offset)
            if end <= offset:
                raise CorruptDatasetError(
                    f"invalid name at {offset} in a heap of {len(names)} bytes"
                )
            room -= end - offset
            if room < 0:
                raise CorruptDatasetError(TOO_MUCH)
            if cache > 2:
                raise CorruptDatasetError(f"a member of unknown kind {cache}")
            found.append((names[offset:end], "soft" if cache == 2 else "hard", header))
    if any(left[0] >= right[0] for left, right in pairwise(found)):
        raise CorruptDatasetError("the members of a group are not sorted by name")
    return {as_name(name): (kind, header) for name, kind, header in found}


def _local_heap(source: FileBytes, address: int, reader: str) -> bytes:
    signature, version, size, free, data = _HEAP.unpack(source.take(address, 32, "heap"))
    if signature != b"HEAP" or version:
        raise CorruptDatasetError(f"no heap at address {address}")
    source.spend(size, (address, reader))
    names = source.take(data, size, "heap")
    gone = 0
    while free != 1 and free != UNDEFINED:  # free blocks form a chain; libhdf5 walks it too
        following, length = struct.unpack_from("<QQ", names, free)
        gone += length
        if gone > size or length < 16 or free + length > size:
            raise CorruptDatasetError(f"the free list of the heap at address {address} is damaged")
        free = following
    return names


def _leaves(source: FileBytes, root: int, kind: int) -> Iterator[int]:
    """Yield the addresses in the leaves of a group's version-1 tree, in order."""
    for _, child in _entries(source, root, kind, 8):
        yield child


def _entries(source: FileBytes, root: int, kind: int, key_size: int) -> Iterator[tuple[bytes, int]]:
    """Yield key and address of every entry of a version-1 tree, in order."""
    step = key_size + 8
    for block, count in _leaf_nodes(source, root, kind, key_size):
        for at in range(0, count * step, step):
            key_end = at + key_size
            yield block[at:key_end], int.from_bytes(block[key_end : at + step], "little")


def _leaf_nodes(
    source: FileBytes, root: int, kind: int, key_size: int
) -> Iterator[tuple[bytes, int]]:
    """Yield the leaf nodes of a version-1 tree, in order: their entries, and how many."""
    budget = source.size // 8
    visited = set()
    pending: list[tuple[int, int | None]] = [(root, None)]
    step = key_size + 8
    while pending:
        address, expected = pending.pop()
        if address in visited:
            raise CorruptDatasetError(f"the tree at address {root} contains a cycle")
        visited.add(address)
        node = _NODE.unpack(source.take(address, 24, "tree"))
        signature, found, level, count, _, _ = node
        if signature != b"TREE" or found != kind:
            raise CorruptDatasetError(f"no tree of kind {kind} at address {address}")
        if level > _MAX_DEPTH or (expected is not None and level != expected):
            raise CorruptDatasetError(f"a tree node of level {level}, expected {expected}")
        if count > source.most_children[kind]:
            raise CorruptDatasetError(
                f"a tree node has {count} children, the file has at most "
                f"{source.most_children[kind]} in one"
            )
        budget -= count
        if budget < 0:
            raise CorruptDatasetError(
                f"the tree at address {root} has more entries than the file can hold"
            )
        block = source.take(address + 24, count * step + key_size, "tree")
        if not level:
            yield block, count
            continue
        ends = range(step, count * step + 1, step)
        children = [int.from_bytes(block[end - 8 : end], "little") for end in ends]
        pending.extend((child, level - 1) for child in reversed(children))


#: a node with at least this many chunks is checked with NumPy, all chunks at once
_MANY_CHUNKS = 8


def chunks(
    source: FileBytes, root: int, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> list[tuple[tuple[int, ...], int, int, int]]:
    """Read the locations of a dataset's chunks.

    Args:
        source: the file.
        root: address of the chunk tree.
        shape: shape of the dataset.
        chunk: shape of a chunk, followed by the bytes of an element.

    Returns:
        Offset in the dataset, address, size in bytes and filter mask of each chunk.
    """
    rank = len(chunk) - 1  # without the bytes of an element
    entry = struct.Struct(f"<II{rank + 2}Q")
    form = np.dtype(
        [
            ("size", "<u4"),
            ("mask", "<u4"),
            ("place", "<u8", (rank,)),
            ("zero", "<u8"),
            ("at", "<u8"),
        ]
    )
    found: list[tuple[tuple[int, ...], int, int, int]] = []
    for block, count in _leaf_nodes(source, root, 1, entry.size - 8):
        if count < _MANY_CHUNKS:
            for number in range(count):
                size, mask, *offset, zero, address = entry.unpack_from(block, number * entry.size)
                found.append((tuple(offset), address, size, mask))
                outside = any(at % by or at >= end for at, by, end in zip(offset, chunk, shape))
                if zero or outside:
                    raise CorruptDatasetError(
                        f"misplaced chunk at {offset} of an array of shape {shape}"
                    )
            continue
        entries = np.frombuffer(block, form, count)
        places = entries["place"]
        misplaced = (places % np.array(chunk[:-1], "<u8") != 0) | (places >= np.array(shape, "<u8"))
        if misplaced.any() or entries["zero"].any():
            raise CorruptDatasetError(
                f"misplaced chunks at {places[:4].tolist()} of an array of shape {shape}"
            )
        columns = (entries[name].tolist() for name in ("place", "at", "size", "mask"))
        found += [(tuple(place), *rest) for place, *rest in zip(*columns)]
    for (place, _, _, _), (after, _, _, _) in pairwise(found):
        if after <= place:
            raise CorruptDatasetError(f"misplaced chunk at {after} of an array of shape {shape}")
    for place, address, size, _ in found:
        if address + size > source.size:
            raise CorruptDatasetError(f"the chunk at {place} is outside the file")
    return found


def whole_grid(
    source: FileBytes, root: int, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> npt.NDArray[np.uint64] | None:
    """Return the chunk addresses of a dataset if every chunk is there once and in order.

    Return None if not, or if a chunk is outside the file or skips a filter; see :func:`chunks`.

    Args:
        source: the file.
        root: address of the chunk tree.
        shape: shape of the dataset.
        chunk: shape of a chunk, followed by the bytes of an element.
    """
    counts = tuple([-(-end // step) for end, step in zip(shape, chunk)])
    step = 8 * (len(counts) + 3)
    entries = b"".join(
        [block[: count * step] for block, count in _leaf_nodes(source, root, 1, step - 8)]
    )
    if not entries or len(entries) != step * math.prod(counts):
        return None  # so the grid below is no larger than the entries
    words = np.frombuffer(entries, "<u8").reshape(-1, step // 8)
    addresses = words[:, -1]
    if not np.array_equal(words[:, :-1], _grid(counts, chunk)):
        return None
    return addresses if addresses.max() <= source.size - math.prod(chunk) else None


@lru_cache(maxsize=8)
def _grid(counts: tuple[int, ...], chunk: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return the expected chunk tree entries without addresses, as 64-bit words."""
    places = np.indices(counts, np.uint64).reshape(len(counts), -1).T * np.array(chunk[:-1], "<u8")
    # first word: bytes, and a mask of no filters; last word: offset in the element, which is 0
    ends = [np.full((len(places), 1), word, "<u8") for word in (math.prod(chunk), 0)]
    return np.hstack([ends[0], places, ends[1]])


#: shorter values are not counted, since each reference to them takes up space in the file
_LONG = 4096


class GlobalHeap:
    """The variable-length values of a file."""

    def __init__(self, source: FileBytes) -> None:
        self._source = source
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}
        self._room = source.size

    def get(self, address: int, index: int, length: int, reader: object) -> bytes:
        """Return the first bytes of an object.

        Args:
            address: address of the collection that contains the object.
            index: index of the object in the collection.
            length: number of bytes.
            reader: identifies the one place in the file that refers to the object.

        Raises:
            CorruptDatasetError: there is no such object, or it is shorter; or many places refer to
                the same objects.
        """
        if length >= _LONG:
            self._source.spend(length, (address, index, reader))
        objects = self._collections.get(address)
        if objects is None:
            objects = self._collections[address] = self._collection(address)
        start, size = objects.get(index, (0, -1))
        if length > size:
            raise CorruptDatasetError(
                f"no value of {length} bytes at index {index} of the heap at address {address}"
            )
        return self._source.data[start : start + length]

    def _collection(self, address: int) -> dict[int, tuple[int, int]]:
        head = _COLLECTION.unpack(self._source.take(address, 16, "global heap"))
        signature, version, size = head
        if signature != b"GCOL" or version != 1:
            raise CorruptDatasetError(f"no global heap at address {address}")
        block = self._source.take(address, size, "global heap")
        self._room -= size  # collections of an intact file do not overlap
        if self._room < 0:
            raise CorruptDatasetError("the global heaps are larger than their file")
        objects: dict[int, tuple[int, int]] = {}
        at = 16
        while at + 16 <= size:
            index, _, _, length = _HEAP_OBJECT.unpack_from(block, at)
            if not index and length == size - at:  # the rest is free
                break
            # libhdf5 would go on after free space, or forever where that has no bytes
            if not index or at + 16 + length > size or index in objects:
                raise CorruptDatasetError(f"the global heap at address {address} is damaged")
            objects[index] = (address + at + 16, length)
            at += 16 + (length + 7 & ~7)
        return objects


class FractalHeap:
    """A version-2 heap, which holds links or attributes.

    Attributes:
        bytes_read: bytes of blocks, which are checked, and of objects that were read so far.
    """

    def __init__(self, source: FileBytes, address: int) -> None:
        self.bytes_read = 0
        self._source = source
        self._address = address
        length = _FRACTAL.size
        head = source.take(address, length + 4, "fractal heap")
        (
            signature,
            version,
            self._id_size,
            filters,
            self._flags,
            most,
            _,
            self._huge,
            *_,
            self._width,
            self._start,
            self._largest,
            bits,
            _,
            root,
            rows,
        ) = _FRACTAL.unpack_from(head)
        if signature != b"FRHP" or version:
            raise CorruptDatasetError(f"no fractal heap at address {address}")
        if filters:
            raise NotUnderstoodError("a filtered fractal heap")
        check_sum(head, "a fractal heap")
        sizes = (self._width, self._start, self._largest)
        if any(size.bit_count() > 1 for size in sizes):  # libhdf5 would round them
            raise CorruptDatasetError("a size in a fractal heap is no power of two")
        self._offset_size = (bits + 7) // 8
        self._length_size = min((self._largest.bit_length() + 6) // 8, _width_of(most))
        #: direct blocks, which hold the managed objects: offset in the heap, address and size
        self._blocks: list[tuple[int, int, int]] = []
        self._checked: set[int] = set()
        if root != UNDEFINED:
            if rows:
                self._indirect(root, rows, 0, 0)
            else:
                self._blocks.append((0, root, self._start))
        self._places = [block[0] for block in self._blocks]
        self._long: dict[int, tuple[int, int]] | None = None

    def get(self, identifier: bytes) -> bytes:
        """Return an object by its heap id."""
        kind = identifier[0] >> 4
        if kind == 0:
            split = 1 + self._offset_size
            offset = int.from_bytes(identifier[1:split], "little")
            length = int.from_bytes(identifier[split : split + self._length_size], "little")
            return self._managed(offset, length)
        if kind == 2 and self._id_size <= 18:
            return identifier[1 : 2 + (identifier[0] & 15)]
        if kind != 1:
            raise CorruptDatasetError(f"an object of unknown kind {kind} in a fractal heap")
        if self._id_size - 1 >= 16:
            place, length = struct.unpack_from("<QQ", identifier, 1)
            return self._take(place, length, "an object of a heap")
        if self._long is None:
            found = tree_records(self._source, self._huge, 1)
            records = [struct.unpack("<QQQ", record) for record in found]
            self._long = {key: (place, length) for place, length, key in records}
            if len(self._long) < len(records):
                raise CorruptDatasetError("two objects of a fractal heap have the same number")
        key = int.from_bytes(identifier[1 : min(self._id_size, 9)], "little")
        if key not in self._long:
            raise CorruptDatasetError("an object is missing from a fractal heap")
        return self._take(*self._long[key], "an object of a heap")

    def _take(self, address: int, size: int, what: str) -> bytes:
        self.bytes_read += size
        if self.bytes_read > 2 * self._source.size:  # an intact heap has each block and object once
            raise CorruptDatasetError(TOO_MUCH)
        return self._source.take(address, size, what)

    def _managed(self, offset: int, length: int) -> bytes:
        index = bisect_right(self._places, offset) - 1
        place, address, size = self._blocks[index] if index >= 0 else (0, 0, 0)
        inside = offset - place
        if inside + length > size or inside < 13 + self._offset_size:
            raise CorruptDatasetError("an object of a fractal heap is outside its block")
        if address not in self._checked:
            self._check_block(address, place, size)
        return self._take(address + inside, length, "an object of a heap")

    def _check_block(self, address: int, place: int, size: int) -> None:
        block = self._take(address, size, "heap block")
        end = 13 + self._offset_size
        owner = int.from_bytes(block[5:13], "little")
        if (
            block[:5] != b"FHDB\0"
            or owner != self._address
            or int.from_bytes(block[13:end], "little") != place
        ):
            raise CorruptDatasetError(f"no block of a fractal heap at address {address}")
        if self._flags & 2:  # the checksum covers the block with zeros in the checksum's place
            check_sum(block[:end] + bytes(4) + block[end + 4 :] + block[end : end + 4], "a heap")
        self._checked.add(address)

    def _indirect(self, address: int, rows: int, place: int, depth: int) -> None:
        """Collect the direct blocks below an indirect one."""
        start, width = self._start, self._width
        if depth > _MAX_DEPTH or not start or not width or rows > 64:
            raise CorruptDatasetError("a fractal heap is nested too deeply")
        direct_rows = min(rows, (self._largest // start).bit_length() + 1)
        head = 13 + self._offset_size
        size = head + 8 * rows * width + 4
        block = self._take(address, size, "heap block")
        check_sum(block, "a block of a fractal heap")
        if block[:5] != b"FHIB\0" or int.from_bytes(block[5:13], "little") != self._address:
            raise CorruptDatasetError(f"no indirect block of a heap at address {address}")
        children = struct.unpack_from(f"<{rows * width}Q", block, head)
        for index, child in enumerate(children):
            row = index // width
            extent = start if row == 0 else start << (row - 1)
            if child != UNDEFINED:
                if len(self._blocks) > self._source.size // start:
                    raise CorruptDatasetError(
                        "a fractal heap has more blocks than the file can hold"
                    )
                if row < direct_rows:
                    self._blocks.append((place, child, extent))
                else:
                    below = (extent // (start * width)).bit_length()
                    self._indirect(child, below, place, depth + 1)
            place += extent


def tree_records(source: FileBytes, address: int, kind: int) -> list[bytes]:
    """Read all records of a version-2 tree, in order."""
    head = source.take(address, _TREE2.size, "tree")
    signature, version, found, node_size, record, depth, _, _, root, count, total, _ = (
        _TREE2.unpack(head)
    )
    if signature != b"BTHD" or version or found != kind:
        raise CorruptDatasetError(f"no tree of kind {kind} at address {address}")
    check_sum(head, "a tree")
    if depth > _MAX_DEPTH or not 0 < record <= node_size or node_size > source.size:
        raise CorruptDatasetError(f"invalid tree: {depth} levels, nodes of {node_size} bytes")
    most = (node_size - 10) // record
    width = _width_of(most)
    widths = [0]  # bytes of the record count below a node, by level
    below = most
    for _ in range(depth):
        pointer = 8 + width + widths[-1]
        here = (node_size - 10 - pointer) // (record + pointer)
        below = (here + 1) * below + here
        widths.append(_width_of(below))
    records: list[bytes] = []
    visited: set[int] = set()
    room = source.size

    def visit(place: int, entries: int, level: int) -> None:
        nonlocal room
        if place in visited or len(records) + entries > total:
            raise CorruptDatasetError(f"the tree at address {address} contains a cycle")
        visited.add(place)
        pointer = 8 + width + (widths[level - 1] if level > 1 else 0)
        size = 6 + entries * record + ((entries + 1) * pointer if level else 0) + 4
        if size > node_size:
            raise CorruptDatasetError(
                f"too many records in a tree node of {node_size} bytes: {entries}"
            )
        room -= size
        if room < 0:
            raise CorruptDatasetError(TOO_MUCH)
        block = source.take(place, size, "tree")
        check_sum(block, "a tree node")
        if block[:6] != (b"BTIN\0" if level else b"BTLF\0") + bytes([kind]):
            raise CorruptDatasetError(f"no tree node at address {place}")
        own = [block[at : at + record] for at in range(6, 6 + entries * record, record)]
        if not level:
            records.extend(own)
            return
        at = 6 + entries * record
        for index in range(entries + 1):
            child = int.from_bytes(block[at : at + 8], "little")
            inside = int.from_bytes(block[at + 8 : at + 8 + width], "little")
            visit(child, inside, level - 1)
            records.extend(own[index : index + 1])
            at += pointer

    if root != UNDEFINED and total:
        visit(root, count, depth)
    if len(records) != total:
        raise CorruptDatasetError(f"a tree has {len(records)} records, its header says {total}")
    return records


def _width_of(limit: int) -> int:
    """Return the number of bytes that store numbers up to a limit."""
    return (max(1, limit).bit_length() + 7) // 8
