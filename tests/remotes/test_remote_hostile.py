"""What is broken or hostile at a remote is named in one line; nothing is written beyond the root.

Disks that are full and places that are read-only are here too, on file systems of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from xxhash import xxh3_128_hexdigest

from minari_pipe.core.files import atomic
from minari_pipe.core.files.manifest import identity_of
from minari_pipe.core.files.names import check_name
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import CorruptDatasetError, DatasetExistsError, RemoteError
from minari_pipe.remotes import open_remote
from minari_pipe.remotes.base import METADATA
from minari_pipe.remotes.hosting import list_remote_namespaces, publish_dataset
from minari_pipe.remotes.transfer.published import naming, unnamed
from minari_pipe.testing.remotes import another_root, tree
from tests.conftest import FULL
from tests.support.covering import covering
from tests.support.remote_places import (
    ID,
    OTHER,
    Place,
    Servers,
    download,
    enter_hub,
    listed,
    new_place,
    tried,
    upload,
)
from tests.support.servers.hub import WRITER
from tests.support.servers.running import entered

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

DATA = "data/main_data.hdf5"


KINDS = ["directory", "moto", "gcs", "hub"]


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, servers: Servers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """An empty place, which clients of this process find."""
    enter_hub(monkeypatch)
    place = new_place(servers, request.param, root.parent / "remote")
    with entered(place.variables):
        yield place


@pytest.fixture
def directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as remote, with a dataset."""
    folder = root.parent / "remote"
    folder.mkdir()
    monkeypatch.setenv("MINARI_REMOTE", str(folder))
    assert upload(Place("directory", str(folder), {}, None)).error is None
    return folder


