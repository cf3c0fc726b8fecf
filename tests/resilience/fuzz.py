"""Reads damaged copies of datasets, each in a forked child with limits on memory and time.

    python -m tests.resilience.fuzz --count 10000 --seed 0

damages the formats that are written here, those of real Minari and the older layouts in turn, and
prints a table of what reading them came to, by dataset and kind of damage; the exit code is 1 if
anything but the first three came up:

``same``     the exact truth
``refused``  an error of the package's own tree, or an OSError
``values``   what a reader cannot know without the manifest: other values, the sign or byte order of
             integers, or others of the infos, extras and attributes that an episode can have.
             ``verify=True`` refused them, or there is no manifest
``wrong``    what the metadata contradict was read, or ``verify=True`` saw nothing
``raised``   an error outside of the tree, of reading or of what is done with a dataset
``signal``   the process ended: a crash, a time-out (14), or too much memory
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

import minari_pipe
from minari_pipe.checks import Options, Subject, run
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import MinariPipeError
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.testing import episode
from tests.conftest import CHECKOUT

SECONDS = 30
BYTES = 4 << 30
BAD = ("wrong", "raised", "signal")
FREE = ("infos", "extras", "attributes", "seed")
ODD_VALUES = (None, True, -1, 0, 10**30, 1.5, float("nan"), "", "None", "x", [], {}, [1], {"a": 1})

Damage = Callable[[Path, random.Random], str]


#: names of what a dataset is made of that differs in its values alone
TWIN = "twin"
LEGACY = CHECKOUT / "tests" / "legacy"
#: datasets that others wrote, and where they are
THEIRS = {
    "minari-hdf5": LEGACY / "0.5.4" / "nest" / "random-v0",
    "minari-arrow": LEGACY / "0.5.3" / "nest" / "random-arrow-v0",
    "minari-parquet": LEGACY / "0.5.4" / "nest" / "random-parquet-v0",
    "0.4.0": LEGACY / "0.4.0" / "cartpole-random-v0",
    "0.4.3": LEGACY / "0.4.3" / "nest-random-v0",
    "0.3.1": LEGACY / "0.3.1" / "cartpole-random-v0",
}
FORMATS = tuple(minari_pipe.get_storage_keys())
SPACE = spaces.Dict(a=spaces.Box(-1, 1, (2,)), t=spaces.Tuple([spaces.Text(8), spaces.Discrete(3)]))


def make(root: Path, name: str, *, steps: int = 6) -> str:
    """Put a dataset into a root, and its twin if it is one of ours; return its id."""
    if name in THEIRS:
        dataset_id = f"{THEIRS[name].name.partition('-v')[0]}-{name.replace('.', '')}-v0"
        shutil.copytree(THEIRS[name], root / dataset_id)
        return dataset_id
    dataset_id = f"fuzz/{name}-v0"
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    before = os.environ.get("MINARI_DATASETS_PATH")
    for seed, place in enumerate((root, root / TWIN)):
        place.mkdir(exist_ok=True)
        os.environ["MINARI_DATASETS_PATH"] = str(place)
        rng = np.random.default_rng(seed)
        with warnings.catch_warnings(action="ignore"):
            minari_pipe.create_dataset_from_buffers(
                dataset_id,
                [episode(SPACE, action_space, rng, steps=steps + number) for number in range(4)],
                observation_space=SPACE,
                action_space=action_space,
                data_format=name,
            )
    if before is None:
        del os.environ["MINARI_DATASETS_PATH"]
    else:
        os.environ["MINARI_DATASETS_PATH"] = before
    return dataset_id


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


def exchange(unit: int) -> Damage:
    """Exchange two words or pages of a file that differ: the sum of all is the same."""

    def damage(place: Path, rng: random.Random) -> str:
        path = rng.choice([p for p in files(place) if p.stat().st_size >= 2 * unit] or files(place))
        data = bytearray(path.read_bytes())
        for _ in range(50):
            one, other = (unit * rng.randrange(max(1, len(data) // unit)) for _ in range(2))
            if data[one : one + unit] != data[other : other + unit]:
                break
        first, second = data[one : one + unit], data[other : other + unit]
        if len(first) == len(second):
            data[one : one + unit], data[other : other + unit] = second, first
        path.write_bytes(data)
        return f"exchange {unit} bytes of {path.relative_to(place)} at {one} and {other}"

    return damage


def repeat_page(place: Path, rng: random.Random) -> str:
    """Write a page over another one, or once more between two."""
    path = rng.choice([p for p in files(place) if p.stat().st_size])
    data = bytearray(path.read_bytes())
    size = min(rng.choice([512, 4096]), len(data))
    source, target = (rng.randrange(len(data) - size + 1) for _ in range(2))
    page = data[source : source + size]
    data[target : target + rng.choice([0, size])] = page
    path.write_bytes(data)
    return f"repeat {size} bytes of {path.relative_to(place)} from {source} at {target}"


def splice(place: Path, rng: random.Random) -> str:
    """Take a part of a file, or all of it, from a dataset of the same shape."""
    root = Path(os.environ[_ORIGINALS])
    path = rng.choice([p for p in files(place) if p.stat().st_size])
    twin = root / TWIN / place.parent.name / place.name / path.relative_to(place)
    data, other = bytearray(path.read_bytes()), twin.read_bytes()
    size = rng.choice([8, 512, 4096, len(data) // 2, len(data)])
    begin = rng.randrange(max(1, len(data) - size + 1))
    data[begin : begin + size] = other[begin : begin + size]
    path.write_bytes(data)
    return f"splice {size} bytes of {path.relative_to(place)} at {begin}"


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


def damages(place: Path) -> dict[str, Damage]:
    """Kinds of damage that a dataset can have."""
    known: dict[str, Damage] = {
        "cut": cut,
        "flip": flip,
        "overwrite": overwrite,
        "remove": remove,
        "words": exchange(8),
        "pages": exchange(4096),
        "small pages": exchange(256),
        "repeat": repeat_page,
    }
    if any(path.suffix == ".json" for path in files(place)):
        # without, each file may be a dataset of its own
        known |= {"files": swap, "json": edit_json}
    if (place / "data" / "main_data.hdf5").exists():
        known["members"] = edit_hdf5
    if (place.parents[1] / TWIN / place.parent.name / place.name).exists():
        known["splice"] = splice
    return known


def read(dataset_id: str, *, verify: bool = False) -> dict[str, Any]:
    """Everything a reader can see."""
    dataset = load_dataset(dataset_id, verify=verify)
    episodes = [vars(episode) for episode in dataset]
    table = list(dataset.storage.get_episode_metadata(dataset.episode_indices))
    about = [dataset.spec.observation_space, dataset.spec.action_space, dataset.total_steps]
    return {"episodes": episodes, "attributes": table, "about": about}


def _statistics(dataset: MinariDataset) -> None:
    dataset.returns()
    dataset.episodes["return"].sum()
    len(dataset.where("total_steps > 6"))


def _validate(dataset: MinariDataset) -> None:
    run(Subject.open(dataset.storage.data_path, options=Options()))


#: what users do with a dataset
USES: dict[str, Callable[[MinariDataset], Any]] = {
    "sample": lambda dataset: dataset.sample_episodes(2),
    "filter": lambda dataset: dataset.filter_episodes(lambda found: found.rewards.sum() > 0),
    "transitions": lambda dataset: list(dataset.transitions(4, seed=0)),
    "windows": lambda dataset: list(dataset.windows(4, 3)),
    "statistics": _statistics,
    "combine": lambda dataset: minari_pipe.combine_datasets([dataset], "new/combined-v0"),
    "split": lambda dataset: minari_pipe.split_dataset(dataset, [0.5, 0.5], seed=0),
    "migrate": lambda dataset: minari_pipe.migrate_dataset(
        dataset.storage.data_path, "new/migrated-v0"
    ),
    "validate": _validate,
}


def compare(truth: Any, found: Any, *, free: str = "") -> str:
    """``same``, ``values`` where only values differ, else ``wrong``.

    Of infos, extras and attributes no file says which there should be and of what dtype: they
    are ``free``, and only the manifest can tell. Their rows are counted all the same; extras may
    lack the one of the reset, or have one that was lacking. Nor does one say of integers whether
    they have a sign, and which byte comes first: real Minari stores the dtype that it is given.
    """
    if isinstance(truth, np.ndarray) and isinstance(found, np.ndarray):
        if (truth.shape, truth.dtype) != (found.shape, found.dtype):
            kinds = {truth.dtype.kind, found.dtype.kind}
            if kinds <= {"i", "u"} and (truth.shape, truth.nbytes) == (found.shape, found.nbytes):
                return "values"
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


#: the root of the datasets as they were
_ORIGINALS = "FUZZ_ORIGINALS"


def one(
    dataset_id: str, damage: Damage, rng: random.Random, truth: Any, use: str
) -> dict[str, str]:
    root = Path(os.environ["MINARI_DATASETS_PATH"])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        os.environ[_ORIGINALS] = str(root)
        place = Path(folder) / dataset_id
        shutil.copytree(root / dataset_id, place)
        what = damage(place, rng)
        answer = Path(folder) / "answer"
        child = os.fork()
        if child == 0:
            _limited(dataset_id, truth, answer, use)
        _, status = os.waitpid(child, 0)
        os.environ["MINARI_DATASETS_PATH"] = str(root)
        if os.WIFSIGNALED(status) or not answer.exists():
            return {"damage": what, "result": "signal", "detail": f"{status & 127}, or {use}"}
        result, _, detail = answer.read_text().partition("\n")
        return {"damage": what, "result": result, "detail": detail}


def _limited(dataset_id: str, truth: Any, answer: Path, use: str) -> None:
    """Read in a child that cannot take the machine with it."""
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    doing = "reading"
    try:
        text = _result(dataset_id, truth)
        doing = use
        with suppress(MinariPipeError, OSError):  # one that is refused is refused in every use
            USES[use](load_dataset(dataset_id))
    except BaseException as error:
        text = f"raised\n{doing}: {type(error).__name__}: {error}"
    answer.write_text(text, errors="backslashreplace")
    os._exit(0)


def _result(dataset_id: str, truth: Any) -> str:
    try:
        text = compare(truth, read(dataset_id))
    except (MinariPipeError, OSError) as error:
        text = f"refused\n{type(error).__name__}: {error}"
    try:
        verified = compare(truth, read(dataset_id, verify=True))
    except (MinariPipeError, OSError) as error:
        return f"{text}\n{error}" if text == "values" else text
    # no manifest holds what was read but the truth
    return text if verified == "same" else f"wrong\nverify=True did not see: {verified}"


def cases(dataset_id: str, truth: Any, seed: int, first: int, count: int) -> Iterator[dict]:
    """Yield what each of so many damaged copies came to."""
    known = damages(Path(os.environ["MINARI_DATASETS_PATH"]) / dataset_id)
    kinds = sorted(known)
    uses = sorted(USES)
    for case in range(first, first + count):
        rng = random.Random(f"{seed}/{dataset_id}/{case}")
        kind, use = kinds[case % len(kinds)], rng.choice(uses)
        yield {"case": case, "kind": kind, **one(dataset_id, known[kind], rng, truth, use)}


def main(count: int, seed: int, names: list[str], steps: int) -> int:
    warnings.simplefilter("ignore")
    results: dict[tuple[str, str], Counter[str]] = {}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["MINARI_DATASETS_PATH"] = folder
        for number, name in enumerate(names):
            dataset_id = make(root, name, steps=steps)
            truth = read(dataset_id)
            share = count // len(names) + (number < count % len(names))
            for result in cases(dataset_id, truth, seed, 0, share):
                counts = results.setdefault((name, result["kind"]), Counter())
                counts[result["result"]] += 1
                if result["result"] in BAD:
                    bad += 1
                    print(json.dumps({"dataset": name, **result}), flush=True)
    head = ("same", "refused", "values", *BAD)
    print(f"{'dataset':16} {'kind':12}" + "".join(f"{word:>9}" for word in head))
    for (name, kind), counts in sorted(results.items()):
        print(f"{name:16} {kind:12}" + "".join(f"{counts[word]:9}" for word in head))
    total = sum((counts for counts in results.values()), Counter())
    print(f"{'all':29}" + "".join(f"{total[word]:9}" for word in head))
    return int(bad > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="of all datasets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dataset", nargs="*", default=[*FORMATS, *THEIRS], help="some only")
    parser.add_argument("--steps", type=int, default=300, help="of an episode; files have pages")
    arguments = parser.parse_args()
    sys.exit(main(arguments.count, arguments.seed, arguments.dataset, arguments.steps))
