"""A dataset behaves as real Minari's, and its views copy nothing."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.datasets.dataset import MinariDataset, MinariDatasetSpec
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetNotFoundError,
    EnvironmentNotFoundError,
    InvalidEpisodeError,
    InvalidMetadataError,
    TrustError,
    UnsupportedVersionError,
)
from minari_pipe.storage import MinariStorage, get_minari_storage, get_storage_keys

INDEX = spaces.Discrete(100)


def episode(number: int) -> EpisodeBuffer:
    """Episode ``number`` has ``number + 1`` steps, and its rewards are its number."""
    steps = number + 1
    return EpisodeBuffer(
        seed=number,
        observations=np.arange(steps + 1),
        actions=np.arange(steps) % 2,
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
    for wrong in ([1.7], np.array([True, False]), [True], ["1"]):  # a mask is no list of numbers
        with pytest.raises(TypeError, match="an episode index must be a whole number, got"):
            list(dataset.iterate_episodes(wrong))


def test_samples_are_real_minari_s(dataset: MinariDataset, path: Path) -> None:
    theirs = minari.MinariDataset(path)
    for seed in range(3):
        dataset.set_seed(seed)
        theirs.set_seed(seed)
        assert numbers(dataset.sample_episodes(4)) == numbers(theirs.sample_episodes(4))
    for number in (7, -1):
        with pytest.raises(ValueError, match=f"larger sample.* asked for {number} .* of 6"):
            dataset.sample_episodes(number)
    assert dataset.sample_episodes(0) == dataset[:0].sample_episodes(0) == []
    assert sorted(numbers(dataset[[4, 1]].sample_episodes(2))) == [1, 4]


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


@pytest.mark.filterwarnings("ignore:update_dataset_from_collector_env:DeprecationWarning")
def test_arguments_of_another_kind_are_one_clear_line(dataset: MinariDataset) -> None:
    storage = dataset.storage
    for call, error, message in [
        (lambda: storage.update_metadata(None), InvalidMetadataError, "a dict, got None"),
        (
            lambda: storage.update_episode_metadata("x", [1]),
            InvalidMetadataError,
            "episode 1: metadata must be a dict, got 'x'",
        ),
        (lambda: storage.update_episodes("a"), InvalidEpisodeError, "an EpisodeBuffer, got 'a'"),
        (
            lambda: dataset.update_dataset_from_collector_env(None),
            TypeError,
            "expected a DataCollector, got None",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert numbers(MinariDataset(storage)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("keep", [True, False], ids=["kept aside", "removed"])
@pytest.mark.parametrize("data_format", get_storage_keys())
def test_an_append_to_a_dataset_that_is_replaced_meanwhile_says_so(
    tmp_path: Path, data_format: str, keep: bool
) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    storage = MinariStorage.new(data, INDEX, spaces.Discrete(2), data_format=data_format)
    storage.update_episodes([episode(0)])

    def episodes():
        yield episode(1)
        shutil.copytree(data, tmp_path / "new", ignore=shutil.ignore_patterns(".*"))
        data.rename(aside)
        (tmp_path / "new").rename(data)
        if not keep:
            shutil.rmtree(aside)
        yield episode(2)

    with pytest.raises(DatasetNotFoundError, match="was replaced since it was opened"):
        storage.update_episodes(episodes())
    assert MinariStorage.read(data).total_episodes == 1


@pytest.mark.parametrize("keep", [True, False], ids=["kept aside", "removed"])
@pytest.mark.parametrize("data_format", get_storage_keys())
def test_a_dataset_that_is_replaced_while_it_is_opened_is_the_new_one(
    tmp_path: Path, data_format: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, new, aside = tmp_path / "data", tmp_path / "new", tmp_path / "aside"
    for folder, count in ((data, 1), (new, 2)):
        storage = MinariStorage.new(folder, INDEX, spaces.Discrete(2), data_format=data_format)
        storage.update_episodes([episode(number) for number in range(count)])

    def chosen(name: str) -> type[MinariStorage]:
        if new.exists():
            data.rename(aside)
            new.rename(data)
            if not keep:
                shutil.rmtree(aside)
        return get_minari_storage(name)

    monkeypatch.setattr("minari_pipe.storage.reading.get_minari_storage", chosen)
    storage = MinariStorage.read(data)
    assert len(list(storage.get_episodes(range(storage.total_episodes)))) == 2


@pytest.mark.parametrize("kind", ["own __new__", "a function"])
def test_a_storage_may_be_made_in_any_way(tmp_path: Path, kind: str, monkeypatch) -> None:
    storage = MinariStorage.new(tmp_path / "data", INDEX, spaces.Discrete(2))
    storage.update_episodes([episode(0)])

    class Own(type(storage)):
        def __new__(cls, data_path, *arguments, **keywords):
            return super().__new__(cls)

    made = Own if kind == "own __new__" else lambda *given, **keywords: Own(*given, **keywords)
    monkeypatch.setattr("minari_pipe.storage.reading.get_minari_storage", lambda _: made)
    assert MinariStorage.read(tmp_path / "data").total_episodes == 1


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
        ("x\x1b]0;y\x07", r"Ignoring malformed requirement `x\\x1b\]0;y\\x07`"),
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


@pytest.mark.parametrize("text", [f"numpy=={'9' * 5000}", f"numpy; {'(' * 900}os_name=='a'"])
def test_a_requirement_that_nothing_can_read_is_ignored(text, path: Path) -> None:
    with pytest.warns(UserWarning, match="Ignoring malformed requirement"):
        change(path, requirements=[text]).recover_environment()


def test_met_requirements_are_silent(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change(path, requirements=["numpy>=1"]).recover_environment()


def test_an_unfinished_dataset_is_named(path: Path) -> None:
    with pytest.raises(CorruptDatasetError, match="has no dataset_id"):
        change(path, dataset_id=None)


@pytest.mark.parametrize("version", ["0.9.0", ">=0.9", 5, ["0.5.4"]])
def test_unknown_versions_are_named_as_in_real_minari(path: Path, version) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"^The installed Minari version .* does not"):
        change(path, minari_version=version)


def test_the_version_is_optional(path: Path) -> None:
    assert change(path, minari_version=None).minari_version == ""


def test_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unrecognized type"):
        MinariDataset(5)


# --- views


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [5, 3, 1]),
        (slice(9, None), []),
        ([4, -1, 4], [4, 5, 4]),
        (np.array([0, 2], np.uint8), [0, 2]),
        (np.arange(6) % 3 == 0, [0, 3]),
        ([True, False, False, False, False, True], [0, 5]),
        ((3, 1), [3, 1]),
        (range(2), [0, 1]),
        ([], []),
        (np.array([]), []),
    ],
    ids=str,
)
def test_slices_positions_and_masks_make_views_as_in_numpy(dataset, index, expected) -> None:
    view = dataset[index]
    assert isinstance(view, MinariDataset)
    assert numbers(view) == expected
    assert view.storage is dataset.storage
    assert view.total_steps == sum(number + 1 for number in expected)


def test_positions_count_within_the_view(dataset: MinariDataset) -> None:
    view = dataset[::-1][1:4]
    assert numbers(view) == [4, 3, 2]
    assert (view[0].id, view[-1].id, view[np.array(1)].id) == (4, 2, 3)
    assert numbers(view[[2, 0]][1:]) == [4]
    assert numbers(view.where("id > 2")[::-1]) == [3, 4]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (6, IndexError, "index 6 is out of bounds .* size 6"),
        (-7, IndexError, "index -7 is out of bounds"),
        ([0, 6], IndexError, "'aa/b-v3', 6 episodes.*index 6 is out of bounds"),
        ([True, False], IndexError, "boolean index did not match|boolean dimension is 2"),
        ([[0, 1]], IndexError, r"one axis, got shape \(1, 2\)"),
        (1.0, TypeError, "got 1.0"),
        ([0.5], TypeError, "whole number"),
        ("0", TypeError, "got '0'"),
        (True, TypeError, "got True"),
        (None, TypeError, "got None"),
    ],
    ids=str,
)
def test_other_indices_are_refused(dataset, index, error, message) -> None:
    with pytest.raises(error, match=message):
        dataset[index]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 6], "from 0 to 5, the storage has 6 episodes; got 0 to 6"),
        ([-1], "got -1 to -1"),
        ([[0]], r"along one axis, got int64 of shape \(1, 1\)"),
        ([0.0], "whole numbers"),
        ([True] * 6, r"a mask or slice goes in brackets: dataset\[mask\]"),
        (3, r"of shape \(\)"),
    ],
    ids=str,
)
def test_episodes_that_are_not_there_make_no_view(dataset, path, indices, message) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset.view(indices)
    with pytest.raises(ValueError, match=message):
        dataset.episode_indices = indices
    with pytest.raises(ConfigError, match=message):
        MinariDataset(path, indices)
    assert numbers(dataset) == [0, 1, 2, 3, 4, 5]


def test_indices_can_be_set_as_in_real_minari(dataset: MinariDataset) -> None:
    assert dataset.total_steps == 21
    dataset.episode_indices = [5, 0]
    assert isinstance(dataset.episode_indices, np.ndarray)
    assert (numbers(dataset), dataset.total_steps, len(dataset)) == ([5, 0], 7, 2)
    dataset.episode_indices = []
    assert (numbers(dataset), dataset.total_steps) == ([], 0)


def test_the_steps_of_a_view_are_counted_without_reading_any(dataset, monkeypatch) -> None:
    monkeypatch.setattr(type(dataset.storage), "get_episodes", None)
    assert dataset[[1, 5]].total_steps == 8


# --- views in other processes


def first_of(view: MinariDataset) -> tuple[list[int], int, str]:
    return numbers(view), view.total_steps, view.id


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_views_survive_pickle_in_other_processes(dataset: MinariDataset, method) -> None:
    view = dataset.where("total_steps > 2 and seed != 4")
    assert first_of(pickle.loads(pickle.dumps(view))) == ([2, 3, 5], 13, "aa/b-v3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(first_of, [view]) == ([2, 3, 5], 13, "aa/b-v3")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_pytorch_dataloader_read_views(dataset: MinariDataset, method) -> None:
    from torch.utils.data import DataLoader

    view = dataset[[5, 1, 4, 2]]
    assert numbers(view)[:1] == [5]  # the file was open here before
    loader = DataLoader(
        view,
        batch_size=2,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=list,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert [numbers(batch) for batch in loader] == [[5, 1], [4, 2]]


def test_threads_read_one_dataset(dataset: MinariDataset) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: numbers(dataset), range(16)))
    assert found == [[0, 1, 2, 3, 4, 5]] * 16


WRITER = """
import sys
from tests.datasets.test_dataset import episode
from minari_pipe.datasets.dataset import MinariDataset
dataset = MinariDataset(sys.argv[1])
for number in range(6, 6 + int(sys.argv[2])):
    dataset.update_dataset_from_buffer([episode(number), episode(number)])
