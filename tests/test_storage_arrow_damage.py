"""Damaged and hostile Arrow and Parquet files are named, and never crash, hang or mislead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage
from minari_pipe.testing import episode
from minari_pipe.testing.strategies import TEXT
from tests.conftest import CHECKOUT, FULL
from tests.test_storage_arrow import FORMATS, stored_table, write_table

OBSERVATION = spaces.Dict(
    a=spaces.Box(-1, 1, (2, 3)),
    t=spaces.Tuple([spaces.Text(8, charset=TEXT, min_length=0), spaces.MultiBinary(3)]),
)
ACTION = spaces.Discrete(5)


def whole() -> EpisodeBuffer:
    """An episode with every kind of column."""
    rng = np.random.default_rng(0)
    buffer = episode(OBSERVATION, ACTION, rng, steps=6)
    infos = {"n": {"x": rng.random((7, 2))}, "text": ["x"] * 7, "flag": rng.random(7) < 0.5}
    return replace(buffer, infos=infos, extras={"state": {"q": rng.random((6, 2))}})


@pytest.fixture(params=FORMATS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> MinariStorage:
    storage = MinariStorage.new(tmp_path / "data", OBSERVATION, ACTION, data_format=request.param)
    storage.update_episodes([whole(), whole()])
    return storage


def part(storage: MinariStorage, episode: int = 1) -> Path:
    return storage.data_path / str(episode) / f"part-0.{storage.FORMAT}"


def read(storage: MinariStorage) -> dict:
    list(storage.get_episode_metadata([1]))
    return next(iter(storage.get_episodes([1])))


def refused(storage: MinariStorage, *said: str) -> None:
    """Assert that the episode is refused with its file, its number and this text."""
    with pytest.raises(CorruptDatasetError) as caught:
        read(storage)
    for text in (str(storage.data_path / "1"), "episode 1", *said):
        assert text in str(caught.value)
    next(iter(storage.get_episodes([0])))  # the other one is as good as ever


Change = Callable[[pa.Table], pa.Table]


def column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def put(name: str, make: Callable[[pa.Array], pa.Array]) -> Change:
    def change(table: pa.Table) -> pa.Table:
        array = make(column(table, name))
        place = table.column_names.index(name)
        return table.set_column(place, pa.field(name, array.type), array)

    return change


def part_of_struct(name: str, make: Callable[[pa.Array], pa.Array | None]) -> Callable:
    """Replace a field of a struct, or leave it out."""

    def change(array: pa.Array) -> pa.Array:
        children = {field.name: array.field(i) for i, field in enumerate(array.type)}
        made = make(children.pop(name))
        if made is not None:
            children[name] = made
        return pa.StructArray.from_arrays(children.values(), names=children)

    return change


def with_field(array: pa.Array) -> pa.Array:
    children = {field.name: array.field(i) for i, field in enumerate(array.type)}
    children["new"] = children["a"]
    return pa.StructArray.from_arrays(children.values(), names=children)


def lists(size: int, dtype: type = np.float32) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(np.zeros(7 * size, dtype), size)


NULLS = pa.array([None, *range(6)])
MISSING_TEXT = pa.array([None] + ["x"] * 6)

TABLES: dict[str, tuple[Change, str]] = {
    **{
        f"no {name}": (lambda table, name=name: table.drop_columns([name]), f"{name} is missing")
        for name in ("observations", "actions", "rewards", "terminations", "truncations")
    },
    "no leaf": (
        put("observations", part_of_struct("a", lambda a: None)),
        "observations.a is missing",
    ),
    "no entry": (
        put("observations", part_of_struct("t", part_of_struct("1", lambda a: None))),
        "observations.t.1 is missing",
    ),
    "one leaf more": (put("observations", with_field), "observations has the fields ['new']"),
    "rows of another size": (
        put("observations", part_of_struct("a", lambda a: lists(5))),
        "observations.a has 5 values a row",
    ),
    "another dtype": (
        put("observations", part_of_struct("a", lambda a: lists(6, np.float64))),
        "observations.a is float64, the space says float32",
    ),
    "integers for flags": (
        put("observations", part_of_struct("t", part_of_struct("1", lambda a: lists(3, int)))),
        "observations.t.1 is int64",
    ),
    "text for numbers": (put("actions", lambda a: pa.array(["1"] * 7)), "actions is object"),
    "floats for integers": (put("actions", lambda a: a.cast(pa.float64())), "actions is float64"),
    "too large": (put("rewards", lambda a: pa.array(["x"] * 7)), "rewards is object"),
    "rows of rewards": (put("rewards", lambda a: lists(2)), "rewards is float32(2,)"),
    "a struct of rewards": (
        put("rewards", lambda a: pa.StructArray.from_arrays([a], names=["x"])),
        "rewards is dicts",
    ),
    "floats for terminations": (
        put("terminations", lambda a: a.cast(pa.int8()).cast(pa.float64())),
        "terminations is float64",
    ),
    "a missing action": (put("actions", lambda a: NULLS), "actions has 1 rows without a value"),
    "a missing flag": (
        put("terminations", lambda a: pa.array([None] + [False] * 6)),
        "terminations has 1 rows without a value",
    ),
    "a missing text": (
        put("observations", part_of_struct("t", part_of_struct("0", lambda a: MISSING_TEXT))),
        "observations.t.0 has 1 rows without a value",
    ),
    "a missing value of an extra": (
        put("state", part_of_struct("q", lambda a: MISSING_TEXT)),
        "state.q has 1 rows without a value",
    ),
    "a missing row": (
        put(
            "observations",
            lambda a: pa.StructArray.from_arrays(
                a.flatten(), fields=list(a.type), mask=pa.array([True] + [False] * 6)
            ),
        ),
        "observations has 1 rows without a value",
    ),
    "no struct": (put("observations", lambda a: lists(2)), "observations has the type"),
    "infos that are no struct": (put("infos", lambda a: lists(2)), "infos has the type"),
    "times": (
        put("infos", part_of_struct("text", lambda a: pa.array([0] * 7, pa.timestamp("s")))),
        "infos.text has the type timestamp",
    ),
    "rows of different lengths": (
        put("infos", part_of_struct("text", lambda a: pa.array([[1], [1, 2]] + [[]] * 5))),
        "infos.text has rows of different lengths",
    ),
    "bytes that are no image": (
        put("observations", part_of_struct("a", lambda a: pa.array([b"GIF89a"] * 7))),
        "observations.a has bytes that are no JPEG image",
    ),
    "an image that is cut": (
        put("observations", part_of_struct("a", lambda a: pa.array([b"\xff\xd8\xff"] * 7))),
        "damaged JPEG",
    ),
    "one row less": (lambda table: table[:6], "has 6 rows, but 6 total_steps"),
    "one row more": (lambda table: pa.concat_tables([table, table[:1]]), "has 8 rows"),
    "no rows": (lambda table: table[:0], "has 0 rows"),
    "no columns": (lambda table: table.select([]), ""),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_fit_is_named(storage: MinariStorage, name: str) -> None:
    change, message = TABLES[name]
    write_table(part(storage), change(stored_table(part(storage), storage.FORMAT)))
    refused(storage, message)


def test_columns_of_one_name_are_refused(storage: MinariStorage) -> None:
    table = stored_table(part(storage), storage.FORMAT)
    write_table(part(storage), table.append_column("rewards", table.column("rewards")))
    refused(storage, "")


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (b"float32", "is float64, but marked as of the dtype float32"),
        (b"O", "none of the standard"),
        (b"nonsense", "none of the standard"),
        (b"V8", "none of the standard"),
        (b"<c16", "is float64, but marked"),
        (b"(2,)f8", "none of the standard"),
    ],
)
def test_marks_of_a_dtype_are_not_believed(storage, mark: bytes, message: str) -> None:
    table = stored_table(part(storage), storage.FORMAT)
    field = pa.field("extra", pa.float64(), metadata={b"minari_pipe_dtype": mark})
    write_table(part(storage), table.append_column(field, pa.array(np.zeros(7))))
    refused(storage, f"extra {message}" if message[0] == "i" else message)


def test_dictionaries_are_refused_in_arrow_and_read_in_parquet(storage: MinariStorage) -> None:
    table = stored_table(part(storage), storage.FORMAT)
    packed = put("actions", lambda a: a.dictionary_encode())(table)
    write_table(part(storage), packed)
    if storage.FORMAT == "arrow":
        refused(storage, "dictionary")


def test_other_types_are_not_made_of_a_name_in_the_file(storage: MinariStorage) -> None:
    table = stored_table(part(storage), storage.FORMAT)
    metadata = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    metadata[b"ARROW:extension:metadata"] = b"cos\nsystem\n(S'touch /tmp/pwned'\ntR."
    field = pa.field("extra", pa.binary(), metadata=metadata)
    write_table(part(storage), table.append_column(field, pa.array([b"x"] * 7)))
    refused(storage, "extra")


@pytest.mark.parametrize("packing", ["zstd", "lz4"])
def test_packed_files_are_read_but_no_bombs(storage: MinariStorage, packing: str) -> None:
    file = part(storage)
    table = stored_table(file, storage.FORMAT)

    def write(table: pa.Table) -> None:
        if storage.FORMAT == "parquet":
            pq.write_table(table, file, compression=packing)
            return
        options = pa.ipc.IpcWriteOptions(compression=packing)
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)

    write(table)
    read(storage)
    if packing == "zstd" and storage.FORMAT == "arrow":
        rows = 40_000_000
        write(pa.table({"rewards": np.zeros(rows)}))
        assert file.stat().st_size < rows // 100
        refused(storage, "far more than a file of")


def test_repeated_values_of_parquet_are_no_way_to_fill_the_memory(tmp_path: Path) -> None:
    storage = MinariStorage.new(tmp_path / "x", OBSERVATION, ACTION, data_format="parquet")
    storage.update_episodes([whole(), whole()])
    lists = pa.nulls(1_000_000, pa.list_(pa.float64(), 100))
    pq.write_table(pa.table({"rewards": lists}), part(storage), max_rows_per_page=10**9)
    assert part(storage).stat().st_size < 1_000
    refused(storage, "far more than a file of")


@pytest.mark.parametrize("name", ["metadata.json", "part"])
def test_a_missing_file_is_named(storage: MinariStorage, name: str) -> None:
    (storage.data_path / "1" / name if name[0] == "m" else part(storage)).unlink()
    refused(storage, "the file is missing")


def test_a_missing_folder_is_named_in_reading_and_in_writing(storage: MinariStorage) -> None:
    (storage.data_path / "1").rename(storage.data_path / "x")
    refused(storage, "the file is missing")
    with pytest.raises(CorruptDatasetError, match=r"has no folder 1, metadata.json says 2"):
        storage.update_episodes([whole()])
    (storage.data_path / "1").write_text("a file")
    refused(storage)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "\xff",
        "[" * 100_000,
        '{"total_steps": 5}',
        '{"total_steps": -1}',
        '{"total_steps": "6"}',
        '{"total_steps": true}',
        '{"total_steps": 6, "seed": 1.5}',
        '{"total_steps": 6, "seed": -1}',
        '{"total_steps": 6, "x": 1, "minari_pipe_exact": []}',
        '{"total_steps": 6, "x": 1, "minari_pipe_exact": {"x": ["array", "|O", [1], "AAAA"]}}',
        '{"total_steps": 6, "x": 1, "minari_pipe_exact": {"x": ["array", "<f8", [9], "AAAA"]}}',
        '{"total_steps": 6, "x": 1, "minari_pipe_exact": {"x": ["unknown"]}}',
    ],
)
def test_damaged_metadata_of_an_episode_are_named(storage: MinariStorage, text: str) -> None:
    (storage.data_path / "1" / "metadata.json").write_text(text, encoding="latin-1")
    refused(storage)


def test_more_episodes_than_there_are_is_an_error(storage: MinariStorage) -> None:
    path = storage.data_path / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_episodes": 3}))
    with pytest.raises(CorruptDatasetError, match="episode 2: the file is missing"):
        list(storage.get_episodes(range(3)))


_MUTANTS = """
import resource, signal, sys
from collections import Counter
import numpy as np
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.testing import (assert_same)
from tests.test_storage_arrow_damage import part, read
from minari_pipe.storage import MinariStorage

