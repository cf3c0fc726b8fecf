"""Provide the tests that every storage must pass, and strategies that generate the test data.

A package that registers a format under the entry-point group ``minari_pipe.storages`` tests it with
three lines in a pytest file::

    from minari_pipe.testing import StorageContract

    class TestMine(StorageContract):
        data_format = "mine"

The tests need pytest and Hypothesis, which ``pip install minari_pipe`` does not install.
``MINARI_PIPE_FULL=1`` in the environment runs the random cases at full count.

Example:
    Episodes of any space, for your own property tests:

    >>> from hypothesis import given
    >>> @examples(5)
    ... @given(datasets())
    ... def test_every_episode_has_a_row_for_the_reset(dataset):
    ...     for buffer in dataset.buffers:
    ...         assert len(buffer.rewards) == len(buffer)
    >>> test_every_episode_has_a_row_for_the_reset()
"""

from __future__ import annotations

import pytest

_PARTS = ("base", "changes", "comparison", "images", "processes", "remotes", "values")
# Failed assertions in these modules show the compared values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from minari_pipe.testing.base import ACTION, OBSERVATION, make, steps_of  # noqa: E402
from minari_pipe.testing.comparison import (  # noqa: E402
    ARRAYS,
    assert_episode,
    assert_same,
    assert_stored,
    files,
    state,
)
from minari_pipe.testing.contract import StorageContract  # noqa: E402
from minari_pipe.testing.strategies import (  # noqa: E402
    FULL,
    Dataset,
    column,
    datasets,
    episode,
    episodes,
    examples,
    extras,
    infos,
    options,
    spaces,
)

__all__ = [
    "ACTION",
    "ARRAYS",
    "FULL",
    "OBSERVATION",
    "Dataset",
    "StorageContract",
    "assert_episode",
    "assert_same",
    "assert_stored",
    "column",
    "datasets",
    "episode",
    "episodes",
    "examples",
    "extras",
    "files",
    "infos",
    "make",
    "options",
    "spaces",
    "state",
    "steps_of",
]
