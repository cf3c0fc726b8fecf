"""Run commands of the package as forks of a process that has imported all that they need.

A driver and five stages spend 5 s on starting Python and on imports, and half a second on a tiny
dataset. Where a claim is not about processes, imports or signals, a fork of a process that has
imported everything is what they would be after that. DVC, the files and the exit codes are real.
`make test-all` starts every process as a user does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from dvc.utils.serialize import _yaml as serialize
from hydra.core.global_hydra import GlobalHydra

import minari_pipe.pipeline
from minari_pipe.core.plugins import entry_points
from minari_pipe.pipeline.config import hydra_compose

STAGES = "minari_pipe.pipeline.stages."
IMPORTED = {
    "dvc.": (
        "cachemgr",
        "cli.parser",
        "data_cloud",
        "dvcfile",
        "rwlock",
        "scm",
        "utils.strictyaml",
    ),
    "dvc.repo.": (
        "artifacts",
        "datasets",
        "graph",
        "index",
        "metrics",
        "open_repo",
        "params",
        "plots",
        "reproduce",
        "stage",
    ),
    "dvc.stage.": ("loader", "run"),
    "dvc_data.hashfile.": ("db.local", "status"),
    "hydra.": ("_internal.core_plugins.basic_launcher", "main"),
    "minari_pipe.": ("checks", "cli", "datasets.library", "storage.hdf5.storage"),
    "minari_pipe.pipeline.": ("config.hydra_compose", "run.command", "run.rerun"),
    STAGES: ("collect", "create", "ref_scores", "validate", "publish"),
    "": ("gymnasium.envs.classic_control", "networkx", "numpy.ma", "pydantic.main", "ruamel.yaml"),
}
"""Modules by their packages."""
OPTIONAL = ("torch", "stable_baselines3", f"{STAGES}train", f"{STAGES}train_family")
SCRIPTS = {"minari-pipe": "minari_pipe", "dvc": "dvc"}
SHELLS = ("sh", "bash", "dash")
MATTER_NOT = {
    "PYTHONBREAKPOINT",  # Ray sets it in the process that starts it
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
}

_enabled = False


@contextlib.contextmanager
def enabled(on: bool = True) -> Iterator[None]:
    """Let commands of workspaces be forks meanwhile, or not."""
    global _enabled
    before, _enabled = _enabled, on
    try:
        yield
    finally:
        _enabled = before


def run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *,
    stderr: int = subprocess.STDOUT,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as a fork if it may be one.

    Args:
        command: the words of the command.
        folder: where it runs.
        variables: its whole environment.
        stderr: ``subprocess.STDOUT`` for one text in order, or ``subprocess.PIPE``.
    """
    unusual = any(name.startswith("PYTHON") for name in variables.keys() - MATTER_NOT)
    unusual |= any((path / "sitecustomize.py").exists() for path in _import_path(variables))
    checkout = (folder / "minari_pipe").exists()  # which imports its own package
    if not _enabled or unusual or checkout or not _module(command):
        return subprocess.run(
            command,
            cwd=folder,
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=600,
            check=False,
        )
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in (1, 2))
        streams = (out, out if stderr == subprocess.STDOUT else err)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_server())
            request = json.dumps([list(command), str(folder), dict(variables)]).encode()
            connection.sendall(len(request).to_bytes(8, "big"))
            socket.send_fds(connection, [b"f"], [stream.fileno() for stream in streams])
            connection.sendall(request)
            code = int(connection.makefile().read())
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(list(command), code, out.read(), err.read())


def _import_path(variables: Mapping[str, str]) -> list[Path]:
    return [Path(path) for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]


def _module(command: Sequence[str]) -> list[str] | None:
    """The module that a command runs, if a fork can do so, and its arguments."""
    words = list(command)
    if Path(words[0]).name in SHELLS and words[-2] == "-c":
        words = shlex.split(words[-1])
    if words[0] in SCRIPTS:
        return [SCRIPTS[words[0]], *words[1:]]
    words = [word for word in words[:2] if word != "-P"] + words[2:]
    if not Path(words[0]).name.startswith("python") or words[1] != "-m":
        return None
    return words[2:] if words[2].partition(".")[0] in SCRIPTS.values() else None


