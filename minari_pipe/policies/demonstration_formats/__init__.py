"""Register the file formats of demonstrations, one module for each, and read files in them.

Other packages add formats through the entry-point group ``minari_pipe.demonstration_formats``, each
entry a :class:`~minari_pipe.policies.demonstration_formats.base.DemonstrationFormat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import UnknownFormatError
from minari_pipe.policies.demonstration_formats import d4rl, dapg
from minari_pipe.policies.demonstration_formats.base import (
    Demonstration,
    DemonstrationFormat,
    StateKeys,
)

ENTRY_POINTS = "minari_pipe.demonstration_formats"
FORMATS: dict[str, DemonstrationFormat] = {
    known.name: known for known in (dapg.FORMAT, d4rl.FORMAT)
}

__all__ = ["ENTRY_POINTS", "FORMATS", "Demonstration", "DemonstrationFormat", "read_demonstrations"]


def read_demonstrations(
    path: Path, *, format: str | None = None, state_keys: StateKeys = None
) -> Sequence[Demonstration]:
    """Read and check a file of demonstrations.

    Args:
        path: the file.
        format: the name of its format; ``None``: detected from the content.
        state_keys: names of the state's parts to read; ``None``: the default of the format.

    Raises:
        UnknownFormatError: no format has this name, or none recognises the content.
        InvalidEpisodeError: the file is damaged, hostile, or cannot be replayed.
    """
    formats = FORMATS
    if format not in formats if format else not any(f.matches(path) for f in formats.values()):
        formats = {**FORMATS, **_installed()}
    known = ", ".join(f"{f.name} ({f.title})" for f in formats.values())
    if format is not None:
        if format not in formats:
            raise UnknownFormatError(f"unknown demonstration format {format!r}; known: {known}")
        return formats[format].read(path, state_keys)
    for candidate in formats.values():
        if candidate.matches(path):
            return candidate.read(path, state_keys)
    raise UnknownFormatError(
        f"{str(path)!r} is not in a known demonstration format ({known}). Check the file"
    )


def _installed() -> dict[str, DemonstrationFormat]:
    return {entry.name: entry.load() for entry in entry_points(ENTRY_POINTS)}
