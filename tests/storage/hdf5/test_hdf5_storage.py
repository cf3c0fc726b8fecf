"""The HDF5 storage keeps the contract, reads what others wrote and survives what they broke."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.dataset.minari_storage import MinariStorage as TheirStorage
from PIL import Image

from minari_pipe.core.episode import EpisodeBuffer, reward_statistics
from minari_pipe.core.tree import leaves, map_leaves
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    UnsupportedSpaceError,
)
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.hdf5 import file as hdf5_file
from minari_pipe.storage.hdf5.file import EpisodeFile
from minari_pipe.storage.hdf5.parser.checked import check_readable
from minari_pipe.storage.hdf5.values import _chunk_shape
from minari_pipe.storage.hdf5.writer import direct
from minari_pipe.storage.writer import buffer_of
from minari_pipe.testing import (
    ACTION,
    ARRAYS,
    OBSERVATION,
    StorageContract,
    assert_episode,
    assert_same,
    assert_stored,
    episode,
    files,
    make,
    steps_of,
)
from tests.conftest import CHECKOUT, FULL, SHARED

IMAGE = spaces.Box(0, 255, (32, 40, 3), np.uint8)
FINISHED = {"dataset_id": "aa/b-v0", "minari_version": "0.5.4"}


class TestHDF5Storage(StorageContract):
    data_format = "hdf5"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def storage(path: Path) -> MinariStorage:
    storage = MinariStorage.new(path, OBSERVATION, ACTION)
    storage.update_episodes(make())
    storage.update_metadata(FINISHED)
    return storage


def test_the_layout_is_real_minari_s(storage: MinariStorage, path: Path) -> None:
    assert sorted(files(path)) == ["main_data.hdf5", "metadata.json"]
    with h5py.File(path / "main_data.hdf5") as file:
        assert dict(file.attrs) == {}
        assert sorted(file) == ["episode_0", "episode_1", "episode_2"]
        group = file["episode_1"]
        assert set(group) == set(ARRAYS)
        assert set(group["observations"]) == {"a", "t"}
        assert set(group["observations/t"]) == {"_index_0"}
        assert h5py.check_string_dtype(group["observations/t/_index_0"].dtype).encoding == "utf-8"
        for name in ("observations/a", "actions", "rewards", "terminations"):
            assert group[name].chunks == group[name].shape
            assert group[name].maxshape == (None, *group[name].shape[1:])
        assert group.attrs["id"] == 1


@pytest.mark.parametrize("version", ["0.5.0", "0.5.3", "0.5.4"])
def test_files_of_minari_releases_are_read(version: str, tmp_path: Path) -> None:
    root = SHARED / "legacy" / version
    if not root.is_dir():
        pytest.skip(f"no files of Minari {version} at {root}")
    truth = json.loads((root / "truth.json").read_text())
    seen = 0
    for dataset_id, episodes in truth.items():
        data = root / dataset_id / "data"
        if not (data / "main_data.hdf5").exists():
            continue
        seen += 1
        storage = MinariStorage.read(data)
        found = list(storage.get_episodes(range(storage.total_episodes)))
        assert len(found) == len(episodes) == storage.total_episodes
        for fields, expected in zip(found, episodes, strict=True):
            assert fields["rewards"].tolist() == expected["rew"]
            assert fields["terminations"].tolist() == expected["term"]
            assert fields["truncations"].tolist() == expected["trunc"]
            assert _rows(fields["observations"]) == _plain(expected["obs"])
            assert _rows(fields["actions"]) == _plain(expected["act"])
        copy = tmp_path / "copy"
        shutil.copytree(data, copy)
        for file in copy.iterdir():
            file.chmod(0o644)
        copy.chmod(0o755)
        extended = MinariStorage.read(copy)
        extended.update_from_storage(storage, [0])
        last = list(extended.get_episodes([0, len(found)]))
        for name in ARRAYS:
            assert_same(last[0][name], last[1][name])
        shutil.rmtree(copy)
    assert seen >= 1


def _rows(tree):
    count = len(next(iter(leaves(tree)))[1])
    return [_plain(map_leaves(lambda leaf, i=i: leaf[i], tree)) for i in range(count)]


def _plain(tree):
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray | np.generic):
        return tree.tolist()
    return [_plain(part) for part in tree] if isinstance(tree, list | tuple) else tree


# --- files that came from strangers


def plant(path: Path, change) -> MinariStorage:
    with h5py.File(path / "main_data.hdf5", "a") as file:
        change(file)
    return MinariStorage.read(path)


def _replace(file: h5py.File, name: str, value) -> None:
    del file[name]
    file[name] = value


def _external_storage(file: h5py.File) -> None:
    shape = file["episode_1/rewards"].shape
    del file["episode_1/rewards"]
    outside = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    file["episode_1"].create_dataset("rewards", shape, "f8", external=outside)


def _virtual(file: h5py.File) -> None:
    shape = file["episode_1/rewards"].shape
    del file["episode_1/rewards"]
    layout = h5py.VirtualLayout(shape, "f8")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", shape)
    file["episode_1"].create_virtual_dataset("rewards", layout)


def _circle(file: h5py.File) -> None:
    file["episode_1/infos/circle"] = file["episode_1"]


def _bush(file: h5py.File) -> None:
    below = file["episode_1/infos"]
    for depth in range(40):
        group = file.create_group(f"x{depth}")
        below["a"] = below["b"] = group
        below = group


def _bomb(file: h5py.File, size: int) -> None:
    del file["episode_1/rewards"]
    file["episode_1"].create_dataset("rewards", (size,), "f8", chunks=(2**20,))


def _infos(file: h5py.File, count: int, **how: Any) -> None:
    for number in range(count):
        file["episode_1/infos"].create_dataset(f"x{number}", **how)


def _same(file: h5py.File) -> None:
    file["episode_1/infos/same"] = np.zeros((7, 10_000))
    for number in range(400):
        file[f"episode_1/infos/x{number}"] = file["episode_1/infos/same"]


def _opaque(kind: str) -> h5py.h5t.TypeID:
    """Values that h5py takes for addresses of Python objects, or a date that crashes NumPy."""
    opaque = h5py.h5t.create(h5py.h5t.OPAQUE, 8)
    opaque.set_tag(b"NUMPY:M8[s/0]" if kind == "date" else b"NUMPY:|O")
    if kind == "part":
        whole = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
        whole.insert(b"a", 0, opaque)
        return whole
    return h5py.h5t.array_create(opaque, (2,)) if kind == "array" else opaque


def _opaque_infos(kind: str) -> Callable[[h5py.File], None]:
    def plant(file: h5py.File) -> None:
        rows = len(file["episode_1/rewards"]) + 1
        space = h5py.h5s.create_simple((rows,))
        h5py.h5d.create(file["episode_1/infos"].id, b"opaque", _opaque(kind), space)

    return plant


def _opaque_attribute(file: h5py.File) -> None:
    space = h5py.h5s.create_simple((1,))
    h5py.h5a.create(file["episode_1"].id, b"opaque", _opaque("part"), space)


STRANGE = {
    **{f"opaque values, {k}": _opaque_infos(k) for k in ("alone", "part", "array", "date")},
    "an opaque attribute": _opaque_attribute,
    "external link": lambda f: _replace(f, "episode_1", h5py.ExternalLink("x.hdf5", "/e")),
    "soft link": lambda f: _replace(f, "episode_1/rewards", h5py.SoftLink("/episode_0/rewards")),
    "link in a space": lambda f: _replace(f, "episode_1/observations/a", h5py.SoftLink("/x")),
    "link in infos": lambda f: f["episode_1/infos"].__setitem__("x", h5py.SoftLink("/episode_0")),
    "external storage": _external_storage,
    "virtual dataset": _virtual,
    "circle": _circle,
    "bush": _bush,
    "references": lambda f: _replace(
        f, "episode_1/actions", np.array([f["episode_0"].ref], h5py.ref_dtype)
    ),
    "booleans of other names": lambda f: _replace(
        f,
        "episode_1/terminations",
        np.zeros(
            f["episode_1/terminations"].shape,
            h5py.enum_dtype({"FALSD": 0, "TRUE": 1}, basetype="i1"),
        ),
    ),
    "missing array": lambda f: f.__delitem__("episode_1/truncations"),
    "missing episode": lambda f: f.__delitem__("episode_1"),
    "missing key": lambda f: f.__delitem__("episode_1/observations/a"),
    "array for a group": lambda f: _replace(f, "episode_1/observations", [1, 2]),
    "group for an array": lambda f: (
        f.__delitem__("episode_1/rewards"),
        f.create_group("episode_1/rewards"),
    ),
    "array for an episode": lambda f: _replace(f, "episode_1", [1]),
    "not utf-8": lambda f: f["episode_1/observations/t/_index_0"].__setitem__(0, b"\xff\xfe"),
    "a huge array": lambda f: _bomb(f, 2**60),
    "an array of 4 GiB": lambda f: _bomb(f, 2**29),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_are_refused_and_named(storage, path: Path, name: str) -> None:
    (path / "other.hdf5").touch()
    changed = plant(path, STRANGE[name])
    with pytest.raises(CorruptDatasetError, match=r"main_data\.hdf5.*episode"):
        list(changed.get_episodes([1]))
    if not name.startswith(("missing episode", "array for an episode", "external link")):
        assert_episode(next(iter(changed.get_episodes([0]))), make()[0])


BOMBS = {
    "arrays that were never written": lambda f: _infos(
        f, 3, shape=(7, 10**6), dtype="f8", chunks=(7, 10**6)
    ),
    "packed zeros": lambda f: _infos(
        f, 3, data=np.zeros((7, 5 * 10**5)), chunks=(7, 5 * 10**5), compression="gzip"
    ),
    "one array under many names": _same,
}


@pytest.mark.parametrize("name", BOMBS)
def test_arrays_that_no_file_holds_are_refused_before_they_are_read(storage, path, name) -> None:
    changed = plant(path, BOMBS[name])
    message = r"episode 1.*of data that the metadata do not announce"
    with pytest.raises(CorruptDatasetError, match=message):
        list(changed.get_episodes([1]))
    assert_episode(next(iter(changed.get_episodes([0]))), make()[0])


def _packed_twice(file: h5py.File) -> None:
    """Its chunk has six numbers, of which 256 MiB are unpacked on the way."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((6,))
    plan.set_filter(h5py.h5z.FILTER_LZF, 0, (4, 0, 48))  # only libhdf5 knows it
    plan.set_deflate(9)
    plan.set_deflate(9)
    places = h5py.h5s.create_simple((6,))
    made = h5py.h5d.create(file["episode_1/infos"].id, b"x", h5py.h5t.NATIVE_DOUBLE, places, plan)
    packer = zlib.compressobj(9)
    once = b"".join([*(packer.compress(bytes(2**24)) for _ in range(16)), packer.flush()])
    made.write_direct_chunk((0,), zlib.compress(once, 9), filter_mask=1)


