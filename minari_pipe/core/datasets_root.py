"""Locate the local datasets root and a dataset's data in it, without the library's import time.

::

    <root>/<namespace>/.../<name>-v<version>/data/    a dataset
    <root>/<name>.hdf5                                a dataset of Minari 0.2, a single file
    <root>/<namespace>/namespace_metadata.json        makes a folder a namespace
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from minari_pipe.core.dataset_id import parse_dataset_id, validate_namespace
from minari_pipe.core.files.links import OpenedFolder, PathLike, refuse_link, refuse_links
from minari_pipe.core.git import refuse_tracked_links, refuse_tracked_links_once
from minari_pipe.errors import ConfigError, CorruptDatasetError, InvalidDatasetIdError

ROOT_VARIABLE = "MINARI_DATASETS_PATH"
#: name of the variable in the oldest Minari releases
OLD_ROOT_VARIABLE = "MINARI_DATASET_LOCATION"

#: limits of Linux file systems in bytes: a name, and a path less what a dataset adds to it
_LONGEST_NAME = 255
_LONGEST_PATH = 4096 - 128


def get_dataset_path(dataset_id: str | None = None) -> Path:
    """Return the directory of a dataset or a namespace, or the root if no id is given.

    The root is ``MINARI_DATASETS_PATH``, else ``MINARI_DATASET_LOCATION``, else
    ``~/.minari/datasets``; it is created if missing. The dataset itself need not exist.

    Args:
        dataset_id: id of a dataset, or name of a namespace; None means the root.

    Raises:
        ConfigError: the root does not exist and cannot be created, or is not a folder.
        InvalidDatasetIdError: the id would lead out of the root, is malformed or is too long.
        CorruptDatasetError: the path has a symlink, or leads out of the root.

    Example:
        >>> from minari_pipe import get_dataset_path
        >>> get_dataset_path("D4RL/door/human-v2").relative_to(get_dataset_path()).as_posix()
        'D4RL/door/human-v2'
    """
    root = _root()
    return _inside(_place(dataset_id, root), root) if dataset_id else root


def _place(dataset_id: str, root: Path) -> Path:
    """Return the directory of an id below the root, without checking for symlinks."""
    try:
        validate_namespace(dataset_id)
    except InvalidDatasetIdError:
        parse_dataset_id(dataset_id)  # an id may be a single character, a namespace may not
    try:
        os.fsencode(dataset_id)
    except UnicodeEncodeError as exc:
        raise InvalidDatasetIdError(
            f"the id {dataset_id[:80]!a} has characters that file names cannot have in this "
            f"locale's encoding, {exc.encoding}; set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
        ) from None
    for part in dataset_id.split("/"):
        size = len(os.fsencode(part))
        if size > _LONGEST_NAME:
            raise InvalidDatasetIdError(
                f"{part[:40]!r}... is {size} bytes long; each part of an id becomes a folder "
                f"name, which can have at most {_LONGEST_NAME} bytes"
            )
    path = root / dataset_id
    if len(os.fsencode(path.absolute())) > _LONGEST_PATH:
        raise InvalidDatasetIdError(
            f"the id {dataset_id[:40]!r}... gives a path of more than {_LONGEST_PATH} bytes, "
            "too long for a file system; use a shorter id"
        )
    return path


def data_in(folder: Path) -> Path:
    """Return ``data/`` of a folder that the user named.

    Raises:
        LinkError: it is a symlink, which the author of the folder may have planted.

    Example:
        >>> data_in(Path("downloads/door")).as_posix()
        'downloads/door/data'
    """
    refuse_links(folder / "data", folder)
    return folder / "data"


def data_path_of(dataset_id: str) -> Path:
    """Return the path of a dataset's data: ``<root>/<id>/data``, or the file ``<root>/<id>.hdf5``.

    Raises:
        ConfigError: the root does not exist and cannot be created.
        InvalidDatasetIdError: the id is malformed.
        CorruptDatasetError: the path cannot be read, or leads out of the root.

    Example:
        >>> data_path_of("door/human-v2").relative_to(get_dataset_path()).as_posix()
        'door/human-v2/data'
    """
    root = _root()
    directory = _place(dataset_id, root)
    data = directory / "data"
    try:
        if not data.exists():
            flat = directory.with_name(f"{directory.name}.hdf5")
            data = flat if os.path.isfile(flat) else data
    except OSError as exc:
        raise CorruptDatasetError(f"{data} cannot be read: {exc.strerror}") from exc
    return _inside(data, root)


def id_at(data: Path) -> str | None:
    """Return the id whose data lie at a path of the datasets root; None for any other path.

    Example:
        >>> id_at(get_dataset_path("door/human-v2") / "data"), id_at(Path("door/human-v2/data"))
        ('door/human-v2', None)
    """
    root = root_of(data)
    if root is None or not (data.name == "data" or data.suffix == ".hdf5"):
        return None
    place = data.parent if data.name == "data" else data.with_suffix("")
    name = place.relative_to(root).as_posix()
    try:
        parse_dataset_id(name)
    except InvalidDatasetIdError:
        return None
    return name


def refuse_foreign_links(path: PathLike) -> None:
    """Raise if a symlink that need not be the user's own lies on the way to a path that they named.

    These are the symlinks that git tracks, or has tracked, and all below the datasets root.

    Raises:
        LinkError: names the symlink.
    """
    refuse_tracked_links(path)
    if root := root_of(Path(path)):
        refuse_links(path, root)


def check_data_link(path: Path) -> None:
    """Raise if ``data`` in the datasets root is a symlink that is not the user's to other data.

    Called on every open and change; other paths pass.

    Raises:
        LinkError: git tracks the symlink, or it leads to something else than the ``data`` of a
            dataset, such as a namespace, of which all datasets would be published.
    """
    if path.name != "data" or not path.is_symlink() or (root := root_of(path)) is None:
        return
    refuse_tracked_links(path)
    end, top = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    parts = end.relative_to(top).parts if end.is_relative_to(top) else ()  # else refused elsewhere
    is_dataset = end.name == "data" and id_at(root.joinpath(*parts)) is not None
    if not is_dataset or any(part.startswith(".") for part in parts):
        refuse_link(os.fspath(path))


def root_of(path: Path) -> Path | None:
    """Return the datasets root, spelled as in a path that lies in it, else None.

    Such a path has no symlink below the root. The user named any other path.
    """
    root = _configured_root()
    text, above = os.fspath(path), os.path.join(root, "")
    if text.startswith(above) and os.pardir not in text[len(above) :].split(os.sep):
        return root
    for parent in path.parents:
        if os.pardir in path.relative_to(parent).parts:
            return None  # the parents above go on from there
        with suppress(OSError):
            if os.path.samefile(parent, root):
                return parent
    return None


def open_folder(path: Path) -> OpenedFolder:
    """Open the folder of a dataset or of its data, from the datasets root if it lies there.

    Raises:
        LinkError: the path below the root has a symlink, other than ``data`` to a place there.
        OSError: the folder does not exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.fspath(open_folder(Path(folder))) == folder
        True
    """
    check_data_link(path)
    return OpenedFolder(path, root_of(path))


@contextmanager
def writing_below_root() -> Iterator[None]:
    """Raise a clear error if the body fails because the root is read-only.

    Raises:
        ConfigError: the process may not write or remove files there.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise ConfigError(
            f"cannot write to or delete from {exc.filename or _root()} ({exc.strerror}); "
            f"set {ROOT_VARIABLE} to a writable folder"
        ) from exc


