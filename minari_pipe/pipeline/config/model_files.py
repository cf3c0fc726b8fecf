"""Finds the files that a simulator's model (MJCF, URDF) in the workspace names, and checks them.

A model may come from a stranger, and MuJoCo's parser is lenient: it skips any text before the first
element, and allows ``<`` in values. So every quote after a ``=`` counts as the start of a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

from minari_pipe.core.files.links import opener
from minari_pipe.core.trust import check_outside, elsewhere
from minari_pipe.errors import TrustError
from minari_pipe.pipeline.workspace_links import check_folder

#: Maximum size of a model in bytes. Meshes and textures are files of their own.
_LARGEST = 1 << 24
#: Maximum number of values of one model and all that it includes, times the folders it names.
_MOST_PLACES = 1_000_000
#: No system opens a longer path.
_LONGEST_PATH = 4096

_VALUE = re.compile(rb"=\s*([\"'])")
_LONGEST_ATTRIBUTE = 64
_ATTRIBUTE_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.-"
#: Attributes that are never paths; dm_control writes ``class="/"``.
_NAMES = (b"name", b"class", b"childclass")
#: The end of an element, which no model lacks, but other text with a ``<`` does.
_CLOSED = re.compile(rb"/>|<\s*/")
_INCLUDE = re.compile(rb"<\s*include")
_NEWLINE = re.compile(rb"\r\n?|\n\r")
_ENTITY = re.compile(rb"&(?:#x0*([0-9a-fA-F]{1,6})|#0*([0-9]{1,7})|(amp|apos|gt|lt|quot));")
_ENTITIES = {b"amp": b"&", b"apos": b"'", b"gt": b">", b"lt": b"<", b"quot": b'"'}
#: The start of an absolute path, except an address such as ``package://robot/arm.stl``. MuJoCo
#: takes ``a:/b`` for a path of the current folder.
_ABSOLUTE = re.compile(r"[/~]|[^/]*:/(?!/[^/])")
#: Archives of models, which MuJoCo opens by their suffix or their ``content_type``.
_ARCHIVE = re.compile(r"(?i)\.(?:mjz|zip)(?![^/\\])|application/zip")


class _Value(NamedTuple):
    """A value that may be a path."""

    file: Path
    """The file that holds it."""
    path: str
    first: str | None
    """The folder or file that a plain relative path begins with, else ``None``."""


@dataclass
class _Named:
    """What a model names, or several models whose relative paths start in one folder."""

    values: set[_Value] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    """Folders in which it looks up paths."""
    includes: bool = False


def referenced_files(model: Path, root: Path) -> list[Path]:
    """Return the files that a model names, and those that models among them name.

    Args:
        model: a file of any kind; if it is no text with elements, it names nothing.
        root: the workspace. A model outside it is the user's own and is not read.

    Raises:
        TrustError: a file outside the workspace is not trusted; a file is an archive, a pipe or a
            device, or too large to check.
        LinkError: a file is, or lies behind, a symlink.
    """
    if not (model.is_relative_to(root) and model.is_file()):
        return []
    parsed: dict[Path, _Named] = {}
    # Relative paths start in a model's own folder; in what it includes, in either folder.
    started: dict[Path, _Named] = {}
    todo, seen = [(model, model.parent)], {(model, model.parent)}
    n_places = 0
    while todo:
        file, start = todo.pop()
        if not file.is_relative_to(root):  # the user trusts it
            continue
        if file not in parsed:
            status = file.stat()
            parsed[file] = _parsed(file, root, (status.st_ino, status.st_mtime_ns, status.st_size))
        known = started.setdefault(start, _Named())
        folders = {os.path.join(start, folder) for folder in parsed[file].folders}
        folders |= {os.path.join(root, f) for f in parsed[file].folders if ":" in f}
        new, values = folders - known.folders, parsed[file].values - known.values
        pairs = chain(product(known.folders, [values]), product(new, [known.values | values]))
        for folder, some in pairs:
            n_places += len(some)
            if n_places > _MOST_PLACES:
                raise _too_many(model)
            for value, place in _places(folder, some, root):
                starts = [place.parent, start] if parsed[value.file].includes else [place.parent]
                found = {(place, begin) for begin in starts} - seen
                seen |= found
                todo += found
        known.folders |= new
        known.values |= values
    return sorted({file for file, _ in seen} - {model})


def _too_many(model: Path) -> TrustError:
    return TrustError(
        f"{model} has too many values and folders to check whether they lead out of the workspace; "
        f"keep meshes and textures in files of their own, and in few folders"
    )


@lru_cache(maxsize=128)
def _parsed(file: Path, root: Path, stamp: tuple[int, ...]) -> _Named:
    """Return what a file names if it is a model.

    Args:
        file: a file in the workspace.
        root: the workspace.
        stamp: differs if the file was edited; several stages ask for the same file.
    """
    text = _NEWLINE.sub(b"\n", _text(file, root))
    if not _CLOSED.search(text):
        return _Named()
    found = _Named(folders={""}, includes=bool(_INCLUDE.search(text)))
    values: set[bytes] = set()
    for number, start in enumerate(_VALUE.finditer(text)):
        if number > _MOST_PLACES:
            raise _too_many(file)
        before = text[max(0, start.start() - _LONGEST_ATTRIBUTE) : start.start()].rstrip()
        rest = before.rstrip(_ATTRIBUTE_CHARACTERS)
        attribute = before[len(rest) :] if rest else b""
        if attribute in _NAMES:
            continue
        end = text.find(start[1], start.end())
        raw = text[start.end() : end if end >= 0 else len(text)]
        values.add(raw)
        if not attribute or attribute.endswith(b"dir"):
            found.folders |= _spellings(raw)
    for path in {path for raw in values for path in _spellings(raw)}:
        if _ARCHIVE.search(path):
            raise TrustError(
                f"{file} names {path[:200]!r}, an archive, whose models are not checked; unpack "
                f"it, and name the model in it"
            )
        first = path.partition("/")[0].casefold()
        is_plain = first.isascii() and first not in ("", ".", "..") and ":" not in path
        is_plain = is_plain and first[0] != "~" and os.pardir not in path.split("/")
        found.values.add(_Value(file, path, first if is_plain else None))
    return found


def _spellings(raw: bytes) -> set[str]:
    """Return the paths that simulators may read in a value."""
    ways = {raw, _ENTITY.sub(_character, raw)} if b"&" in raw else {raw}
    paths = {os.fsdecode(way.partition(b"\0")[0]) for way in ways}
    return paths | {path.replace("\\", "/") for path in paths}  # MuJoCo takes both for separators


def _character(entity: re.Match[bytes]) -> bytes:
    if entity[3]:
        return _ENTITIES[entity[3]]
    code = int(entity[1], 16) if entity[1] else int(entity[2])
    return chr(code).encode("utf-8", "surrogatepass") if code <= 0x10FFFF else entity[0]


def _text(file: Path, root: Path) -> bytes:
    """Return a file's bytes from the first ``<`` on, up to a zero byte, where text ends."""
    text = b""
    with open(file, "rb", opener=opener(root)) as stream:
        while part := stream.read(1 << 20):
            part, zero, _ = part.partition(b"\0")
            text += part if text else part[part.find(b"<") :] if b"<" in part else b""
            if len(text) > _LARGEST:
                raise TrustError(
                    f"{file} is text of more than {_LARGEST >> 20} MiB with a '<', too large to "
                    f"check as a model; keep meshes and textures in their own files"
                )
            if zero:
                break
    return text


