"""Measures a block of episodes for a reference score: their returns and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.evaluation import evaluate
from minari_pipe.pipeline.build import PolicyConfig, environment_factory
from minari_pipe.pipeline.work import Place, Tally, Work
from minari_pipe.pipeline.workspace import dump_json


@dataclass(frozen=True)
class MeasureBlock(Work):
    """Measures the episodes from number ``first`` until before ``last`` into a file of JSON."""

    env: dict[str, Any]
    """The keys of ``ref_scores.eval_env`` in the config."""
    policy: PolicyConfig
    first: int
    last: int
    seed: int
    n_envs: int

    def name_of(self, n_finished: int) -> str:
        return f"episode {self.first + n_finished}"

    def write(self, path: Path, tally: Tally, place: Place) -> dict[str, Any]:
        """Write the results, as :meth:`evaluation.EpisodeResult.to_json` has them.

        Raises:
            InvalidEpisodeError: the environment or the policy failed; names episode and step.
        """
        found = []
        for result in evaluate(
            environment_factory(self.env, place.root),
            self.policy.make(place),
            range(self.first, self.last),
            seed=self.seed,
            n_envs=self.n_envs,
            on_step=tally.step,
        ):
            found.append(result.to_json())
            tally.episode(result.episode_return)
        path.write_text(dump_json(found), encoding="utf-8")
        return {}
