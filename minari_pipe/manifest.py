"""Whether the files of a finished dataset are still what its ``manifest.json`` names.

The manifest lies beside ``data/``, where real Minari does not look::

    {"content_sha256": ..., "total_episodes": ..., "total_steps": ...,
     "files": {"data/main_data.hdf5": {"sha256": ..., "size": ...}, ...}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minari_pipe.errors import CorruptDatasetError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Hash a file's bytes: 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest in the folder ``dataset``, ``None`` if there is none that can be read."""
    try:
        content = json.loads((dataset / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "files" in content else None


def verify(dataset: Path) -> None:
    """Compare the files of a dataset with its manifest.

    Args:
        dataset: the folder that holds ``data/``.

    Raises:
        CorruptDatasetError: there is no manifest, or it names every file that differs, is missing
            or is not in the manifest.
    """
    path = dataset / MANIFEST
    content = read_manifest(dataset)
    if content is None:
        what = "is no manifest" if path.exists() else "does not exist"
        raise CorruptDatasetError(
            f"{dataset} cannot be verified: {path} {what}. Datasets that a pipeline published have "
            "one; load this one without verify=True"
        )
    if not _is_well_formed(content["files"]):
        raise CorruptDatasetError(
            f"{path} is damaged: `files` must have a sha256 and a size for paths below data/"
        )
    faults = [f"{name} {fault}" for name, fault in file_faults(dataset, content)]
    if faults:
        raise CorruptDatasetError(
            f"{dataset} is not what its {MANIFEST} names: {'; '.join(faults)}. Restore the files, "
            "or delete the dataset and fetch it again"
        )


def file_faults(
    dataset: Path, content: dict[str, Any], seen: dict[str, list[Any]] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` of the files below ``data/`` that the manifest contradicts.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: what an earlier call left here: files that look untouched since are not hashed
            again. Updated.
    """
    stamps = {} if seen is None else seen
    for name, expected in content["files"].items():
        path = dataset / name
        if not path.is_file():
            yield name, "is missing"
            continue
        # A write sets mtime, and setting mtime back sets ctime.
        stat = path.stat()
        stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, expected["sha256"]]
        if stat.st_size != expected["size"]:
            yield name, f"has {stat.st_size} bytes, not {expected['size']}"
        elif stamps.get(name) == stamp:
            continue
        elif sha256(path) == expected["sha256"]:
            stamps[name] = stamp
        else:
            yield name, "has other content (sha256)"
    found = {p.relative_to(dataset).as_posix() for p in (dataset / "data").rglob("*")}
    for name in sorted({n for n in found if not (dataset / n).is_dir()} - set(content["files"])):
        yield name, "is not in the manifest"


def changed_files(
    dataset: Path, content: dict[str, Any], seen: dict[str, list[Any]] | None = None
) -> list[str]:
    """Names of files below ``dataset/data`` that are not what ``content`` names, or not in it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: see :func:`file_faults`.
    """
    return [name for name, _ in file_faults(dataset, content, seen)]


def _is_well_formed(files: Any) -> bool:
    return isinstance(files, dict) and all(
        name.startswith("data/")
        and ".." not in name.split("/")
        and isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and isinstance(entry.get("size"), int)
        for name, entry in files.items()
    )
