"""The recorder keeps every value it is given, by copy, in the space's dtype."""

from __future__ import annotations

import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeMetadataCallback
from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.recording.recorder import EpisodeRecorder
from minari_pipe.recording.session import Recording
from minari_pipe.storage.open_columns import OpenColumn
from minari_pipe.testing import assert_same, column, examples, options
from minari_pipe.testing import spaces as any_space
from tests.conftest import FULL

INTEGER = spaces.Discrete(1000)


def record(infos, observation_space=INTEGER):
    """One episode of as many steps as there are infos after the reset's."""
    recorder = EpisodeRecorder(observation_space, INTEGER, record_infos=True)
    recorder.start(0, infos[0])
    for i, info in enumerate(infos[1:]):
        recorder.step(i, i + 1, 1.0, False, i == len(infos) - 2, info)
    return recorder.finish(0)


def rows(tree, row):
    return map_leaves(lambda leaf: leaf[row], tree)


@examples(40)
@given(any_space(), any_space(), st.integers(0, 2**32), st.integers(1, 150))
def test_every_value_comes_back_in_its_dtype(observation_space, action_space, seed, steps) -> None:
    rng = np.random.default_rng(seed)
    recorder = EpisodeRecorder(observation_space, action_space, record_infos=False)
    for episode in range(2):  # the second one reuses the columns of the first
        observations = column(observation_space, steps + 1, rng)
        actions = column(action_space, steps, rng)
        rewards = rng.normal(size=steps)
        flags = rng.random((2, steps)) < 0.5
        chosen = options(rng)
        recorder.start(rows(observations, 0), {"x": 1}, seed=seed, options=chosen)
        for i in range(steps):
            recorder.step(
                rows(actions, i), rows(observations, i + 1), rewards[i], *flags[:, i], {"x": 1}
            )
        buffer = recorder.finish(episode)
        assert_same(buffer.observations, observations)
        assert_same(buffer.actions, actions)
        assert_same(buffer.rewards, rewards)
        assert_same(np.stack([buffer.terminations, buffer.truncations]), flags)
        assert (buffer.id, buffer.seed, buffer.infos, buffer.metadata) == (episode, seed, {}, {})
        assert_same(buffer.options, chosen)


def test_an_environment_may_reuse_its_arrays_and_the_caller_its_options() -> None:
    space = spaces.Box(0, 9, (1,), np.float64)
    recorder = EpisodeRecorder(space, space, record_infos=True)
    value, info, chosen = np.zeros(1), {"x": np.zeros(1)}, {"state": np.zeros(1)}
    recorder.start(value, info, options=chosen)
    for i in range(1, 4):
        value[0] = info["x"][0] = chosen["state"][0] = i
        recorder.step(value, value, value, False, False, info)
    buffer = recorder.finish(0)
    for rows_of in (buffer.observations, buffer.infos["x"]):
        assert rows_of.ravel().tolist() == [0, 1, 2, 3]
    assert buffer.rewards.tolist() == buffer.actions.ravel().tolist() == [1, 2, 3]
    assert buffer.options["state"].tolist() == [0]


def test_a_finished_buffer_does_not_change_with_the_next_episode() -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=True)
    finished = []
    for first in (10, 20):
        recorder.start(first, {"x": first})
        recorder.step(first, first + 1, 0, True, False, {"x": first + 1})
        finished.append(recorder.finish(0))
    assert [buffer.observations.tolist() for buffer in finished] == [[10, 11], [20, 21]]
    assert [buffer.infos["x"].tolist() for buffer in finished] == [[10, 11], [20, 21]]


