"""The statistics of a dataset are those of all its values, however they are stored and read."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import leaves
from minari_pipe.datasets import statistics
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.statistics import QUANTILES, Columns
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage, get_storage_keys
from minari_pipe.storage.columns import layout_name
from minari_pipe.testing.strategies import Dataset, datasets, examples

COLUMNS = ("observations", "actions", "rewards", "infos")


def stored(
    path: Path, buffers: list[EpisodeBuffer], observations: Any, actions: Any, **kwargs: Any
) -> MinariDataset:
    storage = MinariStorage.new(path, observations, actions, **kwargs)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(buffers)
    return MinariDataset(storage)


def of_numbers(
    path: Path, *episodes: np.ndarray, dtype: Any = np.float64, **kwargs: Any
) -> MinariDataset:
    """A dataset whose episodes have these observations."""
    shape = episodes[0].shape[1:]
    low, high = (0, 255) if dtype is np.uint8 else (-np.inf, np.inf)
    buffers = [
        EpisodeBuffer(
            observations=rows.astype(dtype),
            actions=np.zeros(len(rows) - 1, np.int64),
            rewards=np.ones(len(rows) - 1),
            terminations=np.arange(2, len(rows) + 1) == len(rows),
            truncations=np.zeros(len(rows) - 1, bool),
        )
        for rows in episodes
    ]
    return stored(path, buffers, spaces.Box(low, high, shape, dtype), spaces.Discrete(2), **kwargs)


def by_numpy(rows: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics of rows of shape ``(N, elements)``, from NumPy's functions."""
    found: dict[str, list[float]] = {}
    for column in rows.astype(np.float64).T:
        finite = column[np.isfinite(column)]
        one = dict.fromkeys(("min", "max", "mean", "std", *QUANTILES), math.nan)
        if len(finite):
            one = {name: getattr(finite, name)() for name in ("min", "max", "mean", "std")}
            one |= {name: np.quantile(finite, share) for name, share in QUANTILES.items()}
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def check(found: dict[str, np.ndarray], rows: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = by_numpy(rows)
        scale = np.abs(rows[np.isfinite(rows)].astype(np.float64)).max(initial=1.0)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].ravel(), values, rtol=1e-9, atol=1e-9 * scale)


@examples(10)
@given(datasets())
def test_they_are_those_of_numpy_in_every_format(
    tmp_path_factory: pytest.TempPathFactory, dataset: Dataset
) -> None:
    for data_format in get_storage_keys():
        path = tmp_path_factory.mktemp("stats") / "data"
        kept = stored(path, dataset.buffers, *dataset[:2], data_format=data_format)
        rows: dict[str, list[Any]] = {}
        for episode in kept:
            for path_of, leaf in leaves({name: getattr(episode, name) for name in COLUMNS}):
                rows.setdefault(layout_name(path_of), []).append(leaf)
        for name, found in kept.stats.items():
            if name.startswith("extras/"):
                continue
            parts = rows.pop(name)
            joined = np.concatenate(parts)
            assert found["count"].tolist() == [len(joined)]
            if found["mean"].shape == (joined.shape[1:] or (1,)):  # not a picture
                check(found, joined.reshape(len(joined), -1))
        for name, parts in rows.items():
            numbers = [part for part in map(np.asarray, parts) if part.dtype.kind in "biuf"]
            shapes = {part.shape[1:] for part in numbers}
            assert len(numbers) < len(parts) or len(shapes) > 1, name


def test_a_view_has_its_own(tmp_path: Path) -> None:
    dataset = of_numbers(tmp_path, *(np.full((3, 2), float(n)) for n in range(4)))
    assert dataset.stats["observations"]["max"].tolist() == [3.0, 3.0]
    assert dataset.view([2, 0]).stats["observations"]["mean"].tolist() == [1.0, 1.0]
    assert dataset.view([]).stats == {}


def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, -np.inf]])
    found = of_numbers(tmp_path, rows).stats["observations"]
    assert found["count"].tolist() == [3]
    assert found["finite"].tolist() == [2, 0]
    assert found["mean"][0] == found["q50"][0] == 2.0
    assert np.isnan([found[name][1] for name in ("min", "max", "mean", "std", *QUANTILES)]).all()


def test_numbers_near_the_end_of_float64_do_not_warn(tmp_path: Path) -> None:
    found = of_numbers(tmp_path, np.array([[-1.7e308], [1.7e308], [1.7e308]])).stats
    assert found["observations"]["q10"] == pytest.approx(-1.02e308)
    assert found["observations"]["max"] == 1.7e308
    constant = of_numbers(tmp_path / "b", np.full((4, 1), 1e300)).stats["observations"]
    assert (constant["mean"], constant["std"]) == (1e300, 0.0)


