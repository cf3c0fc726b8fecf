"""A vector collector records what single collectors record of each environment, in one order."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import TimeAwareObservation
from gymnasium.wrappers.vector import ClipReward, DictInfoToList, RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe import DataCollector, VectorDataCollector
from minari_pipe.core.episode import EpisodeBuffer, EpisodeMetadataCallback, StepDataCallback
from minari_pipe.core.tree import map_leaves
from minari_pipe.datasets.library import delete_dataset
from minari_pipe.errors import (
    ConfigError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    UnknownFormatError,
    UnsupportedSpaceError,
)
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recovery import list_leftovers, recover
from minari_pipe.testing import ARRAYS, assert_same, column, examples
from minari_pipe.testing import spaces as any_space
from tests.conftest import FULL

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(is set to None|env_spec is None):UserWarning",
    "ignore:(Observation|Action) is not in:UserWarning",
)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


def row(values: Any, place: int) -> Any:
    """One value of a column."""
    if isinstance(values, dict):
        return {key: row(part, place) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(row(part, place) for part in values)
    return values[place]


class Scripted(gym.Env):
    """Episode ``n`` of environment ``index`` is always the same, whatever it is reset with."""

    def __init__(self, observation_space, action_space, index: int = 0) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.index, self.episode = index, -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        rng = np.random.default_rng([self.index, self.episode])
        self.length = int(rng.integers(1, 7))
        self.values = column(self.observation_space, self.length + 1, rng)
        self.ends = rng.random() < 0.5
        self.keys = rng.random((self.length + 1, 9)) < 0.5
        self.t = 0
        return row(self.values, 0), self.info()

    def info(self) -> dict[str, Any]:
        t = self.t + 100 * self.index
        values = [
            t,
            t / 2,
            np.float32(t),
            t % 2 == 0,
            np.full(2, t),
            f"at {t}",
            [t, 1],
            np.bool_(t),
        ]
        infos: dict[str, Any] = {f"key {place}": value for place, value in enumerate(values)}
        infos["deep"] = {"a": t, "more": {"_b": t / 3}} if t % 3 else {}
        keys = zip(infos, self.keys[self.t], strict=True)
        return {key: infos[key] for key, has in keys if has}

    def step(self, action):
        self.t += 1
        is_over = self.t == self.length
        reward = self.t + 1000.5 * self.index
        observation = row(self.values, self.t)
        return observation, reward, is_over and self.ends, is_over and not self.ends, self.info()


def batch(space: gym.Space, values: list[Any]) -> Any:
    return concatenate(space, values, create_empty_array(space, len(values)))


class Singles:
    """Single collectors that are given what the environments of a vector get."""

    def __init__(self, makers: list[Callable[[], gym.Env]], mode: AutoresetMode, **kwargs) -> None:
        self.collectors = [DataCollector(maker(), **kwargs) for maker in makers]
        self.mode = mode
        self.over = [False] * len(makers)
        self.steps = [0] * len(makers)
        self.order: list[int] = []

    def reset(self, env: int, seed: Any, options: Any = None) -> None:
        if self.steps[env]:
            self.order.append(env)
        self.collectors[env]._autoseed = False
        self.collectors[env].reset(seed=seed, options=options)
        self.steps[env], self.over[env] = 0, False

    def step(self, actions: list[Any]) -> None:
        for env, (collector, action) in enumerate(zip(self.collectors, actions, strict=True)):
            if self.over[env]:
                assert self.mode is NEXT_STEP
                self.reset(env, None)
                continue
            *_, terminated, truncated, _ = collector.step(action)
            self.steps[env] += 1
            if terminated or truncated:
                self.order.append(env)
                self.steps[env], self.over[env] = 0, True
                if self.mode is SAME_STEP:
                    self.reset(env, None)

    def episodes(self) -> list[tuple[Any, dict[str, Any]]]:
        """Episodes with their metadata, in the order in which they ended."""
        self.order += [env for env, steps in enumerate(self.steps) if steps]
        each = []
        for env, collector in enumerate(self.collectors):
            each.append(deque(taken(collector, f"single/env{env}-v0")))
        return [each[env].popleft() for env in self.order]


def taken(collector: Any, dataset_id: str) -> list[tuple[Any, dict[str, Any]]]:
    """Make a dataset of what a collector has, return its episodes and remove it."""
    dataset = collector.create_dataset(dataset_id)
    collector.close()
    metadata = list(dataset.storage.get_episode_metadata(dataset.episode_indices))
    found = []
    for episode, attributes in zip(dataset, metadata, strict=True):
        attributes.pop("id")
        arrays = {name: getattr(episode, name) for name in ARRAYS}
        found.append((map_leaves(np.copy, arrays), attributes))
    delete_dataset(dataset_id)
    return found


def assert_same_episodes(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for (arrays, attributes), (right_arrays, right_attributes) in zip(found, expected, strict=True):
        assert_same(right_arrays, arrays)
        assert_same(right_attributes, attributes)


OPTIONS = [None, {"low": -0.5, "state": {"qpos": np.arange(3.0)}}, {"minari_autoseed": False}]


@pytest.mark.parametrize("record_infos", [True, False], ids=["infos", "no infos"])
@pytest.mark.parametrize("mode", AutoresetMode)
@examples(3 if FULL else 2)
@given(any_space(max_leaves=3), any_space(max_leaves=3), st.integers(0, 2**32))
def test_it_records_what_single_collectors_do(
    mode, record_infos, observation_space, action_space, seed
) -> None:
    if not is_iterable(action_space):
        action_space = spaces.Discrete(9)
    rng = np.random.default_rng(seed)
    n_envs = int(rng.integers(1, 5))
    makers = [partial(Scripted, observation_space, action_space, env) for env in range(n_envs)]
    singles = Singles(makers, mode, record_infos=record_infos)
    collector = VectorDataCollector(
        SyncVectorEnv(makers, autoreset_mode=mode), record_infos=record_infos
    )
    for _ in range(rng.integers(1, 4)):
        reset(collector, singles, rng)
        for _ in range(rng.integers(25 if FULL else 12)):
            if mode is DISABLED and any(singles.over):
                reset(collector, singles, rng, np.array(singles.over))
            elif rng.random() < 0.05:
                reset(collector, singles, rng, rng.random(n_envs) < 0.5)
            values = column(action_space, n_envs, rng)
            actions = [row(values, env) for env in range(n_envs)]
            collector.step(batch(action_space, actions))
            singles.step(actions)
    assert_same_episodes(taken(collector, "vector/all-v0"), singles.episodes())


def is_iterable(space: gym.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return bool(space.spaces) and all(map(is_iterable, space.values()))
    return not isinstance(space, spaces.Tuple) or (
        bool(space.spaces) and all(map(is_iterable, space))
    )


def reset(collector, singles, rng, mask=None) -> None:
    """Reset environments of both, each with a seed and options of one kind or another."""
    n_envs = collector.num_envs
    options = OPTIONS[rng.integers(len(OPTIONS))]
    first = int(rng.integers(1000))
    seeds: Any = [[first + env for env in range(n_envs)], rng.integers(9, size=n_envs).tolist()]
    kind = rng.integers(3)
    seed, each = ((first, seeds[0]), (seeds[1], seeds[1]), (None, [None] * n_envs))[kind]
    if seed is None:
        options = OPTIONS[-1]
    if mask is None or not mask.any():
        collector.reset(seed=seed, options=options)
        mask = [True] * n_envs
    else:
        collector.reset(seed=seed, options={**(options or {}), "reset_mask": mask})
    for env in range(n_envs):
        if mask[env]:
            singles.reset(env, each[env], options)


class Steps(gym.Env):
    """Observes the step index; ends after ``length`` steps, at ``fails_at`` it raises."""

    observation_space = spaces.Box(0, 10**6, (1,), np.float64)
    action_space = spaces.Discrete(50)

    def __init__(self, length: int = 3, fails_at: int = -1, *, reuses: bool = False) -> None:
        self.length, self.fails_at, self.reuses = length, fails_at, reuses
        self.shown = np.zeros(1)

    def observed(self) -> np.ndarray:
        self.shown[0] = self.t
        return self.shown if self.reuses else self.shown.copy()

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observed(), {"seed": str(seed)}

    def step(self, action):
        self.t += 1
        if self.t == self.fails_at:
            raise RuntimeError("the robot fell off the table")
        return self.observed(), float(self.t), self.t >= self.length, False, {"t": self.t}


def made_of(*lengths: int, mode: AutoresetMode = NEXT_STEP, **kwargs: Any) -> VectorDataCollector:
    envs = SyncVectorEnv([partial(Steps, length) for length in lengths], autoreset_mode=mode)
    return VectorDataCollector(envs, **kwargs)


def act(collector: VectorDataCollector, *steps: int) -> None:
    for step in steps:
        collector.step(np.full(collector.num_envs, step))


def seen(collector: VectorDataCollector) -> list[tuple[list[int], list[int]]]:
    """Observations and actions of each episode."""
    dataset = collector.create_dataset("aa/seen-v0")
    return [(e.observations.ravel().astype(int).tolist(), e.actions.tolist()) for e in dataset]


@pytest.mark.parametrize(
    ("mode", "third", "after"),
    [
        (NEXT_STEP, ([0, 1, 2], [3, 4]), []),  # action 2 was that of the reset
        (SAME_STEP, ([0, 1, 2], [2, 3]), [([0, 1], [4])]),
    ],
    ids=["next step", "same step"],
)
def test_episodes_have_the_order_of_their_ends_and_no_step_that_was_a_reset(mode, third, after):
    collector = made_of(2, 5, mode=mode)
    collector.reset(seed=5)
    act(collector, 0, 1, 2, 3, 4)
    long = ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    # those of one step by the index of their environment
    between = [third, long] if mode is NEXT_STEP else [third, long, *after]
    assert seen(collector) == [([0, 1, 2], [0, 1]), *between]
    assert collector.total_steps == (9 if mode is NEXT_STEP else 10)
    collector.close()


def test_real_minari_loads_what_was_recorded() -> None:
    collector = VectorDataCollector(gym.make_vec("CartPole-v1", 3, "sync"), record_infos=True)
    collector.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(80):
        collector.step(rng.integers(2, size=3))
    dataset = collector.create_dataset("cartpole/vector-v0")
    collector.close()
    loaded = minari.load_dataset("cartpole/vector-v0")
    assert loaded.total_episodes == len(dataset) > 3
    assert loaded.total_steps == collector.total_steps
    for own, theirs in zip(dataset, loaded, strict=True):
        for name in ARRAYS[:-1]:
            assert_same(getattr(own, name), getattr(theirs, name))
    assert loaded.recover_environment().spec == gym.make("CartPole-v1").spec


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_recorded_seed_replays_its_episode(mode) -> None:
    env = gym.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": mode})
    collector = VectorDataCollector(env)
    rng = np.random.default_rng(0)
    collector.reset()  # without any seed of ours
    over = np.zeros(3, bool)
    for _ in range(50):
        if mode is DISABLED and over.any():
            collector.reset(seed=rng.integers(9, size=3), options={"reset_mask": over})
        *_, terminated, truncated, _ = collector.step(rng.integers(2, size=3))
        over = terminated | truncated
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    seeds = list(dataset.episodes["seed"])
    assert sum(seed is not None for seed in seeds) == (len(seeds) if mode is DISABLED else 3)
    single = dataset.recover_environment()
    for seed, episode in zip(seeds, dataset, strict=True):
        if seed is None:
            continue
        found = [single.reset(seed=int(seed))[0]]
        found += [single.step(action)[0] for action in episode.actions]
        assert_same(episode.observations, np.array(found))


def test_without_a_seed_each_environment_gets_its_own_unless_it_is_told_not_to() -> None:
    collector = made_of(2, 2, 2, mode=DISABLED, record_infos=True)
    for options in (None, {"minari_autoseed": False}):
        collector.reset(options=options)
        act(collector, 0, 1)
    collector.reset(seed=[4, None, 6])
    act(collector, 0)
    dataset = collector.create_dataset("aa/b-v0")
    seeds = [None if seed is None else int(seed) for seed in dataset.episodes["seed"]]
    assert len({*seeds[:3], seeds[7]}) == 4
    assert None not in {*seeds[:3], seeds[7]}
    assert seeds[3:6] == [None] * 3
    assert (seeds[6], seeds[8]) == (4, 6)
    assert [episode.infos["seed"][0] for episode in dataset] == [str(seed) for seed in seeds]
    collector.close()


@pytest.mark.parametrize(
    ("unfinished", "lengths"),
    [("truncate", [2, 2, 1, 1, 2, 3]), ("drop", [2, 2, 1, 1, 2])],
    ids=["truncated", "dropped"],
)
def test_episodes_open_at_the_end_are_truncated_or_dropped(unfinished, lengths) -> None:
    collector = made_of(2, 9, unfinished=unfinished)
    collector.reset(seed=1)
    act(collector, 0, 1)
    collector.reset(seed=1)  # truncates that of the second, whatever is said
    act(collector, 0)
    collector.reset(seed=1)
    act(collector, 0, 1, 2)
    dataset = collector.create_dataset("aa/b-v0")
    assert [len(episode) for episode in dataset] == lengths
    assert [bool(episode.truncations[-1]) for episode in dataset][:5] == [False, *[True] * 3, False]
    with pytest.raises(ResetNeeded, match=r"before a reset\(\) of environments \[0, 1\]"):
        act(collector, 0)
    collector.reset(seed=1)
    act(collector, 0)
    collector.close()
    kept = [leftover.episodes for leftover in list_leftovers()]
    assert kept == ([2] if unfinished == "truncate" else [])


def test_an_environment_that_fails_costs_no_more_than_its_last_step() -> None:
    envs = SyncVectorEnv([partial(Steps, 2), partial(Steps, 9, fails_at=4), partial(Steps, 9)])
    collector = VectorDataCollector(envs)
    collector.reset(seed=1)
    act(collector, 0, 1, 2)
    with pytest.raises(RuntimeError, match="fell off"):
        act(collector, 3)
    with pytest.raises(ResetNeeded, match="after a failed step"):
        act(collector, 4)
    collector.reset(seed=1)
    act(collector, 5)
    broken_off = ([0, 1, 2, 3], [0, 1, 2])
    assert seen(collector) == [([0, 1, 2], [0, 1]), *[broken_off] * 2, *[([0, 1], [5])] * 3]
    collector.close()


def test_a_value_that_is_refused_ends_no_other_episode_before_its_step() -> None:
    class Wrong(Steps):
        def step(self, action):
            observation, *rest, info = super().step(action)
            return observation, *rest, {"bad": {1: 2}} if self.t == 2 else info

    envs = SyncVectorEnv([partial(Steps, 5), partial(Wrong, 5), partial(Steps, 2)])
    collector = VectorDataCollector(envs, record_infos=True)
    collector.reset(seed=1)
    act(collector, 0)
    with pytest.raises(InvalidEpisodeError, match="bad.1: keys of infos must be strings"):
        act(collector, 1)
    # the third ended with that step, the others are broken off after it
    assert seen(collector) == [([0, 1, 2], [0, 1])] * 2 + [([0, 1], [0])]
    collector.close()


def vector(mode: Any = NEXT_STEP, *, n_envs: int = 2, env: Any = Steps, **kwargs: Any) -> Any:
    return SyncVectorEnv([env] * n_envs, autoreset_mode=mode, **kwargs)


def saying(mode: Any) -> SyncVectorEnv:
    envs = vector()
    envs.metadata = {} if mode is None else {"autoreset_mode": mode}
    return envs


class NoActions(Steps):
    action_space = spaces.Dict(hand=spaces.Dict())


class Graphs(Steps):
    observation_space = spaces.Graph(spaces.Box(0, 1, (1,)), None)


class Joined(SyncVectorEnv):
    """Its batches have no axis for the environments."""

    def __init__(self) -> None:
        super().__init__([Steps, Steps])
        self.observation_space = spaces.Box(0, 1, (2, 7))


BAD_ENVIRONMENTS = {
    "a single environment": (
        lambda: VectorDataCollector(Steps()),
        ConfigError,
        "takes a gymnasium.vector.VectorEnv, got Steps; use DataCollector for a single environment",
    ),
    "no environment": (lambda: VectorDataCollector(3), ConfigError, "VectorEnv, got int"),
    "no autoreset mode": (
        lambda: VectorDataCollector(saying(None)),
        ConfigError,
        r"SyncVectorEnv.metadata\['autoreset_mode'\] is None.*'NEXT_STEP', 'SAME_STEP', 'DISABLED'",
    ),
    "an unknown autoreset mode": (
        lambda: VectorDataCollector(saying("sometimes")),
        ConfigError,
        "is 'sometimes', which does not say which steps are resets",
    ),
    "an unknown option": (
        lambda: VectorDataCollector(vector(), unfinished="keep"),
        ConfigError,
        r"unfinished must be one of \['truncate', 'drop'\], got 'keep'",
    ),
    "a hook that cannot be called": (
        lambda: VectorDataCollector(vector(), on_episode=3),
        ConfigError,
        "on_episode must be callable, got 3",
    ),
    "actions that Gymnasium cannot hand out": (
        lambda: VectorDataCollector(vector(env=NoActions)),
        UnsupportedSpaceError,
        r"cannot iterate over 2 actions of Dict\('hand': Dict\(\)\)",
    ),
    "observations that no dataset holds": (
        lambda: VectorDataCollector(vector(env=Graphs)),
        UnsupportedSpaceError,
        "No serialization method available for",
    ),
    "batches that are none": (
        lambda: VectorDataCollector(Joined()),
        UnsupportedSpaceError,
        r"observations: the vector environment's space Box.* is not 2 times Box",
    ),
    "a spec that is none": (
        lambda: VectorDataCollector(vector(), env_spec="Cartpol-v7"),
        ConfigError,
        "env_spec must be a gymnasium EnvSpec or an environment id, got 'Cartpol-v7'",
    ),
    "a spec of another kind": (
        lambda: VectorDataCollector(vector(), env_spec=3),
        ConfigError,
        "env_spec must be a gymnasium EnvSpec or an environment id, got 3",
    ),
    "a format that is none": (
        lambda: VectorDataCollector(vector(), data_format="zip"),
        UnknownFormatError,
        "zip",
    ),
}


@pytest.mark.parametrize("case", BAD_ENVIRONMENTS.values(), ids=BAD_ENVIRONMENTS)
def test_what_cannot_be_recorded_is_refused_at_once(case) -> None:
    make, error, message = case
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert not list_leftovers()


MASK = np.array([True, False])
BAD_CALLS = {
    "a step before the reset": (
        lambda envs: envs.step([0, 0]),
        ResetNeeded,
        r"before a reset\(\) of environments \[0, 1\]",
    ),
    "a first reset of some": (
        lambda envs: envs.reset(options={"reset_mask": MASK}),
        ResetNeeded,
        r"environments \[1\] were never reset",
    ),
    "a mask of another length": (
        lambda envs: envs.reset(options={"reset_mask": np.ones(3, bool)}),
        ConfigError,
        r"must be an array of 2 booleans, got ndarray of bool and shape \(3,\)",
    ),
    "a mask of numbers": (
        lambda envs: envs.reset(options={"reset_mask": np.ones(2)}),
        ConfigError,
        r"must be an array of 2 booleans, got ndarray of float64 and shape \(2,\)",
    ),
    "a mask that is a list": (
        lambda envs: envs.reset(options={"reset_mask": [True, False]}),
        ConfigError,
        r"must be an array of 2 booleans, got list \[True, False\]",
    ),
    "a mask of nothing": (
        lambda envs: envs.reset(options={"reset_mask": np.zeros(2, bool)}),
        ConfigError,
        "resets no environment",
    ),
    "too few seeds": (
        lambda envs: envs.reset(seed=[1]),
        InvalidEpisodeError,
        "expected one seed for each of 2 environments, got 1",
    ),
    "a seed that is none": (
        lambda envs: envs.reset(seed=[1, -2]),
        InvalidEpisodeError,
        "a seed must be None or a non-negative integer, got int -2",
    ),
    "options that are none": (
        lambda envs: envs.reset(options=3),
        InvalidEpisodeError,
        "options must be a dict or None",
    ),
    "options that cannot be stored": (
        lambda envs: envs.reset(options={"a": object()}),
        InvalidEpisodeError,
        "options",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_that_makes_no_sense_is_refused_and_nothing_is_done(case) -> None:
    call, error, message = case
    collector = made_of(5, 5, mode=DISABLED)
    with pytest.raises(error, match=message) as caught:
        call(collector)
    assert "\n" not in str(caught.value)
    collector.reset(seed=1)
    act(collector, 0)
    if error is not ResetNeeded:
        with pytest.raises(error, match=message):
            call(collector)
    act(collector, 1)
    assert seen(collector) == [([0, 1, 2], [0, 1])] * 2
    collector.close()


BAD_ACTIONS = {
    "too few": (np.zeros(1, int), "actions must have a row for each of 2 environments, got 1"),
    "too many": ([0, 1, 2], "actions must have a row for each of 2 environments, got 3"),
    "one for all": (7, "for each of 2 environments, got int 7"),
    "none": (None, "for each of 2 environments, got NoneType None"),
    "a dict": ({0: 1, 1: 1}, "for each of 2 environments, got dict"),
}


@pytest.mark.parametrize("case", BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_actions_that_are_not_one_for_each_are_refused_and_no_environment_steps(case) -> None:
    actions, message = case
    collector = made_of(5, 5)
    collector.reset(seed=1)
    act(collector, 0)
    with pytest.raises(InvalidEpisodeError, match=message):
        collector.step(actions)
    act(collector, 1)
    assert seen(collector) == [([0, 1, 2], [0, 1])] * 2
    collector.close()


def test_actions_of_another_structure_name_the_part() -> None:
    class Hands(Steps):
        action_space = spaces.Dict(left=spaces.Discrete(3), both=spaces.Tuple([spaces.Discrete(2)]))

    collector = VectorDataCollector(vector(env=Hands))
    collector.reset(seed=1)
    whole = {"left": np.zeros(2, int), "both": (np.zeros(2, int),)}
    for actions, message in (
        ({"left": whole["left"]}, r"actions of all environments must be a mapping with \['left'"),
        (
            {**whole, "both": (np.zeros(3, int),)},
            r"actions.both._index_0 must have a row for each",
        ),
        ({**whole, "both": ()}, r"actions.both of all environments must be a sequence with \[0\]"),
    ):
        with pytest.raises(InvalidEpisodeError, match=message):
            collector.step(actions)
    collector.step(whole)
    collector.close()


def test_an_environment_that_ended_must_be_reset_if_nobody_else_does() -> None:
    collector = made_of(9, 1, 1, mode=DISABLED)
    collector.reset(seed=1)
    act(collector, 0)
    message = (
        r"environments \[1, 2\] have ended and were not reset, and their autoreset is DISABLED"
    )
    with pytest.raises(ResetNeeded, match=message):
        act(collector, 1)
    collector.reset(seed=[0, 7, 0], options={"reset_mask": np.array([False, True, False])})
    with pytest.raises(ResetNeeded, match=r"environments \[2\] have ended"):
        act(collector, 1)
    collector.reset(seed=[0, 0, 8], options={"reset_mask": np.array([False, False, True])})
    act(collector, 1)
    dataset = collector.create_dataset("aa/b-v0")
    assert [int(seed) for seed in dataset.episodes["seed"]] == [2, 3, 7, 8, 1]
    attributes = dataset.storage.get_episode_metadata(range(5))
    assert not any("options" in entry for entry in attributes)  # a mask is none of those
    collector.close()


def test_the_last_observation_that_gymnasium_overwrites_is_not_recorded() -> None:
    collector = VectorDataCollector(vector(SAME_STEP, env=partial(Steps, reuses=True)))
    collector.reset(seed=1)
    act(collector, 0, 1)
    with pytest.raises(InvalidEpisodeError, match="environment 0 reuses its observation array"):
        act(collector, 2)
    assert seen(collector) == [([0, 1, 2], [0, 1])] * 2
    collector.close()
    for mode in (NEXT_STEP, DISABLED):
        collector = VectorDataCollector(vector(mode, env=partial(Steps, reuses=True)))
        collector.reset(seed=1)
        act(collector, 0, 1, 2)
        delete_dataset("aa/seen-v0")
        assert seen(collector) == [([0, 1, 2, 3], [0, 1, 2])] * 2
        collector.close()


class Constant(Steps):
    """Ends as it began, in arrays of its own."""

    def observed(self) -> np.ndarray:
        return np.zeros(1)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_nor_is_one_that_gymnasium_overwrites_in_another_process(shared_memory) -> None:
    kwargs = {"autoreset_mode": SAME_STEP, "shared_memory": shared_memory}
    makers = [Constant, partial(Steps, reuses=True)]
    collector = VectorDataCollector(AsyncVectorEnv(makers, **kwargs))
    collector.reset(seed=1)
    act(collector, 0, 1)
    with pytest.raises(InvalidEpisodeError, match="1 reuses its observation .* AsyncVectorEnv has"):
        act(collector, 2)
    assert seen(collector) == [([0, 0, 0, 0], [0, 1, 2]), ([0, 1, 2], [0, 1])]
    collector.close()


def test_a_closed_collector_refuses_and_a_copy_is_refused() -> None:
    with made_of(2) as collector:
        collector.reset(seed=1)
        with pytest.raises(TypeError, match="a VectorDataCollector cannot be copied or pickled"):
            pickle.dumps(collector)
    for call in (collector.reset, lambda: act(collector, 0), lambda: seen(collector)):
        with pytest.raises(DatasetNotFoundError, match="this VectorDataCollector is closed"):
            call()


def test_what_is_strict_refuses_a_value_outside_of_its_space() -> None:
    collector = made_of(3, 3, strict=True)
    collector.reset(seed=1)
    act(collector, 49)
    with pytest.raises(InvalidEpisodeError, match="Action is not in action space"):
        act(collector, 50)
    assert seen(collector) == [([0, 1], [49])] * 2
    collector.close()
    collector = made_of(1, 9)
    collector.reset(seed=1)
    with pytest.warns(UserWarning, match="(?s)Action is not.*Episode 0: 1 of 1 actions"):
        act(collector, 50)
    collector.close()


class WithState(StepDataCallback):
    """Adds the environment's own state, and says what ends another time than the environment."""

    def __init__(self, *, early: int = 0, late: bool = False) -> None:
        self.early, self.late, self.calls = early, late, 0

    def __call__(self, env, **values):
        self.calls += 1
        data = super().__call__(env, **values)
        data["state"] = {"t": env.unwrapped.t, "calls": self.calls}
        if env.unwrapped.t % 2:
            data["odd"] = np.full(2, env.unwrapped.t)
        if self.early and data["action"] is not None and env.unwrapped.t == self.early:
            data["truncated"] = True
        if self.late and data["action"] is not None:
            data["terminated"] = data["truncated"] = False
        return data


