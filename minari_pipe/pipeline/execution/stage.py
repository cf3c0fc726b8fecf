"""What every stage shares: its parameters, its lock, its scratch folder, and how it stops.

DVC runs a stage as ``python -m minari_pipe.pipeline.stages.STAGE NAME`` at the workspace's root.
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
from minari_pipe.core.messages import each_warning_once, tell
from minari_pipe.errors import ConfigError, Stopped
from minari_pipe.pipeline.config.oc_env import without_values
from minari_pipe.pipeline.config.schema import Config, Family, Params, params_of
from minari_pipe.pipeline.execution.blocks import sync_to_disk
from minari_pipe.pipeline.execution.inputs import Inputs, changed
from minari_pipe.pipeline.execution.versions import other_version
from minari_pipe.pipeline.processes import (
    DRIVER_VARIABLE,
    end_if_orphaned,
    exclusive,
    stop_with_ancestors,
)
from minari_pipe.pipeline.signals import stop_on_signals
from minari_pipe.pipeline.user_messages import user_message
from minari_pipe.pipeline.workspace import STATE, check_pipeline_name, dump_json, write_atomic
from minari_pipe.pipeline.workspace_links import check_links, inside

EXPERIMENT_VARIABLE = "DVC_EXP_BASELINE_REV"
"""Set by ``dvc exp run``, whose ``-S`` writes into ``params.yaml``."""

SAFE_PATH = "for minari_pipe's stages"
"""What the driver sets PYTHONSAFEPATH to, which is not for the processes that a stage starts."""

RAN_VARIABLE = "MINARI_PIPE_RAN"
"""Names the file to which every stage that really runs appends its name, and :data:`TOLD`."""
TOLD = "error"
"""A stage has told why it fails; one without it was ended by something else."""


def stage_lock(name: str, root: Path) -> Path:
    """What the one stage of pipeline ``name`` that may run holds; see :func:`exclusive`."""
    return root / STATE / "locks" / f"{name}.stage"


def reports_folder(name: str, root: Path) -> Path:
    """Where each stage of a pipeline that ends well writes what it used."""
    return root / STATE / "inputs" / name


@dataclass(frozen=True)
class StageRun:
    """One execution of a stage."""

    stage: str
    name: str
    root: Path
    values: dict[str, Any]
    """What ``params.yaml`` holds."""

    @cached_property
    def params(self) -> Params:
        """The parameters of the pipeline."""
        return params_of(self.values)

    @property
    def config(self) -> Config:
        """The parameters of a dataset's pipeline, for a stage that no family has."""
        assert isinstance(self.params, Config)
        return self.params

    @property
    def family(self) -> Family:
        """What the parameters say of the family, for a stage that no other pipeline has."""
        assert self.params.family is not None
        return self.params.family

    @property
    def folder(self) -> Path:
        """``pipelines/NAME``."""
        return self.root / "pipelines" / self.name

    @property
    def temporary(self) -> Path:
        """A folder for what is not finished, on the file system of the outputs."""
        return self.root / STATE / "work" / self.name / f"{self.stage}.new"

    @cached_property
    def inputs(self) -> Inputs:
        """What the stage reads, as it is when this is asked for first: when the stage begins."""
        return Inputs(self.stage, self.root, [*self._entry.get("deps", []), self.params_file])

    @cached_property
    def _entry(self) -> dict[str, Any]:
        entry = _load_yaml(self.folder / "dvc.yaml")["stages"][self.stage]
        assert isinstance(entry, dict)
        return entry

    @property
    def params_file(self) -> str:
        """What ``dvc.yaml`` calls the file of the parameters."""
        return f"pipelines/{self.name}/params.yaml"

    @cached_property
    def scratch(self) -> Path:
        """Where finished work waits until ``dvc.lock`` records the outputs it went into.

        Named by everything that decides the stage's bytes, so that a rerun finds only its own.
        """
        base = self.root / STATE / "work" / self.name / self.stage
        scratch = base / self.key()
        if not scratch.is_dir():
            shutil.rmtree(base, ignore_errors=True)  # of other parameters or other code
            scratch.mkdir(parents=True)
        return scratch

    def key(self, *, without: Collection[str] = (), code_only: bool = False) -> str:
        """Hash of everything that decides the stage's bytes.

        Args:
            without: parameters that are left out, such as ``collect.n_episodes``.
            code_only: leave out files that are not Python, too.
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
        """A folder to fill, which becomes ``pipelines/NAME/<name>`` when the block ends well."""
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
        """Like :meth:`output`, for work that has no blocks; whether it was finished before.

        What ``fill`` made is kept until ``dvc.lock`` records it: a run that is killed while DVC
        hashes a trained policy does not train it again.
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
        """Tell the user one line; progress bars go to stderr as well."""
        tell(self.stage, text)


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
        if _load_yaml(root / run.params_file) != values:  # it was read before it was noted
            raise changed(run.params_file, stage)
        _check_versions(run)
        _tell_overrides(run)
        _note_ran(stage)
        # A stage whose driver was killed lives for a moment; wait until it is gone.
        busy = f"another stage of pipeline {name!r} is still running"
        with exclusive(stage_lock(name, root), wait_seconds=30, busy=busy):
            # Environments leave files behind, PointMaze one for each that is made. What is there
            # already is of a killed run, or a stranger's links, and would be written through.
            tempfile.tempdir = str(run.temporary / "tmp")
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            Path(tempfile.tempdir).mkdir(parents=True)
            with each_warning_once(lambda text: run.say(f"warning: {text}")):
                body(run)
        run.inputs.check()
        report = reports_folder(name, root) / f"{stage}.json"
        write_atomic(report, dump_json(run.inputs.report()))
        return 0
    except Stopped:
        raise
    except BaseException as exc:  # what Rust raises is no Exception
        if debug:
            _note_ran(TOLD)
            raise
        _tell_error(stage, user_message(exc))
        return 1


