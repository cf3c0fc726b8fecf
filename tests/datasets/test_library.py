"""The root is listed, loaded from and cleaned as real Minari's, and nothing leads out of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gymnasium as gym
import minari
import minari.namespace
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import minari_pipe
from minari_pipe.core.dataset_id import dataset_id_sort_key
from minari_pipe.core.datasets_root import data_path_of
from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.manifest import file_faults
from minari_pipe.datasets import library
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.library import (
    delete_dataset,
    get_dataset_path,
    latest_version_of,
    list_local_datasets,
    new_dataset,
)
from minari_pipe.datasets.namespaces import (
    create_namespace,
    delete_namespace,
    get_namespace_metadata,
    list_local_namespaces,
    update_namespace_metadata,
)
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidMetadataError,
    LinkError,
    MinariPipeError,
    TrustError,
)
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage import MinariStorage, formats
from minari_pipe.storage.hdf5.storage import HDF5Storage

INDEX = spaces.Discrete(100)


@pytest.fixture
def root() -> Path:
    return get_dataset_path()


def install(dataset_id: str, **metadata) -> None:
    with new_dataset(dataset_id) as path:
        storage = MinariStorage.new(path, INDEX, INDEX)
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": "0.5.4", **metadata})
        storage.update_episodes(
            [
                EpisodeBuffer(
                    observations=[0, 1],
                    actions=[0],
                    rewards=[0.0],
                    terminations=[True],
                    truncations=[False],
                )
            ]
        )


@pytest.mark.parametrize("spelled", ["{root}", "../{name}", "{root}/../{name}"])
@pytest.mark.parametrize("place", ["their/other-v0", "their/other", "x", "their/v0", "their/o-v"])
def test_the_id_is_that_of_the_place_whatever_the_metadata_claim(
    place, spelled, root, monkeypatch
) -> None:
    """Else ``delete_dataset(dataset.id)`` would delete another dataset, one of the user's."""
    install("mine/own-v0")
    install("their/first-v0")
    (root / place).parent.mkdir(exist_ok=True)
    (root / "their" / "first-v0").rename(root / place)
    file = root / place / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps(metadata | {"dataset_id": "mine/own-v0"}))
    monkeypatch.chdir(root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", spelled.format(root=root, name=root.name))
    for dataset in (load_dataset(place), load_dataset(place).filter_episodes(bool)):
        assert (dataset.id, dataset.spec.dataset_id) == (place, place)
    (root.parent / "alias").symlink_to(root)
    for top in (root, Path("."), Path("..", root.name), root / ".." / root.name, Path("../alias")):
        assert minari_pipe.MinariDataset(top / place / "data").id == place
    shutil.copytree(root / place / "data", root.parent / "elsewhere")
    assert minari_pipe.MinariDataset(root.parent / "elsewhere").id == "mine/own-v0"


def content(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_the_root_is_the_variable_or_below_the_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "here"))
    assert get_dataset_path() == tmp_path / "here"
    assert get_dataset_path("aa/b-v0") == tmp_path / "here" / "aa" / "b-v0"
    assert (tmp_path / "here").is_dir()
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_dataset_path() == tmp_path / ".minari" / "datasets"


@pytest.mark.parametrize("dataset_id", ["../x", "/etc", "a/../../x", "aa//b", "x/", ".x", "a b"])
@pytest.mark.parametrize("function", [get_dataset_path, load_dataset, delete_dataset])
def test_ids_that_would_lead_out_of_the_root_are_refused(function, dataset_id, root) -> None:
    with pytest.raises(InvalidDatasetIdError):
        function(dataset_id)
    with pytest.raises(InvalidDatasetIdError), new_dataset(dataset_id):
        pass
    assert content(root) == []


def test_links_that_lead_out_of_the_root_are_refused(root: Path, tmp_path: Path) -> None:
    install("aa/b-v0")
    shutil.move(root / "aa", tmp_path / "outside")
    (root / "aa").symlink_to(tmp_path / "outside")
    (root / "bb").symlink_to(tmp_path / "outside" / "b-v0")
    for function in (load_dataset, delete_dataset):
        with pytest.raises(CorruptDatasetError, match="leads out of the datasets root"):
            function("aa/b-v0")
    with pytest.raises(CorruptDatasetError), new_dataset("aa/c-v0"):
        pass
    with pytest.warns(UserWarning, match="Misconfigured dataset named bb: .* leads out"):
        assert list_local_datasets() == {}
    assert (tmp_path / "outside" / "b-v0" / "data" / "metadata.json").exists()


