"""The wheel carries all a user needs, and works outside the checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import CHECKOUT
from tests.recipe_runs import arguments_of, run_recipe
from tests.repositories import new_workspace
from tests.wheels import Installed, built_wheel, installed_wheel
from tests.workspaces import stages_that_ran, tiny


@pytest.fixture
def installed(tmp_path_factory) -> Installed:
    return installed_wheel(tmp_path_factory.getbasetemp())


def test_the_wheel_carries_the_configs_and_the_checkpoint_and_no_tests(tmp_path_factory):
    wheel = built_wheel(tmp_path_factory.getbasetemp() / "wheel")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (CHECKOUT / "conf").rglob("*.yaml"):
        assert f"minari_pipe/conf/{path.relative_to(CHECKOUT / 'conf')}" in names
    for path in (CHECKOUT / "minari_pipe").rglob("*.py"):
        own = path.name != "conftest.py"  # of the examples in docstrings
        assert (str(path.relative_to(CHECKOUT)) in names) is own, path
    shipped = [n for n in names if n.startswith("minari_pipe/policies/shipped/")]
    assert {Path(n).name for n in shipped} >= {"door_expert.zip", "door_expert.json"}
    assert not [n for n in names if "__pycache__" in n or n.startswith(("conf/", "tests/"))]


def test_a_recipe_runs_in_an_empty_folder(installed, tmp_path_factory):
    name = "cartpole_expert"
    workspace = run_recipe(name, tmp_path_factory.getbasetemp()).wheel
    code = "import minari_pipe; print(minari_pipe.__file__)"
    where = installed.run(workspace, "python", "-c", code).strip()
    assert where.startswith(str(installed.bin.parent))
    data = workspace.minari_root / "cartpole" / "expert-v0" / "data"
    assert {p.name for p in data.iterdir()} == {"main_data.hdf5", "metadata.json"}
    assert not (workspace.root / "conf").exists()
    # The code of the stages lies outside: a number stands for it.
    stages = yaml.safe_load((workspace.root / "pipelines" / name / "dvc.yaml").read_text())
    for stage, entry in stages["stages"].items():
        assert not [d for d in entry.get("deps", []) if d.endswith(".py")]
        assert f"code.{stage}" in next(iter(entry["params"][0].values()))
    # From a subfolder, by the console script: the same workspace.
    (workspace.root / "notes").mkdir()
    script = ("minari-pipe", f"+dataset={name}", *arguments_of(name))
    output = installed.run(workspace, *script, folder="notes")
    assert stages_that_ran(output) == []
    assert list((workspace.root / "notes").iterdir()) == []


def test_init_makes_a_workspace_for_configs_of_ones_own(installed, tmp_path):
    workspace = new_workspace(tmp_path)
    assert "dataset=NAME" in installed.run(workspace, "minari-pipe", "--help")
    assert "next: write conf/dataset/NAME.yaml" in installed.run(workspace, "minari-pipe", "init")
    workspace.write_config("own", tiny("tests/own-v0"))
    output = installed.run(workspace, "minari-pipe", "--help")
    assert "cartpole_expert, door_expert, door_human, own, pointmaze_umaze" in output
    output = installed.run(workspace, "minari-pipe", "dataset=own")
    assert len(stages_that_ran(output)) == 5
    assert (workspace.root / "datasets" / "tests" / "own-v0" / "manifest.json").is_file()
