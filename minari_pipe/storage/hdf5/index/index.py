"""Define the index of an HDF5 file: where the values of each episode lie, to read them directly."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.storage.attributes import exact_form, from_exact_form
from minari_pipe.storage.segment import AttributeTable, Ints, Leaf


@dataclass(frozen=True)
class Part:
    """Episodes of one structure, with every leaf in one piece in the file, row-major.

    Attributes:
        episodes: their numbers, ascending, shape ``(n,)``.
        leaves: their leaves, checked to be numbers with ``T + more`` rows each.
        addresses: address of the first byte of each leaf of each episode, ``(len(leaves), n)``;
            arbitrary for a leaf without bytes.
    """

    episodes: Ints
    leaves: tuple[Leaf, ...]
    addresses: Ints


@dataclass(frozen=True)
class FileIndex:
    """What is known about all ``N`` episodes of a file.

    Attributes:
        steps: ``T`` of each episode, shape ``(N,)``; -1 if it is in no part.
        parts: each episode is in one of them, or must be read through the structure of the file.
        attributes: attributes of all episodes, as ``EpisodeFile.episode_metadata`` returns them.
    """

    steps: Ints
    parts: tuple[Part, ...]
    attributes: AttributeTable

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.steps)


def merged(parts: Iterable[Part]) -> list[Part]:
    """Merge parts that have the same leaves."""
    found: dict[tuple[Leaf, ...], list[Part]] = {}
    for part in parts:
        if len(part.episodes):
            found.setdefault(part.leaves, []).append(part)
    joined = []
    for leaves, same in found.items():
        episodes = np.concatenate([part.episodes for part in same])
        addresses = np.concatenate([part.addresses for part in same], axis=1)
        if (np.diff(episodes) <= 0).any():
            order = np.argsort(episodes, kind="stable")
            episodes, addresses = episodes[order], addresses[:, order]
        joined.append(Part(episodes, leaves, addresses))
    return joined


@dataclass(frozen=True)
class Runs:
    """The stored form of a :class:`Part`: in a run of episodes, rows of every leaf are contiguous.

    The observations of a run's episodes follow one another, and so do their actions, and so on: a
    run is one array per leaf, however many episodes it has.

    Attributes:
        episodes: as in the part, shape ``(n,)``.
        leaves: as in the part.
        steps: ``T`` of each episode, shape ``(n,)``.
        firsts: position in ``episodes`` of the first one of each run, shape ``(R,)``.
        addresses: address of each leaf of the first episode of each run, ``(len(leaves), R)``.
    """

    episodes: Ints
    leaves: tuple[Leaf, ...]
    steps: Ints
    firsts: Ints
    addresses: Ints

    @classmethod
    def of(cls, part: Part, steps: Ints) -> Runs:
        """Find the runs of a part; ``steps`` covers all episodes of the file."""
        own = steps[part.episodes]
        breaks = np.zeros(max(0, len(own) - 1), bool)
        for leaf, addresses in zip(part.leaves, part.addresses, strict=True):
            if leaf.row_bytes:
                breaks |= np.diff(addresses) != (own[:-1] + leaf.more) * leaf.row_bytes
        firsts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(breaks) + 1])
        return cls(part.episodes, part.leaves, own, firsts, part.addresses[:, firsts])

    @classmethod
    def joined(cls, found: Sequence[tuple[int, Runs]]) -> Runs:
        """Join runs of the same leaves, each with what to add to the numbers of its episodes."""
        places = np.cumsum([0, *(len(runs.episodes) for _, runs in found)])
        return cls(
            np.concatenate([runs.episodes + more for more, runs in found]),
            found[0][1].leaves,
            np.concatenate([runs.steps for _, runs in found]),
            np.concatenate([runs.firsts + at for (_, runs), at in zip(found, places)]),
            np.concatenate([runs.addresses for _, runs in found], axis=1),
        )

    def part(self) -> Part:
        """Return the part."""
        own = np.diff(np.append(self.firsts, len(self.steps)))
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.steps)])
        steps = total[:-1] - np.repeat(total[self.firsts], own)
        before = np.arange(len(self.steps)) - np.repeat(self.firsts, own)
        addresses = np.stack(
            [
                np.repeat(first, own) + (steps + leaf.more * before) * leaf.row_bytes
                for leaf, first in zip(self.leaves, self.addresses, strict=True)
            ]
        )
        return Part(self.episodes, self.leaves, addresses)

    def rows(self) -> Ints:
        """Return the number of steps and of episodes of each run, shape ``(2, R)``."""
        ends = np.append(self.firsts[1:], len(self.steps))
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.steps)])
        return np.stack([total[ends] - total[self.firsts], ends - self.firsts])

    def fits(self, episodes: int, size: int) -> bool:
        """Return whether a file with ``episodes`` episodes and ``size`` bytes can contain this."""
        count, runs = len(self.episodes), len(self.firsts)
        if (
            not count
            or not runs
            or self.steps.shape != (count,)
            or self.addresses.shape != (len(self.leaves), runs)
            or self.firsts[0] != 0
            or (np.diff(self.firsts) <= 0).any()
            or self.firsts[-1] >= count
            or self.episodes[0] < 0
            or self.episodes[-1] >= episodes
            or (np.diff(self.episodes) <= 0).any()
            or self.steps.min() < 0
            or self.steps.sum(dtype=np.float64) > 2**60
        ):
            return False
        steps, own = self.rows()
        for leaf, addresses in zip(self.leaves, self.addresses, strict=True):
            if (
                leaf.dtype.kind not in "biufc"
                or leaf.more not in (0, 1)
                or min(leaf.shape, default=0) < 0
            ):
                return False
            if not leaf.row_bytes:
                continue
            if leaf.row_bytes > size or (addresses < 0).any() or (addresses > size).any():
                return False
            # by division, since a product could overflow
            if (steps + leaf.more * own > (size - addresses) // leaf.row_bytes).any():
                return False
        return True


@dataclass(frozen=True)
class Attributes:
    """The stored form of the attributes of all episodes: numbers in columns, the rest as JSON.

    Attributes:
        numbers: see :class:`AttributeTable`.
        texts: the other attributes of each episode in their exact form; empty if it has none, None
            if no episode has any. If damage makes attributes unreadable, the text is ``null``.
    """

    numbers: dict[str, npt.NDArray[Any]]
    texts: Sequence[bytes] | None

    @classmethod
    def of(cls, table: AttributeTable) -> Attributes:
        """Convert a table to the stored form.

        Raises:
            InvalidEpisodeError: a value has no exact form.
        """
        if table.others is None:
            return cls(table.numbers, None)
        return cls(table.numbers, [_text(other) for other in table.others])

    @classmethod
    def gather(cls, rows: Sequence[Mapping[str, Any] | None]) -> Attributes:
        """Collect the attributes of each episode; None means that they cannot be read."""
        numbers = {}
        first = rows[0] if rows and None not in rows else None
        for name in first or ():
            column = _column([row.get(name) for row in rows if row is not None])
            if column is not None:
                numbers[name] = column
        texts = [
            b"null"
            if row is None
            else _text({key: value for key, value in row.items() if key not in numbers})
            for row in rows
        ]
        return cls(numbers, texts if any(texts) else None)

    def continues(self, before: Attributes) -> bool:
        """Return whether the columns are the same, so that :meth:`joined` is fast."""
        return {name: values.dtype for name, values in self.numbers.items()} == {
            name: values.dtype for name, values in before.numbers.items()
        }

    @classmethod
    def joined(cls, found: Sequence[Attributes]) -> Attributes | None:
        """Join the attributes of consecutive episodes; None if those of one cannot be read."""
        if not all(one.continues(found[0]) for one in found):
            tables = [table for one in found if (table := one.whole_table()) is not None]
            return cls.of(joined_tables(tables)) if len(tables) == len(found) else None
        numbers = {
            name: np.concatenate([one.numbers[name] for one in found]) for name in found[0].numbers
        }
        if all(one.texts is None for one in found):
            return cls(numbers, None)
        texts: list[bytes] = []
        for one in found:
            count = len(next(iter(one.numbers.values()), ()))
            texts += one.texts if one.texts is not None else [b""] * count
        return cls(numbers, texts)

    def numbers_of(self, name: str) -> list[Any] | None:
        """Return a column of numbers as a list of Python numbers, or None if there is none."""
        if name not in self._lists and name in self.numbers:
            self._lists[name] = self.numbers[name].tolist()
        return self._lists.get(name)

    @cached_property
    def _lists(self) -> dict[str, list[Any]]:
        return {}

    @cached_property
    def _columns(self) -> list[tuple[str, list[Any]]]:
        return [(name, self.numbers_of(name) or []) for name in self.numbers]

    def others(self, index: int) -> dict[str, Any] | None:
        """Return attributes of an episode that are not in columns, or None if unreadable."""
        text = self.texts[index] if self.texts is not None else b""
        return from_exact_form(json.loads(text)) if text else {}

    def whole_table(self) -> AttributeTable | None:
        """Return the attributes of all episodes, or None if those of one cannot be read."""
        if self.texts is None:
            return AttributeTable(self.numbers)
        return self.table(np.arange(len(self.texts)))

    def row(self, index: int) -> dict[str, Any] | None:
        """Return the attributes of an episode, or None if they cannot be read."""
        own = {name: values[index] for name, values in self._columns}
        if self.texts is None:
            return own
        others = self.others(index)
        return None if others is None else own | others

    def table(self, chosen: Ints, names: Collection[str] | None = None) -> AttributeTable | None:
        """Return the attributes of some episodes, or None if those of one cannot be read.

        Args:
            chosen: the episodes.
            names: the attributes to return; None means all.
        """
        numbers = {
            name: values[chosen]
            for name, values in self.numbers.items()
            if names is None or name in names
        }
        if self.texts is None or (names is not None and numbers.keys() >= set(names)):
            return AttributeTable(numbers)
        others = [self.others(index) for index in chosen.tolist()]
        if None in others:
            return None
        return AttributeTable(numbers, [other for other in others if other is not None])


def _text(values: Mapping[str, Any]) -> bytes:
    return json.dumps(exact_form(values, "attributes")).encode() if values else b""


def _column(values: list[Any]) -> npt.NDArray[Any] | None:
    """Return Python numbers as an array whose ``tolist`` gives equal ones, or None."""
    kinds = set(map(type, values))
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {float}:
        return np.array(values, np.float64)
    if kinds == {int}:
        least, most = min(values), max(values)
        if least >= -(2**63) and most < 2**63:
            return np.array(values, np.int64)
        if least >= 0 and most < 2**64:
            return np.array(values, np.uint64)
    return None


def joined_tables(tables: Sequence[AttributeTable]) -> AttributeTable:
    """Concatenate the attributes of the episodes of several tables."""
    if len(tables) == 1:
        return tables[0]
    numbers: dict[str, npt.NDArray[Any]] = {}
    for name in tables[0].numbers if tables else ():
        columns = [table.numbers.get(name) for table in tables]
        there = [column for column in columns if column is not None]
        if len(there) == len(tables) and len({column.dtype for column in there}) == 1:
            numbers[name] = np.concatenate(there)
    if all(table.others is None and table.numbers.keys() == numbers.keys() for table in tables):
        return AttributeTable(numbers)
    others = [
        {key: value for key, value in table[place].items() if key not in numbers}
        for table in tables
        for place in range(len(table))
    ]
    return AttributeTable(numbers, others)
