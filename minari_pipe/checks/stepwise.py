"""Simulated columns against recorded ones where single bits cannot be expected to agree.

Elsewhere than on the versions and the platform that made the data, simulators round differently,
and contacts are chaotic: a whole episode cannot come out as recorded, but a single step can. So
where the simulator can be put where the recording stands, each step is simulated from there.

How far a single step may be off was measured on the 25 human door demonstrations, made with mujoco
3.11.0 and stepped with 3.3.5, whose contacts differ: an observation by 0.005 at the median step and
by less than 0.04 at 99.9 % of them, in columns that range over 0.3 to 3, a reward by 1e-5 and
0.001; 2 of 6729 steps cross a threshold on the other side, which a bonus of 8 shows. With 3.11.0
itself all differences are 0.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import MISSING, Episode, shown
from minari_pipe.core.tree import Path, leaves, map_leaves, stack
from minari_pipe.policies.rollout import simulator_state

FLOOR = 1e-3
"""Difference that is always allowed, absolute and relative."""
ROUNDING = 1e-6
"""Up to here, absolute and relative, two values are the same but for rounding."""
JUMP = 0.25
"""Share of its range by which no column comes apart from one step to the next by rounding."""
DRIFT_STEPS = 30
"""An episode that leaves its recording earlier does not drift."""
PROBE_STEPS = 40

NO_START: Mapping[str, Any] = {"seed": 0, "options": None}
"""Of an episode whose own start cannot be known."""

Place = Callable[[Any, Any], None]
"""Puts a simulator where a row of observations and a row of its states say it was."""


@dataclass
class Steps:
    """What ``T`` recorded steps led to, beside what the simulator makes of them, by column."""

    recorded: dict[Path, Any]
    simulated: dict[Path, list[Any]] = field(default_factory=dict)

    def take(self, results: Mapping[str, Any]) -> None:
        """Add the results of one step."""
        for path in self.recorded:
            self.simulated.setdefault(path, []).append(at(results, path))

    def largest(self, row: int) -> tuple[Path, int, float]:
        """Column, row and size of the largest absolute difference from ``row`` on."""
        found: tuple[Path, int, float] = ((), row, -1.0)
        for path in self.recorded:
            gaps = np.max(self._differences(path)[row:], axis=1, initial=0)
            gaps[np.isinf(gaps)] = 1.0  # another flag, another word
            if gaps.max() > found[2]:
                found = path, row + int(gaps.argmax()), float(gaps.max())
        return found

    def excess(self, path: Path, share: float, floor: float = FLOOR) -> np.ndarray:
        """Largest difference in each row in units of what is allowed, shape ``(T,)``.

        Args:
            path: of the column.
            share: of the range of each element, allowed beside the floor.
            floor: allowed absolute and relative difference.
        """
        differences = self._differences(path)
        allowed = np.full_like(differences, floor)
        if _is_continuous(self.recorded[path]):
            recorded = np.nan_to_num(_flat(self.recorded[path]))
            allowed += floor * np.abs(recorded) + share * np.ptp(recorded, axis=0)
        return np.max(differences / allowed, axis=1, initial=0)

    def _differences(self, path: Path) -> np.ndarray:
        recorded, simulated = self.recorded[path], self.simulated[path]
        if any(value is MISSING or value is None for value in simulated):
            return np.full((len(recorded), 1), np.inf)
        if not _is_continuous(recorded):
            same = [np.array_equal(a, b) for a, b in zip(recorded, simulated, strict=True)]
            return np.where(same, 0, np.inf)[:, None]
        given = np.asarray(simulated).reshape(np.shape(recorded)).astype(recorded.dtype)
        differences = np.abs(_flat(recorded) - _flat(given))
        differences[np.isnan(_flat(recorded)) & np.isnan(_flat(given))] = 0
        return np.nan_to_num(differences, nan=np.inf, posinf=np.inf)

    def observed(self) -> Iterator[Path]:
        """Paths of what the simulator goes on from: observations, and states if compared."""
        return (path for path in self.recorded if path[0] in ("observations", "infos"))

    def at_rounding(self) -> np.ndarray:
        """Rows in which all observations are the same but for rounding, shape ``(T,)``."""
        gaps = [self.excess(path, 0, ROUNDING) for path in self.observed()]
        return np.all([gap <= 1 for gap in gaps], axis=0)

    def worst(self, rows: np.ndarray, share: float) -> tuple[Path, int]:
        """The column and the row of the largest excess among ``rows``."""
        excess = {path: self.excess(path, share)[rows] for path in self.recorded}
        path = max(excess, key=lambda path: float(excess[path].max()))
        return path, int(rows[int(excess[path].argmax())])

    def values(self, path: Path, row: int) -> str:
        """Both values of a row, of the element that differs most."""
        recorded, simulated = self.recorded[path][row], self.simulated[path][row]
        if np.ndim(recorded) and not isinstance(recorded, str) and np.shape(simulated):
            element = int(self._differences(path)[row].argmax()) if len(recorded) else 0
            if np.size(recorded) > element:
                recorded = np.ravel(recorded)[element]
                simulated = np.ravel(simulated)[element]
                return f"recorded {recorded}, replayed {simulated} at element {element}"
        return f"recorded {shown(recorded)}, replayed {shown(simulated)}"


@dataclass(frozen=True)
class Verdict:
    """What the simulated steps say about an episode."""

    agrees: bool
    row: int = 0
    """Number of the first step that does not agree."""
    path: Path = ()
    why: str = ""
    is_error: bool = False
    """Whether the recording is wrong, and not just rounded differently."""
    n_steps: int = 0
    """How many steps are beyond the tolerance."""


AGREES = Verdict(agrees=True)


@dataclass(frozen=True)
class Tolerance:
    """What single steps may be off, in shares of the range of the recorded column in an episode."""

    half: float
    """Half of the steps."""
    most: float
    """All steps but a few, as at a threshold."""
    few: float
    """Share of the steps that may be off further and are no error."""


BY_STATE = Tolerance(half=0.02, most=0.1, few=0.02)
"""Of steps from recorded states, on other versions."""
BY_OBSERVATION = Tolerance(half=0, most=0.01, few=0.5)
"""Of steps from what was observed, which may leave out a little: Hopper's clips velocities."""


