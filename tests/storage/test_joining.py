"""Episodes that are written together are stored as if each had been written alone."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe import EpisodeBuffer
from minari_pipe.core.episode import reward_statistics, statistics_of_each
from minari_pipe.datasets.bounds import SpaceChecker
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage import MinariStorage, get_storage_keys
from minari_pipe.storage.joining import Joiner, structure
from minari_pipe.storage.jpeg import Frames
from minari_pipe.storage.memory import MemoryStorage, MemoryWriter
from minari_pipe.storage.segment import ScatteredRows
from minari_pipe.testing import assert_same, datasets, examples
from minari_pipe.testing.strategies import Dataset

BOX = spaces.Box(-1, 1, (2,), np.float32)
TWO = spaces.Discrete(2)


def episode(steps: int, **changed: Any) -> EpisodeBuffer:
    """An episode of plain arrays, other than that of any other number of steps."""
    ends = np.arange(1, steps + 1) == steps
    plain = EpisodeBuffer(
        observations=np.linspace(0, 1, 2 * steps + 2, dtype=np.float32).reshape(-1, 2),
        actions=np.arange(steps) % 2,
        rewards=np.arange(steps) / 7,
        terminations=ends,
        truncations=~ends & False,
    )
    return replace(plain, **changed)


def added(buffers: Any, *, judge: SpaceChecker | None = None) -> MemoryWriter:
    writer = MemoryWriter([])
    writer.add(buffers, BOX, TWO, judge=judge)
    return writer


def alone(buffers: list[EpisodeBuffer]) -> MemoryWriter:
    writer = MemoryWriter([])
    for buffer in buffers:
        writer.append(buffer, BOX, TWO)
    return writer


def assert_equal(left: MemoryWriter, right: MemoryWriter) -> None:
    assert len(left) == len(right)
    for one, other in zip(left.episodes, right.episodes, strict=True):
        assert_same(one.columns, other.columns)
        assert_same(one.attributes, other.attributes)


OTHERS = [
    {},
    {"seed": 3},
    {"seed": 2**64 - 1},
    {"seed": 2**70},
    {"seed": np.uint8(5)},
    {"options": {"goal": [1, 2]}},
    {"metadata": {"weather": "rain"}},
    {"metadata": {"rewards_sum": 5.0, "start": 0.5}},
    {"metadata": {"rewards_sum": None}},
    {"metadata": {"flag": True, "count": 3}},
    {"metadata": {"flag": 1, "count": np.float32(3)}},
    {"infos": {"x": np.zeros(4), "y": {"z": np.ones((4, 2), bool)}}},
    {"infos": {"x": np.zeros(4, np.float32)}},
    {"infos": {"x": [None, 1, 2, 3]}},
    {"infos": {"x": ["a", "b", "c", "d"]}},
    {"extras": {"state": {"q": np.zeros((3, 5))}}},
    {"extras": {"state": {"q": np.zeros((4, 5))}}},
    {"actions": [0, 1, 1]},
    {"observations": np.zeros((4, 2))},
    {"observations": np.zeros((4, 4), np.float32)[:, ::2]},
    {"rewards": [1, 2, 3]},
    {"rewards": np.array([np.inf, np.nan, 1])},
]


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(OTHERS)), max_size=12))
def test_episodes_of_any_kinds_are_stored_as_each_alone(chosen) -> None:
    buffers = [episode(3, **changed) if changed else episode(steps) for steps, changed in chosen]
    assert_equal(added(iter(buffers)), alone(buffers))


@examples(40)
@given(datasets(max_episodes=4))
def test_episodes_of_any_spaces_are_stored_as_each_alone(dataset) -> None:
    together, single = MemoryWriter([]), MemoryWriter([])
    together.add(dataset.buffers, *dataset[:2])
    for buffer in dataset.buffers:
        single.append(buffer, *dataset[:2])
    assert_equal(together, single)


def test_a_segment_ends_where_it_is_worth_writing(monkeypatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(
        MemoryWriter,
        "_append_segment",
        lambda writer, segment: (
            sizes.append(len(segment)),
            super(MemoryWriter, writer)._append_segment(segment),
        ),
    )
    buffers = [episode(steps) for steps in (1, 2, 3) * 20]
    step_bytes = sum(leaf.row_bytes for leaf in structure(alone(buffers[:1]).episodes[0].columns))
    monkeypatch.setattr("minari_pipe.storage.writer.SEGMENT_BYTES", 12 * step_bytes)
    assert_equal(added(buffers), alone(buffers))
    assert sizes[0] == 1  # of what nothing is known yet
    assert set(sizes[1:-1]) == {6}
    monkeypatch.setattr("minari_pipe.storage.writer.MOST_EPISODES", 4)
    sizes.clear()
    added(buffers)
    assert max(sizes) == 4


def test_no_more_episodes_are_taken_than_a_segment_holds(monkeypatch) -> None:
    """So that a generator of long episodes does not fill the memory."""
    monkeypatch.setattr("minari_pipe.storage.writer.SEGMENT_BYTES", 1)
    writer = MemoryWriter([])
    taken = 0

    def buffers() -> Any:
        nonlocal taken
        for _ in range(5):
            assert len(writer) == taken
            taken += 1
            yield episode(3)

    writer.add(buffers(), BOX, TWO)
    assert taken == 5


def test_a_segment_has_the_arrays_of_a_single_episode_themselves() -> None:
    buffer = episode(3)
    joiner = Joiner()
    columns = alone([buffer]).episodes[0].columns
    joiner.begin(columns, structure(columns) or ())
    segment = joiner.segment([buffer], 0)
    assert segment is not None
    assert all(
        any(np.shares_memory(array, getattr(buffer, name)) for name in columns if name != "infos")
        for array in segment.arrays
    )


def test_long_rows_of_several_episodes_stay_where_they_are() -> None:
    buffers = [episode(2**15), episode(2**14)]
    joiner = Joiner()
    columns = alone(buffers[:1]).episodes[0].columns
    joiner.begin(columns, structure(columns) or ())
    segment = joiner.segment(buffers, 3)
    assert segment is not None
    *long, terminations, truncations = segment.arrays
    for rows, name in zip(long, ("observations", "actions", "rewards"), strict=True):
        assert isinstance(rows, ScatteredRows)
        assert all(own is getattr(one, name) for own, one in zip(rows.rows, buffers, strict=True))
    assert not any(isinstance(rows, ScatteredRows) for rows in (terminations, truncations))
    each = list(segment.each())
    assert [(one.first, *one.steps) for one in each] == [(3, 2**15), (4, 2**14)]
    for place, one in enumerate(each):
        assert_same(one.columns(0), segment.columns(place))
        assert one.attributes[0] == segment.attributes[place]


def files_of(dataset: Dataset, apart_bytes: int, data_format: str) -> dict[str, Any]:
    """The files that are written if so many bytes are long rows, and what is told of them."""
    judge = SpaceChecker(*dataset[:2], strict=False)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("minari_pipe.storage.joining.APART_BYTES", apart_bytes)
        storage = MinariStorage.new(Path(folder, "data"), *dataset[:2], data_format=data_format)
        storage.update_episodes(dataset.buffers, judge=judge)
        found = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*.*")}
        return found | {"warnings": judge.warnings}


@examples(25)
@given(datasets(max_episodes=5), st.sampled_from([1, 100]), st.sampled_from(["hdf5", "arrow"]))
def test_rows_that_stay_apart_give_the_bytes_of_those_that_do_not(
    dataset, few, data_format
) -> None:
    joined = files_of(dataset, 2**60, data_format)
    assert files_of(dataset, few, data_format) == joined


@pytest.mark.parametrize("data_format", get_storage_keys())
@pytest.mark.parametrize(("count", "apart_bytes"), [(1, 2**60), (5, 2**60), (5, 1)])
def test_a_bool_of_any_byte_is_stored_as_0_or_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, apart_bytes: int, data_format: str
) -> None:
    monkeypatch.setattr("minari_pipe.storage.joining.APART_BYTES", apart_bytes)
    storage = MinariStorage.new(tmp_path / "data", BOX, TWO, data_format=data_format)
    storage.update_episodes([episode(4)])  # the structure that later ones are joined by
    odd = np.array([[0, 8], [1, 2], [255, 0], [0, 0], [1, 1]], np.uint8).view(bool)
    ended = odd[:4, 0] & False
    ended.view(np.uint8)[-1] = 128
    storage.update_episodes(
        [episode(4, infos={"touch": odd})] + [episode(4, terminations=ended)] * (count - 1)
    )
    storage = MinariStorage.read(tmp_path / "data")
    first, *rest = storage.get_episodes(range(1, count + 1))
    assert first["infos"]["touch"].view(np.uint8).tolist() == odd.view(np.uint8).clip(0, 1).tolist()
    for one in rest:
        assert one["terminations"].view(np.uint8).tolist() == [0, 0, 0, 1]


def test_a_format_may_keep_the_arrays_that_it_is_given() -> None:
    kept: list[Any] = []

    class Keeping(MemoryWriter):
        def _append(self, columns: Any, attributes: Any) -> None:
            kept.append(columns)
            super()._append(columns, attributes)

    writer = Keeping([])
    writer.add([episode(steps) for steps in (1, 3, 2, 3, 1) * 3], BOX, TWO)
    for columns, stored in zip(kept, writer.episodes, strict=True):
        assert_same(columns, stored.columns)


def test_numbers_that_episodes_bring_are_those_that_they_get() -> None:
    numbered = [episode(3, id=number) for number in range(5)]
    assert_equal(added(numbered), alone(numbered))
    with pytest.raises(InvalidEpisodeError, match="must be sequential. Got 7, the next one is 5"):
        added([*numbered, episode(3, id=7)])


def test_an_episode_continues_one_that_was_just_taken() -> None:
    more = episode(2, observations=np.zeros((2, 2), np.float32), id=1)
    writer = added([episode(3), episode(3), more, episode(1)])
    assert [one.attributes["total_steps"] for one in writer.episodes] == [3, 5, 1]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"actions": np.zeros(2, int)}, r"^episode 3: actions has 2 steps, rewards has 3$"),
        ({"seed": -1}, "^episode 3: a seed must be"),
        ({"options": 5}, "^episode 3: options must be"),
        ({"metadata": {"id": 5}}, r"^episode 3: metadata cannot hold \['id'\]"),
        ({"metadata": {"x": object()}}, "^episode 3: x cannot be stored"),
        ({"rewards": np.zeros(0)}, "^episode 3: rewards has 0 steps"),
        ({"rewards": np.zeros((3, 2))}, r"^episode 3: rewards has shape \(3, 2\)"),
        ({"observations": np.float32(1)}, "^episode 3: observations must be an array or a list"),
    ],
)
@pytest.mark.parametrize("data_format", [*get_storage_keys(), "memory"])
def test_what_is_wrong_with_one_episode_of_many_is_told_by_its_number(
    bad: dict[str, Any], told: str, data_format: str, tmp_path: Path
) -> None:
    storage = MinariStorage.new(tmp_path / "data", BOX, TWO, data_format=data_format)
    storage.update_episodes([episode(2)])
    with pytest.raises(InvalidEpisodeError, match=told):
        storage.update_episodes([episode(3), episode(3), episode(3, **bad), episode(3)])
    assert storage.total_episodes == 1
    storage.update_episodes([episode(2)])
    assert storage.total_episodes == 2


@pytest.mark.parametrize("apart_bytes", [1, 2**17])
def test_many_are_judged_as_each_alone(monkeypatch, apart_bytes: int) -> None:
    monkeypatch.setattr("minari_pipe.storage.joining.APART_BYTES", apart_bytes)
    buffers = [
        episode(3),
        episode(3, observations=np.full((4, 2), 7, np.float32)),
        episode(2),
        episode(3, actions=np.array([0, 2, 5])),
        episode(3, terminations=np.zeros(3, bool)),
        episode(3, rewards=np.array([0, np.nan, 1])),
    ]
    many, single = SpaceChecker(BOX, TWO, strict=False), SpaceChecker(BOX, TWO, strict=False)
    for number, stored in enumerate(added(buffers, judge=many).episodes):
        single.columns(number, stored.columns)
    assert many.warnings == single.warnings
    assert [text.split("pisode ")[1][0] for text in many.warnings] == ["1", "3", "4", "5"]
    with pytest.raises(InvalidEpisodeError, match="episode 1: Observation is not in"):
        added(buffers, judge=SpaceChecker(BOX, TWO, strict=True))


@examples(40)
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 8, 9, 40, 129, 1000]), min_size=1, max_size=12),
    st.integers(0, 2**32),
    st.sampled_from([0.0, np.nan, np.inf, -np.inf]),
)
def test_statistics_of_many_are_to_the_bit_those_of_each(lengths, seed, odd) -> None:
    rng = np.random.default_rng(seed)
    rewards = rng.standard_normal(sum(lengths)) * 10.0 ** rng.integers(-9, 9)
    if odd:
        rewards[rng.integers(len(rewards))] = odd
    found = statistics_of_each(rewards, np.array(lengths))
    for place, own in enumerate(np.split(rewards, np.cumsum(lengths)[:-1])):
        for name, value in reward_statistics(own).items():
            np.testing.assert_equal(found[name][place], value)
            assert np.signbit(found[name][place]) == np.signbit(value)


def test_the_arrays_of_a_caller_are_never_written_to() -> None:
    buffers = [episode(3) for _ in range(5)]
    for buffer in buffers:
        for name in ("observations", "actions", "rewards"):
            getattr(buffer, name).flags.writeable = False
    assert len(added(buffers)) == 5


@examples(25)
@given(datasets(max_episodes=5), st.permutations(range(5)))
def test_a_copy_of_many_is_that_of_each(dataset, order) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_copied(dataset, order, Path(folder))


def assert_copied(dataset: Dataset, order: list[int], folder: Path) -> None:
    source = MinariStorage.new(folder / "source", *dataset[:2])
    source.update_episodes(dataset.buffers)
    chosen = [index for index in order if index < len(dataset.buffers)]
    together = MinariStorage.new(folder / "together", *dataset[:2], data_format="memory")
    together.update_episodes(source.get_segments(chosen))
    single = MinariStorage.new(folder / "single", *dataset[:2], data_format="memory")
    single.update_episodes(source.get_buffers(chosen))
    everything = range(len(chosen))
    for left, right in zip(
        together.get_buffers(everything), single.get_buffers(everything), strict=True
    ):
        assert_same(vars(left), vars(right))
    MemoryStorage.forget(folder / "together")
    MemoryStorage.forget(folder / "single")


def test_a_copy_of_a_view_has_the_episodes_of_the_view_in_their_order(tmp_path: Path) -> None:
    source = MinariStorage.new(tmp_path / "source", BOX, TWO)
    for count in (3, 1, 4):
        source.update_episodes([episode(count, seed=count) for _ in range(count)])
    chosen = [0, 1, 2, 5, 6, 3, 0]
    target = MinariStorage.new(tmp_path / "target", BOX, TWO)
    target.update_episodes([episode(9)])
    target.update_episodes(source.get_segments(chosen))
    attributes = list(target.get_episode_metadata(range(8)))
    assert [one["id"] for one in attributes] == list(range(8))
    assert [one.get("seed") for one in attributes] == [None, 3, 3, 3, 4, 4, 1, 3]
    assert target.total_steps == 9 + 3 + 3 + 3 + 4 + 4 + 1 + 3


def test_a_copy_into_other_spaces_is_refused_with_the_number_of_the_episode(tmp_path) -> None:
    source = MinariStorage.new(tmp_path / "source", BOX, TWO)
    source.update_episodes([episode(3)] * 3)
    target = MinariStorage.new(tmp_path / "target", TWO, TWO)
    with pytest.raises(InvalidEpisodeError, match=r"episode 0: observations has rows of shape"):
        target.update_episodes(source.get_segments(range(3)))
    assert target.total_episodes == 0


def test_pictures_are_encoded_for_a_storage_of_jpeg(tmp_path: Path) -> None:
    pictures = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    filmed = episode(3, observations=np.full((4, 32, 32, 3), 128, np.uint8))
    source = MinariStorage.new(tmp_path / "source", pictures, TWO)
    source.update_episodes([filmed] * 3)
    target = MinariStorage.new(tmp_path / "target", pictures, TWO, jpeg_encoding=True)
    target.update_episodes(source.get_segments(range(3)))
    assert all(isinstance(buffer.observations, Frames) for buffer in target.get_buffers(range(3)))
    for found in target.get_episodes(range(3)):
        assert (found["observations"] == 128).all()


def test_a_storage_that_cannot_be_made_leaves_nothing_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("is kept")
    for data_format in get_storage_keys():
        with pytest.raises(InvalidEpisodeError, match="episode 1: "):
            MinariStorage.create(
                tmp_path,
                [episode(3), episode(3, seed=-1)],
                metadata={},
                observation_space=BOX,
                action_space=TWO,
                data_format=data_format,
            )
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]
