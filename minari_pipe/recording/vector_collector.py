"""Record the episodes of each environment of a Gymnasium vector environment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from minari_pipe.core.episode import (
    EpisodeBuffer,
    EpisodeMetadataCallback,
    StepDataCallback,
    copied,
    standard_step_data,
)
from minari_pipe.core.tree import has_arrays
from minari_pipe.datasets.create import is_known, is_own
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.recording.base import AUTOSEED_BIT_SIZE, Collecting
from minari_pipe.recording.session import callback
from minari_pipe.recording.vector_envs import (
    autoreset_mode,
    check_reset,
    check_shared_memory,
    envs_for_callbacks,
    is_of_single_envs,
    reset_mask,
    reuses_arrays,
    seed_of_each,
    single_spec,
)
from minari_pipe.recording.vector_rows import (
    FINAL,
    as_batched,
    check_batched,
    check_iterable,
    each_of,
    final_row,
    info_rows,
    splitter,
)
from minari_pipe.storage.attributes import check_options

OnEpisode = Callable[[EpisodeBuffer, int], object]

_UNFINISHED = ("truncate", "drop")


class VectorDataCollector(Collecting, VectorWrapper):
    """Wraps a vector environment and records the episodes of each of its ``N`` environments.

    They are the episodes that ``N`` :class:`~minari_pipe.DataCollector` would record for the
    same actions and resets, in the order in which they ended; those of the same step are in the
    order of their environments. All autoreset modes are supported: the step with which
    ``NEXT_STEP`` resets an environment is not a step of an episode, and with ``SAME_STEP`` the
    last observation and info are ``final_obs`` and ``final_info``.

    With a :class:`~gymnasium.vector.SyncVectorEnv` or ``AsyncVectorEnv``, ``reset(seed=s)`` gives
    environment ``i`` the seed ``s + i``, a list gives each its own, and without a seed each gets a
    random one; they are recorded. An episode that starts with an autoreset has no seed of its own,
    and none is recorded. To seed every episode, the autoreset must be ``DISABLED``: then
    ``reset(seed=[...], options={"reset_mask": ended})`` resets those that ended. Natively
    vectorized environments draw from one generator; their int seed is not recorded, as no single
    environment can be reset to it.

    Values are recorded as the vector environment returns them: Gymnasium gives observations the
    dtype of their space, and an info the dtype of the first environment that has it in a step.

    Attributes:
        total_steps: number of steps of all environments so far, not counting resets.

    Example:
        >>> from minari_pipe import VectorDataCollector
        >>> import gymnasium as gym, warnings
        >>> with VectorDataCollector(gym.make_vec("CartPole-v1", 2, "sync")) as envs:
        ...     _ = envs.reset(seed=1)
        ...     for _ in range(12):
        ...         _ = envs.step([0, 1])
        ...     with warnings.catch_warnings(action="ignore"):  # about missing metadata
        ...         dataset = envs.create_dataset("cartpole/vector-v0")
        >>> dataset.episodes["seed"].tolist(), dataset.episodes["total_steps"].tolist()
        ([1, 2, None, None], [10, 10, 1, 1])
    """

    def __init__(
        self,
        env: VectorEnv,
        step_data_callback: type[StepDataCallback] | Callable[..., Any] = StepDataCallback,
        episode_metadata_callback: type[EpisodeMetadataCallback]
        | Callable[..., Any] = EpisodeMetadataCallback,
        record_infos: bool = False,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        data_format: str | None = None,
        *,
        jpeg_encoding: bool = False,
        strict: bool = False,
        unfinished: Literal["truncate", "drop"] = "truncate",
        on_episode: OnEpisode | None = None,
        env_spec: EnvSpec | str | None = None,
    ) -> None:
        """Start recording.

        Args:
            env: the vector environment.
            step_data_callback: makes the record of a step of one environment; an instance, a
                function, or a class, of which each environment gets an instance. Its ``env`` is
                that environment if it is in this process and not yet reset: with a
                ``SyncVectorEnv`` whose autoreset is not ``SAME_STEP``.
            episode_metadata_callback: computes the attributes of a finished episode, likewise;
                there is one for all environments.
            record_infos: record the infos too.
            observation_space: space of the recorded observations of one environment; None means
                the vector environment's.
            action_space: space of the recorded actions of one environment, likewise.
            data_format: format of the dataset; None means hdf5.
            jpeg_encoding: store images lossily; unlike Minari's, the default is lossless.
            strict: raise an error at the step for values outside of their space, NaN and other
                dtypes, instead of a warning per episode.
            unfinished: what to do with episodes that are open when a dataset is made, the collector
                is closed, or a step fails: ``truncate`` them, as a ``DataCollector`` does, or
                ``drop`` them. A reset always truncates.
            on_episode: called with each episode when it ends, and with the ``total_steps`` after
                its last step; then nothing is kept for :meth:`create_dataset`. If it fails,
                :meth:`step` raises its error, and the episode is kept for recovery.
            env_spec: spec of one environment, or its id, for the dataset; None means that of the
                environments. There is none if theirs differ, or if a wrapper around all of them is
                not ``RecordEpisodeStatistics`` or ``DictInfoToList``: it may change what is
                recorded, and belongs to no single environment.

        Raises:
            UnknownFormatError: there is no such format.
            UnsupportedSpaceError: the format cannot store a space, or batches of a space cannot be
                split, or lose values on their way from another process.
            ConfigError: ``env`` is not a vector environment, or does not declare its autoreset; a
                callback is not callable; ``unfinished`` or ``env_spec`` is invalid.
        """
        self._mode = autoreset_mode(env)
        if unfinished not in _UNFINISHED:
            raise ConfigError(f"unfinished must be one of {list(_UNFINISHED)}, got {unfinished!r}")
        if on_episode is not None and not callable(on_episode):
            raise ConfigError(f"on_episode must be callable, got {on_episode!r:.80}")
        super().__init__(env)
        n_envs = env.num_envs
        observed, acted = env.single_observation_space, env.single_action_space
        check_batched(observed, env.observation_space, ("observations",), n_envs)
        check_batched(acted, env.action_space, ("actions",), n_envs)
        check_shared_memory(env)
        self._split_observations = splitter(observed, ("observations",), n_envs)
        self._split_actions = splitter(acted, ("actions",), n_envs)
        self._one_env_spec = single_spec(env, env_spec)
        spec, envs = self._one_env_spec, getattr(env.unwrapped, "envs", None)
        is_known_spec = all(map(is_own, envs)) if envs else spec is None or is_known(spec)
        self._is_own = isinstance(env_spec, str) or (env_spec is None and is_known_spec)
        self._callback_envs = envs_for_callbacks(env, self._mode)
        self._step_data_callbacks = [
            callback(step_data_callback, each, "step_data_callback") for each in self._callback_envs
        ]
        self._begin(
            observation_space or observed,
            action_space or acted,
            data_format,
            record_infos=record_infos,
            jpeg_encoding=jpeg_encoding,
            strict=strict,
            episode_metadata=callback(episode_metadata_callback, env, "episode_metadata_callback"),
            n_envs=n_envs,
            drops_unfinished=unfinished == "drop",
            on_episode=on_episode,
        )
        check_iterable(acted, env.action_space, n_envs)
        # no callback changes the step data
        self._is_plain = all(type(each) is StepDataCallback for each in self._step_data_callbacks)
        self._has_single_envs = is_of_single_envs(env)
        # for each environment, whether an episode is open, or ended with the last step
        self._open, self._ended = [False] * n_envs, [False] * n_envs
        self._was_reset = self._may_step = False
        # for environments in other processes, whether they return the same array again
        self._reusing: dict[int, bool] = {}
        # for step data callbacks: the last data, and the groups that have a row for the reset
        self._data: list[Any] = [None] * n_envs
        self._extras_at_reset: list[set[str]] = [set() for _ in range(n_envs)]

    def __enter__(self) -> VectorDataCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def total_steps(self) -> int:
        """Number of steps of all environments so far, not counting those that reset one."""
        return self._recorded.total_steps

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments; their unfinished episodes are closed as truncated.

        Args:
            seed: seed of the first environment, or one for each; where it is None, a random 64-bit
                seed is drawn, unless ``options["minari_autoseed"]`` is False.
            options: options of each environment's reset; they are recorded. If they have a
                ``reset_mask``, an array of ``N`` booleans, only those environments are reset; the
                mask is not recorded.

        Raises:
            InvalidEpisodeError: the options or a seed cannot be stored, and nothing was reset. Or a
                first observation does not have the structure or the shape of its space, or lies
                outside of it and the collector is strict.
            ConfigError: the mask is invalid, or the environment does not support masks.
            ResetNeeded: the first reset is not one of all environments.
            DatasetNotFoundError: the collector is closed.
        """
        self._refuse_if_closed()
        n_envs = self.num_envs
        mask = reset_mask(options, n_envs)
        self._check_reset(mask, options)
        own = options
        if isinstance(options, dict) and "reset_mask" in options:
            own = {key: value for key, value in options.items() if key != "reset_mask"} or None
        check_options(own)
        own = copied(own)
        seed, seeds = self._seeds(seed, mask, draws=(own or {}).get("minari_autoseed", True))
        self._may_step = False
        for env, is_reset in enumerate(mask):
            if is_reset:
                self._open[env] = False
                self._recorded.close_episode(env)
        observations, infos = self.env.reset(seed=seed, options=options)
        rows = self._split_observations(observations)
        each_info = self._info_rows(infos)
        for env, is_reset in enumerate(mask):
            if is_reset:
                self._start(env, rows[env], each_info[env], seed=seeds[env], options=own)
        self._was_reset = True
        self._judge()
        if self._recorded.warnings:
            self._warn()
        return observations, infos

    def _seeds(self, seed: Any, mask: list[bool], *, draws: bool) -> tuple[Any, list[int | None]]:
        """Return the seed for the vector environment, and the seed of each environment."""
        seeds = seed_of_each(seed, self.num_envs)
        is_list = isinstance(seed, Sequence | np.ndarray)
        if not self._has_single_envs:
            # an int seeds one generator for all of them
            return (seeds, seeds) if is_list else (seed, [None] * self.num_envs)
        for env, is_reset in enumerate(mask):
            if is_reset and draws and seeds[env] is None:
                seeds[env] = secrets.randbits(AUTOSEED_BIT_SIZE)
        return seeds[0] if seed is not None and not is_list else seeds, seeds

    def _check_reset(self, mask: list[bool], options: Any) -> None:
        if not all(mask) and not self._was_reset:
            missing = [env for env, is_reset in enumerate(mask) if not is_reset]
            raise ResetNeeded(
                f"environments {missing} were never reset; the first reset must include all "
                "environments, without options['reset_mask']"
            )
        is_masked = isinstance(options, dict) and "reset_mask" in options
        resets = [env for env, is_reset in enumerate(mask) if is_reset]
        just_ended = any(self._ended[env] for env in resets)
        check_reset(self.env, self._mode, is_masked=is_masked, just_ended=just_ended)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and record the steps.

        If this fails, or an environment does, no episode continues: earlier ones are kept, and
        :meth:`reset` starts others.

        Args:
            actions: a batch of actions, as the vector environment takes it.

        Raises:
            ResetNeeded: an environment was not reset yet, or not since it ended with autoreset
                ``DISABLED``, or not since a step failed. Nothing was done.
            InvalidEpisodeError: there is not one action for each environment, and nothing was done.
                Or a value does not have the structure or the shape of its space, or lies outside of
                it and the collector is strict.
            DatasetNotFoundError: the collector is closed.
        """
        if not self._may_step:
            self._refuse_step()
        each_action = self._split_actions(actions)
        recorders = self._recorded.recorders
        # An environment may change the array that it is given: actions are copied before.
        put = [False] * self.num_envs
        try:
            for env, (recorder, action) in enumerate(zip(recorders, each_action, strict=True)):
                if self._is_plain and recorder.put_action(action):
                    put[env] = True
                else:
                    each_action[env] = copied(action)
            returned = self.env.step(actions)
            self._record(each_action, put, *returned)
        except BaseException:
            # the steps so far are valid, but the next one would no longer follow them
            self._break_off()
            raise
        if self._recorded.warnings:
            self._warn()
        return returned

    def _record(
        self,
        each_action: list[Any],
        put: list[bool],
        observations: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        infos: Any,
    ) -> None:
        """Record the step of every environment, even if that of one is refused."""
        n_envs = self.num_envs
        rows, each_info = self._split_observations(observations), self._info_rows(infos)
        numbers = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        columns = [
            # as Python numbers, which the recorder takes faster
            each_of(values.tolist() if isinstance(values, np.ndarray) else values, (name,), n_envs)
            for name, values in numbers.items()
        ]
        resets, self._ended = self._ended, [False] * n_envs
        self._recorded.total_steps += n_envs - sum(resets)
        fault: BaseException | None = None
        for env, (reward, terminated, truncated) in enumerate(zip(*columns, strict=True)):
            try:
                if resets[env]:
                    self._start(env, rows[env], each_info[env])
                    continue
                is_over = bool(terminated or truncated)
                observation, info = rows[env], each_info[env]
                resets_now = is_over and self._mode is AutoresetMode.SAME_STEP
                self._ended[env] = is_over and not resets_now
                if resets_now:
                    observation, info = self._final(infos, env, rows[env])
                step = (each_action[env], observation, reward, terminated, truncated, info)
                if self._is_plain:
                    self._recorded.recorders[env].step(*step, has_action=put[env])
                    is_finished = is_over
                else:
                    is_finished = self._record_data(env, *step)
                self._open[env] = not is_over
                if is_finished:
                    self._recorded.finish_episode(env)
                    if not is_over:
                        self._go_on(env)
                if resets_now:
                    self._start(env, rows[env], each_info[env])
            except Exception as error:
                fault = fault or error
        if fault is not None:
            raise fault
        if self._mode is AutoresetMode.DISABLED and any(self._ended):
            self._may_step = False

    def _record_data(self, env: int, *step: Any) -> bool:
        """Record a step as its callback returns it; return whether the episode ends with it."""
        names = ("action", "obs", "rew", "terminated", "truncated", "info")
        given = dict(zip(names, step, strict=True))
        made = self._step_data_callbacks[env](env=self._callback_envs[env], **given)
        data = self._data[env] = standard_step_data(made)
        terminated, truncated = bool(data["terminated"]), bool(data["truncated"])
        self._recorded.recorders[env].step(
            data["action"],
            data["observation"],
            data["reward"],
            terminated,
            truncated,
            data["info"],
            self._recorded.extras(data),
        )
        return terminated or truncated

    def _go_on(self, env: int) -> None:
        """Start an episode with the last observation: only the callback ended the previous one."""
        data, kept = self._data[env], self._extras_at_reset[env]
        extras = {name: value for name, value in data.items() if name in kept}
        self._recorded.start(data["observation"], data["info"], extras=extras, env=env)

    def _start(self, env: int, observation: Any, info: dict[str, Any], **reset: Any) -> None:
        """Start an episode of an environment that was reset."""
        self._recorded.close_episode(env)  # a callback may have hidden its end
        extras = None
        if not self._is_plain:
            made = self._step_data_callbacks[env](
                env=self._callback_envs[env], obs=observation, info=info
            )
            data = standard_step_data(made, reset=True)
            observation, info = data["observation"], data["info"]
            extras = self._recorded.extras(data) or {}
            self._extras_at_reset[env] = {
                name for name, value in extras.items() if value is not None
            }
        self._recorded.start(observation, info, extras=extras, env=env, **reset)
        self._open[env], self._ended[env] = True, False

    def _final(self, infos: Any, env: int, first: Any) -> tuple[Any, dict[str, Any]]:
        """Return observation and info of the last step of an environment that has been reset.

        Args:
            infos: infos of all environments.
            env: index of the environment.
            first: its first observation after the reset.
        """
        last = final_row(infos, "final_obs", env, self.num_envs)
        observation = as_batched(self.single_observation_space, last)
        inner = self.env.unwrapped
        if isinstance(inner, SyncVectorEnv):
            is_overwritten = has_arrays(np.may_share_memory, last, inner._env_obs[env])
        else:
            is_overwritten = has_arrays(np.array_equal, observation, first) and self._reuses(env)
        if is_overwritten:
            raise InvalidEpisodeError(
                f"environment {env} reuses its observation array, so the {type(inner).__name__} "
                "has overwritten the last observation with the first one after the reset; make it "
                "return copies, or use autoreset NEXT_STEP or DISABLED"
            )
        info = {}
        if self._record_infos or not self._is_plain:
            info = final_row(infos, "final_info", env, self.num_envs)
        return observation, info

    def _reuses(self, env: int) -> bool:
        """Return whether an environment in another process overwrites what it has returned.

        Its memory is not visible here, so another instance is made and examined, once.
        """
        inner = self.env.unwrapped
        if not isinstance(inner, AsyncVectorEnv):
            return False
        if env not in self._reusing:
            self._reusing[env] = reuses_arrays(inner.env_fns[env])
        return self._reusing[env]

    def _info_rows(self, infos: Any) -> list[dict[str, Any]]:
        if self._is_plain and not self._record_infos:
            return [{}] * self.num_envs
        without = FINAL if self._mode is AutoresetMode.SAME_STEP else ()
        return info_rows(infos, self.num_envs, without)

    def _judge(self) -> None:
        """Set whether a step is possible: every environment is in an episode, or resets now."""
        resets = self._mode is AutoresetMode.NEXT_STEP
        states = zip(self._open, self._ended, strict=True)
        self._may_step = all(is_open or (ended and resets) for is_open, ended in states)

    def _refuse_step(self) -> NoReturn:
        self._refuse_if_closed()
        ended = [env for env, has in enumerate(self._ended) if has]
        if ended and self._mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"environments {ended} have ended and were not reset, and their autoreset is "
                f"{self._mode.name}; call reset(options={{'reset_mask': ended}}) with an array "
                f"of {self.num_envs} booleans, or reset() to reset all of them"
            )
        missing = [env for env, is_open in enumerate(self._open) if not is_open]
        raise ResetNeeded(
            f"Cannot record a step before a reset() of environments {missing}; call reset() first, "
            "also after a failed step, create_dataset() or add_to_dataset()"
        )

    def _spec(self) -> EnvSpec | None:
        return self._one_env_spec

    def _break_off(self) -> None:
        # ``_ended`` stays as it is: the vector environment resets those that ended
        self._open, self._may_step = [False] * self.num_envs, False
        self._recorded.break_off()

    def close(self, **kwargs: Any) -> None:
        """Close the environments; episodes that no dataset has taken are kept for recovery.

        Args:
            **kwargs: arguments of the vector environment's ``close``.
        """
        self._may_step = False
        try:
            super().close(**kwargs)
        finally:
            self._leave()
        self._warn()
