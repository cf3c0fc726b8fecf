"""Implement what object stores share: files are written in place, ``metadata.json`` last.

An object appears whole or not at all, so nothing needs to be renamed. The manifest is written first
and marks the owner of an id: of two different uploads, the one that wrote it last continues.
"""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.names import NO_NAMES
from minari_pipe.errors import ConfigError, DatasetExistsError, RemoteError
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    PART,
    OnBytes,
    Remote,
    RemoteFile,
    Upload,
    UploadSource,
    check_arrived,
    check_length,
    left_over,
    other_content,
    remote_sha256,
    safe_text,
)
from minari_pipe.remotes.faults import status_of
from minari_pipe.remotes.thread_pool import at_once, threads_for

if TYPE_CHECKING:
    from aiohttp import ClientResponse

#: Content types by file ending, so that a browser shows a card instead of saving its files.
_CONTENT_TYPES = {
    ".csv": "text/csv; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
#: Limits of one listing, so that it fits in memory; a page has a thousand files.
_MOST_PAGES = 10_000
_MOST_FILES = 5_000_000


class ObjectStore(Remote):
    """Datasets in a bucket, at its root or below a folder.

    Attributes:
        bucket: name of the bucket.
        folder: empty, or ends with a slash.
    """

    def __init__(self, address: str, file_system: Any) -> None:
        """Parse the address.

        Args:
            address: scheme, bucket, and optionally a folder in it.
            file_system: an fsspec file system that caches no listings.

        Raises:
            ConfigError: the address does not name a bucket.
        """
        self.address = address.rstrip("/")
        self.bucket, _, folder = address.partition("://")[2].strip("/").partition("/")
        if not self.bucket or not NO_NAMES.isdisjoint(folder.split("/")[:-1]):
            raise ConfigError(
                f"{address!r} is not the address of a bucket: expected "
                f"{address.partition('://')[0]}://bucket, or a folder in it"
            )
        self.folder = f"{folder}/" if folder else ""
        self._files = file_system

    def at(self, address: str) -> ObjectStore:
        """Return the remote at another address of the same bucket, sharing its connection."""
        other = copy.copy(self)
        ObjectStore.__init__(other, address, self._files)
        return other

    def dataset_ids(self, prefix: str = "") -> list[str]:
        return self._folders_with(METADATA, prefix)

    def namespaces(self) -> list[str]:
        return self._folders_with(NAMESPACE_METADATA)

    def files(self, dataset_id: str) -> dict[str, RemoteFile]:
        # With the slash: otherwise the files of v10 would match v1.
        place = f"{dataset_id}/"
        return {
            path.removeprefix(place): RemoteFile(size) for path, size in self._keys(place).items()
        }

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        try:
            return self._content(self._path(path), start, end)
        except Exception as error:
            if status_of(error) == 416:  # the range begins beyond the end
                return b""
            if isinstance(error, FileExistsError):  # gcsfs raises this for an HTTP 412
                raise self.fault_of(error).error from error
            raise

    def send(self, upload: Upload, on_bytes: OnBytes) -> None:
        place = upload.dataset_id
        with self.translated_errors(FileNotFoundError):  # such as a missing bucket
            there = self.retried(partial(self.files, place))
            if METADATA in there:
                raise other_content(self, upload.dataset_id)
            read = partial(self.retried, partial(self.read, f"{place}/{MANIFEST}"))
            unwanted = left_over(there, upload, self.address, read)
            self._claim(upload, there)
            for name in sorted(there.keys() & unwanted):
                self.retried(partial(self._files.rm_file, self._path(f"{place}/{name}")))
            self._forget_others(upload, unwanted)
            works, sizes = [], []
            for name, source in upload.files.items():
                work = partial(
                    self._put_verified, f"{place}/{name}", source, there.get(name), on_bytes
                )
                if source.size > PART:
                    work()  # its parts are sent in parallel
                else:
                    works.append(work)
                    sizes.append(source.size)
            at_once(works, threads_for(sizes))

    def reveal(self, upload: Upload) -> bool:
        place = upload.dataset_id
        with self.translated_errors(FileNotFoundError):
            # Namespaces first: real Minari refuses a dataset whose namespace does not exist.
            for namespace, metadata in upload.namespaces.items():
                path = f"{namespace}/{NAMESPACE_METADATA}"
                if path not in self.retried(partial(self._keys, path)):
                    self.retried(partial(self._put, path, UploadSource.of(metadata), _ignore))
            self._check_claim(upload)
            is_exclusive = self._create(f"{place}/{METADATA}", upload.metadata)
            self._check_claim(upload)
            found = self.retried(partial(self.read, f"{place}/{METADATA}"))
            if found != upload.metadata:
                raise other_content(self, upload.dataset_id)
        return is_exclusive

    def send_namespace(self, namespace: str, metadata: bytes) -> None:
        path = f"{namespace}/{NAMESPACE_METADATA}"
        with self.translated_errors(FileNotFoundError):
            self.retried(partial(self._put, path, UploadSource.of(metadata), _ignore))

    @abstractmethod
    def _content(self, path: str, start: int, end: int | None) -> bytes:
        """Return bytes of an object.

        Raises:
            RemoteError: the server sends more bytes than were requested.
        """

    @abstractmethod
    def _put_small(self, path: str, content: bytes) -> None:
        """Write a file of at most ``PART`` bytes."""

    @abstractmethod
    def _put_large(self, path: str, source: UploadSource, on_bytes: OnBytes) -> None:
        """Write a file of more than ``PART`` bytes, resuming where an earlier call was cut off."""

    @abstractmethod
    def _put_new(self, path: str, content: bytes) -> None:
        """Write a small file only if it does not exist.

        Raises:
            FileExistsError: the file exists, and the server honors conditional writes.
        """

    @abstractmethod
    def _forget_others(self, upload: Upload, unwanted: list[str]) -> None:
        """Drop unlisted remains of interrupted uploads of these files, except those to resume.

        Args:
            upload: the upload that begins.
            unwanted: names of the files of an earlier one.
        """

    def _put(self, path: str, source: UploadSource, on_bytes: OnBytes) -> None:
        self._put_small(path, source.read(0, source.size))
        on_bytes(source.size)

    def _put_verified(
        self, path: str, source: UploadSource, there: RemoteFile | None, on_bytes: OnBytes
    ) -> None:
        is_candidate = there is not None and there.size == source.size
        if is_candidate and remote_sha256(self, path, source.size) == source.sha256:
            on_bytes(source.size)
            return
        if source.size > PART:
            self._put_large(path, source, on_bytes)
        else:
            self.retried(partial(self._put, path, source, on_bytes))
        check_arrived(self, path, source)

    def _create(self, path: str, content: bytes) -> bool:
        """Write a small file that must not exist, and return whether the server enforces that.

        A second write shows it: an enforcing server refuses, any other stores the same bytes again.

        Raises:
            DatasetExistsError: the file exists with other content.
        """
        put = partial(self._put_new, path, content)
        try:
            self.retried(put)
        except FileExistsError as error:
            if self.retried(partial(self.read, path)) != content:
                raise DatasetExistsError(
                    f"{self.address}/{path} already exists; another upload came first"
                ) from error
            return True  # written by an attempt whose response was lost
        try:
            self.retried(put)
        except FileExistsError:
            return True
        return False

    def _claim(self, upload: Upload, there: dict[str, RemoteFile]) -> None:
        path, source = f"{upload.dataset_id}/{MANIFEST}", upload.files[MANIFEST]
        if MANIFEST in there and self.retried(partial(self.read, path)) == source.read():
            return
        self.retried(partial(self._put, path, source, _ignore))

    def _check_claim(self, upload: Upload) -> None:
        """Raise an error if another upload of this id has begun since this one."""
        found = self.retried(partial(self.read, f"{upload.dataset_id}/{MANIFEST}"))
        if found != upload.files[MANIFEST].read():
            raise DatasetExistsError(
                f"another upload of {upload.dataset_id} to {self.address} has started since, "
                "with other content; this one stops. Upload it under another version"
            )

    def _folders_with(self, file: str, prefix: str = "") -> list[str]:
        ending = f"/{file}"
        return sorted(
            path.removesuffix(ending) for path in self._keys(prefix) if path.endswith(ending)
        )

    def _keys(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of the files whose paths begin with a prefix.

        The listings of the libraries would follow a server that never ends its list.
        """
        start = self.folder + prefix
        found: dict[str, int] = {}
        token: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page, token = self._page(start, token)
            except (FileNotFoundError, FileExistsError) as error:
                # The bucket is missing, as an empty listing is not an error; or it is an HTTP 412.
                raise self.fault_of(error).error from error
            found |= page
            for key, size in page.items():
                if not 0 <= size < 1 << 63:
                    raise RemoteError(
                        f"{self.address}: the server lists {safe_text(key)} with "
                        f"{str(size)[:20]} bytes, which is no size of a file"
                    )
            if token is None:
                return {
                    key.removeprefix(self.folder): size
                    for key, size in found.items()
                    if key.startswith(start) and key[-1] != "/"
                }
            if len(found) > _MOST_FILES:
                break
        raise RemoteError(
            f"{self.address}: the list of its files does not end ({len(found)} so far); check "
            "the address, or name a folder of the bucket to list fewer files"
        )

    @abstractmethod
    def _page(self, prefix: str, token: str | None) -> tuple[dict[str, int], str | None]:
        """Request one page of a listing.

        Args:
            prefix: prefix of the keys in the bucket.
            token: token of this page; None for the first.

        Returns:
            The sizes in bytes by key, and the token of the next page; None after the last.
        """

    def _path(self, path: str) -> str:
        return f"{self.bucket}/{self.folder}{path}"


def content_type(path: str) -> str:
    """Return the content type to store with an object.

    Example:
        >>> content_type("door/human-v0/card/returns.svg"), content_type("data/main_data.hdf5")
        ('image/svg+xml', 'application/octet-stream')
    """
    return _CONTENT_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")


def _ignore(size: int) -> None:
    """Ignore the progress of small files."""


def bounded_response(address: str) -> type[ClientResponse]:
    """Return a response class that refuses oversized responses; the libraries read without limit.

    Args:
        address: address of the remote.
    """
    from aiohttp import ClientResponse

    class Bounded(ClientResponse):
        async def read(self) -> bytes:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.request_info.headers.get("Range", ""))
            most = int(asked[2]) + 1 - int(asked[1]) if asked and self.ok else None
            content = bytearray()
            async for piece in self.content.iter_any():
                content += piece
                check_length(address, len(content), most)
            return bytes(content)

    return Bounded