def _one_text_many_times(path: Path) -> None:
    text, rows = "A" * 1_000_000, 500
    with h5py.File(path, "r+") as file:
        infos = file["episode_1/infos"]
        one = infos.create_dataset("one", (1,), h5py.string_dtype(), chunks=(1,))
        one[0] = text
        where = one.id.get_chunk_info(0).byte_offset
        how = {"chunks": (rows,), "compression": "lzf"}
        infos.create_dataset("many", (rows,), h5py.string_dtype(), **how)
    reference = path.read_bytes()[where : where + 16]
    with h5py.File(path, "r+") as file:
        file["episode_1/infos/many"].id.write_direct_chunk((0,), reference * rows, filter_mask=1)


def test_what_only_libhdf5_unpacks_may_not_grow_without_end(storage, path: Path) -> None:
    changed = plant(path, _packed_twice)
    with pytest.raises(CorruptDatasetError, match="episode 1"):
        list(changed.get_episodes([1]))


def test_rows_that_refer_to_one_text_are_refused(storage, path: Path) -> None:
    _one_text_many_times(path / "main_data.hdf5")
    with pytest.raises(CorruptDatasetError, match="many refers to the same values as others"):
        list(MinariStorage.read(path).get_episodes([1]))


def refer_to_one_text(path: Path, many: int, *, size: int = 1_000_000) -> None:
    """Let all texts of ``many`` bytes be one long text, which is in the file once."""
    with h5py.File(path, "r+") as file:
        file.attrs.create("once", np.array(["A" * size], object), dtype=h5py.string_dtype())
    content = bytearray(path.read_bytes())
    places = {
        length: [
            found.start()
            for found in re.finditer(re.escape(length.to_bytes(4, "little")), content)
            for heap in [int.from_bytes(content[found.start() + 4 : found.start() + 12], "little")]
            if content[heap : heap + 4] == b"GCOL"
        ]
        for length in (size, many)
    }
    (once,) = places[size]
    for place in places[many]:
        content[place : place + 16] = content[once : once + 16]
    assert len(places[many]) > 100
    path.write_bytes(content)


