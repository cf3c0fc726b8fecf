"""What the processes of a stage used: hashes of the bytes that they imported and read.

DVC hashes the dependencies of a stage after it has ended. A file edited meanwhile would be recorded
with its new hash beside data that the old bytes made, and the next run would call them up to date.
So a stage notes its dependencies when it begins, each of its processes records what it imports and
reads, and the stage fails unless all are equal.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from types import ModuleType
from typing import Any

from minari_pipe.errors import ConfigError

ROOT_VARIABLE = "MINARI_PIPE_STAGE_ROOT"
"""The workspace of a stage, for the processes that it starts: they record their imports, too."""

_PACKAGE = Path(__file__).resolve().parent.parent

_PYTHONS = ("stdlib", "platstdlib", "purelib", "platlib")
"""Where Python has its own modules and those that are installed."""

Stamp = list[int]
"""Size, and times of the last change of the bytes and of the file, which an edit that is taken back
does not restore."""


_imported: dict[str, tuple[str, set[str]]] = {}
"""Path and sha256s of each module's source."""
_loose: set[str] = set()
"""Names at the top of modules that are found in the workspace only, not on the import path."""
_read: dict[str, tuple[Stamp, str]] = {}


def record_imports(root: str) -> None:
    """Compile every module that is not installed from its source, and record its sha256.

    Bytecode that lies beside a source is not used: it may be of another source that has the same
    size and was written in the same second.

    Args:
        root: of the workspace; the modules of this package count where it is imported from there.
    """
    os.environ[ROOT_VARIABLE] = root
    own = None if root == str(_PACKAGE.parent) else str(_PACKAGE)
    sys.meta_path.insert(0, _RecordingFinder(own))


def ignore_bytecode() -> None:
    """Compile modules that are neither installed nor this package's from their sources.

    A ``__pycache__`` of a stranger may hold other code than the source beside it.
    """
    if not any(isinstance(known, _RecordingFinder) for known in sys.meta_path):
        sys.meta_path.insert(0, _RecordingFinder(str(_PACKAGE), records=False))


@dataclass(frozen=True)
class _RecordingFinder:
    """Asks the other finders, and reads the sources that they find itself."""

    without: str | None
    """A folder whose modules are not recorded."""
    records: bool = True
    """Or compile the sources, and record nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find and find(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if self.records and getattr(finder, "is_loose", False):
            _loose.add(name)
        loader = spec.loader
        if type(loader) is SourceFileLoader and self._is_recorded(loader.path):
            spec.loader = _SourceLoader(loader.name, loader.path, self.records)
            spec.cached = None
        return spec

    def _is_recorded(self, path: str) -> bool:
        if self.without is not None and path.startswith(self.without + os.sep):
            return False
        return not is_installed(os.path.dirname(path))


class _SourceLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, records: bool) -> None:
        super().__init__(fullname, path)
        self._records = records

    def get_code(self, fullname: str) -> Any:
        source = self.get_data(self.path)
        if self._records:
            found = _imported.setdefault(fullname, (self.path, set()))
            found[1].add(hashlib.sha256(source).hexdigest())
        return self.source_to_code(source, self.path)


@functools.cache
def is_installed(folder: str) -> bool:
    """Whether modules in ``folder`` are those of Python or of an installed package."""
    place = Path(folder)
    # A workspace may lie in a folder of such a name, too.
    named = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return any(place.is_relative_to(p) for p in (*named, *map(sysconfig.get_path, _PYTHONS)))


@dataclass(frozen=True)
class Expected:
    """What each process of a stage must have used; plain values, which travel to its workers."""

    stage: str
    modules: dict[str, tuple[str, str]]
    """By name: the dependency as ``dvc.yaml`` has it, and its sha256."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 by path."""
    node: str = field(default_factory=platform.node)
    """The machine of the stage."""

    def check(self) -> None:
        """Compare it with what this process imported and read until now.

        A file counts from the first time that it is compared, so that is done before it is read.

        Raises:
            ConfigError: names what is another one.
        """
        for name, (dependency, sha256) in self.modules.items():
            if _used(name) - {sha256}:
                raise self._changed(dependency)
        for path, sha256 in self.files.items():
            if _sha256_read(path, self.stage) != sha256:
                raise self._changed(path)
        for name, (path, _) in _imported.items():
            if name.partition(".")[0] in _loose and name not in self.modules:
                raise ConfigError(
                    f"{self.stage} imported {path}, which no import statement names, so an "
                    f"edit of it would go unnoticed; add `import {name}` to the module that uses "
                    f"it (below `if False:` is enough)"
                )

    def _changed(self, what: str) -> ConfigError:
        if (here := platform.node()) == self.node:
            return changed(what, self.stage)
        return ConfigError(
            f"{what} is another one on {here}, where blocks are made, than on {self.node}; let "
            f"both have the same, and run again"
        )


