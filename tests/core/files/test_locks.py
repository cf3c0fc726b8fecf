"""What a process holds ends with it, and neither its children nor its leftovers hold up others."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minari_pipe.core.files import locks
from minari_pipe.core.files.locks import common_folder, exclusive, hidden_folder

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    # other tests may have left threads, which the children here do not use
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


def fork(run: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        run()
        os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_child_that_outlives_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        child = fork(lambda: time.sleep(60))
        with pytest.raises(BlockingIOError), exclusive(tmp_path, wait=False):
            pass
    with exclusive(tmp_path, wait=False):
        end(child)


def test_a_child_does_not_hold_the_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    read, write = os.pipe()

    def live() -> None:  # the child has begun, and has let go by then
        os.write(write, os.getpid().to_bytes(8, "big"))
        time.sleep(60)  # until it is killed, below

    def die() -> None:
        with exclusive(tmp_path):
            fork(live)
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(die), 0)
    child = int.from_bytes(os.read(read, 8), "big")
    try:
        with exclusive(tmp_path, wait=False):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_that_leaves_the_block_does_not_unlock_its_parent(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            with pytest.raises(BlockingIOError), exclusive(tmp_path, wait=False):
                pass
    if not child:
        os._exit(0)


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    def die() -> None:
        with hidden_folder(tmp_path) as hidden:
            (hidden / "data").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(die), 0)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".new-")
    (tmp_path / ".new-mine").mkdir()
    with hidden_folder(tmp_path) as first:
        assert not left.exists()
        with hidden_folder(tmp_path) as second:
            assert first.is_dir()
            second.rename(tmp_path / "kept")
    assert sorted(os.listdir(tmp_path)) == [".new-mine", "kept"]


def test_what_another_host_makes_in_a_shared_root_is_left_alone(tmp_path: Path) -> None:
    """Whose lock may hold there only, as on NFS."""
    folder = tmp_path / ".new-00000000-0123456789abcdef"
    folder.mkdir()
    with hidden_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_system_without_locks_is_written_and_nothing_is_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with hidden_folder(tmp_path) as first, hidden_folder(tmp_path) as second:
        assert first.exists()
        assert second.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_common_folder_is_given_to_one_at_a_time_also_while_others_remove_it(tmp_path) -> None:
    inside: list[str] = []
    errors: list[BaseException] = []

    def use(name: str) -> None:
        try:
            for _ in range(200):
                with common_folder(tmp_path, "shared") as folder:
                    inside.append(name)
                    assert inside == [name] and folder.is_dir()
                    inside.remove(name)
                    shutil.rmtree(folder)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_what_is_no_folder_cannot_be_a_common_one(tmp_path) -> None:
    (tmp_path / ".shared").write_text("")
    with pytest.raises(FileExistsError), common_folder(tmp_path, "shared"):
        pass
