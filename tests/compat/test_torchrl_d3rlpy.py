"""TorchRL, d3rlpy and AgileRL read what is written here, under the alias and under real Minari."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import minari_pipe
from tests.conftest import CHECKOUT, home_variables

CURRENT, NEXT = slice(None, -1), slice(1, None)
LENGTHS = [3, 1, 5, 2, 4, 1, 1, 2, 3, 1, 6]  # eleven: episode_10 comes before episode_2 by name


def plain_buffer(number: int, length: int) -> minari_pipe.EpisodeBuffer:
    """Pendulum's spaces; each value says where it stands."""
    start = 100 * number
    return minari_pipe.EpisodeBuffer(
        seed=number,
        observations=np.float32(
            [[start + step, step, number] for step in range(length + 1)],
        ),
        actions=np.float32([[start + step] for step in range(length)]),
        rewards=np.arange(length) + start + 0.5,
        terminations=np.arange(length) == length - 1,
        truncations=np.zeros(length, bool),
    )


NESTED = gym.spaces.Dict(
    position=gym.spaces.Box(-9999, 9999, (2,), np.float64),
    mode=gym.spaces.Discrete(9999),
    camera=gym.spaces.Box(0, 255, (32, 33, 3), np.uint8),
)


def nested_buffer(number: int, length: int) -> minari_pipe.EpisodeBuffer:
    """Dict observations with pictures, infos, the simulator's state, an end by truncation."""
    steps = 100 * number + np.arange(length + 1)
    return minari_pipe.EpisodeBuffer(
        observations={
            "position": np.stack([steps, -steps], 1).astype(float),
            "mode": steps,
            "camera": np.random.default_rng(number).integers(
                256, size=(length + 1, 32, 33, 3), dtype=np.uint8
            ),
        },
        actions=steps[:-1] % 7,
        rewards=steps[:-1] / 2,
        terminations=np.zeros(length, bool),
        truncations=np.arange(length) == length - 1,
        infos={"success": steps % 2 == 0, "inner": {"force": steps * 0.25}},
        extras={"state": steps * 10.0},
    )


