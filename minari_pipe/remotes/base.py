"""What every remote can do: the contract between the transfer of datasets and the places they go.

A remote holds the standard's layout, the same as a local root, so that real Minari reads it::

    <namespace>/namespace_metadata.json
    <namespace>/<name>-v<version>/
    ├─ manifest.json        size and digests of every file
    ├─ policies/            checkpoints, if there are any
    ├─ card/                what describes the dataset, if there is any
    └─ data/
       ├─ main_data.hdf5    the files of the format
       └─ metadata.json     names the sha256 of the manifest, and appears last

A dataset is there once its ``metadata.json`` is. What else lies under an id belongs to an upload
that has not ended: it is never listed, and the next upload of that id takes it over or removes it.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.links import PathLike, opener
from minari_pipe.core.messages import without_passwords
from minari_pipe.errors import DatasetExistsError, MinariPipeError, RemoteError
from minari_pipe.remotes.thread_pool import N_THREADS, OverError, ThreadPool, in_order

T = TypeVar("T")

METADATA = "data/metadata.json"
"""The file that makes a dataset be there, below the dataset's place."""
NAMESPACE_METADATA = "namespace_metadata.json"
OWN = ("data/", "policies/", "card/", MANIFEST)
"""How the names of the files that belong to a dataset begin, below its place."""
PART = 16 * 2**20
"""Bytes of the largest file that goes over the network in one piece, and again if that fails."""
_LEAST_PIECE = 5 * 2**20  # S3 takes no smaller ones
_MOST_PIECE = 8 * 2**20  # several of which are in memory
_N_PIECES = 8  # half of which are on their way when the connection is cut

MOST_BYTES = 1 << 27
"""Of one answer of a server; a file of a dataset is asked for in pieces of 8 MiB."""
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 60.0
"""Seconds without a connection, or without a byte, after which an attempt has failed."""

_SIGNED = re.compile(r"(?i)[?&][-\w]{0,40}(signature|upload_id|token|credential|sig)=")
_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before the second to the fifth attempt
_LONGEST_TEXT = 300  # characters of what a server or a library says
_LONGEST_WAIT = 30.0  # seconds, however long a server asks for

Told = Callable[[int], None]
"""Is told of bytes that have been sent or received."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a remote.

    Attributes:
        size: in bytes.
        sha256: 64 hexadecimal digits if the server itself vouches for them, which an ETag or a
            property that the uploader wrote does not; else None.
    """

    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class UploadSource:
    """What a file of a remote is to be.

    Attributes:
        content: the bytes, or the file that has them.
        size: in bytes.
        sha256: of the bytes, 64 hexadecimal digits.
        below: of a file: the folder from which no link is followed to it; None for its own.
    """

    content: Path | bytes
    size: int
    sha256: str
    below: PathLike | None = None

    @classmethod
    def of(cls, content: Path | bytes, below: PathLike | None = None) -> UploadSource:
        """Look at a file, or at bytes.

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
        """Return the bytes from ``start`` until before ``end``."""
        if isinstance(self.content, bytes):
            return self.content[start:end]
        top = self.below or self.content.parent
        with open(self.content, "rb", opener=opener(top)) as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)


@dataclass(frozen=True)
class Upload:
    """A dataset on its way to a remote.

    Attributes:
        dataset_id: under which it is to appear.
        files: everything but the metadata, by names such as ``data/main_data.hdf5``, which are
            relative to the dataset's place; ``manifest.json`` among them.
        metadata: bytes of ``data/metadata.json``.
        namespaces: the namespaces that the dataset lies in, from the outermost, each with the
            bytes of its metadata, which are used where the remote has none.
    """

    dataset_id: str
    files: Mapping[str, UploadSource]
    metadata: bytes
    namespaces: Mapping[str, bytes]


class Fault(NamedTuple):
    """What a failed call means.

    Attributes:
        error: what the user is told.
        is_transient: whether the same call may succeed later.
        wait: seconds that the server asks to wait, 0 if it does not say.
    """

    error: MinariPipeError
    is_transient: bool = False
    wait: float = 0.0


class Remote(ABC):
    """A place that hosts datasets; made for one operation and used by several threads at once.

    Every path is relative to the remote's own place and has been validated. The methods that read
    raise ``FileNotFoundError`` for what is not there and let other errors of their library through:
    call them by :meth:`retried`, which tries again and turns the rest into errors of this package.
    The methods that write do so themselves.

    Attributes:
        address: as the user gave it, such as ``s3://bucket/folder``; holds no credentials.
    """

    address: str

    @abstractmethod
    def dataset_ids(self, prefix: str = "") -> list[str]:
        """Return what claims to be the ids of datasets that are whole.

        Args:
            prefix: only those that begin with this text.
        """

    @abstractmethod
    def namespaces(self) -> list[str]:
        """Return what claims to be the names of namespaces."""

    @abstractmethod
    def files(self, dataset_id: str) -> dict[str, RemoteFile]:
        """Return the files at a dataset's place, and of no other, whether or not it is whole.

        Returns:
            By names relative to the dataset's place; empty if there are none.
        """

    @abstractmethod
    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of a file.

        Args:
            path: such as ``D4RL/door/human-v2/data/metadata.json``.
            start: where to begin.
            end: where to stop, before this byte; None is the end of the file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def send(self, upload: Upload, told: Told) -> None:
        """Bring the files of a dataset there, verified, where nobody takes them for a dataset.

        Takes over what an earlier call for the same content brought, and removes what another one
        left under this id.

        Raises:
            RemoteError: bytes arrived changed.
        """

    @abstractmethod
    def reveal(self, upload: Upload) -> bool:
        """Let a dataset whose files were sent appear, whole, with the namespaces it lies in.

        Returns:
            Whether the server itself held apart two uploads of this id, had there been another.

        Raises:
            DatasetExistsError: another one appeared under this id meanwhile.
        """

    @abstractmethod
    def send_namespace(self, namespace: str, metadata: bytes) -> None:
        """Write the metadata of a namespace, in the place of what is there.

        Args:
            namespace: its name; its parents are there.
            metadata: a JSON object.
        """

    def cautions(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return what real Minari would misread of a dataset here, in a sentence each.

        Args:
            metadata: of the dataset.
        """
        return []

    @abstractmethod
    def judge(self, error: Exception) -> Fault:
        """Say what an error of the remote's library means; a mistake of ours is passed on as is."""

    @contextmanager
    def telling(self, kind: type[OSError]) -> Iterator[None]:
        """Let an error of the system that comes out of a method that writes be told in one line.

        Args:
            kind: of the errors that are meant.

        Raises:
            RemoteError: in the place of one.
        """
        try:
            yield
        except MinariPipeError:
            raise
        except kind as error:
            raise self.judge(error).error from error

    def retried(self, work: Callable[[], T]) -> T:
        """Do ``work``, again after a fault that may pass.

        Raises:
            RemoteError: what the remote's library raised, in one line.
            FileNotFoundError, FileExistsError: from ``work``.
        """
        crew = ThreadPool.current()
        for wait in (*_WAITS, None):
            if crew is not None and crew.is_over:
                raise OverError("nobody waits for this any more")
            try:
                return work()
            except (MinariPipeError, FileNotFoundError, FileExistsError):
                raise
            except Exception as error:
                fault = self.judge(error)
                if wait is None or not fault.is_transient:
                    raise fault.error from safe_cause(error)
                # spread, so that several clients do not come back all at once
                pause = max(wait * random.uniform(0.75, 1.25), min(fault.wait, _LONGEST_WAIT))
                time.sleep(pause) if crew is None else crew.pause(pause)
        raise AssertionError("the last attempt returns or raises")


