"""Where a run keeps its datasets, and the data that both libraries get."""

from __future__ import annotations

import multiprocessing.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import minari
import minari.data_collector
import numpy as np
import numpy.typing as npt

import minari_pipe
from minari_pipe.core.trust import MODULES_VARIABLE

#: the two that are compared, by the names that they have in results
LIBRARIES: dict[str, ModuleType] = {"minari": minari, "here": minari_pipe}

_versions = count()
_BUFFERS: dict[str, Callable[..., Any]] = {
    "minari": minari.data_collector.EpisodeBuffer,
    "here": minari_pipe.EpisodeBuffer,
}

#: what ends before the workplace goes
ending = ExitStack()

#: of AdroitHandDoor: 434 bytes for each step
OBSERVATION, ACTION = 39, 28


@dataclass(frozen=True)
class Shape:
    """How many episodes a dataset has, and what they are.

    Attributes:
        episodes: number of them.
        steps: steps of each, or the mean.
        spread: whether the lengths are spread over half to one and a half times as many.
        nested: whether observations are a dict of 3 leaves, and there are 6 leaves of infos.
    """

    episodes: int
    steps: int
    spread: bool = False
    nested: bool = False

    def __str__(self) -> str:
        steps = f"{self.steps // 2} to {self.steps * 3 // 2}" if self.spread else str(self.steps)
        return f"{self.episodes:,} × {steps}"

    def lengths(self) -> list[int]:
        """Return the number of steps of each episode."""
        if not self.spread:
            return [self.steps] * self.episodes
        rng = np.random.default_rng(0)
        half = self.steps // 2
        return rng.integers(half, self.steps + half, self.episodes, endpoint=True).tolist()

    def spaces(self) -> dict[str, gym.Space]:
        """Return the spaces of observations and actions, as arguments."""
        whole = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
        parts = gym.spaces.Dict(
            {
                "achieved": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
                "desired": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
                "state": gym.spaces.Box(-np.inf, np.inf, (OBSERVATION - 6,), np.float64),
            }
        )
        return {
            "observation_space": parts if self.nested else whole,
            "action_space": gym.spaces.Box(-10, 10, (ACTION,), np.float32),
        }


@cache
def episodes(shape: Shape) -> list[dict[str, Any]]:
    """Return the arrays of episodes; the same ones for everybody who asks."""
    rng = np.random.default_rng(0)
    made = []
    for seed, steps in enumerate(shape.lengths()):
        observations: Any = rng.standard_normal((steps + 1, OBSERVATION))
        infos: dict[str, Any] = {}
        if shape.nested:
            achieved, desired, state = np.split(observations, [3, 6], axis=1)
            parts = {"achieved": achieved, "desired": desired, "state": state}
            observations = {key: part.copy() for key, part in parts.items()}
            infos = {f"x{i}": rng.standard_normal(steps + 1) for i in range(3)}
            infos["body"] = {f"y{i}": rng.standard_normal((steps + 1, 3)) for i in range(3)}
        made.append(
            {
                "seed": seed,
                "observations": observations,
                "actions": rng.standard_normal((steps, ACTION)).astype(np.float32),
                "rewards": rng.standard_normal(steps),
                "terminations": np.zeros(steps, bool),
                "truncations": np.arange(1, steps + 1) == steps,
                "infos": infos,
            }
        )
    return made


def buffers(library: str, shape: Shape) -> list[Any]:
    """Return episodes as buffers of a library."""
    make = _BUFFERS[library]
    return [make(**episode) for episode in episodes(shape)]


def columns(shape: Shape) -> list[list[npt.NDArray[Any]]]:
    """Return the arrays of each column, episode by episode: what the physical limits move."""

    def leaves(tree: Any) -> Iterator[npt.NDArray[Any]]:
        if isinstance(tree, dict):
            for part in tree.values():
                yield from leaves(part)
        elif isinstance(tree, np.ndarray):
            yield tree

    return [list(column) for column in zip(*map(leaves, episodes(shape)), strict=True)]


