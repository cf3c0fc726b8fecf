"""kill -9 at any moment: the same command goes on and ends with the very same bytes.

``pytest -s tests/resilience/test_kill.py`` prints each kill with its phase.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import FULL
from tests.support.interruption import (
    STAGES,
    Place,
    Run,
    complete,
    copy_place,
    end_all,
    make_place,
    unreaped,
    wait_until,
)
from tests.support.workspaces import stages_that_ran

VICTIMS = (
    ("driver",),
    ("shell",),
    ("stage",),
    ("driver", "shell"),
    ("driver", "stage"),
    ("shell", "stage"),
    ("driver", "shell", "stage"),
)
N_SEEDED = 70 if FULL else 1

BLOCK = "minari_pipe.pipeline.execution.blocks:BlockStore.make"
PHASES = {
    "in the middle of a block": {
        "role": "collect",
        "target": "minari_pipe.policies.rollout:_step",
        "call": 80,
    },
    "between a block and its record": {
        "role": "collect",
        "target": "minari_pipe.pipeline.workspace:write_atomic",
        "call": 2,
    },
    "after the last block": {
        "role": "collect",
        "target": "minari_pipe.pipeline.workspace_links:inside",
    },
    "while DVC hashes": {"role": "driver", "target": "dvc.output:Output.save"},
    "while DVC fills its cache": {"role": "driver", "target": "dvc.output:Output.commit"},
    "while DVC writes dvc.lock": {
        "role": "driver",
        "target": "ruamel.yaml.main:YAML.dump",
        "call": 2,
    },
    "while DVC writes its path locks": {"role": "driver", "target": "json:dump", "call": 3},
}

PHASE_VICTIMS = {
    "in the middle of a block": ("driver", "shell", "stage"),
    "between a block and its record": ("stage",),
    "after the last block": ("shell",),
}
"""Else the driver."""

HALF_WRITTEN = {
    "while DVC writes dvc.lock": "pipelines/killed/dvc.lock",
    "while DVC writes its path locks": ".dvc/tmp/rwlock",
}

hits: list[bool] = []
"""Of each kill: whether it hit unfinished work."""


@pytest.fixture(autouse=True)
def _tidy():
    yield
    end_all()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> Place:
    """The place of a run that nobody disturbed.

    ``talk/events.ROLE`` holds how often a process of it changed a file.
    """
    place = make_place(tmp_path_factory.mktemp("wanted") / "place")
    code, out, err = Run(place, barrier={"role": "any", "event": 0}).end()
    assert code == 0, out + err
    return place


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> dict[str, Place]:
    """Where a run can start: from nothing, or killed (all of it) when a later stage began."""
    folder = tmp_path_factory.mktemp("starts")
    place = make_place(folder / "collect")
    found = {"collect": place}
    for stage in ("ref_scores", "validate"):
        place = copy_place(place, folder / stage)
        run = Run(
            place,
            barrier={"role": stage, "target": "minari_pipe.pipeline.execution.stage:run_stage"},
        )
        run.await_barrier()
        run.kill("driver", "shell", "stage")
        run.end()
        place.assert_nothing_runs()
        found[stage] = place
    return found


def start_of(role: str, starts: dict[str, Place]) -> Place:
    late = {"create": "collect", "card": "validate", "publish": "validate", "driver": "collect"}
    return starts[late.get(role, role)]


def kill(
    place: Place,
    barrier: dict,
    victims: tuple[str, ...],
    phase: str,
    half_written: str | None = None,
) -> None:
    """Run the command and kill ``victims`` at the barrier."""
    # The driver is killed between stages, when it has no shell.
    run = Run(place, barrier=barrier, shell=FULL or barrier["role"] != "driver")
    run.await_barrier()
    assert run.process.pid in {process.pid for process in place.processes()}
    if half_written is not None:
        assert (place.work / half_written).read_text() == ""
    recorded = place.recorded()
    killed = run.kill(*victims)
    run.release()
    code, _, err = run.end()
    assert killed
    place.assert_nothing_runs()
    hits.append("publish" not in recorded)
    print(
        f"kill -9 of {' and '.join(killed)} {phase}; recorded: {', '.join(recorded) or 'nothing'}; "
        f"{place.finished_blocks()} blocks finished"
    )
    if "driver" not in killed:
        assert code == 1, err
        assert "Traceback" not in err
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1, err


def go_on(place: Place, wanted: Place) -> None:
    """Run the same command again, without disturbance, and compare with ``wanted``."""
    n_blocks = place.finished_blocks()
    printed = complete(place)
    if "collect" in stages_that_ran(printed):  # else the whole stage was taken
        found = re.search(r"collect: (\d+) of 4 blocks were already finished", printed)
        assert int(found[1] if found else 0) == n_blocks, printed
    assert_same(place, wanted)


def assert_same(place: Place, wanted: Place) -> None:
    assert place.results() == wanted.results()
    assert place.files() == wanted.files()
    place.assert_nothing_runs()


MOST = [phase for phase in PHASES if phase != "while DVC fills its cache"]


@pytest.mark.parametrize("phases", [[p] for p in PHASES] if FULL else [MOST])
def test_killed_where_it_hurts(phases, starts, wanted, tmp_path):
    """In ``make test`` one phase after another in the same place, which is to outlive them all."""
    place = copy_place(starts["collect"], tmp_path / "place")
    for phase in phases:
        victims = PHASE_VICTIMS.get(phase, ("driver",))
        kill(place, PHASES[phase], victims, phase, HALF_WRITTEN.get(phase))
    go_on(place, wanted)


@pytest.mark.parametrize("seed", range(N_SEEDED))
def test_killed_at_a_seeded_moment(seed, starts, wanted, tmp_path):
    """The moment is the n-th change of a file by the driver or by one of the stages."""
    rng = random.Random(seed)
    victims = VICTIMS[seed % len(VICTIMS)]
    roles = [*STAGES, "collect", "ref_scores"]
    role = rng.choice([*roles, "driver", "driver"] if "driver" in victims else roles)
    n_events = int((wanted.folder / "talk" / f"events.{role}").read_text())
    event = rng.randint(1, n_events)
    if role == "driver":
        victims = ("driver",)
    place = copy_place(start_of(role, starts), tmp_path / "place")
    phase = f"before change {event} of {n_events} by {role}"
    kill(place, {"role": role, "event": event}, victims, phase)
    go_on(place, wanted)
    shutil.rmtree(place.folder)


@pytest.mark.parametrize("seed", range(30 if FULL else 1))
def test_killed_at_a_moment_of_the_clock(seed, wanted, tmp_path):
    """Nothing is paused: what is killed is in full flight, and so is what is not."""
    rng = random.Random(1000 + seed)
    place = make_place(tmp_path / "place")
    run = Run(place, shell=True)
    # From the first stage on, so that slow imports on a busy machine are no moments.
    wait_until(lambda: (place.work / ".minari_pipe" / "work").exists(), 60, lambda: "no stage")
    delay = rng.uniform(0, 2)
    time.sleep(delay)
    recorded, over = place.recorded(), run.process.poll() is not None
    killed = [] if over else run.kill(*rng.choice(VICTIMS)) or run.kill("driver")
    run.end()
    place.assert_nothing_runs()
    hits.append(bool(killed) and "publish" not in recorded)
    print(
        f"kill -9 of {' and '.join(killed) or 'none'} {delay:.2f} s after the first stage began; "
        f"recorded: {', '.join(recorded) or 'nothing'}"
    )
    go_on(place, wanted)


def test_most_kills_hit_unfinished_work():
    if len(hits) < len(MOST) + N_SEEDED:
        pytest.skip("counts the kills of the whole file")
    print(f"{sum(hits)} of {len(hits)} kills hit unfinished work")
    assert sum(hits) >= len(hits) / 2


def test_a_rerun_waits_for_a_stage_that_does_not_know_yet_that_its_driver_is_gone(
    starts, wanted, tmp_path
):
    place = copy_place(starts["ref_scores"], tmp_path / "place")
    run = Run(place, barrier={"role": "ref_scores", "target": BLOCK, "call": 2, "do": "freeze"})
    run.await_barrier()
    stage = run.role("stage")
    run.kill("driver")
    again = Run(place)

    def over() -> bool:
        assert again.process.poll() is None
        other = again.role("stage")  # looked for first: it may start as soon as `stage` is gone
        if not stage.is_running() or stage.status() == psutil.STATUS_ZOMBIE:
            return True
        assert other is None
        return False

    wait_until(over, 10, lambda: "the stage lives on", step=0.05)
    code, out, err = again.end()
    run.end()
    assert code == 0, err
    assert stages_that_ran(out) == ["ref_scores", "validate", "card", "publish"]
    assert "(1 block was finished before)" in err
    assert_same(place, wanted)


def test_a_rerun_right_after_the_kill_of_a_driver_that_nobody_reaps(starts, wanted, tmp_path):
    """DVC alone would wait for ever: the pid in its path locks exists."""
    place = copy_place(starts["ref_scores"], tmp_path / "place")
    run = Run(place, barrier={"role": "ref_scores", "target": BLOCK})
    run.await_barrier()
    locks = json.loads((place.work / ".dvc" / "tmp" / "rwlock").read_text())
    assert {i["pid"] for i in locks["write"].values()} == {run.process.pid}
    with unreaped(run):
        run.release()
        complete(place)
        assert psutil.Process(run.process.pid).status() == psutil.STATUS_ZOMBIE
    run.end()
    assert_same(place, wanted)


def test_path_locks_of_a_namesake_or_cut_short_are_in_nobodys_way(wanted, tmp_path):
    place = copy_place(wanted, tmp_path / "place")
    rwlock = place.work / ".dvc" / "tmp" / "rwlock"
    out = str(place.work / "pipelines" / "killed" / "episodes")
    sleeper = subprocess.Popen(["sleep", "60"])
    entry = {"pid": sleeper.pid, "cmd": "dvc repro"}
    for text in (json.dumps({"write": {out: entry}}), json.dumps({"write": {out: entry}})[:-9], ""):
        rwlock.write_text(text)
        assert "killed: up to date" in complete(place)
    sleeper.send_signal(signal.SIGKILL)
    sleeper.wait()


def test_a_stage_that_is_killed_alone_is_named(starts, tmp_path):
    place = copy_place(starts["validate"], tmp_path / "place")
    run = Run(
        place,
        barrier={"role": "validate", "target": "minari_pipe.pipeline.execution.stage:run_stage"},
    )
    run.await_barrier()
    run.kill("stage")
    code, _, err = run.end()
    (line,) = [line for line in err.splitlines() if line.strip() != "Killed"]
    assert code == 1
    assert line.startswith("error: stage validate of killed was killed by SIGKILL")
    assert "run the same command to continue" in line


def test_files_of_an_interrupted_write_do_not_stay(starts, wanted, tmp_path):
    place = copy_place(starts["validate"], tmp_path / "place")
    pipeline = place.work / "pipelines" / "killed"
    dead = subprocess.Popen(["true"])
    dead.wait()
    litter = [pipeline / f".params.yaml.{dead.pid}.tmp", pipeline / ".aB3_xyz-0123456789abcd.tmp"]
    for path in litter:
        path.write_text("half")
    complete(place)
    assert_same(place, wanted)
    assert not any(Path(path).exists() for path in litter)
