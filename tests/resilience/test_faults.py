"""kill -9 of driver, worker or node of every engine: no episode is lost, doubled or changed.

``pytest -s tests/resilience/test_faults.py`` prints each kill with its phase. The
engine ``local`` is killed in ``test_kill.py``, whose process does both.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import psutil
import pytest

from tests.conftest import FULL, home_variables
from tests.support.interruption import Place, Run, complete, end_all, make_place
from tests.support.ray_clusters import two_nodes

CONFIG = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/killed-v0, description: Made to be killed.}
author: {name: Ada}
env: {id: CartPole-v1}
collect: {n_episodes: 120, block_episodes: 4, n_envs: 2, seed: 5}
ref_scores: {ref_min_score: 10.0, ref_max_score: 500.0}
"""
N_EPISODES, N_BLOCKS = 120, 30
N_CHAINS = 10 if FULL else 1
"""Of kills, of either kind and of each engine."""
PARTS = {"processes": slice(1, 3), "ray": slice(3, None)}
"""Of the phases, in ``make test``: workers write blocks alike, whichever engine they are of."""

PHASES: dict[str, dict[str, Any]] = {
    "in the middle of an episode": {"target": "minari_pipe.policies.rollout:_step", "call": 60},
    "inside fsync": {"target": "os:fsync", "call": 2},
    "inside the hashing of a block": {
        "target": "minari_pipe.core.files.atomic:sha256_file",
        "call": 1,
    },
    "inside the rename of a block": {"target": "os:replace", "call": 3},
    "inside the rename of a record": {"target": "os:replace", "call": 2},
}

hits: list[bool] = []
"""Of each kill: whether it hit unfinished work."""


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> Place:
    """The place of a run that nobody disturbed, on the engine that has no workers."""
    place = make_place(tmp_path_factory.mktemp("wanted") / "place", killed=CONFIG)
    complete(place)
    return place


@pytest.fixture(scope="module", params=["processes", "ray"])
def engine(request) -> Iterator[Engine]:
    if request.param == "processes":
        yield Engine("processes", None)
        return
    with two_nodes() as cluster:
        yield Engine("ray", cluster)


