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

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.arrow.files import read_ipc, write_ipc
from minari_pipe.storage.arrow.layout import FileLayout
from minari_pipe.storage.arrow.parquet_pages import column_chunks
from minari_pipe.testing import episode
from minari_pipe.testing.strategies import TEXT
from tests.conftest import CHECKOUT, FULL
from tests.storage.arrow.test_arrow_storage import FORMATS, stored_table, write_table

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
        "observations.a has 5 values per row",
    ),
    "another dtype": (
        put("observations", part_of_struct("a", lambda a: lists(6, np.float64))),
        "observations.a is float64, the space expects float32",
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
        "observations.a has bytes that are not a JPEG image",
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
        (b"float32", "is float64, but marked as dtype float32"),
        (b"O", "the standard does not allow"),
        (b"nonsense", "the standard does not allow"),
        (b"V8", "the standard does not allow"),
        (b"<c16", "is float64, but marked"),
        (b"(2,)f8", "the standard does not allow"),
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


GROWN: dict[str, pa.Array] = {
    "lists of nothing": pa.FixedSizeListArray.from_arrays(pa.nulls(7 * 10**6), 10**6),
    "flags of which some are missing": pa.FixedSizeListArray.from_arrays(
        pa.concat_arrays([pa.nulls(7 * 10**6 - 1, pa.bool_()), pa.array([True])]), 10**6
    ),
    "empty texts": pa.FixedSizeListArray.from_arrays(pa.repeat("", 7 * 10**6), 10**6),
}
"""Little in Arrow's memory, and much in NumPy's."""


@pytest.mark.parametrize("values", GROWN.values(), ids=GROWN)
def test_what_grows_when_numpy_reads_it_is_refused(tmp_path: Path, values: pa.Array) -> None:
    storage = MinariStorage.new(tmp_path / "x", OBSERVATION, ACTION, data_format="arrow")
    storage.update_episodes([whole(), whole()])
    table = info(values)(stored_table(part(storage), "arrow"))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(part(storage), table.schema, options=options) as writer:
        writer.write_table(table)
    refused(storage, "far more than a file of")


def thrift(*fields: tuple[int, int, bytes]) -> bytes:
    """Encode a structure of Thrift's compact protocol: numbers, types and values of its fields."""
    steps = zip((0, *(number for number, _, _ in fields)), fields, strict=False)
    return (
        b"".join(bytes([number - last << 4 | kind]) + v for last, (number, kind, v) in steps)
        + b"\0"
    )


def test_columns_of_parquet_that_share_their_pages_are_refused() -> None:
    """Each is looked into, and what is small on disk would take hours."""
    size = b"\x80\x01"  # 64, as its double
    where = ((5, 6, b"\x02"), (6, 6, size), (7, 6, size), (9, 6, b"\x08"))
    about = thrift((1, 5, b"\x0a"), (3, 9, b"\x18\x07rewards"), (4, 5, b"\0"), *where)
    column = thrift((3, 12, about))
    footer = thrift((4, 9, b"\x1c" + thrift((1, 9, bytes([15 << 4 | 12, 40]) + column * 40))))
    length = len(footer).to_bytes(4, "little")
    with pytest.raises(CorruptDatasetError, match="its columns overlap"):
        list(column_chunks(b"PAR1" + bytes(64) + footer + length + b"PAR1"))


def test_texts_that_repeat_the_one_before_are_refused(tmp_path: Path) -> None:
    storage = MinariStorage.new(tmp_path / "x", OBSERVATION, ACTION, data_format="parquet")
    storage.update_episodes([whole(), whole()])
    texts = pa.ListArray.from_arrays(list(range(0, 8_000, 1_000)), pa.repeat("x" * 10_000, 7_000))
    table = info(texts)(stored_table(part(storage), "parquet"))
    how = {"infos.x.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, part(storage), use_dictionary=False, column_encoding=how)
    refused(storage, "far more than a file of")


def info(values: pa.Array) -> Change:
    """Add a column to the infos of a table."""
    return put("infos", lambda infos: pa.StructArray.from_arrays([values], names=["x"]))


BOMBS: dict[str, Change] = {
    "rows that no metadata count": lambda table: pa.table(
        {"rewards": np.zeros(5_000_000), "actions": np.zeros(5_000_000, np.int64)}
    ),
    "long rows": info(pa.FixedSizeListArray.from_arrays(np.zeros(7 * 700_000), 700_000)),
    "nulls in a list": info(
        pa.ListArray.from_arrays([0] * 7 + [10_000_000], pa.nulls(10_000_000, pa.int8()))
    ),
    "rows without a value": info(pa.nulls(7, pa.list_(pa.float64(), 5_000_000))),
    "one text many times": info(
        pa.ListArray.from_arrays(
            list(range(0, 8_000, 1_000)),
            pa.DictionaryArray.from_arrays(np.zeros(7_000, np.int32), pa.array(["x" * 10_000])),
        )
    ),
}

_MEASURED = """
import json, sys
from pathlib import Path
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

storage = MinariStorage.read(sys.argv[1])
list(storage.get_episodes([0]))
for bomb in map(Path, sys.argv[2:]):
    data = bomb.read_bytes()
    (storage.data_path / "1" / f"part-0.{storage.FORMAT}").write_bytes(data)
    before, text = peak(), "read"
    try:
        list(storage.get_episodes([1]))
    except CorruptDatasetError as error:
        text = str(error)
    print(json.dumps([bomb.name, len(data), peak() - before, text]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("data_format", FORMATS)
def test_a_bomb_is_refused_in_64_mib_and_four_times_the_file(tmp_path, data_format) -> None:
    storage = MinariStorage.new(tmp_path / "x", OBSERVATION, ACTION, data_format=data_format)
    storage.update_episodes([whole(), whole()])
    table = stored_table(part(storage), data_format)
    bombs = []
    for name, change in BOMBS.items():
        bombs.append(tmp_path / name)
        changed = change(table)
        if data_format == "parquet":
            pq.write_table(changed, bombs[-1], compression="zstd", max_rows_per_page=10**9)
        elif name not in ("rows that no metadata count", "long rows"):
            bombs.pop()  # dictionaries are refused, and nulls have their place in the file
        else:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_file(bombs[-1], changed.schema, options=options) as writer:
                writer.write_table(changed)
    command = [sys.executable, "-c", _MEASURED, str(storage.data_path), *map(str, bombs)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == [bomb.name for bomb in bombs]
    for name, size, memory, text in found:
        assert "of data that the metadata do not announce" in text, name
        assert memory <= 2**26 + 4 * size, name


@pytest.mark.parametrize("data_format", FORMATS)
def test_what_the_metadata_announce_is_read_however_well_it_is_packed(tmp_path, data_format):
    """Constant observations, of which a file has a thousandth."""
    space = spaces.Box(0, 1, (1_000,))
    storage = MinariStorage.new(tmp_path / "x", space, ACTION, data_format=data_format)
    rows = 10_001
    storage.update_episodes([episode(space, ACTION, np.random.default_rng(0), steps=rows - 1)])
    table = put(
        "observations",
        lambda a: pa.FixedSizeListArray.from_arrays(np.zeros(1_000 * rows, np.float32), 1_000),
    )(stored_table(part(storage, 0), data_format))
    if data_format == "parquet":
        pq.write_table(table, part(storage, 0), compression="zstd", use_dictionary=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(part(storage, 0), table.schema, options=options) as writer:
            writer.write_table(table)
    assert part(storage, 0).stat().st_size < 40_000_000 / 20
    (found,) = storage.get_episodes([0])
    assert found["observations"].shape == (rows, 1_000)
    # the same rows are too many where the dataset has fewer
    path = storage.data_path / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": 10}))
    with pytest.raises(CorruptDatasetError, match="of data that the metadata do not announce"):
        list(storage.get_episodes([0]))


def test_texts_that_repeat_are_read(tmp_path, monkeypatch) -> None:
    """A dictionary holds each once, and one that is long does not stand for all."""
    monkeypatch.delattr(pa, "compute", raising=False)  # as in a process that has not imported it
    storage = MinariStorage.new(tmp_path / "x", OBSERVATION, ACTION, data_format="parquet")
    storage.update_episodes([replace(whole(), infos={}, extras={}), whole()])
    table = stored_table(part(storage), "parquet")
    table = info(pa.array(["short"] * 6 + ["long" * 5_000_000]))(table)
    pq.write_table(table, part(storage), compression="zstd")
    assert len(read(storage)["infos"]["x"][6]) == 20_000_000


def test_a_schema_that_is_zeroed_is_named(storage: MinariStorage) -> None:
    """pyarrow says of it that the stream is at its end, which ended every loop around it."""
    file = part(storage)
    file.write_bytes(bytes(512) + file.read_bytes()[512:])
    refused(storage, "")


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
from tests.storage.arrow.test_arrow_damage import part, read
from minari_pipe.storage import MinariStorage

limit = 4 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
signal.alarm(500)
storage = MinariStorage.read(sys.argv[1])
NUMBERS = (0, 1, 2, 127, 255, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
truth = read(storage)
for name in sys.argv[4:]:
    file = storage.data_path / "1" / name
    original = file.read_bytes()
    rng = np.random.default_rng(int(sys.argv[3]))
    results = Counter()
    for number in range(int(sys.argv[2])):
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
    print(name, dict(results))
    file.write_bytes(original)
"""


def test_changed_bytes_never_end_the_process(storage: MinariStorage) -> None:
    """A flipped value cannot be seen from the structure; everything else is refused."""
    count, seed = (2_000, 1) if FULL else (60, 0)
    names = [part(storage).name, "metadata.json"]
    command = [sys.executable, "-c", _MUTANTS, str(storage.data_path), str(count), str(seed)]
    done = subprocess.run(
        [*command, *names], cwd=CHECKOUT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    assert done.stdout.count("refused") == len(names)


def follow(data: bytes, place: int) -> int:
    return place + int.from_bytes(data[place : place + 4], "little")


def field(data: bytes, table: int, number: int) -> int:
    """The place of a field of a flatbuffer's table that is there."""
    fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    return table + int.from_bytes(data[fields + 4 + 2 * number :][:2], "little")


def big_endian(message: bytes, table: int) -> bytes:
    """A flatbuffer whose schema at ``table`` says that numbers begin with their highest byte."""
    found = bytearray(message + bytes(-len(message) % 8))
    fields = table - int.from_bytes(found[table : table + 4], "little", signed=True)
    size = int.from_bytes(found[fields : fields + 2], "little")
    new = len(found)
    found += found[fields : fields + size] + b"\1\0"
    found[new + 4 : new + 6] = (new + size - table).to_bytes(2, "little")
    found[table : table + 4] = (table - new).to_bytes(4, "little", signed=True)
    return bytes(found + bytes(-len(found) % 8))


def swapped(batch: pa.RecordBatch) -> bytes:
    """The file of a batch of numbers as a machine writes it whose numbers are big-endian."""
    columns = [pa.array(column.to_numpy().byteswap()) for column in batch.columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(pa.record_batch(columns, schema=batch.schema))
    raw = sink.getvalue().to_pybytes()
    size = int.from_bytes(raw[12:16], "little")
    schema = raw[16 : 16 + size]
    schema = big_endian(schema, follow(schema, field(schema, follow(schema, 0), 2)))
    end = len(raw) - 10
    begin = end - int.from_bytes(raw[end : end + 4], "little")
    footer = bytearray(raw[begin:end])
    block = follow(footer, field(footer, follow(footer, 0), 3)) + 4
    moved = int.from_bytes(footer[block : block + 8], "little") + len(schema) - size
    footer[block : block + 8] = moved.to_bytes(8, "little")
    last = big_endian(footer, follow(footer, field(footer, follow(footer, 0), 1)))
    length = [len(part).to_bytes(4, "little") for part in (schema, last)]
    return raw[:12] + length[0] + schema + raw[16 + size : begin] + last + length[1] + b"ARROW1"


def test_a_file_of_a_machine_with_other_byte_order_has_the_same_values():
    batch = pa.record_batch({"x": np.arange(5), "y": np.linspace(0, 1, 5)})
    data = swapped(batch)
    assert pa.ipc.open_file(data).read_all().to_pydict() == batch.to_pydict()
    assert read_ipc(data).to_pydict() == batch.to_pydict()
    # Nor by the layout of an earlier file, in which values are found without pyarrow.
    assert FileLayout.of(data, batch.schema) is None
    assert FileLayout.of(write_ipc(batch), batch.schema) is not None


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_batches_in_another_order_than_they_lie_in_are_refused(compression):
    batch = pa.record_batch({"x": np.arange(5), "text": list("abcde")})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as file:
        for begin in (0, 2, 3):
            file.write_batch(batch[begin : begin + 2])
    data = bytearray(sink.getvalue().to_pybytes())
    assert read_ipc(bytes(data)).num_rows == 6
    end = len(data) - 10
    begin = end - int.from_bytes(data[end : end + 4], "little")
    footer = data[begin:end]
    blocks = begin + follow(footer, field(footer, follow(footer, 0), 3)) + 4
    data[blocks : blocks + 48] = data[blocks + 24 : blocks + 48] + data[blocks : blocks + 24]
    with pytest.raises(CorruptDatasetError, match="lists its batches in the wrong order"):
        read_ipc(bytes(data))
