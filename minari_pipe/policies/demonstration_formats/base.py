"""What a demonstration is, and what every file of demonstrations must hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.errors import InvalidEpisodeError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode of ``T >= 1`` steps; there is no observation after the last step.

    Attributes:
        observations: shape ``(T, ...)``; row ``t`` was seen before action ``t``.
        actions: shape ``(T, ...)``, finite, as recorded: possibly outside the action space.
        rewards: shape ``(T,)``.
        terminal: whether the recording says that the environment terminated at its last step.
        initial_state: the simulator's state at row 0, by name; finite.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminal: bool
    initial_state: dict[str, Array]

    def __len__(self) -> int:
        return len(self.actions)


StateKeys = Sequence[str] | None
"""Names of the state's parts that are wanted; ``None``: those that the format knows as state."""


@dataclass(frozen=True)
class DemonstrationFormat:
    """One way to write demonstrations to a file.

    Attributes:
        name: as the config writes it.
        title: as messages write it.
        matches: tells from a file's content whether it is of this format.
        read: reads and checks a file; raises :class:`InvalidEpisodeError`.
    """

    name: str
    title: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, StateKeys], Sequence[Demonstration]]


def quoted(names: Iterable[str]) -> str:
    """Names out of a stranger's file, on one line of bearable length."""
    line = ", ".join(repr(name) for name in itertools.islice(names, 20)) or "nothing"
    return line if len(line) <= 200 else line[:200] + "…"


def check_demonstrations(demonstrations: Sequence[Demonstration], label: str) -> None:
    """Refuse a file that cannot be replayed, naming the demonstration.

    Args:
        demonstrations: of one file.
        label: the file, for messages.

    Raises:
        InvalidEpisodeError: no demonstration, one without steps, columns of different length,
            different shapes or parts of the state from one demonstration to the next, actions or
            states that are not finite.
    """
    if not len(demonstrations):
        raise InvalidEpisodeError(f"{label} holds no demonstrations")
    shapes: tuple[tuple[int, ...], ...] | None = None
    states: dict[str, tuple[int, ...]] = {}
    for index, demonstration in enumerate(demonstrations):
        where = f"{label}: demonstration {index}"
        check_columns(demonstration, where)
        found = (demonstration.actions.shape[1:], demonstration.observations.shape[1:])
        parts = {key: value.shape for key, value in demonstration.initial_state.items()}
        if shapes is None:
            shapes, states = found, parts
        if parts != states:
            key = sorted(key for key in {*parts, *states} if parts.get(key) != states.get(key))[0]
            raise InvalidEpisodeError(
                f"{where}: initial state {quoted([key])} {_shape(parts.get(key))}, that of "
                f"demonstration 0 {_shape(states.get(key))}"
            )
        if found != shapes:
            raise InvalidEpisodeError(
                f"{where}: one action and observation have the shapes {found[0]} and {found[1]}, "
                f"those of demonstration 0 have {shapes[0]} and {shapes[1]}"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has the shape {shape}"


def check_columns(demonstration: Demonstration, where: str) -> None:
    """Check one demonstration by itself; see :func:`check_demonstrations`."""
    columns = {
        "actions": demonstration.actions,
        "observations": demonstration.observations,
        "rewards": demonstration.rewards,
    }
    for name, column in columns.items():
        if column.ndim == 0:
            raise InvalidEpisodeError(f"{where}: {name} is a single number, not one row per step")
    n_steps = len(demonstration.actions)
    for name, column in columns.items():
        if len(column) != n_steps:
            raise InvalidEpisodeError(
                f"{where}: {name} has {len(column)} rows, actions has {n_steps}; each step needs "
                f"one of both (recordings of this kind have no observation after the last step)"
            )
    if n_steps == 0:
        raise InvalidEpisodeError(f"{where} has no steps")
    if demonstration.rewards.ndim != 1:
        raise InvalidEpisodeError(
            f"{where}: rewards has the shape {demonstration.rewards.shape}, expected ({n_steps},)"
        )
    _check_finite(demonstration.actions, f"{where}: actions")
    for key, value in demonstration.initial_state.items():
        _check_finite(value, f"{where}: initial state {quoted([key])}")


def _check_finite(values: Array, where: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InvalidEpisodeError(f"{where} is {values[place]} at {place}; it must be finite")
