"""Read episodes as views of a mapped HDF5 file, at the addresses in its index.

An array is only an address, a shape and a dtype; its values are read from disk on first access, and
all processes share them from then on. So an episode costs a few objects, whatever its size, and its
arrays are read-only and keep the file mapped. If another program truncates the file, accessing the
lost part kills the process: neither this package nor real Minari truncates files, and the size is
checked repeatedly while episodes are read.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from minari_pipe.core.files.links import PathLike, opener, status_below
from minari_pipe.core.files.mapped import Watch
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.storage.hdf5.index.build import Builder
from minari_pipe.storage.hdf5.index.cache import Stamp, StoredIndex, load, sample, save
from minari_pipe.storage.hdf5.index.index import Attributes, Runs
from minari_pipe.storage.hdf5.index.match import Look, match_all
from minari_pipe.storage.hdf5.index.plans import Array, Plans, signature
from minari_pipe.storage.hdf5.parser.checked import UnderstoodFile
from minari_pipe.storage.segment import Ints, Leaf

#: on Windows, a mapped file cannot be replaced, so arrays are copies there
CAN_STAY_OPEN = os.name != "nt"

#: files that stay open to be read again, each with a file descriptor
_MOST_OPEN = 8
#: files that arrays keep mapped; beyond that, arrays are copies: macOS gives a process 256
#: descriptors, and replaced versions of a growing dataset stay on the disk
_MOST_MAPPED = 64

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def may_stay_open() -> bool:
    """Return whether arrays may keep one more file mapped."""
    return CAN_STAY_OPEN and len(_mapped) <= _MOST_MAPPED


class MappedFile:
    """One version of a file, mapped into memory, with what is known about its episodes.

    Attributes:
        path: path of the file.
        stamp: identifies this version of the file.
        map: the bytes.
        index: where the values are, once all episodes are known.
    """

    def __init__(self, path: Path, below: PathLike | None = None) -> None:
        """Map a file.

        Args:
            path: the file.
            below: the folder below which links are not followed; by default the file's own.

        Raises:
            OSError: it cannot be opened.
            ValueError: it is empty.
        """
        self.path = path
        self._below = below or path.parent
        with open(path, "rb", opener=opener(self._below)) as file:
            self.stamp = Stamp.of(os.fstat(file.fileno()))
            self.is_settled = self.stamp.is_settled
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _mapped.add(self.map)
        self._watch = Watch(self.map)
        self._builder: Builder | None = None
        self._plans: list[tuple[gym.Space[Any], gym.Space[Any], Plans]] = []
        self._links: Any = None
        self._was_asked = False
        self.index: MappedIndex | None = None
        #: taken before anything is read, so that they differ if the file changes after that
        self._samples = None if self.is_settled else sample(self.take, self.stamp.size)
        found = load(self.stamp, self.take)
        if found is not None:
            self.index = MappedIndex(self.map, found)

    def take(self, start: int, size: int) -> bytes:
        """Return some bytes of the file."""
        return self.map[start : start + size]

    def check_still_whole(self) -> None:
        """Raise an error if the file was truncated since it was mapped.

        Raises:
            CorruptDatasetError: the file is shorter than it was.
        """
        if self.map.size() < len(self.map):
            raise CorruptDatasetError(f"{self.path}: the file was truncated while it was read")

    def looked_at(self, episodes: int, total: int) -> None:
        """Count accessed episodes, out of all episodes in the file."""
        self._watch.looked_at(episodes * (len(self.map) // max(1, total)))

    def structure(self) -> UnderstoodFile:
        """Open the structure of the file; the caller closes it.

        Raises:
            CorruptDatasetError: it is damaged.
            NotUnderstoodError: only h5py supports it.
        """
        file = UnderstoodFile(self.path, self.map, self._below)
        if self._links is None:
            self._links = file.links
        file.__dict__["links"] = self._links  # the slowest part, and always the same
        return file

    def building(self, count: int, *of: gym.Space[Any]) -> Builder:
        """Return the builder that collects the episodes while there is no index."""
        if self._builder is None or signature(*self._builder.spaces) != signature(*of):
            self._builder = Builder(count, *of)
        return self._builder

    def plans(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Plans:
        """Return the plans of episodes of these spaces by structure; callers add new ones.

        Spaces are compared by identity, which costs nothing.
        """
        for observations, actions, plans in self._plans:
            if observations is observation_space and actions is action_space:
                return plans
        plans = {}
        self._plans = [*self._plans[-3:], (observation_space, action_space, plans)]
        return plans

    def recognize(
        self, look: Look, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> None:
        """Build the index at once if this package wrote the file; only the first call tries."""
        if not self._was_asked:
            self._was_asked = True
            found = match_all(self.map, look, observation_space, action_space)
            if found is not None:
                self.keep(found)

    def learn(self, builder: Builder) -> None:
        """Build the index from a complete builder, and save it for other processes."""
        steps, parts = builder.parts()
        runs = tuple(Runs.of(part, steps) for part in parts)
        try:
            attributes = builder.attributes()
        except InvalidEpisodeError:  # no exact form, which happens only in foreign files
            return
        stored = StoredIndex(len(steps), runs, attributes, signature(*builder.spaces))
        self.keep(stored)

    def keep(self, stored: StoredIndex) -> None:
        """Use an index, and save it for other processes."""
        if not all(one.fits(stored.episodes, len(self.map)) for one in stored.runs):
            return
        save(stored, self.stamp, self._samples)
        self.index = MappedIndex(self.map, stored)


class MappedIndex:
    """The index of a mapped file, prepared for reading.

    Attributes:
        stored: the index.
        parts: the episodes, one part for each structure.
    """

    def __init__(self, mapped: mmap.mmap, stored: StoredIndex) -> None:
        self.stored = stored
        self.parts = [MappedPart(mapped, runs) for runs in stored.runs]

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.stored.episodes

    @property
    def attributes(self) -> Attributes:
        """The attributes of all episodes."""
        return self.stored.attributes

    @cached_property
    def places(self) -> tuple[list[int], list[int]]:
        """The part of each episode, or -1 if it is in none, and its position there."""
        of, places = np.full(len(self), -1), np.zeros(len(self), np.int64)
        for number, part in enumerate(self.parts):
            of[part.runs.episodes] = number
            places[part.runs.episodes] = np.arange(len(part.runs.episodes))
        return of.tolist(), places.tolist()

    @cached_property
    def is_all(self) -> bool:
        """Whether all episodes have one structure, so that their positions are their numbers."""
        return len(self.parts) == 1 and len(self.parts[0].runs.episodes) == len(self)

    def is_for(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> bool:
        """Return whether the index is complete for episodes of these spaces."""
        if self.is_all or not self.stored.spaces:
            return True
        return self.stored.spaces == signature(observation_space, action_space)

    def seed(self, index: int) -> int | None:
        """Return the seed of an episode."""
        seeds = self.attributes.numbers_of("seed")
        if seeds is not None:
            return seeds[index]
        if self.attributes.texts is None:
            return None
        return (self.attributes.others(index) or {}).get("seed")


class MappedPart:
    """The episodes of one structure in a mapped file.

    Attributes:
        runs: their locations.
        firsts: position of the first episode of each run, and the end.
    """

    def __init__(self, mapped: mmap.mmap, runs: Runs) -> None:
        self.runs = runs
        self.firsts: list[int] = [*runs.firsts.tolist(), len(runs.episodes)]
        self.is_scattered = len(runs.firsts) == len(runs.episodes)
        self._map = mapped
        self._kept: dict[int, _Run] = {}

    @cached_property
    def _ends(self) -> Ints:
        """Number of steps before each episode, and the total."""
        return np.concatenate([[0], np.cumsum(self.runs.steps)])

    @cached_property
    def _steps(self) -> list[int]:
        return self.runs.steps.tolist()

    @cached_property
    def _addresses(self) -> list[list[int]]:
        return self.runs.addresses.T.tolist()

    @cached_property
    def _leaves(self) -> list[tuple[Leaf, int, tuple[int, ...], np.dtype[Any], bool]]:
        """What a view needs of each leaf; the last item says if all rows can be read in place."""
        return [
            (
                leaf,
                leaf.more,
                leaf.shape,
                leaf.dtype,
                bool(leaf.row_bytes) and not (addresses % leaf.dtype.alignment).any(),
            )
            for leaf, addresses in zip(self.runs.leaves, self.runs.addresses, strict=True)
        ]

    def run(self, place: int) -> _Run:
        """Return the run that contains an episode."""
        number = place if self.is_scattered else bisect_right(self.firsts, place) - 1
        run = self._kept.get(number)
        if run is None:
            first, last = self.firsts[number : number + 2]
            if self.is_scattered:
                ends = [0, self._steps[number]]
            else:
                ends = (self._ends[first : last + 1] - self._ends[first]).tolist()
            run = _Run(first, last, ends, self.arrays(number, last - first, ends[-1]))
            if not self.is_scattered:
                self._kept[number] = run
        return run

    def arrays(self, number: int, episodes: int, steps: int) -> list[Array]:
        """Return the rows of each leaf in a run."""
        mapped = self._map
        return [
            np.ndarray((steps + more * episodes, *shape), dtype, mapped, address)
            if in_place and steps
            else view(mapped, leaf, steps + more * episodes, address)
            for (leaf, more, shape, dtype, in_place), address in zip(
                self._leaves, self._addresses[number]
            )
        ]


class _Run(NamedTuple):
    """Episodes whose rows are contiguous, and for each leaf an array of all of them."""

    first: int
    last: int
    ends: list[int]
    arrays: list[Array]


def view(mapped: mmap.mmap, leaf: Leaf, rows: int, address: int) -> Array:
    """Return rows of a leaf as a view of the file, or as a copy if they are not aligned.

    The caller has checked that all rows are in the file. Copies, and arrays without bytes, are
    read-only too.
    """
    shape = (rows, *leaf.shape)
    if rows and leaf.row_bytes:
        array: Array = np.ndarray(shape, leaf.dtype, mapped, address)
        if array.flags.aligned:
            return array
        array = array.copy()
    else:
        array = np.empty(shape, leaf.dtype)
    array.flags.writeable = False
    return array


_open: OrderedDict[str, MappedFile] = OrderedDict()
_lock = threading.Lock()


def _new_lock() -> None:
    """Replace the lock in a forked child, since a thread that was not copied may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def open_mapped(path: Path, below: PathLike | None = None) -> MappedFile | None:
    """Open a file for reading by index, or return the open one; None if it cannot be mapped.

    Args:
        path: the file.
        below: the folder below which links are not followed; by default the file's own.

    Raises:
        OSError: there is no such file.
    """
    found = status_below(path, below or path.parent)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return None
    name = str(path)
    with _lock:
        file = _open.get(name)
        if file is not None:
            _open.move_to_end(name)
    if file is None or file.stamp != Stamp.of(found):
        file = MappedFile(path, below)
        if file.is_settled and CAN_STAY_OPEN:
            with _lock:
                # a deleted or replaced file takes up disk space while it is open
                for gone in [one for one in _open if one == name or not os.path.exists(one)]:
                    del _open[gone]
                _open[name] = file
                while len(_open) > _MOST_OPEN:
                    _open.popitem(last=False)
    return file


def forget(path: Path) -> None:
    """Release a file, if no array refers to it."""
    with _lock:
        _open.pop(str(path), None)


def close_mapped() -> None:
    """Release all open files that no array refers to."""
    with _lock:
        _open.clear()
