"""Read what a checkpoint says about itself in plain JSON, beside the pickles, which stay unread.

Nothing here is proof, because anyone may have written the file. The claims help messages to say
what to change, and they catch honest mistakes that the shapes of the weights do not show.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from minari_pipe.core.json_object import json_object
from minari_pipe.errors import ConfigError
from minari_pipe.policies.algorithms import ACTIVATIONS, network_observation_space
from minari_pipe.policies.archive import read_entry

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy

_MAX_DATA_BYTES = 4 << 20
_MAX_TEXT = 10_000


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the untrusted claims that a checkpoint makes about itself in plain JSON.

    Returns:
        Attributes of the model by name; for a pickled one, a mapping of the texts beside the
        pickle. Empty if there is no such entry.
    """
    try:
        return json_object(read_entry(path, "data", limit=_MAX_DATA_BYTES))
    except (ConfigError, ValueError):
        return {}


def other_spaces(
    recorded: Mapping[str, Any],
    observation_space: gym.Space,
    action_space: gym.Space,
    *,
    weights_fit: bool,
) -> str | None:
    """Return how the recorded spaces differ from the environment's, or ``None``.

    If the weights fit, the bounds of observations do not matter. The bounds of actions do, because
    actions are scaled or clipped to them.
    """
    spaces = {"action": action_space}
    if not weights_fit:
        spaces = {"observation": network_observation_space(observation_space), **spaces}
    differing = []
    for name, space in spaces.items():
        stored, has = _recorded_words(recorded, f"{name}_space"), _words(space)
        if stored not in (None, has):
            differing.append(f"{name} space {_short(stored)}, the environment has {_short(has)}")
    return "; ".join(differing) or None


def _recorded_words(recorded: Mapping[str, Any], key: str) -> str | None:
    """Return a recorded space in the notation of :func:`_words`, or ``None``."""
    item = recorded.get(key)
    if not isinstance(item, dict):
        return None
    kind = re.search(r"(\w+)'>$", str(item.get(":type:")))
    return _space_words(kind[1], item) if kind else None


def _words(space: gym.Space) -> str:
    return _space_words(type(space).__name__, texts(vars(space))) or str(space)


def _space_words(kind: str, item: Mapping[str, Any]) -> str | None:
    attributes = {
        "Box": ("low", "high", "_shape", "dtype"),
        "Discrete": ("n",),
        "MultiDiscrete": ("nvec",),
        "MultiBinary": ("n",),
        "Dict": ("spaces",),
    }.get(kind, ("",))
    if any(name not in item for name in attributes):
        return None
    return f"{kind}({', '.join(' '.join(str(item[name]).split()) for name in attributes)})"


def _short(text: str | None) -> str:
    return text if text is not None and len(text) <= 200 else f"{str(text)[:200]}..."


def plain_settings(
    recorded: Mapping[str, Any], shapes: Collection[tuple[int, ...]]
) -> dict[str, Any]:
    """Return the ``policy_kwargs`` in the file that are harmless if they are false.

    These are flags and floats, a known activation function, and layer sizes that all occur in the
    weights, so that no file makes a network larger than itself.

    Args:
        recorded: result of :func:`describe`.
        shapes: shapes of the weights.
    """
    stored = recorded.get("policy_kwargs")
    if not isinstance(stored, dict):
        return {}
    found: dict[str, Any] = {}
    for name, text in stored.items():
        value = _parsed(text)
        if name == "activation_fn":
            if (value := activation(text)) in ACTIVATIONS:
                found[name] = value
        elif (name == "net_arch" and _has_layers(value, shapes)) or isinstance(value, bool | float):
            found[name] = value
    if recorded.get("use_sde") is True:  # the algorithm passes it to its policy
        found["use_sde"] = True
    return found


def _has_layers(net_arch: Any, shapes: Collection[tuple[int, ...]]) -> bool:
    networks = list(net_arch.values()) if isinstance(net_arch, dict) else [net_arch]
    if not all(
        isinstance(sizes, list) and all(type(size) is int for size in sizes) for sizes in networks
    ):
        return False
    weights = Counter(shape for shape in shapes if len(shape) == 2)
    named = Counter((out, size) for sizes in networks for size, out in itertools.pairwise(sizes))
    outputs = {shape[0] for shape in weights}
    return named <= weights and all(sizes[0] in outputs for sizes in networks if sizes)


def kwargs_hint(recorded: Mapping[str, Any]) -> str:
    """Return the end of a message, with the ``policy_kwargs`` that the file names, if any."""
    stored = recorded.get("policy_kwargs")
    if not isinstance(stored, dict):
        return ""
    plain = {k: v for k, v in stored.items() if not k.startswith(":")}
    if recorded.get("use_sde") is True:  # the algorithm passes it to its policy
        plain["use_sde"] = True
    if "activation_fn" in plain:
        plain["activation_fn"] = activation(plain["activation_fn"])
    return f"; the file says policy_kwargs {_short(str(plain))}"


def other_setting(
    recorded: Mapping[str, Any], policy: BasePolicy, used: Mapping[str, Any]
) -> str | None:
    """Return how a setting of the training differs from the config's, or ``None``.

    Args:
        recorded: result of :func:`describe`.
        policy: the policy that was built from the config.
        used: the ``policy_kwargs`` that it was built from, with classes by name.
    """
    stored = recorded.get("policy_kwargs")
    if not isinstance(stored, dict):
        return None
    parameters = inspect.signature(type(policy).__init__).parameters
    for name in sorted(_unseen(policy) & parameters.keys()):
        default = parameters[name].default
        theirs, ours = (_comparable(name, d.get(name, default)) for d in (stored, used))
        if theirs != ours:
            return (
                f"the file says it was trained with {name} {theirs!r}, the config implies "
                f"{ours!r}; set policy_kwargs.{name}"
            )
    return None


def _unseen(policy: BasePolicy) -> set[str]:
    """Return the settings that affect the actions but not the shapes of the weights."""
    from stable_baselines3.common.preprocessing import is_image_space

    unseen = {"activation_fn", "squash_output"}
    space = policy.observation_space
    if any(map(is_image_space, getattr(space, "spaces", {"": space}).values())):
        unseen.add("normalize_images")
    if getattr(getattr(policy, "actor", policy), "use_sde", False):
        unseen |= {"clip_mean", "use_expln"}
    return unseen


def _comparable(name: str, value: Any) -> Any:
    if name == "activation_fn":
        return activation(value)
    value = _parsed(value)
    return value if isinstance(value, int | float) else str(value)  # False is 0, 2 is 2.0


def _parsed(value: Any) -> Any:
    """Parse a value that SB3 writes as text because JSON cannot hold it, e.g. a NumPy number."""
    if isinstance(value, str) and len(value) <= _MAX_TEXT:
        try:
            return ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            pass
    return value


def activation(cls: Any) -> str:
    """Return ``relu`` for ``<class 'torch.nn.modules.activation.ReLU'>`` or its text."""
    name = str(cls).rstrip("'>").rpartition(".")[2]
    return next((known for known, value in ACTIVATIONS.items() if value == name), name)


def texts(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts that SB3 puts beside a pickle, except those with memory addresses."""
    plain: dict[str, Any] = {}
    for key, value in items.items():
        if isinstance(value, tuple):
            plain[key] = list(value)
        else:
            plain[key] = value if isinstance(value, int | float | str | list) else str(value)
    return {key: text for key, text in plain.items() if " at 0x" not in str(text)}
