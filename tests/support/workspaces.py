"""Workspaces in temporary folders, in which the real pipeline runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import forks

TINY = """\
# @package _global_
defaults: [{{/policy: random}}, {{/policy@ref_scores.expert: random}}, _self_]
dataset: {{id: {id}, description: a tiny dataset for tests}}
author: {{name: Ada, email: ada@example.org}}
env: {{id: CartPole-v1}}
collect: {{n_episodes: 4, block_episodes: 2, n_envs: 2}}
ref_scores: {{n_episodes: 4, ref_max_score: 500.0}}
"""


def make_workspace(folder: Path, **datasets: str) -> Path:
    """A workspace as ``dvc init --no-scm`` leaves it, with a config for each of ``datasets``."""
    (folder / ".dvc" / "tmp").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    for name, text in datasets.items():
        write_config(folder, name, text)
    return folder


def write_config(folder: Path, name: str, text: str) -> None:
    """Write ``conf/dataset/NAME.yaml``; without its own word on a film, which takes seconds."""
    text += "" if "card:" in text else "card: {film: false}\n"
    path = folder / "conf" / "dataset" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tiny(dataset_id: str) -> str:
    """A config that makes four episodes of CartPole with random actions."""
    return TINY.format(id=dataset_id)


def minari_pipe(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m minari_pipe`` in ``folder`` and wait for it."""
    words = [sys.executable, "-m", "minari_pipe", *arguments]
    variables = {**os.environ, **environment}
    return forks.run(words, folder, variables, stderr=subprocess.PIPE)


def run_ok(folder: Path, *arguments: str, **environment: str) -> str:
    """Run a pipeline that must succeed; what it printed on stdout."""
    done = minari_pipe(folder, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stages_that_ran(stdout: str) -> list[str]:
    """The stages that the last line but one names."""
    line = next(line for line in stdout.splitlines() if " -> datasets/" in line)
    middle = line.split(": ", 1)[1].split(" -> ")[0]
    return [] if middle == "up to date" else middle.removeprefix("ran ").split(", ")


def validation(folder: Path, name: str) -> dict:
    return json.loads((folder / "pipelines" / name / "validation.json").read_text())