@pytest.mark.parametrize(
    ("infos", "values", "filled"),
    [
        ([{}, {}], {}, {}),
        ([{"x": 1}, {"x": 2}], {"x": np.array([1, 2])}, {}),
        ([{}, {"x": True}], {"x": np.array([False, True])}, {"x": [[0, 1]]}),
        ([{"x": 1.5}, {}, {}], {"x": np.array([1.5, 0, 0])}, {"x": [[1, 3]]}),
        (
            [{}, {"x": 1}, {}, {"x": 2}, {}],
            {"x": np.array([0, 1, 0, 2, 0])},
            {"x": [[0, 1], [2, 3], [4, 5]]},
        ),
        ([{}, {"s": "ü"}], {"s": np.array(["", "ü"], object)}, {"s": [[0, 1]]}),
        (
            [{}, {"n": {"y": np.ones((2, 1), np.float32)}}],
            {"n": {"y": np.array([[[0], [0]], [[1], [1]]], np.float32)}},
            {"n.y": [[0, 1]]},
        ),
        ([{"x": None}, {"x": 3}], {"x": np.array([0, 3])}, {"x": [[0, 1]]}),
        ([{"x": None}, {"x": None}], {}, {"x": [[0, 2]]}),
        ([{"x": [1, 2]}, {"x": (3, 4)}], {"x": np.array([[1, 2], [3, 4]])}, {}),
        ([{"x": np.uint8(3)}, {"x": np.uint8(4)}], {"x": np.array([3, 4], np.uint8)}, {}),
        ([{"x": 0}, {"x": 0.5}], {"x": np.array([0, 0.5])}, {}),
        ([{"x": True}, {"x": 2}], {"x": np.array([1, 2])}, {}),
        ([{"x": np.float32(1)}, {"x": 0.1}], {"x": np.array([1, 0.1])}, {}),
        (
            [{"x": ["a", "b"]}, {"x": np.array(["c", "d"])}],
            {"x": np.array([["a", "b"], ["c", "d"]], object)},
            {},
        ),
    ],
)
def test_info_keys_may_come_and_go(infos, values, filled) -> None:
    buffer = record(infos)
    assert_same(buffer.infos, values)
    assert buffer.metadata == ({"infos_filled": filled} if filled else {})


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.bool_, np.complex64])
@examples(20)
@given(
    st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([(), (2,), (3, 1), (0,), (600,)])
)
def test_arrays_of_an_info_may_come_and_go(dtype, seed, steps, shape) -> None:
    rng = np.random.default_rng(seed)
    given = rng.random(steps + 1) < 0.9
    values = rng.integers(0, 2, (steps + 1, *shape)).astype(dtype)
    buffer = record(
        [{"x": value} if there else {} for value, there in zip(values, given, strict=True)]
    )
    values[~given] = 0
    if given.any():
        assert_same(buffer.infos["x"], values)
    filled = buffer.metadata.get("infos_filled", {}).get("x", [])
    gaps = [row for first, last in filled for row in range(first, last)]
    assert gaps == (np.flatnonzero(~given).tolist() if given.any() else [])


VALUES = (0.5, np.float64(1), np.float32(2), 3, True, "text", None, np.zeros(2), np.ones(3), [1, 2])


@examples(60 if FULL else 20)
@given(st.data(), st.integers(0, 2**32))
def test_infos_of_an_episode_do_not_depend_on_those_before_it(data, seed) -> None:
    rng = np.random.default_rng(seed)
    forms = data.draw(
        st.lists(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, len(VALUES) - 1), max_size=3),
            min_size=1,
            max_size=3,
        )
    )
    journal = Journal({})
    recording = Recording(
        INTEGER, INTEGER, EpisodeMetadataCallback(), journal, record_infos=True, strict=False
    )
    expected = []
    try:
        for number in range(8):
            alone = EpisodeRecorder(INTEGER, INTEGER, record_infos=True)
            form = forms[rng.integers(len(forms))]
            recorders = (recording, alone)
            for recorder in recorders:
                info = made(form, 0)
                if number in (1, 2):  # as the resets of MuJoCo's environments
                    info.pop(min(form, default=""), None)
                recorder.start(0, info, seed=None if number == 5 else number)
            for step in range(1, rng.integers(2, 90)):
                info = made(form, step)
                if rng.random() < 0.02:
                    info = made(forms[rng.integers(len(forms))], step)
                faults = [refused(each, info) for each in (recording.recorders[0], alone)]
                assert faults[0] == faults[1]
            if len(alone):
                alone.truncate()
                expected.append(alone.finish(number))
            recording.close_episode()
        found = list(journal.episodes())
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert list(one.infos) == list(other.infos)
            for name in ("infos", "observations", "actions", "rewards", "truncations", "metadata"):
                assert_same(getattr(one, name), getattr(other, name))
            assert one.seed == other.seed
    finally:
        journal.clear()


