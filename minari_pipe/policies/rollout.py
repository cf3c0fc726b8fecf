"""Run a policy in environments that step in lockstep, with one generator per episode.

Episode ``e`` derives its reset seed and the policy's generator from
``np.random.SeedSequence(seed, spawn_key=(e,))``. So an episode does not depend on which environment
runs it, on what ran before, or on how the episodes are divided into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import gymnasium as gym
import numpy as np

from minari_pipe.core.episode import EpisodeBuffer, copied
from minari_pipe.errors import ConfigError, InvalidEpisodeError, MinariPipeError, Stopped
from minari_pipe.policies.actions import element
from minari_pipe.policies.base import Policy, RowError
from minari_pipe.policies.recorded import Recorded, recorded_env
from minari_pipe.recording.recorder import EpisodeRecorder
from minari_pipe.storage.attributes import check_options
from minari_pipe.storage.columns import check_space_names

#: Passed on unchanged. All other errors get the number of their episode, including some that are
#: not an ``Exception``: a policy or an environment may call ``sys.exit``, and Rust code panics.
_PASSED = (ConfigError, Stopped, KeyboardInterrupt)

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


def episode_seed(seed: int, episode: int) -> tuple[int, np.random.Generator]:
    """Return the reset seed and the policy's generator of one episode.

    The reset seed has 32 bits because some environments pass it to NumPy's legacy generator.
    """
    reset, policy = np.random.SeedSequence(seed, spawn_key=(episode,)).spawn(2)
    return int(reset.generate_state(1, np.uint32)[0]), np.random.default_rng(policy)


class EpisodeSink(Protocol[T_co]):
    """Receives one episode at a time, step by step, like the recorder of ``recording``."""

    def start(self, observation: Any, info: dict, *, seed: int, options: dict | None) -> None: ...

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict,
    ) -> None: ...

    def truncate(self) -> None: ...

    def finish(self, episode: int) -> T_co: ...


@dataclass
class _Row(Generic[T]):
    """An environment, the sink of its episodes, and the episode that runs in it."""

    env: gym.Env
    recorded: Recorded | None
    """The environment below the wrappers that only the policy sees, if there are any."""
    action_space: gym.Space
    """Action space of ``env``, kept because wrappers would look it up again at every step."""
    sink: EpisodeSink[T]
    see: Callable[[dict[str, Any]], None] | None
    """Shows each info to the policy, if it takes them."""
    own_infos: Callable[[], dict[str, Any]] | None
    """Returns what the policy has recorded in the infos of the last step, if anything."""
    episode: int = -1
    observation: Any = None
    n_steps: int = 0


def run_lockstep(
    make_env: Callable[[], gym.Env],
    make_sink: Callable[[gym.Env], EpisodeSink[T]],
    policy: Policy,
    episodes: Collection[int],
    *,
    seed: int,
    n_envs: int,
    on_fail: Callable[[int, str], T] | None = None,
    options: Mapping[str, Any] | None = None,
    on_step: Callable[[int], None] = lambda n: None,
) -> Iterator[T]:
    """Run ``episodes`` and yield the results of their sinks, in the order of ``episodes``.

    Args:
        make_env: makes one environment; called ``n_envs`` times.
        make_sink: makes the sink for the episodes of one environment.
        policy: bound to the environments before the first episode.
        episodes: indices of the episodes in the dataset.
        seed: root of every episode's randomness.
        n_envs: number of environments that step together; it sets the batch size of the policy's
            network, which affects the low bits of the actions.
        on_fail: returns the result of an episode for which the policy failed, given the episode
            and the reason; ``None`` makes that an error.
        options: those of every reset; the policy's come on top.
        on_step: called after each round with its number of environment steps.

    Raises:
        ConfigError: the environment has no time limit.
        InvalidEpisodeError: the environment or the policy failed; names episode and step.
    """
    rows: list[_Row[T]] = []
    try:
        for index in range(n_envs):
            env = make_env()
            see = partial(policy.see, index) if policy.takes_infos else None
            own_infos = partial(policy.infos, index) if policy.records_infos else None
            recorded = recorded_env(env)
            sink = make_sink(recorded.env if recorded else env)
            rows.append(_Row(env, recorded, env.action_space, sink, see, own_infos))
            require_time_limit(recorded or env)
        policy.bind([row.env for row in rows])
        yield from _lockstep(rows, policy, episodes, seed, on_fail, dict(options or {}), on_step)
    finally:
        for row in rows:
            row.env.close()


def _lockstep(
    rows: list[_Row[T]],
    policy: Policy,
    episodes: Collection[int],
    seed: int,
    on_fail: Callable[[int, str], T] | None,
    common: dict[str, Any],
    on_step: Callable[[int], None],
) -> Iterator[T]:
    waiting = iter(episodes)
    finished: dict[int, T] = {}
    due = iter(episodes)
    next_due = next(due, None)

    def start(index: int) -> bool:
        episode = next(waiting, None)
        if episode is None:
            return False
        row = rows[index]
        row.episode, row.n_steps = episode, 0
        reset_seed, rng = episode_seed(seed, episode)
        try:
            options = policy.start(index, episode, rng)
            options = {**common, **(options or {})} if common else options
            # Pass a copy, because an environment may modify the options that it receives.
            row.observation, info = row.env.reset(seed=reset_seed, options=copied(options))
            start = row.recorded.start() if row.recorded else (row.observation, info)
            row.sink.start(*start, seed=reset_seed, options=options)
            if row.see is not None:
                row.see(info)
        except _PASSED:
            raise
        except BaseException as exc:
            raise _named(exc, [row]) from exc
        return True

    active = [index for index in range(len(rows)) if start(index)]
    while active:
        try:
            actions = _act(policy, rows, active, skips=on_fail is not None)
            if len(actions) != len(active):
                raise InvalidEpisodeError(
                    f"it returned {len(actions)} actions for {len(active)} environments"
                )
        except _PASSED:
            raise
        except BaseException as exc:
            at = [exc.row] if isinstance(exc, RowError) else active
            raise _named(exc, [rows[i] for i in at], "the policy failed at ") from exc
        ended = []
        row = rows[active[0]]
        try:
            for index, action in zip(active, actions, strict=True):
                row = rows[index]
                try:
                    action = _checked(row, action)
                except InvalidEpisodeError as error:
                    if on_fail is None:
                        raise
                    finished[row.episode] = on_fail(row.episode, f"step {row.n_steps}: {error}")
                    ended.append(index)
                    continue
                if _step(row, action):
                    finished[row.episode] = row.sink.finish(row.episode)
                    ended.append(index)
        except _PASSED:
            raise
        except BaseException as exc:
            raise _named(exc, [row]) from exc
        on_step(len(active))
        while next_due in finished:
            yield finished.pop(next_due)
            next_due = next(due, None)
        if ended:
            stopped = {index for index in ended if not start(index)}
            active = [index for index in active if index not in stopped]


def _act(policy: Policy, rows: list[_Row[T]], active: list[int], *, skips: bool) -> Sequence[Any]:
    """Return the actions of the active rows; with ``skips``, errors in place of some."""
    try:
        return policy.act([rows[i].observation for i in active], active)
    except RowError as error:
        if not skips or error.actions is None:
            raise
        return error.actions


def _checked(row: _Row, action: Any) -> Any:
    """Return an action of the policy as an element of its space, or ``None`` to end the episode.

    Raises:
        InvalidEpisodeError: the policy failed, or returned no such element.
    """
    if isinstance(action, RowError):
        raise action
    if action is not None:
        return element(row.action_space, action)
    if row.n_steps == 0:
        raise InvalidEpisodeError("the policy returned no action for the first step")
    return None


def _step(row: _Row, action: Any) -> bool:
    """Step one environment; return whether its episode ended."""
    if action is None:
        row.sink.truncate()
        return True
    # Pass a copy, because an environment may modify the array that it receives.
    row.observation, reward, terminated, truncated, info = row.env.step(copied(action))
    step = (action, row.observation, reward, terminated, truncated, info)
    if row.recorded is not None:
        step = row.recorded.taken()
    if row.own_infos is not None:
        step = (*step[:-1], _with_own(step[-1], row.own_infos()))
    row.sink.step(*step)
    if row.see is not None:
        row.see(info)
    row.n_steps += 1
    has_ended = bool(step[3] or step[4])
    if (terminated or truncated) and not has_ended:  # only for the policy
        row.sink.truncate()
        return True
    return has_ended


def _with_own(info: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the infos of a step of the environment and of the policy."""
    if both := own.keys() & info.keys():
        raise ConfigError(
            f"the infos of the environment and those of the policy both have {both.pop()!r}; set "
            "policy.noise.keep_clean_action: false"
        )
    return {**info, **own}


