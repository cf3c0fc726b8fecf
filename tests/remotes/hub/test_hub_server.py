"""The stand-in for the Hub: what its real clients, huggingface_hub and Minari, do with it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.lfs import UploadInfo, post_lfs_batch_info
from huggingface_hub.utils import get_session

from tests.support.servers.hub import READER, STRANGER, WRITER, HubServer, enter, hub_server
from tests.support.servers.minari_process import COLLECT, run_minari

# httpx says so of how huggingface_hub sends large files
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

LARGE = bytes(range(256)) * 40
REPO = {"repo_id": "org/door", "repo_type": "dataset"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = tmp_path_factory.mktemp("hub")
    options = ("--page-size=3", "--lfs-threshold=5000", "--part-size=4000")
    with hub_server(folder / "server", *options) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def clients_of_it(hub: HubServer) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        enter(hub, patch)
        yield


def client(hub: HubServer, token: str | bool = WRITER) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=token)


@pytest.fixture(scope="module")
def repo(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> HfApi:
    """``org/door`` with a regular file, a small one that its name makes large, and a large one."""
    folder = tmp_path_factory.mktemp("upload")
    (folder / "human-v0").mkdir()
    (folder / "human-v0" / "metadata.json").write_text('{"total_steps": 5}' * 20)
    (folder / "human-v0" / "a.arrow").write_bytes(b"arrow")
    (folder / "human-v0" / "large.hdf5").write_bytes(LARGE)
    api = client(hub)
    api.create_repo(**REPO)
    api.upload_folder(folder_path=folder, **REPO)
    return api


def test_a_folder_comes_back_as_it_was_sent(repo, tmp_path) -> None:
    there = repo.snapshot_download(**REPO, local_dir=tmp_path / "fetched")
    names = sorted(os.listdir(Path(there) / "human-v0"))
    assert names == ["a.arrow", "large.hdf5", "metadata.json"]
    assert (Path(there) / "human-v0" / "large.hdf5").read_bytes() == LARGE
    assert (Path(there) / "human-v0" / "metadata.json").read_text() == '{"total_steps": 5}' * 20


def test_large_files_are_those_of_a_size_or_a_name(repo) -> None:
    paths = ["human-v0/a.arrow", "human-v0/large.hdf5", "human-v0/metadata.json", "human-v0", "no"]
    infos = {info.path: info for info in repo.get_paths_info(paths=paths, **REPO)}
    assert infos["human-v0/large.hdf5"].lfs.sha256 == hashlib.sha256(LARGE).hexdigest()
    assert infos["human-v0/a.arrow"].lfs.size == 5
    assert infos["human-v0/metadata.json"].lfs is None
    assert infos.keys() == set(paths) - {"no"}


def test_lists_come_in_pages(hub, repo) -> None:
    for name in ("aa", "ab", "ac", "ad"):
        repo.create_repo(f"org/{name}", repo_type="dataset", exist_ok=True)
        repo.create_repo(f"org/{name}", repo_type="dataset", exist_ok=True)
    listed = [info.id for info in repo.list_datasets(author="org")]
    assert listed == ["org/aa", "org/ab", "org/ac", "org/ad", "org/door"]
    assert [i.id for i in repo.list_datasets(author="org", dataset_name="DOO")] == ["org/door"]
    assert list(repo.list_datasets(author="nobody")) == []
    tree = repo.list_repo_tree(**REPO, recursive=True)
    assert [entry.path for entry in tree] == [
        ".gitattributes",
        "human-v0",
        *(f"human-v0/{name}" for name in ("a.arrow", "large.hdf5", "metadata.json")),
    ]
    assert [e.path for e in repo.list_repo_tree(**REPO)] == [".gitattributes", "human-v0"]


def test_a_commit_on_a_parent_that_has_passed_is_refused(repo) -> None:
    before = repo.dataset_info("org/door").sha
    one, two = (CommitOperationAdd("note.txt", text) for text in (b"one", b"two"))
    after = repo.create_commit(
        operations=[one], commit_message="one", parent_commit=before, **REPO
    ).oid
    assert repo.dataset_info("org/door").sha == after != before
    with pytest.raises(HfHubHTTPError) as caught:
        repo.create_commit(operations=[two], commit_message="two", parent_commit=before, **REPO)
    assert caught.value.response.status_code == 412
    remove = CommitOperationDelete("note.txt")
    repo.create_commit(operations=[remove], commit_message="three", **REPO)
    assert repo.file_exists("org/door", "note.txt", repo_type="dataset", revision=after)
    assert not repo.file_exists("org/door", "note.txt", repo_type="dataset")
    titles = [commit.title for commit in repo.list_repo_commits(**REPO)]
    assert titles[:2] == ["three", "one"] and titles[-1] == "initial commit"


def test_what_is_missing_is_named_by_its_kind(hub, repo, tmp_path) -> None:
    with pytest.raises(EntryNotFoundError):
        repo.hf_hub_download(filename="no", local_dir=tmp_path, **REPO)
    with pytest.raises(RevisionNotFoundError):
        repo.dataset_info("org/door", revision="no")
    for token in (WRITER, False):
        with pytest.raises(RepositoryNotFoundError):
            client(hub, token).dataset_info("org/no")


def test_a_private_repository_is_only_there_for_its_organization(hub, repo) -> None:
    repo.create_repo("org/secret", repo_type="dataset", private=True, exist_ok=True)
    for token in (STRANGER, False):
        stranger = client(hub, token)
        with pytest.raises(RepositoryNotFoundError):
            stranger.dataset_info("org/secret")
        assert "org/secret" not in [info.id for info in stranger.list_datasets(author="org")]
    assert client(hub, READER).dataset_info("org/secret").private is True


@pytest.mark.parametrize(
    ("token", "status"), [(False, 401), ("hf_wrong", 401), (READER, 403), (STRANGER, 403)]
)
def test_only_those_who_may_write(hub, repo, token: str | bool, status: int) -> None:
    api = client(hub, token)
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("org/new", repo_type="dataset")
    assert caught.value.response.status_code == status
    with pytest.raises(HfHubHTTPError) as caught:
        api.upload_file(path_or_fileobj=b"x", path_in_repo="x", **REPO)
    assert caught.value.response.status_code == status


def test_the_storage_takes_only_what_an_oid_says(hub, repo) -> None:
    info = UploadInfo.from_bytes(b"what is announced")
    (action,), _, _ = post_lfs_batch_info([info], token=WRITER, endpoint=hub.endpoint, **REPO)
    address = action["actions"]["upload"]["href"]
    assert get_session().put(address, content=b"something else").status_code == 400
    assert get_session().put(address.split("?")[0], content=b"x").status_code == 403
    token = {"Authorization": f"Bearer {WRITER}"}
    assert get_session().put(address, content=b"x", headers=token).status_code == 400
    assert get_session().put(address, content=b"what is announced").status_code == 200


def test_a_card_whose_yaml_cannot_be_read_is_refused(repo) -> None:
    with pytest.raises(ValueError, match="Invalid metadata in README.md"):
        repo.upload_file(path_or_fileobj=b"---\na: [\n---\n", path_in_repo="README.md", **REPO)


def test_what_was_committed_outlives_the_server(tmp_path) -> None:
    with hub_server(tmp_path) as hub:
        client(hub).create_repo("org/kept", repo_type="dataset")
        endpoint = hub.endpoint
        hub.kill()
        hub.start()
        assert hub.endpoint == endpoint
        assert client(hub).dataset_info("org/kept").id == "org/kept"


def test_an_ordered_answer_is_given_as_often_as_it_was_ordered(hub, repo) -> None:
    hub.answer("GET /api/datasets/org/door$", 503)
    with pytest.raises(HfHubHTTPError, match="503"):
        repo.dataset_info("org/door")
    assert repo.dataset_info("org/door").id == "org/door"
    assert "GET /api/datasets/org/door 503" in hub.requests()


def test_minari_uploads_lists_and_downloads(tmp_path) -> None:
    with hub_server(tmp_path / "server", "--lfs-threshold=5000") as hub:
        made = run_minari(
            hub.variables(),
            tmp_path / "publisher",
            COLLECT
            + """
from minari.namespace import create_namespace, list_remote_namespaces
create_namespace("pole/cart", description="Poles")
collect("pole/cart/random-v0")
minari.upload_dataset("pole/cart/random-v0", token="hf_writer")
print(sorted(list_remote_namespaces()))
""",
        )
        assert made.splitlines()[-1] == "['pole', 'pole/cart']"
        fetched = run_minari(
            hub.variables(),
            tmp_path / "reader",
            """
import json, minari
from minari.namespace import get_namespace_metadata
minari.download_dataset("pole/cart/random-v0")
dataset = minari.load_dataset("pole/cart/random-v0")
described = get_namespace_metadata("pole/cart")
print(json.dumps([dataset.total_episodes, list(minari.list_remote_datasets()), described]))
""",
        )
        assert json.loads(fetched.splitlines()[-1]) == [
            1,
            ["pole/cart/random-v0"],
            {"description": "Poles"},
        ]
