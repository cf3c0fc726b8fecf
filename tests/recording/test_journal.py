"""A journal gives back every episode that was finished, whatever happened to it afterwards."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, UnsupportedVersionError
from minari_pipe.recording.journal.folders import is_alive, journals
from minari_pipe.recording.journal.reader import JournalReader
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recovery import list_leftovers, recover
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.writer import buffer_of
from minari_pipe.testing import assert_same, column, examples, options
from minari_pipe.testing import spaces as any_space

HEAD = {"env_id": "StepIndex-v0", "observation_space": "{}"}


def episode(number: int, steps: int = 3) -> EpisodeBuffer:
    return EpisodeBuffer(
        seed=2**64 - 1 - number,
        options={"b": [1, None, {"x": np.arange(3)}], "a": np.float32(0.5)},
        observations={"o": np.full((steps + 1, 2), number, np.float32), "t": (["ü"] * 4,)},
        actions=np.arange(steps),
        rewards=np.full(steps, np.nan),
        terminations=np.zeros(steps, bool),
        truncations=np.zeros(steps, bool),
        infos={"text": np.array(["", "\ud800", "a", "b"], object)},
        metadata={"infos_filled": {"text": [[0, 1]]}, "mean": float("inf")},
        extras={"state": {"q": np.zeros((steps, 0))}},
    )


def assert_equal(found: EpisodeBuffer, expected: EpisodeBuffer) -> None:
    for name, value in vars(expected).items():
        if name != "id":
            assert_same(getattr(found, name), value)


@pytest.fixture
def written() -> tuple[Path, bytes, list[EpisodeBuffer]]:
    """A journal of three episodes: its file, the bytes of it and what is in it."""
    journal = Journal(HEAD)
    episodes = [episode(number) for number in range(3)]
    for one in episodes:
        journal.append(one)
    path = journal.leave()
    assert path is not None
    return path, path.read_bytes(), episodes


@pytest.fixture(params=[1, 2**20], ids=["mapped", "read"])
def _mapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of so many bytes are long."""
    monkeypatch.setattr("minari_pipe.recording.journal.reader._MAPPED", request.param)


@examples(30)
@given(any_space(), any_space(), st.integers(0, 2**32), st.integers(1, 20))
def test_every_value_comes_back_in_its_type(observation_space, action_space, seed, steps) -> None:
    rng = np.random.default_rng(seed)
    expected = EpisodeBuffer(
        seed=seed,
        options=options(rng),
        observations=column(observation_space, steps + 1, rng),
        actions=column(action_space, steps, rng),
        rewards=rng.normal(size=steps),
        terminations=rng.random(steps) < 0.5,
        truncations=rng.random(steps) < 0.5,
        infos={"n": {"x": rng.normal(size=(steps + 1, 2)).astype(">f4")}},
    )
    journal = Journal(HEAD)
    for _ in range(2):
        journal.append(expected)
    found = list(journal.episodes())
    journal.clear()
    assert len(found) == 2
    for one in found:
        assert_equal(one, expected)
        assert one.infos["n"]["x"].dtype == ">f4"
        one.rewards[0] = 5  # it can be written to


ARRAYS = st.sampled_from(
    [
        gym.spaces.Box(-1, 1, (3,), np.float32),
        gym.spaces.Discrete(4),
        gym.spaces.Dict(b=gym.spaces.Box(0, 9, (), np.uint8), a=gym.spaces.MultiBinary(3)),
        gym.spaces.Tuple([gym.spaces.Box(0, 1, (0, 2)), gym.spaces.Dict(x=gym.spaces.Discrete(2))]),
    ]
)


