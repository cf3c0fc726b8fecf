"""Episode metadata is a table, and selecting by it reads no array."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import REWARD_STATISTICS, EpisodeBuffer
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.episodes_table import COLUMNS, EpisodeTable
from minari_pipe.datasets.query import Query
from minari_pipe.errors import ConfigError
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.base import get_minari_storage, get_storage_keys
from minari_pipe.storage.segment import AttributeTable
from minari_pipe.testing import assert_same
from tests.datasets.test_combine import create_with_real_minari
from tests.datasets.test_dataset import episode

CUSTOM = [
    {"success": True, "weight": 1, "level": "hard", "odd name": 1},
    {"success": False, "weight": 0.5, "level": "easy", "pair": [1, 2]},
    {"success": True, "weight": 2, "level": "hard", "pair": [3, 4]},
]
OPTIONS = [{"goal": {"x": 1.5}}, None, {"goal": {"x": -1.0}, "k": 7}]


def buffers() -> list[EpisodeBuffer]:
    found = [
        replace(episode(number), options=OPTIONS[number], metadata=CUSTOM[number])
        for number in range(3)
    ]
    return [*found[:2], replace(found[2], seed=None)]


def as_table(rows: list[dict[str, Any]]) -> AttributeTable:
    """What storages that have the attributes in columns give."""
    numbers: dict[str, Any] = {}
    dtypes = {bool: np.bool_, int: np.int64, float: np.float64}
    for name in rows[0] if rows else ():
        plain = [np.asarray(row.get(name)).tolist() for row in rows]
        kinds = {type(value) for value in plain}
        is_large = kinds == {int} and max(plain) >= 2**64
        if len(kinds) == 1 and kinds <= dtypes.keys() and not is_large:
            signed = kinds != {int} or max(plain) < 2**63
            numbers[name] = np.array(plain, dtypes[kinds.pop()] if signed else np.uint64)
    others = [{k: v for k, v in row.items() if k not in numbers} for row in rows]
    return AttributeTable(numbers, others if any(others) else None)


@pytest.fixture(params=["rows", "columns"])
def in_columns(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages give the attributes of episodes one by one, or in columns."""

    def attribute_table(
        self: MinariStorage, indices: Any, names: Any = None
    ) -> AttributeTable | None:
        table = as_table(list(self.get_episode_metadata(indices)))
        if names is None:
            return table
        numbers = {name: found for name, found in table.numbers.items() if name in names}
        return AttributeTable(numbers, table.others if numbers.keys() < set(names) else None)

    method = attribute_table if request.param == "columns" else lambda *arguments: None
    for kind in (MinariStorage, *map(get_minari_storage, get_storage_keys())):
        monkeypatch.setattr(kind, "get_attribute_table", method, raising=False)


@pytest.fixture(params=get_storage_keys())
def dataset(request, tmp_path: Path, in_columns) -> MinariDataset:
    storage = MinariStorage.new(
        tmp_path / "data", spaces.Discrete(100), spaces.Discrete(9), data_format=request.param
    )
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(buffers())
    return MinariDataset(storage)


