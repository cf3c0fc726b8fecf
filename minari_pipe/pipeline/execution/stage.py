"""Run a stage as a process: load its parameters, lock it, give it a scratch folder, stop it.

DVC starts a stage as ``python -m minari_pipe.pipeline.stages.STAGE NAME`` at the workspace's root.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml

from minari_pipe.core.files.swap import copy_tree
from minari_pipe.core.messages import (
    each_warning_once,
    hidden_stdout,
    message_of,
    one_line,
    print_line,
)
from minari_pipe.errors import ConfigError, Stopped
from minari_pipe.pipeline.config.oc_env import without_values
from minari_pipe.pipeline.config.schema import Config, Family, Params, params_of
from minari_pipe.pipeline.execution.blocks import sync_to_disk
from minari_pipe.pipeline.execution.inputs import Inputs, changed
from minari_pipe.pipeline.execution.versions import other_version
from minari_pipe.pipeline.generated_yaml import load_yaml
from minari_pipe.pipeline.processes import (
    DRIVER_VARIABLE,
    end_if_orphaned,
    exclusive,
    stop_with_ancestors,
)
from minari_pipe.pipeline.signals import stop_on_signals
from minari_pipe.pipeline.workspace import STATE, check_pipeline_name, dump_json, write_atomic
from minari_pipe.pipeline.workspace_links import check_links, inside

#: Set by ``dvc exp run``, whose ``-S`` writes into ``params.yaml``.
EXPERIMENT_VARIABLE = "DVC_EXP_BASELINE_REV"

#: The value that the driver gives PYTHONSAFEPATH. Processes that a stage starts must not get it.
SAFE_PATH = "for minari_pipe's stages"

#: Names the file to which every stage that runs appends its name, and :data:`REPORTED`.
RAN_VARIABLE = "MINARI_PIPE_RAN"
#: The stage has printed why it fails. A failed stage without it was ended from outside.
REPORTED = "error"


def stage_lock(name: str, root: Path) -> Path:
    """Return the lock file that the one running stage of pipeline ``name`` holds."""
    return root / STATE / "locks" / f"{name}.stage"


def reports_folder(name: str, root: Path) -> Path:
    """Return the folder to which each successful stage of a pipeline writes its inputs."""
    return root / STATE / "inputs" / name


@dataclass(frozen=True)
class StageRun:
    """One execution of a stage of pipeline ``name``, in the workspace ``root``."""

    stage: str
    name: str
    root: Path
    values: dict[str, Any]
    """The content of ``params.yaml``."""

    @cached_property
    def params(self) -> Params:
        """The typed parameters of the pipeline."""
        return params_of(self.values)

    @property
    def config(self) -> Config:
        """The parameters of a dataset's pipeline; not for stages of a family's pipeline."""
        assert isinstance(self.params, Config)
        return self.params

    @property
    def family(self) -> Family:
        """The ``family`` section of the parameters; only for stages that need a family."""
        assert self.params.family is not None
        return self.params.family

    @property
    def folder(self) -> Path:
        """``pipelines/NAME``."""
        return self.root / "pipelines" / self.name

    @property
    def temporary(self) -> Path:
        """Folder for unfinished files, on the file system of the outputs."""
        return self.root / STATE / "work" / self.name / f"{self.stage}.new"

    @cached_property
    def inputs(self) -> Inputs:
        """The stage's inputs as they are on first access, which is when the stage begins."""
        return Inputs(self.stage, self.root, [*self._entry.get("deps", []), self.params_file])

    @cached_property
    def _entry(self) -> dict[str, Any]:
        entry = _load_yaml(self.folder / "dvc.yaml")["stages"][self.stage]
        assert isinstance(entry, dict)
        return entry

    @property
    def params_file(self) -> str:
        """The path of the parameters file as ``dvc.yaml`` names it."""
        return f"pipelines/{self.name}/params.yaml"

    @cached_property
    def scratch(self) -> Path:
        """Folder for finished work until ``dvc.lock`` records the outputs it went into.

        Its name hashes everything that decides the stage's bytes, so a rerun reuses only its own.
        """
        base = self.root / STATE / "work" / self.name / self.stage
        scratch = base / self.key()
        if not scratch.is_dir():
            shutil.rmtree(base, ignore_errors=True)  # left by other parameters or other code
            scratch.mkdir(parents=True)
        return scratch

    def key(self, *, without: Collection[str] = (), code_only: bool = False) -> str:
        """Return a hash of everything that decides the stage's bytes.

        Args:
            without: parameters to leave out, such as ``collect.n_episodes``.
            code_only: also leave out files that are not Python.
        """
        digest = hashlib.sha256()
        for keys in self._entry["params"]:
            for names in keys.values():
                values = {n: _without(n, _lookup(self.values, n), without) for n in names}
                digest.update(dump_json(values).encode())
        for dep in self._entry.get("deps", []):
            if code_only and not dep.endswith(".py"):
                continue
            for file in self.inputs.files(dep):
                name = file.relative_to((self.root / dep).parent)
                digest.update(f"{name}\0{self.inputs.sha256(file)}\0".encode())
        return digest.hexdigest()[:20]

    @contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """Yield a folder to fill; it becomes ``pipelines/NAME/<name>`` if the body succeeds."""
        filled = self.temporary / name
        shutil.rmtree(filled, ignore_errors=True)
        filled.mkdir(parents=True)
        yield filled
        self.inputs.check()
        target = inside(self.root, self.folder / name)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(filled, target)

    def output_once(self, name: str, fill: Callable[[Path], None]) -> bool:
        """Like :meth:`output`, for work without blocks; return whether it was finished before.

        The result of ``fill`` is kept until ``dvc.lock`` records it, so a run that is killed while
        DVC hashes a trained policy does not train it again.
        """
        done = self.scratch / f"{name}.done"
        reused = done.is_dir()
        if not reused:
            filling = self.temporary / f"{name}.filling"
            shutil.rmtree(filling, ignore_errors=True)
            filling.mkdir(parents=True)
            fill(filling)
            self.inputs.check()
            for file in filling.rglob("*"):
                if file.is_file():
                    sync_to_disk(file)
            os.replace(filling, done)
        with self.output(name) as out:
            copy_tree(done, out)
        return reused

    def say(self, text: str) -> None:
        """Print one line to stderr, where progress bars go as well."""
        print_line(self.stage, text)