class Early(WithState):
    def __init__(self) -> None:
        super().__init__(early=2)


class Late(WithState):
    def __init__(self) -> None:
        super().__init__(late=True)


@pytest.mark.parametrize("made", [WithState, Early, Late])
@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_callbacks_see_the_environment_and_have_the_same_say_as_with_one(mode, made) -> None:
    class Lengthy(EpisodeMetadataCallback):
        def __call__(self, episode):
            return {"longer": len(episode["rewards"]) > 2}

    makers = [partial(Steps, length) for length in (3, 5, 1)]
    kwargs: Any = {
        "step_data_callback": made,
        "episode_metadata_callback": Lengthy,
        "record_infos": True,
    }
    collector = VectorDataCollector(SyncVectorEnv(makers, autoreset_mode=mode), **kwargs)
    rng = np.random.default_rng(0)
    log: list[Any] = [("reset", [4, 5, 6], [True] * 3)]
    collector.reset(seed=4)
    for _ in range(14):
        actions = rng.integers(50, size=3)
        *_, terminated, _, _ = collector.step(actions)
        log.append(("step", actions, None))
        if mode is DISABLED and terminated.any():
            seeds = rng.integers(99, size=3).tolist()
            collector.reset(seed=seeds, options={"reset_mask": terminated})
            log.append(("reset", seeds, terminated))
    found = of_each_environment(collector, "aa/vector-v0")
    expected = []
    for env, maker in enumerate(makers):
        single = DataCollector(maker(), **kwargs)
        single._autoseed = over = False
        for what, values, mask in log:
            if what == "reset":
                if mask[env]:
                    single.reset(seed=values[env])
            elif over and mode is NEXT_STEP:
                single.reset()
                over = False
            else:
                over = single.step(values[env])[2]
        expected += of_each_environment(single, f"aa/single{env}-v0")
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert len(found) > 5


