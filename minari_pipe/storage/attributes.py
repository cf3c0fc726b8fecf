"""Convert nested episode attributes to flat HDF5 attributes and back, without loss.

Real Minari flattens ``options={"goal": {"x": 1}}`` to the attribute ``options/goal/x``. This module
does the same, so that every reader finds it. HDF5 does not distinguish a list from an array, and
cannot store None, an empty dict or a key with a slash. Where the flat attributes would not
round-trip a value, the attribute ``minari_pipe_exact`` also holds its exact form as JSON.
"""

from __future__ import annotations

import base64
import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from minari_pipe.core.messages import is_encodable
from minari_pipe.core.tree import MAX_DEPTH, is_deep, named_dtype
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError

EXACT = "minari_pipe_exact"
#: HDF5 stores the length of a name in two bytes; longer names come back damaged
_MAX_NAME_BYTES = 65_534
#: dtypes of arrays that HDF5 returns unchanged
_EXACT_DTYPES = frozenset({"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))}) | {
    "f4",
    "f8",
}


def whole_seed(seed: Any) -> int | None:
    """Return the seed of a reset in the form in which it is stored.

    Raises:
        InvalidEpisodeError: the seed is not an integer, or is negative.

    Example:
        >>> whole_seed(np.uint64(2**63))
        9223372036854775808
    """
    if seed is None:
        return None
    try:
        whole = operator.index(seed)
    except TypeError:
        whole = -1
    if whole < 0:
        raise InvalidEpisodeError(
            f"a seed must be None or a non-negative integer, got {type(seed).__name__} {seed!r:.60}"
        )
    return whole


def check_options(options: Any) -> None:
    """Raise an error, before an episode begins, if the options of its reset cannot be stored.

    Raises:
        InvalidEpisodeError: the options cannot be stored.
    """
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidEpisodeError(
            f"options must be a dict or None to be recorded, got {type(options).__name__} "
            f"{options!r:.60}"
        )
    flatten_attributes({"options": options})


def flatten_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested attributes to those that are written to the file.

    Raises:
        InvalidEpisodeError: a value is neither a number, a string, None, an array, nor a list,
            tuple or dict of these; or HDF5 cannot store the name of a key, or two names clash.
    """
    flat: dict[str, Any] = {}
    names: list[str] = []
    exact: dict[str, Any] = {}
    for key in attributes:
        if not isinstance(key, str) or key == EXACT:
            raise InvalidEpisodeError(
                f"attribute names must be strings other than {EXACT!r}, got {key!r}"
            )
    ambiguous = any("/" in key for key in attributes)
    for key, value in attributes.items():
        if type(value) in (bool, float) and not ambiguous:  # the common case, and always exact
            flat[key] = value
            names.append(key)
            continue
        if is_deep(value):
            raise InvalidEpisodeError(f"{key} is nested more than {MAX_DEPTH} deep")
        pairs = list(_flat(value, key))
        names += [name for name, _ in pairs]
        own = dict(pairs)
        flat.update(own)
        if not ambiguous and _is_exact(value):
            continue
        form = exact_form(value, key)
        again = unflatten_attributes(own)
        # compare as text: in Python 1 == 1.0 == True and 0.0 == -0.0
        if (
            ambiguous
            or key not in again
            or json.dumps(exact_form(again[key], key)) != json.dumps(form)
        ):
            exact[key] = form
    _check_names(tuple(names))
    if exact:
        flat[EXACT] = json.dumps(exact, sort_keys=True)
    return flat


def unflatten_attributes(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an episode's group as nested values.

    Raises:
        CorruptDatasetError: they are nested deeper than this package writes.
    """
    nested: dict[str, Any] = {}
    exact = json.loads(flat.get(EXACT, "{}"))
    if is_deep_form(exact) or any(name.count("/") > MAX_DEPTH for name in flat):
        raise CorruptDatasetError(f"attributes are nested more than {MAX_DEPTH} deep")
    for name, value in flat.items():
        if name == EXACT or any(name == key or name.startswith(f"{key}/") for key in exact):
            continue
        *parents, last = name.split("/")
        place = nested
        for part in parents:
            below = place.setdefault(part, {})
            if not isinstance(below, dict):
                below = place[part] = {}
            place = below
        place[last] = _plain(value)
    for key, form in exact.items():
        nested[key] = from_exact_form(form)
    return nested


def is_deep_form(form: Any) -> bool:
    """Return whether an :func:`exact_form`, with two levels per value level, is too deep."""
    return is_deep(form, 2 * MAX_DEPTH + 4)


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}/{key}")
        return
    storable = _storable(value)
    if storable is not None:
        yield name, storable


