"""Check that the processes of a stage used the dependencies that DVC records.

DVC hashes the dependencies of a stage after it has ended. A file edited in the meantime would be
recorded with its new hash beside data made from the old bytes, and the next run would call the data
up to date. So a stage hashes its dependencies when it begins, each of its processes records what it
imports and reads, and the stage fails unless all of them agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.import_graph import source_folder
from minari_pipe.pipeline.source_imports import imported_from_workspace, sources_used

#: Size, mtime and ctime in ns; undoing an edit does not restore them. Empty if not a regular file.
Stamp = list[int]

_read: dict[str, tuple[Stamp, str]] = {}


@dataclass(frozen=True)
class Expected:
    """What each process of a stage must have used; plain values that are sent to its workers."""

    stage: str
    modules: dict[str, tuple[str, str]]
    """Module name to the dependency as ``dvc.yaml`` names it, and its sha256."""
    files: dict[str, str] = field(default_factory=dict)
    """Path to sha256."""
    node: str = field(default_factory=platform.node)
    """The machine that the stage runs on."""

    def check(self) -> None:
        """Compare with what this process has imported and read so far.

        A file is hashed at its first comparison, so call this before the file is read.

        Raises:
            ConfigError: names what differs.
        """
        for name, (dependency, sha256) in self.modules.items():
            if sources_used(name) - {sha256}:
                raise self._changed(dependency)
        for path, sha256 in self.files.items():
            if _sha256_read(path, self.stage) != sha256:
                raise self._changed(path)
        for name, path in imported_from_workspace():
            if name not in self.modules:
                raise ConfigError(
                    f"{self.stage} imported {path}, which no import statement names, so "
                    f"changes to it would go unnoticed; add `import {name}` to the module that "
                    f"uses it (under `if False:` is enough)"
                )

    def _changed(self, what: str) -> ConfigError:
        if (here := platform.node()) == self.node:
            return changed(what, self.stage)
        return ConfigError(
            f"{what} differs between {here}, where blocks run, and {self.node}; copy the same file "
            f"to both, and run again"
        )


def changed(what: str, stage: str) -> ConfigError:
    """Return the error of a stage whose input changed while it ran."""
    return ConfigError(f"{what} changed while {stage} ran; run again")


def _sha256_read(path: str, stage: str) -> str:
    stamp = _stamp(path)
    if path not in _read:
        _read[path] = stamp, _hashes(path)[0]
    if _stamp(path) != _read[path][0]:
        raise changed(path, stage)
    return _read[path][1]


def _hashes(path: str | Path) -> tuple[str, str]:
    """Return sha256, and md5 for DVC, of a file read once; two empty strings if it is missing."""
    digests = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                for digest in digests:
                    digest.update(data)
    except FileNotFoundError:
        return "", ""
    return digests[0].hexdigest(), digests[1].hexdigest()


def _folder_stamp(path: str) -> Stamp:
    """Return what adding, removing and exchanging files or the folder itself changes."""
    found = os.stat(path)
    return [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _stamp(path: str | Path) -> Stamp:
    try:
        found = named = os.lstat(path)
        if S_ISLNK(named.st_mode):
            # A link into DVC's cache: DVC chmods an object whenever an output has its bytes, which
            # changes the object's ctime.
            found = os.stat(path)
    except FileNotFoundError:
        return []
    return [found.st_size, found.st_mtime_ns, named.st_ctime_ns] if S_ISREG(found.st_mode) else []


def _stamps(path: Path) -> dict[str, Stamp]:
    """Return the stamps of a file, or of a folder's files and folders, by their relative paths.

    Those of folders, which end with a slash, show files that were there for a while.
    """
    if not path.is_dir():
        return {"": _stamp(path)}
    stamps: dict[str, Stamp] = {}
    folders: dict[str, Stamp] = {}
    for folder, _, names in os.walk(path):
        inner = Path(folder).relative_to(path).as_posix()
        folders[f"{inner}/"] = _folder_stamp(folder)
        stamps |= {os.path.normpath(f"{inner}/{n}"): _stamp(Path(folder, n)) for n in names}
    return {place: stamps[place] for place in sorted(stamps) if stamps[place]} | folders


class Inputs:
    """The dependencies of a stage as they were when it began."""

    def __init__(self, stage: str, root: Path, dependencies: Iterable[str]) -> None:
        """Hash the dependencies.

        Args:
            stage: name of the stage, for messages.
            root: the workspace.
            dependencies: paths as ``dvc.yaml`` names them, and ``params.yaml``.
        """
        self._stage, self._root = stage, root
        self._stamps = {name: _stamps(root / name) for name in dependencies}
        parents = {folder for name in self._stamps for folder in (root / name).parents}
        self._above = {
            folder: _folder_stamp(str(folder))
            for folder in sorted(parents)
            if root in folder.parents and folder.is_dir()
        }
        single = [name for name, stamps in self._stamps.items() if "" in stamps]
        self._hashes = {root / name: _hashes(root / name) for name in single}
        self.check_files()
        sources = [name for name in single if name.endswith(".py")]
        modules = {m: (name, self.sha256(root / name)) for m, name in _modules(sources, root)}
        self.expected = Expected(stage, modules)

    def files(self, name: str) -> list[Path]:
        """Return the files of a dependency, which may be a folder; none if it was not there."""
        stamps = self._stamps.get(name, {})
        return [self._root / name / place for place in stamps if not place.endswith("/")]

    def sha256(self, path: Path) -> str:
        """Return the sha256 of a file; for a dependency, of its bytes when the stage began."""
        if path not in self._hashes:
            self._hashes[path] = _hashes(path)
        return self._hashes[path][0]

    def check(self) -> None:
        """Raise if anything that the stage used changed since it began.

        Raises:
            ConfigError: names what changed.
        """
        self.check_files()
        self.expected.check()

    def check_files(self) -> None:
        """Do as :meth:`check`, but only for the files on disk."""
        for name, stamps in self._stamps.items():
            found = _stamps(self._root / name)
            if found != stamps:
                other = next(k for k in {**stamps, **found} if found.get(k) != stamps.get(k))
                raise changed(os.path.normpath(f"{name}/{other}"), self._stage)
        for folder, (inode, mtime, ctime) in self._above.items():
            # Files may come and go in it; only a change of its name leaves the modification time.
            now = _folder_stamp(str(folder)) if folder.is_dir() else [0, 0, 0]
            if now[0] != inode or (now[1] == mtime and now[2] != ctime):
                raise changed(os.path.relpath(folder, self._root), self._stage)

    def report(self) -> dict[str, Any]:
        """Return what :func:`recorded_otherwise` compares with ``dvc.lock``."""
        return {
            name: {
                "stamps": stamps,
                "md5": self._hashes[self._root / name][1] if "" in stamps else "",
            }
            for name, stamps in self._stamps.items()
        }


def _modules(sources: Iterable[str], root: Path) -> Iterator[tuple[str, str]]:
    """Yield each source's module name, and the source as ``dvc.yaml`` names it."""
    for source in sources:
        file = root / source
        parts = file.with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        bases = [root] if file.is_relative_to(root) else []
        bases += [Path(*parts[:n]) for n in range(1, len(parts))]
        for base in bases:
            name = ".".join(parts[len(base.parts) :])
            if source_folder(name, root) == base:
                yield name, source
                break


def recorded_otherwise(
    reports: Mapping[str, Mapping[str, Any]], lock: Mapping[str, Any], root: Path
) -> dict[str, str]:
    """Return the stages for which ``dvc.lock`` has wrong inputs, each with one such input.

    DVC hashes after the stage has ended, so the stage itself cannot see an edit in between.

    Args:
        reports: :meth:`Inputs.report` of each stage that ran.
        lock: the stages of ``dvc.lock``.
        root: the workspace.
    """
    found: dict[str, str] = {}
    for stage, report in reports.items():
        recorded = {dep["path"]: dep.get("md5") for dep in lock.get(stage, {}).get("deps", [])}
        for name, used in report.items():
            is_untouched = json.loads(json.dumps(_stamps(root / name))) == used["stamps"]
            if stage in lock and not is_untouched and recorded.get(name) != used["md5"]:
                found.setdefault(stage, name)
    return found
