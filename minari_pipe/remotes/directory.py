"""Host datasets in a directory, such as one on a network share: ``file:///folder`` or a path.

A dataset is assembled in a hidden folder and renamed to its place in one step, so that users who
read the directory as their local root never see a part of it::

    <directory>/.minari_pipe-uploads/<key>/    an upload in progress
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minari_pipe.core.files.atomic import MANIFEST, remove_all_but, sha256_file
from minari_pipe.core.files.changes import new_file, remove
from minari_pipe.core.files.links import expand_user, held_folder, refuse_links, walk
from minari_pipe.core.files.locks import exclusive
from minari_pipe.core.files.names import NO_NAMES
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.errors import CorruptDatasetError, DatasetExistsError, RemoteError
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    Fault,
    OnBytes,
    Remote,
    RemoteFile,
    Upload,
    UploadSource,
    check_arrived,
    parts_of,
    safe_text,
)

_UPLOADS = ".minari_pipe-uploads"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


class DirectoryRemote(Remote):
    """A directory that is shared by everyone who has it mounted."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Parse the address.

        Args:
            address: a path, or ``file://`` and an absolute path.
            token: not used: the file system decides who may write.

        Raises:
            ConfigError: it begins with ``~name``, and there is no such user.
            LinkError: a symlink of a git repository leads to it.
        """
        path = address.partition("://")[2] if "://" in address else address
        self.address = address[: len(address) - len(path)] + (path.rstrip("/") or "/")
        self._root = expand_user(path).absolute()
        refuse_tracked_links(self._root)

    def dataset_ids(self, prefix: str = "") -> list[str]:
        return [name for name, is_dataset in self._walk(prefix) if is_dataset]

    def namespaces(self) -> list[str]:
        return [name for name, is_dataset in self._walk() if not is_dataset]

    def files(self, dataset_id: str) -> dict[str, RemoteFile]:
        place = self._place(dataset_id)
        found = {}
        for folder, folders, names in walk(place):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                status = os.lstat(path := Path(folder, name))
                if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                    found[path.relative_to(place).as_posix()] = RemoteFile(status.st_size)
        return found

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        place = self._place(path)
        if not stat.S_ISREG(_status(place).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(place))
        return UploadSource(place, 0, "", self._root).read(start, end)

    def send(self, upload: Upload, on_bytes: OnBytes) -> None:
        with self.translated_errors(OSError), self._stage(upload) as stage:
            self._own_place(upload.dataset_id)
            remove_all_but(stage, {stage / name: file.size for name, file in upload.files.items()})
            for name in upload.files:
                self._put(stage, name, upload, on_bytes)

    def reveal(self, upload: Upload) -> bool:
        with self.translated_errors(OSError), self._stage(upload) as stage:
            target = self._own_place(upload.dataset_id)
            with _made(stage, os.path.dirname(METADATA)) as folder:
                _write(folder / os.path.basename(METADATA), UploadSource.of(upload.metadata))
            for namespace, metadata in upload.namespaces.items():
                with _made(self._root, namespace) as folder:
                    if not (folder / NAMESPACE_METADATA).exists():
                        _write(folder / NAMESPACE_METADATA, UploadSource.of(metadata))
            try:
                with (
                    held_folder(self._root / _UPLOADS, self._root) as uploads,
                    _made(self._root, os.path.dirname(upload.dataset_id)) as folder,
                ):
                    os.rename(uploads / _key(upload), folder / target.name)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                with held_folder(self._root / _UPLOADS, self._root) as uploads:
                    remove(uploads / _key(upload))  # it can no longer be published
                raise DatasetExistsError(
                    f"{target} already exists and is not this dataset; it is left unchanged. "
                    "Upload it under another version, or remove it there if it is not in use"
                ) from error
            finally:
                with suppress(OSError):  # other uploads may be in progress
                    (self._root / _UPLOADS).rmdir()
            _sync(target.parent)
        return True

    def send_namespace(self, namespace: str, metadata: bytes) -> None:
        with self.translated_errors(OSError):
            self._own_place(namespace)
            with _made(self._root, namespace) as folder:
                _write(folder / NAMESPACE_METADATA, UploadSource.of(metadata))

    def fault_of(self, error: Exception) -> Fault:
        if not isinstance(error, OSError):
            return Fault(RemoteError(f"{self.address}: {type(error).__name__}: {safe_text(error)}"))
        hint = {
            errno.EACCES: "; you need read and write permission there",
            errno.EPERM: "; you need write permission there",
            errno.EROFS: "; choose a writable directory",
            errno.ENOSPC: "; make room there and run the same command to continue",
            errno.EDQUOT: "; make room there and run the same command to continue",
        }.get(error.errno or 0, "")
        where = safe_text(error.filename or self.address)
        fault = RemoteError(f"{self.address}: {where}: {safe_text(error.strerror or error)}{hint}")
        return Fault(fault, is_transient=error.errno in (errno.ESTALE, errno.EAGAIN))

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Yield the sorted names of datasets and namespaces, and whether each is a dataset.

        Folders that cannot hold a name with this prefix are skipped.
        """
        if not self._root.is_dir():
            raise RemoteError(f"{self.address}: the directory {self._root} does not exist")
        found = []
        top = prefix.rpartition("/")[0]
        if top and not NO_NAMES.isdisjoint(top.split("/")):
            return  # no name begins with '../' or '/'
        for folder, folders, files in walk(self._place(top), onerror=_skip):
            name = Path(folder).relative_to(self._root).as_posix()
            if "data" in folders and name != ".":
                folders.clear()
                if name.startswith(prefix) and _may_be_file(Path(folder, METADATA)):
                    found.append((name, True))
                continue
            below = "" if name == "." else f"{name}/"
            folders[:] = [
                entry
                for entry in folders
                if not entry.startswith(".") and _leads_to(f"{below}{entry}", prefix)
            ]
            if NAMESPACE_METADATA in files and name != "." and name.startswith(prefix):
                found.append((name, False))
        yield from sorted(found)

    def _place(self, path: str) -> Path:
        """Return the local path of a file or folder; raise if a symlink leads out of the remote."""
        place = self._root / path
        try:
            end = place.resolve()
        except RuntimeError as error:  # before Python 3.13
            raise _loop(place) from error
        if not end.is_relative_to(self._root.resolve()):
            raise CorruptDatasetError(
                f"{place} is a symlink that leads out of {self.address}; it is not followed"
            )
        return place

    def _own_place(self, path: str) -> Path:
        """Return the local path to write; raise at a symlink, since its target lies elsewhere."""
        place = self._place(path)
        refuse_links(place, self._root)
        return place

    def _put(self, stage: Path, name: str, upload: Upload, on_bytes: OnBytes) -> None:
        source = upload.files[name]
        with _made(stage, os.path.dirname(name)) as folder:
            place = folder / os.path.basename(name)
            if place.is_file() and sha256_file(place) == source.sha256:
                on_bytes(source.size)
            else:
                _write(place, source, on_bytes)
                check_arrived(self, f"{_UPLOADS}/{_key(upload)}/{name}", source)

    @contextmanager
    def _stage(self, upload: Upload) -> Iterator[Path]:
        """Lock and yield the folder in which this dataset is assembled."""
        with _made(self._root, f"{_UPLOADS}/{_key(upload)}") as stage, exclusive(stage):
            yield stage


