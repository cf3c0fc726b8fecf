"""``migrate_dataset`` loses nothing of an older generation and says what could not be known."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import list_local_datasets
from minari_pipe.datasets.migrate import migrate_dataset
from minari_pipe.errors import CorruptDatasetError, DatasetExistsError, DatasetNotFoundError
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage.base import get_storage_keys
from minari_pipe.testing import assert_same
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
    write_flat,
    write_links,
)

TRUSTED = ("nest_env",)


@pytest.fixture(autouse=True)
def nest_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GOLDEN))


@pytest.fixture
def root() -> Path:
    return get_dataset_path()


def migrated(source, dataset_id="new/data-v0", **kwargs) -> tuple[MinariDataset, list[str]]:
    """Migrate, and return the sentences about what could not be known, which must be warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = migrate_dataset(source, dataset_id, **kwargs)
    unknown = dataset.storage.metadata["migration"]["unknown"]
    assert [str(warning.message) for warning in caught if unknown] == [
        str(warning.message)
        for warning in caught
        if all(sentence in str(warning.message) for sentence in unknown)
    ]
    assert len(caught) == bool(unknown)
    return dataset, unknown


@pytest.mark.parametrize("data_format", get_storage_keys())
@pytest.mark.parametrize(("release", "dataset_id"), DATASETS, ids=IDS)
def test_an_old_release_is_equal_to_its_truth_after_it_was_migrated(
    release, dataset_id, data_format
):
    minari = pytest.importorskip("minari")
    source = GOLDEN / release / dataset_id
    dataset, unknown = migrated(source, trusted_modules=TRUSTED, data_format=data_format)
    expected = truth(release, dataset_id)
    assert [as_truth(episode) for episode in dataset] == expected
    assert [episode.seed for episode in dataset] == seeds(release, dataset_id)

    before = MinariDataset(source / "data", trusted_modules=TRUSTED)
    count = range(len(expected))
    old, new = (list(d.storage.get_episode_metadata(count)) for d in (before, dataset))
    for was, now in zip(old, new, strict=True):
        assert {key: now.get(key) for key in was} == was
    for was, now in zip(before, dataset, strict=True):
        assert_same(now.infos, was.infos)
        assert_same(now.observations, was.observations)
    metadata, raw = dataset.storage.metadata, before.storage.metadata
    for key in ("author", "author_email", "algorithm_name", "code_permalink"):
        assert metadata[key] == raw[key]
    assert metadata["minari_version"] == "0.5.4"
    assert metadata["migration"]["source_layout"] == raw["data_format"]
    assert metadata["migration"]["source_minari_version"] == raw.get("minari_version")
    assert metadata["migration"]["source_dataset_id"] == dataset_id
    assert bool(unknown) == (release < "0.5" or None in seeds(release, dataset_id))
    assert dataset.observation_space == before.observation_space

    assert list(list_local_datasets()) == ["new/data-v0"]
    if data_format in pytest.importorskip("minari.dataset._storages").get_storage_keys():
        theirs = minari.load_dataset("new/data-v0")
        assert [as_truth(episode) for episode in theirs.iterate_episodes()] == expected
        assert theirs.spec.total_steps == dataset.total_steps
        assert theirs.env_spec is not None


def test_a_source_is_an_id_a_directory_or_a_file(root, tmp_path):
    shutil.copytree(GOLDEN / "0.4.3" / "cartpole-random-v0", root / "cartpole-random-v0")
    write_flat(root / "Grid_v0_random.hdf5", [2])
    golden = GOLDEN / "0.4.0" / "cartpole-random-v0"
    today = GOLDEN / "0.5.4" / "cartpole" / "random-v0"
    sources = [
        "cartpole-random-v0",
        "Grid_v0_random",
        golden,
        str(golden / "data"),
        golden / "data" / "main_data.hdf5",
        today,
        today / "data" / "main_data.hdf5",
        root / "Grid_v0_random.hdf5",
    ]
    for number, source in enumerate(sources):
        dataset, _ = migrated(source, f"new/data-v{number}")
        assert len(dataset) == (1 if "Grid" in str(source) else 5)
    for source in (tmp_path, "nothing-v0", tmp_path / "nothing.hdf5"):
        with pytest.raises(DatasetNotFoundError, match="no dataset at"):
            migrate_dataset(source, "other-v0")