def test_quantiles_lie_between_the_values(tmp_path: Path) -> None:
    """Weighted sums of neighbouring numbers may be rounded to one outside."""
    rng = np.random.default_rng(0)
    low = rng.random(2000)
    rows = np.stack([low, np.nextafter(low, 2)])
    found = of_numbers(tmp_path, rows).stats["observations"]
    order = [found[name] for name in ("min", *QUANTILES, "max")]
    assert all((less <= more).all() for less, more in itertools.pairwise(order))


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        ((32, 40), (1, 1)),
        ((32, 40, 3), (1, 1, 3)),
        ((4, 32, 40), (4, 1, 1)),
        ((40, 32, 33), (1, 1, 33)),
        ((32, 32, 0), (1, 1, 0)),
        ((31, 40), (31, 40)),
        ((3, 31, 40), (3, 31, 40)),
    ],
)
def test_pictures_are_summarized_by_channel(
    tmp_path: Path, row: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (5, *row), np.uint8)
    found = of_numbers(tmp_path, pictures, dtype=np.uint8).stats["observations"]
    assert found["mean"].shape == shape
    assert found["count"].tolist() == [5]
    pixels = tuple(axis for axis, n in enumerate(shape, 1) if n == 1)
    if pictures.size:
        expected = pictures.astype(np.float64)
        for name in ("min", "max", "mean", "std"):
            of_each = getattr(expected, name)(axis=(0, *pixels), keepdims=True)[0]
            np.testing.assert_allclose(found[name], of_each)
        for name, share in QUANTILES.items():
            of_each = np.quantile(expected, share, axis=(0, *pixels), keepdims=True)[0]
            np.testing.assert_allclose(found[name], of_each)


@pytest.mark.parametrize("jpeg_encoding", [False, True])
def test_a_long_episode_of_pictures_takes_little_memory(
    tmp_path: Path, jpeg_encoding: bool
) -> None:
    pictures = np.zeros((600, 128, 128, 3), np.uint8)  # 29 MB
    dataset = of_numbers(tmp_path, pictures, dtype=np.uint8, jpeg_encoding=jpeg_encoding)
    assert dataset.stats["observations"]["max"].tolist() == [[[0, 0, 0]]]
    tracemalloc.start()
    try:
        assert dataset.stats["observations"]["count"].tolist() == [600]
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_jpeg_images_count_as_they_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    dataset = of_numbers(tmp_path, pictures, dtype=np.uint8, jpeg_encoding=True)
    check(dataset.stats["observations"], dataset[0].observations.reshape(-1, 3))


def test_infos_are_summarized_where_they_are_and_if_they_have_one_shape(tmp_path: Path) -> None:
    def episode(infos: dict[str, Any]) -> EpisodeBuffer:
        flags = np.zeros(2, bool)
        return EpisodeBuffer(
            observations=np.zeros(3, np.int64),
            actions=np.zeros(2, np.int64),
            rewards=np.zeros(2),
            terminations=flags,
            truncations=~flags,
            infos=infos,
        )

    buffers = [
        episode({"x": np.array([1.0, 2.0, 3.0]), "y": np.zeros((3, 2)), "who": ["a", "b", "c"]}),
        episode({"y": np.zeros((3, 4))}),
        episode({"x": np.array([5.0, 5.0, 5.0]), "y": np.zeros((3, 2))}),
    ]
    found = stored(tmp_path, buffers, spaces.Discrete(2), spaces.Discrete(2)).stats
    assert found["infos/x"]["count"].tolist() == [6]
    assert found["infos/x"]["mean"].tolist() == [3.5]
    assert list(found) == ["observations", "actions", "rewards", "infos/x"]


def test_a_dataset_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    dataset = of_numbers(tmp_path, *(np.full((3, 2), float(n)) for n in range(3)))
    columns = Columns(dataset.storage, dataset.episode_indices)
    (more,) = dataset.storage.get_buffers([1])
    dataset.storage.update_episodes(
        [dataclasses.replace(more, id=1, observations=more.observations[1:])]
    )
    with pytest.raises(CorruptDatasetError, match="changed while it was read; read it again"):
        columns.statistics()
    assert dataset.stats["observations"]["count"].tolist() == [11]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_they_do_not_depend_on_how_the_episodes_were_written(
    tmp_path: Path, data_format: str
) -> None:
    rng = np.random.default_rng(0)
    episodes = [rng.standard_normal((n, 3)) for n in (3, 50, 2, 7, 400)]
    whole = of_numbers(tmp_path / "a", *episodes, data_format=data_format).stats
    grown = of_numbers(tmp_path / "b", *episodes[:2], data_format=data_format)
    for buffer in of_numbers(tmp_path / "c", *episodes[2:]).storage.get_buffers():
        grown.update_dataset_from_buffer([buffer])
    for name, values in grown.stats["observations"].items():
        assert values.tobytes() == whole["observations"][name].tobytes()


def test_they_do_not_depend_on_how_many_values_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    dataset = of_numbers(tmp_path, rng.standard_normal((30, 5)))
    before = dataset.stats["observations"]
    monkeypatch.setattr(statistics, "_HELD_BYTES", 500)
    for name, values in dataset.stats["observations"].items():
        assert values.tobytes() == before[name].tobytes()


def test_long_columns_have_the_quantiles_of_a_share_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "EXACT_VALUES", 100)
    monkeypatch.setattr(statistics, "SAMPLED_VALUES", 70)
    monkeypatch.setattr(statistics, "_MOMENT_ROWS", 64)
    rng = np.random.default_rng(0)
    episodes = [rng.standard_normal((n, 3)) * 5 + 100 for n in (300, 2, 77, 221)]
    episodes[2][5] = np.nan
    for rows in episodes:
        rows[:, 2] = 3.0
    rows = np.concatenate(episodes)
    found = of_numbers(tmp_path, *episodes).stats["observations"]
    expected = by_numpy(rows)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    kept = by_numpy(rows[::11])  # the least prime from 600 / 70 on
    for name in QUANTILES:
        np.testing.assert_allclose(found[name], kept[name], rtol=1e-12)