class Engine:
    """An engine of two workers, and what of it can be killed."""

    def __init__(self, name: str, cluster: Any) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def arguments(self) -> list[str]:
        words = ["+dataset=killed", f"engine={self.name}", "engine.n_workers=2"]
        if self.cluster is not None:
            words.append(f"engine.address={self.cluster.address}")
        return words

    @property
    def workers(self) -> tuple[str, ...]:
        """What can be killed of it without the end of a run."""
        return ("worker", "node") if self.cluster is not None else ("worker",)

    def run(self, place: Place, barrier: dict[str, Any] | None = None) -> Run:
        variables = {}
        if barrier is not None and self.cluster is not None:
            # Workers of a cluster have the environment of their node.
            own = place.environment(barrier)
            names = ("PYTHONPATH", "MINARI_PIPE_TEST_BARRIER", "PYTHONDONTWRITEBYTECODE")
            env = {"runtime_env": {"env_vars": {name: own[name] for name in names}}}
            variables["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(env)
        return Run(place, *self.arguments, barrier=barrier, **variables)

    def kill(self, victim: str, run: Run, worker: int | None) -> bool:
        """kill -9; whether there was something to kill."""
        if victim == "node":
            node = sorted(self.cluster.worker_nodes, key=lambda n: n.node_id)[0]
            self.cluster.remove_node(node, allow_graceful=False)
            return True
        if victim != "worker":
            return bool(run.kill(victim))
        try:
            psutil.Process(worker or 0).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def mend(self) -> None:
        """Bring back a node that was killed."""
        if self.cluster is not None and not self.cluster.worker_nodes:
            self.cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")


class Kill(NamedTuple):
    """Of whom, when a worker has come how far."""

    victim: str
    barrier: dict[str, Any]
    phase: str


def kill_again_and_again(engine: Engine, place: Place, kills: list[Kill], wanted: Place) -> None:
    """Run the same command until it ends whole, which is with the wanted bytes.

    A run ends with its driver or stage, and the next one goes on; that of a worker or a node it
    outlives, which makes it the last.
    """
    kept, code, err = 0, 1, ""
    for victim, barrier, phase in kills:
        assert code != 0, "a run was whole before its turn to be killed"
        run = engine.run(place, {"role": "worker", **barrier})
        run.await_barrier(90)
        worker = int((place.folder / "talk" / "reached").read_text())
        before = place.finished_blocks()
        killed = engine.kill(victim, run, worker)
        if victim in engine.workers:  # else they wait for their end, as the next kills need blocks
            run.release()
        code, _, err = run.end(180)
        place.assert_nothing_runs(10)
        hits.append(killed and before < N_BLOCKS)
        print(
            f"kill -9 of {victim} of {engine.name} {phase}; {before} of {N_BLOCKS} blocks finished"
        )
        engine.mend()
        assert "Traceback" not in err, err
        if code != 0:
            kept = place.finished_blocks()
            assert kept >= before
    assert code == 0, err  # the block of the worker is made again by another
    if kept:  # by those that were killed, the last one took it
        assert f"collect: {kept} of {N_BLOCKS} blocks were already finished" in err, err
    assert place.results() == wanted.results()
    assert place.files() == wanted.files()
    assert_whole(place)


def assert_whole(place: Place) -> None:
    """No episode is lost or there twice: each has a seed of its own."""
    path = place.work / "datasets" / "tests" / "killed-v0" / "data" / "main_data.hdf5"
    with h5py.File(path) as file:
        seeds = [int(file[f"episode_{i}"].attrs["seed"]) for i in range(len(file))]
    assert len(seeds) == len(set(seeds)) == N_EPISODES


def victims(engine: Engine, turn: int) -> list[str]:
    """Of a chain: the driver and the stage in turn, and at last what the run outlives."""
    last = engine.workers[turn % len(engine.workers)]
    return [("driver", "stage")[(turn + i) % 2] for i in range(4)] + [last]


@pytest.mark.parametrize("turn", range(N_CHAINS))
def test_killed_where_it_hurts(turn, engine, wanted, tmp_path):
    phases = [*PHASES][turn % 5 :] + [*PHASES][: turn % 5]
    if not FULL:
        phases = phases[PARTS[engine.name]]
    who = victims(engine, turn)[-len(phases) :]
    kills = [Kill(v, PHASES[phase], phase) for v, phase in zip(who, phases, strict=True)]
    kill_again_and_again(engine, make_place(tmp_path / "place", killed=CONFIG), kills, wanted)
    shutil.rmtree(tmp_path / "place")


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL kills at seeded moments as well")
@pytest.mark.parametrize("seed", range(N_CHAINS))
def test_killed_at_seeded_moments(seed, engine, wanted, tmp_path):
    """A moment is the n-th step or the n-th change of a file by one of the workers."""
    rng = random.Random(seed)
    kills = []
    for victim in victims(engine, seed + 1):
        if rng.random() < 0.5:
            call = rng.randint(1, 60)
            barrier = {"target": "minari_pipe.policies.rollout:_step", "call": call}
            phase = f"before step {call} of a worker"
        else:
            event = rng.randint(1, 8)
            barrier = {"event": event}
            phase = f"before change {event} of a file by a worker"
        kills.append(Kill(victim, barrier, phase))
    kill_again_and_again(engine, make_place(tmp_path / "place", killed=CONFIG), kills, wanted)
    shutil.rmtree(tmp_path / "place")


HOW = ("SIGINT", "SIGTERM", "kill -9 of all but the workers")
STOPPED = [("processes", HOW[0]), ("processes", HOW[2]), ("ray", HOW[1])]


@pytest.mark.parametrize(
    ("name", "how"), [(n, h) for n in ("processes", "ray") for h in HOW] if FULL else STOPPED
)
def test_no_process_outlives_a_run_that_is_stopped(name, how, wanted, tmp_path, monkeypatch):
    """Here the run starts Ray itself, which may write nothing to the home: a job of a cluster can
    find one that is read-only.
    """
    monkeypatch.delenv("RAY_AUTH_TOKEN")  # a user has none
    place = make_place(tmp_path / "place", killed=CONFIG)
    engine = Engine(name, None)
    barrier = {"role": "worker", "target": "minari_pipe.policies.rollout:_step", "call": 70}
    run = engine.run(place, barrier)
    run.await_barrier(90)
    finished = place.finished_blocks()
    if how == "SIGINT":
        run.tell_group(signal.SIGINT)
    elif how == "SIGTERM":
        run.process.send_signal(signal.SIGTERM)
    else:
        run.kill("driver", "shell", "stage")
    code, _, err = run.end(60)
    place.assert_nothing_runs(15)
    assert code != 0
    assert "Traceback" not in err
    if not how.startswith("kill"):
        last = err.splitlines()[-1]
        assert last == "stopped; finished work is kept; run the same command to continue"
    assert place.finished_blocks() >= finished
    named = {Path(path).name for path in home_variables(place.home).values()}
    assert {path.name for path in place.home.iterdir()} <= named
    complete(place, *Engine("processes", None).arguments)
    assert place.results() == wanted.results()


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL waits for a cluster to be lost")
@pytest.mark.parametrize("head_too", [False, True], ids=["nodes", "head"])
def test_a_cluster_that_loses_all_its_nodes_ends_the_run_and_costs_no_block(
    head_too, wanted, tmp_path
):
    place = make_place(tmp_path / "place", killed=CONFIG)
    with two_nodes(head_works=False) as cluster:
        barrier = {"role": "worker", "target": "minari_pipe.policies.rollout:_step", "call": 90}
        run = Engine("ray", cluster).run(place, barrier)
        run.await_barrier(90)
        finished = place.finished_blocks()
        for node in [*cluster.worker_nodes, *([cluster.head_node] if head_too else [])]:
            cluster.remove_node(node, allow_graceful=False)
        run.release()
        code, _, err = run.end(180)
    place.assert_nothing_runs(15)
    assert code != 0
    assert "Traceback" not in err
    what = "has had no node with a processor .*"
    if head_too:
        what = r"at 127\.0\.0\.1:\d+ does not respond: .*"
    line = (
        f"error: collect: the Ray cluster {what}; finished work is kept; once it .*, run the same "
        f"command to continue"
    )
    assert re.match(line, err.splitlines()[-1]), err
    assert place.finished_blocks() >= finished
    complete(place, *Engine("processes", None).arguments)
    assert place.results() == wanted.results()


def test_most_kills_hit_unfinished_work():
    if len(hits) < len(PHASES):
        pytest.skip("counts the kills of the whole file")
    print(f"{sum(hits)} of {len(hits)} kills hit unfinished work")
    assert sum(hits) >= len(hits) / 2
