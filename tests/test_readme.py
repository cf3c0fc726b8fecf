"""The blocks of the README and of ``docs/`` run as they stand there, and their claims hold."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import minari_pipe
from minari_pipe.__main__ import COMMANDS
from minari_pipe.cli import app
from minari_pipe.pipeline.config.dvc_yaml import stages
from minari_pipe.pipeline.config.families import check_family
from minari_pipe.pipeline.config.mixtures import recomposed
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.scripted import ScriptedPolicy
from tests.compat.test_both_directions import MINARI_IS_WRONG
from tests.conftest import CHECKOUT
from tests.support.legacy_files import GOLDEN
from tests.support.servers.s3 import moto_server
from tests.support.workspaces import make_workspace, run_ok, stages_that_ran

PAGES = {
    page: page.read_text(encoding="utf-8")
    for page in (
        CHECKOUT / "README.md",
        *sorted((CHECKOUT / "docs").rglob("*.md")),
        CHECKOUT / "CONTRIBUTING.md",
    )
}
README = "\n".join(PAGES.values())


def block(language: str, start: str) -> str:
    """The first fenced block of a language that starts with these words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(text for text in blocks if text.startswith(start))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(
        tmp_path_factory.mktemp("readme"), pendulum_spin=block("yaml", "# @package _global_")
    )
    (folder / "my_policies.py").write_text(block("python", "# my_policies.py"))
    return folder


def test_the_dataset_of_ones_own_is_made_by_the_command_it_opens_with(workspace):
    command = block("yaml", "# @package _global_").splitlines()[1]
    arguments = command.removeprefix("# python -m minari_pipe ").split()
    out = run_ok(workspace, *arguments)
    assert stages_that_ran(out)[-1] == "publish"
    dataset = minari.load_dataset("pendulum/spin-v0")
    assert dataset.total_episodes == 10
    assert set(dataset.storage.metadata["author"]) == {"Ada Lovelace"}


def test_the_controller_of_a_batch_pushes_in_every_row():
    found: dict = {"np": np}
    exec(block("python", "def push_all"), found)
    policy = ScriptedPolicy(found["push_all"], {"torque": 2.0})
    for episode in run_episodes(
        lambda: gym.make("Pendulum-v1"), policy, range(3), seed=0, n_envs=3
    ):
        pushes = 2.0 * np.sign(episode.observations[:-1, 2:3])
        np.testing.assert_array_equal(episode.actions, pushes)


def test_the_sweep_of_the_readme_makes_two_datasets(workspace):
    sweep = block("console", "$ python -m minari_pipe -m").replace("\\\n", " ")
    words = [w.strip("'") for w in sweep.split()[4:]]
    run_ok(workspace, *words, "collect.n_episodes=1", "ref_scores.n_episodes=1")
    assert sorted(minari.list_local_datasets(prefix=None)) == [
        "pendulum/spin-s1-v0",
        "pendulum/spin-s2-v0",
    ]


def test_every_run_of_the_users_own_policy_says_that_it_is_trusted():
    text = README.replace("\\\n", " ")
    runs = re.findall(
        r"python -m minari_pipe [^`\n]*\+dataset=pendulum_spin[^`\n]*(?:\n[^`]*`)?", text
    )
    assert len(runs) >= 4
    assert [run for run in runs if "--trust-module my_policies" not in run] == []


def test_every_command_of_the_readme_is_known():
    for line in re.findall(r"^\$ (.*)", README, re.MULTILINE):
        words = line.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in (CHECKOUT / "Makefile").read_text()
    for word in re.findall(r"(?:`|\$ )minari-pipe ([-+\w]+)", README):
        assert word in COMMANDS or word.startswith("+dataset"), word


def test_every_key_and_file_that_the_readme_names_exists():
    for name in re.findall(r"\+dataset=(\w+)", README):
        shipped = (CHECKOUT / "conf" / "dataset" / f"{name}.yaml").is_file()
        assert shipped or name in ("NAME", "pendulum_spin", "reach", "reach_near"), name


@pytest.fixture
def doors(own_home: Path) -> None:
    """Small datasets under the ids that the README has, and an old one under its path."""
    for name, n_episodes in (("human", 2), ("expert", 10)):
        buffers = [
            minari_pipe.EpisodeBuffer(
                seed=seed,
                observations=np.arange(201),
                actions=np.zeros(200, np.int64),
                rewards=np.full(200, 15.0 + seed),
                terminations=np.zeros(200, bool),
                truncations=np.arange(1, 201) == 200,
            )
            for seed in range(n_episodes)
        ]
        minari_pipe.create_dataset_from_buffers(
            f"door/{name}-v0",
            buffers,
            observation_space=spaces.Discrete(201),
            action_space=spaces.Discrete(2),
            ref_min_score=0.0,
            ref_max_score=3000.0,
        )
    shutil.copytree(GOLDEN / "0.4.0" / "cartpole-random-v0", own_home / "old" / "door-human-v1")


