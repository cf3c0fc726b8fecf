"""Find where an episode's values lie in an HDF5 file, from its checked structure.

An episode gets an :class:`Entry` only if its bytes can be used without conversion and nothing
about it remains to be checked. All others are read through the structure of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.tree import Path
from minari_pipe.errors import MinariPipeError
from minari_pipe.storage.agreement import check_total
from minari_pipe.storage.attributes import EXACT
from minari_pipe.storage.hdf5.index.index import Attributes, Part
from minari_pipe.storage.hdf5.parser.reader import Dataset, Group
from minari_pipe.storage.hdf5.parser.source import DAMAGE, NotUnderstoodError
from minari_pipe.storage.hdf5.values import datasets_below, member
from minari_pipe.storage.segment import Ints, Leaf

#: groups of an episode that the standard names; all others are extra step data
GROUPS = frozenset({"observations", "actions", "rewards", "terminations", "truncations", "infos"})

_FLAGS = ("rewards", "terminations", "truncations")


@dataclass(frozen=True)
class Entry:
    """The location of the values of one episode.

    Attributes:
        steps: ``T``.
        leaves: the leaves; episodes of one structure share this object.
        addresses: address of the first byte of each leaf.
    """

    steps: int
    leaves: tuple[Leaf, ...]
    addresses: tuple[int, ...]


class Builder:
    """Collects the entries and attributes of the episodes of one file while they are read."""

    def __init__(
        self, count: int, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> None:
        self.spaces = (observation_space, action_space)
        self.entries: dict[int, Entry | None] = {}
        self._attributes: dict[int, Mapping[str, Any] | None] = {}
        self._count = count
        self._known: dict[tuple[Any, ...], tuple[Leaf, ...]] = {}

    def add(self, index: int, group: Any, attributes: Mapping[str, Any] | None) -> Entry | None:
        """Add an episode; return its entry, or None if it cannot have one.

        Args:
            index: its number.
            group: its group.
            attributes: as ``EpisodeFile.episode_metadata`` returns them; None if unreadable.
        """
        entry = None
        if attributes is not None:
            try:
                entry = self._entry(group, attributes)
            except (MinariPipeError, NotUnderstoodError, *DAMAGE):
                pass  # reading the episode reports the error
        self._attributes[index] = attributes
        self.entries[index] = entry
        return entry

    def seed(self, index: int) -> int | None:
        """Return the seed of an episode that has an entry."""
        attributes = self._attributes[index]
        return None if attributes is None else attributes.get("seed")

    @property
    def is_complete(self) -> bool:
        """Whether all episodes were added."""
        return len(self.entries) == self._count

    def parts(self) -> tuple[Ints, tuple[Part, ...]]:
        """Return the steps of each episode, -1 if it is in no part, and the parts."""
        steps = np.full(self._count, -1, np.int64)
        gathered: dict[tuple[Leaf, ...], list[tuple[int, Entry]]] = {}
        for index in range(self._count):
            entry = self.entries[index]
            if entry is not None:
                steps[index] = entry.steps
                gathered.setdefault(entry.leaves, []).append((index, entry))
        parts = []
        for found, members in gathered.items():
            episodes = np.array([index for index, _ in members], np.int64)
            addresses = np.array([entry.addresses for _, entry in members], np.int64)
            parts.append(Part(episodes, found, addresses.T.copy()))
        return steps, tuple(parts)

    def attributes(self) -> Attributes:
        """Return the attributes of all episodes."""
        return Attributes.gather([self._attributes[index] for index in range(self._count)])

    def _entry(self, group: Any, attributes: Mapping[str, Any]) -> Entry | None:
        if not isinstance(group, Group) or not _has_plain_seed(group.attrs, attributes):
            return None
        key: list[Any] = []
        addresses = []
        steps = None
        for path, dataset in self._datasets(group):
            place = dataset.place() if isinstance(dataset, Dataset) else None
            if place is None or _may_be_images(path, dataset):
                return None
            rows, *shape = dataset.shape
            if steps is None:
                steps = rows
            if rows - steps not in (0, 1):
                return None
            key.append((path, dataset.dtype.str, tuple(shape), rows - steps))
            addresses.append(place)
        if steps is None:
            return None
        check_total(attributes.get("total_steps"), steps)
        signature = tuple(key)
        if signature not in self._known:
            self._known[signature] = tuple(
                Leaf(path, np.dtype(dtype), shape, more) for path, dtype, shape, more in key
            )
        return Entry(steps, self._known[signature], tuple(addresses))

    def _datasets(self, group: Group) -> Iterator[tuple[Path, Any]]:
        """Yield path and dataset of every leaf, the rewards first."""
        for name in _FLAGS:
            yield (name,), member(group, name)
        for name, space in zip(("observations", "actions"), self.spaces, strict=True):
            yield from _of_space(member(group, name), space, (name,))
        if "infos" in group:
            slashes = json.loads(group.attrs.get("infos_slashes", "[]"))
            keys = {"/".join(path): tuple(path) for path in slashes}
            for path, dataset in datasets_below(member(group, "infos")):
                yield ("infos", *keys.get("/".join(path), path)), dataset
        for name in group:
            if name not in GROUPS:
                below = list(datasets_below(member(group, name)))
                if not below:  # an empty group is not a leaf
                    yield ("extras", name), None
                for path, dataset in below:
                    yield ("extras", name, *path), dataset


def _of_space(stored: Any, space: gym.Space[Any], path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _of_space(member(stored, key), part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _of_space(member(stored, f"_index_{number}"), part, (*path, number))
    else:
        yield path, stored


def _may_be_images(path: Path, dataset: Dataset) -> bool:
    """Return whether rows of bytes may be JPEG files instead of numbers."""
    if dataset.dtype != np.uint8 or dataset.ndim != 2 or dataset.maxshape is None:
        return False
    return path[0] in ("observations", "actions") or dataset.maxshape[0] is not None


def _has_plain_seed(stored: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Return whether the seed is a 64-bit integer, or absent."""
    if "seed" not in stored:
        return EXACT not in stored and attributes.get("seed") is None
    return isinstance(stored["seed"], np.integer) and type(attributes.get("seed")) is int
