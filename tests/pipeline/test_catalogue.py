"""One dataset of each family of recipes, at small size, through the pipeline and out to Minari."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import FULL
from tests.support.demonstration_files import write_kitchen
from tests.support.repositories import Workspace, dvc_workspace, hashes

#: overrides that make a recipe small
SMALL = ("collect.n_episodes=3", "collect.block_episodes=1", "ref_scores.n_episodes=2")
LITTLE = (
    "policy.train.total_timesteps=64",
    "policy.train.n_envs=2",
    "policy.train.hyperparameters.n_steps=32",
    "policy.train.hyperparameters.n_epochs=1",
    "policy.train.hyperparameters.batch_size=32",
    "ref_scores.ref_min_score=-9",  # as so little teaches nothing
    "ref_scores.ref_max_score=9",
)
SHORT = ("+env.kwargs.max_episode_steps=40",)
#: a dataset of each family, with more overrides
FAMILIES: dict[str, tuple[str, ...]] = {
    "antmaze_umaze-diverse": (),
    "atari_boxing": (*LITTLE, "env.kwargs.max_episode_steps=20"),
    "babyai_fullobs_GoToSeqS5R2": (),
    "fetch_push": (),
    "fourrooms": (),
    "metaworld_reach": SHORT,
    "minatar_breakout": LITTLE,
    "mujoco_invertedpendulum-expert": (
        "collect.n_steps=null",
        "policy.train.total_timesteps=1100",  # of which the first 1,000 are random
        "ref_scores.ref_min_score=-9",
        "ref_scores.ref_max_score=9",
    ),
    "pointmaze_open-dense": (),
    **({"door_expert": (), "kitchen_complete": ()} if FULL else {}),
}

#: what a stranger runs, who has Minari and not this package
_STRANGER = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.modules["minari_pipe"] = None  # importing it fails
import minari
dataset = minari.load_dataset(sys.argv[1])
if dataset.spec.env_spec.id.startswith("MetaWorld/"):  # whose adapter is in the package
    del sys.modules["minari_pipe"]
env = dataset.recover_environment()
for episode in dataset.iterate_episodes():
    metadata = dataset.storage.get_episode_metadata([episode.id])
    observation, _ = env.reset(seed=int(next(iter(metadata))["seed"]))
    for action, reward in zip(episode.actions, episode.rewards):
        _, found, *_ = env.step(action)
        assert found == reward, (episode.id, found, reward)
print(json.dumps([dataset.total_episodes, dataset.total_steps]))
"""


def made(folder: Path, name: str, *words: str) -> tuple[Workspace, Path]:
    """A workspace in which a recipe ran, and its dataset."""
    workspace = dvc_workspace(folder)
    if name.startswith("kitchen"):
        write_kitchen(workspace.root / "demos.zip")
        words += ("policy.source.path=demos.zip", "env.kwargs.max_episode_steps=3")
    command = (sys.executable, "-m", "minari_pipe", f"+dataset={name}", *SMALL, *words)
    workspace.run(*command, "card.film=false")
    (found,) = (workspace.root / "datasets").rglob("manifest.json")
    return workspace, found.parent


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_replayed_read_by_minari_and_the_same_with_three_workers(
    name: str, tmp_path: Path
) -> None:
    words = FAMILIES[name]
    workspace, dataset = made(tmp_path / "one", name, *words)
    validation = json.loads((workspace.root / "pipelines" / name / "validation.json").read_text())
    # Scores of two episodes differ from those that the check measures.
    assert {f["check"] for f in validation["findings"]} <= {"reference", "ref_scores"}
    (replay,) = validation["replay"]["details"]
    assert (replay["exact"], replay["replayed"], replay["stepwise"]) == (True, 3, 0)
    dataset_id = dataset.relative_to(workspace.root / "datasets").as_posix()
    done = subprocess.run(
        [sys.executable, "-c", _STRANGER, dataset_id],
        cwd=tmp_path,
        env=workspace.environment(MINARI_DATASETS_PATH=str(workspace.root / "datasets")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0] == 3  # BabyAI prints
    pipeline = workspace.root / "pipelines" / name
    before = hashes(pipeline / "episodes")
    for folder in (pipeline / "episodes", workspace.root / ".minari_pipe"):
        shutil.rmtree(folder)
    params = yaml.safe_load((pipeline / "params.yaml").read_text())
    params["engine"] |= {"name": "processes", "n_workers": 3}
    (pipeline / "params.yaml").write_text(yaml.safe_dump(params))
    workspace.run(sys.executable, "-m", "minari_pipe.pipeline.stages.collect", name)
    assert hashes(pipeline / "episodes") == before
