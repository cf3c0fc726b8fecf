"""The remotes keep their contract, each with a real server or file system.

What a server does not enforce of the real service is said where it is started, in tests/servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from minari_pipe import list_remote_datasets, publish_dataset
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.remotes import open_remote
from minari_pipe.remotes.base import PART, Upload, UploadSource
from minari_pipe.remotes.hosting import find_datasets, split_remote_path
from minari_pipe.testing.remotes import RemoteContract, UploadsContract, publish
from tests.conftest import FULL
from tests.support.remote_places import Servers
from tests.support.servers.running import entered


class FolderContract(UploadsContract):
    """Of a remote whose address may have folders."""

    def test_a_folder_is_told_from_one_that_begins_like_it(self, address: str) -> None:
        step_index_dataset("door/human-v1")
        publish_dataset("door/human-v1", f"{address}/team-old")
        assert split_remote_path(f"{address}/team") == (f"{address}/team", "")
        assert split_remote_path(f"{address}/team-old/do") == (f"{address}/team-old", "do")
        publish_dataset("door/human-v1", f"{address}/team")
        assert split_remote_path(f"{address}/team") == (f"{address}/team", "")
        assert split_remote_path(f"{address}/team/door/") == (f"{address}/team", "door/")
        assert list(list_remote_datasets(f"{address}/team")) == ["door/human-v1"]

    @pytest.mark.parametrize("folder", ["my folder/50%25", "date=2024+x", "of.team", "a/%20/b"])
    def test_a_folder_may_have_a_name_that_no_namespace_has(
        self, folder: str, address: str
    ) -> None:
        step_index_dataset("door/human-v1")
        publish_dataset("door/human-v1", f"{address}/{folder}")
        place = f"{address}/{folder}"
        assert split_remote_path(f"{place}/door/") == (place, "door/")
        assert list(find_datasets(f"{place}/door/human")[1]) == ["door/human-v1"]


class FullContract(FolderContract, RemoteContract):
    """All of both."""


class TestDirectory(FullContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        (tmp_path / "remote").mkdir()
        return f"file://{tmp_path}/remote"

    def test_a_folder_that_is_there_is_listed_alone(self, address: str) -> None:
        """Its datasets may claim any id, which decides what else the remote holds."""
        for name in ("robots/x-v0", "robots-mine/x-v0"):
            step_index_dataset(name)
            publish_dataset(name, address)
        assert split_remote_path(f"{address}/robots") == (address, "robots/")
        assert split_remote_path(f"{address}/robots-m") == (address, "robots-m")
        assert list(find_datasets(f"{address}/robots/x")[1]) == ["robots/x-v0"]

    @pytest.mark.parametrize("prefix", ["../", "../remote/", "door/../", "./", "/etc/x", "door//"])
    def test_a_prefix_of_no_name_lists_nothing(self, prefix: str, address: str) -> None:
        step_index_dataset("door/human-v1")
        publish_dataset("door/human-v1", address)
        assert list_remote_datasets(address, prefix=prefix) == {}


class TestS3(FullContract):
    @pytest.fixture
    def address(self, servers: Servers, tmp_path: Path) -> Iterator[str]:
        with entered(servers.variables("s3")):
            yield f"s3://bucket/{tmp_path.name}"


class TestS3WithConditionalWrites(FullContract if FULL else UploadsContract):
    """The client is that of ``TestS3``; the server differs where uploads meet."""

    @pytest.fixture
    def address(self, servers: Servers, tmp_path: Path) -> Iterator[str]:
        with entered(servers.variables("moto")):
            yield f"s3://bucket/{tmp_path.name}"


class TestGCS(FullContract if FULL else FolderContract):
    """What is not the remote's own is that of ``TestS3``."""

    @pytest.fixture
    def address(self, servers: Servers, tmp_path: Path) -> Iterator[str]:
        with entered(servers.variables("gcs")):
            yield f"gs://bucket/{tmp_path.name}"


CONTENT_TYPES = {
    "card/report.html": "text/html; charset=utf-8",
    "card/returns.svg": "image/svg+xml",
    "card/episode.webp": "image/webp",
    "card/episodes.csv": "text/csv; charset=utf-8",
    "card/card.md": "text/markdown; charset=utf-8",
    "card/stats.json": "application/json",
    "data/main_data.hdf5": "application/octet-stream",
    "data/empty.bin": "application/octet-stream",
    "manifest.json": "application/json",
}


@pytest.mark.parametrize("size", [3, PART + 1], ids=["small", "in parts"])
@pytest.mark.parametrize("kind", ["moto", "gcs"])
def test_a_browser_shows_the_files_of_a_card_in_a_bucket(
    kind: str, size: int, servers: Servers, tmp_path: Path
) -> None:
    variables = servers.variables(kind)
    large = ["card/report.html", "card/episode.webp", "data/main_data.hdf5"]
    names = [*CONTENT_TYPES] if size < PART else [*large, "manifest.json"]
    sizes = dict.fromkeys(large, size) | {"data/empty.bin": 0}
    files = {name: UploadSource.of(bytes(sizes.get(name, 2))) for name in names}
    with entered({**variables, "XDG_CACHE_HOME": str(tmp_path)}):
        scheme = "s3" if kind == "moto" else "gs"
        remote: Any = open_remote(f"{scheme}://bucket/{tmp_path.name}")
        publish(remote, Upload("example/a-v0", files, b"{}", {"example": b"{}"}))

        def content_type(name: str) -> str:
            path = remote._path(f"example/{name}")
            address = f"{variables.get('STORAGE_EMULATOR_HOST')}/{path}"
            if kind == "moto":
                address = remote._files.sign(path)
            response = requests.get(address, timeout=60)
            response.raise_for_status()
            return response.headers["Content-Type"]

        found = {name: content_type(f"a-v0/{name}") for name in names}
        metadata = {content_type(f) for f in ("a-v0/data/metadata.json", "namespace_metadata.json")}
    assert found == {name: CONTENT_TYPES[name] for name in names}
    assert metadata == {"application/json"}
