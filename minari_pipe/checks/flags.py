"""Check that episodes end with a flag at the last step, in agreement with the time limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject, is_count
from minari_pipe.core.json_object import json_object


class Flags(Check):
    """Checks that ``terminations`` or ``truncations`` is set at the last step and only there."""

    name = "flags"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.is_sound or episode.n_steps is None:
            return
        last = episode.n_steps - 1
        early = False
        for name in ("terminations", "truncations"):
            steps = np.flatnonzero(getattr(episode, name)[:-1])
            if len(steps):
                early = True
                more = f" ({len(steps)} steps in all)" if len(steps) > 1 else ""
                yield self.error(
                    episode.path(name),
                    f"set at step {steps[0]}{more}; the episode continues to step {last}",
                )
        # An early flag and a missing one at the end are one fault.
        if not early and not (episode.terminations[last] or episode.truncations[last]):
            yield self.error(
                episode.path(),
                f"neither terminated nor truncated at its last step {last}; an episode that is "
                f"cut short must be truncated there",
            )


class TimeLimit(Check):
    """Warns of episode ends that contradict the environment's time limit.

    An episode is truncated at the limit; one that terminates may be truncated as well only there.
    If all truncated episodes have one length, that was their limit, whatever the spec says. So it
    was if most of them have it and no episode is longer; a collector may have closed the others.
    """

    name = "time_limit"
    warnings = ("both-flags", "not-truncated-at-limit", "time-limit-not-reached")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._limit = limit_of(subject.environment)
        self._n_episodes = 0
        self._found: dict[str, list[int]] = {"both-flags": [], "not-truncated-at-limit": []}
        """Indices of the episodes, by warning id."""
        self._lengths: Counter[int] = Counter()
        """Number of truncated episodes by length."""
        self._longest = 0

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.faults or not episode.n_steps:
            return
        self._n_episodes += 1
        self._longest = max(self._longest, episode.n_steps)
        terminated, truncated = bool(episode.terminations[-1]), bool(episode.truncations[-1])
        at_limit = self._limit is not None and episode.n_steps >= self._limit
        if not episode.is_verified:
            if terminated and truncated and not at_limit:
                self._found["both-flags"].append(episode.index)
            elif self._limit is not None and (
                episode.n_steps > self._limit or (at_limit and not truncated)
            ):
                self._found["not-truncated-at-limit"].append(episode.index)
        if truncated and not terminated:
            self._lengths[episode.n_steps] += 1
        yield from ()

    def finish(self) -> Iterator[Finding]:
        for id, what in (
            ("both-flags", "is both terminated and truncated, though no time limit ends it there"),
            ("not-truncated-at-limit", f"is not truncated at the time limit of {self._limit}"),
        ):
            if found := self._found[id]:
                total = f"{len(found)} of {self._n_episodes} episodes"
                yield self.warning(f"episode {found[0]} / truncations", f"{what}; {total}", id)
        if self._limit is None or not self._lengths:
            return
        length, n_truncated = max(self._lengths), self._lengths.total()
        alike = self._lengths[length]
        all_alike = alike == n_truncated >= 2
        most_alike = alike >= 3 and 4 * alike >= 3 * n_truncated and length == self._longest
        if length < self._limit and (all_alike or most_alike):
            which = f"all {alike}" if all_alike else f"{alike} of the {n_truncated}"
            yield self.warning(
                "metadata / env_spec",
                f"max_episode_steps is {self._limit}, but {which} truncated episodes "
                f"ended after {length} steps",
                "time-limit-not-reached",
            )


def limit_of(spec: str | None) -> int | None:
    """Return the ``max_episode_steps`` of an ``EnvSpec`` JSON, or ``None``."""
    try:
        found = json_object(spec or "{}").get("max_episode_steps")
    except ValueError:
        return None
    return int(found) if is_count(found) else None
