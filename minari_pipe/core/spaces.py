"""Convert Gymnasium spaces to and from the standard's JSON, and test columns for membership."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import singledispatch
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.tree import Path, named_dtype
from minari_pipe.errors import InvalidMetadataError, UnsupportedSpaceError

SpaceDict = dict[str, Any]

#: leaf spaces whose rows are arrays of a known shape and dtype
ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@singledispatch
def serialize_space(space: gym.Space[Any], to_string: bool = True) -> SpaceDict | str:
    """Return the standard's JSON form of a space.

    Other packages register their own spaces with ``serialize_space.register(TheirSpace)``.

    Args:
        space: the space.
        to_string: return a JSON string instead of a dict.

    Raises:
        UnsupportedSpaceError: no serializer is registered for this type of space.

    Example:
        >>> from gymnasium import spaces
        >>> from minari_pipe import serialize_space
        >>> serialize_space(spaces.Discrete(3))
        '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}'
        >>> serialize_space(spaces.Dict(a=spaces.MultiBinary(2)), to_string=False)
        {'type': 'Dict', 'subspaces': {'a': {'type': 'MultiBinary', 'n': 2}}}
    """
    raise UnsupportedSpaceError(
        f"No serialization method available for {space}. Supported: Box, Discrete, "
        "MultiDiscrete, MultiBinary, Text, Dict, Tuple; register another with "
        "minari_pipe.core.spaces.serialize_space.register"
    )


def _form(form: SpaceDict, to_string: bool) -> SpaceDict | str:
    return json.dumps(form) if to_string else form


@serialize_space.register(spaces.Box)
def _serialize_box(space: spaces.Box, to_string: bool = True) -> SpaceDict | str:
    if to_string:
        return _box_text(str(space.dtype), space.shape, space.low, space.high)
    return {
        "type": "Box",
        "dtype": str(space.dtype),
        "shape": list(space.shape),
        # tolist() widens to Python floats, which hold every narrower float exactly
        "low": space.low.tolist(),
        "high": space.high.tolist(),
    }


def _box_text(
    dtype: str, shape: Sequence[int], low: npt.NDArray[Any], high: npt.NDArray[Any]
) -> str:
    form = json.dumps({"type": "Box", "dtype": dtype, "shape": list(shape)})
    return f'{form[:-1]}, "low": {_array_text(low)}, "high": {_array_text(high)}}}'


def _array_text(array: npt.NDArray[Any]) -> str:
    """Return an array as JSON, a hundred times faster if all values are equal, as in images."""
    first = array.reshape(-1)[:1]
    if not array.size or array.tobytes() != first.tobytes() * array.size:
        return json.dumps(array.tolist())
    text = json.dumps(first.item())
    for count in reversed(array.shape):
        text = f"[{', '.join([text] * count)}]"
    return text


@serialize_space.register(spaces.Discrete)
def _serialize_discrete(space: spaces.Discrete, to_string: bool = True) -> SpaceDict | str:
    form = {
        "type": "Discrete",
        # Minari always writes int64 and ignores this field on reading
        "dtype": str(np.dtype(space.dtype)),
        "start": int(space.start),
        "n": int(space.n),
    }
    return _form(form, to_string)


@serialize_space.register(spaces.MultiDiscrete)
def _serialize_multi_discrete(
    space: spaces.MultiDiscrete, to_string: bool = True
) -> SpaceDict | str:
    form = {
        "type": "MultiDiscrete",
        "dtype": str(space.dtype),
        "nvec": space.nvec.tolist(),
        "start": space.start.tolist(),
    }
    return _form(form, to_string)


@serialize_space.register(spaces.MultiBinary)
def _serialize_multi_binary(space: spaces.MultiBinary, to_string: bool = True) -> SpaceDict | str:
    n: int | list[int] = np.asarray(space.n).tolist()
    return _form({"type": "MultiBinary", "n": n}, to_string)


@serialize_space.register(spaces.Dict)
def _serialize_dict(space: spaces.Dict, to_string: bool = True) -> SpaceDict | str:
    for key in space.spaces:
        if not isinstance(key, str):
            raise UnsupportedSpaceError(
                f"keys of a Dict space must be strings to be stored, got {key!r} in {space}"
            )
    subspaces = {
        key: serialize_space(subspace, to_string=False) for key, subspace in space.spaces.items()
    }
    return _form({"type": "Dict", "subspaces": subspaces}, to_string)


@serialize_space.register(spaces.Tuple)
def _serialize_tuple(space: spaces.Tuple[Any], to_string: bool = True) -> SpaceDict | str:
    subspaces = [serialize_space(subspace, to_string=False) for subspace in space.spaces]
    return _form({"type": "Tuple", "subspaces": subspaces}, to_string)


@serialize_space.register(spaces.Text)
def _serialize_text(space: spaces.Text, to_string: bool = True) -> SpaceDict | str:
    form = {
        "type": "Text",
        "max_length": int(space.max_length),
        "min_length": int(space.min_length),
        # a Text space keeps its charset in a set, whose order changes with PYTHONHASHSEED
        "charset": "".join(sorted(space.characters)),
    }
    return _form(form, to_string)


class _SpaceReaders:
    """``deserialize_space``: read a space from its JSON form; other types can be registered.

    Args:
        space_dict: a JSON string, or the dict parsed from it.

    Raises:
        UnsupportedSpaceError: no reader is registered for the form's type.
        InvalidMetadataError: the form lacks what its type requires, or has an invalid value.

    Example:
        >>> import gymnasium as gym
        >>> from minari_pipe import deserialize_space
        >>> deserialize_space('{"type": "Discrete", "n": 3, "start": 1}')
        Discrete(3, start=1)
        >>> class Fruit(gym.Space):
        ...     "A space of another package."
        >>> @deserialize_space.register("Fruit")
        ... def read_fruit(form):
        ...     return Fruit()
        >>> isinstance(deserialize_space({"type": "Fruit"}), Fruit)
        True
    """

    def __init__(self) -> None:
        self.registry: dict[str, Callable[[SpaceDict], gym.Space[Any]]] = {}
        # by its text, a space and the reader that made it: Gymnasium takes longer to make the
        # spaces of a dataset than all its files to be opened
        self._known: dict[str, tuple[gym.Space[Any], str, Any]] = {}

    def register(self, type: str) -> Callable[..., Any]:
        """Return a decorator that registers the reader of forms whose ``type`` is ``type``."""

        def decorator(
            reader: Callable[[SpaceDict], gym.Space[Any]],
        ) -> Callable[..., gym.Space[Any]]:
            self.registry[type] = reader
            return reader

        return decorator

    def __call__(self, space_dict: SpaceDict | str) -> gym.Space[Any]:
        """Read a space from its JSON form.

        Args:
            space_dict: a JSON string, or the dict parsed from it.

        Raises:
            UnsupportedSpaceError: no reader is registered for the form's type.
            InvalidMetadataError: the form lacks what its type requires, or has an invalid value.
        """
        if not isinstance(space_dict, str) or len(space_dict) > _LONG:
            return self._read(space_dict)[0]
        known = self._known.get(space_dict)
        if known is None or known[2] is not self.registry.get(known[1]):
            known = self._read(space_dict)
            if not any(known[2] is reader for reader in _ARRAY_READERS):
                return known[0]
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[space_dict] = known
        return _unshared(known[0])

    def _read(self, space_dict: SpaceDict | str) -> tuple[gym.Space[Any], str, Any]:
        """Return the space, its type and the reader that made it."""
        try:
            form = _form_of(space_dict) if isinstance(space_dict, str) else space_dict
            kind = form["type"]
            reader = self.registry.get(kind)
            if reader is not None:
                return reader(form), kind, reader
        except (UnsupportedSpaceError, InvalidMetadataError):
            raise
        except Exception as error:
            text = space_dict if isinstance(space_dict, str) else repr(space_dict)
            raise InvalidMetadataError(
                f"not a space of the Minari standard: {text[:200]} ({type(error).__name__}: "
                f"{error})"
            ) from error
        raise UnsupportedSpaceError(
            f"No deserialization method available for {kind}. Known types: "
            f"{sorted(self.registry)}; register another with "
            "minari_pipe.core.spaces.deserialize_space.register"
        )


deserialize_space = _SpaceReaders()

#: a longer text is read five times faster if each bound of its Box is one repeated number
_LONG = 1 << 12

#: number of texts whose spaces are remembered
_MOST_KNOWN = 64


def _unshared(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return a copy of an unused space with arrays of its own."""
    made = copy(space)
    for name, value in vars(made).items():
        if type(value) is np.ndarray:
            setattr(made, name, value.copy())
    return made


