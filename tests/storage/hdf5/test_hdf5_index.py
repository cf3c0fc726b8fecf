"""Reading through the index is reading by the structure of the file, bit for bit; only sooner.

Whatever happens to the file or to the cache, nobody is handed values that are not in the file now.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer as TheirBuffer
from minari.dataset.minari_storage import MinariStorage as TheirStorage

import minari_pipe
from minari_pipe import EpisodeBuffer, MinariDataset, alias
from minari_pipe.core.tree import leaves
from minari_pipe.errors import CorruptDatasetError, MinariPipeError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.hdf5 import file as hdf5_file
from minari_pipe.storage.hdf5 import storage as hdf5
from minari_pipe.storage.hdf5.index import cache as hdf5_index_cache
from minari_pipe.storage.hdf5.index import mapped as hdf5_mapped
from minari_pipe.storage.hdf5.index.cache import Stamp, StoredIndex, load, remember, sample, save
from minari_pipe.storage.hdf5.index.index import Attributes, FileIndex, Part, Runs
from minari_pipe.storage.hdf5.storage import HDF5Storage
from minari_pipe.storage.segment import AttributeTable, Leaf, Segment
from minari_pipe.testing import Dataset, assert_same, datasets, examples
from tests.conftest import FULL

OBSERVATION = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTION = gym.spaces.Box(-1, 1, (2,), np.float32)
FILE = hdf5_file.MAIN_FILE_NAME


def buffer(steps: int, seed: int, kind: type = EpisodeBuffer) -> Any:
    rng = np.random.default_rng(seed)
    return kind(
        id=None,
        seed=seed,
        observations=rng.normal(size=(steps + 1, 3)),
        actions=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps),
        terminations=np.arange(steps) == steps - 1,
        truncations=np.zeros(steps, bool),
        infos={},
    )


def buffers(count: int = 6, first: int = 0) -> list[EpisodeBuffer]:
    return [buffer(3 + seed % 4, seed) for seed in range(first, first + count)]


def written(path: Path, made: list[EpisodeBuffer] | None = None) -> HDF5Storage:
    storage = MinariStorage.new(path, OBSERVATION, ACTION, data_format="hdf5")
    storage.update_episodes(buffers() if made is None else made)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    settle(path)
    return MinariStorage.read(path)


def written_by_minari(path: Path, count: int = 6) -> HDF5Storage:
    theirs = TheirStorage.new(path, OBSERVATION, ACTION, data_format="hdf5")
    theirs.update_episodes([buffer(3 + seed % 4, seed, TheirBuffer) for seed in range(count)])
    theirs.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    settle(path)
    return MinariStorage.read(path)


def settle(path: Path) -> None:
    """Wait until another change of the file would give it another time."""
    while not Stamp.of(os.stat(path / FILE)).is_settled:
        time.sleep(0.005)


def forget() -> None:
    """Forget what this process holds and what the user's cache has."""
    hdf5_mapped.close_mapped()
    hdf5_index_cache._held.clear()
    shutil.rmtree(hdf5_index_cache.cache_folder() / "index", ignore_errors=True)


def by_structure(storage: HDF5Storage) -> list[dict[str, Any]]:
    """Read all episodes without any index."""
    spaces = (storage.observation_space, storage.action_space)
    with hdf5_file.EpisodeFile.open(storage.data_path / FILE) as file:
        return [
            {**vars(file.read(index, *spaces)), "attributes": file.episode_metadata(index)}
            for index in range(len(file))
        ]


def by_index(storage: MinariStorage) -> list[dict[str, Any]]:
    count = range(storage.total_episodes)
    pairs = zip(storage.get_episodes(count), storage.get_episode_metadata(count), strict=True)
    return [{**fields, "attributes": attributes} for fields, attributes in pairs]


def assert_index_is_right(storage: HDF5Storage) -> None:
    """Compare the first pass, the one with the index of it, and that with the index read back."""
    expected = by_structure(storage)
    assert_same(by_index(storage), expected)
    assert_same(by_index(storage), expected)
    hdf5_mapped.close_mapped()
    assert_same(by_index(MinariStorage.read(storage.data_path)), expected)


