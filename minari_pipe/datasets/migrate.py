"""Convert datasets of every generation, and D4RL's files, to the current layout."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.datasets_root import data_in, data_path_of
from minari_pipe.core.env_specs import todays_spec
from minari_pipe.core.episode import FINAL_OBSERVATION_MISSING
from minari_pipe.core.files.links import expand_user
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.metadata import MINARI_VERSION, metadata_faults
from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.datasets.copying import STORAGE_KEYS
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.indices import steps_of
from minari_pipe.datasets.library import new_dataset, open_dataset
from minari_pipe.datasets.spec import parse_spec
from minari_pipe.errors import CorruptDatasetError, DatasetNotFoundError, InvalidDatasetIdError
from minari_pipe.storage.base import (
    METADATA_FILE_NAME,
    MinariStorage,
    file_format,
    has_metadata_file,
    other_format,
)
from minari_pipe.storage.hdf5.file import MAIN_FILE_NAME
from minari_pipe.storage.writer import StableBuffers

#: keys that only described the old layout, and keys that the new storage determines itself
_NOT_COPIED = STORAGE_KEYS | {"flatten_observation", "flatten_action"}


def migrate_dataset(
    source: str | os.PathLike[str],
    dataset_id: str,
    *,
    data_format: str = "hdf5",
    trusted_modules: Collection[str] = (),
) -> MinariDataset:
    """Convert a dataset of any generation to the current layout; the source does not change.

    Episodes keep their seeds, options, infos, extras and attributes; the metadata is kept under
    its current names. A warning lists what the current layout holds and the source lacks;
    ``migration["unknown"]`` in the metadata of the new dataset records it. Images are stored
    without loss.

    Args:
        source: the directory of a dataset or of its data, a file, or the id of a dataset in the
            local root.
        dataset_id: id of the new dataset in the local root.
        data_format: one of :func:`~minari_pipe.storage.base.get_storage_keys`.
        trusted_modules: modules whose code the environment of the data may name. Minari 0.3
            stored no spaces; only the environment defines its Dict and Tuple spaces.

    Returns:
        The new dataset.

    Raises:
        DatasetNotFoundError: there is no dataset at the source.
        CorruptDatasetError: the source is damaged, or points outside itself.
        DatasetExistsError: the id is taken.
        InvalidDatasetIdError: the id is malformed.

    Example:
        A D4RL file:

        >>> import h5py, numpy as np, tempfile, warnings
        >>> from pathlib import Path
        >>> from minari_pipe import migrate_dataset
        >>> path = Path(tempfile.mkdtemp()) / "maze.hdf5"
        >>> with h5py.File(path, "w") as file:
        ...     for name in ("observations", "next_observations", "actions"):
        ...         file[name] = np.zeros((3, 2), np.float32)
        ...     file["rewards"] = np.ones(3, np.float32)
        ...     file["terminals"] = [False, True, True]
        >>> with warnings.catch_warnings(action="ignore"):  # about what the file does not tell
        ...     dataset = migrate_dataset(path, "example/maze-v0")
        >>> dataset, dataset.storage.metadata["migration"]["unknown"][-1]
        (MinariDataset('example/maze-v0', 2 episodes), 'the spaces are inferred from the arrays')
    """
    data_path = _data_path(source)
    with warnings.catch_warnings():
        # the list of unknowns below says the same
        warnings.filterwarnings("ignore", message=".*this layout holds no spaces")
        storage = MinariStorage.read(data_path, trusted_modules=trusted_modules)
    raw = storage.read_raw_metadata(storage.data_path)
    steps, unknown = _survey(storage)
    metadata = {key: value for key, value in raw.items() if key not in _NOT_COPIED}
    for key in ("env_spec", "eval_env_spec"):
        if key in metadata:
            metadata[key] = _todays_spec(metadata[key])
    left_out = {}
    for key, what in list(_faults(metadata)):
        if key in metadata:
            del metadata[key]
            left_out[key] = raw[key]
            unknown.append(f"{key} is left out of the metadata: it {what}"[:300])
    migration: dict[str, Any] = {
        "source_dataset_id": raw.get("dataset_id"),
        "source_layout": raw.get("data_format"),
        "source_minari_version": raw.get("minari_version"),
        "unknown": unknown,
    }
    if left_out:
        migration["left_out"] = json.loads(json.dumps(left_out, default=str))
    with new_dataset(dataset_id) as new_path:
        MinariStorage.create(
            new_path,
            StableBuffers(storage.get_buffers([i for i, count in enumerate(steps) if count])),
            metadata={
                **metadata,
                "dataset_id": dataset_id,
                "minari_version": MINARI_VERSION,
                "migration": migration,
            },
            observation_space=storage.observation_space,
            action_space=storage.action_space,
            data_format=file_format(data_format),
        )
    if unknown:
        warnings.warn(
            f"{dataset_id}: {data_path} does not record everything: {'; '.join(unknown)}",
            stacklevel=2,
        )
    return open_dataset(dataset_id)


def _data_path(source: str | os.PathLike[str]) -> Path:
    """Return the path of a source's data.

    Raises:
        DatasetNotFoundError: there is no dataset.
    """
    candidates = []
    for path in _candidates(source):
        candidates.append(path)
        if has_metadata_file(path) or other_format(path) is not None:
            return path
    there = next((path for path in candidates if path.exists()), None)
    found = "" if there is None else f": it is {_what_it_is(there)}"
    raise DatasetNotFoundError(
        f"no dataset at {str(source)!r}{found}; expected the directory of a dataset, an "
        "HDF5 file of Minari 0.2 or D4RL, or the id of a dataset in the local root. Looked at "
        + ", ".join(map(str, candidates))
    )


def _what_it_is(path: Path) -> str:
    if path.is_dir():
        return f"a directory without {METADATA_FILE_NAME} and without the HDF5 file of a dataset"
    if not path.is_file():
        return "neither a file nor a directory"
    with path.open("rb") as file:
        begin = file.read(16)
    if begin.startswith(b"\x89HDF"):
        return "an HDF5 file that holds no episodes in a known layout"
    return f"a file that begins with {begin!r}, unlike any dataset"


def _candidates(source: str | os.PathLike[str]) -> Iterator[Path]:
    with suppress(InvalidDatasetIdError):  # first: a folder of that name may be a stranger's
        parse_dataset_id(os.fspath(source))
        yield data_path_of(os.fspath(source))
    path = expand_user(source)
    refuse_tracked_links(path)
    if _is_current(path):
        yield path.parent
    yield path
    yield data_in(path)


def _is_current(path: Path) -> bool:
    """Return whether a file stands for its folder, a dataset of the current layout."""
    names = (METADATA_FILE_NAME, MAIN_FILE_NAME)
    if path.name not in names or not path.is_file() or not has_metadata_file(path.parent):
        return False
    found = MinariStorage.read_raw_metadata(path.parent)
    return path.name == METADATA_FILE_NAME or found.get("data_format", "hdf5") == "hdf5"


def _survey(storage: MinariStorage) -> tuple[list[int], list[str]]:
    """Return the steps of every episode, and sentences about what the source lacks."""
    unknown = list(getattr(storage, "unknown", ()))
    steps: list[int] = []
    without_seed = without_final = 0
    for attributes in storage.get_episode_metadata(range(storage.total_episodes)):
        steps.append(steps_of(attributes, storage))
        without_seed += attributes.get("seed") is None
        without_final += bool(attributes.get(FINAL_OBSERVATION_MISSING))
    if without_seed and not any("seeds" in sentence for sentence in unknown):
        unknown.append(f"{without_seed} of {len(steps)} episodes have no seed")
    if without_final and not any("last one is repeated" in sentence for sentence in unknown):
        unknown.append(
            f"{without_final} of {len(steps)} episodes have no observation after their last step: "
            "the last one is repeated"
        )
    empty = [str(index) for index, count in enumerate(steps) if not count]
    if empty:
        unknown.append(f"episodes without steps are left out: {', '.join(empty)[:200]}")
    if storage.jpeg_encoding and any(
        is_image_space(leaf)
        for space in (storage.observation_space, storage.action_space)
        for _, leaf in space_leaves(space)
    ):
        unknown.append("images may have been stored as JPEG, which loses detail")
    return steps, unknown


def _faults(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key that current readers, including real Minari, would refuse, and why."""
    yield from metadata_faults(metadata)
    for key in ("env_spec", "eval_env_spec"):
        try:
            parse_spec(metadata.get(key), key)
        except CorruptDatasetError as error:
            yield key, f"is not the spec of an environment: {error}"


def _todays_spec(spec: Any) -> Any:
    try:
        return todays_spec(spec)
    except (RecursionError, ValueError):
        return spec  # _faults reports it
