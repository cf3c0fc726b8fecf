"""Assemble the leaves in a file into episodes of a dataset's spaces."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy.typing as npt
from gymnasium import spaces

from minari_pipe.core.episode import EPISODE_COLUMNS
from minari_pipe.core.spaces import ARRAY_SPACES
from minari_pipe.storage.agreement import STEP_KINDS
from minari_pipe.storage.segment import Leaf

Array = npt.NDArray[Any]
Fields = dict[str, Any]


class Plan:
    """Assembles the leaves of a structure into the columns of an episode.

    Attributes:
        more: rows beyond the number of steps, for each leaf.
        pick: takes the leaves and returns observations, actions, rewards, terminations and
            truncations; None if leaves are nested, or if there are infos or extras.
    """

    def __init__(self, columns: Mapping[str, Any], found: tuple[Leaf, ...]) -> None:
        self._columns = columns
        self.more = [leaf.more for leaf in found]
        is_flat = not columns["infos"] and not columns["extras"]
        flat = [columns[name] for name in EPISODE_COLUMNS[:5]]
        is_flat = is_flat and all(type(place) is int for place in flat)
        self.pick = itemgetter(*flat) if is_flat else None

    @classmethod
    def of(
        cls,
        found: tuple[Leaf, ...],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
    ) -> Plan | None:
        """Return the plan for a structure, or None unless it fits episodes of these spaces exactly.

        The rules are those of :func:`~minari_pipe.storage.agreement.check_agreement`.
        """
        places = {leaf.path: place for place, leaf in enumerate(found)}
        used: set[int] = set()

        def of_space(space: gym.Space[Any], path: tuple[Any, ...], more: int) -> Any:
            if isinstance(space, spaces.Dict | spaces.Tuple):
                is_dict = isinstance(space, spaces.Dict)
                parts = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
                if not parts:
                    raise LookupError
                below = {key: of_space(part, (*path, key), more) for key, part in parts.items()}
                return below if is_dict else tuple(below.values())
            place = places[path]
            leaf = found[place]
            if not isinstance(space, ARRAY_SPACES) or leaf.shape != space.shape:
                raise LookupError
            if leaf.more != more:
                raise LookupError
            used.add(place)
            return place

        try:
            columns: dict[str, Any] = {
                "observations": of_space(observation_space, ("observations",), 1),
                "actions": of_space(action_space, ("actions",), 0),
                "infos": {},
                "extras": {},
            }
            for name, kinds in STEP_KINDS.items():
                leaf = found[places[name,]]
                if leaf.more or leaf.shape not in ((), (1,)) or leaf.dtype.kind not in kinds:
                    return None
                columns[name] = places[name,]
                used.add(places[name,])
        except LookupError:
            return None
        for place in sorted(set(range(len(found))) - used, key=lambda place: _names(found[place])):
            if not _insert(columns, found[place], place):
                return None
        return cls(columns, found)

    def fields(self, index: int, leaves: list[Array], seed: int | None) -> Fields:
        """Return the fields of the episode with these leaves."""
        if self.pick is None:
            columns = {name: _built(self._columns[name], leaves) for name in EPISODE_COLUMNS}
            return {"id": index, **columns, "seed": seed}
        observations, actions, rewards, terminations, truncations = self.pick(leaves)
        return {
            "id": index,
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "infos": {},
            "seed": seed,
            "extras": {},
        }


def _names(leaf: Leaf) -> list[str]:
    """Return a sort key that orders leaves like the groups of a file."""
    return "/".join(map(str, leaf.path)).split("/")


def _insert(columns: dict[str, Any], leaf: Leaf, place: int) -> bool:
    """Add a leaf of infos or extras; return False if it cannot be one."""
    name, *path = leaf.path
    if name not in ("infos", "extras") or not path or not all(type(key) is str for key in path):
        return False
    if name == "infos" and leaf.more != 1:
        return False
    if name == "extras" and any("/" in str(key) for key in path):
        return False  # in the file, such a key is a path of groups
    branch = columns[name]
    for key in path[:-1]:
        branch = branch.setdefault(key, {})
        if not isinstance(branch, dict):
            return False
    if path[-1] in branch:
        return False
    branch[path[-1]] = place
    return True


def _built(tree: Any, leaves: list[Array]) -> Any:
    if isinstance(tree, int):
        return leaves[tree]
    if isinstance(tree, dict):
        return {key: _built(part, leaves) for key, part in tree.items()}
    return tuple(_built(part, leaves) for part in tree)


#: plans by the identity of their leaves, which are kept alive for that
Plans = dict[int, tuple[tuple[Leaf, ...], Plan | None]]


def signature(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> str:
    """Return a text that distinguishes spaces by the structure and shapes of their episodes."""

    def text(space: gym.Space[Any]) -> str:
        if isinstance(space, spaces.Dict):
            return "{" + ",".join(f"{key!r}:{text(part)}" for key, part in space.items()) + "}"
        if isinstance(space, spaces.Tuple):
            return "(" + ",".join(map(text, space.spaces)) + ")"
        return f"{type(space).__name__}{space.shape}"

    return f"{text(observation_space)} {text(action_space)}"
