"""Medium is the checkpoint whose normalized score is nearest to the fraction that is asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.scores import normalize_return
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.stages.chosen_checkpoint import (
    CheckpointScore,
    nearest,
    saved_at,
    target_return,
)

RETURNS = st.integers(-2000, 2000).map(float)
SCORES = st.lists(RETURNS, min_size=1, max_size=12).map(
    lambda returns: [CheckpointScore(100 * (i + 1), r) for i, r in enumerate(returns)]
)
FRACTIONS = st.integers(0, 64).map(lambda n: n / 64)
"""Exact in binary, as are the returns: equal distances are equal numbers."""


@given(SCORES, FRACTIONS, RETURNS, RETURNS)
def test_no_other_checkpoint_is_nearer_and_of_equals_it_is_the_first(scores, fraction, low, high):
    found = nearest(scores, fraction, ref_min=low, ref_max=high)
    target = target_return(fraction, ref_min=low, ref_max=high)
    distances = [abs(score.mean_return - target) for score in scores]
    assert found is scores[distances.index(min(distances))]


@given(SCORES, FRACTIONS, RETURNS, st.integers(1, 2000).map(float))
def test_nearest_in_return_is_nearest_in_normalized_score(scores, fraction, low, span):
    """Also where all returns are negative, or the expert is worse than random."""
    for ref_min, ref_max in ((low, low + span), (low, low - span)):
        found = nearest(scores, fraction, ref_min=ref_min, ref_max=ref_max)
        normalized = [
            normalize_return(s.mean_return, ref_min=ref_min, ref_max=ref_max) for s in scores
        ]
        best = min(abs(score - fraction) for score in normalized)
        own = normalize_return(found.mean_return, ref_min=ref_min, ref_max=ref_max)
        assert abs(own - fraction) == pytest.approx(best, abs=1e-9)


@given(SCORES, FRACTIONS, RETURNS, RETURNS, st.integers(-4000, 4000).map(float))
def test_returns_that_are_all_shifted_lead_to_the_same_choice(scores, fraction, low, high, by):
    shifted = [CheckpointScore(s.step, s.mean_return + by) for s in scores]
    a = nearest(scores, fraction, ref_min=low, ref_max=high)
    b = nearest(shifted, fraction, ref_min=low + by, ref_max=high + by)
    assert a.step == b.step


@given(SCORES, FRACTIONS, RETURNS, RETURNS, st.randoms(use_true_random=False))
def test_the_order_in_which_checkpoints_are_listed_does_not_count(
    scores, fraction, low, high, random
):
    shuffled = random.sample(scores, len(scores))
    assert nearest(shuffled, fraction, ref_min=low, ref_max=high) == nearest(
        scores, fraction, ref_min=low, ref_max=high
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(bad):
    one = [CheckpointScore(100, 1.0)]
    with pytest.raises(ConfigError, match="ref_max_score is"):
        nearest(one, 0.5, ref_min=0.0, ref_max=bad)
    with pytest.raises(ConfigError, match="checkpoint at step 200 is"):
        nearest([*one, CheckpointScore(200, bad)], 0.5, ref_min=0.0, ref_max=1.0)
    with pytest.raises(ConfigError, match="set family.n_checkpoints"):
        nearest([], 0.5, ref_min=0.0, ref_max=1.0)


@given(SCORES, st.integers(1, 100).map(lambda n: n / 100), st.randoms(use_true_random=False))
def test_the_checkpoint_of_a_share_is_the_first_after_it_whatever_its_return(scores, share, random):
    total = scores[-1].step
    found = saved_at(random.sample(scores, len(scores)), share, total)
    assert found.step >= round(share * total)
    assert not [s for s in scores if share * total <= s.step < found.step]


def test_a_training_that_ended_before_the_share_gives_its_last_checkpoint():
    scores = [CheckpointScore(100, 5.0), CheckpointScore(200, 1.0)]
    assert saved_at(scores, 0.9, total_timesteps=300) == scores[1]
    with pytest.raises(ConfigError, match="no checkpoint to choose from"):
        saved_at([], 0.5, total_timesteps=300)
