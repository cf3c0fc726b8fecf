"""The HDF5 storage keeps the contract; real Minari reads, extends and writes the same files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer as TheirBuffer
from minari.dataset.minari_storage import MinariStorage as TheirStorage

from minari_pipe.episode import EpisodeBuffer, reward_statistics
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    UnsupportedSpaceError,
)
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.hdf5 import EpisodeFile, HDF5Storage
from minari_pipe.storage.hdf5_values import _chunk_shape
from minari_pipe.tree import leaves, map_leaves
from tests.conftest import CHECKOUT, SHARED
from tests.generated import ARRAYS, any_space, assert_episode, assert_same, episode, examples
from tests.storage_contract import ACTION, OBSERVATION, StorageContract, assert_stored, files, make

IMAGE = spaces.Box(0, 255, (32, 40, 3), np.uint8)
FINISHED = {"dataset_id": "aa/b-v0", "minari_version": "0.5.4"}


class TestHDF5Storage(StorageContract):
    data_format = "hdf5"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def storage(path: Path) -> MinariStorage:
    storage = MinariStorage.new(path, OBSERVATION, ACTION)
    storage.update_episodes(make())
    storage.update_metadata(FINISHED)
    return storage


def test_the_layout_is_real_minari_s(storage: MinariStorage, path: Path) -> None:
    assert sorted(files(path)) == ["main_data.hdf5", "metadata.json"]
    with h5py.File(path / "main_data.hdf5") as file:
        assert dict(file.attrs) == {}
        assert sorted(file) == ["episode_0", "episode_1", "episode_2"]
        group = file["episode_1"]
        assert set(group) == set(ARRAYS)
        assert set(group["observations"]) == {"a", "t"}
        assert set(group["observations/t"]) == {"_index_0"}
        assert h5py.check_string_dtype(group["observations/t/_index_0"].dtype).encoding == "utf-8"
        for name in ("observations/a", "actions", "rewards", "terminations"):
            assert group[name].chunks == group[name].shape
            assert group[name].maxshape == (None, *group[name].shape[1:])
        assert group.attrs["id"] == 1


@examples(10)
@given(any_space, any_space, st.integers(0, 2**32))
def test_real_minari_reads_and_extends_what_we_write(
    tmp_path_factory, observation_space, action_space, seed
) -> None:
    path = tmp_path_factory.mktemp("peer") / "data"
    rng = np.random.default_rng(seed)
    buffers = [episode(observation_space, action_space, rng) for _ in range(3)]
    buffers = [replace(buffer, infos=_without_slashes(buffer.infos)) for buffer in buffers]
    ours = MinariStorage.new(path, observation_space, action_space)
    ours.update_metadata(FINISHED)
    ours.update_episodes(buffers[:2])

    theirs = minari.MinariDataset(path)
    assert theirs.observation_space == observation_space
    assert (theirs.total_episodes, theirs.total_steps) == (2, len(buffers[0]) + len(buffers[1]))
    for buffer, found in zip(buffers, theirs, strict=False):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert_same(getattr(found, name), getattr(buffer, name), name)
        assert_same(_as_bytes(found.infos), _as_bytes(buffer.infos))
    for buffer, found in zip(buffers, theirs.storage.get_episode_metadata([0, 1]), strict=False):
        assert found.get("seed") == buffer.seed
        for key, value in reward_statistics(buffer.rewards).items():
            assert found[key] == value
        if buffer.options is not None:
            assert_same(found["options"]["state"], buffer.options["state"])
            assert found["options"]["low"] == -0.5

    theirs.update_dataset_from_buffer([_their_buffer(buffers[2])])
    theirs.storage.update_episode_metadata([{"later": 5}], [1])
    again = MinariStorage.read(path)
    found = list(again.get_episodes(range(3)))
    for buffer, fields in zip(buffers, found, strict=True):
        assert_episode(fields, buffer)
    attributes = list(again.get_episode_metadata([1, 2]))
    assert attributes[0]["later"] == 5
    assert attributes[1].get("seed") == buffers[2].seed
    again.update_episodes(buffers[:1])
    assert len(minari.MinariDataset(path)[3]) == len(buffers[0])


def _without_slashes(infos):
    return {key: value for key, value in infos.items() if "/" not in key}


def _as_bytes(tree):
    """Real Minari leaves text of infos in bytes."""

    def encode(leaf):
        if leaf.dtype.kind != "O":
            return leaf
        texts = [text if isinstance(text, bytes) else text.encode() for text in leaf]
        return np.array(texts, dtype=object)

    return map_leaves(encode, tree)


def _their_buffer(buffer: EpisodeBuffer) -> TheirBuffer:
    """The same for real Minari, which takes text and rows of size 0 in lists only."""
    fields = {name: getattr(buffer, name) for name in ARRAYS}
    infos = {key: value for key, value in fields.pop("infos").items() if key != "empty"}
    infos = map_leaves(lambda leaf: leaf.tolist() if leaf.dtype.kind == "O" else leaf, infos)
    buffer.infos.pop("empty", None)
    return TheirBuffer(seed=buffer.seed, infos=infos, **fields)


def test_real_minari_continues_an_episode_of_ours(storage: MinariStorage, path: Path) -> None:
    before = next(iter(storage.get_episodes([1])))
    with h5py.File(path / "main_data.hdf5", "a") as file:
        del file["episode_1/infos"]  # otherwise it must be continued with the same keys
    steps = len(before["rewards"])
    rest = TheirBuffer(
        id=1,
        observations={"a": np.ones((2, 2), np.float32), "t": (["x", "yy"],)},
        actions=np.array([3, 4]),
        rewards=np.array([1.0, 2.0]),
        terminations=np.array([False, True]),
        truncations=np.array([False, False]),
    )
    TheirStorage.read(path).update_episodes([rest])
    after = next(iter(MinariStorage.read(path).get_episodes([1])))
    assert_same(after["observations"]["a"][: steps + 1], before["observations"]["a"])
    assert after["observations"]["t"][0][-2:] == ["x", "yy"]
    assert after["actions"][-2:].tolist() == [3, 4]
    assert len(after["rewards"]) == steps + 2


@examples(10)
@given(any_space, any_space, st.integers(0, 2**32))
def test_we_read_and_extend_what_real_minari_writes(
    tmp_path_factory, observation_space, action_space, seed
) -> None:
    path = tmp_path_factory.mktemp("peer") / "data"
    rng = np.random.default_rng(seed)
    buffers = [episode(observation_space, action_space, rng) for _ in range(3)]
    for buffer in buffers:
        for key in ("empty", "note", "reward/forward"):
            buffer.infos.pop(key, None)
    theirs = TheirStorage.new(path, observation_space, action_space, jpeg_encoding=False)
    theirs.update_episodes([_their_buffer(buffer) for buffer in buffers[:2]])
    ours = MinariStorage.read(path)
    ours.update_episodes(buffers[2:])
    for buffer, found in zip(buffers, ours.get_episodes(range(3)), strict=True):
        assert_episode(found, buffer)
    seeds = [found.get("seed") for found in ours.get_episode_metadata(range(3))]
    assert seeds == [buffer.seed for buffer in buffers]


@pytest.mark.parametrize("version", ["0.5.0", "0.5.3", "0.5.4"])
def test_files_of_minari_releases_are_read(version: str, tmp_path: Path) -> None:
    root = SHARED / "legacy" / version
    if not root.is_dir():
        pytest.skip(f"no files of Minari {version} at {root}")
    truth = json.loads((root / "truth.json").read_text())
    seen = 0
    for dataset_id, episodes in truth.items():
        data = root / dataset_id / "data"
        if not (data / "main_data.hdf5").exists():
            continue
        seen += 1
        storage = MinariStorage.read(data)
        found = list(storage.get_episodes(range(storage.total_episodes)))
        assert len(found) == len(episodes) == storage.total_episodes
        for fields, expected in zip(found, episodes, strict=True):
            assert fields["rewards"].tolist() == expected["rew"]
            assert fields["terminations"].tolist() == expected["term"]
            assert fields["truncations"].tolist() == expected["trunc"]
            assert _rows(fields["observations"]) == _plain(expected["obs"])
            assert _rows(fields["actions"]) == _plain(expected["act"])
        copy = tmp_path / "copy"
        shutil.copytree(data, copy)
        for file in copy.iterdir():
            file.chmod(0o644)
        copy.chmod(0o755)
        extended = MinariStorage.read(copy)
        extended.update_from_storage(storage, [0])
        last = list(extended.get_episodes([0, len(found)]))
        for name in ARRAYS:
            assert_same(last[0][name], last[1][name])
        shutil.rmtree(copy)
    assert seen >= 1


def _rows(tree):
    count = len(next(iter(leaves(tree)))[1])
    return [_plain(map_leaves(lambda leaf, i=i: leaf[i], tree)) for i in range(count)]


def _plain(tree):
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray | np.generic):
        return tree.tolist()
    return [_plain(part) for part in tree] if isinstance(tree, list | tuple) else tree


# --- files that came from strangers


def plant(path: Path, change) -> MinariStorage:
    with h5py.File(path / "main_data.hdf5", "a") as file:
        change(file)
    return MinariStorage.read(path)


def _replace(file: h5py.File, name: str, value) -> None:
    del file[name]
    file[name] = value


def _external_storage(file: h5py.File) -> None:
    shape = file["episode_1/rewards"].shape
    del file["episode_1/rewards"]
    outside = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    file["episode_1"].create_dataset("rewards", shape, "f8", external=outside)


def _virtual(file: h5py.File) -> None:
    shape = file["episode_1/rewards"].shape
    del file["episode_1/rewards"]
    layout = h5py.VirtualLayout(shape, "f8")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", shape)
    file["episode_1"].create_virtual_dataset("rewards", layout)


def _circle(file: h5py.File) -> None:
    file["episode_1/infos/circle"] = file["episode_1"]


def _bush(file: h5py.File) -> None:
    below = file["episode_1/infos"]
    for depth in range(40):
        group = file.create_group(f"x{depth}")
        below["a"] = below["b"] = group
        below = group


def _bomb(file: h5py.File, size: int) -> None:
    del file["episode_1/rewards"]
    file["episode_1"].create_dataset("rewards", (size,), "f8", chunks=(2**20,))


STRANGE = {
    "external link": lambda f: _replace(f, "episode_1", h5py.ExternalLink("x.hdf5", "/e")),
    "soft link": lambda f: _replace(f, "episode_1/rewards", h5py.SoftLink("/episode_0/rewards")),
    "link in a space": lambda f: _replace(f, "episode_1/observations/a", h5py.SoftLink("/x")),
    "link in infos": lambda f: f["episode_1/infos"].__setitem__("x", h5py.SoftLink("/episode_0")),
    "external storage": _external_storage,
    "virtual dataset": _virtual,
    "circle": _circle,
    "bush": _bush,
    "references": lambda f: _replace(
        f, "episode_1/actions", np.array([f["episode_0"].ref], h5py.ref_dtype)
    ),
    "missing array": lambda f: f.__delitem__("episode_1/truncations"),
    "missing episode": lambda f: f.__delitem__("episode_1"),
    "missing key": lambda f: f.__delitem__("episode_1/observations/a"),
    "array for a group": lambda f: _replace(f, "episode_1/observations", [1, 2]),
    "group for an array": lambda f: (
        f.__delitem__("episode_1/rewards"),
        f.create_group("episode_1/rewards"),
    ),
    "array for an episode": lambda f: _replace(f, "episode_1", [1]),
    "not utf-8": lambda f: f["episode_1/observations/t/_index_0"].__setitem__(0, b"\xff\xfe"),
    "a huge array": lambda f: _bomb(f, 2**60),
    "an array of 4 GiB": lambda f: _bomb(f, 2**29),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_are_refused_and_named(storage, path: Path, name: str) -> None:
    (path / "other.hdf5").touch()
    changed = plant(path, STRANGE[name])
    with pytest.raises(CorruptDatasetError, match=r"main_data\.hdf5.*episode"):
        list(changed.get_episodes([1]))
    if not name.startswith(("missing episode", "array for an episode", "external link")):
        assert_episode(next(iter(changed.get_episodes([0]))), make()[0])


@pytest.mark.parametrize("content", [b"not an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_other_files_are_named(storage, path: Path, content: bytes) -> None:
    (path / "main_data.hdf5").write_bytes(content)
    with pytest.raises(CorruptDatasetError, match=r"main_data\.hdf5: file cannot be read: OSError"):
        list(storage.get_episodes([0]))
    with pytest.raises(CorruptDatasetError):
        storage.update_episodes(make())
    assert (path / "main_data.hdf5").read_bytes() == content


def test_a_truncated_file_is_named(storage, path: Path) -> None:
    content = (path / "main_data.hdf5").read_bytes()
    (path / "main_data.hdf5").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptDatasetError):
        list(storage.get_episodes([0]))


def test_damaged_bytes_give_values_or_our_errors(storage, path: Path) -> None:
    """Always the same 100 mutants, in a process of their own with little memory.

    Not more of them on purpose: of 2000, one made libhdf5 itself crash and two made it allocate
    gigabytes for a damaged heap, which no check on this side of its API can see coming.
    """
    code = f"""
