"""What a killed run leaves in DVC's files does not stop the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from minari_pipe.pipeline.run import dvc_run_cache
from minari_pipe.pipeline.run.dvc_repair import (
    mend,
    remove_broken_lock_file,
    remove_stale_rwlocks,
    remove_temporaries,
)
from tests.support.workspaces import make_workspace


@pytest.fixture
def workspace(tmp_path) -> Path:
    return make_workspace(tmp_path / "work")


WAIT = "import time; print(flush=True); time.sleep(60)"


@pytest.fixture(params=["dvc", "-"])
def python(request, workspace):
    """A Python process that could be a DVC, by its name or by where it works."""
    folder = workspace if request.param == "-" else "/"
    yield from running(sys.executable, "-c", WAIT, request.param, folder=folder)


@pytest.fixture
def idle():
    """A Python process that is no DVC."""
    yield from running(sys.executable, "-c", WAIT, folder="/")


@pytest.fixture
def stranger():
    """A process that is no DVC."""
    yield from running("/bin/sh", "-c", "echo; exec sleep 60")


def running(*argv: str, folder: Path | str = "."):
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=folder)
    assert process.stdout is not None
    process.stdout.readline()  # it has become what it is
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def zombie():
    process = subprocess.Popen([sys.executable, "-c", ""])
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    yield process
    process.wait()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def rwlock(workspace: Path) -> Path:
    return workspace / ".dvc" / "tmp" / "rwlock"


def write_rwlock(workspace: Path, *pids: int) -> None:
    entries = [{"pid": pid, "cmd": f"dvc {pid}"} for pid in pids]
    locks = {
        "write": {f"/out{e['pid']}": e for e in entries},
        "read": {"/dep": entries},
    }
    rwlock(workspace).write_text(json.dumps(locks))


def holders(workspace: Path) -> set[int]:
    locks = json.loads(rwlock(workspace).read_text())
    found = {i["pid"] for i in locks.get("write", {}).values()}
    assert found == {i["pid"] for infos in locks.get("read", {}).values() for i in infos}
    return found


def test_a_running_dvc_keeps_its_locks(workspace, python):
    write_rwlock(workspace, python.pid)
    before = rwlock(workspace).read_bytes()
    remove_stale_rwlocks(workspace)
    assert rwlock(workspace).read_bytes() == before


def test_locks_of_the_dead_the_unreaped_and_namesakes_go(workspace, python, zombie, stranger):
    write_rwlock(workspace, python.pid, zombie.pid, stranger.pid, dead_pid(), os.getpid())
    remove_stale_rwlocks(workspace)
    assert holders(workspace) == {python.pid}


def test_a_process_younger_than_the_lock_is_a_namesake(workspace, python):
    write_rwlock(workspace, python.pid)
    os.utime(rwlock(workspace), (time.time() - 3600, time.time() - 3600))
    remove_stale_rwlocks(workspace)
    assert holders(workspace) == set()


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 10**24])
def test_what_can_be_no_pid_holds_nothing(pid, workspace):
    write_rwlock(workspace, pid)
    remove_stale_rwlocks(workspace)
    assert holders(workspace) == set()
    temporary = workspace / "catalog" / f".x.{pid}.tmp"
    temporary.parent.mkdir()
    temporary.touch()
    remove_temporaries("x", workspace)
    assert not temporary.exists()


def test_only_a_file_that_is_being_written_stays(workspace, python, zombie):
    """A stage that ended with its driver may be a zombie while the next run looks."""
    folder = workspace / "pipelines" / "x"
    folder.mkdir(parents=True)
    ended = (zombie.pid, dead_pid(), os.getpid())
    old = folder / f".old.json.{python.pid}.tmp"  # of another process, whose pid was given anew
    written = folder / f".new.json.{python.pid}.tmp"
    for path in (*(folder / f".new.json.{pid}.tmp" for pid in ended), old, written):
        path.touch()
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    remove_temporaries("x", workspace)
    assert [*folder.iterdir()] == [written]


def test_a_program_in_python_that_works_elsewhere_is_no_dvc(workspace, idle):
    write_rwlock(workspace, idle.pid)
    remove_stale_rwlocks(workspace)
    assert holders(workspace) == set()


BROKEN = {
    "empty": "",
    "cut": '{"write": {"/out": {"pid": 12',
    "a list": "[]",
    "a number": "7",
    "deep": "[" * 100_000,
    "null": "null",
    "an entry without pid": '{"write": {"/out": {"cmd": "dvc"}}}',
    "a pid that is a text": '{"write": {"/out": {"pid": "12", "cmd": "dvc"}}}',
    "a key of its own": '{"writes": {}}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_path_lock_file_that_dvc_cannot_read_goes(text, workspace):
    rwlock(workspace).write_text(text)
    remove_stale_rwlocks(workspace)
    assert not rwlock(workspace).exists()


def test_a_workspace_without_path_locks_is_left_alone(workspace):
    remove_stale_rwlocks(workspace)
    assert not rwlock(workspace).exists()


LOCK = """\
schema: '2.0'
stages:
  collect:
    cmd: python -m minari_pipe.pipeline.stages.collect x
    params:
      pipelines/x/params.yaml:
        env: {on: 1}
    outs:
    - path: pipelines/x/episodes
      hash: md5
      md5: cf99800fba343f4908e57cbd46573d04.dir
      size: 641743
      nfiles: 9
