"""The remote on the Hub, against a server that speaks its protocol."""

from __future__ import annotations

import itertools
import json
import logging
import random
import re
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.utils import get_session, http_backoff

from minari_pipe.core.dataset_id import namespace_hierarchy, parse_dataset_id
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError
from minari_pipe.remotes import open_remote
from minari_pipe.remotes.base import METADATA, Upload, UploadSource
from minari_pipe.remotes.hosting import download_dataset, load_dataset, publish_dataset
from minari_pipe.remotes.hub.commits import Committer
from minari_pipe.testing.remotes import ID, RemoteContract, an_upload, another_root, publish
from tests.conftest import FULL
from tests.support.cards import dataset_with_card
from tests.support.servers.hub import READER, STRANGER, WRITER, HubServer, enter, hub_server
from tests.support.servers.xet import xet_storage

REPO = "example"
"""The repository of the datasets that ``an_upload`` makes."""
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = tmp_path_factory.mktemp("hub")
    options = ("--lfs-threshold=5000", "--page-size=7", "--part-size=100000")
    with hub_server(folder / "server", *options) as server:
        yield server


@pytest.fixture(autouse=True)
def client_of(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(hub, monkeypatch)


@pytest.fixture
def address() -> str:
    """An organization without repositories."""
    return f"hf://org-{next(_NUMBERS)}"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the remote would have waited before it tried again."""
    found: list[float] = []
    monkeypatch.setattr("minari_pipe.remotes.base.time.sleep", found.append)
    return found


@pytest.fixture
def api(hub: HubServer) -> HfApi:
    return HfApi(hub.endpoint, token=WRITER)


def upload_of(dataset_id: str) -> Upload:
    namespaces = dict.fromkeys(namespace_hierarchy(parse_dataset_id(dataset_id)[0]), b"{}")
    return replace(an_upload(dataset_id), namespaces=namespaces)


def repo_of(address: str, name: str = REPO) -> dict[str, str]:
    return {"repo_id": f"{address.removeprefix('hf://')}/{name}", "repo_type": "dataset"}


def file_of(api: HfApi, address: str, path: str, name: str = REPO) -> str:
    repo = repo_of(address, name)
    remote: Any = open_remote(address)
    return remote._client.read(name, api.dataset_info(repo["repo_id"]).sha, path).decode()


def put(api: HfApi, address: str, files: dict[str, bytes], name: str = REPO) -> None:
    """Commit files as anybody else would who may."""
    repo = repo_of(address, name)
    api.create_repo(**repo, exist_ok=True)
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    api.create_commit(operations=operations, commit_message="by others", **repo)


class TestContract(RemoteContract):
    @pytest.fixture
    def address(self) -> str:
        return f"hf://org-{next(_NUMBERS)}"


# one commit


def test_data_index_and_card_come_in_one_commit(api, address) -> None:
    publish(open_remote(address), an_upload())
    commits = api.list_repo_commits(**repo_of(address))
    assert [commit.title for commit in commits] == [f"Publish {ID}", "initial commit"]
    paths = set(api.list_repo_files(**repo_of(address)))
    assert paths == {
        ".gitattributes",
        "README.md",
        "namespace_metadata.json",
        "steps/namespace_metadata.json",
        *(f"steps/short-v1/{name}" for name in (*an_upload().files, METADATA)),
    }
    index = json.loads(file_of(api, address, "namespace_metadata.json"))
    assert index == {"a": 1, "datasets": [ID], "namespaces": ["example/steps"]}
    assert f"[`{ID}`](" in file_of(api, address, "README.md")


def test_uploads_at_the_same_time_are_all_listed(hub, api, address) -> None:
    ids = [f"example/steps/short-v{version}" for version in range(6)]
    open_remote(address).send_namespace("example", b"{}")
    errors: list[BaseException] = []

    def upload(dataset_id: str) -> None:
        try:
            publish(open_remote(address), an_upload(dataset_id))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=upload, args=(dataset_id,)) for dataset_id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert open_remote(address).dataset_ids() == ids
    card = file_of(api, address, "README.md")
    assert all(f"[`{dataset_id}`](" in card for dataset_id in ids)
    assert len(api.list_repo_commits(**repo_of(address))) == len(ids) + 2
    path = f"/api/datasets/{address.removeprefix('hf://')}/example/commit/main"
    assert f"POST {path} 412" in hub.requests()


def test_what_was_committed_meanwhile_is_kept(api, address, monkeypatch) -> None:
    put(api, address, {"README.md": b"# Steps\n", "namespace_metadata.json": b'{"license": "MIT"}'})
    real = HfApi.create_commit

    def outrun(self: HfApi, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(HfApi, "create_commit", real)
        put(api, address, {"README.md": b"# Many steps\n"})
        return real(self, *args, **options)

    monkeypatch.setattr(HfApi, "create_commit", outrun)
    publish(open_remote(address), an_upload())
    assert file_of(api, address, "README.md").startswith("# Many steps\n\n<!-- minari_pipe:begin")
    assert json.loads(file_of(api, address, "namespace_metadata.json"))["license"] == "MIT"


def test_when_others_are_always_faster_it_ends_with_one_line(hub, api, address, pauses) -> None:
    remote = open_remote(address)
    remote.send(an_upload(), lambda size: None)
    hub.answer("POST .*/commit/", 409, times=20)
    hub.answer("POST .*/commit/", 412, times=20)
    with pytest.raises(RemoteError, match="others keep changing org-.*/example; try again"):
        remote.reveal(an_upload())
    assert open_remote(address).dataset_ids() == []


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub, api, address, pauses) -> None:
    remote = open_remote(address)
    remote.send(an_upload(), lambda size: None)
    hub.answer("POST .*/commit/", 0)
    assert remote.reveal(an_upload())
    titles = [commit.title for commit in api.list_repo_commits(**repo_of(address))]
    assert titles == [f"Publish {ID}", "initial commit"]


def test_an_upload_that_ends_at_any_request_shows_nothing_or_all_and_completes(
    hub, api, address, monkeypatch
) -> None:
    """With each request, or every second, done and unanswered, and nothing after it."""
    monkeypatch.setattr("minari_pipe.remotes.base._WAITS", ())
    monkeypatch.setitem(http_backoff.__kwdefaults__, "max_retries", 0)
    step_index_dataset(ID, lengths=(600, 600))  # more than the server takes as a regular file
    n_shown = 0
    for n_requests in range(0, 100, 1 if FULL else 2):
        place = f"{address}-{n_requests}"
        hub.answer(f"/{place[5:]}/|/storage/|/repos/create", 0, skip=n_requests)
        hub.answer(f"/{place[5:]}/|/storage/|/repos/create", 503, times=10**6)
        try:
            first = publish_dataset(ID, place).outcome
        except RemoteError:
            first = "failed"
        hub.forget_answers()
        if first == "uploaded":
            break
        shown = open_remote(place).dataset_ids()
        if shown:
            n_shown += 1
            download_dataset(f"{place}/{ID}", force_download=True)
            load_dataset(ID, verify=True)
        assert publish_dataset(ID, place).outcome == ("present" if shown else "uploaded")
        assert open_remote(place).dataset_ids() == [ID]
        titles = [commit.title for commit in api.list_repo_commits(**repo_of(place))]
        assert titles == [f"Publish {ID}", "initial commit"]
    assert n_requests > 10 and n_shown > 2


@pytest.mark.parametrize("n_damaged", [1, 100], ids=["once", "always"])
def test_content_that_arrives_damaged_is_noticed(address, monkeypatch, n_damaged: int) -> None:
    real, damaged = CommitOperationAdd.b64content, []

    def content(self: CommitOperationAdd) -> bytes:
        if self.path_in_repo.endswith("manifest.json") and len(damaged) < n_damaged:
            damaged.append(self)
            return b"e30="
        return real(self)

    monkeypatch.setattr(CommitOperationAdd, "b64content", content)
    remote = open_remote(address)
    if n_damaged == 1:
        publish(remote, an_upload())
        found = open_remote(address).read(f"{ID}/manifest.json")
        assert found == an_upload().files["manifest.json"].read()
    else:
        with pytest.raises(RemoteError, match=r"short-v1/manifest.json.* from what was sent"):
            publish(remote, an_upload())


def test_a_file_that_changes_while_it_is_sent_is_noticed(address, tmp_path) -> None:
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(bytes(9000))
    upload = an_upload()
    upload = replace(upload, files={**upload.files, "data/main_data.hdf5": UploadSource.of(path)})
    path.write_bytes(bytes(8999) + b"1")
    with pytest.raises(RemoteError, match="main_data.hdf5 changed during the upload"):
        publish(open_remote(address), upload)


def test_large_files_are_sent_once_and_told_of_byte_by_byte(hub, address, tmp_path) -> None:
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(bytes(250_000))
    upload = an_upload()
    upload = replace(upload, files={**upload.files, "data/main_data.hdf5": UploadSource.of(path)})
    size = sum(source.size for source in upload.files.values())
    n_before = len([line for line in hub.requests() if line.startswith("PUT /storage")])
    for _ in range(2):
        told: list[int] = []
        remote = open_remote(address)
        remote.send(upload, told.append)
        assert sum(told) == size and all(n_bytes > 0 for n_bytes in told)
    sent = [line for line in hub.requests() if line.startswith("PUT /storage")]
    assert len(sent) - n_before == 3  # its parts
    remote.reveal(upload)
    found = open_remote(address).files(ID)["data/main_data.hdf5"]
    assert found.sha256 == upload.files["data/main_data.hdf5"].sha256


# whose index, and what it says


def test_a_dataset_without_a_namespace_is_its_repository(api, address) -> None:
    upload = upload_of("plain-v0")
    put(api, address, {"LICENSE": b"MIT"}, "plain-v0")
    publish(open_remote(address), upload)
    remote = open_remote(address)
    assert remote.dataset_ids() == ["plain-v0"]
    assert remote.namespaces() == []
    assert set(remote.files("plain-v0")) == {*upload.files, METADATA}
    assert file_of(api, address, "LICENSE", "plain-v0") == "MIT"
    (caution,) = remote.cautions({"dataset_id": "plain-v0"})
    assert caution.startswith("real Minari also lists 'plain-v0' as a namespace")
    assert remote.cautions({"dataset_id": ID}) == []


def test_a_dataset_without_a_namespace_needs_no_index(api, address) -> None:
    put(api, address, {METADATA: b"{}", "data/main_data.hdf5": b""}, "plain-v0")
    put(api, address, {"train.csv": b"1"}, "other")
    assert open_remote(address).dataset_ids() == ["plain-v0"]
    assert open_remote(address).namespaces() == []


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (b"{", "Expecting property name"),
        (b'"text"', "expected a JSON object, got "),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"datasets": "aa/b-v0"}', "its 'datasets' must be a list of names, got 'aa/b-v0'"),
        (b'{"datasets": [1]}', "its 'datasets' must be a list of names"),
        (b"\x80", ".* codec can't decode"),
    ],
    ids=["no JSON", "no object", "nested", "no list", "no names", "no text"],
)
def test_a_broken_index_is_named_skipped_and_never_replaced(
    api, address, index: bytes, reason: str
) -> None:
    publish(open_remote(address), upload_of("fine/steps-v0"))
    put(api, address, {"namespace_metadata.json": index})
    reason = f"namespace_metadata.json of org-.*/example is invalid: {reason}"
    with pytest.warns(UserWarning, match=f"Skipping a repository: .*{reason}"):
        assert open_remote(address).dataset_ids() == ["fine/steps-v0"]
    with pytest.raises(RemoteError, match=reason):
        publish(open_remote(address), an_upload())


def test_an_index_says_nothing_of_other_repositories(api, address) -> None:
    names = ["example/steps-v0", "other/steps-v0", "example/../../etc-v0", "/etc-v0", "example//b"]
    index = {"datasets": names, "namespaces": ["example/door", "other", "example/.."], "x": 1}
    put(api, address, {"namespace_metadata.json": json.dumps(index).encode()})
    with pytest.warns(UserWarning, match=r"lists \['other/steps-v0', 'example/../../etc-v0'"):
        assert open_remote(address).dataset_ids() == ["example/steps-v0"]
    with pytest.warns(UserWarning, match="which do not belong to it"):
        assert open_remote(address).namespaces() == ["example", "example/door"]
    assert json.loads(open_remote(address).read("example/namespace_metadata.json")) == {"x": 1}


def test_metadata_of_a_namespace_replace_what_is_there_but_the_lists(api, address) -> None:
    publish(open_remote(address), an_upload())
    open_remote(address).send_namespace("example", b'{"description": "new", "datasets": ["x"]}')
    open_remote(address).send_namespace("example/steps", b'{"description": "inner"}')
    remote = open_remote(address)
    assert json.loads(remote.read("example/namespace_metadata.json")) == {"description": "new"}
    assert remote.read("example/steps/namespace_metadata.json") == b'{"description": "inner"}'
    assert remote.dataset_ids() == [ID]
    assert "\nnew\n" in file_of(api, address, "README.md")


def test_listing_and_reading_see_one_state(api, address) -> None:
    publish(open_remote(address), an_upload())
    remote = open_remote(address)
    remote.dataset_ids()
    put(api, address, {f"steps/short-v1/{METADATA}": b"{}"})
    assert remote.read(f"{ID}/{METADATA}") == an_upload().metadata
    assert open_remote(address).read(f"{ID}/{METADATA}") == b"{}"


def test_a_card_that_is_no_text_stays_as_it_is(hub, api, address) -> None:
    put(api, address, {"namespace_metadata.json": b"{}"})
    # huggingface_hub does not send such a card, but git does
    lines = (
        {"key": "header", "value": {"summary": "by git"}},
        {"key": "file", "value": {"path": "README.md", "content": "//4=", "encoding": "base64"}},
    )
    get_session().post(
        f"{hub.endpoint}/api/datasets/{repo_of(address)['repo_id']}/commit/main",
        content="\n".join(map(json.dumps, lines)),
        headers={"Authorization": f"Bearer {WRITER}"},
    ).raise_for_status()
    with pytest.warns(UserWarning, match="README.md of .*/example is not valid UTF-8"):
        publish(open_remote(address), an_upload())
    remote: Any = open_remote(address)
    assert remote.dataset_ids() == [ID]
    assert remote.read("example/README.md") == b"\xff\xfe"


# the cards of datasets


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return another_root(monkeypatch, tmp_path / "root")


def test_the_viewer_that_an_earlier_version_turned_off_shows_the_tables(root, api, address) -> None:
    step_index_dataset("example/a-v0")
    publish_dataset("example/a-v0", address)
    card = file_of(api, address, "README.md")
    own = card.replace("tags:", "# of mine\nlanguage: en\ntags:").replace("# example", "# Mine")
    put(api, address, {"README.md": own.encode()})
    dataset_with_card("example/hard/b-v0")
    publish_dataset("example/hard/b-v0", address)
    _, settings, text = file_of(api, address, "README.md").split("---\n", 2)
    config = {"split": "train", "path": "hard/b-v0/card/episodes.csv"}
    assert yaml.safe_load(settings) == {
        **{k: v for k, v in yaml.safe_load(own.split("---\n")[1]).items() if k != "viewer"},
        "configs": [{"config_name": "hard-b-v0", "data_files": [config]}],
    }
    assert "# of mine\nlanguage: en\n" in settings and text.startswith("\n# Mine\n")
    assert "\n![Film of example/hard/b-v0](hard/b-v0/card/episode.webp)\n" in text
    paths = api.list_repo_files(**repo_of(address))
    assert {"hard/b-v0/card/episode.webp", config["path"]} < {*paths}


def test_a_card_that_was_removed_lists_films_and_tables_again(root, api, address) -> None:
    for name in ("example/a-v0", "example/b-v0"):
        dataset_with_card(name)
        publish_dataset(name, address)
    before = file_of(api, address, "README.md")
    api.delete_file("README.md", **repo_of(address))
    step_index_dataset("example/c-v0")
    publish_dataset("example/c-v0", address)
    after = file_of(api, address, "README.md")
    lines = [line for line in before.splitlines() if line.startswith(("![Film", "[Card"))]
    assert len(lines) == 4
    assert [line for line in after.splitlines() if line.startswith(("![Film", "[Card"))] == lines
    names = [c["config_name"] for c in yaml.safe_load(after.split("---\n")[1])["configs"]]
    assert names == ["a-v0", "b-v0"]


# who may, and what is said


def refused(work: Any) -> str:
    with pytest.raises(MinariPipeError) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, "needs a token for this: set HF_TOKEN"),
        ("hf_wrong", "rejects the token as wrong or expired"),
        (READER, "does not allow this with this token .*use one with the write role"),
        (STRANGER, "does not allow this with this token .*You don't have the rights"),
        ("hf_wröng", "the token contains invalid characters"),
        ("hf_two\nlines", "the token contains invalid characters"),
    ],
    ids=["none", "wrong", "of a reader", "of a stranger", "not ASCII", "two lines"],
)
def test_who_may_not_write_is_told_why(hub, monkeypatch, token: str | None, reason: str) -> None:
    HfApi(hub.endpoint, token=WRITER).create_repo("org/there", repo_type="dataset", exist_ok=True)
    enter(hub, monkeypatch, None)
    for dataset_id in ("new/steps-v0", "there/steps-v0"):
        remote = open_remote("hf://org", token)
        upload = upload_of(dataset_id)
        message = refused(lambda: publish(remote, upload))  # noqa: B023
        assert re.match(f"hf://org:? {reason}", message), message
        assert token is None or token not in message


def test_a_private_repository_is_there_for_its_members_only(hub, api, monkeypatch) -> None:
    api.create_repo("org-private/secret", repo_type="dataset", private=True)
    publish(open_remote("hf://org-private"), upload_of("secret/steps-v0"))
    publish(open_remote("hf://org-private"), upload_of("open/steps-v0"))
    everything = ["open/steps-v0", "secret/steps-v0"]
    assert open_remote("hf://org-private").dataset_ids() == everything
    enter(hub, monkeypatch, None)
    for token in (None, STRANGER):
        remote = open_remote("hf://org-private", token)
        assert remote.dataset_ids() == ["open/steps-v0"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert remote.dataset_ids("secret/") == []
        hints = ["set HF_TOKEN" in str(warning.message) for warning in caught]
        assert hints == ([True] if token is None else [])
        assert remote.files("secret/steps-v0") == {}
        hint = "if it is private, set HF_TOKEN" if token is None else "has no such file"
        with pytest.raises(FileNotFoundError, match=hint):
            remote.read(f"secret/steps-v0/{METADATA}")
    assert open_remote("hf://org-private", READER).files("secret/steps-v0")


def test_a_wrong_token_is_told_of_also_where_none_is_needed(address) -> None:
    publish(open_remote(address), an_upload())
    remote = open_remote(address, "hf_wrong")
    for work in (remote.dataset_ids, lambda: remote.read(f"{ID}/{METADATA}")):
        assert "rejects the token" in refused(lambda: remote.retried(work))  # noqa: B023


def test_an_organization_that_is_not_there_is_told_of(hub) -> None:
    remote = open_remote("hf://orgg")
    reason = f"hf://orgg: there is no organization or user 'orgg' at {hub.endpoint}"
    assert refused(remote.dataset_ids).startswith(reason)
    assert open_remote("hf://org-without-datasets").dataset_ids() == []


@pytest.mark.parametrize("address", ["hf://", "hf://org/door", "hf:///door"])
def test_an_address_names_an_organization_only(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of an organization"):
        open_remote(address)


@pytest.mark.parametrize("name", ["a--b", "-a", "a" * 97, "dör"])
def test_a_name_that_no_repository_can_have_is_told_of(address, name: str) -> None:
    remote = open_remote(address)
    upload = upload_of(f"{name}/steps-v0")
    assert f"{address[5:]}/{name}' is not a valid repository name" in refused(
        lambda: publish(remote, upload)
    ).replace("'org", "org")


# the network


def test_too_many_requests_are_made_later_when_the_server_says(hub, address, pauses) -> None:
    publish(open_remote(address), an_upload())
    hub.answer("GET /api/datasets\\?", 429, headers={"Retry-After": "7"})
    limits = {"RateLimit": '"api";r=0;t=12', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    hub.answer("GET /api/datasets\\?", 429, headers=limits)
    remote = open_remote(address)
    assert remote.retried(remote.dataset_ids) == [ID]
    assert pauses == [7, 12]


def test_whoever_has_too_many_requests_learns_when_to_go_on(hub, monkeypatch, pauses) -> None:
    enter(hub, monkeypatch, None)
    hub.answer("GET /api/datasets\\?", 429, times=5, headers={"Retry-After": "240"})
    remote = open_remote("hf://org-busy")
    assert refused(lambda: remote.retried(remote.dataset_ids)) == (
        "hf://org-busy received too many requests; run the same command in 240 seconds; with a "
        "token (HF_TOKEN) the Hub allows more"
    )
    assert pauses == [30] * 4


def test_an_upload_does_not_wait_for_as_long_as_any_server_says(hub, address, pauses) -> None:
    hub.answer("POST .*/preupload/", 429, times=9, headers={"RateLimit": '"api";r=0;t=86400'})
    text = refused(lambda: publish(open_remote(address), an_upload()))
    hub.forget_answers()
    assert "received too many requests; run the same command in 86400 seconds" in text
    assert max(pauses, default=0) <= 30


def test_a_long_answer_of_the_hub_takes_no_time_to_be_told(hub, address) -> None:
    hub.answer("GET /api/datasets\\?", 400, body=json.dumps({"error": "http://" * 28_000}))
    began = time.process_time()
    text = refused(lambda: open_remote(address).retried(open_remote(address).dataset_ids))
    assert "answered with HTTP 400" in text
    assert time.process_time() - began < 3


def test_a_hub_in_trouble_is_asked_again_and_then_named(hub, address, pauses) -> None:
    publish(open_remote(address), an_upload())
    remote = open_remote(address)
    hub.answer(f"GET /api/datasets/{address[5:]}/example", 503, times=2)
    assert set(remote.retried(lambda: remote.files(ID))) == {*an_upload().files, METADATA}
    assert len(pauses) == 2
    hub.answer("GET /datasets/.*/resolve/", 500, times=5)
    message = refused(lambda: remote.retried(lambda: remote.read(f"{ID}/{METADATA}")))
    assert message == f"{address} is overloaded or unavailable (HTTP 500); try again later"


def test_a_connection_that_breaks_is_made_again(hub, address, pauses) -> None:
    publish(open_remote(address), an_upload())
    remote = open_remote(address)
    hub.answer("GET /api/resolve-cache", 0, times=3)
    read = remote.retried(lambda: remote.read(f"{ID}/{METADATA}"))
    assert read == an_upload().metadata and len(pauses) == 3


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (503, "is overloaded or unavailable (HTTP 503); try again later"),
        (400, "answered with HTTP 400"),
        (0, "cannot be reached at"),
    ],
)
def test_a_storage_that_fails_is_told_of_without_its_signed_addresses(
    hub, address, tmp_path, monkeypatch, caplog, status: int, reason: str
) -> None:
    monkeypatch.setitem(http_backoff.__kwdefaults__, "max_retries", 1)
    monkeypatch.setitem(http_backoff.__kwdefaults__, "base_wait_time", 0.01)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(f"{status}".encode() * 9000)
    upload = an_upload()
    upload = replace(upload, files={**upload.files, "data/main_data.hdf5": UploadSource.of(path)})
    hub.answer("PUT /storage/", status, times=4)
    message = refused(lambda: publish(open_remote(address), upload))
    hub.forget_answers()
    assert message.startswith(f"{address} {reason}")
    assert "signature" not in message + caplog.text
    assert status == 400 or "PUT (address)" in caplog.text
    publish(open_remote(address), upload)


def test_without_a_network_one_line_says_so(address, monkeypatch, pauses) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    remote = open_remote(address)
    message = refused(lambda: remote.retried(remote.dataset_ids))
    assert message.startswith(f"{address} cannot be reached at http://127.0.0.1:9 (")
    pauses.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    remote = open_remote(address)
    message = refused(lambda: remote.retried(remote.dataset_ids))
    assert message.startswith(f"{address} cannot be reached at http://no-such-host.invalid (")


def test_a_server_that_is_silent_is_given_up(hub, address, pauses, monkeypatch) -> None:
    monkeypatch.setattr("minari_pipe.remotes.hub.commits._PATIENCE", 0.2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    remote = open_remote(address)
    remote.send(an_upload(), lambda size: None)
    for pattern in ("POST .*/commit/", "GET /api/datasets/"):
        hub.answer(pattern, -1, times=5)
        message = refused(lambda: remote.reveal(an_upload()))
        assert message.startswith(f"{address} cannot be reached at {hub.endpoint} (")
        assert "timed out" in message
    assert get_session().timeout.read is None


def test_a_login_page_is_not_taken_for_the_hub(hub, address) -> None:
    page = {"Content-Type": "text/html"}
    hub.answer("GET /api/datasets\\?", 200, headers=page, body="<html>")
    remote = open_remote(address)
    message = refused(lambda: remote.retried(remote.dataset_ids))
    assert "sent content of type 'text/html', expected the JSON of the Hub" in message


def test_a_hub_that_must_not_be_asked_is_not(address, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    remote = open_remote(address)
    assert "HF_HUB_OFFLINE is set; unset it" in refused(lambda: remote.retried(remote.dataset_ids))


def test_a_link_that_takes_the_place_of_a_file_meanwhile_is_not_published(
    hub: HubServer, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit has its small files opened again, long after large ones went ahead."""
    (tmp_path / "key").write_bytes(SECRET)
    file = step_index_dataset(ID, lengths=(2,)).storage.data_path / "main_data.hdf5"
    send_ahead = Committer.send_ahead

    def exchanged(*args: Any) -> None:
        send_ahead(*args)
        file.unlink()
        file.symlink_to(tmp_path / "key")

    monkeypatch.setattr(Committer, "send_ahead", exchanged)
    with pytest.raises(MinariPipeError, match=r"main_data\.hdf5 (is a symlink|changed)"):
        publish_dataset(ID, address)
    kept = [path for path in hub.folder.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if SECRET in path.read_bytes()]


def test_xet_reads_no_file_through_a_folder_replaced_by_a_link_meanwhile(
    hub: HubServer, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xet opens a file by its path, after the Hub was asked how to send it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    mine, others = random.Random(1).randbytes(6000), random.Random(2).randbytes(6000)
    for name, content in {"dataset/data": mine, "others": others}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "main_data.hdf5").write_bytes(content)
    below = tmp_path / "dataset"
    source = UploadSource.of(below / "data" / "main_data.hdf5", below)
    preupload = HfApi.preupload_lfs_files

    def exchanged(*args: Any, **options: Any) -> None:
        (below / "data").rename(below / "aside")
        (below / "data").symlink_to(tmp_path / "others")
        preupload(*args, **options)

    monkeypatch.setattr(HfApi, "preupload_lfs_files", exchanged)
    upload = an_upload()
    remote = open_remote(address)
    with xet_storage() as storage:
        token = {"casUrl": storage.address, "exp": int(time.time()) + 3600, "accessToken": "any"}
        hub.answer("GET .*/xet-write-token/", 200, body=json.dumps(token), times=9)
        remote.send(replace(upload, files={"data/main_data.hdf5": source}), lambda _: None)
    hub.forget_answers()
    assert any(mine in body for body in storage.received)
    assert not any(others in body for body in storage.received)
