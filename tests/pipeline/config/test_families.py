"""A family trains once; its datasets are of that training, and mixtures are of its datasets."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import minari
import numpy as np
import pytest
from typer.testing import CliRunner

import minari_pipe
from minari_pipe.cli import app
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.families import check_family, family_params
from minari_pipe.pipeline.config.hydra_compose import recompose
from minari_pipe.pipeline.config.policy_refs import divided
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.pipeline.stages.chosen_checkpoint import nearest, read_scores
from minari_pipe.policies.checkpoints import checkpoint_folder, checkpoint_steps
from minari_pipe.storage.base import MinariStorage
from tests.conftest import FULL
from tests.support.interruption import Place, Run, complete, end_all
from tests.support.repositories import Workspace, dvc_workspace, git_workspace, hashes
from tests.support.workspaces import make_workspace, stages_that_ran

pytest.importorskip("torch")


FAMILY = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
env: {id: CartPole-v1}
policy:
  algorithm: ppo
  policy_kwargs: {net_arch: [8]}
  train:
    total_timesteps: 1500
    n_envs: 2
    hyperparameters: {n_steps: 64, batch_size: 64, n_epochs: 4, learning_rate: 0.003}
family: {n_checkpoints: 5, checkpoint_scores: {n_episodes: 3}}
ref_scores: {n_episodes: 4, expert: "${policy}"}
"""

DATASET = """\
# @package _global_
defaults: [{{/family: pole}}, _self_]
family: {{kind: {kind}}}
dataset: {{id: pole/{kind}-v0, description: a tiny dataset for tests}}
author: {{name: Ada, email: ada@example.org}}
collect: {{{collect}}}
"""

MIXED = """\
# @package _global_
defaults: [{/policy: mixture}, _self_]
policy: {parents: {medium: 0.75, random: 0.25}}
dataset: {id: pole/mixed-v0, description: a tiny mixture for tests}
author: {name: Ada, email: ada@example.org}
"""

AMOUNT = "n_episodes: 6, block_episodes: 4"

DATASETS = {
    "medium": DATASET.format(kind="medium", collect=AMOUNT),
    "random": DATASET.format(kind="random", collect=AMOUNT),
    "replay": DATASET.format(kind="medium_replay", collect="block_episodes: 16"),
    "mixed": MIXED,
}


IDS = {
    "medium": "pole/medium-v0",
    "random": "pole/random-v0",
    "replay": "pole/medium_replay-v0",
    "mixed": "pole/mixed-v0",
}


@pytest.fixture(scope="module")
def transcripts() -> dict[str, str]:
    """What each run printed."""
    return {}


@pytest.fixture(scope="module")
def made(tmp_path_factory, transcripts) -> Workspace:
    """The datasets of a family; the first two were started at once."""
    workspace = new_family(git_workspace(tmp_path_factory.mktemp("families"), **DATASETS))
    names = ("medium", "random")
    with ThreadPoolExecutor() as pool:
        printed = pool.map(lambda name: run(workspace, f"+dataset={name}"), names)
        transcripts.update(zip(names, printed, strict=True))
    for name in ("replay", "mixed"):
        transcripts[name] = run(workspace, f"+dataset={name}")
    transcripts["repro"] = workspace.dvc("repro")
    workspace.commit("a family")
    return workspace


def new_family(workspace: Workspace) -> Workspace:
    family = workspace.root / "conf" / "family" / "pole.yaml"
    family.parent.mkdir()
    family.write_text(FAMILY)
    return workspace


def run(workspace: Workspace, *arguments: str) -> str:
    """What a run that must succeed printed."""
    return workspace.run(sys.executable, "-m", "minari_pipe", *arguments)


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Iterator[Workspace]:
    """A copy to change."""
    return made.copy(tmp_path / "copy")


def ran(transcript: str, pipeline: str) -> list[str]:
    """The stages of a pipeline that ran."""
    lines = [ln for ln in transcript.splitlines() if ln.startswith(f"{pipeline}: ") and "->" in ln]
    return stages_that_ran(lines[0].replace("-> pipelines/", "-> datasets/"))


def storage(workspace: Workspace, kind: str) -> MinariStorage:
    return MinariStorage.read(workspace.root / "datasets" / "pole" / f"{kind}-v0" / "data")


def provenance(workspace: Workspace, kind: str) -> dict:
    return workspace.json(f"datasets/pole/{kind}-v0/data/metadata.json")["minari_pipe"]


