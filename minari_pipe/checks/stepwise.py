"""Compare simulated columns with recorded ones if they need not agree bit for bit.

On other versions or platforms than those that made the data, simulators round differently, and
contacts are chaotic: a whole episode cannot match its recording, but a single step can. So if the
simulator can be set to the recorded state, each step is simulated from there.

The tolerances of single steps come from the 25 human door demonstrations, made with mujoco 3.11.0
and stepped with 3.3.5, whose contacts differ. Observations differ by 0.005 at the median step and
by less than 0.04 at 99.9 % of the steps, in columns that range over 0.3 to 3; rewards differ by
1e-5 and 0.001. At 2 of 6729 steps a value falls on the other side of a threshold, which shows in a
bonus of 8. With 3.11.0 itself all differences are 0, so they apply only to another simulator.
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

#: Relative difference that is always allowed; the absolute one shrinks with a column's spread.
FLOOR = 1e-3
#: Absolute and relative difference up to which two values are equal apart from rounding.
ROUNDING = 1e-6
#: Rounding does not move a column by more than this share of its range in one step.
JUMP = 0.25
#: Leaving the recording before this step is an error, not drift.
DRIFT_STEPS = 30
PROBE_STEPS = 40

#: Reset arguments for an episode whose own start is unknown.
NO_START: Mapping[str, Any] = {"seed": 0, "options": None}

#: Sets a simulator to the state given by one row of observations and one row of states.
Place = Callable[[Any, Any], None]


@dataclass
class Steps:
    """The recorded and the simulated results of ``T`` steps, by column."""

    recorded: dict[Path, Any]
    simulated: dict[Path, list[Any]] = field(default_factory=dict)

    def take(self, results: Mapping[str, Any]) -> None:
        """Add the results of one step."""
        for path in self.recorded:
            self.simulated.setdefault(path, []).append(at(results, path))

    def largest(self, row: int) -> tuple[Path, int, float]:
        """Return column, row and size of the largest absolute difference from ``row`` on."""
        found: tuple[Path, int, float] = ((), row, -1.0)
        for path in self.recorded:
            gaps = np.max(self._differences(path)[row:], axis=1, initial=0)
            gaps[np.isinf(gaps)] = 1.0  # a different flag or text
            if gaps.max() > found[2]:
                found = path, row + int(gaps.argmax()), float(gaps.max())
        return found

    def excess(self, path: Path, share: float, floor: float = FLOOR) -> np.ndarray:
        """Return the largest difference in each row over the allowed one, shape ``(T,)``.

        Args:
            path: path of the column.
            share: share of the range of each element that is allowed on top of the floor.
            floor: allowed relative difference, and the most that is allowed as an absolute one.
        """
        differences = self._differences(path)
        allowed = np.full_like(differences, floor)
        if _is_continuous(self.recorded[path]):
            recorded = np.nan_to_num(_flat(self.recorded[path]))
            is_exact = floor <= ROUNDING  # less than any spread could allow
            if self.recorded[path].dtype.kind == "f" and not is_exact:  # bytes differ by 1 at least
                # All values of a column may be below FLOOR. A few large ones, such as a terminal
                # reward, do not count.
                spread = np.subtract(*np.percentile(recorded, [95, 5], axis=0))
                allowed = np.minimum(allowed, 10 * ROUNDING + floor * spread)
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
        """Return the paths of the observations, and of the states if they are compared."""
        return (path for path in self.recorded if path[0] in ("observations", "infos"))

    def at_rounding(self) -> np.ndarray:
        """Return which rows agree in all observations up to rounding, shape ``(T,)``."""
        gaps = [self.excess(path, 0, ROUNDING) for path in self.observed()]
        return np.all([gap <= 1 for gap in gaps], axis=0)

    def worst(self, rows: np.ndarray, share: float) -> tuple[Path, int]:
        """Return the column and the row of the largest excess among ``rows``."""
        excess = {path: self.excess(path, share)[rows] for path in self.recorded}
        path = max(excess, key=lambda path: float(excess[path].max()))
        return path, int(rows[int(excess[path].argmax())])

    def values(self, path: Path, row: int) -> str:
        """Describe both values of a row, at the element that differs most."""
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
    """The result of comparing an episode with its simulated steps."""

    agrees: bool
    row: int = 0
    """Index of the first step that does not agree."""
    path: Path = ()
    why: str = ""
    is_error: bool = False
    """Whether the recording is wrong, not only rounded differently."""
    n_steps: int = 0
    """Number of steps beyond the tolerance."""


AGREES = Verdict(agrees=True)


@dataclass(frozen=True)
class Tolerance:
    """Allowed differences of single steps, as shares of a recorded column's range in an episode."""

    half: float
    """Allowed for half of the steps."""
    most: float
    """Allowed for all but a few steps, such as those at a threshold."""
    few: float
    """Share of the steps that may exceed ``most`` without being an error."""


