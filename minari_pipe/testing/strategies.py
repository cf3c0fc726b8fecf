"""Provide Hypothesis strategies for any space of the standard, and for datasets in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from minari_pipe.core.episode import EpisodeBuffer

#: Whether random tests run at full count.
FULL = os.environ.get("MINARI_PIPE_FULL") == "1"
#: Characters of generated texts: all lengths in UTF-8, and characters that often break parsers.
TEXT = "abcxyz ÄßΩ漢🙂\n\t\"'\\/"
SEEDS = (None, 0, 7, 2**63, 2**64 - 1)

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Dataset(NamedTuple):
    """An observation space, an action space, and episodes in them."""

    observation_space: gym.Space
    action_space: gym.Space
    buffers: list[EpisodeBuffer]


def examples(count: int) -> Callable[[Any], Any]:
    """Return settings of a property test that always runs the same few cases.

    Args:
        count: number of cases; 20 times as many with ``MINARI_PIPE_FULL=1`` in the environment.

    Example:
        >>> examples(5).max_examples in (5, 100)
        True
    """
    return settings(
        max_examples=count * (20 if FULL else 1),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def spaces(*, max_leaves: int = 5) -> st.SearchStrategy[gym.Space]:
    """Return a strategy for all spaces: Box of any dtype, discrete, Text, Dict and Tuple.

    Args:
        max_leaves: approximate maximum number of leaf spaces in one space.

    Example:
        >>> from hypothesis import find
        >>> find(spaces(), lambda space: isinstance(space, gym.spaces.Dict), settings=examples(9))
        Dict()
    """
    return st.recursive(
        _leaves,
        lambda inner: st.one_of(
            st.dictionaries(_keys, inner, max_size=3).map(gym.spaces.Dict),
            st.lists(inner, max_size=3).map(gym.spaces.Tuple),
        ),
        max_leaves=max_leaves,
    )


def episodes(
    observation_space: gym.Space, action_space: gym.Space, *, steps: int | None = None
) -> st.SearchStrategy[EpisodeBuffer]:
    """Return a strategy for episodes of these spaces; see :func:`episode`.

    Example:
        >>> two = gym.spaces.Discrete(2)
        >>> from hypothesis import find
        >>> len(find(episodes(two, two, steps=3), lambda buffer: True))
        3
    """
    seeds = st.integers(0, 2**32)
    return seeds.map(
        lambda seed: episode(observation_space, action_space, np.random.default_rng(seed), steps)
    )


@st.composite
def datasets(draw: st.DrawFn, *, max_episodes: int = 3) -> Dataset:
    """Draw an observation space, an action space and a few episodes in them.

    Example:
        >>> from hypothesis import find
        >>> find(datasets(max_episodes=1), lambda dataset: bool(dataset.buffers)).buffers[0].id
    """
    observation_space, action_space = draw(spaces()), draw(spaces())
    one = episodes(observation_space, action_space)
    buffers = draw(st.lists(one, max_size=max_episodes))
    return Dataset(observation_space, action_space, buffers)


def episode(
    observation_space: gym.Space,
    action_space: gym.Space,
    rng: np.random.Generator,
    steps: int | None = None,
) -> EpisodeBuffer:
    """Return a random episode that every format must be able to store.

    Args:
        observation_space: space of one observation.
        action_space: space of one action.
        rng: source of all random values.
        steps: number of steps ``T``; ``None`` draws it, from 1 to 6.

    Example:
        >>> two = gym.spaces.Discrete(2)
        >>> buffer = episode(two, two, np.random.default_rng(0), steps=4)
        >>> len(buffer), buffer.observations.shape
        (4, (5,))
    """
    steps = int(rng.integers(1, 7)) if steps is None else steps
    terminations = np.zeros(steps, bool)
    truncations = np.zeros(steps, bool)
    (terminations if rng.random() < 0.5 else truncations)[-1] = True
    return EpisodeBuffer(
        seed=SEEDS[rng.integers(len(SEEDS))],
        options=options(rng),
        observations=column(observation_space, steps + 1, rng),
        actions=column(action_space, steps, rng),
        rewards=rng.normal(size=steps),
        terminations=terminations,
        truncations=truncations,
        infos=infos(steps + 1, rng),
        metadata={"origin": "generated", "weights": rng.random(2)},
        extras=extras(steps, rng),
    )


def column(space: gym.Space, rows: int, rng: np.random.Generator) -> Any:
    """Return random rows of a space as stored; floats have any bits, including NaN and -0.0.

    Example:
        >>> column(gym.spaces.MultiBinary(2), 3, np.random.default_rng(0)).shape
        (3, 2)
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: column(part, rows, rng) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(column(part, rows, rng) for part in space.spaces)
    if isinstance(space, gym.spaces.Text):
        letters = [letter for letter in TEXT if letter in space.character_set]
        lengths = rng.integers(space.min_length, space.max_length + 1, size=rows)
        return ["".join(rng.choice(letters, length)) for length in lengths]
    if isinstance(space, gym.spaces.Discrete):
        return (space.start + rng.integers(space.n, size=rows)).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return (space.start + rng.integers(space.nvec, size=(rows, *space.shape))).astype(
            space.dtype
        )
    if isinstance(space, gym.spaces.MultiBinary):
        return rng.integers(2, size=(rows, *space.shape), dtype=np.int8)
    assert space.shape is not None
    assert space.dtype is not None
    if space.dtype == bool:
        return rng.random((rows, *space.shape)) < 0.5
    size = rows * int(np.prod(space.shape)) * space.dtype.itemsize
    return np.frombuffer(rng.bytes(size), space.dtype).reshape(rows, *space.shape).copy()


