"""Datasets and namespaces that are hosted elsewhere; the functions have Minari's names."""

from __future__ import annotations

import os
import warnings
from typing import Any

from minari_pipe.dataset_id import (
    gen_dataset_id,
    namespace_hierarchy,
    parse_dataset_id,
    validate_namespace,
)
from minari_pipe.datasets_root import data_path_of, get_dataset_path
from minari_pipe.errors import (
    ConfigError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    MinariPipeError,
    RemoteError,
    UnsupportedVersionError,
)
from minari_pipe.listing import selected
from minari_pipe.metadata import MINARI_VERSION, is_supported_version
from minari_pipe.namespace import (
    get_namespace_metadata,
    list_local_namespaces,
    namespace_metadata_bytes,
)
from minari_pipe.remotes import Remote, default_address, open_remote, split_scheme
from minari_pipe.storage.base import MinariStorage
from minari_pipe.transfer import remote_listing
from minari_pipe.transfer.download import download, fetch_namespace
from minari_pipe.transfer.upload import Published, upload

OFFLINE_VARIABLE = "MINARI_PIPE_OFFLINE"


def download_dataset(dataset_id: str, force_download: bool = False) -> None:
    """Fetch a dataset into the local root, with those that it was combined from.

    Nothing is seen of it before it is whole and verified; a download that was interrupted goes on
    where it was.

    Args:
        dataset_id: id of the dataset, or its whole address such as ``hf://org/door/human-v2``;
            without a version the latest that this package can read.
        force_download: fetch it also if it is there, in its place, or follows an unknown version.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: the remote has no such dataset.
        UnsupportedVersionError: it follows a version of the standard that cannot be read.
        CorruptDatasetError: what the remote has contradicts itself, or has hostile names.
        RemoteError: the remote cannot be reached, or sends other bytes than were published.
        ConfigError: the address is none, or the local root is read-only.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, download_dataset, publish_dataset
        >>> from minari_pipe.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     _ = publish_dataset("example/steps-v0", shared)
        ...     delete_dataset("example/steps-v0")
        ...     download_dataset(f"file://{shared}/example/steps-v0")
        >>> delete_dataset("example/steps-v0")
    """
    remote, wanted = _located(dataset_id)
    _download(remote, wanted, force_download, set())


def publish_dataset(
    dataset_id: str,
    remote_path: str | None = None,
    *,
    token: str | None = None,
    dry_run: bool = False,
) -> Published:
    """Publish a dataset of the local root, and say what came of it.

    Args:
        dataset_id: id of the dataset.
        remote_path: address of the remote, such as ``s3://bucket``; None means ``MINARI_REMOTE``,
            or the default.
        token: what the remote knows its writers by; None takes what the provider's tools would.
        dry_run: look at both sides and send nothing.

    Raises:
        InvalidDatasetIdError: the id is malformed, or has no version.
        DatasetNotFoundError: there is no such dataset.
        DatasetExistsError: the remote has this version with other content.
        CorruptDatasetError: the dataset's files are not what its manifest names.
        RemoteError: the remote cannot be reached, refuses, or stored other bytes.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, publish_dataset
        >>> from minari_pipe.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     publish_dataset("example/steps-v0", shared).outcome
        ...     publish_dataset("example/steps-v0", shared).outcome
        'uploaded'
        'present'
        >>> delete_dataset("example/steps-v0")
    """
    return upload(dataset_id, _opened(remote_path, token), dry_run=dry_run)


def upload_dataset(dataset_id: str, token: str | None = None) -> None:
    """Publish a dataset in the remote of ``MINARI_REMOTE``, with those that it was combined from.

    Args:
        dataset_id: id of the dataset.
        token: of the Hub; for Google the file of a service account's key. None or an empty text
            take what the provider's own tools would; S3 and directories know no other.

    Raises:
        MinariPipeError: see :func:`publish_dataset`.

    Example:
        >>> import os, tempfile
        >>> from minari_pipe import delete_dataset, list_remote_datasets, upload_dataset
        >>> from minari_pipe.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as os.environ["MINARI_REMOTE"]:
        ...     upload_dataset("example/steps-v0")
        ...     list(list_remote_datasets())
        ['example/steps-v0']
        >>> del os.environ["MINARI_REMOTE"]
        >>> delete_dataset("example/steps-v0")
    """
    remote = _opened(None, token)
    waiting, seen = [dataset_id], {dataset_id}
    while waiting:
        name = waiting.pop()
        done = upload(name, remote)
        if done.outcome == "present":
            warnings.warn(f"Upload aborted. {name} is already in remote.", stacklevel=2)
        for note in done.notes:
            warnings.warn(note, stacklevel=2)
        for parent in _combined(name):
            if parent in seen:
                continue
            seen.add(parent)
            if data_path_of(parent).exists():
                waiting.append(parent)
            else:
                warnings.warn(
                    f"{name} was combined from {parent}, which is not in the local root and stays "
                    "unpublished",
                    stacklevel=2,
                )


