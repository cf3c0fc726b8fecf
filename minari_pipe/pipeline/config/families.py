"""Handles the pipeline that a family's datasets share: it trains, and measures the scores.

``conf/family/NAME.yaml`` configures it, or one for each of its ``family.trainings``, with the
command line's overrides of the shared sections.
Those are recorded in ``pipelines/NAME/params.yaml`` of the family, not of the dataset.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import conf_files, dvc_yaml, hydra_compose
from minari_pipe.pipeline.config.schema import Config, Family, Params, Shared, params_values
from minari_pipe.pipeline.config.validate_config import filled

_SHARED_STAGES = ("train", "train_expert", "ref_scores", "checkpoint_scores")


def family_params(params: Params) -> Shared:
    """Return the parameters that a family's datasets share, given those of one dataset."""
    assert params.family is not None
    family = replace(params.family, kind=Family.kind, fraction=Family.fraction)
    # How one dataset uses its policy is not shared.
    policy, scores = params.policy.as_measured(params.ref_scores), params.ref_scores
    policy = policy.without_noise()
    if scores.expert and scores.expert.training_keys == policy.training_keys:
        scores = replace(scores, expert=policy)
    packages = {s: v for s, v in params.packages.items() if s in _SHARED_STAGES}
    return Shared(params.env, family, policy, scores, params.engine, packages)


def check_family(name: str, params: Config, shared: list[str], root: Path) -> None:
    """Refuse a name clash of family and dataset, or a dataset that differs from its family.

    Args:
        name: the dataset's pipeline.
        params: the dataset's parameters.
        shared: the overrides of the shared sections.
        root: the workspace.
    """
    family = params.family_name
    if family is None or params.family is None:
        if is_family(name, root) or name in conf_files.families():
            raise ConfigError(
                f"pipeline {name!r} has the same name as the family {name!r}, whose folder is "
                f"pipelines/{name}; choose another name with pipeline=NAME"
            )
        return
    file = f"conf/family/{params.family.name}.yaml"
    recorded = dvc_yaml.read_params(family, root)
    if family == name or family in conf_files.datasets() or (recorded and "dataset" in recorded):
        raise ConfigError(
            f"the family {family!r} has the same name as a dataset's pipeline, and both would "
            f"write pipelines/{family}; rename {file} or the dataset"
        )
    owner = (recorded or {}).get("family")
    own = {"name": params.family.name, "training": params.family.training}
    if isinstance(owner, dict) and {key: owner.get(key) for key in own} != own:
        raise ConfigError(
            f"pipelines/{family} is the folder of conf/family/{owner.get('name')}.yaml, too; "
            f"rename one of the files or its training"
        )
    wanted = _compared(params_values(family_params(params)))
    if recorded and _compared(recorded) == wanted:
        return
    composed = hydra_compose.family(params.family.name, [*_chosen(params.family), *shared])
    alone = params_values(family_params(filled(composed)))
    for where, is_so, must_be in nested_differences(wanted, _compared(alone)):
        raise ConfigError(
            f"{where} is {is_so!r}, but {file} sets {must_be!r}: all datasets "
            f"of a family share it; change it there, or use another family"
        )


def is_family(name: str, root: Path) -> bool:
    """Return whether ``pipelines/NAME`` is the pipeline of a family."""
    recorded = dvc_yaml.read_params(name, root)
    return recorded is not None and "dataset" not in recorded


def _compared(values: dict[str, Any]) -> dict[str, Any]:
    return {key: values.get(key) for key in ("env", "family", "policy", "ref_scores")}


def nested_differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return the dotted keys at which nested dicts differ, each with both values."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b})
        return [
            found
            for key in keys
            for found in nested_differences(
                a.get(key), b.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if a == b else [(path, a, b)]


def sync_family(params: Config, shared: list[str], root: Path) -> list[str]:
    """Write the generated files of a dataset's family that changed; return their names."""
    return dvc_yaml.write(str(params.family_name), family_files(params, shared, root), root)


def family_files(params: Config, shared: list[str], root: Path) -> dict[str, str]:
    """Return the contents of the generated files of a dataset's family, by name."""
    assert params.family is not None
    overrides = [f"+family={params.family.name}", *_chosen(params.family), *shared]
    return dvc_yaml.files(str(params.family_name), family_params(params), overrides, root)


def _chosen(family: Family) -> list[str]:
    """Return the overrides that choose a training of the family's file."""
    return [] if family.training is None else [f"family.training={family.training}"]


def is_synced(params: Config, root: Path) -> bool:
    """Return whether the recorded parameters of a dataset's family match the dataset."""
    recorded = dvc_yaml.read_params(str(params.family_name), root) or {}
    wanted = params_values(family_params(params))
    return {key: recorded.get(key) for key in wanted} == wanted
