"""Code that was written for the collectors before Minari 0.5 goes on collecting."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.episode import EpisodeMetadataCallback, StepDataCallback
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import DatasetExistsError, InvalidMetadataError
from minari_pipe.recording.collector import DataCollector
from minari_pipe.recording.collector_v0 import DataCollectorV0, create_dataset_from_collector_env
from minari_pipe.recording.recovery import list_leftovers
from tests.conftest import StepIndex

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(is set to None|env_spec is None):UserWarning",
    "ignore:.*deprecated:DeprecationWarning",
)


def collect(collector: DataCollector, episodes: int = 2) -> None:
    for seed in range(episodes):
        collector.reset(seed=seed)
        for _ in range(5):
            collector.step(np.zeros(2, np.float32))


def attributes(dataset: MinariDataset) -> list[dict]:
    return list(dataset.storage.get_episode_metadata(range(len(dataset))))


def test_a_dataset_is_created_from_a_collector_env() -> None:
    collector = DataCollectorV0(gym.make("StepIndex-v0"), max_buffer_episodes=1)
    collect(collector)
    dataset = create_dataset_from_collector_env(
        dataset_id="step-index-v0",
        collector_env=collector,
        algorithm_name="zeros",
        author="me",
        author_email="me@x.org",
        code_permalink="here",
        minari_version="~=0.4",
    )
    assert [len(found) for found in dataset] == [5, 5]
    assert [entry["seed"] for entry in attributes(dataset)] == [0, 1]
    assert dataset.minari_version == "0.5.4"
    collect(collector, 1)
    dataset.update_dataset_from_collector_env(collector)
    assert len(dataset) == len(MinariDataset(dataset.storage.data_path)) == 3
    collector.close()
    assert list_leftovers() == []


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_each_says_what_to_use_instead() -> None:
    with pytest.warns(DeprecationWarning, match="use DataCollector;"):
        collector = DataCollectorV0(StepIndex())
    with pytest.warns(DeprecationWarning, match="use DataCollector.create_dataset; minari_version"):
        dataset = create_dataset_from_collector_env("a-v0", collector, minari_version="0.4")
    with pytest.warns(DeprecationWarning, match="use DataCollector.add_to_dataset"):
        dataset.update_dataset_from_collector_env(collector)
    collector.close()


def test_both_limits_of_the_buffer_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match="max_buffer_steps and max_buffer_episodes can't be passed at the same time",
    ):
        DataCollectorV0(StepIndex(), max_buffer_steps=1, max_buffer_episodes=1)


def test_what_is_no_collector_is_refused() -> None:
    with pytest.raises(InvalidMetadataError, match="must be a DataCollector, got StepIndex"):
        create_dataset_from_collector_env("a-v0", StepIndex())


class OlderStep(StepDataCallback):
    """Written for Minari 0.3: it takes the environment and knows plural keys."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.scale = self.env.unwrapped.length

    def __call__(self, env, **kwargs):
        data = super().__call__(env, **kwargs)
        data["observations"] = data["observations"] * self.scale
        data["state"] = {"t": env.unwrapped.t}
        return data


class OlderMetadata(EpisodeMetadataCallback):
    """Written for Minari 0.4: it gets an HDF5 group and sets attributes."""

    def __call__(self, eps_group):
        super().__call__(eps_group)
        eps_group["rewards"].attrs["sum"] = 2 * np.sum(eps_group["rewards"])
        eps_group.attrs["total_steps"] = eps_group["actions"].shape[0]
        eps_group.attrs["note"] = "ü"


def test_callbacks_of_that_time_work() -> None:
    collector = DataCollectorV0(StepIndex(), OlderStep, OlderMetadata)
    collect(collector, 1)
    dataset = create_dataset_from_collector_env("a-v0", collector)
    found = dataset[0]
    assert found.observations.ravel().tolist() == [0, 5, 10, 15, 20, 25]
    assert found.extras["state"]["t"].tolist() == [0, 1, 2, 3, 4, 5]
    (entry,) = attributes(dataset)
    assert entry["note"] == "ü"
    assert entry["rewards_sum"] == 2 * found.rewards.sum()
    assert entry["rewards_max"] == found.rewards.max()
    assert entry["total_steps"] == 5
    collector.close()


def test_a_reset_without_a_seed_has_none_as_then() -> None:
    collector = DataCollectorV0(StepIndex())
    collector.reset()
    collector.step(np.zeros(2, np.float32))
    collector.clear_buffer_to_tmp_file()
    collector.step(np.zeros(2, np.float32))
    collector.clear_buffer_to_tmp_file(truncate_last_episode=True)
    (leftover,) = list_leftovers()
    assert (leftover.episodes, leftover.steps) == (1, 2)
    dataset = create_dataset_from_collector_env("a-v0", collector)
    assert "seed" not in attributes(dataset)[0]
    assert dataset[0].truncations.tolist() == [False, True]
    collector.close()


@pytest.mark.parametrize("name", ["data", "data/main_data.hdf5"])
def test_it_saves_to_a_data_directory_in_today_s_layout(name, tmp_path: Path) -> None:
    collector = DataCollectorV0(gym.make("StepIndex-v0"))
    collect(collector)
    place = get_dataset_path() / "aa" / "saved-v0" / name
    collector.save_to_disk(place, {"author": "me", "description": None, "custom": 1})
    data = get_dataset_path() / "aa" / "saved-v0" / "data"
    assert sorted(path.name for path in data.parent.iterdir()) == ["data"]
    for library in (MinariDataset, minari.MinariDataset):
        dataset = library(data)
        assert (dataset.id, len(dataset)) == ("aa/saved-v0", 2)
    assert dataset.storage.metadata["author"] == {"me"}
    collect(collector, 1)
    with pytest.raises(DatasetExistsError, match="is not empty"):
        collector.save_to_disk(place)
    (tmp_path / "elsewhere").mkdir()
    collector.save_to_disk(tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "main_data.hdf5",
        "metadata.json",
    ]
    collector.close()


def test_spaces_may_follow_max_buffer_steps_as_in_minari_0_4_3() -> None:
    given = spaces.Box(-9, 9, (1,), np.float64), spaces.Box(-9, 9, (2,), np.float64)
    collector = DataCollectorV0(
        StepIndex(), StepDataCallback, EpisodeMetadataCallback, False, 100, *given
    )
    collect(collector)
    dataset = collector.create_dataset("step-index-v0")
    assert (dataset.observation_space, dataset.action_space) == given
    assert (collector.max_buffer_steps, collector.max_buffer_episodes) == (100, None)
    collector.close()


def test_metadata_that_follows_from_the_environment_cannot_be_saved(tmp_path: Path) -> None:
    collector = DataCollectorV0(StepIndex())
    collect(collector)
    for metadata, message in [
        ({"env_spec": "{}"}, "'env_spec' is not allowed as an optional key"),
        ({"description": 5}, "metadata 'description' must be a string"),
    ]:
        with pytest.raises(InvalidMetadataError, match=message):
            collector.save_to_disk(tmp_path / "data", metadata)
        assert list(tmp_path.iterdir()) == []
    collector.save_to_disk(tmp_path / "data")
    collector.close()
