"""Determine what publishing changes in a Hub repository: a dataset's files, index and card."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import DatasetExistsError
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    OWN,
    Remote,
    Upload,
    UploadSource,
    left_over,
)
from minari_pipe.remotes.hub import card as hub_card
from minari_pipe.remotes.hub.client import HubClient
from minari_pipe.remotes.hub.commits import CARD, CommitChange, State, is_same
from minari_pipe.remotes.hub.index import RepoIndex
from minari_pipe.remotes.thread_pool import N_WAITING

_METADATA = f"/{METADATA}"


class Publisher:
    """Determines what must change in a repository to publish something there."""

    def __init__(self, remote: Remote, client: HubClient) -> None:
        """Store the remote, for its retries, and the client."""
        self._remote, self._client = remote, client

    def files_at(self, dataset_id: str, commit: str) -> dict[str, dict[str, Any]]:
        """Return the Hub's entries of a dataset's files, by name; empty if it does not exist."""
        repo, place = locate(dataset_id)
        try:
            there = self._client.tree(repo, commit, place)
        except FileNotFoundError:
            return {}
        names = {path.removeprefix(place): entry for path, entry in there.items()}
        # The root of a repository also holds the repository's own files, and other datasets.
        of_datasets = (name for name in names if name.startswith(OWN) or name.endswith(_METADATA))
        return names if place else {name: names[name] for name in of_datasets}

    def adding(self, upload: Upload, state: State) -> CommitChange:
        """Return the change that makes a dataset appear, complete and with its namespaces.

        Raises:
            DatasetExistsError: another dataset exists under this id.
            RemoteError: the repository cannot be read.
        """
        repo, place = locate(upload.dataset_id)
        wanted = {**upload.files, METADATA: UploadSource.of(upload.metadata)}
        there = self._ask(partial(self.files_at, upload.dataset_id, state.commit))
        is_there = METADATA in there and is_listed(upload.dataset_id, state.index)
        if is_there and not is_same(there[METADATA], wanted[METADATA]):
            raise exists(self._remote, upload.dataset_id)
        nested = {name: text for name, text in upload.namespaces.items() if name != repo}
        index = state.index
        if index is None:
            index = RepoIndex(repo).describing(json_object(upload.namespaces.get(repo, b"{}")))
        put = {
            f"{place}{name}": source
            for name, source in wanted.items()
            if not is_same(there.get(name), source)
        }
        metadata = _object_or_nothing(upload.metadata)
        listing = hub_card.described(
            upload.dataset_id,
            metadata,
            sum(source.size for source in wanted.values()),
            self._client.page(repo, place.rstrip("/") or "data"),
            upload.files,
        )
        put |= self._describing(repo, nested, state, replaced=False)
        added = {upload.dataset_id: metadata}
        put |= self._listing(state, index.adding([upload.dataset_id], nested), listing, added)
        read = partial(self._ask, partial(self._client.read, repo, state.commit, place + MANIFEST))
        unwanted = left_over(there, upload, self._remote.address, read)
        removed = frozenset(f"{place}{name}" for name in there.keys() & unwanted)
        return CommitChange(put, removed)

    def describing(self, namespace: str, metadata: bytes, state: State) -> CommitChange:
        """Return the change that replaces the metadata of a namespace.

        Raises:
            RemoteError: the repository cannot be read.
        """
        repo, _ = locate(namespace)
        index = state.index or RepoIndex(repo)
        if namespace == repo:
            return CommitChange(self._listing(state, index.describing(json_object(metadata))))
        put = self._describing(repo, {namespace: metadata}, state, replaced=True)
        return CommitChange(put | self._listing(state, index.adding(namespaces=[namespace])))

    def _describing(
        self, repo: str, nested: Mapping[str, bytes], state: State, *, replaced: bool
    ) -> dict[str, UploadSource]:
        """Return the files to write for the metadata of namespaces inside a repository."""
        wanted = {
            f"{locate(name)[1]}{NAMESPACE_METADATA}": UploadSource.of(text)
            for name, text in nested.items()
        }
        if not wanted:
            return {}
        there = self._ask(partial(self._client.paths, repo, state.commit, list(wanted)))
        return {
            path: source
            for path, source in wanted.items()
            if path not in there or (replaced and not is_same(there[path], source))
        }

    def _listing(
        self,
        state: State,
        index: RepoIndex,
        described: hub_card.Listing | None = None,
        added: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, UploadSource]:
        """Return the index and the card, each only if it must change.

        Args:
            state: the repository.
            index: its new index.
            described: the datasets to list anew.
            added: their metadata, by id.
        """
        described = described or {}
        put = {}
        if state.index is None or index.content != state.index.content:
            put[NAMESPACE_METADATA] = UploadSource.of(index.dump())
        try:
            before = None if state.card is None else state.card.decode()
        except UnicodeDecodeError:
            warnings.warn(
                f"{self._remote.address}: {CARD} of {self._client.repo_id(index.repo)} is not "
                "valid UTF-8, so it is not updated",
                stacklevel=2,
            )
            return put
        listed = hub_card.listed(before or "")
        unknown = [key for key in index.datasets if key not in listed and key not in described]
        metadata = self._read_metadata(state, index.repo, unknown)
        listed |= self._describe(state, index.repo, metadata)
        added = metadata | dict(added or {})
        datasets = {k: v for k, v in (listed | described).items() if k in index.datasets}
        card = hub_card.new_card(index.repo, list(added.values())) if before is None else before
        address, about = self._remote.address, index.description
        card = hub_card.with_datasets(card, address, datasets, about, added)
        if card != before:
            put[CARD] = UploadSource.of(card.encode())
        return put

    def _describe(
        self, state: State, repo: str, metadata: Mapping[str, Mapping[str, Any]]
    ) -> hub_card.Listing:
        """Describe datasets that others published, or that an earlier card lost."""
        places = {dataset_id: locate(dataset_id)[1] for dataset_id in metadata}
        paths = [place + name for place in places.values() for name in hub_card.FILES]
        read = partial(self._client.paths, repo, state.commit, paths)
        there = self._ask(read) if paths else {}
        found: hub_card.Listing = {}
        for dataset_id, place in places.items():
            page = self._client.page(repo, place.rstrip("/") or "data")
            files = [name for name in hub_card.FILES if place + name in there]
            found |= hub_card.described(dataset_id, metadata[dataset_id], None, page, files)
        return found

    def _read_metadata(
        self, state: State, repo: str, ids: Iterable[str]
    ) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of those of these datasets whose metadata can be read."""

        def read(dataset_id: str) -> dict[str, Any] | None:
            path = f"{locate(dataset_id)[1]}{METADATA}"
            try:
                return json_object(self._ask(partial(self._client.read, repo, state.commit, path)))
            except (FileNotFoundError, ValueError):
                return None

        ids = list(ids)
        with ThreadPoolExecutor(N_WAITING) as pool:
            found = zip(ids, pool.map(read, ids), strict=True)
            return {key: metadata for key, metadata in found if metadata is not None}

    def _ask(self, question: Any) -> Any:
        return self._remote.retried(question)


def locate(name: str) -> tuple[str, str]:
    """Split an id or a namespace into its repository and its folder there.

    Example:
        >>> locate("door/hard/human-v0"), locate("door"), locate("human-v0")
        (('door', 'hard/human-v0/'), ('door', ''), ('human-v0', ''))
    """
    repo, _, rest = name.partition("/")
    return repo, f"{rest}/" if rest else ""


def is_listed(dataset_id: str, index: RepoIndex | None) -> bool:
    """Return whether a dataset whose files exist is published.

    Minari commits the files first and the index later. If it is interrupted in between, the
    dataset is not listed, and the next upload of the id replaces it.

    Args:
        dataset_id: id of the dataset.
        index: index of its repository; None if there is none.
    """
    return "/" not in dataset_id if index is None else dataset_id in index.datasets


def exists(remote: Remote, dataset_id: str) -> DatasetExistsError:
    """Return the error for an upload that would replace a dataset."""
    return DatasetExistsError(
        f"{remote.address}/{dataset_id} already exists and is not this dataset; it is left "
        "unchanged. Upload it under another version"
    )


def _object_or_nothing(text: bytes) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError:
        return {}
