"""The shortest ways to move the bytes of a dataset on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import work
from benchmarks.measure import Side


def save(shape: work.Shape) -> Side:
    """Concatenate each column and save it with NumPy."""
    place = work.folder("limit")
    columns = work.columns(shape)

    def run() -> None:
        for number, parts in enumerate(columns):
            np.save(place / f"{number}.npy", np.concatenate(parts))

    return Side(run, before=_empty(place))


def memcpy(shape: work.Shape) -> Side:
    """Copy each column, which lies in one piece."""
    columns = [np.concatenate(parts) for parts in work.columns(shape)]
    return Side(lambda: [column.copy() for column in columns])


def two_files_each(dataset_id: str) -> Side:
    """Make a folder with two files for each episode, as Arrow's layout demands."""
    parts = [
        [(file.name, file.read_bytes()) for file in sorted(episode.iterdir())]
        for episode in work.episode_folders(dataset_id)
    ]

    def run() -> None:
        place = work.folder(work.new_id("limit"))
        place.mkdir(parents=True)
        for number, files in enumerate(parts):
            folder = f"{place}/{number}"
            os.mkdir(folder)
            for name, data in files:
                with open(f"{folder}/{name}", "wb", buffering=0) as file:
                    file.write(data)

    return Side(run, before=lambda: None)  # once: what it makes stays


def read_files(dataset_id: str) -> Side:
    """Open, read and close the file of each episode."""
    paths = [
        str(file)
        for episode in work.episode_folders(dataset_id)
        for file in episode.iterdir()
        if file.suffix != ".json"
    ]

    def run() -> None:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                file.read()

    return Side(run)


def copy_files(*dataset_ids: str) -> Side:
    """Copy the files of datasets."""
    place = work.folder("limit")

    def run() -> None:
        for number, dataset_id in enumerate(dataset_ids):
            for file in (work.folder(dataset_id) / "data").iterdir():
                with open(file, "rb") as source, open(place / f"{number}-{file.name}", "wb") as to:
                    shutil.copyfileobj(source, to, 1 << 22)  # no reflink, no sendfile

    return Side(run, before=_empty(place))


def _empty(place: Path) -> Callable[[], None]:
    def before() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()

    return before