FAMILY_STAGES = ["train", "ref_scores", "checkpoint_scores"]


def test_the_family_trains_and_measures_once_for_all_its_datasets(made, transcripts):
    """Also where two of them begin at once."""
    by_run = [sorted(ran(transcripts[name], "pole")) for name in ("medium", "random")]
    assert sorted(by_run) == [[], sorted(FAMILY_STAGES)]
    assert ran(transcripts["replay"], "pole") == []
    stages = ["collect", "create", "validate", "card", "publish"]
    assert ran(transcripts["medium"], "medium") == ["choose", *stages]
    assert ran(transcripts["random"], "random") == stages
    assert ran(transcripts["replay"], "replay") == ["choose", *stages]
    assert ran(transcripts["mixed"], "mixed") == stages
    for parent in ("medium", "random"):
        assert ran(transcripts["mixed"], parent) == []
    scores = {
        tuple(workspace_metadata(made, kind)[f"ref_{end}_score"] for end in ("min", "max"))
        for kind in ("medium", "random", "medium_replay", "mixed")
    }
    assert len(scores) == 1


def workspace_metadata(workspace: Workspace, kind: str) -> dict:
    return workspace.json(f"datasets/pole/{kind}-v0/data/metadata.json")


def test_dvc_finds_nothing_to_do_and_git_everything_committed(made, transcripts):
    running = [ln for ln in transcripts["repro"].splitlines() if ln.startswith("Running stage")]
    assert running == ["Running stage 'config':", "Running stage 'catalog':"]
    assert "up to date" in made.dvc("status")
    assert made.git("status", "--porcelain") == ""


def test_a_fresh_clone_pulls_a_mixture_its_parents_and_their_family(workspace, tmp_path):
    workspace.dvc("remote", "add", "--default", "store", str(tmp_path / "remote"))
    workspace.dvc("push", "--quiet")
    workspace.commit("remote")
    clone = workspace.clone(tmp_path / "clone")
    transcript = run(clone, "+dataset=mixed", "--pull")
    assert "ran " not in transcript
    assert "pole: pulled 3 outputs from the DVC remote 'store'\n" in transcript
    made, pulled = (w.root / "datasets" / "pole" / "mixed-v0" for w in (workspace, clone))
    assert hashes(pulled) == hashes(made)
    assert clone.git("status", "--porcelain") == ""


def test_of_a_mixture_and_a_family_only_what_was_asked_for_is_uploaded(workspace, tmp_path):
    for name in ("medium", "random", "mixed"):
        config = f"conf/dataset/{name}.yaml"
        workspace.replace(config, "author:", f"publish: {{targets: [{tmp_path}/out]}}\nauthor:")
    trusted = {"MINARI_PIPE_TRUSTED_ADDRESSES": str(tmp_path)}
    command = (sys.executable, "-m", "minari_pipe", "+dataset=mixed", "--draft")
    transcript = workspace.run(*command, **trusted)
    assert f"mixed: uploaded to {tmp_path}/out\n" in transcript
    assert [p.parts[-3] for p in (tmp_path / "out").rglob("metadata.json")] == ["mixed-v0"]


def test_medium_is_the_checkpoint_nearest_to_a_third(made, transcripts):
    scores = made.json("pipelines/pole/ref_scores.json")
    low, high = scores["ref_min_score"], scores["ref_max_score"]
    found = read_scores(made.root / "pipelines" / "pole" / "checkpoint_scores.json")
    trained = made.root / "pipelines" / "pole" / "train"
    assert [score.step for score in found] == checkpoint_steps(trained)
    best = nearest(found, 1 / 3, ref_min=low, ref_max=high)
    assert provenance(made, "medium")["family"] == {
        "name": "pole",
        "kind": "medium",
        "fraction": 1 / 3,
        "checkpoint_step": best.step,
        "checkpoint_mean_return": best.mean_return,
    }
    told = [line for line in transcripts["medium"].splitlines() if line.startswith("choose: ")]
    assert len(told) == 1
    assert f"step {best.step}: mean return {best.mean_return:.2f}" in told[0]


