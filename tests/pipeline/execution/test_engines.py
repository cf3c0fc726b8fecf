"""Engines: what each must do, and that none of them leaves a trace in the bytes of a dataset.

One pool and one cluster of each kind serve all tests here.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import gymnasium_robotics
import psutil
import pytest

from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.engine_names import ENGINES
from minari_pipe.pipeline.execution.block_task import BlockCall, BlockPlace
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.engines import crowded, make_engine
from minari_pipe.pipeline.execution.engines.base import Engine, usable_cores
from minari_pipe.pipeline.execution.engines.processes import CALLED_EXIT, DIED
from minari_pipe.pipeline.execution.inputs import Expected
from minari_pipe.pipeline.stages.collect import collect
from minari_pipe.pipeline.stages.create import create
from minari_pipe.policies.checkpoint import write_checkpoint
from tests.conftest import CHECKOUT, FULL
from tests.pipeline.stages.test_collect_create import DATASET
from tests.support.engine_works import ShuffledEngine, Text, Told, scheduler
from tests.support.ray_clusters import two_nodes

SETTINGS = schema.Engine(n_workers=2)

KINDS = ("local", "shuffled", "processes", "ray", *(["ray on two nodes"] if FULL else []))
"""``test_faults.py`` makes a dataset on two nodes of Ray in any case."""


@pytest.fixture(scope="module", params=KINDS)
def engine(request) -> Iterator[Engine]:
    """Every engine, one after another: two of Ray cannot be in one process."""
    kind = request.param
    if kind == "shuffled":
        yield ShuffledEngine(5, seed=1)
    elif kind == "ray on two nodes":
        with two_nodes() as cluster, pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", cluster.address)
            with make_engine(replace(SETTINGS, name="ray", address=cluster.address)) as made:
                yield made
    else:
        with make_engine(replace(SETTINGS, name=kind)) as made:
            yield made


def outcomes(engine: Engine, n: int, seconds: float = 60.0) -> dict[int, Any]:
    """What became of ``n`` calls."""
    found: dict[int, Any] = {}
    deadline = time.monotonic() + seconds
    while len(found) < n and time.monotonic() < deadline:
        found |= dict(engine.wait(0.2))
    return found


def call(folder: Path, work: Text, index: int = 0) -> BlockCall:
    return BlockCall(BlockStore(folder, ".txt"), index, "key", work, "0", BlockPlace(folder))


def test_calls_end_with_what_they_made_or_with_one_line(engine, tmp_path):
    engine.submit(1, call(tmp_path, Text("a"), 0))
    engine.submit(2, call(tmp_path, Text("b", "raises"), 1))
    found = outcomes(engine, 2)
    assert found[1].value["text"] == "a"
    assert (tmp_path / "block_00000.txt").read_text() == "a"
    assert found[2].value is None
    assert found[2].error == "episode 7, step 2: RuntimeError: no battery"
    assert not found[2].final


def test_a_call_may_fail_for_good_or_leave_python(engine, tmp_path):
    engine.submit(1, call(tmp_path, Text("a", "mistake"), 0))
    engine.submit(2, call(tmp_path, Text("b", "exits"), 1))
    found = outcomes(engine, 2)
    assert (found[1].error, found[1].final) == ("policy is 'x'", True)
    assert found[2].error == "the policy or the environment called sys.exit(3)"


def test_a_block_of_another_file_or_module_than_the_stage_has_is_not_made(engine, tmp_path):
    weights = tmp_path / "weights"
    weights.write_text("weights")
    same = hashlib.sha256(b"weights").hexdigest()
    code = {"tests.support.engine_works": ("engine_works.py", "0" * 64)}
    for ticket, expected, what in (
        (0, Expected("collect", {}, {str(weights): same}), None),
        (1, Expected("collect", code), "engine_works.py"),
        (2, Expected("collect", {}, {str(weights): "0" * 64}), str(weights)),
        (3, Expected("collect", {}, {str(tmp_path / "missing"): same}), str(tmp_path / "missing")),
    ):
        made = call(tmp_path, Text(f"a{ticket}"), ticket)
        engine.submit(ticket, replace(made, place=BlockPlace(tmp_path, expected=expected)))
        outcome = outcomes(engine, 1)[ticket]
        told = what and f"{what} changed while collect ran; run again"
        assert (outcome.error, outcome.final) == (told, what is not None)
        assert (tmp_path / f"block_0000{ticket}.txt").exists() == (what is None)


def test_a_process_that_dies_takes_no_other_call_with_it(engine, tmp_path):
    if engine.in_process:
        pytest.skip("its process is the test's")
    engine.submit(1, call(tmp_path, Text("a", "dies"), 0))
    engine.submit(2, call(tmp_path, Text("b"), 1))
    found = outcomes(engine, 2)
    assert found[2].value["text"] == "b"
    assert "was killed or crashed" in found[1].error
    engine.submit(3, call(tmp_path, Text("a", "dies"), 0))
    assert outcomes(engine, 1)[3].value["text"] == "a"


def test_the_exit_code_of_a_process_is_told_whoever_reads_it_first():
    """It can be read only once, and the pool has a thread of its own that reads it."""
    with make_engine(replace(SETTINGS, name="processes", n_workers=4)) as engine:
        for _ in range(100 if FULL else 10):
            for ticket in range(4):
                engine.submit(ticket, partial(os._exit, 3))
            for outcome in outcomes(engine, 4).values():
                assert outcome.error == f"its process ended with exit code 3: {CALLED_EXIT}"


def test_a_kill_of_the_process_that_workers_are_forked_from_costs_their_calls_only(tmp_path):
    with make_engine(replace(SETTINGS, name="processes")) as engine:
        engine.submit(0, call(tmp_path, Text("a"), 0))
        assert outcomes(engine, 1)[0].error is None
        server = multiprocessing.forkserver._forkserver
        if server._forkserver_pid is None:
            pytest.skip("workers are not forked here")
        for ticket in range(1, 6):
            os.kill(server._forkserver_pid, signal.SIGKILL)
            engine.submit(ticket, call(tmp_path, Text("a"), ticket))
            assert outcomes(engine, 1)[ticket].error in (None, DIED)


def test_a_call_that_hangs_can_be_cancelled_and_its_process_ends(engine, tmp_path):
    if engine.in_process:
        pytest.skip("it cannot be left while it runs")
    engine.submit(1, call(tmp_path, Text("a", "hangs"), 0))
    hanging = tmp_path / "hanging"
    deadline = time.monotonic() + 60
    while not hanging.exists() and time.monotonic() < deadline:
        assert engine.wait(0.1) == []
    pid = int(hanging.read_text())
    engine.cancel(1)
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
    engine.submit(2, call(tmp_path, Text("b"), 1))
    assert outcomes(engine, 1)[2].value["text"] == "b"


def test_workers_have_one_thread_each(engine, tmp_path):
    if engine.in_process:
        pytest.skip("the threads of this process are the user's")
    engine.submit(1, call(tmp_path, Text("OPENBLAS_NUM_THREADS", "environment"), 0))
    assert outcomes(engine, 1)[1].value["text"] == "1"


def test_nothing_of_an_engine_listens_where_others_can_reach_it(engine):
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                address = connection.laddr.ip.removeprefix("::ffff:")
                assert address == "127.0.0.1", (process.name(), connection.laddr)


# --- the bytes of a dataset


ENVIRONMENTS = {
    "CartPole": ("CartPole-v1", 60),
    "Pendulum": ("Pendulum-v1", 30),
    "HalfCheetah": ("HalfCheetah-v5", 40),
    "AdroitHandDoor": ("AdroitHandDoor-v1", 25),
}
POLICIES = ("random", "ppo", "sac", "td3")
CELLS = [
    (name, policy)
    for name, policy in itertools.product(ENVIRONMENTS, POLICIES)
    if not (name == "CartPole" and policy in ("sac", "td3"))
    and (policy in ("random", "ppo") or (policy == "sac") == (name != "HalfCheetah"))
]
PART = [("Pendulum", "sac"), ("AdroitHandDoor", "ppo")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[tuple[str, str], Path]:
    """An untrained policy for every cell of the table."""
    import stable_baselines3

    gym.register_envs(gymnasium_robotics)
    folder = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for name, policy in CELLS if FULL else PART:
        if policy != "random":
            cls = getattr(stable_baselines3, policy.upper())
            more = {} if policy == "ppo" else {"buffer_size": 10}
            model = cls("MlpPolicy", ENVIRONMENTS[name][0], seed=2, device="cpu", **more)
            found[name, policy] = folder / f"{name}-{policy}.zip"
            write_checkpoint(model, found[name, policy])
            model.env.close()
    return found


def made_by(engine: Engine, folder: Path, name: str, policy: str, checkpoint: Path | None) -> str:
    """The sha256 of the dataset that an engine makes."""
    env_id, horizon = ENVIRONMENTS[name]
    config: dict[str, Any] = {"_target_": "minari_pipe.policies.RandomPolicy"}
    if checkpoint is not None:
        config = {
            "_target_": "minari_pipe.policies.SB3Policy",
            "algorithm": policy,
            "policy_kwargs": {},
            "checkpoint": {"path": str(checkpoint)},
            "deterministic": policy == "td3",
            "noise": {"kind": "epsilon" if policy == "ppo" else "ornstein_uhlenbeck", "scale": 0.2},
        }
    for made in ("episodes", "dataset"):
        (folder / made).mkdir(parents=True)
    told = Told()
    collect(
        env=schema.Environment(env_id, {"max_episode_steps": horizon}),
        policy=PolicyConfig(schema.PolicySettings.of(config, "policy"), "policy"),
        collection=schema.Collect(n_episodes=7, block_episodes=2, n_envs=3, seed=11),
        scheduler=scheduler(folder, engine, watcher=told),
        out=folder / "episodes",
        files={},
        progress=told,
    )
    assert told.lines == []
    create(
        episodes=folder / "episodes",
        dataset=DATASET,
        author=schema.Author("Ada"),
        out=folder / "dataset",
        returns=folder / "returns.csv",
        say=lambda text: None,
    )
    return hashlib.sha256((folder / "dataset/data/main_data.hdf5").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], str]:
    """What the first engine made."""
    return {}


@pytest.mark.parametrize(("name", "policy"), CELLS if FULL else PART)
def test_no_engine_changes_a_byte(engine, name, policy, checkpoints, expected, tmp_path):
    found = made_by(engine, tmp_path, name, policy, checkpoints.get((name, policy)))
    assert found == expected.setdefault((name, policy), found)


@pytest.mark.parametrize("n_workers", [1, 3, 4] if FULL else [3])
def test_the_number_of_workers_and_their_order_change_no_byte(n_workers, checkpoints, tmp_path):
    cell = ("CartPole", "ppo" if FULL else "random")  # each worker imports an algorithm for long
    found = set()
    for seed in range(3):
        engine = ShuffledEngine(n_workers, seed)
        found.add(made_by(engine, tmp_path / str(seed), *cell, checkpoints.get(cell)))
    with make_engine(replace(SETTINGS, name="processes", n_workers=n_workers)) as engine:
        found.add(made_by(engine, tmp_path / "processes", *cell, checkpoints.get(cell)))
    assert len(found) == 1


def test_a_pool_that_is_closed_leaves_no_thread(tmp_path):
    """Which would still use its pipes while the interpreter ends, and tell of it."""
    before = set(threading.enumerate())
    with make_engine(replace(SETTINGS, name="processes")) as engine:
        engine.submit(1, call(tmp_path, Text("a"), 0))
        outcomes(engine, 1)
        engine.submit(2, call(tmp_path, Text("b", "dies"), 1))
        outcomes(engine, 1)
        engine.submit(3, call(tmp_path, Text("c", "hangs"), 2))
        engine.submit(4, call(tmp_path, Text("d"), 3))  # whose process may not have begun
    assert set(threading.enumerate()) == before


@pytest.mark.skipif(not FULL, reason="test_faults.py looks at the home after a run with Ray")
def test_ray_on_this_machine_writes_nothing_to_the_home(tmp_path):
    """To which a job of a cluster may not write at all."""
    start = (
        f"from minari_pipe.pipeline.config.schema import Engine; "
        f"from minari_pipe.pipeline.execution.engines import make_engine; "
        f"make_engine({replace(SETTINGS, name='ray')}).close()"
    )
    variables = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-c", start],
        env={**variables, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_workers_of_ray_import_nothing_of_the_folder_below_uv_run(tmp_path):
    """Ray takes the current folder of whatever ``uv run`` has started for the user's project."""
    (tmp_path / "sitecustomize.py").write_text("open(__file__ + '.ran', 'w')\n")
    (tmp_path / "run").write_text(
        "import subprocess, sys\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n"
    )
    code = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from tests.pipeline.execution.test_engines import *\n"
        "with make_engine(replace(SETTINGS, name='ray', n_workers=1)) as engine:\n"
        "    engine.submit(1, call(Path('out').absolute(), Text('a'), 0))\n"
        "    print(outcomes(engine, 1)[1].value['text'])\n"
    )
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["uv", "run", sys.executable, "-P", "-c", code],
        executable=sys.executable,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "a\n", done.stderr[-2000:]
    assert not list(tmp_path.glob("*.ran"))


