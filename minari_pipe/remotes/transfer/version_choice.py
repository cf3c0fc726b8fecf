"""Choose the version of a dataset to download, by the rules of Minari's ``download_dataset``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from minari_pipe.core.dataset_id import gen_dataset_id, parse_dataset_id
from minari_pipe.core.metadata import MINARI_VERSION, is_supported_version
from minari_pipe.datasets.listing import selected
from minari_pipe.errors import DatasetNotFoundError, UnsupportedVersionError


def chosen_version(
    address: str, dataset_id: str, found: Mapping[str, dict[str, Any]], *, force: bool = False
) -> str:
    """Return the version of a dataset to fetch, by the rules that Minari documents.

    Args:
        address: address of the remote.
        dataset_id: the requested id; without a version, the latest that this package can read.
        found: metadata of the versions that the remote has, by id.
        force: also accept a version of an unknown version of the standard, with a warning.

    Raises:
        DatasetNotFoundError: no version matches.
        UnsupportedVersionError: the version cannot be read.

    Example:
        >>> found = {f"door/human-v{n}": {"minari_version": "0.5.4"} for n in (9, 10)}
        >>> chosen_version("hf://org", "door/human", found)
        'door/human-v10'
    """
    namespace, name, version = parse_dataset_id(dataset_id)
    versionless = gen_dataset_id(namespace, name)
    if not found:
        raise DatasetNotFoundError(
            f"Couldn't find any version for dataset {versionless} in {address}. "
            f"minari-pipe list {address} shows what is there"
        )
    compatible = selected(found, latest_version=True, compatible_minari_version=True)
    latest = next(iter(compatible), None)
    none = (
        f"Couldn't find any compatible version of dataset {versionless} with Minari "
        f"{MINARI_VERSION}, which this package reads"
    )
    if latest is None:
        if not force:
            raise UnsupportedVersionError(f"{none}; force_download=True downloads one anyway")
        warnings.warn(none, stacklevel=4)
    if version is None:
        return latest or next(
            iter(selected(found, latest_version=True, compatible_minari_version=False))
        )
    if dataset_id not in found:
        hint = (
            f" We suggest you download the latest compatible version of this dataset: {latest}"
            if latest
            else f", and no other compatible versions with Minari {MINARI_VERSION} were found."
        )
        raise DatasetNotFoundError(
            f"The dataset version, {dataset_id}, doesn't exist in {address}.{hint}"
        )
    if latest is None:
        return dataset_id
    if not is_supported_version(found[dataset_id].get("minari_version")):
        text = (
            f"The version you are trying to download for dataset, {dataset_id}, is not compatible "
            f"with Minari {MINARI_VERSION}, which this package reads."
        )
        best = f"you can download the latest compatible version of this dataset: {latest}."
        if not force:
            raise UnsupportedVersionError(f"{text} Y{best[1:]}")
        warnings.warn(f"{text} It is downloaded anyway, but {best}", stacklevel=4)
    elif (parse_dataset_id(latest)[2] or 0) > version:
        warnings.warn(
            "We recommend you install a higher dataset version available and compatible with your "
            f"local installed Minari version: {latest}.",
            stacklevel=4,
        )
    return dataset_id
