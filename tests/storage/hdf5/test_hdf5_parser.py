"""HDF5 is read without libhdf5: the same values as h5py's, and no damage can crash the reader."""

from __future__ import annotations

import random
import shutil
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.hdf5.file import EpisodeFile
from minari_pipe.storage.hdf5.parser import checked, nodes, reader
from minari_pipe.storage.hdf5.parser.checked import check_readable, open_checked
from minari_pipe.storage.hdf5.parser.source import NotUnderstoodError, lookup3
from minari_pipe.storage.hdf5.values import extend_column
from minari_pipe.testing import assert_same, episode, examples
from minari_pipe.testing import spaces as any_space
from tests.conftest import FULL, SHARED

OBSERVATIONS = spaces.Dict(
    a=spaces.Box(-1, 1, (2,)), t=spaces.Tuple([spaces.Text(8), spaces.Discrete(3)])
)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
LINKS = {h5py.HardLink: "hard", h5py.SoftLink: "soft", h5py.ExternalLink: "external"}
#: a damaged file is refused or read within this time, in seconds of the processor
TIME = 5


def assert_equal_files(path: Path) -> None:
    """Assert that our reader understands all of a file, and returns what h5py does."""
    with h5py.File(path, "r") as expected, reader.open_file(path) as found:
        reader.walk(found, {})
        assert_equal(expected, found)


def assert_equal(expected: Any, found: nodes.Group | nodes.Dataset) -> None:
    assert expected.name == found.name
    attributes = dict(expected.attrs)
    assert attributes.keys() == found.attrs.keys()
    for name, value in attributes.items():
        assert_value(value, found.attrs[name], f"{found.name}@{name}")
    if isinstance(found, nodes.Dataset):
        for fact in ("shape", "dtype", "chunks", "maxshape"):
            assert getattr(expected, fact) == getattr(found, fact), (found.name, fact)
        text = h5py.check_string_dtype(expected.dtype) and expected.shape is not None
        assert_value(expected.asstr()[()] if text else expected[()], found.read(), found.name)
        return
    assert set(expected) == set(found) and len(expected) == len(found)
    for name in expected:
        kind = LINKS[type(expected.get(name, getlink=True))]
        assert found.link_kind(name) == kind
        assert name in found
        if kind == "hard":
            assert_equal(expected[name], found[name])


def assert_value(expected: Any, found: Any, where: str) -> None:
    if isinstance(expected, h5py.Empty):
        assert isinstance(found, h5py.Empty) and expected.dtype == found.dtype, where
    elif h5py.check_vlen_dtype(getattr(expected, "dtype", np.dtype(int))) is not None:
        assert expected.shape == found.shape
        for left, right in zip(expected.flat, found.flat):
            assert_same(left, right, where)
    else:
        assert_same(expected, found, where)


