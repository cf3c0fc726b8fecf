"""A process that looks, again and again, whether anybody could see half a dataset.

It lists what is being uploaded and downloaded, through this library and through real Minari, and
loads what it finds. ``watch.json`` says where to look, ``seen.json`` what was seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import CHECKOUT
from tests.support.servers.running import environment

ROOT = "MINARI_DATASETS_PATH"


class Watcher:
    """The process, and what it has seen."""

    def __init__(self, folder: Path, sha256: str) -> None:
        self._folder = folder
        self._sha256 = sha256
        self._turn = 0

    def watch(self, dataset_id: str, **places: Any) -> None:
        """Look for a dataset in these places from now on.

        Args:
            dataset_id: of which ``data/main_data.hdf5`` is to have the sha256.
            **places: ``address`` of a remote, ``minari`` its name for Minari, ``root`` of datasets.
        """
        self._turn += 1
        beside = self._folder / "watch.tmp"
        told = {"id": dataset_id, "sha256": self._sha256, "turn": self._turn, **places}
        beside.write_text(json.dumps(told, default=str))
        os.replace(beside, self._folder / "watch.json")

    def seen(self, *, rounds: int = 1, seconds: float = 60) -> dict[str, Any]:
        """Wait for so many rounds from now on; the counts, and ``wrong``: what must not be."""
        started = self._read().get("rounds", 0)
        deadline = time.monotonic() + seconds
        while (found := self._read()).get("rounds", 0) < started + rounds + 1:
            assert time.monotonic() < deadline, "the watcher does not look any more"
            time.sleep(0.02)
        return found

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads((self._folder / "seen.json").read_text())
        except FileNotFoundError:
            return {}


@contextmanager
def watcher(folder: Path, variables: Mapping[str, str], sha256: str) -> Iterator[Watcher]:
    """Run a watcher while the block runs."""
    folder.mkdir(parents=True)
    own = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), ROOT: str(folder / "none")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.support.servers.watcher", str(folder)],
        cwd=CHECKOUT,
        env=environment({**variables, **own}),
    )
    try:
        yield Watcher(folder, sha256)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _check(root: Path, dataset_id: str, sha256: str, load: Callable[[str], Any]) -> str | None:
    data = root / dataset_id / "data" / "main_data.hdf5"
    found = hashlib.sha256(data.read_bytes()).hexdigest()
    if found != sha256:
        return f"half a file: {data.stat().st_size} bytes"
    dataset = load(dataset_id)
    total = sum(len(episode) for episode in dataset.iterate_episodes())
    return None if total == dataset.total_steps else f"{total} of {dataset.total_steps} steps"


def _look(place: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield who found the dataset where, and what is wrong with it."""
    import minari

    import minari_pipe

    dataset_id, sha256 = place["id"], place["sha256"]
    if root := place.get("root"):
        os.environ[ROOT] = root
        for who, package in (("ours", minari_pipe), ("minari", minari)):
            if dataset_id in package.list_local_datasets():
                yield f"local {who}", _check(Path(root), dataset_id, sha256, package.load_dataset)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        os.environ[ROOT] = own
        address = place.get("address")
        if address and dataset_id in minari_pipe.list_remote_datasets(address):
            minari_pipe.download_dataset(f"{address}/{dataset_id}")
            load = minari_pipe.load_dataset
            yield "remote ours", _check(Path(own), dataset_id, sha256, load)
        if address := place.get("minari"):
            shutil.rmtree(own)
            os.makedirs(own)
            os.environ["MINARI_REMOTE"] = address  # its functions of namespaces know no other
            if dataset_id in minari.list_remote_datasets(address):
                minari.download_dataset(f"{address}/{dataset_id}")
                yield "remote minari", _check(Path(own), dataset_id, sha256, minari.load_dataset)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    seen: dict[str, Any] = {"rounds": 0, "wrong": []}
    while os.getppid() != 1:
        try:
            place = json.loads((folder / "watch.json").read_text())
        except FileNotFoundError:
            time.sleep(0.05)
            continue
        try:
            for where, wrong in _look(place, folder):
                seen[where] = seen.get(where, 0) + 1
                if wrong:
                    seen["wrong"].append(f"{place['id']}, {where}: {wrong}")
        except Exception as error:
            seen["wrong"].append(f"{place['id']}: {type(error).__name__}: {error}")
        seen["rounds"] += 1
        time.sleep(0.03)  # it shares the processor with those whom it watches
        beside = folder / "seen.tmp"
        beside.write_text(json.dumps(seen))
        os.replace(beside, folder / "seen.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
