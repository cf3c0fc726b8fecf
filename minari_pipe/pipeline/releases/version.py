"""Finds a version of a dataset: its files, its release record and the config that made it."""

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
from minari_pipe.pipeline.generated_yaml import load_yaml
from minari_pipe.pipeline.releases.record import find_record
from minari_pipe.pipeline.repository import commit_of, is_repository, text_at
from minari_pipe.pipeline.workspace import PIPELINE_NAME, read_catalog_entry
from minari_pipe.pipeline.workspace_links import open_root


@dataclass(frozen=True)
class Version:
    """What is known locally about a version."""

    id: str
    data: Path | None
    """Its data folder in the workspace, else in the local root."""
    record: dict[str, Any] | None
    """The record of its release, see :mod:`record`."""
    params: dict[str, Any] | None
    """All parameters of its pipeline."""


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
    except ConfigError:  # outside a workspace, look only in the local root
        return Version(dataset_id, published_data(dataset_id, None, None), None, None)
    tag = tagged(root, dataset_id)
    record = find_record(root, dataset_id, tag)
    params = record.get("params") if record else None
    if params is None:
        params = _params(root, dataset_id, tag)
    return Version(dataset_id, published_data(dataset_id, root, record), record, params)


def tagged(root: Path, dataset_id: str) -> str | None:
    """Return the commit tagged with a version's id, ``None`` if there is none."""
    if not is_repository(root):
        return None
    return commit_of(root, f"refs/tags/{dataset_id}")


def published_data(
    dataset_id: str, root: Path | None, record: dict[str, Any] | None
) -> Path | None:
    """Return the data folder of a version, ``None`` if it is not here.

    Args:
        dataset_id: the id of the version.
        root: the workspace, if there is one.
        record: the release record, if any; a folder with another manifest is not that version.
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
    """Return the parameters of a version without a record, from its tag or the current file."""
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
    """Return the content of a ``params.yaml``, ``None`` if it is damaged."""
    try:
        found = load_yaml(text)
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None
