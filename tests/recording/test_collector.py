"""The collector records what happened, whole, and loses nothing when something fails."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import Autoreset, TimeLimit, TransformObservation

import minari_pipe
from minari_pipe.core.episode import EpisodeMetadataCallback, StepDataCallback, reward_statistics
from minari_pipe.datasets.library import get_dataset_path, list_local_datasets
from minari_pipe.errors import (
    ConfigError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    InvalidEpisodeError,
    UnknownFormatError,
    UnsupportedSpaceError,
)
from minari_pipe.recording.collector import DataCollector
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recovery import list_leftovers
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.testing import ACTION, OBSERVATION, assert_same, assert_stored
from tests.support.peer import let_minari_collect

pytestmark = pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning")


#: real Minari's collector leaves its temporary folders to the garbage collector, which complains
peer_leaves_folders = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


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


def run(collector: DataCollector, steps: int = 3, actions: Any = None, **kwargs) -> None:
    collector.reset(**kwargs)
    given = [a % collector.action_space.n for a in range(steps)] if actions is None else actions
    for action in given:
        collector.step(action)


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


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_collector_is_refused(copied: Callable[[Any], Any]) -> None:
    env = DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(TypeError, match=r"copy or pickle its environment \(collector\.env\)"):
        copied(env)
    assert copy.deepcopy(env.env).step(0)
    with pytest.warns(UserWarning, match="is set to None"):
        assert len(env.create_dataset("copied/none-v0")[0]) == 1
    env.close()


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


def test_a_seed_of_more_than_64_bits_is_kept_and_so_are_the_episodes_beside_it() -> None:
    seeds = [2**64, 3, 2**70 + 1, None, 4, True, 5]
    collector = DataCollector(Counter())
    collector._autoseed = False
    for seed in seeds:
        run(collector, 2, seed=seed)
    dataset = collector.create_dataset("aa/b-v0")
    assert [dataset.episodes["seed"][place] for place in range(len(seeds))] == seeds
    assert indices(dataset) == [[0, 1, 2]] * len(seeds)
    collector.close()


def test_stepping_on_after_the_end_begins_an_episode_as_in_real_minari() -> None:
    class Endless(Counter):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, observation[0] % 3 == 0, False, info

    collector = DataCollector(Endless(info=lambda t: {"t": t}), record_infos=True)
    with pytest.warns(UserWarning, match="step\\(\\) was called without a reset") as caught:
        run(collector, 7, seed=1)
    assert len(caught) == 2  # one for each episode that began so
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert [found.infos["t"].tolist() for found in dataset] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    seeds = [found.get("seed") for found in dataset.storage.get_episode_metadata(range(3))]
    assert seeds == [1, None, None]
    assert [bool(found.truncations[-1]) for found in dataset] == [False, False, True]
    collector.close()


@peer_leaves_folders
def test_an_environment_may_reuse_its_observation(monkeypatch) -> None:
    let_minari_collect(monkeypatch)

    def collected(library) -> list[float]:
        collector = library.DataCollector(Counter())
        run(collector)
        dataset = collector.create_dataset(f"aa/{library.__name__.replace('_', '-')}-v0")
        collector.close()
        return dataset[0].observations.ravel().tolist()

    assert collected(minari) == [3, 3, 3, 3]  # the peer has the fault
    assert collected(minari_pipe) == [0, 1, 2, 3]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("nested", [False, True], ids=["an array", "a dict"])
def test_an_environment_may_change_the_action_that_it_is_given(nested, strict) -> None:
    class Spoiling(Counter):
        def step(self, action):
            for part in action.values() if nested else [action]:
                part += 1
            return super().step(action)

    box = spaces.Box(-9, 9, (2,), np.float32)
    env = Spoiling()
    env.action_space = spaces.Dict({"a": box, "b": box}) if nested else box
    collector = DataCollector(env, strict=strict)
    collector.reset(seed=1)
    for step in range(3):
        values = {key: np.full(2, step, np.float32) for key in "ab"}
        collector.step(values if nested else values["a"])
    actions = collector.create_dataset("aa/b-v0")[0].actions
    for part in actions.values() if nested else [actions]:
        assert part.tolist() == [[0, 0], [1, 1], [2, 2]]
    collector.close()


@peer_leaves_folders
def test_infos_may_come_and_go_where_real_minari_fails(monkeypatch) -> None:
    let_minari_collect(monkeypatch)

    def info(t):
        return {"success": True} if t == 2 else {}

    theirs = minari.DataCollector(Counter(info=info), record_infos=True)
    with pytest.raises(ValueError, match="Dict key mismatch"):  # the peer has the fault
        run(theirs)
    theirs.close()
    del theirs
    gc.collect()
    ours = DataCollector(Counter(info=info), record_infos=True)
    run(ours)
    found = ours.create_dataset("aa/b-v0")[0]
    assert found.infos["success"].tolist() == [False, False, True, False]
    ours.close()


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


def test_what_is_outside_of_the_spaces_is_recorded_with_one_warning_an_episode() -> None:
    collector = DataCollector(
        Counter(length=3), observation_space=spaces.Box(2, 9, (1,), np.float64)
    )
    for _ in range(2):
        with pytest.warns(UserWarning, match="is not in") as caught:
            run(collector, actions=(1, 77, 78))
        assert len(caught) == 1
        text = str(caught[0].message)
        assert text.startswith("Observation is not in observation space.\n")
        assert "2 of 4 observations" in text
        assert "The first is number 0.\nObservation: [0.]" in text
        assert "\nAction is not in action space.\n" in text
        assert "2 of 3 actions" in text
        assert "The first is number 1.\nAction: 77" in text
        assert caught[0].filename == __file__
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3]] * 2
    assert dataset[0].actions.tolist() == [1, 77, 78]
    assert dataset.observation_space == spaces.Box(2, 9, (1,), np.float64)
    collector.close()


class Shows(Counter):
    """Observes and expects what it is given."""

    def __init__(self, space: gym.Space, values: list[Any]) -> None:
        super().__init__(length=len(values) - 1)
        self.observation_space = space
        self.values = values

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return self.values[0], {}

    def step(self, action):
        _, *rest = super().step(action)
        return self.values[int(self.observation[0])], *rest


UNIT = spaces.Box(0, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (UNIT, np.array([np.nan, 0], np.float32), np.float32),
        (UNIT, np.array([0, 2], np.float32), np.float32),
        (UNIT, np.array([0.1, 0.2]), np.float64),
        (UNIT, [0.1, 0.2], np.float64),
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([np.nan, 0], np.float32), np.float32),
        (spaces.Discrete(3), 7, np.int64),
    ],
    ids=["NaN", "a value", "float64", "Python numbers", "NaN without bounds", "Discrete"],
)
def test_nan_other_dtypes_and_values_outside_are_kept_and_counted(space, value, stored) -> None:
    inside = space.sample()
    collector = DataCollector(Shows(space, [inside, value, inside]))
    with pytest.warns(UserWarning, match="1 of 3 observations") as caught:
        run(collector, 2)
    assert len(caught) == 1
    found = collector.create_dataset("aa/b-v0")[0].observations
    assert found.dtype == stored
    assert_same(found[1:2], np.asarray([value], stored))
    collector.close()
    strict = DataCollector(Shows(space, [inside, inside, value]), strict=True)
    strict.reset()
    strict.step(0)
    with pytest.raises(InvalidEpisodeError, match=r"^Observation is not in observation space"):
        strict.step(1)
    assert len(strict.create_dataset("aa/c-v0")[0]) == 1  # what was true before it
    with pytest.raises(ResetNeeded):
        strict.step(0)
    strict.close()


def test_numbers_that_the_space_holds_exactly_are_inside_of_it() -> None:
    collector = DataCollector(Shows(UNIT, [[0, 1], [0.5, 0.25], np.zeros(2, np.float16)]))
    run(collector, 2)
    assert_same(
        collector.create_dataset("aa/b-v0")[0].observations,
        np.array([[0, 1], [0.5, 0.25], [0, 0]], np.float32),
    )
    collector.close()


def test_an_action_outside_is_an_error_if_strict() -> None:
    collector = DataCollector(Counter(), strict=True)
    collector.reset()
    with pytest.raises(InvalidEpisodeError, match=r"^Action is not in action space"):
        collector.step(77)
    collector.close()


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (UNIT, np.zeros(3, np.float32), r"observations has shape \(3,\), expected \(2,\)"),
        (spaces.Dict(a=UNIT), {"b": np.zeros(2, np.float32)}, r"must have the keys \['a'\]"),
        (spaces.Tuple([UNIT]), (), "must be a tuple of 1, got 0"),
    ],
)
def test_wrong_lengths_and_nesting_are_errors(space, value, message) -> None:
    inside = space.sample()
    collector = DataCollector(Shows(space, [inside, inside, value]))
    with pytest.raises(InvalidEpisodeError, match=message):
        run(collector, 2)
    assert len(collector.create_dataset("aa/b-v0")[0]) == 1
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


def test_ctrl_c_after_an_episode_was_kept_costs_neither_it_nor_the_next(monkeypatch) -> None:
    append, interrupts = Journal.append, [KeyboardInterrupt]

    def interrupted(self, episode):
        append(self, episode)
        while interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(Journal, "append", interrupted)
    collector = DataCollector(Counter(length=9))
    run(collector, 2)
    with pytest.raises(KeyboardInterrupt):
        collector.reset()
    run(collector, 1)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2], [0, 1]]
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
    with pytest.warns(UserWarning, match="without a reset"):
        run(collector, 4)
    with pytest.raises(LookupError):
        collector.create_dataset("aa/b-v0")
    with pytest.raises(ResetNeeded):
        collector.step(0)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2, 3], [3, 4]]
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


@pytest.mark.parametrize("seed", [-1, 1.0, "7"])
def test_a_seed_that_cannot_be_stored_is_refused_before_anything_happens(seed) -> None:
    env = Counter()
    collector = DataCollector(env)
    with pytest.raises(InvalidEpisodeError, match="a seed must be None or a non-negative"):
        collector.reset(seed=seed)
    assert env.resets == []
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


def test_an_episode_that_the_disk_has_no_room_for_is_kept_until_it_has(monkeypatch) -> None:
    def full(file, data):
        raise OSError(28, "No space left on device")

    collector = DataCollector(Counter())
    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.recording.journal.writer._write", full)
        for seed in (1, 2):
            with pytest.raises(OSError, match="No space left"):
                run(collector, seed=seed)
        with pytest.raises(OSError, match="No space left"):
            collector.create_dataset("aa/b-v0")
        assert list_leftovers() == []
    run(collector, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr("minari_pipe.recording.journal.writer._write", full)
        with pytest.raises(OSError, match="No space left"):
            run(collector, seed=4)
    dataset = collector.create_dataset("aa/b-v0")
    found = dataset.storage.get_episode_metadata(range(4))
    assert [entry["seed"] for entry in found] == [1, 2, 3, 4]
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


def test_nothing_is_left_of_a_collection_that_was_taken(temporary: Path) -> None:
    collector = DataCollector(Counter())
    run(collector)
    assert [path.name for path in get_dataset_path().iterdir()] == [".minari_pipe"]
    dataset = collector.create_dataset("aa/b-v0")
    run(collector)
    collector.add_to_dataset(dataset)
    for _ in range(2):
        collector.close()
    assert [path.name for path in get_dataset_path().iterdir()] == ["aa"]
    with DataCollector(Counter()) as collector:
        collector.reset()
    collector = DataCollector(Counter())
    del collector
    gc.collect()
    assert [path.name for path in get_dataset_path().iterdir()] == ["aa"]
    assert list(temporary.iterdir()) == []


def test_a_root_that_cannot_be_written_sends_the_episodes_to_the_temporary_directory(
    temporary: Path,
) -> None:
    blocked = get_dataset_path() / ".minari_pipe"
    blocked.write_text("a file in the way")
    collector = DataCollector(Counter())
    run(collector)
    assert len(list(temporary.iterdir())) == 1
    assert len(collector.create_dataset("aa/b-v0")) == 1
    collector.close()
    assert list(temporary.iterdir()) == []


def test_a_forked_child_has_the_episodes_too_and_leaves_its_parent_s_alone() -> None:
    collector = DataCollector(Counter())
    run(collector, seed=1)
    child = os.fork()
    if child == 0:
        try:
            run(collector, seed=2)
            found = collector.create_dataset("aa/child-v0").storage.get_episode_metadata([0, 1])
            collector.close()
            os._exit(0 if [entry["seed"] for entry in found] == [1, 2] else 1)
        finally:
            os._exit(2)
    run(collector, seed=3)
    assert os.waitpid(child, 0)[1] == 0
    found = collector.create_dataset("aa/b-v0").storage.get_episode_metadata([0, 1])
    assert [entry["seed"] for entry in found] == [1, 3]
    collector.close()


@peer_leaves_folders
def test_the_reset_step_of_autoreset_is_no_transition(monkeypatch) -> None:
    let_minari_collect(monkeypatch)

    def collected(library) -> list[tuple[list[float], list[int]]]:
        # real Minari keeps observations by reference
        env = Autoreset(TransformObservation(Counter(info=lambda t: {"t": t}), np.copy, None))
        collector = library.DataCollector(env, record_infos=True)
        collector.reset(seed=1, options={"x": 1})
        for action in range(8):
            collector.step(action)
        dataset = collector.create_dataset(f"aa/{library.__name__.replace('_', '-')}-v0")
        collector.close()
        return [(found.observations.ravel().tolist(), found.actions.tolist()) for found in dataset]

    # the peer has the fault: the final observation of an episode begins the next one, and a
    # step that was never made leads from there to the reset's observation
    assert collected(minari)[1] == ([3, 0, 1, 2, 3], [3, 4, 5, 6])
    assert collected(minari_pipe) == [
        ([0, 1, 2, 3], [0, 1, 2]),
        ([0, 1, 2, 3], [4, 5, 6]),
    ]
    found = list(load_dataset("aa/minari-pipe-v0").storage.get_episode_metadata([0, 1]))
    assert [(entry.get("seed"), entry.get("options")) for entry in found] == [
        (1, {"x": 1}),
        (None, None),
    ]
    assert load_dataset("aa/minari-pipe-v0")[1].infos["t"].tolist() == [0, 1, 2, 3]


def test_an_episode_that_a_callback_prolongs_ends_where_autoreset_resets() -> None:
    def endless(**kwargs):
        return {**StepDataCallback()(**kwargs), "terminated": False}

    collector = DataCollector(TimeLimit(Autoreset(Counter()), 100), endless)
    run(collector, 6)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3], [0, 1, 2]]
    assert [found.truncations.tolist() for found in dataset] == [[0, 0, 1], [0, 1]]
    collector.close()


def test_an_end_that_only_the_callback_sees_brings_no_warning() -> None:
    def every_second(env, obs, action=None, **kwargs):
        data = StepDataCallback()(env, obs=obs, action=action, **kwargs)
        return {**data, "truncated": action is not None and int(obs[0]) % 2 == 0}

    collector = DataCollector(Counter(length=9), every_second)
    run(collector, 5)
    assert indices(collector.create_dataset("aa/b-v0")) == [[0, 1, 2], [2, 3, 4], [4, 5]]
    collector.close()


class Doubles(StepDataCallback):
    def __call__(self, env, **kwargs):
        data = super().__call__(env, **kwargs)
        data["observation"] = data["observation"] * 2
        return data


class OfMinari03(Doubles):
    def __init__(self, env) -> None:
        assert isinstance(env, Counter)


def last_reward(episode) -> dict[str, float]:
    return {"last": float(episode["rewards"][-1])}


@pytest.mark.parametrize("given", [Doubles, Doubles(), Doubles().__call__, OfMinari03])
def test_a_callback_is_a_class_an_instance_or_a_function(given) -> None:
    collector = DataCollector(Counter(), given, last_reward)
    run(collector)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 2, 4, 6]]
    assert next(iter(dataset.storage.get_episode_metadata([0])))["last"] == 3.0
    collector.close()


def test_what_is_no_callback_is_refused() -> None:
    for name in ("step_data_callback", "episode_metadata_callback"):
        with pytest.raises(ConfigError, match=f"{name} must be a class, an instance"):
            DataCollector(Counter(), **{name: 5})


def older(names: dict[str, str]) -> Any:
    """A callback that returns the step data under older names."""
    return lambda **kwargs: {
        names.get(key, key): value for key, value in StepDataCallback()(**kwargs).items()
    }


PLURAL = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "truncated": "truncations",
    "info": "infos",
}


class EditsPlural(StepDataCallback):
    """As callbacks of Minari 0.4 are written."""

    def __call__(self, env, **kwargs):
        data = super().__call__(env, **kwargs)
        assert "observations" in data
        data["observations"] = data["observations"] * 2
        if data["actions"] is not None:
            data["rewards"] = data["rewards"] + data.get("infos")["t"]
        return data


@pytest.mark.parametrize(
    "given",
    [
        older(PLURAL),
        older({"terminated": "termination", "truncated": "truncation"}),
        EditsPlural,
    ],
    ids=["plural", "0.5.0", "edited"],
)
def test_step_data_of_older_callbacks_is_understood(given) -> None:
    collector = DataCollector(Counter(info=lambda t: {"t": t}), given, record_infos=True)
    run(collector)
    found = collector.create_dataset("aa/b-v0")[0]
    factor = 2 if given is EditsPlural else 1
    assert found.observations.ravel().tolist() == [0, factor, 2 * factor, 3 * factor]
    assert found.rewards.tolist() == [factor, 2 * factor, 3 * factor]
    assert found.terminations.tolist() == [False, False, True]
    assert found.infos["t"].tolist() == [0, 1, 2, 3]
    collector.close()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "the step data must be a dict with the keys"),
        ({"action": 1}, r"the step data has no \['observation'\]"),
        ({"observation": np.zeros(1), "observations": 1}, "has 'observation' twice"),
        ({"observation": np.zeros(1), "rewards/x": 1}, "has the invalid key 'rewards/x'"),
        ({"observation": np.zeros(1), "extras": 1}, "has the invalid key 'extras'"),
    ],
)
def test_step_data_that_cannot_be_recorded_is_named(made, message) -> None:
    collector = DataCollector(Counter(), lambda **kwargs: made)
    with pytest.raises(InvalidEpisodeError, match=message):
        collector.reset()
    collector.close()


def test_an_episode_metadata_callback_must_return_attributes() -> None:
    for returned, message in [
        (None, "must return a dict, got NoneType"),
        ({"seed": 5}, r"cannot set \['seed'\]"),
        ({"x": object()}, r"episode 0: x cannot be stored"),
    ]:
        collector = DataCollector(
            Counter(), episode_metadata_callback=lambda episode, returned=returned: returned
        )
        with pytest.raises(InvalidEpisodeError, match=message):
            run(collector)
        collector.close()


def test_an_episode_outlives_a_metadata_callback_that_fails() -> None:
    def failing(episode):
        raise LookupError("no such key")

    collector = DataCollector(Counter(), episode_metadata_callback=failing)
    for seed in (5, 6):
        with pytest.raises(LookupError, match="no such key"):
            run(collector, seed=seed)
    dataset = collector.create_dataset("aa/b-v0")
    assert indices(dataset) == [[0, 1, 2, 3]] * 2
    assert dataset.episodes["seed"].tolist() == [5, 6]
    assert dataset.returns().tolist() == [6.0, 6.0]
    collector.close()


def test_the_metadata_callback_is_told_the_number_that_the_episode_has_in_the_dataset() -> None:
    calls: list[int] = []

    def number(episode) -> dict[str, int]:
        calls.append(episode["id"])
        return {"number": episode["id"]}

    collector = DataCollector(Counter(), episode_metadata_callback=number)
    run(collector)
    run(collector)
    dataset = collector.create_dataset("aa/b-v0")
    run(collector)
    collector.add_to_dataset(dataset)
    assert calls == [0, 1, 2]  # once each
    run(collector)
    other = collector.create_dataset("aa/c-v0")
    for one in (dataset, other):
        found = list(one.storage.get_episode_metadata(range(len(one))))
        assert [entry["number"] for entry in found] == list(range(len(one)))
    collector.close()


def with_state(env, obs, info, action=None, **kwargs):
    """Step data as in the standard's own example of an additional group."""
    data = StepDataCallback()(env, obs=obs, info=info, action=action, **kwargs)
    t = float(obs[0])
    data["state"] = {"qpos": np.full(2, t), "arm": ({"angle": t}, t)}
    data["motor"] = None if action is None else int(action)
    return data


