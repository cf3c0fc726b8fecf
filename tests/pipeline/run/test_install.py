"""Installing into the Minari root: idempotent, and never over what is not this pipeline's draft."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minari_pipe import load_dataset
from minari_pipe.core.files import manifest
from minari_pipe.core.files.swap import swap_in
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.identity import manifest as published_as
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    LinkError,
    MinariPipeError,
)
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.run.driver import _asks_to_replace, check_owner
from minari_pipe.pipeline.run.install import MARKER, check_before, install, settle
from tests.support.repositories import hashes

ID = "tests/group/small-v0"


@pytest.fixture
def root(tmp_path) -> Path:
    """A workspace that has published :data:`ID`."""
    publish(tmp_path / "work", "first")
    return tmp_path / "work"


@pytest.fixture
def target(own_home) -> Path:
    return own_home / "datasets" / ID


def publish(root: Path, content: str, dataset_id: str = ID) -> None:
    """What ``publish`` wrote when manifests had format 1, with text for data."""
    folder = root / "datasets" / dataset_id
    (folder / "data").mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("data/main_data.hdf5", "data/metadata.json"):
        data = f"{name} {content}".encode()
        (folder / name).write_bytes(data)
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    digest = hashlib.sha256(content.encode()).hexdigest()
    text = {"content_sha256": digest, "total_episodes": 1, "total_steps": 2, "files": files}
    (folder / "manifest.json").write_text(json.dumps(text))


def release(root: Path, dataset_id: str = ID) -> None:
    """What ``minari-pipe release`` records."""
    record = root / "releases" / f"{dataset_id}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads((root / "datasets" / dataset_id / "manifest.json").read_text())
    record.write_text(json.dumps({"manifest": content}))


def installed(target: Path) -> dict[str, str]:
    return {k: v for k, v in hashes(target).items() if k != MARKER}


def test_a_dataset_is_installed_with_its_namespaces_and_a_marker(root, target):
    assert install("small", ID, root, replace=False) == f"installed in {target}"
    assert installed(target) == hashes(root / "datasets" / ID)
    assert json.loads((target / MARKER).read_text())["pipeline"] == "small"
    for folder in (target.parent, target.parent.parent):
        assert json.loads((folder / "namespace_metadata.json").read_text()) == {}
    assert sorted(p.name for p in (target.parents[2]).iterdir()) == ["tests"]


def test_installing_again_touches_nothing_and_hashes_only_what_was_touched(
    root, target, monkeypatch
):
    hashed = []
    differs = manifest.content_differs

    def counted(path, entry, below):
        hashed.append(path.name)
        return differs(path, entry, below)

    monkeypatch.setattr(manifest, "content_differs", counted)
    (target.parent.parent).mkdir(parents=True)
    (target.parent.parent / "namespace_metadata.json").write_text('{"description": "kept"}')
    install("small", ID, root, replace=False)
    before = {p: p.stat().st_mtime_ns for p in target.rglob("*")}
    hashed.clear()
    install("small", ID, root, replace=False)
    assert hashed == []
    os.utime(target / "data" / "main_data.hdf5", ns=(0, 0))
    install("small", ID, root, replace=False)
    assert hashed == ["main_data.hdf5"]
    install("small", ID, root, replace=False)
    assert hashed == ["main_data.hdf5"]
    after = {p: p.stat().st_mtime_ns for p in target.rglob("*")}
    assert {p for p in before if before[p] != after[p]} == {target / "data" / "main_data.hdf5"}
    assert "kept" in (target.parent.parent / "namespace_metadata.json").read_text()


def test_a_draft_follows_its_pipeline(root, target):
    install("small", ID, root, replace=False)
    publish(root, "second")
    install("small", ID, root, replace=False)
    assert installed(target) == hashes(root / "datasets" / ID)
    assert (target / MARKER).is_file()


def test_what_was_removed_is_installed_again(root, target):
    install("small", ID, root, replace=False)
    shutil.rmtree(target)
    install("small", ID, root, replace=False)
    (target / "manifest.json").unlink()
    with pytest.raises(DatasetExistsError):
        install("small", ID, root, replace=False)


def foreign(target: Path, root: Path) -> None:
    (target / "data").mkdir(parents=True)
    (target / "data" / "main_data.hdf5").write_text("downloaded")


def foreign_with_marker(target: Path, root: Path) -> None:
    foreign(target, root)
    (target / MARKER).write_text(json.dumps({"pipeline": "small", "workspace": "another"}))


def changed_in_place(target: Path, root: Path) -> None:
    install("small", ID, root, replace=False)
    with (target / "data" / "main_data.hdf5").open("a") as file:
        file.write("an episode that the user appended")


def changed_with_the_library(target: Path, root: Path) -> None:
    """Which keeps the manifest in step with the files."""
    install("small", ID, root, replace=False)
    content = json.loads((target / "manifest.json").read_text())
    del content["content_sha256"]
    data = b"other"
    (target / "data" / "metadata.json").write_bytes(data)
    content["files"]["data/metadata.json"] = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
    }
    (target / "manifest.json").write_text(json.dumps(content))


def changed_behind_the_back(target: Path, root: Path) -> None:
    """Same size, and the old time of modification."""
    install("small", ID, root, replace=False)
    file = target / "data" / "main_data.hdf5"
    old = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))


def added_to(target: Path, root: Path) -> None:
    install("small", ID, root, replace=False)
    (target / "data" / "notes.txt").write_text("mine")


def of_another_pipeline(target: Path, root: Path) -> None:
    install("other", ID, root, replace=False)


def of_another_workspace(target: Path, root: Path) -> None:
    publish(root.parent / "elsewhere", "elsewhere")
    install("small", ID, root.parent / "elsewhere", replace=False)


def released(target: Path, root: Path) -> None:
    release(root)
    install("small", ID, root, replace=False)
    (root / "releases" / f"{ID}.json").unlink()


OWNED = [
    foreign,
    foreign_with_marker,
    changed_in_place,
    changed_with_the_library,
    changed_behind_the_back,
    added_to,
    of_another_pipeline,
    of_another_workspace,
    released,
]


@pytest.mark.parametrize("own", OWNED, ids=lambda f: f.__name__)
def test_what_is_not_this_pipelines_draft_stays_unless_told(own, root, target):
    own(target, root)
    publish(root, "second")
    before = hashes(target)
    with pytest.raises(DatasetExistsError, match="publish.replace=true"):
        install("small", ID, root, replace=False)
    assert hashes(target) == before
    install("small", ID, root, replace=True)
    assert installed(target) == hashes(root / "datasets" / ID)


@pytest.fixture
def meanwhile(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen once the copy is made, before it takes its place."""

    def happens(act: Callable[[], object]) -> None:
        def then_act(*args: Any) -> list[str]:
            found = changed_files(*args)
            if args[0].name.endswith(".installing"):
                act()
            return found

        changed_files = manifest.changed_files
        monkeypatch.setattr("minari_pipe.pipeline.run.install.changed_files", then_act)

    return happens


