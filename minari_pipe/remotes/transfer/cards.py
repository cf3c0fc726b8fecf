"""Read files of the card of a dataset on a remote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial

from minari_pipe.core.files.manifest import CARD
from minari_pipe.datasets.cards.folder import LARGEST
from minari_pipe.errors import RemoteError
from minari_pipe.remotes.base import Remote
from minari_pipe.remotes.transfer.download import Expected


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