def test_medium_acts_as_its_checkpoint_does(made):
    from minari_pipe.policies.sb3 import SB3Policy

    step = provenance(made, "medium")["family"]["checkpoint_step"]
    path = checkpoint_folder(made.root / "pipelines" / "pole" / "train", step) / "policy.zip"
    assert provenance(made, "medium")["files"] == {
        "train/policy.zip": hashes(path.parent)["policy.zip"]
    }
    import gymnasium as gym

    policy = SB3Policy(algorithm="ppo", policy_kwargs={"net_arch": [8]}, checkpoint=path)
    policy.bind([gym.make("CartPole-v1")] * 8)
    (episode,) = storage(made, "medium").read_episodes([0])
    for observation, action in zip(episode.observations, episode.actions, strict=False):
        assert policy.act([observation], [0]) == [action]


def test_random_samples_the_action_space_evenly(made):
    family = provenance(made, "random")["family"]
    assert family == {"name": "pole", "kind": "random"}
    assert provenance(made, "random")["files"] == {}
    actions = np.concatenate([e.actions for e in storage(made, "random").read_episodes(range(6))])
    assert 0.3 < actions.mean() < 0.7


def test_medium_replay_is_every_episode_that_had_ended_at_the_checkpoint(made):
    index = made.json("pipelines/pole/train/episodes/index.json")
    step = provenance(made, "medium_replay")["family"]["checkpoint_step"]
    pairs = zip(index["episodes"]["n_steps"], index["episodes"]["ended_at"], strict=True)
    ended = [n_steps for n_steps, ended_at in pairs if ended_at <= step]
    replay = storage(made, "medium_replay")
    lengths = [e["total_steps"] for e in replay.get_episode_metadata(range(replay.total_episodes))]
    assert lengths == ended
    assert 0 < len(ended) < len(index["episodes"]["n_steps"])
    seeds = [e["seed"] for e in replay.get_episode_metadata(range(replay.total_episodes))]
    assert len(set(seeds)) == len(seeds)
    validated = made.json("pipelines/replay/validation.json")
    assert validated["replay"]["replayed"] == len(seeds)
    assert validated["findings"] == []


def test_full_replay_is_every_episode_of_the_training(workspace):
    text = DATASET.format(kind="full_replay", collect="block_episodes: 16")
    (workspace.root / "conf/dataset/full.yaml").write_text(text)
    told = run(workspace, "+dataset=full", "card.film=false")
    assert ran(told, "full") == ["collect", "create", "validate", "card", "publish"]
    index = workspace.json("pipelines/pole/train/episodes/index.json")
    full = storage(workspace, "full_replay")
    lengths = [e["total_steps"] for e in full.get_episode_metadata(range(full.total_episodes))]
    assert lengths == index["episodes"]["n_steps"]
    family = provenance(workspace, "full_replay")["family"]
    assert family == {"name": "pole", "kind": "full_replay"}
    validated = workspace.json("pipelines/full/validation.json")
    assert (validated["replay"]["replayed"], validated["findings"]) == (len(lengths), [])


def test_simple_is_the_checkpoint_that_was_saved_after_its_share_of_the_steps(workspace):
    """Saving it is another training, which need not keep its episodes."""
    more = "family: {at: {simple: 0.3}, record_episodes: false, "
    workspace.replace("conf/family/pole.yaml", "family: {", more)
    text = DATASET.format(kind="simple", collect="n_episodes: 2")
    (workspace.root / "conf/dataset/simple.yaml").write_text(text)
    told = run(workspace, "+dataset=simple", "card.film=false")
    assert set(ran(told, "pole")) >= {"train", "checkpoint_scores"}
    trained = workspace.root / "pipelines" / "pole" / "train"
    assert sorted(path.name for path in trained.iterdir()) == ["checkpoints", "policy.zip"]
    family = provenance(workspace, "simple")["family"]
    assert (family["kind"], family["share"], family["checkpoint_step"]) == ("simple", 0.3, 512)
    policy = hashes(checkpoint_folder(trained, 512))["policy.zip"]
    assert provenance(workspace, "simple")["files"] == {"train/policy.zip": policy}
    workspace.replace("conf/family/pole.yaml", more, "family: {")
    told = "\n".join(workspace.dry_run("+dataset=medium"))
    assert "train would run: family.at is no longer used, family.record_episodes is no" in told


