"""DVC's run cache: what each stage wrote for given dependencies and parameters.

It is kept in the workspace, wherever the files themselves are cached: an entry is believed, not
checked, and one that a stranger's workspace wrote would replace the results of all others.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.core.files.links import refuse_link
from minari_pipe.core.git import refuse_tracked_links

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage.cache import StageCache


#: Path of an entry: the hashes of what a stage reads, and of what it wrote.
_ENTRY = re.compile("[0-9a-f]{2}/[0-9a-f]{64}/[0-9a-f]{64}")


@functools.cache
def guard() -> None:
    """Patch DVC so that a run cache serves its own workspace alone, and only what a stage declares.

    DVC keeps it beside the cached files, which workspaces may share. It checks out any path that an
    entry names, even a folder behind a link of the workspace, and looks for no links on the way to
    an entry. It hashes the dependencies again when the outputs are in place, which would hide an
    edit in between.
    """
    from dvc.stage.cache import StageCache

    unchecked, load, folder_of = StageCache.restore, StageCache._load, StageCache._get_cache_dir

    def init(self: StageCache, repo: Repo) -> None:
        self.repo = repo
        self.cache_dir = os.path.join(repo.root_dir, ".dvc", "cache", "runs")

    def restore(self: StageCache, stage: Any, *args: Any, dry: bool = False, **kwargs: Any) -> None:
        unchecked(self, stage, *args, dry=dry, **kwargs)
        for dep in () if dry else stage.deps:
            dep.save = lambda: None  # keeps the hash by which the outputs were found

    def checked(self: StageCache, stage: Any) -> Any:
        entry = load(self, stage)
        if entry is None:
            return None
        outs = entry.get("outs", [])
        is_own = {out["path"] for out in outs} == {out.def_path for out in stage.outs}
        return entry if is_own and not any(out.get("isexec") for out in outs) else None

    def checked_folder(self: StageCache, key: str) -> str:
        folder: str = folder_of(self, key)
        refuse_tracked_links(folder)
        return folder

    StageCache.__init__, StageCache.restore = init, restore
    StageCache._load, StageCache._get_cache_dir = checked, checked_folder


def entries(repo: Repo) -> list[Path]:
    """Return the paths of a workspace's entries, and of half-written ones.

    Raises:
        LinkError: the run cache is reached by a link of a git repository, or holds a link.
    """
    return [path for folder in _folders(repo) for path in folder.iterdir()]


def _folders(repo: Repo) -> list[Path]:
    """Return the folders of entries, one for each state of what a stage reads."""
    runs = Path(repo.stage_cache.cache_dir)
    refuse_tracked_links(runs)
    for place in (*runs.glob("*"), *(folders := list(runs.glob("*/*")))):
        if place.is_symlink():
            refuse_link(os.fspath(place))
    return folders


def remove_broken(repo: Repo) -> None:
    """Remove what a kill left and DVC cannot handle.

    These are half-written entries, which DVC takes for complete ones, and empty folders.
    """
    folders = _folders(repo)
    halves = [path for folder in folders for path in folder.glob(".*.tmp")]
    empty = [folder for folder in folders if not any(folder.iterdir())]
    if not (halves or empty):
        return
    with repo.lock:
        for path in halves:
            with suppress(OSError):  # renamed in the meantime
                # Another run in this workspace may be writing a young file. It renames the file
                # before it is a second old.
                time.sleep(max(0.0, min(1.0, path.stat().st_mtime + 1 - time.time())))
                path.unlink()
        for folder in {*empty, *(path.parent for path in halves)}:
            with suppress(OSError):  # filled in the meantime, or not empty
                folder.rmdir()


def pull(repo: Repo) -> None:
    """Pull the entries of the default remote into the workspace.

    DVC would copy any file that lies among them, even settings of git.
    """
    from dvc.stage.cache import RunCacheNotSupported
    from dvc_data.hashfile.db.local import LocalHashFileDB

    remote = repo.cloud.get_remote_odb(None, "fetch --run-cache", hash_name="md5-dos2unix")
    files, runs = remote.fs, remote.fs.join(remote.path, "runs")
    find = files.find

    def find_entries(path: str, *args: Any, **kwargs: Any) -> Iterator[str]:
        for name in find(path, *args, **kwargs):
            if path != runs or _ENTRY.fullmatch(files.as_posix(files.relpath(name, runs))):
                yield name

    files.find = find_entries
    here = LocalHashFileDB(repo.cache.legacy.fs, os.path.dirname(repo.stage_cache.cache_dir))
    with suppress(RunCacheNotSupported):  # e.g. over HTTP
        repo.stage_cache.transfer(remote, here)
