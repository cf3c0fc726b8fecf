"""What every storage must do; a format's test is a subclass that names its ``data_format``."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.episode import EpisodeBuffer, reward_statistics
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
from minari_pipe.storage import MinariStorage
from tests.conftest import FULL
from tests.generated import any_space, assert_episode, assert_same, episode, examples

OBSERVATION = spaces.Dict(a=spaces.Box(-1, 1, (2,)), t=spaces.Tuple([spaces.Text(8)]))
ACTION = spaces.Discrete(5)


def make(seed: int = 0, count: int = 3) -> list[EpisodeBuffer]:
    rng = np.random.default_rng(seed)
    return [episode(OBSERVATION, ACTION, rng) for _ in range(count)]


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def assert_stored(storage: MinariStorage, buffers: list[EpisodeBuffer]) -> None:
    """Assert that a storage holds exactly these episodes, with all that belongs to them."""
    indices = range(len(buffers))
    episodes = list(storage.get_episodes(indices))
    attributes = list(storage.get_episode_metadata(indices))
    assert storage.total_episodes == len(episodes) == len(attributes) == len(buffers)
    assert storage.total_steps == sum(map(len, buffers))
    for index, buffer in enumerate(buffers):
        assert episodes[index]["id"] == index
        assert_episode(episodes[index], buffer)
        expected = {
            "id": index,
            "total_steps": len(buffer),
            **reward_statistics(buffer.rewards),
            **buffer.metadata,
        }
        for key in ("seed", "options"):
            if getattr(buffer, key) is not None:
                expected[key] = getattr(buffer, key)
        assert_same(attributes[index], expected)


class StorageContract:
    """Inherit and set ``data_format``."""

    data_format: str

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "data"

    @pytest.fixture
    def storage(self, path: Path) -> MinariStorage:
        return self.new(path)

    def new(self, path: Path, observation_space=OBSERVATION, action_space=ACTION) -> MinariStorage:
        return MinariStorage.new(
            path, observation_space, action_space, data_format=self.data_format
        )

    @examples(15)
    @given(any_space, any_space, st.integers(0, 2**32), st.integers(0, 3))
    def test_any_episode_comes_back_exactly(
        self, tmp_path_factory, observation_space, action_space, seed, count
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "data"
        rng = np.random.default_rng(seed)
        buffers = [episode(observation_space, action_space, rng) for _ in range(count)]
        self.new(path, observation_space, action_space).update_episodes(buffers)
        again = MinariStorage.read(path)
        assert again.observation_space == observation_space
        assert again.action_space == action_space
        assert_stored(again, buffers)

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
        order = [2, 0, np.int64(2), 3]
        for index, found in zip(order, storage.get_episodes(iter(order)), strict=True):
            assert_episode(found, buffers[index])
        assert list(storage.apply(lambda fields: fields["id"])) == [0, 1, 2, 3]
        assert list(storage.apply(lambda fields: len(fields["rewards"]), [1])) == [len(buffers[1])]

    @pytest.mark.parametrize("index", [3, -1, 10**6])
    def test_an_episode_that_is_not_there_is_an_index_error(self, storage, index) -> None:
        storage.update_episodes(make())
        with pytest.raises(IndexError, match=f"episode {index} is out of range"):
            list(storage.get_episodes([index]))
        with pytest.raises(IndexError, match="there are 3 episodes"):
            list(storage.get_episode_metadata([index]))

    def test_many_appends_are_one_append(self, storage: MinariStorage, path: Path) -> None:
        buffers = make(count=4)
        storage.update_episodes(iter(buffers[:1]))
        storage.update_episodes([])
        MinariStorage.read(path).update_episodes(buffers[1:])
        assert_stored(storage, buffers)

    def test_equal_calls_write_equal_bytes(self, tmp_path: Path) -> None:
        for name in ("first", "second"):
            storage = self.new(tmp_path / name)
            storage.update_episodes(make())
            storage.update_metadata({"author": {"B", "A"}, "dataset_id": "aa/b-v0"})
            storage.update_episodes(make(1, 1))
            storage.update_episode_metadata([{"x": 1}], [0])
            time.sleep(1.1)  # HDF5 stores times in seconds, where it stores them
        assert files(tmp_path / "first") == files(tmp_path / "second")

    def test_an_episode_can_be_continued(self, storage: MinariStorage) -> None:
        rng = np.random.default_rng(3)
        whole = episode(OBSERVATION, ACTION, rng, steps=7)
        infos = {"x": np.arange(8)}
        filled = {"infos_filled": {"x": [[0, 1], [4, 6]]}}
        whole = replace(whole, infos=infos, metadata={**whole.metadata, **filled})

        def rows(tree, begin, end):
            from minari_pipe.tree import map_leaves

            return map_leaves(lambda leaf: leaf[begin:end], tree)

        def part(begin, end, first, **changes):
            return replace(
                whole,
                observations=rows(whole.observations, begin + 1 - first, end + 1),
                infos=rows(whole.infos, begin + 1 - first, end + 1),
                actions=whole.actions[begin:end],
                rewards=whole.rewards[begin:end],
                terminations=whole.terminations[begin:end],
                truncations=whole.truncations[begin:end],
                **changes,
            )

        head = part(0, 3, 1, metadata={**whole.metadata, "infos_filled": {"x": [[0, 1]]}})
        tail = {"seed": None, "options": None, "id": 0}
        middle = part(3, 5, 0, metadata={"infos_filled": {"x": [[0, 2]]}}, **tail)
        storage.update_episodes([head])
        storage.update_episodes([middle, part(5, 7, 0, metadata={}, **tail)])
        assert_stored(storage, [whole])

    def test_a_continuation_must_fit(self, storage: MinariStorage, path: Path) -> None:
        buffers = make(count=1)
        storage.update_episodes(buffers)
        before = files(path)
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
        )
        for bad, message in [
            (replace(buffers[0], id=0), "rewards has"),
            (replace(rest, observations={"a": np.zeros((1, 2)), "t": (["x"],)}), "stored is"),
            (rest, "has the keys"),
            (replace(rest, id=5), "ids must be sequential"),
            (replace(rest, id=-1), "ids must be sequential"),
        ]:
            with pytest.raises(InvalidEpisodeError, match=message):
                storage.update_episodes([bad])
        assert files(path) == before

    @pytest.mark.parametrize("good", [0, 2])
    def test_a_refused_append_changes_nothing(self, storage, path, good) -> None:
        storage.update_episodes(make())
        before = files(path)
        bad = replace(make()[0], rewards=[1.0])
        with pytest.raises(InvalidEpisodeError, match=f"^episode {3 + good}: "):
            storage.update_episodes([*make(1, good), bad])
        with pytest.raises(ZeroDivisionError):
            storage.update_episodes(1 / 0 for _ in range(2))
        assert files(path) == before
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
            "no plain value",
            "a key that is no text",
            "its own id",
            "its own seed",
            "keys that clash",
            "options that are no dict",
        ],
    )
    def test_attributes_that_cannot_be_stored_are_refused(self, storage, path, change) -> None:
        before = files(path)
        with pytest.raises(
            InvalidEpisodeError, match=r"^episode 0: .*(options[./]x|options must|x: keys|metadata)"
        ):
            storage.update_episodes([replace(make()[0], **change)])
        assert files(path) == before

    def test_attributes_may_be_long(self, storage: MinariStorage, path: Path) -> None:
        rng = np.random.default_rng(0)
        large = {"mask": rng.random(40_000), "text": "ü" * 100_000}
        buffers = [replace(make()[0], options=large, metadata=large)]
        storage.update_episodes(buffers)
        assert_stored(storage, buffers)
        storage.update_episodes(make(1, 1))
        storage.update_episode_metadata([{"late": rng.random(30_000)}], [1])
        late = next(iter(storage.get_episode_metadata([1])))["late"]
        assert_same(late, rng.__class__(np.random.PCG64(0)).random(70_000)[40_000:])
        assert_episode(next(iter(storage.get_episodes([1]))), make(1, 1)[0])

    @pytest.mark.parametrize("length", [60_000, 65_000])
    def test_names_of_attributes_may_be_long(self, storage: MinariStorage, length) -> None:
        long = {"k" * length: np.arange(2_000)}
        buffers = [replace(make(count=1)[0], options=long)]
        storage.update_episodes(buffers)
        storage.update_episode_metadata([long])
        buffers[0].metadata.update(long)
        assert_stored(storage, buffers)

    def test_metadata_is_added_and_changed(self, storage: MinariStorage, path: Path) -> None:
        extra = {"float": 3.2, "text": "ü", "int": 2, "bool": True, "list": [1], "author": {"A"}}
        storage.update_metadata({**extra, "dataset_id": "aa/b-v0"})
        storage.update_metadata({"int": 3})
        found = MinariStorage.read(path).metadata
        assert {key: found[key] for key in extra} == {**extra, "int": 3}
        assert found == storage.metadata

    def test_fixed_metadata_cannot_change(self, storage: MinariStorage, path: Path) -> None:
        storage.update_metadata({"dataset_id": "aa/b-v0"})
        before = files(path)
        for metadata in ({"dataset_id": "aa/c-v0"}, {"x": 1, "data_format": "other"}):
            with pytest.raises(ValueError, match=r"^You are not allowed to update values for"):
                storage.update_metadata(metadata)
        with pytest.raises(InvalidMetadataError, match="must be"):
            storage.update_metadata({"author": "A"})
        assert files(path) == before

    def test_episode_metadata_is_added_and_changed(self, storage: MinariStorage) -> None:
        buffers = make()
        storage.update_episodes(buffers)
        new = [{"a": [1], "origin": "x"}, {"rewards_sum": 5.0}]
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
            ([{"x": 1}, {"id": 5}], [0, 1], InvalidMetadataError, "id follows from the data"),
            ([{"x": 1}, {}], [0, 9], IndexError, "out of range"),
            ([{"x": object()}], [0], InvalidEpisodeError, "x cannot be stored"),
        ],
    )
    def test_refused_episode_metadata_changes_nothing(
        self, storage, path, metadatas, indices, error, message
    ) -> None:
        storage.update_episodes(make())
        before = files(path)
        with pytest.raises(error, match=message):
            storage.update_episode_metadata(metadatas, indices)
        assert files(path) == before

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

    def test_size_counts_the_files_in_mb(self, storage: MinariStorage, path: Path) -> None:
        big = replace(make(count=1)[0], metadata={"x": np.zeros(200_000)})
        storage.update_episodes([big])
        (path / ".hidden").write_bytes(bytes(10**6))
        expected = sum(len(data) for name, data in files(path).items() if name[0] != ".") / 1e6
        assert storage.get_size() == round(expected, 1) > 1
        assert storage.metadata["dataset_size"] == storage.get_size()

    def test_a_failed_new_leaves_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "data"
        graph = spaces.Graph(spaces.Box(-1, 1), None)
        with pytest.raises(UnsupportedSpaceError, match=r"^No serialization method available"):
            self.new(path, graph)
        with pytest.raises(UnknownFormatError, match=r"^No storage implemented for parchment"):
            MinariStorage.new(path, OBSERVATION, ACTION, data_format="parchment")
        with pytest.raises(ValueError, match=r"^Since env_spec is not specified"):
            MinariStorage.new(path, OBSERVATION, data_format=self.data_format)
        assert list(tmp_path.iterdir()) == []

    def test_new_does_not_overwrite(self, storage: MinariStorage, path: Path) -> None:
        storage.update_episodes(make())
        with pytest.raises(DatasetExistsError, match=r"^A dataset is already available at"):
            self.new(path)
        assert_stored(storage, make())

    def test_spaces_may_come_from_the_environment(self, path: Path) -> None:
        import gymnasium as gym

        spec = gym.spec("CartPole-v1")
        storage = MinariStorage.new(path, env_spec=spec, data_format=self.data_format)
        assert storage.action_space == spaces.Discrete(2)
        assert storage.metadata["env_spec"] == spec.to_json()

    def test_missing_data_is_named_as_in_real_minari(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^The data path .*nowhere doesn't exist"):
            MinariStorage.read(tmp_path / "nowhere")
        with pytest.raises(DatasetNotFoundError, match=r"^No data found in data path"):
            MinariStorage.read(tmp_path)

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
    def test_damaged_metadata_is_named(self, storage, path: Path, text: str) -> None:
        (path / "metadata.json").write_text(text)
        with pytest.raises(CorruptDatasetError, match=r"metadata\.json"):
            MinariStorage.read(path)

    def test_metadata_without_spaces_or_format_is_named(self, storage, path: Path) -> None:
        text = (path / "metadata.json").read_text()
        (path / "metadata.json").write_text(text.replace("action_space", "x"))
        with pytest.raises(CorruptDatasetError, match="neither both spaces nor an env_spec"):
            MinariStorage.read(path)
        (path / "metadata.json").write_text(text.replace('"data_format"', '"x"'))
        with pytest.raises(CorruptDatasetError, match="has no data_format"):
            MinariStorage.read(path)
        (path / "metadata.json").write_text(text.replace(f'"{self.data_format}"', '"parchment"'))
        with pytest.raises(UnknownFormatError, match="parchment"):
            MinariStorage.read(path)

    def test_missing_files_are_named(self, storage: MinariStorage, path: Path) -> None:
        storage.update_episodes(make())
        for file in path.rglob("*"):
            if file.is_file() and file.name != "metadata.json":
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

    def test_two_processes_append_after_each_other(self, storage: MinariStorage, path) -> None:
        workers = [_appender(path, batches=4, size=2) for _ in range(2)]
        for worker in workers:
            worker.communicate(timeout=60)
            assert worker.returncode == 0
        assert storage.total_episodes == 16
        assert len(list(storage.get_episodes(range(16)))) == 16

    def test_kill_in_an_append_leaves_whole_appends(self, storage: MinariStorage, path) -> None:
        rng = np.random.default_rng(0)
        batch = make(5, 5)
        storage.update_episodes(batch)
        for _ in range(20 if FULL else 4):
            worker = _appender(path, batches=10**6, size=5)
            assert worker.stdout is not None
            worker.stdout.readline()  # the first append of the worker begins
            time.sleep(rng.uniform(0, 0.1))
            worker.kill()
            worker.wait()
            worker.stdout.close()
            again = MinariStorage.read(path)
            assert again.total_episodes % 5 == 0
            assert_stored(again, batch * (again.total_episodes // 5))


def _appender(path: Path, *, batches: int, size: int) -> subprocess.Popen[str]:
    """A process that appends the same episodes again and again."""
    code = f"""
import warnings
from pathlib import Path
from minari_pipe.storage import MinariStorage
from tests.storage_contract import make
warnings.simplefilter("ignore")  # of an append that an earlier one left unfinished
storage, buffers = MinariStorage.read(Path({str(path)!r})), make(5, {size})
print("ready", flush=True)
for _ in range({batches}):
    storage.update_episodes(buffers)
"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
