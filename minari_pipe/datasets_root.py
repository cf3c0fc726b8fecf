"""Where the local root of datasets is; apart from the library, which takes 0.2 s to import."""

from __future__ import annotations

import os
from pathlib import Path

from minari_pipe.dataset_id import parse_dataset_id, validate_namespace
from minari_pipe.errors import ConfigError, CorruptDatasetError, InvalidDatasetIdError

ROOT_VARIABLE = "MINARI_DATASETS_PATH"


def get_dataset_path(dataset_id: str | None = None) -> Path:
    """Return the directory of a dataset or a namespace, or the root if none is given.

    The root is ``MINARI_DATASETS_PATH``, else ``~/.minari/datasets``; it is made if missing.

    Raises:
        ConfigError: the root is not there and cannot be made, or is no folder.
        InvalidDatasetIdError: the id would lead out of the root, or is malformed.
        CorruptDatasetError: a link below the root leads out of it.
    """
    configured = os.environ.get(ROOT_VARIABLE)
    root = Path(configured) if configured else Path.home() / ".minari" / "datasets"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(
            f"the datasets root {root} cannot be made ({exc.strerror}); set {ROOT_VARIABLE} to a "
            f"folder that you may write to"
        ) from exc
    if not dataset_id:
        return root
    try:
        validate_namespace(dataset_id)
    except InvalidDatasetIdError:
        parse_dataset_id(dataset_id)  # an id may be a single character, a namespace may not
    path = root / dataset_id
    if not path.resolve().is_relative_to(root.resolve()):
        raise CorruptDatasetError(
            f"{path} is a link that leads out of the datasets root to {path.resolve()}; move the "
            "data below the root, or set MINARI_DATASETS_PATH"
        )
    return path
