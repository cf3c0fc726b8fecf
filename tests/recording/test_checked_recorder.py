"""Judging and recording many rows at a time is the same as doing it step by step."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import minari_pipe.recording.recorder
from minari_pipe.core.tree import map_leaves
from minari_pipe.datasets.bounds import REWARD_SPACE, Outside
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.recording.checked_recorder import CheckedRecorder
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recorder import EpisodeRecorder, to_float
from minari_pipe.testing import assert_same, column, examples
from minari_pipe.testing import spaces as any_space
from tests.conftest import FULL

NAMES = ("observations", "actions", "rewards", "terminations", "truncations", "infos", "extras")


class StepByStep:
    """Judges each value when it comes, and keeps all rows in memory: slow, and plainly right."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.recorder = EpisodeRecorder(observation_space, action_space, record_infos=True)
        self.parts = (
            Outside("observation", observation_space, strict=False),
            Outside("action", action_space, strict=False),
            Outside("reward", REWARD_SPACE, strict=False),
        )

    def start(self, observation, info, **kwargs) -> None:
        for part in self.parts:
            part.clear()
        inside = self.parts[0].holds(observation)
        self.recorder.start(observation, info, **kwargs)
        if not inside:
            self.parts[0].count(observation, 0)

    def step(self, action, observation, reward, *rest) -> None:
        steps, reward = len(self.recorder), to_float(reward)
        values = ((observation, steps + 1), (action, steps), (reward, steps))
        inside = [part.holds(value) for part, (value, _) in zip(self.parts, values, strict=True)]
        self.recorder.step(action, observation, reward, *rest)
        for part, (value, step), held in zip(self.parts, values, inside, strict=True):
            if not held:
                part.count(value, step)

    def warning(self, episode: int) -> str | None:
        steps = len(self.recorder)
        texts = [
            part.warning(episode, steps + extra)
            for part, extra in zip(self.parts, (1, 0, 0), strict=True)
        ]
        return "\n".join(filter(None, texts)) or None


def other(leaf: Any, rng: np.random.Generator, *, alone: bool) -> Any:
    """A value as environments return it: mostly as it should be, else of another dtype or range."""
    kind = rng.integers(0, 14)
    array = np.asarray(leaf)
    if isinstance(leaf, str) or array.dtype.kind not in "biuf" or kind > 6:
        return leaf
    with np.errstate(all="ignore"):
        if kind == 0 and array.dtype.kind == "f":
            return (array * np.nan).astype(array.dtype)[()]
        if kind == 1 and array.dtype.kind == "f":
            return array.astype(np.float64)[()]
        if kind == 2 and array.dtype.kind in "iu":
            return (array + array.dtype.type(100)).astype(array.dtype)[()]
        if kind == 3 and array.dtype.kind == "f":
            return (array * 1e6 + 1).astype(array.dtype)[()]
        if kind == 4 and array.dtype.kind == "f":
            return array.astype(np.float16).astype(array.dtype)[()]
        if kind == 5 and alone:
            return array.tolist()
        if kind == 6 and array.dtype.kind in "iu":
            return array.astype(np.int64)[()]
    return leaf


