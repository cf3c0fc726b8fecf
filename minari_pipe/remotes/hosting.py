"""Transfer datasets and namespaces to and from remotes; the functions have Minari's names."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import (
    gen_dataset_id,
    namespace_hierarchy,
    parse_dataset_id,
    validate_namespace,
)
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import latest_version_of, open_dataset
from minari_pipe.datasets.listing import selected
from minari_pipe.datasets.namespaces import (
    get_namespace_metadata,
    list_local_namespaces,
    namespace_metadata_bytes,
)
from minari_pipe.errors import (
    ConfigError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    MinariPipeError,
    RemoteError,
)
from minari_pipe.remotes import Remote, default_address, is_address, open_remote, split_scheme
from minari_pipe.remotes.transfer import listing as remote_listing
from minari_pipe.remotes.transfer.addresses import split_address
from minari_pipe.remotes.transfer.download import download, fetch_namespace, remove_leftovers
from minari_pipe.remotes.transfer.upload import Published, upload
from minari_pipe.remotes.transfer.version_choice import chosen_version
from minari_pipe.storage.base import MinariStorage, PathLike

OFFLINE_VARIABLE = "MINARI_PIPE_OFFLINE"


def load_dataset(
    dataset_id: str,
    download: bool = False,
    *,
    verify: bool = False,
    trusted_modules: Collection[str] = (),
    copy: bool | None = None,
) -> MinariDataset:
    """Open a dataset of the local root.

    Args:
        dataset_id: id of the dataset; without a version, the latest, unless a dataset has exactly
            this id.
        download: download the dataset if it is missing.
        verify: first compare the files with the checksums in the dataset's ``manifest.json``, which
            reads all of them; see :mod:`minari_pipe.core.files.checksums`. Every dataset that this
            library made has a manifest.
        trusted_modules: modules whose code may run to determine the spaces of a dataset that does
            not store them (Minari 0.3) but names its environment.
        copy: whether the arrays of episodes are writable, see :class:`MinariDataset`.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: there is no such dataset.
        CorruptDatasetError: the dataset is damaged. With ``verify``: the manifest is missing, or
            files differ, are missing or are not in it; the message names each file.
        UnsupportedVersionError: with ``verify``, the manifest has a later version.
        TrustError: determining the spaces requires running code of a module that is not trusted.
        RemoteError: the download failed; see :func:`minari_pipe.download_dataset`.

    Example:
        >>> from minari_pipe import load_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> for version in (9, 10):
        ...     _ = step_index_dataset(f"example/steps-v{version}")
        >>> load_dataset("example/steps")
        MinariDataset('example/steps-v10', 3 episodes)
    """
    opened = partial(
        open_dataset, dataset_id, verify=verify, trusted_modules=trusted_modules, copy=copy
    )
    try:
        return opened()
    except DatasetNotFoundError:
        if not download:
            raise
    download_dataset(dataset_id)
    return opened()


def download_dataset(dataset_id: str, force_download: bool = False) -> None:
    """Fetch a dataset into the local root, with the datasets that it was combined from.

    One of those is skipped, with a warning, if it would become the latest version of a local
    dataset: the publisher chooses which datasets are listed.

    The dataset becomes visible once it is complete and verified; an interrupted download resumes
    where it stopped.

    Args:
        dataset_id: id of the dataset, or its full address such as ``hf://org/door/human-v2``;
            without a version, the latest that this package can read. With a trailing slash, a
            namespace, of which every dataset is fetched.
        force_download: replace a local dataset, and accept unknown versions of the standard.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: the remote has no such dataset.
        UnsupportedVersionError: it follows a version of the standard that this package cannot read.
        CorruptDatasetError: the remote's files contradict each other, or have hostile names.
        RemoteError: the remote cannot be reached, or sends other bytes than were published.
        ConfigError: the address is invalid, or the local root is read-only.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, download_dataset, publish_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     _ = publish_dataset("example/steps-v0", shared)
        ...     delete_dataset("example/steps-v0")
        ...     download_dataset(f"file://{shared}/example/steps-v0")
        >>> delete_dataset("example/steps-v0")
    """
    if not force_download and _is_versioned(dataset_id) and _skipped(dataset_id):
        return
    remote, found = find_datasets(dataset_id, force=force_download)
    for name in found:
        if force_download or not _skipped(name):
            fetch(remote, name, replace=force_download, alone=is_path(dataset_id))


def is_path(dataset_id: str) -> bool:
    """Return whether this is the address of a dataset or a namespace outside of the Hub.

    Such an address does not say which folder, or place in a bucket, is the remote; the files
    there do. So only the named datasets are fetched, and nothing above them, such as the metadata
    of their namespaces. A Hub address names the organization.
    """
    return is_address(dataset_id) and split_scheme(dataset_id)[0] != "hf"


def find_datasets(
    dataset_id: str, remote_path: PathLike | None = None, *, force: bool = False
) -> tuple[Remote, dict[str, dict[str, Any]]]:
    """Return a remote, and the metadata by id of its datasets that a name selects.

    Args:
        dataset_id: see :func:`download_dataset`.
        remote_path: the remote of an id; None means ``MINARI_REMOTE``, or the default.
        force: see :func:`download_dataset`.

    Raises:
        MinariPipeError: see :func:`download_dataset`.
    """
    remote, wanted = _located(dataset_id, remote_path)
    if wanted.endswith("/"):
        return remote, _of_namespace(remote, wanted)
    found = remote_listing.versions(remote, *parse_dataset_id(wanted)[:2])
    name = chosen_version(remote.address, wanted, found, force=force)
    return remote, {name: found[name]}


def fetch(
    remote: Remote, dataset_id: str, *, replace: bool = False, alone: bool = False
) -> list[str]:
    """Fetch one version of a dataset, and the missing ones among those it was combined from.

    Args:
        remote: the remote to fetch from.
        dataset_id: id with a version.
        replace: replace the dataset if it exists.
        alone: fetch nothing else, and only warn about the datasets that it was combined from; see
            :func:`is_path`.

    Returns:
        The ids of all fetched datasets.

    Raises:
        MinariPipeError: see :func:`download_dataset`.
    """
    download(dataset_id, remote, replace=replace, namespaces=not alone)
    fetched = [dataset_id]
    waiting = [(dataset_id, parent) for parent in _combined(dataset_id)]
    seen = {dataset_id}
    while waiting:
        child, parent = waiting.pop()
        if parent in seen:
            continue
        seen.add(parent)
        try:
            if data_path_of(parent).exists():
                continue
            if alone:
                raise DatasetNotFoundError(
                    f"it is not downloaded because the address names a single dataset; to "
                    f"download it, name it: {remote.address.rstrip('/')}/{parent}"
                )
            found = remote_listing.versions(remote, *parse_dataset_id(parent)[:2])
            name = chosen_version(remote.address, parent, found)
            _check_takes_no_place(name)
            download(name, remote)
            fetched.append(name)
            waiting += [(name, other) for other in _combined(name)]
        except MinariPipeError as error:
            # Not fatal: a combined dataset holds all of its episodes.
            warnings.warn(f"{child} was combined from {parent}: {error}", stacklevel=3)
    return fetched


def publish_dataset(
    dataset_id: str,
    remote_path: PathLike | None = None,
    *,
    token: str | None = None,
    dry_run: bool = False,
    folder: Path | None = None,
    published: str | None = None,
) -> Published:
    """Publish a dataset, and return the outcome.

    Args:
        dataset_id: id of the dataset.
        remote_path: address of the remote, such as ``s3://bucket``; None means ``MINARI_REMOTE``,
            or the default.
        token: credentials for writing; None means the defaults of the provider's tools.
        dry_run: compare both sides and send nothing.
        folder: the folder that holds the dataset's ``data/``, if it is not in the local root.
        published: date of publication, such as ``2026-11-23``, for the card that is uploaded.

    Raises:
        InvalidDatasetIdError: the id is malformed, or has no version.
        DatasetNotFoundError: there is no such dataset.
        DatasetExistsError: the remote has this version with other content.
        CorruptDatasetError: the dataset's files do not match its manifest.
        RemoteError: the remote cannot be reached, refuses the upload, or stored other bytes.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, publish_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     publish_dataset("example/steps-v0", shared).outcome
        ...     publish_dataset("example/steps-v0", shared).outcome
        'uploaded'
        'present'
        >>> delete_dataset("example/steps-v0")
    """
    remote = opened(remote_path, token)
    return upload(dataset_id, remote, folder=folder, dry_run=dry_run, published=published)


def upload_dataset(dataset_id: str, token: str | None = None) -> None:
    """Publish a dataset to the remote of ``MINARI_REMOTE``.

    Real Minari also publishes the datasets that it was combined from. Here each is published by
    its own name, as the metadata that list them may come from a stranger.

    Args:
        dataset_id: id of the dataset.
        token: access token of the Hub; for Google, the path of a service account's key file. None
            or an empty text means the provider's own defaults, which S3 and directories always use.

    Raises:
        MinariPipeError: see :func:`publish_dataset`.

    Example:
        >>> import os, tempfile
        >>> from minari_pipe import delete_dataset, list_remote_datasets, upload_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as os.environ["MINARI_REMOTE"]:
        ...     upload_dataset("example/steps-v0")
        ...     list(list_remote_datasets())
        ['example/steps-v0']
        >>> del os.environ["MINARI_REMOTE"]
        >>> delete_dataset("example/steps-v0")
    """
    remote = opened(None, token)
    done = upload(dataset_id, remote)
    if done.outcome == "present":
        warnings.warn(f"Upload aborted. {dataset_id} is already in remote.", stacklevel=2)
    for note in (*unnamed_parents([dataset_id]), *done.notes):
        warnings.warn(note, stacklevel=2)


def unnamed_parents(dataset_ids: Collection[str]) -> list[str]:
    """Return a sentence for each dataset that these were combined from and that is not listed.

    Args:
        dataset_ids: ids with versions.
    """
    names, notes = list(dict.fromkeys(dataset_ids)), []
    for name in names:  # the loop appends to it
        for parent in _combined(name):
            if parent in names:
                continue
            opening = f"{name} was combined from {parent}, which"
            if _is_here(parent):
                names.append(parent)
                notes.append(
                    f"{opening} Minari also downloads; to publish it, name it in an upload"
                )
            else:
                notes.append(f"{opening} is not in the local root and is not published")
    return notes


def list_remote_datasets(
    remote_path: PathLike | None = None,
    prefix: str | None = None,
    latest_version: bool = False,
    compatible_minari_version: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the metadata of a remote's datasets by id.

    Damaged datasets, and those with invalid names, are skipped with a warning.

    Args:
        remote_path: address of the remote; None means ``MINARI_REMOTE``, or the default.
        prefix: return only ids that begin with this text.
        latest_version: return only the highest version of each dataset.
        compatible_minari_version: return only datasets that this version can read.

    Raises:
        RemoteError: the remote cannot be reached.
        ConfigError: the address is invalid.

    Example:
        >>> import tempfile
        >>> from minari_pipe import delete_dataset, list_remote_datasets, publish_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     _ = publish_dataset("example/steps-v0", shared)
        ...     list_remote_datasets(shared)["example/steps-v0"]["total_episodes"]
        3
        >>> delete_dataset("example/steps-v0")
    """
    return selected(
        remote_listing.datasets(opened(remote_path), prefix or ""),
        latest_version=latest_version,
        compatible_minari_version=compatible_minari_version,
    )


