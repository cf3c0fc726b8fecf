"""Open remotes, the places that host datasets: directories, object stores, the Hugging Face Hub.

Another package adds a remote with an entry point in the group ``minari_pipe.remotes``. Its name is
the scheme of the addresses, and it loads a class that takes an address and a token.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.metadata import EntryPoint

from minari_pipe.core.messages import without_credentials
from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.remotes.base import Remote

__all__ = [
    "DEFAULT_REMOTE",
    "REMOTE_VARIABLE",
    "Remote",
    "check_remote_address",
    "default_address",
    "open_remote",
]

DEFAULT_REMOTE = "hf://farama-minari"
REMOTE_VARIABLE = "MINARI_REMOTE"

_REMOTES = {
    "file": "minari_pipe.remotes.directory:DirectoryRemote",
    "s3": "minari_pipe.remotes.s3:S3Remote",
    "gs": "minari_pipe.remotes.gcs:GCSRemote",
    "gcp": "minari_pipe.remotes.gcs:GCSRemote",  # Minari's name for it
    "hf": "minari_pipe.remotes.hub.remote:HubRemote",
}
#: Control characters, line breaks and lone surrogates.
_UNSHOWABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")
_ENTRY_POINTS = "minari_pipe.remotes"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def default_address() -> str:
    """Return the address of the default remote: ``MINARI_REMOTE``, else ``hf://farama-minari``.

    Example:
        >>> import os
        >>> os.environ.get("MINARI_REMOTE", default_address()) == default_address()
        True
    """
    return os.environ.get(REMOTE_VARIABLE) or DEFAULT_REMOTE


def open_remote(address: str | os.PathLike[str] | None = None, token: str | None = None) -> Remote:
    """Return the remote at an address, without contacting it yet.

    Args:
        address: ``hf://org``, ``gs://bucket`` or ``s3://bucket`` (the last two optionally with a
            folder), ``file:///folder`` or a path; None means ``MINARI_REMOTE``, or the default.
        token: access token of the Hub; for Google, the path of a service account's key file. None
            or an empty text means the provider's own defaults; S3 and directories only use those.

    Raises:
        ConfigError: the address is not that of a remote, or contains a user name or a password.
        MissingDependencyError: the client package for this kind of remote is not installed.

    Example:
        >>> open_remote("file:///tmp").address
        'file:///tmp'
    """
    address = (default_address() if address is None else os.fspath(address)).strip()
    check_remote_address(address)
    scheme, _ = split_scheme(address)
    if scheme not in _REMOTES:
        return _registered_remotes()[scheme].load()(address, token or None)
    module, name = _REMOTES[scheme].split(":")
    return getattr(importlib.import_module(module), name)(address, token or None)


def check_remote_address(address: str) -> None:
    """Raise an error unless an address is that of a remote, without opening it.

    Raises:
        ConfigError: the address is not that of a remote, or contains a user name or a password.

    Example:
        >>> check_remote_address("s4://bucket")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: 's4://bucket' is not a remote: expected a path or an ...
    """
    if _UNSHOWABLE.search(address.strip()):
        raise ConfigError(
            f"{_shown(address)[:300]!r} is not a remote: it contains control characters"
        )
    address = address.strip()
    scheme, place = split_scheme(address)
    others = {} if scheme in _REMOTES else _registered_remotes()
    if "@" in place and scheme != "file" and scheme not in others:
        raise carries_login(address)
    if scheme not in _REMOTES and scheme not in others:
        known = [*_REMOTES, *others]
        hint = did_you_mean(scheme, known, prefix="")
        raise ConfigError(
            f"{_shown(address)!r} is not a remote: expected a path or an address that begins with "
            f"{', '.join(f'{name}://' for name in known)}.{hint}"
        )
    path = address.partition("://")[2] if "://" in address else address
    is_path = path.startswith(("/", "~")) and "@" not in path.partition("/")[0]
    if scheme == "file" and (not path or (path != address and not is_path)):
        raise ConfigError(
            f"{_shown(address)!r} does not name a directory: expected a path, or an "
            "address such as file:///share, with three slashes"
        )


def carries_login(address: str) -> ConfigError:
    """Return the error for an address with a user name or a password, which it does not show."""
    return ConfigError(
        f"the address {_shown(address)} contains a user name or a password; remove it, and set the "
        "credentials in the provider's own configuration"
    )


def _shown(address: str) -> str:
    """Return an address without credentials, which may hold any character."""
    if "@" in address:
        start = address[: address.find("://") + 3] if "://" in address else ""
        address = f"{start}…@{address.rpartition('@')[2]}"
    return without_credentials(address)


def _registered_remotes() -> dict[str, EntryPoint]:
    """Return the remotes of other packages, by scheme."""
    return {entry.name: entry for entry in entry_points(_ENTRY_POINTS)}


def is_address(text: str) -> bool:
    """Return whether a text is the address of a remote or of something in one, not a dataset id.

    Example:
        >>> [is_address(text) for text in ("hf://org", "/share", "./share", "~/share", "door/a-v0")]
        [True, True, True, True, False]

    Raises:
        TypeError: it is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a dataset id or an address as a string, got {text!r:.60}")
    return "://" in text or text.startswith(("/", "./", "../", "~"))


def split_scheme(address: str) -> tuple[str, str]:
    """Split an address into its lowercase scheme and the rest; a path has the scheme ``file``.

    Example:
        >>> split_scheme("s3://bucket/folder"), split_scheme("./folder")
        (('s3', 'bucket/folder'), ('file', './folder'))
    """
    match = _SCHEME.fullmatch(address)
    return (match[1].lower(), match[2]) if match else ("file", address)
