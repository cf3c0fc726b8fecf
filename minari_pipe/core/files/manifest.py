"""Write, read and verify ``manifest.json``, which names the files of a dataset and their hashes.

The manifest lies beside ``data/``, where real Minari does not look; so do ``policies/``, with the
checkpoints that a pipeline made the data with, and ``card/`` with a card, if there is one::

    {"format": 2, "total_episodes": ..., "total_steps": ...,
     "data": {"main_data.hdf5": {"size": ..., "xxh3_128": ..., "pieces": [...]},
              "metadata.json": {"size": ..., "xxh3_128": ...}, ...},
     "policies": {"policy.zip": {...}, ...},
     "card": {},
     "content_sha256": ...}

Sections name every file by its path in their folder, except hidden ones; the entries are defined in
:mod:`minari_pipe.core.files.checksums`. The manifest is written with the dataset, and every change
by this library updates it; a change by another program makes it wrong. In a pipeline or a remote it
also has the sha256 of every file and the ``content_sha256``, which the first change removes.

The card describes the dataset and is not part of it: a changed or missing card only causes a
warning, the dataset is intact, and two datasets that differ in their cards are the same version.
Unknown keys are ignored; a change in the meaning of known keys requires another ``format``, which
is refused.

Format 1 has no ``format`` and one section ``files``, with paths such as ``data/metadata.json``. A
change keeps that format, and :func:`~minari_pipe.core.files.manifest_update.upgrade` rewrites it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from stat import S_ISREG
from typing import Any

from minari_pipe.core.files.atomic import (
    MANIFEST,
    current,
    files_left,
    is_manifest,
    read_text,
    read_whole,
)
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.files.checksums import (
    content_differs,
    ends_with_zeros,
    entry_of,
    entry_of_bytes,
    is_entry,
    is_old_entry,
    size_of,
)
from minari_pipe.core.files.links import PathLike, files_below, refuse_links, status_below
from minari_pipe.core.files.names import is_file_name, is_plain_path
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidMetadataError,
    UnsupportedVersionError,
    printable,
)

#: format of the manifests that are written
FORMAT = 2

#: folder beside ``data/`` for the checkpoints that a dataset was made with, plain files
POLICIES = "policies"

#: folder beside ``data/`` for files that describe the dataset to people
CARD = "card"

#: how the name of a folder beside ``data/`` begins in which a card is made
UNFINISHED_CARD = ".card-"

#: first key of published metadata: the sha256 of the manifest, which names the metadata
NAME_KEY = "manifest_sha256"

#: message about a manifest for which :func:`is_order_blind` is true
ORDER_BLIND = (
    f"its {MANIFEST} has format 1, whose checksums of large files do not detect parts that changed "
    "places; to write one that does, run: minari-pipe validate ID --upgrade"
)

_SECTIONS = ("data", POLICIES, CARD)
#: ending of files that can grow where they are
_GROWING = ".hdf5"
#: keys of the totals, in a manifest and in the metadata
TOTALS = ("total_episodes", "total_steps")
_METADATA = "data/metadata.json"
_NAMED = re.compile(rb'(\s*\{)"manifest_sha256": "([0-9a-f]{64})", ')


def describe(dataset: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a finished dataset, with the sha256 of every file.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: its metadata, for the totals.
    """
    entries = {name: entry_of(dataset / name, sha256=True) for name in files_of(dataset)}
    return compose(metadata, entries)


