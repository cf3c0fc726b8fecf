"""Find the files that a simulator's model (MJCF, URDF, SDF) in the workspace names.

They are dependencies of the stages whose environments read the model. Which models are read at all
is decided by :mod:`minari_pipe.core.simulator_models`.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from minari_pipe.core.files.links import opener
from minari_pipe.core.simulator_models import names_files
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.workspace_links import check_folder

#: Maximum number of names, times the folders in which they may start.
_MOST_PLACES = 100_000
#: Attributes such as ``file``, ``fileright``, ``filename``, ``meshdir``, and the element ``<uri>``.
_NAMES = re.compile(
    rb"""(?<![\w.:-])([\w.:-]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')|<\s*+(?:\w++:)?uri\s*+>([^<]*+)"""
)


def referenced_files(model: Path, root: Path, written: Sequence[Path] = ()) -> list[Path]:
    """Return the files of the workspace that a model, or a model among them, may name.

    Simulators join folders and names in ways of their own, so a name counts in every folder to
    which names lead.

    Args:
        model: a file of any kind; if it is no model, it names nothing.
        root: the workspace. A model outside it is the user's own and is not read.
        written: folders whose files count even if they do not exist yet.

    Raises:
        ConfigError: there are too many names and folders.
        LinkError: a file is, or lies behind, a symlink.
        TrustError: a file is a pipe or a device.
    """
    if not (model.is_relative_to(root) and model.is_file()):
        return []
    found, names = {model}, set(_names_in(model, root))
    if not names:
        return []
    folders = {root, model.parent}
    names.add(os.path.relpath(model.parent, root))
    todo = [(folder, name) for folder in folders for name in names]
    while todo:
        folder, name = todo.pop()
        place = Path(os.path.normpath(folder / name))
        new_names, new_folders = set[str](), set[Path]()
        if place.is_relative_to(root) and place not in found:
            if place.is_dir():
                new_folders.add(place)
            elif os.path.lexists(place) or any(map(place.is_relative_to, written)):
                check_folder(place, root)
                found.add(place)
                if place.is_file():
                    new_names = {*_names_in(place, root)} - names
                    new_folders.add(place.parent)
        parent = Path(os.path.normpath(folder / os.path.dirname(name)))
        if parent.is_relative_to(root) and parent.is_dir():
            new_folders.add(parent)
        new_folders -= folders
        todo += [(at, name) for at in new_folders for name in names]
        folders |= new_folders
        todo += [(at, name) for at in folders for name in new_names]
        names |= new_names
        if len(names) * len(folders) > _MOST_PLACES:
            raise ConfigError(
                f"{model} and the models that it names lead to too many files and folders to be "
                f"tracked; keep meshes and textures in few folders"
            )
    return sorted(found - {model})


def _names_in(file: Path, root: Path) -> frozenset[str]:
    status = file.stat()
    return _parsed(file, root, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=128)
def _parsed(file: Path, root: Path, stamp: tuple[int, ...]) -> frozenset[str]:
    """Return what a file names if it is a model; ``stamp`` differs if the file was edited."""
    with open(file, "rb", opener=opener(root)) as stream:
        content = stream.read().replace(b"\0", b"")  # as of UTF-16
    if not names_files(content):
        return frozenset()
    found = set()
    for match in _NAMES.finditer(content):
        attribute, name = match[1], match[2] or match[3] or match[4] or b""
        is_path = attribute is None or re.search(b"(?i)file|dir", attribute)
        if is_path and 0 < len(name.strip()) < 4096:
            given = os.fsdecode(name.strip())
            found |= {given, html.unescape(given)}  # a simulator may leave a `&` as it is
    # MuJoCo's setting `strippath` reduces each path, also one of Windows, to its last part.
    return frozenset(found | {re.split(r"[/\\]", name)[-1] for name in found} - {""})