def judge_steps(steps: Steps, tolerance: Tolerance) -> Verdict:
    """Judge steps that were each simulated from where the recording stood."""
    most = tolerance.most
    beyond = np.max([steps.excess(path, most) for path in steps.recorded], axis=0) > 1
    if (wrong := _contradictions(steps)) is not None:
        return wrong
    n = len(beyond)
    for path in steps.recorded:
        if (rows := np.flatnonzero(steps.excess(path, tolerance.half) > 1)).size > n / 2:
            why = f"{rows.size} of {n} steps differ"
            return Verdict(False, int(rows[0]), path, why, True, rows.size)
    rows = np.flatnonzero(beyond)
    if not rows.size:
        return AGREES
    path, row = steps.worst(rows[:1], most)
    why = f"{rows.size} of {n} steps differ"
    return Verdict(False, row, path, why, rows.size > tolerance.few * n, rows.size)


def judge_run(steps: Steps) -> Verdict:
    """Judge an episode that was simulated from its start, and may drift."""
    apart = np.max([steps.excess(path, 0) for path in steps.recorded], axis=0) > 1
    if not apart.any():
        return AGREES
    row = int(apart.argmax())
    path, _ = steps.worst(np.array([row]), 0)
    if (wrong := _contradictions(steps)) is not None and wrong.row <= row:
        return wrong
    same = steps.at_rounding()
    leaps = any(steps.excess(p, JUMP)[row] > 1 for p in steps.recorded)
    if row < DRIFT_STEPS or (same[row - 1] and leaps):
        return Verdict(False, row, path, "", is_error=True)
    return Verdict(False, row, path)


