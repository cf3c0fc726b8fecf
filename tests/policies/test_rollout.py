"""An episode is the same wherever and beside whatever it runs."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minari_pipe.errors import ConfigError, InvalidEpisodeError, UnsupportedSpaceError
from minari_pipe.policies.actions import element
from minari_pipe.policies.base import Policy, RowError
from minari_pipe.policies.evaluation import evaluate
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import episode_seed, run_episodes
from tests.conftest import FULL, StepIndex


class OfLength(Policy):
    """Ends episode ``e`` after ``e % 4 + 1`` steps by having no action left."""

    def bind(self, envs):
        self.left = {}

    def start(self, row, episode, rng):
        self.left[row] = episode % 4 + 1
        return {"length": 40}

    def act(self, observations, rows):
        actions = []
        for row in rows:
            actions.append(np.full(2, 0.5, np.float32) if self.left[row] else None)
            self.left[row] -= 1
        return actions


def make_env():
    return gym.make("StepIndex-v0")


def run(policy, episodes, n_envs=1, **kwargs):
    found = run_episodes(make_env, policy, episodes, seed=3, n_envs=n_envs, **kwargs)
    return {b.id: b for b in found}


def assert_equal(a, b):
    for field in ("observations", "actions", "rewards", "terminations", "truncations"):
        x, y = getattr(a, field), getattr(b, field)
        assert x.dtype == y.dtype, field
        np.testing.assert_array_equal(x, y, strict=True)
    assert (a.seed, a.options, a.metadata) == (b.seed, b.options, b.metadata)


@settings(deadline=None, max_examples=400 if FULL else 20, derandomize=True)
@given(
    n=st.integers(1, 9),
    n_envs=st.integers(1, 5),
    cuts=st.sets(st.integers(1, 8)),
    random=st.booleans(),
)
def test_neither_blocks_nor_neighbours_change_an_episode(n, n_envs, cuts, random):
    policy = RandomPolicy() if random else OfLength()
    alone = {e: run(policy, [e])[e] for e in range(n)}
    together = run(policy, range(n), n_envs)
    bounds = [0, *sorted(c for c in cuts if c < n), n]
    blocks = {}
    for first, last in itertools.pairwise(bounds):
        blocks |= run(policy, range(first, last), n_envs)
    assert list(together) == list(range(n))
    for e in range(n):
        assert_equal(alone[e], together[e])
        assert_equal(alone[e], blocks[e])


def test_order_and_the_last_observation_are_recorded():
    episode = run(RandomPolicy(), [0])[0]
    np.testing.assert_array_equal(episode.observations[:, 0], np.arange(6.0))
    assert episode.terminations.tolist() == [False] * 4 + [True]
    assert episode.actions.dtype == np.float32


def test_an_episode_without_actions_left_is_truncated_there():
    episodes = run(OfLength(), range(4), 2)
    assert [len(episodes[e]) for e in range(4)] == [1, 2, 3, 4]
    for episode in episodes.values():
        assert episode.truncations[-1] and not episode.truncations[:-1].any()
        assert not episode.terminations.any()
        assert episode.options == {"length": 40}


def test_a_block_that_may_have_any_number_of_episodes_costs_no_memory_for_them():
    """Where steps or matches say when to stop, ``block_episodes`` is but an upper limit."""
    found = run_episodes(make_env, RandomPolicy(), range(10**12), seed=0, n_envs=2)
    assert [buffer.id for buffer in itertools.islice(found, 3)] == [0, 1, 2]


def test_seeds_of_episodes_differ_and_do_not_depend_on_the_count():
    seeds = [episode_seed(0, e)[0] for e in range(1000)]
    assert len(set(seeds)) == 1000
    assert max(seeds) < 2**32
    assert episode_seed(0, 5)[0] == seeds[5] != episode_seed(1, 5)[0]


def test_infos_that_come_and_go_are_filled_and_marked():
    episode = run(RandomPolicy(), [0], record_infos=True)[0]
    assert episode.infos["odd"].tolist() == [False, True, False, True, False, True]
    assert episode.metadata["infos_filled"] == {"odd": [[0, 1], [2, 3], [4, 5]]}


def test_the_simulator_state_is_recorded_with_every_observation():
    buffers = run_episodes(
        lambda: gym.make("InvertedPendulum-v5"),
        RandomPolicy(),
        [0],
        seed=0,
        record_infos=True,
        record_state=True,
    )
    (episode,) = buffers
    state = np.hstack([episode.infos["state"]["qpos"], episode.infos["state"]["qvel"]])
    np.testing.assert_array_equal(state, episode.observations)


def test_a_state_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="record_state"):
        run(RandomPolicy(), [0], record_state=True)


def test_an_environment_without_a_time_limit_is_refused():
    gym.register("Endless-v0", entry_point=StepIndex)
    with pytest.raises(ConfigError, match="'Endless-v0' has no time limit.*max_episode_steps"):
        list(run_episodes(lambda: gym.make("Endless-v0"), RandomPolicy(), [0], seed=0))


class Broken(StepIndex):
    """Raises in the third step of the episode after the first."""

    n_resets = 0

    def reset(self, **kwargs):
        self.n_resets += 1
        return super().reset(**kwargs)

    def step(self, action):
        if self.n_resets == 2 and self.t == 2:
            raise RuntimeError("the motor is hot")
        return super().step(action)


def test_a_failing_environment_is_named_with_episode_and_step():
    gym.register("Broken-v0", entry_point=Broken, max_episode_steps=9)
    found = run_episodes(lambda: gym.make("Broken-v0"), RandomPolicy(), range(6, 9), seed=0)
    assert next(found).id == 6
    with pytest.raises(InvalidEpisodeError, match="episode 7, step 2: RuntimeError: the motor"):
        next(found)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_what_is_stored_is_what_was_stepped(n_steps):
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    given_action = np.array([0.1, 0.2])
    stepped = element(space, given_action)
    assert stepped.dtype == np.float32
    given_action[:] = 9
    np.testing.assert_array_equal(stepped, np.array([0.1, 0.2], np.float32))


def test_an_action_for_another_space_names_both_shapes():
    with pytest.raises(InvalidEpisodeError, match=r"shape \(3,\).*\(2,\)"):
        element(gym.spaces.Box(-1, 1, (2,)), np.zeros(3))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gym.spaces.Discrete(3), 1.7),
        (gym.spaces.Discrete(3), float("nan")),
        (gym.spaces.MultiDiscrete([3, 3]), [1, 0.5]),
        (gym.spaces.Box(0, 255, (1,), np.uint8), [256]),
    ],
)
def test_an_action_is_not_rounded_into_its_space(space, value):
    with pytest.raises(InvalidEpisodeError, match="the policy returned the action"):
        element(space, value)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_returns_do_not_depend_on_how_episodes_are_divided(n_envs):
    whole = list(evaluate(make_env, RandomPolicy(), range(7), seed=1, n_envs=n_envs))
    first = list(evaluate(make_env, RandomPolicy(), range(4), seed=1, n_envs=n_envs))
    rest = list(evaluate(make_env, RandomPolicy(), range(4, 7), seed=1, n_envs=n_envs))
    assert whole == first + rest
    recorded = run_episodes(make_env, RandomPolicy(), range(7), seed=1)
    returns = [float(sum(b.rewards.tolist())) for b in recorded]
    assert [r.episode_return for r in whole] == returns
    assert [r.success for r in whole] == [None] * 7


class OneReward(StepIndex):
    """Returns its reward as an array of one number, which is recorded as that number."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


