"""The episodes that a collector has finished and nobody has taken yet, safe from its end.

::

    <datasets root>/.minari_pipe/collecting/<name>/   or <temporary directory>/minari_pipe-...
    ├─ journal      one record of what is collected, then one for each finished episode
    └─ lock         locked as long as the process that collects is alive

    record = prefix (sizes and checksums), header (JSON), body (the bytes of the arrays)

A record counts only if it is whole, so a process that is killed loses at most the episode that
it was writing. What the kernel has taken is safe from kill -9 and from crashes of Python; it is
not forced to the disk, which a loss of power may need and which would cost milliseconds each.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minari_pipe.datasets_root import get_dataset_path
from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import ConfigError, CorruptDatasetError, InvalidEpisodeError

try:
    import fcntl
except ImportError:  # Windows: whether a process is alive is not known there
    fcntl = None  # type: ignore[assignment]

#: hidden, so that no listing looks into it, real Minari's neither
COLLECTING = Path(".minari_pipe/collecting")
TEMPORARY_PREFIX = "minari_pipe-collecting-"
JOURNAL, LOCK = "journal", "lock"

# magic, bytes of header and body, their checksums, checksum of all this
_PREFIX = struct.Struct("<4sQQIII")
_HEAD, _EPISODE = b"MPj1", b"MPe1"
_FIELDS = tuple(field.name for field in fields(EpisodeBuffer) if field.name != "id")

#: journals of this process: closing a file of them for a look would give the lock up
_own: dict[Path, int] = {}


class Journal:
    """Appends finished episodes to a file of its own, which is made with the first of them.

    After a fork, the child goes on in a copy: the parent's file is the parent's.

    Example:
        >>> from minari_pipe.episode import EpisodeBuffer
        >>> journal = Journal({"env_id": "CartPole-v1"})
        >>> journal.append(EpisodeBuffer(rewards=[1.0], terminations=[True], truncations=[False]))
        >>> [episode.rewards for episode in journal.episodes()]
        [[1.0]]
        >>> journal.clear()
        >>> len(journal)
        0
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        """Say what is collected.

        Args:
            head: what JSON can hold.
        """
        self._head = dict(head)
        self._forget()

    def _forget(self) -> None:
        self.path: Path | None = None
        self._file: BinaryIO | None = None
        self._lock: int | None = None
        self._pid = 0
        self._count = self._end = 0

    def __len__(self) -> int:
        """Number of episodes."""
        return self._count

    def append(self, episode: EpisodeBuffer) -> None:
        """Add a finished episode; if that fails, the journal is as before.

        Args:
            episode: its arrays, options and metadata; the ``id`` is not kept.

        Raises:
            InvalidEpisodeError: a value is neither a number, a string, None, an array of these,
                nor a list, tuple or dict.
            OSError: the disk is full.
        """
        arrays: list[npt.NDArray[Any]] = []
        form = {name: _form(getattr(episode, name), arrays, name) for name in _FIELDS}
        chunks = _record(_EPISODE, {"steps": len(episode), "episode": form}, arrays)
        if self._file is None:
            self._begin()
        elif self._pid != os.getpid():
            self._begin_copy()
        assert self._file is not None
        if self._file.tell() != self._end:  # an append that was broken off
            self._file.truncate(self._end)
            self._file.seek(self._end)
        for chunk in chunks:
            _write(self._file, chunk)
        self._end = self._file.tell()
        self._count += 1

    def episodes(self) -> Iterator[EpisodeBuffer]:
        """Yield the episodes, read from the file one by one.

        Raises:
            CorruptDatasetError: somebody else has changed the file.
        """
        if self.path is None:
            return
        with JournalReader(self.path) as reader:
            found = 0
            for episode in reader.episodes(self._count):
                yield episode
                found += 1
        if found < self._count:
            raise CorruptDatasetError(f"{self.path}: {reader.damage or 'episodes are missing'}")

    def clear(self) -> None:
        """Remove the episodes and begin anew."""
        path = self._release()
        if path is not None:
            remove_journal(path.parent)

    def leave(self) -> Path | None:
        """Give the file up: it stays for whoever recovers the episodes, if there are any.

        Returns:
            The file, None if there is nothing in it.
        """
        count = self._count
        path = self._release()
        if path is not None and not count:
            remove_journal(path.parent)
            return None
        return path

    def _release(self) -> Path | None:
        """Close the file; return it if it is this process's own."""
        path = self.path if self._pid == os.getpid() else None
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            os.close(self._lock)
        if path is not None:
            _own.pop(path.parent, None)
        self._forget()
        return path

    def _begin(self) -> None:
        folder = _new_folder()
        self._pid = os.getpid()
        _own[folder] = self._pid
        self.path = folder / JOURNAL
        try:
            self._lock = _locked(folder / LOCK)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - closed by _release
            for chunk in _record(_HEAD, {**self._head, "pid": self._pid}, []):
                _write(self._file, chunk)
        except BaseException:
            self.clear()  # without a whole head nothing after it could be read
            raise
        self._count, self._end = 0, self._file.tell()

    def _begin_copy(self) -> None:
        source, end, count = self.path, self._end, self._count
        self._release()
        self._begin()
        assert self._file is not None
        if source is None or not count:
            return
        with JournalReader(source) as reader:
            reader.file.seek(reader.first)
            left = end - reader.first
            while left > 0:
                chunk = reader.file.read(min(left, 1 << 20))
                if not chunk:
                    raise CorruptDatasetError(f"{source} ends before the episodes of this process")
                _write(self._file, chunk)
                left -= len(chunk)
        self._count, self._end = count, self._file.tell()


