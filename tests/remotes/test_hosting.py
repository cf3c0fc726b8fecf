"""What is downloaded, uploaded and listed by which name; the remote is a directory."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import pytest

from minari_pipe import (
    create_dataset_from_buffers,
    create_namespace,
    delete_dataset,
    delete_namespace,
    download_dataset,
    download_namespace_metadata,
    get_namespace_metadata,
    get_storage_keys,
    list_local_datasets,
    list_local_namespaces,
    list_remote_datasets,
    list_remote_namespaces,
    load_dataset,
    publish_dataset,
    update_namespace_metadata,
    upload_dataset,
    upload_namespace,
)
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidMetadataError,
    LinkError,
    MinariPipeError,
    RemoteError,
    UnsupportedVersionError,
)
from minari_pipe.remotes.cloud_storage import get_cloud_storage
from minari_pipe.remotes.hosting import find_datasets, split_remote_path
from minari_pipe.testing.remotes import another_root, tree
from tests.support.real_minari import RealMinari

ID = "example/steps-v1"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The remote of MINARI_REMOTE, a directory that is empty."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setenv("MINARI_REMOTE", f"file://{folder}")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Let an empty folder be the local root from then on, as on another machine."""
    return lambda: another_root(monkeypatch, tmp_path / "elsewhere")


def published(*dataset_ids: str, **metadata: object) -> None:
    """Publish tiny datasets that no local root has afterwards."""
    for dataset_id in dataset_ids:
        step_index_dataset(dataset_id)
        if metadata:
            change_metadata(data_path_of(dataset_id), **metadata)
        with warnings.catch_warnings(action="ignore"):
            upload_dataset(dataset_id)
        delete_dataset(dataset_id)


def change_metadata(data: Path, **values: object) -> None:
    """Change metadata as a program that keeps no manifest does."""
    path = data / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    (data.parent / "manifest.json").unlink(missing_ok=True)


def change_published(shared: Path, dataset_id: str, **values: object) -> None:
    """Change what a remote has of a dataset, whose metadata name no manifest any more."""
    path = shared / dataset_id / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.pop("manifest_sha256", None)
    path.write_text(json.dumps({**metadata, **values}))


def unreadable(shared: Path, dataset_id: str) -> None:
    """Let a dataset of a remote follow a version of the standard that nobody knows."""
    change_published(shared, dataset_id, minari_version="9.0.0")


# which version


def test_an_id_without_a_version_means_the_latest_that_can_be_read(shared) -> None:
    published("example/steps-v2", "example/steps-v10", "example/steps-v11", "example/stepsize-v20")
    unreadable(shared, "example/steps-v11")
    download_dataset("example/steps")
    assert list(list_local_datasets()) == ["example/steps-v10"]


@pytest.mark.parametrize(
    ("wanted", "has", "openings"),
    [
        ("example/other-v0", [ID], ["Couldn't find any version for dataset example/other in "]),
        (
            "example/steps-v7",
            [ID],
            [
                "The dataset version, example/steps-v7, doesn't exist in ",
                f"We suggest you download the latest compatible version of this dataset: {ID}",
            ],
        ),
        ("example/Steps-v1", [ID], ["Couldn't find any version for dataset example/Steps in "]),
    ],
)
def test_what_a_remote_has_not_is_told_in_minari_s_words(wanted, has, openings) -> None:
    published(*has)
    with pytest.raises(DatasetNotFoundError) as told:
        download_dataset(wanted)
    assert isinstance(told.value, ValueError)  # which Minari raises
    assert str(told.value).startswith(openings[0])
    assert all(words in str(told.value) for words in openings)


def test_a_version_that_cannot_be_read_is_refused_and_another_suggested(shared) -> None:
    published("example/steps-v0", ID)
    unreadable(shared, ID)
    with pytest.raises(ValueError, match="The version you are trying to download for dataset") as e:
        download_dataset(ID)
    assert isinstance(e.value, UnsupportedVersionError)
    assert "the latest compatible version of this dataset: example/steps-v0" in str(e.value)
    with pytest.warns(UserWarning, match="is not compatible .* It is downloaded anyway, but"):
        download_dataset(ID, force_download=True)
    assert data_path_of(ID).is_dir()


def test_of_a_dataset_that_cannot_be_read_at_all_one_is_forced(shared) -> None:
    published(ID)
    unreadable(shared, ID)
    words = "Couldn't find any compatible version of dataset example/steps with Minari"
    for wanted in (ID, "example/steps"):
        with pytest.raises(UnsupportedVersionError, match=words):
            download_dataset(wanted)
        with pytest.warns(UserWarning, match=words):
            download_dataset(wanted, force_download=True)
    with (
        pytest.warns(UserWarning, match=words),
        pytest.raises(ValueError, match="exist .*, and no other compatible versions"),
    ):
        download_dataset("example/steps-v5", force_download=True)


