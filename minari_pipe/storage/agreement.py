"""Check that the columns read for an episode match each other, the spaces and the step count; pure.

A file declares the length of each column, so a damaged or hand-made file can declare lengths that
no writer would produce. Older layouts have their own checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.spaces import ARRAY_SPACES
from minari_pipe.core.tree import Path, leaves
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.columns import subscripts
from minari_pipe.storage.jpeg import Frames

#: columns with one number per step, and the dtype kinds that real Minari writes for them
STEP_KINDS = {"rewards": "biuf", "terminations": "biu", "truncations": "biu"}


def check_agreement(
    episode: Mapping[str, Any],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    total_steps: Any,
) -> None:
    """Check the columns of an episode against each other, the spaces and the number of steps.

    The dtype of a number may differ from the space's: real Minari stores what it is given.

    Args:
        episode: ``observations``, ``actions``, ``rewards``, ``terminations``, ``truncations``,
            ``infos`` and ``extras``: trees of columns as a format reads them.
        observation_space: space of one observation.
        action_space: space of one action.
        total_steps: value of the episode's ``total_steps`` attribute.

    Raises:
        CorruptDatasetError: columns do not match; the message names the leaf and both numbers.

    Example:
        >>> columns = {
        ...     "observations": np.zeros(3), "actions": np.zeros(2), "rewards": np.zeros(2),
        ...     "terminations": np.zeros(1, bool), "truncations": np.zeros(2, bool), "infos": {},
        ... }
        >>> check_agreement(columns, spaces.Discrete(1), spaces.Discrete(1), 2)
        Traceback (most recent call last):
        minari_pipe.errors.CorruptDatasetError: terminations has 1 steps, rewards has 2
    """
    steps = _rows(episode["rewards"], ("rewards",))
    for name, kinds in STEP_KINDS.items():
        column = episode[name]
        _expect(column, (name,), steps, "steps")
        # real Minari stores rewards of shape (T, 1) unchanged
        if column.shape[1:] not in ((), (1,)) or column.dtype.kind not in kinds:
            raise CorruptDatasetError(
                f"{name} is {column.dtype} in rows of shape {column.shape[1:]}, expected one "
                f"{'number' if name == 'rewards' else 'boolean'} per step"
            )
    for path, space, leaf in _of_space(episode["actions"], action_space, ("actions",)):
        _expect(leaf, path, steps, "steps")
        _check_leaf(leaf, space, path)
    for path, space, leaf in _of_space(
        episode["observations"], observation_space, ("observations",)
    ):
        _expect(leaf, path, steps + 1, "rows")
        _check_leaf(leaf, space, path)
    for path, leaf in leaves(episode["infos"], ("infos",)):
        _expect(leaf, path, steps + 1, "rows")
    for path, leaf in leaves(episode.get("extras") or {}, ("extras",)):
        if _rows(leaf, path) != steps:
            _expect(leaf, path, steps + 1, "rows")
    check_total(total_steps, steps)


def check_total(total_steps: Any, steps: int) -> None:
    """Check the ``total_steps`` attribute against the number of rewards.

    Raises:
        CorruptDatasetError: Minari would not have written this value for this number of steps.
    """
    total_steps = total_steps.item() if isinstance(total_steps, np.generic) else total_steps
    is_count = isinstance(total_steps, int) and not isinstance(total_steps, bool)
    # when Minari 0.5.4 continues an episode, it sets total_steps to the number of added steps
    if not is_count or not min(1, steps) <= total_steps <= steps:
        said = (
            "the attribute total_steps is missing"
            if total_steps is None
            else (f"the attribute total_steps is {total_steps!r:.60}")
        )
        raise CorruptDatasetError(f"{said}, rewards has {steps} steps")


def _of_space(
    tree: Any, space: gym.Space[Any], path: Path
) -> Iterator[tuple[Path, gym.Space[Any], Any]]:
    """Yield the leaves of a column, each with its path and its space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _of_space(tree[key], part, (*path, key))
    else:
        yield path, space, tree


def _check_leaf(leaf: Any, space: gym.Space[Any], path: Path) -> None:
    if isinstance(leaf, Frames):  # decoding checks their shapes
        return
    if isinstance(space, spaces.Text):
        if not isinstance(leaf, list) or not all(isinstance(text, str) for text in leaf):
            raise CorruptDatasetError(f"{subscripts(path)} is not text, the space expects {space}")
    elif isinstance(space, ARRAY_SPACES):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc":
            raise CorruptDatasetError(
                f"{subscripts(path)} is not numeric, the space expects {space}"
            )
        if leaf.shape[1:] != space.shape:
            raise CorruptDatasetError(
                f"{subscripts(path)} has rows of shape {leaf.shape[1:]}, the space expects "
                f"{space.shape}"
            )


def _expect(leaf: Any, path: Path, expected: int, unit: str) -> None:
    rows = _rows(leaf, path)
    if rows != expected:
        steps = expected if unit == "steps" else expected - 1
        more = "" if unit == "steps" else f" steps (expected {expected} rows)"
        raise CorruptDatasetError(
            f"{subscripts(path)} has {rows} {unit}, rewards has {steps}{more}"
        )


def _rows(leaf: Any, path: Path) -> int:
    is_rows = isinstance(leaf, list) or (isinstance(leaf, np.ndarray) and leaf.ndim > 0)
    if not is_rows:
        raise CorruptDatasetError(f"{subscripts(path)} is not an array or a list of rows")
    return len(leaf)
