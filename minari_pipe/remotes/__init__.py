"""Places that host datasets: a directory, an object store, the Hub; one file and one line each.

A remote of another package is an entry point of the group ``minari_pipe.remotes``: the scheme of
its addresses, and a class that is made with an address and a token.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.metadata import EntryPoint, entry_points

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
#: control characters, ends of lines, and halves of characters
_UNSHOWABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")
_ENTRY_POINTS = "minari_pipe.remotes"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def default_address() -> str:
    """Return where datasets come from and go to if nothing else is said.

    Example:
        >>> import os
        >>> os.environ.get("MINARI_REMOTE", default_address()) == default_address()
        True
    """
    return os.environ.get(REMOTE_VARIABLE) or DEFAULT_REMOTE


def open_remote(address: str | os.PathLike[str] | None = None, token: str | None = None) -> Remote:
    """Return the remote at an address; nothing is asked of it yet.

    Args:
        address: ``hf://org``, ``gs://bucket``, ``s3://bucket``, each of the last two also with a
            folder, ``file:///folder`` or a path; None means ``MINARI_REMOTE``, else
            ``hf://farama-minari``.
        token: of the Hub; for Google the file of a service account's key. None and the empty text
            mean what the provider's own tools would use; S3 and directories know no other.

    Raises:
        ConfigError: it is no address of a remote, or holds a password.
        MissingDependencyError: the package that speaks with it is not installed.

    Example:
        >>> open_remote("file:///tmp").address
        'file:///tmp'
    """
    address = (default_address() if address is None else os.fspath(address)).strip()
    check_remote_address(address)
    scheme, _ = split_scheme(address)
    if scheme not in _REMOTES:
        return _of_others()[scheme].load()(address, token or None)
    module, name = _REMOTES[scheme].split(":")
    return getattr(importlib.import_module(module), name)(address, token or None)


def check_remote_address(address: str) -> None:
    """Refuse what is no address of a remote, without a look at the place or its package.

    Raises:
        ConfigError: it is no address of a remote, or holds a password.

    Example:
        >>> check_remote_address("s4://bucket")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: 's4://bucket' is no remote: expected a path, or an ...
    """
    if _UNSHOWABLE.search(address.strip()):
        raise ConfigError(f"{address[:300]!r} is no remote: it has control characters")
    scheme, place = split_scheme(address.strip())
    others = {} if scheme in _REMOTES else _of_others()
    if "@" in place and scheme != "file" and scheme not in others:
        raise ConfigError(
            f"the address {scheme}://...@{place.rpartition('@')[2]} carries a user name or a "
            "password; leave them out, they come from the provider's own configuration"
        )
    if scheme not in _REMOTES and scheme not in others:
        known = [*_REMOTES, *others]
        hint = did_you_mean(scheme, known, prefix="")
        raise ConfigError(
            f"{address!r} is no remote: expected a path, or an address that begins with "
            f"{', '.join(f'{name}://' for name in known)}.{hint}"
        )


def _of_others() -> dict[str, EntryPoint]:
    """The remotes of other packages, by their schemes."""
    return {entry.name: entry for entry in entry_points(group=_ENTRY_POINTS)}


def is_address(text: str) -> bool:
    """Whether a text is the address of a remote, or of something in one; no id begins so.

    Example:
        >>> [is_address(text) for text in ("hf://org", "/share", "./share", "~/share", "door/a-v0")]
        [True, True, True, True, False]
    """
    return "://" in text or text.startswith(("/", "./", "../", "~"))


def split_scheme(address: str) -> tuple[str, str]:
    """Split an address into its scheme, in small letters, and the rest; a path is of ``file``.

    Example:
        >>> split_scheme("s3://bucket/folder"), split_scheme("./folder")
        (('s3', 'bucket/folder'), ('file', './folder'))
    """
    match = _SCHEME.fullmatch(address)
    return (match[1].lower(), match[2]) if match else ("file", address)