def _columns(file: h5py.File) -> None:
    for number in range(40):
        values = np.array([f"{number:011}"] * 6, object)
        file["episode_1/infos"].create_dataset(f"t{number}", data=values, dtype=h5py.string_dtype())


def _attributes(file: h5py.File) -> None:
    for number in range(40):
        values = np.array([f"{number:011}"] * 6, object)
        file["episode_1"].attrs.create(f"t{number}", values, dtype=h5py.string_dtype())


def _for_libhdf5(file: h5py.File) -> None:
    _columns(file)
    file["episode_1/infos"].create_dataset("x", data=np.zeros(7, int), compression="lzf")


@pytest.mark.parametrize("add", [_columns, _attributes, _for_libhdf5])
def test_columns_and_attributes_that_refer_to_one_text_are_refused(add, storage, path) -> None:
    changed = plant(path, add)
    refer_to_one_text(path / "main_data.hdf5", 11)
    read = [MinariStorage.read(path).get_episodes, changed.get_episodes]
    if add is _attributes:
        read.append(MinariStorage.read(path).get_episode_metadata)
    for use in read:
        tracemalloc.start()
        with pytest.raises(CorruptDatasetError):
            list(use([1]))
        assert tracemalloc.get_traced_memory()[1] < 80e6
        tracemalloc.stop()


