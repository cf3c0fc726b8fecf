"""Long episodes of many environments at a time take little memory and few files, and survive."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import minari_pipe.recording.recorder
from minari_pipe import VectorDataCollector
from minari_pipe.datasets.library import delete_dataset
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.recording.recorder import EpisodeRecorder
from minari_pipe.recording.recovery import list_leftovers, recover
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.testing import assert_same, examples
from tests.conftest import CHECKOUT, FULL
from tests.recording import test_collector_long
from tests.recording.test_collector_long import INTERRUPTED, interrupted_at

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning")


class Long(gym.Env):
    """Observes its number and the step index; its info has the key of each tenth step."""

    action_space = spaces.Discrete(10**6)

    def __init__(self, index: int = 0, length: int = 10**9, size: int = 4) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.index, self.length, self.more = index, length, [0.0] * (size - 3)

    def returned(self) -> tuple[Any, dict[str, Any]]:
        infos = {"t": self.t, **({"tenth": self.t / 10} if self.t % 10 == 0 else {})}
        return np.array([self.index, self.t, *self.more, -self.t]), infos

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.returned()

    def step(self, action):
        self.t += 1
        observation, infos = self.returned()
        return observation, self.t / 4, self.t >= self.length, False, infos


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows go to files after some tens of steps."""
    monkeypatch.setattr(minari_pipe.recording.recorder, "BLOCK_BYTES", 8192)


def step_index(collector: VectorDataCollector, first: int, last: int) -> None:
    for action in range(first, last):
        collector.step(np.full(collector.num_envs, action))


def assert_right(found: Any, index: int, length: int, *, first_action: int = 0) -> None:
    t = np.arange(length + 1)
    columns = [np.full(length + 1, index), t, np.zeros(length + 1), -t]
    assert_same(np.asarray(found.observations), np.stack(columns, axis=1).astype(float))
    assert_same(np.asarray(found.actions), np.arange(first_action, first_action + length))
    assert_same(np.asarray(found.rewards), t[1:] / 4)
    assert_same(np.asarray(found.infos["t"]), t)
    assert_same(np.asarray(found.infos["tenth"]), np.where(t % 10 == 0, t / 10, 0.0))


