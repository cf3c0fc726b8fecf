"""Define the Stable-Baselines3 algorithms that a config may name, and build their policies.

A config holds names and plain values only; the tables here map the names to classes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.errors import ConfigError, MissingDependencyError, did_you_mean
from minari_pipe.policies import BC

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy


@dataclass(frozen=True)
class Algorithm:
    """Where an algorithm is defined, and what its policies take and return."""

    target: str
    """``module:Class``."""
    head: str
    """Output of the acting network: ``distribution`` (parameters of one that depends on the action
    space), ``squashed`` (mean and log std before tanh), ``action`` (already in [-1, 1]) or
    ``values`` (one for each discrete action)."""
    actions: tuple[str, ...]
    """Names of the supported action spaces."""
    policy_defaults: Mapping[str, Any] = field(default_factory=dict)
    """``policy_kwargs`` for which the algorithm overrides the defaults of its policy class."""
    masked: bool = False
    """Whether the environment restricts the allowed actions at every step."""
    recurrent: bool = False
    """Whether the policy carries the state of an LSTM through an episode."""

    @property
    def samples(self) -> bool:
        """Whether its policies have a distribution to sample actions from."""
        return self.head in ("distribution", "squashed")

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions whose versions affect the policies."""
        contrib = ("sb3-contrib",) if self.target.startswith("sb3_contrib.") else ()
        return (*contrib, "stable-baselines3", "torch")


_ANY_ACTION = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
_COUNTED_ACTION = ("Discrete", "MultiDiscrete", "MultiBinary")
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("stable_baselines3.ppo.ppo:PPO", "distribution", _ANY_ACTION),
    "a2c": Algorithm("stable_baselines3.a2c.a2c:A2C", "distribution", _ANY_ACTION),
    "sac": Algorithm("stable_baselines3.sac.sac:SAC", "squashed", ("Box",)),
    "td3": Algorithm("stable_baselines3.td3.td3:TD3", "action", ("Box",)),
    "ddpg": Algorithm("stable_baselines3.ddpg.ddpg:DDPG", "action", ("Box",), {"n_critics": 1}),
    "dqn": Algorithm("stable_baselines3.dqn.dqn:DQN", "values", ("Discrete",)),
    "maskable_ppo": Algorithm(
        "sb3_contrib.ppo_mask.ppo_mask:MaskablePPO", "distribution", _COUNTED_ACTION, masked=True
    ),
    "recurrent_ppo": Algorithm(
        "sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO",
        "distribution",
        _ANY_ACTION,
        recurrent=True,
    ),
    "tqc": Algorithm("sb3_contrib.tqc.tqc:TQC", "squashed", ("Box",)),
    "bc": Algorithm(f"{BC}:BC", "distribution", _ANY_ACTION),
}

#: Other algorithms of Stable-Baselines3 and sb3-contrib, which are rejected by name.
_NOT_SUPPORTED = ("ars", "crossq", "her", "qrdqn", "trpo")

#: Names for ``policy_kwargs.activation_fn``, with their classes in ``torch.nn``.
ACTIVATIONS = {
    "tanh": "Tanh",
    "relu": "ReLU",
    "elu": "ELU",
    "leaky_relu": "LeakyReLU",
}

#: Errors that Stable-Baselines3 and PyTorch raise for unusable settings.
UNBUILDABLE = (
    AssertionError,
    AttributeError,
    KeyError,
    MemoryError,
    RuntimeError,  # from PyTorch if memory runs out; includes NotImplementedError
    TypeError,
    ValueError,
)

#: Arguments that this package passes itself, or whose values are classes.
_NOT_PLAIN = {
    "self",
    "observation_space",
    "action_space",
    "lr_schedule",
    "features_extractor_class",
    "optimizer_class",
}