def test_hard_links_to_a_column_of_long_texts_are_followed(storage, path: Path) -> None:
    def link(file: h5py.File) -> None:
        infos = file["episode_1/infos"]
        values = np.array(["A" * 5000] * 6, object)
        infos.create_dataset("t", data=values, dtype=h5py.string_dtype())
        for number in range(8):
            infos[f"t{number}"] = infos["t"]

    infos = next(iter(plant(path, link).get_episodes([1])))["infos"]
    assert all(list(infos[f"t{number}"]) == ["A" * 5000] * 6 for number in range(8))


def test_the_file_that_a_virtual_dataset_names_is_not_opened(storage, path: Path) -> None:
    """A pipe, which whoever opens it waits at."""
    other = path / "pipe"

    def plan(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((6,), maxshape=(None,), dtype="f8")
        source = h5py.VirtualSource(str(other), "x", shape=(6,), maxshape=(None,))
        layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        file["episode_1/infos"].create_virtual_dataset("virtual", layout)
        # Lets libhdf5 read the file.
        file["episode_1/infos"].create_dataset("x", data=np.zeros(7, int), compression="lzf")

    changed = plant(path, plan)
    os.mkfifo(other)
    with pytest.raises(CorruptDatasetError, match="takes its values from another file"):
        list(changed.get_episodes([1]))


@pytest.mark.parametrize("content", [b"not an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_other_files_are_named(storage, path: Path, content: bytes) -> None:
    (path / "main_data.hdf5").write_bytes(content)
    with pytest.raises(CorruptDatasetError, match=r"main_data\.hdf5: file: "):
        list(storage.get_episodes([0]))
    with pytest.raises(CorruptDatasetError):
        storage.update_episodes(make())
    assert (path / "main_data.hdf5").read_bytes() == content


def test_a_truncated_file_is_named(storage, path: Path) -> None:
    content = (path / "main_data.hdf5").read_bytes()
    (path / "main_data.hdf5").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptDatasetError):
        list(storage.get_episodes([0]))


def test_damaged_bytes_give_values_or_our_errors(storage, path: Path) -> None:
    """Always the same mutants, 100 with ``FULL``, in a process of their own with little memory.

    Not more of them on purpose: of 2000, one made libhdf5 itself crash and two made it allocate
    gigabytes for a damaged heap, which no check on this side of its API can see coming.
    """
    code = f"""
import resource
from pathlib import Path
import numpy as np
from minari_pipe.errors import MinariPipeError
from minari_pipe.storage import MinariStorage, hdf5
from tests.conftest import FULL
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
path = Path({str(path)!r}) / "main_data.hdf5"
storage, content = MinariStorage.read(path.parent), path.read_bytes()
rng = np.random.default_rng(0)
for _ in range(100 if FULL else 40):
    damaged = bytearray(content)
    for place in rng.integers(len(content), size=3):
        damaged[place] = rng.integers(256)
    path.write_bytes(damaged)
    try:
        list(storage.get_episodes(range(3)))
        list(storage.get_episode_metadata(range(3)))
    except (MinariPipeError, IndexError):
        pass
"""
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


def test_damaged_attributes_are_refused(storage, path: Path) -> None:
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        file["episode_1"].attrs["minari_pipe_exact"] = "[]"
    with pytest.raises(CorruptDatasetError, match="attributes of episode 1 cannot be read"):
        list(storage.get_episode_metadata([1]))


def test_a_file_with_objects_that_only_libhdf5_reads_is_appended_to() -> None:
    """The process that reads it first finds it, though its folder is kept open in this one."""
    dataset = step_index_dataset("aa/b-v0")
    (dataset.storage.data_path.parent / "manifest.json").unlink(missing_ok=True)
    with h5py.File(dataset.storage.data_path / "main_data.hdf5", "r+") as file:
        file.attrs["first"] = file["episode_0"].ref
    dataset = load_dataset("aa/b-v0")
    episodes = list(dataset.storage.get_buffers())
    dataset.update_dataset_from_buffer(episodes)
    assert_stored(dataset.storage, [*episodes, *episodes])


@pytest.mark.parametrize("name", ["opaque", "external"])
def test_the_file_that_another_process_reads_first_is_the_one_that_is_opened(name, tmp_path):
    """A path may mean another file there: through a link of that process, or of its number."""
    (tmp_path / "secret").write_bytes(b"precious" * 2)
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    with h5py.File(folder / "d.hdf5", "w") as file:
        if name == "opaque":
            file.attrs.create("odd", np.zeros(1, np.dtype("V8")), dtype=h5py.opaque_dtype("V8"))
        else:
            external = [(str(tmp_path / "secret"), 0, 16)]
            file.create_dataset("rewards", (2,), "f8", external=external)
    with h5py.File(tmp_path / "plain.hdf5", "w") as file:
        file.attrs["here"] = file.ref
    for number in range(os.getpid() - 50, os.getpid() + 2000):
        place = tmp_path / "proc" / str(number)
        place.mkdir()
        (place / "d.hdf5").hardlink_to(tmp_path / "plain.hdf5")
    with pytest.raises(CorruptDatasetError, match="opaque|another file"):
        check_readable(folder / "d.hdf5")


def test_attributes_of_others_are_read(storage, path: Path) -> None:
    def change(file):
        attributes = file["episode_0"].attrs
        attributes["bytes"] = np.bytes_(b"abc")
        attributes["nothing"] = h5py.Empty("f8")
        attributes["texts"] = ["a", "b"]
        attributes["deep/er/x"] = np.float32(1.5)

    found = next(iter(plant(path, change).get_episode_metadata([0])))
    assert_same(found["bytes"], "abc")
    assert found["nothing"] is None
    assert found["texts"].tolist() == ["a", "b"]
    assert_same(found["deep"], {"er": {"x": np.float32(1.5)}})


# --- images that somebody encoded as JPEG


def jpeg_files(pictures) -> list[np.ndarray]:
    """Pictures as Minari encodes them."""
    files_ = []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format="JPEG")
        files_.append(np.frombuffer(buffer.getvalue(), np.uint8))
    return files_


def write_as_minari(group: h5py.Group, name: str, rows: list[np.ndarray]) -> None:
    """What Minari 0.5.3 and 0.5.4 call for JPEG files."""
    dtype = h5py.vlen_dtype(np.uint8) if len(set(map(len, rows))) > 1 else None
    group.create_dataset(name, data=rows, dtype=dtype, chunks=True)


SMALL = spaces.Box(0, 255, (7, 7, 3), np.uint8)


def small_images(path: Path, pictures: np.ndarray) -> MinariStorage:
    """A dataset as Minari 0.5.3 writes it, which encodes small images and those of infos too."""
    storage = MinariStorage.new(path, SMALL, SMALL)
    rows = len(pictures)
    buffer = episode(SMALL, SMALL, np.random.default_rng(0), rows - 1)
    storage.update_episodes([replace(buffer, infos={}, extras={})])
    metadata = json.loads((path / "metadata.json").read_text())
    del metadata["jpeg_encoding"]
    (path / "metadata.json").write_text(json.dumps({**metadata, "minari_version": "0.5.3"}))
    with h5py.File(path / "main_data.hdf5", "a") as file:
        group = file["episode_0"]
        del group["observations"], group["actions"]
        write_as_minari(group, "observations", jpeg_files(pictures))
        write_as_minari(group, "actions", jpeg_files(pictures[1:]))
        write_as_minari(group["infos"], "view", jpeg_files(pictures))
        write_as_minari(group.create_group("state"), "view", jpeg_files(pictures))
    return MinariStorage.read(path)


@pytest.mark.parametrize("picture", ["noise", "black"])
def test_images_that_minari_encoded_unasked_are_decoded(path: Path, picture: str) -> None:
    """Real Minari 0.5.4 gives the bytes of the JPEG files, in an array of another shape."""
    pictures = np.random.default_rng(0).integers(256, size=(4, 7, 7, 3), dtype=np.uint8)
    pictures = pictures if picture == "noise" else np.zeros_like(pictures)
    storage = small_images(path, pictures)
    (found,) = storage.get_episodes([0])
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(row))) for row in jpeg_files(pictures)])
    assert_same(decoded, found["observations"])
    assert_same(decoded[1:], found["actions"])
    assert_same({"view": decoded}, found["infos"])
    assert_same({"state": {"view": decoded}}, found["extras"])
    (theirs,) = TheirStorage.read(path).get_episodes([0])
    assert theirs["observations"].shape != decoded.shape

    more = episode(SMALL, SMALL, np.random.default_rng(1), 2)
    rest = replace(steps_of(more, 1, 2, first=False), id=0, metadata={})
    rest = replace(rest, infos={"view": decoded[:1]}, extras={"state": {"view": decoded[:1]}})
    storage.update_episodes([rest, more])
    storage.update_from_storage(storage, [0])
    whole, exact, copy = storage.get_episodes(range(3))
    assert_same(np.concatenate([decoded, rest.observations]), whole["observations"])
    assert_same(more.observations, exact["observations"])  # the space is none of images
    assert_same({**whole, "id": 2}, copy)


