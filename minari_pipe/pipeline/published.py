"""Reads the manifests of published datasets, and of released versions, which never change."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import gen_dataset_id, parse_dataset_id
from minari_pipe.core.files.manifest import identity_of, readable_manifest
from minari_pipe.errors import ConfigError, DatasetExistsError
from minari_pipe.pipeline.workspace import read_json


def published_manifest(dataset: Path) -> dict[str, Any] | None:
    """Return the manifest of a dataset that a pipeline published and no library call changed."""
    content = readable_manifest(dataset)
    return content if content is not None and "content_sha256" in content else None


def released_manifest(dataset_id: str, root: Path) -> dict[str, Any] | None:
    """Return the identity of a released version, ``None`` if it is not released.

    See :func:`minari_pipe.core.files.manifest.identity_of`.

    Raises:
        ConfigError: the record is unreadable; that must not allow the version to change.
    """
    record = root / "releases" / f"{dataset_id}.json"
    if not record.is_file():
        return None
    try:
        content = dict(read_json(record)["manifest"])
        content["content_sha256"]
        return identity_of(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ConfigError(f"{record} is damaged; restore it from git") from exc


def is_released(dataset_id: str, root: Path, content: Mapping[str, Any] | None) -> bool:
    """Return whether exactly this content is recorded as released.

    Args:
        dataset_id: the id of the version.
        root: the workspace.
        content: the manifest of the dataset, if it has one.

    Raises:
        ConfigError: the record is unreadable.
    """
    return content is not None and released_manifest(dataset_id, root) == identity_of(content)


def release_date(dataset_id: str, root: Path, content: Mapping[str, Any]) -> str | None:
    """Return the date of the release of exactly this content, ``None`` if there is none.

    Args:
        dataset_id: the id of the version.
        root: the workspace.
        content: the manifest of the dataset.

    Raises:
        ConfigError: the record is unreadable.
    """
    if not is_released(dataset_id, root, content):
        return None
    record = read_json(root / "releases" / f"{dataset_id}.json")
    try:
        return datetime.datetime.fromisoformat(record["time"]).date().isoformat()
    except (KeyError, TypeError, ValueError):  # edited by hand
        return None


def released(root: Path, name: str, dataset_id: str, change: str) -> DatasetExistsError:
    """Return the error for a run that would change a released version."""
    has_file = (root / "conf" / "dataset" / f"{name}.yaml").is_file()
    return DatasetExistsError(
        f"{dataset_id} is released, but its {change}; a released version is immutable: set "
        f"dataset.id={next_version(root, dataset_id)}"
        + (f", or run minari-pipe bump {name}" if has_file else "")
    )


def next_version(root: Path, *dataset_ids: str) -> str:
    """Return the first id with the next version in which none of them is released or published.

    Args:
        root: the workspace.
        dataset_ids: ids with the same version.
    """
    names = [parse_dataset_id(one) for one in dataset_ids]
    taken = [root / "releases", root / "catalog"]
    for number in itertools.count((names[0][2] or 0) + 1):
        found = [gen_dataset_id(namespace, name, number) for namespace, name, _ in names]
        if not any((folder / f"{one}.json").is_file() for folder in taken for one in found):
            return found[0]
    raise AssertionError("there is always a next number")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by dotted key; lists are leaves.

    Example:
        >>> flat({"collect": {"seed": 1, "until": {}}})
        {'collect.seed': 1, 'collect.until': {}}
    """
    if not isinstance(value, Mapping) or (not value and path):
        return {path: value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= flat(part, f"{path}.{key}" if path else str(key))
    return found


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ or that one side lacks, with both values.

    Example:
        >>> differing({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})
        {'b': (2, 3), 'c': (None, 4)}
    """
    keys = sorted({*first, *second})
    return {k: (first.get(k), second.get(k)) for k in keys if first.get(k) != second.get(k)}
