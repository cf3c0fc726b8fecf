"""Describe how a replayed demonstration tracks its recorded positions.

This module does without NumPy, as every start of a run checks its config.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from minari_pipe.errors import ConfigError, did_you_mean

_EXAMPLE = "{key: observation, gain: 6.25, limit: 0.999}"


@dataclass(frozen=True)
class Tracking:
    """Actions in proportion to the distance between a recorded position and the observed one.

    The action is ``gain * (recorded - observed)``, each entry clipped to ``[-limit, limit]``, where
    ``recorded`` is the recorded action and ``observed`` the first entries of the observation.
    """

    gain: float
    """Action per unit of distance."""
    limit: float = math.inf
    """Largest absolute value of an entry; the bounds of the action space apply as well."""
    key: str | None = None
    """Key of the observation's part, in a Dict space."""

    @classmethod
    def of(cls, values: Any, where: str) -> Tracking:
        """Return the tracking that the section ``where`` of a config describes.

        Raises:
            ConfigError: a key or a value is wrong; says what is expected.

        Example:
            >>> Tracking.of({"gain": 6.25}, "policy.tracking").limit
            inf
            >>> Tracking.of({"gain": 0}, "policy.tracking")
            Traceback (most recent call last):
            ...
            minari_pipe.errors.ConfigError: policy.tracking.gain is 0; expected a finite number \
above 0
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} is {values!r:.80}; expected such as {_EXAMPLE}")
        known = [each.name for each in fields(cls)]
        for key in values:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise ConfigError(f"no key {where}.{key}.{hint} Known: {', '.join(known)}")
        for key, value in {"gain": None, **values}.items():
            if key != "key" and not _is_positive(value):
                raise ConfigError(
                    f"{where}.{key} is {value!r:.80}; expected a finite number above 0"
                )
        if not isinstance(values.get("key"), str | None):
            raise ConfigError(f"{where}.key is {values['key']!r:.80}; expected a text")
        return cls(**values)


def _is_positive(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and 0 < value <= sys.float_info.max
