"""Runs the real pipeline as processes, stops them at chosen moments, and looks at what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.conftest import home_variables
from tests.support import forks
from tests.support.forks import MARK
from tests.support.workspaces import make_workspace

BARRIER = Path(__file__).resolve().parent / "barrier"

CONFIG = """\
# @package _global_
defaults: [{{/policy: random}}, _self_]
dataset: {{id: {id}, description: Made to be killed.}}
author: {{name: Ada}}
env: {{id: CartPole-v1}}
collect: {{n_episodes: 12, block_episodes: 3, n_envs: 2, seed: 5}}
ref_scores: {{n_episodes: 60, ref_max_score: 500.0}}
"""
N_BLOCKS = 4
STAGE_MODULES = "minari_pipe.pipeline.stages."
STAGES = ("collect", "create", "ref_scores", "validate", "card", "publish")

SHELL = """\
#!/bin/sh
# A shell that waits for its command; bash and dash put a single command in their own place.
/bin/sh "$@"
exit $?
"""


@dataclass
class Place:
    """A workspace with a home of its own, outside of which its runs change nothing."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def datasets(self) -> Path:
        return self.home / "datasets"

    def environment(self, barrier: dict | None = None, *, shell: bool = False) -> dict[str, str]:
        variables = {**os.environ, **home_variables(self.home), MARK: self.mark}
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
        variables["SHELL"] = "/bin/sh"
        if shell:
            path = self.folder / "waiting-shell"
            path.write_text(SHELL)
            path.chmod(0o755)
            variables["SHELL"] = str(path)
        if barrier is not None:
            talk = self.folder / "talk"
            shutil.rmtree(talk, ignore_errors=True)
            talk.mkdir()
            before = os.environ.get("PYTHONPATH")
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BARRIER), before]))
            within = [str(self.work), str(self.datasets)]
            spec = {"folder": str(talk), "within": within, **barrier}
            variables["MINARI_PIPE_TEST_BARRIER"] = json.dumps(spec)
        return variables

    def results(
        self, dataset_id: str = "tests/killed-v0", name: str = "killed"
    ) -> dict[str, bytes]:
        """The bytes that must not depend on how often a run was killed."""
        data = self.work / "datasets" / dataset_id / "data"
        files = {
            "main_data.hdf5": data / "main_data.hdf5",
            "metadata.json": data / "metadata.json",
            "ref_scores.json": self.work / "pipelines" / name / "ref_scores.json",
            "catalog": self.work / "catalog" / f"{dataset_id}.json",
            "dvc.lock": self.work / "pipelines" / name / "dvc.lock",
            "installed": self.datasets / dataset_id / "data" / "main_data.hdf5",
        }
        return {key: path.read_bytes() for key, path in files.items()}

    def files(self) -> set[str]:
        """What lies in the workspace and the Minari root, but for caches and state."""
        hidden = {".dvc", ".minari_pipe"}
        return {
            str(path.relative_to(self.folder))
            for top in (self.work, self.datasets)
            for path in top.rglob("*")
            if not hidden & set(path.relative_to(top).parts)
        }

    def finished_blocks(self) -> int:
        found = self.work.glob(".minari_pipe/work/*/collect.blocks/blocks/*.record")
        return len(list(found))

    def recorded(self, name: str = "killed") -> list[str]:
        """The stages in ``dvc.lock``, as far as it can be read."""
        path = self.work / "pipelines" / name / "dvc.lock"
        text = path.read_text() if path.is_file() else ""
        return [stage for stage in STAGES if f"\n  {stage}:\n" in text]

    def processes(self) -> list[psutil.Process]:
        """Every process that a run in this place started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def assert_nothing_runs(self, seconds: float = 5.0) -> None:
        wait_until(lambda: not self.processes(), seconds, lambda: f"left: {self.processes()}")


def make_place(folder: Path, **configs: str) -> Place:
    """A place with the config ``killed`` (or those given), and nothing made yet."""
    configs = configs or {"killed": CONFIG.format(id="tests/killed-v0")}
    place = Place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    make_workspace(place.work, **configs)
    return place


def copy_place(place: Place, folder: Path) -> Place:
    shutil.copytree(place.folder, folder, symlinks=True)
    return Place(folder)


_runs: list[Run] = []


def end_all() -> None:
    """End what a failed test left running."""
    while _runs:
        run = _runs.pop()
        if run.process.poll() is None:
            run.kill("driver", "shell", "stage")
        run.process.communicate()


class Run:
    """A run of ``python -m minari_pipe`` in a process group of its own."""

    def __init__(
        self,
        place: Place,
        *arguments: str,
        barrier: dict | None = None,
        shell: bool = False,
        ignored: tuple[int, ...] = (),
        **environment: str,
    ) -> None:
        self.place = place
        self._talk = place.folder / "talk"
        _runs.append(self)
        self.process = forks.start(
            [sys.executable, "-m", "minari_pipe", *(arguments or ["+dataset=killed"])],
            place.work,
            {**place.environment(barrier, shell=shell), **environment},
            ignored=ignored,
            real=barrier is not None and ":" not in barrier.get("target", ":"),
        )

    def await_barrier(self, seconds: float = 60) -> None:
        def reached() -> bool:
            return (self._talk / "reached").exists() or self.process.poll() is not None

        wait_until(reached, seconds, lambda: "the barrier was not reached")
        if not (self._talk / "reached").exists():
            out, err = self.process.communicate()
            raise AssertionError(f"ended before the barrier: {out}{err}")

    def release(self) -> None:
        (self._talk / "go").touch()

    def release_unless_ended(self, seconds: float = 1.0) -> None:
        """Release a process that a signal has reached, if it does not end at the barrier itself."""
        paused = int((self._talk / "reached").read_text())
        deadline = time.monotonic() + seconds
        with suppress(psutil.NoSuchProcess):
            # Not wait(), which would take the exit code from whoever started it.
            while psutil.Process(paused).status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        self.release()

    def role(self, role: str) -> psutil.Process | None:
        """The driver, the stage that runs, or the shell between them."""
        driver = psutil.Process(self.process.pid)
        if role == "driver":
            return driver
        for child in driver.children(recursive=True):
            try:
                is_stage = any(word.startswith(STAGE_MODULES) for word in child.cmdline())
            except psutil.Error:
                continue
            if is_stage == (role == "stage"):
                return child
        return None

    def kill(self, *roles: str) -> list[str]:
        """kill -9 those of ``roles`` that run, as nearly at once as can be; which ones."""
        killed = []
        for role, process in [(role, self.role(role)) for role in roles]:
            if process is not None:
                with suppress(psutil.NoSuchProcess):  # it ended by itself in between
                    process.kill()
                    killed.append(role)
        return killed

    def tell_group(self, signum: int) -> None:
        """What a terminal does with Ctrl-C: every process of the group is told."""
        os.killpg(self.process.pid, signum)

    def end(self, seconds: float = 90) -> tuple[int, str, str]:
        """Wait; exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


