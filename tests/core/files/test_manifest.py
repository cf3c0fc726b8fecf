"""Every dataset knows what its files are, from its creation on and through every change."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import tempfile
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import minari_pipe
from minari_pipe import EpisodeBuffer, MinariDataset, load_dataset
from minari_pipe.cli import app
from minari_pipe.core.files import atomic, manifest
from minari_pipe.core.files.checksums import Pieces, entry_of
from minari_pipe.core.files.manifest import MANIFEST, describe, entries_of, read_manifest
from minari_pipe.core.files.names import is_file_name, is_plain_path
from minari_pipe.datasets.cards.folder import card_files, facts_at, file_of_card, write_card
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.identity import content_sha256
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidMetadataError,
    UnsupportedVersionError,
)
from minari_pipe.pipeline.published import published_manifest

ID = "aa/b-v0"
FORMATS = minari_pipe.get_storage_keys()
SPACES = {"observation_space": gym.spaces.Discrete(9), "action_space": gym.spaces.Discrete(2)}

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None)")


def make(seed: int = 0, count: int = 3) -> list[EpisodeBuffer]:
    return [
        EpisodeBuffer(
            seed=seed,
            observations=np.arange(4),
            actions=np.zeros(3, int),
            rewards=np.full(3, float(seed)),
            terminations=np.array([False, False, True]),
            truncations=np.zeros(3, bool),
        )
        for _ in range(count)
    ]


def create(dataset_id: str = ID, data_format: str = "hdf5") -> MinariDataset:
    return minari_pipe.create_dataset_from_buffers(
        dataset_id, make(), data_format=data_format, **SPACES
    )


def folder(dataset: MinariDataset) -> Path:
    return dataset.storage.data_path.parent


def assert_verified(dataset_id: str = ID) -> None:
    dataset = load_dataset(dataset_id, verify=True)
    content = read_manifest(folder(dataset))
    assert content is not None
    assert content["total_episodes"] == dataset.total_episodes
    assert content["total_steps"] == dataset.total_steps


def collect() -> None:
    env = minari_pipe.DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=0)
    env.step(0)
    env.create_dataset(ID)


CREATIONS: dict[str, Callable[[], object]] = {
    "buffers": create,
    "a collector": collect,
    "a combination": lambda: minari_pipe.combine_datasets([create("x-v0"), create("y-v0")], ID),
    "a migration": lambda: minari_pipe.migrate_dataset(folder(create("x-v0")), ID),
    "a deletion of episodes": lambda: create("x-v0").delete_episodes([0], ID),
}


@pytest.mark.parametrize("way", CREATIONS)
def test_every_creation_writes_a_manifest(way: str) -> None:
    CREATIONS[way]()
    assert_verified()


CHANGES: dict[str, Callable[[MinariDataset], object]] = {
    "an append": lambda dataset: dataset.storage.update_episodes(make(1)),
    "a continuation": lambda dataset: dataset.storage.update_episodes(
        [replace(make()[0], id=2, seed=None, observations=np.arange(3))]
    ),
    "metadata": lambda dataset: dataset.storage.update_metadata({"author": {"Ada"}}),
    "attributes": lambda dataset: dataset.storage.update_episode_metadata([{"x": 1}], [2]),
}


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_keeps_the_manifest_in_step(change: str, data_format: str) -> None:
    dataset = create(data_format=data_format)
    before = read_manifest(folder(dataset))
    CHANGES[change](dataset)
    assert read_manifest(folder(dataset)) != before
    assert_verified()


@pytest.mark.parametrize("data_format", FORMATS)
def test_one_changed_byte_of_any_file_is_named(data_format: str) -> None:
    dataset = create(data_format=data_format)
    dataset.storage.update_episodes(make(1))
    entries = entries_of(json.loads((folder(dataset) / MANIFEST).read_text()))
    for name, entry in entries.items():
        file = folder(dataset) / name
        good = file.read_bytes()
        last = entry["size"] - 1  # what follows is room for more
        file.write_bytes(good[:last] + bytes([good[last] ^ 1]) + good[last + 1 :])
        with pytest.raises(CorruptDatasetError, match=f"json: {name} has different content"):
            load_dataset(ID, verify=True)
        file.write_bytes(good)
    assert_verified()


def pages_exchanged(path: Path) -> None:
    data = path.read_bytes()
    assert data[8192:12288] != data[12288:16384]
    path.write_bytes(data[:8192] + data[12288:16384] + data[8192:12288] + data[16384:])


def long_dataset(data_format: str, count: int = 1) -> MinariDataset:
    """Episodes of 6,000 steps, in the order of whose values lies all that they say."""
    buffers = [
        replace(
            make(number)[0],
            observations=(np.arange(6001) + number) % 9,
            actions=np.arange(6000) % 2,
            rewards=np.arange(6000.0) + number,
            terminations=np.arange(6000) == 5999,
            truncations=np.zeros(6000, bool),
        )
        for number in range(count)
    ]
    return minari_pipe.create_dataset_from_buffers(ID, buffers, data_format=data_format, **SPACES)


def loaded() -> None:
    with pytest.raises(CorruptDatasetError, match="has different content"):
        load_dataset(ID, verify=True)


def validated() -> None:
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "has different content" in done.output


def uploaded() -> None:
    with tempfile.TemporaryDirectory() as shared:
        with pytest.raises(CorruptDatasetError, match="has different content"):
            minari_pipe.publish_dataset(ID, shared)
        assert list(Path(shared).iterdir()) == []


@pytest.mark.parametrize("seen", [loaded, validated, uploaded])
def test_two_pages_of_a_file_that_changed_places_are_seen(seen: Callable[[], None]) -> None:
    pages_exchanged(folder(long_dataset("hdf5")) / "data" / "main_data.hdf5")
    seen()


def test_pages_that_two_files_have_exchanged_are_seen() -> None:
    place = folder(long_dataset("arrow", 2)) / "data"
    first, second = (place / str(number) / "part-0.arrow" for number in range(2))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(one[:4096] + other[4096:8192] + one[8192:])
    second.write_bytes(other[:4096] + one[4096:8192] + other[8192:])
    assert first.read_bytes() != one
    loaded()
    pages_exchanged(first)
    loaded()


def in_format_1(place: Path, **fields: object) -> dict[str, Any]:
    """Give a dataset the manifest that it had before format 2."""
    content = read_manifest(place)
    assert content is not None
    atomic = {}
    for name in sorted(entries_of(content)):
        data = (place / name).read_bytes()
        atomic[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        if len(data) > 2**16:
            words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
            sums = np.add.reduceat(words, np.arange(0, len(words), 2**13))
            atomic[name] = {
                "sums": hashlib.sha256(sums.tobytes()).hexdigest(),
                "size": len(data),
            }
    old = {key: content[key] for key in ("total_episodes", "total_steps")} | {"files": atomic}
    (place / MANIFEST).write_text(json.dumps(old | fields))
    return old | fields


def test_a_manifest_of_format_1_is_compared_as_far_as_its_sums_see() -> None:
    place = folder(long_dataset("hdf5"))
    in_format_1(place)
    with pytest.warns(UserWarning, match="format 1, whose checksums .* do not detect .* --upgrade"):
        load_dataset(ID, verify=True)
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    assert done.output.count("has format 1, whose checksums") == 1
    file = place / "data" / "main_data.hdf5"
    pages_exchanged(file)
    with pytest.warns(UserWarning, match="format 1"):
        load_dataset(ID, verify=True)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    loaded()


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_keeps_a_manifest_of_format_1_in_step(change: str) -> None:
    """Of sha256s nothing is warned."""
    dataset = create()
    in_format_1(folder(dataset))
    CHANGES[change](dataset)
    content = json.loads((folder(dataset) / MANIFEST).read_text())
    assert "format" not in content
    assert all("sha256" in entry for entry in content["files"].values())
    assert_verified()


def upgraded(*arguments: str) -> Result:
    command = ["validate", ID, "--no-replay", "--upgrade", *arguments]
    return CliRunner().invoke(app, command, env={"COLUMNS": "300"})


def test_validate_upgrades_a_manifest_of_format_1() -> None:
    place = folder(long_dataset("hdf5"))
    good = (place / MANIFEST).read_bytes()
    in_format_1(place)
    done = upgraded()
    assert done.exit_code == 0
    assert "was rewritten in format 2, after its files were compared with it" in done.output
    assert "could not tell whether parts of a file were exchanged" in done.output
    assert (place / MANIFEST).read_bytes() == good
    assert_verified()
    done = upgraded("--json")
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True)
    assert done.stderr.endswith("already has format 2; its files were compared with it\n")
    assert (place / MANIFEST).read_bytes() == good


def test_an_upgrade_says_nothing_against_sha256s_of_whole_files() -> None:
    place = folder(create())
    assert all("sha256" in entry for entry in in_format_1(place)["files"].values())
    done = upgraded()
    assert done.output.endswith("in format 2, after its files were compared with it\n")


def test_an_upgrade_compares_the_content_and_keeps_what_a_publication_says() -> None:
    dataset = long_dataset("hdf5")
    place = folder(dataset)
    metadata = dataset.storage.read_raw_metadata(place / "data")
    digest = content_sha256(dataset.storage, metadata)
    in_format_1(place, content_sha256=digest)
    done = upgraded()
    assert f"after content_sha256 {digest[:12]} and its files were compared" in done.output
    content = read_manifest(place)
    assert content == {**describe(place, metadata), "content_sha256": digest}
    in_format_1(place, content_sha256=digest)
    pages_exchanged(place / "data" / "main_data.hdf5")  # which its sums do not see
    before = (place / MANIFEST).read_bytes()
    done = upgraded()
    assert done.exit_code == 1
    assert "has content_sha256" in f"{done.output} {done.exception}"
    assert (place / MANIFEST).read_bytes() == before


def test_a_dataset_with_faults_is_not_upgraded() -> None:
    place = folder(create())
    in_format_1(place)
    file = place / "data" / "main_data.hdf5"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"?")
    before = (place / MANIFEST).read_bytes()
    done = upgraded()
    assert done.exit_code == 1
    assert "manifest.json stays as it is" in done.output
    assert (place / MANIFEST).read_bytes() == before
    file.write_bytes(good)
    (place / MANIFEST).unlink()
    done = upgraded()
    assert (done.exit_code, "has no manifest.json to upgrade" in done.output) == (1, True)


def test_an_upload_does_not_rely_on_a_content_hash_that_the_data_do_not_have() -> None:
    dataset = create()
    place = folder(dataset)
    metadata = dataset.storage.read_raw_metadata(place / "data")
    for content in (describe(place, metadata), in_format_1(place)):
        (place / MANIFEST).write_text(json.dumps({**content, "content_sha256": "0" * 64}))
        with tempfile.TemporaryDirectory() as shared:
            with pytest.raises(
                CorruptDatasetError, match="content_sha256 000000000000, but the data have"
            ):
                minari_pipe.publish_dataset(ID, shared)
            assert list(Path(shared).iterdir()) == []


def test_an_append_hashes_again_what_it_changed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """So damage of the pieces before it stays damage, and the costs do not grow with the file."""
    dataset = long_dataset("hdf5", 30)
    file = folder(dataset) / "data" / "main_data.hdf5"
    n_pieces = file.stat().st_size // 2**20
    assert n_pieces > 3
    with file.open("r+b") as opened:  # in a value of the second piece
        opened.seek(2**20 + 2**19)
        old = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([old[0] ^ 1]))
    hashed: list[int] = []
    add = Pieces.add

    def counted(self: Pieces, data: Any) -> None:
        hashed.append(len(data))
        add(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "add", counted)
        dataset.storage.update_episodes(make(1))
    assert sum(hashed) < 3 * 2**20
    with pytest.raises(CorruptDatasetError, match="difference between bytes 1048576 and 2097152"):
        load_dataset(ID, verify=True)
    with file.open("r+b") as opened:
        opened.seek(2**20 + 2**19)
        opened.write(old)
    assert_verified()


def test_a_card_is_no_part_of_the_dataset_and_travels_with_it(tmp_path: Path) -> None:
    place = folder(create())
    write_card(place, {"index.html": b"<p>about"})
    (place / "card" / "mine.txt").write_text("mine")
    with pytest.warns(UserWarning, match=r"card/mine\.txt is not in the manifest\. The card"):
        load_dataset(ID, verify=True)
    done = minari_pipe.publish_dataset(ID, tmp_path)
    assert "card/index.html" in done.sizes and "card/mine.txt" not in done.sizes
    assert minari_pipe.publish_dataset(ID, tmp_path).outcome == "present"
    minari_pipe.delete_dataset(ID)
    minari_pipe.download_dataset(f"file://{tmp_path}/{ID}")
    assert_verified()
    (place / "card" / "index.html").write_text("<p>other")
    with pytest.warns(UserWarning, match=r"index\.html has different content .* not part of it"):
        load_dataset(ID, verify=True)
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "card/index.html" in done.output
    with pytest.raises(CorruptDatasetError, match="make the card again"):
        minari_pipe.publish_dataset(ID, tmp_path)


def test_a_manifest_of_a_later_format_is_refused_by_name() -> None:
    dataset = create()
    path = folder(dataset) / MANIFEST
    path.write_text('{"format": 3, "data": {"main_data.hdf5": "of another form"}}')
    before = {file: file.read_bytes() for file in folder(dataset).rglob("*") if file.is_file()}
    refused: dict[str, Callable[[], object]] = {
        "load": lambda: load_dataset(ID, verify=True),
        "upload": lambda: minari_pipe.publish_dataset(ID, "/nowhere"),
        "append": lambda: dataset.storage.update_episodes(make(1)),
        "metadata": lambda: dataset.storage.update_metadata({"author": {"Ada"}}),
    }
    for call in refused.values():
        with pytest.raises(UnsupportedVersionError, match="has format 3.* upgrade it"):
            call()
    assert {
        file: file.read_bytes() for file in folder(dataset).rglob("*") if file.is_file()
    } == before
    assert load_dataset(ID).total_episodes == 3
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "300"})
    assert (done.exit_code, "has format 3" in done.output) == (1, True)


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "a format that is none": lambda content: content.update(format="2"),
    "a format of true": lambda content: content.update(format=True),
    "format 0": lambda content: content.update(format=0),
    "no data": lambda content: content.pop("data"),
    "a list of data": lambda content: content.update(data=[]),
    "policies that are text": lambda content: content.update(policies="policy.zip"),
    "a card of null": lambda content: content.update(card=None),
    "totals of text": lambda content: content.update(total_episodes="3"),
    "negative totals": lambda content: content.update(total_steps=-1),
    "totals of true": lambda content: content.update(total_steps=True),
    "a content hash that is none": lambda content: content.update(content_sha256="\x1b[31m"),
    "a content hash of a number": lambda content: content.update(content_sha256=5),
    **{
        f"a file {name!r}": lambda content, name=name: content["data"].update(
            {name: content["data"]["metadata.json"]}
        )
        for name in ("", "..", "../x", "a//b", "a/../b", "e\0vil", "\ud800")
    },
    **{
        f"an entry {entry!r:.30}": lambda content, entry=entry: content["data"].update(x=entry)
        for entry in (None, [], "x", {"size": 1}, {"size": 1, "sha256": ""})
    },
    **{
        f"{key} {value!r:.20}": lambda content, key=key, value=value: content["data"][
            "main_data.hdf5"
        ].update({key: value})
        for key, value in (
            *(("size", size) for size in (-1, True, "1", 1.0, 10**30, 10**400, None)),
            *(("xxh3_128", digest) for digest in ("", "0" * 31, "G" * 32, 5, None)),
            *(("sha256", digest) for digest in ("", "0" * 63, None, ["0" * 64])),
            ("pieces", ["0" * 32]),
        )
    },
}


def _told(*command: str) -> None:
    done = CliRunner().invoke(app, command, env={"COLUMNS": "500"})
    assert done.exit_code == 1
    raise CorruptDatasetError(done.output)


ENTRY_POINTS: dict[str, Callable[[], object]] = {
    "load": lambda: load_dataset(ID, verify=True),
    "upload": lambda: minari_pipe.publish_dataset(ID, "/nowhere"),
    "show": lambda: _told("show", ID),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that no test changes, but for its manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("root")))
        return folder(create())


def test_every_bad_manifest_is_a_damaged_dataset_at_every_entry(
    whole: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(whole.parents[1]))
    good = read_manifest(whole)
    for name, change in BAD.items():
        content = copy.deepcopy(good)
        assert content is not None
        change(content)
        (whole / MANIFEST).write_text(json.dumps(content))
        for entry, call in ENTRY_POINTS.items():
            with (
                subtests.test(f"{name}: {entry}"),
                pytest.raises(CorruptDatasetError, match=r"manifest\.json is damaged"),
            ):
                call()
        assert published_manifest(whole) is None
    (whole / MANIFEST).write_text('{"files": {"data/metadata.json": {"sha256": "", "size": 5}}}')
    for call in (*ENTRY_POINTS.values(), lambda: _told("validate", ID, "--no-replay")):
        with pytest.raises(CorruptDatasetError, match=r"manifest\.json is damaged"):
            call()


def test_a_change_does_not_vouch_for_files_that_it_does_not_touch() -> None:
    dataset = create()
    file = dataset.storage.data_path / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    dataset.storage.update_metadata({"author": {"Ada"}})
    with pytest.raises(CorruptDatasetError, match=r"data/main_data\.hdf5 has different content"):
        load_dataset(ID, verify=True)


def bytes_below(place: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}


def damage(file: Path) -> None:
    """Change a value of a file, which can still be read."""
    old, new = b"\x08\x40", b"\x09\x40"  # the end of the double 3.0
    if file.name == "metadata.json":
        is_of_dataset = file.parent.name == "data"
        old, new = (b"b-v0", b"c-v0") if is_of_dataset else (b'max": 3', b'max": 4')
    good = file.read_bytes()
    assert old in good
    file.write_bytes(good.replace(old, new, 1))


#: the number of files that a change reads and replaces: in HDF5, and in the other formats
READ = {"an append": (2, 1), "a continuation": (2, 3), "metadata": (1, 1), "attributes": (2, 2)}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_change_turns_damage_into_verified_values(
    change: str, data_format: str, number: int, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """It is refused if it reads the damage; otherwise the damage stays damage."""
    place = folder(
        minari_pipe.create_dataset_from_buffers(ID, make(3), data_format=data_format, **SPACES)
    )
    if number == 1:
        in_format_1(place)
    shutil.copytree(place, tmp_path / "whole")
    n_refused = 0
    for name in list(entries_of(json.loads((place / MANIFEST).read_text()))):
        with subtests.test(name):
            damage(place / name)
            damaged = bytes_below(place)
            fault = rf"does not match its manifest\.json: {name} has different content .* Restore"
            n_refused += 1
            with contextlib.suppress(CorruptDatasetError):
                CHANGES[change](load_dataset(ID))
                n_refused -= 1
                damaged = bytes_below(place)
            assert bytes_below(place) == damaged
            with pytest.raises(CorruptDatasetError, match=fault):
                load_dataset(ID, verify=True)
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "whole", place)
    assert n_refused == READ[change][data_format != "hdf5"]


@pytest.mark.parametrize("number", [1, 2])
def test_an_append_to_a_long_file_is_refused_if_a_piece_that_it_reads_is_damaged(
    number: int, subtests: pytest.Subtests
) -> None:
    """Those are the first one, and those from the last values on."""
    dataset = long_dataset("hdf5", 30)
    if number == 1:
        in_format_1(folder(dataset))
    file = dataset.storage.data_path / "main_data.hdf5"
    good = file.read_bytes()
    whole = bytes_below(folder(dataset))
    values = {episode: dataset[episode].rewards[1000:1100].tobytes() for episode in (0, 29)}
    places = {
        "a value in the first piece": good.index(values[0]),
        "a value in the last piece": good.rindex(values[29]),
        "the address of an episode": good.rindex(b"SNOD") + 16,
    }
    assert places["a value in the first piece"] < 2**20
    assert places["a value in the last piece"] > len(good) // 2**20 * 2**20
    for name, start in places.items():
        with subtests.test(name):
            file.write_bytes(good[:start] + bytes([good[start] ^ 8]) + good[start + 1 :])
            damaged = bytes_below(folder(dataset))
            fault = (
                "main_data.hdf5 has different content|main_data.hdf5: episode .* no object header"
            )
            with pytest.raises(CorruptDatasetError, match=fault):
                load_dataset(ID).storage.update_episodes(make(1))
            assert bytes_below(folder(dataset)) == damaged
    file.write_bytes(good)
    assert bytes_below(folder(dataset)) == whole
    load_dataset(ID).storage.update_episodes(make(1))


def change_total(key: str) -> None:
    path = folder(load_dataset(ID)) / MANIFEST
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: content[key] + 1}))


def refused(fault: str, shared: Path) -> None:
    fault = rf"does not match its manifest\.json: {fault}"
    with pytest.raises(CorruptDatasetError, match=fault):
        load_dataset(ID, verify=True)
    with pytest.raises(CorruptDatasetError, match=fault):
        minari_pipe.publish_dataset(ID, shared)


def report_of_validate_names(*expected: str) -> None:
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay", "--json"])
    assert done.exit_code == 1
    findings = json.loads(done.stdout)["findings"]
    assert [
        (found["level"], found["path"]) for found in findings if found["check"] == "manifest"
    ] == [("error", name) for name in expected]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("key", ["total_episodes", "total_steps"])
def test_a_total_that_only_the_manifest_has_is_damage_and_hides_none(
    key: str, number: int, tmp_path: Path
) -> None:
    dataset = create()
    if number == 1:
        in_format_1(folder(dataset))
    change_total(key)
    refused(
        rf"manifest\.json has {key} \d+, but data/metadata\.json, which it matches, has", tmp_path
    )
    report_of_validate_names(MANIFEST)
    file = dataset.storage.data_path / "main_data.hdf5"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"?")
    refused(r"data/main_data\.hdf5 has different content", tmp_path)
    report_of_validate_names("data/main_data.hdf5", MANIFEST)
    assert list(tmp_path.iterdir()) == []
    file.write_bytes(good)
    dataset.storage.update_metadata({"author": {"Ada"}})  # writes the totals of the metadata
    assert_verified()


def test_a_manifest_that_is_deleted_stops_no_change() -> None:
    """It is how a change of another program that keeps the totals is accepted."""
    dataset = create()
    file = dataset.storage.data_path / "main_data.hdf5"
    with h5py.File(file, "r+") as opened:
        opened["episode_0"].attrs["note"] = "by hand"
    with pytest.raises(CorruptDatasetError, match=r"on purpose, delete manifest\.json$"):
        load_dataset(ID).storage.update_episodes(make(1))
    (folder(dataset) / MANIFEST).unlink()
    load_dataset(ID).storage.update_episodes(make(1))
    assert load_dataset(ID).total_episodes == 6


@pytest.mark.filterwarnings("ignore:.*(overridden|env_spec)")
def test_an_append_by_another_program_is_no_damage_and_is_not_vouched_for(tmp_path: Path) -> None:
    create()
    place = folder(load_dataset(ID))
    write_card(place, {**card_files(facts_at(place / "data")), FILM: b"film"})
    names = ("seed", "observations", "actions", "rewards", "terminations", "truncations")
    given = {name: getattr(make()[0], name) for name in names}
    theirs = minari.data_collector.EpisodeBuffer(**given, infos={})
    minari.load_dataset(ID).update_dataset_from_buffer([theirs])
    dataset = load_dataset(ID)
    for _ in range(2):
        with pytest.raises(CorruptDatasetError, match="changed since it was finished, by a prog"):
            load_dataset(ID, verify=True)
        dataset.storage.update_episodes(make(2))
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"])
    assert done.exit_code == 0
    assert "it was finished" in done.output
    done = minari_pipe.publish_dataset(ID, tmp_path)
    assert done.outcome == "uploaded"
    (note,) = [note for note in done.notes if "another program has changed the dataset" in note]
    assert "\n" not in note
    # what describes the data of before is neither shown nor published
    assert file_of_card(place / "data", FILM) is None
    assert not (tmp_path / ID / "card").exists()


def test_a_manifest_changes_in_the_same_rename_as_the_data(monkeypatch) -> None:
    """A process that is killed right after it leaves both new, one before it both old."""
    dataset = create()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_move_into_place", lambda *folders: None)
        dataset.storage.update_episodes(make(1))
    assert load_dataset(ID).total_episodes == 6
    assert_verified()
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "rename", _killed)
        with pytest.raises(KeyboardInterrupt):
            dataset.storage.update_episodes(make(1))
    assert load_dataset(ID).total_episodes == 6
    assert_verified()


def _killed(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_dataset_that_is_deleted_while_it_is_verified_is_called_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create()
    files_of = manifest.files_of

    def deleted(dataset: Path) -> Any:
        minari_pipe.delete_dataset(ID)
        return files_of(dataset)

    monkeypatch.setattr(manifest, "files_of", deleted)
    with pytest.raises(DatasetNotFoundError, match="does not exist any more; it was deleted"):
        load_dataset(ID, verify=True)


def test_a_dataset_that_grows_is_verified_without_a_false_alarm() -> None:
    dataset = create()
    done = threading.Event()

    def grow() -> None:
        for seed in range(15):
            dataset.storage.update_episodes(make(seed, 1))
        done.set()

    thread = threading.Thread(target=grow)
    thread.start()
    while not done.is_set():
        load_dataset(ID, verify=True)
    thread.join()
    assert_verified()


def test_the_content_hash_of_a_publication_goes_with_the_first_change() -> None:
    dataset = create()
    path = folder(dataset) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "content_sha256": "0" * 64}))
    dataset.storage.update_metadata({"author": {"Ada"}})
    assert "content_sha256" not in json.loads(path.read_text())
    assert_verified()


def test_real_minari_lists_and_loads_a_dataset_with_a_manifest() -> None:
    create()
    with warnings.catch_warnings(action="ignore"):
        assert list(minari.list_local_datasets()) == [ID]
        assert minari.load_dataset(ID).total_episodes == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"files": 5}',
        '{"files": {"data/../../x": {}}}',
        '{"files": {"../../x": {"sha256": "0", "size": 1}}}',
    ],
)
def test_validate_reports_a_damaged_manifest(text: str) -> None:
    (folder(create()) / MANIFEST).write_text(text)
    done = CliRunner().invoke(app, ["validate", ID, "--no-replay"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "manifest.json" in done.output
    assert "is not a manifest" in done.output or "is damaged" in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_what_is_no_file_is_not_waited_for() -> None:
    place = folder(create())
    content = json.loads((place / MANIFEST).read_text())
    os.mkfifo(place / "data" / "pipe")
    for name in ("pipe", "metadata.json/x", "x" * 5000):
        content["data"][name] = {"xxh3_128": "0" * 32, "size": 0}
    (place / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CorruptDatasetError, match=r"pipe is not a regular file; data/meta.*n/x is"):
        load_dataset(ID, verify=True)
    (place / MANIFEST).unlink()
    os.mkfifo(place / MANIFEST)
    with pytest.raises(CorruptDatasetError, match=r"manifest\.json is not a manifest"):
        load_dataset(ID, verify=True)


def test_what_a_stranger_left_as_a_commit_is_written_nowhere_else(tmp_path: Path) -> None:
    """A dataset may come with what looks like a change that was broken off."""
    dataset = create()
    outside = tmp_path / "outside"
    outside.mkdir()
    commit = dataset.storage.data_path / ".minari_pipe-commit"
    (commit / "sub").mkdir(parents=True)
    (commit / "sub" / ".profile").write_text("evil")
    (dataset.storage.data_path / "sub").symlink_to(outside)
    with contextlib.suppress(OSError):
        dataset.storage.update_metadata({"author": {"Ada"}})
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "theirs", [{"files": ["index.js"]}, {"format": "web"}, {"files": {"a": 1}}]
)
@pytest.mark.parametrize("change", ["append", "metadata", "upgrade"])
def test_a_commit_replaces_no_file_of_the_user_that_has_the_name_of_a_manifest(
    change: str, theirs: dict[str, Any], tmp_path: Path
) -> None:
    """An archive may unpack to ``data/`` beside any files of the user."""
    data = Path(shutil.copytree(create().storage.data_path, tmp_path / "mine" / "data"))
    metadata = json.loads((data / "metadata.json").read_text())
    (data / ".minari_pipe-commit").mkdir()
    staged = json.dumps(describe(folder(load_dataset(ID)), metadata))
    (data / ".minari_pipe-commit" / ".manifest.json").write_text(staged)
    (tmp_path / "mine" / MANIFEST).write_text(json.dumps(theirs))
    if change == "upgrade":
        CliRunner().invoke(app, ["validate", str(data), "--upgrade"])
    elif change == "append":
        minari_pipe.MinariDataset(data).storage.update_episodes(make(1))
    else:
        minari_pipe.MinariDataset(data).storage.update_metadata({"author": {"Ada"}})
    assert json.loads((tmp_path / "mine" / MANIFEST).read_text()) == theirs


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_commit_decides_nothing_about_files_outside_the_data(
    has_manifest: bool, tmp_path: Path
) -> None:
    """A stranger's ``data/`` may hold one that lists files of the user."""
    data = Path(shutil.copytree(create().storage.data_path, tmp_path / "mine" / "data"))
    manifest = tmp_path / "mine" / MANIFEST
    own = (folder(load_dataset(ID)) / MANIFEST).read_bytes()
    if has_manifest:
        manifest.write_bytes(own)
    for name in ("card", "policies"):
        (tmp_path / "mine" / name).mkdir()
        (tmp_path / "mine" / name / "mine.txt").write_text("mine")
    listed = {"mine.txt": entry_of(tmp_path / "mine" / "card" / "mine.txt")}
    (data / ".minari_pipe-commit").mkdir()
    planted = json.dumps({**json.loads(own), "card": listed, "policies": listed})
    (data / ".minari_pipe-commit" / ".manifest.json").write_text(planted)
    told = CliRunner().invoke(app, ["validate", str(data)]).stdout
    assert "different content" not in told and ("mine.txt" in told) == has_manifest
    done = minari_pipe.publish_dataset(ID, tmp_path / "remote", folder=tmp_path / "mine")
    assert set(done.sizes) == {"data/main_data.hdf5", "data/metadata.json", MANIFEST}
    assert not has_manifest or manifest.read_bytes() == own


