"""What is done for a whole batch at once equals what one row alone would get."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from minari_pipe.policies.action_heads import (
    BernoulliHead,
    CategoricalHead,
    ContinuousHead,
    MatrixNoise,
    NormalNoise,
)
from tests.conftest import FULL

N_ROWS = 8
LOGITS = st.floats(-60, 60, width=32)
EXAMPLES = settings(deadline=None, max_examples=300 if FULL else 40, derandomize=True)


def batch(n: int, elements: st.SearchStrategy = LOGITS) -> st.SearchStrategy:
    return arrays.arrays(np.float32, (N_ROWS, n), elements=elements)


def started(head, seed: int):
    for row in range(N_ROWS):
        head.start(row, np.random.default_rng([seed, row]))
    return head


@EXAMPLES
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 99))
def test_a_choice_is_the_first_whose_cumulated_probability_exceeds_the_draw(data, sizes, seed):
    logits = data.draw(batch(sum(sizes)))
    masks = data.draw(arrays.arrays(bool, logits.shape))
    starts = np.cumsum([0, *sizes[:-1]])
    masks[:, starts] |= ~np.logical_or.reduceat(masks, starts, axis=1)
    head = started(
        CategoricalHead(spaces.MultiDiscrete(sizes), N_ROWS, sizes, deterministic=False), seed
    )
    found = head([logits], range(N_ROWS), masks)
    for row in range(N_ROWS):
        rng = np.random.default_rng([seed, row])
        for part, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            allowed = np.flatnonzero(masks[row, start : start + size])
            values = logits[row, start : start + size][allowed].astype(np.float64)
            weights = np.exp(values - values.max())
            below = np.cumsum(weights)
            expected = allowed[np.searchsorted(below / below[-1], rng.random(), side="right")]
            assert found[row, part] == expected


@EXAMPLES
@given(batch(3), batch(3), st.integers(0, 99), st.permutations(range(N_ROWS)))
def test_a_row_gets_the_same_bytes_in_any_place(means, deviations, seed, order):
    space = spaces.Box(-2, 3, (3,))

    def acted(order):
        heads = [
            ContinuousHead(space, noise=NormalNoise(N_ROWS, 3), tanh=True, scaled=True),
            ContinuousHead(space, noise=MatrixNoise(N_ROWS, np.full((3, 3), 0.5))),
            BernoulliHead(spaces.MultiBinary(3), N_ROWS, deterministic=False),
        ]
        for place, row in enumerate(order):
            for head in heads:
                head.start(place, np.random.default_rng([seed, row]))
        outputs = [means[order], np.clip(deviations[order], -5, 2)]
        actions = [head(outputs, range(N_ROWS)) for head in heads]
        return {row: [a[place].tobytes() for a in actions] for place, row in enumerate(order)}

    assert acted(list(order)) == acted(list(range(N_ROWS)))


def test_rows_without_an_episode_draw_nothing():
    noise = NormalNoise(N_ROWS, 2, np.ones(2))
    rngs = [np.random.default_rng(row) for row in range(3)]
    for row, rng in enumerate(rngs):
        noise.start(row, rng)
    noise([], [0, 2])
    states = [np.random.default_rng(row).bit_generator.state for row in range(3)]
    assert [rng.bit_generator.state == s for rng, s in zip(rngs, states, strict=True)] == [
        False,
        True,
        False,
    ]


@EXAMPLES
@given(batch(4), st.integers(0, 99))
def test_the_noise_of_gsde_is_the_product_with_the_matrix_of_the_row(latent, seed):
    std = np.linspace(0.1, 1, 8).reshape(4, 2)
    noise = MatrixNoise(N_ROWS, std)
    for row in range(N_ROWS):
        noise.start(row, np.random.default_rng([seed, row]))
    for row, found in enumerate(noise([None, latent], range(N_ROWS))):
        matrix = std * np.random.default_rng([seed, row]).standard_normal((4, 2))
        np.testing.assert_allclose(found, latent[row].astype(np.float64) @ matrix, atol=1e-9)
