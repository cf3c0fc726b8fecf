"""Split an address into a remote and the name of something in it.

``s3://bucket/D4RL/door`` may be a namespace in a bucket, or the names that begin with ``door`` in
a folder of a bucket; the same holds for directories. The files there decide: the metadata of a
dataset name its id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.names import NO_NAMES
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import ConfigError, InvalidDatasetIdError, RemoteError
from minari_pipe.remotes import Remote, split_scheme
from minari_pipe.remotes.base import METADATA
from minari_pipe.remotes.objects import ObjectStore
from minari_pipe.remotes.transfer.listing import read_small
from minari_pipe.remotes.transfer.published import unnamed

#: Number of datasets to read until one names its id.
_N_LOOKS = 8


def split_address(address: str, opened: Callable[[str], Remote]) -> tuple[Remote, str]:
    """Split an address into the remote and a prefix of ids in it.

    Args:
        address: such as ``hf://org/D4RL/door``; every name that begins like its last part counts.
        opened: opens a remote at an address.

    Returns:
        The remote, and the rest of the address, with a trailing slash if the address has one. If
        nothing is found, the whole address is the remote's, and the rest is empty.

    Raises:
        ConfigError: the address is invalid.
        RemoteError: the remote cannot be reached.
    """
    scheme, path = split_scheme(address)
    start = f"{scheme}://" if "://" in address else ""
    if scheme != "file" and path[:1] in ("", "/"):
        raise ConfigError(
            f"{address!r} does not name a bucket or organization; expected one after ://"
        )
    if scheme == "hf":  # an organization has no folders
        owner, _, rest = path.partition("/")
        return opened(f"hf://{owner}"), rest
    whole, end = path.rstrip("/"), path[len(path.rstrip("/")) :][:1]
    if scheme == "file" and os.path.isdir(whole) and not os.path.exists(f"{whole}/{METADATA}"):
        end = "/"  # the folder alone: those beside it that begin alike are other remotes
    if scheme != "file" and "/" not in whole:  # a bucket
        return opened(address), ""
    at = opened
    # One listing of a bucket shows all names with this prefix, and may be all that is allowed.
    for place in _places(whole) if scheme == "file" else [whole.partition("/")[0]]:
        rest = whole[len(place) :].lstrip("/")
        try:
            remote = opened(start + (place or "/"))
            found = remote.retried(partial(remote.dataset_ids, rest))
        except ConfigError:  # such as a bucket without a name
            continue
        except RemoteError:
            if scheme == "file":  # there is no such directory
                continue
            raise
        if isinstance(remote, ObjectStore):
            at = remote.at
        # Skip names such as '..': a client may read another place, and retries if refused.
        found = [found_id for found_id in found if NO_NAMES.isdisjoint(found_id.split("/"))]
        below = [found_id for found_id in found if f"{found_id}/".startswith(f"{rest}/")]
        for dataset_id in islice(below or found, _N_LOOKS):
            own = _own_id(remote, dataset_id)
            there = f"{place}/{dataset_id}"
            root = there.removesuffix(f"/{own}")
            # For s3://bucket/door, bucket/door-old/human-v2 may belong to someone else.
            if own is not None and root != there and f"{whole}/".startswith(f"{root}/"):
                rest = whole[len(root) :].lstrip("/")
                return at(start + (root or "/")), rest and rest + end
    return at(address), ""


def _places(path: str) -> Iterator[str]:
    """Yield a path and its parents."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _own_id(remote: Remote, dataset_id: str) -> str | None:
    """Return the id that the metadata of a dataset name, None if they name none."""
    try:
        content = read_small(remote, f"{dataset_id}/{METADATA}")
        own = json_object(unnamed(content))["dataset_id"]
        parse_dataset_id(own)
    except (InvalidDatasetIdError, OSError, ValueError, TypeError, KeyError):
        return None
    return own
