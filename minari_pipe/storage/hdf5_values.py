"""Columns and attributes in an open HDF5 file: how one leaf, one group, one attribute is laid out.

Files come from strangers, so reading follows no link out of the file, takes no values from other
files, and gives up on structures that were built to keep a reader busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, UnsupportedSpaceError

_TEXT_DTYPE = h5py.string_dtype("utf-8")
#: HDF5 refuses chunks of 4 GiB; one chunk of at most this many bytes per dataset otherwise
_CHUNK_BYTES = 2**30
#: a version-1 object header holds attributes up to 64 KiB, a version-2 header any
_LARGE_ATTRIBUTE = 60_000
#: more members than any episode has; stops files built to keep a reader busy for ever
_MAX_MEMBERS = 10_000
_MAX_DEPTH = 64
#: arrays up to this size are read without asking how they fit into the file
_FREE_BYTES = 2**26


def new_group(parent: h5py.Group, name: str, flat: Mapping[str, Any]) -> h5py.Group:
    """Make a group whose header can hold these attributes."""
    if fit_a_small_header(flat):
        return parent.create_group(name)
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    # tracking attributes makes the header version 2, which by default also stores the time
    properties.set_attr_creation_order(h5py.h5p.CRT_ORDER_TRACKED)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode(), gcpl=properties))


def fit_a_small_header(flat: Mapping[str, Any]) -> bool:
    """Tell whether a version-1 header can hold these attributes, each with its name."""
    return all(
        len(name.encode()) + np.asarray(value).nbytes <= _LARGE_ATTRIBUTE
        for name, value in flat.items()
    )


def write_attribute(group: h5py.Group, name: str, value: Any) -> None:
    """Write one attribute; arrays of objects are text."""
    text = isinstance(value, np.ndarray) and value.dtype.kind == "O"
    group.attrs.create(name, value, dtype=_TEXT_DTYPE if text else None)


def write_column(group: h5py.Group, name: str, column: Any) -> None:
    """Write a tree of columns, dicts in the order of their keys."""
    if isinstance(column, tuple):
        column = {f"_index_{index}": part for index, part in enumerate(column)}
    if isinstance(column, Mapping):
        below = group.require_group(name)
        for key in sorted(column):
            write_column(below, key, column[key])
        return
    array, dtype = _as_stored(column)
    group.create_dataset(
        name,
        data=array,
        dtype=dtype,
        chunks=_chunk_shape(array.shape, array.itemsize),
        # a dimension of size 0 must be free to grow, else no chunk shape would be allowed
        maxshape=(None, *(size or None for size in array.shape[1:])),
    )


def extend_column(group: h5py.Group, name: str, column: Any, where: str) -> None:
    """Append rows to a stored tree of columns.

    Raises:
        InvalidEpisodeError: keys, shapes or dtypes are not those that are stored.
    """
    if isinstance(column, tuple):
        column = {f"_index_{index}": part for index, part in enumerate(column)}
    if isinstance(column, Mapping):
        below = group.require_group(name)
        if set(below) != set(column):
            raise InvalidEpisodeError(
                f"{where} has the keys {sorted(column)}, stored are {sorted(below)}"
            )
        for key, part in column.items():
            extend_column(below, key, part, f"{where}.{key}")
        return
    dataset = member(group, name)
    array, _ = _as_stored(column)
    rows = len(dataset)
    if array.dtype.kind != "O" and dataset.dtype != array.dtype:
        raise InvalidEpisodeError(f"{where} is {array.dtype}, stored is {dataset.dtype}")
    if dataset.shape[1:] != array.shape[1:]:
        raise InvalidEpisodeError(
            f"{where} has rows of shape {array.shape[1:]}, stored are {dataset.shape[1:]}"
        )
    if dataset.maxshape[0] is None:
        dataset.resize(rows + len(array), axis=0)
        dataset[rows:] = array
        return
    stored = read_leaf(dataset, None)
    del group[name]
    write_column(group, name, np.concatenate([stored, array]))


def _as_stored(column: Any) -> tuple[npt.NDArray[Any], Any]:
    if isinstance(column, list) or column.dtype.kind == "O":
        return np.asarray(column, dtype=object), _TEXT_DTYPE
    return column, column.dtype


def _chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return one chunk for the whole dataset, halved until it is small enough for HDF5."""
    chunk = [max(1, size) for size in shape]
    while np.prod(chunk, dtype=object) * itemsize > _CHUNK_BYTES:
        first = next(axis for axis, size in enumerate(chunk) if size > 1)
        chunk[first] = (chunk[first] + 1) // 2
    return tuple(chunk)


