"""Describe the noise that a config adds to the actions of a policy.

:mod:`noisy` adds it. This module does without NumPy, as every start of a run checks its config.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from minari_pipe.errors import ConfigError, did_you_mean

#: What ``scale`` is, by kind.
KINDS = {
    "gaussian": "the standard deviation, in units of the action",
    "uniform": "the largest absolute value, in units of the action",
    "ornstein_uhlenbeck": "sigma of the process, in units of the action",
    "epsilon": "the share of random actions, from 0 to 1",
}
_EXAMPLES = {"epsilon": 0.05}


@dataclass(frozen=True)
class Noise:
    """Noise on the actions of a policy, drawn from the generator of each episode."""

    kind: str
    """A key of :data:`KINDS`."""
    scale: Any
    """One number, or a list with one for each dimension of the action; ``epsilon`` takes one."""
    clip: bool = True
    """Whether to clip the noisy action to the bounds of the action space, if it has any."""
    theta: float = 0.15
    """``ornstein_uhlenbeck``: how fast the noise returns to zero, per unit of time."""
    dt: float = 0.01
    """``ornstein_uhlenbeck``: time of one step; this default and theta's are those of SB3."""
    keep_clean_action: bool = False
    """Whether to record the action without the noise, as ``infos/clean_action``; as in all infos,
    row 0 is that of the reset, which has none."""

    @property
    def is_added(self) -> bool:
        """Whether noise is added to the action; ``epsilon`` replaces the action."""
        return self.kind != "epsilon"

    @classmethod
    def of(cls, values: Any, where: str) -> Noise:
        """Return the noise that the section ``where`` of a config describes.

        Raises:
            ConfigError: a key or a value is wrong; says what is expected.

        Example:
            >>> Noise.of({"kind": "gaussian", "scale": 0.5}, "policy.noise").clip
            True
            >>> Noise.of({"kind": "gausian", "scale": 0.5}, "policy.noise")
            Traceback (most recent call last):
            ...
            minari_pipe.errors.ConfigError: policy.noise.kind is 'gausian'. Did you mean \
'gaussian'? Known: gaussian, uniform, ornstein_uhlenbeck, epsilon
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{where} is {values!r:.80}; expected such as {{kind: gaussian, scale: 0.1}}"
            )
        known = [each.name for each in fields(cls)]
        for key in values:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise ConfigError(f"no key {where}.{key}.{hint} Known: {', '.join(known)}")
        kind = values.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            hint = did_you_mean(str(kind), list(KINDS))
            raise ConfigError(f"{where}.kind is {kind!r}.{hint} Known: {', '.join(KINDS)}")
        found = cls(**{"scale": None, **values})
        found._check(where)
        return found

    def _check(self, where: str) -> None:
        several = isinstance(self.scale, list | tuple) and self.is_added
        highest = math.inf if self.is_added else 1.0
        scales = list(self.scale) if several else [self.scale]
        if not scales or not all(_is_number(scale, highest) for scale in scales):
            each = ", or a list with one for each dimension" if self.is_added else ""
            example = _EXAMPLES.get(self.kind, 0.1)
            raise ConfigError(
                f"{where}.scale is {self.scale!r:.80}; expected {KINDS[self.kind]}, such as "
                f"{example}{each}"
            )
        for name, default in (("theta", Noise.theta), ("dt", Noise.dt)):
            value = getattr(self, name)
            if not _is_number(value) or value == 0:
                raise ConfigError(f"{where}.{name} is {value!r:.80}; expected a number above 0")
            if value != default and self.kind != "ornstein_uhlenbeck":
                raise ConfigError(f"{where}.{name} is for kind: ornstein_uhlenbeck only")
        if self.theta * self.dt >= 2:
            raise ConfigError(
                f"{where}.theta times dt is {self.theta * self.dt:g}; from 2 on the noise grows "
                "without limit"
            )
        for name in ("clip", "keep_clean_action"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{where}.{name} is {getattr(self, name)!r:.80}; expected true or false"
                )
        if not self.clip and not self.is_added:
            raise ConfigError(f"{where}.clip is not for kind: epsilon, whose actions are samples")


def _is_number(value: Any, highest: float = math.inf) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and 0 <= value <= min(highest, sys.float_info.max)