def test_extra_step_data_is_recorded_with_a_row_for_the_reset_if_it_had_one() -> None:
    collector = DataCollector(Counter(length=99), with_state)
    for _ in range(2):
        run(collector, 3)
    dataset = collector.create_dataset("aa/b-v0")
    for found in dataset:
        assert_same(
            found.extras,
            {
                "motor": np.array([0, 1, 2]),
                "state": {
                    "qpos": np.array([[0.0, 0], [1, 1], [2, 2], [3, 3]]),
                    "arm": {
                        "_index_0": {"angle": np.array([0.0, 1, 2, 3])},
                        "_index_1": np.array([0.0, 1, 2, 3]),
                    },
                },
            },
        )
    assert "extras_filled" not in next(iter(dataset.storage.get_episode_metadata([0])))
    assert len(minari.load_dataset("aa/b-v0")[0]) == 3
    collector.close()


def test_extra_step_data_goes_on_after_an_end_without_a_reset() -> None:
    def truncating(**kwargs):
        data = with_state(**kwargs)
        data["truncated"] = kwargs.get("action") is not None and kwargs["obs"][0] == 2
        return data

    collector = DataCollector(Counter(length=99), truncating)
    run(collector, 4)
    dataset = collector.create_dataset("aa/b-v0")
    assert [found.extras["state"]["qpos"][:, 0].tolist() for found in dataset] == [
        [0, 1, 2],
        [2, 3, 4],
    ]
    assert [found.extras["motor"].tolist() for found in dataset] == [[0, 1], [2, 3]]
    collector.close()


