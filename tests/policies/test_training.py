from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.schema import PolicySettings
from minari_pipe.pipeline.execution.build import make_policy
from minari_pipe.policies import training
from minari_pipe.policies.sb3 import SB3Policy
from minari_pipe.policies.training import check_hyperparameters, train
from tests.conftest import CHECKOUT
from tests.support.sb3_models import ACTIONS, MIXED, VECTOR, Anything

torch = pytest.importorskip("torch")

FAST = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "a2c": {},
    "sac": {"buffer_size": 100, "learning_starts": 10, "batch_size": 8},
    "tqc": {"buffer_size": 100, "learning_starts": 10, "batch_size": 8},
    "td3": {"buffer_size": 100, "learning_starts": 10, "batch_size": 8, "action_noise": 0.1},
    "ddpg": {"buffer_size": 100, "learning_starts": 10, "train_freq": [1, "episode"]},
    "dqn": {"buffer_size": 100, "learning_starts": 10, "batch_size": 8},
}


def quick(out_dir: Path, algorithm: str = "ppo", **kwargs):
    action = spaces.Discrete(3) if algorithm == "dqn" else ACTIONS["box"]
    arguments = {
        "make_env": lambda: Anything(VECTOR, action),
        "algorithm": algorithm,
        "policy_kwargs": {"net_arch": [8]},
        "total_timesteps": 48,
        "hyperparameters": FAST[algorithm],
        "seed": 1,
        "out_dir": out_dir,
    }
    return train(**{**arguments, **kwargs})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("algorithm", FAST)
def test_two_trainings_give_the_same_bytes_and_another_seed_others(algorithm, tmp_path):
    first = quick(tmp_path / "a", algorithm)
    torch.rand(3), np.random.rand(3), random.random()
    second = quick(tmp_path / "b", algorithm)
    other = quick(tmp_path / "c", algorithm, seed=2)
    assert os.listdir(tmp_path / "a") == ["policy.zip"]
    assert sha256(first.checkpoint) == sha256(second.checkpoint) != sha256(other.checkpoint)
    assert first.n_episodes >= 6
    assert first.mean_return == second.mean_return < 0


PROGRAM = """
import sys
from tests.support.sb3_models import *
from minari_pipe.policies.training import train
for name, space, cls in (("ppo", VECTOR, "MlpPolicy"), ("sac", TABLE, "MultiInputPolicy")):
    train(
        lambda: Anything(space, ACTIONS["box64"]),
        algorithm=name,
        policy_class=cls,
        policy_kwargs={"net_arch": [8], "activation_fn": "elu"},
        total_timesteps=64,
        hyperparameters={"n_steps": 16, "batch_size": 16} if name == "ppo" else {"buffer_size": 99},
        n_envs=2,
        seed=5,
        normalize_observations=name == "ppo",
        out_dir=f"{sys.argv[1]}/{name}",
    )
"""


def test_the_bytes_do_not_depend_on_the_process(tmp_path, monkeypatch):
    """Other hash seed, time zone, umask, working and temporary folder, number of threads."""
    folder = tmp_path / "deeper"
    (folder / "tmp").mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
        "TZ": "Asia/Tokyo",
        "TMPDIR": str(folder / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),  # else torch makes it in TMPDIR
        "OMP_NUM_THREADS": str(torch.get_num_threads() + 1),
    }
    command = [sys.executable, "-c", PROGRAM, str(folder / "out")]
    done = subprocess.run(command, cwd=folder, env=environment, umask=0o077, timeout=200)
    assert done.returncode == 0
    assert os.listdir(folder / "tmp") == []
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "out")])
    exec(PROGRAM, {})
    results = []
    for place in (tmp_path / "out", folder / "out"):
        files = sorted(path for path in place.rglob("*") if path.is_file())
        results.append({str(path.relative_to(place)): sha256(path) for path in files})
    assert sorted(results[0]) == ["ppo/normalize.npz", "ppo/policy.zip", "sac/policy.zip"]
    assert results[0] == results[1]


