"""Locate the intermediate checkpoints of a training."""

from __future__ import annotations

from pathlib import Path


def checkpoint_folder(trained: Path, step: int) -> Path:
    """Return the folder in which a training saves the checkpoint of ``step``."""
    return trained / "checkpoints" / f"{step:012d}"


def checkpoint_steps(trained: Path) -> list[int]:
    """Return the steps of the checkpoints that a training saved, ascending."""
    folder = trained / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []
