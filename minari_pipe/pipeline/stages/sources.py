"""Provides existing episodes for datasets that ``collect`` does not roll out.

They come from a family's training up to a checkpoint, or from other datasets. A source yields
them in order, one in memory at a time, with seeds, options, infos and metadata.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import MANIFEST, sha256_file
from minari_pipe.core.files.names import is_file_name
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.pipeline.config.policy_refs import CHOOSING
from minari_pipe.pipeline.config.shares import exact_shares
from minari_pipe.pipeline.execution.block_file import BlockWriter
from minari_pipe.pipeline.execution.collection import Count, Stop
from minari_pipe.pipeline.execution.stage import StageRun
from minari_pipe.pipeline.published import published_manifest
from minari_pipe.pipeline.stages.chosen_checkpoint import chosen_step, family_folder, trained_folder
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic
from minari_pipe.storage.hdf5.file import EpisodeFile
from minari_pipe.storage.hdf5.storage import HDF5Storage
from minari_pipe.storage.writer import StableBuffers

#: Keys of ``episodes.json`` that describe the environment, as in ``metadata.json``.
DESCRIBED = ("env_spec", "observation_space", "action_space")
#: What is recorded of an observation, which ``episodes.json`` has if it is not all.
RECORDED = "record_observation"


class EpisodeSource(Protocol):
    """Existing episodes."""

    described: dict[str, Any]
    """``env_spec``, ``observation_space`` and ``action_space``, as in ``episodes.json``."""
    files: dict[str, str]
    """sha256 of the files of the policy behind the episodes, by name."""

    def episodes(self) -> Iterator[EpisodeBuffer]:
        """Yield the episodes in order."""
        ...


def episode_source(run: StageRun) -> EpisodeSource | None:
    """Return the source of a dataset's episodes, ``None`` if ``collect`` rolls them out."""
    if run.params.is_mixture:
        return Mixture.of(run)
    if run.config.is_replay:
        return TrainingEpisodes.of(run)
    return None


class TrainingEpisodes:
    """The episodes of a training that ended within its first ``last_step`` steps, or all."""

    def __init__(self, folder: Path, last_step: float, files: dict[str, str]) -> None:
        """Read the index of a training's ``episodes/``."""
        index = read_json(folder / "index.json")
        self._folder, self._blocks = folder, index["blocks"]
        for name in self._blocks:
            if not is_file_name(name) or Path(name).name != name:
                raise CorruptDatasetError(
                    f"{folder / 'index.json'} names the file {name!r}, which is not a plain file "
                    f"name; remove {folder.parent} and run the same command to train again"
                )
        self._total = sum(step <= last_step for step in index["episodes"]["ended_at"])
        if not self._total:
            raise ConfigError(
                f"no training episode had ended by step {last_step}, the chosen checkpoint; set a "
                f"larger family.fraction"
            )
        self.described = {key: index[key] for key in DESCRIBED}
        self.files = files

    @classmethod
    def of(cls, run: StageRun) -> TrainingEpisodes:
        trained = trained_folder(run)
        assert trained is not None
        made = (file for file in sorted(trained.iterdir()) if file.is_file())
        files = {f"train/{file.name}": sha256_file(file) for file in made}
        last_step = chosen_step(run) if run.params.kind in CHOOSING else math.inf
        return cls(family_folder(run) / "train" / "episodes", last_step, files)

    def episodes(self) -> Iterator[EpisodeBuffer]:
        left = self._total
        spaces = [
            deserialize_space(self.described[f"{kind}_space"]) for kind in ("observation", "action")
        ]
        for name in self._blocks:
            with EpisodeFile.open(self._folder / name) as file:
                for index in range(min(left, len(file))):
                    data, stored = file.read(index, *spaces), file.episode_metadata(index)
                    filled = stored.get("infos_filled")
                    yield EpisodeBuffer(
                        seed=stored.get("seed"),
                        options=stored.get("options"),
                        observations=data.observations,
                        actions=data.actions,
                        rewards=data.rewards,
                        terminations=data.terminations,
                        truncations=data.truncations,
                        infos=data.infos,
                        metadata={"infos_filled": filled} if filled else {},
                    )
                left -= min(left, len(file))


