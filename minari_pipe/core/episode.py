"""Carry the values of one step, of one episode being recorded, and of one episode being read.

The classes do not check what they carry: the storage refuses what cannot be stored, and the checks
report what should not be published. Alignment everywhere: ``T`` actions, rewards, terminations and
truncations, ``T + 1`` observations and infos (the first row is the reset's).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, SupportsFloat, TypedDict, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.core.tree import map_leaves
from minari_pipe.errors import InvalidEpisodeError

#: keys of a step's record in the standard; any other key is a group of extra step data
STEP_DATA_KEYS = ("observation", "action", "reward", "terminated", "truncated", "info")

_STEP_DATA_KEYS = frozenset(STEP_DATA_KEYS)

#: names of the values of a step in callbacks written for Minari before 0.5.3
OLDER_STEP_DATA_KEYS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "termination": "terminated",
    "truncations": "truncated",
    "truncation": "truncated",
    "infos": "info",
}

#: attribute of an episode whose layout kept no observation after the last step: its last
#: observation repeats the one before, so its last transition leads nowhere
FINAL_OBSERVATION_MISSING = "final_observation_missing"

#: columns of an episode with a row per step, in the standard's order, then extra step data
EPISODE_COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "truncations",
    "infos",
    "extras",
)

REWARD_STATISTICS = ("rewards_sum", "rewards_mean", "rewards_std", "rewards_max", "rewards_min")


class StepData(TypedDict):
    """The values of a single environment step; at a reset only observation and info are set.

    Any other key is a group of extra step data, see :attr:`EpisodeBuffer.extras`.

    Attributes:
        observation: the observation after the step.
        action: the action taken; None at a reset, as are the next three.
        reward: number in reward units of the environment.
        terminated: whether the rules of the task ended the episode.
        truncated: whether it ended for another reason, such as a time limit.
        info: further information from the environment.

    Example:
        >>> from minari_pipe import StepData
        >>> step = StepData(
        ...     observation=1, action=0, reward=0.5, terminated=False, truncated=False, info={}
        ... )
        >>> step["reward"]
        0.5
    """

    observation: Any
    action: Any | None
    reward: SupportsFloat | None
    terminated: bool | None
    truncated: bool | None
    info: dict[str, Any]


@dataclass(frozen=True)
class EpisodeBuffer:
    """The data of one episode on its way into a dataset.

    Attributes:
        id: number in the dataset; None means "the next one", the number of an existing episode
            means "append to that one".
        seed: seed of the episode's reset.
        options: options of the episode's reset.
        observations: ``T + 1`` rows; arrays or lists of rows in the dicts and tuples of the space.
            Right after the reset it is the bare first observation, as in Minari.
        actions: ``T`` rows, likewise.
        rewards: ``T`` numbers.
        terminations: ``T`` flags.
        truncations: ``T`` flags.
        infos: ``T + 1`` rows in nested dicts, or None.
        metadata: further attributes of the episode.
        extras: further groups of step data by name, such as the ``state`` of a simulator that a
            :class:`StepDataCallback` adds: nested dicts of ``T + 1`` rows, or of ``T`` if the
            callback gives none at the reset.

    Example:
        >>> from minari_pipe import EpisodeBuffer
        >>> buffer = EpisodeBuffer(
        ...     seed=7,
        ...     observations=[0, 1, 2],
        ...     actions=[1, 1],
        ...     rewards=[0.0, 1.0],
        ...     terminations=[False, True],
        ...     truncations=[False, False],
        ... )
        >>> len(buffer), buffer.infos
        (2, None)
    """

    id: int | None = None
    seed: int | None = None
    options: dict[str, Any] | None = None
    observations: Any = None
    actions: Any = None
    rewards: Any = field(default_factory=list)
    terminations: Any = field(default_factory=list)
    truncations: Any = field(default_factory=list)
    infos: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy what a reset returned, because environments may overwrite it in the next step."""
        if not len(self.rewards):
            for name in ("observations", "infos"):
                object.__setattr__(self, name, map_leaves(_own_array, getattr(self, name)))
            object.__setattr__(self, "options", copied(self.options))

    def add_step_data(self, step_data: StepData) -> EpisodeBuffer:
        """Append one step; the values are copied, so an environment may reuse its arrays.

        The lists are extended in place and shared with the returned buffer, as in Minari: use
        only the returned one afterwards.

        Args:
            step_data: the step, as a ``StepDataCallback`` returns it.

        Raises:
            InvalidEpisodeError: the step's dicts have other keys than earlier ones. Info keys
                that come and go need :class:`minari_pipe.recording.recorder.EpisodeRecorder`, which
                ``DataCollector`` uses.

        Example:
            >>> from minari_pipe import EpisodeBuffer
            >>> buffer = EpisodeBuffer(observations=0)  # right after the reset
            >>> step = {"action": 1, "reward": 0.5, "terminated": True, "truncated": False}
            >>> buffer = buffer.add_step_data({"observation": 1, "info": {}, **step})
            >>> buffer.observations, buffer.actions, buffer.rewards
            ([0, 1], [1], [0.5])
        """
        step_data = standard_step_data(step_data)
        observation, info = step_data["observation"], step_data["info"]
        observations = copied(observation)
        if self.observations is not None:
            observations = map_leaves(_append, observation, self.observations)
        if self.actions is None:
            actions = map_leaves(lambda leaf: [copied(leaf)], step_data["action"])
        else:
            actions = map_leaves(_append, step_data["action"], self.actions)
        if self.infos is None:
            infos = map_leaves(lambda leaf: [copied(leaf)], info)
        else:
            infos = map_leaves(_append, info, self.infos)
        extras = dict(self.extras)
        for name, value in step_data.items():
            if name not in STEP_DATA_KEYS:
                if name in extras:
                    extras[name] = map_leaves(_append, value, extras[name])
                else:
                    extras[name] = map_leaves(lambda leaf: [copied(leaf)], value)
        self.rewards.append(copied(step_data["reward"]))
        self.terminations.append(copied(step_data["terminated"]))
        self.truncations.append(copied(step_data["truncated"]))
        return replace(self, observations=observations, actions=actions, infos=infos, extras=extras)

    def __len__(self) -> int:
        """Return the number of steps ``T``."""
        return len(self.rewards)