@functools.cache
def _server() -> str:
    """Start the process to fork, which ends with this one; return its address."""
    place = tempfile.TemporaryDirectory(prefix="minari-pipe-forks-")
    address = str(Path(place.name) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdout is not None and server.stdin is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.stdin.close()
        server.wait()
        place.cleanup()

    atexit.register(end)
    return address


def serve(address: str) -> None:
    """Fork a process for each request until the standard input is closed."""
    sys.path.pop(0)  # the checkout, which `python -m` has put there
    for package, names in IMPORTED.items():
        for name in names:
            importlib.import_module(package + name)
    for module in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    entry_points("")  # finds all, once for all forks
    _known_finders(), _known_path()
    _write_locks_quickly()
    _compose_once()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            connection.sendall(str(_answer(connection)).encode())
            os._exit(0)
        connection.close()


def _compose_once() -> None:
    """Fill the caches of Hydra's parsers, which the first composition of a process does."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".dvc").mkdir()
        os.chdir(folder)
        hydra_compose.recompose(["+dataset=cartpole_expert", "author.name=Ada", "collect.seed=1"])
        os.chdir(here)
    GlobalHydra.instance().clear()


def _write_locks_quickly() -> None:
    """Let DVC write the bytes of ``dvc.lock`` by libyaml; as text with comments it takes 0.2 s."""

    class Dumper(yaml.CSafeDumper):
        pass

    Dumper.add_multi_representer(dict, yaml.CSafeDumper.represent_dict)
    Dumper.add_multi_representer(str, yaml.CSafeDumper.represent_str)

    def nothing(dumper: Dumper, _: None) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:null", "")

    Dumper.add_representer(type(None), nothing)

    def dump(data: Any, stream: Any) -> None:
        yaml.dump(data, stream, Dumper, sort_keys=False, allow_unicode=True)

    serialize._dump = dump
    serialize.parse_yaml_for_update = serialize.parse_yaml


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> int:
    """Run the command that is asked for; return its exit code."""
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    words, folder, variables = json.loads(connection.recv(size, socket.MSG_WAITALL))
    subprocess.Popen = _Popen  # type: ignore[misc]
    return subprocess.run(
        words,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        check=False,
    ).returncode


class _Popen(subprocess.Popen):
    """Forks this process in place of a new Python that would run a module of the package."""

    def _execute_child(self, *values: Any) -> None:
        parameters = [*inspect.signature(super()._execute_child).parameters]  # type: ignore[misc]
        given = dict(zip(parameters, values, strict=True))
        words = None if isinstance(given["args"], str) else _module(given["args"])
        if words is None:
            super()._execute_child(*values)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for stream, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
                if given[name] != -1:
                    os.dup2(given[name], stream)
            if given["start_new_session"]:
                os.setsid()
            os.chdir(given["cwd"] or ".")
            if given["env"] is not None:
                os.environ.clear()
                os.environ.update(given["env"])
            _end_with(functools.partial(_run, words))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]


def _run(words: list[str]) -> None:
    """Run a module as ``python -m`` does, without what the parent imported for its user."""
    folder = os.getcwd()
    program = words[0] if "." in words[0] else f"{words[0]}.__main__"
    for name, module in list(sys.modules.items()):
        if name == program or str(getattr(module, "__file__", "")).startswith(folder + os.sep):
            del sys.modules[name]
    sys.meta_path[:] = _known_finders()
    sys.path[:] = [*map(str, _import_path(os.environ)), *_known_path()]
    if words[0] == "minari_pipe":
        sys.path.insert(0, folder)  # from where the module removes it
    elif words[0].startswith("minari_pipe.pipeline."):
        minari_pipe.pipeline._record_imports()
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


@functools.cache
def _known_finders() -> tuple[Any, ...]:
    return (*sys.meta_path,)


@functools.cache
def _known_path() -> tuple[str, ...]:
    return (*sys.path,)


def _end_with(work: Callable[[], Any]) -> None:
    """Do ``work`` and end this process as Python would."""
    code: Any = 0
    try:
        work()
    except SystemExit as exit:
        code = exit.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
