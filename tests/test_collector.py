"""The collector records what happened, whole, and loses nothing when something fails."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from minari_pipe.collector import DataCollector
from minari_pipe.episode import EpisodeMetadataCallback, StepDataCallback, reward_statistics
from minari_pipe.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidEpisodeError,
    UnknownFormatError,
    UnsupportedSpaceError,
)
from minari_pipe.library import get_dataset_path, list_local_datasets, load_dataset
from tests.generated import assert_same
from tests.storage_contract import ACTION, OBSERVATION, assert_stored

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning")


class Counter(gym.Env):
    """Observes the step index in one array that it reuses; ends after ``length`` steps."""

    observation_space = spaces.Box(0, 100, (1,), np.float64)
    action_space = spaces.Discrete(50)

    def __init__(self, length: int = 3, info: Any = None) -> None:
        self.length = length
        self.observation = np.zeros(1)
        self.info = info or (lambda t: {})
        self.resets: list[tuple[Any, Any]] = []

    def reset(self, *, seed=None, options=None):
        self.resets.append((seed, options))
        self.observation[0] = 0
        return self.observation, self.info(0)

    def step(self, action):
        self.observation[0] += 1
        t = int(self.observation[0])
        return self.observation, float(t), t >= self.length, False, self.info(t)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, empty."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def run(collector: DataCollector, steps: int = 3, **kwargs) -> None:
    collector.reset(**kwargs)
    for action in range(steps):
        collector.step(action % collector.action_space.n)


def indices(dataset) -> list[list[float]]:
    return [found.observations.ravel().tolist() for found in dataset]


def test_every_episode_is_recorded_with_seed_options_and_statistics() -> None:
    collector = DataCollector(Counter())
    run(collector, seed=2**64 - 1, options={"goal": {"x": np.arange(2)}, "n": None})
    run(collector, seed=7)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3]] * 2
    first = dataset[0]
    assert_same(first.actions, np.array([0, 1, 2]))
    assert_same(first.rewards, np.array([1.0, 2.0, 3.0]))
    assert_same(first.terminations, np.array([False, False, True]))
    assert_same(first.truncations, np.zeros(3, bool))
    assert first.infos == {}
    attributes = list(dataset.storage.get_episode_metadata([0, 1]))
    assert attributes[0]["seed"] == 2**64 - 1
    assert_same(attributes[0]["options"], {"goal": {"x": np.arange(2)}, "n": None})
    statistics = reward_statistics(first.rewards)
    assert attributes[1] == {"id": 1, "total_steps": 3, "seed": 7, **statistics}
    collector.close()


def test_an_unfinished_episode_is_closed_as_truncated() -> None:
    collector = DataCollector(Counter(length=9))
    run(collector, 2)
    run(collector, 4)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2], [0, 1, 2, 3, 4]]
    for found in dataset:
        assert found.truncations.tolist() == [False] * (len(found) - 1) + [True]
        assert not found.terminations.any()
    with pytest.raises(ResetNeeded):
        collector.step(0)
    collector.close()


def test_a_reset_alone_is_no_episode() -> None:
    collector = DataCollector(Counter())
    collector.reset()
    run(collector)
    collector.reset()
    assert len(collector.create_dataset("aa/b-v0")) == 1
    collector.close()


def test_seeds_are_drawn_and_recorded_unless_switched_off() -> None:
    env = Counter()
    collector = DataCollector(env)
    for options in (None, {}, {"minari_autoseed": True}, {"minari_autoseed": False}):
        run(collector, options=options)
    given = [seed for seed, _ in env.resets]
    dataset = collector.create_dataset("aa/b-v0")
    stored = list(dataset.storage.get_episode_metadata(range(4)))
    assert [found.get("seed") for found in stored] == given
    assert given[3] is None
    assert len(set(given)) == 4
    assert all(0 <= seed < 2**64 for seed in given[:3])
    assert [found.get("options") for found in stored] == [options for _, options in env.resets]
    collector.close()


def test_stepping_on_after_the_end_begins_an_episode_as_in_real_minari() -> None:
    class Endless(Counter):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, observation[0] % 3 == 0, False, info

    collector = DataCollector(Endless(info=lambda t: {"t": t}), record_infos=True)
    run(collector, 7, seed=1)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert [found.infos["t"].tolist() for found in dataset] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    seeds = [found.get("seed") for found in dataset.storage.get_episode_metadata(range(3))]
    assert seeds == [1, None, None]
    assert [bool(found.truncations[-1]) for found in dataset] == [False, False, True]
    collector.close()


def test_infos_may_come_and_go_and_say_where() -> None:
    def info(t):
        found = {"state": {"q": np.full(2, t)}}
        return {**found, "success": True} if t == 2 else found

    collector = DataCollector(Counter(info=info), record_infos=True)
    run(collector)
    dataset = collector.create_dataset("aa/b-v0")
    assert dataset[0].infos["success"].tolist() == [False, False, True, False]
    assert dataset[0].infos["state"]["q"][:, 0].tolist() == [0, 1, 2, 3]
    filled = next(iter(dataset.storage.get_episode_metadata([0])))["infos_filled"]
    assert filled == {"success": [[0, 2], [3, 4]]}
    assert minari.load_dataset("aa/b-v0")[0].infos["success"].tolist() == [
        False,
        False,
        True,
        False,
    ]
    collector.close()


def test_callbacks_change_what_is_recorded() -> None:
    class Halve(StepDataCallback):
        def __call__(self, env, **kwargs):
            data = super().__call__(env, **kwargs)
            data["observation"] = data["observation"] / 2
            data["info"] = {"doubled": data["observation"][0] * 4}
            return data

    class Last(EpisodeMetadataCallback):
        def __call__(self, episode):
            last = float(episode["observations"][-1, 0])
            return {**super().__call__(episode), "last": last, "rewards_sum": -1.0}

    collector = DataCollector(Counter(), Halve, Last, record_infos=True)
    run(collector)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 0.5, 1, 1.5]]
    assert dataset[0].infos["doubled"].tolist() == [0, 2, 4, 6]
    attributes = next(iter(dataset.storage.get_episode_metadata([0])))
    assert (attributes["last"], attributes["rewards_sum"], attributes["rewards_max"]) == (
        1.5,
        -1,
        3,
    )
    collector.close()


def test_what_is_outside_of_the_spaces_is_recorded_with_a_warning() -> None:
    collector = DataCollector(
        Counter(length=1), observation_space=spaces.Box(5, 9, (1,), np.float64)
    )
    with pytest.warns(UserWarning, match=r"^Observation is not in observation space\.\n"):
        collector.reset()
    with pytest.warns(UserWarning, match="is not in") as caught:
        collector.step(77)
    assert "Action is not in action space.\nAction: 77" in str(caught[1].message)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1]]
    assert dataset[0].actions.tolist() == [77]
    assert dataset.observation_space == spaces.Box(5, 9, (1,), np.float64)
    collector.close()


def test_a_step_that_cannot_be_recorded_ends_the_episode_there() -> None:
    infos = {2: {"x": np.zeros(3)}}
    collector = DataCollector(
        Counter(length=9, info=lambda t: infos.get(t, {"x": np.zeros(2)})), record_infos=True
    )
    collector.reset()
    collector.step(0)
    with pytest.raises(InvalidEpisodeError, match=r"infos\.x has shape \(3,\), expected \(2,\)"):
        collector.step(1)
    with pytest.raises(ResetNeeded):
        collector.step(2)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1]]
    assert dataset[0].truncations.tolist() == [True]
    collector.close()


class Fails(Counter):
    """Raises ``error`` in its second step and goes on after it, as a robot's driver may."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(length=9)
        self.error = error

    def step(self, action):
        found = super().step(action)
        if self.observation[0] == 2:
            raise self.error("the motor is hot")
        return found


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_episode_goes_across_a_step_that_failed(error) -> None:
    collector = DataCollector(Fails(error))
    collector.reset()
    collector.step(0)
    with pytest.raises(error, match="the motor is hot"):
        collector.step(1)
    with pytest.raises(ResetNeeded):
        collector.step(2)
    run(collector, 1)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1], [0, 1]]
    assert [found.truncations.tolist() for found in dataset] == [[True], [True]]
    collector.close()