def _is_exact(value: Any) -> bool:
    """Return True if flat attributes surely hold a value exactly; False means it is not known."""
    kind = type(value)
    if kind is str:
        return is_storable_text(value)
    if kind is dict:
        return bool(value) and all(
            type(key) is str and key and "/" not in key and _is_exact(part)
            for key, part in value.items()
        )
    if kind is np.ndarray:
        return value.ndim > 0 and value.size > 0 and value.dtype.str[1:] in _EXACT_DTYPES
    return kind in (bool, float) or (kind is int and -(2**63) <= value < 2**64)


@lru_cache(maxsize=1024)
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        size = len(name.encode("utf-8", "replace"))
        if not 0 < size <= _MAX_NAME_BYTES or not is_storable_text(name):
            raise InvalidEpisodeError(
                f"the attribute {name[:60]!r} has a name of {size} bytes; HDF5 allows 1 to "
                f"{_MAX_NAME_BYTES} without NUL or lone surrogates; rename the key"
            )
    clash = clashing_name(names)
    if clash is not None:
        raise InvalidEpisodeError(
            f"two values share the attribute name {clash!r}, or one is nested in the other: the "
            "key 'a/b' means the same as the key 'b' of a dict 'a'; rename one"
        )


def clashing_name(names: Iterable[str]) -> str | None:
    """Return a name that occurs twice or is a parent path of another name, or None."""
    ordered = sorted(f"{name}/" for name in names)
    for name, after in pairwise(ordered):
        if after.startswith(name):
            return name[:-1]
    return None


def _storable(value: Any) -> Any:
    """Return a value that h5py can write as one attribute, or None if there is none."""
    if isinstance(value, str):
        return value if is_storable_text(value) else None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    if isinstance(value, list | tuple) and not value:
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # ragged list
        return None
    if array.dtype.kind in "biufc":
        return array[()] if array.ndim == 0 else array
    text = array.dtype.kind in "UO" and all(isinstance(entry, str) for entry in array.flat)
    return array.astype(object)[()] if text and all(map(is_storable_text, array.flat)) else None


def is_storable_text(text: str) -> bool:
    """Return whether HDF5 can store a text: its strings are UTF-8 and end at the first NUL."""
    return is_encodable(text) and "\0" not in text


def _plain(value: Any) -> Any:
    """Convert a value that h5py read to Python; scalars of unusual width stay NumPy's."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.generic) and value.dtype.str[1:] in ("i8", "u8", "f8", "b1"):
        return value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def exact_form(value: Any, name: str) -> Any:
    """Return a JSON-compatible form of a value, with equal text only for identical values.

    Identical means the same type, dtype, shape and bits. NumPy integers and floats of the default
    width count as Python's. The order of a dict's keys does not matter.

    Raises:
        InvalidEpisodeError: the value has no such form; the message locates it by ``name``.
    """
    if isinstance(value, np.bool_ | np.int64 | np.uint64 | np.float64):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return ["nan"] if math.isnan(value) else value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidEpisodeError(
                    f"{name}: keys must be strings, got {key!r} of type {type(key).__name__}"
                )
        return ["dict", {key: exact_form(value[key], f"{name}.{key}") for key in sorted(value)}]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [exact_form(part, f"{name}[{i}]") for i, part in enumerate(value)]]
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        if all(isinstance(entry, str) for entry in value.flat):
            return ["text", list(value.shape), [str(entry) for entry in value.flat]]
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcU":
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        little = np.asarray(value, dtype=value.dtype.newbyteorder("<"))
        data = base64.b64encode(np.ascontiguousarray(little).tobytes()).decode("ascii")
        return [kind, little.dtype.str, list(np.shape(value)), data]
    raise InvalidEpisodeError(
        f"{name} cannot be stored: {type(value).__name__} {str(value)[:60]!r}; expected numbers, "
        "strings, None, arrays, or lists, tuples and dicts of these"
    )


def from_exact_form(form: Any) -> Any:
    """Rebuild a value from its :func:`exact_form`."""
    if not isinstance(form, list):
        return form
    kind, *rest = form
    if kind == "nan":
        return float("nan")
    if kind == "dict":
        return {key: from_exact_form(part) for key, part in rest[0].items()}
    if kind == "list":
        return [from_exact_form(part) for part in rest[0]]
    if kind == "tuple":
        return tuple(from_exact_form(part) for part in rest[0])
    if kind == "text":
        return np.array(rest[1], dtype=object).reshape(rest[0])
    dtype, shape, data = rest
    array = np.frombuffer(base64.b64decode(data), dtype=named_dtype(dtype)).reshape(shape).copy()
    return array if kind == "array" else array[()]
