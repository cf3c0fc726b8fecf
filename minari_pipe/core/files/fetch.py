"""Find a file that a config names: at a path, with the package, in the cache, a mirror or the web.

No download is used before its sha256 is verified. It is written beside its place in the user's
cache and renamed, so that a cached file is always complete::

    $MINARI_PIPE_CACHE | $XDG_CACHE_HOME/minari_pipe | ~/.cache/minari_pipe
    └─ downloads/<sha256>/<file name>
"""

from __future__ import annotations

import hashlib
import netrc
import os
import re
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.links import expand_user
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.messages import without_credentials
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.errors import ConfigError, LinkError, RemoteError

if TYPE_CHECKING:
    import requests

MIRROR_VARIABLE = "MINARI_PIPE_MIRROR"
DEFAULT_MACHINE = "default"
CACHE_VARIABLE = "MINARI_PIPE_CACHE"
SHIPPED = Path(__file__).parents[2] / "policies" / "shipped"

_CHUNK = 1 << 20
_LARGEST = 16 * 2**30  # bytes of a file whose size the server does not report
_WAITS = (0.5, 1.0, 2.0)  # seconds before the second, third and fourth attempt
_LONGEST_WAIT = 10.0  # seconds, even if a server's Retry-After asks for more
_TIMEOUT = (10.0, 30.0)  # seconds to connect, seconds between two packets
_STALE = 86_400  # seconds after which a part file counts as left by a killed process
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@, -]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_Stream = tuple[int | None, Iterator[bytes]]  # size in bytes if known, and the bytes


@dataclass(frozen=True)
class FileSource:
    """Where a file is: a path, or an address with its sha256; the path takes precedence.

    Attributes:
        path: a local file, relative to the working directory.
        address: ``http(s)://…``, or ``shipped:NAME`` for a file that comes with this package.
        sha256: hash of the file at the address, or at the path if there is no address.
    """

    path: str | None = None
    address: str | None = None
    sha256: str | None = None


class _NotThereError(Exception):
    """The server answered that it has no such file."""


class _DownloadError(Exception):
    """The file could not be downloaded; the text says why."""


def locate(source: FileSource, *, what: str, override: str) -> Path:
    """Return a local file that holds what ``source`` names, downloading it if necessary.

    It looks at the path, the package, the cache, ``MINARI_PIPE_MIRROR`` (a folder or an address
    prefix, to which it adds the address's file name) and the address, in this order.

    Args:
        source: where the file is, as a config says.
        what: the file in words, for messages and the progress bar: ``"the demonstrations"``.
        override: how the user can name a file of their own: ``"policy.source.path=FILE"``.

    Raises:
        ConfigError: the source is unusable: no file at the path, an address without sha256.
        RemoteError: the address and the mirror are out of reach, or hold another file.
    """
    sha256 = _checked_sha256(source.sha256, what)
    if source.path:
        # With both given, the sha256 belongs to the address: the path is the user's replacement.
        return _local(expand_user(source.path), what, override, None if source.address else sha256)
    if not source.address:
        raise ConfigError(
            f"{what}: neither a path nor an address is given. Name a file with {override}"
        )
    if source.address.startswith("shipped:"):
        return _local(SHIPPED / _shipped_name(source.address, what), what, override, sha256)
    check_address(source.address, what)
    name, shown = _file_name(source.address, what), without_credentials(source.address)
    if sha256 is None:
        raise ConfigError(
            f"{what}: the address {shown} is given without the sha256 of its file, so "
            f"the download could not be verified. Add the sha256, or name a file with {override}"
        )
    target = cache_folder() / "downloads" / sha256 / name
    refuse_tracked_links(target)
    if not _holds(target, sha256):
        _fetch(source.address, target, sha256=sha256, what=what, override=override)
    return target


def _holds(path: Path, sha256: str) -> bool:
    try:
        return sha256_file(path) == sha256
    except OSError:
        return False


def _local(path: Path, what: str, override: str, sha256: str | None) -> Path:
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ConfigError(f"{what}: {str(path)!r} {kind}. Name the file with {override}")
    try:
        found = sha256 and sha256_file(path)
    except OSError as error:
        raise ConfigError(f"{what}: {str(path)!r} cannot be read: {error.strerror}") from error
    if found != sha256:
        raise ConfigError(
            f"{what}: {str(path)!r} has sha256 {found}, but {sha256} is expected. Correct the "
            f"sha256 if this is the file you mean, or name another with {override}"
        )
    return path


def _fetch(address: str, target: Path, *, sha256: str, what: str, override: str) -> None:
    """Put the file into the cache, from the mirror or from the address."""
    shown = without_credentials(address)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        problem = _fetch_from_mirror(address, target, sha256=sha256, what=what)
        if problem is None:
            return
        found = _download(address, target, sha256=sha256, what=what)
    except (_NotThereError, _DownloadError) as error:
        raise RemoteError(
            f"{what}: {shown} cannot be downloaded ({error}){problem}. Without internet, set "
            f"{MIRROR_VARIABLE} to a folder or an address prefix that has {target.name!r}, or name "
            f"the file with {override}"
        ) from error
    except LinkError:  # an OSError, too
        raise
    except OSError as error:
        raise RemoteError(
            f"{what}: {shown} cannot be stored in {target.parent}: {error.strerror or error}. "
            f"Make room, set {CACHE_VARIABLE} to another folder, or name the file with {override}"
        ) from error
    if found != sha256:
        raise RemoteError(
            f"{what}: {shown} has sha256 {found}, but {sha256} is expected; the download was "
            f"discarded. The file has changed, or the config has the wrong sha256; use "
            f"{MIRROR_VARIABLE} or {override} to name the right file"
        )