def test_real_sb3_loads_what_was_trained(tmp_path):
    from stable_baselines3 import PPO

    result = quick(tmp_path)
    model = PPO.load(result.checkpoint, device="cpu")
    policy = SB3Policy(
        algorithm="ppo", checkpoint=result.checkpoint, policy_kwargs={"net_arch": [8]}
    )
    policy.bind([Anything(VECTOR, ACTIONS["box"])])
    observation = VECTOR.sample()
    expected, _ = model.predict(observation, deterministic=True)
    np.testing.assert_allclose(policy.act([observation], [0])[0], expected, rtol=1e-5, atol=1e-6)


def test_normalization_belongs_to_the_checkpoint(tmp_path):
    result = quick(tmp_path, normalize_observations=True)
    assert result.normalization == tmp_path / "normalize.npz"
    policy = SB3Policy(
        algorithm="ppo",
        checkpoint=result.checkpoint,
        normalize=result.normalization,
        policy_kwargs={"net_arch": [8]},
    )
    policy.bind([Anything(VECTOR, ACTIONS["box"])])
    policy.act([VECTOR.sample()], [0])
    again = quick(tmp_path)
    assert again.normalization is None
    assert os.listdir(tmp_path) == ["policy.zip"]
    with pytest.raises(ConfigError, match="normalize_observations: the network already scales"):
        quick(
            tmp_path,
            make_env=lambda: Anything(MIXED, ACTIONS["box"]),
            policy_class="MultiInputPolicy",
            normalize_observations=True,
        )


def test_it_learns(tmp_path):
    """The reward is minus the squared action, so the mode moves towards zero."""
    from stable_baselines3 import PPO

    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.01}
    space = spaces.Box(-2, 2, (2,))
    result = quick(
        tmp_path,
        make_env=lambda: Anything(VECTOR, space),
        hyperparameters=settings,
        policy_kwargs={"net_arch": [8], "log_std_init": 0.0},
        total_timesteps=3000,
        n_envs=4,
    )
    model = PPO.load(result.checkpoint, device="cpu")
    assert model.num_timesteps == 3072
    assert torch.exp(model.policy.log_std).max() < 0.9
    assert result.n_episodes == 436


def test_the_process_is_left_as_it_was(tmp_path):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    before = (
        torch.random.get_rng_state(),
        np.random.get_state()[1].copy(),
        random.getstate(),
        sorted(os.listdir(tempfile.gettempdir())),
    )
    quick(tmp_path)
    left = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    assert left == 2
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()
    new = set(os.listdir(tempfile.gettempdir())) - set(before[3])
    assert not [name for name in new if name.startswith("SB3")]


def test_environments_are_closed_and_nothing_is_written_when_it_fails(tmp_path):
    closed = []

    class Failing(Anything):
        def step(self, action):
            raise RuntimeError("the simulator broke")

        def close(self):
            closed.append(1)

    with pytest.raises(RuntimeError, match="the simulator broke"):
        quick(tmp_path / "out", make_env=lambda: Failing(VECTOR, ACTIONS["box"]), n_envs=2)
    assert len(closed) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's about the overflow
def test_a_training_that_diverges_is_no_result(tmp_path):
    class Huge(Anything):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 1e38, *rest

    with pytest.raises(ConfigError, match="the training diverged"):
        quick(tmp_path / "out", make_env=lambda: Huge(VECTOR, ACTIONS["box"]))
    assert not (tmp_path / "out").exists()