def test_an_older_version_is_downloaded_with_a_recommendation(shared) -> None:
    published("example/steps-v0", ID)
    with pytest.warns(UserWarning, match=f"We recommend you install a higher dataset .*: {ID}"):
        download_dataset("example/steps-v0")
    assert list(list_local_datasets()) == ["example/steps-v0"]


def test_what_is_there_is_not_downloaded_again_and_no_remote_is_asked(shared, monkeypatch) -> None:
    step_index_dataset(ID)
    monkeypatch.setenv("MINARI_REMOTE", "hf://nowhere")
    monkeypatch.setenv("MINARI_PIPE_OFFLINE", "1")
    with pytest.warns(UserWarning, match="Skipping Download. Dataset .* found locally at") as told:
        download_dataset(ID)
    assert told[0].filename == __file__


def test_only_the_files_of_the_id_come_and_no_hidden_folder_stays(shared, elsewhere) -> None:
    published(ID, "example/steps-v10")
    root = elsewhere()
    with warnings.catch_warnings(action="ignore"):
        download_dataset(ID)
    assert sorted(path.name for path in root.iterdir()) == ["example"]
    assert sorted(path.name for path in (root / "example").iterdir()) == [
        "namespace_metadata.json",
        "steps-v1",
    ]


def test_a_warning_names_the_line_that_asked(shared) -> None:
    published("example/steps-v0", ID)
    change_published(shared, "example/steps-v0", combined_datasets=["example/gone-v0"])
    with pytest.warns(UserWarning, match="We recommend|was combined") as told:
        download_dataset("example/steps-v0")
    assert len(told) == 2
    (shared / ID / "data/metadata.json").write_text("{")
    with pytest.warns(UserWarning, match="Skipping 'example/steps-v1' of file://") as listed:
        list_remote_datasets()
    assert {warning.filename for warning in (*told, *listed)} == {__file__}


def test_loading_downloads_what_is_missing(shared) -> None:
    published("example/steps-v0", ID)
    with pytest.raises(DatasetNotFoundError, match="download=True"):
        load_dataset(ID)
    assert load_dataset("example/steps", download=True, verify=True).id == ID
    with warnings.catch_warnings(action="error"):
        assert load_dataset("example/steps", download=True).id == ID
    with pytest.raises(ValueError, match="doesn't exist"):
        load_dataset("example/steps-v5", download=True)


# addresses


@pytest.mark.parametrize("name", [ID, "aa/bb/cc/steps-v1", "steps-v1"])
@pytest.mark.parametrize("folder", ["", "/D4RL", "/D4RL/door", "/of.team/a-v1"])
def test_an_address_ends_where_the_id_of_what_is_there_begins(
    folder, name, tmp_path, elsewhere
) -> None:
    remote = tmp_path / f"remote{folder}"
    remote.mkdir(parents=True)
    step_index_dataset(name)
    publish_dataset(name, str(remote))
    elsewhere()
    address = f"file://{remote}"
    download_dataset(f"{address}/{name}")
    assert list(list_local_datasets()) == [name]
    assert split_remote_path(address) == (address, "")
    for n_letters in (1, len(name) - 1, len(name)):
        assert split_remote_path(f"{address}/{name[:n_letters]}") == (address, name[:n_letters])
    delete_dataset(name)
    download_dataset(f"{address}/{name.removesuffix('-v1')}")
    assert list(list_local_datasets()) == [name]


@pytest.mark.parametrize("start", ["{}", "~", "."])
def test_a_path_is_an_address_too(start, shared, monkeypatch) -> None:
    published(ID)
    monkeypatch.setenv("HOME", str(shared.parent))
    monkeypatch.chdir(shared.parent)
    address = f"{start.format(shared.parent)}/{shared.name}"
    assert list(list_remote_datasets(shared)) == [ID]
    download_dataset(f"{address}/{ID}")
    download_dataset(f"{address}/example/", force_download=True)
    assert list(list_local_datasets()) == [ID]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "ftp://host/example/steps-v1",
            "'ftp://host/example/steps' is not a remote",
        ),
        ("hf:/org/example/steps-v1", "Malformed dataset ID"),
        ("://bucket", "does not name a directory"),
        ("file://", "does not name a directory"),
        ("file://share/example/steps-v1", "such as file:///share, with three slash"),
        ("file:///nowhere-v1", "there is no dataset at"),
        ("file:///nowhere/at/all-v1", "the directory .* does not exist|there is no dataset at"),
        ("hf://", "does not name a bucket or organization"),
        ("s3://", "does not name a bucket or organization"),
        ("s3:///example/steps-v1", "does not name a bucket or organization"),
        ("example/steps-v1\n", "Malformed dataset ID"),
        ("../steps-v1", "there is no dataset at '../steps-v1'"),
        ("//", "there is no namespace at '//'"),
        ("../", "there is no namespace at '../'"),
        ("", "Malformed dataset ID"),
    ],
    ids=repr,
)
def test_an_address_that_is_none_is_one_clear_line(address, words) -> None:
    with pytest.raises(MinariPipeError, match=words) as told:
        download_dataset(address)
    assert "\n" not in str(told.value) or address.endswith("\n")