def test_a_source_that_is_no_dataset_is_said_to_be_what_it_is(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("# Notes of mine")
    with pytest.raises(DatasetNotFoundError, match="it is a file that begins with b'# Notes of"):
        migrate_dataset(text, "other-v0")
    with h5py.File(tmp_path / "empty.hdf5", "w"):
        pass
    with pytest.raises(DatasetNotFoundError, match="it is an HDF5 file that holds no episodes"):
        migrate_dataset(tmp_path / "empty.hdf5", "other-v0")
    (tmp_path / "empty.hdf5").unlink()
    with pytest.raises(DatasetNotFoundError, match="it is a directory without metadata"):
        migrate_dataset(tmp_path, "other-v0")


def test_an_old_id_can_be_kept_outside_of_the_root():
    dataset, _ = migrated(GOLDEN / "0.4.3" / "cartpole-random-v0", "cartpole-random-v0")
    assert dataset.id == "cartpole-random-v0"
    with pytest.raises(DatasetExistsError, match="cartpole-random-v0"):
        migrate_dataset(GOLDEN / "0.4.3" / "cartpole-random-v0", "cartpole-random-v0")


def test_linked_episodes_are_copied(root):
    a = write_attributes(root, "a-v0", [10, 20])
    write_links(root, "ab-v0", [(str(a / "main_data.hdf5"), f"/episode_{i}") for i in (1, 0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = migrate_dataset("ab-v0", "new/data-v0")
    linked = f"{root}/ab-v0/data links to episodes in {a}/main_data.hdf5; a copy of it holds them"
    assert linked in [str(warning.message) for warning in caught]
    shutil.rmtree(root / "a-v0")
    assert [rows(episode.observations)[0] for episode in dataset] == [[20.0], [10.0]]
    assert dataset.combined_datasets == ["a-v0", "b-v0"]
    assert [episode.seed for episode in dataset] == [20, 10]


def test_what_users_added_is_kept(root):
    data = write_attributes(
        root,
        "old-v0",
        [0, 7],
        total_steps=99,
        ref_max_score=3.5,
        ref_min_score=float("nan"),
        lab="ours",
        env_spec="no JSON",
    )
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        file["episode_0"].attrs["note"] = "hello"
        file["episode_0"].attrs["seed"] = np.uint64(2**64 - 1)
        file["episode_1"].attrs["seed"] = "None"
        file["episode_0/state/qpos"] = np.arange(4.0)
        file["episode_0/infos/late"] = np.arange(1, 4)
    dataset, unknown = migrated("old-v0")
    metadata = dataset.storage.metadata
    assert metadata["lab"] == "ours"
    assert metadata["ref_max_score"] == 3.5
    assert metadata["migration"]["left_out"].keys() == {"ref_min_score", "env_spec"}
    assert any("99 steps" in sentence for sentence in unknown)
    assert "1 of 2 episodes have no seed" in unknown
    assert dataset[0].seed == 2**64 - 1
    assert rows(dataset[0].extras["state"]["qpos"]) == [0.0, 1.0, 2.0, 3.0]
    assert rows(dataset[0].infos["late"]) == [0, 1, 2, 3]
    [attributes] = dataset.storage.get_episode_metadata([0])
    assert attributes["note"] == "hello"
    assert attributes["infos_filled"] == {"late": [[0, 1]]}


@pytest.mark.parametrize("spec", ["null", "[1]", "{}", '{"id": 3, "additional_wrappers": 7}'])
def test_what_is_no_spec_is_left_out_so_that_minari_reads_the_result(root, spec):
    minari = pytest.importorskip("minari")
    write_attributes(root, "old-v0", [0], env_spec=spec)
    dataset, unknown = migrated("old-v0")
    assert dataset.storage.metadata["migration"]["left_out"] == {"env_spec": spec}
    assert any("env_spec is left out" in sentence for sentence in unknown)
    assert len(minari.load_dataset(dataset.id)) == 1


def test_without_trust_it_says_that_values_stay_flattened():
    dataset, unknown = migrated(GOLDEN / "0.3.1" / "nest-random-v0")
    assert dataset.observation_space.shape == (9,)
    assert any("inferred" in sentence for sentence in unknown)
    assert any("stay flattened" in sentence for sentence in unknown)
    assert str(Path.home()) not in json.dumps(dataset.storage.metadata["migration"])


def test_the_specs_of_old_environments_are_todays(root):
    dataset, _ = migrated(GOLDEN / "0.4.3" / "cartpole-random-v0")
    fields = json.loads(dataset.storage.metadata["env_spec"])
    assert not {"autoreset", "apply_api_compatibility"} & fields.keys()
    env = dataset.recover_environment()
    assert env.spec.max_episode_steps == 6
    env.close()


def test_a_flat_file_keeps_all_actions(root):
    minari = pytest.importorskip("minari")
    path = write_flat(root / "Grid_v0_random.hdf5", [2, 3])
    dataset, unknown = migrated(path, "grid/random-v0")
    assert rows(dataset[1].actions) == [2, 0, 1]
    assert rows(dataset[1].observations)[-1] == [8.0, 9.0]
    [attributes] = dataset.storage.get_episode_metadata([1])
    assert attributes["final_observation_missing"]
    assert attributes["rewards_sum"] == 2.25
    assert any("repeated" in sentence for sentence in unknown)
    assert dataset.storage.metadata["seed_used"] == 42
    theirs = minari.load_dataset("grid/random-v0")
    assert [as_truth(episode) for episode in theirs] == [as_truth(episode) for episode in dataset]


def test_a_file_of_d4rl_keeps_infos_and_metadata(tmp_path):
    minari = pytest.importorskip("minari")
    columns = d4rl_columns([2, 3])
    columns["next_observations"] = columns["observations"] + 1
    path = write_d4rl(tmp_path / "maze.hdf5", columns | {"metadata/algorithm": "SAC"})
    dataset, unknown = migrated(path, "d4rl/maze-v0")
    assert dataset.storage.metadata["d4rl_metadata"] == {"metadata/algorithm": "SAC"}
    assert [row[0] for row in rows(dataset[1].observations)] == [2.0, 3.0, 4.0, 5.0]
    [attributes] = dataset.storage.get_episode_metadata([1])
    assert attributes["infos_filled"]["qpos"] == [[3, 4]]
    assert not any("repeated" in sentence for sentence in unknown)
    theirs = minari.load_dataset("d4rl/maze-v0")
    assert [as_truth(episode) for episode in theirs] == [as_truth(episode) for episode in dataset]


def test_a_file_that_lies_beside_another_dataset_is_read_alone(tmp_path):
    shutil.copytree(GOLDEN / "0.5.4" / "cartpole" / "random-v0" / "data", tmp_path / "downloads")
    path = write_d4rl(tmp_path / "downloads" / "maze.hdf5", d4rl_columns([2, 3]))
    assert len(migrated(path, "d4rl/maze-v0")[0]) == 2
    assert len(migrated(path.parent / "main_data.hdf5", "new/data-v0")[0]) == 5
    arrow, _ = migrated(path.parent / "main_data.hdf5", "new/data-v1", data_format="arrow")
    path = path.rename(arrow.storage.data_path / "main_data.hdf5")
    assert len(migrated(path, "d4rl/maze-v1")[0]) == 2
    with h5py.File(tmp_path / "downloads" / "additional_data_3.hdf5", "w") as file:
        file.attrs["total_episodes"] = 1
        file["episode_0"] = h5py.ExternalLink("main_data.hdf5", "episode_0")
    with pytest.raises(CorruptDatasetError):
        migrated(tmp_path / "downloads" / "additional_data_3.hdf5", "new/data-v2")


def test_a_damaged_source_leaves_nothing_behind(root):
    data = write_attributes(root, "bad-v0", [0, 1])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_1/actions"]
    with pytest.raises(CorruptDatasetError, match="episode 1"):
        migrate_dataset("bad-v0", "new/data-v0")
    assert sorted(path.name for path in root.iterdir()) == ["bad-v0"]
    with pytest.raises(DatasetNotFoundError):
        load_dataset("new/data-v0")


def test_episodes_without_a_step_are_left_out(root):
    data = write_attributes(root, "old-v0", [0, 1])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        group = file["episode_0"]
        for name in ("actions", "rewards", "terminations", "truncations"):
            values = group[name][:0]
            del group[name]
            group[name] = values
        values = group["observations"][:1]
        del group["observations"]
        group["observations"] = values
    dataset, unknown = migrated("old-v0")
    assert [episode.seed for episode in dataset] == [1]
    assert "episodes without steps are left out: 0" in unknown
