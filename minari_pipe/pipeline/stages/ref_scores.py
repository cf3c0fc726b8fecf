"""Stage ``ref_scores``: mean returns of the random and the expert policy, with their spread."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minari_pipe.core.environments import registered_horizon, spec_json
from minari_pipe.core.scores import ReferenceScore
from minari_pipe.pipeline.config.policy_refs import as_measured, expert_training
from minari_pipe.pipeline.execution.block_task import BlockPlace, block_ranges
from minari_pipe.pipeline.execution.build import PolicyConfig, environment_factory, source_hashes
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.engines.base import Engine
from minari_pipe.pipeline.execution.measurement import MeasureBlock, measured
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import Scheduler, make_scheduler
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.workspace import dump_json, write_atomic
from minari_pipe.policies.evaluation import EpisodeResult
from minari_pipe.policies.rollout import require_time_limit

BLOCK_EPISODES = 25
HOW_MUCH = ("n_episodes", "max_stderr", "ref_min_score", "ref_max_score")
"""Keys of ``ref_scores`` on which a block's bytes do not depend, but through its own parameters."""

POLICIES = {"ref_min": "random", "ref_max": "expert"}


@dataclass(frozen=True)
class Measurement:
    """How a reference score is measured."""

    n_episodes: int | None
    """At most so many; ``None`` for as many as ``max_stderr`` needs."""
    max_stderr: float | None
    """Episodes are added, block by block, until the standard error of the mean is below."""
    seed: int
    n_envs: int

    def is_met(self, results: list[EpisodeResult]) -> bool:
        """Whether the standard error is small enough."""
        if self.max_stderr is None:
            return False
        score = ReferenceScore.from_returns([r.episode_return for r in results])
        return score.n > 1 and score.stderr < self.max_stderr


def measure(
    env: dict[str, Any],
    policy: PolicyConfig,
    measurement: Measurement,
    scheduler: Scheduler,
    progress: Progress,
) -> list[EpisodeResult]:
    """Results of the episodes of ``policy`` that a measurement needs, block by block.

    Args:
        env: the keys of ``ref_scores.eval_env`` in the config.
        policy: see :class:`policies.base.Policy`.
        measurement: how many episodes, and how.
        scheduler: makes the blocks; finished blocks of this very measurement are taken.
        progress: is told how far it is.

    Raises:
        MinariPipeError: a block failed for good; names the block, the episode and the step.
    """
    policy.make(
        BlockPlace(scheduler.place.root)
    )  # first, so that what is wrong with it is told once
    results: list[EpisodeResult] = []
    n = measurement.n_episodes
    ahead = n if measurement.max_stderr is None else None
    progress.begin(n, "episode")
    with progress:
        for record in scheduler.records(_works(env, policy, measurement), ahead=ahead):
            results += measured(scheduler, record, progress)
            if measurement.is_met(results):
                break
    return results


def _works(
    env: dict[str, Any], policy: PolicyConfig, measurement: Measurement
) -> Iterator[MeasureBlock]:
    for first, last in block_ranges(measurement.n_episodes, BLOCK_EPISODES):
        yield MeasureBlock(env, policy, first, last, measurement.seed, measurement.n_envs)


def summary(results: list[EpisodeResult], measurement: Measurement) -> dict[str, Any]:
    """Plain values that say what was measured and how sure it is."""
    score = ReferenceScore.from_returns(np.array([r.episode_return for r in results]))
    found: dict[str, Any] = {
        "mean": score.mean,
        "std": score.std,
        "stderr": score.stderr,
        "n": score.n,
        "seed": measurement.seed,
        "seeds": [r.seed for r in results],
    }
    successes = [r.success for r in results if r.success is not None]
    if successes:
        found["success_rate"] = sum(successes) / len(successes)
    return found


def horizon_warning(eval_env: dict[str, Any]) -> str | None:
    """What to say where the evaluation's horizon is not the registered one."""
    given = eval_env["kwargs"].get("max_episode_steps")
    registered = registered_horizon(eval_env["id"])
    if given is None or registered is None or given == registered:
        return None
    return (
        f"reference scores are measured over {given} steps, {eval_env['id']} is registered with "
        f"{registered}: they do not compare with scores of the registered environment; set "
        f"ref_scores.eval_env.id={eval_env['id']} for those"
    )


