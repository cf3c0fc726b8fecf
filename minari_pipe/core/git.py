"""Runs git, and tells links that came with a repository from the user's own."""

from __future__ import annotations

import os
import re
import subprocess
from functools import lru_cache
from pathlib import Path

from minari_pipe.core.files.links import PathLike
from minari_pipe.errors import ConfigError, LinkError

#: A clone may contain a folder that looks like a bare repository, whose settings name commands.
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=off",
)
#: Variables by which git would read another repository than that of the folder, or other patterns.
_ELSEWHERE = re.compile(
    "GIT_(DIR|WORK_TREE|COMMON_DIR|INDEX_FILE|PREFIX|NAMESPACE|.*OBJECT_DIRECTOR.*|.*PATHSPECS)"
)
#: Linux follows no more in one path.
_MOST_LINKS = 40
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def git(folder: PathLike, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and return the result, whatever the exit code.

    Raises:
        ConfigError: git is not installed.
    """
    own = {k: v for k, v in os.environ.items() if not _ELSEWHERE.fullmatch(k)}
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env={**own, **_NO_FETCH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as exc:
        raise ConfigError("this needs git, which is not on PATH") from exc


def refuse_tracked_links(path: PathLike) -> None:
    """Raise if a symlink that git tracks, or has tracked, lies on the way to a path the user named.

    It came with the repository, perhaps from a stranger. Other symlinks are the user's own. See
    :func:`may_have_come_with_git`.

    Raises:
        LinkError: names the symlink and its target.
    """
    place, *parts = Path(path).absolute().parts
    n_links = 0
    while parts:
        folder, part = place, parts.pop(0)
        place = os.path.join(folder, part)
        if part == os.pardir:
            place = os.path.dirname(folder)  # which has no links: they were replaced
        elif os.path.islink(place) and n_links < _MOST_LINKS:  # the system follows no more
            target = os.readlink(place)
            if may_have_come_with_git(place):
                raise LinkError(
                    f"{place} is a symlink to {target} that came, or may have come, with its git "
                    f"repository; if you mean its target, name that"
                )
            n_links += 1
            place, *rest = Path(folder, target).parts
            parts = [*rest, *parts]


@lru_cache(maxsize=64)
def refuse_tracked_links_once(path: PathLike) -> None:
    """Do what :func:`refuse_tracked_links` does, once for each path without a fault.

    For places that are used very often; the former takes 0.03 ms.
    """
    refuse_tracked_links(path)


def may_have_come_with_git(path: PathLike) -> bool:
    """Return whether a git repository may have brought a file or symlink: it has or had the path.

    All repositories above it are asked, each for its history: a stranger's clone may contain a
    repository of the user, or what a submodule left, and a file may have become untracked. True,
    too, if git does not answer.

    Args:
        path: the file or symlink; its folder is resolved.
    """
    folder, name = os.path.split(os.path.abspath(path))
    link = Path(os.path.realpath(folder), name)
    for top in link.parents:
        if not os.path.lexists(top / ".git"):
            continue
        # Not in the folder: a clone may make git take it for a bare repository. Some file systems
        # ignore case.
        pattern = f":(literal,icase){link.relative_to(top).as_posix()}"
        for words in (["ls-files"], ["rev-list", "--all", "--reflog", "--full-history", "-1"]):
            try:
                found = git(top, *words, "--", pattern)
            except ConfigError:  # no git
                return True
            if found.returncode or found.stdout:
                return True
    return False