def of_each_environment(collector: Any, dataset_id: str) -> list[Any]:
    dataset = collector.create_dataset(dataset_id)
    collector.close()
    attributes = list(dataset.storage.get_episode_metadata(range(len(dataset))))
    for entry in attributes:
        entry.pop("id")
    return [
        [episode.observations, episode.actions, episode.truncations, episode.extras, entry]
        for episode, entry in zip(dataset, attributes, strict=True)
    ]


def test_a_callback_that_asks_for_an_environment_elsewhere_is_told_so() -> None:
    for envs, reason in (
        (vector(SAME_STEP), "with autoreset SAME_STEP it is reset before its last step"),
        (gym.make_vec("CartPole-v1", 2, "vector_entry_point"), "a CartPoleVectorEnv has no single"),
    ):
        collector = VectorDataCollector(envs, step_data_callback=WithState)
        with pytest.raises(ConfigError, match=f"uses env.unwrapped, but {reason}"):
            collector.reset(seed=1)
        collector.close()


def test_processes_record_what_one_process_does() -> None:
    makers = [partial(Scripted, spaces.Box(-1, 1, (2,)), spaces.Discrete(5), env) for env in (0, 1)]
    found = []
    for mode in AutoresetMode:
        for cls in (SyncVectorEnv, AsyncVectorEnv):
            collector = VectorDataCollector(cls(makers, autoreset_mode=mode), record_infos=True)
            rng = np.random.default_rng(0)
            collector.reset(seed=7)
            for _ in range(20):
                *_, terminated, truncated, _ = collector.step(rng.integers(5, size=2))
                over = terminated | truncated
                if mode is DISABLED and over.any():
                    collector.reset(seed=[1, 2], options={"reset_mask": over})
            found.append(taken(collector, "aa/b-v0"))
        assert len(found[-1]) > 5
        assert_same_episodes(found[-1], found[-2])


