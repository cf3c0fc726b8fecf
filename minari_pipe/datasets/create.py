"""Create datasets from recorded episodes in the local root."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, registry
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from minari_pipe.core.env_specs import entry_point_name, is_recorded, spec_json
from minari_pipe.core.environments import make_by_spec
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.metadata import MINARI_VERSION, is_finite_number
from minari_pipe.core.scores import RandomPolicy, get_average_reference_score
from minari_pipe.datasets.bounds import SpaceChecker
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.legacy_buffers import as_buffers
from minari_pipe.datasets.library import new_dataset, open_dataset
from minari_pipe.errors import InvalidMetadataError
from minari_pipe.storage.base import MinariStorage, file_format


@dataclass(frozen=True)
class Description:
    """The author's description of a dataset: the arguments shared by all ways to create one.

    Attributes:
        eval_env: environment for evaluation, if it is not the collection's.
        algorithm_name: name of the algorithm that chose the actions.
        author: name or names.
        author_email: email address or addresses.
        code_permalink: URL of the code.
        ref_min_score: mean return of a random policy. If None and a maximum is known, it is
            measured with random actions.
        ref_max_score: mean return of an expert.
        expert_policy: maps an observation to an action; ``ref_max_score`` is measured with it.
        num_episodes_average_score: number of episodes per measurement.
        description: description of the dataset.
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

    def metadata(
        self, dataset_id: str, env_spec: EnvSpec | None, *, is_users: bool = False
    ) -> dict[str, Any]:
        """Return the metadata of the dataset; measure the reference scores that are requested.

        Args:
            dataset_id: id of the dataset.
            env_spec: spec of the environment that the data come from.
            is_users: see :func:`is_own`.

        Raises:
            InvalidMetadataError: arguments contradict each other.
            TrustError: a spec names code or a file that the user does not trust.
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
                names = [value] if isinstance(value, str) else _texts(value)
                metadata[key] = sorted(set(names)) if _are_texts(names) else names
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
                    "The `eval_env` has no spec, so it could not be recovered; create it with "
                    "gymnasium.make"
                )
            metadata["eval_env_spec"] = spec_json(eval_env_spec)
            is_users = is_own(self.eval_env)
        if env_spec is None:
            warnings.warn(
                "env_spec is None, no environment spec is provided during collection for this "
                "dataset",
                stacklevel=3,
            )
        metadata |= self._reference_scores(eval_env_spec, is_users)
        if self.requirements is not None:
            metadata["requirements"] = _texts(self.requirements)
        return metadata

    def _reference_scores(self, spec: EnvSpec | None, is_users: bool) -> dict[str, Any]:
        low, high = self.ref_min_score, self.ref_max_score
        if low is None and high is None and self.expert_policy is None:
            return {}
        measure_low = low is None and spec is not None
        if measure_low or self.expert_policy is not None:
            if spec is None:
                raise InvalidMetadataError(
                    "measuring `expert_policy` needs an environment; pass `eval_env`"
                )
            env = gym.make(spec) if is_users else make_by_spec(spec)
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
        known: dict[str, Any] = {
            key: float(value) if is_finite_number(value) else value  # the storage refuses it
            for key, value in scores.items()
            if value is not None
        }
        return {**known, "num_episodes_average_score": self.num_episodes_average_score}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _texts(value: Any) -> Any:
    """Return several texts as a list; leave anything else for the storage to refuse."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return list(value)
    return value


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


def is_own(env: str | gym.Env | EnvSpec) -> bool:
    """Return whether an environment is one that the user made, or named by its id.

    A spec may be that of a stranger's dataset, also where it was put on an environment.

    Example:
        >>> [is_own(env) for env in ("CartPole-v1", gym.make("CartPole-v1"))]
        [True, True]
        >>> is_own(gym.spec("CartPole-v1"))
        False
    """
    if isinstance(env, str | EnvSpec):
        return isinstance(env, str)
    names, layer = set(), env
    while isinstance(layer, gym.Wrapper):
        names.add(entry_point_name(type(layer)))
        layer = layer.env
    return env.spec is None or is_known(env.spec, {*names, entry_point_name(type(layer))})


def is_known(spec: EnvSpec, names: Collection[str] = ()) -> bool:
    """Return whether a spec names nothing to import but what is registered for it, or ``names``.

    One that a dataset stores is not: its arguments may name files.

    Example:
        >>> is_known(gym.spec("CartPole-v1")), is_known(EnvSpec("A-v0", entry_point="os:system"))
        (True, False)
    """
    known = registry.get(spec.id)
    known_name = entry_point_name(known.entry_point) if known else None
    is_made = callable(spec.entry_point) or spec.entry_point in {known_name, *names}
    is_made &= not is_recorded(spec)
    return is_made and all(each.entry_point in names for each in spec.additional_wrappers)


