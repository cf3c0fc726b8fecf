"""Write a file of episodes without libhdf5, as fast as the system accepts its bytes.

::

    superblock
    ├─ segment             episodes of one structure
    │  ├─ observations     all its episodes, one after another
    │  ├─ actions, ...     likewise
    │  ├─ heaps of text    values of attributes
    │  └─ blocks           HDF5 structures of each episode, see hdf5.writer.layout
    ├─ segment ...
    └─ root group          the names of the episodes

Everything is appended, and the root group is written when the file ends; only the superblock, which
holds its address, is written again. So writing can continue where an earlier such file ended.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from minari_pipe.core.files.atomic import RESERVED_BYTES, require_space, reserve
from minari_pipe.core.files.checksums import PIECE, Pieces, most_room
from minari_pipe.core.files.links import opener
from minari_pipe.core.files.mapped import in_pieces, touch
from minari_pipe.core.tree import leaves
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.attributes import flatten_attributes, unflatten_attributes
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.hdf5.index.index import FileIndex, Part, joined_tables
from minari_pipe.storage.hdf5.writer.growth import grow
from minari_pipe.storage.hdf5.writer.layout import Attribute, Bytes, Template, template_of
from minari_pipe.storage.hdf5.writer.layout_root import (
    END_WORD,
    FIRST_ADDRESS,
    ROOT_WORD,
    Root,
    ends_of,
    find_root,
    used_bytes,
    with_end,
)
from minari_pipe.storage.hdf5.writer.layout_text import text_heaps
from minari_pipe.storage.hdf5.writer.layout_types import InexpressibleError
from minari_pipe.storage.joining import structure
from minari_pipe.storage.segment import AttributeTable, Ints, ScatteredRows, Segment

#: datasets here have one chunk; h5py writes larger ones, with several chunks
CHUNK_BYTES = 2**30

#: most bytes and most pieces per call. The bytes fit into the CPU cache, and a call ends at a
#: multiple of this size in the file, since half a page costs as much as a whole one. For 2 MiB, the
#: system would look for that much contiguous memory, which may take long
_AT_ONCE = 2**20
_MOST_AT_ONCE = 2**8
#: most bytes of the root group per episode, and bytes to keep free on the disk
_ROOT_BYTES = 128
_RESERVE = 2**16
T = TypeVar("T")

_PLAIN = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class _Kind:
    """Episodes of a segment whose attributes have the same names and types.

    Attributes:
        places: positions of the episodes in the segment.
        template: the template of their blocks.
        values: values of each attribute, shape ``(n, *shape)``; text as objects.
    """

    places: Ints
    template: Template
    values: list[npt.NDArray[Any]]

    def texts(self) -> list[str]:
        """Return all texts, grouped by episode, since they are read together."""
        columns = [self._rows(column) for column in self.values if column.dtype.kind == "O"]
        return list(np.concatenate(columns, axis=1).flat) if columns else []

    def raw(self, texts: npt.NDArray[np.void]) -> tuple[list[Bytes], npt.NDArray[np.void]]:
        """Return the values as bytes, with references for texts, and the references not used.

        Args:
            texts: references to those of :meth:`texts`, and then to those of other kinds.
        """
        count = len(self.places)
        width = sum(column.size for column in self.values if column.dtype.kind == "O")
        own, rest = texts[:width].reshape(count, width // count), texts[width:]
        values = []
        for column in self.values:
            if column.dtype.kind == "O":
                wide = column.size // count
                column, own = own[:, :wide], own[:, wide:]
            raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
            values.append(raw.reshape(count, raw.size // count))
        return values, rest

    def _rows(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column.reshape(len(self.places), column.size // len(self.places))


class FullError(Exception):
    """A file that grows has no room for more."""


class DirectFile:
    """A file written from its first byte, or from where the root group of another one began.

    It is an HDF5 file only after :meth:`finish`, which may be followed by more episodes.

    Attributes:
        pieces: digests of the finished file, or None if those of its beginning are not known.
        root: the address that remains to be written to the superblock of a file that grows.
        room: bytes at the end of the finished file that nothing uses.
    """

    pieces: Pieces | None = None
    root: int = 0
    room: int = 0

    def __init__(
        self,
        path: Path,
        root: Root | None = None,
        before: FileIndex | None = None,
        *,
        replaces: bool = False,
        grows: bool = False,
        room: bool = False,
        pieces: Sequence[str] | None = None,
    ) -> None:
        """Open a file for writing, which no other process reads yet unless it grows.

        Args:
            path: the file; without a root group it is created.
            root: root group of the file that this one continues; ``path`` already holds everything
                before it.
            before: the index of those episodes, if known; not needed for a file that grows.
            replaces: the file will replace another one.
            grows: ``path`` is the continued file itself, which others read: nothing of it changes
                before :attr:`root` is written.
            room: leave unused bytes at the end, in which the file can grow.
            pieces: digests of the continued file, if known.
        """
        self.path = path
        self._leaves_room = room
        self._replaces = replaces
        # do not truncate an empty file again: ext4 would then write it to disk when it is closed
        keep = root is not None or (os.path.exists(path) and not os.path.getsize(path))
        # stays open until the owner calls `close`
        mode, below = "r+b" if keep else "w+b", opener(os.path.dirname(path))
        self._file: Any = open(path, mode, buffering=0, opener=below)  # noqa: SIM115
        self._headers = [root.headers] if root and not grows else []
        self._count = len(root.headers) if root else 0
        self._end = FIRST_ADDRESS
        if root:
            self._end = root.end if grows else root.start
        self._grows_from = self._count if grows else None
        self._room_ends = os.fstat(self._file.fileno()).st_size
        if grows:
            with self._bytes(END_WORD, END_WORD + 8) as word:
                (end,) = struct.unpack("<Q", word)
            self._room_ends = min(self._room_ends, end)
        self._pieces = self._beginning(pieces) if root is None or pieces is not None else None
        self._parts: list[Part] = []
        self._steps: list[Ints] = []
        self._attributes: list[AttributeTable | _Attributes] = []
        known = not self._count or (before is not None and len(before) == self._count)
        self._indexed = known
        if root and not grows:
            self._write(0, [bytes(8)], None)  # not recognized as HDF5 until it is finished
        if before is not None and known and len(before):
            self._parts += before.parts
            self._steps.append(before.steps)
            self._attributes.append(before.attributes)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self._count

    def append(self, segment: Segment) -> bool:
        """Append the episodes of a segment; if it raises, nothing has changed.

        Returns:
            True, or False if nothing has changed because only h5py can write the segment.

        Raises:
            InvalidEpisodeError: attributes cannot be stored; the message names the episode.
            OSError: the disk is full.
        """
        steps = segment.steps
        shortest, longest = int(steps.min()), int(steps.max())
        for leaf in segment.leaves:
            if shortest + leaf.more < 1 or (longest + leaf.more) * leaf.row_bytes > CHUNK_BYTES:
                return False
        if any(leaf.dtype.metadata for leaf in segment.leaves):  # h5py turns it into a type
            return False
        attributes = _flat(segment)
        try:
            kinds = _kinds(segment, attributes)
        except InexpressibleError:
            return False
        parts: list[Any] = []
        addresses = np.zeros((len(segment.leaves), len(segment)), np.int64)
        end = self._end
        before = np.cumsum(steps) - steps
        for which, (array, leaf) in enumerate(zip(segment.arrays, segment.leaves, strict=True)):
            size = (int(before[-1] + steps[-1]) + leaf.more * len(segment)) * leaf.row_bytes
            if size:
                begins = before + leaf.more * np.arange(len(segment)) if leaf.more else before
                addresses[which] = end + begins * leaf.row_bytes
                for rows in array.rows if isinstance(array, ScatteredRows) else (array,):
                    parts.append(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
                end += _pad(parts, size)
        heaps, texts = text_heaps([text.encode() for kind in kinds for text in kind.texts()], end)
        parts.append(heaps)
        end += len(heaps)
        headers = np.zeros(len(segment), np.int64)
        for kind in kinds:
            values, texts = kind.raw(texts)
            starts = end + kind.template.size * np.arange(len(kind.places))
            blocks = kind.template.fill(
                starts, steps[kind.places], addresses[:, kind.places], values
            )
            parts.append(blocks.reshape(-1).data)
            end += blocks.nbytes
            headers[kind.places] = starts + kind.template.group
        self._check_room(end)
        self._require_space(end, len(segment))
        if end - self._end >= RESERVED_BYTES and not self._replaces:
            reserve(self._file.fileno(), self._end, end - self._end)
        pieces = self._pieces and self._pieces.copy()
        self._write(self._end, parts, pieces)
        self._end, self._pieces = end, pieces
        first = self._count
        self._count += len(segment)
        self._headers.append(headers)
        self._steps.append(steps.copy())
        self._parts.append(
            Part(np.arange(first, self._count, dtype=np.int64), segment.leaves, addresses)
        )
        self._attributes.append(attributes.kept())
        return True

    def finish(self) -> None:
        """Write the superblock and the root group; more episodes may follow and overwrite them.

        Raises:
            OSError: the disk is full.
        """
        headers = np.concatenate(self._headers) if self._headers else np.zeros(0, np.int64)
        if self._grows_from is not None:
            self._grow(headers.tolist(), self._grows_from)
            return
        superblock, root = ends_of(Root(self._end, headers))
        used = self._end + len(root)
        self._require_space(used, 0)
        pieces = self._pieces and self._pieces.copy()
        self._write(self._end, [root], pieces)
        if self._leaves_room:
            self.room = _room_after(used)
            superblock = with_end(superblock, used + self.room)
        self._file.truncate(used + self.room)
        self._write(0, [superblock], None)
        if pieces is not None:
            with self._bytes(0, min(PIECE, used)) as first:
                pieces = pieces.with_first(first)
        self.pieces = pieces

    def _grow(self, headers: list[int], first: int) -> None:
        """Write all but the word that makes a root group with more members that of the file."""
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            growth = grow(data, self._end, first, headers)
        self._check_room(self._end + len(growth.end))
        pieces = self._pieces and self._pieces.copy()
        self._write(self._end, [growth.end], pieces)
        os.fsync(self._file.fileno())
        self._end += len(growth.end)
        self.pieces, self.root = self._with_word(pieces, ROOT_WORD, growth.root), growth.root
        self.room = self._room_ends - self._end

    def widen(self) -> None:
        """Find out how a file that is not to change otherwise becomes one that can grow.

        :attr:`room` and :attr:`pieces` are those that it will have.
        """
        self.room = _room_after(self._end)
        self.pieces = self._with_word(self._pieces, END_WORD, self._end + self.room)

    def _with_word(self, pieces: Pieces | None, place: int, value: int) -> Pieces | None:
        """Return the digests of the file with a word of its superblock replaced."""
        if pieces is None:
            return None
        word = struct.pack("<Q", value)
        with self._bytes(0, min(PIECE, self._end)) as old:
            return pieces.with_first(old[:place], word, old[place + len(word) :])

    def _check_room(self, end: int) -> None:
        if self.grows and end > self._room_ends:
            raise FullError

    @property
    def grows(self) -> bool:
        """Whether others read the file meanwhile."""
        return self._grows_from is not None

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def index(self) -> FileIndex | None:
        """Return the index of all episodes, or None if that of the first ones was not given."""
        return self.added() if self._indexed else None

    def added(self) -> FileIndex:
        """Return the index of the episodes that were added to those whose index was not given.

        The numbers of the episodes count from the first of them.
        """
        steps = np.concatenate(self._steps) if self._steps else np.zeros(0, np.int64)
        tables = [
            found if isinstance(found, AttributeTable) else found.table()
            for found in self._attributes
        ]
        first = self._count - len(steps)
        parts = tuple(replace(part, episodes=part.episodes - first) for part in self._parts)
        return FileIndex(steps, parts, joined_tables(tables))

    def _require_space(self, end: int, more: int) -> None:
        size = end + _ROOT_BYTES * (self._count + more) + _RESERVE
        require_space(self.path, self._file.fileno(), size)

    def _beginning(self, known: Sequence[str] | None) -> Pieces:
        """Return the digests of the bytes before the end; the first piece changes at the end."""
        whole = self._end // PIECE
        pieces = Pieces((known or ())[:whole])
        if not known:
            pieces.add(bytes(self._end))
        elif whole * PIECE < self._end:
            with self._bytes(whole * PIECE, self._end) as last:
                pieces.add(last)
        return pieces

    @contextmanager
    def _bytes(self, start: int, end: int) -> Iterator[memoryview]:
        """Map some bytes of the file; slices of them must not be kept.

        Fresh memory for them would take longer than their digest.
        """
        with (
            mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_READ) as data,
            memoryview(data) as whole,
            whole[start:] as found,
        ):
            yield found

    def _write(self, place: int, parts: Sequence[Any], pieces: Pieces | None) -> None:
        """Write parts one after another; all bytes of the file are written here."""
        self._file.seek(place)
        waiting: list[memoryview] = []
        end = place
        for part in parts:
            for piece in in_pieces(part, end):
                while piece:
                    own = piece[: _AT_ONCE - end % _AT_ONCE]
                    waiting.append(own)
                    end += len(own)
                    if end % _AT_ONCE == 0 or len(waiting) == _MOST_AT_ONCE:
                        self._write_at_once(waiting, pieces)
                        waiting = []
                    piece = piece[len(own) :]
        self._write_at_once(waiting, pieces)

    def _write_at_once(self, parts: list[memoryview], pieces: Pieces | None) -> None:
        for part in parts:
            if pieces is None:
                touch(part)
            else:  # while the part is in the CPU cache
                pieces.add(part)
        done = 0
        if len(parts) > 1 and hasattr(os, "writev"):  # not on Windows
            done = os.writev(self._file.fileno(), parts)
        for part in parts:
            rest = part[done:]
            done = max(0, done - len(part))
            while rest:
                rest = rest[self._file.write(rest) :]


def _room_after(used: int) -> int:
    return most_room(used) // 8 * 8


def root_of(path: Path) -> Root | None:
    """Return the root group of a file of :class:`DirectFile`, or None; see :func:`find_root`.

    Raises:
        OSError: the file cannot be read.
    """
    return _mapped(path, find_root)


def used_of(path: Path) -> int | None:
    """Return how many bytes of a file of :class:`DirectFile` are used; see :func:`used_bytes`.

    Raises:
        OSError: the file cannot be read.
    """
    return _mapped(path, used_bytes)


def _mapped(path: Path, look: Callable[[Any], T]) -> T | None:
    with open(path, "rb", opener=opener(path.parent)) as file:
        if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return look(data)


def copy_beginning(source: Path, target: Path, root: Root) -> None:
    """Copy a file of :class:`DirectFile` without its root group, to continue it.

    Raises:
        OSError: the file cannot be read or copied.
    """
    with (
        open(source, "rb", opener=opener(source.parent)) as file,
        open(target, "wb", buffering=0, opener=opener(target.parent)) as new,
    ):
        _copy(file, new, root.start)


def segment_of(columns: Columns, attributes: Mapping[str, Any], number: int) -> Segment | None:
    """Return one episode as a segment, or None if its columns are not all arrays of numbers.

    Args:
        columns: see :meth:`EpisodeWriter._append`.
        attributes: see :meth:`EpisodeWriter._append`.
        number: number of the episode.
    """
    found = structure(columns)
    if found is None or any(leaf.more not in (0, 1) for leaf in found):
        return None
    numbers: dict[str, npt.NDArray[Any]] = {
        key: np.array([value], _PLAIN[type(value)])
        for key, value in attributes.items()
        if type(value) in _PLAIN and not (type(value) is int and not -(2**63) <= value < 2**63)
    }
    others = {key: value for key, value in attributes.items() if key not in numbers}
    return Segment(
        number,
        np.array([len(columns["rewards"])]),
        found,
        tuple(array for _, array in leaves(columns)),
        AttributeTable(numbers, [others] if others else None),
    )


def written(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten attributes for the file; the two that this package adds are written as JSON.

    Raises:
        InvalidEpisodeError: they cannot be stored.

    Example:
        >>> written({"options": {"goal": "left"}, "infos_filled": {"success": [[0, 1]]}})
        {'options/goal': 'left', 'infos_filled': '{"success": [[0, 1]]}'}
    """
    attributes = dict(attributes)
    for key in ("infos_filled", "infos_slashes"):
        if key in attributes:
            try:
                attributes[key] = json.dumps(attributes[key], sort_keys=True)
            except (TypeError, ValueError) as error:
                raise InvalidEpisodeError(
                    f"{key} cannot be stored: {attributes[key]!r:.60}: {error}; this name is "
                    "reserved, rename your key"
                ) from None
    return flatten_attributes(attributes)


