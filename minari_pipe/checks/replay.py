"""Simulate recorded episodes again and compare the results with the recordings.

An episode can be replayed if it has its own seed (with the options of its reset), or if the
simulator's state at its start is known: from the option ``initial_state_dict``, or from the first
row of ``infos/state`` if the environment accepts one. It is replayed twice: in a fresh environment,
and in one that has just run another episode, to find state that leaks from one into the next.

Replay compares observations, rewards, flags and, if it was recorded, the simulator's state. Infos
of the environment itself may hold times and the like, so a difference in them is only a warning.

On the packages and the platform that made the data, values must be exactly equal. Elsewhere
simulators round differently, and contacts are chaotic: the 25 human door demonstrations, made with
mujoco 3.11.0 and replayed with 3.3.5, agree within 4e-7 in the first ten steps and within 1e-3
before the 35th step, and none of them agrees to its end. So elsewhere (:mod:`checks.stepwise` has
the tolerances):

- if states were recorded and the environment can be set to them, each observation is compared with
  that of its recorded state, and each step is simulated from there, within rounding unless the
  simulator is another version;
- otherwise the episode is simulated from its start. One that drifts away is simulated step by step
  if its observations determine the state; if not, its rest is not verified, and a warning counts
  it. Anything that rounding cannot explain is an error: a different reward or flag although the
  observations agree, a jump, or a difference in the first steps.

An episode with an unknown start is simulated step by step if possible; a warning counts such
episodes either way.
"""

from __future__ import annotations

import copy
import platform
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from packaging.utils import canonicalize_name

from minari_pipe.checks.advisory import installed_version, pinned_versions, spec_id
from minari_pipe.checks.base import MISSING, Check, Episode, Finding, Subject, shown
from minari_pipe.checks.coverage import Coverage
from minari_pipe.checks.environment import recorded_fault, recover, spec_fault
from minari_pipe.checks.pictures import picture_difference
from minari_pipe.checks.state_view import StateView
from minari_pipe.checks.stepwise import (
    AFTER_DRIFT,
    BY_OBSERVATION,
    BY_STATE,
    FLOOR,
    NO_START,
    ROUNDED,
    Place,
    Steps,
    Tolerance,
    Verdict,
    at,
    compare_run,
    compare_steps,
    placing,
    row_of,
    simulate,
    states_of,
)
from minari_pipe.core import environments
from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import Path, join_path, leaves, map_leaves
from minari_pipe.policies.rollout import simulator_state

NOT_REPLAYED = "not-replayed"
NOT_VERIFIED = "not-verified"
INEXACT_STEPS = "inexact-steps"
#: Kinds of numeric dtypes; a recorder widens a column from one to the next if a value needs it.
NUMBERS = "biufc"


@dataclass(frozen=True)
class Divergence:
    """The first difference between a replay and its recording."""

    step: int
    """Index of the step, -1 for the reset."""
    path: str
    message: str
    failed: bool = False
    """Whether the environment raised, which rounding cannot explain."""
    is_error: bool = True
    """False for infos, which may hold values outside the simulation, such as a time."""


@dataclass
class Inexact:
    """Counts episodes that differ from their recordings by no more than rounding may explain."""

    first: str
    episodes: int = 0
    steps: int = 0
    difference: float = -1.0
    largest: str = ""

    def add(self, episode: Episode, verdict: Verdict, steps: Steps) -> None:
        """Count an episode and keep the largest difference."""
        self.episodes += 1
        self.steps += verdict.n_steps
        path, row, difference = steps.largest(verdict.row)
        if difference > self.difference:
            self.difference = difference
            where = episode.path(join_path(path))
            self.largest = f"the largest difference is {difference:.3g}, at {where}, step {row}"


