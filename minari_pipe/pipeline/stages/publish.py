"""Stage ``publish``: swap the validated dataset into ``datasets/<id>``, inside the workspace.

The checkpoints that it was made with are published beside its data, see :mod:`policy_files`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.manifest import (
    CARD,
    changed_files,
    entries_of,
    identity_of,
    readable_manifest,
)
from minari_pipe.core.files.swap import copy_file, swap_in
from minari_pipe.datasets.cards.folder import FILES
from minari_pipe.datasets.identity import manifest
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.published import released, released_manifest
from minari_pipe.pipeline.stages.assemble import (
    assemble,
    data_files,
    metadata_text,
    validation_of,
)
from minari_pipe.pipeline.stages.policy_files import copy_policy_files
from minari_pipe.pipeline.workspace import dump_json, write_atomic
from minari_pipe.pipeline.workspace_links import inside


def publish(run: StageRun) -> dict[str, Any]:
    """Write ``datasets/<id>`` and ``catalog/<id>.json``; return the catalog entry.

    Raises:
        DatasetExistsError: the version is released and would change.
    """
    name, folder, root = run.name, run.folder, run.root
    dataset_id = run.config.dataset.id
    metadata = assemble(folder, run.config)
    validation = validation_of(folder, metadata)
    new = run.temporary / "dataset"
    shutil.rmtree(new, ignore_errors=True)
    (new / "data").mkdir(parents=True)
    data = folder / "dataset" / "data"
    for file in data_files(data):
        (new / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        copy_file(data / file, new / "data" / file, below=root)
    (new / "data" / "metadata.json").write_text(metadata_text(metadata), encoding="utf-8")
    copy_policy_files(run, metadata, new)
    (new / CARD).mkdir()
    for file in FILES:
        if (folder / CARD / file).exists():  # the film is missing where nothing can be rendered
            copy_file(folder / CARD / file, new / CARD / file, below=root)
    content = manifest(new, validation["content_sha256"])
    (new / MANIFEST).write_text(dump_json(content), encoding="utf-8")
    check_released(root, name, dataset_id, content)
    target = inside(root, root / "datasets" / dataset_id)
    if not _holds(target, content):
        swap_in(new, target)
    entry = {
        "id": dataset_id,
        "pipeline": name,
        "content_sha256": content["content_sha256"],
        "total_episodes": metadata["total_episodes"],
        "total_steps": metadata["total_steps"],
        "ref_min_score": metadata["ref_min_score"],
        "ref_max_score": metadata["ref_max_score"],
        "description": metadata.get("description"),
        "warnings": validation["warnings"],
    }
    write_atomic(inside(root, root / "catalog" / f"{dataset_id}.json"), dump_json(entry))
    return entry


def _holds(target: Path, content: dict[str, Any]) -> bool:
    """Return whether ``target`` is exactly this dataset; its files are compared, too."""
    top = {name.partition("/")[0] for name in entries_of(content, card=True)}
    if not target.is_dir() or {p.name for p in target.iterdir()} != {*top, MANIFEST}:
        return False
    return readable_manifest(target) == content and not changed_files(target, content)


def check_released(root: Path, name: str, dataset_id: str, content: dict[str, Any]) -> None:
    """Refuse to change a version that is recorded in ``releases/``.

    Args:
        root: the workspace.
        name: the pipeline.
        dataset_id: the id of the version.
        content: the new manifest of the version.
    """
    then = released_manifest(dataset_id, root)
    if then is None or then == identity_of(content):
        return
    old, new = then["content_sha256"], content["content_sha256"]
    change = f"content changed (content_sha256 was {old[:12]}, is now {new[:12]})"
    raise released(root, name, dataset_id, "metadata changed" if old == new else change)


def main(run: StageRun) -> None:
    """Run the stage: read the validated dataset, write ``datasets/<id>`` and its catalog entry."""
    entry = publish(run)
    run.say(f"datasets/{entry['id']}, content_sha256 {entry['content_sha256'][:12]}")


if __name__ == "__main__":
    run_stage("publish", main)