def test_a_change_that_is_left_says_nothing_of_the_checkpoints() -> None:
    data = create().storage.data_path
    (data.parent / "policies").mkdir()
    (data.parent / "policies" / "policy.zip").write_bytes(b"x")
    metadata = json.loads((data / "metadata.json").read_text())
    (data.parent / MANIFEST).write_text(json.dumps(describe(data.parent, metadata)))
    (data / ".minari_pipe-commit").mkdir()
    load_dataset(ID, verify=True)
    (data.parent / "policies" / "policy.zip").write_bytes(b"y")
    with pytest.raises(CorruptDatasetError, match=r"policies/policy\.zip has different content"):
        load_dataset(ID, verify=True)


def test_a_file_that_a_change_left_and_no_manifest_names_is_found() -> None:
    data = create().storage.data_path
    (data / ".minari_pipe-commit").mkdir()
    (data / "main_data.hdf5").rename(data / ".minari_pipe-commit" / "main_data.hdf5")
    content = json.loads((data.parent / MANIFEST).read_text())
    del content["data"]["main_data.hdf5"]
    (data.parent / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CorruptDatasetError, match=r"data/main_data\.hdf5 is not in the manifest"):
        load_dataset(ID, verify=True)


@pytest.mark.parametrize("key", ["total_episodes", "total_steps"])
def test_metadata_without_a_total_are_described_by_none(key: str) -> None:
    data = create().storage.data_path
    metadata = json.loads((data / "metadata.json").read_text())
    for other in ({}, {key: "x"}, {key: None}):
        with pytest.raises(InvalidMetadataError, match=f"{key}.*expected a whole number"):
            describe(data.parent, {k: v for k, v in metadata.items() if k != key} | other)


def test_a_long_name_in_a_manifest_takes_no_more_memory_than_its_text() -> None:
    deep = "data" + "/a" * 1_000_000
    tracemalloc.start()
    try:
        assert not is_plain_path(deep)
        assert not is_plain_path("data/" + ".a" * 1_000_000)
        assert is_file_name("a.a" * 1_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
