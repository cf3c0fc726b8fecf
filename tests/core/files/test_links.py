"""Below a folder that the user names no link is followed, whatever is done with a dataset."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest

import minari_pipe
from minari_pipe import MinariDataset
from minari_pipe.cli.validation import validate
from minari_pipe.core import datasets_root
from minari_pipe.core.files import atomic, changes, links
from minari_pipe.core.files.changes import move_below, new_file
from minari_pipe.core.files.checksums import entry_of
from minari_pipe.core.files.links import files_below, open_below, read_below
from minari_pipe.core.files.locks import hidden_folder
from minari_pipe.datasets import installation, library, namespaces
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.installation import new_dataset
from minari_pipe.errors import CorruptDatasetError, DatasetNotFoundError, LinkError, MinariPipeError
from minari_pipe.recording.recovery import list_leftovers
from minari_pipe.remotes import directory
from minari_pipe.storage import reading
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.episode_files import write_file
from tests.conftest import FULL

ID = "tests/steps-v0"
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's, outside of every dataset."""
    folder = tmp_path / "mine"
    (folder / "below").mkdir(parents=True)
    (folder / "key").write_bytes(SECRET)
    (folder / "below" / "metadata.json").write_bytes(SECRET)
    return folder


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What waits for a pipe is ended."""

    def end(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def content(folder: Path) -> dict[str, bytes | str]:
    """What is in a folder; a link by where it leads."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def to_file(place: Path, mine: Path) -> None:
    place.symlink_to(mine / "key")


def to_folder(place: Path, mine: Path) -> None:
    place.symlink_to(mine)


def to_nowhere(place: Path, mine: Path) -> None:
    place.symlink_to(mine / "new")


def by_a_folder(place: Path, mine: Path) -> None:
    place.symlink_to(os.path.relpath(mine / "below", place.parent))


def hard(place: Path, mine: Path) -> None:
    place.hardlink_to(mine / "key")


def pipe(place: Path, mine: Path) -> None:
    os.mkfifo(place)


PLANTS = (to_file, to_folder, pipe, to_nowhere, by_a_folder, hard)
PLACES = (
    *("data/metadata.json", "data/extra.txt", "data/sub/extra.txt", "manifest.json"),
    *("data/.minari_pipe-commit", "data/.minari_pipe-stage", "data/.minari_pipe-commit/new"),
    *("policies", "policies/policy.zip"),
    *("../namespace_metadata.json", "../.namespace_metadata.json.tmp"),
)
FILES = {
    "hdf5": ("data/main_data.hdf5", "data/.main_data.hdf5.tmp"),
    "arrow": ("data/0", "data/0/metadata.json", "data/0/part-0.arrow", "data/0/x.txt", "data/7"),
}
CASES = [
    (data_format, place, plant)
    for data_format, atomic in FILES.items()
    for place in ((*PLACES, *atomic) if data_format == "hdf5" else atomic)
    for plant in (PLANTS if place in ("data/extra.txt", "manifest.json", "data/0") else PLANTS[:3])
]
if not FULL:  # each place and each plant
    own = ("hdf5", "data/.minari_pipe-commit", to_folder)  # whose files an append would move
    CASES = [c for number, c in enumerate(CASES) if number % 2 == 0 or c[2] is pipe or c == own]


def make(
    dataset_id: str, data_format: str = "hdf5", episodes: Sequence[int] = (0, 1, 2)
) -> MinariDataset:
    """Three episodes, as :func:`step_index_dataset` makes them."""
    source = step_index_dataset("tests/source-v0").storage
    with new_dataset(dataset_id) as path:
        MinariStorage.create(
            path,
            source.get_buffers(episodes),
            metadata={"dataset_id": dataset_id, "minari_version": "0.5.4"},
            observation_space=source.observation_space,
            action_space=source.action_space,
            data_format=data_format,
        )
    minari_pipe.delete_dataset("tests/source-v0")
    return minari_pipe.load_dataset(dataset_id)


def read(dataset_id: str, shared: Path) -> None:
    list(minari_pipe.load_dataset(dataset_id).iterate_episodes())


def verify(dataset_id: str, shared: Path) -> None:
    minari_pipe.load_dataset(dataset_id, verify=True)


def change(dataset_id: str, shared: Path) -> None:
    minari_pipe.load_dataset(dataset_id).storage.update_metadata({"author": {"Ada"}})


