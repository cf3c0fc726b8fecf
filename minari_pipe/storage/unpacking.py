"""How much memory the values of an episode may take, so that no small file can fill it.

What the metadata announce is read, however well it is packed: a row for every step of the episode,
of the shapes of its spaces. Nobody announces the rest: infos, extra step data, the bytes of images,
rows that the metadata do not count. All of it together may take 64 MiB and four times the bytes of
the file, or as much as the writers of the standard pack at most into such a file. A format judges
by what a file declares, before it unpacks anything.
"""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import Path
from minari_pipe.errors import CorruptDatasetError

#: bytes that any file may unpack to
FREE_BYTES = 2**26
_TIMES_THE_FILE = 4
#: snappy, of Parquet files, packs at most 21 to 1, and values are copied once while they are read
_MOST_PACKED = 64
#: bytes of a letter in UTF-8, and of what is around a value in a file
_LETTER, _AROUND = 4, 8


class Announced:
    """What the metadata say of the rows of a dataset's episodes: how many bytes each leaf has.

    Example:
        >>> announced = Announced(spaces.Dict(a=spaces.Box(-1, 1, (2, 3))), spaces.Discrete(5))
        >>> announced.row_bytes(("observations", "a", "list", "element"))
        80
        >>> announced.row_bytes(("infos", "a"))
        0
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Take the spaces of one row."""
        self._leaves: dict[tuple[str, ...], int] = {
            (name,): 8 + _AROUND for name in ("rewards", "terminations", "truncations")
        }
        for name, space in (("observations", observation_space), ("actions", action_space)):
            for path, leaf in space_leaves(space, (name,)):
                self._leaves[tuple(map(str, path))] = _row_bytes(leaf)

    def row_bytes(self, path: Path) -> int:
        """Return the bytes of a row of the leaf at or above a path, 0 if there is none.

        They are bounds: what a file puts around the values counts as well.
        """
        names = tuple(map(str, path))
        for end in range(len(names), 0, -1):
            if names[:end] in self._leaves:
                return self._leaves[names[:end]]
        return 0

    def all_row_bytes(self) -> int:
        """Return the bytes of a row of all leaves."""
        return sum(self._leaves.values())


def _row_bytes(leaf: gym.Space) -> int:
    if isinstance(leaf, spaces.Text):
        return _LETTER * leaf.max_length + _AROUND
    size = math.prod(leaf.shape or ())
    # as Parquet holds them, small integers take four bytes; a JPEG file can be longer than pixels
    around = 2**16 if is_image_space(leaf) else _AROUND
    return size * (max(np.dtype(leaf.dtype).itemsize, 4) + _AROUND) + around


class Budget:
    """The bytes that the values of an episode may take in memory besides what is announced.

    Example:
        >>> budget = Budget(1000)
        >>> budget.take(2**26)
        >>> budget.take(2**20)
        Traceback (most recent call last):
        minari_pipe.errors.CorruptDatasetError: it declares at least 68157440 bytes of data that ...
    """

    def __init__(self, file_size: int) -> None:
        """Begin with the size of the file that the values come from."""
        self._file_size = file_size
        self._limit = max(FREE_BYTES + _TIMES_THE_FILE * file_size, _MOST_PACKED * file_size)
        self._taken = 0

    def has(self, size: int) -> bool:
        """Tell whether so many bytes more may be taken."""
        return self._taken + size <= self._limit

    def take(self, size: int) -> None:
        """Count bytes before they are unpacked.

        Raises:
            CorruptDatasetError: they are too many.
        """
        self._taken += size
        if self._taken > self._limit:
            raise CorruptDatasetError(
                f"it declares at least {self._taken} bytes of data that no metadata announce, far "
                f"more than a file of {self._file_size} bytes can hold (at most {self._limit}); "
                "get the dataset again from where it comes from"
            )