def list_remote_namespaces(remote_path: PathLike | None = None) -> list[str]:
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
    return remote_listing.namespaces(opened(remote_path))


def download_namespace_metadata(namespace: str, overwrite: bool = False) -> None:
    """Fetch the metadata of a namespace into the local root, creating the namespace if missing.

    Args:
        namespace: name of the namespace.
        overwrite: replace existing metadata.

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
    remote = opened(None)
    if not fetch_namespace(remote, namespace, overwrite=overwrite):
        raise DatasetNotFoundError(
            f"The namespace '{namespace}' doesn't exist in {remote.address}; "
            f"call list_remote_namespaces() to list those that do"
        )


def upload_namespace(namespace: str, token: str | None = None) -> None:
    """Publish the metadata of a local namespace, and of its parents where the remote has none.

    Args:
        namespace: name of the namespace.
        token: see :func:`upload_dataset`.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        DatasetNotFoundError: there is no such namespace in the local root.
        RemoteError: the remote cannot be reached, or refuses the upload.

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
    get_namespace_metadata(namespace)  # raises if it does not exist
    remote = opened(None, token)
    there = remote_listing.namespaces(remote)
    if namespace in there:
        warnings.warn(
            f"Upload aborted. Namespace '{namespace}' is already in remote.", stacklevel=2
        )
        return
    for parent in namespace_hierarchy(namespace):
        if parent not in there:
            remote.send_namespace(parent, namespace_metadata_bytes(parent))


