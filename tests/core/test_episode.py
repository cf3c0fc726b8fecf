"""Buffers carry what they are given, by copy; the callbacks compute what Minari's do."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from minari.data_collector.callbacks import EpisodeMetadataCallback as TheirMetadata
from minari.dataset.episode_data import EpisodeData as TheirData

from minari_pipe.core.episode import (
    EpisodeBuffer,
    EpisodeData,
    EpisodeMetadataCallback,
    StepDataCallback,
    copied,
)
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.testing import assert_same


def step(observation, action=0, reward=1.0, terminated=False, truncated=False, info=None):
    return {
        "observation": observation,
        "action": action,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "info": info or {},
    }


def test_steps_are_appended_to_lists_in_the_tree_of_the_space() -> None:
    buffer = EpisodeBuffer(
        id=3,
        seed=7,
        options={"k": 1},
        observations={"a": np.zeros(2), "t": (0, "x")},
        infos={"i": 0},
    )
    for i in (1, 2):
        observation = OrderedDict(a=np.full(2, i), t=(i, "y" * i))
        buffer = buffer.add_step_data(step(observation, (i, np.ones(1)), i, info={"i": i}))
    assert len(buffer) == 2
    assert (buffer.id, buffer.seed, buffer.options) == (3, 7, {"k": 1})
    assert buffer.observations["t"] == ([0, 1, 2], ["x", "y", "yy"])
    assert [row.tolist() for row in buffer.observations["a"]] == [[0, 0], [1, 1], [2, 2]]
    assert buffer.actions[0] == [1, 2]
    assert buffer.rewards == [1, 2]
    assert buffer.infos == {"i": [0, 1, 2]}


def test_an_environment_may_reuse_its_arrays() -> None:
    observation, info = np.zeros(1), {"x": np.zeros(1)}
    buffer = EpisodeBuffer(observations=observation, infos=info)
    for i in range(1, 4):
        observation[0] = info["x"][0] = i
        buffer = buffer.add_step_data(step(observation, info=info, action=observation))
    assert np.ravel(buffer.observations).tolist() == [0, 1, 2, 3]
    assert np.ravel(buffer.actions).tolist() == [1, 2, 3]
    assert np.ravel(buffer.infos["x"]).tolist() == [0, 1, 2, 3]


def test_other_info_keys_are_refused_and_named() -> None:
    buffer = EpisodeBuffer(observations=0, infos={"x": 1})
    with pytest.raises(InvalidEpisodeError, match="Dict key mismatch"):
        buffer.add_step_data(step(1, info={"y": 1}))


def test_buffers_do_not_share_their_lists() -> None:
    first, second = EpisodeBuffer(observations=0), EpisodeBuffer(observations=0)
    first.add_step_data(step(1))
    assert (len(first), len(second)) == (1, 0)


def test_copied_copies_what_can_change() -> None:
    inner = [np.zeros(1)]
    outer = copied({"a": inner})
    inner[0][0] = 5
    assert outer["a"][0][0] == 0
    assert copied("x") == "x"


def test_reward_statistics_are_real_minari_s() -> None:
    episode = {"rewards": np.random.default_rng(0).normal(size=50)}
    assert_same(EpisodeMetadataCallback()(episode), TheirMetadata()(episode))


def test_episode_data_reads_as_real_minari_s() -> None:
    fields = {
        "id": 1,
        "observations": {"a": np.zeros((3, 2))},
        "actions": (np.zeros(2, np.int64), ["a", "b"]),
        "rewards": np.zeros(2),
        "terminations": np.zeros(2, bool),
        "truncations": np.zeros(2, bool),
        "infos": {"x": np.zeros(3)},
    }
    assert repr(EpisodeData(**fields)) == repr(TheirData(**fields))
    assert len(EpisodeData(**fields)) == 2


def test_step_callback_returns_what_it_is_given() -> None:
    assert StepDataCallback()(None, 1, {"x": 2}, 3, 4.0, True, False) == step(
        1, 3, 4.0, True, False, {"x": 2}
    )