def test_a_callback_that_fails_ends_the_episode_there() -> None:
    class Picky(StepDataCallback):
        def __call__(self, env, **kwargs):
            if kwargs["obs"][0] == 2:
                raise LookupError("no such camera")
            return super().__call__(env, **kwargs)

    collector = DataCollector(Counter(length=9), Picky)
    with pytest.raises(LookupError, match="no such camera"):
        run(collector, 9)
    with pytest.raises(ResetNeeded):
        collector.step(2)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1]]
    collector.close()


def test_no_episode_begins_with_a_reset_that_failed() -> None:
    class Jammed(Counter):
        def reset(self, **kwargs):
            if len(self.resets) == 1:
                self.resets.append((None, None))
                raise RuntimeError("the gripper is jammed")
            return super().reset(**kwargs)

    collector = DataCollector(Jammed(length=9))
    run(collector, 2)
    with pytest.raises(RuntimeError, match="the gripper is jammed"):
        collector.reset()
    with pytest.raises(ResetNeeded):
        collector.step(0)
    run(collector, 1)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2], [0, 1]]
    collector.close()


def test_nothing_is_glued_to_an_episode_whose_end_could_not_be_kept() -> None:
    class Endless(Counter):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, observation[0] == 3, False, info

    class Picky(EpisodeMetadataCallback):
        def __call__(self, episode):
            if episode["observations"][0, 0] == 3:
                raise LookupError("no such statistic")
            return super().__call__(episode)

    collector = DataCollector(Endless(), episode_metadata_callback=Picky)
    run(collector, 4)
    with pytest.raises(LookupError):
        collector.create_dataset("aa/b-v0")
    with pytest.raises(ResetNeeded):
        collector.step(0)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2, 3]]
    collector.close()


