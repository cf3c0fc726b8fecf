"""Stage ``train`` of a policy that learns the actions of another dataset: behaviour cloning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.pipeline.config.policy_refs import policies
from minari_pipe.pipeline.config.schema import Cloning
from minari_pipe.pipeline.execution.build import environment_factory
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.published import published_manifest
from minari_pipe.pipeline.stages.given_training import take_given
from minari_pipe.pipeline.workspace import dump_json, write_atomic
from minari_pipe.policies.cloning import Recorded, clone
from minari_pipe.storage.hdf5.storage import HDF5Storage


def main(run: StageRun) -> None:
    """Run the stage: write ``train/`` as :mod:`train` does, and ``cloned.json``."""
    (use,) = policies(run.params, run.stage)
    training, parent = use.settings.train, use.settings.cloned
    assert isinstance(training, Cloning)
    assert parent is not None
    folder = run.root / "datasets" / parent.id
    content = published_manifest(folder)
    if content is None:
        raise CorruptDatasetError(
            f"{folder} has no {MANIFEST} of a published dataset; remove the folder and run the "
            f"pipeline again"
        )
    if not take_given(run):
        _learn(run, use.settings.network, training, parent.id)
    if run.stage == "train":
        row = {"id": parent.id, "content_sha256": content["content_sha256"]}
        write_atomic(run.folder / "cloned.json", dump_json(row))


def _learn(run: StageRun, network: dict[str, Any], training: Cloning, dataset_id: str) -> None:
    storage = HDF5Storage.read(run.root / "datasets" / dataset_id / "data")
    total = int(storage.total_episodes)
    recorded = Recorded(
        dataset_id,
        storage.observation_space,
        storage.action_space,
        storage.get_buffers(range(total)),
    )
    found = ""

    def fill(out: Path) -> None:
        nonlocal found
        settings = {key: value for key, value in vars(training).items() if key != "dataset"}
        make_env = environment_factory(run.params.env, run.root)
        cloned = clone(make_env, recorded, out_dir=out, **network, **settings)
        found = f", log-likelihood {cloned.log_likelihood:.2f} of {cloned.n_actions} actions"

    reused = run.output_once(run.stage, fill)
    run.say(
        f"bc of {dataset_id}, {training.gradient_steps} gradient steps"
        f"{', finished before' if reused else found}"
    )


if __name__ == "__main__":
    run_stage("train_expert" if "train_expert" in sys.argv[2:] else "train", main)
