"""Translate errors of the object store clients into one-line messages."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from minari_pipe.core.files.fetch import whole_number
from minari_pipe.errors import RemoteError
from minari_pipe.remotes.base import Fault, safe_text

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
#: Connection errors of botocore, aiohttp, requests and google: none was made, or it broke.
_CONNECTIONS = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "HTTPClientError",
    "ResponseStreamingError",
    "IncompleteReadError",
    "ProxyConnectionError",
    "ProxyError",
    "ConnectionError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ClientOSError",
    "TransportError",
    "TimeoutError",
)
_UNREADABLE = ("JSONDecodeError", "ContentTypeError", "ResponseParserError", "ExpatError")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


def fault_of(
    error: Exception, address: str, *, credentials: str, secrets: Iterable[str | None] = ()
) -> Fault:
    """Return the meaning of an error raised by s3fs or gcsfs.

    Args:
        error: the error.
        address: address of the remote.
        credentials: how to set credentials, for the error message.
        secrets: what a server may repeat of them, and no message shows.

    Example:
        >>> fault_of(PermissionError("denied"), "s3://bucket", credentials="log in").error
        RemoteError('s3://bucket denies access: denied; log in')
    """
    said = str(error)
    for secret in filter(None, secrets):
        said = said.replace(secret, "(secret)")
    text = safe_text(said).rstrip(".") or type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = status_of(error)
    if "recursion depth" in text:  # botocore follows redirects until Python's recursion limit
        return Fault(
            RemoteError(
                f"{address} redirects without end; a login page, a proxy or another kind of server "
                "may be answering"
            )
        )
    if kinds.intersection(_NO_CREDENTIALS):
        return Fault(RemoteError(f"{address}: {text}; {credentials}"))
    if isinstance(error, PermissionError) or status in (401, 403) or text.startswith("Forbidden"):
        return Fault(RemoteError(f"{address} denies access: {text}; {credentials}"))
    if isinstance(error, FileNotFoundError):
        return Fault(
            RemoteError(f"{address} does not exist: {text}; create the bucket, or correct its name")
        )
    if status in _TRANSIENT or getattr(error, "errno", None) in (errno.EREMOTEIO, errno.EBUSY):
        status_text = f"HTTP {status}" if status else text
        return Fault(
            RemoteError(f"{address} is overloaded or unavailable ({status_text}); try again later"),
            is_transient=True,
            wait=_wait(error),
        )
    if kinds.intersection(_CONNECTIONS):
        said = "" if text.startswith("<") else f": {text}"  # the repr of an object, not a message
        return Fault(
            RemoteError(
                f"{address} cannot be reached ({type(error).__name__}{said}); check the "
                "network. Transferred data is kept; run the same command to continue"
            ),
            is_transient=True,
        )
    if kinds.intersection(_UNREADABLE):
        return Fault(
            RemoteError(
                f"{address} sent an unreadable response ({type(error).__name__}: {text}); a login "
                "page, a proxy or another kind of server may be answering"
            ),
            is_transient=True,
        )
    return Fault(RemoteError(f"{address}: {type(error).__name__}: {text}; {credentials}"))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a failed response, from botocore, google or aiohttp."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        for name in ("code", "status"):
            value = getattr(cause, name, None)
            if isinstance(value, str):
                value = whole_number(value)
            if isinstance(value, int):
                return value
    return None


def _wait(error: BaseException) -> float:
    """Return the seconds of a ``Retry-After`` header, where the library passes it on."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            return float(whole_number(str(headers.get("retry-after", ""))) or 0)
    return 0.0