def test_a_dataset_that_the_user_makes_meanwhile_stays(root, target, meanwhile):
    meanwhile(lambda: step_index_dataset(ID))
    with pytest.raises(DatasetExistsError, match="holds another dataset"):
        install("small", ID, root, replace=False)
    assert load_dataset(ID).total_episodes == 3
    assert [p.name for p in target.parents[2].iterdir()] == ["tests"]


def test_a_draft_that_is_changed_meanwhile_stays(root, target, meanwhile):
    install("small", ID, root, replace=False)
    publish(root, "second")
    meanwhile(lambda: (target / "data" / "metadata.json").write_text("of the user"))
    with pytest.raises(DatasetExistsError, match="publish.replace=true"):
        install("small", ID, root, replace=False)
    assert (target / "data" / "metadata.json").read_text() == "of the user"


def test_an_append_that_waits_for_the_new_draft_loses_no_episode(root, target, monkeypatch):
    def published(*lengths: int) -> None:
        shutil.rmtree(root / "datasets" / ID, ignore_errors=True)
        step_index_dataset(ID, lengths=lengths)
        source = shutil.move(target, root / "datasets" / ID)
        (source / "manifest.json").write_text(json.dumps(published_as(source, 64 * "0")))

    published(2, 3)
    install("small", ID, root, replace=False)
    dataset, buffers = load_dataset(ID), list(load_dataset(ID).storage.get_buffers([0]))
    shutil.move(target, target.with_name("aside"))
    published(2, 3, 4)
    shutil.move(target.with_name("aside"), target)
    said: list[MinariPipeError] = []

    def append() -> None:
        try:
            dataset.update_dataset_from_buffer(buffers)
        except MinariPipeError as error:
            said.append(error)

    def swap_while_it_waits(new: Path, place: Path) -> None:
        appending.start()
        appending.join(0.5)
        assert appending.is_alive()
        swap_in(new, place)

    appending = threading.Thread(target=append)
    monkeypatch.setattr("minari_pipe.pipeline.run.install.swap_in", swap_while_it_waits)
    install("small", ID, root, replace=False)
    appending.join()
    assert "was replaced since it was opened" in str(said)
    assert load_dataset(ID).total_episodes == 3