def everything(path: Path, **options: Any) -> None:
    """Write a file with every feature that is understood."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", **options) as file:
        for name, value in {
            "empty": h5py.Empty("f4"),
            "no_text": h5py.Empty(h5py.string_dtype()),
            "complex": 1 + 2j,
            "complex64": np.complex64(3j),
            "text": "hä",
            "flag": True,
            "texts": np.array(["a", "bb", ""], object),
            "bytes": np.bytes_(b"abc"),
            "halves": np.arange(3, dtype="f2"),
        }.items():
            file.attrs[name] = value
        ordered = file.create_group("ordered", track_order=True)
        for index in range(30):  # more than a header holds: they are in a fractal heap
            ordered.attrs[f"a{index}"] = index
        for index in range(30):
            ordered.create_group(f"g{index}")
        file.create_dataset(
            "packed",
            data=np.arange(10_000, dtype="i4").reshape(100, 100),
            compression="gzip",
            shuffle=True,
            chunks=(7, 13),
        )
        file["big_endian"] = np.arange(5, dtype=">f8")
        file["scalar"] = 3.5
        file["text"] = "hällo"
        file["empty"] = h5py.Empty("i8")
        file["fixed"] = np.array([b"ab", b"c"], "S4")
        file["none"] = np.zeros((0, 3))
        file.create_dataset("filled", (100, 3), "f4", chunks=(9, 2), fillvalue=7.5)[50:60] = 1
        file.create_dataset("never", (10, 3), "i2", fillvalue=3)
        sequences = file.create_dataset("sequences", (5,), h5py.vlen_dtype(np.uint8))
        sequences[1] = np.arange(9, dtype=np.uint8)
        texts = file.create_dataset("texts", (50,), h5py.string_dtype(), chunks=(8,))
        texts[3:20] = "xäy" * 300
        file["soft"] = h5py.SoftLink("/ordered")
        file["external"] = h5py.ExternalLink("a.h5", "/x")
        grown = file.create_dataset("grown", (300, 40), "f8", chunks=(3, 3), maxshape=(None, None))
        grown[:] = rng.random((300, 40))
        grown.resize((400, 20))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        shape = h5py.h5s.create_simple((4,))
        own = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, shape, properties)
        h5py.Dataset(own)[:] = [1, 2, 3, 4]
        properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        properties.set_attr_creation_order(h5py.h5p.CRT_ORDER_TRACKED)
        large = h5py.Group(h5py.h5g.create(file.id, b"large", gcpl=properties))
        large.attrs["huge"] = np.arange(100_000.0)
        large.attrs["some"] = np.arange(700.0)
        large.attrs["text"] = "y" * 200_000


# --- the same as h5py


@pytest.mark.parametrize(
    "options",
    [{}, {"track_order": True}, {"userblock_size": 512}, {"userblock_size": 4096}],
    ids=["default", "in order of creation", "after 512 bytes", "after 4096 bytes"],
)
def test_every_feature_is_read_as_h5py_does(tmp_path: Path, options: dict[str, Any]) -> None:
    everything(tmp_path / "x.hdf5", **options)
    assert_equal_files(tmp_path / "x.hdf5")


@examples(8)
@given(any_space(), any_space(), st.integers(0, 2**32))
def test_files_of_ours_are_read_as_h5py_does(
    tmp_path_factory: pytest.TempPathFactory, observations: Any, actions: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("data") / "main_data.hdf5"
    with EpisodeFile.create(path) as file:
        file.add([episode(observations, actions, rng) for _ in range(3)], observations, actions)
    assert_equal_files(path)


def minari_storage(path: Path) -> Any:
    from minari.dataset.minari_storage import MinariStorage as Minari

    space = spaces.Box(-1, 1, (3,), np.float64)
    return Minari.new(path, space, spaces.Discrete(3), data_format="hdf5")


def minari_episodes(count: int, steps: int, **extra: Any) -> list[Any]:
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    return [
        EpisodeBuffer(
            seed=index,
            observations=list(rng.uniform(-1, 1, (steps + 1, 3))),
            actions=list(rng.integers(3, size=steps)),
            rewards=list(rng.random(steps)),
            terminations=[False] * steps,
            truncations=[False] * (steps - 1) + [True],
            infos={"note": ["ä"] * (steps + 1), "deep": {"x": list(rng.random(steps + 1))}},
            **extra,
        )
        for index in range(count)
    ]


def test_files_of_minari_are_read_as_h5py_does(tmp_path: Path) -> None:
    """With attributes added, and an episode that goes on."""
    storage = minari_storage(tmp_path / "data")
    storage.update_episodes(minari_episodes(4, 5, options={"deep": {"x": 1.5}}))
    storage.update_episode_metadata([{f"k{i}": "x" * i for i in range(30)}], [1])
    (more,) = minari_episodes(1, 4)
    more = replace(
        more,
        id=2,
        seed=None,
        observations=more.observations[1:],
        infos={"note": ["ö"] * 4, "deep": {"x": [0.5] * 4}},
    )
    storage.update_episodes([more])
    assert_equal_files(tmp_path / "data" / "main_data.hdf5")


def test_many_chunks_of_minari_are_read_as_h5py_does(tmp_path: Path) -> None:
    storage = minari_storage(tmp_path / "data")
    storage.update_episodes(minari_episodes(1, 40_000))
    path = tmp_path / "data" / "main_data.hdf5"
    with h5py.File(path) as file:
        assert file["episode_0/observations"].id.get_num_chunks() > 10
    assert_equal_files(path)


@given(data=st.data())
def test_tables_in_chunks_are_read_as_h5py_does(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of whatever shape, written at once or by parts, between which other data may lie."""
    path = tmp_path_factory.mktemp("file") / "x.hdf5"
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 12))
    dtype = data.draw(st.sampled_from(["f8", "f4", "?", "u1", "i2", "c16", ">f4"]))
    with h5py.File(path, "w") as file:
        for number in range(data.draw(st.integers(1, 3))):
            shape = data.draw(sizes)
            values = np.arange(shape[0] * shape[1]).reshape(shape).astype(dtype)
            written = data.draw(st.integers(0, shape[0]))
            table = file.create_dataset(
                f"x{number}",
                (written, shape[1]),
                dtype,
                chunks=data.draw(sizes),
                maxshape=(None, None),
                fillvalue=np.ones((), dtype)[()],
            )
            table[...] = values[:written]
            file.create_dataset(f"between{number}", data=np.arange(5))
            table.resize(shape)
            if data.draw(st.booleans()):
                table[written:] = values[written:]
    assert_equal_files(path)


