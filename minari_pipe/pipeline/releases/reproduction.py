"""Creates a separate workspace for reproducing a version: a clone without any outputs.

It has its own empty DVC cache, whatever the user's settings, no run-cache, no outputs, no release
records, and its own datasets root. The user's workspace is not changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import mkdtemp

import yaml

from minari_pipe.core.datasets_root import OLD_ROOT_VARIABLE, ROOT_VARIABLE
from minari_pipe.core.files.links import refuse_links
from minari_pipe.core.files.swap import copy_file, copy_tree
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.execution.stage import SAFE_PATH
from minari_pipe.pipeline.releases.releasable import pipelines_of
from minari_pipe.pipeline.repository import git, top_of
from minari_pipe.pipeline.run.driver import keep_places
from minari_pipe.pipeline.stages.given_training import GIVEN_VARIABLE
from minari_pipe.pipeline.workspace import STATE, is_checkout, write_atomic
from minari_pipe.pipeline.workspace_links import check_folder, check_place, inside

#: Files in a pipeline's folder that define how it is made; all others are outputs.
_KEPT = {"params.yaml", "dvc.yaml", ".gitignore", "skipped.json"}

#: Sections of recorded overrides that describe how to run, which no file may set.
_NOT_AGAIN = ("engine", "hydra", "publish")


@dataclass(frozen=True)
class Reproduction:
    """A workspace in which a version is reproduced."""

    root: Path
    """The workspace in the clone."""
    name: str
    """Name of the pipeline."""
    given: Path
    """Folder for checkpoints that replace trainings, see :mod:`given_training`."""

    @property
    def pipelines(self) -> list[str]:
        """The pipelines that make the version."""
        return pipelines_of(self.name, self.root)

    def run(self, own: Path) -> None:
        """Make the version from scratch.

        Args:
            own: the user's workspace.

        Raises:
            MinariPipeError: the run failed; its output says why.
        """
        command = [sys.executable, "-m", "minari_pipe.pipeline.run.rerun", self.name]
        keep_places()
        environment = {k: v for k, v in os.environ.items() if k != OLD_ROOT_VARIABLE}
        environment |= {
            ROOT_VARIABLE: str(self.root / "datasets"),
            GIVEN_VARIABLE: str(self.given),
            "DVC_SITE_CACHE_DIR": str(self.given.parent / "site"),
        }
        if not is_checkout(own):  # `python -m` looks into the clone first
            environment["PYTHONSAFEPATH"] = SAFE_PATH
        # Its output goes to stderr, since it is not the result of this command.
        with subprocess.Popen(command, cwd=self.root, env=environment, stdout=2) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
        if code:
            raise MinariPipeError(f"reproducing {self.name} failed; see the output above")


@contextmanager
def reproduction(own: Path, name: str, commit: str) -> Iterator[Reproduction]:
    """Clone the repository of a workspace, and remove all outputs.

    Args:
        own: the user's workspace.
        name: the pipeline's name.
        commit: the commit to check out.

    Raises:
        ConfigError: the repository cannot be cloned, or a file is neither in it nor here.
    """
    place = Path(mkdtemp(prefix="minari_pipe-reproduce-")).resolve()
    try:
        top = top_of(own)
        _clone(top, place / "clone", commit)
        root = place / "clone" / own.resolve().relative_to(top.resolve())
        refuse_links(root, place / "clone")  # a git tree may have two entries of one name
        if not (root / ".dvc").is_dir():
            raise ConfigError(f"{top} has no DVC workspace at {commit[:12]}")
        check_folder(root / "catalog", root)  # it is read from here on, and so are params.yaml
        check_place(root / "pipelines", root)
        for own_folder in root.glob("pipelines/*"):
            check_place(own_folder, root)
            for path in own_folder.glob("*.yaml"):
                check_folder(path, root)
        found = Reproduction(root, name, place / "given")
        for pipeline in found.pipelines:
            _forget_outputs(root, pipeline)
            _drop_overrides(root, pipeline)
        for folder in ("catalog", "datasets", "releases", STATE):
            _remove(root / folder)
        _isolate(root)
        _bring_inputs(found, own)
        yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _clone(top: Path, target: Path, commit: str) -> None:
    # Template hooks must not run; --shared avoids copying objects.
    quiet = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    clone = ("clone", "--quiet", "--shared", "--no-checkout", str(top), str(target))
    checkout = ("-C", str(target), "checkout", "--quiet", "--detach", commit)
    for arguments in (clone, checkout):
        done = git(top, *quiet, *arguments)
        if done.returncode:
            raise ConfigError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")


def _remove(path: Path) -> None:
    """Remove a file or folder of the clone; of a symlink, only the link itself."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def _forget_outputs(root: Path, pipeline: str) -> None:
    folder = inside(root, root / "pipelines" / pipeline)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in _KEPT:
            _remove(path)


def _drop_overrides(root: Path, pipeline: str) -> None:
    """Remove the overrides from ``params.yaml`` that no file may set."""
    path = inside(root, root / "pipelines" / pipeline / "params.yaml")
    params = dvc_yaml.read_params(pipeline, root)
    if params is None:
        raise ConfigError(f"pipelines/{pipeline}/params.yaml is missing or damaged at this commit")
    kept = [o for o in params["overrides"] if _key(o) not in _NOT_AGAIN]
    write_atomic(path, yaml.safe_dump({**params, "overrides": kept}, allow_unicode=True))


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("/")[0]


def _isolate(root: Path) -> None:
    """Give the clone its own cache, whatever git or the user's settings contain."""
    folder = inside(root, root / ".dvc")
    for name in ("cache", "tmp", "config.local"):
        _remove(folder / name)
    settings = (
        '[core]\n    analytics = false\n[cache]\n    dir = cache\n    type = "reflink,copy"\n'
    )
    write_atomic(folder / "config.local", settings)


def _bring_inputs(found: Reproduction, own: Path) -> None:
    """Copy the pipelines' input files that are not in git, such as those tracked by DVC."""
    for pipeline, written in dvc_yaml.inputs(found.pipelines, found.root):
        dependency = os.path.normpath(written)
        source, target = own / dependency, found.root / dependency
        # Ignore case: on macOS, .GIT is .git.
        if {".dvc", ".git", STATE}.intersection(Path(dependency.casefold()).parts):
            raise ConfigError(
                f"pipelines/{pipeline}/dvc.yaml names {written}, which no stage reads; it was "
                f"edited by hand, so the version cannot be reproduced"
            )
        if dependency.startswith("/") or target.exists():
            continue
        if not target.resolve().is_relative_to(found.root):
            raise ConfigError(
                f"{pipeline} reads {dependency}, which is outside the workspace, so git cannot "
                f"reproduce the dataset elsewhere; move the file into the workspace (dvc add)"
            )
        refuse_links(target, found.root)
        inside(own, source)
        if not source.exists():
            raise ConfigError(
                f"{pipeline} reads {dependency}, which is neither in git at this commit nor "
                f"here; run dvc pull {quote(dependency)}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_tree(source, target) if source.is_dir() else copy_file(source, target, below=own)
