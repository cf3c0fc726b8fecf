"""Where a training saves the checkpoints that it passes."""

from __future__ import annotations

from pathlib import Path


def checkpoint_folder(trained: Path, step: int) -> Path:
    """Where a training saved the checkpoint of ``step``."""
    return trained / "checkpoints" / f"{step:012d}"


def checkpoint_steps(trained: Path) -> list[int]:
    """The steps of the checkpoints that a training saved, ascending."""
    folder = trained / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []
