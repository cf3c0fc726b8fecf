"""Read and write one file of an episode in one call, and name it in errors."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import RESERVED_BYTES, reserve
from minari_pipe.core.files.links import PathLike, open_below, open_files
from minari_pipe.core.files.mapped import PIECE, in_pieces, touch
from minari_pipe.errors import CorruptDatasetError, MinariPipeError
from minari_pipe.storage.json_attributes import load_attributes

#: bytes that follow one another in a file
Chunks = Sequence[bytes | memoryview]

#: flag for opening files; without it, Windows would translate line ends
_BINARY = getattr(os, "O_BINARY", 0)
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
#: up to this size, joining chunks is faster than passing several to the kernel
FEW_BYTES = 2**16
#: most chunks that the kernel accepts
_MOST_CHUNKS = 1024


def read_file(path: PathLike, below: PathLike) -> bytearray:
    """Return the bytes of a file, in writable memory that arrays may be views of.

    The file is not mapped, because truncating a mapped file kills the process.

    Args:
        path: the file.
        below: the folder that the user named, below which links are not followed.

    Raises:
        OSError: it cannot be read, or not in one call.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     read_file(file.name, tempfile.gettempdir())
        bytearray(b'')
    """
    return _read(open_below(path, below), path)


def read_files(folder: str, names: Iterable[str], below: str | os.PathLike[str]) -> list[bytearray]:
    """Return the bytes of files in one folder, like :func:`read_file` but faster.

    Args:
        folder: folder of an episode, in ``below``.
        names: names of the files.
        below: see :func:`read_file`.

    Raises:
        OSError: one cannot be read, or not in one call; the folder or a file may be a link.
    """
    files = open_files(folder, names, below)
    try:
        return [_read(files.pop(0), folder) for _ in range(len(files))]
    finally:
        for file in files:
            os.close(file)


def _read(file: int, path: PathLike) -> bytearray:
    """Read all of an open file and close it."""
    try:
        data = bytearray(os.fstat(file).st_size)
        if data and _read_into(file, data) != len(data):
            raise OSError(f"{path}: only a part of the file could be read")
    finally:
        os.close(file)
    return data


def _read_into(file: int, data: bytearray) -> int:
    if hasattr(os, "readv"):
        return os.readv(file, [data])
    found = os.read(file, len(data))
    data[: len(found)] = found
    return len(found)


def write_file(path: str, chunks: Chunks, *, replaces: bool = False) -> None:
    """Write a new file, never through a link or to another name of an existing file.

    Args:
        path: the file.
        chunks: its bytes.
        replaces: the file will replace another one; an earlier version of it may exist.

    Raises:
        OSError: it could not be written; a part of it may exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_file(f"{folder}/new", [b"a", b"b"])
    """
    if replaces:
        with suppress(FileNotFoundError):
            os.unlink(path)
    file = os.open(path, _WRITING, 0o666)
    try:
        size, written = sum(map(len, chunks)), 0
        if size >= RESERVED_BYTES and not replaces:
            reserve(file, 0, size)
        if size > PIECE:
            for chunk in chunks:
                for piece in in_pieces(chunk):
                    touch(piece)
                    _write_all(file, piece)
            return
        if len(chunks) == 1:
            written = os.write(file, chunks[0])
        elif size > FEW_BYTES and len(chunks) <= _MOST_CHUNKS and hasattr(os, "writev"):
            written = os.writev(file, chunks)
        if written < size:
            _write_all(
                file, memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))[written:]
            )
    finally:
        os.close(file)


def _write_all(file: int, data: memoryview) -> None:
    while data:  # the kernel may accept less, for example when the disk is full
        data = data[os.write(file, data) :]


def read_attributes(path: PathLike, below: PathLike) -> dict[str, Any]:
    """Read the attributes of an episode.

    Args:
        path: its ``metadata.json``.
        below: see :func:`read_file`.

    Raises:
        OSError, ValueError, TypeError, LookupError, AttributeError: they cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     write_file(file.name, [b'{"total_steps": 3}'], replaces=True)
        ...     read_attributes(file.name, tempfile.gettempdir())
        {'total_steps': 3}
    """
    return attributes_of(read_file(path, below))


def attributes_of(data: bytearray) -> dict[str, Any]:
    """Return the attributes in the bytes of a ``metadata.json``.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: they are damaged.
    """
    attributes = load_attributes(data.decode("utf-8"))
    steps, seed = attributes.get("total_steps", "missing"), attributes.get("seed")
    for key, value in (("total_steps", steps), ("seed", 0 if seed is None else seed)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{key} is {value!r}, expected a non-negative integer")
    return attributes


@contextmanager
def translated(path: Path, index: int) -> Iterator[None]:
    """Add the file and the episode to every error that pyarrow and NumPy raise on damaged data.

    Args:
        path: the file.
        index: the episode.

    Raises:
        CorruptDatasetError: replaces any such error.

    Example:
        >>> with translated(Path("0/metadata.json"), 0):
        ...     int("x")
        Traceback (most recent call last):
        minari_pipe.errors.CorruptDatasetError: 0/metadata.json: episode 0 cannot be read: ...
    """
    where = f"{path}: episode {index}"
    try:
        yield
    except MinariPipeError as error:
        if isinstance(error, CorruptDatasetError) and str(path) not in str(error):
            raise CorruptDatasetError(f"{where}: {error}") from None
        raise
    except FileNotFoundError:
        raise CorruptDatasetError(f"{where}: the file is missing") from None
    except (
        OSError,  # pyarrow's errors are of these classes
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        MemoryError,
        OverflowError,
        NotImplementedError,
        AttributeError,
        AssertionError,
        struct.error,
    ) as error:
        message = f"{where} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error
