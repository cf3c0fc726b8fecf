"""Describe a dataset and its environment as two columns of text, for a page or a terminal."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from shlex import quote
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.environments import recover
from minari_pipe.core.metadata import supported_dataset_versions
from minari_pipe.core.spaces import deserialize_space

_UNKNOWN = "Not provided"


def get_dataset_spec_dict(dataset_spec: Mapping[str, Any]) -> dict[str, str]:
    """Describe a dataset by its metadata, in Markdown.

    Args:
        dataset_spec: the metadata, raw or with its spaces parsed.

    Returns:
        Label to text; a missing space has no row.

    Raises:
        InvalidMetadataError: a space does not follow the standard.

    Example:
        >>> table = get_dataset_spec_dict({"total_steps": 9, "author": ["A", "B"]})
        >>> table["Total Steps"], table["Author"], table["Algorithm"]
        ('9', 'A, B', 'Not provided')
    """
    rows = {
        "Total Steps": str(dataset_spec.get("total_steps", _UNKNOWN)),
        "Total Episodes": str(dataset_spec.get("total_episodes", _UNKNOWN)),
    }
    for label, key in (("Observation", "observation_space"), ("Action", "action_space")):
        space = dataset_spec.get(key)
        if space is not None:
            space = space if isinstance(space, gym.Space) else deserialize_space(space)
            rows[f"Dataset {label} Space"] = _code(space)
    link = dataset_spec.get("code_permalink")
    version = dataset_spec.get("minari_version")
    dataset_id = quote(str(dataset_spec.get("dataset_id", "ID")))
    supported = "supported" if version in supported_dataset_versions else "not supported"
    return rows | {
        "Algorithm": str(dataset_spec.get("algorithm_name", _UNKNOWN)),
        "Author": _names(dataset_spec.get("author")),
        "Email": _names(dataset_spec.get("author_email")),
        "Code Permalink": _UNKNOWN if link is None else f"[{link}]({link})",
        "Minari Version": _UNKNOWN if version is None else f"`{version}` ({supported})",
        "Download": f"`minari-pipe download {dataset_id}`",
    }


def get_env_spec_dict(env_spec: EnvSpec) -> dict[str, str]:
    """Describe an environment by its spec, in Markdown.

    Its spaces are included only if the environment can be made without running code that the user
    does not trust; otherwise a warning says why they are missing.

    Args:
        env_spec: the spec, as a dataset stores it.

    Returns:
        Label to text.

    Example:
        >>> import gymnasium
        >>> get_env_spec_dict(gymnasium.spec("CartPole-v1"))["Action Space"]
        '`Discrete(2)`'
    """
    rows = {"ID": env_spec.id}
    try:
        env = recover(spec_json(env_spec))
    except Exception as exc:  # its constructor may do anything, such as look for a display
        warnings.warn(f"Failed to make env {env_spec.id}, {exc}", stacklevel=2)
    else:
        rows["Observation Space"] = _code(env.observation_space)
        rows["Action Space"] = _code(env.action_space)
        env.close()
    return rows | {
        "entry_point": f"`{env_spec.entry_point}`",
        "max_episode_steps": str(env_spec.max_episode_steps),
        "reward_threshold": str(env_spec.reward_threshold),
        "nondeterministic": f"`{env_spec.nondeterministic}`",
        "order_enforce": f"`{env_spec.order_enforce}`",
        "disable_env_checker": f"`{env_spec.disable_env_checker}`",
        "kwargs": f"`{env_spec.kwargs}`",
        "additional_wrappers": f"`{env_spec.additional_wrappers}`",
        "vector_entry_point": f"`{env_spec.vector_entry_point}`",
    }


def _code(space: gym.Space[Any]) -> str:
    return f"`{re.sub(' +', ' ', repr(space).replace(chr(10), ''))}`"


def _names(names: Any) -> str:
    if names is None:
        return _UNKNOWN
    return names if isinstance(names, str) else ", ".join(map(str, names))
