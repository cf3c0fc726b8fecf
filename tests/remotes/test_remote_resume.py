"""What was cut off goes on where it was, and what is interrupted ends at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minari_pipe.core.datasets_root import ROOT_VARIABLE
from minari_pipe.testing.remotes import tree
from tests.conftest import FULL
from tests.support.covering import covering
from tests.support.noise import noise_dataset
from tests.support.remote_places import (
    Place,
    Servers,
    download,
    enter_hub,
    listed,
    new_place,
    upload,
)
from tests.support.servers.actor import Actor, ended
from tests.support.servers.proxy import Answer, Delay
from tests.support.servers.running import entered

# httpx says so of how huggingface_hub sends large files
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ID = "example/large-v0"
N_BYTES = 35_000_000
SMALL = 2_500_000
"""Bytes of all else, such as metadata of 1 MB, which describe spaces of many values."""
N_POLICY = 20_000_000
KINDS = ["s3", "gcs", "hub", *(["moto"] if FULL else [])]  # moto is another S3 server


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local root with a dataset of one large file."""
    root = tmp_path_factory.mktemp("local") / "root"
    noise_dataset(root, ID, N_BYTES, n_steps=50, n_episodes=1)
    return root


@pytest.fixture
def root(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A link to that root, beside which downloads go."""
    (tmp_path / "root").symlink_to(local)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "root"))
    monkeypatch.setattr("minari_pipe.remotes.base._WAITS", (0.01, 0.01, 0.01, 0.01))
    return tmp_path / "root"


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, servers: Servers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    enter_hub(monkeypatch)
    place = new_place(servers, request.param, root.parent / "remote")
    with entered(place.variables), ExitStack() as stack:
        stack.callback(place.proxy.connect)
        stack.callback(place.proxy.clear)
        yield place


def assert_fetched(place: Place, root: Path) -> None:
    told = download(place, ID)
    assert told.error is None, told.error
    fresh = root.parent / "fresh"
    assert {path.name for path in fresh.iterdir()} == {"example"}
    assert tree(fresh / ID / "data") == tree(root / ID / "data")


def test_an_upload_that_was_cut_sends_only_what_did_not_arrive(place: Place, root: Path) -> None:
    if place.kind == "hub":
        pytest.skip("of a file of git LFS the Hub keeps all or nothing")
    n_requests = len(place.proxy.requests)
    place.proxy.cut_after(int(0.6 * N_BYTES), "request", disconnect=True)
    assert place.address in upload(place, ID).line
    n_arrived = n_bytes_that_arrived(place, n_requests)
    place.proxy.connect()
    assert listed(place).value == {}
    before = place.proxy.passed["request"]
    assert upload(place, ID).value.outcome == "uploaded"
    n_sent = place.proxy.passed["request"] - before
    print(f"{place.kind}: {n_arrived / N_BYTES:.0%} arrived, then {n_sent / N_BYTES:.0%} were sent")
    assert n_sent < size_of(root) - n_arrived + SMALL
    assert n_arrived > 0
    assert_fetched(place, root)


def test_a_download_that_was_cut_fetches_only_what_did_not_arrive(place: Place, root: Path) -> None:
    assert upload(place, ID).value.outcome == "uploaded"
    # Four pieces of an eighth are on their way at once, and a file grows from its beginning. On a
    # busy machine the first piece may be the last to arrive, which leaves nothing to go on with.
    n_arrived, n_cuts = 0, 0
    while not n_arrived and n_cuts < 3:
        place.proxy.cut_after(int(0.9 * N_BYTES), "response", disconnect=True)
        assert place.address in download(place, ID).line
        stage = next((root.parent / "fresh").glob(".download-*/dataset"))
        n_arrived, n_cuts = sum(map(len, tree(stage).values())), n_cuts + 1
        place.proxy.connect()
    before = place.proxy.passed["response"]
    assert_fetched(place, root)
    n_fetched = place.proxy.passed["response"] - before
    print(f"{place.kind}: {n_arrived / N_BYTES:.0%} arrived, then {n_fetched / N_BYTES:.0%} came")
    assert n_fetched < size_of(root) - n_arrived + SMALL
    assert n_arrived > 0


def size_of(root: Path) -> int:
    return sum(map(len, tree(root / ID).values()))


def n_bytes_that_arrived(place: Place, n_requests: int) -> int:
    """Bytes of what a server has acknowledged, in requests after so many."""
    later = place.proxy.requests[n_requests:]
    large = [r for r in later if r.method in ("PUT", "POST") and r.size >= 500_000]
    return sum(r.size for r in large if r.status in (200, 201, 308))


def test_a_file_that_the_hub_has_is_not_sent_again(
    servers: Servers, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files arrive, and the commit that names them is refused."""
    with_policies(local, tmp_path / "root", monkeypatch, n_files=2)
    monkeypatch.setattr("minari_pipe.remotes.base._WAITS", (0.01, 0.01, 0.01, 0.01))
    enter_hub(monkeypatch)
    place = new_place(servers, "hub", tmp_path / "remote")
    with entered(place.variables), ExitStack() as stack:
        stack.callback(place.proxy.clear)
        n_requests = len(place.proxy.requests)
        place.proxy.inject(Answer(403), method="POST", path="/commit/", times=1)
        assert place.address in upload(place, ID).line
        n_arrived = n_bytes_that_arrived(place, n_requests)
        assert n_arrived >= 2 * N_POLICY
        before = place.proxy.passed["request"]
        assert upload(place, ID).value.outcome == "uploaded"
        assert place.proxy.passed["request"] - before < SMALL


def with_policies(local: Path, root: Path, patch: pytest.MonkeyPatch, n_files: int) -> None:
    """Copy the root, with checkpoints in the dataset that no server has seen."""
    patch.setenv(ROOT_VARIABLE, str(root))
    shutil.copytree(local / ID, root / ID)
    (root / ID / "manifest.json").unlink()  # which would not name them
    (root / ID / "policies").mkdir()
    for number in range(n_files):
        (root / ID / "policies" / f"{number}.zip").write_bytes(os.urandom(N_POLICY))


def test_an_upload_that_google_has_dropped_begins_anew(
    servers: Servers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(servers, "gcs", root.parent / "remote")
    with entered(place.variables), ExitStack() as stack:
        stack.callback(place.proxy.clear)
        place.proxy.inject(Answer(404), method="PUT", path="upload_id=", min_size=1_000_000)
        assert "dropped the unfinished upload" in upload(place, ID).line
        place.proxy.clear()
        for status in (404, 410):  # also when it is asked how far it is
            place.proxy.inject(Answer(503), method="PUT", path="upload_id=", min_size=1_000_000)
            assert place.address in upload(place, ID).line
            place.proxy.clear()
            place.proxy.inject(Answer(status), method="PUT", path="upload_id=", times=1)
        assert upload(place, ID).value.outcome == "uploaded"


def test_a_session_of_google_that_keeps_nothing_is_given_up(servers: Servers, root: Path) -> None:
    place = new_place(servers, "gcs", root.parent / "remote")
    with entered(place.variables), ExitStack() as stack:
        stack.callback(place.proxy.clear)
        place.proxy.inject(Answer(308), method="PUT", path="upload_id=")
        assert "does not keep the data sent" in upload(place, ID).line
        place.proxy.clear()
        assert upload(place, ID).value.outcome == "uploaded"


# Ctrl-C


@pytest.fixture
def interrupted(
    request: pytest.FixtureRequest, servers: Servers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    enter_hub(monkeypatch)
    place = new_place(servers, request.param, root.parent / "remote")
    with entered(place.variables):
        yield place
        place.proxy.clear()


@pytest.mark.parametrize(
    ("action", "interrupted"), covering(["upload", "download"], KINDS), indirect=["interrupted"]
)
def test_an_interruption_ends_at_once_and_the_next_run_goes_on(
    action: str,
    interrupted: Place,
    killable: Actor,
    root: Path,
    local: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = interrupted
    fresh = root.parent / "fresh"
    fresh.mkdir()
    if place.kind == "hub":  # which knows the data already
        root = root.parent / "another"
        with_policies(local, root, monkeypatch, n_files=1)
    if action == "download":
        assert upload(place, ID).value.outcome == "uploaded"
        place.proxy.inject(Delay(60), method="GET", path="main_data|/storage/[0-9a-f]{64}")
    else:
        place.proxy.inject(Delay(60), method="PUT|POST", min_size=1_000_000)
    n_requests = len(place.proxy.requests)
    result = root.parent / "result.json"
    pid = killable.start(
        action=action,
        id=ID,
        address=place.address,
        root=str(root if action == "upload" else fresh),
        result=str(result),
        variables=place.variables,  # there are two S3 servers
    )
    deadline = time.monotonic() + 60
    while not any(isinstance(r.fault, Delay) for r in place.proxy.requests[n_requests:]):
        assert time.monotonic() < deadline and not ended(pid), "the large file is not met"
        time.sleep(0.01)
    time.sleep(0.1)
    start = time.monotonic()
    os.kill(pid, signal.SIGINT)
    while not ended(pid):
        assert time.monotonic() - start < 20, "the transfer does not end"  # it would take 60
        time.sleep(0.01)
    assert not result.exists(), json.loads(result.read_text())
    place.proxy.clear()
    if action == "upload":
        assert listed(place).value == {}
        assert upload(place, ID).value.outcome == "uploaded"
    else:
        assert all(path.name.startswith(".download-") for path in fresh.iterdir())
        assert_fetched(place, root)
