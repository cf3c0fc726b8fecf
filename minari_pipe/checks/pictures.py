"""Pictures that were stored as JPEG, against those of a replay.

The same coder gives the same bytes, another one or another quality does not. Blocks of 8x8 pixels
keep their mean: with qualities from 50 to 95, of noise, textures and small objects, it is at most
9.8 levels from that of quality 75, which Minari and this package use. Red and blue exchanged move
it by 30 and more, a row order turned upside down by 18 and more, unless the picture is symmetric.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.storage.jpeg import decode, encode_column

BLOCK = 8
LEVELS = 12.0
"""Largest allowed difference between the means of a block."""


def picture_difference(recorded: np.ndarray, replayed: Any) -> str | None:
    """Say where a decoded picture is not what JPEG makes of the replayed one, else ``None``."""
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
        f"recorded {found[index]:.0f}, replayed {expected[index]:.0f} as the mean of the block of "
        f"{BLOCK}x{BLOCK} pixels at ({row}, {column}){channel}, beyond what JPEG loses"
    )


def _block_means(picture: np.ndarray) -> np.ndarray:
    """Means of blocks, shape ``(height / 8, width / 8, ...)``, rounded up."""
    sums, sizes = picture.astype(np.float64), np.ones(picture.shape)
    for axis, length in enumerate(picture.shape[:2]):
        starts = np.arange(0, length, BLOCK)
        sums = np.add.reduceat(sums, starts, axis=axis)
        sizes = np.add.reduceat(sizes, starts, axis=axis)
    return sums / sizes
