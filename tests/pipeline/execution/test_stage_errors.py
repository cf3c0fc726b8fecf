"""A stage that cannot go on says why in one line; nothing is lost, and the rerun goes on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from tests.conftest import FULL
from tests.support import forks
from tests.support.interruption import (
    CONFIG,
    Place,
    Run,
    complete,
    end_all,
    make_place,
    undisturbed,
)


@pytest.fixture(autouse=True)
def _tidy():
    yield
    end_all()


def errors(run: Run) -> list[str]:
    """The error lines of a run that failed as it should."""
    code, _, err = run.end()
    return error_lines(code, err)


def errors_of(place: Place, *arguments: str) -> list[str]:
    """The same of a run that nothing disturbs, as forks."""
    command = (sys.executable, "-m", "minari_pipe", "+dataset=killed", *arguments)
    done = forks.run(command, place.work, place.environment(), stderr=subprocess.PIPE)
    return error_lines(done.returncode, done.stderr)


def error_lines(code: int, err: str) -> list[str]:
    assert code == 1, err
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("error: ")]


def assert_goes_on(place: Place, wanted: Place, n_blocks: int) -> None:
    assert f"collect: {n_blocks} of 4 blocks were already finished" in complete(place)
    assert place.results() == wanted.results()
    assert place.files() == wanted.files()


def test_a_full_disk_in_a_stage(tmp_path, tmp_path_factory):
    place = make_place(tmp_path / "place")
    where = "minari_pipe.pipeline.execution.blocks:sync_to_disk"
    run = Run(place, barrier={"role": "collect", "target": where, "call": 3, "do": "full"})
    (stage,) = errors(run)
    assert stage == "error: collect: the disk is full: [Errno 28] No space left on device"
    assert_goes_on(place, undisturbed(tmp_path_factory), 2)


WRITES_OF_DVC = ["ruamel.yaml.main:YAML.dump", "dvc.output:Output.commit"]


@pytest.mark.parametrize("where", WRITES_OF_DVC if FULL else WRITES_OF_DVC[:1])
def test_a_full_disk_in_dvc(where, tmp_path, tmp_path_factory):
    place = make_place(tmp_path / "place")
    call = 2 if "YAML" in where else 1  # the first is not of dvc.lock
    run = Run(place, barrier={"role": "driver", "target": where, "call": call, "do": "full"})
    (line,) = errors(run)
    assert "No space left on device" in line
    complete(place)
    assert place.results() == undisturbed(tmp_path_factory).results()


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL fills a small file system")
def test_a_full_disk_for_real(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    text = CONFIG.format(id="tests/killed-v0").replace(
        "n_episodes: 12, block_episodes: 3", "n_episodes: 800, block_episodes: 200"
    )
    wanted = make_place(tmp_path / "large", killed=text)
    complete(wanted)
    # Room for what DVC keeps and the first blocks of collect.
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=650k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        place = make_place(folder / "place", killed=text)
        lines = errors(Run(place))
        assert lines[0].startswith("error: collect: the disk is full: ")
        assert len(lines) == 1
        n_blocks = place.finished_blocks()
        assert 0 < n_blocks < 4, n_blocks
        subprocess.run(["mount", "-o", "remount,size=100m", str(folder)], check=True)
        assert_goes_on(place, wanted, n_blocks)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_file_that_may_not_grow(tmp_path, monkeypatch):
    """What a quota or a limit of the system does to the writer of a block."""
    text = CONFIG.format(id="tests/killed-v0").replace(
        "12, block_episodes: 3", "800, block_episodes: 800"
    )
    place = make_place(tmp_path / "place", killed=text)
    real = os.setpgid

    def limited(pid: int, group: int) -> None:  # in the child, before it becomes the driver
        real(pid, group)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    monkeypatch.setattr(os, "setpgid", limited)
    with forks.enabled(False):  # a fork would not begin in this process
        run = Run(place)
    monkeypatch.undo()
    (stage,) = errors(run)
    assert stage.startswith("error: collect: ")
    assert "File too large" in stage
    if FULL:
        complete(place)


ENVIRONMENT = """\
import gymnasium as gym
import numpy as np

