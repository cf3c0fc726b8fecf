"""Links that came with a git repository lead nowhere; the user's own do."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import gymnasium as gym
import h5py
import pytest
from gymnasium.spaces import Discrete

from minari_pipe import (
    DataCollectorV0,
    MinariDataset,
    MinariStorage,
    delete_dataset,
    load_dataset,
    migrate_dataset,
    publish_dataset,
)
from minari_pipe.cli import app
from minari_pipe.core.files.atomic import transaction
from minari_pipe.core.files.fetch import locate
from minari_pipe.core.git import git, refuse_tracked_links
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import DatasetExistsError, LinkError, MinariPipeError
from minari_pipe.pipeline.config.schema import Source
from minari_pipe.recording.recovery import discard, recover
from minari_pipe.remotes.directory import DirectoryRemote


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose ``link`` leads to a folder of the user, and the current folder."""
    (tmp_path / "mine" / "inner").mkdir(parents=True)
    folder = tmp_path / "clone"
    (folder / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "mine")
    (folder / "deep" / "Link").symlink_to("../../mine")
    assert git(folder, "init", "--quiet").returncode == 0
    assert git(folder, "add", "--all").returncode == 0
    (folder / "own").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    "path", ["link", "link/inner/new", "deep/Link/x", "deep/../link", "./link"]
)
def test_a_link_that_came_with_a_repository_is_refused(path, clone):
    for way in (path, clone / path):
        with pytest.raises(LinkError, match="ink is a symlink to .* with its git repository"):
            refuse_tracked_links(way)


def test_a_link_of_the_user_s_is_followed(clone, tmp_path, monkeypatch):
    (tmp_path / "outside").symlink_to(tmp_path / "mine")
    (tmp_path / "to_clone").symlink_to(clone)
    for way in ("own", "own/inner", tmp_path / "outside", "deep", tmp_path / "to_clone" / "deep"):
        refuse_tracked_links(way)
    with pytest.raises(LinkError):
        refuse_tracked_links(tmp_path / "to_clone" / "link")


