"""Download a dataset into the local root: resumable, verified, and installed in one step.

::

    <root>/.download-<key>/         one dataset of one remote; one process at a time works on it
    ├─ expected.json                the files to receive, with size and sha256
    └─ dataset/                     becomes the dataset; files are written from their beginning

So an interruption loses only data received after the first missing piece, at most the pieces that
may wait for it: 64 MB of large files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from minari_pipe.core.dataset_id import namespace_hierarchy, parse_dataset_id, refuse_data
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path, writing_below_root
from minari_pipe.core.files.atomic import MANIFEST, remove_all_but
from minari_pipe.core.files.changes import remove, remove_folder
from minari_pipe.core.files.links import opener, read_below
from minari_pipe.core.files.locks import common_folder, exclusive
from minari_pipe.core.files.manifest import entries_of, file_faults, readable_manifest
from minari_pipe.core.files.names import check_names, is_part
from minari_pipe.core.files.swap import swap_in
from minari_pipe.core.json_object import json_object
from minari_pipe.datasets.installation import install
from minari_pipe.datasets.library import refuse_nested
from minari_pipe.datasets.namespaces import refuse_datasets, write_namespace
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    LinkError,
    MinariPipeError,
    RemoteError,
    UnsupportedVersionError,
)
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    OnBytes,
    Remote,
    RemoteFile,
    UploadSource,
    pieces_of,
    safe_text,
)
from minari_pipe.remotes.thread_pool import ThreadPool, in_order, threads_for
from minari_pipe.remotes.transfer.listing import published_metadata, read_small
from minari_pipe.remotes.transfer.progress import progress
from minari_pipe.remotes.transfer.published import manifest_named, parse_manifest, unnamed

_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)  # reported by :func:`writing_below_root`

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_RECORD = "expected.json"
_KEPT = 7 * 86_400  # seconds for which an interrupted download is kept


@dataclass(frozen=True)
class Expected:
    """The files that a remote has under an id.

    Attributes:
        metadata: bytes of the dataset's own metadata.
        manifest: bytes of the manifest; None if there is none, as in uploads of real Minari.
        is_named: whether the metadata name the manifest. In a local root, they do not.
        files: the other files.
    """

    metadata: bytes
    manifest: bytes | None
    is_named: bool
    files: dict[str, RemoteFile] = field(default_factory=dict)


def download(
    dataset_id: str, remote: Remote, *, replace: bool = False, namespaces: bool = True
) -> bool:
    """Fetch a dataset, which becomes visible when it is complete.

    Several processes share the work: the others wait for the first.

    Args:
        dataset_id: id with a version.
        remote: the remote to fetch from.
        replace: replace the dataset if it exists.
        namespaces: fetch the metadata of its namespaces, too.

    Returns:
        Whether the dataset was fetched; if not, it already exists.

    Raises:
        RemoteError: the remote cannot be reached, or sends other bytes than its manifest names.
        CorruptDatasetError: the remote's files contradict each other, or have hostile names.
        DatasetExistsError: something else is there, such as a namespace, or a dataset inside.
        ConfigError: the local root is read-only.
    """
    remove_leftovers()
    if _is_there(dataset_id) and not replace:
        return False
    key = hashlib.sha256(f"{remote.address}\n{dataset_id}".encode()).hexdigest()[:32]
    with ExitStack() as stack:
        stack.enter_context(writing_below_root())
        stack.enter_context(_storing(dataset_id))
        _require_place(dataset_id)
        stage = stack.enter_context(common_folder(get_dataset_path(), f"download-{key}"))
        is_wanted = replace or not _is_there(dataset_id)  # another process may have been quicker
        if is_wanted:
            expected = look(remote, dataset_id)
            _resume(stage, expected)
            _receive(remote, dataset_id, stage, expected)
            if namespaces:
                _fetch_namespaces(remote, dataset_id)
            try:
                _install(stage, dataset_id, replace=replace)
            except DatasetExistsError:
                if not _is_there(dataset_id):
                    raise
                warnings.warn(
                    f"{dataset_id} appeared in the local root during its download and is kept",
                    stacklevel=4,
                )
                is_wanted = False
        remove(stage)
    return is_wanted


def remove_leftovers() -> None:
    """Remove the remains of killed downloads, unless a later run can still resume them."""
    for folder in get_dataset_path().glob(".download-*"):
        with suppress(OSError):
            if folder.is_symlink():
                continue
            is_of_use = (folder / "dataset").exists()
            if is_of_use and time.time() - folder.stat().st_mtime < _KEPT:
                continue
            with exclusive(folder, wait=False):
                remove_folder(folder)


def _is_there(dataset_id: str) -> bool:
    return os.path.lexists(data_path_of(dataset_id))


def _is_dataset(target: Path) -> bool:
    return os.path.lexists(target / "data")


def _require_place(dataset_id: str) -> None:
    """Raise an error if the local root has no place for this id."""
    refuse_data(dataset_id)
    refuse_datasets(parse_dataset_id(dataset_id)[0])
    target = get_dataset_path(dataset_id)
    is_empty = target.is_dir() and not any(target.iterdir())
    if os.path.lexists(target) and not _is_dataset(target) and not is_empty:
        raise DatasetExistsError(
            f"{target} already exists and is not a dataset, so {dataset_id} is not downloaded; "
            "move it away, or set MINARI_DATASETS_PATH to another folder"
        )
    if _is_dataset(target):
        refuse_nested(dataset_id)


def look(remote: Remote, dataset_id: str) -> Expected:
    """Return the files to expect, as listed in the manifest if the metadata name one.

    Args:
        remote: the remote.
        dataset_id: id with a version.

    Raises:
        RemoteError: the remote cannot be reached, or has no such dataset.
        UnsupportedVersionError: its manifest has a format of a later version of this package.
        CorruptDatasetError: its files contradict each other, or have hostile names.
    """
    with suppress(CorruptDatasetError, UnsupportedVersionError):  # perhaps only in transit
        return _read_expected(remote, dataset_id)
    try:
        return _read_expected(remote, dataset_id)
    except CorruptDatasetError as error:
        raise CorruptDatasetError(
            f"{dataset_id} of {remote.address} was not downloaded: {error}; contact its publisher"
        ) from error
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(
            f"{dataset_id} of {remote.address} was not downloaded: {error}"
        ) from error


def _read_expected(remote: Remote, dataset_id: str) -> Expected:
    try:
        content, _ = published_metadata(remote, dataset_id)
        named = manifest_named(content)
        own = unnamed(content)
        if named is None:
            found = remote.retried(partial(remote.files, dataset_id))
            files = {name: file for name, file in found.items() if is_part(name)}
            check_names(files)
            if not files.keys() - {METADATA}:
                raise CorruptDatasetError(
                    "it has metadata but no data, as after an interrupted upload"
                )
            manifest = read_small(remote, f"{dataset_id}/{MANIFEST}") if MANIFEST in found else None
            expected = Expected(own, manifest, False, files)
        else:
            manifest = read_small(remote, f"{dataset_id}/{MANIFEST}")
            if hashlib.sha256(manifest).hexdigest() != named:
                raise CorruptDatasetError(
                    "its manifest.json does not match the checksum in its metadata"
                )
            entries = entries_of(parse_manifest(manifest), card=True)
            if hashlib.sha256(own).hexdigest() != entries[METADATA].get("sha256"):
                raise CorruptDatasetError(
                    "its metadata.json does not match the checksum in its manifest"
                )
            files = {
                name: RemoteFile(entry["size"], entry.get("sha256"))
                for name, entry in entries.items()
            }
            expected = Expected(own, manifest, True, files)
    except FileNotFoundError as error:
        raise RemoteError(
            f"{remote.address} has no dataset {dataset_id!r}, or no longer has it"
        ) from error
    expected.files.pop(METADATA, None)
    return expected


def _resume(stage: Path, expected: Expected) -> None:
    """Keep the data that an earlier call received of these files, and remove everything else.

    Files without a known sha256 are removed too: the owner of the root may have planted them.
    """
    text = json.dumps(
        {
            "metadata": hashlib.sha256(expected.metadata).hexdigest(),
            "files": {name: asdict(file) for name, file in expected.files.items()},
        }
    )
    record = stage / _RECORD
    sizes: dict[Path, int] = {}
    with suppress(OSError, LinkError):
        if record.is_file() and read_below(record, stage) == text.encode():
            files = expected.files.items()
            sizes = {stage / "dataset" / name: file.size for name, file in files if file.sha256}
    remove_all_but(stage, sizes)
    record.write_text(text, encoding="utf-8")
    os.utime(stage)  # the time for which it is kept starts now


def _receive(remote: Remote, dataset_id: str, stage: Path, expected: Expected) -> None:
    place = stage / "dataset"
    size = sum(file.size for file in expected.files.values())
    _require_room(stage, size, f"{dataset_id} of {remote.address}")
    fetch = partial(_receive_files, remote, dataset_id, place)
    with progress(f"download {dataset_id}", size) as on_bytes:
        damaged = fetch(expected.files, on_bytes)
        if damaged:  # perhaps only in transit
            damaged = fetch({name: expected.files[name] for name in damaged}, on_bytes)
    for name, found in damaged.items():
        raise RemoteError(
            f"{remote.address}/{dataset_id}/{name} has sha256 {found}, but its manifest says "
            f"{expected.files[name].sha256}; nothing was installed. If this repeats, a proxy "
            "corrupts data, or its publisher has to upload a new version"
        )
    _write(place / METADATA, expected.metadata)
    if expected.manifest is not None:
        _write(place / MANIFEST, expected.manifest)
        if not expected.is_named and not _is_true(place):  # real Minari has changed the dataset
            (place / MANIFEST).unlink()


def _is_true(dataset: Path) -> bool:
    """Return whether an unverified manifest matches the files."""
    with suppress(UnsupportedVersionError):
        manifest = readable_manifest(dataset)
        return manifest is not None and not any(file_faults(dataset, manifest))
    return False


def _receive_files(
    remote: Remote, dataset_id: str, place: Path, files: Mapping[str, RemoteFile], on_bytes: OnBytes
) -> dict[str, str]:
    """Fetch the missing data of files to the disk.

    Returns:
        The sha256 of each file that differs from the expected one; those files are removed.
    """
    there = {name: _prefix(place / name, place) for name in files}
    parts = [
        (f"{dataset_id}/{name}", *piece)
        for name, file in files.items()
        for piece in pieces_of(file.size, there[name])
    ]
    pieces = in_order(
        (partial(_piece, remote, *part) for part in parts),
        threads_for([end - start for _, start, end in parts]),
    )
    damaged = {}
    with closing(pieces), ThreadPool(n_threads=1) as disk:  # syncs while more arrives
        synced = []
        for name, file in files.items():
            path = place / name
            digest = hashlib.sha256()
            with open(path, "ab", opener=opener(place)) as out:
                for piece in pieces_of(there[name]):
                    digest.update(UploadSource(path, 0, "", place).read(*piece))
                on_bytes(there[name])
                while out.tell() < file.size:
                    data = next(pieces)
                    out.write(data)
                    out.flush()
                    synced.append(disk.submit(partial(_sync, path)))
                    digest.update(data)
                    on_bytes(len(data))
            if file.sha256 not in (None, digest.hexdigest()):
                damaged[name] = digest.hexdigest()
                path.unlink()
                on_bytes(-file.size)
        for sync in synced:
            sync.result()
    return damaged


def _prefix(path: Path, place: Path) -> int:
    """Return how many bytes of a file exist, creating the file if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", opener=opener(place)) as file:
        return file.seek(0, os.SEEK_END)


