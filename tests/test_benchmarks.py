"""The benchmark runs, end to end with tiny cases: both sides, results, table and chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import psutil
import pytest

from benchmarks import catalogue, environments, report, scale_chart, slow
from benchmarks import command as program
from benchmarks.cases import acting, all_cases, scale, tiny_cases
from benchmarks.measure import Case, Goal, Result, Seconds, Side, Skipped, Unit, When, measure
from benchmarks.pipeline import Collected
from benchmarks.work import workplace
from tests.conftest import CHECKOUT, FULL


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with workplace(tmp_path_factory.mktemp("bench")):
        return program._run(tiny_cases(), small=True, seconds=0.0)


def test_both_sides_of_a_case_run_and_are_compared(results) -> None:
    for record in results["cases"]:
        if record["group"] not in ("write", "read"):
            continue  # a difference, or a rate
        assert record["minari"] > 0
        assert record["here"] > 0
        assert record["ratio"] == record["minari"] / record["here"]
    assert all(record["repeats"]["here"] for record in results["cases"])
    reached = [record["reached"] for record in results["cases"]]
    assert reached == [False, None, None, None, None, None, True, True]


def test_seconds_that_a_run_returns_count_instead_of_its_own() -> None:
    side = Side(lambda: Seconds(2.0, 3.0), before=lambda: None)
    case = Case("write", "elsewhere", "tiny", lambda: {"here": side}, repeats=2)
    assert measure(case, seconds=1.0).value("here") == 2.0


def test_nothing_stays_of_a_run(results, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "before")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with workplace(tmp_path) as place:
        measure(tiny_cases()[0], seconds=0.0)
        assert list(place.glob("datasets/bench/*-v0")) == []
    assert list(tmp_path.iterdir()) == []
    assert os.environ["MINARI_DATASETS_PATH"] == "before"
    assert "XDG_CACHE_HOME" not in os.environ


def test_results_are_written_with_machine_commit_and_every_repeat(results, tmp_path) -> None:
    report.write(tmp_path, results)
    read = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert read == results
    assert read["machine"].keys() >= {"processor", "cores", "python", "packages", "commit"}
    assert read["cases"][0]["repeats"]["here"][0].keys() == {"cpu", "wall"}
    pytest.importorskip("matplotlib", reason="draws the chart")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_goes_between_the_marks_of_the_page(results, tmp_path) -> None:
    page = tmp_path / "speed.md"
    page.write_text((CHECKOUT / "docs" / "speed.md").read_text())
    for _ in range(2):  # the second time it replaces the first
        report.update_page(page, results)
    text = page.read_text()
    table = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert table.count("| create hdf5 ") == 1
    assert "commit" in table
    outside = (CHECKOUT / "docs" / "speed.md").read_text()
    assert text.partition(report.BEGIN)[0] == outside.partition(report.BEGIN)[0]
    assert text.partition(report.END)[2] == outside.partition(report.END)[2]


def test_a_page_without_marks_is_named(results, tmp_path) -> None:
    (tmp_path / "speed.md").write_text("nothing")
    with pytest.raises(ValueError, match="has no <!-- bench:begin -->"):
        report.update_page(tmp_path / "speed.md", results)


def test_the_run_of_a_side_that_fails_or_is_missing_is_told_in_the_table() -> None:
    def fail() -> None:
        raise ValueError("no\nsuch thing")

    result = measure(
        Case("read", "some", "size", lambda: {"here": Side(int), "minari": Side(fail)}),
        seconds=0.0,
    )
    assert result.ratio is None
    assert report.row(result.record())["Minari"] == "fails"
    skipped = measure(
        Case("read", "some", "size", lambda: {"here": Side(int), "minari": Skipped("no torch")}),
        seconds=0.0,
    )
    assert "minari: no torch" in report.line(skipped.record())


def test_what_vanishes_in_the_noise_has_no_ratio() -> None:
    repeats = {
        side: [Seconds(seconds, seconds)]
        for side, seconds in (("bare", 2.0), ("here", 1.9), ("minari", 9.0))
    }
    case = Case("collect", "some", "size", dict, Goal(at_most=3), unit="µs/step", steps=1000)
    result = Result(case, repeats, {})
    assert (result.ratio, result.reached) == (None, True)
    repeats["here"] = [Seconds(2.5, 2.5)]
    assert (result.ratio, result.reached) == (pytest.approx(14.0), False)


def test_a_case_runs_by_turns_and_at_least_once() -> None:
    order: list[str] = []

    def side(name: str) -> Side:
        return Side(partial(order.append, name), before=lambda: None)

    case = Case("read", "x", "y", lambda: {"limit": side("l"), "here": side("h")}, repeats=3)
    measure(case, seconds=10.0)
    assert order == ["l", "l", "h", "h", *"lhlh"]  # the first ones warm up
    order.clear()
    measure(case, seconds=0.0)
    assert order == ["l", "l", "h", "h"]


def test_overhead_is_the_median_difference_to_the_bare_run_of_the_same_round() -> None:
    case = Case("collect", "x", "y", dict, Goal(at_most=3), unit="µs/step", steps=10)
    seconds = {"bare": (1, 5, 2), "here": (1.1, 5.2, 2.3), "minari": (2,)}
    result = Result(case, {k: [Seconds(s, 0) for s in v] for k, v in seconds.items()}, {})
    assert result.value("here") == pytest.approx(1e6 * 0.2 / 10)
    assert result.value("minari") == pytest.approx(1e6 * 1 / 10)
    assert result.reached is False


def test_rates_of_sides_with_other_numbers_of_steps_are_compared_by_the_clock_of_the_case() -> None:
    case = Case(
        "act", "x", "y", dict, Goal(beside=3), unit="steps/s", clock="wall", beside="one", steps=300
    )
    walls = {"here": 1.0, "beside": 1.0, "minari": 3.0, "limit": 0.5}
    repeats = {side: [Seconds(9.0, wall)] for side, wall in walls.items()}
    result = Result(case, repeats, {}, {"beside": 100})
    assert (result.value("here"), result.value("beside")) == (300, 100)
    assert (result.of_beside, result.ratio, result.of_limit) == (3, 3, 0.5)
    assert (result.reached, result.goal_ratio) == (True, 3)
    cells = report.row(result.record())
    assert (cells["time"], cells["goal"]) == ("wall", "3× one")
    assert (cells["beside"], cells["limit"]) == ("one: 100 steps/s (3.0×)", "600 steps/s (50%)")


def test_the_cpu_time_of_processes_that_go_on_counts() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(); input()"
    running: list[subprocess.Popen] = []

    def run() -> None:
        pipe = subprocess.PIPE
        running.append(subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe))
        running[-1].stdout.readline()

    case = Case("scale", "x", "y", lambda: {"here": Side(run, before=lambda: None)}, repeats=1)
    (found,) = measure(case, seconds=0.0).repeats["here"]
    for process in running:
        process.communicate(b"\n")
    assert 0.25 < found.cpu < 3


SLOW = Collected(slow.ID, "random", length=5)
NETWORK = Collected("HalfCheetah-v5", "sac", n_envs=2, length=4)
SCALE: dict[str, dict[str, Any]] = {
    "start": {"prepare": partial(scale.start, "processes", 1)},
    "lockstep beside single predictions": {
        "prepare": partial(acting.lockstep, NETWORK, single=True),
        "beside": acting.SINGLE,
    },
    "one worker beside the environment alone": {
        "prepare": partial(scale.side_by_side, "processes", 2, 1, SLOW, 1)
    },
    "two workers beside one": {
        "prepare": partial(scale.side_by_side, "processes", 2, 2, SLOW, 2),
        "beside": "one worker",
    },
    "the driver of processes": {"prepare": partial(scale.driver, "processes", 2, SLOW)},
    "the driver in one process": {"prepare": partial(scale.driver, "local", 1, SLOW)},
    "blocks": {"prepare": partial(scale.writing, Collected(environments.VECTORS, "random", 2, 9))},
    "resume": {"prepare": partial(scale.resume, 3, 1000)},
}
UNITS: dict[str, Unit] = {"start": "s", "the driver": "%", "blocks": "µs/step", "resume": "MB/s"}


AT_SCALE = pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL runs the cases of engines")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[Any]]:
    """What came of the cases, and the workers that were there when they had run."""
    cases = [
        Case(
            "scale",
            name,
            "tiny",
            unit=next((unit for key, unit in UNITS.items() if key in name), "steps/s"),
            clock="wall",
            repeats=1,
            **more,
        )
        for name, more in SCALE.items()
    ]
    before = psutil.Process().children(recursive=True)  # of other tests
    with workplace(tmp_path_factory.mktemp("scale")):
        records = program._run(cases, small=True, seconds=0.0)["cases"]
        children = psutil.Process().children(recursive=True)
        # their parent is a process that has imported what they need, and stays
        new = [child for child in children if child not in before]
        return records, [child for child in new if child.ppid() != os.getpid()]


@pytest.fixture(scope="module")
def at_scale(ran) -> dict[str, dict[str, Any]]:
    return {record["case"]: record for record in ran[0]}


@AT_SCALE
def test_collections_by_workers_are_compared_with_one_worker_and_the_environment(at_scale) -> None:
    two = at_scale["two workers beside one"]
    assert two["steps_of_sides"] == {"here": 20, "beside": 10}
    assert two["of_beside"] == two["here"] / two["beside_value"]
    alone = at_scale["one worker beside the environment alone"]
    assert 0 < alone["here"] <= 1 / slow.SECONDS
    assert 0 < alone["limit"] <= 1 / slow.SECONDS
    together = at_scale["lockstep beside single predictions"]
    assert together["steps_of_sides"]["here"] == 8
    assert together["of_beside"] == together["here"] / together["beside_value"]
    assert at_scale["start"]["here"] > 0


@AT_SCALE
def test_drivers_blocks_and_resumed_runs_have_their_figures(at_scale) -> None:
    for name in ("the driver of processes", "the driver in one process"):
        assert 0 < at_scale[name]["here"] < 100
        assert report.row(at_scale[name])["time"] == ""
    assert at_scale["blocks"]["unit"] == "µs/step"
    assert at_scale["resume"]["here"] > 0
    assert all(record["repeats"]["here"] for record in at_scale.values())


def test_a_finished_block_that_is_made_again_ends_the_measurement(tmp_path) -> None:
    with workplace(tmp_path):
        sides = scale.resume(3, 1000)
        folder = next(tmp_path.glob("*/datasets/finished-3"))
        (folder / "block_00001.bin").write_bytes(b"damaged")
        with pytest.raises(RuntimeError, match="1 of 3 finished blocks were made again"):
            sides["here"].run()


@AT_SCALE
def test_the_workers_of_an_engine_end_with_the_workplace(ran) -> None:
    gone, alive = psutil.wait_procs(ran[1], timeout=30)
    assert len(gone) == 2
    assert not alive


def test_an_engine_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.pipeline.find_spec", lambda name: None)
    for sides in (scale.start("ray", 2), scale.side_by_side("ray", 2, 2, SLOW, 1)):
        assert sides["here"] == Skipped("ray is not installed; pip install 'minari_pipe[ray]'")


def test_the_chart_of_scale_has_the_cases_of_the_full_run(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="draws the chart")
    sides = {side: [Seconds(1.0, 1.0)] for side in ("here", "beside", "minari", "limit", "bare")}
    cases = [case for case in all_cases() if case.when is not When.SMALL]
    timed = [case for case in cases if case.unit not in ("MB", "%")]
    results = {"cases": [Result(case, sides, {}).record() for case in timed]}
    assert scale_chart.draw(results, tmp_path / "scale.png") is None
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    names = [name for name, *_ in scale_chart.bars(results, "SAC")]
    assert names == [
        "Minari, model.predict",
        "model.predict",
        "1 environment",
        "8 environments",
        "32 environments",
        "2 workers × 32, processes",
        "2 workers × 32, ray",
    ]
    assert [n for n, _ in scale_chart.growth(results, "processes")] == [1, 2, 4, 8, 16, 32, 64]
    assert scale_chart.draw({"cases": []}, tmp_path / "none.png") == "no case of it"


def test_every_goal_of_the_full_run_is_stated_once() -> None:
    for run in (When.SMALL, When.FULL):
        titles = [case.title for case in all_cases() if case.when in (run, When.BOTH)]
        assert len(set(titles)) == len(titles)
    full = [case for case in all_cases() if case.when is not When.SMALL]
    assert sum(bool(case.goal.text(case.unit)) for case in full) >= 40


def test_a_single_case_is_chosen_by_a_pattern(capsys) -> None:
    program.main(["--list", "--only", "sample 32 episodes, 10,000"])
    assert capsys.readouterr().out == "sample 32 episodes, 10,000 × 20\n"


def test_the_chart_is_that_of_the_results_beside_it() -> None:
    """Nothing to compare where the checkout has no figures yet."""
    folder = CHECKOUT / "benchmarks"
    assert (folder / "chart.png").exists() == (folder / "results.json").exists()


@pytest.mark.skipif(not FULL, reason="MINARI_PIPE_FULL runs recipes")
def test_the_catalogue_has_a_row_for_each_recipe(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["catalogue", "--small", "--only", "pointmaze task=open"])
    catalogue.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| pointmaze task=open", "5"],
        ["| pointmaze task=open-dense", "5"],
    ]
    assert all(row.count("|") == head.count("|") for row in rows)
