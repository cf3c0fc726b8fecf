"""Provide the demonstration policy, which replays recorded actions from recorded states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.core.tree import leaves
from minari_pipe.errors import ConfigError
from minari_pipe.policies.base import Policy
from minari_pipe.policies.demonstration_formats import Demonstration, read_demonstrations
from minari_pipe.policies.demonstration_formats.base import Array, quoted

WHAT = "the demonstrations"
OVERRIDE = "policy.source.path=FILE"


@dataclass
class _Replay:
    """The actions that one row replays, and the number of those already returned."""

    actions: Array
    next_step: int = 0


class DemonstrationPolicy(Policy):
    """Replays demonstration ``e`` of a file in episode ``e``.

    An option of ``reset`` sets the environment to the recorded initial state. The environment then
    steps through the recorded actions, clipped to its action space and cast to its dtype, so that
    observations, rewards and flags come from the simulator. Nothing is random. If the actions run
    out before the environment ends the episode, the episode is truncated there.

    The constructor reads and checks the file.
    """

    def __init__(
        self,
        source: FileSource | str | Path,
        format: str | None = None,
        reset_option: str = "initial_state_dict",
        state_keys: Sequence[str] | None = None,
    ) -> None:
        """Read the demonstrations.

        Args:
            source: where the file is; a plain path names a local file.
            format: ``"dapg"`` or ``"d4rl"``; ``None``: detected from the file's content.
            reset_option: name of the ``reset`` option that takes the initial state, a dict of
                arrays. The default is that of the Adroit environments of gymnasium-robotics.
            state_keys: names of the arrays in that dict. ``None``: those that the environment
                declares, if it does (Adroit), else all that the format knows as state.

        Raises:
            ConfigError: the source is incomplete, or its local file is missing or the wrong one.
            RemoteError: the file cannot be downloaded, or the download is the wrong file.
            UnknownFormatError: the file is in no known format.
            InvalidEpisodeError: the file is damaged or hostile, or cannot be replayed.
        """
        if not isinstance(source, FileSource):
            source = FileSource(path=str(source))
        path = locate(source, what=WHAT, override=OVERRIDE)
        self._demonstrations = read_demonstrations(path, format=format, state_keys=state_keys)
        self._label = f"demonstration file {str(path)!r}"
        self._reset_option = reset_option
        self._state_keys = tuple(state_keys) if state_keys is not None else None
        self._action_space: spaces.Box | None = None
        self._replays: list[_Replay | None] = []

    def bind(self, envs: Sequence[gym.Env]) -> None:
        """Check that the demonstrations fit the environments; see :meth:`Policy.bind`.

        Raises:
            ConfigError: actions or initial states do not fit.
        """
        env, first = envs[0], self._demonstrations[0]
        space, shape = env.action_space, first.actions.shape[1:]
        if not isinstance(space, spaces.Box) or space.shape != shape:
            raise ConfigError(
                f"{self._label} does not fit {_name(env)}: its actions have shape {shape}, the "
                f"action space is {space}. Check the file and env.id"
            )
        self._action_space = space
        state_space = getattr(env.unwrapped, "_state_space", None)
        if isinstance(state_space, spaces.Dict):
            self._check_state(env, state_space, first)
        self._check_state_is_taken(env, first)
        self._replays = [None] * len(envs)

    def _check_state_is_taken(self, env: gym.Env, first: Demonstration) -> None:
        """Reject an environment that ignores the initial state, because its replay is noise."""
        starts = []
        for seed in (0, 1):
            try:
                observation, _ = env.reset(seed=seed, options=self._options(first))
            except Exception as exc:
                raise ConfigError(
                    f"{_name(env)} failed in reset(options={{{self._reset_option!r}: ...}}): "
                    f"{type(exc).__name__}: {exc}. Set policy.reset_option to the reset option "
                    f"that takes a state, and policy.state_keys to the parts of that state"
                ) from exc
            starts.append([np.array(leaf) for _, leaf in leaves(observation)])
        if not all(np.array_equal(a, b) for a, b in zip(*starts, strict=True)):
            raise ConfigError(
                f"{_name(env)} ignores the state in reset(options={{{self._reset_option!r}: "
                f"...}}): two seeds gave different first observations. Set policy.reset_option to "
                f"the reset option that takes a state, or use an environment that has one"
            )

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        total = len(self._demonstrations)
        if not 0 <= episode < total:
            raise ConfigError(
                f"episode {episode} was requested, but {self._label} has only {total}, numbered 0 "
                f"to {total - 1}. Set collect.n_episodes to at most {total}"
            )
        assert self._action_space is not None, "bind() comes before start()"
        demonstration = self._demonstrations[episode]
        self._replays[row] = _Replay(_fitted(demonstration.actions, self._action_space))
        return self._options(demonstration)

    def _options(self, demonstration: Demonstration) -> dict[str, Any]:
        """Return the options of a reset to the initial state of the demonstration."""
        state = demonstration.initial_state
        keys = sorted(state) if self._state_keys is None else self._state_keys
        return {self._reset_option: {key: state[key].copy() for key in keys}}

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Array | None]:
        return [self._next_action(row) for row in rows]

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any]:
        """Compare the replay with the recording.

        Returns:
            ``recorded_steps``, ``replayed_steps``, ``recorded_return``, ``replayed_return``,
            ``recorded_terminal``, and ``observation_gap_max``, ``observation_gap_median``: maximum
            and median absolute difference between all entries of the recorded observations and
            the same rows of the replayed ones, ``None`` if their shapes differ. ``findings`` says
            whether the environment ended the episode before the actions ran out, or did not
            terminate at a recorded terminal step.
        """
        demonstration = self._demonstrations[episode]
        gap = _observation_gap(demonstration.observations, buffer.observations)
        return {
            "recorded_steps": len(demonstration),
            "replayed_steps": len(buffer.rewards),
            "recorded_return": _plain(np.sum(demonstration.rewards, dtype=np.float64)),
            "replayed_return": _plain(np.sum(buffer.rewards, dtype=np.float64)),
            "recorded_terminal": demonstration.terminal,
            "observation_gap_max": None if gap is None else _plain(gap.max()),
            "observation_gap_median": None if gap is None else _plain(np.median(gap)),
            "findings": _findings(episode, demonstration, buffer),
        }

    def n_episodes(self) -> int:
        return len(self._demonstrations)

    def _next_action(self, row: int) -> Array | None:
        replay = self._replays[row]
        assert replay is not None, "start() comes before act()"
        if replay.next_step == len(replay.actions):
            return None
        replay.next_step += 1
        action: Array = replay.actions[replay.next_step - 1]
        return action

    def _check_state(self, env: gym.Env, space: spaces.Dict, first: Demonstration) -> None:
        """Get the names of the state's parts from the environment, and compare their shapes."""
        if self._state_keys is None:
            self._state_keys = tuple(sorted(space.spaces))
        held, taken = first.initial_state, space.spaces
        if missing := [key for key in self._state_keys if key not in held]:
            raise ConfigError(
                f"{self._label} does not fit {_name(env)}: the environment's state has "
                f"{quoted(sorted(taken))}, the demonstrations' has {quoted(sorted(held))}; "
                f"missing: {quoted(missing)}"
            )
        for key in self._state_keys:
            if key in taken and held[key].shape != taken[key].shape:
                raise ConfigError(
                    f"{self._label} does not fit {_name(env)}: state part {key!r} has shape "
                    f"{held[key].shape}, the environment's has {taken[key].shape}"
                )


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _fitted(actions: Array, space: spaces.Box) -> Array:
    """Clip actions to the space and cast them to its dtype; the shape ``(T, ...)`` stays."""
    # Clip first, in the recorded precision: the bounds survive the cast, other values may not.
    clipped = np.clip(actions, space.low, space.high)
    if np.issubdtype(space.dtype, np.integer):
        clipped = np.rint(clipped)
    fitted: Array = clipped.astype(space.dtype)
    return fitted


