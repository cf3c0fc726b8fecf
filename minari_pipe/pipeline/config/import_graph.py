"""Finds the files that a module imports, by reading the source and never executing it.

The same imports determine which modules of the workspace may be imported at all.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from minari_pipe.core.json_object import json_object
from minari_pipe.core.trust import trusted_modules
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.source_imports import ignore_bytecode, is_installed
from minari_pipe.pipeline.workspace import PACKAGE, STATE, write_atomic
from minari_pipe.pipeline.workspace_links import inside

#: Version of :func:`_imports`; raise it when its results change, to invalidate the cache.
_READER = 3
_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::[\w.]+)?", re.ASCII)


def import_closure(files: Iterable[Path], root: Path) -> list[Path]:
    """Return ``files`` and all modules of the workspace that they import, directly or indirectly.

    Imports inside functions count; those under ``if TYPE_CHECKING`` do not. String literals that
    name a module, or an object in one, count too, except in this package, whose stages choose
    among the modules that it names. The ``__init__`` of every parent package also counts, since
    importing a module runs it.

    Args:
        files: Python files of the workspace, as returned by :func:`module_files`.
        root: the workspace, which caches the imports of each file.

    Raises:
        ConfigError: a file is not valid Python.
        LinkError: a file in the workspace is a symlink.
    """
    found = sorted(_own_graph(files, root, root))
    _remembered(root).save()
    return found


def module_closure(modules: Iterable[str], root: Path) -> set[Path]:
    """Return the files of the user's modules and of all that they import, wherever these lie.

    As :func:`import_closure`, but across the workspace, the folders of ``PYTHONPATH`` and editable
    installs; installed packages have a version and are left out.

    Args:
        modules: dotted names of modules.
        root: the workspace.
    """
    found: set[Path] = set()
    queue, seen = list(modules), set[str]()
    while queue:
        module = queue.pop()
        base = None if module in seen or _is_own(module) else source_folder(module, root)
        seen.add(module)
        if base is not None:
            graph = _own_graph(module_files(module, base), base, root)
            names = {name for file in graph.keys() - found for name in graph[file]}
            queue += [name for name in names if not module_files(name, base)]
            found |= graph.keys()
    _remembered(root).save()
    return found


def imported_tops(files: Iterable[Path]) -> set[str]:
    """Return the first parts of all absolute imports of files, not those of type checkers."""
    found: set[str] = set()
    for file in files:
        for node in _nodes(file):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found


def is_installed_module(top: str, root: Path) -> bool:
    """Return whether a top-level module exists and the user cannot edit it."""
    return source_folder(top, root) is None and importlib.util.find_spec(top) is not None


def _own_graph(files: Iterable[Path], base: Path, root: Path) -> dict[Path, list[str]]:
    """Return the graph below one folder of the import path; refuse symlinks in the workspace."""

    def imports(file: Path, package: str) -> list[str]:
        if base == root:
            inside(root, file)  # before it is read
        return _remembered(root).imports(file, package)

    return _import_graph(files, base, imports)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE.name


def _import_graph(
    files: Iterable[Path], base: Path, imports: Callable[[Path, str], list[str]]
) -> dict[Path, list[str]]:
    """Return the modules that each file imports; see :func:`import_closure`."""
    found: dict[Path, list[str]] = {}
    queue, seen = list(files), set[str]()
    while queue:
        file = queue.pop()
        if file in found:
            continue
        relative = file.relative_to(base)
        for parent in relative.parents[:-1]:
            init = base / parent / "__init__.py"
            if init.is_file():
                queue.append(init)
        found[file] = imports(file, ".".join(relative.parts[:-1]))
        for module in found[file]:
            if module not in seen:
                seen.add(module)
                queue.extend(module_files(module, base))
    return found


def make_importable(root: Path) -> None:
    """Let this process import the user's own modules from a workspace.

    These are the modules that the user trusts and all that they import, directly or indirectly.
    Processes that such a module starts by ``spawn`` do not inherit this.
    """
    finder = WorkspaceFinder(root)
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
        ignore_bytecode(root)


@dataclass(frozen=True)
class WorkspaceFinder:
    """Finds the user's own modules in a workspace, with lower priority than installed ones.

    The workspace is not put on ``sys.path``: packages that import optional modules, such as
    ``shimmy``, would get a file of that name, and package metadata there could register plugins.
    """

    root: Path

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a top-level module; submodules are found through their package's path."""
        # The standard library tries to import modules of other platforms, such as `msvcrt`.
        if path is not None or name in sys.stdlib_module_names:
            return None
        trusted = trusted_modules()
        # Sources only: otherwise, compiled files of that name would have priority.
        finder = FileFinder(str(self.root), (SourceFileLoader, [".py"]))
        spec = finder.find_spec(name) if trusted else None
        if spec is None or name not in _own_modules(trusted, self.root):
            return None
        inside(self.root, Path(spec.origin or self.root / name))
        return spec