def run_stage(stage: str, body: Callable[[StageRun], None]) -> NoReturn:
    """Run ``body`` as the process of ``stage`` and exit: 0, 1 with one line, or 128 + signal."""
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:
        del os.environ["PYTHONSAFEPATH"]
    try:
        stop_on_signals()
        stop_with_ancestors()
        sys.exit(_run(stage, body))
    except Stopped as stopped:
        sys.exit(stopped.exit_code)


def _run(stage: str, body: Callable[[StageRun], None]) -> int:
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    if not debug:
        _exit_where_hdf5_cannot_write(stage)
    try:
        name = check_pipeline_name(sys.argv[1])
        root = Path.cwd()
        check_links(root)
        values = _load_yaml(root / "pipelines" / name / "params.yaml")
        run = StageRun(stage, name, root, values)
        run.inputs.check()
        if _load_yaml(root / run.params_file) != values:  # edited between the read and Inputs
            raise changed(run.params_file, stage)
        _check_versions(run)
        _print_overrides(run)
        _note_ran(stage)
        # A stage whose driver was killed lives on for a moment; wait until it is gone.
        busy = f"another stage of pipeline {name!r} is still running"
        with exclusive(stage_lock(name, root), wait_seconds=30, busy=busy):
            # Environments leave files behind, PointMaze one per instance. Remove what is there: a
            # killed run left it, or a stranger's links, through which files would be written.
            tempfile.tempdir = str(run.temporary / "tmp")
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            Path(tempfile.tempdir).mkdir(parents=True)
            with each_warning_once(lambda text: run.say(f"warning: {text}")), hidden_stdout():
                body(run)
        run.inputs.check()
        report = reports_folder(name, root) / f"{stage}.json"
        write_atomic(report, dump_json(run.inputs.report()))
        return 0
    except Stopped:
        raise
    except BaseException as exc:  # a Rust panic is no Exception
        if debug:
            _note_ran(REPORTED)
            raise
        _print_error(stage, message_of(exc))
        return 1


