"""Datasets and namespaces that are hosted elsewhere: the names, until there are remotes.

Every function has its documented signature and says that this version cannot do it yet. Real
Minari can meanwhile: both use the same root.
"""

from __future__ import annotations

from typing import Any, NoReturn

from minari_pipe.errors import RemoteError


def download_dataset(dataset_id: str, force_download: bool = False) -> None:
    """Fetch a dataset into the local root.

    Args:
        dataset_id: id of the dataset, or its whole address such as ``hf://org/door/human-v2``.
        force_download: fetch it also if it is there, or follows an unknown version.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import download_dataset
        >>> download_dataset("D4RL/door/human-v2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot download 'D4RL/door/human-v2': this version of ...
    """
    _refuse(f"download {dataset_id!r}")


def upload_dataset(dataset_id: str, token: str) -> None:
    """Send a local dataset to a remote.

    Args:
        dataset_id: id of the dataset.
        token: what the remote knows its writers by.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import upload_dataset
        >>> upload_dataset("door/human-v2", token="")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot upload 'door/human-v2': this version of ...
    """
    _refuse(f"upload {dataset_id!r}")


def list_remote_datasets(
    remote_path: str | None = None,
    prefix: str | None = None,
    latest_version: bool = False,
    compatible_minari_version: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the metadata of a remote's datasets by their ids.

    Args:
        remote_path: address of the remote; None means ``MINARI_REMOTE``, or the default.
        prefix: only ids that begin with this text.
        latest_version: only the highest version of each.
        compatible_minari_version: only those that this version can read.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import list_remote_datasets
        >>> list_remote_datasets()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot list remote datasets: this version of ...
    """
    _refuse("list remote datasets")


def list_remote_namespaces() -> list[str]:
    """Return the names of a remote's namespaces.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import list_remote_namespaces
        >>> list_remote_namespaces()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot list remote namespaces: this version of ...
    """
    _refuse("list remote namespaces")


def download_namespace_metadata(namespace: str, overwrite: bool = False) -> None:
    """Fetch the metadata of a namespace into the local root.

    Args:
        namespace: name of the namespace.
        overwrite: replace metadata that is there.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import download_namespace_metadata
        >>> download_namespace_metadata("D4RL")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot download the metadata of 'D4RL': this version of ...
    """
    _refuse(f"download the metadata of {namespace!r}")


def upload_namespace(namespace: str, token: str) -> None:
    """Send the metadata of a local namespace to a remote.

    Args:
        namespace: name of the namespace.
        token: what the remote knows its writers by.

    Raises:
        RemoteError: always; there are no remotes yet.

    Example:
        >>> from minari_pipe import upload_namespace
        >>> upload_namespace("D4RL", token="")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.RemoteError: cannot upload 'D4RL': this version of ...
    """
    _refuse(f"upload {namespace!r}")


def _refuse(what: str) -> NoReturn:
    raise RemoteError(
        f"cannot {what}: this version of minari_pipe has no remotes yet. Use the command "
        "`minari` of the package minari, which shares the local root"
    )
