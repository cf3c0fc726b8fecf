"""Refuse models of strangers (MJCF, URDF, SDF) that make a simulator read other files.

Simulators read whatever a model names, and compose its paths in ways of their own, from folders,
names and the folders of other models. So a model that names files is read only if the user trusts
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from minari_pipe.core.trust import check_file, is_trusted_module, texts
from minari_pipe.errors import TrustError

#: Maximum size of a model in bytes. Meshes and textures are files of their own.
_LARGEST = 1 << 24
#: The end of an element, which no model lacks, but other text with a ``<`` does.
_CLOSED = re.compile(rb"/>|<\s*/")
#: UTF-16 in either order, which other parsers than MuJoCo's read.
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
#: What a model may not hold, wherever and however a parser reads it.
_FAULTS = (
    (rb"(?i)<\s*+(?:\w++:)?uri\b", "names other files"),
    (rb"\0", "holds a zero byte"),
    (rb"<!(?!--)", "holds a declaration (<!...)"),
    (rb"encoding\s*=\s*(?![\"'](?i:utf-8|us-ascii)[\"'])", "has another encoding than UTF-8"),
)


#: The name of an attribute. Each pattern here takes time in proportion to the text alone.
_ATTRIBUTE = re.compile(rb"(?<![\w.:-])([\w.:-]++)\s*+=")


def names_files(content: bytes) -> bool:
    """Return whether the content of a file is that of a model that may name other files."""
    return _fault(content) is not None


def check_models(
    env_id: str,
    arguments: Any,
    *,
    where: str = "env",
    below: Path | None = None,
    given: Collection[str] = (),
) -> list[str]:
    """Refuse arguments of an environment that are, or name, a model that names other files.

    The code of a module that the user trusts could read any file itself, so its environments are
    not concerned.

    Args:
        env_id: of the environment, ``module:Name-v0`` if a module registers it.
        arguments: as JSON and YAML hold them, nested or not.
        where: the key that holds them, for the message.
        below: where relative paths start; None means the current folder.
        given: texts that the user gave.

    Returns:
        Such models that may be read because the user named them.

    Raises:
        TrustError: the user does not trust the model; the message says how to trust it.

    Example:
        >>> check_models("Ant-v5", {"xml_file": "ant.xml", "render_mode": "rgb_array"})
        []
        >>> check_models("A-v0", {"model": "<mujoco><include file='/a'/></mujoco>"})
        Traceback (most recent call last):
            ...
        minari_pipe.errors.TrustError: env.model is a model that names other files; keep it in ...
    """
    module = env_id.rpartition(":")[0]
    if module and is_trusted_module(module):
        return []
    found = []
    for key, text in texts(where, arguments):
        if fault := _fault(os.fsencode(text)):
            raise TrustError(f"{key} is a model that {fault}; keep it in a file that you trust")
        place = os.path.abspath(os.path.join(below or "", os.path.expanduser(text)))
        fault = _fault_of(place)
        if fault and text in given:
            found.append(place)
        elif fault:
            reason = "a simulator reads whatever file a model names"
            check_file(f"{key}: {place} is a model that {fault}, and {reason}", place)
    return found


def _fault_of(place: str) -> str | None:
    if "\0" in place or not os.path.isfile(place):
        return None
    with open(place, "rb") as stream:
        return _fault(stream.read(_LARGEST + 1))


def _fault(content: bytes) -> str | None:
    """Return why a content is that of a model that may name other files, None if it is not."""
    head = content.partition(b"\0")[0]
    has_elements = b"<" in head and _CLOSED.search(head)
    if not has_elements and content.lstrip()[:2] not in _WIDE:
        return None
    if len(content) > _LARGEST:
        return f"has more than {_LARGEST >> 20} MiB"
    if any(b"file" in name[1].lower() for name in _ATTRIBUTE.finditer(content)):
        return "names other files"
    return next((fault for pattern, fault in _FAULTS if re.search(pattern, content)), None)