def read_back(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that :func:`written` flattened, except ``infos_slashes``.

    Example:
        >>> read_back({"options/x": 1.5, "infos_slashes": "[]"})
        {'options': {'x': 1.5}}
    """
    attributes = unflatten_attributes(dict(flat))
    attributes.pop("infos_slashes", None)
    if "infos_filled" in attributes:
        attributes["infos_filled"] = json.loads(attributes["infos_filled"])
    if isinstance(attributes.get("seed"), np.integer):
        attributes["seed"] = int(attributes["seed"])
    return attributes


def slashes_of(paths: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the paths of infos that have a slash in a key, which is a group in HDF5."""
    return [list(path) for path in paths if "/" in "".join(path)]


# --- attributes


@dataclass(frozen=True)
class _Attributes:
    """The attributes of a segment in the form that is written.

    Attributes:
        numbers: as in the segment's table.
        flat: the other attributes of each episode, flattened; None if no episode has any.
    """

    numbers: dict[str, npt.NDArray[Any]]
    flat: list[dict[str, Any]] | None

    def kept(self) -> _Attributes:
        """Return a copy that does not share arrays with the caller."""
        numbers = {name: values.copy() for name, values in self.numbers.items()}
        flat = self.flat and [
            {
                key: np.copy(value) if isinstance(value, np.ndarray) else value
                for key, value in pairs
            }
            for pairs in map(dict.items, self.flat)
        ]
        return _Attributes(numbers, flat)

    def table(self) -> AttributeTable:
        """Return the attributes as they will be read back."""
        others = None if self.flat is None else [read_back(one) for one in self.flat]
        return AttributeTable(self.numbers, others if others and any(others) else None)


def _flat(segment: Segment) -> _Attributes:
    """Flatten the attributes of the episodes of a segment.

    Raises:
        InvalidEpisodeError: attributes cannot be stored; the message names the episode.
    """
    numbers, others = segment.attributes.numbers, segment.attributes.others
    slashes = slashes_of([leaf.path[1:] for leaf in segment.leaves if leaf.path[0] == "infos"])
    own = {"infos_slashes": slashes} if slashes else {}
    names = {*numbers, *(key for one in others or () for key in one)}
    flat: list[dict[str, Any]] = []
    try:
        # a slash may put a value below another name; infos_filled is written as text
        if "infos_filled" in numbers or any("/" in name for name in names):
            for place in range(len(segment)):
                flat.append(written({**segment.attributes[place], **own}))
            return _Attributes({}, flat)
        written(dict.fromkeys(numbers, 0.0))  # checks the names
        if others is None:
            return _Attributes(numbers, [written(own)] * len(segment) if own else None)
        for one in others:
            flat.append(written({**one, **own}))
        return _Attributes(numbers, flat)
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {segment.first + len(flat)}: {error}") from None


def _kinds(segment: Segment, attributes: _Attributes) -> list[_Kind]:
    """Group the episodes of a segment by the names and types of their attributes.

    Raises:
        InexpressibleError: an attribute or a leaf cannot be laid out.
    """
    numbers = attributes.numbers
    everywhere = tuple(Attribute(name, values.dtype) for name, values in numbers.items())
    if attributes.flat is None:
        template = template_of(segment.leaves, everywhere)
        return [_Kind(np.arange(len(segment)), template, list(numbers.values()))]
    sorts: dict[tuple[Any, ...], list[int]] = {}
    for place, one in enumerate(attributes.flat):
        signature = tuple((name, *_sort(value)) for name, value in one.items())
        sorts.setdefault(signature, []).append(place)
    kinds = []
    for signature, places in sorts.items():
        own = tuple(Attribute(name, dtype, shape) for name, dtype, shape in signature)
        template = template_of(segment.leaves, everywhere + own)
        values = [column[places] for column in numbers.values()]
        for name, dtype, shape in signature:
            column = np.empty((len(places), *shape), object if dtype is None else dtype)
            for number, place in enumerate(places):
                column[number] = attributes.flat[place][name]
            values.append(column)
        kinds.append(_Kind(np.array(places), template, values))
    return kinds


def _sort(value: Any) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return dtype, or None for text, and shape of the value of a flat attribute."""
    if isinstance(value, str):
        return None, ()
    if not isinstance(value, np.ndarray | np.generic):
        return np.dtype(type(value)), ()
    if value.dtype.kind == "O":
        return None, value.shape
    if value.dtype.metadata:
        raise InexpressibleError("a type with metadata, which h5py stores as another type")
    return value.dtype, value.shape


# --- files


def _pad(parts: list[Any], size: int) -> int:
    """Add zeros after ``size`` bytes up to a multiple of 8; return the size of both."""
    more = -size % 8
    if more:
        parts.append(bytes(more))
    return size + more


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy the first bytes of a file, in the kernel if possible."""
    done = 0
    with suppress(OSError, AttributeError):  # not everywhere; the loop below raises real errors
        while done < size:
            numbers = source.fileno(), target.fileno(), size - done, done, done
            copied = os.copy_file_range(*numbers)
            if not copied:
                break
            done += copied
    source.seek(done)
    target.seek(done)
    while done < size:
        block = source.read(min(size - done, 2**20))
        if not block:
            raise OSError(errno.EIO, "it was truncated while it was copied", str(target.name))
        done += len(block)
        rest = memoryview(block)
        while rest:
            rest = rest[target.write(rest) :]