#: dtype kinds of the bounds of a Box; a string dtype could ask for any number of bytes
_NUMBER_KINDS = "biuf"

#: the start of a serialized Box up to its first bound, and its end with its last bound
_BOX_BEGINS = re.compile(
    r'\{"type": "Box", "dtype": "(\w+)", "shape": (\[[0-9, ]{1,200}\]), "low": \[+([^][, ]+)'
)
_BOX_ENDS = re.compile(r"([^][, ]+)\]+\}$")


def _form_of(text: str) -> SpaceDict:
    """Parse the JSON form of a space; the bounds of a Box may be arrays."""
    form = _even_form(text) if len(text) > _LONG else None
    return json.loads(text) if form is None else form


def _even_form(text: str) -> SpaceDict | None:
    """Return the form of a Box whose bounds are one number each, as for images, else None."""
    begins, ends = _BOX_BEGINS.match(text), _BOX_ENDS.search(text, max(0, len(text) - 100))
    if begins is None or ends is None:
        return None
    with suppress(ValueError, TypeError, OverflowError):
        dtype, shape = begins[1], json.loads(begins[2])
        if 0 < math.prod(shape) <= len(text) and named_dtype(dtype).kind in _NUMBER_KINDS:
            low, high = (np.full(shape, json.loads(end), dtype) for end in (begins[3], ends[1]))
            if _box_text(dtype, shape, low, high) == text:
                return {"type": "Box", "dtype": dtype, "shape": shape, "low": low, "high": high}
    return None


