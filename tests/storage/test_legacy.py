"""Data of every older generation is read in place: equal to its truth, and safely."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import describe
from minari_pipe.core.metadata import is_supported_version
from minari_pipe.core.tree import leaves, map_leaves, stack
from minari_pipe.datasets.combine import combine_datasets, split_dataset
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import list_local_datasets
from minari_pipe.datasets.migrate import migrate_dataset
from minari_pipe.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    LinkError,
    MinariPipeError,
    UnsupportedVersionError,
)
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage.base import MinariStorage
from minari_pipe.storage.legacy import base as legacy_base
from minari_pipe.storage.legacy.inference import infer_space
from minari_pipe.storage.legacy.rows import episode_bounds
from minari_pipe.storage.legacy.unflatten import unflatten_rows
from minari_pipe.testing import examples
from tests.conftest import CHECKOUT, FULL
from tests.support.legacy_files import (
    DATASETS,
    GOLDEN,
    IDS,
    as_truth,
    d4rl_columns,
    rows,
    seeds,
    truth,
    write_attributes,
    write_d4rl,
    write_episode,
    write_flat,
    write_links,
)

TRUSTED = ("nest_env",)
OLD = [entry for entry in DATASETS if entry[0] < "0.5"]
OLD_IDS = [f"{release}-{dataset_id}" for release, dataset_id in OLD]


@pytest.fixture(autouse=True)
def nest_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GOLDEN))


@pytest.fixture
def root() -> Path:
    return get_dataset_path()


def golden(release: str, dataset_id: str) -> MinariDataset:
    return MinariDataset(GOLDEN / release / dataset_id / "data", trusted_modules=TRUSTED)


# --- the golden files ---


@pytest.mark.parametrize(("release", "dataset_id"), DATASETS, ids=IDS)
def test_a_file_of_an_old_release_is_equal_to_its_truth(release, dataset_id):
    dataset = golden(release, dataset_id)
    expected = truth(release, dataset_id)
    assert [as_truth(episode) for episode in dataset] == expected
    assert dataset.total_steps == sum(len(episode["rew"]) for episode in expected)
    for episode in dataset:
        for name, space in (
            ("observations", dataset.observation_space),
            ("actions", dataset.action_space),
        ):
            column = getattr(episode, name)
            assert all(row in space for row in _values(space, column))
    attributes = list(dataset.storage.get_episode_metadata(range(len(dataset))))
    assert [episode.get("seed") for episode in attributes] == seeds(release, dataset_id)
    assert [episode.seed for episode in dataset] == seeds(release, dataset_id)
    assert attributes[0]["rewards_sum"] == sum(expected[0]["rew"])
    assert dataset.storage.metadata["author"] == {"A. Uthor"}
    assert dataset.env_spec.max_episode_steps == 6
    if dataset_id.startswith("nest"):
        infos = dataset[0].infos
        assert infos["x"].shape == (5,)
        assert infos["nest"]["y"].shape == (5, 2, 2)
        assert infos["nest"]["z"].shape == (5,)


def _values(space, column):
    for row in range(len(next(iter(leaves(column)))[1])):
        value = map_leaves(lambda leaf, row=row: leaf[row], column)
        yield map_leaves(lambda leaf: np.int64(leaf) if np.ndim(leaf) == 0 else leaf, value)


def test_minari_cannot_read_these_files():
    minari = pytest.importorskip("minari")
    for release, dataset_id in OLD:  # defect P3
        with pytest.raises(ValueError, match="No data found in data path"):
            minari.MinariDataset(GOLDEN / release / dataset_id / "data")


@pytest.mark.parametrize("release", ["0.3.1", "0.4.0", "0.4.2", "0.4.3"])
def test_an_old_dataset_is_one_like_any_other(release, root):
    shutil.copytree(GOLDEN / release / "cartpole-random-v0", root / "cartpole-random-v0")
    assert list(list_local_datasets()) == ["cartpole-random-v0"]
    dataset = load_dataset("cartpole-random-v0")
    assert dataset.id == "cartpole-random-v0"
    assert dataset.spec.total_episodes == len(dataset) == 5
    assert [episode.id for episode in dataset.sample_episodes(5)] != []
    assert dataset.filter_episodes(lambda episode: episode.id > 2).total_steps == 12
    first, second = split_dataset(dataset, [2, 3], seed=0)
    assert len(first) + len(second) == 5
    env = dataset.recover_environment()
    assert isinstance(env.unwrapped, gym.envs.classic_control.CartPoleEnv)
    env.close()
    assert dataset.storage.get_size() > 0
    again = pickle.loads(pickle.dumps(dataset))
    assert as_truth(again[4]) == as_truth(dataset[4])
    with pytest.raises(IndexError, match="there are 5 episodes"):
        list(dataset.iterate_episodes([5]))


def test_views_of_old_datasets_can_be_combined(root):
    for release in ("0.4.2", "0.4.3"):
        shutil.copytree(GOLDEN / release / "cartpole-random-v0", root / f"p{release[2::2]}-v0")
    with pytest.warns(UserWarning, match="Misconfigured"):  # each still has its old id
        list_local_datasets()
    parts = [MinariDataset(root / name / "data") for name in ("p42-v0", "p43-v0")]
    parts[0] = MinariDataset(parts[0].storage, np.array([4, 0]))
    combined = combine_datasets(parts, "combined/cartpole-v0")
    expected = truth("0.4.2", "cartpole-random-v0")
    assert as_truth(combined[0]) == expected[4]
    assert len(combined) == 7
    attributes = list(combined.storage.get_episode_metadata([0, 1]))
    assert [episode["seed"] for episode in attributes] == [21, 10]


def test_an_older_layout_is_not_written(root):
    data = write_attributes(root, "old-v0", [0])
    dataset = load_dataset("old-v0")
    before = (data / "main_data.hdf5").read_bytes()
    for write in (
        lambda: dataset.update_dataset_from_buffer(list(dataset.storage.get_buffers())),
        lambda: dataset.storage.update_metadata({"description": "new"}),
        lambda: dataset.storage.update_episode_metadata([{"a": 1}]),
    ):
        with pytest.raises(UnsupportedVersionError, match="minari-pipe migrate .*old-v0"):
            write()
    assert (data / "main_data.hdf5").read_bytes() == before


# --- spaces that are not in the file ---


def test_without_trust_flattened_data_is_read_as_it_is():
    with pytest.warns(UserWarning, match=r"no spaces.*'Nest-v0'.*trusted_modules"):
        dataset = MinariDataset(GOLDEN / "0.3.1" / "nest-random-v0" / "data")
    assert dataset.observation_space == spaces.Box(-np.inf, np.inf, (9,), np.float64)
    assert dataset[0].actions.shape == (4, 5)
    assert dataset[0].rewards.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_a_registered_environment_is_trusted_with_its_spaces():
    import nest_env

    gym.register("Nest-v0", entry_point="nest_env:Nest")
    try:
        dataset = MinariDataset(GOLDEN / "0.3.1" / "nest-random-v0" / "data")
    finally:
        del gym.registry["Nest-v0"]
    assert dataset.observation_space == nest_env.Nest.observation_space


def test_a_spec_from_a_stranger_runs_nothing(root, tmp_path):
    spec = json.dumps(
        {
            "id": "Evil-v0",
            "entry_point": "subprocess:check_output",
            "reward_threshold": None,
            "nondeterministic": False,
            "max_episode_steps": None,
            "order_enforce": True,
            "autoreset": False,
            "disable_env_checker": True,
            "apply_api_compatibility": False,
            "kwargs": {"args": ["touch", str(tmp_path / "ran")]},
            "additional_wrappers": [],
            "vector_entry_point": None,
        }
    )
    data = write_attributes(root, "evil-v0", [0], env_spec=spec)
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file.attrs["observation_space"]
    with pytest.warns(UserWarning, match="TrustError"):
        dataset = load_dataset("evil-v0")
    assert dataset.observation_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert dataset.action_space == spaces.Discrete(9)
    assert not (tmp_path / "ran").exists()


def test_an_environment_with_other_spaces_than_the_data_is_not_believed(root, step_index):
    spec = gym.spec("CartPole-v1").to_json()
    data = write_attributes(root, "other-v0", [0], env_spec=spec)
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file.attrs["observation_space"], file.attrs["action_space"]
    with pytest.warns(UserWarning, match="now has other spaces"):
        dataset = load_dataset("other-v0")
    assert dataset.observation_space.shape == (1,)


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_unflattening_columns_is_gymnasiums_unflatten_of_each_row(space_seed):
    rng = np.random.default_rng(space_seed)
    space = _random_space(rng, depth=2)
    space.seed(space_seed)
    values = [space.sample() for _ in range(4)]
    flat = np.stack([spaces.flatten(space, value) for value in values]).astype(np.float64)
    if flat.shape[1] == 0:
        return
    found = unflatten_rows(space, flat)
    assert rows(found) == rows(stack(values))
    for (_, leaf), (_, expected) in zip(leaves(found), leaves(stack(values)), strict=True):
        assert isinstance(leaf, list) or leaf.dtype == np.asarray(expected).dtype


def _random_space(rng: np.random.Generator, depth: int) -> gym.Space:
    kinds = ["box", "discrete", "multi", "binary", "text", "image", "dict", "tuple"]
    kind = rng.choice(kinds if depth else kinds[:6])
    if kind == "box":
        return spaces.Box(-1, 1, (2, 3), np.float32)
    if kind == "image":
        return spaces.Box(0, 255, (2, 2), np.uint8)
    if kind == "discrete":
        return spaces.Discrete(5, start=-2)
    if kind == "multi":
        return spaces.MultiDiscrete([3, 1, 4])
    if kind == "binary":
        return spaces.MultiBinary((2, 2))
    if kind == "text":
        return spaces.Text(6, min_length=0, charset="xyzé")
    parts = [_random_space(rng, depth - 1) for _ in range(3)]
    return spaces.Tuple(parts) if kind == "tuple" else spaces.Dict(dict(zip("cab", parts)))


def test_flattened_values_that_cannot_be_are_refused():
    with pytest.raises(CorruptDatasetError, match="one-hot"):
        unflatten_rows(spaces.Discrete(2), np.array([[1.0, 1.0]]))
    with pytest.raises(CorruptDatasetError, match=r"expects \(N, 2\)"):
        unflatten_rows(spaces.Discrete(2), np.ones((1, 3)))


def test_inferred_spaces_contain_the_rows(tmp_path):
    with h5py.File(tmp_path / "columns.hdf5", "w") as file:
        file["both/_index_0"] = np.arange(3)
        file["both/_index_1"] = np.zeros((3, 2), bool)
        file["both/_index_2/text"] = ["ab", "", "ü"]
        space = infer_space(file["both"])
    assert (np.array(2), np.ones(2, np.int8), {"text": "bü"}) in space


def test_an_empty_group_is_no_space(tmp_path):
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        file.create_group("episode/actions")
        with pytest.raises(CorruptDatasetError, match="is an empty group, expected one row"):
            infer_space(file["episode"])


# --- 0.3 to 0.4.3: attributes ---


def test_strings_that_say_none_are_absent_and_authors_are_a_list(root):
    write_attributes(
        root,
        "old-v0",
        [5],
        author="A. Uthor; B. Uthor",
        author_email="None",
        algorithm_name="None",
        ref_min_score=np.float64(1.5),
        num_episodes_average_score=np.int64(100),
        dataset_size=0.1,
    )
    dataset = load_dataset("old-v0")
    metadata = dataset.storage.read_raw_metadata(dataset.storage.data_path)
    assert metadata["author"] == ["A. Uthor", "B. Uthor"]
    assert metadata["ref_min_score"] == 1.5
    assert metadata["num_episodes_average_score"] == 100
    assert metadata["data_format"] == "hdf5-0.4.3"
    assert not {"author_email", "algorithm_name"} & metadata.keys()
    assert json.loads(json.dumps(metadata)) == metadata
    assert dataset.storage.metadata["author"] == {"A. Uthor", "B. Uthor"}


def test_totals_are_counted(root):
    write_attributes(root, "old-v0", [0, 7], total_steps=99)
    assert load_dataset("old-v0").total_steps == 6


def test_everything_in_an_episode_is_read(root):
    data = write_attributes(root, "old-v0", [0, 7], minari_version=">=0.4.1,<0.5")
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        group = file["episode_1"]
        group.attrs["seed"] = "None"
        group.attrs["note"] = "hello"
        group["rewards"].attrs["sum"] = 1.5
        group["observations"].attrs["mine"] = 3
        for name, dtype in (("rewards", "f4"), ("terminations", "u1"), ("truncations", "f8")):
            values = group[name][()].astype(dtype)[:, None]
            attributes = dict(group[name].attrs)
            del group[name]
            group[name] = values
            group[name].attrs.update(attributes)
        group["state/qpos"] = np.arange(4.0)
        group["infos/late"] = np.arange(1, 4)
        group["infos/nest/full"] = np.arange(4)
    dataset = load_dataset("old-v0")
    episode = dataset[1]
    assert episode.seed is None
    assert (episode.rewards.shape, episode.rewards.dtype) == ((3,), np.float64)
    assert rows(episode.truncations) == [False, False, True]
    assert episode.terminations.dtype == bool
    assert rows(episode.extras["state"]["qpos"]) == [0.0, 1.0, 2.0, 3.0]
    assert rows(episode.infos["late"]) == [0, 1, 2, 3]
    assert rows(episode.infos["nest"]["full"]) == [0, 1, 2, 3]
    [attributes] = dataset.storage.get_episode_metadata([1])
    assert attributes == {
        "id": 1,
        "total_steps": 3,
        "note": "hello",
        "rewards_sum": 1.5,
        "observations_mine": 3,
        "infos_filled": {"late": [[0, 1]]},
    }


def test_an_episode_without_the_last_observation_is_marked(root):
    data = write_attributes(root, "antmaze-v0", [0])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        values = file["episode_0/observations"][:-1]
        del file["episode_0/observations"]
        file["episode_0/observations"] = values
    dataset = load_dataset("antmaze-v0")
    assert rows(dataset[0].observations) == [[0.0], [1.0], [2.0], [2.0]]
    [attributes] = dataset.storage.get_episode_metadata([0])
    assert attributes["final_observation_missing"] is True


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.4.3", True),
        ("~=0.4", True),
        (">=0.4.0, <0.4.2", True),
        (None, True),
        (">=0.9", False),
        ("0.9.9", False),
        ("not a version", False),
        (4, False),
    ],
)
def test_versions_are_releases_specifiers_or_absent(version, supported):
    assert is_supported_version(version) is supported


def test_an_unknown_version_is_refused(root):
    write_attributes(root, "new-v0", [0], minari_version=">=7")
    with pytest.raises(UnsupportedVersionError, match=">=7"):
        load_dataset("new-v0")


# --- links ---


def test_a_combination_links_to_its_parents(root):
    a = write_attributes(root, "a-v0", [10, 20])
    with h5py.File(a / "additional_data_0.hdf5", "w") as file:
        write_episode(file.create_group("episode_0"), 30, 2)
    with h5py.File(a / "main_data.hdf5", "r+") as file:
        file["episode_2"] = h5py.ExternalLink("additional_data_0.hdf5", "/episode_0")
        file.attrs["total_episodes"] = 3
    main = str(a / "main_data.hdf5")
    write_links(root, "ab-v0", [(main, f"/episode_{i}") for i in (2, 0)])
    write_links(root, "abc-v0", [(str(root / "ab-v0" / "data" / "main_data.hdf5"), "/episode_0")])
    dataset = load_dataset("ab-v0")
    assert dataset.combined_datasets == ["a-v0", "b-v0"]
    assert [rows(episode.observations)[0] for episode in dataset] == [[30.0], [10.0]]
    assert dataset.total_steps == 5
    assert [episode.id for episode in dataset] == [0, 1]
    assert len(load_dataset("abc-v0")[0]) == 2


@pytest.mark.parametrize("copy", ["split", "combine", "delete", "append"])
def test_a_copy_of_links_names_the_files_whose_episodes_it_holds(copy, root):
    a = write_attributes(root, "a-v0", [10, 20])
    write_links(root, "ab-v0", [(str(a / "main_data.hdf5"), "/episode_0")] * 2)
    dataset = load_dataset("ab-v0")
    storage = dataset.storage
    new = MinariStorage.new(root.parent / "new", storage.observation_space, storage.action_space)
    copies = {
        "split": lambda: combine_datasets(split_dataset(dataset, [1, 1])[:1], "c-v0"),
        "combine": lambda: combine_datasets([dataset, dataset], "c-v0"),
        "delete": lambda: dataset.delete_episodes([0], "d-v0"),
        "append": lambda: new.update_from_storage(storage),
    }
    text = f"{root}/ab-v0/data links to episodes in {a}/main_data.hdf5; a copy of it holds them"
    with pytest.warns(UserWarning, match=re.escape(text)):
        copies[copy]()


def test_many_parents_and_long_chains_are_bounded(root):
    mains = [
        str(write_attributes(root, f"parent{i}-v0", [i]) / "main_data.hdf5") for i in range(40)
    ]
    write_links(root, "all-v0", [(main, "/episode_0") for main in mains * 2])
    dataset = load_dataset("all-v0")
    assert [rows(episode.observations)[0][0] for episode in dataset] == [*range(40)] * 2
    last = mains[0]
    for length in range(20):
        data = write_links(root, f"chain{length}-v0", [(last, "/episode_0")])
        last = str(data / "main_data.hdf5")
    assert len(load_dataset("chain10-v0")) == 1
    with pytest.raises(CorruptDatasetError, match="through more than 16 files"):
        load_dataset("chain19-v0")


def test_a_root_that_has_moved_is_looked_through(root, tmp_path, monkeypatch):
    a = write_attributes(root, "a-v0", [10])
    write_links(root, "ab-v0", [(str(a / "main_data.hdf5"), "/episode_0")])
    windows = r"C:\Users\me\.minari\datasets\a-v0\data\main_data.hdf5"
    write_links(root, "win-v0", [(windows, "/episode_0")])
    moved = tmp_path / "elsewhere"
    shutil.move(root, moved)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(moved))
    for name in ("ab-v0", "win-v0"):
        assert rows(load_dataset(name)[0].observations)[0] == [10.0]


@pytest.mark.parametrize("kind", ["absolute", "relative", "symlink"])
def test_a_link_that_leaves_the_root_is_refused(kind, root, tmp_path):
    secret = write_attributes(tmp_path / "outside", "secret-v0", [1]) / "main_data.hdf5"
    name = str(secret)
    data = write_links(root, "leak-v0", [("x", "/episode_0")])
    if kind == "relative":
        name = "../" * 12 + str(secret).lstrip("/")
    elif kind == "symlink":
        (data / "here.hdf5").symlink_to(secret)
        name = "here.hdf5"
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_0"]
        file["episode_0"] = h5py.ExternalLink(name, "/episode_0")
    said = "here.hdf5 is a symlink to" if kind == "symlink" else "outside the datasets root"
    with pytest.raises(CorruptDatasetError, match=said):
        load_dataset("leak-v0")


def test_a_source_outside_of_the_root_has_no_link_into_it(root, tmp_path):
    mine = write_attributes(root, "mine-v0", [10]) / "main_data.hdf5"
    for name in ("/gone/root/mine-v0/data/main_data.hdf5", str(mine)):
        source = write_links(tmp_path / "downloads", "a-v0", [(name, "/episode_0")])
        with pytest.raises(CorruptDatasetError, match="is outside the dataset, and"):
            migrate_dataset(source, "copy-v0")
        shutil.rmtree(source)


@pytest.mark.parametrize(
    "place",
    [
        "sibling.hdf5",
        "main_data.hdf5",
        "additional_data_0.hdf5",
        "thesis/private.hdf5",
        "root/mine-v0/x.hdf5",
    ],
)
def test_a_file_that_is_migrated_links_to_no_other_file_of_the_user_s(place, root, tmp_path):
    """The default root lies in the home, where a file may have been downloaded to."""
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    mine = write_attributes(tmp_path / "made", "mine-v0", [10]) / "main_data.hdf5"
    shutil.move(mine, tmp_path / place)
    source = write_links(tmp_path / "made", "a-v0", [(place, "/episode_0")]) / "main_data.hdf5"
    shutil.move(source, tmp_path / "a.hdf5")
    with pytest.raises(CorruptDatasetError, match="outside the dataset"):
        migrate_dataset(tmp_path / "a.hdf5", "copy-v0")


def test_a_dangling_link_names_the_missing_file(root):
    write_links(root, "ab-v0", [("/gone/root/a-v0/data/main_data.hdf5", "/episode_0")])
    with pytest.raises(CorruptDatasetError, match="/gone/root/a-v0/data/main_data.hdf5"):
        load_dataset("ab-v0")
    with pytest.warns(UserWarning, match="Misconfigured dataset named ab-v0.*a-v0/data"):
        assert list_local_datasets() == {}


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(h5py.ExternalLink("main_data.hdf5", "/episode_0"), id="to-itself"),
        pytest.param(h5py.ExternalLink("other.hdf5", "/episode_0"), id="in-a-circle"),
        pytest.param(h5py.ExternalLink("other.hdf5", "/nothing"), id="to-nothing"),
        pytest.param(h5py.ExternalLink("other.hdf5", "/number"), id="to-a-dataset"),
        pytest.param(h5py.ExternalLink("other.hdf5", "/"), id="to-the-root"),
        pytest.param(h5py.ExternalLink("fifo", "/episode_0"), id="to-a-pipe"),
        pytest.param(h5py.ExternalLink("text", "/episode_0"), id="to-a-text-file"),
        pytest.param(h5py.SoftLink("/elsewhere"), id="soft"),
    ],
)
def test_other_links_are_refused(link, root):
    data = write_links(root, "bad-v0", [("x", "/x")])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_0"]
        file["episode_0"] = link
    with h5py.File(data / "other.hdf5", "w") as file:
        file["episode_0"] = h5py.ExternalLink("main_data.hdf5", "/episode_0")
        file["number"] = 1
    os.mkfifo(data / "fifo")
    (data / "text").write_text("no HDF5")
    with pytest.raises(CorruptDatasetError, match="bad-v0"):
        load_dataset("bad-v0")


def test_data_from_other_files_is_refused(root, tmp_path):
    data = write_attributes(root, "bad-v0", [0, 1, 2])
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        for index, name in enumerate(("observations", "infos/x", "actions")):
            group = file[f"episode_{index}"]
            if name in group:
                del group[name]
            if index < 2:
                place = [(str(tmp_path / "secret"), 0, 32)]
                group.create_dataset(name, (4, 1), "f8", external=place)
            else:
                layout = h5py.VirtualLayout((3,), "i8")
                layout[:] = h5py.VirtualSource(str(tmp_path / "secret"), "x", (3,))
                group.create_virtual_dataset(name, layout)
    with pytest.raises(CorruptDatasetError, match="another file"):
        load_dataset("bad-v0")


# --- damage ---


def _damages():
    def remove(name):
        def damage(file):
            del file[name]

        return damage

    def replace(name, value):
        def damage(file):
            del file[name]
            file[name] = value

        return damage

    def attribute(name, value):
        return lambda file: file.attrs.update({name: value})

    yield "an-episode-in-between-is-missing", remove("episode_1")
    yield "the-last-episode-is-missing", remove("episode_2")
    yield "rewards-are-missing", remove("episode_1/rewards")
    yield "observations-are-missing", remove("episode_1/observations")
    yield "an-episode-is-a-dataset", replace("episode_1", 3)
    yield "rewards-are-one-number", replace("episode_1/rewards", 3.0)
    yield "rewards-are-text", replace("episode_1/rewards", ["a", "b", "c"])
    yield "too-few-actions", replace("episode_1/actions", [1])
    yield "too-few-observations", replace("episode_1/observations", np.zeros((2, 1)))
    yield "flags-of-two", replace("episode_1/terminations", [0, 2, 0])
    yield "a-space-is-no-json", attribute("observation_space", "{")
    yield "a-space-is-a-number", attribute("action_space", "3")
    yield "totals-are-text", attribute("total_episodes", "many")
    yield (
        "a-space-of-another-structure",
        attribute("observation_space", '{"type": "Dict", "subspaces": {"a": 1}}'),
    )


DAMAGES = dict(_damages())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_give_an_error_of_the_tree(damage, root):
    data = write_attributes(root, "bad-v0", [0, 1, 2])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        DAMAGES[damage](file)
    if damage == "totals-are-text":
        assert len(load_dataset("bad-v0")) == 3
        return
    with pytest.raises(MinariPipeError):
        list(load_dataset("bad-v0"))


def test_a_file_that_was_cut_gives_the_truth_or_an_error(root):
    data = write_attributes(root, "cut-v0", [0, 1])
    path = data / "main_data.hdf5"
    whole = path.read_bytes()
    expected = [as_truth(episode) for episode in load_dataset("cut-v0")]
    for size in np.linspace(0, len(whole) - 1, 120 if FULL else 30, dtype=int):
        path.write_bytes(whole[:size])
        try:
            dataset = load_dataset("cut-v0")
            assert [as_truth(episode) for episode in dataset] == expected
        except MinariPipeError:
            pass


@pytest.mark.parametrize("reserved", [0, 1])
def test_a_heap_of_strings_that_hdf5_would_read_for_ever_is_refused(root, reserved):
    data = write_attributes(root, "endless-v0", [0])
    path = data / "main_data.hdf5"
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    free = heap + 16
    while content[free]:  # the objects before the free space
        free += 16 + (int.from_bytes(content[free + 8 : free + 16], "little") + 7) // 8 * 8
    struct.pack_into("<Q", content, free + 8, 0)
    content[heap + 5] = reserved  # HDF5 ignores it
    path.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match="heap"):
        load_dataset("endless-v0")


def test_a_listing_never_fails_over_strangers_files(root):
    write_attributes(root, "good-v0", [0])
    for name, content in (("empty-v0", b""), ("text-v0", b"no HDF5"), ("nothing-v0", None)):
        (root / name / "data").mkdir(parents=True)
        if content is not None:
            (root / name / "data" / "main_data.hdf5").write_bytes(content)
    with pytest.warns(UserWarning, match="Misconfigured"):
        assert list(list_local_datasets()) == ["good-v0"]
    with pytest.raises(DatasetNotFoundError, match="No data found"):
        load_dataset("empty-v0")
    with pytest.raises(CorruptDatasetError, match="main_data.hdf5"):
        load_dataset("text-v0")


def test_a_file_of_today_without_its_metadata_is_not_taken_for_an_old_one(root, tmp_path):
    source = GOLDEN / "0.5.4" / "cartpole" / "random-v0" / "data"
    data = root / "lost-v0" / "data"
    data.mkdir(parents=True)
    shutil.copy(source / "main_data.hdf5", data)
    with pytest.raises(DatasetNotFoundError, match="No data found"):
        load_dataset("lost-v0")


# --- 0.2 ---


def test_a_flat_file_is_cut_into_episodes(root):
    path = write_flat(root / "Grid_v0_random.hdf5", [2, 3])
    dataset = MinariDataset(path)
    assert dataset.id == "Grid_v0_random"
    assert dataset.spec.dataset_name == "Grid_v0_random"
    assert (len(dataset), dataset.total_steps) == (2, 5)
    episode = dataset[1]
    assert rows(episode.observations) == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0], [8.0, 9.0]]
    assert rows(episode.actions) == [2, 0, 1]
    assert episode.actions.dtype == dataset.action_space.dtype
    assert rows(episode.rewards) == [0.5, 0.75, 1.0]
    assert rows(episode.terminations) == [False, False, True]
    assert episode.terminations.dtype == bool
    assert rows(episode.truncations) == [False] * 3
    assert dataset.action_space == spaces.Discrete(3)
    assert dataset.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    attributes = list(dataset.storage.get_episode_metadata([0, 1]))
    assert attributes[1] == {"id": 1, "total_steps": 3, "final_observation_missing": True}
    metadata = dataset.storage.metadata
    assert metadata["seed_used"] == 42
    assert metadata["author"] == {"A. Uthor"}
    assert "code_permalink" not in metadata
    assert dataset.env_spec is None
    assert dataset.storage.get_size() >= 0


def test_names_that_0_2_did_not_have_are_said_to_be_left_out(root):
    dataset = MinariDataset(write_flat(root / "more.hdf5", [2], mine=np.zeros((2, 3))))
    assert len(dataset) == 1
    assert any("'mine'" in sentence for sentence in dataset.storage.unknown)


def test_a_rest_without_an_end_is_an_episode_of_its_own(root):
    ends = np.array([0, 1, 0, 0, 0], np.float32)
    path = write_flat(root / "rest.hdf5", [2, 3], terminations=ends, episode_terminals=ends)
    dataset = MinariDataset(path)
    assert [len(episode) for episode in dataset] == [2, 3]
    assert rows(dataset[1].truncations) == [False, False, True]
    [attributes] = dataset.storage.get_episode_metadata([1])
    assert attributes["truncation_inferred"] is True


def test_an_episode_without_steps_has_a_return_of_0(root):
    data = write_attributes(root, "old-v0", [0, 7])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        for name, rows in {"observations": 1, "actions": 0, "rewards": 0}.items():
            values = file["episode_1"][name][:rows]
            del file["episode_1"][name]
            file["episode_1"][name] = values
        for name in ("terminations", "truncations"):
            del file["episode_1"][name]
            file["episode_1"][name] = np.zeros(0, bool)
    table = load_dataset("old-v0").episodes
    assert table["return"].tolist() == [1.5, 0.0]
    assert table["rewards_max"].tolist() == [1.0, None]


def test_a_file_of_0_1_has_no_environment_and_may_lack_the_ends(root):
    path = write_flat(
        root / "kabuki.hdf5",
        [2, 3],
        environment_name=None,
        environment_stack=None,
        episode_terminals=None,
        actions=np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2),
        discrete_action=False,
    )
    dataset = MinariDataset(path)
    assert [len(episode) for episode in dataset] == [2, 3]
    assert dataset.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_images_keep_their_channels_first(root):
    images = np.arange(5 * 3 * 4 * 4, dtype=np.uint8).reshape(5, 3, 4, 4)
    path = write_flat(root / "images.hdf5", [5], observations=images)
    dataset = MinariDataset(path)
    assert dataset.observation_space == spaces.Box(0, 255, (3, 4, 4), np.uint8)
    assert np.array_equal(dataset[0].observations[:5], images)


def test_a_registered_name_lends_its_spaces_where_the_shapes_agree(root):
    observations = np.zeros((5, 4), np.float32)
    path = write_flat(
        root / "cart.hdf5",
        [5],
        environment_name="CartPole-v1",
        observations=observations,
        actions=np.zeros(5, np.int32),
    )
    dataset = MinariDataset(path)
    assert dataset.action_space == spaces.Discrete(2)
    assert dataset.observation_space == gym.make("CartPole-v1").observation_space
    other = write_flat(root / "other.hdf5", [5], environment_name="CartPole-v1")
    assert MinariDataset(other).observation_space.shape == (2,)
    evil = write_flat(root / "evil.hdf5", [5], environment_name="nest_env:Nest-v0")
    assert MinariDataset(evil).action_space == spaces.Discrete(3)


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": np.zeros(4, np.float32)},
        {"rewards": "text"},
        {"terminations": np.full(5, 0.5, np.float32)},
        {"observations": np.float32(1)},
        {"author": np.zeros((3, 3))},
        {"actions": h5py.ExternalLink("x", "/x")},
        {"observations": h5py.SoftLink("/actions")},
        {"actions": np.array([2**64 - 1, 0, 1, 2, 3], np.uint64)},
    ],
    ids=["short", "text", "half", "scalar", "array", "external", "soft", "large"],
)
def test_damaged_flat_files_give_an_error_of_the_tree(changes, root):
    path = write_flat(root / "bad.hdf5", [2, 3], **changes)
    with pytest.raises(MinariPipeError):
        list(MinariDataset(path))


# --- D4RL ---


def test_a_file_of_d4rl_is_cut_at_terminals_and_timeouts(tmp_path):
    columns = d4rl_columns([2, 3, 2])
    columns["timeouts"][-1] = False  # the recording stopped there
    path = write_d4rl(tmp_path / "maze2d-umaze-v1.hdf5", columns)
    with h5py.File(path, "r+") as file:
        file["metadata/algorithm"] = "SAC"
        file["metadata/policy/weight"] = np.zeros(5000)
        file.attrs["env"] = "maze2d"
    dataset = MinariDataset(path)
    assert dataset.id == "maze2d-umaze-v1"
    assert [len(episode) for episode in dataset] == [2, 3, 2]
    episode = dataset[1]
    assert [row[0] for row in rows(episode.observations)] == [2.0, 3.0, 4.0, 4.0]
    assert rows(episode.truncations) == [False, False, True]
    assert rows(episode.terminations) == [False] * 3
    assert rows(dataset[0].terminations) == [False, True]
    assert [row[0] for row in rows(episode.infos["qpos"])] == [2.0, 3.0, 4.0, 0.0]
    assert rows(episode.infos["deep"]["goal"]) == [2.0, 3.0, 4.0, 0.0]
    attributes = list(dataset.storage.get_episode_metadata(range(3)))
    assert attributes[1] == {
        "id": 1,
        "total_steps": 3,
        "final_observation_missing": True,
        "infos_filled": {"deep.goal": [[3, 4]], "qpos": [[3, 4]]},
    }
    assert attributes[2]["truncation_inferred"] is True
    assert rows(dataset[2].truncations) == [False, True]
    metadata = dataset.storage.metadata
    assert metadata["d4rl_metadata"] == {"env": "maze2d", "metadata/algorithm": "SAC"}
    assert any("metadata/policy/weight" in sentence for sentence in dataset.storage.unknown)


def test_next_observations_tell_the_last_one(tmp_path):
    columns = d4rl_columns([2, 3])
    columns["next_observations"] = columns["observations"] + 1
    columns["goals"] = np.arange(5.0)
    dataset = MinariDataset(write_d4rl(tmp_path / "full.hdf5", columns))
    assert [row[0] for row in rows(dataset[0].observations)] == [0.0, 1.0, 2.0]
    assert rows(dataset[1].extras["goals"]) == [2.0, 3.0, 4.0]
    [attributes] = dataset.storage.get_episode_metadata([1])
    assert "final_observation_missing" not in attributes
    columns["next_observations"] = columns["observations"] + 7  # they do not follow each other
    other = MinariDataset(write_d4rl(tmp_path / "shuffled.hdf5", columns))
    assert [row[0] for row in rows(other[0].extras["next_observations"])] == [7.0, 8.0]


def test_chunks_are_read_in_the_order_of_their_numbers(tmp_path):
    path = tmp_path / "chunks.hdf5"
    for chunk in (10, 9):
        columns = d4rl_columns([2, 3], first=100 * chunk)
        write_d4rl(path, columns, prefix=f"virtual/{chunk}/")
    dataset = MinariDataset(path)
    assert [rows(episode.observations)[0][0] for episode in dataset] == [900, 902, 1000, 1002]
    assert dataset.total_steps == 10


def test_discrete_actions_without_timeouts(tmp_path):
    columns = d4rl_columns([2, 3])
    columns |= {"actions": np.array([[0], [1], [4], [0], [1]])}
    del columns["timeouts"]
    dataset = MinariDataset(write_d4rl(tmp_path / "discrete.hdf5", columns))
    assert dataset.action_space == spaces.Discrete(5)
    assert rows(dataset[1].actions) == [4, 0, 1]


@pytest.mark.parametrize(
    "name", ["observations", "terminals", "infos/qpos", "next_observations", "metadata/x"]
)
def test_a_column_of_d4rl_from_elsewhere_is_refused(name, tmp_path):
    path = write_d4rl(tmp_path / "bad.hdf5", d4rl_columns([2, 3]))
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        file.create_dataset(name, (5, 3), "f4", external=[(str(tmp_path / "secret"), 0, 60)])
    with pytest.raises(CorruptDatasetError):
        list(MinariDataset(path))


def test_a_bomb_is_refused(tmp_path):
    path = write_d4rl(tmp_path / "bomb.hdf5", d4rl_columns([2, 3]))
    with h5py.File(path, "r+") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            del file[name]
            file.create_dataset(name, (2**36,), "f4", chunks=(1024,))
    with pytest.raises(CorruptDatasetError, match="far more"):
        MinariDataset(path)


def test_other_hdf5_files_are_not_taken_for_datasets(tmp_path):
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    with pytest.raises(CorruptDatasetError, match="a file with an unknown layout"):
        MinariStorage.read(path)
    (tmp_path / "text.hdf5").write_text("no HDF5")
    with pytest.raises(CorruptDatasetError, match="a file with an unknown layout"):
        MinariStorage.read(tmp_path / "text.hdf5")


def test_bounds_of_no_rows():
    assert episode_bounds(np.zeros(0, bool)).tolist() == [0]


@pytest.mark.parametrize(
    ("column", "values"), [("actions", [b"text"] * 2), ("observations", [[1.0, 2.0, 3.0]] * 3)]
)
def test_columns_that_do_not_fit_the_spaces_are_refused(root, column, values) -> None:
    source = CHECKOUT / "tests/legacy/0.4.0/cartpole-random-v0"
    shutil.copytree(source, root / "cartpole-random-v0")
    with h5py.File(root / "cartpole-random-v0/data/main_data.hdf5", "r+") as file:
        stored = file["episode_0"][column]
        del file["episode_0"][column]
        file["episode_0"][column] = np.resize(values, (len(stored), *np.shape(values)[1:]))
    dataset = load_dataset("cartpole-random-v0")
    with pytest.raises(CorruptDatasetError, match=f"episode 0: {column} (is not numeric|has rows)"):
        dataset[0]


def test_no_change_of_an_older_layout_can_be_left(root) -> None:
    """Its readers know of none: they would read other files than are verified."""
    shutil.copytree(CHECKOUT / "tests/legacy/0.4.3/cartpole-random-v0", root / "cartpole-random-v0")
    data = root / "cartpole-random-v0" / "data"
    metadata = MinariDataset(data).storage.metadata
    (data.parent / "manifest.json").write_text(json.dumps(describe(data.parent, metadata)))
    load_dataset("cartpole-random-v0", verify=True)
    (data / ".minari_pipe-commit").mkdir()
    shutil.copy(data / "main_data.hdf5", data / ".minari_pipe-commit")
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        file["episode_0/rewards"][...] = 777.0
    for verify in (True, False):
        with pytest.raises(CorruptDatasetError, match="holds an unfinished change"):
            load_dataset("cartpole-random-v0", verify=verify)


@pytest.mark.parametrize("inside", [True, False])
def test_a_link_in_place_of_a_file_that_another_names_is_refused(inside, root, tmp_path) -> None:
    source = CHECKOUT / "tests/legacy/0.4.0/cartpole-random-v0"
    shutil.copytree(source, root / "cartpole-random-v0")
    other = (root if inside else tmp_path / "elsewhere") / "other-v0"
    shutil.copytree(source, other)
    linked = root / "cartpole-random-v0" / "data" / "additional_data_0.hdf5"
    linked.unlink()
    linked.symlink_to(other / "data" / "additional_data_0.hdf5")
    with pytest.raises(LinkError, match=r"additional_data_0\.hdf5 is a symlink to"):
        list(load_dataset("cartpole-random-v0"))


def test_the_root_may_be_reached_by_a_link(root, tmp_path, monkeypatch) -> None:
    source = CHECKOUT / "tests/legacy/0.4.0/cartpole-random-v0"
    shutil.copytree(source, root / "cartpole-random-v0")
    (tmp_path / "way").symlink_to(root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "way"))
    assert len(list(load_dataset("cartpole-random-v0"))) == 5


@pytest.mark.parametrize("what", ["a dataset", "a flat file"])
def test_a_link_that_takes_the_place_of_a_file_meanwhile_is_not_followed(
    what, root, tmp_path, monkeypatch
) -> None:
    elsewhere = tmp_path / "elsewhere.hdf5"
    if what == "a dataset":
        source = CHECKOUT / "tests/legacy/0.4.3/cartpole-random-v0"
        shutil.copytree(source, root / "cartpole-random-v0")
        path = root / "cartpole-random-v0" / "data" / "main_data.hdf5"
    else:
        path = write_d4rl(root / "cartpole-random-v0.hdf5", d4rl_columns([2, 3]))
    shutil.copy(path, elsewhere)
    checked = legacy_base._check

    def exchanged(file, stamp):
        checked(file, stamp)
        if file == path and not path.is_symlink():
            path.unlink()
            path.symlink_to(elsewhere)

    monkeypatch.setattr(legacy_base, "_check", exchanged)
    with pytest.raises((LinkError, CorruptDatasetError), match=r"is a symlink|was replaced while"):
        list(load_dataset("cartpole-random-v0"))
