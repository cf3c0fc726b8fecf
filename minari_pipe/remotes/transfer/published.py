"""Name the manifest in a published ``metadata.json``, and check the names of published files.

The manifest holds the sha256 of every file, including ``metadata.json``, which therefore cannot
hold that of the manifest. So the published file begins with one key more than the dataset's own::

    {"manifest_sha256": "…", "action_space": …

A download removes the key again, byte for byte; real Minari ignores it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any

from minari_pipe.core.files.atomic import is_file_name
from minari_pipe.core.files.manifest import FORMAT, NAME_KEY, entries_of, parsed
from minari_pipe.core.files.manifest import manifest_named as manifest_named
from minari_pipe.core.files.manifest import unnamed as unnamed
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.remotes.base import METADATA

_FOLDERS = ("data", "policies", "card")
#: Largest number of nested folders; the files of a dataset lie in three at most.
_DEEPEST = 20
_LONGEST_NAME = 255


def naming(metadata: bytes, manifest: bytes) -> bytes:
    """Return the metadata to publish, with the sha256 of the manifest.

    Args:
        metadata: bytes of the dataset's own metadata, a non-empty JSON object.
        manifest: bytes of the manifest.

    Example:
        >>> naming(b'{"total_steps": 3}', b"{}")[:33]
        b'{"manifest_sha256": "44136fa355b3'
    """
    start = metadata.index(b"{") + 1
    name = f'"{NAME_KEY}": "{hashlib.sha256(manifest).hexdigest()}", '
    return metadata[:start] + name.encode() + metadata[start:]


def parse_manifest(content: bytes) -> dict[str, Any]:
    """Return the manifest of a remote, with every name checked to stay in the dataset's folder.

    Raises:
        CorruptDatasetError: it is not a manifest, or lacks the sha256 of a file.
        UnsupportedVersionError: it has a format of a later version of this package.
    """
    manifest = parsed(content, "its manifest.json")
    files = entries_of(manifest, card=True)
    check_names(files)
    if METADATA not in files:
        raise CorruptDatasetError(f"its manifest.json does not list {METADATA}")
    for name, entry in files.items():
        if manifest.get("format") == FORMAT and "sha256" not in entry:
            raise CorruptDatasetError(f"its manifest.json has no sha256 for {name}")
    return manifest


def is_part(name: str) -> bool:
    """Return whether a file at a dataset's place is part of it: no README, and nothing hidden.

    Example:
        >>> [name for name in ("data/a.hdf5", "data/.DS_Store", "docs/a.gif") if is_part(name)]
        ['data/a.hdf5']
    """
    folder, *parts = name.split("/")
    # Names of dots only are not hidden files but hostile.
    is_hidden = any(part.startswith(".") and part.strip(".") for part in parts)
    return folder in _FOLDERS and bool(parts) and not is_hidden


def check_names(names: Collection[str]) -> None:
    """Raise an error unless all names can be files in the folder of one dataset.

    Raises:
        CorruptDatasetError: a name leads elsewhere, or is a folder of another name.
    """
    for name in names:
        check_name(name)
        for parent in PurePosixPath(name).parents:
            if parent.as_posix() in names:
                raise CorruptDatasetError(
                    f"it has a file {parent.as_posix()[:200]!r} and another file below that path"
                )


def check_name(name: str) -> str:
    """Return the name of a dataset's file if it stays in the dataset's folder.

    Raises:
        CorruptDatasetError: it leads elsewhere, or datasets have no such files.

    Example:
        >>> check_name("data/main_data.hdf5")
        'data/main_data.hdf5'
        >>> check_name("data/../../../.bashrc")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.CorruptDatasetError: it has a file 'data/../../../.bashrc', ...
    """
    parts = name.split("/")
    if (
        len(parts) < 2
        or len(parts) > _DEEPEST
        or parts[0] not in _FOLDERS
        or not all(map(is_file_name, parts))
        or not name.isprintable()  # control characters, and surrogates, which have no bytes
        or PurePosixPath(name).as_posix() != name
        or any(
            part.startswith(".")
            or re.search(r"(^dvc\.(yaml|lock)|\.dvc)[ .]*$", part, re.I)  # `dvc repro` runs them
            or len(part.encode()) > _LONGEST_NAME
            or re.search(r"[\\\0:]", part)
            for part in parts
        )
    ):
        raise CorruptDatasetError(
            f"it has a file {name[:200]!r}, which is not a valid path below data/, policies/ or "
            "card/"
        )
    return name