def _note_ran(text: str) -> None:
    if ran := os.environ.get(RAN_VARIABLE):
        with open(ran, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def _tell_error(stage: str, text: str) -> None:
    end_if_orphaned()
    _note_ran(TOLD)
    tell("error", without_values(f"{stage}: {text}"))


def _exit_where_hdf5_cannot_write(stage: str) -> None:
    """Exit with one line where h5py, as it closes a file, finds the disk full.

    HDF5 then fails once for every open object, each with a traceback of its own, and at last
    crashes the process (seen with HDF5 2.0.0).
    """

    def tell(exc: BaseException | None) -> None:
        text = str(exc)
        if isinstance(exc, RuntimeError) and "write failed" in text:
            file = re.search(r"filename = '([^']*)'", text)
            reason = re.search(r"error message = '([^']*)'", text)
            full = "the disk is full: " if "No space left" in text else ""
            where = f" {file[1]}" if file else ""
            if file and file[1].endswith(".tmp"):  # else it keeps the disk full
                Path(file[1]).unlink(missing_ok=True)
            _tell_error(stage, f"{full}cannot write{where}: {reason[1] if reason else text}")
            os._exit(1)

    def on_unraisable(lost: Any) -> None:
        tell(lost.exc_value)
        unraisable(lost)

    def on_exception(kind: type[BaseException], exc: BaseException, trace: Any) -> None:
        tell(exc)  # Cython prints what it cannot raise
        excepthook(kind, exc, trace)

    unraisable, sys.unraisablehook = sys.unraisablehook, on_unraisable
    excepthook, sys.excepthook = sys.excepthook, on_exception


def _check_versions(run: StageRun) -> None:
    """Refuse to make data under other package versions than the parameters record."""
    if other := other_version(run.params.packages.get(run.stage, {}).items()):
        package, installed, version = other
        raise ConfigError(
            f"{package} is {installed}, pipelines/{run.name}/params.yaml records {version}; "
            f"run python -m minari_pipe +dataset=... to record what is installed"
        )


def _tell_overrides(run: StageRun) -> None:
    # An experiment's own values may come after them.
    set_by_user = {DRIVER_VARIABLE, EXPERIMENT_VARIABLE}
    overrides = told_overrides(run.values.get("overrides", []))
    if overrides and not set_by_user & os.environ.keys():
        run.say(f"re-applies the recorded overrides {' '.join(overrides)}")


def told_overrides(overrides: list[str]) -> list[str]:
    """Recorded overrides as the user typed them, without the choice of dataset and pipeline."""
    kept = [o for o in overrides if not o.startswith(("+dataset=", "pipeline="))]
    return [o.replace("\\{", "{").replace("\\}", "}") for o in kept]  # as Hydra records ${...}


def _load_yaml(path: Path) -> Any:
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except FileNotFoundError as exc:
        raise ConfigError(
            f"no file {path}; run python -m minari_pipe +dataset=NAME, which writes it"
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
