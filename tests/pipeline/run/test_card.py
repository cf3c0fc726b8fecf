"""A run describes what it publishes: ``card/`` lies beside the data, and is no part of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import minari_pipe
from minari_pipe.datasets.cards.folder import FILES
from minari_pipe.datasets.cards.page import FILM
from tests.support.repositories import Workspace, dvc_workspace, git_workspace, hashes

ID = "tests/dot-v0"
DOT = """\
import gymnasium as gym
import numpy as np


class Dot(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.at.copy(), {}

    def step(self, action):
        self.at = np.clip(self.at + action, -9, 9).astype(np.float32)
        return self.at.copy(), float(-abs(self.at).sum()), False, False, {}

    def render(self):
        picture = np.zeros((90, 120, 3), np.uint8)
        x, y = ((self.at + 9) * 4).astype(int)
        picture[y : y + 9, x : x + 9] = 255
        return picture


gym.register("Dot-v0", "dot_env:Dot", max_episode_steps=20)
"""
CONFIG = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/dot-v0, description: a dot that wanders}
author: {name: Ada}
env: {id: "dot_env:Dot-v0"}
collect: {n_episodes: 3}
ref_scores: {n_episodes: 3, ref_max_score: 0.0}
card: {use_cases: to test}
"""
TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "dot_env"}


def prepared(workspace: Workspace) -> Workspace:
    (workspace.root / "dot_env.py").write_text(DOT)
    return workspace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A published and released dataset, with its film, and what the run printed."""
    workspace = prepared(git_workspace(tmp_path_factory.mktemp("card"), dot=CONFIG))
    printed = workspace.run("python", "-m", "minari_pipe", "+dataset=dot", **TRUSTED)
    workspace.commit("dot")
    workspace.run("minari-pipe", "release", ID, "--no-push")
    workspace.commit("release")
    return workspace, printed


def cards(workspace: Workspace) -> list[Path]:
    places = (workspace.root / "pipelines" / "dot", workspace.root / "datasets" / ID)
    return [folder / "card" for folder in (*places, workspace.minari_root / ID)]


def test_a_run_publishes_and_installs_a_card_and_says_so_in_one_line(
    made: tuple[Workspace, str],
) -> None:
    workspace, printed = made
    (line,) = (line for line in printed.splitlines() if line.startswith("card: "))
    assert line.startswith("card: report ")
    assert ", film of episode " in line
    first, *others = cards(workspace)
    assert {path.name for path in first.iterdir()} == set(FILES)
    assert all(hashes(card) == hashes(first) for card in others)
    assert "to test" in (first / "card.md").read_text()
    dataset = minari_pipe.MinariDataset(workspace.minari_root / ID / "data")
    assert dataset.total_episodes == 3


def test_a_released_dataset_keeps_its_content_when_its_card_is_mended(
    made: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace = made[0].copy(tmp_path)
    before = [hashes(card.parent / "data") for card in cards(workspace)[1:]]
    workspace.replace("conf/dataset/dot.yaml", "to test", "to test and to show")
    assert workspace.pipe("+dataset=dot", **TRUSTED) == ["card", "publish"]
    for card in cards(workspace):
        assert "to test and to show" in (card / "card.md").read_text()
    assert [hashes(card.parent / "data") for card in cards(workspace)[1:]] == before
    workspace.run("minari-pipe", "reproduce", ID, **TRUSTED)


def test_the_card_without_a_film_is_the_same_but_for_it(
    made: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace = made[0].copy(tmp_path)
    with_film = hashes(cards(workspace)[0])
    out = workspace.run("python", "-m", "minari_pipe", "+dataset=dot", "card.film=false", **TRUSTED)
    assert "film of" not in out
    for card in cards(workspace):
        assert hashes(card) == {k: v for k, v in with_film.items() if k != FILM}


def test_a_run_does_not_fail_for_a_picture(tmp_path: Path) -> None:
    workspace = prepared(dvc_workspace(tmp_path, dot=CONFIG))
    workspace.replace("dot_env.py", "return picture", "raise RuntimeError('no lamp')")
    out = workspace.run("python", "-m", "minari_pipe", "+dataset=dot", **TRUSTED)
    assert "no film: RuntimeError: no lamp" in out
    assert "film" not in {path.stem for path in cards(workspace)[0].iterdir()}


def test_a_card_that_the_user_made_again_keeps_the_words_of_the_author(
    made: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace = made[0].copy(tmp_path)
    out = workspace.run("minari-pipe", "card", ID, "--no-film", **TRUSTED)
    assert f"{ID}: report " in out
    card = cards(workspace)[-1]
    assert "to test" in (card / "report.html").read_text()
    assert not (card / FILM).exists()


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    workspace = prepared(dvc_workspace(tmp_path, dot=CONFIG))
    told = workspace.refused("+dataset=dot", "card.limitations=[1]", **TRUSTED)
    assert "card.limitations" in told
    told = workspace.refused("+dataset=dot", "card.limits=none", **TRUSTED)
    assert "card" in told
    assert "limitations" in told


def test_dvc_draws_the_returns_of_the_card(made: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace = made[0].copy(tmp_path)
    workspace.dvc("plots", "show", "--out", "plots")
    (plot,) = (workspace.root / "plots" / "static").glob("*returns.svg")
    assert plot.read_bytes() == (cards(workspace)[0] / "returns.svg").read_bytes()
    assert plot.name in (workspace.root / "plots" / "index.html").read_text()
