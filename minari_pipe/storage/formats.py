"""Register the formats: the storage class of each ``data_format``, and those of older layouts."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minari_pipe.core.files.atomic import current
from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import UnknownFormatError

if TYPE_CHECKING:
    from minari_pipe.storage.base import MinariStorage

#: Name of the metadata file in the data directory of a dataset.
METADATA_FILE_NAME = "metadata.json"
#: this package's writable formats, by ``data_format``; other packages add theirs by entry points
FORMATS = {
    "hdf5": "minari_pipe.storage.hdf5.storage:HDF5Storage",
    "arrow": "minari_pipe.storage.arrow.storage:ArrowStorage",
    "parquet": "minari_pipe.storage.arrow.storage:ParquetStorage",
}
#: also writable, but their datasets exist only in this process
_UNLISTED = {
    "memory": "minari_pipe.storage.memory:MemoryStorage",
}
#: storages without ``metadata.json``; each class recognizes its data by the path
_OTHERS: tuple[str, ...] = (
    _UNLISTED["memory"],
    "minari_pipe.storage.legacy.attributes:AttributesStorage",
    "minari_pipe.storage.legacy.flat:FlatStorage",
    "minari_pipe.storage.legacy.d4rl:D4RLStorage",
)
_ENTRY_POINTS = "minari_pipe.storages"


def get_storage_keys() -> list[str]:
    """Return the names of the formats that ``data_format`` can take.

    Example:
        >>> from minari_pipe import get_storage_keys
        >>> "hdf5" in get_storage_keys()
        True
    """
    return [*FORMATS, *(entry.name for entry in entry_points(_ENTRY_POINTS))]


def is_file_format(data_format: str) -> bool:
    """Return whether this is one of :func:`get_storage_keys`; scan entry points only if needed.

    Example:
        >>> is_file_format("hdf5"), is_file_format("memory")
        (True, False)
    """
    return data_format in FORMATS or data_format in get_storage_keys()


def get_minari_storage(storage_type: str) -> type[MinariStorage]:
    """Return the storage class of a format.

    Args:
        storage_type: one of :func:`get_storage_keys`, or ``"memory"``, which is not listed
            because its datasets end with the process.

    Raises:
        UnknownFormatError: no storage has this name.
        MissingDependencyError: the package that the format needs is not installed.

    Example:
        >>> get_minari_storage("hdf5").__name__
        'HDF5Storage'
    """
    address = (FORMATS | _UNLISTED).get(storage_type)
    if address is not None:
        return _load(address)
    for entry in entry_points(_ENTRY_POINTS):
        if entry.name == storage_type:
            return entry.load()
    raise UnknownFormatError(
        f"No storage implemented for {storage_type}. Available formats: {get_storage_keys()}"
    )


def file_format(data_format: str | None) -> str:
    """Return the format of a new dataset in the local root, hdf5 by default.

    Raises:
        UnknownFormatError: the format keeps no files, so its datasets end with the process.

    Example:
        >>> file_format(None)
        'hdf5'
    """
    if data_format in _UNLISTED:
        raise UnknownFormatError(
            f"No storage implemented for {data_format} that writes files, which a dataset in the "
            f"local root needs. Available formats: {get_storage_keys()}"
        )
    return data_format or "hdf5"


def _load(address: str) -> type[MinariStorage]:
    module, name = address.split(":")
    return getattr(importlib.import_module(module), name)


def other_format(data_path: Path) -> type[MinariStorage] | None:
    """Return the storage class of data that is not in the standard's current layout, or None."""
    known = _OTHERS
    if _is_empty(data_path):  # no older layout; a dataset in memory means its module is loaded
        known = tuple(address for address in _OTHERS if address.partition(":")[0] in sys.modules)
    return next((c for c in map(_load, known) if c.recognises(data_path)), None)


def _is_empty(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and next(path.iterdir(), None) is None)


def has_metadata_file(data_path: Path) -> bool:
    """Return whether a data directory has the standard's current layout."""
    try:
        return current(data_path / METADATA_FILE_NAME, os.lstat) is not None
    except OSError:
        return False
