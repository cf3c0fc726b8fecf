"""Warn of duplicate episodes, and of different episodes with the same seed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.core.tree import leaves

#: Up to this length, episodes of whole numbers only, as in a grid, may repeat by chance.
CHANCE_STEPS = 16


class Duplicates(Check):
    """Warns of episodes with the same content, and of different ones with the same seed.

    The check keeps 16 bytes for the content and 16 for the start of an episode. Short episodes of
    whole numbers, and verified ones with their own seed, may repeat unless such repeats are more
    than half of the episodes. A combined dataset may have each seed once per parent.
    """

    name = "duplicates"
    warnings = ("duplicate-episodes", "equal-seeds")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._of_content: dict[bytes, int] = {}
        """Index of the first episode with some content, by its hash."""
        self._of_start: dict[bytes, int] = {}
        self._copies: list[tuple[int, int]] = []
        self._by_chance: list[tuple[int, int]] = []
        self._reset_alike: list[tuple[int, int]] = []
        self._starts: Counter[bytes] = Counter()

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.faults or not episode.n_steps:
            return
        self._n_episodes += 1
        start = _start(episode)
        known = self._of_start.get(start, episode.index) if start else episode.index
        if start:
            self._of_start.setdefault(start, episode.index)
        first = self._of_content.setdefault(_content(episode), episode.index)
        if first != episode.index:
            chance = not _has_fractions(episode) and episode.n_steps <= CHANCE_STEPS
            own_start = start and episode.is_verified and known == episode.index
            (self._by_chance if chance or own_start else self._copies).append(
                (episode.index, first)
            )
        elif start:
            self._starts[start] += 1
            if self._starts[start] > self._n_parents():
                self._reset_alike.append((episode.index, known))
        yield from ()

    def _n_parents(self) -> int:
        """Return how many datasets were combined into this one, at least 1."""
        metadata = self.subject.metadata
        made = metadata.get("minari_pipe")
        parents = made.get("parents") if isinstance(made, dict) else None
        return max(
            1,
            *(
                len(p)
                for p in (parents, metadata.get("combined_datasets"))
                if isinstance(p, list | dict)
            ),
            0,
        )

    def finish(self) -> Iterator[Finding]:
        copies = self._copies
        if len(self._by_chance) > self._n_episodes / 2:
            copies = sorted(copies + self._by_chance)
        for id, pairs, what in (
            ("duplicate-episodes", copies, "has the same data as"),
            ("equal-seeds", self._reset_alike, "was reset with the same seed and options as"),
        ):
            if pairs:
                (index, first), n = pairs[0], len(pairs)
                total = f"{n} of {self._n_episodes} episodes repeat an earlier one in this way"
                yield self.warning(f"episode {index}", f"{what} episode {first}; {total}", id)


def _start(episode: Episode) -> bytes | None:
    """Return a hash of the seed and the reset options, or ``None`` without a seed."""
    seed = episode.metadata.get("seed")
    if seed is None:
        return None
    options = episode.metadata.get("options")
    text = json.dumps([str(seed), options], sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _content(episode: Episode) -> bytes:
    """Return a hash of the actions, the rewards, and the first and the last observation.

    Pictures are large, and the actions decide which observations lie between these two.
    """
    found = hashlib.blake2b(digest_size=16)
    for tree, rows in (
        (episode.actions, slice(None)),
        (episode.rewards, slice(None)),
        (episode.observations, slice(None, None, max(1, episode.n_steps or 1))),
    ):
        for _, column in leaves(tree):
            part = column[rows]
            is_array = isinstance(part, np.ndarray) and part.dtype.kind != "O"
            found.update(np.ascontiguousarray(part).data if is_array else repr(part).encode())
    return found.digest()


def _has_fractions(episode: Episode) -> bool:
    return any(
        getattr(column, "dtype", np.dtype(object)).kind in "fc"
        for tree in (episode.observations, episode.actions)
        for _, column in leaves(tree)
    )
