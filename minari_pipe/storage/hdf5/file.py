"""Read and write one HDF5 file of episodes: written directly or by h5py, read by the parser.

Its layout is drawn in :mod:`minari_pipe.storage.hdf5.storage`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EpisodeData
from minari_pipe.core.files.atomic import current, replacing, require_space
from minari_pipe.core.files.links import PathLike
from minari_pipe.core.files.swap import copy_file
from minari_pipe.core.files.words import Word, can_commit, stage_word
from minari_pipe.core.tree import leaves
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidEpisodeError,
)
from minari_pipe.storage.agreement import check_agreement, check_total
from minari_pipe.storage.attributes import EXACT, unflatten_attributes
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.hdf5.index.build import GROUPS, Builder
from minari_pipe.storage.hdf5.index.cache import StoredIndex, joined
from minari_pipe.storage.hdf5.index.index import FileIndex
from minari_pipe.storage.hdf5.index.mapped import MappedFile, MappedIndex
from minari_pipe.storage.hdf5.index.views import Reader, whole_segments
from minari_pipe.storage.hdf5.parser import nodes
from minari_pipe.storage.hdf5.parser.checked import is_written_here, open_checked, wrote
from minari_pipe.storage.hdf5.parser.reader import Group
from minari_pipe.storage.hdf5.parser.source import NotUnderstoodError
from minari_pipe.storage.hdf5.values import (
    check_leaf,
    datasets_below,
    extend_column,
    fit_a_small_header,
    info_paths,
    is_group,
    member,
    memory_size,
    new_group,
    read_column,
    read_infos,
    read_leaf,
    stored_size,
    translated,
    write_attribute,
    write_column,
)
from minari_pipe.storage.hdf5.writer.direct import (
    DirectFile,
    FullError,
    copy_beginning,
    read_back,
    root_of,
    segment_of,
    slashes_of,
    used_of,
    written,
)
from minari_pipe.storage.hdf5.writer.layout_root import END_WORD, ROOT_WORD, Root
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.unpacking import FREE_BYTES, Announced, Budget
from minari_pipe.storage.writer import EpisodeWriter

MAIN_FILE_NAME = "main_data.hdf5"

#: bytes per dataset that HDF5 writes besides its values, and bytes that it buffers before writing
_OVERHEAD = 4096
_RESERVE = 2**16

_EPISODE = re.compile(r"episode_(\d+)")

#: the index of a file's episodes in consecutive parts, if all of it has the layout of this package;
#: else empty
Chain = tuple[StoredIndex, ...]
#: of one observation and of one action
Spaces = tuple[gym.Space[Any], gym.Space[Any]]


class EpisodeFile(EpisodeWriter):
    """An HDF5 file of ``episode_<i>`` groups, numbered from 0 without gaps.

    Use one of the context managers :meth:`create`, :meth:`open` and :meth:`continuing`.
    """

    _KEEPS = False

    def __init__(
        self,
        file: nodes.File | h5py.File | DirectFile,
        path: Path,
        foreign: Spaces | None = None,
    ) -> None:
        """Use one of the context managers instead."""
        #: what commits the change, if the file itself grew
        self.word: Word | None = None
        #: gzip level of the numbers that are written; None stores them uncompressed
        self.compression: int | None = None
        self._path = path
        #: spaces of the episodes, if the first ones are bytes that another process wrote
        self._foreign = foreign
        #: where to go on if the file itself grows, but not far enough, and how to know its index
        self._copy: Path | None = None
        self._before: Chain = ()
        self._last: tuple[int, Any] | None = None
        self._open: Any = None  # an h5py file if it is open for writing
        self._direct: DirectFile | None = None
        self._closing = ExitStack()
        if isinstance(file, DirectFile):
            self._direct = file
            self._count = len(file)
        else:
            self._open = file
            self._count = sum(1 for name in file if _EPISODE.fullmatch(name))

    @classmethod
    @contextmanager
    def of(cls, mapped: MappedFile, path: Path, below: PathLike) -> Iterator[EpisodeFile]:
        """Read a file that is already mapped, through its structure; errors name it ``path``.

        Raises:
            CorruptDatasetError: it is not an HDF5 file, or is damaged.
        """
        with ExitStack() as stack:
            with translated(path):
                try:
                    file: nodes.File = mapped.structure()
                except NotUnderstoodError:
                    file = current(path, partial(open_checked, below=below))
                stack.enter_context(file)
                episodes = cls(file, path)
            yield episodes

    @classmethod
    @contextmanager
    def create(cls, path: str | Path) -> Iterator[EpisodeFile]:
        """Write a new file, which appears or replaces the one at ``path`` only on a clean exit."""
        path = Path(path)
        with (
            replacing(path) as beside,
            cls._writing(DirectFile(beside, replaces=True), path) as episodes,
        ):
            yield episodes
        wrote(path)

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path, below: PathLike | None = None, name: Path | None = None
    ) -> Iterator[EpisodeFile]:
        """Read a file; later appends are not visible.

        Args:
            path: the file.
            below: the folder below which links are not followed; by default its own.
            name: what error messages call the file, by default ``path``.

        Raises:
            DatasetNotFoundError: there is no such file.
            CorruptDatasetError: it is not an HDF5 file, or is damaged.
        """
        path = Path(path)
        try:
            with translated(name or path):
                file = current(path, partial(open_checked, below=below))
                episodes = cls(file, name or path)
        except FileNotFoundError:
            raise DatasetNotFoundError(f"No data found in data path {path.parent}") from None
        with file:
            yield episodes

    @classmethod
    @contextmanager
    def begin(cls, path: Path) -> Iterator[EpisodeFile]:
        """Write in place to an empty file, which no other process reads yet."""
        with cls._writing(DirectFile(path), path) as episodes:
            yield episodes
        wrote(path)

    @classmethod
    @contextmanager
    def continuing(
        cls,
        source: Path,
        path: Path,
        spaces: Spaces,
        episodes: int,
        *,
        name: Path | None = None,
        most_steps: Callable[[], int] | None = None,
        before: Chain = (),
        pieces: Sequence[str] | None = None,
        room: bool = False,
        grows: bool = False,
    ) -> Iterator[EpisodeFile]:
        """Append to a copy of a file, created at ``path``, or to the file itself if it can grow.

        libhdf5 changes only what this process wrote: it crashes on damaged files, and where parts
        of a file overlap, it overwrites values. Of another file in the layout of
        :class:`DirectFile`, the bytes are copied, as long as what is appended has that layout, too.
        Otherwise each of its episodes is read and written anew.

        Args:
            source: the file to copy.
            path: location of the copy, which no other process reads yet.
            spaces: of one observation and one action.
            episodes: number of episodes that count; others are left out with a warning.
            name: what error messages call the file, by default ``source``.
            most_steps: see :meth:`read`.
            before: the index of the file, only if all of it has that layout, as
                :attr:`.StoredIndex.is_of_own_layout` says; without it, nothing is copied.
            pieces: its digests, if known; see :mod:`minari_pipe.core.files.checksums`.
            room: leave room in a copy, in which later appends fit.
            grows: the file itself may change before the change is committed, where it has room;
                there is an index of these episodes.

        Raises:
            CorruptDatasetError: the file is damaged, or has fewer episodes.
        """
        name = name or source
        is_own = is_written_here(source)
        if grows and can_commit(source) and (used := used_of(source)):
            direct = _growing(source, used, episodes, pieces)
            with cls._writing(direct, name, None if is_own else spaces) as new:
                new._copy, new._before = path, before
                yield new
            if new._direct is not None and new._direct.grows:
                new.word = Word(path.name, ROOT_WORD, direct.root)
                stage_word(path.parent, new.word)
            else:
                wrote(path, wholly=new._foreign is None)
            return
        root = root_of(source)
        known = _index_of(before) if root is not None else None
        if root is not None and known is not None and len(root.headers) == len(known) == episodes:
            copy_beginning(source, path, root)
            direct = DirectFile(path, root, known, replaces=True, room=room, pieces=pieces)
            with cls._writing(direct, name, None if is_own else spaces) as new:
                yield new
            wrote(path, wholly=new._foreign is None)
            return
        if is_own and root is None:
            with cls.open(source, name=name) as old:
                _check_count(name, len(old), episodes)
                is_whole = len(old) == episodes
            if is_whole:
                copy_file(source, path, below=source.parent)
                with open_to_write(path, "r+", name) as file:
                    yield cls(file, name)
                wrote(path)
                return
        with cls.anew(source, path, spaces, episodes, name=name, most_steps=most_steps) as new:
            yield new

    @classmethod
    @contextmanager
    def widened(
        cls, source: Path, path: Path, name: Path, episodes: int, pieces: Sequence[str]
    ) -> Iterator[EpisodeFile]:
        """Give a file room to grow, in place and without more episodes.

        Args:
            source: a file of :class:`DirectFile` that uses all its bytes.
            path: location in the stage of the change.
            name: what error messages call the file.
            episodes: number of its episodes.
            pieces: its digests.
        """
        used = os.path.getsize(source)
        direct = _growing(source, used, episodes, pieces)
        direct.widen()
        direct.close()
        new = cls(direct, name)
        end = used + direct.room
        new.word = Word(path.name, END_WORD, end, end)
        stage_word(path.parent, new.word)
        yield new

    @classmethod
    @contextmanager
    def anew(
        cls,
        source: Path,
        path: Path,
        spaces: Spaces,
        episodes: int,
        *,
        name: Path,
        most_steps: Callable[[], int] | None = None,
        before: Chain = (),
    ) -> Iterator[EpisodeFile]:
        """Write all episodes of a file to another one, which takes no more bytes than it needs.

        Args:
            source: see :meth:`continuing`, as for the others.
            path: location of the new file.
            spaces: of one observation and one action.
            episodes: number of episodes that count.
            name: what error messages call the file.
            most_steps: see :meth:`read`.
            before: see :meth:`continuing`.

        Raises:
            CorruptDatasetError: the file is damaged, or has fewer episodes.
        """
        known = joined(before) if before else None
        with cls._writing(DirectFile(path, replaces=True), name) as new:
            if known is not None and known.episodes == episodes:
                for segment in whole_segments(MappedFile(source), known):
                    new._append_segment(segment)
            else:
                with cls.open(source, name=name) as old:
                    _check_count(name, len(old), episodes)
                    new.compression = old._gzip_level()
                    new._take(old, range(episodes), spaces, most_steps)
                    new.compression = None
            yield new
        wrote(path)

    @classmethod
    @contextmanager
    def _writing(
        cls,
        direct: DirectFile,
        name: Path,
        foreign: Spaces | None = None,
    ) -> Iterator[EpisodeFile]:
        """Write directly as long as possible, then by h5py, to a copy if the file grows."""
        episodes = cls(direct, name, foreign)
        with episodes._closing:
            try:
                yield episodes
                if episodes._direct is not None:
                    try:
                        episodes._direct.finish()
                    except FullError:
                        episodes._move()
                        episodes._direct.finish()
            finally:
                if episodes._direct is not None:
                    episodes._direct.close()

    @property
    def _file(self) -> Any:
        """The open file; if it was written directly so far, h5py takes over."""
        if self._direct is not None:
            if self._direct.grows:
                self._move()
            self._direct.finish()
            if self._foreign is not None:
                self._direct = self._written_anew(self._direct, self._foreign)
                self._foreign = None
            opening = open_to_write(self._direct.path, "r+", self._path)
            self._open = self._closing.enter_context(opening)
            self._direct.close()
            self._direct = None
        return self._open

    def _written_anew(self, old: DirectFile, spaces: Spaces) -> DirectFile:
        """Replace a file by one that this process writes; return that one."""
        path, beside, known = old.path, old.path.with_name(f"{old.path.name}.new"), old.index()
        assert known is not None  # of the episodes before and of those that were appended
        new = DirectFile(beside, replaces=True)
        try:
            writing, mapped = EpisodeFile(new, self._path), MappedFile(path)
            index = MappedIndex(mapped.map, StoredIndex.of(known))
            with EpisodeFile.of(mapped, path, path.parent) as episodes:
                reader = Reader(mapped, *spaces, copy=False)
                for found in reader.segments(index, np.arange(len(old))):
                    if isinstance(found, Segment):
                        writing._append_segment(found)
                    else:
                        writing._take(episodes, [found], spaces)
            new.finish()
            os.replace(beside, path)
        except BaseException:
            new.close()
            beside.unlink(missing_ok=True)
            raise
        old.close()
        new.path = path
        return new

    def _take(
        self,
        old: EpisodeFile,
        episodes: Iterable[int],
        spaces: Spaces,
        most_steps: Callable[[], int] | None = None,
    ) -> None:
        """Write episodes of another file, as they are stored there."""
        for index in episodes:
            episode = vars(old.read(index, *spaces, frames=True, most_steps=most_steps))
            columns = {name: episode[name] for name in GROUPS}
            if episode["extras"]:
                columns["extras"] = episode["extras"]
            try:
                self._append(columns, old.episode_metadata(index))
            except ValueError as error:
                raise CorruptDatasetError(
                    f"{self._path}: episode {index} must be written anew before the file can "
                    f"change, but cannot be: {error}; mend it with the program that wrote it"
                ) from None

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the manifest entry of the file, if it was written directly."""
        if self._direct is None or self._direct.pieces is None:
            return {}
        room = {"room": self._direct.room} if self._direct.room else {}
        return {MAIN_FILE_NAME: self._direct.pieces.entry() | room}

    def index(self) -> FileIndex | None:
        """Return the index of all written values, or None if h5py wrote some of them.

        If the file itself grew, it is that of the new episodes.
        """
        if self._direct is None:
            return None
        return self._direct.added() if self._direct.grows else self._direct.index()

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self._count

    def _append_segment(self, segment: Segment) -> None:
        if self.compression is None and self._append_directly(segment):
            self._count += len(segment)
        else:
            super()._append_segment(segment)

    def _append_directly(self, segment: Segment) -> bool:
        if self._direct is None:
            return False
        try:
            return self._direct.append(segment)
        except FullError:
            self._move()
            return self._direct.append(segment)

    def _move(self) -> None:
        """Write the file that grew so far to another one, without what nothing uses there."""
        old = self._direct
        assert old is not None
        assert self._copy is not None
        index = joined((*self._before, StoredIndex.of(old.added())))
        assert index is not None
        new = self._direct = DirectFile(self._copy, replaces=True, room=True)
        for segment in whole_segments(MappedFile(old.path), index):
            if not new.append(segment):
                raise CorruptDatasetError(f"{self._path} has values that its layout cannot have")
        old.close()

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        attributes = dict(attributes)
        slashes = slashes_of(list(info_paths(columns["infos"])))
        if slashes:
            attributes["infos_slashes"] = slashes
        flat = written(attributes)
        if self._direct is not None and self.compression is None:
            attributes.pop("infos_slashes", None)
            segment = segment_of(columns, attributes, len(self))
            if segment is not None and self._append_directly(segment):
                self._count += 1
                return
        groups = {**columns, **columns.get("extras", {})}
        groups.pop("extras", None)
        file = self._file
        self._require_space(columns)
        name = f"episode_{len(self)}"
        try:
            group = new_group(file, name, flat)
            for attribute, value in flat.items():
                write_attribute(group, attribute, value)
            for key, column in groups.items():
                write_column(group, key, column, self.compression)
        except BaseException:
            self._discard(name)
            raise
        self._count += 1

    def _require_space(self, columns: Columns) -> None:
        more = sum(stored_size(leaf) + _OVERHEAD for _, leaf in leaves(columns))
        file = self._file.id
        require_space(self._path, file.get_vfd_handle(), file.get_filesize() + more + _RESERVE)

    def _discard(self, name: str) -> None:
        if name in self._file:
            del self._file[name]

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        group = self._group(index)
        groups = {**columns, **columns.get("extras", {})}
        groups.pop("extras", None)
        stored = {name for name in group if name not in GROUPS}
        if stored != groups.keys() - GROUPS:
            raise InvalidEpisodeError(
                f"episode {index}: extras has the keys {sorted(groups.keys() - GROUPS)}, the "
                f"stored episode has {sorted(stored)}"
            )
        with translated(self._path, f"episode {index}"):
            steps = len(check_leaf(member(group, "rewards")))
            check_total(group.attrs.get("total_steps"), steps)
        self._require_space(columns)
        with translated(self._path):
            for key, column in groups.items():
                extend_column(group, key, column, f"episode {index}: {key}")
            return group["rewards"][()]

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        flat = written(attributes)
        group = self._group(index)
        if "infos_slashes" in group.attrs:
            flat["infos_slashes"] = group.attrs["infos_slashes"]
        for name in list(group.attrs):
            del group.attrs[name]
        if not fit_a_small_header(flat):
            # only a new group can get the kind of header that holds these attributes
            new = new_group(self._file, f"episode_{index}_new", flat)
            for name in list(group):
                self._file.move(f"{group.name}/{name}", f"{new.name}/{name}")
            del self._file[f"episode_{index}"]
            self._file.move(new.name, f"episode_{index}")
            group = self._group(index)
        for name, value in flat.items():
            write_attribute(group, name, value)

    def read(
        self,
        index: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        frames: bool = False,
        lenient: bool = False,
        most_steps: Callable[[], int] | None = None,
    ) -> EpisodeData:
        """Read an episode.

        Args:
            index: the episode.
            observation_space: space of one observation.
            action_space: space of one action.
            frames: keep images as JPEG files if they are stored that way.
            lenient: also return columns that do not match, for callers that report what is wrong.
            most_steps: returns the number of steps in all episodes according to the metadata;
                called only if the values are large.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: it is damaged, its columns do not match each other or the spaces,
                or it links to another file.
            MissingDependencyError: its images are JPEG and Pillow is not installed.
        """
        with translated(self._path, f"episode {index}"):
            group = self.group(index)
            self._refuse_bomb(group, Announced(observation_space, action_space), most_steps)
            flags = {
                key: read_leaf(member(group, key), None)
                for key in ("rewards", "terminations", "truncations")
            }
            infos: dict[str, Any] = {}
            if "infos" in group:
                slashes = json.loads(group.attrs.get("infos_slashes", "[]"))
                infos = read_infos(member(group, "infos"), slashes)
            extras = {
                name: _read_extra(member(group, name)) for name in group if name not in GROUPS
            }
            attributes = group.attrs
            episode = EpisodeData(
                id=index,
                seed=_read_seed(attributes),
                extras=extras,
                observations=read_column(
                    member(group, "observations"), observation_space, frames=frames
                ),
                actions=read_column(member(group, "actions"), action_space, frames=frames),
                infos=infos,
                **flags,
            )
            if not lenient:
                total_steps = _attribute(attributes, "total_steps")
                check_agreement(vars(episode), observation_space, action_space, total_steps)
            return episode

    def _refuse_bomb(
        self, group: Any, announced: Announced, most_steps: Callable[[], int] | None
    ) -> None:
        """Raise an error if an episode's values take far more memory than the file can hold.

        Raises:
            CorruptDatasetError: its arrays are compressed, unwritten, or one under many names.
        """
        sizes = {path: memory_size(found) for path, found in datasets_below(group)}
        if sum(sizes.values()) <= FREE_BYTES:
            return
        steps = group.attrs.get("total_steps", 0)
        rows = min(int(steps), most_steps() if most_steps is not None else int(steps)) + 1
        budget = Budget(self._path.stat().st_size)
        for path, size in sizes.items():
            names = [name.removeprefix("_index_") for name in path]
            budget.take(max(0, size - rows * announced.row_bytes(tuple(names))))

    def look_at(self, index: int, builder: Builder) -> Any:
        """Add an episode to a builder, even if damaged; return its group, or None."""
        attributes = group = None
        with suppress(CorruptDatasetError):
            group = self.group(index)
            attributes = self.episode_metadata(index)
        builder.add(index, group, attributes)
        return group

    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes, with nested options.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: the attributes are damaged.
        """
        with translated(self._path, f"attributes of episode {index}"):
            return read_back(self.group(index).attrs)

    def group(self, index: int) -> Any:
        """Return the group of an episode; the last result is cached.

        Raises:
            IndexError: there is no such episode.
            CorruptDatasetError: it is damaged.
        """
        if self._last is None or self._last[0] != index:
            group = self._group(index)
            if isinstance(group, Group):
                group.keep_members()
            self._last = (index, group)
        return self._last[1]

    def _group(self, index: int) -> Any:
        index = int(index)
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} is out of range: there are {len(self)} episodes")
        group = member(self._file, f"episode_{index}")
        if not is_group(group):
            raise CorruptDatasetError(f"episode_{index} is not a group")
        return group

    def _gzip_level(self) -> int | None:
        """Return the level at which the first episode is compressed, or None."""
        if not len(self):
            return None
        with translated(self._path, "episode 0"):
            level = check_leaf(member(self._group(0), "rewards")).gzip
        return level if level in range(1, 10) else None


def _growing(path: Path, used: int, episodes: int, pieces: Sequence[str] | None) -> DirectFile:
    """Open a file that grows where it is; the headers of its episodes are not needed for it."""
    root = Root(used, np.zeros(episodes, np.int64), used)
    return DirectFile(path, root, grows=True, pieces=pieces)


def _index_of(chain: Chain) -> FileIndex | None:
    whole = joined(chain) if chain else None
    return None if whole is None else whole.index()


def _check_count(path: Path, found: int, expected: int) -> None:
    """Raise an error if a file lacks episodes of the metadata; warn if it has more of them."""
    if found < expected:
        raise CorruptDatasetError(f"{path} has {found} episodes, metadata.json says {expected}")
    if found > expected:
        warnings.warn(
            f"{path} has {found} episodes, metadata.json says {expected}: the others are from an "
            "interrupted append and are removed",
            stacklevel=11,
        )


@contextmanager
def open_to_write(path: Path, mode: str, name: Path) -> Iterator[h5py.File]:
    """Open a file for writing, raising OSError for any write error; messages call it ``name``.

    The chunk cache is off: when a dataset is closed, libhdf5 does not report failed writes.
    """
    with translated(name):
        file = h5py.File(path, mode, rdcc_nbytes=0)
    try:
        yield file
    except BaseException:
        with suppress(OSError, RuntimeError):  # closing may fail, too; the first error says why
            file.close()
        raise
    try:
        file.close()
    except RuntimeError as error:
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(name)) from error


def _attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """Return an attribute as ``episode_metadata`` has it; the exact form counts, if it has one."""
    if EXACT not in attributes:
        return attributes.get(name)
    stored = {key: attributes[key] for key in (name, EXACT) if key in attributes}
    return unflatten_attributes(stored).get(name)


def _read_seed(attributes: Mapping[str, Any]) -> int | None:
    seed = _attribute(attributes, "seed")  # in the exact form it may exceed 64 bits
    # the checks report a seed that is not a number
    return int(seed) if isinstance(seed, int | np.integer) else None


def _read_extra(found: Any) -> Any:
    return read_infos(found, []) if is_group(found) else read_leaf(found, None)
