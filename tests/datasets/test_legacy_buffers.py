"""Episodes in the forms of Minari's older API become the datasets that buffers become."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.datasets.create import create_dataset_from_buffers
from minari_pipe.datasets.legacy_buffers import as_buffer
from minari_pipe.datasets.library import get_dataset_path
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.testing import ACTION, OBSERVATION, assert_stored, make

SPACES = {"observation_space": OBSERVATION, "action_space": ACTION}


def create(buffer: Any, dataset_id: str = "aa/b-v0", **kwargs: Any):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is set to None|env_spec is None")
        # the values of these episodes are any that can be stored
        warnings.filterwarnings("ignore", message="Observation is not in observation space")
        return create_dataset_from_buffers(dataset_id, buffer, **{**SPACES, **kwargs})


def plain(buffer: EpisodeBuffer) -> dict[str, Any]:
    """What a user of the older API wrote by hand."""
    episode = {field.name: getattr(buffer, field.name) for field in fields(buffer)}
    del episode["metadata"], episode["extras"]
    return {name: value for name, value in episode.items() if value is not None} | buffer.extras


def columns(buffer: EpisodeBuffer, change: Callable[[Any], Any]) -> EpisodeBuffer:
    names = ("rewards", "terminations", "truncations")
    return replace(buffer, **{name: change(getattr(buffer, name)) for name in names})


def test_dictionaries_are_stored_as_buffers_are() -> None:
    buffers = [replace(buffer, metadata={}) for buffer in make()]
    dataset = create([plain(buffer) for buffer in buffers])
    assert_stored(dataset.storage, buffers)
    assert minari.load_dataset("aa/b-v0").total_steps == dataset.total_steps


@pytest.mark.parametrize("as_dict", [True, False], ids=["dict", "EpisodeBuffer"])
@pytest.mark.parametrize(
    "change",
    [
        lambda column: np.asarray(column)[:, None],
        lambda column: [np.array([value]) for value in column],
        lambda column: [[value] for value in column],
    ],
    ids=["array", "list of arrays", "nested list"],
)
def test_columns_may_be_two_dimensional(change, as_dict: bool) -> None:
    """The older documents say ``shape = (total_episode_steps, 1)``."""
    buffers = [replace(buffer, metadata={}) for buffer in make()]
    changed: list[Any] = [columns(buffer, change) for buffer in buffers]
    assert_stored(create([plain(b) for b in changed] if as_dict else changed).storage, buffers)


def test_an_episode_of_one_step_may_have_two_dimensional_columns() -> None:
    episode = {
        "observations": np.zeros((2, 3), np.float32),
        "actions": np.array([1]),
        "rewards": np.array([[2.0]]),
        "terminations": np.array([[False]]),
        "truncations": np.array([[True]]),
    }
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    stored = create([episode], observation_space=space)[0]
    assert stored.rewards.tolist() == [2.0] and stored.truncations.tolist() == [True]


def test_other_keys_are_groups_of_extra_step_data() -> None:
    episode = plain(make()[0])
    steps = len(episode["rewards"])
    state = {"qpos": np.arange(2.0 * (steps + 1)).reshape(-1, 2), "deep": {"t": np.arange(steps)}}
    dataset = create([episode | {"state": state, "seed": 7}])
    assert dataset[0].seed == 7
    np.testing.assert_array_equal(dataset[0].extras["state"]["qpos"], state["qpos"])
    np.testing.assert_array_equal(dataset[0].extras["state"]["deep"]["t"], np.arange(steps))


def test_appending_takes_dictionaries_too() -> None:
    buffers = [replace(buffer, metadata={}) for buffer in make()]
    dataset = create(buffers[:1])
    with pytest.warns(UserWarning, match="Observation is not in observation space"):
        dataset.update_dataset_from_buffer([plain(buffer) for buffer in buffers[1:]])
    assert_stored(dataset.storage, buffers)


def test_none_is_written_as_text_where_it_was() -> None:
    assert as_buffer(plain(make()[0]) | {"seed": "None", "id": "None"}).seed is None


def test_arguments_come_in_the_order_of_the_first_releases_too() -> None:
    """Minari 0.3: ``create_dataset_from_buffers(dataset_id, env, buffer, ...)``."""
    episode = {
        "observations": np.zeros((3, 4), np.float32),
        "actions": np.array([0, 1]),
        "rewards": np.ones((2, 1)),
        "terminations": np.array([[False], [False]]),
        "truncations": np.array([[False], [True]]),
    }
    env = gym.make("CartPole-v1")
    own = {"observation_space": None, "action_space": None}
    assert create(env, "old-v0", env=[episode], **own).env_spec == env.spec
    assert create([episode], "new-v0", env=env, **own).total_steps == 2
    with warnings.catch_warnings(action="ignore"):
        dataset = create_dataset_from_buffers(
            "texts-v0", env, [episode], "random", "Ada", "ada@example.org", "https://example.org"
        )
    told = dataset.storage.metadata
    assert (told["algorithm_name"], told["author"]) == ("random", {"Ada"})
    assert (told["author_email"], told["code_permalink"]) == (
        {"ada@example.org"},
        "https://example.org",
    )
    assert "eval_env_spec" not in told


def test_an_environment_without_a_spec_gives_its_spaces() -> None:
    class Own(gym.Env):
        observation_space = OBSERVATION
        action_space = ACTION

    dataset = create(make(), env=Own(), observation_space=None, action_space=None)
    assert dataset.env_spec is None
    assert dataset.observation_space == OBSERVATION


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (make()[0], "must be a list of episodes; got one EpisodeBuffer"),
        (plain(make()[0]), "must be a list of episodes; got one dict"),
        ([5], "each an EpisodeBuffer or a dict; got an entry of type int"),
        (["text"], "got an entry of type str"),
        ([{"observations": [0], "rewards": [1]}], "has no actions, terminations, truncations"),
        ([plain(make()[0]) | {"rewards": np.ones((2, 2))}], r"rewards has shape \(2, 2\)"),
        ([plain(make()[0]) | {"rewards": [[1.0], [1.0, 2.0]]}], "episode 0: rewards"),
    ],
)
def test_what_is_no_list_of_episodes_is_named_and_leaves_nothing(buffer, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message):
        create(buffer)
    assert list(get_dataset_path().iterdir()) == []


@pytest.mark.parametrize("version", ["0.5.4", "~=0.4", ">=0.4.3", None])
def test_a_version_that_admits_the_written_one_is_silent(version) -> None:
    metadata = create(make(), minari_version=version).storage.metadata
    assert metadata["minari_version"] == "0.5.4"


@pytest.mark.parametrize("version", ["0.4.3", "~=0.4.0", ">=0.9", "nonsense"])
def test_another_version_is_deprecated_and_has_no_effect(version: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"`minari_version` is '{version}'") as caught:
        dataset = create(make(), minari_version=version)
    assert [w.filename for w in caught] == [__file__]
    assert dataset.minari_version == "0.5.4"
