"""The workspace: the folder with ``.dvc``, its places, and files written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.changes import new_file
from minari_pipe.core.files.links import refuse_links
from minari_pipe.errors import ConfigError, TrustError

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


def check_pipeline_name(name: str, how: str = "set it with pipeline=NAME") -> str:
    """Refuse a name that could mean something to a shell or a file system.

    The name stands in the commands of ``dvc.yaml`` and in paths.

    Args:
        name: of a pipeline.
        how: to give it another one.

    Raises:
        ConfigError: the name is not valid.
    """
    if not PIPELINE_NAME.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            f"pipeline name {name!r} is not valid: expected letters, digits, '_', '-' and '.', "
            f"not starting with '-' or '.', at most 100; {how}"
        )
    return name


def is_checkout(root: Path) -> bool:
    """Whether the package runs from the workspace itself.

    Raises:
        TrustError: the workspace brings another package of this name, which its stages would run.
        LinkError: what has this name is a link.
    """
    if root.resolve() == PACKAGE.parent:
        return True
    own = root / PACKAGE.name
    refuse_links(own, root)
    if (own / "__init__.py").is_file():
        raise TrustError(
            f"{own} is not the package that runs, {PACKAGE}; if you trust it, run it with "
            f"`cd {root} && python -m {PACKAGE.name}`, else remove it"
        )
    return False


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write ``path`` whole or not at all, durably, under the process's umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with new_file(temporary) as handle, open(handle, "wb", closefd=False) as file:
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


def read_catalog_entry(root: Path, dataset_id: str) -> dict[str, Any] | None:
    """Return what ``catalog/ID.json`` says of a published dataset, with the name of its pipeline.

    Raises:
        ConfigError: it is damaged.
        InvalidDatasetIdError: the id is malformed, and could name any file.
    """
    parse_dataset_id(dataset_id)
    path = root / "catalog" / f"{dataset_id}.json"
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("pipeline"), str):
        raise ConfigError(f"{path} is damaged: it names no pipeline; restore it from git")
    return found
