"""The tables that describe a dataset and its environment say what Minari's say, and run nothing."""

from __future__ import annotations

import json
import warnings

import gymnasium as gym
import minari.utils
import pytest

from minari_pipe.core.spaces import serialize_space
from minari_pipe.datasets.spec_tables import get_dataset_spec_dict, get_env_spec_dict
from minari_pipe.errors import InvalidMetadataError

METADATA = {
    "dataset_id": "aa/b-v0",
    "total_steps": 7,
    "total_episodes": 2,
    "observation_space": serialize_space(gym.spaces.Box(-1, 1, (3,))),
    "action_space": serialize_space(gym.spaces.Dict(a=gym.spaces.Discrete(2))),
    "minari_version": "0.5.4",
    "author": ["A", "B"],
    "author_email": "a@b.c",
    "algorithm_name": "PPO",
    "code_permalink": "https://example.org",
}


def test_a_dataset_is_described_as_in_minari_but_for_the_command_that_fetches_it() -> None:
    ours, theirs = get_dataset_spec_dict(METADATA), minari.utils.get_dataset_spec_dict(METADATA)
    assert list(ours) == list(theirs)
    assert ours.pop("Download") == "`minari-pipe download aa/b-v0`"
    assert theirs.pop("Download") == "`minari download aa/b-v0`"
    assert ours == theirs


def test_spaces_may_be_read_already_or_missing() -> None:
    read = {**METADATA, "observation_space": gym.spaces.Box(-1, 1, (3,))}
    assert get_dataset_spec_dict(read) == get_dataset_spec_dict(METADATA)
    table = get_dataset_spec_dict({"total_steps": 1, "total_episodes": 1})
    assert "Dataset Action Space" not in table
    assert table["Minari Version"] == table["Author"] == "Not provided"


def test_a_version_that_is_not_known_is_not_called_supported() -> None:
    table = get_dataset_spec_dict({**METADATA, "minari_version": "9.0.0"})
    assert table["Minari Version"] == "`9.0.0` (not supported)"


def test_a_space_that_is_none_is_an_error() -> None:
    with pytest.raises(InvalidMetadataError, match="not a space of the Minari standard"):
        get_dataset_spec_dict({**METADATA, "action_space": "Discrete(2)"})


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "StepIndex-v0"])
def test_an_environment_is_described_as_in_minari(env_id: str) -> None:
    spec = gym.spec(env_id)
    assert get_env_spec_dict(spec) == minari.utils.get_env_spec_dict(spec)


def test_a_hostile_environment_is_described_without_being_run(tmp_path) -> None:
    fields = json.loads(gym.spec("CartPole-v1").to_json())
    touched = tmp_path / "touched"
    fields |= {
        "id": "Evil-v0",
        "entry_point": "subprocess:call",
        "kwargs": {"args": f"touch {touched}"},
    }
    with pytest.warns(UserWarning, match="Failed to make env Evil-v0"):
        table = get_env_spec_dict(gym.envs.registration.EnvSpec.from_json(json.dumps(fields)))
    assert not touched.exists()
    assert table["entry_point"] == "`subprocess:call`"
    assert "Action Space" not in table


def test_an_environment_that_fails_to_start_is_described_without_its_spaces() -> None:
    class Broken(gym.Env):
        def __init__(self) -> None:
            raise RuntimeError("no display")

    gym.register("BrokenTable-v0", entry_point=Broken)
    try:
        with pytest.warns(UserWarning, match="Failed to make env BrokenTable-v0"):
            assert "Action Space" not in get_env_spec_dict(gym.spec("BrokenTable-v0"))
    finally:
        gym.registry.pop("BrokenTable-v0")


def test_nothing_is_warned_of_where_all_is_known() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_env_spec_dict(gym.spec("CartPole-v1"))
        get_dataset_spec_dict(METADATA)
