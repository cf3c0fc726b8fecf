"""A change reruns the stages that read what changed, and no other; without one nothing runs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from minari_pipe import load_dataset
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.dvc_yaml import (
    OUTPUT_VERSION,
    dependency,
    dvc_yaml,
    read_params,
    stage_code,
)
from minari_pipe.pipeline.config.hydra_compose import recompose
from minari_pipe.pipeline.config.oc_env import literal_texts
from minari_pipe.pipeline.config.schema import params_of
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.pipeline.workspace import write_if_changed
from tests.conftest import CHECKOUT, FULL
from tests.support.demonstration_files import counting_episodes, write_dapg
from tests.support.recipe_runs import copied_checkout
from tests.support.repositories import (
    Workspace,
    assert_cpu_seconds,
    assert_cpu_times,
    dvc_workspace,
    hashes,
)
from tests.support.workspaces import tiny

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

TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy,my_env"}
ALL = ["collect", "create", "ref_scores", "validate", "card", "publish"]


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
def test_a_second_run_does_nothing_and_takes_a_second_and_a_half(made):
    does_nothing(made, "mine", lambda again: assert_cpu_seconds(1.5, again))


@pytest.mark.alone
def test_a_second_run_of_a_checkout_takes_little_more_than_dvc_alone(checkout):
    # Which looks at each file of the package for every stage: the time grows with their number.
    def dvc() -> str:
        return checkout.dvc("repro", "pipelines/tiny/dvc.yaml", **TRUSTED)

    does_nothing(checkout, "tiny", lambda again: assert_cpu_times(1.3, again, dvc))


def does_nothing(workspace: Workspace, name: str, measured: Callable[[Callable], None]) -> None:
    before = hashes(workspace.root / "pipelines") | hashes(workspace.minari_root)
    ran = []
    measured(lambda: ran.extend(run(workspace, f"+dataset={name}")))
    assert ran == []
    assert hashes(workspace.root / "pipelines") | hashes(workspace.minari_root) == before


ROWS = {
    "author": (["author.name=Bob"], ["create", "validate", "card", "publish"]),
    "episodes of the scores": (
        ["ref_scores.n_episodes=5"],
        ["ref_scores", "validate", "card", "publish"],
    ),
    "checks": (["validate.replay_steps=1"], ["validate", "card", "publish"]),
    "where blocks are made and what is installed over": (
        ["engine=processes", "engine.max_retries=9", "publish.replace=true"],
        [],
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), ROWS.values(), ids=ROWS)
def test_a_changed_parameter_reruns(overrides, expected, workspace):
    assert run(workspace, "+dataset=mine", *overrides) == expected


def test_overrides_replace_the_recorded_ones_and_none_is_none(workspace):
    params = workspace.root / "pipelines" / "mine" / "params.yaml"
    plain, published = params.read_bytes(), hashes(workspace.root / "datasets")
    expected = ["collect", "create", "validate", "card", "publish"]
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
    assert run(workspace, "+dataset=mine") == ["collect", "create", "validate", "card", "publish"]


def test_a_changed_file_of_demonstrations_reruns_collect(replayed, tmp_path):
    workspace = replayed.copy(tmp_path)
    write_dapg(workspace.root / "demos.pickle", counting_episodes(seed=1))
    expected = ["collect", "create", "validate", "card", "publish"]
    assert run(workspace, "+dataset=replayed") == expected


def test_recordings_without_rewards_are_not_compared_by_return(replayed, tmp_path):
    workspace = replayed.copy(tmp_path)
    episodes = counting_episodes()
    for episode in episodes:
        episode["rewards"][-1] = float("nan")
    write_dapg(workspace.root / "demos.pickle", episodes)
    run(workspace, "+dataset=replayed")
    gaps = workspace.json("pipelines/replayed/validation.json")["demonstrations"]
    assert gaps["recorded_mean_return"] is gaps["return_gap_max"] is None
    assert gaps["observation_gap_max"] == 0


def test_recordings_that_their_replay_does_not_resemble_are_warnings_to_acknowledge(
    replayed, tmp_path
):
    workspace = replayed.copy(tmp_path)
    shifted = counting_episodes()
    for episode in shifted:
        episode["observations"] = episode["observations"] + 1.0
        episode["rewards"] = episode["rewards"] + 1.0
    write_dapg(workspace.root / "demos.pickle", shifted)
    names = ["demonstration-observations", "demonstration-returns"]
    for listed, arguments in (
        ("findings", ()),
        ("acknowledged", (f"validate.acknowledge=[{','.join(names)}]",)),
    ):
        assert run(workspace, "+dataset=replayed", *arguments)[-3:] == [
            "validate",
            "card",
            "publish",
        ]
        found = workspace.json("pipelines/replayed/validation.json")
        told = found["findings"] + found["acknowledged"]
        assert [(f["level"], f["id"]) for f in told if f["id"] in names] == [
            ("warning", name) for name in names
        ]
        assert all(f in found[listed] for f in told if f["id"] in names)


def test_a_line_in_the_users_environment_reruns_whatever_makes_one(replayed, tmp_path):
    workspace = replayed.copy(tmp_path)
    with (workspace.root / "my_env.py").open("a") as file:
        file.write("# a remark\n")
    assert run(workspace, "+dataset=replayed") == ["collect", "ref_scores", "validate", "card"]


def test_another_version_is_said_in_one_line_and_reruns(workspace):
    version = {
        "PYTHONPATH": str(CHECKOUT / "tests" / "support" / "recorder"),
        "MINARI_PIPE_TEST_VERSION": "gymnasium==99.0",
    }
    # DVC alone does not run under versions that the parameters do not record.
    done = workspace.call(
        "dvc", "repro", "--force", "pipelines/mine/dvc.yaml", **TRUSTED, **version
    )
    assert done.returncode != 0
    assert "gymnasium is 99.0, but pipelines/mine/params.yaml records" in done.stdout
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
    workspace.replace("pipelines/mine/params.yaml", f"\n  collect: {number}\n", "\n  collect: 0\n")
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
    "odd code": b"packages: {}\noverrides: []\ncode: [1]\n",
    "odd dataset": b"packages: {}\noverrides: []\ndataset: [1]\n",
    "nothing": b"",
    "aliases": b"packages: {}\noverrides: []\na: &a [1]\nb: [*a, *a]\n",
    "deep": b"a: " + b"[" * 50_000,
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

    def edit(*modules: str) -> None:
        for module in modules:
            with (code / module).open("a") as file:
                file.write("# a remark\n")

    def would_run() -> set[str]:
        told = workspace.dry_run("+dataset=tiny", **TRUSTED)
        return {line.split()[1] for line in told if " would run: " in line}

    # The last two are of a policy that this pipeline does not run, and of no stage.
    edit("pipeline/stages/create.py", "checks/flags.py", "policies/sb3.py", "cli/tables.py")
    assert would_run() == {"create", "validate", "card"}
    # validate measures the random policy again, to compare it with ref_min_score.
    edit("policies/random.py")
    expected = ["collect", "create", "ref_scores", "validate", "card"]
    assert would_run() == set(expected)
    if FULL:
        assert run(workspace, "+dataset=tiny") == expected


def test_the_code_of_noise_is_a_dependency_of_the_stage_that_adds_it(checkout, tmp_path):
    root = checkout.copy(tmp_path).root
    params = read_params("tiny", root)
    params["policy"] = {"_target_": "minari_pipe.policies.ScriptedPolicy", "controller": {}}
    code = root / "minari_pipe" / "policies" / "noisy.py"
    for noise in (None, {"kind": "epsilon", "scale": 0.1}):
        params["policy"]["noise"] = noise
        found = {stage: stage_code(params_of(params), stage, root) for stage in ALL}
        depending = [stage for stage, files in found.items() if code in files]
        assert depending == ([] if noise is None else ["collect"])


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
    typed = [
        "+dataset=mine",
        "+policy@ref_scores.expert=sb3",
        "ref_scores.expert.algorithm=ppo",
        f"ref_scores.expert.checkpoint={named}",
        "ref_scores.ref_max_score=null",
    ]
    given = literal_texts(typed, "ref_scores")
    params, _ = prepare("mine", recompose(typed).config, None, workspace.root, given)
    stages = yaml.safe_load(dvc_yaml("mine", params, workspace.root))["stages"]
    reading = {name for name, s in stages.items() if expected.format(**places) in s.get("deps", [])}
    assert reading == {"ref_scores", "publish"}  # the latter lets it go out with the dataset


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nets/${oc}.zip", "DVC reads as a variable"),
        ("./s3:/nets", "begins with 's3:', which DVC reads as an address"),
        ("nets/a.dvc", "has a name of DVC's own files; rename the file"),
        ("nets/dvc.yaml", "has a name of DVC's own files; rename the file"),
    ],
)
def test_a_file_whose_name_dvc_would_take_for_another_is_refused(name, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        dependency(name, Path("/work"))


PICTURES = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/pictures-v0, description: tiny pictures, compression: 4}
author: {name: Ada}
env: {id: "my_pictures:Pictures-v0", kwargs: {max_episode_steps: 5}}
collect: {n_episodes: 4, block_episodes: 2, n_envs: 2, record_infos: true}
ref_scores: {n_episodes: 4, ref_min_score: 0.0, ref_max_score: 10.0}
"""

