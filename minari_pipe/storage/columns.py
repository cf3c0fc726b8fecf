"""Convert an episode buffer's values to the arrays that are stored, and check them; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.spaces import ARRAY_SPACES, is_image_space
from minari_pipe.core.tree import Path, as_array, fits_exactly, leaves, stack, without_padding
from minari_pipe.errors import InvalidEpisodeError, UnsupportedSpaceError
from minari_pipe.storage.attributes import clashing_name, is_storable_text
from minari_pipe.storage.jpeg import Frames, decode_column

Columns = dict[str, Any]

#: names in the layout, which groups of extra step data cannot have
RESERVED_GROUPS = frozenset(
    {"observations", "actions", "rewards", "terminations", "truncations", "infos", "extras", "id"}
)


def episode_columns(
    buffer: EpisodeBuffer,
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    *,
    episode: int,
    continues: bool = False,
) -> Columns:
    """Stack a buffer's values and check that they match each other and the spaces.

    Arrays keep their dtype; lists of Python numbers take the space's dtype if that is lossless.

    Args:
        buffer: the episode.
        observation_space: space of one observation; None checks only the row counts.
        action_space: space of one action; None checks only the row counts.
        episode: number of the episode, for error messages.
        continues: the buffer continues a stored episode, so it has no row for the reset.

    Returns:
        ``observations``, ``actions``, ``rewards`` (float64), ``terminations``, ``truncations``
        (bool), ``infos``, and ``extras`` if there are any: groups of extra step data by name.
        A leaf is an array ``(rows, ...)``, a list of strings, or
        :class:`~minari_pipe.storage.jpeg.Frames` if the buffer holds JPEG images.

    Raises:
        InvalidEpisodeError: rows, shapes or keys do not match, or a value cannot be stored.
    """
    where = f"episode {episode}: "
    try:
        rewards = _numbers(buffer.rewards, "rewards", np.float64)
        steps = len(rewards)
        if steps == 0:
            raise InvalidEpisodeError("rewards has 0 steps, at least 1 is needed")
        columns = {
            "observations": _column(buffer.observations, observation_space, ("observations",)),
            "actions": _column(buffer.actions, action_space, ("actions",)),
            "rewards": rewards,
            "terminations": _numbers(buffer.terminations, "terminations", np.bool_),
            "truncations": _numbers(buffer.truncations, "truncations", np.bool_),
            "infos": _without_empty(_info_column(buffer.infos or {}, ("infos",))),
        }
        extras = _without_empty(_extra_columns(buffer.extras))
        if extras:
            columns["extras"] = extras
        _refuse_clashes(columns)
        for name, column in columns.items():
            extra = 1 if name in ("observations", "infos") and not continues else 0
            for path, leaf in leaves(column, (name,)):
                if name == "extras" and not continues and len(leaf) == steps + 1:
                    continue
                if len(leaf) != steps + extra:
                    unit = "rows" if extra else "steps"
                    expected = (
                        f" (expected {steps + 1}: one for the reset and one per step)" * extra
                    )
                    if continues and len(leaf) == steps + 1:
                        expected = (
                            "; this continues an episode whose last row is already stored: leave "
                            "out the first row here"
                        )
                    raise InvalidEpisodeError(
                        f"{subscripts(path)} has {len(leaf)} {unit}, rewards has {steps}{expected}"
                    )
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"{where}{error}") from None
    return columns


def check_space_names(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    """Raise an error if HDF5 cannot store the keys of all Dict spaces without clashes.

    This package can read back a key with a slash inside; real Minari cannot.

    Raises:
        UnsupportedSpaceError: a key is invalid or clashes; the message names it.
    """
    for root, space in (("observations", observation_space), ("actions", action_space)):
        name = clashing_name(map(layout_name, _ends(space, (root,))))
        if name is not None:
            raise UnsupportedSpaceError(f"{_clash(name)}; rename a key of {space}")


def _ends(space: gym.Space[Any], path: Path) -> Iterator[Path]:
    """Yield the path of every leaf, and of every Dict or Tuple without leaves."""
    parts: Mapping[Any, gym.Space[Any]] = {}
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        for key in parts:
            if not _is_link_name(key):
                raise UnsupportedSpaceError(
                    f"the space of {subscripts(path)} has the key {key!r}; {_LINK_NAMES}"
                )
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    for key, part in parts.items():
        yield from _ends(part, (*path, key))
    if not parts:
        yield path


def _refuse_clashes(columns: Columns) -> None:
    name = clashing_name(layout_name(path) for path, _ in leaves(columns))
    if name is not None:
        raise InvalidEpisodeError(_clash(name))


def layout_name(path: Path) -> str:
    """Return the name of a leaf in the layout of the standard.

    Example:
        >>> layout_name(("observations", "arm", 0))
        'observations/arm/_index_0'
    """
    return "/".join(part if isinstance(part, str) else f"_index_{part}" for part in path)


def _clash(name: str) -> str:
    return (
        f"two values share the name {name!r} in the layout: the key 'a/b' means the same as the "
        "key 'b' of a dict 'a'"
    )


def subscripts(path: Path) -> str:
    """Return a path as an expression, which is how messages about episodes name a leaf.

    Example:
        >>> subscripts(("actions", "arm", 0))
        "actions['arm'][0]"
    """
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _numbers(values: Any, name: str, dtype: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.size == 0:
        array = array.astype(dtype)
    if array.ndim != 1:
        raise InvalidEpisodeError(f"{name} has shape {array.shape}, expected one number per step")
    if dtype is np.bool_:
        if array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
            array = array.astype(bool)
        if array.dtype.kind != "b":
            raise InvalidEpisodeError(f"{name} must be true or false, got {array.dtype}")
        return without_padding(array)
    if array.dtype.kind not in "biuf":
        raise InvalidEpisodeError(f"{name} must be numbers, got {array.dtype}")
    return array.astype(dtype)


def _column(value: Any, space: gym.Space[Any] | None, path: Path) -> Any:
    if isinstance(value, Frames):
        if space is not None and not is_image_space(space):
            raise InvalidEpisodeError(f"{subscripts(path)} is JPEG, the space expects {space}")
        return value
    composite = space is None or isinstance(space, spaces.Dict | spaces.Tuple)
    if composite and isinstance(value, list) and value and isinstance(value[0], Mapping | tuple):
        value = stack(value)  # turn rows of trees into a tree of rows
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            found = list(value) if isinstance(value, Mapping) else type(value).__name__
            raise InvalidEpisodeError(
                f"{subscripts(path)} must have the keys {list(space.spaces)}, got {found}"
            )
        return {key: _column(value[key], part, (*path, key)) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            length = len(value) if isinstance(value, tuple) else type(value).__name__
            raise InvalidEpisodeError(
                f"{subscripts(path)} must be a tuple of {len(space.spaces)}, got {length}"
            )
        return tuple(
            _column(entry, part, (*path, index))
            for index, (entry, part) in enumerate(zip(value, space.spaces, strict=True))
        )
    if space is None and isinstance(value, Mapping):
        for key in value:
            _check_key(key, path)
        return {key: _column(part, None, (*path, key)) for key, part in value.items()}
    if space is None and isinstance(value, tuple):
        return tuple(_column(part, None, (*path, index)) for index, part in enumerate(value))
    if isinstance(value, Mapping | tuple) or value is None:
        raise InvalidEpisodeError(
            f"{subscripts(path)} must be an array or a list of rows, got {type(value).__name__}"
        )
    array = _rows(value, path)
    if isinstance(space, spaces.Text) or (
        not isinstance(space, ARRAY_SPACES) and array.dtype.kind == "O"
    ):
        if array.dtype.kind != "O" or array.ndim != 1:
            raise InvalidEpisodeError(f"{subscripts(path)} must be a list of strings")
        return array.tolist()
    if not isinstance(space, ARRAY_SPACES):
        return array
    if array.shape[1:] != space.shape:
        raise InvalidEpisodeError(
            f"{subscripts(path)} has rows of shape {array.shape[1:]}, the space expects "
            f"{space.shape}"
        )
    if array.dtype != space.dtype:
        if array.dtype.kind == "O":
            raise InvalidEpisodeError(f"{subscripts(path)} is text, the space expects {space}")
        # only Python numbers lack a dtype; the dtype of an array was recorded and stays
        if _is_python_number(value) and fits_exactly(array, space.dtype):
            return array.astype(space.dtype)
    return array


def _is_python_number(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def _rows(value: Any, path: Path) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        shapes = sorted({np.shape(row) for row in value})
        raise InvalidEpisodeError(
            f"{subscripts(path)} has rows of different shapes: {shapes[:4]}"
        ) from None
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray):
        # NumPy converted the numbers of a mixed list to text
        array = np.asarray(value, dtype=object)
    array = without_padding(as_array(array, path))
    if array.ndim == 0:
        raise InvalidEpisodeError(
            f"{subscripts(path)} must be an array or a list of rows, got a single value"
        )
    if array.dtype.kind == "O":
        for text in array.flat:
            if not is_storable_text(text):
                raise InvalidEpisodeError(
                    f"{subscripts(path)} has the text {text!r}, which HDF5 cannot store: NUL "
                    "and lone surrogates are not allowed"
                )
    return array


def _info_column(value: Any, path: Path) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key, path)
        return {key: _info_column(part, (*path, key)) for key, part in value.items()}
    if isinstance(value, tuple):
        # infos cannot hold tuples in the layout: name their entries as Minari does
        return {
            f"_index_{index}": _info_column(part, (*path, index))
            for index, part in enumerate(value)
        }
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _info_column(stack(value), path)
    return _rows(value, path)


def _without_empty(column: Any) -> Any:
    """Remove dicts without a leaf, which hold no rows and which not every format can store."""
    if not isinstance(column, Mapping):
        return column
    parts = {key: _without_empty(part) for key, part in column.items()}
    return {key: part for key, part in parts.items() if not isinstance(part, Mapping) or part}


def _extra_columns(extras: Mapping[str, Any]) -> Columns:
    for name in extras:
        _check_key(name, ("extras",))
        if name in RESERVED_GROUPS or "/" in name:
            raise InvalidEpisodeError(
                f"extras has the key {name!r}, which the layout reserves or which has a slash; "
                "rename it"
            )
    columns = {name: _info_column(value, ("extras", name)) for name, value in extras.items()}
    for path, _ in leaves(columns):
        if any("/" in str(key) for key in path):
            raise InvalidEpisodeError(
                f"{subscripts(('extras', *path))} has a key with a slash; rename it"
            )
    return columns


_LINK_NAMES = (
    "keys must be strings without NUL or lone surrogates, and no part between slashes may be "
    "empty or '.'; rename it"
)


def _check_key(key: Any, path: Path) -> None:
    if not _is_link_name(key):
        raise InvalidEpisodeError(f"{subscripts(path)} has the key {key!r}; {_LINK_NAMES}")


def _is_link_name(key: Any) -> bool:
    return (
        isinstance(key, str)
        and is_storable_text(key)
        and all(part not in ("", ".") for part in key.split("/"))
    )


def append_rows(stored: Any, more: Any, where: str) -> Any:
    """Return columns with the rows of others appended.

    Args:
        stored: a tree of columns.
        more: columns of the same structure.
        where: their name, for error messages.

    Raises:
        InvalidEpisodeError: keys, shapes or dtypes differ from the stored ones.

    Example:
        >>> append_rows({"x": np.zeros(1)}, {"x": np.ones(2)}, "infos")
        {'x': array([0., 1., 1.])}
    """
    if isinstance(stored, Mapping):
        if not isinstance(more, Mapping) or stored.keys() != more.keys():
            found = sorted(more) if isinstance(more, Mapping) else "rows"
            raise InvalidEpisodeError(
                f"{where} has the keys {found}, the stored episode has {sorted(stored)}"
            )
        return {key: append_rows(part, more[key], f"{where}.{key}") for key, part in stored.items()}
    if isinstance(stored, tuple):
        pairs = enumerate(zip(stored, more, strict=True))
        return tuple(append_rows(part, rows, f"{where}[{place}]") for place, (part, rows) in pairs)
    if isinstance(stored, Frames) and isinstance(more, Frames):
        return Frames([*stored, *more])
    # Minari up to 0.5.2 stored raw images and recorded no encoding.
    stored, more = decode_column(stored), decode_column(more)
    if isinstance(stored, list) and isinstance(more, list):
        return [*stored, *more]
    if _kind(stored) != _kind(more):
        raise InvalidEpisodeError(
            f"{where} is {_kind(more)}, the stored episode has {_kind(stored)}"
        )
    return np.concatenate([stored, more])


def _kind(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return f"{column.dtype} in rows of shape {column.shape[1:]}"
    return "text" if isinstance(column, list) else "a group"
