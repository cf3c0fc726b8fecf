"""What a collecting script leaves behind, however it ends, becomes a dataset."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import minari.namespace
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.spaces import serialize_space
from minari_pipe.core.tree import leaves
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.library import list_local_datasets
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    LinkError,
    UnknownFormatError,
)
from minari_pipe.recording.collector import DataCollector
from minari_pipe.recording.journal.folders import JOURNAL
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recovery import Leftover, discard, list_leftovers, recover
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.testing import assert_same
from tests.conftest import CHECKOUT, StepIndex
from tests.support.peer import let_minari_collect

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning")


def collect(collector, episodes: int, told: Callable[[int], object] = lambda number: None) -> None:
    """Record episodes: the number of each is its seed, and its length follows from it."""
    for number in range(episodes):
        collector.reset(seed=number, options={"length": 2 + number % 5})
        done = False
        while not done:
            _, _, terminated, truncated, _ = collector.step(np.zeros(2, np.float32))
            done = terminated or truncated
        told(number)


def assert_true(dataset, first: int = 0) -> None:
    """Every episode is what the environment does with its seed."""
    env = StepIndex()
    attributes = dataset.storage.get_episode_metadata(range(len(dataset)))
    for number, (found, entry) in enumerate(zip(dataset, attributes, strict=True), first):
        length = 2 + number % 5
        assert entry["seed"] == number
        assert entry["options"] == {"length": length}
        assert found.observations.ravel().tolist() == list(range(length + 1))
        env.reset(seed=number)
        rewards = [env.step(np.zeros(2, np.float32))[1] for _ in range(length)]
        assert_same(found.rewards, np.array(rewards))
        assert found.terminations.tolist() == [False] * (length - 1) + [True]


def in_a_child(work: Callable[[Callable[[int], object]], object]) -> tuple[int, int]:
    """Run ``work`` in a forked process that has 10 s; return its id and a pipe of what it tells."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            signal.alarm(10)
            work(lambda number: os.write(write, b"x"))
        finally:
            os._exit(1)
    os.close(write)
    return child, read


def killed_after(child: int, read: int, delay: float) -> int:
    """Kill a child a moment after its first episode; return how many it had told of."""
    told = len(os.read(read, 1))
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while chunk := os.read(read, 1 << 16):
        told += len(chunk)
    os.close(read)
    return told


@pytest.mark.parametrize("moment", range(10))
def test_every_finished_episode_survives_kill_9_at_any_moment(moment) -> None:
    def work(told):
        collect(DataCollector(gym.make("StepIndex-v0"), record_infos=True), 10**9, told)

    child, read = in_a_child(work)
    told = killed_after(child, read, np.random.default_rng(moment).uniform(0, 0.05))
    (leftover,) = list_leftovers()
    assert (leftover.alive, leftover.pid, leftover.damage) == (False, child, None)
    assert leftover.env_id == "StepIndex-v0"
    assert told <= leftover.episodes <= told + 1
    dataset = recover("aa/rescued-v0", leftover, author="me")
    assert (len(dataset), dataset.total_steps) == (leftover.episodes, leftover.steps)
    assert_true(dataset)
    assert dataset.env_spec.id == "StepIndex-v0"
    assert dataset.storage.metadata["author"] == {"me"}
    assert dataset[0].infos["odd"].tolist() == [False, True, False]
    assert list_leftovers() == []
    assert len(minari.load_dataset("aa/rescued-v0")) == len(dataset)


def test_real_minari_has_no_way_back_from_kill_9_but_recover_reads_its_leftover(monkeypatch):
    let_minari_collect(monkeypatch)

    def work(told):
        collector = minari.DataCollector(StepIndex())
        collect(collector, 5, told)
        time.sleep(10)

    child, read = in_a_child(work)
    for _ in range(4):
        os.read(read, 1)
    killed_after(child, read, 0)
    (leftover,) = list_leftovers()
    assert (leftover.kind, leftover.alive, leftover.episodes) == ("minari", None, 5)
    with pytest.raises(KeyError, match="dataset_id"):  # the peer has the fault
        minari.MinariDataset(leftover.path)
    dataset = recover("aa/rescued-v0")
    assert len(dataset) == 5
    assert_true(dataset)
    assert list_leftovers() == [leftover]  # its process may live, for all that is known
    discard(leftover)
    assert list_leftovers() == []