class JournalReader:
    """Reads a journal as far as it is whole, also while it is written.

    Attributes:
        head: what is collected.
        damage: why reading ended before the end of the file; None if it did not, or if the last
            record is merely cut short.
        cut: whether the last record is cut short, as kill -9 leaves it.

    Example:
        >>> journal = Journal({"env_id": "CartPole-v1"})
        >>> journal.append(EpisodeBuffer(rewards=[1.0, 2.0]))
        >>> with JournalReader(journal.leave()) as reader:
        ...     reader.head["env_id"], list(reader.steps())
        ('CartPole-v1', [2])
        >>> remove_journal(reader.path.parent)
    """

    def __init__(self, path: Path) -> None:
        """Open a journal; use it as a context manager.

        Raises:
            CorruptDatasetError: its head is damaged or not there.
        """
        self.path = path
        self.damage: str | None = None
        self.cut = False
        try:
            self.file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise CorruptDatasetError(f"{path} cannot be read: {error.strerror}") from error
        try:
            found = next(self._records(_HEAD), None)
            if found is None:
                raise CorruptDatasetError(f"{path}: {self.damage or 'it is cut short'}")
            self.head: dict[str, Any] = found[0]
            self.first = self.file.tell()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def steps(self) -> Iterator[int]:
        """Yield the number of steps of each episode, without reading the arrays."""
        self.file.seek(self.first)
        for number, (header, body) in enumerate(self._records(_EPISODE)):
            steps = header.get("steps")
            if not isinstance(steps, int):
                self.damage = f"the record of episode {number} says no number of steps"
                return
            self.file.seek(body, os.SEEK_CUR)
            yield steps

    def episodes(self, limit: int | None = None) -> Iterator[EpisodeBuffer]:
        """Yield the episodes up to the first one that is damaged; ``damage`` says so then."""
        self.file.seek(self.first)
        for number, (header, size) in enumerate(self._records(_EPISODE)):
            if number == limit:
                return
            body = self.file.read(size)
            if len(body) < size or zlib.crc32(body) != header["checksum"]:
                self.damage = f"the arrays of episode {number} are damaged"
                return
            try:
                form, place = header["episode"], _Body(body)
                values = {name: place.value(form[name]) for name in _FIELDS}
                yield EpisodeBuffer(**values)
            except (
                LookupError,
                TypeError,
                ValueError,
                AttributeError,
                ArithmeticError,
                RecursionError,
            ) as error:
                self.damage = f"the record of episode {number} is damaged: {error}"
                return

    def _records(self, kind: bytes) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield header and size of the body of each record; the caller reads or skips the body."""
        size = os.fstat(self.file.fileno()).st_size
        while (start := self.file.tell()) < size:
            prefix = self.file.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                self.cut = True
                return
            magic, header_size, body_size, header_sum, body_sum, own_sum = _PREFIX.unpack(prefix)
            if zlib.crc32(prefix[:-4]) != own_sum or magic != kind:
                self.damage = f"the record at byte {start} is damaged"
                return
            if start + _PREFIX.size + header_size + body_size > size:
                self.cut = True
                return
            text = self.file.read(header_size)
            try:
                header = json.loads(text)
            except (ValueError, RecursionError):
                header = None
            if zlib.crc32(text) != header_sum or not isinstance(header, dict):
                self.damage = f"the header of the record at byte {start} is damaged"
                return
            yield {**header, "checksum": body_sum}, body_size


def journals() -> Iterator[Path]:
    """Yield every journal: those of the datasets root, and this user's of the temporary folder.

    Example:
        >>> list(journals())
        []
    """
    folders: list[Path] = []
    with suppress(OSError, ConfigError):
        folders += sorted((get_dataset_path() / COLLECTING).iterdir())
    with suppress(OSError):
        temporary = Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")
        folders += sorted(folder for folder in temporary if _is_mine(folder))
    for folder in folders:
        if (folder / JOURNAL).is_file():
            yield folder / JOURNAL


def is_alive(path: Path) -> bool:
    """Whether the process that writes this journal lives; where that is not known, it does.

    Example:
        >>> [is_alive(path) for path in journals()]
        []
    """
    folder = path.parent
    if _own.get(folder) == os.getpid() or fcntl is None:
        return True
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def remove_journal(folder: Path) -> None:
    """Remove the folder of a journal, and those above it that are hidden and empty then.

    Example:
        See :class:`JournalReader`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.parts[-2:] == COLLECTING.parts:
        with suppress(OSError):  # others are in it
            folder.parent.rmdir()
            folder.parent.parent.rmdir()