def test_the_checkpoints_go_out_beside_the_data_and_real_minari_does_not_mind(made, monkeypatch):
    trained = made.root / "pipelines" / "pole" / "train"
    step = provenance(made, "medium")["family"]["checkpoint_step"]
    collected = checkpoint_folder(trained, step) / "policy.zip"
    expected = {
        "medium": {"policy.zip": collected, "expert.zip": trained / "policy.zip"},
        "random": {"expert.zip": trained / "policy.zip"},
        "replay": {"expert.zip": trained / "policy.zip"},
        "mixed": {},
    }
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made.minari_root))
    for name, files in expected.items():
        dataset_id = IDS[name]
        folder = made.minari_root / dataset_id
        found = {path.name: path.read_bytes() for path in folder.glob("policies/*")}
        assert found == {name: path.read_bytes() for name, path in files.items()}
        listed = made.json(f"datasets/{dataset_id}/manifest.json")["policies"]
        assert set(files) == set(listed)
        assert minari.load_dataset(dataset_id).total_episodes
        assert minari_pipe.load_dataset(dataset_id, verify=True).total_episodes
    assert set(minari.list_local_datasets()) == set(IDS.values())
    assert minari_pipe.list_local_namespaces() == ["pole"]


def test_show_names_the_parents_of_a_mixture_and_the_checkpoints_of_a_dataset(made, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made.minari_root))
    taken = {p["id"]: p["episodes"] for p in provenance(made, "mixed")["parents"]}
    told = ", ".join(f"{parent} ({n} episodes)" for parent, n in taken.items())
    found = " ".join(CliRunner().invoke(app, ["show", IDS["mixed"]]).stdout.split())
    assert f"Mixed from {told}" in found
    assert "Policies" not in found
    found = " ".join(CliRunner().invoke(app, ["show", IDS["medium"]]).stdout.split())
    assert "Policies policies/expert.zip, policies/policy.zip" in found