@pytest.mark.parametrize(("version", "jpeg"), [("0.5.2", False), ("0.5.3", True), (None, True)])
def test_without_its_key_the_release_tells_whether_images_are_encoded(path, version, jpeg) -> None:
    MinariStorage.new(path, IMAGE, ACTION)
    metadata = json.loads((path / "metadata.json").read_text())
    del metadata["jpeg_encoding"]
    metadata |= {"minari_version": version} if version else {}
    (path / "metadata.json").write_text(json.dumps(metadata))
    assert MinariStorage.read(path).jpeg_encoding is jpeg


def test_bytes_that_only_begin_like_jpeg_are_numbers(path: Path) -> None:
    space = spaces.Box(0, 255, (5,), np.uint8)
    rows = np.tile(np.array([0xFF, 0xD8, 0xFF, 0, 1], np.uint8), (3, 1))
    storage = MinariStorage.new(path, space, ACTION)
    buffer = episode(space, ACTION, np.random.default_rng(0), 2)
    buffer = replace(buffer, observations=rows, infos={"x": rows}, extras={"y": rows})
    storage.update_episodes([buffer])
    rest = replace(steps_of(buffer, 0, 1, first=False), id=0, metadata={})
    storage.update_episodes([rest])
    (found,) = storage.get_episodes([0])
    for values in (found["observations"], found["infos"]["x"], found["extras"]["y"]):
        assert_same(rows[[0, 1, 2, 0]], values)


