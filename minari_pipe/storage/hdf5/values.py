"""Read and write columns and attributes in an open HDF5 file, by leaf, group and attribute.

Files may be untrusted, so reading follows no link out of the file, takes no values from other
files, and gives up on structures built to keep a reader busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.spaces import is_image_space
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError, MinariPipeError
from minari_pipe.storage.hdf5.parser import nodes
from minari_pipe.storage.hdf5.parser.checked import adapt
from minari_pipe.storage.jpeg import Frames, decode, is_jpeg

#: the exceptions that HDF5, NumPy and Python raise on damaged data
DAMAGE = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
)

_TEXT_DTYPE = h5py.string_dtype("utf-8")
_VLEN_BYTES = h5py.vlen_dtype(np.uint8)
#: HDF5 does not allow chunks of 4 GiB; a dataset up to this size is one chunk
_CHUNK_BYTES = 2**30
#: a compressed chunk must be decompressed as a whole, even for one row
_PACKED_CHUNK_BYTES = 2**20
#: a version-1 object header holds attributes up to 64 KiB, a version-2 header any
_LARGE_ATTRIBUTE = 60_000
#: more members than any episode has; stops files built to keep a reader busy forever
_MAX_MEMBERS = 10_000
_MAX_DEPTH = 64


@contextmanager
def translated(path: Path, what: str = "file") -> Iterator[None]:
    """Add the file and the place to every error that HDF5 and NumPy raise on damaged data."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (MinariPipeError, IndexError) as error:
        if isinstance(error, CorruptDatasetError) and str(path) not in str(error):
            raise CorruptDatasetError(f"{path}: {what}: {error}") from None
        raise
    except DAMAGE as error:
        message = f"{path}: {what} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDatasetError(message) from error


def new_group(parent: h5py.Group, name: str, flat: Mapping[str, Any]) -> h5py.Group:
    """Create a group whose header can hold these attributes."""
    if fit_a_small_header(flat):
        return parent.create_group(name)
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    # tracking attributes makes the header version 2, which by default also stores timestamps
    properties.set_attr_creation_order(h5py.h5p.CRT_ORDER_TRACKED)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode(), gcpl=properties))


def fit_a_small_header(flat: Mapping[str, Any]) -> bool:
    """Return whether a version-1 header can hold these attributes, each with its name."""
    return all(
        len(name.encode()) + np.asarray(value).nbytes <= _LARGE_ATTRIBUTE
        for name, value in flat.items()
    )


def write_attribute(group: h5py.Group, name: str, value: Any) -> None:
    """Write one attribute; arrays of objects are text."""
    text = isinstance(value, np.ndarray) and value.dtype.kind == "O"
    group.attrs.create(name, value, dtype=_TEXT_DTYPE if text else None)


def write_column(group: h5py.Group, name: str, column: Any, compression: int | None = None) -> None:
    """Write a tree of columns, with the keys of dicts in sorted order.

    Args:
        group: the parent group.
        name: name of the column.
        column: the values.
        compression: gzip level of numbers; None stores them uncompressed.
    """
    if isinstance(column, tuple):
        column = {f"_index_{index}": part for index, part in enumerate(column)}
    if isinstance(column, Mapping):
        below = group.require_group(name)
        for key in sorted(column):
            write_column(below, key, column[key], compression)
        return
    if isinstance(column, Frames):
        _write_frames(group, name, column)
        return
    array, dtype = _as_stored(column)
    packed: dict[str, Any] = {}
    if compression is not None and array.dtype.kind != "O":
        packed = {"compression": "gzip", "compression_opts": compression, "shuffle": True}
    group.create_dataset(
        name,
        data=array,
        dtype=dtype,
        chunks=_chunk_shape(
            array.shape, array.itemsize, _PACKED_CHUNK_BYTES if packed else _CHUNK_BYTES
        ),
        **packed,
        # a dimension of size 0 must be able to grow, or no chunk shape would be allowed
        maxshape=(None, *(size or None for size in array.shape[1:])),
    )


def _write_frames(group: h5py.Group, name: str, frames: Frames) -> None:
    """Write JPEG files as Minari does; unlike all other datasets, these cannot grow.

    This distinguishes them from numbers that happen to begin like a JPEG file.
    """
    rows = [np.frombuffer(frame, np.uint8) for frame in frames]
    if len(set(map(len, rows))) == 1:
        array, dtype = np.stack(rows), np.dtype(np.uint8)
    else:
        array, dtype = np.empty(len(rows), object), _VLEN_BYTES
        array[:] = rows
    chunks = _chunk_shape(array.shape, array.itemsize)
    group.create_dataset(name, data=array, dtype=dtype, chunks=chunks)


