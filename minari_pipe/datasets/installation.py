"""Install a dataset in the local root, whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minari_pipe.core.dataset_id import check_new_dataset_id, parse_dataset_id
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path, writing_below_root
from minari_pipe.core.files.links import held_folder
from minari_pipe.core.files.locks import hidden_folder
from minari_pipe.core.files.manifest import ensure_manifest
from minari_pipe.datasets.namespaces import making_namespaces, refuse_datasets
from minari_pipe.errors import DatasetExistsError


@contextmanager
def new_dataset(dataset_id: str) -> Iterator[Path]:
    """Yield the data directory of a new dataset, and install the dataset at a clean exit.

    On an error nothing is left behind, and the id stays free. Files of a killed process are
    hidden, and the next process that makes or deletes a dataset removes them.

    Raises:
        InvalidDatasetIdError: the id is malformed, has no version or cannot be a directory of the
            root.
        DatasetExistsError: the id is taken, or another process takes it meanwhile.
        ConfigError: the root is read-only.

    Example:
        >>> with new_dataset("door-v0") as path:
        ...     _ = (path / "metadata.json").write_text("{}")
        >>> data_path_of("door-v0") == path, data_path_of("door-v0").exists()
        (False, True)
        >>> from minari_pipe import delete_dataset
        >>> delete_dataset("door-v0")
    """
    check_new_dataset_id(dataset_id)
    namespace = parse_dataset_id(dataset_id)[0]
    target = get_dataset_path(dataset_id)
    if os.path.lexists(target) or os.path.lexists(data_path_of(dataset_id)):
        raise _taken(dataset_id)
    refuse_datasets(namespace)
    with ExitStack() as stack:
        with writing_below_root():
            stage = stack.enter_context(hidden_folder(get_dataset_path()))
            (stage / "data").mkdir()
        yield stage / "data"
        ensure_manifest(stage)
        install(stage, dataset_id)


def install(stage: Path, dataset_id: str) -> None:
    """Move a finished dataset to its place in the local root, which must be free.

    Args:
        stage: the folder that holds ``data/``, in the root.
        dataset_id: id of the dataset.

    Raises:
        DatasetExistsError: the id is taken.
        ConfigError: the root is read-only.
    """
    try:
        target, root = get_dataset_path(dataset_id), get_dataset_path()
        with (
            making_namespaces(parse_dataset_id(dataset_id)[0]),
            writing_below_root(),
            held_folder(target.parent, root) as folder,
        ):
            stage.rename(folder / target.name)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _taken(dataset_id) from error
        raise


def _taken(dataset_id: str) -> DatasetExistsError:
    return DatasetExistsError(
        f"A Minari dataset with ID {dataset_id} already exists and it cannot be overridden. "
        "Please use a different dataset name or version."
    )
