"""JPEG images in a column: the standard's lossy encoding, used only where it is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.errors import CorruptDatasetError, MissingDependencyError, UnsupportedSpaceError
from minari_pipe.spaces import is_image_space, space_leaves
from minari_pipe.tree import join_path

try:
    from PIL import Image
except ModuleNotFoundError:  # an optional package: only JPEG images need it
    Image = None  # type: ignore[assignment]

_START = b"\xff\xd8\xff"


class Frames(list[bytes]):
    """The rows of an image leaf as the bytes of JPEG files, so that a copy loses nothing more."""


def is_jpeg(row: bytes | npt.NDArray[np.uint8]) -> bool:
    """Whether a row's bytes are a JPEG file; what Minari wrote cannot be told by the space."""
    return bytes(row[:3]) == _START


def check_jpeg_spaces(observation_space: gym.Space, action_space: gym.Space) -> None:
    """Check that JPEG can hold every image leaf.

    Raises:
        UnsupportedSpaceError: an image has neither no channel axis nor 3 channels.
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


def encode_column(space: gym.Space, column: Any) -> Any:
    """Replace the image leaves of a column by :class:`Frames`; others stay."""
    if isinstance(space, spaces.Dict):
        return {key: encode_column(part, column[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            encode_column(part, entry) for part, entry in zip(space.spaces, column, strict=True)
        )
    if is_image_space(space) and not isinstance(column, Frames):
        return Frames(_encode(row) for row in column)
    return column


def decode(rows: Iterable[bytes], where: str) -> npt.NDArray[np.uint8]:
    """Decode images of one size.

    Args:
        rows: at least one JPEG file.
        where: what they are, for messages.

    Returns:
        Shape ``(rows, height, width)`` or ``(rows, height, width, 3)``, uint8.

    Raises:
        CorruptDatasetError: one of them is no image, or has another size.
        MissingDependencyError: Pillow is not installed.
    """
    _require_pillow()
    try:
        with np.errstate(all="ignore"):
            return np.stack([np.asarray(Image.open(io.BytesIO(row))) for row in rows])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise CorruptDatasetError(f"{where} holds a damaged JPEG image: {error}") from error


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