def append(dataset_id: str, shared: Path) -> None:
    storage = minari_pipe.load_dataset(dataset_id).storage
    storage.update_episodes(list(storage.get_buffers([0])))


def copy(dataset_id: str, shared: Path) -> None:
    sources = [minari_pipe.load_dataset(dataset_id), minari_pipe.load_dataset("tests/own-v0")]
    minari_pipe.combine_datasets(sources, "tests/copy-v0")


def upload(dataset_id: str, shared: Path) -> None:
    minari_pipe.publish_dataset(dataset_id, shared)


def namespace(dataset_id: str, shared: Path) -> None:
    minari_pipe.get_namespace_metadata("tests")
    minari_pipe.upload_namespace("tests")


def describe(dataset_id: str, shared: Path) -> None:
    minari_pipe.update_namespace_metadata("tests", "mine")


def remove(dataset_id: str, shared: Path) -> None:
    minari_pipe.delete_dataset(dataset_id)


USES = (read, verify, upload, copy, change, append, upload, namespace, describe, upload, remove)


@pytest.mark.parametrize(
    ("data_format", "place", "plant"), CASES, ids=[f"{f}-{p}-{x.__name__}" for f, p, x in CASES]
)
def test_nothing_of_the_user_is_read_changed_moved_or_published(
    data_format: str,
    place: str,
    plant: Callable[[Path, Path], None],
    mine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(ID, data_format)
    make("tests/own-v0", data_format)
    monkeypatch.setenv("MINARI_REMOTE", str(tmp_path / "shared"))
    dataset = minari_pipe.get_dataset_path(ID)
    target = dataset / place
    target.parent.mkdir(exist_ok=True)
    if os.path.lexists(target):
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    plant(target, mine)
    before = content(mine)
    copied = plant is hard or place.endswith(".tmp")  # of the user's own making, or swept
    for use in USES:
        with suppress(MinariPipeError, OSError), warnings.catch_warnings(action="ignore"):
            use(ID, tmp_path / "shared")
        assert content(mine) == before, use.__name__
        published = content(tmp_path / "shared")
        texts = [text for text in published.values() if isinstance(text, bytes)]
        assert copied or not any(SECRET in text for text in texts), use.__name__
        root = content(minari_pipe.get_dataset_path())
        gone = [p for p, text in root.items() if text == SECRET and not copied]
        assert gone == [], use.__name__


COPIES = {
    "hdf5": ("main_data.hdf5", "metadata.json"),
    "arrow": ("0/part-0.arrow", "0/metadata.json", "metadata.json"),
    "parquet": ("0/part-0.parquet", "0/metadata.json", "metadata.json"),
}


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize(("data_format", "name"), [(f, n) for f in COPIES for n in COPIES[f]])
def test_no_link_is_followed_to_a_file_that_could_be_read_as_well(
    data_format: str, name: str, has_manifest: bool, tmp_path: Path
) -> None:
    """What a link leads to is in order, so that nothing but the link can be refused."""
    make("tests/own-v0", data_format)
    file = make(ID, data_format).storage.data_path / name
    if not has_manifest:
        (minari_pipe.get_dataset_path(ID) / "manifest.json").unlink()
    file.rename(tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    for use in (read, verify, upload, append, copy):
        if use is verify and not has_manifest:
            continue
        with pytest.raises(LinkError, match=f"{name} is a symlink to"):
            use(ID, tmp_path / "shared")
    assert content(tmp_path / "shared") == {}


def test_a_refusal_names_the_link_and_where_it_leads(mine: Path, tmp_path: Path) -> None:
    dataset = make(ID)
    link = dataset.storage.data_path / "extra.txt"
    link.symlink_to(mine / "key")
    told = rf"{link} is a symlink to {mine / 'key'}; .*remove the symlink"
    for use in (upload, verify):
        with pytest.raises(LinkError, match=told):
            use(ID, tmp_path / "shared")


def test_a_root_and_a_folder_of_data_may_be_reached_by_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(ID, "arrow")
    before = len(list(dataset.iterate_episodes()))
    (tmp_path / "root").symlink_to(minari_pipe.get_dataset_path())
    (tmp_path / "data").symlink_to(dataset.storage.data_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    append(ID, tmp_path)
    verify(ID, tmp_path)
    upload(ID, tmp_path / "shared")
    storage = MinariStorage.read(tmp_path / "data")
    storage.update_episodes(list(storage.get_buffers([0])))
    assert storage.total_episodes == len(list(storage.get_episodes(range(before + 2))))


LEAVING: dict[str, Callable[[Path], object]] = {
    "validate": lambda folder: validate(str(folder), replay=False),
    "validate --upgrade": lambda folder: validate(str(folder), replay=False, upgrade=True),
    "publish_dataset": lambda folder: minari_pipe.publish_dataset(
        ID, folder.parent / "shared", folder=folder
    ),
}


@pytest.mark.parametrize("use", LEAVING.values(), ids=LEAVING)
def test_a_folder_of_a_stranger_s_is_left_by_no_link_data(
    use: Callable[[Path], object], tmp_path: Path
) -> None:
    """Who gave the folder away may have made the link; one of yours is named itself."""
    private = make(ID).storage.data_path
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "data").symlink_to(private)
    before = content(private.parent)
    with pytest.raises(LinkError, match="data is a symlink to"):
        use(tmp_path / "x")
    assert content(private.parent) == before
    assert not (tmp_path / "shared").exists()


def test_a_folder_outside_of_the_root_is_published_without_namespaces_above_it(
    tmp_path: Path,
) -> None:
    namespaces.create_namespace("team", description="public")
    make("team/ds-v0")
    own = Path(minari_pipe.get_dataset_path("team/ds-v0"))
    (tmp_path / "home" / "team").mkdir(parents=True)
    (tmp_path / "home" / "team" / "namespace_metadata.json").write_text('{"description": "mine"}')
    for number, place in enumerate(("x/y", "team/ds-v0")):  # the dataset may choose an id to match
        folder = tmp_path / "home" / place
        shutil.copytree(own, folder)
        minari_pipe.publish_dataset("team/ds-v0", tmp_path / f"shared-{number}", folder=folder)
        published = tmp_path / f"shared-{number}" / "team" / "namespace_metadata.json"
        assert "mine" not in published.read_text()
    minari_pipe.publish_dataset("team/ds-v0", tmp_path / "other", folder=own)
    published = tmp_path / "other" / "team" / "namespace_metadata.json"
    assert "public" in published.read_text()


def test_beside_the_data_only_what_the_manifest_lists_is_published(
    tmp_path: Path,
) -> None:
    """An archive may have brought ``data/`` among the user's own files."""
    data = make("team/ds-v0").storage.data_path
    manifest = json.loads((data.parent / "manifest.json").read_text())
    foreign = json.loads(json.dumps(manifest))  # the metadata have other totals than it says
    foreign["total_steps"] += 1
    foreign["data"]["metadata.json"]["size"] += 1
    card = tmp_path / "card"
    card.mkdir()
    (card / "card.md").write_text("a card")
    listing = {**manifest, "card": {"card.md": entry_of(card / "card.md", sha256=True)}}
    for number, brought in enumerate((None, manifest, foreign, listing)):
        folder = tmp_path / f"project-{number}"
        shutil.copytree(data, folder / "data")
        shutil.copytree(card, folder / "card")
        (folder / "card" / "mine.txt").touch()
        if brought is foreign:
            (folder / "policies").mkdir()
            (folder / "policies" / "mine.zip").touch()
        if brought is not None:
            (folder / "manifest.json").write_text(json.dumps(brought))
        done = minari_pipe.publish_dataset("team/ds-v0", tmp_path / f"to-{number}", folder=folder)
        others = {name for name in done.sizes if not name.startswith("data/")}
        assert others == {"manifest.json", *(["card/card.md"] if brought is listing else [])}


def test_a_folder_that_a_link_takes_the_place_of_meanwhile_leads_nowhere(
    mine: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "0"
    folder.mkdir(parents=True)
    for place in (folder, mine):
        (place / "file").write_bytes(SECRET if place is mine else b"own")
    ends = threading.Event()

    def swap() -> None:
        while not ends.is_set():
            folder.rename(tmp_path / "aside")
            folder.symlink_to(mine)
            folder.unlink()
            (tmp_path / "aside").rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    found = set()
    try:
        for _ in range(2000):
            with suppress(OSError):  # the link may be gone again when it is to be named
                found.add(read_below(folder / "file", tmp_path / "data"))
            with suppress(OSError):
                handle = open_below(folder / "new", tmp_path / "data", os.O_CREAT | os.O_WRONLY)
                os.close(handle)
    finally:
        ends.set()
        thread.join()
    assert found <= {b"own"}
    assert not (mine / "new").exists()


@pytest.mark.parametrize("use", ["load", "publish"])
@pytest.mark.parametrize("place", ["tests", ID, f"{ID}/data"])
@pytest.mark.parametrize(("module", "after"), [(datasets_root, "_inside"), (reading, "current")])
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_nothing_is_read_where_a_link_leads_that_takes_the_place_of_a_folder_meanwhile(
    data_format: str,
    module: ModuleType,
    after: str,
    place: str,
    use: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside, root = tmp_path / "outside", minari_pipe.get_dataset_path()
    make(ID, data_format, episodes=(2, 1, 0))
    shutil.copytree(root, outside)
    minari_pipe.delete_dataset(ID)
    own = [len(episode) for episode in make(ID, data_format)]
    secrets = set(content(outside).values()) - set(content(root).values())
    found = getattr(module, after)

    def exchanging(*args: object, **options: object) -> object:
        result = found(*args, **options)
        if not (root / place).is_symlink():
            (root / place).rename(tmp_path / "aside")
            (root / place).symlink_to(outside / place)
        return result

    monkeypatch.setattr(module, after, exchanging)
    read = []
    with suppress(MinariPipeError), warnings.catch_warnings(action="ignore"):
        if use == "load":
            read += [len(episode) for episode in minari_pipe.load_dataset(ID)]
        else:
            minari_pipe.publish_dataset(ID, tmp_path / "shared")
    assert (root / place).is_symlink()
    assert read in ([], own)
    assert not secrets & set(content(tmp_path / "shared").values())


def test_a_root_that_is_the_current_folder_is_left_by_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = make(ID).storage.data_path
    for place in (f"{ID}/data", ID, "tests"):
        root = tmp_path / place.replace("/", "-")
        (root / place).parent.mkdir(parents=True)
        (root / place).symlink_to(outside.parents[2] / place)
        monkeypatch.chdir(root)
        for spelled in (".", "./.", "../" + root.name):
            monkeypatch.setenv("MINARI_DATASETS_PATH", spelled)
            with pytest.raises(CorruptDatasetError, match="link"):
                minari_pipe.load_dataset(ID)


def test_a_link_data_to_another_place_of_the_root_is_written_as_it_is_read() -> None:
    data = make(ID).storage.data_path
    (minari_pipe.get_dataset_path() / "store").mkdir()
    data.rename(minari_pipe.get_dataset_path() / "store" / "data")
    data.symlink_to(minari_pipe.get_dataset_path() / "store" / "data")
    append(ID, data)
    minari_pipe.load_dataset(ID).storage.update_metadata({"description": "more"})
    dataset = minari_pipe.load_dataset(ID, verify=True)
    assert len(list(dataset.iterate_episodes())) == 4
    assert dataset.storage.metadata["description"] == "more"


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("sends", [False, True], ids=["many are open", "in another process"])
def test_no_other_version_is_read_that_has_the_number_of_the_folder(
    data_format: str, sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sends:
        monkeypatch.setattr(links, "_MOST_KEPT", 0)
    for _ in range(20 if FULL else 5):
        dataset = make(ID, data_format)
        sent = pickle.dumps(dataset)
        if sends:
            dataset = None
        minari_pipe.delete_dataset(ID)
        make(ID, data_format, episodes=(2, 1, 0))
        with pytest.raises(DatasetNotFoundError, match="was replaced since"):
            list(dataset or pickle.loads(sent))
        minari_pipe.delete_dataset(ID)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="lists descriptors")
def test_a_process_that_closes_all_files_reads_the_dataset_that_it_opened() -> None:
    dataset, other = make(ID, "arrow"), "tests/other-v0"
    own = [len(episode) for episode in dataset]
    for handle in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(dataset.storage.data_path)):
                os.close(handle)
    again = make(other, "arrow", episodes=(2, 1, 0))
    assert [len(episode) for episode in dataset] == own
    del dataset
    assert [len(episode) for episode in again] == own[::-1]


def test_what_is_read_is_what_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make(ID).storage.data_path
    verify_files = library.verify_files

    def replaced(dataset: Path, folder: object) -> None:
        verify_files(dataset, folder)
        minari_pipe.delete_dataset(ID)
        make(ID, episodes=(2, 1, 0))

    monkeypatch.setattr(library, "verify_files", replaced)
    with pytest.raises(DatasetNotFoundError, match="was replaced since"):
        minari_pipe.load_dataset(ID, verify=True)
    assert data.is_dir()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_links_are_refused_where_a_system_has_no_descriptors_of_folders(
    data_format: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (changes, links):
        monkeypatch.setattr(module, "HAS_DESCRIPTORS", False)
    data = make(ID, data_format).storage.data_path
    append(ID, tmp_path)
    dataset = pickle.loads(pickle.dumps(minari_pipe.load_dataset(ID)))
    assert len(list(dataset.iterate_episodes())) == 4
    aside = data.parent.with_name("aside-v0") / "data"
    aside.parent.mkdir()
    data.rename(aside)
    data.symlink_to(aside)  # in the root
    assert len(list(minari_pipe.load_dataset(ID))) == 4
    data.unlink()
    shutil.move(aside, mine / "data")
    data.symlink_to(mine / "data")
    for use in (read, verify, upload):
        with pytest.raises(CorruptDatasetError, match="is a symlink"):
            use(ID, tmp_path / "shared")


def create(dataset_id: str, shared: Path) -> None:
    make("tests/another-v0")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="paths of open folders")
@pytest.mark.parametrize("use", [remove, describe, create, upload, change, append])
def test_nothing_changes_where_a_link_leads_that_takes_the_place_of_a_namespace(
    use: Callable[[str, Path], None], mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(ID)
    shutil.copytree(minari_pipe.get_dataset_path("tests"), mine, dirs_exist_ok=True)
    before, n_exchanged = (content(mine), sorted(mine.rglob("*"))), 0
    held_folder = links.held_folder

    @contextmanager
    def exchanged(folder: Path, below: Path, **options: bool) -> Iterator[Path]:
        nonlocal n_exchanged
        with held_folder(folder, below, **options) as held:
            place = folder if folder.name == "tests" else folder.parent.parent
            if place.name != "tests" or place.is_symlink():
                yield held
                return
            n_exchanged += 1
            place.rename(tmp_path / "aside")
            place.symlink_to(mine)
            try:
                yield held
            finally:
                place.unlink()
                (tmp_path / "aside").rename(place)

    for module in (library, installation, namespaces, directory, atomic):
        monkeypatch.setattr(module, "held_folder", exchanged)
    with suppress(DatasetNotFoundError):  # it is not the dataset that was opened
        use(ID, tmp_path / "shared")
    assert n_exchanged > 0
    assert (content(mine), sorted(mine.rglob("*"))) == before


@pytest.mark.parametrize("descriptors", [True, False], ids=["descriptors", "paths"])
def test_folders_are_joined_and_nothing_moves_through_a_link(
    descriptors: bool, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (changes, links):
        monkeypatch.setattr(module, "HAS_DESCRIPTORS", descriptors)
    for name in ("0/new", "1/new", "top"):
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_text("new")
    (tmp_path / "data" / "0").mkdir(parents=True)
    (tmp_path / "data" / "0" / "there").write_text("old")
    move_below(tmp_path / "old", tmp_path / "data")
    assert list(files_below(tmp_path / "data")) == ["0/new", "0/there", "1/new", "top"]
    (tmp_path / "old" / "1").mkdir(exist_ok=True)
    (tmp_path / "old" / "1" / "more").write_text("new")
    shutil.rmtree(tmp_path / "data" / "1")
    (tmp_path / "data" / "1").symlink_to(mine)
    with pytest.raises(LinkError, match="data/1 is a symlink"):
        move_below(tmp_path / "old", tmp_path / "data")
    with pytest.raises(LinkError, match="data/1 is a symlink"):
        read_below(tmp_path / "data" / "1" / "key", tmp_path / "data")
    assert not (mine / "more").exists()


def test_a_new_file_takes_the_place_of_what_was_left_and_of_a_link(
    mine: Path, tmp_path: Path
) -> None:
    for plant in (to_file, to_nowhere, hard):
        path = tmp_path / plant.__name__
        plant(path, mine)
        with new_file(path) as handle:
            os.write(handle, b"new")
        assert path.read_bytes() == b"new" and not path.is_symlink()
    assert (mine / "key").read_bytes() == SECRET
    assert not (mine / "new").exists()


@pytest.mark.parametrize("plant", [to_file, to_nowhere, hard])
def test_a_file_of_an_episode_is_a_new_one(
    plant: Callable[[Path, Path], None], mine: Path, tmp_path: Path
) -> None:
    path, before = tmp_path / "part-0.arrow", content(mine)
    plant(path, mine)
    with pytest.raises(FileExistsError):
        write_file(str(path), [b"new"])
    write_file(str(path), [b"new"], replaces=True)
    assert (path.read_bytes(), content(mine)) == (b"new", before)


def test_links_lead_into_a_folder_that_is_allowed_for_reading_alone(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_allowed", [])
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").symlink_to(mine / "key")
    with pytest.raises(LinkError):
        read_below(folder / "file", folder)
    links.allow_links_into(mine)
    assert read_below(folder / "file", folder) == SECRET
    assert list(files_below(folder)) == ["file"]
    with pytest.raises(OSError, match="Too many levels|symbolic"):
        os.close(open_below(folder / "file", folder, os.O_WRONLY))
    (folder / "away").symlink_to(tmp_path)
    with pytest.raises(LinkError):
        list(files_below(folder))
    (folder / "away").unlink()
    (folder / "below").symlink_to(mine / "below")  # DVC makes links to files alone
    for use in (
        lambda: list(files_below(folder)),
        lambda: read_below(folder / "below" / "metadata.json", folder),
        lambda: links.status_below(folder / "below" / "metadata.json", folder),
    ):
        with pytest.raises(LinkError, match="below is a symlink to"):
            use()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_folder_of_data_that_leads_to_itself_is_named(data_format: str) -> None:
    dataset = make(ID, data_format)
    data = dataset.storage.data_path
    data.rename(data.with_name("aside"))
    data.symlink_to("data")
    for use in (read, verify, remove):
        with pytest.raises(LinkError, match=f"{data} is a symlink to data; "):
            use(ID, data)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="paths of open folders")
def test_an_upload_writes_nowhere_else_when_a_link_takes_the_place_of_its_folder(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns a shared folder could hold the lock until then."""
    make(ID)
    before, exclusive = content(mine), directory.exclusive

    @contextmanager
    def exchanged(folder: Path) -> Iterator[None]:
        with exclusive(folder):
            place = Path(os.path.realpath(folder))
            place.rename(tmp_path / "aside")
            place.symlink_to(mine)
            yield

    monkeypatch.setattr(directory, "exclusive", exchanged)
    with pytest.raises(MinariPipeError):
        upload(ID, tmp_path / "shared")
    assert content(mine) == before


def test_a_change_writes_no_manifest_beside_a_folder_that_is_not_called_data(
    tmp_path: Path,
) -> None:
    data = shutil.copytree(make(ID).storage.data_path, tmp_path / "project" / "stuff")
    (data.parent / "manifest.json").write_text("of something else")
    (data / ".minari_pipe-commit").mkdir()
    (data / ".minari_pipe-commit" / ".manifest.json").write_text("of a stranger")
    MinariDataset(data).storage.update_metadata({"author": {"Ada"}})
    assert (data.parent / "manifest.json").read_text() == "of something else"


@pytest.mark.parametrize("there", ['{"name": "my app"}', "[]", None])
def test_a_change_writes_no_manifest_where_another_s_file_or_none_is(
    there: str | None, tmp_path: Path
) -> None:
    data = shutil.copytree(make(ID).storage.data_path, tmp_path / "project" / "data")
    if there is not None:
        (data.parent / "manifest.json").write_text(there)
    (data / ".minari_pipe-commit").mkdir()
    (data / ".minari_pipe-commit" / ".manifest.json").write_text("of a stranger")
    MinariDataset(data).storage.update_metadata({"author": {"Ada"}})
    assert [path.read_text() for path in data.parent.glob("*.json")] == ([there] if there else [])


def an_unfinished_change(data: Path, mine: Path) -> None:
    (data / ".minari_pipe-commit").mkdir()
    (data / ".minari_pipe-commit" / "0").symlink_to(mine)


def no_change(data: Path, mine: Path) -> None:
    os.mkfifo(data / ".minari_pipe-commit")


@pytest.mark.parametrize("target", ["mine", "missing"])
def test_a_link_in_the_place_of_a_change_is_refused_by_every_read(
    target: str, tmp_path: Path
) -> None:
    data = make(ID).storage.data_path
    (tmp_path / "mine").mkdir()
    (data / ".minari_pipe-commit").symlink_to(tmp_path / target)
    with pytest.raises(LinkError, match=r"\.minari_pipe-commit is a symlink to"):
        minari_pipe.load_dataset(ID)


@pytest.mark.parametrize("plant", [an_unfinished_change, no_change])
def test_what_ends_no_change_is_named(plant: Callable[[Path, Path], None], mine: Path) -> None:
    dataset = make(ID, "arrow")
    before = content(mine)
    plant(dataset.storage.data_path, mine)
    with pytest.raises(CorruptDatasetError, match=r"\.minari_pipe-commit(/0)? is .*remove"):
        append(ID, mine)
    assert content(mine) == before


def test_a_killed_process_leaves_nothing_that_is_followed(mine: Path) -> None:
    root = minari_pipe.get_dataset_path()
    with hidden_folder(root) as folder:
        name = folder.name
    (root / name).symlink_to(mine)
    with hidden_folder(root):
        pass
    assert (mine / "key").exists()


def test_a_pipe_among_what_killed_processes_left_is_not_waited_for() -> None:
    root = minari_pipe.get_dataset_path()
    with hidden_folder(root) as folder:
        name = folder.name
    os.mkfifo(root / name)
    os.mkfifo(root / ".download-0")
    make(ID)
    assert minari_pipe.load_dataset(ID).total_episodes == 3


def test_an_episode_is_not_recovered_from_rows_that_a_link_leads_to(mine: Path) -> None:
    folder = minari_pipe.get_dataset_path() / ".minari_pipe" / "collecting" / "1-x"
    folder.mkdir(parents=True)
    (folder / "journal").symlink_to(mine / "key")
    assert list_leftovers() == []
    (folder / "journal").unlink()
    os.mkfifo(folder / "journal")
    assert list_leftovers() == []


@contextmanager
def within(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def nest(folder: Path, n_folders: int = 1400) -> None:
    """Make folders in one another, more than Python calls functions, or a process opens files."""
    with within(folder):
        for _ in range(n_folders):
            os.mkdir("d")
            os.chdir("d")
        Path("file").touch()


@pytest.mark.parametrize("below", ["data", "policies", "data/more"])
def test_folders_that_lie_too_deep_are_told_and_removed(below: str, tmp_path: Path) -> None:
    dataset = minari_pipe.get_dataset_path(make(ID).id)
    make("tests/own-v0")
    (dataset / below).mkdir(parents=True, exist_ok=True)
    nest(dataset / below)
    for use in (verify, upload):
        with pytest.raises((CorruptDatasetError, OSError), match="64 folders deep"):
            use(ID, tmp_path / "shared")
    assert set(minari_pipe.list_local_datasets()) == {ID, "tests/own-v0"}
    minari_pipe.delete_dataset(ID)
    minari_pipe.delete_dataset("tests/own-v0")
    assert [p.name for p in minari_pipe.get_dataset_path("tests").iterdir()] == [
        namespaces.NAMESPACE_METADATA_FILENAME
    ]


def test_what_a_killed_process_left_in_deep_folders_is_removed(tmp_path: Path) -> None:
    with hidden_folder(tmp_path) as folder:
        left = folder.with_name(f"{folder.name[:-1]}{'0' if folder.name[-1] != '0' else '1'}")
    left.mkdir()
    nest(left)
    with hidden_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_deep_folders_in_place_of_what_a_kill_leaves_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(ID)
    upload(ID, tmp_path / "shared")
    root, data = minari_pipe.get_dataset_path(), minari_pipe.get_dataset_path(ID) / "data"
    for left in (root / ".download-x", data.parent.with_name(".steps-v0.old")):
        left.mkdir(parents=True)
        nest(left)
    monkeypatch.setenv("MINARI_REMOTE", f"file://{tmp_path}/shared")
    minari_pipe.download_dataset(ID, force_download=True)
    assert not (root / ".download-x").exists()
    assert list(data.parent.parent.glob(".*.old")) == []


def test_folders_in_one_another_hide_no_dataset_and_no_namespace() -> None:
    make(ID)
    (root := minari_pipe.get_dataset_path()).joinpath("deep").mkdir()
    nest(root / "deep")
    assert list(minari_pipe.list_local_datasets()) == [ID]
    assert minari_pipe.list_local_namespaces() == ["tests"]
    with within(root):
        assert directory.DirectoryRemote(str(root)).dataset_ids() == [ID]
    changes.remove_folder(root / "deep")