def _piece(remote: Remote, path: str, start: int, end: int) -> bytes:
    try:
        data = remote.retried(partial(remote.read, path, start, end))
    except FileNotFoundError as error:
        raise RemoteError(
            f"{remote.address}/{path} is missing, though its dataset lists it; contact its "
            "publisher"
        ) from error
    if len(data) != end - start:
        raise RemoteError(
            f"{remote.address}/{path} sent {len(data)} bytes from byte {start}, expected "
            f"{end - start}; run the download again"
        )
    return data


def _sync(path: Path) -> None:
    with suppress(FileNotFoundError), open(path, "rb") as file:  # damaged files are removed
        os.fsync(file.fileno())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", opener=opener(path.parent)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _require_room(stage: Path, size: int, what: str) -> None:
    there = sum(path.stat().st_blocks * 512 for path in stage.rglob("*") if path.is_file())
    free = shutil.disk_usage(stage).free + there
    if size > free:
        raise RemoteError(
            f"the disk is too full for {what}: it needs {size / 1e6:,.1f} MB in "
            f"{stage.parent}, which has {free / 1e6:,.1f} MB; make room, or set "
            "MINARI_DATASETS_PATH to another folder"
        )


@contextmanager
def _storing(dataset_id: str) -> Iterator[None]:
    """Convert errors of the file system to errors with a one-line message."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MinariPipeError) or error.errno in _MAY_NOT:
            raise
        cause, remedy = error.strerror or error, "make room"
        if error.errno not in _NO_ROOM:
            cause, remedy = f"{safe_text(error.filename)}: {cause}", "fix this"
        raise RemoteError(
            f"{dataset_id} cannot be stored in {get_dataset_path()} ({cause}); received data is "
            f"kept: {remedy} and run the same command to continue"
        ) from error


def _fetch_namespaces(remote: Remote, dataset_id: str) -> None:
    for namespace in namespace_hierarchy(parse_dataset_id(dataset_id)[0]):
        try:
            fetch_namespace(remote, namespace)
        except RemoteError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            warnings.warn(
                f"the namespace {namespace!r} is created without its remote metadata: {error}",
                stacklevel=5,
            )


def fetch_namespace(remote: Remote, namespace: str, *, overwrite: bool = False) -> bool:
    """Fetch the metadata of a namespace; return whether the remote has a JSON object there.

    Args:
        remote: the remote to fetch from.
        namespace: name of the namespace.
        overwrite: replace existing metadata.
    """
    try:
        content = read_small(remote, f"{namespace}/{NAMESPACE_METADATA}")
        metadata = json_object(content)
    except (FileNotFoundError, ValueError):
        return False
    write_namespace(namespace, metadata, overwrite=overwrite)
    return True


def _install(stage: Path, dataset_id: str, *, replace: bool) -> None:
    target, old = get_dataset_path(dataset_id), data_path_of(dataset_id)
    if replace and _is_dataset(target):
        # A killed swap leaves the old dataset here, which no later run may resume.
        (stage / _RECORD).unlink()
        swap_in(stage / "dataset", target)
    else:
        install(stage / "dataset", dataset_id)
    if replace and old.is_file():  # in the oldest layout
        old.unlink()