#: For steps from recorded states on the same simulator, with other versions of NumPy or another
#: platform, which round differently.
ROUNDED = Tolerance(half=0, most=0, few=0.02)
#: For steps from recorded states, on other versions of the simulator.
BY_STATE = Tolerance(half=0.02, most=0.1, few=0.02)
#: For steps from observations, which may omit details; Hopper's, for example, clip velocities.
BY_OBSERVATION = Tolerance(half=0, most=0.01, few=0.5)
#: For steps from observations of an episode that left the recording when run from its start.
#: That may be drift, or one changed value that a share of the range would hide.
AFTER_DRIFT = Tolerance(half=0, most=0, few=0.5)


def compare_steps(steps: Steps, tolerance: Tolerance) -> Verdict:
    """Compare steps that were each simulated from their recorded state or observation."""
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


def compare_run(steps: Steps) -> Verdict:
    """Compare an episode that was simulated from its start and may drift."""
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
    """Return a verdict if a reward or flag differs although all observations agree."""
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
    """Simulate the first steps of an episode and return them beside the recorded ones.

    Args:
        env: the environment, which is reset first.
        episode: the recorded episode.
        start: arguments of ``reset``.
        n_steps: number of steps to simulate.
        place: sets the simulator to the recorded state before each step.
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
        warnings.simplefilter("ignore")  # the recording may step past the environment's end
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
                # A collector truncates an episode that it stops early.
                "truncations": bool(truncated) or (closed and bool(episode.truncations[row])),
            }
            if states:
                results["infos"] = {"state": copy.deepcopy(simulator_state(env))}
            steps.take(results)
    return steps


def placing(env: gym.Env, episode: Episode, start: Mapping[str, Any]) -> tuple[Place | None, bool]:
    """Return how to set ``env`` to a recorded step, and whether that uses recorded states.

    Each way is tested first: a random walk of ``env`` must be reproduced when the simulator is set
    before each step. An environment that keeps other state has no way.
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
        # The unknown seed decides chance and hidden goals, so test with a different one.
        start = {**start, "seed": 1} if start is NO_START else start
        steps = simulate(env, walk, start, walk.n_steps or 0, place=place)
        return bool(walk.n_steps) and all((steps.excess(p, 0) <= 1).all() for p in steps.recorded)
    except Exception:  # a third-party environment may raise anything when its state is set
        return False


def walk_of(env: gym.Env, start: Mapping[str, Any]) -> Episode:
    """Return an episode of a few random actions, with the simulator's states if it has any."""
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
    except Exception:  # there is no state
        return {}


def states_of(episode: Episode) -> dict[str, Any]:
    """Return the columns of the recorded simulator's state, empty if there are none."""
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


#: Functions from an observation of Gymnasium's classic environments to their state.
CLASSIC: dict[str, Callable[[np.ndarray], Any]] = {
    "CartPoleEnv": lambda o: o,
    "MountainCarEnv": lambda o: o,
    "Continuous_MountainCarEnv": lambda o: o,
    "PendulumEnv": lambda o: np.array([_angle(o[0], o[1]), o[2]]),
    "AcrobotEnv": lambda o: np.array([_angle(o[0], o[1]), _angle(o[2], o[3]), o[4], o[5]]),
}


def _by_observation(env: gym.Env) -> Iterator[Place]:
    """Yield ways to set the state from an observation, each of them still to be tested."""
    base: Any = env.unwrapped
    if read := CLASSIC.get(type(base).__name__):

        def place(observation: Any, state: Any) -> None:
            base.state = read(np.asarray(observation, dtype=np.float64))
            base.steps_beyond_terminated = None

        yield place
    inner = getattr(base, "point_env", base)
    if hasattr(inner, "set_state") and hasattr(inner, "data"):
        for hidden in (0, 1, 2):  # observations often omit positions with no effect
            yield _positions_first(base, inner, hidden)


def _positions_first(base: Any, inner: Any, hidden: int) -> Place:
    """Return a way for MuJoCo's order: positions after the ``hidden`` first, then velocities."""
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
    """Return the value at ``path`` in an observation or info, or ``MISSING``."""
    try:
        for key in path:
            value = value[key]
    except (LookupError, TypeError):
        return MISSING
    return value


def row_of(columns: Any, row: int) -> Any:
    """Return a copy of one row of a tree of columns, because environments may modify it."""
    return map_leaves(lambda column: copy.copy(column[row]), columns)
