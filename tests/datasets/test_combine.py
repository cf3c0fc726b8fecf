"""Datasets are split into views and combined without losing anything."""

from __future__ import annotations

import json
import secrets
import warnings
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.datasets.combine import (
    combine_datasets,
    split_dataset,
    validate_datasets_to_combine,
)
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import get_dataset_path, list_local_datasets
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    InvalidDatasetIdError,
    InvalidMetadataError,
    UnknownFormatError,
)
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.base import get_storage_keys
from minari_pipe.storage.jpeg import Frames
from minari_pipe.testing import ACTION, assert_stored, episode, examples, make
from minari_pipe.testing import spaces as any_space
from tests.datasets.test_create import create
from tests.datasets.test_dataset import episode as numbered


def create_with_real_minari(dataset_id: str, buffers: list[EpisodeBuffer]) -> minari.MinariDataset:
    """Create a dataset with the peer; its spaces are those of ``test_dataset.episode``."""
    names = ("seed", "options", "observations", "actions", "rewards", "terminations", "truncations")
    theirs = [
        minari.data_collector.EpisodeBuffer(
            id=index, infos={}, **{name: getattr(buffer, name) for name in names}
        )
        for index, buffer in enumerate(buffers)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minari.create_dataset_from_buffers(
            dataset_id,
            theirs,
            observation_space=spaces.Discrete(100),
            action_space=spaces.Discrete(9),
            data_format="hdf5",
        )


def test_split_is_real_minari_s() -> None:
    dataset = create(buffers=make(0, 7))
    theirs = minari.split_dataset(minari.load_dataset("aa/b-v0"), [2, 4], seed=3)
    ours = split_dataset(dataset, [2, 4], seed=3)
    assert [view.episode_indices.tolist() for view in ours] == [
        view.episode_indices.tolist() for view in theirs
    ]
    assert [len(view) for view in ours] == [2, 4]
    with pytest.raises(ValueError, match=r"the sum of sizes exceeds the number .* \(7\)"):
        split_dataset(dataset, [4, 4])


def test_combining_views_takes_their_episodes_and_all_that_belongs_to_them() -> None:
    buffers = [make(0, 4), make(1, 3)]
    first = create("aa/x-v0", buffers[0], ref_min_score=1.0, author={"A", "B"})
    second = create("aa/y-v0", buffers[1], ref_min_score=1.0, author={"C"}, description="other")
    view = split_dataset(first, [2], seed=0)[0]
    combined = combine_datasets([view, second], "bb/cc/z-v0")
    chosen = [buffers[0][index] for index in view.episode_indices]
    assert_stored(combined.storage, [*chosen, *buffers[1]])
    metadata = combined.storage.metadata
    assert combined.combined_datasets == ["aa/x-v0", "aa/y-v0"]
    assert metadata["author"] == {"A", "B", "C"}
    assert metadata["ref_min_score"] == 1.0
    assert "description" not in metadata
    assert metadata["jpeg_encoding"] is False
    assert minari.load_dataset("bb/cc/z-v0").total_episodes == 5


def test_different_spaces_do_not_combine() -> None:
    first = create("aa/x-v0")
    other = create("aa/y-v0", [], action_space=spaces.Discrete(7))
    with pytest.raises(InvalidMetadataError, match="different values for `action_space`"):
        combine_datasets([first, other], "aa/z-v0")
    with pytest.raises(InvalidMetadataError, match="at least one dataset"):
        combine_datasets([], "aa/z-v0")
    assert sorted(list_local_datasets()) == ["aa/x-v0", "aa/y-v0"]


@pytest.mark.parametrize(
    ("horizons", "expected"), [((10, 30, 20), 30), ((10, None), None), ((None, None), None)]
)
def test_the_horizon_of_a_combination_is_the_largest(horizons, expected) -> None:
    datasets = []
    for index, horizon in enumerate(horizons):
        spec = gym.spec("CartPole-v1")
        spec = gym.envs.registration.EnvSpec.from_json(spec.to_json())
        spec.max_episode_steps = horizon
        dataset_id = f"aa/x-v{index}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`eval_env` is set to None")
            datasets.append(
                create(dataset_id, [], env=spec, observation_space=None, action_space=None)
            )
    combined = combine_datasets(datasets, "aa/z-v0")
    assert combined.env_spec.max_episode_steps == expected
    assert [dataset.env_spec.max_episode_steps for dataset in datasets] == list(horizons)


