"""``python -m benchmarks.catalogue``: makes the dataset of each recipe, and prints a table."""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minari_pipe
from benchmarks.work import workplace

_SMALL = ("collect.n_steps=null", "collect.n_episodes=5", "ref_scores.n_episodes=5")
#: for a recipe whose training takes longer than minutes
_SHORT_TRAINING = "policy.train.total_timesteps=20000"
_LONG = 0.2  # CPU hours
_COLUMNS = (
    "recipe", "episodes", "steps", "mean return", "success", "random", "expert", "replayed",
    "steps/s", "bare steps/s", "MB", "s",
)  # fmt: skip
#: seconds for which an environment is stepped alone
_BARE = 2.0


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catalogue", description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="five episodes of the first task of each file"
    )
    parser.add_argument("--only", metavar="PATTERN", default="", help="recipes that match it")
    given = parser.parse_args()
    with workplace() as folder:
        work = folder / "work"
        work.mkdir()
        _run(work, "-m", "dvc", "init", "--quiet", "--no-scm")
        listed = _run(work, "-m", "minari_pipe", "recipes", "--json")
        chosen = [one for one in json.loads(listed) if re.search(given.only, one["recipe"])]
        if given.small:
            first = {one["recipe"].split()[0]: one for one in reversed(chosen)}
            chosen = [one for one in chosen if one in first.values()]
        chosen.sort(key=lambda one: one["actions"] == "mixture")  # whose parents come first
        print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}", flush=True)
        for one in chosen:
            cells = " | ".join(_cells(work, one, _small(one) if given.small else ()))
            print(f"| {one['recipe']} | {cells} |", flush=True)


def _small(recipe: dict[str, Any]) -> tuple[str, ...]:
    """Return the overrides that make a recipe small; a mixture takes what its parents have."""
    if recipe["actions"] == "mixture":
        return ()
    is_long = (recipe["about"].get("cpu_hours") or 0) >= _LONG
    return (*_SMALL, *([_SHORT_TRAINING] if is_long and "training" in recipe["needs"] else []))


def _run(work: Path, *words: str) -> str:
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout


def _cells(work: Path, recipe: dict[str, Any], small: tuple[str, ...]) -> Iterator[str]:
    """Make a dataset and yield the cells of its row; a reason if it cannot be made."""
    words = f"+dataset={recipe['recipe']}".split()
    command = [sys.executable, "-m", "minari_pipe", *words, "card.film=false"]
    begin = time.perf_counter()
    with subprocess.Popen(
        [*command, *small],
        cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        collected, error = 0.0, ""
        for line in process.stdout:
            if line.startswith("collect: "):
                collected = time.perf_counter() - begin
            error = line.strip()
    seconds = time.perf_counter() - begin
    if process.returncode:
        yield error
        return
    dataset = work / "datasets" / recipe["id"]
    metadata = json.loads((dataset / "data" / "metadata.json").read_text(encoding="utf-8"))
    with (dataset / "card" / "episodes.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    checked = work / "pipelines" / recipe["pipeline"] / "validation.json"
    replayed = json.loads(checked.read_text(encoding="utf-8"))["replay"]["replayed"]
    steps = sum(int(row["steps"]) for row in rows)
    won = [row["success"] == "1" for row in rows if row["success"]]
    yield f"{len(rows):,}"
    yield f"{steps:,}"
    yield f"{sum(float(row['return']) for row in rows) / len(rows):.4g}"
    yield f"{sum(won) / len(won):.2f}" if won else ""
    yield _number(metadata["ref_min_score"])
    yield _number(metadata["ref_max_score"])
    yield f"{replayed:,}"
    yield f"{steps / collected:,.0f}" if collected else ""
    yield f"{_bare(recipe['id']):,.0f}"
    yield f"{metadata['dataset_size']:g}"
    yield f"{seconds:.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _bare(dataset_id: str) -> float:
    """Return the steps per second of an environment alone, with random actions."""
    env = minari_pipe.load_dataset(dataset_id).recover_environment()
    env.action_space.seed(0)
    env.reset(seed=0)
    n, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < _BARE:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        n += 1
        if terminated or truncated:
            env.reset()
    return n / taken


if __name__ == "__main__":
    main()
