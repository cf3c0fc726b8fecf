"""Find out whether a dataset of the local root is a draft or released, as far as that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.core.messages import one_line
from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.published import is_released, published_manifest
from minari_pipe.pipeline.run.install import MARKER
from minari_pipe.pipeline.workspace import find_root, read_json

#: a stranger's file of more bytes is not read
_LARGEST = 10_000


def release_state(dataset_id: str, data_path: Path) -> str:
    """Return what to say of a dataset; empty if it is not known.

    A workspace records its releases, so only the workspace of the current folder is asked. A
    pipeline marks the drafts that it installs.

    Args:
        dataset_id: its id.
        data_path: the folder of its data, or its file.
    """
    if data_path.name != "data":
        return ""
    if _is_released(dataset_id, data_path.parent):
        return "released"
    marker = data_path.parent / MARKER
    if not marker.is_file():
        return ""
    pipeline = _pipeline(marker)
    return f"draft of the pipeline {one_line(pipeline)}" if pipeline else "draft"


def _is_released(dataset_id: str, dataset: Path) -> bool:
    try:
        return is_released(dataset_id, find_root(), published_manifest(dataset))
    except (MinariPipeError, OSError):  # no workspace, or a damaged record
        return False


def _pipeline(marker: Path) -> Any:
    try:
        if marker.stat().st_size <= _LARGEST:
            return read_json(marker)["pipeline"]
    except (MinariPipeError, OSError, ValueError, TypeError, LookupError):
        pass  # damaged, but still the mark of a draft
    return None
