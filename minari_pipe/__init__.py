"""Collect, publish and read Minari datasets; ``import minari_pipe as minari`` runs Minari code.

Importing the package is cheap: each public name is imported on first use.

Example:
    >>> import minari_pipe as minari
    >>> minari.__version__  # of this package  # doctest: +ELLIPSIS
    '0...'
    >>> sorted(minari.supported_dataset_versions)[-1]  # of the standard
    '0.5.4'
    >>> from minari_pipe.datasets.examples import step_index_dataset
    >>> path = step_index_dataset("example/steps-v0").storage.data_path
    >>> (path / minari.METADATA_FILE_NAME).relative_to(minari.get_dataset_path()).as_posix()
    'example/steps-v0/data/metadata.json'
"""

from __future__ import annotations

import importlib

from minari_pipe._version import __version__

TYPE_CHECKING = False  # not from typing: `python -m` would import a typing.py of this folder

_MODULES = {
    "minari_pipe.recording.collector": ("DataCollector",),
    "minari_pipe.recording.collector_v0": ("DataCollectorV0", "create_dataset_from_collector_env"),
    "minari_pipe.datasets.combine": (
        "combine_datasets",
        "split_dataset",
        "validate_datasets_to_combine",
    ),
    "minari_pipe.datasets.create": ("create_dataset_from_buffers",),
    "minari_pipe.datasets.dataset": ("MinariDataset",),
    "minari_pipe.core.dataset_id": (
        "gen_dataset_id",
        "parse_dataset_id",
    ),
    "minari_pipe.core.datasets_root": ("get_dataset_path",),
    "minari_pipe.core.episode": (
        "EpisodeBuffer",
        "EpisodeData",
        "EpisodeMetadataCallback",
        "StepData",
        "StepDataCallback",
    ),
    "minari_pipe.remotes.hosting": (
        "download_dataset",
        "download_namespace_metadata",
        "list_remote_datasets",
        "list_remote_namespaces",
        "load_dataset",
        "publish_dataset",
        "upload_dataset",
        "upload_namespace",
    ),
    "minari_pipe.datasets.library": (
        "delete_dataset",
        "list_local_datasets",
    ),
    "minari_pipe.core.metadata": ("supported_dataset_versions",),
    "minari_pipe.datasets.migrate": ("migrate_dataset",),
    "minari_pipe.datasets.namespaces": (
        "create_namespace",
        "delete_namespace",
        "get_namespace_metadata",
        "list_local_namespaces",
        "namespace_hierarchy",
        "update_namespace_metadata",
        "validate_namespace",
    ),
    "minari_pipe.core.scores": (
        "RandomPolicy",
        "get_average_reference_score",
        "get_normalized_score",
    ),
    "minari_pipe.core.spaces": (
        "deserialize_space",
        "is_image_space",
        "serialize_space",
    ),
    "minari_pipe.storage": (
        "METADATA_FILE_NAME",
        "MinariStorage",
        "get_storage_keys",
    ),
    "minari_pipe.recording.vector_collector": ("VectorDataCollector",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "METADATA_FILE_NAME",
    "DataCollector",
    "DataCollectorV0",
    "EpisodeBuffer",
    "EpisodeData",
    "EpisodeMetadataCallback",
    "MinariDataset",
    "MinariStorage",
    "RandomPolicy",
    "StepData",
    "StepDataCallback",
    "VectorDataCollector",
    "__version__",
    "combine_datasets",
    "create_dataset_from_buffers",
    "create_dataset_from_collector_env",
    "create_namespace",
    "delete_dataset",
    "delete_namespace",
    "deserialize_space",
    "download_dataset",
    "download_namespace_metadata",
    "gen_dataset_id",
    "get_average_reference_score",
    "get_dataset_path",
    "get_namespace_metadata",
    "get_normalized_score",
    "get_storage_keys",
    "is_image_space",
    "list_local_datasets",
    "list_local_namespaces",
    "list_remote_datasets",
    "list_remote_namespaces",
    "load_dataset",
    "migrate_dataset",
    "namespace_hierarchy",
    "parse_dataset_id",
    "publish_dataset",
    "serialize_space",
    "split_dataset",
    "supported_dataset_versions",
    "update_namespace_metadata",
    "upload_dataset",
    "upload_namespace",
    "validate_datasets_to_combine",
    "validate_namespace",
]

if TYPE_CHECKING:
    from minari_pipe.core.dataset_id import gen_dataset_id, parse_dataset_id
    from minari_pipe.core.datasets_root import get_dataset_path
    from minari_pipe.core.episode import (
        EpisodeBuffer,
        EpisodeData,
        EpisodeMetadataCallback,
        StepData,
        StepDataCallback,
    )
    from minari_pipe.core.metadata import supported_dataset_versions
    from minari_pipe.core.scores import (
        RandomPolicy,
        get_average_reference_score,
        get_normalized_score,
    )
    from minari_pipe.core.spaces import deserialize_space, is_image_space, serialize_space
    from minari_pipe.datasets.combine import (
        combine_datasets,
        split_dataset,
        validate_datasets_to_combine,
    )
    from minari_pipe.datasets.create import create_dataset_from_buffers
    from minari_pipe.datasets.dataset import MinariDataset
    from minari_pipe.datasets.library import delete_dataset, list_local_datasets
    from minari_pipe.datasets.migrate import migrate_dataset
    from minari_pipe.datasets.namespaces import (
        create_namespace,
        delete_namespace,
        get_namespace_metadata,
        list_local_namespaces,
        namespace_hierarchy,
        update_namespace_metadata,
        validate_namespace,
    )
    from minari_pipe.recording.collector import DataCollector
    from minari_pipe.recording.vector_collector import VectorDataCollector
    from minari_pipe.remotes.hosting import (
        download_dataset,
        download_namespace_metadata,
        list_remote_datasets,
        list_remote_namespaces,
        load_dataset,
        publish_dataset,
        upload_dataset,
        upload_namespace,
    )
    from minari_pipe.storage import METADATA_FILE_NAME, MinariStorage, get_storage_keys


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