NUMBERS = (
    (0.5, np.float64(-0.0), 2**60 + 1),
    (3, np.int64(-1), True, 2**63 - 1, -(2**63), 2**70),
    (np.float32(0.1), np.float32(np.inf), 0.1),
    (True, np.bool_(False), 2),
    (np.uint8(255), 256, np.array(7, np.uint8)),
)


@examples(60)
@given(st.data(), st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3))
def test_infos_of_the_same_keys_are_recorded_as_any_others(data, columns) -> None:
    numbers = st.tuples(
        *(st.sampled_from(column[:2]) | st.sampled_from(column) for column in columns)
    )
    recorder, other = (EpisodeRecorder(INTEGER, INTEGER, record_infos=True) for _ in range(2))
    other._infos.put = lambda row, value: False
    for one in (recorder, other):
        one.start(0, {})
    for row in data.draw(st.lists(numbers, min_size=1, max_size=40)):
        info = {f"key {number}": value for number, value in enumerate(row)}
        assert refused(recorder, info) == refused(other, info)
    if len(other):
        found, expected = recorder.finish(0), other.finish(0)
        assert_same(found.infos, expected.infos)
        assert found.metadata == expected.metadata


def test_episodes_whose_reset_lacks_infos_have_the_same_header_in_the_journal() -> None:
    journal = Journal({})
    recording = Recording(
        INTEGER, INTEGER, EpisodeMetadataCallback(), journal, record_infos=True, strict=False
    )
    headers, taken = [], []
    append_alike = journal.append_alike
    journal.append_alike = lambda *given: (headers.append(given[0]), append_alike(*given))
    try:
        for number in range(3):
            recording.start(0, {"x": 0.5}, seed=number)
            for step in range(1, 4 + number):
                recording.recorders[0].step(
                    1, 2, 0.5, False, False, {"x": float(step), "y": np.float32(step)}
                )
            recording.close_episode()
        taken = list(journal.episodes())
    finally:
        journal.clear()
    assert len(headers) == 2  # all but the first
    assert [episode.metadata for episode in taken] == [{"infos_filled": {"y": [[0, 1]]}}] * 3
    for number, episode in enumerate(taken):
        assert_same(episode.infos["y"], np.arange(4 + number, dtype=np.float32))


def made(form: dict[str, int], step: int) -> dict[str, object]:
    found = {key: VALUES[place] for key, place in form.items()}
    return {
        key: type(value)(value * step) if isinstance(value, float | np.floating | int) else value
        for key, value in found.items()
    }


