"""Datasets are created of buffers and of other datasets without losing anything."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import gymnasium.envs.mujoco
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeAwareObservation

from minari_pipe.core.env_specs import stored_spec
from minari_pipe.core.environments import recover
from minari_pipe.datasets.create import create_dataset_from_buffers
from minari_pipe.datasets.library import get_dataset_path
from minari_pipe.errors import (
    DatasetExistsError,
    InvalidDatasetIdError,
    InvalidEpisodeError,
    InvalidMetadataError,
    TrustError,
)
from minari_pipe.recording.collector import DataCollector
from minari_pipe.recording.vector_collector import VectorDataCollector
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage.base import MinariStorage
from minari_pipe.testing import ACTION, OBSERVATION, assert_stored, make

DESCRIBED = {
    "algorithm_name": "random",
    "author": {"B", "A"},
    "author_email": "a@example.org",
    "code_permalink": "https://example.org",
    "description": "what it is",
}
SPACES = {"observation_space": OBSERVATION, "action_space": ACTION}


def create(dataset_id="aa/b-v0", buffers=None, **kwargs):
    """Create a dataset without an environment, silently."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`eval_env` is set to None|env_spec is None")
        # the values of these episodes are any that can be stored
        warnings.filterwarnings("ignore", message="Observation is not in observation space")
        return create_dataset_from_buffers(
            dataset_id, make() if buffers is None else buffers, **{**DESCRIBED, **SPACES, **kwargs}
        )


def test_buffers_become_a_dataset() -> None:
    dataset = create(requirements=["numpy>=1"])
    assert_stored(dataset.storage, make())
    metadata = dataset.storage.metadata
    assert {key: metadata[key] for key in DESCRIBED} == {
        **DESCRIBED,
        "author_email": {"a@example.org"},
    }
    assert metadata["requirements"] == ["numpy>=1"]
    assert metadata["minari_version"] == "0.5.4"
    assert "ref_min_score" not in metadata
    assert (dataset.env_spec, dataset.id) == (None, "aa/b-v0")
    assert minari.load_dataset("aa/b-v0").total_steps == dataset.total_steps


def test_a_dataset_may_begin_without_episodes() -> None:
    dataset = create(buffers=[])
    assert dataset.total_episodes == 0
    with pytest.warns(UserWarning, match="Observation is not in observation space"):
        dataset.update_dataset_from_buffer(make())
    assert_stored(load_dataset("aa/b-v0").storage, make())


@pytest.mark.parametrize("fault", ["code", "file"])
def test_a_spec_of_a_stranger_s_dataset_runs_no_code_and_reads_no_file(
    fault, tmp_path, monkeypatch
) -> None:
    """As ``dataset.env_spec`` gives it; the user may make another dataset with it."""
    monkeypatch.chdir(tmp_path)
    kwargs = {"command": "touch ran"}
    spec = EnvSpec("Stranger-v0", entry_point="os:system", kwargs=kwargs)
    if fault == "file":
        (tmp_path / "model.xml").write_text("<mujoco/>")
        spec = gym.spec("Ant-v5")
        spec.kwargs = {"xml_file": str(tmp_path / "model.xml")}
    collector = DataCollector(gym.make("CartPole-v1"))
    vectors = VectorDataCollector(gym.make_vec("CartPole-v1", 1), env_spec=spec)
    for recorder, action in ((collector, 0), (vectors, np.zeros(1, np.int64))):
        recorder.reset(seed=0)
        recorder.step(action)
    told = "would import 'os:system'" if fault == "code" else "which is a file elsewhere"
    scores = {"ref_max_score": 1.0, "num_episodes_average_score": 1}
    scored = {**DESCRIBED, **scores}
    for make_dataset in (
        lambda: create(env=spec, observation_space=None),
        lambda: create(env=spec, **scores),
        lambda: create(env="CartPole-v1", eval_env=spec, **scores),
        lambda: collector.create_dataset("aa/b-v0", eval_env=spec, **scored),
        lambda: vectors.create_dataset("aa/b-v0", **scored),
        lambda: MinariStorage.new(tmp_path / "new", env_spec=spec),
    ):
        with pytest.raises(TrustError, match=told), warnings.catch_warnings(action="ignore"):
            make_dataset()
    assert not (tmp_path / "ran").exists()
    assert not get_dataset_path("aa/b-v0").exists()
    assert create(env=spec).env_spec == spec  # makes no environment
    with warnings.catch_warnings(action="ignore"):
        collector.create_dataset("aa/c-v0", **DESCRIBED)
        vectors.create_dataset("aa/d-v0", **DESCRIBED)