def test_options_are_recorded_as_given_though_the_environment_consumes_them() -> None:
    class Consuming(Counter):
        def reset(self, *, seed=None, options=None):
            found = super().reset(seed=seed, options=options)
            options.pop("scale")
            options["state"][:] = 9
            return found

    env = Consuming()
    collector = DataCollector(env)
    options = {"scale": 5.0, "state": np.zeros(2)}
    run(collector, options=options)
    assert env.resets[0][1] is options
    dataset = collector.create_dataset("aa/b-v0")
    stored = next(iter(dataset.storage.get_episode_metadata([0])))["options"]
    assert_same(stored, {"scale": 5.0, "state": np.zeros(2)})
    collector.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fast", "options must be a dict or None to be recorded, got str 'fast'"),
        ([1], r"options must be a dict or None to be recorded, got list \[1\]"),
        ({"a": object()}, r"options\.a cannot be stored: object"),
        ({"a" * 70_000: 1}, "name of 70008 bytes"),
        ({"\ud800": 1}, r"'options/\\ud800'"),
        ({"a/b": 1, "a": {"b": 2}}, "'options/a/b'"),
    ],
    ids=["a string", "a list", "an object", "a long key", "a lone surrogate", "keys that clash"],
)
def test_options_that_cannot_be_stored_are_refused_before_anything_happens(
    options, message
) -> None:
    env = Counter(length=9)
    collector = DataCollector(env)
    run(collector, 2)
    with pytest.raises(InvalidEpisodeError, match=message):
        collector.reset(options=options)
    assert len(env.resets) == 1
    collector.step(0)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2, 3]]
    collector.close()


def test_infos_that_are_no_dict_are_named_if_they_are_recorded() -> None:
    collector = DataCollector(Counter(info=lambda t: None), record_infos=True)
    with pytest.raises(InvalidEpisodeError, match="infos must be a dict, got NoneType None"):
        collector.reset()
    collector.close()
    collector = DataCollector(Counter(info=lambda t: None))
    run(collector)
    assert len(collector.create_dataset("aa/b-v0")) == 1
    collector.close()


