"""Check the noise that a config sets for policies that have none of their own.

TD3, DDPG and DQN act deterministically; their exploration noise belonged to the training. To sample
them (``deterministic: false``), a config must set ``action_noise`` or ``exploration``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.policies.algorithms import ALGORITHMS, find_algorithm

_HEADS = {"action_noise": "action", "exploration": "values"}
_EXAMPLES = {
    "action_noise": "the standard deviation in units of actions scaled to [-1, 1], such as 0.1",
    "exploration": "the share of random actions, from 0 to 1, such as 0.05",
}


def check_exploration(
    algorithm: str,
    *,
    deterministic: bool,
    exploration: float | None = None,
    action_noise: float | Sequence[float] | None = None,
) -> None:
    """Reject settings that do not fit the algorithm, or sampling without one that it needs.

    Raises:
        ConfigError: a setting is wrong or missing; the message says what to do.

    Example:
        >>> check_exploration("dqn", deterministic=False, exploration=0.05)
        >>> check_exploration("dqn", deterministic=False)
        Traceback (most recent call last):
        ...
        minari_pipe.errors.ConfigError: deterministic=false: dqn has no distribution to sample \
from; set exploration: the share of random actions, from 0 to 1, such as 0.05
    """
    head = find_algorithm(algorithm).head
    needed = next((name for name, takes in _HEADS.items() if takes == head), None)
    settings = {"exploration": exploration, "action_noise": action_noise}
    for name, value in settings.items():
        if value is None:
            continue
        if name != needed:
            takers = ", ".join(k for k, a in ALGORITHMS.items() if a.head == _HEADS[name])
            instead = f"set {needed}" if needed else "deterministic=false samples its own noise"
            raise ConfigError(
                f"{name}={value!r} is not for {algorithm}, only for {takers}; {instead}"
            )
        _check_value(name, value)
        if deterministic:
            raise ConfigError(
                f"{name}={value!r} has no effect with deterministic=true; set deterministic: false"
            )
    if needed and not deterministic and settings[needed] is None:
        raise ConfigError(
            f"deterministic=false: {algorithm} has no distribution to sample from; set {needed}: "
            f"{_EXAMPLES[needed]}"
        )


def _check_value(name: str, value: Any) -> None:
    several = name == "action_noise" and isinstance(value, list | tuple)
    highest = 1.0 if name == "exploration" else math.inf
    numbers = list(value) if several else [value]
    if not numbers or not all(
        isinstance(n, int | float)
        and not isinstance(n, bool)
        and 0 <= n <= highest
        and n < math.inf
        for n in numbers
    ):
        each = ", or a list with one number for each dimension" if name == "action_noise" else ""
        raise ConfigError(f"{name} is {value!r}; expected {_EXAMPLES[name]}{each}")