class Replay(Check):
    """Simulates recorded episodes again; reports the first diverging step of each.

    The environment need not truncate a last step that was recorded as truncated: the collector
    may have closed the episode there because the actions ran out.
    """

    name = "replay"
    warnings = (NOT_REPLAYED, NOT_VERIFIED, INEXACT_STEPS)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.coverage = Coverage()
        self._used: gym.Env | None = None
        """An environment that has run one earlier episode and nothing else."""
        self._takes_state = False
        self._seen_steps = 0
        self._env: gym.Env | None = None
        """An environment for episodes that are not compared exactly."""
        self._way: tuple[Place | None, bool] | None = None
        """How to set its state from a recording, and whether recorded states are used."""
        self._view: StateView | None = None
        """Observations of recorded states, if those are used."""
        self._by_state = ROUNDED
        """The tolerance of steps from recorded states, by what differs from the recording."""
        self._inexact: dict[str, Inexact] = {}
        self._images: set[Path] = set()

    def begin(self) -> Iterator[Finding]:
        subject, coverage = self.subject, self.coverage
        spec = subject.environment
        if spec is None:
            coverage.applicable, coverage.reason = False, "the dataset has no environment"
        elif fault := spec_fault(subject, spec):
            # The environment check already reports this fault.
            coverage.applicable, coverage.reason = False, f"env_spec {fault}"
        elif subject.options.replay_tolerance:
            coverage.exact, coverage.tolerance = False, subject.options.replay_tolerance
        elif elsewhere := _elsewhere(subject, spec):
            coverage.exact, coverage.tolerance = False, FLOOR
            coverage.reason, self._by_state = elsewhere
        if coverage.applicable:
            with closing(recover(subject, str(spec))) as env:
                self._takes_state = hasattr(env.unwrapped, "set_env_state")
        space = subject.observation_space
        if subject.metadata.get("jpeg_encoding") and space is not None:
            # JPEG is lossy, so replayed pictures match the recorded ones only approximately.
            self._images = {path for path, leaf in space_leaves(space) if is_image_space(leaf)}
        yield from ()

    def episode(self, episode: Episode) -> Iterator[Finding]:
        coverage = self.coverage
        if not coverage.applicable:
            return
        if episode.faults:
            coverage.faulty += 1
            return
        start = reset_arguments(episode, takes_state=self._takes_state)
        if fault := recorded_fault(self.subject, episode, start and start["options"]):
            yield self.error(*fault)
            return
        n_steps = self._share(episode.n_steps or 0)
        if start is None:
            coverage.not_replayable += 1
        if n_steps == 0:
            coverage.not_selected += start is not None
            return
        if start is None:
            if self._way_to_place(episode, NO_START)[0] is not None:
                coverage.steps += n_steps
                yield from self._step_by_step(episode, NO_START, n_steps, BY_OBSERVATION)
            return
        coverage.replayed += 1
        coverage.steps += n_steps
        if coverage.reason:
            yield from self._elsewhere(episode, start, n_steps)
            return
        divergence, where = self._replay_twice(episode, start, n_steps)
        if divergence is None:
            episode.is_verified = n_steps == episode.n_steps
            episode.is_exact = episode.is_verified and coverage.exact
            return
        finding = self.error if divergence.is_error else self.warning
        yield finding(divergence.path, f"{divergence.message} ({where})")

    def finish(self) -> Iterator[Finding]:
        for env in (self._used, self._env):
            if env is not None:
                env.close()
        yield from self._counted()

    def _elsewhere(
        self, episode: Episode, start: Mapping[str, Any], n_steps: int
    ) -> Iterator[Finding]:
        """Simulate an episode on other versions or another platform than made it."""
        place, by_state = self._way_to_place(episode, start)
        steps = self._simulated(episode, start, n_steps, place if by_state else None)
        if isinstance(steps, Finding):
            yield steps
        elif by_state:
            verdict = compare_steps(steps, self._by_state)
            yield from self._reported(episode, steps, verdict, INEXACT_STEPS)
        else:
            verdict = compare_run(steps)
            if verdict.agrees or verdict.is_error or place is None:
                yield from self._reported(episode, steps, verdict, NOT_VERIFIED)
            else:
                yield from self._step_by_step(episode, start, n_steps, AFTER_DRIFT)

    def _step_by_step(
        self, episode: Episode, start: Mapping[str, Any], n_steps: int, tolerance: Tolerance
    ) -> Iterator[Finding]:
        """Simulate each step from the observation before it, if that determines the state."""
        place, _ = self._way_to_place(episode, start)
        if place is None:
            return
        steps = self._simulated(episode, start, n_steps, place)
        if isinstance(steps, Finding):
            yield steps
        else:
            verdict = compare_steps(steps, tolerance)
            if self._by_state is BY_STATE and not verdict.agrees:
                # Another simulator may explain it, but an action's effect may be as small.
                is_error = compare_steps(steps, BY_STATE).is_error
                verdict = replace(verdict, is_error=is_error)
            yield from self._reported(episode, steps, verdict, INEXACT_STEPS)

    def _way_to_place(
        self, episode: Episode, start: Mapping[str, Any]
    ) -> tuple[Place | None, bool]:
        """Return how to set the environment to a recorded step; determined once."""
        if self._env is None:
            self._env = recover(self.subject, str(self.subject.environment))
        if self._way is None:
            self._way = placing(self._env, episode, start)
            if self._way[0] is not None and self._way[1]:
                self._view = StateView(self._env, self._way[0], start)
        place, by_state = self._way
        return (None, False) if by_state and not states_of(episode) else (place, by_state)

    def _simulated(
        self, episode: Episode, start: Mapping[str, Any], n_steps: int, place: Place | None
    ) -> Steps | Finding:
        """Simulate the steps; return a finding if the start differs or the simulator fails."""
        assert self._env is not None, "_way_to_place() comes first"
        self.coverage.stepwise += place is not None
        try:
            first, info = self._env.reset(**copy.deepcopy(dict(start)))
            episode.replayed_infos |= _not_finite(info, episode)
            states = {} if place else _state_columns(self._env, episode, info)
            divergence = None
            if start is not NO_START:
                divergence = self.compare_observation(episode, -1, first)
                divergence = divergence or self._compare_state(self._env, episode, -1, states)
            if divergence is not None:
                return self.error(divergence.path, divergence.message)
            if place and self._view and (wrong := self._view.compare(episode, start, n_steps)):
                return self.error(episode.path(join_path(wrong[0])), wrong[1])
            return simulate(
                self._env, episode, start, n_steps, place=place, states=states, skip=self._images
            )
        except Exception as exc:  # a simulator may raise anything on recorded data
            what = f"{type(exc).__name__}: {shown(exc, 200)}"
            return self.error(episode.path(), f"the replay failed with {what}")

    def _reported(
        self, episode: Episode, steps: Steps, verdict: Verdict, kind: str
    ) -> Iterator[Finding]:
        """Report an error, or count a difference that may be rounding."""
        if verdict.agrees:
            episode.is_verified = len(episode.rewards) == len(steps.recorded["rewards",])
            return
        where = episode.path(join_path(verdict.path))
        values = steps.values(verdict.path, verdict.row)
        if verdict.is_error:
            why = f", {verdict.why}" if verdict.why else ""
            yield self.error(where, f"step {verdict.row}: {values}{why}")
            return
        self.coverage.drifted += kind == NOT_VERIFIED
        self._inexact.setdefault(kind, Inexact(f"{where}, step {verdict.row}")).add(
            episode, verdict, steps
        )

    def _counted(self) -> Iterator[Finding]:
        """Yield one warning per reason why episodes were not or only partly verified."""
        coverage = self.coverage
        differences = [inexact.difference for inexact in self._inexact.values()]
        coverage.largest_difference = max(differences, default=0.0)
        total = self.subject.metadata.get("total_episodes")
        if self.subject.environment is None and total:
            yield self.warning(
                "dataset",
                f"no environment is recorded, so none of the {total} episodes was replayed",
                NOT_REPLAYED,
            )
        if coverage.not_replayable:
            yield self.warning(
                "dataset",
                f"{coverage.not_replayable} of {total} episodes have neither a seed nor a state to "
                f"start from, so they were not replayed; "
                f"{min(coverage.stepwise, coverage.not_replayable)} of them were simulated step by "
                f"step instead",
                NOT_REPLAYED,
            )
        versions = f" ({coverage.reason})" if coverage.reason else ""
        if inexact := self._inexact.get(NOT_VERIFIED):
            yield self.warning(
                "dataset",
                f"{inexact.episodes} of {total} episodes diverge from the recording and are not "
                f"verified beyond that step, first at {inexact.first}{versions}; {inexact.largest}",
                NOT_VERIFIED,
            )
        if inexact := self._inexact.get(INEXACT_STEPS):
            yield self.warning(
                "dataset",
                f"{inexact.steps} of {coverage.steps} steps, each simulated from the recorded "
                f"state, differ by more than the tolerance, first at "
                f"{inexact.first}{versions}; {inexact.largest}",
                INEXACT_STEPS,
            )

    def _share(self, n_steps: int) -> int:
        """Return how many steps of this episode to replay: all or none, spread over the dataset.

        The first episode is always replayed, in part if it exceeds the budget.
        """
        budget = self.subject.options.replay_steps
        self._seen_steps += n_steps
        total = self.subject.metadata.get("total_steps")
        if budget is None or not isinstance(total, int) or total <= budget:
            return n_steps
        spent = self.coverage.steps
        if spent == 0:
            return min(n_steps, budget)
        fits = spent + n_steps <= budget
        return n_steps if fits and spent + n_steps / 2 <= self._seen_steps * budget / total else 0

    def _replay_twice(
        self, episode: Episode, start: Mapping[str, Any], n_steps: int
    ) -> tuple[Divergence | None, str]:
        """Return the first divergence and the kind of environment that it happened in."""
        fresh = recover(self.subject, str(self.subject.environment))
        first = self._replay(fresh, episode, start, n_steps)
        if first is not None and first.is_error:
            fresh.close()
            return first, "fresh environment"
        used = self._used or self._warm(episode, start, n_steps)
        second = self._replay(used, episode, start, n_steps)
        used.close()
        self._used = fresh
        if first is not None and (second is None or not second.is_error):
            return first, "fresh environment"
        return second, "environment that had just run another episode"

    def _warm(self, episode: Episode, start: Mapping[str, Any], n_steps: int) -> gym.Env:
        """Return an environment that has run the same actions from another seed."""
        env = recover(self.subject, str(self.subject.environment))
        seed = (start["seed"] + 1) % 2**31
        try:
            env.reset(seed=seed)
        except Exception:  # some environments cannot reset without options
            env.reset(seed=seed, options=copy.deepcopy(start["options"]))
        for step in range(n_steps):
            try:
                *_, terminated, truncated, _ = env.step(row_of(episode.actions, step))
            except Exception:  # the action may be illegal in the states of another seed
                break
            if terminated or truncated:
                break
        return env

    def _replay(
        self, env: gym.Env, episode: Episode, start: Mapping[str, Any], n_steps: int
    ) -> Divergence | None:
        step = -1
        try:
            observation, info = env.reset(**copy.deepcopy(dict(start)))
            states = _state_columns(env, episode, info)
            found = self.compare_observation(episode, step, observation)
            found = found or self._compare_state(env, episode, step, states)
            of_infos = self._compare_infos(episode, step, info)
            while found is None and step + 1 < n_steps:
                step += 1
                action = row_of(episode.actions, step)
                observation, reward, terminated, truncated, info = env.step(action)
                of_infos = of_infos or self._compare_infos(episode, step, info)
                found = self.compare_observation(episode, step, observation)
                found = found or self._compare_reward(episode, step, reward)
                found = found or _compare_flags(episode, step, terminated, truncated)
                found = found or self._compare_state(env, episode, step, states)
        except Exception as exc:  # a simulator may raise anything on recorded data
            what = f"{type(exc).__name__}: {shown(exc, 200)}"
            message = f"{_named(step)}: the replay failed with {what}"
            return Divergence(step, episode.path(), message, failed=True)
        return found or of_infos

    def compare_observation(
        self, episode: Episode, step: int, observation: Any
    ) -> Divergence | None:
        """Return how an observation differs from the recorded one, or None.

        Args:
            episode: the episode.
            step: index of the step that gave it, -1 for the reset.
            observation: what the environment returned.
        """
        row = step + 1
        for path, column in leaves(episode.observations):
            difference = picture_difference if path in self._images else self._difference
            replayed = at(observation, path)
            if replayed is MISSING:
                message = f"{_named(step)}: the replay has no such value"
            elif different := difference(column[row], replayed):
                message = f"{_named(step)} (row {row}): {different}"
            else:
                continue
            where = episode.path(join_path(("observations", *path)))
            return Divergence(step, where, message)
        return None

    def _compare_infos(self, episode: Episode, step: int, info: Any) -> Divergence | None:
        """Compare the infos that both have; skip rows that the collector filled."""
        for path, column in leaves(episode.infos or {}):
            replayed = at(info, path)
            if replayed is MISSING or (replayed is None and _is_filled(episode, path, step + 1)):
                continue
            episode.replayed_infos.add(path)
            try:
                difference = self._difference(column[step + 1], replayed)
            except (TypeError, ValueError) as exc:
                difference = f"the replayed value has another type ({exc})"
            if difference:
                where = episode.path(join_path(("infos", *path)))
                message = f"{_named(step)} (row {step + 1}): {difference}"
                return Divergence(step, where, message, is_error=False)
        return None

    def _compare_state(
        self, env: gym.Env, episode: Episode, step: int, columns: Mapping[Path, Any]
    ) -> Divergence | None:
        """Compare the simulator's state; if it differs, the replay is another episode."""
        if not columns:
            return None
        row = step + 1
        for path, replayed in leaves(simulator_state(env)):
            difference = self._difference(columns[path][row], replayed)
            if difference:
                where = episode.path(join_path(("infos", "state", *path)))
                return Divergence(step, where, f"{_named(step)} (row {row}): {difference}")
        return None

    def _compare_reward(self, episode: Episode, step: int, reward: Any) -> Divergence | None:
        scalar = np.asarray(reward).reshape(()) if np.size(reward) == 1 else reward
        difference = self._difference(np.float64(episode.rewards[step]), scalar)
        if difference is None:
            return None
        return Divergence(step, episode.path("rewards"), f"{_named(step)}: {difference}")

    def _difference(self, recorded: Any, replayed: Any) -> str | None:
        """Return ``recorded 0.1, replayed 0.2`` for the first different element, or ``None``."""
        if replayed is None:
            return f"recorded {shown(recorded)}, replayed None"
        if isinstance(recorded, str):
            same = recorded == replayed
            return None if same else f"recorded {recorded!r}, replayed {replayed!r}"
        recorded = np.asarray(recorded)
        replayed = np.asarray(replayed)
        if replayed.shape != recorded.shape:
            return f"recorded shape {recorded.shape}, replayed {replayed.shape}"
        # The recorder casts values to the dtype of the column.
        replayed = replayed.astype(recorded.dtype, copy=False)
        same = recorded == replayed
        if same.all():
            return None
        if recorded.dtype.kind in "fc":
            same |= np.isnan(recorded) & np.isnan(replayed)
        tolerance = self.coverage.tolerance
        if tolerance and recorded.dtype.kind == "f":
            same |= np.isclose(recorded, replayed, rtol=tolerance, atol=tolerance)
        if same.all():
            return None
        index = tuple(int(i) for i in np.argwhere(~same)[0])
        element = f" at element {index[0] if len(index) == 1 else index}" if index else ""
        return f"recorded {recorded[index]!s}, replayed {replayed[index]!s}{element}"


