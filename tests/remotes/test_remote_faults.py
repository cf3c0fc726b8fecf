"""Kills and cut connections in uploads and downloads: half a dataset is never seen, none is lost.

Meanwhile another process lists and loads, through this library and real Minari.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.testing.remotes import tree
from tests.conftest import FULL
from tests.support.noise import noise_dataset
from tests.support.remote_places import PACKAGES, Servers
from tests.support.servers.actor import Actor, ended
from tests.support.servers.gcs import create_bucket
from tests.support.servers.proxy import Answer, Flip, Proxy
from tests.support.servers.watcher import Watcher, watcher

ID = "faults/whole-v0"
N_CASES = 100 if FULL else 2
"""Of each remote, half of them uploads."""
N_BYTES = 17_500_000

hits: list[bool] = []
"""Of each case: whether it hit unfinished work."""


@dataclass
class Remote:
    """A server, and who uses it.

    Attributes:
        name: of the kind.
        proxy: what clients go through; None for a directory.
        actor: whose processes are killed.
        watcher: who looks meanwhile, not through the proxy.
        root: the local root with the dataset.
        new: makes an empty place, and says the address of it here and what Minari calls it.
    """

    name: str
    proxy: Proxy | None
    actor: Actor
    watcher: Watcher
    root: Path
    new: Callable[[str], tuple[str, str | None]]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local root with one dataset, whose data have more than one part."""
    root = tmp_path_factory.mktemp("faults") / "root"
    noise_dataset(root, ID, N_BYTES, n_steps=500, n_episodes=5)
    return root


@pytest.fixture(scope="module")
def looking(
    servers: Servers, local: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watcher]:
    """Who looks at all the servers."""
    data = local / ID / "data" / "main_data.hdf5"
    variables: dict[str, str] = {}
    for kind in PACKAGES:
        variables |= servers.variables(kind)
    folder = tmp_path_factory.mktemp("watcher") / "own"
    with watcher(folder, variables, sha256_file(data)) as found:
        yield found


@pytest.fixture(params=["directory", *PACKAGES])
def remote(
    request: pytest.FixtureRequest,
    servers: Servers,
    killable: Actor,
    looking: Watcher,
    local: Path,
    tmp_path: Path,
) -> Iterator[Remote]:
    def new(name: str) -> tuple[str, str | None]:
        if request.param == "directory":
            (tmp_path / name).mkdir()
            return f"file://{tmp_path / name}", None
        if request.param == "s3":
            return f"s3://bucket/{name}", None
        if request.param == "hub":
            return f"hf://org-{name}", f"hf://org-{name}"
        create_bucket(servers.variables("gcs")["STORAGE_EMULATOR_HOST"], name)
        return f"gs://{name}", f"gcp://{name}"

    yield Remote(request.param, servers.get(request.param), killable, looking, local, new)
    looking.watch(ID)  # nowhere: the folder of this test goes
    looking.seen()


def test_a_killed_or_cut_transfer_shows_nothing_and_completes(
    remote: Remote, tmp_path: Path
) -> None:
    for number in range(N_CASES):
        rng = random.Random(f"{remote.name} {number}")
        case = Case(remote, f"case{number}", tmp_path / str(number))
        (case.upload if number % 2 == 0 else case.download)(rng)
    seen = remote.watcher.seen()
    assert seen["wrong"] == []
    assert seen["rounds"] > N_CASES
    print(f"{remote.name}: looked {seen}")


