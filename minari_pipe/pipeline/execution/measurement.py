"""Measure the returns of a block of episodes for a reference score; keep nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.pipeline.execution.block_task import BlockPlace, EpisodesWork, Tally
from minari_pipe.pipeline.execution.build import environment_factory
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import Scheduler, Skipped
from minari_pipe.pipeline.workspace import dump_json, read_json
from minari_pipe.policies.evaluation import EpisodeResult, evaluate


class MeasureBlock(EpisodesWork):
    """Measures a block's episodes into a JSON file."""

    def write(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        """Write the results in the form of :meth:`evaluation.EpisodeResult.to_json`.

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
            success_key=self.env.success_key,
            options=self.env.reset_options,
            on_step=tally.step,
        ):
            found.append(result.to_json())
            tally.episode(result.episode_return)
        path.write_text(dump_json(found), encoding="utf-8")
        return {}


def measured(
    scheduler: Scheduler, record: dict[str, Any] | Skipped, progress: Progress
) -> list[EpisodeResult]:
    """Return the results of a finished block and report them to ``progress``."""
    assert isinstance(record, dict)  # measurements never skip a block
    found = read_json(scheduler.store.folder / str(record["block"]))
    results = [EpisodeResult(**result) for result in found]
    progress.finished([{"n_steps": r.n_steps, "return": r.episode_return} for r in results])
    return results
