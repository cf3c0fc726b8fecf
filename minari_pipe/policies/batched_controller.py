"""Call a controller that takes the observations of all environments at once.

Like a network, it sees batches of one size, the number of environments padded to a multiple of 8,
so that its results cannot depend on how many episodes are still running.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.errors import ConfigError
from minari_pipe.policies.batches import fill, padded, zeros

#: A controller with a parameter of this name takes a batch.
PARAMETER = "observations"


class BatchedController:
    """A controller of batches: a function, or a class with a new instance for every block."""

    def __init__(
        self,
        controller: Callable[..., Any],
        name: str,
        kwargs: Mapping[str, Any],
        *,
        is_class: bool,
        supplied: Sequence[str],
    ) -> None:
        """Store the controller and the result of its signature check.

        Args:
            controller: the function or class.
            name: its name in messages.
            kwargs: its own parameters.
            is_class: whether it is a class.
            supplied: the parameters among ``rngs``, ``infos`` and ``envs`` (class: ``envs``) that
                it takes.
        """
        self._controller, self._name, self._kwargs = controller, name, kwargs
        self._is_class, self._supplied = is_class, supplied
        takes = call_signature(controller).parameters if is_class else supplied
        offered = ("rngs", "infos") if is_class else ("rngs", "infos", "envs")
        self._call_takes = tuple(name for name in offered if name in takes)

    @property
    def takes_infos(self) -> bool:
        """Whether it takes the infos of the rows."""
        return "infos" in self._call_takes

    def bind(self, envs: Sequence[gym.Env]) -> None:
        """Receive the environments of a block, and create the instance of a class for them."""
        self._n_rows = padded(len(envs))
        self._space = envs[0].observation_space
        self._envs = list(envs)
        # Draws in rows without an episode are discarded.
        self._rngs = [np.random.default_rng(0) for _ in range(self._n_rows)]
        zeros(self._space, self._n_rows)  # raises early if observations cannot be stacked
        self._reset: Callable[..., Any] | None = None
        if not self._is_class:
            self._call, self._call_kwargs = self._controller, dict(self._kwargs)
            return
        extras = {"envs": self._envs} if "envs" in self._supplied else {}
        self._call = self._controller(**self._kwargs, **extras)
        self._call_kwargs = {}
        self._reset = getattr(self._call, "reset", None)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """Start an episode in ``row``."""
        self._rngs[row] = rng
        if self._reset is not None:
            offered = {"row": row, "rng": rng}
            takes = inspect.signature(self._reset).parameters
            self._reset(**{name: offered[name] for name in offered if name in takes})

    def __call__(
        self, observations: Sequence[Any], rows: Sequence[int], infos: Sequence[dict[str, Any]]
    ) -> list[Any]:
        """Return the actions of ``rows``, given their observations and the infos of all rows.

        Raises:
            ConfigError: the controller did not return one action for each row.
        """
        batch = zeros(self._space, self._n_rows)
        fill(batch, observations, rows)
        offered: dict[str, Any] = {"rngs": list(self._rngs), "envs": self._envs}
        if self.takes_infos:
            offered["infos"] = [infos[r] if r in rows else {} for r in range(self._n_rows)]
        extras = {name: offered[name] for name in self._call_takes}
        actions = self._split(self._call(**{PARAMETER: batch}, **self._call_kwargs, **extras))
        return [actions[row] for row in rows]

    def _split(self, result: Any) -> list[Any]:
        """Return one action for each row of the batch."""
        if isinstance(result, Mapping):  # a Dict space, one array for each key
            parts = {key: self._split(part) for key, part in result.items()}
            return [{key: part[row] for key, part in parts.items()} for row in range(self._n_rows)]
        result = as_array(result)
        if not isinstance(result, np.ndarray | list | tuple) or getattr(result, "ndim", 1) == 0:
            raise ConfigError(
                f"controller {self._name!r} takes a batch but returned a "
                f"{type(result).__name__}; expected {self._n_rows} actions"
            )
        if len(result) != self._n_rows:
            raise ConfigError(
                f"controller {self._name!r} returned {len(result)} actions for a batch of "
                f"{self._n_rows} rows (padded to a multiple of 8; rows without an episode hold "
                f"zeros and need an action too)"
            )
        return list(result)


def as_array(value: Any) -> Any:
    """Convert a PyTorch tensor to an array; return anything else unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def call_signature(controller: Any) -> inspect.Signature:
    """Return the signature of calling a controller, that of ``forward`` for a PyTorch module.

    Args:
        controller: a function, an instance, or a class, whose instances are then called.
    """
    call = getattr(controller, "forward", None)
    if call is None:
        call = controller.__call__ if inspect.isclass(controller) else controller
    return inspect.signature(call)
