"""Record the steps of a Gymnasium environment and make a dataset of them."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import Autoreset

from minari_pipe.core.episode import (
    EpisodeMetadataCallback,
    StepData,
    StepDataCallback,
    copied,
    standard_step_data,
)
from minari_pipe.datasets.create import is_own
from minari_pipe.recording.base import AUTOSEED_BIT_SIZE, Collecting
from minari_pipe.recording.session import callback
from minari_pipe.storage.attributes import check_options, whole_seed


class DataCollector(Collecting, gym.Wrapper):
    """Wraps an environment and records every step.

    Values are copied. A reset in the middle of an episode closes it as truncated; a step after
    the end of an episode starts another with the last observation. :meth:`create_dataset` and
    :meth:`add_to_dataset` take everything recorded so far. Finished episodes are kept in a hidden
    folder of the datasets root, even if the script fails or is killed: ``minari-pipe recover``
    finds those that no dataset has taken.

    Values outside of their space, NaN and other dtypes are recorded with one warning per
    episode. Additional keys of the step data, such as ``state``, are recorded as
    :attr:`EpisodeData.extras`.

    Example:
        >>> from minari_pipe import DataCollector
        >>> import gymnasium as gym
        >>> env = DataCollector(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=1)
        >>> for _ in range(5):
        ...     _ = env.step(0)
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # about missing metadata
        ...     dataset = env.create_dataset("cartpole/test-v0")
        >>> dataset
        MinariDataset('cartpole/test-v0', 1 episodes)
        >>> _ = env.reset(seed=2)
        >>> _ = env.step(1)
        >>> env.add_to_dataset(dataset)
        >>> dataset.episodes["seed"].tolist(), dataset.episodes["total_steps"].tolist()
        ([1, 2], [5, 1])
        >>> env.close()
    """

    _autoseed = True

    def __init__(
        self,
        env: gym.Env,
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
    ) -> None:
        """Start recording.

        Args:
            env: the environment. If it has an ``Autoreset`` wrapper, the step with which that
                resets is recorded as the reset of the next episode.
            step_data_callback: makes the record of a step from what the environment returned; a
                class, an instance or a function. Names of older Minari are accepted.
            episode_metadata_callback: computes the attributes of a finished episode, likewise.
            record_infos: record the infos too.
            observation_space: space of the recorded observations; None means the environment's.
            action_space: space of the recorded actions; None means the environment's.
            data_format: format of the dataset; None means hdf5.
            jpeg_encoding: store images lossily; unlike Minari's, the default is lossless.
            strict: raise an error at the step for values outside of their space, NaN and other
                dtypes, instead of a warning.

        Raises:
            UnknownFormatError: there is no such format.
            UnsupportedSpaceError: the format cannot store a space.
            ConfigError: a callback is not callable, or the datasets root cannot be created.
        """
        super().__init__(env)
        self._is_own = is_own(env)
        self._step_data_callback = callback(step_data_callback, env, "step_data_callback")
        self._begin(
            observation_space or env.observation_space,
            action_space or env.action_space,
            data_format,
            record_infos=record_infos,
            jpeg_encoding=jpeg_encoding,
            strict=strict,
            episode_metadata=callback(episode_metadata_callback, env, "episode_metadata_callback"),
        )
        self._autoreset = _autoreset_wrapper(env)
        # start of the next episode, if a step follows an end without a reset
        self._last: StepData | None = None
        # no callback changes the step data, and no wrapper resets during a step
        self._is_plain = type(self._step_data_callback) is StepDataCallback and not self._autoreset
        recorder = self._recorded.recorders[0]
        self._record_step, self._put_action = recorder.step, recorder.put_action
        self._extras_at_reset: frozenset[str] = frozenset()
        self._env_done = False
        self._recording = False

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record the step.

        If anything fails, including the environment's own step, the episode ends before this step.

        Args:
            action: action for the environment.

        Raises:
            ResetNeeded: there was no reset yet, or none after a failed step.
            InvalidEpisodeError: a value does not have the structure or the shape of its space, or
                lies outside of it and the collector is strict.
            DatasetNotFoundError: the collector is closed.
        """
        if not self._is_plain or not self._recording:
            return self._any_step(action)
        try:
            # An environment may change the array that it is given: the action is copied into the
            # record first, or else the environment gets a copy.
            put = self._put_action(action)
            observation, reward, terminated, truncated, info = self.env.step(
                action if put else copied(action)
            )
            self._record_step(
                action, observation, reward, terminated, truncated, info, has_action=put
            )
            if terminated or truncated:
                self._env_done = True
                last = copied(info) if self._record_infos else {}
                self._end(_reset_data(copied(observation), last))
        except BaseException:
            # the steps so far are valid, but the next one would no longer follow them
            self._close_episode()
            raise
        if (terminated or truncated) and self._recorded.warnings:
            self._warn()
        return observation, reward, terminated, truncated, info

    def _any_step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step and record with callbacks and autoreset, or after the end of an episode."""
        if not self._recording:
            if self._last is None:
                self._refuse_if_closed()
                raise ResetNeeded(
                    "Cannot record a step before a reset(); call reset() first, also after a "
                    "failed step, create_dataset() or add_to_dataset()"
                )
            if self._env_done and not (self._autoreset and self._autoreset.autoreset):
                self._env_done = False  # warn once
                warnings.warn(
                    "The environment's episode has ended (it returned terminated or truncated) and "
                    "step() was called without a reset(): a new episode begins with the last "
                    "observation",
                    stacklevel=3,
                )
        resets = self._autoreset is not None and self._autoreset.autoreset
        given = copied(action)
        try:
            observation, reward, terminated, truncated, info = self.env.step(given)
            if resets:
                self._close_episode()
                self._start(self._step_data_callback(env=self.env, obs=observation, info=info))
            else:
                data = self._step_data_callback(
                    env=self.env,
                    obs=observation,
                    info=info,
                    action=action,
                    rew=reward,
                    terminated=terminated,
                    truncated=truncated,
                )
                self._env_done = bool(terminated) or bool(truncated)
                self._record(standard_step_data(data))
        except BaseException:
            self._close_episode()
            raise
        self._warn(stacklevel=4)
        return observation, reward, terminated, truncated, info

    def _start(self, data: Any, **kwargs: Any) -> None:
        data = standard_step_data(data, reset=True)
        extras = self._recorded.extras(data)
        self._recorded.start(data["observation"], data["info"], extras=extras, **kwargs)
        self._extras_at_reset = frozenset(
            name for name, value in (extras or {}).items() if value is not None
        )
        self._recording = True

    def _record(self, data: StepData) -> None:
        if not self._recording:
            assert self._last is not None
            last = self._last
            self._recorded.start(
                last["observation"], last["info"], extras=self._recorded.extras(last)
            )
            self._recording = True
        self._record_step(
            data["action"],
            data["observation"],
            data["reward"],
            bool(data["terminated"]),
            bool(data["truncated"]),
            data["info"],
            self._recorded.extras(data),
        )
        if data["terminated"] or data["truncated"]:
            # keep only extras that have a row for a reset
            kept = {"observation", *self._extras_at_reset}
            if self._record_infos:
                kept.add("info")
            rows = {name: copied(value) for name, value in data.items() if name in kept}
            self._end(standard_step_data(rows, reset=True))

    def _end(self, last: StepData) -> None:
        """Finish the episode; ``last`` starts the next one if no reset follows."""
        self._last = last
        self._recording = False
        self._recorded.finish_episode()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an unfinished episode is closed as truncated.

        Args:
            seed: seed of the environment. If None, a random 64-bit seed is drawn and recorded,
                unless ``options["minari_autoseed"]`` is False.
            options: options of the environment's reset; they are recorded too.

        Raises:
            InvalidEpisodeError: the options or the seed cannot be stored, and nothing was reset. Or
                the first observation does not have the structure or the shape of its space, or lies
                outside of it and the collector is strict.
            DatasetNotFoundError: the collector is closed.
        """
        self._refuse_if_closed()
        whole_seed(seed)
        check_options(options)
        # The environment gets the caller's own object, as without a collector, and may change it.
        given = copied(options)
        self._close_episode()
        if seed is None and self._autoseed and (options or {}).get("minari_autoseed", True):
            seed = secrets.randbits(AUTOSEED_BIT_SIZE)
        observation, info = self.env.reset(seed=seed, options=options)
        if self._is_plain:
            self._recorded.start(observation, info, seed=seed, options=given)
            self._recording = True
        else:
            self._start(
                self._step_data_callback(env=self.env, obs=observation, info=info),
                seed=seed,
                options=given,
            )
        if self._recorded.warnings:
            self._warn()
        return observation, info

    def _close_episode(self) -> None:
        recording, self._recording, self._last = self._recording, False, None
        if recording:
            self._recorded.close_episode()

    def _spec(self) -> EnvSpec | None:
        return self.env.spec

    def _break_off(self) -> None:
        self._close_episode()

    def close(self) -> None:
        """Close the environment; episodes that no dataset has taken are kept for recovery."""
        self._recording, self._last = False, None
        try:
            super().close()
        finally:
            self._leave()
        self._warn()


def _reset_data(observation: Any, info: dict[str, Any]) -> StepData:
    return StepData(
        observation=observation,
        action=None,
        reward=None,
        terminated=None,
        truncated=None,
        info=info,
    )


def _autoreset_wrapper(env: gym.Env) -> Autoreset | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Autoreset):
            return env
        env = env.env
    return None
