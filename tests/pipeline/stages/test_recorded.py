"""What is recorded of an environment: keys, texts, infos, and nothing that only the policy sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import minari_pipe
from minari_pipe.checks.base import Subject
from minari_pipe.checks.environment import spec_fault
from minari_pipe.core.spaces import serialize_space
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.recording.recorded_view import CHARSET, RecordedObservation
from tests.support.workspaces import make_workspace, run_ok, validation, write_config
from tests.support.workspaces import minari_pipe as run

ROOMS = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/rooms-v0, description: four rooms}
author: {name: Ada}
env:
  id: MiniGrid-FourRooms-v0
  kwargs: {max_episode_steps: 100}
  wrappers:
    - {_target_: minigrid.wrappers.ViewSizeWrapper, agent_view_size: 5}
    - {_target_: loud.Chatty}
policy: {controller: {_target_: loud.walk}}
card: {film: true}
collect:
  n_episodes: 2
  record_observation: {pixels: {from: image}, mission: {text: 40}}
ref_scores: {n_episodes: 2, ref_max_score: 1.0}
"""

PENDULUM = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/pendulum-v0, description: a pendulum}
author: {name: Ada}
env:
  id: Pendulum-v1
  policy_wrappers:
    - {_target_: gymnasium.wrappers.RescaleAction, min_action: -1.0, max_action: 1.0}
    - {_target_: gymnasium.wrappers.FrameStackObservation, stack_size: 3}
policy: {controller: {_target_: loud.push}}
collect: {n_episodes: 2}
ref_scores: {n_episodes: 2, ref_max_score: 0.0}
"""

MIXED = """\
# @package _global_
defaults: [{/policy: mixture}, _self_]
policy: {parents: {rooms: 0.5, others: 0.5}}
dataset: {id: tests/mixed-v0, description: four rooms and others}
author: {name: Ada}
"""

LOUD = """\
import gymnasium as gym, numpy as np, sys

def walk(observation, env, rng):
    print("a line for every step")
    assert env.unwrapped.agent_view_size == 7 and observation["image"].shape == (5, 5, 3)
    return int(rng.integers(3))

def push(observation):
    speeds = observation.reshape(-1, 3)[:, 2]
    return np.array([-1.0 if speeds[-1] < speeds[0] else 1.0])

class Own(gym.ObservationWrapper):
    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        info["own"] = 1
        return self.observation(observation), info

    def observation(self, observation):
        observation *= 0
        return observation

class Start:
    @staticmethod
    def reset_options(rng):
        return {"x_init": float(rng.uniform(0.1, 0.2))}

    def __call__(self, observation):
        return np.zeros(1)

class Nothing(Start):
    @staticmethod
    def reset_options(rng):
        return 3

