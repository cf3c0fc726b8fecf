"""Read a journal of episodes up to its first damaged record, see :mod:`.writer`."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.links import opener
from minari_pipe.core.files.mapped import map_array
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import CorruptDatasetError, LinkError, UnsupportedVersionError
from minari_pipe.recording.journal.folders import ROWS
from minari_pipe.recording.journal.format import (
    EPISODE,
    HEAD,
    Body,
    EpisodeDecoder,
    Record,
    RecordPlace,
    read_prefix,
)
from minari_pipe.recording.journal.segments import RecordJoiner
from minari_pipe.storage.joining import APART_BYTES, MOST_EPISODES
from minari_pipe.storage.segment import Segment

#: Number of bytes of rows to checksum at a time.
_PART = 1 << 20

#: Number of bytes of short records to read at a time.
_BUFFER = 1 << 16

#: Number of bytes of short episodes to join.
_RUN_BYTES = 1 << 21

#: Size in bytes from which an episode or its stored rows are memory-mapped, not read at once.
_MAPPED = 1 << 20


class _EpisodeRecord(NamedTuple):
    """The record of an episode whose checksums were compared."""

    number: int
    prefix: Record
    header: dict[str, Any]
    body: Body


class JournalReader:
    """Reads a journal up to its first damaged record, even while it is being written.

    Attributes:
        head: what is collected.
        damage: why reading ended before the end of the file; None if it did not, or if the last
            record is merely incomplete.
        cut: whether the last record is incomplete, as after kill -9.

    Example:
        >>> from minari_pipe.recording.journal.writer import Journal
        >>> from minari_pipe.recording.journal.folders import remove_journal
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
            path: path of its file.
            trusted: whether this process wrote it; then long episodes, which together may exceed
                memory, are not read to verify them.

        Raises:
            CorruptDatasetError: its head is damaged or missing.
            UnsupportedVersionError: an earlier version of this package wrote it.
        """
        self.path = path
        self.damage: str | None = None
        self.cut = False
        self._trusted = trusted
        # for each file of rows, the number of bytes read from it
        self._n_read: Counter[int] = Counter()
        # the text of the last header, and its content
        self._header: tuple[bytes, Any] = b"", None
        # the last header, and what decodes its records
        self._decoder: tuple[Any, EpisodeDecoder] | None = None
        try:
            self.file = BufferedReader(FileIO(path, opener=opener(path.parent)), _BUFFER)
        except LinkError:
            raise
        except OSError as error:
            raise CorruptDatasetError(f"{path} cannot be read: {error.strerror}") from error
        self._size = os.fstat(self.file.fileno()).st_size
        try:
            found = next(self._records(HEAD), None)
            if found is None:
                raise CorruptDatasetError(f"{path}: {self.damage or 'it is incomplete'}")
            self.head: dict[str, Any] = found[1]
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
        for record, _ in self._records(EPISODE):
            self.file.seek(record.body_size, os.SEEK_CUR)
            yield record.steps

    def episodes(self, limit: int | None = None) -> Iterator[EpisodeBuffer]:
        """Yield the episodes up to the first damaged one, which ``damage`` then describes.

        The arrays are writable, except those of long episodes, which are memory-mapped.
        """
        for record in self._checked_records(limit):
            episode = self._decoded(record)
            if episode is None:
                return
            yield episode

    def segments(self, limit: int | None = None) -> Iterator[EpisodeBuffer | Segment]:
        """Yield what :meth:`episodes` does, but short ones of one structure in segments."""
        run: list[_EpisodeRecord] = []
        joiner, size = None, 0
        for record in self._checked_records(limit):
            is_alike = bool(run) and record.header is run[0].header
            # a long one is handed over alone, to be written without a copy
            is_long = len(record.body) >= APART_BYTES
            if not is_alike or is_long or size >= _RUN_BYTES or len(run) == MOST_EPISODES:
                yield from self._joined(joiner, run)
                if self.damage is not None:
                    return
                if not is_alike:
                    joiner = RecordJoiner(record.header)
                run, size = [], 0
            run.append(record)
            size += _RUN_BYTES if is_long else len(record.body)
        yield from self._joined(joiner, run)

    def _joined(
        self, joiner: RecordJoiner | None, run: list[_EpisodeRecord]
    ) -> Iterator[EpisodeBuffer | Segment]:
        segment = None
        if joiner is not None and len(run) > 1 and (first := self._decoded(run[0])):
            prefixes, bodies = [one.prefix for one in run], [one.body for one in run]
            segment = joiner.segment(prefixes, bodies, first.metadata)
        if segment is not None:
            run.clear()
            yield segment
        for record in run:
            episode = self._decoded(record)
            if episode is None:
                return
            yield episode

    def _checked_records(self, limit: int | None) -> Iterator[_EpisodeRecord]:
        """Yield the records of episodes up to the first with another checksum."""
        self.file.seek(self.first)
        self._n_read.clear()
        for number, (prefix, header) in enumerate(self._records(EPISODE)):
            if number == limit:
                return
            try:
                body = self._body(prefix.body_size)
            except (OSError, ValueError) as error:
                self.damage = f"the record of episode {number} is damaged: {error}"
                return
            is_sure = self._trusted and isinstance(body, memoryview)
            if not is_sure and not prefix.holds(body):
                self.damage = f"the arrays of episode {number} are damaged"
                return
            yield _EpisodeRecord(number, prefix, header, body)

    def _decoded(self, record: _EpisodeRecord) -> EpisodeBuffer | None:
        """Return an episode, or None if it is damaged."""
        try:
            if self._decoder is None or record.header is not self._decoder[0]:
                self._decoder = record.header, EpisodeDecoder(record.header)
            return self._decoder[1].episode(record.prefix, record.body, self._open_rows)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            RecursionError,
            OSError,
        ) as error:
            self.damage = f"the record of episode {record.number} is damaged: {error}"
            return None

    def _body(self, size: int) -> Body:
        """Return the next bytes, which the file had when it was opened.

        Raises:
            OSError, ValueError: it no longer has them.
        """
        if size >= _MAPPED:
            place = self.file.tell()
            self.file.seek(size, os.SEEK_CUR)
            return map_array(self.file.fileno(), place, np.dtype(np.uint8), (size,)).data
        body = bytearray(size)
        self.file.readinto(body)
        return body

    def _open_rows(
        self, place: RecordPlace, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        # opened for each place, which has many rows: there may be too many files to keep open
        path = self.path.with_name(ROWS.format(place.file))
        with FileIO(path, opener=opener(path.parent)) as file:
            size = os.fstat(file.fileno()).st_size
            if place.offset + place.size > size:
                raise ValueError(f"{file.name} ends before its rows")
            self._n_read[place.file] += place.size
            if self._n_read[place.file] > size:
                raise ValueError(f"its rows in {file.name} overlap those of other episodes")
            if not self._trusted and _checksum_of(file, place) != place.checksum:
                raise ValueError(f"its rows in {file.name} are damaged")
            if place.size >= _MAPPED:
                return map_array(file.fileno(), place.offset, dtype, shape)
            rows = np.empty(shape, dtype)
            file.seek(place.offset)
            file.readinto(rows.reshape(-1).view(np.uint8).data)
            return rows

    def _records(self, kind: bytes) -> Iterator[tuple[Record, dict[str, Any]]]:
        """Yield prefix and header of each record; the caller reads or skips the body."""
        while (start := self.file.tell()) < self._size:
            try:
                record = read_prefix(self.file.read)
            except EOFError:
                self.cut = True
                return
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(f"{self.path}: {error}") from None
            if record is None or record.kind != kind:
                self.damage = f"the record at byte {start} is damaged"
                return
            if start + record.size > self._size:
                self.cut = True
                return
            text = self.file.read(record.header_size)
            known, header = self._header
            if text != known or zlib.crc32(text) != record.header_sum:
                try:
                    if zlib.crc32(text) != record.header_sum:
                        raise ValueError
                    header = json_object(text)
                except ValueError:
                    self.damage = f"the header of the record at byte {start} is damaged"
                    return
                self._header = text, header
            yield record, header


def _checksum_of(file: FileIO, place: RecordPlace) -> int:
    state = xxh3_64()
    file.seek(place.offset)
    for first in range(0, place.size, _PART):
        state.update(file.read(min(_PART, place.size - first)))
    return state.intdigest()
