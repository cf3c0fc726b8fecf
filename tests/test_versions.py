"""Two versions of one dataset: released, tagged, on a DVC remote, and had back by anyone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minari_pipe.errors import ConfigError, RemoteError
from minari_pipe.pipeline.bump import bump
from minari_pipe.pipeline.dvc_remote import push, without_credentials
from minari_pipe.pipeline.release import release
from tests.repositories import Workspace, dvc_workspace, git_workspace, hashes
from tests.test_release import CONFIG, ID, MY_POLICY, TRUSTED, here

NEXT = "tests/mine-v1"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    """The first version, published and committed."""
    workspace = git_workspace(tmp_path_factory.mktemp("versions"), mine=CONFIG)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    workspace.pipe("+dataset=mine", **TRUSTED)
    workspace.commit("mine")
    return workspace


@pytest.fixture(scope="module")
def released(made, tmp_path_factory) -> Workspace:
    """The first version, released with its outputs on a DVC remote, committed and tagged."""
    folder = tmp_path_factory.mktemp("released")
    workspace = made.copy(folder)
    add_remote(workspace, folder / "store")
    output = workspace.run("minari-pipe", "release", ID)
    assert f"{ID}: its outputs are on the DVC remote store ({folder / 'store'})" in output
    tag(workspace, output)
    return workspace


def tag(workspace: Workspace, output: str) -> None:
    """Do what ``minari-pipe release`` told to do."""
    lines = output.partition("To tag it:\n")[2].splitlines()
    for line in lines:
        workspace.run("sh", "-c", line)
    assert len(lines) == 2


def add_remote(workspace: Workspace, url: Path) -> None:
    workspace.dvc("remote", "add", "--default", "store", str(url))
    workspace.commit("remote")


def test_nothing_is_released_that_could_not_be_pushed(made, tmp_path, monkeypatch):
    workspace = made.copy(tmp_path)
    here(workspace, monkeypatch)
    with pytest.raises(ConfigError, match="no DVC remote .* `dvc remote add .*--no-push"):
        release(ID)
    (tmp_path / "file").touch()
    add_remote(workspace, tmp_path / "file" / "store")
    with pytest.raises(RemoteError, match="^dvc push: .*file/store"):
        release(ID)
    workspace.dvc("remote", "modify", "store", "url", str(tmp_path / "store"))
    workspace.commit("another remote")
    cache = workspace.root / ".dvc" / "cache" / "files"
    lost = max((p for p in cache.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    lost.unlink()
    with pytest.raises(ConfigError, match="is not up to date"):
        release(ID)
    with pytest.raises(RemoteError, match="nor in DVC's cache; run the pipeline again, or dvc p"):
        push("mine", workspace.root)
    assert not (workspace.root / "releases").exists()


def test_what_was_released_without_a_remote_can_be_pushed_later(made, tmp_path, monkeypatch):
    workspace = made.copy(tmp_path)
    here(workspace, monkeypatch)
    release(ID, pushes=False)
    before = workspace.json(f"releases/{ID}.json")
    assert before["dvc_remote"] is None
    workspace.commit("release")
    add_remote(workspace, tmp_path / "store")
    release(ID)
    remote = {"name": "store", "url": str(tmp_path / "store")}
    assert workspace.json(f"releases/{ID}.json") == {**before, "dvc_remote": remote}
    assert hashes(tmp_path / "store")


def test_credentials_of_a_remote_are_in_no_record():
    told = without_credentials("s3://ada:secret@host/bucket and https://host/x?sig=secret")
    assert "secret" not in told
    assert told == "s3://…@host/bucket and https://host/x?…"


BUMPED = """\
# @package _global_
# A comment.
defaults: [{/policy: random}, _self_]

dataset:
  description: "of ab/c-v9"   # and another
  id: 'ab/c-v9'  # the id
author: {name: Ada}
env: {id: CartPole-v1}
collect: {n_episodes: 1}
ref_scores: {ref_max_score: 1.0}
"""


def test_bump_raises_the_version_in_its_file_and_changes_nothing_else(tmp_path, monkeypatch):
    workspace = dvc_workspace(tmp_path, mine=BUMPED.replace("\n", "\r\n"))
    here(workspace, monkeypatch)
    path = workspace.root / "conf" / "dataset" / "mine.yaml"
    for folder, version in (("releases", 10), ("catalog", 11)):
        record = workspace.root / folder / "ab" / f"c-v{version}.json"
        record.parent.mkdir(parents=True)
        record.touch()
    assert bump("mine") == (Path("conf/dataset/mine.yaml"), "ab/c-v9", "ab/c-v12")
    expected = BUMPED.replace("'ab/c-v9'", "'ab/c-v12'").replace("\n", "\r\n")
    assert path.read_bytes() == expected.encode()


FOREIGN = {
    "interpolated": (BUMPED.replace("'ab/c-v9'", "'ab/${author.name}-v9'"), "made from other val"),
    "an alias": (
        BUMPED.replace('"of ab/c-v9"', "&id ab/c-v9").replace("'ab/c-v9'", "*id"),
        "dataset.id is made from other values and comes to 'ab/c-v9'",
    ),
    "of another file": (
        BUMPED.replace("  id: 'ab/c-v9'  # the id\n", "").replace(
            "/policy: random}", "/family: f}"
        ),
        "does not say dataset.id itself: 'ab/f-v0' comes from a file of its defaults list",
    ),
    "without a version": (BUMPED.replace("'ab/c-v9'", "ab/c"), "'ab/c' has no version; add one"),
    "broken": (BUMPED.replace("'ab/c-v9'", "'ab/c-v9"), "mine.yaml:"),
}


@pytest.mark.parametrize(("text", "message"), FOREIGN.values(), ids=FOREIGN)
def test_bump_refuses_an_id_that_does_not_stand_in_the_file(text, message, tmp_path, monkeypatch):
    workspace = dvc_workspace(tmp_path, mine=text)
    family = workspace.root / "conf" / "family" / "f.yaml"
    family.parent.mkdir()
    family.write_text(
        "# @package _global_\ndefaults: [{/policy: random}, _self_]\ndataset: {id: ab/f-v0}\n"
    )
    here(workspace, monkeypatch)
    with pytest.raises(ConfigError, match=message):
        bump("mine")
    assert (workspace.root / "conf" / "dataset" / "mine.yaml").read_text() == text


def test_bump_knows_only_configs_of_the_workspace(tmp_path, monkeypatch):
    here(dvc_workspace(tmp_path, mine=BUMPED), monkeypatch)
    with pytest.raises(ConfigError, match=r"no file conf/.*Did you mean 'mine'\? Known: mine$"):
        bump("mina")
    with pytest.raises(ConfigError, match="door_human comes with the package; .* copy its file"):
        bump("door_human")
    with pytest.raises(ConfigError, match="pipeline name '../x' is not valid"):
        bump("../x")
