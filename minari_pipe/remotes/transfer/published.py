"""Name the manifest in a published ``metadata.json``.

The manifest holds the sha256 of every file, including ``metadata.json``, which therefore cannot
hold that of the manifest. So the published file begins with one key more than the dataset's own::

    {"manifest_sha256": "…", "action_space": …

A download removes the key again, byte for byte; real Minari ignores it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from minari_pipe.core.files.manifest import FORMAT, NAME_KEY, entries_of, parsed
from minari_pipe.core.files.manifest import manifest_named as manifest_named
from minari_pipe.core.files.manifest import unnamed as unnamed
from minari_pipe.core.files.names import check_names
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.remotes.base import METADATA


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
