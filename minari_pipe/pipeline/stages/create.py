"""Stage ``create``: assemble ``episodes/`` into ``dataset/``, in the standard's layout."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.core.episode import EpisodeBuffer, reward_statistics
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.pipeline.config.schema import Author, Dataset
from minari_pipe.pipeline.execution.block_file import read_block
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.workspace import dump_json, read_json
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.writer import StableBuffers, buffer_of


def create(
    *,
    episodes: Path,
    dataset: Dataset,
    author: Author,
    out: Path,
    returns: Path,
    say: Callable[[str], None],
) -> None:
    """Write a dataset in the standard's layout, with metadata that lacks the reference scores.

    Args:
        episodes: the output folder of ``collect``.
        dataset: the keys of ``dataset`` in the config.
        author: the keys of ``author`` in the config.
        out: an empty folder; the dataset is written to ``out/data``.
        returns: CSV file for the return and the length of every episode.
        say: prints one line.
    """
    index = read_json(episodes / "episodes.json")
    observation_space = deserialize_space(index["observation_space"])
    action_space = deserialize_space(index["action_space"])
    (out / "data").mkdir()
    storage = MinariStorage.new(
        out / "data",
        observation_space=observation_space,
        action_space=action_space,
        env_spec=gym.envs.registration.EnvSpec.from_json(index["env_spec"]),
        data_format=dataset.data_format,
        jpeg_encoding=dataset.jpeg_encoding,
        compression=dataset.compression,
    )
    rows: list[tuple[float, int]] = []

    def counted(bar: ProgressBar) -> Iterator[EpisodeBuffer]:
        for buffer in _read(episodes, index):
            rows.append((float(buffer.rewards.sum()), len(buffer)))
            yield buffer
            bar.show(len(rows))

    with ProgressBar("create", index["total_episodes"], "episode") as bar:
        storage.update_episodes(StableBuffers(counted(bar)))
    metadata = _metadata(dataset, author)
    if "record_observation" in index:  # for a film, whose environment is compared with the data
        metadata["minari_pipe"] = {"record_observation": index["record_observation"]}
    storage.update_metadata(metadata)
    # Keep this beside the data, so that validate and publish need not read the blocks again.
    keys = ("files", "reports", "skipped", "n_collected", "failed_episodes")
    provenance = {key: index[key] for key in keys if key in index}
    (out / "provenance.json").write_text(dump_json(provenance), encoding="utf-8")
    with returns.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episode", "return", "n_steps"])
        writer.writerows((i, repr(value), n) for i, (value, n) in enumerate(rows))
    mean = sum(value for value, _ in rows) / len(rows)
    say(f"{len(rows)} episodes, mean return {mean:.2f}")


def _read(episodes: Path, index: dict[str, Any]) -> Iterator[EpisodeBuffer]:
    """Yield the episodes of all blocks, one segment in memory at a time; cut the last if asked.

    One by one, although blocks hold batches: block boundaries must not affect the dataset.
    """
    left, cut = index["total_episodes"], index["cut_last_episode_to"]
    for block in index["blocks"]:
        if Path(block["name"]).name != block["name"]:
            raise CorruptDatasetError(
                f"{episodes / 'episodes.json'} names the block {block['name']!r}, which is not a "
                f"plain file name"
            )
        n = 0
        for buffer in itertools.islice(_episodes(episodes / block["name"]), block["n_episodes"]):
            n, left = n + 1, left - 1
            yield cut_episode(buffer, cut) if left == 0 and cut is not None else buffer
        if n < block["n_episodes"]:
            raise CorruptDatasetError(
                f"{episodes / block['name']} has {n} episodes, but episodes.json says "
                f"{block['n_episodes']}; remove {episodes} and run the same command to collect "
                f"again"
            )


def _episodes(path: Path) -> Iterator[EpisodeBuffer]:
    computed = reward_statistics(np.zeros(1)).keys()  # the storage adds these again
    for part in read_block(path):
        if isinstance(part, EpisodeBuffer):
            yield replace(part, metadata=_without(part.metadata, computed))
            continue
        for place in range(len(part)):
            own = _without(part.attributes[place], computed)
            yield buffer_of({"infos": {}, **part.columns(place)}, own)


def _without(attributes: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key not in names}


def cut_episode(buffer: EpisodeBuffer, n_steps: int) -> EpisodeBuffer:
    """Return the first ``n_steps`` steps of an episode, the last of them truncated."""
    truncations = buffer.truncations[:n_steps].copy()
    truncations[-1] = True
    filled = {
        path: [[a, min(b, n_steps + 1)] for a, b in ranges if a <= n_steps]
        for path, ranges in buffer.metadata.get("infos_filled", {}).items()
    }
    return EpisodeBuffer(
        seed=buffer.seed,
        options=buffer.options,
        observations=map_leaves(lambda leaf: leaf[: n_steps + 1], buffer.observations),
        actions=map_leaves(lambda leaf: leaf[:n_steps], buffer.actions),
        rewards=buffer.rewards[:n_steps],
        terminations=buffer.terminations[:n_steps],
        truncations=truncations,
        infos=map_leaves(lambda leaf: leaf[: n_steps + 1], buffer.infos),
        metadata={"infos_filled": {p: r for p, r in filled.items() if r}} if filled else {},
    )


def _metadata(dataset: Dataset, author: Author) -> dict[str, Any]:
    fields = {
        "dataset_id": dataset.id,
        "minari_version": MINARI_VERSION,
        "author": [author.name],
        "author_email": [author.email] if author.email else None,
        "description": _one_paragraph(dataset.description),
        "algorithm_name": dataset.algorithm_name,
        "code_permalink": dataset.code_permalink,
        "requirements": dataset.requirements,
        "license": dataset.license,
        "citation": dataset.citation,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _one_paragraph(text: str | None) -> str | None:
    return text.strip() if text else None


def main(run: StageRun) -> None:
    """Run the stage: read ``episodes/``, write ``dataset/`` and ``returns.csv``."""
    with run.output("dataset") as out:
        create(
            episodes=run.folder / "episodes",
            dataset=run.config.dataset,
            author=run.config.author,
            out=out,
            returns=run.folder / "returns.csv",
            say=run.say,
        )


if __name__ == "__main__":
    run_stage("create", main)
