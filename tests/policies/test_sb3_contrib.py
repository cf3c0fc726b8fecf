"""Policies of sb3-contrib: masks of MaskablePPO, the state of RecurrentPPO."""

from __future__ import annotations

import importlib.metadata
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.errors import ConfigError, InvalidEpisodeError, MissingDependencyError
from minari_pipe.policies.action_masks import ActionMasks
from minari_pipe.policies.algorithms import find_algorithm, load_algorithm
from minari_pipe.policies.base import RowError
from minari_pipe.policies.evaluation import evaluate
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.sb3 import SB3Policy
from minari_pipe.policies.training import train
from tests.support.sb3_models import (
    ACTIONS,
    IMAGE,
    MIXED,
    TABLE,
    VECTOR,
    Anything,
    Lasting,
    untrained,
    widened,
)

torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

MASKED = [
    (VECTOR, "discrete", "MlpPolicy"),
    (VECTOR, "several", "MlpPolicy"),
    (TABLE, "switches", "MultiInputPolicy"),
    (IMAGE, "discrete", "CnnPolicy"),
]


def seen_at(space: gym.Space, seed: int):
    space.seed(seed)
    return space.sample()


def masked_env(observation, action) -> gym.Env:
    """With its method below wrappers."""
    env = Lasting(observation, ACTIONS[action])
    return gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(env), 50)


@pytest.fixture(scope="module", params=MASKED, ids=lambda case: f"{case[1]}-{case[2]}")
def masked(request, tmp_path_factory):
    observation, action, policy_class = request.param
    model = untrained("maskable_ppo", observation, ACTIONS[action], policy_class)
    path = tmp_path_factory.mktemp("masked") / "m.zip"
    widened(model).save(path)
    return request.param, model, path


@pytest.mark.parametrize("deterministic", [True, False])
def test_masks_decide_as_in_sb3_contrib(masked, deterministic):
    (observation, action, policy_class), model, path = masked
    policy = SB3Policy(
        algorithm="maskable_ppo",
        policy_class=policy_class,
        checkpoint=path,
        deterministic=deterministic,
    )
    envs = [masked_env(observation, action) for _ in range(8)]
    policy.bind(envs)
    rows = range(8)  # those of even and of odd number are alike
    for row in rows:
        envs[row].reset(seed=row % 2)
        policy.start(row, row, np.random.default_rng(row))
    seen = [seen_at(observation, row % 2) for row in rows]
    masks = [env.get_wrapper_attr("action_masks")() for env in envs[:2]]
    assert masks[0].tolist() != masks[1].tolist()
    n = 4 if deterministic else 600
    found = np.array([policy.act(seen, rows) for _ in range(n // 4)]).reshape(n, 2, -1)
    for i, mask in enumerate(masks):
        if deterministic:
            expected, _ = model.predict(seen[i], deterministic=True, action_masks=mask)
            assert (found[:, i] == np.ravel(expected)).all()
            continue
        tensor, _ = model.policy.obs_to_tensor(seen[i])
        with torch.no_grad():
            exact = model.policy.get_distribution(tensor, mask)
        parts = getattr(exact, "distributions", None) or [exact.distribution]
        for column, part in zip(found[:, i].T, parts, strict=True):
            probabilities = part.probs.numpy()[0]
            counts = np.bincount(column, minlength=len(probabilities))
            assert np.allclose(counts / n, probabilities, atol=0.09)
            assert (counts[probabilities == 0] == 0).all()


def test_masks_are_asked_for_at_every_step(tmp_path):
    widened(untrained("maskable_ppo", VECTOR, ACTIONS["discrete"])).save(tmp_path / "m.zip")
    policy = SB3Policy(algorithm="maskable_ppo", checkpoint=tmp_path / "m.zip", deterministic=False)
    chosen = []

    class Watching(Lasting):
        def step(self, action):
            chosen.append(bool(self.action_masks()[action]))
            return super().step(action)

    list(
        run_episodes(
            lambda: Watching(VECTOR, ACTIONS["discrete"]), policy, range(30), seed=0, n_envs=4
        )
    )
    assert all(chosen) and len(chosen) > 100


def wrong(answer):
    class Wrong(Lasting):
        """Answers otherwise in the third step."""

        def action_masks(self):
            if self.t < 2:
                return super().action_masks()
            return answer() if callable(answer) else answer

    return lambda: Wrong(VECTOR, ACTIONS["several"])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones(8, bool), r"action_masks\(\) returned bool of shape \(8,\); expected 9 flags"),
        (None, r"action_masks\(\) returned object of shape \(\); expected 9 flags"),
        ([[1, 1], [1] * 3, [1] * 4], r"action_masks\(\) raised ValueError"),
        (np.array([1, 0, 0, 0, 0, 1, 1, 1, 1]), r"action_masks\(\) allows no action for part 1"),
        (lambda: {}["turn"], r"action_masks\(\) raised KeyError: 'turn'"),
    ],
    ids=["size", "none", "ragged", "nothing", "raises"],
)
def test_a_mask_that_makes_no_sense_is_named_with_its_episode_and_step(tmp_path, answer, message):
    untrained("maskable_ppo", VECTOR, ACTIONS["several"]).save(tmp_path / "m.zip")
    policy = SB3Policy(algorithm="maskable_ppo", checkpoint=tmp_path / "m.zip")
    run = evaluate(wrong(answer), policy, range(5, 9), seed=0)
    with pytest.raises(
        InvalidEpisodeError, match=rf"policy failed at episode 5, step 2: {message}"
    ):
        list(run)


