from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource
from minari_pipe.errors import ConfigError
from minari_pipe.policies import batched_network
from minari_pipe.policies.action_heads import ActionHead
from minari_pipe.policies.archive import write_arrays
from minari_pipe.policies.batched_network import BatchedNetwork, one_torch_thread, pad_small_layers
from minari_pipe.policies.normalization import ObservationNormalization, write_normalization
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.sb3 import SB3Policy
from tests.support.sb3_models import ACTIONS, IMAGE, MIXED, VECTOR, Anything, untrained, widened

torch = pytest.importorskip("torch")
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.sac.policies import Actor as SACActor  # noqa: E402
from stable_baselines3.sac.policies import SACPolicy  # noqa: E402

CASES = [
    ("ppo", VECTOR, "box", "MlpPolicy"),
    ("ppo", MIXED, "box64", "MultiInputPolicy"),
    ("ppo", VECTOR, "several", "MlpPolicy"),
    ("ppo", VECTOR, "switches", "MlpPolicy"),
    ("ppo", IMAGE, "discrete", "CnnPolicy"),
    ("a2c", VECTOR, "discrete", "MlpPolicy"),
    ("sac", VECTOR, "box", "MlpPolicy"),
    ("sac", MIXED, "box64", "MultiInputPolicy"),
    ("tqc", VECTOR, "box", "MlpPolicy"),
    ("tqc", MIXED, "box64", "MultiInputPolicy"),
    ("td3", VECTOR, "box", "MlpPolicy"),
    ("ddpg", VECTOR, "box64", "MlpPolicy"),
    ("dqn", VECTOR, "discrete", "MlpPolicy"),
    ("dqn", spaces.MultiDiscrete([3, 4]), "discrete", "MlpPolicy"),
]
SAMPLED = [case for case in CASES if case[0] in ("ppo", "a2c", "sac", "tqc")]