def _note_ran(text: str) -> None:
    if ran := os.environ.get(RAN_VARIABLE):
        with open(ran, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def _print_error(stage: str, text: str) -> None:
    end_if_orphaned()
    _note_ran(REPORTED)
    print_line("error", without_values(f"{stage}: {text}"))


def _exit_where_hdf5_cannot_write(stage: str) -> None:
    """Install hooks that exit with one line if the disk is full when h5py closes a file.

    HDF5 then fails once for every open object, each time with a traceback, and at last crashes
    the process (seen with HDF5 2.0.0).
    """

    def print_error(exc: BaseException | None) -> None:
        text = str(exc)
        if isinstance(exc, RuntimeError) and "write failed" in text:
            file = re.search(r"filename = '([^']*)'", text)
            reason = re.search(r"error message = '([^']*)'", text)
            full = "the disk is full: " if "No space left" in text else ""
            where = f" {file[1]}" if file else ""
            if file and file[1].endswith(".tmp"):  # it would keep the disk full
                Path(file[1]).unlink(missing_ok=True)
            _print_error(stage, f"{full}cannot write{where}: {reason[1] if reason else text}")
            os._exit(1)

    def on_unraisable(lost: Any) -> None:
        print_error(lost.exc_value)
        unraisable(lost)

    def on_exception(kind: type[BaseException], exc: BaseException, trace: Any) -> None:
        print_error(exc)  # Cython prints exceptions that it cannot raise
        excepthook(kind, exc, trace)

    unraisable, sys.unraisablehook = sys.unraisablehook, on_unraisable
    excepthook, sys.excepthook = sys.excepthook, on_exception


def _check_versions(run: StageRun) -> None:
    """Raise if a package version differs from the one that the parameters record."""
    if other := other_version(run.params.packages.get(run.stage, {}).items()):
        package, installed, version = other
        raise ConfigError(
            f"{package} is {installed}, but pipelines/{run.name}/params.yaml records {version}; "
            f"to record the installed version, run python -m minari_pipe +dataset=..."
        )


def _print_overrides(run: StageRun) -> None:
    # `dvc exp run -S` may have set values on top of the recorded overrides.
    set_by_user = {DRIVER_VARIABLE, EXPERIMENT_VARIABLE}
    overrides = typed_overrides(run.values.get("overrides", []))
    if overrides and not set_by_user & os.environ.keys():
        run.say(f"reapplying the recorded overrides {' '.join(overrides)}")


def typed_overrides(overrides: list[str]) -> list[str]:
    """Return recorded overrides as the user typed them, without ``+dataset=`` and ``pipeline=``."""
    kept = [o for o in overrides if not o.startswith(("+dataset=", "pipeline="))]
    return [o.replace("\\{", "{").replace("\\}", "}") for o in kept]  # Hydra escapes ${...}


def _load_yaml(path: Path) -> Any:
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(
            f"no file {path}; to write it, run python -m minari_pipe +dataset=NAME"
        ) from exc
    except yaml.YAMLError as exc:
        raise ConfigError(
            f"{path} is damaged: {one_line(str(exc))}; to write it again, run python -m "
            f"minari_pipe +dataset=NAME"
        ) from exc


def _without(name: str, value: Any, without: Collection[str]) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: part for key, part in value.items() if f"{name}.{key}" not in without}


def _lookup(params: dict[str, Any], dotted: str) -> Any:
    value: Any = params
    for key in dotted.split("."):
        value = value[key] if isinstance(value, dict) else None
    return value