@pytest.mark.parametrize(
    ("order", "count"), [(False, 3000), (True, 1000)], ids=["by name", "in order of creation"]
)
def test_thousands_of_episodes_are_read_as_h5py_does(
    tmp_path: Path, order: bool, count: int
) -> None:
    """Their names need a tree of several levels, or a fractal heap of indirect blocks."""
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w", track_order=order) as file:
        for index in range(count):
            group = file.create_group(f"episode_{index}")
            group.attrs["id"] = index
    assert_equal_files(path)
    with reader.open_file(path) as file:
        assert len(file) == count


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "0.4.2", "0.4.3", "0.5.0", "0.5.3", "0.5.4"])
def test_files_of_all_releases_are_read_as_h5py_does(version: str) -> None:
    folder = SHARED / "legacy" / version
    if not folder.is_dir():
        pytest.skip(f"the files of {version} are not at {folder}")
    paths = sorted(folder.rglob("*.hdf5"))
    assert paths
    for path in paths:
        assert_equal_files(path)


def test_a_file_without_a_byte_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x.hdf5").touch()
    with open_checked(tmp_path / "x.hdf5") as file:
        assert list(file) == [] and file.attrs == {}
    check_readable(tmp_path / "x.hdf5")


def test_the_checksum_is_that_of_bob_jenkins() -> None:
    """The values are those in the comments of his lookup3.c."""
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


# --- what is left to h5py


def test_other_features_are_left_to_h5py(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    everything(path, libver="latest")
    with reader.open_file(path) as file, pytest.raises(NotUnderstoodError):
        reader.walk(file, {})
    with h5py.File(path) as expected, open_checked(path) as found:
        assert_equal(expected, found)
        assert isinstance(found["packed"], checked.H5pyDataset)
        assert isinstance(found["scalar"], reader.Dataset)
    check_readable(path)


def test_values_of_other_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource("other.hdf5", "x", (3,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (3,), "f8", external=[("/etc/passwd", 0, 24)])
    with reader.open_file(path) as file:
        for name in ("virtual", "external"):
            dataset = file[name]
            assert isinstance(dataset, nodes.Dataset) and dataset.is_elsewhere
            with pytest.raises(CorruptDatasetError, match=f"/{name}: .* in another file"):
                dataset.read()


PROBES = {
    "it crashes": "import os; os.abort()",
    "it hangs": "while True: pass",
    "it refuses": "import sys; sys.exit('no')",
}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_libhdf5_sees_no_file_that_another_process_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str
) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=np.arange(9), chunks=(2,))
    (tmp_path / "probe.py").write_text(probe)
    monkeypatch.setattr(checked.probe, "__file__", str(tmp_path / "probe.py"))
    monkeypatch.setattr(checked, "_SECONDS", 0.2)
    with open_checked(path) as file:
        for _ in range(2):  # the second time from memory
            with pytest.raises(CorruptDatasetError):
                file["x"]
    with pytest.raises(CorruptDatasetError):
        check_readable(path)
    shutil.copy(path, tmp_path / "y.hdf5")  # another file is another matter
    monkeypatch.undo()
    with open_checked(tmp_path / "y.hdf5") as file:
        assert file["x"].read().tolist() == list(range(9))


