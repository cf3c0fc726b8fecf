"""Stage ``collect``: run the policy and record its episodes, block by block, into ``episodes/``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from tqdm import tqdm

from minari_pipe.environments import spec_json
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.blocks import BlockStore
from minari_pipe.pipeline.build import environment_factory, make_policy, source_hashes
from minari_pipe.pipeline.stage import StageRun, run_stage
from minari_pipe.pipeline.swap import copy_file
from minari_pipe.pipeline.workspace import dump_json
from minari_pipe.policies.base import Policy
from minari_pipe.rollout import run_episodes
from minari_pipe.spaces import serialize_space
from minari_pipe.storage.hdf5_file import EpisodeFile


@dataclass(frozen=True)
class Collection:
    """How much to collect, and how; the keys of ``collect`` in the config."""

    n_episodes: int | None
    n_steps: int | None
    exact: bool
    seed: int
    block_episodes: int
    n_envs: int
    record_infos: bool
    record_state: bool


def collect(
    *,
    make_env: Callable[[], gym.Env],
    policy: Policy,
    collection: Collection,
    blocks: BlockStore,
    out: Path,
    files: dict[str, str],
    say: Callable[[str], None],
) -> None:
    """Collect episodes and copy them into ``out``.

    Writes ``out/block_*.hdf5`` (episodes in the layout of the standard), and ``out/episodes.json``:
    spaces, env_spec, totals, where the last episode is cut, and what the policy reports of each
    episode.

    Args:
        make_env: makes the environment.
        policy: see :class:`policies.base.Policy`.
        collection: how much to collect.
        blocks: finished blocks of this very collection are taken from here.
        out: an empty folder.
        files: sha256 of the files that the policy was made from.
        say: tells the user one line.

    Raises:
        ConfigError: more episodes are asked for than the policy can make.
        UnsupportedSpaceError: the environment has a space that the standard cannot store.
        InvalidEpisodeError: the environment or the policy failed in an episode.
    """
    n_episodes = _n_episodes(policy, collection)
    described = _described(make_env)  # first, so that what cannot be stored is not collected
    limit = math.inf if collection.n_steps is None else collection.n_steps
    episodes: list[dict[str, Any]] = []
    used: list[str] = []
    n_steps = 0
    total = n_episodes if n_episodes is not None else collection.n_steps
    unit = "episode" if n_episodes is not None else "step"
    with tqdm(total=total, desc="collect", unit=unit, disable=None) as bar:
        for index in itertools.count():
            first = index * collection.block_episodes
            last = first + collection.block_episodes
            numbers = range(first, last if n_episodes is None else min(last, n_episodes))
            if not numbers or n_steps >= limit:
                break

            def make(path: Path, numbers: range = numbers, left: float = limit - n_steps) -> dict:
                return _write_block(path, make_env, policy, collection, numbers, left, bar, unit)

            n_before = blocks.n_reused
            record = blocks.get(index, make)
            if blocks.n_reused > n_before:
                steps = sum(e["n_steps"] for e in record["episodes"])
                bar.update(len(record["episodes"]) if unit == "episode" else steps)
            episodes += record["episodes"]
            n_steps += sum(e["n_steps"] for e in record["episodes"])
            copy_file(blocks.path(index), out / blocks.path(index).name)
            used.append(blocks.path(index).name)
    if collection.n_steps is not None and n_steps < limit:
        raise ConfigError(
            f"collect.n_steps is {collection.n_steps}, the policy's episodes have {n_steps} steps"
        )
    cut = n_steps - limit if collection.exact and n_steps > limit else 0
    if cut:
        episodes[-1] = {**episodes[-1], "n_steps": int(episodes[-1]["n_steps"] - cut)}
    if blocks.n_reused:
        say(f"{blocks.n_reused} of {len(used)} blocks were finished before")
    index_file = {
        "blocks": used,
        "cut_last_episode_to": episodes[-1]["n_steps"] if cut else None,
        "total_episodes": len(episodes),
        "total_steps": sum(e["n_steps"] for e in episodes),
        **described,
        "files": files,
        "reports": [e["report"] for e in episodes if e["report"] is not None],
    }
    (out / "episodes.json").write_text(dump_json(index_file), encoding="utf-8")
    say(f"{index_file['total_episodes']} episodes, {index_file['total_steps']} steps")


def _described(make_env: Callable[[], gym.Env]) -> dict[str, Any]:
    env = make_env()
    try:
        assert env.spec is not None
        return {
            "env_spec": spec_json(env.spec),
            "observation_space": serialize_space(env.observation_space),
            "action_space": serialize_space(env.action_space),
        }
    finally:
        env.close()


def _n_episodes(policy: Policy, collection: Collection) -> int | None:
    offered = policy.n_episodes()
    if offered is not None and (collection.n_episodes or 0) > offered:
        raise ConfigError(
            f"collect.n_episodes is {collection.n_episodes}, the policy has {offered} episodes"
        )
    if collection.n_episodes is None and collection.n_steps is None:
        return offered
    return collection.n_episodes if collection.n_episodes is not None else offered


def _write_block(
    path: Path,
    make_env: Callable[[], gym.Env],
    policy: Policy,
    collection: Collection,
    numbers: range,
    left: float,
    bar: tqdm,
    unit: str,
) -> dict[str, Any]:
    """Run the episodes ``numbers`` into ``path`` until there are ``left`` steps.

    Returns what to remember of each episode.
    """
    episodes: list[dict[str, Any]] = []
    with EpisodeFile.create(path) as file:
        for number, buffer in zip(
            numbers,
            run_episodes(
                make_env,
                policy,
                numbers,
                seed=collection.seed,
                n_envs=collection.n_envs,
                record_infos=collection.record_infos,
                record_state=collection.record_state,
                on_step=bar.update if unit == "step" else lambda n: None,
            ),
            strict=True,
        ):
            report = policy.finish(number, buffer)
            file.append(buffer)
            episodes.append({"episode": number, "n_steps": len(buffer), "report": report})
            left -= len(buffer)
            if unit == "episode":
                bar.update()
            if left <= 0:
                break
    return {"episodes": episodes}


def main(run: StageRun) -> None:
    """The command: parameters in, ``episodes/`` out."""
    params = run.params
    trained = run.folder / "train" if params["policy"].get("train") else None
    policy = make_policy(params["policy"], where="policy", root=run.root, trained=trained)
    with run.output("episodes") as out:
        collect(
            make_env=environment_factory(params["env"], run.root),
            policy=policy,
            collection=Collection(**params["collect"]),
            blocks=BlockStore(run.scratch / "blocks", ".hdf5"),
            out=out,
            files=source_hashes(params["policy"], run.root, trained),
            say=run.say,
        )


if __name__ == "__main__":
    run_stage("collect", main)