def test_a_link_inside_the_root_is_not_followed(root: Path) -> None:
    install("aa/b-v0")
    (root / "c-v0").symlink_to(root / "aa" / "b-v0")
    (root / "bb").symlink_to("aa")
    for dataset_id, link in (("c-v0", root / "c-v0"), ("bb/b-v0", root / "bb")):
        for function in (load_dataset, get_dataset_path, delete_dataset):
            with pytest.raises(LinkError, match=f"^{link} is a symlink to"):
                function(dataset_id)
    assert load_dataset("aa/b-v0").total_episodes == 1


def test_installing_makes_every_namespace_as_real_minari_does(root: Path) -> None:
    install("aa/bb/cc/d-v0")
    assert content(root) == [
        "aa",
        "aa/bb",
        "aa/bb/cc",
        "aa/bb/cc/d-v0",
        "aa/bb/cc/d-v0/data",
        "aa/bb/cc/d-v0/data/main_data.hdf5",
        "aa/bb/cc/d-v0/data/metadata.json",
        "aa/bb/cc/d-v0/manifest.json",
        "aa/bb/cc/namespace_metadata.json",
        "aa/bb/namespace_metadata.json",
        "aa/namespace_metadata.json",
    ]
    assert json.loads((root / "aa/bb/namespace_metadata.json").read_text()) == {}
    assert minari.namespace.list_local_namespaces() == ["aa", "aa/bb", "aa/bb/cc"]
    assert list(minari.list_local_datasets()) == ["aa/bb/cc/d-v0"]
    assert minari.load_dataset("aa/bb/cc/d-v0").total_episodes == 1


def test_namespace_metadata_is_not_overwritten(root: Path) -> None:
    (root / "aa").mkdir()
    (root / "aa" / "namespace_metadata.json").write_text('{"description": "mine"}')
    install("aa/b-v0")
    assert "mine" in (root / "aa" / "namespace_metadata.json").read_text()


def test_a_failed_creation_leaves_nothing_and_the_id_free(root: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_dataset("aa/bb/c-v0") as path:
        (path / "file").write_text(str(1 / 0))
    assert content(root) == []
    install("aa/bb/c-v0")
    before = content(root)
    with pytest.raises(DatasetExistsError, match="ID aa/bb/c-v0 already exists and it cannot be"):
        install("aa/bb/c-v0")
    with pytest.raises(DatasetExistsError, match="already exists as the dataset 'aa/bb/c-v0'"):
        install("aa/bb/c-v0/d-v0")
    with pytest.raises(InvalidDatasetIdError, match="has a part named 'data'"):
        install("aa/data/d-v0")
    assert content(root) == before


def test_a_creation_is_not_seen_before_it_is_whole(root: Path) -> None:
    with new_dataset("aa/b-v0") as path:
        MinariStorage.new(path, INDEX, INDEX)
        assert list_local_datasets() == {}
        assert minari.list_local_datasets() == {}


def test_listing_is_real_minari_s(root: Path) -> None:
    for dataset_id in ("b-v0", "aa/x-v10", "aa/x-v9", "aa/bb/x-v0", "aa/y-v0"):
        install(dataset_id)
    assert list(list_local_datasets()) == ["b-v0", "aa/x-v9", "aa/x-v10", "aa/y-v0", "aa/bb/x-v0"]
    assert list_local_datasets() == minari.list_local_datasets()
    latest = list_local_datasets(latest_version=True)
    assert latest == minari.list_local_datasets(latest_version=True)
    assert "aa/x-v9" not in latest
    assert list(list_local_datasets(prefix="aa/x")) == ["aa/x-v9", "aa/x-v10"]
    assert list_local_datasets(prefix="aa/bb") == minari.list_local_datasets(prefix="aa/bb")
    assert list_local_datasets(prefix="zz") == {}


def install_without_version(dataset_id: str) -> None:
    """What older releases made, and what real Minari makes but cannot parse."""
    install(f"{dataset_id}-v0")
    path = get_dataset_path(f"{dataset_id}-v0").rename(get_dataset_path(dataset_id))
    text = (path / "data/metadata.json").read_text()
    (path / "data/metadata.json").write_text(text.replace(f"{dataset_id}-v0", dataset_id))


def test_versions_are_optional_in_what_is_read(root: Path) -> None:
    install_without_version("aa/x")
    assert load_dataset("aa/x").spec.version is None
    with pytest.raises(TypeError):
        minari.list_local_datasets()  # the peer's listing of the whole root ends here
    install("aa/x-v0")
    assert list(list_local_datasets()) == ["aa/x", "aa/x-v0"]
    assert list(list_local_datasets(latest_version=True)) == ["aa/x-v0"]
    assert load_dataset("aa/x").id == "aa/x"


def test_without_a_version_the_latest_is_meant(root: Path) -> None:
    for dataset_id in ("aa/x-v9", "aa/x-v10", "aa/xx-v12", "x-v3"):
        install(dataset_id)
    (root / "aa" / "x-v99").mkdir()  # holds no data
    assert load_dataset("aa/x").id == latest_version_of("aa/x") == "aa/x-v10"
    assert load_dataset("aa/x-v9").id == "aa/x-v9"
    assert load_dataset("x").id == "x-v3"
    for name in ("aa", "y", "aa/y", "bb/x", "aa/x-v8"):
        with pytest.raises(DatasetNotFoundError, match=f"no dataset '{name}'"):
            load_dataset(name)
    with pytest.raises(DatasetNotFoundError):
        delete_dataset("aa/x")
    with pytest.raises((FileNotFoundError, TypeError)):
        minari.load_dataset("aa/x")


def test_only_compatible_datasets_on_request(root: Path) -> None:
    install("a-v0")
    install("b-v0", minari_version="0.9.0")
    assert list(list_local_datasets()) == ["a-v0", "b-v0"]
    assert list(list_local_datasets(compatible_minari_version=True)) == ["a-v0"]


def test_what_is_no_dataset_is_left_out_with_a_warning(root: Path) -> None:
    install("a-v0")
    for name, text in {
        "i/foo-v0": "{}",
        "bad name": "{}",
        "broken-v0": "{",
        "moved-v0": '{"dataset_id": "other-v0", "total_episodes": 0, "total_steps": 0}',
    }.items():
        (root / name / "data").mkdir(parents=True)
        (root / name / "data" / "metadata.json").write_text(text)
    (root / "empty-v0" / "data").mkdir(parents=True)
    (root / "just_a_folder").mkdir()
    (root / ".hidden" / "data").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"^Misconfigured dataset named") as caught:
        assert list(list_local_datasets()) == ["a-v0"]
    named = {str(warning.message).split(": ")[0].split("named ")[1] for warning in caught}
    assert named == {"i/foo-v0", "bad name", "broken-v0", "moved-v0", "empty-v0"}


