"""Commit to a repository on the Hub, again if its parent is outdated, and verify the commit."""

from __future__ import annotations

import hashlib
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    constants,
    set_client_factory,
)
from huggingface_hub.utils import (
    _http,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    get_session,
    hf_raise_for_status,
)
from huggingface_hub.utils._runtime import is_xet_available

from minari_pipe.core.files.links import opener, path_of
from minari_pipe.errors import MinariPipeError, RemoteError
from minari_pipe.remotes.base import PART, OnBytes, Remote, UploadSource, safe_cause
from minari_pipe.remotes.hub.client import STALE, HfHubHTTPError, HubClient
from minari_pipe.remotes.hub.faults import asked_wait
from minari_pipe.remotes.hub.index import RepoIndex
from minari_pipe.remotes.thread_pool import at_once

CARD = "README.md"

_ROUNDS = 40  # attempts, while others commit first
_REPAIRS = 3
_BATCH = 256  # files in a request; the Hub accepts no more, and a process opens only so many
#: Seconds without a byte after which a request fails; the Hub itself waits as long.
_PATIENCE = 60.0
#: Seconds to wait within an upload if the server asks for it; the Hub renews its limits as often.
_LONGEST_WAIT = 300.0

#: clients of the uploads that run
_uploading: list[HubClient] = []


@dataclass(frozen=True)
class State:
    """The state of a repository from which a change starts.

    Attributes:
        commit: its newest commit.
        index: its index; None if it has none.
        card: its card, as it was read; None if it has none.
    """

    commit: str
    index: RepoIndex | None
    card: bytes | None


@dataclass(frozen=True)
class CommitChange:
    """The contents of a commit.

    Attributes:
        put: files to write, by path in the repository.
        removed: paths of files to remove.
    """

    put: Mapping[str, UploadSource]
    removed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.put or self.removed)


class _StaleError(RemoteError):
    """Others have committed since the state was read."""


class Committer:
    """Changes repositories; one instance serves one operation."""

    def __init__(self, remote: Remote, client: HubClient) -> None:
        """Store the remote, for its retries, and the client."""
        self._remote, self._client = remote, client
        self._sent: dict[str, _Addition] = {}

    def create(self, repo: str) -> None:
        """Create a repository unless it exists.

        Raises:
            RemoteError: this user may not create it.
        """
        try:
            self._remote.retried(partial(self._client.head, repo))
        except FileNotFoundError:
            make = partial(self._client.api.create_repo, repo_type="dataset", exist_ok=True)
            with _configured(self._client):
                self._remote.retried(partial(make, self._client.repo_id(repo)))

    def send_ahead(self, repo: str, files: Mapping[str, UploadSource], on_bytes: OnBytes) -> None:
        """Upload the large ones of these files, so that a commit needs only to name them.

        Raises:
            RemoteError: this user may not write, or a file changed during the upload.
        """
        additions = [_Addition(path, source, on_bytes) for path, source in files.items()]
        with self._translated(), _own_progress(), _configured(self._client):
            self._send(repo, additions)
        for addition in additions:
            addition.check_sent()
            self._sent[addition.path_in_repo] = addition

    def _send(self, repo: str, additions: list[_Addition]) -> None:
        """Upload those of these files that the Hub wants by LFS or xet."""
        large = [addition for addition in additions if addition.source.size > PART]
        small = [addition for addition in additions if addition.source.size <= PART]
        # huggingface_hub retries each file by itself. For several files it starts threads of its
        # own, for which the process would wait after Ctrl-C.
        at_once(partial(self._send_opened, repo, [addition]) for addition in large)
        for start in range(0, len(small), _BATCH):
            self._send_opened(repo, small[start : start + _BATCH])

    def _send_opened(self, repo: str, additions: list[_Addition]) -> None:
        with ExitStack() as stack:
            for addition in additions:
                stack.enter_context(addition.opened_for_xet())
            self._client.api.preupload_lfs_files(
                self._client.repo_id(repo), additions, repo_type="dataset"
            )

    def commit(self, repo: str, message: str, changing: Callable[[State], CommitChange]) -> str:
        """Commit changes to a repository until nothing is left to change.

        So the commit is verified by the hashes that the Hub reports, and a commit whose response
        was lost is not repeated.

        Args:
            repo: the repository.
            message: commit message.
            changing: returns the change that a state needs; an empty one if all is done.

        Returns:
            The commit at which all is done.

        Raises:
            RemoteError: others always committed first, or content arrived damaged several times.
        """
        n_stale = n_made = 0
        made = None
        while True:
            try:
                state = self._remote.retried(partial(self._state, repo, made))
                change = changing(state)
                if not change:
                    return state.commit
                if n_made == _REPAIRS:
                    raise RemoteError(
                        f"{self._remote.address}: {sorted(change.put) or sorted(change.removed)} "
                        f"of {self._client.repo_id(repo)} differ from what was sent, after "
                        f"{n_made} commits; a proxy or the server corrupts data"
                    )
                made = self._remote.retried(partial(self._commit, repo, message, state, change))
                n_made += 1
            except _StaleError:
                made = None
                n_stale += 1
                if n_stale == _ROUNDS:
                    raise
                # jitter, so that waiting clients do not all retry at once
                time.sleep(random.uniform(0.0, 0.05 * min(n_stale, 10)))

    def _state(self, repo: str, made: str | None) -> State:
        """Read a repository, at the commit just made if any, as the Hub may show it late."""
        commit = made or self._client.head(repo)
        try:
            card = self._client.read(repo, commit, CARD)
        except FileNotFoundError:
            card = None
        return State(commit, self._client.index(repo, commit), card)

    def _commit(self, repo: str, message: str, state: State, change: CommitChange) -> str:
        additions = []
        for path, source in change.put.items():
            sent = self._sent.get(path)
            additions.append(sent if sent and sent.source == source else _Addition(path, source))
        try:
            with _own_progress(), _configured(self._client):
                self._send(repo, [a for a in additions if a is not self._sent.get(a.path_in_repo)])
                made = self._client.api.create_commit(
                    self._client.repo_id(repo),
                    [*map(CommitOperationDelete, sorted(change.removed)), *additions],
                    commit_message=message,
                    repo_type="dataset",
                    parent_commit=state.commit,
                )
        except HfHubHTTPError as error:
            if error.response.status_code not in STALE:
                raise
            raise _StaleError(
                f"{self._remote.address}: others keep changing {self._client.repo_id(repo)}; "
                "try again later"
            ) from error
        self._sent.clear()  # additions serve one commit
        return made.oid

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except MinariPipeError:
            raise
        except Exception as error:
            raise self._remote.fault_of(error).error from safe_cause(error)


