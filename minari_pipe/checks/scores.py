"""Check that both reference scores exist and are finite, the expert's above the random one."""

from __future__ import annotations

from collections.abc import Iterator

from minari_pipe.checks.base import Check, Finding, is_count, shown
from minari_pipe.core.metadata import is_finite_number

NAMES = ("ref_min_score", "ref_max_score")
EPISODES = "num_episodes_average_score"


class Scores(Check):
    """Checks ``ref_min_score`` < ``ref_max_score``; without an environment both may be missing."""

    name = "scores"

    def begin(self) -> Iterator[Finding]:
        metadata = self.subject.metadata
        given = [name for name in NAMES if metadata.get(name) is not None]
        required = self.subject.options.require_scores and self.subject.environment is not None
        if not given and not required:
            return
        missing = [name for name in NAMES if name not in given]
        if missing:
            path = f"metadata / {missing[0]}" if given else "metadata"
            verb = "is missing" if given else f"{' and '.join(missing)} are missing"
            yield self.error(path, f"{verb}; normalized scores need both reference scores")
        wrong = [name for name in given if not is_finite_number(metadata[name])]
        for name in wrong:
            value = shown(repr(metadata[name]))
            yield self.error(f"metadata / {name}", f"is {value}, expected a finite number")
        low, high = (metadata.get(name, 0.0) for name in NAMES)
        if not missing and not wrong and not low < high:
            yield self.error(
                f"metadata / {NAMES[1]}",
                f"the expert scores {high}, not above the random policy's {low} (ref_min_score)",
            )
        episodes = metadata.get(EPISODES)
        if not given and episodes is None:
            return
        if not is_count(episodes) or episodes < 1:
            yield self.error(
                f"metadata / {EPISODES}", f"is {episodes!r}, expected a positive integer"
            )
