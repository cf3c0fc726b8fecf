"""Compares a reproduced dataset with the published one: counts exactly, values approximately."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from minari_pipe.core.tree import leaves
from minari_pipe.storage.attributes import exact_form
from minari_pipe.storage.base import MinariStorage

_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations", "infos", "extras")
#: Arrays whose entry ``t`` precedes step ``t``; entry ``t`` of the others belongs to the step.
_OBSERVED = ("observations", "infos")
_SCORES = ("ref_min_score", "ref_max_score")

#: The arrays of an episode, and its metadata.
_Episode = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass
class Compared:
    """The result of a comparison."""

    first: str | None = None
    """The first place where the two differ by more than allowed, and how."""
    largest: float = 0.0
    """The largest difference between two numbers up to that place."""
    n_values: int = 0
    """How many array elements were compared."""


def compare(published: Path, made: Path, tolerance: float) -> Compared:
    """Compare two datasets episode by episode.

    Args:
        published: the data folder of the published dataset.
        made: the data folder of the reproduced dataset.
        tolerance: largest difference of two floats ``a`` and ``b``, in units of
            ``max(1, abs(a))``; counts, seeds and all other values must be equal.
    """
    found = Compared()
    for place, what in _differences(published, made, tolerance, found):
        found.first = f"{place}: {what}"
        break
    return found


def _differences(
    published: Path, made: Path, tolerance: float, found: Compared
) -> Iterator[tuple[str, str]]:
    old, new = (MinariStorage.read(path) for path in (published, made))
    for index, (one, other) in enumerate(zip(_episodes(old), _episodes(new), strict=False)):
        for _, place, what in sorted(_of_episode(one, other, tolerance, found), key=itemgetter(0)):
            yield f"episode {index}{place}", what
    for key, a_n, b_n in (
        ("episodes", old.total_episodes, new.total_episodes),
        ("steps", old.total_steps, new.total_steps),
    ):
        if a_n != b_n:
            yield key, f"{b_n}, not {a_n}"
    yield from _of_metadata(published, made, tolerance, found)


def _of_episode(
    one: _Episode, other: _Episode, tolerance: float, found: Compared
) -> Iterator[tuple[float, str, str]]:
    """Yield time, place and description of each difference between two episodes."""
    (a, a_told), (b, b_told) = one, other
    for key in ("seed", "options"):
        if exact_form(a_told.get(key), key) != exact_form(b_told.get(key), key):
            yield -2, f", {key}", f"{b_told.get(key)}, not {a_told.get(key)}"
    if a_told["total_steps"] != b_told["total_steps"]:
        yield -1, "", f"{b_told['total_steps']} steps, not {a_told['total_steps']}"
        return
    for name in _ARRAYS:
        left, right = (dict(leaves(part.get(name), (name,))) for part in (a, b))
        if left.keys() != right.keys():
            keys = sorted(_dotted(path) for path in left.keys() ^ right.keys())
            yield -1, "", f"only one dataset has {', '.join(keys[:3])}"
            continue
        for path, values in left.items():
            for at, what in _of_arrays(values, right[path], tolerance, found):
                # An action lies between two observations.
                time = at[0] + 0.5 * (name not in _OBSERVED) if at else -1.0
                yield time, f", {_dotted(path)}{list(at) if at else ''}", what


def _episodes(storage: MinariStorage) -> Iterator[_Episode]:
    indices = range(storage.total_episodes)
    return zip(storage.get_episodes(indices), storage.get_episode_metadata(indices), strict=True)


def _of_arrays(
    a: Any, b: Any, tolerance: float, found: Compared
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the first index at which two arrays differ, () if dtype or shape do, and how."""
    left, right = np.asarray(a), np.asarray(b)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        yield (), f"{right.dtype} of shape {right.shape}, not {left.dtype} of shape {left.shape}"
        return
    found.n_values += left.size
    if left.dtype.kind != "f":
        apart = np.atleast_1d(left != right)
        gaps = None
    else:
        wide, other = (np.atleast_1d(x).astype(np.float64) for x in (left, right))
        same = (wide == other) | (np.isnan(wide) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            gaps = np.where(same, 0.0, np.abs(wide - other))
            apart = ~same & ~(gaps <= tolerance * np.maximum(1.0, np.abs(wide)))
        found.largest = max(found.largest, float(gaps.max(initial=0.0, where=np.isfinite(gaps))))
    if apart.any():
        at = tuple(int(k) for k in np.argwhere(apart)[0])
        one, two = (np.atleast_1d(x)[at] for x in (left, right))
        gap = "" if gaps is None else f" (largest difference {np.max(gaps):.3g})"
        yield at, f"{two}, not {one}{gap}"


def _of_metadata(
    published: Path, made: Path, tolerance: float, found: Compared
) -> Iterator[tuple[str, str]]:
    old, new = (MinariStorage.read_raw_metadata(path) for path in (published, made))
    for key in _SCORES:
        if old.get(key) is not None and new.get(key) is not None:
            for _, what in _of_arrays(float(old[key]), float(new[key]), tolerance, found):
                yield key, what
        elif old.get(key) != new.get(key):
            yield key, f"{new.get(key)}, not {old.get(key)}"


def _dotted(path: tuple[str | int, ...]) -> str:
    """Format a path in a tree, such as ``infos['arm'][0]``."""
    first, *rest = path
    return "".join([str(first), *itertools.chain(f"[{part!r}]" for part in rest)])
