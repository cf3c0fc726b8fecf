"""Send HTTP requests to the Hub.

Reads go through the session of ``huggingface_hub`` with the token that it finds, but without its
retries, as a remote has its own, and with a timeout and a limit on the length of a response.
Uploads are left to ``huggingface_hub``, which supports LFS and xet.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from minari_pipe._version import __version__
from minari_pipe.core.messages import without_passwords
from minari_pipe.errors import MissingDependencyError, RemoteError
from minari_pipe.remotes.base import NAMESPACE_METADATA, Fault, check_length, safe_text
from minari_pipe.remotes.hub.endpoint import check_endpoint
from minari_pipe.remotes.hub.index import RepoIndex

try:
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import get_session, hf_raise_for_status, validate_repo_id
except ImportError as error:
    raise MissingDependencyError(
        f"hf:// remotes need huggingface_hub: pip install 'minari_pipe[hf]' ({error})"
    ) from error

from minari_pipe.remotes.hub.faults import fault_of, without_secrets

# Else uploads report values of the environment that the server of the Hub guesses.
constants.HF_HUB_DISABLE_TELEMETRY = True


def _make_safe(record: logging.LogRecord) -> bool:
    record.msg, record.args = safe_text(without_secrets(record.getMessage())), ()
    return True


# It logs signed URLs when it tries again, and whatever a server says in a header.
logging.getLogger("huggingface_hub.utils._http").addFilter(_make_safe)

#: Status of a commit while another is made, and of a commit whose parent is not the newest.
STALE = (409, 412)

_PATHS_AT_ONCE = 500  # the Hub accepts 1000
_MOST_PAGES = 1000
#: Headers about the transfer of a response, which no longer apply once it is read.
_TRANSPORT_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class BrokenIndexError(RemoteError):
    """The index of a repository cannot be read."""


class HiddenError(FileNotFoundError):
    """Nothing is visible there without a token."""


class HubClient:
    """Reads the dataset repositories of one organization or user, each at one commit."""

    def __init__(self, address: str, owner: str, token: str | None) -> None:
        """Store the arguments; no request is sent yet.

        Args:
            address: address of the remote, for messages.
            owner: owner of the repositories.
            token: access token of a user; None means the one that ``huggingface_hub`` finds.
        """
        self.address, self.owner = address, owner
        self._token = token
        # read here: huggingface_hub reads it only once, when it is imported
        self.endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        check_endpoint()
        #: for messages and pages: with a proxy, the endpoint may contain a password
        self.shown = without_passwords(self.endpoint, "")
        self.api = HfApi(self.endpoint, token, "minari_pipe", __version__)
        self._lock = threading.Lock()
        self._headers: dict[str, str] | None = None

    def repo_id(self, repo: str) -> str:
        """Return the full name of a repository on the Hub.

        Raises:
            RemoteError: the Hub does not allow the name.
        """
        repo_id = f"{self.owner}/{repo}"
        try:
            validate_repo_id(repo_id)
        except HFValidationError as error:
            raise RemoteError(
                f"{self.address}: {repo_id!r} is not a valid repository name on the Hub: expected "
                "at most 96 letters a to z, digits, '-', '_' and '.', without '--' or '..', and "
                "without '-' or '.' at either end. Use another id"
            ) from error
        return repo_id

    def page(self, repo: str, path: str = "") -> str:
        """Return the URL of a folder of a repository, for a browser."""
        url = f"{self.shown}/datasets/{self.owner}/{repo}"
        return f"{url}/tree/main/{quote(path)}" if path else url

    def heads(self) -> dict[str, str | None]:
        """Return the newest commit of every repository, None where the list omits it.

        Raises:
            RemoteError: there is no such organization or user.
        """
        url = f"{self.endpoint}/api/datasets"
        found = {
            entry["id"].partition("/")[2]: entry.get("sha")
            for entry in self._pages(url, {"author": self.owner, "expand": "sha"})
        }
        if not found and not any(
            self._exists(f"{self.endpoint}/api/{kind}/{quote(self.owner)}/overview")
            for kind in ("organizations", "users")
        ):
            raise RemoteError(
                f"{self.address}: there is no organization or user {self.owner!r} at "
                f"{self.shown}; check the spelling"
            )
        return found

    def head(self, repo: str) -> str:
        """Return the newest commit of a repository.

        Raises:
            FileNotFoundError: there is no such repository, or this user may not see it.
        """
        url = f"{self.endpoint}/api/datasets/{self.repo_id(repo)}"
        found = self._json(self._get(url, params={"expand": "sha"}))
        if not isinstance(found, dict) or not isinstance(found.get("sha"), str):
            raise self._other_server(found)
        return found["sha"]

    def read(
        self, repo: str, commit: str, path: str, start: int = 0, end: int | None = None
    ) -> bytes:
        """Return bytes of a file at a commit.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if start == end:
            return b""
        is_part = start > 0 or end is not None
        headers = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if is_part else {}
        url = f"{self.endpoint}/datasets/{self.repo_id(repo)}/resolve/{commit}/{quote(path)}"
        response = self._get(url, headers=headers, beyond_end=True)
        if response.status_code == 416:
            return b""
        content = response.content
        return content[start:end] if is_part and response.status_code == 200 else content

    def tree(self, repo: str, commit: str, path: str) -> dict[str, dict[str, Any]]:
        """Return the Hub's entries of the files below a folder, by path in the repository.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        url = f"{self.endpoint}/api/datasets/{self.repo_id(repo)}/tree/{commit}"
        if path:
            url += f"/{quote(path, safe='')}"
        entries = self._pages(url, {"recursive": "true"})
        files = {entry["path"]: entry for entry in entries if entry["type"] == "file"}
        for name, entry in files.items():
            if type(entry.get("size")) is not int or entry["size"] < 0:
                raise RemoteError(
                    f"{self.address} reports the size of {name!r:.200} as "
                    f"{entry.get('size')!r:.40}; the server may not be the Hub"
                )
        return files

    def paths(self, repo: str, commit: str, paths: list[str]) -> dict[str, dict[str, Any]]:
        """Return the Hub's entries of these files; missing files are left out."""
        url = f"{self.endpoint}/api/datasets/{self.repo_id(repo)}/paths-info/{commit}"
        found = {}
        for first in range(0, len(paths), _PATHS_AT_ONCE):
            some = paths[first : first + _PATHS_AT_ONCE]
            entries = self._list(self._ask("POST", url, data={"paths": some, "expand": "false"}))
            found.update({entry["path"]: entry for entry in entries})
        return found

    def index(self, repo: str, commit: str) -> RepoIndex | None:
        """Return the index of a repository, None if it has none.

        Raises:
            BrokenIndexError: it cannot be read.
        """
        try:
            return RepoIndex.parse(repo, self.read(repo, commit, NAMESPACE_METADATA))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise BrokenIndexError(
                f"{self.address}: {NAMESPACE_METADATA} of {self.repo_id(repo)} is invalid: "
                f"{error}. Fix it at {self.page(repo)}, or remove it there if nothing is published"
            ) from error

    def fault_of(self, error: Exception) -> Fault:
        """Return the meaning of an error of ``huggingface_hub`` or of its HTTP library."""
        header = (self._headers or {}).get("authorization", "")
        return fault_of(error, self.address, self.shown, header.removeprefix("Bearer ") or None)

    def check_request(self, request: Any) -> None:
        """Raise an error if a request, such as a redirect, would send the token elsewhere.

        Raises:
            RemoteError: names the address.
        """
        own = self._own_headers().get("authorization")
        is_sent = own is not None and request.headers.get("authorization") == own
        # Both as the HTTP library parses them, which also sends the request.
        url, hub = request.url, type(request.url)(self.endpoint)
        is_hub = (url.scheme, url.host, url.port) == (hub.scheme, hub.host, hub.port)
        if is_sent and not (is_hub and url.path.startswith(f"{hub.path.rstrip('/')}/")):
            raise RemoteError(
                f"{self.address}: {self.shown} redirects the token to another address, "
                f"{safe_text(request.url)!r}, which is refused; the server may not be the Hub"
            )

    # -- requests ---------------------------------------------------------------------------

    def _pages(self, url: str, params: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the entries of a paginated list."""
        response = self._get(url, params=params)
        yield from self._list(response)
        for _ in range(_MOST_PAGES):
            following = response.links.get("next", {}).get("url")
            if following is None:
                return
            # The request would carry the token, which is only for the Hub.
            if not following.startswith(f"{self.endpoint}/"):
                raise RemoteError(
                    f"{self.address}: a listing from {self.shown} continues at another address, "
                    f"{safe_text(following)!r}, which is refused; the server may not be the Hub"
                )
            response = self._get(following)
            yield from self._list(response)
        raise RemoteError(
            f"{self.address}: a listing from {self.shown} does not end; the server may not be the "
            "Hub"
        )

    def _list(self, response: Any) -> list[dict[str, Any]]:
        found = self._json(response)
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise self._other_server(found)
        return found

    def _other_server(self, answer: Any) -> RemoteError:
        return RemoteError(
            f"{self.address}: {self.shown} answers {safe_text(answer)[:80]!r}; the server may not "
            "be the Hub"
        )

    def _json(self, response: Any) -> Any:
        try:
            return response.json()
        except ValueError as error:
            kind = response.headers.get("Content-Type", "unknown")
            raise RemoteError(
                f"{self.address}: {self.shown} sent content of type {kind!r}, expected the JSON "
                "of the Hub; a login page or a proxy may be answering"
            ) from error

    def _exists(self, url: str) -> bool:
        try:
            self._get(url)
        except FileNotFoundError:
            return False
        except HfHubHTTPError:  # irrelevant, as the result only improves a message
            return True
        return True

    def _get(self, url: str, *, beyond_end: bool = False, **options: Any) -> Any:
        return self._ask("GET", url, beyond_end=beyond_end, **options)

    def _ask(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        beyond_end: bool = False,
        **options: Any,
    ) -> Any:
        """Send a request, and return the response.

        Args:
            method: HTTP method.
            url: URL to request.
            headers: headers besides the user agent and the token.
            beyond_end: accept a range beyond the end of a file, and return its response.
            options: further arguments of the session's ``stream``.

        Raises:
            FileNotFoundError: the requested file or repository does not exist.
        """
        own = self._own_headers()
        with get_session().stream(
            method,
            url,
            headers=own | {"Accept-Encoding": "identity"} | (headers or {}),
            follow_redirects=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            **options,
        ) as stream:
            response = self._whole(stream)
        if beyond_end and response.status_code == 416:
            return response
        try:
            hf_raise_for_status(response)
        except GatedRepoError:
            raise
        except HfHubHTTPError as error:
            # Without a token, the Hub does not say whether something is missing or private.
            if response.status_code == 401 and "authorization" not in own:
                raise HiddenError("if it is private, set HF_TOKEN") from error
            if response.status_code == 404:
                raise FileNotFoundError(f"{self.address} has no such file") from error
            raise
        return response

    def _whole(self, stream: Any) -> Any:
        """Return a response with its content, whose length is limited to what memory holds.

        Raises:
            RemoteError: the response is longer, or compressed.
        """
        packed = stream.headers.get("content-encoding", "identity")
        if packed != "identity":
            raise RemoteError(
                f"{self.address}: {self.shown} sent a compressed response ({packed}) that was "
                f"not requested; a proxy may be answering"
            )
        content = bytearray()
        for piece in stream.iter_raw():
            content += piece
            check_length(self.address, len(content))
        headers = [
            (k, v) for k, v in stream.headers.multi_items() if k.lower() not in _TRANSPORT_HEADERS
        ]
        return type(stream)(
            stream.status_code, headers=headers, content=bytes(content), request=stream.request
        )

    def _own_headers(self) -> dict[str, str]:
        with self._lock:
            if self._headers is None:
                token = self._token
                if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
                    token = get_token()
                # Not huggingface_hub's own headers: they report what its server asks it to look for
                # here, and cannot be made for a day once a server has answered that wrongly.
                headers = {"user-agent": f"minari_pipe/{__version__}"}
                if token:
                    headers["authorization"] = f"Bearer {token}"
                # the HTTP library would show the token in its error message
                if not re.fullmatch(r"[ -~]*", headers.get("authorization", "")):
                    raise RemoteError(
                        f"{self.address}: the token contains invalid characters, such as line "
                        "breaks; copy it again from https://huggingface.co/settings/tokens"
                    )
                self._headers = headers
            return self._headers