def test_a_warning_about_a_folder_holds_nothing_that_a_terminal_would_obey(root: Path) -> None:
    (root / "a\x1b]0;title\x07\n-v0" / "data").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"^Misconfigured dataset named a\\x1b") as caught:
        assert list(list_local_datasets()) == []
    assert all(str(warning.message).isprintable() for warning in caught)


def test_a_missing_dataset_is_named_with_the_nearest(root: Path) -> None:
    install("D4RL/door/human-v2")
    message = (
        f"no dataset 'D4RL/door/humn-v2' in {root}. Did you mean 'D4RL/door/human-v2'? "
        "To fetch it: load_dataset(..., download=True), or minari-pipe download ID"
    )
    for function in (load_dataset, delete_dataset):
        with pytest.raises(DatasetNotFoundError) as caught:
            function("D4RL/door/humn-v2")
        assert str(caught.value) == message
    with pytest.raises(FileNotFoundError, match=r"zz-v0' in .*sets\. To fetch"):
        load_dataset("zz-v0")


def test_deleting_removes_the_dataset_only(root: Path) -> None:
    install("aa/b-v0")
    install("aa/c-v0")
    delete_dataset("aa/b-v0")
    assert list(list_local_datasets()) == ["aa/c-v0"]
    assert "aa/b-v0" not in content(root)
    with pytest.raises(DatasetNotFoundError):
        delete_dataset("aa")
    install("aa/b-v0")


@pytest.mark.parametrize("inner", ["inner-v0", "policies/inner-v0", "a/b/inner-v0", "data/b-v0"])
def test_no_dataset_is_deleted_with_the_one_whose_folder_it_is_in(root: Path, inner) -> None:
    install("aa/b-v0")
    install("aa/c-v0")
    (root / "aa/b-v0" / inner).parent.mkdir(parents=True, exist_ok=True)
    (root / "aa/c-v0").rename(root / "aa/b-v0" / inner)
    before = content(root)
    with pytest.raises(DatasetExistsError, match=rf"holds the dataset 'aa/b-v0/{inner}'.* first"):
        delete_dataset("aa/b-v0")
    assert content(root) == before
    delete_dataset(f"aa/b-v0/{inner}")
    delete_dataset("aa/b-v0")
    assert list(list_local_datasets()) == []