def put(place: Place, files: dict[str, bytes]) -> None:
    """Write files as anybody could who may, whatever they are called."""
    if place.kind == "hub":
        api = HfApi(place.variables["HF_ENDPOINT"], token=WRITER)
        repo = f"{place.address.removeprefix('hf://')}/example"
        api.create_repo(repo, repo_type="dataset", exist_ok=True)
        ids = [path.removesuffix(f"/{METADATA}") for path in files]
        index = json.dumps({"datasets": [OTHER, *ids]}).encode()
        additions = {
            path.removeprefix("example/"): content
            for path, content in files.items()
            if re.fullmatch(r"example/[-\w]+/data/metadata.json", path)
        }
        additions["namespace_metadata.json"] = index
        operations = [CommitOperationAdd(path, content) for path, content in additions.items()]
        api.create_commit(repo, operations, commit_message="by others", repo_type="dataset")
        return
    remote: Any = open_remote(place.address)
    for path, content in files.items():
        if place.kind == "directory":
            target = Path(f"{place.address}/{path}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        elif place.kind == "gcs":
            remote._put_small(path, content)
        else:
            with suppress(FileNotFoundError):  # moto finds no place for a key with a line end
                remote._files.pipe_file(remote._path(path), content)


# listings

GOOD = {
    "total_episodes": 3,
    "total_steps": 9,
    "data_format": "hdf5",
    "minari_version": "0.5.4",
    "observation_space": '{"type": "Discrete"}',
    "action_space": '{"type": "Discrete"}',
}
BROKEN: dict[str, Callable[[str], bytes]] = {
    "no-json": lambda name: b"{",
    "no-text": lambda name: b"\xff\xfe{}",
    "nothing": lambda name: b"",
    "a-list": lambda name: b"[]",
    "zeros": lambda name: bytes(100),
    "deep": lambda name: b"[" * 100_000,
    "deep-value": lambda name: b'{"dataset_id": ' + b'{"a":' * 50_000,
    "long-number": lambda name: b'{"total_steps": ' + b"9" * 10_000 + b"}",
    "no-id": lambda name: json.dumps(GOOD).encode(),
    "other-id": lambda name: json.dumps(GOOD | {"dataset_id": "example/other-v0"}).encode(),
    "hostile-id": lambda name: json.dumps(GOOD | {"dataset_id": "\x1b[2J\n" * 500}).encode(),
    "object-id": lambda name: json.dumps(GOOD | {"dataset_id": {"a": ["\n"] * 2000}}).encode(),
    "no-totals": lambda name: json.dumps({"dataset_id": name}).encode(),
    "wrong-types": lambda name: json.dumps(
        GOOD | {"dataset_id": name, "total_steps": "\n\x1b[31m" * 1000}
    ).encode(),
    "negative": lambda name: json.dumps(GOOD | {"dataset_id": name, "total_steps": -1}).encode(),
    "infinite": lambda name: json.dumps(
        GOOD | {"dataset_id": name, "total_steps": float("inf")}
    ).encode(),
    "huge": lambda name: b'{"a": "' + b" " * 1_100_000 + b'"}',
}


def test_a_listing_names_what_is_broken_and_skips_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(atomic.LARGEST, "metadata.json", 1_000_000)
    assert upload(place, OTHER).error is None
    names = list(BROKEN) if FULL else list(BROKEN)[KINDS.index(place.kind) :: len(KINDS)]
    ids = {f"example/{name}-v0": BROKEN[name] for name in names}
    put(place, {f"{name}/{METADATA}": content(name) for name, content in ids.items()})
    told = listed(place)
    assert told.error is None, told.error
    assert set(told.value) == {OTHER}
    for name in ids:
        line = next((line for line in told.warned if repr(name) in line), "")
        print(line)
        assert place.address in line
    for line in told.warned:
        assert line.isprintable() and len(line) < 900, line[:2000]
    for name in ids:
        assert name.removesuffix("-v0") in download(place, name).line
    told = download(place, OTHER)
    assert told.error is None, told.error


HOSTILE = [
    "../evil-v0",
    "example/../../evil-v0",
    "/evil-v0",
    "example//evil-v0",
    "example\\..\\evil-v0",
    "example/evil\x1b]0;owned\x07-v0",
    "example/evil\nline-v0",
    "example/evil\u202e-v0",
    "example/" + "e" * 200 + "-v0",
    "example/evil .. -v0",
    "~/evil-v0",
    "C:/evil-v0",
]


def test_hostile_names_in_a_listing_are_skipped(place: Place, tmp_path: Path) -> None:
    assert upload(place, OTHER).error is None
    names = HOSTILE
    if place.kind in ("directory", "gcs"):  # which cannot have such names
        names = [name for name in names if ".." not in name and "//" not in f"/{name}"]
    put(
        place,
        {f"{name}/{METADATA}": json.dumps(GOOD | {"dataset_id": name}).encode() for name in names},
    )
    told = listed(place)
    assert told.error is None, told.error
    assert OTHER in told.value
    assert set(told.value) <= {OTHER, "example/" + "e" * 200 + "-v0"}
    assert told.warned
    for line in told.warned:
        assert line.isprintable() and len(line) < 900, line
    tried(list_remote_namespaces, place.address)
    for name in names:
        before = everything(tmp_path)
        assert download(place, name).line
        assert everything(tmp_path) == before


def everything(folder: Path) -> set[str]:
    """All paths below a folder, but for unfinished downloads."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return {path for path in paths if path != "fresh" and "/.download-" not in path}


# manifests


def rewrite(
    folder: Path, change: Callable[[dict[str, Any]], Any], *, as_it_is: bool = False
) -> None:
    """Let a published dataset have another manifest, of format 1, which its metadata name."""
    place = folder / ID
    manifest = json.loads((place / "manifest.json").read_text())
    manifest = manifest if as_it_is else identity_of(manifest)
    changed = change(manifest)
    content = json.dumps(manifest if changed is None else changed).encode()
    (place / "manifest.json").write_bytes(content)
    metadata = unnamed((place / METADATA).read_bytes())
    (place / METADATA).write_bytes(naming(metadata, content))


def adding(name: str, content: bytes = b"evil") -> Callable[[dict[str, Any]], None]:
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = entry

    return change


def saying(**entry: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][DATA].update(entry)

    return change


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"a file {name!r}": adding(name)
        for name in (
            "../../evil",
            "/tmp/evil",
            "data/../../../evil",
            "data/./evil",
            "data//evil",
            "data\\..\\evil",
            "data/e\\..\\evil",
            "policies/\x1b]0;evil",
            "data/evil\nline",
            "data/\ud800",
            "data/\u202eevil",
            "data/.evil",
            "data/c:evil",
            "data/" + "e" * 300,
            "manifest.json",
            "namespace_metadata.json",
            "data",
            "",
            "data/main_data.hdf5/evil",
            "data/not-there",
        )
    },
    "a size that is too large": saying(size=10**7),
    "a size that is too small": saying(size=10),
    "a size of nothing": saying(size=0),
    "a negative size": saying(size=-1),
    "a size of true": saying(size=True),
    "a size that no disk has": saying(size=10**15),
    "a size that no file system has": saying(size=10**30),
    "another sha256": saying(sha256="0" * 64),
    "a hostile sha256": saying(sha256="\x1b[31m\n" * 50),
    "a list of files": lambda manifest: {"files": []},
    "no files": lambda manifest: {},
    "no object": lambda manifest: [],
    "no metadata": lambda manifest: manifest["files"].pop(METADATA) and None,
    "other metadata": lambda manifest: manifest["files"][METADATA].update(sha256="0" * 64),
    "metadata without sha256": lambda manifest: manifest["files"].update(
        {METADATA: {"size": 3, "sums": "x"}}
    ),
}


@pytest.mark.parametrize("folder", ["data/", "data/0/", "policies/"])
@pytest.mark.parametrize("name", ["DVC.yaml", "dvc.lock", "x.dvc", "x.DVC", "dvc.yaml."])
def test_a_dataset_holds_no_file_that_dvc_acts_on(folder: str, name: str) -> None:
    """In a workspace of the user's, `dvc repro` would run its commands."""
    with pytest.raises(CorruptDatasetError, match="which is not a valid path"):
        check_name(folder + name)
    assert check_name(f"{folder}{name}.txt") == f"{folder}{name}.txt"


@pytest.mark.parametrize("name", ["data/dvc.yaml", "data/other-v0/data/main_data.hdf5"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_what_no_download_would_take_is_not_published(
    name: str, has_manifest: bool, tmp_path: Path
) -> None:
    """A namespace may be called `data`: a dataset in it, which nobody named, would be published."""
    place = step_index_dataset("example/steps-v0").storage.data_path.parent
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("mine")
    if not has_manifest:
        (place / "manifest.json").unlink()
    with pytest.raises(CorruptDatasetError):
        publish_dataset("example/steps-v0", tmp_path / "remote")
    assert not (tmp_path / "remote" / "example" / "steps-v0").exists()


def naming_file(section: str, name: str, **entry: Any) -> Callable[[dict[str, Any]], None]:
    sha256, digest = hashlib.sha256(b"evil").hexdigest(), xxh3_128_hexdigest(b"evil")
    good = {"size": 4, "xxh3_128": digest, "sha256": sha256}

    def change(manifest: dict[str, Any]) -> None:
        found = manifest[section].get(name, good) | entry
        manifest[section][name] = {key: found[key] for key in found if found[key] is not None}

    return change


LIES_OF_FORMAT_2: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"a file {name!r} of {section}": naming_file(section, name)
        for section, name in (
            ("data", "../../evil"),
            ("data", "/tmp/evil"),
            ("data", "e\0vil"),
            ("data", "\ud800"),
            ("data", ""),
            ("data", "main_data.hdf5/evil"),
            ("policies", "../evil"),
            ("policies", "deep/evil"),
            ("card", "../../../evil"),
            ("card", "not-there"),
        )
    },
    "no sha256": naming_file("data", "main_data.hdf5", sha256=None),
    "another sha256": naming_file("data", "main_data.hdf5", sha256="0" * 64),
    "no digest": naming_file("data", "main_data.hdf5", xxh3_128=None),
    "a digest that is none": naming_file("data", "main_data.hdf5", xxh3_128="x"),
    "pieces of a short file": naming_file("data", "main_data.hdf5", pieces=["0" * 32]),
    "a size of true": naming_file("data", "main_data.hdf5", size=True),
    "a size that no file system has": naming_file("data", "main_data.hdf5", size=10**30),
    "no data": lambda manifest: manifest.pop("data") and None,
    "a list of data": lambda manifest: manifest.update(data=[]),
    "no metadata": lambda manifest: manifest["data"].pop("metadata.json") and None,
    "a later format": lambda manifest: manifest.update(format=3),
    "a format that is none": lambda manifest: manifest.update(format="2"),
}


@pytest.mark.parametrize("lie", [*LIES, *(f"format 2: {lie}" for lie in LIES_OF_FORMAT_2)])
def test_a_manifest_that_lies_is_told_of_and_nothing_is_installed(
    lie: str, directory: Path, tmp_path: Path
) -> None:
    whole = tree(directory)
    if lie in LIES:
        rewrite(directory, LIES[lie])
    else:
        change = LIES_OF_FORMAT_2[lie.removeprefix("format 2: ")]
        rewrite(directory, change, as_it_is=True)
    before = everything(tmp_path)
    place = Place("directory", str(directory), {}, None)
    line = download(place).line
    assert ID in line and str(directory) in line
    assert everything(tmp_path) == before
    for path, content in whole.items():
        (directory / path).write_bytes(content)
    assert download(place).error is None
    assert tree(tmp_path / "fresh" / ID / "data") == tree(tmp_path / "root" / ID / "data")
    assert {path.name for path in (tmp_path / "fresh").iterdir()} == {"example"}


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "file"),
    covering([Path.unlink, _link, _loop, _pipe, _folder], [DATA, "manifest.json", METADATA]),
)
def test_a_file_that_is_none_is_told_of(
    change: Callable[[Path], Any], file: str, directory: Path, tmp_path: Path
) -> None:
    change(directory / ID / file)
    before = everything(tmp_path)
    place = Place("directory", str(directory), {}, None)
    assert ID.removesuffix("-v0") in download(place).line
    told = listed(place)
    assert told.error is None, told.error
    assert everything(tmp_path) == before


