"""Ends of episodes: flags are set at the last step, and only there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding


class Flags(Check):
    """No ``terminations`` or ``truncations`` before the last step, at least one of them there."""

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
                    f"set at step {steps[0]}{more}; the episode goes on to step {last}",
                )
        # A flag that was moved forward leaves none at the end: that is the same fault.
        if not early and not (episode.terminations[last] or episode.truncations[last]):
            yield self.error(
                episode.path(),
                f"neither terminated nor truncated at its last step {last}; an episode that was "
                f"cut short is truncated there",
            )