def _own_array(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _append(value: Any, rows: Any) -> list[Any]:
    if isinstance(rows, list):
        rows.append(copied(value))
        return rows
    return [copied(rows), copied(value)]


_IMMUTABLE = (bool, int, float, str, np.generic)


def copied(value: Any) -> Any:
    """Copy a value that its owner might change later; return immutable ones as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if value is None or isinstance(value, _IMMUTABLE):
        return value
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return copy.deepcopy(value)


@dataclass(frozen=True)
class EpisodeData:
    """One episode of a dataset.

    Attributes:
        id: number of the episode in the dataset.
        observations: ``T + 1`` rows in the dicts and tuples of the space; a list for Text.
        actions: ``T`` rows, likewise.
        rewards: shape ``(T,)``, float64.
        terminations: shape ``(T,)``, bool.
        truncations: shape ``(T,)``, bool.
        infos: nested dicts of ``T + 1`` rows, empty if none were recorded.
        seed: seed of the episode's reset, None if unknown.
        extras: further groups of step data by name, see :class:`EpisodeBuffer`.

    Example:
        >>> from minari_pipe import EpisodeData
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> episode = step_index_dataset(lengths=(2, 3))[1]
        >>> isinstance(episode, EpisodeData), episode.id, episode.seed, episode.total_timesteps
        (True, 1, 1, 3)
        >>> episode.observations, episode.actions, episode.rewards
        (array([0, 1, 2, 3]), array([0, 1, 0]), array([1., 2., 3.]))
        >>> episode.terminations, episode.infos
        (array([False, False,  True]), {})
    """

    id: int
    observations: Any
    actions: Any
    rewards: npt.NDArray[Any]
    terminations: npt.NDArray[Any]
    truncations: npt.NDArray[Any]
    infos: dict[str, Any]
    seed: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of steps ``T``."""
        return len(self.rewards)

    @property
    def total_timesteps(self) -> int:
        """Number of steps ``T``, under its name from before Minari 0.5."""
        return len(self)

    def __repr__(self) -> str:
        return (
            f"EpisodeData(id={self.id}, total_steps={len(self)}, "
            f"observations={_describe(self.observations)}, "
            f"actions={_describe(self.actions)}, "
            f"rewards=ndarray of {len(self.rewards)} floats, "
            f"terminations=ndarray of {len(self.terminations)} bools, "
            f"truncations=ndarray of {len(self.truncations)} bools, "
            f"infos=dict with the following keys: {list(self.infos or {})})"
        )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"ndarray of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_describe, value)) + ")"
    return repr(value)