def test_a_reset_that_processes_forget_is_refused() -> None:
    collector = VectorDataCollector(AsyncVectorEnv([partial(Steps, 2)] * 2, shared_memory=False))
    collector.reset(seed=1)
    act(collector, 0, 1)
    with pytest.raises(ConfigError, match="again at the next step if its episode has just ended"):
        collector.reset(seed=1)
    act(collector, 2)  # the reset
    collector.reset(seed=1)
    act(collector, 3)
    assert seen(collector) == [([0, 1, 2], [0, 1])] * 2 + [([0, 1], [3])] * 2
    collector.reset(seed=1)
    act(collector, 4, 5)
    delete_dataset("aa/seen-v0")
    seen(collector)
    with pytest.raises(ConfigError, match="has just ended"):  # that had ended before the dataset
        collector.reset(seed=1)
    collector.close()


def test_gymnasium_s_processes_forget_a_reset() -> None:
    """If this fails, Gymnasium is mended, and the refusal of it should go."""
    envs = AsyncVectorEnv([partial(Steps, 1)], shared_memory=False)
    envs.reset()
    envs.step([0])
    envs.reset()
    assert envs.step([0])[1].tolist() == [0]
    envs.close()


class Talking(Steps):
    observation_space = spaces.Dict(said=spaces.Text(4))

    def observed(self):
        return {"said": "abc"[: self.t]}


