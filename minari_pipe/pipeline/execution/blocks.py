"""Store blocks: finished parts of a stage's work that survive any kill, each with its sha256."""

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
    """The block on disk is damaged or not the requested one; the message says which."""


@dataclass(frozen=True)
class BlockStore:
    """Files under ``folder``, each beside a record that makes it count.

    A block is finished if its record exists, is whole, belongs to this block, and holds the sha256
    of the block's file. Anything else there is made again.
    """

    folder: Path
    suffix: str

    def path(self, index: int) -> Path:
        """Return the file of a block."""
        return self.folder / f"block_{index:05d}{self.suffix}"

    def _record(self, index: int) -> Path:
        return self.path(index).with_suffix(".json.record")

    def find(self, index: int, key: str) -> dict[str, Any] | None:
        """Return the record of a finished block; ``None`` if there is nothing.

        Args:
            index: index of the block.
            key: hash of everything that decides its bytes.

        Raises:
            NotFinishedError: the block is there, but it is another one or damaged.
        """
        path, record_path = self.path(index), self._record(index)
        if not record_path.exists() and not path.exists():
            return None
        record = _read(record_path)
        if record is None:
            raise NotFinishedError("its record is damaged or missing")
        if record.get("block") != path.name or record.get("key") != key:
            raise NotFinishedError("it was made with another config")
        if not path.is_file():
            raise NotFinishedError("its file is missing")
        if sha256_file(path) != record.get("sha256"):
            raise NotFinishedError("its file is damaged")
        return record

    def make(
        self, index: int, key: str, write: Callable[[Path], dict[str, Any]], *, attempt: str = ""
    ) -> dict[str, Any]:
        """Make a block and return its record.

        Args:
            index: index of the block.
            key: hash of everything that decides its bytes.
            write: writes the block to the given path, and returns plain JSON values to keep in the
                record.
            attempt: makes the temporary file unique among processes that make the same block.
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
            temporary.unlink(missing_ok=True)  # else a full disk would stay full
        self._write_record(index, record)
        return record

    def adopt(self, index: int, file: Path, record: dict[str, Any]) -> None:
        """Move a finished block's file into the store after comparing it with its record.

        Raises:
            NotFinishedError: the bytes do not have the recorded sha256.
        """
        if sha256_file(file) != record.get("sha256"):
            raise NotFinishedError("its file is damaged")
        sync_to_disk(file)
        os.replace(file, self.path(index))
        self._write_record(index, record)

    def share(self, index: int, key: str, other: BlockStore) -> dict[str, Any] | None:
        """Copy a finished block to ``other``, which other processes may fill with the same block.

        Returns:
            The block's record; ``None`` if there is no block.

        Raises:
            NotFinishedError: the block is damaged.
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
        """Remove the temporary file that a killed process left of a block."""
        self._temporary(index, attempt).unlink(missing_ok=True)

    def remove_temporaries(self) -> None:
        """Remove the temporary files of killed processes; call it while no process writes."""
        for path in self.folder.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                path.unlink()


def sync_to_disk(path: Path) -> None:
    """Flush a file's bytes to disk, so that a later rename cannot precede them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def dump_record(record: dict[str, Any]) -> str:
    """Return the text of a record with a checksum against damage."""
    return dump_json({**record, "seal": _seal(record)})


def _read(path: Path) -> dict[str, Any] | None:
    """Return a whole record without its checksum, or ``None``."""
    try:
        # Reading a pipe would never end.
        return parse_record(read_json(path)) if path.is_file() else None
    except (OSError, ValueError):
        return None


def parse_record(found: Any) -> dict[str, Any]:
    """Return the record that :func:`dump_record` wrote, without the checksum.

    Raises:
        ValueError: the record is damaged.
    """
    if isinstance(found, dict) and found.pop("seal", None) == _seal(found):
        return found
    raise ValueError("the seal does not match")


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(dump_json(record).encode()).hexdigest()