def is_indexed(storage: MinariStorage) -> bool:
    file = hdf5_mapped.open_mapped(storage.data_path / FILE)
    return file is not None and file.index is not None


# --- what is read is what the file holds


@given(given_dataset=datasets())
@examples(40 if FULL else 15)
def test_whatever_can_be_stored_is_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, given_dataset: Dataset
) -> None:
    path = tmp_path_factory.mktemp("any") / "data"
    storage = MinariStorage.new(
        path, given_dataset.observation_space, given_dataset.action_space, data_format="hdf5"
    )
    storage.update_episodes(given_dataset.buffers)
    left_by_the_writer = by_index(storage)
    expected = by_structure(storage)
    assert_same(left_by_the_writer, expected)
    forget()
    assert_index_is_right(storage)


@pytest.mark.parametrize("write", [written, written_by_minari], ids=["ours", "minari's"])
def test_files_of_both_writers_are_indexed_by_one_pass(tmp_path: Path, write: Any) -> None:
    storage = write(tmp_path / "data")
    forget()
    assert not is_indexed(storage)
    assert_index_is_right(storage)
    assert is_indexed(storage)


def test_each_appends_to_the_file_of_the_other(tmp_path: Path) -> None:
    path = tmp_path / "data"
    storage = written(path)
    for round_ in range(2):
        theirs = TheirStorage.read(path)
        theirs.update_episodes([buffer(4, 50 + round_, TheirBuffer)])
        settle(path)
        assert_index_is_right(storage)
        storage.update_episodes([buffer(5, 60 + round_)])
        settle(path)
        assert_index_is_right(storage)
    assert len(by_index(storage)) == 10


def test_the_writer_leaves_the_index_of_what_it_wrote(tmp_path: Path, monkeypatch: Any) -> None:
    storage = written(tmp_path / "data")
    expected = by_structure(storage)
    hdf5_mapped.close_mapped()
    monkeypatch.setattr(hdf5, "_Structure", NoStructure)
    assert_same(by_index(storage), expected)


class NoStructure:
    """Stands for the structure of a file where none is to be read."""

    def __init__(self, *_: Any) -> None:
        pass

    def open(self) -> None:
        raise AssertionError("the structure was read")

    def __enter__(self) -> NoStructure:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_our_own_files_are_recognized_without_reading_each_episode(
    tmp_path: Path, monkeypatch: Any
) -> None:
    storage = written(tmp_path / "data", buffers(40))
    expected = by_structure(storage)
    forget()
    seen = []
    look_at = hdf5_file.EpisodeFile.look_at
    monkeypatch.setattr(
        hdf5_file.EpisodeFile, "look_at", lambda *of: (seen.append(of[1]), look_at(*of))[1]
    )
    assert_same(by_index(storage), expected)
    assert seen == [0]


def segment(lengths: list[int], first: int) -> Segment:
    rng = np.random.default_rng(first)
    steps = np.array(lengths)
    found = tuple(
        Leaf(path, np.dtype(dtype), shape, more)
        for path, dtype, shape, more in (
            (("observations",), "<f8", (3,), 1),
            (("actions",), "<f4", (2,), 0),
            (("rewards",), "<f8", (), 0),
            (("terminations",), "?", (), 0),
            (("truncations",), "?", (), 0),
        )
    )
    arrays = tuple(
        rng.normal(size=(int((steps + leaf.more).sum()), *leaf.shape)).astype(leaf.dtype)
        for leaf in found
    )
    ids = np.arange(first, first + len(lengths))
    return Segment(first, steps, found, arrays, AttributeTable({"id": ids, "total_steps": steps}))