def refused(recorder, info) -> str | None:
    try:
        recorder.step(1, 2, 0.5, False, False, info)
    except InvalidEpisodeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], r"infos\.x has shape \(3,\), expected \(2,\)"),
        ([{"x": 1}, {"x": "a"}], r"infos\.x is text on some steps"),
        ([{"x": "a"}, {"x": 1}], r"infos\.x is text on some steps"),
        ([{"x": {"y": 1}}, {"x": 1}], r"infos\.x is a dict on some steps and a value"),
        ([{"x": 1}, {"x": {"y": 1}}], r"infos\.x is a dict on some steps and a value"),
        ([{"x": object()}, {}], r"infos\.x cannot be stored: object of dtype object"),
        ([{3: 1}, {}], r"keys of infos must be strings, got 3"),
        ([{"x": 2**63}, {"x": -1}], "no dtype holds both exactly"),
        ([{"x": [[1], [1, 2]]}, {}], r"infos\.x cannot be stored"),
    ],
)
def test_infos_that_cannot_be_one_column_are_named(infos, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message):
        record(infos)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (3,)), np.float32(0), r"observations has shape \(\), expected \(3,\)"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 2)), r"observations has shape \(2, 2\)"),
        (spaces.Box(-1, 1, (1,)), "text", "observations has shape"),
        (spaces.Discrete(3), np.array([1]), r"observations has shape \(1,\), expected \(\)"),
        (spaces.Discrete(3), "a", "observations is text"),
        (spaces.Text(3), 5, "observations must be a string, got int"),
        (spaces.Dict(a=INTEGER), {"b": 1}, r"observations must have the keys \['a'\], got \['b'\]"),
        (spaces.Dict(a=INTEGER), {"a": 1, "b": 1}, "must have the keys"),
        (spaces.Dict(a=INTEGER), 3, "must have the keys .* got int"),
        (spaces.Tuple([INTEGER]), (1, 2), "must be a tuple of 1, got 2"),
        (
            spaces.Dict(a=spaces.Tuple([spaces.Box(-1, 1, (2,))])),
            {"a": (np.zeros(3, np.float32),)},
            r"observations\.a\.0 has shape \(3,\), expected \(2,\)",
        ),
    ],
)
def test_values_of_another_structure_are_named(space, value, message) -> None:
    recorder = EpisodeRecorder(space, INTEGER, record_infos=False)
    with pytest.raises(InvalidEpisodeError, match=message):
        recorder.start(value, {})


@pytest.mark.parametrize(
    ("space", "value", "dtype"),
    [
        (spaces.Box(-1, 1, (1,), np.float32), [0.5], np.float32),
        (spaces.Box(-1, 1, (1,), np.float32), np.array([0.5]), np.float32),
        (spaces.Box(-1, 1, (1,), np.float32), np.array([0.1]), np.float64),
        (spaces.Box(0, 9, (1,), np.uint8), [300], np.int64),
        (spaces.Discrete(3), 2, np.int64),
        (spaces.Discrete(3), np.int32(2), np.int64),
        (spaces.Discrete(3), 0.5, np.float64),
        (spaces.MultiBinary(1), np.array([True]), np.int8),
    ],
)
def test_dtype_is_the_space_s_unless_that_would_lose_something(space, value, dtype) -> None:
    recorder = EpisodeRecorder(INTEGER, space, record_infos=False)
    recorder.start(0, {})
    recorder.step(value, 1, 0, True, False, {})
    actions = recorder.finish(0).actions
    assert actions.dtype == dtype
    assert actions[0].tolist() == (value.tolist() if hasattr(value, "tolist") else value)
    if np.ndim(value) == 1:  # the next episode begins with the space's dtype again
        recorder.start(0, {})
        recorder.step(np.zeros(1, space.dtype), 1, 0, True, False, {})
        assert recorder.finish(1).actions.dtype == space.dtype


@pytest.mark.parametrize(
    "reward", ["much", None, 10**400, np.array([10**400], object), np.array([None]), [1, 2]]
)
def test_a_reward_that_is_no_number_of_float64_is_named(reward) -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    recorder.start(0, {})
    with pytest.raises(InvalidEpisodeError, match="a reward must be one number"):
        recorder.step(0, 1, reward, False, False, {})


@pytest.mark.parametrize("info", [None, [("x", 1)], 5])
def test_infos_that_are_no_dict_are_named(info) -> None:
    with pytest.raises(
        InvalidEpisodeError, match=f"infos must be a dict, got {type(info).__name__}"
    ):
        record([info, {}])
    with pytest.raises(
        InvalidEpisodeError, match=f"infos must be a dict, got {type(info).__name__}"
    ):
        record([{}, info])


def test_a_refused_step_leaves_no_trace() -> None:
    space = spaces.Dict(a=INTEGER, b=spaces.Box(-1, 1, (1,)))
    recorder = EpisodeRecorder(space, space, record_infos=True)
    good = {"a": 1, "b": np.zeros(1, np.float32)}
    bad = {"a": 2, "b": np.zeros(2, np.float32)}
    recorder.start(good, {"x": 1})
    for action, observation, reward, info in [
        (bad, good, 0, {}),
        (good, bad, 0, {}),
        (good, good, "much", {}),
        (good, good, 0, {"y": 1, "x": "text"}),
    ]:
        with pytest.raises(InvalidEpisodeError):
            recorder.step(action, observation, reward, False, False, info)
    recorder.step(good, good, 2.0, False, True, {"x": 5})
    buffer = recorder.finish(0)
    assert buffer.observations["a"].tolist() == [1, 1]
    assert len(buffer.actions["b"]) == 1
    assert_same(buffer.infos, {"x": np.array([1, 5])})
    assert buffer.metadata == {}