def test_text_that_processes_lose_is_refused() -> None:
    envs = AsyncVectorEnv([Talking] * 2)
    with pytest.raises(UnsupportedSpaceError, match=r"observations.said: .* shared_memory=False"):
        VectorDataCollector(envs)
    envs.close()
    assert not list_leftovers()
    with VectorDataCollector(AsyncVectorEnv([Talking], shared_memory=False)) as collector:
        collector.reset(seed=1)
        act(collector, 0, 1)
        (episode,) = collector.create_dataset("aa/b-v0")
        assert episode.observations["said"] == ["", "a", "ab"]


def test_gymnasium_s_processes_lose_text() -> None:
    """If this fails, Gymnasium is mended, and the refusal of it should go."""
    envs = AsyncVectorEnv([Talking])
    first, second = envs.reset()[0]["said"], envs.step([0])[0]["said"]
    assert first == second == ("0000",)
    envs.close()


def test_environments_vectorised_by_themselves_have_no_seed_of_a_single_one() -> None:
    collector = VectorDataCollector(
        gym.make_vec("CartPole-v1", 4, "vector_entry_point", max_episode_steps=9)
    )
    plain = gym.make_vec("CartPole-v1", 4, "vector_entry_point", max_episode_steps=9)
    rng = np.random.default_rng(0)
    returned, reset = [], plain.reset(seed=3)[0]
    assert_same(collector.reset(seed=3)[0], reset)
    for _ in range(30):
        actions = rng.integers(2, size=4)
        returned.append((actions, *plain.step(actions)))
        assert_same(collector.step(actions)[0], returned[-1][1])
    with pytest.raises(ConfigError, match="CartPoleVectorEnv resets its environments itself"):
        collector.reset(options={"reset_mask": np.ones(4, bool)})
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    expected = []  # by hand: (end, environment, observations, actions)
    for env in range(4):
        seen, given, over = [reset[env]], [], False
        for step, (actions, observations, _, terminated, truncated, _) in enumerate(returned):
            if over:
                seen, given, over = [observations[env]], [], False
                continue
            seen.append(observations[env])
            given.append(actions[env])
            over = terminated[env] or truncated[env]
            if over or step == 29:
                expected.append((step + (not over), env, np.array(seen), np.array(given)))
    expected.sort(key=lambda one: one[:2])
    assert len(dataset) == len(expected)
    for episode, (_, _, observations, actions) in zip(dataset, expected, strict=True):
        assert_same(episode.observations, observations)
        assert_same(episode.actions, actions)
    assert set(dataset.episodes["seed"]) == {None}
    single = dataset.recover_environment()
    assert single.spec.max_episode_steps == 9
    assert single.spec.kwargs == {}


