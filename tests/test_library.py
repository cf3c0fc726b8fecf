"""The root is listed, loaded from and cleaned as real Minari's, and nothing leads out of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import minari
import minari.namespace
import numpy as np
import pytest
from gymnasium import spaces

import minari_pipe
from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    RemoteError,
)
from minari_pipe.library import (
    delete_dataset,
    get_dataset_path,
    list_local_datasets,
    load_dataset,
    new_dataset,
)
from minari_pipe.storage import MinariStorage

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


def test_a_link_inside_the_root_is_followed_and_deleted_alone(root: Path) -> None:
    install("aa/b-v0")
    (root / "c-v0").symlink_to(root / "aa" / "b-v0")
    assert load_dataset("c-v0").id == "aa/b-v0"
    delete_dataset("c-v0")
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
    with pytest.raises(InvalidDatasetIdError, match="has the part 'data'"):
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


def test_versions_are_optional(root: Path) -> None:
    install("aa/x")
    install("aa/x-v0")
    assert list(list_local_datasets()) == ["aa/x", "aa/x-v0"]
    assert list(list_local_datasets(latest_version=True)) == ["aa/x-v0"]
    assert load_dataset("aa/x").spec.version is None


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


def test_a_missing_dataset_is_named_with_the_nearest(root: Path) -> None:
    install("D4RL/door/human-v2")
    message = (
        f"no dataset 'D4RL/door/humn-v2' in {root}. Did you mean 'D4RL/door/human-v2'? "
        "To fetch it: load_dataset(..., download=True)"
    )
    for function in (load_dataset, delete_dataset):
        with pytest.raises(DatasetNotFoundError) as caught:
            function("D4RL/door/humn-v2")
        assert str(caught.value) == message
    with pytest.raises(FileNotFoundError, match=r"zz-v0' in .*sets\. To fetch"):
        load_dataset("zz-v0")
    with pytest.raises(RemoteError):
        load_dataset("zz-v0", download=True)


def test_deleting_removes_the_dataset_only(root: Path) -> None:
    install("aa/b-v0")
    install("aa/c-v0")
    delete_dataset("aa/b-v0")
    assert list(list_local_datasets()) == ["aa/c-v0"]
    assert "aa/b-v0" not in content(root)
    with pytest.raises(DatasetNotFoundError):
        delete_dataset("aa")
    install("aa/b-v0")


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
    cwd = Path(__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert out.stdout.strip() == "set()", out.stderr


def test_numbers_of_a_loaded_dataset(root: Path) -> None:
    install("aa/b-v0")
    dataset = load_dataset("aa/b-v0")
    assert dataset.id == "aa/b-v0"
    assert np.array_equal(dataset[0].observations, [0, 1])
