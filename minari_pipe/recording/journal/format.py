"""Write episodes as records of a journal, and read them back.

::

    record = prefix (sizes, steps, seed, checksums), header (JSON), body (the bytes of the arrays)

The header describes the structure of an episode; without options and metadata, it is the same for
every episode of its kind. Each array in the body begins at a multiple of 8 bytes. Rows that were
written to a file of their own during recording are referenced by their place in it.
"""

from __future__ import annotations

import json
import math
import operator
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64, xxh3_64_intdigest

from minari_pipe.core.episode import EPISODE_COLUMNS, EpisodeBuffer
from minari_pipe.core.tree import named_dtype
from minari_pipe.errors import InvalidEpisodeError, UnsupportedVersionError

#: Magic bytes of the record that says what is collected, and of an episode.
HEAD, EPISODE = b"MPj2", b"MPe3"

#: Earlier magic bytes: checksums did not detect reordering, or arrays had no form of their own.
_EARLIER = (b"MPj1", b"MPe1", b"MPe2")

#: Magic bytes, sizes of header and body, steps, seed, checksums of body and header.
_SUMMED = struct.Struct("<4sIQQQQI")

#: The same, and its checksum.
PREFIX = struct.Struct("<4sIQQQQII")

FIELDS = tuple(field.name for field in fields(EpisodeBuffer) if field.name != "id")

_WORD = (1 << 64) - 1

#: Size in bytes from which a body is written array by array instead of being joined.
_LONG = 1 << 20

#: Size in bytes below which prefix, header and body are written in one system call.
_AT_ONCE = 1 << 16

#: Kinds of the NumPy dtypes that can be stored: numbers and strings, no objects.
_KINDS = "biufcU"


@dataclass(frozen=True)
class RecordPlace:
    """Rows in a file of their own: file number, offset, size in bytes and checksum.

    Attributes:
        state: state of the checksum, to continue it with further rows; None for rows read back.
    """

    file: int
    offset: int
    size: int
    checksum: int
    state: xxh3_64 | None = field(default=None, compare=False, repr=False)


class StoredRows(np.ndarray):
    """Rows that are in a file already, whose pages are read when they are accessed.

    Attributes:
        place: where they are; None for arrays computed from them.
    """

    place: RecordPlace | None = None


class _Encoder(json.JSONEncoder):
    def default(self, value: Any) -> Any:
        return value.str if isinstance(value, np.dtype) else super().default(value)


_encode = _Encoder(separators=(",", ":")).encode

_Chunks = list[bytes | memoryview]


def head_record(head: Mapping[str, Any]) -> bytes:
    """Return the record that says what is collected."""
    text = _encode(dict(head)).encode("ascii")
    prefix = _SUMMED.pack(HEAD, len(text), 0, 0, 0, 0, zlib.crc32(text))
    return prefix + struct.pack("<I", zlib.crc32(prefix)) + text


class EpisodeEncoder:
    """Makes the records of episodes.

    Attributes:
        header: header of the last plain episode. Episodes of the same structure share it, whatever
            their number of steps, if all of them have a seed or none of them has.
    """

    def __init__(self) -> None:
        """Start without a header."""
        self._form: Any = None
        self.header = b""

    def record(self, episode: EpisodeBuffer) -> _Chunks:
        """Return the record of an episode, in as few chunks as practical.

        Raises:
            InvalidEpisodeError: a value is neither a number, a string, None, an array of these,
                nor a list, tuple or dict.
        """
        steps, seed = len(episode), episode.seed
        arrays: _Chunks = []
        has_seed = seed is not None and is_word(seed)
        form = _plain_form(episode, steps, arrays) if has_seed or seed is None else None
        if form is None:
            arrays.clear()
            text = _header(
                {
                    name: ("seed",)
                    if name == "seed" and has_seed
                    else _form(getattr(episode, name), arrays, name)
                    for name in FIELDS
                }
            )
        elif form == self._form:  # forms hold no arrays, so they can be compared
            text = self.header
        else:
            *leaves, metadata, _ = form
            text = _header(
                {
                    "seed": ("seed",) if has_seed else None,
                    "options": None,
                    "metadata": metadata,
                    **dict(zip(EPISODE_COLUMNS, leaves, strict=True)),
                }
            )
            self._form, self.header = form, text
        return record_of(text, steps, seed if has_seed else None, arrays)


def is_word(seed: Any) -> bool:
    """Return whether the prefix of a record can hold a seed; other seeds are in the header.

    Example:
        >>> is_word(2**64 - 1), is_word(2**64), is_word(True)
        (True, False, False)
    """
    return type(seed) is int and 0 <= seed <= _WORD


