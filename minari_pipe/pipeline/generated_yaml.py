"""Reads the YAML files that the pipeline and DVC generate: shallow, and without aliases."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from minari_pipe.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10 times as fast as DVC's

_BEFORE_WORDS = re.compile(rb"^[ \t?:-]*", re.MULTILINE)

#: A config that nests deeper cannot be composed.
_MOST_LEVELS = 200


class NotGeneratedError(yaml.YAMLError):
    """A text that neither the pipeline nor DVC writes."""


def load_yaml(text: str | bytes) -> Any:
    """Return the content of a generated YAML file.

    Raises:
        yaml.YAMLError: the text is damaged, or as in :func:`generated`.
    """
    return yaml.load(generated(text), Loader=_LOADER)


@functools.lru_cache(maxsize=16)  # a run reads most files several times
def generated(text: str | bytes) -> str | bytes:
    """Return ``text`` if a parser can load it safely.

    Aliases can expand to more than memory holds, and deep nesting crashes the parser.

    Raises:
        NotGeneratedError: the text has aliases or nests deeper than 200 levels.
        yaml.YAMLError: the text is damaged.
    """
    if _is_shallow(text if isinstance(text, bytes) else text.encode("utf-8", "replace")):
        return text
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MOST_LEVELS:
            fault = f"nests deeper than {_MOST_LEVELS} levels"
        elif getattr(event, "anchor", None) is not None:
            fault = "has a YAML anchor or alias"
        else:
            continue
        raise NotGeneratedError(f"{fault} in line {event.start_mark.line + 1}")
    return text


def _is_shallow(text: bytes) -> bool:
    """Return whether a look at the bytes is enough, which saves time of a run without work.

    Every level of nesting takes a bracket, or a character before the first word of a line.
    """
    if not text.isascii() or any(mark in text for mark in (b"&", b"*", b"\r", b"\0")):
        return False
    most_before = max(map(len, _BEFORE_WORDS.findall(text)))
    return text.count(b"[") + text.count(b"{") + most_before < _MOST_LEVELS


def check_generated(path: Path) -> None:
    """Refuse a file that would hang or crash DVC, which reports other damage itself.

    Raises:
        ConfigError: as in :func:`generated`.
    """
    try:
        generated(path.read_bytes())
    except NotGeneratedError as exc:
        raise ConfigError(
            f"{path} {exc}, which no generated file has; restore it from git, or remove it"
        ) from exc
    except (OSError, yaml.YAMLError):
        pass