# --- damage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of six episodes with text, options and infos."""
    folder = tmp_path_factory.mktemp("small") / "data"
    rng = np.random.default_rng(0)
    storage = MinariStorage.new(folder, OBSERVATIONS, ACTIONS)
    storage.update_episodes([episode(OBSERVATIONS, ACTIONS, rng) for _ in range(6)])
    return (folder / "main_data.hdf5").read_bytes()


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with headers of version 2 and fractal heaps, gzip and texts."""
    path = tmp_path_factory.mktemp("newer") / "x.hdf5"
    everything(path, track_order=True)
    with h5py.File(path, "a") as file:
        del file["large"], file["grown"]
    return path.read_bytes()


def read_all(path: Path) -> dict[str, Any]:
    """Read all of a file, or raise an error of the tree."""
    values: dict[str, Any] = {}
    with reader.open_file(path) as file:
        reader.walk(file, {})
        pending: list[Any] = [file]
        while pending and len(values) < 10_000:
            node = pending.pop()
            values[node.name] = (node.attrs, node.read() if isinstance(node, nodes.Dataset) else 0)
            if isinstance(node, nodes.Group):
                pending += [node[name] for name in node if node.link_kind(name) == "hard"]
    return values


def try_to_read(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    start = time.process_time()
    try:
        read_all(path)
        result = "read"
    except CorruptDatasetError:
        result = "damaged"
    except NotUnderstoodError:
        result = "not understood"
    assert time.process_time() - start < TIME
    return result


@pytest.mark.parametrize("kind", ["small", "newer"])
def test_a_file_that_is_cut_anywhere_is_damaged(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    content = request.getfixturevalue(kind)
    step = 97 if FULL else 1999
    for end in [*range(1, 200), *range(200, len(content), step), len(content) - 1]:
        assert try_to_read(tmp_path / "x.hdf5", content[:end]) == "damaged", end


@pytest.mark.parametrize("kind", ["small", "newer"])
def test_a_file_with_other_bytes_anywhere_is_damaged_or_read(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    content = request.getfixturevalue(kind)
    results = set()
    for case in range(3000 if FULL else 100):
        rng = random.Random(case)
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 8, 100])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        results.add(try_to_read(tmp_path / "x.hdf5", bytes(damaged)))
    assert results >= {"read", "damaged"}


def test_every_byte_of_a_header_may_be_anything(tmp_path: Path) -> None:
    """One byte after the other, in a file that is all structure."""
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("g")
        group.attrs["a"] = "text"
        group.create_dataset("x", data=np.arange(6).reshape(3, 2), chunks=(2, 2))
    content = path.read_bytes()
    used = [at for at, byte in enumerate(content) if byte]
    for at in used if FULL else used[::5]:
        for byte in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(content)
            damaged[at] = byte
            try_to_read(path, bytes(damaged))


def test_a_pointer_that_leads_in_a_circle_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        for index in range(2000):
            file.create_group(f"episode_{index}")
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 8):
        if content[at : at + 4] == b"TREE" and content[at + 5]:  # its first child is itself
            content[at + 32 : at + 40] = at.to_bytes(8, "little")
    path.write_bytes(content)
    for use in (read_all, check_readable):
        with pytest.raises(CorruptDatasetError, match="/: "):
            use(path)


def test_a_group_below_itself_is_walked_once(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("g")["again"] = file["/"]
    check_readable(path)


@pytest.mark.parametrize("packed", [None, "gzip"])
def test_more_values_than_the_file_can_hold_are_refused(tmp_path: Path, packed: Any) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**40,), "f8", chunks=(1000,), compression=packed)
    with (
        reader.open_file(path) as file,
        pytest.raises(CorruptDatasetError, match="/x: it declares"),
    ):
        file["x"].read()


def test_a_file_that_is_cut_while_it_is_open_is_damaged(tmp_path: Path, small: bytes) -> None:
    """Touching lost pages of a mapped file would be a signal."""
    path = tmp_path / "x.hdf5"
    path.write_bytes(small)
    with reader.open_file(path) as file:
        rewards = file["episode_0"]["rewards"]
        with open(path, "r+b") as other:
            other.truncate(100)
        with pytest.raises(CorruptDatasetError, match="truncated while it was read"):
            rewards.read()
        with pytest.raises(CorruptDatasetError, match="truncated while it was read"):
            file["episode_0"]


def test_arrays_outlive_their_file_and_can_be_changed(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "x.hdf5"
    path.write_bytes(small)
    with reader.open_file(path) as file:
        rewards = file["episode_0"]["rewards"].read()
    rewards += 1
    with pytest.raises(CorruptDatasetError, match="closed"):
        file["episode_1"]


def test_members_that_are_named_in_two_ways_are_refused(tmp_path):
    """libhdf5 would go by the links, of which one may lead to another file."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["x"] = np.arange(3)
    with checked.UnderstoodFile(path) as file:
        messages = {**file._messages, reader.LINK: [b"\1\0\1x" + bytes(8)]}
        with pytest.raises(CorruptDatasetError, match="stores its members in two ways"):
            file._links("/", messages)