def _fetch_from_mirror(address: str, target: Path, *, sha256: str, what: str) -> str | None:
    """Try the mirror; return ``None`` if it had the file, else a text for a later message."""
    mirror = os.environ.get(MIRROR_VARIABLE, "").strip()
    if not mirror:
        return ""
    shown = without_credentials(mirror)
    if not _SCHEME.match(mirror):
        place = expand_user(mirror) / target.name
        refuse_tracked_links(place)
        if not place.is_file():
            return f"; {MIRROR_VARIABLE}={shown} has no {target.name!r}"
        try:
            with open(place, "rb"):
                pass
        except OSError as error:
            return f"; {MIRROR_VARIABLE}={shown} cannot be read: {error.strerror}"
        where = str(place)
        found = _store(_copied(place), target, sha256=sha256, what=what)
    else:
        check_address(mirror, MIRROR_VARIABLE, password_allowed=True)
        where = shown.rstrip("/") + "/" + quote(target.name)
        try:
            url = mirror.rstrip("/") + "/" + quote(target.name)
            found = _download(url, target, sha256=sha256, what=what)
        except _NotThereError:
            return f"; {MIRROR_VARIABLE}={shown} has no {target.name!r}"
        except _DownloadError as error:
            return f"; {MIRROR_VARIABLE}={shown} does not answer ({error})"
    if found == sha256:
        return None
    warnings.warn(
        f"{what}: {where} has sha256 {found}, but {sha256} is expected; the mirror's file is not "
        f"used; trying {without_credentials(address)} instead",
        stacklevel=4,
    )
    return f"; {where} has the wrong sha256 {found}"


def _download(address: str, target: Path, *, sha256: str, what: str) -> str:
    """Store what ``address`` holds, retrying after transient faults; return its sha256."""
    from requests import RequestException

    for wait in (*_WAITS, None):
        try:
            return _store(_downloaded(address), target, sha256=sha256, what=what)
        except RequestException as error:
            reason, pause = _explained(error)
            if pause is None:
                raise _DownloadError(reason) from error
            if wait is None:
                raise _DownloadError(f"{reason}, {len(_WAITS) + 1} attempts") from error
            time.sleep(max(wait, min(pause, _LONGEST_WAIT)))
        except ValueError as error:  # from urllib3, which requests lets pass
            raise _DownloadError(f"it redirects to an address that is invalid: {error}") from error
    raise AssertionError("the last attempt returns or raises")


def _store(stream: AbstractContextManager[_Stream], target: Path, *, sha256: str, what: str) -> str:
    """Write a stream to ``target`` if its sha256 is the expected one; return its sha256.

    Each writer has its own part file and the rename is atomic, so several processes may fetch the
    same file at the same time.
    """
    part = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
    digest = hashlib.sha256()
    try:
        with stream as (size, chunks), open(part, "xb") as file:
            with ProgressBar(what, size, "B", leave=False) as bar:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    bar.show(file.tell())
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() == sha256:
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


@contextmanager
def _copied(path: Path) -> Iterator[_Stream]:
    with open(path, "rb") as file:
        yield os.fstat(file.fileno()).st_size, iter(lambda: file.read(_CHUNK), b"")


def netrc_entries() -> dict[str, tuple[str, str, str]]:
    """Return login, account and password by machine, as in ``~/.netrc``.

    The entry of :data:`DEFAULT_MACHINE`, if there is one, is for all machines not named there.
    """
    files = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for file in files:
        with suppress(OSError, UnicodeDecodeError, netrc.NetrcParseError):
            return netrc.netrc(os.path.expanduser(file)).hosts
    return {}


