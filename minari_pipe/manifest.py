"""What the files of a dataset are, told by its ``manifest.json``.

The manifest lies beside ``data/``, where real Minari does not look; so do the checkpoints in
``policies/`` with which a pipeline made the data::

    {"total_episodes": ..., "total_steps": ...,
     "files": {"data/main_data.hdf5": {"sums": ..., "size": ...},
               "data/metadata.json": {"sha256": ..., "size": ...}, ...,
               "policies/policy.zip": {"sha256": ..., "size": ...}, ...}}

It is written with the dataset and kept in step by every change that this library makes; another
program's change makes it untrue. Files of more than 64 KiB have ``sums``, which are cheaper, see
:mod:`minari_pipe.checksums`. The manifest of a pipeline has the sha256 of every file and the
``content_sha256`` besides, which goes with the first change.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

from minari_pipe.checksums import content_differs, entry_of, entry_of_bytes, is_entry
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.files import MANIFEST, NO_NAMES, current, read_text, sha256_file, staged_manifest

POLICIES = "policies"
"""Folder beside ``data/`` for the checkpoints that a dataset was made with, plain files."""

NAME_KEY = "manifest_sha256"
"""The first key of metadata that were published: the sha256 of the manifest, which names theirs."""

_TOTALS = ("total_episodes", "total_steps")
_METADATA = "data/metadata.json"
_NAMED = re.compile(rb'(\s*\{)"manifest_sha256": "([0-9a-f]{64})", ')


def describe(dataset: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a finished dataset.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: its metadata, for the totals.
    """
    names = sorted(files_of(dataset))
    return {
        **{key: metadata[key] for key in _TOTALS},
        "files": {
            name: {"sha256": sha256_file(dataset / name), "size": os.path.getsize(dataset / name)}
            for name in names
        },
    }


