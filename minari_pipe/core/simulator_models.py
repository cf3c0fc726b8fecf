"""Refuse arguments by which an environment would read files of a stranger's choice.

Simulators reduce paths in ways of their own, and read whatever a model (MJCF, URDF, SDF) names. So
without the user's trust, a path is plain, and a model names no other file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from minari_pipe.core.trust import check_path, is_trusted_module, real_place, texts
from minari_pipe.errors import TrustError

#: Maximum size in bytes of a file that is searched for the names of others.
_LARGEST = 1 << 28
#: Longest path in characters; a file system takes longer relative paths than absolute ones.
_LONGEST = 1024

#: The record that ends a zip archive.
_END_OF_ZIP = b"PK\5\6"
#: The end of an element, which no model lacks, but other text with a ``<`` does.
_CLOSED = re.compile(rb"/>|<\s*/")
#: The name of an attribute. Each pattern here takes time in proportion to the text alone.
_ATTRIBUTE = re.compile(rb"(?<![\w.:-])([\w.:-]++)\s*+=")
#: What a model may not hold, wherever and however a parser reads it.
_FAULTS = (
    (rb"(?i)<\s*+(?:\w++:)?uri\b", "names other files"),
    (rb"<!(?!--)", "holds a declaration (<!...)"),
    (rb"encoding\s*=\s*(?![\"'](?i:utf-8|us-ascii)[\"'])", "has another encoding than UTF-8"),
)


def check_arguments(
    module: str,
    arguments: Any,
    *,
    where: str = "env",
    below: Path | None = None,
    given: Collection[tuple[str, str]] = (),
) -> list[str]:
    """Refuse arguments of an environment that lead a simulator to files the user does not trust.

    The code of a module that the user trusts could read any file itself, so its environments are
    not concerned.

    Args:
        module: that defines the environment; empty if unknown.
        arguments: as JSON and YAML hold them, nested or not.
        where: the key that holds them, for the message.
        below: where relative paths start; None means the current folder.
        given: keys with the texts that the user gave for them.

    Returns:
        Files that may be read because the user named them.

    Raises:
        TrustError: an argument is no plain path, or a model that names other files, or names one,
            and the user does not trust it; the message says how to trust it.

    Example:
        >>> check_arguments("", {"xml_file": "ant.xml", "render_mode": "rgb_array"})
        []
        >>> check_arguments("", {"model": "<mujoco><include file='/a'/></mujoco>"})
        Traceback (most recent call last):
            ...
        minari_pipe.errors.TrustError: env.model is a model that names other files; keep it in ...
    """
    if module and is_trusted_module(module):
        return []
    found = []
    for key, text in texts(where, arguments):
        if fault := _fault(os.fsencode(text)):
            raise TrustError(f"{key} is a model that {fault}; keep it in a file that you trust")
        place = os.path.abspath(os.path.join(below or "", os.path.expanduser(text)))
        for fault in _faults_of(text, place, below):
            if (key, text) in given:
                found.append(place)
            else:
                followed = real_place(text, below)
                check_path(f"{key} {fault}", place, followed, inside=below or Path.cwd())
    return found


def names_files(content: bytes) -> bool:
    """Return whether the content of a file is that of a model that may name other files."""
    return _fault(content) is not None


def _faults_of(text: str, place: str, below: Path | None) -> Iterator[str]:
    parts = text.split("/")
    odd = {
        "a backslash": "\\" in text and os.sep != "\\",
        "'//'": "//" in text,
        "'..'": os.pardir in parts,
        "a leading '~'": text.startswith("~"),
        f"more than {_LONGEST} characters": len(text) > _LONGEST and len(parts) > 1,
    }
    for what in (what for what, is_so in odd.items() if is_so):
        yield (
            f"is {text[:80]!r}, a path with {what}, by which a simulator may find another file "
            f"than is checked here; write a plain path"
        )
    # As given, too, for whoever leaves a '~' as it is.
    for path in dict.fromkeys((place, os.path.join(below or "", text))):
        is_there = os.path.exists(path) and not os.path.isdir(path)
        if is_there and (fault := _fault_in(path)):
            yield f"names {path}, a model that {fault}; a simulator reads what a model names"


def _fault_in(path: str) -> str | None:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return "may name other files: it is a pipe or a device"
    return _read_fault(path, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=128)
def _read_fault(path: str, stamp: tuple[int, ...]) -> str | None:
    """Return the fault of a file; ``stamp`` differs if it was edited."""
    if stamp[-1] > _LARGEST:
        return f"may name other files: it has more than {_LARGEST >> 20} MiB"
    return _fault(Path(path).read_bytes())


def _fault(content: bytes) -> str | None:
    """Return why a content is that of a model that may name other files, None if it is not."""
    if _END_OF_ZIP in content:  # MuJoCo's .mjz, wherever it looks for that
        return "may name other files: it is a zip archive"
    content = content.replace(b"\0", b"")  # as of UTF-16, which some parsers read without a mark
    if b"<" not in content or not _CLOSED.search(content):
        return None
    if any(b"file" in name[1].lower() for name in _ATTRIBUTE.finditer(content)):
        return "names other files"
    return next((fault for pattern, fault in _FAULTS if re.search(pattern, content)), None)
