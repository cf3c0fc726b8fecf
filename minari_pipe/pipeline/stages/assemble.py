"""Assembles the final metadata of a dataset, for both ``validate`` and ``publish``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.links import files_below
from minari_pipe.core.metadata import dump_metadata
from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.config.policy_refs import CHOOSING
from minari_pipe.pipeline.config.schema import Config, params_values
from minari_pipe.pipeline.config.typed import values_of
from minari_pipe.pipeline.workspace import read_json
from minari_pipe.storage.formats import METADATA_FILE_NAME

#: Parameters that do not affect the content of a dataset.
NOT_CONTENT = ("card", "engine", "publish", "validate", "overrides", "code")


def assemble(folder: Path, params: Config) -> dict[str, Any]:
    """Return the content of the published dataset's ``metadata.json``.

    It depends only on the inputs: it holds no time, host, local path or git commit, so that equal
    inputs give equal bytes everywhere.

    Args:
        folder: ``pipelines/NAME`` with the outputs of its stages, beside the folder of its family.
        params: the pipeline's parameters.
    """
    metadata = read_json(folder / "dataset" / "data" / "metadata.json")
    measured_in = scores_folder(folder, params)
    scores = read_json(measured_in / "ref_scores.json")
    made = read_json(folder / "dataset" / "provenance.json")
    measured = [scores[k]["n"] for k in ("ref_min", "ref_max") if "n" in scores[k]]
    metadata["ref_min_score"] = scores["ref_min_score"]
    metadata["ref_max_score"] = scores["ref_max_score"]
    metadata["num_episodes_average_score"] = max(
        measured, default=params.ref_scores.n_episodes or 0
    )
    metadata["eval_env_spec"] = (measured_in / "eval_env.json").read_text(encoding="utf-8").strip()
    metadata["minari_pipe"] = {
        **metadata.get("minari_pipe", {}),  # of `create`: what is recorded of an observation
        "config_sha256": config_sha256(params),
        "packages": params.packages,
        **({"collect_seed": params.collect.seed} if params.collected else {}),
        **_noise_of(params),
        **({"success_key": key} if (key := params.env.success_key) else {}),
        "files": made["files"],
        "ref_scores": {k: _without_seeds(scores[k]) for k in ("ref_min", "ref_max")},
    }
    if made["skipped"]:
        metadata["minari_pipe"]["skipped_blocks"] = [entry["block"] for entry in made["skipped"]]
    if failed := made.get("failed_episodes"):
        metadata["minari_pipe"]["failed_episodes"] = failed
    if params.collect.keep == "matching":
        metadata["minari_pipe"]["episodes_collected"] = made["n_collected"]
    if kind := params.kind:
        chosen = read_json(folder / "chosen.json") if kind in CHOOSING else {}
        metadata["minari_pipe"]["family"] = {"name": params.family_name, "kind": kind, **chosen}
    if about := values_of(params.dataset.recipe):
        metadata["minari_pipe"]["recipe"] = about
    if params.is_mixture:
        # Not in `combined_datasets`: real Minari uploads and downloads all datasets named there.
        metadata["minari_pipe"]["parents"] = read_json(folder / "parents.json")
    elif params.policy.cloned:
        metadata["minari_pipe"]["cloned"] = read_json(folder / "cloned.json")
    return metadata


def _noise_of(params: Config) -> dict[str, Any]:
    """Return the noise on the actions of the policy that collected, if there is any."""
    noise = params.collected.arguments.get("noise") if params.collected else None
    return {"noise": noise} if noise else {}


def scores_folder(folder: Path, params: Config) -> Path:
    """Return the folder with the reference scores for the pipeline in ``folder``."""
    return folder.parent / params.scores_pipeline(folder.name)


def _without_seeds(score: dict[str, Any]) -> dict[str, Any]:
    """Drop the seeds, which follow from the root seed; ``ref_scores.json`` lists them."""
    return {key: value for key, value in score.items() if key != "seeds"}


def config_sha256(params: Config) -> str:
    """Return the sha256 of the resolved config as canonical JSON, without :data:`NOT_CONTENT`."""
    content = {k: v for k, v in params_values(params).items() if k not in NOT_CONTENT}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def validation_of(folder: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``validation.json``, which must be about this dataset.

    Raises:
        MinariPipeError: it is about another one, or has errors.
    """
    validation = read_json(folder / "validation.json")
    assert isinstance(validation, dict)
    if not validation["ok"] or validation["assembled_sha256"] != [
        assembled_sha256(folder, metadata)
    ]:
        raise MinariPipeError(
            f"pipelines/{folder.name}/validation.json does not match this dataset; run the "
            "pipeline again"
        )
    return validation


def metadata_text(metadata: dict[str, Any]) -> str:
    """Return the text of the published ``metadata.json``."""
    return dump_metadata(dict(sorted(metadata.items())))


def assembled_sha256(folder: Path, metadata: dict[str, Any]) -> str:
    """Return one hash of the data files and the metadata that are published together."""
    data = folder / "dataset" / "data"
    files = data_files(data)
    if files == ["main_data.hdf5"]:
        sums = sha256_file(data / files[0])
    else:
        sums = "\n".join(f"{sha256_file(data / name)} {name}" for name in files)
    return hashlib.sha256(f"{sums}\n{metadata_text(metadata)}".encode()).hexdigest()


def data_files(data: Path) -> list[str]:
    """Return the files of a dataset except its metadata, as paths below ``data``."""
    found = sorted(files_below(data))
    return [name for name in found if name != METADATA_FILE_NAME]
