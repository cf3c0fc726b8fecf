"""How much of a dataset a replay has covered."""

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
    """Episodes without a seed and without a stored state."""
    not_selected: int = 0
    """Episodes left out because of ``options.replay_steps``."""
    faulty: int = 0
    """Episodes left out because another check found an error in them."""
    stepwise: int = 0
    """Episodes of which each step was simulated from where the recording stood."""
    drifted: int = 0
    """Episodes that left the recording, on other versions, and are not verified from there on."""
    largest_difference: float = 0.0
    """Absolute, of the steps at which episodes left the recording or the tolerance."""
    exact: bool = True
    tolerance: float = 0.0
    steps: int = 0
    """Recorded steps that were simulated again, each of them twice unless it diverged."""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)
