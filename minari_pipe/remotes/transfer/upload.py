"""Upload a dataset: its files first, each verified, and last the file that makes it appear."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from minari_pipe.core.dataset_id import check_new_dataset_id, namespace_hierarchy, parse_dataset_id
from minari_pipe.core.datasets_root import (
    check_data_link,
    data_in,
    data_path_of,
    open_folder,
    root_of,
)
from minari_pipe.core.files.atomic import MANIFEST, read_whole, settle
from minari_pipe.core.files.checksums import entry_of, entry_of_bytes
from minari_pipe.core.files.links import OpenedFolder, status_below
from minari_pipe.core.files.manifest import (
    CARD,
    ORDER_BLIND,
    TOTALS,
    compose,
    entries_of,
    file_faults,
    files_of,
    identity_of,
    is_foreign,
    is_order_blind,
    read_manifest,
    verify,
)
from minari_pipe.core.files.names import check_names
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.json_object import json_object
from minari_pipe.datasets.cards.dates import DATED, dated
from minari_pipe.datasets.identity import checked_content_sha256
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    LinkError,
    MinariPipeError,
)
from minari_pipe.remotes.base import (
    METADATA,
    NAMESPACE_METADATA,
    PART,
    Remote,
    RemoteFile,
    Upload,
    UploadSource,
    other_content,
    remote_sha256,
)
from minari_pipe.remotes.transfer.cards import check_card, has_same_card
from minari_pipe.remotes.transfer.listing import read_small
from minari_pipe.remotes.transfer.progress import progress
from minari_pipe.remotes.transfer.published import manifest_named, naming, parse_manifest, unnamed
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage


@dataclass(frozen=True)
class Published:
    """The result of an upload.

    Attributes:
        dataset_id: id of the dataset.
        address: address of the remote.
        content_sha256: sha256 of the dataset's content.
        outcome: ``uploaded``; ``present`` if the remote had it; ``planned`` after a dry run.
        sizes: size of each file in bytes, by name relative to the dataset's folder.
        notes: one sentence for each thing that the user should know.
    """

    dataset_id: str
    address: str
    content_sha256: str
    outcome: str
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()


class _Opened(NamedTuple):
    """The folder of a dataset, and its ``data/``, which may be reached through a symlink."""

    whole: OpenedFolder
    data: OpenedFolder

    def below(self, name: str) -> OpenedFolder:
        """Return the folder below which symlinks to a file of the dataset are refused."""
        return self.data if name.startswith("data/") else self.whole


def upload(
    dataset_id: str,
    remote: Remote,
    *,
    folder: Path | None = None,
    dry_run: bool = False,
    published: str | None = None,
) -> Published:
    """Publish a dataset; do nothing if the remote has it.

    An interrupted upload resumes where it stopped; the dataset is not visible before the end.

    Args:
        dataset_id: id with a version.
        remote: the remote to upload to.
        folder: folder that holds ``data/``, of which else only what its manifest lists is
            published; None means the dataset in the local root.
        dry_run: compare both sides and send nothing.
        published: date of publication for the card that is sent, such as ``2026-11-23``; the local
            card stays as it is.

    Raises:
        InvalidDatasetIdError: the id is malformed or has no version.
        ConfigError: the address ends with the id, or the date is none.
        DatasetNotFoundError: there is no such dataset.
        CorruptDatasetError: its files do not match its manifest.
        LinkError: one of its files is a symlink, or lies in one.
        DatasetExistsError: the remote has this version with other content.
        RemoteError: the remote cannot be reached, refuses the upload, or stored other bytes.
    """
    check_new_dataset_id(dataset_id)
    _check_address(remote.address, dataset_id)
    if published is not None:
        _check_date(published)
    if folder is not None:
        refuse_tracked_links(folder)
    place = folder or _local(dataset_id)
    with _there(place):
        data = place / "data" if folder is None else data_in(folder)
        check_data_link(data)
        settle(data)
        opened = _Opened(open_folder(place), OpenedFolder(place / "data", root_of(place) or place))
        metadata_bytes = _read_metadata(place / METADATA, opened.data, dataset_id)
        metadata = json.loads(metadata_bytes)
        own = read_manifest(place)
        # What else lies in a folder that the user named is part of the dataset if it says so.
        listed = {} if own is None else entries_of(own, card=True)
        entries = {
            name: entry_of(place / name, sha256=True, below=opened.below(name))
            for name in files_of(place)
            if folder is None or name.startswith("data/") or name in listed
        }
        check_names(entries)
        metadata_there = read_whole(place / METADATA, opened.data)
        entries[METADATA] = entry_of_bytes([unnamed(metadata_there)], sha256=True)
        if entries[METADATA]["sha256"] != UploadSource.of(metadata_bytes).sha256:
            raise _changing(place / METADATA)
        was_dropped = own is not None and not _counts(place, metadata, entries, own)
        if was_dropped:
            own = None
            if folder is not None:
                entries = {name: e for name, e in entries.items() if name.startswith("data/")}
        card = {} if own is None else check_card(place, own, entries)
        # What else lies there describes other data, or nobody knows what.
        entries = {n: e for n, e in entries.items() if n in card or not n.startswith(f"{CARD}/")}
        dated_files = {} if published is None else _dated(place, opened, entries, published)
        for name, text in dated_files.items():
            entries[name] = entry_of_bytes([text], sha256=True)
        manifest = _manifest(place, opened, metadata, entries, own)
    content: str = json.loads(manifest)["content_sha256"]
    files = {
        name: UploadSource(place / name, entry["size"], entry["sha256"], opened.below(name))
        for name, entry in sorted(entries.items())
        if name != METADATA
    }
    files |= {name: UploadSource.of(text) for name, text in dated_files.items()}
    files[MANIFEST] = UploadSource.of(manifest)
    upload = Upload(
        dataset_id, files, naming(metadata_bytes, manifest), _namespaces(dataset_id, place)
    )
    size = sum(source.size for source in files.values())
    sizes = {**{name: f.size for name, f in files.items()}, METADATA: len(upload.metadata)}
    done = partial(Published, dataset_id, remote.address, content, sizes=sizes)
    compared = partial(_compare, remote, upload, content, metadata_bytes)
    if note := compared():
        return done("present", notes=(note,) if note != "same" else ())
    notes = remote.cautions(metadata)
    if own is not None and is_order_blind(own):
        notes.append(f"{dataset_id}: {ORDER_BLIND}")
    if was_dropped:
        notes.append(
            f"{dataset_id}: another program has changed the dataset since its {MANIFEST} was "
            "written; a new one is published, which does not detect earlier damage, and no card"
        )
    if dry_run:
        return done("planned", notes=tuple(notes))
    try:
        with progress(f"upload {dataset_id}", size) as on_bytes:
            remote.send(upload, on_bytes)
        is_exclusive = remote.reveal(upload)
    except DatasetExistsError:  # another upload came first, perhaps of the same dataset
        if note := compared():
            return done("present", notes=(note,) if note != "same" else ())
        raise
    except Exception as error:
        for source in files.values():
            if isinstance(source.content, Path) and not _has_size(source.content, source):
                raise _changing(source.content) from error
        raise
    if not is_exclusive:
        notes.append(
            f"{remote.address} does not enforce exclusive creation: it could not have kept two "
            f"simultaneous uploads of {dataset_id} apart"
        )
    return done("uploaded", notes=tuple(notes))


@contextmanager
def _there(place: Path) -> Iterator[None]:
    """Report a missing file of the dataset as a missing or deleted dataset."""
    try:
        yield
    except MinariPipeError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetNotFoundError(
            f"{error.filename or place} does not exist; the dataset {place} may have been deleted"
        ) from None


def _check_address(address: str, dataset_id: str) -> None:
    """Raise an error for an address as downloads take it, which would repeat the id."""
    remote = address.removesuffix(f"/{dataset_id}")
    if remote not in (address, address.partition("//")[0] + "/"):
        raise ConfigError(
            f"{address} ends with {dataset_id}, which the upload itself adds; use the address of "
            f"the remote, {remote}"
        )


def _check_date(text: str) -> None:
    try:
        is_date = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_date = False
    if not is_date:
        raise ConfigError(f"published={text!r:.40} is no date, expected one such as 2026-11-23")


def _dated(
    place: Path, opened: _Opened, entries: Mapping[str, dict[str, Any]], date: str
) -> dict[str, bytes]:
    """Return the files of the card that state when the dataset was published.

    Args:
        place: the folder that holds ``data/``.
        opened: the same folder, open.
        entries: entries of its files, with sha256.
        date: the date.

    Raises:
        CorruptDatasetError: a file changed meanwhile.
    """
    found = {}
    for name in DATED:
        path = f"{CARD}/{name}"
        entry = entries.get(path)
        if entry is None or entry["size"] > PART:  # a card that this package made is smaller
            continue
        content = UploadSource(place / path, entry["size"], entry["sha256"], opened.whole).read()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise _changing(place / path)
        found[path] = dated(name, content, date)
    return found


def _local(dataset_id: str) -> Path:
    data = data_path_of(dataset_id)
    if not data.exists():
        raise DatasetNotFoundError(
            f"no dataset {dataset_id!r} in the local root, at {data.parent}; minari-pipe list "
            "shows what is there"
        )
    if data.name != "data" or not (data / METADATA_FILE_NAME).is_file():
        raise ConfigError(
            f"{dataset_id} has the layout of an older Minari, which remotes do not accept: run "
            f"minari-pipe migrate {dataset_id} NEW_ID first"
        )
    return data.parent


def _read_metadata(path: Path, below: OpenedFolder, dataset_id: str) -> bytes:
    raw = MinariStorage.read_raw_metadata(path.parent)
    if raw.get("dataset_id") != dataset_id:
        raise CorruptDatasetError(
            f"{path} belongs to {raw.get('dataset_id')!r}, not to {dataset_id!r}; it is not "
            "uploaded"
        )
    # the root may be a remote, or may have been filled by real Minari
    content = unnamed(read_whole(path, below))
    try:
        if json_object(content) != raw:
            raise ValueError
    except ValueError:
        raise _changing(path) from None
    return content


def _manifest(
    place: Path,
    opened: _Opened,
    metadata: Mapping[str, Any],
    entries: Mapping[str, dict[str, Any]],
    own: dict[str, Any] | None,
) -> bytes:
    """Return the manifest to publish, with every sha256; the dataset's own if it has them.

    Args:
        place: the folder that holds ``data/``.
        opened: the same folder, open.
        metadata: metadata of the dataset.
        entries: entries of its files, with sha256.
        own: the dataset's own manifest, if it has one that counts.

    Raises:
        CorruptDatasetError: the content does not match the dataset's own manifest.
    """
    content = compose(metadata, entries)
    content["content_sha256"] = checked_content_sha256(place, metadata, own, opened.data)
    if content == own:
        return read_whole(place / MANIFEST, opened.whole)
    return (json.dumps(content) + "\n").encode()


def _counts(
    place: Path,
    metadata: Mapping[str, Any],
    entries: Mapping[str, dict[str, Any]],
    own: Mapping[str, Any],
) -> bool:
    """Return whether a dataset matches its manifest; False if another program has changed it.

    Args:
        place: the folder that holds ``data/``.
        metadata: metadata of the dataset.
        entries: entries of its files, with sha256.
        own: its manifest.

    Raises:
        CorruptDatasetError: the files do not match it.
    """
    named = entries_of(own)
    names = {name for name in entries if not name.startswith(f"{CARD}/")}
    is_named = names == named.keys() and all(
        named[name].items() <= entries[name].items() for name in names
    )
    if is_named and all(own.get(key, metadata.get(key)) == metadata.get(key) for key in TOTALS):
        return True
    if not any(file_faults(place, own)):  # it has sums, which the entries do not show
        return True
    if not is_foreign(place, own):
        verify(place)  # raises, and names every fault
    return False


def _has_size(path: Path, source: UploadSource) -> bool:
    try:
        return status_below(path, source.below or path.parent).st_size == source.size
    except OSError:
        return False


def _changing(path: Path) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{path} changed during the upload; wait until no process writes to the dataset"
    )


def _namespaces(dataset_id: str, place: Path) -> dict[str, bytes]:
    """Return the metadata of a dataset's namespaces; empty ones if it is not in the local root.

    A dataset elsewhere has chosen its id, which says nothing about the folders above it.
    """
    root = root_of(place)
    namespaces = namespace_hierarchy(parse_dataset_id(dataset_id)[0])
    if root is None or root / dataset_id != place:
        return dict.fromkeys(namespaces, b"{}")
    found = {}
    for namespace in namespaces:
        path = root / namespace / NAMESPACE_METADATA
        try:
            content = read_whole(path, root)
            json_object(content)
            found[namespace] = content
        except LinkError:
            raise
        except (OSError, ValueError):
            found[namespace] = b"{}"
    return found


def _compare(remote: Remote, upload: Upload, content: str, metadata: bytes) -> str | None:
    """Compare an upload with what the remote has under this id; None if it has no dataset.

    Returns:
        ``same``, or a sentence about differences outside of the content.

    Raises:
        DatasetExistsError: the id has other content, is a namespace, or lies in a dataset.
        CorruptDatasetError: the published dataset lacks a file, or has another in its place.
    """
    place = upload.dataset_id
    there = remote.retried(partial(remote.files, place))
    if METADATA not in there:
        _refuse_nesting(remote, place, there)
        return None
    published = _read_published(remote, place, METADATA)
    if published == upload.metadata:
        _check_whole(remote, place, upload.files, there)
        return "same"
    named = manifest_named(published)
    if named is None:  # published by real Minari, without a manifest
        if unnamed(published) == metadata and _same_files(remote, upload, there):
            return "same"
    else:
        manifest = _read_published(remote, place, MANIFEST)
        is_whole = hashlib.sha256(manifest).hexdigest() == named
        if is_whole and (known := parse_manifest(manifest)).get("content_sha256") == content:
            entries = entries_of(known, card=True).items()
            files = {name: RemoteFile(e["size"], e.get("sha256")) for name, e in entries}
            del files[METADATA]  # it also names the manifest
            _check_whole(remote, place, files, there)
            own = json.loads(upload.files[MANIFEST].read())
            if identity_of(known) == identity_of(own):
                if has_same_card(remote, upload, known.get(CARD, {}), own.get(CARD, {})):
                    return "same"
                other = "with another card" if known.get(CARD) else "without a card"
                return (
                    f"{remote.address} has {place} {other}; it is left unchanged, as what is "
                    "published stays. Publish a new version to show this card"
                )
            return (
                f"{remote.address} has {place} with the same content but other metadata "
                f"({_differing(unnamed(published), metadata)}); it is left unchanged"
            )
    raise other_content(remote, place)


def _read_published(remote: Remote, dataset_id: str, name: str) -> bytes:
    try:
        return read_small(remote, f"{dataset_id}/{name}")
    except CorruptDatasetError as error:
        raise CorruptDatasetError(
            f"{dataset_id} in {remote.address} is damaged: {error}"
        ) from error


def _check_whole(
    remote: Remote,
    place: str,
    files: Mapping[str, UploadSource] | Mapping[str, RemoteFile],
    there: Mapping[str, RemoteFile],
) -> None:
    """Raise an error if a remote's listing shows a published file as missing or changed."""
    for name, file in files.items():
        found = there.get(name)
        if (
            found is None
            or found.size != file.size
            or (found.sha256 and file.sha256 and found.sha256 != file.sha256)
        ):
            raise CorruptDatasetError(
                f"{place} in {remote.address} is damaged: {name} "
                f"is {'missing' if found is None else 'different'}; remove the dataset there and "
                f"upload it again, or upload it under another version"
            )