# --- what libhdf5 would see in another way


def with_two_roots(path: Path) -> None:
    """Write a file whose superblock repeats the members of another group as those of the root.

    libhdf5 takes these to write, since the tree of the root has more children than it may have.
    """
    with h5py.File(path, "w", libver="earliest") as file:
        for index in range(24):
            file.create_group(f"episode_{index}").attrs["id"] = index
        other = file.create_group("other")
        other["episode_0"] = file["episode_7"]
        header = h5py.h5o.get_info(other.id).addr
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 18, 1)
    struct.pack_into("<I", content, 72, 1)
    content[80:96] = content[header + 24 : header + 40]
    path.write_bytes(content)


def test_a_superblock_that_names_other_members_is_refused(tmp_path):
    with_two_roots(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        assert list(file) == ["episode_0"]
    with pytest.raises(CorruptDatasetError, match="superblock and header name different"):
        reader.open_file(tmp_path / "x.hdf5")


@pytest.mark.parametrize(
    ("at", "reason"),
    [(16, "symbol table node has 4 members"), (18, "tree node has 5 children")],
    ids=["members", "children"],
)
def test_a_node_with_more_entries_than_the_superblock_allows_is_refused(tmp_path, at, reason):
    """libhdf5 refuses it and may take another node in its place."""
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w", libver="earliest") as file:
        for index in range(24):
            file.create_group(f"episode_{index:02}")
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, at, 1)
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match=f"{reason}, the file has at most 2 in one"):
        check_readable(path)


