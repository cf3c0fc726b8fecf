"""Host datasets on Amazon S3, or any store that speaks its protocol: ``s3://bucket/folder``.

Credentials, region and endpoint (``AWS_ENDPOINT_URL_S3``) come from where the AWS tools find them.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from copy import copy
from functools import cache, partial
from typing import Any

from minari_pipe.errors import ConfigError, MissingDependencyError, RemoteError
from minari_pipe.remotes.base import (
    CONNECT_TIMEOUT,
    PART,
    READ_TIMEOUT,
    Fault,
    OnBytes,
    Upload,
    UploadSource,
    check_length,
    parts_of,
    piece_of,
    safe_text,
)
from minari_pipe.remotes.faults import fault_of
from minari_pipe.remotes.objects import ObjectStore, bounded_response, content_type
from minari_pipe.remotes.thread_pool import N_WAITING, at_once

#: Number of bytes to read at a time.
_CHUNK = 2**20
#: Largest number of parts of one object that S3 accepts.
_MAX_PARTS = 10_000
_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, as for other AWS tools; "
    "for another provider, also set AWS_ENDPOINT_URL_S3"
)


class S3Remote(ObjectStore):
    """Datasets in a bucket of S3."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Create the file system of s3fs.

        Args:
            address: ``s3://`` and a bucket, optionally with a folder in it.
            token: not used: credentials come from where the AWS tools find them.

        Raises:
            MissingDependencyError: s3fs is not installed.
            ConfigError: the credentials are incomplete, or their profile does not exist.
        """
        try:
            from aiobotocore.httpsession import AIOHTTPSession
            from aiohttp import ClientSession
            from s3fs import S3FileSystem
        except ImportError as error:
            raise MissingDependencyError(
                f"{address} needs s3fs: pip install 'minari_pipe[s3]'"
            ) from error

        bounded = bounded_response(address)

        class Session(AIOHTTPSession):
            """Creates sessions that refuse responses too large for memory."""

            async def _get_session(self, proxy_url: str | None) -> Any:
                session = await super()._get_session(proxy_url)
                # aiohttp takes the class when a session is created, which aiobotocore does.
                session._response_class = bounded
                # botocore handles other regions itself; aiohttp would send the token to any host
                session._request = partial(ClientSession._request, session, allow_redirects=False)
                return session

        session, self._credentials = _session(address)
        files = S3FileSystem(
            anon=self._credentials is None,
            session=session,
            use_listings_cache=False,
            skip_instance_cache=True,
            config_kwargs={
                # The caller retries, in the same way for all remotes.
                "retries": {"total_max_attempts": 1},
                "connect_timeout": CONNECT_TIMEOUT,
                "read_timeout": READ_TIMEOUT,
                "max_pool_connections": N_WAITING,
                # Checksums beyond the protocol's own break stores of other providers; this package
                # compares the sha256 of everything that it sends and receives.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "http_session_cls": Session,
            },
        )
        files.retries = 1
        super().__init__(address, files)

    def _content(self, path: str, start: int, end: int | None) -> bytes:
        from fsspec.asyn import sync

        key = path.removeprefix(f"{self.bucket}/")
        where: dict[str, Any] = {"Bucket": self.bucket, "Key": key}
        if start or end is not None:  # an empty file has no range
            where["Range"] = f"bytes={start}-{'' if end is None else end - 1}"

        async def content() -> bytes:
            answer = await self._files._call_s3("get_object", **where)
            found = bytearray()
            async with answer["Body"] as body:
                async for piece in body.iter_chunks(_CHUNK):
                    found += piece
                    check_length(self.address, len(found), None if end is None else end - start)
            return bytes(found)

        return sync(self._files.loop, content)

    def fault_of(self, error: Exception) -> Fault:
        hint = _CREDENTIALS
        if self._files.anon:
            hint = f"no credentials were found: {hint}"
        secrets = [getattr(self._credentials, name, None) for name in ("token", "secret_key")]
        return fault_of(error, self.address, credentials=hint, secrets=secrets)

    def _page(self, prefix: str, token: str | None) -> tuple[dict[str, int], str | None]:
        given = {} if token is None else {"ContinuationToken": token}
        answer = self._call("list_objects_v2", Bucket=self.bucket, Prefix=prefix, **given)
        found = {entry["Key"]: int(entry["Size"]) for entry in answer.get("Contents") or ()}
        if not found and "Name" not in answer:
            raise RemoteError(
                f"{self.address}: the server is not S3; a login page may be answering, or "
                "AWS_ENDPOINT_URL_S3 may be wrong"
            )
        return found, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None

    def _put_large(self, path: str, source: UploadSource, on_bytes: OnBytes) -> None:
        """Write a file in parts; the server keeps parts that an interrupted call sent."""
        where = {"Bucket": self.bucket, "Key": self.folder + path}
        piece = max(piece_of(source.size), -(-source.size // _MAX_PARTS))
        parts = parts_of(source.size, piece)
        upload, there = self.retried(partial(self._pending, where))
        if upload is None:
            begin = partial(self._call, "create_multipart_upload", ContentType=content_type(path))
            made = self.retried(partial(begin, **where))
            upload = str(made["UploadId"])
        where["UploadId"] = upload
        tags: dict[int, str] = {}

        def send(number: int, start: int, end: int) -> None:
            data = source.read(start, end)
            tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
            if there.get(number) != (end - start, tag):
                given = {"PartNumber": number, "Body": data}
                tag = self.retried(partial(self._call, "upload_part", **where, **given))["ETag"]
            tags[number] = tag
            on_bytes(end - start)

        try:
            at_once(partial(send, number, *ends) for number, ends in enumerate(parts, start=1))
            finished = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
            self.retried(
                partial(
                    self._call,
                    "complete_multipart_upload",
                    **where,
                    MultipartUpload={"Parts": finished},
                )
            )
        except FileNotFoundError as error:
            # An attempt whose response was lost, or another upload of the same content, completed
            # it. The stored file is verified in any case.
            if path not in self.retried(partial(self._keys, path)):
                raise RemoteError(
                    f"{self.address} has dropped the unfinished upload of {path}; run the upload "
                    "again"
                ) from error

    def _pending(self, where: dict[str, str]) -> tuple[str | None, dict[int, tuple[int, str]]]:
        """Return the unfinished upload of a file, with the size and ETag of each of its parts."""
        uploads = [u for u in self._unfinished(where["Key"]) if u["Key"] == where["Key"]]
        if not uploads:
            return None, {}
        upload = uploads[-1]["UploadId"]
        parts: dict[int, tuple[int, str]] = {}
        marker = 0
        while True:
            answer = self._call("list_parts", **where, UploadId=upload, PartNumberMarker=marker)
            for part in answer.get("Parts") or ():
                parts[int(part["PartNumber"])] = (int(part["Size"]), part["ETag"])
            following = int(answer.get("NextPartNumberMarker") or 0)
            # A server that goes on without end is not followed.
            if not answer.get("IsTruncated") or not marker < following <= _MAX_PARTS:
                return upload, parts
            marker = following

    def _unfinished(self, prefix: str) -> list[dict[str, Any]]:
        """Return the unfinished uploads of keys with this prefix, the latest of each key last."""
        try:
            answer = self._call("list_multipart_uploads", Bucket=self.bucket, Prefix=prefix)
        except (FileNotFoundError, PermissionError):
            # rclone answers so if there are none; and permission to write need not include listing
            return []
        found = [u for u in answer.get("Uploads") or () if u["Key"].startswith(prefix)]
        return sorted(found, key=lambda upload: (upload["Initiated"], upload["UploadId"]))

    def _forget_others(self, upload: Upload, unwanted: list[str]) -> None:
        place = f"{self.folder}{upload.dataset_id}/"
        own = {place + name for name in (*upload.files, *unwanted)}
        large = {place + name for name, file in upload.files.items() if file.size > PART}
        found = self.retried(partial(self._unfinished, place))
        kept = {entry["Key"]: entry for entry in found if entry["Key"] in large}
        for entry in found:
            if entry["Key"] in own and entry is not kept.get(entry["Key"]):
                which = {"Bucket": self.bucket, "Key": entry["Key"], "UploadId": entry["UploadId"]}
                with suppress(FileNotFoundError):  # it ended meanwhile
                    self.retried(partial(self._call, "abort_multipart_upload", **which))

    def _put_small(self, path: str, content: bytes, **condition: str) -> None:
        where = {"Bucket": self.bucket, "Key": self.folder + path}
        kind = content_type(path)
        self._call("put_object", **where, Body=content, ContentType=kind, **condition)

    def _put_new(self, path: str, content: bytes) -> None:
        self._put_small(path, content, IfNoneMatch="*")

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        return self._files.call_s3(method, **given)


@cache
def _loader() -> Any:
    """Return the loader of service descriptions, cached as they take 0.1 s to read."""
    from botocore.session import Session

    return Session().get_component("data_loader")


@cache
def _handlers() -> Any:
    """Return what every session calls at an event, kept as it takes 0.01 s to register."""
    from aiobotocore.hooks import AioHierarchicalEmitter
    from aiobotocore.session import AioSession

    emitter = AioHierarchicalEmitter()
    AioSession(event_hooks=emitter)
    return emitter


def _session(address: str) -> tuple[Any, Any]:
    """Return a session and its credentials, or None; public data can be read without.

    The session keeps those that it finds, so they are looked for once.

    Raises:
        ConfigError: the credentials, or other settings of the AWS tools, cannot be used.
    """
    from aiobotocore.session import AioSession
    from botocore.exceptions import BotoCoreError
    from fsspec.asyn import get_loop, sync

    session = AioSession(event_hooks=copy(_handlers()), include_builtin_handlers=False)
    try:
        session.register_component("data_loader", _loader())
        return session, sync(get_loop(), session.get_credentials)
    except BotoCoreError as error:
        raise ConfigError(f"{address}: {safe_text(error)}; {_CREDENTIALS}") from error
