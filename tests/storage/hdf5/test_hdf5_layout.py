"""What is written without libhdf5 is what libhdf5 writes, and everybody reads and changes it."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer as TheirBuffer
from minari.dataset.minari_storage import MinariStorage as TheirStorage

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import reserve
from minari_pipe.core.files.checksums import entry_of
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.columns import episode_columns
from minari_pipe.storage.hdf5 import values as hdf5_values
from minari_pipe.storage.hdf5.file import EpisodeFile
from minari_pipe.storage.hdf5.index.cache import StoredIndex
from minari_pipe.storage.hdf5.index.index import Attributes, FileIndex, Runs
from minari_pipe.storage.hdf5.parser.checked import check_readable
from minari_pipe.storage.hdf5.writer import direct as hdf5_direct
from minari_pipe.storage.hdf5.writer.direct import DirectFile, segment_of
from minari_pipe.storage.hdf5.writer.layout import Attribute, Template
from minari_pipe.storage.hdf5.writer.layout_root import Root, ends_of, find_root
from minari_pipe.storage.hdf5.writer.layout_text import text_heaps
from minari_pipe.storage.hdf5.writer.layout_types import InexpressibleError, data_type, text_type
from minari_pipe.storage.segment import AttributeTable, Leaf, Segment
from minari_pipe.testing import assert_same, assert_stored, files
from minari_pipe.testing.strategies import FLOATS, INTEGERS, episode, examples
from minari_pipe.testing.strategies import spaces as any_space
from tests.support import hdf5_visit
from tests.support.covering import covering

BOX = spaces.Box(-1, 1, (3,), np.float64)
#: spaces of the episodes of :func:`steps_of`
OF_STEPS = (BOX, spaces.Discrete(3))
#: an interpreter whose h5py has HDF5 1.10 or 1.12
OLD_H5PY = os.environ.get("MINARI_PIPE_OLD_H5PY")
COMPLEX = ("complex64", "complex128")
NUMBERS = ("bool", *INTEGERS, *FLOATS, *COMPLEX)


# --- compared with h5py, object by object


def assert_alike(expected: Any, found: Any) -> None:
    """Compare two objects of h5py in everything that can be asked."""
    where = expected.name
    ordered = not expected.id.get_create_plist().get_attr_creation_order()
    same = list if ordered else sorted  # a header for large attributes keeps their order too
    assert same(found.attrs) == same(expected.attrs), where
    for name in expected.attrs:
        own, other = (node.attrs.get_id(name) for node in (expected, found))
        assert own.get_type().equal(other.get_type()), (where, name)
        assert (own.shape, own.dtype) == (other.shape, other.dtype), (where, name)
        assert_same(expected.attrs[name], found.attrs[name], f"{where}@{name}")
    if isinstance(expected, h5py.Group):
        assert isinstance(found, h5py.Group), where
        assert list(found) == list(expected), where
        for name in expected:
            assert type(found.get(name, getlink=True)) is h5py.HardLink
            assert_alike(expected[name], found[name])
        return
    assert isinstance(found, h5py.Dataset), where
    own, other = expected.id, found.id
    assert own.get_type().equal(other.get_type()), where
    for what in ("dtype", "shape", "maxshape", "chunks", "fillvalue", "compression", "shuffle"):
        assert getattr(found, what) == getattr(expected, what), (where, what)
    assert other.get_num_chunks() == own.get_num_chunks(), where
    assert other.get_storage_size() == own.get_storage_size(), where
    ours, theirs = (node.get_create_plist() for node in (own, other))
    for what in ("get_nfilters", "get_fill_time", "get_alloc_time", "fill_value_defined"):
        assert getattr(theirs, what)() == getattr(ours, what)(), (where, what)
    assert theirs.get_obj_track_times() == ours.get_obj_track_times(), where
    assert_same(expected[()], found[()], where)


def assert_alike_files(expected: Path, found: Path) -> None:
    check_readable(found)
    with h5py.File(expected) as left, h5py.File(found) as right:
        assert_alike(left, right)


@contextmanager
def reference(path: Path) -> Iterator[EpisodeFile]:
    """A file that h5py writes."""
    with h5py.File(path, "w") as file:
        yield EpisodeFile(file, path)


@contextmanager
def both(folder: Path) -> Iterator[list[EpisodeFile]]:
    """A file of h5py and one of ours; they are compared in the end."""
    with reference(folder / "expected") as expected, EpisodeFile.create(folder / "found") as found:
        yield [expected, found]
    assert_alike_files(folder / "expected", folder / "found")


def without_text(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        parts = {key: without_text(part) for key, part in tree.items()}
        return {key: part for key, part in parts.items() if part is not None}
    return None if tree.dtype.kind == "O" else tree


def plain(space: Any) -> bool:
    """Whether values of a space are numbers only, and no part is empty."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = list(space.values() if isinstance(space, spaces.Dict) else space)
        return bool(parts) and all(map(plain, parts))
    return not isinstance(space, spaces.Text)


def of_numbers(buffer: EpisodeBuffer) -> EpisodeBuffer:
    return replace(
        buffer, infos=without_text(buffer.infos), extras=without_text(buffer.extras or {})
    )


def attributes_of(buffer: EpisodeBuffer, number: int) -> dict[str, Any]:
    own = {"id": number, "total_steps": len(buffer), "return": float(np.sum(buffer.rewards))}
    own |= {"seed": buffer.seed} if buffer.seed is not None else {}
    own |= {"options": buffer.options} if buffer.options is not None else {}
    return own | dict(buffer.metadata)