def test_an_environment_without_masks_is_refused_by_name(tmp_path):
    untrained("maskable_ppo", VECTOR, ACTIONS["discrete"]).save(tmp_path / "m.zip")
    policy = SB3Policy(algorithm="maskable_ppo", checkpoint=tmp_path / "m.zip")
    with pytest.raises(ConfigError, match=r"'Anything' has no method action_masks\(\)"):
        policy.bind([Anything(VECTOR, ACTIONS["discrete"])])
    with pytest.raises(ConfigError, match=r"'CartPole-v1' has no method action_masks\(\)"):
        ActionMasks([gym.make("CartPole-v1")], 8)


def test_masks_of_a_step_replace_those_of_the_step_before():
    env = Lasting(VECTOR, ACTIONS["discrete"])
    env.reset(seed=0)
    masks = ActionMasks([env, env], 8)
    env.action_masks = lambda: np.array([1, 0, 0])
    again = ActionMasks([env, env], 8)
    assert masks([1]).shape == (8, 3)
    assert again([1]).tolist() == [[True] * 3, [True, False, False], *[[True] * 3] * 6]
    assert again([0])[1].tolist() == [True] * 3
    env.action_masks = lambda: np.zeros(3)
    with pytest.raises(RowError, match="allows no action$"):
        ActionMasks([env], 8)([0])


# RecurrentPPO

RECURRENT = {
    "usual": (VECTOR, "box", "MlpPolicy", {}),
    "shared": (
        VECTOR,
        "discrete",
        "MlpPolicy",
        {"shared_lstm": True, "enable_critic_lstm": False, "lstm_hidden_size": 32},
    ),
    "two layers, no LSTM of the critic": (
        VECTOR,
        "box64",
        "MlpLstmPolicy",
        {"n_lstm_layers": 2, "enable_critic_lstm": False, "lstm_hidden_size": 16},
    ),
    "tiny": (VECTOR, "several", "MlpPolicy", {"lstm_hidden_size": 3, "net_arch": [5]}),
    "without biases": (VECTOR, "box", "MlpPolicy", {"lstm_kwargs": {"bias": False}}),
    "dict": (MIXED, "box", "MultiInputPolicy", {"lstm_hidden_size": 8}),
    "image": (IMAGE, "switches", "CnnLstmPolicy", {"lstm_hidden_size": 8}),
}


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("recurrent"), {}

    def make(name):
        if name not in made:
            observation, action, policy_class, kwargs = RECURRENT[name]
            model = untrained(
                "recurrent_ppo",
                observation,
                ACTIONS[action],
                policy_class.replace("Lstm", ""),
                policy_kwargs=dict(kwargs),
            )
            widened(model).save(folder / f"{len(made)}.zip")
            made[name] = model, folder / f"{len(made)}.zip"
        return made[name]

    return make


def remembering(name, path, **kwargs) -> SB3Policy:
    _, _, policy_class, policy_kwargs = RECURRENT[name]
    return SB3Policy(
        algorithm="recurrent_ppo",
        policy_class=policy_class,
        policy_kwargs=policy_kwargs,
        checkpoint=path,
        **kwargs,
    )


@pytest.mark.parametrize("name", RECURRENT)
def test_the_state_of_every_row_is_carried_as_in_sb3_contrib(name, recurrent):
    """Rows start at different steps, one of them twice; each is compared with itself alone."""
    observation, action, _, _ = RECURRENT[name]
    model, path = recurrent(name)
    policy = remembering(name, path)
    policy.bind([Anything(observation, ACTIONS[action]) for _ in range(3)])
    starts = {0: [0], 1: [2], 2: [0, 3]}
    states: dict[int, object] = {}
    for step in range(6):
        rows = [row for row, steps in starts.items() if step >= steps[0]]
        for row in rows:
            if step in starts[row]:
                policy.start(row, row, np.random.default_rng(0))
        seen = [seen_at(observation, 10 * step + row) for row in rows]
        for row, one, found in zip(rows, seen, policy.act(seen, rows), strict=True):
            expected, states[row] = model.predict(
                one,
                state=states.get(row),
                episode_start=np.array([step in starts[row]]),
                deterministic=True,
            )
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_state_matters():
    model = widened(untrained("recurrent_ppo", VECTOR, ACTIONS["box"]))
    first, state = model.predict(seen_at(VECTOR, 0), deterministic=True)
    again, _ = model.predict(seen_at(VECTOR, 0), state=state, deterministic=True)
    assert np.abs(first - again).max() > 1e-3


