"""The wheel carries all a user needs, and works outside the checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.support.repositories import new_workspace
from tests.support.wheels import Installed, built_wheel, installed_wheel
from tests.support.workspaces import stages_that_ran, tiny


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


def test_init_makes_a_workspace_for_configs_of_ones_own(installed, tmp_path):
    workspace = new_workspace(tmp_path)
    assert "dataset=NAME" in installed.run(workspace, "minari-pipe", "--help")
    assert "next: write conf/dataset/NAME.yaml" in installed.run(workspace, "minari-pipe", "init")
    workspace.write_config("own", tiny("tests/own-v0"))
    output = installed.run(workspace, "minari-pipe", "--help")
    assert "cartpole_expert, cartpole_medium" in output
    assert "door_expert, door_human" in output
    assert ", own, pen_expert" in output
    output = installed.run(workspace, "minari-pipe", "dataset=own")
    assert len(stages_that_ran(output)) == 6
    assert (workspace.root / "datasets" / "tests" / "own-v0" / "manifest.json").is_file()
