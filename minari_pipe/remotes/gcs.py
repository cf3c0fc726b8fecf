"""Host datasets on Google Cloud Storage: ``gs://bucket/folder``, in Minari ``gcp://bucket``.

Credentials are Google's application default credentials; without any, public data can be read.
``STORAGE_EMULATOR_HOST`` is honored, as in Google's own client.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from minari_pipe.core.files.fetch import cache_folder
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import ConfigError, MissingDependencyError, RemoteError
from minari_pipe.remotes.base import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Fault,
    OnBytes,
    Upload,
    UploadSource,
    piece_of,
    safe_text,
)
from minari_pipe.remotes.faults import fault_of, status_of
from minari_pipe.remotes.objects import ObjectStore, bounded_response, content_type

_CREDENTIALS = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the "
    "key file of a service account"
)
#: Sessions store multiples of this size in bytes, except at the end of the file.
_UNIT = 256 * 2**10
#: Number of consecutive pieces of which a session may store nothing.
_MAX_STALLED = 4
_EMULATOR = "STORAGE_EMULATOR_HOST"


class GCSRemote(ObjectStore):
    """Datasets in a bucket of Google Cloud Storage."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Create the file system of gcsfs.

        Args:
            address: ``gs://`` and a bucket, optionally with a folder in it.
            token: path of a service account's key file; None means the default credentials.

        Raises:
            MissingDependencyError: gcsfs is not installed.
            ConfigError: there is no such file, or it holds no key.
        """
        try:
            from aiohttp import ClientTimeout
            from gcsfs.core import GCSFileSystem
        except ImportError as error:
            raise MissingDependencyError(
                f"{address} needs gcsfs: pip install 'minari_pipe[gcs]'"
            ) from error

        class Once(GCSFileSystem):
            """Leaves retries to the caller; gcsfs itself takes half a minute to give up."""

            _request = getattr(GCSFileSystem._request, "__wrapped__", GCSFileSystem._request)

        # gcsfs logs the errors that it raises, with tracebacks.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        credentials: str | None = "anon"
        if not os.environ.get(_EMULATOR):
            if token is not None and not Path(token).is_file():
                raise ConfigError(
                    f"{address}: the token must be the path of a service account's key file, "
                    "but there is no such file"  # not shown, as it may be a secret
                )
            credentials = token
        try:
            files = Once(
                token=credentials,
                use_listings_cache=False,
                skip_instance_cache=True,
                # The default waits forever.
                requests_timeout=ClientTimeout(None, None, READ_TIMEOUT, CONNECT_TIMEOUT),
                session_kwargs={
                    "proxy": _proxy(),
                    "response_class": bounded_response(address),
                    # Google compresses responses otherwise; kilobytes can expand to gigabytes.
                    "headers": {"Accept-Encoding": "identity"},
                    "auto_decompress": False,
                },
            )
        except (KeyError, ValueError) as error:  # raised by gcsfs for a file without such a key
            if token is None:
                raise
            raise ConfigError(
                f"{address}: the file named by the token contains no service account key"
            ) from error
        super().__init__(address, files)

    def cautions(self, metadata: Mapping[str, Any]) -> list[str]:
        if metadata.get("data_format") not in ("arrow", "parquet"):
            return []
        return [
            f"the format {metadata['data_format']} has a metadata.json in every episode's folder, "
            "and Minari lists each of them as a dataset of the bucket; hdf5 has only one"
        ]

    def _content(self, path: str, start: int, end: int | None) -> bytes:
        # No range for the whole file: an empty file has none.
        return self._files.cat_file(path, start=start or None, end=end)

    def _page(self, prefix: str, token: str | None) -> tuple[dict[str, int], str | None]:
        given = {} if token is None else {"pageToken": token}
        answer = self._files.call(
            "GET", "b/{}/o", self.bucket, prefix=prefix, json_out=True, **given
        )
        found = {entry["name"]: int(entry["size"]) for entry in answer.get("items") or ()}
        return found, answer.get("nextPageToken")

    def fault_of(self, error: Exception) -> Fault:
        hint = _CREDENTIALS
        if self._files.credentials.method == "anon":
            hint = f"no credentials were found: {hint}"
        token = getattr(self._files.credentials.credentials, "token", None)
        return fault_of(error, self.address, credentials=hint, secrets=[token])

    def _put_large(self, path: str, source: UploadSource, on_bytes: OnBytes) -> None:
        """Write a file in a session that the server keeps for a week, even if this process dies.

        See https://cloud.google.com/storage/docs/resumable-uploads.
        """
        name = f"{self._files._location}/{self._path(path)}\n{source.sha256}"
        # Anyone who knows the address of a session can write to it.
        record = cache_folder() / "uploads" / hashlib.sha256(name.encode()).hexdigest()
        refuse_tracked_links(record)
        session, done = self._session(record, source.size)
        if session is None:
            session = self.retried(partial(self._begin, path))
            _keep(record, session)
        on_bytes(done)
        n_stalled = 0
        while done < source.size:
            end = min(done + piece_of(source.size), source.size)
            data = source.read(done, end)
            try:
                arrived = self.retried(partial(self._continue, session, data, done, source.size))
            except FileNotFoundError:
                record.unlink(missing_ok=True)
                arrived, n_stalled = done, _MAX_STALLED
            n_stalled = 0 if arrived > done else n_stalled + 1
            if n_stalled > _MAX_STALLED:
                raise RemoteError(
                    f"{self.address} does not keep the data sent for {path}, or has dropped the "
                    "unfinished upload; run the upload again"
                )
            on_bytes(arrived - done)
            done = arrived
        record.unlink(missing_ok=True)

    def _begin(self, path: str) -> str:
        where = f"{self._files._location}/upload/storage/v1/b/{self.bucket}/o"
        headers, _ = self._files.call(
            "POST",
            where,
            uploadType="resumable",
            json={"name": self.folder + path},
            name=self.folder + path,
            headers={"X-Upload-Content-Type": content_type(path)},
        )
        return self._checked(headers["Location"])

    def _checked(self, session: str) -> str:
        """Raise an error for a session on another server, which would receive the token.

        Raises:
            RemoteError: names the session's address.
        """
        if not session.startswith(f"{self._files._location}/"):
            raise RemoteError(
                f"{self.address}: {self._files._location} continues an upload at another address, "
                f"{safe_text(session)!r}, which is refused; the server may not be Google's"
            )
        return session

    def _continue(self, session: str, data: bytes, start: int, size: int) -> int:
        """Send bytes, and return how many bytes of the file the server has afterwards."""
        span = f"{start}-{start + len(data) - 1}" if data else "*"
        given = {"Content-Range": f"bytes {span}/{size}", "Content-Length": str(len(data))}
        try:
            headers, answer = self._files.call("PUT", session, headers=given, data=BytesIO(data))
        except Exception as error:
            if isinstance(error, FileNotFoundError) or status_of(error) == 410:
                # Not the message of gcsfs, which contains the session's address.
                raise FileNotFoundError("the session of an upload was dropped") from None
            raise
        if answer.strip():  # metadata of the finished object
            return size
        there = int(headers["Range"].rpartition("-")[2]) + 1 if "Range" in headers else 0
        return there // _UNIT * _UNIT

    def _session(self, record: Path, size: int) -> tuple[str | None, int]:
        """Return the session of an interrupted upload, and how many bytes the server has of it."""
        try:
            session = json_object(record.read_text(encoding="utf-8"))["session"]
            return session, self.retried(
                partial(self._continue, self._checked(session), b"", 0, size)
            )
        except (OSError, ValueError, TypeError, KeyError):  # none, or dropped by the server
            return None, 0

    def _forget_others(self, upload: Upload, unwanted: list[str]) -> None:
        """Do nothing: sessions take no space in the bucket, and expire by themselves."""

    def _put_new(self, path: str, content: bytes) -> None:
        self._put_small(path, content, ifGenerationMatch="0")

    def _put_small(self, path: str, content: bytes, **condition: str) -> None:
        # as raw bytes, which may contain the multipart boundary of gcsfs
        kind = content_type(path)
        if not content:  # emulators reject an empty body here
            mode = "create" if condition else "overwrite"
            self._files.pipe_file(self._path(path), content, content_type=kind, mode=mode)
            return
        self._files.call(
            "POST",
            f"{self._files._location}/upload/storage/v1/b/{self.bucket}/o",
            uploadType="media",
            name=self.folder + path,
            headers={"Content-Type": kind},
            data=BytesIO(content),
            **condition,
        )


def _keep(record: Path, session: str) -> None:
    with suppress(OSError):  # without the record, the next run only starts over
        record.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"session": session}, file)


def _proxy() -> str | None:
    """Return the proxy that ``HTTPS_PROXY`` and ``NO_PROXY`` select.

    aiohttp's own ``trust_env`` would also send credentials from ``~/.netrc``, to any host in it.
    """
    address = urlsplit(os.environ.get(_EMULATOR) or "https://storage.googleapis.com")
    if proxy_bypass(address.hostname or ""):
        return None
    return getproxies().get(address.scheme)
