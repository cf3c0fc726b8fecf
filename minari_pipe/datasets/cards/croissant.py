"""Write ``croissant.json``: the dataset in Croissant 1.1, which search engines and NeurIPS read.

Specification: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html, with the RAI
vocabulary for responsible AI. HDF5 and Arrow IPC have no reader in Croissant, so the data are
described as files, and the record sets are the table of episodes and the list of columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from minari_pipe.datasets.cards.dates import dumped
from minari_pipe.datasets.cards.facts import Facts
from minari_pipe.datasets.cards.tables import COLUMNS
from minari_pipe.datasets.cards.words import line_of

#: names of the author's texts in the RAI vocabulary, by their keys
RAI_NAMES = {
    "limitations": "rai:dataLimitations",
    "biases": "rai:dataBiases",
    "personal_information": "rai:personalSensitiveInformation",
    "use_cases": "rai:dataUseCases",
    "social_impact": "rai:dataSocialImpact",
}

#: terms of Croissant in its standard context, which readers compare
_TERMS = (
    "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field",
    "fileObject", "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset",
    "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
}
#: a description has at most this many bytes
_LONGEST = 16_000
#: most names, columns and files that are listed, the first that makes it short enough
_LISTED = (40, 20, 10, 5, 1)
_FORMATS = {".hdf5": "application/x-hdf5", ".json": "application/json", ".zip": "application/zip"}


def croissant(facts: Facts, episodes: str, most: int = _LISTED[0]) -> dict[str, Any]:
    """Return the description, with a null for each required property that nobody has stated.

    Args:
        facts: what it says.
        episodes: the content of ``episodes.csv``, beside it.
        most: number of names, columns and files that are listed.
    """
    metadata = facts.metadata
    creators = _names(metadata.get("author"))[:most]
    return {
        "@context": _CONTEXT,
        "@type": "Dataset",
        "conformsTo": [
            "http://mlcommons.org/croissant/1.1",
            "http://mlcommons.org/croissant/RAI/1.0",
        ],
        "name": facts.dataset_id,
        "description": line_of(metadata.get("description")) or None,
        "license": line_of(metadata.get("license")) or None,
        "url": line_of(metadata.get("code_permalink")) or None,
        "creator": [{"@type": "Person", "name": name} for name in creators],
        "citeAs": line_of(metadata.get("citation")) or None,
        "version": f"{facts.dataset_id.rpartition('-v')[2]}.0.0",
        "keywords": ["offline reinforcement learning", "minari", "gymnasium"],
        **{name: line_of(facts.texts.get(key)) or None for key, name in RAI_NAMES.items()},
        "rai:hasSyntheticData": True,
        "prov:wasDerivedFrom": list(_parents(metadata))[:most],
        "prov:wasGeneratedBy": list(_activities(facts))[:most],
        "distribution": list(_files(facts, episodes, most)),
        "recordSet": [_episode_records(), _column_records(facts, most)],
    }


def missing(description: Mapping[str, Any]) -> list[str]:
    """Return the names of the properties that Croissant or NeurIPS require and that are absent."""
    required = ("description", "license", "url", "creator", "datePublished")
    return [name for name in (*required, *RAI_NAMES.values()) if not description.get(name)]


def _names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [line_of(name) for name in sorted(names, key=str) if line_of(name)]


def _parents(metadata: Mapping[str, Any]) -> Iterator[str]:
    yield from _names(metadata.get("combined_datasets"))
    made = metadata.get("minari_pipe")
    made = made if isinstance(made, dict) else {}
    parents = made.get("parents")
    for parent in [*(parents if isinstance(parents, list) else ()), made.get("cloned")]:
        if isinstance(parent, dict) and line_of(parent.get("id")):
            yield line_of(parent["id"])


def _activities(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield the collection, by the algorithm in the environment; the stages with their versions."""
    algorithm = line_of(facts.metadata.get("algorithm_name"))
    collection = f"Episodes of {facts.environment or 'no environment'}"
    text = f"{collection}, recorded with {algorithm}." if algorithm else f"{collection}."
    yield {"@type": "prov:Activity", "prov:type": "collection", "description": text}
    made = facts.metadata.get("minari_pipe")
    packages = made.get("packages") if isinstance(made, dict) else None
    for stage, versions in (packages if isinstance(packages, dict) else {}).items():
        if isinstance(versions, dict):
            named = ", ".join(f"{line_of(k)} {line_of(v)}" for k, v in sorted(versions.items()))
            yield {
                "@type": "prov:Activity",
                "prov:type": line_of(stage),
                "description": f"Stage {line_of(stage)} of minari_pipe, with {named}.",
            }


def _files(facts: Facts, episodes: str, most: int) -> Iterator[dict[str, Any]]:
    data = episodes.encode()
    yield _file("episodes.csv", "text/csv", len(data), hashlib.sha256(data).hexdigest())
    names = sorted(facts.files)
    if len(names) > most:  # a folder for each episode, as in Arrow
        yield {
            "@type": "cr:FileSet",
            "@id": "data",
            "name": "data",
            "description": f"{len(names):,} files, whose checksums are in ../manifest.json.",
            "encodingFormat": "application/octet-stream",
            "includes": "../data/**",
        }
        return
    for name in names:
        entry = facts.files[name]
        kind = _FORMATS.get(PurePosixPath(name).suffix, "application/octet-stream")
        yield _file(f"../{name}", kind, entry["size"], entry.get("sha256"))


def _file(path: str, kind: str, size: int, sha256: str | None) -> dict[str, Any]:
    name = path.removeprefix("../")
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": path,
        "encodingFormat": kind,
        "contentSize": f"{size} B",
        **({} if sha256 is None else {"sha256": sha256}),
    }


def _episode_records() -> dict[str, Any]:
    source = {"fileObject": {"@id": "episodes.csv"}}
    return {
        "@type": "cr:RecordSet",
        "@id": "episodes",
        "name": "episodes",
        "description": "One row for each episode.",
        "key": {"@id": "episodes/id"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"episodes/{name}",
                "name": f"episodes/{name}",
                "description": about,
                "dataType": kind,
                "source": {**source, "extract": {"column": name}},
            }
            for name, (kind, about) in COLUMNS.items()
        ],
    }


def _column_records(facts: Facts, most: int) -> dict[str, Any]:
    fields = {
        "name": ("sc:Text", "Name in the files, below the group of an episode."),
        "dtype": ("sc:Text", "Type of a value in NumPy's notation."),
        "shape": ("sc:Text", "Shape of a row."),
    }
    return {
        "@type": "cr:RecordSet",
        "@id": "columns",
        "name": "columns",
        "description": "The columns of each episode.",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"columns/{name}",
                "name": f"columns/{name}",
                "description": about,
                "dataType": kind,
            }
            for name, (kind, about) in fields.items()
        ],
        "data": [
            {
                "columns/name": line_of(column.name, 200),
                "columns/dtype": column.dtype,
                "columns/shape": "varies" if column.row is None else str(list(column.row)),
            }
            for column in facts.columns[:most]
        ],
    }


def croissant_json(facts: Facts, episodes: str) -> str:
    """Return :func:`croissant` as a file, with as long lists as fit."""
    for most in _LISTED:
        text = dumped(croissant(facts, episodes, most))
        if len(text.encode()) <= _LONGEST:
            break
    return text
