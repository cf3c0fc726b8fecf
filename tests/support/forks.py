"""Run commands of the package as forks of a process that has imported all that they need.

A driver and five stages spend 5 s on starting Python and on imports, and half a second on a tiny
dataset. Where a claim is not about the start of a process or its imports, a fork of a process that
has imported everything is what they would be after that. DVC, the files, the signals and the exit
codes are real, and each process can be killed. `make test-all` starts every process as a user does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import json
import os
import pickle
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
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from dvc.utils.serialize import _yaml as serialize
from hydra.core.global_hydra import GlobalHydra

import minari_pipe.pipeline.stages
from minari_pipe.core.plugins import entry_points
from minari_pipe.pipeline import source_imports
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.signals import STOP_SIGNALS

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
    STAGES: ("collect", "create", "ref_scores", "validate", "card", "publish"),
    "": ("gymnasium.envs.classic_control", "networkx", "numpy.ma", "pydantic.main", "ruamel.yaml"),
}
"""Modules by their packages."""
OPTIONAL = ("torch", "stable_baselines3", f"{STAGES}train", f"{STAGES}train_family")
FRESH = ("minari_pipe.checks.film", f"{STAGES}film")
"""Modules that must begin in a process that has imported nothing."""
SCRIPTS = {"minari-pipe": "minari_pipe", "dvc": "dvc"}
SHELLS = ("sh", "bash", "dash")
MATTER_NOT = {
    "PYTHONBREAKPOINT",  # Ray sets it in the process that starts it
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
}
MARK = "MINARI_PIPE_TEST_RUN"
"""Names the run that a process belongs to, by 32 characters; other processes see it."""

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
    checkout = (folder / "minari_pipe").exists()  # which imports its own package
    fork = _enabled and not unusual and not checkout and _module(command)
    with _started(command, folder, variables, stderr, fork=bool(fork)) as process:
        try:
            out, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def start(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *,
    stderr: int = subprocess.PIPE,
    ignored: Sequence[int] = (),
    real: bool = False,
) -> subprocess.Popen[str]:
    """Start a command as a terminal does: in a process group of its own, which hears signals.

    Args:
        command: the words of the command, which runs a module of the package.
        folder: where it runs.
        variables: its whole environment.
        stderr: ``subprocess.STDOUT`` or ``subprocess.PIPE``.
        ignored: the signals that it ignores, as under ``nohup``.
        real: let it be a new Python, not a fork.
    """
    begin = functools.partial(_as_from_a_terminal, ignored)
    fork = _enabled and not real
    return _started(command, folder, variables, stderr, fork=fork, begin=begin)


def _started(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    stderr: int,
    *,
    fork: bool,
    begin: Callable[[], None] | None = None,
) -> subprocess.Popen[str]:
    return (_Fork if fork else subprocess.Popen)(
        command,
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=begin,
    )


def _as_from_a_terminal(ignored: Sequence[int]) -> None:
    os.setpgid(0, 0)
    # A test run in the background of a script is started with SIGINT ignored.
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)


# typeshed lacks the private methods of Popen that a fork replaces: hence "type: ignore" below


class _Fork(subprocess.Popen[str]):
    """A fork of the server, which stays a zombie until its exit code is asked for, as a child."""

    def _execute_child(self, *values: Any) -> None:
        given = _given(super()._execute_child, values)  # type: ignore[misc]
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        terminal = given["preexec_fn"] and given["preexec_fn"].args[0]
        request = [list(given["args"]), str(given["cwd"]), given["env"], terminal]
        text = json.dumps(request).encode()
        self._connection.sendall(len(text).to_bytes(8, "big"))
        errors = given["errwrite"] if given["errwrite"] != -1 else given["c2pwrite"]
        socket.send_fds(self._connection, [b"f"], [given["c2pwrite"], errors])
        self._connection.sendall(text)
        self.pid = self._receive()
        _parent_closes(self, given)

    def _receive(self) -> int:
        data = self._connection.recv(8, socket.MSG_WAITALL)
        assert len(data) == 8, "the process that forks has failed"
        return int.from_bytes(data, "big")

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return what ``os.waitpid`` would of a child."""
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = self._receive()
        self._connection.close()  # which lets the zombie go
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


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
    if words[2] in FRESH:
        return None
    return words[2:] if words[2].partition(".")[0] in SCRIPTS.values() else None