def extend_column(group: h5py.Group, name: str, column: Any, where: str) -> None:
    """Append rows to a stored tree of columns.

    Raises:
        InvalidEpisodeError: keys, shapes or dtypes differ from the stored ones.
    """
    stored = member(group, name) if name in group else group.create_group(name)
    if isinstance(column, Mapping | tuple):
        members = _in_groups(column, {})
        if not isinstance(stored, h5py.Group) or set(stored) != set(members):
            below = sorted(stored) if isinstance(stored, h5py.Group) else "rows"
            raise InvalidEpisodeError(
                f"{where} has the keys {sorted(members)}, the stored episode has {below}"
            )
        for key, part in members.items():
            extend_column(stored, key, part, f"{where}.{key}")
        return
    if not isinstance(stored, h5py.Dataset):
        raise InvalidEpisodeError(
            f"{where} has rows, the stored episode has the keys {sorted(stored)}"
        )
    dataset, leaf = stored, check_leaf(stored)
    frames = _read_frames(leaf, None)
    if frames is not None and isinstance(column, Frames):
        del group[name]
        write_column(group, name, Frames([*frames, *column]))
        return
    array, _ = _as_stored(decode(column, where) if isinstance(column, Frames) else column)
    # images that some Minari release encoded without being asked are decoded, to lose no more
    like = dataset if frames is None else decode(frames, where)
    if array.dtype.kind == "O":
        fits = h5py.check_string_dtype(dataset.dtype) is not None
    else:
        fits = array.dtype == like.dtype
    if not fits:
        raise InvalidEpisodeError(f"{where} is {array.dtype}, the stored episode has {like.dtype}")
    if like.shape[1:] != array.shape[1:]:
        raise InvalidEpisodeError(
            f"{where} has rows of shape {array.shape[1:]}, the stored episode has {like.shape[1:]}"
        )
    if frames is None and dataset.maxshape[0] is None:
        rows = len(dataset)
        dataset.resize(rows + len(array), axis=0)
        dataset[rows:] = array
        return
    before = read_leaf(dataset, None)
    del group[name]
    write_column(group, name, np.concatenate([before, array]))


def _in_groups(column: Any, members: dict[str, Any]) -> dict[str, Any]:
    """Add the members of a column's group; a key ``a/b`` becomes member ``b`` of a group ``a``."""
    if isinstance(column, tuple):
        column = {f"_index_{index}": part for index, part in enumerate(column)}
    for key, part in column.items():
        *parents, last = key.split("/")
        place = members
        for parent in parents:
            place = place.setdefault(parent, {})
        if isinstance(part, Mapping | tuple):
            _in_groups(part, place.setdefault(last, {}))
        else:
            place[last] = part
    return members


def _as_stored(column: Any) -> tuple[npt.NDArray[Any], Any]:
    if isinstance(column, list) or column.dtype.kind == "O":
        return np.asarray(column, dtype=object), _TEXT_DTYPE
    return column, column.dtype


def _chunk_shape(
    shape: tuple[int, ...], itemsize: int, most: int = _CHUNK_BYTES
) -> tuple[int, ...]:
    """Return a chunk that covers the whole dataset, halved until it has at most ``most`` bytes."""
    chunk = [max(1, size) for size in shape]
    while np.prod(chunk, dtype=object) * itemsize > most:
        first = next(axis for axis, size in enumerate(chunk) if size > 1)
        chunk[first] = (chunk[first] + 1) // 2
    return tuple(chunk)


