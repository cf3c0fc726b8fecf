"""The episodes that a collector has finished and nobody has taken yet, safe from its end.

::

    <datasets root>/.minari_pipe/collecting/<name>/   or <temporary directory>/minari_pipe-...
    ├─ journal      one record of what is collected, then one for each finished episode
    ├─ rows-<n>     rows of episodes that memory had no room for, one file for each leaf
    └─ lock         locked as long as the process that collects is alive

A record counts only if it is whole, so a process that is killed loses at most the episode that
it was writing. What the kernel has taken is safe from kill -9 and from crashes of Python; it is
not forced to the disk, which a loss of power may need and which would cost milliseconds each.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.datasets_root import get_dataset_path
from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.journal_format import (
    EPISODE,
    HEAD,
    OLD_EPISODE,
    EpisodeEncoder,
    Place,
    Record,
    StoredRows,
    decode_episode,
    head_record,
    read_prefix,
    record_of,
    sum_of_words,
)
from minari_pipe.mapped import map_array

try:
    import fcntl
except ImportError:  # Windows: whether a process is alive is not known there
    fcntl = None  # type: ignore[assignment]

#: hidden, so that no listing looks into it, real Minari's neither
COLLECTING = Path(".minari_pipe/collecting")
TEMPORARY_PREFIX = "minari_pipe-collecting-"
JOURNAL, LOCK, ROWS = "journal", "lock", "rows-{}"

#: rows are copied and summed in parts of so many bytes
_PART = 1 << 20

#: stored rows of fewer bytes are read at once, those of more when they are looked at
_MAPPED = 1 << 22

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
        self._encoder = EpisodeEncoder()
        self._forget()

    def _forget(self) -> None:
        self.path: Path | None = None
        self._file: FileIO | None = None
        self._lock: int | None = None
        self._pid = 0
        self._count = self._end = self._head_end = 0
        # whether there may be a part of a record at the end
        self._broken_off = False
        # files of rows, where their next rows go, and how many of them are being written to
        self._rows: list[FileIO] = []
        self._rows_end: list[int] = []
        self._n_growing = 0

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
        self._append(self._encoder.record(episode))

    @property
    def header(self) -> bytes:
        """What :meth:`append_alike` needs to know of an episode, once it was appended."""
        return self._encoder.header

    def append_alike(
        self, header: bytes, steps: int, seed: int | None, arrays: Sequence[bytes]
    ) -> None:
        """Add an episode of the same structure as another; if that fails, nothing has changed.

        Args:
            header: the :attr:`header` after that one, which had a seed if this one has.
            steps: number of steps.
            seed: the seed.
            arrays: the bytes of its arrays, each up to a multiple of 8.

        Raises:
            OSError: the disk is full.
        """
        self._append(record_of(header, steps, seed, arrays))

    def _append(self, chunks: Sequence[bytes | memoryview]) -> None:
        file = self._own_file()
        if self._broken_off:
            file.truncate(self._end)
            file.seek(self._end)
        self._broken_off = True
        size = sum(map(len, chunks))
        for chunk in chunks:
            _write(file, chunk)
        # at once, or none of it if Ctrl-C comes: what is there is written over then
        self._end, self._count, self._broken_off = self._end + size, self._count + 1, False
        self._n_growing = 0

    def add_rows(self, place: Place | None, rows: npt.NDArray[Any]) -> Place:
        """Write rows of an episode that is not finished yet.

        They are part of an episode if :meth:`append` gets what :meth:`rows` returns of them.

        Args:
            place: where the rows before them are, whose bytes are whole words; None for the
                first ones, which begin a place.
            rows: the rows.

        Returns:
            Where all of them are.

        Raises:
            OSError: the disk is full; the rows before them are as they were.
        """
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        place = self._begun(place)
        file = self._rows[place.file]
        file.seek(place.offset + place.size)
        _write(file, data.data)
        return self._grown(place, len(data), sum_of_words(data))

    def add_zeros(self, place: Place | None, size: int) -> Place:
        """Make room for rows that are zero, likewise; a file that is not written there is zero."""
        place = self._begun(place)
        return self._grown(place, size, 0)

    def _begun(self, place: Place | None) -> Place:
        self._own_file()
        if place is not None:
            return place
        number = self._n_growing
        if number == len(self._rows):
            self._add_file(number, 0)
        self._n_growing += 1
        return Place(number, self._rows_end[number], 0, 0)

    def _add_file(self, number: int, end: int) -> FileIO:
        assert self.path is not None
        file = open(self.path.with_name(ROWS.format(number)), "x+b", buffering=0)  # noqa: SIM115
        self._rows.append(file)
        self._rows_end.append(end)
        return file

    def _grown(self, place: Place, size: int, checksum: int) -> Place:
        end = place.offset + place.size + size
        self._rows_end[place.file] = max(self._rows_end[place.file], end + (-end & 7))
        total = (place.checksum + checksum) % (1 << 64)
        return Place(place.file, place.offset, place.size + size, total)

    def rows(self, place: Place, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the rows of a place, of which only what is looked at is read.

        Args:
            place: what :meth:`add_rows` returned.
            dtype: of the rows.
            shape: of all of them.
        """
        self._own_file()
        file = self._rows[place.file]
        if os.fstat(file.fileno()).st_size < place.offset + place.size:  # zeros at the end
            file.truncate(place.offset + place.size)
        rows = map_array(file.fileno(), place.offset, np.dtype(dtype), shape).view(StoredRows)
        rows.place = place
        return rows

    def _own_file(self) -> FileIO:
        if self._file is None:
            self._begin()
        elif self._pid != os.getpid():
            self._begin_copy()
        assert self._file is not None
        return self._file

    def episodes(self) -> Iterator[EpisodeBuffer]:
        """Yield the episodes, read from the file one by one.

        Raises:
            CorruptDatasetError: somebody else has changed the file.
        """
        if self.path is None:
            return
        with JournalReader(self.path, trusted=True) as reader:
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
        for file in (self._file, *self._rows):
            if file is not None:
                file.close()
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
            self._file = open(self.path, "x+b", buffering=0)  # noqa: SIM115 - closed by _release
            _write(self._file, head_record({**self._head, "pid": self._pid}))
        except BaseException:
            self.clear()  # without a whole head nothing after it could be read
            raise
        self._count = 0
        self._end = self._head_end = self._file.tell()

    def _begin_copy(self) -> None:
        """Go on in copies of the parent's files, which are open here and stay as they are."""
        assert self._file is not None
        files, ends = [self._file, *self._rows], [self._end, *self._rows_end]
        head, count, growing = self._head_end, self._count, self._n_growing
        if self._lock is not None:
            os.close(self._lock)
        self._forget()
        try:
            self._begin()
            assert self._file is not None
            assert self.path is not None
            _copy(files[0], head, ends[0], self._file)
            for number, (file, end) in enumerate(zip(files[1:], ends[1:], strict=True)):
                # zeros at the end are not written
                size = min(end, os.fstat(file.fileno()).st_size)
                _copy(file, 0, size, self._add_file(number, end))
        finally:
            for file in files:
                file.close()
        self._count, self._end, self._n_growing = count, self._file.tell(), growing


