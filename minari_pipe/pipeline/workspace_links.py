"""Refuses symlinks in a workspace, except DVC's own if the user's settings enable them."""

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
    "MUJOCO_LOG.TXT",  # MuJoCo appends to it in the current folder
)

#: Where DVC may put links to files of its cache, if the user's own settings enable them.
_MAY_HOLD_DVC_LINKS = ("pipelines", "datasets")

#: Files that DVC rewrites in place; those below ``datasets`` are found by a directory walk.
_IN_PLACE = (
    *("dvc.lock", ".gitignore", "pipelines/*/dvc.lock", "pipelines/*/.gitignore"),
    *(".dvc/*", ".dvc/tmp/*"),
)


def inside(root: Path, path: Path) -> Path:
    """Return ``path`` after checking that nothing from ``root`` down to it is a symlink.

    Raises:
        LinkError: a component is a link; the message names it.
    """
    _checked(lambda: refuse_links(path, root), root)
    return path


def open_root(start: Path | None = None) -> Path:
    """Return the workspace (see :func:`find_root`) after :func:`check_links` accepted it."""
    root = find_root(start)
    check_links(root)
    return root


def clone_of(root: Path, otherwise: Path) -> str:
    """Return the outermost repository above a workspace, or another folder if there is none."""
    tops = (place for place in reversed(root.parents) if os.path.lexists(place / ".git"))
    return os.fspath(next(tops, otherwise))


def refuse_links_of_clone(path: str, clone: str) -> None:
    """Raise if a link of a clone lies on the way to ``path``; the user's links are fine.

    Raises:
        LinkError: names the link.
    """
    clone = os.path.realpath(clone)
    place, *parts = Path(path).parts
    for part in parts:
        folder, place = os.path.realpath(place), os.path.join(place, part)
        is_of_clone = os.path.commonpath([folder, clone]) == clone
        if is_of_clone and part != os.pardir and os.path.islink(place):
            refuse_link(place)


def check_named_folder(folder: str, root: Path) -> None:
    """Refuse links of a clone on the way to a folder that the user named, and below it.

    The user named the folder, not what a stranger put into it. Of a folder that holds the whole
    workspace, only what is directly in it is looked at.

    Args:
        folder: the folder; it need not exist.
        root: the workspace.

    Raises:
        LinkError: names the link.
    """
    clone = clone_of(root, root)
    refuse_links_of_clone(os.path.abspath(folder), clone)
    place = Path(os.path.realpath(folder))
    if not place.is_relative_to(os.path.realpath(clone)):
        return  # links there are the user's own
    holds_all = root.resolve().is_relative_to(place)
    entries = entries_below(place, lambda e: holds_all and e.is_dir(follow_symlinks=False))
    if link := next((entry for entry in entries if entry.is_symlink()), None):
        refuse_link(link.path)


def check_links(root: Path) -> None:
    """Refuse links in every place that this program, or DVC on its behalf, reads or changes.

    A git clone can contain symlinks, and the workspace may be untrusted.

    Raises:
        LinkError: there is a link; the message names it.
        TrustError: there is a pipe or a device, on which a read would block.
    """
    check_cache(root)
    _refuse_bare_repository(root)
    _checked(lambda: check_place(root / ".git", root), root)  # DVC makes git write to it
    for name in _OWN:
        check_folder(root / name, root)


def _refuse_bare_repository(root: Path) -> None:
    """Refuse folders that DVC would take for a bare git repository; a clone can contain them.

    Their ``config`` could name commands and files. The rules are those of dulwich, which DVC uses.
    """
    for folder in (root.resolve(), *root.resolve().parents):
        git = folder / ".git"
        if git.is_file() or (git / "objects").is_dir():
            _refuse_includes(folder / ".gitmodules", folder)
            return
        if (folder / "objects").is_dir() and (folder / "refs").is_dir():
            raise TrustError(
                f"{folder} has folders objects and refs, so git takes it for a bare repository, "
                f"whose settings could name commands; rename them"
            )


