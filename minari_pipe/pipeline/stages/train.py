"""Stage ``train``: train a Stable-Baselines3 policy and save a canonical checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from minari_pipe.pipeline.config.schema import Training
from minari_pipe.pipeline.execution.build import environment_factory
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.given_training import take_given
from minari_pipe.policies.training import train


def main(run: StageRun) -> None:
    """Run the stage: write ``train/policy.zip``, and ``normalize.npz`` with normalization."""
    if take_given(run):
        return
    own = run.stage == "train"
    policy = run.params.policy if own else run.params.ref_scores.expert
    assert policy is not None
    training = policy.train
    assert isinstance(training, Training)

    def fill(out: Path) -> None:
        train(
            environment_factory(run.params.env, run.root),
            out_dir=out,
            **policy.network,
            **vars(training),
        )

    reused = run.output_once(run.stage, fill)
    steps = f"{policy.algorithm}, {training.total_timesteps} steps"
    run.say(f"{steps}, finished before" if reused else steps)


if __name__ == "__main__":
    run_stage("train_expert" if "train_expert" in sys.argv[2:] else "train", main)
