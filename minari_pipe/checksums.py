"""What the bytes of a file are, told by a sha256 or, where that would cost too much, by sums.

A sha256 of a large file takes as long as writing it. ``sums`` finds every flipped bit and block
that was cut, lost or moved in a tenth of that; it does not prove who wrote the file, which is what
the sha256s of a published dataset are for. It is the sha256 of the sums of the 64-bit words
(little-endian, the last one filled with zeros) of each 64 KiB, modulo 2**64.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from minari_pipe.files import sha256_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_BLOCK = 2**16
_READ = 2**22
_WORD = "<u8"


class Sums:
    """The sums of a file that is written in any order, no byte twice.

    Example:
        >>> sums = Sums()
        >>> sums.add(8, b"world")
        >>> sums.add(0, b"hello, ")
        >>> whole = Sums()
        >>> whole.add(0, b"hello, " + bytes(1) + b"world")
        >>> sums.digest() == whole.digest()
        True
    """

    def __init__(self) -> None:
        """Begin with a file without a byte."""
        import numpy as np

        self._sums = np.zeros(16, _WORD)
        self._size = 0

    def add(self, offset: int, data: Any) -> None:
        """Add bytes; zeros need not be added unless the file ends with them.

        Args:
            offset: where they are in the file.
            data: bytes, or what has the interface of a buffer and is C-contiguous.
        """
        import numpy as np

        size = memoryview(data).nbytes
        self._size = max(self._size, offset + size)
        if not size:
            return
        if offset % 8 == size % 8 == 0:
            self._add_words(offset // 8, np.frombuffer(data, _WORD))
            return
        flat = np.frombuffer(data, np.uint8)
        head = min(-offset % 8, size)
        if head:
            self._add_words(offset // 8, _filled(flat[:head], offset % 8))
            flat, offset = flat[head:], offset + head
        whole = len(flat) // 8 * 8
        if whole:
            self._add_words(offset // 8, flat[:whole].view(_WORD))
        if whole < len(flat):
            self._add_words((offset + whole) // 8, _filled(flat[whole:], 0))

    def copy(self) -> Sums:
        """Return sums to which bytes are added independently of these."""
        other = Sums()
        other._sums, other._size = self._sums.copy(), self._size
        return other

    def _add_words(self, word: int, words: npt.NDArray[np.uint64]) -> None:
        import numpy as np

        per_block = _BLOCK // 8
        first, last = word // per_block, (word + len(words) - 1) // per_block
        if last >= len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros(last + 1, _WORD)])
        begins = np.arange(first * per_block - word, len(words), per_block)
        begins[0] = 0
        self._sums[first : last + 1] += np.add.reduceat(words, begins)

    @property
    def size(self) -> int:
        """Number of bytes of the file."""
        return self._size

    def digest(self) -> str:
        """Return 64 hexadecimal digits."""
        count = -(-self._size // _BLOCK)
        return hashlib.sha256(self._sums[:count].tobytes()).hexdigest()


def _filled(part: npt.NDArray[np.uint8], before: int) -> npt.NDArray[np.uint64]:
    import numpy as np

    word = np.zeros(8, np.uint8)
    word[before : before + len(part)] = part
    return word.view(_WORD)


def sums_of_file(path: str | os.PathLike[str]) -> str:
    """Return the sums of a file's bytes, as 64 hexadecimal digits."""
    sums = Sums()
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(min(_READ, os.fstat(file.fileno()).st_size) or 1)
        while size := file.readinto(buffer):
            sums.add(sums.size, memoryview(buffer)[:size])
    return sums.digest()


def entry_of(path: str | os.PathLike[str], sums: Sums | None = None) -> dict[str, Any]:
    """Return what a manifest says of a file: its size, and its sha256 if it is small, else sums.

    Args:
        path: the file.
        sums: its sums, if whoever wrote it has them.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     entry_of(file.name)["size"]
        0
    """
    size = os.path.getsize(path)
    if size <= _BLOCK:
        return {"sha256": sha256_file(path), "size": size}
    known = sums is not None and sums.size == size
    return {"sums": sums.digest() if known and sums else sums_of_file(path), "size": size}


def entry_of_bytes(
    chunks: Sequence[Any], pieces: Callable[[Any], Iterable[Any]] = lambda chunk: (chunk,)
) -> dict[str, Any]:
    """Return what :func:`entry_of` says of a file of these bytes.

    Args:
        chunks: bytes that follow one another.
        pieces: yields those of a chunk, if it is not to be in memory as a whole.

    Example:
        >>> entry_of_bytes([b"a", b"b"])["size"]
        2
    """
    size = sum(map(len, chunks))
    if size <= _BLOCK:
        return {"sha256": hashlib.sha256(b"".join(chunks)).hexdigest(), "size": size}
    sums = Sums()
    for chunk in chunks:
        for piece in pieces(chunk):
            sums.add(sums.size, piece)
    return {"sums": sums.digest(), "size": size}


def is_entry(entry: Any) -> bool:
    """Whether this is what a manifest can say of a file.

    Example:
        >>> is_entry({"sha256": "00", "size": 3}), is_entry({"size": 3})
        (True, False)
    """
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("size"), int)
        and isinstance(entry.get("sha256", entry.get("sums")), str)
    )


def content_differs(path: str | os.PathLike[str], entry: dict[str, Any]) -> str | None:
    """Return by what the bytes of a file are not those of a manifest's entry, None if they are.

    Args:
        path: the file, of the size that the entry says.
        entry: see :func:`is_entry`.
    """
    if "sha256" in entry:
        return None if sha256_file(path) == entry["sha256"] else "sha256"
    return None if sums_of_file(path) == entry["sums"] else "sums"