def test_a_killed_creation_and_a_killed_removal_leave_nothing_for_long(root: Path) -> None:
    for name in ("aa/b-v0", "aa/c-v0"):
        install(name)

    def die(*_args) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def creation() -> None:
        with new_dataset("aa/d-v0"):
            die()

    def removal() -> None:
        shutil.rmtree = die
        delete_dataset("aa/b-v0")

    for killed in (removal, creation):
        with warnings.catch_warnings(action="ignore"):  # other tests may have left threads
            child = os.fork()
        if not child:
            killed()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert len([name for name in os.listdir(root) if name.startswith(".")]) == 1
    assert list(list_local_datasets()) == ["aa/c-v0"]
    delete_dataset("aa/c-v0")
    assert content(root) == ["aa", "aa/namespace_metadata.json"]
    delete_namespace("aa")


def test_files_have_the_user_s_permissions(root: Path) -> None:
    old = os.umask(0o027)
    try:
        install("aa/b-v0")
    finally:
        os.umask(old)
    modes = {path.stat().st_mode & 0o777 for path in (root / "aa").rglob("*") if path.is_file()}
    assert modes == {0o640}
    assert (root / "aa/b-v0/data").stat().st_mode & 0o777 == 0o750


def test_the_package_exports_what_it_lists_and_imports_little() -> None:
    import subprocess
    import sys

    for name in minari_pipe.__all__:
        assert getattr(minari_pipe, name) is not None
    assert set(minari_pipe.__all__) <= set(dir(minari_pipe))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = minari_pipe.nonsense
    code = (
        "import sys, minari_pipe; "
        "print({'numpy', 'h5py', 'gymnasium', 'torch', 'dvc'} & set(sys.modules))"
    )
    cwd = Path(minari_pipe.__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert out.stdout.strip() == "set()", out.stderr


def test_numbers_of_a_loaded_dataset(root: Path) -> None:
    install("aa/b-v0")
    dataset = load_dataset("aa/b-v0")
    assert dataset.id == "aa/b-v0"
    assert np.array_equal(dataset[0].observations, [0, 1])


@pytest.mark.parametrize(
    ("dataset_id", "message"),
    [
        ("aa/x", "'aa/x' has no version"),
        ("i/foo-v0", "Malformed dataset ID"),
        ("i/jj/foo-v0", "Malformed namespace: i"),
        ("foo\0-v0", "Malformed dataset ID"),
        ("data/foo-v0", "has a part named 'data'"),
        ("a" * 253 + "-v0", "256 bytes long"),
        ("é" * 127 + "/foo-v0", None),
        ("é" * 128 + "/foo-v0", "256 bytes long"),
        ("/".join(["a" * 250] * 20) + "/foo-v0", "too long for a file system"),
        ("x-v" + "9" * 5000, "5000 digits"),
    ],
)
def test_ids_that_would_harm_the_root_are_refused_before_anything_is_written(
    dataset_id: str, message: str | None, root: Path
) -> None:
    if message is None:
        install(dataset_id)
        assert load_dataset(dataset_id).id == dataset_id
        return
    with pytest.raises(InvalidDatasetIdError, match=message):
        install(dataset_id)
    assert content(root) == []


def test_the_peer_s_listing_dies_of_what_is_refused_here(root: Path) -> None:
    """P10: a dataset in a namespace of one character; the peer makes its folder and then fails."""
    (root / "i" / "foo-v0" / "data").mkdir(parents=True)
    install("a-v0")
    with pytest.raises(ValueError, match="Malformed dataset ID: i/foo-v0"):
        minari.list_local_datasets()
    with pytest.warns(UserWarning, match=r"^Misconfigured dataset named i/foo-v0"):
        assert list(list_local_datasets()) == ["a-v0"]


def test_a_prefix_is_text_as_with_remote_listings(root: Path) -> None:
    """P20: the peer's local prefix is a folder, its remote one is text."""
    for dataset_id in ("ns/za-v0", "ns/zb-v0", "ns/zz/c-v0", "nsx/a-v0"):
        install(dataset_id)
    assert minari.list_local_datasets(prefix="ns/z") == {}
    assert list(list_local_datasets(prefix="ns/z")) == ["ns/za-v0", "ns/zb-v0", "ns/zz/c-v0"]
    for folder in ("", "ns/zz", "ns/za-v0", "nsx"):
        assert list_local_datasets(prefix=folder) == minari.list_local_datasets(prefix=folder)
    assert set(minari.list_local_datasets(prefix="ns")) < set(list_local_datasets(prefix="ns"))
    assert list_local_datasets(prefix="../") == {}


@pytest.mark.parametrize(
    ("version", "compatible"),
    [("0.5.4", True), ("~=0.4", True), (None, True), (">=0.9", False), ("0.9.0", False)],
)
def test_a_version_may_be_a_specifier_or_missing(version, compatible: bool, root: Path) -> None:
    install("a-v0")
    path = root / "a-v0/data/metadata.json"
    metadata = json.loads(path.read_text()) | {"minari_version": version}
    path.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))
    assert list(list_local_datasets()) == ["a-v0"]
    assert list(list_local_datasets(compatible_minari_version=True)) == ["a-v0"] * compatible


