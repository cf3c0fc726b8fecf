"""Describe a dataset: its id, its spaces and its environment."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.datasets_root import id_at
from minari_pipe.core.environments import recover
from minari_pipe.core.metadata import metadata_faults
from minari_pipe.core.requirements import warn_unless_met
from minari_pipe.datasets.spec import parse_spec
from minari_pipe.errors import CorruptDatasetError, EnvironmentNotFoundError
from minari_pipe.storage.base import MinariStorage


class DatasetDescription:
    """A dataset without its episodes, as its metadata describes it."""

    _data: MinariStorage
    _metadata: dict[str, Any]

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Space of one observation."""
        return self.storage.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Space of one action."""
        return self.storage.action_space

    @property
    def env_spec(self) -> EnvSpec | None:
        """Spec of the environment that the data comes from; parsed only, nothing is imported."""
        return parse_spec(self._metadata.get("env_spec"), self.id)

    @property
    def combined_datasets(self) -> list[str]:
        """Ids of the datasets that this one was combined from, if it was."""
        return self._metadata.get("combined_datasets") or []

    @property
    def id(self) -> str:
        """Id of the dataset: that of its place in the datasets root, else that of its metadata.

        A stranger's metadata may claim to be another dataset, one of yours, which
        ``delete_dataset(dataset.id)`` would delete.
        """
        return id_at(self.storage.data_path) or self._metadata["dataset_id"]

    @property
    def minari_version(self) -> str:
        """Version of the standard that the dataset follows; empty if not stated."""
        return self._metadata.get("minari_version") or ""

    @property
    def storage(self) -> MinariStorage:
        """The storage of the data."""
        return self._data

    def recover_environment(
        self, eval_env: bool = False, *, trusted_modules: Collection[str] = (), **kwargs: Any
    ) -> gym.Env:
        """Make the environment that the data comes from.

        Warns if an installed package does not meet the dataset's ``requirements``.

        Args:
            eval_env: make the environment for evaluation instead, if the dataset names one.
            trusted_modules: modules whose code the dataset's specs may name.
            **kwargs: passed on to ``gymnasium.make``.

        Raises:
            EnvironmentNotFoundError: the dataset names no environment, or it is not registered.
            TrustError: the spec names code that the user does not trust.

        Example:
            >>> import gymnasium
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset()
            >>> spec = gymnasium.spec("CartPole-v1").to_json()
            >>> dataset.storage.update_metadata({"env_spec": spec})
            >>> dataset.recover_environment().spec.id
            'CartPole-v1'
        """
        metadata = self.storage.read_raw_metadata(self.storage.data_path)
        requirements = metadata.get("requirements") or []
        for key, what in metadata_faults({"requirements": requirements}):
            raise CorruptDatasetError(f"{self.storage.data_path}: metadata {key!r} {what}")
        for requirement in requirements:
            warn_unless_met(requirement)
        spec = metadata.get("env_spec")
        if eval_env:
            if metadata.get("eval_env_spec") is not None:
                spec = metadata["eval_env_spec"]
            else:
                logging.getLogger(__name__).info(
                    "`eval_env` has been set to True but the dataset %s doesn't provide an "
                    "evaluation environment. The environment of the collection is returned.",
                    self.id,
                )
        if spec is None:
            raise EnvironmentNotFoundError(
                f"Environment cannot be recovered when env_spec is None; {self.id} was created "
                "without an environment"
            )
        return recover(spec, trusted_modules=trusted_modules, **kwargs)
