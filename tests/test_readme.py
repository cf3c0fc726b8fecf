"""The README's dataset of one's own is made as it stands there, and its claims hold."""

from __future__ import annotations

import re

import minari
import pytest

from tests.conftest import CHECKOUT
from tests.workspaces import make_workspace, run_ok, stages_that_ran

README = (CHECKOUT / "README.md").read_text()


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


def test_the_sweep_of_the_readme_makes_two_datasets(workspace):
    sweep = block("console", "$ python -m minari_pipe -m").replace("\\\n", " ")
    words = [w.strip("'") for w in sweep.split()[4:]]
    run_ok(
        workspace,
        *words,
        "collect.n_episodes=1",
        "ref_scores.n_episodes=1",
        "--trust-module=my_policies",
    )
    assert sorted(minari.list_local_datasets(prefix=None)) == [
        "pendulum/spin-s1-v0",
        "pendulum/spin-s2-v0",
    ]


def test_every_command_of_the_readme_is_known():
    for line in re.findall(r"^\$ (.*)", README, re.MULTILINE):
        words = line.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in (CHECKOUT / "Makefile").read_text()


def test_every_key_and_file_that_the_readme_names_exists():
    for name in re.findall(r"\+dataset=(\w+)", README):
        shipped = (CHECKOUT / "conf" / "dataset" / f"{name}.yaml").is_file()
        assert shipped or name in ("NAME", "pendulum_spin"), name
