"""Reads damaged copies of a dataset, each in a forked child with limits; run as a script.

``python -m tests.fuzz DATASET FIRST COUNT`` prints one JSON line a case: how the dataset was
damaged and what reading it came to. ``same`` is the exact truth, ``refused`` an error of the
package's own tree. ``values`` is what a reader cannot know without the manifest, which does know
it: other values, or others of the infos, extras and attributes that an episode can have.
Everything else is a defect: ``wrong``, ``raised``, ``signal``.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from minari_pipe.errors import MinariPipeError
from minari_pipe.library import load_dataset

SECONDS = 30
BYTES = 4 << 30
FREE = ("infos", "extras", "attributes", "seed")
ODD_VALUES = (None, True, -1, 0, 10**30, 1.5, float("nan"), "", "None", "x", [], {}, [1], {"a": 1})

Damage = Callable[[Path, random.Random], str]


def files(place: Path) -> list[Path]:
    return sorted(path for path in (place / "data").rglob("*") if path.is_file())


def cut(place: Path, rng: random.Random) -> str:
    path = rng.choice(files(place))
    size = path.stat().st_size
    keep = rng.choice([0, rng.randrange(size + 1), max(0, size - rng.randrange(1, 64))])
    os.truncate(path, keep)
    return f"cut {path.name} from {size} to {keep}"


def flip(place: Path, rng: random.Random) -> str:
    path = rng.choice([p for p in files(place) if p.stat().st_size])
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice([1, 1, 2, 8, 64]))]
    for index in places:
        data[index] = rng.randrange(256)
    path.write_bytes(data)
    return f"flip {path.name} at {places}"


def overwrite(place: Path, rng: random.Random) -> str:
    """A run of zeros, ones or of another part of the file, as a lost page leaves it."""
    path = rng.choice([p for p in files(place) if p.stat().st_size])
    data = bytearray(path.read_bytes())
    length = min(len(data), rng.choice([4, 8, 64, 512, 4096]))
    begin = rng.randrange(len(data) - length + 1)
    source = rng.randrange(len(data) - length + 1)
    data[begin : begin + length] = rng.choice(
        [bytes(length), b"\xff" * length, data[source : source + length]]
    )
    path.write_bytes(data)
    return f"overwrite {path.name} at {begin}, {length} bytes"


def remove(place: Path, rng: random.Random) -> str:
    path = rng.choice(files(place))
    path.unlink()
    return f"remove {path.relative_to(place)}"


def swap(place: Path, rng: random.Random) -> str:
    first, second = rng.choices(files(place), k=2)
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)
    return f"swap {first.relative_to(place)} and {second.relative_to(place)}"


def edit_json(place: Path, rng: random.Random) -> str:
    path = rng.choice([p for p in files(place) if p.suffix == ".json"])
    fields = json.loads(path.read_text())
    key = rng.choice([*fields, "unknown"])
    if rng.random() < 0.3:
        fields.pop(key, None)
        text = f"drop {key} of {path.relative_to(place)}"
    else:
        value = rng.choice(ODD_VALUES)
        if isinstance(fields.get(key), str) and rng.random() < 0.5:
            old = fields[key]
            at = rng.randrange(len(old) + 1)
            value = old[:at] + rng.choice(["", "}", "0", "é", '"']) + old[at + 1 :]
        fields[key] = value
        text = f"{key} = {value!r:.60} in {path.relative_to(place)}"
    path.write_text(json.dumps(fields))
    return text


def edit_hdf5(place: Path, rng: random.Random) -> str:
    """Change one member of an HDF5 file with h5py: the file stays whole, its structure not."""
    path = place / "data" / "main_data.hdf5"
    with h5py.File(path, "r+") as file:
        members: list[str] = []
        file.visit(members.append)
        name = rng.choice(members)
        kind = rng.choice(["delete", "shorten", "lengthen", "retype", "group", "link", "attribute"])
        found = file[name]
        is_column = isinstance(found, h5py.Dataset)
        if kind == "attribute" and found.attrs:
            attribute = rng.choice(list(found.attrs))
            del found.attrs[attribute]
            if rng.random() < 0.7:
                found.attrs[attribute] = rng.choice([-1, 3, 10**9, "None", "x", 1.5, [1, 2]])
            return f"{attribute} of {name}"
        if kind in ("shorten", "lengthen") and is_column and len(found):
            rows = (
                rng.randrange(len(found))
                if kind == "shorten"
                else len(found) + rng.randrange(9) + 1
            )
            values = np.resize(found[()], (rows, *found.shape[1:]))
            del file[name]
            file[name] = values
            return f"{kind} {name} to {rows}"
        values = found[()] if is_column else None
        del file[name]
        if kind == "retype" and is_column:
            file[name] = (
                [b"text"] * len(values) if values.dtype.kind != "O" else np.zeros(len(values))
            )
        elif kind == "group":
            file.create_group(name) if is_column else file.create_dataset(name, data=[1.0])
        elif kind == "link":
            file[name] = rng.choice(
                [
                    h5py.SoftLink("/"),
                    h5py.SoftLink("/missing"),
                    h5py.ExternalLink("/etc/passwd", "/"),
                    h5py.ExternalLink("../../../other.hdf5", "/episode_0"),
                ]
            )
        else:
            kind = "delete"
        return f"{kind} {name}"


def damages(place: Path) -> list[Damage]:
    known: list[Damage] = [cut, cut, flip, flip, overwrite, remove]
    if any(path.suffix == ".json" for path in files(place)):
        known += [swap, edit_json, edit_json]  # without, each file may be a dataset of its own
    if (place / "data" / "main_data.hdf5").exists():
        known += [edit_hdf5, edit_hdf5, edit_hdf5]
    return known


def read(dataset_id: str) -> dict[str, Any]:
    """Everything a reader can see."""
    dataset = load_dataset(dataset_id)
    episodes = [vars(episode) for episode in dataset]
    table = list(dataset.storage.get_episode_metadata(dataset.episode_indices))
    about = [dataset.spec.observation_space, dataset.spec.action_space, dataset.total_steps]
    return {"episodes": episodes, "attributes": table, "about": about}


def compare(truth: Any, found: Any, *, free: str = "") -> str:
    """``same``, ``values`` where only values differ, else ``wrong``.

    Of infos, extras and attributes no file says which there should be and of what dtype: they
    are ``free``, and only the manifest can tell. Their rows are counted all the same; extras may
    lack the one of the reset, or have one that was lacking.
    """
    if isinstance(truth, np.ndarray) and isinstance(found, np.ndarray):
        if (truth.shape, truth.dtype) != (found.shape, found.dtype):
            both = bool(truth.ndim and found.ndim)
            fewer = abs(len(truth) - len(found)) if both else truth.ndim + found.ndim
            return "values" if free and fewer in (0, free == "extras") else "wrong"
        same = (
            truth.tolist() == found.tolist()
            if truth.dtype.kind == "O"
            else truth.tobytes() == found.tobytes()
        )
        return "same" if same else "values"
    if isinstance(truth, dict) and isinstance(found, dict):
        if truth.keys() != found.keys() and not free:
            return "wrong"
        results = {
            compare(truth[key], found[key], free=free or (key if key in FREE else ""))
            for key in truth.keys() & found.keys()
        }
        if truth.keys() != found.keys():
            results.add("values")
    elif isinstance(truth, list | tuple) and type(truth) is type(found):
        if len(truth) != len(found):
            return "values" if free else "wrong"
        results = {compare(a, b, free=free) for a, b in zip(truth, found, strict=True)}
    elif isinstance(truth, np.ndarray | dict | list | tuple) or type(truth) is not type(found):
        return "values" if free else "wrong"
    else:
        same = truth == found or (truth != truth and found != found)
        return "same" if same else "values"
    return next((result for result in ("wrong", "values") if result in results), "same")


def one(dataset_id: str, damage: Damage, rng: random.Random, truth: Any) -> dict[str, str]:
    root = Path(os.environ["MINARI_DATASETS_PATH"])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        place = Path(folder) / dataset_id
        shutil.copytree(root / dataset_id, place)
        what = damage(place, rng)
        answer = Path(folder) / "answer"
        child = os.fork()
        if child == 0:
            _limited(dataset_id, truth, answer)
        _, status = os.waitpid(child, 0)
        os.environ["MINARI_DATASETS_PATH"] = str(root)
        if os.WIFSIGNALED(status):
            return {"damage": what, "result": "signal", "detail": str(os.WTERMSIG(status))}
        result, _, detail = answer.read_text().partition("\n")
        return {"damage": what, "result": result, "detail": detail}


def _limited(dataset_id: str, truth: Any, answer: Path) -> None:
    """Read in a child that cannot take the machine with it."""
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    try:
        text = compare(truth, read(dataset_id))
        if text == "values":
            text = _seen_by_the_manifest(dataset_id)
    except MinariPipeError as error:
        text = f"refused\n{type(error).__name__}: {error}"
    except BaseException as error:
        text = f"raised\n{type(error).__name__}: {error}"
    answer.write_text(text)
    os._exit(0)


def _seen_by_the_manifest(dataset_id: str) -> str:
    try:
        load_dataset(dataset_id, verify=True)
    except MinariPipeError as error:
        return f"values\n{error}"
    return "wrong\nverify=True did not see that values have changed"


def main(dataset_id: str, first: int, count: int) -> None:
    warnings.simplefilter("ignore")
    truth = read(dataset_id)
    known = damages(Path(os.environ["MINARI_DATASETS_PATH"]) / dataset_id)
    for case in range(first, first + count):
        rng = random.Random(case)
        print(json.dumps({"case": case, **one(dataset_id, known[case % len(known)], rng, truth)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