def test_a_version_that_an_address_has_not_is_told_with_the_one_that_is_there(shared) -> None:
    published(ID)
    with pytest.raises(DatasetNotFoundError, match=f"doesn't exist in .*: {ID}"):
        download_dataset(f"file://{shared}/example/steps-v7")


def test_an_address_goes_with_no_other_remote(shared) -> None:
    with pytest.raises(ConfigError, match="already contains an address"):
        find_datasets(f"file://{shared}/{ID}", str(shared))


def test_an_upload_to_an_address_of_two_slashes_makes_no_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    step_index_dataset(ID)
    with pytest.raises(ConfigError, match="does not name a directory"):
        publish_dataset(ID, "file://other")
    with pytest.raises(ConfigError, match="'file://…@host/x' does not name a directory") as caught:
        publish_dataset(ID, "file://ada:hunter2@host/x")
    assert "hunter2" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    publish_dataset(ID, "./other")
    assert list(list_remote_datasets("other")) == [ID]


@pytest.mark.parametrize("remote", ["file://{}", "{}", "FILE://{}", " {} ", "{}/"])
def test_the_remote_of_the_variable_may_be_a_path(remote, shared, monkeypatch) -> None:
    published(ID)
    monkeypatch.setenv("MINARI_REMOTE", remote.format(shared))
    assert list(list_remote_datasets()) == [ID]
    download_dataset(ID)


# whole namespaces


def test_a_namespace_with_a_slash_brings_the_latest_of_each_dataset(shared, elsewhere) -> None:
    published("D4RL/door/human-v1", "D4RL/door/human-v2", "D4RL/door/expert-v0", "D4RL/pen/x-v0")
    published("D4RL/door/new-v0", "D4RL/doors/y-v0")
    unreadable(shared, "D4RL/door/new-v0")
    elsewhere()
    with pytest.warns(UserWarning, match="Skipping D4RL/door/new-v0: this package cannot read any"):
        download_dataset("D4RL/door/")
    assert list(list_local_datasets()) == ["D4RL/door/expert-v0", "D4RL/door/human-v2"]
    with pytest.warns(UserWarning, match="Skipping Download|Skipping D4RL"):
        download_dataset(f"file://{shared}/D4RL/")
    assert list(list_local_datasets(prefix="D4RL/pen")) == ["D4RL/pen/x-v0"]


def test_a_namespace_that_holds_nothing_is_told(shared) -> None:
    published(ID)
    for address in ("other/", f"file://{shared}/other/"):
        with pytest.raises(MinariPipeError, match="there are no datasets|there is no namesp"):
            download_dataset(address)


# combined datasets


def combined(name: str, *parents: str) -> None:
    """A local dataset that says it was combined from others."""
    step_index_dataset(name)
    change_metadata(data_path_of(name), combined_datasets=list(parents))


def test_what_a_dataset_was_combined_from_travels_too(shared, elsewhere) -> None:
    combined("example/a-v0", "example/b-v0", "example/gone-v0")
    combined("example/b-v0", "example/c-v0", "example/a-v0")
    step_index_dataset("example/c-v0")
    with pytest.warns(UserWarning, match="combined") as told:
        upload_dataset("example/a-v0")
    assert ["to publish it, name it" in str(warning.message) for warning in told] == [1, 0, 1]
    # What metadata name may be another dataset of the user's.
    assert list(list_remote_datasets()) == ["example/a-v0"]
    with warnings.catch_warnings(action="ignore"):
        upload_dataset("example/b-v0")
        upload_dataset("example/c-v0")
    assert list(list_remote_datasets()) == [f"example/{name}-v0" for name in "abc"]
    elsewhere()
    with pytest.warns(UserWarning, match="combined") as told:
        download_dataset("example/a-v0")
    assert [str(w.message).partition(":")[0] for w in told] == [
        "example/a-v0 was combined from example/gone-v0"
    ]
    assert list(list_local_datasets()) == [f"example/{name}-v0" for name in "abc"]


