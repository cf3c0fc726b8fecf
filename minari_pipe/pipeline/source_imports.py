"""Compiles modules of non-installed code from source, ignoring bytecode, and records them."""

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

#: Names the workspace for processes that a stage starts; they record their imports, too.
ROOT_VARIABLE = "MINARI_PIPE_STAGE_ROOT"

_PACKAGE = Path(__file__).resolve().parent.parent

#: ``sysconfig`` paths of the standard library and of installed packages.
_PYTHONS = ("stdlib", "platstdlib", "purelib", "platlib")

#: Path and sha256s of each module's source.
_imported: dict[str, tuple[str, set[str]]] = {}


def record_imports(root: str) -> None:
    """Compile every non-installed module from its source, and record the source's sha256.

    Cached bytecode is ignored: it may belong to an older source with the same size and the same
    modification time in seconds.

    Args:
        root: the workspace; modules of this package are recorded only if imported from there.
    """
    os.environ[ROOT_VARIABLE] = root
    own = None if root == str(_PACKAGE.parent) else str(_PACKAGE)
    sys.meta_path.insert(0, _RecordingFinder(root, own))


def ignore_bytecode(root: Path) -> None:
    """Compile modules from source, except installed ones and those of this package.

    In an untrusted workspace, ``__pycache__`` may hold other code than the source beside it.
    """
    if not any(isinstance(known, _RecordingFinder) for known in sys.meta_path):
        sys.meta_path.insert(0, _RecordingFinder(str(root), str(_PACKAGE), records=False))


@dataclass(frozen=True)
class _RecordingFinder:
    """Delegates to the other finders, and loads the sources that they find itself."""

    root: str
    """The workspace, from which only sources are imported."""
    without: str | None
    """A folder whose modules keep their own loader and are not recorded."""
    records: bool = True
    """If false, compile the sources but record nothing."""

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
        if isinstance(spec.loader, ExtensionFileLoader | SourcelessFileLoader):
            spec = self._source_of(name, spec)
        loader = spec.loader
        if type(loader) is SourceFileLoader and self._is_recorded(loader.path):
            spec.loader = _SourceLoader(loader.name, loader.path, self.records)
            spec.cached = None
        return spec

    def _source_of(self, name: str, compiled: ModuleSpec) -> ModuleSpec:
        """Return the spec of a workspace module's source in place of its compiled file."""
        folder = os.path.dirname(compiled.origin or "")
        if is_installed(folder) or not Path(folder).is_relative_to(self.root):
            return compiled
        spec = FileFinder(folder, (SourceFileLoader, [".py"])).find_spec(name)
        if spec is None:
            raise ImportError(
                f"{compiled.origin} is compiled; only source files are imported from a workspace",
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
    """Return whether ``folder`` belongs to Python or to an installed package."""
    place = Path(folder)
    # Only folders on sys.path: a workspace may also lie below a folder with such a name.
    named = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return any(place.is_relative_to(p) for p in (*named, *map(sysconfig.get_path, _PYTHONS)))


def sources_used(name: str) -> set[str]:
    """Return the sha256s of the sources that this process imported a module from."""
    if name not in _imported and (module := sys.modules.get(name)) is not None:
        # Imported before recording began, or installed on the node of a cluster worker.
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and os.path.isfile(path):
            _imported[name] = path, {hashlib.sha256(Path(path).read_bytes()).hexdigest()}
    return _imported[name][1] if name in _imported else set()


def imported_from_workspace() -> Iterator[tuple[str, str]]:
    """Yield name and file of each module that this process imported from the workspace."""
    root = os.environ.get(ROOT_VARIABLE, "")
    for name, (path, _) in _imported.items():
        if name.partition(".")[0] != _PACKAGE.name and Path(path).is_relative_to(root):
            yield name, path
