"""What a training recorded is what its environments did, whatever SB3 made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from minari_pipe.core.environments import make_environment
from minari_pipe.core.episode import EpisodeData
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.pipeline.stages.recorded_training import (
    recorded_training,
    seeded_vec_env,
    training_seed,
)
from minari_pipe.pipeline.stages.sources import TrainingEpisodes
from minari_pipe.policies.checkpoints import checkpoint_folder, checkpoint_steps
from minari_pipe.policies.training import Training, train
from minari_pipe.storage.hdf5.file import EpisodeFile
from tests.support.repositories import hashes

pytest.importorskip("torch")

PPO = {
    "env": "CartPole-v1",
    "algorithm": "ppo",
    "total_timesteps": 1200,
    "n_envs": 3,
    "hyperparameters": {"n_steps": 32, "batch_size": 32, "n_epochs": 1},
    "policy_kwargs": {"net_arch": [8]},
    "normalize_observations": True,
    "n_checkpoints": 5,
}
SAC = {
    "env": "Pendulum-v1",
    "algorithm": "sac",
    "total_timesteps": 450,
    "n_envs": 1,
    "hyperparameters": {"batch_size": 8, "learning_starts": 50, "train_freq": 10},
    "policy_kwargs": {"net_arch": [8]},
    "n_checkpoints": 3,
}
TRAININGS = pytest.mark.parametrize("settings", [PPO, SAC], ids=["on-policy", "off-policy"])


def run(out: Path, *, seed: int = 3, env: str, **settings: Any) -> Training:
    with recorded_training(out / "episodes", seed=seed) as vector_env:
        return train(
            lambda: make_environment(env, {}, []),
            seed=seed,
            vector_env=vector_env,
            out_dir=out,
            **settings,
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Each training once, by its algorithm."""
    made: dict[str, tuple[Path, Training]] = {}

    def get(settings: dict[str, Any]) -> tuple[Path, Training]:
        name = settings["algorithm"]
        if name not in made:
            out = tmp_path_factory.mktemp(name)
            made[name] = out, run(out, **settings)
        return made[name]

    return get


def recorded(out: Path) -> list[tuple[int, EpisodeData, dict[str, Any]]]:
    """Seed, data and what the index says of every episode."""
    index = json.loads((out / "episodes" / "index.json").read_text())
    both = [deserialize_space(index[key]) for key in ("observation_space", "action_space")]
    columns = index["episodes"]
    lines = iter([dict(zip(columns, row, strict=True)) for row in zip(*columns.values())])
    found = []
    for name in index["blocks"]:
        with EpisodeFile.open(out / "episodes" / name) as file:
            for i in range(len(file)):
                seed = file.episode_metadata(i)["seed"]
                found.append((seed, file.read(i, *both), next(lines)))
    assert next(lines, None) is None
    return found


@TRAININGS
def test_every_recorded_episode_is_what_the_environment_does_from_its_seed(settings, trained):
    out, result = trained(settings)
    env = make_environment(settings["env"], {}, [])
    episodes = recorded(out)
    assert len(episodes) == result.n_episodes > 1
    for seed, episode, line in episodes:
        observations = [env.reset(seed=seed)[0]]
        steps = [env.step(action)[:4] for action in episode.actions]
        observations += [step[0] for step in steps]
        for found, expected in (
            (episode.observations, np.array(observations)),
            (episode.rewards, np.array([step[1] for step in steps], float)),
            (episode.terminations, np.array([step[2] for step in steps])),
            (episode.truncations, np.array([step[3] for step in steps])),
        ):
            assert np.asarray(found).dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        assert line["n_steps"] == len(steps)
    env.close()


@TRAININGS
def test_episodes_stand_in_the_order_in_which_they_ended_with_the_step(settings, trained):
    """The environments step together, so the lengths of one's episodes say when each ended."""
    out, _ = trained(settings)
    n_envs, expected = settings["n_envs"], []
    lengths = {seed: line["n_steps"] for seed, _, line in recorded(out)}
    for env in range(n_envs):
        steps = 0
        for episode in range(len(lengths)):
            seed = training_seed(3, env, episode)
            if seed in lengths:
                steps += lengths[seed]
                expected.append((steps * n_envs, env, seed))
    found = [(line["ended_at"], seed) for seed, _, line in recorded(out)]
    assert found == [(step, seed) for step, _, seed in sorted(expected)]


