"""What the files of a dataset are, told by its ``manifest.json``.

The manifest lies beside ``data/``, where real Minari does not look; so do the checkpoints in
``policies/`` with which a pipeline made the data, and a card in ``card/``, if there is one::

    {"format": 2, "total_episodes": ..., "total_steps": ...,
     "data": {"main_data.hdf5": {"size": ..., "xxh3_128": ..., "pieces": [...]},
              "metadata.json": {"size": ..., "xxh3_128": ...}, ...},
     "policies": {"policy.zip": {...}, ...},
     "card": {},
     "content_sha256": ...}

Sections name every file by its path in their folder, but for hidden ones; what an entry says is
defined in :mod:`minari_pipe.core.files.checksums`. The manifest is written with the dataset and
kept in step by every change that this library makes; another program's change makes it untrue.
That of a pipeline, or of a remote, has the sha256 of every file and the ``content_sha256`` besides,
which goes with the first change.

The card describes the dataset and is no part of it: a card that is changed or missing is told in a
warning, the dataset is whole, and two datasets with other cards are the same version. Keys that are
not known here are ignored; what would change the meaning of the others is another ``format``, which
is refused.

Format 1 has no ``format`` and one section ``files``, with paths such as ``data/metadata.json``. A
change leaves it in that format, and :func:`upgrade` rewrites it.
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
    is_file_name,
    is_manifest,
    read_text,
    sha256_file,
    staged_manifest,
    transaction,
)
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.files.checksums import (
    content_differs,
    entry_of,
    entry_of_bytes,
    is_entry,
    is_old_entry,
)
from minari_pipe.core.files.links import PathLike, files_below, refuse_links, status_below
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidMetadataError,
    LinkError,
    UnsupportedVersionError,
)

FORMAT = 2
"""The format of the manifests that are written."""

POLICIES = "policies"
"""Folder beside ``data/`` for the checkpoints that a dataset was made with, plain files."""

CARD = "card"
"""Folder beside ``data/`` for what describes the dataset to people."""

NAME_KEY = "manifest_sha256"
"""The first key of metadata that were published: the sha256 of the manifest, which names theirs."""

ORDER_BLIND = (
    f"its {MANIFEST} is of format 1, whose sums of large files do not see whether parts of them "
    "changed places; minari-pipe validate ID --upgrade writes one that does"
)
"""What is said of a manifest for which :func:`is_order_blind`."""

_SECTIONS = ("data", POLICIES, CARD)
_TOTALS = ("total_episodes", "total_steps")
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
    """Return a manifest.

    Args:
        metadata: of the dataset, for the totals.
        entries: what its files are, by names such as ``data/main_data.hdf5``.

    Raises:
        InvalidMetadataError: the metadata lack a total.
    """
    for key in _TOTALS:
        if not isinstance(metadata.get(key), Integral):
            raise InvalidMetadataError(
                f"metadata {key!r} is {metadata.get(key)!r:.80}; expected a whole number"
            )
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name in sorted(entries):
        section, _, rest = name.partition("/")
        sections[section][rest] = entries[name]
    return {"format": FORMAT, **{key: metadata[key] for key in _TOTALS}, **sections}


def entries_of(content: Mapping[str, Any], *, card: bool = False) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of the files, by names such as ``data/main_data.hdf5``.

    Args:
        content: the manifest, of any format.
        card: of those of the card, too.
    """
    if "format" not in content:
        return dict(content.get("files", {}))
    return {
        f"{section}/{name}": entry
        for section in _SECTIONS
        if card or section != CARD
        for name, entry in content.get(section, {}).items()
    }


def identity_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return in what the manifests of one published version agree, whatever their format.

    It is a manifest of format 1 with the sha256s, and what the record of a release holds.
    """
    entries = entries_of(content)
    return {
        **{key: content.get(key) for key in ("content_sha256", *_TOTALS)},
        "files": {
            name: {"sha256": entries[name].get("sha256"), "size": entries[name]["size"]}
            for name in sorted(entries)
        },
    }


def is_order_blind(content: Mapping[str, Any]) -> bool:
    """Whether a manifest, of format 1, has sums that do not see order, not sha256s only."""
    return any("sums" in entry and "sha256" not in entry for entry in entries_of(content).values())


def write_manifest(
    dataset: Path, metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the manifest of a dataset that was just written.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: its metadata, for the totals.
        entries: what is known of its files, by their paths in ``data/``.
    """
    files = {f"data/{name}": entry for name, entry in entries.items()}
    _dump(compose(metadata, files), dataset / MANIFEST)


