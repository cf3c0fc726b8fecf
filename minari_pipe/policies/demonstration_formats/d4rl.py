"""Read demonstrations in D4RL's flat HDF5 layout, the steps of all episodes one after another.

::

    observations   (N, ...)     row t was observed before action t
    actions        (N, ...)
    rewards        (N,)
    terminals      (N,) bool    the environment terminated at this step: an episode ends here
    timeouts       (N,) bool    optional; an episode ends here without being terminal
    infos/qpos     (N, ...)     the simulator's state before action t, a dataset for each part

Fu et al. 2020, https://github.com/Farama-Foundation/D4RL. The last episode ends with the file.
``next_observations``, ``metadata`` and other entries are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, MinariPipeError
from minari_pipe.policies.demonstration_formats.base import (
    Demonstration,
    DemonstrationFormat,
    LazyDemonstrations,
    StateKeys,
    check_demonstrations,
    quoted,
)
from minari_pipe.storage.hdf5.parser.checked import check_readable
from minari_pipe.storage.legacy.rows import episode_bounds

#: Names of state parts in D4RL's Adroit datasets; infos also holds entries that are no state, such
#: as action_log_std.
STATE_KEYS = (
    "qpos",
    "qvel",
    "door_body_pos",
    "board_pos",
    "target_pos",
    "desired_orien",
    "hand_qpos",
    "palm_pos",
    "obj_pos",
)


class _FlatEpisodes(LazyDemonstrations):
    """The episodes of one file."""

    def __init__(self, path: Path, state_keys: StateKeys, label: str) -> None:
        self._path = path
        self._label = label
        with _opened(path, label) as file:
            self._state_keys = _wanted_state(file, state_keys, label)
            columns = self._columns(file)
            flags = {"terminals": _column(file, "terminals", label)}
            if _has(file, "timeouts"):
                flags["timeouts"] = _column(file, "timeouts", label)
            n_rows = len(columns["actions"])
            for key, column in (columns | flags).items():
                if len(column) != n_rows:
                    raise InvalidEpisodeError(
                        f"{label}: {key} has {len(column)} rows, actions has {n_rows}"
                    )
            self._terminals = _read_flags(flags["terminals"], label)
            ends_here = self._terminals
            if "timeouts" in flags:
                ends_here = ends_here | _read_flags(flags["timeouts"], label)
        self._bounds = episode_bounds(ends_here)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[Demonstration]:
        with _opened(self._path, self._label) as file:
            columns = self._columns(file)
            for index in range(len(self)):
                yield self._from(columns, index)

    def _read(self, index: int) -> Demonstration:
        with _opened(self._path, self._label) as file:
            return self._from(self._columns(file), index)

    def _columns(self, file: h5py.File) -> dict[str, h5py.Dataset]:
        keys = ["actions", "observations", "rewards", *(f"infos/{key}" for key in self._state_keys)]
        return {key: _column(file, key, self._label) for key in keys}

    def _from(self, columns: dict[str, h5py.Dataset], index: int) -> Demonstration:
        start, stop = (int(bound) for bound in self._bounds[index : index + 2])
        return Demonstration(
            observations=columns["observations"][start:stop],
            actions=columns["actions"][start:stop],
            rewards=columns["rewards"][start:stop],
            terminal=bool(self._terminals[stop - 1]),
            initial_state={
                key: np.asarray(columns[f"infos/{key}"][start]) for key in self._state_keys
            },
        )


@contextmanager
def _opened(path: Path, label: str) -> Iterator[h5py.File]:
    """Open an untrusted file; turn every failure of HDF5 in it into one clear error."""
    try:
        check_readable(path)
        with h5py.File(path, "r") as file:
            yield file
    except CorruptDatasetError as error:
        raise InvalidEpisodeError(f"{label} is damaged ({error}); fetch it again") from error
    except MinariPipeError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidEpisodeError(
            f"{label} is damaged or not HDF5 ({reason}); fetch it again"
        ) from error


def _has(group: h5py.Group, name: str) -> bool:
    return group.get(name, getlink=True) is not None


def _column(file: h5py.File, key: str, label: str) -> h5py.Dataset:
    """Return the dataset ``key``, which must be in this file and hold rows of plain numbers."""
    found: Any = file
    for part in key.split("/"):
        if not isinstance(found, h5py.Group) or not _has(found, part):
            raise InvalidEpisodeError(
                f"{label} has no dataset {key!r}; it has: {quoted(sorted(file))}"
            )
        if not isinstance(found.get(part, getlink=True), h5py.HardLink):
            raise InvalidEpisodeError(
                f"{label}: {key!r} is a soft or external link, which is not followed; store the "
                f"data itself"
            )
        found = found[part]
    if not isinstance(found, h5py.Dataset):
        raise InvalidEpisodeError(f"{label}: {key!r} is a group, expected a dataset")
    if found.dtype.kind not in "fiub" or found.ndim == 0:
        raise InvalidEpisodeError(
            f"{label}: {key!r} has dtype {found.dtype} and {found.ndim} dimensions, expected rows "
            f"of numbers"
        )
    return found


def _read_flags(column: h5py.Dataset, label: str) -> npt.NDArray[np.bool_]:
    if column.ndim != 1:
        raise InvalidEpisodeError(
            f"{label}: {column.name} has shape {column.shape}, expected one flag per step"
        )
    values = np.asarray(column[()])
    other = np.flatnonzero((values != 0) & (values != 1))
    if len(other):
        raise InvalidEpisodeError(
            f"{label}: {column.name} is {values[other[0]]} at row {other[0]}, expected 0 or 1"
        )
    return values.astype(bool)


def _wanted_state(file: h5py.File, state_keys: StateKeys, label: str) -> tuple[str, ...]:
    if state_keys is not None:
        return tuple(state_keys)
    link = file.get("infos", getlink=True)
    infos = file["infos"] if isinstance(link, h5py.HardLink) else {}
    wanted = tuple(key for key in STATE_KEYS if key in infos)
    if not wanted:
        raise InvalidEpisodeError(
            f"{label}: infos has no known part of the simulator state ({', '.join(STATE_KEYS)}); "
            f"it has: {quoted(sorted(infos))}. Set policy.state_keys to the names of the parts"
        )
    return wanted


def _matches(path: Path) -> bool:
    return bool(h5py.is_hdf5(path))


def _read(path: Path, state_keys: StateKeys) -> Sequence[Demonstration]:
    label = f"demonstration file {str(path)!r}"
    episodes = _FlatEpisodes(path, state_keys, label)
    check_demonstrations(episodes, label)
    return episodes


FORMAT = DemonstrationFormat("d4rl", "D4RL flat HDF5", _matches, _read)
