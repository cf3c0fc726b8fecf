"""Which checkpoint of a family's training a dataset is of: that nearest to a normalized score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.policy_refs import CHOOSING
from minari_pipe.pipeline.execution.stage import StageRun
from minari_pipe.pipeline.workspace import read_json
from minari_pipe.policies.checkpoints import checkpoint_folder


@dataclass(frozen=True)
class CheckpointScore:
    """What one saved checkpoint is worth."""

    step: int
    """Environment steps that it has learned from."""
    mean_return: float
    """Undiscounted, in reward units of the environment."""


def target_return(fraction: float, *, ref_min: float, ref_max: float) -> float:
    """The return whose normalized score is ``fraction``.

    Example:
        >>> target_return(0.25, ref_min=-1200.0, ref_max=-200.0)
        -950.0
    """
    return ref_min + fraction * (ref_max - ref_min)


def nearest(
    scores: Sequence[CheckpointScore], fraction: float, *, ref_min: float, ref_max: float
) -> CheckpointScore:
    """The checkpoint whose normalized score is nearest to ``fraction``; of equals the earliest.

    Args:
        scores: of all checkpoints.
        fraction: a normalized score, from 0 to 1.
        ref_min: mean return of the random policy, which may be negative.
        ref_max: mean return of the expert policy, likewise.

    Raises:
        ConfigError: there is no checkpoint, or a return is not finite.

    Example:
        >>> scores = [CheckpointScore(1000, -1100.0), CheckpointScore(2000, -400.0)]
        >>> nearest(scores, 0.25, ref_min=-1200.0, ref_max=-200.0)
        CheckpointScore(step=1000, mean_return=-1100.0)
    """
    if not scores:
        raise ConfigError("there is no checkpoint to choose; set family.n_checkpoints")
    for what, value in (
        ("ref_min_score", ref_min),
        ("ref_max_score", ref_max),
        *((f"the mean return of the checkpoint at step {s.step}", s.mean_return) for s in scores),
    ):
        if not math.isfinite(value):
            raise ConfigError(f"{what} is {value}, so no checkpoint can be chosen by its score")
    target = target_return(fraction, ref_min=ref_min, ref_max=ref_max)
    return min(scores, key=lambda score: (abs(score.mean_return - target), score.step))


def trained_folder(run: StageRun) -> Path | None:
    """The folder with the files of the trained policy that ``collect`` runs, if it was trained."""
    family = run.params.family_name
    if family is None:
        return run.folder / "train" if run.params.policy.train else None
    trained = family_folder(run) / "train"
    if run.params.kind in CHOOSING:
        return checkpoint_folder(trained, chosen_step(run))
    return trained


def chosen_step(run: StageRun) -> int:
    """The step of the checkpoint that the stage ``choose`` has chosen."""
    return int(read_json(run.folder / "chosen.json")["checkpoint_step"])


def family_folder(run: StageRun) -> Path:
    """``pipelines/FAMILY`` of a dataset's family."""
    return run.root / "pipelines" / str(run.params.family_name)


def read_scores(path: Path) -> list[CheckpointScore]:
    """What the stage ``checkpoint_scores`` wrote."""
    found: list[dict[str, Any]] = read_json(path)["checkpoints"]
    return [CheckpointScore(int(f["step"]), float(f["mean_return"])) for f in found]
