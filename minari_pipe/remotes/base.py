"""Define the contract between dataset transfers and the remotes that host datasets.

A remote has the standard's layout, the same as a local root, so that real Minari can read it::

    <namespace>/namespace_metadata.json
    <namespace>/<name>-v<version>/
    ├─ manifest.json        size and digests of every file
    ├─ policies/            checkpoints, if any
    ├─ card/                files that describe the dataset, if any
    └─ data/
       ├─ main_data.hdf5    the files of the format
       └─ metadata.json     holds the sha256 of the manifest; appears last

A dataset exists once its ``metadata.json`` does. Until then, the files that its manifest lists
belong to an unfinished upload: the next upload of that id takes them over or removes them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.links import PathLike, opener
from minari_pipe.core.files.manifest import entries_of, parsed
from minari_pipe.core.files.names import NO_NAMES
from minari_pipe.core.messages import without_credentials
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    MinariPipeError,
    RemoteError,
    UnsupportedVersionError,
)
from minari_pipe.remotes.thread_pool import N_THREADS, OverError, ThreadPool, in_order

T = TypeVar("T")

#: The file whose presence makes a dataset exist, relative to the dataset's folder.
METADATA = "data/metadata.json"
NAMESPACE_METADATA = "namespace_metadata.json"
#: Prefixes of the names of a dataset's own files, relative to its folder.
OWN = ("data/", "policies/", "card/", MANIFEST)
#: Size in bytes of the largest file that is sent in one request, and sent again if that fails.
PART = 16 * 2**20
_LEAST_PIECE = 5 * 2**20  # S3 rejects smaller parts
_MOST_PIECE = 8 * 2**20  # several pieces are in memory at once
_N_PIECES = 8  # half of them are in flight when the connection is cut

#: Largest response to accept, in bytes; files of datasets are requested in pieces of 8 MiB.
MOST_BYTES = 1 << 27
#: Seconds without a connection, or without a byte, after which an attempt fails.
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 60.0

_SIGNED = re.compile(r"(?i)[?&][-\w]{0,40}(signature|upload_id|token|credential|sig)=")
_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before the second to the fifth attempt
_LONGEST_TEXT = 300  # characters shown of a message from a server or a library
_LONGEST_WAIT = 30.0  # seconds, even if a server asks for more

#: Progress callback; takes the number of bytes just sent or received, negative to undo.
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file on a remote.

    Attributes:
        size: in bytes.
        sha256: 64 hexadecimal digits if the server itself vouches for them, else None. ETags and
            properties written by the uploader do not count.
    """

    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class UploadSource:
    """The content of a file to upload.

    Attributes:
        content: the bytes, or the path of the file that holds them.
        size: in bytes.
        sha256: of the content, 64 hexadecimal digits.
        below: for a path, the folder below which symlinks are refused; None means the file's own.
    """

    content: Path | bytes
    size: int
    sha256: str
    below: PathLike | None = None

    @classmethod
    def of(cls, content: Path | bytes, below: PathLike | None = None) -> UploadSource:
        """Return the source for a file or for bytes, with its size and sha256.

        Example:
            >>> UploadSource.of(b"{}").size
            2
        """
        if isinstance(content, bytes):
            return cls(content, len(content), hashlib.sha256(content).hexdigest())
        with open(content, "rb", opener=opener(below or content.parent)) as file:
            size = os.fstat(file.fileno()).st_size
            return cls(content, size, hashlib.file_digest(file, "sha256").hexdigest(), below)

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from ``start`` up to, but not including, ``end``."""
        if isinstance(self.content, bytes):
            return self.content[start:end]
        top = self.below or self.content.parent
        with open(self.content, "rb", opener=opener(top)) as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)


@dataclass(frozen=True)
class Upload:
    """A dataset to upload.

    Attributes:
        dataset_id: the id to publish it under.
        files: all files except the metadata, by name relative to the dataset's folder, such as
            ``data/main_data.hdf5``; includes ``manifest.json``.
        metadata: bytes of ``data/metadata.json``.
        namespaces: the namespaces that contain the dataset, outermost first, each with the bytes of
            its metadata, which are written only where the remote has none.
    """

    dataset_id: str
    files: Mapping[str, UploadSource]
    metadata: bytes
    namespaces: Mapping[str, bytes]


class Fault(NamedTuple):
    """The meaning of a failed call.

    Attributes:
        error: the error to show to the user.
        is_transient: whether the same call may succeed later.
        wait: seconds that the server asks to wait; 0 if it does not say.
    """

    error: MinariPipeError
    is_transient: bool = False
    wait: float = 0.0


class Remote(ABC):
    """A place that hosts datasets; made for one operation and used by several threads at once.

    Every path is relative to the remote's root and has been validated. Reading methods raise
    ``FileNotFoundError`` for missing files and let other errors of their client library through:
    call them through :meth:`retried`, which retries and converts the rest to errors of this
    package. Writing methods do so themselves.

    Attributes:
        address: as the user gave it, such as ``s3://bucket/folder``; contains no credentials.
    """

    address: str

    @abstractmethod
    def dataset_ids(self, prefix: str = "") -> list[str]:
        """Return the ids of complete datasets; they are not validated.

        Args:
            prefix: return only ids that begin with this text.
        """

    @abstractmethod
    def namespaces(self) -> list[str]:
        """Return the names of namespaces; they are not validated."""

    @abstractmethod
    def files(self, dataset_id: str) -> dict[str, RemoteFile]:
        """Return the files of exactly this dataset, whether or not it is complete.

        Returns:
            The files by name relative to the dataset's folder; empty if there are none.
        """

    @abstractmethod
    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of a file.

        Args:
            path: such as ``D4RL/door/human-v2/data/metadata.json``.
            start: offset of the first byte.
            end: offset after the last byte; None means the end of the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """

    @abstractmethod
    def send(self, upload: Upload, on_bytes: OnBytes) -> None:
        """Send and verify the files of a dataset, without making the dataset visible.

        Reuses files that an earlier call sent for the same content, and removes files that an
        upload of other content left under this id.

        Raises:
            RemoteError: the remote stored other bytes than were sent.
        """

    @abstractmethod
    def reveal(self, upload: Upload) -> bool:
        """Make a dataset that was sent visible as a whole, together with its namespaces.

        Returns:
            Whether the server itself would have refused a concurrent upload of this id.

        Raises:
            DatasetExistsError: another dataset appeared under this id meanwhile.
        """

    @abstractmethod
    def send_namespace(self, namespace: str, metadata: bytes) -> None:
        """Write the metadata of a namespace, replacing any that exists.

        Args:
            namespace: its name; its parents exist.
            metadata: a JSON object.
        """

    def cautions(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return one sentence for each thing that real Minari would misread in a dataset here.

        Args:
            metadata: metadata of the dataset.
        """
        return []

    @abstractmethod
    def fault_of(self, error: Exception) -> Fault:
        """Return the meaning of an error that the remote's client library raised."""

    @contextmanager
    def translated_errors(self, kind: type[OSError]) -> Iterator[None]:
        """Convert OS errors raised by a writing method to errors with a one-line message.

        Args:
            kind: the class of errors to convert.

        Raises:
            RemoteError: in place of such an error.
        """
        try:
            yield
        except MinariPipeError:
            raise
        except kind as error:
            raise self.fault_of(error).error from error

    def retried(self, work: Callable[[], T]) -> T:
        """Call ``work``, and retry it after transient faults.

        Raises:
            RemoteError: the remote's library raised an error; the message is one line.
            FileNotFoundError, FileExistsError: raised by ``work``.
        """
        pool = ThreadPool.current()
        for wait in (*_WAITS, None):
            if pool is not None and pool.is_over:
                raise OverError("the result is no longer needed")
            try:
                return work()
            except (MinariPipeError, FileNotFoundError, FileExistsError):
                raise
            except Exception as error:
                fault = self.fault_of(error)
                if wait is None or not fault.is_transient:
                    raise fault.error from safe_cause(error)
                # jitter, so that several clients do not retry all at once
                pause = max(wait * random.uniform(0.75, 1.25), min(fault.wait, _LONGEST_WAIT))
                time.sleep(pause) if pool is None else pool.pause(pause)
        raise AssertionError("the last attempt returns or raises")


def left_over(
    there: Iterable[str], upload: Upload, address: str, read_manifest: Callable[[], bytes]
) -> list[str]:
    """Return the names of the files of an unfinished upload of other content, there or not.

    Its manifest, which comes first, lists them. Files outside of ``OWN`` are not the dataset's,
    such as a dataset in a namespace of this name. Nor are names such as ``data/../../a``: a client
    or a proxy may take them for files elsewhere.

    Args:
        there: the names of the files at the place.
        upload: the upload that begins.
        address: address of the remote, for the message.
        read_manifest: reads the manifest that is there.

    Raises:
        DatasetExistsError: there are files that no upload has left, and that this one would remove
            or replace.
    """
    names = (name for name in there if name.startswith(OWN))
    own = {name for name in names if NO_NAMES.isdisjoint(name.split("/"))}
    left: set[str] = set()
    if METADATA in own:  # of real Minari, which then adds it to the index
        left = {METADATA, *upload.files}
    if MANIFEST in own:
        with suppress(CorruptDatasetError, UnsupportedVersionError):
            listed = entries_of(parsed(read_manifest(), MANIFEST), card=True)
            left = {METADATA, MANIFEST, *listed, *upload.files}
    if others := sorted(own - left):
        raise DatasetExistsError(
            f"{address}/{upload.dataset_id} has files that are not of a dataset, such as "
            f"{safe_text(others[0])}, which an upload would remove; move them away, or upload "
            "the dataset under another id"
        )
    return sorted(left - upload.files.keys() - {METADATA})


def check_length(address: str, n_bytes: int, most: int | None = None) -> None:
    """Raise an error if a response, while it is being read, exceeds the requested length.

    Args:
        address: address of the remote.
        n_bytes: bytes received so far.
        most: bytes requested; None means ``MOST_BYTES``, which fits in memory.

    Raises:
        RemoteError: the response is longer.
    """
    if n_bytes > (most := MOST_BYTES if most is None else most):
        raise RemoteError(
            f"{address}: a response has more than {most} bytes; the address may be wrong, or a "
            "proxy may be answering"
        )


def other_content(remote: Remote, dataset_id: str) -> DatasetExistsError:
    """Return the error for an upload of other content under an id that is already published."""
    return DatasetExistsError(
        f"{dataset_id} already exists in {remote.address} with other content; published versions "
        "never change. Upload it under another version"
    )


def safe_text(message: object) -> str:
    r"""Return a message of a library or a server as one line that is safe to show.

    Control characters, which a terminal would obey, are removed, and so are secrets in URLs:
    passwords, and queries, which may hold signatures.

    Example:
        >>> safe_text("GET http://me:pw@host/file?signature=1\n\x1b[31mfailed")
        'GET http://…@host/file?… [31mfailed'
    """
    # Cut first: a server may send megabytes, and the patterns may start to match anywhere.
    text = " ".join(str(message)[: 4 * _LONGEST_TEXT].split())
    text = re.sub(r"(?<![\w.])[\w.+-]+:[^\s/'\"]+@(?=[\w\[])", "…@", without_credentials(text))
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def safe_cause(error: BaseException) -> BaseException | None:
    """Return an error to chain as a cause, or None if it would reveal a signed URL.

    A traceback prints causes in full, and anyone who sees the signature in a URL can use it.
    """
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        if _SIGNED.search(str(cause)):
            return None
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return error


def parts_of(size: int, part: int = PART) -> list[tuple[int, int]]:
    """Return the start and end of each piece in which a file of ``size`` bytes is sent.

    Example:
        >>> parts_of(5, part=2)
        [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + part, size)) for start in range(0, size, part)]


def piece_of(size: int) -> int:
    """Return the piece size for a large file; a cut connection costs at most half an upload.

    Args:
        size: size of the file, in bytes.

    Returns:
        Size in bytes, a whole number of MiB.

    Example:
        >>> piece_of(40 * 2**20) / 2**20, piece_of(10**9) / 2**20
        (5.0, 8.0)
    """
    piece = min(max(_LEAST_PIECE, -(-size // _N_PIECES)), _MOST_PIECE)
    return -(-piece // 2**20) * 2**20


def pieces_of(size: int, there: int = 0) -> list[tuple[int, int]]:
    """Return the start and end of each piece in which a file is read.

    Args:
        size: size of the file, in bytes.
        there: number of bytes to skip at its beginning.

    Example:
        >>> len(pieces_of(40 * 2**20)), pieces_of(7, there=3)
        (8, [(3, 7)])
    """
    return [(there + start, there + end) for start, end in parts_of(size - there, piece_of(size))]


def remote_sha256(remote: Remote, path: str, size: int) -> str:
    """Read a file back and return its sha256, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    parts = pieces_of(size)
    works = (partial(remote.retried, partial(remote.read, path, *part)) for part in parts)
    for data in in_order(works, min(len(parts), N_THREADS)):
        digest.update(data)
    return digest.hexdigest()


def check_arrived(remote: Remote, path: str, source: UploadSource) -> None:
    """Read a file that was sent back and compare it with its source.

    Raises:
        RemoteError: they differ.
    """
    for _ in range(2):  # the copy that is read back may be damaged in transit too
        try:
            found = remote_sha256(remote, path, source.size)
        except FileNotFoundError:
            found = "missing"
        if found == source.sha256:
            return
    raise RemoteError(
        f"{remote.address}/{path}: sha256 after the upload is {found}, expected {source.sha256}; "
        "nothing was published. Run the upload again; if this repeats, a proxy or the server "
        "corrupts data, or another process writes to the dataset"
    )
