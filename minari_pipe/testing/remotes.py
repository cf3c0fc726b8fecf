"""Define the tests of every remote; a subclass with a fixture for the address runs them.

A package that registers a remote under the entry-point group ``minari_pipe.remotes`` tests it with
a few lines in a pytest file::

    from minari_pipe.testing.remotes import RemoteContract

    class TestMine(RemoteContract):
        @pytest.fixture
        def address(self):
            return "mine://empty"
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minari_pipe.core.datasets_root import ROOT_VARIABLE, data_path_of, get_dataset_path
from minari_pipe.core.files.checksums import entry_of_bytes
from minari_pipe.core.files.manifest import TOTALS, compose
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.library import delete_dataset, list_local_datasets
from minari_pipe.datasets.namespaces import create_namespace, get_namespace_metadata
from minari_pipe.errors import CorruptDatasetError, DatasetExistsError, RemoteError
from minari_pipe.remotes import Remote, open_remote
from minari_pipe.remotes.base import METADATA, PART, RemoteFile, Upload, UploadSource
from minari_pipe.remotes.hosting import (
    download_dataset,
    list_remote_datasets,
    list_remote_namespaces,
    load_dataset,
    publish_dataset,
)

ID = "example/steps/short-v1"


def tree(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def another_root(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make a folder the local root, as on another machine, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv(ROOT_VARIABLE, str(folder))
    return folder


def an_upload(dataset_id: str = ID, *, size: int = 10, seed: int = 0) -> Upload:
    """Return an upload of files in no real format, for tests of a remote's own methods."""
    data = hashlib.shake_256(str(seed).encode()).digest(size)
    contents = {"data/main_data.bin": data, "data/part/empty.bin": b""}
    entries = {name: entry_of_bytes([content], sha256=True) for name, content in contents.items()}
    totals = dict.fromkeys(TOTALS, seed)
    contents["manifest.json"] = json.dumps(compose(totals, entries)).encode()
    files = {name: UploadSource.of(content) for name, content in contents.items()}
    metadata = json.dumps({"dataset_id": dataset_id, "seed": seed}).encode()
    return Upload(dataset_id, files, metadata, {"example": b'{"a": 1}', "example/steps": b"{}"})


def publish(remote: Remote, upload: Upload) -> None:
    """Send and reveal an upload."""
    remote.send(upload, lambda size: None)
    remote.reveal(upload)


