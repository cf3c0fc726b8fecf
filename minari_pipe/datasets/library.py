"""Find, list, load, install and delete the datasets of the local root."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.datasets_root import (
    data_path_of,
    get_dataset_path,
    open_folder,
    writing_below_root,
)
from minari_pipe.core.files.changes import remove_folder
from minari_pipe.core.files.links import DEEPEST, held_folder, replaced, walk
from minari_pipe.core.files.locks import hidden_folder
from minari_pipe.core.files.manifest import verify as verify_files
from minari_pipe.core.messages import one_line
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.installation import (
    new_dataset as new_dataset,  # in a lower layer, for copies of datasets
)
from minari_pipe.datasets.listing import check_summary, selected
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    MinariPipeError,
    did_you_mean,
)
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage, get_minari_storage

#: end of messages about a dataset that is not in the local root
HOW_TO_FETCH = " To fetch it: load_dataset(..., download=True), or minari-pipe download ID"

#: suffix of a dataset of Minari 0.2, which is a single file
_FLAT = ".hdf5"


def open_dataset(
    dataset_id: str,
    *,
    verify: bool = False,
    trusted_modules: Collection[str] = (),
    copy: bool | None = None,
) -> MinariDataset:
    """Open a dataset of the local root; see :func:`minari_pipe.load_dataset`."""
    data = _data_of(dataset_id) or data_path_of(_latest(dataset_id))
    if verify and not data.is_dir():
        raise CorruptDatasetError(
            f"{data} cannot be verified: it has the layout of Minari 0.2, which has no manifest. "
            f"Load it without verify=True, or run minari-pipe migrate {data.stem} NEW_ID"
        )
    if verify:
        verified = open_folder(data)
        verify_files(data.parent, verified)
    dataset = MinariDataset(data, trusted_modules=trusted_modules, copy=copy)
    if verify and not dataset.storage.is_of(verified):
        raise replaced(data)
    if verify and (elsewhere := getattr(dataset.storage, "elsewhere", ())):
        raise CorruptDatasetError(
            f"{data} cannot be verified: it links to episodes in {elsewhere[0]}, which its "
            f"manifest does not list. Load it without verify=True, or run minari-pipe migrate "
            f"{dataset_id} NEW_ID"
        )
    return dataset


def latest_version_of(dataset_id: str) -> str:
    """Return the id if that dataset exists, else the id of its latest version.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: there is no such dataset.

    Example:
        >>> for version in (9, 10):
        ...     with new_dataset(f"door-v{version}"):
        ...         pass
        >>> latest_version_of("door"), latest_version_of("door-v9")
        ('door-v10', 'door-v9')
        >>> delete_dataset("door-v9")
        >>> delete_dataset("door-v10")
    """
    return dataset_id if _data_of(dataset_id) else _latest(dataset_id)


def _data_of(dataset_id: str) -> Path | None:
    """Return the path of the data of exactly this id, None if it does not exist."""
    parse_dataset_id(dataset_id)
    data = data_path_of(dataset_id)
    return data if os.path.lexists(data) else None


def _latest(dataset_id: str) -> str:
    namespace, name, version = parse_dataset_id(dataset_id)
    versions = {}
    if version is None and get_dataset_path(namespace).is_dir():
        for other, has_data in _entries(namespace or ""):
            with suppress(InvalidDatasetIdError):
                other_name, other_version = parse_dataset_id(other)[1:]
                if has_data and other_name == name and other_version is not None:
                    versions[other_version] = other
    if not versions:
        raise _not_found(dataset_id)
    return versions[max(versions)]


def _not_found(dataset_id: str) -> DatasetNotFoundError:
    hint = did_you_mean(dataset_id, _dataset_ids())
    return DatasetNotFoundError(
        f"no dataset {dataset_id!r} in {get_dataset_path()}.{hint}{HOW_TO_FETCH}"
    )


def _warn_of(place: str, error: Exception) -> None:
    """Name a folder of the root that is no dataset; names and errors may hold a stranger's text."""
    text = one_line(f"Misconfigured dataset named {place}: {error}")
    warnings.warn(text, stacklevel=3)


