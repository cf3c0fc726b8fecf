"""A workspace in which a pipeline has run, for those that play a stranger in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repositories import Workspace, dvc_workspace
from tests.support.workspaces import tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    workspace = dvc_workspace(tmp_path_factory.mktemp("made"), tiny=tiny("tests/tiny-v0"))
    workspace.pipe("+dataset=tiny")
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)