def test_of_a_damaged_leftover_of_real_minari_the_readable_episodes_are_kept(monkeypatch) -> None:
    let_minari_collect(monkeypatch)

    def work(told):
        collector = minari.DataCollector(StepIndex())
        collect(collector, 5)
        os._exit(0)  # without clearing up

    child, read = in_a_child(work)
    os.waitpid(child, 0)
    os.close(read)
    (leftover,) = list_leftovers()
    with h5py.File(leftover.path / "main_data.hdf5", "r+") as file:
        del file["episode_2/rewards"]
    with pytest.warns(UserWarning, match=r"1 parts of .* episode 2"):
        dataset = recover("aa/rescued-v0", leftover.path)
    found = dataset.storage.get_episode_metadata(range(4))
    assert [entry["seed"] for entry in found] == [0, 1, 3, 4]
    metadata = leftover.path / "metadata.json"
    text = metadata.read_text()
    metadata.write_text(json.dumps({**json.loads(text), "total_episodes": 10**11}))
    with pytest.raises(CorruptDatasetError, match="total_episodes 100000000000, but its files"):
        recover("aa/none-v0", leftover)
    metadata.write_text(text)
    data = (leftover.path / "main_data.hdf5").read_bytes()
    (leftover.path / "main_data.hdf5").write_bytes(data[:50])
    with pytest.raises(DatasetNotFoundError, match="has no readable episode"):
        recover("aa/none-v0", leftover)
    assert list(list_local_datasets()) == ["aa/rescued-v0"]


SCRIPT = """
import gymnasium as gym
import numpy as np
import {library} as minari
from tests.conftest import StepIndex
from tests.support.peer import let_minari_collect

let_minari_collect()
env = minari.DataCollector(StepIndex())
for seed in range(3):
    env.reset(seed=seed, options={{"length": 2 + seed}})
    for _ in range(2 + seed):
        env.step(np.zeros(2, np.float32))
env.reset(seed=3)
env.step(np.zeros(2, np.float32))
{end}
"""


@pytest.mark.parametrize("end", ["1 / 0", "", "env.close()"])
def test_a_script_that_ends_leaves_its_episodes_also_the_unfinished_one(end) -> None:
    def run(library: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT.format(library=library, end=end)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=CHECKOUT,
            check=False,
        )

    done = run("minari_pipe")
    told = [line for line in done.stderr.splitlines() if "minari-pipe recover" in line]
    assert len(told) == 1, done.stderr
    assert told[0].startswith("4 episodes were recorded but not saved as a dataset")
    (leftover,) = list_leftovers()
    assert str(leftover.path) in told[0]
    assert (leftover.alive, leftover.episodes, leftover.steps) == (False, 4, 2 + 3 + 4 + 1)
    dataset = recover("aa/rescued-v0")
    assert dataset[3].truncations.tolist() == [True]
    attributes = dataset.storage.get_episode_metadata(range(4))
    assert [entry["seed"] for entry in attributes] == [0, 1, 2, 3]
    if end == "1 / 0":
        run("minari")
        assert list(get_dataset_path().glob("tmp*")) == []  # the peer loses all of them


def collector_left(episodes: int = 2) -> Leftover:
    collector = DataCollector(gym.make("StepIndex-v0"))
    collect(collector, episodes)
    path = collector._journal.path.parent
    collector.close()
    return next(entry for entry in list_leftovers() if entry.path == path)


def test_a_collector_that_is_collected_as_garbage_leaves_its_episodes(caplog) -> None:
    collector = DataCollector(StepIndex())
    collect(collector, 2)
    collector.reset(seed=2)
    collector.step(np.zeros(2, np.float32))
    with caplog.at_level(logging.WARNING):
        del collector
        gc.collect()
    assert "minari-pipe recover" in caplog.text
    assert [entry.episodes for entry in list_leftovers()] == [3]


def test_an_environment_that_fails_leaves_what_was_recorded() -> None:
    class Fails(StepIndex):
        def step(self, action):
            if self.t == 3:
                raise RuntimeError("the motor is hot")
            return super().step(action)

    collector = DataCollector(Fails(9))
    with pytest.raises(RuntimeError, match="the motor is hot"):
        collect(collector, 9)
    collector.close()
    dataset = recover("aa/rescued-v0")
    assert [len(found) for found in dataset] == [2, 3, 3]
    assert dataset[2].truncations.tolist() == [False, False, True]
    assert not dataset[2].terminations.any()