class Chatty(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    def __init__(self, env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)

    def observation(self, observation):
        print("a line for every step")
        return observation
"""
TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "loud"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "loud.py").write_text(LOUD)
    return make_workspace(tmp_path, rooms=ROOMS, swing=PENDULUM)


def test_keys_are_renamed_left_out_and_a_mission_becomes_a_text(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(workspace)
    run_ok(workspace, "+dataset=rooms", **TRUSTED)
    dataset = minari_pipe.load_dataset("tests/rooms-v0")
    space = dataset.observation_space
    assert isinstance(space, spaces.Dict) and list(space) == ["mission", "pixels"]
    assert space["pixels"].shape == (5, 5, 3)
    assert isinstance(space["mission"], spaces.Text) and space["mission"].max_length == 40
    assert set(dataset[0].observations["mission"]) == {"reach the goal"}
    checked = validation(workspace, "rooms")
    assert checked["findings"] == []
    assert checked["replay"]["details"][0]["exact"]
    wrapper, _ = json.loads(dataset.storage.metadata["env_spec"])["additional_wrappers"]
    assert wrapper["kwargs"] == {"agent_view_size": 5}
    film = workspace / "pipelines/rooms/card/episode.webp"
    assert film.is_file(), "its environment shows what the dataset holds of it"
    assert dataset.recover_environment(trusted_modules=["loud"]).observation_space[
        "image"
    ].shape == (5, 5, 3)


def test_a_mixture_records_what_its_parents_record(workspace: Path) -> None:
    others = ROOMS.replace("tests/rooms", "tests/others").replace(
        "n_episodes: 2\n", "n_episodes: 3\n"
    )
    write_config(workspace, "others", others)
    write_config(workspace, "mixed", MIXED)
    run_ok(workspace, "+dataset=mixed", **TRUSTED)
    assert {f["level"] for f in validation(workspace, "mixed")["findings"]} <= {"warning"}
    made = minari_pipe.load_dataset("tests/mixed-v0").storage.metadata["minari_pipe"]
    assert made["record_observation"] == {"pixels": {"from": "image"}, "mission": {"text": 40}}
    write_config(workspace, "others", others.replace("text: 40", "text: 41"))
    done = run(workspace, "+dataset=mixed", **TRUSTED)
    assert "a mixture needs parents with the same observation_space" in done.stderr


def test_only_the_policy_sees_and_acts_through_its_wrappers(workspace: Path) -> None:
    run_ok(workspace, "+dataset=swing", **TRUSTED)
    dataset = minari_pipe.load_dataset("tests/pendulum-v0")
    assert dataset.observation_space.shape == (3,)
    assert set(np.abs(dataset[0].actions).ravel()) == {2.0}, "as the pendulum receives them"
    assert json.loads(dataset.storage.metadata["env_spec"])["additional_wrappers"] == []
    (replay,) = validation(workspace, "swing")["replay"]["details"]
    assert replay["exact"] and replay["replayed"] == 2


def test_what_wrappers_of_the_policy_change_in_place_is_not_recorded(workspace: Path) -> None:
    words = ("env.policy_wrappers=[{_target_: loud.Own}]", "collect.record_infos=true")
    run_ok(workspace, "+dataset=swing", "policy.controller._target_=loud.Start", *words, **TRUSTED)
    assert validation(workspace, "swing")["replay"]["details"][0]["exact"]
    (episode, _) = minari_pipe.load_dataset("tests/pendulum-v0")
    assert "own" not in (episode.infos or {}) and np.any(episode.observations)


def test_options_of_resets_come_from_the_config_and_from_the_controller(workspace: Path) -> None:
    words = ("policy.controller._target_=loud.Start", "env.policy_wrappers=[]")
    run_ok(workspace, "+dataset=swing", *words, "+env.reset_options={y_init: 0.0}", **TRUSTED)
    dataset = minari_pipe.load_dataset("tests/pendulum-v0")
    options = [one["options"] for one in dataset.storage.get_episode_metadata([0, 1])]
    assert [one["y_init"] for one in options] == [0.0, 0.0]
    assert len({one["x_init"] for one in options}) == 2
    assert all(episode.observations[0][2] == 0.0 for episode in dataset)
    assert validation(workspace, "swing")["replay"]["details"][0]["exact"]
    words = ("policy.controller._target_=loud.Nothing", "env.policy_wrappers=[]")
    done = run(workspace, "+dataset=swing", *words, **TRUSTED)
    assert "reset_options() returned 3; expected the options of env.reset, a dict" in done.stderr


def test_what_environments_and_controllers_print_is_not_shown(workspace: Path) -> None:
    done = run(workspace, "+dataset=rooms", **TRUSTED)
    assert done.returncode == 0, done.stderr
    assert "a line for every step" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("collect.record_observation=null",),
            "A text in a Dict observation can be recorded as Text: collect.record_observation=",
        ),
        (
            ("collect.record_observation={mission: {text: 5}}",),
            "observation 'mission' has 14 characters, more than the 5 of its space: 'reach the "
            "goal'; raise collect.record_observation.mission.text",
        ),
        (
            ("+collect.record_observation.imag={}",),
            "the observation has no key 'imag'. Did you mean 'image'?",
        ),
        (
            ("collect.record_infos=[sucess]",),
            "collect.record_infos names 'sucess', which no info of episode 0 has",
        ),
        (("collect.record_infos=1",), "expected true, false or a list of names"),
        (
            ("env.wrappers=[{_target_: minigrid.wrappers.ReseedWrapper}]",),
            "'minigrid.wrappers.ReseedWrapper' is neither gymnasium.wrappers.NAME nor trusted",
        ),
        (
            ("env.policy_wrappers=[{_target_: gymnasium.wrappers.FilterObservation, keys: [a]}]",),
            "env.policy_wrappers: gymnasium.wrappers.FilterObservation with",
        ),
    ],
)
def test_a_mistake_is_one_line(workspace: Path, words: tuple[str, ...], error: str) -> None:
    done = run(workspace, "+dataset=rooms", *words, **TRUSTED)
    assert done.returncode == 1 and error in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr


def test_metadata_that_name_other_keys_than_the_dataset_has_are_refused(tmp_path: Path) -> None:
    space = spaces.Dict(a=spaces.Discrete(2))
    made = {"record_observation": {f"k{n}": {"from": "a"} for n in range(100_000)}}
    spec = gym.spec("CartPole-v1").to_json()
    subject = Subject(
        None, {"observation_space": serialize_space(space), "minari_pipe": made}, tmp_path
    )
    assert "names other keys than observation_space, ['a']" in str(spec_fault(subject, spec))


def test_wrappers_of_the_policy_that_skip_frames_are_refused(workspace: Path) -> None:
    words = "env.policy_wrappers=[{_target_: gymnasium.wrappers.MaxAndSkipObservation, skip: 2}]"
    done = run(workspace, "+dataset=swing", words, **TRUSTED)
    assert done.returncode == 1
    assert "env.policy_wrappers took 2 steps of the recorded environment for one action" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([], "expected the keys to record"),
        ({"a": 3}, r"where.a is 3; expected {} or {from: KEY, text: LENGTH}"),
        ({"a": {"form": "b"}}, "where.a has no key 'form'. Did you mean 'from'?"),
        ({"a": {"from": 1}}, "where.a.from is 1; expected a key of observations"),
        ({"a": {"text": 0}}, "where.a.text is 0; expected the largest number of characters"),
        ({"a": {"text": True}}, "where.a.text is True"),
    ],
)
def test_a_wrong_description_is_refused(values: Any, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RecordedObservation.of(values, "where")
    assert error in str(raised.value)


def test_only_keys_of_dict_observations_can_be_chosen() -> None:
    recorded = RecordedObservation.of({"a": {}}, "where")
    with pytest.raises(ConfigError, match="chooses keys of a Dict observation"):
        recorded.space(spaces.Discrete(3), "where")


@pytest.mark.parametrize("text", ["é", "a\nb", "\x00"])
def test_a_text_with_other_characters_than_its_space_has_is_refused(text: str) -> None:
    recorded = RecordedObservation.of({"a": {"text": 9}}, "where")
    assert recorded({"a": CHARSET[:9]}) == {"a": CHARSET[:9]}
    with pytest.raises(InvalidEpisodeError, match="printable ASCII"):
        recorded({"a": text})
