"""One version of a dataset: its files, the record of its release, and the config that made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.datasets_root import data_path_of
from minari_pipe.core.files.manifest import identity_of, readable_manifest
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.releases.record import find_record
from minari_pipe.pipeline.repository import commit_of, is_repository, text_at
from minari_pipe.pipeline.workspace import PIPELINE_NAME, read_catalog_entry
from minari_pipe.pipeline.workspace_links import open_root


@dataclass(frozen=True)
class Version:
    """What is known of a version here."""

    id: str
    data: Path | None
    """Its data: of the workspace, else of the local root."""
    record: dict[str, Any] | None
    """Of its release, see :mod:`record`."""
    params: dict[str, Any] | None
    """Every value that its pipeline was given."""


def find_version(dataset_id: str) -> Version:
    """Look for a version in the workspace, its git history and the local root.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        ConfigError: the id has no version.
    """
    if parse_dataset_id(dataset_id)[2] is None:
        raise ConfigError(f"{dataset_id!r} has no version; expected one at its end, such as -v0")
    try:
        root = open_root()
    except ConfigError:  # the local root is enough
        return Version(dataset_id, published_data(dataset_id, None, None), None, None)
    tag = tagged(root, dataset_id)
    record = find_record(root, dataset_id, tag)
    params = record.get("params") if record else None
    if params is None:
        params = _params(root, dataset_id, tag)
    return Version(dataset_id, published_data(dataset_id, root, record), record, params)


def tagged(root: Path, dataset_id: str) -> str | None:
    """The commit with the tag of a version, if there is one."""
    if not is_repository(root):
        return None
    return commit_of(root, f"refs/tags/{dataset_id}")


def published_data(
    dataset_id: str, root: Path | None, record: dict[str, Any] | None
) -> Path | None:
    """Where the data of a version are, ``None`` if they are not here.

    Args:
        dataset_id: of the version.
        root: the workspace, if there is one.
        record: of the release; a folder with another manifest is not that version.
    """
    places = [data_path_of(dataset_id)]
    if root is not None:
        places.insert(0, root / "datasets" / dataset_id / "data")
    for data in places:
        if not data.exists():
            continue
        content = readable_manifest(data.parent)
        if record is None or (content and identity_of(content) == record["manifest"]):
            return data
    return None


def _params(root: Path, dataset_id: str, tag: str | None) -> dict[str, Any] | None:
    """The parameters of a version without a record, as they were tagged or are now."""
    entry = read_catalog_entry(root, dataset_id)
    if entry is None:
        return None
    name = entry["pipeline"]
    if not PIPELINE_NAME.fullmatch(name):
        return None
    text = text_at(root, tag, f"pipelines/{name}/params.yaml") if tag else None
    found = parsed_params(text) if text else dvc_yaml.read_params(name, root)
    return found if found and found.get("dataset", {}).get("id") == dataset_id else None


def parsed_params(text: str) -> dict[str, Any] | None:
    """The content of a ``params.yaml``, ``None`` if it is damaged."""
    try:
        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None
