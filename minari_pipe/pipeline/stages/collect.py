"""Stage ``collect``: run the policy and record its episodes, block by block, into ``episodes/``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.files.swap import copy_file
from minari_pipe.core.spaces import serialize_space
from minari_pipe.errors import ConfigError, UnsupportedSpaceError
from minari_pipe.pipeline.config.schema import Collect, Environment
from minari_pipe.pipeline.execution.block_task import BlockPlace, block_ranges
from minari_pipe.pipeline.execution.build import PolicyConfig, environment_factory, source_hashes
from minari_pipe.pipeline.execution.collection import CollectBlock, Count, Stop
from minari_pipe.pipeline.execution.engines import crowded, make_engine
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import Scheduler, Skipped, make_scheduler
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.chosen_checkpoint import trained_folder
from minari_pipe.pipeline.stages.sources import episode_source, gather
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic
from minari_pipe.policies.base import Policy
from minari_pipe.policies.rollout import require_time_limit
from minari_pipe.recording.recorded_view import recorded_space

SUFFIX = ".npz"
#: Number of episodes after which to warn that none matches, if their number is not limited.
_WITHOUT_MATCH = 1000
#: Keys of ``collect`` that affect a block's bytes only through the block's own parameters.
HOW_MUCH = ("n_episodes", "n_steps", "exact", "until", "keep")


def stop_of(collection: Collect) -> Stop:
    """Return the condition on steps or matches that ends a collection, if any."""
    return Stop(collection.n_steps, collection.until.n_episodes)


def collect(
    *,
    env: Environment,
    policy: PolicyConfig,
    collection: Collect,
    scheduler: Scheduler,
    out: Path,
    files: dict[str, str],
    progress: Progress,
) -> dict[str, Any]:
    """Collect episodes and copy them into ``out``.

    Writes ``out/block_*.npz`` (:mod:`minari_pipe.pipeline.execution.block_file`), and
    ``out/episodes.json``: spaces, env_spec, totals, the number of episodes used of each block,
    where the last episode is cut, skipped blocks, and the policy's report on each episode.

    Args:
        env: the keys of ``env`` in the config.
        policy: see :class:`policies.base.Policy`.
        collection: how much to collect.
        scheduler: runs the blocks, and reuses finished blocks of the same collection.
        out: an empty folder.
        files: sha256 of the files that the policy was made from.
        progress: shows the progress.

    Returns:
        The content of ``out/episodes.json``.

    Raises:
        ConfigError: more episodes or steps are asked for than the policy can make, or than match.
        UnsupportedSpaceError: the environment has a space that the standard cannot store.
        MinariPipeError: all retries of a block failed; names the block, the episode and the step.
    """
    made = policy.make(BlockPlace(scheduler.place.root))
    n_episodes = _n_episodes(made, collection)
    # Check the spaces first, so that nothing is collected that cannot be stored.
    described = _described(env, collection, scheduler.place.root)
    works = _works(env, policy, collection, n_episodes)
    ahead = None if n_episodes is None or stop_of(collection) != Stop() else n_episodes
    taken = _Taken(collection)
    progress.begin(_total(n_episodes, collection), _unit(collection))
    with progress:
        for record in scheduler.records(works, ahead=ahead):
            if isinstance(record, Skipped):
                taken.skipped.append({"block": record.index, "reason": record.reason})
                progress.skipped(record.index, record.reason)
                continue
            n = taken.take(record)
            progress.finished(record["episodes"][:n], taken.count)
            if len(taken.failed) >= _WITHOUT_MATCH and not taken.count.n_kept:
                break  # whose error is raised below
            is_due = taken.n_collected - n < _WITHOUT_MATCH <= taken.n_collected
            if is_due and n_episodes is None and collection.until and not taken.count.n_matching:
                progress.warn(
                    f"none of the first {_WITHOUT_MATCH} episodes matches collect.until; set "
                    f"collect.n_episodes to limit how many are tried"
                )
            name = str(record["block"])
            copy_file(scheduler.store.folder / name, out / name, below=scheduler.store.folder)
            if stop_of(collection).is_met(taken.count):
                break
    if env.success_key and not taken.has_success:
        progress.warn(
            f"no info of any episode has {env.success_key!r}, which env.success_key names; so the "
            "dataset says nothing of success"
        )
    if len(taken.processors) > 1:
        kinds = ", ".join(sorted(taken.processors))
        progress.warn(
            f"blocks were made on different kinds of processors, which may round differently "
            f"({kinds}): identical bytes are guaranteed only on one kind"
        )
    index = {**taken.index(), **described, "files": files}
    (out / "episodes.json").write_text(dump_json(index), encoding="utf-8")
    return index


@dataclass
class _Taken:
    """The part of the blocks that becomes the dataset, in the order of the episodes."""

    collection: Collect
    count: Count = field(default_factory=Count)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    processors: set[str] = field(default_factory=set)
    has_success: bool = False
    """Whether an episode says if it has reached its goal."""
    n_collected: int = 0
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _reports: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    """Number, seed and reason of the episodes that the policy could not end."""
    _last: int = 0

    def take(self, record: dict[str, Any]) -> int:
        """Take episodes of the next block until there are enough; return how many were taken."""
        n = n_kept = 0
        for episode in record["episodes"]:
            n += 1
            self.count.add(episode["n_steps"], kept=episode["kept"], matches=episode["matches"])
            self.has_success |= episode["success"] is not None
            if "failed" in episode:
                self.failed.append(episode["failed"])
            if episode["kept"]:
                n_kept += 1
                self._last = episode["n_steps"]
                if episode["report"] is not None:
                    self._reports.append(episode["report"])
            if stop_of(self.collection).is_met(self.count):
                break
        self.n_collected += n
        self.processors.add(str(record["processor"]))
        self._blocks.append({"name": record["block"], "n_episodes": n_kept})
        return n

    def index(self) -> dict[str, Any]:
        """Return the entries of ``episodes.json`` about the blocks.

        Raises:
            ConfigError: there are fewer episodes or steps than were asked for.
        """
        collection, count = self.collection, self.count
        found = f"the policy's {self.n_collected} episodes"
        if self.failed and not count.n_kept:
            first = self.failed[0]
            raise ConfigError(
                f"nothing to make a dataset from: none of {found} was kept, {len(self.failed)} "
                f"failed, first episode {first['episode']}, {first['reason']}"
            )
        if collection.n_steps is not None and count.n_steps < collection.n_steps:
            raise ConfigError(
                f"collect.n_steps is {collection.n_steps}, but {found} have {count.n_steps} steps"
            )
        wanted = collection.until.n_episodes
        if wanted is not None and count.n_matching < wanted:
            raise ConfigError(
                f"collect.until.n_episodes is {wanted}, but of {found} only {count.n_matching} "
                f"match collect.until; raise collect.n_episodes, the maximum number to try"
            )
        if not count.n_kept:
            missing = f" and {len(self.skipped)} blocks failed" if self.skipped else ""
            raise ConfigError(f"nothing to make a dataset from: none of {found} was kept{missing}")
        cut = count.n_steps - collection.n_steps if collection.n_steps is not None else 0
        cut_to = self._last - cut if collection.exact and cut else None
        return {
            "blocks": self._blocks,
            "cut_last_episode_to": cut_to,
            "total_episodes": count.n_kept,
            "total_steps": count.n_steps - (cut if cut_to is not None else 0),
            "n_collected": self.n_collected,
            "skipped": self.skipped,
            **({"failed_episodes": self.failed} if self.failed else {}),
            "reports": self._reports,
        }


def _works(
    env: Environment, policy: PolicyConfig, collection: Collect, n_episodes: int | None
) -> Iterator[CollectBlock]:
    for first, last in block_ranges(n_episodes, collection.block_episodes):
        yield CollectBlock(
            env=env,
            policy=policy,
            first=first,
            last=last,
            seed=collection.seed,
            n_envs=collection.n_envs,
            record_infos=collection.record_infos,
            record_observation=collection.record_observation,
            record_state=collection.record_state,
            until=collection.until,
            keeps_all=collection.keep == "all",
            stop=stop_of(collection),
            skips_episodes=collection.on_error == "skip_episode",
        )


def _total(n_episodes: int | None, collection: Collect) -> int | None:
    stop = stop_of(collection)
    return stop.n_steps or stop.n_matching or n_episodes


def _unit(collection: Collect) -> str:
    if stop_of(collection).n_steps is not None:
        return "step"
    return "episode" if stop_of(collection).n_matching is None else "match"


def _described(env: Environment, collection: Collect, root: Path) -> dict[str, Any]:
    made = environment_factory(replace(env, policy_wrappers=[]), root)()
    try:
        require_time_limit(made)
        assert made.spec is not None
        space = recorded_space(made, collection.record_observation)
        return {
            "env_spec": spec_json(made.spec),
            "observation_space": serialize_space(space),
            "action_space": serialize_space(made.action_space),
            **({"record_observation": kept} if (kept := collection.record_observation) else {}),
        }
    except UnsupportedSpaceError as error:
        raise UnsupportedSpaceError(
            f"{error}. A text in a Dict observation can be recorded as Text: "
            "collect.record_observation={KEY: {text: LENGTH}, ...} with all keys to record"
        ) from error
    finally:
        made.close()


def _n_episodes(policy: Policy, collection: Collect) -> int | None:
    """Return the maximum number of episodes to run, ``None`` if only another limit applies."""
    offered = policy.n_episodes()
    if offered is not None and (collection.n_episodes or 0) > offered:
        raise ConfigError(
            f"collect.n_episodes is {collection.n_episodes}, but the policy has {offered} episodes"
        )
    return collection.n_episodes if collection.n_episodes is not None else offered


def skipped_before(path: Path, key: str) -> dict[int, str]:
    """Return the blocks that an earlier run of the same collection skipped, with the reasons.

    Args:
        path: the file that :func:`main` wrote, committed with the pipeline.
        key: the key of the collection; a list with another key is ignored.

    Raises:
        ConfigError: the file is damaged.
    """
    if not path.is_file():
        return {}
    found = read_json(path)
    if not isinstance(found, dict) or found.get("key") != key:
        return {}
    try:
        return {int(entry["block"]): str(entry["reason"]) for entry in found["skipped"]}
    except (LookupError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"{path} is damaged: expected a list 'skipped' of blocks with their reasons; "
            f"restore it from git, or remove it"
        ) from exc


def main(run: StageRun) -> None:
    """Run the stage: write ``episodes/``."""
    if source := episode_source(run):
        gather(run, source)
        return
    params, trained = run.config, trained_folder(run)
    collection, settings = params.collect, params.collected
    assert settings is not None
    policy = PolicyConfig.of(settings, "policy", run.root, trained)
    skips = collection.on_error != "fail"
    list_of_skipped = run.folder / "skipped.json"
    progress = Progress("collect", run.say)
    if warning := crowded(params.engine):
        run.say(f"warning: {warning}")
    # A block from which failed episodes are left out is no block of a run that they end.
    named = () if collection.on_error == "skip_episode" else ("on_error",)
    key = run.key(without=[f"collect.{name}" for name in (*HOW_MUCH, *named)])
    with run.output("episodes") as out, make_engine(params.engine) as engine:
        scheduler = make_scheduler(
            run,
            engine,
            "blocks",
            SUFFIX,
            key,
            [policy],
            progress,
            skips=skips,
            skipped_before=skipped_before(list_of_skipped, key) if skips else {},
        )
        index = collect(
            env=params.env,
            policy=policy,
            collection=collection,
            scheduler=scheduler,
            out=out,
            files=source_hashes(settings, run.root, trained),
            progress=progress,
        )
    if skips:
        write_atomic(list_of_skipped, dump_json({"key": key, "skipped": index["skipped"]}))
    progress.tell_reused(len(index["blocks"]))
    failed = index.get("failed_episodes", [])
    kept = f", kept from {index['n_collected']}" if collection.keep != "all" or failed else ""
    if failed:
        first = failed[0]
        run.say(
            f"warning: {len(failed)} of {index['n_collected']} episodes failed and are left out, "
            f"first episode {first['episode']}, {first['reason']}"
        )
    run.say(f"{index['total_episodes']} episodes, {index['total_steps']} steps{kept}")


if __name__ == "__main__":
    run_stage("collect", main)
