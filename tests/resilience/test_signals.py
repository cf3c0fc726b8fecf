"""A signal stops the run wherever it is: one line, DVC's locks free, nothing left running."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable

import pytest

from minari_pipe.pipeline.signals import INTERRUPTED
from tests.conftest import FULL
from tests.support import forks
from tests.support.interruption import (
    CONFIG,
    STAGES,
    Run,
    complete,
    dvc_status,
    end_all,
    make_place,
    undisturbed,
    wait_until,
)

MOMENTS = {
    "composing": {"role": "driver", "target": "minari_pipe.pipeline.config.dvc_yaml:sync"},
    "importing in a stage": {"role": "collect", "target": "gymnasium"},
    "starting a stage": {
        "role": "collect",
        "target": "minari_pipe.pipeline.execution.stage:run_stage",
    },
    "collecting": {
        "role": "collect",
        "target": "minari_pipe.pipeline.execution.blocks:BlockStore.make",
        "call": 3,
    },
    "hashing": {"role": "driver", "target": "dvc.output:Output.save"},
    "writing dvc.lock": {"role": "driver", "target": "ruamel.yaml.main:YAML.dump", "call": 2},
    "writing path locks": {"role": "driver", "target": "json:dump", "call": 3},
    "scoring": {"role": "ref_scores", "target": "minari_pipe.policies.rollout:_step", "call": 30},
    "installing": {"role": "driver", "target": "minari_pipe.core.files.swap:copy_file"},
}


def to_group(signum: int) -> Callable[[Run], None]:
    return lambda run: run.tell_group(signum)


def to_driver(signum: int) -> Callable[[Run], None]:
    return lambda run: run.process.send_signal(signum)


WAYS = {
    "Ctrl-C in a terminal": (
        to_group(signal.SIGINT),
        130,
        ("importing in a stage", "collecting", "writing dvc.lock", "installing"),
    ),
    "SIGTERM to the driver": (to_driver(signal.SIGTERM), 143, ("composing", "scoring")),
    "SIGINT to the driver": (to_driver(signal.SIGINT), 130, ("starting a stage",)),
    "SIGTERM to all": (to_group(signal.SIGTERM), 143, ("hashing",)),
    "a terminal that closes": (to_group(signal.SIGHUP), 129, ("writing path locks",)),
}
"""How a run is stopped, its exit code, and when; in ``make test-all`` at each of the moments."""


@pytest.fixture(autouse=True)
def _tidy():
    yield
    end_all()


def assert_stopped(run: Run, code: int) -> None:
    """The run ends with ``code``, one line and no company."""
    found, _, err = run.end(30)
    told = [
        line for line in err.splitlines() if not line.startswith(tuple(f"{s}: " for s in STAGES))
    ]
    assert (found, told) == (code, [INTERRUPTED]), err
    run.place.assert_nothing_runs(2)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_stopped_again_and_again_ends_like_an_undisturbed_one(
    way, tmp_path, tmp_path_factory
):
    wanted = undisturbed(tmp_path_factory)
    tell, code, moments = WAYS[way]
    place = make_place(tmp_path / "place")
    for name in MOMENTS if FULL else moments:
        if name == "installing":
            complete(place)
            shutil.rmtree(place.datasets)
        run = Run(place, barrier=MOMENTS[name])
        run.await_barrier()
        tell(run)
        run.release_unless_ended()
        assert_stopped(run, code)
        if FULL or name in ("hashing", "writing dvc.lock", "writing path locks"):
            dvc_status(place)
        print(f"{way}, {name}: stopped, {place.finished_blocks()} blocks kept")
    if FULL or len(moments) > 1:
        complete(place)
        assert place.results() == wanted.results()
        assert place.files() == wanted.files()


def test_an_impatient_user_gets_no_traceback(tmp_path):
    place = make_place(tmp_path / "place")
    run = Run(place, barrier={**MOMENTS["collecting"], "do": "freeze"})
    run.await_barrier()
    for _ in range(5):
        run.tell_group(signal.SIGINT)
        time.sleep(0.2)
    assert_stopped(run, 130)


def test_dvc_that_cannot_be_interrupted_is_left(tmp_path):
    """It waits for threads that hash a large file, and Python cannot raise into a wait."""
    place = make_place(tmp_path / "place")
    run = Run(place, barrier={**MOMENTS["hashing"], "do": "block"})
    run.await_barrier()
    run.process.send_signal(signal.SIGTERM)
    assert_stopped(run, 143)
    dvc_status(place)


def test_a_sweep_ends_with_the_job_that_is_stopped(tmp_path):
    configs = {name: CONFIG.format(id=f"tests/{name}-v0") for name in ("killed", "other")}
    place = make_place(tmp_path / "place", **configs)
    run = Run(place, "-m", "+dataset=killed,other", barrier=MOMENTS["collecting"])
    run.await_barrier()
    run.tell_group(signal.SIGINT)
    run.release()
    assert_stopped(run, 130)
    assert not (place.work / "pipelines" / "other").exists()


def test_what_nohup_ignores_stays_ignored(tmp_path):
    place = make_place(tmp_path / "place")
    with forks.enabled(False):  # a new Python finds out what is ignored
        run = Run(place, barrier=MOMENTS["collecting"], ignored=(signal.SIGHUP,))
    run.await_barrier()
    run.tell_group(signal.SIGHUP)
    time.sleep(0.5)
    run.release()
    wait_until(lambda: "collect" in place.recorded(), 30, lambda: "the run does not go on")
    run.process.send_signal(signal.SIGTERM)
    assert_stopped(run, 143)
