"""The bytes of one dataset: one module per format behind one interface."""

from __future__ import annotations

from minari_pipe.storage.base import (
    METADATA_FILE_NAME,
    MinariStorage,
    get_minari_storage,
    get_storage_keys,
)

__all__ = ["METADATA_FILE_NAME", "MinariStorage", "get_minari_storage", "get_storage_keys"]