def test_different_environments_do_not_combine() -> None:
    own = {"buffers": [], "observation_space": None, "action_space": None}
    pole = create("aa/x-v0", env="CartPole-v1", **own)
    spec = gym.envs.registration.EnvSpec.from_json(gym.spec("CartPole-v1").to_json())
    spec.kwargs = {"sutton_barto_reward": True}
    old = create("aa/y-v0", env=spec, **own)
    none = create("aa/z-v0", [], observation_space=pole.observation_space, action_space=ACTION)
    with pytest.raises(ValueError, match="different values for `env_spec` attribute"):
        combine_datasets([pole, old], "aa/c-v0")
    with pytest.raises(InvalidMetadataError, match="different values for `action_space`"):
        combine_datasets([pole, none], "aa/c-v0")
    same = {"observation_space": pole.observation_space, "action_space": pole.action_space}
    none = create("aa/n-v0", [], **same)
    with pytest.raises(ValueError, match="Cannot combine datasets having env_spec with those"):
        combine_datasets([pole, none], "aa/c-v0")


def test_created_bytes_depend_on_the_values_only() -> None:
    for name in ("x", "y"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            create(f"aa/{name}-v0")
    x, y = (get_dataset_path(f"aa/{name}-v0") / "data" for name in "xy")
    assert (x / "main_data.hdf5").read_bytes() == (y / "main_data.hdf5").read_bytes()
    text = (x / "metadata.json").read_text().replace("aa/x-v0", "aa/y-v0")
    assert text == (y / "metadata.json").read_text()
    assert '"author": ["A", "B"]' in text


def test_infos_may_be_nested_and_of_any_kind() -> None:
    steps = 2
    infos = {"x": [1, 2, 3], "nest": {"y": np.zeros((3, 2)), "s": ["a", "b", "c"]}}
    buffer = replace(
        make(0, 1)[0],
        observations={"a": np.zeros((3, 2), np.float32), "t": (["x"] * 3,)},
        actions=[0] * steps,
        rewards=[0.0] * steps,
        terminations=[False] * steps,
        truncations=[False, True],
        infos=infos,
        extras={},
    )
    found = create(buffers=[buffer])[0].infos
    assert found["x"].tolist() == [1, 2, 3]
    assert found["nest"]["s"].tolist() == ["a", "b", "c"]
    assert found["nest"]["y"].shape == (3, 2)
    assert isinstance(MinariStorage.read(get_dataset_path("aa/b-v0") / "data"), MinariStorage)


# --- splits


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> MinariDataset:
    """A dataset of 50 episodes."""
    path = tmp_path_factory.mktemp("fifty") / "data"
    storage = MinariStorage.new(path, spaces.Discrete(100), spaces.Discrete(9))
    storage.update_metadata({"dataset_id": "aa/fifty-v0"})
    storage.update_episodes([numbered(number % 3) for number in range(50)])
    return MinariDataset(storage)


@pytest.mark.parametrize(
    ("total", "sizes", "expected"),
    [
        (10, [0.8, 0.1, 0.1], [8, 1, 1]),
        (7, [0.5, 0.5], [4, 3]),
        (7, [0.25, 0.75], [2, 5]),
        (7, [0.25], [2]),
        (10, [1 / 3, 1 / 3, 1 / 3], [4, 3, 3]),
        (50, [0.58, 0.42], [29, 21]),
        (10, [0.7, 0.1, 0.2], [7, 1, 2]),
        (3, [1.0], [3]),
        (3, [0.0, 1.0], [0, 3]),
        (3, [0.1], [0]),
        (0, [0.5, 0.5], [0, 0]),
        (5, [np.float32(0.4), np.float64(0.2)], [2, 1]),
        (5, (np.int64(2), 0, 3), [2, 0, 3]),
        (5, [], []),
        (5, np.array([2, 2]), [2, 2]),
    ],
    ids=str,
)
def test_sizes_are_numbers_or_fractions_of_episodes(fifty, total, sizes, expected) -> None:
    views = split_dataset(fifty[:total], sizes, seed=1)
    assert [len(view) for view in views] == expected
    chosen = [index for view in views for index in view.episode_indices.tolist()]
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(total))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([3, 3], r"the sum of sizes exceeds the number of episodes in the dataset \(5\)"),
        ([-1, 3], "sizes must not be negative"),
        ([2, 0.5], "all episode counts, or all fractions"),
        ([0.6, 0.6], r"exceeds 1: the fractions \[0.6, 0.6\] add up to 1.2, where 1 means all 5"),
        ([4.0, 1.0], "fractions from 0.0 to 1.0"),
        ([-0.1], "fractions from 0.0 to 1.0"),
        ([float("nan")], "fractions from 0.0 to 1.0"),
        (["2"], "all episode counts"),
        ([True, True], "all episode counts"),
        (3, "sizes must be a list"),
    ],
    ids=str,
)
def test_other_sizes_are_refused(fifty, sizes, message) -> None:
    dataset = fifty[:5]
    with pytest.raises(ConfigError, match=message):
        split_dataset(dataset, sizes)
    with pytest.raises(ValueError, match=message):
        split_dataset(dataset, sizes, seed=0)


