"""What is written here real Minari 0.5.4 reads equal, and the other way round.

Where real Minari's own reader or writer is wrong, :data:`MINARI_IS_WRONG` says so in a sentence,
and a test shows both that it is and that this package is not. Everything else is compared bit by
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from minari.data_collector import EpisodeBuffer as TheirBuffer
from minari.dataset.minari_storage import MinariStorage as TheirStorage

from minari_pipe.core.episode import EpisodeBuffer, reward_statistics
from minari_pipe.core.tree import map_leaves
from minari_pipe.storage import MinariStorage, get_storage_keys
from minari_pipe.testing import (
    ACTION,
    ARRAYS,
    OBSERVATION,
    Dataset,
    assert_episode,
    assert_same,
    datasets,
    episode,
    examples,
    steps_of,
)
from minari_pipe.testing.values import LEAF_SPACES, NESTED_SPACES
from tests.conftest import FULL
from tests.support.covering import covering

FINISHED = {"dataset_id": "aa/b-v0", "minari_version": "0.5.4"}
IMAGE = spaces.Box(0, 255, (40, 32, 3), np.uint8)
FORMATS = [key for key in get_storage_keys() if key in ("hdf5", "arrow", "parquet")]

#: where real Minari 0.5.4 and this package differ on purpose; written right here
MINARI_IS_WRONG = {
    "another dtype of Discrete": (
        "Minari writes every Discrete space as int64 and reads every one as int64, so a space of "
        "another dtype does not come back; in HDF5 the values keep their dtype."
    ),
    "a Box whose first axis is 0": (
        "Minari cannot read the space Box of shape (0, 2) that it writes: nested lists do not "
        "tell the shape."
    ),
    "text in infos": (
        "Minari's HDF5 reader gives text of infos as bytes; text of observations is text."
    ),
    "text of a space of another package": (
        "Minari's HDF5 reader gives the text of a registered space that is no Text space as bytes."
    ),
    "slashes in keys": (
        "Minari writes the info a/b as the info b in a dict a, and reads it so; the group is the "
        "same here, and an attribute of the episode says which it was."
    ),
    "extra step data": (
        "Minari drops the keys that a StepDataCallback adds; the groups written here are left "
        "alone by its reader."
    ),
    "options that are no arrays": (
        "Minari's HDF5 writer fails on None and on lists of different types in reset options, "
        "loses empty dicts and gives lists back as arrays; here an attribute of the episode holds "
        "their exact form too, which Minari shows among the episode's metadata. In Arrow and "
        "Parquet Minari makes lists of arrays."
    ),
    "a continued episode": (
        "Minari sets total_steps of an episode that it continues to the number of the new steps "
        "and leaves its reward statistics as they were."
    ),
    "continued images": "Minari cannot continue an episode whose images are JPEG in HDF5.",
    "images of four channels": (
        "Minari fails on images of 4 channels unless jpeg_encoding=False is given; here they are "
        "refused for JPEG when the dataset is created, and stored without loss otherwise."
    ),
    "long episodes in Arrow": (
        "Minari's reader of Arrow and Parquet gives at most the first batch of an episode, and "
        "what is left of it for the next episodes."
    ),
    "nested infos in Arrow": (
        "Minari's reader of Arrow and Parquet gives nested infos as arrays of dicts, and it reads "
        "all episodes with the columns of the first."
    ),
    "numbers of infos in an array in Arrow": (
        "Minari's writer of Arrow and Parquet takes infos that are one number a step in lists "
        "only; its reader fails on those that were given as an array of shape (T + 1,)."
    ),
    "rows without values in Arrow": (
        "Minari cannot read arrays of which a dimension is 0 from Arrow and Parquet, and its "
        "writer ends the process with a floating-point exception."
    ),
    "a continued episode in Arrow": (
        "Minari overwrites an episode of Arrow and Parquet that it should continue, and counts "
        "its steps twice."
    ),
}


# --- the same value for real Minari


def their_buffer(buffer: EpisodeBuffer) -> TheirBuffer:
    """The same for real Minari, which takes what is one value a step in lists only."""
    fields = {name: getattr(buffer, name) for name in ARRAYS}
    fields["infos"] = map_leaves(_in_a_list, fields["infos"])
    return TheirBuffer(id=buffer.id, seed=buffer.seed, options=buffer.options, **fields)


def _in_a_list(leaf: Any) -> Any:
    return list(leaf) if leaf.ndim == 1 else leaf


def their_space(space: gym.Space) -> gym.Space:
    """The space as real Minari reads it."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: their_space(part) for key, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(map(their_space, space))
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(space.n, start=space.start)
    return space


