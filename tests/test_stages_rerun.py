"""A change reruns the stages that read what changed, and no other; without one nothing runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.compose import recompose
from minari_pipe.pipeline.graph import OUTPUT_VERSION, _dependency, dvc_yaml, read_params
from minari_pipe.pipeline.params import prepare
from minari_pipe.pipeline.workspace import write_if_changed
from tests.conftest import CHECKOUT
from tests.demonstration_files import counting_episodes, write_dapg
from tests.recipe_runs import copied_checkout
from tests.repositories import Workspace, assert_cpu_seconds, dvc_workspace, hashes
from tests.workspaces import tiny

MINE = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/mine-v0, description: a tiny dataset}
author: {name: Ada}
env: {id: CartPole-v1}
policy: {controller: {_target_: my_policy.balance, gain: 1.0}}
collect: {n_episodes: 4, block_episodes: 2, n_envs: 2}
ref_scores: {n_episodes: 4, n_envs: 2, ref_max_score: 500.0}
"""

MY_POLICY = """\
from my_package.rules import side

def balance(observation, gain):
    return side(gain * observation[2])
"""

RULES = """\
def side(angle):
    return int(angle > 0)
"""

REPLAYED = """\
# @package _global_
defaults: [{/policy: demonstrations}, _self_]
dataset: {id: tests/replayed-v0, description: tiny demonstrations}
author: {name: Ada}
env: {id: "my_env:Counting-v0", kwargs: {max_episode_steps: 10}}
policy: {source: {path: demos.pickle}}
ref_scores: {ref_min_score: 0.0, ref_max_score: 10.0}
"""

MY_ENV = """\
import gymnasium as gym
import numpy as np

class Counting(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        start = (options or {}).get("initial_state_dict", {"qpos": np.zeros(1)})
        self.observation = np.array([0.0, start["qpos"][0]])
        return self.observation, {}

    def step(self, action):
        self.observation = self.observation + [1.0, 0.0]
        return self.observation, float(action[0]), False, False, {}

gym.register("Counting-v0", entry_point=Counting)
"""

TRUSTED = {
    "MINARI_PIPE_TRUSTED_MODULES": "my_policy,my_env",
    "PYTHONPATH": str(CHECKOUT / "tests" / "recorder"),
}
ALL = ["collect", "create", "ref_scores", "validate", "publish"]


def run(workspace: Workspace, *arguments: str, **environment: str) -> list[str]:
    return workspace.pipe(*arguments, **TRUSTED, **environment)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    """A workspace of the installed package, with a policy of the user's own."""
    workspace = dvc_workspace(tmp_path_factory.mktemp("rerun"), mine=MINE)
    (workspace.root / "my_package").mkdir()
    (workspace.root / "my_package" / "rules.py").write_text(RULES)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    assert run(workspace, "+dataset=mine") == ALL
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Workspace:
    """A workspace with demonstrations in an environment of the user's own."""
    workspace = dvc_workspace(tmp_path_factory.mktemp("replayed"), replayed=REPLAYED)
    (workspace.root / "my_env.py").write_text(MY_ENV)
    write_dapg(workspace.root / "demos.pickle", counting_episodes())
    assert run(workspace, "+dataset=replayed") == ALL
    return workspace


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Workspace:
    """A developer's checkout, which is its own workspace."""
    workspace = copied_checkout(tmp_path_factory.mktemp("code"), tiny=tiny("tests/tiny-v0"))
    assert run(workspace, "+dataset=tiny") == ALL
    return workspace


@pytest.mark.alone
@pytest.mark.parametrize("which", ["made", "checkout"])
def test_a_second_run_does_nothing_and_costs_little(which, request):
    workspace = request.getfixturevalue(which)
    dataset = "mine" if which == "made" else "tiny"
    before = hashes(workspace.root / "pipelines") | hashes(workspace.minari_root)
    ran = []
    assert_cpu_seconds(1.5, lambda: ran.extend(run(workspace, f"+dataset={dataset}")))
    assert ran == []
    assert hashes(workspace.root / "pipelines") | hashes(workspace.minari_root) == before


