"""Blocks: finished pieces of a stage's work that survive any kill, each with its sha256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minari_pipe.files import sha256_file
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic


@dataclass
class BlockStore:
    """Files under ``folder``, each beside a record that makes it count.

    A block is finished when its record exists, is whole, is of this very block, and names the
    sha256 that the block's file has; whatever else lies there is made again.
    """

    folder: Path
    suffix: str
    n_reused: int = field(default=0, init=False)

    def path(self, index: int) -> Path:
        return self.folder / f"block_{index:05d}{self.suffix}"

    def get(self, index: int, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The record of block ``index``; ``make`` writes its file unless it is finished.

        Args:
            make: writes the block to the path it is given, and returns plain JSON values to keep
                in the record.
        """
        path = self.path(index)
        record_path = path.with_suffix(".json.record")
        record = _read(record_path)
        if record is not None and record["block"] == path.name and _has(path, record["sha256"]):
            self.n_reused += 1
            return record
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            kept = make(temporary)
            sync_to_disk(temporary)
            record = {**kept, "block": path.name, "sha256": sha256_file(temporary)}
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)  # on a full disk it would keep the disk full
        write_atomic(record_path, dump_json({**record, "seal": _seal(record)}))
        return record


def sync_to_disk(path: Path) -> None:
    """Let the bytes of a file be on the disk before a rename says that they are."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest


def _read(path: Path) -> dict[str, Any] | None:
    """A whole record without its seal, or ``None``."""
    try:
        record = read_json(path)
        seal = record.pop("seal")
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    return record if seal == _seal(record) else None


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(dump_json(record).encode()).hexdigest()