"""


def write_lock(workspace: Path, text: str) -> Path:
    path = workspace / "pipelines" / "x" / "dvc.lock"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("n", [0, 1, 8, 30, LOCK.index("cf99") + 2])
def test_a_lock_file_that_was_cut_goes(n, workspace):
    path = write_lock(workspace, LOCK[:n])
    remove_broken_lock_file("x", workspace)
    assert not path.exists()


BOMB = "    " + "\n    ".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}' if n else '0'] * 10)}]" for n in range(12)
)


@pytest.mark.parametrize("more", [BOMB, "    x: " + "[" * 50_000], ids=["aliases", "deep"])
def test_a_lock_file_that_nothing_generates_goes(more, workspace):
    path = write_lock(workspace, f"{LOCK}{more}\n")
    remove_broken_lock_file("x", workspace)
    assert not path.exists()


CONFLICT = "<<<<<<< ours\n" + LOCK + "=======\n" + LOCK + ">>>>>>> theirs\n"


@pytest.mark.parametrize("text", [LOCK, LOCK.replace("x/ep", "on/ep"), CONFLICT])
def test_a_whole_lock_file_and_a_merge_conflict_stay(text, workspace):
    path = write_lock(workspace, text)
    remove_broken_lock_file("x", workspace)
    assert path.read_text() == text


def test_temporaries_of_the_dead_go_and_those_of_the_living_stay(workspace, python):
    write_lock(workspace, LOCK)
    folder, catalog = workspace / "pipelines" / "x", workspace / "catalog" / "tests"
    catalog.mkdir(parents=True)
    gone = [
        folder / f".params.yaml.{dead_pid()}.tmp",
        folder / ".Xk3_9wQe2Lr-aaaaaaaaaa.tmp",
        catalog / f".x-v0.json.{dead_pid()}.tmp",
    ]
    kept = [folder / f".params.yaml.{python.pid}.tmp", folder / "params.yaml", folder / "a.tmp"]
    for path in gone + kept:
        path.touch()
    mend("x", workspace)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)


def test_empty_folders_and_half_written_entries_of_the_run_cache_go(tmp_path):
    from dvc.lock import Lock

    full, empty, half = (tmp_path / "runs" / name / f"{name}c" for name in ("ab", "cd", "ef"))
    for folder in (full, empty, half):
        folder.mkdir(parents=True)
    (full / "entry").touch()
    (full / ".sBQc4rSlRb3_-w.tmp").write_text("cmd: python -m minari_pipe")
    (half / ".sBQc4rSlRb3_-w.tmp").write_text("cmd: python -m minari_pipe")
    stage_cache = SimpleNamespace(cache_dir=str(tmp_path / "runs"))
    repo = SimpleNamespace(stage_cache=stage_cache, lock=Lock(str(tmp_path / "lock")))
    dvc_run_cache.remove_broken(repo)
    assert [path.name for path in full.iterdir()] == ["entry"]
    assert not empty.exists()
    assert not half.exists()
