"""Copies the checkpoints that a dataset was made with, to publish them beside its data.

The folder ``datasets/<id>/policies/`` holds::

    ├─ policy.zip              the policy that collected
    ├─ policy_normalize.npz    its observation statistics, if observations were normalized
    ├─ expert.zip              the expert of the reference scores, if it was measured
    └─ expert_normalize.npz

This includes shipped checkpoints, although they have an address, so that users of the dataset can
run its policy without this package or the network.
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

#: Maps the files of a training, as named in the provenance, to their names in ``policies/``.
TRAINED = {"train/policy.zip": "{}.zip", "train/normalize.npz": "{}_normalize.npz"}


def copy_policy_files(run: StageRun, metadata: Mapping[str, Any], dataset: Path) -> None:
    """Copy the checkpoints that a dataset was made with into its ``policies/``.

    Args:
        run: the run of the stage ``publish``.
        metadata: the final metadata, with the sha256 of each checkpoint.
        dataset: the folder that holds ``data/``.

    Raises:
        MinariPipeError: a file is not the one that the dataset was made with.
        RemoteError: a file could not be downloaded again.
    """
    known = provenance(metadata)
    for who, use in published(run.config).items():
        for key, path in _files(run, who, use).items():
            target = dataset / POLICIES / _name(who, key, path)
            target.parent.mkdir(exist_ok=True)
            is_inside = path.is_relative_to(run.root)  # outside, links are the user's own
            source = inside(run.root, path) if is_inside else path.resolve()
            copy_file(source, target, below=run.root if is_inside else source.parent)
            if sha256_file(target) != known[who].get(key):
                raise MinariPipeError(
                    f"{path} is not the file that the dataset was made with; run the pipeline again"
                )


def provenance(metadata: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the sha256 of each policy's files, by policy and name, from the metadata."""
    recorded = metadata["minari_pipe"]
    expert = recorded["ref_scores"]["ref_max"].get("files") or [{}]
    return {"policy": recorded["files"], "expert": expert[0]}


def _files(run: StageRun, who: str, use: PolicyRef) -> dict[str, Path]:
    """Return the files of one policy, by their names in the provenance."""
    if use.settings.train:
        folder = _trained(run, who)
        found = {f"train/{path.name}": path for path in folder.iterdir()}
        return {key: found[key] for key in TRAINED if key in found}
    return {
        key: _located(source, where, run.root)
        for where, source in use.sources
        if (key := where.rpartition(".")[2]) != "source"  # demonstrations are not a policy
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
