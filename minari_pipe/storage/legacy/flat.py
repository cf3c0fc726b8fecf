"""Read files of Minari 0.2, and 0.1 when it was called Kabuki: one flat HDF5 file, read-only.

::

    <root>/<dataset_name>.hdf5
    ├─ observations         (N, ...) float32; uint8 with the channels first for images
    ├─ actions              (N, ...) float32; (N,) int32 if discrete_action
    ├─ rewards              (N,) float32
    ├─ terminations         (N,) float32, 0 or 1
    ├─ truncations          (N,) float32, 0 or 1
    ├─ episode_terminals    (N,) float32, 1 where an episode ends
    ├─ discrete_action      bool
    ├─ version              "1.0"
    └─ dataset_name, algorithm_name, environment_name, environment_stack, seed_used,
       code_permalink, author, author_email      text, "None" if unset

There is one observation per action: the one after the last step of an episode is not recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from gymnasium import spaces

from minari_pipe.core.environments import make_environment
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.values import check_leaf, member
from minari_pipe.storage.legacy.base import dataset_id_of, plain, standard_metadata
from minari_pipe.storage.legacy.inference import box_of, discrete_of, environment_spaces
from minari_pipe.storage.legacy.rows import (
    RowsStorage,
    Summary,
    check_lengths,
    column,
    cut,
    read_flags,
)

_COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "truncations",
    "episode_terminals",
)
_VALUES = (
    "dataset_name",
    "algorithm_name",
    "environment_name",
    "environment_stack",
    "seed_used",
    "code_permalink",
    "author",
    "author_email",
    "discrete_action",
    "version",
)


class FlatStorage(RowsStorage):
    """A dataset in a file of Minari 0.2."""

    FORMAT = "hdf5-0.2"
    TERMINATIONS = "terminations"
    TRUNCATIONS = "truncations"

    @classmethod
    def _is_mine(cls, file: Any) -> bool:
        return {"observations", "actions", "rewards", "terminations", "version"} <= set(file)

    @classmethod
    def _summarise(cls, file: h5py.File, path: Path) -> Summary:
        rows = check_lengths(file, _COLUMNS)
        flagged = read_flags(file, "terminations", rows) | read_flags(file, "truncations", rows)
        ends = flagged
        if "episode_terminals" in file:
            ends = read_flags(file, "episode_terminals", rows)
        episodes = tuple(cut("", ends, flagged))
        recorded = {name: _single(file, name) for name in _VALUES if name in file}
        recorded["layout_version"] = recorded.pop("version", None)
        name = recorded.pop("dataset_name", None)
        unknown = [
            "the observation after the last step of an episode is not recorded: the last one is "
            "repeated",
            "this layout does not record the spec of the environment, or the seeds, options and "
            "infos of episodes",
        ]
        inferred = sum(not episode.flagged for episode in episodes)
        if inferred:
            unknown.append(
                f"{inferred} episodes end without being terminated or truncated: their last step "
                "is marked as truncated"
            )
        others = [name for name in file if name not in {*_COLUMNS, *_VALUES}]
        if others:
            unknown.append(f"not read, as the layout does not define these names: {others}"[:2000])
        metadata = {
            **standard_metadata(recorded),
            "dataset_id": dataset_id_of(name, path),
            "total_episodes": len(episodes),
            "total_steps": rows,
            "data_format": cls.FORMAT,
        }
        return Summary(metadata, episodes, tuple(unknown))

    @classmethod
    def _spaces(
        cls, file: h5py.File, summary: Summary
    ) -> tuple[gym.Space[Any], gym.Space[Any], tuple[str, ...]]:
        observations, actions = column(file, "observations"), column(file, "actions")
        shape = actions.shape[1:]
        discrete = bool(summary.metadata.get("discrete_action")) and actions.dtype.kind in "iu"
        if discrete and shape == (1,):
            shape = ()
        found = _registered_spaces(summary.metadata.get("environment_name"))
        if found is not None:
            same = _agree(found[0], observations.dtype, observations.shape[1:])
            if same and _agree(found[1], actions.dtype, shape):
                return *found, ()
        space = box_of(observations.dtype, observations.shape[1:])
        notes = ("the spaces are inferred from the arrays",)
        if discrete and not shape:
            return space, discrete_of([actions[()]]), notes
        return space, box_of(actions.dtype, shape), notes


def _single(file: h5py.File, name: str) -> Any:
    found = member(file, name)
    check_leaf(found)
    if found.size is None or found.size > 1:
        raise CorruptDatasetError(f"{name} has shape {found.shape}, expected a single value")
    return plain(found[()])


def _registered_spaces(name: Any) -> tuple[gym.Space[Any], gym.Space[Any]] | None:
    """Return the spaces of a registered environment; never import code named by the file."""
    if not isinstance(name, str) or ":" in name:
        return None
    try:
        return environment_spaces(lambda: make_environment(name))
    except Exception:  # the environment may raise any error; the data can be read without it
        return None


def _agree(space: gym.Space[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if not isinstance(space, spaces.Box | spaces.Discrete) or space.shape != shape:
        return False
    if isinstance(space, spaces.Discrete):
        return dtype.kind in "iu"
    return bool(np.can_cast(dtype, space.dtype))