def _claim(row: np.ndarray, height: int, width: int) -> np.ndarray:
    """A JPEG file whose header claims another size."""
    content = bytearray(row.tobytes())
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return np.frombuffer(bytes(content), np.uint8)


GOOD_JPEG = jpeg_files(np.zeros((3, 40, 32, 3), np.uint8))
DAMAGED_JPEG = {
    "cut": [*GOOD_JPEG[:2], GOOD_JPEG[2][:300]],
    "nothing but the beginning": [GOOD_JPEG[0][:3]] * 3,
    "another file": [*GOOD_JPEG[:2], np.frombuffer(b"%!PS-Adobe-3.0 EPSF", np.uint8)],
    "an empty row": [*GOOD_JPEG[:2], GOOD_JPEG[0][:0]],
    "another size": [*GOOD_JPEG[:2], *jpeg_files(np.zeros((1, 48, 32, 3), np.uint8))],
    "another number of channels": [*GOOD_JPEG[:2], *jpeg_files(np.zeros((1, 40, 32), np.uint8))],
    "a bomb": [_claim(GOOD_JPEG[0], 65_000, 65_000)] * 3,
    "a smaller bomb": [_claim(GOOD_JPEG[0], 5_000, 5_000)] * 3,
    "a bomb in the last row": [*GOOD_JPEG[:2], _claim(GOOD_JPEG[0], 65_000, 65_000)],
}


