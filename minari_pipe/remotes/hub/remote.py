"""Host datasets on the Hugging Face Hub: ``hf://org``, for an organization or a user.

The first part of an id is a dataset repository, the rest a folder in it, as in Minari::

    org/door                            the repository of the namespace door
    ├─ README.md                        the card, see :mod:`minari_pipe.remotes.hub.card`
    ├─ namespace_metadata.json          the index, see :mod:`minari_pipe.remotes.hub.index`
    ├─ human-v2/                        the dataset door/human-v2, in the usual layout
    └─ hard/namespace_metadata.json     metadata of the namespace door/hard

Large files are uploaded first, and stay invisible. One commit then adds them, the small files, the
metadata, the index and the card, so that no part is visible before. The commit names its parent:
the Hub refuses it if anything else was committed meanwhile, and it is made again.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from minari_pipe.errors import ConfigError, RemoteError
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    Fault,
    OnBytes,
    Remote,
    RemoteFile,
    Upload,
)
from minari_pipe.remotes.hub.changes import Publisher, exists, is_listed, locate
from minari_pipe.remotes.hub.client import BrokenIndexError, HiddenError, HubClient
from minari_pipe.remotes.hub.commits import CommitChange, Committer, State
from minari_pipe.remotes.hub.index import RepoIndex
from minari_pipe.remotes.thread_pool import N_WAITING


class HubRemote(Remote):
    """Datasets in the repositories of an organization or a user."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Parse the address; no request is sent yet.

        Args:
            address: ``hf://`` and the name of the organization or user.
            token: access token of a user; None means ``HF_TOKEN``, or that of ``hf auth login``.

        Raises:
            ConfigError: the address does not name an organization.
        """
        self.address = address.rstrip("/")
        owner = self.address.partition("://")[2]
        if not owner or "/" in owner:
            raise ConfigError(
                f"{address!r} is not the address of an organization: expected hf:// and its name, "
                "such as hf://farama-minari; the rest belongs to the dataset id"
            )
        self._client = HubClient(self.address, owner, token)
        self._committer = Committer(self, self._client)
        self._publisher = Publisher(self, self._client)
        self._commits: dict[str, str] = {}
        self._lock = threading.Lock()

    def dataset_ids(self, prefix: str = "") -> list[str]:
        names = (name for index in self._indexes(prefix) for name in index.datasets)
        return sorted({name for name in names if name.startswith(prefix)})

    def namespaces(self) -> list[str]:
        return sorted({name for index in self._indexes() for name in index.namespaces})

    def files(self, dataset_id: str) -> dict[str, RemoteFile]:
        repo, _ = locate(dataset_id)
        try:
            commit = self._commit_of(repo)
        except FileNotFoundError:
            return {}
        found = self._publisher.files_at(dataset_id, commit)
        if METADATA in found and not is_listed(dataset_id, self._client.index(repo, commit)):
            del found[METADATA]  # of an unfinished upload
        return {
            name: RemoteFile(entry["size"], (entry.get("lfs") or {}).get("oid"))
            for name, entry in found.items()
        }

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        repo, _, name = path.partition("/")
        commit = self._commit_of(repo)
        if name != NAMESPACE_METADATA:
            return self._client.read(repo, commit, name, start, end)
        index = self._client.index(repo, commit)
        if index is None or not index.namespaces:
            raise FileNotFoundError(f"{self.address} has no namespace {repo!r}")
        # the lists in the index are not part of the metadata of a namespace
        return RepoIndex(repo).describing(index.content).dump()[start:end]

    def send(self, upload: Upload, on_bytes: OnBytes) -> None:
        repo, place = locate(upload.dataset_id)
        self._committer.create(repo)
        if METADATA in self.retried(partial(self.files, upload.dataset_id)):
            raise exists(self, upload.dataset_id)
        files = {f"{place}{name}": source for name, source in upload.files.items()}
        self._committer.send_ahead(repo, files, on_bytes)

    def reveal(self, upload: Upload) -> bool:
        message = f"Publish {upload.dataset_id}"
        self._change(upload.dataset_id, message, partial(self._publisher.adding, upload))
        return True

    def send_namespace(self, namespace: str, metadata: bytes) -> None:
        self._committer.create(locate(namespace)[0])
        change = partial(self._publisher.describing, namespace, metadata)
        self._change(namespace, f"Describe {namespace}", change)

    def cautions(self, metadata: Mapping[str, Any]) -> list[str]:
        dataset_id = str(metadata.get("dataset_id"))
        if "/" in dataset_id:
            return []
        return [
            f"real Minari also lists {dataset_id!r} as a namespace of {self.address}, as it does "
            "every repository with an index"
        ]

    def fault_of(self, error: Exception) -> Fault:
        return self._client.fault_of(error)

    def _change(self, name: str, message: str, changing: Callable[[State], CommitChange]) -> None:
        repo, _ = locate(name)
        commit = self._committer.commit(repo, message, changing)
        with self._lock:
            self._commits[repo] = commit

    def _commit_of(self, repo: str) -> str:
        """Return the commit at which this instance reads a repository, always the same.

        Raises:
            FileNotFoundError: there is no such repository.
        """
        with self._lock:
            if repo not in self._commits:
                self._commits[repo] = self._client.head(repo)
            return self._commits[repo]

    def _indexes(self, prefix: str = "") -> list[RepoIndex]:
        """Return the indexes of the repositories that may hold ids with this prefix."""
        repo, slash, _ = prefix.partition("/")
        if slash:
            try:
                repos = [repo] if self._commit_of(repo) else []
            except HiddenError as error:
                warnings.warn(
                    f"{self.address}: repository {repo!r} not found: {error}", stacklevel=2
                )
                return []
            except FileNotFoundError:
                return []
        else:
            heads = self._client.heads()
            with self._lock:
                self._commits = {k: v for k, v in heads.items() if v} | self._commits
            repos = [name for name in heads if name.startswith(prefix)]
        with ThreadPoolExecutor(N_WAITING) as pool:
            found = list(pool.map(self._look_into, repos))
        for index in found:
            if isinstance(index, RemoteError):
                warnings.warn(f"Skipping a repository: {index}", stacklevel=2)
            elif index is not None and (names := index.foreign()):
                warnings.warn(
                    f"Skipping a repository: {self.address}: {NAMESPACE_METADATA} of "
                    f"{index.repo!r} lists {names[:5]!r:.300}, which do not belong to it",
                    stacklevel=2,
                )
        return [index for index in found if isinstance(index, RepoIndex)]

    def _look_into(self, repo: str) -> RepoIndex | RemoteError | None:
        """Return the index of a repository, inferred if missing; None if it is not Minari's."""
        commit = self._commit_of(repo)
        try:
            index = self.retried(partial(self._client.index, repo, commit))
        except BrokenIndexError as error:
            return error
        if index is not None:
            return index
        there = self.retried(partial(self._client.paths, repo, commit, [METADATA]))
        return RepoIndex(repo).adding([repo]) if there else None
