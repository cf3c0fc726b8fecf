"""Provide the scripted policy, whose actions come from a Python function or class."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import ConfigError, MinariPipeError, Stopped
from minari_pipe.policies.base import Policy, RowError, all_valid
from minari_pipe.policies.batched_controller import (
    PARAMETER,
    BatchedController,
    as_array,
    call_signature,
)
from minari_pipe.policies.batched_network import one_torch_thread

Controller = Callable[..., Any]


class ScriptedPolicy(Policy):
    """Calls a controller that the user wrote.

    A controller with a parameter ``observations`` receives those of all environments at once, any
    other receives one. With **one observation**, a controller is:

    - A **function** ``fn(observation, **kwargs)``. It also receives the episode's generator if it
      has a parameter ``rng``, the environment that it acts in if it has a parameter ``env``, and
      the info of the last reset or step if it has a parameter ``info``.
    - A **class**, called as ``cls(**kwargs)``, or ``cls(env=env, **kwargs)`` if it has a parameter
      ``env``; its instances are called with the observation, and with ``info`` if they take it.
      With a method ``reset()`` or ``reset(rng)`` there is one instance for each environment, reset
      at the start of every episode; without it, every episode gets a new instance, so that no
      state carries over, whose parameter ``rng`` is the episode's generator. Either comes after
      the reset of the environment, in which it can look up a goal. A static method
      ``reset_options(rng)`` returns the options of that reset.

    A **batch** is an array of shape ``(B, ...)``, or a dict or tuple of such arrays if the space is
    one. The controller returns ``B`` actions (an array, a PyTorch tensor, a list, or a dict of
    these for a Dict space). ``B`` is the number of environments padded to a multiple of 8, even for
    one; rows without an episode hold zeros, and their actions are discarded. A controller is:

    - A **function** ``fn(observations, **kwargs)``. If it has parameters ``rngs``, ``infos`` and
      ``envs``, it also receives the ``B`` generators of the rows' episodes, the ``B`` infos, which
      are empty in rows without an episode, and the environments.
    - A **class**, called once for each block as ``cls(**kwargs)`` or ``cls(envs=envs, **kwargs)``;
      its instance is called like the function, with ``rngs`` and ``infos`` if it takes them.
      ``reset(row)`` or ``reset(row, rng)`` is called at the start of every episode; a class without
      it must keep no state between calls. PyTorch modules are such classes; the parameters are
      those of ``forward``.

    A row's action must depend on that row alone. Results that are computed element by element or
    along a row then have the same bits in every row. A matrix product may round differently in
    another row (NumPy's did from 16 rows on, in float32). With such a controller the low bits of
    an episode also depend on ``n_envs`` and ``block_episodes``, but on nothing else.

    An action must be in the action space after a cast to its dtype, so the controller must clip.
    ``None`` in place of an action ends the episode, truncated.
    All randomness of a controller must come from ``rng``, and it may only look up facts (a map, a
    limit) in the environment, not step it. Otherwise the dataset cannot be reproduced.
    """

    def __init__(self, controller: Controller, kwargs: Mapping[str, Any] | None = None) -> None:
        """Check that the controller can be called.

        Args:
            controller: the function or class.
            kwargs: its own parameters.

        Raises:
            ConfigError: it is neither, or does not take ``kwargs``.
        """
        self._name = getattr(controller, "__qualname__", type(controller).__name__)
        self._kwargs = dict(kwargs or {})
        if not callable(controller):
            raise ConfigError(f"a controller must be a function or a class, got {controller!r}")
        self._is_class = inspect.isclass(controller)
        if not self._is_class and hasattr(controller, "reset"):
            # The environments of a block would share its state.
            raise ConfigError(
                f"controller {self._name!r} is an object with state; name its class instead, so "
                f"that every environment gets its own instance"
            )
        self._controller = controller
        self._batched: BatchedController | None = None
        if _takes(controller, PARAMETER):
            offered = {"envs"} if self._is_class else {"envs", "infos", "rngs"}
            supplied = _check_signature(
                controller, self._name, self._kwargs, offered, self._is_class, {PARAMETER: None}
            )
            self._batched = BatchedController(
                controller, self._name, self._kwargs, is_class=self._is_class, supplied=supplied
            )
        else:
            offered = {"env", "info", "rng"}
            if self._is_class:  # its instances may outlive the first episode's generator
                offered = {"env"} if hasattr(controller, "reset") else {"env", "rng"}
            self._supplied = _check_signature(
                controller, self._name, self._kwargs, offered, self._is_class
            )
            self._told = ("info",) if self._is_class and _takes(controller, "info") else ()
        self._envs: Sequence[gym.Env] = ()
        self._rngs: dict[int, np.random.Generator] = {}
        self._infos: list[dict[str, Any]] = []
        self._calls: list[Controller | None] = []
        self._starting: set[int] = set()
        """Rows whose controller has not seen the episode yet."""

    @property
    def takes_infos(self) -> bool:
        if self._batched is not None:
            return self._batched.takes_infos
        return "info" in (*self._supplied, *self._told)

    def see(self, row: int, info: dict[str, Any]) -> None:
        self._infos[row] = info

    def bind(self, envs: Sequence[gym.Env]) -> None:
        self._envs = envs
        self._infos = [{} for _ in envs]
        self._starting.clear()
        if self._batched is not None:
            self._batched.bind(envs)
            return
        self._calls = [None if self._is_class else self._controller] * len(envs)

    def start(self, row: int, episode: int, rng: np.random.Generator) -> dict[str, Any] | None:
        self._rngs[row] = rng
        if self._is_class or self._batched is not None:
            self._starting.add(row)
        choose = getattr(self._controller, "reset_options", None)
        if choose is None:
            return None
        options = choose(rng)
        if not isinstance(options, dict):
            raise ConfigError(
                f"controller {self._name!r}: reset_options() returned {options!r:.80}; expected "
                "the options of env.reset, a dict"
            )
        return options

    def act(self, observations: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        # A controller may run a network, whose low bits depend on the number of threads.
        threads = one_torch_thread() if "torch" in sys.modules else nullcontext()
        with threads:
            if self._batched is not None:
                for row in sorted(self._starting.intersection(rows)):
                    self._batched.start(row, self._rngs[row])
                self._starting.difference_update(rows)
                found = self._batched(observations, rows, self._infos)
            else:
                found = [self._one(o, row) for o, row in zip(observations, rows, strict=True)]
        return all_valid(
            [self._checked(action, row) for action, row in zip(found, rows, strict=True)]
        )

    def _begin(self, row: int) -> None:
        """Make or reset the instance of a row for its new episode."""
        call = self._calls[row]
        if call is None or not hasattr(call, "reset"):
            call = self._controller(**self._kwargs, **self._extras(row, self._supplied))
            if not callable(call):
                raise ConfigError(f"controller {self._name!r} has no __call__(observation)")
            self._calls[row] = call
        reset = getattr(call, "reset", None)
        if reset is not None:
            reset(**self._extras(row, {"rng"} & inspect.signature(reset).parameters.keys()))

    def _one(self, observation: Any, row: int) -> Any:
        try:
            if row in self._starting:
                self._begin(row)
                self._starting.discard(row)
            call = self._calls[row]
            assert call is not None, "start() comes before act()"
            if self._is_class:
                return call(observation, **self._extras(row, self._told))
            return call(observation, **self._kwargs, **self._extras(row, self._supplied))
        except RowError as error:
            return error
        except (MinariPipeError, Stopped, KeyboardInterrupt):
            raise
        except BaseException as exc:  # a planner may call sys.exit, and Rust code panics
            text = f"controller {self._name!r} raised {type(exc).__name__}: {exc}"
            found = RowError(row, text)
            found.__cause__ = exc
            return found

    def _checked(self, action: Any, row: int) -> Any:
        if action is None or isinstance(action, RowError):
            return action
        action = as_array(action)
        space = self._envs[row].action_space
        try:
            cast = np.asarray(action, space.dtype) if isinstance(space, spaces.Box) else action
            valid = space.contains(cast)
        except (TypeError, ValueError, OverflowError):  # no numbers, or too large for the dtype
            valid = False
        if not valid:
            return RowError(
                row,
                f"controller {self._name!r} returned {_shown(action)}, which is not in the action "
                f"space {space}; "
                + ("clip its actions" if isinstance(space, spaces.Box) else "return one of it"),
            )
        return cast

    def _extras(self, row: int, names: Collection[str]) -> dict[str, Any]:
        offered = {"env": self._envs[row], "info": self._infos[row], "rng": self._rngs[row]}
        return {name: offered[name] for name in names}


def _takes(controller: Controller, name: str) -> bool:
    try:
        return name in call_signature(controller).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def _check_signature(
    controller: Controller,
    name: str,
    kwargs: Mapping[str, Any],
    offered: set[str],
    is_class: bool,
    batch: Mapping[str, None] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return the names in ``offered`` that the controller takes; raise if it cannot be called."""
    try:
        signature = inspect.signature(controller) if is_class else call_signature(controller)
    except ValueError as error:
        raise ConfigError(
            f"controller {name!r} has no readable signature; wrap it in a Python function"
        ) from error
    supplied = tuple(sorted(offered & set(signature.parameters)))
    if clash := sorted(set(kwargs) & set(supplied)):
        raise ConfigError(
            f"controller {name!r}: {', '.join(clash)} is supplied by the policy; remove it from "
            "kwargs"
        )
    try:
        given = {**kwargs, **dict.fromkeys(supplied), **({} if is_class else batch)}
        signature.bind(*(() if is_class or batch else (None,)), **given)
    except TypeError as error:
        raise ConfigError(
            f"controller {name!r} cannot be called with {sorted(kwargs) or 'no parameters'} "
            f"({error}); its signature is {name}{signature}"
        ) from error
    return supplied


def _shown(action: Any) -> str:
    text = " ".join(repr(action).split())
    return text if len(text) <= 200 else text[:200] + "…"