@pytest.mark.parametrize("seed", [-1, "one", 1.5])
def test_a_seed_that_is_none_is_refused(fifty, seed) -> None:
    with pytest.raises(ConfigError, match="seed must be None or a non-negative integer, got"):
        split_dataset(fifty, [1], seed=seed)
    with pytest.raises(ConfigError, match="seed must be None or"):
        fifty[:2].set_seed(seed)


def test_a_split_of_a_view_stays_within_it() -> None:
    view = create(buffers=make(0, 6))[[5, 1, 3]]
    halves = split_dataset(view, [0.5, 0.5], seed=2)
    assert sorted(np.concatenate([half.episode_indices for half in halves])) == [1, 3, 5]
    again = split_dataset(view, [0.5, 0.5], seed=2)
    assert [h.episode_indices.tolist() for h in halves] == [
        h.episode_indices.tolist() for h in again
    ]


# --- combinations


def test_real_minari_combines_all_episodes_of_a_view_and_drops_what_belongs_to_them() -> None:
    """P4, P5: the peer takes the whole of every source, without seed, options and attributes."""
    create(buffers=[replace(b, seed=7, options={"k": 1}) for b in make(0, 4)])
    theirs = minari.load_dataset("aa/b-v0")
    both = minari.combine_datasets(minari.split_dataset(theirs, [2, 2], seed=0), "theirs-v0")
    assert both.total_episodes == 8
    lost = next(iter(both.storage.get_episode_metadata([0])))
    assert not {"seed", "options", "rewards_sum", "origin"} & lost.keys()
    with pytest.raises(FileNotFoundError):  # nor can it begin a namespace
        minari.combine_datasets([theirs], "theirs/new-v0")

    ours = load_dataset("aa/b-v0")
    both = combine_datasets(split_dataset(ours, [2, 2], seed=0), "aa/ours-v0")
    assert both.total_episodes == 4
    kept = next(iter(both.storage.get_episode_metadata([0])))
    assert (kept["seed"], kept["options"], kept["origin"]) == (7, {"k": 1}, "generated")


def test_real_minari_drops_scores_requirements_and_algorithm_and_invents_authors() -> None:
    """P5: what all sources say of themselves is gone in the peer's combination."""
    told = {**SCORES, "requirements": ["numpy>=1"], "eval_env": "CartPole-v1"}
    first, second = create("aa/x-v0", **told), create("aa/y-v0", **told)
    keys = [*SCORES, "requirements", "eval_env_spec", "algorithm_name", "description"]
    theirs = minari.combine_datasets([minari.load_dataset(d.id) for d in (first, second)], "t-v0")
    assert not set(keys) & theirs.storage.metadata.keys()
    ours = combine_datasets([first, second], "aa/z-v0").storage.metadata
    assert {key: ours[key] for key in keys} == {key: first.storage.metadata[key] for key in keys}


