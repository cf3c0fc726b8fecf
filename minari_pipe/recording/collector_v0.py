"""Provide the collector and the functions of Minari before 0.5, for code written for them."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.datasets_root import get_dataset_path, refuse_foreign_links
from minari_pipe.core.episode import EpisodeMetadataCallback, StepDataCallback
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import (
    ConfigError,
    DatasetExistsError,
    InvalidDatasetIdError,
    InvalidMetadataError,
)
from minari_pipe.recording.collector import DataCollector
from minari_pipe.storage.writer import BUFFER_FIELDS


class DataCollectorV0(DataCollector):
    """The collector of Minari 0.3 and 0.4: a :class:`DataCollector` with its old arguments.

    Callbacks for those versions work: plural keys of the step data, ``StepDataCallback(env)``,
    and an ``EpisodeMetadataCallback`` that sets ``attrs`` of the episode's group. As in those
    versions, a reset without a seed gets none. Each episode is written to disk when it ends, so
    there is no buffer to limit.

    Example:
        >>> import gymnasium as gym, warnings
        >>> from minari_pipe import DataCollectorV0, create_dataset_from_collector_env
        >>> with warnings.catch_warnings(action="ignore"):  # it is deprecated
        ...     env = DataCollectorV0(gym.make("CartPole-v1"), max_buffer_steps=1000)
        ...     _ = env.reset(seed=1)
        ...     _ = env.step(0)
        ...     dataset = create_dataset_from_collector_env("cartpole-old-v0", env)
        >>> len(dataset)
        1
        >>> env.close()
    """

    _autoseed = False

    def __init__(
        self,
        env: gym.Env,
        step_data_callback: type[StepDataCallback] | Callable[..., Any] = StepDataCallback,
        episode_metadata_callback: type[EpisodeMetadataCallback]
        | Callable[..., Any] = EpisodeMetadataCallback,
        record_infos: bool = False,
        max_buffer_steps: int | None = None,
        max_buffer_episodes: int | gym.Space[Any] | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        """Start recording; see :class:`DataCollector`.

        Args:
            env: the environment.
            step_data_callback: makes the record of a step.
            episode_metadata_callback: computes the attributes of a finished episode.
            record_infos: record the infos too.
            max_buffer_steps: has no effect.
            max_buffer_episodes: has no effect. A space in this position is the observation space,
                and the next argument the action space, as in Minari 0.4.3.
            observation_space: space of the recorded observations; None means the environment's.
            action_space: space of the recorded actions; None means the environment's.

        Raises:
            ConfigError: both ``max_buffer_steps`` and ``max_buffer_episodes`` are given.
        """
        warnings.warn(
            "DataCollectorV0 is deprecated, use DataCollector; max_buffer_steps and "
            "max_buffer_episodes have no effect",
            DeprecationWarning,
            stacklevel=2,
        )
        if isinstance(max_buffer_episodes, gym.Space):  # Minari 0.4.3 had no such argument
            observation_space, action_space = max_buffer_episodes, observation_space
            max_buffer_episodes = None
        if max_buffer_steps is not None and max_buffer_episodes is not None:
            raise ConfigError(
                "max_buffer_steps and max_buffer_episodes can't be passed at the same time"
            )
        super().__init__(
            env,
            step_data_callback,
            episode_metadata_callback,
            record_infos,
            observation_space,
            action_space,
        )
        self.max_buffer_steps = max_buffer_steps
        self.max_buffer_episodes = max_buffer_episodes
        self._recorded.episode_metadata = _OlderMetadata(self._recorded.episode_metadata)

    def clear_buffer_to_tmp_file(self, truncate_last_episode: bool = False) -> None:
        """Move finished episodes to disk, where they already are.

        Args:
            truncate_last_episode: close the unfinished episode as truncated, so that it is too.
        """
        self._refuse_if_closed()
        if truncate_last_episode:
            self._close_episode()
            self._warn()

    def save_to_disk(
        self, path: str | os.PathLike[str], dataset_metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Write everything recorded so far to a data directory, and start over.

        Args:
            path: the directory, such as ``/home/foo/datasets/data``, or the ``main_data.hdf5`` in
                it; the current layout is written.
            dataset_metadata: metadata to write. Without a ``dataset_id``, the id is taken from the
                parent directory if possible.

        Raises:
            InvalidMetadataError: the metadata have a key that the environment determines, or a
                value of a wrong type.
            DatasetExistsError: the path is a file, or a directory that is not empty.
        """
        target = Path(path)
        if target.suffix in (".hdf5", ".h5"):
            target = target.parent
        metadata = {k: v for k, v in (dataset_metadata or {}).items() if v is not None}
        for key in ("observation_space", "action_space", "env_spec"):
            if key in metadata:
                raise InvalidMetadataError(f"'{key}' is not allowed as an optional key.")
        for key in ("author", "author_email"):
            if isinstance(metadata.get(key), str):
                metadata[key] = {metadata[key]}
        if "dataset_id" not in metadata and (name := _id_of(target)) is not None:
            metadata["dataset_id"] = name
        metadata["minari_version"] = MINARI_VERSION
        refuse_foreign_links(target)
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            raise DatasetExistsError(f"{target} already exists and is not empty")
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
        with self._taken():
            try:
                self._store(stage, metadata)
                os.rename(stage, target)
            except BaseException:
                shutil.rmtree(stage, ignore_errors=True)
                raise