class Mixture:
    """The first episodes of each parent, by share of the steps; episodes are never cut.

    The parents come in the order of the config. Each contributes the fewest episodes that have at
    least its share of ``n_steps``; without ``n_steps``, its share of the largest total for which
    every parent has enough steps. With ``repeat``, a parent starts over where it has too few.
    """

    def __init__(
        self,
        parents: dict[str, Path],
        shares: dict[str, Fraction],
        n_steps: int | None,
        *,
        repeat: bool = False,
    ) -> None:
        """Decide which episodes each parent contributes.

        Args:
            parents: folders of datasets, each with ``data/``, by the names used in messages.
            shares: shares of the steps, in the order of the mixture; their sum is 1.
            n_steps: minimum number of steps; ``None`` for as many as possible.
            repeat: whether to take the episodes of a parent with too few steps again.

        Raises:
            ConfigError: the parents differ where they must not, or one has too few steps.
        """
        found = {name: read_json(path / "data" / "metadata.json") for name, path in parents.items()}
        for metadata in found.values():
            made = metadata.get("minari_pipe", {})
            metadata |= {RECORDED: made[RECORDED]} if RECORDED in made else {}
        check_alike(found)
        first = next(iter(found.values()))
        self.described = {key: first[key] for key in (*DESCRIBED, RECORDED) if key in first}
        self.files: dict[str, str] = {}
        self._parents = {name: HDF5Storage.read(path / "data") for name, path in parents.items()}
        lengths = {
            name: [int(e["total_steps"]) for e in s.get_episode_metadata(range(s.total_episodes))]
            for name, s in self._parents.items()
        }
        self.taken = whole_episodes(lengths, shares, n_steps, repeat=repeat)

    @classmethod
    def of(cls, run: StageRun) -> Mixture:
        """Return the mixture of a pipeline's config, and write ``parents.json``."""
        given = {parent.dataset: parent for parent in run.params.policy.parents}
        folders = {name: run.root / "datasets" / parent.id for name, parent in given.items()}
        shares = exact_shares({name: parent.share for name, parent in given.items()})
        repeat = bool(run.params.policy.arguments.get("repeat"))
        mixture = cls(folders, shares, run.config.collect.n_steps, repeat=repeat)
        total = sum(steps for _, steps in mixture.taken.values())
        rows = []
        for name, (n_episodes, steps) in mixture.taken.items():
            content = published_manifest(folders[name])
            if content is None:
                raise CorruptDatasetError(
                    f"{folders[name]} has no {MANIFEST} of a published dataset; remove the "
                    f"folder and run the pipeline again"
                )
            row = {
                "id": given[name].id,
                "content_sha256": content["content_sha256"],
                "share": given[name].share,
                "episodes": n_episodes,
                "steps": steps,
            }
            again = ""
            if n_episodes > (distinct := mixture.total_episodes(name)):
                row["distinct_episodes"] = distinct
                again = f" (its {distinct}, taken again)"
            rows.append(row)
            run.say(
                f"{given[name].id}: {n_episodes} episodes{again}, {steps / total:.1%} of the steps"
            )
        write_atomic(run.folder / "parents.json", dump_json(rows))
        return mixture

    def total_episodes(self, name: str) -> int:
        """Return how many episodes a parent has."""
        return int(self._parents[name].total_episodes)

    def episodes(self) -> Iterator[EpisodeBuffer]:
        for name, (n_episodes, _) in self.taken.items():
            total = self.total_episodes(name)
            for first in range(0, n_episodes, max(total, 1)):
                yield from self._parents[name].get_buffers(range(min(total, n_episodes - first)))


