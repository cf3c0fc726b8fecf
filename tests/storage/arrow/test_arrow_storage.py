"""Arrow and Parquet keep the contract; real Minari reads, extends and writes the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer as TheirBuffer
from minari.dataset.minari_storage import MinariStorage as TheirStorage

from minari_pipe.checks import Subject, run
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.datasets.identity import content_sha256
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, UnsupportedSpaceError
from minari_pipe.storage import MinariStorage, directory
from minari_pipe.storage.arrow.values import MOST_NESTED
from minari_pipe.testing import (
    ACTION,
    ARRAYS,
    OBSERVATION,
    StorageContract,
    assert_episode,
    assert_same,
    assert_stored,
    column,
    episode,
    files,
    make,
)
from minari_pipe.testing.strategies import TEXT
from minari_pipe.testing.values import ValuesContract
from tests.conftest import CHECKOUT, FULL, SHARED

FORMATS = ("arrow", "parquet")
FINISHED = {"dataset_id": "aa/b-v0", "minari_version": "0.5.4"}
IMAGE = spaces.Box(0, 255, (32, 40, 3), np.uint8)
TWO = spaces.Discrete(2)


class TestArrowStorage(StorageContract):
    data_format = "arrow"


class TestParquetStorage(StorageContract if FULL else ValuesContract):
    """All but the file of an episode is written and read as in ``TestArrowStorage``."""

    data_format = "parquet"


@pytest.fixture(params=FORMATS)
def data_format(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def new(
    path: Path, data_format: str, observation_space=OBSERVATION, action_space=ACTION, **options
) -> MinariStorage:
    storage = MinariStorage.new(
        path, observation_space, action_space, data_format=data_format, **options
    )
    storage.update_metadata(FINISHED)
    return storage


def plain(
    observation_space=TWO, action_space=TWO, *, seed: int = 0, steps: int = 4, **changes: Any
) -> EpisodeBuffer:
    """An episode without infos and options, unless ``changes`` bring some."""
    buffer = episode(observation_space, action_space, np.random.default_rng(seed), steps=steps)
    return replace(buffer, **{"infos": {}, "options": None, "extras": {}, **changes})


def their_buffer(buffer: EpisodeBuffer) -> TheirBuffer:
    """The same for real Minari, which takes text of infos in lists only."""
    fields = {name: getattr(buffer, name) for name in ARRAYS}
    as_list = map_leaves(lambda x: x.tolist() if x.dtype.kind == "O" else x, fields.pop("infos"))
    return TheirBuffer(seed=buffer.seed, infos=as_list, **fields)


def stored_table(path: Path, data_format: str) -> pa.Table:
    if data_format == "parquet":
        return pq.read_table(path)
    with pa.ipc.open_file(path) as file:
        return file.read_all()


def write_table(path: Path, table: pa.Table, *, rows_of_a_batch: int = 10**6) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_of_a_batch)
        return
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=rows_of_a_batch)


def test_the_layout_is_real_minari_s(path: Path, data_format: str) -> None:
    storage = new(path, data_format)
    storage.update_episodes(make(count=2))
    part = f"part-0.{data_format}"
    names = ["0/metadata.json", f"0/{part}", "1/metadata.json", f"1/{part}", "metadata.json"]
    assert sorted(files(path)) == names
    table = stored_table(path / "1" / part, data_format)
    assert table.column_names[:5] == [*ARRAYS[:5]]
    assert len(table) == len(make(count=2)[1]) + 1
    types = {field.name: str(field.type).replace("element", "item") for field in table.schema}
    assert types["observations"] == (
        "struct<a: fixed_size_list<item: float>[2], t: struct<0: string>>"
    )
    assert (types["actions"], types["rewards"], types["terminations"]) == (
        "int64",
        "double",
        "bool",
    )
    metadata = json.loads((path / "1" / "metadata.json").read_text())
    assert (metadata["id"], metadata["total_steps"]) == (1, len(table) - 1)


def _text_as_objects(leaf):
    return leaf.astype(object) if leaf.dtype.kind == "U" else leaf


SPACES = {
    **{
        dtype: spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 3), np.dtype(dtype).type)
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
    **{
        dtype: spaces.Box(-1, 1, (2, 3), np.dtype(dtype).type)
        for dtype in ("float16", "float32", "float64")
    },
    "a scalar Box": spaces.Box(-1, 1, ()),
    "Discrete from -3": spaces.Discrete(5, start=-3),
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[3, 4], [2, 2]])),
    "MultiBinary 3": spaces.MultiBinary(3),
    "MultiBinary 2x2": spaces.MultiBinary([2, 2]),
    "Text": spaces.Text(8, charset=TEXT, min_length=0),
    "keys with dots and slashes": spaces.Dict({"a.b": TWO, "c/d": spaces.Text(8, charset=TEXT)}),
    "nested": spaces.Dict(a=spaces.Tuple([spaces.Dict(x=spaces.MultiBinary(2)), TWO])),
    "an empty Dict": spaces.Dict({"a": spaces.Dict({}), "b": TWO}),
    "an empty Tuple": spaces.Tuple([]),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_space_goes_both_ways(path: Path, data_format: str, name: str) -> None:
    space = SPACES[name]
    buffers = [plain(space, space, seed=i, steps=steps) for i, steps in enumerate((3, 1, 4))]
    storage = new(path, data_format, space, space)
    storage.update_episodes(buffers[:2])
    theirs = minari.MinariDataset(path)
    for buffer, found in zip(buffers, theirs, strict=False):
        for field in ARRAYS[:5]:
            assert_same(getattr(found, field), getattr(buffer, field), field)
    if "empty" in name:
        return  # real Minari's writer makes columns of 0 rows of it
    theirs.update_dataset_from_buffer([their_buffer(buffers[2])])
    for buffer, fields in zip(buffers, MinariStorage.read(path).get_episodes(range(3))):
        assert_episode(fields, buffer)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_rows_without_values_come_back_which_real_minari_cannot(path, data_format, shape) -> None:
    space = spaces.Box(-1, 1, shape, np.float64)
    buffers = [plain(space, space)]
    new(path, data_format, space, space).update_episodes(buffers)
    assert_stored(MinariStorage.read(path), buffers)
    with pytest.raises(ValueError, match="cannot reshape array of size 0"):  # fault of the peer
        minari.MinariDataset(path)[0]


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_discrete_values_get_the_space_s_dtype(path: Path, data_format: str, dtype: str) -> None:
    """Minari 0.5.0 and 0.5.1 wrote all of them as int32."""
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([plain()])
    file = path / "0" / f"part-0.{data_format}"
    table = stored_table(file, data_format)
    narrow = table.column("actions").cast(pa.type_for_alias(dtype))
    write_table(file, table.set_column(1, "actions", narrow))
    assert_stored(storage, [plain()])


def test_the_dtype_that_was_recorded_is_kept(path: Path, data_format: str) -> None:
    space = spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float32), n=spaces.Discrete(3))
    rows = {"x": np.full((5, 2), 0.1), "n": np.ones(5, np.int16)}
    buffer = plain(action_space=space, observations=np.ones(5, np.int32), steps=4)
    buffer = replace(buffer, actions={key: value[:4] for key, value in rows.items()})
    storage = new(path, data_format, TWO, space)
    storage.update_episodes([buffer])
    assert_stored(storage, [buffer])
    assert minari.MinariDataset(path)[0].actions["x"].tolist() == rows["x"][:4].tolist()


INFOS = {
    "numbers": lambda n, rng: rng.random(n),
    "flags": lambda n, rng: rng.random(n) < 0.5,
    "rows": lambda n, rng: rng.random((n, 3)),
    "matrices": lambda n, rng: rng.random((n, 2, 2)),
    "rows of one": lambda n, rng: rng.random((n, 1)),
    "rows of 300": lambda n, rng: rng.random((n, 300)),
    "rows of flags": lambda n, rng: rng.random((n, 9)) < 0.5,
    "pictures": lambda n, rng: rng.integers(255, size=(n, 40, 40, 3)).astype(np.uint8),
    "half floats": lambda n, rng: rng.random(n).astype(np.float16),
    "rows without values": lambda n, rng: np.zeros((n, 2, 0), np.float32),
}


@pytest.mark.parametrize("kind", INFOS)
def test_infos_that_real_minari_reads_too(path: Path, data_format: str, kind: str) -> None:
    buffer = plain(infos={"x.y/z": INFOS[kind](5, np.random.default_rng(0))})
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([buffer])
    assert_stored(storage, [buffer])
    assert_same(minari.MinariDataset(path)[0].infos, buffer.infos)


OTHER_INFOS = {
    "nested": lambda n, rng: {"b/c": {"d": rng.random(n)}, "m": rng.random((n, 2))},
    "text": lambda n, rng: np.array(["", "ünï🙂"] * n, dtype=object)[:n],
    "rows of text": lambda n, rng: np.array(["x", "yy"] * n, dtype=object).reshape(n, 2),
    "complex": lambda n, rng: (rng.random((n, 2)) + 1j).astype(np.complex64),
    "long": lambda n, rng: rng.random((n, 2)).astype(np.longdouble) / 3,
    "of another byte order": lambda n, rng: rng.random((n, 2)).astype(">f4"),
}


@pytest.mark.parametrize("kind", OTHER_INFOS)
def test_infos_of_any_kind_come_back_exactly(path: Path, data_format: str, kind: str) -> None:
    buffer = plain(infos={"x": OTHER_INFOS[kind](5, np.random.default_rng(0))})
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([buffer])
    assert_stored(storage, [buffer])
    found = minari.MinariDataset(path)[0].infos["x"]  # fault of the peer if this is nested
    assert isinstance(found, np.ndarray)
    assert (kind == "nested") == isinstance(found[0], dict)


def nested(leaf: Any, depth: int, wrap: Any = lambda part: {"k": part}) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


@pytest.mark.parametrize("field", ["infos", "extras"])
@pytest.mark.parametrize("leaf", [np.zeros((5, 2)), np.array(["x"] * 5, object)])
def test_dicts_nested_too_deep_to_read_are_refused_unwritten(
    path, data_format, field, leaf
) -> None:
    def buffer(depth: int) -> EpisodeBuffer:
        outer = 0 if field == "infos" else 1  # an extra is a column itself
        return plain(**{field: nested(leaf, depth + outer)})

    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([buffer(MOST_NESTED)])
    before = files(path)
    with pytest.raises(InvalidEpisodeError, match=r"^episode 1: .* 63 deep, .* data_format='hdf5'"):
        storage.update_episodes([buffer(MOST_NESTED + 1)])
    assert files(path) == before
    assert_stored(MinariStorage.read(path), [buffer(MOST_NESTED)])
    assert len(minari.MinariDataset(path)[0].rewards) == 4


@pytest.mark.parametrize(
    "wrap", [lambda part: spaces.Dict(k=part), lambda part: spaces.Tuple([part])]
)
@pytest.mark.parametrize("leaf", [spaces.Box(-1, 1, (2, 2)), spaces.Dict({})], ids=str)
def test_spaces_nested_too_deep_to_read_are_refused(path, data_format, wrap, leaf) -> None:
    depth = MOST_NESTED - isinstance(leaf, spaces.Dict)
    space, buffer = nested(leaf, depth, wrap), plain(nested(leaf, depth, wrap))
    new(path, data_format, space, TWO).update_episodes([buffer])
    assert_stored(MinariStorage.read(path), [buffer])
    assert_same(minari.MinariDataset(path)[0].observations, buffer.observations)
    with pytest.raises(UnsupportedSpaceError, match="observations nests .* 63 deep"):
        MinariStorage.new(path / "b", wrap(space), TWO, data_format=data_format)


@pytest.mark.parametrize("nested", [False, True])
def test_infos_that_real_minari_writes_and_cannot_read(path, data_format, nested) -> None:
    rng = np.random.default_rng(0)
    infos = {"x": rng.random(5), "y": rng.random((5, 2, 2))}
    buffer = plain(infos={"deep": infos} if nested else infos)
    new(path, data_format, TWO, TWO)
    theirs = minari.MinariDataset(path)
    theirs.update_dataset_from_buffer([their_buffer(buffer)])
    if nested:
        assert theirs[0].infos["deep"].dtype == object  # fault of the peer: dicts in an array
    else:
        with pytest.raises(ValueError, match=r"invalid literal for int\(\)"):  # fault of the peer
            theirs[0]
    assert_episode(next(iter(MinariStorage.read(path).get_episodes([0]))), buffer)


def test_python_lists_and_missing_numbers_in_infos_are_read(path, data_format) -> None:
    new(path, data_format, TWO, TWO)
    infos = {"pairs": [[1, 2]] * 5, "gap": [None, 1.5, 2.5, 3.5, 4.5], "t": ([1] * 5, ["a"] * 5)}
    theirs = minari.MinariDataset(path)
    theirs.update_dataset_from_buffer([replace(their_buffer(plain()), infos=infos)])
    found = next(iter(MinariStorage.read(path).get_episodes([0])))["infos"]
    assert_same(found["pairs"], np.array([[1, 2]] * 5))
    assert_same(found["gap"], np.array([np.nan, 1.5, 2.5, 3.5, 4.5]))
    assert_same(found["t"], {"0": np.ones(5, int), "1": np.array(["a"] * 5, dtype=object)})


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        (b"2,6", (2, 6)),
        (bytes([2, 6]), (2, 6)),
        (bytes([3, 2, 2]), (3, 2, 2)),
        (b"12", (12,)),
        (b"", (12,)),
        (bytes([44, 1]), (12,)),
        (b"nonsense", (12,)),
        (b"-3,-4", (12,)),
    ],
    ids=str,
)
def test_the_shape_of_an_info_is_read_in_all_its_forms(path, data_format, stored, shape) -> None:
    """Minari 0.5.0 and 0.5.1 wrote one byte per dimension, which does not hold 256 and more."""
    values = np.arange(60.0).reshape(5, 12)
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([plain(infos={"x": values})])
    file = path / "0" / f"part-0.{data_format}"
    table = stored_table(file, data_format)
    child = pa.field("x", pa.list_(pa.float64(), 12), metadata={b"shape": stored})
    infos = pa.StructArray.from_arrays(
        [pa.FixedSizeListArray.from_arrays(values.ravel(), 12)], fields=[child]
    )
    write_table(file, table.set_column(5, pa.field("infos", infos.type), infos))
    found = next(iter(storage.get_episodes([0])))["infos"]["x"]
    assert_same(found, values.reshape(5, *shape))


@pytest.mark.parametrize("steps", [32_767, 40_000, 131_071, 150_000])
def test_long_episodes_are_read_whole_whoever_wrote_them(path, data_format, steps) -> None:
    buffers = [long_episode(length) for length in (steps, 3, 5)]
    new(path, data_format, LONG, TWO)
    theirs = minari.MinariDataset(path)
    theirs.update_dataset_from_buffer([their_buffer(buffer) for buffer in buffers])
    ours = MinariStorage.read(path)
    for buffer, fields in zip(buffers, ours.get_episodes(range(3)), strict=True):
        assert_episode(fields, buffer)
    lengths = [len(found) for found in theirs]
    assert (lengths == [steps, 3, 5]) == (steps < 32_768)  # fault of the peer

    other = new(path.parent / "ours", data_format, LONG, TWO)
    other.update_episodes(buffers)
    for buffer, fields in zip(buffers, other.get_episodes(range(3)), strict=True):
        assert_episode(fields, buffer)
    lengths = [len(found) for found in minari.MinariDataset(other.data_path)]
    # fault of the peer, of whatever file it reads
    assert (lengths == [steps, 3, 5]) == (steps < 131_072)


LONG = spaces.Discrete(10**6)


def long_episode(steps: int) -> EpisodeBuffer:
    return plain(LONG, steps=steps, observations=np.arange(steps + 1))


@pytest.mark.parametrize("last", [8, 2])
def test_steps_that_real_minari_shuffled_are_not_taken_for_right(path, data_format, last) -> None:
    storage = new(path, data_format, LONG, TWO)
    storage.update_episodes([long_episode(270_000)])
    file = path / "0" / f"part-0.{data_format}"
    table = stored_table(file, data_format)
    order = [0, 4, 1, 2, 3, 5, 6, 7, 7]
    order[last] = 8
    parts = [table[32_768 * number : 32_768 * (number + 1)].combine_chunks() for number in order]
    if data_format == "arrow":
        with pa.ipc.new_file(file, table.schema) as writer:
            for part in parts:
                writer.write_table(part)
    else:
        with pq.ParquetWriter(file, table.schema) as writer:
            for part in parts:
                writer.write_table(part)
    if last == 8:
        with pytest.warns(UserWarning, match="may be out of order"):
            next(iter(storage.get_episodes([0])))
    else:
        with pytest.raises(CorruptDatasetError, match=r"episode 0: its steps are out of order"):
            next(iter(storage.get_episodes([0])))


def test_a_file_of_several_batches_is_one_episode(path: Path, data_format: str) -> None:
    buffers = [episode(OBSERVATION, ACTION, np.random.default_rng(2), steps=6)]
    storage = new(path, data_format)
    storage.update_episodes(buffers)
    file = path / "0" / f"part-0.{data_format}"
    write_table(file, stored_table(file, data_format), rows_of_a_batch=2)
    assert_stored(storage, buffers)


def test_extra_columns_keep_their_number_of_rows(path: Path, data_format: str) -> None:
    rng = np.random.default_rng(0)
    extras = {
        "state": {"q": rng.random((5, 2)), "torque": rng.random((4, 2)), "deep": {"n": [1] * 4}},
        "note": np.array(["a", "b", "c", "d"], dtype=object),
        "mask": rng.random(5) < 0.5,
    }
    buffer = plain(extras=extras)
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([buffer])
    found = next(iter(storage.get_episodes([0])))["extras"]
    extras["state"]["deep"]["n"] = np.ones(4, int)
    assert_same(found, extras)
    rest = replace(
        plain(steps=2),
        id=0,
        seed=None,
        metadata={},
        observations=np.zeros(2, int),
        extras=map_leaves(lambda leaf: leaf[:2], found),
    )
    with pytest.raises(InvalidEpisodeError, match="extras has the keys"):
        storage.update_episodes([replace(rest, extras={"mask": [True] * 2})])
    storage.update_episodes([rest])
    found = next(iter(storage.get_episodes([0])))["extras"]
    expected = map_leaves(lambda leaf: np.concatenate([leaf, leaf[:2]]), extras)
    assert_same(found, expected)
    assert len(minari.MinariDataset(path)[0]) == 6


def test_continuing_an_episode_appends_where_real_minari_overwrites(path, data_format) -> None:
    whole = plain(steps=5)

    def part(begin, end, first):
        fields = {name: getattr(whole, name)[begin:end] for name in ARRAYS[1:5]}
        rows = whole.observations[begin + 1 - first : end + 1]
        return replace(whole, observations=rows, **fields)

    head, tail = part(0, 3, 1), replace(part(3, 5, 0), id=0, seed=None, metadata={})
    storage = new(path, data_format, TWO, TWO)
    storage.update_episodes([head])
    storage.update_episodes([tail])
    assert_stored(storage, [whole])
    assert_same(minari.MinariDataset(path)[0].rewards, whole.rewards)

    theirs = TheirStorage.new(path.parent / "theirs", TWO, TWO, data_format=data_format)
    theirs.update_episodes([their_buffer(head)])
    theirs.update_episodes([replace(their_buffer(tail), id=0)])
    assert theirs.total_steps == 5
    assert len(next(iter(theirs.get_episodes([0])))["rewards"]) == 1  # fault of the peer


def test_what_a_killed_real_minari_left_is_replaced(path: Path, data_format: str) -> None:
    storage = new(path, data_format)
    storage.update_episodes(make())
    before = (path / "metadata.json").read_text()
    storage.update_episodes(make(1, 2))
    (path / "3" / f"part-1.{data_format}").write_bytes(b"left")
    (path / "metadata.json").write_text(before)
    assert_stored(storage, make())
    with pytest.warns(UserWarning, match=r"has 5 episodes, metadata\.json says 3"):
        storage.update_episodes(make(2, 1))
    assert_stored(storage, [*make(), *make(2, 1)])
    assert not (path / "4").exists()
    assert sorted(os.listdir(path / "3")) == ["metadata.json", f"part-0.{data_format}"]


class TestJpeg:
    """Images as JPEG, only where that is asked for."""

    space = spaces.Dict(view=IMAGE, x=spaces.Box(-1, 1, (2,)))

    def test_both_libraries_see_the_same_images(self, path: Path, data_format: str) -> None:
        buffer = plain(self.space, IMAGE)
        storage = new(path, data_format, self.space, IMAGE, jpeg_encoding=True)
        storage.update_episodes([buffer])
        found = next(iter(storage.get_episodes([0])))
        theirs = minari.MinariDataset(path)[0]
        assert_same(found["observations"], theirs.observations)
        assert_same(found["actions"], theirs.actions)
        assert_same(found["observations"]["x"], buffer.observations["x"])
        difference = found["actions"].astype(int) - buffer.actions
        assert found["actions"].shape == (4, 32, 40, 3)
        assert 0 < np.abs(difference).max() < 256

    def test_real_minari_s_images_are_read(self, path: Path, data_format: str) -> None:
        theirs = TheirStorage.new(path, self.space, TWO, data_format=data_format)
        theirs.update_episodes([their_buffer(plain(self.space, TWO))])
        found = next(iter(MinariStorage.read(path).get_episodes([0])))
        assert_same(found["observations"], next(iter(theirs.get_episodes([0])))["observations"])

    def test_real_minari_cannot_write_images_as_actions(self, path, data_format) -> None:
        theirs = TheirStorage.new(path, TWO, IMAGE, data_format=data_format)
        with pytest.raises(ValueError, match="same length"):  # fault of the peer: no padding
            theirs.update_episodes([their_buffer(plain(TWO, IMAGE))])

    def test_a_continuation_loses_nothing_of_what_is_stored(self, path, data_format) -> None:
        buffer = plain(IMAGE, TWO)
        storage = new(path, data_format, IMAGE, TWO, jpeg_encoding=True)
        storage.update_episodes([buffer])
        before = next(iter(storage.get_episodes([0])))["observations"]
        rest = replace(buffer, id=0, seed=None, metadata={}, observations=buffer.observations[1:])
        storage.update_episodes([rest])
        found = next(iter(storage.get_episodes([0])))["observations"]
        assert_same(found, np.concatenate([before, before[1:]]))

    @pytest.mark.parametrize("key", [True, None])
    def test_raw_images_are_read_whatever_the_metadata_say(self, path, data_format, key) -> None:
        """Minari up to 0.5.2 stored them raw and had no key that said so."""
        buffer = plain(IMAGE, TWO)
        storage = new(path, data_format, IMAGE, TWO)
        storage.update_episodes([buffer])
        metadata = json.loads((path / "metadata.json").read_text())
        metadata = {k: v for k, v in metadata.items() if k != "jpeg_encoding"}
        (path / "metadata.json").write_text(
            json.dumps(metadata | ({"jpeg_encoding": key} if key else {}))
        )
        assert_stored(MinariStorage.read(path), [buffer])

    def test_keys_that_are_no_utf8_are_refused_by_name(self, path: Path, data_format: str) -> None:
        nested = spaces.Tuple([spaces.Dict({"a\ud800": TWO})])
        with pytest.raises(UnsupportedSpaceError, match=r"actions\[0\]\['a\\ud800'\]"):
            new(path, data_format, TWO, nested)

    def test_frame_stacks_are_refused_by_name(self, path: Path, data_format: str) -> None:
        stack = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        with pytest.raises(UnsupportedSpaceError, match=r"\(84, 84, 4\)"):
            new(path, data_format, stack, TWO, jpeg_encoding=True)
        storage = new(path, data_format, stack, TWO)
        storage.update_episodes([plain(stack, TWO, steps=2)])
        assert_stored(storage, [plain(stack, TWO, steps=2)])


@pytest.mark.parametrize("release", ["0.5.0", "0.5.3", "0.5.4"])
@pytest.mark.parametrize("name", ["cartpole", "nest"])
def test_files_of_every_release_hold_the_truth(release: str, name: str, data_format: str) -> None:
    root = SHARED / "legacy" / release
    folder = root / name / f"random-{data_format}-v0" / "data"
    if not folder.is_dir():
        pytest.skip(f"no such file: {folder}")
    truth = json.loads((root / "truth.json").read_text())[f"{name}/random-{data_format}-v0"]
    storage = MinariStorage.read(folder)
    hdf5 = MinariStorage.read(root / name / "random-v0" / "data")
    indices = range(len(truth))
    assert storage.total_episodes == len(truth)
    pairs = zip(storage.get_episodes(indices), hdf5.get_episodes(indices), strict=True)
    for expected, (found, other) in zip(truth, pairs, strict=True):
        for key, field in (("rew", "rewards"), ("term", "terminations"), ("trunc", "truncations")):
            assert found[field].tolist() == expected[key]
        for field in ARRAYS:  # which are equal to the truth, as other tests see to
            assert_same(found[field], other[field], field)
        if name == "cartpole":
            assert found["observations"].tolist() == expected["obs"]
            assert found["actions"].tolist() == expected["act"]
        else:
            rows = zip(found["observations"]["a"].tolist(), expected["obs"], strict=True)
            assert all(row == whole["a"] for row, whole in rows)
    assert next(iter(storage.get_episode_metadata([0])))["seed"] == 10


def test_the_content_is_the_same_in_every_format(tmp_path: Path) -> None:
    digests, findings = set(), []
    buffers = [replace(b, extras={"state": {"q": np.arange(len(b))}}) for b in make(count=4)]
    for data_format in ("hdf5", *FORMATS):
        storage = new(tmp_path / data_format, data_format)
        storage.update_episodes(buffers)
        digests.add(content_sha256(storage, storage.metadata))
        findings.append(run(Subject.open(storage.data_path)).to_json()["findings"])
    assert len(digests) == 1
    assert findings[0] == findings[1] == findings[2] != []


def test_the_checks_name_a_damaged_episode(path: Path, data_format: str) -> None:
    new(path, data_format).update_episodes(make())
    (path / "1" / f"part-0.{data_format}").write_bytes(b"x")
    report = run(Subject.open(path)).to_json()
    faults = [f["path"] for f in report["findings"] if f["check"] == "readable"]
    assert faults == ["episode 1"]


def test_an_update_walks_over_the_files_once(path, data_format, monkeypatch) -> None:
    walks = []
    sizes = directory.file_sizes
    monkeypatch.setattr(directory, "file_sizes", lambda *a: walks.append(a) or sizes(*a))
    new(path, data_format).update_episodes(make(count=20))
    assert len(walks) == 1


def test_a_forked_process_reads_after_its_parent(path: Path, data_format: str) -> None:
    storage = new(path, data_format)
    storage.update_episodes(make())
    assert_stored(storage, make())
    child = os.fork()
    if child == 0:
        try:
            assert_stored(storage, make())
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def _import_without(tmp_path: Path, pyarrow: str) -> subprocess.CompletedProcess[str]:
    """Make a storage in a process whose pyarrow is this code; no code means there is none."""
    code = f"""
