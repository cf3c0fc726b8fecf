"""Walk and rebuild nested dicts and tuples, and decide which leaves can be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.errors import InvalidEpisodeError

Path = tuple[str | int, ...]

#: names of numeric, text and bytes dtypes
_DTYPE_NAME = re.compile(r"[<>|=]?[A-Za-z]\w*", re.ASCII)


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield ``(path, leaf)`` for every leaf, in the order of the containers.

    Dicts and tuples are containers, everything else (lists too) is a leaf.

    Example:
        >>> list(leaves({"arm": (1, 2)}))
        [(('arm', 0), 1), (('arm', 1), 2)]
    """
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))
    else:
        yield path, tree


def has_arrays(alike: Callable[..., bool], tree: Any, other: Any) -> bool:
    """Return whether any two arrays at the same path of two trees are ``alike``.

    Example:
        >>> array = np.zeros(3)
        >>> has_arrays(np.may_share_memory, {"a": array, "b": 5}, {"a": array[1:], "b": 5})
        True
    """
    others = dict(leaves(other))
    return any(
        isinstance(leaf, np.ndarray)
        and isinstance(others.get(path), np.ndarray)
        and alike(leaf, others[path])
        for path, leaf in leaves(tree)
    )


def map_leaves(fn: Callable[..., Any], tree: Any, *others: Any, path: Path = ()) -> Any:
    """Apply ``fn(leaf, *leaves of the others)`` to every leaf and rebuild the containers.

    Raises:
        InvalidEpisodeError: one of ``others`` differs from ``tree`` in its keys or length.
    """
    if isinstance(tree, Mapping):
        for other in others:
            if not isinstance(other, Mapping) or other.keys() != tree.keys():
                found = list(other) if isinstance(other, Mapping) else type(other).__name__
                raise InvalidEpisodeError(
                    f"Dict key mismatch at {join_path(path) or 'the top'}: expected keys "
                    f"{list(tree)}, got {found}"
                )
        return {
            key: map_leaves(fn, value, *(other[key] for other in others), path=(*path, key))
            for key, value in tree.items()
        }
    if isinstance(tree, tuple):
        for other in others:
            if not isinstance(other, tuple) or len(other) != len(tree):
                length = len(other) if isinstance(other, tuple) else type(other).__name__
                raise InvalidEpisodeError(
                    f"Tuple length mismatch at {join_path(path) or 'the top'}: expected "
                    f"{len(tree)} entries, got {length}"
                )
        return tuple(
            map_leaves(fn, value, *(other[index] for other in others), path=(*path, index))
            for index, value in enumerate(tree)
        )
    return fn(tree, *others)


def stack(trees: Sequence[Any]) -> Any:
    """Stack trees of the same structure along a new first axis.

    Args:
        trees: one value per row, at least one.

    Returns:
        The same containers; a leaf is an array ``(len(trees), ...)``, or a list for strings.

    Raises:
        InvalidEpisodeError: the trees differ in keys, lengths or the shapes of their leaves.
    """
    if not trees:
        raise InvalidEpisodeError("cannot stack an empty list: its structure is unknown")

    def stack_leaf(*values: Any) -> Any:
        if isinstance(values[0], str):
            return list(values)
        try:
            return np.stack([np.asarray(value) for value in values])
        except ValueError:
            shapes = sorted({np.shape(value) for value in values})
            raise InvalidEpisodeError(f"rows have different shapes: {shapes}") from None

    return map_leaves(stack_leaf, *trees)


def join_path(path: Path) -> str:
    """Return a path in dotted notation.

    Example:
        >>> join_path(("actions", "arm", 0))
        'actions.arm.0'
    """
    return ".".join(map(str, path))


#: characters of the dtypes that :func:`without_padding` changes
PADDED = "gG"


def as_array(value: Any, path: Path) -> npt.NDArray[Any]:
    """Convert a value to an array that can be stored; strings become object arrays of ``str``.

    Raises:
        InvalidEpisodeError: the value is neither a number, a string nor a regular array of these.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "U" and not isinstance(value, np.ndarray):
            # NumPy converts the numbers of a mixed list to text
            array = np.asarray(value, dtype=object)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidEpisodeError(f"{join_path(path)} cannot be stored: {error}") from None
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "O" and all(isinstance(entry, str) for entry in array.flat):
        return array
    raise InvalidEpisodeError(
        f"{join_path(path)} cannot be stored: {type(value).__name__} of dtype {array.dtype}; "
        "expected numbers, strings or arrays of these. A StepDataCallback can convert or drop it; "
        "in a pipeline, an environment wrapper can"
    )


def without_padding(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array without what was in memory before its values.

    Of x86 extended precision 10 of 16 bytes hold the number: the others become 0. A bool may have
    any byte in memory, as in ``np.empty(3, bool)``, and only 0 and 1 are read from a file.

    Example:
        >>> without_padding(np.array([1.5])).tolist()
        [1.5]
    """
    if has_other_bools(array):
        return array.view(np.uint8) != 0
    if array.dtype.char not in PADDED or np.finfo(array.dtype).nmant != 63:
        return array
    clean = array.astype(array.dtype.newbyteorder("="), order="C")
    clean.reshape(-1).view(np.uint8).reshape(-1, np.longdouble().itemsize)[:, 10:] = 0
    return clean.astype(array.dtype, copy=False)


def has_other_bools(array: npt.NDArray[Any]) -> bool:
    """Return whether an array has a bool whose byte is neither 0 nor 1."""
    return array.dtype == np.bool_ and bool((array.view(np.uint8) > 1).any())


def named_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype that a file names.

    NumPy crashes on some other texts, such as ``M8[s/0]``, and turns others into records.

    Raises:
        TypeError: it is not the name of a dtype.

    Example:
        >>> named_dtype("<f4"), named_dtype("uint8")
        (dtype('float32'), dtype('uint8'))
    """
    if not isinstance(name, str) or not _DTYPE_NAME.fullmatch(name):
        raise TypeError(f"data type {name!r:.60} not understood")
    return np.dtype(name)


def fits_exactly(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> bool:
    """Return whether a cast to ``dtype`` keeps every value and does not lower its kind.

    A float never fits an integer dtype, not even 1.0: the reader could not see that it was a float.
    """
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return True
    if dtype.kind not in _KIND_RANK or array.dtype.kind not in _KIND_RANK:
        return False
    if _KIND_RANK[array.dtype.kind] > _KIND_RANK[dtype.kind]:
        return False
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    # comparing int64 with float64 would round the integers first, so compare after a cast back
    if array.dtype.kind in "iu" and dtype.kind in "iufc":
        if dtype.kind in "iu":
            return bool(np.array_equal(cast, array))
        limit = 2 ** (np.finfo(dtype).nmant + 1)
        return bool(np.all((array <= limit) & (array >= -limit)))
    return bool(np.array_equal(cast, array, equal_nan=array.dtype.kind in "fc"))


_KIND_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


#: maximum nesting of dicts and lists, less than would exhaust Python's stack
MAX_DEPTH = 100


def is_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Return whether dicts, lists and tuples are nested deeper than may be stored.

    Example:
        >>> is_deep([[[1]]], 3), is_deep([[[1]]], 2)
        (False, True)
    """
    level = [value]
    for _ in range(most + 1):
        level = [
            part
            for container in level
            if isinstance(container, Mapping | list | tuple)
            for part in (container.values() if isinstance(container, Mapping) else container)
        ]
        if not level:
            return False
    return True