def _policy(run: StageRun, key: str) -> tuple[dict[str, Any], Path | None]:
    """The config of the policy behind a reference score, and the folder of its training, if any."""
    if key == "ref_min":
        return {"_target_": "minari_pipe.policies.RandomPolicy"}, None
    scores = run.params["ref_scores"]
    trained = expert_training(run.params)
    folder = run.folder / trained[0] if trained else None
    return as_measured(scores["expert"], scores), folder


def _measured(
    run: StageRun,
    engine: Engine,
    name: str,
    config: dict[str, Any],
    folder: Path | None,
    measurement: Measurement,
) -> list[EpisodeResult]:
    """Measure one policy, and say what came of it."""
    policy = PolicyConfig.of(config, "ref_scores.expert", run.root, folder)
    progress = Progress(f"ref_scores ({name})", run.say)
    # What the random policy is worth depends on no expert: the jobs of a sweep share it.
    is_random = name == POLICIES["ref_min"]
    without = [*HOW_MUCH, "expert", "deterministic"] if is_random else HOW_MUCH
    key = run.key(without=[f"ref_scores.{key}" for key in without], code_only=is_random)
    scheduler = make_scheduler(
        run, engine, name, ".json", key, [policy], progress, is_kept=is_random
    )
    results = measure(
        run.params["ref_scores"]["eval_env"], policy, measurement, scheduler, progress
    )
    score = ReferenceScore.from_returns([r.episode_return for r in results])
    reused = progress.n_reused
    also = f" ({reused} blocks were finished before)" if reused else ""
    run.say(f"{name} {score.mean:.2f} +- {score.std:.2f} over {score.n} episodes{also}")
    return results


def _missed(name: str, results: list[EpisodeResult], measurement: Measurement) -> str | None:
    """What to say where the episodes were too few for the standard error that is wanted."""
    if measurement.max_stderr is None or measurement.is_met(results):
        return None
    score = ReferenceScore.from_returns([r.episode_return for r in results])
    return (
        f"the {name} policy's mean return has a standard error of {score.stderr:.4g} after "
        f"{score.n} episodes, ref_scores.max_stderr is {measurement.max_stderr:g}; raise "
        f"ref_scores.n_episodes, or leave it out"
    )


def main(run: StageRun) -> None:
    """The command: parameters in, ``ref_scores.json`` and ``ref_returns.csv`` out."""
    scores = run.params["ref_scores"]
    eval_env = scores["eval_env"]
    measurement = Measurement(
        scores["n_episodes"], scores["max_stderr"], scores["seed"], scores["n_envs"]
    )
    env = environment_factory(eval_env, run.root)()
    require_time_limit(env)
    assert env.spec is not None
    found: dict[str, Any] = {
        # Lists, because `dvc metrics show` makes a column of everything else.
        "eval_env": [{"id": env.spec.id, "horizon": env.spec.max_episode_steps}],
        "packages": [f"{n}=={v}" for n, v in run.params["packages"]["ref_scores"].items()],
        "warnings": [],
    }
    env_spec = spec_json(env.spec)
    env.close()
    rows: list[tuple[Any, ...]] = []
    undeclared = [key for key in POLICIES if scores[f"{key}_score"] is None]
    for key in POLICIES.keys() - undeclared:
        declared = float(scores[f"{key}_score"])
        found[f"{key}_score"] = declared
        found[key] = {"mean": declared, "declared": True}
    with make_engine(run.params["engine"]) if undeclared else nullcontext() as engine:
        for key in undeclared:
            name = POLICIES[key]
            config, folder = _policy(run, key)
            assert engine is not None
            results = _measured(run, engine, name, config, folder, measurement)
            found[key] = {
                **summary(results, measurement),
                "policy": [str(config["_target_"])],
                "files": [source_hashes(config, run.root, folder)],
            }
            found[f"{key}_score"] = found[key]["mean"]
            rows += [
                (name, r.episode, r.seed, repr(r.episode_return), r.n_steps, r.success)
                for r in results
            ]
            if missed := _missed(name, results, measurement):
                run.say(f"warning: {missed}")
                found["warnings"].append(missed)
    if len(rows) and (warning := horizon_warning(eval_env)):
        run.say(f"warning: {warning}")
        found["warnings"].append(warning)
    returns = run.folder / "ref_returns.csv"
    with returns.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "episode", "seed", "return", "n_steps", "success"])
        writer.writerows(rows)
    write_atomic(run.folder / "eval_env.json", env_spec + "\n")
    write_atomic(run.folder / "ref_scores.json", dump_json(found))


if __name__ == "__main__":
    run_stage("ref_scores", main)
