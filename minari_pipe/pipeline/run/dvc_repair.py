"""Repair the files of DVC that a killed run left damaged or locked.

DVC writes ``.dvc/tmp/rwlock`` and ``dvc.lock`` in place, so a kill at the wrong moment truncates
them. It also waits forever for locks of processes that only seem alive. The driver repairs both
before it runs DVC, while it holds its own lock on the pipeline.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from minari_pipe.core.json_object import json_object
from minari_pipe.pipeline.execution.inputs import recorded_otherwise
from minari_pipe.pipeline.execution.stage import reports_folder
from minari_pipe.pipeline.generated_yaml import generated, load_yaml
from minari_pipe.pipeline.run import dvc_run_cache
from minari_pipe.pipeline.workspace import read_json, write_atomic

if TYPE_CHECKING:
    pass


def mend(name: str, root: Path, *, wait: bool = True) -> None:
    """Repair the files of DVC that a killed run of pipeline ``name`` left.

    Args:
        name: name of the pipeline; the caller holds its driver lock.
        root: the workspace.
        wait: wait for another DVC process that is writing ``rwlock`` right now.
    """
    remove_stale_rwlocks(root, wait=wait)
    remove_broken_lock_file(name, root, wait=wait)
    remove_temporaries(name, root, wait=wait)


def remove_stale_rwlocks(root: Path, *, wait: bool = True) -> None:
    """Remove DVC's path locks whose process is gone, a zombie, or no longer DVC.

    DVC drops entries of pids that do not exist. It waits forever for a killed driver that was not
    reaped, and for an unrelated process that got the same pid.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.is_file():
        return
    from dvc.lock import make_lock  # takes 0.2 s; only a driver that runs DVC needs it

    with make_lock(f"{path}.lock", tmp_dir=str(path.parent), wait=wait):
        try:
            written = path.stat().st_mtime
            locks = _checked(json_object(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except ValueError:
            path.unlink()  # truncated by a kill; an unreadable lock holds nothing
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
    """Return the content of ``rwlock`` with both its keys.

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
    """Return whether the process of an entry may still hold the lock.

    Args:
        entry: ``{"pid": ..., "cmd": ...}``, which a stranger may have committed.
        written: when the file was last written, in seconds since the epoch.
        root: the workspace.
    """
    try:
        process = _running(int(entry["pid"]), written)
        # Another DVC may have rewritten the file after the pid was reused.
        return process is not None and _may_be_dvc(process, root)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _running(pid: int, written: float) -> psutil.Process | None:
    """Return the other process that wrote its pid into a file; ``None`` if it has ended.

    A zombie has ended, and a process that began after the file was ``written`` (in seconds since
    the epoch) was given the pid of one that has. So was this process, which has written none.
    """
    if pid == os.getpid() or not 0 < pid < 2**31:  # psutil raises on what no system assigns
        return None
    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written + 1
    except psutil.NoSuchProcess:
        return None
    return None if ended else process


def _may_be_dvc(process: psutil.Process, root: Path) -> bool:
    """Return whether a process is DVC, minari_pipe, or other Python code that works in ``root``."""
    own = ("dvc", "minari")
    # For another user's process, the calls below name() may raise AccessDenied.
    if not any(word in process.name() for word in (*own, "python", "pypy")):
        return False
    if any(word in part for part in process.cmdline() for word in own):
        return True
    return Path(process.cwd()).is_relative_to(root.resolve())


def remove_broken_lock_file(name: str, root: Path, *, wait: bool = True) -> None:
    """Remove a ``dvc.lock`` that a kill truncated, which DVC refuses to read.

    DVC restores the recorded stages from its run cache without running them. A file with merge
    conflict markers stays for the user to resolve.
    """
    path = root / "pipelines" / name / "dvc.lock"
    if not _is_broken(path):
        return
    with _dvc_lock(root, wait=wait):
        if _is_broken(path):
            path.unlink()


@contextmanager
def _dvc_lock(root: Path, *, wait: bool) -> Iterator[None]:
    """Hold DVC's lock, which all writers of its files hold; check for damage again inside."""
    from dvc.lock import make_lock

    folder = root / ".dvc" / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    with make_lock(str(folder / "lock"), tmp_dir=str(folder), wait=wait):
        yield


def remove_wrong_entries(name: str, root: Path) -> tuple[str, str] | None:
    """Remove the stages from ``dvc.lock`` whose recorded dependencies are not those they used.

    DVC hashes dependencies after a stage has ended, and a file may be edited in between. The run
    cache would restore the same wrong entries, so they are removed there, too.

    Returns:
        What changed, and the name of the first such stage; ``None`` if there is none.
    """
    path, folder = root / "pipelines" / name / "dvc.lock", reports_folder(name, root)
    reports = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    shutil.rmtree(folder, ignore_errors=True)
    if not reports or not path.is_file():
        return None
    try:
        lock = load_yaml(path.read_bytes())
        wrong = recorded_otherwise(reports, lock["stages"], root)
    except (yaml.YAMLError, TypeError, KeyError):  # the disk was full: the next run repairs it
        return None
    if not wrong:
        return None
    from dvc.repo import Repo

    with _dvc_lock(root, wait=True):
        entries = [lock["stages"].pop(stage) for stage in wrong]
        for cached in dvc_run_cache.entries(Repo(str(root))):
            with suppress(yaml.YAMLError):  # DVC removes a damaged one
                if load_yaml(cached.read_bytes()) in entries:
                    cached.unlink()
        write_atomic(path, yaml.safe_dump(lock, sort_keys=False))
    stage, what = next(iter(wrong.items()))
    return what, stage


def remove_temporaries(name: str, root: Path, *, wait: bool = True) -> None:
    """Remove half-written files from the folders that git tracks and users look into.

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
    """Return whether the process whose pid is in a temporary file's name still runs."""
    text = path.name.split(".")[-2]
    try:
        written = path.stat().st_mtime + 60  # by the clock of a file server, perhaps
        return text.isdecimal() and _running(int(text), written) is not None
    except (FileNotFoundError, psutil.AccessDenied):  # renamed in the meantime, or another user's
        return True


def _is_broken(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    if "\n<<<<<<< " in f"\n{text}":
        return False
    if _is_lock_file(lambda: load_yaml(text)):
        return False
    from dvc.utils.serialize import parse_yaml

    return not _is_lock_file(lambda: parse_yaml(generated(text), str(path)))


def _is_lock_file(parse: Callable[[], Any]) -> bool:
    from dvc.exceptions import DvcException
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(parse())
    except (yaml.YAMLError, DvcException, Invalid):
        return False
    return True