Carrier = TypeVar("Carrier", EpisodeBuffer, EpisodeData)


def each_with_fields(cls: type[Carrier], many: Iterable[dict[str, Any]]) -> Iterator[Carrier]:
    """Make episodes from all their fields at once; constructing each takes longer than reading it.

    Args:
        cls: a frozen dataclass without slots; its ``__post_init__`` is skipped.
        many: for each episode, a dict of all fields, which becomes the object's own.

    Example:
        >>> fields = {**vars(EpisodeBuffer()), "rewards": [1.0]}
        >>> [buffer.rewards for buffer in each_with_fields(EpisodeBuffer, [fields])]
        [[1.0]]
    """
    new, set_field = object.__new__, object.__setattr__
    for fields in many:
        carrier = new(cls)
        set_field(carrier, "__dict__", fields)
        yield carrier


class StepDataCallback:
    """Makes the record of one step from what the environment returned; override to change it.

    Example:
        >>> import gymnasium as gym, warnings
        >>> from minari_pipe import DataCollector, StepDataCallback
        >>> class WithState(StepDataCallback):
        ...     def __call__(self, env, **values):
        ...         data = super().__call__(env, **values)
        ...         data["state"] = {"t": env.get_wrapper_attr("_elapsed_steps")}
        ...         return data
        >>> env = DataCollector(gym.make("CartPole-v1"), step_data_callback=WithState)
        >>> _ = env.reset(seed=1)
        >>> _ = env.step(0)
        >>> with warnings.catch_warnings(action="ignore"):  # about missing metadata
        ...     dataset = env.create_dataset("cartpole/state-v0")
        >>> dataset[0].extras
        {'state': {'t': array([0, 1])}}
        >>> env.close()
    """

    def __init__(self, env: gym.Env | None = None) -> None:
        """Keep the environment, as subclasses for Minari 0.3 expect.

        Args:
            env: the environment inside the collector, which passes it.
        """
        self.env = env

    def __call__(
        self,
        env: gym.Env,
        obs: Any,
        info: dict[str, Any],
        action: Any | None = None,
        rew: Any | None = None,
        terminated: bool | None = None,
        truncated: bool | None = None,
    ) -> StepData:
        """Return the step's record; at a reset, action, reward and flags are None.

        Args:
            env: the environment inside the collector.
            obs: its observation.
            info: its info.
            action: the action that it was given.
            rew: its reward.
            terminated: its flag.
            truncated: its flag.
        """
        return _StepRecord(  # type: ignore[return-value]  # a dict with these keys
            action=action,
            observation=obs,
            reward=rew,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )


class _StepRecord(dict[str, Any]):
    """A step's record that also accepts the names of values from older Minari."""

    def __missing__(self, key: str) -> Any:
        if key not in OLDER_STEP_DATA_KEYS:
            raise KeyError(key)
        return self[OLDER_STEP_DATA_KEYS[key]]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(OLDER_STEP_DATA_KEYS.get(key, key))  # type: ignore[call-overload]

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(OLDER_STEP_DATA_KEYS.get(key, key), default)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(OLDER_STEP_DATA_KEYS.get(key, key), value)


def standard_step_data(data: Any, *, reset: bool = False) -> StepData:
    """Return the result of a step data callback under the names of the standard.

    Older names are accepted: plural ones (Minari before 0.5), ``termination`` and
    ``truncation`` (before 0.5.3). Any other key is a group of extra step data.

    Args:
        data: the record; ``info`` is empty by default.
        reset: whether it is the record of a reset, which needs only an observation.

    Raises:
        InvalidEpisodeError: it is not a dict, lacks a value, or has one under two names.

    Example:
        >>> standard_step_data({"observations": 1, "infos": {}}, reset=True)["observation"]
        1
    """
    if isinstance(data, dict) and data.keys() == _STEP_DATA_KEYS:
        return data  # type: ignore[return-value]
    if not isinstance(data, Mapping):
        raise InvalidEpisodeError(
            f"the step data must be a dict with the keys {list(STEP_DATA_KEYS)}, got "
            f"{type(data).__name__} {data!r:.60}; see StepDataCallback"
        )
    record: dict[str, Any] = {}
    for key, value in data.items():
        name: Any = OLDER_STEP_DATA_KEYS.get(key, key)
        if name in record:
            raise InvalidEpisodeError(f"the step data has {name!r} twice, once as {key!r}")
        record[name] = value
    record.setdefault("info", {})
    needed = STEP_DATA_KEYS[:1] if reset else STEP_DATA_KEYS
    missing = [key for key in needed if key not in record]
    if missing:
        raise InvalidEpisodeError(
            f"the step data has no {missing}, it has {list(data)}; a StepDataCallback must return "
            f"{list(needed)}"
        )
    return {**dict.fromkeys(STEP_DATA_KEYS), **record}  # type: ignore[typeddict-item]