def _own_password(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add the credentials of the address, or those of ``~/.netrc`` for this very machine.

    The ``default`` entry is not used: requests would send it to any machine that a config names.
    """
    from requests.auth import HTTPBasicAuth
    from requests.utils import get_auth_from_url

    login, password = get_auth_from_url(str(request.url))
    machine = urlsplit(str(request.url)).hostname
    if not login and machine != DEFAULT_MACHINE and machine in (known := netrc_entries()):
        login, _, password = known[machine]
    return HTTPBasicAuth(login, password)(request) if login else request


@contextmanager
def _downloaded(address: str) -> Iterator[_Stream]:
    import requests

    class Session(requests.Session):
        def rebuild_auth(
            self, prepared_request: requests.PreparedRequest, response: requests.Response
        ) -> None:
            headers, before = prepared_request.headers, str(response.request.url)
            if self.should_strip_auth(before, str(prepared_request.url)):
                headers.pop("Authorization", None)
            if "Authorization" not in headers:
                _own_password(prepared_request)

    # "identity": with compression, Content-Length and the progress bar would count other bytes.
    headers = {"Accept-Encoding": "identity"}
    with Session() as session, ExitStack() as answers:

        def close_later(answer: requests.Response, **_: Any) -> None:
            answers.callback(answer.close)  # an invalid redirect leaves it open

        session.hooks["response"] = [close_later]
        response = session.get(
            address, auth=_own_password, stream=True, timeout=_TIMEOUT, headers=headers
        )
        response.raise_for_status()
        length = response.headers.get("Content-Length", "")
        plain = not response.headers.get("Content-Encoding")
        size = whole_number(length) if plain else None
        yield size, _whole(response, size)


def whole_number(text: str, most: int = 18) -> int | None:
    """Return the number that a server sent, or None if it is none or has over ``most`` digits.

    Example:
        >>> whole_number("12"), whole_number("\N{SUPERSCRIPT TWO}"), whole_number("9" * 5000)
        (12, None, None)
    """
    return int(text) if re.fullmatch(f"[0-9]{{1,{most}}}", text) else None


def _whole(response: requests.Response, size: int | None) -> Iterator[bytes]:
    """Yield the body's chunks; a body shorter than announced is a broken connection.

    A limit keeps an endless body, or one of compressed zeros, from filling the disk.
    """
    from requests.exceptions import ChunkedEncodingError

    received = 0
    for chunk in response.iter_content(_CHUNK):
        received += len(chunk)
        if received > (_LARGEST if size is None else size):
            raise _DownloadError(f"it has more than {received - len(chunk)} bytes")
        yield chunk
    if size is not None and received != size:
        raise ChunkedEncodingError(f"{received} of {size} bytes")


def _explained(error: requests.RequestException) -> tuple[str, float | None]:
    """Return what went wrong, and the seconds to wait; ``None`` if a retry is useless."""
    from requests import exceptions

    response = error.response
    if isinstance(error, exceptions.HTTPError) and response is not None:
        status = response.status_code
        if status in (404, 410):
            raise _NotThereError(f"HTTP {status}: no such file") from error
        after = response.headers.get("Retry-After", "")
        pause = float(whole_number(after, 5) or 0)
        return f"HTTP {status}", pause if status in _TRANSIENT else None
    if isinstance(error, exceptions.SSLError):
        return "its certificate could not be verified", None
    if isinstance(error, exceptions.Timeout):
        return "timed out", 0.0
    if isinstance(error, exceptions.ProxyError):
        return "the proxy is unreachable or refused the request", 0.0
    if isinstance(error, exceptions.ConnectionError):
        return "no connection", 0.0
    if isinstance(error, (exceptions.ChunkedEncodingError, exceptions.ContentDecodingError)):
        return "the connection was lost", 0.0
    return type(error).__name__, None


def _sweep(folder: Path) -> None:
    """Remove the part files of processes that were killed long ago."""
    for part in folder.glob("*.part"):
        try:
            if time.time() - part.stat().st_mtime > _STALE:
                part.unlink()
        except FileNotFoundError:
            continue  # its writer finished meanwhile


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache, which may not exist.

    Example:
        >>> cache_folder().name
        'minari_pipe'
    """
    if own := os.environ.get(CACHE_VARIABLE):
        return expand_user(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative values.
    base = Path(shared) if os.path.isabs(shared) else Path("~/.cache").expanduser()
    return base / "minari_pipe"


def _checked_sha256(sha256: str | None, what: str) -> str | None:
    if not sha256:
        return None
    lowered = str(sha256).lower()
    if not _SHA256.fullmatch(lowered):
        raise ConfigError(
            f"{what}: {str(sha256)[:80]!r} is not a sha256; expected 64 hexadecimal digits"
        )
    return lowered


def check_address(address: str, owner: str, *, password_allowed: bool = False) -> None:
    """Raise ConfigError unless an address can be used, and may be recorded."""
    shown = without_credentials(address)
    try:
        parts = urlsplit(address)
        usable = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"{owner}: {shown!r} is not a usable address; expected http://… or https://…"
        )
    if parts.username is not None and not password_allowed:
        raise ConfigError(
            f"{owner}: the address {shown} contains a user name or password, which would be "
            f"written into the pipeline's files. Put them in ~/.netrc"
        )


def _file_name(address: str, what: str) -> str:
    """Return the last segment of an address's path, the file's name in mirrors and the cache."""
    name = unquote(urlsplit(address).path.rpartition("/")[2])
    if not _FILE_NAME.fullmatch(name):
        raise ConfigError(
            f"{what}: the address {without_credentials(address)} ends in {name!r}, which is not a "
            f"plain file name (letters, digits and _ . + = @ , -)"
        )
    return name


def _shipped_name(address: str, what: str) -> str:
    name = address.removeprefix("shipped:")
    if not _FILE_NAME.fullmatch(name):
        raise ConfigError(f"{what}: {address!r} must be shipped:NAME with a plain file name")
    return name
