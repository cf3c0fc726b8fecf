"""Test that all values that the standard allows are read back exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.spaces import deserialize_space, serialize_space
from minari_pipe.errors import InvalidEpisodeError, InvalidMetadataError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.memory import MemoryStorage
from minari_pipe.testing.base import ACTION, Contract, make
from minari_pipe.testing.comparison import assert_episode, assert_same, assert_stored, files
from minari_pipe.testing.strategies import (
    FLOATS,
    FULL,
    INTEGERS,
    TEXT,
    Dataset,
    datasets,
    episode,
    examples,
)


class Mission(gym.Space[str]):
    """A third-party space like BabyAI's missions: its values are text, but it is no Text space."""

    def __init__(self, verb: str) -> None:
        super().__init__(dtype=str)
        self.verb = verb

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x.startswith(self.verb)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mission) and self.verb == other.verb

    __hash__ = None  # type: ignore[assignment]


class Note(Text):
    """A third-party Text space with its own serialized form."""


def register_spaces() -> None:
    """Register the serialization of ``Mission`` and ``Note``."""

    def form(kind: str, **fields: Any) -> Any:
        return {"type": kind, **fields}

    def dumped(value: dict[str, Any], to_string: bool) -> Any:
        return json.dumps(value) if to_string else value

    serialize_space.register(
        Mission, lambda space, to_string=True: dumped(form("Mission", verb=space.verb), to_string)
    )
    serialize_space.register(
        Note, lambda space, to_string=True: dumped(form("Note", n=space.max_length), to_string)
    )
    deserialize_space.register("Mission")(lambda found: Mission(found["verb"]))
    deserialize_space.register("Note")(lambda found: Note(found["n"]))


_INT32: Any = np.int32
LEAF_SPACES: dict[str, gym.Space] = {
    **{f"Box {dtype}": Box(-2, 2, (2, 3), np.dtype(dtype).type) for dtype in FLOATS},
    **{
        f"Box {dtype}": Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (3,), np.dtype(dtype).type)
        for dtype in INTEGERS
    },
    "Box bool": Box(0, 1, (2,), np.bool_),
    "Box without axes": Box(-1, 1, ()),
    "Box without values": Box(-1, 1, (2, 0)),
    "Box without bounds": Box(-np.inf, np.inf, (2,), np.float64),
    "Box of four axes": Box(0, 9, (2, 1, 3, 2), np.int16),
    "Discrete from -3": Discrete(4, start=-3),
    "Discrete int32": Discrete(4, start=10**9, dtype=np.int32),
    "Discrete uint8": Discrete(200, dtype=np.uint8),
    "MultiDiscrete": MultiDiscrete([2, 9, 5]),
    "MultiDiscrete from elsewhere": MultiDiscrete([2, 9], start=[-4, 100]),
    "MultiDiscrete int32 of two axes": MultiDiscrete(
        np.array([[2, 9], [1, 3]]), dtype=_INT32, start=np.array([[0, -1], [2, 5]])
    ),
    "MultiBinary": MultiBinary(4),
    "MultiBinary of three axes": MultiBinary([2, 1, 3]),
    "Text": Text(8),
    "Text of any characters": Text(12, min_length=0, charset=TEXT),
    "Text of one character": Text(3, charset="漢"),
}
NESTED_SPACES: dict[str, gym.Space] = {
    "Dict": Dict({"b": Discrete(3), "a": Text(4), "é 漢.": Box(-1, 1, (2,))}),
    "Tuple": Tuple([Discrete(3), Text(4), MultiBinary([2, 2])]),
    "deep": Dict({"x": Tuple([Dict({"y": Tuple([Tuple([Text(3)]), Discrete(2)])})])}),
    "Dict of keys like names of Tuples": Dict({"_index_0": Discrete(2), "0": Discrete(3)}),
    "Tuple of eleven": Tuple([Discrete(n) for n in range(1, 12)]),
    "empty Dict and Tuple beside others": Dict(
        {"none": Dict({}), "nothing": Tuple([]), "one": Discrete(2)}
    ),
    "empty Dict": Dict({}),
    "empty Tuple": Tuple([]),
}


def _rows(observations: Any, steps: int, **others: Any) -> EpisodeBuffer:
    flags = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        observations=observations,
        actions=np.arange(steps) % 5,
        rewards=np.arange(steps, dtype=float),
        terminations=flags,
        truncations=np.zeros(steps, bool),
        **{"infos": {}, **others},
    )