def test_episodes_that_were_written_together_are_one_run(tmp_path: Path) -> None:
    made = [segment([3, 1, 5, 2], 0), segment([2, 2], 4), segment([4], 6)]
    path = tmp_path / "data"
    storage = written(path, [])
    with hdf5_file.EpisodeFile.create(path / FILE) as file:
        for part in made:
            file._append_segment(part)
    storage.update_metadata({"note": "its count is told by hand"})
    metadata = path / "metadata.json"
    said = json.loads(metadata.read_text()) | {"total_episodes": 7, "total_steps": 19}
    metadata.write_text(json.dumps(said))
    settle(path)
    forget()
    assert_index_is_right(storage)
    mapped = hdf5_mapped.open_mapped(path / FILE)
    assert mapped is not None
    assert mapped.index is not None
    assert [part.runs.firsts.tolist() for part in mapped.index.parts] == [[0, 4, 6]]
    for order in ([6, 0, 3, 1, 5], [2, 4, 2]):
        expected = by_structure(storage)
        for index, found in zip(order, storage.get_episodes(order), strict=True):
            assert_same(found["observations"], expected[index]["observations"])
            assert found["seed"] is None


def test_episodes_of_several_structures_are_in_several_parts(tmp_path: Path) -> None:
    made = buffers(9)
    for index, one in enumerate(made):
        infos = {} if index % 3 else {"goal": {"x": np.arange(len(one.rewards) + 1.0)}}
        made[index] = replace(one, infos=infos, options={"level": index} if index % 2 else None)
    storage = written(tmp_path / "data", made)
    assert_index_is_right(storage)
    forget()
    assert_index_is_right(storage)
    assert [list(fields["infos"]) for fields in storage.get_episodes([0, 1, 3])] == [
        ["goal"],
        [],
        ["goal"],
    ]


def test_what_the_index_leaves_out_is_read_by_its_structure(tmp_path: Path) -> None:
    path = tmp_path / "data"
    made = buffers(4)
    steps = len(made[2].rewards)
    made[2] = replace(made[2], infos={"said": np.array(["a"] * (steps + 1), object)})
    storage = written(path, made)
    assert_index_is_right(storage)
    (found,) = storage.get_episodes([2])
    assert found["infos"]["said"].tolist() == ["a"] * (steps + 1)


def test_rows_without_bytes_and_other_byte_orders_are_read(tmp_path: Path) -> None:
    made = [replace(one, infos={"none": np.zeros((len(one.rewards) + 1, 0))}) for one in buffers(3)]
    storage = written(tmp_path / "data", made)
    with h5py.File(tmp_path / "data" / FILE, "r+") as file:
        for group in file.values():
            rewards = group["rewards"][()].astype(">f8")
            del group["rewards"]
            group["rewards"] = rewards
    settle(tmp_path / "data")
    assert_index_is_right(storage)
    (found,) = storage.get_episodes([1])
    assert found["rewards"].dtype == np.dtype(">f8")
    assert found["infos"]["none"].shape == (len(made[1].rewards) + 1, 0)


# --- arrays


@pytest.fixture
def dataset(tmp_path: Path) -> MinariDataset:
    written(tmp_path / "data")
    return MinariDataset(tmp_path / "data")


def arrays(episode: Any) -> Iterator[np.ndarray]:
    for _, leaf in leaves({k: v for k, v in vars(episode).items() if k not in ("id", "seed")}):
        yield leaf


def test_arrays_are_read_only_views_unless_copies_are_asked_for(dataset: MinariDataset) -> None:
    assert not any(array.flags.writeable for array in arrays(dataset[0]))
    with pytest.raises(ValueError, match="read-only"):
        dataset[0].rewards[0] = 1
    copies = MinariDataset(dataset.storage.data_path, copy=True)
    shutil.copytree(dataset.storage.data_path, minari_pipe.get_dataset_path() / "aa/b-v0/data")
    assert minari_pipe.load_dataset("aa/b-v0", copy=True)[0].rewards.flags.writeable
    assert not minari_pipe.load_dataset("aa/b-v0")[0].rewards.flags.writeable
    for found in (
        next(dataset.iterate_episodes([0], copy=True)),
        dataset.sample_episodes(1, copy=True)[0],
        copies[0],
        copies[:2][0],
        copies.sample_episodes(1)[0],
        next(iter(copies)),
    ):
        assert all(array.flags.writeable for array in arrays(found))
        found.rewards[:] = 7
    assert not (dataset[0].rewards == 7).any()
    assert not next(copies.iterate_episodes([0], copy=False)).rewards.flags.writeable