def test_the_latest_is_the_latest_compatible_on_request() -> None:
    install("a-v0")
    install("a-v1", minari_version="0.9.0")
    assert list(list_local_datasets(latest_version=True)) == ["a-v1"]
    both = list_local_datasets(latest_version=True, compatible_minari_version=True)
    assert list(both) == ["a-v0"]


TOTALS = '"total_episodes": 0, "total_steps": 0}'


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        '{"dataset_id": "b',
        "no json",
        "[]",
        "5",
        "\xff",
        "[" * 100_000,
        '{"dataset_id": "b-v0"}',
        '{"dataset_id": "b-v0", "total_episodes": "1", "total_steps": 1}',
        '{"dataset_id": "b-v0", "total_episodes": 1, "total_steps": -1}',
        '{"dataset_id": 5, ' + TOTALS,
        '{"dataset_id": ["b-v0"], ' + TOTALS,
        '{"dataset_id": "b-v0", "minari_version": ["0.5.4"], ' + TOTALS,
        '{"dataset_id": "b-v0", "minari_version": 5, ' + TOTALS,
        '{"dataset_id": "b-v0", "data_format": {}, ' + TOTALS,
        '{"dataset_id": "b-v0", "observation_space": 5, ' + TOTALS,
        '{"dataset_id": "b-v0", "observation_space": "{", ' + TOTALS,
    ],
)
def test_a_broken_dataset_is_named_and_skipped(text: str | None, root: Path) -> None:
    install("a-v0")
    install("b-v0")
    path = root / "b-v0/data/metadata.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    for arguments in ({}, {"latest_version": True}, {"compatible_minari_version": True}):
        with pytest.warns(UserWarning, match=r"^Misconfigured dataset named b-v0: .") as caught:
            assert list(list_local_datasets(**arguments)) == ["a-v0"]
        assert len(caught) == 1
    with pytest.raises(MinariPipeError):
        load_dataset("b-v0")
    delete_dataset("b-v0")


def test_metadata_too_large_to_read_is_named_skipped_and_deleted(root: Path) -> None:
    install("a-v0")
    install("b-v0")
    os.truncate(root / "b-v0/data/metadata.json", 2**24 + 1)
    words = r"b-v0/data/metadata\.json has 16777217 bytes; expected 16777216 at most"
    with pytest.warns(UserWarning, match=rf"^Misconfigured dataset named b-v0: .*{words}"):
        assert list(list_local_datasets()) == ["a-v0"]
    for verify in (False, True):
        with pytest.raises(CorruptDatasetError, match=words):
            load_dataset("b-v0", verify=verify)
    delete_dataset("b-v0")
    assert list(list_local_datasets()) == ["a-v0"]


def test_a_manifest_too_large_to_read_is_named(root: Path) -> None:
    install("a-v0")
    os.truncate(root / "a-v0/manifest.json", 2**28 + 1)
    words = r"a-v0/manifest\.json has 268435457 bytes; expected 268435456 at most"
    with pytest.raises(CorruptDatasetError, match=words):
        load_dataset("a-v0", verify=True)
    assert load_dataset("a-v0").total_episodes == 1


def test_metadata_too_large_to_read_is_not_written(root: Path) -> None:
    install("a-v0")
    dataset = load_dataset("a-v0")
    with pytest.raises(InvalidMetadataError, match=r"the metadata have 1677\d+ bytes; expected"):
        dataset.storage.update_metadata({"description": "x" * 2**24})
    assert "description" not in load_dataset("a-v0", verify=True).storage.metadata
    with pytest.raises(InvalidMetadataError, match="the metadata have"):
        install("b-v0", description="x" * 2**24)
    assert list(list_local_datasets()) == ["a-v0"]


def test_data_that_is_no_folder_is_named(root: Path) -> None:
    install("a-v0")
    (root / "b-v0").mkdir()
    (root / "b-v0" / "data").write_text("")
    (root / "c-v0").mkdir()
    (root / "c-v0" / "data").symlink_to("nowhere")
    with pytest.warns(UserWarning, match="Misconfigured dataset named [bc]-v0") as caught:
        assert list(list_local_datasets()) == ["a-v0"]
    assert len(caught) == 2
    for dataset_id in ("b-v0", "c-v0"):
        with pytest.raises(MinariPipeError):
            load_dataset(dataset_id)
        delete_dataset(dataset_id)


