"""Convert columns of an episode to Arrow arrays and back; pure, without files.

The metadata of a field records what its Arrow type does not:

* ``shape``: shape of one row, such as ``2,2``, for lists in infos and extras (Minari's key; Minari
  0.5.0 and 0.5.1 wrote one byte per dimension);
* ``minari_pipe_dtype``: NumPy's dtype if it is not the space's, or if Arrow has no such type
  (complex and long numbers are stored as their bytes);
* ``minari_pipe_padded``: the last row of this leaf of an extra column is padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.spaces import ARRAY_SPACES, space_leaves
from minari_pipe.core.tree import named_dtype
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.jpeg import Frames, decode, is_jpeg

try:
    import pyarrow as pa
except ModuleNotFoundError as error:  # optional; only the formats arrow and parquet need it
    if error.name != "pyarrow":  # it is installed but broken; its own message is the clearest
        raise
    pa = None

_SHAPE = b"shape"
_DTYPE = b"minari_pipe_dtype"
_PADDED = b"minari_pipe_padded"
_LIST_SPACES = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)

#: most nested dicts and tuples of a column: Arrow files hold 64 nested types, and a leaf may be
#: a list of values; Parquet files hold about 30 more
MOST_NESTED = 62

#: bytes of the pointers to an object, in the list that Arrow creates and in an array
_OBJECT = 16

#: a field and its array
Column = tuple[Any, Any]


def write_column(
    name: str,
    column: Any,
    space: gym.Space[Any] | None,
    rows: int,
    *,
    empty_structs: bool = True,
    is_extra: bool = False,
) -> Column:
    """Convert a tree of columns to a field and an array.

    Args:
        name: name of the field.
        column: arrays ``(rows, ...)``, lists of strings, :class:`Frames`, in dicts and tuples;
            a leaf that is one row shorter is padded.
        space: space of one row; None for infos and extras.
        rows: number of rows.
        empty_structs: store dicts without entries as they are, which Parquet cannot.
        is_extra: record for each leaf whether it is padded.

    Example:
        >>> field, array = write_column("actions", np.array([1, 0]), spaces.Discrete(2), 3)
        >>> array.to_pylist()
        [1, 0, 0]
    """
    if isinstance(column, Mapping | tuple):
        parts = column if isinstance(column, Mapping) else dict(enumerate(column))
        children = [
            write_column(
                str(key),
                part,
                subspace_of(space, key),
                rows,
                empty_structs=empty_structs,
                is_extra=is_extra,
            )
            for key, part in parts.items()
        ]
        if not children and not empty_structs:
            children = [(pa.field("empty", pa.bool_()), _numbers(np.zeros(rows, bool)))]
        struct = pa.struct([field for field, _ in children])
        arrays = [array for _, array in children]
        return pa.field(name, struct), pa.Array.from_buffers(struct, rows, [None], children=arrays)
    metadata: dict[bytes, bytes] = {}
    if is_extra and len(column) < rows:
        metadata[_PADDED] = b"1"
    array = _write_leaf(column, space, rows - len(column), metadata)
    return pa.field(name, array.type, metadata=metadata or None), array


def subspace_of(space: gym.Space[Any] | None, key: Any) -> gym.Space[Any] | None:
    """Return a part of a Dict or Tuple space, or None for any other space.

    Example:
        >>> subspace_of(spaces.Dict(x=spaces.Discrete(2)), "x")
        Discrete(2)
    """
    return space[key] if isinstance(space, spaces.Dict | spaces.Tuple) else None


def nesting(tree: Any) -> int:
    """Return how deep a column nests dicts and tuples, or a space its Dicts and Tuples.

    Example:
        >>> nesting({"a": (np.zeros(2),), "b": {}}), nesting(spaces.Dict(x=spaces.Discrete(2)))
        (2, 1)
    """
    if isinstance(tree, spaces.Dict | spaces.Tuple):
        tree = tree.spaces
    if not isinstance(tree, Mapping | tuple):
        return 0
    parts = tree.values() if isinstance(tree, Mapping) else tree
    return 1 + max(map(nesting, parts), default=0)


def _write_leaf(
    column: Any, space: gym.Space[Any] | None, padding: int, metadata: dict[bytes, bytes]
) -> Any:
    if isinstance(column, Frames):
        return _variable([*column, *[None] * padding], pa.binary(), pa.large_binary())
    if isinstance(column, list) or column.dtype.kind == "O":
        texts = np.asarray(column, dtype=object)
        shape = texts.shape[1:]
        values = [*texts.ravel().tolist(), *[None] * padding * math.prod(shape)]
        flat = _variable(values, pa.string(), pa.large_string())
    else:
        stored = as_stored(column, space, metadata)
        if padding:
            stored = np.concatenate([stored, np.zeros((padding, *stored.shape[1:]), stored.dtype)])
        shape = stored.shape[1:]
        flat = _numbers(np.ascontiguousarray(stored).reshape(-1))
    if isinstance(space, _LIST_SPACES):
        return _lists(flat, math.prod(shape), len(column) + padding)
    if not shape:
        return flat
    metadata[_SHAPE] = ",".join(map(str, shape)).encode()
    return _lists(flat, math.prod(shape), len(column) + padding)


def as_stored(
    column: npt.NDArray[Any], space: gym.Space[Any] | None, metadata: dict[bytes, bytes]
) -> npt.NDArray[Any]:
    """Return numbers in the dtype in which Arrow stores them.

    Args:
        column: any numbers.
        space: space of one row, whose dtype need not be recorded.
        metadata: metadata of the field, which records the dtype if nothing else does.

    Example:
        >>> as_stored(np.array([1j], np.complex64), None, {}).dtype
        dtype('uint8')
    """
    dtype = column.dtype
    is_the_spaces = isinstance(space, ARRAY_SPACES) and dtype == space.dtype
    if not is_the_spaces and (isinstance(space, ARRAY_SPACES) or not _is_arrow_s(dtype)):
        metadata[_DTYPE] = dtype.str.encode()
    if _is_arrow_s(dtype):
        return column
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return column.astype(dtype.newbyteorder("="))
    return np.ascontiguousarray(column).reshape(*column.shape, 1).view(np.uint8)


def _is_arrow_s(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


def _numbers(flat: npt.NDArray[Any]) -> Any:
    if flat.dtype.kind == "b":
        # packed here, so that no byte of a file depends on earlier contents of memory
        bits = np.packbits(flat, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(flat), [None, pa.py_buffer(bits)])
    return pa.array(flat)


def _variable(values: list[Any], small: Any, large: Any) -> Any:
    """Return strings or bytes as an array, with 32-bit offsets like Minari's if they suffice."""
    array = pa.array(values, small)
    return pa.array(values, large) if isinstance(array, pa.ChunkedArray) else array