@pytest.mark.usefixtures("small_blocks")
def test_long_episodes_that_are_open_at_a_time_stay_apart() -> None:
    lengths = (700, 300, 1000)
    envs = SyncVectorEnv(
        [partial(Long, index, length) for index, length in enumerate(lengths)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    collector = VectorDataCollector(envs, record_infos=True)
    collector.reset(seed=1)
    step_index(collector, 0, 1500)
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    ends = [(env, end) for env, length in enumerate(lengths) for end in range(length, 1501, length)]
    ends.sort(key=lambda one: (one[1], one[0]))
    open_ones = [(env, 1500) for env, length in enumerate(lengths) if 1500 % length]
    assert len(dataset) == len(ends) + len(open_ones)
    for found, (env, end) in zip(dataset, [*ends, *open_ones], strict=True):
        steps = lengths[env] if (env, end) in ends else 1500 % lengths[env]
        assert_right(found, env, steps, first_action=end - steps)


@pytest.mark.usefixtures("small_blocks")
def test_an_episode_that_is_dropped_leaves_the_others_their_rows() -> None:
    collector = VectorDataCollector(
        SyncVectorEnv([partial(Long, 0, 1000), Long]), record_infos=True, unfinished="drop"
    )
    for _ in range(2):
        collector.reset(seed=1)
        step_index(collector, 0, 1000)
        dataset = collector.create_dataset("aa/b-v0")
        assert [len(episode) for episode in dataset] == [1000]
        assert_right(dataset[0], 0, 1000)
        delete_dataset("aa/b-v0")
    collector.close()


@pytest.mark.usefixtures("small_blocks")
def test_what_a_hook_has_taken_takes_no_room_and_stays_as_it_was() -> None:
    taken: list[Any] = []
    lengths = (400, 300)
    collector = VectorDataCollector(
        SyncVectorEnv(
            [partial(Long, index, length) for index, length in enumerate(lengths)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        ),
        record_infos=True,
        on_episode=lambda episode, total_steps: taken.append(episode),
    )
    collector.reset(seed=1)
    most = []
    for first in range(0, 12_000, 400):
        step_index(collector, first, first + 400)
        assert collector._journal.path is not None
        files = collector._journal.path.parent.iterdir()
        most.append(sum(file.stat().st_size for file in files))
    assert len(taken) == 12_000 // 400 + 12_000 // 300
    assert max(most) < 2 * most[1] < 100_000
    for number, env in enumerate(lengths):
        of_env = [each for each in taken if each.observations[0, 0] == number]
        for place, found in enumerate(of_env):
            t = np.arange(env + 1)
            assert_same(np.asarray(found.observations[:, 1]), t.astype(float))
            assert_same(np.asarray(found.actions), place * env + t[:-1])
    collector.close()
    assert not list_leftovers()


@pytest.fixture
def few_files() -> Iterator[None]:
    """Let this process open no more than 256 files, as some systems do."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("small_blocks", "few_files")
def test_more_environments_than_files_can_be_open() -> None:
    n_envs, length = 80, 200
    collector = VectorDataCollector(
        SyncVectorEnv([partial(Long, index) for index in range(n_envs)]), record_infos=True
    )
    collector.reset(seed=1)
    step_index(collector, 0, length)
    assert collector._journal.path is not None
    assert len(list(collector._journal.path.parent.iterdir())) > 256
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    assert len(dataset) == n_envs
    for index, found in enumerate(dataset):
        assert_right(found, index, length)


@pytest.mark.usefixtures("small_blocks")
def test_a_forked_process_goes_on_in_files_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minari_pipe.recording.journal.writer._MOST_OPEN", 4)
    collector = VectorDataCollector(
        SyncVectorEnv([partial(Long, 0, 300), partial(Long, 1, 300)]), record_infos=True
    )
    collector.reset(seed=1)
    step_index(collector, 0, 250)

    def go_on(dataset_id: str) -> None:
        step_index(collector, 250, 300)
        dataset = collector.create_dataset(dataset_id)
        for index in range(2):
            assert_right(dataset[index], index, 300)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            go_on("aa/child-v0")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    go_on("aa/parent-v0")
    collector.close()
    assert load_dataset("aa/child-v0").total_steps == 600


@pytest.mark.usefixtures("small_blocks")
def test_episodes_survive_the_kill_of_their_process() -> None:
    def collect(told: Callable[[], object]) -> None:
        collector = VectorDataCollector(
            SyncVectorEnv([partial(Long, 0, 30), partial(Long, 1, 500)], autoreset_mode="SameStep"),
            record_infos=True,
        )
        collector.reset(seed=1)
        while True:
            step_index(collector, 0, 500)
            told()

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            collect(lambda: os.write(write, b"x"))
        finally:
            os._exit(1)
    os.close(write)
    told = len(os.read(read, 1))
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told += len(os.read(read, 1 << 16))
    os.close(read)
    (leftover,) = list_leftovers()
    assert leftover.alive is False
    dataset = recover("aa/b-v0", leftover)
    of_each: list[list[Any]] = [[], []]
    for found in dataset:
        of_each[int(found.observations[0, 0])].append(found)
    assert len(of_each[0]) >= 16 * told
    assert len(of_each[1]) >= told
    for found in of_each[1]:
        assert_right(found, 1, 500)
    for found in of_each[0]:
        assert len(found) == 30
        assert found.observations[:, 1].tolist() == list(range(31))
    # of each environment, all of them in the order in which they ended
    firsts = [int(found.actions[0]) for found in of_each[0]]
    assert firsts == [30 * number % 500 for number in range(len(firsts))]


MEMORY = """
import sys, warnings
import numpy as np
from functools import partial
from gymnasium.vector import SyncVectorEnv
from minari_pipe import VectorDataCollector
from tests.recording.test_vector_collector_long import Long, peak, step_index
n_envs, steps, length = map(int, sys.argv[1:])
collector = VectorDataCollector(
    SyncVectorEnv([partial(Long, index, length, 60) for index in range(n_envs)]), record_infos=True
)
collector.reset(seed=1)
step_index(collector, 0, 1000)
before = peak()
step_index(collector, 0, steps)
collected = peak() - before
with warnings.catch_warnings(action="ignore"):
    collector.create_dataset("aa/b-v0")
collector.close()
print(collected, peak() - before)
"""


def peak() -> int:
    """Bytes that this process has had in memory at most."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("length", [10**9, 100], ids=["one long episode each", "many short ones"])
def test_memory_does_not_grow_with_the_run(length) -> None:
    """60,000 steps of 520 bytes would take 31 MB; each of 4 environments has a megabyte."""
    n_envs, steps = (8, 150_000) if FULL else (4, 15_000)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(n_envs), str(steps), str(length)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=CHECKOUT,
        check=True,
    )
    collected, created = map(int, done.stdout.split())
    assert collected < (32_000_000 if FULL else 16_000_000), done.stdout
    assert created < (64_000_000 if FULL else 28_000_000), done.stdout


def test_ctrl_c_after_the_journal_has_an_episode_does_not_record_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = [partial(Long, index, length) for index, length in enumerate((3, 4))]
    collector = VectorDataCollector(SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP))
    collector.reset(seed=0)
    step_index(collector, 0, 9)  # the form of an episode is known by its second
    forget, presses = EpisodeRecorder.forget, iter([KeyboardInterrupt])

    def pressed(self: EpisodeRecorder) -> None:
        for press in presses:
            raise press
        forget(self)

    monkeypatch.setattr(EpisodeRecorder, "forget", pressed)
    with pytest.raises(KeyboardInterrupt):
        step_index(collector, 9, 13)
    collector.reset(seed=99)
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    actions = [each.actions.tolist() for each in dataset if each.observations[0, 0] == 0]
    delete_dataset("aa/b-v0")
    assert actions == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


INTERRUPTED_TOO = ["minari_pipe.recording.vector_collector", "minari_pipe.recording.vector_rows"]


@examples(60 if FULL else 20)
@given(st.integers(1, 4000), st.booleans())
def test_ctrl_c_at_any_line_costs_no_more_than_the_episodes_in_the_making(line, short) -> None:
    before = minari_pipe.recording.recorder.BLOCK_BYTES
    minari_pipe.recording.recorder.BLOCK_BYTES = 512
    lengths = (6, 9) if short else (40, 70)
    envs = [partial(Long, index, length) for index, length in enumerate(lengths)]
    collector = VectorDataCollector(
        SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP), record_infos=not short
    )
    collector.reset(seed=0)
    tracer, step = sys.gettrace(), 0
    with mock.patch.object(test_collector_long, "INTERRUPTED", [*INTERRUPTED, *INTERRUPTED_TOO]):
        try:
            sys.settrace(interrupted_at(line))
            while True:
                step_index(collector, step, step + 1)
                step += 1
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
            minari_pipe.recording.recorder.BLOCK_BYTES = before
    try:
        collector.reset(seed=99)
        step_index(collector, 0, 3)
        dataset = collector.create_dataset("aa/b-v0")
        for index, length in enumerate(lengths):
            found = [each for each in dataset if each.observations[0, 0] == index]
            assert found[-1].actions.tolist() == [0, 1, 2]
            done = np.concatenate([np.zeros(0, int), *(each.actions for each in found[:-1])])
            # what had ended before is whole; of the episode in the making, all or nothing more
            assert done.tolist() == list(range(len(done)))
            assert len(done) in (step // length * length, step, step + 1), (len(done), step)
            assert [len(each) for each in found[:-2]] == [length] * (len(found) - 2)
            for each in found:
                t = np.arange(len(each) + 1)
                assert each.observations[:, 1].tolist() == t.tolist()
                assert each.rewards.tolist() == (t[1:] / 4).tolist()
                assert (each.truncations | each.terminations).tolist() == [*(t[1:-1] < 0), True]
    finally:
        collector.close()
        with suppress(DatasetNotFoundError):
            delete_dataset("aa/b-v0")