def test_extra_step_data_may_come_and_go_and_says_where() -> None:
    def sometimes(env, obs, info, action=None, **kwargs):
        data = StepDataCallback()(env, obs=obs, info=info, action=action, **kwargs)
        if obs[0] == 2:
            data["contact"] = {"force": 5.0}
        return data

    collector = DataCollector(Counter(), sometimes)
    run(collector)
    dataset = collector.create_dataset("aa/b-v0")
    assert dataset[0].extras["contact"]["force"].tolist() == [0, 5, 0]
    attributes = next(iter(dataset.storage.get_episode_metadata([0])))
    assert attributes["extras_filled"] == {"contact.force": [[0, 1], [2, 3]]}
    collector.close()


def test_formats_and_images_that_cannot_be_written_are_named(temporary: Path) -> None:
    with pytest.raises(UnknownFormatError, match="parchment"):
        DataCollector(Counter(), data_format="parchment")
    image = spaces.Box(0, 255, (32, 32, 4), np.uint8)
    with pytest.raises(UnsupportedSpaceError, match=r"JPEG cannot hold images of shape .*4\)"):
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


def test_the_version_that_minari_0_4_took_is_judged_only() -> None:
    collector = DataCollector(Counter())
    run(collector, 1)
    with pytest.warns(DeprecationWarning, match=r"excludes 0\.5\.4") as caught:
        dataset = collector.create_dataset("aa/b-v0", minari_version="~=0.4.0")
    assert (dataset.minari_version, caught[0].filename) == ("0.5.4", __file__)
    collector.close()