def find_algorithm(name: str) -> Algorithm:
    """Return the entry of ``ALGORITHMS`` called ``name``.

    Raises:
        ConfigError: there is none; the message suggests the nearest name.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    known = f"Known: {', '.join(ALGORITHMS)}"
    given = _bare(name)
    if given in _NOT_SUPPORTED:
        raise ConfigError(
            f"algorithm {name!r} is not supported; to use it anyway, load it in a controller of "
            f"policy=scripted. {known}"
        )
    names = {_bare(a.target.partition(":")[2]): key for key, a in ALGORITHMS.items()}
    hint = f" Did you mean {names[given]!r}?" if given in names else did_you_mean(name, ALGORITHMS)
    raise ConfigError(f"unknown algorithm {name!r}.{hint} {known}")


def _bare(name: object) -> str:
    """Return ``maskableppo`` for ``MaskablePPO``, ``maskable-ppo`` or ``maskable_ppo``."""
    return str(name).lower().replace("_", "").replace("-", "")


def load_algorithm(name: str) -> type[BaseAlgorithm]:
    """Return the Stable-Baselines3 class of the algorithm called ``name``.

    Raises:
        ConfigError: there is no such algorithm.
        MissingDependencyError: its package is not installed.
    """
    module, _, attribute = find_algorithm(name).target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "sb3_contrib":
            raise
        raise missing_package(name, "sb3-contrib") from exc


def missing_package(algorithm: str, distribution: str) -> MissingDependencyError:
    """Return the error for an algorithm whose package is not installed."""
    wanted = "minari_pipe[contrib]" if distribution == "sb3-contrib" else distribution
    return MissingDependencyError(
        f"algorithm {algorithm!r} needs {distribution}; pip install '{wanted}'"
    )


def find_policy_class(algorithm: str, policy_class: str) -> type[BasePolicy]:
    """Return the class that ``algorithm`` calls ``policy_class``, such as ``MlpPolicy``.

    RecurrentPPO's ``MlpLstmPolicy`` and its siblings can also be named without ``Lstm``.

    Raises:
        ConfigError: the algorithm has no such class.
        MissingDependencyError: its package is not installed.
    """
    aliases = dict(load_algorithm(algorithm).policy_aliases)
    if find_algorithm(algorithm).recurrent:
        aliases |= {name.replace("Lstm", ""): found for name, found in aliases.items()}
    if policy_class not in aliases:
        raise ConfigError(
            f"unknown policy_class {policy_class!r} for algorithm {algorithm!r}"
            f".{did_you_mean(policy_class, aliases)} Known: {', '.join(aliases)}"
        )
    return aliases[policy_class]


def resolve_policy_kwargs(
    algorithm: str, policy_class: str, policy_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the ``policy_kwargs`` of a config for the algorithm, names replaced by classes.

    Raises:
        ConfigError: an unknown key or activation function, a value that is not plain, or a layer
            size that is not a positive integer.
    """
    signature = inspect.signature(find_policy_class(algorithm, policy_class).__init__)
    known = plain_settings(algorithm, policy_class)
    if not isinstance(policy_kwargs or {}, Mapping):
        raise ConfigError(
            f"policy_kwargs is {policy_kwargs!r}; expected a mapping such as {{net_arch: [64, 64]}}"
        )
    resolved = dict(find_algorithm(algorithm).policy_defaults)
    for key, value in (policy_kwargs or {}).items():
        if key not in known:
            hint = "" if key in signature.parameters else did_you_mean(key, known)
            raise ConfigError(
                f"policy_kwargs.{key} cannot be set for {algorithm} {policy_class}"
                f".{hint} Known: {', '.join(sorted(known))}"
            )
        resolved[key] = _policy_value(algorithm, key, value)
    return resolved


def plain_settings(algorithm: str, policy_class: str) -> set[str]:
    """Return the names of ``policy_kwargs`` that a config can set."""
    signature = inspect.signature(find_policy_class(algorithm, policy_class).__init__)
    return {p for p in signature.parameters if p not in _NOT_PLAIN}


