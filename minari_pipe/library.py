"""The local root of many datasets: find, list, load, install and delete them."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minari_pipe.dataset import MinariDataset
from minari_pipe.dataset_id import (
    dataset_id_sort_key,
    gen_dataset_id,
    namespace_hierarchy,
    parse_dataset_id,
)
from minari_pipe.datasets_root import get_dataset_path
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    RemoteError,
    did_you_mean,
)
from minari_pipe.metadata import supported_dataset_versions
from minari_pipe.storage.base import MinariStorage

NAMESPACE_METADATA_FILENAME = "namespace_metadata.json"


def load_dataset(dataset_id: str, download: bool = False) -> MinariDataset:
    """Open a dataset of the local root.

    Args:
        dataset_id: id of the dataset.
        download: fetch it if it is not there.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: there is no such dataset.
    """
    parse_dataset_id(dataset_id)
    data = get_dataset_path(dataset_id) / "data"
    if not data.exists():
        if download:
            raise RemoteError(
                f"no dataset {dataset_id!r} in {get_dataset_path()}, and this version of "
                "minari_pipe cannot download datasets yet"
            )
        raise _not_found(dataset_id)
    return MinariDataset(data)


def _not_found(dataset_id: str) -> DatasetNotFoundError:
    hint = did_you_mean(dataset_id, _dataset_ids())
    return DatasetNotFoundError(
        f"no dataset {dataset_id!r} in {get_dataset_path()}.{hint} "
        "To fetch it: load_dataset(..., download=True)"
    )


def _dataset_ids(below: str = "") -> Iterator[str]:
    """Yield the paths below the root that hold data, whether or not they are valid ids."""
    root = get_dataset_path()
    for directory in sorted((root / below).iterdir()):
        if directory.name.startswith(".") or not directory.is_dir():
            continue
        path = directory.relative_to(root).as_posix()
        if (directory / "data").exists():
            yield path
        elif not directory.is_symlink():
            yield from _dataset_ids(path)


def list_local_datasets(
    latest_version: bool = False,
    compatible_minari_version: bool = False,
    prefix: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the metadata of the local root's datasets.

    What is not a proper dataset is left out with a warning.

    Args:
        latest_version: only the highest version of each.
        compatible_minari_version: only those that this version can read.
        prefix: only ids that begin with this text.

    Returns:
        Id to raw metadata, ordered by namespace, name and version.
    """
    found: dict[str, dict[str, Any]] = {}
    for dataset_id in _dataset_ids():
        if prefix is not None and not dataset_id.startswith(prefix):
            continue
        try:
            parse_dataset_id(dataset_id)
            metadata = MinariStorage.read_raw_metadata(get_dataset_path(dataset_id) / "data")
            if metadata.get("dataset_id") != dataset_id:
                raise CorruptDatasetError(
                    f"Namespace location '{dataset_id}' does not match id "
                    f"'{metadata.get('dataset_id')}'."
                )
        except (OSError, ValueError) as error:
            warnings.warn(f"Misconfigured dataset named {dataset_id}: {error}", stacklevel=2)
            continue
        version = metadata.get("minari_version")
        if not compatible_minari_version or version in supported_dataset_versions:
            found[dataset_id] = metadata
    ordered = sorted(found, key=dataset_id_sort_key)
    if latest_version:
        latest = {gen_dataset_id(*parse_dataset_id(name)[:2]): name for name in ordered}
        ordered = list(latest.values())
    return {name: found[name] for name in ordered}


def delete_dataset(dataset_id: str) -> None:
    """Remove a dataset from the local root.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetNotFoundError: there is no such dataset.
    """
    parse_dataset_id(dataset_id)
    path = get_dataset_path(dataset_id)
    if not (path / "data").exists():
        raise _not_found(dataset_id)
    if path.is_symlink():
        path.unlink()
        return
    # out of sight in one step, so that a broken-off removal leaves no half of a dataset
    grave = path.with_name(f".deleted-{secrets.token_hex(8)}")
    path.rename(grave)
    shutil.rmtree(grave)


@contextmanager
def new_dataset(dataset_id: str) -> Iterator[Path]:
    """Yield the data directory of a dataset in the making; at a clean exit it is installed.

    On an error nothing is left behind, and the id stays free.

    Raises:
        InvalidDatasetIdError: the id is malformed or cannot be a directory of the root.
        DatasetExistsError: the id is taken.
    """
    namespace = parse_dataset_id(dataset_id)[0]
    target = get_dataset_path(dataset_id)
    if "data" in dataset_id.split("/"):
        raise InvalidDatasetIdError(
            f"{dataset_id!r} has the part 'data', the name of the directory that marks a dataset; "
            "use another one"
        )
    if target.exists():
        raise DatasetExistsError(
            f"A Minari dataset with ID {dataset_id} already exists and it cannot be overridden. "
            "Please use a different dataset name or version."
        )
    for parent in namespace_hierarchy(namespace):
        if (get_dataset_path(parent) / "data").exists():
            raise DatasetExistsError(
                f"the namespace of {dataset_id!r} already exists as the dataset {parent!r}"
            )
    stage = get_dataset_path() / f".new-{secrets.token_hex(8)}"
    try:
        (stage / "data").mkdir(parents=True)
        yield stage / "data"
        with _namespaces(namespace):
            os.rename(stage, target)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


@contextmanager
def _namespaces(namespace: str | None) -> Iterator[None]:
    """Make a namespace and its parents, and take back what was made if the body fails."""
    made: list[Path] = []
    try:
        for parent in namespace_hierarchy(namespace):
            directory = get_dataset_path(parent)
            if not directory.exists():
                directory.mkdir()
                made.append(directory)
            if not (directory / NAMESPACE_METADATA_FILENAME).exists():
                (directory / NAMESPACE_METADATA_FILENAME).write_text("{}", encoding="utf-8")
        yield
    except BaseException:
        for directory in reversed(made):
            shutil.rmtree(directory, ignore_errors=True)
        raise
