"""Find what other installed packages add to this one."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from importlib.metadata import EntryPoints
from typing import cast


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group.

    Finding them reads a file of every installed package. That is done once, and again only when
    the import path has changed.

    Example:
        >>> "minari-pipe" in entry_points("console_scripts").names
        True
    """
    return _all(tuple(map(os.path.abspath, sys.path))).select(group=group)


@functools.lru_cache(maxsize=4)
def _all(import_path: tuple[str, ...]) -> EntryPoints:
    # Before Python 3.12 another class, whose `select` is the same.
    return cast(EntryPoints, importlib.metadata.entry_points())