def test_a_link_of_data_out_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    install("a-v0")
    shutil.move(root / "a-v0/data", tmp_path / "data")
    (root / "a-v0/data").symlink_to(tmp_path / "data")
    (root / "old.hdf5").symlink_to(tmp_path / "data" / "main_data.hdf5")
    for dataset_id in ("a-v0", "old"):
        with pytest.raises(CorruptDatasetError, match="leads out of the datasets root"):
            load_dataset(dataset_id)
    with pytest.warns(UserWarning, match="leads out"):
        assert list_local_datasets() == {}


class FlatStorage(HDF5Storage):
    """Stands for the storage of Minari 0.2: the data is a file, or a folder with that file."""

    @classmethod
    def recognises(cls, data_path: Path) -> bool:
        return data_path.suffix == ".hdf5" or (data_path / "main_data.hdf5").is_file()

    @classmethod
    def read_raw_metadata(cls, data_path) -> dict:
        name = Path(data_path).stem if Path(data_path).suffix else Path(data_path).parent.name
        return {"dataset_id": name, "total_episodes": 0, "total_steps": 0}

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules=()):
        storage = cls.__new__(cls)
        MinariStorage.__init__(storage, data_path, INDEX, INDEX)
        return storage


@pytest.fixture
def older(monkeypatch) -> None:
    monkeypatch.setattr(formats, "_OTHERS", (f"{__name__}:FlatStorage",))


@pytest.mark.usefixtures("older")
def test_older_generations_are_listed_loaded_and_deleted(root: Path) -> None:
    install("new-v0")
    (root / "door_v2_human.hdf5").write_bytes(b"0.2")
    (root / "door-human-v1" / "data").mkdir(parents=True)
    (root / "door-human-v1" / "data" / "main_data.hdf5").write_bytes(b"0.4")
    ids = ["door-human-v1", "door_v2_human", "new-v0"]
    assert list(list_local_datasets()) == sorted(ids, key=dataset_id_sort_key)
    assert list(list_local_datasets(compatible_minari_version=True, prefix="door")) == ids[:2]
    assert load_dataset("door_v2_human").id == "door_v2_human"
    assert load_dataset("door-human").id == "door-human-v1"
    assert data_path_of("door_v2_human") == root / "door_v2_human.hdf5"
    assert data_path_of("door-human-v1") == root / "door-human-v1" / "data"
    # Not by what lies in a folder of that name, which does not name it.
    with pytest.raises(CorruptDatasetError, match="human.hdf5 cannot be verified: .* 0.2"):
        load_dataset("door_v2_human", verify=True)
    with pytest.raises(DatasetExistsError):
        install("door_v2_human/x-v0")
    (root / "file-v0").mkdir()
    (root / "file-v0" / "data").write_bytes(b"0.2")
    (root / "file-v0" / "manifest.json").write_text('{"format": 2, "data": {}}')
    with pytest.raises(CorruptDatasetError, match="data cannot be verified: .* 0.2"):
        load_dataset("file-v0", verify=True)
    assert list(file_faults(root / "file-v0", {"format": 2, "data": {}})) == [
        ("data", "is not in the manifest")
    ]
    shutil.rmtree(root / "file-v0")
    delete_dataset("door_v2_human")
    delete_dataset("door-human-v1")
    assert [name for name in content(root) if "door" in name] == []


def test_a_flat_file_takes_an_id(root: Path) -> None:
    (root / "x-v0.hdf5").write_bytes(b"no dataset")
    with pytest.raises(DatasetExistsError, match="x-v0 already exists"):
        install("x-v0")
    with pytest.warns(UserWarning, match="Misconfigured dataset named x-v0: .* unknown layout"):
        assert list_local_datasets() == {}
    with pytest.raises(CorruptDatasetError, match=r"x-v0\.hdf5 is a file with an unknown"):
        load_dataset("x-v0")


def test_the_current_folder_can_be_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", ".")
    install("aa/b-v0")
    assert list(list_local_datasets()) == ["aa/b-v0"]
    assert (root / "aa/b-v0/data/metadata.json").is_file()
    delete_dataset("aa/b-v0")
    assert list_local_datasets() == {}


def published(root: Path) -> Path:
    install("aa/b-v0")
    return root / "aa/b-v0"