# --- what can be wrong with an engine


def test_an_unknown_engine_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown engine.name 'proceses'. Did you mean 'process"):
        make_engine(replace(SETTINGS, name="proceses"))
    assert set(ENGINES) == {"local", "processes", "ray"}


def test_a_cluster_that_only_a_file_names_is_not_spoken_to():
    with pytest.raises(TrustError, match="engine.address is '10.0.0.1:6379', which comes from"):
        make_engine(replace(SETTINGS, name="ray", address="10.0.0.1:6379"))


def test_a_block_on_a_cluster_runs_in_the_workspace_or_in_an_empty_folder(tmp_path, monkeypatch):
    """There the paths of a config are checked, and not where the user typed `ray start`."""
    from minari_pipe.pipeline.execution.engines import ray

    monkeypatch.chdir("/")
    assert ray._run(os.getcwd, str(tmp_path)) == str(tmp_path)
    monkeypatch.chdir("/")
    empty, names = ray._run(lambda: (os.getcwd(), os.listdir()), str(tmp_path / "not on this node"))
    assert Path(empty).name.startswith("minari_pipe-")
    assert names == []
    assert os.getcwd() == "/"
    assert not Path(empty).exists()


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", "127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"no Ray cluster at engine.address='127.0.0.1:9': "):
        make_engine(replace(SETTINGS, name="ray", address="127.0.0.1:9"))


def test_more_workers_than_cores_are_told_where_they_cost_time():
    cores = usable_cores()
    more = replace(SETTINGS, name="processes", n_workers=cores + 1)
    told = crowded(more)
    assert told is not None
    assert f"engine.n_workers is {cores + 1}, but this process may use only {cores} cores" in told
    fine: list[dict[str, Any]] = [
        {"n_workers": cores},
        {"n_workers": None},
        {"name": "local"},
        {"name": "ray", "address": "auto"},
    ]
    assert [crowded(replace(more, **settings)) for settings in fine] == [None] * 4
