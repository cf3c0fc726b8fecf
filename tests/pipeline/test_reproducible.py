"""Every recipe gives the same bytes in two workspaces that have nothing in common.

`make test` runs the quickest. ``test_reproduce.py`` makes datasets of trainings, demonstrations and
user code again.

Whatever looks at those runs stands here: files are shared out among processes, and each process
that looked would run the recipes again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from minari_pipe.datasets.cards.folder import FILES as CARD
from minari_pipe.datasets.cards.page import FILM
from tests.conftest import FULL
from tests.support.recipe_runs import ARGUMENTS, RecipeRun, is_possible, run_recipe
from tests.support.repositories import hashes
from tests.support.wheels import installed_wheel
from tests.support.workspaces import stages_that_ran

IDS = {
    "cartpole_expert": "cartpole/expert-v0",
    "door_expert": "door/expert-v0",
    "pendulum_medium_replay": "pendulum/medium-replay-v0",
    "door_human": "door/human-v0",
    "pointmaze_umaze": "pointmaze/umaze-v0",
}
POLICIES = {
    "cartpole_expert": ("policy.zip", "expert.zip"),
    "door_expert": ("policy.zip", "expert.zip"),
    "door_human": ("expert.zip",),
    "pendulum_medium_replay": ("expert.zip",),
}


@pytest.fixture(params=sorted(IDS) if FULL else ["pointmaze_umaze"])
def name(request) -> str:
    return request.param


@pytest.fixture
def runs(name, tmp_path_factory) -> RecipeRun:
    if not is_possible(name):
        pytest.skip("the real demonstrations are not beside the checkout")
    return run_recipe(name, tmp_path_factory.getbasetemp())


def test_a_recipe_gives_the_same_bytes_anywhere(name, runs):
    first, second = runs.checkout, runs.wheel
    published = hashes(first.root / "datasets" / IDS[name])
    policies = {f"policies/{name}" for name in POLICIES.get(name, ())}
    files = {"data/main_data.hdf5", "data/metadata.json", "manifest.json"}
    files |= {f"card/{name}" for name in CARD if name != FILM}
    assert files | policies == set(published)
    assert published == hashes(second.root / "datasets" / IDS[name])
    assert hashes(first.root / "catalog") == hashes(second.root / "catalog")
    for workspace in (first, second):
        installed = hashes(workspace.minari_root / IDS[name])
        assert installed.pop("draft.json")
        assert installed == published
    metadata = (first.root / "datasets" / IDS[name] / "data" / "metadata.json").read_text()
    assert str(first.root) not in metadata


def test_a_stage_imports_only_what_its_dependencies_declare(name, runs):
    root = runs.checkout.root
    generated = sorted((root / "pipelines").glob("*/dvc.yaml"))  # its own, and of its family
    written = {k: v for f in generated for k, v in yaml.safe_load(f.read_text())["stages"].items()}
    modules = {
        stage: entry["cmd"].split("stages.")[1].split()[0] for stage, entry in written.items()
    }
    assert set(modules.values()) == set(runs.imports)
    for stage, entry in written.items():
        declared = {root / dep for dep in entry["deps"]}
        real = {Path(file) for file in runs.imports[modules[stage]].values()}
        assert all(file.is_relative_to(root) for file in real)
        assert root / "minari_pipe" / "pipeline" / "stages" / f"{modules[stage]}.py" in real
        engines = root / "minari_pipe/pipeline/execution/engines"  # which decide no byte
        real = {file for file in real if file.parent != engines}
        undeclared = {str(file.relative_to(root)) for file in real - declared}
        assert not undeclared, f"{stage} of {name} imports what it does not declare"


def test_a_recipe_runs_in_an_empty_folder(name, runs, tmp_path_factory):
    installed, workspace = installed_wheel(tmp_path_factory.getbasetemp()), runs.wheel
    code = "import minari_pipe; print(minari_pipe.__file__)"
    where = installed.run(workspace, "python", "-c", code).strip()
    assert where.startswith(str(installed.bin.parent))
    data = workspace.minari_root / IDS[name] / "data"
    assert {p.name for p in data.iterdir()} == {"main_data.hdf5", "metadata.json"}
    assert not (workspace.root / "conf").exists()
    # The code of the stages lies outside: a number stands for it.
    stages = yaml.safe_load((workspace.root / "pipelines" / name / "dvc.yaml").read_text())
    for stage, entry in stages["stages"].items():
        assert not [d for d in entry.get("deps", []) if d.endswith(".py")]
        assert f"code.{stage}" in next(iter(entry["params"][0].values()))
    # From a subfolder, by the console script: the same workspace.
    (workspace.root / "notes").mkdir()
    script = ("minari-pipe", f"+dataset={name}", *ARGUMENTS)
    output = installed.run(workspace, *script, folder="notes")
    assert stages_that_ran(output) == []
    assert list((workspace.root / "notes").iterdir()) == []