@pytest.mark.parametrize("reserved", [0, 1], ids=["", "with reserved bytes"])
@pytest.mark.parametrize("size", [0, 16], ids=["endless", "that goes on after free space"])
@pytest.mark.parametrize("kind", ["attribute", "values", "no bytes"])
def test_a_heap_that_libhdf5_reads_in_another_way_is_refused(tmp_path, kind, size, reserved):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        if kind == "values":
            file.create_dataset("x", (1,), h5py.string_dtype())[0] = "text"
        else:
            file.attrs["x"] = "text" if kind == "attribute" else ""
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 5] = reserved
    place = heap + 16
    while content[place]:
        place += 16 + (content[place + 8] + 7) // 8 * 8
    struct.pack_into("<Q", content, place + 8, size)
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match="heap"):
        read_all(path)
    with pytest.raises(CorruptDatasetError, match="heap"):
        check_readable(path)


_HEAP = struct.Struct("<4sBHHBIQQQQQQQQQQQQHQQHHQH")


def write_heap(path: Path) -> tuple[bytearray, int, list[Any]]:
    """Write a group of ten links, which lie in a fractal heap; the bytes, and the heap's header."""
    with h5py.File(path, "w") as file:
        order = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        order.set_link_creation_order(h5py.h5p.CRT_ORDER_TRACKED)
        h5py.h5g.create(file.id, b"infos", gcpl=order)
        for number in range(10):
            file["infos"][f"name_{number}"] = np.arange(3)
    content = bytearray(path.read_bytes())
    at = content.index(b"FRHP")
    return content, at, list(_HEAP.unpack_from(content, at))


def put(content: bytearray, at: int, part: bytes) -> None:
    """Put a part of a file in its place, with its checksum."""
    content[at : at + len(part) + 4] = part + struct.pack("<I", lookup3(part))


@pytest.mark.parametrize("field", [18, 19, 20], ids=["width", "first size", "largest size"])
def test_a_fractal_heap_in_which_libhdf5_would_look_elsewhere_is_refused(tmp_path, field):
    """libhdf5 takes the logarithm of each size, and so may find another link than is here."""
    content, at, heap = write_heap(tmp_path / "x.hdf5")
    heap[field] -= 1
    put(content, at, _HEAP.pack(*heap))
    (tmp_path / "x.hdf5").write_bytes(content)
    with (
        reader.open_file(tmp_path / "x.hdf5") as file,
        pytest.raises(CorruptDatasetError, match="a size in a fractal heap is no power of two"),
    ):
        list(file["infos"])


