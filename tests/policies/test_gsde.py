"""gSDE: noise that depends on the state, by a matrix that an episode keeps."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.policies.base import RowError
from minari_pipe.policies.evaluation import evaluate
from minari_pipe.policies.sb3 import SB3Policy
from tests.support.sb3_models import ACTIONS, VECTOR, Lasting, untrained, widened

torch = pytest.importorskip("torch")

WIDE = spaces.Box(-50, 50, (3,))


def acting(path, algorithm, action_space, n_envs=1, **kwargs) -> SB3Policy:
    kwargs = {"deterministic": False, **kwargs}
    policy = SB3Policy(algorithm=algorithm, checkpoint=path, **kwargs)
    policy.bind([Lasting(VECTOR, action_space) for _ in range(n_envs)])
    return policy


def observation(seed: int = 0) -> np.ndarray:
    VECTOR.seed(seed)
    return VECTOR.sample()


# gSDE

GSDE = {
    "ppo": ("ppo", WIDE, {}),
    "ppo, clipped": ("ppo", ACTIONS["box"], {"log_std_init": 2.0}),
    "a2c, one deviation for all actions": ("a2c", WIDE, {"full_std": False}),
    "ppo, expln": ("ppo", WIDE, {"use_expln": True, "log_std_init": 0.3}),
    "ppo, squashed": ("ppo", ACTIONS["box"], {"squash_output": True}),
    "ppo, no layers": ("ppo", WIDE, {"net_arch": []}),
    "sac": ("sac", ACTIONS["box64"], {}),
    "sac, unclipped mean": ("sac", ACTIONS["box"], {"clip_mean": 0.0, "use_expln": True}),
    "tqc": ("tqc", ACTIONS["box"], {}),
    "recurrent_ppo": ("recurrent_ppo", WIDE, {"lstm_hidden_size": 16}),
}


@pytest.fixture(params=GSDE)
def gsde(request, tmp_path):
    algorithm, action_space, kwargs = GSDE[request.param]
    model = widened(
        untrained(algorithm, VECTOR, action_space, use_sde=True, policy_kwargs={**kwargs})
    )
    model.save(tmp_path / "m.zip")
    kwargs = {"policy_kwargs": {**kwargs, "use_sde": True}}
    return algorithm, action_space, model, tmp_path / "m.zip", kwargs


def test_gsde_acts_as_sb3_does_with_the_matrix_of_the_episode(gsde):
    algorithm, space, model, path, kwargs = gsde
    policy = acting(path, algorithm, space, n_envs=3, **kwargs)
    acts = getattr(model.policy, "actor", model.policy)
    std = acts.action_dist.get_std(acts.log_std).detach().numpy()
    for row, episode in ((2, 7), (0, 8), (2, 9)):
        policy.start(row, episode, np.random.default_rng(episode))
        matrix = std * np.random.default_rng(episode).standard_normal(std.shape)
        acts.action_dist.exploration_mat = torch.tensor(matrix, dtype=torch.float32)
        acts.action_dist.exploration_matrices = acts.action_dist.exploration_mat[None]
        state = None
        for step in range(3):
            seen = observation(step)
            starts = np.array([step == 0])
            expected, state = model.predict(seen, state, starts, deterministic=False)
            (action,) = policy.act([seen], [row])
            np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)
            assert space.contains(action.astype(space.dtype))


def test_gsde_acts_with_its_mode(gsde):
    algorithm, space, model, path, kwargs = gsde
    policy = acting(path, algorithm, space, deterministic=True, **kwargs)
    policy.start(0, 0, np.random.default_rng(0))
    expected, _ = model.predict(observation(), deterministic=True)
    np.testing.assert_allclose(policy.act([observation()], [0])[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_matrix_is_kept_for_an_episode_and_drawn_anew_for_the_next(algorithm, tmp_path):
    untrained(algorithm, use_sde=True).save(tmp_path / "m.zip")
    kwargs = {"policy_kwargs": {"use_sde": True}}
    policy = acting(tmp_path / "m.zip", algorithm, ACTIONS["box"], **kwargs)
    found = []
    for episode in range(2):
        policy.start(0, episode, np.random.default_rng(episode))
        twice = [policy.act([observation()], [0])[0].tobytes() for _ in range(2)]
        assert twice[0] == twice[1]
        found.append(twice[0])
    assert found[0] != found[1]


def test_the_noise_of_many_episodes_has_the_deviation_that_sb3_computes(tmp_path):
    model = untrained("ppo", VECTOR, WIDE, use_sde=True, policy_kwargs={"log_std_init": 0.0})
    model.save(tmp_path / "m.zip")
    policy = acting(tmp_path / "m.zip", "ppo", WIDE, n_envs=64, policy_kwargs={"use_sde": True})
    found = []
    for episode in range(0, 64 * 24, 64):
        for row in range(64):
            policy.start(row, episode + row, np.random.default_rng(episode + row))
        found += policy.act([observation()] * 64, range(64))
    tensor, _ = model.policy.obs_to_tensor(observation())
    with torch.no_grad():
        expected = model.policy.get_distribution(tensor).distribution
    std = expected.stddev.numpy()[0]
    assert np.allclose(np.mean(found, axis=0), expected.mean.numpy()[0], atol=0.15 * std.max())
    assert np.allclose(np.std(found, axis=0), std, rtol=0.1)


def test_a_trusted_gsde_checkpoint_is_sampled_without_policy_kwargs(tmp_path, monkeypatch):
    untrained("sac", use_sde=True).save(tmp_path / "m.zip")
    told = acting(tmp_path / "m.zip", "sac", ACTIONS["box"], policy_kwargs={"use_sde": True})
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_SHA256", sha256_file(tmp_path / "m.zip"))
    trusted = acting(tmp_path / "m.zip", "sac", ACTIONS["box"])
    for policy in (told, trusted):
        policy.start(0, 0, np.random.default_rng(0))
    expected = told.act([observation()], [0])[0]
    assert trusted.act([observation()], [0])[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("written", "given", "message"),
    [
        ({}, {"policy_kwargs": {"use_sde": False}}, "policy_kwargs {.*'use_sde': True"),
        (
            {"use_expln": True},
            {"policy_kwargs": {"use_sde": True, "use_expln": False}},
            "trained with use_expln True, the config implies False",
        ),
    ],
)
def test_a_gsde_checkpoint_that_the_config_describes_otherwise(tmp_path, written, given, message):
    untrained("ppo", use_sde=True, policy_kwargs=written or None).save(tmp_path / "m.zip")
    with pytest.raises(ConfigError, match=message):
        acting(tmp_path / "m.zip", "ppo", ACTIONS["box"], **given)


@pytest.fixture(scope="module")
def dqn(tmp_path_factory):
    path = tmp_path_factory.mktemp("dqn") / "m.zip"
    widened(untrained("dqn", VECTOR, spaces.Discrete(4))).save(path)
    return path


# Values that are no numbers


class Broken(Lasting):
    """Gives another kind of observation in the third step."""

    kind: object = np.full(11, np.nan, np.float32)

    def step(self, action):
        found = super().step(action)
        return (self.kind, *found[1:]) if self.t == 2 else found


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Broken.kind, "the environment's observation holds NaN or infinity"),
        (np.zeros(3), r"observation has shape \(3,\), its space has \(11,\)"),
        (np.float32(0), r"observation has shape \(\), its space has \(11,\)"),
    ],
)
def test_an_observation_that_is_none_is_named_with_its_episode_and_step(dqn, kind, message):
    policy = SB3Policy(algorithm="dqn", checkpoint=dqn)

    class Env(Broken):
        def step(self, action):
            self.kind = kind if self.length == lengths[1] else self.observation_space.sample()
            return super().step(action)

    def whole():
        return Lasting(VECTOR, spaces.Discrete(4))

    lengths = [result.n_steps for result in evaluate(whole, policy, range(3), seed=0)]
    assert len(set(lengths)) == 3
    run = evaluate(lambda: Env(VECTOR, spaces.Discrete(4)), policy, range(3), seed=0)
    with pytest.raises(InvalidEpisodeError, match=f"at episode 1, step 2: .*{message}"):
        list(run)


def test_a_row_error_reads_as_its_text():
    error = RowError(3, "no action")
    assert (str(error), error.row) == ("no action", 3)
