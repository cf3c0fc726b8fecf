"""What the scenarios of Minari's defects share: a register, the same calls to both libraries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.dataset.minari_storage import MinariStorage as TheirStorage

import minari_pipe
from minari_pipe.recording.recovery import recover
from tests.conftest import CHECKOUT
from tests.support.peer import let_minari_collect

Scenario = Callable[[ModuleType], None]


class Defect(NamedTuple):
    """A scenario that fails if a library has the defect, and how it fails on real Minari."""

    scenario: Scenario
    error: type[BaseException] | None
    """What it raises there; None if real Minari has mended the defect."""
    match: str | None


DEFECTS: dict[str, Defect] = {}

#: what each scenario comes to on real Minari 0.5.4, in a sentence
MINARI_S_RESULT: dict[str, str] = {}

ABSENT = "absent in 0.5.4 too"


def in_minari(
    result: str, error: type[BaseException] | None = None, match: str | None = None
) -> Callable[[Scenario], Scenario]:
    """Register a scenario under its name, with its result on real Minari."""

    def register(scenario: Scenario) -> Scenario:
        name = scenario.__name__.replace("_", " ")
        name = name[0].upper() + name[1:]
        DEFECTS[name] = Defect(scenario, error, match)
        MINARI_S_RESULT[name] = result
        return scenario

    return register


ROW = spaces.Box(-1000, 1000, (1,), np.float64)
SPACES = {"observation_space": ROW, "action_space": spaces.Discrete(100)}


def is_ours(library: ModuleType) -> bool:
    return library is minari_pipe


def root() -> Path:
    return minari_pipe.get_dataset_path()


def buffer(library: ModuleType, steps: int = 3, **changes: Any) -> Any:
    """An episode that observes the step index."""
    fields = {
        "observations": np.arange(steps + 1.0)[:, None],
        "actions": np.arange(steps) % 100,
        "rewards": np.arange(1.0, steps + 1),
        "terminations": np.arange(1, steps + 1) == steps,
        "truncations": np.zeros(steps, bool),
        "infos": {},
    }
    home = minari_pipe if is_ours(library) else minari.data_collector
    return home.EpisodeBuffer(**{**fields, **changes})


def create(library: ModuleType, name: str = "aa/b-v0", buffers: Any = None, **options: Any) -> Any:
    """A dataset, of one episode of 3 steps unless others are given."""
    buffers = [buffer(library)] if buffers is None else buffers
    return library.create_dataset_from_buffers(name, buffers, **{**SPACES, **options})


def new_storage(library: ModuleType, space: gym.Space = ROW, **options: Any) -> Any:
    """An empty storage below the root."""
    home = minari_pipe.MinariStorage if is_ours(library) else TheirStorage
    return home.new(root() / "storage", space, SPACES["action_space"], **options)


def attributes(dataset: Any, index: int = 0) -> dict[str, Any]:
    return next(iter(dataset.storage.get_episode_metadata([index])))


@contextmanager
def collecting(
    library: ModuleType, env: gym.Env, *, jax: bool = True, **options: Any
) -> Iterator[Any]:
    """A collector in a process that has jax, or what real Minari uses of it, or that has not."""
    with pytest.MonkeyPatch.context() as patch:
        let_minari_collect(patch)
        if not jax:
            patch.setitem(sys.modules, "jax", None)
            patch.setitem(sys.modules, "jax.tree_util", None)
        collector = library.DataCollector(env, **options)
        try:
            yield collector
        finally:
            collector.close()
            if not is_ours(library):
                collector._tmp_dir._finalizer.detach()  # of what close() has removed


def in_a_child(library: ModuleType, code: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which ``library`` is the library."""
    code = f"import {library.__name__} as library\n{code}"
    child = [sys.executable, "-c", code]
    return subprocess.run(child, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)


COLLECT = """
import os
import gymnasium as gym
from tests.support.peer import let_minari_collect

let_minari_collect()
env = library.DataCollector(gym.make("CartPole-v1", max_episode_steps=3))
for seed in range(3):
    env.reset(seed=seed)
    for action in (0, 1, 0):
        env.step(action)
"""


def rescued(library: ModuleType) -> int:
    """The number of episodes that the library gives back of what a script left."""
    if is_ours(library):
        return len(recover("aa/rescued-v0"))
    left = sorted(root().glob("tmp*"))
    assert left, "nothing is left"
    return len(library.MinariDataset(left[0]))
