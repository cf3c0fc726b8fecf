"""Add members to the root group of a finished file, whose bytes stay as they are.

A file of :mod:`.layout_root` grows behind the bytes that it uses: the names of more members, copies
of the nodes on the way to where they belong, and a new root header. Then the address of the root
header is replaced, one aligned word in the superblock. Whoever opens the file before that moment
finds the old root group, and after it the new one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minari_pipe.storage.hdf5.writer import layout_root as layout

#: an entry of a symbol table node, and the beginning of nodes of both kinds
_ENTRY = struct.Struct("<QQ24x")
_TABLE, _NODE = struct.Struct("<4sBxH"), struct.Struct("<4sBBHQQ")
_MOST_ENTRIES, _MOST_CHILDREN = 2 * layout._LEAF_K, 2 * layout._INTERNAL_K


@dataclass(frozen=True)
class Growth:
    """What to write so that a file has more members.

    Attributes:
        end: the bytes to append.
        root: the address of the new root header, to write to the superblock.
    """

    end: bytes
    root: int


def grow(data: Any, end: int, first: int, headers: Sequence[int]) -> Growth:
    """Return what adds members to the root group of a file.

    Args:
        data: the bytes of the file, for example a map of it.
        end: address of the next byte, behind all that the file has.
        first: number of members that the group has.
        headers: addresses of the headers of the members ``episode_<first>``, ...
    """
    tree = _Tree(data, end)
    numbers = range(first, first + len(headers))
    entries = sorted((b"episode_%d" % n, 8 + 16 * n, h) for n, h in zip(numbers, headers))
    (root,) = struct.unpack_from("<Q", data, layout.ROOT_WORD)
    top, heap = struct.unpack_from("<QQ", data, root + 24)
    _, _, size, _, names = layout._HEAP.unpack_from(data, heap)
    if 8 + 16 * numbers.stop > size:
        room = numbers.stop + numbers.stop // 8 + 64
        more = layout._names(room)[(size - 8) // 16 :].tobytes()
        size += len(more)
        heap = tree.end + len(tree.more)
        tree.add(
            layout._HEAP.pack(b"HEAP", 0, size, layout._NOTHING_FREE, heap + layout._HEAP.size)
        )
        tree.add(bytes(data[names : names + size - len(more)]) + more)
    root = tree.add(layout.root_header(tree.insert(top, entries), heap))
    return Growth(bytes(tree.more), root)


@dataclass
class _Tree:
    data: Any
    end: int
    more: bytearray = field(default_factory=bytearray)

    def add(self, content: bytes) -> int:
        """Append a structure; return its address."""
        address = self.end + len(self.more)
        self.more += content
        return address

    def insert(self, top: int, entries: list[tuple[bytes, int, int]]) -> int:
        """Insert entries, sorted by name, below the top of a tree; return the new top."""
        children = self._inserted(top, entries)
        level = self.data[top + 5]
        while len(children) > 1 or not children:
            level += 1
            children = self._nodes(level, 0, children)
        return children[0][0]

    def _inserted(self, node: int, entries: list[tuple[bytes, int, int]]) -> list[tuple[int, int]]:
        """Return the nodes that take the place of one, each with the offset of its last name."""
        if bytes(self.data[node : node + 4]) == b"SNOD":
            return self._tables(node, entries)
        _, _, level, count, _, _ = _NODE.unpack_from(self.data, node)
        numbers = struct.unpack_from(f"<{2 * count + 1}Q", self.data, node + _NODE.size)
        children: list[tuple[int, int]] = []
        at = 0
        for which in range(count):
            child, key = numbers[2 * which + 1], numbers[2 * which + 2]
            upto = len(entries)
            if which < count - 1:
                name = self._name(key)
                upto = at
                while upto < len(entries) and entries[upto][0] <= name:
                    upto += 1
            children += self._inserted(child, entries[at:upto]) if upto > at else [(child, key)]
            at = upto
        if not count:
            children = self._tables(None, entries)
        return self._nodes(level, numbers[0], children)

    def _name(self, offset: int) -> bytes:
        return b"episode_%d" % ((offset - 8) // 16)

    def _tables(
        self, node: int | None, entries: list[tuple[bytes, int, int]]
    ) -> list[tuple[int, int]]:
        if node is not None:
            count = _TABLE.unpack_from(self.data, node)[2]
            old = (_ENTRY.unpack_from(self.data, node + 8 + 40 * i) for i in range(count))
            entries = sorted([*entries, *((self._name(place), place, h) for place, h in old)])
        made = []
        for own in _shared(entries, _MOST_ENTRIES):
            content = _TABLE.pack(b"SNOD", 1, len(own))
            content += b"".join(_ENTRY.pack(place, header) for _, place, header in own)
            made.append((self.add(content.ljust(layout._NODE_SIZE, b"\0")), own[-1][1]))
        return made

    def _nodes(
        self, level: int, first: int, children: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        made = []
        for own in _shared(children, _MOST_CHILDREN):
            numbers = [first, *(number for child in own for number in child)]
            node = _NODE.pack(b"TREE", 0, level, len(own), layout.UNDEFINED, layout.UNDEFINED)
            content = node + struct.pack(f"<{len(numbers)}Q", *numbers)
            made.append((self.add(content.ljust(layout._TREE_SIZE, b"\0")), own[-1][1]))
            first = own[-1][1]
        return made


def _shared(items: list[Any], most: int) -> list[list[Any]]:
    """Share items out among as few lists as possible, of nearly equal lengths."""
    lists = -(-len(items) // most)
    ends = [len(items) * (number + 1) // lists for number in range(lists)]
    return [items[start:end] for start, end in zip([0, *ends], ends)]
