"""A released version can be made again from git, and never changes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from minari_pipe.core.files.manifest import identity_of
from minari_pipe.errors import (
    ConfigError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    LinkError,
    MinariPipeError,
)
from minari_pipe.pipeline.config.dvc_yaml import inputs
from minari_pipe.pipeline.releases.releasable import arguments
from minari_pipe.pipeline.releases.release import release
from minari_pipe.pipeline.stages.publish import check_released
from tests.support.repositories import Workspace, dvc_workspace, git_workspace, hashes
from tests.support.workspaces import write_config

ID = "tests/mine-v0"
CONFIG = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/mine-v0, description: a tiny dataset}
author: {name: Ada}
env: {id: CartPole-v1}
policy: {controller: {_target_: my_policy.balance, tables: ./tables}}
collect: {n_episodes: 2, n_envs: 2}
ref_scores: {ref_min_score: 0.0, ref_max_score: 500.0}
"""
MY_POLICY = "def balance(observation, tables):\n    return int(observation[2] > 0)\n"
TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    """A published and committed dataset."""
    workspace = git_workspace(tmp_path_factory.mktemp("release"), mine=CONFIG)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    (workspace.root / "tables").mkdir()
    (workspace.root / "tables" / "a.txt").touch()
    workspace.pipe("+dataset=mine", **TRUSTED)
    workspace.commit("mine")
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)


@pytest.fixture(scope="module")
def released(made: Workspace, tmp_path_factory) -> Workspace:
    """The same, released by the command, and that committed."""
    workspace = made.copy(tmp_path_factory.mktemp("released"))
    assert (workspace.minari_root / ID / "draft.json").is_file()
    output = workspace.run("minari-pipe", "release", ID, "--no-push")
    assert f"{ID} is released" in output
    assert f"git add releases/{ID}.json" in output
    workspace.commit("release")
    return workspace