def test_of_long_links_with_one_number_none_is_taken(tmp_path):
    """libhdf5 takes the one in the middle."""
    content, at, heap = write_heap(tmp_path / "x.hdf5")
    records = content.index(b"BTLF\0\5") + 6
    offset = int.from_bytes(content[records + 5 : records + 5 + (heap[21] + 7) // 8], "little")
    message = heap[23] + offset
    three = struct.pack("<QQQ", message, 30, 1) * 3
    leaf, tree = len(content), len(content) + 512
    content += bytes(1024)
    put(content, leaf, b"BTLF\0\1" + three)
    put(content, tree, struct.pack("<4sBBIHHBBQHQ", b"BTHD", 0, 1, 512, 24, 0, 100, 40, leaf, 3, 3))
    heap[6:8] = 2, tree
    put(content, at, _HEAP.pack(*heap))
    content[records + 4 : records + 11] = b"\x10" + (1).to_bytes(6, "little")
    put(content, records - 6, bytes(content[records - 6 : records + 110]))
    struct.pack_into("<Q", content, 40, len(content))  # the end of the file
    (tmp_path / "x.hdf5").write_bytes(content)
    with (
        reader.open_file(tmp_path / "x.hdf5") as file,
        pytest.raises(CorruptDatasetError, match="two objects of a fractal heap have the same"),
    ):
        list(file["infos"])


WAYS_OUT: dict[str, Any] = {
    "external link": lambda file: file.update(x=h5py.ExternalLink("b.hdf5", "/x")),
    "soft link": lambda file: file["g"].update(x=h5py.SoftLink("/y")),
    "external values": lambda file: file.create_dataset(
        "g/x", (3,), "u1", external=[("/etc/hostname", 0, 3)]
    ),
    "virtual values": lambda file: file["g"].create_virtual_dataset(
        "x", virtual([h5py.VirtualSource("b.hdf5", "x", (3,))])
    ),
    "opaque values": lambda file: file.update(x=np.zeros(3, "V8")),
    "an opaque attribute": lambda file: file["g"].attrs.create("x", np.zeros(3, "V8")),
    "an opaque attribute of the root": lambda file: file.attrs.create("x", np.zeros(3, "V8")),
}


def virtual(sources: list[h5py.VirtualSource]) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((3,), "u1")
    for source in sources:
        layout[:] = source
    return layout


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT)
def test_ways_out_of_a_file_are_found_by_libhdf5_itself(way, tmp_path):
    """It may see another file than our reader does."""
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("g")["y"] = np.arange(3)
        file["same"] = file["g"]
    checked.check_inside(path)
    with h5py.File(path, "r+") as file:
        way(file)
    with pytest.raises(CorruptDatasetError, match="is a link|another file|opaque values"):
        checked.check_inside(path)


# --- small files that ask for much memory


@pytest.mark.parametrize("what", ["links", "attrs"])
def test_objects_of_a_heap_are_not_read_under_many_names(tmp_path, monkeypatch, what):
    path = tmp_path / "x.hdf5"
    everything(path)
    records = reader.tree_records
    with reader.open_file(path) as file:
        group = file["ordered" if what == "links" else "large"]
        many = {"links": 10**6, "attrs": 10}[what]
        monkeypatch.setattr(reader, "tree_records", lambda *of: records(*of) * many)
        with pytest.raises(CorruptDatasetError, match="far more values than the file can hold"):
            getattr(group, what)


def test_names_of_members_that_overlap_are_refused(tmp_path):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w", libver="earliest") as file:
        for letter in "abcdefg":
            file.create_group(letter)
        file.create_group(1000 * "h")
    content = bytearray(path.read_bytes())
    table = content.index(b"SNOD") + 8
    (long,) = struct.unpack_from("<Q", content, table + 40 * 7)
    for index in range(7):  # from a shorter to a longer end of one name
        struct.pack_into("<Q", content, table + 40 * index, long + 7 - index)
    path.write_bytes(content)
    with (
        reader.open_file(path) as file,
        pytest.raises(CorruptDatasetError, match="far more values than the file can hold"),
    ):
        list(file)


def test_groups_that_share_a_large_heap_are_refused(tmp_path):
    path = tmp_path / "x.hdf5"
    headers = []
    with h5py.File(path, "w", libver="earliest") as file:
        for index in range(60):
            headers.append(h5py.h5o.get_info(file.create_group(f"g{index}").id).addr)
        large = file.create_group("large")
        for letter in "abcdefg":
            large.create_group(10_000 * letter)
        big = h5py.h5o.get_info(large.id).addr
    content = bytearray(path.read_bytes())
    for header in headers:
        content[header + 32 : header + 40] = content[big + 32 : big + 40]
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match="far more values than the file can hold"):
        check_readable(path)


def test_what_only_h5py_reads_is_reached_by_no_link(tmp_path):
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.arange(3)
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["g/to"] = h5py.ExternalLink("secret.hdf5", "/x")
        file["g/own"] = np.arange(2)
    with checked.UnderstoodFile(path) as file:
        assert file._from_h5py("/g/own").read().tolist() == [0, 1]
        with pytest.raises(CorruptDatasetError, match="/g/to is a soft or external link"):
            file._from_h5py("/g/to")


def test_a_group_that_is_a_dataset_too_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["x"] = np.arange(3)
    with checked.UnderstoodFile(path) as file:
        header = file._header
        both = {**file._messages}
        monkeypatch.setattr(file, "_header", lambda *args: {**both, **header(*args)})
        with pytest.raises(CorruptDatasetError, match="it is both a group and a dataset, or"):
            file["x"]