def left_over(there: Iterable[str], upload: Upload) -> list[str]:
    """Return which files at a dataset's place are of an upload of other content that did not end.

    What else lies there is somebody else's, such as a dataset in a namespace of this name.
    """
    wanted = {*upload.files, METADATA}
    return [name for name in there if name.startswith(OWN) and name not in wanted]


def check_length(address: str, n_bytes: int, most: int | None = None) -> None:
    """Refuse an answer that is longer than was asked for, while it comes.

    Args:
        address: of the remote.
        n_bytes: of the answer, so far.
        most: that were asked for; None means what memory holds.

    Raises:
        RemoteError: it is longer.
    """
    if n_bytes > (most := MOST_BYTES if most is None else most):
        raise RemoteError(
            f"{address}: an answer has more than {most} bytes; is this the server you mean, or is "
            "a proxy between?"
        )


def other_content(remote: Remote, dataset_id: str) -> DatasetExistsError:
    """Return the error of whoever would publish something else under an id that is there."""
    return DatasetExistsError(
        f"{dataset_id} already exists in {remote.address}, with other content; a published version "
        "is never changed. Upload under another version"
    )


def one_line(message: object) -> str:
    """Return what a library or a server said, safe to be shown in a message of one line.

    Control characters, which a terminal would obey, are left out, and so are what addresses carry
    besides the place: passwords, and signatures in their queries.

    Example:
        >>> one_line("GET http://me:pw@host/file?signature=1\\n\\x1b[31mfailed")
        'GET http://…@host/file [31mfailed'
    """
    # Cut first: a server may say megabytes, and what is searched for may begin anywhere.
    text = " ".join(str(message)[: 4 * _LONGEST_TEXT].split())
    text = re.sub(r"(?<![\w.])[\w.+-]+:[^\s/'\"]+@(?=[\w\[])", "…@", without_passwords(text))
    text = re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def safe_cause(error: BaseException) -> BaseException | None:
    """Return an error to be named as the cause of another; None if it shows what nobody may see.

    A traceback shows causes whole. Whoever sees the signature in an address may use it.
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
    """Return the ends of the pieces in which a file of ``size`` bytes travels.

    Example:
        >>> parts_of(5, part=2)
        [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + part, size)) for start in range(0, size, part)]


def piece_of(size: int) -> int:
    """Return the bytes of the pieces of a large file: a cut costs half of an upload at most.

    Args:
        size: of the file, in bytes.

    Returns:
        Whole MiB.

    Example:
        >>> piece_of(40 * 2**20) / 2**20, piece_of(10**9) / 2**20
        (5.0, 8.0)
    """
    piece = min(max(_LEAST_PIECE, -(-size // _N_PIECES)), _MOST_PIECE)
    return -(-piece // 2**20) * 2**20


def pieces_of(size: int, there: int = 0) -> list[tuple[int, int]]:
    """Return the ends of the pieces in which a file is read.

    Args:
        size: of the file, in bytes.
        there: bytes at its beginning that are not needed.

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
    """Compare a file that was sent with what it is to be, by reading it back.

    Raises:
        RemoteError: it is not the same.
    """
    for _ in range(2):  # what is read back may be damaged on its way too
        try:
            found = remote_sha256(remote, path, source.size)
        except FileNotFoundError:
            found = "of nothing"
        if found == source.sha256:
            return
    raise RemoteError(
        f"{remote.address}/{path} arrived with sha256 {found}, not {source.sha256}; nothing is "
        "published. Run the upload again; if it stays so, a proxy or the server damages data, or "
        "somebody writes to the dataset"
    )
