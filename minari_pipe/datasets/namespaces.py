"""Manage the namespaces of the local root: folders that hold datasets and other namespaces.

A folder is a namespace if it has a ``namespace_metadata.json`` with any JSON object. Names that
begin with a dot are ignored, and nothing below a dataset is a namespace.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import (
    NAMESPACE_REGEX,
    check_new_namespace,
    namespace_hierarchy,
    validate_namespace,
)
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path, writing_below_root
from minari_pipe.core.files.atomic import check_size, read_whole
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.files.links import held_folder, walk
from minari_pipe.core.files.locks import exclusive
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidMetadataError,
    did_you_mean,
)

__all__ = [
    "NAMESPACE_METADATA_FILENAME",
    "NAMESPACE_REGEX",
    "create_namespace",
    "delete_namespace",
    "get_namespace_metadata",
    "list_local_namespaces",
    "namespace_hierarchy",
    "update_namespace_metadata",
    "validate_namespace",
]

NAMESPACE_METADATA_FILENAME = "namespace_metadata.json"
#: name of the file until it is complete
_BESIDE = f".{NAMESPACE_METADATA_FILENAME}.tmp"


def create_namespace(namespace: str, description: str | None = None, **kwargs: Any) -> None:
    """Create a namespace, and its parents if they are missing.

    Args:
        namespace: its name, such as ``D4RL/door``.
        description: description of the namespace, kept in its metadata if given.
        **kwargs: further metadata, anything that JSON can hold.

    Raises:
        InvalidDatasetIdError: the name is malformed or not allowed.
        InvalidMetadataError: the metadata cannot be written as JSON.
        DatasetExistsError: it exists already, or it or a parent is a dataset.
        ConfigError: the root is read-only.

    Example:
        >>> from minari_pipe import create_namespace, delete_namespace, get_namespace_metadata
        >>> create_namespace("example/door", description="Doors to open")
        >>> get_namespace_metadata("example/door"), get_namespace_metadata("example")
        ({'description': 'Doors to open'}, {})
        >>> delete_namespace("example/door")
        >>> delete_namespace("example")
    """
    check_new_namespace(namespace)
    text = _dump(kwargs if description is None else {**kwargs, "description": description})
    with making_namespaces(namespace, text) as is_new:
        if not is_new:
            raise DatasetExistsError(f"Namespace '{namespace}' already exists.")


def update_namespace_metadata(
    namespace: str, description: str | None = None, **kwargs: Any
) -> None:
    """Replace the metadata of a namespace.

    Args:
        namespace: its name.
        description: description of the namespace; kept even if it is None, as in real Minari.
        **kwargs: further metadata, anything that JSON can hold.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        InvalidMetadataError: the metadata cannot be written as JSON.
        DatasetNotFoundError: it does not exist.
        ConfigError: the root is read-only.

    Example:
        >>> from minari_pipe import create_namespace, get_namespace_metadata
        >>> from minari_pipe import update_namespace_metadata
        >>> create_namespace("example", author="A")
        >>> update_namespace_metadata("example", description="Examples")
        >>> get_namespace_metadata("example")
        {'description': 'Examples'}
    """
    path = _existing(namespace)
    text = _dump({**kwargs, "description": description})
    with writing_below_root():
        _replace(path, text)


def get_namespace_metadata(namespace: str) -> dict[str, Any]:
    """Return the metadata of a namespace.

    Args:
        namespace: its name.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        DatasetNotFoundError: it does not exist.
        CorruptDatasetError: its file is too large, not a JSON object, or a symlink.

    Example:
        >>> from minari_pipe import create_namespace, delete_namespace, get_namespace_metadata
        >>> create_namespace("example", license="MIT")
        >>> get_namespace_metadata("example")
        {'license': 'MIT'}
        >>> delete_namespace("example")
    """
    path = _existing(namespace)
    try:
        return json_object(read_whole(path))
    except CorruptDatasetError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{path} cannot be read: {error}") from error


def namespace_metadata_bytes(namespace: str) -> bytes:
    """Return the metadata of a namespace as it is stored.

    Raises:
        DatasetNotFoundError: it does not exist.
        CorruptDatasetError: its file is too large, or a symlink.
    """
    return read_whole(_existing(namespace))


def write_namespace(namespace: str, metadata: dict[str, Any], *, overwrite: bool = False) -> None:
    """Create a namespace with this metadata, and its parents if they are missing.

    Args:
        namespace: its name.
        metadata: anything that JSON can hold.
        overwrite: replace existing metadata.

    Raises:
        DatasetExistsError: it or a parent is a dataset.
        ConfigError: the root is read-only.
    """
    text = _dump(metadata)
    with making_namespaces(namespace, text) as is_new:
        if overwrite and not is_new:
            _replace(_existing(namespace), text)


def delete_namespace(namespace: str) -> None:
    """Remove an empty namespace; warn if it does not exist.

    Args:
        namespace: its name; its parents stay.

    Raises:
        InvalidDatasetIdError: the name is malformed.
        DatasetExistsError: it contains datasets, other namespaces or files.
        ConfigError: the root is read-only.

    Example:
        >>> from minari_pipe import create_namespace, delete_namespace, list_local_namespaces
        >>> create_namespace("example")
        >>> delete_namespace("example")
        >>> list_local_namespaces()
        []
    """
    _check_form(namespace)
    directory = get_dataset_path(namespace)
    if not _is_namespace(namespace):
        warnings.warn(f"Namespace '{namespace}' does not exist.", stacklevel=2)
        return
    with writing_below_root():
        if directory.is_symlink():
            directory.unlink()
        elif not _remove(directory):
            raise DatasetExistsError(
                f"Namespace {directory} is not empty. All datasets must be deleted first."
            )


def list_local_namespaces() -> list[str]:
    """Return the names of the local root's namespaces, sorted.

    Example:
        >>> from minari_pipe import create_namespace, delete_namespace, list_local_namespaces
        >>> create_namespace("example/door")
        >>> list_local_namespaces()
        ['example', 'example/door']
        >>> delete_namespace("example/door")
        >>> delete_namespace("example")
    """
    root = get_dataset_path()
    found = []
    for folder, folders, files in walk(root):
        name = Path(folder).relative_to(root).as_posix()
        if "data" in (*folders, *files) and name != ".":
            folders.clear()  # a dataset
            continue
        folders[:] = [entry for entry in folders if not entry.startswith(".")]
        if NAMESPACE_METADATA_FILENAME in files:
            with suppress(InvalidDatasetIdError):  # no other function accepts such a name
                _check_form(name)
                found.append(name)
    return sorted(found)


@contextmanager
def making_namespaces(namespace: str | None, text: str = "{}") -> Iterator[bool]:
    """Create a namespace and its parents; remove the new ones if the body fails.

    Args:
        namespace: its name; None is the root.
        text: its metadata, if it has none yet; new parents get empty metadata.

    Yields:
        Whether the namespace had no metadata before.

    Raises:
        DatasetExistsError: it or a parent is a dataset or a file.
        ConfigError: the root is read-only.
    """
    made: list[Path] = []
    is_new = False
    try:
        with writing_below_root():
            refuse_datasets(namespace)
            for parent in namespace_hierarchy(namespace):
                directory = get_dataset_path(parent)
                try:
                    with held_folder(directory.parent, get_dataset_path()) as above:
                        (above / directory.name).mkdir()
                    made.append(directory)
                except FileExistsError:
                    if not directory.is_dir():
                        raise DatasetExistsError(
                            f"{directory} already exists and is not a folder"
                        ) from None
                with held_folder(directory, get_dataset_path()) as folder:
                    path = folder / NAMESPACE_METADATA_FILENAME
                    is_new = _add_file(path, text if parent == namespace else "{}")
        yield is_new
    except BaseException:
        for directory in reversed(made):
            with suppress(OSError):
                _remove(directory)
        raise


def refuse_datasets(namespace: str | None) -> None:
    """Raise if a namespace or one of its parents is a dataset.

    Raises:
        DatasetExistsError: one of them is a dataset.
    """
    for parent in namespace_hierarchy(namespace):
        if os.path.lexists(data_path_of(parent)):
            which = "it" if parent == namespace else "its parent"
            raise DatasetExistsError(
                f"{namespace!r} cannot be a namespace: {which} already exists as the dataset "
                f"{parent!r}"
            )


def _check_form(namespace: str) -> None:
    """Raise if the name of a namespace is malformed; an existing one may have one character."""
    if not (isinstance(namespace, str) and re.fullmatch(r"[-_\w]", namespace)):
        validate_namespace(namespace)


def _is_namespace(namespace: str) -> bool:
    path = get_dataset_path(namespace) / NAMESPACE_METADATA_FILENAME
    return os.path.lexists(path) and not os.path.lexists(data_path_of(namespace))


def _existing(namespace: str) -> Path:
    _check_form(namespace)
    if not _is_namespace(namespace):
        hint = did_you_mean(namespace, list_local_namespaces())
        raise DatasetNotFoundError(f"Namespace {namespace} does not exist locally.{hint}")
    return get_dataset_path(namespace) / NAMESPACE_METADATA_FILENAME


def _dump(metadata: dict[str, Any]) -> str:
    try:
        text = json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMetadataError(
            f"the metadata of a namespace cannot be written as JSON: {error}"
        ) from error
    check_size(NAMESPACE_METADATA_FILENAME, text.encode())
    return text


def _replace(path: Path, text: str) -> None:
    """Replace a namespace's metadata, never in another folder that takes its place meanwhile."""
    with (
        held_folder(path.parent, get_dataset_path()) as folder,
        _beside(folder / path.name, text) as beside,
    ):
        os.replace(beside, folder / path.name)


