"""The old names of what moved to :mod:`minari_pipe.testing`."""

from __future__ import annotations

from minari_pipe.testing import (
    ACTION,
    OBSERVATION,
    StorageContract,
    assert_stored,
    files,
    make,
)

__all__ = ["ACTION", "OBSERVATION", "StorageContract", "assert_stored", "files", "make"]