@dataclass(frozen=True)
class Read:
    """What the neighbours read of the two datasets, and what was written."""

    folder: Path
    plain: list[minari_pipe.EpisodeBuffer]
    nested: list[minari_pipe.EpisodeBuffer]

    def columns(self, name: str) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"{name}.npz") as file:
            return dict(file)

    def facts(self, name: str) -> object:
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Read:
    home = tmp_path_factory.mktemp("neighbours")
    box = gym.spaces.Box(-9999, 9999, (3,), np.float32)
    plain = [plain_buffer(*pair) for pair in enumerate(LENGTHS)]
    nested = [nested_buffer(*pair) for pair in enumerate(LENGTHS)]
    with pytest.MonkeyPatch.context() as patch:
        for variable, place in home_variables(home).items():
            patch.setenv(variable, place)
        about = {"code_permalink": "x", "author": "A", "author_email": "a@b.c"}
        about |= {"algorithm_name": "none", "description": "d", "eval_env": "Pendulum-v1"}
        minari_pipe.create_dataset_from_buffers(
            "neighbours/plain-v0",
            plain,
            env="Pendulum-v1",
            observation_space=box,
            action_space=gym.spaces.Box(-9999, 9999, (1,), np.float32),
            **about,
        )
        minari_pipe.create_dataset_from_buffers(
            "neighbours/nested-v0",
            nested,
            env="Pendulum-v1",
            observation_space=NESTED,
            action_space=gym.spaces.Discrete(7),
            **about,
        )
        out = home / "out"
        out.mkdir()
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    program = [
        sys.executable,
        "-W",
        "ignore",
        str(CHECKOUT / "tests" / "support" / "read_with_neighbours.py"),
    ]
    done = subprocess.run(
        [*program, "neighbours/plain-v0", "neighbours/nested-v0", str(out)],
        capture_output=True,
        text=True,
        env=env,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Read(out, plain, nested)


@pytest.fixture(params=["alias", "real"])
def read(request: pytest.FixtureRequest, results: Read) -> Read:
    return replace(results, folder=results.folder / request.param)


def rows(buffers: list[minari_pipe.EpisodeBuffer], select) -> np.ndarray:
    return np.concatenate([select(buffer) for buffer in buffers])


@pytest.mark.parametrize("way", ["local", "download"])
def test_torchrl_reads_every_transition_in_order(read: Read, way: str) -> None:
    found = read.columns(f"plain/torchrl-{way}")
    expected = {
        "observation": rows(read.plain, lambda b: b.observations[:-1]),
        "next/observation": rows(read.plain, lambda b: b.observations[1:]),
        "action": rows(read.plain, lambda b: b.actions),
        "next/reward": rows(read.plain, lambda b: b.rewards)[:, None],
        "next/terminated": rows(read.plain, lambda b: b.terminations)[:, None],
        "next/truncated": rows(read.plain, lambda b: b.truncations)[:, None],
        "next/done": rows(read.plain, lambda b: b.terminations | b.truncations)[:, None],
        "episode": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        assert found[name].dtype == values.dtype, name
    assert read.facts(f"plain/torchrl-{way}") == {
        "dataset_id": "neighbours/plain-v0",
        "total_steps": str(sum(LENGTHS)),
    }


@pytest.mark.parametrize("way", ["local", "download"])
def test_torchrl_reads_dicts_pictures_infos_and_the_state(read: Read, way: str) -> None:
    found = read.columns(f"nested/torchrl-{way}")
    leaves = {
        "observation/position": lambda b: b.observations["position"],
        "observation/mode": lambda b: b.observations["mode"],
        "observation/camera": lambda b: b.observations["camera"],
        "info/success": lambda b: b.infos["success"],
        "info/inner/force": lambda b: b.infos["inner"]["force"],
        "state": lambda b: b.extras["state"],
    }
    for name, leaf in leaves.items():
        values = [leaf(buffer) for buffer in read.nested]
        now, then = (np.concatenate([v[part] for v in values]) for part in (CURRENT, NEXT))
        np.testing.assert_array_equal(found[name], now, err_msg=name)
        np.testing.assert_array_equal(found[f"next/{name}"], then, err_msg=name)
    np.testing.assert_array_equal(found["action"], rows(read.nested, lambda b: b.actions))
    np.testing.assert_array_equal(
        found["next/truncated"][:, 0], rows(read.nested, lambda b: b.truncations)
    )


def test_d3rlpy_reads_every_episode(read: Read) -> None:
    found = read.columns("plain/d3rlpy")
    assert len(found) == 4 * len(LENGTHS)
    # d3rlpy joins the T + 1 observations of all episodes and then cuts off T for each, so that
    # from the second episode on they lie earlier than they should: a fault of d3rlpy's.
    joined = rows(read.plain, lambda b: b.observations)
    starts = np.cumsum([0, *LENGTHS])
    for number, buffer in enumerate(read.plain):
        start, end = starts[number], starts[number + 1]
        np.testing.assert_array_equal(found[f"{number}/observations"], joined[start:end])
        np.testing.assert_array_equal(found[f"{number}/actions"], buffer.actions)
        np.testing.assert_array_equal(found[f"{number}/rewards"][:, 0], buffer.rewards)
        assert found[f"{number}/terminated"]
    np.testing.assert_array_equal(found["0/observations"], read.plain[0].observations[:-1])
    assert read.facts("plain/d3rlpy") == "Pendulum-v1"


def test_agilerl_s_flat_columns_hold_every_transition(read: Read) -> None:
    found = read.columns("plain/agilerl")
    expected = {
        "observations": rows(read.plain, lambda b: b.observations[:-1]),
        "next_observations": rows(read.plain, lambda b: b.observations[1:]),
        "actions": rows(read.plain, lambda b: b.actions),
        "rewards": rows(read.plain, lambda b: b.rewards),
        "terminals": rows(read.plain, lambda b: b.terminations),
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        assert found[name].dtype == values.dtype, name
    lengths = {f"episode_{number}": length for number, length in enumerate(LENGTHS)}
    assert read.facts("plain/agilerl") == lengths