def test_leftovers_are_in_no_listing_of_either_library(monkeypatch) -> None:
    collector_left()
    living = DataCollector(gym.make("StepIndex-v0"))
    collect(living, 1)
    assert len(list_leftovers()) == 2
    assert list_local_datasets() == minari.list_local_datasets() == {}
    assert minari.namespace.list_local_namespaces() == []
    dataset = living.create_dataset("aa/b-v0")
    collect(living, 1)
    assert list(list_local_datasets()) == list(minari.list_local_datasets()) == ["aa/b-v0"]
    assert minari.namespace.list_local_namespaces() == ["aa"]
    assert len(minari.load_dataset("aa/b-v0")) == len(dataset) == 1
    living.create_dataset("aa/c-v0")
    living.close()
    # the peer's folder is in plain sight
    let_minari_collect(monkeypatch)
    theirs = minari.DataCollector(StepIndex())
    assert len([path for path in get_dataset_path().iterdir() if path.name[0] != "."]) == 2
    theirs.close()
    theirs._tmp_dir._finalizer.detach()


def test_a_collector_at_work_is_left_alone_unless_forced() -> None:
    collector = DataCollector(gym.make("StepIndex-v0"))
    collect(collector, 2)
    (leftover,) = list_leftovers()
    assert (leftover.alive, leftover.pid, leftover.episodes) == (True, os.getpid(), 2)
    with pytest.raises(DatasetNotFoundError, match="no collector left episodes"):
        recover("aa/a-v0")
    for refused in (lambda: recover("aa/a-v0", leftover), lambda: discard(leftover)):
        with pytest.raises(ConfigError, match=f"still being written by process {os.getpid()}"):
            refused()
    assert_true(recover("aa/a-v0", leftover, force=True))
    collect(collector, 3)
    assert len(collector.create_dataset("aa/b-v0")) == 5
    collector.close()


@pytest.mark.parametrize("named", [".", "journal"])
def test_what_lies_beside_a_journal_that_a_path_names_stays(named: str, tmp_path: Path) -> None:
    folder = Path(shutil.move(collector_left(2).path, tmp_path / "downloads"))
    mine = {"rows-of-mine.csv", "lock", "rows-7"}
    for name in mine:
        (folder / name).write_text("precious")
    assert len(recover("aa/a-v0", folder / named)) == 2
    assert {path.name for path in folder.iterdir()} == mine


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("tmp-lab", "mine-v0/data/main_data.hdf5"),  # a namespace
        ("tmp", "thesis.txt"),
        ("tmpabcdefgh", "namespace_metadata.json"),
        ("tmpabcdefgh", "mine-v0/data/main_data.hdf5"),
    ],
)
def test_a_folder_of_the_users_is_no_leftover_of_minari(name: str, other: str) -> None:
    place = step_index_dataset("aa/saved-v0").storage.data_path
    folder = Path(shutil.move(place, get_dataset_path() / "tmp_ab01xyz"))
    assert [leftover.path for leftover in list_leftovers()] == [folder]
    folder = folder.rename(folder.with_name(name))
    (folder / other).parent.mkdir(parents=True, exist_ok=True)
    (folder / other).write_text("precious")
    assert list_leftovers() == []
    with pytest.raises(DatasetNotFoundError, match="is not a leftover"):
        discard(folder)
    assert (folder / other).read_text() == "precious"


@pytest.mark.parametrize("spelled", ["{root}", "{root}/../{name}"])
@pytest.mark.parametrize("depth", range(3))
def test_a_leftover_is_reached_by_no_link_below_the_root(
    depth: int, spelled: str, tmp_path: Path, monkeypatch
) -> None:
    root = get_dataset_path()
    monkeypatch.setenv("MINARI_DATASETS_PATH", spelled.format(root=root, name=root.name))
    left = collector_left(2).path
    place = [left, *left.parents][depth]
    other = place.rename(tmp_path / "other")
    place.symlink_to(other)
    otherwise = Path(os.path.relpath(left))
    for take in (discard, lambda path: recover("aa/a-v0", path)):
        for spelled_path in (left, otherwise):
            with pytest.raises(LinkError, match="is a symlink"):
                take(spelled_path)
    assert len(list(other.rglob(JOURNAL))) == 1


def test_of_several_one_must_be_named() -> None:
    first, second = collector_left(1), collector_left(3)
    with pytest.raises(ConfigError, match=r"there are 2 leftovers; name one of them:(\n.*){2}"):
        recover("aa/a-v0")
    assert len(recover("aa/a-v0", second.path / "journal")) == 3
    assert len(recover("aa/b-v0")) == 1
    assert list_leftovers() == []
    for gone in (first, first.path, get_dataset_path(), "nowhere"):
        with pytest.raises(DatasetNotFoundError, match="is not a leftover of a collector"):
            discard(gone)
    assert sorted(list_local_datasets()) == ["aa/a-v0", "aa/b-v0"]


