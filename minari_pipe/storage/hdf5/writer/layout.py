"""Lay out the bytes that describe an episode in an HDF5 file once, and fill them in for thousands.

libhdf5 spends a millisecond on an episode of six arrays, whatever their size. But apart from the
values, it writes the same bytes for all episodes of one structure, except for a few numbers:
addresses, row counts, attribute values. So these bytes are laid out here once, as a block::

    block of one episode
    ├─ for each array: a tree of its one chunk, the header of the dataset
    ├─ for each group in it: the header, with a link to each member
    └─ the header of the episode's group, with links and attributes

and NumPy repeats the block and fills in the numbers. Section numbers in this package's modules
``layout*`` are those of the HDF5 File Format Specification, version 3.0,
https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.hdf5.writer.layout_types import (
    InexpressibleError,
    data_type,
    padded,
    text_type,
)
from minari_pipe.storage.segment import Ints, Leaf

Bytes = npt.NDArray[np.uint8]

#: an undefined address, and an unlimited dimension
UNDEFINED = 0xFFFFFFFFFFFFFFFF
#: bytes of the reference to a text: its length, its heap, its number there (IV.A.2.d)
TEXT_REFERENCE = 16

#: half of the most chunks per node of a dataset's tree, as recorded in the superblock. All datasets
#: here have one chunk, so small is best; but with 1, libhdf5 builds a chain of nodes when others
#: append hundreds of chunks, and crashes
CHUNK_K = 2

#: kinds of header messages (IV.A.2)
_SPACE, _LINK_INFO, _TYPE, _FILL, _LINK, _LAYOUT, _GROUP_INFO, _ATTRIBUTE = 1, 2, 3, 5, 6, 8, 10, 12
#: message flag: the content cannot change
_CONSTANT = 1
#: most bytes of a message, since its size has 16 bits and is a multiple of 8
_MAX_MESSAGE = 65_528
_MAX_RANK = 32
#: most bytes of a chunk, since its size has 32 bits (III.A.1)
_MAX_CHUNK = 2**32 - 1


@dataclass(frozen=True)
class Attribute:
    """An attribute that every episode of a template has.

    Attributes:
        name: name in the file, with slashes for nested options.
        dtype: dtype of its numbers; None for text.
        shape: shape of the array; ``()`` for a single value.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the value in the block; for text, bytes of the references to it."""
        width = TEXT_REFERENCE if self.dtype is None else self.dtype.itemsize
        return width * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Found:
    """The result of :meth:`Template.match` for ``n`` blocks.

    Attributes:
        whole: blocks that are exactly as :meth:`Template.fill` makes them, shape ``(n,)``; for all
            others, the other attributes have no meaning.
        steps: number of steps ``T`` of each episode.
        addresses: address of each leaf of each episode, shape ``(len(leaves), n)``, in the file or
            not; 0 for a leaf without bytes.
        values: bytes of each attribute, shape ``(n, attribute.size)``.
    """

    whole: npt.NDArray[np.bool_]
    steps: Ints
    addresses: Ints
    values: tuple[Bytes, ...]


#: a part of the block that differs between episodes: its content, offset and bytes
_Field = tuple[tuple[str, int], int, int]


class Template:
    """The block of an episode with these leaves and attributes.

    Every array is one chunk, which can grow to any number of rows.

    Example:
        >>> leaf = Leaf(("observations",), np.dtype("<f8"), (3,), 1)
        >>> template = Template((leaf,), (Attribute("id", np.dtype("<i8")),))
        >>> starts = 1000 + template.size * np.arange(2)
        >>> places, ids = np.array([[100, 400]]), np.array([0, 1]).view(np.uint8).reshape(2, 8)
        >>> blocks = template.fill(starts, np.array([9, 5]), places, [ids])
        >>> found = template.match(blocks, starts)
        >>> found.whole, found.steps, found.addresses
        (array([ True,  True]), array([9, 5]), array([[100, 400]]))

    Attributes:
        leaves: as given.
        attributes: as given.
        size: bytes of a block, a multiple of 8.
        group: offset of the header of the episode's group in the block.
    """

    def __init__(self, leaves: tuple[Leaf, ...], attributes: tuple[Attribute, ...]) -> None:
        """Lay out the block.

        Raises:
            InexpressibleError: a leaf or an attribute cannot be laid out here.
        """
        self.leaves = leaves
        self.attributes = attributes
        self._bytes = bytearray()
        self._fields: list[_Field] = []
        #: pairs of offsets in the block: where an address is stored, and what it points to
        self._links: list[tuple[int, int]] = []
        self._widest = max((leaf.row_bytes for leaf in leaves), default=0)
        self.group = self._group(member_tree(leaves), attributes)
        self.size = len(self._bytes)
        self._template = np.frombuffer(bytes(self._bytes), np.uint8)
        # what fill() needs, for all fields of a kind at once
        data, sizes = self._of("data"), self._of("bytes")
        rows = {width: [f for f in self._of("rows") if f[2] == width] for width in (8, 4)}
        self._rows = {width: _ints(which for which, *_ in found) for width, found in rows.items()}
        self._data = _ints(which for which, *_ in data)
        self._targets = _ints(target for _, target in self._links)
        self._more = _ints(leaves[which].more for which, *_ in sizes)
        self._row_bytes = _ints(leaves[which].row_bytes for which, *_ in sizes)
        links = [offset for offset, _ in self._links]
        self._wide = _ints([*(offset for _, offset, _ in (*rows[8], *data)), *links])
        self._narrow = _ints(offset for _, offset, _ in (*rows[4], *sizes))

    def fill(
        self, starts: Ints, steps: Ints, addresses: Ints, values: Sequence[Bytes]
    ) -> npt.NDArray[np.uint8]:
        """Return the blocks of ``n`` episodes, shape ``(n, size)``.

        Args:
            starts: address of each block.
            steps: ``T`` of each episode.
            addresses: address of the values of each leaf, shape ``(len(leaves), n)``.
            values: bytes of each attribute, shape ``(n, attribute.size)``.
        """
        count = len(starts)
        blocks = np.empty((count, self.size), np.uint8)
        blocks[:] = self._template
        rows, own = self._rows, steps[:, None]
        wide = (own + rows[8], addresses[self._data].T, starts[:, None] + self._targets)
        narrow = (own + rows[4], (own + self._more) * self._row_bytes)
        for width, places, numbers in ((8, self._wide, wide), (4, self._narrow, narrow)):
            # a number may begin at any byte of a block, lowest byte first
            shape = (count, self.size - width + 1)
            anywhere = np.ndarray(shape, f"<u{width}", blocks, strides=(self.size, 1))
            anywhere[:, places] = np.concatenate(numbers, axis=1)
        for which, offset, width in self._of("attribute"):
            blocks[:, offset : offset + width] = values[which]
        return blocks

    def match(self, blocks: Bytes, starts: Ints) -> Found:
        """Recognize blocks that :meth:`fill` made, in a file of any origin.

        Args:
            blocks: shape ``(n, size)``.
            starts: address of each block.
        """
        first: dict[tuple[str, int], tuple[int, int]] = {}
        for key, offset, width in self._fields:
            if width == 8 or key[0] == "attribute":
                first.setdefault(key, (offset, width))
        count = len(blocks)
        steps = np.zeros(count, np.int64)
        addresses = np.zeros((len(self.leaves), count), np.int64)
        values = []
        for (kind, which), (offset, _) in first.items():
            if kind == "rows":
                steps[:] = _numbers(blocks, offset, 8).astype(np.int64) - which
            elif kind == "data":
                addresses[which] = _numbers(blocks, offset, 8).astype(np.int64)
        for which in range(len(self.attributes)):
            offset, width = first["attribute", which]
            values.append(blocks[:, offset : offset + width])
        # exclude numbers that are so large that they fill in like smaller ones
        most = _MAX_CHUNK // max(1, self._widest) - 1
        whole = (steps > 0) & (steps <= most) & (addresses >= 0).all(axis=0)
        again = self.fill(starts, np.where(whole, steps, 1), addresses, values)
        whole &= (again == blocks).all(axis=1)
        return Found(whole, steps, addresses, tuple(values))

    # -- groups

    def _group(self, tree: Mapping[str, Any], attributes: Sequence[Attribute] = ()) -> int:
        """Lay out a group and its members; return the offset of its header."""
        links = []
        for name in sorted(tree, key=lambda name: name.encode()):
            member = tree[name]
            below = self._group(member) if isinstance(member, dict) else self._dataset(member)
            links.append((name, below))
        header = self._begin_header()
        # Link Info (IV.A.2.c): links are messages in this header
        self._message(_LINK_INFO, struct.pack("<BBQQ", 0, 0, UNDEFINED, UNDEFINED))
        self._message(_GROUP_INFO, bytes(2), _CONSTANT)  # IV.A.2.k
        for name, below in links:
            self._link(name, below)
        for which, attribute in enumerate(attributes):
            self._attribute(which, attribute)
        self._end_header(header)
        return header

    def _link(self, name: str, target: int) -> None:
        """Add a link message (IV.A.2.g) to a member in the same block."""
        encoded = name.encode()
        width = (max(1, len(encoded)).bit_length() + 7) // 8  # bytes of the name's length, 1 or 2
        if width > 2:
            raise InexpressibleError(f"a name of {len(encoded)} bytes")
        flags, charset = (width - 1, b"") if name.isascii() else (width - 1 | 16, b"\1")
        head = struct.pack("<BB", 1, flags) + charset + len(encoded).to_bytes(width, "little")
        start = self._message(_LINK, head + encoded + bytes(8))
        self._links.append((start + len(head) + len(encoded), target))

    def _attribute(self, which: int, attribute: Attribute) -> None:
        """Add an attribute message (IV.A.2.m)."""
        kind = text_type() if attribute.dtype is None else data_type(attribute.dtype)
        space = _space(attribute.shape, attribute.shape)
        name = attribute.name.encode() + b"\0"
        parts = (name, kind, space)
        if len(name) + len(space) + attribute.size > _MAX_MESSAGE:
            raise InexpressibleError(f"an attribute of {attribute.size} bytes")
        if attribute.name.isascii():
            head = struct.pack("<BxHHH", 1, *map(len, parts))
            head += b"".join(map(padded, parts))
        else:  # only version 3 can mark a name as UTF-8; it pads nothing
            head = struct.pack("<BxHHHB", 3, *map(len, parts), 1) + b"".join(parts)
        start = self._message(_ATTRIBUTE, head + bytes(attribute.size))
        self._field("attribute", which, start + len(head), attribute.size)

    # -- datasets

    def _dataset(self, which: int) -> int:
        """Lay out a dataset of one chunk; return the offset of its header."""
        leaf = self.leaves[which]
        if len(leaf.shape) >= _MAX_RANK:
            raise InexpressibleError(f"{len(leaf.shape) + 1} dimensions")
        if leaf.row_bytes * (1 + leaf.more) > _MAX_CHUNK:
            raise InexpressibleError(f"rows of {leaf.row_bytes} bytes")
        kind = data_type(leaf.dtype)
        tree = self._chunk_tree(which, leaf) if leaf.row_bytes else None
        header = self._begin_header()
        # Dataspace (IV.A.2.b); a dimension of size 0 must be able to grow, or no chunk shape
        # would be allowed
        limits = (UNDEFINED, *(size or UNDEFINED for size in leaf.shape))
        start = self._message(_SPACE, _space((0, *leaf.shape), limits))
        self._field("rows", leaf.more, start + 8, 8)
        self._message(_TYPE, kind, _CONSTANT)
        # Fill Value (IV.A.2.f), version 2: incremental allocation, zeros where nothing is
        # written, which is the default
        self._message(_FILL, struct.pack("<BBBBI", 2, 3, 2, 1, 0), _CONSTANT)
        # Data Layout (IV.A.2.i), version 3, chunked
        head = struct.pack("<BBBQ", 3, 2, len(leaf.shape) + 2, UNDEFINED)
        row = [max(1, size) for size in leaf.shape]
        start = self._message(
            _LAYOUT, head + struct.pack(f"<{len(row) + 2}I", 0, *row, leaf.dtype.itemsize)
        )
        if tree is not None:
            self._links.append((start + 3, tree))
        self._field("rows", leaf.more, start + len(head), 4)
        self._end_header(header)
        return header

    def _chunk_tree(self, which: int, leaf: Leaf) -> int:
        """Lay out a version-1 tree with one entry, the chunk (III.A.1); return its offset.

        A node has room for ``2 * CHUNK_K`` children, and a key before, between and after them: the
        bytes of the chunk, a filter mask, and its offset in each dimension.
        """
        offset = len(self._bytes)
        self._bytes += struct.pack("<4sBBHQQ", b"TREE", 1, 0, 1, UNDEFINED, UNDEFINED)
        self._field("bytes", which, len(self._bytes), 4)
        self._bytes += bytes(8 + 8 * (len(leaf.shape) + 2))
        self._field("data", which, len(self._bytes), 8)
        self._bytes += bytes(8)
        # the key after the last child is the offset of the next chunk
        self._field("rows", leaf.more, len(self._bytes) + 8, 8)
        self._bytes += bytes(16) + struct.pack(
            f"<{len(leaf.shape) + 1}Q", *leaf.shape, leaf.dtype.itemsize
        )
        self._bytes += bytes((2 * CHUNK_K - 1) * (8 + 8 + 8 * (len(leaf.shape) + 2)))
        return offset

    # -- headers and their messages

    def _begin_header(self) -> int:
        """Begin an object header of version 1 (IV.A.1.a)."""
        offset = len(self._bytes)
        self._bytes += bytes(16)
        self._messages = 0
        return offset

    def _message(self, kind: int, content: bytes, flags: int = 0) -> int:
        """Add a message to the current header; return the offset of its content."""
        content = padded(content)
        if len(content) > _MAX_MESSAGE:
            raise InexpressibleError(f"a message of {len(content)} bytes")
        self._bytes += struct.pack("<HHB3x", kind, len(content), flags)
        self._bytes += content
        self._messages += 1
        return len(self._bytes) - len(content)

    def _end_header(self, offset: int) -> None:
        if self._messages >= 2**16:
            raise InexpressibleError(f"{self._messages} messages in one header")
        size = len(self._bytes) - offset - 16
        struct.pack_into("<BxHII", self._bytes, offset, 1, self._messages, 1, size)

    def _field(self, kind: str, which: int, offset: int, width: int) -> None:
        self._fields.append(((kind, which), offset, width))

    def _of(self, kind: str) -> list[tuple[int, int, int]]:
        return [(key[1], offset, width) for key, offset, width in self._fields if key[0] == kind]


@lru_cache(maxsize=256)
def template_of(leaves: tuple[Leaf, ...], attributes: tuple[Attribute, ...]) -> Template:
    """Return the template of these leaves and attributes, which is cached.

    Raises:
        InexpressibleError: a leaf or an attribute cannot be laid out.

    Example:
        >>> template_of((), ()) is template_of((), ())
        True
    """
    return Template(leaves, attributes)


def member_tree(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return the members of an episode's group by name: groups as dicts, leaves as their indices.

    Infos are a group even without a leaf; extras are next to the groups of the standard; an entry
    of a tuple is named ``_index_0``; and a key ``a/b`` is a member ``b`` of a group ``a``.

    Example:
        >>> leaf = Leaf(("extras", "state", "a/b"), np.dtype("<f8"), (), 0)
        >>> member_tree([leaf])
        {'infos': {}, 'state': {'a': {'b': 0}}}

    Raises:
        InexpressibleError: two leaves have the same path, or one is below another.
    """
    tree: dict[str, Any] = {"infos": {}}
    for which, leaf in enumerate(leaves):
        keys = leaf.path[1:] if leaf.path[0] == "extras" else leaf.path
        names = "/".join(key if isinstance(key, str) else f"_index_{key}" for key in keys)
        *parents, last = names.split("/")
        place = tree
        for parent in parents:
            below = place.setdefault(parent, {})
            if not isinstance(below, dict):
                raise InexpressibleError(f"a leaf below another one at {names!r}")
            place = below
        if last in place:
            raise InexpressibleError(f"two leaves at {names!r}")
        place[last] = which
    return tree


def _space(shape: tuple[int, ...], limits: tuple[int, ...]) -> bytes:
    """Return a version-1 dataspace message (IV.A.2.b), with the limits after the sizes."""
    numbers = (*shape, *limits)
    return struct.pack(f"<BBB5x{len(numbers)}Q", 1, len(shape), bool(shape), *numbers)


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _numbers(blocks: Bytes, offset: int, width: int) -> npt.NDArray[Any]:
    """Return the number that each block has at an offset, as a view."""
    return blocks[:, offset : offset + width].view(f"<u{width}")[:, 0]