@contextmanager
def _beside(path: Path, text: str) -> Iterator[Path]:
    """Yield a file with this text in the same folder, and remove it unless it was renamed.

    Its name is fixed, so the next process replaces what a killed one left behind.
    """
    beside = path.with_name(_BESIDE)
    with exclusive(path.parent):
        try:
            write_new(beside, text.encode())
            yield beside
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def _add_file(path: Path, text: str) -> bool:
    """Write a file whole or not at all, unless it exists; return whether it was written."""
    if os.path.lexists(path):
        return False
    with _beside(path, text) as beside:
        try:
            os.link(beside, path)  # unlike a rename, it never replaces a file of another process
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            os.replace(beside, path)
    return True


def _remove(directory: Path) -> bool:
    """Remove a folder that holds only its metadata; return whether that was possible."""
    with held_folder(directory, get_dataset_path()) as folder:
        path = folder / NAMESPACE_METADATA_FILENAME
        if set(os.listdir(folder)) - {path.name, _BESIDE}:
            return False
        text = None
        with suppress(CorruptDatasetError):  # it is too large, or a link
            text = read_whole(path) if path.is_file() else None
        path.unlink(missing_ok=True)
        path.with_name(_BESIDE).unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError:  # something was put into it meanwhile
            if text is not None:
                write_new(path, text)
            return False
    return True
