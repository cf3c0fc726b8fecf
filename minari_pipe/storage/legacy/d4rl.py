"""Read D4RL's flat HDF5 files; read-only.

::

    observations        (N, ...)     row t was observed before action t
    actions             (N, ...)
    rewards             (N,)
    terminals           (N,)         0 or 1; the environment terminated at this step
    timeouts            (N,)         0 or 1; optional; the episode was truncated at this step
    next_observations   (N, ...)     optional; the only record of the last observation
    infos/...           (N, ...)     optional; row t belongs to observation t
    metadata/...                     optional; the policy and the like
    virtual/<chunk>/... the same columns once per chunk, instead of those above

Fu et al. 2020, https://github.com/Farama-Foundation/D4RL. An episode ends at a terminal or a
timeout, and at the end of its chunk. The infos of the last observation are not recorded: that row
is filled, and the episode's ``infos_filled`` lists it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np

from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.values import is_group, member
from minari_pipe.storage.legacy.base import dataset_id_of, plain, with_row_filled
from minari_pipe.storage.legacy.inference import box_of, discrete_of
from minari_pipe.storage.legacy.rows import (
    Rows,
    RowsStorage,
    Summary,
    check_lengths,
    column,
    cut,
    part_of,
    read_flags,
)

_COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_OTHERS = frozenset({*_COLUMNS, "infos", "metadata", "virtual"})
#: values up to this size are kept in the metadata: names and settings, but not policy weights
_SMALL_BYTES = 4096
_MAX_ENTRIES = 1000


class D4RLStorage(RowsStorage):
    """A dataset in a file of D4RL."""

    FORMAT = "d4rl"
    TERMINATIONS = "terminals"
    TRUNCATIONS = "timeouts"

    @classmethod
    def _is_mine(cls, file: Any) -> bool:
        parts = _parts(file)
        return bool(parts) and _is_part(part_of(file, parts[0]))

    @classmethod
    def _summarise(cls, file: h5py.File, path: Path) -> Summary:
        episodes: list[Rows] = []
        not_read: list[str] = []
        known = True
        for name in _parts(file):
            part = part_of(file, name)
            for key in ("observations", "actions", "rewards"):
                column(part, key)
            rows = check_lengths(part, _COLUMNS)
            ends = read_flags(part, "terminals", rows) | read_flags(part, "timeouts", rows)
            episodes += cut(name, ends, ends)
            known = known and "next_observations" in part
            not_read += [f"{part.name}/{key}" for key in _unread(part, rows)]
        kept, left_out = _described(file)
        not_read += left_out
        metadata: dict[str, Any] = {
            "dataset_id": dataset_id_of(None, path),
            "total_episodes": len(episodes),
            "total_steps": sum(rows.stop - rows.start for rows in episodes),
            "data_format": cls.FORMAT,
        }
        if kept:
            metadata["d4rl_metadata"] = kept
        unknown = ["this layout does not record an environment, seeds or options"]
        if not known:
            unknown.append(
                "the observation after the last step of an episode is not recorded: the last one "
                "is repeated"
            )
        inferred = sum(not rows.flagged for rows in episodes)
        if inferred:
            unknown.append(
                f"{inferred} episodes end with the file or a chunk of it: their last step is "
                "marked as truncated"
            )
        if not_read:
            unknown.append(f"not read: {', '.join(not_read)[:2000]}")
        return Summary(metadata, tuple(episodes), tuple(unknown))

    @classmethod
    def _spaces(
        cls, file: h5py.File, summary: Summary
    ) -> tuple[gym.Space[Any], gym.Space[Any], tuple[str, ...]]:
        parts = [part_of(file, name) for name in _parts(file)]
        both: list[gym.Space[Any]] = []
        for key in ("observations", "actions"):
            columns = [column(part, key) for part in parts]
            kinds = {(found.dtype, found.shape[1:]) for found in columns}
            if len(kinds) > 1:
                raise CorruptDatasetError(f"{key} differs in type or shape between chunks")
            dtype, shape = kinds.pop()
            if key == "actions" and dtype.kind in "iu" and shape in ((), (1,)):
                both.append(discrete_of(found[()] for found in columns))
            else:
                both.append(box_of(dtype, shape))
        return both[0], both[1], ("the spaces are inferred from the arrays",)

    def _marks(self, file: h5py.File, part: str) -> tuple[bool, list[str]]:
        group = part_of(file, part)
        names = [".".join(path) for path, _ in _infos(group, len(column(group, "rewards")))]
        return "next_observations" in group, names

    def _episode(self, file: h5py.File, rows: Rows, index: int) -> dict[str, Any]:
        episode = super()._episode(file, rows, index)
        part = part_of(file, rows.part)
        steps = rows.stop - rows.start
        count = len(column(part, "rewards"))
        if "next_observations" in part:
            after = column(part, "next_observations")[rows.start : rows.stop]
            observations = episode["observations"]
            if after.shape != observations[:-1].shape:
                raise CorruptDatasetError(
                    f"next_observations has rows of shape {after.shape[1:]}, observations has "
                    f"{observations.shape[1:]}"
                )
            if not np.array_equal(
                after[:-1], observations[1:-1], equal_nan=after.dtype.kind == "f"
            ):
                episode["extras"]["next_observations"] = after  # they hold data of their own
            observations[-1] = after[-1]
        infos: dict[str, Any] = {}
        for (*parents, last), found in _infos(part, count):
            place = infos
            for key in parents:
                place = place.setdefault(key, {})
            place[last] = found[rows.start : rows.stop]
        episode["infos"] = with_row_filled(infos, steps, steps)
        for key in _further(part, count):
            episode["extras"][key] = column(part, key)[rows.start : rows.stop]
        return episode


def _parts(file: Any) -> list[str]:
    """Return the names of the groups that hold columns: the root, or the chunks in order."""
    if _is_part(file):
        return [""]
    if "virtual" not in file:
        return []
    chunks = member(file, "virtual")
    if not is_group(chunks):
        return []
    names = sorted((name for name in chunks if name.isdecimal()), key=int)
    return [f"virtual/{name}" for name in names]


def _is_part(group: Any) -> bool:
    if not is_group(group):
        return False
    names = set(group)
    return {"observations", "actions", "rewards"} <= names and bool(
        names & {"terminals", "timeouts"}
    )


def _datasets(group: h5py.Group) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the datasets below a group, each object once; links are not followed."""
    found: list[tuple[str, h5py.Dataset]] = []

    def visit(name: str, entry: Any) -> bool | None:
        if isinstance(entry, h5py.Dataset):
            found.append((name, entry))
        return True if len(found) >= _MAX_ENTRIES else None

    group.visititems(visit)
    yield from found


