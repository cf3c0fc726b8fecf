"""The remotes keep their contract, each with a real server or file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minari_pipe.testing.remotes import RemoteContract
from tests.object_store import s3_server


class TestDirectory(RemoteContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        (tmp_path / "remote").mkdir()
        return f"file://{tmp_path}/remote"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("s3")
    with s3_server(folder, "bucket") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


class TestS3(RemoteContract):
    @pytest.fixture
    def address(self, s3: None, tmp_path: Path) -> str:
        return f"s3://bucket/{tmp_path.name}"
