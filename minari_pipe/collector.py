"""Records what happens in a Gymnasium environment and makes a dataset of it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded

from minari_pipe.creation import Description
from minari_pipe.dataset import MinariDataset
from minari_pipe.episode import (
    EpisodeBuffer,
    EpisodeMetadataCallback,
    StepData,
    StepDataCallback,
    copied,
)
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.library import get_dataset_path, load_dataset, new_dataset
from minari_pipe.recorder import EpisodeRecorder
from minari_pipe.storage.attributes import check_options
from minari_pipe.storage.base import MinariStorage, get_minari_storage
from minari_pipe.storage.hdf5 import EpisodeFile, HDF5Storage

#: HDF5 attributes hold integers of at most 64 bits
AUTOSEED_BIT_SIZE = 64


class DataCollector(gym.Wrapper):
    """Wraps an environment and records every step that is made in it.

    Values are copied, finished episodes go to a file in the system's temporary directory. A
    reset in the middle of an episode closes it as truncated. :meth:`create_dataset` and
    :meth:`add_to_dataset` take what was recorded so far; what they have not taken is gone after
    :meth:`close`.

    Example::

        env = minari_pipe.DataCollector(gym.make("CartPole-v1"))
        env.reset(seed=1)
        ...
        dataset = env.create_dataset("cartpole/test-v0")
    """

    def __init__(
        self,
        env: gym.Env,
        step_data_callback: type[StepDataCallback] = StepDataCallback,
        episode_metadata_callback: type[EpisodeMetadataCallback] = EpisodeMetadataCallback,
        record_infos: bool = False,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        data_format: str | None = None,
        *,
        jpeg_encoding: bool = False,
    ) -> None:
        """Begin to record.

        Args:
            env: the environment.
            step_data_callback: makes the record of a step from what the environment returned.
            episode_metadata_callback: computes the attributes of a finished episode.
            record_infos: record the infos too.
            observation_space: space of the recorded observations; None takes the environment's.
            action_space: space of the recorded actions; None takes the environment's.
            data_format: format of the dataset; None means hdf5.
            jpeg_encoding: store images lossily; unlike Minari's, the default is lossless.
        """
        super().__init__(env)
        self.data_format = data_format
        self.datasets_path = str(get_dataset_path())
        self._step_data_callback = step_data_callback()
        self._episode_metadata_callback = episode_metadata_callback()
        self._record_infos = record_infos
        self._jpeg_encoding = jpeg_encoding
        self._recorded_observation_space = observation_space or env.observation_space
        self._recorded_action_space = action_space or env.action_space
        get_minari_storage(data_format or "hdf5").check_spaces(
            self._recorded_observation_space,
            self._recorded_action_space,
            jpeg_encoding=jpeg_encoding,
        )
        # the file of finished episodes is HDF5, whatever the format of the dataset
        HDF5Storage.check_spaces(self._recorded_observation_space, self._recorded_action_space)
        self._recorder = EpisodeRecorder(
            self._recorded_observation_space,
            self._recorded_action_space,
            record_infos=record_infos,
        )
        # what the step after the end of an episode starts from if nobody resets
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._recording = False
        self._open_file()

    def _open_file(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="minari_pipe-"))
        self._path = directory / "episodes.hdf5"
        self._stack = ExitStack()
        self._file = self._stack.enter_context(EpisodeFile.create(self._path))
        self._remove = weakref.finalize(self, _discard, self._stack, directory, os.getpid())

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record it.

        Whatever fails in it, the environment's own step too, ends the episode before it.

        Raises:
            InvalidEpisodeError: a value has not the structure or the shape of its space.
            DatasetNotFoundError: the collector is closed.
        """
        if not self._recording and self._last is None:
            self._refuse_if_closed()
            raise ResetNeeded("Cannot record a step before the first reset; call reset()")
        # A copy of its own: an environment may change the array that it is given.
        given = copied(action)
        try:
            observation, reward, terminated, truncated, info = self.env.step(given)
            data = self._step_data_callback(
                env=self.env,
                obs=observation,
                info=info,
                action=action,
                rew=reward,
                terminated=terminated,
                truncated=truncated,
            )
            self._warn_unless_contained(data)
            self._record(data)
        except BaseException:
            # the steps so far are true, but the next one would no longer follow them
            self._close_episode()
            raise
        return observation, reward, terminated, truncated, info

    def _record(self, data: StepData) -> None:
        if not self._recording:
            assert self._last is not None
            self._recorder.start(*self._last)
            self._recording = True
        self._recorder.step(
            data["action"],
            data["observation"],
            data["reward"],
            bool(data["terminated"]),
            bool(data["truncated"]),
            data["info"],
        )
        if data["terminated"] or data["truncated"]:
            info = copied(data["info"]) if self._record_infos else {}
            self._last = copied(data["observation"]), info
            self._finish_episode()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an unfinished episode is closed as truncated.

        Args:
            seed: seed of the environment. If None, a random one of 64 bits is drawn and recorded,
                unless ``options["minari_autoseed"]`` is False.
            options: options of the environment's reset; they are recorded too.

        Raises:
            InvalidEpisodeError: the options cannot be stored; nothing was reset. Or the first
                observation has not the structure or the shape of its space.
            DatasetNotFoundError: the collector is closed.
        """
        self._refuse_if_closed()
        check_options(options)
        # The environment gets the caller's own object, as without a collector, and may change it.
        given = copied(options)
        self._close_episode()
        if seed is None and (options or {}).get("minari_autoseed", True):
            seed = secrets.randbits(AUTOSEED_BIT_SIZE)
        observation, info = self.env.reset(seed=seed, options=options)
        data = self._step_data_callback(env=self.env, obs=observation, info=info)
        self._warn_unless_contained(data)
        self._recorder.start(data["observation"], data["info"], seed=seed, options=given)
        self._recording = True
        return observation, info

    def _warn_unless_contained(self, data: StepData) -> None:
        space = self._recorded_observation_space
        if not space.contains(data["observation"]):
            warnings.warn(
                "Observation is not in observation space.\n"
                f"Observation: {data['observation']}\nSpace: {space}",
                stacklevel=3,
            )
        space = self._recorded_action_space
        if data["action"] is not None and not space.contains(data["action"]):
            warnings.warn(
                f"Action is not in action space.\nAction: {data['action']}\nSpace: {space}",
                stacklevel=3,
            )

    def _close_episode(self) -> None:
        recording, self._recording, self._last = self._recording, False, None
        if recording and len(self._recorder):
            self._recorder.truncate()
            self._finish_episode()

    def _finish_episode(self) -> None:
        self._recording = False
        episode = self._recorder.finish(len(self._file))
        fields = ("id", "observations", "actions", "rewards", "terminations", "truncations")
        record = {key: getattr(episode, key) for key in fields}
        record["infos"] = episode.infos or {}
        episode.metadata.update(self._episode_metadata_callback(record))
        self._file.append(episode)

    def create_dataset(
        self,
        dataset_id: str,
        eval_env: str | gym.Env | EnvSpec | None = None,
        algorithm_name: str | None = None,
        author: str | set[str] | None = None,
        author_email: str | set[str] | None = None,
        code_permalink: str | None = None,
        ref_min_score: float | None = None,
        ref_max_score: float | None = None,
        expert_policy: Callable[[Any], Any] | None = None,
        num_episodes_average_score: int = 100,
        description: str | None = None,
        requirements: list[str] | None = None,
    ) -> MinariDataset:
        """Create a dataset of everything recorded so far and begin anew.

        An unfinished episode is closed as truncated. If the creation fails, nothing of it is left
        behind and the recorded episodes are kept for another attempt.

        Args:
            dataset_id: id of the new dataset.
            eval_env: see :class:`minari_pipe.creation.Description`, as for all arguments.
            algorithm_name: what made the actions.
            author: name or names.
            author_email: address or addresses.
            code_permalink: address of the code.
            ref_min_score: mean return of a random policy.
            ref_max_score: mean return of an expert.
            expert_policy: maps an observation to an action.
            num_episodes_average_score: number of episodes of a measurement.
            description: what the dataset is.
            requirements: pip requirements of the environment.

        Raises:
            InvalidDatasetIdError: the id is malformed.
            DatasetExistsError: the id is taken.
            InvalidMetadataError: arguments contradict each other.
            DatasetNotFoundError: the collector is closed.
        """
        told = Description(
            eval_env=eval_env,
            algorithm_name=algorithm_name,
            author=author,
            author_email=author_email,
            code_permalink=code_permalink,
            ref_min_score=ref_min_score,
            ref_max_score=ref_max_score,
            expert_policy=expert_policy,
            num_episodes_average_score=num_episodes_average_score,
            description=description,
            requirements=requirements,
        )
        with self._taken(), new_dataset(dataset_id) as data_path:
            metadata = told.metadata(dataset_id, self.env.spec)
            storage = MinariStorage.new(
                data_path,
                observation_space=self._recorded_observation_space,
                action_space=self._recorded_action_space,
                env_spec=self.env.spec,
                data_format=self.data_format or "hdf5",
                jpeg_encoding=self._jpeg_encoding,
            )
            storage.update_metadata(metadata)
            if isinstance(storage, HDF5Storage):
                storage.adopt(self._path)
            else:
                storage.update_episodes(self._buffers())
        return load_dataset(dataset_id)

    def add_to_dataset(self, dataset: MinariDataset) -> None:
        """Append everything recorded so far to a dataset and begin anew.

        Seeds, options, infos and attributes are kept. If it fails, the dataset is as before and
        the recorded episodes are kept.

        Raises:
            InvalidEpisodeError: the dataset's spaces are not those of this environment.
            DatasetNotFoundError: the collector is closed.
        """
        with self._taken():
            first = dataset.storage.total_episodes
            dataset.storage.update_episodes(self._buffers())
            new = np.arange(first, dataset.storage.total_episodes)
            dataset.episode_indices = np.append(dataset.episode_indices, new)

    def _buffers(self) -> Iterator[EpisodeBuffer]:
        with EpisodeFile.open(self._path) as file:
            for index in range(len(file)):
                yield file.read_buffer(
                    index, self._recorded_observation_space, self._recorded_action_space
                )

    @contextmanager
    def _taken(self) -> Iterator[None]:
        """Finish the file for the body to read; begin a new one unless the body fails."""
        self._refuse_if_closed()
        self._close_episode()
        self._stack.close()
        try:
            yield
        except BaseException:
            self._file = self._stack.enter_context(EpisodeFile.extend(self._path))
            raise
        self._remove()
        self._open_file()

    def _refuse_if_closed(self) -> None:
        if not self._remove.alive:
            raise DatasetNotFoundError(
                "this DataCollector is closed: what it recorded is deleted and nothing more can "
                "be recorded; call create_dataset() or add_to_dataset() before close(), and make "
                "a new DataCollector to go on"
            )

    def close(self) -> None:
        """Close the environment; what was recorded and not taken is deleted."""
        super().close()
        self._recording, self._last = False, None
        self._remove()


def _discard(stack: ExitStack, directory: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked child must not remove its parent's file
        return
    with suppress(Exception):
        stack.close()
    shutil.rmtree(directory, ignore_errors=True)
