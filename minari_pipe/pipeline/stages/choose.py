"""Stage ``choose``: choose a checkpoint of a family's training.

It is the one nearest to ``family.fraction``, or, if ``family.at`` has a share of the training steps
for this kind of dataset, the first one after it.

This is a separate stage so that episodes are not collected again if new scores lead to the same
choice.
"""

from __future__ import annotations

from minari_pipe.pipeline.config.schema import Training
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.chosen_checkpoint import (
    CheckpointScore,
    family_folder,
    nearest,
    read_scores,
    saved_at,
    target_return,
)
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic

#: normalized score by which a checkpoint may miss the one that is asked for
_FAR = 0.2


def main(run: StageRun) -> None:
    """Run the stage: choose a checkpoint, and write ``chosen.json``."""
    checkpoints = read_scores(family_folder(run) / "checkpoint_scores.json")
    share = run.family.share
    if share is not None:
        training = run.params.policy.train
        assert isinstance(training, Training)
        found = saved_at(checkpoints, share, training.total_timesteps)
        run.say(
            f"chose the checkpoint at step {found.step}, after {share:.2%} of "
            f"{training.total_timesteps} steps: mean return {found.mean_return:.2f}"
        )
        _write(run, found, share=share)
        return
    scores = read_json(family_folder(run) / "ref_scores.json")
    low, high = float(scores["ref_min_score"]), float(scores["ref_max_score"])
    fraction = float(run.family.fraction)
    found = nearest(checkpoints, fraction, ref_min=low, ref_max=high)
    target = target_return(fraction, ref_min=low, ref_max=high)
    run.say(
        f"chose the checkpoint at step {found.step}: mean return {found.mean_return:.2f}, the "
        f"nearest of {len(checkpoints)} to {target:.2f}, {fraction:g} of the way from {low:.2f} "
        f"(random) to {high:.2f} (expert)"
    )
    score = (found.mean_return - low) / (high - low)
    if abs(score - fraction) > _FAR:
        run.say(
            f"warning: its normalized score is {score:.2f}, far from {fraction:g}: save more "
            "checkpoints with family.n_checkpoints, or choose another family.fraction"
        )
    _write(run, found, fraction=fraction)


def _write(run: StageRun, found: CheckpointScore, **rule: float) -> None:
    chosen = {
        "checkpoint_step": found.step,
        "checkpoint_mean_return": found.mean_return,
        **rule,
    }
    write_atomic(run.folder / "chosen.json", dump_json(chosen))


if __name__ == "__main__":
    run_stage("choose", main)