def record_of(
    header: bytes, steps: int, seed: int | None, arrays: Sequence[bytes | memoryview]
) -> _Chunks:
    """Return the record of an episode.

    Args:
        header: header of an episode of the same structure.
        steps: number of steps.
        seed: seed of the episode; None if it has none, or if the header holds it.
        arrays: bytes of its arrays in order, each padded to a multiple of 8.
    """
    size = sum(map(len, arrays))
    chunks: _Chunks
    if size < _LONG:
        body = b"".join(arrays)
        chunks, checksum = [body], xxh3_64_intdigest(body)
    else:
        chunks, state = [*arrays], xxh3_64()
        for part in arrays:
            state.update(part)
        checksum = state.intdigest()
    crc = zlib.crc32
    prefix = _SUMMED.pack(EPISODE, len(header), size, steps, seed or 0, checksum, crc(header))
    start = (prefix, crc(prefix).to_bytes(4, "little"), header)
    if size < _AT_ONCE:
        return [b"".join((*start, *chunks))]
    return [b"".join(start), *chunks]


def _header(form: Mapping[str, Any]) -> bytes:
    try:
        return _encode(dict(form)).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEpisodeError(f"the episode cannot be stored: {error}") from None


_leaves = operator.attrgetter(*EPISODE_COLUMNS)


def _plain_form(episode: EpisodeBuffer, steps: int, arrays: _Chunks) -> tuple[Any, ...] | None:
    """Return the form of an episode that has arrays of rows only, None for other episodes.

    Its metadata may only hold ``infos_filled``. The form ends with whether it has no seed.
    """
    if episode.options is not None or episode.metadata.keys() - {"infos_filled"}:
        return None
    values = _leaves(episode)
    forms = [_rows_form(value, steps, arrays) for value in values]
    if None in forms:
        return None
    return (*forms, _form(episode.metadata, [], "metadata"), episode.seed is None)


def _rows_form(value: Any, steps: int, arrays: _Chunks) -> tuple[Any, ...] | None:
    """Return the form of arrays of rows, which is the same for any number of rows."""
    if type(value) is np.ndarray:
        dtype = value.dtype
        more = len(value) - steps if value.ndim else -1
        if dtype.kind not in "biufc" or not 0 <= more <= 1:
            return None
        _add(value, arrays)
        return "rows", dtype, value.shape[1:], more
    if type(value) is dict:
        parts = []
        for key, part in value.items():
            form = _rows_form(part, steps, arrays)
            if form is None or type(key) is not str:
                return None
            parts.append((key, form))
        return "dict", tuple(parts)
    if type(value) is tuple:
        forms = tuple(_rows_form(part, steps, arrays) for part in value)
        return None if None in forms else ("tuple", forms)
    return None


def _add(array: npt.NDArray[Any], arrays: _Chunks) -> None:
    size = array.nbytes
    if size < 1 << 16:
        arrays.append(array.tobytes())
    else:
        arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if size & 7:
        arrays.append(bytes(-size & 7))


def _form(value: Any, arrays: _Chunks, name: str) -> Any:
    """Return the form of a value for JSON, and append the bytes of arrays to ``arrays``."""
    if isinstance(value, np.ndarray):
        place = getattr(value, "place", None)
        if place is not None:
            where = (place.file, place.offset, place.size, place.checksum)
            return ("stored", value.dtype.str, value.shape, where)
        if value.dtype.kind == "O" and all(isinstance(entry, str) for entry in value.flat):
            return ("text", value.shape, [str(entry) for entry in value.flat])
        if value.dtype.kind in _KINDS and value.dtype.itemsize:
            _add(value, arrays)
            return ("array", value.dtype.str, value.shape)
    elif isinstance(value, np.generic) and value.dtype.kind in "biufc":
        _add(np.asarray(value), arrays)
        return ("scalar", value.dtype.str)
    elif value is None or isinstance(value, bool | int | float):
        return value
    elif isinstance(value, str):
        return str(value)
    elif isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return ("dict", [(key, _form(part, arrays, name)) for key, part in value.items()])
    elif isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return (kind, [_form(part, arrays, name) for part in value])
    raise InvalidEpisodeError(
        f"{name} cannot be stored: {type(value).__name__} {str(value)[:60]!r}; expected numbers, "
        "strings, None, arrays of these, or lists, tuples and dicts with strings as keys"
    )


#: The bytes of a record's arrays, read or memory-mapped.
Body = bytearray | memoryview


class Record(NamedTuple):
    """The prefix of a record, which the rest of the record follows.

    Attributes:
        kind: magic bytes of the record.
        header_size: size of the header in bytes.
        body_size: size of the body in bytes.
        header_sum: checksum of the header.
        body_sum: checksum of the body.
        steps: number of steps of an episode.
        seed: seed of an episode, if its header says that the prefix holds it.
    """

    kind: bytes
    header_size: int
    body_size: int
    header_sum: int
    body_sum: int
    steps: int
    seed: int

    @property
    def size(self) -> int:
        """Size of the whole record in bytes."""
        return PREFIX.size + self.header_size + self.body_size

    def holds(self, body: Body) -> bool:
        """Return whether a body is that of the record."""
        return len(body) == self.body_size and xxh3_64_intdigest(body) == self.body_sum