import resource
from pathlib import Path
import numpy as np
from minari_pipe.errors import MinariPipeError
from minari_pipe.storage import MinariStorage
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
path = Path({str(path)!r}) / "main_data.hdf5"
storage, content = MinariStorage.read(path.parent), path.read_bytes()
rng = np.random.default_rng(0)
for _ in range(100):
    damaged = bytearray(content)
    for place in rng.integers(len(content), size=3):
        damaged[place] = rng.integers(256)
    path.write_bytes(damaged)
    try:
        list(storage.get_episodes(range(3)))
        list(storage.get_episode_metadata(range(3)))
    except (MinariPipeError, IndexError):
        pass
"""
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


def test_attributes_of_others_are_read(storage, path: Path) -> None:
    def change(file):
        attributes = file["episode_0"].attrs
        attributes["bytes"] = np.bytes_(b"abc")
        attributes["nothing"] = h5py.Empty("f8")
        attributes["texts"] = ["a", "b"]
        attributes["deep/er/x"] = np.float32(1.5)

    found = next(iter(plant(path, change).get_episode_metadata([0])))
    assert_same(found["bytes"], "abc")
    assert found["nothing"] is None
    assert found["texts"].tolist() == ["a", "b"]
    assert_same(found["deep"], {"er": {"x": np.float32(1.5)}})


def test_jpeg_is_refused_and_not_mistaken_for_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffer = TheirBuffer(
        observations=list(rng.integers(256, size=(3, *IMAGE.shape), dtype=np.uint8)),
        actions=np.zeros(2, int),
        rewards=[0.0, 0.0],
        terminations=[False, False],
        truncations=[False, True],
    )
    theirs = TheirStorage.new(tmp_path / "theirs", IMAGE, ACTION)
    theirs.update_episodes([buffer])
    still = replace_observations(buffer, [np.zeros(IMAGE.shape, np.uint8)] * 3)
    theirs.update_episodes([still])  # pictures of one size are not variable-length
    ours = MinariStorage.read(tmp_path / "theirs")
    assert ours.jpeg_encoding
    for index in (0, 1):
        with pytest.raises(UnsupportedSpaceError, match="observations holds JPEG images"):
            list(ours.get_episodes([index]))
    with pytest.raises(UnsupportedSpaceError, match="JPEG encoding of observations is not"):
        ours.update_episodes([])
    with pytest.raises(UnsupportedSpaceError, match="JPEG encoding of observations is not"):
        MinariStorage.new(tmp_path / "ours", IMAGE, ACTION, jpeg_encoding=True)
    assert not (tmp_path / "ours").exists()


def replace_observations(buffer: TheirBuffer, observations) -> TheirBuffer:
    return TheirBuffer(**{**vars(buffer), "observations": observations})


@pytest.mark.parametrize("key", ["./a", "/a", "a//b", ".", "", "a/", "\ud800", "a\0b"], ids=ascii)
def test_keys_of_spaces_that_are_no_names_in_hdf5_are_refused(tmp_path: Path, key: str) -> None:
    nested = spaces.Tuple([spaces.Dict({key: spaces.Dict({})})])
    message = re.escape(f"actions[0] has the key {key!r}")
    with pytest.raises(UnsupportedSpaceError, match=message):
        MinariStorage.new(tmp_path / "data", OBSERVATION, nested)
    assert list(tmp_path.iterdir()) == []
    rows = ({key: [1, 2]},)
    buffer = replace(make(count=1)[0], observations=rows)
    with (
        EpisodeFile.create(tmp_path / "episodes.hdf5") as file,
        pytest.raises(InvalidEpisodeError, match=re.escape(f"the key {key!r}")),
    ):
        file.append(buffer)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a/b": ACTION, "a": spaces.Dict({"b": ACTION})}),
        spaces.Dict({"a/b": ACTION, "a": ACTION}),
        spaces.Dict({"a/_index_0": ACTION, "a": spaces.Tuple([ACTION])}),
    ],
)
def test_spaces_with_two_values_in_one_place_are_refused(tmp_path: Path, space) -> None:
    with pytest.raises(UnsupportedSpaceError, match="two values have the name 'observations/a"):
        MinariStorage.new(tmp_path / "data", space, ACTION)


def test_a_slash_between_two_parts_of_a_key_is_kept(path: Path) -> None:
    space = spaces.Dict({"a/b": ACTION, "a": spaces.Dict({"c": ACTION}), "..": ACTION})
    storage = MinariStorage.new(path, space, space)
    buffers = [episode(space, space, np.random.default_rng(0))]
    storage.update_episodes(buffers)
    assert_stored(MinariStorage.read(path), buffers)


def test_images_are_lossless_by_default_also_for_real_minari(path: Path) -> None:
    rng = np.random.default_rng(0)
    buffers = [episode(IMAGE, ACTION, rng, 3)]
    storage = MinariStorage.new(path, IMAGE, ACTION)
    storage.update_metadata(FINISHED)
    storage.update_episodes(buffers)
    assert_stored(storage, buffers)
    assert_same(minari.MinariDataset(path)[0].observations, buffers[0].observations)


def test_minari_s_empty_file_has_no_episodes(path: Path) -> None:
    TheirStorage.new(path, OBSERVATION, ACTION)
    assert (path / "main_data.hdf5").stat().st_size == 0
    storage = MinariStorage.read(path)
    assert list(storage.get_episodes([])) == []
    storage.update_episodes(make())
    assert_stored(storage, make())


def test_what_a_kill_between_the_two_renames_left_is_dropped(storage, path: Path) -> None:
    metadata = (path / "metadata.json").read_bytes()
    storage.update_episodes(make(1))
    (path / "metadata.json").write_bytes(metadata)
    assert_stored(storage, make())
    with pytest.warns(UserWarning, match="has 6 episodes, metadata.json says 3"):
        storage.update_episodes(make(2))
    assert_stored(storage, [*make(), *make(2)])


def test_fewer_episodes_than_the_metadata_says_are_an_error(storage, path: Path) -> None:
    with h5py.File(path / "main_data.hdf5", "a") as file:
        del file["episode_2"]
    with pytest.raises(CorruptDatasetError, match=r"has 2 episodes, metadata\.json says 3"):
        storage.update_episodes(make())


def test_adopt_takes_a_file_once(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        for buffer in make():
            file.append(buffer)
    storage = HDF5Storage.new(tmp_path / "data", OBSERVATION, ACTION)
    storage.adopt(tmp_path / "episodes.hdf5")
    assert_stored(storage, make())
    with pytest.raises(DatasetExistsError, match="has 3 episodes already"):
        storage.adopt(tmp_path / "episodes.hdf5")


# --- EpisodeFile alone


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "episodes.hdf5"
    with EpisodeFile.create(path) as file:
        assert [file.append(buffer) for buffer in make()] == [len(buffer) for buffer in make()]
        assert not path.exists()
        assert (len(file), file.total_steps) == (3, sum(map(len, make())))
        assert_episode(file.read(1, OBSERVATION, ACTION), make()[1])
    with EpisodeFile.open(path) as file:
        assert (len(file), file.total_steps) == (3, sum(map(len, make())))
        again = file.read_buffer(2, OBSERVATION, ACTION)
        expected = replace(make()[2], id=None)
        assert_same(
            vars(again),
            {
                **vars(expected),
                "metadata": {**reward_statistics(expected.rewards), **expected.metadata},
            },
        )
    before = path.read_bytes()
    for writer in (EpisodeFile.create, EpisodeFile.extend):
        with pytest.raises(ZeroDivisionError), writer(path) as file:
            file.append(make()[file.append(make()[0]) // 0])
    assert files(tmp_path) == {"episodes.hdf5": before}


def test_a_refused_episode_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(make()[0])
        for bad in (
            replace(make()[0], rewards=[]),
            replace(make()[0], metadata={"x": object()}),
            replace(make()[0], infos={"a/b": [*make()[0].rewards, 0], "a": {"b": [0]}}),
            replace(
                make(3)[0],
                infos={"a/b": [0] * (len(make(3)[0]) + 1), "a": [0] * (len(make(3)[0]) + 1)},
            ),
        ):
            with pytest.raises(InvalidEpisodeError, match=r"^episode 1: "):
                file.append(bad)
        file.append(make()[1])
    with EpisodeFile.open(tmp_path / "episodes.hdf5") as file:
        assert len(file) == 2
        assert_episode(file.read(1, OBSERVATION, ACTION), make()[1])


def test_filled_infos_are_told(tmp_path: Path) -> None:
    filled = {"success": [[0, 1]], "nest.y": [[0, 5]]}
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(replace(make()[0], metadata={"infos_filled": filled}))
    with EpisodeFile.open(tmp_path / "episodes.hdf5") as file:
        assert file.episode_metadata(0)["infos_filled"] == filled


def test_stored_statistics_are_not_overwritten(tmp_path: Path) -> None:
    with EpisodeFile.create(tmp_path / "episodes.hdf5") as file:
        file.append(replace(make()[0], metadata={"rewards_sum": -1.0}))
        assert file.episode_metadata(0)["rewards_sum"] == -1.0


def test_opening_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError), EpisodeFile.open(tmp_path / "x.hdf5"):
        pass


@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [((5, 3), 4), ((10**6, 10**6), 8), ((2, 2**31), 8), ((3, 0), 8), ((1, 2**33), 1)],
)
def test_chunks_are_whole_datasets_below_the_limit_of_hdf5(shape, itemsize) -> None:
    chunk = _chunk_shape(shape, itemsize)
    size = int(np.prod(chunk, dtype=object)) * itemsize
    assert 0 < size <= 2**30
    if np.prod(shape, dtype=object) * itemsize <= 2**30:
        assert chunk == tuple(max(1, length) for length in shape)