@pytest.mark.parametrize("name", DAMAGED_JPEG)
def test_damaged_jpeg_is_named_and_no_bomb_explodes(path: Path, name: str) -> None:
    storage = MinariStorage.new(path, IMAGE, ACTION, jpeg_encoding=True)
    storage.update_episodes([episode(IMAGE, ACTION, np.random.default_rng(0), 2)])
    with h5py.File(path / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        write_as_minari(file["episode_0"], "observations", DAMAGED_JPEG[name])
    tracemalloc.start()
    with pytest.raises(CorruptDatasetError, match=r"main_data\.hdf5: episode 0: .*observations"):
        list(storage.get_episodes([0]))
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize("key", ["./a", "/a", "a//b", ".", "", "a/", "\ud800", "a\0b"], ids=ascii)
def test_keys_of_spaces_that_are_no_names_in_hdf5_are_refused(tmp_path: Path, key: str) -> None:
    nested = spaces.Tuple([spaces.Dict({key: spaces.Dict({})})])
    message = re.escape(f"actions[0] has the key {key!r}")
    with pytest.raises(UnsupportedSpaceError, match=message):
        MinariStorage.new(tmp_path / "data", OBSERVATION, nested)
    assert list(tmp_path.iterdir()) == []
    rows = ({key: [1, 2]},)
    buffer = replace(make(count=1)[0], observations=rows)
    with (
        EpisodeFile.create(tmp_path / "episodes.hdf5") as file,
        pytest.raises(InvalidEpisodeError, match=re.escape(f"the key {key!r}")),
    ):
        file.append(buffer)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a/b": ACTION, "a": spaces.Dict({"b": ACTION})}),
        spaces.Dict({"a/b": ACTION, "a": ACTION}),
        spaces.Dict({"a/_index_0": ACTION, "a": spaces.Tuple([ACTION])}),
    ],
)
def test_spaces_with_two_values_in_one_place_are_refused(tmp_path: Path, space) -> None:
    with pytest.raises(UnsupportedSpaceError, match="two values share the name 'observations/a"):
        MinariStorage.new(tmp_path / "data", space, ACTION)


def test_a_slash_between_two_parts_of_a_key_is_kept(path: Path) -> None:
    space = spaces.Dict({"a/b": ACTION, "a": spaces.Dict({"c": ACTION}), "..": ACTION})
    storage = MinariStorage.new(path, space, space)
    buffers = [episode(space, space, np.random.default_rng(0))]
    storage.update_episodes(buffers)
    assert_stored(MinariStorage.read(path), buffers)


def test_images_are_lossless_by_default_also_for_real_minari(path: Path) -> None:
    rng = np.random.default_rng(0)
    buffers = [episode(IMAGE, ACTION, rng, 3)]
    storage = MinariStorage.new(path, IMAGE, ACTION)
    storage.update_metadata(FINISHED)
    storage.update_episodes(buffers)
    assert_stored(storage, buffers)
    assert_same(minari.MinariDataset(path)[0].observations, buffers[0].observations)


def test_minari_s_empty_file_has_no_episodes(path: Path) -> None:
    TheirStorage.new(path, OBSERVATION, ACTION)
    assert (path / "main_data.hdf5").stat().st_size == 0
    storage = MinariStorage.read(path)
    assert list(storage.get_episodes([])) == []
    storage.update_episodes(make())
    assert_stored(storage, make())


def test_what_a_kill_between_the_two_renames_left_is_dropped(storage, path: Path) -> None:
    metadata = (path / "metadata.json").read_bytes()
    storage.update_episodes(make(1))
    (path / "metadata.json").write_bytes(metadata)
    assert_stored(storage, make())
    with pytest.warns(UserWarning, match="has 6 episodes, metadata.json says 3"):
        storage.update_episodes(make(2))
    assert_stored(storage, [*make(), *make(2)])


def test_fewer_episodes_than_the_metadata_says_are_an_error(storage, path: Path) -> None:
    with h5py.File(path / "main_data.hdf5", "a") as file:
        del file["episode_2"]
    with pytest.raises(CorruptDatasetError, match=r"has 2 episodes, metadata\.json says 3"):
        storage.update_episodes(make())


