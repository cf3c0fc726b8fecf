"""Update the manifest in the transaction that changes a dataset's files, without signing damage.

A change reads old files and writes new ones, whose digests the manifest then has. What the change
read is compared with the old digests first: without that, damage would be in the new files and
match their digests. Each file that is replaced is compared, but of a file of several pieces only
those whose digest changes. So an append to HDF5 compares the pieces that it reads, which are the
first one and those from the root group on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import MANIFEST, sha256_file, staged_manifest, transaction
from minari_pipe.core.files.checksums import entry_of, pieces_of, size_of, some_piece_differs
from minari_pipe.core.files.links import files_below
from minari_pipe.core.files.manifest import (
    CARD,
    FORMAT,
    TOTALS,
    compose,
    dump,
    entries_of,
    entry_faults,
    entry_named,
    file_faults,
    is_foreign,
    read_manifest,
    readable_manifest,
    verify,
)
from minari_pipe.errors import CorruptDatasetError


def known_manifest(data: Path) -> dict[str, Any] | None:
    """Return the manifest of a dataset, or None if nothing is known of its files.

    It has none, or it is damaged, or another program has changed the dataset.

    Args:
        data: the data directory, in a transaction.

    Raises:
        UnsupportedVersionError: the manifest has a format that cannot be updated.
    """
    content = readable_manifest(data.parent) if data.name == "data" else None
    return None if content is None or is_foreign(data.parent, content) else content


def sizes_named(content: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Return the sizes of the data files by a manifest, or None if it does not say them.

    Args:
        content: see :func:`known_manifest`.
    """
    if content is None or content.get("format") != FORMAT:
        return None
    return {name: size_of(entry) for name, entry in content["data"].items()}


def stage_manifest(
    data: Path,
    stage: Path,
    metadata: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    content: dict[str, Any],
) -> None:
    """Update a dataset's manifest in the transaction that changes its files.

    Args:
        data: the data directory.
        stage: the new versions of files, see :func:`minari_pipe.core.files.atomic.transaction`.
        metadata: the metadata after the change.
        entries: the entries of new versions that are known already, by paths in the stage.
        content: the manifest before the change; see :func:`known_manifest`.

    Raises:
        CorruptDatasetError: a file that the change has read does not match the manifest.
    """
    if content.get("format") == FORMAT:
        new = {name: entry_of(stage / name) for name in files_below(stage) if name not in entries}
        new |= {name: dict(entry) for name, entry in entries.items()}
        _refuse_damage(data, content, {f"data/{name}": entry for name, entry in new.items()})
        files = {"data": dict(sorted((content["data"] | new).items())), CARD: {}}
    else:
        new = {
            f"data/{name}": {
                "sha256": sha256_file(stage / name),
                "size": os.path.getsize(stage / name),
            }
            for name in files_below(stage)
        }
        _refuse_damage(data, content, new)
        files = {"files": dict(sorted((content["files"] | new).items()))}
    changed = {**content, **files, **{key: metadata[key] for key in TOTALS}}
    changed.pop("content_sha256", None)
    dump(changed, staged_manifest(stage))


def remove_card(dataset: Path, names: Iterable[str]) -> None:
    """Remove the card of a dataset that has changed; other files in its folder stay.

    Args:
        dataset: the folder that holds ``data/``.
        names: its files, as the manifest before the change has them.
    """
    folder = dataset / CARD
    content = readable_manifest(dataset)
    if content is None or content.get(CARD) or folder.is_symlink():
        return
    with suppress(OSError):  # the folder is not empty, or somebody else removes it too
        for name in names:
            if "/" not in name:  # else a part of it may be a link
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def pieces_named(
    data: Path, name: str, content: Mapping[str, Any] | None
) -> tuple[list[str] | None, bool]:
    """Return what the manifest says of a file that is to be continued.

    Args:
        data: the data directory, in a transaction.
        name: name of the file in it.
        content: see :func:`known_manifest`.

    Returns:
        The digests of its pieces, if the manifest has them for a file of this size, and whether
        more bytes in the file would not contradict it.
    """
    if content is None:
        return None, True
    entry = content["data"].get(name, {}) if content.get("format") == FORMAT else {}
    if "size" not in entry or size_of(entry) != os.path.getsize(data / name):
        return None, False
    return pieces_of(entry), "room" in entry


def _refuse_damage(
    data: Path, content: Mapping[str, Any], new: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise an error if a file that is replaced does not match the manifest.

    Args:
        data: the data directory, in a transaction.
        content: the manifest before the change.
        new: the entries of the new versions, by names such as ``data/main_data.hdf5``.

    Raises:
        CorruptDatasetError: one does not match; the message names every file that does not.
    """
    for name, entry in new.items():
        old = entry_named(content, name)
        if old is not None and _differs(data.parent, name, old, entry):
            verify(data.parent)  # raises, and names every fault


def _differs(dataset: Path, name: str, old: dict[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a file differs from its entry where the entry of its new version does."""
    if "pieces" not in old:
        is_equal = any(key in new and new[key] == old.get(key) for key in ("xxh3_128", "sha256"))
        return not is_equal and any(entry_faults(dataset, {name: old}, [], {}))
    path, below = dataset / name, dataset / "data"
    numbers = [
        number
        for number, (piece, later) in enumerate(zip_longest(old["pieces"], pieces_of(new)))
        if piece is not None and piece != later
    ]
    return some_piece_differs(path, old, numbers, below)


def upgrade(dataset: Path, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Replace a manifest of format 1 by one of format 2, after comparing the files with it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest; its ``content_sha256``, if any, is that of the data.
        metadata: the dataset's metadata, for the totals.

    Raises:
        CorruptDatasetError: the files do not match it, or it has changed meanwhile.
    """
    with transaction(dataset / "data") as stage:
        if read_manifest(dataset) != content:
            raise CorruptDatasetError(
                f"{dataset} changed while its {MANIFEST} was rewritten; run the command again"
            )
        if any(file_faults(dataset, content)):
            verify(dataset)  # raises, and names every fault
        is_published = "content_sha256" in content
        entries = {
            name: entry_of(dataset / name, sha256=is_published) for name in entries_of(content)
        }
        new = compose(metadata, entries)
        if is_published:
            new["content_sha256"] = content["content_sha256"]
        dump(new, staged_manifest(stage))
