"""Implement what all formats share when they write episodes: numbering, checks, attributes."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import NoneType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EpisodeBuffer, copied, each_with_fields, reward_statistics
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, InvalidMetadataError
from minari_pipe.storage.attributes import check_options, whole_seed
from minari_pipe.storage.columns import Columns, episode_columns
from minari_pipe.storage.joining import MOST_EPISODES, Joiner, structure
from minari_pipe.storage.jpeg import decode_column, encode_column
from minari_pipe.storage.open_columns import fill_missing
from minari_pipe.storage.segment import SEGMENT_BYTES, Segment

#: attributes that a buffer's metadata cannot set
_RESERVED = frozenset({"id", "total_steps", "seed", "options", "infos_slashes"})

#: episode attributes that are fields of its buffer, not part of its metadata
BUFFER_FIELDS = ("id", "total_steps", "seed", "options")
_FIELDS = frozenset(BUFFER_FIELDS)


class BufferChecker(Protocol):
    """Checks the values of episodes before they are written; it raises to reject them."""

    def segment(self, segment: Segment) -> None:
        """Check many episodes."""

    def columns(self, episode: int, columns: Columns, *, continues: bool = False) -> None:
        """Check one episode, or the part that continues a stored one."""


class StableBuffers:
    """Episodes from an iterable that never overwrites one episode with the next.

    Lists and tuples are stable as well. From any other iterable, a writer copies the episodes that
    it has not yet written when it asks for the next one.

    Example:
        >>> [buffer.seed for buffer in StableBuffers(EpisodeBuffer(seed=seed) for seed in (1, 2))]
        [1, 2]
    """

    def __init__(self, episodes: Iterable[EpisodeBuffer | Segment]) -> None:
        self._episodes = episodes

    def __iter__(self) -> Iterator[EpisodeBuffer | Segment]:
        """Yield the episodes."""
        return iter(self._episodes)


class EpisodeWriter(ABC):
    """Adds episodes to the existing ones, numbered from 0 without gaps.

    A format implements the five abstract methods, which only move arrays and attributes. Nothing
    it writes counts before the change is committed; a method that raises must leave the episodes
    unchanged.
    """

    #: True if the format keeps references to the arrays that it is given, so it needs copies
    _KEEPS = True

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of episodes."""

    @abstractmethod
    def episode_metadata(self, index: int) -> dict[str, Any]:
        """Return an episode's attributes: ``id, total_steps, seed, options, rewards_*, ...``.

        Raises:
            IndexError: there is no such episode.
        """

    @abstractmethod
    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        """Write episode number ``len(self)``.

        Args:
            columns: as :func:`~minari_pipe.storage.columns.episode_columns` returns them; images
                to be stored as JPEG are :class:`~minari_pipe.storage.jpeg.Frames`.
            attributes: nested; numbers, strings, None, arrays, lists, tuples and dicts.
        """

    def _append_segment(self, segment: Segment) -> None:
        """Write the episodes of a segment one by one, from number ``len(self)`` on.

        A format that can write many at once overrides this; if it raises, nothing has changed.

        Args:
            segment: the episodes; the caller owns the arrays and reuses them.
        """
        for place in range(len(segment)):
            columns = {"infos": {}, **segment.columns(place)}
            if self._KEEPS:
                columns = map_leaves(np.copy, columns)
            try:
                self._append(columns, segment.attributes[place])
            except InvalidEpisodeError as error:
                raise InvalidEpisodeError(f"episode {len(self)}: {error}") from None

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the manifest entries of all written files, or nothing if they are not known.

        Keys are paths in the data directory; see :mod:`minari_pipe.core.files.checksums`. Call it
        after the files are complete. Files without entries are read again.
        """
        return {}

    @abstractmethod
    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        """Append rows to an episode, equally many to each column; return all its rewards.

        Raises:
            InvalidEpisodeError: keys, shapes or dtypes differ from the stored ones.
        """

    @abstractmethod
    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        """Replace the attributes of an episode."""

    def add(
        self,
        buffers: Iterable[EpisodeBuffer | Segment],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        jpeg_encoding: bool = False,
        judge: BufferChecker | None = None,
    ) -> int:
        """Append episodes, and continue those whose ``id`` is that of a stored one.

        Args:
            buffers: the episodes; a segment of several gets the next numbers. An iterable may
                reuse the arrays of one episode for the next.
            observation_space: space of one observation.
            action_space: space of one action.
            jpeg_encoding: pass images to the format as JPEG, else as arrays.
            judge: checks all values before they are written.

        Returns:
            The number of added steps.

        Raises:
            InvalidEpisodeError: an id leaves a gap, or values do not match each other or a space.
        """
        adding = _Adding(self, observation_space, action_space, jpeg_encoding, judge)
        adding.are_lasting = isinstance(buffers, list | tuple | StableBuffers)
        remaining = iter(buffers)
        while adding.take(remaining):
            pass
        return adding.steps

    def append(
        self,
        buffer: EpisodeBuffer,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        *,
        jpeg_encoding: bool = False,
    ) -> int:
        """Append an episode; if it is rejected, nothing has changed.

        Reward statistics are added to its attributes unless ``buffer.metadata`` has them.

        Args:
            buffer: the episode; its ``id`` is ignored, its position becomes its id.
            observation_space: checked against the observations if given.
            action_space: checked against the actions if given.
            jpeg_encoding: pass images to the format as JPEG, else as arrays; needs the spaces.

        Returns:
            The number of its steps.

        Raises:
            InvalidEpisodeError: its values do not match each other or the spaces.
        """
        index = len(self)
        buffer = with_values(buffer, index)
        columns = episode_columns(buffer, observation_space, action_space, episode=index)
        columns = _encoded(columns, observation_space, action_space, jpeg_encoding, index)
        _check_attributes(buffer, index)
        self._append_columns(columns, buffer)
        return len(columns["rewards"])

    def _append_columns(self, columns: Columns, buffer: EpisodeBuffer) -> None:
        index = len(self)
        attributes: dict[str, Any] = {"id": index, "total_steps": len(columns["rewards"])}
        if (seed := _seed(buffer, index)) is not None:
            attributes["seed"] = seed
        if buffer.options is not None:
            attributes["options"] = buffer.options
        attributes |= reward_statistics(columns["rewards"])
        attributes |= buffer.metadata
        try:
            self._append(columns, attributes)
        except InvalidEpisodeError as error:
            raise InvalidEpisodeError(f"episode {index}: {error}") from None

    def _continue_columns(self, index: int, columns: Columns, buffer: EpisodeBuffer) -> int:
        """Append steps to a stored episode and update its attributes."""
        _check_attributes(buffer, index)
        stored = self.episode_metadata(index)
        given = {"seed": _seed(buffer, index), "options": buffer.options}
        for key, value in given.items():
            if value is not None and stored.get(key) is not None:
                raise InvalidEpisodeError(
                    f"episode {index}: {key} is already set and cannot be changed by a continuation"
                )
        filled = stored.get("infos_filled", {})
        try:
            filled = {key: [*ranges] for key, ranges in filled.items()}
        except (AttributeError, TypeError):
            raise CorruptDatasetError(
                f"episode {index}: the attribute infos_filled is {filled!r:.60}, expected the "
                "filled ranges of each info; replace it with update_episode_metadata"
            ) from None
        rewards = self._extend(index, columns)
        before = len(rewards) - len(columns["rewards"])
        for key, ranges in buffer.metadata.get("infos_filled", {}).items():
            shifted = [[begin + before + 1, end + before + 1] for begin, end in ranges]
            filled[key] = [*filled.get(key, []), *shifted]
        attributes = {
            **stored,
            **buffer.metadata,
            **reward_statistics(rewards),
            "total_steps": len(rewards),
        }
        if filled:
            attributes["infos_filled"] = filled
        attributes |= {key: value for key, value in given.items() if value is not None}
        self._set_attributes(index, attributes)
        return len(columns["rewards"])

    def update_metadata(self, index: int, metadata: Mapping[str, Any]) -> None:
        """Add attributes to an episode, replacing those of the same names.

        Raises:
            InvalidMetadataError: they would change its id or number of steps, hold an invalid
                seed, or are not a mapping.
        """
        stored = self.episode_metadata(index)
        if not isinstance(metadata, Mapping):
            raise InvalidMetadataError(
                f"episode {index}: metadata must be a dict, got {metadata!r:.100}"
            )
        try:
            whole_seed(metadata.get("seed"))
        except InvalidEpisodeError as error:
            raise InvalidMetadataError(f"episode {index}: {error}") from None
        for key in {"id", "total_steps"} & metadata.keys():
            if metadata[key] != stored.get(key):
                raise InvalidMetadataError(
                    f"episode {index}: {key} is computed from the data and cannot be set"
                )
        self._set_attributes(index, {**stored, **metadata})


def episode_number(buffer: EpisodeBuffer, total: int) -> int:
    """Return the number at which an episode is stored, or of the episode that it continues.

    Args:
        buffer: the episode.
        total: number of stored episodes.

    Raises:
        InvalidEpisodeError: its ``id`` is not an integer, or leaves a gap.

    Example:
        >>> episode_number(EpisodeBuffer(), 3), episode_number(EpisodeBuffer(id=1), 3)
        (3, 1)
    """
    if buffer.id is None:
        return total
    try:
        number = operator.index(buffer.id)
    except TypeError:
        number = -1
    if not 0 <= number <= total:
        raise InvalidEpisodeError(
            f"Invalid episode id; ids must be sequential. Got {buffer.id!r}, the next one is "
            f"{total}"
        )
    return number


def _encoded(
    columns: Columns,
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    jpeg_encoding: bool,
    index: int,
) -> Columns:
    """Encode images as JPEG, or decode them, as the storage requires."""
    both = {"observations": observation_space, "actions": action_space}
    try:
        for name, space in both.items():
            if not jpeg_encoding:
                columns[name] = decode_column(columns[name])
            elif space is not None:
                columns[name] = encode_column(space, columns[name])
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {index}: {error}") from None
    return columns


def with_values(buffer: EpisodeBuffer, index: int) -> EpisodeBuffer:
    """Return a buffer whose infos are filled; see :func:`.open_columns.fill_missing`.

    Args:
        buffer: the episode.
        index: its number, for error messages.

    Raises:
        InvalidEpisodeError: the values of an info do not match each other.

    Example:
        >>> with_values(EpisodeBuffer(infos={"x": [None, 1]}), 0).infos
        {'x': array([0, 1])}
    """
    try:
        return fill_missing(buffer)
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {index}: {error}") from None


def _seed(buffer: EpisodeBuffer, index: int) -> int | None:
    try:
        return whole_seed(buffer.seed)
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {index}: {error}") from None


def _check_attributes(buffer: EpisodeBuffer, index: int) -> None:
    """Raise an error if options or metadata of an episode cannot be its attributes."""
    reserved = _RESERVED & buffer.metadata.keys()
    if reserved:
        raise InvalidEpisodeError(
            f"episode {index}: metadata cannot hold {sorted(reserved)}, which are fields of the "
            "buffer or computed from its data"
        )
    try:
        check_options(buffer.options)
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {index}: {error}") from None


class _Adding:
    """Joins, checks and writes the episodes that are added to a writer.

    Attributes:
        steps: number of added steps.
        are_lasting: asking for the next buffer does not change the previous ones.
    """

    are_lasting = False

    def __init__(
        self,
        writer: EpisodeWriter,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool,
        judge: BufferChecker | None,
    ) -> None:
        self.steps = 0
        self._writer = writer
        self._spaces = (observation_space, action_space)
        self._jpeg_encoding = jpeg_encoding
        self._judge = judge
        self._joiner = Joiner()

    def take(self, episodes: Iterator[EpisodeBuffer | Segment]) -> bool:
        """Add the next episodes; return False if there are none."""
        many, segment = self._next(episodes)
        if many:
            self._take_many(many)
        if segment is not None:
            self._take_segment(segment)
        return bool(many) or segment is not None

    def _next(
        self, episodes: Iterator[EpisodeBuffer | Segment]
    ) -> tuple[list[EpisodeBuffer], Segment | None]:
        """Return enough episodes for a segment, or one if their structure is not known yet."""
        step_bytes = sum(leaf.row_bytes for leaf in self._joiner.leaves)
        room = SEGMENT_BYTES // step_bytes if step_bytes else 1
        many: list[EpisodeBuffer] = []
        for buffer in episodes:
            if isinstance(buffer, Segment):
                return many, buffer
            try:
                room -= len(buffer.rewards)
            except AttributeError:
                raise InvalidEpisodeError(
                    f"expected each episode as an EpisodeBuffer, got {buffer!r:.60}"
                ) from None
            is_last = room <= 0 or len(many) + 1 == MOST_EPISODES
            many.append(buffer if is_last or self.are_lasting else _own(buffer))
            if is_last:
                break
        return many, None

    def _take_many(self, buffers: list[EpisodeBuffer]) -> None:
        first = len(self._writer)
        ids, *attributes = zip(*map(_attributes_of, buffers), strict=True)
        segment = None
        if ids.count(None) == len(ids) or ids == tuple(range(first, first + len(ids))):
            checked = buffers
            if not _are_plain(*attributes):
                checked = [_with_attributes(one, index) for index, one in enumerate(buffers, first)]
            segment = self._joiner.segment(checked, first)
        if segment is not None:
            self._write(segment)
        else:
            self._take_each(buffers)

    def _take_segment(self, segment: Segment) -> None:
        """Add a segment of another storage, as a whole if it needs no conversion."""
        first = len(self._writer)
        buffer = buffer_of({"infos": {}, **segment.columns(0)}, segment.attributes[0])
        _, columns = self._columns(buffer, first, continues=False)
        found = structure(columns)
        if found is not None and set(found) == set(segment.leaves):
            # keys in the order of the space, and of the first infos: Minari compares types of Arrow
            if set(found) != set(self._joiner.leaves):
                self._joiner.begin(columns, found)
            self._write(segment.numbered(first).ordered(self._joiner.leaves))
            return
        self._take_each(
            [
                buffer_of({"infos": {}, **segment.columns(place)}, segment.attributes[place])
                for place in range(len(segment))
            ]
        )

    def _take_each(self, buffers: list[EpisodeBuffer]) -> None:
        """Check episodes one by one, and join those of the same structure."""
        alike: list[EpisodeBuffer] = []
        for buffer in buffers:
            total = len(self._writer) + len(alike)
            index = episode_number(buffer, total)
            if index < total:
                self._write_alike(alike)
                self._continue(index, buffer)
                continue
            buffer, columns = self._columns(buffer, index, continues=False)
            found = structure(columns)
            if found is None or found != self._joiner.leaves:
                self._write_alike(alike)
            if found is None:
                if self._judge is not None:
                    self._judge.columns(index, columns)
                self._writer._append_columns(columns, buffer)
                self.steps += len(columns["rewards"])
                continue
            if found != self._joiner.leaves:
                self._joiner.begin(columns, found)
            alike.append(replace(buffer, **{"extras": {}, **columns}))
        self._write_alike(alike)

    def _write_alike(self, buffers: list[EpisodeBuffer]) -> None:
        if buffers:
            segment = self._joiner.segment(buffers, len(self._writer))
            assert segment is not None
            self._write(segment)
            buffers.clear()

    def _columns(
        self, buffer: EpisodeBuffer, index: int, *, continues: bool
    ) -> tuple[EpisodeBuffer, Columns]:
        buffer = with_values(buffer, index)
        columns = episode_columns(buffer, *self._spaces, episode=index, continues=continues)
        columns = _encoded(columns, *self._spaces, self._jpeg_encoding, index)
        return _with_attributes(buffer, index), columns

    def _continue(self, index: int, buffer: EpisodeBuffer) -> None:
        buffer, columns = self._columns(buffer, index, continues=True)
        if self._judge is not None:
            self._judge.columns(index, columns, continues=True)
        self.steps += self._writer._continue_columns(index, columns, buffer)

    def _write(self, segment: Segment) -> None:
        if self._judge is not None:
            self._judge.segment(segment)
        first = len(self._writer)
        try:
            self._writer._append_segment(segment)
        except InvalidEpisodeError:
            if len(self._writer) > first:  # written one by one
                raise
            # retry one by one, so that the message names the episode
            EpisodeWriter._append_segment(self._writer, segment)
        self.steps += int(segment.steps.sum())


_attributes_of = attrgetter("id", "seed", "options", "metadata")


def _own(buffer: EpisodeBuffer) -> EpisodeBuffer:
    """Return a copy of a buffer, since its producer may reuse its arrays for the next episode."""
    fields = {
        name: value.copy() if type(value) is np.ndarray else copied(value)
        for name, value in vars(buffer).items()
    }
    return next(each_with_fields(EpisodeBuffer, [fields]))


def _are_plain(seeds: Sequence[Any], options: Sequence[Any], metadata: Sequence[Any]) -> bool:
    """Return whether the attributes of all buffers need no individual checks."""
    if any(metadata) or options.count(None) < len(options):
        return False
    kinds = set(map(type, seeds))
    return kinds == {NoneType} or (kinds == {int} and min(seeds) >= 0)


def _with_attributes(buffer: EpisodeBuffer, index: int) -> EpisodeBuffer:
    """Return a buffer with checked attributes and a Python int as its seed."""
    if buffer.metadata or buffer.options is not None:
        _check_attributes(buffer, index)
    seed = buffer.seed
    if seed is None or (type(seed) is int and seed >= 0):
        return buffer
    return replace(buffer, seed=_seed(buffer, index))


def buffer_of(episode: Mapping[str, Any], attributes: Mapping[str, Any]) -> EpisodeBuffer:
    """Return a buffer without an id, with all the data of an episode and its attributes."""
    fields = {
        "id": None,
        "seed": attributes.get("seed"),
        "options": attributes.get("options"),
        "observations": episode["observations"],
        "actions": episode["actions"],
        "rewards": episode["rewards"],
        "terminations": episode["terminations"],
        "truncations": episode["truncations"],
        "infos": episode["infos"],
        "metadata": {key: value for key, value in attributes.items() if key not in _FIELDS},
        "extras": episode.get("extras") or {},
    }
    return next(each_with_fields(EpisodeBuffer, [fields]))
