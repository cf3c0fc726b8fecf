"""Records one episode at a time into columns of rows, by copy.

A step costs one small copy per leaf, and an environment may reuse every array it returns. Of an
episode that is longer than a block of memory, the older rows go to a file, if there is one for
them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.episode import EpisodeBuffer, copied
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.recorded_columns import Column, RowStore, node
from minari_pipe.tree import Path, join_path

#: bytes of the rows that are in memory before they go to a file
BLOCK_BYTES = 1 << 20

#: rows go to a file by so many, whose bytes are then whole words
_GROUP = 8

_FLOAT64 = np.float64


class EpisodeRecorder:
    """Collects the steps of one episode after the other.

    Every value is copied when it arrives. A column has its space's dtype; it widens only if a
    value would otherwise lose precision, which the checks then report. The infos of an episode
    may come and go: rows without a key are filled with zeros of the key's dtype and shape
    (``""`` for strings), and ``metadata["infos_filled"]`` of the finished buffer says which. The
    same holds for extra step data; there it is ``metadata["extras_filled"]``. A group of extras
    has ``T + 1`` rows if it is there at the reset, else ``T``.

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
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        record_infos: bool,
        store: RowStore | None = None,
    ) -> None:
        """Make the columns.

        Args:
            observation_space: space of one observation.
            action_space: space of one action.
            record_infos: record the infos too.
            store: where the rows of long episodes go; without it they stay in memory.
        """
        self._store = store
        self._observations = node(observation_space, ("observations",), store=store)
        self._actions = node(action_space, ("actions",), store=store)
        # rewards and flags, if memory has no room for them
        self._numbers = {
            name: Column((name,), store=store)
            for name in ("rewards", "terminations", "truncations")
        }
        self._record_infos = record_infos
        # of observations, actions, a reward and two flags
        self._row_bytes = self._observations.row_bytes + self._actions.row_bytes + 10
        self._infos = _OpenTree(("infos",), store)
        self._extras: dict[str, _OpenTree] = {}
        # groups that came with the reset have a row for it, others begin with the first step
        self._extras_at_reset: frozenset[str] = frozenset()
        self._stored = 0
        # whether the columns may hold an episode, or a part of one
        self._begun = False
        self._clear()

    def _clear(self) -> None:
        # rows in memory; as long as no episode is begun, there is no room for one
        self._row, self._room = 0, 0
        if self._stored:
            for column in self._numbers.values():
                column.clear()
        self._stored = 0
        self._rewards: list[float] = []
        # the rows in memory whose flag is set
        self._terminated: list[int] = []
        self._truncated: list[int] = []
        self._seed: int | None = None
        self._options: dict | None = None
        self._observations.clear()
        self._actions.clear()
        if self._infos:
            self._infos = _OpenTree(("infos",), self._store)
        self._extras = {}
        self._extras_at_reset = frozenset()

    def __len__(self) -> int:
        """Number of steps recorded since :meth:`start`."""
        return self._stored + self._row

    @property
    def is_plain(self) -> bool:
        """Whether observations and actions are arrays of the shapes that their spaces say."""
        return self._observations.is_array and self._actions.is_array

    def start(
        self,
        observation: Any,
        info: dict[str, Any],
        *,
        seed: int | None = None,
        options: dict | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin an episode with what ``reset`` returned; one that was begun is discarded.

        Args:
            observation: the first observation.
            info: the reset's info.
            seed: the seed that was given to ``reset``.
            options: the options that were given to ``reset``.
            extras: extra step data by group; see :attr:`EpisodeBuffer.extras`.

        Raises:
            InvalidEpisodeError: a value has not the structure or the shape of its space.
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

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """Record one step; if a value is refused, the step leaves no trace.

        Raises:
            InvalidEpisodeError: a value has not the structure or the shape of its space, or an
                info cannot be stored.
        """
        if self._row >= self._room:
            self._make_room()
        row = self._row
        try:
            if type(reward) is not float:
                reward = float(reward) if type(reward) is _FLOAT64 else to_float(reward)
            if not self._actions.put(row, action):
                self._set_action(row, action)
            if not self._observations.put(row + 1, observation):
                self._set_observation(row + 1, observation)
            if self._record_infos:
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
        if not isinstance(info, Mapping):
            raise InvalidEpisodeError(
                f"infos must be a dict, got {type(info).__name__} {info!r:.60}; "
                "record_infos=False does without them"
            )
        if self._infos.add(row, info):
            self._plan_room()

    def _add_extras(self, row: int, extras: Mapping[str, Any]) -> None:
        for name, value in extras.items():
            if value is None:
                continue
            group = self._extras.get(name)
            if group is None:
                _check_key(name, ("extras",))
                group = self._extras[name] = _OpenTree(("extras", name), self._store, self._stored)
            if group.add(row if name in self._extras_at_reset else row - 1, value):
                self._plan_room()

    def _cut(self) -> None:
        """Take back the step that was refused; the rows of columns are written again."""
        row = self._row
        for rows in (self._terminated, self._truncated):
            if rows and rows[-1] == row:
                rows.pop()
        del self._rewards[row:]
        self._infos.cut(row + 1)
        for name in list(self._extras):
            group = self._extras[name]
            group.cut(row + 1 if name in self._extras_at_reset else row)
            if not group:
                del self._extras[name]

    def _plan_room(self) -> None:
        """Say how many steps memory has room for, those included that are in it."""
        if self._store is None:
            self._room = sys.maxsize
            return
        row_bytes = self._row_bytes
        if self._infos or self._extras:
            row_bytes += sum(tree.row_bytes for tree in (self._infos, *self._extras.values()))
        self._room = max(BLOCK_BYTES // row_bytes, self._row + 1, 2 * _GROUP)

    def _make_room(self) -> None:
        """Move rows to the store; at least the last step stays, which may yet be truncated."""
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
        except BaseException:  # Ctrl-C: which columns have dropped their rows is not known
            self._clear()
            raise

    def _leaving(self, rows: int) -> None:
        """Look at the first rows for the last time."""

    def _fill_numbers(self, rows: int) -> None:
        """Bring rewards and flags into their columns."""
        for name, values in (
            ("rewards", np.array(self._rewards, dtype=np.float64)),
            ("terminations", _flags(self._terminated, rows)),
            ("truncations", _flags(self._truncated, rows)),
        ):
            self._numbers[name].hold(values)

    def truncate(self) -> None:
        """Mark the last step as truncated, unless it terminated: the episode was broken off."""
        last = self._row - 1
        if last >= 0 and last not in (*self._terminated[-1:], *self._truncated[-1:]):
            self._truncated.append(last)

    @property
    def seed(self) -> int | None:
        """Seed of the episode."""
        return self._seed

    @property
    def is_regular(self) -> bool:
        """Whether the episode is arrays of the dtypes of the spaces, in memory, and nothing else.

        Then all episodes of which that is true have the same structure.
        """
        return (
            not (self._stored or self._record_infos or self._extras or self._options is not None)
            and self._observations.is_regular
            and self._actions.is_regular
        )

    def take_bytes(self) -> list[bytes]:
        """Return the bytes of the arrays of a regular episode, each up to a multiple of 8.

        They are those of :meth:`finish`, which is quicker to do without.
        """
        parts: list[bytes] = []
        row = self._row
        self._observations.add_bytes(row + 1, parts)
        self._actions.add_bytes(row, parts)
        parts.append(array("d", self._rewards).tobytes())
        for rows in (self._terminated, self._truncated):
            flags = bytearray(row + (-row & 7))
            for place in rows:
                flags[place] = 1
            parts.append(bytes(flags))
        return parts

    def forget(self) -> None:
        """Forget the episode."""
        self._clear()
        self._begun = False

    def finish(self, episode_id: int | None) -> EpisodeBuffer:
        """Return the episode and forget it.

        Args:
            episode_id: the ``id`` of the buffer.

        Returns:
            Stacked arrays (lists of strings for Text): ``T + 1`` observations and infos, ``T``
            of everything else; rewards float64, flags bool. What is in the store is not read.

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
    """Return a reward as the number that is recorded.

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
            f"a reward must be one number that float64 can hold, got {type(reward).__name__} "
            f"beyond {sys.float_info.max:.1e}"
        ) from None


def fill_missing(buffer: EpisodeBuffer) -> EpisodeBuffer:
    """Return a buffer whose infos have a value in every row, filled as a recorder fills them.

    Args:
        buffer: an episode; None among the rows of an info is a missing value, as real Minari has
            it in Arrow files.

    Raises:
        InvalidEpisodeError: the values of an info do not fit together.

    Example:
        >>> infos = {"success": [None, True], "never": [None, None]}
        >>> found = fill_missing(EpisodeBuffer(infos=infos))
        >>> found.infos, found.metadata["infos_filled"]
        ({'success': array([False,  True])}, {'success': [[0, 1]], 'never': [[0, 2]]})
    """
    filled: dict[str, list[list[int]]] = {}
    infos = _filled(buffer.infos, (), filled)
    if not filled:
        return buffer
    known = buffer.metadata.get("infos_filled", {})
    joined = {name: sorted([*known.get(name, []), *filled[name]]) for name in filled}
    metadata = {**buffer.metadata, "infos_filled": {**known, **joined}}
    return replace(buffer, infos=infos, metadata=metadata)


def _filled(value: Any, path: Path, filled: dict[str, list[list[int]]]) -> Any:
    if isinstance(value, Mapping):
        parts = {key: _filled(part, (*path, key), filled) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if not _lacks_values(value):
        return value
    column = _OpenColumn(("infos", *path))
    for row, part in enumerate(value):
        column.add(row, part)
    column.fill(len(value))
    filled[join_path(path)] = column.filled
    return None if column.data is None else column.stacked(len(value))


def _lacks_values(column: Any) -> bool:
    is_rows = isinstance(column, list) or (
        isinstance(column, np.ndarray) and column.dtype.kind == "O" and column.ndim > 0
    )
    return is_rows and any(row is None for row in column)


def _open_leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of infos or extras; tuples that are no array are dicts of ``_index_0``..."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check_key(key, path)
            yield from _open_leaves(part, (*path, key))
    elif isinstance(value, tuple) and not _is_regular(value):
        for index, part in enumerate(value):
            yield from _open_leaves(part, (*path, f"_index_{index}"))
    else:
        yield path, value


def _is_regular(value: tuple[Any, ...]) -> bool:
    if any(isinstance(part, Mapping | tuple) for part in value):
        return False
    return len({np.shape(part) for part in value if not isinstance(part, list)}) < 2


def _check_key(key: Any, path: Path) -> None:
    if not isinstance(key, str):
        raise InvalidEpisodeError(
            f"{join_path((*path, str(key)))}: keys of {path[0]} must be strings, got {key!r}"
        )


class _OpenTree:
    """Columns of nested dicts whose keys may come and go; falsy as long as it has none."""

    def __init__(self, path: Path, store: RowStore | None, stored: int = 0) -> None:
        self._path, self._store = path, store
        self._columns: dict[Path, _OpenColumn] = {}
        # the same by their last keys, in nested dicts; those of tuples are not among them
        self._by_key: dict[Any, Any] = {}
        self._stored = stored

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self._columns.values())

    def add(self, row: int, value: Any) -> bool:
        """Add a row; whether there are new columns."""
        known = len(self._columns)
        if not (type(value) is dict and self._put(self._by_key, row, value)):
            for path, leaf in _open_leaves(value, self._path):
                column = self._columns.get(path)
                if column is None:
                    column = self._new(path)
                column.add(row, leaf)
        return len(self._columns) > known

    def _put(self, by_key: dict[Any, Any], row: int, value: dict) -> bool:
        """Add a row whose values are all of their columns' dtypes and shapes."""
        for key, part in value.items():
            column = by_key.get(key)
            if type(column) is _OpenColumn:
                if not column.put(row, part):
                    return False
            elif column is None or type(part) is not dict or not self._put(column, row, part):
                return False
        return True

    def _new(self, path: Path) -> _OpenColumn:
        for other in self._columns:
            short = min(len(path), len(other))
            if path[:short] == other[:short]:
                raise InvalidEpisodeError(
                    f"{join_path(path[:short])} is a dict on some steps and a value on "
                    "others; a StepDataCallback can make it one of them; in a pipeline, a wrapper"
                )
        column = self._columns[path] = _OpenColumn(path, self._store, self._stored)
        self._index()
        return column

    def _index(self) -> None:
        self._by_key = {}
        for path, column in self._columns.items():
            below = path[len(self._path) :]
            if below:
                parent = self._by_key
                for key in below[:-1]:
                    parent = parent.setdefault(key, {})
                parent[below[-1]] = column

    def cut(self, rows: int) -> None:
        for path in list(self._columns):
            self._columns[path].cut(rows)
            if self._columns[path].first >= self._stored + rows:
                del self._columns[path]
        self._index()

    def save(self, rows: int) -> None:
        for column in self._columns.values():
            column.fill(rows)
            column.save(rows)

    def drop(self, rows: int) -> None:
        for column in self._columns.values():
            column.drop(rows, column.rows)
        self._stored += rows

    def stacked(self, rows: int) -> tuple[Any, dict[str, list[list[int]]]]:
        """Return the columns in their dicts, and which rows of which column were filled."""
        nested: Any = {}
        filled: dict[str, list[list[int]]] = {}
        for path, column in self._columns.items():
            column.fill(rows)
            below = path[len(self._path) :]
            if column.filled:
                filled[join_path(below)] = column.filled
            if column.data is None:
                continue
            if not below:
                nested = column.stacked(rows)
                break
            parent = nested
            for key in below[:-1]:
                parent = parent.setdefault(key, {})
            parent[below[-1]] = column.stacked(rows)
        return nested, filled


class _OpenColumn(Column):
    """The rows of one key of the infos, which may be missing on some of them.

    Attributes:
        rows: number of its rows in memory.
        filled: which rows of the episode have no value, from and to.
        first: row of the episode in which the key was first seen.
    """

    def __init__(self, path: Path, store: RowStore | None = None, stored: int = 0) -> None:
        super().__init__(path, store=store)
        self.stored = stored
        self.rows = 0
        self.filled: list[list[int]] = []
        self.first = -1
        if stored:
            self.filled.append([0, stored])

    def put(self, row: int, value: Any) -> bool:
        if row != self.rows:
            return False
        if type(value) in self._put_types:  # most infos are numbers
            try:
                self.data[row] = value  # type: ignore[index]
            except (IndexError, OverflowError):
                return False
        elif not Column.put(self, row, value):
            return False
        self.rows = row + 1
        return True

    def add(self, row: int, value: Any) -> None:
        if self.first < 0:
            self.first = self.stored + row
        if value is None:  # a key without a value is like a missing key
            return
        if self.data is None:
            self._converted(0, value)
        self.fill(row)
        self.rows = row  # of this step, what was put before another value could not be
        if not self.put(row, value):
            self.set(row, value)
            if self._put_dtype is not self.dtype:
                self._allow_put()
            self.rows = row + 1

    def fill(self, rows: int) -> None:
        """Add rows of zeros up to ``rows`` and remember which."""
        if self.rows >= rows:
            return
        begin, end = self.stored + self.rows, self.stored + rows
        if self.filled and self.filled[-1][1] == begin:
            self.filled[-1][1] = end
        else:
            self.filled.append([begin, end])
        if self.data is not None:
            self._reserve(self.rows, rows)
            self.data[self.rows : rows] = "" if self.data.dtype.kind == "O" else 0
        self.rows = rows

    def drop(self, rows: int, used: int) -> None:
        super().drop(rows, used)
        self.rows -= rows

    def cut(self, rows: int) -> None:
        self.rows = min(self.rows, rows)
        last = self.stored + rows
        self.filled = [[begin, min(end, last)] for begin, end in self.filled if begin < last]
