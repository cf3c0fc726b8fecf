"""A collector takes little time and memory, however long the run or the episode is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import minari_pipe.recording.recorder
from minari_pipe.core.episode import EpisodeMetadataCallback, StepDataCallback
from minari_pipe.core.tree import map_leaves
from minari_pipe.datasets.library import delete_dataset
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.recording.collector import DataCollector
from minari_pipe.recording.recovery import list_leftovers, recover
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.testing import assert_same, column, examples
from minari_pipe.testing import spaces as any_space
from tests.conftest import CHECKOUT, FULL

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning")


#: of a collection that would take 500 bytes a step if it were kept in memory
STEPS = 1_500_000 if FULL else 75_000


class Long(gym.Env):
    """Observes the step index in an array that it reuses; its info has the key of each tenth."""

    action_space = spaces.Discrete(10**6)

    def __init__(self, length: int = 10**9, size: int = 4) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.t, self.length = 0, length
        self.shown = np.zeros(size)

    def _returned(self) -> tuple[Any, dict[str, Any]]:
        self.shown[:] = self.t
        infos: dict[str, Any] = {"t": self.t, "deep": {"half": self.t / 2}}
        if self.t % 10 == 0:
            infos["tenth"] = self.t == 500
        return self.shown, infos

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._returned()

    def step(self, action):
        self.t += 1
        observation, infos = self._returned()
        return observation, self.t / 4, self.t >= self.length, False, infos


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows go to files after some tens of steps."""
    monkeypatch.setattr(minari_pipe.recording.recorder, "BLOCK_BYTES", 4096)


def steps(collector: DataCollector, first: int, last: int) -> None:
    for action in range(first, last):
        collector.step(action)


def assert_right(found: Any, length: int) -> None:
    t = np.arange(length + 1)
    assert_same(found.observations, np.repeat(t[:, None], 4, axis=1).astype(float))
    assert_same(found.actions, np.arange(length))
    assert_same(found.rewards, t[1:] / 4)
    assert_same(found.truncations, t[1:] == length)
    assert_same(found.terminations, np.zeros(length, bool))
    infos = {"t": t, "deep": {"half": t / 2}, "tenth": t == 500}
    assert_same(found.infos, infos)


@pytest.mark.usefixtures("small_blocks")
def test_an_episode_that_memory_has_no_room_for_is_whole() -> None:
    collector = DataCollector(Long(), record_infos=True)
    for seed in range(2):
        collector.reset(seed=seed)
        steps(collector, 0, 1000 + seed)
    dataset = collector.create_dataset("aa/b-v0")
    for place, length in enumerate((1000, 1001)):
        assert_right(dataset[place], length)
    filled = dataset.episodes["infos_filled"][0]["tenth"]
    assert filled[0] == [1, 10]
    assert filled[-1] == [991, 1000]
    collector.close()


@pytest.mark.usefixtures("small_blocks")
def test_a_metadata_callback_sees_the_whole_of_it() -> None:
    class Last(EpisodeMetadataCallback):
        def __call__(self, episode):
            last = [float(episode[name].max()) for name in ("observations", "actions", "rewards")]
            return {**super().__call__(episode), "last": last}

    collector = DataCollector(Long(), episode_metadata_callback=Last)
    collector.reset(seed=1)
    steps(collector, 0, 1000)
    dataset = collector.create_dataset("aa/b-v0")
    assert np.asarray(dataset.episodes["last"][0]).tolist() == [1000, 999, 250]
    collector.close()


def interrupted_at(line: int) -> Any:
    """A trace function that presses Ctrl-C before a line of this package, counted from now on."""
    left = line

    def in_a_function(frame, event, arg):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return in_a_function

    def into_a_function(frame, event, arg):
        return in_a_function if frame.f_globals["__name__"] in INTERRUPTED else None

    return into_a_function


INTERRUPTED = [
    "minari_pipe.recording.checked_recorder",
    "minari_pipe.recording.collector",
    "minari_pipe.recording.column_trees",
    "minari_pipe.recording.journal.writer",
    "minari_pipe.recording.recorder",
    "minari_pipe.recording.session",
    "minari_pipe.storage.row_columns",
]


