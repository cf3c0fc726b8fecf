"""Noise on the actions of any policy: its kinds, its units, what is recorded, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import ConfigError
from minari_pipe.policies.base import Policy, RowError
from minari_pipe.policies.noise import Noise
from minari_pipe.policies.noisy import NoisyPolicy
from minari_pipe.policies.rollout import run_episodes
from tests.support.sb3_models import ACTIONS, VECTOR, Anything, Lasting, untrained, widened

BOX = spaces.Box(np.float32([-1, -10]), np.float32([1, 10]))
FREE = spaces.Box(-np.inf, np.inf, (2,))
N = 4000


class Constant(Policy):
    """Takes the same action at every step; in row 0 it ends its episode after ``n_steps``."""

    def __init__(self, action: Any, n_steps: float = np.inf) -> None:
        self.action, self.left = action, n_steps

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"episode": episode}

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        self.left -= 1
        return [None if self.left < 0 else self.action for _ in rows]

    def finish(self, episode: int, buffer: EpisodeBuffer) -> dict[str, Any]:
        return {"episode": episode}

    def n_episodes(self) -> int:
        return 7


def noisy(space: gym.Space, action: Any = (0.0, 0.0), n_envs: int = 1, **noise: Any) -> NoisyPolicy:
    policy = NoisyPolicy(Constant(action), Noise.of(noise, "policy.noise"))
    policy.bind([Anything(VECTOR, space) for _ in range(n_envs)])
    return policy


def drawn(policy: NoisyPolicy, seed: int = 0, n: int = N, row: int = 0) -> np.ndarray:
    policy.start(row, seed, np.random.default_rng(seed))
    return np.array([policy.act([None], [row])[0] for _ in range(n)])


def test_gaussian_noise_has_its_deviation_in_units_of_the_action():
    found = drawn(noisy(BOX, (0.1, 2.0), kind="gaussian", scale=[0.2, 1.5]))
    assert np.allclose(found.mean(0), [0.1, 2.0], atol=[0.02, 0.1])
    assert np.allclose(found.std(0), [0.2, 1.5], rtol=0.05)


def test_uniform_noise_is_spread_evenly_up_to_its_scale():
    found = drawn(noisy(BOX, kind="uniform", scale=0.4))
    assert 0.39 < np.abs(found).max() <= 0.4
    counts, _ = np.histogram(found, bins=8, range=(-0.4, 0.4))
    assert np.allclose(counts, 2 * N / 8, rtol=0.1)


@pytest.mark.parametrize("settings", [{}, {"theta": 0.4, "dt": 0.1}])
def test_ornstein_uhlenbeck_noise_is_that_of_sb3(settings, monkeypatch):
    sb3 = pytest.importorskip("stable_baselines3.common.noise")
    found = drawn(noisy(FREE, kind="ornstein_uhlenbeck", scale=0.3, **settings), n=50)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(np.random, "normal", lambda size: rng.standard_normal(size))
    theirs = sb3.OrnsteinUhlenbeckActionNoise(np.zeros(2), np.full(2, 0.3), **settings)
    np.testing.assert_allclose(found, [theirs() for _ in range(50)], rtol=1e-6, atol=1e-7)


def test_every_episode_begins_without_noise_of_the_last_one():
    policy = noisy(BOX, kind="ornstein_uhlenbeck", scale=0.3)
    first = drawn(policy, n=5)
    drawn(policy, seed=1, n=5)
    assert drawn(policy, n=5).tobytes() == first.tobytes()


@pytest.mark.parametrize("scale", [0, 0.3, 1.0])
@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Discrete(4, start=2)])
def test_epsilon_takes_random_actions_in_its_share(space, scale):
    low = int(space.start)
    found = drawn(noisy(space, low + 1, kind="epsilon", scale=scale)) - low
    expected = np.full(4, scale / 4)
    expected[1] += 1 - scale
    assert np.allclose(np.bincount(found, minlength=4) / N, expected, atol=0.03)


def test_epsilon_takes_only_actions_that_the_environment_allows():
    policy = NoisyPolicy(Constant(0), Noise.of({"kind": "epsilon", "scale": 1.0}, "noise"))
    env = Lasting(VECTOR, ACTIONS["discrete"])
    env.reset(seed=0)
    policy.bind([env])
    for seed in range(50):
        env.t = seed
        (action,) = drawn(policy, seed=seed, n=1)
        assert env.action_masks()[action]


@pytest.mark.parametrize(
    "space", [spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}), spaces.MultiBinary(4), BOX]
)
def test_epsilon_is_for_any_space(space):
    space.seed(0)
    policy = noisy(space, space.sample(), kind="epsilon", scale=0.5)
    policy.start(0, 0, np.random.default_rng(0))
    found = [policy.act([None], [0])[0] for _ in range(20)]
    assert all(space.contains(action) for action in found)
    assert 1 < len({repr(action) for action in found}) < 20


@pytest.mark.parametrize("clip", [True, False])
def test_a_noisy_action_is_clipped_to_the_bounds_if_there_are_any(clip):
    action = np.float32([0.9, -9.0])
    clipped = drawn(noisy(BOX, action, kind="gaussian", scale=2.0))
    free = drawn(noisy(FREE, action, kind="gaussian", scale=2.0, clip=clip))
    assert np.array_equal(clipped, np.clip(free, BOX.low, BOX.high))
    assert not np.array_equal(clipped, free)


class Broken(Constant):
    """Also has infos of its own."""

    records_infos = True

    def infos(self, row: int) -> dict[str, Any]:
        return {"own": 1.0}


def test_the_infos_of_the_policy_itself_are_kept():
    for keep in (False, True):
        policy = NoisyPolicy(
            Broken((0.5, 0.5)), Noise.of({**KEPT, "keep_clean_action": keep}, "noise")
        )
        (buffer,) = run_episodes(
            lambda: Anything(VECTOR, BOX), policy, [0], seed=0, n_envs=1, record_infos=True
        )
        assert buffer.infos.keys() == {"own", *(["clean_action"] if keep else [])}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (0.5, r"an action of shape \(\)"),
        ((0.5,), r"an action of shape \(1,\)"),
        ((np.inf, 0.0), "holds NaN or infinity"),
    ],
)
def test_noise_hides_no_broken_action(action, message):
    with pytest.raises(RowError, match=message):
        drawn(noisy(BOX, action, kind="gaussian", scale=0.1), n=1)


def test_an_episode_has_its_own_noise_in_every_row():
    policy = noisy(BOX, n_envs=3, kind="gaussian", scale=0.5)

    def act(seeds):
        for row, seed in enumerate(seeds):
            policy.start(row, seed, np.random.default_rng(seed))
        rows = range(len(seeds))
        steps = [policy.act([None] * len(seeds), rows) for _ in range(40)]
        return np.swapaxes(steps, 0, 1).tolist()

    together = act([5, 6, 7])
    assert act([7])[0] == together[2]
    assert act([6, 6, 5]) == [together[1], together[1], together[0]]


@pytest.mark.parametrize("space", ["box", "box64"])
@pytest.mark.parametrize("algorithm", ["td3", "ddpg"])
def test_gaussian_noise_is_added_as_sb3_adds_it_while_it_collects(algorithm, space, tmp_path):
    """SB3 counts in actions scaled to [-1, 1]."""
    pytest.importorskip("torch")
    from minari_pipe.policies.sb3 import SB3Policy

    box = ACTIONS[space]
    model = widened(untrained(algorithm, VECTOR, box))
    model.save(tmp_path / "m.zip")
    std = np.array([0.1 * (i + 1) for i in range(box.shape[0])])
    scale = (std * (box.high - box.low) / 2).tolist()
    policy = NoisyPolicy(
        SB3Policy(algorithm=algorithm, checkpoint=tmp_path / "m.zip"),
        Noise.of({"kind": "gaussian", "scale": scale}, "noise"),
    )
    policy.bind([Lasting(VECTOR, box)])
    policy.start(0, 0, np.random.default_rng(4))
    rng = np.random.default_rng(4)
    for step in range(20):
        VECTOR.seed(step)
        seen = VECTOR.sample()
        model._last_obs = seen[None]
        noise = std * rng.standard_normal(len(std))
        expected, _ = model._sample_action(0, action_noise=lambda noise=noise: noise)
        (action,) = policy.act([seen], [0])
        np.testing.assert_allclose(action, expected[0], rtol=1e-4, atol=1e-5)


def test_a_policy_keeps_its_options_reports_and_ends():
    policy = NoisyPolicy(Constant((0.5, 0.5), 3), Noise.of(KEPT, "noise"))
    (buffer,) = run_episodes(
        lambda: Anything(VECTOR, BOX), policy, [5], seed=0, n_envs=1, record_infos=True
    )
    assert (buffer.options, len(buffer), buffer.truncations[-1]) == ({"episode": 5}, 3, True)
    assert policy.finish(5, buffer) == {"episode": 5}
    assert policy.n_episodes() == 7


KEPT = {"kind": "gaussian", "scale": 0.5, "keep_clean_action": True}


def test_the_clean_action_is_recorded_beside_the_noisy_one():
    policy = NoisyPolicy(Constant((0.25, -3.0)), Noise.of(KEPT, "noise"))
    for buffer in run_episodes(
        lambda: Lasting(VECTOR, BOX), policy, range(5), seed=0, n_envs=2, record_infos=True
    ):
        clean = buffer.infos["clean_action"]
        assert clean.shape == (len(buffer) + 1, 2)
        assert (clean[1:] == (0.25, -3.0)).all()  # the reset had no action
        assert (np.abs(buffer.actions - clean[1:]).sum(axis=1) > 0).all()


def test_an_info_of_the_same_name_is_not_lost():
    class Telling(Lasting):
        def step(self, action):
            return (*super().step(action)[:4], {"clean_action": 1})

    policy = NoisyPolicy(Constant((0.0, 0.0)), Noise.of(KEPT, "noise"))
    run = run_episodes(
        lambda: Telling(VECTOR, BOX), policy, [0], seed=0, n_envs=1, record_infos=True
    )
    with pytest.raises(ConfigError, match="both have 'clean_action'; set policy.noise.keep_clean"):
        list(run)


G, E = {"kind": "gaussian"}, {"kind": "epsilon"}


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (0.1, "policy.noise is 0.1; expected such as {kind: gaussian, scale: 0.1}"),
        ({"scale": 1}, "policy.noise.kind is None. Known: gaussian, uniform"),
        ({**G, "sale": 1}, "no key policy.noise.sale. Did you mean 'scale'"),
        (G, "policy.noise.scale is None; expected the standard deviation"),
        ({**G, "scale": -1}, "policy.noise.scale is -1"),
        ({**G, "scale": True}, "policy.noise.scale is True"),
        ({**G, "scale": []}, r"policy.noise.scale is \[\]"),
        ({**G, "scale": [0.1, "x"]}, "or a list with one for each dimension"),
        ({**G, "scale": float("inf")}, "policy.noise.scale is inf"),
        ({**G, "scale": float("nan")}, "policy.noise.scale is nan"),
        ({**G, "scale": 10**400}, "policy.noise.scale is 1000"),
        ({"kind": ["gaussian"], "scale": 1}, r"policy.noise.kind is \['gaussian'\]"),
        (
            {"kind": "ornstein_uhlenbeck", "scale": 1, "theta": 4, "dt": 0.5},
            "theta times dt is 2; from 2 on",
        ),
        ({**E, "scale": 1.1}, "scale is 1.1; expected the share of random actions, from 0 to 1"),
        ({**E, "scale": [0.1]}, r"scale is \[0.1\]; expected the share"),
        ({**E, "scale": 0.1, "clip": False}, "clip is not for kind: epsilon"),
        ({**G, "scale": 1, "clip": "no"}, "clip is 'no'; expected true or false"),
        ({**G, "scale": 1, "theta": 2}, "theta is for kind: ornstein_uhlenbeck only"),
        ({"kind": "ornstein_uhlenbeck", "scale": 1, "dt": 0}, "dt is 0; expected a number above 0"),
    ],
)
def test_noise_that_is_none_is_refused_by_name(noise, message):
    with pytest.raises(ConfigError, match=message):
        Noise.of(noise, "policy.noise")


@pytest.mark.parametrize(
    ("space", "more", "message"),
    [
        (spaces.Discrete(3), {}, r"needs a Box of floats .* Discrete\(3\); set .*epsilon"),
        (spaces.Box(0, 255, (2,), np.uint8), {}, "needs a Box of floats"),
        (spaces.Dict({"a": BOX}), {}, "needs a Box of floats"),
        (BOX, {"scale": [0.1, 0.1, 0.1]}, "scale has 3 numbers, an action of .* has 2"),
        (BOX, {"clip": False}, "clip: false needs actions without bounds"),
    ],
)
def test_noise_that_does_not_fit_the_actions_is_refused(space, more, message):
    with pytest.raises(ConfigError, match=f"policy.noise.*{message}"):
        noisy(space, **{"kind": "gaussian", "scale": 0.1, **more})
