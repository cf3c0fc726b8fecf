"""The benchmark runs, end to end with tiny cases: both sides, results, table and chart."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import pytest

from benchmarks import __main__ as program
from benchmarks import report
from benchmarks.cases import all_cases, tiny_cases
from benchmarks.measure import Case, Goal, Result, Seconds, Side, Skipped, When, measure
from benchmarks.work import workplace
from tests.conftest import CHECKOUT


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with workplace(tmp_path_factory.mktemp("bench")):
        return program._run(tiny_cases(), small=True, seconds=0.0)


def test_both_sides_of_a_case_run_and_are_compared(results) -> None:
    for record in results["cases"]:
        if record["group"] == "collect":
            continue  # a difference
        assert record["minari"] > 0
        assert record["here"] > 0
        assert record["ratio"] == record["minari"] / record["here"]
    assert all(record["repeats"]["here"] for record in results["cases"])
    reached = [record["reached"] for record in results["cases"]]
    assert reached == [False, None, None, None, None, True, True]


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


def test_the_table_goes_between_the_marks_of_the_readme(results, tmp_path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((CHECKOUT / "README.md").read_text())
    for _ in range(2):  # the second time it replaces the first
        report.update_readme(readme, results)
    text = readme.read_text()
    table = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert table.count("| create hdf5 ") == 1
    assert "commit" in table
    outside = (CHECKOUT / "README.md").read_text()
    assert text.partition(report.BEGIN)[0] == outside.partition(report.BEGIN)[0]
    assert text.partition(report.END)[2] == outside.partition(report.END)[2]


def test_a_readme_without_marks_is_named(results, tmp_path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="has no <!-- bench:begin -->"):
        report.update_readme(tmp_path / "README.md", results)


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


def test_every_goal_of_the_full_run_is_stated_once() -> None:
    cases = all_cases()
    assert len({case.title for case in cases}) == len(cases)
    full = [case for case in cases if case.when is not When.SMALL]
    assert sum(bool(case.goal.text(case.unit)) for case in full) >= 40


def test_a_single_case_is_chosen_by_a_pattern(capsys) -> None:
    program.main(["--list", "--only", "sample 32 episodes, 10,000"])
    assert capsys.readouterr().out == "sample 32 episodes, 10,000 × 20\n"


def test_the_chart_is_that_of_the_results_beside_it() -> None:
    """Nothing to compare where the checkout has no figures yet."""
    folder = CHECKOUT / "benchmarks"
    assert (folder / "chart.png").exists() == (folder / "results.json").exists()