# what a step, rows that go to a file and the end of an episode do is within so many lines
@examples(150 if FULL else 50)
@given(st.integers(1, 3000), st.booleans())
def test_ctrl_c_at_any_line_costs_no_more_than_the_episode_in_the_making(line, short) -> None:
    before = minari_pipe.recording.recorder.BLOCK_BYTES
    minari_pipe.recording.recorder.BLOCK_BYTES = 512
    length = 6 if short else 40
    collector = DataCollector(Long(length), record_infos=not short)
    collector.reset(seed=0)
    steps(collector, 0, length)
    tracer, whole = sys.gettrace(), 1
    try:
        sys.settrace(interrupted_at(line))
        while True:
            collector.reset(seed=whole)
            steps(collector, 0, length)
            whole += 1
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(tracer)
        minari_pipe.recording.recorder.BLOCK_BYTES = before
    try:
        collector.reset(seed=99)
        steps(collector, 0, 3)
        dataset = collector.create_dataset("aa/b-v0")
        seeds = dataset.episodes["seed"].tolist()
        assert seeds == [*range(whole), *([whole] if len(seeds) == whole + 2 else []), 99]
        lengths = [len(episode) for episode in dataset]
        assert lengths[:whole] == [length] * whole
        assert lengths[-1] == 3
        for episode in dataset:
            t = np.arange(len(episode) + 1)
            assert_same(episode.observations, np.repeat(t[:, None], 4, axis=1).astype(float))
            assert_same(episode.actions, t[:-1])
            assert_same(episode.rewards, t[1:] / 4)
            ended = episode.truncations | episode.terminations
            assert_same(ended, t[1:] == len(episode))
            if not short:
                assert_same(episode.infos["t"], t)
    finally:
        collector.close()
        with suppress(DatasetNotFoundError):
            delete_dataset("aa/b-v0")


@pytest.mark.usefixtures("small_blocks")
def test_a_long_episode_is_recovered_when_nobody_has_taken_it() -> None:
    collector = DataCollector(Long(), record_infos=True)
    collector.reset(seed=1)
    steps(collector, 0, 1000)
    collector.close()
    (leftover,) = list_leftovers()
    assert (leftover.episodes, leftover.steps, leftover.damage) == (1, 1000, None)
    assert_right(recover("aa/b-v0")[0], 1000)
    assert list_leftovers() == []


@pytest.mark.usefixtures("small_blocks")
def test_a_child_that_is_forked_in_a_long_episode_goes_on_in_its_own() -> None:
    collector = DataCollector(Long(), record_infos=True)
    collector.reset(seed=1)
    steps(collector, 0, 500)
    child = os.fork()
    if child == 0:
        good = False
        try:
            steps(collector, 500, 900)
            assert_right(collector.create_dataset("aa/child-v0")[0], 900)
            good = True
        finally:
            os._exit(0 if good else 1)
    steps(collector, 500, 700)
    assert os.waitpid(child, 0)[1] == 0
    steps(collector, 700, 1000)
    assert_right(collector.create_dataset("aa/b-v0")[0], 1000)
    assert_right(load_dataset("aa/child-v0")[0], 900)
    collector.close()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("room", [0, 5, 33])