@pytest.mark.parametrize(("terminated", "truncated"), [(False, True), (True, False)])
def test_truncate_marks_the_last_step_unless_it_terminated(terminated, truncated) -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    recorder.start(0, {})
    recorder.step(0, 1, 0, False, False, {})
    recorder.step(0, 2, 0, terminated, False, {})
    recorder.truncate()
    buffer = recorder.finish(0)
    assert buffer.terminations.tolist() == [False, terminated]
    assert buffer.truncations.tolist() == [False, truncated]


def test_an_episode_needs_a_start_and_a_step() -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    with pytest.raises(InvalidEpisodeError, match="before start"):
        recorder.step(0, 0, 0, False, False, {})
    recorder.start(0, {})
    recorder.truncate()
    assert len(recorder) == 0
    with pytest.raises(InvalidEpisodeError, match="episode 5 has no steps"):
        recorder.finish(5)


@pytest.mark.parametrize("value", [np.nan, 1j], ids=["NaN", "complex"])
def test_an_episode_of_another_dtype_leaves_nothing_to_the_next(value) -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    for observation in (value, 1):
        recorder.start(observation, {})
        recorder.step(0, observation, 0.0, True, False, {})
        found = recorder.finish(0).observations
        assert_same(found, np.array([observation, observation]))


def test_start_discards_what_was_begun() -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=True)
    recorder.start(0, {"x": 1}, seed=1)
    recorder.step(0, 1, 0, False, False, {"y": 1})
    recorder.start(5, {}, seed=2)
    recorder.step(7, 6, 0, True, False, {})
    buffer = recorder.finish(0)
    assert (buffer.seed, buffer.infos, buffer.observations.tolist()) == (2, {}, [5, 6])


class Mission(gym.Space):
    """A space of another package that knows neither shape nor dtype."""


@pytest.mark.parametrize(
    ("values", "stacked"),
    [
        (["a", "bc", ""], np.array(["a", "bc", ""], object)),
        ([np.ones(2), np.zeros(2), np.ones(2)], np.array([[1.0, 1], [0, 0], [1, 1]])),
    ],
)
def test_spaces_of_other_packages_are_recorded_as_their_values_are(values, stacked) -> None:
    recorder = EpisodeRecorder(Mission(), INTEGER, record_infos=False)
    recorder.start(values[0], {})
    for value in values[1:]:
        recorder.step(0, value, 0, False, False, {})
    assert_same(recorder.finish(0).observations, stacked)


def record_extras(extras):
    """One episode of as many steps as there are extras after the reset's."""
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    recorder.start(0, {}, extras=extras[0])
    for i, extra in enumerate(extras[1:]):
        recorder.step(i, i + 1, 1.0, False, i == len(extras) - 2, {}, extra)
    return recorder.finish(0)