def changed(what: str, stage: str) -> ConfigError:
    """The error of a stage that used something else than is there now."""
    return ConfigError(f"{what} changed while {stage} ran; run again")


def _used(name: str) -> set[str]:
    """sha256s of the sources that a module was imported from in this process."""
    if name not in _imported and (module := sys.modules.get(name)) is not None:
        # Imported before the recording began, or installed where a worker of a cluster runs.
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and os.path.isfile(path):
            _imported[name] = path, {_hashes(path)[0]}
    return _imported[name][1] if name in _imported else set()


def _sha256_read(path: str, stage: str) -> str:
    stamp = _stamp(path)
    if path not in _read:
        _read[path] = stamp, _hashes(path)[0]
    if _stamp(path) != _read[path][0]:
        raise changed(path, stage)
    return _read[path][1]


def _hashes(path: str | Path) -> tuple[str, str]:
    """sha256, and md5 for DVC, of a file that is read once; of no file, two that none has."""
    digests = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                for digest in digests:
                    digest.update(data)
    except FileNotFoundError:
        return "", ""
    return digests[0].hexdigest(), digests[1].hexdigest()


def _stamp(path: str | Path) -> Stamp:
    try:
        found = named = os.lstat(path)
        if S_ISLNK(named.st_mode):
            # Into DVC's cache: DVC changes the mode of an object whenever an output has its bytes.
            found = os.stat(path)
    except FileNotFoundError:
        return []
    return [found.st_size, found.st_mtime_ns, named.st_ctime_ns] if S_ISREG(found.st_mode) else []


def _stamps(path: Path) -> dict[str, Stamp]:
    """Stamps of a file, or of all files below a folder by their paths in it."""
    if not path.is_dir():
        return {"": _stamp(path)}
    places = sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    stamps = {place.relative_to(path).as_posix(): _stamp(place) for place in places}
    return {place: stamp for place, stamp in stamps.items() if stamp}


class Inputs:
    """The dependencies of a stage as they were when it began."""

    def __init__(self, stage: str, root: Path, dependencies: Iterable[str]) -> None:
        """Note them.

        Args:
            stage: for messages.
            root: the workspace.
            dependencies: as ``dvc.yaml`` names them, and ``params.yaml``.
        """
        self._stage, self._root = stage, root
        self._stamps = {name: _stamps(root / name) for name in dependencies}
        single = [name for name, stamps in self._stamps.items() if "" in stamps]
        self._hashes = {root / name: _hashes(root / name) for name in single}
        self.check_files()
        sources = [name for name in single if name.endswith(".py")]
        modules = {m: (name, self.sha256(root / name)) for m, name in _modules(sources, root)}
        self.expected = Expected(stage, modules)

    def files(self, name: str) -> list[Path]:
        """The files of a dependency, which may be a folder."""
        return [self._root / name / place for place in self._stamps[name]]

    def sha256(self, path: Path) -> str:
        """The sha256 of a file's bytes, those of a dependency as they were at the beginning."""
        if path not in self._hashes:
            self._hashes[path] = _hashes(path)
        return self._hashes[path][0]

    def check(self) -> None:
        """Refuse to end the stage well where something is not as it was when it began.

        Raises:
            ConfigError: names it.
        """
        self.check_files()
        self.expected.check()

    def check_files(self) -> None:
        """As :meth:`check`, for what lies on the disk alone."""
        for name, stamps in self._stamps.items():
            found = _stamps(self._root / name)
            if found != stamps:
                other = next(k for k in {**stamps, **found} if found.get(k) != stamps.get(k))
                raise changed(f"{name}/{other}".rstrip("/"), self._stage)

    def report(self) -> dict[str, Any]:
        """What :func:`recorded_otherwise` compares with ``dvc.lock``."""
        return {
            name: {
                "stamps": stamps,
                "md5": self._hashes[self._root / name][1] if "" in stamps else "",
            }
            for name, stamps in self._stamps.items()
        }


def _modules(sources: Iterable[str], root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each source's module, and the source as ``dvc.yaml`` names it."""
    from minari_pipe.pipeline.closure import source_folder

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
    """The stages of which ``dvc.lock`` records something else than they used, and what that is.

    DVC hashes after the stage has ended, so the stage itself cannot see an edit in between.

    Args:
        reports: of the stages that ran, see :meth:`Inputs.report`.
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
