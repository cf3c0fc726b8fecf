"""Stage ``ref_scores``: measure mean return and spread of the random and the expert policy."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.environments import registered_horizon
from minari_pipe.core.scores import ReferenceScore
from minari_pipe.pipeline.config.policy_refs import expert_training
from minari_pipe.pipeline.config.schema import RANDOM, Environment, PolicySettings, ReferenceScores
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
#: Keys of ``ref_scores`` that affect a block's bytes only through the block's own parameters.
HOW_MUCH = ("n_episodes", "max_stderr", "ref_min_score", "ref_max_score")

POLICIES = {"ref_min": "random", "ref_max": "expert"}


def is_met(scores: ReferenceScores, results: list[EpisodeResult]) -> bool:
    """Return whether the standard error is below ``scores.max_stderr``; False without a limit."""
    if scores.max_stderr is None:
        return False
    score = ReferenceScore.from_returns([r.episode_return for r in results])
    return score.n > 1 and score.stderr < scores.max_stderr


def measure(
    policy: PolicyConfig,
    scores: ReferenceScores,
    scheduler: Scheduler,
    progress: Progress,
) -> list[EpisodeResult]:
    """Run ``policy`` block by block until the measurement is complete, and return the results.

    Args:
        policy: see :class:`policies.base.Policy`.
        scores: how many episodes to measure, and in which environment.
        scheduler: runs the blocks, and reuses finished blocks of the same measurement.
        progress: shows the progress.

    Raises:
        MinariPipeError: all retries of a block failed; names the block, the episode and the step.
    """
    policy.make(
        BlockPlace(scheduler.place.root)
    )  # made once before all blocks, so that an error in it is reported once
    results: list[EpisodeResult] = []
    n = scores.n_episodes
    ahead = n if scores.max_stderr is None else None
    progress.begin(n, "episode")
    with progress:
        for record in scheduler.records(_works(policy, scores), ahead=ahead):
            results += measured(scheduler, record, progress)
            if is_met(scores, results):
                break
    return results


def _works(policy: PolicyConfig, scores: ReferenceScores) -> Iterator[MeasureBlock]:
    for first, last in block_ranges(scores.n_episodes, BLOCK_EPISODES):
        yield MeasureBlock(scores.environment, policy, first, last, scores.seed, scores.n_envs)


def summary(results: list[EpisodeResult], seed: int) -> dict[str, Any]:
    """Return mean, spread, standard error and seeds of a measurement as plain values."""
    score = ReferenceScore.from_returns(np.array([r.episode_return for r in results]))
    found: dict[str, Any] = {
        "mean": score.mean,
        "std": score.std,
        "stderr": score.stderr,
        "n": score.n,
        "seed": seed,
        "seeds": [r.seed for r in results],
    }
    successes = [r.success for r in results if r.success is not None]
    if successes:
        found["success_rate"] = sum(successes) / len(successes)
    return found


def horizon_warning(eval_env: Environment) -> str | None:
    """Return a warning if the evaluation's horizon is not the registered one."""
    given = eval_env.kwargs.get("max_episode_steps")
    registered = registered_horizon(eval_env.id)
    if given is None or registered is None or given == registered:
        return None
    return (
        f"reference scores are measured over {given} steps, but {eval_env.id} is registered with "
        f"{registered}: they are not comparable with scores of the registered environment; to "
        f"measure those, set ref_scores.eval_env.id={eval_env.id}"
    )


def _policy(run: StageRun, key: str) -> tuple[PolicySettings, Path | None]:
    """Return the policy behind a reference score, and the folder of its training, if any."""
    if key == "ref_min":
        return RANDOM, None
    scores = run.params.ref_scores
    assert scores.expert is not None
    trained = expert_training(run.params)
    return scores.expert.as_measured(scores), run.folder / trained[0] if trained else None


def _measured(
    run: StageRun, engine: Engine, name: str, settings: PolicySettings, folder: Path | None
) -> list[EpisodeResult]:
    """Measure one policy, and print the result."""
    policy = PolicyConfig.of(settings, "ref_scores.expert", run.root, folder)
    progress = Progress(f"ref_scores ({name})", run.say)
    # The random policy's score does not depend on the expert: the jobs of a sweep share it.
    is_random = name == POLICIES["ref_min"]
    without = [*HOW_MUCH, "expert", "deterministic"] if is_random else HOW_MUCH
    key = run.key(without=[f"ref_scores.{key}" for key in without], code_only=is_random)
    scheduler = make_scheduler(
        run, engine, name, ".json", key, [policy], progress, is_kept=is_random
    )
    results = measure(policy, run.params.ref_scores, scheduler, progress)
    score = ReferenceScore.from_returns([r.episode_return for r in results])
    reused = progress.n_reused
    blocks = "1 block was" if reused == 1 else f"{reused} blocks were"
    also = f" ({blocks} finished before)" if reused else ""
    rate = summary(results, 0).get("success_rate")
    success = "" if rate is None else f", success {rate:.2f}"
    run.say(f"{name} {score.mean:.2f} +- {score.std:.2f}{success} over {score.n} episodes{also}")
    return results


def _missed(name: str, results: list[EpisodeResult], scores: ReferenceScores) -> str | None:
    """Return a warning if there were too few episodes to reach ``max_stderr``."""
    if scores.max_stderr is None or is_met(scores, results):
        return None
    score = ReferenceScore.from_returns([r.episode_return for r in results])
    return (
        f"the {name} policy's mean return has a standard error of {score.stderr:.4g} after "
        f"{score.n} episodes, but ref_scores.max_stderr is {scores.max_stderr:g}; raise "
        f"ref_scores.n_episodes, or leave it out"
    )


def main(run: StageRun) -> None:
    """Run the stage: write ``ref_scores.json``, ``ref_returns.csv`` and ``eval_env.json``."""
    scores = run.params.ref_scores
    eval_env = scores.environment
    env = environment_factory(replace(eval_env, policy_wrappers=[]), run.root)()
    require_time_limit(env)
    assert env.spec is not None
    found: dict[str, Any] = {
        # As lists, since `dvc metrics show` makes a column of every other value.
        "eval_env": [{"id": env.spec.id, "horizon": env.spec.max_episode_steps}],
        "packages": [f"{n}=={v}" for n, v in run.params.packages["ref_scores"].items()],
        "warnings": [],
    }
    env_spec = spec_json(env.spec)
    env.close()
    rows: list[tuple[Any, ...]] = []
    given = {"ref_min": scores.ref_min_score, "ref_max": scores.ref_max_score}
    undeclared = [key for key, score in given.items() if score is None]
    for key, score in given.items():
        if score is None:
            continue
        declared = float(score)
        found[f"{key}_score"] = declared
        found[key] = {"mean": declared, "declared": True}
    with make_engine(run.params.engine) if undeclared else nullcontext() as engine:
        for key in undeclared:
            name = POLICIES[key]
            settings, folder = _policy(run, key)
            assert engine is not None
            results = _measured(run, engine, name, settings, folder)
            found[key] = {
                **summary(results, scores.seed),
                "policy": [settings.target],
                "files": [source_hashes(settings, run.root, folder)],
                **({"noise": settings.arguments["noise"]} if settings.noise else {}),
            }
            found[f"{key}_score"] = found[key]["mean"]
            rows += [
                (name, r.episode, r.seed, repr(r.episode_return), r.n_steps, r.success)
                for r in results
            ]
            if missed := _missed(name, results, scores):
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
