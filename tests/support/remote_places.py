"""Places at servers for tests of what goes wrong there, and calls whose whole output is looked at.

The clients run in the process of the tests, most of them through a proxy that fails on request.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from minari_pipe.core.datasets_root import ROOT_VARIABLE
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import MinariPipeError
from minari_pipe.remotes.hosting import download_dataset, list_remote_datasets, publish_dataset
from minari_pipe.testing.remotes import another_root
from tests.support.servers.actor import Actor, actor
from tests.support.servers.gcs import gcs_server
from tests.support.servers.hub import WRITER, hub_server
from tests.support.servers.proxy import Proxy, fault_proxy
from tests.support.servers.s3 import SECRET, moto_server, s3_server

ID = "example/steps-v0"
OTHER = "example/steps-v1"
SECRETS = [SECRET, WRITER, "WrongSecret", "upload_id=", "signature="]
_NUMBERS = itertools.count()


@dataclass
class Place:
    """An empty place at a server.

    Attributes:
        kind: of the remote.
        address: of the place.
        variables: by which a client finds the server, through the proxy.
        proxy: before the server; None of a directory.
    """

    kind: str
    address: str
    variables: dict[str, str]
    proxy: Any


@dataclass
class Outcome:
    """What a call came to.

    Attributes:
        value: that it returned.
        error: that it raised.
        warned: the warnings.
    """

    value: Any = None
    error: BaseException | None = None
    warned: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The error, which is of this package, and one line that a terminal shows as it is."""
        assert self.error is not None, "nothing went wrong"
        assert isinstance(self.error, MinariPipeError), repr(self.error)
        line = str(self.error)
        assert line.isprintable() and len(line) < 900, repr(line)
        print(line)
        return line


def tried(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    """Call, and look at everything that is shown, logs and tracebacks too: no secret is in it."""
    outcome, output = Outcome(), io.StringIO()
    handler = logging.StreamHandler(output)
    # At this level the HTTP libraries say what they ask for; that is for who asks them to.
    handler.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(output):
            warnings.simplefilter("always")
            with redirect_stderr(output):
                outcome.value = call(*args, **kwargs)
    except Exception as error:
        outcome.error = error
        output.write("".join(traceback.format_exception(error)))
    finally:
        root.removeHandler(handler)
    outcome.warned = [str(w.message) for w in caught if w.category is UserWarning]
    shown = output.getvalue() + "\n".join(str(warning.message) for warning in caught)
    for secret in SECRETS:
        assert secret not in shown, shown
    return outcome


def upload(place: Place, dataset_id: str = ID) -> Outcome:
    return tried(publish_dataset, dataset_id, place.address)


def download(place: Place, dataset_id: str = ID) -> Outcome:
    """Fetch from ``MINARI_REMOTE`` into the root ``fresh`` beside the one of the environment."""
    fresh = Path(os.environ[ROOT_VARIABLE]).parent / "fresh"
    fresh.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT_VARIABLE, str(fresh))
        return tried(download_dataset, dataset_id)


def listed(place: Place) -> Outcome:
    return tried(list_remote_datasets, place.address)


class Servers:
    """The servers by kind of remote, and proxies before them; each starts when it is asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._variables: dict[str, dict[str, str]] = {}
        self._proxies: dict[str, Proxy] = {}
        self._starts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            "hub": lambda: hub_server(folder / "hub", "--lfs-threshold=5000"),
            "s3": lambda: s3_server(folder / "s3", "bucket"),
            "moto": lambda: moto_server("bucket"),
            "gcs": lambda: gcs_server("bucket"),
        }

    def variables(self, kind: str) -> dict[str, str]:
        """By which clients find a server, without a proxy."""
        if kind not in self._variables:
            found = self._stack.enter_context(self._starts[kind]())
            self._variables[kind] = found.variables() if kind == "hub" else found
        return self._variables[kind]

    def get(self, kind: str) -> Proxy | None:
        """Of a directory there is none."""
        if kind in self._starts and kind not in self._proxies:
            proxy = fault_proxy(self.variables(kind))
            self._proxies[kind] = self._stack.enter_context(proxy)
        return self._proxies.get(kind)


PACKAGES = {
    "s3": ("s3fs", "aiobotocore.session", "minari_pipe.remotes.s3"),
    "gcs": ("gcsfs", "minari_pipe.remotes.gcs"),
    "hub": ("huggingface_hub.hf_api", "minari_pipe.remotes.hub.remote"),
}
"""What a process imports that uses a remote of this kind."""


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """For all tests of a process."""
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


@pytest.fixture(scope="session")
def killable(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Actor]:
    """Processes that find all servers, through their proxies, and may be killed."""
    home = tmp_path_factory.mktemp("home")
    variables = {"HOME": str(home), "HF_HOME": str(home / "hf")}
    for kind in PACKAGES:
        proxy = servers.get(kind)
        assert proxy is not None
        variables |= proxy.variables
    with actor(variables, *itertools.chain(*PACKAGES.values())) as found:
        yield found


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``root`` copies."""
    with pytest.MonkeyPatch.context() as patch:
        folder = another_root(patch, tmp_path_factory.mktemp("made") / "root")
        step_index_dataset(ID)
        step_index_dataset(OTHER, lengths=(7, 8))
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local root with two versions of a dataset."""
    shutil.copytree(made, tmp_path / "root")
    return another_root(monkeypatch, tmp_path / "root")


def enter_hub(patch: pytest.MonkeyPatch) -> None:
    """huggingface_hub reads its variables when it is imported."""
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)


def new_place(servers: Servers, kind: str, folder: Path) -> Place:
    """Return an empty place; a directory is made at ``folder``."""
    name = f"place-{next(_NUMBERS)}"
    proxy = servers.get(kind)
    if proxy is None:
        folder.mkdir()
        return Place(kind, str(folder), {"MINARI_REMOTE": str(folder)}, None)
    address = {"gcs": f"gs://bucket/{name}", "hub": f"hf://org-{name}"}
    found = Place(kind, address.get(kind, f"s3://bucket/{name}"), dict(proxy.variables), proxy)
    found.variables["MINARI_REMOTE"] = found.address
    return found
