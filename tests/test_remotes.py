"""The remotes keep their contract, each with a real server or file system.

What a server does not enforce of the real service is said where it is started, in tests/servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minari_pipe.testing.remotes import RemoteContract
from tests.servers.gcs import gcs_server
from tests.servers.running import entered
from tests.servers.s3 import moto_server, s3_server

Variables = dict[str, str]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Variables]:
    with s3_server(tmp_path_factory.mktemp("s3"), "bucket") as variables:
        yield variables


@pytest.fixture(scope="module")
def moto() -> Iterator[Variables]:
    with moto_server("bucket") as variables:
        yield variables


@pytest.fixture(scope="module")
def gcs() -> Iterator[Variables]:
    with gcs_server("bucket") as variables:
        yield variables


class TestDirectory(RemoteContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        (tmp_path / "remote").mkdir()
        return f"file://{tmp_path}/remote"


class TestS3(RemoteContract):
    @pytest.fixture
    def address(self, s3: Variables, tmp_path: Path) -> Iterator[str]:
        with entered(s3):
            yield f"s3://bucket/{tmp_path.name}"


class TestS3WithConditionalWrites(RemoteContract):
    @pytest.fixture
    def address(self, moto: Variables, tmp_path: Path) -> Iterator[str]:
        with entered(moto):
            yield f"s3://bucket/{tmp_path.name}"


class TestGCS(RemoteContract):
    @pytest.fixture
    def address(self, gcs: Variables, tmp_path: Path) -> Iterator[str]:
        with entered(gcs):
            yield f"gs://bucket/{tmp_path.name}"
