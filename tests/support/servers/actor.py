"""Processes that upload or download and may be killed: forked from one that has imported it all.

One command a line on standard input; what it leads to is written to the file ``result`` of the
command, if the process lives so long.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import CHECKOUT
from tests.support.servers.running import entered, environment

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate", "os.rmdir"}


class Actor:
    """The process that forks others."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, **command: Any) -> int:
        """Let a process do ``command``; its pid."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command, default=str) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def actor(variables: Mapping[str, str], *packages: str) -> Iterator[Actor]:
    """Run an actor while the block runs.

    Args:
        variables: of the server's clients.
        packages: to be imported before the first fork.
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.support.servers.actor", *packages],
        cwd=CHECKOUT,
        env=environment(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Actor(process)
    finally:
        process.terminate()
        process.wait(timeout=20)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def ended(pid: int) -> bool:
    """Whether the process is gone; the actor lets the system collect it."""
    return not Path(f"/proc/{pid}").exists()


def _die_at(event: int, result: Path, within: tuple[str, ...]) -> None:
    """Kill this process before its n-th change of a file."""
    seen = 0

    def hook(name: str, arguments: tuple) -> None:
        nonlocal seen
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & 3
        if not (writes or name in _CHANGES):
            return
        paths = [os.fsdecode(a) for a in arguments[:2] if isinstance(a, str | bytes)]
        if not any(path.startswith(within) for path in paths):
            return
        seen += 1
        if seen == event:
            message = f"{name} {paths[0].rpartition('/')[2]}".encode()
            handle = os.open(f"{result}.phase", os.O_WRONLY | os.O_CREAT)
            os.write(handle, message)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _act(command: dict[str, Any]) -> None:
    from minari_pipe.remotes import base
    from minari_pipe.remotes.hosting import download_dataset, publish_dataset

    result = Path(command["result"])
    base._WAITS = (0.02, 0.04, 0.06, 0.08)  # type: ignore[assignment]
    if http := sys.modules.get("huggingface_hub.utils._http"):  # which tries uploads again itself
        http.http_backoff.__kwdefaults__.update(base_wait_time=0.02, max_wait_time=0.1)
    variables = command.get("variables", {}) | {"MINARI_DATASETS_PATH": command["root"]}
    if event := command.get("die_at"):
        _die_at(event, result, tuple(command["within"]))
    warnings.simplefilter("ignore")
    try:
        with entered({**os.environ, **variables}):
            if command["action"] == "upload":
                outcome = publish_dataset(command["id"], command["address"]).outcome
            else:
                download_dataset(f"{command['address']}/{command['id']}")
                outcome = "downloaded"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    beside = result.with_suffix(".tmp")
    beside.write_text(json.dumps({"outcome": outcome}))
    os.replace(beside, result)


def main(packages: list[str]) -> None:
    for package in ("minari_pipe.remotes.hosting", "minari_pipe.storage.hdf5.storage", *packages):
        importlib.import_module(package)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # In the background of a script it is ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sys.stdin = open(os.devnull)  # noqa: SIM115
            os.dup2(2, 1)
            _act(json.loads(line))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
