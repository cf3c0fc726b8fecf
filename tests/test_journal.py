"""A journal gives back every episode that was finished, whatever happened to it afterwards."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.journal import Journal, JournalReader, is_alive, journals
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
        patch.setattr("minari_pipe.journal._write", half)
        with pytest.raises(OSError, match="No space left"):
            journal.append(episode(1))
    assert [len(found) for found in journal.episodes()] == [3]
    journal.append(episode(2))
    assert_equal(list(journal.episodes())[1], episode(2))
    journal.clear()


def read(path: Path) -> tuple[list[EpisodeBuffer], JournalReader]:
    with JournalReader(path) as reader:
        return list(reader.episodes()), reader


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