@pytest.mark.parametrize("name", ["medium", "mixed"])
def test_a_dataset_travels_with_its_checkpoints_and_without_its_parents(
    name, made, tmp_path, monkeypatch
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made.minari_root))
    minari_pipe.publish_dataset(IDS[name], str(tmp_path / "remote"))
    monkeypatch.setenv("MINARI_REMOTE", str(tmp_path / "remote"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    minari_pipe.download_dataset(IDS[name])
    assert list(minari_pipe.list_local_datasets()) == [IDS[name]]
    published = hashes(made.root / "datasets" / IDS[name])
    assert hashes(tmp_path / "elsewhere" / IDS[name]) == published


def test_a_checkpoint_that_was_changed_is_named(workspace, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(workspace.minari_root))
    policy = workspace.minari_root / "pole" / "medium-v0" / "policies" / "policy.zip"
    policy.write_bytes(policy.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptDatasetError, match="policies/policy.zip has different content"):
        minari_pipe.load_dataset("pole/medium-v0", verify=True)
    policy.rename(policy.with_name("other.zip"))
    with pytest.raises(CorruptDatasetError, match="policy.zip is missing; policies/other.zip is n"):
        minari_pipe.load_dataset("pole/medium-v0", verify=True)


def test_a_mixture_has_the_first_episodes_of_its_parents_by_share_of_the_steps(made):
    parents = provenance(made, "mixed")["parents"]
    assert [p["id"] for p in parents] == ["pole/medium-v0", "pole/random-v0"]
    assert [p["share"] for p in parents] == [0.75, 0.25]
    # Real Minari would upload and download all that it names.
    assert "combined_datasets" not in workspace_metadata(made, "mixed")
    mixed = storage(made, "mixed")
    buffers = mixed.get_buffers()
    most = min(storage(made, k).total_steps / s for k, s in (("medium", 0.75), ("random", 0.25)))
    for parent, kind in zip(parents, ("medium", "random"), strict=True):
        content = made.json(f"datasets/pole/{kind}-v0/manifest.json")["content_sha256"]
        assert parent["content_sha256"] == content
        own = storage(made, kind)
        steps = 0
        for expected in own.get_buffers(range(parent["episodes"])):
            found = next(buffers)
            assert (found.seed, found.options) == (expected.seed, expected.options)
            for name in ("observations", "actions", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            steps += len(expected)
            last = len(expected)
        assert parent["steps"] == steps
        assert steps >= parent["share"] * most - 1e-9 > steps - last
    assert next(buffers, None) is None


def test_a_mixture_may_take_the_episodes_of_a_parent_again(workspace):
    n_steps = 3 * storage(workspace, "random").total_steps
    words = ("policy.repeat=true", f"collect.n_steps={n_steps}")
    alone = ("~policy.parents.medium", "policy.parents.random=1.0")
    told = run(workspace, "+dataset=mixed", *alone, *words)
    assert "episodes (its 6, taken again), 100.0% of the steps" in told
    (parent,) = provenance(workspace, "mixed")["parents"]
    assert (parent["episodes"], parent["distinct_episodes"], parent["steps"]) == (18, 6, n_steps)
    once = list(storage(workspace, "random").get_buffers())
    for expected, found in zip(3 * once, storage(workspace, "mixed").get_buffers(), strict=True):
        assert found.seed == expected.seed
        np.testing.assert_array_equal(found.observations, expected.observations)
    found = workspace.json("pipelines/mixed/validation.json")
    assert {warning["id"] for warning in found["findings"]} == {"duplicate-episodes"}


def test_real_minari_loads_them_all(made, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made.minari_root))
    for kind in ("medium", "random", "medium_replay", "mixed"):
        theirs = minari.load_dataset(f"pole/{kind}-v0")
        ours = minari_pipe.load_dataset(f"pole/{kind}-v0")
        assert theirs.total_episodes == ours.total_episodes
        assert theirs.total_steps == ours.total_steps
        for a, b in zip(theirs.iterate_episodes(), ours.iterate_episodes(), strict=True):
            np.testing.assert_array_equal(a.observations, b.observations)
            np.testing.assert_array_equal(a.actions, b.actions)
        assert minari.get_normalized_score(theirs, np.zeros(1)).shape == (1,)


KILLS = {
    ("driver", "shell", "stage"): {  # in the training
        "target": "minari_pipe.policies.checkpoint:write_checkpoint",
        "call": 2,
    },
    ("stage",): {  # in the recording
        "target": "minari_pipe.storage.hdf5.file:EpisodeFile.append",
        "call": 9,
    },
}


def test_a_family_that_is_killed_ends_like_an_undisturbed_one(made, tmp_path):
    workspace = new_family(dvc_workspace(tmp_path / "place", replay=DATASETS["replay"]))
    place = Place(tmp_path / "place")
    try:
        for victims, barrier in list(KILLS.items())[: None if FULL else 1]:
            run = Run(place, "+dataset=replay", barrier={"role": "train_family", **barrier})
            run.await_barrier()
            killed = run.kill(*victims)
            _, _, err = run.end()
            assert killed, err
            if "driver" not in killed:
                assert "error: stage train of pole was killed by SIGKILL" in err
            place.assert_nothing_runs()
        complete(place, "+dataset=replay")
        place.assert_nothing_runs()
    finally:
        end_all()
    for folder in ("pipelines/pole", "pipelines/replay", "datasets/pole/medium_replay-v0"):
        assert hashes(workspace.root / folder) == hashes(made.root / folder), folder


@pytest.mark.parametrize("name", ["../../mine/pole", "a/b", "-x"])
def test_the_name_of_a_family_is_that_of_a_pipeline(name):
    with pytest.raises(ConfigError, match=f"pipeline name '{name}' is not valid.*conf/family"):
        assert schema.Config(family=schema.Family(name)).family_name


def test_a_key_of_the_family_on_the_command_line_is_that_of_all_its_datasets(workspace):
    """It is recorded with the family, so that `dvc repro` finds its datasets in agreement."""
    before = workspace.json("pipelines/pole/ref_scores.json")
    chosen = workspace.json("pipelines/medium/chosen.json")
    first = run(workspace, "+dataset=random", "ref_scores.seed=77", "collect.n_episodes=2")
    assert ran(first, "pole") == ["ref_scores"]
    assert ran(first, "random") == ["collect", "create", "validate", "card", "publish"]
    lines = {
        name: (workspace.root / "pipelines" / name / "params.yaml").read_text()
        for name in ("pole", "random")
    }
    assert ("- ref_scores.seed=77" in lines["pole"], "- ref_scores.seed" in lines["random"]) == (
        True,
        False,
    )
    assert "- collect.n_episodes=2" in lines["random"]
    assert "- collect.n_episodes=2" not in lines["pole"]
    workspace.run(sys.executable, "-m", "minari_pipe.pipeline.run.sync")
    for name in ("medium", "replay", "mixed"):
        assert "  seed: 77\n" in (workspace.root / f"pipelines/{name}/params.yaml").read_text()
    second = run(workspace, "+dataset=medium", "ref_scores.seed=77")
    assert ran(second, "pole") == []
    # Other scores that lead to the same checkpoint let nothing be collected again.
    if workspace.json("pipelines/medium/chosen.json") == chosen:
        assert ran(second, "medium") == ["choose", "validate", "card", "publish"]
    if FULL:
        # Without the key the family goes back to what its file says, which DVC still has.
        assert ran(run(workspace, "+dataset=medium"), "pole") == []
        assert workspace.json("pipelines/pole/ref_scores.json") == before


def test_the_noise_of_a_policy_is_each_dataset_s_own(tmp_path, monkeypatch):
    """The checkpoints are measured without."""
    dqn = FAMILY.replace("ppo", "dqn").replace("n_steps: 64, batch_size: 64, n_epochs: 4, ", "")
    noisy = DATASET.format(kind="medium", collect=AMOUNT)
    noisy += "policy: {noise: {kind: epsilon, scale: 0.2}}\n"
    folder = make_workspace(tmp_path, noisy=noisy, random=DATASETS["random"])
    (folder / "conf" / "family").mkdir()
    (folder / "conf" / "family" / "pole.yaml").write_text(dqn)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    params = {}
    for name in ("noisy", "random"):
        params[name], _ = prepare(name, recompose([f"+dataset={name}"]).config, None, folder)
        check_family(name, params[name], [], folder)
    shared = family_params(params["noisy"])
    assert shared == family_params(params["random"])
    assert (shared.policy.noise, params["noisy"].policy.noise.scale) == (None, 0.2)
    measured = ["ref_scores.deterministic=false"]
    params["sampled"], _ = prepare(
        "noisy", recompose(["+dataset=noisy", *measured]).config, None, folder
    )
    check_family("noisy", params["sampled"], measured, folder)
    own = ["policy.deterministic=false", "policy.noise={}", "policy.noise.scale=0.2"]
    assert divided(own) == (own, [])


def test_a_dry_run_follows_a_family_into_its_mixture(workspace):
    told = workspace.dry_run("+dataset=mixed")
    assert [line.split(": ", 1)[1] for line in told if "up to date" not in line] == [
        f"is installed in {workspace.minari_root}/pole/{name}-v0"
        for name in ("medium", "random", "mixed")
    ]
    workspace.replace("conf/family/pole.yaml", "learning_rate: 0.003", "learning_rate: 0.002")
    told = workspace.dry_run("-m", "+dataset=medium,mixed")
    rate = "policy.train.hyperparameters.learning_rate 0.003 -> 0.002"
    assert f"pole: train would run: {rate}" in told
    assert "medium: choose may run: checkpoint_scores of pole writes " in "\n".join(told)
    assert (
        "mixed: collect may run: publish of medium writes datasets/pole/medium-v0, publish of "
        "random writes datasets/pole/random-v0" in told
    )


def test_a_sweep_over_datasets_of_a_family_composes_the_family_for_each(workspace):
    (workspace.root / "pipelines" / "pole" / "params.yaml").unlink()
    told = run(workspace, "-m", "+dataset=medium,random")
    for name in ("medium", "random"):
        assert f"{name}: up to date -> datasets/pole/{name}-v0" in told


def test_an_experiment_sets_a_key_of_the_family(workspace):
    key = "pipelines/pole/params.yaml:family.checkpoint_scores.n_episodes=2"
    # Only what it concerns directly, after `config`, which might set the file's value again.
    workspace.dvc("exp", "run", "--quiet", "-S", key, "config", "pipelines/pole/dvc.yaml")
    scores = workspace.json("pipelines/pole/checkpoint_scores.json")
    assert {checkpoint["n"] for checkpoint in scores["checkpoints"]} == {2}


def test_a_released_dataset_of_a_family_is_held_to_it_and_a_mixture_to_its_parents(workspace):
    for kind in ("medium", "mixed"):
        workspace.run("minari-pipe", "release", f"pole/{kind}-v0", "--no-push")
        workspace.commit("a release")
    assert workspace.json("releases/pole/mixed-v0.json")["pipeline"] == "mixed"
    shutil.rmtree(workspace.root / "releases")
    for file, old, new, released in (
        ("dataset/random", "collect: {", "collect: {seed: 7, ", "mixed"),
        ("family/pole", "n_checkpoints: 5", "n_checkpoints: 4", "medium"),
    ):
        workspace.replace(f"conf/{file}.yaml", old, new)
        workspace.commit("another config")
        done = workspace.call("minari-pipe", "release", IDS[released], "--no-push")
        assert done.returncode == 1
        made = file.partition("/")[2] if released == "mixed" else released
        assert f"pipelines/{made}/params.yaml does not match conf/" in done.stdout
        assert f"run python -m minari_pipe +dataset={released} and commit" in done.stdout


REPRODUCED = {
    "mixed": ((), "from its published checkpoint", []),
    "mixed from scratch": (("--from-scratch",), "is reproduced: ", ["train: ppo, 1500 steps"]),
    "random": ((), "from its published checkpoint", []),
    "replay": ((), "is reproduced: ", ["training pole again: the dataset contains episodes of"]),
}


@pytest.mark.parametrize("row", REPRODUCED if FULL else ["random"])
def test_a_released_dataset_of_a_family_is_made_again_with_all_that_it_needs(row, workspace):
    name = row.split()[0]
    arguments, how, told = REPRODUCED[row]
    workspace.run("minari-pipe", "release", IDS[name], "--no-push")
    workspace.commit("a release")
    output = workspace.run("minari-pipe", "reproduce", IDS[name], *arguments)
    assert how in output.splitlines()[-1]
    assert all(text in output for text in told)
    parents = ("medium", "random") if name == "mixed" else ()
    for made in ("pole", *parents, name):
        assert f"{made}: ran " in output


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL makes a mixture again for each change")
@pytest.mark.parametrize(
    ("file", "old", "new", "stage"),
    [
        ("dataset/random", "collect: {", "collect: {seed: 7, ", "collect of random; collect.seed"),
        ("family/pole", "{n_episodes: 4,", "{seed: 7, n_episodes: 4,", "ref_scores of pole; ref_"),
        ("dataset/mixed", "0.75, random: 0.25", "0.5, random: 0.5", "collect; policy.parents"),
    ],
)
def test_a_change_of_what_a_mixture_is_made_of_is_named(file, old, new, stage, workspace):
    workspace.run("minari-pipe", "release", IDS["mixed"], "--no-push")
    workspace.replace(f"conf/{file}.yaml", old, new)
    workspace.commit("another config")
    done = workspace.call("minari-pipe", "reproduce", IDS["mixed"], "--rev", "HEAD")
    assert done.returncode == 1
    assert f"the first stage that differs is {stage}" in done.stdout.splitlines()[-1]


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL runs the shipped families whole")
@pytest.mark.parametrize(
    ("family", "least", "medium"),
    [
        ("cartpole", 495, (100, 300)),
        ("inverted_pendulum", 990, (100, 700)),
        ("pendulum", -220, (-1000, -600)),
    ],
)
def test_the_shipped_families_have_experts_and_a_medium_in_the_middle(
    family, least, medium, tmp_path
):
    workspace = git_workspace(tmp_path / family)
    for kind in ("expert", "medium", "random", "medium_replay", "medium_expert"):
        run(workspace, f"+dataset={family}_{kind}")
    catalog = {
        path.stem: json.loads(path.read_text())
        for path in (workspace.root / "catalog").rglob("*.json")
    }
    assert len(catalog) == 5
    assert all(entry["ref_max_score"] >= least for entry in catalog.values())
    chosen = workspace.json(f"pipelines/{family}_medium/chosen.json")
    assert medium[0] < chosen["checkpoint_mean_return"] < medium[1]


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL trains for half an hour")
@pytest.mark.parametrize(
    ("recipe", "least", "overrides"),
    [
        ("classic_control_acrobot-expert", -110, ()),
        ("classic_control_mountaincar-expert", -140, ()),
        ("classic_control_mountaincar-continuous-expert", 80, ()),
        ("mujoco_invertedpendulum-expert", 950, ("policy.train.total_timesteps=12_000",)),
        ("mujoco_inverteddoublependulum-expert", 9000, ("policy.train.total_timesteps=20_000",)),
        ("mujoco_hopper-simple", 0, ("policy.train.total_timesteps=1_000",)),
    ],
)
def test_the_shipped_trainings_have_experts(recipe, least, overrides, tmp_path):
    workspace = git_workspace(tmp_path / "work")
    small = ("collect.n_steps=10_000", "collect.n_episodes=null", "card.film=false")
    run(workspace, f"+dataset={recipe}", *overrides, *small)
    (catalog,) = (workspace.root / "catalog").rglob("*.json")
    assert json.loads(catalog.read_text())["ref_max_score"] >= least
