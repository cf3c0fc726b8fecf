"""Translate errors of ``huggingface_hub`` and of its HTTP library into one-line messages."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping

from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, OfflineModeIsEnabled

from minari_pipe.core.files.fetch import whole_number
from minari_pipe.errors import RemoteError
from minari_pipe.remotes.base import Fault, safe_text

_LONGEST_MESSAGE = 4000  # characters read of one; a server may send megabytes
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SECRETS = (
    (re.compile(r"https?://[^\s'\"]*[?@][^\s'\"]*"), "(address)"),  # may carry a signature
    (re.compile(r"(?i)bearer\s+[^\s'\"]+|\bhf_\w{20,}"), "(token)"),
)
#: Match a rate limit header of which nothing is left, and the seconds until the limit is renewed
#: (draft-ietf-httpapi-ratelimit-headers-09).
_USED_UP = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)")


def fault_of(error: Exception, address: str, endpoint: str, token: str | None) -> Fault:
    """Return the meaning of an error.

    Args:
        error: the error.
        address: address of the remote.
        endpoint: URL of the Hub.
        token: the token that was sent, which no message shows; None if there was none.

    Example:
        >>> from huggingface_hub.errors import OfflineModeIsEnabled
        >>> fault_of(OfflineModeIsEnabled(), "hf://org", "https://huggingface.co", None).error
        RemoteError('hf://org is not contacted because HF_HUB_OFFLINE is set; unset it')
    """

    def fault(reason: str, *, is_transient: bool = False, wait: float = 0.0) -> Fault:
        return Fault(RemoteError(f"{address} {reason}"), is_transient, wait)

    for cause in _causes(error):
        if isinstance(cause, RemoteError):  # our own, passed on by a thread of huggingface_hub
            return Fault(cause)
        if isinstance(cause, HfHubHTTPError):
            is_transient, wait, reason = _answer(cause, endpoint, token)
            return fault(reason, is_transient=is_transient, wait=wait)
        if isinstance(cause, OfflineModeIsEnabled):
            return fault("is not contacted because HF_HUB_OFFLINE is set; unset it")
        if isinstance(cause, HTTPError):
            why = _safe(cause, token) or type(cause).__name__
            return fault(
                f"cannot be reached at {endpoint} ({why}); check the network. Transferred data "
                "is kept; run the same command to continue",
                is_transient=not _is_unknown_host(cause),
            )
    # another thread replaced the shared session
    is_closed = "client has been closed" in str(error)
    return fault(f"failed: {type(error).__name__}: {_safe(error, token)}", is_transient=is_closed)


def _answer(error: HfHubHTTPError, endpoint: str, token: str | None) -> tuple[bool, float, str]:
    """Return whether a response is a transient error, the seconds to wait, and the reason."""
    status = error.response.status_code
    said = _safe(error.server_message or "", token)
    says = f" ({said})" if said else ""
    if status == 429:
        wait = asked_wait(error.response.headers)
        when = f"in {wait:.0f} seconds" if wait else "later"
        more = "" if token else "; with a token (HF_TOKEN) the Hub allows more"
        return True, wait, f"received too many requests{says}; run the same command {when}{more}"
    if status in _TRANSIENT:
        reason = f"is overloaded or unavailable (HTTP {status}){says}; try again later"
        return True, asked_wait(error.response.headers), reason
    if isinstance(error, GatedRepoError):
        url = f"{endpoint}/datasets/{error.repo_id or ''}"
        reason = f"is gated: accept its conditions at {url}, and set HF_TOKEN"
    elif status == 401 and token is None:
        reason = (
            "needs a token for this: set HF_TOKEN, or log in with `hf auth login`; create a token "
            "at https://huggingface.co/settings/tokens"
        )
    elif status == 401:
        reason = (
            f"rejects the token as wrong or expired{says}; set HF_TOKEN to another, or "
            "log in again with `hf auth login`"
        )
    elif status == 403:
        reason = (
            f"does not allow this with this token{says}; use one with the write role from a user "
            "who may change its datasets"
        )
    elif status == 404:
        reason = (
            f"has no such repository or file, or the token cannot see it{says}; check the spelling"
        )
    else:
        reason = f"answered with HTTP {status}{says}"
    return False, 0.0, reason


def asked_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that a response asks to wait, 0 if it does not say.

    Example:
        >>> asked_wait({"RateLimit": '"api";r=0;t=12'})
        12.0
    """
    after = whole_number(headers.get("Retry-After", ""))
    found = _USED_UP.search(headers.get("RateLimit", ""))
    return max(float(after or 0), float(found[1]) if found else 0.0)


def without_secrets(text: str) -> str:
    """Return a text without tokens, and without URLs that may carry a signature.

    Example:
        >>> without_secrets("PUT https://host/file?signature=1a2b failed")
        'PUT (address) failed'
    """
    text = text[:_LONGEST_MESSAGE]
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _safe(message: object, token: str | None) -> str:
    """Return the first line of a message, without anything that may be a secret."""
    line = safe_text(without_secrets((str(message).strip().splitlines() or [""])[0]))
    return line.replace(token, "(token)") if token else line


def _is_unknown_host(error: BaseException) -> bool:
    found = [cause for cause in _causes(error) if isinstance(cause, socket.gaierror)]
    return any(cause.errno != socket.EAI_AGAIN for cause in found)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__
