"""Run blocks on a Ray cluster: an existing one, or a local one (engine ``ray``)."""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

from minari_pipe.core.files.fetch import MIRROR_VARIABLE
from minari_pipe.core.trust import MODULES_VARIABLE, SHA256_VARIABLE, check_address
from minari_pipe.errors import ConfigError, MinariPipeError, MissingDependencyError, Stopped
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.oc_env import holds_value
from minari_pipe.pipeline.execution.engines.base import Call, Engine, Outcome, usable_cores
from minari_pipe.pipeline.execution.engines.processes import DIED, ONE_THREAD
from minari_pipe.pipeline.source_imports import ROOT_VARIABLE
from minari_pipe.pipeline.workspace import is_checkout

_STORE_BYTES = 100 * 2**20  # for Ray's object store; calls and records need next to nothing
_SECONDS_TO_CONNECT = 10.0
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_WITHOUT_NODES = 30.0
#: Ray ends a process that waits for longer than a minute.
_SECONDS_WITHOUT_HEAD = 20.0
_LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayEngine(Engine):
    """Runs calls as tasks of Ray Core, which neither retries them nor keeps their files."""

    def __init__(self, settings: schema.Engine) -> None:
        """Connect to ``engine.address``, or start Ray on the loopback interface of this machine.

        Args:
            settings: the section ``engine`` of the config; without ``n_workers`` there are as many
                as the cluster has processors.

        Raises:
            MissingDependencyError: Ray is not installed.
            ConfigError: there is no cluster at the address.
            TrustError: only a file names the address.
        """
        for key, address in (("address", settings.address), ("storage", settings.storage)):
            if address is not None:
                check_address(f"engine.{key}", address, exactly=holds_value(address))
        self._ray = _import_ray()
        self.shares_disk = settings.storage is None
        address = settings.address
        self._folder: tempfile.TemporaryDirectory | None = None
        self._is_lost = False
        # Ray installs a SIGTERM handler; the current one is restored below.
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if address is None:
                self.n_workers = settings.n_workers or usable_cores()
                # A short name: paths of Unix sockets may have no more than 107 bytes.
                self._folder = tempfile.TemporaryDirectory(
                    prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
                )
                _start(self._ray, self.n_workers, self._folder.name)
            else:
                _connect(self._ray, str(address))
                self.n_workers = settings.n_workers or max(1, self._n_processors())
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
        except BaseException as exc:
            self._stop()
            if isinstance(exc, SystemExit):  # Ray's answer to SIGTERM while it starts
                raise Stopped(signal.SIGTERM) from exc
            raise
        self._run = self._ray.remote(num_cpus=1, max_retries=0, runtime_env=_worker_env())(_run)
        self._refs: dict[Any, int] = {}
        # Not with Ray Client, where only the proxy talks to the head.
        is_client = str(address).startswith("ray://")
        self._head = None if is_client else self._ray.get_runtime_context().gcs_address
        self._looked = self._had_head = self._had_nodes = time.monotonic()

    def _n_processors(self) -> int:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        return int(sum(node["Resources"].get("CPU", 0) for node in nodes))

    def submit(self, ticket: int, call: Call) -> None:
        self._refs[self._run.remote(call, os.getcwd())] = ticket

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        from ray.exceptions import RayError, TaskCancelledError

        try:
            done, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=seconds)
            found = []
            for ref in done:
                ticket = self._refs.pop(ref)
                try:
                    outcome = self._ray.get(ref)
                except TaskCancelledError:
                    outcome = Outcome(error="it was cancelled")
                except RayError as exc:
                    outcome = Outcome(error=_one_line(exc))
                found.append((ticket, outcome))
            if not done:
                self._check_nodes()
        except (ConnectionError, RayError) as exc:
            raise MinariPipeError(f"lost the Ray cluster: {_one_line(exc)}") from exc
        except SystemError as exc:  # Cython wraps an exception raised in a signal handler
            if isinstance(exc.__cause__, Stopped):
                raise exc.__cause__ from None
            raise
        return found

    def _check_nodes(self) -> None:
        """Raise if the head or the nodes of the cluster are gone, instead of waiting forever."""
        now = time.monotonic()
        if now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        try:
            if self._head is not None:
                _knock(self._head)
        except OSError as exc:
            if now - self._had_head > _SECONDS_WITHOUT_HEAD:
                self._is_lost = True
                raise MinariPipeError(
                    f"the Ray cluster at {self._head} does not respond: {_one_line(exc)}; finished "
                    f"work is kept; once it is up, run the same command to continue"
                ) from exc
            return
        self._had_head = now
        if self._n_processors():
            self._had_nodes = now
        elif now - self._had_nodes > _SECONDS_WITHOUT_NODES:
            raise MinariPipeError(
                f"the Ray cluster has had no node with a processor for "
                f"{_SECONDS_WITHOUT_NODES:.0f} s; finished work is kept; once it has nodes, run "
                f"the same command to continue"
            )

    def cancel(self, ticket: int) -> None:
        for ref, other in list(self._refs.items()):
            if other == ticket:
                del self._refs[ref]
                self._ray.cancel(ref, force=True)

    def close(self) -> None:
        if not self._is_lost:
            for ref in self._refs:
                self._ray.cancel(ref, force=True)
        self._refs = {}
        self._stop()

    def _stop(self) -> None:
        if self._is_lost:
            # Ray would wait for its head and then end this process, or crash at interpreter exit.
            # The stage has printed its error; exit before either happens.
            atexit.register(os._exit, 1)
        else:
            self._ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()


