"""Make the files in ``card/``, and put them beside a dataset's data, with their checksums."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.datasets_root import id_at
from minari_pipe.core.files.atomic import MANIFEST, staged_manifest, transaction
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.files.checksums import entry_of, entry_of_bytes
from minari_pipe.core.files.links import files_below, opener, refuse_links
from minari_pipe.core.files.manifest import (
    CARD,
    FORMAT,
    UNFINISHED_CARD,
    dump,
    entries_of,
    entry_named,
    is_foreign,
    read_manifest,
)
from minari_pipe.core.files.manifest_update import known_manifest
from minari_pipe.core.files.swap import swap_in
from minari_pipe.core.json_object import json_object
from minari_pipe.core.messages import one_line
from minari_pipe.datasets.cards.charts import alone
from minari_pipe.datasets.cards.croissant import RAI_NAMES, croissant_json
from minari_pipe.datasets.cards.facts import Facts, Ints, facts_of
from minari_pipe.datasets.cards.markdown import card_md
from minari_pipe.datasets.cards.page import FILM, inlined, page, returns_chart
from minari_pipe.datasets.cards.tables import episodes_csv, stats_json
from minari_pipe.datasets.cards.words import line_of
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage

#: names of the files of a card
FILES = (
    "card.md",
    "croissant.json",
    "episodes.csv",
    "report.html",
    "returns.svg",
    "stats.json",
    FILM,
)

#: a file of a stranger's card is read up to this size
LARGEST = 10_000_000

#: how each report begins, by which a file is known to be one
_BEGINNING = b"<!doctype html>\n<!-- a report of minari_pipe -->"


def card_files(facts: Facts) -> dict[str, bytes]:
    """Return the files of a card by name, all but the film; a function of the facts alone."""
    episodes = episodes_csv(facts)
    croissant = croissant_json(facts, episodes)
    texts = {
        "card.md": card_md(facts),
        "croissant.json": croissant,
        "episodes.csv": episodes,
        "report.html": page(facts, croissant),
        "returns.svg": alone(returns_chart(facts)),
        "stats.json": stats_json(facts),
    }
    return {name: text.encode() for name, text in texts.items()}


def report_of(facts: Facts, film: bytes | None = None) -> str:
    """Return the report as one file, with the film in it."""
    description = croissant_json(facts, episodes_csv(facts))
    return page(facts, description, film="" if film is None else inlined(film))


def report(
    storage: MinariStorage, indices: Ints, path: str | os.PathLike[str] | None
) -> str | Path:
    """Return the report of some episodes of a dataset, or write it; return its path then.

    The film of the card shows the episode of median return of the whole dataset, so the report of
    a view has none.

    Args:
        storage: holds the episodes.
        indices: the episodes, shape ``(N,)``.
        path: file to write, if any.

    Raises:
        ConfigError: the path is taken by something else than a report.
        CorruptDatasetError: the dataset cannot be read.
    """
    target = None if path is None else Path(path)
    if target is not None:
        check_report_path(target)
    facts = facts_in(storage, indices=indices)
    film = file_of_card(storage.data_path, FILM) if facts.view_of is None else None
    text = report_of(facts, film)
    if target is None:
        return text
    write_new(target, text.encode())
    return target


def check_report_path(path: Path) -> None:
    """Raise if a path is taken by anything but an older report.

    Raises:
        ConfigError: it is.
    """
    refuse_dataset(path)
    if path.exists() and not (path.is_file() and _is_report(path)):
        raise ConfigError(f"{one_line(path)} exists and is no report; choose another path")


def refuse_dataset(path: Path) -> None:
    """Raise if a place lies in the folder of a dataset, which would no longer be intact.

    Raises:
        ConfigError: it does.
    """
    for folder in (*Path(os.path.abspath(path)).parents, *Path(os.path.realpath(path)).parents):
        if (folder / "data" / METADATA_FILE_NAME).exists():
            raise ConfigError(
                f"{one_line(path)} lies in the dataset {one_line(folder)}; choose another place"
            )


def _is_report(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def facts_at(data_path: Path, findings: Sequence[Mapping[str, Any]] | None = None) -> Facts:
    """Read the facts of a dataset that lies in a folder or file.

    Args:
        data_path: the folder of its data, or its file.
        findings: what ``validate`` found, if it has run.

    Raises:
        CorruptDatasetError: it cannot be read.
    """
    return facts_in(MinariStorage.read(data_path), findings)


def facts_in(
    storage: MinariStorage,
    findings: Sequence[Mapping[str, Any]] | None = None,
    *,
    indices: Ints | None = None,
) -> Facts:
    """Read the facts of a dataset that is open.

    Args:
        storage: holds the episodes.
        findings: what ``validate`` found, if it has run.
        indices: the episodes to describe, shape ``(N,)``; None means all.

    Raises:
        CorruptDatasetError: it cannot be read.
    """
    data_path = storage.data_path
    metadata = storage.read_raw_metadata(data_path)
    content = read_manifest(data_path.parent) if data_path.name == "data" else None
    content = None if content is not None and is_foreign(data_path.parent, content) else content
    dataset_id = id_at(data_path) or str(metadata["dataset_id"])
    return facts_of(
        storage,
        dataset_id,
        metadata,
        _files(data_path, content),
        content_sha256=None if content is None else content.get("content_sha256"),
        findings=findings,
        texts=_texts_at(data_path),
        indices=indices,
    )


def _files(data_path: Path, content: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the entries of a dataset's files, with the sha256 of each."""
    top = data_path.parent
    if not data_path.exists():  # kept in memory
        known: dict[str, dict[str, Any]] = {}
    elif content is not None:
        known = _data_of(content)
    else:
        found = files_below(data_path) if data_path.is_dir() else [""]
        known = {f"{data_path.name}/{name}".rstrip("/"): {} for name in found}
    return {
        name: entry if "sha256" in entry else entry_of(top / name, sha256=True)
        for name, entry in known.items()
    }