def write_manifest(
    dataset: Path, metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the manifest of a dataset that was just written.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: its metadata, for the totals.
        entries: what is known of its files, by their paths in ``data/``.
    """
    files = {f"data/{name}": entries[name] for name in sorted(entries)}
    _dump({**{key: metadata[key] for key in _TOTALS}, "files": files}, dataset / MANIFEST)


def ensure_manifest(dataset: Path) -> None:
    """Write the manifest of a dataset in the making if it has none and its data have metadata."""
    if (dataset / MANIFEST).exists():
        return
    data = dataset / "data"
    try:
        metadata = json.loads((data / "metadata.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    if metadata.keys() >= set(_TOTALS):
        write_manifest(
            dataset, metadata, {name: entry_of(data / name) for name in files_below(data)}
        )


def stage_manifest(
    data: Path, stage: Path, metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Let a change of a dataset's files change its manifest with them, if it has one.

    Args:
        data: the directory of the data.
        stage: the new versions of files, see :func:`minari_pipe.files.transaction`.
        metadata: what the change makes of the metadata.
        entries: what is known of new versions already, by their paths in the stage.
    """
    content = read_manifest(data.parent) if data.name == "data" else None
    if content is None or not _is_well_formed(content["files"]):
        return
    if not totals_agree(data, content):
        return  # of a change by another program, of whose files nothing is known
    changed = {
        f"data/{name}": entries.get(name) or entry_of(stage / name) for name in files_below(stage)
    }
    content["files"] = dict(sorted((content["files"] | changed).items()))
    content.pop("content_sha256", None)
    _dump({**content, **{key: metadata[key] for key in _TOTALS}}, staged_manifest(stage))


def read_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest in the folder ``dataset``, ``None`` if there is none that can be read."""
    try:
        content = json.loads(current(dataset / MANIFEST, read_text, directory=dataset / "data"))
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
            f"{dataset} cannot be verified: {path} {what}. Datasets made by minari_pipe have one; "
            "load this one without verify=True"
        )
    faults = [f"{name[:300]} {fault}" for name, fault in file_faults(dataset, content)]
    if not faults:
        return None
    if read_manifest(dataset) != content:  # somebody appends meanwhile
        return verify(dataset)
    told = "; ".join(faults)
    if not totals_agree(dataset / "data", content):
        raise CorruptDatasetError(
            f"{dataset} was changed since it was finished, by a program that does not keep its "
            f"{MANIFEST}: {told}. Load it without verify=True, or combine it into a new version"
        )
    raise CorruptDatasetError(
        f"{dataset} is not what its {MANIFEST} names: {told}. Restore the files, or delete the "
        "dataset and fetch it again"
    )


def file_faults(
    dataset: Path, content: dict[str, Any], seen: dict[str, list[Any]] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` of the dataset's files that the manifest contradicts.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: what an earlier call left here: files that look untouched since are not hashed
            again. Updated.
    """
    if not _is_well_formed(content["files"]):
        yield (
            MANIFEST,
            "is damaged: `files` must have paths in data/ or policies/, each with size and sha256",
        )
        return
    data = dataset / "data"
    stamps = {} if seen is None else seen
    for name, expected in content["files"].items():

        def fault(path: Path, name: str = name, expected: dict[str, Any] = expected) -> str | None:
            # A write sets mtime, and setting mtime back sets ctime.
            stat = path.stat()
            stamp = [
                *(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns),
                expected.get("sha256") or expected["sums"],
            ]
            if not S_ISREG(stat.st_mode):
                return "is no file"
            if name == _METADATA and _is_published(path, expected):
                return None
            if stat.st_size != expected["size"]:
                return f"has {stat.st_size} bytes, not {expected['size']}"
            if stamps.get(name) != stamp:
                if (what := content_differs(path, expected)) is not None:
                    return f"has other content ({what})"
                stamps[name] = stamp
            return None

        try:
            found = current(dataset / name, fault, directory=data)
        except (FileNotFoundError, NotADirectoryError):
            found = "is missing"
        except OSError as error:
            found = f"cannot be read: {error.strerror}"
        if found is not None:
            yield name, found
    for name in sorted(set(files_of(dataset)) - set(content["files"])):
        yield name, "is not in the manifest"


def manifest_named(metadata: bytes) -> str | None:
    """Return the sha256 that published metadata name, None if they name none, as real Minari's.

    Example:
        >>> manifest_named(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')[:4]
        '0000'
    """
    found = _NAMED.match(metadata)
    return found[2].decode() if found else None


def unnamed(metadata: bytes) -> bytes:
    """Return the dataset's own metadata: what was published, without the name of the manifest.

    Example:
        >>> unnamed(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')
        b'{"total_steps": 3}'
    """
    return _NAMED.sub(rb"\1", metadata, count=1) if _NAMED.match(metadata) else metadata


def _is_published(path: Path, expected: Mapping[str, Any]) -> bool:
    """Whether metadata are the expected ones, as a remote has them.

    They are so in a directory that is a remote and a root, and where real Minari has fetched them.
    """
    content = path.read_bytes()
    own = unnamed(content)
    if own == content or len(own) != expected["size"]:
        return False
    if "sha256" in expected:
        return hashlib.sha256(own).hexdigest() == expected["sha256"]
    return entry_of_bytes([own]).get("sums") == expected["sums"]


def changed_files(
    dataset: Path, content: dict[str, Any], seen: dict[str, list[Any]] | None = None
) -> list[str]:
    """Names of a dataset's files that are not what ``content`` names, or not in it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: see :func:`file_faults`.
    """
    return [name for name, _ in file_faults(dataset, content, seen)]


def _dump(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def files_of(dataset: Path) -> Iterator[str]:
    """Yield the paths of a dataset's files, those in ``data/`` and ``policies/``."""
    yield from (f"data/{name}" for name in files_below(dataset / "data"))
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted((dataset / POLICIES).iterdir()):
            # A folder is a dataset's or a namespace's, for which this one is a namespace.
            if not path.name.startswith(".") and not path.is_dir():
                yield f"{POLICIES}/{path.name}"


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files, but what is hidden: the traces of a change, and of desktops."""
    for top, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(top, name).relative_to(folder).as_posix()


def totals_agree(data: Path, content: Mapping[str, Any]) -> bool:
    """Whether the metadata count what the manifest counts; what is damaged counts nothing else."""
    try:
        metadata = json.loads(current(data / "metadata.json", read_text))
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(metadata, dict) or all(
        metadata.get(key) == content.get(key, metadata.get(key)) for key in _TOTALS
    )


def _is_well_formed(files: Any) -> bool:
    return isinstance(files, dict) and all(
        _is_name(name) and is_entry(entry) for name, entry in files.items()
    )


def _is_name(name: str) -> bool:
    folder, *rest = name.split("/")
    below = {"data": bool(rest), POLICIES: len(rest) == 1}
    return below.get(folder, False) and NO_NAMES.isdisjoint(rest)
