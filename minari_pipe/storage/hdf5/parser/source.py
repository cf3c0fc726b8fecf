"""Read the bytes of an HDF5 file with bounds checks, and its superblock."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any

from minari_pipe.core.files.mapped import Watch
from minari_pipe.errors import CorruptDatasetError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: address of something that was never allocated
UNDEFINED = 0xFFFFFFFFFFFFFFFF
#: the exceptions that damaged bytes cause in ``struct``, NumPy and Python
DAMAGE = (
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    RecursionError,
)

_ADDRESSES = struct.Struct("<QQQQ")
#: symbol table entry of the root group: name, header, what is cached; then tree and heap if cached
_ROOT_ENTRY = struct.Struct("<QQI4x16s")
_MASK = 0xFFFFFFFF
#: half of the most members of a symbol table node, and of the most children of a tree node of
#: groups and of chunks, where the superblock does not say so
_LEAF_K, _GROUP_K, _CHUNK_K = 4, 16, 32
#: most bytes that are read from heaps, per byte of the file, which has each value once; this
#: allows hard links that give some values several names
_MOST_READ = 16
#: what an error says about a heap that is read more often than an intact file allows
TOO_MUCH = "it declares far more values than the file can hold"


class NotUnderstoodError(Exception):
    """A part of the format is not supported here; the file may be perfectly fine."""


class FileBytes:
    """A file in memory, addressed from the start of its HDF5 part.

    Attributes:
        data: the bytes.
        path: path of the file.
        size: number of bytes according to the superblock; nothing after them is ever read.
        root: address of the root group's header.
        cached: addresses of the root group's tree and heap as the superblock repeats them, or None.
        most_members: most members of a symbol table node.
        most_children: most children of a version-1 tree node, of groups and of chunks.
    """

    def __init__(self, path: Path, mapped: mmap.mmap | None = None) -> None:
        """Open a file.

        Args:
            path: the file.
            mapped: the mapped file, if it is open already.
        """
        self.path = path
        self.data: Any = b""
        self.root = UNDEFINED
        self.cached: bytes | None = None
        self.most_members = 2 * _LEAF_K
        self.most_children = (2 * _GROUP_K, 2 * _CHUNK_K)
        self._map = mapped
        self._length = self.size = len(mapped) if mapped is not None else 0
        if mapped is None:
            with open(path, "rb") as file:
                self._length = self.size = os.fstat(file.fileno()).st_size
                if self._length:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.watch = Watch(self._map)
        if self._map is not None:
            self.data = self._map
            self.root = self._superblock()
        self._left = _MOST_READ * self.size
        self._readers: set[object] = set()

    @classmethod
    def whole(cls, mapped: mmap.mmap) -> FileBytes:
        """Wrap a mapped file, with nothing before its HDF5 part."""
        return cls(Path(), mapped)

    def close(self) -> None:
        """Release the file; arrays that were read are copies and remain valid."""
        self._map = None
        self.watch = Watch(None)
        self.data = b""
        self._length = -1

    def check_still_whole(self) -> None:
        """Raise an error if the file was truncated, as reading the lost bytes kills the process.

        Raises:
            CorruptDatasetError: the file is shorter than when it was opened, or closed.
        """
        if self._map is None:
            if self._length:
                raise CorruptDatasetError("the file is closed")
        elif self._map.size() < self._length:
            raise CorruptDatasetError("the file was truncated while it was read")

    def take(self, address: int, size: int, what: str) -> bytes:
        """Return bytes of the file.

        Raises:
            CorruptDatasetError: they are not all inside the file.
        """
        end = address + size
        if end > self.size:
            raise CorruptDatasetError(
                f"{what} of {size} bytes at address {address} is outside the file of "
                f"{self.size} bytes"
            )
        return self.data[address:end]

    def spend(self, size: int, reader: object) -> None:
        """Count bytes of a heap before they are read.

        Args:
            size: number of bytes.
            reader: identifies the heap and the one place in the file that refers to it.

        Raises:
            CorruptDatasetError: many places refer to the same bytes.
        """
        if reader in self._readers:
            return
        self._readers.add(reader)
        self._left -= size
        if self._left < 0:
            raise CorruptDatasetError(TOO_MUCH)

    def _superblock(self) -> int:
        start = 0
        while self.data[start : start + 8] != SIGNATURE:
            # an HDF5 file may begin after a user block of 512 bytes, or 1024, or 2048, ...
            start = start * 2 or 512
            if start > self._length:
                raise CorruptDatasetError("not an HDF5 file: its signature is missing")
        if start:
            self.data = self.data[start:]
            self.size -= start
        version = self.take(8, 1, "superblock")[0]
        if version > 3:
            raise CorruptDatasetError(f"superblock version {version}, expected 0 to 3")
        if version >= 2:
            block = self.take(0, 48, "superblock")
            sizes = tuple(block[9:11])
            base, extension, end, root = _ADDRESSES.unpack_from(block, 12)
            check_sum(block, "superblock")
            if extension != UNDEFINED:
                # It may hold other headers of the same objects, which libhdf5 would use.
                raise NotUnderstoodError("an extension of the superblock")
        else:
            first = 28 if version == 1 else 24
            block = self.take(0, first + 72, "superblock")
            sizes = tuple(block[13:15])
            base, _, end, _ = _ADDRESSES.unpack_from(block, first)
            leaf, group = struct.unpack_from("<HH", block, 16)
            chunk = struct.unpack_from("<H", block, 24)[0] if version else _CHUNK_K
            self.most_members, self.most_children = 2 * leaf, (2 * group, 2 * chunk)
            _, root, cache, tables = _ROOT_ENTRY.unpack_from(block, first + 32)
            if cache > 1:
                raise CorruptDatasetError(f"a root group of unknown kind {cache}, expected 0 or 1")
            self.cached = tables if cache else None
        if sizes != (8, 8):
            raise NotUnderstoodError(f"addresses and lengths of {sizes} bytes")
        if base not in (start, 0) or not end:
            raise CorruptDatasetError(
                f"the superblock at {start} says that the file starts at {base} and ends at {end}"
            )
        end -= base
        if end > self.size:
            raise CorruptDatasetError(
                f"the file is truncated: it has {self.size} bytes, its superblock says {end}"
            )
        self.size = end
        return root


def check_sum(block: bytes, what: str) -> None:
    """Raise an error if a block does not match the checksum in its last four bytes.

    Raises:
        CorruptDatasetError: it does not match.
    """
    if lookup3(block[:-4]) != int.from_bytes(block[-4:], "little"):
        raise CorruptDatasetError(f"{what} does not match its checksum")


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' hash of 2006, the checksum of HDF5's newer structures."""
    length = len(data)
    a = b = c = (0xDEADBEEF + length) & _MASK
    if not length:
        return c
    whole = max(0, (length - 1) // 12)
    words = struct.unpack_from(f"<{3 * whole}I", data)
    for at in range(0, 3 * whole, 3):
        a = a + words[at] & _MASK
        b = b + words[at + 1] & _MASK
        c = c + words[at + 2] & _MASK
        a = (a - c & _MASK) ^ (c << 4 & _MASK | c >> 28)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 6 & _MASK | a >> 26)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 8 & _MASK | b >> 24)
        b = b + a & _MASK
        a = (a - c & _MASK) ^ (c << 16 & _MASK | c >> 16)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 19 & _MASK | a >> 13)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 4 & _MASK | b >> 28)
        b = b + a & _MASK
    tail = struct.unpack("<3I", data[12 * whole :].ljust(12, b"\0"))
    a, b, c = (a + tail[0] & _MASK, b + tail[1] & _MASK, c + tail[2] & _MASK)
    for name, other, turn in (
        ("c", "b", 14),
        ("a", "c", 11),
        ("b", "a", 25),
        ("c", "b", 16),
        ("a", "c", 4),
        ("b", "a", 14),
        ("c", "b", 24),
    ):
        value = {"a": a, "b": b, "c": c}
        by = value[other]
        mixed = (value[name] ^ by) - (by << turn & _MASK | by >> 32 - turn) & _MASK
        a, b, c = (mixed if key == name else value[key] for key in "abc")
    return c
