"""Matrices of parameters: few rows by default, all with ``MINARI_PIPE_FULL=1``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from tests.conftest import FULL


def covering(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every combination with ``FULL``; else as few as hold each value of each axis."""
    columns = [list(axis) for axis in axes]
    if FULL:
        return list(itertools.product(*columns))
    n_rows = max(map(len, columns))
    return [tuple(column[row % len(column)] for column in columns) for row in range(n_rows)]