def reset_arguments(episode: Episode, *, takes_state: bool) -> dict[str, Any] | None:
    """Return the arguments of ``reset`` that restart ``episode``, or ``None`` if unknown.

    Args:
        episode: the episode.
        takes_state: whether the environment's ``reset`` takes an ``initial_state_dict``.
    """
    seed, options = episode.metadata.get("seed"), episode.metadata.get("options")
    if seed is not None:
        return {"seed": int(seed), "options": options}
    # An episode without a seed may use any seed, as long as it is always the same one.
    if isinstance(options, Mapping) and "initial_state_dict" in options:
        return {"seed": 0, "options": options}
    state = episode.infos.get("state") if isinstance(episode.infos, Mapping) else None
    if takes_state and isinstance(state, Mapping) and state:
        first = map_leaves(lambda column: column[0], dict(state))
        return {"seed": 0, "options": {**(options or {}), "initial_state_dict": first}}
    return None


def platform_name() -> str:
    """Return the system and machine, which affect floating-point results beside the packages."""
    return f"{platform.system()}-{platform.machine()}"


def _elsewhere(subject: Subject, spec: str) -> tuple[str, Tolerance] | None:
    """Return why a replay here may differ by rounding, or ``None`` if it must be exact.

    The tolerance of a step from a recorded state comes with it; only another simulator is given
    more than rounding.
    """
    other = _other_versions(subject, spec)
    tolerance = ROUNDED if other.keys() <= {"numpy"} else BY_STATE
    recorded = subject.options.recorded_platform
    if recorded is not None and recorded != platform_name():
        return f"made on {recorded}, replayed on {platform_name()}", tolerance
    for name, version in other.items():
        installed = installed_version(name) or "none"
        return f"made with {name} {version}, replayed with {installed}", tolerance
    return None


