"""Ask environments which actions are allowed, as sb3-contrib's MaskablePPO does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.errors import ConfigError
from minari_pipe.policies.base import RowError

METHOD = "action_masks"
_MASKED = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ActionMasks:
    """The masks of a batch: one flag for each choice of each part of an action.

    ``Discrete(n)`` has ``n`` flags, ``MultiDiscrete`` the concatenated flags of its parts,
    ``MultiBinary(n)`` two for each switch: off and on.
    """

    def __init__(self, envs: Sequence[gym.Env], n_rows: int) -> None:
        """Find the method of every environment through its wrappers.

        Args:
            envs: the environments; row ``i`` belongs to ``envs[i]``.
            n_rows: size of the batch; rows without an environment allow every action.

        Raises:
            ConfigError: the action space has no discrete choices, or an environment has no method
                ``action_masks()``.
        """
        space = envs[0].action_space
        if not isinstance(space, _MASKED):
            raise ConfigError(
                f"actions of {space} cannot be masked; expected Discrete, MultiDiscrete or "
                f"MultiBinary"
            )
        self._sizes = part_sizes(space)
        self._starts = np.cumsum([0, *self._sizes[:-1]])
        self._masks = np.ones((n_rows, sum(self._sizes)), bool)
        self._ask = []
        for env in envs:
            method = _method(env)
            if method is None:
                name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
                raise ConfigError(
                    f"environment {name!r} has no method {METHOD}(); a MaskablePPO policy calls it "
                    f"at every step to get the allowed actions"
                )
            self._ask.append(method)

    @classmethod
    def of(cls, envs: Sequence[gym.Env], n_rows: int) -> ActionMasks | None:
        """Return the masks of environments that have any, ``None`` if all actions are allowed."""
        has_parts = isinstance(envs[0].action_space, _MASKED)
        return cls(envs, n_rows) if has_parts and _method(envs[0]) is not None else None

    def __call__(self, rows: Sequence[int]) -> np.ndarray:
        """Return the flags of this step, shape ``(B, flags)``.

        Raises:
            RowError: a method raised, or its mask has the wrong size or allows nothing.
        """
        self._masks[...] = True
        for row in rows:
            self._masks[row] = self._mask(row)
        return self._masks

    def _mask(self, row: int) -> np.ndarray:
        try:
            found = np.asarray(self._ask[row]())
        except Exception as exc:
            raise RowError(row, f"{METHOD}() raised {type(exc).__name__}: {exc}") from exc
        if found.dtype.kind not in "biuf" or found.size != sum(self._sizes):
            raise RowError(
                row,
                f"{METHOD}() returned {found.dtype} of shape {found.shape}; expected "
                f"{sum(self._sizes)} flags",
            )
        flags = found.reshape(-1).astype(bool)
        allowed = np.logical_or.reduceat(flags, self._starts)
        if not allowed.all():
            part = f" for part {np.argmin(allowed)}" if len(self._sizes) > 1 else ""
            raise RowError(row, f"{METHOD}() allows no action{part}")
        return flags


def _method(env: gym.Env) -> Callable[[], Any] | None:
    """Return the method that gives the mask of an environment, or ``None``."""
    try:
        method = env.get_wrapper_attr(METHOD)
    except AttributeError:
        return None
    return method if callable(method) else None


def sample_allowed(
    space: gym.Space, flags: npt.NDArray[np.bool_], rng: np.random.Generator
) -> np.ndarray:
    """Choose each part of an action uniformly from its allowed choices.

    Gymnasium's ``space.sample(mask)`` does the same, but its masks differ for each space.

    Args:
        space: the action space.
        flags: one flag for each choice of each part, as :class:`ActionMasks` returns them.
        rng: generator that is used once for each part.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sample_allowed(spaces.MultiDiscrete([2, 3]), np.array([0, 1, 1, 0, 0], bool), rng)
        array([1, 0])
    """
    parts = np.split(flags, np.cumsum(part_sizes(space))[:-1])
    chosen = np.array([rng.choice(np.flatnonzero(part)) for part in parts])
    return (chosen.reshape(space.shape or ()) + getattr(space, "start", 0)).astype(space.dtype)


def part_sizes(space: gym.Space) -> list[int]:
    """Return how many choices each part of a discrete action has.

    Example:
        >>> part_sizes(spaces.MultiDiscrete([2, 3])), part_sizes(spaces.MultiBinary(3))
        ([2, 3], [2, 2, 2])
    """
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    assert isinstance(space, spaces.Discrete)
    return [int(space.n)]
