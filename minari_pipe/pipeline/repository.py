"""The git repository of a workspace: what it holds at a revision, and what is not committed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from minari_pipe.errors import ConfigError

#: A folder of a clone may hold the files of a bare repository, with settings that name commands.
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=off",
)
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in ``root``, whatever becomes of it.

    Raises:
        ConfigError: there is no git.
    """
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=root,
            env={**os.environ, **_NO_FETCH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as exc:
        raise ConfigError("this needs git, and there is no command git") from exc


def is_repository(root: Path) -> bool:
    """Whether ``root`` lies in the working tree of a git repository."""
    return git(root, "rev-parse", "--is-inside-work-tree").returncode == 0


def top_of(root: Path) -> Path:
    """The top of the working tree that ``root`` lies in."""
    return Path(git(root, "rev-parse", "--show-toplevel").stdout.rstrip("\n"))


def commit_of(root: Path, revision: str) -> str | None:
    """The commit that a revision names, ``None`` if it names none."""
    if revision.startswith("-"):  # an option of git's
        return None
    found = git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    return found.stdout.strip() if found.returncode == 0 else None


def text_at(root: Path, commit: str, path: str) -> str | None:
    """The text of a file of the workspace as it was committed, ``None`` if it was not.

    Args:
        root: the workspace.
        commit: as :func:`commit_of` gives it.
        path: relative to ``root``.
    """
    found = git(root, "show", f"{commit}:./{path}")
    return found.stdout if found.returncode == 0 else None


def tracked_files(root: Path) -> set[str]:
    """The files below ``root`` that git knows, relative to it.

    Raises:
        ConfigError: git cannot say.
    """
    found = git(root, "ls-files", "-z")  # a name may hold whatever ends a line
    if found.returncode:
        raise ConfigError(f"git ls-files: {' '.join(found.stderr.split())}")
    return set(found.stdout.split("\0")) - {""}


def is_tracked(root: Path, name: str) -> bool:
    """Whether git knows a file below ``root``, in whatever case; it knows none where it cannot say.

    Args:
        root: the workspace.
        name: of the file, relative to ``root``; some file systems read it in any case.
    """
    try:
        return name.casefold() in map(str.casefold, tracked_files(root))
    except ConfigError:  # no git, no repository, or none that git trusts
        return False


def uncommitted(root: Path) -> list[str]:
    """What of the working tree is changed or new, whatever the user's settings hide.

    Not what is changed within a submodule, whose own settings may name commands.
    """
    how = ("--porcelain", "--untracked-files=all", "--ignore-submodules=dirty")
    lines = git(root, "status", *how).stdout.splitlines()
    return [line[3:] for line in lines]