def test_a_reward_of_one_number_in_an_array_is_that_number_in_scores_too():
    def one_reward():
        return gym.wrappers.TimeLimit(OneReward(), 5)

    (recorded,) = run_episodes(one_reward, RandomPolicy(), [0], seed=1)
    (measured,) = evaluate(one_reward, RandomPolicy(), [0], seed=1)
    assert measured.episode_return == float(sum(recorded.rewards.tolist()))


class Halving(StepIndex):
    """Changes the action that it is given."""

    def step(self, action):
        found = super().step(action)
        action *= 0.5
        return found


def test_an_action_is_recorded_as_it_was_given():
    gym.register("Halving-v0", entry_point=Halving, max_episode_steps=9)
    (changed,) = run_episodes(lambda: gym.make("Halving-v0"), RandomPolicy(), [0], seed=3)
    np.testing.assert_array_equal(changed.actions, run(RandomPolicy(), [0])[0].actions)


def test_a_failing_policy_is_named_with_episode_and_step():
    class Failing(RandomPolicy):
        def act(self, observations, rows):
            if observations[0][0] == 2:
                raise KeyError("no such state")
            return super().act(observations, rows)

    with pytest.raises(InvalidEpisodeError, match="policy failed at episode 4, step 2: KeyError"):
        run(Failing(), [4])


