"""Store datasets as HDF5 in the byte layout of Minari 0.5; only ``jpeg_encoding`` is lossy.

::

    data/
    ├─ metadata.json
    └─ main_data.hdf5
       ├─ episode_0             attributes id, total_steps, seed, options/k/k2, rewards_sum, ...
       │  ├─ observations       (T + 1, ...)   Dict space: a group of its keys
       │  ├─ actions            (T, ...)       Tuple space: a group of _index_0, _index_1, ...
       │  ├─ rewards            (T,) float64   Text space: variable-length UTF-8 strings
       │  ├─ terminations       (T,) bool
       │  ├─ truncations        (T,) bool
       │  ├─ infos              groups and datasets of T + 1 rows, empty if none
       │  └─ state              extra step data of any name: like infos, T + 1 or T rows
       └─ episode_1 ...

Every dataset is one chunk and can grow, so that real Minari can append to an episode. Only JPEG
images have a fixed number of rows: bytes ``(rows, size)``, or of variable length if the sizes
differ. No time, path or creation order is stored: equal calls write equal bytes.

An episode of plain numbers is returned as views of the mapped file if an index locates its values
(:mod:`~minari_pipe.storage.hdf5.index.cache`). The writer stores that index; for other files it is
built during the first read. Everything else is read through the structure of the file, by
:mod:`~minari_pipe.storage.hdf5.parser`.

As long as all data is numeric, a file is written directly (``hdf5.writer``); h5py takes over at the
first episode with text or JPEG images, or when an episode is changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.core import views
from minari_pipe.core.episode import EpisodeBuffer, EpisodeData, each_with_fields
from minari_pipe.core.files.atomic import current
from minari_pipe.core.files.links import OpenedFolder, open_below, status_below
from minari_pipe.core.files.locks import shared
from minari_pipe.core.files.manifest_update import pieces_named
from minari_pipe.core.files.words import InUseError, Word, can_commit
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    LinkError,
)
from minari_pipe.storage.base import Change
from minari_pipe.storage.columns import check_space_names
from minari_pipe.storage.directory import DirectoryStorage, OpenWriter
from minari_pipe.storage.hdf5.file import MAIN_FILE_NAME, Chain, EpisodeFile
from minari_pipe.storage.hdf5.index.cache import (
    Stamp,
    known,
    remember,
    remember_more,
)
from minari_pipe.storage.hdf5.index.index import FileIndex
from minari_pipe.storage.hdf5.index.mapped import MappedFile, MappedIndex, forget, open_mapped
from minari_pipe.storage.hdf5.index.views import Reader
from minari_pipe.storage.hdf5.writer.direct import used_of
from minari_pipe.storage.segment import AttributeTable, Segment
from minari_pipe.storage.writer import BufferChecker, EpisodeWriter

#: the storage whose file is to get room before an append begins, if it is large and has none
_asks_for_room: ContextVar[HDF5Storage | None] = ContextVar("_asks_for_room", default=None)
#: a smaller file is copied as fast as it is given room, in bytes
_LARGE = 2**23


class HDF5Storage(DirectoryStorage):
    """A dataset in one HDF5 file."""

    FORMAT = "hdf5"
    COMPRESSES = True

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
    ) -> None:
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        self._file_path = self.data_path / MAIN_FILE_NAME
        #: index of what was just written, and the file's stat result or what committed the change
        self._left: tuple[FileIndex, os.stat_result | Word] | None = None
        #: locks that end after the commit
        self._locks = ExitStack()
        #: stamp and index of the file before it was changed
        self._before: tuple[Stamp, Chain]
        try:
            mode = current(self._file_path, partial(status_below, below=self._opened)).st_mode
        except LinkError:
            raise
        except OSError:
            raise DatasetNotFoundError(f"No data found in data path {self.data_path}") from None
        if not stat.S_ISREG(mode):  # opening a pipe would block
            raise CorruptDatasetError(f"{self._file_path} is not a regular file")

    @classmethod
    def check_spaces(
        cls,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        jpeg_encoding: bool = False,
    ) -> None:
        """Raise an error if the format cannot store values of these spaces."""
        super().check_spaces(observation_space, action_space, jpeg_encoding=jpeg_encoding)
        check_space_names(observation_space, action_space)

    @classmethod
    def _create_files(cls, data_path: Path) -> None:
        path = data_path / MAIN_FILE_NAME
        try:  # as real Minari begins
            os.close(open_below(path, data_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise DatasetExistsError(
                f"{path} already exists and is not of a dataset; specify another path"
            ) from None

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes."""
        mapped = self._mapped()
        with self._structure(mapped) as structure:
            known = self._known(mapped, structure)
            if known is None:
                structure.open()  # raises an error for a damaged file, whatever is requested
            for index in map(int, episode_indices):
                if known is not None and 0 <= index < len(known):
                    attributes = known.attributes.row(index)
                    if attributes is not None:
                        yield attributes
                        continue
                file = structure.open()
                self._check_index(index, file)
                yield file.episode_metadata(index)

    def get_attribute_table(
        self, episode_indices: Iterable[int], names: Collection[str] | None = None
    ) -> AttributeTable | None:
        """Return the attributes of episodes as columns."""
        mapped = self._mapped()
        with self._structure(mapped) as structure:
            known = self._known(mapped, structure)
        if known is None:
            return None
        if isinstance(episode_indices, np.ndarray):
            indices = episode_indices.astype(np.int64, copy=False)
        else:
            indices = np.fromiter(episode_indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(known):
            outside = indices[(indices < 0) | (indices >= len(known))][:1]
            list(self.get_episode_metadata(outside.tolist()))  # raises the error
        return known.attributes.table(indices, names)

    def get_episodes(
        self, episode_indices: Iterable[int], *, copy: bool | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        return self._episodes(episode_indices, copy=copy)

    def get_unchecked_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as stored, even if the lengths of their columns do not match."""
        spaces = (self.observation_space, self.action_space)
        with EpisodeFile.open(self._file_path, self._opened) as file:
            self.check_version()
            for index in episode_indices:
                yield dict(
                    vars(file.read(int(index), *spaces, lenient=True, most_steps=self._most_steps))
                )

    def _get_stored_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        return self._episodes(episode_indices, copy=False, frames=True)

    def read_episodes(
        self, episode_indices: Iterable[int], *, copy: bool | None = None
    ) -> Iterator[EpisodeData]:
        """Yield episodes; their arrays are read-only views of the file unless ``copy`` is set."""
        return each_with_fields(EpisodeData, self._episodes(episode_indices, copy=copy))

    def _episodes(
        self,
        indices: Iterable[int],
        *,
        copy: bool | None,
        frames: bool = False,
    ) -> Iterator[dict[str, Any]]:
        spaces = (self.observation_space, self.action_space)
        mapped = self._mapped()
        with self._structure(mapped) as structure:

            def by_structure(index: int) -> dict[str, Any]:
                file = structure.open()
                self._check_index(index, file)
                return dict(
                    vars(file.read(index, *spaces, frames=frames, most_steps=self._most_steps))
                )

            if mapped is None:
                structure.open()
                for index in map(int, indices):
                    yield by_structure(index)
                return
            reader = Reader(mapped, *spaces, copy=not views.unasked if copy is None else copy)
            known = self._known(mapped, structure)
            if known is not None and known.is_for(*spaces):
                yield from reader.episodes(known, map(int, indices), by_structure)
                return
            builder = mapped.building(len(structure.open()), *spaces)
            for index in map(int, indices):
                fields = None
                if index not in builder.entries and 0 <= index < len(structure.open()):
                    structure.open().look_at(index, builder)
                    if builder.is_complete:
                        mapped.learn(builder)
                entry = builder.entries.get(index)
                if entry is not None:
                    mapped.check_still_whole()
                    mapped.looked_at(1, len(structure.open()))
                    fields = reader.entry(index, entry, builder.seed(index))
                yield by_structure(index) if fields is None else fields

    def get_segments(self, episode_indices: Iterable[int]) -> Iterator[EpisodeBuffer | Segment]:
        """Yield episodes that are contiguous in the file as segments."""
        indices = np.fromiter(episode_indices, np.int64)
        mapped = self._mapped()
        spaces = (self.observation_space, self.action_space)
        with self._structure(mapped) as structure:
            known = self._known(mapped, structure)
        if (
            mapped is None
            or known is None
            or not known.is_for(*spaces)
            or ((indices < 0) | (indices >= len(known))).any()
        ):
            yield from self.get_buffers(indices)
            return
        for found in Reader(mapped, *spaces, copy=False).segments(known, indices):
            if isinstance(found, Segment):
                yield found
            else:
                yield from self.get_buffers([found])

    def _known(self, mapped: MappedFile | None, structure: _Structure) -> MappedIndex | None:
        """Return the index of a file if it exists or can be built at once."""
        if mapped is None:
            return None
        if mapped.index is None:
            spaces = (self.observation_space, self.action_space)
            mapped.recognize(lambda *of: structure.open().look_at(*of), *spaces)
        return mapped.index

    def _mapped(self) -> MappedFile | None:
        """Return the mapped file, or None if it must be read in another way."""
        try:
            mapped = current(self._file_path, partial(open_mapped, below=self._opened))
        except OSError:
            mapped = None  # opening its structure raises the error
        self.check_version()
        return mapped

    def _structure(self, mapped: MappedFile | None) -> _Structure:
        return _Structure(self._file_path, self._opened, mapped)

    def _most_steps(self) -> int:
        return self.total_steps

    def _check_index(self, index: int, file: EpisodeFile) -> None:
        """Raise an error if the metadata count an episode that the file lacks."""
        if index >= len(file) and index < self.total_episodes:
            raise CorruptDatasetError(
                f"{self._file_path}: episode {index} is missing: there are {len(file)} episodes, "
                f"metadata.json says {self.total_episodes}"
            )

    def update_episodes(
        self, episodes: Iterable[EpisodeBuffer | Segment], *, judge: BufferChecker | None = None
    ) -> None:
        """Append episodes, all or none of them."""
        asking = _asks_for_room.set(self)
        try:
            super().update_episodes(episodes, judge=judge)
        except _NoRoomError:  # before any episode was taken
            _asks_for_room.set(None)
            with suppress(InUseError, CorruptDatasetError), self._change(self._widened) as change:
                _ = change.writer  # opening it is the change
            super().update_episodes(episodes, judge=judge)
        finally:
            _asks_for_room.reset(asking)

    @contextmanager
    def _widened(self, stage: Path, episodes: int) -> Iterator[EpisodeFile]:
        """Let the file grow where it is, if no process has it open; else an append copies it."""
        chain = self._index_before()
        forget(self._file_path)
        source, new = stage.with_name(MAIN_FILE_NAME), stage / MAIN_FILE_NAME
        pieces = self._pieces_to_widen(source)
        if not chain or pieces is None:  # another process was faster
            raise InUseError
        opened = EpisodeFile.widened(source, new, self._file_path, episodes, pieces)
        with self._remembering(opened, stage) as file:
            yield file

    def _pieces_to_widen(self, file: Path) -> list[str] | None:
        """Return the digests of a file that can be given room, or None if it should not be.

        It must be so large that a copy takes long, and of this package's layout. Published bytes
        stay as they are.
        """
        size = os.path.getsize(file)
        if size < _LARGE or self._manifest is None or "content_sha256" in self._manifest:
            return None
        pieces, may_be_longer = pieces_named(self.data_path, MAIN_FILE_NAME, self._manifest)
        if may_be_longer or not can_commit(file) or used_of(file) != size:
            return None
        return pieces

    def compact(self) -> int:
        """Write the file anew if it has bytes that nothing uses."""
        saved = 0

        @contextmanager
        def packing(stage: Path, episodes: int) -> Iterator[EpisodeFile]:
            nonlocal saved
            source, new = stage.with_name(MAIN_FILE_NAME), stage / MAIN_FILE_NAME
            chain = self._index_before()
            with self._remembering(
                EpisodeFile.anew(
                    source,
                    new,
                    (self.observation_space, self.action_space),
                    episodes,
                    name=self._file_path,
                    most_steps=self._most_steps,
                    before=chain,
                ),
                new,
            ) as file:
                yield file
            saved = os.path.getsize(source) - os.path.getsize(new)
            if saved <= 0:
                raise _NothingUnusedError

        try:
            with self._change(packing) as change:
                _ = change.writer  # opening it writes the episodes
        except _NothingUnusedError:
            return 0
        return saved

    def _opened_to_write(self, new: Path, episodes: int) -> AbstractContextManager[EpisodeFile]:
        if new == self._file_path:
            return EpisodeFile.begin(new)
        held = new.parent.with_name(MAIN_FILE_NAME)  # beside the stage, in the folder held open
        if _asks_for_room.get() is self:
            if self._pieces_to_widen(held) is not None:
                raise _NoRoomError
            _asks_for_room.set(None)  # the episodes may come from changes of other datasets
        is_locked = self._locks.enter_context(shared(held))
        chain = self._index_before()
        pieces, may_be_longer = pieces_named(self.data_path, MAIN_FILE_NAME, self._manifest)
        return EpisodeFile.continuing(
            held,
            new,
            (self.observation_space, self.action_space),
            episodes,
            name=self._file_path,
            most_steps=self._most_steps,
            before=chain,
            pieces=pieces,
            room=True,
            grows=may_be_longer
            and is_locked
            and sum(index.episodes for index in chain) == episodes > 0,
        )

    def _index_before(self) -> Chain:
        """Return the index of the file, if it is of this package's layout, and note its version."""
        stamp = Stamp.of(status_below(self._file_path, self._opened))
        chain = known(self._file_path, stamp)
        if chain is None:
            mapped = self._mapped()
            with self._structure(mapped) as structure:
                found = self._known(mapped, structure)
            is_own = found is not None and found.stored.is_of_own_layout
            chain = (found.stored,) if found is not None and is_own else ()
        self._before = (stamp, chain)
        return chain

    @contextmanager
    def _change(self, opening: OpenWriter | None = None) -> Iterator[Change]:
        with ExitStack() as locks, super()._change(opening) as change:
            self._locks = locks
            yield change

    @contextmanager
    def _writer(self, stage: Path, total_episodes: int) -> Iterator[EpisodeFile]:
        new = stage / MAIN_FILE_NAME
        with self._remembering(self._opened_to_write(new, total_episodes), new) as file:
            file.compression = self._compression
            yield file

    @contextmanager
    def _remembering(
        self, opened: AbstractContextManager[EpisodeFile], new: Path
    ) -> Iterator[EpisodeFile]:
        """Keep the index of a file that is written, for :meth:`_wrote`."""
        self._left = None
        with opened as file:
            yield file
        index = file.index()
        if index is not None:
            self._left = (index, file.word or os.stat(new))

    def _wrote(self, writer: EpisodeWriter) -> None:
        if self._left is not None:
            index, written = self._left
            if isinstance(written, Word):
                remember_more(self._file_path, written, *self._before, index)
            else:
                remember(self._file_path, index, written)
            self._left = None


class _NoRoomError(Exception):
    """A file can be given room to grow."""


class _NothingUnusedError(Exception):
    """A file that was written anew is not smaller."""


class _Structure:
    """Opens the structure of a file on first use; a context manager that closes it."""

    def __init__(self, path: Path, below: OpenedFolder, mapped: MappedFile | None) -> None:
        self._path = path
        self._below = below
        self._mapped = mapped
        self._context: AbstractContextManager[EpisodeFile] | None = None
        self._file: EpisodeFile | None = None

    def open(self) -> EpisodeFile:
        """Return the open file."""
        if self._file is None:
            if self._mapped is None:
                self._context = EpisodeFile.open(self._path, self._below)
            else:
                self._context = EpisodeFile.of(self._mapped, self._path, self._below)
            self._file = self._context.__enter__()
            self._below.check()
        return self._file

    def __enter__(self) -> _Structure:
        return self

    def __exit__(self, *_: object) -> None:
        if self._context is not None and self._file is not None:
            self._context.__exit__(None, None, None)
