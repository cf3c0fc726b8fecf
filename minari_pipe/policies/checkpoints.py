"""Locate the intermediate checkpoints of a training."""

from __future__ import annotations

import math
from pathlib import Path


def checkpoint_folder(trained: Path, step: int) -> Path:
    """Return the folder in which a training saves the checkpoint of ``step``."""
    return trained / "checkpoints" / f"{step:012d}"


def checkpoint_steps(trained: Path) -> list[int]:
    """Return the steps of the checkpoints that a training saved, ascending."""
    folder = trained / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []


def share_step(share: float, total_timesteps: int) -> int:
    """Return the first step at which a share of the training's steps is done.

    Example:
        >>> share_step(0.25, 1_000)
        250
    """
    return math.ceil(round(share * total_timesteps, 6))  # 0.07 * 100 is 7.000000000000001
