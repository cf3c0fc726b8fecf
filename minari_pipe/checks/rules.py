"""Check steps that replay could not verify against the environment's own rules.

Gymnasium's toy environments have a table ``P`` of their transitions, goal environments have the
function ``compute_reward``. Neither needs a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.checks.environment import recorded_fault, recover, spec_fault
from minari_pipe.checks.stepwise import FLOOR, walk_of

WALKS = 3
#: Wrappers that change neither observations nor rewards.
PLAIN = (TimeLimit, OrderEnforcing, PassiveEnvChecker)


class Contradiction(NamedTuple):
    """Steps that violate a rule."""

    column: str
    steps: np.ndarray
    message: str
    is_error: bool = True
    """False if something that the rule leaves out, such as a penalty, may explain the steps."""


Rule = Callable[[Any, Episode], Contradiction | None]


class Rules(Check):
    """Checks that every step is in the table ``P`` and every reward is that of ``compute_reward``.

    Episodes that replay verified or found wrong are skipped. A rule counts only if random walks of
    the environment obey it. Only ``PLAIN`` wrappers are allowed, as others may act after the walks.
    Dense rewards that differ in at most half of the steps are a warning: highway-env's parking
    adds a penalty for a crash to ``compute_reward``.
    """

    name = "rules"
    warnings = ("other-rewards",)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._env: gym.Env | None = None
        self._base: Any = None
        self._rules: list[Rule] | None = None

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if episode.is_verified or episode.faults or not episode.n_steps:
            return
        if self._rules is None:
            self._rules = self._obeyed()
        if self._rules and recorded_fault(self.subject, episode):
            return
        for rule in self._rules:
            if (wrong := rule(self._base, episode)) is not None:
                where = episode.path(wrong.column)
                message = (
                    f"{len(wrong.steps)} of {episode.n_steps} steps contradict the environment, "
                    f"first at step {wrong.steps[0]}: {wrong.message}"
                )
                if wrong.is_error:
                    yield self.error(where, message)
                else:
                    yield self.warning(where, message, "other-rewards")

    def _obeyed(self) -> list[Rule]:
        """Return the rules that the environment has and obeys."""
        spec = self.subject.environment
        if spec is None or spec_fault(self.subject, spec):
            return []
        try:
            self._env = env = recover(self.subject, spec)
            self._base = env.unwrapped
            rules = [rule for attribute, rule in RULES if hasattr(self._base, attribute)]
            if not rules or not _is_plain(env):
                return []
            starts = [{"seed": seed, "options": None} for seed in range(WALKS)]
            walks = [walk_of(env, start) for start in starts]
        except Exception:  # a third-party environment may raise anything
            return []
        return [rule for rule in rules if all(_obeys(rule, self._base, walk) for walk in walks)]

    def finish(self) -> Iterator[Finding]:
        if self._env is not None:
            self._env.close()
        yield from ()


def _is_plain(env: gym.Env) -> bool:
    """Return whether no wrapper or option changes steps that the rules describe."""
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, PLAIN):
            return False
        env = env.env
    return not getattr(env, "fickle_passenger", False)  # Taxi's table leaves this option out


def _obeys(rule: Rule, base: Any, walk: Episode) -> bool:
    try:
        return rule(base, walk) is None
    except Exception:  # the table or the function is not like Gymnasium's
        return False


def _in_table(base: Any, episode: Episode) -> Contradiction | None:
    states, actions, rewards = episode.observations, episode.actions, episode.rewards
    steps = list(
        zip(
            states[:-1].tolist(),
            actions.tolist(),
            states[1:].tolist(),
            rewards.tolist(),
            episode.terminations.tolist(),
            strict=True,
        )
    )
    wrong = np.flatnonzero(
        [(n, r, bool(d)) not in _outcomes(base, s, a) for s, a, n, r, d in steps]
    )
    if not wrong.size:
        return None
    state, action, following, reward, terminated = steps[wrong[0]]
    message = (
        f"its table P has no {'' if terminated else 'non-'}terminal transition from {state} by "
        f"action {action} to {following} with reward {reward:g}"
    )
    return Contradiction("observations", wrong, message)


def _outcomes(base: Any, state: int, action: int) -> set[tuple[int, float, bool]]:
    """Return the next states, rewards and ends with a probability above 0."""
    return {(int(n), float(r), bool(end)) for p, n, r, end in base.P[state][action] if p > 0}


def _by_compute_reward(base: Any, episode: Episode) -> Contradiction | None:
    goals = [episode.observations[key][1:] for key in ("achieved_goal", "desired_goal")]
    computed = np.asarray(base.compute_reward(*goals, {}), dtype=np.float64) + 0.0  # no -0.0
    # Not exact, because other versions round differently.
    same = np.isclose(episode.rewards, computed, rtol=FLOOR, atol=FLOOR)
    wrong = np.flatnonzero(~same.reshape(len(episode.rewards)))
    if not wrong.size:
        return None
    recorded, expected = episode.rewards[wrong[0]], computed[wrong[0]]
    message = f"recorded {recorded:g}, but compute_reward gives {expected:g} for the recorded goals"
    is_sparse = len(np.unique(computed)) <= 2
    return Contradiction("rewards", wrong, message, is_sparse or 2 * wrong.size > computed.size)


#: Rules by the attribute of the environment that states them.
RULES: tuple[tuple[str, Rule], ...] = (("P", _in_table), ("compute_reward", _by_compute_reward))