# --- EpisodeFile alone


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "episodes.hdf5"
    with EpisodeFile.create(path) as file:
        assert [file.append(buffer) for buffer in make()] == [len(buffer) for buffer in make()]
        assert not path.exists()
        assert len(file) == 3
        assert_episode(file.read(1, OBSERVATION, ACTION), make()[1])
    with EpisodeFile.open(path) as file:
        assert len(file) == 3
        again = buffer_of(vars(file.read(2, OBSERVATION, ACTION)), file.episode_metadata(2))
        expected = replace(make()[2], id=None)
        assert_same(
            vars(again),
            {
                **vars(expected),
                "metadata": {**reward_statistics(expected.rewards), **expected.metadata},
            },
        )
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), EpisodeFile.create(path) as file:
        file.append(make()[file.append(make()[0]) // 0])
    assert files(tmp_path) == {"episodes.hdf5": before}


def test_a_refused_episode_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(make()[0])
        for bad in (
            replace(make()[0], rewards=[]),
            replace(make()[0], metadata={"x": object()}),
            replace(make()[0], infos={"a/b": [*make()[0].rewards, 0], "a": {"b": [0]}}),
            replace(
                make(3)[0],
                infos={"a/b": [0] * (len(make(3)[0]) + 1), "a": [0] * (len(make(3)[0]) + 1)},
            ),
        ):
            with pytest.raises(InvalidEpisodeError, match=r"^episode 1: "):
                file.append(bad)
        file.append(make()[1])
    with EpisodeFile.open(tmp_path / "episodes.hdf5") as file:
        assert len(file) == 2
        assert_episode(file.read(1, OBSERVATION, ACTION), make()[1])


def test_filled_infos_are_told(tmp_path: Path) -> None:
    filled = {"success": [[0, 1]], "nest.y": [[0, 5]]}
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(replace(make()[0], metadata={"infos_filled": filled}))
    with EpisodeFile.open(tmp_path / "episodes.hdf5") as file:
        assert file.episode_metadata(0)["infos_filled"] == filled


def test_stored_statistics_are_not_overwritten(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(replace(make()[0], metadata={"rewards_sum": -1.0}))
        assert file.episode_metadata(0)["rewards_sum"] == -1.0


def test_opening_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError), EpisodeFile.open(tmp_path / "x.hdf5"):
        pass


@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [((5, 3), 4), ((10**6, 10**6), 8), ((2, 2**31), 8), ((3, 0), 8), ((1, 2**33), 1)],
)
def test_chunks_are_whole_datasets_below_the_limit_of_hdf5(shape, itemsize) -> None:
    chunk = _chunk_shape(shape, itemsize)
    size = int(np.prod(chunk, dtype=object)) * itemsize
    assert 0 < size <= 2**30
    if np.prod(shape, dtype=object) * itemsize <= 2**30:
        assert chunk == tuple(max(1, length) for length in shape)


@pytest.mark.parametrize("limit", range(10_000, 100_000, 15_000 if FULL else 45_000))
def test_a_file_that_may_not_grow_is_an_error_and_changes_nothing(path: Path, limit: int) -> None:
    """libhdf5 itself crashes where a write fails."""
    storage = MinariStorage.new(path, OBSERVATION, ACTION)
    before = files(path)
    big = [replace(make(count=1)[0], metadata={"x": np.zeros(2_000)})] * 20
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            storage.update_episodes(big)
        except OSError as error:
            os._exit(17 if error.errno == errno.EFBIG else 2)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 17, status
    assert files(path) == before
    storage.update_episodes(big)
    assert storage.total_episodes == 20


@pytest.mark.parametrize("limit", [10_000, 20_000])
def test_a_write_that_fails_unforeseen_is_an_error_and_changes_nothing(
    path: Path, limit: int, monkeypatch
) -> None:
    """As on a disk that another process fills meanwhile: libhdf5 told of it or crashed, or not."""
    storage = MinariStorage.new(path, OBSERVATION, ACTION)
    before = files(path)
    for module in (hdf5_file, direct):
        monkeypatch.setattr(module, "require_space", lambda *_args: None)
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            storage.update_episodes(make(count=3))
        except OSError as error:
            os._exit(17 if error.errno == errno.EFBIG else 2)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 17, status
    assert files(path) == before


def test_an_episode_too_large_for_a_chunk_is_written_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "CHUNK_BYTES", 2**20)
    rows = np.zeros((2**14, 2**10), np.uint8)
    rows[:, 7] = 1
    flags = np.zeros(len(rows) - 1, np.bool_)
    numbers = np.zeros(len(flags))
    space = spaces.Box(0, 1, (2**10,), np.uint8)
    storage = MinariStorage.new(tmp_path / "data", space, spaces.Discrete(2), data_format="hdf5")
    episode = EpisodeBuffer(
        observations=rows,
        actions=np.zeros(len(flags), np.int64),
        rewards=numbers,
        terminations=flags,
        truncations=flags,
    )
    tracemalloc.start()
    try:
        storage.update_episodes([episode])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows.nbytes / 2
    assert np.array_equal(next(storage.get_episodes([0]))["observations"], rows)
