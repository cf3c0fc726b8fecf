"""Processes that append are killed at any moment; readers meanwhile see whole datasets only."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import minari
import pytest

from minari_pipe import load_dataset
from minari_pipe.storage.hdf5 import storage
from tests.conftest import FULL
from tests.support.appends import ID, append, check, check_by_h5py, check_episode, created

N_READERS, N_KILLS = (50, 300) if FULL else (6, 15)

pytestmark = pytest.mark.filterwarnings("ignore")


def read_here(place: Path, rng: random.Random) -> int:
    dataset = load_dataset(ID, verify=rng.random() < 0.3)
    for number in rng.sample(range(dataset.total_episodes), 3):
        check_episode(number, dataset[number])
    return dataset.total_episodes


def read_by_minari(place: Path, rng: random.Random) -> int:
    dataset = minari.load_dataset(ID)
    for number in rng.sample(range(dataset.total_episodes), 3):
        check_episode(number, dataset[number])
    return dataset.total_episodes


def read_by_h5py(place: Path, rng: random.Random) -> int:
    return check_by_h5py(place / "data/main_data.hdf5", set(range(10**6)))


READERS: dict[str, list[Callable[[Path, random.Random], int]]] = {
    "hdf5": [read_here, read_by_minari, read_by_h5py],
    "arrow": [read_here, read_by_minari],
}


def child(work: Callable[[], None]) -> int:
    """Run something in a fork of this process, which has imported everything."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return process


@pytest.mark.parametrize("data_format", READERS)
def test_readers_see_whole_datasets_while_processes_that_append_are_killed(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_LARGE", 0)
    place = created(8, data_format=data_format)
    stop = tmp_path / "stop"

    def reading(which: int) -> None:
        rng = random.Random(which)
        reads = READERS[data_format]
        read, seen = reads[which % len(reads)], 0
        while not stop.exists():
            found = read(place, rng)
            assert found >= seen, f"{read.__name__} saw {seen} episodes, then {found}"
            seen = found

    def appending() -> None:
        while True:
            append(1 + os.getpid() % 3)

    readers = [child(lambda which=which: reading(which)) for which in range(N_READERS)]
    try:
        rng = random.Random(0)
        for _ in range(N_KILLS):
            process = child(appending)
            time.sleep(rng.uniform(0.05, 0.3))
            os.kill(process, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    finally:
        stop.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) for reader in readers]
    assert codes == [0] * N_READERS
    check(set(range(8, 10**6)))
    append(1)
    assert load_dataset(ID, verify=True).total_episodes > 8
