"""Datasets that the tests of the checks plant faults in, and the planting itself."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from minari_pipe.checks import Options, Report, Subject, run
from minari_pipe.core.environments import make_environment, packages_of
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.policies.base import Policy
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.storage.base import MinariStorage
from tests.conftest import SHARED

DEMONSTRATIONS = SHARED / "demonstrations" / "door-v0_demos.pickle"
DOOR_ADVISORY = "adroit-door-reward-sign"

# A ``data`` folder of another door dataset to plant the faults in, such as the one that the
# pipeline made of all demonstrations: MINARI_PIPE_TEST_DOOR=.../door/human-v0/data
DOOR_VARIABLE = "MINARI_PIPE_TEST_DOOR"


@dataclass(frozen=True)
class Planted:
    """A private copy of a dataset: change it, then check it."""

    data_path: Path
    options: Options = field(default_factory=Options)
    few_steps: dict[str, Any] = field(default_factory=dict)
    """Options of a check whose claim is not about replay, where replay is slow."""

    @property
    def metadata(self) -> dict[str, Any]:
        return json.loads((self.data_path / "metadata.json").read_text())

    def update(self, **changes: Any) -> None:
        """Change keys of the metadata; ``None`` removes one."""
        metadata = {k: v for k, v in (self.metadata | changes).items() if v is not None}
        (self.data_path / "metadata.json").write_text(json.dumps(metadata))

    def file(self) -> h5py.File:
        return h5py.File(self.data_path / "main_data.hdf5", "r+")

    def replace_column(self, episode: int, name: str, values: Any) -> None:
        """Put other values, of whatever shape and dtype, in the place of a column."""
        with self.file() as file:
            group = file[f"episode_{episode}"]
            del group[name]
            group[name] = values

    def column(self, episode: int, name: str) -> np.ndarray:
        with self.file() as file:
            return file[f"episode_{episode}"][name][()]

    def check(self, **options: Any) -> Report:
        # Else each check of a file would start another process.
        options = replace(self.options, **{"is_own": True} | options)
        return run(Subject.open(self.data_path, options=options))


def write_dataset(
    data_path: Path, env: gym.Env, buffers: Iterable[EpisodeBuffer], **metadata: Any
) -> Path:
    """Write episodes and metadata as the pipeline does; return the folder of the data."""
    storage = MinariStorage.new(
        data_path,
        observation_space=env.observation_space,
        action_space=env.action_space,
        env_spec=env.spec,
    )
    storage.update_episodes(buffers)
    storage.update_metadata(
        {
            "minari_version": "0.5.4",
            "author": ["Ada"],
            "author_email": ["ada@example.org"],
            "description": "made by a test",
            "algorithm_name": "random",
            "code_permalink": "https://example.org/code",
            "ref_min_score": 22.0,  # of CartPole
            "ref_max_score": 100.0,
            "num_episodes_average_score": 100,
            **metadata,
        }
    )
    return data_path


def make_cartpole(data_path: Path) -> Path:
    """Four random episodes of CartPole."""
    return _collect(data_path, "CartPole-v1", {}, RandomPolicy(), 4, id="cartpole/random-v0")


def make_door(data_path: Path, demonstrations: Path) -> Path:
    """Two replayed demonstrations, with the simulator's state at each step."""
    from minari_pipe.policies.demonstrations import DemonstrationPolicy

    kwargs = {"max_episode_steps": 300}
    policy = DemonstrationPolicy(demonstrations)
    return _collect(
        data_path,
        "AdroitHandDoor-v1",
        kwargs,
        policy,
        2,
        id="door/human-v0",
        record_state=True,
        ref_min_score=-45.8,
        eval_env_spec=make_environment("AdroitHandDoor-v1").spec.to_json(),
    )


def _collect(
    data_path: Path,
    env_id: str,
    kwargs: dict[str, Any],
    policy: Policy,
    n_episodes: int,
    *,
    id: str,
    record_state: bool = False,
    **metadata: Any,
) -> Path:
    def make_env() -> gym.Env:
        return make_environment(env_id, kwargs)

    buffers = run_episodes(
        make_env, policy, range(n_episodes), seed=1, n_envs=2, record_state=record_state
    )
    pins = [f"{name}=={version}" for name, version in packages_of(env_id).items()]
    env = make_env()
    return write_dataset(data_path, env, buffers, dataset_id=id, requirements=pins, **metadata)


def short_demonstrations(path: Path) -> Path:
    """A file with the first steps of two human demonstrations; a check replays each twice."""
    with DEMONSTRATIONS.open("rb") as file:
        demonstrations = pickle.load(file)[:2]
    for demonstration, n_steps in zip(demonstrations, (55, 60), strict=True):
        for name in ("actions", "rewards", "observations"):
            demonstration[name] = demonstration[name][:n_steps]
    path.write_bytes(pickle.dumps(demonstrations, protocol=3))
    return path


@pytest.fixture(scope="session")
def cartpole_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cartpole(tmp_path_factory.mktemp("cartpole") / "data")


@pytest.fixture(scope="session")
def door_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gymnasium_robotics", reason="needs minari_pipe[robotics]")
    if DOOR_VARIABLE in os.environ:
        return Path(os.environ[DOOR_VARIABLE])
    if not DEMONSTRATIONS.exists():
        pytest.skip(f"the human demonstrations are not at {DEMONSTRATIONS}")
    folder = tmp_path_factory.mktemp("door")
    return make_door(folder / "data", short_demonstrations(folder / "short_demos.pickle"))


@pytest.fixture
def cartpole(cartpole_data: Path, tmp_path: Path) -> Planted:
    return Planted(Path(shutil.copytree(cartpole_data, tmp_path / "data")))


@pytest.fixture
def door(door_data: Path, tmp_path: Path) -> Planted:
    data_path = Path(shutil.copytree(door_data, tmp_path / "data"))
    return Planted(data_path, Options(acknowledge=(DOOR_ADVISORY,)), {"replay_steps": 60})


@pytest.fixture(params=["cartpole", "door"])
def dataset(request: pytest.FixtureRequest) -> Planted:
    return request.getfixturevalue(request.param)
