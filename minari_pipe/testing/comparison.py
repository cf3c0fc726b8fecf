"""Compare values exactly: type, dtype, shape and every bit must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minari_pipe.core.episode import EpisodeBuffer, EpisodeData, reward_statistics
from minari_pipe.core.tree import without_padding
from minari_pipe.storage import MinariStorage

#: Fields that hold an episode's steps in the standard.
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")


def assert_same(left: Any, right: Any, where: str = "") -> None:
    """Assert that two values agree in type, dtype, shape and every bit.

    Args:
        left: expected value: arrays, numbers and strings in dicts, lists and tuples.
        right: value that was found.
        where: prefix of the messages.

    Example:
        >>> assert_same({"x": np.zeros(2)}, {"x": np.zeros(2)})
        >>> found = {"x": np.zeros(2, np.float32)}
        >>> assert_same({"x": np.zeros(2)}, found)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: .x: expected float64 of shape (2,), found float32 of shape (2,)...
    """
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray), f"{where}: expected an array, found {right!r:.200}"
        assert (left.dtype, left.shape) == (right.dtype, right.shape), (
            f"{where}: expected {left.dtype} of shape {left.shape}, found {right.dtype} of shape "
            f"{right.shape}"
        )
        same = (
            left.tolist() == right.tolist()
            if left.dtype.kind == "O"
            else without_padding(left).tobytes() == without_padding(right).tobytes()
        )
        assert same, f"{where}: expected {left!r:.300}, found {right!r:.300}"
    elif isinstance(left, dict):
        assert isinstance(right, dict), f"{where}: expected a dict, found {right!r:.200}"
        assert left.keys() == right.keys(), f"{where}: expected {set(left)}, found {set(right)}"
        for key, value in left.items():
            assert_same(value, right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert type(left) is type(right), f"{where}: expected {type(left)}, found {type(right)}"
        assert len(left) == len(right), f"{where}: expected {len(left)} entries, found {len(right)}"
        for index, value in enumerate(left):
            assert_same(value, right[index], f"{where}[{index}]")
    else:
        assert type(left) is type(right), f"{where}: expected {left!r}, found {right!r}"
        same = left == right or (left != left and right != right)
        assert same, f"{where}: expected {left!r}, found {right!r}"


def assert_episode(stored: EpisodeData | dict, buffer: EpisodeBuffer) -> None:
    """Assert that an episode that was read equals the one that was written.

    Args:
        stored: the episode, or an item of ``get_episodes``.
        buffer: the episode that was passed to ``update_episodes``; seed and extras count too.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> from minari_pipe.testing import episode
        >>> buffer = episode(Discrete(2), Discrete(2), np.random.default_rng(0))
        >>> storage = MinariStorage.new("one", Discrete(2), Discrete(2), data_format="memory")
        >>> storage.update_episodes([buffer])
        >>> assert_episode(next(storage.get_episodes([0])), buffer)
    """
    fields = stored if isinstance(stored, dict) else vars(stored)
    for name in ARRAYS:
        assert_same(getattr(buffer, name), fields[name], name)
    assert_same(buffer.seed, fields["seed"], "seed")
    assert_same(buffer.extras, fields["extras"], "extras")


def assert_stored(storage: MinariStorage, buffers: list[EpisodeBuffer]) -> None:
    """Assert that a storage holds exactly these episodes, with all their attributes.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> storage = MinariStorage.new("none", Discrete(2), Discrete(2), data_format="memory")
        >>> assert_stored(storage, [])
    """
    indices = range(len(buffers))
    episodes = list(storage.get_episodes(indices))
    attributes = list(storage.get_episode_metadata(indices))
    assert storage.total_episodes == len(episodes) == len(attributes) == len(buffers)
    assert storage.total_steps == sum(map(len, buffers))
    for index, buffer in enumerate(buffers):
        assert_same(index, episodes[index]["id"], "id")
        assert_episode(episodes[index], buffer)
        expected = {
            "id": index,
            "total_steps": len(buffer),
            **reward_statistics(buffer.rewards),
            **buffer.metadata,
        }
        for key in ("seed", "options"):
            if getattr(buffer, key) is not None:
                expected[key] = getattr(buffer, key)
        assert_same(expected, attributes[index], f"attributes of episode {index}")


def files(directory: Path) -> dict[str, bytes]:
    """Return the content of every file below a directory by path, including hidden files."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def state(data_path: Path) -> dict[str, Any]:
    """Return the whole content of a dataset, for a later comparison.

    Args:
        data_path: the data directory, or its equivalent in the format.
    """
    storage = MinariStorage.read(data_path)
    indices = range(storage.total_episodes)
    return {
        "files": files(data_path),
        "metadata": MinariStorage.read_raw_metadata(data_path),
        "episodes": list(storage.get_episodes(indices)),
        "attributes": list(storage.get_episode_metadata(indices)),
    }