ROWS = {
    "author": (["author.name=Bob"], ["create", "validate", "publish"]),
    "episodes of the scores": (["ref_scores.n_episodes=5"], ["ref_scores", "validate", "publish"]),
    "checks": (["validate.replay_steps=1"], ["validate", "publish"]),
    "where blocks are made": (["engine=processes", "engine.max_retries=9"], []),
    "where to install": (["publish.replace=true"], []),
}


@pytest.mark.parametrize(("overrides", "expected"), ROWS.values(), ids=ROWS)
def test_a_changed_parameter_reruns(overrides, expected, workspace):
    assert run(workspace, "+dataset=mine", *overrides) == expected


def test_overrides_replace_the_recorded_ones_and_none_is_none(workspace):
    params = workspace.root / "pipelines" / "mine" / "params.yaml"
    plain, published = params.read_bytes(), hashes(workspace.root / "datasets")
    expected = ["collect", "create", "validate", "publish"]
    assert run(workspace, "+dataset=mine", "collect.seed=1", "author.name=Bob") == expected
    assert "- collect.seed=1\n- author.name=Bob\n" in params.read_text()
    assert run(workspace, "dataset=mine", "author.name=Eve") != []
    text = params.read_text()
    assert "- author.name=Eve\n" in text
    assert "Bob" not in text
    assert "collect.seed" not in text
    # Back to where it was: DVC takes what it can from its cache; publish puts it in place.
    ran = run(workspace, "+dataset=mine")
    assert "collect" not in ran
    assert "publish" in ran
    assert params.read_bytes() == plain
    assert hashes(workspace.root / "datasets") == published


def test_a_line_in_the_users_policy_reruns_collect(workspace):
    with (workspace.root / "my_policy.py").open("a") as file:
        file.write("# a remark\n")
    assert run(workspace, "+dataset=mine") == ["collect"]  # the episodes are the same
    workspace.replace("my_package/rules.py", "angle > 0", "angle < 0")
    assert run(workspace, "+dataset=mine") == ["collect", "create", "validate", "publish"]


def test_a_changed_file_of_demonstrations_reruns_collect(replayed, tmp_path):
    workspace = replayed.copy(tmp_path)
    write_dapg(workspace.root / "demos.pickle", counting_episodes(seed=1))
    expected = ["collect", "create", "validate", "publish"]
    assert run(workspace, "+dataset=replayed") == expected


def test_a_line_in_the_users_environment_reruns_whatever_makes_one(replayed, tmp_path):
    workspace = replayed.copy(tmp_path)
    with (workspace.root / "my_env.py").open("a") as file:
        file.write("# a remark\n")
    assert run(workspace, "+dataset=replayed") == ["collect", "ref_scores", "validate"]


def test_another_version_is_said_in_one_line_and_reruns(workspace):
    version = {"MINARI_PIPE_TEST_VERSION": "gymnasium==99.0"}
    # DVC alone does not run under versions that the parameters do not record.
    done = workspace.call(
        "dvc", "repro", "--force", "pipelines/mine/dvc.yaml", **TRUSTED, **version
    )
    assert done.returncode != 0
    assert "gymnasium is 99.0, pipelines/mine/params.yaml records" in done.stdout
    output = workspace.run(
        sys.executable, "-m", "minari_pipe", "+dataset=mine", **TRUSTED, **version
    )
    lines = [line for line in output.splitlines() if "versions changed" in line]
    assert len(lines) == 1
    assert lines[0].endswith("-> 99.0")
    assert f"mine: ran {', '.join(ALL)} ->" in output
    assert run(workspace, "+dataset=mine", **version) == []