class EpisodeMetadataCallback:
    """Computes the attributes of a finished episode; override to add others.

    Example:
        >>> import gymnasium as gym, warnings
        >>> from minari_pipe import DataCollector, EpisodeMetadataCallback
        >>> class WithStart(EpisodeMetadataCallback):
        ...     def __call__(self, episode):
        ...         first = float(episode["observations"][0, 0])
        ...         return {**super().__call__(episode), "start": round(first, 3)}
        >>> env = DataCollector(
        ...     gym.make("CartPole-v1"), episode_metadata_callback=WithStart
        ... )
        >>> _ = env.reset(seed=1)
        >>> _ = env.step(0)
        >>> with warnings.catch_warnings(action="ignore"):  # about missing metadata
        ...     dataset = env.create_dataset("cartpole/start-v0")
        >>> dataset.episodes["start"].tolist(), dataset.episodes["rewards_sum"].tolist()
        ([0.001], [1.0])
        >>> env.close()
    """

    def __call__(self, episode: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes of an episode.

        Args:
            episode: the fields of :class:`EpisodeData` as a dict.
        """
        return reward_statistics(episode["rewards"])


def reward_statistics(rewards: npt.ArrayLike) -> dict[str, float]:
    """Summarise an episode's rewards as the standard does.

    Args:
        rewards: shape ``(T,)``, at least one.

    Returns:
        ``rewards_sum``, ``_mean``, ``_std`` (population), ``_max`` and ``_min``, in reward units.
    """
    rewards = np.asarray(rewards)
    with np.errstate(all="ignore"):  # the deviation of infinite rewards is NaN
        return {
            "rewards_sum": float(rewards.sum()),
            "rewards_mean": float(rewards.mean()),
            "rewards_std": float(rewards.std()),
            "rewards_max": float(rewards.max()),
            "rewards_min": float(rewards.min()),
        }


def statistics_of_each(
    rewards: npt.NDArray[np.float64], steps: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the reward statistics of many episodes, equal to the bit to those of each alone.

    Args:
        rewards: rewards of all episodes, one after another.
        steps: number of steps of each episode, shape ``(N,)``, at least 1.

    Returns:
        Shape ``(N,)`` for each statistic of :func:`reward_statistics`.

    Example:
        >>> statistics_of_each(np.array([1.0, 2.0, 4.0]), np.array([1, 2]))["rewards_sum"]
        array([1., 6.])
    """
    found = {name: np.empty(len(steps)) for name in REWARD_STATISTICS}
    begins = np.cumsum(steps) - steps
    alike = len(steps) > 0 and (steps == steps[0]).all()
    for length in steps[:1] if alike else np.unique(steps):
        # rows of one length: NumPy sums each of them like a separate array
        which: Any = slice(None)
        if alike:
            rows = rewards.reshape(len(steps), length)
        else:
            which = np.flatnonzero(steps == length)
            rows = rewards[begins[which][:, None] + np.arange(length)]
        with np.errstate(all="ignore"):
            # mean and deviation as NumPy computes them, but with the sum that is known
            total = rows.sum(axis=1)
            mean = total / length
            apart = rows - mean[:, None]
            found["rewards_sum"][which] = total
            found["rewards_mean"][which] = mean
            found["rewards_std"][which] = np.sqrt(np.square(apart, out=apart).sum(axis=1) / length)
            found["rewards_max"][which] = rows.max(axis=1)
            found["rewards_min"][which] = rows.min(axis=1)
    return found
