"""A policy that learns the actions of another dataset of the workspace, through real DVC."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import minari_pipe
from minari_pipe.pipeline.config.dvc_yaml import stage_code, stages
from minari_pipe.pipeline.config.schema import params_of
from minari_pipe.pipeline.run.command import run
from minari_pipe.policies.sb3 import SB3Policy
from minari_pipe.storage.base import MinariStorage
from tests.conftest import CHECKOUT, FULL
from tests.resilience.test_bad_input import files
from tests.support.repositories import Workspace, dvc_workspace, git_workspace
from tests.support.workspaces import make_workspace, stages_that_ran, tiny

# which prints a notice at its first import if the old gym is installed
pytest.importorskip("stable_baselines3")

SHOWN = tiny("tests/shown-v0").replace("ref_max", "ref_min_score: 20.0, ref_max")

CLONED = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
dataset: {id: tests/bc-v0, description: a tiny clone for tests}
author: {name: Ada}
env: {id: CartPole-v1}
policy:
  algorithm: bc
  policy_kwargs: {net_arch: [8]}
  deterministic: false
  train: {dataset: shown, gradient_steps: 30, normalize_observations: true}
collect: {n_episodes: 4, block_episodes: 2, n_envs: 2}
ref_scores: {n_episodes: 4, ref_min_score: 20.0, ref_max_score: 500.0}
"""

MIXED = """\
# @package _global_
defaults: [{/policy: mixture}, _self_]
policy: {parents: {cloned: 0.5, shown: 0.5}, repeat: true}
dataset: {id: tests/mixed-v0, description: a tiny mixture for tests}
author: {name: Ada}
collect: {n_steps: 200}
"""

