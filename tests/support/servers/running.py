"""Start a server on a free port of the loopback interface, and stop it, whatever happened."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import fsspec
import fsspec.config

FOREIGN = (
    *("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("AWS_", "BOTO", "FSSPEC_", "GCLOUD_", "GCP_", "GCSFS_", "GOOGLE_", "CLOUDSDK_"),
    *("HF_", "HUGGING", "MINARI_REMOTE", "NO_GCE_CHECK", "STORAGE_EMULATOR_HOST"),
)
"""How the names of variables begin by which the developer's own settings would reach a client."""

AT_HOME = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_GCE_CHECK": "true",
    # Else gcsfs asks for every bucket's kind by gRPC, which no server here speaks: a minute each.
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
"""What keeps clients from asking the network whose machine this is.

Google's libraries read it when they are imported, so it is set for the whole run of the tests.
"""


@contextmanager
def server_process(
    command: Callable[[int], list[str]], variables: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run ``command(port)`` while the block runs, on the port that is given.

    Another process may take the port between the look and the start: then once more, on another.
    """
    for _ in range(5):
        port = free_port()
        process = subprocess.Popen(
            command(port),
            env=environment(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if _answers(process, port):
                yield port
                return
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise AssertionError(f"ends as soon as it is started: {command(port)}")


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server accepts connections; false if its process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process.poll() is None
        assert time.monotonic() < deadline, f"{process.args} does not answer within a minute"
        time.sleep(0.02)
    return False


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without its accounts and proxies, and ``variables``."""
    own = {k: v for k, v in os.environ.items() if not k.upper().startswith(FOREIGN)}
    return own | AT_HOME | dict(variables)


@contextmanager
def entered(variables: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Let clients in this process find a server; those that fsspec keeps are forgotten."""
    before = dict(os.environ)
    settings = dict(fsspec.config.conf)
    try:
        _replace(os.environ, environment(variables))
        # fsspec reads its variables once, when it is imported.
        fsspec.config.conf.clear()
        fsspec.config.set_conf_env(fsspec.config.conf)
        _forget_clients()
        yield variables
    finally:
        _replace(os.environ, before)
        _replace(fsspec.config.conf, settings)
        _forget_clients()


def _replace(target: dict, content: dict) -> None:
    for name in set(target) - set(content):
        del target[name]
    target.update(content)


def _forget_clients() -> None:
    """fsspec gives the same client again for the same arguments, with the old server's address."""
    for client in list(fsspec.registry.values()):
        client.clear_instance_cache()