def _entries(below: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths of a folder's entries below the root, and whether they hold data."""
    root = get_dataset_path()
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError as error:
        if not below:
            raise ConfigError(
                f"the datasets root {root} cannot be read ({error.strerror})"
            ) from error
        _warn_of(below, error)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        if not below and entry.name.endswith(_FLAT) and entry.is_file():
            yield path.removesuffix(_FLAT), True
        elif entry.is_dir():
            yield path, os.path.lexists(root / path / "data")


def _dataset_ids(below: str = "") -> Iterator[str]:
    """Yield the paths below the root that hold data, whether or not they are valid ids."""
    for path, has_data in _entries(below):
        if has_data:
            yield path
        elif path.count("/") < DEEPEST and not os.path.islink(get_dataset_path() / path):
            yield from _dataset_ids(path)


def refuse_nested(dataset_id: str) -> None:
    """Raise if the folder of a dataset holds other datasets, which would be removed with it.

    This library makes none there, but other programs may.

    Args:
        dataset_id: id of the dataset.

    Raises:
        DatasetExistsError: its folder holds another dataset.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> refuse_nested("example/steps-v0")
        >>> delete_dataset("example/steps-v0")
    """
    root = get_dataset_path()
    for folder, names, _ in walk(root / dataset_id):
        inner = Path(folder).relative_to(root).as_posix()
        if inner != dataset_id and os.path.lexists(f"{folder}/data"):
            raise DatasetExistsError(
                f"the folder of {dataset_id} holds the dataset {inner!r}, which would be removed "
                f"with it; move {folder} away, or delete that dataset first"
            )
        names[:] = [name for name in names if not name.startswith(".")]


def list_local_datasets(
    latest_version: bool = False,
    compatible_minari_version: bool = False,
    prefix: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the metadata of the local root's datasets, of all Minari generations.

    Anything that is not a valid dataset is left out with a warning.

    Args:
        latest_version: return only the highest version of each.
        compatible_minari_version: return only those that this version can read.
        prefix: return only ids that begin with this text, such as a namespace.

    Returns:
        Id to raw metadata, ordered by namespace, name and version.

    Raises:
        ConfigError: the root does not exist and cannot be created, or cannot be read.

    Example:
        >>> from minari_pipe import list_local_datasets
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> for version in (9, 10):
        ...     _ = step_index_dataset(f"example/steps-v{version}")
        >>> list(list_local_datasets(prefix="example/"))
        ['example/steps-v9', 'example/steps-v10']
        >>> found = list_local_datasets(latest_version=True)
        >>> found["example/steps-v10"]["total_episodes"]
        3
    """
    found: dict[str, dict[str, Any]] = {}
    for dataset_id in _dataset_ids():
        if prefix is not None and not dataset_id.startswith(prefix):
            continue
        try:
            metadata = _raw_metadata(dataset_id)
        except (OSError, ValueError, MinariPipeError) as error:
            _warn_of(dataset_id, error)
            continue
        found[dataset_id] = metadata
    return selected(
        found, latest_version=latest_version, compatible_minari_version=compatible_minari_version
    )


def _raw_metadata(dataset_id: str) -> dict[str, Any]:
    """Return a dataset's metadata after checking the values that every reader relies on.

    Raises:
        MinariPipeError: the metadata cannot be read, or such a value is invalid.
    """
    parse_dataset_id(dataset_id)
    path = data_path_of(dataset_id)
    metadata = MinariStorage.read_raw_metadata(path)
    # in Minari 0.2 the name of the file holds the id
    own = {} if path.name == "data" else {"dataset_id": dataset_id}
    check_summary(dataset_id, {**metadata, **own})
    if path.name == "data" and (path / METADATA_FILE_NAME).exists():
        get_minari_storage(str(metadata.get("data_format")))
    return metadata


def delete_dataset(dataset_id: str) -> None:
    """Remove a dataset from the local root.

    Args:
        dataset_id: exact id of the dataset, with its version.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: there is no such dataset.
        DatasetExistsError: its folder holds another dataset.
        ConfigError: the root is read-only.

    Example:
        >>> from minari_pipe import delete_dataset, list_local_datasets
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> _ = step_index_dataset("example/steps-v0")
        >>> delete_dataset("example/steps-v0")
        >>> list_local_datasets()
        {}
    """
    parse_dataset_id(dataset_id)
    data = data_path_of(dataset_id)
    if not os.path.lexists(data):
        raise _not_found(dataset_id)
    path = data.parent if data.name == "data" else data
    if path != data:
        refuse_nested(dataset_id)
    with writing_below_root():
        root = get_dataset_path()
        with held_folder(path.parent, root) as folder, ExitStack() as stack:
            own = folder / path.name
            if own.is_symlink() or path is data:
                own.unlink()
                return
            # hide it in one rename, so that an interrupted removal leaves no partial dataset
            grave = stack.enter_context(hidden_folder(root))
            try:
                own.rename(grave / "data")
            except FileNotFoundError:  # another process was faster
                raise _not_found(dataset_id) from None
            remove_folder(grave / "data")
