"""The manifest of a released version, which must never change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.workspace import read_json


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
