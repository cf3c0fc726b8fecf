"""Compiles modules that are not installed from their sources, and records what it compiled."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT_VARIABLE = "MINARI_PIPE_STAGE_ROOT"
"""The workspace of a stage, for the processes that it starts: they record their imports, too."""

_PACKAGE = Path(__file__).resolve().parent.parent

_PYTHONS = ("stdlib", "platstdlib", "purelib", "platlib")
"""Where Python has its own modules and those that are installed."""

_imported: dict[str, tuple[str, set[str]]] = {}
"""Path and sha256s of each module's source."""
_loose: set[str] = set()
"""Names at the top of modules that are found in the workspace only, not on the import path."""


def record_imports(root: str) -> None:
    """Compile every module that is not installed from its source, and record its sha256.

    Bytecode that lies beside a source is not used: it may be of another source that has the same
    size and was written in the same second.

    Args:
        root: of the workspace; the modules of this package count where it is imported from there.
    """
    os.environ[ROOT_VARIABLE] = root
    own = None if root == str(_PACKAGE.parent) else str(_PACKAGE)
    sys.meta_path.insert(0, _RecordingFinder(root, own))


def ignore_bytecode(root: Path) -> None:
    """Compile modules that are neither installed nor this package's from their sources.

    A ``__pycache__`` of a stranger may hold other code than the source beside it.
    """
    if not any(isinstance(known, _RecordingFinder) for known in sys.meta_path):
        sys.meta_path.insert(0, _RecordingFinder(str(root), str(_PACKAGE), records=False))


@dataclass(frozen=True)
class _RecordingFinder:
    """Asks the other finders, and reads the sources that they find itself."""

    root: str
    """The workspace, of which nothing but sources is imported."""
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
        if isinstance(spec.loader, ExtensionFileLoader | SourcelessFileLoader):
            spec = self._source_of(name, spec)
        loader = spec.loader
        if type(loader) is SourceFileLoader and self._is_recorded(loader.path):
            spec.loader = _SourceLoader(loader.name, loader.path, self.records)
            spec.cached = None
        return spec

    def _source_of(self, name: str, compiled: ModuleSpec) -> ModuleSpec:
        """Return what is found of a module of the workspace without its compiled files."""
        folder = os.path.dirname(compiled.origin or "")
        if is_installed(folder) or not Path(folder).is_relative_to(self.root):
            return compiled
        spec = FileFinder(folder, (SourceFileLoader, [".py"])).find_spec(name)
        if spec is None:
            raise ImportError(
                f"{compiled.origin} is compiled; of a workspace only sources are imported",
                name=name,
            )
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


def sources_used(name: str) -> set[str]:
    """sha256s of the sources that a module was imported from in this process."""
    if name not in _imported and (module := sys.modules.get(name)) is not None:
        # Imported before the recording began, or installed where a worker of a cluster runs.
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and os.path.isfile(path):
            _imported[name] = path, {hashlib.sha256(Path(path).read_bytes()).hexdigest()}
    return _imported[name][1] if name in _imported else set()


def imported_from_workspace() -> Iterator[tuple[str, str]]:
    """Yield the modules, with their files, that this process found in the workspace only."""
    for name, (path, _) in _imported.items():
        if name.partition(".")[0] in _loose:
            yield name, path