class Ordered(gym.Env):
    """Observations of one space, whose keys have any order, and infos of any order."""

    action_space = spaces.Discrete(2)

    def __init__(self, keys: str) -> None:
        parts = {"a": spaces.Discrete(9), "b": spaces.Box(0, 1, (2,))}
        self.observation_space = spaces.Dict([(key, parts[key]) for key in keys])
        self.infos = ["xy"]

    def _made(self) -> tuple[dict[str, Any], dict[str, Any]]:
        values = {"x": 0.5, "y": np.float32(self.t)}
        observation = {"a": self.t, "b": np.full(2, 0.5, np.float32)}
        return observation, {key: values[key] for key in self.infos[0]}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._made()

    def step(self, action):
        self.t += 1
        observation, info = self._made()
        return observation, 1.0, self.t == 3, False, info


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_real_minari_reads_episodes_whose_keys_came_in_another_order(data_format) -> None:
    def collected(env: Ordered, *orders: str) -> DataCollector:
        collector = DataCollector(env, record_infos=True, data_format=data_format)
        for order in orders:
            env.infos = [order]
            for seed in range(3):
                collector.reset(seed=seed)
                for _ in range(3):
                    collector.step(1)
        return collector

    dataset = collected(Ordered("ab"), "xy", "yx", "xy").create_dataset("test/ordered-v0")
    collected(Ordered("ba"), "xy").add_to_dataset(dataset)
    expected = dataset.iterate_episodes([0, 4, 8, 11])
    read = minari.load_dataset if data_format != "parquet" else load_dataset
    found = read("test/ordered-v0").iterate_episodes([0, 4, 8, 11])
    for one, other in zip(found, expected, strict=True):
        assert_same(one.observations, other.observations)
        assert_same(one.infos, other.infos)
