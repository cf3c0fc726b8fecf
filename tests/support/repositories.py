"""Workspaces with a home of their own, in which tests run dvc, git and the pipeline for real.

The other helpers (:mod:`tests.support.workspaces`) run in the home of one test; these workspaces
outlive a test, so that several share what was made once.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minari_pipe.pipeline.config import dvc_yaml
from tests.conftest import home_variables
from tests.support import forks
from tests.support.workspaces import stages_that_ran, write_config

SETTINGS = """\
[core]
    analytics = false
    check_update = false
"""


@dataclass(frozen=True)
class Workspace:
    """A workspace and the home of the user who works in it."""

    root: Path
    home: Path

    @property
    def minari_root(self) -> Path:
        return self.home / "datasets"

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command: nothing of the developer's own settings."""
        own = ("MINARI", "DVC", "GIT", "XDG", "PYTHON", "HYDRA")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        who = {
            f"GIT_{w}_{k}": "ada@example.org"
            for w in ("AUTHOR", "COMMITTER")
            for k in ("NAME", "EMAIL")
        }
        return {**kept, **home_variables(self.home), **who, **more}

    def call(
        self, *command: str, folder: str = ".", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, whatever becomes of it; stdout and stderr come together in order."""
        return forks.run(command, self.root / folder, self.environment(**environment))

    def run(self, *command: str, folder: str = ".", **environment: str) -> str:
        """Run a command that must succeed; what it printed."""
        done = self.call(*command, folder=folder, **environment)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
        return done.stdout

    def dvc(self, *arguments: str, **environment: str) -> str:
        return self.run("dvc", *arguments, **environment)

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments)

    def commit(self, message: str = "work") -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def pipe(self, *arguments: str, **environment: str) -> list[str]:
        """Run a pipeline that must succeed; the stages that ran."""
        return stages_that_ran(
            self.run(sys.executable, "-m", "minari_pipe", *arguments, **environment)
        )

    def dry_run(self, *arguments: str, **environment: str) -> list[str]:
        """What a dry run printed, of which neither the workspace nor the Minari root shows."""
        before = self._files()
        out = self.run(sys.executable, "-m", "minari_pipe", *arguments, "--dry-run", **environment)
        changed = before.items() ^ self._files().items()
        assert not changed, changed
        return out.splitlines()

    def _files(self) -> dict[str, str]:
        """The files of the Minari root and of the workspace, without what DVC keeps for itself."""
        own = {k: v for k, v in hashes(self.root).items() if not k.startswith(".dvc/")}
        return own | {f"/{k}": v for k, v in hashes(self.minari_root).items()}

    def refused(self, *arguments: str, **environment: str) -> str:
        """Run a pipeline that must not succeed; the lines it printed."""
        done = self.call(sys.executable, "-m", "minari_pipe", *arguments, **environment)
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    def write_config(self, name: str, text: str) -> None:
        write_config(self.root, name, text)

    def replace(self, file: str, old: str, new: str) -> None:
        """Edit a file, in which ``old`` must be."""
        path = self.root / file
        text = path.read_text()
        assert old in text, f"no {old!r} in {path}"
        path.write_text(text.replace(old, new))

    def json(self, file: str) -> dict:
        return json.loads((self.root / file).read_text())

    def copy(self, folder: Path) -> Workspace:
        """A copy to change, with a copy of the home."""
        for source, name in ((self.root, "work"), (self.home, "home")):
            shutil.copytree(source, folder / name, symlinks=True)
        copied = Workspace(folder / "work", folder / "home")
        copied.count_as_checked()
        return copied

    def count_as_checked(self) -> None:
        """Let each ``params.yaml`` count as one that a run in this workspace wrote as it is."""
        for checked in (self.root / ".minari_pipe" / "checked").glob("*"):
            stamp = dvc_yaml._stamp(self.root / "pipelines" / checked.name / "params.yaml")
            checked.write_text(json.dumps({**json.loads(checked.read_text()), "stamp": stamp}))

    def clone(self, folder: Path) -> Workspace:
        """A fresh clone of what is committed, of a user with an empty home."""
        new = new_workspace(folder)
        self.git("clone", "--quiet", str(self.root), str(new.root))
        return new


def new_workspace(folder: Path) -> Workspace:
    """An empty folder and an empty home."""
    workspace = Workspace(folder / "work", folder / "home")
    workspace.root.mkdir(parents=True)
    workspace.home.mkdir()
    return workspace


def dvc_workspace(folder: Path, **datasets: str) -> Workspace:
    """As ``dvc init --no-scm`` leaves it, which costs a second to run, with configs."""
    workspace = new_workspace(folder)
    (workspace.root / ".dvc" / "tmp").mkdir(parents=True)
    (workspace.root / ".dvc" / "config").write_text(SETTINGS + "    no_scm = true\n")
    for name, text in datasets.items():
        workspace.write_config(name, text)
    return workspace


def git_workspace(folder: Path, **datasets: str) -> Workspace:
    """Made by ``minari-pipe init`` in a git repository, with configs, all committed."""
    workspace = _initialized().copy(folder)
    for name, text in datasets.items():
        workspace.write_config(name, text)
    workspace.commit("first")
    return workspace


@functools.cache
def _initialized() -> Workspace:
    """An empty workspace in a git repository, to be copied: its four commands take seconds."""
    kept = tempfile.TemporaryDirectory(prefix="minari-pipe-tests-")
    atexit.register(kept.cleanup)
    workspace = new_workspace(Path(kept.name))
    workspace.git("init", "--quiet", "--initial-branch=main")
    workspace.run("minari-pipe", "init")
    return workspace


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file below ``folder`` by its path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


HYDRA_IMPORT = 0.25
"""CPU seconds of ``import hydra`` on the machine that limits of CPU time are meant for, a laptop
of 2024. What takes longer here is divided by how much slower this machine is at that."""


def assert_cpu_seconds(limit: float, run: Callable[[], object]) -> None:
    """The children that ``run`` waits for take less than ``limit`` CPU seconds, once in five.

    Others may use the processor, and by the minute it may be half as fast: every run is judged
    by the import before it.
    """

    def import_hydra() -> None:
        subprocess.run([sys.executable, "-c", "import hydra"], check=True)

    _assert_cpu(limit, run, lambda: max(1.0, _children_cpu(import_hydra) / HYDRA_IMPORT))


def assert_cpu_times(limit: float, run: Callable[[], object], peer: Callable[[], object]) -> None:
    """The children of ``run`` take less than ``limit`` times what those of ``peer`` take."""
    _assert_cpu(limit, run, lambda: _children_cpu(peer))


def _assert_cpu(limit: float, run: Callable[[], object], unit: Callable[[], float]) -> None:
    costs: list[float] = []
    while len(costs) < 5 and min(costs, default=limit) >= limit:
        of = unit()
        costs.append(_children_cpu(run) / of)
    assert min(costs) < limit, costs


def _children_cpu(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with forks.enabled(False):
        run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
