"""Normalized scores are D4RL's; reference scores say how well they are known."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe.core.scores import (
    RandomPolicy,
    ReferenceScore,
    get_average_reference_score,
    get_normalized_score,
    normalize_return,
)
from minari_pipe.errors import InvalidMetadataError, MissingReferenceScoreError


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        (np.array([0.0, 50, 200]), [0, 0.5, 2]),
        (np.array([-100.0]), [-1]),
        ([0, 100], [0, 1]),
        (25.0, 0.25),
        (25, 0.25),
    ],
)
def test_scores_are_not_clipped(returns, expected) -> None:
    assert np.asarray(normalize_return(returns, ref_min=0.0, ref_max=100.0)).tolist() == expected


@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (1.0, None), (2.0, 2.0)])
def test_missing_or_equal_reference_scores_are_refused(low, high) -> None:
    with pytest.raises(MissingReferenceScoreError):
        normalize_return(1.0, ref_min=low, ref_max=high)


class Dataset:
    id = "door/human-v0"

    class storage:  # noqa: N801
        metadata = {"ref_min_score": 10.0}  # noqa: RUF012


def test_a_dataset_without_scores_is_named_as_in_real_minari() -> None:
    with pytest.raises(
        ValueError, match=r"^Reference score not provided for dataset door/human-v0"
    ):
        get_normalized_score(Dataset, np.zeros(1))
    Dataset.storage.metadata = {"ref_min_score": 10.0, "ref_max_score": 20.0}
    assert get_normalized_score(Dataset, np.array([10.0, 15.0])).tolist() == [0, 0.5]


def test_scores_of_an_id_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a dataset, got 'aa/b-v0'; open it"):
        get_normalized_score("aa/b-v0", [1.0])


def test_reference_score_is_the_sample_statistics() -> None:
    returns = np.random.default_rng(0).normal(size=100)
    score = ReferenceScore.from_returns(returns)
    assert score.mean == pytest.approx(returns.mean())
    assert score.std == pytest.approx(returns.std(ddof=1))
    assert score.stderr == pytest.approx(returns.std(ddof=1) / 10)
    assert (score.n, score.min, score.max) == (100, returns.min(), returns.max())


def test_one_return_has_no_spread() -> None:
    assert ReferenceScore.from_returns([3]) == ReferenceScore(3.0, 0.0, 0.0, 1, 3.0, 3.0)


@pytest.mark.parametrize("returns", [[], [np.nan], [1.0, np.inf], [[1.0]]])
def test_returns_that_have_no_mean_are_refused(returns) -> None:
    with pytest.raises(InvalidMetadataError, match="at least one return"):
        ReferenceScore.from_returns(returns)


def test_average_reference_score_is_real_minari_s() -> None:
    from minari.utils import RandomPolicy as TheirPolicy
    from minari.utils import get_average_reference_score as theirs

    ours_env, their_env = gym.make("CartPole-v1"), gym.make("CartPole-v1")
    ours = get_average_reference_score(ours_env, RandomPolicy(ours_env), 20)
    assert ours == pytest.approx(theirs(their_env, TheirPolicy(their_env), 20))
