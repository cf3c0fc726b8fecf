"""Register the file formats of demonstrations, one module for each, and read files in them.

Other packages add formats through the entry-point group ``minari_pipe.demonstration_formats``, each
entry a :class:`~minari_pipe.policies.demonstration_formats.base.DemonstrationFormat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import ConfigError, UnknownFormatError
from minari_pipe.policies.demonstration_formats import d4rl, dapg, mjl
from minari_pipe.policies.demonstration_formats.base import (
    Demonstration,
    DemonstrationFormat,
    StateKeys,
)

ENTRY_POINTS = "minari_pipe.demonstration_formats"
#: In the order in which a file's content is tried; a log may begin with the first byte of a pickle.
FORMATS: dict[str, DemonstrationFormat] = {
    known.name: known for known in (mjl.FORMAT, dapg.FORMAT, d4rl.FORMAT)
}

__all__ = ["ENTRY_POINTS", "FORMATS", "Demonstration", "DemonstrationFormat", "read_demonstrations"]


def read_demonstrations(
    path: Path,
    *,
    format: str | None = None,
    state_keys: StateKeys = None,
    files: str | None = None,
) -> Sequence[Demonstration]:
    """Read and check a file of demonstrations.

    Args:
        path: the file.
        format: the name of its format; ``None``: detected from the content.
        state_keys: names of the state's parts to read; ``None``: the default of the format.
        files: pattern of the names to read in an archive; ``None``: all.

    Raises:
        UnknownFormatError: no format has this name, or none recognises the content.
        ConfigError: ``files`` is given, but the file is no archive.
        InvalidEpisodeError: the file is damaged, hostile, or cannot be replayed.
    """
    formats = FORMATS
    if format not in formats if format else not any(f.matches(path) for f in formats.values()):
        formats = {**FORMATS, **_installed()}
    known = ", ".join(f"{f.name} ({f.title})" for f in formats.values())
    if format is not None and format not in formats:
        raise UnknownFormatError(f"unknown demonstration format {format!r}; known: {known}")
    candidates = [
        f for f in formats.values() if f.name == format or (not format and f.matches(path))
    ]
    if not candidates:
        raise UnknownFormatError(
            f"{str(path)!r} is not in a known demonstration format ({known}). Check the file"
        )
    found = candidates[0]
    if found.has_files:
        return found.read(path, state_keys, files)
    if files is not None:
        raise ConfigError(
            f"policy.files is {files!r}, which chooses files of an archive, but {str(path)!r} is "
            f"one file ({found.title}); leave policy.files out"
        )
    return found.read(path, state_keys)


def _installed() -> dict[str, DemonstrationFormat]:
    return {entry.name: entry.load() for entry in entry_points(ENTRY_POINTS)}
