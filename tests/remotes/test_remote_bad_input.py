"""What goes wrong at a remote is told in one line that shows no secret, and nothing is lost by it.

The clients run in this process, through a proxy that fails on request.
"""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.testing.remotes import tree
from tests.conftest import FULL
from tests.support.covering import covering
from tests.support.remote_places import (
    ID,
    OTHER,
    Outcome,
    Place,
    Servers,
    download,
    enter_hub,
    listed,
    new_place,
    upload,
)
from tests.support.servers.hub import WRITER
from tests.support.servers.proxy import Answer, Cut, Flip, Proxy
from tests.support.servers.running import entered, free_port

# httpx says so of how huggingface_hub sends large files
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NETWORKED = ["s3", "gcs", "hub"]
ACTIONS = ["upload", "download", "list"]
each_action_and_remote = pytest.mark.parametrize(
    ("action", "place"), covering(ACTIONS, NETWORKED), indirect=["place"]
)
#: what the Hub's stand-in calls a file that git LFS has
FILE_PATHS = {"main_data.hdf5": "main_data|/storage/[0-9a-f]{64}"}


def do(action: str, place: Place) -> Outcome:
    return {"upload": upload, "download": download, "list": listed}[action](place)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before the next attempt."""
    monkeypatch.setattr("minari_pipe.remotes.base._WAITS", (0.01, 0.01, 0.01, 0.01))
    monkeypatch.setattr("minari_pipe.remotes.base._LONGEST_WAIT", 0.05)


Enter = Callable[[str], Place]


@pytest.fixture
def enter_place(servers: Servers, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Enter]:
    """Makes an empty place, which clients of this process find from then on."""
    with ExitStack() as stack:

        def enter(kind: str) -> Place:
            place = new_place(servers, kind, root.parent / "remote")
            enter_hub(monkeypatch)
            stack.enter_context(entered(place.variables))
            stack.callback(place.proxy.connect)
            stack.callback(place.proxy.clear)
            return place

        yield enter


@pytest.fixture(params=NETWORKED)
def place(request: pytest.FixtureRequest, enter_place: Enter) -> Place:
    """An empty place, which clients of this process find."""
    return enter_place(request.param)


def ready(action: str, place: Place) -> None:
    """Let there be something to do for an action."""
    assert upload(place, OTHER).error is None
    if action == "download":
        assert upload(place).error is None


def assert_nothing_changed(action: str, place: Place, root: Path) -> None:
    """Nobody sees half a dataset, here or there."""
    wanted = {OTHER} if action == "upload" else {OTHER, ID} if action == "download" else {OTHER}
    assert set(listed(place).value) == wanted
    fresh = root.parent / "fresh"
    if fresh.exists():
        assert [path for path in fresh.iterdir() if not path.name.startswith(".download-")] == []


def assert_succeeds(action: str, place: Place, root: Path) -> None:
    told = do(action, place)
    assert told.error is None, told.error
    if action == "download":
        fresh = root.parent / "fresh"
        assert {path.name for path in fresh.iterdir()} == {"example"}
        assert tree(fresh / ID / "data") == tree(root / ID / "data")
    if action == "upload":
        assert told.value.outcome in ("uploaded", "present")


# the network


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_the_proxy_of_the_environment_is_used_but_for_its_exceptions(
    kind: str, enter_place: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = enter_place(kind)
    assert upload(place).error is None
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # nobody listens
    assert "cannot be reached" in listed(place).line
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert set(listed(place).value) == {ID}


FAULTS: dict[str, Callable[[Proxy], None]] = {
    "refused": lambda proxy: proxy.disconnect(),
    "cut before the answer": lambda proxy: proxy.inject(Cut(0)),
    "cut in the answer": lambda proxy: proxy.inject(Cut(30)),
    "cut in the request": lambda proxy: proxy.inject(Cut(40, "request")),
    "busy": lambda proxy: proxy.inject(Answer(429, "1")),
    "broken": lambda proxy: proxy.inject(Answer(500)),
    "out of order": lambda proxy: proxy.inject(Answer(503, "1", b"<html>\n\x1b[31mno</html>")),
}


@pytest.mark.parametrize(
    ("action", "fault", "place"),
    [
        *covering(["upload"], FAULTS, NETWORKED),
        *covering(["download"], ["cut in the answer", "refused", "busy", "broken"], NETWORKED),
        *covering(["list"], ["out of order", "broken", "busy", "refused"], NETWORKED),
    ],
    indirect=["place"],
)
def test_a_fault_that_stays_is_one_line_and_afterwards_all_is_well(
    fault: str, action: str, place: Place, root: Path
) -> None:
    ready(action, place)
    FAULTS[fault](place.proxy)
    n_requests = len(place.proxy.requests)
    line = do(action, place).line
    assert place.address in line
    assert len(place.proxy.requests) - n_requests <= 20
    place.proxy.clear()
    place.proxy.connect()
    assert_nothing_changed(action, place, root)
    assert_succeeds(action, place, root)


@pytest.mark.parametrize("status", [403, 503])
def test_a_signed_address_of_the_hub_is_shown_nowhere(
    status: int, enter_place: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    place = enter_place("hub")
    step_index_dataset("example/unseen-v0", lengths=(4 + status, 5))
    place.proxy.inject(Answer(status, body=b"no"), method="PUT", path="^/storage/")
    assert place.address in upload(place, "example/unseen-v0").line
    place.proxy.clear()
    assert upload(place, "example/unseen-v0").error is None
    place.proxy.inject(Answer(status), method="GET", path="^/storage/")
    assert place.address in download(place, "example/unseen-v0").line


@each_action_and_remote
def test_a_fault_that_passes_is_not_noticed(action: str, place: Place, root: Path) -> None:
    ready(action, place)
    place.proxy.inject(Answer(429, "1"), times=1)
    place.proxy.inject(Cut(0), times=1)
    place.proxy.inject(Answer(500), times=1)
    place.proxy.inject(Answer(503, "0"), times=1)
    assert_succeeds(action, place, root)


@pytest.mark.parametrize("seed", range(20 if FULL else 1))
@pytest.mark.parametrize("action", ["upload", "download"])
def test_a_connection_that_is_cut_at_any_byte_recovers(
    action: str, seed: int, place: Place, root: Path
) -> None:
    ready(action, place)
    rng = random.Random(f"{place.kind} {action} {seed}")
    place.proxy.cut_after(rng.randrange(20_000), rng.choice(["request", "response"]))
    assert_succeeds(action, place, root)


@each_action_and_remote
def test_a_name_that_does_not_resolve_is_one_line(action: str, place: Place) -> None:
    nowhere = "http://no-such-host.invalid:1"
    moved = {k: nowhere if v == place.proxy.address else v for k, v in place.variables.items()}
    with entered(moved):
        line = do(action, place).line
    assert place.address in line
    assert "no-such-host.invalid" in line


@each_action_and_remote
def test_a_server_that_never_answers_is_given_up(
    action: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("s3", "gcs"):
        monkeypatch.setattr(f"minari_pipe.remotes.{module}.READ_TIMEOUT", 0.2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hole = f"http://127.0.0.1:{silent.getsockname()[1]}"
        moved = {k: hole if v == place.proxy.address else v for k, v in place.variables.items()}
        with entered(moved):
            start = time.monotonic()
            line = do(action, place).line
            assert time.monotonic() - start < 15
    assert place.address in line


# who may, and where

WRONG_ACCOUNTS: dict[str, dict[str, str]] = {
    "s3 key": {"AWS_ACCESS_KEY_ID": "AKIAWRONG"},
    "s3 secret": {"AWS_SECRET_ACCESS_KEY": "WrongSecret"},
    "s3 none": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    "s3 half": {"AWS_SECRET_ACCESS_KEY": ""},
    "hub token": {"HF_TOKEN": "hf_WrongSecretWrongSecretWrong"},
    "hub token with a line end": {"HF_TOKEN": "hf_Wrong\nSecret\x1b[31mWrongSecret"},
}


@pytest.mark.parametrize(("account", "action"), covering(WRONG_ACCOUNTS, ACTIONS))
def test_a_wrong_account_is_refused_in_one_line(
    account: str, action: str, servers: Servers, root: Path, enter_place: Enter
) -> None:
    place = enter_place(account.split()[0])
    with entered(place.variables | WRONG_ACCOUNTS[account]):
        told = do(action, place)
    assert place.address in told.line
    assert "AWS_ACCESS_KEY_ID" in told.line or "HF_TOKEN" in told.line or "token" in told.line


@pytest.mark.parametrize(("status", "action"), covering([401, 403], ACTIONS))
def test_google_refuses_in_one_line(
    status: int, action: str, root: Path, enter_place: Enter
) -> None:
    place = enter_place("gcs")
    said = b'{"error": {"message": "Caller does not\\nhave \\u001b[31m storage.get"}}'
    place.proxy.inject(Answer(status, body=said))
    line = do(action, place).line
    assert place.address in line
    assert "gcloud auth" in line


def test_a_private_repository_is_not_there_for_strangers(root: Path, enter_place: Enter) -> None:
    place = enter_place("hub")
    api = HfApi(place.proxy.address, token=WRITER)
    repo = f"{place.address.removeprefix('hf://')}/example"
    api.create_repo(repo, private=True, repo_type="dataset")
    assert upload(place).error is None
    with entered(place.variables | {"HF_TOKEN": ""}):
        for told in (upload(place, OTHER), download(place)):
            assert place.address in told.line
            assert "HF_TOKEN" in " ".join([told.line, *told.warned])
        assert listed(place).value == {}


@pytest.mark.parametrize(
    ("action", "address"),
    covering(ACTIONS, ["hf://no-such-organisation", "s3://no-such-bucket", "gs://no-such-bucket"]),
)
def test_a_place_that_does_not_exist_is_one_line(
    address: str, action: str, root: Path, enter_place: Enter
) -> None:
    kind = {"s3": "s3", "gs": "gcs", "hf": "hub"}[address[:2]]
    place = enter_place(kind)
    place.address = address
    with entered(place.variables | {"MINARI_REMOTE": address}):
        assert address in do(action, place).line


@pytest.mark.parametrize(
    "address", ["s3://b\x1b[31m", "gs://b/a\nb", "hf://o\u2028g", "/tmp/\ud800"]
)
def test_an_address_with_control_characters_is_refused_in_one_line(address: str) -> None:
    place = Place("", address, {}, None)
    for told in (listed(place), upload(place)):
        assert "control characters" in told.line


# wrong bytes


@pytest.mark.parametrize("n_flips", [1, None])
@pytest.mark.parametrize(
    ("file", "place"),
    covering(["main_data.hdf5", "manifest.json", "metadata.json"], NETWORKED),
    indirect=["place"],
)
def test_wrong_bytes_are_fetched_again_and_else_named(
    n_flips: int | None,
    file: str,
    place: Place,
    root: Path,
) -> None:
    ready("download", place)
    place.proxy.inject(Flip(60), times=n_flips, method="GET", path=FILE_PATHS.get(file, file))
    if n_flips is None:
        line = download(place).line
        assert place.address in line and ID in line
        if file == "main_data.hdf5":
            assert len(re.findall(r"\b[0-9a-f]{64}\b", line)) == 2
        place.proxy.clear()
        assert_nothing_changed("download", place, root)
    assert_succeeds("download", place, root)


@pytest.mark.parametrize("n_flips", [1, None])
def test_wrong_bytes_of_what_was_sent_are_read_again_and_else_named(
    n_flips: int | None, root: Path, enter_place: Enter
) -> None:
    for kind in ("s3", "gcs"):  # the Hub says the sha256 itself
        place = enter_place(kind)
        place.proxy.inject(Flip(60), times=n_flips, method="GET", path="main_data")
        if n_flips is None:
            line = upload(place).line
            assert len(re.findall(r"\b[0-9a-f]{64}\b", line)) == 2
            place.proxy.clear()
            assert listed(place).value == {}
        assert_succeeds("upload", place, root)
