"""Replaces the trainings of a reproduced version by its published checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.manifest import POLICIES
from minari_pipe.core.files.swap import copy_file
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.config.policy_refs import CHOOSING, expert_training, published, trains
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.releases.reproduction import Reproduction
from minari_pipe.pipeline.stages.policy_files import TRAINED, provenance
from minari_pipe.pipeline.workspace import read_json
from minari_pipe.policies.checkpoints import checkpoint_folder


def give_trainings(
    found: Reproduction, data_of: Callable[[str], Path | None], say: Callable[[str], None]
) -> set[tuple[str, str]]:
    """Copy published checkpoints to where the training stages of a reproduction find them.

    A family is trained again if its training episodes are part of a dataset.

    Args:
        found: the workspace of the reproduction.
        data_of: returns the data folder of a published dataset, ``None`` if it is not here.
        say: prints one line.

    Returns:
        Pipeline and stage of the trainings that are replaced.

    Raises:
        ConfigError: a checkpoint is not here, or is not the one that the dataset was made with.
    """
    made = {name: dvc_yaml.parameters(name, found.root) for name in found.pipelines}
    datasets = {name: params for name, params in made.items() if isinstance(params, Config)}
    replayed = {p.family_name for p in datasets.values() if p.is_replay}
    given: set[tuple[str, str]] = set()
    for name, params in datasets.items():
        maker = params.family_name or name
        if maker in replayed:
            say(f"training {maker} again: the dataset contains episodes of its training")
            continue
        for stage in trains(params):
            given.add((maker, stage))
            (found.given / maker / stage).mkdir(parents=True, exist_ok=True)
        _give(found.given / maker, params, data_of)
    return given


def _give(given: Path, params: Config, data_of: Callable[[str], Path | None]) -> None:
    """Copy the checkpoints of one dataset to where its trainings would write them."""
    trained = {who: use for who, use in published(params).items() if use.settings.train}
    if not trained:
        return
    dataset_id = params.dataset.id
    data = data_of(dataset_id)
    if data is None:
        raise ConfigError(
            f"the published checkpoint of {dataset_id} is not here; run dvc pull "
            f"datasets/{dataset_id}, or train again with --from-scratch"
        )
    metadata = read_json(data / "metadata.json")
    for who in trained:
        target = given / ("train" if who == "policy" else expert_training(params)[0])
        if who == "policy" and params.kind in CHOOSING:
            target = checkpoint_folder(target, _chosen_step(metadata))
        for key, sha256 in provenance(metadata)[who].items():
            if key not in TRAINED:
                continue
            source = data.parent / POLICIES / TRAINED[key].format(who)
            if not source.is_file() or sha256_file(source) != sha256:
                raise ConfigError(
                    f"{source} is not the checkpoint that {dataset_id} was made with; fetch the "
                    f"dataset again, or train again with --from-scratch"
                )
            target.mkdir(parents=True, exist_ok=True)
            copy_file(source, target / key.rpartition("/")[2], below=data.parent)


def _chosen_step(metadata: dict[str, Any]) -> int:
    return int(metadata["minari_pipe"]["family"]["checkpoint_step"])
