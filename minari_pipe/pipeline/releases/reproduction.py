"""A workspace of its own in which a version is made again: a clone, and nothing that was made.

It has an empty DVC cache wherever the user's settings put theirs, no run-cache, no outputs, no
records of releases, and a datasets root of its own; nothing of the user's workspace is changed.
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
from minari_pipe.pipeline.workspace_links import check_folder, inside

_KEPT = {"params.yaml", "dvc.yaml", ".gitignore", "skipped.json"}
"""What of a pipeline's folder says how to make it; the rest was made."""

_NOT_AGAIN = ("engine", "hydra", "publish")
"""Recorded overrides that say how a run went, and may not be said by a file."""


@dataclass(frozen=True)
class Reproduction:
    """A workspace to make a version in."""

    root: Path
    """The workspace in the clone."""
    name: str
    """Of the pipeline."""
    given: Path
    """A folder for what stands for trainings, see :mod:`given_training`."""

    @property
    def pipelines(self) -> list[str]:
        """The pipelines that make the version."""
        return pipelines_of(self.name, self.root)

    def run(self, own: Path) -> None:
        """Make the version, from nothing.

        Args:
            own: the user's workspace.

        Raises:
            MinariPipeError: it could not be made; why has been told.
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
        # What it says is no result of this command.
        with subprocess.Popen(command, cwd=self.root, env=environment, stdout=2) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
        if code:
            raise MinariPipeError(f"{self.name} could not be made again; the lines above say why")


@contextmanager
def reproduction(own: Path, name: str, commit: str) -> Iterator[Reproduction]:
    """Clone the repository of a workspace, and take away everything that was made.

    Args:
        own: the user's workspace.
        name: of the pipeline.
        commit: to check out.

    Raises:
        ConfigError: the repository cannot be cloned, or lacks a file that is not here either.
    """
    place = Path(mkdtemp(prefix="minari_pipe-reproduce-")).resolve()
    try:
        top = top_of(own)
        _clone(top, place / "clone", commit)
        root = place / "clone" / own.resolve().relative_to(top.resolve())
        refuse_links(root, place / "clone")  # a tree of git may have two entries of a name
        if not (root / ".dvc").is_dir():
            raise ConfigError(f"at {commit[:12]} there is no DVC workspace in {top}")
        for path in (root / "catalog", *root.glob("pipelines/*/*.yaml")):  # read from here on
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
    # Hooks of a template must not run, and objects need not be copied.
    quiet = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    clone = ("clone", "--quiet", "--shared", "--no-checkout", str(top), str(target))
    checkout = ("-C", str(target), "checkout", "--quiet", "--detach", commit)
    for arguments in (clone, checkout):
        done = git(top, *quiet, *arguments)
        if done.returncode:
            raise ConfigError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")


def _remove(path: Path) -> None:
    """Remove what git brought; a link itself, never what it leads to."""
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
    """Take the overrides out of ``params.yaml`` that no file may give."""
    path = inside(root, root / "pipelines" / pipeline / "params.yaml")
    params = dvc_yaml.read_params(pipeline, root)
    if params is None:
        raise ConfigError(f"pipelines/{pipeline}/params.yaml is missing or damaged at this commit")
    kept = [o for o in params["overrides"] if _key(o) not in _NOT_AGAIN]
    write_atomic(path, yaml.safe_dump({**params, "overrides": kept}, allow_unicode=True))


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("/")[0]


def _isolate(root: Path) -> None:
    """Give the clone a cache of its own, whatever git or the user's settings say."""
    folder = inside(root, root / ".dvc")
    for name in ("cache", "tmp", "config.local"):
        _remove(folder / name)
    settings = (
        '[core]\n    analytics = false\n[cache]\n    dir = cache\n    type = "reflink,copy"\n'
    )
    write_atomic(folder / "config.local", settings)


def _bring_inputs(found: Reproduction, own: Path) -> None:
    """Copy the files that the pipelines read and git has not, such as those under DVC."""
    for pipeline in found.pipelines:
        for written in dvc_yaml.dependencies(pipeline, found.root):
            dependency = os.path.normpath(written)
            source, target = own / dependency, found.root / dependency
            # In any case: on a Mac, .GIT is .git.
            if {".dvc", ".git", STATE}.intersection(Path(dependency.casefold()).parts):
                raise ConfigError(
                    f"pipelines/{pipeline}/dvc.yaml names {written}, which no stage reads; it "
                    f"was changed by hand, and nothing is reproduced from it"
                )
            if dependency.startswith(("/", "pipelines/", "datasets/")) or target.exists():
                continue
            if not target.resolve().is_relative_to(found.root):
                raise ConfigError(
                    f"{pipeline} reads {dependency}, which lies outside of the workspace; nobody "
                    f"else could make it from git: keep the file in the workspace (dvc add)"
                )
            refuse_links(target, found.root)
            inside(own, source)
            if not source.exists():
                raise ConfigError(
                    f"{pipeline} reads {dependency}, which is neither in git at this commit nor "
                    f"here; run dvc pull {dependency}"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_tree(source, target) if source.is_dir() else copy_file(source, target, below=own)
