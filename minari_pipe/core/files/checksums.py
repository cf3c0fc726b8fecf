"""Compute the checksums of a file: a digest of each piece of 1 MiB, and one of all pieces.

A manifest of format 2 has an entry for each file::

    {"size": 2500000,
     "xxh3_128": "…",           of the whole file
     "pieces": ["…", "…", "…"], of bytes 0 to 2**20, 2**20 to 2 * 2**20, ..., the last one shorter
     "room": 32768,             bytes that follow, which nothing uses and no digest covers
     "sha256": "…"}             where a dataset is published

- The digest of a piece is the XXH3 128-bit hash (seed 0) of its bytes: 32 hexadecimal digits, most
  significant first, as ``xxhsum -H2`` prints it.
- A file of at most one piece has no ``pieces``; its ``xxh3_128`` is the digest of its bytes, even
  if it is empty. For a longer file it is the digest of the concatenated digests of its pieces, 16
  bytes each.
- A client that has fetched some pieces can therefore verify them, and an append rehashes only what
  it wrote: the last piece, if it was shorter than 1 MiB, and earlier ones whose bytes changed.

xxh3_128 detects bytes that were changed, moved or exchanged anywhere, at the speed of reading
memory. It does not prove who wrote a file: that takes a sha256, which costs more time than writing
the file.

A manifest of format 1 has the sha256 of a file, or its ``sums``: the sha256 of the sums of the
64-bit words (little-endian, the last one padded with zeros) of each 64 KiB, modulo 2**64. The sums
do not depend on the order of words. They are still compared, but never written.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.links import opener

#: size of a piece in bytes
PIECE = 2**20

_DIGEST = re.compile(r"[0-9a-f]{32}")
_DIGITS = re.compile(r"[0-9a-f]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SUM_BYTES = 2**16

#: up to this many bytes, joining the chunks is faster than hashing one after another
_SHORT = 2**16


class Pieces:
    """The digests of a file that is written from start to end.

    Example:
        >>> pieces = Pieces()
        >>> pieces.add(b"hello, ")
        >>> pieces.add(b"world")
        >>> pieces.entry() == entry_of_bytes([b"hello, world"])
        True
    """

    def __init__(self, whole: Iterable[str] = ()) -> None:
        """Start after pieces whose digests are known.

        Args:
            whole: their digests; each piece has 1 MiB.
        """
        from xxhash import xxh3_128

        self._whole = [bytes.fromhex(digest) for digest in whole]
        self._state = xxh3_128()
        self.size = PIECE * len(self._whole)

    def add(self, data: Any) -> None:
        """Add the bytes that follow.

        Args:
            data: bytes, or another C-contiguous buffer.
        """
        view = memoryview(data)
        if not view.nbytes:
            return
        view = view.cast("B")
        while True:
            room = PIECE - self.size % PIECE
            if len(view) < room:
                self._state.update(view)
                self.size += len(view)
                return
            self._state.update(view[:room])
            self._whole.append(self._state.digest())
            self._state.reset()
            self.size += room
            view = view[room:]

    def copy(self) -> Pieces:
        """Return a copy to which bytes can be added independently."""
        other = Pieces.__new__(Pieces)
        other._whole, other._state, other.size = self._whole[:], self._state.copy(), self.size
        return other

    def with_first(self, *data: Any) -> Pieces:
        """Return the digests of the file with its first piece replaced.

        Args:
            data: consecutive parts of the new first piece, together of the same length.
        """
        first = Pieces()
        for part in data:
            first.add(part)
        if self.size < PIECE:
            return first
        other = self.copy()
        other._whole[0] = first._whole[0]
        return other

    def entry(self) -> dict[str, Any]:
        """Return the manifest's entry for the file."""
        last = [self._state.digest()] if self.size % PIECE or not self._whole else []
        pieces = [*self._whole, *last]
        if len(pieces) == 1:
            return {"size": self.size, "xxh3_128": pieces[0].hex()}
        whole = _xxh3_128(b"".join(pieces)).hex()
        return {"size": self.size, "xxh3_128": whole, "pieces": [digest.hex() for digest in pieces]}


def _xxh3_128(data: Any) -> bytes:
    from xxhash import xxh3_128_digest

    return xxh3_128_digest(data)