def _refuse_nesting(remote: Remote, dataset_id: str, there: Collection[str]) -> None:
    """Raise an error for a dataset inside another, which no local root could hold."""
    inner = next((name for name in there if name.endswith(f"/{METADATA}")), None)
    if inner is not None:
        raise DatasetExistsError(
            f"{dataset_id} already exists in {remote.address} as the namespace of "
            f"{dataset_id}/{inner.removesuffix(f'/{METADATA}')}; upload it under another id"
        )
    for parent in namespace_hierarchy(parse_dataset_id(dataset_id)[0]):
        is_id = re.search(r"-v\d+$", parent)
        if is_id and METADATA in remote.retried(partial(remote.files, parent)):
            raise DatasetExistsError(
                f"{parent} already exists in {remote.address} as a dataset, so it cannot be the "
                f"namespace of {dataset_id}; upload it under another id"
            )


def _same_files(remote: Remote, upload: Upload, there: Mapping[str, RemoteFile]) -> bool:
    for name, source in upload.files.items():
        if name == MANIFEST or name.startswith(f"{CARD}/"):
            continue
        found = there.get(name)
        if found is None or found.size != source.size:
            return False
        path = f"{upload.dataset_id}/{name}"
        if (found.sha256 or remote_sha256(remote, path, source.size)) != source.sha256:
            return False
    return True


def _differing(there: bytes, here: bytes) -> str:
    """Return the names of the keys that differ between two metadata files."""
    try:
        old, new = json_object(there), json_object(here)
    except ValueError:
        return "damaged"
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return ", ".join(keys) or "formatting"
