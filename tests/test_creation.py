"""Datasets are created of buffers and of other datasets without losing anything."""

from __future__ import annotations

import warnings
from dataclasses import replace

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.creation import combine_datasets, create_dataset_from_buffers, split_dataset
from minari_pipe.errors import (
    DatasetExistsError,
    InvalidDatasetIdError,
    InvalidEpisodeError,
    InvalidMetadataError,
)
from minari_pipe.library import get_dataset_path, list_local_datasets, load_dataset
from minari_pipe.storage import MinariStorage
from tests.storage_contract import ACTION, OBSERVATION, assert_stored, make

TOLD = {
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
        return create_dataset_from_buffers(
            dataset_id, make() if buffers is None else buffers, **{**TOLD, **SPACES, **kwargs}
        )


def test_buffers_become_a_dataset() -> None:
    dataset = create(requirements=["numpy>=1"])
    assert_stored(dataset.storage, make())
    metadata = dataset.storage.metadata
    assert {key: metadata[key] for key in TOLD} == {**TOLD, "author_email": {"a@example.org"}}
    assert metadata["requirements"] == ["numpy>=1"]
    assert metadata["minari_version"] == "0.5.4"
    assert "ref_min_score" not in metadata
    assert (dataset.env_spec, dataset.id) == (None, "aa/b-v0")
    assert minari.load_dataset("aa/b-v0").total_steps == dataset.total_steps


def test_a_dataset_may_begin_without_episodes() -> None:
    dataset = create(buffers=[])
    assert dataset.total_episodes == 0
    dataset.update_dataset_from_buffer(make())
    assert_stored(load_dataset("aa/b-v0").storage, make())


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
        ({"action_space": None}, InvalidMetadataError, "Both observation space and action space"),
        ({"env": 5}, TypeError, "Unsupported env type int"),
        ({"eval_env": 5}, InvalidMetadataError, "`eval_env` argument must be of types"),
        ({"data_format": "parchment"}, ValueError, "No storage implemented for parchment"),
        ({"ref_max_score": 1.0, "expert_policy": id}, ValueError, "Can't pass a value for `expert"),
        ({"expert_policy": id}, InvalidMetadataError, "needs an environment to be measured in"),
        ({"author": 5}, Exception, "5|int"),
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


# --- split and combine


def test_split_is_real_minari_s() -> None:
    dataset = create(buffers=make(0, 7))
    theirs = minari.split_dataset(minari.load_dataset("aa/b-v0"), [2, 4], seed=3)
    ours = split_dataset(dataset, [2, 4], seed=3)
    assert [view.episode_indices.tolist() for view in ours] == [
        view.episode_indices.tolist() for view in theirs
    ]
    assert [len(view) for view in ours] == [2, 4]
    with pytest.raises(ValueError, match=r"the sum of sizes exceeds the number .* \(7\)"):
        split_dataset(dataset, [4, 4])


def test_combining_views_takes_their_episodes_and_all_that_belongs_to_them() -> None:
    buffers = [make(0, 4), make(1, 3)]
    first = create("aa/x-v0", buffers[0], ref_min_score=1.0, author={"A", "B"})
    second = create("aa/y-v0", buffers[1], ref_min_score=1.0, author={"C"}, description="other")
    view = split_dataset(first, [2], seed=0)[0]
    combined = combine_datasets([view, second], "bb/cc/z-v0")
    chosen = [buffers[0][index] for index in view.episode_indices]
    assert_stored(combined.storage, [*chosen, *buffers[1]])
    metadata = combined.storage.metadata
    assert combined.combined_datasets == ["aa/x-v0", "aa/y-v0"]
    assert metadata["author"] == {"A", "B", "C"}
    assert metadata["ref_min_score"] == 1.0
    assert "description" not in metadata
    assert metadata["jpeg_encoding"] is False
    assert minari.load_dataset("bb/cc/z-v0").total_episodes == 5


def test_different_spaces_do_not_combine() -> None:
    first = create("aa/x-v0")
    other = create("aa/y-v0", [], action_space=spaces.Discrete(7))
    with pytest.raises(InvalidMetadataError, match="different values for `action_space`"):
        combine_datasets([first, other], "aa/z-v0")
    with pytest.raises(InvalidMetadataError, match="at least one dataset"):
        combine_datasets([], "aa/z-v0")
    assert sorted(list_local_datasets()) == ["aa/x-v0", "aa/y-v0"]


@pytest.mark.parametrize(
    ("horizons", "expected"), [((10, 30, 20), 30), ((10, None), None), ((None, None), None)]
)
def test_the_horizon_of_a_combination_is_the_largest(horizons, expected) -> None:
    datasets = []
    for index, horizon in enumerate(horizons):
        spec = gym.spec("CartPole-v1")
        spec = gym.envs.registration.EnvSpec.from_json(spec.to_json())
        spec.max_episode_steps = horizon
        dataset_id = f"aa/x-v{index}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`eval_env` is set to None")
            datasets.append(
                create(dataset_id, [], env=spec, observation_space=None, action_space=None)
            )
    combined = combine_datasets(datasets, "aa/z-v0")
    assert combined.env_spec.max_episode_steps == expected
    assert [dataset.env_spec.max_episode_steps for dataset in datasets] == list(horizons)


