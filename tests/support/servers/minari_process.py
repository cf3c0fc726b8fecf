"""Real Minari in a process of its own, which a server's variables lead to that server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import CHECKOUT
from tests.support.servers.running import environment

COLLECT = """
import gymnasium as gym, minari

def collect(dataset_id):
    env = minari.DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=1)
    env.action_space.seed(1)
    while not any(env.step(env.action_space.sample())[2:4]): pass
    env.create_dataset(
        dataset_id, author="a", author_email="b", code_permalink="c", algorithm_name="d",
        description="e",
    )
"""
"""Defines ``collect(dataset_id)``, which makes a dataset of one episode."""


def run_minari(
    variables: Mapping[str, str], home: Path, code: str, *, remote: str = "hf://org"
) -> str:
    """Run code, and return what it printed.

    Args:
        variables: of the server's clients.
        home: whose home it is; the datasets are in ``root`` there.
        code: lines of Python.
        remote: what ``MINARI_REMOTE`` says.
    """
    (home / "root").mkdir(parents=True, exist_ok=True)
    own = {"HOME": home, "HF_HOME": home / "hf", "MINARI_DATASETS_PATH": home / "root"}
    settings = {**variables, **{k: str(v) for k, v in own.items()}, "MINARI_REMOTE": remote}
    code = f"from tests.support.peer import let_minari_collect\nlet_minari_collect()\n{code}"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
