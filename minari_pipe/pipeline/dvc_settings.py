"""DVC's settings in a workspace, which may come from a stranger, are checked before DVC starts.

DVC merges the settings of the system, of the user and of ``.dvc/config`` and ``.dvc/config.local``.
The last two lie in the workspace, so none of them may have DVC write outside of it, or make links
through which a change of a dataset would change its cache. Settings of the user may do both.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError, MinariPipeError, TrustError
from minari_pipe.files import NO_NAMES
from minari_pipe.pipeline.repository import tracked_files
from minari_pipe.pipeline.workspace_links import (
    cache_types,
    check_folder,
    check_links,
    follow_own_cache,
    part_hard_links,
)
from minari_pipe.trust import is_trusted_address

_LINKS = {"hardlink", "symlink"}
_CACHE_KEYS = {"dir", "type", "protected", "shared", "slow_link_warning", "verify"}
"""Others, such as ``local``, have DVC take a remote for its cache."""
_REMOTE_KEYS = {
    "connect_timeout",
    "jobs",
    "no_traverse",
    "read_timeout",
    "region",
    "timeout",
    "url",
    "verify",
}
"""Others name hosts that get the user's credentials, files that name commands, who may read, or
have files overwritten."""
_CORE_KEYS = {
    "analytics",
    "check_update",
    "checksum_jobs",
    "experiments",
    "interactive",
    "no_scm",
    "remote",
}
"""Others have DVC write elsewhere: into a folder, another repository, or what a lock names."""


def quiet_dvc() -> None:
    """Let DVC neither report nor log: what it has to say comes with its exceptions."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    for name in ("dvc", "dvc_data", "dvc_objects"):
        log = logging.getLogger(name)
        log.propagate = False
        log.setLevel(logging.CRITICAL)  # what it says of an error comes with the exception, once


def check_dvc(root: Path) -> None:
    """Refuse to start DVC in a workspace whose own settings lead it elsewhere.

    Raises:
        LinkError: DVC would write through a link, or read through one that it did not make.
        TrustError: a setting of the workspace has DVC write outside of it.
        ConfigError: a setting has DVC link files of the workspace to its cache.
        MinariPipeError: DVC cannot read its settings.
    """
    from dvc.config import Config
    from dvc.exceptions import DvcException

    check_links(root)
    _refuse_paths_out()
    _refuse_other_outputs()
    try:
        config = Config(str(root / ".dvc"))
        for level in Config.REPO_LEVELS:
            theirs = config.load_one(level)
            _check_type(theirs["cache"], config.files[level])
            remotes = theirs["remote"]
            if remotes and (
                level == "repo" or not _is_own(root)
            ):  # git is asked only where it decides
                _check_remotes(remotes, config.files[level], root)
            for key, told in _leads_out(theirs, root):
                if level == "repo" or not _is_own(root):
                    raise TrustError(
                        f"{config.files[level]}: {key} = {told} has DVC write outside of the "
                        f"workspace because a file of it says so; if you want that, run: "
                        f"dvc config --unset {key} && dvc config --global {key} {told}"
                    )
    except DvcException as exc:
        raise MinariPipeError(f"DVC: {exc}") from exc
    part_hard_links(root)
    follow_own_cache(root)  # before DVC makes the first link


@functools.cache
def _refuse_paths_out() -> None:
    """Let DVC read no list of a folder's files that leads out of the folder.

    It joins the names that stand in its cache, in a remote or in ``dvc.lock``, ``..`` among them.
    """
    from dvc_data.hashfile.tree import Tree

    unchecked = Tree.add

    def add(self: Tree, key: tuple[str, ...], meta: Any, oid: Any) -> None:
        names = [name for part in key for name in part.replace("\\", "/").split("/")]
        if not set(NO_NAMES).isdisjoint(names) or "\0" in "".join(key):
            raise TrustError(
                f"a list of the files of a folder, in DVC's cache or remote or in dvc.lock, names "
                f"{'/'.join(key)!r}, which may lie outside of it; nothing of that folder is made. "
                f"Remove the entry of the stage from dvc.lock, and the cache or remote that is not "
                f"yours"
            )
        unchecked(self, key, meta, oid)

    Tree.add = add  # type: ignore[method-assign]


@functools.cache
def _refuse_other_outputs() -> None:
    """Let DVC take from its run cache what the stage itself says that it makes, and no more.

    It checks out what an entry names, which may be a folder that a link of the workspace leads to.
    """
    from dvc.stage.cache import StageCache

    unchecked = StageCache._load

    def load(self: StageCache, stage: Any) -> Any:
        entry = unchecked(self, stage)
        if entry is None:
            return None
        outs = entry.get("outs", [])
        is_own = {out["path"] for out in outs} == {out.def_path for out in stage.outs}
        return entry if is_own and not any(out.get("isexec") for out in outs) else None

    StageCache._load = load


def _check_remotes(remotes: dict[str, dict[str, Any]], file: str, root: Path) -> None:
    """Refuse DVC remotes of which a file of the workspace says more than where they are."""
    for name, settings in remotes.items():
        for key in sorted(settings.keys() - _REMOTE_KEYS):
            value = str(settings[key])
            if key == "endpointurl" and is_trusted_address(value):
                continue
            raise TrustError(
                f"{file}: the remote {name!r} sets {key}, by which a file could have your "
                f"credentials sent or a command run; if you want that, run: "
                f"dvc remote modify --unset {name} {key} && "
                f"dvc remote modify --local {name} {key} {value}"
            )
        url = str(settings.get("url", ""))
        if "://" not in url and (place := _below(Path(url), root)) is not None:
            check_folder(place, root)


def _check_type(cache: dict[str, Any], file: str) -> None:
    if links := [kind for kind in cache_types(cache) if kind in _LINKS]:
        raise ConfigError(
            f"{file}: cache type {', '.join(links)} lets a write to a published file change "
            f"DVC's cache; run: dvc config cache.type reflink,copy"
        )


def _leads_out(settings: dict[str, Any], root: Path) -> Iterator[tuple[str, str]]:
    """Yield the keys, with their values, that have DVC write outside of the workspace."""
    core, cache = settings["core"], settings["cache"]
    for key in sorted(core.keys() - _CORE_KEYS):
        yield f"core.{key}", str(core[key])
    for key in sorted(cache.keys() - _CACHE_KEYS):
        yield f"cache.{key}", str(cache[key])
    place = cache.get("dir")
    if place is None or is_trusted_address(str(place)):
        return
    below = None if "://" in place else _below(Path(place), root)
    if below is None:
        yield "cache.dir", str(place)
    else:
        check_folder(below, root)


def _below(path: Path, root: Path) -> Path | None:
    """A path below the workspace, which the user may have reached by a link; else ``None``."""
    real = os.path.realpath(root)
    for folder in [*reversed(path.parents), path]:
        if os.path.realpath(folder) == real:
            rest = path.relative_to(folder)
            return None if os.pardir in rest.parts else root / rest
    return None


def _is_own(root: Path) -> bool:
    """Whether ``.dvc/config.local`` is the user's: no clone brings what git does not track.

    If git does not track ``.dvc/config`` either, an archive or a submodule may have brought both.
    """
    try:
        tracked = tracked_files(root)
    except ConfigError:  # no repository, or none that git trusts
        return False
    return ".dvc/config" in tracked and ".dvc/config.local" not in tracked