def entry_of(
    path: str | os.PathLike[str],
    pieces: Pieces | None = None,
    *,
    sha256: bool = False,
    below: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> dict[str, Any]:
    """Return the manifest's entry for a file.

    Args:
        path: the file.
        pieces: its digests, if the writer has them; ignored if they are for another size.
        sha256: add the sha256 of the file.
        below: the folder below which symlinks are not followed; the file's own by default.
        size: number of bytes that count; None means all.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     entry_of(file.name)
        {'size': 0, 'xxh3_128': '99aa06d3014798d86001c324468d497f'}
    """
    if pieces is not None and not sha256 and pieces.size == os.path.getsize(path):
        return pieces.entry()
    pieces, digest = Pieces(), hashlib.sha256() if sha256 else None
    for part in _parts(path, PIECE, below):
        if size is not None:
            part = part[: max(0, size - pieces.size)]
        pieces.add(part)
        if digest is not None:
            digest.update(part)
    return pieces.entry() | ({"sha256": digest.hexdigest()} if digest is not None else {})


def entry_of_bytes(
    chunks: Sequence[Any],
    pieces: Callable[[Any], Iterable[Any]] = lambda chunk: (chunk,),
    *,
    sha256: bool = False,
) -> dict[str, Any]:
    """Return what :func:`entry_of` returns for a file of these bytes.

    Args:
        chunks: consecutive bytes.
        pieces: yields a chunk in parts, so that it need not be in memory as a whole.
        sha256: add the sha256.

    Example:
        >>> entry_of_bytes([b"a", b"b"])["size"]
        2
    """
    size = sum(map(len, chunks))
    if size <= _SHORT and not sha256:  # most files of an episode
        return {"size": size, "xxh3_128": _xxh3_128(b"".join(chunks)).hex()}
    found, digest = Pieces(), hashlib.sha256() if sha256 else None
    for chunk in chunks:
        for piece in pieces(chunk):
            found.add(piece)
            if digest is not None:
                digest.update(piece)
    return found.entry() | ({"sha256": digest.hexdigest()} if digest is not None else {})


def is_entry(entry: Any) -> bool:
    """Return whether a value is a valid file entry of a manifest of format 2.

    Example:
        >>> is_entry(entry_of_bytes([b"a"])), is_entry({"size": 1})
        (True, False)
    """
    if not _has_size(entry) or not _is_digest(_DIGEST, entry.get("xxh3_128")):
        return False
    if "sha256" in entry and not _is_digest(_SHA256, entry["sha256"]):
        return False
    if "room" in entry and not _has_room(entry):
        return False
    if entry["size"] <= PIECE:
        return "pieces" not in entry
    pieces = entry.get("pieces")
    if not isinstance(pieces, list) or len(pieces) != -(-entry["size"] // PIECE):
        return False
    if set(map(type, pieces)) != {str} or set(map(len, pieces)) != {32}:
        return False
    digits = "".join(pieces)  # one by one, 100 GB of data would take 100 ms
    if _DIGITS.fullmatch(digits) is None:
        return False
    return _xxh3_128(bytes.fromhex(digits)).hex() == entry["xxh3_128"]


def is_old_entry(entry: Any) -> bool:
    """Return whether a value is a valid file entry of a manifest of format 1.

    Example:
        >>> is_old_entry({"size": 1, "sums": "0" * 64}), is_old_entry({"size": 1, "sha256": ""})
        (True, False)
    """
    if not _has_size(entry):
        return False
    given = [entry[key] for key in ("sha256", "sums") if key in entry]
    return bool(given) and all(_is_digest(_SHA256, digest) for digest in given)


def _has_room(entry: Mapping[str, Any]) -> bool:
    """Return whether the room of an entry is what appends leave; nothing published has any."""
    room = entry["room"]
    return type(room) is int and 0 < room <= most_room(entry["size"]) and "sha256" not in entry


def most_room(size: int) -> int:
    """Return the most bytes that a file may have behind those that are used.

    Example:
        >>> most_room(100), most_room(2**30)
        (32768, 134217728)
    """
    return max(2**15, size // 8)


def size_of(entry: Mapping[str, Any]) -> int:
    """Return the number of bytes of an entry's file.

    Example:
        >>> size_of({"size": 3}), size_of({"size": 3, "room": 2})
        (3, 5)
    """
    size: int = entry["size"] + entry.get("room", 0)
    return size


def ends_with_zeros(
    path: str | os.PathLike[str], entry: Mapping[str, Any], below: str | os.PathLike[str]
) -> bool:
    """Return whether the bytes of a file beyond those of its entry are zeros.

    A change that is interrupted when it makes room in a file leaves such bytes. What is published
    has none.
    """
    if "sha256" in entry or "room" in entry:
        return False
    left = size_of(entry)
    for part in _parts(path, PIECE, below):
        if bytes(part[left:]).strip(b"\0"):
            return False
        left = max(0, left - len(part))
    return True


def _has_size(entry: Any) -> bool:
    size = entry.get("size") if isinstance(entry, dict) else None
    return type(size) is int and 0 <= size < 2**63


def _is_digest(form: re.Pattern[str], digest: Any) -> bool:
    return isinstance(digest, str) and form.fullmatch(digest) is not None


def content_differs(
    path: str | os.PathLike[str],
    entry: dict[str, Any],
    below: str | os.PathLike[str] | None = None,
) -> str | None:
    """Return how the bytes of a file differ from a manifest's entry, or None if they match.

    Args:
        path: the file, whose size is that of the entry.
        entry: see :func:`is_entry` and :func:`is_old_entry`.
        below: the folder below which symlinks are not followed; the file's own by default.
    """
    if "xxh3_128" not in entry:
        if "sha256" in entry:
            return None if sha256_file(path) == entry["sha256"] else "sha256"
        return None if _sums_of_file(path) == entry["sums"] else "sums"
    found = entry_of(path, sha256="sha256" in entry, below=below, size=entry["size"])
    pairs = zip(entry.get("pieces", ()), found.get("pieces", ()), strict=False)
    for number, (expected, piece) in enumerate(pairs):
        if expected != piece:
            return f"first difference between bytes {number * PIECE} and {(number + 1) * PIECE}"
    return next(
        (key for key in ("xxh3_128", "sha256") if entry.get(key, "") != found.get(key, "")), None
    )


def pieces_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the digests of a file's pieces, from its entry in a manifest of format 2.

    Example:
        >>> pieces_of(entry_of_bytes([b""]))
        ['99aa06d3014798d86001c324468d497f']
    """
    pieces: list[str] = entry.get("pieces", [entry["xxh3_128"]])
    return pieces


def some_piece_differs(
    path: str | os.PathLike[str],
    entry: Mapping[str, Any],
    numbers: Iterable[int],
    below: str | os.PathLike[str],
) -> bool:
    """Return whether a file has another size than its entry says, or one of some pieces differs.

    Args:
        path: the file.
        entry: its entry in a manifest of format 2.
        numbers: the pieces to compare.
        below: the folder below which symlinks are not followed.
    """
    pieces = pieces_of(entry)
    with open(path, "rb", opener=opener(below)) as file:
        if os.fstat(file.fileno()).st_size != size_of(entry):
            return True
        for number in numbers:
            size = min(PIECE, entry["size"] - number * PIECE)
            if _digest_at(file.fileno(), number * PIECE, size).hex() != pieces[number]:
                return True
    return False


def _digest_at(handle: int, start: int, size: int) -> bytes:
    """Return the digest of some bytes of a file; memory to read them to would take longer."""
    if not size:
        return _xxh3_128(b"")
    with mmap.mmap(handle, size, access=mmap.ACCESS_READ, offset=start) as data:
        return _xxh3_128(data)


def _sums_of_file(path: str | os.PathLike[str]) -> str:
    import numpy as np

    sums = hashlib.sha256()
    for part in _parts(path, _SUM_BYTES):
        words = np.frombuffer(bytes(part) + bytes(-len(part) % 8), "<u8")
        sums.update(int(np.add.reduce(words)).to_bytes(8, "little"))
    return sums.hexdigest()


def _parts(
    path: str | os.PathLike[str], size: int, below: str | os.PathLike[str] | None = None
) -> Iterator[memoryview]:
    """Yield the bytes of a file, ``size`` at a time; each part overwrites the one before."""
    top = os.path.dirname(path) if below is None else below
    with open(path, "rb", buffering=0, opener=opener(top)) as file:
        buffer = memoryview(bytearray(size))
        while True:
            filled = 0
            while filled < size and (more := file.readinto(buffer[filled:])):
                filled += more
            if not filled:
                return
            yield buffer[:filled]