def _data_of(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a manifest's entries of the data, by names such as ``data/metadata.json``."""
    return {name: one for name, one in entries_of(content).items() if name.startswith("data/")}


def write_card(dataset: Path, files: Mapping[str, bytes], facts: Facts | None = None) -> None:
    """Replace the card of a dataset, and its entries in the manifest.

    Args:
        dataset: the folder that holds ``data/``.
        files: the files of the card, by name.
        facts: what they are made of; the dataset must not have changed since.

    Raises:
        ConfigError: the folder ``card`` holds files that are not those of a card.
        CorruptDatasetError: the dataset has no manifest that describes it.
        LinkError: the folder is a symlink.
    """
    with transaction(dataset / "data") as stage:
        content = read_manifest(dataset)
        if others := _others(dataset, content):
            raise ConfigError(
                f"{dataset / CARD} holds {others[0]!r}, which is no file of a card, so it is not "
                "replaced; move it away, or remove it"
            )
        if content is None or content.get("format") != FORMAT or is_foreign(dataset, content):
            raise CorruptDatasetError(
                f"{dataset} has no {MANIFEST} of format {FORMAT} that describes its files; write "
                "it: minari-pipe validate ID --upgrade"
            )
        if facts is not None and not _is_of(facts, content):
            raise CorruptDatasetError(
                f"{dataset} has changed while its card was made; run the command again"
            )
        for left in dataset.glob(f"{UNFINISHED_CARD}*"):  # by a command that was killed
            shutil.rmtree(left, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=UNFINISHED_CARD, dir=dataset))
        try:
            for name, text in files.items():
                (new / name).write_bytes(text)
            new.chmod(0o755)
            with_sha256 = "content_sha256" in content
            entries = {name: entry_of(new / name, sha256=with_sha256) for name in sorted(files)}
            swap_in(new, dataset / CARD)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        dump({**content, CARD: entries}, staged_manifest(stage))


def _is_of(facts: Facts, content: Mapping[str, Any]) -> bool:
    """Return whether facts are those of a dataset as it is now."""
    now = _data_of(content)
    return now.keys() == facts.files.keys() and all(
        entry.items() <= facts.files[name].items() for name, entry in now.items()
    )


def _others(dataset: Path, content: Mapping[str, Any] | None) -> list[str]:
    """Return the names in the folder of the card that neither the manifest nor a card has."""
    known = set(FILES) | set({} if content is None else content.get(CARD, {}))
    folder = dataset / CARD
    refuse_links(folder, dataset)
    if not folder.is_dir():
        return [CARD] if folder.exists() else []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name not in known or not entry.is_file(follow_symlinks=False)
        )


def file_of_card(data_path: Path, name: str) -> bytes | None:
    """Return a file of a dataset's card, if the manifest has it as it is, and it is not large."""
    content = known_manifest(data_path)
    if content is None:
        return None
    return files_of_card(data_path.parent, content, [name], most=LARGEST).get(name)


def files_of_card(
    dataset: Path,
    content: Mapping[str, Any],
    names: Sequence[str] = FILES,
    *,
    most: float = float("inf"),
) -> dict[str, bytes]:
    """Return the files of a card that match the manifest, by name.

    Args:
        dataset: the folder that holds ``data/``.
        content: its manifest.
        names: the files to read.
        most: a larger file, in bytes, is left out.
    """
    found = {}
    for name in names:
        path = f"{CARD}/{name}"
        entry = entry_named(content, path)
        if entry is None or entry["size"] > most:
            continue
        with suppress(OSError), open(dataset / path, "rb", opener=opener(dataset)) as file:
            text = file.read(entry["size"] + 1)
            if entry_of_bytes([text], sha256="sha256" in entry) == entry:
                found[name] = text
    return found


def _texts_at(data_path: Path) -> dict[str, str]:
    """Return what the author says in a dataset's card, so that a new card keeps it."""
    try:
        found = json_object(file_of_card(data_path, "croissant.json") or b"{}")
    except ValueError:
        return {}
    return {key: text for key, name in RAI_NAMES.items() if (text := line_of(found.get(name)))}
