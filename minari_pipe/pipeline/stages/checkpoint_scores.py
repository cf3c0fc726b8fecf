"""Stage ``checkpoint_scores``: measure the mean return of each saved checkpoint."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

from minari_pipe.core.scores import ReferenceScore
from minari_pipe.pipeline.execution.block_task import block_ranges
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.measurement import MeasureBlock, measured
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import make_scheduler
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.ref_scores import BLOCK_EPISODES
from minari_pipe.pipeline.workspace import dump_json, write_atomic
from minari_pipe.policies.checkpoints import checkpoint_folder, checkpoint_steps


def returns_of_each(run: StageRun, policies: Sequence[PolicyConfig]) -> list[list[float]]:
    """Return the episode returns of each policy; all blocks go to the workers at once."""
    own, scores = run.family.checkpoint_scores, run.params.ref_scores
    n, eval_env = own.n_episodes, scores.environment
    works = [
        MeasureBlock(eval_env, policy, first, last, own.seed, scores.n_envs)
        for policy in policies
        for first, last in block_ranges(n, BLOCK_EPISODES)
    ]
    progress = Progress("checkpoint_scores", run.say)
    with make_engine(run.params.engine) as engine, progress:
        scheduler = make_scheduler(run, engine, "blocks", ".json", run.key(), policies, progress)
        progress.begin(n * len(policies), "episode")
        returns: list[list[float]] = [[] for _ in policies]
        for work, record in zip(works, scheduler.records(works, ahead=len(works)), strict=True):
            results = measured(scheduler, record, progress)
            returns[policies.index(work.policy)] += [r.episode_return for r in results]
    progress.tell_reused(len(works))
    return returns


def main(run: StageRun) -> None:
    """Run the stage: read ``train/``, write ``checkpoint_scores.json`` and its CSV file."""
    own = run.family.checkpoint_scores
    settings = run.params.policy.as_measured(run.params.ref_scores)
    trained = run.folder / "train"
    steps = checkpoint_steps(trained)
    policies = [
        PolicyConfig.of(settings, "policy", run.root, checkpoint_folder(trained, step))
        for step in steps
    ]
    found: list[dict[str, Any]] = []
    for step, episode_returns in zip(steps, returns_of_each(run, policies), strict=True):
        score = ReferenceScore.from_returns(episode_returns)
        found.append(
            {
                "step": step,
                "mean_return": score.mean,
                "std": score.std,
                "stderr": score.stderr,
                "n": score.n,
            }
        )
    returns = run.folder / "checkpoint_returns.csv"
    with returns.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "mean_return", "std", "n"])
        writer.writerows((f["step"], f["mean_return"], f["std"], f["n"]) for f in found)
    write_atomic(
        run.folder / "checkpoint_scores.json",
        dump_json({"seed": own.seed, "checkpoints": found}),
    )
    means = " ".join(f"{f['mean_return']:.1f}" for f in found)
    run.say(f"mean returns over {own.n_episodes} episodes each: {means}")


if __name__ == "__main__":
    run_stage("checkpoint_scores", main)