@examples(40)
@given(st.data(), ARRAYS | any_space(), ARRAYS | any_space(), st.integers(0, 2**32))
def test_segments_hold_what_the_episodes_hold(data, observation_space, action_space, seed) -> None:
    rng = np.random.default_rng(seed)
    forms = [{}, {"x": "f4"}, {"x": "f8"}, {"n": {"y": "?"}, "x": "c16"}, {"n": {}}]
    others = st.sampled_from([{}] * 4 + [{"infos_filled": {"x": [[0, 1]]}}, {"mean": 0.5}])
    journal = Journal(HEAD)
    for kind in data.draw(
        st.lists(st.tuples(st.sampled_from(forms), others, st.integers(1, 9)), max_size=4)
    ):
        form, metadata, count = kind
        for _ in range(count):
            steps = int(rng.integers(1, 30))
            journal.append(
                EpisodeBuffer(
                    seed=None
                    if rng.random() < 0.05
                    else int(rng.integers(0, 2**63)) * int(rng.integers(0, 3)),
                    options={"x": 1} if rng.random() < 0.05 else None,
                    observations=column(observation_space, steps + 1, rng),
                    actions=column(action_space, steps, rng),
                    rewards=rng.normal(size=steps),
                    terminations=rng.integers(0, 3 if rng.random() < 0.1 else 2, steps)
                    .astype("u1")
                    .view("?"),
                    truncations=rng.random(steps) < 0.5,
                    infos=map_leaves(np.resize(rng.normal(size=9), steps + 1).astype, form),
                    metadata=metadata,
                    extras={"state": {"q": rng.normal(size=(steps, 2))}} if seed % 2 else {},
                )
            )
    expected = list(journal.episodes())
    found = list(journal.segments())
    journal.clear()
    assert sum(len(part) if isinstance(part, Segment) else 1 for part in found) == len(expected)
    for part in found:
        for place in range(len(part) if isinstance(part, Segment) else 1):
            one, other = part, expected.pop(0)
            if isinstance(part, Segment):
                attributes = part.attributes[place]
                assert part.columns(place)["terminations"].view(np.uint8).max() < 2
                assert attributes["rewards_sum"] == pytest.approx(other.rewards.sum())
                assert attributes["total_steps"] == len(other)
                of_rewards = {name: 0 for name in attributes if name.startswith("rewards_")}
                columns = {"infos": {}, **part.columns(place)}
                one = buffer_of(columns, without(attributes, of_rewards))
            assert_equal(one, other)


def without(attributes: dict[str, Any], others: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in others}


def plain(number: int, steps: int) -> EpisodeBuffer:
    rows = np.arange(steps + 1.0)
    return EpisodeBuffer(number, number, None, rows, rows[1:], *[rows[1:]] * 3, {})


def test_short_episodes_of_one_structure_are_one_segment() -> None:
    journal = Journal(HEAD)
    for number in range(20):
        journal.append(plain(number, number + 1))
    (segment,) = journal.segments()
    journal.clear()
    assert isinstance(segment, Segment)
    assert len(segment) == 20


def test_a_long_episode_is_no_part_of_a_segment() -> None:
    journal = Journal(HEAD)
    for number, steps in enumerate([3, 4, 20_000, 20_001, 5, 6]):
        journal.append(plain(number, steps))
    found = [(type(part), len(part)) for part in journal.segments()]
    journal.clear()
    long = [(EpisodeBuffer, 20_000), (EpisodeBuffer, 20_001)]
    assert found == [(Segment, 2), *long, (Segment, 2)]


def test_a_damaged_record_is_reported_after_the_segment_before_it() -> None:
    journal = Journal(HEAD)
    for number in range(20):
        journal.append(plain(number, number + 1))
    assert journal.path is not None
    data = bytearray(journal.path.read_bytes())
    data[-3] ^= 1
    journal.path.write_bytes(data)
    segments = journal.segments()
    assert len(next(segments)) == 19
    with pytest.raises(CorruptDatasetError, match="arrays of episode 19 are damaged"):
        next(segments)
    journal.clear()


def test_it_begins_anew_and_takes_no_place_without_episodes() -> None:
    journal = Journal(HEAD)
    assert list(journals()) == []
    for number in range(2):
        journal.append(episode(number))
        assert len(journal) == 1
        assert list(journals()) == [journal.path]
        assert_equal(next(journal.episodes()), episode(number))
        journal.clear()
        assert list(journals()) == []
    assert journal.leave() is None


def test_a_long_episode_is_read_when_it_is_looked_at() -> None:
    long = episode(2, steps=2**18)
    journal = Journal(HEAD)
    for expected in (episode(0), long, episode(1)):
        journal.append(expected)
    assert journal.path is not None
    tracemalloc.start()
    found = list(journal.episodes())
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()
    journal.clear()  # of which its episodes are independent
    for one, expected in zip(found, (episode(0), long, episode(1)), strict=True):
        assert_equal(one, expected)


def test_what_cannot_be_stored_is_refused_and_leaves_it_as_it_was() -> None:
    journal = Journal(HEAD)
    journal.append(episode(0))
    for metadata in ({"x": object()}, {"x": {3: 4}}, {"x": np.array([None])}):
        with pytest.raises(InvalidEpisodeError, match="metadata cannot be stored"):
            journal.append(EpisodeBuffer(metadata=metadata))
    journal.append(episode(1))
    assert len(list(journal.episodes())) == 2
    journal.clear()


