"""An episode is the same to the byte in every row, beside whatever starts or ends, in any block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from minari_pipe.policies.base import Policy
from minari_pipe.policies.noise import Noise
from minari_pipe.policies.noisy import NoisyPolicy
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.sb3 import SB3Policy
from tests.conftest import FULL
from tests.support.sb3_models import ACTIONS, TABLE, VECTOR, Lasting, untrained, widened

pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

SDE = {"use_sde": True}
LSTM = {"lstm_hidden_size": 24}
# name: algorithm, observations, actions, policy_kwargs, noise
FAMILIES = {
    "gaussian": ("ppo", VECTOR, "box", {}, {}),
    "categorical": ("a2c", VECTOR, "discrete", {}, {}),
    "multi-categorical": ("ppo", TABLE, "several", {}, {}),
    "bernoulli": ("ppo", VECTOR, "switches", {}, {}),
    "squashed": ("sac", TABLE, "box64", {}, {}),
    "gsde ppo": ("ppo", VECTOR, "box", SDE, {}),
    "gsde sac": ("sac", VECTOR, "box64", SDE, {}),
    "dqn": ("dqn", VECTOR, "discrete", {}, {"kind": "epsilon", "scale": 0.4}),
    "td3": ("td3", VECTOR, "box", {}, {"kind": "gaussian", "scale": 0.3}),
    "ddpg": ("ddpg", TABLE, "box64", {}, {"kind": "ornstein_uhlenbeck", "scale": [0.3, 0.0]}),
    "tqc": ("tqc", TABLE, "box64", {}, {}),
    "gsde tqc": ("tqc", VECTOR, "box", SDE, {}),
    "masked": ("maskable_ppo", VECTOR, "discrete", {}, {}),
    "masked several": ("maskable_ppo", TABLE, "several", {}, {}),
    "masked switches": ("maskable_ppo", VECTOR, "switches", {}, {}),
    "recurrent": ("recurrent_ppo", VECTOR, "box", LSTM, {}),
    "recurrent dict": ("recurrent_ppo", TABLE, "several", LSTM, {}),
    "recurrent gsde": ("recurrent_ppo", VECTOR, "box", {**LSTM, **SDE}, {}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("checkpoints"), {}

    def make(name):
        if name not in made:
            algorithm, observation, action, policy_kwargs, _ = FAMILIES[name]
            policy_kwargs = dict(policy_kwargs)
            model = untrained(
                algorithm,
                observation,
                ACTIONS[action],
                policy_class_of(observation),
                **({"use_sde": True} if policy_kwargs.pop("use_sde", False) else {}),
                policy_kwargs=policy_kwargs or None,
            )
            made[name] = folder / f"{len(made)}.zip"
            widened(model).save(made[name])
        return made[name]

    return make


def policy_class_of(observation) -> str:
    return "MultiInputPolicy" if observation is TABLE else "MlpPolicy"


def policy_of(name, path, *, deterministic) -> Policy:
    algorithm, observation, _, policy_kwargs, noise = FAMILIES[name]
    policy = SB3Policy(
        algorithm=algorithm,
        policy_class=policy_class_of(observation),
        policy_kwargs=policy_kwargs,
        checkpoint=path,
        deterministic=deterministic,
    )
    return NoisyPolicy(policy, Noise.of(noise, "noise")) if noise else policy


def run(policy, name, episodes, n_envs) -> dict[int, bytes]:
    """The actions of each episode."""
    _, observation, action, _, _ = FAMILIES[name]
    found = run_episodes(
        lambda: Lasting(observation, ACTIONS[action]), policy, episodes, seed=2, n_envs=n_envs
    )
    return {buffer.id: np.asarray(buffer.actions).tobytes() for buffer in found}


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [(name, False) for name in FAMILIES]
    + [(name, True) for name in FAMILIES if FULL or name in ("gaussian", "masked", "recurrent")],
)
def test_episodes_do_not_depend_on_rows_neighbours_or_blocks(name, deterministic, checkpoints):
    policy = policy_of(name, checkpoints(name), deterministic=deterministic)
    episodes = range(10)
    together = run(policy, name, episodes, 8)
    assert list(together) == list(episodes)
    assert len(set(together.values())) > 1
    for n_envs in (1, 2, 3, 5) if FULL else (1, 3):  # all padded to the same batch of 8
        assert run(policy, name, episodes, n_envs) == together, n_envs
    wider = run(policy, name, episodes, 9)
    cuts = np.random.default_rng(0).permutation(np.arange(1, 10))[:3]
    for n_envs, whole in ((8, together), (9, wider)):
        bounds = [0, *sorted(cuts.tolist()), 10]
        blocks: dict[int, bytes] = {}
        for first, last in itertools.pairwise(bounds):
            blocks |= run(policy, name, range(first, last), n_envs)
        assert blocks == whole, n_envs
    assert run(policy, name, episodes[::-1], 9) == wider


@pytest.mark.parametrize("name", ["recurrent", "gsde ppo", "masked"])
def test_one_row_at_a_time_gives_the_same_episodes_up_to_rounding(name, checkpoints, monkeypatch):
    policy = policy_of(name, checkpoints(name), deterministic=False)
    whole = run(policy, name, range(4), 3)
    policy = policy_of(name, checkpoints(name), deterministic=False)
    monkeypatch.setattr(
        "minari_pipe.policies.batched_network.BatchedNetwork._rows_are_independent",
        lambda *_: False,
    )
    by_row = run(policy, name, range(4), 3)
    assert policy._network.by_row
    dtype = ACTIONS[FAMILIES[name][2]].dtype
    for episode, actions in whole.items():
        np.testing.assert_allclose(
            np.frombuffer(by_row[episode], dtype), np.frombuffer(actions, dtype), atol=1e-4
        )
