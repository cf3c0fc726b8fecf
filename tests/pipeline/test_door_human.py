"""The main job: the real human demonstrations of the Adroit door task, read by real Minari."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest

import minari_pipe
from minari_pipe.checks import Options, Subject, run
from minari_pipe.policies.demonstration_formats import plain_pickle
from minari_pipe.testing.remotes import another_root, tree
from tests.conftest import CHECKOUT, FULL, home_variables
from tests.support.demonstration_files import write_d4rl
from tests.support.servers.running import entered
from tests.support.servers.s3 import s3_server
from tests.support.workspaces import make_workspace, run_ok, stages_that_ran

N_EPISODES = 100 if FULL else 5
"""Of each reference score."""

EXPECTED_STAGES = ["collect", "create", "ref_scores", "validate", "card", "publish"]


LESS = (f"ref_scores.n_episodes={N_EPISODES}", "card.film=false")
RUN = ("+dataset=door_human", *([] if FULL else LESS))
"""`make test-all` runs the recipe as it is."""


def place(folder: Path, demonstrations: Path) -> tuple[Path, dict[str, str]]:
    """A clean workspace, an empty home, and a machine without internet."""
    variables = home_variables(folder / "home")
    variables["MINARI_PIPE_MIRROR"] = str(demonstrations)
    variables["https_proxy"] = "http://127.0.0.1:9"
    return make_workspace(folder / "work"), variables


@pytest.fixture(scope="module")
def door(tmp_path_factory, demonstrations_dir) -> tuple[Path, dict[str, str]]:
    """The workspace in which ``+dataset=door_human`` ran once."""
    workspace, variables = place(tmp_path_factory.mktemp("door"), demonstrations_dir)
    out = run_ok(workspace, *RUN, **variables)
    assert stages_that_ran(out) == EXPECTED_STAGES
    return workspace, variables


@pytest.fixture
def dataset(door, monkeypatch) -> minari.MinariDataset:
    monkeypatch.setenv("MINARI_DATASETS_PATH", door[1]["MINARI_DATASETS_PATH"])
    return minari.load_dataset("door/human-v0")


def test_minari_loads_what_the_demonstrators_did(dataset):
    assert dataset.total_episodes == 25
    assert dataset.total_steps == 6729
    returns = [episode.rewards.sum() for episode in dataset]
    assert np.mean(returns) == pytest.approx(803, abs=1)
    assert sum(bool(e.infos["success"].any()) for e in dataset) == 8
    for episode in dataset:
        assert episode.truncations[-1] and not episode.truncations[:-1].any()
        assert not episode.terminations.any()
        assert episode.actions.dtype == np.float32
        assert np.abs(episode.actions).max() <= 1


def test_the_reference_scores_are_those_of_random_and_expert(dataset):
    metadata = dataset.storage.metadata
    assert metadata["ref_min_score"] == pytest.approx(-45.8, abs=0.5)
    assert metadata["ref_max_score"] == pytest.approx(3015, abs=15 if FULL else 30)
    assert metadata["num_episodes_average_score"] == N_EPISODES
    assert minari.get_normalized_score(dataset, np.array([803.0])) == pytest.approx(0.277, abs=0.01)


def test_infos_and_seeds_are_readable(dataset):
    episode = dataset[17]
    state = episode.infos["state"]
    assert {key: column.shape[0] for key, column in state.items()} == dict.fromkeys(
        ("qpos", "qvel", "door_body_pos"), len(episode) + 1
    )
    metadata = list(dataset.storage.get_episode_metadata(range(25)))
    assert len({m["seed"] for m in metadata}) == 25
    options = metadata[17]["options"]["initial_state_dict"]
    np.testing.assert_array_equal(options["door_body_pos"], state["door_body_pos"][0])


def test_the_environments_are_recovered_with_their_horizons(dataset):
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)
    assert dataset.recover_environment().spec.max_episode_steps == 300
    assert dataset.recover_environment(eval_env=True).spec.max_episode_steps == 200


def test_it_is_published_and_fetched_byte_for_byte(door, tmp_path, monkeypatch):
    workspace, variables = door
    with s3_server(tmp_path / "s3", "bucket") as s3:
        target = "publish.targets=[s3://bucket/datasets]"
        out = run_ok(workspace, *RUN, "--draft", target, **variables, **s3)
        assert stages_that_ran(out) == []
        assert "door_human: uploaded to s3://bucket/datasets\n" in out
        with entered(s3):
            root = another_root(monkeypatch, tmp_path / "root")
            monkeypatch.setenv("MINARI_REMOTE", "s3://bucket/datasets")
            assert list(minari_pipe.list_remote_datasets()) == ["door/human-v0"]
            minari_pipe.download_dataset("door/human-v0")
    assert tree(root / "door/human-v0") == tree(workspace / "datasets/door/human-v0")


def test_minari_pipe_loads_the_same(door, dataset, monkeypatch):
    own = minari_pipe.load_dataset("door/human-v0")
    for theirs, ours in zip(dataset, own, strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations, strict=True)
        np.testing.assert_array_equal(theirs.actions, ours.actions, strict=True)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards, strict=True)
    assert own.recover_environment().spec.max_episode_steps == 300


def test_clean_data_has_no_findings_and_the_gap_is_reported(door):
    found = json.loads((door[0] / "pipelines/door_human/validation.json").read_text())
    assert found["findings"] == []
    assert [a["id"] for a in found["acknowledged"]] == ["adroit-door-reward-sign"]
    assert found["replay"]["replayed"] == 25
    gaps = found["demonstrations"]
    assert gaps["recorded_mean_return"] == pytest.approx(794.1, abs=0.1)
    assert gaps["return_gap_max"] == pytest.approx(200.2, abs=0.1)
    assert gaps["observation_gap_max"] == pytest.approx(2.0, abs=0.01)


def put_state(row, value):
    def plant(file):
        file["episode_0/infos/state/qpos"][row, 3] = value

    return plant


def without_infos(file):
    del file["episode_3/infos"]


def without_total(file):
    del file["episode_3"].attrs["total_steps"]


@pytest.mark.parametrize(
    ("plant", "level", "path"),
    [
        (put_state(0, 0.5), "error", "episode 0 / infos.state.qpos"),
        (put_state(50, 0.5), "error", "episode 0 / infos.state.qpos"),
        (put_state(slice(None), np.nan), "error", "episode 0 / infos.state.qpos"),
        (without_infos, "warning", "episode 3 / infos"),
        (without_total, "error", "episode 3 / total_steps"),
    ],
    ids=["first state", "state", "no state", "no infos", "no total"],
)
def test_a_planted_fault_is_the_only_finding(door, tmp_path, plant, level, path):
    data = tmp_path / "data"
    data.mkdir()
    for source in (door[0] / "datasets/door/human-v0/data").iterdir():
        (data / source.name).write_bytes(source.read_bytes())
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        plant(file)
    # Of the first episode alone: the others are as the run left them.
    options = Options(acknowledge=("adroit-door-reward-sign",), replay_steps=300)
    findings = run(Subject.open(data, options=options)).findings
    assert [(f.level, f.path) for f in findings] == [(level, path)]


def test_the_description_names_what_a_user_must_know(dataset):
    description = dataset.storage.metadata["description"]
    assert "demonstration ended" in description
    assert "D4RL" in description


def test_a_second_run_runs_nothing(door):
    workspace, variables = door
    assert stages_that_ran(run_ok(workspace, *RUN, **variables)) == []


def test_demonstrations_in_d4rls_layout_give_the_same_content(
    door, demonstrations_dir, tmp_path_factory
):
    workspace, variables = place(tmp_path_factory.mktemp("d4rl"), demonstrations_dir / "none")
    original = plain_pickle.load(demonstrations_dir / "door-v0_demos.pickle", "demonstrations")
    flat = write_d4rl(workspace / "door.hdf5", map_arrays(original))
    scores = json.loads((door[0] / "pipelines/door_human/ref_scores.json").read_text())
    run_ok(
        workspace,
        *RUN,
        f"policy.source.path={flat}",
        "validate.replay_steps=1",  # what it finds is no part of the content
        # Part of the content; measuring them again would only repeat the first run.
        f"ref_scores.ref_min_score={scores['ref_min_score']!r}",
        f"ref_scores.ref_max_score={scores['ref_max_score']!r}",
        **variables,
    )
    a = json.loads((door[0] / "datasets/door/human-v0/manifest.json").read_text())
    b = json.loads((workspace / "datasets/door/human-v0/manifest.json").read_text())
    assert a["data"]["main_data.hdf5"] == b["data"]["main_data.hdf5"]
    assert a["content_sha256"] == b["content_sha256"]


def map_arrays(value):
    """The demonstrations as arrays, out of the stand-ins that the reader builds."""
    if isinstance(value, dict):
        return {key: map_arrays(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [map_arrays(entry) for entry in value]
    return value.build("x") if isinstance(value, plain_pickle.PickledArray) else value


def test_the_recipe_lies_in_the_checkout():
    assert (CHECKOUT / "conf" / "dataset" / "door_human.yaml").is_file()
