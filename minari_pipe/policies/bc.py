"""Define behaviour cloning as an algorithm of Stable-Baselines3: it learns recorded actions.

Its checkpoints hold an actor-critic policy, whose critic is untrained, so that ``PPO.load`` of
Stable-Baselines3 reads them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import obs_as_tensor

Columns = np.ndarray | dict[str, np.ndarray]


class BC(BaseAlgorithm):
    """Maximises the likelihood of recorded actions, given the observations before them.

    The likelihood is that of the policy's distribution: normal or categorical, by action space.
    """

    policy_aliases = {  # noqa: RUF012 -- as SB3 declares it
        "MlpPolicy": ActorCriticPolicy,
        "CnnPolicy": ActorCriticCnnPolicy,
        "MultiInputPolicy": MultiInputActorCriticPolicy,
    }
    policy: ActorCriticPolicy

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | None,
        learning_rate: float = 1e-3,
        batch_size: int = 64,
        ent_coef: float = 0.0,
        policy_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        device: str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        """Build the policy for the spaces of ``env``; the names are those of SB3's PPO."""
        super().__init__(
            policy,
            env,
            learning_rate,
            policy_kwargs=policy_kwargs,
            device=device,
            seed=seed,
            support_multi_env=True,
        )
        self.batch_size, self.ent_coef = batch_size, ent_coef
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        made: Any = self.policy_class(
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        )
        self.policy = made.to(self.device)

    def learn(  # type: ignore[override]  # it takes no steps in the environment
        self,
        observations: Columns,
        actions: np.ndarray,
        gradient_steps: int,
        on_step: Callable[[int, float], None],
    ) -> BC:
        """Take gradient steps on batches of shuffled rows, one pass over all rows after another.

        Args:
            observations: rows as the network sees them, ``(N, ...)``; for a dict, by key.
            actions: the action that followed each, ``(N,)`` if discrete, else ``(N, n)``.
            gradient_steps: number of batches to learn from.
            on_step: called after each with its number and its mean log-likelihood.
        """
        self.policy.set_training_mode(True)
        rng = np.random.default_rng(self.seed)
        batches = _shuffled(len(actions), self.batch_size, rng)
        for step, rows in zip(range(1, gradient_steps + 1), batches, strict=False):
            seen = obs_as_tensor(_taken(observations, rows), self.device)
            distribution = self.policy.get_distribution(seen)
            likelihood = distribution.log_prob(torch.as_tensor(actions[rows])).mean()
            loss = -likelihood
            if self.ent_coef and (entropy := distribution.entropy()) is not None:
                loss = loss - self.ent_coef * entropy.mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()
            on_step(step, likelihood.item())
        self.policy.set_training_mode(False)
        return self

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []


def _taken(observations: Columns, rows: np.ndarray) -> Columns:
    if isinstance(observations, dict):
        return {key: column[rows] for key, column in observations.items()}
    return observations[rows]


def _shuffled(n: int, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        order = rng.permutation(n)
        for start in range(0, n, batch_size):
            yield order[start : start + batch_size]
