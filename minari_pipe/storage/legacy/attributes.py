"""Read datasets of Minari 0.3 to 0.4.3: one HDF5 file with the metadata in attributes; read-only.

::

    data/
    ├─ main_data.hdf5           attributes dataset_id, env_spec, author, total_episodes, ...;
    │  │                        0.3: flatten_observation, flatten_action and no spaces;
    │  │                        0.4: observation_space, action_space, minari_version ("~=0.4")
    │  ├─ episode_0             attributes id, seed (or "None"), total_steps; 0.4.3: rewards_sum ...
    │  │  ├─ observations       (T + 1, ...)  0.3: Dict and Tuple flattened to one vector
    │  │  ├─ actions            (T, ...)      0.4: groups of keys, of _index_0, _index_1, ...
    │  │  ├─ rewards            (T,)          before 0.4.3: attributes sum, mean, std, max, min
    │  │  ├─ terminations       (T,)
    │  │  ├─ truncations        (T,)
    │  │  ├─ infos              groups and datasets of T + 1 rows
    │  │  └─ <name>             what a StepDataCallback added
    │  └─ episode_1             before 0.4.3: or a link to /episode_<k> of another file
    └─ additional_data_0.hdf5   before 0.4.3: appended episodes

Some files of 0.3 record a wrong number of total steps, so both totals are counted.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np

from minari_pipe.core.environments import recover
from minari_pipe.core.episode import FINAL_OBSERVATION_MISSING
from minari_pipe.core.files.atomic import is_left
from minari_pipe.core.files.links import refuse_links
from minari_pipe.core.json_object import json_object
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.errors import CorruptDatasetError, InvalidMetadataError, LinkError
from minari_pipe.storage.agreement import check_agreement
from minari_pipe.storage.attributes import unflatten_attributes
from minari_pipe.storage.hdf5.parser.checked import open_checked
from minari_pipe.storage.hdf5.values import check_leaf, member, read_column, read_infos, read_leaf
from minari_pipe.storage.legacy.base import (
    LegacyStorage,
    Stamp,
    dataset_id_of,
    flags,
    indices_of,
    numbers,
    plain,
    reading,
    row_count,
    stamp,
    standard_metadata,
    with_final_row,
    with_row_filled,
)
from minari_pipe.storage.legacy.inference import environment_spaces, fits, infer_space
from minari_pipe.storage.legacy.links import LinkedFiles
from minari_pipe.storage.legacy.unflatten import unflatten_rows

MAIN_FILE_NAME = "main_data.hdf5"

_EPISODE = re.compile(r"episode_(0|[1-9]\d*)")
_GROUPS = frozenset({"observations", "actions", "rewards", "terminations", "truncations", "infos"})
#: the root of every such file has at least one of these; files of 0.5 have no attributes there
_MARKS = frozenset({"total_episodes", "dataset_id", "flatten_observation", "flatten_action"})
_SPACES = ("observation_space", "action_space")
#: environment variables that move the datasets root, inside which links are followed
_ROOT_VARIABLES = ("MINARI_DATASETS_PATH", "MINARI_DATASET_LOCATION", "HOME")


@dataclass(frozen=True)
class _Summary:
    metadata: dict[str, Any]
    flattened: dict[str, bool]
    unknown: tuple[str, ...]
    elsewhere: tuple[str, ...]


class AttributesStorage(LegacyStorage):
    """A dataset of Minari 0.3 to 0.4.3."""

    FORMAT = "hdf5-0.4"

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
    ) -> None:
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        self._unflatten = {"observations": False, "actions": False}

    @classmethod
    def recognises(cls, data_path: Path) -> bool:
        """Return whether this is a data directory of these releases, or its main file."""
        try:
            path = _main_file(data_path)
            if not path.is_file() or path.stat().st_size == 0:
                return False
            try:
                with open_checked(path.resolve()) as file:  # the user may name it by a link
                    return not _MARKS.isdisjoint(file.attrs)
            except OSError:
                return data_path.is_dir()  # damaged; reading it raises the error
        except (LinkError, CorruptDatasetError):
            return True  # reading it raises the error
        except Exception:  # the file is untrusted, and every listing calls this on each directory
            return False

    @classmethod
    def read_raw_metadata(cls, data_path: Any) -> dict[str, Any]:
        """Return the attributes of the main file with the keys and types of ``metadata.json``."""
        return deepcopy(_summary_of(Path(data_path)).metadata)

    @classmethod
    def open(cls, data_path: Path, *, trusted_modules: Collection[str] = ()) -> AttributesStorage:
        """Open a dataset; create its environment only if the file has no spaces.

        If the environment cannot be created, the spaces are inferred from the arrays, with one
        warning.
        """
        summary = _summary_of(data_path)
        known: dict[str, gym.Space[Any]] = {}
        for key in _SPACES:
            if isinstance(summary.metadata.get(key), str):
                known[key] = deserialize_space(summary.metadata[key])
        unflatten = dict.fromkeys(("observations", "actions"), False)
        unknown = list(summary.unknown)
        if len(known) < len(_SPACES):
            found, problem, why = _environment_spaces(data_path, summary, trusted_modules)
            for key in _SPACES:
                name = f"{key.removesuffix('_space')}s"
                unflatten[name] = not problem and summary.flattened[name]
                known.setdefault(key, found[key])
            if problem:
                unknown.append(f"the spaces are inferred from the arrays, since {problem}")
                still = [name for name, flat in summary.flattened.items() if flat]
                if still:
                    unknown.append(f"{' and '.join(still)} stay flattened to one vector per step")
                warnings.warn(
                    f"{data_path}: this layout holds no spaces, and {problem}{why}. Spaces "
                    "inferred from the arrays are used instead"
                    + (f", and {' and '.join(still)} stay flattened" if still else "")
                    + ". To get the original spaces, install the environment's package, or name "
                    "its module in trusted_modules if you trust it",
                    stacklevel=4,
                )
        storage = cls(data_path, known["observation_space"], known["action_space"])
        storage._unflatten = unflatten
        storage.unknown = tuple(unknown)
        storage.elsewhere = summary.elsewhere
        return storage

    @property
    def _file_path(self) -> Path:
        return _main_file(self.data_path)

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the attributes of episodes under their current names."""
        total = self.total_episodes
        with LinkedFiles.opened(self._file_path, self.data_path) as files:
            for index in indices_of(episode_indices, total):
                with reading(self._file_path, f"attributes of episode {index}"):
                    yield _attributes(files.group(f"episode_{index}"), index)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes as dicts."""
        total = self.total_episodes
        with LinkedFiles.opened(self._file_path, self.data_path) as files:
            for index in indices_of(episode_indices, total):
                with reading(self._file_path, f"episode {index}"):
                    episode = self._episode(files.group(f"episode_{index}"), index)
                yield episode

    def _episode(self, group: h5py.Group, index: int) -> dict[str, Any]:
        rewards = numbers(read_leaf(member(group, "rewards"), None), "rewards")
        steps = len(rewards)
        episode: dict[str, Any] = {
            "id": index,
            "seed": _seed(group.attrs.get("seed")),
            "rewards": rewards,
        }
        for key in ("terminations", "truncations"):
            episode[key] = flags(read_leaf(member(group, key), None), key)
        observations = self._column(group, "observations", self.observation_space)
        final_missing = row_count(observations, "observations") == steps
        episode["observations"] = with_final_row(observations, steps, "observations")
        episode["actions"] = self._column(group, "actions", self.action_space)
        episode["infos"] = {}
        if "infos" in group:
            infos = read_infos(member(group, "infos"), [])
            episode["infos"] = with_row_filled(infos, steps, _filled_row(steps, final_missing))
        episode["extras"] = {
            name: _extra(member(group, name)) for name in group if name not in _GROUPS
        }
        # extra columns from users' callbacks may have any number of rows
        spaces = (self.observation_space, self.action_space)
        check_agreement({**episode, "extras": {}}, *spaces, steps)
        return episode

    def _column(self, group: h5py.Group, name: str, space: gym.Space[Any]) -> Any:
        stored = member(group, name)
        if self._unflatten[name] and isinstance(stored, h5py.Dataset):
            return unflatten_rows(space, read_leaf(stored, None))
        return read_column(stored, space)


def _main_file(data_path: Path) -> Path:
    if not data_path.is_dir():
        return data_path
    path = data_path / MAIN_FILE_NAME
    refuse_links(path, data_path)
    if is_left(data_path):
        raise CorruptDatasetError(
            f"{data_path} holds an unfinished change, but an older layout is never changed: its "
            f"files cannot be trusted. Fetch the dataset again"
        )
    return path


def _summary_of(data_path: Path) -> _Summary:
    path = _main_file(data_path)
    roots = tuple(map(os.environ.get, _ROOT_VARIABLES))
    with reading(path):
        return _summary(data_path, path, stamp(path), roots)


@lru_cache(maxsize=256)
def _summary(data_path: Path, path: Path, stamp: Stamp, roots: tuple[str | None, ...]) -> _Summary:
    """Read what is needed repeatedly; the last two arguments invalidate the cache."""
    unknown = ["this layout does not record the options of resets"]
    with LinkedFiles.opened(path, data_path) as files:
        recorded = {key: plain(value) for key, value in files.main.attrs.items()}
        count = sum(1 for name in files.main if _EPISODE.fullmatch(name))
        declared = recorded.pop("total_episodes", None)
        if isinstance(declared, int) and declared > count:
            raise CorruptDatasetError(f"{path} has {count} episodes, its attributes say {declared}")
        groups = (files.group(f"episode_{index}") for index in range(count))
        steps = 0
        layout = None
        for group in groups:
            steps += _steps(member(group, "rewards"))
            if layout is None and "rewards_sum" in group.attrs:
                layout = "hdf5-0.4.3"
        own = (data_path if data_path.is_dir() else data_path.parent).resolve()
        elsewhere = [
            str(other)
            for other in sorted(files.others)
            if other.parent != own or other.name.startswith(".")
        ]
    said = recorded.pop("total_steps", None)
    if said is not None and said != steps:
        unknown.append(f"the file says {said} steps, its episodes have {steps}")
    flattened = {
        "observations": bool(recorded.get("flatten_observation")),
        "actions": bool(recorded.get("flatten_action")),
    }
    if {"flatten_observation", "flatten_action"} & recorded.keys():
        layout = "hdf5-0.3"
    elif "dataset_size" in recorded:
        layout = "hdf5-0.4.3"
    if recorded.get("minari_version") is None:
        unknown.append("the Minari version that wrote the data is not recorded")
    metadata = {
        **standard_metadata(recorded),
        "dataset_id": dataset_id_of(recorded.get("dataset_id"), data_path),
        "total_episodes": count,
        "total_steps": steps,
        "data_format": layout or "hdf5-0.4",
    }
    return _Summary(metadata, flattened, tuple(unknown), tuple(elsewhere))


def _environment_spaces(
    data_path: Path, summary: _Summary, trusted_modules: Collection[str]
) -> tuple[dict[str, gym.Space[Any]], str, str]:
    """Return the spaces, of the environment or inferred, with the problem and its details."""
    with (
        LinkedFiles.opened(_main_file(data_path), data_path) as files,
        reading(data_path, "spaces"),
    ):
        if not summary.metadata["total_episodes"]:
            first = None
        else:
            group = files.group("episode_0")
            first = {key: member(group, f"{key.removesuffix('_space')}s") for key in _SPACES}
        spec = summary.metadata.get("env_spec")
        problem, why = "it names no environment", ""
        if spec is not None:
            try:
                both = environment_spaces(lambda: recover(spec, trusted_modules=trusted_modules))
            except Exception as error:  # the environment may raise any error
                problem = f"its environment {_env_id(spec)!r} cannot be created"
                why = f" ({type(error).__name__}: {error})"
            else:
                found = dict(zip(_SPACES, both, strict=True))
                if first is None or all(
                    fits(found[key], first[key], flattened=flat)
                    for key, flat in zip(_SPACES, summary.flattened.values(), strict=True)
                ):
                    return found, "", ""
                problem = f"the environment {_env_id(spec)!r} now has other spaces"
        if first is None:
            raise InvalidMetadataError(
                f"{data_path} has neither episodes nor spaces, and {problem}{why}"
            )
        return {key: infer_space(first[key]) for key in _SPACES}, problem, why


def _env_id(spec: str) -> str:
    try:
        return str(json_object(spec)["id"])
    except (ValueError, KeyError):
        return spec[:40]


def _steps(rewards: Any) -> int:
    check_leaf(rewards)
    if not rewards.ndim:
        raise CorruptDatasetError(f"{rewards.name} is a single value, expected one row per step")
    return int(rewards.shape[0])


def _attributes(group: h5py.Group, index: int) -> dict[str, Any]:
    members = {name: member(group, name) for name in group}
    steps = _steps(members["rewards"])
    recorded = dict(group.attrs)
    seed = _seed(recorded.pop("seed", None))
    attributes = unflatten_attributes(recorded)
    attributes |= {"id": index, "total_steps": steps}
    if seed is not None:
        attributes["seed"] = seed
    for name, found in members.items():
        # releases before 0.4.3 store statistics here; users' callbacks may store anything
        for key, value in found.attrs.items() if h5py.h5a.get_num_attrs(found.id) else ():
            attributes.setdefault(f"{name}_{key}", _value(value))
    final_missing = _rows_of(members["observations"]) == steps
    if final_missing:
        attributes[FINAL_OBSERVATION_MISSING] = True
    short = _short_infos(members["infos"], steps) if "infos" in members else []
    if short:
        row = _filled_row(steps, final_missing)
        attributes["infos_filled"] = {name: [[row, row + 1]] for name in short}
    return attributes


def _value(value: Any) -> Any:
    return unflatten_attributes({"value": value})["value"]


def _seed(seed: Any) -> int | None:
    if isinstance(seed, np.ndarray) and seed.size == 1:
        seed = seed.reshape(())[()]
    return int(seed) if isinstance(seed, np.integer) else None


def _rows_of(stored: Any) -> int | None:
    while isinstance(stored, h5py.Group):
        name = next(iter(stored), None)
        if name is None:
            return None
        stored = member(stored, name)
    return int(stored.shape[0]) if stored.ndim else None


def _short_infos(infos: Any, steps: int) -> list[str]:
    """Return the names of the infos with one row too few."""
    short: list[str] = []

    def visit(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.shape[:1] == (steps,):
            short.append(name.replace("/", "."))

    if isinstance(infos, h5py.Group):
        infos.visititems(visit)
    return short


def _filled_row(steps: int, final_missing: bool) -> int:
    """Return the missing row of infos with ``steps`` rows: the reset's, or maybe the last one.

    A recorder that omitted the last observation omitted the last infos too.
    """
    return steps if final_missing else 0


def _extra(found: Any) -> Any:
    return read_infos(found, []) if isinstance(found, h5py.Group) else read_leaf(found, None)
