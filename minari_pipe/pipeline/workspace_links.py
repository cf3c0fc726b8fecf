"""No link of a workspace is followed, but DVC's own where the user's settings ask for them."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.files.links import (
    allow_links_into,
    entries_below,
    read_below,
    refuse_link,
    refuse_links,
)
from minari_pipe.errors import LinkError, MinariPipeError, TrustError
from minari_pipe.pipeline.workspace import STATE, find_root, write_atomic

_OWN = (
    *("conf", "pipelines", "datasets", "catalog", "releases", STATE, ".dvc"),
    *("dvc.yaml", "dvc.lock", ".gitignore", ".gitattributes", ".gitmodules", ".dvcignore"),
    "MUJOCO_LOG.TXT",  # to which MuJoCo appends in the current folder
)

_MAY_HOLD_DVC_LINKS = ("pipelines", "datasets")
"""Where DVC may have put links to files of its cache, if the user's own settings ask for them."""

_IN_PLACE = (
    *("dvc.lock", ".gitignore", "pipelines/*/dvc.lock", "pipelines/*/.gitignore"),
    *(".dvc/*", ".dvc/tmp/*"),
)
"""Files that DVC writes without making a new one; those of ``datasets`` are found by a walk."""


def inside(root: Path, path: Path) -> Path:
    """``path``, once it is proven that no link is on the way there from ``root``.

    Raises:
        LinkError: names the link.
    """
    _checked(lambda: refuse_links(path, root), root)
    return path


def open_root(start: Path | None = None) -> Path:
    """The workspace, see :func:`find_root`, once :func:`check_links` has passed it."""
    root = find_root(start)
    check_links(root)
    return root


def check_links(root: Path) -> None:
    """Refuse links in all that this program, or DVC at its word, reads, writes or removes.

    git brings them along: a workspace may come from a stranger.

    Raises:
        LinkError: names the link.
        TrustError: there is a pipe or a device, which would be waited for.
    """
    check_cache(root)
    _refuse_bare_repository(root)
    _checked(lambda: _check_place(root / ".git", root), root)  # git writes to it at DVC's word
    for name in _OWN:
        check_folder(root / name, root)


def _refuse_bare_repository(root: Path) -> None:
    """Refuse folders that DVC takes for a repository of git, as a clone can bring them.

    Their ``config`` could name commands and files. The rules are those of dulwich, DVC's own git.
    """
    for folder in (root.resolve(), *root.resolve().parents):
        git = folder / ".git"
        if git.is_file() or (git / "objects").is_dir():
            _refuse_includes(folder / ".gitmodules", folder)
            return
        if (folder / "objects").is_dir() and (folder / "refs").is_dir():
            raise TrustError(
                f"{folder} has folders objects and refs, by which git takes it for a repository "
                f"without files, whose settings could name commands; rename them"
            )


def _refuse_includes(settings: Path, folder: Path) -> None:
    """Refuse settings that name a file, a line of which dulwich would show; git reads none."""
    refuse_links(settings, folder)
    with suppress(FileNotFoundError, NotADirectoryError):
        if re.search(rb"\[\s*include", read_below(settings, folder), re.IGNORECASE):
            raise TrustError(
                f"{settings} includes another file, which a clone must not have read; remove the "
                f"section [include]"
            )


def check_cache(root: Path) -> None:
    """Refuse a DVC cache of the workspace that is a link.

    Raises:
        LinkError: names the link, and how to have a cache elsewhere.
    """
    try:
        refuse_links(root / ".dvc" / "cache", root)
    except LinkError as error:
        raise LinkError(
            f"{error}; to have DVC's cache elsewhere, run: dvc config --global cache.dir FOLDER"
        ) from None


def check_folder(folder: Path, root: Path) -> None:
    """The same of one folder, or file, of the workspace."""
    _checked(lambda: _check_folder(folder, root), root)


def _check_folder(folder: Path, root: Path) -> None:
    _check_place(folder, root)
    for entry in entries_below(folder, lambda entry: _is_others(entry, root)):
        if entry.is_symlink():
            _check_dvc_link(entry.path, root)
        if not (entry.is_file() or entry.is_dir()):
            raise TrustError(f"{entry.path} is no file; remove it")


def _check_place(path: Path, root: Path) -> None:
    refuse_links(path, root)
    if path.is_symlink():
        _check_dvc_link(os.fspath(path), root)
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise TrustError(f"{path} is no file; remove it")


def _check_dvc_link(link: str, root: Path) -> None:
    """Refuse a link to a file of DVC's cache in place of a file that is written, not only read."""
    path = Path(link).relative_to(root)
    if path.parts[0] not in _MAY_HOLD_DVC_LINKS or any(map(path.match, _IN_PLACE)):
        refuse_link(link)


def _checked(check: Callable[[], None], root: Path) -> None:
    """Run a check for links, and again once DVC's own are allowed, if the user asks for those."""
    try:
        check()
    except LinkError:
        if not follow_own_cache(root):
            raise
        check()


def _is_others(entry: os.DirEntry[str], root: Path) -> bool:
    """Whether the content is that of environments, or of DVC's experiments, and never used."""
    if entry.name not in ("tmp", "exps") or not entry.is_dir(follow_symlinks=False):
        return False
    match Path(entry.path).relative_to(root).parts:
        case (".dvc", "tmp", "exps"):
            return True
        case (top, "work", _, stage, "tmp"):
            return top == STATE and stage.endswith(".new")
    return False


def part_hard_links(root: Path) -> None:
    """Give files that DVC writes in place no other name, which may lie outside of the workspace.

    An archive can bring such names. git makes none, and DVC only those of its locks, if
    ``core.hardlink_lock`` asks for them, beside one another.
    """
    found = [path for pattern in _IN_PLACE for path in root.glob(pattern)]
    for folder, _, files in os.walk(root / "datasets"):
        if ".gitignore" in files:
            found.append(Path(folder, ".gitignore"))
    linked: dict[Path, os.stat_result] = {}
    for path in found:
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                linked[path] = status
    names = Counter((status.st_dev, status.st_ino) for status in linked.values())
    for path, status in linked.items():
        if status.st_nlink > names[status.st_dev, status.st_ino]:
            write_atomic(path, path.read_bytes())


def follow_own_cache(root: Path) -> bool:
    """Follow links into DVC's cache if the user's own settings ask for them; whether that is new.

    Args:
        root: the workspace, in which the cache lies by default.
    """
    from dvc.config import Config  # which takes 0.2 s
    from dvc.exceptions import DvcException

    try:
        cache = Config()["cache"]  # of the system and the user, as no folder is named
    except DvcException as exc:
        raise MinariPipeError(f"DVC: {exc}") from exc
    if "symlink" not in cache_types(cache):
        return False
    if "dir" not in cache:
        check_cache(root)
    return allow_links_into(cache.get("dir", root / ".dvc" / "cache"))


def cache_types(cache: dict[str, Any]) -> list[str]:
    """The kinds of links in a section ``cache``, which DVC takes as a text or as a list."""
    told = cache.get("type") or []
    return [kind.strip() for kind in (told.split(",") if isinstance(told, str) else told)]
