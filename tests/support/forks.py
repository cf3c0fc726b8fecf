"""Run pipelines and their stages as forks of a process that has imported all that they need.

A driver and five stages spend 5 s on starting Python and on imports, and half a second on a tiny
dataset. Where a claim is not about processes, imports or signals, a fork of a process that has
imported everything is what they would be after that. DVC, the files and the exit codes are real.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STAGES = "minari_pipe.pipeline.stages."
IMPORTED = (
    *("dvc.repo.reproduce", "dvc.dvcfile", "dvc.stage.loader", "dvc.stage.run", "hydra.main"),
    *("minari_pipe.pipeline.run.driver", "minari_pipe.pipeline.config.hydra_compose"),
    *(f"{STAGES}{name}" for name in ("collect", "create", "ref_scores", "validate", "publish")),
)
OPTIONAL = ("torch", "stable_baselines3", f"{STAGES}train", f"{STAGES}train_family")
PREFIX = (sys.executable, "-m", "minari_pipe")

_enabled = False


@contextmanager
def enabled() -> Iterator[None]:
    """Let workspaces fork their pipelines meanwhile."""
    global _enabled
    _enabled = True
    try:
        yield
    finally:
        _enabled = False


def may_fork(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> bool:
    """Whether a command is a pipeline's of this package, and starts as any other."""
    if not _enabled or tuple(command[:3]) != PREFIX or (folder / "minari_pipe").exists():
        return False
    return not any(name.startswith(("PYTHON", "MINARI_PIPE_TEST")) for name in variables)


def call(
    command: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m minari_pipe ...``; stdout and stderr come together in order."""
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_server())
        request = json.dumps([list(command[3:]), str(folder), dict(variables)]).encode()
        connection.sendall(len(request).to_bytes(8, "big"))
        socket.send_fds(connection, [b"f"], [writing])
        connection.sendall(request)
        os.close(writing)
        with open(reading, encoding="utf-8") as output:
            text = output.read()
        code = int(connection.makefile().read())
    return subprocess.CompletedProcess(list(command), code, text)


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
    for module in IMPORTED:
        importlib.import_module(module)
    for module in OPTIONAL:
        with suppress(ImportError):
            importlib.import_module(module)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            code = _fork(functools.partial(_driver, connection))
            connection.sendall(str(code).encode())
            os._exit(0)
        connection.close()
        _reap()


def _reap() -> None:
    """Forget children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _fork(work: Callable[[], Any]) -> int:
    """Do ``work`` in a fork, which ends as Python would; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
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


def _driver(connection: socket.socket) -> None:
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    _, (output,), _, _ = socket.recv_fds(connection, 1, 1)
    words, folder, variables = json.loads(connection.recv(size, socket.MSG_WAITALL))
    connection.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)

    import dvc.stage.run

    from minari_pipe.__main__ import main

    known = [*sys.meta_path]

    def run_stage(stage: Any, dry: bool = False, run_env: Any = None) -> None:
        for command in dvc.stage.run._enforce_cmd_list(stage.cmd):
            python, option, *words = shlex.split(command)
            assert (python, option, dry) == ("python", "-m", False)
            sys.stdout.flush()
            if code := _fork(functools.partial(_stage, words, stage.wdir, known)):
                raise dvc.stage.run.StageCmdFailedError(command, code)

    dvc.stage.run.cmd_run = run_stage
    sys.path.insert(0, folder)
    sys.argv = ["minari_pipe", *words]
    main()


def _stage(words: list[str], folder: str, known: list[Any]) -> None:
    os.chdir(folder)
    if os.environ.get("PYTHONSAFEPATH"):
        sys.path.pop(0)
    sys.meta_path[:] = known
    for name, module in list(sys.modules.items()):  # of the user, as the driver imported them
        if name == words[0] or str(getattr(module, "__file__", "")).startswith(folder + os.sep):
            del sys.modules[name]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1])