_MADE: dict[str, Place] = {}


def undisturbed(factory: pytest.TempPathFactory) -> Place:
    """The place of a run that nobody disturbed, made once; ``printed`` holds what it said."""
    if "undisturbed" not in _MADE:
        place = make_place(factory.mktemp("undisturbed") / "place")
        (place.folder / "printed").write_text(complete(place))
        _MADE["undisturbed"] = place
    return _MADE["undisturbed"]


def complete(place: Place, *arguments: str) -> str:
    """A run that nobody disturbs and that must succeed, as forks; what it printed."""
    command = (sys.executable, "-m", "minari_pipe", *(arguments or ["+dataset=killed"]))
    done = forks.run(command, place.work, place.environment())
    assert done.returncode == 0, done.stdout
    return done.stdout


def dvc_status(place: Place) -> None:
    """Let DVC look at everything right now; a lock in its way is an error."""
    from dvc.repo import Repo

    with pytest.MonkeyPatch.context() as patch:
        for variable, value in home_variables(place.home).items():
            patch.setenv(variable, value)
        with Repo(str(place.work)) as repo:
            repo.status()


def wait_until(
    met: Callable[[], bool], seconds: float, what: Callable[[], str], *, step: float = 0.02
) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, what()
        time.sleep(step)


@contextmanager
def unreaped(run: Run) -> Iterator[None]:
    """Kill the driver and leave it a zombie while the block runs."""
    run.process.send_signal(signal.SIGKILL)
    driver = psutil.Process(run.process.pid)
    wait_until(lambda: driver.status() == psutil.STATUS_ZOMBIE, 5, lambda: driver.status())
    try:
        yield
    finally:
        run.process.wait()