def test_verifying_compares_every_file(root: Path) -> None:
    folder = published(root)
    assert load_dataset("aa/b-v0", verify=True).total_episodes == 1
    assert load_dataset("aa/b", verify=True).total_episodes == 1
    data = bytearray((folder / "data/main_data.hdf5").read_bytes())
    data[-1] ^= 1
    (folder / "data/main_data.hdf5").write_bytes(data)
    (folder / "data/more.bin").write_bytes(b"")
    with pytest.raises(CorruptDatasetError) as caught:
        load_dataset("aa/b-v0", verify=True)
    message = str(caught.value)
    assert "main_data.hdf5 has different content (xxh3_128); data/more.bin is not in" in message
    assert "data/metadata.json" not in message
    (folder / "data/main_data.hdf5").write_bytes(data + b"1")
    (folder / "data/metadata.json").unlink()
    with pytest.raises(CorruptDatasetError) as caught:
        load_dataset("aa/b-v0", verify=True)
    assert f"has {len(data) + 1} bytes, not {len(data)}" in str(caught.value)
    assert "data/metadata.json is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "manifest.json does not exist"),
        ("", "is not a manifest"),
        ("[]", "is not a manifest"),
        ("{}", "is not a manifest"),
        ('{"files": 5}', "is damaged"),
        ('{"files": {"data/metadata.json": 5}}', "is damaged"),
        ('{"files": {"../../x": {"sha256": "0", "size": 1}}}', "is damaged"),
        ('{"files": {"data/../../x": {"sha256": "0", "size": 1}}}', "is damaged"),
        ('{"files": {}}', "data/main_data.hdf5 is not in the manifest"),
    ],
)
def test_a_missing_or_damaged_manifest_is_named(text, message: str, root: Path) -> None:
    folder = published(root)
    (folder / "manifest.json").unlink()
    if text is not None:
        (folder / "manifest.json").write_text(text)
    with pytest.raises(CorruptDatasetError, match=message):
        load_dataset("aa/b-v0", verify=True)
    assert load_dataset("aa/b-v0").total_episodes == 1


def test_code_that_a_dataset_names_is_run_only_if_trusted(root: Path, monkeypatch) -> None:
    install(
        "aa/b-v0", env_spec=spec_json(EnvSpec("Stranger-v0", entry_point=f"{__name__}:Stranger"))
    )
    path = root / "aa/b-v0/data/metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(TrustError):
        load_dataset("aa/b-v0")
    dataset = load_dataset("aa/b-v0", trusted_modules=[__name__])
    assert dataset.observation_space == INDEX
    with pytest.raises(TrustError):
        load_dataset("aa/b-v0")


class Stranger(gym.Env):
    observation_space = INDEX
    action_space = INDEX


def test_of_two_creators_of_one_id_one_wins(root: Path) -> None:
    with ExitStack() as stack:
        for name in ("first", "second"):
            path = stack.enter_context(new_dataset("aa/b-v0"))
            (path / "file").write_text(name)
        with pytest.raises(DatasetExistsError, match="aa/b-v0 already exists"):
            stack.close()
    assert (root / "aa/b-v0/data/file").read_text() == "second"
    assert [name for name in os.listdir(root) if name.startswith(".")] == []


def test_a_failed_creation_leaves_what_others_put_into_its_namespace(root, monkeypatch) -> None:
    def fail(stage: Path, *_args) -> None:
        (root / "aa/bb/theirs-v0/data").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        install("aa/bb/mine-v0")
    assert (root / "aa/bb/theirs-v0/data").is_dir()
    assert (root / "aa/bb/namespace_metadata.json").is_file()
    assert [name for name in os.listdir(root) if name.startswith(".")] == []


@contextmanager
def read_only(*folders: Path, mode: int = 0o555) -> Iterator[None]:
    """Make folders read-only; to the superuser, who may write anyway, too."""
    user = os.geteuid()
    for folder in folders:
        folder.chmod(mode)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)