@pytest.mark.parametrize("key", ["./a", "/a", "a//b", ".", "", "a/", "\ud800", "a\0b"], ids=ascii)
def test_keys_that_no_file_can_hold_are_refused_when_a_collector_is_made(key) -> None:
    space = spaces.Dict({key: spaces.Discrete(2)})
    with pytest.raises(UnsupportedSpaceError, match=re.escape(f"the key {key!r}")):
        DataCollector(Counter(), observation_space=space)


@pytest.mark.parametrize("call", ["reset", "step", "create_dataset", "add_to_dataset"])
def test_a_closed_collector_says_so(call) -> None:
    collector = DataCollector(Counter())
    run(collector, 2)
    dataset = collector.create_dataset("aa/b-v0")
    collector.reset()
    collector.close()
    collector.close()
    arguments = {
        "step": [0],
        "create_dataset": ["aa/c-v0"],
        "add_to_dataset": [dataset],
    }
    with pytest.raises(DatasetNotFoundError, match=r"DataCollector is closed.*before close\(\)"):
        getattr(collector, call)(*arguments.get(call, []))
    assert list(list_local_datasets()) == ["aa/b-v0"]


def test_a_collector_goes_on_after_a_dataset() -> None:
    collector = DataCollector(Counter())
    for name in ("x", "y"):
        run(collector, seed=ord(name))
        dataset = collector.create_dataset(f"aa/{name}-v0")
        assert [found["seed"] for found in dataset.storage.get_episode_metadata([0])] == [ord(name)]
    assert len(collector.create_dataset("aa/empty-v0")) == 0
    collector.close()


def test_added_episodes_keep_everything() -> None:
    collector = DataCollector(Counter(info=lambda t: {"t": t} if t else {}), record_infos=True)
    run(collector, seed=1)
    dataset = collector.create_dataset("aa/b-v0")
    run(collector, seed=2, options={"k": [1]})
    run(collector, 2, seed=3)
    view = dataset.filter_episodes(lambda found: True)
    collector.add_to_dataset(view)
    assert len(view) == len(load_dataset("aa/b-v0")) == 3
    attributes = list(view.storage.get_episode_metadata(range(3)))
    assert [found["seed"] for found in attributes] == [1, 2, 3]
    assert_same(attributes[1]["options"], {"k": [1]})
    assert attributes[1]["infos_filled"] == {"t": [[0, 1]]}
    assert attributes[2]["rewards_sum"] == 3.0
    assert view[2].truncations.tolist() == [False, True]
    collector.add_to_dataset(view)
    assert len(view) == 3
    collector.close()


def test_a_failed_creation_keeps_the_episodes_for_another(temporary: Path) -> None:
    collector = DataCollector(Counter())
    run(collector, seed=1)
    collector.create_dataset("aa/taken-v0")
    run(collector, seed=2)
    collector.reset(seed=3)
    collector.step(0)
    for bad, error in [
        ({"dataset_id": "aa/taken-v0"}, DatasetExistsError),
        ({"dataset_id": "i/x-v0"}, InvalidDatasetIdError),
        ({"dataset_id": "aa/b-v0", "expert_policy": id, "ref_max_score": 1.0}, ValueError),
        ({"dataset_id": "aa/b-v0", "description": 5}, ValueError),
    ]:
        with pytest.raises(error):
            collector.create_dataset(**bad)
        assert sorted(list_local_datasets()) == ["aa/taken-v0"]
    run(collector, seed=4)
    dataset = collector.create_dataset("aa/b-v0")
    seeds = [found["seed"] for found in dataset.storage.get_episode_metadata(range(3))]
    assert (seeds, indices(dataset)) == ([2, 3, 4], [[0, 1, 2, 3], [0, 1], [0, 1, 2, 3]])
    collector.close()


def test_a_failed_addition_keeps_the_episodes_and_the_dataset() -> None:
    other = DataCollector(gym.make("CartPole-v1"))
    foreign = other.create_dataset("aa/foreign-v0")
    other.close()
    collector = DataCollector(Counter())
    run(collector, seed=1)
    with pytest.raises(InvalidEpisodeError, match=r"observations has rows of shape \(1,\)"):
        collector.add_to_dataset(foreign)
    assert_stored(foreign.storage, [])
    assert len(collector.create_dataset("aa/b-v0")) == 1
    collector.close()