@pytest.mark.parametrize(
    ("extras", "values", "filled"),
    [
        ([None, None], {}, {}),
        ([{"s": 0}, {"s": 1}], {"s": np.array([0, 1])}, {}),
        ([None, {"s": 1}], {"s": np.array([1])}, {}),
        ([{"s": None}, {"s": 1}, {"s": 2}], {"s": np.array([1, 2])}, {}),
        ([{"s": 5}, {}, {"s": 7}], {"s": np.array([5, 0, 7])}, {"s": [[1, 2]]}),
        ([None, None, {"s": {"q": 7}}], {"s": {"q": np.array([0, 7])}}, {"s.q": [[0, 1]]}),
        (
            [{"s": {"q": 1}}, {"s": {"q": 2, "v": "x"}}],
            {"s": {"q": np.array([1, 2]), "v": np.array(["", "x"], object)}},
            {"s.v": [[0, 1]]},
        ),
        ([{"s": (1, 2)}, {"s": (3, 4)}], {"s": np.array([[1, 2], [3, 4]])}, {}),
        (
            [None, {"s": (np.zeros(2), {"x": 1})}],
            {"s": {"_index_0": np.zeros((1, 2)), "_index_1": {"x": np.array([1])}}},
            {},
        ),
        (
            [None, {"s": (np.zeros(2), np.zeros(3))}],
            {"s": {"_index_0": np.zeros((1, 2)), "_index_1": np.zeros((1, 3))}},
            {},
        ),
    ],
)
def test_extras_have_a_row_for_the_reset_if_it_had_one_and_may_come_and_go(
    extras, values, filled
) -> None:
    buffer = record_extras(extras)
    assert_same(buffer.extras, values)
    assert buffer.metadata == ({"extras_filled": filled} if filled else {})


def test_infos_may_have_tuples_of_dicts() -> None:
    buffer = record([{"x": ({"a": 1}, 2)}, {"x": ({"a": 3}, 4)}])
    assert_same(
        buffer.infos,
        {"x": {"_index_0": {"a": np.array([1, 3])}, "_index_1": np.array([2, 4])}},
    )


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ([{3: 1}, None], "keys of extras must be strings, got 3"),
        ([{"s": {3: 1}}, None], "keys of extras must be strings, got 3"),
        ([{"s": 1}, {"s": {"q": 1}}], r"extras\.s is a dict on some steps and a value"),
        ([{"s": np.zeros(2)}, {"s": np.zeros(3)}], r"extras\.s has shape \(3,\)"),
    ],
)
def test_extras_that_cannot_be_one_column_are_named(extras, message) -> None:
    with pytest.raises(InvalidEpisodeError, match=message):
        record_extras(extras)


def test_extras_of_a_refused_step_leave_no_trace() -> None:
    recorder = EpisodeRecorder(INTEGER, INTEGER, record_infos=False)
    recorder.start(0, {}, extras={"s": 1})
    for extras in ({"s": 2, "n": 1, "z": object()}, {"n": 1, "s": "text"}):
        with pytest.raises(InvalidEpisodeError):
            recorder.step(0, 1, 0, False, False, {}, extras)
    recorder.step(0, 1, 0, False, True, {}, {"s": 5})
    buffer = recorder.finish(0)
    assert_same(buffer.extras, {"s": np.array([1, 5])})
    assert buffer.metadata == {}


@pytest.mark.parametrize("is_nested", [False, True], ids=["plain", "nested"])
def test_many_infos_of_few_bytes_do_not_fill_the_memory(is_nested) -> None:
    keys = [f"key {number}" for number in range(100)]
    recorder = EpisodeRecorder(spaces.Discrete(9), spaces.Discrete(9), record_infos=True)
    tracemalloc.start()
    try:
        for step in range(2000):
            info = {key: np.int8(step % 99) for key in keys}
            info = {"nested": info} if is_nested else info
            if step:
                recorder.step(1, 1, 0.5, False, False, info)
            else:
                recorder.start(0, info)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # 0.2 MB of rows
    finally:
        tracemalloc.stop()
    infos = recorder.finish(0).infos
    values = infos["nested"] if is_nested else infos
    assert all(values[key].tolist() == [step % 99 for step in range(2000)] for key in keys)


def test_missing_infos_are_counted_once_when_ctrl_c_comes_meanwhile(monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    recorder = EpisodeRecorder(spaces.Discrete(9), spaces.Discrete(9), record_infos=True)
    recorder.start(0, {"x": 1})
    recorder.step(1, 1, 0.5, False, False, {})
    with monkeypatch.context() as patch:
        patch.setattr(OpenColumn, "_reserve", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recorder.step(1, 2, 0.5, False, False, {"x": 3})
    assert recorder.finish(0).metadata == {"infos_filled": {"x": [[1, 2]]}}
