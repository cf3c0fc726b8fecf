"""Links that came with a git repository lead nowhere; the user's own do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from minari_pipe import (
    delete_dataset,
    load_dataset,
    migrate_dataset,
    publish_dataset,
)
from minari_pipe.cli import app
from minari_pipe.core.git import git, refuse_tracked_links
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import LinkError
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
        with pytest.raises(LinkError, match=r"ink is a symlink to .* that came with its git"):
            refuse_tracked_links(way)


def test_a_link_of_the_user_s_is_followed(clone, tmp_path, monkeypatch):
    (tmp_path / "outside").symlink_to(tmp_path / "mine")
    (tmp_path / "to_clone").symlink_to(clone)
    for way in ("own", "own/inner", tmp_path / "outside", "deep", tmp_path / "to_clone" / "deep"):
        refuse_tracked_links(way)
    with pytest.raises(LinkError):
        refuse_tracked_links(tmp_path / "to_clone" / "link")
    monkeypatch.setenv("PATH", str(tmp_path))  # without git, no link is known to be tracked
    refuse_tracked_links("link")


def test_no_remote_and_no_root_is_reached_by_a_link_of_a_repository(clone, tmp_path, monkeypatch):
    dataset = step_index_dataset()
    for address in ("link", "./link/inner", f"file://{clone}/link"):
        with pytest.raises(LinkError):
            DirectoryRemote(address)
        with pytest.raises(LinkError):
            publish_dataset(dataset.id, address)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "link")
    with pytest.raises(LinkError):
        load_dataset(dataset.id)
    with pytest.raises(LinkError):
        delete_dataset(dataset.id)
    assert os.listdir(tmp_path / "mine") == ["inner"]


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