@examples(4)
@given(any_space(), any_space(), st.integers(0, 2**32))
def test_any_views_combine_to_their_episodes_one_after_another(
    tmp_path_factory, observation_space, action_space, seed
) -> None:
    rng = np.random.default_rng(seed)
    root = tmp_path_factory.mktemp("any")
    views, expected = [], []
    for number in range(3):
        buffers = [episode(observation_space, action_space, rng) for _ in range(3)]
        storage = MinariStorage.new(root / str(number), observation_space, action_space)
        storage.update_metadata({"dataset_id": f"aa/x-v{number}"})
        storage.update_episodes(buffers)
        chosen = rng.integers(3, size=rng.integers(4))
        views.append(MinariDataset(storage)[chosen])
        expected += [buffers[index] for index in chosen]
    combined = combine_datasets(views, f"bb/z-v{secrets.randbits(60)}")
    assert_stored(combined.storage, expected)


def test_extra_groups_seeds_and_any_metadata_of_episodes_are_kept() -> None:
    rng = np.random.default_rng(0)
    buffers = [
        replace(b, seed=2**64 - 1 - i, extras={"state": {"qpos": rng.random((len(b) + 1, 3))}})
        for i, b in enumerate(make(0, 3))
    ]
    first = create("aa/x-v0", buffers)
    combined = combine_datasets([first[[2]], first[:1]], "aa/z-v0")
    for found, buffer in zip(combined, [buffers[2], buffers[0]], strict=True):
        assert found.seed == buffer.seed
        assert np.array_equal(found.extras["state"]["qpos"], buffer.extras["state"]["qpos"])
    assert combined.combined_datasets == ["aa/x-v0", "aa/x-v0"]


@pytest.mark.parametrize("second_format", get_storage_keys())
@pytest.mark.parametrize("first_format", get_storage_keys())
def test_formats_mix_and_the_first_decides(first_format, second_format) -> None:
    buffers = [make(0, 2), make(1, 2)]
    first = create("aa/x-v0", buffers[0], data_format=first_format)
    second = create("aa/y-v0", buffers[1], data_format=second_format)
    combined = combine_datasets([first, second], "aa/z-v0")
    assert first_format == combined.storage.FORMAT
    assert_stored(combined.storage, [*buffers[0], *buffers[1]])
    told = combine_datasets([first, second], "aa/w-v0", data_format=second_format)
    assert second_format == told.storage.FORMAT
    assert_stored(told.storage, [*buffers[0], *buffers[1]])


def test_sources_whose_format_only_reads_become_hdf5(monkeypatch) -> None:
    first = create("aa/x-v0", make(0, 2))
    monkeypatch.setattr(type(first.storage), "FORMAT", "old")
    combined = combine_datasets([first], "aa/z-v0")
    assert (
        json.loads((Path(combined.storage.data_path) / "metadata.json").read_text())["data_format"]
        == "hdf5"
    )


def test_names_are_joined() -> None:
    first = create("aa/x-v0", algorithm_name="SAC; random", author={"A"}, requirements=["b>=1"])
    second = create("aa/y-v0", algorithm_name="random", author={"B"}, requirements=["a", "b>=1"])
    third = create("aa/z-v0", algorithm_name="PPO", author={"A"}, author_email={"z@example.org"})
    metadata = combine_datasets([first, second, third], "aa/all-v0").storage.metadata
    assert metadata["algorithm_name"] == "SAC; random; PPO"
    assert metadata["author"] == {"A", "B"}
    assert metadata["author_email"] == {"a@example.org", "z@example.org"}
    assert metadata["requirements"] == ["b>=1", "a"]
    assert metadata["description"] == "what it is"
    assert metadata["code_permalink"] == "https://example.org"


