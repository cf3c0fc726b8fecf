"""Two versions of one dataset: released, tagged, on a DVC remote, and had back by anyone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from minari_pipe.cli import app
from minari_pipe.core.messages import without_credentials
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import ConfigError, LinkError, RemoteError
from minari_pipe.pipeline.releases.bump import bump
from minari_pipe.pipeline.releases.diff import difference
from minari_pipe.pipeline.releases.dvc_remote import push
from minari_pipe.pipeline.releases.release import release
from tests.pipeline.releases.test_release import here
from tests.support.repositories import (
    Workspace,
    dvc_workspace,
    git_workspace,
    hashes,
    new_workspace,
)
from tests.test_readme import block

ID, NEXT = "pendulum/spin-v0", "pendulum/spin-v1"

TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policies"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    """The first version of the README's own dataset, published and committed."""
    text = block("yaml", "# @package _global_")
    workspace = git_workspace(tmp_path_factory.mktemp("versions"), pendulum_spin=text)
    (workspace.root / "my_policies.py").write_text(block("python", "# my_policies.py"))
    workspace.pipe("+dataset=pendulum_spin", **TRUSTED)
    workspace.commit("spin")
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


@pytest.fixture(scope="module")
def two(released, tmp_path_factory) -> Workspace:
    """Both versions; the second pushes less."""
    workspace = released.copy(tmp_path_factory.mktemp("two"))
    output = workspace.run("minari-pipe", "bump", "pendulum_spin")
    assert f"conf/dataset/pendulum_spin.yaml: dataset.id is {NEXT}, was {ID}" in output
    workspace.replace("conf/dataset/pendulum_spin.yaml", "torque: 2.0", "torque: 1.5")
    workspace.pipe("+dataset=pendulum_spin", **TRUSTED)
    workspace.commit("the next version")
    output = workspace.run("minari-pipe", "release", NEXT)
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


class UnreachableError(Exception):
    """What the library of a provider raises."""


def unreachable(*_: object) -> None:
    raise UnreachableError("https://ada:secret@host")