def _configured_root() -> Path:
    configured = os.environ.get(ROOT_VARIABLE) or os.environ.get(OLD_ROOT_VARIABLE)
    root = _path(configured) if configured else Path.home() / ".minari" / "datasets"
    return root if root.parts else Path.cwd()  # a path below "." does not start with "."


#: parsing a path takes longer than the system calls of a read
_path = lru_cache(maxsize=8)(Path)


def _root() -> Path:
    root = _configured_root()
    refuse_tracked_links_once(root.absolute())
    try:
        if not root.is_dir():  # an existing root may be read-only
            root.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"the datasets root {root} cannot be created ({exc.strerror}); set {ROOT_VARIABLE} to "
            f"a writable folder"
        ) from exc
    return root


def _inside(path: Path, root: Path) -> Path:
    """Return a path below the root if it has no symlinks.

    Only ``data`` itself may be a symlink, made by the user, to another place below the root.
    """
    place = os.fspath(root)
    for part in os.fspath(path)[len(place) :].strip(os.sep).split(os.sep):
        place = os.path.join(place, part)
        try:
            if stat.S_ISLNK(os.lstat(place).st_mode):
                break
        except OSError:  # a missing or unreadable part is not a symlink
            return path
    else:
        return path  # most paths have no symlinks, and resolving one costs an lstat of every part
    try:
        end = path.resolve()
    except RuntimeError:  # Python before 3.13: the symlink leads to itself
        refuse_link(place)
    if not end.is_relative_to(root.resolve()):
        raise CorruptDatasetError(
            f"{path} is a symlink that leads out of the datasets root to {end}; move the "
            f"data into the root, or set {ROOT_VARIABLE}"
        )
    if path.name != "data" or place != os.fspath(path):
        refuse_link(place)
    return path
