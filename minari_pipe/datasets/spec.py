"""Describe a dataset and the environment that its data comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.env_specs import stored_spec
from minari_pipe.errors import CorruptDatasetError


@dataclass
class MinariDatasetSpec:
    """Description of a dataset without its data.

    Attributes:
        env_spec: spec of the environment that the data comes from, if it is known.
        total_episodes: number of episodes.
        total_steps: number of steps of all episodes.
        dataset_id: id of the dataset.
        combined_datasets: ids of the datasets that it was combined from, if it was.
        observation_space: space of one observation.
        action_space: space of one action.
        data_path: directory of the data.
        minari_version: version of the standard that the dataset follows.
        namespace: first part of the id, None if it has none.
        dataset_name: name in the id.
        version: version in the id, None if it has none.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> spec = step_index_dataset("example/steps-v3", lengths=(2, 3)).spec
        >>> spec.namespace, spec.dataset_name, spec.version, spec.total_steps
        ('example', 'steps', 3, 5)
    """

    env_spec: EnvSpec | None
    total_episodes: int
    total_steps: int
    dataset_id: str
    combined_datasets: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    data_path: str
    minari_version: str

    namespace: str | None = field(init=False)
    dataset_name: str = field(init=False)
    version: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.namespace, self.dataset_name, self.version = parse_dataset_id(self.dataset_id)


def parse_spec(text: str | None, dataset_id: str) -> EnvSpec | None:
    """Read a spec from JSON of any Gymnasium release, without importing anything in it.

    Args:
        text: the JSON, or None if there is none.
        dataset_id: id of its dataset, for messages.

    Raises:
        CorruptDatasetError: it is not a spec.

    Example:
        >>> import gymnasium
        >>> parse_spec(gymnasium.spec("CartPole-v1").to_json(), "aa/b-v0").id
        'CartPole-v1'
    """
    if text is None:
        return None
    try:
        return stored_spec(text)
    except Exception as error:
        raise CorruptDatasetError(
            f"{dataset_id}: env_spec in metadata.json is not an EnvSpec: {error}"
        ) from error
