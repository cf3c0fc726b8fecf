"""The old names of what moved to :mod:`minari_pipe.testing`."""

from __future__ import annotations

from minari_pipe.testing import (
    ARRAYS,
    FULL,
    assert_episode,
    assert_same,
    column,
    episode,
    examples,
    infos,
    options,
    spaces,
)
from minari_pipe.testing.strategies import TEXT

any_space = spaces()

__all__ = [
    "ARRAYS",
    "FULL",
    "TEXT",
    "any_space",
    "assert_episode",
    "assert_same",
    "column",
    "episode",
    "examples",
    "infos",
    "options",
]