def trained_policy_kwargs(
    policy_kwargs: Mapping[str, Any], hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the ``policy_kwargs`` of a policy trained with these ``hyperparameters``.

    ``use_sde`` is a setting of the algorithm, which passes it to its policy.
    """
    if "use_sde" not in hyperparameters:
        return dict(policy_kwargs)
    return {**policy_kwargs, "use_sde": hyperparameters["use_sde"]}


def _policy_value(algorithm: str, key: str, value: Any) -> Any:
    if key == "activation_fn":
        from torch import nn

        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ConfigError(
                f"policy_kwargs.activation_fn: unknown function {value!r}."
                f"{did_you_mean(value, ACTIVATIONS)} Known: {', '.join(ACTIVATIONS)}"
            )
        return getattr(nn, ACTIVATIONS[value])
    require_plain(f"policy_kwargs.{key}", value)
    if key == "net_arch":
        _check_layers(algorithm, value)
    if key == "lstm_kwargs" and value is not None:
        _check_lstm(value)
    return value


def _check_lstm(value: Any) -> None:
    # Other arguments make the LSTM read rows as steps, or return a size that SB3 does not expect.
    if not isinstance(value, Mapping) or not value.keys() <= {"bias", "dropout"}:
        raise ConfigError(
            f"policy_kwargs.lstm_kwargs is {value!r}; expected a mapping with only bias and dropout"
        )


def _check_layers(algorithm: str, net_arch: Any) -> None:
    networks = {"distribution": ("pi", "vf"), "values": ()}
    allowed = networks.get(find_algorithm(algorithm).head, ("pi", "qf"))
    by_network = net_arch if isinstance(net_arch, Mapping) else {None: net_arch}
    if not all(
        (name is None or name in allowed)
        and isinstance(sizes, list | tuple)
        and all(type(size) is int and size > 0 for size in sizes)
        for name, sizes in by_network.items()
    ):
        each = f", or one such list each for {' and '.join(allowed)}" if allowed else ""
        raise ConfigError(
            f"policy_kwargs.net_arch is {net_arch!r}; {algorithm} takes a list of layer sizes "
            f"such as [64, 64]{each}"
        )


def require_plain(name: str, value: Any) -> None:
    """Reject a value that is not made of numbers, strings, lists and mappings.

    Raises:
        ConfigError: the value is not plain; the message names the setting and the type.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if str(key).startswith("_") and str(key).endswith("_"):
                raise ConfigError(
                    f"{name}.{key}: only numbers, strings, lists and mappings are allowed here"
                )
            require_plain(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            require_plain(name, item)
    elif not isinstance(value, bool | int | float | str | None):
        raise ConfigError(
            f"{name} is a {type(value).__name__}; only numbers, strings, lists and mappings are "
            f"allowed here"
        )


def network_observation_space(space: gym.Space) -> gym.Space:
    """Return the space that the network sees, with the channels of images first.

    Raises:
        ConfigError: Stable-Baselines3 has no network for such observations.
    """
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
    from stable_baselines3.common.vec_env import VecTransposeImage

    if isinstance(space, spaces.Dict):
        return spaces.Dict([(k, network_observation_space(s)) for k, s in space.spaces.items()])
    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise ConfigError(
            f"observation space {space}: Stable-Baselines3 policies take Box, Discrete, "
            f"MultiDiscrete, MultiBinary, or a Dict of these"
        )
    if isinstance(space, spaces.Box) and space.shape == ():
        raise ConfigError(
            f"observation space {space}: Stable-Baselines3 needs a dimension, such as shape (1,)"
        )
    _check_start(f"observation space {space}", space)
    if not isinstance(space, spaces.Box) or not is_image_space(space):
        return space
    return (
        space if is_image_space_channels_first(space) else VecTransposeImage.transpose_space(space)
    )


def _check_start(what: str, space: gym.Space) -> None:
    """Reject numbers that do not start at 0, where those of the network start."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        raise ConfigError(f"{what}: Stable-Baselines3 needs start=0")


def check_spaces(
    algorithm: str, policy_class: str, observation_space: gym.Space, action_space: gym.Space
) -> None:
    """Reject spaces that the algorithm or the policy class does not support.

    Raises:
        ConfigError: a space does not fit; the message names it and what would fit.
    """
    network_observation_space(observation_space)
    supported = find_algorithm(algorithm).actions
    kind = type(action_space).__name__
    if kind not in supported:
        raise ConfigError(
            f"algorithm {algorithm!r} cannot choose actions of {action_space}; it supports "
            f"{', '.join(supported)}"
        )
    _check_start(f"action space {action_space}", action_space)
    if isinstance(action_space, spaces.Box):
        if not action_space.is_bounded():
            raise ConfigError(f"action space {action_space}: Stable-Baselines3 needs finite bounds")
        if action_space.dtype.kind != "f":
            raise ConfigError(
                f"action space {action_space}: Stable-Baselines3 needs a Box of floats; use "
                f"MultiDiscrete for whole numbers"
            )
    if any(isinstance(s, spaces.Dict) for s in getattr(observation_space, "spaces", {}).values()):
        raise ConfigError(f"observation space {observation_space}: nested Dict is not supported")
    if isinstance(observation_space, spaces.Dict) != policy_class.startswith("MultiInput"):
        lstm = "Lstm" if "Lstm" in policy_class else ""
        kind = "MultiInput" if isinstance(observation_space, spaces.Dict) else "Mlp"
        fit = f"{kind}{lstm}Policy"
        raise ConfigError(
            f"policy_class {policy_class} does not fit the observation space "
            f"{observation_space}; set policy_class: {fit}"
        )


def build_policy(
    algorithm: str,
    policy_class: str,
    policy_kwargs: Mapping[str, Any] | None,
    observation_space: gym.Space,
    action_space: gym.Space,
) -> BasePolicy:
    """Build the policy that ``algorithm`` would train on these spaces, with untrained weights.

    Args:
        algorithm: a name of ``ALGORITHMS``.
        policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
        policy_kwargs: plain values, ``activation_fn`` by name; ``None`` for SB3's defaults.
        observation_space: observation space of the environment.
        action_space: action space of the environment.

    Returns:
        The policy on the CPU in evaluation mode, without an optimizer. The state of PyTorch's
        global generator does not change.

    Raises:
        ConfigError: a name is unknown, a value has the wrong type, or the spaces do not fit.
    """
    import torch

    check_spaces(algorithm, policy_class, observation_space, action_space)
    kwargs = resolve_policy_kwargs(algorithm, policy_class, policy_kwargs)
    cls = find_policy_class(algorithm, policy_class)
    if "ortho_init" in inspect.signature(cls.__init__).parameters:
        kwargs.setdefault("ortho_init", False)  # slow, and the weights are replaced anyway
    # The policy needs no optimizer, and the first one imports PyTorch's compiler, which takes 2 s.
    kwargs["optimizer_class"] = lambda *_, **__: None
    seen = network_observation_space(observation_space)
    try:
        with torch.random.fork_rng(devices=[]):
            policy = cls(seen, action_space, lambda _: 0.0, **kwargs)
    except UNBUILDABLE as exc:
        raise ConfigError(
            f"{algorithm} {policy_class} cannot be built from policy_kwargs "
            f"{dict(policy_kwargs or {})} for {observation_space} and {action_space}: "
            f"{short_text(exc)}"
        ) from exc
    policy.set_training_mode(False)
    return policy


def short_text(exc: Exception) -> str:
    """Return the text of another package's error in one line of at most 300 characters."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return text if len(text) <= 300 else text[:297] + "..."
