"""The command line says what it would do, quickly, and runs nothing for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from minari_pipe.__main__ import main
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.run.driver import keep_places
from tests.conftest import CHECKOUT
from tests.support.repositories import Workspace, assert_cpu_seconds, dvc_workspace
from tests.support.workspaces import tiny

CONFIGS = {"tiny": tiny("tests/tiny-v0"), "other": tiny("tests/other-v0")}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return dvc_workspace(tmp_path_factory.mktemp("command"), **CONFIGS)


def shipped(kind: str) -> list[str]:
    return [path.stem for path in (CHECKOUT / "conf" / kind).glob("*.yaml")]


def files(workspace: Workspace) -> set[Path]:
    return {p for p in workspace.root.rglob("*") if p.is_file()}


@pytest.mark.alone
def test_help_is_cheap_and_names_what_can_be_chosen(workspace):
    before = files(workspace)
    command = (sys.executable, "-m", "minari_pipe", "--help")
    assert_cpu_seconds(0.6, lambda: workspace.run(*command))
    output = workspace.run(*command)
    assert "python -m minari_pipe +dataset=NAME" in output
    names = ", ".join(sorted({*shipped("dataset"), *CONFIGS}))
    assert f"datasets: {names}\n" in output
    families = ", ".join(sorted(shipped("family")))
    assert f"family: only with a family, {families} or one of" in output
    for word in ("block_episodes", "--trust-module", "minari-pipe release ID", "--cfg job"):
        assert word in output
    assert files(workspace) == before


@pytest.mark.alone
def test_the_composed_config_is_shown_cheaply_and_nothing_runs(workspace):
    before = files(workspace)
    command = (sys.executable, "-m", "minari_pipe", "+dataset=tiny", "collect.seed=7")
    command += ("--cfg", "job", "--resolve")
    assert_cpu_seconds(0.6, lambda: workspace.run(*command))
    shown = yaml.safe_load(workspace.run(*command))
    assert shown["collect"]["seed"] == 7
    assert shown["dataset"]["id"] == "tests/tiny-v0"
    assert shown["pipeline"] == "tiny"
    assert files(workspace) == before


def test_the_composed_config_is_shown_without_changing_a_value(workspace):
    text = "no\u00a0break, \u202eright to left, \U0001f469\u200d\U0001f680: 1e3"
    quoted = json.dumps(text, ensure_ascii=False)
    workspace.write_config("odd", tiny("tests/odd-v0").replace("a tiny dataset for tests", quoted))
    shown = workspace.run(sys.executable, "-m", "minari_pipe", "+dataset=odd", "--cfg", "job")
    (workspace.root / "conf" / "dataset" / "odd.yaml").unlink()
    assert yaml.safe_load(shown)["dataset"]["description"] == text


def test_dataset_can_be_chosen_with_and_without_a_plus(workspace):
    command = (sys.executable, "-m", "minari_pipe")
    plus = workspace.run(*command, "+dataset=tiny", "--cfg", "job")
    assert workspace.run(*command, "dataset=tiny", "--cfg", "job") == plus


def test_a_run_in_a_subfolder_leaves_nothing_there(workspace):
    (workspace.root / "below").mkdir()
    command = (sys.executable, "-m", "minari_pipe", "+dataset=tiny", "dataset.id=wrong")
    assert workspace.call(*command, folder="below").returncode == 1
    assert list((workspace.root / "below").iterdir()) == []


def test_relative_paths_in_the_environment_mean_where_the_user_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "sets")
    monkeypatch.setenv("MINARI_PIPE_MIRROR", "https://example.org/mirror")
    monkeypatch.setenv("MINARI_PIPE_CACHE", "../cache")
    keep_places()
    assert os.environ["MINARI_DATASETS_PATH"] == str(tmp_path / "sets")
    assert os.environ["MINARI_PIPE_MIRROR"] == "https://example.org/mirror"
    assert os.environ["MINARI_PIPE_CACHE"] == str(tmp_path.parent / "cache")


def test_the_console_script_works_outside_a_workspace(tmp_path):
    outside = Workspace(tmp_path / "nowhere", tmp_path / "home")
    outside.root.mkdir()
    assert "cartpole_expert" in outside.run("minari-pipe", "--help")
    assert "Make this folder a workspace" in outside.run("minari-pipe", "init", "--help")
    assert "record it in releases/" in outside.run("minari-pipe", "release", "--help")
    refused = outside.refused("+dataset=cartpole_expert")
    assert refused.startswith("error: ")
    assert "is not inside a DVC workspace; run `minari-pipe init` there first" in refused
    assert list(outside.root.iterdir()) == []


def test_a_command_that_is_none_is_answered_with_the_nearest(monkeypatch):
    monkeypatch.setattr("sys.argv", ["minari-pipe", "lsit", "--json"])
    with pytest.raises(SystemExit, match="error: no command 'lsit'. Did you mean 'list'?"):
        main()


HEAVY = {"torch", "numpy", "gymnasium", "h5py", "dvc", "mujoco", "stable_baselines3"}


@pytest.mark.parametrize(
    "statement",
    [
        "import minari_pipe",
        "import minari_pipe.pipeline.run.command, minari_pipe.pipeline.config.hydra_compose",
        "import minari_pipe.pipeline.run.driver, minari_pipe.pipeline.run.install",
    ],
)
def test_what_a_run_without_work_imports_is_light(statement):
    code = f"import sys\n{statement}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


@pytest.mark.parametrize("scm", ["no git", "git", "below a repository"])
def test_init_makes_a_workspace_and_keeps_what_is_there(scm, tmp_path):
    workspace = Workspace(tmp_path / "repo" / "work", tmp_path / "home")
    workspace.root.mkdir(parents=True)
    if scm != "no git":
        workspace.run("git", "init", "--quiet", folder="." if scm == "git" else "..")
    (workspace.root / ".gitignore").write_text("mine")  # without an end of the line
    (workspace.root / ".dvcignore").write_text("also mine")
    output = workspace.run("minari-pipe", "init")
    assert ("without git" in output) == (scm == "no git")
    ignored = (workspace.root / ".gitignore").read_text().splitlines()
    assert {"mine", "/datasets/", "/.minari_pipe/", "/pipelines/*/episodes/"} <= set(ignored)
    assert (workspace.root / ".dvcignore").read_text().startswith("also mine\n")
    assert "reflink,copy" in workspace.dvc("config", "cache.type")
    assert "up to date" not in workspace.dvc("status")  # config and catalog never ran
    (workspace.root / "dvc.yaml").write_text("stages: {}\n")
    before = {p: p.read_bytes() for p in files(workspace) if ".dvc" not in p.parts}
    workspace.run("minari-pipe", "init")
    assert {p: p.read_bytes() for p in files(workspace) if ".dvc" not in p.parts} == before


def test_init_again_makes_dvc_use_a_git_that_came_later(tmp_path):
    workspace = Workspace(tmp_path / "work", tmp_path / "home")
    workspace.root.mkdir()
    workspace.run("minari-pipe", "init")
    workspace.run("git", "init", "--quiet")
    assert "made DVC use git" in workspace.run("minari-pipe", "init")
    (workspace.root / ".dvc" / "cache").mkdir(exist_ok=True)
    (workspace.root / ".dvc" / "cache" / "data").touch()
    workspace.run("git", "add", "--all")
    assert ".dvc/cache/data" not in workspace.run("git", "ls-files", ".dvc")
    assert "up to date" not in workspace.dvc("status")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_init_in_a_folder_of_another_user_says_so_in_its_own_words():
    do = "os.setuid(65534); list(init())"
    code = f"import os; from minari_pipe.pipeline.run.init import init; {do}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "minari_pipe.errors.ConfigError: / is not writable; run `minari-pipe init` in another "
        "folder"
    )


def test_a_sweep_over_datasets_runs_each(workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for swept in ("+dataset=tiny,other", "+dataset=glob([tin*,oth*])"):
        jobs = []
        GlobalHydra.instance().clear()
        hydra_compose.run(["-m", swept], lambda name, *_, jobs=jobs: jobs.append(name))
        assert sorted(jobs) == ["other", "tiny"]
