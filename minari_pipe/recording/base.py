"""Implement what all collectors share: recorded episodes become a dataset, or are kept."""

from __future__ import annotations

import time
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from minari_pipe._version import __version__
from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.core.spaces import serialize_space
from minari_pipe.datasets.bounds import SpaceChecker
from minari_pipe.datasets.create import Description, check_version
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import new_dataset, open_dataset
from minari_pipe.errors import ConfigError, DatasetNotFoundError
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.session import Recording
from minari_pipe.storage.base import MinariStorage, file_format, get_minari_storage
from minari_pipe.storage.writer import StableBuffers

#: HDF5 attributes hold integers of at most 64 bits.
AUTOSEED_BIT_SIZE = 64


class Collecting:
    """The half of a collector that holds the episodes; the other half steps environments.

    Example:
        See :class:`~minari_pipe.recording.collector.DataCollector`.
    """

    data_format: str | None
    _recorded: Recording

    def _begin(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        data_format: str | None,
        *,
        record_infos: bool,
        jpeg_encoding: bool,
        strict: bool,
        **recording: Any,
    ) -> None:
        """Start recording; further arguments are those of :class:`Recording`."""
        self.data_format = data_format
        self.datasets_path = str(get_dataset_path())
        self._record_infos = record_infos
        self._jpeg_encoding = jpeg_encoding
        self._strict = strict
        self._recorded_observation_space = observation_space
        self._recorded_action_space = action_space
        get_minari_storage(file_format(data_format)).check_spaces(
            observation_space, action_space, jpeg_encoding=jpeg_encoding
        )
        self._journal = Journal(self._head())
        self._recorded = Recording(
            observation_space,
            action_space,
            journal=self._journal,
            record_infos=record_infos,
            strict=strict,
            **recording,
        )
        self._leave = weakref.finalize(self, self._recorded.leave)

    def _head(self) -> dict[str, Any]:
        """Return what a dataset needs to know besides the episodes."""
        spec, env_spec = self._spec(), None
        if spec is not None:
            with suppress(ConfigError):
                env_spec = spec_json(spec)
        return {
            "observation_space": serialize_space(self._recorded_observation_space),
            "action_space": serialize_space(self._recorded_action_space),
            "env_spec": env_spec,
            "env_id": None if spec is None else spec.id,
            "data_format": file_format(self.data_format),
            "jpeg_encoding": self._jpeg_encoding,
            "minari_version": MINARI_VERSION,
            "minari_pipe_version": __version__,
            "started": time.time(),
        }

    #: whether the user made the environment of the spec, see :func:`is_own`
    _is_own: bool

    @abstractmethod
    def _spec(self) -> EnvSpec | None:
        """Return the spec of a single environment, None if it has none."""

    @abstractmethod
    def _break_off(self) -> None:
        """Finish the open episodes; a reset must come before the next step."""

    def _warn(self, stacklevel: int = 3) -> None:
        """Issue the warnings about finished episodes."""
        if self._recorded.warnings:
            texts, self._recorded.warnings = self._recorded.warnings, []
            for text in texts:
                warnings.warn(text, stacklevel=stacklevel)

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
        *,
        minari_version: str | None = None,
    ) -> MinariDataset:
        """Create a dataset of everything recorded so far, and start over.

        Unfinished episodes are closed as truncated, unless the collector drops them. If this fails,
        nothing of the dataset is left behind, and the recorded episodes are kept for another
        attempt.

        Args:
            dataset_id: id of the new dataset.
            eval_env: see :class:`minari_pipe.datasets.create.Description`, also for the others.
            algorithm_name: algorithm that chose the actions.
            author: name or names.
            author_email: address or addresses.
            code_permalink: URL of the code.
            ref_min_score: mean return of a random policy.
            ref_max_score: mean return of an expert.
            expert_policy: maps an observation to an action.
            num_episodes_average_score: number of episodes to measure a score.
            description: description of the dataset.
            requirements: pip requirements of the environment.
            minari_version: see :func:`~minari_pipe.datasets.create.create_dataset_from_buffers`.

        Raises:
            InvalidDatasetIdError: the id is malformed.
            DatasetExistsError: the id is taken.
            InvalidMetadataError: arguments contradict each other.
            ConfigError: ``on_episode`` of the collector takes the episodes.
            DatasetNotFoundError: the collector is closed.
        """
        check_version(minari_version)
        details = Description(
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
            metadata = details.metadata(dataset_id, self._spec(), is_users=self._is_own)
            self._store(data_path, metadata)
        return open_dataset(dataset_id)

    def _store(self, data_path: Path, metadata: dict[str, Any]) -> None:
        MinariStorage.create(
            data_path,
            StableBuffers(self._recorded.episodes(0)),
            metadata=metadata,
            observation_space=self._recorded_observation_space,
            action_space=self._recorded_action_space,
            env_spec=self._spec(),
            data_format=file_format(self.data_format),
            jpeg_encoding=self._jpeg_encoding,
        )

    def add_to_dataset(self, dataset: MinariDataset) -> None:
        """Append everything recorded so far to a dataset, and start over.

        Seeds, options, infos and attributes are kept. If this fails, the dataset is unchanged, and
        the recorded episodes are kept. A warning reports values that lie in the collector's spaces
        but not in the dataset's.

        Args:
            dataset: the dataset to extend; if it is a view, so is the view.

        Raises:
            InvalidEpisodeError: a value does not have the structure or the shape of the dataset's
                spaces, or lies outside of them and the collector is strict.
            CorruptDatasetError: the files do not match their metadata or their manifest.
            ConfigError: it is not a dataset, or ``on_episode`` of the collector takes the episodes.
            DatasetNotFoundError: the collector is closed.
        """
        if not isinstance(dataset, MinariDataset):
            raise ConfigError(
                f"add_to_dataset takes a MinariDataset, such as load_dataset returns; got "
                f"{dataset!r:.80}"
            )
        first = dataset.storage.total_episodes
        theirs = dataset.observation_space, dataset.action_space
        judge = None
        if theirs != (self._recorded_observation_space, self._recorded_action_space):
            judge = SpaceChecker(*theirs, strict=self._strict)
        with self._taken(first):
            episodes = StableBuffers(self._recorded.episodes(first))
            dataset.storage.update_episodes(episodes, judge=judge)
            new = np.arange(first, dataset.storage.total_episodes)
            dataset.episode_indices = np.append(dataset.episode_indices, new)
        self._recorded.warnings += judge.warnings if judge else []
        self._warn()

    @contextmanager
    def _taken(self, first: int = 0) -> Iterator[None]:
        """Finish open episodes, let the body take all episodes, and start over unless it fails."""
        self._refuse_if_closed()
        if self._recorded.on_episode is not None:
            raise ConfigError(
                "the episodes went to on_episode, so none are left for a dataset; leave "
                "on_episode out to keep them"
            )
        self._break_off()
        self._recorded.keep()
        self._warn(stacklevel=5)
        yield
        self._recorded.taken(first)

    def _refuse_if_closed(self) -> None:
        if not self._leave.alive:
            raise DatasetNotFoundError(
                f"this {type(self).__name__} is closed and cannot record anything more; call "
                "create_dataset() or add_to_dataset() before close(), and make a new "
                f"{type(self).__name__} to continue. `minari-pipe recover` finds unsaved episodes"
            )

    def __reduce__(self) -> NoReturn:
        """Raise an error, as a copy would record into the same files."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled because it records into files of "
            "its own; copy or pickle its environment (collector.env) and collect from that"
        )