def _refuse_includes(settings: Path, folder: Path) -> None:
    """Refuse settings that include another file: dulwich, unlike git, would read it."""
    refuse_links(settings, folder)
    with suppress(FileNotFoundError, NotADirectoryError):
        if re.search(rb"\[\s*include", read_below(settings, folder), re.IGNORECASE):
            raise TrustError(
                f"{settings} includes another file, which is not allowed in a workspace; remove "
                f"the [include] section"
            )


def check_cache(root: Path) -> None:
    """Refuse a DVC cache in the workspace that is a symlink.

    Raises:
        LinkError: it is a link; the message says how to move the cache elsewhere.
    """
    try:
        refuse_links(root / ".dvc" / "cache", root)
    except LinkError as error:
        raise LinkError(
            f"{error}; to keep DVC's cache elsewhere, run: dvc config --global cache.dir FOLDER"
        ) from None


def check_folder(folder: Path, root: Path) -> None:
    """Check one folder or file of the workspace, as :func:`check_links` does."""
    _checked(lambda: _check_folder(folder, root), root)


def _check_folder(folder: Path, root: Path) -> None:
    check_place(folder, root)
    for entry in entries_below(folder, lambda entry: _is_others(entry, root)):
        if entry.is_symlink():
            _check_dvc_link(entry.path, root)
        if not (entry.is_file() or entry.is_dir()):
            raise TrustError(f"{entry.path} is not a regular file; remove it")


def check_place(path: Path, root: Path) -> None:
    """Check that one path of the workspace leads over no link, and to no pipe or device."""
    refuse_links(path, root)
    if path.is_symlink():
        _check_dvc_link(os.fspath(path), root)
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise TrustError(f"{path} is not a regular file; remove it")


def _check_dvc_link(link: str, root: Path) -> None:
    """Refuse a link into DVC's cache where a file is written in place, not only read."""
    path = Path(link).relative_to(root)
    if path.parts[0] not in _MAY_HOLD_DVC_LINKS or any(map(path.match, _IN_PLACE)):
        refuse_link(link)


def _checked(check: Callable[[], None], root: Path) -> None:
    """Run a link check; if it fails and the user enables DVC's links, allow those and repeat."""
    try:
        check()
    except LinkError:
        if not follow_own_cache(root):
            raise
        check()


def _is_others(entry: os.DirEntry[str], root: Path) -> bool:
    """Return whether a folder holds files of environments or DVC experiments, never read here."""
    if entry.name not in ("tmp", "exps") or not entry.is_dir(follow_symlinks=False):
        return False
    match Path(entry.path).relative_to(root).parts:
        case (".dvc", "tmp", "exps"):
            return True
        case (top, "work", _, stage, "tmp"):
            return top == STATE and stage.endswith(".new")
    return False


def part_hard_links(root: Path) -> None:
    """Replace files that DVC writes in place by copies, if they have hard links elsewhere.

    An unpacked archive can contain hard links. git creates none; DVC creates only those of its
    locks, beside one another, if ``core.hardlink_lock`` is set.
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
    """Allow links into DVC's cache if the user's settings enable them; return whether that is new.

    Args:
        root: the workspace, which holds the cache by default.
    """
    from dvc.config import Config  # takes 0.2 s to import
    from dvc.exceptions import DvcException

    try:
        cache = Config()["cache"]  # without a folder: the settings of the system and the user
    except DvcException as exc:
        raise MinariPipeError(f"DVC: {exc}") from exc
    if "symlink" not in cache_types(cache):
        return False
    if "dir" not in cache:
        check_cache(root)
    return allow_links_into(cache.get("dir", root / ".dvc" / "cache"))


def cache_types(cache: dict[str, Any]) -> list[str]:
    """Return the link types in DVC's ``cache`` section, which is a string or a list."""
    types = cache.get("type") or []
    return [kind.strip() for kind in (types.split(",") if isinstance(types, str) else types)]
