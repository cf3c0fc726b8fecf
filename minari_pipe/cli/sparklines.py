"""Draw the distribution of some numbers as a line of text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minari_pipe.cli.tables import can_print
from minari_pipe.datasets.statistics import Element

#: most columns of a sparkline
BINS = 16
_BLOCKS = "▁▂▃▄▅▆▇█"
#: the same where the encoding of stdout has no blocks
_ASCII = ".:-=+*#@"


def sparkline(values: npt.NDArray[np.float64]) -> str:
    """Return a histogram from the least to the greatest value; a bin without values is a space.

    Args:
        values: the values, shape ``(N,)``; those that are not finite are left out.

    """
    levels = _BLOCKS if can_print(_BLOCKS) else _ASCII
    known = np.sort(values[np.isfinite(values)])
    span = float(known[-1] / 2 - known[0] / 2) if len(known) else 0.0  # halves cannot overflow
    # few whole numbers have a column each, else some columns would stay empty
    is_whole = 2 * span < BINS and bool((known == np.floor(known)).all())
    counts = Element(known).histogram(int(2 * span) + 1 if is_whole else BINS)
    heights = -(-counts * len(levels) // max(int(counts.max()), 1))  # rounded up
    return "".join(levels[height - 1] if height else " " for height in heights.tolist())
