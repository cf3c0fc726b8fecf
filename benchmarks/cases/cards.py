"""What describes datasets to people: cards, films and sites; Minari has none of these."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym

import minari_pipe
from benchmarks import work
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When
from benchmarks.work import Shape
from minari_pipe.checks.film import film
from minari_pipe.cli.site import local_entries, side_by_side
from minari_pipe.core.files.checksums import entry_of
from minari_pipe.datasets.cards.folder import card_files, facts_at, write_card
from minari_pipe.datasets.cards.site import write_site
from minari_pipe.errors import MinariPipeError

_DOOR, _LARGE = Shape(100, 200), Shape(5_000, 200)
_SITE = 1_000
#: prints the peak memory of a process that makes a card, in megabytes; ``ru_maxrss`` would also
#: count the process that started it
_PEAK = """
import re, sys
from pathlib import Path
from minari_pipe.datasets.cards.folder import card_files, facts_at
card_files(facts_at(Path(sys.argv[1])))
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6)
"""


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield Case("card", "card without film", f"{_DOOR} × 39", partial(_card, _DOOR), Goal(at_most=2))
    yield Case(
        "card", "card without film", f"{_LARGE} × 39", partial(_card, _LARGE), Goal(at_most=10),
        repeats=3, when=When.FULL,
    )  # fmt: skip
    yield Case(
        "card", "peak memory of a card", f"{_LARGE} × 39", _memory, Goal(at_most=300), unit="MB",
        repeats=1, when=When.FULL,
    )  # fmt: skip
    yield Case(
        "card", "film", "AdroitHandDoor, 200 steps", _film, Goal(at_most=10), repeats=3,
        when=When.FULL,
    )  # fmt: skip
    size = f"{_SITE:,} datasets"
    yield Case(
        "card", "site", size, _site, Goal(at_most=3), clock="wall", repeats=3, when=When.FULL
    )
    yield Case(
        "card", "index of a site", size, _index, Goal(at_most=1.5), unit="MB", repeats=1,
        when=When.FULL,
    )  # fmt: skip


def _data(shape: Shape) -> Path:
    dataset: Path = minari_pipe.load_dataset(work.dataset("here", shape)).storage.data_path
    return dataset


def _card(shape: Shape) -> Sides:
    data = _data(shape)
    return {"here": Side(lambda: card_files(facts_at(data)))}


def _memory() -> Sides:
    data = _data(_LARGE)
    command = [sys.executable, "-W", "ignore", "-c", _PEAK, str(data)]
    return {"here": Side(lambda: float(subprocess.check_output(command, text=True)))}


def _film() -> Sides:
    try:
        import gymnasium_robotics
    except ImportError:
        return {"here": Skipped("gymnasium-robotics is not installed")}
    gym.register_envs(gymnasium_robotics)
    with minari_pipe.DataCollector(gym.make("AdroitHandDoor-v1")) as env:
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(200):
            env.step(env.action_space.sample())
        data = env.create_dataset("bench/film-v0").storage.data_path
    try:
        film(data, 0)
    except MinariPipeError as error:
        return {"here": Skipped(str(error))}
    return {"here": Side(partial(film, data, 0))}


@cache
def _root() -> Path:
    """Return a folder with as many datasets as a site may have, each of them with a card."""
    data = _data(Shape(100, 20))
    write_card(data.parent, card_files(facts_at(data)))
    root = data.parents[2] / "of a site"
    for number in range(_SITE):
        target = root / "bench" / f"x{number}-v0"
        shutil.copytree(data.parent, target)
        metadata = target / "data" / "metadata.json"
        named = json.loads(metadata.read_text()) | {"dataset_id": f"bench/x{number}-v0"}
        metadata.write_text(json.dumps(named))
        content = json.loads((target / "manifest.json").read_text())
        content["data"]["metadata.json"] = entry_of(metadata)
        (target / "manifest.json").write_text(json.dumps(content))
    work.ending.callback(_root.cache_clear)
    work.ending.callback(shutil.rmtree, root, ignore_errors=True)
    return root


def _write_site(root: Path) -> Any:
    entries = local_entries(str(root), all=True)
    return write_site(root / ".." / "site", entries, "Datasets", run=side_by_side)


def _site() -> Sides:
    return {"here": Side(partial(_write_site, _root()))}


def _index() -> Sides:
    def size() -> float:
        _write_site(_root())
        site = _root() / ".." / "site"
        lists = (site / "index.html", site / "datasets.json", *site.glob("namespaces/**/*.html"))
        return max(os.path.getsize(path) for path in lists) / 1e6

    return {"here": Side(size)}
