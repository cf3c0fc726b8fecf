"""Hand over blocks from workers without a shared disk, through a storage that both sides reach.

::

    <engine.storage>/<pipeline>/<stage>/<name>/
    ├─ block_00003-<key>.npz           a finished block
    ├─ block_00003-<key>.json.record   written after it, with its sha256
    └─ files/<sha256>                  a file that the policies are made from

A block counts only if its record exists and its bytes have the recorded sha256. So an interrupted
upload does not count, whatever the storage guarantees.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import MinariPipeError, MissingDependencyError, RemoteError
from minari_pipe.pipeline.execution.blocks import (
    BlockStore,
    NotFinishedError,
    dump_record,
    parse_record,
)


def local_folder(address: str) -> str | None:
    """Return the folder of this machine that an fsspec address means, or ``None``.

    Example:
        >>> [local_folder(place) for place in ("simplecache::file:///blocks", "s3://bucket")]
        ['/blocks', None]
    """
    import fsspec  # 0.1 s, which a stage without engine.storage has not
    from fsspec.implementations.local import LocalFileSystem

    last = address.rpartition("::")[2]
    is_local = fsspec.utils.get_protocol(last) in ("file", "local")
    return LocalFileSystem._strip_protocol(last) if is_local else None


@dataclass(frozen=True)
class SharedBlocks:
    """Finished blocks under an fsspec address such as ``s3://bucket/folder``."""

    address: str
    suffix: str

    def make(
        self, index: int, key: str, write: Callable[[Path], dict[str, Any]], *, attempt: str = ""
    ) -> dict[str, Any]:
        """Make a block here and upload it; the arguments are those of :meth:`BlockStore.make`.

        Raises:
            RemoteError: the upload failed.
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
        """Download a finished block into ``store`` and return its record; ``None`` if missing.

        Raises:
            NotFinishedError: the block is damaged.
            RemoteError: the storage cannot be read.
        """
        with _translated(self.address):
            file_system, place = self._place(index, key)
            try:
                text = file_system.cat_file(place + ".json.record")
            except FileNotFoundError:
                return None
            try:
                record = parse_record(json_object(text))
            except ValueError as exc:
                raise NotFinishedError("its record is damaged") from exc
            store.folder.mkdir(parents=True, exist_ok=True)
            arriving = store.folder / f".arriving-{index}.tmp"
            try:
                file_system.get_file(place + self.suffix, str(arriving))
            except FileNotFoundError as exc:
                raise NotFinishedError("its file is missing") from exc
            if record.get("key") != key or record.get("block") != store.path(index).name:
                raise NotFinishedError("it was made with another config")
            store.adopt(index, arriving, record)
            return record

    def remove(self, index: int, key: str) -> None:
        """Remove a block that was fetched."""
        with _translated(self.address):
            file_system, place = self._place(index, key)
            for suffix in (".json.record", self.suffix):  # a file without a record does not count
                if file_system.exists(place + suffix):
                    file_system.rm_file(place + suffix)

    def offer(self, file: Path) -> str:
        """Upload a file for the workers and return its sha256, by which they fetch it.

        Raises:
            RemoteError: the upload failed.
        """
        data = file.read_bytes()  # read once, so that the hash is that of the uploaded bytes
        digest = hashlib.sha256(data).hexdigest()
        with _translated(self.address):
            file_system, folder = self._open()
            place = f"{folder}/files/{digest}"
            if not file_system.exists(place) or file_system.size(place) != len(data):
                file_system.pipe_file(place, data)
        return digest

    def take(self, digest: str, folder: Path) -> Path:
        """Download an offered file into ``folder``, unless it is there.

        Raises:
            RemoteError: the file is missing or damaged.
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
        import fsspec

        # Not for object stores: they have no folders, and auto_mkdir would create a bucket.
        protocol = fsspec.utils.get_protocol(self.address)
        options = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        file_system, folder = fsspec.url_to_fs(self.address, **options)
        return file_system, folder.rstrip("/")


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Translate errors of fsspec and its file systems to one-line errors of this package."""
    try:
        yield
    except (MinariPipeError, NotFinishedError):
        raise
    except ImportError as exc:
        raise MissingDependencyError(f"engine.storage={address!r}: {exc}") from exc
    except Exception as exc:  # each file system raises its own errors
        text = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise RemoteError(f"engine.storage={address!r}: {text}") from exc