class NoArrays:
    """Storage and HDF5 that refuse to read a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dataset: MinariDataset) -> None:
        def refuse(*args, **kwargs):
            raise AssertionError("an array was read")

        for name in ("get_episodes", "get_buffers", "apply"):
            monkeypatch.setattr(type(dataset.storage), name, refuse)
        for name in ("__getitem__", "__array__", "read_direct", "asstr"):
            monkeypatch.setattr(h5py.Dataset, name, refuse)


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch, dataset: MinariDataset) -> NoArrays:
    return NoArrays(monkeypatch, dataset)


def test_columns_are_arrays_of_what_was_stored(dataset: MinariDataset, no_arrays) -> None:
    table = dataset.episodes
    assert isinstance(table, EpisodeTable)
    assert len(table) == 3
    custom = ["success", "weight", "level", "odd name", "pair"]
    assert table.columns[: len(COLUMNS)] == list(COLUMNS)
    assert "seed" in table and "no such" not in table
    assert sorted(table.columns[len(COLUMNS) :]) == sorted(custom)
    assert_same(table["id"], np.array([0, 1, 2]))
    assert_same(table["total_steps"], np.array([1, 2, 3]))
    assert_same(table["return"], np.array([0.0, 2.0, 6.0]))
    assert_same(table["rewards_sum"], table["return"])
    assert_same(table["rewards_max"], np.array([0.0, 1.0, 2.0]))
    assert_same(table["success"], np.array([True, False, True]))
    assert_same(table["weight"], np.array([1.0, 0.5, 2.0]))
    assert table["seed"].tolist() == [0, 1, None]
    assert table["seed"].dtype == object
    assert table["options"].tolist() == OPTIONS
    assert table["level"].tolist() == ["hard", "easy", "hard"]
    assert table["odd name"].tolist() == [1, None, None]
    assert [entry if entry is None else list(entry) for entry in table["pair"]] == [
        None,
        [1, 2],
        [3, 4],
    ]


def test_rows_are_dicts_with_all_columns(dataset: MinariDataset, no_arrays) -> None:
    rows = list(dataset.episodes)
    columns = dataset.episodes.to_dict()
    assert [list(row) for row in rows] == [dataset.episodes.columns] * 3
    assert list(columns) == dataset.episodes.columns
    assert (rows[1]["total_steps"], rows[1]["options"], rows[0].get("pair")) == (2, None, None)
    assert columns["seed"] == [0, 1, None]


def test_a_view_s_table_has_its_episodes_in_its_order(dataset: MinariDataset, no_arrays) -> None:
    view = dataset[[2, 0]]
    assert view.episodes["id"].tolist() == [2, 0]
    assert view.episodes["total_steps"].tolist() == [3, 1]
    assert view.where("success").episode_indices.tolist() == [2, 0]
    assert "odd name" in view.episodes.columns
    assert "odd name" not in dataset[1:].episodes.columns
    empty = dataset[:0]
    assert len(empty.episodes) == 0
    assert empty.episodes["return"].tolist() == []
    assert empty.returns().dtype == np.float64
    assert len(empty.where("success and level == 'hard'")) == 0


@pytest.mark.parametrize(
    ("query", "selected"),
    [
        ("total_steps > 1 and rewards_sum > 2", [2]),
        ("return >= 2", [1, 2]),
        ("seed is None", [2]),
        ("seed != 0", [1]),
        ("options.goal.x > 0", [0]),
        ("options['goal']['x'] < 0 or options is None", [1, 2]),
        ("options.k == 7 and success", [2]),
        ("level in ['easy'] or weight * 2 == 4", [1, 2]),
        ("pair[0] + pair[1] == 7", [2]),
        ("id % 2 == 0 and rewards_mean == rewards_max", [0, 2]),
        ("total_steps > 100", []),
    ],
)
def test_where_selects_without_reading_an_array(
    dataset: MinariDataset, no_arrays, query, selected
) -> None:
    view = dataset.where(query)
    assert isinstance(view, MinariDataset)
    assert view.episode_indices.tolist() == selected
    assert view.total_steps == sum(index + 1 for index in selected)
    assert view.storage is dataset.storage


def test_real_minari_has_to_read_all_arrays_to_select(dataset: MinariDataset, monkeypatch) -> None:
    """The peer's only way to select is a condition on episodes with all their arrays."""
    if (
        dataset.storage.FORMAT
        not in pytest.importorskip("minari.dataset._storages").get_storage_keys()
    ):
        pytest.skip("real Minari lacks the format")
    theirs = minari.MinariDataset(str(dataset.storage.data_path))
    assert not hasattr(theirs, "where")
    read = []
    original = type(theirs.storage).get_episodes
    monkeypatch.setattr(
        type(theirs.storage),
        "get_episodes",
        lambda self, indices: read.extend(indices) or original(self, indices),
    )
    theirs.filter_episodes(lambda found: len(found) > 1)
    assert len(read) == 3


def test_queries_and_columns_that_are_not_there_are_named(dataset: MinariDataset) -> None:
    with pytest.raises(ConfigError, match=r"no column 'totalsteps'. Did you mean 'total_steps'\?"):
        dataset.where("totalsteps > 5")
    with pytest.raises(ConfigError, match=r"no column 'sucess'. Did you mean 'success'\?"):
        dataset.episodes["sucess"]
    with pytest.raises(ConfigError, match=r"invalid syntax at character 14: the end"):
        dataset.where("total_steps >")
    with pytest.raises(ValueError, match="episode 0: 'hard' and 3 cannot be compared"):
        dataset.where("level > 3")


def without_statistics(path: Path) -> MinariDataset:
    """Rewrite a dataset as real Minari's ``create_dataset_from_buffers`` leaves it."""
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        for group in file.values():
            for name in REWARD_STATISTICS:
                del group.attrs[name]
    return MinariDataset(path)


