"""Namespaces are real Minari's, and creating one cannot break the root or leave it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import minari.namespace
import pytest

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.datasets import namespaces
from minari_pipe.datasets.library import new_dataset
from minari_pipe.datasets.namespaces import (
    create_namespace,
    delete_namespace,
    get_namespace_metadata,
    list_local_namespaces,
    update_namespace_metadata,
)
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidMetadataError,
)

METADATA = [
    ({}, {}),
    ({"description": "what it is"}, {"description": "what it is"}),
    ({"key": [1]}, {"key": [1]}),
    ({"description": "é", "key": None}, {"description": "é", "key": None}),
]


@pytest.fixture
def root() -> Path:
    return get_dataset_path()


def content(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def dataset(dataset_id: str) -> None:
    with new_dataset(dataset_id) as path:
        (path / "metadata.json").write_text("{}")


@pytest.mark.parametrize("name", ["aa", "example_-123", "aa/b", "D4RL/door/human"])
@pytest.mark.parametrize(("told", "stored"), METADATA)
def test_what_is_created_is_what_the_peer_reads(name: str, told, stored, root: Path) -> None:
    create_namespace(name, **told)
    assert get_namespace_metadata(name) == minari.namespace.get_namespace_metadata(name) == stored
    parents = list(namespaces.namespace_hierarchy(name))
    assert list_local_namespaces() == minari.namespace.list_local_namespaces() == parents
    for parent in parents[:-1]:
        assert get_namespace_metadata(parent) == {}
    assert [n for n in content(root) if "json" in n] == sorted(
        f"{parent}/namespace_metadata.json" for parent in parents
    )


@pytest.mark.parametrize(("told", "stored"), METADATA)
def test_what_the_peer_creates_is_read(told, stored) -> None:
    minari.namespace.create_namespace("aa/bb", **told)
    assert list_local_namespaces() == ["aa", "aa/bb"]
    assert get_namespace_metadata("aa/bb") == stored


def test_parents_keep_their_metadata() -> None:
    create_namespace("aa", "mine")
    create_namespace("aa/bb", "yours")
    assert get_namespace_metadata("aa") == {"description": "mine"}


def test_a_folder_of_an_older_release_becomes_a_namespace(root: Path) -> None:
    (root / "aa" / "bb").mkdir(parents=True)
    assert list_local_namespaces() == []
    create_namespace("aa/bb", "now it is")
    assert list_local_namespaces() == ["aa", "aa/bb"]


def test_updating_replaces_all_metadata_as_the_peer_does(root: Path) -> None:
    create_namespace("aa", "old", key=1)
    for told in ({"description": "new"}, {"other": [2]}):
        update_namespace_metadata("aa", **told)
        ours = get_namespace_metadata("aa")
        minari.namespace.update_namespace_metadata("aa", **told)
        assert get_namespace_metadata("aa") == ours
    assert content(root) == ["aa", "aa/namespace_metadata.json"]


def test_an_existing_namespace_is_not_created_again() -> None:
    create_namespace("aa", "mine")
    with pytest.raises(DatasetExistsError, match=r"^Namespace 'aa' already exists\.$"):
        create_namespace("aa", "yours")
    assert get_namespace_metadata("aa") == {"description": "mine"}


@pytest.mark.parametrize("function", [get_namespace_metadata, update_namespace_metadata])
def test_a_missing_namespace_is_named_with_the_nearest(function) -> None:
    create_namespace("D4RL/door")
    with pytest.raises(DatasetNotFoundError, match=r"^Namespace D4RL/dor does not exist locally"):
        function("D4RL/dor")
    with pytest.raises(ValueError, match="Did you mean 'D4RL/door'"):
        function("D4RL/dor")
    with pytest.warns(UserWarning, match=r"^Namespace 'D4RL/dor' does not exist\.$") as caught:
        delete_namespace("D4RL/dor")
    assert caught[0].filename == __file__


def test_only_empty_namespaces_are_deleted(root: Path) -> None:
    dataset("aa/bb/c-v0")
    create_namespace("aa/dd")
    for name in ("aa/bb", "aa"):
        before = content(root)
        with pytest.raises(DatasetExistsError, match=r"aa.* is not empty\. All datasets must be"):
            delete_namespace(name)
        assert content(root) == before
    delete_namespace("aa/dd")
    assert list_local_namespaces() == ["aa", "aa/bb"]
    assert not (root / "aa" / "dd").exists()


BAD_FORMS = ["", "/", "./", "../", "..", ".", "/ns", "ns/", "a//b", "ns/../cc", ".hidden", "aa/.b"]
BAD_FORMS += ["a b", "ns\n", "ns\0", "$(rm)", "aa\\bb", 5, b"ns"]


@pytest.mark.parametrize("name", BAD_FORMS)
@pytest.mark.parametrize(
    "function",
    [create_namespace, update_namespace_metadata, get_namespace_metadata, delete_namespace],
)
def test_malformed_namespaces_are_refused(function, name, root: Path) -> None:
    with pytest.raises(InvalidDatasetIdError, match="Malformed namespace"):
        function(name)
    assert content(root) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("i", "Malformed namespace: i"),
        ("i/door", "Malformed namespace: i"),
        ("data", "has a part named 'data'"),
        ("aa/data/bb", "has a part named 'data'"),
        ("a" * 256, "256 bytes long"),
        ("aa/" + "é" * 128, "256 bytes long"),
        ("/".join(["a" * 250] * 20), "too long for a file system"),
    ],
)
def test_what_would_break_the_root_is_not_created(name: str, message: str, root: Path) -> None:
    with pytest.raises(InvalidDatasetIdError, match=message):
        create_namespace(name)
    assert content(root) == []


def test_one_character_namespaces_of_others_can_be_read_and_removed(root: Path) -> None:
    minari.namespace.create_namespace("i/jj")
    assert list_local_namespaces() == ["i", "i/jj"]
    with pytest.raises(ValueError, match="Malformed namespace"):
        minari.namespace.get_namespace_metadata("i")
    assert get_namespace_metadata("i") == {}
    update_namespace_metadata("i", "mine")
    assert get_namespace_metadata("i") == {"description": "mine"}
    delete_namespace("i/jj")
    delete_namespace("i")
    assert content(root) == []


def test_datasets_and_namespaces_do_not_mix(root: Path) -> None:
    dataset("aa/bb-v0")
    (root / "old.hdf5").write_bytes(b"")
    before = content(root)
    for name in ("aa/bb-v0", "aa/bb-v0/cc", "old"):
        with pytest.raises(DatasetExistsError, match=f"'{name}' cannot be a namespace: .* already"):
            create_namespace(name)
    (root / "aa" / "bb-v0" / "namespace_metadata.json").write_text("{}")
    assert list_local_namespaces() == ["aa"]
    with pytest.raises(DatasetNotFoundError):
        get_namespace_metadata("aa/bb-v0")
    with pytest.warns(UserWarning, match="does not exist"):
        delete_namespace("aa/bb-v0")
    (root / "aa" / "bb-v0" / "namespace_metadata.json").unlink()
    assert content(root) == before


def test_a_file_in_the_way_is_named(root: Path) -> None:
    (root / "aa").write_text("")
    with pytest.raises(DatasetExistsError, match="aa already exists and is not a folder"):
        create_namespace("aa/bb")


def test_hidden_folders_and_odd_names_are_not_listed(root: Path) -> None:
    for name in (".hidden", "aa/.hidden", "odd name"):
        (root / name).mkdir(parents=True)
        (root / name / "namespace_metadata.json").write_text("{}")
    (root / "namespace_metadata.json").write_text("{}")
    assert list_local_namespaces() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "\xff", "[" * 100_000])
def test_damaged_metadata_is_named(text: str, root: Path) -> None:
    create_namespace("aa")
    (root / "aa/namespace_metadata.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptDatasetError, match=r"aa/namespace_metadata\.json "):
        get_namespace_metadata("aa")
    assert list_local_namespaces() == ["aa"]
    update_namespace_metadata("aa", "mended")
    assert get_namespace_metadata("aa") == {"description": "mended"}


@pytest.mark.parametrize("function", [create_namespace, update_namespace_metadata])
def test_metadata_without_a_form_in_json_changes_nothing(function, root: Path) -> None:
    if function is update_namespace_metadata:
        create_namespace("aa", "mine")
    before = content(root)
    with pytest.raises(InvalidMetadataError, match="cannot be written as JSON"):
        function("aa", key={1, 2})
    assert content(root) == before


def test_links_that_lead_out_of_the_root_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "aa").symlink_to(tmp_path)
    for function in (create_namespace, get_namespace_metadata, delete_namespace):
        with pytest.raises(CorruptDatasetError, match="leads out of the datasets root"):
            function("aa")
    with pytest.raises(CorruptDatasetError):
        create_namespace("aa/bb")
    assert list_local_namespaces() == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_what_was_there(monkeypatch, root: Path) -> None:
    create_namespace("aa", "mine")
    before = content(root)

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(os, "link", fail)
    for function, name in ((update_namespace_metadata, "aa"), (create_namespace, "aa/bb/cc")):
        with pytest.raises(OSError, match="No space left"):
            function(name, "yours")
        assert content(root) == before
    assert json.loads((root / "aa/namespace_metadata.json").read_text()) == {"description": "mine"}


def test_what_a_killed_process_was_writing_is_in_nobody_s_way(monkeypatch, root: Path) -> None:
    create_namespace("aa", "mine")
    before = content(root)

    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_args: 1 / 0)
        killed.setattr(Path, "unlink", lambda *_args, **_kwargs: None)
        with pytest.raises(ZeroDivisionError):
            update_namespace_metadata("aa", "yours")
    (left,) = set(content(root)) - set(before)
    for _ in range(2):
        update_namespace_metadata("aa", "again")
        assert content(root) == before
        (root / left).write_text("{")
    delete_namespace("aa")
    assert content(root) == []


def test_the_metadata_of_another_process_is_not_overwritten(monkeypatch, root: Path) -> None:
    def meanwhile(path) -> bool:
        if str(path).endswith("namespace_metadata.json") and not Path(path).exists():
            Path(path).write_text('{"description": "theirs"}')
            return False
        return Path(path).exists()

    monkeypatch.setattr(namespaces.os.path, "lexists", meanwhile)
    dataset("aa/bb-v0")
    assert "theirs" in (root / "aa/namespace_metadata.json").read_text()


def test_metadata_too_large_to_read_is_named_and_deleted(root: Path) -> None:
    create_namespace("aa")
    os.truncate(root / "aa/namespace_metadata.json", 2**24 + 1)
    words = r"aa/namespace_metadata\.json has 16777217 bytes; expected 16777216 at most"
    for read in (get_namespace_metadata, namespaces.namespace_metadata_bytes):
        with pytest.raises(CorruptDatasetError, match=words):
            read("aa")
    delete_namespace("aa")
    assert list_local_namespaces() == []


def test_metadata_too_large_to_read_is_not_written(root: Path) -> None:
    create_namespace("aa")
    for write in (lambda text: create_namespace("bb", text), update):
        with pytest.raises(InvalidMetadataError, match="have 16777235 bytes; expected 16777216"):
            write("x" * 2**24)
    assert (content(root), get_namespace_metadata("aa")) == (
        ["aa", "aa/namespace_metadata.json"],
        {},
    )


def update(text: str) -> None:
    update_namespace_metadata("aa", text)
