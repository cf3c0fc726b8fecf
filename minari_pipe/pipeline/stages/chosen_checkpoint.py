"""Chooses a checkpoint of a family's training, by its score or by its step."""

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
from minari_pipe.policies.checkpoints import checkpoint_folder, share_step


@dataclass(frozen=True)
class CheckpointScore:
    """The measured mean return of one saved checkpoint."""

    step: int
    """Environment steps of training before the checkpoint."""
    mean_return: float
    """Undiscounted, in reward units of the environment."""


def target_return(fraction: float, *, ref_min: float, ref_max: float) -> float:
    """Return the episode return whose normalized score is ``fraction``.

    Example:
        >>> target_return(0.25, ref_min=-1200.0, ref_max=-200.0)
        -950.0
    """
    return ref_min + fraction * (ref_max - ref_min)


def nearest(
    scores: Sequence[CheckpointScore], fraction: float, *, ref_min: float, ref_max: float
) -> CheckpointScore:
    """Return the checkpoint whose normalized score is nearest to ``fraction``; first at ties.

    Args:
        scores: the scores of all checkpoints.
        fraction: a normalized score, from 0 to 1.
        ref_min: mean return of the random policy; may be negative.
        ref_max: mean return of the expert policy; may be negative.

    Raises:
        ConfigError: there are no checkpoints, or a return is not finite.

    Example:
        >>> scores = [CheckpointScore(1000, -1100.0), CheckpointScore(2000, -400.0)]
        >>> nearest(scores, 0.25, ref_min=-1200.0, ref_max=-200.0)
        CheckpointScore(step=1000, mean_return=-1100.0)
    """
    _check_any(scores)
    for what, value in (
        ("ref_min_score", ref_min),
        ("ref_max_score", ref_max),
        *((f"the mean return of the checkpoint at step {s.step}", s.mean_return) for s in scores),
    ):
        if not math.isfinite(value):
            raise ConfigError(f"{what} is {value}, so no checkpoint can be chosen by its score")
    target = target_return(fraction, ref_min=ref_min, ref_max=ref_max)
    return min(scores, key=lambda score: (abs(score.mean_return - target), score.step))


def saved_at(
    scores: Sequence[CheckpointScore], share: float, total_timesteps: int
) -> CheckpointScore:
    """Return the first checkpoint that was saved after a share of the training steps.

    Args:
        scores: the scores of all checkpoints.
        share: above 0, at most 1.
        total_timesteps: number of steps that the training was to take.

    Returns:
        The last checkpoint, if all are earlier.

    Raises:
        ConfigError: there are no checkpoints.

    Example:
        >>> scores = [CheckpointScore(1000, -1100.0), CheckpointScore(2000, -400.0)]
        >>> saved_at(scores, 0.6, total_timesteps=2000)
        CheckpointScore(step=2000, mean_return=-400.0)
    """
    _check_any(scores)
    ordered = sorted(scores, key=lambda score: score.step)
    step = share_step(share, total_timesteps)
    return next((score for score in ordered if score.step >= step), ordered[-1])


def _check_any(scores: Sequence[CheckpointScore]) -> None:
    if not scores:
        raise ConfigError("no checkpoint to choose from; set family.n_checkpoints")


def trained_folder(run: StageRun) -> Path | None:
    """Return the folder of the trained policy that ``collect`` runs, ``None`` if not trained."""
    family = run.params.family_name
    if family is None:
        return run.folder / "train" if run.params.policy.train else None
    trained = family_folder(run) / "train"
    if run.params.kind in CHOOSING:
        return checkpoint_folder(trained, chosen_step(run))
    return trained


def chosen_step(run: StageRun) -> int:
    """Return the step of the checkpoint that the stage ``choose`` chose."""
    return int(read_json(run.folder / "chosen.json")["checkpoint_step"])


def family_folder(run: StageRun) -> Path:
    """Return the folder ``pipelines/FAMILY`` of a dataset's family."""
    return run.root / "pipelines" / str(run.params.family_name)


def read_scores(path: Path) -> list[CheckpointScore]:
    """Read the scores that the stage ``checkpoint_scores`` wrote."""
    found: list[dict[str, Any]] = read_json(path)["checkpoints"]
    return [CheckpointScore(int(f["step"]), float(f["mean_return"])) for f in found]
