"""Runs at the same time: of one pipeline only one, of different ones any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minari_pipe.pipeline.run.driver import _explained
from tests.support.interruption import (
    CONFIG,
    Place,
    Run,
    complete,
    copy_place,
    end_all,
    make_place,
    undisturbed,
)

MAKE = "minari_pipe.pipeline.execution.blocks:BlockStore.make"
BLOCK = {"role": "collect", "target": MAKE, "call": 2}


@pytest.fixture(autouse=True)
def _tidy():
    yield
    end_all()


def two_pipelines(folder: Path) -> Place:
    names = ("killed", "other")
    return make_place(folder, **{name: CONFIG.format(id=f"tests/{name}-v0") for name in names})


def test_a_second_run_of_a_pipeline_is_refused_and_one_of_another_is_not(
    tmp_path, tmp_path_factory
):
    place = two_pipelines(tmp_path / "place")
    first = Run(place, "+dataset=killed", barrier=BLOCK)
    first.await_barrier()  # its stage runs, and goes on to run while the others begin and end
    before = place.files()
    code, out, err = Run(place, "+dataset=killed", "collect.seed=99").end()
    assert (code, out) == (1, "")
    assert err.startswith("error: pipeline 'killed' is already running in this workspace; ")
    assert err.count("\n") == 1
    assert place.files() == before
    printed = complete(place, "+dataset=other")
    assert "other: ran collect, create, ref_scores, validate, card, publish" in printed
    first.release()
    code, _, err = first.end()
    assert code == 0, err
    found, wanted = place.results(), undisturbed(tmp_path_factory).results()
    assert found == wanted
    assert place.results("tests/other-v0", "other")["main_data.hdf5"] == wanted["main_data.hdf5"]


def test_pipelines_that_begin_at_once_wait_for_each_other_and_one_that_is_killed_for_none(
    tmp_path, tmp_path_factory
):
    place = two_pipelines(tmp_path / "place")
    barrier = {"role": "ref_scores", "target": BLOCK["target"]}
    one = Run(place, "+dataset=killed", barrier=barrier)
    # another seed: the same measurement of the random policy would be made by either for both
    other = Run(place, "+dataset=other", "ref_scores.seed=7")
    one.await_barrier()
    one.kill("driver", "stage")
    code, _, err = other.end()
    assert code == 0, err
    one.end()
    assert "killed: ran ref_scores, validate, card, publish" in complete(place, "+dataset=killed")
    assert place.results() == undisturbed(tmp_path_factory).results()


def test_a_plain_dvc_repro_of_the_same_pipeline_keeps_out(tmp_path, tmp_path_factory):
    place = copy_place(undisturbed(tmp_path_factory), tmp_path / "place")
    run = Run(place, "+dataset=killed", "collect.seed=6", barrier=BLOCK)
    run.await_barrier()
    argv = [sys.executable, "-m", "dvc", "repro", "pipelines/killed/dvc.yaml"]
    done = subprocess.run(
        argv,
        cwd=place.work,
        env=place.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "is busy" in done.stderr
    run.kill("driver", "stage")


def test_what_another_run_reads_or_writes_is_named_and_no_lock_to_be_removed(tmp_path):
    """Such as the parent of a mixture that is being mixed."""
    from dvc.lock import LockError
    from dvc.rwlock import localfs, rwlock

    path = str(tmp_path / "datasets" / "medium-v0")
    mixing = rwlock(str(tmp_path), localfs, "minari_pipe +dataset=mixed", [path], [], False)
    publishing = rwlock(str(tmp_path), localfs, "minari_pipe +dataset=medium", [], [path], False)
    with mixing, pytest.raises(LockError) as caught, publishing:
        pass
    told = str(_explained(caught.value, "medium", tmp_path, []))
    assert told == (
        f"another run uses {path}: (PID {os.getpid()}): minari_pipe +dataset=mixed; wait until it "
        f"has finished and run the same command to continue"
    )
