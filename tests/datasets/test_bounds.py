"""What the spaces do not hold is told of once an episode, or refused; of buffers as of steps."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe import (
    DataCollector,
    EpisodeBuffer,
    MinariDataset,
    combine_datasets,
    create_dataset_from_buffers,
    list_local_datasets,
)
from minari_pipe.errors import ConfigError, InvalidEpisodeError, UnknownFormatError
from minari_pipe.testing import assert_same

BOX = spaces.Box(-1, 1, (2,), np.float32)
ACTION = spaces.Discrete(2)
GOOD = EpisodeBuffer(
    observations=np.zeros((4, 2), np.float32),
    actions=[0, 1, 0],
    rewards=[0.0, 1.0, 2.0],
    terminations=[False, False, True],
    truncations=[False, False, False],
)


def create(buffers: Any, observation_space: gym.Space = BOX, **kwargs: Any) -> MinariDataset:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is set to None|env_spec is None")
        return create_dataset_from_buffers(
            "aa/b-v0", buffers, observation_space=observation_space, action_space=ACTION, **kwargs
        )


def observations(row: int, value: Any, dtype: Any = np.float32) -> np.ndarray:
    rows = np.zeros((4, 2), dtype)
    rows[row] = value
    return rows


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"observations": observations(2, 7)}, "1 of 4 observations.* first is number 2"),
        ({"observations": observations(3, np.nan)}, "1 of 4 observations.* first is number 3"),
        ({"observations": observations(0, 0.1, np.float64)}, "4 of 4 observations"),
        ({"observations": [[0.1, 0.2]] * 4}, "4 of 4 observations"),
        ({"actions": [0, 7, 8]}, "2 of 3 actions.* first is number 1.\nAction: 7"),
        ({"actions": np.zeros(3)}, "3 of 3 actions"),
        ({"rewards": [0, np.nan, np.inf]}, "2 of 3 rewards.* first is number 1.\nReward: nan"),
        ({"terminations": [False] * 3}, "Episode 1 ends neither terminated nor truncated"),
    ],
    ids=["a value", "NaN", "float64", "numbers", "actions", "float", "rewards", "no end"],
)
def test_one_warning_an_episode_of_a_buffer_and_the_data_kept(changed, told) -> None:
    odd = replace(GOOD, **changed)
    with pytest.warns(UserWarning, match=f"(?s){told}") as caught:
        dataset = create([GOOD, odd, GOOD])
    (warning,) = caught
    assert warning.filename == __file__
    for name, values in changed.items():
        assert_same(getattr(dataset[1], name), np.asarray(values))
    with pytest.raises(InvalidEpisodeError, match="(?i)episode 3"):
        dataset.update_dataset_from_buffer([odd], strict=True)
    assert len(dataset) == dataset.storage.total_episodes == 3
    with pytest.warns(UserWarning, match=r"(?i)episode 3\b") as caught:
        dataset.update_dataset_from_buffer([odd])
    assert (len(caught), caught[0].filename) == (1, __file__)
    assert len(dataset) == 4


def test_strict_buffers_leave_nothing_behind() -> None:
    with pytest.raises(InvalidEpisodeError, match="episode 1: Action is not in action space"):
        create([GOOD, replace(GOOD, actions=[0, 7, 8])], strict=True)
    assert list_local_datasets() == {}
    assert len(create([GOOD], strict=True)) == 1


def test_all_that_is_outside_of_one_episode_is_in_one_warning() -> None:
    odd = replace(GOOD, observations=observations(2, 7), actions=[0, 7, 8], rewards=[np.nan] * 3)
    with pytest.warns(UserWarning, match="Observation is not") as caught:
        create([odd])
    (warning,) = caught
    assert "2 of 3 actions" in str(warning.message)
    assert "3 of 3 rewards" in str(warning.message)


def test_nested_observations_are_judged_by_all_their_parts() -> None:
    space = spaces.Dict(a=BOX, t=spaces.Tuple([spaces.Text(3), ACTION]))
    rows = {"a": observations(1, 7), "t": (["x", "y", "z", "too long"], np.array([0, 1, 2, 0]))}
    with pytest.warns(UserWarning, match=r"3 of 4 observations.* first is number 1\.") as caught:
        create([replace(GOOD, observations=rows)], space)
    assert "'t': ('y', np.int64(1))" in str(caught[0].message)


def test_a_continuation_is_judged_under_the_number_of_its_episode() -> None:
    dataset = create([GOOD, GOOD])
    rest = replace(GOOD, id=0, observations=np.full((3, 2), 7, np.float32))
    with pytest.warns(UserWarning, match="Episode 0: 3 of 3 observations"):
        dataset.update_dataset_from_buffer([rest])
    assert [len(episode) for episode in dataset] == [6, 3]


def test_images_that_stay_jpeg_are_inside() -> None:
    pytest.importorskip("PIL")
    image = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    buffer = replace(GOOD, observations=np.full((4, 32, 32, 3), 100, np.uint8))
    dataset = create([buffer], image, jpeg_encoding=True)
    dataset.update_dataset_from_buffer(list(dataset.storage.get_buffers()), strict=True)
    assert_same(dataset[1].observations, dataset[0].observations)


class Pays(gym.Env):
    """Pays one reward at every step."""

    observation_space = action_space = ACTION

    def __init__(self, reward: float) -> None:
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, self.reward, False, False, {}


@pytest.mark.parametrize("reward", [np.nan, np.float32("inf"), np.array([-np.inf])], ids=str)
def test_rewards_that_are_not_finite_are_told_of_by_a_collector(reward) -> None:
    collector = DataCollector(Pays(reward))
    collector.reset()
    collector.step(0)
    collector.step(0)
    with pytest.warns(UserWarning, match="2 of 2 rewards") as caught:
        collector.reset()
    assert len(caught) == 1
    collector.close()
    strict = DataCollector(Pays(reward), strict=True)
    strict.reset()
    with pytest.raises(InvalidEpisodeError, match=r"^Reward is not in reward space"):
        strict.step(0)
    strict.close()


def test_what_the_spaces_of_another_dataset_do_not_hold_is_told_of_when_it_is_added() -> None:
    observations = GOOD.observations[:, 0].astype(np.int64)
    narrow = create([replace(GOOD, observations=observations)], spaces.Discrete(1))
    collector = DataCollector(Pays(1.0), observation_space=spaces.Discrete(9), strict=True)
    collector.reset()
    collector.step(0)
    collector.add_to_dataset(narrow)  # whose space holds it as well
    collector.close()
    collector = DataCollector(Pays(1.0), action_space=spaces.Discrete(9))
    collector.reset()
    collector.step(7)
    with pytest.warns(UserWarning, match="Episode 2: 1 of 1 actions") as caught:
        collector.add_to_dataset(narrow)
    assert (len(caught), caught[0].filename) == (1, __file__)
    assert narrow[2].actions.tolist() == [7]
    collector.close()


@pytest.mark.parametrize("number", ["x", "0", 0.5, -1, 2])
def test_an_id_of_a_buffer_is_a_number_without_a_gap(number) -> None:
    with pytest.raises(InvalidEpisodeError, match=f"Invalid episode id.* Got {number!r}"):
        create([GOOD, replace(GOOD, id=number)][1:] if number == 2 else [replace(GOOD, id=number)])


def test_a_continuation_with_the_row_of_a_reset_is_told_to_leave_it_out() -> None:
    dataset = create([GOOD])
    with pytest.raises(InvalidEpisodeError, match="has 4 steps.*leave out the first"):
        dataset.update_dataset_from_buffer([replace(GOOD, id=0)])


def test_no_dataset_of_the_root_is_in_memory_only() -> None:
    message = "memory that writes files"
    with pytest.raises(UnknownFormatError, match=message):
        create([GOOD], data_format="memory")
    with pytest.raises(UnknownFormatError, match=message):
        DataCollector(Pays(0.0), data_format="memory")
    dataset = create([GOOD])  # the id is free
    with pytest.raises(UnknownFormatError, match=message):
        combine_datasets([dataset], "aa/b-v1", data_format="memory")
    assert list(list_local_datasets()) == ["aa/b-v0"]


def test_only_datasets_and_lists_of_them_are_taken() -> None:
    dataset = create([GOOD])
    for count in ("2", None, 1.5, [1]):
        with pytest.raises(ConfigError, match="n_episodes must be a whole number"):
            dataset.sample_episodes(count)
    for ids in (5, None, slice(1)):
        with pytest.raises(ConfigError, match="a list of ids or a view"):
            dataset.delete_episodes(ids, "aa/b-v1")
    with pytest.raises(InvalidEpisodeError, match="must be a list of episodes"):
        dataset.update_dataset_from_buffer(None)
    collector = DataCollector(Pays(0.0))
    with pytest.raises(ConfigError, match="add_to_dataset takes a MinariDataset"):
        collector.add_to_dataset("aa/b-v0")
    collector.close()