def _key(upload: Upload) -> str:
    """Return the name of an upload's folder, which is the same when the upload is rerun."""
    key = f"{upload.dataset_id}\n{upload.files[MANIFEST].sha256}"
    return hashlib.sha256(key.encode()).hexdigest()[:32]


@contextmanager
def _made(top: Path, name: str) -> Iterator[Path]:
    """Hold a folder inside ``top``, both made if missing; ``top`` itself if ``name`` is empty."""
    top.mkdir(parents=True, exist_ok=True)
    place = top
    for part in filter(None, name.split("/")):
        with held_folder(place, top) as above, suppress(FileExistsError):
            (above / part).mkdir()
        place /= part
    with held_folder(place, top) as folder:
        yield folder


def _write(place: Path, source: UploadSource, on_bytes: OnBytes = lambda size: None) -> None:
    """Write a file atomically and durably."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with new_file(beside) as handle, open(handle, "wb", closefd=False) as file:
            for start, end in parts_of(source.size):
                file.write(source.read(start, end))
                on_bytes(end - start)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


def _may_be_file(path: Path) -> bool:
    """Return whether a path is a file or cannot be examined; reading it then raises the reason."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _leads_to(folder: str, prefix: str) -> bool:
    """Return whether a folder's name, or a name in it, may begin with a prefix."""
    return folder.startswith(prefix) or prefix.startswith(f"{folder}/")


def _status(place: Path) -> os.stat_result:
    try:
        return os.stat(place)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _loop(place) from error


def _loop(place: Path) -> CorruptDatasetError:
    return CorruptDatasetError(f"{place} is a symlink that leads to itself; it is not followed")


def _sync(folder: Path) -> None:
    """Make a rename in a folder survive a power loss."""
    with suppress(OSError):  # some network file systems cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _skip(error: OSError) -> None:
    if error.errno != errno.ENOENT:  # removed meanwhile
        warnings.warn(f"Skipping {safe_text(error.filename)}: {error.strerror}", stacklevel=6)
