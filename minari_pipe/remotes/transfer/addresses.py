"""Finds where the address of a remote ends, and what is in the remote begins.

``s3://bucket/D4RL/door`` is a namespace in a bucket, or what a folder of a bucket has under names
that begin with ``door``; the same holds for directories. What lies there tells: the metadata of a
dataset name its id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.atomic import NO_NAMES
from minari_pipe.errors import ConfigError, InvalidDatasetIdError, RemoteError
from minari_pipe.remotes import Remote, split_scheme
from minari_pipe.remotes.base import METADATA
from minari_pipe.remotes.objects import ObjectStore
from minari_pipe.remotes.transfer.published import unnamed

#: so many datasets without an id may come before one that has one
_N_LOOKS = 8


def split_address(address: str, opened: Callable[[str], Remote]) -> tuple[Remote, str]:
    """Split an address into the remote and the beginning of ids in it.

    Args:
        address: such as ``hf://org/D4RL/door``; whatever the last part begins counts as meant.
        opened: opens a remote at an address.

    Returns:
        The remote, and the rest of the address, with a slash if it ends with one. Where nothing is
        found, the address is that of the remote as a whole, and the rest is empty.

    Raises:
        ConfigError: the address is none.
        RemoteError: the remote cannot be reached.
    """
    scheme, path = split_scheme(address)
    start = f"{scheme}://" if "://" in address else ""
    if scheme != "file" and path[:1] in ("", "/"):
        raise ConfigError(f"{address!r} names no bucket or organization; expected one after ://")
    if scheme == "hf":  # an organization has no folders
        owner, _, rest = path.partition("/")
        return opened(f"hf://{owner}"), rest
    whole, end = path.rstrip("/"), path[len(path.rstrip("/")) :][:1]
    if scheme != "file" and "/" not in whole:  # a bucket
        return opened(address), ""
    at = opened
    # One listing of a bucket shows all that begins like this, and reading it may be all one may.
    for place in _places(whole) if scheme == "file" else [whole.partition("/")[0]]:
        rest = whole[len(place) :].lstrip("/")
        try:
            remote = opened(start + (place or "/"))
            found = remote.retried(partial(remote.dataset_ids, rest))
        except ConfigError:  # such as of a bucket without a name
            continue
        except RemoteError:
            if scheme == "file":  # there is no such directory
                continue
            raise
        if isinstance(remote, ObjectStore):
            at = remote.at
        # A client may read another place than such a name says, and asks again if it is refused.
        found = [found_id for found_id in found if NO_NAMES.isdisjoint(found_id.split("/"))]
        below = [found_id for found_id in found if f"{found_id}/".startswith(f"{rest}/")]
        for dataset_id in islice(below or found, _N_LOOKS):
            own = _own_id(remote, dataset_id)
            there = f"{place}/{dataset_id}"
            root = there.removesuffix(f"/{own}")
            # Of s3://bucket/door, bucket/door-old/human-v2 may be somebody else's.
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
    """Return what the metadata of a dataset say of its id, None if they say nothing of the kind."""
    try:
        content = remote.retried(partial(remote.read, f"{dataset_id}/{METADATA}"))
        own = json.loads(unnamed(content))["dataset_id"]
        parse_dataset_id(own)
    except (InvalidDatasetIdError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return own