def here(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in ``workspace`` in this process, which saves importing DVC for every row."""
    for name, value in workspace.environment(**TRUSTED).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(workspace.root)
    GlobalHydra.instance().clear()


def ignore(w: Workspace, path: str) -> None:
    """Have git ignore a file or folder that it tracked."""
    with (w.root / ".gitignore").open("a") as file:
        file.write(f"/{path}\n")
    w.git("rm", "-r", "--cached", "--quiet", path)
    w.commit()


def untracked_pipeline(w: Workspace) -> None:
    ignore(w, "pipelines/mine/dvc.lock")


def ignored_config(w: Workspace) -> None:
    ignore(w, "conf")


def ignored_module(w: Workspace) -> None:
    ignore(w, "my_policy.py")


def ignored_table(w: Workspace) -> None:
    ignore(w, "tables/a.txt")


def table_that_git_is_told_to_overlook(w: Workspace) -> None:
    w.git("update-index", "--assume-unchanged", "tables/a.txt")
    (w.root / "tables" / "a.txt").write_text("other")
    w.pipe("+dataset=mine", **TRUSTED)
    w.commit()


def table_of_an_older_dvc_file(w: Workspace) -> None:
    w.git("rm", "--cached", "--quiet", "tables/a.txt")
    w.dvc("add", "--quiet", "tables/a.txt")
    (w.root / "tables" / "a.txt").write_text("other")
    w.pipe("+dataset=mine", **TRUSTED)
    w.commit()


def table_outside(w: Workspace) -> None:
    (w.root.parent / "tables").mkdir()
    (w.root.parent / "tables" / "a.txt").touch()
    w.replace("conf/dataset/mine.yaml", "./tables", "../tables/a.txt")
    w.pipe("+dataset=mine", **TRUSTED, MINARI_PIPE_TRUSTED_ADDRESSES=str(w.root.parent))
    w.commit()


def untracked_file(w: Workspace) -> None:
    (w.root / "notes").mkdir()
    (w.root / "notes" / "später.txt").touch()
    w.git("config", "status.showUntrackedFiles", "no")


def changed_file(w: Workspace) -> None:
    w.replace("dvc.yaml", "# `dvc repro`", "# Plain `dvc repro`")


def config_of_tomorrow(w: Workspace) -> None:
    w.replace("conf/dataset/mine.yaml", "Ada", "Bob")
    w.commit()


def code_of_tomorrow(w: Workspace) -> None:
    w.replace("my_policy.py", "> 0", "< 0")
    w.commit()


def foreign_declaration(w: Workspace) -> None:
    """DVC would read the variables of any file, and ask an address that holds them."""
    with (w.root / "pipelines/mine/dvc.yaml").open("a") as file:
        file.write("vars: [../../my_secrets.yaml]\n")
    w.commit()


def next_version(w: Workspace) -> None:
    w.replace("conf/dataset/mine.yaml", "mine-v0", "mine-v1")
    w.replace("pipelines/mine/params.yaml", "mine-v0", "mine-v1")
    w.count_as_checked()
    w.commit()


def touched_publication(w: Workspace) -> None:
    with (w.root / "datasets" / ID / "data" / "main_data.hdf5").open("ab") as file:
        file.write(b"more")


def no_publication(w: Workspace) -> None:
    (w.root / "datasets" / ID / "manifest.json").unlink()


def damaged_params(w: Workspace) -> None:
    (w.root / "pipelines/mine/params.yaml").write_text("<<<<<<< HEAD\na: [\n")
    w.commit()


def params_of_a_clone(w: Workspace) -> None:
    params = w.root / "pipelines/mine/params.yaml"
    params.write_bytes(params.read_bytes())


def lock_of_aliases(w: Workspace) -> None:
    with (w.root / "pipelines/mine/dvc.lock").open("a") as file:
        file.write("  mine:\n    cmd: &a [x]\n    deps: [*a, *a]\n")
    w.commit()


def parent_elsewhere(w: Workspace) -> None:
    (w.root.parent / "secret.json").write_text('{"pipeline": "its secret content"}')
    path = w.root / "pipelines/mine/params.yaml"
    params = yaml.safe_load(path.read_text())
    parents = [{"dataset": "mine", "id": "../../secret", "share": 1.0}]
    params["policy"] = {
        "_target_": "minari_pipe.pipeline.Mixture",
        "parents": parents,
        "scores": "mine",
    }
    path.write_text(yaml.safe_dump(params))
    w.commit()


def no_repository(w: Workspace) -> None:
    (w.root / ".git").rename(w.root.parent / "git")
    (w.root / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")


ROWS: dict[Callable[[Workspace], None], tuple[type[MinariPipeError], str]] = {
    untracked_pipeline: (ConfigError, "not committed: pipelines/mine/dvc.lock; a release must be"),
    ignored_config: (ConfigError, "not committed: conf/dataset/mine.yaml"),
    ignored_module: (ConfigError, "not committed: my_policy.py; .* git add on these, conf"),
    ignored_table: (ConfigError, r"not committed: tables/a.txt; .*\(large files: dvc add\)"),
    table_that_git_is_told_to_overlook: (
        ConfigError,
        "git does not see that tables/a.txt changed; run git update-index",
    ),
    table_of_an_older_dvc_file: (ConfigError, "a.txt.dvc does not match tables/a.txt; run dvc add"),
    table_outside: (ConfigError, "mine reads ../tables/a.txt, outside the workspace, which git"),
    untracked_file: (ConfigError, "the git tree is not clean: .*später.txt"),
    changed_file: (ConfigError, "the git tree is not clean: dvc.yaml; commit or remove"),
    config_of_tomorrow: (ConfigError, "params.yaml does not match conf/; run .* and commit"),
    code_of_tomorrow: (ConfigError, r"is not up to date \(collect\)"),
    foreign_declaration: (ConfigError, "mine/dvc.yaml does not match its params.yaml; run py"),
    next_version: (ConfigError, "now makes 'tests/mine-v1'; to release 'tests/mine-v0', check"),
    touched_publication: (ConfigError, r"changed after it was published \(data/main_data.hdf5\)"),
    no_publication: (DatasetNotFoundError, "is missing, or has no manifest"),
    params_of_a_clone: (ConfigError, r"was not written in this workspace; run python -m minari_pi"),
    damaged_params: (ConfigError, r"mine/params.yaml was not written in this workspace; run pyth"),
    lock_of_aliases: (ConfigError, "mine/dvc.lock has a YAML anchor or alias in line"),
    parent_elsewhere: (InvalidDatasetIdError, "Malformed dataset ID: ../../secret"),
    no_repository: (ConfigError, "is not a git repository"),
}


def test_no_folder_outside_the_workspace_is_listed(tmp_path):
    for folder in ("work/pipelines/mine", "work/inner", "private"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").touch()
    named = [f"{tmp_path}/private", "inner/../../private", "inner"]
    declared = {"stages": {"collect": {"cmd": "true", "deps": named}}}
    (tmp_path / "work/pipelines/mine/dvc.yaml").write_text(yaml.safe_dump(declared))
    found = {file for _, file in inputs(["mine"], tmp_path / "work")}
    assert found == {f"{tmp_path}/private", "../private", "inner/a.txt"}
    (tmp_path / "work/inner").rename(tmp_path / "work/other")
    (tmp_path / "work/inner").symlink_to(tmp_path / "private")
    with pytest.raises(LinkError, match="inner is a symlink"):
        inputs(["mine"], tmp_path / "work")


@pytest.mark.parametrize(
    ("spoil", "expected"), ROWS.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_a_version_that_git_could_not_give_again_is_refused(
    spoil, expected, workspace, monkeypatch
):
    spoil(workspace)
    here(workspace, monkeypatch)
    error, message = expected
    with pytest.raises(error, match=message) as caught:
        release(ID)
    assert "\n" not in str(caught.value)
    assert not (workspace.root / "releases").exists()


def test_an_unknown_or_malformed_id_is_refused(workspace, monkeypatch):
    here(workspace, monkeypatch)
    with pytest.raises(DatasetNotFoundError, match=r"known: tests/mine-v0"):
        release("tests/yours-v0")
    with pytest.raises(InvalidDatasetIdError):
        release("../../mine-v0")
    assert workspace.call("minari-pipe", "release", "tests/yours-v0").returncode == 1


def test_the_record_says_where_the_version_came_from_and_the_dataset_does_not(released, made):
    record = released.json(f"releases/{ID}.json")
    manifest = released.json(f"datasets/{ID}/manifest.json")
    assert record["manifest"] == identity_of(manifest)
    assert record["git_commit"] == made.git("rev-parse", "HEAD").strip()
    assert {"time", "platform", "machine", "python", "params_sha256"} <= set(record)
    assert hashes(released.root / "datasets") == hashes(made.root / "datasets")
    assert record["git_commit"] not in json.dumps(
        released.json(f"datasets/{ID}/data/metadata.json")
    )


def test_a_release_takes_off_the_drafts_marker_and_can_be_repeated(released, monkeypatch):
    assert not (released.minari_root / ID / "draft.json").exists()
    before = hashes(released.root / "releases")
    here(released, monkeypatch)
    release(ID, pushes=False)
    assert hashes(released.root / "releases") == before
    assert released.pipe("+dataset=mine", **TRUSTED) == []
    assert not (released.minari_root / ID / "draft.json").exists()


def test_a_record_that_a_clone_brings_does_not_stand_for_a_run(released, tmp_path, monkeypatch):
    """One without a remote is completed by the next release, which reads what is to be pushed."""
    workspace = released.copy(tmp_path)
    params_of_a_clone(workspace)
    here(workspace, monkeypatch)
    with pytest.raises(ConfigError, match=r"mine/params.yaml was not written in this workspace"):
        release(ID)


@pytest.mark.parametrize("what", ["config", "content"])
def test_a_released_version_cannot_change(what, released, tmp_path):
    workspace = released.copy(tmp_path)
    places = [workspace.root / "datasets", workspace.root / "catalog", workspace.minari_root]
    before = [hashes(place) for place in places]
    override = "author.name=Bob" if what == "config" else "dataset.id=tests/mine-v0"
    if what == "content":
        with (workspace.root / "my_policy.py").open("a") as file:
            file.write("\ndef balance(observation, tables):\n    return 0\n")
    output = workspace.refused("+dataset=mine", override, **TRUSTED)
    assert "set dataset.id=tests/mine-v1, or run minari-pipe bump mine" in output
    assert [hashes(place) for place in places] == before
    if what == "content":
        assert f"error: publish: {ID} is released, but its content changed" in output
        return
    told = f"error: {ID} is released, but its config changed (author.name: 'Ada', now 'Bob');"
    assert output.startswith(told)  # before any stage
    # Under the next version it is published, and the released one stays.
    workspace.pipe("+dataset=mine", override, "dataset.id=tests/mine-v1", **TRUSTED)
    after = [hashes(place) for place in places]
    for old, new in zip(before, after, strict=True):
        assert old.items() < new.items()
    assert (workspace.minari_root / "tests/mine-v1" / "draft.json").is_file()


def test_the_version_to_set_is_the_next_that_is_free(tmp_path):
    for version in (0, 1, 2):
        record = tmp_path / "releases" / f"ab/c-v{version}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text('{"manifest": {"content_sha256": "1"}}')
    draft = tmp_path / "catalog" / "ab/c-v3.json"
    draft.parent.mkdir(parents=True)
    draft.touch()
    write_config(tmp_path, "mine", CONFIG)
    check_released(tmp_path, "mine", "ab/c-v1", {"content_sha256": "1"})
    told = "content changed .* set dataset.id=ab/c-v4"
    # The pipeline of a sweep has no file of its own.
    for name, more in (("mine", ", or run minari-pipe bump mine"), ("mine_1", "")):
        with pytest.raises(DatasetExistsError, match=f"{told}{more}$"):
            check_released(tmp_path, name, "ab/c-v1", {"content_sha256": "2"})


def write_params(root: Path, overrides: list[str]) -> None:
    params = root / "pipelines" / "mine" / "params.yaml"
    params.parent.mkdir(parents=True)
    params.write_text(json.dumps({"overrides": overrides, "packages": {}}))


def test_the_command_that_made_a_version_is_told_as_a_shell_takes_it(tmp_path):
    told = ["+dataset=mine", "dataset.description='a, $b'"]
    write_params(tmp_path, told)
    assert shlex.split(arguments(tmp_path, "mine")) == told


def test_a_damaged_record_is_no_licence_to_change(tmp_path):
    record = tmp_path / "releases" / "ab/c-v0.json"
    record.parent.mkdir(parents=True)
    for damage in (
        "<<<<<<< HEAD",
        "[" * 100_000,
        "[]",
        "{}",
        '{"manifest": {}}',
        '{"manifest": 1}',
    ):
        record.write_text(damage)
        with pytest.raises(ConfigError, match="is damaged; restore it from git"):
            check_released(tmp_path, "mine", "ab/c-v0", {"content_sha256": "1"})


def test_a_touched_file_of_a_publication_is_put_right(workspace):
    before = hashes(workspace.root / "datasets")
    installed = hashes(workspace.minari_root)
    touched_publication(workspace)
    assert workspace.pipe("+dataset=mine", **TRUSTED) == ["publish"]
    assert hashes(workspace.root / "datasets") == before
    assert hashes(workspace.minari_root) == installed


def test_without_git_there_is_a_dataset_but_no_release(tmp_path, monkeypatch):
    workspace = dvc_workspace(tmp_path)
    here(workspace, monkeypatch)
    with pytest.raises(DatasetNotFoundError, match="known: none"):
        release(ID)


ALLOWING = (
    "--trust-module=envs",
    "--trust-module",
    "envs",
    "hydra.run.dir=x",
    "+hydra/callbacks=x",
    "publish.replace=true",
    "engine=ray",
    "policy.checkpoint.path=/home/me/x.zip",
    "policy={checkpoint: {path: ~/x.zip}}",
    "+env.kwargs.xml_file='../x.xml'",
    "env.kwargs.xml_file=./models/x.xml",
    "ref_scores.eval_env={id: Ant-v5, kwargs: {xml_file: x.xml}}",
    "policy.checkpoint.path=str(/home/me/x.zip)",
    "policy.checkpoint={path:str(/home/me/x.zip)}",
    "++ref_scores={eval_env:{kwargs:{xml_file:./x.xml}}}",
    "ref_scores.eval_env.kwargs.xml_file=x.xml",
    "policy@x=/home/me",
)


@pytest.mark.parametrize("word", ALLOWING)
def test_advice_has_whoever_follows_it_type_nothing_that_allows_more(word, tmp_path):
    """A clone may have recorded it."""
    plain = ["+dataset=mine", "collect.seed=1", "dataset.id=a/b-v0", "env.id=A-v0", "policy=sb3"]
    write_params(tmp_path, [*plain, word])
    told, _, other = arguments(tmp_path, "mine").partition(" (and what you need of ")
    assert shlex.split(told) == plain
    assert other == f"{shlex.quote(word)})"