@functools.cache
def _server() -> str:
    """Start the process to fork, which ends with this one; return its address."""
    place = tempfile.TemporaryDirectory(prefix="minari-pipe-forks-")
    address = str(Path(place.name) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, address, " " * 4000],  # room for other words
        env={**os.environ, MARK: "0" * 32},
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
    _handle_yaml_quickly()
    _compose_once()
    _keep_pages_shared()
    gc.collect()
    gc.freeze()
    subprocess.Popen = _Popen  # type: ignore[misc]
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    running: dict[int, tuple[subprocess.Popen, socket.socket]] = {}
    ended: dict[socket.socket, subprocess.Popen] = {}
    while sys.stdin not in (
        ready := select.select([server, sys.stdin, *running, *ended], [], [])[0]
    ):
        for descriptor in ready:
            if descriptor is server:
                connection, _ = server.accept()
                process = _answer(connection)
                running[os.pidfd_open(process.pid)] = process, connection
            elif descriptor in running:
                os.close(descriptor)
                process, connection = running.pop(descriptor)
                _send_status(process.pid, connection)
                ended[connection] = process
            else:  # the test has asked for the exit code, or is gone
                ended.pop(descriptor).wait()
                descriptor.close()


_LAST = "tests.support.forks.last"
"""Name of the module that was imported last before the first fork."""


def _keep_pages_shared() -> None:
    """Spare each fork 60 ms of copying pages that the exit hooks of libraries and modules lie in.

    A fork runs only the hooks of its own, and looks only at modules that were imported since.
    """
    # typeshed lacks the registry, the only way to the finalizers of other modules
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    sys.modules[_LAST] = types.ModuleType(_LAST)


def _compose_once() -> None:
    """Fill the caches of Hydra's parsers, which the first composition of a process does."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".dvc").mkdir()
        os.chdir(folder)
        hydra_compose.recompose(["+dataset=cartpole_expert", "author.name=Ada", "collect.seed=1"])
        os.chdir(here)
    GlobalHydra.instance().clear()


def _handle_yaml_quickly() -> None:
    """Let DVC parse each ``params.yaml`` once, not 28 times a run, and write by libyaml.

    That takes 0.1 s, and ``dvc.lock`` as text with comments 0.2 s.

    Where a test stops a process at its barrier, DVC writes in its own way, which can be stopped.
    """

    class Dumper(yaml.CSafeDumper):
        pass

    Dumper.add_multi_representer(dict, yaml.CSafeDumper.represent_dict)
    Dumper.add_multi_representer(str, yaml.CSafeDumper.represent_str)

    def nothing(dumper: Dumper, _: None) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:null", "")

    Dumper.add_representer(type(None), nothing)

    def dump(data: Any, stream: Any) -> None:
        yaml.dump(data, stream, Dumper, sort_keys=False, allow_unicode=True)

    parse = serialize.parse_yaml
    parsed = functools.lru_cache(lambda text, path: pickle.dumps(parse(text, path)))

    def parse_once(text: str, path: str) -> Any:
        return pickle.loads(parsed(text, path))

    quick = {"_dump": dump, "parse_yaml": parse_once, "parse_yaml_for_update": parse_once}
    _slow.update({name: getattr(serialize, name) for name in quick})
    vars(serialize).update(quick)


_slow: dict[str, Callable[..., Any]] = {}
"""What :func:`_handle_yaml_quickly` replaced in DVC."""


def _answer(connection: socket.socket) -> subprocess.Popen:
    """Start the command that is asked for, and send its pid."""
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    words, folder, variables, terminal = json.loads(connection.recv(size, socket.MSG_WAITALL))
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        preexec_fn=None if terminal is None else functools.partial(_as_from_a_terminal, terminal),
    )
    for output in outputs:
        os.close(output)
    connection.sendall(process.pid.to_bytes(8, "big"))
    return process


def _send_status(pid: int, connection: socket.socket) -> None:
    """Send the status of a process that has ended and stays a zombie."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
    with contextlib.suppress(BrokenPipeError):  # the test did not wait for it
        connection.sendall(status.to_bytes(8, "big"))