@pytest.mark.parametrize("n_actions", [1, 3])
def test_another_number_of_actions_is_named(n_actions):
    class Miscounting(RandomPolicy):
        def act(self, observations, rows):
            return [*super().act(observations, rows), np.zeros(2)][-n_actions:]

    with pytest.raises(InvalidEpisodeError, match=f"it returned {n_actions} actions for 2 env"):
        run(Miscounting(), range(2), n_envs=2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_no_number_is_named_with_its_episode_and_step(value):
    class Diverging(RandomPolicy):
        def act(self, observations, rows):
            actions = super().act(observations, rows)
            if observations[0][0] == 2:
                actions[rows.index(1)][1] = value
            return actions

    message = rf"^episode 6, step 2: the policy returned an action that holds NaN or .*{value}"
    with pytest.raises(InvalidEpisodeError, match=message):
        run(Diverging(), range(5, 8), n_envs=3)


def test_large_actions_are_numbers():
    space = gym.spaces.Box(-np.inf, np.inf, (2,))
    huge = np.full(2, 3e38, np.float32)
    np.testing.assert_array_equal(element(space, huge), huge)


def test_a_policy_may_name_the_row_that_failed():
    class Failing(RandomPolicy):
        def act(self, observations, rows):
            if observations[0][0] == 3:
                raise RowError(2, "the battery is empty")
            return super().act(observations, rows)

    message = "^the policy failed at episode 7, step 3: the battery is empty$"
    with pytest.raises(InvalidEpisodeError, match=message):
        run(Failing(), range(5, 9), n_envs=4)


class Consuming(StepIndex):
    """Takes what it needs out of the options that it is given."""

    def reset(self, *, seed=None, options=None):
        options.pop("scale")
        return super().reset(seed=seed)


class WithOptions(RandomPolicy):
    """Hands out the same options again and again."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def start(self, row, episode, rng):
        super().start(row, episode, rng)
        return self.options


def test_options_are_recorded_as_the_policy_gave_them():
    gym.register("Consuming-v0", entry_point=Consuming, max_episode_steps=9)
    policy = WithOptions({"scale": 5.0})
    found = run_episodes(lambda: gym.make("Consuming-v0"), policy, range(2), seed=3)
    assert [episode.options for episode in found] == [{"scale": 5.0}] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a": object()}, r"options\.a cannot be stored"),
        ({"a/b": 1, "a": {"b": 2}}, "'options/a/b'"),
    ],
)
def test_options_that_cannot_be_stored_are_named_before_the_first_step(options, message):
    with pytest.raises(InvalidEpisodeError, match=f"episode 4, step 0: .*{message}"):
        run(WithOptions(options), [4])


def test_spaces_that_cannot_be_stored_are_named_before_the_first_episode():
    class Slashed(StepIndex):
        observation_space = gym.spaces.Dict({"a//b": gym.spaces.Discrete(2)})

    with pytest.raises(UnsupportedSpaceError, match="observations has the key 'a//b'"):
        next(run_episodes(Slashed, RandomPolicy(), [0], seed=0))