class Case:
    """A place of its own at a remote, to which a dataset goes, or from which it comes."""

    def __init__(self, remote: Remote, name: str, folder: Path) -> None:
        self.remote = remote
        self.folder = folder
        self.folder.mkdir()
        self.address, self.minari = remote.new(name)
        self.place = remote.root

    def upload(self, rng: random.Random) -> None:
        self.remote.watcher.watch(ID, address=self.address, minari=self.minari)
        self.disturb("upload", self.remote.root, rng)
        self.remote.watcher.seen()
        assert self.run("upload", self.remote.root) in ("uploaded", "present")
        fresh = self.folder / "fresh"
        assert self.run("download", fresh) == "downloaded"
        self.assert_whole(fresh)
        self.remote.watcher.seen()

    def download(self, rng: random.Random) -> None:
        assert self.run("upload", self.remote.root) == "uploaded"
        root = self.folder / "root"
        root.mkdir()
        self.remote.watcher.watch(ID, root=root)
        self.disturb("download", root, rng)
        assert self.run("download", root) == "downloaded"
        self.assert_whole(root)
        self.remote.watcher.seen()

    def disturb(self, action: str, root: Path, rng: random.Random) -> None:
        """Run until it is killed, or ends of what happened to the network."""
        proxy, is_met = self.remote.proxy, False
        if proxy is None or (action == "download" and rng.random() < 0.3):
            within = [str(root)] if action == "download" else [self.address[7:]]
            event = rng.randint(1, 30 if action == "download" else 8)
            result, pid = self.start(action, root, die_at=event, within=within)
            self.await_end(pid)
            phase = Path(f"{result}.phase")
            how = f"kill -9 before change {event} of a file"
            at = phase.read_text() if phase.is_file() else "its end"
        else:
            # What was sent is read back, but by the Hub itself.
            is_read = action == "download" or (self.remote.name != "hub" and rng.random() < 0.3)
            of = "response" if is_read else "request"
            n_bytes = int(rng.random() * N_BYTES)
            how = rng.choice(["kill -9", "kill -9", "cut for good", "cut", "busy", "wrong bytes"])
            n_requests = len(proxy.requests)
            if how.startswith("cut"):
                proxy.cut_after(n_bytes, of, disconnect=how == "cut for good")
            elif how == "busy":
                proxy.inject(Answer(rng.choice([429, 500, 503]), "0"), times=rng.randint(1, 8))
            elif how == "wrong bytes":
                proxy.inject(Flip(rng.randint(0, 99)), times=1, method="GET", path="main_data")
            before = dict(proxy.passed)
            result, pid = self.start(action, root)
            if how == "kill -9":
                while not ended(pid) and proxy.passed[of] - before[of] < n_bytes:
                    time.sleep(0.001)
                if not ended(pid):
                    os.kill(pid, signal.SIGKILL)
            self.await_end(pid)
            requests = proxy.requests[n_requests:]
            is_met = proxy.passed[of] - before[of] >= n_bytes or any(r.fault for r in requests)
            met = [f"{r.method} {r.path[:60]}" for r in requests]
            at = f"{n_bytes:,} bytes of {of}s, in {met[-1] if met else 'no request'}"
            proxy.clear()
            proxy.connect()
        outcome = json.loads(result.read_text())["outcome"] if result.is_file() else "killed"
        is_whole = outcome in ("uploaded", "downloaded")
        # Of what a transfer gets over by itself, it ends whole.
        hits.append(not is_whole or (proxy is not None and how != "kill -9" and is_met))
        print(f"{self.remote.name}, {action}: {how} at {at}: {outcome[:100]}")

    def run(self, action: str, root: Path) -> str:
        result, pid = self.start(action, root)
        self.await_end(pid)
        return json.loads(result.read_text())["outcome"]

    def start(self, action: str, root: Path, **more: Any) -> tuple[Path, int]:
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        command = {"action": action, "id": ID, "address": self.address, "root": root}
        return result, self.remote.actor.start(**command, result=result, **more)

    def await_end(self, pid: int) -> None:
        deadline = time.monotonic() + 60
        while not ended(pid):
            assert time.monotonic() < deadline, "the transfer does not end"
            time.sleep(0.005)

    def assert_whole(self, root: Path) -> None:
        """The dataset and nothing else is there, the bytes of the one that was published."""
        names = {path.name for path in root.iterdir()}
        assert names == {"faults"}
        assert tree(root / ID / "data") == tree(self.remote.root / ID / "data")


def test_most_of_the_faults_hit_unfinished_work() -> None:
    print(f"{sum(hits)} of {len(hits)} faults hit unfinished work")
    assert hits and sum(hits) * 2 >= len(hits)
