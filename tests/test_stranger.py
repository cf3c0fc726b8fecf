"""In a workspace of a stranger no code of the folder runs, and nothing outside it is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.repositories import Workspace, dvc_workspace, hashes
from tests.workspaces import tiny

MODULE = (sys.executable, "-m", "minari_pipe")
SCRIPT = ("minari-pipe",)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    workspace = dvc_workspace(tmp_path_factory.mktemp("made"), tiny=tiny("tests/tiny-v0"))
    workspace.pipe("+dataset=tiny")
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user's own, as the stages' scratch of pipeline `tiny` would lie in it."""
    (tmp_path / "mine" / "tiny").mkdir(parents=True)
    (tmp_path / "mine" / "tiny" / "thesis.txt").write_text("precious")
    return tmp_path / "mine"


def plant(workspace: Workspace) -> Path:
    """Code in the places where Python, Hydra and importlib look; it leaves a file when it runs."""
    told = workspace.home / "executed"
    code = f"open({str(told)!r}, 'a').write(__name__)\n"
    for file in ("yaml.py", "shimmy.py", "evil.py", "hydra_plugins/evil/__init__.py"):
        (workspace.root / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace.root / file).write_text(code)
    info = workspace.root / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = ("minari_pipe.environments", "minari_pipe.policies", "minari_pipe.storages")
    text = "".join(f"[{group}]\nx = evil\n" for group in groups)
    (info / "entry_points.txt").write_text(text)
    return told


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["python -m", "minari-pipe"])
def test_no_code_of_the_folder_runs(command, workspace):
    told = plant(workspace)
    workspace.run(*command, "+dataset=tiny", "--cfg", "job")
    workspace.run(*command, "+dataset=tiny", "collect.seed=5")
    assert workspace.call(*command, "+dataset=tiny", "env.id=Nope-v0").returncode == 1
    assert not told.exists(), told.read_text()


def test_trust_in_an_installed_module_opens_the_folder_to_nobody(workspace):
    told = plant(workspace)
    (workspace.root / "numpy").mkdir()
    environment = {"MINARI_PIPE_TRUSTED_MODULES": "numpy"}
    workspace.run(*SCRIPT, "+dataset=tiny", "collect.seed=5", **environment)
    assert not told.exists(), told.read_text()


def test_a_package_of_our_name_is_not_run_in_place_of_this_one(workspace):
    (workspace.root / "minari_pipe").mkdir()
    (workspace.root / "minari_pipe" / "__init__.py").write_text("")
    done = workspace.call(*SCRIPT, "+dataset=tiny", "collect.seed=5")
    assert done.returncode == 1
    assert "is not the package that runs" in done.stdout
    assert done.stdout.count("\n") == 1


LINKS = {
    "the state": ".minari_pipe",
    "the scratch": ".minari_pipe/work",
    "one pipeline's scratch": ".minari_pipe/work/tiny",
    "a lock": ".minari_pipe/locks/tiny.ran",
    "releases": "releases",
}


@pytest.mark.parametrize("place", LINKS.values(), ids=LINKS)
def test_a_link_out_of_the_workspace_is_not_written_through(place, workspace, elsewhere):
    before = hashes(elsewhere)
    link = workspace.root / place
    if link.is_dir():
        link.rename(workspace.root / "aside")
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere / "tiny" / "thesis.txt" if place.endswith(".ran") else elsewhere)
    command = (*SCRIPT, "release", "tests/tiny-v0") if place == "releases" else MODULE
    arguments = () if place == "releases" else ("+dataset=tiny", "collect.seed=5")
    done = workspace.call(*command, *arguments)
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("\n") == 1, done.stdout
    assert "remove the link" in done.stdout
    assert hashes(elsewhere) == before


def test_a_link_below_the_scratch_of_a_pipeline_called_tmp_is_refused_as_well(workspace, elsewhere):
    before = hashes(elsewhere)
    scratch = workspace.root / ".minari_pipe" / "work" / "tmp" / "collect.blocks"
    scratch.mkdir(parents=True)
    (scratch / "blocks").symlink_to(elsewhere)
    told = workspace.refused("+dataset=tiny", "pipeline=tmp", "dataset.id=tests/tmp-v0")
    assert "remove the link" in told
    assert hashes(elsewhere) == before


def test_what_lies_where_workers_tell_how_far_they_are_is_not_written_through(workspace, elsewhere):
    before = hashes(elsewhere)
    temporary = workspace.root / ".minari_pipe" / "work" / "tiny" / "collect.new" / "tmp"
    temporary.mkdir(parents=True)
    for ticket in range(4):
        (temporary / f"tally-{ticket}").symlink_to(elsewhere / "tiny" / "thesis.txt")
    workspace.pipe("+dataset=tiny", "collect.seed=5", "engine=processes", "engine.n_workers=2")
    assert hashes(elsewhere) == before


def test_what_names_the_workspace_cannot_lead_out_of_the_minari_root(workspace, elsewhere):
    target = elsewhere / "deep.tiny.installing"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    way = os.path.relpath(elsewhere / "deep", workspace.minari_root)
    (workspace.root / ".minari_pipe" / "workspace_id").write_text(f"/../{way}")
    (workspace.minari_root / "tests" / "tiny-v0").rename(workspace.home / "aside")
    workspace.pipe("+dataset=tiny")
    assert (target / "thesis.txt").read_text() == "precious"


def test_a_module_that_python_takes_from_elsewhere_is_refused(workspace):
    (workspace.root / "yaml.py").write_text("")
    (workspace.root / "mine.py").write_text("import yaml\ndef go(observation): return 0\n")
    choice = ("policy=scripted", "+policy.controller._target_=mine.go", "--trust-module=mine")
    told = workspace.refused("+dataset=tiny", *choice)
    assert f"{workspace.root / 'yaml.py'} is hidden by " in told
    (workspace.root / "yaml.py").rename(workspace.root / "helper.py")
    (workspace.root / "mine.py").write_text("import helper\ndef go(observation): return 0\n")
    assert "collect" in workspace.pipe("+dataset=tiny", *choice)


def test_a_file_among_the_pipelines_own_outputs_is_refused_before_it_is_removed(workspace):
    file = workspace.root / "pipelines" / "tiny" / "dataset" / "mine.zip"
    file.write_bytes(b"precious")
    choice = ("policy=sb3", "policy.algorithm=ppo")
    path = file.relative_to(workspace.root)
    told = workspace.refused("+dataset=tiny", *choice, f"policy.checkpoint.path={path}")
    assert f"lies in {file.parent}, which this pipeline removes" in told
    assert file.read_bytes() == b"precious"