def create(library: str, dataset_id: str, shape: Shape, data_format: str = "hdf5") -> Any:
    """Create a dataset in the root and return it opened."""
    return create_from(library, dataset_id, buffers(library, shape), shape, data_format)


def create_from(
    library: str, dataset_id: str, held: list[Any], shape: Shape, data_format: str = "hdf5"
) -> Any:
    """Create a dataset of buffers in the root and return it opened."""
    return LIBRARIES[library].create_dataset_from_buffers(
        dataset_id, held, data_format=data_format, **shape.spaces()
    )


def dataset(library: str, shape: Shape, data_format: str = "hdf5", copy: str = "") -> str:
    """Return the id of a dataset that a library has written; it is made once.

    Args:
        library: which.
        shape: of it.
        data_format: of its files.
        copy: another text for a second dataset of the same.
    """
    kind = f"{shape.episodes}x{shape.steps}{'s' * shape.spread}{'n' * shape.nested}"
    dataset_id = f"bench/{library}-{data_format}-{kind}{copy}-v0"
    if not folder(dataset_id).exists():
        create(library, dataset_id, shape, data_format)
    return dataset_id


def new_id(name: str) -> str:
    """Return an id that nothing has had; see :func:`remove_if_few`."""
    return f"bench/{name}-v{next(_versions)}"


def remove_if_few(dataset_id: str) -> None:
    """Remove a dataset unless it has a folder for each episode; those are removed in the end.

    To make a file, ext4 looks for a place of which none was deleted in the last seconds. After
    thousands of deletions that takes twenty times what is to be measured.
    """
    if not episode_folders(dataset_id):
        remove(dataset_id)


def episode_folders(dataset_id: str) -> list[Path]:
    """Return the folders of the episodes of an Arrow dataset."""
    return sorted(path for path in (folder(dataset_id) / "data").iterdir() if path.is_dir())


def copied(dataset_id: str, to: str = "copy") -> str:
    """Copy the files of a dataset and return the id of the copy: nobody has an index of it.

    Args:
        dataset_id: the dataset.
        to: what is added to its name.
    """
    name, _, version = dataset_id.rpartition("-v")
    copy = f"{name}-{to}-v{version}"
    remove(copy)  # another case may have left one
    shutil.copytree(folder(dataset_id), folder(copy))
    return copy


def folder(dataset_id: str) -> Path:
    """Return where a dataset is."""
    return Path(os.environ["MINARI_DATASETS_PATH"], dataset_id)


def remove(dataset_id: str) -> None:
    """Remove a dataset if there is one."""
    shutil.rmtree(folder(dataset_id), ignore_errors=True)


def printed_by(module: str, *arguments: object) -> str:
    """Run a module in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout


def size_of(path: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextmanager
def workplace(parent: Path | None = None) -> Iterator[Path]:
    """Let all that is written go to a temporary folder, caches too, and then remove it.

    Args:
        parent: where to make it; None takes the temporary folder of the system, which has to be
            on a disk.
    """
    multiprocessing.util.get_temp_dir()  # made now, as workers' sockets outlast the workplace
    with tempfile.TemporaryDirectory(prefix="minari-bench-", dir=parent) as name:
        places = {
            "MINARI_DATASETS_PATH": Path(name, "datasets"),
            "MINARI_PIPE_CACHE": Path(name, "cache"),
            "XDG_CACHE_HOME": Path(name, "caches"),
            "TMPDIR": Path(name, "tmp"),
        }
        for path in places.values():
            path.mkdir()
        # for the environments of the benchmark
        given = {**{key: str(path) for key, path in places.items()}, MODULES_VARIABLE: "benchmarks"}
        former = {variable: os.environ.get(variable) for variable in given}
        os.environ.update(given)
        tempfile.tempdir = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about authors and permalinks
                yield Path(name)
        finally:
            ending.close()
            for variable, value in former.items():
                if value is None:
                    del os.environ[variable]
                else:
                    os.environ[variable] = value
            tempfile.tempdir = None
            episodes.cache_clear()
