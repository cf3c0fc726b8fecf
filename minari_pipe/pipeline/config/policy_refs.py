"""Which policies a pipeline's stages run and train, and what the config of a policy names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.core.trust import texts
from minari_pipe.pipeline.workspace import check_pipeline_name

TRAINING_KEYS = ("algorithm", "policy_class", "policy_kwargs", "train")
"""What of a policy's config decides the checkpoint that its training gives."""

SOURCE_KEYS = ("checkpoint", "normalize", "source")
"""Where a policy's config names a file; a checkpoint and its statistics may be absent."""


STORED_AS: dict[str, Any] = {"data_format": "hdf5", "jpeg_encoding": False, "compression": None}
"""Keys of ``dataset`` that decide how it is stored, with their defaults.

``params.yaml`` leaves the defaults out, so that datasets which were made before these keys keep the
hash of their config.
"""

MIXTURE = "minari_pipe.pipeline.Mixture"
"""The ``_target_`` of a dataset that is mixed from others; it is no policy, and runs nothing."""

KINDS = ("expert", "medium", "random", "medium_replay")
"""What a dataset of a family may hold."""

CHOOSING = ("medium", "medium_replay")
"""Kinds that need one of the training's checkpoints to be chosen."""

_SHARED = ("env", "family", "policy", "ref_scores")
_OWN = (
    *("family", "family.fraction", "family.kind"),
    *("policy.action_noise", "policy.deterministic", "policy.exploration"),
)
"""What of a config the datasets of a family share, and what below it is each dataset's own; the
choice of the family, too."""

_RANDOM = {"_target_": "minari_pipe.policies.RandomPolicy"}


def family_of(params: dict[str, Any]) -> str | None:
    """The family that a dataset belongs to; none if ``params`` are those of the family itself.

    Raises:
        ConfigError: its name cannot be that of a pipeline.
    """
    if "dataset" not in params or "family" not in params:
        return None
    how = "a family is chosen with `- /family: NAME`, for conf/family/NAME.yaml"
    return check_pipeline_name(str(params["family"]["name"]), how)


def kind_of(params: dict[str, Any]) -> str | None:
    """What a dataset of a family holds; none outside of families."""
    return str(params["family"]["kind"]) if family_of(params) else None


def stored_as(params: dict[str, Any]) -> dict[str, Any]:
    """How a dataset is stored: format, JPEG or not, gzip level."""
    return {key: params["dataset"].get(key, default) for key, default in STORED_AS.items()}


def is_mixture(params: dict[str, Any]) -> bool:
    """Whether a dataset is mixed from others."""
    policy = params["policy"]
    return isinstance(policy, dict) and policy.get("_target_") == MIXTURE


def scores_pipeline(name: str, params: dict[str, Any]) -> str:
    """The pipeline whose ``ref_scores.json`` holds the reference scores of pipeline ``name``."""
    return str(params["policy"]["scores"]) if is_mixture(params) else family_of(params) or name


def collected(params: dict[str, Any]) -> dict[str, Any] | None:
    """The config of the policy that ``collect`` runs; none where episodes are taken over."""
    if is_mixture(params) or kind_of(params) == "medium_replay":
        return None
    policy = _RANDOM if kind_of(params) == "random" else params["policy"]
    assert isinstance(policy, dict)
    return policy


def divided(overrides: list[str]) -> tuple[list[str], list[str]]:
    """The overrides of a dataset of a family: its own, and those of what the family shares.

    Example:
        >>> divided(["+dataset=a", "family.kind=medium", "policy.train.seed=1"])
        (['+dataset=a', 'family.kind=medium'], ['policy.train.seed=1'])
    """
    own: list[str] = []
    shared: list[str] = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        is_shared = key.partition(".")[0] in _SHARED and key not in _OWN
        (shared if is_shared else own).append(override)
    return own, shared


@dataclass(frozen=True)
class PolicyRef:
    """One policy that a stage runs, and where the config names it."""

    where: str
    config: dict[str, Any]