@pytest.fixture
def open_root(monkeypatch) -> Iterator[Path]:
    """A root that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "root"))
    yield get_dataset_path()
    shutil.rmtree(folder)


def test_a_read_only_root_is_read(open_root: Path) -> None:
    folder = published(open_root)
    with read_only(open_root, open_root / "aa", folder, folder / "data"):
        assert get_dataset_path() == open_root
        assert list(list_local_datasets()) == ["aa/b-v0"]
        assert list_local_namespaces() == ["aa"]
        assert get_namespace_metadata("aa") == {}
        assert load_dataset("aa/b", verify=True)[0].observations.tolist() == [0, 1]
        before = content(open_root)
        for refused in (
            lambda: install("cc/d-v0"),
            lambda: install("aa/d-v0"),
            lambda: delete_dataset("aa/b-v0"),
            lambda: create_namespace("cc"),
            lambda: create_namespace("aa/cc"),
            lambda: update_namespace_metadata("aa", "new"),
            lambda: load_dataset("aa/b-v0").storage.update_metadata({"description": "new"}),
        ):
            with pytest.raises(ConfigError, match=r"cannot write to .*MINARI_DATASETS_PATH"):
                refused()
        assert content(open_root) == before


def test_folders_that_cannot_be_read_are_named(open_root: Path) -> None:
    install("a-v0")
    install("b-v0")
    install("cc/d-v0")
    with read_only(open_root / "b-v0", open_root / "cc", mode=0o000):
        with pytest.warns(UserWarning, match=r"dataset named (b-v0|cc): .*Permission") as caught:
            assert list(list_local_datasets()) == ["a-v0"]
        assert len(caught) == 2
        with pytest.raises(CorruptDatasetError, match="cannot be read: Permission denied"):
            load_dataset("b-v0")
    with (
        read_only(open_root, mode=0o000),
        pytest.raises(ConfigError, match=r"root .* cannot be read \(Permission denied\)"),
    ):
        list_local_datasets()


def test_a_root_that_is_a_file_or_cannot_be_made_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(place))
        for function in (list_local_datasets, list_local_namespaces, get_dataset_path):
            with pytest.raises(ConfigError, match=r"file.* cannot be created .*MINARI_DATASETS"):
                function()
        with pytest.raises(ConfigError):
            load_dataset("a-v0")
        with pytest.raises(ConfigError):
            install("a-v0")


def test_a_missing_root_is_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "deep" / "root"))
    assert list_local_datasets() == {}
    assert (tmp_path / "deep" / "root").is_dir()


def test_the_variable_of_the_oldest_releases_counts_if_no_other_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASET_LOCATION", str(tmp_path / "old"))
    assert get_dataset_path() != tmp_path / "old"
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    assert get_dataset_path() == tmp_path / "old"
    install("a-v0")
    assert (tmp_path / "old" / "a-v0" / "data").is_dir()


def test_of_many_creators_at_once_exactly_one_wins(root: Path) -> None:
    n_creators = 6
    barrier = threading.Barrier(n_creators)

    def create(number: int, dataset_id: str) -> str:
        try:
            with new_dataset(dataset_id) as path:
                (path / "file").write_text(str(number))
                barrier.wait(30)
        except DatasetExistsError as error:
            return "refused" if f"{dataset_id} already exists" in str(error) else str(error)
        return str(number)

    with ThreadPoolExecutor(n_creators) as pool:
        for round_ in range(20):
            dataset_id = f"ns{round_}/deep/x-v0"
            results = list(pool.map(create, range(n_creators), [dataset_id] * n_creators))
            (winner,) = set(results) - {"refused"}
            assert results.count(winner) == 1
            assert (root / dataset_id / "data" / "file").read_text() == winner
    assert len(list_local_namespaces()) == 40
    assert [name for name in os.listdir(root) if name.startswith(".")] == []


@pytest.mark.parametrize("episodes", [10**9, 10**30])
def test_more_episodes_than_the_files_can_hold_are_refused(root: Path, episodes: int) -> None:
    install("a-v0")
    path = root / "a-v0/data/metadata.json"
    totals = {"total_episodes": episodes, "total_steps": episodes}
    path.write_text(json.dumps(json.loads(path.read_text()) | totals))
    with pytest.raises(CorruptDatasetError, match=f"{episodes} episodes, more than"):
        load_dataset("a-v0")


@pytest.mark.parametrize("value", [5, True, [[]], [1], {"a": 1}])
@pytest.mark.parametrize("key", ["author", "author_email", "requirements"])
def test_names_of_another_type_are_refused_where_they_are_used(
    root: Path, key: str, value: object
) -> None:
    install("a-v0")
    path = root / "a-v0/data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    dataset = load_dataset("a-v0")
    with pytest.raises(CorruptDatasetError, match=f"metadata '{key}' must be a list"):
        dataset.recover_environment() if key == "requirements" else dataset.storage.metadata


def test_of_two_that_delete_a_dataset_at_once_one_finds_none(root: Path, monkeypatch) -> None:
    step_index_dataset("aa/x-v0")
    hidden_folder = library.hidden_folder

    @contextmanager
    def later(place: Path) -> Iterator[Path]:
        monkeypatch.setattr(library, "hidden_folder", hidden_folder)
        minari_pipe.delete_dataset("aa/x-v0")
        with hidden_folder(place) as folder:
            yield folder

    monkeypatch.setattr(library, "hidden_folder", later)
    with pytest.raises(DatasetNotFoundError, match="no dataset 'aa/x-v0'"):
        minari_pipe.delete_dataset("aa/x-v0")