class _Popen(subprocess.Popen):
    """Forks this process in place of a new Python that would run a module of the package."""

    def _execute_child(self, *values: Any) -> None:
        given = _given(super()._execute_child, values)  # type: ignore[misc]
        words = None if isinstance(given["args"], str) else _module(given["args"])
        if words is None:
            super()._execute_child(*values)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # A signal waits until the child no longer handles it as this process does.
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            _end_with(functools.partial(_begin, words, given, heard))
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        _parent_closes(self, given)


def _given(execute_child: Callable[..., None], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(inspect.signature(execute_child).parameters, values, strict=True))


def _parent_closes(process: Any, given: Mapping[str, Any]) -> None:
    process._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(given[name] for name in ends))


def _begin(words: list[str], given: Mapping[str, Any], heard: set[signal.Signals]) -> None:
    """Become the process that was asked for, and run its module."""
    for stream, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], stream)
    _let_go_of_files(given["pass_fds"])
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    if given["start_new_session"]:
        os.setsid()
    os.chdir(given["cwd"] or ".")
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    if given["preexec_fn"]:
        given["preexec_fn"]()
    _run(words, heard)


def _let_go_of_files(kept: Sequence[int]) -> None:
    """Hold no lock and no pipe of the parent; its objects may still close their descriptors."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor not in (0, 1, 2, null, *kept):
            os.dup2(null, descriptor, inheritable=False)


def _rename(words: Sequence[str]) -> None:
    """Let other processes see the words and the mark of this one; both lie where they began."""
    first = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "program_invocation_name").value
    assert first is not None
    size = len(Path("/proc/self/cmdline").read_bytes())
    text = b"\0".join(map(os.fsencode, words))[: size - 1]
    ctypes.memmove(first, text.ljust(size, b"\0"), size)
    if mark := os.environ.get(MARK):
        name = f"{MARK}=".encode()
        place = first + size + Path("/proc/self/environ").read_bytes().index(name)
        assert (ctypes.string_at(place, len(name)), len(mark)) == (name, 32)
        ctypes.memmove(place + len(name), mark.encode(), 32)


def _run(words: list[str], heard: set[signal.Signals]) -> None:
    """Run a module as ``python -m`` does, without what the parent imported for its user."""
    folder = os.getcwd()
    program = words[0] if "." in words[0] else f"{words[0]}.__main__"
    sys.modules.pop(program, None)
    newest_first = reversed(sys.modules.items())
    for name, module in list(itertools.takewhile(lambda item: item[0] != _LAST, newest_first)):
        if str(getattr(module, "__file__", "")).startswith(folder + os.sep):
            del sys.modules[name]
    sys.orig_argv = [sys.executable, "-m", *words]
    _rename(sys.orig_argv)
    sys.meta_path[:] = _known_finders()
    path = _import_path(os.environ)
    sys.path[:] = [*map(str, path), *_known_path()]
    sys.argv = ["-m", *words[1:]]
    tempfile.tempdir = None  # so that TMPDIR counts
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if words[0].startswith(STAGES):
        importlib.reload(minari_pipe.pipeline.stages)  # which handles signals
    signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    if any((folder / "sitecustomize.py").exists() for folder in path):
        vars(serialize).update(_slow)
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if words[0] == "minari_pipe":
        sys.path.insert(0, folder)  # from where the module removes it
    elif words[0].startswith("minari_pipe.pipeline."):
        source_imports._imported.clear()  # those of the process that forks this one
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
