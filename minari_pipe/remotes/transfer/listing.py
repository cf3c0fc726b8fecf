"""List the datasets of a remote, skipping damaged datasets and hostile names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id, validate_namespace
from minari_pipe.core.files.atomic import LARGEST
from minari_pipe.core.json_object import json_object
from minari_pipe.datasets.listing import check_summary
from minari_pipe.errors import CorruptDatasetError, InvalidDatasetIdError, RemoteError
from minari_pipe.remotes.base import METADATA, Remote
from minari_pipe.remotes.thread_pool import N_WAITING, ThreadPool
from minari_pipe.remotes.transfer.published import unnamed


def datasets(remote: Remote, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the metadata of a remote's datasets by id; warn of each damaged dataset.

    Args:
        remote: the remote.
        prefix: return only ids that begin with this text.

    Raises:
        RemoteError: the remote cannot be reached.
    """
    ids = remote.retried(partial(remote.dataset_ids, prefix))
    return _metadata(remote, ids)


def versions(remote: Remote, namespace: str | None, name: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of all versions of one dataset, by id.

    Args:
        remote: the remote.
        namespace: namespace of the dataset, None if it has none.
        name: name of the dataset, without a version.
    """
    return _metadata(remote, _ids_of_versions(remote, namespace, name))


def has_version(remote: Remote, namespace: str | None, name: str) -> bool:
    """Return whether a dataset has a version whose metadata name the same id."""
    for dataset_id in _ids_of_versions(remote, namespace, name):
        with suppress(FileNotFoundError, CorruptDatasetError):
            published_metadata(remote, dataset_id)
            return True
    return False


def _ids_of_versions(remote: Remote, namespace: str | None, name: str) -> list[str]:
    prefix = name if namespace is None else f"{namespace}/{name}"
    ids = remote.retried(partial(remote.dataset_ids, prefix))
    return [found for found in ids if _is_version_of(found, namespace, name)]


def namespaces(remote: Remote) -> list[str]:
    """Return the sorted names of a remote's namespaces; warn of each malformed name."""
    found = []
    for name in remote.retried(remote.namespaces):
        try:
            validate_namespace(name)
        except InvalidDatasetIdError as error:
            warnings.warn(f"Skipping a namespace of {remote.address}: {error}", stacklevel=3)
        else:
            found.append(name)
    return sorted(set(found))


def published_metadata(remote: Remote, dataset_id: str) -> tuple[bytes, dict[str, Any]]:
    """Return the published metadata of a dataset, as bytes and parsed.

    Raises:
        CorruptDatasetError: they are not a JSON object, or belong to another dataset.
        FileNotFoundError: there is no such dataset.
    """
    try:
        return _metadata_of(remote, dataset_id)
    except CorruptDatasetError:  # perhaps only in transit
        return _metadata_of(remote, dataset_id)


def read_small(remote: Remote, path: str) -> bytes:
    """Read metadata or a manifest, whose size is up to its publisher.

    Raises:
        CorruptDatasetError: it is larger than such files are.
        FileNotFoundError: there is no such file.
    """
    name = path.rpartition("/")[2]
    content = remote.retried(partial(remote.read, path, 0, LARGEST[name] + 1))
    if len(content) > LARGEST[name]:
        raise CorruptDatasetError(f"its {name} is larger than {LARGEST[name] >> 20} MiB")
    return content


def _metadata_of(remote: Remote, dataset_id: str) -> tuple[bytes, dict[str, Any]]:
    content = read_small(remote, f"{dataset_id}/{METADATA}")
    try:
        metadata = json_object(unnamed(content))
    except ValueError as error:
        raise CorruptDatasetError(f"its metadata.json cannot be read: {error}") from error
    check_summary(dataset_id, metadata)
    return content, metadata


def _is_version_of(dataset_id: str, namespace: str | None, name: str) -> bool:
    try:
        return parse_dataset_id(dataset_id)[:2] == (namespace, name)
    except InvalidDatasetIdError:
        return False


def _metadata(remote: Remote, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    def look(dataset_id: str) -> dict[str, Any] | str | None:
        try:
            parse_dataset_id(dataset_id)
            return published_metadata(remote, dataset_id)[1]
        except FileNotFoundError:  # removed since it was listed
            return None
        except (InvalidDatasetIdError, CorruptDatasetError) as error:
            return str(error)
        except RemoteError as error:
            if isinstance(error.__cause__, PermissionError):  # only this dataset is forbidden
                return str(error)
            raise

    ids = list(ids)
    found = {}
    with ThreadPool(N_WAITING) as pool:
        coming = [pool.submit(partial(look, dataset_id)) for dataset_id in ids]
        for dataset_id, metadata in zip(ids, (one.result() for one in coming), strict=True):
            if isinstance(metadata, dict):
                found[dataset_id] = metadata
            elif metadata is not None:
                warnings.warn(
                    f"Skipping {dataset_id[:300]!r} of {remote.address}: {metadata}", stacklevel=4
                )
    return found