def test_another_output_version_of_the_package_is_said_and_reruns(workspace):
    # As an older version of the package recorded it.
    number = OUTPUT_VERSION["collect"]
    workspace.replace(
        "pipelines/mine/params.yaml", f"code:\n  collect: {number}", "code:\n  collect: 0"
    )
    workspace.replace("pipelines/mine/dvc.lock", f"code.collect: {number}", "code.collect: 0")
    shutil.rmtree(workspace.root / ".dvc" / "cache" / "runs")
    output = workspace.run(sys.executable, "-m", "minari_pipe", "+dataset=mine", **TRUSTED)
    assert f"minari_pipe's collect output 0 -> output {number}" in output
    assert "mine: ran collect ->" in output  # the episodes are the same


DAMAGES = {
    "a merge": b"<<<<<<< HEAD\na: 1\n=======\na: 2\n",
    "not a mapping": b"- 1\n",
    "not text": b"\xff\xfe\x00",
    "no packages": b"overrides: []\n",
    "odd packages": b"packages: {collect: 1}\noverrides: []\n",
    "odd overrides": b"packages: {}\noverrides: [1]\n",
    "nothing": b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_parameters_are_generated_anew(damage, made, tmp_path):
    folder = tmp_path / "pipelines" / "mine"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_bytes(damage)
    assert read_params("mine", tmp_path) is None
    good = made.root / "pipelines" / "mine" / "params.yaml"
    assert write_if_changed(folder / "params.yaml", good.read_text())
    assert read_params("mine", tmp_path) == read_params("mine", made.root)


def test_a_line_in_the_code_of_a_stage_reruns_it(checkout, tmp_path):
    workspace = checkout.copy(tmp_path)
    code = workspace.root / "minari_pipe"
    for modules, expected in (
        (["pipeline/stages/create.py", "checks/flags.py"], ["create", "validate"]),
        (["policies/random.py"], ["collect", "ref_scores"]),
        # Of a policy that this pipeline does not run, and of no stage.
        (["policies/sb3.py", "pipeline/compose.py"], []),
    ):
        for module in modules:
            with (code / module).open("a") as file:
                file.write("# a remark\n")
        assert run(workspace, "+dataset=tiny") == expected, modules


FILES = {
    "below the workspace": ("nets/expert.zip", "nets/expert.zip"),
    "with dots": ("./nets/../nets/expert.zip", "nets/expert.zip"),
    "beside the workspace": ("../outside.zip", "../outside.zip"),
    "absolute, below": ("{root}/nets/expert.zip", "nets/expert.zip"),
    "absolute, outside": ("{root}/../outside.zip", "{parent}/outside.zip"),
    "in the home": ("~/mine.zip", "{home}/mine.zip"),
}


@pytest.mark.parametrize(("path", "expected"), FILES.values(), ids=FILES)
def test_a_named_checkpoint_is_a_dependency_of_the_stages_that_read_it(
    path, expected, tmp_path, monkeypatch
):
    workspace = dvc_workspace(tmp_path, mine=MINE)
    monkeypatch.setenv("HOME", str(workspace.home))
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "my_policy")
    monkeypatch.chdir(workspace.root)
    places = {"root": workspace.root, "parent": tmp_path, "home": workspace.home}
    (workspace.root / "nets").mkdir()
    for file in (workspace.root / "nets/expert.zip", tmp_path / "outside.zip"):
        file.touch()
    (workspace.home / "mine.zip").touch()
    named = f"{{path: '{path.format(**places)}'}}"
    config = recompose(
        [
            "+dataset=mine",
            "+policy@ref_scores.expert=sb3",
            "ref_scores.expert.algorithm=ppo",
            f"ref_scores.expert.checkpoint={named}",
            "ref_scores.ref_max_score=null",
        ]
    ).config
    params = prepare("mine", config, None, workspace.root)
    stages = yaml.safe_load(dvc_yaml("mine", params, workspace.root))["stages"]
    reading = {name for name, s in stages.items() if expected.format(**places) in s.get("deps", [])}
    assert reading == {"ref_scores", "publish"}  # the latter lets it go out with the dataset


def test_a_file_whose_name_dvc_would_expand_is_refused():
    with pytest.raises(ConfigError, match="DVC reads as a variable"):
        _dependency("nets/${oc}.zip", Path("/work"))