def _other_versions(subject: Subject, spec: str) -> dict[str, str]:
    """Return the pinned versions that differ here and may matter: simulators, then NumPy."""
    pins = pinned_versions(subject.metadata.get("requirements"))
    other = {name: pins[name] for name in sorted(pins) if pins[name] != installed_version(name)}
    if not other:
        return other
    try:
        matter = {canonicalize_name(name) for name in environments.packages_of(spec_id(spec) or "")}
    except Exception:  # the id is not registered, so every pin may matter
        matter = {canonicalize_name(name) for name in other}
    names = [name for name in other if name in matter and name != "numpy"]
    return {name: other[name] for name in (*names, "numpy") if name in other}


def _compare_flags(
    episode: Episode, step: int, terminated: Any, truncated: Any
) -> Divergence | None:
    last = step == (episode.n_steps or 0) - 1
    for name, replayed in (("terminations", terminated), ("truncations", truncated)):
        recorded = bool(getattr(episode, name)[step])
        closed_by_collector = name == "truncations" and last and recorded and not terminated
        if recorded != bool(replayed) and not closed_by_collector:
            message = f"{_named(step)}: recorded {recorded}, replayed {bool(replayed)}"
            return Divergence(step, episode.path(name), message)
    return None


def _state_columns(env: gym.Env, episode: Episode, info: Any) -> dict[Path, Any]:
    """Return the columns of the recorded simulator state, empty if there are none to compare.

    An environment or another recorder may have an info of its own called ``state``. The columns
    are the simulator's only if keys and shapes match and the same ones are numeric.
    """
    recorded = episode.infos.get("state") if isinstance(episode.infos, Mapping) else None
    if not isinstance(recorded, Mapping) or at(info, ("state",)) is not MISSING:
        return {}
    columns = dict(leaves(map_leaves(np.asarray, dict(recorded))))
    try:
        state = dict(leaves(map_leaves(np.asarray, simulator_state(env))))
    except Exception:  # there is no state, or a third-party get_env_state raises
        return {}
    same = state.keys() == columns.keys() and all(
        value.shape == columns[path].shape[1:]
        and (value.dtype.kind in NUMBERS) == (columns[path].dtype.kind in NUMBERS)
        for path, value in state.items()
    )
    return columns if same else {}


def _not_finite(info: Any, episode: Episode) -> set[Path]:
    """Return the recorded infos for which the environment itself gives NaN or infinity."""
    values = {path: at(info, path) for path, _ in leaves(episode.infos or {})}
    numbers = {p: np.asarray(v) for p, v in values.items() if np.asarray(v).dtype.kind == "f"}
    return {path for path, value in numbers.items() if not np.isfinite(value).all()}


def _is_filled(episode: Episode, path: Path, row: int) -> bool:
    """Return whether the collector filled this row of an info that the environment left out."""
    ranges = episode.infos_filled.get(join_path(path), [])
    before = bisect_right(ranges, row, key=lambda pair: pair[0])
    return before > 0 and row < ranges[before - 1][1]


def _named(step: int) -> str:
    return "reset" if step < 0 else f"step {step}"
