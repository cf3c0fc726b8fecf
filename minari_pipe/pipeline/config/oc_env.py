"""Handles ``${oc.env:NAME}`` in a config: recorded unresolved, and resolved only on use.

An environment variable may hold a secret, and ``params.yaml`` and the metadata are published. So
only keys that name the user's own clusters and storage may contain one.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from minari_pipe.core.messages import without_credentials
from minari_pipe.core.trust import texts
from minari_pipe.errors import ConfigError
from minari_pipe.remotes import carries_login, check_remote_address

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import Node

KEYS = ("engine.address", "engine.storage", "publish.targets")
_WRITTEN = re.compile(r"\$\{oc\.env:([^,{}]+)(?:,([^{}]*))?\}")
#: Minimum length of a value that is masked in messages; shorter ones occur in any text.
_SHORTEST = 4
_used: dict[str, str] = {}  #: ``${oc.env:NAME}`` by the value that :func:`resolved` inserted
_NO_DEFAULT = object()


def as_written(key: str, default: Any = _NO_DEFAULT, *, _node_: Node | None = None) -> str:
    """Return ``${oc.env:...}`` unresolved; replaces OmegaConf's resolver ``oc.env``.

    Raises:
        ConfigError: it is used in a key that is not in :data:`KEYS`.
    """
    where = "" if _node_ is None else str(_node_._get_full_key(None))
    text = f"${{oc.env:{key}}}" if default is _NO_DEFAULT else f"${{oc.env:{key},{default}}}"
    if where.partition("[")[0] not in KEYS:
        raise ConfigError(
            f"{where or 'the config'} uses {text}, whose value would be recorded and published; "
            f"oc.env is only for {', '.join(KEYS)}: write the value here, or give it on the "
            f"command line"
        )
    return text


def resolved(text: str) -> str:
    """Return ``text`` with its environment variables replaced by their values.

    Raises:
        ConfigError: a variable is not set and has no default, or holds a control character.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found[1].strip(), found[2]
        given = os.environ.get(name, default)
        if given is None:
            raise ConfigError(f"{text}: the environment variable {name} is not set")
        if any(unicodedata.category(letter) == "Cc" for letter in given):
            raise ConfigError(
                f"{text}: the environment variable {name} contains a line break or another control "
                f"character; expected part of an address"
            )
        if len(given) >= _SHORTEST and name in os.environ:
            _used[given] = f"${{oc.env:{name}}}"
        return given

    return _WRITTEN.sub(value, text)


def check_engine_address(key: str, address: str) -> None:
    """Refuse an address with a user name or a password, before it is recorded.

    Args:
        key: ``engine.address`` or ``engine.storage``.
        address: its value.

    Raises:
        ConfigError: the address contains one.
    """
    place = resolved(address)
    if key == "engine.storage":  # which may be a path
        scheme, _, place = place.partition("://")
        if scheme.lower().endswith(("file", "local")):
            place = place.partition("/")[0]
    if "@" in place:
        with _named(key, address):
            raise carries_login(resolved(address))


def check_targets(targets: list[str]) -> None:
    """Refuse invalid ``publish.targets`` before any work is done.

    Raises:
        ConfigError: a target is not a valid address, or contains a password.
    """
    for target in targets:
        if not isinstance(target, str) or not target.strip():
            raise ConfigError(
                f"publish.targets contains {target!r}; expected addresses such as s3://bucket"
            )
        with _named("publish.targets", target):
            check_remote_address(resolved(target))


@contextmanager
def _named(key: str, address: str) -> Iterator[None]:
    """Name the key in an error about an address."""
    try:
        yield
    except ConfigError as exc:
        if "${" in address:  # the message may hold a part of a secret
            raise ConfigError(
                f"{key}: {without_credentials(address)} is not a usable address; check the value "
                f"of the environment variable"
            ) from None
        raise ConfigError(f"{key}: {exc}") from exc


def is_literal(text: str) -> bool:
    """Return whether a text from the command line refers to no ``${...}`` of a config file."""
    return "${" not in _WRITTEN.sub("", text)


def literal_texts(overrides: list[str], *sections: str) -> set[tuple[str, str]]:
    """Return the texts that overrides of sections give literally, not by a file's ``${...}``.

    ``${oc.env:NAME}`` counts as literal: the environment is the user's own.

    Args:
        overrides: overrides of a command line.
        sections: the sections.

    Returns:
        Each text with the key that it was given for, because a file may hand it on to another one.

    Example:
        >>> literal_texts(["publish.targets=[s3://b,'${dataset.license}']"], "publish")
        {('publish.targets[0]', 's3://b')}
    """
    given = [(each.key_or_group, each.value()) for each in _parsed(overrides, *sections)]
    found = [pair for key, value in given for pair in texts(key, _without_numbers(value))]
    return {(key, text) for key, text in found if is_literal(text)}


def is_set(overrides: list[str], section: str, key: str) -> bool:
    """Return whether overrides set ``section.key`` to a value that does not come from a file.

    Example:
        >>> is_set(["publish={targets: [s3://a]}"], "publish", "replace")
        False
        >>> is_set(["publish={replace: true}"], "publish", "replace")
        True
    """
    values = []
    for override in _parsed(overrides, section):
        value = override.value()
        if override.key_or_group == section and isinstance(value, dict):
            values.append(value.get(key, _NO_DEFAULT))
        elif override.key_or_group == f"{section}.{key}" and not override.is_delete():
            values.append(value)
    return any(value is not _NO_DEFAULT and is_literal(str(value)) for value in values)


def _parsed(overrides: list[str], *keys: str) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    own = [override for override in overrides if override.lstrip("+~").startswith(keys)]
    return OverridesParser.create().parse_overrides(own)


def _without_numbers(value: Any) -> Any:
    """Return a value with its numbers as text, as OmegaConf converts them where text is due."""
    if isinstance(value, dict):
        return {key: _without_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_numbers(part) for part in value]
    return str(value) if isinstance(value, int | float) else value


def without_values(text: str) -> str:
    """Return a message with the values that :func:`resolved` inserted masked again."""
    written = {form: name for value, name in _used.items() for form in _forms(value)}
    for form in sorted(written, key=len, reverse=True):
        text = text.replace(form, written[form])
    return text


def holds_value(address: str) -> bool:
    """Return whether an address contains a value from the environment, perhaps a secret."""
    return any(form in address for value in _used for form in _forms(value))


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a value that messages and addresses may contain."""
    for text in (value, " ".join(value.split())):
        for form in (text, text.strip("/"), os.path.normpath(text).strip("/.")):
            if len(form) >= _SHORTEST:
                yield from (form, repr(form)[1:-1], quote(form), quote(form, safe=""))