@TRAININGS
def test_two_trainings_write_the_same_bytes_and_another_seed_others(settings, trained, tmp_path):
    out, _ = trained(settings)
    run(tmp_path / "again", **settings)
    assert hashes(tmp_path / "again") == hashes(out)
    run(tmp_path / "other", seed=4, **settings)
    others = hashes(tmp_path / "other")
    assert all(others[name] != digest for name, digest in hashes(out).items() if "json" not in name)


@TRAININGS
def test_checkpoints_are_saved_evenly_and_the_last_is_the_result(settings, trained):
    out, result = trained(settings)
    n, total = settings["n_checkpoints"], settings["total_timesteps"]
    assert list(result.checkpoints) == checkpoint_steps(out)
    assert len(result.checkpoints) == n
    a_round = 32 * 3 if settings is PPO else 10
    for k, step in enumerate(result.checkpoints, 1):
        assert 0 <= step - k * total / n < a_round
    files = {"policy.zip"} | ({"normalize.npz"} if settings is PPO else set())
    for step in result.checkpoints:
        assert {p.name for p in checkpoint_folder(out, step).iterdir()} == files
    for name in files:
        last = checkpoint_folder(out, result.checkpoints[-1]) / name
        assert last.read_bytes() == (out / name).read_bytes()
    policies = [checkpoint_folder(out, s) / "policy.zip" for s in result.checkpoints]
    assert len({path.read_bytes() for path in policies}) == n


def test_a_checkpoint_is_the_policy_that_a_shorter_training_ends_with(trained, tmp_path):
    """So it has learned from all steps up to its own, and from no other."""
    out, result = trained(PPO)
    step = result.checkpoints[1]
    shorter = run(tmp_path / "shorter", **{**PPO, "total_timesteps": step, "n_checkpoints": 1})
    assert shorter.checkpoints == (step,)

    from minari_pipe.policies.checkpoint import load_weights

    a = load_weights(checkpoint_folder(out, step) / "policy.zip")
    b = load_weights(tmp_path / "shorter" / "policy.zip")
    assert a.keys() == b.keys()
    assert all(bool((a[key] == b[key]).all()) for key in a)
    ended = [e for e in recorded(out) if e[2]["ended_at"] <= step]
    assert [(e[0], e[2]) for e in ended] == [
        (e[0], e[2]) for e in recorded(tmp_path / "shorter") if e[2]["ended_at"] <= step
    ]


def test_checkpoints_are_also_saved_after_shares_of_the_steps(tmp_path):
    """After the first whole round, since a checkpoint has learned from all steps before it."""
    few = {**PPO, "total_timesteps": 480, "n_checkpoints": 2}
    found = run(tmp_path / "both", **few, checkpoints_at=[0.1, 0.61])
    assert found.checkpoints == (96, 288, 384, 480)
    assert checkpoint_steps(tmp_path / "both") == [*found.checkpoints]
    alone = run(tmp_path / "alone", **{**few, "n_checkpoints": 0}, checkpoints_at=[0.61])
    assert alone.checkpoints == (384, 480)


def test_an_algorithm_with_fewer_rounds_than_checkpoints_saves_one_for_each(tmp_path):
    few = run(tmp_path, **{**PPO, "total_timesteps": 200, "n_checkpoints": 50})
    assert few.checkpoints == (96, 192, 288)


def test_a_training_without_checkpoints_or_recording_writes_what_it_always_did(tmp_path):
    train(
        lambda: make_environment("CartPole-v1", {}, []),
        algorithm="ppo",
        total_timesteps=32,
        hyperparameters={"n_steps": 16, "batch_size": 16, "n_epochs": 1},
        seed=0,
        out_dir=tmp_path,
    )
    assert [p.name for p in tmp_path.iterdir()] == ["policy.zip"]
    with pytest.raises(ConfigError, match=r"train\.n_checkpoints is -1"):
        train(
            lambda: make_environment("CartPole-v1", {}, []),
            algorithm="ppo",
            total_timesteps=32,
            n_checkpoints=-1,
            seed=0,
            out_dir=tmp_path,
        )