def _own_modules(trusted: Iterable[str], root: Path) -> set[str]:
    """Return the top-level names of all modules that may be imported from the workspace.

    This is not cached in a file of the workspace, which may be untrusted.

    Args:
        trusted: modules that the user trusts; installed ones add nothing.
        root: the workspace.
    """
    own = [name for name in trusted if hidden_by(name.partition(".")[0], root) is None]
    names = set(own)

    def imports(file: Path, package: str) -> list[str]:
        # An installed module is never imported from the workspace, so do not follow its name.
        found = _certain_imports(inside(root, file), package)
        return [n for n in found if hidden_by(n.partition(".")[0], root) is None]

    for module in own:
        package = inside(root, root.joinpath(*module.split(".")))  # trust covers submodules
        for file in (*module_files(module, root), *package.rglob("*.py")):
            with suppress(ConfigError):  # not valid Python: importing it raises an error
                graph = _import_graph([file], root, imports)
                names.update(name for imported in graph.values() for name in imported)
    return {name.partition(".")[0] for name in names}


@functools.cache
def module_files(module: str, base: Path) -> list[Path]:
    """Return the file of ``module`` below ``base``, as a list of 0 or 1.

    A symlink is returned unresolved: Python imports the module from that path.
    """
    if not module:  # from `from . import x` at the top of the import path
        return []
    place = base.joinpath(*module.split("."))
    for candidate in (place / "__init__.py", place.with_name(place.name + ".py")):
        if candidate.is_file():
            return [candidate]
    return []


def source_folder(module: str, root: Path) -> Path | None:
    """Return the folder from which Python imports ``module``, if the user can edit its files.

    That is the workspace, a folder on ``PYTHONPATH``, or the checkout of an editable install.
    The result is ``None`` for installed packages, which have a version, and if none is found.
    """
    if module_files(module, root):
        return root
    top = module.split(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # for a name without dots, this imports nothing
    except ValueError:
        return None
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ())]
    if not places and spec.has_location and spec.origin:
        places = [spec.origin]
    for place in places:
        folder = Path(place).parent
        if not is_installed(str(folder)) and module_files(module, folder):
            return folder
    return None


@functools.cache
def hidden_by(top: str, root: Path) -> str | None:
    """Return what Python would import as ``top`` instead of the workspace's module, if anything."""
    if top in sys.stdlib_module_names:
        return "Python's standard library"
    own = root.resolve()
    elsewhere = [place for place in sys.path if Path(place or ".").resolve() != own]
    for finder in sys.meta_path:
        if finder.__module__.partition(".")[0] == PACKAGE.name:
            continue
        # The finder of an editable install has no import path.
        find = getattr(finder, "find_spec", None)
        spec = find and find(top, elsewhere if finder is PathFinder else None)
        if spec is None:
            continue
        if spec.origin is not None:
            places = [spec.origin]
        elif len(elsewhere) < len(sys.path) and module_files(top, root):
            continue  # the workspace is on PYTHONPATH; modules precede namespace packages
        else:
            places = list(spec.submodule_search_locations or ())
        for place in places:
            if finder is PathFinder or not Path(place).resolve().is_relative_to(own):
                return place
    return None