def test_the_infos_of_wrappers_are_those_of_their_environment() -> None:
    makers = [partial(Steps, length) for length in (2, 3)]
    for wrapped in (
        RecordEpisodeStatistics,
        lambda env: DictInfoToList(RecordEpisodeStatistics(env)),
    ):
        for mode in (NEXT_STEP, SAME_STEP):
            envs = SyncVectorEnv(makers, autoreset_mode=mode)
            collector = VectorDataCollector(wrapped(envs), record_infos=True)
            collector.reset(seed=1)
            act(collector, 0, 1, 2)
            first, second = list(collector.create_dataset("aa/b-v0"))[:2]
            assert (first.infos["t"].tolist(), second.infos["t"].tolist()) == (
                [0, 1, 2],
                [0, 1, 2, 3],
            )
            if mode is NEXT_STEP:
                assert first.infos["episode"]["l"].tolist() == [0, 0, 2]
                assert second.infos["episode"]["r"].tolist() == [0, 0, 0, 6]
            collector.close()
            delete_dataset("aa/b-v0")


@pytest.mark.parametrize("made", ["sync", "async"])
def test_the_environment_is_recovered_with_its_wrappers(made) -> None:
    envs = gym.make_vec(
        "CartPole-v1",
        2,
        made,
        wrappers=(TimeAwareObservation,),
        sutton_barto_reward=True,
        max_episode_steps=4,
    )
    collector = VectorDataCollector(envs)
    collector.reset(seed=5)
    act(collector, 0, 1, 0, 1)
    dataset = collector.create_dataset("aa/b-v0")
    collector.close()
    single = dataset.recover_environment()
    assert single.observation_space == dataset.observation_space
    observation, _ = single.reset(seed=5)
    assert_same(dataset[0].observations[0], observation)
    for action, expected in zip(dataset[0].actions, dataset[0].observations[1:], strict=True):
        assert_same(expected, single.step(action)[0])