def test_nested_spaces_are_recorded() -> None:
    class Nested(gym.Env):
        observation_space, action_space = OBSERVATION, spaces.Tuple([ACTION, ACTION])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"a": np.zeros(2, np.float32), "t": ("abc",)}, {}

        def step(self, action):
            return {"a": np.ones(2, np.float32), "t": ("x",)}, 0, False, True, {}

    collector = DataCollector(Nested())
    collector.reset()
    collector.step((np.int64(1), np.int64(2)))
    found = collector.create_dataset("aa/b-v0")[0]
    assert_same(
        found.observations, {"a": np.array([[0, 0], [1, 1]], np.float32), "t": (["abc", "x"],)}
    )
    assert_same(found.actions, (np.array([1]), np.array([2])))
    collector.close()


def test_the_environment_is_recovered_by_real_minari_too() -> None:
    collector = DataCollector(gym.make("CartPole-v1", max_episode_steps=7), record_infos=True)
    run(collector, 4, seed=5)
    dataset = collector.create_dataset("aa/b-v0", eval_env="CartPole-v1", ref_min_score=1.5)
    assert dataset.env_spec.max_episode_steps == 7
    theirs = minari.load_dataset("aa/b-v0")
    for env in (theirs.recover_environment(), dataset.recover_environment()):
        assert (env.spec.id, env.spec.max_episode_steps) == ("CartPole-v1", 7)
    assert theirs.storage.metadata["ref_min_score"] == 1.5
    env = dataset.recover_environment()
    found = dataset[0]
    assert_same(env.reset(seed=5)[0], found.observations[0])
    for step, action in enumerate(found.actions):
        assert_same(env.step(action)[0], found.observations[step + 1])
    collector.close()


def test_temporary_files_are_not_in_the_root_and_vanish(temporary: Path) -> None:
    collector = DataCollector(Counter())
    run(collector)
    assert len(list(temporary.iterdir())) == 1
    assert list(get_dataset_path().iterdir()) == []
    collector.create_dataset("aa/b-v0")
    assert len(list(temporary.iterdir())) == 1
    collector.close()
    collector.close()
    assert list(temporary.iterdir()) == []
    with DataCollector(Counter()) as collector:
        run(collector)
    assert list(temporary.iterdir()) == []
    collector = DataCollector(Counter())
    del collector
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_forked_child_does_not_remove_its_parent_s_file(temporary: Path) -> None:
    collector = DataCollector(Counter())
    run(collector)
    child = os.fork()
    if child == 0:
        collector.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(collector.create_dataset("aa/b-v0")) == 1
    collector.close()


def test_formats_and_images_that_cannot_be_written_are_named(temporary: Path) -> None:
    with pytest.raises(UnknownFormatError, match="parchment"):
        DataCollector(Counter(), data_format="parchment")
    image = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    with pytest.raises(UnsupportedSpaceError, match="JPEG encoding of observations"):
        DataCollector(Counter(), observation_space=image, jpeg_encoding=True)
    graph = spaces.Graph(spaces.Box(-1, 1), None)
    with pytest.raises(NotImplementedError, match=r"^No serialization method available for"):
        DataCollector(Counter(), observation_space=graph)
    assert list(temporary.iterdir()) == []
    collector = DataCollector(Counter(), data_format="hdf5")
    assert collector.data_format == "hdf5"
    assert collector.datasets_path == str(get_dataset_path())
    collector.close()


def test_equal_collections_are_equal_bytes() -> None:
    contents = []
    for name in ("x", "y"):
        collector = DataCollector(Counter(info=lambda t: {"t": t}), record_infos=True)
        for seed in range(3):
            run(collector, seed=seed, options={"b": 1, "a": [2]})
        collector.create_dataset(f"aa/{name}-v0")
        collector.close()
        contents.append((get_dataset_path(f"aa/{name}-v0") / "data/main_data.hdf5").read_bytes())
    assert contents[0] == contents[1]
