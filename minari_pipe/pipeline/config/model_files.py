"""Finds the files that a simulator's model (MJCF, URDF) in the workspace names, and checks them.

A model may come from a stranger, and simulators read whatever it names. Their parsers are lenient,
and reduce paths in ways of their own. So a model is read without the user's trust only if it is
plain: nothing in it can lead out of the folders that it names, however it is parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from minari_pipe.core.files.links import opener
from minari_pipe.core.trust import check_file
from minari_pipe.errors import TrustError
from minari_pipe.pipeline.workspace_links import check_folder

#: Maximum size of a model in bytes. Meshes and textures are files of their own.
_LARGEST = 1 << 24
#: Maximum number of values of a model, times the folders that it names.
_MOST_PLACES = 1_000_000

#: The end of an element, which no model lacks, but other text with a ``<`` does.
_CLOSED = re.compile(rb"/>|<\s*/")
#: UTF-16 in either order, which other parsers than MuJoCo's read.
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
#: What is not plain, and how it is called.
_NOT_PLAIN = (
    (rb"\0", "a zero byte"),
    (rb"<!(?!--)", "a declaration (<!...)"),
    (rb"encoding\s*=\s*(?![\"'](?i:utf-8|us-ascii)[\"'])", "an encoding other than UTF-8"),
    (rb"&(?:#|\w+;)", "an entity (&...;)"),
    (rb"\\", "a backslash"),
    (rb"(?<!\.)\.\.(?!\.)", "'..', which leads to a parent folder"),
    (rb"[\"']\s*(?:/(?!-{0,2}\s*>)|[A-Za-z]:[\\/])|:///", "an absolute path"),
    (rb"(?i)strippath", "strippath, by which paths lose their folders"),
    (rb"(?i)\.(?:zip|mjz)\b|content_type", "an archive of models, or a content_type"),
)


def referenced_files(model: Path, root: Path, written: Sequence[Path] = ()) -> list[Path]:
    """Return the files that a model names, and those that models among them name.

    Args:
        model: a file of any kind; if it is no text with elements, it names nothing.
        root: the workspace. A model outside it is the user's own and is not read.
        written: folders whose files count even if they do not exist yet.

    Raises:
        TrustError: a model is not plain and the user does not trust it; a file is a pipe or a
            device.
        LinkError: a file is, or lies behind, a symlink.
    """
    if not (model.is_relative_to(root) and model.is_file()):
        return []
    found, todo = {model}, [model]
    # Paths start in the folder of any model among them, or in the current one.
    starts, values = {root}, set[str]()
    while todo:
        file = todo.pop()
        new = _values(file, root)
        if new <= values and (not new or file.parent in starts):
            continue
        starts.add(file.parent)
        values |= new
        for place in _places(values, starts):
            is_there = os.path.lexists(place) and not place.is_dir()
            if not is_there and not any(map(place.is_relative_to, written)):
                continue
            if place.is_relative_to(root) and place not in found:
                check_folder(place, root)
                found.add(place)
                todo += [place] if is_there else []
    return sorted(found - {model})


def _values(file: Path, root: Path) -> frozenset[str]:
    status = file.stat()
    return _parsed(file, root, (status.st_ino, status.st_mtime_ns, status.st_size))


def _places(values: set[str], starts: set[Path]) -> Iterator[Path]:
    """Yield the paths to which the values of a model lead from folders."""
    folders = {os.path.join(start, value) for start in starts for value in values}
    folders = {os.path.normpath(folder) for folder in folders if os.path.isdir(folder)}
    folders |= set(map(str, starts))
    if len(values) * len(folders) > _MOST_PLACES:
        raise TrustError(
            f"a model in {min(starts)} names too many values and folders to be checked; keep "
            f"meshes and textures in few folders"
        )
    for folder in folders:
        for value in values:
            yield Path(os.path.normpath(os.path.join(folder, value)))


@lru_cache(maxsize=128)
def _parsed(file: Path, root: Path, stamp: tuple[int, ...]) -> frozenset[str]:
    """Return all quoted values of a file if it is a model, after a check that it is plain.

    Args:
        file: a file in the workspace.
        root: the workspace.
        stamp: differs if the file was edited; several stages ask for the same file.
    """
    with open(file, "rb", opener=opener(root)) as stream:
        text = stream.read(_LARGEST + 1)
    head = text.partition(b"\0")[0]
    is_wide = text.lstrip()[:2] in _WIDE
    if not is_wide and not (b"<" in head and _CLOSED.search(head)):
        return frozenset()
    faults = [fault for pattern, fault in _NOT_PLAIN if re.search(pattern, text)]
    if len(text) > _LARGEST:
        faults.insert(0, f"more than {_LARGEST >> 20} MiB")
    if faults:
        check_file(
            f"{file} is a model with {faults[0]}, so the files that it names cannot be checked",
            str(file),
        )
    # Whatever stands between two quotes, however a parser pairs them.
    parts = (part for quote in (b'"', b"'") for part in text.split(quote))
    return frozenset(os.fsdecode(p.strip()) for p in parts if len(p) < 4096 and b"\0" not in p)