def info_paths(infos: Any, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield the path of every column of infos, as a list of keys."""
    for key, value in infos.items():
        if isinstance(value, Mapping):
            yield from info_paths(value, (*path, key))
        else:
            yield [*path, key]


def member(group: Any, name: str) -> Any:
    """Return a member that is in this file; raise an error for links to other places.

    Reading passes groups of ``hdf5.parser``, writing passes groups of h5py.
    """
    for part in name.split("/"):
        there = adapt(group)
        if not isinstance(there, nodes.Group):
            raise CorruptDatasetError(f"{group.name} is not a group")
        if part not in there:
            raise CorruptDatasetError(f"{group.name} has no member {part!r}")
        if there.link_kind(part) != "hard":
            raise CorruptDatasetError(
                f"{group.name}/{part} is a soft or external link; only data in the file itself is "
                "read"
            )
        group = group[part]
    return group


def is_group(found: Any) -> bool:
    """Return whether an object in a file is a group, of the parser or of h5py."""
    return isinstance(adapt(found), nodes.Group)


def read_column(stored: Any, space: gym.Space[Any], *, frames: bool = False) -> Any:
    """Read a tree of columns with the structure of a space; ``frames`` keeps images as JPEG."""
    if isinstance(space, spaces.Dict):
        return {
            key: read_column(member(stored, key), part, frames=frames)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            read_column(member(stored, f"_index_{index}"), part, frames=frames)
            for index, part in enumerate(space.spaces)
        )
    return read_leaf(stored, space, frames=frames and is_image_space(space))


def read_leaf(dataset: Any, space: gym.Space[Any] | None, *, frames: bool = False) -> Any:
    """Read one dataset; text is a list of strings if a space is given, else an array.

    Minari's releases differ in what they encode as JPEG (0.5.3 also encodes small images and
    infos), so this checks the values, not the space.
    """
    dataset = check_leaf(dataset)
    dtype = dataset.dtype
    if h5py.check_enum_dtype(dtype) is not None:  # no boolean: one with other names is damaged
        raise CorruptDatasetError(f"{dataset.name} is an enumeration, expected numbers or booleans")
    if h5py.check_string_dtype(dtype) is not None:
        text = dataset.read()
        return text.tolist() if space is not None else text
    images = dtype.kind == "O" or dtype == np.uint8
    stored = _read_frames(dataset, space) if images else None
    if stored is not None:
        shape = None if space is None else space.shape
        return stored if frames else decode(stored, dataset.name, shape)
    if dtype.kind == "O":
        raise CorruptDatasetError(f"{dataset.name} has dtype {dtype}, expected numbers")
    return dataset.read()


def _read_frames(dataset: nodes.Dataset, space: gym.Space[Any] | None) -> Frames | None:
    """Return the rows if they are JPEG files.

    Without a space, numbers are recognized by being able to grow: JPEG files cannot.
    """
    dtype = dataset.dtype
    if dtype.kind == "O":
        may_be = h5py.check_vlen_dtype(dtype) == np.uint8
    else:
        shape = None if space is None else space.shape
        may_be = (
            dtype == np.uint8
            and dataset.ndim == 2
            and dataset.shape is not None
            and dataset.maxshape is not None
            and dataset.shape[1:] != shape
            and (shape is not None or dataset.maxshape[0] is not None)
        )
    if not may_be or not len(dataset):
        return None
    frames = Frames(row.tobytes() for row in dataset.read())
    return frames if is_jpeg(frames[0]) else None


def check_leaf(dataset: Any) -> nodes.Dataset:
    """Return a dataset in the parser's interface, after checking that it reads no other file.

    Raises:
        CorruptDatasetError: its values are in another file, or it is not a dataset.
    """
    dataset = adapt(dataset)
    if not isinstance(dataset, nodes.Dataset):
        raise CorruptDatasetError(f"{dataset.name} is not a dataset")
    if dataset.is_elsewhere:
        raise CorruptDatasetError(
            f"{dataset.name} takes its values from another file; only data in the file itself "
            "is read"
        )
    return dataset


def read_infos(group: Any, slashes: list[list[str]]) -> dict[str, Any]:
    """Read infos; ``slashes`` lists the paths with a slash in a key, which is a group in HDF5."""
    keys = {"/".join(path): path for path in slashes}
    infos: dict[str, Any] = {}
    for path, dataset in datasets_below(group):
        *parents, last = keys.get("/".join(path), path)
        place = infos
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = read_leaf(dataset, None)
    return infos


def memory_size(dataset: Any) -> int:
    """Return the declared bytes of a dataset's values; for text, those of its references."""
    found = check_leaf(dataset)
    return math.prod(found.shape or ()) * found.dtype.itemsize


def stored_size(leaf: Any) -> int:
    """Return the bytes of a leaf that is to be written; for text, at most."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind != "O":
        return int(leaf.nbytes)
    texts = leaf.flat if isinstance(leaf, np.ndarray) else leaf
    return sum(4 * len(text) for text in texts)  # UTF-8 takes up to four bytes per character


def datasets_below(group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the datasets below a group, within limits, since hard links can form circles."""
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
        if is_group(found):
            names = reversed(list(found))
            pending.extend(((*path, name), member(found, name)) for name in names)
        else:
            yield path, found