def test_an_append_that_broke_off_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(HEAD)
    journal.append(episode(0))

    def half(file, data):
        file.write(memoryview(data)[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.recording.journal.writer._write", half)
        with pytest.raises(OSError, match="No space left"):
            journal.append(episode(1))
    assert [len(found) for found in journal.episodes()] == [3]
    journal.append(episode(2))
    assert_equal(list(journal.episodes())[1], episode(2))
    journal.clear()


def read(path: Path) -> tuple[list[EpisodeBuffer], JournalReader]:
    with JournalReader(path) as reader:
        return list(reader.episodes()), reader


@pytest.mark.usefixtures("_mapped")
def test_a_file_cut_at_any_byte_gives_the_episodes_before_it(written) -> None:
    path, data, episodes = written
    seen = set()
    for size in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:size])
        try:
            found, reader = read(path)
        except CorruptDatasetError:
            assert size < 300  # the head
            continue
        assert reader.damage is None
        for one, expected in zip(found, episodes, strict=False):
            assert_equal(one, expected)
        with JournalReader(path) as reader:
            assert len(list(reader.steps())) == len(found)
        seen.add(len(found))
    assert seen == {0, 1, 2}


@pytest.mark.usefixtures("_mapped")
def test_a_changed_byte_is_found_and_gives_the_episodes_before_it(written) -> None:
    path, data, episodes = written
    rng = np.random.default_rng(0)
    for place in rng.choice(len(data), 300, replace=False):
        changed = bytearray(data)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            found, reader = read(path)
        except CorruptDatasetError:
            continue
        assert reader.damage is not None
        assert len(found) < 3
        for one, expected in zip(found, episodes, strict=False):
            assert_equal(one, expected)


