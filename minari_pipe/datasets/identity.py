"""Hash the content of a dataset, so that equal datasets have equal hashes in every format.

The hash covers dtype, shape and values of every leaf of every episode in order, the episodes'
seeds, options and attributes, and the identity fields of the metadata. It does not depend on the
format, on chunks, on the order of keys or on the byte order of the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.links import OpenedFolder, replaced
from minari_pipe.core.files.manifest import describe
from minari_pipe.core.metadata import STANDARD_KEYS
from minari_pipe.core.spaces import deserialize_space, serialize_space
from minari_pipe.core.tree import MAX_DEPTH, is_deep, leaves
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidMetadataError,
    MinariPipeError,
)
from minari_pipe.storage.attributes import exact_form
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage

IDENTITY_FIELDS = (
    "dataset_id",
    "observation_space",
    "action_space",
    "env_spec",
    "eval_env_spec",
    "ref_min_score",
    "ref_max_score",
    "num_episodes_average_score",
)

_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")


def content_sha256(storage: MinariStorage, metadata: Mapping[str, Any]) -> str:
    """Hash the content of a dataset.

    Args:
        storage: the storage with all episodes.
        metadata: the final metadata; fields other than ``IDENTITY_FIELDS`` do not count.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(b"minari_pipe content 1\n")
    identity = {
        key: _canonical_field(key, metadata[key])
        for key in IDENTITY_FIELDS
        if metadata.get(key) is not None
    }
    _add_json(digest, identity)
    indices = range(storage.total_episodes)
    pairs = zip(storage.get_episodes(indices), storage.get_episode_metadata(indices), strict=True)
    for index, (episode, attributes) in enumerate(pairs):
        own = {key: value for key, value in attributes.items() if key not in ("id", "total_steps")}
        _add_json(digest, {"episode": index, "attributes": exact_form(own, f"episode {index}")})
        for name in _ARRAYS:
            tree = episode[name] if episode[name] is not None else {}
            _add_tree(digest, name, tree)
        if episode.get("extras"):  # most datasets have none, and their hash predates extras
            _add_tree(digest, "extras", episode["extras"])
    return digest.hexdigest()


def _add_tree(digest: Any, name: str, tree: Any) -> None:
    for path, leaf in sorted(leaves(tree, (name,)), key=lambda item: _sort_key(item[0])):
        _add_leaf(digest, path, leaf)


def _sort_key(path: tuple[str | int, ...]) -> list[tuple[str, int]]:
    """Return a key that sorts a dict's keys as text and a tuple's entries as numbers."""
    return [("", key) if isinstance(key, int) else (key, 0) for key in path]


def _add_json(digest: Any, value: Any) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    digest.update(f"json {len(text)}\n".encode())
    digest.update(text.encode("ascii"))


def _add_leaf(digest: Any, path: tuple[str | int, ...], leaf: Any) -> None:
    if isinstance(leaf, list) or leaf.dtype.kind in "OU":
        array = np.asarray(leaf, dtype=object)
        _add_json(
            digest,
            {"path": path, "dtype": "text", "shape": array.shape, "values": array.ravel().tolist()},
        )
        return
    array = np.ascontiguousarray(leaf, dtype=leaf.dtype.newbyteorder("<"))
    _add_json(digest, {"path": path, "dtype": array.dtype.str, "shape": leaf.shape})
    if array.size:
        digest.update(array.reshape(-1).view(np.uint8).data)


def _canonical_field(key: str, value: Any) -> Any:
    try:
        return _canonical(key, value)
    except MinariPipeError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMetadataError(
            f"metadata {key!r} is {value!r:.80}; expected {STANDARD_KEYS[key]}"
        ) from error


def _canonical(key: str, value: Any) -> Any:
    if key.endswith("_space"):
        # releases differ in the fields that they omit
        space = deserialize_space(value) if isinstance(value, str | dict) else value
        return serialize_space(space, to_string=False)
    if key.endswith("_spec"):
        spec = json.loads(value)  # whitespace and the order of keys do not count
        if is_deep(spec, 2 * MAX_DEPTH):
            raise ValueError(f"nested more than {2 * MAX_DEPTH} deep")
        return spec
    if key == "num_episodes_average_score":
        return int(value)
    return float(value) if key.endswith("_score") else value


def manifest(dataset_dir: str | Path, content_sha256: str) -> dict[str, Any]:
    """Return the manifest of a finished dataset, with its content hash.

    Args:
        dataset_dir: the directory that holds ``data/``.
        content_sha256: from :func:`content_sha256`.

    Returns:
        The result of :func:`minari_pipe.core.files.manifest.describe`, plus ``content_sha256``.

    Raises:
        DatasetNotFoundError: there is no data.
    """
    dataset_dir = Path(dataset_dir)
    data = dataset_dir / "data"
    metadata = MinariStorage.read_raw_metadata(data)
    content = describe(dataset_dir, metadata)
    if content["data"].keys() == {METADATA_FILE_NAME}:
        raise DatasetNotFoundError(f"No data found in data path {data}")
    return {**content, "content_sha256": content_sha256}


def checked_content_sha256(
    dataset: Path,
    metadata: Mapping[str, Any],
    content: Mapping[str, Any] | None,
    data: OpenedFolder | None = None,
) -> str:
    """Return the content hash of a dataset; compare it with that of its manifest, if it has one.

    Args:
        dataset: the folder that holds ``data/``.
        metadata: metadata of the dataset.
        content: its manifest, if it has one.
        data: ``data/``, if it was already opened.

    Raises:
        CorruptDatasetError: the manifest has another ``content_sha256``.
        DatasetNotFoundError: another folder has taken the place of ``data``.
    """
    storage = MinariStorage.read(dataset / "data")
    if data is not None and not storage.is_of(data):
        raise replaced(dataset / "data")
    found = content_sha256(storage, metadata)
    recorded = (content or {}).get("content_sha256", found)
    if recorded != found:
        raise CorruptDatasetError(
            f"{dataset / MANIFEST} has content_sha256 {recorded[:12]}, but the data have "
            f"{found[:12]}: the manifest is damaged or belongs to another dataset. Download or "
            "publish the dataset again"
        )
    return found
