"""Copy episodes into new datasets of the local root, with everything that belongs to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import leaves
from minari_pipe.datasets.installation import new_dataset
from minari_pipe.storage.base import MinariStorage, file_format, is_file_format
from minari_pipe.storage.jpeg import Frames
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.writer import StableBuffers

#: keys that a new storage determines itself or is given separately
STORAGE_KEYS = frozenset(
    {
        "dataset_id",
        "total_episodes",
        "total_steps",
        "dataset_size",
        "data_format",
        "jpeg_encoding",
        "observation_space",
        "action_space",
        "minari_version",
    }
)

Source = tuple[MinariStorage, npt.NDArray[np.int_]]


def new_copy(
    dataset_id: str,
    episodes: Iterable[EpisodeBuffer | Segment],
    *,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    metadata: dict[str, Any],
    data_format: str = "hdf5",
    jpeg_encoding: bool = False,
) -> Path:
    """Create a dataset of these episodes in the local root; on failure leave nothing behind.

    Args:
        dataset_id: id of the new dataset.
        episodes: its episodes.
        observation_space: space of one observation.
        action_space: space of one action.
        metadata: all metadata but ``STORAGE_KEYS``; ``env_spec`` as JSON.
        data_format: one of ``get_storage_keys()``.
        jpeg_encoding: store images as lossy JPEG.

    Returns:
        The data directory of the new dataset.

    Raises:
        DatasetExistsError: the id is taken.
        InvalidDatasetIdError: the id is malformed.
    """
    with new_dataset(dataset_id) as data_path:
        described = {key: value for key, value in metadata.items() if key not in STORAGE_KEYS}
        described |= {"dataset_id": dataset_id, "minari_version": MINARI_VERSION}
        MinariStorage.create(
            data_path,
            StableBuffers(episodes),
            metadata={key: value for key, value in described.items() if value is not None},
            observation_space=observation_space,
            action_space=action_space,
            data_format=file_format(data_format),
            jpeg_encoding=jpeg_encoding,
        )
    return get_dataset_path(dataset_id) / "data"


def copy_without(
    storage: MinariStorage,
    episode_indices: npt.NDArray[np.int_],
    deleted: npt.NDArray[np.int_],
    new_dataset_id: str,
) -> Path:
    """Create a dataset of some episodes of another, with its metadata.

    ``derived_from`` in the new metadata records where the episodes come from.

    Args:
        storage: storage of the other dataset.
        episode_indices: the episodes to copy, shape ``(N,)``.
        deleted: the episodes that were left out on purpose, for the record.
        new_dataset_id: id of the new dataset.

    Returns:
        The data directory of the new dataset.

    Raises:
        DatasetExistsError: the id is taken.
        InvalidDatasetIdError: the id is malformed.
    """
    metadata = storage.metadata
    lineage = {
        "dataset_id": metadata.get("dataset_id"),
        "total_episodes": metadata["total_episodes"],
        "deleted_episodes": sorted(map(int, deleted)),
    }
    if "derived_from" in metadata:
        lineage["derived_from"] = metadata["derived_from"]
    return new_copy(
        new_dataset_id,
        storage.get_segments(episode_indices),
        observation_space=storage.observation_space,
        action_space=storage.action_space,
        metadata={**metadata, "derived_from": lineage},
        data_format=writable_format(storage),
        jpeg_encoding=all_jpeg([(storage, episode_indices)]),
    )


def writable_format(storage: MinariStorage) -> str:
    """Return the format of a storage, or hdf5 if that is read-only or only kept in memory."""
    return storage.FORMAT if is_file_format(storage.FORMAT) else "hdf5"


def all_jpeg(sources: Sequence[Source]) -> bool:
    """Return whether a copy of these episodes encodes images as JPEG: only if all of them are.

    The metadata alone does not decide this. Minari up to 0.5.2 had no JPEG, and up to 0.5.3 no key
    for it; a missing key is read as true, and encoding such images would damage them.
    """
    return all(storage.jpeg_encoding and _holds_jpeg(storage, i) for storage, i in sources)


def _holds_jpeg(storage: MinariStorage, episode_indices: npt.NDArray[np.int_]) -> bool:
    for field in ("observation", "action"):
        images = [
            path
            for path, space in space_leaves(getattr(storage, f"{field}_space"))
            if is_image_space(space)
        ]
        if not images or not len(episode_indices):
            continue
        (first,) = storage.get_buffers(episode_indices[:1])
        columns = dict(leaves(getattr(first, f"{field}s")))
        if not all(isinstance(columns.get(path), Frames) for path in images):
            return False
    return True
