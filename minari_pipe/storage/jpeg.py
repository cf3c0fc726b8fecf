"""Encode and decode JPEG columns, the standard's lossy encoding, used only on request."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.files.mapped import in_parts
from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import join_path, map_leaves
from minari_pipe.errors import (
    CorruptDatasetError,
    InvalidEpisodeError,
    MissingDependencyError,
    UnsupportedSpaceError,
)

try:
    from PIL import Image
except ModuleNotFoundError:  # optional; only JPEG images need it
    Image = None  # type: ignore[assignment]

_START = b"\xff\xd8\xff"
#: a JPEG file uses at least one bit per block of 64 values; a higher ratio is a decompression bomb
_MOST_VALUES_PER_BYTE = 1100
#: images up to this size are decoded without that check
_FREE_BYTES = 2**24


class Frames(list[bytes]):
    """The rows of an image leaf as the bytes of JPEG files, so that a copy loses no more detail."""


def is_jpeg(row: bytes | npt.NDArray[np.uint8]) -> bool:
    r"""Return whether a row's bytes are a JPEG file, which Minari's spaces do not determine.

    Example:
        >>> is_jpeg(b"\xff\xd8\xff\xe0 and so on")
        True
    """
    return bytes(row[:3]) == _START


def check_jpeg_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    """Raise an error if JPEG cannot hold every image leaf.

    Raises:
        UnsupportedSpaceError: an image has a channel axis that does not have 3 channels.
        MissingDependencyError: Pillow is not installed.
    """
    for name, space in (("observations", observation_space), ("actions", action_space)):
        for path, leaf in space_leaves(space):
            if not is_image_space(leaf):
                continue
            _require_pillow()
            assert leaf.shape is not None
            if len(leaf.shape) == 3 and leaf.shape[2] != 3:
                raise UnsupportedSpaceError(
                    f"JPEG cannot hold images of shape {leaf.shape} ({join_path((name, *path))}): "
                    "only (height, width) and (height, width, 3); with jpeg_encoding=False they "
                    "are stored without loss"
                )


def encode_column(space: gym.Space[Any], column: Any) -> Any:
    """Replace the image leaves of a column by :class:`Frames`; keep other leaves and Frames.

    Raises:
        InvalidEpisodeError: an image leaf is not uint8.
        MissingDependencyError: Pillow is not installed.

    Example:
        >>> pictures = np.zeros((2, 64, 64, 3), np.uint8)
        >>> frames = encode_column(spaces.Box(0, 255, (64, 64, 3), np.uint8), pictures)
        >>> is_jpeg(frames[0]), decode(frames, "two pictures").shape
        (True, (2, 64, 64, 3))
    """
    if isinstance(space, spaces.Dict):
        return {key: encode_column(part, column[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            encode_column(part, entry) for part, entry in zip(space.spaces, column, strict=True)
        )
    if is_image_space(space) and not isinstance(column, Frames):
        _require_pillow()
        if column.dtype != np.uint8:
            raise InvalidEpisodeError(
                f"images stored as JPEG must be uint8, got {column.dtype}; with "
                "jpeg_encoding=False they are stored without loss"
            )
        return Frames(_encode(row) for part in in_parts(column) for row in part)
    return column


def decode_column(column: Any) -> Any:
    """Replace all :class:`Frames` of a column by arrays; keep other leaves."""
    if isinstance(column, np.ndarray):
        return column

    def decoded(leaf: Any) -> Any:
        return decode(leaf, "an episode") if isinstance(leaf, Frames) else leaf

    return map_leaves(decoded, column)


def decode(
    rows: Sequence[bytes], where: str, shape: tuple[int, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """Decode images of one size.

    Args:
        rows: at least one JPEG file.
        where: name of the images in error messages.
        shape: shape of one image in its space, if known; a JPEG file does not distinguish
            ``(height, width, 1)`` from ``(height, width)``.

    Returns:
        Shape ``(rows, height, width)`` or ``(rows, height, width, 3)``, uint8.

    Raises:
        CorruptDatasetError: a row is not an image, differs in size, or claims a size that its
            bytes cannot hold.
        MissingDependencyError: Pillow is not installed.
    """
    _require_pillow()
    first = _open(rows[0], 0, where)
    bands = len(first.getbands())
    size = (first.height, first.width) if bands == 1 else (first.height, first.width, bands)
    if math.prod(size) * len(rows) > max(_FREE_BYTES, _MOST_VALUES_PER_BYTE * sum(map(len, rows))):
        raise CorruptDatasetError(
            f"{where} declares {len(rows)} JPEG images of shape {size}, far more than its bytes "
            "can hold"
        )
    decoded = np.empty((len(rows), *size), np.uint8)
    for index, row in enumerate(rows):
        image = _open(row, index, where)
        if (image.size, image.mode) != (first.size, first.mode):
            raise _damaged(index, where, f"its size is {image.size}, row 0 has {first.size}")
        try:
            decoded[index] = np.asarray(image)
        except Exception as error:  # Pillow's decoders can raise any exception
            raise _damaged(index, where, error) from error
    return decoded.reshape(-1, *shape) if shape == (*size, 1) else decoded


def _open(row: bytes, index: int, where: str) -> Any:
    try:
        # allow JPEG only: Pillow would run Ghostscript on a row that is PostScript
        return Image.open(io.BytesIO(row), formats=["JPEG"])
    except Exception as error:
        raise _damaged(index, where, error) from error


def _damaged(index: int, where: str, why: object) -> CorruptDatasetError:
    return CorruptDatasetError(f"{where} holds a damaged JPEG image in row {index}: {why}")


def _encode(row: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(row).save(buffer, format="JPEG")
    return buffer.getvalue()


def _require_pillow() -> None:
    if Image is None:
        raise MissingDependencyError(
            "JPEG images need the package pillow, which is not installed. Run: pip install "
            "'minari_pipe[jpeg]'"
        )