def _run(call: Call, folder: str) -> Outcome:
    """Run a call in the workspace, where relative paths of a config are checked.

    A worker starts where the user typed ``ray start``. A node that does not have the workspace has
    none of its files.
    """
    if os.access(folder, os.X_OK):
        with chdir(folder):
            return call()
    with tempfile.TemporaryDirectory(prefix="minari_pipe-") as empty, chdir(empty):
        return call()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send nothing unless asked
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Below a process `uv run`, Ray would upload the current folder and let workers import from it.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    try:
        import ray
    except ModuleNotFoundError as exc:
        raise MissingDependencyError(
            f"engine ray needs {exc.name}, which is not installed. Run: pip install "
            f"'minari_pipe[ray]'"
        ) from exc
    logging.getLogger("ray").setLevel(logging.ERROR)  # it logs its authentication every time
    return ray


def _worker_env() -> dict[str, Any]:
    return {"env_vars": {**ONE_THREAD, **{k: os.environ[k] for k in _PASSED if k in os.environ}}}


_PASSED = (
    "HYDRA_FULL_ERROR",
    MIRROR_VARIABLE,
    MODULES_VARIABLE,
    ROOT_VARIABLE,
    SHA256_VARIABLE,
)


def _start(ray: Any, n_workers: int, folder: str) -> None:
    """Start Ray for this process alone, its logs and sockets in ``folder``.

    By default Ray listens on every interface, whatever ``_node_ip_address`` says: it takes the
    loopback address for that of a machine without a cluster and looks for another one, unless
    clusters are disabled.
    """
    from ray._private import ray_constants

    # A token of this run; by default Ray stores one in the home, which a job may not write to.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    before = os.environ.get(_LOCAL_ONLY)
    os.environ[_LOCAL_ONLY] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(
            "local",
            num_cpus=n_workers,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
            job_config=_job_config(),
            **_QUIET,
        )
    finally:
        if before is None:
            del os.environ[_LOCAL_ONLY]
        else:
            os.environ[_LOCAL_ONLY] = before
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise MinariPipeError(
            f"Ray started on {address}, which other machines can reach, instead of 127.0.0.1; "
            f"start a cluster yourself and set engine.address=HOST:PORT"
        )


_QUIET: dict[str, Any] = {
    "configure_logging": False,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}


def _job_config() -> Any:
    """Return a config that keeps the workspace, the current folder, off the workers' import path.

    Ray would put it before installed packages, and a workspace may come from a stranger.
    """
    from ray.job_config import JobConfig

    return JobConfig(_client_job=not is_checkout(Path.cwd()))


def _connect(ray: Any, address: str) -> None:
    try:
        if address.startswith("ray://"):
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        else:
            # Make one attempt, which takes a minute.
            os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
            _knock(address)
            ray.init(address, job_config=_job_config(), **_QUIET)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, OSError) as exc:
        raise ConfigError(
            f"no Ray cluster at engine.address={address!r}: {_one_line(exc).rstrip('.')}. Start "
            f"one with `ray start --head` outside of the workspace, whose modules it would import, "
            f"or leave out engine.address to use only this machine"
        ) from exc


def _knock(address: str) -> None:
    """Open and close a connection to a cluster: Ray itself retries for long if there is none.

    Raises:
        OSError: nothing answers at the address.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    found = canonicalize_bootstrap_address_or_die(address) if address == "auto" else address
    host, _, port = found.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()


def _one_line(exc: BaseException) -> str:
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    if isinstance(exc, OutOfMemoryError):
        return "its node ran out of memory"
    if isinstance(exc, NodeDiedError):
        return "its node died"
    if isinstance(exc, WorkerCrashedError):
        return DIED
    cause = getattr(exc, "cause", None) or exc
    text = " ".join(str(cause).split()) or type(cause).__name__
    return text if len(text) < 300 else f"{text[:297]}..."