def create_dataset_from_collector_env(
    dataset_id: str,
    collector_env: DataCollector,
    eval_env: str | gym.Env | EnvSpec | None = None,
    algorithm_name: str | None = None,
    author: str | set[str] | None = None,
    author_email: str | set[str] | None = None,
    code_permalink: str | None = None,
    ref_min_score: float | None = None,
    ref_max_score: float | None = None,
    expert_policy: Callable[[Any], Any] | None = None,
    num_episodes_average_score: int = 100,
    minari_version: str | None = None,
) -> MinariDataset:
    """Create a dataset from a collector; now ``DataCollector.create_dataset``.

    Args:
        dataset_id: id of the new dataset.
        collector_env: the collector, old or new.
        eval_env: see :class:`minari_pipe.datasets.create.Description`, also for the others.
        algorithm_name: algorithm that chose the actions.
        author: name or names.
        author_email: address or addresses.
        code_permalink: URL of the code.
        ref_min_score: mean return of a random policy.
        ref_max_score: mean return of an expert.
        expert_policy: maps an observation to an action.
        num_episodes_average_score: number of episodes to measure a score.
        minari_version: ignored; formerly the versions of Minari for the dataset. The version of
            the layout that is written counts now.

    Raises:
        InvalidMetadataError: ``collector_env`` is not a collector, or arguments contradict each
            other.
        DatasetExistsError: the id is taken.

    Example:
        >>> import gymnasium as gym, warnings
        >>> from minari_pipe import DataCollectorV0, create_dataset_from_collector_env
        >>> with warnings.catch_warnings(action="ignore"):  # both are deprecated
        ...     env = DataCollectorV0(gym.make("CartPole-v1"))
        ...     _ = env.reset(seed=1)
        ...     _ = env.step(0)
        ...     create_dataset_from_collector_env("cartpole-old-v0", env)
        MinariDataset('cartpole-old-v0', 1 episodes)
        >>> env.close()
    """
    warnings.warn(
        "create_dataset_from_collector_env is deprecated, use DataCollector.create_dataset"
        + (f"; minari_version={minari_version!r} is ignored" if minari_version else ""),
        DeprecationWarning,
        stacklevel=2,
    )
    if not isinstance(collector_env, DataCollector):
        raise InvalidMetadataError(
            f"collector_env must be a DataCollector, got {type(collector_env).__name__}; a "
            "wrapper around it hides the recorded episodes"
        )
    return collector_env.create_dataset(
        dataset_id,
        eval_env=eval_env,
        algorithm_name=algorithm_name,
        author=author,
        author_email=author_email,
        code_permalink=code_permalink,
        ref_min_score=ref_min_score,
        ref_max_score=ref_max_score,
        expert_policy=expert_policy,
        num_episodes_average_score=num_episodes_average_score,
    )


def _id_of(target: Path) -> str | None:
    """Return the dataset id that the path of a data directory implies, None if none."""
    folder = target.resolve().parent
    root = get_dataset_path().resolve()
    name = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.name
    try:
        parse_dataset_id(name)
    except InvalidDatasetIdError:
        return None
    return name


class _OlderMetadata:
    """Calls a metadata callback with an object that looks like an episode's HDF5 group."""

    def __init__(self, called: Callable[[Any], Any]) -> None:
        self._called = called

    def __call__(self, episode: dict[str, Any]) -> dict[str, Any]:
        group = _Group(episode)
        returned = self._called(group)
        found = dict(returned) if isinstance(returned, Mapping) else {}
        found |= {key: value for key, value in group.attrs.items() if key not in BUFFER_FIELDS}
        for name, column in group.items():
            if isinstance(column, _Dataset):
                found |= {f"{name}_{key}": value for key, value in column.attrs.items()}
        return found


class _Group(dict[str, Any]):
    """The columns of an episode by name, with ``attrs`` to set."""

    def __init__(self, episode: Mapping[str, Any]) -> None:
        super().__init__(
            (name, _Dataset(value) if isinstance(value, np.ndarray) else value)
            for name, value in episode.items()
        )
        self.attrs: dict[str, Any] = {}


class _Dataset(np.ndarray):
    """An array with ``attrs`` to set, such as ``rewards.attrs["sum"]``."""

    attrs: dict[str, Any]

    def __new__(cls, array: np.ndarray) -> _Dataset:
        made = array.view(cls)
        made.attrs = {}
        return made