def test_samples_of_a_recurrent_policy_have_its_distribution(recurrent):
    model, path = recurrent("usual")
    policy = remembering("usual", path, deterministic=False)
    policy.bind([Anything(VECTOR, ACTIONS["box"]) for _ in range(64)])
    rows, found = range(64), []
    for episode in range(0, 64 * 16, 64):
        for row in rows:
            policy.start(row, episode + row, np.random.default_rng(episode + row))
        for step in range(2):
            actions = policy.act([seen_at(VECTOR, step)] * 64, rows)
        found += actions
    _, state = model.predict(seen_at(VECTOR, 0), deterministic=True)
    tensor, _ = model.policy.obs_to_tensor(seen_at(VECTOR, 1))
    with torch.no_grad():
        states = tuple(torch.tensor(s) for s in state)
        exact, _ = model.policy.get_distribution(tensor, states, torch.zeros(1))
        torch.manual_seed(0)
        expected = exact.distribution.sample((4000,)).numpy()[:, 0].clip(-2, 3)
    assert np.allclose(np.mean(found, 0), expected.mean(0), atol=0.15)
    assert np.allclose(np.std(found, 0), expected.std(0), atol=0.1)


def test_settings_that_would_mix_rows_are_refused():
    for value in ({"batch_first": True}, {"bidirectional": True, "bias": True}, 3, ["bias"]):
        with pytest.raises(ConfigError, match="lstm_kwargs is .*; expected a mapping with only"):
            SB3Policy(
                algorithm="recurrent_ppo", policy_kwargs={"lstm_kwargs": value}, checkpoint="x"
            )


# Files and training


@pytest.mark.parametrize(
    ("algorithm", "action"), [("recurrent_ppo", "box"), ("maskable_ppo", "discrete")]
)
def test_training_gives_the_same_bytes_and_its_checkpoint_acts(algorithm, action, tmp_path):
    def made(folder):
        return train(
            lambda: Lasting(VECTOR, ACTIONS[action]),
            algorithm=algorithm,
            policy_kwargs={"net_arch": [8]},
            total_timesteps=64,
            hyperparameters={"n_steps": 16, "batch_size": 16, "n_epochs": 1},
            seed=1,
            n_envs=2,
            out_dir=tmp_path / folder,
        )

    first, again = made("a"), made("b")
    assert sha256_file(first.checkpoint) == sha256_file(again.checkpoint)
    kwargs = {"algorithm": algorithm, "checkpoint": first.checkpoint}
    policy = SB3Policy(**kwargs, policy_kwargs={"net_arch": [8]})
    policy.bind([Lasting(VECTOR, ACTIONS[action])])
    with pytest.raises(ConfigError, match="made for other spaces: observation space .*11.*12"):
        SB3Policy(**kwargs, policy_kwargs={"net_arch": [8]}).bind(
            [Lasting(spaces.Box(-1, 1, (12,)), ACTIONS[action])]
        )
    model = load_algorithm(algorithm).load(first.checkpoint)
    assert model.num_timesteps == 64


def test_training_without_masks_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match=r"has no method action_masks\(\)"):
        train(
            lambda: Anything(VECTOR, ACTIONS["discrete"]),
            algorithm="maskable_ppo",
            total_timesteps=64,
            seed=1,
            out_dir=tmp_path,
        )


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "sb3_contrib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    message = r"'recurrent_ppo' needs sb3-contrib; pip install 'minari_pipe\[contrib\]'"
    with pytest.raises(MissingDependencyError, match=message):
        SB3Policy(algorithm="recurrent_ppo", checkpoint="x.zip")
    assert load_algorithm("ppo")


def test_the_version_of_sb3_contrib_belongs_to_what_it_makes():
    assert "sb3-contrib" in find_algorithm("maskable_ppo").distributions
    assert "sb3-contrib" not in find_algorithm("ppo").distributions
    for name in ("maskable_ppo", "ppo"):
        assert all(map(importlib.metadata.version, find_algorithm(name).distributions))


@pytest.mark.parametrize("name", ["qrdqn", "QR-DQN", "trpo", "CrossQ", "ars", "her"])
def test_other_algorithms_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"algorithm '{name}' is not supported.*Known: ppo, a2c"):
        SB3Policy(algorithm=name, checkpoint="x.zip")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PPO", "ppo"),
        ("MaskablePPO", "maskable_ppo"),
        ("RecurrentPPO", "recurrent_ppo"),
        ("TQC", "tqc"),
    ],
)
def test_the_names_of_classes_lead_to_those_of_configs(name, meant):
    with pytest.raises(ConfigError, match=f"unknown algorithm '{name}'. Did you mean '{meant}'?"):
        find_algorithm(name)


def test_a_masked_policy_of_continuous_actions_is_refused(tmp_path):
    untrained("maskable_ppo", VECTOR, ACTIONS["discrete"]).save(tmp_path / "m.zip")
    policy = SB3Policy(algorithm="maskable_ppo", checkpoint=tmp_path / "m.zip")
    with pytest.raises(ConfigError, match="cannot choose actions of Box.*supports Discrete, Multi"):
        policy.bind([Anything(VECTOR, ACTIONS["box"])])
