"""Create a dataset that is small enough to print, for the examples of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.datasets.copying import new_copy
from minari_pipe.datasets.dataset import MinariDataset


def step_index_dataset(
    dataset_id: str = "example/steps-v0", *, lengths: Sequence[int] = (2, 3, 4)
) -> MinariDataset:
    """Create a dataset in the local root whose observation *is* the index of the step.

    The reward of step ``t`` is ``t + 1``, the action ``t % 2``; episode ``e`` has the seed ``e``
    and terminates.

    Args:
        dataset_id: id of the dataset.
        lengths: number of steps of each episode.

    Raises:
        DatasetExistsError: the id is taken.

    Example:
        >>> dataset = step_index_dataset(lengths=(2,))
        >>> dataset[0].observations, dataset[0].rewards
        (array([0, 1, 2]), array([1., 2.]))
    """
    episodes = [
        EpisodeBuffer(
            seed=seed,
            observations=np.arange(steps + 1),
            actions=np.arange(steps) % 2,
            rewards=np.arange(1.0, steps + 1),
            terminations=np.arange(1, steps + 1) == steps,
            truncations=np.zeros(steps, bool),
        )
        for seed, steps in enumerate(lengths)
    ]
    data = new_copy(
        dataset_id,
        episodes,
        observation_space=spaces.Discrete(max(lengths, default=1) + 1),
        action_space=spaces.Discrete(2),
        metadata={},
    )
    return MinariDataset(data)
