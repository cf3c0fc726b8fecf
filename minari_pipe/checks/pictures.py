"""Compare pictures that were stored as JPEG with those of a replay.

Only the same encoder at the same quality gives the same bytes, but blocks of 8x8 pixels keep their
mean. For noise, textures and small objects at qualities 50 to 95 it is within 9.8 levels of that
at quality 75, which Minari and this package use. Swapping red and blue moves it by 30 or more,
flipping the rows upside down by 18 or more, unless the picture is symmetric.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.storage.jpeg import decode, encode_column

BLOCK = 8
#: Largest allowed difference between the means of a block.
LEVELS = 12.0


def picture_difference(recorded: np.ndarray, replayed: Any) -> str | None:
    """Return where a decoded picture differs from the JPEG of the replayed one, or ``None``."""
    replayed = np.asarray(replayed)
    if replayed.shape != recorded.shape:
        return f"recorded shape {recorded.shape}, replayed {replayed.shape}"
    space = gym.spaces.Box(0, 255, recorded.shape, np.uint8)
    frames = encode_column(space, replayed.astype(np.uint8)[None])
    expected = _block_means(decode(frames, "the replay", recorded.shape)[0])
    found = _block_means(recorded)
    gaps = np.abs(found - expected)
    if gaps.max() <= LEVELS:
        return None
    index = np.unravel_index(gaps.argmax(), gaps.shape)
    row, column = (BLOCK * int(i) for i in index[:2])
    channel = f", channel {index[2]}" if len(index) > 2 else ""
    return (
        f"recorded {found[index]:.0f}, replayed {expected[index]:.0f} as the mean of the "
        f"{BLOCK}x{BLOCK} pixels at ({row}, {column}){channel}; JPEG loses less than that"
    )


def _block_means(picture: np.ndarray) -> np.ndarray:
    """Return the means of blocks, shape ``(ceil(height / 8), ceil(width / 8), ...)``."""
    sums, sizes = picture.astype(np.float64), np.ones(picture.shape)
    for axis, length in enumerate(picture.shape[:2]):
        starts = np.arange(0, length, BLOCK)
        sums = np.add.reduceat(sums, starts, axis=axis)
        sizes = np.add.reduceat(sizes, starts, axis=axis)
    return sums / sizes