def portable(buffers: list[EpisodeBuffer], data_format: str) -> list[EpisodeBuffer]:
    """Leave out the infos that real Minari cannot read again in Arrow: all must have the same."""
    if data_format == "hdf5":
        return buffers
    first = {k: v for k, v in buffers[0].infos.items() if k not in ("state", "empty")}
    rows = [len(buffer) + 1 for buffer in buffers]
    return [
        replace(buffer, infos={k: np.resize(v, (n, *v.shape[1:])) for k, v in first.items()})
        for buffer, n in zip(buffers, rows, strict=True)
    ]


def has_values(space: gym.Space) -> bool:
    """Whether every part of a space has values, without which real Minari fails in Arrow."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return len(parts) > 0 and all(map(has_values, parts))
    return 0 not in (space.shape or ())


def writable_by_theirs(buffer: EpisodeBuffer) -> EpisodeBuffer:
    """Leave out what :data:`MINARI_IS_WRONG` says that real Minari cannot write."""
    infos = {k: v for k, v in buffer.infos.items() if k != "reward/forward"}
    state = (buffer.options or {}).get("state")
    options = None if state is None else {"state": state, "low": -0.5, "grid": np.eye(2)}
    return replace(buffer, infos=infos, options=options, metadata={}, extras={})


def seen_by_theirs(infos: dict[str, Any], data_format: str) -> dict[str, Any]:
    """Infos as real Minari reads them."""
    infos = {key: value for key, value in infos.items() if key != "reward/forward"}
    return map_leaves(_as_bytes if data_format == "hdf5" else _as_objects, infos)


def _as_objects(leaf: Any) -> Any:
    return leaf.astype(object) if leaf.dtype.kind == "U" else leaf


def _as_bytes(leaf: Any) -> Any:
    if leaf.dtype.kind != "O":
        return leaf
    return np.array([text if isinstance(text, bytes) else text.encode() for text in leaf], object)


def assert_theirs(found: Any, buffer: EpisodeBuffer, data_format: str = "hdf5") -> None:
    """Assert that an episode that real Minari read is the one that was written."""
    fields = found if isinstance(found, dict) else vars(found)
    for name in ARRAYS[:-1]:
        assert_same(getattr(buffer, name), fields[name], name)
    infos = {key: part for key, part in (fields["infos"] or {}).items() if key != "reward"}
    assert_same(seen_by_theirs(buffer.infos, data_format), seen_by_theirs(infos, data_format))


# --- generated spaces, episodes and formats


@pytest.mark.parametrize("data_format", FORMATS)
@examples(12 if FULL else 5)
@given(datasets())
def test_real_minari_reads_and_extends_what_we_write(
    tmp_path_factory, data_format: str, dataset: Dataset
) -> None:
    assume(dataset.buffers)
    path = tmp_path_factory.mktemp("ours") / "data"
    observation_space, action_space, buffers = dataset
    buffers = portable(buffers, data_format)
    assume(data_format == "hdf5" or (has_values(observation_space) and has_values(action_space)))
    ours = MinariStorage.new(path, observation_space, action_space, data_format=data_format)
    ours.update_metadata(FINISHED)
    ours.update_episodes(buffers)

    theirs = minari.MinariDataset(path)
    assert theirs.observation_space == their_space(observation_space)
    assert theirs.action_space == their_space(action_space)
    assert theirs.total_episodes == len(buffers)
    assert theirs.total_steps == sum(map(len, buffers))
    for buffer, found in zip(buffers, theirs, strict=True):
        assert_theirs(found, buffer, data_format)
    attributes = list(theirs.storage.get_episode_metadata(range(len(buffers))))
    for buffer, found in zip(buffers, attributes, strict=True):
        assert found.get("seed") == buffer.seed
        assert found["total_steps"] == len(buffer)
        for key, value in reward_statistics(buffer.rewards).items():
            assert found[key] == value
        if buffer.options is not None:
            assert np.array_equal(
                found["options"]["state"]["qpos"], buffer.options["state"]["qpos"]
            )
            assert found["options"]["low"] == -0.5

    last = writable_by_theirs(buffers[0])
    theirs.update_dataset_from_buffer([their_buffer(last)])
    theirs.storage.update_episode_metadata([{"later": 5}], [0])
    again = MinariStorage.read(path)
    for buffer, fields in zip([*buffers, last], again.get_episodes(range(1000)), strict=False):
        assert_episode(fields, buffer)
    attributes = list(again.get_episode_metadata([0, len(buffers)]))
    assert (attributes[0]["later"], attributes[1].get("seed")) == (5, last.seed)
    again.update_episodes(buffers[:1])
    assert again.total_episodes == len(buffers) + 2
    assert_theirs(minari.MinariDataset(path)[len(buffers) + 1], buffers[0], data_format)


@pytest.mark.parametrize("data_format", FORMATS)
@examples(12 if FULL else 5)
@given(datasets())
def test_we_read_and_extend_what_real_minari_writes(
    tmp_path_factory, data_format: str, dataset: Dataset
) -> None:
    assume(dataset.buffers)
    path = tmp_path_factory.mktemp("theirs") / "data"
    observation_space, action_space, buffers = dataset
    buffers = list(map(writable_by_theirs, portable(buffers, data_format)))
    for space in (observation_space, action_space) if data_format != "hdf5" else ():
        assume(has_values(space) and their_space(space) == space)
    theirs = TheirStorage.new(
        path, observation_space, action_space, data_format=data_format, jpeg_encoding=False
    )
    theirs.update_episodes(map(their_buffer, buffers))
    ours = MinariStorage.read(path)
    assert ours.observation_space == their_space(observation_space)
    ours.update_episodes(buffers[:1])
    written = [*buffers, buffers[0]]
    for buffer, found in zip(written, ours.get_episodes(range(len(written))), strict=True):
        assert_episode(found, buffer)
    attributes = list(ours.get_episode_metadata(range(len(written))))
    for buffer, found in zip(written, attributes, strict=True):
        options = found.get("options")
        if data_format != "hdf5" and options is not None:  # arrays are lists in Minari's JSON
            options = map_leaves(np.asarray, options)
            buffer = replace(buffer, options=map_leaves(np.asarray, buffer.options))
            options["state"]["qvel"] = options["state"]["qvel"].astype(np.float32)
        assert_same(buffer.options, options)
    for buffer, found in zip(written, theirs.get_episodes(range(len(written))), strict=True):
        assert_theirs(found, buffer, data_format)


@pytest.mark.parametrize(("name", "data_format"), covering([*LEAF_SPACES, *NESTED_SPACES], FORMATS))
def test_every_space_goes_both_ways(tmp_path: Path, data_format: str, name: str) -> None:
    space = (LEAF_SPACES | NESTED_SPACES)[name]
    rng = np.random.default_rng(0)
    buffers = [replace(episode(space, space, rng, 2), infos={}, options=None) for _ in range(2)]
    ours = MinariStorage.new(tmp_path / "ours", space, space, data_format=data_format)
    ours.update_metadata(FINISHED)
    ours.update_episodes(buffers)
    theirs = minari.MinariDataset(tmp_path / "ours")
    assert theirs.observation_space == their_space(space) == theirs.action_space
    if data_format != "hdf5" and not has_values(space):
        return  # "rows without values in Arrow"
    for buffer, found in zip(buffers, theirs, strict=True):
        assert_theirs(found, buffer, data_format)
    if data_format != "hdf5" and their_space(space) != space:
        return  # "another dtype of Discrete": int64, as its metadata says
    other = TheirStorage.new(
        tmp_path / "theirs", space, space, data_format=data_format, jpeg_encoding=False
    )
    other.update_episodes(map(their_buffer, buffers))
    mine = MinariStorage.read(tmp_path / "theirs")
    assert mine.observation_space == their_space(space)
    for buffer, found in zip(buffers, mine.get_episodes(range(2)), strict=True):
        assert_episode(found, replace(buffer, extras={}))


def _filmed(steps: int) -> EpisodeBuffer:
    buffer = replace(episode(IMAGE, ACTION, np.random.default_rng(0), steps), extras={}, infos={})
    return replace(buffer, options=None, metadata={})


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("picture", ["noise", "black"])
def test_jpeg_goes_both_ways(tmp_path: Path, data_format: str, picture: str) -> None:
    """Black pictures are files of one size, which HDF5 stores in another way."""
    buffer = _filmed(3)
    if picture == "black":
        buffer = replace(buffer, observations=np.zeros_like(buffer.observations))
    ours = MinariStorage.new(
        tmp_path / "ours", IMAGE, ACTION, data_format=data_format, jpeg_encoding=True
    )
    ours.update_metadata(FINISHED)
    ours.update_episodes([buffer])
    (stored,) = ours.get_episodes([0])
    assert (picture == "black") == np.array_equal(stored["observations"], buffer.observations)
    assert_same(stored["observations"], minari.MinariDataset(tmp_path / "ours")[0].observations)

    theirs = TheirStorage.new(tmp_path / "theirs", IMAGE, ACTION, data_format=data_format)
    assert theirs.jpeg_encoding
    theirs.update_episodes([their_buffer(buffer)])
    mine = MinariStorage.read(tmp_path / "theirs")
    assert mine.jpeg_encoding
    mine.update_episodes([buffer])
    mine.update_from_storage(mine, [0])
    pictures = [found["observations"] for found in theirs.get_episodes(range(3))]
    for found, expected in zip(mine.get_episodes(range(3)), pictures, strict=True):
        assert_same(expected, found["observations"])
        assert_same(pictures[0], found["observations"])


def test_continued_episodes_go_both_ways(tmp_path: Path) -> None:
    whole = writable_by_theirs(episode(OBSERVATION, ACTION, np.random.default_rng(1), 5))
    whole = replace(whole, infos={"x": np.arange(6)})
    head, rest = steps_of(whole, 0, 2, first=True), steps_of(whole, 2, 5, first=False)
    rest = replace(rest, id=0)
    ours = MinariStorage.new(tmp_path / "ours", OBSERVATION, ACTION)
    ours.update_episodes([head])
    TheirStorage.read(tmp_path / "ours").update_episodes([their_buffer(rest)])
    theirs = TheirStorage.new(tmp_path / "theirs", OBSERVATION, ACTION)
    theirs.update_episodes([their_buffer(head)])
    MinariStorage.read(tmp_path / "theirs").update_episodes([rest])
    for name in ("ours", "theirs"):
        storage = MinariStorage.read(tmp_path / name)
        assert_episode(next(iter(storage.get_episodes([0]))), whole)
        assert_theirs(next(iter(TheirStorage.read(tmp_path / name).get_episodes([0]))), whole)
        assert storage.total_steps == 5


@pytest.mark.skipif("arrow" not in FORMATS, reason="there is no format arrow")
@pytest.mark.parametrize("values", [[None] * 3, [None, "a", ""], [True, None, False], [None, 1, 2]])
def test_infos_that_are_none_on_some_steps_are_read_as_minari_reads_them(
    tmp_path: Path, values: list[Any]
) -> None:
    _, theirs = _in_arrow(tmp_path)
    theirs.update_episodes([replace(their_buffer(steps()), infos={"x": values})])
    found = _first(MinariStorage.read(tmp_path / "theirs"))["infos"]["x"]
    expected = _first(theirs)["infos"]["x"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif("arrow" not in FORMATS, reason="there is no format arrow")
@pytest.mark.parametrize("data_format", FORMATS)
def test_infos_that_are_none_on_some_steps_are_copied_as_if_they_were_missing(
    tmp_path: Path, data_format: str
) -> None:
    _, theirs = _in_arrow(tmp_path)
    infos = {"text": ["a", None, "b"], "nest": {"flag": [None, True, None]}, "all": [None] * 3}
    theirs.update_episodes([replace(their_buffer(steps()), infos=infos)])
    copy = MinariStorage.new(tmp_path / "copy", ACTION, ACTION, data_format=data_format)
    copy.update_from_storage(MinariStorage.read(tmp_path / "theirs"))
    found = _first(copy)["infos"]
    assert found["text"].tolist() == ["a", "", "b"]
    assert found["nest"]["flag"].tolist() == [False, True, False]
    assert found.keys() == {"text", "nest"}
    filled = {"text": [[1, 2]], "nest.flag": [[0, 1], [2, 3]], "all": [[0, 3]]}
    assert next(copy.get_episode_metadata([0]))["infos_filled"] == filled
    copy.update_episodes([steps(id=0, observations=np.arange(2), infos=_two_rows_of(infos))])
    filled = {"text": [[1, 2], [4, 5]], "nest.flag": [[0, 1], [2, 4]], "all": [[0, 5]]}
    joined = next(copy.get_episode_metadata([0]))["infos_filled"]
    assert {name: merged(ranges) for name, ranges in joined.items()} == filled


def _two_rows_of(infos: dict[str, Any]) -> dict[str, Any]:
    return map_leaves(lambda leaf: leaf[:2], {"infos": infos})["infos"]


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """The same rows in as few ranges as can be."""
    joined: list[list[int]] = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return joined


# --- where real Minari is wrong: each claim first about it, then about this package


def both(path: Path, space: gym.Space = ACTION) -> tuple[MinariStorage, TheirStorage]:
    """An empty storage of each."""
    ours = MinariStorage.new(path / "ours", space, ACTION)
    ours.update_metadata(FINISHED)
    return ours, TheirStorage.new(path / "theirs", space, ACTION, jpeg_encoding=False)


def steps(**changes: Any) -> EpisodeBuffer:
    """Two steps of ``ACTION`` in ``ACTION``."""
    flags = np.array([False, False])
    return replace(
        EpisodeBuffer(
            observations=np.arange(3),
            actions=np.arange(2),
            rewards=np.ones(2),
            terminations=flags,
            truncations=flags,
            infos={},
        ),
        **changes,
    )


def _first(storage: Any) -> dict[str, Any]:
    return next(iter(storage.get_episodes([0])))


def _attributes(storage: Any) -> dict[str, Any]:
    return next(iter(storage.get_episode_metadata([0])))


def another_dtype_of_discrete(tmp_path: Path) -> None:
    space = spaces.Discrete(9, dtype=np.int8)
    both(tmp_path, space)
    assert TheirStorage.read(tmp_path / "theirs").observation_space.dtype == np.int64
    assert TheirStorage.read(tmp_path / "ours").observation_space.dtype == np.int64
    assert MinariStorage.read(tmp_path / "ours").observation_space == space


def a_box_whose_first_axis_is_0(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (0, 2))
    both(tmp_path, space)
    with pytest.raises(ValueError, match="shape"):
        TheirStorage.read(tmp_path / "theirs")
    for name in ("ours", "theirs"):
        assert MinariStorage.read(tmp_path / name).observation_space == space


def text_in_infos(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path)
    infos = {"note": np.array(["a", "é", ""], object)}
    for storage in (ours, theirs):
        given = infos if storage is ours else {"note": ["a", "é", ""]}
        storage.update_episodes([steps(infos=given)])
    for name in ("ours", "theirs"):
        their = _first(TheirStorage.read(tmp_path / name))["infos"]["note"]
        assert their.tolist() == [b"a", "é".encode(), b""]
        assert_same(infos, _first(MinariStorage.read(tmp_path / name))["infos"])


def text_of_a_space_of_another_package(tmp_path: Path) -> None:
    from minari.serialization import deserialize_space, serialize_space

    from minari_pipe.testing.values import Mission, register_spaces

    register_spaces()
    serialize_space.register(Mission, lambda space, to_string=True: '{"type": "Mission"}')
    deserialize_space.register("Mission")(lambda form: Mission("go"))
    ours = MinariStorage.new(tmp_path / "ours", Mission("go"), ACTION)
    ours.update_episodes([steps(observations=["go", "go up", "go é"])])
    assert _first(TheirStorage.read(tmp_path / "ours"))["observations"].tolist() == [
        b"go",
        b"go up",
        "go é".encode(),
    ]
    assert _first(ours)["observations"] == ["go", "go up", "go é"]


def slashes_in_keys(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path)
    infos = {"reward/forward": np.arange(3.0), "reward": {"total": np.ones(3)}}
    ours.update_episodes([steps(infos=infos)])
    theirs.update_episodes([their_buffer(steps(infos=infos))])
    for name in ("ours", "theirs"):
        their = _first(TheirStorage.read(tmp_path / name))["infos"]
        assert {key: set(part) for key, part in their.items()} == {"reward": {"forward", "total"}}
    assert_same(infos, _first(ours)["infos"])


def extra_step_data(tmp_path: Path) -> None:
    assert "extras" not in TheirBuffer.__dataclass_fields__
    ours, _ = both(tmp_path)
    extras = {"state": {"qpos": np.ones((3, 2))}}
    ours.update_episodes([steps(extras=extras)])
    their = _first(TheirStorage.read(tmp_path / "ours"))
    assert "state" not in their
    assert_same(np.arange(3), their["observations"])
    assert_same(extras, _first(ours)["extras"])


def options_that_are_no_arrays(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path)
    for bad in ({"x": None}, {"x": [1, "a", None]}):
        with pytest.raises(TypeError):
            theirs.update_episodes([their_buffer(steps(options=bad))])
    options = {"list": [1, 2], "empty": {}, "none": None, "x": 1}
    ours.update_episodes([steps(options=options)])
    assert_same(options, _attributes(ours)["options"])
    their = _attributes(TheirStorage.read(tmp_path / "ours"))
    assert set(their["options"]) == {"list", "x"}
    assert isinstance(their["options"]["list"], np.ndarray)
    assert "minari_pipe_exact" in their


def a_continued_episode(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path)
    whole = steps(
        observations=np.arange(5),
        actions=np.arange(4),
        rewards=np.arange(4.0),
        terminations=np.zeros(4, bool),
        truncations=np.zeros(4, bool),
    )
    parts = [steps_of(whole, 0, 1, first=True), replace(steps_of(whole, 1, 4, first=False), id=0)]
    ours.update_episodes(parts)
    theirs.update_episodes(map(their_buffer, parts))
    assert _attributes(theirs)["total_steps"] == 3
    assert len(_first(theirs)["rewards"]) == 4
    assert _attributes(ours)["total_steps"] == 4
    assert _attributes(ours)["rewards_sum"] == 6.0


def continued_images(tmp_path: Path) -> None:
    theirs = TheirStorage.new(tmp_path / "theirs", IMAGE, ACTION)
    ours = MinariStorage.new(tmp_path / "ours", IMAGE, ACTION, jpeg_encoding=True)
    whole = _filmed(3)
    parts = [steps_of(whole, 0, 1, first=True), replace(steps_of(whole, 1, 3, first=False), id=0)]
    with pytest.raises(ValueError, match="name already exists"):
        theirs.update_episodes(map(their_buffer, parts))
    ours.update_episodes([*parts, whole])
    one, other = ours.get_episodes([0, 1])
    assert_same(one["observations"], other["observations"])


def images_of_four_channels(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (64, 64, 4), np.uint8)
    pictures = np.random.default_rng(0).integers(256, size=(3, 64, 64, 4), dtype=np.uint8)
    theirs = TheirStorage.new(tmp_path / "theirs", space, ACTION)
    with pytest.raises(OSError, match="cannot write mode RGBA as JPEG"):
        theirs.update_episodes([their_buffer(steps(observations=pictures))])
    ours = MinariStorage.new(tmp_path / "ours", space, ACTION)
    ours.update_episodes([steps(observations=pictures)])
    assert_same(pictures, _first(ours)["observations"])
    assert_same(pictures, _first(TheirStorage.read(tmp_path / "ours"))["observations"])


def _in_arrow(path: Path, space: gym.Space = ACTION) -> tuple[MinariStorage, TheirStorage]:
    if "arrow" not in FORMATS:
        pytest.skip("there is no format arrow")
    ours = MinariStorage.new(path / "ours", space, ACTION, data_format="arrow")
    ours.update_metadata(FINISHED)
    return ours, TheirStorage.new(path / "theirs", space, ACTION, data_format="arrow")


def long_episodes_in_arrow(tmp_path: Path) -> None:
    ours, theirs = _in_arrow(tmp_path)
    rng = np.random.default_rng(0)
    buffers = [
        replace(episode(ACTION, ACTION, rng, count), infos={}, options=None, extras={})
        for count in (140_000, 5, 3)
    ]
    theirs.update_episodes(map(their_buffer, buffers))
    lengths = [len(found["rewards"]) for found in theirs.get_episodes(range(3))]
    assert lengths != [140_000, 5, 3]
    ours.update_episodes(buffers)
    for buffer, found in zip(buffers, ours.get_episodes(range(3)), strict=True):
        assert_episode(found, buffer)


def nested_infos_in_arrow(tmp_path: Path) -> None:
    ours, theirs = _in_arrow(tmp_path)
    infos = {"state": {"x": np.arange(3.0), "y": np.ones((3, 2))}}
    theirs.update_episodes([steps(infos=infos)])
    assert _first(theirs)["infos"]["state"].dtype == object
    ours.update_episodes([steps(infos=infos)])
    assert_same(infos, _first(ours)["infos"])
    assert_same(infos, _first(MinariStorage.read(tmp_path / "theirs"))["infos"])


def numbers_of_infos_in_an_array_in_arrow(tmp_path: Path) -> None:
    ours, theirs = _in_arrow(tmp_path)
    infos = {"x": np.arange(3)}
    theirs.update_episodes([steps(infos=infos)])
    with pytest.raises(ValueError, match="invalid literal for int"):
        _first(theirs)
    ours.update_episodes([steps(infos=infos)])
    for storage in (ours, MinariStorage.read(tmp_path / "theirs")):
        assert_same(infos, _first(storage)["infos"])
    assert_same(infos, _first(TheirStorage.read(tmp_path / "ours"))["infos"])


def rows_without_values_in_arrow(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (2, 0))
    ours, _ = _in_arrow(tmp_path, space)
    ours.update_episodes([steps(observations=np.zeros((3, 2, 0), np.float32))])
    with pytest.raises(ValueError, match="cannot reshape array of size 0"):
        _first(TheirStorage.read(tmp_path / "ours"))
    assert_same(np.zeros((3, 2, 0), np.float32), _first(ours)["observations"])


def a_continued_episode_in_arrow(tmp_path: Path) -> None:
    ours, theirs = _in_arrow(tmp_path)
    rest = steps(id=0, observations=np.arange(2), infos={})
    ours.update_episodes([steps(), rest])
    assert (len(_first(ours)["rewards"]), ours.total_steps) == (4, 4)
    theirs.update_episodes([steps(), rest])
    assert (len(_first(theirs)["rewards"]), theirs.total_steps) != (4, 4)


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__.replace("_", " "): case
    for case in (
        another_dtype_of_discrete,
        a_box_whose_first_axis_is_0,
        text_in_infos,
        text_of_a_space_of_another_package,
        slashes_in_keys,
        extra_step_data,
        options_that_are_no_arrays,
        a_continued_episode,
        continued_images,
        images_of_four_channels,
        long_episodes_in_arrow,
        nested_infos_in_arrow,
        numbers_of_infos_in_an_array_in_arrow,
        rows_without_values_in_arrow,
        a_continued_episode_in_arrow,
    )
}


@pytest.mark.parametrize("name", MINARI_IS_WRONG)
def test_minari_is_wrong_and_we_are_not(tmp_path: Path, name: str) -> None:
    cases = {key.lower(): case for key, case in CASES.items()}
    assert cases.keys() == {key.lower() for key in MINARI_IS_WRONG}
    cases[name.lower()](tmp_path)
