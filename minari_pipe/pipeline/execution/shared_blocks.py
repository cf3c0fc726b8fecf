"""Blocks of workers that share no disk with the stage: by way of a storage that both can reach.

::

    <engine.storage>/<pipeline>/<stage>/<name>/
    ├─ block_00003-<key>.npz           a finished block
    ├─ block_00003-<key>.json.record   written after it, with its sha256
    └─ files/<sha256>                  a file that the policies are made from

A block counts once its record is there and its bytes have the sha256 that this says, so an upload
that breaks off counts for nothing, whatever the storage promises of its own.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.errors import MinariPipeError, MissingDependencyError, RemoteError
from minari_pipe.pipeline.execution.blocks import (
    BlockStore,
    NotFinishedError,
    dump_record,
    parse_record,
)


@dataclass(frozen=True)
class SharedBlocks:
    """Finished blocks under an address of fsspec, such as ``s3://bucket/folder``."""

    address: str
    suffix: str

    def make(
        self, index: int, key: str, write: Callable[[Path], dict[str, Any]], *, attempt: str = ""
    ) -> dict[str, Any]:
        """Make a block here and put it there; arguments as :meth:`BlockStore.make`.

        Raises:
            RemoteError: the storage does not take it.
        """
        with tempfile.TemporaryDirectory(prefix="minari_pipe-") as folder:
            store = BlockStore(Path(folder), self.suffix)
            record = store.make(index, key, write, attempt=attempt)
            with _translated(self.address):
                file_system, place = self._place(index, key)
                file_system.put_file(str(store.path(index)), place + self.suffix)
                file_system.pipe_file(place + ".json.record", dump_record(record).encode())
        return record

    def fetch(self, index: int, key: str, store: BlockStore) -> dict[str, Any] | None:
        """Take a finished block over into ``store``; ``None`` if there is none.

        Raises:
            NotFinishedError: what is there is damaged.
            RemoteError: the storage cannot be read.
        """
        with _translated(self.address):
            file_system, place = self._place(index, key)
            try:
                text = file_system.cat_file(place + ".json.record")
            except FileNotFoundError:
                return None
            try:
                record = parse_record(json.loads(text))
            except ValueError as exc:
                raise NotFinishedError("its record is damaged") from exc
            store.folder.mkdir(parents=True, exist_ok=True)
            arriving = store.folder / f".arriving-{index}.tmp"
            try:
                file_system.get_file(place + self.suffix, str(arriving))
            except FileNotFoundError as exc:
                raise NotFinishedError("its file is gone") from exc
            if record.get("key") != key or record.get("block") != store.path(index).name:
                raise NotFinishedError("it is of another config")
            store.adopt(index, arriving, record)
            return record

    def remove(self, index: int, key: str) -> None:
        """Remove a block that was taken over."""
        with _translated(self.address):
            file_system, place = self._place(index, key)
            for suffix in (".json.record", self.suffix):  # a file without a record counts nothing
                if file_system.exists(place + suffix):
                    file_system.rm_file(place + suffix)

    def offer(self, file: Path) -> str:
        """Put a file there for the workers; its sha256, by which they ask for it.

        Raises:
            RemoteError: the storage does not take it.
        """
        data = file.read_bytes()  # once, so that what is sent is what was hashed
        digest = hashlib.sha256(data).hexdigest()
        with _translated(self.address):
            file_system, folder = self._open()
            place = f"{folder}/files/{digest}"
            if not file_system.exists(place) or file_system.size(place) != len(data):
                file_system.pipe_file(place, data)
        return digest

    def take(self, digest: str, folder: Path) -> Path:
        """Fetch a file that was offered into ``folder``, unless it is there.

        Raises:
            RemoteError: it is not there, or is another one.
        """
        path = folder / digest
        if path.is_file() and sha256_file(path) == digest:
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _translated(self.address):
            file_system, there = self._open()
            data = file_system.cat_file(f"{there}/files/{digest}")
        if hashlib.sha256(data).hexdigest() != digest:
            raise RemoteError(f"{self.address}/files/{digest} is damaged")
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
        return Path(file.name).rename(path)

    def _place(self, index: int, key: str) -> tuple[Any, str]:
        file_system, folder = self._open()
        return file_system, f"{folder}/block_{index:05d}-{key}"

    def _open(self) -> tuple[Any, str]:
        # Object stores have no folders, and to make one there would make the user a bucket.
        protocol = fsspec.utils.get_protocol(self.address)
        options = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        file_system, folder = fsspec.url_to_fs(self.address, **options)
        return file_system, folder.rstrip("/")


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Turn what fsspec and its file systems raise into one line."""
    try:
        yield
    except (MinariPipeError, NotFinishedError):
        raise
    except ImportError as exc:
        raise MissingDependencyError(f"engine.storage={address!r}: {exc}") from exc
    except Exception as exc:  # each file system has errors of its own
        text = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise RemoteError(f"engine.storage={address!r}: {text}") from exc