"""


def test_a_reader_sees_whole_appends_of_a_writer(dataset: MinariDataset, path: Path) -> None:
    """P28: any number of readers, also in the middle of an iteration, while one writes."""
    lazy = iter(dataset)
    assert next(lazy).id == 0
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "10"]) as writer:
        seen = []
        while writer.poll() is None:
            found = MinariDataset(path)
            seen.append(len(found))
            values = numbers(found)
            assert values[:6] == [0, 1, 2, 3, 4, 5]
            assert values[6::2] == values[7::2] == list(range(6, 6 + (len(found) - 6) // 2))
            assert found.episodes["total_steps"].sum() == found.total_steps
            assert numbers(dataset) == [0, 1, 2, 3, 4, 5]
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert numbers(lazy) == [1, 2, 3, 4, 5]
    assert len(MinariDataset(path)) == 26


def test_real_minari_cannot_append_while_an_iterator_is_alive(path: Path) -> None:
    """P28: the peer fails; here the iterator goes on with what it began with."""
    theirs = minari.MinariDataset(path)
    lazy = iter(theirs)
    next(lazy)
    own = minari.data_collector.EpisodeBuffer(
        **{name: getattr(episode(6), name) for name in BUFFER_FIELDS}, infos={}
    )
    with pytest.raises(OSError, match="read-only"):
        theirs.update_dataset_from_buffer([own])
    del lazy

    ours = MinariDataset(path)
    lazy = iter(ours)
    next(lazy)
    ours.update_dataset_from_buffer([episode(6)])
    assert numbers(lazy) == [1, 2, 3, 4, 5]
    assert numbers(ours) == [0, 1, 2, 3, 4, 5, 6]


BUFFER_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations", "seed")