def infos(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return infos of every kind that can be stored, or none."""
    if rng.random() < 0.3:
        return {}
    return {
        "success": rng.random(rows) < 0.5,
        "count": rng.integers(100, size=rows, dtype=np.int32),
        "reward/forward": rng.random(rows),
        "state": {"qpos": rng.random((rows, 3)), "deep": {"m": rng.random((rows, 2, 2))}},
        "empty": np.zeros((rows, 0), np.float32),
        "note": np.array(["", "ünï", "x" * 300][: min(3, rows)] * rows, dtype=object)[:rows],
        # Starts like a JPEG file but is none.
        "bytes": np.tile(np.array([0xFF, 0xD8, 0xFF, 0], np.uint8), (rows, 1)),
    }


def extras(steps: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return extra groups of step data, with and without a row for the reset, or none."""
    if rng.random() < 0.3:
        return {}
    return {
        "state": {"qpos": rng.random((steps + 1, 3)), "deep": {"t": np.arange(steps + 1)}},
        "forces": rng.random((steps, 2)).astype(np.float32),
        "phase": np.array(["reach", "grip"] * steps, dtype=object)[:steps],
    }


def options(rng: np.random.Generator) -> dict[str, Any] | None:
    """Return reset options of every kind that can be stored, or ``None``."""
    if rng.random() < 0.3:
        return None
    return {
        "low": -0.5,
        "flag": True,
        "count": 3,
        "nothing": None,
        "empty": {},
        "list": [1, 2.5, "three", [None]],
        "tuple": (1, 2),
        "names": ["a", "b"],
        "with/slash": 1,
        "state": {"qpos": rng.random(3), "qvel": rng.random(3).astype(np.float32)},
        "grid": rng.integers(9, size=(2, 2)),
        "scalar": np.float32(0.1),
        "text": "ünï\0code",
    }


_shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
_keys = st.text(st.sampled_from("abcdefgh_0. Ω"), min_size=1, max_size=4).filter(
    lambda key: key not in (".", "..")
)


@st.composite
def _boxes(draw: st.DrawFn) -> gym.spaces.Box:
    shape = draw(_shapes)
    dtype: Any = np.dtype(draw(st.sampled_from((*FLOATS, *INTEGERS, "bool"))))
    if dtype.kind == "b":
        return gym.spaces.Box(0, 1, shape, dtype.type)
    if dtype.kind == "f":
        bound = draw(st.sampled_from([1.0, 3.5, np.inf]))
        return gym.spaces.Box(-bound, bound, shape, dtype.type)
    return gym.spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)


@st.composite
def _multi_discretes(draw: st.DrawFn) -> gym.spaces.MultiDiscrete:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size))
    dtype: Any = np.dtype(draw(st.sampled_from(["int8", "int32", "int64"]))).type
    return gym.spaces.MultiDiscrete(
        np.array(nvec, dtype).reshape(shape),
        dtype=dtype,
        start=np.array(start, dtype).reshape(shape),
    )


@st.composite
def _discretes(draw: st.DrawFn) -> gym.spaces.Discrete:
    dtype: Any = np.dtype(draw(st.sampled_from(["int64", "int64", "int8", "int32"]))).type
    return gym.spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-5, 5)), dtype=dtype)


@st.composite
def _texts(draw: st.DrawFn) -> gym.spaces.Text:
    shortest = draw(st.integers(0, 2))
    charset = draw(st.sampled_from([TEXT, "ab", "漢🙂"]))
    return gym.spaces.Text(shortest + 6, min_length=shortest, charset=charset)


_leaves = st.one_of(
    _boxes(),
    _discretes(),
    _multi_discretes(),
    st.sampled_from([gym.spaces.MultiBinary(n) for n in (3, 1)]),
    st.sampled_from([gym.spaces.MultiBinary(n) for n in ([2, 2], [1, 2, 3])]),
    _texts(),
)