@deserialize_space.register("Box")
def _deserialize_box(form: SpaceDict) -> spaces.Box:
    dtype = named_dtype(form["dtype"])
    if dtype.kind not in _NUMBER_KINDS:
        raise ValueError(
            f"Invalid Box dtype ({dtype}), must be an integer, floating, or bool dtype"
        )
    shape = tuple(form["shape"])
    # nested lists cannot express a shape like (0, 2)
    low = np.array(form["low"], dtype=dtype).reshape(shape)
    high = np.array(form["high"], dtype=dtype).reshape(shape)
    return spaces.Box(low=low, high=high, shape=shape, dtype=dtype.type)


@deserialize_space.register("Discrete")
def _deserialize_discrete(form: SpaceDict) -> spaces.Discrete:
    dtype = named_dtype(form.get("dtype", "int64"))
    return spaces.Discrete(n=form["n"], start=form.get("start", 0), dtype=dtype.name)


@deserialize_space.register("MultiDiscrete")
def _deserialize_multi_discrete(form: SpaceDict) -> spaces.MultiDiscrete:
    dtype = named_dtype(form["dtype"])
    if dtype.kind not in _NUMBER_KINDS:
        raise ValueError(f"Invalid MultiDiscrete dtype ({dtype}), must be an integer dtype")
    return spaces.MultiDiscrete(
        nvec=np.array(form["nvec"], dtype=dtype),
        dtype=dtype.name,
        start=np.array(form["start"], dtype=dtype) if "start" in form else None,
    )