def joined(segments: list[Segment]) -> Segment:
    """One segment of those of one structure."""
    tables = [segment.attributes for segment in segments]
    names = [
        name
        for name, column in tables[0].numbers.items()
        if all(name in t.numbers and t.numbers[name].dtype == column.dtype for t in tables)
    ]
    numbers = {name: np.concatenate([table.numbers[name] for table in tables]) for name in names}
    others = [
        {key: value for key, value in table[0].items() if key not in names} for table in tables
    ]
    arrays = zip(*(segment.arrays for segment in segments), strict=True)
    return Segment(
        segments[0].first,
        np.concatenate([segment.steps for segment in segments]),
        segments[0].leaves,
        tuple(np.concatenate(parts) for parts in arrays),
        AttributeTable(numbers, others if any(others) else None),
    )


@examples(15)
@given(any_space(), any_space(), st.integers(0, 2**32))
def test_an_episode_is_written_as_h5py_writes_it(
    tmp_path_factory: pytest.TempPathFactory, observations: Any, actions: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    buffers = [of_numbers(episode(observations, actions, rng)) for _ in range(3)]
    with both(tmp_path_factory.mktemp("x")) as pair:
        for buffer in buffers:
            for file in pair:
                file.append(buffer, observations, actions)
        assert (pair[1].index() is not None) == (plain(observations) and plain(actions))


@examples(12)
@given(
    any_space().filter(plain),
    any_space().filter(plain),
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 8, 9]),
)
def test_a_segment_is_written_as_h5py_writes_its_episodes(
    tmp_path_factory: pytest.TempPathFactory, observations: Any, actions: Any, seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    buffers = [of_numbers(episode(observations, actions, rng)) for _ in range(count)]
    columns = [episode_columns(b, observations, actions, episode=0) for b in buffers]
    singles = [
        segment_of(column, attributes_of(buffer, number), number)
        for number, (column, buffer) in enumerate(zip(columns, buffers, strict=True))
    ]
    runs: list[list[Segment]] = []
    for single in singles:
        assert single is not None
        if not runs or runs[-1][0].leaves != single.leaves:
            runs.append([])
        runs[-1].append(single)
    with both(tmp_path_factory.mktemp("x")) as (expected, found):
        for run in runs:
            for single in run:
                expected._append({"infos": {}, **single.columns(0)}, single.attributes[0])
            found._append_segment(joined(run))
        assert len(found) == count
        assert found.index() is not None


def steps_of(*steps: int, first: int = 0, **attributes: Any) -> Segment:
    """A segment of short rows and of these attributes, each a list with one of each episode."""
    counts = np.array(steps)
    total, count = int(counts.sum()), len(counts)
    leaves = (
        Leaf(("observations",), np.dtype("<f8"), (3,), 1),
        Leaf(("actions",), np.dtype("<i8"), (), 0),
        Leaf(("rewards",), np.dtype("<f8"), (), 0),
        Leaf(("terminations",), np.dtype(bool), (), 0),
        Leaf(("truncations",), np.dtype(bool), (), 0),
    )
    arrays = (
        np.arange(3.0 * (total + count)).reshape(-1, 3) + first,
        np.arange(total),
        np.linspace(0, 1, total),
        np.zeros(total, bool),
        np.arange(total) % 2 == 0,
    )
    numbers = {"id": np.arange(first, first + count), "total_steps": counts}
    others = [
        {key: values[place] for key, values in attributes.items() if values[place] is not ...}
        for place in range(count)
    ]
    return Segment(
        first, counts, leaves, arrays, AttributeTable(numbers, others if attributes else None)
    )


def write(file: EpisodeFile, *segments: Segment) -> None:
    for segment in segments:
        file._append_segment(segment)


ATTRIBUTES = {
    "text of all lengths": ["", "rain", "ünï 🙂" * 30],
    "long text": ["x" * 100_000, "", "y" * 70_000],
    "of other types": [1, 2.5, "three"],
    "only some": [..., 1.5, ...],
    "arrays of one shape": [np.arange(3), np.zeros(3, int), np.ones(3, int)],
    "arrays of other shapes": [np.zeros((2, 2)), np.zeros(0), np.zeros((1, 0, 3), np.int8)],
    "arrays of text": [["a", "b"], ["", "ü"], ["c" * 9, "d"]],
    "no text": [np.array([], object), np.array([], object), np.array(["x"], object)],
    "options": [{"low": -0.5, "goal": {"x": np.zeros(2)}}, {"low": 1.0}, {}],
    "with/slash": [1.5, "x", None],
    "nothing": [None, None, None],
    "large numbers": [2**63, 2**64 - 1, 2**70],
    "scalars": [np.float32(0.1), np.int8(3), np.uint64(2**63)],
    "complex": [np.complex128(1j), np.complex64(2), np.zeros(2, complex)],
    "big endian": [np.arange(3, dtype=">i4"), np.zeros(2, ">f8"), np.float16(3)],
    "tuples and lists": [(1, 2), [1, 2.5], [["x"], None]],
    "Ω name": ["x", 1.5, np.zeros(3)],
    "too large for a small header": [np.zeros(9_000), np.zeros(7_000), "x"],
    "more digits than HDF5 has here": [np.longdouble(1) / 3, 1.5, 2.5],
    "infos_filled": [{"x": [[0, 1]]}, {}, {"y": []}],
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_written_as_h5py_writes_them(tmp_path: Path, name: str) -> None:
    if name == "more digits than HDF5 has here":
        # JSON holds no such numbers; an array of them has no form here
        with pytest.raises(InexpressibleError):
            data_type(np.dtype(np.longdouble))
    given = steps_of(2, 1, 3, **{name: ATTRIBUTES[name], "other": ["x", "y", "z"]})
    with both(tmp_path) as (expected, found):
        EpisodeFile.__mro__[1]._append_segment(expected, given)
        write(found, given)
        index = found.index()
        if index is not None:
            for number in range(3):
                assert_same(expected.episode_metadata(number), index.attributes[number])
        for number in range(3):
            assert_same(expected.episode_metadata(number), found.episode_metadata(number))


def test_an_attribute_that_cannot_be_stored_is_named_and_changes_nothing(tmp_path: Path) -> None:
    whole = steps_of(1, 2, weather=["rain", "sun"])
    bad = steps_of(2, 1, first=2, x=[1, object()])
    clash = steps_of(2, 1, first=2, a=[1, 1], **{"a/b": [2, 2]})
    with both(tmp_path) as (expected, found):
        write(expected, whole)
        write(found, whole)
        with pytest.raises(InvalidEpisodeError, match="^episode 3: x cannot be stored"):
            write(found, bad)
        with pytest.raises(InvalidEpisodeError, match="^episode 2: two values share"):
            write(found, clash)
        assert len(found) == 2


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", NUMBERS)
def test_types_are_described_as_libhdf5_describes_them(name: str, order: str) -> None:
    dtype = np.dtype(name).newbyteorder(order)
    expected = h5py.h5t.py_create(dtype, logical=True).encode()
    assert data_type(dtype) == bytes(expected)[2:]


def test_text_is_described_as_libhdf5_describes_it() -> None:
    expected = bytearray(h5py.h5t.py_create(h5py.string_dtype(), logical=True).encode()[2:])
    expected[4] = 16  # bytes in a file, not of a pointer in memory
    assert text_type() == bytes(expected)


@pytest.mark.parametrize("dtype", ["S3", "U3", "O", "M8[s]", "V4", "longdouble"])
def test_other_types_are_left_to_h5py(dtype: str) -> None:
    with pytest.raises(InexpressibleError):
        data_type(np.dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    covering(
        [np.dtype(name).newbyteorder(order) for name in NUMBERS for order in "<>"],
        [(), (2,), (0,), (2, 0, 3), (1,) * 31],
    ),
)
def test_rows_of_every_type_and_shape_are_written_as_h5py_writes_them(
    tmp_path: Path, dtype: np.dtype, shape: tuple[int, ...]
) -> None:
    rows = np.arange(5 * int(np.prod(shape))).astype(dtype).reshape(5, *shape)
    buffer = EpisodeBuffer(
        observations=rows,
        actions=rows[::-1][:4],
        rewards=np.zeros(4),
        terminations=np.zeros(4, bool),
        truncations=np.ones(4, bool),
        infos={"a/b": rows, "a": {"c": rows}, "..": rows, "long name " * 40: rows},
    )
    with both(tmp_path) as pair:
        for file in pair:
            file.append(buffer)
        assert pair[1].index() is not None


def test_a_type_with_a_meaning_of_h5py_is_left_to_h5py(tmp_path: Path) -> None:
    colours = h5py.enum_dtype({"RED": 0, "BLUE": 1}, basetype="i4")
    segment = steps_of(2, 1)
    leaves = list(segment.leaves)
    leaves[1] = replace(leaves[1], dtype=colours)
    arrays = list(segment.arrays)
    arrays[1] = arrays[1].astype("i4").view(colours)
    segment = replace(segment, leaves=tuple(leaves), arrays=tuple(arrays))
    with both(tmp_path) as (expected, found):
        write(expected, segment)
        write(found, segment)
        assert found.index() is None
        assert h5py.check_enum_dtype(found._file["episode_0/actions"].dtype)


def test_a_large_array_has_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 1 GiB in earnest; libhdf5 refuses 4 GiB."""
    assert hdf5_direct.CHUNK_BYTES == hdf5_values._CHUNK_BYTES == 2**30
    monkeypatch.setattr(hdf5_direct, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(hdf5_values, "_CHUNK_BYTES", 1000)
    short, long = steps_of(2, 40), steps_of(2, 41, first=2)
    with both(tmp_path) as (expected, found):
        write(expected, short, long)
        write(found, short)
        assert found.index() is not None
        write(found, long)
        assert found.index() is None
        assert found._file["episode_1/observations"].id.get_num_chunks() == 1
        assert found._file["episode_3/observations"].id.get_num_chunks() == 2


# --- the two ends of the file


@pytest.mark.parametrize("count", [0, 1, 3, 8, 9, 256, 257, 300, 3000, 8193])
def test_any_number_of_episodes_is_found(tmp_path: Path, count: int) -> None:
    """Their names need a tree of up to three levels."""
    with EpisodeFile.create(tmp_path / "x") as file:
        if count:
            write(file, steps_of(*(1 + np.arange(count) % 3)))
    with h5py.File(tmp_path / "x") as file:
        assert list(file) == sorted(f"episode_{i}" for i in range(count))
        for number in {0, 1, count // 2, count - 1} & set(range(count)):
            group = file[f"episode_{number}"]
            assert group.attrs["id"] == number
            assert group["actions"].shape == (1 + number % 3,)
        assert len(file["episode_0"]) == 6 if count else True
        assert "episode_x" not in file
    root = find_root((tmp_path / "x").read_bytes())
    assert root is not None and len(root.headers) == count
    with EpisodeFile.open(tmp_path / "x") as file:
        assert len(file) == count
    if count <= 300:
        check_readable(tmp_path / "x")
    with h5py.File(tmp_path / "x", "r+") as file:  # libhdf5 splits full nodes
        for number in range(count, count + 40):
            file.create_group(f"episode_{number}").attrs["id"] = number
    with h5py.File(tmp_path / "x") as file:
        for number in range(max(0, count - 300), count + 40):
            assert file[f"episode_{number}"].attrs["id"] == number


def test_a_root_group_is_found_only_if_it_is_exactly_ours(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, steps_of(*[1] * 9))
    content = (tmp_path / "x").read_bytes()
    root = find_root(content)
    assert root is not None
    assert ends_of(root) == (content[:104], content[root.start :])
    for place in (*range(104), *range(root.start, len(content))):
        for flip in (1, 128):
            damaged = bytearray(content)
            damaged[place] ^= flip
            found = find_root(bytes(damaged))
            # a header may be said to be elsewhere, and siblings of nodes are not looked at
            assert found is None or found.start in (root.start, len(content))
            assert found is None or (found.headers < len(content)).all()
    for size in (*range(0, len(content), 97), len(content) - 1):
        assert find_root(content[:size]) is None
    longer = find_root(content + b"\0")  # which nothing uses
    assert longer is not None and longer.start == root.start
    assert longer.headers.tolist() == root.headers.tolist()


def test_a_root_group_of_others_is_not_ours(tmp_path: Path) -> None:
    with reference(tmp_path / "x") as file:
        write(file, steps_of(1, 2))
    assert find_root((tmp_path / "x").read_bytes()) is None
    with EpisodeFile.create(tmp_path / "y") as file:
        write(file, steps_of(1, 2))
    with h5py.File(tmp_path / "y", "r+") as changed:
        changed["episode_1"].attrs["new"] = 3
    assert find_root((tmp_path / "y").read_bytes()) is None


def test_ten_million_episodes_have_longer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from minari_pipe.storage.hdf5.writer import layout_root

    monkeypatch.setattr(layout_root, "_name_width", lambda count: 16 if count <= 10 else 24)
    for count in (10, 11, 16, 17, 30):
        start, end = ends_of(Root(3000, 104 + 8 * np.arange(count)))
        found = find_root(start + bytes(3000 - len(start)) + end)
        assert found is not None and found.headers.tolist() == [104 + 8 * i for i in range(count)]


# --- text


def test_more_text_than_one_heap_holds_is_in_several(tmp_path: Path) -> None:
    texts = [f"{i}" * (i % 60) for i in range(2_000)] + ["x" * 200_000, "last"]
    heaps, references = text_heaps([text.encode() for text in texts], 800)
    assert len(set(references["address"].tolist())) > 5
    for text, (length, address, _) in zip(texts, references.tolist(), strict=True):
        assert length == len(text)
        assert 800 <= address < 800 + len(heaps)
        assert heaps[address - 800 :][:4] == b"GCOL"
    given = steps_of(*[1] * len(texts), note=texts)
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, given)
    with h5py.File(tmp_path / "x") as file:
        assert [file[f"episode_{i}"].attrs["note"] for i in range(len(texts))] == texts


def test_empty_texts_fill_a_heap_with_numbers() -> None:
    """An object has a number of 16 bits."""
    _, references = text_heaps([b""] * 70_000, 0)
    assert references["index"].max() < 2**16
    pairs = set(zip(references["address"].tolist(), references["index"].tolist(), strict=True))
    assert len(pairs) == 70_000


# --- templates recognize what they made


def template() -> tuple[Template, Segment]:
    segment = steps_of(3, 1, 4)
    attributes = (Attribute("id", np.dtype("<i8")), Attribute("note", None, (2,)))
    return Template(segment.leaves, attributes), segment


def test_a_template_recognizes_its_blocks_and_reads_them() -> None:
    made, segment = template()
    starts = 5000 + made.size * np.arange(3)
    addresses = np.arange(15).reshape(5, 3) * 8 + 800
    values = [np.arange(3 * 8, dtype=np.uint8).reshape(3, 8), np.ones((3, 32), np.uint8)]
    blocks = made.fill(starts, segment.steps, addresses, values)
    found = made.match(blocks, starts)
    assert found.whole.all()
    assert_same(segment.steps, found.steps)
    assert_same(addresses, found.addresses)
    for own, value in zip(values, found.values, strict=True):
        assert_same(own, np.ascontiguousarray(value))
    assert not made.match(blocks, starts + 8).whole.any()


def test_a_template_recognizes_no_damaged_block() -> None:
    """Whatever byte is another one: it is not whole, or it is another value, and sound."""
    made, _ = template()
    starts = np.full(made.size, 5000)
    count = made.size
    values = [np.zeros((count, 8), np.uint8), np.zeros((count, 32), np.uint8)]
    steps, addresses = np.full(count, 3), np.full((5, count), 800)
    blocks = made.fill(starts, steps, addresses, values)
    for flip in (1, 64, 128, 255):
        damaged = blocks.copy()
        damaged[np.arange(count), np.arange(count)] ^= flip
        found = made.match(damaged, starts)
        same = (found.steps == 3) & (found.addresses == 800).all(axis=0)
        same &= np.all([(value == 0).all(axis=1) for value in found.values], axis=0)
        assert not (found.whole & same).any()
        assert (found.addresses[:, found.whole] >= 0).all()
        assert (found.steps[found.whole] == 3).all()  # it is in several places
        assert found.whole.sum() <= 40 + 8 * 5


@pytest.mark.parametrize("steps", [0, -1, 2**32, 2**32 + 3, 2**62, 2**63 - 1])
def test_a_template_recognizes_no_number_of_steps_that_no_chunk_has(steps: int) -> None:
    made, _ = template()
    starts, addresses = np.array([5000]), np.full((5, 1), 800)
    values = [np.zeros((1, 8), np.uint8), np.zeros((1, 32), np.uint8)]
    with np.errstate(over="ignore"):
        blocks = made.fill(starts, np.array([steps]), addresses, values)
        assert not made.match(blocks, starts).whole.any()


@pytest.mark.parametrize(
    ("leaves", "attributes"),
    [
        ((Leaf(("x",), np.dtype("<f8"), (1,) * 32, 0),), ()),
        ((Leaf(("x",), np.dtype("<f8"), (2**29,), 0),), ()),
        ((Leaf(("x" * 70_000,), np.dtype("<f8"), (), 0),), ()),
        ((Leaf(("x",), np.dtype("U3"), (), 0),), ()),
        ((Leaf(("x",), np.dtype("f8"), (), 0), Leaf(("extras", "x"), np.dtype("f8"), (), 0)), ()),
        ((Leaf(("x",), np.dtype("f8"), (), 0), Leaf(("x", "y"), np.dtype("f8"), (), 0)), ()),
        ((), (Attribute("x", np.dtype("<f8"), (9_000,)),)),
        ((), (Attribute("x" * 70_000, np.dtype("<f8")),)),
    ],
)
def test_what_has_no_form_in_a_template_is_told(leaves: Any, attributes: Any) -> None:
    with pytest.raises(InexpressibleError):
        Template(leaves, attributes)


# --- one file, written directly and through h5py


def test_h5py_goes_on_where_something_has_no_form(tmp_path: Path) -> None:
    space = spaces.Text(9)
    rng = np.random.default_rng(0)
    text = episode(space, BOX, rng, 3)
    with both(tmp_path) as pair:
        for file in pair:
            write(file, steps_of(2, 1, weather=["rain", "sun"]))
            file.append(text, space, BOX)
            write(file, steps_of(3, first=3))
        assert pair[1].index() is None


def test_episodes_are_read_and_continued_while_the_file_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffer = of_numbers(episode(BOX, BOX, rng, 3))
    more = EpisodeBuffer(
        id=0,
        observations=buffer.observations[1:],
        actions=buffer.actions,
        rewards=buffer.rewards,
        terminations=buffer.terminations,
        truncations=buffer.truncations,
        infos={},
    )
    buffer = replace(buffer, infos={}, extras={})
    with both(tmp_path) as pair:
        for file in pair:
            file.append(buffer, BOX, BOX)
            assert len(file.read(0, BOX, BOX)) == 3
            file.add([more], BOX, BOX)
            file.append(buffer, BOX, BOX)
            file.update_metadata(1, {"weather": "rain"})
            write(file, steps_of(1, 2, first=2))
            assert len(file) == 4
            assert len(file.read(0, BOX, BOX)) == 6


def in_parts(index: FileIndex | None) -> StoredIndex:
    """The stored form of an index, whose parts are not merged."""
    assert index is not None
    runs = tuple(Runs.of(part, index.steps) for part in index.parts)
    return StoredIndex(len(index), runs, Attributes.of(index.attributes))


def test_what_is_appended_later_gives_the_same_bytes(tmp_path: Path) -> None:
    first = steps_of(2, 1, weather=["rain", "sun"])
    later = [steps_of(3, 4, 5, first=2), steps_of(*[2] * 9, first=5)]
    with EpisodeFile.create(tmp_path / "once") as file:
        write(file, first, *later)
        expected = file.index()
    with EpisodeFile.create(tmp_path / "a") as file:
        write(file, first)
        index = file.index()
    for number, segment in enumerate(later):
        source, target = tmp_path / "ab"[number], tmp_path / "bc"[number]
        before = source.read_bytes()
        known = (in_parts(index),)
        with EpisodeFile.continuing(source, target, OF_STEPS, segment.first, before=known) as file:
            assert len(file) == segment.first
            write(file, segment)
            index = file.index()
        assert source.read_bytes() == before
    assert (tmp_path / "c").read_bytes() == (tmp_path / "once").read_bytes()
    assert expected is not None and index is not None
    assert_same(expected.steps, index.steps)
    for number in range(len(expected)):
        assert_same(expected.attributes[number], index.attributes[number])
    assert [part.addresses.tolist() for part in index.parts] == [
        part.addresses.tolist() for part in expected.parts
    ]
    with EpisodeFile.continuing(tmp_path / "a", tmp_path / "d", OF_STEPS, 2) as file:
        found = file.index()
    assert found is not None and found.steps.tolist() == [2, 1]


def test_a_file_of_h5py_is_written_anew(tmp_path: Path) -> None:
    with reference(tmp_path / "x") as file:
        write(file, steps_of(1, 2))
    with EpisodeFile.continuing(tmp_path / "x", tmp_path / "y", OF_STEPS, 2) as file:
        write(file, steps_of(3, first=2))
        assert file.index() is not None
    with reference(tmp_path / "z") as file:
        write(file, steps_of(1, 2), steps_of(3, first=2))
    assert_alike_files(tmp_path / "z", tmp_path / "y")


def test_a_damaged_file_is_not_continued(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, steps_of(1, 2))
    content = bytearray((tmp_path / "x").read_bytes())
    content[content.index(b"TREE") + 5] = 77
    (tmp_path / "x").write_bytes(content)
    with (
        pytest.raises(CorruptDatasetError, match="a tree node of level"),
        EpisodeFile.continuing(tmp_path / "x", tmp_path / "y", OF_STEPS, 2),
    ):
        pass


@pytest.mark.parametrize("missing", ["copy_file_range", "nothing"])
def test_a_copy_goes_without_the_kernel_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, *(steps_of(10**5, first=i) for i in range(2)))
        index = file.index()
    if missing == "copy_file_range":
        monkeypatch.delattr(os, "copy_file_range")
    with EpisodeFile.continuing(
        tmp_path / "x", tmp_path / "y", OF_STEPS, 2, before=(in_parts(index),)
    ):
        pass
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_a_write_that_fails_leaves_the_episodes_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_direct, "require_space", lambda *_args: None)
    small, large = steps_of(2, 1), steps_of(*[50] * 99, first=2)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EpisodeFile.create(tmp_path / "found") as file:
        write(file, small)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, unlimited[1]))
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                write(file, large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert len(file) == 2
        write(file, steps_of(3, first=2))
    with EpisodeFile.create(tmp_path / "expected") as file:
        write(file, small, steps_of(3, first=2))
    assert (tmp_path / "found").read_bytes() == (tmp_path / "expected").read_bytes()


def test_no_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    direct = DirectFile(tmp_path / "x")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, unlimited[1]))
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            direct.append(steps_of(*[50] * 99))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        direct.close()
    assert (tmp_path / "x").stat().st_size == 0 and len(direct) == 0


@pytest.mark.parametrize("call", range(6))
def test_a_kill_at_any_write_leaves_the_dataset_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    path = tmp_path / "data"
    rng = np.random.default_rng(0)
    buffers = [of_numbers(episode(BOX, BOX, rng, steps)) for steps in (2, 3)]
    storage = MinariStorage.new(path, BOX, BOX)
    storage.update_episodes(buffers)
    before = files(path)
    write, calls = DirectFile._write, iter(range(99))

    def dying(direct: DirectFile, place: int, parts: Any, *others: Any) -> None:
        if next(calls) == call:
            write(direct, place, [b"".join(parts)[:100]], *others)
            os.kill(os.getpid(), signal.SIGKILL)
        write(direct, place, parts, *others)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(DirectFile, "_write", dying)
            storage.update_episodes(buffers)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or call > 3
    if killed:
        found = files(path)
        assert {name: found[name] for name in before} == before
        storage = MinariStorage.read(path)
        assert_stored(storage, buffers)
        storage.update_episodes(buffers)
    assert_stored(MinariStorage.read(path), buffers * 2)


def test_the_index_tells_where_all_values_are(tmp_path: Path) -> None:
    segments = [steps_of(2, 1, 7, weather=["a", "b", "c"]), steps_of(3, first=3)]
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, *segments)
        for segment in segments:
            for array in segment.arrays:
                array[:] = 0  # the caller uses his arrays again
            segment.attributes.numbers["id"][:] = 99
        index = file.index()
    assert index is not None and len(index) == 4
    content = (tmp_path / "x").read_bytes()
    with h5py.File(tmp_path / "x") as read:
        for part in index.parts:
            for leaf, addresses in zip(part.leaves, part.addresses, strict=True):
                for number, address in zip(part.episodes, addresses, strict=True):
                    expected = read[f"episode_{number}/{'/'.join(map(str, leaf.path))}"]
                    rows = int(index.steps[number]) + leaf.more
                    raw = content[address : address + rows * leaf.row_bytes]
                    found = np.frombuffer(raw, leaf.dtype).reshape(rows, *leaf.shape)
                    assert_same(expected[()], found)
                    assert expected.id.get_chunk_info(0).byte_offset == address
    with EpisodeFile.open(tmp_path / "x") as file:
        for number in range(4):
            assert_same(file.episode_metadata(number), index.attributes[number])


def test_short_episodes_take_little_more_than_their_values(tmp_path: Path) -> None:
    segment = steps_of(*[20] * 500, first=0)
    numbers = dict(segment.attributes.numbers)
    for name in (
        "seed",
        "rewards_sum",
        "rewards_mean",
        "rewards_std",
        "rewards_max",
        "rewards_min",
    ):
        numbers[name] = np.arange(500) / (1 if name == "seed" else 2)
    segment = replace(segment, attributes=AttributeTable(numbers))
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, segment)
    payload = sum(array.nbytes for array in segment.arrays)
    assert ((tmp_path / "x").stat().st_size - payload) / 500 <= 2600


def test_the_same_bytes_are_written_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    buffers = [replace(of_numbers(episode(BOX, BOX, rng, n)), extras={}) for n in (3, 9, 1, 4, 7)]
    with EpisodeFile.create(tmp_path / "once") as file:
        file.add(buffers, BOX, BOX)
    monkeypatch.setattr(hdf5_direct, "_AT_ONCE", 24)
    monkeypatch.setattr(hdf5_direct, "RESERVED_BYTES", 1)
    for most in (1, 2, 5):
        monkeypatch.setattr(hdf5_direct, "_MOST_AT_ONCE", most)
        (tmp_path / "pieces").write_bytes(b"")
        with EpisodeFile.begin(tmp_path / "pieces") as file:
            file.add(buffers, BOX, BOX)
        assert (tmp_path / "pieces").read_bytes() == (tmp_path / "once").read_bytes()
        assert file.entries() == {"main_data.hdf5": entry_of(tmp_path / "once")}


@pytest.mark.parametrize("taken", [0, 1, 700])
def test_a_system_may_take_less_than_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    with EpisodeFile.create(tmp_path / "once") as file:
        write(file, steps_of(30, 40), steps_of(30, first=2))

    def writev(handle: int, pieces: list[memoryview]) -> int:
        return os.write(handle, b"".join(pieces)[:taken])

    monkeypatch.setattr(os, "writev", writev, raising=False)
    with EpisodeFile.create(tmp_path / "bits") as file:
        write(file, steps_of(30, 40), steps_of(30, first=2))
    assert (tmp_path / "bits").read_bytes() == (tmp_path / "once").read_bytes()


def test_a_place_is_reserved_where_the_system_can(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w+b") as file:
        reserve(file.fileno(), 0, 2**20)
        assert os.fstat(file.fileno()).st_size == 0
    ends = os.pipe()
    for end in ends:
        reserve(end, 0, 2**20)  # which has no places
        os.close(end)


def test_equal_calls_write_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        with EpisodeFile.create(tmp_path / name) as file:
            write(file, steps_of(2, 1, weather=["rain", {"x": 1}]), steps_of(3, first=2))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- others read it and change it


@pytest.fixture
def dataset(tmp_path: Path) -> tuple[Path, list[EpisodeBuffer]]:
    """A dataset for real Minari, with nested infos, options and text among the attributes."""
    rng = np.random.default_rng(0)
    observations = spaces.Dict(a=BOX, t=spaces.Tuple([BOX, spaces.Discrete(3)]))
    buffers = []
    for number in range(9):
        buffer = of_numbers(episode(observations, BOX, rng, 1 + number % 4))
        rows = len(buffer) + 1
        buffers.append(
            replace(
                buffer,
                seed=number,
                options={"low": 1.5, "where": "here", "goal": np.zeros(2)},
                infos={"x": rng.random(rows), "deep": {"y": rng.random((rows, 2))}},
                extras={},
                metadata={"weather": "rain"},
            )
        )
    path = tmp_path / "data"
    storage = MinariStorage.new(path, observations, BOX)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(buffers)
    return path, buffers


def test_real_minari_reads_it(dataset: tuple[Path, list[EpisodeBuffer]]) -> None:
    path, buffers = dataset
    theirs = minari.MinariDataset(path)
    assert len(theirs) == 9
    for found, buffer in zip(theirs, buffers, strict=True):
        for name in ("observations", "actions", "rewards", "truncations", "infos"):
            assert_same(getattr(buffer, name), getattr(found, name), name)
    for number, attributes in enumerate(theirs.storage.get_episode_metadata(range(9))):
        assert attributes["seed"] == number
        assert attributes["options"]["where"] == "here"


def test_real_minari_changes_it(dataset: tuple[Path, list[EpisodeBuffer]]) -> None:
    """It appends new episodes, adds metadata, and continues an episode, which is resized."""
    path, buffers = dataset
    theirs = TheirStorage.read(path)
    own = buffers[3]
    more = {
        "observations": {
            "a": own.observations["a"][1:],
            "t": tuple(part[1:] for part in own.observations["t"]),
        },
        "actions": own.actions,
        "rewards": own.rewards,
        "terminations": own.terminations,
        "truncations": own.truncations,
        "infos": {"x": own.infos["x"][1:], "deep": {"y": own.infos["deep"]["y"][1:]}},
    }
    theirs.update_episodes([TheirBuffer(id=3, **more)])
    theirs.update_episodes(
        [
            TheirBuffer(
                id=9 + number,
                seed=99,
                **{name: getattr(buffer, name) for name in more},
            )
            for number, buffer in enumerate(buffers[:2])
        ]
    )
    theirs.update_episode_metadata([{"weather": "sun", "n": 3}] * 2, [2, 8])
    storage = MinariStorage.read(path)
    assert storage.total_episodes == 11
    found = list(storage.get_episodes(range(11)))
    assert_same(np.concatenate([own.rewards] * 2), found[3]["rewards"])
    assert_same(np.concatenate([own.infos["x"], own.infos["x"][1:]]), found[3]["infos"]["x"])
    for number in (0, 1, 2, 4, 8):
        assert_same(buffers[number].observations, found[number]["observations"])
    assert_same(buffers[1].actions, found[10]["actions"])
    attributes = list(storage.get_episode_metadata(range(11)))
    assert [attributes[number]["weather"] for number in (1, 2, 8)] == ["rain", "sun", "sun"]
    storage.update_episodes([replace(buffers[0], id=None)])  # and we go on
    assert storage.total_episodes == 12
    assert_same(buffers[0].actions, next(iter(storage.get_episodes([11])))["actions"])


@pytest.mark.parametrize("order", ["forward", "backward", "at random"])
def test_others_append_arrays_of_many_chunks(tmp_path: Path, order: str) -> None:
    """Real Minari's arrays have hundreds of chunks; all trees of a file have nodes of one size."""
    with EpisodeFile.create(tmp_path / "x") as file:
        write(file, steps_of(2, 1))
    rows = np.arange(1000 * 3.0).reshape(1000, 3)
    places = np.arange(1000)
    if order != "forward":
        places = np.random.default_rng(0).permutation(1000) if order == "at random" else -1 - places
    with h5py.File(tmp_path / "x", "r+") as file:
        file["episode_0/observations"].resize(1000, axis=0)  # has chunks of three rows
        new = file.create_dataset("new", rows.shape, rows.dtype, chunks=(1, 3), maxshape=(None, 3))
        for place in places:
            new[place] = rows[place]
            file["episode_0/observations"][place] = rows[place]
    check_readable(tmp_path / "x")
    with h5py.File(tmp_path / "x") as file:
        assert file["new"].id.get_num_chunks() == 1000
        assert_same(rows, file["new"][()])
        assert_same(rows, file["episode_0/observations"][()])


def test_real_minari_appends_a_long_episode(
    dataset: tuple[Path, list[EpisodeBuffer]],
) -> None:
    path, _ = dataset
    rows = 20_000
    long = {
        "observations": {
            "a": np.random.default_rng(0).random((rows + 1, 3)),
            "t": (np.zeros((rows + 1, 3)), np.zeros(rows + 1, int)),
        },
        "actions": np.ones((rows, 3)),
        "rewards": np.arange(float(rows)),
        "terminations": np.zeros(rows, bool),
        "truncations": np.zeros(rows, bool),
        "infos": {"x": np.zeros(rows + 1), "deep": {"y": np.zeros((rows + 1, 2))}},
    }
    TheirStorage.read(path).update_episodes([TheirBuffer(id=9, **long)])
    with h5py.File(path / "main_data.hdf5") as file:
        assert file["episode_9/observations/a"].id.get_num_chunks() > 20
    (found,) = MinariStorage.read(path).get_episodes([9])
    for name, expected in long.items():
        assert_same(expected, found[name])


def test_we_append_to_it_again(dataset: tuple[Path, list[EpisodeBuffer]]) -> None:
    path, buffers = dataset
    size = (path / "main_data.hdf5").stat().st_size
    storage = MinariStorage.read(path)
    for _ in range(3):
        storage.update_episodes(buffers)
    assert_stored(storage, buffers * 4)
    assert (
        path / "main_data.hdf5"
    ).stat().st_size < 4 * size + 2**15 * 9 // 8  # with room for more
    check_readable(path / "main_data.hdf5")


def test_h5py_visits_and_changes_everything(dataset: tuple[Path, list[EpisodeBuffer]]) -> None:
    file = path_of(dataset)
    before = hdf5_visit.digest(str(file))
    assert len(before) > 9 * 12
    hdf5_visit.change(str(file))
    check_readable(file)
    after = hdf5_visit.digest(str(file))
    assert before.keys() < after.keys()
    for name in before.keys() - {"/"}:
        for attribute, value in before[name][1].items():
            assert after[name][1][attribute] == value


def path_of(dataset: tuple[Path, list[EpisodeBuffer]]) -> Path:
    return dataset[0] / "main_data.hdf5"


@pytest.mark.skipif(not OLD_H5PY, reason="MINARI_PIPE_OLD_H5PY names no Python with an older h5py")
def test_an_older_h5py_visits_and_changes_everything(
    dataset: tuple[Path, list[EpisodeBuffer]],
) -> None:
    file = path_of(dataset)

    def run(*arguments: str) -> Any:
        command = [str(OLD_H5PY), hdf5_visit.__file__, str(file), *arguments]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        result = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    command = [str(OLD_H5PY), "-c", "import h5py; print(h5py.version.hdf5_version)"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert version.startswith(("1.10.", "1.12.")), version
    assert run() == json.loads(json.dumps(hdf5_visit.digest(str(file))))
    after = run("change")
    assert after == json.loads(json.dumps(hdf5_visit.digest(str(file))))
    check_readable(file)


TOOLS = {
    "h5dump": ["h5dump"],
    "h5dump of metadata": ["h5dump", "-B", "-p", "-H"],
    "h5ls": ["h5ls", "-r", "-v", "-a"],
    "h5stat": ["h5stat"],
    "h5check": ["h5check"],
    "h5diff": ["h5diff"],
    "h5repack": ["h5repack"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_the_tools_of_hdf5_find_nothing_wrong(
    dataset: tuple[Path, list[EpisodeBuffer]], tmp_path: Path, name: str
) -> None:
    tool, *options = TOOLS[name]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed; Debian has it in hdf5-tools")
    file = path_of(dataset)
    other = tmp_path / "other"
    if tool == "h5diff":  # the same as h5py writes
        with reference(other) as episodes:
            for buffer in dataset[1]:
                episodes.append(buffer)
    arguments = [str(file), *([str(other)] if tool in ("h5diff", "h5repack") else [])]
    result = subprocess.run(
        [tool, *options, *arguments], capture_output=True, text=True, check=False
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-2000:]
    assert not any(word in output.lower() for word in ("error", "warning", "unable")), output
    if tool == "h5stat":
        # of an episode itself, observations and the tuple in it, infos and the dict in them
        assert f"# of unique groups: {1 + 9 * 5}" in output
        assert f"# of unique datasets: {9 * 9}" in output
    if tool == "h5repack":
        assert_alike_files(other, other)
        expected = hdf5_visit.digest(str(other))
        assert {key: value[:2] for key, value in expected.items() if key != "/"} == {
            key: value[:2] for key, value in hdf5_visit.digest(str(file)).items() if key != "/"
        }
