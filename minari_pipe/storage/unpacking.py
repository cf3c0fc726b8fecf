"""Limit the memory of what an episode holds beyond the values that the metadata announce.

The metadata announce a row for every step of the episode, in the shapes of its spaces; these values
are read however well they are compressed. Infos, extra step data, JPEG bytes and rows that the
metadata do not count are not announced. All of them together may take 64 MiB plus four times the
size of the file, or as much as writers of the standard can compress into such a file at most. A
format checks the sizes that a file declares before it decompresses anything.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import Path
from minari_pipe.errors import CorruptDatasetError

#: bytes that any file may unpack to
FREE_BYTES = 2**26
_TIMES_THE_FILE = 4
#: Snappy compresses Parquet files at most 21 to 1, and reading copies the values once
_MOST_PACKED = 64
#: bytes of a character in UTF-8, and of the overhead per value in a file
_LETTER, _AROUND = 4, 8


class Announced:
    """The bytes per row that the metadata of a dataset announce for each leaf.

    Example:
        >>> announced = Announced(spaces.Dict(a=spaces.Box(-1, 1, (2, 3))), spaces.Discrete(5))
        >>> announced.row_bytes(("observations", "a", "list", "element"))
        80
        >>> announced.row_bytes(("infos", "a"))
        0
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Compute the row sizes for these spaces."""
        self._leaves: dict[tuple[str, ...], int] = {
            (name,): 8 + _AROUND for name in ("rewards", "terminations", "truncations")
        }
        for name, space in (("observations", observation_space), ("actions", action_space)):
            for path, leaf in space_leaves(space, (name,)):
                self._leaves[tuple(map(str, path))] = _row_bytes(leaf)

    def row_bytes(self, path: Path) -> int:
        """Return the bytes per row of the leaf at or above a path, 0 if there is none.

        They are upper bounds that include the overhead of the file format.
        """
        names = tuple(map(str, path))
        for end in range(len(names), 0, -1):
            if names[:end] in self._leaves:
                return self._leaves[names[:end]]
        return 0

    def all_row_bytes(self) -> int:
        """Return the bytes per row of all leaves together."""
        return sum(self._leaves.values())


def _row_bytes(leaf: gym.Space[Any]) -> int:
    if isinstance(leaf, spaces.Text):
        return _LETTER * leaf.max_length + _AROUND
    size = math.prod(leaf.shape or ())
    # Parquet stores small integers in four bytes; a JPEG file can be larger than its pixels
    around = 2**16 if is_image_space(leaf) else _AROUND
    return size * (max(np.dtype(leaf.dtype).itemsize, 4) + _AROUND) + around


class Budget:
    """The memory that the values of an episode may take beyond what the metadata announce.

    Example:
        >>> budget = Budget(1000)
        >>> budget.take(2**26)
        >>> budget.take(2**20)
        Traceback (most recent call last):
        minari_pipe.errors.CorruptDatasetError: it declares at least 68157440 bytes of data that ...
    """

    def __init__(self, file_size: int) -> None:
        """Create the budget for values from a file of this size."""
        self._file_size = file_size
        self._limit = max(FREE_BYTES + _TIMES_THE_FILE * file_size, _MOST_PACKED * file_size)
        self._taken = 0

    def has(self, size: int) -> bool:
        """Return whether this many more bytes fit into the budget."""
        return self._taken + size <= self._limit

    def take(self, size: int) -> None:
        """Count bytes before they are unpacked.

        Raises:
            CorruptDatasetError: the budget is exceeded.
        """
        self._taken += size
        if self._taken > self._limit:
            raise CorruptDatasetError(
                f"it declares at least {self._taken} bytes of data that the metadata do not "
                f"announce, far more than a file of {self._file_size} bytes can hold (at most "
                f"{self._limit}); fetch the dataset again"
            )
