"""Find what other installed packages add to this one."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoints
from typing import Any, cast


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group.

    Finding them reads a file of every installed package. That is done once, and again only when
    the import path has changed.

    Example:
        >>> "minari-pipe" in entry_points("console_scripts").names
        True
    """
    return _all(tuple(map(os.path.abspath, sys.path))).select(group=group)


def load(name: str, known: Mapping[str, str]) -> Any:
    """Return what a registry names, for a package's ``__getattr__``: it is imported on first use.

    Args:
        name: dotted name, as in a config.
        known: ``module:attribute`` of each definition, by such names.

    Raises:
        AttributeError: there is no such name.

    Example:
        >>> load("here.Fraction", {"here.Fraction": "fractions:Fraction"}).__name__
        'Fraction'
    """
    if name not in known:
        package, _, attribute = name.rpartition(".")
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}")
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.lru_cache(maxsize=4)
def _all(import_path: tuple[str, ...]) -> EntryPoints:
    # Before Python 3.12 another class, whose `select` is the same.
    return cast(EntryPoints, importlib.metadata.entry_points())
