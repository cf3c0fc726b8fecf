"""Provide the demonstration policy, which replays recorded actions, or tracks them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.core.tree import leaves
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.policies.base import Policy
from minari_pipe.policies.demonstration_formats import Demonstration, read_demonstrations
from minari_pipe.policies.demonstration_formats.base import Array, quoted
from minari_pipe.policies.tracking import Tracking

WHAT = "the demonstrations"
OVERRIDE = "policy.source.path=FILE"


@dataclass
class _Replay:
    """The actions or positions that one row replays, and the number of those already returned."""

    actions: Array
    next_step: int = 0


class DemonstrationPolicy(Policy):
    """Replays demonstration ``e`` of a source in episode ``e``.

    An option of ``reset`` sets the environment to the recorded initial state. The environment then
    steps through the recorded actions, clipped to its action space and cast to its dtype, so that
    observations, rewards and flags come from the simulator. Nothing is random. If the actions run
    out before the environment ends the episode, the episode is truncated there.

    With ``tracking``, the recorded actions are positions, and each action follows from the next
    position and the current observation; see :class:`Tracking`.

    The constructor reads and checks the file.
    """

    def __init__(
        self,
        source: FileSource | str | Path,
        format: str | None = None,
        reset_option: str | None = "initial_state_dict",
        state_keys: Sequence[str] | None = None,
        files: str | None = None,
        frame_skip: int = 1,
        tracking: Tracking | Mapping[str, Any] | None = None,
    ) -> None:
        """Read the demonstrations.

        Args:
            source: where the file is; a plain path names a local file.
            format: ``"dapg"``, ``"d4rl"`` or ``"mjl"``; ``None``: detected from the file's content.
            reset_option: name of the ``reset`` option that takes the initial state, a dict of
                arrays. The default is that of the Adroit environments of gymnasium-robotics.
                ``None``: the environment takes no state; an episode starts where its seed says.
            state_keys: names of the arrays in that dict. ``None``: those that the environment
                declares, if it does (Adroit), else all that the format knows as state.
            files: for a zip of logs: pattern of their names, such as ``"*_kettle_*/*"``.
            frame_skip: recorded steps, or frames, for one step of the environment.
            tracking: how actions follow from recorded positions; ``None``: they are recorded.

        Raises:
            ConfigError: the source is incomplete, or its local file is missing or the wrong one.
            RemoteError: the file cannot be downloaded, or the download is the wrong file.
            UnknownFormatError: the file is in no known format.
            InvalidEpisodeError: the file is damaged or hostile, or cannot be replayed.
        """
        if not isinstance(source, FileSource):
            source = FileSource(path=str(source))
        if not frame_skip >= 1:
            raise ConfigError(f"policy.frame_skip is {frame_skip}; expected 1 or more")
        if not isinstance(tracking, Tracking | None):
            tracking = Tracking.of(tracking, "policy.tracking")
        path = locate(source, what=WHAT, override=OVERRIDE)
        self._demonstrations = read_demonstrations(
            path, format=format, state_keys=state_keys, files=files
        )
        self._frame_skip = frame_skip
        self._tracking = tracking
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
        if self._tracking is not None:
            _check_tracking(env, self._tracking, space)
        state_space = getattr(env.unwrapped, "_state_space", None)
        if self._reset_option is None:
            self._check_model(env, first)
        else:
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
                f"the reset option that takes a state, or use an environment that has one; null "
                f"starts each episode where its seed says"
            )

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any] | None:
        total = len(self._demonstrations)
        if not 0 <= episode < total:
            raise ConfigError(
                f"episode {episode} was requested, but {self._label} has only {total}, numbered 0 "
                f"to {total - 1}. Set collect.n_episodes to at most {total}"
            )
        assert self._action_space is not None, "bind() comes before start()"
        demonstration = self._demonstration(episode)
        actions = demonstration.actions
        if self._tracking is None:
            actions = _fitted(actions, self._action_space)
        self._replays[row] = _Replay(actions)
        return self._options(demonstration)

    def _demonstration(self, episode: int) -> Demonstration:
        """Return the demonstration of an episode, in steps of the environment."""
        recorded = self._demonstrations[episode]
        found = recorded.every(self._frame_skip)
        if not len(found):
            raise InvalidEpisodeError(
                f"{self._label}: demonstration {episode} has {len(recorded)} steps, fewer than "
                f"policy.frame_skip, {self._frame_skip}"
            )
        return found

    def _options(self, demonstration: Demonstration) -> dict[str, Any] | None:
        """Return the options of a reset to the initial state of the demonstration."""
        if self._reset_option is None:
            return None
        state = demonstration.initial_state
        keys = sorted(state) if self._state_keys is None else self._state_keys
        return {self._reset_option: {key: state[key].copy() for key in keys}}

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Array | None]:
        return [self._next_action(o, row) for o, row in zip(observations, rows, strict=True)]

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any]:
        """Compare the replay with the recording.

        Returns:
            ``recorded_steps``, ``replayed_steps``, ``recorded_return``, ``replayed_return``,
            ``recorded_terminal``, and ``observation_gap_max``, ``observation_gap_median``: maximum
            and median absolute difference between all entries of the recorded observations and
            the same rows of the replayed ones, ``None`` if their shapes differ; with tracking,
            between the positions. ``findings`` says whether the environment ended the episode
            before the actions ran out, or did not terminate at a recorded terminal step.
        """
        demonstration = self._demonstration(episode)
        recorded, replayed = demonstration.observations, buffer.observations
        if self._tracking is not None:
            n = demonstration.actions.shape[1]
            replayed = _positions(replayed, self._tracking.key, n)
            recorded = recorded[..., :n]
        gap = _observation_gap(recorded, replayed)
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

    def _next_action(self, observation: Any, row: int) -> Array | None:
        replay = self._replays[row]
        assert replay is not None, "start() comes before act()"
        if replay.next_step == len(replay.actions):
            return None
        replay.next_step += 1
        action: Array = replay.actions[replay.next_step - 1]
        if self._tracking is None:
            return action
        assert self._action_space is not None, "bind() comes before act()"
        gain, limit = self._tracking.gain, self._tracking.limit
        distance = action.astype(np.float64) - _positions(
            observation, self._tracking.key, len(action)
        )
        return _fitted(np.clip(gain * distance, -limit, limit), self._action_space)

    def _check_model(self, env: gym.Env, first: Demonstration) -> None:
        """Compare the sizes of the recorded state with those of the environment's MuJoCo model."""
        model = getattr(env.unwrapped, "model", None)
        for key, size in (("qpos", "nq"), ("qvel", "nv")):
            expected = getattr(model, size, None)
            if key in first.initial_state and isinstance(expected, int):
                found = first.initial_state[key].size
                if found != expected:
                    raise ConfigError(
                        f"{self._label} does not fit {_name(env)}: its {key} has {found} numbers, "
                        f"the environment's has {expected}; it is a demonstration of another task"
                    )

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


def _check_tracking(env: gym.Env, tracking: Tracking, actions: spaces.Box) -> None:
    """Check that the observation holds a position for each entry of the action."""
    observations: Any = env.observation_space
    if tracking.key is not None:
        parts = observations.spaces if isinstance(observations, spaces.Dict) else {}
        observations = parts.get(tracking.key)
    n = actions.shape[0] if len(actions.shape) == 1 else None
    fits = isinstance(observations, spaces.Box) and len(observations.shape) == 1
    if n is None or not fits or observations.shape[0] < n:
        raise ConfigError(
            f"policy.tracking does not fit {_name(env)}: it needs a vector of actions, and the "
            f"same number of positions at the beginning of the observation, or of its part "
            f"policy.tracking.key, {tracking.key!r}. The action space is {actions}, the "
            f"observation space {env.observation_space!s:.200}"
        )


def _positions(observations: Any, key: str | None, n: int) -> Array:
    """Return the first ``n`` entries of one observation or of several, shape ``(..., n)``."""
    part: Array = np.asarray(observations if key is None else observations[key])[..., :n]
    return part


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
