"""Read demonstrations as DAPG published them: a pickled list with a dict for each episode.

::

    [ { "observations":    (T, ...) float64      row t was observed before action t
        "actions":         (T, ...) float64
        "rewards":         (T,)     float64
        "init_state_dict": {"qpos": ..., "qvel": ..., ...}     the simulator's state at row 0
        "terminated":      bool, optional },
      ... ]

Rajeswaran et al. 2018, https://github.com/aravindr93/hand_dapg. Other keys are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.demonstration_formats.base import (
    Array,
    Demonstration,
    DemonstrationFormat,
    StateKeys,
    check_demonstrations,
    quoted,
)
from minari_pipe.policies.demonstration_formats.plain_pickle import (
    PickledArray,
    PickledScalar,
    load,
    type_name,
)


def _matches(path: Path) -> bool:
    with open(path, "rb") as file:
        start = file.read(2)
    # From protocol 2 on, \x80 and the protocol start the stream; before, an (empty) list does.
    return (start[:1] == b"\x80" and start[1:2] <= b"\x05") or start[:1] in (b"(", b"]")


def _read(path: Path, state_keys: StateKeys) -> Sequence[Demonstration]:
    label = f"demonstration file {str(path)!r}"
    episodes = load(path, label)
    if not isinstance(episodes, list | tuple):
        raise InvalidEpisodeError(
            f"{label}: the pickle holds a {type_name(episodes)}, expected a list of dicts"
        )
    demonstrations = [
        _demonstration(episode, state_keys, f"{label}: demonstration {index}")
        for index, episode in enumerate(episodes)
    ]
    check_demonstrations(demonstrations, label)
    return demonstrations


def _demonstration(episode: Any, state_keys: StateKeys, where: str) -> Demonstration:
    if not isinstance(episode, dict):
        raise InvalidEpisodeError(f"{where} is a {type_name(episode)}, expected a dict")
    state = _entry(episode, "init_state_dict", where)
    if not isinstance(state, dict):
        raise InvalidEpisodeError(
            f"{where}: init_state_dict is a {type_name(state)}, expected a dict"
        )
    state_where = f"{where}: init_state_dict"
    return Demonstration(
        observations=_array(episode, "observations", where),
        actions=_array(episode, "actions", where),
        rewards=_array(episode, "rewards", where),
        terminal=_flag(episode.get("terminated", False), where),
        initial_state={
            key: _array(state, key, state_where)
            for key in (state if state_keys is None else state_keys)
        },
    )


def _entry(holder: dict[str, Any], key: str, where: str) -> Any:
    if key not in holder:
        raise InvalidEpisodeError(f"{where} has no {key!r}; it has: {quoted(sorted(holder))}")
    return holder[key]


def _array(holder: dict[str, Any], key: str, where: str) -> Array:
    value = _entry(holder, key, where)
    if not isinstance(value, PickledArray | PickledScalar):
        raise InvalidEpisodeError(
            f"{where}: {quoted([key])} is a {type_name(value)}, expected a NumPy array"
        )
    return value.build(f"{where}: {quoted([key])}")


def _flag(value: Any, where: str) -> bool:
    if isinstance(value, PickledScalar):
        value = value.build(f"{where}: 'terminated'").item()
    if not isinstance(value, bool | int):
        raise InvalidEpisodeError(f"{where}: 'terminated' is a {type_name(value)}, expected a bool")
    return bool(value)


FORMAT = DemonstrationFormat("dapg", "DAPG pickle", _matches, _read)
