"""A dataset behaves as real Minari's, and its views copy nothing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.dataset import MinariDataset, MinariDatasetSpec
from minari_pipe.episode import EpisodeBuffer
from minari_pipe.errors import (
    CorruptDatasetError,
    EnvironmentNotFoundError,
    InvalidEpisodeError,
    TrustError,
    UnsupportedVersionError,
)
from minari_pipe.storage import MinariStorage

INDEX = spaces.Discrete(100)


def episode(number: int) -> EpisodeBuffer:
    """Episode ``number`` has ``number + 1`` steps, and its rewards are its number."""
    steps = number + 1
    return EpisodeBuffer(
        seed=number,
        observations=np.arange(steps + 1),
        actions=np.arange(steps),
        rewards=np.full(steps, float(number)),
        terminations=np.arange(steps) == number,
        truncations=np.zeros(steps, bool),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage = MinariStorage.new(
        tmp_path / "data", INDEX, spaces.Discrete(2), gym.spec("CartPole-v1")
    )
    storage.update_metadata(
        {
            "dataset_id": "aa/b-v3",
            "minari_version": "0.5.4",
            "eval_env_spec": gym.spec("Acrobot-v1").to_json(),
        }
    )
    storage.update_episodes([episode(number) for number in range(6)])
    return tmp_path / "data"


@pytest.fixture
def dataset(path: Path) -> MinariDataset:
    return MinariDataset(path)


def numbers(episodes) -> list[int]:
    return [int(found.rewards[0]) for found in episodes]


def change(path: Path, **values) -> MinariDataset:
    metadata = json.loads((path / "metadata.json").read_text())
    for key, value in values.items():
        metadata[key] = value
        if value is None:
            del metadata[key]
    (path / "metadata.json").write_text(json.dumps(metadata))
    return MinariDataset(path)


def test_properties_are_real_minari_s(dataset: MinariDataset, path: Path) -> None:
    theirs = minari.MinariDataset(path)
    for name in ("id", "total_episodes", "total_steps", "minari_version", "combined_datasets"):
        assert getattr(dataset, name) == getattr(theirs, name)
    for name in ("observation_space", "action_space", "env_spec"):
        assert getattr(dataset, name) == getattr(theirs, name)
    assert vars(dataset.spec) == vars(theirs.spec)
    assert isinstance(dataset.spec, MinariDatasetSpec)
    assert (dataset.spec.namespace, dataset.spec.dataset_name, dataset.spec.version) == (
        "aa",
        "b",
        3,
    )
    assert (len(dataset), dataset.total_steps) == (6, 21)
    assert repr(dataset) == "MinariDataset('aa/b-v3', 6 episodes)"
    assert dataset.storage.data_path == path


def test_episodes_are_iterated_and_indexed(dataset: MinariDataset) -> None:
    assert numbers(dataset) == [0, 1, 2, 3, 4, 5]
    assert numbers(dataset.iterate_episodes([4, 1])) == [4, 1]
    assert [dataset[2].id, dataset[-1].id, dataset[np.int64(0)].id] == [2, 5, 0]
    with pytest.raises(IndexError):
        dataset[6]


def test_samples_are_real_minari_s(dataset: MinariDataset, path: Path) -> None:
    theirs = minari.MinariDataset(path)
    for seed in range(3):
        dataset.set_seed(seed)
        theirs.set_seed(seed)
        assert numbers(dataset.sample_episodes(4)) == numbers(theirs.sample_episodes(4))
    with pytest.raises(ValueError, match="larger sample"):
        dataset.sample_episodes(7)


def test_filters_make_views_of_views(dataset: MinariDataset) -> None:
    odd = dataset.filter_episodes(lambda found: found.rewards[0] % 2 == 1)
    late = odd.filter_episodes(lambda found: len(found) > 2)
    assert (numbers(odd), numbers(late)) == ([1, 3, 5], [3, 5])
    assert (odd.total_episodes, odd.total_steps, late.total_steps) == (3, 12, 10)
    assert late.episode_indices.tolist() == [3, 5]
    assert late.spec.total_steps == 10
    assert late[0].id == 3
    assert numbers(odd.filter_episodes(lambda found: False)) == []
    assert late.storage is dataset.storage


def test_new_episodes_join_the_view_that_added_them(dataset: MinariDataset, path: Path) -> None:
    view = dataset.filter_episodes(lambda found: found.rewards[0] == 2)
    view.update_dataset_from_buffer([episode(6), episode(7)])
    assert numbers(view) == [2, 6, 7]
    assert view.total_steps == 3 + 7 + 8
    assert numbers(dataset) == [0, 1, 2, 3, 4, 5]
    assert numbers(MinariDataset(path)) == list(range(8))
    seeds = [found["seed"] for found in view.storage.get_episode_metadata(view.episode_indices)]
    assert seeds == [2, 6, 7]


def test_a_refused_update_changes_nothing(dataset: MinariDataset) -> None:
    bad = episode(7)
    bad = EpisodeBuffer(**{**vars(bad), "actions": bad.actions[1:]})
    with pytest.raises(InvalidEpisodeError, match="episode 7: actions has 7 steps, rewards has 8"):
        dataset.update_dataset_from_buffer([episode(6), bad])
    assert numbers(dataset) == numbers(MinariDataset(dataset.storage)) == [0, 1, 2, 3, 4, 5]


def test_environments_are_recovered(dataset: MinariDataset) -> None:
    env = dataset.recover_environment(render_mode="rgb_array")
    assert env.spec.id == "CartPole-v1"
    assert env.render_mode == "rgb_array"
    assert dataset.recover_environment(eval_env=True).spec.id == "Acrobot-v1"


def test_without_an_evaluation_environment_it_is_the_collection_s(path: Path) -> None:
    env = change(path, eval_env_spec=None).recover_environment(eval_env=True)
    assert env.spec.id == "CartPole-v1"


def test_no_environment_is_named_as_in_real_minari(path: Path) -> None:
    dataset = change(path, env_spec=None)
    assert dataset.env_spec is None
    with pytest.raises(
        EnvironmentNotFoundError, match=r"^Environment cannot be recovered when env"
    ):
        dataset.recover_environment()


def test_code_that_a_file_names_is_not_run(path: Path) -> None:
    spec = json.loads(gym.spec("CartPole-v1").to_json())
    spec.update(id="Evil-v0", entry_point="subprocess:Popen", kwargs={"args": ["touch", "evil"]})
    dataset = change(path, env_spec=json.dumps(spec))
    assert dataset.env_spec.id == "Evil-v0"
    with pytest.raises(TrustError):
        dataset.recover_environment()


def test_specs_of_old_gymnasium_releases_are_read(path: Path) -> None:
    spec = json.loads(gym.spec("CartPole-v1").to_json())
    old = {**spec, "order_enforce": True, "autoreset": False, "apply_api_compatibility": False}
    dataset = change(path, env_spec=json.dumps(old))
    assert dataset.env_spec == gym.spec("CartPole-v1")
    assert dataset.recover_environment().spec.id == "CartPole-v1"


def test_a_damaged_spec_does_not_hide_the_data(path: Path) -> None:
    dataset = change(path, env_spec="{}")
    assert len(dataset) == 6
    with pytest.raises(CorruptDatasetError, match="aa/b-v3: env_spec"):
        _ = dataset.env_spec


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("not a requirement", "Ignoring malformed requirement `not a requirement`"),
        ("no-such-package>=1", "Package no-such-package is not installed. Install it with"),
        ("numpy<1", "Installed numpy version .* does not meet the requirement <1"),
    ],
)
def test_unmet_requirements_warn_as_in_real_minari(path, requirement, message) -> None:
    dataset = change(path, requirements=["numpy>=1", requirement])
    with pytest.warns(UserWarning, match=message) as caught:
        dataset.recover_environment()
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_met_requirements_are_silent(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change(path, requirements=["numpy>=1"]).recover_environment()


def test_an_unfinished_dataset_is_named(path: Path) -> None:
    with pytest.raises(CorruptDatasetError, match="has no dataset_id"):
        change(path, dataset_id=None)


@pytest.mark.parametrize("version", ["0.9.0", "~=0.4", 5])
def test_unknown_versions_are_named_as_in_real_minari(path: Path, version) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"^The installed Minari version .* does not"):
        change(path, minari_version=version)


def test_the_version_is_optional(path: Path) -> None:
    assert change(path, minari_version=None).minari_version == ""


def test_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unrecognized type"):
        MinariDataset(5)