def test_equal_content_of_somebody_else_is_no_conflict_and_stays_theirs(root, target):
    of_another_pipeline(target, root)
    install("small", ID, root, replace=False)
    assert json.loads((target / MARKER).read_text())["pipeline"] == "other"


def test_a_release_carries_no_marker(root, target):
    install("small", ID, root, replace=False)
    release(root)
    settle(ID, root)
    assert not (target / MARKER).exists()
    install("small", ID, root, replace=False)
    assert installed(target) == hashes(target)
    (target / MARKER).touch()  # as a run that was killed between the record and this leaves it
    install("small", ID, root, replace=False)
    assert not (target / MARKER).exists()


def test_what_a_killed_run_left_is_removed(root, target):
    install("small", ID, root, replace=False)
    minari_root = target.parents[2]
    workspace = (root / ".minari_pipe" / "workspace_id").read_text().strip()
    (minari_root / f".{workspace}.small.installing" / "data").mkdir(parents=True)
    publish(root, "second")
    install("small", ID, root, replace=False)
    assert [p.name for p in minari_root.iterdir()] == ["tests"]


def a_link(target: Path) -> None:
    elsewhere = target.parents[3] / "elsewhere"
    elsewhere.mkdir()
    target.parent.mkdir(parents=True)
    target.symlink_to(elsewhere)


def a_link_to_nowhere(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.symlink_to("nowhere")


def a_linked_namespace(target: Path) -> None:
    elsewhere = target.parents[3] / "elsewhere"
    elsewhere.mkdir()
    target.parents[1].mkdir(parents=True)
    target.parent.symlink_to(elsewhere)


def a_link_that_a_swap_left(target: Path) -> None:
    elsewhere = target.parents[3] / "elsewhere" / "data"
    elsewhere.mkdir(parents=True)
    target.parent.mkdir(parents=True)
    target.with_name(f".{target.name}.old").symlink_to(elsewhere.parent)


def a_namespace(target: Path) -> None:
    (target / "more-v0" / "data").mkdir(parents=True)


def inside_a_dataset(target: Path) -> None:
    (target.parent / "data").mkdir(parents=True)


PLACES = {
    a_link: "is a symlink to",
    a_link_to_nowhere: "is a symlink to",
    a_linked_namespace: "is a symlink to",
    a_link_that_a_swap_left: "is a symlink to",
    a_namespace: "holds other folders \\(more-v0\\)",
    inside_a_dataset: "would lie inside the dataset 'tests/group'",
}


@pytest.mark.parametrize(("place", "message"), PLACES.items(), ids=[f.__name__ for f in PLACES])
def test_a_place_that_is_not_a_datasets_own_is_never_replaced(place, message, root, target):
    place(target)
    before = sorted(target.parents[2].rglob("*"))
    with pytest.raises((DatasetExistsError, LinkError), match=message):
        install("small", ID, root, replace=True)
    assert sorted(target.parents[2].rglob("*")) == before


def test_a_damaged_publication_is_not_installed(root, target):
    (root / "datasets" / ID / "data" / "main_data.hdf5").write_text("damaged")
    with pytest.raises(CorruptDatasetError, match=r"was changed .* \(data/main_data.hdf5\)"):
        install("small", ID, root, replace=False)
    assert not target.exists()
    assert not [p for p in target.parents[2].iterdir() if p.name.startswith(".")]
    (root / "datasets" / ID / "manifest.json").write_text("")
    with pytest.raises(CorruptDatasetError, match="has no manifest"):
        install("small", ID, root, replace=False)


def test_nothing_but_the_published_files_is_installed(root, target):
    """A lock file may name anything as the output of publish; DVC would act on some of it."""
    folder = root / "datasets" / ID
    for extra in ("dvc.yaml", "x.dvc", "other-v0/data/metadata.json", "policies/other-v0/data/x"):
        (folder / extra).parent.mkdir(parents=True, exist_ok=True)
        (folder / extra).write_text("theirs")
    install("mine", ID, root, replace=False)
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {"data/main_data.hdf5", "data/metadata.json", "manifest.json", MARKER}


@pytest.mark.parametrize("name", ["data/dvc.yaml", "policies/x.dvc", "card/dvc.lock"])
def test_a_manifest_that_lists_a_file_that_dvc_acts_on_is_refused(name, root, target):
    folder = root / "datasets" / ID
    content = json.loads((folder / "manifest.json").read_text())
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"stages:")
    digest = hashlib.sha256(b"stages:").hexdigest()
    content["files"][name] = {"sha256": digest, "size": len(b"stages:")}
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(CorruptDatasetError, match=name):
        install("mine", ID, root, replace=False)
    assert not target.exists()