def bare(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Git takes the folder of the link for a bare repository."""
    for name in ("objects", "refs"):
        (clone / "deep" / name).mkdir()
        (clone / "deep" / name / ".keep").touch()
    (clone / "deep" / "HEAD").write_text("ref: refs/heads/main\n")
    git(clone, "add", "--all")
    return clone / "deep" / "Link"


def of_another_user(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    return clone / "link"


def without_git(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(clone))
    return clone / "link"


def of_a_hook(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_DIR", str(clone / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(clone / "none"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    return clone / "deep" / "Link"


def behind_another(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (clone.parent / "mine" / "way").symlink_to("../clone/deep/Link")
    return clone / "own" / "way"


def of_another_case(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (clone / "deep" / "Link").rename(clone / "deep" / "LINK")
    return clone / "deep" / "LINK"


def below_a_repository_of_the_user(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert git(clone / "deep", "init", "--quiet").returncode == 0
    return clone / "deep" / "Link"


def where_a_submodule_was(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Git leaves ``.git`` behind when a commit has a folder in the place of a submodule."""
    assert git(clone / ".git", "init", "--quiet", "--bare", "modules").returncode == 0
    (clone / "deep" / ".git").write_text("gitdir: ../.git/modules\n")
    return clone / "deep" / "Link"


def untracked(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commit(clone)
    (clone / ".gitignore").write_text("link\n")
    assert git(clone, "rm", "-r", "--quiet", "--cached", ".").returncode == 0
    assert git(clone, "add", "--all").returncode == 0
    return commit(clone) / "link"


def of_a_commit_that_was_left(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commit(clone)
    assert git(clone, "rm", "--quiet", "--cached", "link").returncode == 0
    commit(clone, "--amend")
    return clone / "link"


def commit(clone: Path, *words: str) -> Path:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    assert git(clone, *who, "commit", "--quiet", "--message", "x", *words).returncode == 0
    return clone


DISGUISES = [
    *(bare, of_another_user, without_git, of_a_hook, behind_another, of_another_case),
    *(below_a_repository_of_the_user, where_a_submodule_was, untracked, of_a_commit_that_was_left),
]


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_link_is_refused_unless_git_says_that_it_is_not_its_own(disguise, clone, monkeypatch):
    with pytest.raises(LinkError, match="is a symlink to"):
        refuse_tracked_links(disguise(clone, monkeypatch))


def test_no_leftover_and_no_cache_is_reached_by_a_link_of_a_repository(
    clone, tmp_path, monkeypatch
):
    with pytest.raises(LinkError):
        recover("example/x-v0", clone / "link" / "inner")
    with pytest.raises(LinkError):
        discard(clone / "link" / "inner")
    monkeypatch.setenv("MINARI_PIPE_CACHE", "link")
    (tmp_path / "file.zip").write_bytes(b"bytes")
    sha256 = hashlib.sha256(b"bytes").hexdigest()
    source = Source(address="http://127.0.0.1:9/file.zip", sha256=sha256)
    with pytest.raises(LinkError):
        locate(source, what="policy.checkpoint", override="x")
    list(load_dataset(step_index_dataset().id))  # reads without its cache
    monkeypatch.setenv("MINARI_PIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_PIPE_MIRROR", "link")
    with pytest.raises(LinkError):
        locate(source, what="policy.checkpoint", override="x")
    assert os.listdir(tmp_path / "mine") == ["inner"]


def test_no_remote_and_no_root_is_reached_by_a_link_of_a_repository(clone, tmp_path, monkeypatch):
    dataset = step_index_dataset()
    for address in ("link", "./link/inner", f"file://{clone}/link"):
        with pytest.raises(LinkError):
            DirectoryRemote(address)
        with pytest.raises(LinkError):
            publish_dataset(dataset.id, address)
    with pytest.raises(LinkError):
        publish_dataset(dataset.id, tmp_path / "remote", folder=clone / "link" / "inner")
    monkeypatch.setenv("MINARI_DATASETS_PATH", "link")
    with pytest.raises(LinkError):
        load_dataset(dataset.id)
    with pytest.raises(LinkError):
        delete_dataset(dataset.id)
    assert os.listdir(tmp_path / "mine") == ["inner"]


@pytest.mark.filterwarnings("ignore:DataCollectorV0")
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_no_storage_is_made_through_a_link_of_a_repository_or_a_root(
    data_format, clone, tmp_path, monkeypatch
):
    root = tmp_path / "root"
    (root / "door" / "x-v0").mkdir(parents=True)
    (root / "door" / "x-v0" / "data").symlink_to(tmp_path / "mine")
    (root / "gate").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    spaces = {"observation_space": Discrete(2), "action_space": Discrete(2)}
    metadata = {"dataset_id": "door/x-v0"}
    for place in ("link/data", clone / "link/x/data", root / "door/x-v0/data", root / "gate/data"):
        for make in (
            lambda path: MinariStorage.new(path, **spaces, data_format=data_format),
            lambda path: MinariStorage.create(
                path, [], metadata=metadata, **spaces, data_format=data_format
            ),
            DataCollectorV0(gym.make("CartPole-v1")).save_to_disk,
        ):
            with pytest.raises(LinkError, match="is a symlink to"):
                make(place)
    assert os.listdir(tmp_path / "mine") == ["inner"]
    assert os.listdir(tmp_path / "mine" / "inner") == []


@pytest.mark.parametrize(
    ("target", "tracked"),
    [
        ("../../mine/x-v0/data", True),
        ("../../mine", True),
        ("../../mine", False),  # a namespace
        ("../../mine/x-v0", False),
        ("../../.minari_pipe", False),
        ("../../.minari_pipe/x/data", False),
        ("../../data", False),  # a namespace called so
    ],
)
def test_data_of_the_root_that_are_a_link_to_no_other_data_are_refused(target, tracked, tmp_path):
    own = step_index_dataset("mine/x-v0").storage.data_path
    root = own.parent.parent.parent
    (root / ".minari_pipe" / "x" / "data").mkdir(parents=True)
    for namespace in ("mine", "data"):
        shutil.copytree(own, root / namespace, dirs_exist_ok=True)  # reads like a dataset
    (root / "theirs" / "x-v0").mkdir(parents=True)
    link = root / "theirs" / "x-v0" / "data"
    link.symlink_to(target)
    if tracked:
        assert git(root / "theirs", "init", "--quiet").returncode == 0
        assert git(root / "theirs", "add", "--all").returncode == 0
    (root / "mine" / ".minari_pipe-commit" / "x-v0").mkdir(parents=True)
    (root / "mine" / ".minari_pipe-commit" / "x-v0" / "mine.txt").write_text("theirs")
    before = sorted(root.rglob("*"))
    for use in (
        lambda: load_dataset("theirs/x-v0"),
        lambda: migrate_dataset("theirs/x-v0", "new/x-v0"),
        lambda: publish_dataset("theirs/x-v0", tmp_path / "remote"),
        lambda: publish_dataset("theirs/x-v0", tmp_path / "remote", dry_run=True),
        lambda: MinariDataset(link),
        lambda: transaction(link).__enter__(),
    ):
        with pytest.raises(MinariPipeError):
            use()
    assert not (tmp_path / "remote" / "theirs").exists()
    assert sorted(root.rglob("*")) == before


def test_data_may_be_a_link_of_the_users_to_other_data_where_the_root_is_one(tmp_path, monkeypatch):
    own = step_index_dataset("mine/x-v0").storage.data_path
    (tmp_path / "root").symlink_to(own.parent.parent.parent)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    link = tmp_path / "root" / "also" / "x-v0" / "data"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../mine/x-v0/data")
    assert len(load_dataset("also/x-v0")) == len(load_dataset("mine/x-v0"))


def test_a_new_storage_replaces_no_file_of_the_users(tmp_path):
    spaces = {"observation_space": Discrete(2), "action_space": Discrete(2)}
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "w") as file:
        file["mine"] = [1]
    with pytest.raises(DatasetExistsError, match=r"main_data\.hdf5 already exists"):
        MinariStorage.new(tmp_path / "data", **spaces)
    (tmp_path / "manifest.json").write_text("mine")
    metadata = {"dataset_id": "door/x-v0"}
    MinariStorage.create(tmp_path / "data", [], metadata=metadata, **spaces, data_format="arrow")
    assert (tmp_path / "manifest.json").read_text() == "mine"
    with h5py.File(tmp_path / "data" / "main_data.hdf5") as file:
        assert [*file] == ["mine"]


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_a_new_storage_takes_no_folder_of_the_users_for_an_episode(data_format, tmp_path):
    spaces = {"observation_space": Discrete(2), "action_space": Discrete(2)}
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "mine.txt").write_text("mine")
    with pytest.raises(DatasetExistsError, match="0 already exists and is not of a dataset"):
        MinariStorage.new(tmp_path, **spaces, data_format=data_format)
    with pytest.raises(DatasetExistsError, match="0 already exists and is not of a dataset"):
        MinariStorage.create(tmp_path, [], metadata={}, **spaces, data_format=data_format)
    assert [*tmp_path.rglob("*.txt")] == [tmp_path / "0" / "mine.txt"]


def test_no_dataset_is_changed_through_a_link_of_a_repository(clone, tmp_path, monkeypatch):
    data = step_index_dataset().storage.data_path
    mine = shutil.copytree(data, tmp_path / "mine" / "data")
    (clone / "set").mkdir()
    (clone / "set" / "data").symlink_to(mine)
    assert git(clone, "add", "--all").returncode == 0
    before = {path: path.read_bytes() for path in sorted(mine.iterdir())}
    theirs = MinariDataset(clone / "set" / "data")
    with pytest.raises(LinkError, match="data is a symlink to"):
        theirs.storage.update_metadata({"author": ["theirs"]})
    with pytest.raises(LinkError, match="data is a symlink to"):
        theirs.storage.update_episodes([theirs[0]])
    assert {path: path.read_bytes() for path in sorted(mine.iterdir())} == before


def test_an_id_means_the_dataset_of_the_root_before_a_folder_of_that_name(
    clone, tmp_path, monkeypatch, capsys
):
    """A stranger's folder may be called as the user's dataset is."""
    dataset = step_index_dataset()
    shutil.copytree(dataset.storage.data_path.parent, tmp_path / "mine" / "set")
    step_index_dataset("example/other-v0", lengths=(2,))
    (clone / "example").mkdir()
    (clone / "example" / "other-v0").symlink_to(tmp_path / "mine" / "set")
    assert git(clone, "add", "--all").returncode == 0
    assert migrate_dataset("example/other-v0", "example/new-v0").total_episodes == 1
    with pytest.raises(LinkError):
        migrate_dataset("./example/other-v0", "example/newer-v0")
    app(["validate", "example/other-v0", "--no-replay"], standalone_mode=False)
    assert "example/other-v0" in capsys.readouterr().out
    assert app(["validate", "./example/other-v0"], standalone_mode=False) == 1
    assert "other-v0 is a symlink to" in capsys.readouterr().err