class ValuesContract(Contract):
    """Tests of spaces, infos, extras, seeds, options and lengths."""

    @examples(15)
    @given(datasets())
    def test_any_episode_comes_back_exactly(
        self, tmp_path_factory: pytest.TempPathFactory, dataset: Dataset
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "data"
        storage = self.new(path, dataset.observation_space, dataset.action_space)
        storage.update_episodes(dataset.buffers)
        again = MinariStorage.read(path)
        assert again.observation_space == dataset.observation_space
        assert again.action_space == dataset.action_space
        assert_stored(again, dataset.buffers)
        MemoryStorage.forget(path)

    @pytest.mark.parametrize("name", [*LEAF_SPACES, *NESTED_SPACES])
    def test_every_space_comes_back_exactly(self, path: Path, name: str) -> None:
        space = (LEAF_SPACES | NESTED_SPACES)[name]
        buffers = [episode(space, space, np.random.default_rng(i), i + 1) for i in range(2)]
        self.new(path, space, space).update_episodes(buffers)
        again = MinariStorage.read(path)
        assert again.observation_space == space == again.action_space
        assert_stored(again, buffers)

    def test_spaces_of_another_package_come_back(self, path: Path) -> None:
        register_spaces()
        space = Dict({"mission": Mission("go"), "notes": Tuple([Note(9)]), "x": Discrete(2)})
        rows = {"mission": ["go", "go up"], "notes": (["é", ""],), "x": np.array([0, 1])}
        storage = self.new(path, space, ACTION)
        storage.update_episodes([_rows(rows, 1)])
        again = MinariStorage.read(path)
        assert again.observation_space == space
        assert isinstance(again.observation_space, Dict)
        assert type(again.observation_space["notes"][0]) is Note  # type: ignore[index]
        assert_same(rows, next(iter(again.get_episodes([0])))["observations"])

    @pytest.mark.parametrize("infos", [{}, None, {"nest": {}}], ids=["none", "None", "empty"])
    def test_no_infos_are_an_empty_dict(self, path: Path, infos: Any) -> None:
        storage = self.new(path, ACTION)
        storage.update_episodes([_rows(np.arange(3), 2, infos=infos)])
        assert next(iter(storage.get_episodes([0])))["infos"] == {}

    @pytest.mark.usefixtures("in_files")
    def test_nothing_but_the_value_of_a_number_is_stored(self, tmp_path: Path) -> None:
        if np.finfo(np.longdouble).nmant != 63:
            pytest.skip("every byte of this machine's longdouble means something")
        wide = np.arange(3).astype(np.longdouble)
        wide.view(np.uint8).reshape(3, -1)[:, 10:] = 0xAB  # fill the padding bytes
        storage = self.new(tmp_path / "wide", ACTION)
        storage.update_episodes([_rows(np.arange(3), 2, infos={"x": wide})] * 2)
        assert not any(b"\xab" * 6 in content for content in files(tmp_path / "wide").values())
        for stored in storage.get_episodes([0, 1]):
            assert stored["infos"]["x"].tolist() == [0, 1, 2]

    def test_infos_of_every_kind_come_back(self, path: Path) -> None:
        rng = np.random.default_rng(0)
        infos = {
            **{dtype: rng.random((3, 2)).astype(dtype) for dtype in FLOATS},
            **{dtype: rng.integers(99, size=3, dtype=dtype) for dtype in INTEGERS},
            "flag": np.array([True, False, True]),
            "text": np.array(["", "é漢🙂", "x" * 5000], dtype=object),
            "cube": rng.random((3, 2, 1, 3)),
            "nothing": np.zeros((3, 0)),
            "bytes": np.tile(np.array([0xFF, 0xD8, 0xFF, 1, 2], np.uint8), (3, 1)),
            "a.b c": {"é": {"deep": {"x": np.arange(3)}, "y": np.array(list("abc"), object)}},
            "TimeLimit.truncated": np.array([False, False, True]),
            "with/slash": np.arange(3),
            "nan": np.array([np.nan, -0.0, np.inf]),
        }
        buffers = [_rows(np.arange(3), 2, infos=infos)]
        self.new(path, ACTION).update_episodes(buffers)
        assert_same(infos, next(iter(MinariStorage.read(path).get_episodes([0])))["infos"])

    def test_infos_may_differ_between_episodes(self, path: Path) -> None:
        storage = self.new(path, ACTION)
        for infos in (
            {"x": np.arange(3)},
            {"x": {"y": np.arange(3.0)}},
            {},
            {"z": np.ones((3, 2))},
        ):
            storage.update_episodes([_rows(np.arange(3), 2, infos=infos)])
            last = storage.total_episodes - 1
            assert_same(infos, next(iter(storage.get_episodes([last])))["infos"])

    def test_what_infos_missed_is_told(self, storage: MinariStorage) -> None:
        filled = {"success": [[0, 1]], "nest.y": [[0, 5]]}
        buffers = [replace(make()[0], metadata={"infos_filled": filled})]
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)

    def test_extra_step_data_comes_back(self, path: Path) -> None:
        extras = {
            "state": {"qpos": np.random.default_rng(0).random((3, 4)), "deep": {"t": np.arange(3)}},
            "forces": np.ones((2, 6), np.float32),
            "phase": np.array(["é", ""], dtype=object),
        }
        buffers = [_rows(np.arange(3), 2, extras=extras), _rows(np.arange(3), 2)]
        storage = self.new(path, ACTION)
        storage.update_episodes(buffers)
        found = list(MinariStorage.read(path).get_episodes([0, 1]))
        assert_same(extras, found[0]["extras"])
        assert_same({}, found[1]["extras"])
        assert_same([extras, {}], [buffer.extras for buffer in storage.get_buffers()])

    @pytest.mark.parametrize("seed", [None, 0, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64])
    def test_seeds_are_whole_numbers_of_any_size(self, path: Path, seed: int | None) -> None:
        storage = self.new(path, ACTION)
        storage.update_episodes([_rows(np.arange(3), 2, seed=seed)])
        (fields,) = storage.get_episodes([0])
        assert_same(seed, fields["seed"])
        (attributes,) = storage.get_episode_metadata([0])
        assert_same(seed, attributes.get("seed"))
        assert ("seed" in attributes) == (seed is not None)

    @pytest.mark.parametrize("seed", [-1, 1.5, "7", "None"])
    def test_what_is_no_seed_is_refused(self, path: Path, seed: Any) -> None:
        storage = self.new(path, ACTION)
        with pytest.raises(InvalidEpisodeError, match="episode 0: a seed must be None or a non-"):
            storage.update_episodes([_rows(np.arange(3), 2, seed=seed)])
        storage.update_episodes([_rows(np.arange(3), 2)])
        with pytest.raises(InvalidMetadataError, match="episode 0: a seed must be None or a non-"):
            storage.update_episode_metadata([{"seed": seed}])
        assert [fields["seed"] for fields in storage.get_episodes([0])] == [None]

    @pytest.mark.parametrize(
        "metadata",
        [{"name": np.array("left")}, {"infos_filled": 1.5}, {"infos_filled": True}],
        ids=["text without an axis", "a number under our name", "a flag under our name"],
    )
    def test_odd_attributes_come_back(self, path: Path, metadata: dict[str, Any]) -> None:
        storage = self.new(path, ACTION)
        buffers = [replace(_rows(np.arange(3), 2), metadata=metadata) for _ in range(2)]
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)
        storage.update_episode_metadata([{"again": True}, {}])  # HDF5 writes updates differently
        (attributes, _) = storage.get_episode_metadata([0, 1])
        for name, value in metadata.items():
            assert_same(value, attributes[name])

    def test_options_of_any_nesting_come_back(self, storage: MinariStorage) -> None:
        deep: Any = np.arange(3)
        for level in range(20):
            deep = (
                {f"level {level}": deep, "list": [deep, None, {"x": ()}]}
                if level < 4
                else {"x": deep}
            )
        options = {"deep": deep, "mask": np.random.default_rng(0).random((200, 300)) < 0.5}
        buffers = [replace(make()[0], options=options), replace(make()[1], options={})]
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)

    def test_attributes_may_be_long(self, storage: MinariStorage) -> None:
        rng = np.random.default_rng(0)
        large = {"mask": rng.random(10_000), "text": "ü" * 40_000}
        buffers = [replace(make()[0], options=large, metadata=large)]
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)
        storage.update_episodes(make(1, 1))
        late = rng.random(9_000)
        storage.update_episode_metadata([{"late": late}], [1])
        assert_same(late, next(iter(storage.get_episode_metadata([1])))["late"])
        assert_episode(next(iter(storage.get_episodes([1]))), make(1, 1)[0])

    @pytest.mark.parametrize("length", [60_000, 65_000])
    def test_names_of_attributes_may_be_long(self, storage: MinariStorage, length: int) -> None:
        long = {"k" * length: np.arange(2_000)}
        buffers = [replace(make(count=1)[0], options=long)]
        storage.update_episodes(buffers)
        storage.update_episode_metadata([long])
        buffers[0].metadata.update(long)
        assert_stored(storage, buffers)

    @pytest.mark.parametrize(
        "long", [40_000, pytest.param(150_000, marks=pytest.mark.skipif(not FULL, reason="slow"))]
    )
    def test_long_episodes_stay_whole_and_apart(self, path: Path, long: int) -> None:
        lengths = [3, long, 1, 5]
        rng = np.random.default_rng(0)
        space = Dict({"x": Box(0, 1, (2,), np.float32), "t": Text(4)})
        buffers = [episode(space, ACTION, rng, steps) for steps in lengths]
        storage = self.new(path, space)
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)
        assert [len(fields["rewards"]) for fields in storage.get_episodes(iter([1, 3]))] == [
            long,
            5,
        ]

    def test_rewards_of_any_bits_come_back(self, path: Path) -> None:
        rewards = np.array([np.nan, -0.0, np.inf, 5e-324])
        buffer = replace(_rows(np.arange(5), 4), rewards=rewards)
        storage = self.new(path, ACTION)
        with np.errstate(invalid="ignore"):
            storage.update_episodes([buffer])
        assert_same(rewards, next(iter(storage.get_episodes([0])))["rewards"])
