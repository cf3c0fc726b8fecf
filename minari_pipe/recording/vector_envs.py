"""Determine autoreset, seeds and single spec of a vector environment, for a collector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.spaces import ARRAY_SPACES, space_leaves
from minari_pipe.core.tree import has_arrays, join_path
from minari_pipe.errors import ConfigError, InvalidEpisodeError, UnsupportedSpaceError
from minari_pipe.storage.attributes import whole_seed

#: Wrappers that change nothing that is recorded except infos.
_TRANSPARENT = (DictInfoToList, RecordEpisodeStatistics)
#: Arguments of make_vec that a single environment does not take.
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")


def autoreset_mode(env: Any) -> AutoresetMode:
    """Return when a vector environment resets its environments that ended.

    Raises:
        ConfigError: it is not a vector environment, or does not declare its mode.

    Example:
        >>> autoreset_mode(gym.make_vec("CartPole-v1", 2, "sync"))
        <AutoresetMode.NEXT_STEP: 'NextStep'>
        >>> autoreset_mode(gym.make("CartPole-v1"))
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: VectorDataCollector takes a gymnasium.vector.VectorEnv, \
got TimeLimit; use DataCollector for a single environment
    """
    if not isinstance(env, VectorEnv):
        hint = "; use DataCollector for a single environment" if isinstance(env, gym.Env) else ""
        raise ConfigError(
            f"VectorDataCollector takes a gymnasium.vector.VectorEnv, got "
            f"{type(env).__name__}{hint}"
        )
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f"{type(env.unwrapped).__name__}.metadata['autoreset_mode'] is {mode!r}, which does "
            "not say which steps are resets; set it to the gymnasium.vector.AutoresetMode of the "
            f"environment, one of {[mode.name for mode in AutoresetMode]}"
        ) from None


def is_of_single_envs(env: VectorEnv) -> bool:
    """Return whether each environment is reset by itself, with the given seed and options.

    Example:
        >>> is_of_single_envs(gym.make_vec("CartPole-v1", 2, "vector_entry_point"))
        False
    """
    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def seed_of_each(seed: Any, n_envs: int) -> list[int | None]:
    """Return the seeds of ``N`` environments; an int is the first one's, the others count up.

    Raises:
        InvalidEpisodeError: a seed cannot be stored, or there are not ``N`` of them.

    Example:
        >>> seed_of_each(7, 2), seed_of_each([3, None], 2)
        ([7, 8], [3, None])
    """
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
        if len(seed) != n_envs:
            raise InvalidEpisodeError(
                f"expected one seed for each of {n_envs} environments, got {len(seed)}"
            )
        return [whole_seed(each) for each in seed]
    first = whole_seed(seed)
    return [None if first is None else first + env for env in range(n_envs)]


def reset_mask(options: Any, n_envs: int) -> list[bool]:
    """Return which environments a reset with these options affects.

    Raises:
        ConfigError: the mask is not an array of ``N`` booleans, or all are False.

    Example:
        >>> reset_mask({"reset_mask": np.array([True, False])}, 2), reset_mask(None, 2)
        ([True, False], [True, True])
    """
    if not isinstance(options, dict) or "reset_mask" not in options:
        return [True] * n_envs
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n_envs,):
        of = f" of {mask.dtype} and shape {mask.shape}" if isinstance(mask, np.ndarray) else ""
        raise ConfigError(
            f"options['reset_mask'] must be an array of {n_envs} booleans, got "
            f"{type(mask).__name__}{of} {mask!r:.60}"
        )
    if not mask.any():
        raise ConfigError("options['reset_mask'] resets no environment; set at least one to True")
    return mask.tolist()


def check_reset(env: VectorEnv, mode: AutoresetMode, *, is_masked: bool, just_ended: bool) -> None:
    """Raise an error if a vector environment would not do what a reset asks for.

    Args:
        env: the vector environment.
        mode: its autoreset mode.
        is_masked: whether the reset has a mask.
        just_ended: whether one of the environments to reset ended with the last step.

    Raises:
        ConfigError: it would silently do something else.

    Example:
        >>> env = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
        >>> check_reset(env, AutoresetMode.NEXT_STEP, is_masked=True, just_ended=False)
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: CartPoleVectorEnv resets its environments itself \
(NEXT_STEP) and takes no options['reset_mask']; reset all of them without it
    """
    inner = env.unwrapped
    if is_masked and not is_of_single_envs(env) and mode is not AutoresetMode.DISABLED:
        raise ConfigError(
            f"{type(inner).__name__} resets its environments itself ({mode.name}) and takes no "
            "options['reset_mask']; reset all of them without it"
        )
    if (
        just_ended
        and mode is AutoresetMode.NEXT_STEP
        and isinstance(inner, AsyncVectorEnv)
        and not inner.shared_memory
    ):
        raise ConfigError(
            "AsyncVectorEnv(shared_memory=False) with autoreset NEXT_STEP resets an "
            "environment again at the next step if its episode has just ended; step once "
            "before the reset, or use shared_memory=True"
        )


def check_shared_memory(env: VectorEnv) -> None:
    """Raise an error if observations are lost between the processes of the environments.

    Raises:
        UnsupportedSpaceError: Gymnasium would return the memory as it was before the first one.

    Example:
        >>> check_shared_memory(gym.make_vec("CartPole-v1", 2, "sync"))
    """
    inner = env.unwrapped
    if not (isinstance(inner, AsyncVectorEnv) and inner.shared_memory):
        return
    for path, space in space_leaves(inner.single_observation_space, ("observations",)):
        if not isinstance(space, ARRAY_SPACES):
            raise UnsupportedSpaceError(
                f"{join_path(path)}: AsyncVectorEnv reads values of {space!s:.100} from its "
                "shared memory only once, before any are written; use shared_memory=False, or a "
                "SyncVectorEnv"
            )


def reuses_arrays(make_env: Callable[..., gym.Env]) -> bool:
    """Return whether an environment, made for this check, resets into the array of its last step.

    Example:
        >>> reuses_arrays(lambda: gym.make("CartPole-v1"))
        False
    """
    env = make_env()
    try:
        env.reset()
        last = env.step(env.action_space.sample())[0]
        return has_arrays(np.may_share_memory, last, env.reset()[0])
    finally:
        env.close()


def single_spec(env: VectorEnv, given: EnvSpec | str | None = None) -> EnvSpec | None:
    """Return the spec of one of the environments, None if it is not known how they were made.

    It is not known if their specs differ, or if a wrapper around all of them may change
    observations, actions or rewards.

    Args:
        env: the vector environment.
        given: the spec or the id from the user.

    Raises:
        ConfigError: ``given`` is neither a spec nor a registered id.

    Example:
        >>> single_spec(gym.make_vec("CartPole-v1", 2, "vector_entry_point", max_episode_steps=9))
        EnvSpec(id='CartPole-v1', entry_point='gymnasium.envs.classic_control.cartpole:\
CartPoleEnv', reward_threshold=475.0, nondeterministic=False, max_episode_steps=9, ...)
    """
    if given is not None:
        return _as_spec(given)
    inner = env
    while isinstance(inner, VectorWrapper):
        if not isinstance(inner, _TRANSPARENT):
            return None
        inner = inner.env
    if isinstance(inner, SyncVectorEnv):
        specs = [each.spec for each in inner.envs]
        return specs[0] if all(_same(spec, specs[0]) for spec in specs) else None
    if isinstance(inner, AsyncVectorEnv):  # the workers' specs may not be picklable
        one = inner.env_fns[0]()
        try:
            return one.spec
        finally:
            one.close()
    if inner.spec is None or inner.spec.entry_point is None:
        return None
    spec = copy.deepcopy(inner.spec)
    for name in _OF_VECTORS:
        spec.kwargs.pop(name, None)
    # make_vec passes it to the environment, make to a wrapper
    spec.max_episode_steps = spec.kwargs.pop("max_episode_steps", spec.max_episode_steps)
    return spec


def _as_spec(given: Any) -> EnvSpec:
    if isinstance(given, EnvSpec):
        return given
    try:
        return gym.spec(given)
    except (gym.error.Error, TypeError, AttributeError) as error:
        raise ConfigError(
            f"env_spec must be a gymnasium EnvSpec or an environment id, got {given!r:.60}: {error}"
        ) from None


def _same(one: EnvSpec | None, other: EnvSpec | None) -> bool:
    if one is other or one is None or other is None:
        return one is other
    try:
        return spec_json(one) == spec_json(other)
    except ConfigError:
        return one == other


def envs_for_callbacks(env: VectorEnv, mode: AutoresetMode) -> list[Any]:
    """Return the ``env`` of each environment's step data callbacks: itself, if it is here.

    Example:
        >>> envs = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
        >>> envs_for_callbacks(envs, AutoresetMode.NEXT_STEP)[0].unwrapped
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: the step data callback uses env.unwrapped, but a \
CartPoleVectorEnv has no single environments in this process; use a SyncVectorEnv with \
autoreset NEXT_STEP or DISABLED
    """
    inner = env.unwrapped
    if mode is AutoresetMode.SAME_STEP:
        reason = "with autoreset SAME_STEP it is reset before its last step is recorded"
    elif isinstance(inner, SyncVectorEnv):
        return list(inner.envs)
    else:
        reason = f"a {type(inner).__name__} has no single environments in this process"
    return [_AbsentEnv(reason)] * env.num_envs


class _AbsentEnv:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # looked up by Python itself
            raise AttributeError(name)
        raise ConfigError(
            f"the step data callback uses env.{name}, but {self._reason}; use a SyncVectorEnv with "
            "autoreset NEXT_STEP or DISABLED"
        )
