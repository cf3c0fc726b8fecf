"""Test killed writers, readers during a write, and two writers at the same time."""

from __future__ import annotations

import os
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import ConfigError, DatasetNotFoundError
from minari_pipe.storage import MinariStorage
from minari_pipe.testing.base import ACTION, OBSERVATION, Contract, make, steps_of
from minari_pipe.testing.comparison import assert_same, assert_stored, state
from minari_pipe.testing.strategies import FULL, episode

#: Functions that change names in a file system; every change becomes visible in one of them.
_CALLS = ("replace", "rename", "link", "symlink", "mkdir", "unlink", "remove", "rmdir")
_KILLED = 77


def _whole() -> Any:
    return episode(OBSERVATION, ACTION, np.random.default_rng(8), 4)


def _continue(storage: MinariStorage) -> None:
    rest = replace(steps_of(_whole(), 2, 4, first=False), id=0, metadata={})
    storage.update_episodes([rest, *make(1, 1)])


CHANGES: dict[str, Callable[[MinariStorage], None]] = {
    "an append": lambda storage: storage.update_episodes(make(1, 2)),
    "a continuation": _continue,
    "metadata": lambda storage: storage.update_metadata({"description": "new"}),
    "metadata of episodes": lambda storage: storage.update_episode_metadata([{"x": 1}] * 2),
}


class ProcessesContract(Contract):
    """Tests that the disk holds one whole state at any time, while processes write, read or die."""

    @pytest.mark.usefixtures("other_processes")
    @pytest.mark.parametrize("name", CHANGES)
    def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(
        self, tmp_path: Path, name: str
    ) -> None:
        begun = tmp_path / "begun" / "data"
        head = steps_of(_whole(), 0, 2, first=True)
        self.new(begun).update_episodes([head, *make(count=1)])

        def begin(folder: str) -> Path:
            return Path(shutil.copytree(begun, tmp_path / folder / "data"))

        path = begin("undisturbed")
        old = _content(path)
        CHANGES[name](MinariStorage.read(path))
        new = _content(path)
        seen = []
        for call in range(0, 1000, 1 if FULL else 2):
            path = begin(str(call))
            ended = _wait(_fork(partial(_die_at, call, path, CHANGES[name])))
            found = _content(path)
            seen.append("old" if _same(found, old) else "new")
            assert_same(old if seen[-1] == "old" else new, found)
            MinariStorage.read(path).update_episodes(make(7, 1))
            after = MinariStorage.read(path)
            count = len(found["episodes"])
            assert after.total_episodes == count + 1
            assert_same(found["episodes"], list(after.get_episodes(range(count))))
            if ended == 0:
                break
            assert ended == _KILLED
        assert seen == sorted(seen, reverse=True), "a later kill found an earlier state"
        assert seen[0] == "old"
        assert seen[-1] == "new"

    @pytest.mark.usefixtures("in_files")
    def test_a_change_counts_though_its_files_cannot_be_moved_to_their_places(
        self, storage: MinariStorage, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_args: Any, **_folders: Any) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(os, "replace", fail)
            with pytest.warns(UserWarning, match="was changed, but the new files could not be"):
                storage.update_episodes(make(5, 2))
        assert_stored(MinariStorage.read(path), make(5, 2))
        storage.update_episodes(make(7, 1))
        assert_stored(MinariStorage.read(path), [*make(5, 2), *make(7, 1)])

    @pytest.mark.usefixtures("in_files")
    def test_a_dataset_that_somebody_deleted_cannot_be_changed(
        self, storage: MinariStorage, path: Path
    ) -> None:
        def meanwhile() -> Iterator[EpisodeBuffer]:
            shutil.rmtree(path)
            yield from make(1, 1)

        with pytest.raises(
            DatasetNotFoundError, match="doesn't exist any more; the dataset was deleted"
        ):
            storage.update_episodes(meanwhile())
        for change in (CHANGES["an append"], CHANGES["metadata"]):
            with pytest.raises(DatasetNotFoundError, match="doesn't exist any more"):
                change(storage)
        assert not path.exists()

    @pytest.mark.usefixtures("in_files")
    def test_a_change_inside_of_a_change_is_refused(self, storage: MinariStorage) -> None:
        def changing() -> Iterator[EpisodeBuffer]:
            for buffer in make(5, 2):
                assert storage.total_episodes == 0
                yield buffer
            storage.update_metadata({"description": "new"})

        with pytest.raises(ConfigError, match="is already being changed by this thread"):
            storage.update_episodes(changing())
        assert storage.total_episodes == 0
        storage.update_episodes(make(1, 1))

    @pytest.mark.usefixtures("other_processes")
    def test_a_reader_beside_a_writer_sees_whole_appends(
        self, storage: MinariStorage, path: Path
    ) -> None:
        batch = make(5, 2)

        def append() -> None:
            for _ in range(30):
                storage.update_episodes(batch)

        writer = _fork(append)
        totals = [0]
        while os.waitpid(writer, os.WNOHANG) == (0, 0):
            seen = MinariStorage.read(path)
            totals.append(seen.total_episodes)
            last = range(totals[-1])[-2:]
            for fields, buffer in zip(seen.get_episodes(last), batch, strict=bool(last)):
                assert_same(buffer.rewards, fields["rewards"])
                assert_same(buffer.observations, fields["observations"])
        assert all(total % 2 == 0 for total in totals)
        assert totals == sorted(totals)
        assert len(set(totals)) > 2
        assert_stored(storage, batch * 30)

    @pytest.mark.usefixtures("other_processes")
    def test_two_processes_append_after_each_other(self, storage: MinariStorage) -> None:
        def append() -> None:
            for _ in range(4):
                storage.update_episodes(make(5, 2))

        writers = [_fork(append) for _ in range(2)]
        assert [_wait(writer) for writer in writers] == [0, 0]
        assert_stored(storage, make(5, 2) * 8)

    @pytest.mark.usefixtures("other_processes")
    def test_kill_in_an_append_leaves_whole_appends(
        self, storage: MinariStorage, path: Path
    ) -> None:
        rng = np.random.default_rng(0)
        batch = make(5, 5)
        storage.update_episodes(batch)

        def append() -> None:
            warnings.simplefilter("ignore")  # warns if an earlier append was left unfinished
            while True:
                storage.update_episodes(batch)

        for _ in range(20 if FULL else 4):
            writer = _fork(append)
            time.sleep(rng.uniform(0.02, 0.15))
            os.kill(writer, 9)
            os.waitpid(writer, 0)
            again = MinariStorage.read(path)
            assert again.total_episodes % 5 == 0
            assert_stored(again, batch * (again.total_episodes // 5))


def _content(path: Path) -> dict[str, Any]:
    content = state(path)
    del content["files"]  # a kill may leave files that are never read
    return content


def _same(left: Any, right: Any) -> bool:
    try:
        assert_same(left, right)
    except AssertionError:
        return False
    return True


def _fork(run: Callable[[], None]) -> int:
    """Run a function in a child process; return its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child does not use threads that other tests left
        child = os.fork()
    if child:
        return child
    try:
        run()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _die_at(call: int, path: Path, change: Callable[[MinariStorage], None]) -> None:
    """Change a dataset, but exit like a killed process before file system call ``call``."""
    count = iter(range(1000))

    def dying(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(count) == call:
                os._exit(_KILLED)
            return original(*args, **kwargs)

        return run

    for name in _CALLS:
        setattr(os, name, dying(getattr(os, name)))
    change(MinariStorage.read(path))