def test_nothing_is_released_that_could_not_be_pushed(made, tmp_path, monkeypatch):
    workspace = made.copy(tmp_path)
    here(workspace, monkeypatch)
    with pytest.raises(ConfigError, match="no DVC remote .* `dvc remote add .*--no-push"):
        release(ID)
    (tmp_path / "file").touch()
    add_remote(workspace, tmp_path / "file" / "store")
    with pytest.raises(RemoteError, match="^dvc push: .*file/store"):
        release(ID)
    with monkeypatch.context() as patch:  # such as botocore's, which are no OSErrors
        patch.setattr("dvc.repo.Repo.push", unreachable)
        with pytest.raises(
            RemoteError, match="dvc push: UnreachableError: https://…@host; .*--no-push"
        ):
            release(ID)
    workspace.dvc("remote", "modify", "store", "url", str(tmp_path / "store"))
    workspace.commit("another remote")
    cache = workspace.root / ".dvc" / "cache" / "files"
    lost = max((p for p in cache.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    lost.unlink()
    with pytest.raises(ConfigError, match="is not up to date"):
        release(ID)
    with pytest.raises(RemoteError, match="or in DVC's cache; run the pipeline again, or dvc p"):
        push("pendulum_spin", workspace.root)
    assert not (workspace.root / "releases").exists()


@pytest.mark.parametrize("suffix", [".hdf5", ".dir"])
def test_no_false_object_of_the_cache_is_pushed(suffix, made, tmp_path, monkeypatch):
    """An unpacked archive may hold a protected one, which DVC takes for true."""
    workspace = made.copy(tmp_path)
    here(workspace, monkeypatch)
    add_remote(workspace, tmp_path / "store")
    cache = workspace.root / ".dvc" / "cache" / "files"
    objects = [path for path in cache.rglob("*") if path.is_file()]
    folders = [path for path in objects if path.suffix == ".dir"]
    false = folders or objects
    if suffix != ".dir":
        false = [max(objects, key=lambda path: path.stat().st_size)]
    for path in false:
        path.chmod(0o644)
        path.write_text("[]")
        path.chmod(0o444)
    with pytest.raises(RemoteError, match="or in DVC's cache; run the pipeline again, or dvc p"):
        push("pendulum_spin", workspace.root)
    there = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not [path for path in there if path.read_bytes() == b"[]"]


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
    files = [path for path in (tmp_path / "store").rglob("*") if path.suffix != ".dir"]
    largest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)
    before = largest.read_bytes()
    largest.unlink()  # of a folder, whose list is still there
    shutil.rmtree(workspace.root / ".dvc" / "tmp")
    workspace.commit("its remote")
    push("pendulum_spin", workspace.root)
    assert largest.read_bytes() == before


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
card: {film: false}
"""


def test_bump_raises_the_version_in_its_file_and_changes_nothing_else(tmp_path, monkeypatch):
    workspace = dvc_workspace(tmp_path, mine=BUMPED.replace("\n", "\r\n"))
    here(workspace, monkeypatch)
    path = workspace.root / "conf" / "dataset" / "mine.yaml"
    for folder, version in (("releases", 10), ("catalog", 11)):
        record = workspace.root / folder / "ab" / f"c-v{version}.json"
        record.parent.mkdir(parents=True)
        record.touch()
    assert bump("mine") == (Path("conf/dataset/mine.yaml"), "ab/c-v9", "ab/c-v12", 1)
    expected = BUMPED.replace("'ab/c-v9'", "'ab/c-v12'").replace("\n", "\r\n")
    assert path.read_bytes() == expected.encode()
    (path.parent / "link.yaml").symlink_to("mine.yaml")
    with pytest.raises(LinkError, match=r"link\.yaml is a symlink to mine\.yaml; .*remove the"):
        bump("link")
    assert path.read_bytes() == expected.encode()


FOREIGN = {
    "interpolated": (
        BUMPED.replace("'ab/c-v9'", "'ab/c-v${collect.n_episodes}'"),
        "built from other va",
    ),
    "an alias": (
        BUMPED.replace('"of ab/c-v9"', "&id ab/c-v9").replace("'ab/c-v9'", "*id"),
        "dataset.id 'ab/c-v9' is built from other values",
    ),
    "of another file": (
        BUMPED.replace("  id: 'ab/c-v9'  # the id\n", "").replace(
            "/policy: random}", "/family: f}"
        ),
        "does not set dataset.id itself: 'ab/f-v0' comes from a file in its defaults list",
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
    for name in ("../mine", "../dataset/mine", "ab/c-v9"):
        with pytest.raises(ConfigError, match=f"no file conf/dataset/{name}.yaml .* Known: mine$"):
            bump(name)


def data(workspace: Workspace, dataset_id: str) -> dict[str, str]:
    return hashes(workspace.root / "datasets" / dataset_id)


def test_any_version_can_be_had_from_the_repository_by_its_tag(two, tmp_path):
    elsewhere = new_workspace(tmp_path / "elsewhere")
    for dataset_id in (ID, NEXT):
        source = f"datasets/{dataset_id}"
        elsewhere.dvc("get", "--quiet", str(two.root), source, "--rev", dataset_id)
        assert hashes(elsewhere.root / dataset_id.split("/")[1]) == data(two, dataset_id)
    assert data(two, ID) != data(two, NEXT)


def test_a_clone_at_a_tag_pulls_its_version_and_runs_no_stage(two, tmp_path):
    clone = two.clone(tmp_path / "clone")
    clone.git("checkout", "--quiet", ID)
    clone.dvc("pull", "--quiet", f"datasets/{ID}")
    assert data(clone, ID) == data(two, ID)
    clone.git("checkout", "--quiet", NEXT)
    clone.dvc("pull", "--quiet")
    assert data(clone, NEXT) == data(two, NEXT)
    assert clone.pipe("+dataset=pendulum_spin", **TRUSTED) == []


def test_a_fresh_clone_with_the_run_cache_collects_nothing_again(two, tmp_path):
    two.dvc("push", "--quiet", "--run-cache")
    clone = two.clone(tmp_path / "clone")
    clone.dvc("pull", "--quiet", "--run-cache")
    assert clone.pipe("+dataset=pendulum_spin", **TRUSTED) == []
    # What git does not say is told by the run-cache, but of stages whose outputs git has: DVC
    # pushes none of those.
    (clone.root / "pipelines" / "pendulum_spin" / "dvc.lock").unlink()
    ran = clone.pipe("+dataset=pendulum_spin", **TRUSTED)
    assert ran == ["create", "ref_scores", "validate", "publish"]
    assert data(clone, NEXT) == data(two, NEXT)


def test_gc_keeps_old_versions_only_with_the_tags(two, tmp_path):
    for option, has_first in (("--all-tags", True), ("--workspace", False)):
        workspace = two.copy(tmp_path / option)
        workspace.dvc("gc", "--quiet", "--force", "--workspace", option)
        shutil.rmtree(workspace.root / "datasets")
        workspace.git("checkout", "--quiet", ID)
        done = workspace.call("dvc", "checkout", f"datasets/{ID}")
        assert (done.returncode == 0) == has_first, done.stdout


def test_a_commit_to_an_unrelated_file_changes_no_byte(two, tmp_path):
    workspace = two.copy(tmp_path)
    (workspace.root / "notes.md").write_text("of today")
    workspace.commit("notes")
    shutil.rmtree(workspace.root / ".dvc" / "cache")
    for made in ("datasets", "pipelines/pendulum_spin/episodes", "pipelines/pendulum_spin/dataset"):
        shutil.rmtree(workspace.root / made)
    assert workspace.pipe("+dataset=pendulum_spin", **TRUSTED)[0] == "collect"
    assert data(workspace, NEXT) == data(two, NEXT)
    assert workspace.git("status", "--porcelain") == ""


def diff(workspace: Workspace, *arguments: str) -> str:
    return workspace.run("minari-pipe", "diff", *arguments)


def test_diff_shows_what_changed_between_two_versions(two):
    found = json.loads(diff(two, ID, NEXT, "--json"))
    assert found["compared"] == "params"
    assert found["config"] == {
        "dataset.id": [ID, NEXT],
        "policy.controller.torque": [2.0, 1.5],
    }
    assert found["packages"] == {}
    for number, dataset_id in enumerate((ID, NEXT)):
        dataset = MinariDataset(two.root / "datasets" / dataset_id / "data")
        returns = [float(episode.rewards.sum()) for episode in dataset]
        assert found["counts"]["total_steps"][number] == dataset.total_steps
        expected = [np.mean(returns), np.std(returns), min(returns), max(returns)]
        told = [found["returns"][key][number] for key in ("mean", "std", "min", "max")]
        assert told == pytest.approx(expected)
        low, high = (found["scores"][f"ref_{end}_score"][number] for end in ("min", "max"))
        normalized = (np.mean(returns) - low) / (high - low)
        assert found["returns"]["normalized"][number] == pytest.approx(normalized)
        record = two.json(f"releases/{dataset_id}.json")
        for key in ("content_sha256", "git_commit"):
            assert found["origin"][key][number] == record[key]


def test_diff_prints_the_table_of_the_readme(two):
    found = diff(two, ID, NEXT).splitlines()
    expected = block("console", f"$ minari-pipe diff {ID} {NEXT}").splitlines()[1:]
    assert _steady(found) == _steady(expected)


def _steady(lines: list[str]) -> list[str]:
    """Without what is of the day and the machine, whose name sets the width of the table."""
    lines = [re.sub("─+", "─", " ".join(line.split())) for line in lines]
    assert "Origin" in lines
    return lines[: lines.index("Origin")]


def test_diff_of_a_version_that_is_elsewhere_says_what_the_record_knows(two, tmp_path):
    clone = two.clone(tmp_path)
    found = json.loads(diff(clone, ID, NEXT, "--json"))
    assert found["config"]["policy.controller.torque"] == [2.0, 1.5]
    assert found["counts"]["total_episodes"] == [10, 10]
    assert found["returns"] == {}


def test_diff_outside_of_a_workspace_compares_what_the_metadata_say(two, tmp_path, monkeypatch):
    here(Workspace(tmp_path, two.home), monkeypatch)
    found = difference(ID, NEXT)
    assert found["compared"] == "metadata"
    assert set(found["config"]) == {"config_sha256", "dataset_id"}
    assert found["returns"]["mean"][0] != found["returns"]["mean"][1]
    result = CliRunner().invoke(app, ["diff", ID, NEXT])
    assert "The configs are compared by metadata only" in result.stdout
    for wrong, message in (
        ("pendulum/spin-v7", "error: no dataset 'pendulum/spin-v7' in"),
        ("pendulum/spin", "error: 'pendulum/spin' has no version"),
        ("../x-v0", "error: "),
    ):
        result = CliRunner().invoke(app, ["diff", ID, wrong])
        assert result.exit_code == 1
        assert result.stderr.startswith(message)
        assert result.stderr.count("\n") == 1
