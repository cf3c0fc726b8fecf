"""A dataset as large as a test of transfers needs it; nothing makes it smaller on its way."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe import EpisodeBuffer, create_dataset_from_buffers
from minari_pipe.core.datasets_root import ROOT_VARIABLE


def noise_dataset(root: Path, dataset_id: str, n_bytes: int, n_steps: int, n_episodes: int) -> None:
    """Make a dataset of random observations.

    Args:
        root: of datasets, which holds it.
        dataset_id: of the dataset.
        n_bytes: of all observations together, about.
        n_steps: of each episode.
        n_episodes: number of them.
    """
    rng = np.random.default_rng(0)
    n_values = n_bytes // 8 // n_episodes // (n_steps + 1)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no environment
        patch.setenv(ROOT_VARIABLE, str(root))
        create_dataset_from_buffers(
            dataset_id,
            [
                EpisodeBuffer(
                    seed=seed,
                    observations=rng.random((n_steps + 1, n_values)),
                    actions=np.zeros(n_steps, np.int64),
                    rewards=np.ones(n_steps),
                    terminations=np.arange(1, n_steps + 1) == n_steps,
                    truncations=np.zeros(n_steps, bool),
                )
                for seed in range(n_episodes)
            ],
            observation_space=gym.spaces.Box(0, 1, (n_values,), np.float64),
            action_space=gym.spaces.Discrete(2),
            description="Noise, to be sent.",
            author="Ada",
            author_email="ada@example.org",
            algorithm_name="none",
            code_permalink="https://example.org",
        )