FAMILY = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
env: {id: CartPole-v1}
policy: {algorithm: bc, train: {dataset: shown, gradient_steps: 30}}
ref_scores: {expert: "${policy}"}
"""

OF_FAMILY = """\
# @package _global_
defaults: [{/family: pole}, _self_]
dataset: {id: tests/expert-v0}
author: {name: Ada}
collect: {n_episodes: 2}
"""

STAGES = ["train", "collect", "create", "ref_scores", "validate", "card", "publish"]
DATASETS = {"shown": SHOWN, "cloned": CLONED, "mixed": MIXED}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Workspace, str]:
    """A workspace in which the clone was asked for, and what was printed."""
    workspace = dvc_workspace(tmp_path_factory.mktemp("cloning"), **DATASETS)
    return workspace, workspace.run("python", "-m", "minari_pipe", "+dataset=cloned")


def metadata(workspace: Workspace, name: str) -> dict:
    return workspace.json(f"datasets/tests/{name}-v0/data/metadata.json")


def test_the_dataset_is_made_first_and_the_policy_learns_it(made):
    workspace, printed = made
    lines = [line for line in printed.splitlines() if "-> datasets/" in line]
    assert [line.partition(":")[0] for line in lines] == ["shown", "cloned"]
    assert stages_that_ran(lines[1]) == STAGES
    assert "train: bc of tests/shown-v0, 30 gradient steps, log-likelihood" in printed
    declared = yaml.safe_load((workspace.root / "pipelines/cloned/dvc.yaml").read_text())
    assert declared["stages"]["train"]["deps"] == ["datasets/tests/shown-v0"]


def test_the_metadata_name_the_dataset_with_the_hash_of_its_content(made, monkeypatch):
    workspace, _ = made
    shown = workspace.json("datasets/tests/shown-v0/manifest.json")
    cloned = metadata(workspace, "bc")["minari_pipe"]["cloned"]
    assert cloned == {"id": "tests/shown-v0", "content_sha256": shown["content_sha256"]}
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(workspace.minari_root))
    assert minari_pipe.load_dataset("tests/bc-v0").total_episodes == 4
    shown = workspace.run("minari-pipe", "show", "tests/bc-v0")
    assert "Policy cloned from" in shown
    page = (workspace.root / "datasets/tests/bc-v0/card/report.html").read_text()
    assert "Policy cloned from" in page
    assert "tests/shown-v0" in page


def test_the_published_policy_is_the_one_that_collected(made, tmp_path):
    folder = made[0].root / "datasets/tests/bc-v0/policies"
    assert (folder / "policy_normalize.npz").is_file()
    SB3Policy(
        algorithm="bc",
        checkpoint=folder / "policy.zip",
        normalize=folder / "policy_normalize.npz",
        policy_kwargs={"net_arch": [8]},
    )
    assert (folder / "policy.zip").read_bytes() == (
        made[0].root / "pipelines/cloned/train/policy.zip"
    ).read_bytes()


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL makes the clone again for a changed dataset")
def test_another_dataset_is_learned_anew_and_a_mixture_takes_the_clone(made, tmp_path):
    workspace = made[0].copy(tmp_path / "copy")
    again = workspace.run("python", "-m", "minari_pipe", "+dataset=cloned")
    assert "cloned: up to date" in again
    workspace.run("python", "-m", "minari_pipe", "+dataset=shown", "collect.seed=1")
    printed = workspace.run("python", "-m", "minari_pipe", "+dataset=mixed")
    assert "cloned: ran train, collect, create" in printed
    parents = metadata(workspace, "mixed")["minari_pipe"]["parents"]
    assert [parent["id"] for parent in parents] == ["tests/bc-v0", "tests/shown-v0"]
    assert MinariStorage.read(workspace.root / "datasets/tests/mixed-v0/data").total_steps >= 200


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL releases a clone and makes it again")
def test_a_released_clone_is_made_again_from_its_published_checkpoint(tmp_path):
    workspace = git_workspace(tmp_path, **DATASETS)
    workspace.run("python", "-m", "minari_pipe", "+dataset=cloned")
    workspace.commit("a clone")
    workspace.run("minari-pipe", "release", "tests/bc-v0", "--no-push")
    workspace.commit("a release")
    printed = workspace.run("minari-pipe", "reproduce", "tests/bc-v0")
    assert "shown: ran " in printed
    assert "train: using the published checkpoint instead of training" in printed
    assert "from its published checkpoint" in printed.splitlines()[-1]


def test_the_stages_of_a_clone_depend_on_the_code_of_behaviour_cloning(made):
    workspace, _ = made
    recorded = yaml.safe_load((workspace.root / "pipelines/cloned/params.yaml").read_text())
    params = params_of({k: v for k, v in recorded.items() if k not in ("overrides", "code")})
    code = {
        stage: {file.name for file in stage_code(params, stage, CHECKOUT)}
        for stage in ("train", "collect")
    }
    assert {"bc.py", "cloning.py", "train_bc.py"} <= code["train"]
    assert "bc.py" in code["collect"]
    assert "cloning.py" not in code["collect"]
    train = stages("cloned", params)[0]
    assert train.outs == ["pipelines/cloned/train", "pipelines/cloned/cloned.json"]


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    folder = make_workspace(tmp_path / "work", **DATASETS, expert=OF_FAMILY)
    (folder / "conf" / "family").mkdir()
    (folder / "conf" / "family" / "pole.yaml").write_text(FAMILY)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    return folder


LEARNS = ("+dataset=cloned",)
REFUSED = {
    "no dataset": ((*LEARNS, "~policy.train.dataset"), "no value for policy.train.dataset; name"),
    "an unknown one": (
        (*LEARNS, "policy.train.dataset=shwn"),
        "policy.train.dataset: no dataset 'shwn'. Did you mean 'shown'?",
    ),
    "itself": (
        (*LEARNS, "policy.train.dataset=cloned"),
        "cloned is made from itself: cloned -> cloned",
    ),
    "its own mixture": (
        (*LEARNS, "policy.train.dataset=mixed"),
        "cloned is made from itself: cloned -> mixed -> cloned",
    ),
    "steps in the environment": (
        (*LEARNS, "+policy.train.total_timesteps=5"),
        "policy.train.total_timesteps is given, but bc learns from a dataset: give policy.train."
        "gradient_steps",
    ),
    "no gradient steps": ((*LEARNS, "~policy.train.gradient_steps"), "policy.train.gradient_steps"),
    "no number of them": (
        (*LEARNS, "policy.train.gradient_steps=0"),
        "train.gradient_steps is 0; expected an integer of at least 1",
    ),
    "an unknown setting": (
        (*LEARNS, "+policy.train.hyperparameters.learnin_rate=0.1"),
        "hyperparameters.learnin_rate is not a setting of bc. Did you mean 'learning_rate'?",
    ),
    "another algorithm": (
        (*LEARNS, "policy.algorithm=ppo"),
        "policy.train.dataset is given, but ppo learns in the environment",
    ),
    "a family": (("+dataset=expert",), "family 'pole' trains by behaviour cloning, which has no"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_clone_is_refused_before_anything_is_made(workspace, capfd, words, message):
    before = files(workspace)
    assert run(list(words)) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert files(workspace) == before


def test_a_key_that_is_wrong_in_the_dataset_to_learn_from_names_its_pipeline(workspace, capfd):
    text = SHOWN.replace("n_episodes: 4, block", "n_episodes: 0, block")
    (workspace / "conf" / "dataset" / "shown.yaml").write_text(text)
    assert run(["+dataset=cloned"]) == 1
    assert "error: shown: collect.n_episodes is 0" in capfd.readouterr().err