limit = 4 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
signal.alarm(500)
storage = MinariStorage.read(sys.argv[1])
file = storage.data_path / "1" / sys.argv[2]
original = file.read_bytes()
truth = read(storage)
rng = np.random.default_rng(int(sys.argv[4]))
NUMBERS = (0, 1, 2, 127, 255, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
results = Counter()
for number in range(int(sys.argv[3])):
    data = bytearray(original)
    if number % 3 == 0:
        del data[rng.integers(len(data)):]
    for _ in range(rng.integers(1, 4) if number % 3 else 0):
        place = int(rng.integers(len(data)))
        if number % 3 == 1:
            data[place] ^= 1 << int(rng.integers(8))
        else:
            width = int(rng.choice([1, 2, 4, 8]))
            value = NUMBERS[rng.integers(len(NUMBERS))] % 256**width
            data[place : place + width] = value.to_bytes(width, "little")
    print(number, flush=True)
    file.write_bytes(data)
    try:
        found = read(storage)
    except CorruptDatasetError as error:
        assert "episode 1" in str(error), error
        results["refused"] += 1
        continue
    assert number % 3 or len(data) == len(original), "a file that is cut was read"
    assert len(found["rewards"]) == len(truth["rewards"])
    results["read"] += 1
print(dict(results))
"""


@pytest.mark.parametrize("name", ["part", "metadata.json"])
def test_changed_bytes_never_end_the_process(storage: MinariStorage, name: str) -> None:
    """A flipped value cannot be seen from the structure; everything else is refused."""
    count, seed = (2_000, 1) if FULL else (150, 0)
    name = part(storage).name if name == "part" else name
    command = [sys.executable, "-c", _MUTANTS, str(storage.data_path), name, str(count), str(seed)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    assert "refused" in done.stdout