def test_different_environments_do_not_combine() -> None:
    own = {"buffers": [], "observation_space": None, "action_space": None}
    pole = create("aa/x-v0", env="CartPole-v1", **own)
    spec = gym.envs.registration.EnvSpec.from_json(gym.spec("CartPole-v1").to_json())
    spec.kwargs = {"sutton_barto_reward": True}
    old = create("aa/y-v0", env=spec, **own)
    none = create("aa/z-v0", [], observation_space=pole.observation_space, action_space=ACTION)
    with pytest.raises(ValueError, match="different values for `env_spec` attribute"):
        combine_datasets([pole, old], "aa/c-v0")
    with pytest.raises(InvalidMetadataError, match="different values for `action_space`"):
        combine_datasets([pole, none], "aa/c-v0")
    same = {"observation_space": pole.observation_space, "action_space": pole.action_space}
    none = create("aa/n-v0", [], **same)
    with pytest.raises(ValueError, match="Cannot combine datasets having env_spec with those"):
        combine_datasets([pole, none], "aa/c-v0")


def test_created_bytes_depend_on_the_values_only() -> None:
    for name in ("x", "y"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            create(f"aa/{name}-v0")
    x, y = (get_dataset_path(f"aa/{name}-v0") / "data" for name in "xy")
    assert (x / "main_data.hdf5").read_bytes() == (y / "main_data.hdf5").read_bytes()
    text = (x / "metadata.json").read_text().replace("aa/x-v0", "aa/y-v0")
    assert text == (y / "metadata.json").read_text()
    assert '"author": ["A", "B"]' in text


def test_infos_may_be_nested_and_of_any_kind() -> None:
    steps = 2
    infos = {"x": [1, 2, 3], "nest": {"y": np.zeros((3, 2)), "s": ["a", "b", "c"]}}
    buffer = replace(
        make(0, 1)[0],
        observations={"a": np.zeros((3, 2), np.float32), "t": (["x"] * 3,)},
        actions=[0] * steps,
        rewards=[0.0] * steps,
        terminations=[False] * steps,
        truncations=[False, True],
        infos=infos,
    )
    found = create(buffers=[buffer])[0].infos
    assert found["x"].tolist() == [1, 2, 3]
    assert found["nest"]["s"].tolist() == ["a", "b", "c"]
    assert found["nest"]["y"].shape == (3, 2)
    assert isinstance(MinariStorage.read(get_dataset_path("aa/b-v0") / "data"), MinariStorage)
