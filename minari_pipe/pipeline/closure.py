"""Which files a module's code consists of: its imports, read from the source, never executed."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.workspace import STATE, write_atomic

_READER = 2
"""Raised when :func:`_imports` reads a source differently, so that no old answer is believed."""


def import_closure(files: Iterable[Path], base: Path, *, root: Path) -> list[Path]:
    """All modules below ``base`` that ``files`` import, directly or not, and ``files``.

    Imports inside functions count, those under ``if TYPE_CHECKING`` do not. The ``__init__`` of
    every package on the way counts too, since importing a module runs it.

    Args:
        files: Python files below ``base``, as :func:`module_files` names them.
        base: the folder on the import path from which modules are named.
        root: the workspace, which remembers what was read.

    Raises:
        ConfigError: a file that is not Python.
    """
    found: set[Path] = set()
    queue = list(files)
    remembered = _remembered(root)
    while queue:
        file = queue.pop()
        if file in found:
            continue
        found.add(file)
        relative = file.relative_to(base)
        for parent in relative.parents[:-1]:
            init = base / parent / "__init__.py"
            if init.is_file():
                queue.append(init)
        for module in remembered.imports(file, ".".join(relative.parts[:-1])):
            queue.extend(module_files(module, base))
    remembered.save()
    return sorted(found)


@functools.cache
def module_files(module: str, base: Path) -> list[Path]:
    """The file of ``module`` below ``base``, as a list of none or one.

    A link is named where it stands: that is the path from which Python imports it.
    """
    if not module:  # what `from . import x` at the top of the import path names
        return []
    place = base.joinpath(*module.split("."))
    for candidate in (place / "__init__.py", place.with_name(place.name + ".py")):
        if candidate.is_file():
            return [candidate]
    return []


def source_folder(module: str, root: Path) -> Path | None:
    """The folder from which Python imports ``module``, if its files are the user's to edit.

    That is the workspace, a folder on ``PYTHONPATH``, or the checkout behind an editable install.
    ``None`` stands for installed packages, which have a version, and for what is not found.
    """
    if module_files(module, root):
        return root
    top = module.split(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # a name without dots: nothing is imported
    except ValueError:
        return None
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ())]
    if not places and spec.has_location and spec.origin:
        places = [spec.origin]
    for place in places:
        folder = Path(place).parent
        if not _is_installed(folder) and module_files(module, folder):
            return folder
    return None


@functools.cache
def hidden_by(top: str, root: Path) -> str | None:
    """What Python imports as ``top`` in place of the workspace's own module, if anything."""
    if top in sys.stdlib_module_names:
        return "Python's own library"
    elsewhere = [place for place in sys.path if Path(place or ".").resolve() != root.resolve()]
    spec = PathFinder.find_spec(top, elsewhere)
    return spec.origin if spec is not None and spec.origin else None


def _is_installed(folder: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    return any(folder.is_relative_to(sysconfig.get_path(p)) for p in ("stdlib", "platstdlib"))


class _Remembered:
    """Imports of files by size and time: parsing all costs a third of a run without work."""

    def __init__(self, root: Path) -> None:
        self._path = root / STATE / "imports.json"
        self._known: dict[str, dict[str, list]] = {}
        self._changed = False
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if found["reader"] == _READER:
                self._known = dict(found["files"])
        except (OSError, ValueError, TypeError, KeyError):
            pass

    def imports(self, file: Path, package: str) -> list[str]:
        """Names of the modules that ``file`` imports, those that may be attributes among them."""
        stat = file.stat()
        stamp = [package, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        entry = self._known.get(str(file))
        if entry is None or entry["stamp"] != stamp:
            entry = {"stamp": stamp, "imports": _imports(file, package)}
            self._known[str(file)] = entry
            self._changed = True
        return entry["imports"]

    def save(self) -> None:
        if self._changed:
            # Entries of files that are gone would stay for ever.
            self._known = {f: e for f, e in self._known.items() if Path(f).is_file()}
            write_atomic(self._path, json.dumps({"reader": _READER, "files": self._known}))
            self._changed = False


@functools.lru_cache(maxsize=8)
def _remembered(root: Path) -> _Remembered:
    return _Remembered(root)


def _imports(file: Path, package: str) -> list[str]:
    try:
        queue: list[ast.AST] = [ast.parse(file.read_bytes(), str(file))]
    except (SyntaxError, ValueError) as exc:
        line = f":{exc.lineno}" if isinstance(exc, SyntaxError) and exc.lineno else ""
        reason = exc.msg if isinstance(exc, SyntaxError) else exc
        raise ConfigError(f"{file}{line} is not valid Python: {reason}") from exc
    names: list[str] = []
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            queue.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                names += [".".join(parts[: i + 1]) for i in range(len(parts))]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).strip(".")
            names.append(base)
            names += [f"{base}.{alias.name}".strip(".") for alias in node.names]
        queue.extend(ast.iter_child_nodes(node))
    return list(dict.fromkeys(names))


def _is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is ``TYPE_CHECKING`` or ``typing.TYPE_CHECKING``, and nothing more."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
