"""Select and check the datasets of a listing, whether they are in the local root or a remote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minari_pipe.core.dataset_id import dataset_id_sort_key, gen_dataset_id, parse_dataset_id
from minari_pipe.core.metadata import REQUIRED_KEYS, is_supported_version, metadata_faults
from minari_pipe.errors import CorruptDatasetError


def check_summary(dataset_id: str, metadata: Mapping[str, Any]) -> None:
    """Raise if metadata lacks what every reader of a listing relies on.

    Args:
        dataset_id: id under which the metadata was found.
        metadata: as stored.

    Raises:
        CorruptDatasetError: it is of another dataset, lacks totals or has a value of a wrong type.
    """
    own_id = metadata.get("dataset_id")
    if own_id != dataset_id:
        raise CorruptDatasetError(
            f"Namespace location '{dataset_id}' does not match id {own_id!r:.100}."
        )
    known = {key: metadata[key] for key in REQUIRED_KEYS if metadata.get(key) is not None}
    for key, what in metadata_faults(known):
        raise CorruptDatasetError(f"metadata {key!r} {what}")
    for key in ("total_episodes", "total_steps"):
        if key not in metadata:  # only a storage that was just created has none
            raise CorruptDatasetError(f"the metadata of {dataset_id} has no {key}")


def selected(
    found: Mapping[str, dict[str, Any]], *, latest_version: bool, compatible_minari_version: bool
) -> dict[str, dict[str, Any]]:
    """Return the requested datasets, ordered by namespace, name and version.

    Args:
        found: metadata by id.
        latest_version: return only the highest version of each.
        compatible_minari_version: return only those that this version can read.

    Example:
        >>> found = {f"door/human-v{n}": {"minari_version": "0.5.4"} for n in (10, 9)}
        >>> list(selected(found, latest_version=False, compatible_minari_version=False))
        ['door/human-v9', 'door/human-v10']
        >>> list(selected(found, latest_version=True, compatible_minari_version=True))
        ['door/human-v10']
    """
    ordered = sorted(
        (
            name
            for name, metadata in found.items()
            if not compatible_minari_version or is_supported_version(metadata.get("minari_version"))
        ),
        key=dataset_id_sort_key,
    )
    if latest_version:
        ordered = list({gen_dataset_id(*parse_dataset_id(n)[:2]): n for n in ordered}.values())
    return {name: found[name] for name in ordered}
