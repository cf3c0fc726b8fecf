"""Read HDF5 files without libhdf5, which crashes or hangs on damaged files.

The reader supports what Minari and this package write, and little more:

::

    superblock (versions 0 to 3)
    └─ root group ── object header (versions 1 and 2): messages
       ├─ attributes              in the header, or in a fractal heap
       └─ members                 symbol table, links in the header, or in a fractal heap
          ├─ group ...
          └─ dataset              integers, floats, bools, complex, text, sequences
             └─ values            in the header, in one piece, or in chunks (gzip, shuffle)

Nothing is read before it is requested, each address is checked against the size of the file, and
arrays are copies. Damage raises :class:`CorruptDatasetError`; an unsupported feature of the format
raises :class:`NotUnderstoodError`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser import nodes
from minari_pipe.storage.hdf5.parser.headers import (
    ATTRIBUTE,
    ATTRIBUTE_INFO,
    ELSEWHERE,
    FILL,
    FILTERS,
    LAYOUT,
    LINK,
    LINK_INFO,
    OLD_FILL,
    SPACE,
    SYMBOLS,
    TYPE,
    Messages,
    read_header,
)
from minari_pipe.storage.hdf5.parser.messages import (
    Space,
    Type,
    as_text,
    parse_attribute,
    parse_fill,
    parse_filters,
    parse_layout,
    parse_link,
    parse_space,
    parse_type,
    unfilter,
)
from minari_pipe.storage.hdf5.parser.source import DAMAGE, UNDEFINED, FileBytes, NotUnderstoodError
from minari_pipe.storage.hdf5.parser.trees import (
    FractalHeap,
    GlobalHeap,
    chunks,
    symbol_table,
    tree_records,
    whole_grid,
)

#: arrays up to this size are read without comparing their size with the file's
FREE_BYTES = 2**26
#: gzip compresses at most 1032 to 1
MOST_PACKED = 1100
#: without gzip, only values that were never written take up no space
_MOST_UNWRITTEN = 16

_PAIR = struct.Struct("<QQ")


class Group(nodes.Group):
    """A group of the file."""

    def __init__(self, file: File, name: str, messages: Messages) -> None:
        self.name = name
        self._file = file
        self._messages = messages
        self._members: dict[str, nodes.Group | nodes.Dataset] | None = None

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """The attributes."""
        return self._file._attributes(self.name, self._messages)

    def keep_members(self) -> None:
        """Cache the members of this group from now on."""
        self._members = {}

    @cached_property
    def links(self) -> nodes.Links:
        """Kind of link and address of every member, by name."""
        return self._file._links(self.name, self._messages)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all members."""
        return iter(self.links)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.links)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a member of this name."""
        return name in self.links

    def __getitem__(self, name: str) -> nodes.Group | nodes.Dataset:
        """Return a member that is in this file."""
        if self._members is not None and name in self._members:
            return self._members[name]
        kind, address = self.links[name]
        path = f"{self.name}/{name}" if self.name != "/" else f"/{name}"
        if kind != "hard":
            raise CorruptDatasetError(f"{path} is a soft or external link")
        node = self._file._node(path, address)
        if self._members is not None:
            self._members[name] = node
        return node

    def link_kind(self, name: str) -> str:
        """Return the kind of a member's link."""
        return self.links[name][0]