# Settings


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ppo", {"learning_rat": 1e-3}, r"Did you mean 'learning_rate'\? Known: batch_size"),
        ("ppo", {"learning_rate": "1e-3"}, "is '1e-3', a str; ppo takes float"),
        ("ppo", {"learning_rate": True}, "is True, a bool; ppo takes float"),
        ("ppo", {"learning_rate": lambda _: 1.0}, "is a function; only numbers"),
        ("ppo", {"learning_rate": {"_target_": "os.system"}}, "_: only numbers, strings"),
        ("ppo", {"n_steps": 1.5}, "is 1.5, a float; ppo takes int"),
        ("ppo", {"clip_range_vf": "x"}, "ppo takes float or null"),
        ("ppo", {"tensorboard_log": "runs"}, "training writes only its checkpoint"),
        ("ppo", {"device": "cuda"}, "training runs on the CPU"),
        ("ppo", {"verbose": 2}, "a progress bar is shown"),
        ("ppo", {"seed": 3}, "it has its own config key"),
        ("ppo", {"policy_kwargs": {}}, "it has its own config key"),
        ("ppo", {"rollout_buffer_class": "x"}, "is not a setting of ppo"),
        ("ppo", {"_init_setup_model": False}, "is not a setting of ppo"),
        ("ppo", {"action_noise": 0.1}, "is not a setting of ppo"),
        ("sac", {"ent_coef": [1]}, "sac takes str or float"),
        ("td3", {"action_noise": "normal"}, "td3 takes float"),
        ("dqm", {}, "Did you mean 'dqn'"),
    ],
)
def test_settings_that_are_refused(algorithm, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_hyperparameters(algorithm, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"learning_rate": 1, "clip_range_vf": None, "target_kl": 0.01, "use_sde": True}),
        ("sac", {"ent_coef": "auto_0.1", "target_entropy": -3, "train_freq": [2, "step"]}),
        ("td3", {"action_noise": 0.1, "gradient_steps": -1}),
    ],
)
def test_settings_that_are_taken(algorithm, settings):
    checked = check_hyperparameters(algorithm, settings)
    assert checked.keys() == settings.keys()
    assert checked.get("train_freq", (2, "step")) == (2, "step")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_timesteps": 0}, "train.total_timesteps is 0; expected an integer of at least 1"),
        ({"total_timesteps": 1.5}, "train.total_timesteps is 1.5"),
        ({"n_envs": True}, "train.n_envs is True"),
        ({"seed": -1}, "train.seed is -1"),
        ({"seed": 2**32}, "train.seed is"),
        ({"policy_kwargs": {"use_sde": True}}, "set hyperparameters.use_sde instead"),
        ({"hyperparameters": {"batch_size": 1}}, "ppo refuses these settings"),
        ({"hyperparameters": {"n_epochs": 0}}, "n_epochs is 0; expected at least 1"),
        (
            {"algorithm": "sac", "hyperparameters": {"buffer_size": 10**13}},
            "sac refuses these settings: Unable to allocate",
        ),
        (
            {"algorithm": "td3", "hyperparameters": {"action_noise": -1.0}},
            "action_noise is -1.0; expected at least 0",
        ),
        ({"make_env": lambda: Anything(MIXED, ACTIONS["box"])}, "policy_class: MultiInputPolicy"),
        (
            {"make_env": lambda: Anything(spaces.Text(3), ACTIONS["box"])},
            "Stable-Baselines3 policies take Box",
        ),
    ],
)
def test_trainings_that_cannot_start(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        quick(tmp_path / "out", **change)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_policy_that_was_trained_with_gsde_acts(tmp_path):
    settings = {**FAST["ppo"], "use_sde": True}
    quick(tmp_path / "out", hyperparameters=settings)
    config = {
        "_target_": "minari_pipe.policies.SB3Policy",
        "algorithm": "ppo",
        "policy_kwargs": {"net_arch": [8]},
        "train": {"total_timesteps": 64, "hyperparameters": settings},
    }
    policy = PolicySettings.of(config, "policy")
    policy = make_policy(policy, where="policy", root=tmp_path, trained=tmp_path / "out")
    policy.bind([Anything(VECTOR, ACTIONS["box"])])


def test_the_progress_bar_is_silent_without_a_terminal(tmp_path, capfd):
    quick(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_the_progress_bar_ends_at_the_number_that_was_asked_for(tmp_path, monkeypatch):
    bars = []
    original = training._progress
    monkeypatch.setattr(
        training, "_progress", lambda *args: bars.append(original(*args)) or bars[-1]
    )
    quick(tmp_path, total_timesteps=40)
    assert bars[0].bar.text([]).startswith("40 of 40 steps")
    assert bars[0].num_timesteps == 48


def test_a_registered_environment_trains_through_its_wrappers(tmp_path):
    result = quick(
        tmp_path,
        make_env=lambda: gym.make("CartPole-v1"),
        total_timesteps=256,
        hyperparameters={**FAST["ppo"], "gamma": 0.98},
        n_envs=4,
    )
    assert result.n_episodes >= 5