def test_statistics_that_were_not_stored_are_computed_only_when_asked_for(
    tmp_path: Path, monkeypatch, in_columns
) -> None:
    storage = MinariStorage.new(tmp_path / "data", spaces.Discrete(100), spaces.Discrete(9))
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(buffers())
    dataset = without_statistics(tmp_path / "data")
    read: list[int] = []
    original = type(storage).get_episodes

    def counted(self, indices):
        indices = list(indices)
        read.extend(indices)
        return original(self, indices)

    monkeypatch.setattr(type(storage), "get_episodes", counted)
    table = dataset[[2, 1]].episodes
    assert table["total_steps"].tolist() == [3, 2]
    assert "0.5" in repr(table)
    assert dataset.where("total_steps > 2 and success").episode_indices.tolist() == [2]
    assert read == []
    assert table["return"].tolist() == [6.0, 2.0]
    assert read == [2, 1]
    assert table["rewards_min"].tolist() == [2.0, 1.0]
    assert [row["rewards_std"] for row in table] == [0.0, 0.0]
    assert read == [2, 1]
    assert dataset.where("return > 1").episode_indices.tolist() == [1, 2]
    assert dataset.returns().tolist() == [0.0, 2.0, 6.0]


def test_a_table_of_real_minari_s_episodes(tmp_path: Path, in_columns) -> None:
    """Real Minari stores no statistics when it creates a dataset from buffers."""
    create_with_real_minari("aa/theirs-v0", [replace(b, metadata={}) for b in buffers()])
    table = load_dataset("aa/theirs-v0").episodes
    assert table["return"].tolist() == [0.0, 2.0, 6.0]
    assert table["seed"].tolist() == [0, 1, None]


def test_numbers_of_every_size_stay_exact(dataset: MinariDataset) -> None:
    storage = dataset.storage
    values = [2**64 - 1, 5, 0]
    storage.update_episode_metadata([{"big": v, "sign": -v % 7 - 3, "n": math.nan} for v in values])
    storage.update_episode_metadata([{"mixed": v} for v in (1, True, 0.5)])
    huge, beside = [2**64, 5, 0], [2**53 + 1, 0.5, 0]
    storage.update_episode_metadata([{"huge": v} for v in huge])
    storage.update_episode_metadata([{"beside": v} for v in beside])
    table = dataset.episodes
    assert table["big"].tolist() == values
    assert table["sign"].dtype == np.int64
    assert np.isnan(table["n"]).all()
    assert len(dataset.where("big == 18446744073709551615")) == 1
    assert table["mixed"].tolist() == [1, True, 0.5]
    assert table["huge"].tolist() == huge
    assert table["beside"].tolist() == beside


def test_the_table_shows_its_first_rows(dataset: MinariDataset) -> None:
    text = repr(dataset.episodes).splitlines()
    assert text[0] == "EpisodeTable of 3 episodes"
    assert text[1].split()[:3] == ["id", "seed", "total_steps"]
    assert len({len(line) for line in text[1:]}) == 1
    assert text[4].split()[:3] == ["2", "-", "3"]
    dataset.update_dataset_from_buffer([episode(number) for number in range(12)])
    assert repr(dataset.episodes).splitlines()[-1] == "... and 5 more"
    assert repr(dataset[:0].episodes).startswith("EpisodeTable of 0 episodes\n")


def test_numbers_in_columns_are_selected_without_asking_a_row(
    dataset: MinariDataset, monkeypatch
) -> None:
    columnar = dataset.storage.get_attribute_table([0]) is not None
    asked: list[str] = []
    monkeypatch.setattr(Query, "__call__", lambda self, row: asked.append(self.text) or True)
    assert len(dataset.where("return / total_steps >= 1 and id < 2 and success == False")) > 0
    assert bool(asked) != columnar
    asked.clear()
    dataset.where("seed != 0")  # one has none
    assert asked


def test_a_column_is_the_caller_s_own(dataset: MinariDataset) -> None:
    table = dataset.episodes
    for name in ("id", "total_steps", "return"):
        table[name][:] = 7
    assert table["total_steps"].tolist() == [1, 2, 3]
    assert table["id"].tolist() == dataset.episode_indices.tolist() == [0, 1, 2]
    assert table["return"].tolist() == table["rewards_sum"].tolist() == [0.0, 2.0, 6.0]
