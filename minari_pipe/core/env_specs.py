"""Write the specs of environments as the JSON that datasets store, and read them again."""

from __future__ import annotations

import copy
import json
from types import NoneType
from typing import Any

from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.json_object import json_object
from minari_pipe.core.tree import MAX_DEPTH, is_deep
from minari_pipe.errors import ConfigError

# Keys that Gymnasium before 1.0 wrote into a spec and later releases refuse.
_OLD_SPEC_KEYS = ("apply_api_compatibility", "autoreset")
#: an attribute, which copies keep; equality and JSON leave it out
_RECORDED = "_minari_pipe_recorded"


def entry_point_name(entry_point: Any) -> str:
    """Return ``module:name`` of an entry point, which may be a class, a function or a string.

    Example:
        >>> import gymnasium as gym
        >>> entry_point_name(gym.Env)
        'gymnasium.core:Env'
    """
    if callable(entry_point):
        return f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', entry_point)}"
    return str(entry_point)


def environment_id(spec: Any) -> str | None:
    """Return the id in an ``EnvSpec`` JSON, or None if it has none.

    Example:
        >>> environment_id('{"id": "CartPole-v1"}'), environment_id("damaged"), environment_id(None)
        ('CartPole-v1', None, None)
    """
    try:
        found = json_object(spec).get("id")
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def spec_json(spec: EnvSpec) -> str:
    """Return a spec's JSON as Gymnasium writes it, with a class as entry point given by its name.

    Raises:
        ConfigError: the spec holds something that JSON cannot, or its entry point has no name.

    Example:
        >>> import gymnasium as gym
        >>> json.loads(spec_json(gym.spec("CartPole-v1")))["id"]
        'CartPole-v1'
    """
    name = entry_point_name(spec.entry_point)
    if "<" in name:  # <locals> or <lambda>
        raise ConfigError(
            f"environment {spec.id!r} is registered with {name!r}, which other processes cannot "
            f"import; register it with an entry point of the form 'module:Class'"
        )
    named = copy.copy(spec)
    named.entry_point = name
    if callable(named.vector_entry_point):
        named.vector_entry_point = None
    try:
        return named.to_json()
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"the spec of {spec.id!r} cannot be stored: {exc}") from exc


def todays_spec(env_spec: str) -> str:
    """Convert the JSON of a spec from any Gymnasium release to the form of the installed one.

    Raises:
        RecursionError, ValueError: it is not a JSON object, or is nested too deeply.

    Example:
        >>> todays_spec('{"id": "CartPole-v1", "autoreset": false}')
        '{"id": "CartPole-v1", "additional_wrappers": []}'
    """
    fields = {k: v for k, v in json_object(env_spec).items() if k not in _OLD_SPEC_KEYS}
    fields.setdefault("additional_wrappers", [])
    return json.dumps(fields)


def stored_spec(env_spec: str) -> EnvSpec:
    """Read a spec from JSON of any Gymnasium release, without importing anything in it.

    Raises:
        AttributeError, RecursionError, TypeError, ValueError: it is not a spec.

    Example:
        >>> import gymnasium as gym
        >>> stored_spec(gym.spec("CartPole-v1").to_json()).max_episode_steps
        500
    """
    spec = EnvSpec.from_json(todays_spec(env_spec))
    if type(spec.max_episode_steps) not in (int, NoneType):
        raise ValueError(
            f"its max_episode_steps is {spec.max_episode_steps!r:.60}, expected a whole number or "
            f"null"
        )
    if is_deep([spec.kwargs, [wrapper.kwargs for wrapper in spec.additional_wrappers]]):
        raise ValueError(f"its arguments are nested more than {MAX_DEPTH} deep")
    setattr(spec, _RECORDED, True)
    return spec


def is_recorded(spec: EnvSpec) -> bool:
    """Return whether a spec, or the one that it was copied from, was read from a dataset.

    The spec of an environment that :func:`gymnasium.make` made of it is a new one.

    Example:
        >>> import gymnasium as gym
        >>> spec = gym.spec("CartPole-v1")
        >>> is_recorded(spec), is_recorded(copy.deepcopy(stored_spec(spec.to_json())))
        (False, True)
    """
    return getattr(spec, _RECORDED, False)


def parse_spec(env_spec: str) -> EnvSpec:
    """Read a spec as :func:`stored_spec` does, with an entry point that is given by its name.

    Raises:
        ConfigError: the text is not such a spec.
    """
    try:
        spec = stored_spec(env_spec)
    except (AttributeError, RecursionError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"the stored env_spec cannot be read: {exc}; expected the JSON of a Gymnasium EnvSpec, "
            f"got {str(env_spec)[:80]!r}"
        ) from exc
    if not isinstance(spec.entry_point, str) or not isinstance(spec.kwargs, dict):
        raise ConfigError(
            f"the stored env_spec of {spec.id!r} has the entry point {spec.entry_point!r} and the "
            f"kwargs {spec.kwargs!r}; expected 'module:Class' and a JSON object"
        )
    return spec
