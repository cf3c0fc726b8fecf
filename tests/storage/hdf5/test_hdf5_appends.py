"""An append keeps every episode as it was read before, whoever wrote the file, and is verified."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.metadata import dump_metadata
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.hdf5 import file as hdf5_file
from minari_pipe.storage.hdf5.file import open_to_write
from minari_pipe.storage.hdf5.index import match as hdf5_match
from minari_pipe.storage.hdf5.writer import direct as hdf5_direct
from minari_pipe.storage.hdf5.writer.direct import root_of
from minari_pipe.storage.hdf5.writer.layout_root import Root, ends_of
from minari_pipe.testing import assert_same
from tests.conftest import FULL

BOX = spaces.Box(-1, 1, (3,), np.float64)
SPACES = {"observation_space": BOX, "action_space": spaces.Discrete(3)}
#: values that are found in no other part of a file
MARK = 1.2345678901234567


def episode(steps: int, number: int = 0, **info: Any) -> EpisodeBuffer:
    infos = {"x": np.arange(steps + 1.0)} | {
        key: [value] * (steps + 1) for key, value in info.items()
    }
    return EpisodeBuffer(
        seed=number,
        observations=np.full((steps + 1, 3), MARK + number),
        actions=np.arange(steps) % 3,
        rewards=np.linspace(0, 1, steps) + number,
        terminations=np.zeros(steps, bool),
        truncations=np.arange(steps) == steps - 1,
        infos=infos,
        metadata={"weather": f"rain{number}"},
    )


def text() -> EpisodeBuffer:
    """An episode that libhdf5 writes."""
    return episode(3, 9, said="wörd")


def stored(folder: Path, *episodes: EpisodeBuffer, **options: Any) -> Path:
    storage = MinariStorage.new(folder / "data", *SPACES.values(), **options)
    storage.update_episodes(list(episodes))
    return folder / "data" / "main_data.hdf5"


def read(path: Path) -> list[Any]:
    """Every episode with its attributes; an error for one that is damaged."""
    os.utime(path)  # nothing that this process knows about the file counts
    storage = MinariStorage.read(path.parent)
    found: list[Any] = []
    for index in range(storage.total_episodes):
        try:
            (values,), (attributes,) = (
                list(storage.get_episodes([index], copy=True)),
                list(storage.get_episode_metadata([index])),
            )
            found.append((values, attributes))
        except CorruptDatasetError as error:
            found.append(error)
    return found


def append(path: Path, *episodes: EpisodeBuffer) -> None:
    MinariStorage.read(path.parent).update_episodes(list(episodes))


def patched(path: Path, old: bytes, new: bytes, count: int = 1) -> None:
    content = path.read_bytes()
    assert content.count(old) == count and len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def by_h5py(path: Path, **options: Any) -> Path:
    """Let h5py write the file anew, in another layout."""
    with h5py.File(path) as old, h5py.File(path.with_name("new"), "w", **options) as new:
        for name in old:
            old.copy(name, new)
        new.create_dataset("gone", data=np.arange(1000.0))
        del new["gone"]
    return path.with_name("new").replace(path)


@contextmanager
def what_libhdf5_changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Collect the files that libhdf5 opens to write, as they were before."""
    opened: list[bytes] = []

    def noting(path: Path, *arguments: Any) -> Any:
        opened.append(path.read_bytes())
        return open_to_write(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(hdf5_file, "open_to_write", noting)
        yield opened


# --- a file in our layout whose parts lie where an append writes, or overlap


def places(path: Path) -> tuple[list[int], Root]:
    """The addresses of the observations of each episode, and the root group."""
    content, root = path.read_bytes(), root_of(path)
    assert root is not None
    starts, mark = [], 0
    for number in range(len(root.headers)):
        mark = content.index(np.float64(MARK + number).tobytes(), mark)
        starts.append(mark)
    return starts, root


def observations_in(where: Callable[[int], int]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (_, start), root = places(path)
        patched(path, struct.pack("<Q", start), struct.pack("<Q", where(root.start)))

    return change


def text_in_the_root_group(path: Path) -> None:
    """A heap before the root group, whose only text is the root's first word."""
    root = root_of(path)
    assert root is not None
    content = path.read_bytes()[: root.start]
    heap = struct.pack("<4sB3xQHHIQ", b"GCOL", 1, 40, 1, 0, 0, 8)
    at = content.index(b"GCOL")
    old = struct.pack("<IQI", 5, at, 1)
    assert content.count(old) == 1
    content = content.replace(old, struct.pack("<IQI", 4, root.start, 1)) + heap
    first, last = ends_of(Root(root.start + len(heap), root.headers))
    path.write_bytes(first + content[len(first) :] + last)
    assert read(path)[0][1]["weather"] == "HEAP"


MOVED = {
    "values in the root group": observations_in(lambda root: root + 8),
    "values that end in it": observations_in(lambda root: root - 8),
    "values in the superblock": observations_in(lambda _: 8),
    "text in the root group": text_in_the_root_group,
}


@pytest.mark.parametrize("more", [episode(2, 5), text()], ids=["numbers", "text"])
@pytest.mark.parametrize("change", MOVED.values(), ids=MOVED.keys())
def test_what_lies_where_an_append_writes_keeps_its_values(
    change: Callable[[Path], None], more: EpisodeBuffer, tmp_path: Path
) -> None:
    path = stored(tmp_path, episode(2), episode(3, 1))
    change(path)
    before = read(path)
    assert len(before) == 2
    append(path, more)
    assert_same(before, read(path)[:2])


@pytest.mark.parametrize(
    "change",
    [
        lambda path: append(path, text()),
        lambda path: append(path, replace(part(), id=0)),
        lambda path: append(path, replace(part(), id=1)),
        lambda path: MinariStorage.read(path.parent).update_episode_metadata([{"x": "y"}], [1]),
    ],
    ids=["append", "continue the first", "continue the second", "attributes"],
)
def test_values_that_two_episodes_share_are_kept_when_one_of_them_changes(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path = stored(tmp_path, *(episode(2, number) for number in range(3)))
    (first, second, _), _ = places(path)
    patched(path, struct.pack("<Q", second), struct.pack("<Q", first))
    before = read(path)
    assert_same(before[0][0]["observations"], before[1][0]["observations"])
    change(path)
    change(path)
    for (values, _), (later, _) in zip(before, read(path)[:3]):
        for name, rows in values.items():
            if name not in ("id", "seed", "infos", "extras"):
                assert_same(rows, later[name][: len(rows)])


def part() -> EpisodeBuffer:
    """Two steps that continue an episode."""
    more = episode(2, 7)
    return replace(
        more,
        seed=None,
        observations=more.observations[1:],
        infos={"x": np.arange(2.0)},
    )


def test_an_episode_that_an_interrupted_append_left_takes_nothing_with_it(tmp_path: Path) -> None:
    """Here it shares its header with another one."""
    path = stored(tmp_path, episode(2), episode(2, 1))
    root = root_of(path)
    assert root is not None
    before = read(path)[:1]
    headers = np.array([root.headers[0], root.headers[0]])
    first, last = ends_of(Root(root.start, headers))
    path.write_bytes(first + path.read_bytes()[len(first) : root.start] + last)
    storage = MinariStorage.read(path.parent)
    metadata = storage.read_raw_metadata(path.parent)
    metadata |= {"total_episodes": 1, "total_steps": 2}
    (path.parent / "metadata.json").write_text(dump_metadata(metadata))
    with pytest.warns(UserWarning, match="has 2 episodes, metadata.json says 1: the others are"):
        append(path, text())
    after = read(path)
    assert_same(before, after[:1])
    assert len(after) == 2


# --- attributes that no writer of ours would write

ODD: dict[str, dict[str, Any]] = {
    "number of steps in the exact form": {"minari_pipe_exact": '{"total_steps": 1}'},
    "other seed in the exact form": {"minari_pipe_exact": '{"seed": 7}'},
    "seed that is a float": {"seed": 3.7},
    "seed that is a short float": {"seed": np.float16(3.5)},
    "seed that is text": {"seed": "5"},
    "seed that is bytes": {"seed": np.bytes_(b"5")},
    "seed that is a flag": {"seed": True},
    "small integer as a seed": {"seed": np.int8(5)},
}


@pytest.mark.parametrize("more", [episode(2, 5), text()], ids=["numbers", "text"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_odd_attributes_are_kept_as_they_are_read(
    odd: dict[str, Any], more: EpisodeBuffer, tmp_path: Path
) -> None:
    path = stored(tmp_path, episode(2), episode(3, 1))
    with h5py.File(path, "r+") as file:
        for name, value in odd.items():
            file["episode_1"].attrs[name] = value
    before = read(path)
    append(path, more)
    after = read(path)
    assert_same(before, after[:2])
    assert after[1][0]["seed"] in (None, after[1][1]["seed"])


@pytest.mark.parametrize("form", ["7", '["tuple", [1]]'])
def test_the_exact_form_of_the_number_of_steps_is_compared_too(form: str, tmp_path: Path) -> None:
    path = stored(tmp_path, episode(2), episode(3, 1))
    with h5py.File(path, "r+") as file:
        file["episode_1"].attrs["minari_pipe_exact"] = f'{{"total_steps": {form}}}'
    whole = path.read_bytes()
    assert "total_steps is" in str(read(path)[1])
    with pytest.raises(CorruptDatasetError, match="total_steps is"):
        append(path, episode(2, 5))
    assert path.read_bytes() == whole


def with_a_nul(file: h5py.File) -> None:
    file["episode_0/infos/said"] = np.array([b"a\0b"] * 3)


def with_an_odd_name(file: h5py.File) -> None:
    three = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file["episode_0/infos"].id, b"\xff", h5py.h5t.NATIVE_DOUBLE, three)


@pytest.mark.parametrize("change", [with_a_nul, with_an_odd_name])
def test_what_cannot_be_written_anew_is_told(
    change: Callable[[h5py.File], None], tmp_path: Path
) -> None:
    path = stored(tmp_path, episode(2), episode(3, 1))
    with h5py.File(path, "r+") as file:
        change(file)
    whole = path.read_bytes()
    with pytest.raises(CorruptDatasetError, match="main_data.hdf5: episode 0 must be written anew"):
        append(path, episode(2, 5))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("filled", ["3", "NaN", '{"x": 3}', '"x"'])
def test_an_episode_whose_filled_infos_are_no_ranges_is_not_continued(
    filled: str, tmp_path: Path
) -> None:
    path = stored(tmp_path, episode(2))
    with h5py.File(path, "r+") as file:
        file["episode_0"].attrs["infos_filled"] = filled
    whole = path.read_bytes()
    with pytest.raises(CorruptDatasetError, match="episode 0: the attribute infos_filled is"):
        append(path, replace(part(), id=0))
    assert path.read_bytes() == whole


def test_a_chunk_that_our_writer_would_divide_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path, episode(2), episode(9, 1))
    for module in (hdf5_direct, hdf5_match):
        monkeypatch.setattr(module, "CHUNK_BYTES", 60)
    before = read(path)
    for more in (episode(2, 5), text()):
        append(path, more)
    assert_same(before, read(path)[:2])


# --- a file of another program

LAYOUTS: dict[str, dict[str, Any]] = {
    "earliest": {"libver": "earliest"},
    "latest": {"libver": "latest"},
    "creation order": {"track_order": True},
    "persistent free space": {"fs_strategy": "fsm", "fs_persist": True, "fs_threshold": 1},
    "pages": {"libver": "latest", "fs_strategy": "page", "fs_persist": True},
}


@pytest.mark.parametrize("more", [episode(2, 5), text()], ids=["numbers", "text"])
@pytest.mark.parametrize("first", [episode(2), text()], ids=["numbers", "text"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_libhdf5_changes_no_file_of_another_process(
    layout: str,
    first: EpisodeBuffer,
    more: EpisodeBuffer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = by_h5py(
        stored(tmp_path, first, *(episode(2, n) for n in range(1, 12))), **LAYOUTS[layout]
    )
    before, foreign = read(path), path.read_bytes()
    with what_libhdf5_changes(monkeypatch) as changed:
        append(path, more)
        append(path, text())
    assert changed and not any(content[:4096] == foreign[:4096] for content in changed)
    assert_same(before, read(path)[: len(before)])


@pytest.mark.parametrize("level", [None, 1, 9])
def test_an_episode_stays_compressed(level: int | None, tmp_path: Path) -> None:
    path = stored(tmp_path, *(episode(300, number) for number in range(3)), compression=level)
    by_h5py(path)
    before = read(path)
    append(path, episode(2, 3))
    with h5py.File(path) as file:
        assert file["episode_1/rewards"].compression_opts == level
    assert_same(before, read(path)[:3])


def test_nothing_is_appended_to_a_damaged_file(tmp_path: Path) -> None:
    path = by_h5py(stored(tmp_path, episode(2), text()), libver="earliest")
    content = path.read_bytes()
    at = content.rindex(b"TREE")
    path.write_bytes(content[:at] + b"tree" + content[at + 4 :])
    before = path.read_bytes()
    for more in (episode(2), text()):
        with pytest.raises(CorruptDatasetError):
            append(path, more)
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", ["a column", "an attribute"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bool_that_is_neither_0_nor_1_is_refused_whichever_library_reads_it(
    layout: str, where: str, tmp_path: Path
) -> None:
    path = by_h5py(
        stored(tmp_path, replace(episode(2), metadata={"flags": np.array([False, True])})),
        **LAYOUTS[layout],
    )
    with h5py.File(path, "r+") as file:
        odd = np.array([0, 8], np.uint8).view(bool)
        if where == "a column":
            file["episode_0/truncations"][...] = odd
        else:
            h5py.h5a.open(file["episode_0"].id, b"flags").write(odd)
    content = path.read_bytes()
    assert "a bool is neither 0 nor 1" in str(read(path)[0])
    with pytest.raises(CorruptDatasetError, match="a bool is neither 0 nor 1"):
        append(path, text())
    assert path.read_bytes() == content


# --- any damage

#: libhdf5 reads them in another process first, which takes time
PROBED = ("persistent free space", "pages")


def written_by(writer: str, folder: Path) -> Path:
    if writer == "ours with text":
        return stored(folder, episode(2), text(), episode(2, 1))
    path = stored(folder, *(episode(2, number) for number in range(3)))
    return by_h5py(path, **LAYOUTS[writer]) if writer in LAYOUTS else path


@pytest.mark.parametrize("writer", ["ours", "ours with text", *LAYOUTS])
def test_an_append_to_a_damaged_file_is_refused_or_keeps_what_was_read(
    writer: str, tmp_path: Path
) -> None:
    """A crash of libhdf5 ends the process of this test."""
    path = written_by(writer, tmp_path)
    whole, metadata = path.read_bytes(), (path.parent / "metadata.json").read_bytes()
    rng = random.Random(writer)
    structure = [at for at in range(len(whole)) if whole[at]]
    changes = {
        "numbers": lambda: append(path, episode(2, 5)),
        "text": lambda: append(path, text()),
        "a continuation": lambda: append(path, replace(part(), id=1)),
    }
    n_kept = 0
    for _ in range(1000 if FULL else 10 if writer in PROBED else 40):
        content = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.choice(structure) // 8 * 8 + rng.randrange(8)
            content[at % len(content)] = rng.choice([0, 1, 8, 255, rng.randrange(256)])
        path.write_bytes(content)
        (path.parent / "metadata.json").write_bytes(metadata)
        what = rng.choice(list(changes))
        try:
            before = read(path)
            changes[what]()
        except (CorruptDatasetError, ValueError):
            assert path.read_bytes() == content
            continue
        n_kept += 1
        after = read(path)
        for index, found in enumerate(before):
            assert not isinstance(found, CorruptDatasetError), (what, index, found)
            if (what, index) != ("a continuation", 1):
                assert_same(found, after[index], f"{what} {index}")
    assert n_kept


@pytest.mark.parametrize("said", [None, 1.5], ids=["text", "attributes"])
def test_a_long_file_of_another_process_is_written_anew_when_libhdf5_takes_over(
    said: float | None, tmp_path: Path
) -> None:
    """Episodes of several structures, with every kind of attribute, keep all that they had."""
    kinds = [
        episode(2),
        replace(episode(3, 1), options={"goal": {"x": [1, 2]}, "name": "ü"}),
        replace(episode(4, 2), seed=2**70, infos={}),
        replace(episode(2, 3), extras={"state": {"qpos": np.zeros((3, 2))}}),
        replace(episode(2, 4), infos={"a/b": np.arange(3), "deep": {"c": np.arange(3.0)}}),
    ]
    path = stored(tmp_path, *(kinds[number % 5] for number in range(40)))
    before = read(path)
    if said is None:
        append(path, text())
    else:
        MinariStorage.read(path.parent).update_episode_metadata([{"said": said}], [3])
        before[3][1]["said"] = said
    assert_same(before, read(path)[:40])