def policies(params: dict[str, Any], stage: str) -> list[PolicyRef]:
    """The policies that ``stage`` runs or trains."""
    expert = params["ref_scores"]["expert"]
    if stage == "collect":
        policy = collected(params)
        return [PolicyRef("policy", policy)] if policy is not None else []
    uses = {
        "train": [PolicyRef("policy", params["policy"])],
        "checkpoint_scores": [PolicyRef("policy", params["policy"])],
        "train_expert": [PolicyRef("ref_scores.expert", expert)] if expert else [],
        "ref_scores": [PolicyRef("ref_scores.expert", expert)] if measures_expert(params) else [],
    }
    return uses.get(stage, [])


def measures_expert(params: dict[str, Any]) -> bool:
    """Whether ``ref_max_score`` is measured, not declared."""
    return params["ref_scores"]["ref_max_score"] is None


def published(params: dict[str, Any]) -> dict[str, PolicyRef]:
    """The policies whose checkpoints go out with a dataset, by the name of their files.

    They are the one that collected, and the expert where it is measured. A mixture has neither:
    its parents have them. Nor has a replay the one that collected, which changed all the time.
    """
    if is_mixture(params):
        return {}
    return {
        name: use
        for name, stage in (("policy", "collect"), ("expert", "ref_scores"))
        for use in policies(params, stage)
    }


def as_measured(policy: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    """The config of a policy as ``ref_scores.deterministic`` lets it act."""
    if "deterministic" not in policy:
        return policy
    as_told = {**policy, "deterministic": scores["deterministic"]}
    if scores["deterministic"]:
        as_told |= dict.fromkeys({"exploration", "action_noise"} & policy.keys())
    return as_told


def trains(params: dict[str, Any]) -> list[str]:
    """The training stages of a pipeline: ``train`` for the policy, ``train_expert`` for another."""
    policy, expert = params["policy"], params["ref_scores"]["expert"] or {}
    if is_mixture(params):
        return []
    stages = ["train"] if policy.get("train") else []
    if measures_expert(params) and expert.get("train") and not same_training(policy, expert):
        stages.append("train_expert")
    return stages


def same_training(policy: dict[str, Any], expert: dict[str, Any]) -> bool:
    """Whether one training gives both checkpoints."""
    equal = all(policy.get(key) == expert.get(key) for key in TRAINING_KEYS)
    return bool(policy.get("train")) and equal


def expert_training(params: dict[str, Any]) -> list[str]:
    """The training stage whose checkpoint the expert of the reference scores is, if any."""
    expert = params["ref_scores"]["expert"] or {}
    if not measures_expert(params) or not expert.get("train"):
        return []
    return ["train" if same_training(params["policy"], expert) else "train_expert"]


def targets(use: PolicyRef) -> list[str]:
    """Every dotted name that a policy's config gives."""
    controller = use.config.get("controller") or {}
    return [str(c["_target_"]) for c in (use.config, controller) if "_target_" in c]


def sources(use: PolicyRef) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every file that a policy's config names, with where it names it."""
    for key in SOURCE_KEYS:
        source = use.config.get(key)
        if isinstance(source, dict) and (key == "source" or any(source.values())):
            yield f"{use.where}.{key}", source


def source_file(path: str, root: Path) -> Path:
    """The file that a source names.

    ``..`` takes the folder before it off the name, as in the dependency that DVC records.
    """
    return Path(os.path.normpath(root / os.path.expanduser(path)))


def made_environments(params: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    """The environments that a stage makes."""
    own, evaluation = params["env"], params["ref_scores"]["eval_env"]
    made = {"train": [own], "train_expert": [own], "collect": [own]}
    made |= {"ref_scores": [evaluation], "validate": [own, evaluation]}
    made |= {"checkpoint_scores": [evaluation]}
    return made.get(stage, [])


def environment_files(params: dict[str, Any], stage: str, root: Path) -> list[Path]:
    """Files that the arguments of a stage's environments name, such as a model."""
    named = [
        source_file(text, root)
        for env in made_environments(params, stage)
        for _, text in texts("", [env["kwargs"], env["wrappers"]])
    ]
    return sorted({file for file in named if os.path.isfile(file)})
