"""The checkpoints that a dataset was made with, which go out beside its data::

    datasets/<id>/policies/
    ├─ policy.zip              the policy that collected
    ├─ policy_normalize.npz    how it sees its observations, if they were normalized
    ├─ expert.zip              the expert of the reference scores, if it was measured
    └─ expert_normalize.npz

Shipped checkpoints are among them, though they have an address: whoever has the dataset can act as
its policy did, without this package or the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import locate
from minari_pipe.core.files.manifest import POLICIES
from minari_pipe.core.files.swap import copy_file
from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.config.policy_refs import PolicyRef, expert_training, published
from minari_pipe.pipeline.config.schema import Source
from minari_pipe.pipeline.execution.build import file_source
from minari_pipe.pipeline.execution.stage import StageRun
from minari_pipe.pipeline.stages.assemble import scores_folder
from minari_pipe.pipeline.stages.chosen_checkpoint import trained_folder
from minari_pipe.pipeline.workspace_links import inside

TRAINED = {"train/policy.zip": "{}.zip", "train/normalize.npz": "{}_normalize.npz"}
"""What provenance calls the files of a training, and their names in ``policies/``."""


def copy_policy_files(run: StageRun, metadata: Mapping[str, Any], dataset: Path) -> None:
    """Copy the checkpoints that a dataset was made with into its ``policies/``.

    Args:
        run: of the stage that publishes.
        metadata: the final metadata, which say what the dataset was made with.
        dataset: the folder that holds ``data/``.

    Raises:
        MinariPipeError: a file is not what the dataset was made with.
        RemoteError: a file could not be fetched again.
    """
    known = provenance(metadata)
    for who, use in published(run.config).items():
        for key, path in _files(run, who, use).items():
            target = dataset / POLICIES / _name(who, key, path)
            target.parent.mkdir(exist_ok=True)
            is_inside = path.is_relative_to(run.root)
            # What lies elsewhere the user names, also by a link.
            source = inside(run.root, path) if is_inside else path.resolve()
            copy_file(source, target, below=run.root if is_inside else source.parent)
            if sha256_file(target) != known[who].get(key):
                raise MinariPipeError(
                    f"{path} is not what the dataset was made with; run the pipeline again"
                )


def provenance(metadata: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What metadata say of the files of policies: sha256 by what the config calls them."""
    told = metadata["minari_pipe"]
    expert = told["ref_scores"]["ref_max"].get("files") or [{}]
    return {"policy": told["files"], "expert": expert[0]}


def _files(run: StageRun, who: str, use: PolicyRef) -> dict[str, Path]:
    """The files of one policy, by what its provenance calls them."""
    if use.settings.train:
        folder = _trained(run, who)
        found = {f"train/{path.name}": path for path in folder.iterdir()}
        return {key: found[key] for key in TRAINED if key in found}
    return {
        key: _located(source, where, run.root)
        for where, source in use.sources
        if (key := where.rpartition(".")[2]) != "source"  # demonstrations are no policy
    }


def _trained(run: StageRun, who: str) -> Path:
    if who == "expert":
        return scores_folder(run.folder, run.config) / expert_training(run.params)[0]
    folder = trained_folder(run)
    assert folder is not None
    return folder


def _located(source: Source, where: str, root: Path) -> Path:
    return locate(file_source(source, root), what=where, override=f"{where}.path=FILE")


def _name(who: str, key: str, path: Path) -> str:
    if key in TRAINED:
        return TRAINED[key].format(who)
    suffix = path.suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", path.suffix) else ""
    return f"{who}{'_normalize' if key == 'normalize' else ''}{suffix}"
