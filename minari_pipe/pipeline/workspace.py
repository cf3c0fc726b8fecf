"""The workspace: the folder with ``.dvc``, its places, and files written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.trust import trusted_modules

PACKAGE = Path(__file__).resolve().parent.parent
STATE = ".minari_pipe"
"""Folder of what is not an output: locks, unfinished blocks, records of installation."""

NOT_PARAMS = ("overrides", "code")
"""Keys of ``params.yaml`` that record how it came about."""

PIPELINE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


def find_root(start: Path | None = None) -> Path:
    """The nearest folder at or above ``start`` (default: here) that holds ``.dvc``."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise ConfigError(f"{here} is not inside a DVC workspace; run `minari-pipe init` there first")


def check_pipeline_name(name: str) -> str:
    """Refuse a name that could mean something to a shell or a file system.

    The name stands in the commands of ``dvc.yaml`` and in paths.
    """
    if not PIPELINE_NAME.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            f"pipeline name {name!r} is not valid: expected letters, digits, '_', '-' and '.', "
            f"not starting with '-' or '.', at most 100; set it with pipeline=NAME"
        )
    return name


def inside(root: Path, path: Path) -> Path:
    """``path``, once it is proven to lie inside ``root`` after links are followed."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{path} leads out of the workspace {root}; remove the link")
    return path


def check_state(root: Path) -> None:
    """Refuse links in the folder :data:`STATE`, through which this program would write or remove.

    git brings them along: a workspace may come from a stranger.
    """
    state = root / STATE
    links = [state] if state.is_symlink() else []
    # Not rglob, which fails where another pipeline removes its scratch folder meanwhile.
    for folder, folders, files in os.walk(state):
        links += [path for name in (*folders, *files) if (path := Path(folder, name)).is_symlink()]
        # What environments leave there is theirs, and only removed.
        if folder.endswith(".new") and "tmp" in folders:
            folders.remove("tmp")
    for path in links:
        raise TrustError(
            f"{path} is a link to {os.readlink(path)}; {STATE}/ is written and emptied by this "
            f"program alone: remove the link"
        )


def is_checkout(root: Path) -> bool:
    """Whether the package runs from the workspace itself.

    Raises:
        TrustError: the workspace brings another package of this name, which its stages would run.
    """
    own = root / PACKAGE.name
    if not (own / "__init__.py").is_file():
        return False
    if own.resolve() != PACKAGE:
        raise TrustError(
            f"{own} is not the package that runs, {PACKAGE}; if you trust it, run it with "
            f"`cd {root} && python -m {PACKAGE.name}`, else remove it"
        )
    return True


def make_importable(root: Path) -> None:
    """Let modules of the workspace be imported, if the user trusts one that lies there.

    Processes that such a module starts by ``spawn`` do not inherit this.
    """
    finder = _WorkspaceFinder(root)
    trusted = {name.partition(".")[0] for name in trusted_modules()}
    lie_here = (find_spec(name) is None and finder.find_spec(name) for name in trusted)
    if finder not in sys.meta_path and any(lie_here):
        sys.meta_path.append(finder)


@dataclass(frozen=True)
class _WorkspaceFinder:
    """Finds modules in a workspace, after everything that is installed.

    Not an entry of ``sys.path``, where package metadata in the folder would announce plugins.
    """

    root: Path

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self.root)]) if path is None else None


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write ``path`` whole or not at all, durably, under the process's umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> bool:
    """Write ``text`` unless the file holds it already; whether it was written."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def dump_json(value: Any) -> str:
    """Deterministic JSON for files that people read and DVC hashes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ConfigError: it is damaged, such as by a merge.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ConfigError(f"{path} is damaged: {exc}; restore it from git, or remove it") from exc
