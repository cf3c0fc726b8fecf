"""How much is collected, in which blocks, and how the blocks become a dataset."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.identity import content_sha256
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.stages.collect import collect
from minari_pipe.pipeline.stages.create import create
from minari_pipe.policies.random import RandomPolicy
from tests.conftest import FULL
from tests.support.engine_works import Told, scheduler

DATASET = schema.Dataset("tests/steps-v0", license="CC-BY-4.0", requirements=["gymnasium"])
LENGTHS = "tests.pipeline.stages.test_collect_create.Lengths"


class Lengths(RandomPolicy):
    """Episode ``e`` is ``e % 4 + 2`` steps long; some policies have only so many episodes."""

    def __init__(self, n: int | None = None) -> None:
        super().__init__()
        self._n = n

    def start(self, row, episode, rng):
        super().start(row, episode, rng)
        return {"length": episode % 4 + 2}

    def n_episodes(self):
        return self._n

    def finish(self, episode, buffer):
        return {"steps": len(buffer), "findings": []}


@pytest.fixture(autouse=True)
def _trusted(monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "tests")


def run(folder: Path, n: int | None = None, **changes) -> tuple[dict, Told]:
    """Collect with :class:`Lengths` into ``folder/out``; its index, and what was told."""
    options = {"seed": 7, "block_episodes": 3, "n_envs": 2, "record_infos": True}
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    watcher = Told("collect")
    with LocalEngine(schema.Engine()) as engine:
        index = collect(
            env=schema.Environment("StepIndex-v0"),
            policy=PolicyConfig(schema.PolicySettings(LENGTHS, {"n": n}), "policy"),
            collection=schema.Collect(**{**options, **changes}),
            scheduler=scheduler(folder, engine, watcher=watcher),
            out=out,
            files={},
            progress=watcher,
        )
    assert json.loads((out / "episodes.json").read_text()) == index
    return index, watcher


def created(folder: Path, name: str = "dataset", **stored) -> MinariDataset:
    made = folder / name
    made.mkdir()
    create(
        episodes=folder / "out",
        dataset=replace(DATASET, **stored),
        author=schema.Author("Ada"),
        out=made,
        returns=folder / "returns.csv",
        say=lambda text: None,
    )
    return MinariDataset(made / "data")


@pytest.mark.parametrize(
    "stored",
    [{"data_format": "arrow"}, {"data_format": "parquet"}, {"compression": 1}, {"compression": 9}],
    ids=str,
)
def test_every_way_to_store_a_dataset_keeps_its_content(stored, tmp_path):
    run(tmp_path, n_episodes=7)
    as_ever = created(tmp_path)
    other = created(tmp_path, "other", **stored)
    metadata = as_ever.storage.metadata
    assert content_sha256(other.storage, metadata) == content_sha256(as_ever.storage, metadata)
    assert other.storage.metadata["data_format"] == stored.get("data_format", "hdf5")
    if level := stored.get("compression"):
        with h5py.File(tmp_path / "other" / "data" / "main_data.hdf5") as file:
            written = file["episode_3/observations"]
            assert (written.compression, written.compression_opts) == ("gzip", level)


def lengths(n: int) -> list[int]:
    return [e % 4 + 2 for e in range(n)]


@settings(
    deadline=None,
    max_examples=100 if FULL else 12,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(n_steps=st.integers(1, 30), exact=st.booleans(), block=st.integers(1, 5))
def test_steps_are_whole_episodes_or_exactly_as_many(n_steps, exact, block, tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    index, _ = run(folder, n_steps=n_steps, exact=exact, block_episodes=block)
    whole = next(n for n in range(1, 40) if sum(lengths(n)) >= n_steps)
    total = n_steps if exact else sum(lengths(whole))
    assert index["total_episodes"] == whole
    assert index["total_steps"] == total
    dataset = created(folder)
    assert (dataset.total_episodes, dataset.total_steps) == (whole, total)
    episodes = list(dataset)
    assert [len(e) for e in episodes[:-1]] == lengths(whole)[:-1]
    last = episodes[-1]
    np.testing.assert_array_equal(last.observations[:, 0], np.arange(len(last) + 1.0))
    cut = len(last) < lengths(whole)[-1]
    assert last.truncations[-1] == cut
    assert last.terminations[-1] != cut


def test_blocks_do_not_change_the_episodes(tmp_path):
    kept = {}
    for block in (1, 3, 100):
        run(tmp_path / str(block), n_episodes=7, block_episodes=block)
        dataset = created(tmp_path / str(block))
        kept[block] = (tmp_path / str(block) / "dataset/data/main_data.hdf5").read_bytes()
        assert dataset.total_episodes == 7
    assert kept[1] == kept[3] == kept[100]


def test_finished_blocks_are_not_collected_again(tmp_path):
    first, watcher = run(tmp_path, n_episodes=8)
    assert watcher.n_reused == 0
    second, watcher = run(tmp_path, n_episodes=8)
    assert watcher.n_reused == 3
    assert first == second


def test_more_episodes_take_the_finished_blocks_of_fewer(tmp_path):
    run(tmp_path, n_episodes=8)
    index, watcher = run(tmp_path, n_episodes=11)
    assert watcher.n_reused == 2
    assert watcher.lines == ["block 2 runs again: it was made with another config"]
    assert index == run(tmp_path / "at once", n_episodes=11)[0]


def test_blocks_of_several_kinds_of_processors_are_told(tmp_path, monkeypatch):
    kinds = itertools.cycle(["Epyc", "Xeon"])
    monkeypatch.setattr("minari_pipe.pipeline.execution.block_task.processor", lambda: next(kinds))
    _, watcher = run(tmp_path, n_episodes=8)
    (line,) = watcher.lines
    assert line.startswith("warning: blocks were made on different kinds of processors")
    assert "(Epyc, Xeon)" in line


def test_all_demonstrations_are_taken_unless_fewer_are_asked_for(tmp_path):
    assert run(tmp_path / "all", 5)[0]["total_episodes"] == 5
    assert run(tmp_path / "few", 5, n_episodes=2)[0]["total_episodes"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_episodes": 6}, "collect.n_episodes is 6, but the policy has 5 episodes"),
        ({"n_steps": 99}, "collect.n_steps is 99, but the policy's 5 episodes have 16 steps"),
    ],
)
def test_more_than_the_policy_has_is_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, 5, **changes)


def test_a_dataset_carries_seeds_options_infos_statistics_and_metadata(tmp_path):
    index, _ = run(tmp_path, n_episodes=4)
    dataset = created(tmp_path)
    assert [r["steps"] for r in index["reports"]] == lengths(4)
    metadata = list(dataset.storage.get_episode_metadata(range(4)))
    assert [m["options"] for m in metadata] == [{"length": n} for n in lengths(4)]
    assert len({m["seed"] for m in metadata}) == 4
    for episode, own in zip(dataset, metadata, strict=True):
        assert own["rewards_sum"] == pytest.approx(episode.rewards.sum())
        assert own["infos_filled"]["odd"][0] == [0, 1]
        assert episode.infos["odd"].dtype == bool
    found = dataset.storage.metadata
    assert found["dataset_id"] == "tests/steps-v0"
    assert list(found["author"]) == ["Ada"]
    assert found["license"] == "CC-BY-4.0"
    assert found["minari_version"] == "0.5.4"
    assert "description" not in found
    rows = (tmp_path / "returns.csv").read_text().splitlines()
    assert rows[0] == "episode,return,n_steps"
    assert len(rows) == 5