def _places(folder: str, values: Collection[_Value], root: Path) -> Iterator[tuple[_Value, Path]]:
    """Yield the files to which values lead from a folder, each after a check."""
    there: set[str] = set()
    if os.path.isdir(folder := os.path.normpath(folder)):
        there = {name.casefold() for name in os.listdir(folder)}
    for value in values:
        if value.first is None or value.first in there:
            for place in map(os.path.normpath, _checked(folder, value, root)):
                if os.path.lexists(place) and not os.path.isdir(place):
                    if Path(place).is_relative_to(root):
                        check_folder(Path(place), root)
                    yield value, Path(place)


def _checked(folder: str, value: _Value, root: Path) -> list[str]:
    """Return the paths to which a value leads from a folder; refuse those out of the workspace."""
    path, named = value.path, f"{value.file} names {value.path[:200]!r}"
    leads_up = os.pardir in path.split("/")
    if _ABSOLUTE.match(path) or (leads_up and "://" in path):
        place = os.path.normpath(os.path.expanduser(path))
        if not Path(place).is_relative_to(root):
            check_outside(named, place)
        return [place]
    places = [os.path.join(folder, path), *([os.path.join(root, path)] if ":" in path else [])]
    for place in places if leads_up else []:
        outside = place if len(place) > _LONGEST_PATH else elsewhere(place, root)
        if outside is not None:
            check_outside(named, outside)
    return places
