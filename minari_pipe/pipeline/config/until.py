"""Defines ``collect.until``: which episodes match, and how many matches end a collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional  # OmegaConf reads the annotations and wants Optional

from minari_pipe.errors import ConfigError


@dataclass(frozen=True)
class Until:
    """Which episodes match (all given conditions hold), and how many matches are wanted."""

    n_episodes: Optional[int] = None
    """Collect until this many episodes match."""
    success: Optional[bool] = None
    """Whether the environment must report success (``success`` or ``is_success`` in its info)."""
    min_return: Optional[float] = None
    max_return: Optional[float] = None

    def __bool__(self) -> bool:
        return any(v is not None for v in (self.success, self.min_return, self.max_return))

    def matches(self, episode_return: float, success: bool | None) -> bool:
        """Return whether an episode matches.

        Raises:
            ConfigError: ``success`` is a condition, and the environment never reports it.
        """
        if self.success is not None:
            if success is None:
                raise ConfigError(
                    "collect.until.success needs an environment whose info has 'success' or "
                    "'is_success', or the key that env.success_key names; this environment's info "
                    "does not. Set env.success_key, or use collect.until.min_return"
                )
            if success != self.success:
                return False
        low, high = self.min_return, self.max_return
        return (low is None or episode_return >= low) and (high is None or episode_return <= high)
