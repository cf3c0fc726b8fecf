"""What a killed run leaves in DVC's files, and how the next run gets past it.

DVC writes ``.dvc/tmp/rwlock`` and ``dvc.lock`` in place, so a kill at the wrong moment cuts them
short; and it waits for ever for locks of processes that only look alive. The driver mends both
before it lets DVC run, while it holds its own lock on the pipeline.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from minari_pipe.pipeline.execution.inputs import recorded_otherwise
from minari_pipe.pipeline.execution.stage import reports_folder
from minari_pipe.pipeline.workspace import read_json, write_atomic

if TYPE_CHECKING:
    from dvc.repo import Repo


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10 times as fast as DVC's


def mend(name: str, root: Path, *, wait: bool = True) -> None:
    """Mend what a killed run of pipeline ``name`` left in DVC's files.

    Args:
        name: of the pipeline, on which the caller holds the driver's lock.
        root: the workspace.
        wait: for another DVC that writes ``rwlock`` right now.
    """
    remove_stale_rwlocks(root, wait=wait)
    remove_broken_lock_file(name, root, wait=wait)
    remove_temporaries(name, root, wait=wait)


def remove_stale_rwlocks(root: Path, *, wait: bool = True) -> None:
    """Remove DVC's path locks whose process is gone, a zombie, or not DVC any more.

    DVC drops entries of pids that do not exist; it waits for ever for a killed driver that nobody
    reaped, and for an unrelated process that was given the same pid.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.is_file():
        return
    from dvc.lock import make_lock  # costs 0.2 s; only a driver that goes on to DVC comes here

    with make_lock(f"{path}.lock", tmp_dir=str(path.parent), wait=wait):
        try:
            written = path.stat().st_mtime
            locks = _checked(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except ValueError:  # cut short by a kill; nobody can hold what cannot be read
            path.unlink()
            return
        kept = {
            "write": {p: i for p, i in locks["write"].items() if _holds(i, written, root)},
            "read": {
                p: left
                for p, infos in locks["read"].items()
                if (left := [i for i in infos if _holds(i, written, root)])
            },
        }
        if kept != locks:
            write_atomic(path, json.dumps({k: v for k, v in kept.items() if v}))


def _checked(found: Any) -> dict[str, dict[str, Any]]:
    """The content of ``rwlock`` with both its keys.

    Raises:
        ValueError: it is not what DVC writes, so DVC would refuse it.
    """
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        locks: dict[str, dict[str, Any]] = SCHEMA(found)
    except Invalid as exc:
        raise ValueError(str(exc)) from exc
    return locks


def _holds(entry: dict[str, Any], written: float, root: Path) -> bool:
    """Whether the process of an entry may still hold it.

    Args:
        entry: ``{"pid": ..., "cmd": ...}``, which a stranger may have committed.
        written: when the file was last written, in seconds since the epoch.
        root: the workspace.
    """
    pid = int(entry["pid"])
    if pid == os.getpid():  # this process holds nothing now: the entry is of an earlier namesake
        return False
    if not _is_pid(pid):
        return False
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written + 1:
            return False
        # Another DVC may have rewritten the file since the pid was given to someone else.
        return _may_be_dvc(process, root)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _may_be_dvc(process: psutil.Process, root: Path) -> bool:
    """Whether a process is DVC, this program, or another one in Python that works in ``root``."""
    own = ("dvc", "minari")
    # A process of another user tells its name, but not which file it runs.
    if not any(word in process.name() for word in (*own, "python", "pypy")):
        return False
    if any(word in part for part in process.cmdline() for word in own):
        return True
    return Path(process.cwd()).is_relative_to(root.resolve())


def _is_pid(number: int) -> bool:
    """Whether a system could give this number to a process; psutil fails over others."""
    return 0 < number < 2**31


def remove_broken_lock_file(name: str, root: Path, *, wait: bool = True) -> None:
    """Remove a ``dvc.lock`` that a kill cut short, which DVC refuses to read.

    The stages it recorded are restored from DVC's run cache, without running. A file with the
    marks of a merge conflict is the user's to resolve, and stays.
    """
    path = root / "pipelines" / name / "dvc.lock"
    if not _is_broken(path):
        return
    with _dvc_lock(root, wait=wait):
        if _is_broken(path):
            path.unlink()


@contextmanager
def _dvc_lock(root: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of DVC, which whoever writes its files holds: what looked broken may not be."""
    from dvc.lock import make_lock

    folder = root / ".dvc" / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    with make_lock(str(folder / "lock"), tmp_dir=str(folder), wait=wait):
        yield


def remove_broken_run_caches(repo: Repo) -> None:
    """Remove what a kill left in DVC's run cache, over which DVC stumbles.

    These are half-written entries, which it takes for whole ones, and empty folders.
    """
    folders = list(Path(repo.stage_cache.cache_dir).glob("*/*"))
    halves = [path for folder in folders for path in folder.glob(".*.tmp")]
    empty = [folder for folder in folders if not any(folder.iterdir())]
    if not (halves or empty):
        return
    with repo.lock:
        for path in halves:
            with suppress(OSError):  # it has its name meanwhile
                # A young one may not be of the dead: a run in another workspace with the same
                # cache may be writing it, and has given it its name before it is a second old.
                time.sleep(max(0.0, min(1.0, path.stat().st_mtime + 1 - time.time())))
                path.unlink()
        for folder in {*empty, *(path.parent for path in halves)}:
            with suppress(OSError):  # filled meanwhile, or not empty
                folder.rmdir()


def remove_wrong_entries(name: str, root: Path) -> tuple[str, str] | None:
    """Remove the stages from ``dvc.lock`` that used something else than DVC recorded.

    DVC hashes dependencies once a stage has ended, and a file may be edited in between. The run
    cache would restore the same, so its entries go, too.

    Returns:
        What changed, and the name of the first such stage; ``None`` if there is none.
    """
    path, folder = root / "pipelines" / name / "dvc.lock", reports_folder(name, root)
    reports = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    shutil.rmtree(folder, ignore_errors=True)
    if not reports or not path.is_file():
        return None
    try:
        lock = yaml.load(path.read_bytes(), Loader=_LOADER)
        wrong = recorded_otherwise(reports, lock["stages"], root)
    except (yaml.YAMLError, TypeError, KeyError):  # the disk was full: the next run mends it
        return None
    if not wrong:
        return None
    from dvc.repo import Repo

    with _dvc_lock(root, wait=True):
        entries = [lock["stages"].pop(stage) for stage in wrong]
        for cached in Path(Repo(str(root)).stage_cache.cache_dir).glob("*/*/*"):
            if yaml.load(cached.read_bytes(), Loader=_LOADER) in entries:
                cached.unlink()
        write_atomic(path, yaml.safe_dump(lock, sort_keys=False))
    stage, what = next(iter(wrong.items()))
    return what, stage


def remove_temporaries(name: str, root: Path, *, wait: bool = True) -> None:
    """Remove half-written files from the folders that git tracks and people look into.

    They are ours (``.NAME.PID.tmp``) or DVC's (``.TOKEN.tmp``).
    """
    found = [
        *(root / "pipelines" / name).glob(".*.tmp"),
        *(root / "catalog").rglob(".*.tmp"),
    ]
    dead = [path for path in found if not _is_being_written(path)]
    if dead:
        with _dvc_lock(root, wait=wait):
            for path in dead:
                path.unlink(missing_ok=True)


def _is_being_written(path: Path) -> bool:
    """Whether the process that a temporary name ends with still runs."""
    text = path.name.split(".")[-2]
    pid = int(text) if text.isdecimal() else 0
    return _is_pid(pid) and pid != os.getpid() and psutil.pid_exists(pid)


def _is_broken(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    if "\n<<<<<<< " in f"\n{text}":
        return False
    if _is_lock_file(lambda: yaml.load(text, Loader=_LOADER)):
        return False
    from dvc.utils.serialize import parse_yaml

    return not _is_lock_file(lambda: parse_yaml(text, str(path)))


def _is_lock_file(parse: Callable[[], Any]) -> bool:
    from dvc.exceptions import DvcException
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(parse())
    except (yaml.YAMLError, DvcException, Invalid):
        return False
    return True
