"""What every format does alike when it writes episodes: numbering, checks and attributes."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.episode import EpisodeBuffer, reward_statistics
from minari_pipe.errors import InvalidEpisodeError, InvalidMetadataError
from minari_pipe.recorder import fill_missing
from minari_pipe.storage.attributes import check_options, whole_seed
from minari_pipe.storage.columns import Columns, episode_columns
from minari_pipe.storage.jpeg import decode_column, encode_column

#: attributes of an episode that are fields of its buffer, not its metadata
BUFFER_FIELDS = ("id", "total_steps", "seed", "options")


class EpisodeWriter(ABC):
    """Adds episodes to those that are there, numbered from 0 without gaps.

    A format implements the five abstract methods, which only move arrays and attributes. Of what
    it writes nothing counts before the change is committed; a method that raises must leave the
    episodes as they were.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of episodes."""

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
            columns: what :func:`~minari_pipe.storage.columns.episode_columns` returns; images
                that are to be JPEG are :class:`~minari_pipe.storage.jpeg.Frames`.
            attributes: nested; numbers, strings, None, arrays, lists, tuples and dicts.
        """

    @abstractmethod
    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        """Append rows to an episode, as many to each column; return all its rewards.

        Raises:
            InvalidEpisodeError: keys, shapes or dtypes are not those that are stored.
        """

    @abstractmethod
    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        """Replace the attributes of an episode by these."""

    def add(
        self,
        buffers: Iterable[EpisodeBuffer],
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        jpeg_encoding: bool = False,
    ) -> int:
        """Append episodes, and continue those whose ``id`` is that of a stored one.

        Args:
            buffers: the episodes.
            observation_space: space of one observation.
            action_space: space of one action.
            jpeg_encoding: hand images to the format as JPEG, else as arrays.

        Returns:
            The number of steps that were added.

        Raises:
            InvalidEpisodeError: an id leaves a gap, or values do not fit together.
        """
        steps = 0
        for buffer in buffers:
            index = episode_number(buffer, len(self))
            if index == len(self):
                steps += self.append(
                    buffer, observation_space, action_space, jpeg_encoding=jpeg_encoding
                )
            else:
                steps += self.continue_episode(
                    index, buffer, observation_space, action_space, jpeg_encoding=jpeg_encoding
                )
        return steps

    def append(
        self,
        buffer: EpisodeBuffer,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        *,
        jpeg_encoding: bool = False,
    ) -> int:
        """Append an episode; if it is refused, nothing has changed.

        Reward statistics are added to its attributes unless ``buffer.metadata`` has them.

        Args:
            buffer: the episode; its ``id`` is ignored, its position is its id.
            observation_space: checked against the observations if given.
            action_space: checked against the actions if given.
            jpeg_encoding: hand images to the format as JPEG, else as arrays; needs the spaces.

        Returns:
            The number of its steps.

        Raises:
            InvalidEpisodeError: its values do not fit together or to the spaces.
        """
        index = len(self)
        buffer = with_values(buffer, index)
        columns = episode_columns(buffer, observation_space, action_space, episode=index)
        columns = _encoded(columns, observation_space, action_space, jpeg_encoding, index)
        steps = len(columns["rewards"])
        attributes: dict[str, Any] = {"id": index, "total_steps": steps}
        if (seed := _seed(buffer, index)) is not None:
            attributes["seed"] = seed
        if buffer.options is not None:
            attributes["options"] = buffer.options
        attributes |= reward_statistics(columns["rewards"])
        attributes |= _own_metadata(buffer.metadata, index)
        try:
            check_options(buffer.options)
            self._append(columns, attributes)
        except InvalidEpisodeError as error:
            raise InvalidEpisodeError(f"episode {index}: {error}") from None
        return steps

    def continue_episode(
        self,
        index: int,
        buffer: EpisodeBuffer,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        jpeg_encoding: bool = False,
    ) -> int:
        """Append steps to a stored episode and bring its attributes up to date.

        Args:
            index: the episode.
            buffer: ``T`` further steps with ``T`` observations and infos.
            observation_space: space of one observation.
            action_space: space of one action.
            jpeg_encoding: hand images to the format as JPEG, else as arrays.

        Returns:
            The number of steps that were added.

        Raises:
            InvalidEpisodeError: the values do not fit together, or to those that are stored.
        """
        buffer = with_values(buffer, index)
        columns = episode_columns(
            buffer, observation_space, action_space, episode=index, continues=True
        )
        columns = _encoded(columns, observation_space, action_space, jpeg_encoding, index)
        stored = self.episode_metadata(index)
        given = {"seed": _seed(buffer, index), "options": buffer.options}
        for key, value in given.items():
            if value is not None and stored.get(key) is not None:
                raise InvalidEpisodeError(
                    f"episode {index}: it has a {key} already, a continuation cannot bring another"
                )
        before = int(stored["total_steps"])
        filled = dict(stored.get("infos_filled", {}))
        for key, ranges in buffer.metadata.get("infos_filled", {}).items():
            shifted = [[begin + before + 1, end + before + 1] for begin, end in ranges]
            filled[key] = [*filled.get(key, []), *shifted]
        rewards = self._extend(index, columns)
        attributes = {
            **stored,
            **_own_metadata(buffer.metadata, index),
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
            InvalidMetadataError: they would change its id or its number of steps, or hold a seed
                that is none.
        """
        stored = self.episode_metadata(index)
        try:
            whole_seed(metadata.get("seed"))
        except InvalidEpisodeError as error:
            raise InvalidMetadataError(f"episode {index}: {error}") from None
        for key in {"id", "total_steps"} & metadata.keys():
            if metadata[key] != stored.get(key):
                raise InvalidMetadataError(
                    f"episode {index}: {key} follows from the data and cannot be set"
                )
        self._set_attributes(index, {**stored, **metadata})


def episode_number(buffer: EpisodeBuffer, total: int) -> int:
    """Return the number under which an episode is stored, or which it continues.

    Args:
        buffer: the episode.
        total: number of stored episodes.

    Raises:
        InvalidEpisodeError: its ``id`` is no number, or leaves a gap.

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
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
    jpeg_encoding: bool,
    index: int,
) -> Columns:
    """Bring images into the form in which they are stored."""
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
    """Return a buffer whose infos are filled, see :func:`minari_pipe.recorder.fill_missing`.

    Args:
        buffer: the episode.
        index: its number, for the message.

    Raises:
        InvalidEpisodeError: the values of an info do not fit together.

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


def _own_metadata(metadata: Mapping[str, Any], index: int) -> dict[str, Any]:
    reserved = {*BUFFER_FIELDS, "infos_slashes"} & metadata.keys()
    if reserved:
        raise InvalidEpisodeError(
            f"episode {index}: metadata cannot hold {sorted(reserved)}, which are fields of the "
            "buffer or follow from its data"
        )
    return dict(metadata)


def buffer_of(episode: Mapping[str, Any], attributes: Mapping[str, Any]) -> EpisodeBuffer:
    """Join an episode and its attributes to a buffer without an id, losing nothing."""
    arrays = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return EpisodeBuffer(
        id=None,
        seed=attributes.get("seed"),
        options=attributes.get("options"),
        metadata={key: value for key, value in attributes.items() if key not in BUFFER_FIELDS},
        extras=dict(episode.get("extras") or {}),
        **{key: episode.get(key) for key in arrays},
    )