def test_the_workspace_may_be_the_minari_root_itself(root, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root / "datasets"))
    before = hashes(root)
    assert "the workspace's own folder" in install("small", ID, root, replace=False)
    assert hashes(root) == before


@pytest.mark.parametrize("dataset_id", ["cart/random-v0", "cart"])
@pytest.mark.parametrize("inner", ["", "cart"])
def test_no_dataset_of_the_users_is_replaced_where_the_minari_root_is_in_the_workspace(
    dataset_id, inner, root, monkeypatch
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root / "datasets" / inner))
    mine = step_index_dataset("random-v0" if inner else "cart/random-v0")
    before = hashes(root)
    config = schema.Config(dataset=schema.Dataset(id=dataset_id))
    with pytest.raises(DatasetExistsError, match="holds another dataset|it is a namespace"):
        check_before("small", config, root, replace=False)
    assert hashes(root) == before
    assert mine.total_episodes


REPORTED = {
    "the command line": (True, ["+dataset=x", "publish.replace=true"], True),
    "the whole section": (True, ["publish={replace: true}"], True),
    "it with a plus": (True, ["++publish.replace=true"], True),
    "the section without it, which the config says": (True, ["publish={targets: [a]}"], False),
    "what another key of the config says": (True, ["publish.replace='${dataset.x}'"], False),
    "it taken away": (True, ["~publish.replace"], False),
    "a group of that name": (True, ["+publish=theirs"], False),
    "the config alone": (True, ["+dataset=x", "collect.seed=1"], False),
    "the command line, which says no": (False, ["publish.replace=false"], False),
}


@pytest.mark.parametrize(("value", "overrides", "expected"), REPORTED.values(), ids=REPORTED)
def test_only_the_command_line_can_tell_to_replace(value, overrides, expected):
    config = schema.Config(publish=schema.Publish(replace=value))
    assert _asks_to_replace(config, overrides) is expected


OWNERS = {
    "another pipeline's": ("tests/taken-v0", "belongs to pipeline 'other'; choose another id"),
    "published by another earlier": ("tests/old-v0", "published by pipeline 'other'; .* or remove"),
    "around a published one": (
        "tests/group",
        "'tests/group' conflicts with the published 'tests/group/...'",
    ),
    "inside a published one": ("tests/old-v0/x-v0", "the published 'tests/old-v0': one would lie"),
    "beside a damaged entry": ("tests/broken-v0", "broken-v0.json is damaged: .*; restore it from"),
}


@pytest.mark.parametrize(("dataset_id", "message"), OWNERS.values(), ids=OWNERS)
def test_an_id_has_one_owner_in_a_workspace(dataset_id, message, tmp_path):
    params = tmp_path / "pipelines" / "other" / "params.yaml"
    params.parent.mkdir(parents=True)
    params.write_text("dataset:\n  id: tests/taken-v0\noverrides: []\npackages: {}\n")
    for published in ("tests/old-v0", "tests/group/inner-v0", "tests/mine-v0"):
        entry = tmp_path / "catalog" / f"{published}.json"
        entry.parent.mkdir(parents=True, exist_ok=True)
        owner = "mine" if published == "tests/mine-v0" else "other"
        entry.write_text(json.dumps({"pipeline": owner}))
    (tmp_path / "catalog" / "tests" / "broken-v0.json").write_text("<<<<<<< HEAD")
    with pytest.raises(ConfigError, match=message):
        check_owner("mine", dataset_id, tmp_path)
    for free in ("tests/mine-v0", "tests/free-v0", "tests/group/next-v0"):
        check_owner("mine", free, tmp_path)
