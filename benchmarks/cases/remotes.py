"""Publishing and fetching, beside what the provider's own client takes for the same bytes.

The servers are those of the tests, on this machine: no network bounds either side, so the ratio is
that of the work around the bytes. An upload here reads back what it sent where the server does not
prove it, so it stands beside an upload and a download.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import minari_pipe
from benchmarks import work
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When
from benchmarks.work import Shape
from minari_pipe.datasets.examples import step_index_dataset

#: of the time of the client: what the issue of every remote allows, 1.3 times as much
_SHARE = 1 / 1.3
_STEP_BYTES = 434
_numbers = itertools.count()


@dataclass(frozen=True)
class Server:
    """A server, and its provider's client.

    Attributes:
        new: returns the address of an empty place.
        put: sends a file to a place by the client.
        get: fetches it.
    """

    new: Callable[[], str]
    put: Callable[[Path, str], None]
    get: Callable[[str, Path], None]


def cases() -> Iterator[Case]:
    """Yield the cases of each server."""
    for name, client in (("S3", "s3fs"), ("GCS", "gcsfs"), ("Hub", "huggingface_hub")):
        for when, megabytes in ((When.FULL, 400), (When.SMALL, 20)):
            goal = Goal(of_limit=_SHARE) if when is When.FULL else Goal()
            case = partial(
                Case, "remote", size=f"{megabytes} MB", goal=goal, clock="wall", when=when
            )
            yield case(
                f"upload to {name}; limit: {client}, up and down",
                prepare=partial(uploading, name, megabytes),
            )
            yield case(
                f"download from {name}; limit: {client}",
                prepare=partial(downloading, name, megabytes),
            )
        yield Case(
            "remote",
            f"list {name}",
            "200 datasets",
            partial(listing, name, 200),
            Goal(at_most=2.0),
            clock="wall",
            repeats=3,
            when=When.FULL,
        )


def _dataset(megabytes: int) -> str:
    steps = 20_000
    return work.dataset("here", Shape(megabytes * 1_000_000 // steps // _STEP_BYTES, steps))


def uploading(name: str, megabytes: int) -> Sides:
    """Publish a dataset, each time to an empty place."""
    if isinstance(server := _server(name), Skipped):
        return {"here": server}
    dataset_id = _dataset(megabytes)
    file = work.folder(dataset_id) / "data" / "main_data.hdf5"
    got = work.folder("got").with_suffix(".hdf5")

    def client(place: list[str]) -> None:
        server.put(file, place[0])
        server.get(place[0], got)

    place = [""]

    def fresh() -> None:
        place[0] = server.new()

    return {
        "limit": Side(partial(client, place), before=fresh),
        "here": Side(lambda: minari_pipe.publish_dataset(dataset_id, place[0]), before=fresh),
    }


def downloading(name: str, megabytes: int) -> Sides:
    """Fetch a dataset."""
    if isinstance(server := _server(name), Skipped):
        return {"here": server}
    dataset_id = _dataset(megabytes)
    file = work.folder(dataset_id) / "data" / "main_data.hdf5"
    got = work.folder("got").with_suffix(".hdf5")
    place, own = server.new(), server.new()
    server.put(file, place)
    minari_pipe.publish_dataset(dataset_id, own)
    return {
        "limit": Side(lambda: server.get(place, got), before=lambda: got.unlink(missing_ok=True)),
        "here": Side(
            partial(minari_pipe.download_dataset, f"{own}/{dataset_id}"),
            before=partial(shutil.rmtree, work.folder(dataset_id)),
        ),
    }


def listing(name: str, n_datasets: int) -> Sides:
    """List a place with many small datasets."""
    if isinstance(server := _server(name), Skipped):
        return {"here": server}
    place = server.new()
    for number in range(n_datasets):
        dataset_id = f"listed/n{number}-v0"
        if not work.folder(dataset_id).exists():
            step_index_dataset(dataset_id)
        minari_pipe.publish_dataset(dataset_id, place)

    def look() -> None:
        if (found := len(minari_pipe.list_remote_datasets(place))) != n_datasets:
            raise RuntimeError(f"{found} of {n_datasets} datasets are listed")

    return {"here": Side(look, before=lambda: None)}


@cache
def _server(name: str) -> Server | Skipped:
    work.ending.callback(_server.cache_clear)
    try:
        return {"S3": _s3, "GCS": _gcs, "Hub": _hub}[name]()
    except ImportError as error:
        return Skipped(f"needs the test extra: {error}")


def _s3() -> Server:
    from s3fs import S3FileSystem

    from tests.support.servers.running import entered
    from tests.support.servers.s3 import s3_server

    variables = work.ending.enter_context(s3_server(work.folder("servers") / "s3", "bench"))
    work.ending.enter_context(entered({**os.environ, **variables}))
    files = S3FileSystem(endpoint_url=variables["AWS_ENDPOINT_URL_S3"])
    return _bucket("s3://bench", files)


def _gcs() -> Server:
    from gcsfs.core import GCSFileSystem

    from tests.support.servers.gcs import gcs_server
    from tests.support.servers.running import entered

    variables = work.ending.enter_context(gcs_server("bench"))
    work.ending.enter_context(entered({**os.environ, **variables}))
    return _bucket("gs://bench", GCSFileSystem(token="anon"))


def _bucket(address: str, files: Any) -> Server:
    return Server(
        new=lambda: f"{address}/place{next(_numbers)}",
        put=lambda file, place: files.put_file(str(file), f"{place}/file"),
        get=lambda place, file: files.get_file(f"{place}/file", str(file)),
    )


def _hub() -> Server:
    import pytest

    from tests.support.servers.hub import WRITER, enter, hub_server

    hub = work.ending.enter_context(hub_server(work.folder("servers") / "hub"))
    enter(hub, work.ending.enter_context(pytest.MonkeyPatch.context()))
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, token=WRITER)

    def put(file: Path, place: str) -> None:
        repo = f"{place[5:]}/client"
        api.create_repo(repo, repo_type="dataset", exist_ok=True)
        api.upload_file(
            path_or_fileobj=file, path_in_repo="file.hdf5", repo_id=repo, repo_type="dataset"
        )

    def get(place: str, file: Path) -> None:
        folder = file.with_suffix(f".{next(_numbers)}")
        repo = f"{place[5:]}/client"
        api.hf_hub_download(repo, "file.hdf5", repo_type="dataset", local_dir=folder)

    def new() -> str:
        # It would ask for no bytes that it has already, whatever the repository.
        for file in (hub.folder / "lfs").rglob("*"):
            if file.is_file():
                file.unlink()
        return f"hf://org-place{next(_numbers)}"

    return Server(new, put, get)
