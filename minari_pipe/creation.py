"""Makes datasets in the local root: of recorded episodes, or of the episodes of others."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from minari_pipe.dataset import MinariDataset
from minari_pipe.environments import spec_json
from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import InvalidMetadataError
from minari_pipe.library import load_dataset, new_dataset
from minari_pipe.metadata import MINARI_VERSION
from minari_pipe.scores import RandomPolicy, get_average_reference_score
from minari_pipe.storage.base import MinariStorage


@dataclass(frozen=True)
class Description:
    """What the author says about a dataset; the arguments that all ways to create one share.

    Attributes:
        eval_env: environment for evaluation, if it is not the collection's.
        algorithm_name: what made the actions.
        author: name or names.
        author_email: address or addresses.
        code_permalink: address of the code.
        ref_min_score: mean return of a random policy. If None and a maximum is known, it is
            measured with random actions.
        ref_max_score: mean return of an expert.
        expert_policy: maps an observation to an action; ``ref_max_score`` is measured with it.
        num_episodes_average_score: number of episodes of a measurement.
        description: what the dataset is.
        requirements: pip requirements of the environment.
    """

    eval_env: str | gym.Env | EnvSpec | None = None
    algorithm_name: str | None = None
    author: str | set[str] | None = None
    author_email: str | set[str] | None = None
    code_permalink: str | None = None
    ref_min_score: float | None = None
    ref_max_score: float | None = None
    expert_policy: Callable[[Any], Any] | None = None
    num_episodes_average_score: int = 100
    description: str | None = None
    requirements: list[str] | None = None

    def metadata(self, dataset_id: str, env_spec: EnvSpec | None) -> dict[str, Any]:
        """Return the metadata of the dataset, measuring the reference scores that are asked for.

        Raises:
            InvalidMetadataError: arguments contradict each other.
        """
        if self.expert_policy is not None and self.ref_max_score is not None:
            raise InvalidMetadataError(
                "Can't pass a value for `expert_policy` and `ref_max_score` at the same time."
            )
        metadata: dict[str, Any] = {"dataset_id": dataset_id}
        for key, advice in _ADVICE.items():
            value = getattr(self, key)
            if value is None:
                warnings.warn(f"`{key}` is set to None. {advice}", stacklevel=3)
            elif key in ("author", "author_email"):
                metadata[key] = {value} if isinstance(value, str) else set(value)
            else:
                metadata[key] = value
        metadata["minari_version"] = MINARI_VERSION
        eval_env_spec = env_spec
        if self.eval_env is None:
            warnings.warn(
                "`eval_env` is set to None. If another environment is intended to be used for "
                "evaluation please specify corresponding Gymnasium environment (gym.Env | "
                "gym.envs.registration.EnvSpec). If None the environment used to collect the data "
                f"(`env={env_spec}`) will be used for this purpose.",
                stacklevel=3,
            )
        else:
            eval_env_spec = _spec_of(self.eval_env)
            if eval_env_spec is None:
                raise InvalidMetadataError(
                    "The `eval_env` has no spec, so that it could not be recovered; make it with "
                    "gymnasium.make"
                )
            metadata["eval_env_spec"] = spec_json(eval_env_spec)
        if env_spec is None:
            warnings.warn(
                "env_spec is None, no environment spec is provided during collection for this "
                "dataset",
                stacklevel=3,
            )
        metadata |= self._reference_scores(eval_env_spec)
        if self.requirements is not None:
            metadata["requirements"] = list(self.requirements)
        return metadata

    def _reference_scores(self, spec: EnvSpec | None) -> dict[str, Any]:
        low, high = self.ref_min_score, self.ref_max_score
        if low is None and high is None and self.expert_policy is None:
            return {}
        measure_low = low is None and spec is not None
        if measure_low or self.expert_policy is not None:
            if spec is None:
                raise InvalidMetadataError(
                    "`expert_policy` needs an environment to be measured in; pass `eval_env`"
                )
            env = gym.make(spec)
            if measure_low:
                low = get_average_reference_score(
                    env, RandomPolicy(env), self.num_episodes_average_score
                )
            if self.expert_policy is not None:
                high = get_average_reference_score(
                    env, self.expert_policy, self.num_episodes_average_score
                )
            env.close()
        scores = {"ref_max_score": high, "ref_min_score": low}
        known: dict[str, Any] = {key: float(v) for key, v in scores.items() if v is not None}
        return {**known, "num_episodes_average_score": self.num_episodes_average_score}


_ADVICE = {
    "code_permalink": "For reproducibility purposes it is highly recommended to link your dataset "
    "to versioned code.",
    "author": "For longevity purposes it is highly recommended to provide an author name.",
    "author_email": "For longevity purposes it is highly recommended to provide an author email, "
    "or some other obvious contact information.",
    "algorithm_name": "For reproducibility purpose it's highly recommended to set your algorithm",
    "description": "For longevity purposes it is highly recommended to provide a description of "
    "the dataset",
}


def _spec_of(env: str | gym.Env | EnvSpec) -> EnvSpec | None:
    if isinstance(env, str):
        return gym.spec(env)
    if isinstance(env, EnvSpec):
        return env
    if isinstance(env, gym.Env):
        return env.spec
    raise InvalidMetadataError(
        f"The `eval_env` argument must be of types str|EnvSpec|gym.Env, got {type(env).__name__}"
    )


def create_dataset_from_buffers(
    dataset_id: str,
    buffer: list[EpisodeBuffer],
    env: str | gym.Env | EnvSpec | None = None,
    eval_env: str | gym.Env | EnvSpec | None = None,
    algorithm_name: str | None = None,
    author: str | set[str] | None = None,
    author_email: str | set[str] | None = None,
    code_permalink: str | None = None,
    action_space: gym.Space | None = None,
    observation_space: gym.Space | None = None,
    ref_min_score: float | None = None,
    ref_max_score: float | None = None,
    expert_policy: Callable[[Any], Any] | None = None,
    num_episodes_average_score: int = 100,
    description: str | None = None,
    data_format: str | None = None,
    requirements: list[str] | None = None,
    *,
    jpeg_encoding: bool = False,
) -> MinariDataset:
    """Create a dataset in the local root from recorded episodes; if that fails, nothing is left.

    Args:
        dataset_id: id of the new dataset.
        buffer: the episodes.
        env: environment that they come from, or its id or spec.
        eval_env: see :class:`Description`, as for all arguments not listed here.
        algorithm_name: what made the actions.
        author: name or names.
        author_email: address or addresses.
        code_permalink: address of the code.
        action_space: space of the actions; None takes the environment's.
        observation_space: space of the observations; None takes the environment's.
        ref_min_score: mean return of a random policy.
        ref_max_score: mean return of an expert.
        expert_policy: maps an observation to an action.
        num_episodes_average_score: number of episodes of a measurement.
        description: what the dataset is.
        data_format: one of ``get_storage_keys()``; None means hdf5.
        requirements: pip requirements of the environment.
        jpeg_encoding: store images lossily; unlike Minari's, the default is lossless.

    Raises:
        InvalidDatasetIdError: the id is malformed.
        DatasetExistsError: the id is taken.
        InvalidEpisodeError: an episode's values do not fit together or to the spaces.
        InvalidMetadataError: arguments are missing or contradict each other.
    """
    if env is None:
        env_spec = None
        if observation_space is None or action_space is None:
            raise InvalidMetadataError(
                "Both observation space and action space must be provided, if env is None"
            )
    elif isinstance(env, str | EnvSpec | gym.Env):
        env_spec = _spec_of(env)
        if observation_space is None or action_space is None:
            made = gym.make(env) if isinstance(env, str | EnvSpec) else env
            observation_space = observation_space or made.observation_space
            action_space = action_space or made.action_space
            if made is not env:
                made.close()
    else:
        raise TypeError(f"Unsupported env type {type(env).__name__}")
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
    with new_dataset(dataset_id) as data_path:
        metadata = told.metadata(dataset_id, env_spec)
        storage = MinariStorage.new(
            data_path,
            observation_space=observation_space,
            action_space=action_space,
            env_spec=env_spec,
            data_format=data_format or "hdf5",
            jpeg_encoding=jpeg_encoding,
        )
        storage.update_metadata(metadata)
        storage.update_episodes(buffer)
    return load_dataset(dataset_id)


def split_dataset(
    dataset: MinariDataset, sizes: list[int], seed: int | None = None
) -> list[MinariDataset]:
    """Return views of random episodes, none of them in two views.

    Args:
        dataset: what to split.
        sizes: numbers of episodes of the views.
        seed: seed of the choice.

    Raises:
        ValueError: there are not enough episodes.
    """
    if sum(sizes) > dataset.total_episodes:
        raise ValueError(
            f"Incompatible arguments: the sum of sizes exceeds the number of episodes in the "
            f"dataset ({dataset.total_episodes})"
        )
    order = np.random.default_rng(seed).permutation(dataset.episode_indices)
    ends = np.cumsum(sizes)
    return [
        MinariDataset(dataset.storage, order[end - size : end])
        for size, end in zip(sizes, ends, strict=True)
    ]


def combine_datasets(
    datasets_to_combine: list[MinariDataset], new_dataset_id: str
) -> MinariDataset:
    """Create a dataset of the episodes of others: of a view, only those of the view.

    Seeds, options, infos and attributes are kept. Metadata that all have in common is kept,
    authors are united.

    Raises:
        InvalidMetadataError: their spaces or environments differ.
        DatasetExistsError: the id is taken.
    """
    if not datasets_to_combine:
        raise InvalidMetadataError("combine_datasets needs at least one dataset")
    env_spec = validate_datasets_to_combine(datasets_to_combine)
    first = datasets_to_combine[0]
    sources = [dataset.storage.metadata for dataset in datasets_to_combine]
    metadata: dict[str, Any] = {
        "dataset_id": new_dataset_id,
        "combined_datasets": [dataset.id for dataset in datasets_to_combine],
        "minari_version": MINARI_VERSION,
    }
    for key in ("author", "author_email"):
        names = set().union(*(source.get(key, set()) for source in sources))
        if names:
            metadata[key] = names
    for key, value in sources[0].items():
        if key not in _NOT_COMMON and all(source.get(key) == value for source in sources):
            metadata.setdefault(key, value)
    with new_dataset(new_dataset_id) as data_path:
        storage = MinariStorage.new(
            data_path,
            observation_space=first.observation_space,
            action_space=first.action_space,
            env_spec=env_spec,
            data_format=first.storage.FORMAT,
        )
        storage.update_metadata(metadata)
        storage.update_episodes(
            chain.from_iterable(
                dataset.storage.get_buffers(dataset.episode_indices)
                for dataset in datasets_to_combine
            )
        )
    return load_dataset(new_dataset_id)


#: what the combined storage finds out by itself
_NOT_COMMON = frozenset(
    {
        "dataset_id",
        "total_episodes",
        "total_steps",
        "dataset_size",
        "data_format",
        "jpeg_encoding",
        "observation_space",
        "action_space",
        "env_spec",
        "minari_version",
        "combined_datasets",
    }
)


def validate_datasets_to_combine(datasets_to_combine: list[MinariDataset]) -> EnvSpec | None:
    """Check that datasets can be combined, and return the environment of the combination.

    Their environments may differ in ``max_episode_steps`` only; the combination has the largest.

    Raises:
        InvalidMetadataError: their spaces or environments differ.
    """
    first = datasets_to_combine[0]
    for dataset in datasets_to_combine[1:]:
        for key in ("observation_space", "action_space"):
            if getattr(dataset, key) != getattr(first, key):
                raise InvalidMetadataError(
                    f"The datasets to be combined have different values for `{key}`: "
                    f"{first.id} has {getattr(first, key)}, {dataset.id} has "
                    f"{getattr(dataset, key)}"
                )
    specs = [copy.deepcopy(dataset.env_spec) for dataset in datasets_to_combine]
    known = [spec for spec in specs if spec is not None]
    if not known:
        return None
    if len(known) < len(specs):
        raise InvalidMetadataError(
            "Cannot combine datasets having env_spec with those having no env_spec."
        )
    horizons = [spec.max_episode_steps for spec in known]
    limited = [horizon for horizon in horizons if horizon is not None]
    horizon = max(limited) if len(limited) == len(horizons) else None
    for spec in known:
        spec.max_episode_steps = horizon
        if spec != known[0]:
            raise InvalidMetadataError(
                "The datasets to be combined have different values for `env_spec` attribute: "
                f"{known[0]} and {spec}"
            )
    return known[0]
