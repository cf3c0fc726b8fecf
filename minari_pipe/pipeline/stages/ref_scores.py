"""Stage ``ref_scores``: mean returns of the random and the expert policy, with their spread."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from minari_pipe.environments import registered_horizon, spec_json
from minari_pipe.evaluation import EpisodeResult, evaluate
from minari_pipe.pipeline.blocks import BlockStore
from minari_pipe.pipeline.build import environment_factory, make_policy, source_hashes
from minari_pipe.pipeline.stage import StageRun, run_stage
from minari_pipe.pipeline.uses import expert_training
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic
from minari_pipe.policies.base import Policy
from minari_pipe.scores import ReferenceScore

BLOCK_EPISODES = 25


@dataclass(frozen=True)
class Measurement:
    """How a reference score is measured."""

    n_episodes: int
    seed: int
    n_envs: int


def measure(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    measurement: Measurement,
    blocks: BlockStore,
    *,
    name: str,
) -> list[EpisodeResult]:
    """Results of ``measurement.n_episodes`` episodes of ``policy``, block by block.

    Args:
        make_env: makes the evaluation environment.
        policy: see :class:`policies.base.Policy`.
        measurement: how many episodes, and how.
        blocks: finished blocks of this very measurement are taken from here.
        name: what the progress bar says.
    """
    results: list[EpisodeResult] = []
    n = measurement.n_episodes
    with tqdm(total=n, desc=f"ref_scores ({name})", unit="episode", disable=None) as bar:
        for index, first in enumerate(range(0, n, BLOCK_EPISODES)):
            numbers = range(first, min(first + BLOCK_EPISODES, n))

            def make(path: Path, numbers: range = numbers) -> dict[str, Any]:
                found = []
                for result in evaluate(
                    make_env,
                    policy,
                    numbers,
                    seed=measurement.seed,
                    n_envs=measurement.n_envs,
                ):
                    found.append(result.to_json())
                    bar.update()
                path.write_text(dump_json(found), encoding="utf-8")
                return {}

            blocks.get(index, make)
            results += [EpisodeResult(**r) for r in read_json(blocks.path(index))]
            bar.update(len(results) - bar.n)
    return results


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


def main(run: StageRun) -> None:
    """The command: parameters in, ``ref_scores.json`` and ``ref_returns.csv`` out."""
    scores = run.params["ref_scores"]
    eval_env = scores["eval_env"]
    measurement = Measurement(scores["n_episodes"], scores["seed"], scores["n_envs"])
    make_env = environment_factory(eval_env, run.root)
    env = make_env()
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
    random = {"_target_": "minari_pipe.policies.RandomPolicy"}
    for key, name, config in (
        ("ref_min", "random", random),
        ("ref_max", "expert", scores["expert"]),
    ):
        declared = scores[f"{key}_score"]
        if declared is not None:
            found[f"{key}_score"] = float(declared)
            found[key] = {"mean": float(declared), "declared": True}
            continue
        if "deterministic" in config:
            config = {**config, "deterministic": scores["deterministic"]}
        trained = [run.folder / stage for stage in expert_training(run.params)]
        folder = trained[0] if trained and key == "ref_max" else None
        policy = make_policy(config, where="ref_scores.expert", root=run.root, trained=folder)
        blocks = BlockStore(run.scratch / name, ".json")
        results = measure(make_env, policy, measurement, blocks, name=name)
        found[key] = {
            **summary(results, measurement),
            "policy": [str(config["_target_"])],
            "files": [source_hashes(config, run.root, folder)],
        }
        found[f"{key}_score"] = found[key]["mean"]
        rows += [
            (name, r.episode, r.seed, repr(r.episode_return), r.n_steps, r.success) for r in results
        ]
        reused = f" ({blocks.n_reused} blocks were finished before)" if blocks.n_reused else ""
        run.say(
            f"{name} {found[key]['mean']:.2f} +- {found[key]['std']:.2f} "
            f"over {len(results)} episodes{reused}"
        )
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
