"""Define a demonstration and its file format, and check what every file must hold."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minari_pipe.errors import InvalidEpisodeError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode of ``T >= 1`` steps; there is no observation after the last step.

    Attributes:
        observations: shape ``(T, ...)``; row ``t`` was observed before action ``t``.
        actions: shape ``(T, ...)``, finite, as recorded, possibly outside the action space.
        rewards: shape ``(T,)``; NaN in a format that has none.
        terminal: whether the environment terminated at the last recorded step.
        initial_state: arrays of the simulator's state at row 0, by name; finite.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminal: bool
    initial_state: dict[str, Array]

    def __len__(self) -> int:
        return len(self.actions)

    def every(self, n: int) -> Demonstration:
        """Return a demonstration whose steps last ``n`` recorded ones; a shorter rest is left out.

        The action of a step is that of its first recorded one, its reward is their sum.

        Example:
            >>> column = np.arange(5.0)
            >>> short = Demonstration(column, column, column, False, {}).every(2)
            >>> short.actions, short.rewards
            (array([0., 2.]), array([1., 5.]))
        """
        stop = len(self) // n * n
        return replace(
            self,
            observations=self.observations[:stop:n],
            actions=self.actions[:stop:n],
            rewards=self.rewards[:stop].reshape(-1, n).sum(axis=1),
        )


class LazyDemonstrations(Sequence[Demonstration]):
    """The demonstrations of a source, each read on access because all may reach gigabytes."""

    @abstractmethod
    def _read(self, index: int) -> Demonstration:
        """Read the demonstration of an index from 0 to the length."""

    @overload
    def __getitem__(self, index: int) -> Demonstration: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Demonstration]: ...
    def __getitem__(self, index: int | slice) -> Demonstration | Sequence[Demonstration]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._read(index % len(self))


#: Names of the state's parts to read; ``None``: those that the format knows as state.
StateKeys = Sequence[str] | None


@dataclass(frozen=True)
class DemonstrationFormat:
    """A file format of demonstrations.

    Attributes:
        name: its name in configs.
        title: its name in messages.
        matches: returns whether the content of a file is in this format.
        read: reads and checks a file; raises :class:`InvalidEpisodeError`.
        has_files: whether a source may be an archive of several files; ``read`` then also takes a
            pattern of their names, or ``None`` for all.
    """

    name: str
    title: str
    matches: Callable[[Path], bool]
    read: Callable[..., Sequence[Demonstration]]
    has_files: bool = False


def quoted(names: Iterable[str]) -> str:
    """Return names from an untrusted file in one line of limited length."""
    line = ", ".join(repr(name) for name in itertools.islice(names, 20)) or "nothing"
    return line if len(line) <= 200 else line[:200] + "…"


def check_demonstrations(demonstrations: Sequence[Demonstration], label: str) -> None:
    """Reject a file that cannot be replayed, and name the faulty demonstration.

    Args:
        demonstrations: the demonstrations of one file.
        label: name of the file in messages.

    Raises:
        InvalidEpisodeError: there is no demonstration, one has no steps, columns of different
            length, or actions or states that are not finite, or shapes or parts of the state
            differ between demonstrations.
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
                f"{where}: initial state {quoted([key])} {_shape(parts.get(key))}; in "
                f"demonstration 0 it {_shape(states.get(key))}"
            )
        if found != shapes:
            raise InvalidEpisodeError(
                f"{where}: an action and an observation have shapes {found[0]} and {found[1]}; in "
                f"demonstration 0 they have {shapes[0]} and {shapes[1]}"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {shape}"


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
                f"one row of each (such recordings have no observation after the last step)"
            )
    if n_steps == 0:
        raise InvalidEpisodeError(f"{where} has no steps")
    if demonstration.rewards.ndim != 1:
        raise InvalidEpisodeError(
            f"{where}: rewards has shape {demonstration.rewards.shape}, expected ({n_steps},)"
        )
    _check_finite(demonstration.actions, f"{where}: actions")
    for key, value in demonstration.initial_state.items():
        _check_finite(value, f"{where}: initial state {quoted([key])}")


def _check_finite(values: Array, where: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InvalidEpisodeError(f"{where} is {values[place]} at {place}; it must be finite")
