"""Follow external links between the HDF5 files of Minari 0.3 to 0.4.2, inside the root only.

A file outside of the root may be untrusted, so its links to datasets in the root are not followed.

Appended episodes were links to ``additional_data_<i>.hdf5`` next to the main file; combined
datasets were links to the absolute paths of their parents' main files. HDF5 would open any file
that such a link names, so this module resolves links and HDF5 never does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import h5py

from minari_pipe.core.datasets_root import get_dataset_path, open_folder
from minari_pipe.core.files.links import refuse_links
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.storage.hdf5.values import member
from minari_pipe.storage.legacy.base import open_file, reading

#: a combination of combinations of appended datasets needs a chain of only a few links
_MAX_CHAIN = 16
#: most parent files that are open at once
_MAX_OPEN = 32
#: parts of ``<id>/data/main_data.hdf5``, the part of an absolute path that a moved root keeps
_TAIL = 3
#: link targets are stored as resolved paths, which contain no links, so they are opened from here
_TOP = Path(os.sep)
#: names of the files of a dataset, which are all in one folder
_OWN_NAME = re.compile(r"main_data\.hdf5|additional_data_\d+\.hdf5")


class LinkedFiles:
    """The main file of a dataset and the files that its links point to, open for reading."""

    def __init__(self, main: Path, data_path: Path) -> None:
        self._main = main
        self._below = None if main == data_path else open_folder(data_path)
        """Folder below which no link to the main file is followed; None if the user named it."""
        self._has_others = main != data_path or main.name == "main_data.hdf5"
        """Whether files beside the main one belong to the dataset, not to the user."""
        self.others: set[Path] = set()
        """The resolved paths of files that links of the requested groups point to."""
        self._open: dict[Path, h5py.File] = {}

    @classmethod
    @contextmanager
    def opened(cls, main: Path, data_path: Path) -> Iterator[LinkedFiles]:
        """Open the main file of a directory, or a main file that the user named.

        All files are closed on exit.
        """
        files = cls(main, data_path)
        try:
            files._file(main)
            yield files
        finally:
            for file in files._open.values():
                file.close()

    @property
    def main(self) -> h5py.File:
        """The main file."""
        return self._file(self._main)

    def group(self, name: str) -> h5py.Group:
        """Return a group of the main file after following its links.

        Raises:
            CorruptDatasetError: a link points outside of both the datasets root and the dataset's
                own directory, to a missing file, to something other than a group, or in a circle.
        """
        path, where = self._main, name
        seen: list[str] = []
        while True:
            step = f"{path}:{where}"
            if step in seen or len(seen) >= _MAX_CHAIN:
                raise CorruptDatasetError(
                    f"{self._main}: {name} is a link that forms a cycle or leads through more than "
                    f"{_MAX_CHAIN} files: {' -> '.join([*seen[:4], step])}"
                )
            seen.append(step)
            with reading(path, name):
                found = self._found(path, where)
            if isinstance(found, h5py.Group):
                return found
            path, where = self._target(found.filename, path, name), found.path

    def _found(self, path: Path, where: str) -> h5py.Group | h5py.ExternalLink:
        *parents, last = [part for part in where.split("/") if part] or [""]
        group = member(self._file(path), "/".join(parents)) if parents else self._file(path)
        link = group.get(last, getlink=True) if last else None
        if link is None:
            raise CorruptDatasetError(f"{path} has no group {where!r}")
        if isinstance(link, h5py.ExternalLink):
            return link
        found: Any = member(group, last)
        if not isinstance(found, h5py.Group):
            raise CorruptDatasetError(f"{where!r} in {path} is not a group")
        return found

    def _file(self, path: Path) -> h5py.File:
        if path not in self._open:
            if len(self._open) >= _MAX_OPEN:
                # never close the main file, which is the first
                self._open.pop(list(self._open)[1]).close()
            self._open[path] = open_file(path, self._below if path == self._main else _TOP)
        return self._open[path]

    def _target(self, name: str, linking: Path, what: str) -> Path:
        """Return the file that a link names, if it is allowed to be read."""
        root = _root()
        if root is not None and not linking.resolve().is_relative_to(root):
            root = None
        candidates = [linking.parent / name]
        windows = PureWindowsPath(name)
        if PurePosixPath(name).is_absolute() or windows.is_absolute():
            parts = windows.parts if windows.is_absolute() else PurePosixPath(name).parts
            # the root may have moved since then, and the parent dataset with it
            candidates += [] if root is None else [root.joinpath(*parts[-_TAIL:])]
        outside = False
        for candidate in candidates:
            with reading(self._main, what):
                path = Path(os.path.normpath(candidate))
                is_named = self._has_others and _OWN_NAME.fullmatch(path.name) is not None
                is_own = is_named and _is_in(path, self._main.parent, 1)
                if not is_own and not (root is not None and _is_in(path, root)):
                    outside = True
                elif path.is_file():
                    resolved = path.resolve()
                    self.others.add(resolved)
                    return resolved
        if outside and len(candidates) == 1:
            raise CorruptDatasetError(
                f"{self._main}: {what} is a link to {name!r}, which is outside the datasets "
                f"root {root} and the dataset; such links are not followed"
                if root is not None
                else f"{self._main}: {what} is a link to {name!r}, which is outside the "
                f"dataset, and the dataset is outside the datasets root; if you trust the link, "
                f"set MINARI_DATASETS_PATH to the root that holds both"
            )
        raise CorruptDatasetError(
            f"{self._main}: {what} is a link to {name!r}; "
            + ("that is outside the datasets root, and " if outside else "")
            + f"there is no file {' or '.join(str(c) for c in candidates[outside:])}. Put the "
            "linked dataset back there, or set MINARI_DATASETS_PATH to the root that holds both"
        )


def _is_in(path: Path, folder: Path, most: int | None = None) -> bool:
    """Return whether a path leads into a folder without passing a link below it.

    Args:
        path: a path as written, or derived from one; folders above ``folder`` may be links.
        folder: the folder that should contain it.
        most: number of parent folders to check, from the innermost one up.

    Raises:
        LinkError: a part of the path below the folder is a link.
    """
    for parent in list(path.parents)[:most]:
        try:
            is_folder = os.path.samefile(parent, folder)
        except OSError:  # it does not exist
            continue
        if is_folder:
            refuse_links(path, parent)
            return True
    return False


def _root() -> Path | None:
    try:
        return get_dataset_path().resolve()
    except ConfigError:
        return None