class Dataset(nodes.Dataset):
    """A dataset of the file."""

    def __init__(self, file: File, name: str, messages: Messages) -> None:
        self.name = name
        self._file = file
        self._messages = messages
        self._type = parse_type(messages[TYPE][0])
        self._space = parse_space(messages[SPACE][0])
        self._layout = parse_layout(messages[LAYOUT][0])
        self.dtype = self._type.dtype
        self.shape = self._space.shape
        self.maxshape = self._space.maxshape
        self.is_elsewhere = self._layout.kind == "virtual" or ELSEWHERE in messages
        self.chunks = self._layout.chunk[:-1] or None
        if self.chunks:
            size = self._type.raw.itemsize
            if len(self.chunks) != len(self.shape or ()) or self._layout.chunk[-1] != size:
                raise CorruptDatasetError(
                    f"invalid chunks of shape {self._layout.chunk} in an array of shape "
                    f"{self.shape} with elements of {size} bytes"
                )
            self._filters = parse_filters(messages[FILTERS][0]) if FILTERS in messages else []
            self.gzip = next((values[0] for kind, values in self._filters if kind == 1), None)
        elif FILTERS in messages:
            raise NotUnderstoodError("filters without chunks")

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """The attributes."""
        return self._file._attributes(self.name, self._messages)

    def read(self) -> Any:
        """Return all values."""
        file = self._file
        file.source.check_still_whole()
        try:
            if self.is_elsewhere:
                raise CorruptDatasetError("its values are in another file")
            if self.shape is None:
                return h5py.Empty(self.dtype)
            raw = self._raw().reshape(-1)
            values = file._values(raw, self._type, self._space, self.name, text=True)
        except CorruptDatasetError as error:
            raise _at(self.name, error) from None
        except DAMAGE as error:
            raise _damaged(self.name, error) from error
        file.source.watch.looked_at(values.nbytes)
        return values if self.shape else values[()]

    def place(self) -> int | None:
        """Return the address of the values if their bytes need no conversion or check, else None.

        That is so for numbers in one piece without a bool that is neither 0 nor 1. For an array
        without bytes, the address has no meaning.
        """
        raw, source = self._type.raw, self._file.source
        if not self.shape or self.is_elsewhere or raw != self.dtype or raw.kind not in "biufc":
            return None
        if self._type.encoding is not None or not isinstance(source.data, mmap.mmap):
            return None
        layout = self._layout
        size = self._space.count * raw.itemsize
        if layout.kind == "chunked":
            if size and (self.chunks != self.shape or self._filters):
                return None
        elif layout.kind != "contiguous" or layout.address == UNDEFINED:
            return None
        source.check_still_whole()
        pieces = self._pieces()
        if not size:
            self._fill()
            return 0
        if len(pieces) != 1:
            return None
        address = pieces[0][1]
        if address + size > source.size:
            return None
        # translate() leaves nothing of valid bools
        if raw.kind == "b" and source.data[address : address + size].translate(None, b"\0\1"):
            return None
        return address

    @property
    def is_packed(self) -> bool:
        """Whether chunks are compressed or otherwise filtered."""
        return self.chunks is not None and bool(self._filters)

    def check(self) -> None:
        """Check the location of the values without reading them."""
        try:
            if self.shape is not None and not self.is_elsewhere:
                self._pieces()
            self._fill()
        except CorruptDatasetError as error:
            raise _at(self.name, error) from None
        except DAMAGE as error:
            raise _damaged(self.name, error) from error

    def _check_size(self) -> tuple[int, int]:
        """Return the bytes of the values and of a chunk, if the file can hold them."""
        size = self._file.source.size
        needed = self._space.count * self._type.raw.itemsize
        chunk_bytes = self._type.raw.itemsize
        for step in self.chunks or ():
            chunk_bytes *= step
        if max(needed, chunk_bytes) > FREE_BYTES:
            packed = self.chunks is not None and self._filters
            if needed > (MOST_PACKED if packed else _MOST_UNWRITTEN) * size or (
                chunk_bytes > MOST_PACKED * size
            ):
                raise CorruptDatasetError(
                    f"it declares {max(needed, chunk_bytes)} bytes of shape {self.shape} in chunks "
                    f"of {self.chunks}, far more than its file can hold"
                )
        return needed, chunk_bytes

    def _pieces(self) -> list[tuple[tuple[int, ...], int, int, int]]:
        """Return offset, address, bytes and filter mask of each chunk, or of all values as one."""
        layout, shape, source = self._layout, self.shape or (), self._file.source
        needed, chunk_bytes = self._check_size()
        if layout.kind != "chunked":
            if layout.size != needed and (needed or layout.address != UNDEFINED):
                raise CorruptDatasetError(
                    f"it has {layout.size} bytes, expected {needed} for shape {shape}"
                )
            return [((0,) * len(shape), layout.address, needed, 0)]
        if layout.address == UNDEFINED:
            return []
        found = chunks(source, layout.address, shape, layout.chunk)
        if not self._filters and any(size != chunk_bytes for _, _, size, _ in found):
            raise CorruptDatasetError(f"its chunks do not all have {chunk_bytes} bytes")
        return found

    def _raw(self) -> npt.NDArray[Any]:
        """Return the values as stored in the file."""
        raw, shape = self._type.raw, self.shape or ()
        count = self._space.count
        source = self._file.source
        layout = self._layout
        chunk = self.chunks or ()
        is_split = layout.kind == "chunked" and layout.address != UNDEFINED and chunk != shape
        if is_split and len(shape) == 2 and not self._filters:
            self._check_size()
            tiled = self._tiled(shape, chunk)
            if tiled is not None:
                return tiled
        pieces = self._pieces()
        if layout.kind == "compact":
            return np.frombuffer(layout.data, raw, count).copy()
        if layout.kind == "contiguous":
            if layout.address == UNDEFINED:
                return self._filled()
            if layout.address + layout.size > source.size:
                raise CorruptDatasetError("its values are outside the file")
            return np.frombuffer(source.data, raw, count, layout.address).copy()
        inside = 1
        expected = 1
        for end, step in zip(shape, chunk):
            inside *= step
            expected *= -(-end // step)
        if chunk == shape and len(pieces) == 1 and not self._filters:
            return np.frombuffer(source.data, raw, inside, pieces[0][1]).copy()
        array = np.empty(shape, raw) if len(pieces) == expected else self._filled()
        for place, address, size, mask in pieces:
            if self._filters:
                data = source.data[address : address + size]
                data = unfilter(data, self._filters, mask, inside * raw.itemsize)
                if len(data) != inside * raw.itemsize:
                    raise CorruptDatasetError(
                        f"the chunk at {place} has the wrong size: {len(data)} bytes"
                    )
                part = np.frombuffer(data, raw)
            else:
                part = np.frombuffer(source.data, raw, inside, address)
            if len(shape) == 1:  # the common case
                start = place[0]
                array[start : start + inside] = part[: shape[0] - start]
                continue
            part = part.reshape(chunk)
            here = tuple(slice(at, at + step) for at, step in zip(place, chunk))
            whole = tuple(slice(0, end - at) for at, end in zip(place, shape))
            array[here] = part[whole]
        return array

    def _tiled(self, shape: tuple[int, ...], chunk: tuple[int, ...]) -> npt.NDArray[Any] | None:
        """Join the chunks of a 2-D array; return None unless all are there and in order."""
        raw, source = self._type.raw, self._file.source
        addresses = whole_grid(source, self._layout.address, shape, self._layout.chunk)
        if addresses is None:
            return None
        down, across = (-(-end // step) for end, step in zip(shape, chunk))
        inside = chunk[0] * chunk[1]
        if (addresses[1:] - addresses[:-1] == inside * raw.itemsize).all():
            tiles = np.frombuffer(source.data, raw, inside * len(addresses), int(addresses[0]))
        else:
            parts = [np.frombuffer(source.data, raw, inside, at) for at in addresses.tolist()]
            tiles = np.concatenate(parts, dtype=raw)
        tiles = tiles.reshape(down, across, *chunk)
        rows = np.empty((down, chunk[0], shape[1]), raw)
        for number in range(across):
            begin = number * chunk[1]
            width = min(chunk[1], shape[1] - begin)
            part = np.dtype((np.void, width * raw.itemsize))  # copy each row of a tile as one item
            rows[:, :, begin : begin + width].view(part)[...] = tiles[:, number, :, :width].view(
                part
            )
        return rows.reshape(-1, shape[1])[: shape[0]]

    def _fill(self) -> bytes:
        for kind in (FILL, OLD_FILL):
            for message in self._messages.get(kind, ()):
                value = parse_fill(message, old=kind == OLD_FILL)
                if value and len(value) != self._type.raw.itemsize:
                    raise CorruptDatasetError(
                        f"its fill value has the wrong size: {len(value)} bytes"
                    )
                if value:
                    return value
        return b""

    def _filled(self) -> npt.NDArray[Any]:
        array = np.zeros(self.shape or (), self._type.raw)
        fill = self._fill()
        if fill:
            array[...] = np.frombuffer(fill, self._type.raw)[0]
        return array


class File(Group, nodes.File):
    """A file and its root group; a file of zero bytes, as Minari creates it, has no members."""

    def __init__(
        self,
        path: Path,
        fallback: Callable[[str], Any] | None = None,
        mapped: mmap.mmap | None = None,
    ) -> None:
        """Open a file.

        Args:
            path: the file.
            fallback: returns the node of this name, for nodes that are not supported here.
            mapped: the mapped file, if it is open already.
        """
        self.source = FileBytes(path, mapped)
        self._heap = GlobalHeap(self.source)
        self._fallback = fallback
        try:
            messages: Messages = {LINK_INFO: []}
            if self.source.size:
                messages = self._header("/", self.source.root)
            if SYMBOLS not in messages and LINK_INFO not in messages:
                raise CorruptDatasetError("/: is not a group")
            cached = self.source.cached
            if cached is not None and messages.get(SYMBOLS, [cached]) != [cached]:
                # libhdf5 would take it where the header's table is damaged
                raise CorruptDatasetError("/: superblock and header name different members")
        except BaseException:
            self.close()
            raise
        super().__init__(self, "/", messages)

    def close(self) -> None:
        """Close the file; arrays that were read are copies and remain valid."""
        self.source.close()

    def _node(self, name: str, address: int) -> nodes.Group | nodes.Dataset:
        self.source.check_still_whole()
        self.source.watch.looked_at(0)
        try:
            messages = self._header(name, address)
            if sum(map(bool, map(messages.get, (LAYOUT, SYMBOLS, LINK_INFO)))) > 1:
                # libhdf5 could take it for another of these.
                raise CorruptDatasetError(
                    "it is both a group and a dataset, or a group stored in two ways"
                )
            if LAYOUT in messages:
                return Dataset(self, name, messages)
            if SYMBOLS in messages or LINK_INFO in messages:
                return Group(self, name, messages)
            raise CorruptDatasetError("it is neither a group nor a dataset")
        except CorruptDatasetError as error:
            raise _at(name, error) from None
        except NotUnderstoodError:
            if self._fallback is None:
                raise
            return self._fallback(name)
        except DAMAGE as error:
            raise _damaged(name, error) from error

    def _header(self, name: str, address: int) -> Messages:
        try:
            return read_header(self.source, address)
        except CorruptDatasetError as error:
            raise _at(name, error) from None
        except DAMAGE as error:
            raise _damaged(name, error) from error

    def _attributes(self, name: str, messages: Messages) -> dict[str, Any]:
        self.source.check_still_whole()
        found: dict[str, Any] = {}
        try:
            stored = messages.get(ATTRIBUTE, [])
            for info in messages.get(ATTRIBUTE_INFO, ()):
                stored = stored + self._dense(name, info, 2, 8)
            for message in stored:
                key, kind, space, data = parse_attribute(message)
                if key in found:
                    raise CorruptDatasetError(f"it has the attribute {key!r} twice")
                if space.shape is None:
                    found[key] = h5py.Empty(kind.dtype)
                    continue
                raw = np.frombuffer(data, kind.raw, space.count)
                of = f"{name} {key}"
                values = self._values(raw, kind, space, of, text=kind.raw.kind != "S")
                found[key] = values if space.shape else values[()]
        except CorruptDatasetError as error:
            raise _at(f"attributes of {name}", error) from None
        except NotUnderstoodError:
            if self._fallback is None:
                raise
            return self._fallback(name).attrs
        except DAMAGE as error:
            raise _damaged(f"attributes of {name}", error) from error
        return found

    def _links(self, name: str, messages: Messages) -> nodes.Links:
        self.source.check_still_whole()
        try:
            if SYMBOLS in messages and (messages.get(LINK_INFO) or LINK in messages):
                raise CorruptDatasetError("it stores its members in two ways")
            if SYMBOLS in messages:
                tree, heap = _PAIR.unpack_from(messages[SYMBOLS][0])
                return _without_paths(symbol_table(self.source, tree, heap, name))
            stored = messages.get(LINK, [])
            for info in messages[LINK_INFO]:
                stored = stored + self._dense(name, info, 8, 5)
            links: nodes.Links = {}
            for message in stored:
                key, kind, address = parse_link(message)
                if key in links:
                    raise CorruptDatasetError(f"it has the member {key!r} twice")
                links[key] = (kind, address)
            return _without_paths(links)
        except CorruptDatasetError as error:
            raise _at(name, error) from None
        except DAMAGE as error:
            raise _damaged(name, error) from error

    def _dense(self, name: str, info: bytes, order_size: int, kind: int) -> list[bytes]:
        """Return messages from a fractal heap: tree kind 5 holds links, kind 8 attributes."""
        version, flags = info[:2]
        if version:
            raise CorruptDatasetError(f"members or attributes of unknown version {version}")
        heap_address, tree = _PAIR.unpack_from(info, 2 + (order_size if flags & 1 else 0))
        if heap_address == UNDEFINED:
            return []
        heap = FractalHeap(self.source, heap_address)
        records = tree_records(self.source, tree, kind)
        if kind == 8 and any(record[8] & 2 for record in records):
            raise NotUnderstoodError("shared attributes")
        part = slice(4, None) if kind == 5 else slice(8)
        found = [heap.get(record[part]) for record in records]
        self.source.spend(heap.bytes_read, (heap_address, name))
        return found

    def _values(
        self, raw: npt.NDArray[Any], kind: Type, space: Space, name: str, *, text: bool
    ) -> npt.NDArray[Any]:
        """Convert stored values to those that h5py returns."""
        shape = space.shape or ()
        if kind.raw.names is None:
            nodes.check_bools(name, raw)
            if kind.encoding is None or not text:
                return (raw if raw.flags.writeable else raw.copy()).reshape(shape)
            return as_text(raw.tolist(), kind.encoding).reshape(shape)
        budget = max(FREE_BYTES, _MOST_UNWRITTEN * self.source.size)
        parts = []
        for row, (length, address, index) in enumerate(raw.tolist()):
            size = length * (kind.base.itemsize if kind.base is not None else 1)
            budget -= size
            if budget < 0:
                raise CorruptDatasetError("it declares far more values than the file can hold")
            # libhdf5 reads the heap for no bytes, too
            parts.append(self._heap.get(address, index, size, (name, row)) if address else b"")
        if kind.encoding is None:
            values = np.empty(len(parts), kind.dtype)
            for at, part in enumerate(parts):
                values[at] = np.frombuffer(part, kind.base).copy()
            return values.reshape(shape)
        # like C programs, libhdf5 ends a string at the first NUL
        strings = [part.partition(b"\0")[0] for part in parts]
        return as_text(strings, kind.encoding).reshape(shape)


def open_file(path: str | Path) -> File:
    """Open a file that uses only supported features.

    Raises:
        CorruptDatasetError: it is damaged.
        NotUnderstoodError: it uses another feature of the format; later calls raise this too.
    """
    return File(Path(path))


def walk(file: File, members: dict[str, nodes.Links]) -> bool:
    """Read the structure of a file, and variable-length values, but not those of other arrays.

    Args:
        file: an open file.
        members: receives the links of every group, by its path.

    Returns:
        Whether all values are in the file as they are: not filtered, and not in another file.

    Raises:
        CorruptDatasetError: it is damaged.
        NotUnderstoodError: it uses an unsupported feature of the format.
    """
    is_plain = True
    seen = {file.source.root}
    pending: list[Group] = [file]
    while pending:
        group = pending.pop()
        group.attrs  # noqa: B018  reading them checks them
        members[group.name] = group.links
        for name, (kind, address) in group.links.items():
            if kind != "hard" or address in seen:
                continue
            seen.add(address)
            node = group[name]
            if isinstance(node, Dataset):
                node.check()
                node.attrs  # noqa: B018
                is_plain = is_plain and not (node.is_packed or node.is_elsewhere)
                if is_plain and node.dtype.kind == "O":
                    node.read()
            elif isinstance(node, Group):
                pending.append(node)
    return is_plain


def _at(name: str, error: CorruptDatasetError) -> CorruptDatasetError:
    text = str(error)
    return error if text.startswith(name) else CorruptDatasetError(f"{name}: {text}")


def _damaged(name: str, error: BaseException) -> CorruptDatasetError:
    return CorruptDatasetError(f"{name}: damaged: {type(error).__name__}: {error}")


def _without_paths(links: nodes.Links) -> nodes.Links:
    """Return the links; raise an error if h5py would take a name for a path to another file."""
    for name in links:
        if "/" in name or name == ".":
            raise CorruptDatasetError(f"it has a member named {name!r}, which is a path")
    return links