import sys
if {pyarrow!r}:
    sys.path.insert(0, {str(tmp_path)!r})
else:
    sys.modules["pyarrow"] = None
from gymnasium.spaces import Discrete
from minari_pipe.storage import MinariStorage
MinariStorage.new({str(tmp_path / "data")!r}, Discrete(2), Discrete(2), data_format="parquet")
"""
    if pyarrow:
        (tmp_path / "pyarrow.py").write_text(pyarrow)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )


def test_a_missing_pyarrow_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    error = _import_without(tmp_path, "").stderr
    assert "MissingDependencyError: the format parquet needs the package pyarrow" in error
    assert "pip install 'minari_pipe[arrow]'" in error
    assert not (tmp_path / "data").exists()


def test_a_broken_pyarrow_says_itself_what_is_wrong(tmp_path: Path) -> None:
    error = _import_without(tmp_path, "raise ImportError('numpy is too old')").stderr
    assert error.strip().endswith("ImportError: numpy is too old")


def test_real_minari_s_writer_ends_the_process_on_rows_without_values(tmp_path: Path) -> None:
    """A fault of the peer: an episode with such infos is lost with the process."""
    code = f"""
import numpy as np
from gymnasium.spaces import Discrete
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
storage = MinariStorage.new({str(tmp_path / "x")!r}, Discrete(2), Discrete(2), data_format="arrow")
row = dict(observations=np.zeros(2, int), actions=np.zeros(1, int), rewards=[0.0])
infos = {{"x": np.zeros((2, 0))}}
flags = dict(terminations=[True], truncations=[False])
storage.update_episodes([EpisodeBuffer(infos=infos, **row, **flags)])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0


def test_values_keep_every_bit(path: Path, data_format: str) -> None:
    space = spaces.Box(-1, 1, (1,), np.float64)
    bits = np.array([0x7FF8DEADBEEF0001, 0xFFF0000000000001, 1 << 63, 0, 1], np.uint64)
    buffer = plain(space, space, observations=bits.view(np.float64).reshape(5, 1))
    buffer = replace(buffer, actions=buffer.observations[:4], rewards=np.array([-0.0, 1, 0, 2]))
    storage = new(path, data_format, space, space)
    storage.update_episodes([buffer])
    assert_stored(storage, [buffer])


def test_columns_of_any_space_survive_the_largest_shapes(path: Path, data_format: str) -> None:
    space = spaces.Box(-1, 1, (7, 300, 2), np.float32)
    buffer = plain(space, TWO)
    storage = new(path, data_format, space, TWO)
    storage.update_episodes([buffer])
    assert_stored(storage, [buffer])
    assert column(space, 0, np.random.default_rng(0)).shape == (0, 7, 300, 2)