def test_no_download_makes_a_dataset_of_a_namespace(shared, elsewhere) -> None:
    """By a part ``data``: what is in the namespace would not be found, and deleted with it."""
    published("example/b-v0")
    (shared / "example/b-v0").rename(shared / "data-b-v0")
    (shared / "example/data").mkdir()
    (shared / "data-b-v0").rename(shared / "example/data/b-v0")
    change_published(shared, "example/data/b-v0")
    change_metadata(shared / "example/data/b-v0/data", dataset_id="example/data/b-v0")
    elsewhere()
    with pytest.raises(InvalidDatasetIdError, match="has a part named 'data'"):
        download_dataset("example/data/b-v0", force_download=True)
    assert list(get_dataset_path().iterdir()) == []


def test_of_an_address_only_what_it_names_is_fetched(shared, elsewhere) -> None:
    """What a dataset says of its id decides which folder its remote is: it may be the user's."""
    combined("inbox/a-v0", "private/b-v0")
    step_index_dataset("private/b-v0")
    for name in ("inbox/a-v0", "private/b-v0"):
        with warnings.catch_warnings(action="ignore"):
            upload_dataset(name)
    (shared / "inbox/namespace_metadata.json").write_text('{"description": "of the user"}')
    elsewhere()
    with pytest.warns(UserWarning, match=f"the address names .* name it: {shared}/private/b-v0"):
        download_dataset(f"{shared}/inbox/a-v0")
    assert list(list_local_datasets()) == ["inbox/a-v0"]
    assert get_namespace_metadata("inbox") == {}


#: under what ids others are made that this package makes no datasets of
PLAIN = {"other/b": "other/b-v3", "other/b-v02": "other/b-v4"}


def test_no_remote_can_make_a_dataset_of_its_own_the_latest_version_here(shared, elsewhere) -> None:
    parents = [f"other/{name}" for name in ("b-v1", "b-v02", "b-v9", "b", "c-v9")]
    combined("example/a-v0", *parents)
    for name in parents:
        step_index_dataset(PLAIN.get(name, name))
    with warnings.catch_warnings(action="ignore"):
        for name in list(list_local_datasets()):
            upload_dataset(name)
    for name, plain in PLAIN.items():
        (shared / plain).rename(shared / name)
        change_published(shared, name)
        change_metadata(shared / name / "data", dataset_id=name)
    elsewhere()
    step_index_dataset("other/b-v2")
    with pytest.warns(UserWarning, match="We recommend|combined from") as told:
        download_dataset("example/a-v0")
    left_out = "because it would replace other/b-v2 as the version loaded by default"
    named = [str(w.message).split()[4].rstrip(":") for w in told if left_out in str(w.message)]
    assert sorted(named) == ["other/b", "other/b-v02", "other/b-v9"]
    assert list(list_local_datasets(prefix="other/")) == ["other/b-v1", "other/b-v2", "other/c-v9"]


@pytest.mark.parametrize("parents", [["../../evil-v0"], ["/etc/x-v0"], [3], "text", [None], {}])
def test_parents_that_are_no_ids_are_told_and_stop_nothing(parents, shared, elsewhere) -> None:
    published(ID)
    change_published(shared, ID, combined_datasets=parents)
    elsewhere()
    with warnings.catch_warnings(action="ignore"):
        download_dataset(ID)
    assert load_dataset(ID).total_episodes == 3


# namespaces


def test_a_namespace_goes_and_comes_with_its_metadata_and_parents(shared, elsewhere) -> None:
    create_namespace("D4RL", description="Data for deep RL", author="A")
    create_namespace("D4RL/door", description="Doors")
    upload_namespace("D4RL/door")
    assert list_remote_namespaces() == ["D4RL", "D4RL/door"]
    assert list_remote_datasets() == {}
    elsewhere()
    with warnings.catch_warnings(action="error"):
        download_namespace_metadata("D4RL")
        download_namespace_metadata("D4RL/door")
    assert get_namespace_metadata("D4RL") == {"author": "A", "description": "Data for deep RL"}
    assert get_namespace_metadata("D4RL/door") == {"description": "Doors"}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[1]", "{", "\0"], ids=["deep", "list", "cut", "NUL"]
)
def test_damaged_metadata_of_a_namespace_are_published_as_empty(text: str, shared: Path) -> None:
    step_index_dataset("D4RL/door-v0")
    (get_dataset_path() / "D4RL/namespace_metadata.json").write_text(text)
    upload_dataset("D4RL/door-v0")
    assert json.loads((shared / "D4RL/namespace_metadata.json").read_text()) == {}


