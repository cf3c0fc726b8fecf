"""Provide remotes under the class names of ``minari.storage.remotes``, for code that uses them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.datasets.namespaces import namespace_metadata_bytes
from minari_pipe.errors import ConfigError, DatasetNotFoundError
from minari_pipe.remotes import Remote, default_address, split_scheme
from minari_pipe.remotes.hosting import opened
from minari_pipe.remotes.transfer.download import download, fetch_namespace
from minari_pipe.remotes.transfer.listing import datasets, namespaces, published_metadata
from minari_pipe.remotes.transfer.upload import upload


class CloudStorage:
    """A remote with the methods of Minari's class.

    Attributes:
        scheme: scheme of its addresses.
        name: the rest of its address, such as a bucket.
    """

    scheme: ClassVar[str] = "file"

    def __init__(self, name: str, token: str | None = None) -> None:
        """Store the name and the token; nothing is opened yet.

        Args:
            name: the address without its scheme.
            token: see :func:`minari_pipe.upload_dataset`.
        """
        self.name = name
        self._token = token

    def _open(self) -> Remote:
        return opened(f"{self.scheme}://{self.name}", self._token)

    def upload_dataset(self, dataset_id: str) -> None:
        """Publish a dataset of the local root."""
        upload(dataset_id, self._open())

    def list_datasets(self, prefix: str | None = None) -> Iterable[str]:
        """Return the ids of the datasets that this package can read."""
        return list(datasets(self._open(), prefix or ""))

    def get_dataset_metadata(self, dataset_id: str) -> dict[str, Any]:
        """Return the metadata of a dataset."""
        try:
            return published_metadata(self._open(), dataset_id)[1]
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"{self.name} has no dataset {dataset_id!r}") from error

    def download_dataset(self, dataset_id: str, path: Path) -> None:
        """Fetch a dataset into the local root, replacing the one that is there."""
        self._check_root(path)
        download(dataset_id, self._open(), replace=True)

    def list_namespaces(self) -> Iterable[str]:
        """Return the names of the namespaces."""
        return namespaces(self._open())

    def download_namespace_metadata(self, namespace: str, path: Path) -> None:
        """Fetch the metadata of a namespace into the local root."""
        self._check_root(path)
        if not fetch_namespace(self._open(), namespace, overwrite=True):
            raise DatasetNotFoundError(f"{self.name} has no namespace {namespace!r}")

    def upload_namespace(self, namespace: str) -> None:
        """Publish the metadata of a local namespace."""
        self._open().send_namespace(namespace, namespace_metadata_bytes(namespace))

    def _check_root(self, path: Path) -> None:
        if Path(path).resolve() != get_dataset_path().resolve():
            raise ConfigError(
                f"downloads go to the local root {get_dataset_path()}, not to {path}; to change "
                "the root, set MINARI_DATASETS_PATH"
            )


class GCPStorage(CloudStorage):
    """A bucket of Google Cloud Storage."""

    scheme = "gs"


class HuggingFaceStorage(CloudStorage):
    """An organisation of the Hugging Face Hub."""

    scheme = "hf"


class S3Storage(CloudStorage):
    """A bucket of S3, for which Minari has no class."""

    scheme = "s3"


_CLASSES = {kind.scheme: kind for kind in (CloudStorage, GCPStorage, HuggingFaceStorage, S3Storage)}


def get_cloud_storage(remote_path: str | None = None, token: str | None = None) -> CloudStorage:
    """Return the remote at an address.

    Args:
        remote_path: its address; None means ``MINARI_REMOTE``, or the default remote.
        token: see :func:`minari_pipe.upload_dataset`.

    Raises:
        ConfigError: no remote has this scheme.

    Example:
        >>> get_cloud_storage("hf://farama-minari").name
        'farama-minari'
    """
    scheme, name = split_scheme(default_address() if remote_path is None else remote_path)
    kind = _CLASSES.get("gs" if scheme == "gcp" else scheme)
    if kind is None:
        raise ConfigError(
            f"{remote_path!r} is not a remote: expected an address that begins with "
            f"{', '.join(f'{known}://' for known in _CLASSES)}"
        )
    return kind(name, token)