def test_a_spec_that_would_be_wrong_is_not_recorded() -> None:
    def spec_of(envs: Any, **kwargs: Any) -> Any:
        collector = VectorDataCollector(envs, **kwargs)
        collector.reset(seed=1)
        collector.step(collector.action_space.sample())
        dataset = collector.create_dataset("aa/b-v0")
        collector.close()
        delete_dataset("aa/b-v0")
        return dataset.spec.env_spec

    cart_pole = gym.spec("CartPole-v1")
    makers = [partial(gym.make, "CartPole-v1", sutton_barto_reward=each) for each in (True, False)]
    assert spec_of(SyncVectorEnv(makers)) is None
    clipped = ClipReward(gym.make_vec("CartPole-v1", 2, "sync"), 0, 0.5)
    assert spec_of(clipped) is None
    for said in (cart_pole, "CartPole-v1"):
        assert spec_of(clipped, env_spec=said) == cart_pole
    assert spec_of(vector()) is None


def test_a_hook_gets_each_episode_when_it_ends_with_the_steps_so_far() -> None:
    got: list[tuple[int, int, int]] = []

    def take(episode: EpisodeBuffer, total_steps: int) -> None:
        got.append((total_steps, len(episode), episode.seed))
        assert total_steps == collector.total_steps
        assert episode.id == len(got) - 1

    collector = made_of(2, 3, 2, mode=DISABLED, on_episode=take)
    collector.reset(seed=10)
    act(collector, 0, 1)
    assert got == [(6, 2, 10), (6, 2, 12)]
    collector.reset(seed=[20, 21, 22], options={"reset_mask": np.array([True, False, True])})
    act(collector, 2)
    assert got[2:] == [(9, 3, 11)]
    with pytest.raises(ConfigError, match="went to on_episode"):
        seen(collector)
    collector.close()  # truncates two
    assert got[3:] == [(9, 1, 20), (9, 1, 22)]
    assert not list_leftovers()


def test_an_episode_that_a_hook_did_not_take_is_left_to_be_recovered() -> None:
    def fail(episode: EpisodeBuffer, total_steps: int) -> None:
        raise OSError("no space left on device")

    collector = made_of(2, 9, on_episode=fail)
    collector.reset(seed=1)
    act(collector, 0)
    with pytest.raises(OSError, match="no space left"):
        act(collector, 1)
    collector.close()
    (leftover,) = list_leftovers()
    assert recover("aa/b-v0", leftover).total_episodes == 2


