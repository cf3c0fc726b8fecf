"""Test that appends, continuations, attribute changes and copies succeed whole or do nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    InvalidMetadataError,
    MinariPipeError,
    UnknownFormatError,
    UnsupportedSpaceError,
)
from minari_pipe.storage import METADATA_FILE_NAME, MinariStorage, get_storage_keys
from minari_pipe.storage.memory import MemoryStorage
from minari_pipe.testing.base import ACTION, OBSERVATION, Contract, make, steps_of
from minari_pipe.testing.comparison import assert_episode, assert_same, assert_stored, files, state
from minari_pipe.testing.strategies import episode


class ChangesContract(Contract):
    """Tests of creating, appending, continuing, changing and copying."""

    def test_a_new_storage_is_empty(self, storage: MinariStorage, path: Path) -> None:
        assert_stored(MinariStorage.read(path), [])
        metadata = storage.metadata
        assert (metadata["total_episodes"], metadata["total_steps"]) == (0, 0)
        assert metadata["data_format"] == self.data_format == storage.FORMAT
        assert metadata["jpeg_encoding"] is storage.jpeg_encoding is False
        assert metadata["observation_space"] == OBSERVATION
        assert storage.data_path == path

    def test_episodes_are_read_in_any_order_and_often(self, storage: MinariStorage) -> None:
        buffers = make(count=4)
        storage.update_episodes(buffers)
        order: Any = [2, 0, np.int64(2), 3]
        for index, found in zip(order, storage.get_episodes(iter(order)), strict=True):
            assert_episode(found, buffers[index])
        assert list(storage.apply(lambda fields: fields["id"])) == [0, 1, 2, 3]
        assert list(storage.apply(lambda fields: len(fields["rewards"]), [1])) == [len(buffers[1])]

    @pytest.mark.parametrize("index", [3, -1, 10**6])
    def test_an_episode_that_is_not_there_is_an_index_error(
        self, storage: MinariStorage, index: int
    ) -> None:
        storage.update_episodes(make())
        with pytest.raises(IndexError, match=f"episode {index} is out of range"):
            list(storage.get_episodes([index]))
        with pytest.raises(IndexError, match="there are 3 episodes"):
            list(storage.get_episode_metadata([index]))

    def test_what_is_read_or_was_written_is_nobody_else_s(self, storage: MinariStorage) -> None:
        (buffer,) = make(count=1)
        storage.update_episodes([buffer])
        buffer.observations["a"][:] = 9
        buffer.metadata["weights"][:] = 9
        (fields,) = storage.get_episodes([0])
        fields["observations"]["a"][:] = 8
        fields["observations"]["t"][0].clear()
        next(iter(storage.get_episode_metadata([0])))["weights"][:] = 8
        assert_stored(storage, make(count=1))

    def test_many_appends_are_one_append(self, storage: MinariStorage, path: Path) -> None:
        buffers = make(count=4)
        storage.update_episodes(iter(buffers[:1]))
        storage.update_episodes([])
        MinariStorage.read(path).update_episodes(buffers[1:])
        assert_stored(storage, buffers)

    @pytest.mark.parametrize("as_lists", [False, True], ids=["arrays", "lists"])
    def test_a_generator_may_write_each_episode_over_the_last(
        self, path: Path, as_lists: bool
    ) -> None:
        """Allow what real Minari allows: it writes an episode before it requests the next."""
        numbers, rewards, weights = np.zeros((4, 2)), np.zeros(3), np.zeros(2)
        rows, flags = list(numbers), [False] * 3

        def reusing() -> Iterator[EpisodeBuffer]:
            for number in range(9):
                numbers[:], rewards[:], weights[:] = number, number, number
                flags[-1] = number % 2 == 0
                yield EpisodeBuffer(
                    observations=rows if as_lists else numbers,
                    actions=(numbers[:3], np.arange(3)),
                    rewards=rewards,
                    terminations=flags if as_lists else np.array(flags),
                    truncations=np.zeros(3, np.bool_),
                    infos={"goal": {"x": numbers}},
                    metadata={"weights": weights},
                )

        box = spaces.Box(-9, 9, (2,), np.float64)
        storage = self.new(path, box, spaces.Tuple([box, spaces.Discrete(3)]))
        storage.update_episodes(reusing())
        found = zip(storage.get_episodes(range(9)), storage.get_episode_metadata(range(9)))
        for number, (fields, attributes) in enumerate(found):
            values = [fields["observations"], fields["actions"][0], fields["rewards"]]
            values += [fields["infos"]["goal"]["x"], attributes["weights"]]
            assert [set(np.ravel(value)) for value in values] == [{number}] * 5
            assert fields["terminations"].tolist() == [False, False, number % 2 == 0]

    def test_equal_calls_write_equal_bytes(self, tmp_path: Path) -> None:
        space = spaces.Dict({**OBSERVATION.spaces, "view": spaces.Box(0, 255, (32, 32), np.uint8)})

        def written(name: str) -> list[Any]:
            found = []
            for jpeg_encoding in (False, True):
                rng = np.random.default_rng(0)
                path = tmp_path / f"{name} {jpeg_encoding}"
                storage = self.new(path, space, jpeg_encoding=jpeg_encoding)
                storage.update_episodes(episode(space, ACTION, rng) for _ in range(3))
                storage.update_metadata({"author": {"B", "A"}, "dataset_id": "aa/b-v0"})
                storage.update_episodes([episode(space, ACTION, rng)])
                storage.update_episode_metadata([{"x": 1}], [0])
                found.append(state(path))
                MemoryStorage.forget(path)
            return found

        first = written("first")
        ended = int(time.time())
        while int(time.time()) == ended:  # HDF5 may store timestamps, in whole seconds
            time.sleep(0.01)
        assert_same(first, written("second"))

    def test_an_episode_can_be_continued(self, storage: MinariStorage) -> None:
        whole = episode(OBSERVATION, ACTION, np.random.default_rng(3), steps=7)
        infos = {"x": np.arange(8), "deep": {"note": np.array(list("abcdefgh"), object)}}
        filled = {"infos_filled": {"x": [[0, 1], [4, 6]]}}
        extras = {
            "state": {"q": np.arange(16.0).reshape(8, 2)},
            "name": np.array(["é"] * 7, object),
        }
        whole = replace(whole, infos=infos, extras=extras, metadata={**whole.metadata, **filled})
        head = replace(
            steps_of(whole, 0, 3, first=True),
            metadata={**whole.metadata, "infos_filled": {"x": [[0, 1]]}},
        )
        middle = steps_of(whole, 3, 5, first=False)
        middle = replace(middle, metadata={"infos_filled": {"x": [[0, 2]]}})
        storage.update_episodes([head, *make(1, 1)])
        storage.update_episodes([replace(middle, id=0), *make(2, 1)])
        storage.update_episodes([replace(steps_of(whole, 5, 7, first=False), id=0, metadata={})])
        assert_stored(storage, [whole, *make(1, 1), *make(2, 1)])

    def test_an_episode_can_be_continued_in_the_append_that_begins_it(
        self, storage: MinariStorage
    ) -> None:
        whole = episode(OBSERVATION, ACTION, np.random.default_rng(4), steps=6)
        parts = [replace(steps_of(whole, 0, 1, first=True), id=1)]
        for step in range(1, 6):
            part = steps_of(whole, step, step + 1, first=False)
            parts.append(replace(part, id=1, metadata={}))
        storage.update_episodes([*make(1, 1), *parts])
        assert_stored(storage, [*make(1, 1), whole])

    def test_a_continuation_must_fit(self, storage: MinariStorage, path: Path) -> None:
        buffers = [replace(make(count=1)[0], extras={"state": np.zeros(len(make(count=1)[0]))})]
        storage.update_episodes(buffers)
        before = state(path)
        rest = replace(
            buffers[0],
            id=0,
            seed=None,
            options=None,
            metadata={},
            observations={"a": np.zeros((1, 2), np.float32), "t": (["x"],)},
            actions=[0],
            rewards=[0.0],
            terminations=[False],
            truncations=[False],
            infos={"other": [1]},
            extras={"state": np.zeros(1)},
        )
        for bad, message in [
            (replace(buffers[0], id=0), "rewards has"),
            (replace(rest, observations={"a": np.zeros((1, 2)), "t": (["x"],)}), "episode has"),
            (rest, "has the keys"),
            (replace(rest, infos={}, extras={}), "has the keys"),
            (replace(rest, id=5), "ids must be sequential"),
            (replace(rest, id=-1), "ids must be sequential"),
        ]:
            with pytest.raises(InvalidEpisodeError, match=message):
                storage.update_episodes([bad])
        assert_same(before, state(path))

    @pytest.mark.parametrize("good", [0, 2])
    def test_a_refused_append_changes_nothing(
        self, storage: MinariStorage, path: Path, good: int
    ) -> None:
        storage.update_episodes(make())
        before = state(path)
        bad = replace(make()[0], rewards=[1.0])
        with pytest.raises(InvalidEpisodeError, match=f"^episode {3 + good}: "):
            storage.update_episodes([*make(1, good), bad])
        with pytest.raises(ZeroDivisionError):
            storage.update_episodes(1 / 0 for _ in range(2))  # type: ignore[misc]
        assert_same(before, state(path))
        assert_stored(storage, make())

    @pytest.mark.parametrize(
        "change",
        [
            {"options": {"x": object()}},
            {"metadata": {"x": {1: 2}}},
            {"metadata": {"id": 5}},
            {"metadata": {"seed": 5}},
            {"options": {"x": {"y": 1}, "x/y": 2}},
            {"options": [1]},
        ],
        ids=[
            "not a plain value",
            "a key that is not a string",
            "its own id",
            "its own seed",
            "keys that clash",
            "options that are not a dict",
        ],
    )
    def test_attributes_that_cannot_be_stored_are_refused(
        self, storage: MinariStorage, path: Path, change: dict[str, Any]
    ) -> None:
        before = state(path)
        with pytest.raises(
            InvalidEpisodeError, match=r"^episode 0: .*(options[./]x|options must|x: keys|metadata)"
        ):
            storage.update_episodes([replace(make()[0], **change)])
        assert_same(before, state(path))

    def test_metadata_is_added_and_changed(self, storage: MinariStorage, path: Path) -> None:
        extra = {"float": 3.2, "text": "ü", "int": 2, "bool": True, "list": [1], "author": {"A"}}
        storage.update_metadata({**extra, "dataset_id": "aa/b-v0"})
        storage.update_metadata({"int": 3})
        found = MinariStorage.read(path).metadata
        assert {key: found[key] for key in extra} == {**extra, "int": 3}
        assert found == storage.metadata

    def test_fixed_metadata_cannot_change(self, storage: MinariStorage, path: Path) -> None:
        storage.update_metadata({"dataset_id": "aa/b-v0"})
        before = state(path)
        for metadata in (
            {"dataset_id": "aa/c-v0"},
            {"x": 1, "data_format": "other"},
            {"total_steps": 3},
        ):
            with pytest.raises(ValueError, match=r"^You are not allowed to update values for"):
                storage.update_metadata(metadata)
        with pytest.raises(InvalidMetadataError, match="must be"):
            storage.update_metadata({"author": "A"})
        with pytest.raises(InvalidMetadataError, match="string as its key"):
            storage.update_metadata({1: 2})  # type: ignore[dict-item]
        assert_same(before, state(path))

    def test_episode_metadata_is_added_and_changed(self, storage: MinariStorage) -> None:
        buffers = make()
        storage.update_episodes(buffers)
        new: list[dict[str, Any]] = [{"a": [1], "origin": "x"}, {"rewards_sum": 5.0}]
        storage.update_episode_metadata(iter(new), [2, 0])
        buffers[2].metadata.update(new[0])
        buffers[0].metadata.update(new[1])
        assert_stored(storage, buffers)
        storage.update_episode_metadata([{"n": i} for i in range(3)])
        assert [found["n"] for found in storage.get_episode_metadata(range(3))] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("metadatas", "indices", "error", "message"),
        [
            ([{}], None, InvalidMetadataError, "different lengths"),
            ([{}, {}], [1], InvalidMetadataError, "different lengths"),
            ([{"x": 1}, {"id": 5}], [0, 1], InvalidMetadataError, "id is computed from the data"),
            ([{"x": 1}, {}], [0, 9], IndexError, "out of range"),
            ([{"x": object()}], [0], InvalidEpisodeError, "x cannot be stored"),
        ],
    )
    def test_refused_episode_metadata_changes_nothing(
        self,
        storage: MinariStorage,
        path: Path,
        metadatas: list[dict[str, Any]],
        indices: list[int] | None,
        error: type[Exception],
        message: str,
    ) -> None:
        storage.update_episodes(make())
        before = state(path)
        with pytest.raises(error, match=message):
            storage.update_episode_metadata(metadatas, indices)
        assert_same(before, state(path))

    def test_a_copy_keeps_everything(self, storage: MinariStorage, tmp_path: Path) -> None:
        buffers = make(count=4)
        storage.update_episodes(buffers)
        storage.update_metadata({"author": {"A"}, "author_email": {"a"}})
        other = self.new(tmp_path / "other")
        other.update_metadata({"author": {"B"}})
        other.update_from_storage(storage)
        assert_stored(other, buffers)
        assert other.metadata["author"] == {"A", "B"}
        assert other.metadata["author_email"] == {"a"}
        other.update_from_storage(storage, [3, 1])
        other.update_from_storage(other, [0])
        assert_stored(other, [*buffers, buffers[3], buffers[1], buffers[0]])
        MemoryStorage.forget(tmp_path / "other")

    @pytest.mark.parametrize("data_format", [*get_storage_keys(), "memory"])
    def test_a_copy_into_another_format_and_back_keeps_everything(
        self, storage: MinariStorage, tmp_path: Path, data_format: str
    ) -> None:
        storage.update_episodes(make(count=4))
        place = tmp_path / "other"
        other = MinariStorage.new(place, OBSERVATION, ACTION, data_format=data_format)
        other.update_from_storage(storage)
        assert_stored(other, make(count=4))
        storage.update_from_storage(other, [2, 0])
        assert_stored(storage, [*make(count=4), make()[2], make()[0]])
        MemoryStorage.forget(place)

    @pytest.mark.usefixtures("in_files")
    def test_size_counts_the_files_in_mb(self, storage: MinariStorage, path: Path) -> None:
        noise = np.random.default_rng(0).random(200_000)
        storage.update_episodes([replace(make(count=1)[0], metadata={"x": noise})])
        (path / ".hidden").write_bytes(bytes(10**6))
        expected = sum(len(data) for name, data in files(path).items() if name[0] != ".") / 1e6
        assert storage.get_size() == round(expected, 1) > 1
        assert storage.metadata["dataset_size"] == storage.get_size()

    @pytest.mark.usefixtures("in_files")
    def test_size_counts_the_metadata_too(self, tmp_path: Path) -> None:
        metadata = {"description": "d" * 2 * 10**6}
        whole = MinariStorage.create(
            tmp_path / "whole",
            make(),
            metadata=metadata,
            observation_space=OBSERVATION,
            action_space=ACTION,
            data_format=self.data_format,
        )
        assert whole.metadata["dataset_size"] == whole.get_size() > 1
        begun = self.new(tmp_path / "begun", OBSERVATION)
        begun.update_metadata(metadata)
        begun.update_episodes(make())
        assert begun.metadata["dataset_size"] == begun.get_size() > 1

    def test_a_failed_new_leaves_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "data"
        graph: gym.Space = spaces.Graph(spaces.Box(-1, 1), None)
        with pytest.raises(UnsupportedSpaceError, match=r"^No serialization method available"):
            self.new(path, graph)
        with pytest.raises(UnknownFormatError, match=r"^No storage implemented for parchment"):
            MinariStorage.new(path, OBSERVATION, ACTION, data_format="parchment")
        with pytest.raises(ValueError, match=r"^Since env_spec is not specified"):
            MinariStorage.new(path, OBSERVATION, data_format=self.data_format)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(DatasetNotFoundError):
            MinariStorage.read(path)

    def test_new_does_not_overwrite(self, storage: MinariStorage, path: Path) -> None:
        storage.update_episodes(make())
        for data_format in (self.data_format, *get_storage_keys(), "memory"):
            with pytest.raises(DatasetExistsError, match=r"^A dataset is already available at"):
                MinariStorage.new(path, OBSERVATION, ACTION, data_format=data_format)
        assert_stored(storage, make())

    def test_spaces_may_come_from_the_environment(self, path: Path) -> None:
        spec = gym.spec("CartPole-v1")
        storage = MinariStorage.new(path, env_spec=spec, data_format=self.data_format)
        assert storage.action_space == spaces.Discrete(2)
        assert storage.metadata["env_spec"] == spec.to_json()

    def test_missing_data_is_named_as_in_real_minari(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^The data path .*nowhere doesn't exist"):
            MinariStorage.read(tmp_path / "nowhere")
        with pytest.raises(DatasetNotFoundError, match=r"^No data found in data path"):
            MinariStorage.read(tmp_path)

    @pytest.mark.usefixtures("in_files")
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "{}",
            '{"total_episodes": "3"}',
            '{"total_episodes": 1, "total_steps": -1}',
        ],
    )
    def test_damaged_metadata_is_named(self, path: Path, text: str) -> None:
        (path / METADATA_FILE_NAME).write_text(text)
        with pytest.raises(CorruptDatasetError, match=r"metadata\.json"):
            MinariStorage.read(path)

    @pytest.mark.usefixtures("in_files")
    def test_metadata_without_spaces_or_format_is_named(self, path: Path) -> None:
        file = path / METADATA_FILE_NAME
        text = file.read_text()
        file.write_text(text.replace("action_space", "x"))
        with pytest.raises(CorruptDatasetError, match="must have both spaces or an env_spec"):
            MinariStorage.read(path)
        file.write_text(text.replace('"data_format"', '"x"'))
        with pytest.raises(CorruptDatasetError, match="has no data_format"):
            MinariStorage.read(path)
        file.write_text(text.replace(f'"{self.data_format}"', '"parchment"'))
        with pytest.raises(UnknownFormatError, match="parchment"):
            MinariStorage.read(path)

    @pytest.mark.usefixtures("in_files")
    def test_missing_files_are_named(self, storage: MinariStorage, path: Path) -> None:
        storage.update_episodes(make())
        for file in path.rglob("*"):
            if file.is_file() and file.name != METADATA_FILE_NAME:
                file.unlink()
        with pytest.raises(MinariPipeError):
            list(MinariStorage.read(path).get_episodes([0]))

    def test_who_iterates_meanwhile_sees_the_old_data(self, storage: MinariStorage) -> None:
        buffers = make()
        storage.update_episodes(buffers)
        iterator = iter(storage.get_episodes(range(3)))
        assert_episode(next(iterator), buffers[0])
        storage.update_episodes(make(1))
        for buffer, found in zip(buffers[1:], iterator, strict=True):
            assert_episode(found, buffer)