def test_a_recovery_that_fails_keeps_the_leftover() -> None:
    leftover = collector_left()
    other = DataCollector(StepIndex())
    other.create_dataset("aa/taken-v0")
    other.close()
    with pytest.raises(DatasetExistsError):
        recover("aa/taken-v0", leftover)
    with pytest.raises(ValueError, match="description"):
        recover("aa/b-v0", leftover, description=5)
    with pytest.raises(UnknownFormatError, match="memory that writes files"):
        recover("aa/b-v0", leftover, data_format="memory")
    assert list_leftovers() == [leftover]
    assert_true(recover("aa/b-v0"))


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_infos_too_deep_for_a_format_are_kept_for_another(data_format: str) -> None:
    info = {"x": 1.0}
    for _ in range(98):
        info = {"k": info}

    class Nested(StepIndex):
        def reset(self, **options):
            return super().reset(**options)[0], info

        def step(self, action):
            return (*super().step(action)[:4], info)

    collector = DataCollector(Nested(), record_infos=True, data_format=data_format)
    collect(collector, 2)
    with pytest.raises(InvalidEpisodeError, match="99 deep, .*; use data_format='hdf5'"):
        collector.create_dataset("aa/a-v0")
    collector.close()
    with pytest.raises(InvalidEpisodeError, match="99 deep"):
        recover("aa/a-v0")
    dataset = recover("aa/a-v0", data_format="hdf5")
    assert [leaf.tolist() for _, leaf in leaves(dataset[1].infos)] == [[1.0] * 4]
    assert list_leftovers() == []


def test_a_damaged_journal_gives_the_episodes_before_the_damage_and_is_kept() -> None:
    leftover = collector_left(9)
    file = leftover.path / "journal"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1  # in the arrays of the last episode
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="the arrays of episode 8 are damaged.* is kept"):
        dataset = recover("aa/a-v0", leftover)
    assert len(dataset) == 8
    assert_true(dataset)
    (found,) = list_leftovers()
    discard(found)
    file.parent.mkdir(parents=True)
    file.write_bytes(data[5:])
    (found,) = list_leftovers()
    assert (found.episodes, found.alive) == (0, False)
    assert "damaged" in found.damage
    with pytest.raises(CorruptDatasetError, match="the record at byte 0 is damaged"):
        recover("aa/b-v0", found)
    assert list(list_local_datasets()) == ["aa/a-v0"]


@pytest.mark.parametrize("wrong", [{"data_format": []}, {"env_spec": 5}])
def test_a_journal_that_says_nothing_of_its_dataset_is_told(wrong: dict[str, object]) -> None:
    journal = Journal(
        {
            "observation_space": serialize_space(Discrete(2)),
            "action_space": serialize_space(Discrete(2)),
            "env_spec": None,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            **wrong,
        }
    )
    journal.append(EpisodeBuffer(rewards=np.zeros(1)))
    journal.leave()
    with pytest.raises(CorruptDatasetError, match="the header of the journal is invalid"):
        recover("aa/a-v0")


def test_the_recovered_dataset_has_the_bytes_that_the_collector_would_have_made() -> None:
    collector = DataCollector(gym.make("StepIndex-v0"), record_infos=True)
    collect(collector, 4)
    collector.create_dataset("aa/a-v0", author="me")
    collect(collector, 4)
    collector.close()
    recover("aa/b-v0", author="me")
    first, second = (load_dataset(f"aa/{name}-v0").storage.data_path for name in "ab")
    assert (first / "main_data.hdf5").read_bytes() == (second / "main_data.hdf5").read_bytes()
    text = (second / "metadata.json").read_text()
    assert (first / "metadata.json").read_text() == text.replace("aa/b-v0", "aa/a-v0")


def test_leftovers_in_the_temporary_directory_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (get_dataset_path() / ".minari_pipe").write_text("a file in the way")
    leftover = collector_left()
    assert leftover.path.parent == tmp_path
    assert_true(recover("aa/a-v0"))
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(get_dataset_path())
    assert list_leftovers() == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_no_collector_makes_is_no_life(kind, tmp_path) -> None:
    leftover = collector_left(2)
    lock = leftover.path / "lock"
    lock.unlink()
    if kind == "link":
        lock.symlink_to(tmp_path / "mine")
        (tmp_path / "mine").write_text("mine")
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    (found,) = list_leftovers()
    assert not found.alive
    discard(found)
    assert list_leftovers() == []
    assert kind != "link" or (tmp_path / "mine").read_text() == "mine"