def test_values_of_another_file_are_found_as_libhdf5_sees_them(tmp_path, monkeypatch):
    """A cache of headers in the file, which this package does not read, may hold other ones."""
    path = tmp_path / "a.hdf5"
    (tmp_path / "key").write_bytes(bytes(24))
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", (3,), "f8", external=[(str(tmp_path / "key"), 0, 24)])
    monkeypatch.setattr(checked, "walk", lambda *_: True)
    with pytest.raises(CorruptDatasetError, match="/g/x takes its values from another file"):
        check_readable(path)


def test_other_members_than_were_checked_are_not_read(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["x"] = np.arange(3)
    monkeypatch.setattr(
        checked, "walk", lambda _, members: members.update({"/": {"y": ("hard", 9)}})
    )
    with pytest.raises(CorruptDatasetError, match="/: libhdf5 finds other members than are in"):
        check_readable(tmp_path / "a.hdf5")


def test_a_member_whose_name_is_a_path_is_refused(tmp_path):
    """h5py would go by the link before the slash, to another file."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["ext_runs"] = np.arange(2)
    path.write_bytes(path.read_bytes().replace(b"ext_runs", b"ext/runs"))
    with pytest.raises(CorruptDatasetError, match="a member named 'ext/runs', which"):
        check_readable(path)
    with h5py.File(path) as file, pytest.raises(ValueError, match="named 'ext/runs'"):
        checked.probe.own_members(file)


def test_libhdf5_judges_a_file_whose_superblock_has_an_extension(tmp_path):
    """It may hold a cache of other headers of the same objects, by which libhdf5 goes."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver="latest", fs_strategy="page") as file:
        file["x"] = np.arange(3)
    with pytest.raises(NotUnderstoodError, match="an extension of the superblock"):
        reader.open_file(path)
    check_readable(path)
    with open_checked(path) as file:
        assert file["x"].read().tolist() == [0, 1, 2]


PACKED = {
    "gzip": ({"compression": "gzip"}, zlib.compress(b"few"), 0),
    "gzip that a chunk passes by": ({"compression": "gzip"}, b"few", 1),
    "lzf": ({"compression": "lzf"}, b"\2few", 0),
    "fletcher32": ({"fletcher32": True}, b"few", 1),
    "scaleoffset": ({"scaleoffset": 0}, b"few", 0),
}


@pytest.mark.parametrize(("packed", "chunk", "mask"), PACKED.values(), ids=PACKED.keys())
def test_a_chunk_that_unpacks_to_less_gives_no_memory_of_the_process(
    packed: dict[str, Any], chunk: bytes, mask: int, tmp_path: Path
) -> None:
    """libhdf5 does not compare, and reads what lay in memory for the rest."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        column = file.create_dataset("x", data=np.arange(64), chunks=(32,), **packed)
        column.id.write_direct_chunk((0,), chunk, mask)
    reason = r"chunk at \(0,\) has 3 bytes, expected 256|has filter 6"
    with pytest.raises(CorruptDatasetError, match=reason):
        check_readable(path)
    with open_checked(path) as file, pytest.raises(CorruptDatasetError, match="bytes|filter 6"):
        file["x"].read()


@pytest.mark.parametrize(
    "packed",
    [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"fletcher32": True}],
    ids=str,
)
def test_sound_chunks_are_read_whatever_packed_them(packed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).normal(size=(103, 7)), **packed)
        file.create_dataset("zeros", data=np.zeros((3000, 7)), chunks=(1500, 7), **packed)
        file.create_dataset("sparse", (90, 3), "f4", chunks=(9, 3), **packed)[20:40] = 1
        if "fletcher32" not in packed:
            texts = np.array(["a", "bb"] * 9, object)
            file.create_dataset("t", (18,), h5py.string_dtype(), data=texts, chunks=(8,), **packed)
    check_readable(path)
    with h5py.File(path, "r+") as file:
        extend_column(file, "zeros", np.ones((2, 7)), "zeros")
