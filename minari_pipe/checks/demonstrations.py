"""Compare replayed demonstrations with the recordings, which another simulator may have made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minari_pipe.checks.base import Finding

WARNINGS = ("demonstration-observations", "demonstration-returns")

#: The 25 human door demonstrations were recorded in a simulator of 2018. Replayed today, their
#: median observation gap is 0.0015, and the recorded returns sum to 0.99 of the replayed ones.
OBSERVATIONS = 0.1
RETURNS = 0.1


def gap_findings(reports: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Warn of recordings that differ too much from their replay.

    Args:
        reports: one per episode, as ``DemonstrationPolicy.finish`` returns them.
    """
    gaps = [r["observation_gap_median"] for r in reports if r["observation_gap_median"] is not None]
    gap = float(np.median(gaps)) if gaps else 0.0
    if gap > OBSERVATIONS:
        largest = max(r["observation_gap_max"] or 0.0 for r in reports)
        yield Finding(
            "warning",
            "demonstrations",
            "observations",
            f"the median difference between replayed and recorded observations is {gap:.3g}, the "
            f"largest {largest:.3g}; check that the demonstrations are from this environment",
            id=WARNINGS[0],
        )
    pairs = [(r["recorded_return"], r["replayed_return"]) for r in reports]
    known = np.array([p for p in pairs if None not in p], dtype=np.float64).reshape(-1, 2)
    recorded, replayed = known.sum(axis=0)
    if abs(recorded - replayed) > RETURNS * np.abs(known).max(axis=1, initial=0).sum():
        yield Finding(
            "warning",
            "demonstrations",
            "rewards",
            f"the mean recorded return is {recorded / len(known):.2f}, the mean replayed return "
            f"{replayed / len(known):.2f}; check that the rewards are from this environment",
            id=WARNINGS[1],
        )
