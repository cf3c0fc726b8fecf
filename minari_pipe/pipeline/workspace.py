"""Finds the workspace (the folder that holds ``.dvc``), and reads and writes files in it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from shlex import quote
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.changes import new_file
from minari_pipe.core.files.links import refuse_links
from minari_pipe.errors import ConfigError, TrustError

PACKAGE = Path(__file__).resolve().parent.parent
#: Folder for everything that is not an output: locks, unfinished blocks, installation records.
STATE = ".minari_pipe"

#: Keys of ``params.yaml`` that record how the file was generated.
NOT_PARAMS = ("overrides", "code")

PIPELINE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


def find_root(start: Path | None = None) -> Path:
    """Return the nearest folder at or above ``start`` (default: the cwd) that holds ``.dvc``."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise ConfigError(f"{here} is not inside a DVC workspace; run `minari-pipe init` there first")


def check_pipeline_name(name: str, how: str = "set it with pipeline=NAME") -> str:
    """Return ``name`` if it is safe in shell commands and in paths.

    It appears in the commands of ``dvc.yaml`` and in paths.

    Args:
        name: the pipeline's name.
        how: how to choose another name, for the error message.

    Raises:
        ConfigError: the name is not valid.
    """
    if not PIPELINE_NAME.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            f"pipeline name {name!r} is not valid: expected at most 100 letters, digits, '_', '-' "
            f"and '.', not starting with '-' or '.'; {how}"
        )
    return name


def is_checkout(root: Path) -> bool:
    """Return whether the package runs from the workspace itself.

    Raises:
        TrustError: the workspace holds another package of this name, which its stages would run.
        LinkError: the entry of this name is a symlink.
    """
    if root.resolve() == PACKAGE.parent:
        return True
    own = root / PACKAGE.name
    refuse_links(own, root)
    if (own / "__init__.py").is_file():
        raise TrustError(
            f"{own} is not the running package, {PACKAGE}; if you trust it, run it with "
            f"`cd {quote(str(root))} && python -m {PACKAGE.name}`; otherwise remove it"
        )
    return False


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write ``path`` atomically and durably, with the permissions of the process's umask."""
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
    """Write ``text`` unless the file already holds it; return whether it was written."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def dump_json(value: Any) -> str:
    """Return deterministic JSON, for files that people read and DVC hashes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ConfigError: the file is damaged, for example by a merge.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is damaged: {exc}; restore it from git, or remove it") from exc


def read_catalog_entry(root: Path, dataset_id: str) -> dict[str, Any] | None:
    """Return the entry ``catalog/ID.json`` of a published dataset, ``None`` if there is none.

    Raises:
        ConfigError: the file is damaged, or names no pipeline.
        InvalidDatasetIdError: the id is malformed; it could point to any file.
    """
    parse_dataset_id(dataset_id)
    path = root / "catalog" / f"{dataset_id}.json"
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("pipeline"), str):
        raise ConfigError(f"{path} is damaged: it names no pipeline; restore it from git")
    return found