def test_metadata_of_a_namespace_are_overwritten_on_request_only(shared) -> None:
    create_namespace("D4RL", description="theirs")
    upload_namespace("D4RL")
    update_namespace_metadata("D4RL", description="mine")
    with pytest.warns(UserWarning, match="Skipping update for namespace 'D4RL' due to existing"):
        download_namespace_metadata("D4RL")
    assert get_namespace_metadata("D4RL") == {"description": "mine"}
    download_namespace_metadata("D4RL", overwrite=True)
    assert get_namespace_metadata("D4RL") == {"description": "theirs"}
    with pytest.warns(UserWarning, match="Upload aborted. Namespace 'D4RL' is already in remote"):
        upload_namespace("D4RL")


def test_a_namespace_that_is_not_there_is_told_in_minari_s_words(shared) -> None:
    with pytest.raises(ValueError, match="The namespace 'other' doesn't exist in file://"):
        download_namespace_metadata("other")
    with pytest.raises(ValueError, match="Namespace '?other'? does not exist locally"):
        upload_namespace("other")
    for function in (download_namespace_metadata, upload_namespace):
        with pytest.raises(ValueError, match="Malformed namespace"):
            function("../other")
    assert list_local_namespaces() == []


def test_a_dataset_brings_its_namespaces_and_leaves_those_that_are_here(shared, elsewhere) -> None:
    create_namespace("D4RL", description="theirs")
    create_namespace("D4RL/door", description="Doors")
    published("D4RL/door/human-v0")
    elsewhere()
    create_namespace("D4RL", description="mine")
    download_dataset("D4RL/door/human-v0")
    assert get_namespace_metadata("D4RL") == {"description": "mine"}
    assert get_namespace_metadata("D4RL/door") == {"description": "Doors"}
    delete_dataset("D4RL/door/human-v0")
    delete_namespace("D4RL/door")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"\xff", b"[" * 100_000, b"NaN"], ids=lambda content: repr(content[:5])
)
def test_a_namespace_with_broken_metadata_stops_no_dataset(content, shared, elsewhere) -> None:
    published("D4RL/door/human-v0")
    (shared / "D4RL/namespace_metadata.json").write_bytes(content)
    elsewhere()
    download_dataset("D4RL/door/human-v0")
    assert load_dataset("D4RL/door/human-v0").total_episodes == 3
    with pytest.raises(MinariPipeError):
        download_namespace_metadata("D4RL", overwrite=True)