class Halved(StepDataCallback):
    """Records half of the observation, and another action."""

    def __call__(self, **values):
        data = super().__call__(**values)
        data["observation"] = np.float32(data["observation"] / 2)
        if data["action"] is not None:
            data["action"] = {"name": f"push {data['action']}"}
        return data


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_what_callbacks_make_of_it_is_appended_in_every_format(data_format) -> None:
    collector = made_of(
        2,
        3,
        step_data_callback=Halved,
        observation_space=spaces.Box(0, 9, (1,), np.float32),
        action_space=spaces.Dict(name=spaces.Text(9, charset="push 0127")),
        data_format=data_format,
    )
    collector.reset(seed=np.int64(4))
    act(collector, 0, 1, 2)
    dataset = collector.create_dataset("aa/b-v0")
    collector.reset(seed=9)
    act(collector, 7)
    collector.add_to_dataset(dataset)
    collector.close()
    assert [int(seed) for seed in dataset.episodes["seed"]] == [4, 5, 9, 10]
    assert_same(dataset[1].observations, np.array([[0], [0.5], [1], [1.5]], np.float32))
    assert [list(episode.actions["name"]) for episode in dataset] == [
        ["push 0", "push 1"],
        ["push 0", "push 1", "push 2"],
        ["push 7"],
        ["push 7"],
    ]


def test_a_collector_draws_nothing_from_the_spaces() -> None:
    envs = gym.make_vec("CartPole-v1", 3, "sync")
    drawn_from = (envs.action_space, envs.single_action_space, envs.single_observation_space)

    def states() -> list[Any]:
        return [space.np_random.bit_generator.state["state"] for space in drawn_from]

    before = states()
    with VectorDataCollector(envs):
        assert states() == before


@pytest.mark.parametrize("column", [1, 2, 3], ids=["rewards", "terminations", "truncations"])
@pytest.mark.parametrize("wrong", [np.zeros(1), np.float64(0)], ids=["too few", "one for all"])
def test_a_vector_environment_that_returns_too_little_is_told_so(column, wrong) -> None:
    class Short(SyncVectorEnv):
        def step(self, actions):
            returned = list(super().step(actions))
            returned[column] = wrong
            return tuple(returned)

    collector = VectorDataCollector(Short([partial(Steps, 9)] * 2))
    collector.reset(seed=1)
    with pytest.raises(
        InvalidEpisodeError, match="must have a row for each of 2 environments, got"
    ):
        act(collector, 0)
    collector.close()
    assert not list_leftovers()


class Told(SyncVectorEnv):
    """Its infos are what ``says`` makes of them."""

    def __init__(self, says: Callable[[dict], Any], mode: AutoresetMode = NEXT_STEP) -> None:
        super().__init__([partial(Steps, 2)] * 2, autoreset_mode=mode)
        self.says = says

    def step(self, actions):
        *returned, infos = super().step(actions)
        return *returned, self.says(infos)


BAD_INFOS = {
    "a number for all": (
        lambda infos: {"power": 3.0},
        r"infos\['power'\] must have a row for each",
    ),
    "a text for all": (lambda infos: {"name": "ab"}, r"infos\['name'\] must have a row for each"),
    "too few rows": (lambda infos: {"x": np.zeros(1)}, r"infos\['x'\] must have a row for each"),
    "no infos": (lambda infos: None, "infos of 2 environments must be a dict of arrays, got None"),
    "a key that is a mask": (
        lambda infos: {name: np.ones(2, bool) for name in ("x", "_x", "__x")},
        "infos have 'x' and '_x', and Gymnasium writes the mask of the first over the second",
    ),
}


@pytest.mark.parametrize("case", BAD_INFOS.values(), ids=BAD_INFOS)
def test_infos_that_are_not_one_for_each_are_refused_if_they_are_recorded(case) -> None:
    says, message = case
    for record_infos in (True, False):
        collector = VectorDataCollector(Told(says), record_infos=record_infos)
        collector.reset(seed=1)
        if record_infos:
            with pytest.raises(InvalidEpisodeError, match=message):
                act(collector, 0)
        else:
            act(collector, 0)
            assert seen(collector) == [([0, 1], [0])] * 2
        collector.close()


def test_infos_without_a_mask_are_those_of_all() -> None:
    says = lambda infos: {"x": np.array([0.5, 1.5]), "_own": np.array([1, 2])}  # noqa: E731
    collector = VectorDataCollector(Told(says), record_infos=True)
    collector.reset(seed=1)
    act(collector, 0)
    first, second = collector.create_dataset("aa/b-v0")
    assert (first.infos["x"][1], first.infos["_own"][1]) == (0.5, 1)
    assert (second.infos["x"][1], second.infos["_own"][1]) == (1.5, 2)
    collector.close()


@pytest.mark.parametrize("key", ["final_obs", "final_info"])
def test_an_end_that_is_not_told_of_is_not_recorded_as_one(key) -> None:
    says = lambda infos: {name: infos[name] for name in infos if key not in name}  # noqa: E731
    collector = VectorDataCollector(Told(says, SAME_STEP), record_infos=True)
    collector.reset(seed=1)
    act(collector, 0)
    with pytest.raises(InvalidEpisodeError, match=f"environment 0 ended .* have no '{key}' for it"):
        act(collector, 1)
    dataset = collector.create_dataset("aa/b-v0")
    assert [episode.truncations.tolist() for episode in dataset] == [[True]] * 2
    collector.close()


def test_episodes_wait_in_their_order_until_the_disk_has_room(monkeypatch) -> None:
    def full(self, chunks):
        raise OSError(28, "No space left on device")

    collector = made_of(2, 2, 9)
    collector.reset(seed=1)
    act(collector, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_append", full)
        with pytest.raises(OSError, match="No space left"):
            act(collector, 1)
    collector.reset(seed=5)
    act(collector, 3, 4)
    dataset = collector.create_dataset("aa/b-v0")
    assert [int(seed) for seed in dataset.episodes["seed"]] == [1, 2, 3, 5, 6, 7]
    assert [episode.actions.tolist() for episode in dataset] == [[0, 1]] * 3 + [[3, 4]] * 3
    collector.close()
