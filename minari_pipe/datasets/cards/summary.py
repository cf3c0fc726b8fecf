"""Gather what is known of a dataset from its card and its metadata, for pages without the data.

Sites and remotes show many datasets, whose data are elsewhere or take too long to read. The files
of a card may be a stranger's, so nothing here trusts them: what cannot be read is left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.json_object import json_object
from minari_pipe.core.metadata import metadata_faults
from minari_pipe.datasets.cards.croissant import RAI_NAMES
from minari_pipe.datasets.cards.facts import ElementFacts, Facts, Ints, Outcomes
from minari_pipe.datasets.cards.tables import COLUMNS
from minari_pipe.datasets.cards.words import line_of
from minari_pipe.datasets.episodes_table import EpisodeTable
from minari_pipe.datasets.statistics import QUANTILES, Column
from minari_pipe.storage.base import MinariStorage

#: files of a card that a summary is made of
FILES = ("croissant.json", "episodes.csv", "stats.json")
#: most elements of columns that are read
_ELEMENTS = 1000


def summary_of(
    dataset_id: str,
    metadata: Mapping[str, Any],
    card: Mapping[str, bytes],
    files: Mapping[str, Mapping[str, Any]],
    *,
    content_sha256: str | None = None,
    storage: MinariStorage | None = None,
) -> tuple[Facts, dict[str, Any]]:
    """Return what a card and the metadata say of a dataset, and its ``croissant.json``.

    The second is empty if it cannot be read.

    Args:
        dataset_id: id of the dataset.
        metadata: its metadata.
        card: files of its card by name, as far as there are any.
        files: the entries of its files, as the manifest has them; those of the data are shown.
        content_sha256: checksum of its content, if known.
        storage: holds its episodes, whose table is used if the card has none.
    """
    faults = dict(metadata_faults(metadata))
    outcomes = outcomes_in(card.get("episodes.csv", b""))
    if outcomes is None and storage is not None:
        outcomes = outcomes_of(storage)
    columns, elements = _columns(card.get("stats.json", b""))
    said = _croissant(card)
    texts = {key: line_of(said.get(name)) for key, name in RAI_NAMES.items()}
    facts = Facts(
        dataset_id,
        {key: value for key, value in metadata.items() if key not in faults},
        outcomes or Outcomes([], [], np.zeros(0, np.int64), np.zeros(0)),
        columns,
        elements,
        {name: entry for name, entry in files.items() if name.startswith("data/")},
        content_sha256,
        texts={key: text for key, text in texts.items() if text},
    )
    return facts, said


def _croissant(card: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        return json_object(card.get("croissant.json", b"{}"))
    except ValueError:
        return {}


def outcomes_in(table: bytes) -> Outcomes | None:
    """Return what an ``episodes.csv`` tells; None if it is not such a table."""
    try:
        reader = csv.reader(io.StringIO(table.decode()), strict=True)
        if next(reader, None) != list(COLUMNS):
            return None
        rows = list(reader)
        if not rows or any(len(row) != len(COLUMNS) for row in rows):
            return None
        ids, seeds, steps, returns, _, terminated, truncated, success = zip(*rows, strict=True)
        lengths = np.array(steps, np.int64)
        if lengths.min() < 0:
            return None
        return Outcomes(
            ids=list(map(int, ids)),
            seeds=[int(seed) if seed else None for seed in seeds],
            lengths=lengths,
            returns=np.array(returns, np.float64),
            terminated=_flags(terminated),
            truncated=_flags(truncated),
            succeeded=_flags(success),
        )
    except (ValueError, TypeError, OverflowError, csv.Error):
        return None


def _flags(texts: Sequence[str]) -> npt.NDArray[np.bool_] | None:
    return np.array(texts) == "1" if set(texts) <= {"0", "1"} else None


def outcomes_of(storage: MinariStorage, indices: Ints | None = None) -> Outcomes:
    """Return what is stored with some episodes, of which no array is read.

    Args:
        storage: holds the episodes.
        indices: the episodes, shape ``(N,)``; None means all.
    """
    chosen = np.arange(storage.total_episodes) if indices is None else indices
    table = EpisodeTable(storage, chosen)
    return Outcomes(
        ids=table["id"].tolist(),
        seeds=table["seed"].tolist(),
        lengths=table["total_steps"].astype(np.int64),
        returns=table["return"].astype(np.float64),
    )


def _columns(stats: bytes) -> tuple[list[Column], dict[str, list[ElementFacts]]]:
    """Read ``stats.json``; columns that are not as described there are left out."""
    try:
        found = json_object(stats)
    except ValueError:
        return [], {}
    columns: list[Column] = []
    elements: dict[str, list[ElementFacts]] = {}
    for name, statistics in found.items():
        if line_of(name, 200) != name:  # such as a surrogate, which no page can hold
            continue
        try:
            values = {
                key: np.array(statistics[key], np.float64)
                for key in ("min", "max", "mean", "std", *QUANTILES)
            }
            (rows,) = map(int, statistics["count"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        shape = values["mean"].shape
        if any(value.shape != shape for value in values.values()):
            continue
        flat = {key: value.reshape(-1)[:_ELEMENTS].tolist() for key, value in values.items()}
        columns.append(Column((name,), () if shape == (1,) else shape, rows, "", False))
        elements[name] = [
            ElementFacts(dict(zip(flat, each, strict=True)))
            for each in zip(*flat.values(), strict=True)
        ]
    return columns, elements