def test_requirements_that_exclude_each_other_are_named() -> None:
    first = create("aa/x-v0", requirements=["mujoco>=3", "numpy"])
    second = create("aa/y-v0", requirements=["mujoco<3", "numpy"])
    with pytest.warns(UserWarning, match="conflict: mujoco>=3 and mujoco<3") as caught:
        combined = combine_datasets([first, second], "aa/z-v0")
    assert combined.storage.metadata["requirements"] == ["mujoco>=3", "numpy", "mujoco<3"]
    assert [warning.filename for warning in caught] == [__file__]


SCORES = {"ref_min_score": 1.0, "ref_max_score": 9.0, "num_episodes_average_score": 7}


def test_scores_and_the_evaluation_environment_are_kept_if_equal() -> None:
    first = create("aa/x-v0", eval_env="CartPole-v1", **SCORES)
    second = create("aa/y-v0", eval_env="CartPole-v1", **SCORES)
    text = json.dumps(json.loads(second.storage.metadata["eval_env_spec"]), indent=1)
    second.storage.update_metadata({"eval_env_spec": text})
    metadata = combine_datasets([first, second], "aa/z-v0").storage.metadata
    assert {key: metadata[key] for key in SCORES} == SCORES
    assert metadata["eval_env_spec"] == gym.spec("CartPole-v1").to_json()


def test_scores_that_differ_are_left_out_with_one_warning() -> None:
    first = create("aa/x-v0", eval_env="CartPole-v1", **SCORES)
    second = create("aa/y-v0", eval_env="Acrobot-v1", **{**SCORES, "ref_max_score": 8.0})
    with pytest.warns(UserWarning, match="different values for ref_max_score, eval") as caught:
        metadata = combine_datasets([first, second], "aa/z-v0").storage.metadata
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert metadata["ref_min_score"] == 1.0
    assert not {"ref_max_score", "eval_env_spec"} & metadata.keys()


def test_scores_that_one_source_lacks_are_left_out_with_a_warning() -> None:
    first, second = create("aa/x-v0", **SCORES), create("aa/y-v0", ref_min_score=1.0)
    with pytest.warns(UserWarning, match="for ref_max_score, num_episodes_average_score; aa/z-v0"):
        metadata = combine_datasets([first, second], "aa/z-v0").storage.metadata
    assert metadata["ref_min_score"] == 1.0


@pytest.mark.parametrize("kinds", [("jpeg", "jpeg"), ("jpeg", "raw"), ("raw", "jpeg")])
def test_the_target_is_jpeg_only_if_all_sources_hold_jpeg(kinds, monkeypatch) -> None:
    image = {"observation_space": spaces.Box(0, 255, (32, 32, 3), np.uint8)}
    buffers = [
        EpisodeBuffer(
            observations=np.zeros((2, 32, 32, 3), np.uint8),
            actions=[0],
            rewards=[1.0],
            terminations=[True],
            truncations=[False],
        )
    ]
    datasets = [create(f"aa/x-v{k}", buffers, **image) for k in range(2)]
    for dataset, kind in zip(datasets, kinds, strict=True):
        if kind == "jpeg":
            # as a storage of JPEG images gives them
            frames = replace(buffers[0], observations=Frames([b"\xff\xd8\xff", b"\xff\xd8\xff"]))
            monkeypatch.setattr(dataset.storage, "get_buffers", lambda _, f=frames: iter([f]))
        # what Minari up to 0.5.3 says of raw images, too
        monkeypatch.setattr(dataset.storage, "_jpeg_encoding", True)
    asked = {}

    def new(path, episodes, jpeg_encoding, **kwargs):
        asked["jpeg"] = jpeg_encoding
        raise ZeroDivisionError

    monkeypatch.setattr(MinariStorage, "create", staticmethod(new))
    with pytest.raises(ZeroDivisionError):
        combine_datasets(datasets, "aa/z-v0")
    assert asked["jpeg"] is (kinds == ("jpeg", "jpeg"))


def test_without_images_the_flag_is_what_the_sources_say(monkeypatch) -> None:
    datasets = [create("aa/x-v0", jpeg_encoding=True), create("aa/y-v0", jpeg_encoding=True)]
    assert combine_datasets(datasets, "aa/z-v0").storage.jpeg_encoding is True
    third = create("aa/w-v0")
    assert combine_datasets([*datasets, third], "aa/v-v0").storage.jpeg_encoding is False