@contextmanager
def _own_progress() -> Iterator[None]:
    """Hide the progress bars of ``huggingface_hub`` where our callback reports every byte.

    With xet it reports a file only when all of it has arrived, so the bars of xet stay.
    """
    is_asked_for = constants.HF_HUB_DISABLE_PROGRESS_BARS is False
    if is_asked_for or are_progress_bars_disabled() or is_xet_available():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _configured(client: HubClient) -> Iterator[None]:
    """Make ``huggingface_hub`` time out on a silent server, log no secrets and issue no warnings.

    The token is not sent to an address in a response, such as one for verifying a file.

    By default huggingface_hub waits forever; and its HTTP library shows our user a deprecation
    warning about how it sends files.
    """
    warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)
    if _on_request not in get_session().event_hooks["request"]:
        make = _http._GLOBAL_CLIENT_FACTORY

        def hooked() -> Any:
            session = make()
            session.event_hooks["request"].append(_on_request)
            session.event_hooks["response"].append(_on_response)
            return session

        # Not only the session of now: after a lost connection huggingface_hub makes another one.
        set_client_factory(hooked)
    _uploading.append(client)
    try:
        yield
    finally:
        _uploading.remove(client)


def _on_request(request: Any) -> None:
    for client in [*_uploading]:
        client.check_request(request)
    if _uploading:
        given = request.extensions.get("timeout", {})
        limits = {key: value or _PATIENCE for key, value in given.items()}
        request.extensions["timeout"] = limits


def _on_response(response: Any) -> None:
    """Leave a long wait, which huggingface_hub would begin whatever its length, to our retries."""
    if _uploading and response.is_error and asked_wait(response.headers) > _LONGEST_WAIT:
        response.read()
        hf_raise_for_status(response)


class _Addition(CommitOperationAdd):
    """A file to upload, which reports its progress where it is sent as one HTTP body."""

    def __init__(self, path: str, source: UploadSource, on_bytes: OnBytes | None = None) -> None:
        if isinstance(source.content, bytes):
            super().__init__(path, source.content)
        else:
            with self._opened(source.content, source) as file:
                super().__init__(path, file)
            self.path_or_fileobj = str(source.content)
        self.source, self._on_bytes, self._n_counted = source, on_bytes, 0

    @contextmanager
    def as_file(self, with_tqdm: bool = False) -> Iterator[BinaryIO]:
        if not isinstance(self.source.content, Path):
            with super().as_file() as file:
                yield file
            return
        with self._opened(self.source.content, self.source) as file:
            if with_tqdm:
                read = file.read

                def reading(size: int = -1) -> bytes:
                    data = read(size)
                    self._tell(file.tell())
                    return data

                file.read = reading  # type: ignore[method-assign]
            yield file

    @contextmanager
    def opened_for_xet(self) -> Iterator[None]:
        """Have xet, which opens a file by its path, read the file that is opened here.

        Else it follows a folder that is replaced by a symlink meanwhile. Where the system has no
        paths for opened files, as Windows and macOS, it still does.
        """
        if not isinstance(self.source.content, Path):
            yield
            return
        with self._opened(self.source.content, self.source) as file:
            self.path_or_fileobj = path_of(file.fileno()) or str(self.source.content)
            try:
                yield
            finally:
                self.path_or_fileobj = str(self.source.content)

    @staticmethod
    def _opened(path: Path, source: UploadSource) -> BinaryIO:
        """Open a file, refusing symlinks on its path, which huggingface_hub would follow."""
        return open(path, "rb", opener=opener(source.below or path.parent))

    def check_sent(self) -> None:
        """Compare the file that was sent with its source, and report all of it as sent."""
        if self.upload_info.sha256.hex() != self.source.sha256:
            raise RemoteError(
                f"{self.path_in_repo} changed during the upload; nothing was published. Run "
                "the upload again once no process writes to the dataset"
            )
        self._tell(self.source.size)

    def _tell(self, position: int) -> None:
        """Report bytes not yet reported; after a fault the same ones are read again."""
        if self._on_bytes is not None and position > self._n_counted:
            self._on_bytes(position - self._n_counted)
            self._n_counted = position


def is_same(entry: Mapping[str, Any] | None, source: UploadSource) -> bool:
    """Return whether a file has the given content, by the hash that the Hub reports.

    Args:
        entry: the Hub's entry of the file, with the sha256 of a large file, else the id of its
            git blob; None if the file does not exist.
        source: the content.
    """
    if entry is None or entry["size"] != source.size:
        return False
    if entry.get("lfs"):
        return entry["lfs"]["oid"] == source.sha256
    content = source.read()
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return entry["oid"] == oid