def _contradictions(steps: Steps) -> Verdict | None:
    """A reward or a flag that is another one although all that is observed is the same."""
    same = steps.at_rounding()
    for path in (("rewards",), ("terminations",), ("truncations",)):
        rows = np.flatnonzero(same & (steps.excess(path, 0) > 1))
        if rows.size:
            why = "though the observations agree"
            return Verdict(False, int(rows[0]), path, why, True, rows.size)
    return None


def simulate(
    env: gym.Env,
    episode: Episode,
    start: Mapping[str, Any],
    n_steps: int,
    *,
    place: Place | None = None,
    states: Mapping[Path, Any] | None = None,
    skip: Iterable[Path] = (),
) -> Steps:
    """Simulate an episode's first steps and return what they led to.

    Args:
        env: is reset first.
        episode: recorded.
        start: arguments of ``reset``.
        n_steps: how many.
        place: puts the simulator where the recording stands before each step.
        states: recorded columns of the simulator's state to compare as well.
        skip: leaves of the observations that are not compared.
    """
    rows = slice(1, n_steps + 1)
    recorded = {
        ("observations", *path): column[rows]
        for path, column in leaves(episode.observations)
        if path not in set(skip)
    }
    recorded |= {("infos", "state", *path): column[rows] for path, column in (states or {}).items()}
    for name in ("rewards", "terminations", "truncations"):
        recorded[name,] = getattr(episode, name)[:n_steps]
    steps = Steps(recorded)
    known = states_of(episode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps after an end, such as the recording has
        env.reset(**copy.deepcopy(dict(start)))
        for row in range(n_steps):
            if place is not None:
                place(row_of(episode.observations, row), row_of(known, row))
            observation, reward, terminated, truncated, _ = env.step(row_of(episode.actions, row))
            closed = row == len(episode.truncations) - 1 and not episode.terminations[row]
            results = {
                "observations": copy.deepcopy(observation),
                "rewards": reward,
                "terminations": bool(terminated),
                # A collector truncates an episode that it does not go on with.
                "truncations": bool(truncated) or (closed and bool(episode.truncations[row])),
            }
            if states:
                results["infos"] = {"state": copy.deepcopy(simulator_state(env))}
            steps.take(results)
    return steps


def placing(env: gym.Env, episode: Episode, start: Mapping[str, Any]) -> tuple[Place | None, bool]:
    """Return how to put ``env`` where a recording stands, and whether recorded states say where.

    Each way is tried out first: a walk of ``env`` itself must come out the same when the simulator
    is put there before each step. An environment with a memory of its own has no way.
    """
    recorded, offered = states_of(episode), _state(env)
    same = recorded and {p for p, _ in leaves(recorded)} == {p for p, _ in leaves(offered)}
    ways = [(_by_state(env), True)] if same else []
    for place, by_state in [*ways, *((place, False) for place in _by_observation(env))]:
        if place is not None and _reproduces(env, place, start):
            return place, by_state
    return None, False


def _reproduces(env: gym.Env, place: Place, start: Mapping[str, Any]) -> bool:
    try:
        walk = walk_of(env, start)
        # Of chance and of hidden goals a seed decides, which those who do not know it cannot.
        start = {**start, "seed": 1} if start is NO_START else start
        steps = simulate(env, walk, start, walk.n_steps or 0, place=place)
        return bool(walk.n_steps) and all((steps.excess(p, 0) <= 1).all() for p in steps.recorded)
    except Exception:  # whatever a stranger's environment raises when it is put somewhere
        return False


def walk_of(env: gym.Env, start: Mapping[str, Any]) -> Episode:
    """A few steps by random actions, with the simulator's state where it has one."""
    env.action_space.seed(0)
    observation, _ = env.reset(**copy.deepcopy(dict(start)))
    observations, states = [copy.deepcopy(observation)], [_state(env)]
    taken = []
    for _ in range(PROBE_STEPS):
        action = env.action_space.sample()
        observation, *results, _ = env.step(copy.deepcopy(action))
        taken.append((action, *results))
        observations.append(copy.deepcopy(observation))
        states.append(_state(env))
        if results[1] or results[2]:
            break
    actions, rewards, terminations, truncations = zip(*taken, strict=True)
    return Episode(
        -1,
        observations=stack(observations),
        actions=stack(actions),
        rewards=np.array(rewards, dtype=np.float64),
        terminations=np.array(terminations, dtype=bool),
        truncations=np.array(truncations, dtype=bool),
        infos={"state": stack(states)},
        metadata={},
        n_steps=len(taken),
    )


def _state(env: gym.Env) -> dict[str, Any]:
    try:
        return copy.deepcopy(simulator_state(env))
    except Exception:  # it has none
        return {}


def states_of(episode: Episode) -> dict[str, Any]:
    """The columns of the recorded simulator's state, empty if there are none."""
    states = episode.infos.get("state") if isinstance(episode.infos, Mapping) else None
    return dict(states) if isinstance(states, Mapping) else {}


def _by_state(env: gym.Env) -> Place | None:
    base: Any = env.unwrapped
    if hasattr(base, "set_env_state"):
        return lambda observation, state: base.set_env_state(map_leaves(np.asarray, state))
    inner = getattr(base, "point_env", base)
    if not hasattr(inner, "set_state"):
        return None

    def place(observation: Any, state: Any) -> None:
        inner.set_state(np.asarray(state["qpos"]), np.asarray(state["qvel"]))
        _set_goal(base, observation)

    return place


def _set_goal(base: Any, observation: Any) -> None:
    if hasattr(base, "goal") and isinstance(observation, Mapping):
        base.goal = np.array(observation["desired_goal"])


def _angle(cosine: float, sine: float) -> float:
    return float(np.arctan2(sine, cosine))


CLASSIC: dict[str, Callable[[np.ndarray], Any]] = {
    "CartPoleEnv": lambda o: o,
    "MountainCarEnv": lambda o: o,
    "Continuous_MountainCarEnv": lambda o: o,
    "PendulumEnv": lambda o: np.array([_angle(o[0], o[1]), o[2]]),
    "AcrobotEnv": lambda o: np.array([_angle(o[0], o[1]), _angle(o[2], o[3]), o[4], o[5]]),
}
"""The state of Gymnasium's classic environments from an observation."""


def _by_observation(env: gym.Env) -> Iterator[Place]:
    """Ways to read the state out of an observation, to be tried out."""
    base: Any = env.unwrapped
    if read := CLASSIC.get(type(base).__name__):

        def place(observation: Any, state: Any) -> None:
            base.state = read(np.asarray(observation, dtype=np.float64))
            base.steps_beyond_terminated = None

        yield place
    inner = getattr(base, "point_env", base)
    if hasattr(inner, "set_state") and hasattr(inner, "data"):
        for hidden in (0, 1, 2):  # positions that decide nothing are often left out
            yield _positions_first(base, inner, hidden)


def _positions_first(base: Any, inner: Any, hidden: int) -> Place:
    """MuJoCo's order: all positions but the first ``hidden`` ones, then all velocities."""
    n_seen = inner.model.nq - hidden

    def place(observation: Any, state: Any) -> None:
        seen = observation["observation"] if isinstance(observation, Mapping) else observation
        qpos, qvel = inner.data.qpos.copy(), seen[n_seen : n_seen + inner.model.nv]
        qpos[hidden:] = seen[:n_seen]
        inner.set_state(qpos, qvel)
        _set_goal(base, observation)

    return place


def _is_continuous(column: Any) -> bool:
    dtype = getattr(column, "dtype", None)
    return dtype is not None and (dtype.kind == "f" or dtype == np.uint8)


def _flat(column: np.ndarray) -> np.ndarray:
    return column.reshape(len(column), -1).astype(np.float64)


def at(value: Any, path: Path) -> Any:
    """What an observation or an info of the environment has at ``path``, else ``MISSING``."""
    try:
        for key in path:
            value = value[key]
    except (LookupError, TypeError):
        return MISSING
    return value


def row_of(columns: Any, row: int) -> Any:
    """One row of a tree of columns, as a copy: an environment may change what it is given."""
    return map_leaves(lambda column: copy.copy(column[row]), columns)
