"""The random policy: uniform samples of what may be done, of the episode's own generator."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.action_masks import ActionMasks
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import run_episodes
from tests.support.sb3_models import ACTIONS, VECTOR, Anything, Lasting, choices

MASKED = {
    **{name: ACTIONS[name] for name in ("discrete", "several", "switches")},
    "from 5": spaces.Discrete(4, start=5, dtype=np.int32),
    "several from 1": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 1], [0, -2]]),
}


def run(make_env, episodes=range(12), n_envs=3):
    return list(run_episodes(make_env, RandomPolicy(), episodes, seed=4, n_envs=n_envs))


@pytest.mark.parametrize("name", MASKED)
def test_it_does_what_action_masks_allow_and_each_of_that_alike(name):
    space = MASKED[name]
    rng = np.random.default_rng(0)
    mask = np.concatenate([rng.permutation(n) > 0 for n in choices(space)])

    class Masked(Anything):
        def action_masks(self):
            return mask

    policy = RandomPolicy()
    env = gym.wrappers.TimeLimit(Masked(VECTOR, space), 9)
    policy.bind([env])
    policy.start(0, 0, np.random.default_rng(1))
    actions = [policy.act([None], [0])[0] for _ in range(600)]
    assert all(space.contains(action) for action in actions)
    first = np.ravel(getattr(space, "start", 0))
    columns = np.array(actions).reshape(600, -1) - first
    ends = np.cumsum(choices(space))
    for column, flags in zip(columns.T, np.split(mask, ends[:-1]), strict=True):
        shares = np.bincount(column.astype(int), minlength=len(flags)) / 600
        np.testing.assert_allclose(shares, flags / flags.sum(), atol=0.1)
        assert (shares[~flags] == 0).all()


def test_masks_are_those_of_the_step_and_of_the_row():
    class Watching(Lasting):
        def step(self, action):
            assert self.action_masks()[action]
            return super().step(action)

    def make_env():
        return Watching(VECTOR, ACTIONS["discrete"])

    together = run(make_env)
    alone = [buffer for e in range(12) for buffer in run(make_env, [e], 1)]
    assert [b.actions.tolist() for b in together] == [b.actions.tolist() for b in alone]


def test_a_mask_that_allows_nothing_is_named_with_its_episode_and_step():
    class Stuck(Lasting):
        def action_masks(self):
            return np.full(3, self.t < 2)

    with pytest.raises(InvalidEpisodeError, match=r"episode 5, step 2: action_masks\(\) allows no"):
        run(lambda: Stuck(VECTOR, ACTIONS["discrete"]), [5])


@pytest.mark.parametrize("name", [*ACTIONS])
def test_without_masks_it_samples_the_space(name):
    """Also where a method of that name is about something that has no masks."""
    space = ACTIONS[name]
    env = (Lasting if isinstance(space, spaces.Box) else Anything)(VECTOR, space)
    policy = RandomPolicy()
    policy.bind([env])
    policy.start(0, 0, np.random.default_rng(1))
    expected = Anything(VECTOR, space).action_space
    expected.seed(int(np.random.default_rng(1).integers(2**31)))
    for _ in range(5):
        np.testing.assert_array_equal(policy.act([None], [0])[0], expected.sample())


def test_masks_are_found_or_not():
    env = Lasting(VECTOR, ACTIONS["discrete"])
    assert ActionMasks.of([env], 8) is not None
    assert ActionMasks.of([Lasting(VECTOR, ACTIONS["box"])], 8) is None
    assert ActionMasks.of([gym.make("CartPole-v1")], 8) is None
