"""Find what other installed packages add to this one."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from importlib.metadata import EntryPoints


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group.

    Finding them reads a file of every installed package. That is done once for a group, and again
    only when the import path has changed.

    Example:
        >>> "minari-pipe" in entry_points("console_scripts").names
        True
    """
    return _on(tuple(map(os.path.abspath, sys.path)), group)


@functools.lru_cache(maxsize=16)
def _on(import_path: tuple[str, ...], group: str) -> EntryPoints:
    return importlib.metadata.entry_points(group=group)