def _observation_gap(recorded: Array, replayed: Any) -> Array | None:
    """Return ``|replayed - recorded|`` in the rows that both have, ``None`` if shapes differ."""
    if isinstance(replayed, dict | tuple):
        return None
    rows = np.asarray(replayed)
    if rows.shape[1:] != recorded.shape[1:]:
        return None
    n_rows = min(len(recorded), len(rows))
    gap: Array = np.abs(rows[:n_rows].astype(np.float64) - recorded[:n_rows])
    return gap if gap.size else None


def _plain(value: Any) -> float | None:
    """Return a float that JSON can hold, ``None`` for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def _findings(
    episode: int, demonstration: Demonstration, buffer: EpisodeBuffer
) -> list[dict[str, str]]:
    n_recorded, n_replayed = len(demonstration), len(buffer.rewards)
    terminated = bool(buffer.terminations[-1])
    if n_replayed < n_recorded:
        how = "terminated" if terminated else "truncated"
        message = (
            f"the environment {how} the episode at step {n_replayed - 1}, the demonstration has "
            f"{n_recorded} steps; the remaining actions were not replayed"
        )
    elif demonstration.terminal and not terminated:
        message = (
            f"the recording terminates at step {n_recorded - 1}, the environment did not terminate"
        )
    else:
        return []
    return [{"level": "warning", "path": f"episode {episode} / terminations", "message": message}]