# offline


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_offline_only_a_directory_is_asked(value, shared, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_PIPE_OFFLINE", value)
    published(ID)
    assert load_dataset(ID, download=True).id == ID
    monkeypatch.setenv("MINARI_REMOTE", "hf://org")
    words = "hf://org is not contacted because MINARI_PIPE_OFFLINE is set; unset it to go online"
    assert load_dataset(ID, download=True).id == ID
    for ask in (
        lambda: load_dataset("example/other-v0", download=True),
        lambda: download_dataset("example/other-v0"),
        lambda: download_dataset("hf://org/example/other-v0"),
        list_remote_datasets,
        list_remote_namespaces,
        lambda: upload_dataset(ID),
        lambda: get_cloud_storage("hf://org").list_datasets(),
    ):
        with pytest.raises(RemoteError, match=words):
            ask()


@pytest.mark.parametrize("value", ["", "0", "false", " no "])
def test_a_process_is_not_offline_by_a_no(value, shared, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_PIPE_OFFLINE", value)
    monkeypatch.setenv("MINARI_REMOTE", "s3://")
    with pytest.raises(ConfigError, match="not the address of a bucket"):
        list_remote_datasets()


@pytest.mark.parametrize("name", [ID, "steps-v1"])
def test_an_upload_to_an_address_that_has_the_id_already_is_refused(name, shared) -> None:
    step_index_dataset(name)
    with pytest.raises(ConfigError, match=f"the address of the remote, {shared}$"):
        publish_dataset(name, f"{shared}/{name}")
    assert not list(shared.iterdir())


@pytest.mark.parametrize("call", [partial(publish_dataset, ID), list_remote_datasets])
def test_an_empty_address_is_not_that_of_the_usual_remote(call) -> None:
    step_index_dataset(ID)
    with pytest.raises(ConfigError, match="does not name a directory"):
        call("")
    assert list_remote_datasets() == {}


# downloads that were killed


def test_of_a_swap_that_was_killed_the_old_dataset_is_not_taken_for_a_download(
    shared, monkeypatch
) -> None:
    published(ID)
    change_published(shared, ID)  # without sha256s to verify by
    download_dataset(ID)
    good = tree(data_path_of(ID))
    path = data_path_of(ID) / "main_data.hdf5"
    path.write_bytes(bytes(len(good["main_data.hdf5"])))

    def killed(new, target):
        new.rename(new.with_name("new"))
        target.rename(new)
        new.with_name("new").rename(target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.remotes.transfer.download.swap_in", killed)
        with pytest.raises(KeyboardInterrupt):
            download_dataset(ID, force_download=True)
    download_dataset(ID, force_download=True)
    assert tree(data_path_of(ID)) == good


def test_bytes_that_nothing_verifies_are_not_taken_from_a_download_that_was_cut_off(
    shared, monkeypatch
) -> None:
    """Who gave the user the root may have made them."""
    published(ID)
    change_published(shared, ID)
    good = tree(shared / ID / "data")

    def cut(*_):
        raise RemoteError("cut")

    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.remotes.transfer.download._piece", cut)
        with pytest.raises(RemoteError, match="cut"):
            download_dataset(ID)
    (stage,) = get_dataset_path().glob(".download-*")
    planted = stage / "dataset" / "data" / "main_data.hdf5"
    planted.write_bytes(bytes(len(good["main_data.hdf5"])))
    download_dataset(ID)
    assert tree(data_path_of(ID))["main_data.hdf5"] == good["main_data.hdf5"]


def test_a_download_that_goes_on_waits_for_the_next_run_as_long_again(shared) -> None:
    published(ID)
    data = shared / ID / "data" / "main_data.hdf5"
    data.rename(data.with_name("away"))
    with pytest.raises(RemoteError):
        download_dataset(ID)
    (stage,) = get_dataset_path().glob(".download-*")
    os.utime(stage, (0, time.time() - 6 * 86_400))
    with pytest.raises(RemoteError):
        download_dataset(ID)
    assert time.time() - stage.stat().st_mtime < 3600


def test_a_dataset_of_the_oldest_layout_is_replaced_by_force(shared) -> None:
    published(ID)
    flat = get_dataset_path(ID).with_name("steps-v1.hdf5")
    flat.write_bytes(b"old")
    download_dataset(ID, force_download=True)
    assert load_dataset(ID).total_episodes == 3
    assert not flat.exists()


# what is at the place of a dataset and is none


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["namespace", "folder", "file", "broken link"])
def test_what_is_no_dataset_is_not_replaced_by_one(kind, force, shared) -> None:
    published("team-v1")
    place = get_dataset_path("team-v1")
    if kind == "namespace":
        step_index_dataset("team-v1/mine-v0")
    elif kind == "folder":
        place.mkdir()
        (place / "notes.txt").write_text("mine")
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to("nowhere")
    before = tree(get_dataset_path())
    said = "already exists and is not a dataset|is a symlink to nowhere"
    with pytest.raises((DatasetExistsError, LinkError), match=said):
        download_dataset("team-v1", force_download=force)
    assert tree(get_dataset_path()) == before
    assert os.path.lexists(place)
    assert not list(get_dataset_path().glob(".download-*"))


def test_a_dataset_that_holds_another_is_not_replaced(shared) -> None:
    published(ID)
    download_dataset(ID)
    step_index_dataset("other-v0")
    get_dataset_path("other-v0").rename(get_dataset_path(ID) / "inner-v0")
    (get_dataset_path(ID) / "namespace_metadata.json").write_text("{}")
    before = tree(get_dataset_path())
    with pytest.raises(DatasetExistsError, match=f"holds the dataset '{ID}/inner-v0'"):
        download_dataset(ID, force_download=True)
    assert tree(get_dataset_path()) == before
    assert not list(get_dataset_path().glob(".download-*"))


@pytest.mark.parametrize("wrong", [None, 5, [], b"aa/b-v0"], ids=repr)
def test_what_is_no_text_is_not_downloaded(wrong, shared) -> None:
    with pytest.raises(TypeError, match="expected a dataset id or an address as a string, got"):
        download_dataset(wrong)


def test_an_empty_folder_gives_way_to_a_dataset(shared) -> None:
    published(ID)
    get_dataset_path(ID).mkdir()
    download_dataset(ID)
    assert load_dataset(ID).total_episodes == 3


def test_in_a_dataset_no_other_is_downloaded(shared) -> None:
    published("team-v1/mine-v0")
    delete_namespace("team-v1")
    step_index_dataset("team-v1")
    with pytest.raises(DatasetExistsError, match="cannot be a namespace"):
        download_dataset("team-v1/mine-v0")
    assert {path.name for path in get_dataset_path().iterdir()} == {"team-v1"}


def test_a_dataset_that_is_made_during_a_download_stays(shared, monkeypatch) -> None:
    published(ID)

    def meanwhile(remote, dataset_id):
        step_index_dataset(ID, lengths=(7,))

    monkeypatch.setattr("minari_pipe.remotes.transfer.download._fetch_namespaces", meanwhile)
    with pytest.warns(UserWarning, match="appeared in the local root .* and is kept"):
        download_dataset(ID)
    assert load_dataset(ID).total_steps == 7
    assert {path.name for path in get_dataset_path().iterdir()} == {"example"}


def test_no_dataset_is_downloaded_through_a_link(shared) -> None:
    published(ID)
    download_dataset(ID)
    place, other = get_dataset_path(ID), get_dataset_path() / "elsewhere"
    place.rename(other)
    place.symlink_to(other)
    mine = tree(other)
    for force in (False, True):
        with pytest.raises(LinkError, match=f"^{place} is a symlink to"):
            download_dataset(ID, force_download=force)
    assert tree(other) == mine
    assert not list(get_dataset_path().glob(".download-*"))


# what others have published


def test_other_files_beside_published_data_are_left_where_they_are(shared) -> None:
    published(ID)
    change_published(shared, ID)
    (shared / ID / "manifest.json").unlink()
    for name in ("README.md", "docs/door.gif", ".gitattributes", "data/.DS_Store", ".cache/x/y"):
        (shared / ID / name).parent.mkdir(parents=True, exist_ok=True)
        (shared / ID / name).write_bytes(b"x")
    download_dataset(ID)
    place = get_dataset_path(ID)
    assert set(tree(place)) == {"data/main_data.hdf5", "data/metadata.json"}
    assert load_dataset(ID).total_episodes == 3


# a directory that is a local root too


def test_a_published_directory_is_a_local_root_of_this_library(shared, monkeypatch) -> None:
    published(ID)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared))
    assert list(list_local_datasets()) == [ID]
    assert load_dataset(ID, verify=True).total_episodes == 3


