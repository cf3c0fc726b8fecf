"""Check the names of a dataset's files, which a stranger may have chosen."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from pathlib import PurePosixPath

from minari_pipe.errors import CorruptDatasetError

#: path components that do not name an entry of the folder before them
NO_NAMES = frozenset({"", ".", ".."})
#: folders in which git and DVC find commands that they run
_SETTINGS_FOLDERS = frozenset({".git", "git~1", ".dvc"})
#: names that need no closer look, as a dataset may have millions of files
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_PLAIN_DATA = re.compile(rf"data(/{_PLAIN.pattern})+")
#: longer ones are looked at without a regular expression, which takes 100 bytes for each character
_MOST_PLAIN = 1000
_FOLDERS = ("data", "policies", "card")
#: Largest number of nested folders; the files of a dataset lie in three at most.
_DEEPEST = 20
_LONGEST_NAME = 255


def is_file_name(name: str) -> bool:
    """Return whether a stranger may give a file or folder this name.

    It must stay in its folder, and no file system may read it as a settings folder of git or DVC.

    Example:
        >>> [is_file_name(name) for name in ("main_data.hdf5", "..", ".git", ".GIT.")]
        [True, False, False, False]
    """
    if len(name) <= _MOST_PLAIN and _PLAIN.fullmatch(name):
        return True
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    read = visible.casefold().partition(":")[0].rstrip(" .")
    return name not in NO_NAMES and "\0" not in name and read not in _SETTINGS_FOLDERS


def is_plain_path(name: str) -> bool:
    """Return whether a path leads to a file in ``data/`` and needs no closer look.

    Example:
        >>> is_plain_path("data/0/metadata.json"), is_plain_path("data/.git/config")
        (True, False)
    """
    return len(name) <= _MOST_PLAIN and _PLAIN_DATA.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Return whether a file at a dataset's place is part of it: no README, and nothing hidden.

    Example:
        >>> [name for name in ("data/a.hdf5", "data/.DS_Store", "docs/a.gif") if is_part(name)]
        ['data/a.hdf5']
    """
    folder, *parts = name.split("/")
    # Names of dots only are not hidden files but hostile.
    is_hidden = any(part.startswith(".") and part.strip(".") for part in parts)
    return folder in _FOLDERS and bool(parts) and not is_hidden


def check_names(names: Collection[str]) -> None:
    """Raise an error unless all names can be files in the folder of one dataset.

    Raises:
        CorruptDatasetError: a name leads elsewhere, or is a folder of another name.
    """
    for name in names:
        check_name(name)
        for parent in PurePosixPath(name).parents:
            if parent.as_posix() in names:
                raise CorruptDatasetError(
                    f"it has a file {parent.as_posix()[:200]!r} and another file below that path"
                )


def check_name(name: str) -> str:
    """Return the name of a dataset's file if it stays in the dataset's folder.

    Raises:
        CorruptDatasetError: it leads elsewhere, or datasets have no such files.

    Example:
        >>> check_name("data/main_data.hdf5")
        'data/main_data.hdf5'
        >>> check_name("data/../../../.bashrc")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.CorruptDatasetError: it has a file 'data/../../../.bashrc', ...
    """
    parts = name.split("/")
    if (
        len(parts) < 2
        or len(parts) > _DEEPEST
        or parts[0] not in _FOLDERS
        or not all(map(is_file_name, parts))
        or not name.isprintable()  # control characters, and surrogates, which have no bytes
        or PurePosixPath(name).as_posix() != name
        or "data" in parts[1:-1]  # that of another dataset
        or any(
            part.startswith(".")
            or re.search(r"(^dvc\.(yaml|lock)|\.dvc)[ .]*$", part, re.I)  # `dvc repro` runs them
            or len(part.encode()) > _LONGEST_NAME
            or re.search(r"[\\\0:]", part)
            for part in parts
        )
    ):
        raise CorruptDatasetError(
            f"it has a file {name[:200]!r}, which is not a valid path below data/, policies/ or "
            "card/"
        )
    return name
