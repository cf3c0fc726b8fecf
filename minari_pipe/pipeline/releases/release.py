"""Implements ``minari-pipe release ID``: freezes a published version and records its origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.core.files.manifest import changed_files, readable_manifest
from minari_pipe.errors import ConfigError, DatasetNotFoundError
from minari_pipe.pipeline.processes import exclusive
from minari_pipe.pipeline.releases.dvc_remote import check_dvc_files, push
from minari_pipe.pipeline.releases.record import record, where
from minari_pipe.pipeline.releases.releasable import (
    arguments,
    check_current,
    check_made_here,
    committed,
)
from minari_pipe.pipeline.run.install import settle
from minari_pipe.pipeline.stages.publish import check_released
from minari_pipe.pipeline.workspace import (
    STATE,
    check_pipeline_name,
    dump_json,
    read_catalog_entry,
    read_json,
    write_atomic,
)
from minari_pipe.pipeline.workspace_links import inside, open_root


def release(dataset_id: str, *, pushes: bool = True) -> Path:
    """Write ``releases/<id>.json``; from then on the version is immutable.

    The outputs behind it are pushed to the DVC remote first. If a version was released without
    pushing, releasing it again pushes it.

    Args:
        dataset_id: the id of a published version.
        pushes: push its outputs to the default DVC remote.

    Raises:
        DatasetNotFoundError: nothing is published under this id.
        ConfigError: config, params, dvc.yaml or dvc.lock are uncommitted or contradict each other,
            or the git tree is not clean, so the version could not be reproduced; or there is no
            DVC remote.
        DatasetExistsError: the version is already released with other content.
        RemoteError: the outputs could not be pushed; no record is written.
    """
    root = open_root()
    entry = read_catalog_entry(root, dataset_id)
    if entry is None:
        raise DatasetNotFoundError(
            f"no dataset {dataset_id!r} is published in {root}; known: {_known(root)}"
        )
    name = check_pipeline_name(entry["pipeline"])
    busy = f"pipeline {name!r} is running in this workspace; wait for it"
    with exclusive(root / STATE / "locks" / f"{name}.driver", wait_seconds=0.5, busy=busy):
        content = _verified(root, dataset_id, entry)
        check_released(root, name, dataset_id, content)
        path = inside(root, root / "releases" / f"{dataset_id}.json")
        is_new = not path.is_file()
        found = {} if is_new else read_json(path)
        if is_new or (pushes and not found.get("dvc_remote")):
            check_made_here(root, name)  # a clone may bring the record, too
            commit = committed(root, name) if is_new else ""
            check_current(root, name, dataset_id)
            if not pushes:  # `push` checks them itself
                check_dvc_files(name, root)
            pushed = push(name, root) if pushes else None
            if is_new:
                found = record(root, dataset_id, name, content, commit, pushed)
            else:
                found |= where(pushed)
            write_atomic(path, dump_json(found))
        settle(dataset_id, root)
    return path


def _known(root: Path) -> str:
    catalog = root / "catalog"
    ids = [str(p.relative_to(catalog).with_suffix("")) for p in sorted(catalog.rglob("*.json"))]
    return ", ".join(ids) or "none"


def _verified(root: Path, dataset_id: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of the published dataset after comparing it with the files."""
    published = root / "datasets" / dataset_id
    again = f"run python -m minari_pipe {arguments(root, entry['pipeline'])}"
    content = readable_manifest(published)
    if content is None:
        raise DatasetNotFoundError(f"{published} is missing, or has no manifest; {again}")
    changed = changed_files(published, content)
    if changed or content.get("content_sha256") != entry["content_sha256"]:
        raise ConfigError(
            f"{published} was changed after it was published "
            f"({', '.join(changed) or 'manifest.json'}); {again}"
        )
    return content