class UploadsContract:
    """Tests of what a remote itself does, and of the fixtures that all tests of a remote share."""

    @pytest.fixture
    def address(self) -> str:
        """Return an address with no content, a different one for each test."""
        raise NotImplementedError

    @pytest.fixture
    def remote(self, address: str) -> Remote:
        return open_remote(address)

    @pytest.fixture(autouse=True)
    def _own_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        another_root(monkeypatch, tmp_path / "root")

    def is_empty(self, address: str) -> bool:
        """Return whether no dataset and no namespace is visible at an address."""
        remote = open_remote(address)
        return not remote.dataset_ids() and not remote.namespaces()

    def test_an_upload_leaves_what_lies_at_its_place_and_is_not_of_it(
        self, remote: Remote, address: str
    ) -> None:
        inner = an_upload(f"{ID}/inner-v1")
        remote.send(inner, lambda size: None)
        again = open_remote(address)
        again.send(an_upload(), lambda size: None)
        last = open_remote(address)
        last.reveal(inner)
        for name, source in inner.files.items():
            assert open_remote(address).read(f"{ID}/inner-v1/{name}") == source.read()

    def test_files_that_were_sent_are_seen_by_nobody_until_they_are_revealed(
        self, remote: Remote, address: str
    ) -> None:
        upload = an_upload()
        sent: list[int] = []
        remote.send(upload, sent.append)
        assert sum(sent) >= 10
        assert self.is_empty(address)
        remote.reveal(upload)
        again = open_remote(address)
        assert again.dataset_ids() == [ID]
        assert again.namespaces() == ["example", "example/steps"]

    def test_a_dataset_has_the_files_and_bytes_that_were_sent(
        self, remote: Remote, address: str
    ) -> None:
        upload = an_upload(size=1000)
        publish(remote, upload)
        again = open_remote(address)
        found = again.files(ID)
        wanted = {**upload.files, METADATA: UploadSource.of(upload.metadata)}
        assert {name: file.size for name, file in found.items()} == {
            name: source.size for name, source in wanted.items()
        }
        for name, source in wanted.items():
            assert again.read(f"{ID}/{name}") == source.read()
            assert found[name].sha256 in (None, source.sha256)
        assert again.read(f"{ID}/data/main_data.bin", 10, 20) == wanted["data/main_data.bin"].read(
            10, 20
        )
        assert again.read(f"{ID}/data/main_data.bin", 990) == wanted["data/main_data.bin"].read(990)

    def test_a_file_of_many_parts_arrives_whole(self, remote: Remote, address: str) -> None:
        upload = an_upload(size=2 * PART + 12_345)
        sent: list[int] = []
        remote.send(upload, sent.append)
        remote.reveal(upload)
        assert sum(sent) >= 2 * PART + 12_345
        found = open_remote(address).read(f"{ID}/data/main_data.bin")
        assert hashlib.sha256(found).hexdigest() == upload.files["data/main_data.bin"].sha256

    def test_what_is_not_there_is_said_to_be_not_there(self, remote: Remote) -> None:
        assert remote.dataset_ids() == []
        assert remote.namespaces() == []
        assert remote.files(ID) == {}
        with pytest.raises(FileNotFoundError):
            remote.read(f"{ID}/{METADATA}")

    def test_an_upload_that_was_given_up_is_replaced_by_another(
        self, remote: Remote, address: str
    ) -> None:
        remote.send(an_upload(seed=1), lambda size: None)
        other = an_upload(seed=2)
        other = replace(
            other, files={k: v for k, v in other.files.items() if k != "data/part/empty.bin"}
        )
        again = open_remote(address)
        publish(again, other)
        last = open_remote(address)
        assert set(last.files(ID)) == {*other.files, METADATA}
        for name, source in other.files.items():
            assert last.read(f"{ID}/{name}") == source.read()

    def test_of_two_uploads_of_one_id_only_one_appears(self, address: str) -> None:
        first, second = an_upload(seed=1), an_upload(seed=2)
        one, two = open_remote(address), open_remote(address)
        one.send(first, lambda size: None)
        publish(two, second)
        with pytest.raises(DatasetExistsError):
            one.reveal(first)
        last = open_remote(address)
        assert last.read(f"{ID}/{METADATA}") == second.metadata
        for name, source in second.files.items():
            assert last.read(f"{ID}/{name}") == source.read()

    def test_a_dataset_that_appeared_is_not_replaced(self, address: str) -> None:
        first, second = an_upload(seed=1), an_upload(seed=2)
        one = open_remote(address)
        publish(one, first)
        two = open_remote(address)
        with pytest.raises(DatasetExistsError):
            publish(two, second)
        assert (
            open_remote(address).read(f"{ID}/data/main_data.bin")
            == first.files["data/main_data.bin"].read()
        )

    def test_metadata_of_a_namespace_stay_as_they_are_when_a_dataset_comes(
        self, remote: Remote, address: str
    ) -> None:
        remote.send_namespace("example", b'{"description": "mine"}')
        upload = an_upload()
        again = open_remote(address)
        publish(again, upload)
        found = json.loads(open_remote(address).read("example/namespace_metadata.json"))
        assert found["description"] == "mine"

    def test_files_of_version_1_are_not_those_of_version_10(self, address: str) -> None:
        for version in (1, 10):
            upload = an_upload(f"example/steps/short-v{version}", seed=version)
            remote = open_remote(address)
            publish(remote, upload)
        again = open_remote(address)
        assert set(again.files("example/steps/short-v1")) == {*upload.files, METADATA}
        assert again.dataset_ids("example/steps/short-v10") == ["example/steps/short-v10"]
        assert sorted(again.dataset_ids("example/st")) == [
            "example/steps/short-v1",
            "example/steps/short-v10",
        ]
        assert again.dataset_ids("other") == []

    def test_two_uploads_of_the_same_at_once_both_succeed(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        kind = type(open_remote(address))
        send, others = kind.send, [lambda: publish_dataset(ID, address)]

        def overtaken(remote: Remote, upload: Upload, on_bytes: Callable[[int], None]) -> None:
            send(remote, upload, on_bytes)
            while others:
                others.pop()()

        monkeypatch.setattr(kind, "send", overtaken)
        assert publish_dataset(ID, address).outcome in ("present", "uploaded")
        assert not others
        assert list_remote_datasets(address)[ID]["total_episodes"] == 3


class RemoteContract(UploadsContract):
    """All tests of a remote; inherit from it and define the fixture ``address`` to run them."""

    def test_a_dataset_comes_back_byte_for_byte(
        self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_namespace("example", description="Steps")
        step_index_dataset(ID)
        mine = tree(data_path_of(ID))
        done = publish_dataset(ID, address)
        assert done.outcome == "uploaded"
        another_root(monkeypatch, tmp_path / "other")
        monkeypatch.setenv("MINARI_REMOTE", address)
        download_dataset(ID)
        assert tree(data_path_of(ID)) == mine
        assert get_namespace_metadata("example") == {"description": "Steps"}
        dataset = load_dataset(ID, verify=True)
        assert [len(episode) for episode in dataset] == [2, 3, 4]
        assert {path.name for path in get_dataset_path().iterdir()} == {"example"}

    def test_a_second_upload_changes_nothing(self, address: str) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        assert publish_dataset(ID, address).outcome == "present"

    @pytest.mark.parametrize("change", ["grows", "shrinks", "goes"])
    def test_a_file_that_changes_during_its_upload_is_told_or_sent_as_it_was(
        self, change: str, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        path = data_path_of(ID) / "main_data.hdf5"
        content = path.read_bytes()
        kind = type(open_remote(address))
        send = kind.send

        def changing(remote: Remote, upload: Upload, on_bytes: Callable[[int], None]) -> None:
            path.unlink()
            if change != "goes":
                path.write_bytes(content + b"more" if change == "grows" else content[:100])
            send(remote, upload, on_bytes)

        monkeypatch.setattr(kind, "send", changing)
        refused = ""
        try:
            publish_dataset(ID, address)
        except CorruptDatasetError as error:
            refused = str(error)
        if refused:
            assert f"{path} changed during the upload" in refused
            assert list_remote_datasets(address) == {}
        else:
            assert change == "grows"
            assert open_remote(address).files(ID)["data/main_data.hdf5"].size == len(content)

    def test_other_content_under_a_published_id_is_refused(self, address: str) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        delete_dataset(ID)
        step_index_dataset(ID, lengths=(1,))
        with pytest.raises(DatasetExistsError, match="with other content"):
            publish_dataset(ID, address)
        assert list_remote_datasets(address)[ID]["total_episodes"] == 3

    @pytest.mark.parametrize("outer", ["team-v1", "example/team-v1"])
    def test_no_dataset_is_uploaded_into_another_nor_in_the_place_of_a_namespace(
        self, outer: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner = f"{outer}/steps-v1"
        step_index_dataset(inner)
        publish_dataset(inner, address)
        another_root(monkeypatch, tmp_path / "other")
        step_index_dataset(outer)
        with pytest.raises(
            DatasetExistsError, match=f"{outer} already exists .* as the namespace of"
        ):
            publish_dataset(outer, address)
        delete_dataset(outer)
        download_dataset(f"{address}/{inner}")
        assert load_dataset(inner, verify=True).total_episodes == 3

        step_index_dataset("alone-v1")
        publish_dataset("alone-v1", address)
        another_root(monkeypatch, tmp_path / "third")
        step_index_dataset("alone-v1/steps-v1")
        with pytest.raises(DatasetExistsError, match="alone-v1 already exists .* as a dataset"):
            publish_dataset("alone-v1/steps-v1", address)

    def test_a_dry_run_sends_nothing(self, address: str) -> None:
        step_index_dataset(ID)
        done = publish_dataset(ID, address, dry_run=True)
        assert done.outcome == "planned"
        assert done.sizes["data/main_data.hdf5"] > 0
        assert self.is_empty(address)

    def test_listings_choose_by_prefix_version_and_compatibility(self, address: str) -> None:
        for name in ("example/a-v0", "example/a-v2", "example/a-v10", "other/b-v0", "plain-v0"):
            step_index_dataset(name)
            publish_dataset(name, address)
        assert list(list_remote_datasets(address)) == [
            "plain-v0",
            "example/a-v0",
            "example/a-v2",
            "example/a-v10",
            "other/b-v0",
        ]
        assert list(list_remote_datasets(address, prefix="example/")) == [
            "example/a-v0",
            "example/a-v2",
            "example/a-v10",
        ]
        latest = list_remote_datasets(address, latest_version=True, compatible_minari_version=True)
        assert list(latest) == ["plain-v0", "example/a-v10", "other/b-v0"]
        assert list_remote_namespaces(address) == ["example", "other"]

    def test_an_id_without_a_version_fetches_the_latest(
        self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for version in (9, 10):
            step_index_dataset(f"example/steps-v{version}", lengths=(version,))
            publish_dataset(f"example/steps-v{version}", address)
        another_root(monkeypatch, tmp_path / "other")
        download_dataset(f"{address}/example/steps")
        assert list(list_local_datasets()) == ["example/steps-v10"]

    def test_a_download_that_is_forced_takes_the_place_of_what_is_there(self, address: str) -> None:
        step_index_dataset(ID)
        mine = tree(data_path_of(ID))
        publish_dataset(ID, address)
        (data_path_of(ID) / "main_data.hdf5").write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="Skipping Download"):
            download_dataset(f"{address}/{ID}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            download_dataset(f"{address}/{ID}", force_download=True)
        assert tree(data_path_of(ID)) == mine

    def test_what_a_killed_download_has_left_goes_with_the_next(
        self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        root = another_root(monkeypatch, tmp_path / "other")
        for name in ("installed", "begun", "abandoned"):
            (root / f".download-{name}").mkdir()
        (root / ".download-begun" / "dataset").mkdir()
        (root / ".download-abandoned" / "dataset").mkdir()
        os.utime(root / ".download-abandoned", (0, 0))
        download_dataset(f"{address}/{ID}")
        assert {path.name for path in root.iterdir()} == {".download-begun", "example"}

    def test_downloads_at_the_same_time_all_end_with_the_dataset(
        self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        another_root(monkeypatch, tmp_path / "other")
        errors: list[BaseException] = []

        def fetch() -> None:
            try:
                download_dataset(f"{address}/{ID}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=fetch) for _ in range(4)]
        with warnings.catch_warnings():  # affects all threads of the process
            warnings.simplefilter("ignore")
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not errors
        assert load_dataset(ID, verify=True).total_episodes == 3

    def test_a_dataset_with_other_bytes_than_its_manifest_names_is_not_installed(
        self, address: str, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        another_root(monkeypatch, tmp_path / "other")
        own = type(remote).read

        def wrong(self: Remote, path: str, start: int = 0, end: int | None = None) -> bytes:
            found = own(self, path, start, end)
            return found[:-1] + b"?" if path.endswith(".hdf5") else found

        monkeypatch.setattr(type(remote), "read", wrong)
        with pytest.raises(RemoteError, match="has sha256 .*, but its manifest says"):
            download_dataset(f"{address}/{ID}")
        assert list_local_datasets() == {}

    def test_hostile_names_lead_nowhere(
        self, address: str, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        another_root(monkeypatch, tmp_path / "other")

        def files(self: Remote, dataset_id: str) -> dict[str, RemoteFile]:
            return {"data/../../../evil": RemoteFile(1)}

        own_ids = type(remote).dataset_ids

        def ids(self: Remote, prefix: str = "") -> list[str]:
            return ["../evil-v0", "/etc/evil-v0", "a/../../evil-v0", *own_ids(self, prefix)]

        monkeypatch.setattr(type(remote), "dataset_ids", ids)
        with pytest.warns(UserWarning, match="Malformed dataset ID"):
            assert list(list_remote_datasets(address)) == [ID]
        own, reads = type(remote).read, []

        def read(self: Remote, path: str, start: int = 0, end: int | None = None) -> bytes:
            reads.append(path)
            found = own(self, path, start, end)
            return (
                found.partition(b'"manifest_sha256"')[0] + found.partition(b", ")[2]
                if (path.endswith(METADATA))
                else found
            )

        monkeypatch.setattr(type(remote), "files", files)
        monkeypatch.setattr(type(remote), "read", read)
        with pytest.raises(CorruptDatasetError, match="evil"):
            download_dataset(f"{address}/{ID}")
        assert reads and not [path for path in reads if "evil" in path]
        assert not list(tmp_path.rglob("evil*"))
        assert list_local_datasets() == {}

    def test_a_broken_dataset_among_good_ones_is_named_and_skipped(self, address: str) -> None:
        step_index_dataset(ID)
        publish_dataset(ID, address)
        for number, metadata in enumerate((b"no JSON", b"[]", b"{}")):
            upload = an_upload(f"example/broken-v{number}")
            remote: Any = open_remote(address)
            broken = replace(upload, metadata=metadata)
            publish(remote, broken)
        with pytest.warns(UserWarning, match="Skipping") as caught:
            assert list(list_remote_datasets(address)) == [ID]
        assert sorted(str(w.message).split("'")[1] for w in caught) == [
            f"example/broken-v{n}" for n in range(3)
        ]
