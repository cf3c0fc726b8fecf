"""Choose what is recorded of an environment's observations."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from minari_pipe.core.messages import one_line
from minari_pipe.errors import ConfigError, InvalidEpisodeError, did_you_mean

#: Characters of a recorded text: printable ASCII.
CHARSET = "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " "))


#: the key of a config that describes what is recorded, for messages
OBSERVATION = "collect.record_observation"


@dataclass(frozen=True)
class RecordedKey:
    """One key of a recorded observation."""

    source: str
    """The key of the environment's observation."""
    text: int | None = None
    """For texts: the largest number of characters."""


@dataclass(frozen=True)
class RecordedObservation:
    """What is recorded of a Dict observation: which keys, under which names, texts of which length.

    So a dataset can hold an observation whose space the standard does not know, such as a mission
    of minigrid, and its ``env_spec`` still names the plain environment.
    """

    keys: Mapping[str, RecordedKey]
    """By the name in the dataset."""

    @classmethod
    def of(cls, values: Any, where: str) -> RecordedObservation:
        """Return what the section ``where`` of a config or of metadata describes.

        Args:
            values: for each name in the dataset, nothing, or ``{from: KEY, text: LENGTH}``.
            where: for messages.

        Raises:
            ConfigError: a key or a value is wrong; says what is expected.

        Example:
            >>> found = RecordedObservation.of({"goal": {"from": "mission", "text": 9}}, "recorded")
            >>> found({"mission": "go", "image": 0})
            {'goal': 'go'}
        """
        if not isinstance(values, Mapping) or not values:
            raise ConfigError(
                f"{where} is {one_line(repr(values))}; expected the keys to record, such as "
                "{image: {}, mission: {text: 200}}"
            )
        return cls({name: _key(name, value, where) for name, value in values.items()})

    def space(self, space: gym.Space[Any], where: str) -> spaces.Dict:
        """Return the space of recorded observations.

        Args:
            space: that of the environment's observations.
            where: for messages.

        Raises:
            ConfigError: it is no Dict space, or lacks a key.

        Example:
            >>> whole = spaces.Dict(image=spaces.Discrete(3), mission=spaces.Discrete(9))
            >>> RecordedObservation.of({"pixels": {"from": "image"}}, "recorded").space(whole, "")
            Dict('pixels': Discrete(3))
        """
        if not isinstance(space, spaces.Dict):
            raise ConfigError(
                f"{where} chooses keys of a Dict observation, but the environment's is "
                f"{one_line(str(space))}; remove it"
            )
        found: dict[str, gym.Space[Any]] = {}
        for name, key in self.keys.items():
            if key.source not in space.spaces:
                raise ConfigError(
                    f"{where}: the observation has no key {key.source!r}."
                    f"{did_you_mean(key.source, space.spaces)} It has {', '.join(space.spaces)}"
                )
            own = space[key.source]
            found[name] = own if key.text is None else spaces.Text(key.text, charset=CHARSET)
        return spaces.Dict(found)

    def __call__(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is recorded of an observation.

        Raises:
            InvalidEpisodeError: a text is too long or has other characters than printable ASCII.
        """
        found = {name: observation[key.source] for name, key in self.keys.items()}
        for name, key in self.keys.items():
            if key.text is not None:
                _check_text(name, found[name], key.text)
        return found


def recorded_space(env: gym.Env[Any, Any], values: Any) -> gym.Space[Any]:
    """Return the space of the observations that are recorded of an environment.

    Args:
        env: the environment.
        values: those of :data:`OBSERVATION` in a config; None records all as they are.

    Raises:
        ConfigError: see :meth:`RecordedObservation.of` and :meth:`RecordedObservation.space`.

    Example:
        >>> recorded_space(gym.make("CartPole-v1"), None).shape
        (4,)
    """
    space: gym.Space[Any] = env.observation_space
    if values is None:
        return space
    return RecordedObservation.of(values, OBSERVATION).space(space, OBSERVATION)


class RecordedView(gym.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are those that a dataset holds."""

    def __init__(self, env: gym.Env[Any, Any], recorded: RecordedObservation, where: str) -> None:
        """Wrap an environment.

        Raises:
            ConfigError: see :meth:`RecordedObservation.space`.
        """
        super().__init__(env)
        self._recorded = recorded
        self.observation_space = recorded.space(env.observation_space, where)

    def observation(self, observation: Any) -> dict[str, Any]:
        return self._recorded(observation)


def _key(name: Any, value: Any, where: str) -> RecordedKey:
    given = {} if value is None else value
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise ConfigError(
            f"{where}.{name} is {one_line(repr(value))}; expected {{}} or "
            "{from: KEY, text: LENGTH}"
        )
    known = [each.name for each in fields(RecordedKey)]
    known[0] = "from"
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"{where}.{name} has no key {key!r}.{hint} Known: {', '.join(known)}")
    source, text = given.get("from", name), given.get("text")
    if not isinstance(source, str):
        raise ConfigError(f"{where}.{name}.from is {source!r:.80}; expected a key of observations")
    if text is not None and (type(text) is not int or not 0 < text <= 2**20):
        raise ConfigError(
            f"{where}.{name}.text is {text!r:.80}; expected the largest number of characters"
        )
    return RecordedKey(source, text)


def _check_text(name: str, text: Any, longest: int) -> None:
    if not isinstance(text, str):
        raise InvalidEpisodeError(f"observation {name!r} is {text!r:.80}, expected a text")
    if len(text) > longest:
        raise InvalidEpisodeError(
            f"observation {name!r} has {len(text)} characters, more than the {longest} of its "
            f"space: {one_line(text)!r:.100}; raise collect.record_observation.{name}.text"
        )
    if other := sorted(set(text) - set(CHARSET)):
        raise InvalidEpisodeError(
            f"observation {name!r} has the character {other[0]!r}; a recorded text is printable "
            f"ASCII: {one_line(text)!r:.100}"
        )