def test_old_code_may_say_copy() -> None:
    first = create("aa/x-v0")
    for number, value in enumerate((True, False)):
        with pytest.warns(DeprecationWarning, match="always copies the episodes") as caught:
            combined = combine_datasets([first], f"aa/z-v{number}", copy=value)
        assert caught[0].filename == __file__
        assert_stored(combined.storage, make())


def test_files_of_real_minari_combine_with_ours() -> None:
    create_with_real_minari("theirs-v0", [numbered(1), replace(numbered(2), seed=None)])
    theirs = load_dataset("theirs-v0")
    ours = create(
        "aa/x-v0",
        [numbered(3)],
        observation_space=spaces.Discrete(100),
        action_space=spaces.Discrete(9),
    )
    combined = combine_datasets([theirs, ours], "aa/z-v0")
    assert combined.episodes["total_steps"].tolist() == [2, 3, 4]
    assert combined.episodes["seed"].tolist() == [1, None, 3]
    assert minari.load_dataset("aa/z-v0").total_steps == 9


@pytest.mark.parametrize(
    ("dataset_id", "error", "message"),
    [
        ("aa/x-v0", DatasetExistsError, "already exists and it cannot be overridden"),
        ("../z-v0", InvalidDatasetIdError, "Malformed dataset ID"),
        ("aa/x-v0/z-v0", (InvalidDatasetIdError, DatasetExistsError), "aa/x-v0"),
    ],
)
def test_ids_that_cannot_be_are_refused(dataset_id, error, message) -> None:
    first = create("aa/x-v0")
    with pytest.raises(error, match=message):
        combine_datasets([first], dataset_id)
    assert_stored(load_dataset("aa/x-v0").storage, make())
    assert sorted(list_local_datasets()) == ["aa/x-v0"]


def test_a_combination_that_fails_half_way_leaves_nothing() -> None:
    first, second = create("aa/x-v0"), create("aa/y-v0")
    with h5py.File(second.storage.data_path / "main_data.hdf5", "r+") as file:
        del file["episode_2/rewards"]
    before = sorted(path.name for path in get_dataset_path().rglob("*"))
    with pytest.raises(CorruptDatasetError, match="episode 2"):
        combine_datasets([first, second], "bb/z-v0")
    with pytest.raises(UnknownFormatError, match="parchment"):
        combine_datasets([first], "bb/z-v0", data_format="parchment")
    assert sorted(path.name for path in get_dataset_path().rglob("*")) == before
    combine_datasets([first, second[:2]], "bb/z-v0")


def test_anything_but_datasets_is_refused() -> None:
    dataset = create()
    with pytest.raises(InvalidMetadataError, match="list of MinariDataset.*got EpisodeData"):
        combine_datasets(dataset, "aa/z-v0")
    with pytest.raises(InvalidMetadataError, match="got str"):
        combine_datasets(["aa/b-v0"], "aa/z-v0")
    with pytest.raises(InvalidMetadataError, match="at least one dataset"):
        validate_datasets_to_combine([])


def test_spaces_without_a_comparison_are_compared_by_what_they_are(monkeypatch) -> None:
    first, second = create("aa/x-v0"), create("aa/y-v0")
    monkeypatch.setattr(spaces.Dict, "__eq__", lambda self, other: self is other)
    assert validate_datasets_to_combine([first, second]) is None


# --- deleting episodes


def test_episodes_are_deleted_into_a_new_version() -> None:
    buffers = make(0, 5)
    dataset = create("aa/x-v0", buffers, eval_env="CartPole-v1", requirements=["a"], **SCORES)
    dataset.storage.update_metadata({"docs_url": "https://example.org/docs"})
    new = dataset.delete_episodes([3, np.int64(0)], "aa/x-v1")
    assert isinstance(new, MinariDataset)
    assert_stored(load_dataset("aa/x-v1").storage, [buffers[1], buffers[2], buffers[4]])
    assert_stored(load_dataset("aa/x-v0").storage, buffers)
    old_metadata, metadata = dataset.storage.metadata, new.storage.metadata
    assert metadata.pop("derived_from") == {
        "dataset_id": "aa/x-v0",
        "total_episodes": 5,
        "deleted_episodes": [0, 3],
    }
    changed = {"dataset_id", "total_episodes", "total_steps", "dataset_size"}
    assert {k: v for k, v in metadata.items() if k not in changed} == {
        k: v for k, v in old_metadata.items() if k not in changed
    }
    assert minari.load_dataset("aa/x-v1").total_episodes == 3