def test_a_download_from_another_local_root_keeps_the_manifest_if_it_is_true(
    monkeypatch,
) -> None:
    step_index_dataset(ID)
    monkeypatch.setenv("MINARI_REMOTE", str(get_dataset_path()))
    place = get_dataset_path(ID)
    manifest = (place / "manifest.json").read_bytes()
    download_dataset(ID, force_download=True)  # from itself
    assert (place / "manifest.json").read_bytes() == manifest
    (place / "data" / "metadata.json").write_bytes(
        (place / "data" / "metadata.json").read_bytes() + b"\n"
    )
    download_dataset(ID, force_download=True)
    assert not (place / "manifest.json").exists()
    assert load_dataset(ID).total_episodes == 3


def test_a_published_directory_is_a_local_root_of_real_minari(tmp_path) -> None:
    published(ID)
    with RealMinari({}, tmp_path) as peer:
        (tmp_path / "datasets").rmdir()
        (tmp_path / "shared").rename(peer.datasets)
        found = peer.load_dataset(ID)
    assert (found["id"], found["total_episodes"], found["total_steps"]) == (ID, 3, 9)


def test_a_dataset_of_such_a_root_is_published_and_changed_like_any_other(
    shared, tmp_path, monkeypatch
) -> None:
    published(ID)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared))
    second = str(tmp_path / "second")
    assert publish_dataset(ID, second).outcome == "uploaded"
    assert (tmp_path / "second" / ID / "manifest.json").read_bytes() == (
        shared / ID / "manifest.json"
    ).read_bytes()
    dataset = load_dataset(ID)
    assert "manifest_sha256" not in dataset.storage.metadata
    dataset.storage.update_metadata({"author": {"Ada"}})
    assert load_dataset(ID, verify=True).storage.metadata["author"] == {"Ada"}
    assert list(list_remote_datasets()) == [ID]
    assert publish_dataset(ID, second).outcome == "present"


def test_what_is_read_is_what_is_published_where_a_change_was_broken_off(shared, elsewhere) -> None:
    data = step_index_dataset(ID).storage.data_path
    rewards = load_dataset(ID, verify=True)[0].rewards.tolist()
    (data / ".minari_pipe-commit").mkdir()
    shutil.copy(data / "main_data.hdf5", data / ".minari_pipe-commit")
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        file["episode_0/rewards"][0] = -666
    assert load_dataset(ID, verify=True)[0].rewards.tolist() == rewards
    upload_dataset(ID)
    elsewhere()
    download_dataset(ID)
    assert load_dataset(ID, verify=True)[0].rewards.tolist() == rewards