MY_PICTURES = """\
import gymnasium as gym
import numpy as np

class Pictures(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def picture(self):
        ramp = np.linspace(0, 200, 32)[:, None, None] + 10 * self.t
        return np.broadcast_to(ramp, (32, 32, 3)).astype(np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.picture(), {"t": self.t}

    def step(self, action):
        self.t += 1
        return self.picture(), float(action), False, False, {"t": self.t}

gym.register("Pictures-v0", entry_point=Pictures)
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Workspace:
    workspace = dvc_workspace(tmp_path_factory.mktemp("pictures"), pictures=PICTURES)
    (workspace.root / "my_pictures.py").write_text(MY_PICTURES)
    return workspace


@pytest.mark.parametrize(
    "stored",
    [
        {"data_format": "arrow", "compression": "null"},
        {"data_format": "hdf5", "compression": "4", "jpeg_encoding": "true"},
    ],
    ids=["arrow", "hdf5 with gzip and JPEG"],
)
def test_a_dataset_is_made_and_installed_however_it_is_stored(stored, pictures, monkeypatch):
    words = [f"dataset.{key}={value}" for key, value in stored.items()]
    trusted = {"MINARI_PIPE_TRUSTED_MODULES": "my_pictures"}
    ran = pictures.pipe("+dataset=pictures", *words, "publish.replace=true", **trusted)
    assert {"create", "validate", "card", "publish"} <= set(ran)
    assert pictures.pipe("+dataset=pictures", *words, **trusted) == []
    validation = pictures.json("pipelines/pictures/validation.json")
    assert validation["errors"] == 0
    assert validation["replay"]["replayed"] == 4
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(pictures.minari_root))
    installed = load_dataset("tests/pictures-v0", verify=True)
    assert installed.storage.metadata["data_format"] == stored["data_format"]
    assert installed.storage.jpeg_encoding == ("jpeg_encoding" in stored)
    assert installed[3].observations.shape == (6, 32, 32, 3)
    files = pictures.json("datasets/tests/pictures-v0/manifest.json")["data"]
    assert ("main_data.hdf5" in files) == (stored["data_format"] == "hdf5")


def test_how_a_dataset_is_stored_is_in_no_config_hash_unless_it_is_chosen(made):
    recorded = read_params("mine", made.root)["dataset"]
    assert not {"data_format", "jpeg_encoding", "compression"} & recorded.keys()


def changed_policy(workspace: Workspace) -> None:
    workspace.replace("my_package/rules.py", "> 0", ">= 0")


def removed_output(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / "pipelines" / "mine" / "dataset")


AFTER_COLLECT = [
    "create may run: collect of mine writes pipelines/mine/episodes",
    "ref_scores is up to date",
    "validate may run: create of mine writes pipelines/mine/dataset",
    "card may run: create of mine writes pipelines/mine/dataset, validate of mine writes "
    "pipelines/mine/validation.json",
    "publish may run: card of mine writes pipelines/mine/card, create of mine writes "
    "pipelines/mine/dataset, validate of mine writes pipelines/mine/validation.json",
    "would be installed in {root}/tests/mine-v0",
]
DRY_RUNS = {
    "nothing": (
        None,
        [],
        [f"{s} is up to date" for s in ALL] + ["is installed in {root}/tests/mine-v0"],
    ),
    "a parameter, with what it was": (
        None,
        ["collect.n_episodes=6", "policy.controller.gain=2.0"],
        [
            "collect would run: collect.n_episodes 4 -> 6, policy.controller.gain 1.0 -> 2.0",
            *AFTER_COLLECT[:2],
            "validate would run: collect.n_episodes 4 -> 6, policy.controller.gain 1.0 -> 2.0",
            "card would run: collect.n_episodes 4 -> 6, policy.controller.gain 1.0 -> 2.0",
            "publish would run: collect.n_episodes 4 -> 6, policy.controller.gain 1.0 -> 2.0",
            AFTER_COLLECT[-1],
        ],
    ),
    "a module of the user's": (
        changed_policy,
        [],
        ["collect would run: my_package/rules.py changed", *AFTER_COLLECT],
    ),
    "an output that is gone": (
        removed_output,
        [],
        [
            "collect is up to date",
            "create would be restored from DVC's cache: pipelines/mine/dataset is missing",
            *(f"{s} is up to date" for s in ALL[2:]),
            "is installed in {root}/tests/mine-v0",
        ],
    ),
    "a pipeline of another name": (
        None,
        ["pipeline=other", "dataset.id=tests/other-v0"],
        [
            *(f"{s} would run: it has not run yet" for s in ALL),
            "would be installed in {root}/tests/other-v0",
        ],
    ),
}


@pytest.mark.parametrize("row", DRY_RUNS)
def test_a_dry_run_says_why_each_stage_would_run_and_writes_nothing(row, workspace):
    change, arguments, expected = DRY_RUNS[row]
    if change is not None:
        change(workspace)
    name = "other" if "pipeline=other" in arguments else "mine"
    told = workspace.dry_run("+dataset=mine", *arguments, **TRUSTED)
    lines = [f"{name}: {line.format(root=workspace.minari_root)}" for line in expected]
    assert told == lines
    if change is removed_output:
        assert run(workspace, "+dataset=mine") == []


def test_a_dry_run_names_other_versions(workspace):
    version = read_params("mine", workspace.root)["packages"]["create"]["h5py"]
    for file in ("params.yaml", "dvc.lock"):
        workspace.replace(f"pipelines/mine/{file}", f"h5py: {version}", "h5py: 3.0.0")
    told = workspace.dry_run("+dataset=mine", **TRUSTED)
    assert f'mine: create would run: packages.create.h5py "3.0.0" -> "{version}"' in told
