"""Every dataset knows what its files are, from its creation on and through every change."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from typer.testing import CliRunner

import minari_pipe
from minari_pipe import EpisodeBuffer, MinariDataset, files, load_dataset
from minari_pipe.cli import app
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.manifest import MANIFEST, read_manifest

ID = "aa/b-v0"
FORMATS = ("hdf5", "arrow", "parquet")
SPACES = {"observation_space": gym.spaces.Discrete(9), "action_space": gym.spaces.Discrete(2)}

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None)")


def make(seed: int = 0, count: int = 3) -> list[EpisodeBuffer]:
    return [
        EpisodeBuffer(
            seed=seed,
            observations=np.arange(4),
            actions=np.zeros(3, int),
            rewards=np.full(3, float(seed)),
            terminations=np.array([False, False, True]),
            truncations=np.zeros(3, bool),
        )
        for _ in range(count)
    ]


def create(dataset_id: str = ID, data_format: str = "hdf5") -> MinariDataset:
    return minari_pipe.create_dataset_from_buffers(
        dataset_id, make(), data_format=data_format, **SPACES
    )


def folder(dataset: MinariDataset) -> Path:
    return dataset.storage.data_path.parent


def assert_verified(dataset_id: str = ID) -> None:
    dataset = load_dataset(dataset_id, verify=True)
    content = read_manifest(folder(dataset))
    assert content is not None
    assert content["total_episodes"] == dataset.total_episodes
    assert content["total_steps"] == dataset.total_steps


def collect() -> None:
    env = minari_pipe.DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=0)
    env.step(0)
    env.create_dataset(ID)


CREATIONS: dict[str, Callable[[], object]] = {
    "buffers": create,
    "a collector": collect,
    "a combination": lambda: minari_pipe.combine_datasets([create("x-v0"), create("y-v0")], ID),
    "a migration": lambda: minari_pipe.migrate_dataset(folder(create("x-v0")), ID),
    "a deletion of episodes": lambda: create("x-v0").delete_episodes([0], ID),
}


@pytest.mark.parametrize("way", CREATIONS)
def test_every_creation_writes_a_manifest(way: str) -> None:
    CREATIONS[way]()
    assert_verified()


CHANGES: dict[str, Callable[[MinariDataset], object]] = {
    "an append": lambda dataset: dataset.storage.update_episodes(make(1)),
    "a continuation": lambda dataset: dataset.storage.update_episodes(
        [replace(make()[0], id=2, seed=None, observations=np.arange(3))]
    ),
    "metadata": lambda dataset: dataset.storage.update_metadata({"author": {"Ada"}}),
    "attributes": lambda dataset: dataset.storage.update_episode_metadata([{"x": 1}], [2]),
}


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_keeps_the_manifest_in_step(change: str, data_format: str) -> None:
    dataset = create(data_format=data_format)
    before = read_manifest(folder(dataset))
    CHANGES[change](dataset)
    assert read_manifest(folder(dataset)) != before
    assert_verified()


@pytest.mark.parametrize("data_format", FORMATS)
def test_one_changed_byte_of_any_file_is_named(data_format: str) -> None:
    dataset = create(data_format=data_format)
    dataset.storage.update_episodes(make(1))
    for file in sorted(p for p in dataset.storage.data_path.rglob("*") if p.is_file()):
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        name = file.relative_to(folder(dataset)).as_posix()
        with pytest.raises(CorruptDatasetError, match=f"names: {name} has other content"):
            load_dataset(ID, verify=True)
        file.write_bytes(good)
    assert_verified()


def test_a_change_does_not_vouch_for_files_that_it_does_not_touch() -> None:
    dataset = create()
    file = dataset.storage.data_path / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    dataset.storage.update_metadata({"author": {"Ada"}})
    with pytest.raises(CorruptDatasetError, match=r"names: data/main_data\.hdf5 has other content"):
        load_dataset(ID, verify=True)


@pytest.mark.filterwarnings("ignore:.*(overridden|env_spec)")
def test_an_append_by_another_program_is_no_damage_and_is_not_vouched_for() -> None:
    create()
    names = ("seed", "observations", "actions", "rewards", "terminations", "truncations")
    given = {name: getattr(make()[0], name) for name in names}
    theirs = minari.data_collector.EpisodeBuffer(**given, infos={})
    minari.load_dataset(ID).update_dataset_from_buffer([theirs])
    dataset = load_dataset(ID)
    for _ in range(2):
        with pytest.raises(CorruptDatasetError, match="changed since it was finished, by a prog"):
            load_dataset(ID, verify=True)
        dataset.storage.update_episodes(make(2))
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"])
    assert done.exit_code == 0
    assert "2 warnings" in done.output


def test_a_manifest_changes_in_the_same_rename_as_the_data(monkeypatch) -> None:
    """A process that is killed right after it leaves both new, one before it both old."""
    dataset = create()
    with monkeypatch.context() as patch:
        patch.setattr(files, "_roll_forward", lambda directory: None)
        dataset.storage.update_episodes(make(1))
    assert load_dataset(ID).total_episodes == 6
    assert_verified()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "rename", _killed)
        with pytest.raises(KeyboardInterrupt):
            dataset.storage.update_episodes(make(1))
    assert load_dataset(ID).total_episodes == 6
    assert_verified()


def _killed(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_dataset_that_grows_is_verified_without_a_false_alarm() -> None:
    dataset = create()
    done = threading.Event()

    def grow() -> None:
        for seed in range(15):
            dataset.storage.update_episodes(make(seed, 1))
        done.set()

    thread = threading.Thread(target=grow)
    thread.start()
    while not done.is_set():
        load_dataset(ID, verify=True)
    thread.join()
    assert_verified()


def test_a_file_that_is_moved_to_its_place_meanwhile_is_found_there(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("text")
    seen = os.stat

    def look(path: Any, **kwargs: Any) -> os.stat_result:
        found = seen(path, **kwargs)
        with contextlib.suppress(FileNotFoundError):
            os.rename(tmp_path / "file", tmp_path / "elsewhere")
        return found

    monkeypatch.setattr(os, "stat", look)
    with pytest.raises(FileNotFoundError):
        files.read_text(tmp_path / "file")


def test_the_content_hash_of_a_publication_goes_with_the_first_change() -> None:
    dataset = create()
    path = folder(dataset) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "content_sha256": "0" * 64}))
    dataset.storage.update_metadata({"author": {"Ada"}})
    assert "content_sha256" not in json.loads(path.read_text())
    assert_verified()


def test_real_minari_lists_and_loads_a_dataset_with_a_manifest() -> None:
    create()
    with warnings.catch_warnings(action="ignore"):
        assert list(minari.list_local_datasets()) == [ID]
        assert minari.load_dataset(ID).total_episodes == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"files": 5}',
        '{"files": {"data/../../x": {}}}',
        '{"files": {"../../x": {"sha256": "0", "size": 1}}}',
    ],
)
def test_validate_reports_a_damaged_manifest(text: str) -> None:
    (folder(create()) / MANIFEST).write_text(text)
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "manifest.json" in done.output
    assert "is no manifest" in done.output or "is damaged" in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_what_is_no_file_is_not_waited_for() -> None:
    place = folder(create())
    content = json.loads((place / MANIFEST).read_text())
    os.mkfifo(place / "data" / "pipe")
    for name in ("data/pipe", "data/metadata.json/x", f"data/{'x' * 5000}", "data"):
        content["files"][name] = {"sha256": "0" * 64, "size": 0}
    (place / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CorruptDatasetError, match=r"`files` must have"):
        load_dataset(ID, verify=True)
    del content["files"]["data"]
    (place / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CorruptDatasetError, match=r"data/pipe is no file; data/meta.*n/x is"):
        load_dataset(ID, verify=True)
    (place / MANIFEST).unlink()
    os.mkfifo(place / MANIFEST)
    with pytest.raises(CorruptDatasetError, match=r"manifest\.json is no manifest"):
        load_dataset(ID, verify=True)


def test_what_a_stranger_left_as_a_commit_is_written_nowhere_else(tmp_path: Path) -> None:
    """A dataset may come with what looks like a change that was broken off."""
    dataset = create()
    outside = tmp_path / "outside"
    outside.mkdir()
    commit = dataset.storage.data_path / ".minari_pipe-commit"
    (commit / "sub").mkdir(parents=True)
    (commit / "sub" / ".profile").write_text("evil")
    (dataset.storage.data_path / "sub").symlink_to(outside)
    with contextlib.suppress(OSError):
        dataset.storage.update_metadata({"author": {"Ada"}})
    assert list(outside.iterdir()) == []