@contextmanager
def saving_nothing() -> Iterator[None]:
    """Read the imports of files without saving the cache."""
    _Remembered.saves = False
    try:
        yield
    finally:
        _Remembered.saves = True


class _Remembered:
    """Cache of files' imports by stat; without it, parsing takes a third of a no-op run."""

    saves = True

    def __init__(self, root: Path) -> None:
        self._root, self._path = root, root / STATE / "imports.json"
        self._known: dict[str, dict[str, list]] = {}
        self._changed = False
        try:
            found = json_object(self._path.read_text(encoding="utf-8"))
            if found["reader"] == _READER:
                self._known = dict(found["files"])
        except (OSError, ValueError, TypeError, KeyError):
            pass

    def imports(self, file: Path, package: str) -> list[str]:
        """Return the names that ``file`` imports: modules, or possibly attributes of modules."""
        stat = file.stat()
        stamp = [package, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        entry = self._known.get(str(file))
        if not isinstance(entry, dict) or entry.get("stamp") != stamp:
            entry = {"stamp": stamp, "imports": _imports(file, package)}
            self._known[str(file)] = entry
            self._changed |= file.is_relative_to(self._root)
        return entry["imports"]

    def save(self) -> None:
        if self._changed and self.saves:
            # Drop the entries of deleted files, which would stay forever, and of files elsewhere,
            # whose names do not belong in a folder that a clone may track.
            known = ((Path(file), entry) for file, entry in self._known.items())
            files = {
                str(file): entry
                for file, entry in known
                if file.is_relative_to(self._root) and file.is_file()
            }
            write_atomic(self._path, json.dumps({"reader": _READER, "files": files}))
            self._changed = False


@functools.lru_cache(maxsize=8)
def _remembered(root: Path) -> _Remembered:
    return _Remembered(root)


def _certain_imports(file: Path, package: str) -> list[str]:
    """Return a file's imports; plain strings do not count, as packages may probe for that name."""
    return _imports(file, package, all_texts=False)


def _imports(file: Path, package: str, *, all_texts: bool = True) -> list[str]:
    names: list[str] = []
    for node in _nodes(file):
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
        elif not _is_own(package):
            names += [n for text in _texts(node, all_texts) for n in _named_by_text(text, package)]
    return list(dict.fromkeys(names))


def _nodes(file: Path) -> Iterator[ast.AST]:
    """Yield the nodes of a file's syntax tree, without what only type checkers read.

    Raises:
        ConfigError: the file is not valid Python.
    """
    try:
        queue: list[ast.AST] = [ast.parse(file.read_bytes(), str(file))]
    except (SyntaxError, ValueError) as exc:
        line = f":{exc.lineno}" if isinstance(exc, SyntaxError) and exc.lineno else ""
        reason = exc.msg if isinstance(exc, SyntaxError) else exc
        raise ConfigError(f"{file}{line} is not valid Python: {reason}") from exc
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            queue.extend(node.orelse)
            continue
        yield node
        queue.extend(ast.iter_child_nodes(node))


def _texts(node: ast.AST, all_texts: bool) -> Iterator[object]:
    """Yield the constants of one node, without its children, that may name a module."""
    if isinstance(node, ast.Constant):
        text = node.value
        if all_texts or (isinstance(text, str) and (":" in text or text.startswith("."))):
            yield text
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in ("import_module", "__import__"):
            yield from (word.value for word in node.args if isinstance(word, ast.Constant))


def _named_by_text(value: object, package: str) -> list[str]:
    """Return the modules that a string may name, as in ``register(entry_point="module:Class")``.

    A leading dot is relative to the file's package, as in ``f"{__name__}.module:Class"``.
    """
    if isinstance(value, str) and value.startswith("."):
        value = package + value
    found = _DOTTED.fullmatch(value) if isinstance(value, str) else None
    parts = found[1].split(".") if found else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is just ``TYPE_CHECKING`` or ``typing.TYPE_CHECKING``."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