def test_of_a_long_episode_that_fills_the_disk_the_steps_before_are_kept(room, monkeypatch) -> None:
    collector = DataCollector(Long(), record_infos=True)
    collector.reset(seed=1)
    steps(collector, 0, 100)
    write, left = minari_pipe.recording.journal.writer._write, [room]

    def full(file, data):
        left[0] -= 1
        if left[0] < 0:
            file.write(memoryview(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")
        write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.recording.journal.writer._write", full)
        with pytest.raises(OSError, match="No space left"):
            steps(collector, 100, 1000)
    (found,) = collector.create_dataset("aa/b-v0")
    assert 100 <= len(found) < 1000
    assert_right(found, len(found))
    collector.close()


class Unchanged(StepDataCallback):
    """A callback of the user's own, which might change what is recorded."""


class Shows(gym.Env):
    """Shows the rows of columns, some of which are not what the spaces say."""

    def __init__(self, observation_space, action_space, rows: int, seed: int) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        rng = np.random.default_rng(seed)
        self.rows = column(observation_space, rows, rng)
        self.actions = column(action_space, rows, rng)
        self.odd = rng.random(rows) < 0.2
        self.t, self.n = -1, rows

    def row(self, tree: Any, number: int) -> Any:
        def leaf_of(leaf: Any) -> Any:
            value = leaf[number]
            if self.odd[number] and getattr(value, "dtype", np.dtype("O")).kind == "f":
                return np.asarray(value, np.float64)[()] + 1e-3
            return value

        return map_leaves(leaf_of, tree)

    def _shown(self) -> Any:
        self.t += 1
        return self.row(self.rows, self.t)

    def reset(self, *, seed=None, options=None):
        return self._shown(), {"t": self.t}

    def step(self, action):
        shown = self._shown()
        return shown, float(self.t), self.t % 7 == 3, self.t == self.n - 1, {"t": self.t}


@examples(25 if FULL else 10)
@given(any_space(), any_space(), st.integers(0, 2**32), st.booleans())
def test_the_quick_way_records_what_the_general_one_does(
    observation_space, action_space, seed, record_infos
) -> None:
    found = []
    for name, given_callback in (("quick", StepDataCallback), ("general", Unchanged)):
        env = Shows(observation_space, action_space, 40, seed)
        collector = DataCollector(env, given_callback, record_infos=record_infos)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            collector.reset(seed=1)
            while env.t < env.n - 2:
                _, _, terminated, truncated, _ = collector.step(env.row(env.actions, env.t))
                if terminated or truncated:
                    collector.reset(seed=env.t)
            texts = [str(one.message) for one in caught]
            dataset = collector.create_dataset(f"aa/{name}-{next(_numbers)}-v0")
        episodes = list(dataset)
        attributes = list(dataset.storage.get_episode_metadata(range(len(dataset))))
        found.append((episodes, attributes, texts))
        collector.close()
    (quick, quick_attributes, quick_texts), (general, attributes, texts) = found
    assert quick_texts == texts
    assert_same(quick_attributes, attributes)
    assert len(quick) == len(general)
    for one, another in zip(quick, general, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            assert_same(getattr(one, name), getattr(another, name))


_numbers = itertools.count()


MEMORY = """
import os, sys, warnings
import numpy as np
from gymnasium import spaces
from minari_pipe import DataCollector
from tests.recording.test_collector_long import Long

def highest():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

warnings.simplefilter("ignore")
for arguments in sys.argv[1:]:
    steps, length, infos, data_format = arguments.split()
    if os.fork():
        assert os.wait()[1] == 0
        continue
    before = 0
    for number, total in enumerate((2000, int(steps))):
        env = Long(int(length), 60)
        collector = DataCollector(env, record_infos=infos == "infos", data_format=data_format)
        collector.reset(seed=0)
        for action in range(total):
            if collector.step(action % 1000)[2]:
                collector.reset(seed=0)
        collected = highest()
        collector.create_dataset(f"aa/{data_format}-{length}-{infos}{number}-v0")
        collector.close()
        before = before or highest()
    print(collected - before, highest() - before, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_run() -> None:
    """Of one episode, one of arrow, many, and one with infos: each in a fork of one process."""
    # The key of each tenth step has a range of filled rows before it, which stay in memory.
    one = 10**9
    runs = [(STEPS, one, "none", "hdf5"), (STEPS, one, "none", "arrow")]
    runs += [(STEPS, 25, "none", "hdf5"), (STEPS // 3, one, "infos", "hdf5")]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *(" ".join(map(str, run)) for run in runs)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=CHECKOUT,
        check=True,
    )
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == len(runs)
    for run, (collected, created) in zip(runs, found):
        assert collected < 16_000_000, (run, found)
        assert created < (64_000_000 if FULL else 32_000_000), (run, found)


def test_a_step_costs_a_small_multiple_of_an_empty_wrapper_s() -> None:
    """A loose bound, of the best of several runs: real Minari takes a hundred times as long."""

    def seconds(env: gym.Env) -> float:
        env.reset(seed=0)
        begun = time.process_time()
        for action in range(5000):
            env.step(action)
        return time.process_time() - begun

    collector = DataCollector(Long())
    best = min(seconds(collector) - seconds(gym.Wrapper(Long())) for _ in range(5))
    assert best / 5000 < 20e-6
    collector._recorded.journal.clear()
    collector.close()