def list_remote_datasets(
    remote_path: str | None = None,
    prefix: str | None = None,
    latest_version: bool = False,
    compatible_minari_version: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the metadata of a remote's datasets by their ids.

    What is broken, or has a name that no dataset can have, is left out with a warning.

    Args:
        remote_path: address of the remote; None means ``MINARI_REMOTE``, or the default.
        prefix: only ids that begin with this text.
        latest_version: only the highest version of each.
        compatible_minari_version: only those that this version can read.

    Raises:
        RemoteError: the remote cannot be reached.
        ConfigError: the address is none.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, list_remote_datasets, publish_dataset
        >>> from minari_pipe.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     _ = publish_dataset("example/steps-v0", shared)
        ...     list_remote_datasets(shared)["example/steps-v0"]["total_episodes"]
        3
        >>> delete_dataset("example/steps-v0")
    """
    return selected(
        remote_listing.datasets(_opened(remote_path), prefix or ""),
        latest_version=latest_version,
        compatible_minari_version=compatible_minari_version,
    )


def list_remote_namespaces(remote_path: str | None = None) -> list[str]:
    """Return the names of a remote's namespaces, sorted.

    Args:
        remote_path: address of the remote; None means ``MINARI_REMOTE``, or the default.

    Raises:
        RemoteError: the remote cannot be reached.

    Example:
        >>> import tempfile
        >>> from minari_pipe import list_remote_namespaces
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     list_remote_namespaces(shared)
        []
    """
    return remote_listing.namespaces(_opened(remote_path))


def download_namespace_metadata(namespace: str, overwrite: bool = False) -> None:
    """Fetch the metadata of a namespace into the local root; make it if it is not there.

    Args:
        namespace: name of the namespace.
        overwrite: replace metadata that are there.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        DatasetNotFoundError: the remote has no such namespace.
        RemoteError: the remote cannot be reached.

    Example:
        >>> import os, tempfile
        >>> from minari_pipe import create_namespace, delete_namespace, upload_namespace
        >>> from minari_pipe import download_namespace_metadata, get_namespace_metadata
        >>> create_namespace("example", description="Steps")
        >>> with tempfile.TemporaryDirectory() as os.environ["MINARI_REMOTE"]:
        ...     upload_namespace("example")
        ...     delete_namespace("example")
        ...     download_namespace_metadata("example")
        >>> get_namespace_metadata("example")
        {'description': 'Steps'}
        >>> del os.environ["MINARI_REMOTE"]
        >>> delete_namespace("example")
    """
    validate_namespace(namespace)
    if not overwrite and namespace in list_local_namespaces():
        warnings.warn(
            f"Skipping update for namespace '{namespace}' due to existing local metadata. Set "
            "overwrite=True to overwrite local data.",
            stacklevel=2,
        )
        return
    remote = _opened(None)
    if not fetch_namespace(remote, namespace, overwrite=overwrite):
        raise DatasetNotFoundError(
            f"The namespace '{namespace}' doesn't exist in {remote.address}; "
            f"list_remote_namespaces() returns those that do"
        )


def upload_namespace(namespace: str, token: str | None = None) -> None:
    """Publish the metadata of a local namespace, and of its parents where the remote has none.

    Args:
        namespace: name of the namespace.
        token: see :func:`upload_dataset`.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        DatasetNotFoundError: there is no such namespace in the local root.
        RemoteError: the remote cannot be reached, or refuses.

    Example:
        >>> import os, tempfile
        >>> from minari_pipe import create_namespace, delete_namespace, upload_namespace
        >>> from minari_pipe import list_remote_namespaces
        >>> create_namespace("example/steps")
        >>> with tempfile.TemporaryDirectory() as os.environ["MINARI_REMOTE"]:
        ...     upload_namespace("example/steps")
        ...     list_remote_namespaces()
        ['example', 'example/steps']
        >>> del os.environ["MINARI_REMOTE"]
        >>> delete_namespace("example/steps")
        >>> delete_namespace("example")
    """
    get_namespace_metadata(namespace)  # says what is wrong if it is not there
    remote = _opened(None, token)
    there = remote_listing.namespaces(remote)
    if namespace in there:
        warnings.warn(
            f"Upload aborted. Namespace '{namespace}' is already in remote.", stacklevel=2
        )
        return
    for parent in namespace_hierarchy(namespace):
        if parent not in there:
            remote.send_namespace(parent, namespace_metadata_bytes(parent))


def _opened(address: str | None, token: str | None = None) -> Remote:
    address = address or default_address()
    offline = os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no")
    if offline and split_scheme(address)[0] != "file":
        raise RemoteError(
            f"{address} is not asked, as {OFFLINE_VARIABLE} is set; unset it where there is a "
            "network, or name a directory with MINARI_REMOTE"
        )
    return open_remote(address, token)


def _located(address: str) -> tuple[Remote, str]:
    """Split ``hf://org/door/human-v2`` into the remote and the id; an id alone is of the default.

    A bucket's folder, or a directory, could end anywhere: it ends where the rest is a dataset.
    """
    if "://" not in address:
        parse_dataset_id(address)
        return _opened(None), address
    scheme, rest = split_scheme(address)
    parts = rest.split("/")
    for n_parts in range(1, len(parts)):
        dataset_id = "/".join(parts[n_parts:])
        place = "/".join(parts[:n_parts])
        if not place.strip("/") and scheme != "file":
            continue
        try:
            namespace, name, _ = parse_dataset_id(dataset_id)
            remote = _opened(f"{scheme}://{place or '/'}")
            if scheme == "hf" or remote_listing.has_version(remote, namespace, name):
                return remote, dataset_id
        except (InvalidDatasetIdError, ConfigError):
            continue
    raise DatasetNotFoundError(
        f"there is no dataset at {address!r}; expected the address of a remote and an id in it, "
        "such as hf://farama-minari/D4RL/door/human-v2"
    )


def _download(remote: Remote, dataset_id: str, force: bool, seen: set[str]) -> None:
    namespace, name, version = parse_dataset_id(dataset_id)
    if version is not None and not force and _skipped(dataset_id):
        return
    found = remote_listing.versions(remote, namespace, name)
    dataset_id = _chosen(remote, dataset_id, found, force)
    seen.add(dataset_id)
    if not force and _skipped(dataset_id):
        return
    download(dataset_id, remote, replace=force)
    for parent in _combined(dataset_id):
        if parent in seen or data_path_of(parent).exists():
            continue
        try:
            _download(remote, parent, False, seen)
        except MinariPipeError as error:
            # It holds all of its episodes itself.
            warnings.warn(f"{dataset_id} was combined from {parent}: {error}", stacklevel=3)


def _skipped(dataset_id: str) -> bool:
    if not data_path_of(dataset_id).exists():
        return False
    warnings.warn(
        f"Skipping Download. Dataset {dataset_id} found locally at {get_dataset_path(dataset_id)}, "
        "Use force_download=True to download the dataset again.",
        stacklevel=4,
    )
    return True


def _chosen(remote: Remote, dataset_id: str, found: dict[str, Any], force: bool) -> str:
    """Return which version to fetch, by the rules that Minari documents.

    Raises:
        DatasetNotFoundError: there is none that could be meant.
    """
    namespace, name, version = parse_dataset_id(dataset_id)
    versionless = gen_dataset_id(namespace, name)
    if not found:
        raise DatasetNotFoundError(
            f"Couldn't find any version for dataset {versionless} in {remote.address}. "
            "minari-pipe list ADDRESS shows what is there"
        )
    compatible = selected(found, latest_version=True, compatible_minari_version=True)
    latest = next(iter(compatible), None)
    if version is None:
        newest = next(iter(selected(found, latest_version=True, compatible_minari_version=False)))
        if latest is None and not force:
            raise _incompatible(versionless, None)
        return latest or newest
    if dataset_id not in found:
        hint = (
            f" We suggest you download the latest compatible version of this dataset: {latest}"
            if latest
            else f", and no other compatible versions with Minari {MINARI_VERSION} were found."
        )
        raise DatasetNotFoundError(
            f"The dataset version, {dataset_id}, doesn't exist in {remote.address}.{hint}"
        )
    if not is_supported_version(found[dataset_id].get("minari_version")):
        error = _incompatible(dataset_id, latest)
        if not force:
            raise error
        warnings.warn(f"{error} It is downloaded all the same.", stacklevel=4)
    elif latest is not None and (parse_dataset_id(latest)[2] or 0) > version:
        warnings.warn(
            "We recommend you install a higher dataset version available and compatible with your "
            f"local installed Minari version: {latest}.",
            stacklevel=4,
        )
    return dataset_id


def _incompatible(dataset_id: str, latest: str | None) -> UnsupportedVersionError:
    hint = (
        f" You can download the latest compatible version of this dataset: {latest}."
        if latest
        else " force_download=True fetches it all the same."
    )
    return UnsupportedVersionError(
        f"The version you are trying to download for dataset, {dataset_id}, is not compatible "
        f"with Minari {MINARI_VERSION}, which this package reads.{hint}"
    )


def _combined(dataset_id: str) -> list[str]:
    try:
        metadata = MinariStorage.read_raw_metadata(data_path_of(dataset_id))
    except MinariPipeError:  # of a version that cannot be read
        return []
    return [name for name in metadata.get("combined_datasets") or () if isinstance(name, str)]