class Boom(gym.Env):
    observation_space = gym.spaces.Box(0, 9, (1,))
    action_space = gym.spaces.Discrete(2)
    n = -1
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Boom.n += 1
        self.t = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.t += 1
        if (Boom.n, self.t) == (WHEN, 3):
            WHAT
        return np.full(1, self.t, np.float32), 1.0, self.t == 5, False, {}

gym.register("Boom-v0", entry_point=Boom, max_episode_steps=9)
"""

FAULTS = {
    "an exception": (
        'raise ValueError("boom\\n boom")',
        "episode 7, step 2: ValueError: boom boom",
        True,
    ),
    "no memory": ("raise MemoryError", "episode 7, step 2: MemoryError", FULL),
    "an exit": ("import sys; sys.exit(0)", "episode 7, step 2: SystemExit: 0", FULL),
}


@pytest.mark.parametrize(("what", "told", "goes_on"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_environment_names_episode_and_step(what, told, goes_on, tmp_path):
    config = CONFIG.format(id="tests/killed-v0").replace("CartPole-v1", "'boom:Boom-v0'")
    config = config.replace("n_envs: 2", "n_envs: 1").replace(
        "block_episodes: 3", "block_episodes: 20"
    )
    place = make_place(tmp_path / "place", killed=config)
    module = place.work / "boom.py"
    module.write_text(ENVIRONMENT.replace("WHEN", "7").replace("WHAT", what))
    once = "engine.max_retries=0"  # another attempt would go well
    (stage,) = errors_of(place, once, "--trust-module", "boom")
    assert stage.startswith("error: collect: ")
    assert told in stage
    if not goes_on:
        return
    module.write_text(module.read_text().replace("== (7, 3)", "== (-7, 3)"))
    assert "killed: ran collect" in complete(place, "+dataset=killed", "--trust-module", "boom")


ENDS = {
    "local, as if all was well": (
        "os._exit(0)",
        "error: stage collect of killed ended with exit code 0 in block 0, ",
    ),
    "local": ("os._exit(3)", "error: stage collect of killed ended with exit code 3 in block 0, "),
    "by a signal": (
        "os.abort()",
        "error: stage collect of killed was killed by SIGABRT in block 0, ",
    ),
    "processes": (
        "os._exit(3)",
        "error: collect: block 0: its process ended with exit code 3: the",
    ),
}


@pytest.mark.parametrize("engine", ENDS)
def test_a_process_that_the_environment_ends_is_named_with_block_and_episode(engine, tmp_path):
    what, told = ENDS[engine]
    config = CONFIG.format(id="tests/killed-v0").replace("CartPole-v1", "'boom:Boom-v0'")
    config = config.replace("n_envs: 2", "n_envs: 1").replace("episodes: 3", "episodes: 20")
    place = make_place(tmp_path / "place", killed=config)
    text = ENVIRONMENT.replace("WHEN", "7").replace("WHAT", f"import os; {what}")
    (place.work / "boom.py").write_text(text)
    chosen = ["engine=processes", "engine.max_retries=0"] if engine == "processes" else []
    (line,) = errors_of(place, "--trust-module", "boom", *chosen)
    assert line.startswith(told)
    assert "episode 7 or one running alongside it" in line


def test_a_fault_in_the_making_of_the_environment_is_one_line(tmp_path):
    config = CONFIG.format(id="tests/killed-v0").replace("CartPole-v1", "'boom:Boom-v0'")
    place = make_place(tmp_path / "place", killed=config)
    text = ENVIRONMENT.replace("WHEN", "7").replace("WHAT", "pass")
    (place.work / "boom.py").write_text(
        text.replace("    n = -1", "    n = -1\n    def __init__(self): raise KeyError('no asset')")
    )
    (stage,) = errors_of(place, "--trust-module", "boom")
    assert stage.startswith("error: collect: ")
    assert "no asset" in stage
    assert not (place.work / "pipelines" / "killed").exists()
