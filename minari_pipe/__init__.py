"""Collect, publish and read Minari datasets; ``import minari_pipe as minari`` runs Minari code.

Importing the package is cheap: each public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "minari_pipe.collector": ("DataCollector",),
    "minari_pipe.dataset": ("MinariDataset",),
    "minari_pipe.episode": (
        "EpisodeBuffer",
        "EpisodeData",
        "EpisodeMetadataCallback",
        "StepData",
        "StepDataCallback",
    ),
    "minari_pipe.creation": (
        "combine_datasets",
        "create_dataset_from_buffers",
        "split_dataset",
    ),
    "minari_pipe.library": (
        "delete_dataset",
        "list_local_datasets",
        "load_dataset",
    ),
    "minari_pipe.metadata": ("supported_dataset_versions",),
    "minari_pipe.scores": ("get_normalized_score",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DataCollector",
    "EpisodeBuffer",
    "EpisodeData",
    "EpisodeMetadataCallback",
    "MinariDataset",
    "StepData",
    "StepDataCallback",
    "__version__",
    "combine_datasets",
    "create_dataset_from_buffers",
    "delete_dataset",
    "get_normalized_score",
    "list_local_datasets",
    "load_dataset",
    "split_dataset",
    "supported_dataset_versions",
]

if TYPE_CHECKING:
    from minari_pipe.collector import DataCollector
    from minari_pipe.creation import (
        combine_datasets,
        create_dataset_from_buffers,
        split_dataset,
    )
    from minari_pipe.dataset import MinariDataset
    from minari_pipe.episode import (
        EpisodeBuffer,
        EpisodeData,
        EpisodeMetadataCallback,
        StepData,
        StepDataCallback,
    )
    from minari_pipe.library import delete_dataset, list_local_datasets, load_dataset
    from minari_pipe.metadata import supported_dataset_versions
    from minari_pipe.scores import get_normalized_score


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