def _lists(flat: Any, size: int, rows: int) -> Any:
    if size == 0:  # Parquet cannot hold lists of the fixed size 0
        return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), flat)
    return pa.Array.from_buffers(pa.list_(flat.type, size), rows, [None], children=[flat])


def read_column(
    field: Any, array: Any, space: gym.Space[Any], path: tuple[str, ...], *, frames: bool = False
) -> Any:
    """Convert an array to a tree of columns with the structure of a space.

    Args:
        field: the array's field.
        array: all valid rows, without padding.
        space: space of one row.
        path: location of the array, for error messages.
        frames: keep images as :class:`Frames`.

    Raises:
        CorruptDatasetError: the array does not match the space.

    Example:
        >>> field, array = write_column("x", {"a": np.arange(2)}, None, 2)
        >>> read_column(field, array, spaces.Dict(a=spaces.Discrete(2)), ("x",))
        {'a': array([0, 1])}
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not any(space_leaves(space)):
            return without_leaves(space)
        parts: dict[Any, gym.Space[Any]] = (
            space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        )
        children = {child.name: (child, values) for child, values in _children(array, path)}
        unknown = children.keys() - {str(key) for key in parts}
        if unknown:
            raise _fault(path, f"has the fields {sorted(unknown)}, which its space lacks")
        tree = {}
        for key, part in parts.items():
            below = (*path, str(key))
            if str(key) not in children:
                raise _fault(below, "is missing")
            tree[key] = read_column(*children[str(key)], part, below, frames=frames)
        return tree if isinstance(space, spaces.Dict) else tuple(tree.values())
    values = _read_leaf(field, array, space, path, frames=frames)
    is_text = isinstance(values, np.ndarray) and values.dtype.kind == "O"
    return values.tolist() if is_text else values


def without_leaves(space: gym.Space[Any]) -> Any:
    """Return the column of a space that has only empty dicts and tuples.

    Example:
        >>> without_leaves(spaces.Dict(a=spaces.Tuple([])))
        {'a': ()}
    """
    if isinstance(space, spaces.Dict):
        return {key: without_leaves(part) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Tuple)
    return tuple(without_leaves(part) for part in space.spaces)


def read_tree(field: Any, array: Any, path: tuple[str, ...], *, padded: bool = False) -> Any:
    """Convert an array of infos or extras; dicts without leaves are omitted, as in HDF5.

    Args:
        field: the array's field.
        array: all rows.
        path: location of the array, for error messages.
        padded: drop the last row if the field's metadata mark it as padding.

    Example:
        >>> read_tree(*write_column("infos", {"x": np.arange(2)}, None, 2), ("infos",))
        {'x': array([0, 1])}
    """
    if pa.types.is_struct(array.type):
        parts = {
            child.name: read_tree(child, values, (*path, child.name), padded=padded)
            for child, values in _children(array, path)
        }
        return without_empty_dicts(parts)
    if padded and _PADDED in (field.metadata or {}):
        array = array[:-1]
    return _read_leaf(field, array, None, path, frames=False)


def without_empty_dicts(tree: Any) -> Any:
    """Remove dicts without leaves from infos and extras.

    Example:
        >>> without_empty_dicts({"a": {}, "b": {"c": 1}})
        {'b': {'c': 1}}
    """
    if not isinstance(tree, Mapping):
        return tree
    parts = {key: without_empty_dicts(part) for key, part in tree.items()}
    return {key: part for key, part in parts.items() if not isinstance(part, dict) or part}


def _children(array: Any, path: tuple[str, ...]) -> Iterator[Column]:
    if not pa.types.is_struct(array.type):
        raise _fault(path, f"has the type {array.type}, expected a struct")
    if array.null_count:
        raise _fault(path, f"has {array.null_count} rows without a value")
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    if len(set(names)) < len(names):
        raise _fault(path, f"has duplicate field names: {sorted(names)}")
    for index in range(array.type.num_fields):
        yield array.type.field(index), array.field(index)


def _read_leaf(
    field: Any, array: Any, space: gym.Space[Any] | None, path: tuple[str, ...], *, frames: bool
) -> Any:
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return _read_images(array, space, path, frames=frames)
    # only real Minari's infos may have nulls; a padded extra whose mark is damaged has them, too
    values, shape = _flatten(array, path, nan_for_null=path[0] == "infos")
    metadata = field.metadata or {}
    mark = metadata.get(_DTYPE)
    dtype = None if mark is None else _marked_dtype(mark, path)
    size = values.size // len(array) if len(array) else math.prod(shape)
    is_bytes = dtype is not None and (dtype.kind == "c" or dtype.itemsize > 8)
    if isinstance(space, ARRAY_SPACES):
        assert space.shape is not None
        shape = (*space.shape, dtype.itemsize) if is_bytes and dtype is not None else space.shape
        if math.prod(shape) != size:
            raise _fault(path, f"has {size} values per row, the space expects {space.shape}")
    elif _SHAPE in metadata:
        shape = _shape(metadata[_SHAPE], size)
    values = values.reshape(len(array), *shape)
    if dtype is not None:
        return _with_dtype(values, dtype, path)
    if isinstance(space, ARRAY_SPACES) and values.dtype != space.dtype:
        return _of_space(values, space, path)
    return values


def _read_images(
    array: Any, space: gym.Space[Any] | None, path: tuple[str, ...], *, frames: bool
) -> Any:
    if array.null_count:
        raise _fault(path, f"has {array.null_count} rows without a value")
    rows = Frames(array.to_pylist())
    if not all(map(is_jpeg, rows)):
        raise _fault(path, "has bytes that are not a JPEG image")
    if frames:
        return rows
    if not rows:
        return np.zeros((0, *(space.shape or () if space is not None else ())), np.uint8)
    images = decode(rows, ".".join(path))
    if space is not None and space.shape == (*images.shape[1:], 1):
        return images.reshape(-1, *space.shape)  # a JPEG file does not record this axis
    if space is not None and images.shape[1:] != space.shape:
        raise _fault(
            path, f"has images of shape {images.shape[1:]}, the space expects {space.shape}"
        )
    return images


def _flatten(
    array: Any, path: tuple[str, ...], *, nan_for_null: bool
) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """Return the values in one dimension, and the shape of a row from the lengths of the lists."""
    types = pa.types
    if (
        types.is_fixed_size_list(array.type)
        or types.is_list(array.type)
        or (types.is_large_list(array.type))
    ):
        if array.null_count:
            raise _fault(path, f"has {array.null_count} rows without a value")
        if types.is_fixed_size_list(array.type):
            size = array.type.list_size
            inner = array.values[array.offset * size : (array.offset + len(array)) * size]
        else:
            inner = array.flatten()
            lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                raise _fault(path, f"has rows of different lengths: {lengths[:4].tolist()}")
            size = int(lengths[0]) if len(lengths) else 0
        values, shape = _flatten(inner, path, nan_for_null=nan_for_null)
        return values, (size, *shape)
    is_text = types.is_string(array.type) or types.is_large_string(array.type)
    is_number = types.is_integer(array.type) or types.is_floating(array.type)
    is_missing = nan_for_null and types.is_null(array.type)
    if not (is_text or is_number or types.is_boolean(array.type) or is_missing):
        raise _fault(path, f"has the type {array.type}, which the standard does not allow")
    if array.null_count and not nan_for_null:
        raise _fault(path, f"has {array.null_count} rows without a value")
    # as real Minari reads them: NaN for missing numbers, else None
    if array.null_count and is_number:
        # the cast raises an error for integers that it would round
        array = array if types.is_floating(array.type) else array.cast(pa.float64())
    if is_text or is_missing:
        return np.array(array.to_pylist(), dtype=object), ()
    return np.array(array.to_numpy(zero_copy_only=False)), ()


def growth(array: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each leaf that takes more bytes as a NumPy array than here, with the difference.

    Flags take a byte instead of a bit; texts, and flags of which some are missing, become objects.

    Args:
        array: an array of any type.
        path: location of the array.

    Example:
        >>> list(growth(pa.array([{"x": True, "y": 1.0}] * 8), ("infos",)))
        [(('infos', 'x'), 7)]
    """
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from growth(array.field(index), (*path, kind.field(index).name))
    elif types.is_fixed_size_list(kind):
        first = array.offset * kind.list_size
        yield from growth(array.values[first : first + len(array) * kind.list_size], path)
    elif types.is_list(kind) or types.is_large_list(kind):
        ends = [array.offsets[0].as_py(), array.offsets[-1].as_py()] if len(array) else [0, 0]
        yield from growth(array.values[slice(*ends)], path)
    elif types.is_boolean(kind) and not array.null_count:
        yield path, len(array) - len(array) // 8
    elif types.is_integer(kind) or types.is_floating(kind):
        if array.null_count:
            yield path, (8 - kind.bit_width // 8) * len(array)
    else:
        yield path, _OBJECT * len(array)


def _shape(stored: bytes, size: int) -> tuple[int, ...]:
    """Parse the shape of a row, as text or one byte per dimension, whichever matches its size."""
    try:
        text = stored.decode("ascii")
        shape = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        shape = (-1,)
    for candidate in (shape, tuple(stored)):
        if min(candidate, default=0) >= 0 and math.prod(candidate) == size:
            return candidate
    return (size,)  # one byte could not hold dimensions of 256 and more


def _marked_dtype(mark: bytes, path: tuple[str, ...]) -> np.dtype[Any]:
    try:
        dtype = named_dtype(mark.decode())
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.kind not in "biufc" or dtype.shape:
        raise _fault(path, f"is marked as dtype {mark!r}, which the standard does not allow")
    return dtype


def _with_dtype(
    values: npt.NDArray[Any], dtype: np.dtype[Any], path: tuple[str, ...]
) -> npt.NDArray[Any]:
    if values.dtype == dtype.newbyteorder("="):
        return values.astype(dtype, copy=False)
    as_bytes = values.dtype == np.uint8 and values.shape[1:] and values.shape[-1] == dtype.itemsize
    if not as_bytes or (dtype.kind != "c" and dtype.itemsize <= 8):
        raise _fault(path, f"is {values.dtype}, but marked as dtype {dtype}")
    return values.view(dtype)[..., 0]


def _of_space(
    values: npt.NDArray[Any], space: gym.Space[Any], path: tuple[str, ...]
) -> npt.NDArray[Any]:
    """Cast discrete values to the space's dtype; Minari up to 0.5.1 wrote all of them as int32."""
    if isinstance(space, spaces.Discrete) and values.dtype.kind in "iu":
        cast = values.astype(space.dtype)
        if np.array_equal(cast, values):
            return cast
    raise _fault(path, f"is {values.dtype}, the space expects {space.dtype}")


def _fault(path: tuple[str, ...], message: str) -> CorruptDatasetError:
    return CorruptDatasetError(f"the column {'.'.join(path)} {message}")
