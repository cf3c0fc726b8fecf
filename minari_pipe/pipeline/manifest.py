"""Whether the files of a published or installed dataset are still what its manifest names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.blocks import sha256
from minari_pipe.pipeline.workspace import read_json

MANIFEST = "manifest.json"


def read_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest in the folder ``dataset``, ``None`` if there is none that can be read."""
    try:
        content = read_json(dataset / MANIFEST)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "files" in content else None


def released_manifest(dataset_id: str, root: Path) -> dict[str, Any] | None:
    """The manifest that ``releases/`` records for a version, ``None`` if it is not released.

    Raises:
        ConfigError: the record cannot be read; a version must not change because of that.
    """
    record = root / "releases" / f"{dataset_id}.json"
    if not record.is_file():
        return None
    try:
        content = dict(read_json(record)["manifest"])
        content["content_sha256"]
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise ConfigError(f"{record} is damaged; restore it from git") from exc
    return content


def changed_files(
    dataset: Path, content: dict[str, Any], seen: dict[str, list[Any]] | None = None
) -> list[str]:
    """Names of files below ``dataset/data`` that are not what ``content`` names, or not in it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: what an earlier call left here: files that look untouched since are not hashed
            again. Updated.
    """
    stamps = {} if seen is None else seen
    changed = []
    for name, expected in content["files"].items():
        path = dataset / name
        if not path.is_file() or path.stat().st_size != expected["size"]:
            changed.append(name)
            continue
        # A write sets mtime, and setting mtime back sets ctime.
        stat = path.stat()
        stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, expected["sha256"]]
        if stamps.get(name) == stamp:
            continue
        if sha256(path) == expected["sha256"]:
            stamps[name] = stamp
        else:
            changed.append(name)
    found = {p.relative_to(dataset).as_posix() for p in (dataset / "data").rglob("*")}
    extra = {n for n in found if not (dataset / n).is_dir()} - set(content["files"])
    return changed + sorted(extra)