def ensure_manifest(dataset: Path) -> None:
    """Write the manifest of a dataset in the making if it has none and its data have metadata."""
    if (dataset / MANIFEST).exists():
        return
    data = dataset / "data"
    try:
        metadata = json.loads((data / "metadata.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    if metadata.keys() >= set(_TOTALS):
        write_manifest(
            dataset, metadata, {name: entry_of(data / name) for name in files_below(data)}
        )


def stage_manifest(
    data: Path, stage: Path, metadata: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Let a change of a dataset's files change its manifest with them, if it has one.

    Args:
        data: the directory of the data.
        stage: the new versions of files, see :func:`minari_pipe.core.files.atomic.transaction`.
        metadata: what the change makes of the metadata.
        entries: what is known of new versions already, by their paths in the stage.

    Raises:
        UnsupportedVersionError: the manifest has a format that cannot be kept in step.
    """
    content = readable_manifest(data.parent) if data.name == "data" else None
    if content is None or not totals_agree(data, content):
        return  # of a change by another program, of whose files nothing is known
    if content.get("format") == FORMAT:
        new = {name: entries.get(name) or entry_of(stage / name) for name in files_below(stage)}
        content["data"] = dict(sorted((content["data"] | new).items()))
    else:
        new = {
            f"data/{name}": {
                "sha256": sha256_file(stage / name),
                "size": os.path.getsize(stage / name),
            }
            for name in files_below(stage)
        }
        content["files"] = dict(sorted((content["files"] | new).items()))
    content.pop("content_sha256", None)
    _dump({**content, **{key: metadata[key] for key in _TOTALS}}, staged_manifest(stage))


def pieces_named(data: Path, name: str) -> list[str] | None:
    """Return the digests of a file's pieces, if a manifest says them of a file of its size.

    Args:
        data: the directory of the data, in a transaction.
        name: of the file in it.
    """
    content = readable_manifest(data.parent) if data.name == "data" else None
    if content is None or content.get("format") != FORMAT or not totals_agree(data, content):
        return None
    entry = content["data"].get(name, {})
    if entry.get("size") != os.path.getsize(data / name):
        return None
    pieces: list[str] = entry.get("pieces", [entry["xxh3_128"]])
    return pieces


def read_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest in the folder ``dataset``, ``None`` if there is none.

    Raises:
        CorruptDatasetError: it cannot be read, or is damaged.
        LinkError: it is a link.
        UnsupportedVersionError: it has a format of a later version of this package.
    """
    path = dataset / MANIFEST
    try:
        text = current(path, read_text, directory=dataset / "data")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LinkError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{path} is no manifest: {error}") from error
    return parsed(text, str(path))


def readable_manifest(dataset: Path) -> dict[str, Any] | None:
    """The manifest in the folder ``dataset``, ``None`` if there is none or it is damaged.

    Raises:
        UnsupportedVersionError: it has a format of a later version of this package.
    """
    with suppress(CorruptDatasetError):
        return read_manifest(dataset)
    return None


def parsed(text: str | bytes, name: str) -> dict[str, Any]:
    """Return a manifest whose every field is of its type and every path in the dataset's folder.

    Args:
        text: JSON.
        name: of the manifest, for the message.

    Raises:
        CorruptDatasetError: it is none, or is damaged.
        UnsupportedVersionError: it has a format of a later version of this package.

    Example:
        >>> parsed('{"format": 3, "pages": {}}', "manifest.json")
        Traceback (most recent call last):
        ...
        minari_pipe.errors.UnsupportedVersionError: manifest.json has format 3, and this version ...
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not is_manifest(content):
        raise CorruptDatasetError(f"{name} is no manifest")
    if (fault := _fault(content)) is not None:
        raise CorruptDatasetError(f"{name} is damaged: {fault}")
    if content.get("format", 1) > FORMAT:
        raise UnsupportedVersionError(
            f"{name} has format {content['format']}, and this version of minari_pipe knows those "
            f"up to {FORMAT}; install a newer one: pip install --upgrade minari_pipe"
        )
    return content


def _fault(content: dict[str, Any]) -> str | None:
    """Return what is wrong with a manifest, None if nothing is, or if its format is not known."""
    number = content.get("format", 1)
    if type(number) is not int or number < 1 or (number == 1 and "format" in content):
        return f"`format` is {number!r:.40}, expected {FORMAT}"
    if number > FORMAT:
        return None
    for key in _TOTALS:
        if type(content.get(key, 0)) is not int or content.get(key, 0) < 0:
            return f"`{key}` is {content[key]!r:.40}, expected a number that is not negative"
    digest = content.get("content_sha256", "0" * 64)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return f"`content_sha256` is {digest!r:.40}, expected 64 hexadecimal digits"
    sections = _SECTIONS if number == FORMAT else ("files",)
    for section in sections:
        if not isinstance(content.get(section, {}), dict):
            return f"`{section}` is {content[section]!r:.40}, expected the files by their names"
    if number == FORMAT and "data" not in content:
        return "it has no `data`"
    is_one = is_entry if number == FORMAT else is_old_entry
    for name, entry in entries_of(content, card=True).items():
        if not _is_name(name):
            return (
                f"it names {name!r:.200}, which is no file; its files must have paths in "
                "data/, policies/ or card/"
            )
        if not is_one(entry):
            return f"what it says of {name!r:.200} is no size with digests: {entry!r:.100}"
    return None


def verify(dataset: Path, data: PathLike | None = None) -> None:
    """Compare the files of a dataset with its manifest.

    Warns of a card that is not what the manifest names, and of sums that do not see order.

    Args:
        dataset: the folder that holds ``data/``.
        data: that, as it was opened to be read.

    Raises:
        CorruptDatasetError: there is no manifest, it is damaged, or it names every file that
            differs, is missing or is not in the manifest.
        DatasetNotFoundError: the dataset is not there, or not any more.
        UnsupportedVersionError: the manifest has a format of a later version of this package.
    """
    content = read_manifest(dataset)
    if content is None:
        if not os.path.lexists(dataset / "data"):
            raise DatasetNotFoundError(f"{dataset} is not there any more; was it deleted?")
        raise CorruptDatasetError(
            f"{dataset} cannot be verified: {dataset / MANIFEST} does not exist. Datasets made by "
            "minari_pipe have one; load this one without verify=True"
        )
    faults = [f"{name[:300]} {fault}" for name, fault in file_faults(dataset, content, data=data)]
    if not faults:
        for name, fault in card_faults(dataset, content):
            warnings.warn(
                f"{dataset}: {name[:300]} {fault}. The card describes the dataset and is no part "
                "of it; the data are what the manifest names",
                stacklevel=3,
            )
        if is_order_blind(content):
            warnings.warn(f"{dataset}: {ORDER_BLIND}", stacklevel=3)
        return None
    if readable_manifest(dataset) != content:  # somebody appends, or deletes it, meanwhile
        return verify(dataset, data)
    told = "; ".join(faults)
    if not totals_agree(dataset / "data", content):
        raise CorruptDatasetError(
            f"{dataset} was changed since it was finished, by a program that does not keep its "
            f"{MANIFEST}: {told}. Load it without verify=True, or combine it into a new version"
        )
    raise CorruptDatasetError(
        f"{dataset} is not what its {MANIFEST} names: {told}. Restore the files, or delete the "
        "dataset and fetch it again"
    )


def file_faults(
    dataset: Path,
    content: Mapping[str, Any],
    seen: dict[str, list[Any]] | None = None,
    *,
    data: PathLike | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` of the dataset's files that the manifest contradicts.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest, as it was read.
        seen: what an earlier call left here: files that look untouched since are not hashed
            again. Updated.
        data: ``data/`` as it was opened to be read.
    """
    expected = entries_of(content)
    found = [name for name in files_of(dataset) if not name.startswith(f"{CARD}/")]
    found += [f"data/{name}" for name in files_left(dataset / "data")]  # which readers take
    yield from _faults(dataset, expected, found, {} if seen is None else seen, data)


def card_faults(dataset: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(name, what is wrong)`` of the files of the card, which is no part of the dataset.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest, as it was read.
    """
    entries = entries_of(content, card=True)
    expected = {name: entry for name, entry in entries.items() if name.startswith(f"{CARD}/")}
    found = (name for name in files_of(dataset) if name.startswith(f"{CARD}/"))
    yield from _faults(dataset, expected, found, {})


def _faults(
    dataset: Path,
    entries: Mapping[str, dict[str, Any]],
    there: Iterable[str],
    stamps: dict[str, list[Any]],
    data: PathLike | None = None,
) -> Iterator[tuple[str, str]]:
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
                return "is no file"
            if name == _METADATA and _is_published(path, expected):
                return None
            if stat.st_size != expected["size"]:
                return f"has {stat.st_size} bytes, not {expected['size']}"
            if stamps.get(name) != stamp:
                if (what := content_differs(path, expected, below)) is not None:
                    return f"has other content ({what})"
                stamps[name] = stamp
            return None

        try:
            found = current(dataset / name, fault, directory=dataset / "data")
        except (FileNotFoundError, NotADirectoryError):
            found = "is missing"
        except LinkError as error:
            found = f"cannot be read: {error}"
        except OSError as error:
            found = f"cannot be read: {error.strerror}"
        if found is not None:
            yield name, found
    for name in sorted(set(there) - set(entries)):
        yield name, "is not in the manifest"


def upgrade(dataset: Path, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write a manifest of format 2 for one of format 1, after the files were compared with it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest, whose ``content_sha256`` is that of the data.
        metadata: of the dataset, for the totals.

    Raises:
        CorruptDatasetError: the files are not what it names, or it has changed meanwhile.
    """
    with transaction(dataset / "data") as stage:
        if read_manifest(dataset) != content:
            raise CorruptDatasetError(
                f"{dataset} changes while its {MANIFEST} is rewritten; run the command again"
            )
        if any(file_faults(dataset, content)):
            verify(dataset)  # raises, and says it all
        is_published = "content_sha256" in content
        entries = {
            name: entry_of(dataset / name, sha256=is_published) for name in entries_of(content)
        }
        new = compose(metadata, entries)
        if is_published:
            new["content_sha256"] = content["content_sha256"]
        _dump(new, staged_manifest(stage))


def manifest_named(metadata: bytes) -> str | None:
    """Return the sha256 that published metadata name, None if they name none, as real Minari's.

    Example:
        >>> manifest_named(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')[:4]
        '0000'
    """
    found = _NAMED.match(metadata)
    return found[2].decode() if found else None


def unnamed(metadata: bytes) -> bytes:
    """Return the dataset's own metadata: what was published, without the name of the manifest.

    Example:
        >>> unnamed(b'{"manifest_sha256": "' + b"0" * 64 + b'", "total_steps": 3}')
        b'{"total_steps": 3}'
    """
    return _NAMED.sub(rb"\1", metadata, count=1) if _NAMED.match(metadata) else metadata


def _is_published(path: Path, expected: Mapping[str, Any]) -> bool:
    """Whether metadata are the expected ones, as a remote has them.

    They are so in a directory that is a remote and a root, and where real Minari has fetched them.
    """
    content = path.read_bytes()
    own = unnamed(content)
    if own == content or len(own) != expected["size"]:
        return False
    if "sha256" in expected:
        return hashlib.sha256(own).hexdigest() == expected["sha256"]
    return entry_of_bytes([own])["xxh3_128"] == expected.get("xxh3_128")


def changed_files(
    dataset: Path, content: Mapping[str, Any], seen: dict[str, list[Any]] | None = None
) -> list[str]:
    """Names of a dataset's files that are not what ``content`` names, or not in it.

    Args:
        dataset: the folder that holds ``data/``.
        content: the manifest.
        seen: see :func:`file_faults`.
    """
    return [name for name, _ in file_faults(dataset, content, seen)]


def _dump(content: dict[str, Any], path: Path) -> None:
    write_new(path, (json.dumps(content) + "\n").encode())


def files_of(dataset: Path) -> Iterator[str]:
    """Yield the paths of a dataset's files, those in ``data/``, ``policies/`` and ``card/``.

    Raises:
        LinkError: one of them, or a folder of them, is a link.
    """
    for folder in ("data", CARD, POLICIES):
        if folder != "data":  # which the user may reach by a link
            refuse_links(dataset / folder, dataset)
        if (dataset / folder).is_file():  # which no manifest names
            yield folder
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in files_below(dataset / folder):
                # In policies/ a folder is a dataset's or a namespace's, which this one is for it.
                if folder != POLICIES or "/" not in name:
                    yield f"{folder}/{name}"


def totals_agree(data: Path, content: Mapping[str, Any]) -> bool:
    """Whether the metadata count what the manifest counts; what is damaged counts nothing else."""
    try:
        metadata = json.loads(current(data / "metadata.json", read_text))
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(metadata, dict) or all(
        metadata.get(key) == content.get(key, metadata.get(key)) for key in _TOTALS
    )


def _is_name(name: str) -> bool:
    folder, *rest = name.split("/")
    below = {"data": bool(rest), POLICIES: len(rest) == 1, CARD: bool(rest)}
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return below.get(folder, False) and all(map(is_file_name, rest))
