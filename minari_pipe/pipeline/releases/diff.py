"""Implements ``minari-pipe diff ID ID``: compares two versions of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import readable_manifest
from minari_pipe.core.json_object import json_object
from minari_pipe.core.metadata import is_finite_number
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.pipeline.published import differing, flat
from minari_pipe.pipeline.releases.record import packages_of
from minari_pipe.pipeline.releases.version import Version, find_version
from minari_pipe.storage.base import MinariStorage

#: Parameters that describe how a version was made, not what it is.
NOT_CONFIG = ("card", "code", "engine", "overrides", "packages", "publish")

_SCORES = ("ref_min_score", "ref_max_score", "num_episodes_average_score")
_COUNTS = ("total_episodes", "total_steps", "dataset_size")
_NOT_CONFIG_OF_METADATA = {*_SCORES, *_COUNTS, "minari_pipe", "requirements", "data_format"}

#: The values of a key in the first and the second version; ``None`` if missing.
Pair = tuple[Any, Any]


def difference(first_id: str, second_id: str) -> dict[str, Any]:
    """Compare two versions by their configs if both are known, else by their metadata alone.

    Returns:
        ``ids``, ``compared`` (``params`` or ``metadata``), and under ``config``, ``counts``,
        ``returns``, ``scores``, ``packages`` and ``origin`` the pairs by key. ``config`` and
        ``packages`` hold only the pairs that differ, the others all pairs.

    Raises:
        DatasetNotFoundError: a version has neither data nor a record here.
    """
    versions = find_version(first_id), find_version(second_id)
    for version in versions:
        if version.data is None and version.record is None:
            raise DatasetNotFoundError(
                f"no dataset {version.id!r} in {get_dataset_path()} or in this workspace, and no "
                f"release record of it"
            )
    metadata = [_metadata(version) for version in versions]
    recorded = [version.params for version in versions]
    by_params = all(params is not None for params in recorded)
    configs = [
        {k: v for k, v in (params or {}).items() if k not in NOT_CONFIG}
        if by_params
        else _config_of_metadata(found)
        for params, found in zip(recorded, metadata, strict=True)
    ]
    by_record = all(v.record is not None and "packages" in v.record for v in versions)
    packages = [
        _packages(version, found, by_record=by_record)
        for version, found in zip(versions, metadata, strict=True)
    ]
    origins = [_origin(version) for version in versions]
    return {
        "ids": [first_id, second_id],
        "compared": "params" if by_params else "metadata",
        "config": differing(*map(flat, configs)),
        "counts": _pairs(*({k: m.get(k) for k in _COUNTS} for m in metadata)),
        "returns": _pairs(*map(_returns, versions)),
        "scores": _pairs(*({k: m.get(k) for k in _SCORES} for m in metadata)),
        "packages": differing(*packages),
        "origin": _pairs(*origins),
    }


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    keys = dict.fromkeys([*first, *second])
    pairs = {key: (first.get(key), second.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair != (None, None)}


def _metadata(version: Version) -> dict[str, Any]:
    """Return the dataset's metadata, or the counts in its record if the data is not here."""
    if version.data is not None:
        return MinariStorage.read_raw_metadata(version.data)
    assert version.record is not None
    return {key: version.record["manifest"].get(key) for key in _COUNTS}


def _config_of_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the descriptive part of metadata, with specs and spaces parsed."""
    found = {k: v for k, v in metadata.items() if k not in _NOT_CONFIG_OF_METADATA}
    for key, value in found.items():
        if key.endswith(("_spec", "_space")) and isinstance(value, str):
            with suppress(ValueError):
                found[key] = json_object(value)
    made = metadata.get("minari_pipe")
    recorded = made if isinstance(made, dict) else {}
    return found | {
        k: recorded[k] for k in ("collect_seed", "config_sha256", "family") if k in recorded
    }


def _returns(version: Version) -> dict[str, float]:
    """Return statistics of the episode returns, in reward units of the environment."""
    if version.data is None:
        return {}
    returns = np.asarray(MinariDataset(version.data).episodes["return"], dtype=np.float64)
    if not len(returns):
        return {}
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "min": float(returns.min()),
        "max": float(returns.max()),
        **_normalized(version, float(returns.mean())),
    }


def _normalized(version: Version, mean: float) -> dict[str, float]:
    assert version.data is not None
    metadata = MinariStorage.read_raw_metadata(version.data)
    low, high = (metadata.get(key) for key in _SCORES[:2])
    if low is None or high is None or not (is_finite_number(low) and is_finite_number(high)):
        return {}
    return {"normalized": (mean - low) / (high - low)} if high != low else {}


def _packages(version: Version, metadata: Mapping[str, Any], *, by_record: bool) -> dict[str, str]:
    if by_record and version.record is not None:
        return dict(version.record["packages"])
    if version.params is not None:
        return packages_of(version.params)
    made = metadata.get("minari_pipe")
    return packages_of(made) if isinstance(made, dict) else {}


def _origin(version: Version) -> dict[str, Any]:
    """Return the content hash of a version and where it came from."""
    content = version.record["manifest"] if version.record else None
    if content is None and version.data is not None:
        content = readable_manifest(version.data.parent)
    record = version.record or {}
    return {
        "content_sha256": (content or {}).get("content_sha256"),
        "released": record.get("time"),
        "git_commit": record.get("git_commit"),
        "cpu": record.get("cpu"),
    }