def opened(address: PathLike | None = None, token: str | None = None) -> Remote:
    """Return the remote at an address, unless this process must stay offline.

    Args:
        address: see :func:`minari_pipe.remotes.open_remote`.
        token: see :func:`minari_pipe.remotes.open_remote`.

    Raises:
        RemoteError: ``MINARI_PIPE_OFFLINE`` is set, and the remote is not a directory.
        ConfigError: the address is invalid.
    """
    address = default_address() if address is None else os.fspath(address)
    offline = os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no")
    if offline and split_scheme(address)[0] != "file":
        raise RemoteError(
            f"{address} is not contacted because {OFFLINE_VARIABLE} is set; unset it to go "
            "online, or set MINARI_REMOTE to a directory"
        )
    return open_remote(address, token)


def split_remote_path(remote_path: str) -> tuple[str, str]:
    """Split ``hf://org/D4RL/door`` into the address of a remote and a prefix of ids in it.

    Raises:
        ConfigError: the address is invalid.
        RemoteError: the remote cannot be reached.
    """
    remote, prefix = split_address(remote_path, opened)
    return remote.address, prefix


def _located(address: str, remote_path: PathLike | None = None) -> tuple[Remote, str]:
    """Return the remote of an address, and the rest: an id, or a namespace with a slash."""
    if not is_address(address):
        _check_form(address)
        return opened(remote_path), address
    if remote_path is not None:
        raise ConfigError(
            f"{address!r} already contains an address; leave out the remote {remote_path!r}"
        )
    # without the version, as the requested one need not exist
    version = match[0] if (match := re.search(r"-v\d+$", address)) else ""
    remote, rest = split_address(address.removesuffix(version), opened)
    try:
        _check_form(rest and rest + version)
    except InvalidDatasetIdError as error:
        is_namespace = address.endswith("/")
        what, example = ("namespace", "door/") if is_namespace else ("dataset", "door/human-v2")
        raise DatasetNotFoundError(
            f"there is no {what} at {address!r}; expected the address of a remote and a name in "
            f"it, such as hf://farama-minari/D4RL/{example}"
        ) from error
    return remote, rest + version


