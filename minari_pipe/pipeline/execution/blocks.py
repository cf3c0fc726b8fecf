"""Blocks: finished pieces of a stage's work that survive any kill, each with its sha256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.swap import copy_file
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic


class NotFinishedError(Exception):
    """A block that is there is not the one that is asked for, or is damaged; says how."""


@dataclass(frozen=True)
class BlockStore:
    """Files under ``folder``, each beside a record that makes it count.

    A block is finished when its record exists, is whole, is of this very block, and names the
    sha256 that the block's file has; whatever else lies there is made again.
    """

    folder: Path
    suffix: str

    def path(self, index: int) -> Path:
        """The file of a block."""
        return self.folder / f"block_{index:05d}{self.suffix}"

    def _record(self, index: int) -> Path:
        return self.path(index).with_suffix(".json.record")

    def find(self, index: int, key: str) -> dict[str, Any] | None:
        """The record of a finished block; ``None`` if there is nothing.

        Args:
            index: of the block.
            key: hash of everything that decides its bytes.

        Raises:
            NotFinishedError: there is something, but not this block, or not whole.
        """
        path, record_path = self.path(index), self._record(index)
        if not record_path.exists() and not path.exists():
            return None
        record = _read(record_path)
        if record is None:
            raise NotFinishedError("its record is damaged or not there")
        if record.get("block") != path.name or record.get("key") != key:
            raise NotFinishedError("it is of another config")
        if not path.is_file():
            raise NotFinishedError("its file is gone")
        if sha256_file(path) != record.get("sha256"):
            raise NotFinishedError("its file is damaged")
        return record

    def make(
        self, index: int, key: str, write: Callable[[Path], dict[str, Any]], *, attempt: str = ""
    ) -> dict[str, Any]:
        """Make a block and return its record.

        Args:
            index: of the block.
            key: hash of everything that decides its bytes.
            write: writes the block to the path it is given, and returns plain JSON values to keep
                in the record.
            attempt: tells the temporary file from those of others that make the same block.
        """
        path = self.path(index)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary(index, attempt)
        temporary.unlink(missing_ok=True)
        try:
            kept = write(temporary)
            sync_to_disk(temporary)
            record = {**kept, "block": path.name, "key": key, "sha256": sha256_file(temporary)}
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)  # on a full disk it would keep the disk full
        self._write_record(index, record)
        return record

    def adopt(self, index: int, file: Path, record: dict[str, Any]) -> None:
        """Take over a finished block's file, whose bytes are compared with its record.

        Raises:
            NotFinishedError: they are not what the record says.
        """
        if sha256_file(file) != record.get("sha256"):
            raise NotFinishedError("its file is damaged")
        sync_to_disk(file)
        os.replace(file, self.path(index))
        self._write_record(index, record)

    def share(self, index: int, key: str, other: BlockStore) -> dict[str, Any] | None:
        """Copy a finished block to ``other``, which other processes may fill with the same.

        Returns:
            Its record; ``None`` if there is none.

        Raises:
            NotFinishedError: it is damaged.
        """
        record = self.find(index, key)
        if record is not None:
            other.folder.mkdir(parents=True, exist_ok=True)
            copied = other._temporary(index, f"{os.getpid()}")
            copy_file(self.path(index), copied, below=self.folder)
            other.adopt(index, copied, record)
        return record

    def _write_record(self, index: int, record: dict[str, Any]) -> None:
        write_atomic(self._record(index), dump_record(record))

    def _temporary(self, index: int, attempt: str) -> Path:
        path = self.path(index)
        return path.with_name(f".{path.name}.{attempt}.tmp")

    def remove_temporary(self, index: int, attempt: str) -> None:
        """Remove what a killed process left of a block."""
        self._temporary(index, attempt).unlink(missing_ok=True)

    def remove_temporaries(self) -> None:
        """Remove what killed processes left, none of which runs any more."""
        for path in self.folder.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                path.unlink()


def sync_to_disk(path: Path) -> None:
    """Let the bytes of a file be on the disk before a rename says that they are."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def dump_record(record: dict[str, Any]) -> str:
    """The text of a record, sealed against damage."""
    return dump_json({**record, "seal": _seal(record)})


def _read(path: Path) -> dict[str, Any] | None:
    """A whole record without its seal, or ``None``."""
    try:
        # Of a pipe there would be no end.
        return parse_record(read_json(path)) if path.is_file() else None
    except (OSError, ValueError):
        return None


def parse_record(found: Any) -> dict[str, Any]:
    """What :func:`dump_record` wrote, without the seal.

    Raises:
        ValueError: it is damaged.
    """
    if isinstance(found, dict) and found.pop("seal", None) == _seal(found):
        return found
    raise ValueError("the seal is broken")


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(dump_json(record).encode()).hexdigest()
