"""Behaviour cloning learns the actions of recorded episodes, the same way every time."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import stack
from minari_pipe.errors import ConfigError
from minari_pipe.policies.algorithms import load_algorithm
from minari_pipe.policies.cloning import Cloned, Recorded, clone
from minari_pipe.policies.normalization import ObservationNormalization
from minari_pipe.policies.sb3 import SB3Policy
from tests.support.sb3_models import ACTIONS, MIXED, VECTOR, Anything, samples

torch = pytest.importorskip("torch")

SIGNS = spaces.Box(-1, 1, (3,), np.float64)
NETWORK = {"net_arch": [16], "activation_fn": "tanh"}


def by_rule(action_space: gym.Space) -> Callable[[Any], Any]:
    """A demonstrator whose action depends on the first number that it observes."""
    if isinstance(action_space, spaces.Box):
        low, high = action_space.low, action_space.high
        return lambda seen: np.where(seen[0] > 0, 0.9 * high, 0.9 * low).astype(action_space.dtype)
    if isinstance(action_space, spaces.Discrete):
        return lambda seen: int(seen[0] > 0)
    return lambda seen: np.full(action_space.shape, seen[0] > 0, action_space.dtype)


def recorded(observation_space: gym.Space, action_space: gym.Space, act: Any = None) -> Recorded:
    """Twelve episodes of seven steps; random actions unless a demonstrator is given."""
    action_space.seed(0)
    env, episodes = Anything(observation_space, action_space), []
    for seed in range(12):
        observations, actions = [env.reset(seed=seed)[0]], []
        for _ in range(7):
            actions.append(act(observations[-1]) if act else action_space.sample())
            observations.append(env.step(actions[-1])[0])
        episodes.append(EpisodeBuffer(observations=stack(observations), actions=np.array(actions)))
    return Recorded("tests/shown-v0", observation_space, action_space, episodes)


def quick(out_dir: Path, shown: Recorded, **kwargs: Any) -> Cloned:
    def make_env() -> gym.Env:
        return Anything(shown.observation_space, shown.action_space)

    arguments = {"policy_kwargs": NETWORK, "gradient_steps": 20, "seed": 1}
    return clone(make_env, shown, out_dir=out_dir, **{**arguments, **kwargs})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("action", ACTIONS)
def test_the_same_episodes_give_the_same_bytes_and_another_seed_others(action, tmp_path):
    shown = recorded(VECTOR, ACTIONS[action])
    first = quick(tmp_path / "a", shown)
    torch.rand(3), np.random.rand(3)
    second = quick(tmp_path / "b", shown)
    other = quick(tmp_path / "c", shown, seed=2)
    assert sha256(first.checkpoint) == sha256(second.checkpoint) != sha256(other.checkpoint)
    assert first.n_actions == 84
    assert first.log_likelihood == second.log_likelihood


@pytest.mark.parametrize("action", ["box", "box64", "discrete", "several", "switches"])
def test_the_policy_acts_as_the_demonstrator_did(action, tmp_path):
    space = ACTIONS[action]
    act = by_rule(space)
    settings = {"gradient_steps": 150, "hyperparameters": {"learning_rate": 0.02}}
    made = quick(tmp_path, recorded(SIGNS, space, act), **settings)
    policy = SB3Policy(algorithm="bc", checkpoint=made.checkpoint, policy_kwargs=NETWORK)
    policy.bind([Anything(SIGNS, space) for _ in range(8)])
    rng = np.random.default_rng(0)
    seen = [rng.choice([-1, 1]) * rng.uniform(0.4, 1, 3) for _ in range(8)]
    for row in range(8):
        policy.start(row, row, np.random.default_rng(row))
    for observation, found in zip(seen, policy.act(seen, range(8)), strict=True):
        np.testing.assert_allclose(found, act(observation), atol=0.4)


def test_a_sampled_clone_is_as_spread_as_its_demonstrator(tmp_path):
    space = spaces.Box(-4, 4, (2,))
    rng = np.random.default_rng(0)
    shown = recorded(SIGNS, space, lambda _: rng.normal([1.0, -1.0], [0.2, 0.6]).astype("f4"))
    settings = {"gradient_steps": 200, "hyperparameters": {"learning_rate": 0.03}}
    made = quick(tmp_path, shown, policy_kwargs={"net_arch": []}, **settings)
    policy = SB3Policy(
        algorithm="bc",
        checkpoint=made.checkpoint,
        policy_kwargs={"net_arch": []},
        deterministic=False,
    )
    policy.bind([Anything(SIGNS, space) for _ in range(8)])
    drawn = samples(policy, np.zeros(3), 400)
    np.testing.assert_allclose(drawn.mean(axis=0), [1.0, -1.0], atol=0.2)
    np.testing.assert_allclose(drawn.std(axis=0), [0.2, 0.6], rtol=0.25)


def test_real_sb3_loads_what_was_cloned_and_can_train_it_further(tmp_path):
    from stable_baselines3 import PPO

    made = quick(tmp_path, recorded(VECTOR, ACTIONS["box"]))
    model = PPO.load(made.checkpoint, Anything(VECTOR, ACTIONS["box"]), device="cpu", n_steps=16)
    policy = SB3Policy(algorithm="bc", checkpoint=made.checkpoint, policy_kwargs=NETWORK)
    policy.bind([Anything(VECTOR, ACTIONS["box"]) for _ in range(8)])
    seen = [VECTOR.sample() for _ in range(8)]
    for row in range(8):
        policy.start(row, row, np.random.default_rng(row))
    expected = model.predict(np.array(seen), deterministic=True)[0]
    np.testing.assert_allclose(policy.act(seen, range(8)), expected, atol=1e-6)
    model.learn(16)


def test_the_defaults_are_those_that_the_documentation_names():
    parameters = inspect.signature(load_algorithm("bc").__init__).parameters
    defaults = {
        name: parameters[name].default for name in ("learning_rate", "batch_size", "ent_coef")
    }
    assert defaults == {"learning_rate": 0.001, "batch_size": 64, "ent_coef": 0.0}


def test_observations_are_normalised_by_the_dataset(tmp_path):
    shown = recorded(SIGNS, ACTIONS["discrete"])
    quick(tmp_path, shown, normalize_observations=True)
    rows = np.concatenate([episode.observations[:-1] for episode in shown.episodes])
    mean, var = ObservationNormalization.load(tmp_path / "normalize.npz").statistics[""]
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(var, rows.var(axis=0), atol=1e-4)


def test_a_dict_with_an_image_is_learned_from(tmp_path):
    shown = recorded(MIXED, ACTIONS["discrete"])
    kwargs = {"net_arch": [4], "normalize_images": True}
    made = quick(
        tmp_path, shown, policy_class="MultiInputPolicy", policy_kwargs=kwargs, gradient_steps=2
    )
    policy = SB3Policy(
        algorithm="bc",
        checkpoint=made.checkpoint,
        policy_class="MultiInputPolicy",
        policy_kwargs=kwargs,
    )
    policy.bind([Anything(MIXED, ACTIONS["discrete"])])
    policy.start(0, 0, np.random.default_rng(0))
    assert policy.act([MIXED.sample()], [0])[0] in (0, 1, 2)


def spoiled(key: str, value: float) -> Recorded:
    shown = recorded(SIGNS, spaces.Box(-1, 1, (2,)))
    getattr(shown.episodes[3], key)[2] = value
    return shown


def out_of_range() -> Recorded:
    shown = recorded(SIGNS, ACTIONS["discrete"])
    shown.episodes[0].actions[1] = 3
    return shown


EMPTY = Recorded("tests/shown-v0", SIGNS, spaces.Box(-1, 1, (2,)), [])

REFUSED = {
    "no actions": (lambda: EMPTY, {}, "tests/shown-v0 has no actions to learn from"),
    "NaN observed": (lambda: spoiled("observations", np.nan), {}, "observations hold NaN"),
    "NaN done": (lambda: spoiled("actions", np.nan), {}, "has actions outside of Box"),
    "an action that is none": (out_of_range, {}, r"has actions outside of Discrete\(3\)"),
    "unknown": (
        lambda: EMPTY,
        {"hyperparameters": {"learnin_rate": 0.1}},
        r"hyperparameters.learnin_rate is not a setting of bc. Did you mean 'learning_rate'\?"
        " Known: batch_size, ent_coef, learning_rate",
    ),
    "empty batches": (
        lambda: EMPTY,
        {"hyperparameters": {"batch_size": 0}},
        "hyperparameters.batch_size is 0; expected at least 1",
    ),
    "no steps": (lambda: EMPTY, {"gradient_steps": 0}, "train.gradient_steps is 0; expected"),
    "too fast": (
        lambda: recorded(SIGNS, spaces.Box(-1, 1, (2,))),
        {"hyperparameters": {"learning_rate": 1e30}},
        "the training diverged: its weights became NaN; try a smaller learning_rate",
    ),
}


@pytest.mark.parametrize(("shown", "settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_learned_from_is_refused_and_nothing_written(
    shown, settings, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        quick(tmp_path / "out", shown(), **settings)
    assert not (tmp_path / "out").exists()


def test_a_dataset_with_other_spaces_is_refused_with_both(tmp_path):
    shown = recorded(SIGNS, ACTIONS["discrete"])
    for other in (
        Anything(VECTOR, ACTIONS["discrete"]),
        Anything(SIGNS, spaces.Discrete(4)),
    ):
        with pytest.raises(ConfigError, match="of tests/shown-v0 are of .*, but the environment's"):
            clone(lambda env=other: env, shown, gradient_steps=1, seed=0, out_dir=tmp_path)
