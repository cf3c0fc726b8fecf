"""Keep the finished episodes of a collector on disk until a dataset has taken them.

::

    <datasets root>/.minari_pipe/collecting/<name>/   or <temporary directory>/minari_pipe-...
    ├─ journal      one record of what is collected, then one for each finished episode
    ├─ rows-<n>     rows of long episodes; one file for each leaf of each open episode
    └─ lock         locked while the collecting process is alive

A record counts only if it is whole, so a killed process loses at most the episode that it was
writing. Data that the kernel has taken survive kill -9 and crashes of Python. They are not synced
to the disk: only a power loss would need that, and it would cost milliseconds per episode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import RESERVED_BYTES, reserve
from minari_pipe.core.files.mapped import map_array
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.recording.journal.folders import (
    JOURNAL,
    LOCK,
    OWN,
    ROWS,
    locked,
    new_folder,
    remove_journal,
)
from minari_pipe.recording.journal.format import (
    EpisodeEncoder,
    RecordPlace,
    StoredRows,
    head_record,
    record_of,
)
from minari_pipe.recording.journal.reader import JournalReader
from minari_pipe.storage.segment import Segment

T = TypeVar("T", bound=EpisodeBuffer | Segment)

#: Number of bytes to copy at a time.
_PART = 1 << 20

#: Largest number of open files of rows; a process may open about a thousand files in total.
_MOST_OPEN = 128


class Journal:
    """Appends finished episodes to a file of its own, which is created with the first of them.

    After a fork, the child continues in a copy: the original file belongs to the parent.

    Example:
        >>> from minari_pipe.core.episode import EpisodeBuffer
        >>> journal = Journal({"env_id": "CartPole-v1"})
        >>> journal.append(EpisodeBuffer(rewards=[1.0], terminations=[True], truncations=[False]))
        >>> [episode.rewards for episode in journal.episodes()]
        [[1.0]]
        >>> journal.clear()
        >>> len(journal)
        0
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        """Store the description of what is collected.

        Args:
            head: the description, which JSON can hold.
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
        # whether the file may end with a part of a record
        self._broken_off = False
        # for each file of rows, where its next rows go, and the open episode that it grows by; two
        # open episodes never write to one file, as the rows of a place are contiguous
        self._rows_end: list[int] = []
        self._growing: list[int | None] = []
        self._rows: dict[int, FileIO] = {}  # the open files, the last used one last

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self._count

    def append(self, episode: EpisodeBuffer) -> None:
        """Add a finished episode; if that fails, the journal is unchanged.

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
        """Header of the last plain episode, for :meth:`append_alike`."""
        return self._encoder.header

    def append_alike(
        self, header: bytes, steps: int, seed: int | None, arrays: Sequence[bytes | memoryview]
    ) -> None:
        """Add an episode of the same structure as an earlier one; if that fails, nothing changes.

        Args:
            header: the :attr:`header` after the earlier one, which had a seed if this one has.
            steps: number of steps.
            seed: the seed.
            arrays: bytes of its arrays, each padded to a multiple of 8.

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
        # in one statement, so that Ctrl-C leaves all or nothing; a partial record is overwritten
        self._end, self._count, self._broken_off = self._end + size, self._count + 1, False

    def rows_of(self, episode: int) -> RowsOf:
        """Return the storage for the rows of one of several open episodes.

        Args:
            episode: its number among them.
        """
        return RowsOf(self, episode)

    def release(self, episode: int = 0) -> None:
        """Mark an open episode as one that adds no more rows to its files."""
        if episode in self._growing:
            self._growing = [None if by == episode else by for by in self._growing]

    def remove_rows(self, episode: int) -> None:
        """Remove the files of an open episode whose rows were taken, if none are needed.

        Arrays that :meth:`rows` has returned remain valid.
        """
        if not self._count and self._pid == os.getpid():
            for number in [n for n, by in enumerate(self._growing) if by == episode]:
                assert self.path is not None
                if number in self._rows:
                    self._rows.pop(number).close()
                with suppress(OSError):  # on Windows, while such arrays exist
                    self.path.with_name(ROWS.format(number)).unlink()
                    self._rows_end[number] = 0
        self.release(episode)

    def add_rows(
        self, place: RecordPlace | None, rows: npt.NDArray[Any], episode: int = 0
    ) -> RecordPlace:
        """Write rows of an episode that is not finished yet.

        They become part of an episode if :meth:`append` gets what :meth:`rows` returns for them.

        Args:
            place: place of the rows before them, whose bytes are whole words; None for the first
                rows, which start a place.
            rows: the rows.
            episode: number of their open episode, see :meth:`release`.

        Returns:
            The place of all of them.

        Raises:
            OSError: the disk is full; the rows before them are unchanged.
        """
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        place = self._begun(place, episode)
        file = self._rows_file(place.file)
        file.seek(place.offset + place.size)
        _write(file, data.data)
        return self._grown(place, [data.data])

    def add_zeros(self, place: RecordPlace | None, size: int, episode: int = 0) -> RecordPlace:
        """Reserve zero rows, as :meth:`add_rows` would; unwritten parts of a file read as zeros."""
        place = self._begun(place, episode)
        zeros = memoryview(bytes(min(size, _PART)))
        return self._grown(place, (zeros[: size - at] for at in range(0, size, _PART)))

    def _begun(self, place: RecordPlace | None, episode: int) -> RecordPlace:
        self._own_file()
        if place is not None:
            return place
        if None not in self._growing:
            self._add_file(0)
        number = self._growing.index(None)
        self._growing[number] = episode
        return RecordPlace(number, self._rows_end[number], 0, 0, xxh3_64())

    def _add_file(self, end: int) -> FileIO:
        file = self._rows_file(len(self._rows_end))
        # in one statement: Ctrl-C leaves both lists as they were
        self._rows_end, self._growing = [*self._rows_end, end], [*self._growing, None]
        return file

    def _rows_file(self, number: int) -> FileIO:
        # in an order in which Ctrl-C between two lines loses no open file
        if number in self._rows:
            file = self._rows[number] = self._rows.pop(number)
            return file
        assert self.path is not None
        path = self.path.with_name(ROWS.format(number))
        file = self._rows[number] = FileIO(path, "r+" if path.exists() else "x+")
        if len(self._rows) > _MOST_OPEN:
            self._rows.pop(next(iter(self._rows))).close()
        return file

    def _grown(self, place: RecordPlace, parts: Iterable[memoryview]) -> RecordPlace:
        assert place.state is not None
        state, size = place.state.copy(), place.size
        for part in parts:
            state.update(part)
            size += len(part)
        end = place.offset + size
        self._rows_end[place.file] = max(self._rows_end[place.file], end + (-end & 7))
        return RecordPlace(place.file, place.offset, size, state.intdigest(), state)

    def rows(self, place: RecordPlace, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the rows of a place; only the parts that are accessed are read.

        Args:
            place: what :meth:`add_rows` returned.
            dtype: dtype of the rows.
            shape: shape of all of them.
        """
        self._own_file()
        file = self._rows_file(place.file)
        if os.fstat(file.fileno()).st_size < place.offset + place.size:  # trailing zeros
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
            CorruptDatasetError: another program has changed the file.
        """
        return self._read(lambda reader: reader.episodes(self._count))

    def segments(self) -> Iterator[EpisodeBuffer | Segment]:
        """Yield what :meth:`episodes` does, but short ones of one structure in segments.

        Raises:
            CorruptDatasetError: another program has changed the file.
        """
        return self._read(lambda reader: reader.segments(self._count))

    def _read(self, read: Callable[[JournalReader], Iterator[T]]) -> Iterator[T]:
        if self.path is None:
            return
        with JournalReader(self.path, trusted=True) as reader:
            found = 0
            for part in read(reader):
                yield part
                found += len(part) if isinstance(part, Segment) else 1
        if found < self._count:
            raise CorruptDatasetError(f"{self.path}: {reader.damage or 'episodes are missing'}")

    def clear(self) -> None:
        """Remove the episodes and start over."""
        path = self._release()
        if path is not None:
            remove_journal(path.parent)

    def leave(self) -> Path | None:
        """Release the file, which stays for recovery if it has episodes.

        Returns:
            The path of the file, None if it has no episodes.
        """
        count = self._count
        path = self._release()
        if path is not None and not count:
            remove_journal(path.parent)
            return None
        return path

    def _release(self) -> Path | None:
        """Close the files, and return the journal's path if it is this process's own."""
        path = self.path if self._pid == os.getpid() else None
        for file in (self._file, *self._rows.values()):
            if file is not None:
                file.close()
        if self._lock is not None:
            os.close(self._lock)
        if path is not None:
            OWN.pop(path.parent, None)
        self._forget()
        return path

    def _begin(self) -> None:
        folder = new_folder()
        self._pid = os.getpid()
        OWN[folder] = self._pid
        self.path = folder / JOURNAL
        try:
            self._lock = locked(folder / LOCK)
            self._file = open(self.path, "x+b", buffering=0)  # noqa: SIM115 - closed by _release
            _write(self._file, head_record({**self._head, "pid": self._pid}))
        except BaseException:
            self.clear()  # without a whole head, nothing after it could be read
            raise
        self._count = 0
        self._end = self._head_end = self._file.tell()

    def _begin_copy(self) -> None:
        """Continue in copies of the parent's files, which stay as they are."""
        assert self._file is not None
        assert self.path is not None
        path, file, rows = self.path, self._file, self._rows
        head, end, rows_end = self._head_end, self._end, self._rows_end
        count, growing = self._count, self._growing
        if self._lock is not None:
            os.close(self._lock)
        self._forget()
        try:
            self._begin()
            assert self._file is not None
            _copy(file, head, end, self._file)
            for number, rows_size in enumerate(rows_end):
                if not rows_size:
                    self._add_file(0)
                    continue
                if number not in rows:  # not open here: the parent has it, or has removed it
                    rows[number] = FileIO(path.with_name(ROWS.format(number)))
                # trailing zeros are not written
                size = min(rows_size, os.fstat(rows[number].fileno()).st_size)
                _copy(rows[number], 0, size, self._add_file(rows_size))
                rows.pop(number).close()
        finally:
            for each in (file, *rows.values()):
                each.close()
        self._count, self._end, self._growing = count, self._file.tell(), growing