def test_a_namespace_whose_metadata_are_hostile_is_made_without_them(directory: Path) -> None:
    (directory / "example" / "namespace_metadata.json").write_bytes(b"[" * 100_000)
    assert download(Place("directory", str(directory), {}, None)).error is None


@pytest.mark.parametrize("file", ["manifest.json", METADATA])
def test_a_file_too_large_to_read_is_named(file: str, directory: Path) -> None:
    limit = atomic.LARGEST[Path(file).name]
    os.truncate(directory / ID / file, limit + 1)
    place = Place("directory", str(directory), {}, None)
    words = f"its {Path(file).name} is larger than {limit >> 20} MiB"
    if file == METADATA:
        assert words in download(place).warned[0]
        assert words in listed(place).warned[0]
        assert f"{ID} in {directory} is damaged: {words}" in upload(place).line
    else:
        assert words in download(place).line


def test_a_namespace_whose_metadata_is_too_large_to_read_is_made_without_it(
    directory: Path,
) -> None:
    file = Path("example/namespace_metadata.json")
    (directory / file).write_text(" " * 2**24 + '{"description": "long"}')
    assert download(Place("directory", str(directory), {}, None)).error is None
    assert (directory.parent / "fresh" / file).read_text() == "{}"


# an unfinished download that somebody changed