def test_noise_is_an_error_and_takes_no_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "journal"
    tracemalloc.start()
    for size in (0, 1, 31, 32, 500, 100_000):
        path.write_bytes(rng.bytes(size))
        with pytest.raises(CorruptDatasetError, match="journal"):
            JournalReader(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    with pytest.raises(CorruptDatasetError, match="cannot be read"):
        JournalReader(tmp_path)


def test_a_process_is_alive_until_it_ends_and_its_children_do_not_count() -> None:
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        journal = Journal(HEAD)
        journal.append(episode(0))
        if os.fork() == 0:  # a worker that lives longer, with all files of its parent
            os.read(go[0], 1)
            os._exit(0)
        os.write(ready[1], str(journal.path).encode())
        os.read(go[0], 1)
        os._exit(0)
    path = Path(os.read(ready[0], 1000).decode())
    assert is_alive(path)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert not is_alive(path)
    os.write(go[1], b"x")
    assert [len(found) for found in read(path)[0]] == [3]


def test_one_s_own_journal_is_alive_and_a_look_at_it_does_not_unlock_it() -> None:
    journal = Journal(HEAD)
    journal.append(episode(0))
    assert journal.path is not None
    assert is_alive(journal.path)
    child = os.fork()
    if child == 0:
        os._exit(0 if is_alive(journal.path) else 1)
    assert os.waitpid(child, 0)[1] == 0
    path = journal.leave()
    assert path is not None
    assert not is_alive(path)


def stored(journal: Journal, *arrays: np.ndarray) -> list[np.ndarray]:
    """Write the rows of arrays to files, all arrays growing at once, in several parts."""
    places = [None] * len(arrays)
    part = max(map(len, arrays)) // 16 // 8 * 8 + 8
    for first in range(0, max(map(len, arrays)), part):
        for number, array in enumerate(arrays):
            if first < len(array):
                places[number] = journal.add_rows(places[number], array[first : first + part])
    return [
        journal.rows(place, array.dtype, array.shape)
        for place, array in zip(places, arrays, strict=True)
    ]


def long_episode(journal: Journal, steps: int, number: int = 0) -> tuple[EpisodeBuffer, ...]:
    """An episode of which the journal has the rows already, and the same in memory."""
    rng = np.random.default_rng(number)
    plain = EpisodeBuffer(
        seed=number,
        observations={"o": rng.normal(size=(steps + 1, 3)).astype(np.float32)},
        actions=rng.integers(0, 200, (steps, 3, 1), np.uint8),
        rewards=rng.normal(size=steps),
        terminations=np.zeros(steps, bool),
        truncations=np.zeros(steps, bool),
    )
    names = ("actions", "rewards", "terminations", "truncations")
    rows = stored(journal, plain.observations["o"], *(getattr(plain, name) for name in names))
    others = dict(zip(names, rows[1:], strict=True))
    return EpisodeBuffer(seed=number, observations={"o": rows[0]}, **others), plain


@pytest.mark.parametrize("steps", [17, 400_000], ids=["read", "mapped"])
def test_rows_that_were_written_before_are_part_of_an_episode(steps) -> None:
    journal = Journal(HEAD)
    expected = []
    for number in range(3):
        given, plain = long_episode(journal, steps + number, number)
        assert_equal(given, plain)
        journal.append(given)
        expected.append(plain)
    for one, plain in zip(journal.episodes(), expected, strict=True):
        assert_equal(one, plain)
        assert type(one.actions) is np.ndarray
        assert one.actions.flags.c_contiguous
    path = journal.leave()
    assert path is not None
    assert path.stat().st_size < 5000
    found, reader = read(path)
    assert reader.damage is None
    for one, plain in zip(found, expected, strict=True):
        assert_equal(one, plain)


def test_rows_that_are_zero_need_not_be_written() -> None:
    journal = Journal(HEAD)
    place = journal.add_rows(journal.add_zeros(None, 8 * 16), np.arange(3))
    rows = journal.rows(place, np.int64, (19,))
    assert rows.tolist() == [0] * 16 + [0, 1, 2]
    only_zeros = journal.rows(journal.add_zeros(None, 800_000), np.int64, (100_000,))
    assert not only_zeros.any()
    journal.append(EpisodeBuffer(rewards=rows, infos={"x": only_zeros}))
    (found,) = journal.episodes()
    assert_same(found.rewards, np.asarray(rows))
    assert_same(found.infos, {"x": np.zeros(100_000, np.int64)})
    journal.clear()


def test_what_is_made_of_stored_rows_is_stored_itself() -> None:
    journal = Journal(HEAD)
    given, plain = long_episode(journal, 20)
    part = given.rewards[3:5]
    journal.append(EpisodeBuffer(rewards=given.rewards, metadata={"part": part, "sum": part * 2}))
    (found,) = journal.episodes()
    assert_same(found.metadata["part"], plain.rewards[3:5])
    assert_same(found.metadata["sum"], plain.rewards[3:5] * 2)
    journal.clear()


def test_rows_of_an_episode_that_is_not_finished_do_not_count() -> None:
    journal = Journal(HEAD)
    given, plain = long_episode(journal, 20)
    journal.append(given)
    long_episode(journal, 20)
    path = journal.leave()
    assert path is not None
    assert_equal(read(path)[0][0], plain)
    assert len(read(path)[0]) == 1


def test_rows_go_on_where_they_were_after_a_write_that_broke_off(monkeypatch) -> None:
    journal = Journal(HEAD)
    rows = np.arange(16)
    place = journal.add_rows(None, rows[:8])

    def half(file, data):
        file.write(memoryview(data)[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.recording.journal.writer._write", half)
        with pytest.raises(OSError, match="No space left"):
            journal.add_rows(place, rows[8:] + 100)
    place = journal.add_rows(place, rows[8:])
    assert_same(np.asarray(journal.rows(place, np.int64, (16,))), rows)
    journal.clear()


def test_damage_to_stored_rows_is_found() -> None:
    journal = Journal(HEAD)
    journal.append(long_episode(journal, 20)[0])
    journal.append(episode(1))
    path = journal.leave()
    assert path is not None
    rows = path.with_name("rows-2")
    whole = rows.read_bytes()
    for damaged, told in [
        (whole[:40] + b"\1" + whole[41:], "damaged"),
        (whole[:-1], "ends before its rows"),
        (None, "No such file"),
    ]:
        if damaged is None:
            rows.unlink()
        else:
            rows.write_bytes(damaged)
        found, reader = read(path)
        assert found == []
        assert reader.damage is not None
        assert told in reader.damage


@pytest.mark.parametrize("width", [8, 64, 1024])
def test_stored_rows_in_another_order_are_damage(width: int) -> None:
    """Half the rows are more than a megabyte, so that sums of parts count too."""
    journal = Journal(HEAD)
    rows = np.arange(4 * 2**16).reshape(-1, width)
    place = journal.add_rows(journal.add_rows(None, rows[: len(rows) // 2]), rows[len(rows) // 2 :])
    journal.append(EpisodeBuffer(rewards=journal.rows(place, rows.dtype, rows.shape)))
    path = journal.leave()
    assert path is not None
    assert read(path)[1].damage is None
    path.with_name("rows-0").write_bytes(rows[::-1].tobytes())
    found, reader = read(path)
    assert found == []
    assert reader.damage is not None and "damaged" in reader.damage


@pytest.mark.parametrize("steps", [10, 2000, 2**18], ids=["short", "joined", "in parts"])
def test_rows_of_a_record_in_another_order_are_damage(steps: int) -> None:
    journal = Journal(HEAD)
    rows = np.arange(float(steps))
    journal.append(EpisodeBuffer(rewards=rows))
    path = journal.leave()
    assert path is not None
    data = path.read_bytes()
    assert data.count(rows.tobytes()) == 1
    path.write_bytes(data.replace(rows.tobytes(), rows[::-1].tobytes()))
    found, reader = read(path)
    assert found == []
    assert reader.damage is not None and "are damaged" in reader.damage


@pytest.mark.parametrize(
    "where", [[0, 0, 16, -1], ["../x", 0, 16, 0], [0, 2**70, 16, 0], [0, 0, 10**18, 0], [0, 0]]
)
def test_a_place_of_rows_that_cannot_be_is_damage(where) -> None:
    journal = Journal(HEAD)
    rows = journal.rows(journal.add_rows(None, np.zeros(2)), float, (2,))
    journal.append(EpisodeBuffer(rewards=rows))

    class Wrong:
        file, offset, size, checksum = (*where, 0, 0)[:4]

    rows.place = Wrong
    journal.append(EpisodeBuffer(rewards=rows))
    path = journal.leave()
    assert path is not None
    found, reader = read(path)
    assert len(found) == 1
    assert reader.damage is not None


def test_an_episode_that_names_the_same_rows_again_and_again_is_damage() -> None:
    journal = Journal(HEAD)
    rows = journal.rows(journal.add_rows(None, np.zeros(200)), float, (200,))
    journal.append(EpisodeBuffer(rewards=rows))
    journal.append(EpisodeBuffer(rewards=rows, infos={str(n): rows for n in range(1000)}))
    path = journal.leave()
    assert path is not None
    found, reader = read(path)
    assert len(found) == 1
    assert reader.damage is not None and "overlap those of other episodes" in reader.damage


@pytest.mark.parametrize("field", ["infos", "options", "extras"])
def test_what_is_no_dict_in_the_place_of_one_is_damage(field: str) -> None:
    journal = Journal(HEAD)
    journal.append(EpisodeBuffer(rewards=np.zeros(1)))
    journal.append(EpisodeBuffer(rewards=np.zeros(1), **{field: 5}))
    path = journal.leave()
    assert path is not None
    found, reader = read(path)
    assert len(found) == 1
    assert reader.damage is not None and "are not dicts" in reader.damage


def test_a_forked_child_has_the_rows_of_its_parent_and_writes_its_own() -> None:
    journal = Journal(HEAD)
    journal.append(long_episode(journal, 20)[0])
    place = journal.add_rows(None, np.arange(8))
    child = os.fork()
    if child == 0:
        good = False
        try:
            own = journal.add_rows(place, np.full(8, 7))
            journal.append(EpisodeBuffer(rewards=journal.rows(own, np.int64, (16,))))
            first, second = journal.episodes()
            good = len(first) == 20 and second.rewards.tolist() == [*range(8), *[7] * 8]
            journal.clear()
        finally:
            os._exit(0 if good else 1)
    place = journal.add_rows(place, np.full(8, 9))
    assert os.waitpid(child, 0)[1] == 0
    journal.append(EpisodeBuffer(rewards=journal.rows(place, np.int64, (16,))))
    assert list(journal.episodes())[1].rewards.tolist() == [*range(8), *[9] * 8]
    journal.clear()


def test_a_journal_of_an_earlier_format_is_refused_by_name_and_kept(written) -> None:
    path, data, _ = written
    path.write_bytes(b"MPj1" + data[4:])
    with pytest.raises(UnsupportedVersionError, match=f"{path}: .* earlier .* MPj1"):
        read(path)
    (leftover,) = list_leftovers()
    assert (leftover.path, leftover.episodes) == (path.parent, 0)
    assert "earlier version" in (leftover.damage or "")
    with pytest.raises(UnsupportedVersionError, match="recover it with that version"):
        recover("aa/b-v0", path)
    assert path.exists()


@pytest.mark.parametrize("size", [1 << 14, 1 << 18], ids=["read", "mapped"])
def test_a_journal_that_becomes_shorter_while_it_is_read_is_damaged(size) -> None:
    journal = Journal({})
    for _ in range(2):
        journal.append(EpisodeBuffer(rewards=np.ones(size)))
    path = journal.path
    assert path is not None
    with JournalReader(path) as reader:
        episodes = reader.episodes()
        next(episodes)
        os.truncate(path, path.stat().st_size - size // 2)
        assert list(episodes) == []
        assert "episode 1" in (reader.damage or "")
    journal.clear()
