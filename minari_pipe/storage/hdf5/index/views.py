"""Yield episodes of a mapped file, as views of its bytes or as copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.storage.hdf5.index.build import Entry
from minari_pipe.storage.hdf5.index.cache import StoredIndex
from minari_pipe.storage.hdf5.index.index import joined_tables
from minari_pipe.storage.hdf5.index.mapped import (
    MappedFile,
    MappedIndex,
    MappedPart,
    may_stay_open,
    view,
)
from minari_pipe.storage.hdf5.index.plans import Array, Fields, Plan
from minari_pipe.storage.joining import MOST_EPISODES
from minari_pipe.storage.segment import SEGMENT_BYTES, Ints, Leaf, Segment

#: a space for reading columns as they are
_ANY: gym.Space[Any] = gym.spaces.Discrete(1)

#: the size of the file is checked again after this many episodes
_CHECK_EVERY = 32


class Reader:
    """Reads episodes of a mapped file, for a single call of a storage.

    Args of the constructor: the file, the spaces, and whether to copy arrays.
    """

    def __init__(
        self,
        file: MappedFile,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        copy: bool,
    ) -> None:
        self._file = file
        self._spaces = (observation_space, action_space)
        self._plans = file.plans(observation_space, action_space)
        self._copy = copy or not may_stay_open()

    def plan(self, leaves: tuple[Leaf, ...]) -> Plan | None:
        """Return the plan for a structure."""
        key = id(leaves)
        if key not in self._plans:
            self._plans[key] = (leaves, Plan.of(leaves, *self._spaces))
        return self._plans[key][1]

    def entry(self, index: int, entry: Entry, seed: int | None) -> Fields | None:
        """Return an episode from its entry, or None if its columns need individual checks."""
        plan = self.plan(entry.leaves)
        if plan is None:
            return None
        leaves = [
            self._own(view(self._file.map, leaf, entry.steps + leaf.more, address))
            for leaf, address in zip(entry.leaves, entry.addresses, strict=True)
        ]
        return plan.fields(index, leaves, seed)

    def _own(self, array: Array) -> Array:
        return array.copy() if self._copy else array

    def episodes(
        self,
        index: MappedIndex,
        indices: Iterable[int],
        other: Callable[[int], Fields],
    ) -> Iterator[Fields]:
        """Yield the fields of episodes.

        Args:
            index: index of the file.
            indices: their numbers.
            other: reads episodes that the index leaves out, and raises for those out of range.
        """
        part = index.parts[0] if index.is_all else None
        plan = None if part is None else self.plan(part.runs.leaves)
        seeds = index.attributes.numbers_of("seed")
        if (
            part is not None
            and plan is not None
            and plan.pick is not None
            and (seeds is not None or index.attributes.texts is None)
            and not part.is_scattered
            and not self._copy
        ):
            return self._alike(part, plan.pick, seeds, indices, other)
        return self._any(index, indices, other)

    def _alike(
        self,
        part: MappedPart,
        pick: Callable[[Sequence[Array]], Sequence[Array]],
        seeds: list[Any] | None,
        indices: Iterable[int],
        other: Callable[[int], Fields],
    ) -> Iterator[Fields]:
        """Yield views of a file in which all episodes are five arrays, the common case.

        It does the same as :meth:`_any`, without its checks per episode, which take most time.
        """
        total = part.firsts[-1]
        left = first = last = 0
        for episode in indices:
            if not left:
                self._file.check_still_whole()
                self._file.looked_at(_CHECK_EVERY, total)
                left = _CHECK_EVERY
            left -= 1
            if not first <= episode < last:
                if not 0 <= episode < total:
                    yield other(episode)
                    continue
                first, last, ends, arrays = part.run(episode)
                observations, actions, rewards, terminations, truncations = pick(arrays)
            at = episode - first
            start, end = ends[at], ends[at + 1]
            steps = slice(start, end)
            yield {
                "id": episode,
                "observations": observations[start + at : end + at + 1],
                "actions": actions[steps],
                "rewards": rewards[steps],
                "terminations": terminations[steps],
                "truncations": truncations[steps],
                "infos": {},
                "seed": None if seeds is None else seeds[episode],
                "extras": {},
            }

    def _any(
        self,
        index: MappedIndex,
        indices: Iterable[int],
        other: Callable[[int], Fields],
    ) -> Iterator[Fields]:
        file, copy, total = self._file, self._copy, len(index)
        parts = [(part, self.plan(part.runs.leaves)) for part in index.parts]
        part_of, places = ((), ()) if index.is_all else index.places
        seeds = index.attributes.numbers_of("seed")
        has_seeds = seeds is not None or index.attributes.texts is not None
        number = 0
        part, plan = parts[0] if parts else (None, None)
        left = first = last = 0
        for episode in indices:
            if not left:
                file.check_still_whole()
                file.looked_at(_CHECK_EVERY, total)
                left = _CHECK_EVERY
            left -= 1
            place = episode
            if part_of and 0 <= episode < total:
                if part_of[episode] != number:
                    number = part_of[episode]
                    part, plan = parts[number] if number >= 0 else (None, None)
                    first = last = 0
                place = places[episode]
            if not first <= place < last or plan is None:
                if part is None or plan is None or not 0 <= episode < total:
                    yield other(episode)
                    continue
                first, last, ends, arrays = part.run(place)
                is_alone = part.is_scattered
            at = place - first
            start, end = ends[at], ends[at + 1]
            seed = None
            if has_seeds:
                seed = seeds[episode] if seeds is not None else index.seed(episode)
            leaves = arrays
            if not is_alone:
                leaves = [
                    array[start + at : end + at + 1] if more else array[start:end]
                    for array, more in zip(arrays, plan.more)
                ]
            if copy:
                leaves = [leaf.copy() for leaf in leaves]
            yield plan.fields(episode, leaves, seed)

    def segments(
        self, index: MappedIndex, indices: Ints, *, checked: bool = True
    ) -> Iterator[Segment | int]:
        """Yield episodes that are contiguous in the file as segments of views.

        Args:
            index: index of the file.
            indices: numbers of existing episodes.
            checked: leave out columns that need individual checks.

        Yields:
            A segment, or the number of an episode to be read through the structure of the file.
        """
        part_of, places = (np.array(found)[indices] for found in index.places)
        breaks = (np.diff(part_of) != 0) | (np.diff(places) != 1)
        begin = 0
        for end in [*(np.flatnonzero(breaks) + 1).tolist(), len(indices)]:
            while begin < end:
                number = int(part_of[begin])
                part = index.parts[number] if number >= 0 else None
                if part is None or (checked and self.plan(part.runs.leaves) is None):
                    yield int(indices[begin])
                    begin += 1
                    continue
                place = int(places[begin])
                run = part.run(place)
                row_bytes = max(1, sum(leaf.row_bytes for leaf in part.runs.leaves))
                steps = part.runs.steps[place : min(run.last, place + end - begin)]
                fitting = np.searchsorted(np.cumsum(steps), SEGMENT_BYTES // row_bytes, "right")
                steps = steps[: max(1, int(fitting))]
                chosen = indices[begin : begin + len(steps)]
                begin += len(steps)
                attributes = index.attributes.table(chosen)
                if attributes is None:
                    yield from chosen.tolist()
                    continue
                self._file.check_still_whole()
                self._file.looked_at(len(steps), len(index))
                first, last = place - run.first, place - run.first + len(steps)
                arrays = tuple(
                    array[run.ends[first] + leaf.more * first : run.ends[last] + leaf.more * last]
                    for array, leaf in zip(run.arrays, part.runs.leaves, strict=True)
                )
                yield Segment(int(chosen[0]), steps, part.runs.leaves, arrays, attributes)


def whole_segments(file: MappedFile, stored: StoredIndex) -> Iterator[Segment]:
    """Yield all episodes of a file as segments of views, without a look at their columns.

    Episodes that lie alone in the file, as each append of one leaves them, are yielded together.

    Args:
        file: a file that this package wrote.
        stored: its index, in which each episode is in a part.
    """
    alone: list[Segment] = []
    index = MappedIndex(file.map, stored)
    for segment in Reader(file, _ANY, _ANY, copy=False).segments(
        index, np.arange(len(index)), checked=False
    ):
        assert isinstance(segment, Segment)  # this package wrote it
        is_alone = len(segment) == 1
        if alone and not (is_alone and segment.leaves == alone[0].leaves and _fit(alone)):
            yield _joined(alone)
            alone = []
        if is_alone:
            alone.append(segment)
        else:
            yield segment
    if alone:
        yield _joined(alone)


def _fit(segments: list[Segment]) -> bool:
    """Return whether one more segment can be joined with some of one episode each."""
    size = sum(array.nbytes for array in segments[-1].arrays if isinstance(array, np.ndarray))
    return len(segments) < MOST_EPISODES and size * len(segments) < SEGMENT_BYTES


def _joined(segments: list[Segment]) -> Segment:
    """Return segments of the same leaves as one."""
    if len(segments) == 1:
        return segments[0]
    return Segment(
        segments[0].first,
        np.concatenate([segment.steps for segment in segments]),
        segments[0].leaves,
        tuple(map(np.concatenate, zip(*(segment.arrays for segment in segments), strict=True))),
        joined_tables([segment.attributes for segment in segments]),
    )
