"""Whatever is wrong with a remote or the disk: one clear line, and nothing lost or let out."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minari_pipe import (
    delete_dataset,
    download_dataset,
    list_local_datasets,
    list_remote_datasets,
    list_remote_namespaces,
    load_dataset,
    publish_dataset,
    upload_dataset,
)
from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import identity_of
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    MinariPipeError,
    RemoteError,
)
from minari_pipe.testing.remotes import another_root, tree
from tests.datasets.test_library import read_only

ID = "example/steps-v1"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The remote of MINARI_REMOTE, a directory with one dataset; the local root has none."""
    folder = place / "shared"
    folder.mkdir()
    monkeypatch.setenv("MINARI_REMOTE", f"file://{folder}")
    another_root(monkeypatch, place / "root")
    step_index_dataset(ID)
    upload_dataset(ID)
    delete_dataset(ID)
    return folder


def refused(error: type[MinariPipeError], words: str, call: Callable[[], object]) -> None:
    """Check that a call ends with one line."""
    with pytest.raises(error, match=words) as told:
        call()
    assert "\n" not in str(told.value)


def rewrite(shared: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a published manifest, of format 1, and let the metadata name the changed one."""
    path = shared / ID / "manifest.json"
    content = identity_of(json.loads(path.read_text()))
    change(content)
    path.write_text(json.dumps(content))
    metadata = shared / ID / "data" / "metadata.json"
    own = json.loads(metadata.read_text())
    own["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    metadata.write_text(json.dumps(own))


# what a remote says


@pytest.mark.parametrize(
    "entry",
    [
        {"sha256": "0" * 64, "size": -1},
        {"sha256": "0" * 64, "size": 10**18},
        {"sha256": "0" * 64, "size": 10**40},
        {"sha256": "0" * 64, "size": 1.5},
        {"sha256": "0" * 64, "size": True},
        {"sha256": "0" * 64, "size": "10"},
        {"sha256": "0" * 64},
        {"sha256": 3, "size": 8528},
        {"sha256": "x", "size": 8528},
        {"sha256": None, "size": 8528},
        {"size": 8528},
        [],
        None,
    ],
    ids=repr,
)
def test_a_manifest_of_absurd_entries_is_refused(entry, shared) -> None:
    rewrite(shared, lambda manifest: manifest["files"].update({"data/main_data.hdf5": entry}))
    refused(MinariPipeError, "steps-v1|disk is full", lambda: download_dataset(ID))
    assert list_local_datasets() == {}
    size = sum(path.stat().st_blocks * 512 for path in get_dataset_path().rglob("*"))
    assert size < 1_000_000


def test_what_was_published_with_a_manifest_of_format_1_is_downloaded_and_is_the_same(
    shared,
) -> None:
    rewrite(shared, lambda manifest: None)
    download_dataset(ID)
    load_dataset(ID, verify=True)
    assert publish_dataset(ID, shared).outcome == "present"
    delete_dataset(ID)
    step_index_dataset(ID)
    done = publish_dataset(ID, shared)
    assert (done.outcome, done.notes) == ("present", ())


@pytest.mark.parametrize(
    "name",
    [
        "data/../../evil",
        "../evil",
        "/evil",
        "data//evil",
        "data/./evil",
        "data/.evil",
        "data/evil\\..\\x",
        "data/C:evil",
        "data/ev\0il",
        "data/" + "e" * 300,
        "evil",
        "manifest.json",
        "other/evil",
        "data/evil/",
        "data/esc\x1b[31mevil\nnext",
        "data/" + "evil/" * 2000 + "x",
        "data/\ud800evil",
        "data",
        "",
    ],
    ids=lambda name: repr(name[:24]),
)
def test_a_manifest_of_hostile_names_is_refused(name, shared, place) -> None:
    entry = {"sha256": hashlib.sha256(b"").hexdigest(), "size": 0}
    rewrite(shared, lambda manifest: manifest["files"].update({name: entry}))
    before = sorted(place.iterdir())
    with pytest.raises(MinariPipeError) as told:
        download_dataset(ID)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 1000
    assert list_local_datasets() == {}
    assert sorted(place.iterdir()) == before and not list(place.rglob("*evil*"))


def test_a_name_that_is_a_folder_for_another_is_refused(shared) -> None:
    entry = {"sha256": hashlib.sha256(b"").hexdigest(), "size": 0}
    (shared / ID / "data/b").mkdir()
    for names in (("data/a", "data/a/b"), ("data/metadata.json/x",)):
        rewrite(
            shared,
            lambda manifest, names=names: manifest["files"].update(dict.fromkeys(names, entry)),
        )
        refused(MinariPipeError, "steps-v1", lambda: download_dataset(ID))
        assert list_local_datasets() == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"files": []}', b'{"files": {}}', b"\xff", b"[" * 10**5],
    ids=lambda c: repr(c[:12]),
)
def test_a_manifest_that_is_none_is_refused(content, shared) -> None:
    path = shared / ID / "manifest.json"
    path.write_bytes(content)
    refused(CorruptDatasetError, "manifest", lambda: download_dataset(ID))
    metadata = shared / ID / "data" / "metadata.json"
    own = json.loads(metadata.read_text())
    own["manifest_sha256"] = hashlib.sha256(content).hexdigest()
    metadata.write_text(json.dumps(own))
    refused(CorruptDatasetError, "manifest", lambda: download_dataset(ID))


@pytest.mark.parametrize(
    "values",
    [
        {"total_episodes": "many"},
        {"total_episodes": -1},
        {"total_steps": None},
        {"total_steps": 10**400},
        {"minari_version": 3},
        {"minari_version": ["0.5.4"]},
        {"data_format": {}},
        {"dataset_id": 5},
        {"dataset_id": "example/other-v1"},
        {"dataset_id": "../evil-v1"},
        {"author": 3},
        {"dataset_size": "huge"},
        {"observation_space": 5},
    ],
    ids=str,
)
def test_metadata_of_wrong_types_stop_no_listing(values, shared) -> None:
    step_index_dataset("example/good-v0")
    upload_dataset("example/good-v0")
    path = shared / ID / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for options in ({}, {"latest_version": True, "compatible_minari_version": True}):
            assert "example/good-v0" in list_remote_datasets(**options)
        with suppress(MinariPipeError):
            download_dataset(ID)
    assert all("\n" not in str(warning.message) for warning in told)
    assert "example/good-v0" in list_local_datasets()


def test_names_of_a_remote_that_are_no_ids_are_told_in_printable_letters(shared) -> None:
    for name in ("esc\x1b[31m-v0", "new\nline-v0", "..v0", "a" * 200 + ".x"):
        (shared / name / "data").mkdir(parents=True)
        (shared / name / "data" / "metadata.json").write_text("{}")
        (shared / name / "namespace_metadata.json").write_text("{}")
    (shared / "bad\x1bname").mkdir()
    (shared / "bad\x1bname" / "namespace_metadata.json").write_text("{}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert list(list_remote_datasets()) == [ID]
        assert list_remote_namespaces() == ["example"]
    assert len(told) == 4
    assert all(str(warning.message).isprintable() for warning in told)


# links and folders of a directory


def test_links_that_lead_out_of_a_directory_are_not_followed(shared, place) -> None:
    secret = place / "secret"
    secret.write_text("secret")
    file = shared / ID / "data/main_data.hdf5"
    mine = file.read_bytes()
    file.unlink()
    file.symlink_to(secret)
    refused(
        CorruptDatasetError, "is a symlink that leads out of file://", lambda: download_dataset(ID)
    )
    file.unlink()
    (place / "real.hdf5").write_bytes(mine)
    file.symlink_to(place / "real.hdf5")
    refused(
        CorruptDatasetError, "is a symlink that leads out of file://", lambda: download_dataset(ID)
    )
    (shared / "away").symlink_to(place)
    (shared / "again").symlink_to(shared)
    assert list(list_remote_datasets()) == [ID]
    assert list_local_datasets() == {}


def test_a_dataset_or_its_metadata_that_a_link_leads_to_is_left_out(shared, place) -> None:
    (shared / ID).rename(place / "elsewhere")
    (shared / ID).symlink_to(place / "elsewhere")
    assert list_remote_datasets() == {}
    (shared / ID).unlink()
    (place / "elsewhere").rename(shared / ID)
    metadata = shared / ID / "data/metadata.json"
    metadata.rename(place / "metadata.json")
    metadata.symlink_to(place / "metadata.json")
    with pytest.warns(UserWarning, match="is a symlink that leads out"):
        assert list_remote_datasets() == {}


def test_a_namespace_of_the_root_that_a_link_leads_out_of_takes_no_download(place) -> None:
    (place / "outside").mkdir()
    shutil.rmtree(place / "root/example")
    (place / "root/example").symlink_to(place / "outside")
    refused(CorruptDatasetError, "leads out of the datasets root", lambda: download_dataset(ID))
    assert not list((place / "outside").iterdir())


def test_a_namespace_whose_metadata_may_not_be_read_stops_no_dataset(shared, place) -> None:
    (shared / "example/namespace_metadata.json").chmod(0o000)
    shutil.rmtree(place / "root/example")
    (place / "root").chmod(0o777)
    with read_only(), pytest.warns(UserWarning, match="'example' is created without .* denied"):
        download_dataset(ID)
    assert load_dataset(ID).total_episodes == 3
    (shared / "example/namespace_metadata.json").unlink()
    (shared / "example/namespace_metadata.json").symlink_to(place / "root")
    download_dataset(ID, force_download=True)


@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name, shared) -> None:
    path = shared / ID / "data" / name
    path.unlink()
    os.mkfifo(path)
    with warnings.catch_warnings(action="ignore"):
        refused(MinariPipeError, "steps", lambda: download_dataset(ID))


def test_a_folder_that_cannot_be_read_is_named_and_skipped(shared) -> None:
    step_index_dataset("other/good-v0")
    upload_dataset("other/good-v0")
    for closed in (shared / "example", shared / ID, shared / ID / "data"):
        with (
            read_only(closed, mode=0o000),
            pytest.warns(UserWarning, match=f"Skipping .*{closed.name}.*|Skipping .*{ID}"),
        ):
            assert list(list_remote_datasets()) == ["other/good-v0"]
    file = shared / ID / "data/metadata.json"
    file.chmod(0o000)
    with read_only(), pytest.warns(UserWarning, match=f"Skipping '{ID}' of .*ermission"):
        assert list(list_remote_datasets()) == ["other/good-v0"]


# what may not be written


def test_a_directory_that_may_not_be_written_is_told(shared) -> None:
    step_index_dataset("example/new-v0")
    before = tree(shared)
    with read_only(shared, shared / "example"):
        refused(RemoteError, "you need .* permission", lambda: upload_dataset("example/new-v0"))
        assert list(list_remote_datasets()) == [ID]
    assert tree(shared) == before


def test_a_root_that_may_not_be_written_is_told(shared, place) -> None:
    with read_only(place / "root"):
        refused(ConfigError, "MINARI_DATASETS_PATH", lambda: download_dataset(ID))
    assert not list((place / "root").rglob("data"))


def test_a_published_directory_that_is_a_root_and_read_only_is_read(shared, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared))
    with read_only(shared, shared / "example", shared / ID, shared / ID / "data"):
        assert load_dataset(ID, verify=True).total_episodes == 3


@pytest.fixture
def small(place: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    folder = place / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def large(dataset_id: str) -> None:
    """A local dataset of about 400 kB."""
    step_index_dataset(dataset_id, lengths=(10_000,) * 2)


def grow(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=10m", str(folder)], check=True)


def test_a_full_disk_of_a_directory_is_told_and_the_upload_goes_on(small) -> None:
    large("example/large-v0")
    address = f"file://{small}"
    refused(
        RemoteError,
        "No space left on device; make room there and run the same command to continue",
        lambda: publish_dataset("example/large-v0", address),
    )
    assert list_remote_datasets(address) == {}
    grow(small)
    assert publish_dataset("example/large-v0", address).outcome == "uploaded"
    assert [path.name for path in small.iterdir()] == ["example"]


def test_a_full_disk_of_the_root_is_told_and_the_download_goes_on(small, monkeypatch) -> None:
    large("example/large-v0")
    upload_dataset("example/large-v0")
    another_root(monkeypatch, small / "root")
    refused(
        RemoteError,
        "the disk is too full for .*: it needs 0.5 MB",
        lambda: download_dataset("example/large-v0"),
    )
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage("/"))
    refused(RemoteError, "No space left", lambda: download_dataset("example/large-v0"))
    assert list_local_datasets() == {}
    grow(small)
    download_dataset("example/large-v0")
    assert load_dataset("example/large-v0", verify=True).total_steps == 20_000
    assert [path.name for path in get_dataset_path().iterdir()] == ["example"]


def test_a_limit_on_files_is_told_and_lost_is_nothing(shared) -> None:
    large("example/large-v0")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
        refused(RemoteError, "File too large", lambda: upload_dataset("example/large-v0"))
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        upload_dataset("example/large-v0")
        delete_dataset("example/large-v0")
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
        refused(RemoteError, "File too large", lambda: download_dataset("example/large-v0"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, before)
    download_dataset("example/large-v0")
    assert load_dataset("example/large-v0", verify=True).total_steps == 20_000


def test_what_is_in_the_way_is_left_as_it_is(shared) -> None:
    (shared / "taken").write_text("mine")
    step_index_dataset("taken/steps-v0")
    refused(MinariPipeError, "taken", lambda: upload_dataset("taken/steps-v0"))
    (shared / "example/new-v0").mkdir()
    (shared / "example/new-v0/notes.txt").write_text("mine")
    step_index_dataset("example/new-v0")
    refused(DatasetExistsError, "is left unchanged", lambda: upload_dataset("example/new-v0"))
    left = shared / ".minari_pipe-uploads"
    assert len(list(left.iterdir())) == 1  # of the one that may go on
    assert (shared / "taken").read_text() == "mine"
    assert (shared / "example/new-v0/notes.txt").read_text() == "mine"
    root = get_dataset_path()
    shutil.rmtree(root / "example", ignore_errors=True)
    (root / "example").write_text("mine")
    refused(MinariPipeError, "example", lambda: download_dataset(ID))
    assert (root / "example").read_text() == "mine"


def test_a_download_into_a_namespace_that_is_a_dataset_is_refused(shared) -> None:
    step_index_dataset("example/steps-v1")
    (shared / "example/steps-v1/data").rename(shared / "data")
    shutil.rmtree(shared / "example/steps-v1")
    shutil.move(shared / "data", shared / "example/steps-v1/deep-v0/data")
    path = shared / "example/steps-v1/deep-v0/data/metadata.json"
    own = {**json.loads(path.read_text()), "dataset_id": "example/steps-v1/deep-v0"}
    own.pop("manifest_sha256")
    path.write_text(json.dumps(own))
    refused(
        DatasetExistsError,
        "already exists as the dataset",
        lambda: download_dataset("example/steps-v1/deep-v0"),
    )
    assert list(list_local_datasets()) == ["example/steps-v1"]


def test_a_file_that_a_remote_has_lost_is_named(shared) -> None:
    (shared / ID / "data/main_data.hdf5").unlink()
    refused(RemoteError, "main_data.hdf5 is missing, though", lambda: download_dataset(ID))
    rewrite(shared, lambda manifest: None)
    assert list(list_remote_datasets()) == [ID]