def test_code_that_was_written_for_minari_gets_copies(dataset: MinariDataset) -> None:
    alias.install(force=True)
    try:
        (fields,) = dataset.storage.get_episodes([0])
        assert all(array.flags.writeable for array in (*arrays(dataset[0]), fields["rewards"]))
    finally:
        alias.uninstall()
    assert not dataset[0].rewards.flags.writeable


def test_arrays_outlive_everything(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    expected = by_structure(storage)
    found = list(storage.get_episodes(range(6)))
    del storage
    forget()
    shutil.rmtree(tmp_path / "data")
    for left, right in zip(found, expected, strict=True):
        right.pop("attributes")
        assert_same(left, right)


def test_pickles_hold_values_of_arrays_and_paths_of_datasets(dataset: MinariDataset) -> None:
    episode = dataset[1]
    again = pickle.loads(pickle.dumps(episode))
    assert_same(vars(again), vars(episode))
    assert len(pickle.dumps(dataset.storage)) < 10_000
    assert_same(vars(pickle.loads(pickle.dumps(dataset))[1]), vars(episode))


def _returns(path: str, connection: Any) -> None:
    connection.send([float(e.rewards.sum()) for e in MinariDataset(path)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_reads_the_same(dataset: MinariDataset) -> None:
    expected = [float(episode.rewards.sum()) for episode in dataset]
    context = multiprocessing.get_context("fork")
    for holds_lock in (False, True):
        here, there = context.Pipe()
        with hdf5_mapped._lock if holds_lock else threading.Lock():
            process = context.Process(target=_returns, args=(str(dataset.storage.data_path), there))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
                process.start()
        assert here.poll(60)
        assert here.recv() == expected
        process.join()


def test_threads_read_the_same(dataset: MinariDataset) -> None:
    expected = by_structure(dataset.storage)
    forget()
    results: list[list[dict[str, Any]]] = []

    def read() -> None:
        for _ in range(5):
            results.append(by_index(MinariStorage.read(dataset.storage.data_path)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    for found in results:
        assert_same(found, expected)


def test_workers_of_a_data_loader_read_the_same(dataset: MinariDataset) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    expected = [episode.rewards.tolist() for episode in dataset]
    loader = torch_data.DataLoader(
        dataset, batch_size=1, num_workers=2, collate_fn=lambda batch: batch[0].rewards.tolist()
    )
    assert list(loader) == expected


# --- the file changes


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_anew(tmp_path: Path) -> None:
    storage, other = written(tmp_path / "a"), written(tmp_path / "b", buffers(6, first=8))
    place, new = tmp_path / "a" / FILE, (tmp_path / "b" / FILE).read_bytes()
    list(storage.get_episodes(range(6)))
    before = place.stat()
    assert before.st_size == len(new)
    place.write_bytes(new)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_same(by_index(storage), by_structure(other))
    list(storage.get_episodes(range(6)))
    os.utime(tmp_path / "b" / FILE, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "b" / FILE, place)  # swapped by rename
    assert_same(by_index(storage), by_structure(storage))


def test_a_change_within_the_same_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    storage, other = written(tmp_path / "a"), written(tmp_path / "b", buffers(6, first=8))
    place, new = tmp_path / "a" / FILE, (tmp_path / "b" / FILE).read_bytes()
    with open(place, "rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        samples = sample(lambda start, size: hdf5_index_cache._read_at(file, start, size), 10**5)
    old = hdf5_mapped.open_mapped(place)
    assert old is not None
    assert old.index is not None
    stored = old.index.stored
    # the index is kept as one of a young file, whose stamp the new content happens to have
    hdf5_mapped.close_mapped()
    place.write_bytes(new)
    fresh = Stamp.of(os.stat(place))
    save(stored, fresh, samples)
    assert stamp != fresh
    assert load(fresh, lambda start, size: new[start : start + size]) is None
    assert_same(by_index(storage), by_structure(other))


def test_the_index_of_a_young_file_is_settled_when_it_is_read_later(tmp_path: Path) -> None:
    storage = MinariStorage.new(tmp_path / "data", OBSERVATION, ACTION, data_format="hdf5")
    storage.update_episodes(buffers())
    stamp = Stamp.of(os.stat(tmp_path / "data" / FILE))
    kept = hdf5_index_cache.cache_folder() / "index" / stamp.name
    assert kept.read_bytes()[hdf5_index_cache._SETTLED_AT] == 0
    settle(tmp_path / "data")
    list(storage.get_episodes(range(6)))
    assert kept.read_bytes()[hdf5_index_cache._SETTLED_AT] == 1


def test_a_file_that_is_not_the_one_that_was_written_gets_no_index(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    path = tmp_path / "data" / FILE
    index = FileIndex(np.zeros(0, np.int64), (), AttributeTable({}))
    before = path.stat()
    expected = by_structure(storage)
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    remember(path, index, before)
    assert_same(by_index(storage), expected)


def test_a_file_that_is_cut_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    storage = written(tmp_path / "data", buffers(80))
    found = storage.get_episodes(range(80))
    next(found)
    os.truncate(tmp_path / "data" / FILE, 3000)
    with pytest.raises(CorruptDatasetError, match="truncated while it was read"):
        list(found)
    with pytest.raises(CorruptDatasetError):
        list(storage.get_episodes([0]))


# --- the cache


def damage(content: bytes, how: str) -> bytes:
    if how == "empty":
        return b""
    if how == "cut":
        return content[:-9]
    if how == "of another version":
        return b"mpindex0" + content[8:]
    if how == "other bytes":
        return content[:-20] + bytes(20)
    return b"no index at all" * 50


@pytest.mark.parametrize(
    "how", ["empty", "cut", "of another version", "other bytes", "something else"]
)
def test_a_damaged_cache_is_made_anew(tmp_path: Path, how: str) -> None:
    storage = written(tmp_path / "data")
    expected = by_structure(storage)
    list(storage.get_episodes(range(6)))
    (kept,) = (hdf5_index_cache.cache_folder() / "index").iterdir()
    content = kept.read_bytes()
    kept.write_bytes(damage(content, how))
    hdf5_mapped.close_mapped()
    assert_same(by_index(storage), expected)
    hdf5_mapped.close_mapped()
    assert is_indexed(storage)


def test_without_a_cache_folder_the_index_is_kept_in_memory(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "taken").write_text("a file where the folder would be")
    monkeypatch.setenv("MINARI_PIPE_CACHE", str(tmp_path / "taken"))
    storage = written(tmp_path / "data")
    expected = by_structure(storage)
    assert_same(by_index(storage), expected)
    hdf5_mapped.close_mapped()
    assert is_indexed(storage)
    assert_same(by_index(storage), expected)
    assert (tmp_path / "taken").is_file()


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system does not list descriptors")
def test_arrays_of_many_versions_of_a_file_leave_descriptors_for_others(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    before = len(os.listdir("/dev/fd"))
    kept = []
    for number in range(100):
        storage.update_episode_metadata([{"number": number}], [0])
        kept += storage.read_episodes([0])
    assert len(os.listdir("/dev/fd")) - before < 80
    assert_same([vars(episode) for episode in kept], [vars(kept[0])] * 100)


def test_nothing_is_left_beside_the_data(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    list(storage.get_episodes(range(6)))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [FILE, "metadata.json"]


def test_the_oldest_indexes_are_removed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(hdf5_index_cache, "_MOST_BYTES", 4000)
    monkeypatch.setattr(hdf5_index_cache, "_SWEEP_EVERY", 1)
    stored = StoredIndex(0, (), Attributes({}, [b"x" * 900]))
    for inode in range(20):
        save(stored, Stamp(1, inode, 10, 0, 0), None)
        os.utime(hdf5_index_cache.cache_folder() / "index" / f"1-{inode:x}.idx", (inode, inode))
    kept = sorted(path.name for path in (hdf5_index_cache.cache_folder() / "index").iterdir())
    assert len(kept) < 5
    assert "1-13.idx" in kept


SIZE = 10_000
LEAF = Leaf(("rewards",), np.dtype("<f8"), (), 0)


def runs(**changes: Any) -> Runs:
    values: dict[str, Any] = {
        "episodes": np.array([0, 1]),
        "leaves": (LEAF,),
        "steps": np.array([3, 4]),
        "firsts": np.array([0]),
        "addresses": np.array([[100]]),
    }
    return Runs(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"addresses": np.array([[SIZE - 55]])},
        {"addresses": np.array([[-8]])},
        {"addresses": np.array([[2**63 - 1]])},
        {"steps": np.array([3, 2**39])},
        {"steps": np.array([3, -1])},
        {"steps": np.array([3, 2**62])},
        {"episodes": np.array([1, 0])},
        {"episodes": np.array([0, 9])},
        {"firsts": np.array([1])},
        {"firsts": np.array([0, 5]), "addresses": np.array([[100, 100]])},
        {"leaves": (replace(LEAF, shape=(2**61,)),)},
        {"leaves": (replace(LEAF, shape=(-1,)),)},
        {"leaves": (replace(LEAF, dtype=np.dtype(object)),)},
        {"leaves": (replace(LEAF, more=-5),)},
    ],
    ids=str,
)
def test_an_index_that_leads_out_of_the_file_is_not_used(changes: dict[str, Any]) -> None:
    assert runs().fits(2, SIZE)
    hostile = runs(**changes)
    assert not hostile.fits(2, SIZE)
    stamp = Stamp(1, 2, SIZE, 3, 4)
    if hostile.leaves[0].dtype != object:
        save(StoredIndex(2, (hostile,), Attributes({}, None)), stamp, None)
        assert load(stamp, lambda *_: b"") is None


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12))
def test_runs_are_the_part_again(given_steps: list[tuple[int, bool]]) -> None:
    steps = np.array([steps for steps, _ in given_steps])
    gaps = np.array([8 * gap for _, gap in given_steps])
    leaf_sizes = [(steps + more) * 8 for more in (0, 1)]
    addresses = np.stack(
        [np.cumsum(np.append(100, size[:-1])) + np.cumsum(gaps) for size in leaf_sizes]
    )
    part = Part(
        np.arange(len(steps)), (LEAF, Leaf(("observations",), np.dtype("<f8"), (), 1)), addresses
    )
    found = Runs.of(part, steps)
    assert len(found.firsts) == 1 + int(np.count_nonzero(gaps[1:]))
    assert_same(found.part().addresses, addresses)


PLAIN = st.sampled_from([None, True, 0, 1, -(2**63), 2**64 - 1, 2**70, 0.5, np.nan, "é", ""])
VALUES = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.sampled_from(["x", "a/b"]), PLAIN)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES), min_size=1, max_size=5))
@examples(100 if FULL else 40)
def test_attributes_come_back_as_they_are(rows: list[dict[str, Any]]) -> None:
    kept = Attributes.gather(rows)
    stamp = Stamp(1, 2, SIZE, 3, 4)
    save(StoredIndex(len(rows), (), kept), stamp, None)
    again = load(stamp, lambda *_: b"")
    assert again is not None
    assert_same([again.attributes.row(index) for index in range(len(rows))], rows)


# --- files that are damaged


def test_damage_is_named_whether_there_is_an_index_or_not(tmp_path: Path) -> None:
    path = tmp_path / "data"
    storage = written(path)
    with h5py.File(path / FILE, "r+") as file:
        file["episode_2/rewards"].resize(1, 0)
        file["episode_3"].attrs["total_steps"] = 99
        del file["episode_4/actions"]
    settle(path)
    for _ in range(2):
        for index in (2, 3, 4):
            with pytest.raises(CorruptDatasetError, match=f"episode {index}"):
                list(storage.get_episodes([index]))
        assert len(list(storage.get_episodes([0, 1, 5]))) == 3


def test_a_bool_that_is_none_is_damage_in_every_pass(tmp_path: Path) -> None:
    path = tmp_path / "data"
    storage = written(path)
    file = hdf5_mapped.open_mapped(path / FILE)
    assert file is not None
    assert file.index is not None
    (part,) = file.index.parts
    place = [leaf.path for leaf in part.runs.leaves].index(("truncations",))
    address = int(part.runs.part().addresses[place, 2])
    with open(path / FILE, "r+b") as raw:
        raw.seek(address)
        raw.write(b"\7")
    settle(path)
    for _ in range(2):
        with pytest.raises(CorruptDatasetError, match="a bool is neither 0 nor 1"):
            list(storage.get_episodes(range(6)))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each writer."""
    folder = tmp_path_factory.mktemp("sound")
    made = [replace(one, options={"level": "hard"}) for one in buffers(4)]
    return {
        "ours": written(folder / "ours", made).data_path,
        "minari": written_by_minari(folder / "minari", 3).data_path,
    }


def outcome(read: Any, index: int) -> Any:
    try:
        (found,) = read(index)
    except (MinariPipeError, IndexError) as error:
        return type(error)
    return found


@pytest.mark.parametrize("writer", ["ours", "minari"])
@given(st.data())
@examples(60 if FULL else 20)
def test_other_bytes_anywhere_are_read_or_refused_as_by_the_structure(
    sound: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, writer: str, data: Any
) -> None:
    """A file is given other bytes; the index, made of it or not, finds what its structure does."""
    content = bytearray((sound[writer] / FILE).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.sampled_from([0, 1, 7, 0x7F, 0x80, 0xFF]))
    path = tmp_path_factory.mktemp("other")
    shutil.copy(sound[writer] / "metadata.json", path)
    (path / FILE).write_bytes(content)
    storage = MinariStorage.read(path)
    spaces = (storage.observation_space, storage.action_space)

    def structure(index: int) -> Iterator[dict[str, Any]]:
        with hdf5_file.EpisodeFile.open(path / FILE) as file:
            if index >= len(file):
                raise CorruptDatasetError("it is missing, as metadata.json counts it")
            yield vars(file.read(index, *spaces))

    expected = [outcome(structure, index) for index in range(3)]
    for _ in range(2):
        found = [outcome(lambda i: storage.get_episodes([i]), index) for index in range(3)]
        assert_same(found, expected)
        settle(path)


def test_a_file_that_cannot_be_opened_is_told_whatever_is_asked_for(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    (tmp_path / "data" / FILE).write_bytes(b"no HDF5")
    for read in (storage.get_episodes, storage.get_episode_metadata):
        with pytest.raises(CorruptDatasetError, match=FILE):
            list(read([]))


def test_an_episode_that_is_not_there_is_named_as_ever(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    list(storage.get_episodes(range(6)))
    for read in (storage.get_episodes, storage.get_episode_metadata, storage.get_attribute_table):
        for index in (-1, 6):
            with pytest.raises(IndexError, match=f"episode {index} is out of range"):
                list(read([index]))
    metadata = tmp_path / "data" / "metadata.json"
    said = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**said, "total_episodes": 8}))
    with pytest.raises(CorruptDatasetError, match="episode 7 is missing"):
        list(storage.get_episodes([7]))


def test_other_spaces_than_those_of_the_index_are_judged_as_ever(tmp_path: Path) -> None:
    storage = written(tmp_path / "data")
    list(storage.get_episodes(range(6)))
    other = HDF5Storage(tmp_path / "data", gym.spaces.Box(-1, 1, (4,)), ACTION)
    for _ in range(2):
        with pytest.raises(CorruptDatasetError, match="has rows of shape"):
            list(other.get_episodes([0]))
    assert len(list(storage.get_episodes(range(6)))) == 6


# --- attributes in columns


def test_attributes_come_in_columns(dataset: MinariDataset) -> None:
    table = dataset.storage.get_attribute_table([4, 0])
    assert table is not None
    expected = list(dataset.storage.get_episode_metadata([4, 0]))
    assert_same([table[0], table[1]], expected)
    assert_same(table.numbers["seed"], np.array([4, 0]))
    assert dataset[:3].total_steps == sum(len(episode) for episode in dataset[:3])


def test_real_minari_reads_on_while_our_views_are_held(dataset: MinariDataset) -> None:
    held = list(dataset)
    theirs = minari.MinariDataset(dataset.storage.data_path)
    theirs.update_dataset_from_buffer([buffer(4, 70, TheirBuffer)])
    assert [len(episode) for episode in theirs] == [*map(len, held), 4]
    again = minari_pipe.MinariDataset(dataset.storage.data_path)
    assert_same(again[6].observations, buffer(4, 70).observations)