def _new_folder() -> Path:
    prefix = f"{os.getpid()}-"
    for _ in range(10):
        try:
            home = get_dataset_path() / COLLECTING
            home.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        except FileNotFoundError:
            continue  # another collector found the folder empty and removed it
        except (OSError, ConfigError):
            break
    return Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))


def _is_mine(folder: Path) -> bool:
    own = getattr(os, "getuid", lambda: folder.stat().st_uid)()
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == own


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            # of this process, not of its forked children: it ends with the process
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _record(
    kind: bytes, header: Mapping[str, Any], arrays: list[npt.NDArray[Any]]
) -> list[bytes | memoryview]:
    try:
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEpisodeError(f"the episode cannot be stored: {error}") from None
    chunks = [array.data for array in arrays if array.nbytes]
    checksum = 0
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
    size = sum(len(chunk) for chunk in chunks)
    prefix = _PREFIX.pack(kind, len(text), size, zlib.crc32(text), checksum, 0)[:-4]
    prefix += struct.pack("<I", zlib.crc32(prefix))
    if size < 1 << 16:  # one call of the system is cheaper than many
        return [b"".join([prefix, text, *chunks])]
    return [prefix + text, *chunks]


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while len(left):
        left = left[file.write(left) :]


def _form(value: Any, arrays: list[npt.NDArray[Any]], name: str) -> Any:
    """Return what JSON can hold of a value, and put the bytes of arrays into ``arrays``."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O" and all(isinstance(entry, str) for entry in value.flat):
            return ["text", list(value.shape), [str(entry) for entry in value.flat]]
        if value.dtype.kind in "biufcU" and value.dtype.itemsize:
            arrays.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            return ["array", value.dtype.str, list(value.shape)]
    elif isinstance(value, np.generic) and value.dtype.kind in "biufc":
        arrays.append(np.frombuffer(value.tobytes(), np.uint8))
        return ["scalar", value.dtype.str]
    elif value is None or isinstance(value, bool | int | float):
        return value
    elif isinstance(value, str):
        return str(value)
    elif isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return ["dict", {key: _form(part, arrays, name) for key, part in value.items()}]
    elif isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_form(part, arrays, name) for part in value]]
    raise InvalidEpisodeError(
        f"{name} cannot be stored: {type(value).__name__} {str(value)[:60]!r}; expected numbers, "
        "strings, None, arrays of these, or lists, tuples and dicts with strings as keys"
    )


class _Body:
    """Takes the arrays of a record off its bytes in their order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def value(self, form: Any) -> Any:
        if not isinstance(form, list):
            return form
        kind, *rest = form
        if kind == "dict":
            return {key: self.value(part) for key, part in rest[0].items()}
        if kind in ("list", "tuple"):
            parts = [self.value(part) for part in rest[0]]
            return parts if kind == "list" else tuple(parts)
        if kind == "text":
            return np.array([str(part) for part in rest[1]], dtype=object).reshape(rest[0])
        if kind not in ("array", "scalar"):
            raise ValueError(f"unknown kind of value {kind!r}")
        dtype = np.dtype(rest[0])
        shape = rest[1] if kind == "array" else []
        if dtype.kind not in "biufcU" or not dtype.itemsize or any(n < 0 for n in shape):
            raise ValueError(f"an array of {dtype} and shape {shape}")
        count = math.prod(shape)
        end = self._place + count * dtype.itemsize
        if end > len(self._data):
            raise ValueError("an array is longer than the record")
        array = (
            np.frombuffer(self._data, dtype, count, self._place) if count else np.zeros(0, dtype)
        )
        self._place = end
        return array.reshape(shape).copy() if kind == "array" else array[0]
