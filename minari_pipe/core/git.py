"""Runs git, and tells links that came with a repository from the user's own."""

from __future__ import annotations

import os
import subprocess
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
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def git(folder: PathLike, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and return the result, whatever the exit code.

    Raises:
        ConfigError: git is not installed.
    """
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env={**os.environ, **_NO_FETCH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as exc:
        raise ConfigError("this needs git, which is not on PATH") from exc


def refuse_tracked_links(path: PathLike) -> None:
    """Raise if a symlink that git tracks lies on the way to a path that the user named.

    It came with the repository, perhaps from a stranger. Other symlinks are the user's own.

    Raises:
        LinkError: names the symlink and its target.
    """
    place, *parts = Path(path).absolute().parts
    for part in parts:
        folder, place = place, os.path.join(place, part)
        if part != os.pardir and os.path.islink(place) and _is_tracked(folder, part):
            raise LinkError(
                f"{place} is a symlink to {os.readlink(place)} that came with its git repository; "
                f"if you mean its target, name that"
            )


def _is_tracked(folder: str, name: str) -> bool:
    real = Path(os.path.realpath(folder))
    if not any(os.path.lexists(place / ".git") for place in (real, *real.parents)):
        return False
    try:
        # Some file systems ignore case.
        found = git(real, "ls-files", "--error-unmatch", "--", f":(literal,icase){name}")
    except ConfigError:  # no git
        return False
    return found.returncode == 0