def whole_episodes(
    lengths: dict[str, list[int]],
    shares: dict[str, Fraction],
    n_steps: int | None,
    *,
    repeat: bool = False,
) -> dict[str, tuple[int, int]]:
    """Return the number of episodes, and of their steps, that each parent contributes.

    Each contributes its first episodes, the fewest that have at least its share of ``n_steps``.

    Args:
        lengths: number of steps of each episode, by parent.
        shares: shares of the steps; their sum is 1.
        n_steps: steps of the mixture; ``None`` for the most for which all parents have enough.
        repeat: whether a parent with too few starts over.

    Raises:
        ConfigError: a parent has too few steps.

    Example:
        >>> half = {"medium": Fraction(1, 2), "expert": Fraction(1, 2)}
        >>> whole_episodes({"medium": [3, 3, 3], "expert": [10, 10]}, half, 8)
        {'medium': (2, 6), 'expert': (1, 10)}
        >>> whole_episodes({"medium": [3, 3, 3], "expert": [10, 10]}, half, 24, repeat=True)
        {'medium': (4, 12), 'expert': (2, 20)}
    """
    most = min(sum(lengths[name]) / share for name, share in shares.items())
    total = most if n_steps is None else Fraction(n_steps)
    repeat = repeat and most > 0  # nothing repeated is never enough
    taken = {}
    for name, share in shares.items():
        wanted, n_episodes, steps = share * total, 0, 0
        while steps < wanted and (repeat or n_episodes < len(lengths[name])):
            steps += lengths[name][n_episodes % len(lengths[name])]
            n_episodes += 1
        if steps < wanted:
            raise ConfigError(
                f"policy.parents.{name} has {steps} steps, but its share {float(share):g} of "
                f"collect.n_steps={n_steps} is {float(wanted):g}; collect.n_steps can be at most "
                f"{int(most)}, or set policy.repeat: true to take its episodes again"
            )
        taken[name] = n_episodes, steps
    return taken


def check_alike(metadata: dict[str, dict[str, Any]]) -> None:
    """Refuse parents that cannot be mixed; the message shows both values.

    Args:
        metadata: the metadata of each parent, by its name.
    """
    (first, one), *others = metadata.items()
    for name, other in others:
        for key in (*DESCRIBED, RECORDED, "ref_min_score", "ref_max_score"):
            if one.get(key) != other.get(key):
                raise ConfigError(
                    f"a mixture needs parents with the same {key}: {first} has {one.get(key)}, but "
                    f"{name} has {other.get(key)}"
                )


def gather(run: StageRun, source: EpisodeSource) -> None:
    """Write ``episodes/`` of a dataset from a source, as ``collect`` would.

    ``collect.n_episodes`` or ``collect.n_steps`` ends it early; ``collect.exact`` cuts the end.
    """
    limits = run.config.collect
    n_episodes, n_steps = limits.n_episodes, limits.n_steps
    if run.params.is_mixture:
        n_steps = None  # already applied by the mixture
    spaces = [deserialize_space(source.described[f"{k}_space"]) for k in ("observation", "action")]
    count, last = Count(), 0
    blocks: list[dict[str, Any]] = []

    def wanted(episodes: Iterator[EpisodeBuffer]) -> Iterator[EpisodeBuffer]:
        nonlocal last
        for episode in itertools.islice(episodes, limits.block_episodes):
            last = len(episode)
            count.add(last, kept=True, matches=False)
            yield replace(episode, id=None)
            if is_enough():
                return

    def is_enough() -> bool:
        return Stop(n_steps).is_met(count) or count.n_kept == n_episodes

    with run.output("episodes") as out:
        episodes = source.episodes()
        while not is_enough():
            name, before = f"block_{len(blocks):05d}.npz", count.n_kept
            with BlockWriter.create(out / name) as block:
                block.add(StableBuffers(wanted(episodes)), *spaces)
            if count.n_kept == before:
                (out / name).unlink()
                break
            blocks.append({"name": name, "n_episodes": count.n_kept - before})
        for key, found, asked in (
            ("n_episodes", count.n_kept, n_episodes),
            ("n_steps", count.n_steps, n_steps),
        ):
            if asked is not None and found < asked:
                raise ConfigError(
                    f"collect.{key} is {asked}, but there are only {found}; leave it out to take "
                    f"all"
                )
        cut = count.n_steps - n_steps if n_steps is not None and limits.exact else 0
        index = {
            "blocks": blocks,
            "cut_last_episode_to": last - cut if cut else None,
            "total_episodes": count.n_kept,
            "total_steps": count.n_steps - cut,
            "n_collected": count.n_kept,
            "skipped": [],
            **source.described,
            "files": source.files,
            "reports": [],
        }
        (out / "episodes.json").write_text(dump_json(index), encoding="utf-8")
    run.say(f"{index['total_episodes']} episodes, {index['total_steps']} steps")
