"""Read, check and compare the cards of datasets that are transferred."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from minari_pipe.core.files.manifest import CARD
from minari_pipe.datasets.cards.dates import DATED, dated
from minari_pipe.datasets.cards.folder import LARGEST
from minari_pipe.errors import CorruptDatasetError, RemoteError
from minari_pipe.remotes.base import PART, Remote, Upload
from minari_pipe.remotes.transfer.download import Expected

#: what two cards that only differ in their date are compared with
_SOME_DATE = "2000-01-01"


def read_card(
    remote: Remote, dataset_id: str, there: Expected, names: Iterable[str]
) -> dict[str, bytes]:
    """Return files of a dataset's card by name, as far as it has them.

    Args:
        remote: the remote.
        dataset_id: id of the dataset.
        there: its files, from :func:`~minari_pipe.remotes.transfer.download.look`.
        names: the files to read.

    Raises:
        RemoteError: the remote cannot be reached, or sends other bytes than its manifest names.
    """
    found = {}
    for name in names:
        path = f"{CARD}/{name}"
        file = there.files.get(path)
        if file is None or file.size > LARGEST:
            continue
        try:
            content = remote.retried(partial(remote.read, f"{dataset_id}/{path}", 0, file.size + 1))
        except FileNotFoundError:
            content = b""
        if file.sha256 is not None and hashlib.sha256(content).hexdigest() != file.sha256:
            raise RemoteError(
                f"{remote.address} has other bytes of {dataset_id}/{path} than its manifest names; "
                "contact its publisher"
            )
        found[name] = content
    return found


def check_card(
    place: Path, own: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> set[str]:
    """Return the names of the files of a card that the manifest has, after comparing them.

    Args:
        place: the folder that holds ``data/``.
        own: its manifest.
        entries: the entries of its files as they are, by name.

    Raises:
        CorruptDatasetError: one differs or is missing.
    """
    card = {f"{CARD}/{name}": entry for name, entry in own.get(CARD, {}).items()}
    for name, entry in card.items():
        if not entry.items() <= entries.get(name, {}).items():
            what = "has different content" if name in entries else "is missing"
            raise CorruptDatasetError(
                f"{place / name} {what}; make the card again: minari-pipe card {place}"
            )
    return set(card)


def has_same_card(
    remote: Remote, upload: Upload, there: Mapping[str, Any], here: Mapping[str, Any]
) -> bool:
    """Return whether a card is published already, but for the date; no card is none to publish.

    Args:
        remote: the remote.
        upload: what would be uploaded.
        there: the published entries of the card.
        here: those of the upload.
    """
    if not here:
        return True
    for name in there.keys() | here.keys():
        if there.get(name) == here.get(name):
            continue
        if name not in DATED or name not in there or name not in here:
            return False
        path = f"{CARD}/{name}"
        read = partial(remote.read, f"{upload.dataset_id}/{path}", 0, PART)
        both = (remote.retried(read), upload.files[path].read(0, PART))
        if len({dated(name, content, _SOME_DATE) for content in both}) > 1:
            return False
    return True