def _named(exc: BaseException, rows: Sequence[_Row], who: str = "") -> Exception:
    """Return an error with the text of ``exc`` and the episodes and steps of ``rows``."""
    where = "; ".join(f"episode {row.episode}, step {row.n_steps}" for row in rows)
    text = str(exc) if isinstance(exc, MinariPipeError) else f"{type(exc).__name__}: {exc}"
    return InvalidEpisodeError(f"{who}{where}: {text}")


def require_time_limit(env: gym.Env) -> None:
    """Reject an environment whose episodes may never end.

    Raises:
        ConfigError: the environment has no time limit; the message says what to set.
    """
    if env.spec is not None and env.spec.max_episode_steps is None:
        text = without_time_limit(env.spec.id)
        raise ConfigError(f"{text} (for ref_scores.eval_env, if that is another environment)")


def without_time_limit(env_id: str, where: str = "env") -> str:
    """Return the message for an environment at ``where`` in the config without a time limit."""
    return (
        f"environment {env_id!r} has no time limit, so an episode may never end; set "
        f"{where}.kwargs.max_episode_steps, e.g. +{where}.kwargs.max_episode_steps=1000"
    )


def simulator_state(env: gym.Env) -> dict[str, Any]:
    """Return the full simulator state of an environment, from ``get_env_state`` or MuJoCo."""
    base = env.unwrapped
    if hasattr(base, "get_env_state"):
        return dict(base.get_env_state())
    inner = getattr(base, "point_env", base)  # gymnasium-robotics' mazes wrap their simulator
    if hasattr(inner, "data") and hasattr(inner.data, "qpos"):
        return {"qpos": inner.data.qpos.copy(), "qvel": inner.data.qvel.copy()}
    raise ConfigError(
        f"collect.record_state: environment {env} has neither get_env_state() nor MuJoCo data; "
        f"set collect.record_state=false"
    )


