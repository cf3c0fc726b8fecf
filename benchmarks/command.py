"""The command line: runs the cases, prints their table, writes results and chart."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cases import all_cases, tiny_cases
from benchmarks.machine import machine
from benchmarks.measure import Case, When, measure
from benchmarks.work import workplace

HERE = Path(__file__).parent
#: wall seconds of each side of a case, and the most repeats, by whether the run is small
_SECONDS = {False: 6.0, True: 0.4}
_SMALL_REPEATS = 3


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="smaller sizes, within 3 minutes")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name and size match it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for results.json and chart.png")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="on the disk to be measured")
    parser.add_argument(
        "--seconds", type=float, help="wall time after which a side of a case is not run again"
    )
    parser.add_argument("--list", action="store_true", help="list the cases and do nothing")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing: update docs/speed.md by results.json"
    )
    given = parser.parse_args(arguments)
    chosen = [
        case
        for case in all_cases()
        if case.when in (When.BOTH, When.SMALL if given.small else When.FULL)
        and re.search(given.only or "", case.title)
    ]
    # a part is not what the committed results are made of
    kept = HERE / "small" if given.small else HERE
    out = given.out or (None if given.only else kept)
    if given.list:
        print("\n".join(case.title for case in chosen))
    elif given.table:
        results = json.loads(((out or HERE) / "results.json").read_text(encoding="utf-8"))
        report.update_page(HERE.parent / "docs" / "speed.md", results)
    else:
        with workplace(given.work):
            for case in tiny_cases():  # the first of everything also imports, Minari jax
                measure(case, seconds=0.0)
            results = _run(chosen, small=given.small, seconds=given.seconds)
        print(f"\n{report.headline(results)}\n\n{report.table(results)}")
        if out is not None:
            report.write(out, results)


def _run(cases: list[Case], *, small: bool, seconds: float | None = None) -> dict[str, Any]:
    seconds = _SECONDS[small] if seconds is None else seconds
    began = time.perf_counter()
    records = []
    for number, case in enumerate(cases, 1):
        if small and case.repeats > _SMALL_REPEATS:
            case = replace(case, repeats=_SMALL_REPEATS, seconds=None)
        result = measure(case, seconds=seconds if case.seconds is None else case.seconds)
        records.append(result.record())
        print(f"[{number}/{len(cases)}] {report.line(records[-1])}", flush=True)
    return {
        "small": small,
        "machine": machine(),
        "seconds": round(time.perf_counter() - began, 1),
        "cases": records,
    }