def named(case) -> str:
    return f"{case[0]}-{type(case[1]).__name__}{len(case[1].shape or ())}-{case[2]}"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The model and the checkpoint of a case, made once."""
    folder = tmp_path_factory.mktemp("models")
    made = {}

    def make(case):
        algorithm, observation, action, policy_class = case
        if named(case) not in made:
            model = widened(untrained(algorithm, observation, ACTIONS[action], policy_class))
            path = folder / f"{named(case)}.zip"
            model.save(path)
            made[named(case)] = model, path
        return made[named(case)]

    return make


def policy_of(case, path: Path, n_envs: int, **kwargs) -> SB3Policy:
    algorithm, observation, action, policy_class = case
    policy = SB3Policy(algorithm=algorithm, policy_class=policy_class, checkpoint=path, **kwargs)
    policy.bind([Anything(observation, ACTIONS[action]) for _ in range(n_envs)])
    return policy


def observations(case, n: int, seed: int = 0) -> list:
    space = case[1]
    space.seed(seed)
    return [space.sample() for _ in range(n)]


class Logits(ActionHead):
    """What the network gives out, as it is."""

    def __call__(self, outputs, rows, masks=None):
        return np.concatenate([o.reshape(len(o), -1) for o in outputs], axis=1)


def as_bytes(actions) -> list[bytes]:
    return [np.asarray(action).tobytes() for action in actions]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_mode_equals_sb3s_own_prediction(case, models):
    model, path = models(case)
    policy = policy_of(case, path, n_envs=5)
    space = ACTIONS[case[2]]
    seen = observations(case, 5)
    for observation, action in zip(seen, policy.act(seen, range(5)), strict=True):
        expected, _ = model.predict(observation, deterministic=True)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
        assert space.contains(action)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_the_mode_of_a_squashed_output_equals_sb3s_own_prediction(algorithm, tmp_path):
    model = untrained(algorithm, use_sde=True, policy_kwargs={"squash_output": True})
    with torch.no_grad():
        model.policy.action_net.weight.mul_(50.0)
    model.save(tmp_path / "m.zip")
    kwargs = {"use_sde": True, "squash_output": True}
    case = (algorithm, VECTOR, "box", "MlpPolicy")
    policy = policy_of(case, tmp_path / "m.zip", n_envs=5, policy_kwargs=kwargs)
    seen = observations(case, 5)
    for observation, action in zip(seen, policy.act(seen, range(5)), strict=True):
        expected, _ = model.predict(observation, deterministic=True)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "deterministic"),
    [*((case, True) for case in CASES), *((case, False) for case in CASES if case in SAMPLED)],
    ids=lambda value: named(value) if isinstance(value, tuple) else f"deterministic={value}",
)
def test_rows_are_independent_of_place_and_neighbours(case, models, deterministic):
    _, path = models(case)
    policy = policy_of(case, path, n_envs=16, deterministic=deterministic)
    if deterministic:  # what the network gives out, as an index of an action hides the low bits
        policy._head = Logits()
    seen = observations(case, 16)

    def act(order, rows):
        for row, episode in zip(rows, order, strict=True):
            policy.start(row, episode, np.random.default_rng(episode))
        actions = policy.act([seen[i] for i in order], rows)
        return dict(zip(order, as_bytes(actions), strict=True))

    together = act(list(range(16)), list(range(16)))
    assert len(set(together.values())) > 1
    assert act(list(range(15, -1, -1)), list(range(16))) == together
    for place in (0, 3, 9, 15):
        alone = act([5], [place])
        assert alone[5] == together[5]


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[6]], ids=named)
def test_an_episode_is_the_same_alone_and_beside_others(case, models):
    _, path = models(case)
    algorithm, observation, action, policy_class = case

    def run(episodes, n_envs=5):
        policy = SB3Policy(
            algorithm=algorithm,
            policy_class=policy_class,
            checkpoint=path,
            deterministic=False,
        )
        lengths = iter(range(3, 100))
        envs = run_episodes(
            lambda: gym.wrappers.TimeLimit(
                Anything(observation, ACTIONS[action], length=99), next(lengths)
            ),
            policy,
            episodes,
            seed=4,
            n_envs=n_envs,
        )
        return dict(zip(episodes, envs, strict=True))

    together = run(list(range(9)))
    for episode in (0, 4, 8):
        alone = run([episode])[episode]
        n = min(len(alone), len(together[episode]))
        assert n >= 3
        assert (
            np.asarray(alone.actions)[:n].tobytes()
            == np.asarray(together[episode].actions)[:n].tobytes()
        )


# Sampling


def test_normal_noise_has_the_policys_mean_and_deviation(models, tmp_path):
    model = untrained("ppo", VECTOR, spaces.Box(-50, 50, (2,)), policy_kwargs={"log_std_init": 0.5})
    model.save(tmp_path / "m.zip")
    policy = SB3Policy(algorithm="ppo", checkpoint=tmp_path / "m.zip", deterministic=False)
    policy.bind([Anything(VECTOR, spaces.Box(-50, 50, (2,)))])
    policy.start(0, 0, np.random.default_rng(0))
    observation = observations(CASES[0], 1)
    samples = np.array([policy.act(observation, [0])[0] for _ in range(2000)])
    mean, _ = model.predict(observation[0], deterministic=True)
    assert np.allclose(samples.mean(0), mean, atol=0.15)
    assert np.allclose(samples.std(0), np.exp(0.5), atol=0.1)


@pytest.mark.parametrize("case", [CASES[2], CASES[3], CASES[5]], ids=named)
def test_discrete_samples_have_the_policys_frequencies(case, models):
    model, path = models(case)
    policy = policy_of(case, path, n_envs=1, deterministic=False)
    policy.start(0, 0, np.random.default_rng(0))
    observation = observations(case, 1)
    samples = np.array([policy.act(observation, [0])[0] for _ in range(1500)])
    tensor, _ = model.policy.obs_to_tensor(observation[0])
    with torch.no_grad():
        found = model.policy.get_distribution(tensor).distribution
    parts = found if isinstance(found, list) else [found]
    columns = samples.reshape(len(samples), -1)
    if case[2] == "switches":
        assert np.allclose(columns.mean(0), parts[0].probs.numpy()[0], atol=0.05)
        return
    for column, part in zip(columns.T, parts, strict=True):
        counts = np.bincount(column, minlength=part.probs.shape[1]) / len(column)
        assert np.allclose(counts, part.probs.numpy()[0], atol=0.05)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in ("sac", "tqc")], ids=named)
def test_squashed_samples_stay_inside_and_vary(case, models):
    policy = policy_of(case, models(case)[1], n_envs=1, deterministic=False)
    policy.start(0, 0, np.random.default_rng(0))
    observation = observations(case, 1)
    samples = np.array([policy.act(observation, [0])[0] for _ in range(200)])
    assert all(ACTIONS[case[2]].contains(s) for s in samples)
    assert (samples.std(0) > 0.01).all()


def test_nothing_is_drawn_from_global_generators(models):
    case = CASES[0]
    policy = policy_of(case, models(case)[1], n_envs=2, deterministic=False)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    policy.start(0, 0, np.random.default_rng(0))
    policy.act(observations(case, 1), [0])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


# Files


@pytest.mark.parametrize("trusted", [False, True])
def test_a_checkpoint_that_says_its_network_needs_no_policy_kwargs(trusted, tmp_path, monkeypatch):
    model = untrained("ppo", policy_kwargs={"net_arch": [9], "activation_fn": torch.nn.ELU})
    model.save(tmp_path / "m.zip")
    if trusted:
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_SHA256", sha256_file(tmp_path / "m.zip"))
    policy = policy_of(CASES[0], tmp_path / "m.zip", 1, policy_kwargs={})
    seen = observations(CASES[0], 1)
    expected, _ = model.predict(seen[0], deterministic=True)
    np.testing.assert_allclose(policy.act(seen, [0])[0], expected, rtol=1e-5, atol=1e-5)


class Halved(SACActor):
    """A network of the user's own, between SB3's layers and the action."""

    def get_action_dist_params(self, obs):
        mean, log_std, more = super().get_action_dist_params(obs)
        return mean / 2, log_std, more


class HalvedPolicy(SACPolicy):
    def make_actor(self, features_extractor=None):
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return Halved(**kwargs).to(self.device)


class OnePass(torch.nn.Module):
    latent_dim_pi = latent_dim_vf = 11

    def forward(self, features):
        return features, features

    def forward_actor(self, features):
        return torch.sin(features)

    def forward_critic(self, features):
        return features


class SinePolicy(ActorCriticPolicy):
    def _build_mlp_extractor(self):
        self.mlp_extractor = OnePass()


@pytest.mark.parametrize(("algorithm", "cls"), [("sac", HalvedPolicy), ("ppo", SinePolicy)])
def test_a_trusted_checkpoint_may_bring_classes_of_its_own(algorithm, cls, tmp_path, monkeypatch):
    model = widened(untrained(algorithm, policy_class=cls))
    model.save(tmp_path / "m.zip")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_SHA256", sha256_file(tmp_path / "m.zip"))
    policy = policy_of((algorithm, VECTOR, "box", "MlpPolicy"), tmp_path / "m.zip", 3)
    seen = observations(CASES[0], 3)
    for observation, action in zip(seen, policy.act(seen, range(3)), strict=True):
        expected, _ = model.predict(observation, deterministic=True)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_named_missing_or_wrong_before_any_episode(models, tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.checkpoint\.path=FILE"):
        SB3Policy(algorithm="ppo")
    with pytest.raises(ConfigError, match=r"none\.zip.* does not exist"):
        SB3Policy(algorithm="ppo", checkpoint=tmp_path / "none.zip")
    _, path = models(CASES[0])
    with pytest.raises(ConfigError, match="sha256"):
        SB3Policy(algorithm="ppo", checkpoint=FileSource(path=str(path), sha256="0" * 64))
    policy = SB3Policy(algorithm="ppo", checkpoint=path)
    with pytest.raises(ConfigError, match="made for other spaces"):
        policy.bind([Anything(spaces.Box(-1, 1, (4,)), ACTIONS["box"])])


def test_binding_again_builds_nothing_and_forgets_the_episodes(models):
    case = CASES[0]
    policy = policy_of(case, models(case)[1], n_envs=2)
    network = policy._network
    policy.bind([Anything(case[1], ACTIONS[case[2]]) for _ in range(2)])
    assert policy._network is network
    policy.bind([Anything(case[1], ACTIONS[case[2]]) for _ in range(9)])
    assert policy._network is not network
    assert len(policy._batch) == 16


# Normalization


def normalized(space: gym.Space, n: int = 30):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    keys = [k for k in space.spaces if k == "wide"] if isinstance(space, spaces.Dict) else None
    wrapper = VecNormalize(
        DummyVecEnv([lambda: Anything(space, ACTIONS["box"])]),
        norm_reward=False,
        norm_obs_keys=keys,
        clip_obs=1.5,
    )
    wrapper.seed(0)
    wrapper.reset()
    for _ in range(n):
        wrapper.step(np.zeros((1, 5), np.float32))
    return wrapper


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=named)
def test_normalizes_as_vecnormalize_does(case, tmp_path):
    algorithm, observation, _, policy_class = case
    wrapper = normalized(observation)
    write_normalization(wrapper, tmp_path / "n.npz")
    model = untrained(algorithm, observation, ACTIONS["box"], policy_class)
    model.save(tmp_path / "m.zip")
    policy = policy_of(
        (algorithm, observation, "box", policy_class),
        tmp_path / "m.zip",
        4,
        normalize=tmp_path / "n.npz",
    )
    seen = observations(case, 4)
    for one, action in zip(seen, policy.act(seen, range(4)), strict=True):
        expected, _ = model.predict(wrapper.normalize_obs(one), deterministic=True)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


def test_normalization_is_exactly_vecnormalizes(tmp_path):
    wrapper = normalized(VECTOR)
    write_normalization(wrapper, tmp_path / "n.npz")
    batch = np.stack(observations(CASES[0], 20)) * 3
    found = ObservationNormalization.load(tmp_path / "n.npz")(batch)
    assert found.dtype == np.float32
    assert np.array_equal(found, wrapper.normalize_obs(batch))
    assert np.abs(found).max() == 1.5


def test_a_vecnormalize_of_sb3_is_not_unpickled_but_how_to_write_it_is_told(tmp_path):
    normalized(VECTOR).save(str(tmp_path / "n.npz"))
    with pytest.raises(ConfigError, match="not a readable zip.*expected a file that write_normal"):
        ObservationNormalization.load(tmp_path / "n.npz")


GOOD = {"obs_mean": np.zeros(11), "obs_var": np.ones(11), "clip_obs": 10.0, "epsilon": 1e-8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_var": None}, "expected obs_mean, obs_var"),
        ({"extra": np.zeros(1)}, "expected obs_mean, obs_var"),
        ({"obs_mean.x": np.zeros(1), "obs_var.x": np.ones(1)}, "expected obs_mean, obs_var"),
        ({"obs_var": -np.ones(11)}, "obs_var must be finite numbers >= 0"),
        ({"obs_mean": np.full(11, np.nan)}, "obs_mean must be finite"),
        ({"clip_obs": 0.0}, "clip_obs must be one positive number"),
        ({"epsilon": np.ones(2)}, "epsilon must be one positive number"),
        ({"obs_mean": np.zeros(3)}, r"has shape \(3,\), the observation space has \(11,\)"),
        (
            {
                "obs_mean": None,
                "obs_var": None,
                "obs_mean.x": np.zeros(11),
                "obs_var.x": np.ones(11),
            },
            "do not fit the observation space",
        ),
    ],
)
def test_statistics_that_make_no_sense(tmp_path, change, message):
    arrays = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    write_arrays(tmp_path / "n.npz", arrays)
    with pytest.raises(ConfigError, match=message):
        ObservationNormalization.load(tmp_path / "n.npz").check(VECTOR)


# The batched network


def test_small_layers_are_padded_without_changing_their_outputs():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(39, 7), torch.nn.Tanh(), torch.nn.Linear(7, 20))
    x = torch.randn(8, 39)
    before = network(x).detach()
    pad_small_layers(network)
    assert not isinstance(network[0], torch.nn.Linear)
    assert isinstance(network[2], torch.nn.Linear)
    assert torch.allclose(network(x).detach(), before, atol=1e-6)


@pytest.mark.parametrize("n", [8, 24, 64])
@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 6, 7, 8, 11, 17])
def test_padded_networks_need_no_fallback(n, outputs):
    """For the usual numbers of actions the whole batch goes through at once on this machine."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(39, 33), torch.nn.Tanh(), torch.nn.Linear(33, outputs)]
    network = torch.nn.Sequential(*layers)
    pad_small_layers(network)
    example = np.random.default_rng(0).standard_normal((n, 39)).astype(np.float32)
    assert not BatchedNetwork(lambda x: (network(x),), [example]).by_row


def test_a_network_whose_rows_disagree_runs_row_by_row():
    def leaking(x):
        return (x + x.mean(0, keepdim=True),)

    example = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    network = BatchedNetwork(leaking, [example])
    assert network.by_row
    assert np.array_equal(network(example)[0], 2 * example)
    mixed = BatchedNetwork(lambda x: leaking(x["a"]), [{"a": example, "b": example}])
    assert mixed.by_row
    assert np.array_equal(mixed({"a": example, "b": example})[0], 2 * example)


def test_the_fallback_gives_the_same_actions_up_to_rounding(models, monkeypatch):
    case = CASES[0]
    _, path = models(case)
    seen = observations(case, 3)
    batched = policy_of(case, path, 3).act(seen, range(3))
    monkeypatch.setattr(batched_network.BatchedNetwork, "_rows_are_independent", lambda *_: False)
    policy = policy_of(case, path, 3)
    assert policy._network.by_row
    np.testing.assert_allclose(policy.act(seen, range(3)), batched, rtol=1e-5, atol=1e-6)


def test_one_thread_inside_and_as_before_outside():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_torch_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
