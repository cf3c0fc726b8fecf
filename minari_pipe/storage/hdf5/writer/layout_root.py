"""Lay out the two ends of an HDF5 file of episodes: the superblock and the root group.

::

    superblock           II.A, version 1: addresses of the root group and of the end of the file
    ...                  values and blocks of episodes
    local heap           III.D: the names ``episode_0``, ``episode_1``, ... in text order
    symbol table nodes   III.C: eight members each, with the addresses of their headers
    tree                 III.A.1: over these nodes, level above level
    root header          IV.A.1.a: addresses of the tree and the heap

All names are known when the file ends, so these structures are written full and in one go. The
root group tracks no creation order, which is libhdf5's default and what Minari expects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.hdf5.writer.layout import CHUNK_K, UNDEFINED
from minari_pipe.storage.segment import Ints

#: where values may begin, after the 100 bytes of the superblock
FIRST_ADDRESS = 104

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: half of the most members of a symbol table node, and half of the most children of a tree node;
#: these are libhdf5's defaults
_LEAF_K, _INTERNAL_K = 4, 16

_SUPERBLOCK = struct.Struct("<8sBBBxBBBxHHIHxxQQQQ")
_ROOT_ENTRY = struct.Struct("<QQIxxxxQQ")
_HEAP = struct.Struct("<4sB3xQQQ")
#: the free list of a heap without free space
_NOTHING_FREE = 1
#: bytes of a symbol table node, and of a tree node
_NODE_SIZE = 8 + 40 * 2 * _LEAF_K
_TREE_SIZE = 24 + 8 * (2 * 2 * _INTERNAL_K + 1)


@dataclass(frozen=True)
class Root:
    """The root group of a file.

    Attributes:
        start: address of its first byte; it extends to the end of the file.
        headers: address of the header of each episode's group, by episode number.
    """

    start: int
    headers: Ints


def ends_of(root: Root) -> tuple[bytes, bytes]:
    """Return the bytes of the superblock and of the root group.

    Example:
        >>> start, end = ends_of(Root(104, np.zeros(0, np.int64)))
        >>> len(start), end[:4]
        (104, b'HEAP')
    """
    order, names = _names(len(root.headers))
    # the heap: the empty name, then all names, each ended by a NUL
    content = bytes(8) + names.tobytes()
    head = _HEAP.pack(b"HEAP", 0, len(content), _NOTHING_FREE, root.start + _HEAP.size)
    places = 8 + names.itemsize * np.arange(len(names), dtype="<u8")
    tables_start = root.start + len(head) + len(content)
    tables = _tables(places, root.headers[order])
    tree, top = _tree(places, tables_start, len(tables) // _NODE_SIZE)
    # the header: a single Symbol Table message (IV.A.2.r)
    message = struct.pack("<HHB3xQQ", 17, 16, 0, top, root.start)
    header = struct.pack("<BxHII4x", 1, 1, 1, len(message)) + message
    header_address = tables_start + len(tables) + len(tree)
    end = b"".join((head, content, tables, tree, header))
    return _superblock(header_address, top, root.start, root.start + len(end)), end


def find_root(file: BinaryIO) -> Root | None:
    """Return the root group of a file if it is exactly as :func:`ends_of` writes it, else None.

    The bytes before it are not checked. Any other file gives None, damaged or not.

    Raises:
        OSError: the file cannot be read.
    """
    size = file.seek(0, 2)
    file.seek(0)
    superblock = file.read(FIRST_ADDRESS)
    if len(superblock) < FIRST_ADDRESS:
        return None
    *_, start = _ROOT_ENTRY.unpack_from(superblock, _SUPERBLOCK.size)
    if not FIRST_ADDRESS <= start <= size - _HEAP.size or start % 8:
        return None
    file.seek(start)
    signature, _, length, _, _ = _HEAP.unpack(file.read(_HEAP.size))
    count = (length - 8) // _name_width(0)
    if _name_width(count) != _name_width(0):
        count = (length - 8) // _name_width(count)
    # read this much only if the size is as expected
    if signature != b"HEAP" or count < 0 or size - start != _end_size(count):
        return None
    file.seek(start)
    end = file.read(size - start)
    nodes = -(-count // (2 * _LEAF_K))
    tables = end[_HEAP.size + 8 + count * _name_width(count) :][: nodes * _NODE_SIZE]
    if len(tables) != nodes * _NODE_SIZE:
        return None
    entries = np.frombuffer(tables, np.uint8).reshape(nodes, _NODE_SIZE)[:, 8:]
    order, _ = _names(count)
    headers = np.zeros(count, np.int64)
    headers[order] = entries.reshape(-1, 40)[:count, 8:16].copy().view("<i8")[:, 0]
    if count and (headers.min() < FIRST_ADDRESS or headers.max() >= start):
        return None
    root = Root(start, headers)
    return root if ends_of(root) == (superblock, end) else None


def _superblock(header: int, tree: int, heap: int, end: int) -> bytes:
    block = _SUPERBLOCK.pack(
        _SIGNATURE,
        1,  # versions: of the superblock, of free space, of the root's entry, of shared headers
        0,
        0,
        0,
        8,  # bytes of an address, and of a length
        8,
        _LEAF_K,
        _INTERNAL_K,
        0,  # no process has the file open
        CHUNK_K,  # only in version 1 and later
        0,  # addresses count from here
        UNDEFINED,
        end,
        UNDEFINED,
    )
    # symbol table entry (III.C) of the root group; 1: it holds the addresses of tree and heap
    return (block + _ROOT_ENTRY.pack(0, header, 1, tree, heap)).ljust(FIRST_ADDRESS, b"\0")


def _end_size(count: int) -> int:
    """Return the bytes of the root group for this number of episodes."""
    nodes = level = -(-count // (2 * _LEAF_K))
    trees = 0
    while level > 1 or not trees:
        level = max(1, -(-level // (2 * _INTERNAL_K)))
        trees += level
    names = 8 + count * _name_width(count)
    return _HEAP.size + names + nodes * _NODE_SIZE + trees * _TREE_SIZE + 16 + 8 + 16


def _name_width(count: int) -> int:
    """Return the bytes of a name with its NUL in the heap, a multiple of 8."""
    return 16 if count <= 10**7 else 24


def _names(count: int) -> tuple[Ints, npt.NDArray[np.bytes_]]:
    """Return the episode numbers sorted by their names as text, and the names."""
    names = np.array([f"episode_{i}" for i in range(count)], f"S{_name_width(count)}")
    order = np.argsort(names, kind="stable")
    return order, names[order]


def _tables(places: npt.NDArray[np.uint64], headers: Ints) -> bytes:
    """Return the symbol table nodes (III.C) for these name offsets and header addresses.

    The rest of each entry is zero, so it caches nothing else about the member.
    """
    most = 2 * _LEAF_K
    nodes = -(-len(places) // most)
    entries = np.zeros((nodes * most, 5), "<u8")
    entries[: len(places), 0] = places
    entries[: len(places), 1] = headers
    tables = np.zeros((nodes, _NODE_SIZE), np.uint8)
    counts = np.minimum(most, len(places) - most * np.arange(nodes)).astype("<u2")
    tables[:, :4] = np.frombuffer(b"SNOD", np.uint8)
    tables[:, 4] = 1  # version
    tables[:, 6:8] = counts.view(np.uint8).reshape(nodes, 2)
    tables[:, 8:] = entries.view(np.uint8).reshape(nodes, _NODE_SIZE - 8)
    return tables.tobytes()


def _tree(places: npt.NDArray[np.uint64], start: int, nodes: int) -> tuple[bytes, int]:
    """Return the tree (III.A.1) above symbol table nodes, and the address of its top node.

    A key between two children is the offset of the last name in the left one; before the first
    child it is that of the empty name.

    Args:
        places: offsets of all names.
        start: address of the first symbol table node; the tree follows the last one.
        nodes: number of symbol table nodes.
    """
    most = 2 * _INTERNAL_K
    children = [start + _NODE_SIZE * index for index in range(nodes)]
    keys = [int(places[min((i + 1) * 2 * _LEAF_K, len(places)) - 1]) for i in range(nodes)]
    address = start + _NODE_SIZE * nodes
    tree = bytearray()
    level = 0
    while True:
        here = range(0, max(1, len(children)), most)
        above = [address + len(tree) + _TREE_SIZE * index for index in range(len(here))]
        for index, first in enumerate(here):
            left = above[index - 1] if index else UNDEFINED
            right = above[index + 1] if index + 1 < len(here) else UNDEFINED
            own = children[first : first + most]
            numbers = [keys[first - 1] if index else 0]
            for child, key in zip(own, keys[first : first + most]):
                numbers += (child, key)
            node = struct.pack("<4sBBHQQ", b"TREE", 0, level, len(own), left, right)
            tree += (node + struct.pack(f"<{len(numbers)}Q", *numbers)).ljust(_TREE_SIZE, b"\0")
        keys = [keys[min(first + most, len(keys)) - 1] for first in here] if keys else []
        children = above
        level += 1
        if len(here) == 1:
            return bytes(tree), children[0]
