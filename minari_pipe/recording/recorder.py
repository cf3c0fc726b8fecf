"""Record one episode at a time into columns of rows, by copy.

A step costs one small copy per leaf, and an environment may reuse every array that it returns. If
an episode is longer than a block of memory, its older rows go to a file, provided there is a
store.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EpisodeBuffer, copied
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.recording.column_trees import node
from minari_pipe.storage.open_columns import OpenTree, check_key
from minari_pipe.storage.row_columns import Column, RowStore

#: Number of bytes of rows to keep in memory before they go to a file.
BLOCK_BYTES = 1 << 22

#: Rows go to a file in multiples of this number, so that their bytes are whole words.
_GROUP = 8

_FLOAT64 = np.float64


class EpisodeRecorder:
    """Records the steps of one episode after the other.

    Every value is copied when it arrives. A column has its space's dtype; it widens only if a
    value would otherwise lose precision, which the checks then report. Infos may come and go
    within an episode: rows without a key are filled with zeros of the key's dtype and shape
    (``""`` for strings), and ``metadata["infos_filled"]`` of the finished buffer lists them. The
    same holds for extra step data, which ``metadata["extras_filled"]`` lists. A group of extras
    has ``T + 1`` rows if it is present at the reset, else ``T``.

    Example:
        >>> import gymnasium as gym
        >>> recorder = EpisodeRecorder(gym.spaces.Discrete(9), gym.spaces.Discrete(2),
        ...                            record_infos=True)
        >>> recorder.start(0, {}, seed=7)
        >>> recorder.step(1, 1, 0.5, True, False, {"success": True})
        >>> episode = recorder.finish(0)
        >>> episode.observations, episode.infos, episode.metadata
        (array([0, 1]), {'success': array([False,  True])}, {'infos_filled': {'success': [[0, 1]]}})
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        record_infos: bool,
        store: RowStore | None = None,
        n_recorders: int = 1,
    ) -> None:
        """Create the columns.

        Args:
            observation_space: space of one observation.
            action_space: space of one action.
            record_infos: record the infos too.
            store: storage for the rows of long episodes; without it they stay in memory.
            n_recorders: number of recorders, including this one; if there are four or more, each
                has a quarter of the memory of a single one, which holds most episodes.
        """
        self._store, self._n_shares = store, min(n_recorders, 4)
        self._observations = node(observation_space, ("observations",), store=store)
        self._actions = node(action_space, ("actions",), store=store)
        self._put_observation, self._put_action = self._observations.put, self._actions.put
        # rewards and flags that memory has no room for
        self._numbers = {
            name: Column((name,), store=store)
            for name in ("rewards", "terminations", "truncations")
        }
        self._record_infos = record_infos
        # bytes of observations, actions, a reward and two flags
        self._row_bytes = self._observations.row_bytes + self._actions.row_bytes + 10
        self._infos = OpenTree(("infos",), store)
        self._extras: dict[str, OpenTree] = {}
        # groups present at the reset have a row for it; others start with the first step
        self._extras_at_reset: frozenset[str] = frozenset()
        self._stored = self._row = 0
        # whether the columns may hold an episode, or a part of one
        self._begun = False
        self._clear()

    def _clear(self) -> None:
        if self._record_infos:
            self._infos.clear(self._row + 1)
        # rows in memory, and room for them; there is none before an episode starts
        self._row, self._room = 0, 0
        if self._stored:
            for column in self._numbers.values():
                column.clear()
        self._stored = 0
        self._rewards: list[float] | array[float] = []
        # the rows in memory whose flag is set
        self._terminated: list[int] = []
        self._truncated: list[int] = []
        self._seed: int | None = None
        self._options: dict[str, Any] | None = None
        self._observations.clear()
        self._actions.clear()
        self._extras = {}
        self._extras_at_reset = frozenset()

    def __len__(self) -> int:
        """Return the number of steps recorded since :meth:`start`."""
        return self._stored + self._row

    @property
    def is_plain(self) -> bool:
        """Whether observations and actions are arrays of the shapes of their spaces."""
        return self._observations.is_array and self._actions.is_array

    def start(
        self,
        observation: Any,
        info: dict[str, Any],
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """Start an episode with what ``reset`` returned; discard an unfinished one.

        Args:
            observation: the first observation.
            info: the reset's info.
            seed: the seed passed to ``reset``.
            options: the options passed to ``reset``.
            extras: extra step data by group; see :attr:`EpisodeBuffer.extras`.

        Raises:
            InvalidEpisodeError: a value does not have the structure or the shape of its space.
        """
        if self._begun:
            self._clear()
        self._begun = True
        self._seed, self._options = seed, copied(options)
        try:
            if not self._observations.put(0, observation):
                self._set_observation(0, observation)
            if self._record_infos:
                self._add_info(0, info)
            if extras:
                given = {name: value for name, value in extras.items() if value is not None}
                self._extras_at_reset = frozenset(given)
                self._add_extras(0, given)
        except BaseException:
            self._clear()
            raise
        self._plan_room()

    def put_action(self, action: Any) -> bool:
        """Copy the action of the next step, which the environment may change.

        Returns False, with nothing changed, if it has no place for it; :meth:`step` takes it then.
        """
        row = self._row
        return row < self._room and self._put_action(row, action)

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        extras: Mapping[str, Any] | None = None,
        *,
        has_action: bool = False,
    ) -> None:
        """Record one step; if a value is refused, the step leaves no trace.

        Args:
            action: action that the environment was given.
            observation: observation that it returned, like all arguments below.
            reward: one number.
            terminated: whether the episode ended by itself.
            truncated: whether the episode was cut off.
            info: recorded if the recorder records infos.
            extras: extra step data by group; see :attr:`EpisodeBuffer.extras`.
            has_action: whether :meth:`put_action` has copied the action.

        Raises:
            InvalidEpisodeError: a value does not have the structure or the shape of its space, or
                an info cannot be stored.
        """
        if self._row >= self._room:
            self._make_room()
        row = self._row
        try:
            if type(reward) is not float and type(reward) is not _FLOAT64:
                reward = to_float(reward)
            if not has_action and not self._put_action(row, action):
                self._set_action(row, action)
            if not self._put_observation(row + 1, observation):
                self._set_observation(row + 1, observation)
            if self._record_infos and not self._infos.put(row + 1, info):
                self._add_info(row + 1, info)
            if extras:
                self._add_extras(row + 1, extras)
            if terminated:
                self._terminated.append(row)
            if truncated:
                self._truncated.append(row)
            self._rewards.append(reward)
            self._row = row + 1
        except BaseException:
            self._cut()
            raise

    def _set_observation(self, row: int, value: Any) -> None:
        self._observations.set(row, value)

    def _set_action(self, row: int, value: Any) -> None:
        self._actions.set(row, value)

    def _add_info(self, row: int, info: Any) -> None:
        if type(info) is not dict and not isinstance(info, Mapping):
            raise InvalidEpisodeError(
                f"infos must be a dict, got {type(info).__name__} {info!r:.60}; "
                "use record_infos=False to skip them"
            )
        if self._infos.add(row, info):
            self._plan_room()

    def _add_extras(self, row: int, extras: Mapping[str, Any]) -> None:
        for name, value in extras.items():
            if value is None:
                continue
            group = self._extras.get(name)
            if group is None:
                check_key(name, ("extras",))
                group = self._extras[name] = OpenTree(("extras", name), self._store, self._stored)
            if group.add(row if name in self._extras_at_reset else row - 1, value):
                self._plan_room()

    def _cut(self) -> None:
        """Remove the refused step; the rows of columns will be overwritten."""
        row = self._row
        for rows in (self._terminated, self._truncated):
            if rows and rows[-1] == row:
                rows.pop()
        del self._rewards[row:]
        self._observations.cut(row + 1)
        self._actions.cut(row)
        self._infos.cut(row + 1)
        for name in list(self._extras):
            group = self._extras[name]
            group.cut(row + 1 if name in self._extras_at_reset else row)
            if not group:
                del self._extras[name]

    def _plan_room(self) -> None:
        """Determine how many steps fit into memory, including those already there."""
        if self._store is None:
            self._room = sys.maxsize
            return
        row_bytes = self._row_bytes
        if self._record_infos or self._extras:
            row_bytes += sum(tree.row_bytes for tree in (self._infos, *self._extras.values()))
        self._room = max(BLOCK_BYTES // self._n_shares // row_bytes, self._row + 1, 2 * _GROUP)

    def _make_room(self) -> None:
        """Move rows to the store, except at least the last step, which may yet be truncated."""
        if not self._room:
            raise InvalidEpisodeError("step() before start(): there is no episode to record into")
        self._spill((self._row - 1) // _GROUP * _GROUP)
        self._plan_room()

    def _spill(self, rows: int) -> None:
        """Move the first rows to the store; if the disk is full, nothing has changed."""
        self._fill_numbers(self._row)
        of_steps = (self._actions, *self._numbers.values())
        trees = (self._infos, *self._extras.values())
        for part in (self._observations, *of_steps, *trees):
            part.save(rows)
        self._leaving(rows)
        try:
            self._observations.drop(rows, self._row + 1)
            for column in of_steps:
                column.drop(rows, self._row)
            for tree in trees:
                tree.drop(rows)
            del self._rewards[:rows]
            self._terminated = [row - rows for row in self._terminated if row >= rows]
            self._truncated = [row - rows for row in self._truncated if row >= rows]
            self._row -= rows
            self._stored += rows
        except BaseException:  # Ctrl-C: some columns may have dropped their rows
            self._clear()
            raise

    def _leaving(self, rows: int) -> None:
        """Do nothing before the first rows leave memory; a subclass checks them here."""

    def _fill_numbers(self, rows: int) -> None:
        """Put rewards and flags into their columns."""
        for name, values in (
            ("rewards", np.array(self._rewards, dtype=np.float64)),
            ("terminations", _flags(self._terminated, rows)),
            ("truncations", _flags(self._truncated, rows)),
        ):
            self._numbers[name].hold(values)

    def truncate(self) -> None:
        """Mark the last step as truncated, unless it terminated: the episode was cut off."""
        last = self._row - 1
        if last >= 0 and last not in (*self._terminated[-1:], *self._truncated[-1:]):
            self._truncated.append(last)

    @property
    def seed(self) -> int | None:
        """Seed of the episode."""
        return self._seed

    @property
    def is_regular(self) -> bool:
        """Whether the episode has whole infos, and arrays in memory with the dtypes of the spaces.

        All such episodes that have the same :attr:`form` have the same structure.
        """
        return (
            not (self._stored or self._extras or self._options is not None)
            and self._infos.is_whole(self._row + 1)
            and self._observations.is_regular
            and self._actions.is_regular
        )

    @property
    def form(self) -> list[Any]:
        """What distinguishes regular episodes, besides the number of steps."""
        return [self._seed is None, *self._infos.form]

    def take_bytes(self) -> list[bytes | memoryview]:
        """Return the bytes of the arrays of a regular episode, each padded to a multiple of 8.

        They are those of the arrays that :meth:`finish` returns, at less cost, and change with the
        next episode.
        """
        parts: list[bytes | memoryview] = []
        row = self._row
        self._observations.add_bytes(row + 1, parts)
        self._actions.add_bytes(row, parts)
        parts.append(array("d", self._rewards).tobytes())
        for rows in (self._terminated, self._truncated):
            flags = memoryview(bytearray(row + (-row & 7)))
            for place in rows:
                flags[place] = 1
            parts.append(flags)
        self._infos.add_bytes(row + 1, parts)
        return parts

    def forget(self) -> None:
        """Discard the episode."""
        self._clear()
        self._begun = False

    def finish(self, episode_id: int | None) -> EpisodeBuffer:
        """Return the episode and clear the recorder.

        Args:
            episode_id: the ``id`` of the buffer.

        Returns:
            Stacked arrays (lists of strings for Text): ``T + 1`` observations and infos, ``T``
            of everything else; rewards float64, flags bool. Rows in the store are not read.

        Raises:
            InvalidEpisodeError: nothing was recorded.
        """
        row, steps = self._row, len(self)
        if steps == 0:
            raise InvalidEpisodeError(f"episode {episode_id} has no steps; at least 1 is needed")
        infos, filled = self._infos.stacked(row + 1)
        metadata: dict[str, Any] = {"infos_filled": filled} if filled else {}
        extras: dict[str, Any] = {}
        filled = {}
        for name, group in self._extras.items():
            values, gaps = group.stacked(row + 1 if name in self._extras_at_reset else row)
            if not isinstance(values, dict) or values:
                extras[name] = values
            filled |= {f"{name}.{key}" if key else name: gap for key, gap in gaps.items()}
        if filled:
            metadata["extras_filled"] = filled
        if self._stored:
            self._fill_numbers(row)
            rewards, terminations, truncations = (
                column.stacked(row) for column in self._numbers.values()
            )
        else:
            rewards = np.array(self._rewards, dtype=np.float64)
            terminations = _flags(self._terminated, row)
            truncations = _flags(self._truncated, row)
        episode = EpisodeBuffer(
            id=episode_id,
            seed=self._seed,
            options=self._options,
            observations=self._observations.stacked(row + 1),
            actions=self._actions.stacked(row),
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            infos=infos,
            metadata=metadata,
            extras=extras,
        )
        self.forget()
        return episode


def _flags(rows: list[int], count: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros(count, dtype=bool)
    if rows:
        flags[rows] = True
    return flags


def to_float(reward: Any) -> float:
    """Return a reward as the number to record.

    Raises:
        InvalidEpisodeError: it is not one number, or too large for float64.

    Example:
        >>> to_float(np.array([0.5]))
        0.5
    """
    if isinstance(reward, np.ndarray) and reward.size == 1:
        reward = reward.item()
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise InvalidEpisodeError(f"a reward must be one number, got {reward!r}") from None
    except OverflowError:
        raise InvalidEpisodeError(
            f"a reward must be one number in the range of float64, got {type(reward).__name__} "
            f"beyond {sys.float_info.max:.1e}"
        ) from None
