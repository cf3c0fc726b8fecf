"""Runs every recipe in two workspaces that have nothing in common, once for all tests that look.

The first is a copied checkout, whose stages import the package from it and write down what they
imported. The second is an empty folder after ``dvc init``, with the wheel in a virtual environment
that is not activated, at another path, in another time zone, with another umask, hash seed, number
of threads and engine. Both run at the same time.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CHECKOUT, FULL, SHARED
from tests.support.repositories import Workspace, dvc_workspace, new_workspace
from tests.support.wheels import PATH, installed_wheel

SMALL = ("collect.n_episodes=2", "ref_scores.n_episodes=2", "validate.replay_steps=300")
"""What makes the recipe of `make test` small; `make test-all` runs all as they are."""


@dataclass(frozen=True)
class RecipeRun:
    """Two runs of one recipe."""

    checkout: Workspace
    wheel: Workspace
    imports: dict[str, dict[str, str]]
    """By stage: imported modules of the package, with their files below the first workspace."""


def is_possible(name: str) -> bool:
    """Whether what the recipe needs is here; the demonstrations are not part of the project."""
    return name != "door_human" or (SHARED / "demonstrations").is_dir()


ARGUMENTS = ("card.film=false", *(() if FULL else SMALL))
"""The overrides with which a recipe is run; a film depends on what draws it."""


@functools.cache
def run_recipe(name: str, folder: Path) -> RecipeRun:
    """Run recipe ``name`` twice below ``folder``.

    Raises:
        AssertionError: a run failed, with what it printed.
    """
    checkout = copied_checkout(folder / "recipes" / name)
    wheel = new_workspace(folder / "recipes" / "a second place" / f"for {name}")
    installed = installed_wheel(folder)
    installed.run(wheel, "python", "-m", "dvc", "init", "--quiet", "--no-scm")
    imports = folder / "recipes" / f"{name}-imports"
    recording = {
        "PYTHONPATH": str(CHECKOUT / "tests" / "support" / "recorder"),
        "MINARI_PIPE_TEST_IMPORTS": str(imports),
    }
    differing = {
        "TZ": "Pacific/Kiritimati",
        "PYTHONHASHSEED": "12345",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C",
        "PATH": PATH,
    }

    def run(workspace: Workspace, python: str, umask: int, engine: str, **environment: str) -> None:
        done = subprocess.run(
            [python, "-m", "minari_pipe", f"+dataset={name}", f"engine={engine}", *ARGUMENTS],
            cwd=workspace.root,
            env=workspace.environment(
                MINARI_PIPE_MIRROR=str(SHARED / "demonstrations"), **environment
            ),
            umask=umask,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    with ThreadPoolExecutor(2) as pool:
        plain = {"TZ": "UTC", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2", **recording}
        runs = [
            pool.submit(run, checkout, sys.executable, 0o022, "local", **plain),
            pool.submit(run, wheel, installed.python, 0o077, "processes", **differing),
        ]
        for future in runs:
            future.result()
    found = {p.name.split(".")[0]: json.loads(p.read_text()) for p in imports.iterdir()}
    return RecipeRun(checkout, wheel, found)


def copied_checkout(folder: Path, **datasets: str) -> Workspace:
    """A workspace that holds the package's source, as a developer's checkout does."""
    workspace = dvc_workspace(folder, **datasets)
    ignored = shutil.ignore_patterns("*.pyc.*")  # others may be writing their bytecode
    for part in ("minari_pipe", "conf"):
        shutil.copytree(CHECKOUT / part, workspace.root / part, ignore=ignored, dirs_exist_ok=True)
    return workspace