def test_a_view_says_which_episodes_to_delete_and_the_record_goes_back_to_the_first() -> None:
    dataset = create("aa/x-v0", make(0, 4))
    second = dataset.delete_episodes(dataset[[1]], "aa/x-v1")
    third = second.delete_episodes(second.where("id == 0"), "aa/x-v2")
    assert third.storage.metadata["derived_from"] == {
        "dataset_id": "aa/x-v1",
        "total_episodes": 3,
        "deleted_episodes": [0],
        "derived_from": {"dataset_id": "aa/x-v0", "total_episodes": 4, "deleted_episodes": [1]},
    }
    assert_stored(third.storage, make(0, 4)[2:])


def test_of_a_view_only_its_episodes_are_kept() -> None:
    dataset = create("aa/x-v0", make(0, 4))
    new = dataset[[3, 2, 0]].delete_episodes([2], "aa/x-v1")
    assert_stored(new.storage, [make(0, 4)[3], make(0, 4)[0]])
    everything = dataset.delete_episodes(dataset, "aa/x-v2")
    assert_stored(everything.storage, [])
    nothing = dataset.delete_episodes([], "aa/x-v3")
    assert_stored(nothing.storage, make(0, 4))


@pytest.mark.parametrize("env_spec", ['{"id": "Broken"}', None])
def test_a_spec_that_cannot_be_read_is_copied_as_it_is(env_spec) -> None:
    dataset = create("aa/x-v0")
    path = Path(dataset.storage.data_path) / "metadata.json"
    metadata = json.loads(path.read_text()) | {"env_spec": env_spec}
    path.write_text(json.dumps(metadata))
    new = load_dataset("aa/x-v0").delete_episodes([0], "aa/x-v1")
    assert new.storage.metadata.get("env_spec") == env_spec


@pytest.mark.parametrize(
    ("episodes", "error", "message"),
    [
        ([1, 7], ConfigError, r"no episodes with the ids \[7\]"),
        ([-1], ConfigError, r"no episodes with the ids \[-1\]"),
        ([2], ConfigError, r"no episodes with the ids \[2\]"),
        ([0.5], ConfigError, "must be whole numbers"),
        ([True, False], ConfigError, "must be whole numbers"),
    ],
    ids=str,
)
def test_ids_that_are_not_in_the_view_are_not_deleted(episodes, error, message) -> None:
    dataset = create("aa/x-v0")[:2]
    with pytest.raises(error, match=message):
        dataset.delete_episodes(episodes, "aa/x-v1")
    with pytest.raises(ConfigError, match="a view of aa/y-v0, not of aa/x-v0"):
        dataset.delete_episodes(create("aa/y-v0"), "aa/x-v1")
    with pytest.raises(DatasetExistsError):
        dataset.delete_episodes([0], "aa/y-v0")
    assert sorted(list_local_datasets()) == ["aa/x-v0", "aa/y-v0"]


def test_a_limit_of_steps_that_is_no_number_is_refused() -> None:
    datasets = [create(f"aa/{name}-v0", env=gym.spec("CartPole-v1")) for name in "xy"]
    path = datasets[0].storage.data_path / "metadata.json"
    metadata = json.loads(path.read_text())
    spec = json.loads(metadata["env_spec"]) | {"max_episode_steps": "x"}
    path.write_text(json.dumps(metadata | {"env_spec": json.dumps(spec)}))
    with pytest.raises(CorruptDatasetError, match="max_episode_steps is 'x'"):
        combine_datasets([load_dataset("aa/x-v0"), datasets[1]], "aa/z-v0")
