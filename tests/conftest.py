"""What all tests share: a home of their own, a tiny environment, the data beside the checkout."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from tests.support.servers.running import AT_HOME

# Before a test imports what reads it.
os.environ.update(AT_HOME)
# Container images set this. Every process that a test starts would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = CHECKOUT.parent / "shared" / "data"
FULL = os.environ.get("MINARI_PIPE_FULL") == "1"
"""`make test-all`: all combinations of what is once in `make test`, random cases at full count."""


LONGEST = (
    "test_stages_rerun",
    "test_faults",
    "test_families",
    "test_reproduce",
    "test_reproducible",
    "test_kill",
    "test_stranger_imports",
    "test_bad_input",
    "test_targets",
    "test_inputs",
    "test_door_human",
    "test_stage_errors",
    "test_stranger",
    "test_signals",
    "test_dvc",
    "test_pull",
    "test_versions",
    "test_remotes",
    "test_engines",
    "test_concurrency",
    "test_arrow_storage",
    "test_benchmarks",
    "test_hdf5_storage",
    "test_families_bad_input",
    "test_recipes",
    "test_readme",
    "test_remote_bad_input",
)
"""The files that take 20 seconds or more, as the table of time shows."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import and list the tests without the garbage collector, which takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what holds no tests, which ``--doctest-modules`` would import as well."""
    is_module = collection_path.suffix == ".py"
    return True if is_module and not collection_path.name.startswith("test_") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that at the end no process is left alone with one.

    ``--no-loadscope-reorder`` keeps this order: pytest-xdist's own puts files of few tests last,
    and those are the long ones.
    """
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Places for one home after another.

    Numbered here, since pytest lists its whole folder to find its next number, for each of
    thousands of tests.
    """
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep every test away from the user's datasets, caches, trust and DVC settings.

    It is removed after the test: thousands of them would fill a small disk.
    """
    home = next(homes)
    home.mkdir()
    for variable, place in home_variables(home).items():
        monkeypatch.setenv(variable, place)
    for variable in ("MINARI_PIPE_TRUSTED_MODULES", "MINARI_PIPE_TRUSTED_SHA256"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("MINARI_PIPE_MIRROR", "MINARI_PIPE_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    # A command line that runs inside the test sets it, and stages of later tests would show
    # tracebacks; what is set here is set back after each test.
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setenv("MINARI_PIPE_RAN", "")
    # So does a pipeline that runs inside the test; here it is not set, and not afterwards either.
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv("PYTHONSAFEPATH")
    yield home
    shutil.rmtree(home, ignore_errors=True)


def home_variables(home: Path) -> dict[str, str]:
    """Environment variables that keep a process inside ``home``."""
    places = {
        "HOME": ".",
        "XDG_CONFIG_HOME": "config",
        "XDG_CACHE_HOME": "cache",
        "MINARI_DATASETS_PATH": "datasets",
        "DVC_GLOBAL_CONFIG_DIR": "dvc-global",
        "DVC_SYSTEM_CONFIG_DIR": "dvc-system",
        "DVC_SITE_CACHE_DIR": "dvc-site",
    }
    return {k: str(home / v) for k, v in places.items()} | {"DVC_NO_ANALYTICS": "1"}


@pytest.fixture(scope="session")
def demonstrations_dir() -> Path:
    """The real demonstrations, which are not part of the project."""
    folder = SHARED / "demonstrations"
    if not folder.is_dir():
        pytest.skip(f"the real demonstrations are not at {folder}")
    return folder


class StepIndex(gym.Env):
    """Observes the step index, so that order and the last observation are visible.

    The reward is drawn from the environment's generator, which makes the seed visible; odd steps
    carry an info key that even ones lack.
    """

    observation_space = gym.spaces.Box(0, 1000, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.length = (options or {}).get("length", self.length)
        return np.array([0.0]), {}

    def step(self, action):
        self.t += 1
        reward = float(self.np_random.normal()) + float(np.sum(action))
        info = {"odd": True} if self.t % 2 else {}
        return np.array([float(self.t)]), reward, self.t >= self.length, False, info


@pytest.fixture(scope="session", autouse=True)
def step_index() -> str:
    """The id of :class:`StepIndex`, registered for the whole run."""
    gym.register("StepIndex-v0", entry_point=StepIndex, max_episode_steps=50)
    return "StepIndex-v0"


def pytest_terminal_summary(terminalreporter) -> None:
    """Print a table of time by file: what is slow is seen before it hurts."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                name = report.nodeid.split("::")[0]
                name = name if name.startswith("tests/") else "doctests"
                seconds[name] = seconds.get(name, 0.0) + report.duration
    terminalreporter.section("time by file")
    for name, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{total:8.1f} s  {name}")


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> Iterator[None]:
    """Commands of workspaces are forks on Linux, unless `make test-all` wants processes."""
    from tests.support import forks

    with forks.enabled(not FULL and sys.platform == "linux"):
        yield


@pytest.fixture
def real_processes() -> Iterator[None]:
    """Every command is a new Python: for claims about processes, imports and signals."""
    from tests.support import forks

    with forks.enabled(False):
        yield