def info_paths(infos: Any, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield the path of every column of infos, as lists of keys."""
    for key, value in infos.items():
        if isinstance(value, Mapping):
            yield from info_paths(value, (*path, key))
        else:
            yield [*path, key]


def member(group: h5py.Group, name: str) -> Any:
    """Return a member that lies in this file; links that lead elsewhere are refused."""
    for part in name.split("/"):
        if not isinstance(group, h5py.Group):
            raise CorruptDatasetError(f"{group.name} is not a group")
        if group.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
            raise CorruptDatasetError(
                f"{group.name}/{part} is a link to another place; only data in the file itself "
                "is read"
            )
        group = group[part]
    return group


def read_column(stored: Any, space: gym.Space) -> Any:
    """Read a tree of columns of the structure of a space."""
    if isinstance(space, spaces.Dict):
        return {key: read_column(member(stored, key), part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            read_column(member(stored, f"_index_{index}"), part)
            for index, part in enumerate(space.spaces)
        )
    return read_leaf(stored, space)


def read_leaf(dataset: Any, space: gym.Space | None) -> Any:
    """Read one dataset; text as a list of strings where a space is given, else as an array."""
    if not isinstance(dataset, h5py.Dataset):
        raise CorruptDatasetError(f"{dataset.name} is not a dataset")
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
        raise CorruptDatasetError(
            f"{dataset.name} takes its values from another file; only data in the file itself "
            "is read"
        )
    dtype = dataset.dtype
    _refuse_bomb(dataset, dtype.itemsize)
    if h5py.check_string_dtype(dtype) is not None:
        text = dataset.asstr()[()]
        return text.tolist() if space is not None else text
    if dtype.kind == "O":
        base = h5py.check_vlen_dtype(dtype)
        if base == np.uint8 and len(dataset) and _is_jpeg(dataset[0]):
            raise _jpeg_error(dataset.name)
        raise CorruptDatasetError(f"{dataset.name} has the type {dtype}, not numbers")
    values = dataset[()]
    if (
        values.dtype == np.uint8
        and values.ndim == 2
        and len(values)
        and space is not None
        and values.shape[1:] != space.shape
        and _is_jpeg(values[0])
    ):
        raise _jpeg_error(dataset.name)
    return values


def _refuse_bomb(dataset: h5py.Dataset, itemsize: int) -> None:
    """Refuse what declares far more bytes than the file can hold, before they are allocated.

    HDF5 fills what was never written with zeros, and gzip packs at most 1032 to 1.
    """
    for shape in (dataset.shape, dataset.chunks or ()):
        size = math.prod(shape) * itemsize
        if size > _FREE_BYTES and size > 1100 * dataset.file.id.get_filesize():
            raise CorruptDatasetError(
                f"{dataset.name} declares {size} bytes of shape {shape}, far more than its file "
                "can hold"
            )


def read_infos(group: h5py.Group, slashes: list[list[str]]) -> dict[str, Any]:
    """Read infos; ``slashes`` has the paths with keys that contain a slash, a group in HDF5."""
    keys = {"/".join(path): path for path in slashes}
    infos: dict[str, Any] = {}
    for path, dataset in _datasets(group):
        *parents, last = keys.get("/".join(path), path)
        place = infos
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = read_leaf(dataset, None)
    return infos


def _datasets(group: h5py.Group) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk a group; hard links can form circles and trees of any size, so both are bounded."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), group)]
    seen = 0
    while pending:
        path, found = pending.pop()
        seen += 1
        if seen > _MAX_MEMBERS or len(path) > _MAX_DEPTH:
            raise CorruptDatasetError(
                f"{group.name} has more than {_MAX_MEMBERS} members or is nested more than "
                f"{_MAX_DEPTH} deep"
            )
        if isinstance(found, h5py.Group):
            names = reversed(list(found))
            pending.extend(((*path, name), member(found, name)) for name in names)
        else:
            yield path, found


def _is_jpeg(row: npt.NDArray[np.uint8]) -> bool:
    return row[:3].tobytes() == b"\xff\xd8\xff"


def _jpeg_error(name: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{name} holds JPEG images, which this version cannot decode; a dataset created with "
        "jpeg_encoding=False is stored without loss"
    )
