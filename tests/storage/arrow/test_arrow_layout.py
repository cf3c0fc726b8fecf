"""Files that NumPy wrote are pyarrow's byte for byte; arrays read by place are pyarrow's."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer as TheirBuffer

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import leaves
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.arrow.files import read_ipc, write_ipc
from minari_pipe.storage.arrow.layout import FileLayout
from minari_pipe.storage.arrow.reading import KnownFiles
from minari_pipe.storage.arrow.storage import ArrowStorage, EpisodeFolders
from minari_pipe.storage.segment import AttributeTable, Leaf, Segment
from minari_pipe.testing import assert_same, assert_stored, column, examples, files
from minari_pipe.testing import spaces as any_spaces
from tests.conftest import FULL

TWO = spaces.Discrete(2)
WIDE = spaces.Box(-np.inf, np.inf, (3,), np.float64)

#: values of a row of infos and of extras: of every kind of number
KINDS = (
    ("f8", ()),
    ("f4", (2, 3)),
    ("f2", (1,)),
    ("i8", ()),
    ("u1", (5,)),
    ("?", ()),
    ("?", (3,)),
    ("c8", (2,)),
    ("c16", ()),
    (">f4", (2,)),
    (">i8", ()),
    ("g", ()),
)


def drawn(dtype: str, shape: tuple[int, ...], rows: int, rng: np.random.Generator) -> np.ndarray:
    if dtype == "g":
        return rng.random((rows, *shape)).astype(np.longdouble) / 3
    if dtype == "?":
        return rng.random((rows, *shape)) < 0.5
    size = rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(rows, *shape)


def has_only_numbers(space: gym.Space) -> bool:
    """Whether a segment can hold columns of a space."""
    parts: Any = ()
    if isinstance(space, spaces.Dict):
        parts = space.spaces.values()
    elif isinstance(space, spaces.Tuple):
        parts = space.spaces
    else:
        return not isinstance(space, spaces.Text)
    return len(parts) > 0 and all(map(has_only_numbers, parts))


@st.composite
def plain_episodes(draw: st.DrawFn) -> tuple[gym.Space, gym.Space, list[dict[str, Any]]]:
    """Columns of a few episodes of one structure, all of numbers."""
    both = [draw(any_spaces().filter(has_only_numbers)) for _ in range(2)]
    infos = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(KINDS), max_size=3))
    extras = draw(st.dictionaries(st.sampled_from("xyz"), st.sampled_from(KINDS), max_size=2))
    more = {name: draw(st.integers(0, 1)) for name in extras}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = []
    lengths = st.tuples(st.integers(1, 70), st.sampled_from((1, 2, 5)))
    runs = draw(st.lists(lengths, min_size=1, max_size=3))
    for steps in [steps for steps, times in runs for _ in range(times)]:
        columns = {
            "observations": column(both[0], steps + 1, rng),
            "actions": column(both[1], steps, rng),
            "rewards": drawn("f8", (), steps, rng),
            "terminations": drawn("?", (), steps, rng),
            "truncations": drawn("?", (), steps, rng),
            "infos": {},
        }
        for name, kind in infos.items():
            columns["infos"][name] = drawn(*kind, steps + 1, rng)
        if infos:
            columns["infos"]["deep"] = {"n": drawn("i4", (), steps + 1, rng)}
        if extras:
            columns["extras"] = {
                name: {"of": drawn(*kind, steps + more[name], rng)} for name, kind in extras.items()
            }
        found.append(columns)
    return both[0], both[1], found


def segment_of(episodes: list[dict[str, Any]], table: AttributeTable | None = None) -> Segment:
    steps = np.array([len(columns["rewards"]) for columns in episodes])
    paths = [[path for path, _ in leaves(columns)] for columns in episodes]
    arrays = [[leaf for _, leaf in leaves(columns)] for columns in episodes]
    found = tuple(
        Leaf(path, first.dtype, first.shape[1:], len(first) - int(steps[0]))
        for path, first in zip(paths[0], arrays[0], strict=True)
    )
    joined = tuple(
        np.concatenate(parts, dtype=parts[0].dtype) for parts in zip(*arrays, strict=True)
    )
    if table is None:
        numbers = {"id": np.arange(len(steps)), "total_steps": steps, "x%": np.sqrt(steps)}
        table = AttributeTable(numbers)
    return Segment(0, steps, found, joined, table)


def empty_storage(path: Path, *both: gym.Space, **options: Any) -> ArrowStorage:
    storage = MinariStorage.new(path, *both, data_format="arrow", **options)
    assert isinstance(storage, ArrowStorage)
    return storage


def counted(storage: ArrowStorage, episodes: list[Any], steps: int) -> None:
    """Say in the metadata that these episodes are there."""
    with storage._change() as change:
        change.metadata |= {"total_episodes": len(episodes), "total_steps": steps}


@examples(60 if FULL else 20)
@given(plain_episodes())
def test_a_segment_s_files_are_those_of_its_episodes(tmp_path_factory, drawn_episodes) -> None:
    *both, episodes = drawn_episodes
    path = tmp_path_factory.mktemp("data")
    segment = segment_of(episodes)
    for name in ("one by one", "at once"):
        storage = empty_storage(path / name / "data", *both)
        writer = EpisodeFolders(storage, storage.data_path, 0)
        if name == "at once":
            writer._append_segment(segment)
            assert writer._layouts[segment.leaves] is not None
        else:
            for place, columns in enumerate(episodes):
                writer._append(columns, segment.attributes[place])
        assert len(writer) == len(episodes)
        counted(storage, episodes, int(segment.steps.sum()))
    assert files(path / "at once") == files(path / "one by one")


def test_files_of_one_length_that_take_several_tables_are_those_of_their_episodes(tmp_path) -> None:
    lengths = [900] * 17 + [7] * 3 + [900] * 4  # 36 kB each: seven to a table
    buffers = [replace(buffer_of(steps), seed=place) for place, steps in enumerate(lengths)]
    storage = empty_storage(tmp_path / "data", WIDE, TWO)
    storage.update_episodes(buffers)
    for buffer, found in zip(buffers, storage.get_episodes(range(len(buffers))), strict=True):
        assert_same(found["observations"], buffer.observations)
        assert_same(found["terminations"], buffer.terminations)
        part = storage.data_path / str(found["id"]) / "part-0.arrow"
        assert write_ipc(read_ipc(part.read_bytes()).to_batches()[0]) == part.read_bytes()


@examples(60 if FULL else 20)
@given(plain_episodes())
def test_episodes_are_read_alike_by_place_and_by_pyarrow(tmp_path_factory, drawn_episodes) -> None:
    *both, episodes = drawn_episodes
    storage = empty_storage(tmp_path_factory.mktemp("data") / "data", *both)
    segment = segment_of(episodes)
    EpisodeFolders(storage, storage.data_path, 0)._append_segment(segment)
    counted(storage, episodes, int(segment.steps.sum()))
    for found, columns in zip(storage.get_episodes(range(len(episodes))), episodes, strict=True):
        expected = {"id": found["id"], "seed": None, "extras": {}, **columns}
        assert list(found) == ["id", "seed", "extras", *list(columns)[:6]]
        assert_same(found, expected)
    # values of the other byte order are turned, so no array in the file is theirs
    is_native = all(leaf.dtype.isnative for leaf in segment.leaves)
    assert bool(storage._known) == is_native
    for index in range(len(episodes)) if is_native else ():
        by_place = storage._quick_episode(index)
        assert by_place is not None
        assert_same(by_place, storage._read_episode(index, frames=False))
        for _, leaf in leaves(by_place):
            if isinstance(leaf, np.ndarray):
                assert leaf.flags.writeable


def buffer_of(steps: int, **changes: Any) -> EpisodeBuffer:
    rng = np.random.default_rng(steps)
    plain = EpisodeBuffer(
        seed=steps,
        observations=rng.normal(size=(steps + 1, 3)),
        actions=rng.integers(2, size=steps),
        rewards=rng.normal(size=steps),
        terminations=np.arange(steps) == steps - 1,
        truncations=np.zeros(steps, bool),
        infos={},
    )
    return replace(plain, **changes)


@pytest.fixture
def storage(tmp_path: Path) -> ArrowStorage:
    storage = empty_storage(tmp_path / "data", WIDE, TWO)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    return storage


def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(data: bytes) -> Any:
        raise AssertionError("the file was read with pyarrow")

    monkeypatch.setattr(ArrowStorage, "_read", staticmethod(refused))


@pytest.mark.parametrize("infos", [False, True])
def test_real_minari_s_files_are_read_by_place_too(storage, monkeypatch, infos) -> None:
    buffers = [buffer_of(steps) for steps in (4, 4, 7, 63, 64)]
    if infos:
        buffers = [
            replace(b, infos={"x": np.arange(len(b) + 1.0), "ok": np.ones(len(b) + 1, bool)})
            for b in buffers
        ]
    theirs = [
        TheirBuffer(
            seed=b.seed,
            observations=b.observations,
            actions=b.actions,
            rewards=b.rewards,
            terminations=b.terminations,
            truncations=b.truncations,
            infos={name: value.tolist() for name, value in b.infos.items()},
        )
        for b in buffers
    ]
    minari.MinariDataset(storage.data_path).update_dataset_from_buffer(theirs)
    list(storage.get_episodes([0]))
    no_pyarrow(monkeypatch)
    found = list(storage.get_episodes(range(5)))
    for fields, buffer in zip(found, buffers, strict=True):
        assert_same(fields["observations"], buffer.observations)
        assert_same(fields["infos"], buffer.infos)
        assert fields["seed"] == buffer.seed


@examples(20)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_the_frame_of_any_number_of_rows_is_pyarrow_s(learned: int, rows: int) -> None:
    def written(count: int) -> bytes:
        columns = [pa.array(np.zeros(count, bool)), pa.array(np.zeros(count, np.int8))]
        pairs = pa.array(np.zeros(3 * count))
        columns.append(pa.FixedSizeListArray.from_arrays(pairs, 3))
        return write_ipc(pa.record_batch(columns, names=["a", "b", "c"]))

    data = written(learned)
    layout = FileLayout.of(data, read_ipc(data).schema)
    assert layout is not None
    assert layout.frame(rows).encloses(written(rows))


UNSUITABLE = {
    "text": pa.array(["a", "b"]),
    "a missing value": pa.array([1, None]),
    "lists": pa.array([[1], [2]]),
    "a dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "nothing": pa.nulls(2),
    "lists without values": pa.array([[], []], pa.list_(pa.int8(), 0)),
    "dates": pa.array([1, 2], pa.date32()),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_what_has_no_fixed_places_has_no_layout(kind: str) -> None:
    batch = pa.record_batch({"y": pa.array([1, 2]), "x": UNSUITABLE[kind]})
    data = write_ipc(batch)
    assert FileLayout.of(data, batch.schema) is None


def test_packed_files_and_those_of_several_batches_have_no_layout() -> None:
    batch = pa.record_batch({"x": np.zeros(500)})
    for batches, compression in (([batch], "lz4"), ([batch, batch], None), ([], None)):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(sink, batch.schema, options=options) as file:
            for one in batches:
                file.write_batch(one)
        assert FileLayout.of(sink.getvalue().to_pybytes(), batch.schema) is None


@examples(300 if FULL else 100)
@given(st.data())
def test_bytes_of_any_damage_are_refused_or_read_as_pyarrow_does(data: st.DataObject) -> None:
    storage, whole = DAMAGED
    known = KnownFiles()
    table = read_ipc(whole)
    known.learn(whole, table.schema, storage._columns(table))
    assert known
    changed = bytearray(whole)
    kind = data.draw(st.sampled_from(["bytes", "cut", "longer", "number"]))
    place = data.draw(st.integers(0, len(whole) - 8))
    if kind == "bytes":
        changed[place] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del changed[place:]
    elif kind == "longer":
        changed += bytes(data.draw(st.integers(1, 100)))
    else:
        number = data.draw(st.sampled_from([0, 1, -1, 2**31, 2**62, -(2**63), 7]))
        changed[place : place + 8] = number.to_bytes(8, "little", signed=True)
    found = known.columns(changed)
    if found is not None:
        assert_same(found, storage._columns(read_ipc(bytes(changed))))


def damaged() -> tuple[Any, bytes]:
    class Reader(ArrowStorage):
        def __init__(self) -> None:
            self._observation_space, self._action_space = WIDE, TWO

    names = ["observations", "actions", "rewards", "terminations", "truncations"]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(15.0)), 3)
    flags = pa.array(np.arange(5) == 3)
    columns = [rows, pa.array(np.arange(5) % 2), pa.array(np.arange(5.0)), flags, flags]
    return Reader(), write_ipc(pa.record_batch(columns, names=names))


DAMAGED = damaged()


def test_a_file_that_was_cut_short_is_named_as_before(storage: ArrowStorage) -> None:
    storage.update_episodes([buffer_of(4), buffer_of(4)])
    assert_stored(storage, [buffer_of(4), buffer_of(4)])
    file = storage.data_path / "1" / "part-0.arrow"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptDatasetError, match=r"part-0\.arrow: episode 1"):
        list(storage.get_episodes([0, 1]))


def test_steps_that_disagree_with_the_attributes_are_named_as_before(storage) -> None:
    storage.update_episodes([buffer_of(4), buffer_of(5)])
    list(storage.get_episodes([0]))
    os.replace(storage.data_path / "0" / "part-0.arrow", storage.data_path / "1" / "part-0.arrow")
    with pytest.raises(CorruptDatasetError, match=r"has 5 rows, but 5 total_steps"):
        list(storage.get_episodes([1]))


def test_a_change_that_is_being_moved_to_its_place_is_seen(storage: ArrowStorage) -> None:
    storage.update_episodes([buffer_of(4), buffer_of(4)])
    assert_stored(storage, [buffer_of(4), buffer_of(4)])
    commit = storage.data_path / ".minari_pipe-commit" / "1"
    commit.parent.mkdir()
    os.rename(storage.data_path / "1", commit)
    assert_stored(storage, [buffer_of(4), buffer_of(4)])


def test_arrays_are_the_reader_s_own(storage: ArrowStorage) -> None:
    storage.update_episodes([buffer_of(4), buffer_of(4)])
    first, second = storage.get_episodes([1, 1])
    second["observations"][:] = 0
    second["terminations"][:] = False
    again = next(iter(storage.get_episodes([1])))
    assert_same(again, first)


def test_what_is_known_of_files_is_not_carried_to_other_processes(storage: ArrowStorage) -> None:
    storage.update_episodes([buffer_of(4), buffer_of(4)])
    list(storage.get_episodes([0]))
    copy = pickle.loads(pickle.dumps(storage))
    assert storage._known
    assert not copy._known
    assert_stored(copy, [buffer_of(4), buffer_of(4)])


def test_a_segment_that_fails_leaves_nothing(storage, monkeypatch) -> None:
    columns = segment_columns(buffer_of(4))
    table = AttributeTable(
        {"id": np.arange(3), "total_steps": np.full(3, 4)}, [{}, {}, {"bad": object()}]
    )
    writer = EpisodeFolders(storage, storage.data_path, 0)
    before = files(storage.data_path)
    with pytest.raises(InvalidEpisodeError, match="bad cannot be stored"):
        writer._append_segment(segment_of([columns] * 3, table))
    assert (len(writer), files(storage.data_path)) == (0, before)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        writer._append_segment(segment_of([columns] * 3))
    assert (len(writer), files(storage.data_path)) == (0, before)


def segment_columns(buffer: EpisodeBuffer) -> dict[str, Any]:
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return {name: getattr(buffer, name) for name in names}


def test_a_folder_that_is_there_already_is_not_removed(storage: ArrowStorage) -> None:
    (storage.data_path / "0").mkdir()
    (storage.data_path / "0" / "mine").write_text("x")
    writer = EpisodeFolders(storage, storage.data_path, 0)
    with pytest.raises(FileExistsError):
        writer._append_segment(segment_of([segment_columns(buffer_of(4))]))
    assert (storage.data_path / "0" / "mine").read_text() == "x"