def _copy(source: FileIO, first: int, last: int, target: FileIO) -> None:
    """Copy the bytes of a file from and to; its parent process may be reading it too."""
    while first < last:
        chunk = os.pread(source.fileno(), min(last - first, _PART), first)
        if not chunk:
            raise CorruptDatasetError(f"{source.name} ends before the episodes of this process")
        _write(target, chunk)
        first += len(chunk)


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

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        """Open a journal; use it as a context manager.

        Args:
            path: its file.
            trusted: this process has written it; the rows in files of their own, of which there
                may be more than memory can hold, need not be read to be sure of them.

        Raises:
            CorruptDatasetError: its head is damaged or not there.
        """
        self.path = path
        self.damage: str | None = None
        self.cut = False
        self._trusted = trusted
        self._rows: dict[int, FileIO] = {}
        # the text of a header, and what it says
        self._header: tuple[bytes, Any] = b"", None
        try:
            self.file = BufferedReader(FileIO(path), _PART)
        except OSError as error:
            raise CorruptDatasetError(f"{path} cannot be read: {error.strerror}") from error
        self._size = os.fstat(self.file.fileno()).st_size
        try:
            found = next(self._records(HEAD), None)
            if found is None:
                raise CorruptDatasetError(f"{path}: {self.damage or 'it is cut short'}")
            self.head: dict[str, Any] = found[1]
            self.first = self.file.tell()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.file, *self._rows.values()):
            file.close()

    def steps(self) -> Iterator[int]:
        """Yield the number of steps of each episode, without reading the arrays."""
        self.file.seek(self.first)
        for number, (record, header) in enumerate(self._records(EPISODE, OLD_EPISODE)):
            steps = header.get("steps") if record.steps is None else record.steps
            if not isinstance(steps, int):
                self.damage = f"the record of episode {number} says no number of steps"
                return
            self.file.seek(record.body_size, os.SEEK_CUR)
            yield steps

    def episodes(self, limit: int | None = None) -> Iterator[EpisodeBuffer]:
        """Yield the episodes up to the first one that is damaged; ``damage`` says so then.

        The arrays can be written to, but for those that are too large to be in memory.
        """
        self.file.seek(self.first)
        for number, (record, header) in enumerate(self._records(EPISODE, OLD_EPISODE)):
            if number == limit:
                return
            body = bytearray(record.body_size)
            self.file.readinto(body)
            if not record.holds(body):
                self.damage = f"the arrays of episode {number} are damaged"
                return
            try:
                episode = decode_episode(header, record, body, self._open_rows)
            except (
                LookupError,
                TypeError,
                ValueError,
                AttributeError,
                ArithmeticError,
                RecursionError,
                OSError,
            ) as error:
                self.damage = f"the record of episode {number} is damaged: {error}"
                return
            yield episode

    def _open_rows(
        self, place: Place, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        file = self._rows.get(place.file)
        if file is None:
            name = self.path.with_name(ROWS.format(place.file))
            file = self._rows[place.file] = open(name, "rb", buffering=0)  # noqa: SIM115
        if place.offset + place.size > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{file.name} ends before its rows")
        if not self._trusted and _checksum_of(file, place) != place.checksum:
            raise ValueError(f"its rows in {file.name} are damaged")
        if place.size >= _MAPPED:
            return map_array(file.fileno(), place.offset, dtype, shape)
        rows = np.empty(shape, dtype)
        file.seek(place.offset)
        file.readinto(rows.reshape(-1).view(np.uint8).data)
        return rows

    def _records(self, *kinds: bytes) -> Iterator[tuple[Record, dict[str, Any]]]:
        """Yield prefix and header of each record; the caller reads or skips the body."""
        while (start := self.file.tell()) < self._size:
            try:
                record = read_prefix(self.file.read)
            except EOFError:
                self.cut = True
                return
            if record is None or record.kind not in kinds:
                self.damage = f"the record at byte {start} is damaged"
                return
            if start + record.size > self._size:
                self.cut = True
                return
            text = self.file.read(record.header_size)
            known, header = self._header
            if text != known or zlib.crc32(text) != record.header_sum:
                try:
                    header = json.loads(text)
                except (ValueError, RecursionError):
                    header = None
                if zlib.crc32(text) != record.header_sum or not isinstance(header, dict):
                    self.damage = f"the header of the record at byte {start} is damaged"
                    return
                self._header = text, header
            yield record, header


def _checksum_of(file: FileIO, place: Place) -> int:
    total = 0
    file.seek(place.offset)
    for first in range(0, place.size, _PART):
        total += sum_of_words(np.frombuffer(file.read(min(_PART, place.size - first)), np.uint8))
    return total % (1 << 64)


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


def _write(file: FileIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while len(left):
        left = left[file.write(left) :]
