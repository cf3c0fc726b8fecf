"""Stage ``train`` of a family: like :mod:`train`, but saves checkpoints and every episode."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from minari_pipe.pipeline.config.schema import Training
from minari_pipe.pipeline.execution.build import environment_factory
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.given_training import take_given
from minari_pipe.pipeline.stages.recorded_training import recorded_training
from minari_pipe.policies.checkpoints import checkpoint_steps
from minari_pipe.policies.training import train


def main(run: StageRun) -> None:
    """Run the stage: write ``train/``.

    It holds ``policy.zip`` (and ``normalize.npz``), the same files below ``checkpoints/STEP/``,
    and ``episodes/``, unless ``family.record_episodes`` is false.
    """
    if take_given(run):
        return
    policy, family = run.params.policy, run.family
    training, n_checkpoints = policy.train, family.n_checkpoints
    assert isinstance(training, Training)

    at = sorted(share for share in vars(family.at).values() if share is not None)

    def fill(out: Path) -> None:
        with ExitStack() as stack:
            vector_env = None
            if family.record_episodes:
                recorded = recorded_training(
                    out / "episodes", seed=training.seed, record_infos=family.record_infos
                )
                vector_env = stack.enter_context(recorded)
            train(
                environment_factory(run.params.env, run.root),
                n_checkpoints=n_checkpoints,
                checkpoints_at=at,
                vector_env=vector_env,
                out_dir=out,
                **policy.network,
                **vars(training),
            )

    reused = run.output_once("train", fill)
    saved = len(checkpoint_steps(run.folder / "train"))
    fewer = f" of {n_checkpoints}, at most one per training update" if saved < n_checkpoints else ""
    steps = f"{policy.algorithm}, {training.total_timesteps} steps"
    run.say(f"{steps}, {saved} checkpoints{fewer}{', finished before' if reused else ''}")


if __name__ == "__main__":
    run_stage("train", main)