def test_published_metadata_that_were_changed_are_found(shared, monkeypatch) -> None:
    published(ID)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared))
    path = data_path_of(ID) / "metadata.json"
    path.write_bytes(path.read_bytes().replace(b"0.5.4", b"0.5.3"))
    with pytest.raises(CorruptDatasetError, match="data/metadata.json"):
        load_dataset(ID, verify=True)


@pytest.mark.parametrize("change", ["", "other metadata"])
@pytest.mark.parametrize("damage", ["missing", "different"])
def test_a_published_dataset_that_lost_a_file_is_not_told_as_present(
    damage, change, shared
) -> None:
    published(ID)
    download_dataset(ID)
    if change:
        load_dataset(ID).storage.update_metadata({"description": change})
    damaged = shared / ID / "data" / "main_data.hdf5"
    damaged.unlink() if damage == "missing" else damaged.write_bytes(b"bytes")
    told = f"{ID} in .* is damaged: data/main_data.hdf5 is {damage}; remove the dataset there"
    with pytest.raises(CorruptDatasetError, match=told):
        publish_dataset(ID, f"file://{shared}")


def test_a_local_root_of_others_is_a_remote(tmp_path, elsewhere) -> None:
    step_index_dataset(ID)
    mine = tree(data_path_of(ID))
    other = get_dataset_path()
    elsewhere()
    download_dataset(f"file://{other}/{ID}")
    assert tree(data_path_of(ID)) == mine


@pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None)")
@pytest.mark.parametrize("data_format", get_storage_keys())
def test_an_open_dataset_never_gives_episodes_of_what_a_download_put_in_its_place(
    data_format: str, shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also if the next folder has the number of the one that was opened."""
    for which, length in ((1, 3), (2, 5)):
        monkeypatch.setenv("MINARI_REMOTE", str(tmp_path / f"remote-{which}"))
        (tmp_path / f"remote-{which}").mkdir()
        steps = step_index_dataset("example/any-v0", lengths=(length,) * 4)
        create_dataset_from_buffers(
            ID,
            list(steps.storage.get_buffers()),
            observation_space=steps.observation_space,
            action_space=steps.action_space,
            data_format=data_format,
        )
        delete_dataset("example/any-v0")
        upload_dataset(ID)
        delete_dataset(ID)
    download_dataset(ID)  # the second
    dataset = load_dataset(ID)
    episodes = iter(dataset)
    assert len(next(episodes)) == 5
    dataset.storage.update_metadata({"description": "changed in place, which is no other version"})
    assert len(dataset[1]) == 5
    for which in (1, 2, 1, 2):
        monkeypatch.setenv("MINARI_REMOTE", str(tmp_path / f"remote-{which}"))
        download_dataset(ID, force_download=True)
        if data_format != "hdf5":  # of which the iteration has a map
            with pytest.raises(DatasetNotFoundError, match="was replaced since"):
                next(iter(dataset))
        for read in (
            lambda: dataset[0],
            lambda: dataset.storage.total_episodes,
            lambda: list(dataset.storage.get_episode_metadata([0])),
            lambda: list(pickle.loads(pickle.dumps(dataset))),
            lambda: dataset.storage.update_metadata({"description": "of another version"}),
        ):
            with pytest.raises(DatasetNotFoundError, match="was replaced since"):
                read()
    with contextlib.suppress(DatasetNotFoundError):
        assert [len(episode) for episode in episodes] == [5, 5, 5]
    assert [len(episode) for episode in load_dataset(ID)] == [5] * 4


BAD_VALUES = {
    "num_episodes_average_score": ["x", float("inf")],
    "ref_min_score": [{}, 10**400],
    "env_spec": [3, "{"],
    "eval_env_spec": [[]],
    "total_episodes": ["x"],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in BAD_VALUES.items() for value in values],
    ids=lambda part: str(part)[:30],
)
def test_metadata_of_another_type_are_refused_by_name(key, value, shared) -> None:
    data = step_index_dataset(ID).storage.data_path
    metadata = json.loads((data / "metadata.json").read_text())
    (data / "metadata.json").write_text(json.dumps(metadata | {key: value}))
    (data.parent / "manifest.json").unlink()
    with pytest.raises((InvalidMetadataError, CorruptDatasetError), match=key):
        upload_dataset(ID)