@pytest.mark.filterwarnings("ignore::UserWarning")  # the small datasets say little of themselves
def test_the_library_s_block_runs(doors, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(block("python", "import minari_pipe as minari"), names)
    assert names["dataset"].id == "door/expert-v0"
    assert [len(names[part]) for part in ("good", "train", "test")] == [9, 8, 1]
    assert names["batch"].observations.shape == (64, 20)
    assert names["dataset"].normalized_scores()[0] == 1.0
    assert names["stats"]["count"].tolist() == [sum(len(e) + 1 for e in names["train"])]


@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning")
def test_the_vector_environments_of_the_readme_give_every_episode_a_seed():
    exec(block("python", "# a seed for every episode"), names := {})
    dataset = names["dataset"]
    assert len(dataset) > 8
    assert len(set(dataset.episodes["seed"])) == len(dataset)
    assert None not in set(dataset.episodes["seed"])
    env = dataset.recover_environment()
    for seed, episode in zip(dataset.episodes["seed"], dataset, strict=True):
        assert (env.reset(seed=int(seed))[0] == episode.observations[0]).all()
        assert episode.terminations[-1] or episode.truncations[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_commands_of_the_library_run(doors, own_home, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in block("console", "$ minari-pipe list").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        assert words.pop(0) == "minari-pipe"
        words = [word.replace("~", str(own_home)) for word in words]
        result = CliRunner().invoke(app, words, input="y\n")
        assert result.exit_code == 0, f"{line}: {result.output}"
        assert result.stdout
    sizes = {name: m["total_episodes"] for name, m in minari_pipe.list_local_datasets().items()}
    old = sizes.pop("door/old-v1")
    assert old > 0
    assert sizes == {
        "door/expert-v0": 10,
        "door/human-v0": 2,
        "door/test-v0": 1,
        "door/train-v0": 9,
    }


@pytest.mark.filterwarnings("ignore::UserWarning")  # what is skipped
def test_the_session_with_a_remote_says_what_the_readme_shows(doors, monkeypatch) -> None:
    session = block("console", "$ minari-pipe upload")
    shown = README.partition(f"{session}```\n```\n")[2].partition("```")[0]
    out = ""
    with moto_server("robots") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for line in session.splitlines():
            result = CliRunner().invoke(app, shlex.split(line)[2:])
            assert result.exit_code == 0, f"{line}: {result.output}"
            assert result.stderr == "", line
            out += result.stdout
        assert _without_figures(out) == _without_figures(shown)
        monkeypatch.setenv("MINARI_REMOTE", "s3://robots/datasets")
        exec(block("python", "# with MINARI_REMOTE=s3://robots/datasets"), names := {})
    assert names["dataset"].id == "door/expert-v0"


def _without_figures(text: str) -> list[str]:
    """The words of a session without sizes, hashes, authors and the widths of columns."""
    text = re.sub(r"[─]+|[\d.,]+ [kM]?B|[0-9a-f]{12}|[\d,]{2,}|minari_pipe", "", text)
    return text.split()


FORMATS = README.partition("| format | `data_format=` | needs |\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("data_format", re.findall(r"^\| .* \| `(\w+)`", FORMATS, re.MULTILINE))
def test_every_format_of_the_readme_exists(data_format) -> None:
    assert data_format in minari_pipe.get_storage_keys()


def test_the_readme_lists_every_case_in_which_minari_is_wrong() -> None:
    table = README.partition("| case | Minari 0.5.4 | here |\n|---|---|---|\n")[2]
    rows = [row.strip("|").split("|") for row in table.partition("\n\n")[0].splitlines()]
    assert all(len(row) == 3 and all(map(str.strip, row)) for row in rows)
    assert [row[0].strip() for row in rows] == list(MINARI_IS_WRONG)


def test_the_family_of_the_readme_composes_with_its_datasets(tmp_path, monkeypatch):
    for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL):
        if place := re.search(r"^# (conf/(?:family|dataset)/\w+\.yaml)$", text, re.MULTILINE):
            (tmp_path / place[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place[1]).write_text(text)
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    made = {}
    for name in ("cartpole_medium", "cartpole_medium_expert", "control_cartpole-simple"):
        composed = recomposed([f"+dataset={name}"], tmp_path)
        params, _ = prepare(name, composed.config, None, tmp_path)
        check_family(name, params, [], tmp_path)
        made[name] = [stage.name for stage in stages(name, params)]
    assert made["cartpole_medium"] == ["choose", "collect", "create", "validate", "card", "publish"]
    assert made["cartpole_medium_expert"] == ["collect", "create", "validate", "card", "publish"]
    assert made["control_cartpole-simple"] == made["cartpole_medium"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_four_lines_of_the_readme_run(doors) -> None:
    exec(block("python", "from minari_pipe import load_dataset"), names := {})
    assert len(names["good"]) == 9
    assert len(names["batch"].observations) == 9 * 200 % 256


def test_the_readme_is_short() -> None:
    assert len((CHECKOUT / "README.md").read_bytes()) <= 12_000


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page) -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[page])
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_tree_of_the_architecture_is_that_of_the_package() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[├└]─ (\w+)/", page))
    package = CHECKOUT / "minari_pipe"
    for folder in (package, package / "pipeline"):
        there = {path.parent.name for path in folder.glob("*/__init__.py")} - {"conf"}
        assert there <= named, there - named
    for path in re.findall(r"`([\w/]+\.py)`", page):
        places = [*package.rglob(path), *(CHECKOUT / "tests").rglob(path), CHECKOUT / path]
        assert any(place.is_file() for place in places), path
