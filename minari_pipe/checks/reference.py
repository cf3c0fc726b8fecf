"""Compare reference scores with the random policy, the time limit and the episodes' returns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.checks.environment import recover, spec_fault
from minari_pipe.checks.flags import limit_of
from minari_pipe.checks.scores import EPISODES, NAMES
from minari_pipe.core.metadata import is_finite_number
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import run_episodes

#: Limits of the random policy; it runs as many episodes as fit if each reaches the time limit.
MAX_EPISODES = 10
MAX_STEPS = 10_000
STDERRS = 5.0
#: A mean return may always be off by this share of ``ref_max_score - ref_min_score``. For sparse
#: rewards the share is half, because a few episodes may miss a rare success.
SHARE = 0.05
#: A sparse task has at most FEW different rewards, a dense one more than MANY.
FEW, MANY = 3, 20
#: Episodes with a mean normalized score below this are not an expert's.
MIN_SCORE = 0.25


class Reference(Check):
    """Warns of reference scores that probably belong to another environment or horizon.

    The random policy runs in the evaluation environment for at most ``MAX_EPISODES`` episodes,
    ``MAX_STEPS`` steps and the step budget of replay. If a dataset is called an expert's, its
    returns are compared with the scores as well.
    """

    name = "reference"
    warnings = ("random-policy-score", "unreachable-score", "not-expert")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._returns: list[float] = []
        self._n_steps = 0
        self._rewards: set[float] = set()
        """Different rewards; none are added once there are more than ``FEW``."""
        scores: list[Any] = [subject.metadata.get(name) for name in NAMES]
        given = all(map(is_finite_number, scores)) and scores[0] < scores[1]
        self._scores = (float(scores[0]), float(scores[1])) if given else None
        self._spec = subject.metadata.get("eval_env_spec") or subject.environment

    def episode(self, episode: Episode) -> Iterator[Finding]:
        if not episode.faults and episode.n_steps:
            self._returns.append(float(episode.rewards.sum()))
            self._n_steps += episode.n_steps
            if len(self._rewards) <= FEW:
                self._rewards.update(np.unique(episode.rewards)[: FEW + 1].tolist())
        yield from ()

    def finish(self) -> Iterator[Finding]:
        if self._scores is None:
            return
        low, high = self._scores
        if self._returns:
            yield from self._not_expert(low, high)
            yield from self._unreachable(high)
        yield from self._random(low, high)

    def _not_expert(self, low: float, high: float) -> Iterator[Finding]:
        made, evaluated = limit_of(self.subject.environment), limit_of(self._spec)
        if made and evaluated and made < evaluated:
            return  # shorter episodes have other returns
        metadata = self.subject.metadata
        name = str(metadata.get("dataset_id")).rpartition("/")[2]
        claims = [text for text in (name, metadata.get("algorithm_name")) if _says_expert(text)]
        score = (float(np.mean(self._returns)) - low) / (high - low)
        if claims and score < MIN_SCORE:
            yield self.warning(
                "dataset",
                f"is called {claims[0]!r}, but the mean normalized score of its "
                f"{len(self._returns)} episodes is {score:.2f}",
                "not-expert",
            )

    def _unreachable(self, high: float) -> Iterator[Finding]:
        limit = limit_of(self._spec)
        bonus = next(iter(self._rewards))
        if limit and len(self._rewards) == 1 and 0 < bonus * limit < high:
            yield self.warning(
                f"metadata / {NAMES[1]}",
                f"is {high:g}, but every recorded step has the reward {bonus:g}, and episodes "
                f"end after {limit} steps; check that the score is for this time limit",
                "unreachable-score",
            )

    def _random(self, low: float, high: float) -> Iterator[Finding]:
        returns, rewards = self._simulated()
        n = len(returns)
        if n < 2:
            return
        mean, std = float(np.mean(returns)), float(np.std(returns, ddof=1))
        is_other = self._spec != self.subject.environment and self._n_steps > MANY
        if is_other and len(rewards) > MANY and len(self._rewards) <= FEW:
            yield self.warning(
                "metadata / eval_env_spec",
                f"the evaluation environment gives many different rewards, such as "
                f"{sorted(rewards)[0]:.3g}, but the data have only "
                f"{', '.join(f'{r:g}' for r in sorted(self._rewards))}",
                "other-evaluation-environment",
            )
        episodes = self.subject.metadata.get(EPISODES)
        measured = episodes if isinstance(episodes, int) and episodes > 0 else n
        bound = max(STDERRS * std * math.sqrt(1 / n + 1 / measured), SHARE * (high - low))
        if std == 0 or len(rewards) <= FEW:  # these episodes may have missed a rare success
            bound = (high - low) / 2
        if abs(mean - low) > bound:
            yield self.warning(
                f"metadata / {NAMES[0]}",
                f"is {low:g}, but the random policy has a mean return of {mean:g} in {n} episodes "
                f"(standard deviation {std:.3g}); check that the score is for this environment",
                "random-policy-score",
            )

    def _simulated(self) -> tuple[list[float], set[float]]:
        """Return the random policy's returns and rewards in the evaluation environment."""
        returns: list[float] = []
        rewards: set[float] = set()
        spec, options = self._spec, self.subject.options
        limit, steps = limit_of(spec), options.replay_steps
        budget = MAX_STEPS if steps is None else min(MAX_STEPS, steps)
        n_episodes = min(MAX_EPISODES, budget // limit if limit else 0)
        if spec is None or n_episodes < 2 or "replay" in options.skip:
            return returns, rewards
        if spec_fault(self.subject, spec):
            return returns, rewards
        try:
            for buffer in run_episodes(
                lambda: recover(self.subject, spec), RandomPolicy(), range(n_episodes), seed=0
            ):
                returns.append(float(np.sum(buffer.rewards)))
                rewards.update(np.unique(np.asarray(buffer.rewards)).tolist())
        except Exception:  # a third-party environment may raise anything
            return [], set()
        return returns, rewards


def _says_expert(text: object) -> bool:
    """Return whether a name claims an expert; ``non-expert`` does not.

    Example:
        >>> _says_expert("SAC expert"), _says_expert("non-expert-v0"), _says_expert(None)
        (True, False, False)
    """
    words = re.split(r"[^a-z]+", text.lower()) if isinstance(text, str) else []
    return "expert" in words and not {"non", "not", "sub", "medium", "random"} & set(words)