def read_prefix(read: Callable[[int], bytes]) -> Record | None:
    """Read the prefix of a record.

    Args:
        read: reads a number of bytes.

    Returns:
        The prefix, None if it is damaged.

    Raises:
        EOFError: the file ends in it.
        UnsupportedVersionError: an earlier version of this package wrote it.
    """
    data = read(PREFIX.size)
    if data[:4] in _EARLIER:
        raise UnsupportedVersionError(
            f"it was recorded by an earlier version of minari_pipe, in the format "
            f"{data[:4].decode()}; recover it with that version"
        )
    if len(data) < PREFIX.size:
        raise EOFError
    kind, header, body, steps, seed, body_sum, header_sum, prefix_sum = PREFIX.unpack(data)
    if kind not in (HEAD, EPISODE) or zlib.crc32(data[:-4]) != prefix_sum:
        return None
    return Record(kind, header, body, header_sum, body_sum, steps, seed)


OpenRows = Callable[[RecordPlace, np.dtype[Any], tuple[int, ...]], npt.NDArray[Any]]


class EpisodeDecoder:
    """Decodes the bodies of records that share a header."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        """Parse a header.

        Raises:
            LookupError, TypeError, ValueError, AttributeError, RecursionError: it is invalid.
        """
        self._makers = {name: _maker(header[name]) for name in FIELDS}

    def episode(self, record: Record, body: Body, open_rows: OpenRows) -> EpisodeBuffer:
        """Return an episode, whose arrays are writable if its body is.

        Args:
            record: prefix of the record.
            body: its body, of which the arrays are views.
            open_rows: returns the rows of a place.

        Raises:
            LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError:
                the body does not match the header.
        """
        place = _Arrays(body, record, open_rows)
        episode = EpisodeBuffer(**{name: make(place) for name, make in self._makers.items()})
        if not (
            isinstance(episode.infos, dict | None)
            and isinstance(episode.options, dict | None)
            and isinstance(episode.metadata, dict)
            and isinstance(episode.extras, dict)
        ):
            raise TypeError("its infos, options, metadata or extras are not dicts")
        return episode


_Maker = Callable[["_Arrays"], Any]


def _maker(form: Any) -> _Maker:
    """Return a function that reads a value of a form from a body."""
    if not isinstance(form, list):
        return lambda body: form
    if form[0] == "rows":
        _, name, row, more = form
        return _rows_maker(stored_dtype(name), tuple(row), more)
    if form[0] == "dict":
        pairs = form[1].items() if isinstance(form[1], dict) else form[1]
        parts = [(key, _maker(part)) for key, part in pairs]
        return lambda body: {key: make(body) for key, make in parts}
    return lambda body: body.value(form)


def _rows_maker(dtype: np.dtype[Any], row: tuple[int, ...], more: int) -> _Maker:
    return lambda body: body.array(dtype, (body.steps + more, *row))


class _Arrays:
    """Reads the arrays of a record from its body, in order."""

    def __init__(self, data: Body, record: Record, open_rows: OpenRows) -> None:
        self._data = data
        self._place = 0
        self.steps, self._seed = record.steps, record.seed
        self._open_rows = open_rows

    def value(self, form: Any) -> Any:
        if not isinstance(form, list):
            return form
        kind, *rest = form
        if kind in ("rows", "dict"):
            return _maker(form)(self)
        if kind == "array":
            return self._array(*rest)
        if kind in ("list", "tuple"):
            parts = [self.value(part) for part in rest[0]]
            return parts if kind == "list" else tuple(parts)
        if kind == "seed":
            return self._seed
        if kind == "text":
            return np.array([str(part) for part in rest[1]], dtype=object).reshape(rest[0])
        if kind == "scalar":
            return self._array(rest[0], [])[()]
        if kind == "stored":
            return self._stored(*rest)
        raise ValueError(f"unknown kind of value {kind!r}")

    def _array(self, name: str, shape: list[int]) -> npt.NDArray[Any]:
        return self.array(stored_dtype(name), tuple(shape))

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read the next array from the body."""
        if shape and min(shape) < 0:  # NumPy would infer a dimension of -1
            raise ValueError(f"invalid array shape {shape}")
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, self._data, self._place)
        size = array.nbytes
        self._place += size + (-size & 7)
        return array

    def _stored(self, name: str, shape: list[int], where: list[int]) -> npt.NDArray[Any]:
        file, offset, size, checksum = where
        dtype, place = stored_dtype(name), RecordPlace(file, offset, size, checksum)
        whole = all(type(number) is int and number >= 0 for number in (*shape, *where))
        if not whole or math.prod(shape) * dtype.itemsize != place.size:
            raise ValueError(f"rows of shape {shape} do not fill {place.size} bytes")
        return self._open_rows(place, dtype, tuple(shape))


@lru_cache(256)
def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of arrays that a header names.

    Raises:
        TypeError, ValueError: no array of this dtype is stored.
    """
    dtype = named_dtype(name)
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise ValueError(f"invalid array dtype {dtype}")
    return dtype
