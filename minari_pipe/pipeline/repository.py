"""Reads the git repository of a workspace: its revisions, tracked files and changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from minari_pipe.core.git import git
from minari_pipe.errors import ConfigError


def is_repository(root: Path) -> bool:
    """Return whether ``root`` lies in the working tree of a git repository."""
    return git(root, "rev-parse", "--is-inside-work-tree").returncode == 0


def top_of(root: Path) -> Path:
    """Return the top folder of the working tree that holds ``root``."""
    return Path(git(root, "rev-parse", "--show-toplevel").stdout.rstrip("\n"))


def commit_of(root: Path, revision: str) -> str | None:
    """Return the commit that a revision names, ``None`` if it names none."""
    if revision.startswith("-"):  # git would take it for an option
        return None
    found = git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    return found.stdout.strip() if found.returncode == 0 else None


def text_at(root: Path, commit: str, path: str) -> str | None:
    """Return the text of a workspace file at a commit, ``None`` if the commit lacks it.

    Args:
        root: the workspace.
        commit: as returned by :func:`commit_of`.
        path: relative to ``root``.
    """
    found = git(root, "show", f"{commit}:./{path}")
    return found.stdout if found.returncode == 0 else None


def tracked_files(root: Path) -> set[str]:
    """Return the files below ``root`` that git tracks, relative to it.

    Raises:
        ConfigError: git fails.
    """
    found = git(root, "ls-files", "-z")  # file names may contain newlines
    if found.returncode:
        raise ConfigError(f"git ls-files: {' '.join(found.stderr.split())}")
    return set(found.stdout.split("\0")) - {""}


def is_tracked(root: Path, name: str) -> bool:
    """Return whether git tracks a file below ``root``, ignoring case; False if git fails.

    Files of a submodule count as tracked.

    Args:
        root: the workspace.
        name: the file, relative to ``root``; some file systems ignore case.
    """
    try:
        tracked = set(map(str.casefold, tracked_files(root)))
    except ConfigError:  # no git, no repository, or one that git does not trust
        return False
    path = PurePosixPath(name.casefold())
    return any(str(place) in tracked for place in (path, *path.parents))


def uncommitted(root: Path) -> list[str]:
    """Return the changed and untracked files of the working tree, whatever user settings hide.

    Changes within a submodule are left out, since its own settings may name commands.
    """
    how = ("--porcelain", "--untracked-files=all", "--ignore-submodules=dirty")
    lines = git(root, "status", *how).stdout.splitlines()
    return [line[3:] for line in lines]


def unseen_changes(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the files that differ from the index although ``git status`` may not say so.

    Flags such as ``assume-unchanged`` and the setting ``core.trustctime`` hide changes from it.

    Args:
        root: the workspace.
        paths: files that git tracks, relative to ``root``.
    """
    entries = git(root, "ls-files", "--stage", "-z").stdout.split("\0")[:-1]
    hashes = {path: how.split()[1] for how, _, path in (e.partition("\t") for e in entries)}
    known = [path for path in dict.fromkeys(paths) if path in hashes]
    # git would hash what a link leads to; without a hash, a link counts as changed
    there = [p for p in known if (root / p).is_file() and not (root / p).is_symlink()]
    now: dict[str, str] = {}
    for start in range(0, len(there), 500):  # a command line has a limit
        some = there[start : start + 500]
        now |= zip(some, git(root, "hash-object", "--", *some).stdout.split(), strict=False)
    return [path for path in known if now.get(path) != hashes[path]]
