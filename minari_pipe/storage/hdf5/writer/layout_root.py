"""Lay out the two ends of an HDF5 file of episodes: the superblock and the root group.

::

    superblock           II.A, version 1: addresses of the root header and of the end of the file
    ...                  values and blocks of episodes
    local heap           III.D: the names ``episode_0``, ``episode_1``, ... in this order
    symbol table nodes   III.C: eight members each, by name, with the addresses of their headers
    tree                 III.A.1: over these nodes, level above level
    root header          IV.A.1.a: addresses of the tree and the heap

All names are known when the file ends, so these structures are written full and in one go. The
root group tracks no creation order, which is libhdf5's default and what Minari expects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.hdf5.writer.layout import CHUNK_K, UNDEFINED
from minari_pipe.storage.segment import Ints

#: where values may begin, after the 100 bytes of the superblock
FIRST_ADDRESS = 104

#: the two words in the superblock that change when a file grows: where it ends, and where its root
#: header is
END_WORD, ROOT_WORD = 44, 68

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
#: a tree of more levels has more members than a file can have
_MOST_LEVELS = 12
#: bytes of the root header
_HEADER_SIZE = 40


@dataclass(frozen=True)
class Root:
    """The root group of a file.

    Attributes:
        start: address of its first byte, if all of it lies at the end of what is used; else of the
            first byte that nothing uses.
        headers: address of the header of each episode's group, by episode number.
        end: address of the first byte that nothing uses; 0 if there is no file yet.
    """

    start: int
    headers: Ints
    end: int = 0


def ends_of(root: Root) -> tuple[bytes, bytes]:
    """Return the bytes of the superblock and of the root group.

    Example:
        >>> start, end = ends_of(Root(104, np.zeros(0, np.int64)))
        >>> len(start), end[:4]
        (104, b'HEAP')
    """
    names = _names(len(root.headers))
    order = _text_order(names)
    # the heap: the empty name, then all names, each ended by a NUL
    content = bytes(8) + names.tobytes()
    head = _HEAP.pack(b"HEAP", 0, len(content), _NOTHING_FREE, root.start + _HEAP.size)
    places = (8 + names.itemsize * order).astype("<u8")
    tables_start = root.start + len(head) + len(content)
    tables = _tables(places, root.headers[order])
    tree, top = _tree(places, tables_start, len(tables) // _NODE_SIZE)
    header = root_header(top, root.start)
    header_address = tables_start + len(tables) + len(tree)
    end = b"".join((head, content, tables, tree, header))
    return _superblock(header_address, root.start + len(end)), end


def find_root(data: Any) -> Root | None:
    """Return the root group of a file that :func:`ends_of` and :mod:`.growth` can have written.

    Nothing else in the file is checked. Any other file gives None, damaged or not.

    Args:
        data: the bytes of the file, for example a map of it.
    """
    used = used_bytes(data)
    if used is None:
        return None
    (end,) = struct.unpack_from("<Q", data, END_WORD)
    top, heap = struct.unpack_from("<QQ", data, used - 16)
    if not FIRST_ADDRESS <= heap <= used - _HEAP.size:
        return None
    signature, version, length, free, segment = _HEAP.unpack_from(data, heap)
    if (signature, version, free) != (b"HEAP", 0, _NOTHING_FREE):
        return None
    found = _members(np.frombuffer(data, np.uint8, used), top)
    if found is None:
        return None
    places, addresses = found
    names = _names(len(places))
    order = _text_order(names)
    content = bytes(8) + names.tobytes()
    if len(content) > length or segment > used - length or length % 8:
        return None
    if bytes(data[segment : segment + len(content)]) != content:
        return None
    if (places != 8 + names.itemsize * order).any():
        return None
    if len(order) and not FIRST_ADDRESS <= addresses.min() <= addresses.max() < used:
        return None
    headers = np.zeros(len(order), np.int64)
    headers[order] = addresses
    root = Root(heap, headers, used)
    superblock, last = ends_of(root)
    is_packed = with_end(superblock, end) == bytes(data[:FIRST_ADDRESS])
    is_packed = is_packed and last == bytes(data[heap:used])
    return root if is_packed else Root(used, headers, used)


def used_bytes(data: Any) -> int | None:
    """Return the address of the first byte that nothing uses, or None if there is no such root.

    Only the superblock and the root header are looked at; see :func:`find_root`.

    Args:
        data: the bytes of the file, for example a map of it.
    """
    if len(data) < FIRST_ADDRESS:
        return None
    end, header = (struct.unpack_from("<Q", data, word)[0] for word in (END_WORD, ROOT_WORD))
    if bytes(data[:FIRST_ADDRESS]) != _superblock(header, end):
        return None
    if not FIRST_ADDRESS <= header <= end - _HEADER_SIZE or end > len(data):
        return None
    top, heap = struct.unpack_from("<QQ", data, header + _HEADER_SIZE - 16)
    if bytes(data[header : header + _HEADER_SIZE]) != root_header(top, heap):
        return None
    return int(header + _HEADER_SIZE)


def _members(data: npt.NDArray[np.uint8], top: int) -> tuple[Ints, Ints] | None:
    """Return name offsets and header addresses of all members, in the order of a tree.

    None if the tree is not sound: its nodes are of other kinds or levels, or the keys are not the
    offsets of the last names below.

    Args:
        data: the bytes of the file.
        top: address of the top node.
    """
    most = len(data) // _NODE_SIZE  # a file has room for
    nodes, above, level = np.array([top], "<u8"), None, None
    while level != 0:
        blocks = _gathered(data, nodes, _TREE_SIZE)
        if blocks is None or (level is None and blocks[0, 5] > _MOST_LEVELS):
            return None
        level = int(blocks[0, 5]) if level is None else level - 1
        counts = blocks[:, 6:8].copy().view("<u2")[:, 0]
        numbers = blocks[:, 24:].copy().view("<u8")
        if not (blocks[:, :6] == [*b"TREE", 0, level]).all() or counts.max() > 2 * _INTERNAL_K:
            return None
        if not counts.all():
            is_empty = len(nodes) == 1 and level == 0 and above is None and not numbers[0, 0]
            return (np.zeros(0, np.int64), np.zeros(0, np.int64)) if is_empty else None
        used = np.arange(2 * _INTERNAL_K) < counts[:, None]
        children, keys = numbers[:, 1::2][used], numbers[:, 2::2][used]
        lasts = keys[np.cumsum(counts, dtype=np.int64) - 1]
        if (numbers[:, 0] != [0, *lasts[:-1]]).any() or len(children) > most:
            return None
        if above is not None and (lasts != above).any():
            return None
        nodes, above = children, keys
    blocks = _gathered(data, nodes, _NODE_SIZE)
    if blocks is None or not (blocks[:, :6] == [*b"SNOD", 1, 0]).all():
        return None
    counts = blocks[:, 6:8].copy().view("<u2")[:, 0]
    if not counts.all() or counts.max() > 2 * _LEAF_K:
        return None
    used = np.arange(2 * _LEAF_K) < counts[:, None]
    entries = blocks[:, 8:].copy().view("<u8").reshape(len(nodes), 2 * _LEAF_K, 5)[used]
    lasts = entries[np.cumsum(counts, dtype=np.int64) - 1, 0]
    if entries[:, 2:].any() or (lasts != above).any() or (entries[:, :2] >= len(data)).any():
        return None
    return entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)


def _gathered(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.uint64], size: int
) -> npt.NDArray[np.uint8] | None:
    """Return structures of one size, shape ``(n, size)``; None if one is not in the file."""
    if (starts < FIRST_ADDRESS).any() or (starts > len(data) - size).any() or (starts % 8).any():
        return None
    return data[starts.astype(np.int64)[:, None] + np.arange(size)]


def with_end(superblock: bytes, end: int) -> bytes:
    """Return a superblock for a file that ends later, after bytes that nothing uses."""
    return superblock[:END_WORD] + struct.pack("<Q", end) + superblock[END_WORD + 8 :]


def root_header(tree: int, heap: int) -> bytes:
    """Return the header of the root group, which has one Symbol Table message (IV.A.2.r)."""
    message = struct.pack("<HHB3xQQ", 17, 16, 0, tree, heap)
    return struct.pack("<BxHII4x", 1, 1, 1, len(message)) + message


def _superblock(header: int, end: int) -> bytes:
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
    # symbol table entry (III.C) of the root group; 0: it repeats nothing of what its header says
    return (block + _ROOT_ENTRY.pack(0, header, 0, 0, 0)).ljust(FIRST_ADDRESS, b"\0")


def _name_width(count: int) -> int:
    """Return the bytes of a name with its NUL in the heap, a multiple of 8."""
    return 16 if count <= 10**7 else 24


def _names(count: int) -> npt.NDArray[np.bytes_]:
    return np.array([f"episode_{i}" for i in range(count)], f"S{_name_width(count)}")


def _text_order(names: npt.NDArray[np.bytes_]) -> Ints:
    return np.argsort(names, kind="stable")


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