def _infos(part: h5py.Group, rows: int) -> list[tuple[list[str], h5py.Dataset]]:
    """Return the infos with one row per step."""
    if "infos" not in part:
        return []
    infos = member(part, "infos")
    if not is_group(infos):
        return []
    return [
        (name.split("/"), column(infos, name))
        for name, entry in _datasets(infos)
        if _is_column(entry, rows)
    ]


def _is_column(entry: h5py.Dataset, rows: int) -> bool:
    return entry.dtype.kind in "fiub" and entry.shape is not None and entry.shape[:1] == (rows,)


def _further(part: h5py.Group, rows: int) -> list[str]:
    """Return the names of other columns with one row per step."""
    return [
        name
        for name in part
        if name not in _OTHERS
        and isinstance(part.get(name, getlink=True), h5py.HardLink)
        and isinstance(part[name], h5py.Dataset)
        and _is_column(part[name], rows)
    ]


def _unread(part: h5py.Group, rows: int) -> list[str]:
    """Return the names of infos that are not columns and too large for the metadata."""
    if "infos" not in part or not isinstance(member(part, "infos"), h5py.Group):
        return []
    return [
        f"infos/{name}"
        for name, entry in _datasets(part["infos"])
        if not _is_column(entry, rows) and not _is_small(entry)
    ]


def _is_small(entry: h5py.Dataset) -> bool:
    return entry.size is not None and entry.size * max(entry.dtype.itemsize, 1) <= _SMALL_BYTES


def _described(file: h5py.File) -> tuple[dict[str, Any], list[str]]:
    """Return small values that describe the data, by name, and the names of all other values."""
    kept = {name: plain(value) for name, value in file.attrs.items()}
    left_out: list[str] = []
    names = [name for name in file if name not in {*_COLUMNS, "virtual"}]
    rows = len(column(file, "rewards")) if "rewards" in file else -1
    for name in names:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            left_out.append(name)
            continue
        top = file[name]
        kept |= {f"{name}/@{key}": plain(value) for key, value in top.attrs.items()}
        entries = _datasets(top) if isinstance(top, h5py.Group) else [("", top)]
        for below, entry in entries:
            path = f"{name}/{below}".rstrip("/")
            if _is_column(entry, rows) and name != "metadata":
                continue
            if _is_small(entry):
                kept[path] = plain(member(file, path)[()])
            elif name != "infos":  # infos are listed with their part
                left_out.append(path)
    return kept, left_out
