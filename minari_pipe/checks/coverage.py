"""Count how much of a dataset a replay covered."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Coverage:
    """What was replayed, and how strictly."""

    applicable: bool = True
    reason: str = ""
    """Why the check is not applicable, or why values are not compared exactly."""
    replayed: int = 0
    """Episodes that were simulated again."""
    not_replayable: int = 0
    """Episodes with neither a seed nor a stored state."""
    not_selected: int = 0
    """Episodes left out because of ``options.replay_steps``."""
    faulty: int = 0
    """Episodes left out because another check found an error in them."""
    stepwise: int = 0
    """Episodes simulated step by step, each step from its recorded state or observation."""
    drifted: int = 0
    """Episodes that left the recording on other versions, so their rest is not verified."""
    largest_difference: float = 0.0
    """Largest absolute difference in steps that left the recording or the tolerance."""
    exact: bool = True
    tolerance: float = 0.0
    steps: int = 0
    """Recorded steps that were simulated again, each of them twice unless it diverged."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)