def test_a_spec_that_was_put_on_an_environment_says_nothing_of_who_made_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kwargs = {"command": "touch ran"}
    wrapper = WrapperSpec("W", "os:system", kwargs)
    (tmp_path / "model.xml").write_text("<mujoco/>")
    names_file = {"xml_file": str(tmp_path / "model.xml")}
    scores = {"ref_max_score": 1.0, "num_episodes_average_score": 1}
    for spec in (
        EnvSpec("Stranger-v0", entry_point="os:system", kwargs=kwargs),
        replace(gym.spec("CartPole-v1"), additional_wrappers=(wrapper,)),
        stored_spec(json.dumps(json.loads(gym.spec("Ant-v5").to_json()) | {"kwargs": names_file})),
    ):
        env = gym.make("CartPole-v1").unwrapped
        env.spec = spec
        vectors = gym.make_vec("CartPole-v1", 1, "vector_entry_point")
        vectors.spec = spec
        recorders = (
            VectorDataCollector(SyncVectorEnv([lambda env=env: env])),
            VectorDataCollector(vectors),
        )
        for make_dataset in (
            lambda env=env: create(env=env, **scores),
            lambda env=env: create(eval_env=env, **scores),
            *(
                lambda recorder=recorder: recorder.create_dataset("aa/b-v0", **DESCRIBED, **scores)
                for recorder in recorders
            ),
        ):
            with (
                pytest.raises(TrustError, match="'os:system'|xml_file is .* a file elsewhere"),
                warnings.catch_warnings(action="ignore"),
            ):
                make_dataset()
    assert not (tmp_path / "ran").exists()


def test_an_environment_of_the_user_s_own_needs_no_trust(tmp_path) -> None:
    assets = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
    shutil.copy(assets / "inverted_pendulum.xml", tmp_path)
    env = gym.make("InvertedPendulum-v5", xml_file=str(tmp_path / "inverted_pendulum.xml"))
    scores = {"ref_max_score": 1.0, "num_episodes_average_score": 1}
    dataset = create(buffers=[], env=env, observation_space=None, action_space=None, **scores)
    assert dataset.storage.metadata["ref_min_score"] >= 0
    with pytest.raises(TrustError):
        dataset.recover_environment()
    spec = gym.spec("CartPole-v1").to_json().replace("CartPole-v1", "Other-v0")
    recovered = recover(spec, trusted_modules=["gymnasium"])  # for this call
    own = create("aa/c-v0", buffers=[], env=TimeAwareObservation(recovered), **scores)
    assert own.storage.metadata["ref_min_score"] >= 0


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1"), gym.make("CartPole-v1")])
def test_the_environment_gives_spaces_and_spec(env) -> None:
    dataset = create(buffers=[], env=env, eval_env=env, observation_space=None, action_space=None)
    assert dataset.action_space == spaces.Discrete(2)
    assert dataset.env_spec == gym.spec("CartPole-v1")
    assert dataset.storage.metadata["eval_env_spec"] == gym.spec("CartPole-v1").to_json()


def test_missing_descriptions_warn_as_in_real_minari() -> None:
    with pytest.warns(UserWarning, match="is set to None|env_spec is None") as ours:
        create_dataset_from_buffers("aa/ours-v0", [], **SPACES)
    with pytest.warns(UserWarning, match="is set to None|env_spec is None") as theirs:
        minari.create_dataset_from_buffers("aa/theirs-v0", [], **SPACES)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]
    assert {w.filename for w in ours} == {__file__}