@deserialize_space.register("MultiBinary")
def _deserialize_multi_binary(form: SpaceDict) -> spaces.MultiBinary:
    return spaces.MultiBinary(n=form["n"])


#: readers of this package whose spaces are remembered
_ARRAY_READERS = (
    _deserialize_box,
    _deserialize_discrete,
    _deserialize_multi_discrete,
    _deserialize_multi_binary,
)


@deserialize_space.register("Text")
def _deserialize_text(form: SpaceDict) -> spaces.Text:
    return spaces.Text(
        max_length=form["max_length"], min_length=form["min_length"], charset=form["charset"]
    )


@deserialize_space.register("Dict")
def _deserialize_dict(form: SpaceDict) -> spaces.Dict:
    subspaces = {key: deserialize_space(value) for key, value in form["subspaces"].items()}
    # a list of pairs keeps the file's order of keys, a dict would be sorted
    return spaces.Dict(list(subspaces.items()))


@deserialize_space.register("Tuple")
def _deserialize_tuple(form: SpaceDict) -> spaces.Tuple[Any]:
    return spaces.Tuple([deserialize_space(value) for value in form["subspaces"]])


def space_leaves(space: gym.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gym.Space[Any]]]:
    """Yield ``(path, subspace)`` for every subspace that is neither Dict nor Tuple.

    Example:
        >>> list(space_leaves(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)]))))
        [(('a', 0), Discrete(2))]
    """
    if isinstance(space, spaces.Dict):
        for key, subspace in space.spaces.items():
            yield from space_leaves(subspace, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, subspace in enumerate(space.spaces):
            yield from space_leaves(subspace, (*path, index))
    else:
        yield path, space


def is_image_space(space: gym.Space[Any]) -> bool:
    """Return whether the standard allows JPEG encoding for a leaf of this space.

    Args:
        space: any space but a Dict or Tuple.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from minari_pipe import is_image_space
        >>> is_image_space(spaces.Box(0, 255, (64, 64, 3), np.uint8))
        True
        >>> is_image_space(spaces.Box(0, 255, (7, 7, 3), np.uint8))
        False
    """
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in {2, 3}
        # smaller arrays are not pictures, for example the views of MiniGrid
        and space.shape[0] >= 32
        and space.shape[1] >= 32
        and space.dtype == np.uint8
        and bool(np.all(space.low == 0))
        and bool(np.all(space.high == 255))
    )