def create_dataset_from_buffers(
    dataset_id: str,
    buffer: Iterable[EpisodeBuffer | Mapping[str, Any]],
    env: str | gym.Env | EnvSpec | None = None,
    eval_env: str | gym.Env | EnvSpec | None = None,
    algorithm_name: str | None = None,
    author: str | set[str] | None = None,
    author_email: str | set[str] | None = None,
    code_permalink: str | None = None,
    action_space: gym.Space[Any] | None = None,
    observation_space: gym.Space[Any] | None = None,
    ref_min_score: float | None = None,
    ref_max_score: float | None = None,
    expert_policy: Callable[[Any], Any] | None = None,
    num_episodes_average_score: int = 100,
    description: str | None = None,
    data_format: str | None = None,
    requirements: list[str] | None = None,
    *,
    jpeg_encoding: bool = False,
    minari_version: str | None = None,
    strict: bool = False,
) -> MinariDataset:
    """Create a dataset in the local root from recorded episodes; on failure leave nothing behind.

    Values outside their space, NaN, other dtypes and an episode without an end are stored with
    one warning per episode.

    Args:
        dataset_id: id of the new dataset.
        buffer: the episodes. They are written as they come, so a generator can yield more than fit
            into memory. Also in the forms of Minari's older API, see
            :func:`minari_pipe.datasets.legacy_buffers.as_buffer`.
        env: the environment that they come from, or its id or spec.
        eval_env: see :class:`Description`, as for all arguments not explained here.
        algorithm_name: name of the algorithm that chose the actions.
        author: name or names.
        author_email: email address or addresses.
        code_permalink: URL of the code.
        action_space: space of the actions; None means the environment's.
        observation_space: space of the observations; None means the environment's.
        ref_min_score: mean return of a random policy.
        ref_max_score: mean return of an expert.
        expert_policy: maps an observation to an action.
        num_episodes_average_score: number of episodes per measurement.
        description: description of the dataset.
        data_format: one of ``get_storage_keys()``; None means hdf5.
        requirements: pip requirements of the environment.
        jpeg_encoding: store images as lossy JPEG; unlike Minari's, the default is lossless.
        minari_version: version or specifier that Minari 0.4 wrote into the metadata. It is only
            checked; the data always follows one version of the standard.
        strict: raise for such episodes instead of warning.

    Raises:
        InvalidDatasetIdError: the id is malformed, or has no version.
        DatasetExistsError: the id is taken.
        InvalidEpisodeError: an episode's values do not fit each other or the spaces.
        InvalidMetadataError: arguments are missing or contradict each other.

    Example:
        >>> import warnings
        >>> from gymnasium.spaces import Discrete
        >>> from minari_pipe import EpisodeBuffer, create_dataset_from_buffers
        >>> episode = EpisodeBuffer(
        ...     observations=[0, 1, 2], actions=[0, 1], rewards=[0.0, 1.0],
        ...     terminations=[False, True], truncations=[False, False],
        ... )
        >>> with warnings.catch_warnings(action="ignore"):  # about all that is not described
        ...     dataset = create_dataset_from_buffers(
        ...         "count-v0", [episode],
        ...         observation_space=Discrete(3), action_space=Discrete(2),
        ...     )
        >>> dataset
        MinariDataset('count-v0', 1 episodes)
        >>> dataset[0].observations
        array([0, 1, 2])
    """
    if isinstance(env, list):  # the argument order of Minari 0.3
        buffer, env = env, buffer
        if isinstance(eval_env, str):  # 0.3 had no eval_env, so the texts were given by position
            texts: Any = (eval_env, algorithm_name, author, author_email)
            algorithm_name, author, author_email, code_permalink = texts
            eval_env = None
    check_version(minari_version)
    if env is None:
        env_spec = None
        if observation_space is None or action_space is None:
            raise InvalidMetadataError(
                "Both observation space and action space must be provided, if env is None"
            )
    elif isinstance(env, str | EnvSpec | gym.Env):
        env_spec = _spec_of(env)
        if observation_space is None or action_space is None:
            if isinstance(env, gym.Env):
                made = env
            else:
                made = make_by_spec(env) if isinstance(env, EnvSpec) else gym.make(env)
            observation_space = observation_space or made.observation_space
            action_space = action_space or made.action_space
            if made is not env:
                made.close()
    else:
        raise TypeError(f"Unsupported env type {type(env).__name__}")
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
    with new_dataset(dataset_id) as data_path:
        is_users = env is None or is_own(env)
        metadata = details.metadata(dataset_id, env_spec, is_users=is_users)
        judge = SpaceChecker(observation_space, action_space, strict=strict)
        MinariStorage.create(
            data_path,
            as_buffers(buffer),
            metadata=metadata,
            observation_space=observation_space,
            action_space=action_space,
            env_spec=env_spec,
            data_format=file_format(data_format),
            jpeg_encoding=jpeg_encoding,
            judge=judge,
        )
        for text in judge.warnings:
            warnings.warn(text, stacklevel=2)
    return open_dataset(dataset_id)


def check_version(minari_version: str | None) -> None:
    """Warn if a version or specifier, as Minari 0.4 took it, excludes the one that is written.

    Example:
        >>> check_version("~=0.5")
    """
    if minari_version is None:
        return
    try:
        if SpecifierSet(str(minari_version)).contains(MINARI_VERSION):
            return
    except InvalidSpecifier:
        if minari_version == MINARI_VERSION:
            return
    warnings.warn(
        f"`minari_version` is {minari_version!r}, which excludes {MINARI_VERSION}, the version "
        "of the standard that is written. The argument has no effect; remove it",
        DeprecationWarning,
        stacklevel=3,
    )