@pytest.mark.parametrize(
    ("scores", "stored"),
    [
        ({"ref_min_score": 1.0}, {"ref_min_score": 1.0}),
        ({"ref_max_score": 5}, {"ref_max_score": 5.0}),
        (
            {"ref_min_score": 1.0, "ref_max_score": 5.0, "num_episodes_average_score": 7},
            {"ref_min_score": 1.0, "ref_max_score": 5.0, "num_episodes_average_score": 7},
        ),
    ],
)
def test_given_reference_scores_are_stored(scores, stored) -> None:
    metadata = create(**scores).storage.metadata
    found = {key: metadata[key] for key in metadata if key.startswith("ref_")}
    assert found == {key: value for key, value in stored.items() if key.startswith("ref_")}
    assert metadata["num_episodes_average_score"] == stored.get("num_episodes_average_score", 100)


def test_missing_reference_scores_are_measured() -> None:
    kwargs = {"env": "CartPole-v1", "eval_env": "CartPole-v1", "buffers": []}
    own = {"observation_space": None, "action_space": None, "num_episodes_average_score": 5}
    always_left = create("aa/b-v0", **kwargs, **own, expert_policy=lambda observation: 0)
    measured = always_left.storage.metadata
    assert 8 <= measured["ref_max_score"] <= 10
    assert measured["ref_min_score"] > measured["ref_max_score"]
    told = create("aa/c-v0", **kwargs, **own, ref_max_score=500.0).storage.metadata
    assert told["ref_min_score"] == measured["ref_min_score"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dataset_id": "../x-v0"}, InvalidDatasetIdError, "Malformed dataset ID"),
        ({"dataset_id": "aa/b"}, InvalidDatasetIdError, "has no version"),
        ({"dataset_id": "i/b-v0"}, InvalidDatasetIdError, "Malformed dataset ID"),
        ({"action_space": None}, InvalidMetadataError, "Both observation space and action space"),
        ({"env": 5}, TypeError, "Unsupported env type int"),
        ({"eval_env": 5}, InvalidMetadataError, "`eval_env` argument must be of types"),
        ({"data_format": "parchment"}, ValueError, "No storage implemented for parchment"),
        ({"ref_max_score": 1.0, "expert_policy": id}, ValueError, "Can't pass a value for `expert"),
        ({"expert_policy": id}, InvalidMetadataError, "`expert_policy` needs an environment"),
        ({"author": 5}, InvalidMetadataError, "'author' must be a list or set of strings, got 5"),
        ({"author_email": [[]]}, InvalidMetadataError, "'author_email' must be a list or set"),
        ({"requirements": "numpy"}, InvalidMetadataError, "'requirements' must be .* got 'numpy'"),
        ({"requirements": 5}, InvalidMetadataError, "'requirements' must be .* got 5"),
        ({"ref_max_score": "9", "ref_min_score": 1.0}, InvalidMetadataError, "finite .* got '9'"),
        ({"ref_min_score": True}, InvalidMetadataError, "must be a finite number, got True"),
        ({"buffers": 5}, InvalidEpisodeError, "must be a list of episodes; got one int"),
        ({"description": 5}, InvalidMetadataError, "'description' must be a string, got 5"),
        (
            {"buffers": [*make(), replace(make()[0], actions=[0])]},
            InvalidEpisodeError,
            "episode 3: actions has 1 steps, rewards has",
        ),
    ],
    ids=str,
)
def test_a_failed_creation_leaves_nothing(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        create(**arguments)
    assert list(get_dataset_path().iterdir()) == []


def test_an_id_is_not_taken_twice() -> None:
    create()
    with pytest.raises(DatasetExistsError, match="already exists and it cannot be overridden"):
        create(buffers=[])
    assert_stored(load_dataset("aa/b-v0").storage, make())