def row_limits(
    space: gym.Space[Any],
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
    """Return the lowest and highest values that rows of the space's own dtype may have.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary.

    Returns:
        The lower and upper bound to compare with, None for a bound that every value meets. A
        column for which both comparisons hold is inside the space; they are false for NaN.

    Example:
        >>> row_limits(spaces.Discrete(3, start=1))
        (array(1), array(3))
        >>> row_limits(spaces.Box(0, 255, (9,), np.uint8))
        (None, None)
    """
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low = np.asarray(space.start)
        high = low + (space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + (space.nvec - 1)
    else:
        low, high = np.asarray(0, np.int8), np.asarray(1, np.int8)
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return _limit(low, (low <= info.min).all()), _limit(high, (high >= info.max).all())
    # one comparison is enough to find NaN
    return _limit(low, dtype.kind == "f" and np.isneginf(low).all()), _limit(high, False)


def _limit(limit: Any, is_met: Any) -> npt.NDArray[Any] | None:
    if is_met:
        return None
    limit = np.asarray(limit)
    if limit.size and (limit == limit.flat[0]).all():  # one number compares faster than an array
        return limit.reshape(-1)[0:1].reshape(())
    return limit


def contains_rows(space: gym.Space[Any], column: Any) -> npt.NDArray[np.bool_]:
    """Return for each row of a stacked column whether the space contains it.

    Equal to ``[space.contains(row) for row in column]``, without a Python call per row.

    Args:
        space: space of one row.
        column: the stacked rows, in dicts and tuples: arrays ``(N, ...)``, lists of strings, or
            lists of JPEG files as bytes, which count as images of an image space.

    Returns:
        Booleans, shape ``(N,)``; all False if the column does not have the space's structure.

    Example:
        >>> contains_rows(spaces.Discrete(2), np.array([0, 1, 2]))
        array([ True,  True, False])
    """
    rows = _count_rows(column)
    inside = np.ones(rows, dtype=bool)
    if isinstance(space, spaces.Dict):
        if not isinstance(column, dict) or column.keys() != space.spaces.keys():
            return np.zeros(rows, dtype=bool)
        for key, subspace in space.spaces.items():
            if not _is_empty(subspace):
                inside &= _fit(contains_rows(subspace, column[key]), rows)
        return inside
    if isinstance(space, spaces.Tuple):
        if not isinstance(column, tuple) or len(column) != len(space.spaces):
            return np.zeros(rows, dtype=bool)
        for subspace, part in zip(space.spaces, column, strict=True):
            if not _is_empty(subspace):
                inside &= _fit(contains_rows(subspace, part), rows)
        return inside
    if isinstance(space, spaces.Text):
        return np.fromiter((space.contains(row) for row in column), dtype=bool, count=rows)
    if rows and isinstance(column, list) and isinstance(column[0], bytes):
        return np.full(rows, is_image_space(space))
    if isinstance(space, ARRAY_SPACES):
        return _contains_array_rows(space, column)
    return np.fromiter((space.contains(row) for row in column), dtype=bool, count=rows)


def _contains_array_rows(space: gym.Space[Any], column: Any) -> npt.NDArray[np.bool_]:
    column = np.asarray(column)
    rows = len(column)
    fits = column.shape[1:] == space.shape and column.dtype.kind in "biuf"
    if not isinstance(space, spaces.MultiBinary):
        fits = fits and np.can_cast(column.dtype, np.dtype(space.dtype))
    if isinstance(space, spaces.Discrete):
        fits = fits and column.dtype.kind in "iu"
    if not fits:
        return np.zeros(rows, dtype=bool)
    if isinstance(space, spaces.Box):
        with np.errstate(all="ignore"):  # comparisons with NaN
            if rows and _box_holds_all(space, column):
                return np.ones(rows, dtype=bool)
        inside = (column >= space.low) & (column <= space.high)
    elif isinstance(space, spaces.Discrete):
        first = int(space.start)
        inside = (column >= first) & (column <= first + int(space.n) - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        inside = (column >= space.start) & (column <= space.start + (space.nvec - 1))
    else:
        inside = (column == 0) | (column == 1)
    return inside.all(axis=tuple(range(1, inside.ndim)))


def _box_holds_all(space: spaces.Box, column: npt.NDArray[Any]) -> bool:
    """Return whether a Box contains all rows of a column, of which there is at least one.

    Needs no array of the column's size, which may be gigabytes of images; cheap tests come first.
    """
    if not column.size:
        return True
    if column.dtype.kind == "f" and (space.low == -np.inf).all() and (space.high == np.inf).all():
        if np.isfinite(column.sum()):  # otherwise a value is NaN, or the sum overflowed
            return True
    elif column.min() >= space.low.max() and column.max() <= space.high.min():
        return True
    return bool(
        (column.min(axis=0) >= space.low).all() and (column.max(axis=0) <= space.high).all()
    )


def _count_rows(column: Any) -> int:
    if isinstance(column, dict | tuple):
        parts = column.values() if isinstance(column, dict) else column
        counts = [_count_rows(part) for part in parts]
        return max(counts, default=0)
    return len(column)


def _is_empty(space: gym.Space[Any]) -> bool:
    """Return whether a composite space has no leaf, so that its columns have no row count."""
    return next(space_leaves(space), None) is None


def _fit(inside: npt.NDArray[np.bool_], rows: int) -> npt.NDArray[np.bool_]:
    """Pad with False for the rows that a shorter part lacks."""
    return np.concatenate([inside, np.zeros(rows - len(inside), dtype=bool)])
