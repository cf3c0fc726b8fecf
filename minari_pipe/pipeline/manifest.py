"""The manifests of what pipelines published, and of released versions, which must never change."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from minari_pipe.dataset_id import gen_dataset_id, parse_dataset_id
from minari_pipe.errors import ConfigError
from minari_pipe.manifest import read_manifest
from minari_pipe.pipeline.workspace import read_json


def published_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest of a dataset that a pipeline published and no library call changed since."""
    content = read_manifest(dataset)
    return content if content is not None and "content_sha256" in content else None


def released_manifest(dataset_id: str, root: Path) -> dict[str, Any] | None:
    """The manifest that ``releases/`` records for a version, ``None`` if it is not released.

    Raises:
        ConfigError: the record cannot be read; a version must not change because of that.
    """
    record = root / "releases" / f"{dataset_id}.json"
    if not record.is_file():
        return None
    try:
        content = dict(read_json(record)["manifest"])
        content["content_sha256"]
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise ConfigError(f"{record} is damaged; restore it from git") from exc
    return content


def next_version(root: Path, dataset_id: str) -> str:
    """The id with the lowest higher version that is neither released nor published.

    Args:
        root: the workspace.
        dataset_id: with a version.
    """
    namespace, name, version = parse_dataset_id(dataset_id)
    taken = [root / "releases", root / "catalog"]
    for number in itertools.count((version or 0) + 1):
        found = gen_dataset_id(namespace, name, number)
        if not any((folder / f"{found}.json").is_file() for folder in taken):
            return found
    raise AssertionError("there is always a next number")