def info(step: int, rng: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {"t": step, "deep": {"x": np.full(2, step, np.float32)}}
    if rng.random() < 0.5:
        found["sometimes"] = 0.5 if rng.random() < 0.9 else 1
    if rng.random() < 0.1:
        found["text"] = "ü"
    if rng.random() < 0.1:
        found["t"] = step + 0.5
    return found


@examples(60 if FULL else 20)
@given(any_space(), any_space(), st.integers(0, 2**32), st.integers(1, 150))
def test_a_value_that_is_put_is_what_it_is_when_it_is_converted(
    observation_space, action_space, seed, steps
) -> None:
    rng = np.random.default_rng(seed)
    recorder, slow = (
        EpisodeRecorder(observation_space, action_space, record_infos=True) for _ in range(2)
    )
    # what no column puts is converted by it
    slow._put_observation = slow._put_action = lambda row, value: False

    def row(tree: Any, number: int, space: gym.Space) -> Any:
        alone = not isinstance(space, spaces.Dict | spaces.Tuple)
        found = map_leaves(lambda leaf: other(leaf[number], rng, alone=alone), tree)
        # a step that may be refused, after the action or a part of the observation was put
        return np.zeros((2, 1, 2)) if rng.random() < 0.05 else found

    for episode in range(2):
        observations = column(observation_space, steps + 1, rng)
        actions = column(action_space, steps, rng)
        first = map_leaves(lambda leaf: leaf[0], observations)
        first_info = info(0, rng)
        recorder.start(first, first_info)
        slow.start(first, first_info)
        for number in range(steps):
            action = row(actions, number, action_space)
            observation = row(observations, number + 1, observation_space)
            infos = {3: 1} if rng.random() < 0.05 else info(number + 1, rng)
            flags = rng.random(2) < 0.1
            same_outcome(
                lambda given=(observation, 0.5, *flags, infos), action=action: record_with_action(
                    recorder, action, *given
                ),
                lambda given=(action, observation, 0.5, *flags, infos): slow.step(*given),
            )
        assert len(recorder) == len(slow)
        if len(recorder):
            found, expected = recorder.finish(episode), slow.finish(episode)
            for name in NAMES:
                assert_same(getattr(found, name), getattr(expected, name))
            assert found.metadata == expected.metadata


def record_with_action(recorder: EpisodeRecorder, action: Any, *given: Any) -> None:
    """A step as a collector records it, whose environment spoils the action that it was given."""
    mine = action.copy() if isinstance(action, np.ndarray) else action
    put = recorder.put_action(mine)
    if put and isinstance(mine, np.ndarray):
        mine.fill(0)
    recorder.step(mine, *given, has_action=put)


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "spilled to files"])
@examples(60 if FULL else 20)
@given(any_space(), any_space(), st.integers(0, 2**32), st.integers(1, 90))
def test_any_episode_is_what_it_is_step_by_step(
    stored, observation_space, action_space, seed, steps
) -> None:
    before = minari_pipe.recording.recorder.BLOCK_BYTES
    minari_pipe.recording.recorder.BLOCK_BYTES = 64
    journal = Journal({})
    try:
        rng = np.random.default_rng(seed)
        recorder = CheckedRecorder(
            observation_space,
            action_space,
            record_infos=True,
            store=journal if stored else None,
        )
        reference = StepByStep(observation_space, action_space)
        for episode in range(2):
            observations = column(observation_space, steps + 1, rng)
            actions = column(action_space, steps, rng)

            def row(tree: Any, number: int, space: gym.Space) -> Any:
                alone = not isinstance(space, spaces.Dict | spaces.Tuple)
                return map_leaves(lambda leaf: other(leaf[number], rng, alone=alone), tree)

            first = row(observations, 0, observation_space), info(0, rng)
            if not same_outcome(
                lambda first=first: recorder.start(*first),
                lambda first=first: reference.start(*first),
            ):
                continue
            for number in range(steps):
                values = (
                    row(actions, number, action_space),
                    row(observations, number + 1, observation_space),
                    rng.choice([0.5, np.nan, 2.0], p=[0.9, 0.02, 0.08]),
                    rng.random() < 0.1,
                    bool(rng.random() < 0.1),
                    info(number + 1, rng),
                    {"e": number, "f": {"g": np.float32(number)}} if rng.random() < 0.5 else None,
                )
                same_outcome(
                    lambda values=values: recorder.step(*values),
                    lambda values=values: reference.step(*values),
                )
            recorder.truncate()
            reference.recorder.truncate()
            assert len(recorder) == len(reference.recorder)
            assert recorder.warning(episode) == reference.warning(episode)
            if len(recorder):
                found, expected = recorder.finish(episode), reference.recorder.finish(episode)
                if stored:
                    journal.append(found)
                    *_, found = journal.episodes()
                for name in NAMES:
                    assert_same(getattr(found, name), getattr(expected, name))
                assert found.metadata == expected.metadata
    finally:
        journal.clear()
        minari_pipe.recording.recorder.BLOCK_BYTES = before


def same_outcome(one: Any, another: Any) -> bool:
    """Whether both do it; if one refuses, the other refuses for the same reason."""
    errors = []
    for do in (one, another):
        try:
            do()
        except InvalidEpisodeError as error:
            errors.append(str(error))
    assert len(errors) in (0, 2), errors
    assert len(set(errors)) < 2, errors
    return not errors


def test_a_refused_step_is_not_counted() -> None:
    space = spaces.Box(0, 1, (1,), np.float64)
    recorder = CheckedRecorder(space, space, record_infos=False)
    recorder.start(np.zeros(1), {})
    for _ in range(2):
        with pytest.raises(InvalidEpisodeError):
            recorder.step([7], [7], "much", False, False, {})
        with pytest.raises(InvalidEpisodeError):
            recorder.step([7], np.zeros(2), 0.5, False, False, {})
    recorder.step([8], np.zeros(1), 0.5, False, True, {})
    text = recorder.warning(0)
    assert text is not None
    assert "1 of 1 actions" in text
    assert "Action: [8]" in text
    assert "Observation" not in text


def test_the_first_of_all_is_told_whether_it_was_plain_or_not() -> None:
    space = spaces.Box(0, 1, (), np.float64)
    for values, first in [((0.5, [], 7.0), 2), ((0.5, 7.0, np.float32(9)), 1)]:
        recorder = CheckedRecorder(space, space, record_infos=False)
        recorder.start(values[0], {})
        for value in values[1:]:
            try:
                recorder.step(0.0, value, 0.5, False, False, {})
            except InvalidEpisodeError:
                recorder.step(0.0, np.float32(0.5), 0.5, False, False, {})
        text = recorder.warning(0)
        assert text is not None
        assert f"The first is number {first}.\nObservation: 7.0" in text


def test_rewards_beyond_their_sum_are_inside() -> None:
    space = spaces.Discrete(2)
    recorder = CheckedRecorder(space, space, record_infos=False)
    recorder.start(0, {})
    for _ in range(3):
        recorder.step(0, 0, sys.float_info.max, False, False, {})
    assert recorder.warning(0) is None
