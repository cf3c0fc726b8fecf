"""Files in the layouts of old releases: the golden ones, and makers of small ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from minari_pipe.storage.base import get_storage_keys

GOLDEN = Path(__file__).parents[1] / "legacy"
#: release and id of every golden dataset that the installed formats can read
DATASETS = [
    (release.name, dataset_id)
    for release in sorted(GOLDEN.glob("0.*"))
    for dataset_id in sorted(json.loads((release / "truth.json").read_text()))
    if all(key in get_storage_keys() for key in ("arrow", "parquet") if f"-{key}-" in dataset_id)
]
IDS = [f"{release}-{dataset_id}" for release, dataset_id in DATASETS]


def truth(release: str, dataset_id: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / release / "truth.json").read_text())[dataset_id]


def rows(column: Any) -> list[Any]:
    """Turn a column into what ``truth.json`` holds: one entry for each row."""
    if isinstance(column, dict):
        parts = {key: rows(part) for key, part in column.items()}
        count = len(next(iter(parts.values())))
        return [{key: part[i] for key, part in parts.items()} for i in range(count)]
    if isinstance(column, tuple):
        return [list(row) for row in zip(*map(rows, column), strict=True)]
    return column if isinstance(column, list) else column.tolist()


def as_truth(episode: Any) -> dict[str, Any]:
    return {
        "obs": rows(episode.observations),
        "act": rows(episode.actions),
        "rew": rows(episode.rewards),
        "term": rows(episode.terminations),
        "trunc": rows(episode.truncations),
    }


def seeds(release: str, dataset_id: str) -> list[int | None]:
    """Return the seeds of the episodes; 0.5 lost those of episodes that it appended."""
    appended = [] if dataset_id.startswith("nest") else [20, 21]
    return [10, 11, 12, *(appended if release < "0.5" else [None] * len(appended))]


SPACES = {
    "observation_space": json.dumps(
        {"type": "Box", "dtype": "float32", "shape": [1], "low": [0.0], "high": [1000.0]}
    ),
    "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 9}),
}


def write_episode(group: h5py.Group, first: int, steps: int, **attributes: Any) -> None:
    """Write an episode in the layout of 0.4 whose observations count up from ``first``."""
    group["observations"] = np.arange(first, first + steps + 1, dtype=np.float32)[:, None]
    group["actions"] = np.arange(steps) % 9
    group["rewards"] = np.linspace(0, 1, steps)
    group["terminations"] = np.zeros(steps, bool)
    group["truncations"] = np.arange(steps) == steps - 1
    group.attrs.update({"id": 0, "seed": first, "total_steps": steps, **attributes})


def write_attributes(
    root: Path, dataset_id: str, firsts: list[int], *, steps: int = 3, **attributes: Any
) -> Path:
    """Write a dataset of 0.4 into a root; returns its data directory."""
    data = root / dataset_id / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for index, first in enumerate(firsts):
            write_episode(file.create_group(f"episode_{index}"), first, steps)
        file.attrs.update(
            {
                **SPACES,
                "dataset_id": dataset_id,
                "minari_version": "~=0.4",
                "total_episodes": len(firsts),
                "total_steps": steps * len(firsts),
                **attributes,
            }
        )
    return data


def write_links(root: Path, dataset_id: str, links: list[tuple[str, str]]) -> Path:
    """Write a dataset of 0.4 whose episodes are links to ``(file, group)``."""
    data = write_attributes(root, dataset_id, [], combined_datasets=["a-v0", "b-v0"])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        for index, (name, path) in enumerate(links):
            file[f"episode_{index}"] = h5py.ExternalLink(name, path)
        file.attrs["total_episodes"] = len(links)
    return data


def write_flat(path: Path, lengths: list[int], **changes: Any) -> Path:
    """Write a file of 0.2 whose observations count the rows; a value None leaves a name out."""
    count = sum(lengths)
    ends = np.zeros(count, np.float32)
    ends[np.cumsum(lengths) - 1] = 1
    values: dict[str, Any] = {
        "dataset_name": path.stem,
        "algorithm_name": "random",
        "environment_name": "None",
        "environment_stack": "None",
        "seed_used": 42,
        "code_permalink": "None",
        "author": "A. Uthor",
        "author_email": "a@example.org",
        "observations": np.arange(2 * count, dtype=np.float32).reshape(count, 2),
        "actions": (np.arange(count) % 3).astype(np.int32),
        "rewards": np.arange(count, dtype=np.float32) / 4,
        "terminations": ends,
        "truncations": np.zeros(count, np.float32),
        "episode_terminals": ends,
        "discrete_action": True,
        "version": "1.0",
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            if value is not None:
                file[name] = value
    return path


def d4rl_columns(lengths: list[int], first: int = 0) -> dict[str, Any]:
    """Make the columns of a file of D4RL: the first episode terminates, the others time out."""
    count = sum(lengths)
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    terminals = ends.copy()
    terminals[lengths[0] :] = False
    observations = first + np.arange(count, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return {
        "observations": observations,
        "actions": np.linspace(-1, 1, 2 * count, dtype=np.float32).reshape(count, 2),
        "rewards": np.arange(count, dtype=np.float32),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "infos/qpos": np.arange(first, first + count, dtype=np.float64)[:, None] * np.ones(4),
        "infos/deep/goal": np.arange(count, dtype=np.float32),
    }


def write_d4rl(path: Path, columns: dict[str, Any], prefix: str = "") -> Path:
    with h5py.File(path, "a") as file:
        for name, value in columns.items():
            file[f"{prefix}{name}"] = value
    return path