def _check_form(wanted: str) -> None:
    """Raise an error unless this is a valid id, or a namespace with a trailing slash."""
    if wanted.endswith("/"):
        validate_namespace(wanted[:-1])
    else:
        parse_dataset_id(wanted)


def _of_namespace(remote: Remote, prefix: str) -> dict[str, dict[str, Any]]:
    """Return the latest readable version of each dataset in a namespace."""
    found = remote_listing.datasets(remote, prefix)
    if not found:
        raise DatasetNotFoundError(
            f"there are no datasets in {prefix!r} of {remote.address}; "
            f"minari-pipe list {remote.address} shows what is there"
        )
    latest = selected(found, latest_version=True, compatible_minari_version=True)
    readable = {parse_dataset_id(name)[:2] for name in latest}
    for name in selected(found, latest_version=True, compatible_minari_version=False):
        if parse_dataset_id(name)[:2] not in readable:
            warnings.warn(
                f"Skipping {name}: this package cannot read any version of it", stacklevel=4
            )
    return latest


def _is_versioned(dataset_id: str) -> bool:
    is_id = not is_address(dataset_id) and not dataset_id.endswith("/")
    return is_id and parse_dataset_id(dataset_id)[2] is not None


def _is_here(dataset_id: str) -> bool:
    try:
        return data_path_of(dataset_id).exists()
    except MinariPipeError:  # not a dataset id
        return False


def _skipped(dataset_id: str) -> bool:
    if not data_path_of(dataset_id).exists():
        return False
    remove_leftovers()  # of a download that was killed just after it finished
    warnings.warn(
        f"Skipping Download. Dataset {dataset_id} found locally at {get_dataset_path(dataset_id)}, "
        "Use force_download=True to download the dataset again.",
        stacklevel=3,
    )
    return True


def _check_takes_no_place(dataset_id: str) -> None:
    """Raise an error if this version would become the one that is loaded without a version."""
    namespace, name, version = parse_dataset_id(dataset_id)
    try:
        latest = latest_version_of(gen_dataset_id(namespace, name))
    except DatasetNotFoundError:
        return
    here = parse_dataset_id(latest)[2]
    if version is None or here is None or version >= here:  # v00 is another name of v0
        raise DatasetExistsError(
            f"it is not downloaded because it would replace {latest} as the version loaded by "
            f"default; to download it, name it"
        )


def _combined(dataset_id: str) -> list[str]:
    try:
        metadata = MinariStorage.read_raw_metadata(data_path_of(dataset_id))
    except MinariPipeError:  # its version of the standard cannot be read
        return []
    found = metadata.get("combined_datasets")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