def compose(
    metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a manifest of format 2.

    Args:
        metadata: the dataset's metadata, for the totals.
        entries: an entry for each file, by names such as ``data/main_data.hdf5``.

    Raises:
        InvalidMetadataError: the metadata lacks a total.
    """
    for key in TOTALS:
        if not isinstance(metadata.get(key), Integral):
            raise InvalidMetadataError(
                f"metadata {key!r} is {metadata.get(key)!r:.80}; expected a whole number"
            )
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name in sorted(entries):
        section, _, rest = name.partition("/")
        sections[section][rest] = entries[name]
    return {"format": FORMAT, **{key: metadata[key] for key in TOTALS}, **sections}


def entries_of(content: Mapping[str, Any], *, card: bool = False) -> dict[str, dict[str, Any]]:
    """Return a manifest's entries of files, by names such as ``data/main_data.hdf5``.

    Args:
        content: the manifest, of any format.
        card: include the files of the card.
    """
    if "format" not in content:
        return dict(content.get("files", {}))
    return {
        f"{section}/{name}": entry
        for section in _SECTIONS
        if card or section != CARD
        for name, entry in content.get(section, {}).items()
    }


def entry_named(content: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a manifest's entry of a file, such as ``data/main_data.hdf5``, or None.

    Example:
        >>> entry_named({"format": 2, "data": {"a": {"size": 1}}}, "data/a")
        {'size': 1}
    """
    if "format" not in content:
        return content.get("files", {}).get(name)
    section, _, rest = name.partition("/")
    return content.get(section, {}).get(rest)


def identity_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifests of one published version share, whatever their format.

    This is a manifest of format 1 with the sha256s, as the record of a release holds it.
    """
    entries = entries_of(content)
    return {
        **{key: content.get(key) for key in ("content_sha256", *TOTALS)},
        "files": {
            name: {"sha256": entries[name].get("sha256"), "size": entries[name]["size"]}
            for name in sorted(entries)
        },
    }


def is_order_blind(content: Mapping[str, Any]) -> bool:
    """Return whether a manifest, of format 1, has only order-independent sums for some file."""
    return any("sums" in entry and "sha256" not in entry for entry in entries_of(content).values())


def write_manifest(
    dataset: Path, metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the manifest of a dataset that was just written.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: its metadata, for the totals.
        entries: the entries that are known already, by paths in ``data/``.
    """
    files = {f"data/{name}": entry for name, entry in entries.items()}
    dump(compose(metadata, files), dataset / MANIFEST)


def ensure_manifest(dataset: Path) -> None:
    """Write the manifest of an unfinished dataset if it has none and its data has metadata."""
    if (dataset / MANIFEST).exists():
        return
    data = dataset / "data"
    try:
        metadata = json.loads(read_text(data / "metadata.json"))
    except FileNotFoundError:
        return
    if metadata.keys() >= set(TOTALS):
        write_manifest(
            dataset, metadata, {name: entry_of(data / name) for name in files_below(data)}
        )


def read_manifest(dataset: Path) -> dict[str, Any] | None:
    """Return the manifest in the folder ``dataset``, or ``None`` if there is none.

    Raises:
        CorruptDatasetError: it cannot be read, or is damaged.
        LinkError: it is a symlink.
        UnsupportedVersionError: it has a format of a later version of this package.
    """
    path = dataset / MANIFEST
    try:
        text = current(path, read_text, directory=dataset / "data")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptDatasetError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{path} is not a manifest: {error}") from error
    return parsed(text, str(path))


def readable_manifest(dataset: Path) -> dict[str, Any] | None:
    """Return the manifest in the folder ``dataset``, or ``None`` if it is missing or damaged.

    Raises:
        UnsupportedVersionError: it has a format of a later version of this package.
    """
    with suppress(CorruptDatasetError):
        return read_manifest(dataset)
    return None


def parsed(text: str | bytes, name: str) -> dict[str, Any]:
    """Parse a manifest; check the type of every field, and that paths stay in the dataset.

    Args:
        text: JSON.
        name: name of the manifest, for the message.

    Raises:
        CorruptDatasetError: it is not a manifest, or is damaged.
        UnsupportedVersionError: it has a format of a later version of this package.

    Example:
        >>> parsed('{"format": 3, "pages": {}}', "manifest.json")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.UnsupportedVersionError: manifest.json has format 3, but this version ...
    """
    try:
        content = json_object(text)
    except ValueError:
        content = {}
    if not is_manifest(content):
        raise CorruptDatasetError(f"{name} is not a manifest")
    if (fault := _fault(content)) is not None:
        raise CorruptDatasetError(f"{name} is damaged: {fault}")
    if content.get("format", 1) > FORMAT:
        raise UnsupportedVersionError(
            f"{name} has format {content['format']}, but this version of minari_pipe only reads "
            f"formats up to {FORMAT}; upgrade it: pip install --upgrade minari_pipe"
        )
    return content


def _fault(content: dict[str, Any]) -> str | None:
    """Return what is wrong with a manifest; None if nothing is, or if its format is unknown."""
    number = content.get("format", 1)
    if type(number) is not int or number < 1 or (number == 1 and "format" in content):
        return f"`format` is {number!r:.40}, expected {FORMAT}"
    if number > FORMAT:
        return None
    for key in TOTALS:
        if type(content.get(key, 0)) is not int or content.get(key, 0) < 0:
            return f"`{key}` is {content[key]!r:.40}, expected a non-negative integer"
    digest = content.get("content_sha256", "0" * 64)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return f"`content_sha256` is {digest!r:.40}, expected 64 hexadecimal digits"
    sections = _SECTIONS if number == FORMAT else ("files",)
    for section in sections:
        if not isinstance(content.get(section, {}), dict):
            return f"`{section}` is {content[section]!r:.40}, expected an object of files"
    if number == FORMAT and "data" not in content:
        return "it has no `data`"
    is_one = is_entry if number == FORMAT else is_old_entry
    for name, entry in entries_of(content, card=True).items():
        if not _is_name(name):
            return (
                f"it names {name!r:.200}, which is not a valid path; its files must be in "
                "data/, policies/ or card/"
            )
        if not is_one(entry) or ("room" in entry and not name.endswith(_GROWING)):
            return f"its entry for {name!r:.200} is not a size with checksums: {entry!r:.100}"
    return None


def verify(dataset: Path, data: PathLike | None = None) -> None:
    """Compare the files of a dataset with its manifest.

    Warns about a card that differs from the manifest, and about sums that ignore order.

    Args:
        dataset: the folder that holds ``data/``.
        data: ``data/`` as it was opened for reading.

    Raises:
        CorruptDatasetError: there is no manifest, it is damaged, or a file differs, is missing or
            is not in the manifest; the message names each of them.
        DatasetNotFoundError: the dataset does not exist, or not any more.
        UnsupportedVersionError: the manifest has a format of a later version of this package.
    """
    content = read_manifest(dataset)
    if content is None:
        if not os.path.lexists(dataset / "data"):
            raise DatasetNotFoundError(
                f"{dataset} does not exist any more; it was deleted or moved"
            )
        raise CorruptDatasetError(
            f"{dataset} cannot be verified: {dataset / MANIFEST} does not exist. Datasets made by "
            "minari_pipe have one; load this one without verify=True"
        )
    faults = [f"{name[:300]} {fault}" for name, fault in file_faults(dataset, content, data=data)]
    if not faults:
        for name, fault in card_faults(dataset, content):
            warnings.warn(
                f"{dataset}: {printable(name[:300])} {fault}. The card describes the dataset but "
                "is not part of it; the data match the manifest",
                stacklevel=3,
            )
        if is_order_blind(content):
            warnings.warn(f"{dataset}: {ORDER_BLIND}", stacklevel=3)
        return None
    if readable_manifest(dataset) != content:  # it is appended to or deleted meanwhile
        return verify(dataset, data)
    listed = "; ".join(faults)
    if is_foreign(dataset, content):
        raise CorruptDatasetError(
            f"{dataset} was changed since it was finished, by a program that does not update its "
            f"{MANIFEST}: {listed}. Load it without verify=True, or combine it into a new version"
        )
    raise CorruptDatasetError(
        f"{dataset} does not match its {MANIFEST}: {listed}. Restore the files, or delete the "
        f"dataset and download it again; if you changed them on purpose, delete {MANIFEST}"
    )


def file_faults(
    dataset: Path,
    content: Mapping[str, Any],
    seen: dict[str, list[Any]] | None = None,
    *,
    data: PathLike | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` for the dataset's files that contradict the manifest.

    If only the totals differ from those in the metadata, the manifest is what is wrong.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest, as it was read.
        seen: state of an earlier call, updated here: files that look untouched since then are not
            hashed again.
        data: ``data/`` as it was opened for reading.
    """
    expected = entries_of(content)
    found = [name for name in files_of(dataset) if not name.startswith(f"{CARD}/")]
    found += [f"data/{name}" for name in files_left(dataset / "data")]  # readers use these
    faulty = set()
    for name, fault in entry_faults(dataset, expected, found, {} if seen is None else seen, data):
        faulty.add(name)
        yield name, fault
    if _METADATA not in faulty:  # else the totals may differ because the metadata do
        for key, (ours, theirs) in _differing_totals(dataset, content).items():
            yield (
                MANIFEST,
                f"has {key} {ours}, but {_METADATA}, which it matches, has {theirs!r:.40}",
            )


def card_faults(dataset: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` for the files of the card, which is not part of the dataset.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest, as it was read.
    """
    entries = entries_of(content, card=True)
    expected = {name: entry for name, entry in entries.items() if name.startswith(f"{CARD}/")}
    found = (name for name in files_of(dataset) if name.startswith(f"{CARD}/"))
    yield from entry_faults(dataset, expected, found, {})


def entry_faults(
    dataset: Path,
    entries: Mapping[str, dict[str, Any]],
    there: Iterable[str],
    stamps: dict[str, list[Any]],
    data: PathLike | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` for files that differ from their entries, or have none.

    Args:
        dataset: the folder that holds ``data/``.
        entries: the entries, by names such as ``data/metadata.json``.
        there: names of existing files.
        stamps: see :func:`file_faults`.
        data: ``data/`` as it was opened for reading.
    """
    data = dataset / "data" if data is None else data
    for name, expected in entries.items():
        below = data if name.startswith("data/") else dataset

        def fault(
            path: Path,
            name: str = name,
            expected: dict[str, Any] = expected,
            below: PathLike = below,
        ) -> str | None:
            # A write sets mtime, and setting mtime back sets ctime.
            stat = status_below(path, below)
            stamp = [
                *(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns),
                next(expected[key] for key in ("sha256", "xxh3_128", "sums") if key in expected),
            ]
            if not S_ISREG(stat.st_mode):
                return "is not a regular file"
            if name == _METADATA and _is_published(path, expected):
                return None
            more = stat.st_size - size_of(expected)
            may_end_later = more > 0 and name.endswith(_GROWING)
            if more and not (may_end_later and ends_with_zeros(path, expected, below)):
                return f"has {stat.st_size} bytes, not {size_of(expected)}"
            if stamps.get(name) != stamp:
                if (what := content_differs(path, expected, below)) is not None:
                    return f"has different content ({what})"
                stamps[name] = stamp
            return None

        try:
            found = current(dataset / name, fault, directory=dataset / "data")
        except (FileNotFoundError, NotADirectoryError):
            found = "is missing"
        except CorruptDatasetError as error:
            found = f"cannot be read: {error}"
        except OSError as error:
            found = f"cannot be read: {error.strerror}"
        if found is not None:
            yield name, found
    for name in sorted(set(there) - set(entries)):
        yield name, "is not in the manifest"


def manifest_named(metadata: bytes) -> str | None:
    """Return the sha256 in published metadata, or None if absent, as in real Minari's metadata.

    Example:
        >>> manifest_named(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')[:4]
        '0000'
    """
    found = _NAMED.match(metadata)
    return found[2].decode() if found else None


def unnamed(metadata: bytes) -> bytes:
    """Return the dataset's own metadata: what was published, without the sha256 of the manifest.

    Example:
        >>> unnamed(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')
        b'{"total_steps": 3}'
    """
    return _NAMED.sub(rb"\1", metadata, count=1) if _NAMED.match(metadata) else metadata


def _is_published(path: Path, expected: Mapping[str, Any]) -> bool:
    """Return whether metadata is the expected one in its published form, as a remote has it.

    A directory that is both a remote and a root has this form, and so has data that real Minari
    fetched.
    """
    content = read_whole(path)
    own = unnamed(content)
    if own == content or len(own) != expected["size"]:
        return False
    if "sha256" in expected:
        return hashlib.sha256(own).hexdigest() == expected["sha256"]
    return entry_of_bytes([own])["xxh3_128"] == expected.get("xxh3_128")


def changed_files(
    dataset: Path, content: Mapping[str, Any], seen: dict[str, list[Any]] | None = None
) -> list[str]:
    """Return the names of a dataset's files that differ from ``content`` or are not in it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: see :func:`file_faults`.
    """
    return [name for name, _ in file_faults(dataset, content, seen)]


def dump(content: dict[str, Any], path: Path) -> None:
    """Write a manifest to a new file."""
    write_new(path, (json.dumps(content) + "\n").encode())


def files_of(dataset: Path) -> Iterator[str]:
    """Yield the paths of a dataset's files, those in ``data/``, ``policies/`` and ``card/``.

    Raises:
        LinkError: a file or a folder is a symlink.
    """
    for folder in ("data", CARD, POLICIES):
        if folder != "data":  # the user may have made data/ a symlink
            refuse_links(dataset / folder, dataset)
        if (dataset / folder).is_file():  # no manifest names such a file
            yield folder
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in files_below(dataset / folder):
                # A folder in policies/ is a dataset or a namespace, with this folder as namespace.
                if folder != POLICIES or "/" not in name:
                    yield f"{folder}/{name}"


def is_foreign(dataset: Path, content: Mapping[str, Any]) -> bool:
    """Return whether another program has changed a dataset, so that its manifest does not count.

    Then the metadata have other totals than the manifest, and differ from their entry. If they
    match their entry, the manifest is damaged. Damaged metadata pass as the dataset's own.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
    """
    if not _differing_totals(dataset, content):
        return False
    entry = entries_of(content).get(_METADATA)
    return entry is None or any(entry_faults(dataset, {_METADATA: entry}, [], {}))


def _differing_totals(dataset: Path, content: Mapping[str, Any]) -> dict[str, tuple[int, Any]]:
    """Return the totals of manifest and metadata, by key, where they differ."""
    try:
        metadata = json_object(current(dataset / _METADATA, read_text))
    except (OSError, ValueError):
        return {}
    return {
        key: (content[key], metadata.get(key))
        for key in TOTALS
        if content.get(key, metadata.get(key)) != metadata.get(key)
    }


def _is_name(name: str) -> bool:
    if is_plain_path(name):
        return True
    folder, *rest = name.split("/")
    if folder not in _SECTIONS or not rest or (folder == POLICIES and len(rest) > 1):
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return all(map(is_file_name, rest))