def test_nothing_is_left_in_the_minari_root(tmp_path, monkeypatch):
    """Where the rows of a long episode would lie until it ends."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))

    def broken(envs: list[gym.Env], make: Any) -> None:
        env = make(envs)
        env.reset()
        env.step(np.array([0]))
        raise RuntimeError("broke")

    with (
        recorded_training(tmp_path / "episodes", seed=0) as vector_env,
        pytest.raises(RuntimeError, match="broke"),
    ):
        broken([make_environment("CartPole-v1", {}, [])], vector_env)
    assert not (tmp_path / "root").exists()
    assert not (tmp_path / "episodes" / "open").exists()
    assert os.environ["MINARI_DATASETS_PATH"] == str(tmp_path / "root")


class Counting(gym.Env):
    """Counts its steps; ends by itself after ``length``, or is cut after ``limit``."""

    observation_space = spaces.Dict(t=spaces.Box(0, 99, (2,), np.float32), n=spaces.Discrete(99))
    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, length: int, limit: int) -> None:
        self.length, self.limit = length, limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> Any:
        assert action.dtype == np.float64
        self.t += 1
        return self._seen(), 0.1 * self.t, self.t >= self.length, self.t >= self.limit, {}

    def _seen(self) -> dict[str, Any]:
        return {"t": np.array([self.t, self.length], np.float32), "n": self.t}


class Telling(Counting):
    """Says where it is at every third step, and of the end that it is one."""

    def step(self, action: np.ndarray) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"third": self.t} if self.t % 3 == 0 else {}
        if terminated:
            info["success"] = True
        return observation, reward, terminated, truncated, info


gym.register("Telling-v0", entry_point=f"{__name__}:Telling", max_episode_steps=50)


@pytest.mark.parametrize("record_infos", [True, False])
def test_infos_are_recorded_if_that_is_asked_for(tmp_path, record_infos):
    with recorded_training(tmp_path / "episodes", seed=3, record_infos=record_infos) as vector_env:
        train(
            lambda: gym.make("Telling-v0", length=7, limit=99),
            algorithm="ppo",
            policy_class="MultiInputPolicy",
            total_timesteps=32,
            hyperparameters={"n_steps": 16, "batch_size": 16, "n_epochs": 1},
            seed=3,
            vector_env=vector_env,
            out_dir=tmp_path,
        )
    episodes = list(TrainingEpisodes(tmp_path / "episodes", 28, {}).episodes())
    assert len(episodes) == 4
    for episode in episodes:
        if not record_infos:
            assert (episode.infos, episode.metadata) == ({}, {})
            continue
        assert episode.infos["third"].tolist() == [0, 0, 0, 3, 0, 0, 6, 0]
        assert episode.infos["success"].tolist() == [False] * 7 + [True]
        filled = {"third": [[0, 3], [4, 6], [7, 8]], "success": [[0, 7]]}
        assert episode.metadata == {"infos_filled": filled}


@pytest.mark.parametrize("name", ["../other.hdf5", "/mine.hdf5", ".."])
def test_an_index_leads_to_no_file_elsewhere(name, tmp_path):
    index = {"blocks": [name], "episodes": {"ended_at": [1]}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptDatasetError, match="index.json names the file .* which is not a "):
        TrainingEpisodes(tmp_path, 1, {})


def test_sb3_is_told_what_its_own_vector_environment_tells_it():
    """Also of episodes that end in the same step by themselves and by the time limit."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    kinds = [(3, 9), (9, 4), (5, 5), (1, 1)]
    sync = SyncVectorEnv(
        [lambda k=k: Counting(*k) for k in kinds], autoreset_mode=AutoresetMode.DISABLED
    )
    ours = seeded_vec_env(sync, seed=0)
    theirs = DummyVecEnv([lambda k=k: Counting(*k) for k in kinds])
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space

    def assert_same(a: dict, b: dict) -> None:
        assert a.keys() == b.keys()
        for key in a:
            assert np.asarray(a[key]).dtype == np.asarray(b[key]).dtype
            np.testing.assert_array_equal(a[key], b[key])

    assert ours.get_attr("length") == theirs.get_attr("length") == [3, 9, 5, 1]
    assert ours.get_attr("limit", [1]) == [4]
    assert not ours.has_attr("action_masks")
    assert_same(ours.reset(), theirs.reset())
    assert ours.env_method("_seen", indices=0)[0]["n"] == 0
    for _ in range(24):
        actions = np.zeros((4, 1), np.float32)
        a, b = ours.step(actions), theirs.step(actions.astype(np.float64))
        assert_same(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
        assert a[1].dtype == b[1].dtype
        np.testing.assert_array_equal(a[2], b[2])
        for info, expected in zip(a[3], b[3], strict=True):
            assert info["TimeLimit.truncated"] == expected["TimeLimit.truncated"]
            assert ("terminal_observation" in info) == ("terminal_observation" in expected)
            if "terminal_observation" in info:
                assert_same(info["terminal_observation"], expected["terminal_observation"])
