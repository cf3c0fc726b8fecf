"""Generated spaces and episodes, and exact comparison; shared by the tests of the library."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from minari_pipe.episode import EpisodeBuffer, EpisodeData

FULL = os.environ.get("MINARI_PIPE_FULL") == "1"
TEXT = "abcxyz ÄßΩ漢🙂\n\t\"'\\/"


def examples(count: int) -> Callable[[Any], Any]:
    """Settings of a property test: always the same few cases, 20 times as many when full."""
    return settings(
        max_examples=count * (20 if FULL else 1),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint8", "uint16"])
keys = st.text(st.sampled_from("abcdefgh_0. Ω"), min_size=1, max_size=4).filter(
    lambda key: key not in (".", "..")
)


@st.composite
def boxes(draw: Any) -> spaces.Box:
    shape, dtype = draw(shapes), np.dtype(draw(dtypes))
    if dtype.kind == "f":
        bound = draw(st.sampled_from([1.0, 3.5, np.inf]))
        return spaces.Box(-bound, bound, shape, dtype.type)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)


leaf_spaces = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.sampled_from([3, [2, 2], 1]).map(spaces.MultiBinary),
    st.just(spaces.Text(8, charset=TEXT, min_length=0)),
)
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def column(space: gym.Space, rows: int, rng: np.random.Generator) -> Any:
    """Rows of a space as stored: any bits at all for floats, so NaN and -0.0 are among them."""
    if isinstance(space, spaces.Dict):
        return {key: column(part, rows, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(column(part, rows, rng) for part in space.spaces)
    if isinstance(space, spaces.Text):
        return ["".join(rng.choice(list(TEXT), rng.integers(9))) for _ in range(rows)]
    if isinstance(space, spaces.Discrete):
        return space.start + rng.integers(space.n, size=rows)
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(space.nvec, size=(rows, *space.shape))).astype(
            space.dtype
        )
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(rows, *space.shape), dtype=np.int8)
    size = rows * int(np.prod(space.shape)) * space.dtype.itemsize
    return np.frombuffer(rng.bytes(size), space.dtype).reshape(rows, *space.shape).copy()


def infos(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Infos of every kind that can be stored, or none."""
    if rng.random() < 0.3:
        return {}
    return {
        "success": rng.random(rows) < 0.5,
        "count": rng.integers(100, size=rows, dtype=np.int32),
        "reward/forward": rng.random(rows),
        "state": {"qpos": rng.random((rows, 3)), "deep": {"m": rng.random((rows, 2, 2))}},
        "empty": np.zeros((rows, 0), np.float32),
        "note": np.array(["", "ünï", "x" * 300][: min(3, rows)] * rows, dtype=object)[:rows],
    }


def options(rng: np.random.Generator) -> dict[str, Any] | None:
    """Reset options of every kind that can be stored, or none."""
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


def episode(
    observation_space: gym.Space,
    action_space: gym.Space,
    rng: np.random.Generator,
    steps: int | None = None,
) -> EpisodeBuffer:
    """One episode of any content."""
    steps = int(rng.integers(1, 7)) if steps is None else steps
    terminations = np.zeros(steps, bool)
    truncations = np.zeros(steps, bool)
    (terminations if rng.random() < 0.5 else truncations)[-1] = True
    seed = [None, 0, 7, 2**63, 2**64 - 1][rng.integers(5)]
    return EpisodeBuffer(
        seed=seed,
        options=options(rng),
        observations=column(observation_space, steps + 1, rng),
        actions=column(action_space, steps, rng),
        rewards=rng.normal(size=steps),
        terminations=terminations,
        truncations=truncations,
        infos=infos(steps + 1, rng),
        metadata={"origin": "generated", "weights": rng.random(2)},
    )


def assert_same(left: Any, right: Any, where: str = "") -> None:
    """Assert that two values agree in type, dtype, shape and every bit."""
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray), (where, type(right))
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        if left.dtype.kind == "O":
            assert left.tolist() == right.tolist(), where
        else:
            assert left.tobytes() == right.tobytes(), where
    elif isinstance(left, dict):
        assert isinstance(right, dict), (where, type(right))
        assert left.keys() == right.keys(), where
        for key, value in left.items():
            assert_same(value, right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert type(left) is type(right), (where, type(right))
        assert len(left) == len(right), where
        for index, value in enumerate(left):
            assert_same(value, right[index], f"{where}[{index}]")
    else:
        assert type(left) is type(right), (where, left, right)
        assert left == right or (left != left and right != right), (where, left, right)


ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")


def assert_episode(stored: EpisodeData | dict, buffer: EpisodeBuffer) -> None:
    """Assert that an episode that was read is the one that was written."""
    fields = stored if isinstance(stored, dict) else vars(stored)
    for name in ARRAYS:
        assert_same(getattr(buffer, name), fields[name], name)