class RowsOf:
    """The rows of one of several open episodes, for its recorder.

    Example:
        >>> journal = Journal({})
        >>> first, second = journal.rows_of(0), journal.rows_of(1)
        >>> place = first.add_rows(None, np.arange(8))
        >>> other = second.add_rows(None, np.arange(8) + 100)
        >>> place = first.add_rows(place, np.arange(8, 12))
        >>> first.rows(place, np.int64, (12,)).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
        >>> journal.clear()
    """

    def __init__(self, journal: Journal, episode: int) -> None:
        self._journal, self._episode = journal, episode

    def add_rows(self, place: RecordPlace | None, rows: npt.NDArray[Any]) -> RecordPlace:
        """See :meth:`Journal.add_rows`."""
        return self._journal.add_rows(place, rows, self._episode)

    def add_zeros(self, place: RecordPlace | None, size: int) -> RecordPlace:
        """See :meth:`Journal.add_zeros`."""
        return self._journal.add_zeros(place, size, self._episode)

    def rows(self, place: RecordPlace, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """See :meth:`Journal.rows`."""
        return self._journal.rows(place, dtype, shape)


def _copy(source: FileIO, first: int, last: int, target: FileIO) -> None:
    """Copy a range of bytes with ``pread``, as a parent process may share the file's position."""
    while first < last:
        chunk = os.pread(source.fileno(), min(last - first, _PART), first)
        if not chunk:
            raise CorruptDatasetError(f"{source.name} ends before the episodes of this process")
        _write(target, chunk)
        first += len(chunk)


def _write(file: FileIO, data: bytes | memoryview) -> None:
    if len(data) >= RESERVED_BYTES:
        reserve(file.fileno(), file.tell(), len(data))
    written = file.write(data)
    while written < len(data):
        written += file.write(memoryview(data)[written:])