def _longer(path: Path, victim: Path) -> None:
    path.write_bytes(bytes(10**6))


def _to_folder(path: Path, victim: Path) -> None:
    path.unlink()
    (path / "inner").mkdir(parents=True)


def _to_pipe(path: Path, victim: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_link(path: Path, victim: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(victim / "file")


def _to_hard_link(path: Path, victim: Path) -> None:
    path.unlink()
    path.hardlink_to(victim / "file")


def _below_a_link(path: Path, victim: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to(victim)


def _metadata_linked(path: Path, victim: Path) -> None:
    _to_link(path.with_name("metadata.json"), victim)


def _more_files(path: Path, victim: Path) -> None:
    (path.parent / "more").mkdir()
    (path.parent / "more" / "file").write_bytes(b"evil")
    (path.parents[1] / "link").symlink_to(victim)


def _data_is_file(path: Path, victim: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


def _record_broken(path: Path, victim: Path) -> None:
    (path.parents[2] / "expected.json").write_bytes(b"\xff")


def _record_linked(path: Path, victim: Path) -> None:
    _to_link(path.parents[2] / "expected.json", victim)


@pytest.mark.parametrize(
    "change",
    [
        *(_longer, _to_folder, _to_pipe, _to_link, _to_hard_link, _below_a_link, _data_is_file),
        *(_metadata_linked, _more_files, _record_broken, _record_linked),
    ],
)
def test_an_unfinished_download_that_was_changed_is_mended_and_leads_nowhere(
    change: Callable[[Path, Path], None], directory: Path, tmp_path: Path
) -> None:
    place = Place("directory", str(directory), {}, None)
    data = directory / ID / DATA
    content = data.read_bytes()
    data.write_bytes(content[:1000])
    assert "run the download again" in download(place).line
    data.write_bytes(content)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"precious")
    (stage,) = (tmp_path / "fresh").glob(".download-*")
    change(stage / "dataset" / DATA, victim)
    assert download(place).error is None
    assert tree(victim) == {"file": b"precious"}
    fetched = tmp_path / "fresh" / ID
    assert tree(fetched / "data") == tree(tmp_path / "root" / ID / "data")
    assert {path.name for path in fetched.iterdir()} == {"data", "manifest.json"}
    assert {path.name for path in (tmp_path / "fresh").iterdir()} == {"example"}


@pytest.mark.parametrize(
    "change",
    [
        *(_longer, _to_folder, _to_pipe, _to_link, _to_hard_link, _below_a_link, _data_is_file),
        *(_metadata_linked, _more_files),
    ],
)
def test_an_unfinished_upload_to_a_directory_that_was_changed_is_mended_and_leads_nowhere(
    change: Callable[[Path, Path], None], root: Path, tmp_path: Path
) -> None:
    def cut(*_: object) -> None:
        raise RemoteError("the network is gone")

    shared = tmp_path / "shared"
    place = Place("directory", str(shared), {}, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minari_pipe.remotes.directory.DirectoryRemote.reveal", cut)
        assert upload(place).error is not None
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_bytes((root / ID / DATA).read_bytes())
    before = tree(victim)
    (stage,) = (shared / ".minari_pipe-uploads").iterdir()
    change(stage / DATA, victim)
    assert upload(place).error is None
    assert tree(victim) == before
    assert {path.name for path in shared.rglob("*") if path.is_symlink()} == set()
    assert set(tree(shared / ID)) == {DATA, METADATA, "manifest.json"}
    assert os.stat(shared / ID / DATA).st_nlink == 1


def test_an_upload_to_a_directory_goes_through_no_link_to_elsewhere(
    root: Path, tmp_path: Path
) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.mkdir()
    (other / "file").write_bytes(b"precious")
    (shared / ".minari_pipe-uploads").symlink_to(other)
    assert "is a symlink" in upload(Place("directory", str(shared), {}, None)).line
    assert tree(other) == {"file": b"precious"}


@pytest.mark.parametrize("target", ["other", "nowhere"])
def test_an_upload_to_a_directory_goes_through_no_link_within_it(
    target: str, root: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    (shared / "other").mkdir(parents=True)
    namespace = shared / ID.partition("/")[0]
    namespace.symlink_to(target)
    assert (
        f"{namespace} is a symlink to {target}; "
        in upload(Place("directory", str(shared), {}, None)).line
    )
    assert tree(shared / "other") == {}


# what is there already


def test_an_id_with_other_content_is_refused_and_stays(
    place: Place, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upload(place).error is None
    with pytest.MonkeyPatch.context() as patch:
        another_root(patch, root.parent / "another")
        step_index_dataset(ID, lengths=(9, 9))
        told = upload(place)
    assert isinstance(told.error, DatasetExistsError)
    assert place.address in told.line and ID in told.line
    assert download(place).error is None
    assert tree(root.parent / "fresh" / ID / "data") == tree(root / ID / "data")


# disks


class Disk:
    """A file system in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root can mount a file system")

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk.folder)], check=False, capture_output=True)


@pytest.mark.parametrize("options", ["size=16k", "size=1m,nr_inodes=4", "size=1m,nr_inodes=6"])
def test_a_download_to_a_full_disk_is_one_line_and_goes_on_with_room(
    options: str, directory: Path, disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "fresh").symlink_to(disk.folder)
    disk.mount(options)
    place = Place("directory", str(directory), {}, None)
    line = download(place).line
    assert "make room" in line and str(tmp_path / "fresh") in line
    assert not (disk.folder / "example" / "steps-v0").exists()
    disk.remount("size=10m,nr_inodes=1000")
    assert download(place).error is None
    assert {path.name for path in disk.folder.iterdir()} == {"example"}


@pytest.mark.parametrize("options", ["size=8k", "size=1m,nr_inodes=4", "size=1m,nr_inodes=7"])
def test_an_upload_to_a_full_directory_is_one_line_and_goes_on_with_room(
    options: str, root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.mount(options)
    monkeypatch.setenv("MINARI_REMOTE", str(disk.folder))
    place = Place("directory", str(disk.folder), {}, None)
    line = upload(place).line
    assert "make room" in line and str(disk.folder) in line
    assert listed(place).value == {}
    disk.remount("size=10m,nr_inodes=1000")
    assert upload(place).error is None
    assert set(listed(place).value) == {ID}
    assert {path.name for path in disk.folder.iterdir()} == {"example"}


def test_what_is_read_only_is_one_line(
    root: Path, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.mount("size=10m")
    monkeypatch.setenv("MINARI_REMOTE", str(disk.folder))
    place = Place("directory", str(disk.folder), {}, None)
    assert upload(place).error is None
    disk.remount("ro")
    assert "choose a writable directory" in upload(place, OTHER).line
    assert set(listed(place).value) == {ID}
    assert download(place).error is None
    (tmp_path / "fresh").rename(tmp_path / "first")
    (tmp_path / "fresh").symlink_to(disk.folder)
    monkeypatch.setenv("MINARI_REMOTE", str(tmp_path / "first"))
    disk.remount("rw")
    shutil.rmtree(disk.folder / "example")
    disk.remount("ro")
    assert "set MINARI_DATASETS_PATH" in download(place).line