class _Recorder(EpisodeRecorder):
    """Rejects at the start of an episode any options that could not be stored at its end."""

    def start(self, observation: Any, info: dict, **kwargs: Any) -> None:
        check_options(kwargs.get("options"))
        super().start(observation, info, **kwargs)


class _StateRecorder(_Recorder):
    """Records the simulator's state as ``infos["state"]``, beside the environment's own infos."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env.observation_space, env.action_space, record_infos=True)
        self._env = env

    def start(self, observation: Any, info: dict, **kwargs: Any) -> None:
        super().start(observation, {**info, "state": simulator_state(self._env)}, **kwargs)

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict,
        extras: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        info = {**info, "state": simulator_state(self._env)}
        super().step(action, observation, reward, terminated, truncated, info, extras, **kwargs)


def run_episodes(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    episodes: Collection[int],
    *,
    seed: int,
    n_envs: int = 1,
    record_infos: bool = False,
    record_state: bool = False,
    on_step: Callable[[int], None] = lambda n: None,
) -> Iterator[EpisodeBuffer]:
    """Record ``episodes`` and yield them in order.

    Args:
        make_env: makes one environment; called ``n_envs`` times.
        policy: chooses the actions.
        episodes: indices of the episodes in the dataset.
        seed: root of every episode's randomness.
        n_envs: number of environments that step together.
        record_infos: whether to record the infos that ``reset`` and ``step`` return.
        record_state: whether to record the full simulator state as ``infos["state"]`` as well.
        on_step: called after each round with its number of environment steps.

    Raises:
        UnsupportedSpaceError: a space has a key that cannot be stored.
    """

    def make_sink(env: gym.Env) -> EpisodeRecorder:
        return make_recorder(env, record_infos=record_infos, record_state=record_state)

    return run_lockstep(
        make_env, make_sink, policy, episodes, seed=seed, n_envs=n_envs, on_step=on_step
    )


def make_recorder(
    env: gym.Env, *, record_infos: bool = False, record_state: bool = False
) -> EpisodeRecorder:
    """Return a recorder for one environment; arguments as for :func:`run_episodes`.

    Raises:
        UnsupportedSpaceError: a space has a key that cannot be stored.
    """
    check_space_names(env.observation_space, env.action_space)
    if record_state:
        return _StateRecorder(env)
    return _Recorder(env.observation_space, env.action_space, record_infos=record_infos)
