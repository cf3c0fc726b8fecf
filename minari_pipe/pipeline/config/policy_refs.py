"""Finds the policies, files and environments that the stages of a pipeline use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.core.files.fetch import check_address
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.trust import texts
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.model_files import referenced_files
from minari_pipe.pipeline.config.schema import (
    Config,
    Environment,
    Params,
    ParentDataset,
    PolicySettings,
    Source,
)
from minari_pipe.pipeline.workspace import STATE
from minari_pipe.pipeline.workspace_links import check_folder, inside

#: The kinds of datasets in a family.
KINDS = ("expert", "medium", "simple", "random", "medium_replay", "full_replay")

#: Kinds for which one of the training's checkpoints must be chosen.
CHOOSING = ("medium", "simple", "medium_replay")

#: Folders that no stage may depend on.
_INTERNAL = (".git", ".dvc", STATE)

#: Config sections that a family's datasets share.
_SHARED = ("env", "family", "policy", "ref_scores")
#: Keys in those sections that each dataset sets for itself, including the choice of the family.
_OWN = (
    "family",
    "family.fraction",
    "family.kind",
    "family.training",
    "policy.deterministic",
    "policy.noise",
)


def divided(overrides: list[str]) -> tuple[list[str], list[str]]:
    """Split a dataset's overrides into its own and those of the sections its family shares.

    Example:
        >>> divided(["+dataset=a", "family.kind=medium", "policy.train.seed=1"])
        (['+dataset=a', 'family.kind=medium'], ['policy.train.seed=1'])
    """
    own: list[str] = []
    shared: list[str] = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        is_own = key in _OWN or key.startswith("policy.noise.")
        is_shared = key.partition(".")[0] in _SHARED and not is_own
        (shared if is_shared else own).append(override)
    return own, shared


@dataclass(frozen=True)
class PolicyRef:
    """One policy that a stage runs, and its key in the config."""

    where: str
    settings: PolicySettings

    @property
    def sources(self) -> Iterator[tuple[str, Source]]:
        """The files that the policy names, each with its key."""
        for key, source in self.settings.sources.items():
            yield f"{self.where}.{key}", source


def policies(params: Params, stage: str) -> list[PolicyRef]:
    """Return the policies that ``stage`` runs or trains; those of a mixture ran for its parents."""
    if params.is_mixture:
        return []
    scores = params.ref_scores
    if stage == "collect":
        return [PolicyRef("policy", params.collected)] if params.collected else []
    if stage in ("train", "checkpoint_scores"):
        return [PolicyRef("policy", params.policy)]
    is_used = stage == "train_expert" or (stage == "ref_scores" and scores.measures_expert)
    if is_used and scores.expert:
        return [PolicyRef("ref_scores.expert", scores.expert)]
    return []


def published(params: Config) -> dict[str, PolicyRef]:
    """Return the policies whose checkpoints are published with a dataset, by file name.

    These are the policy that collected, and the expert if it is measured. A mixture has neither:
    its parents hold them. A replay has no collecting policy: it changed during the training.
    """
    if params.is_mixture:
        return {}
    return {
        name: use
        for name, stage in (("policy", "collect"), ("expert", "ref_scores"))
        for use in policies(params, stage)
    }


def trains(params: Params) -> list[str]:
    """Return the training stages: ``train``, and ``train_expert`` for a separate expert."""
    if params.is_mixture:
        return []
    stages = ["train"] if params.policy.train else []
    return stages + [stage for stage in expert_training(params) if stage == "train_expert"]


def expert_training(params: Params) -> list[str]:
    """Return the stage that trains the expert of the reference scores, as a list of 0 or 1."""
    expert, policy = params.ref_scores.expert, params.policy
    if not params.ref_scores.measures_expert or expert is None or not expert.train:
        return []
    is_shared = policy.train and policy.training_keys == expert.training_keys
    return ["train" if is_shared else "train_expert"]


def cloned(params: Params, stage: str) -> ParentDataset | None:
    """Return the dataset whose actions the training stage ``stage`` learns, if any."""
    return next((use.settings.cloned for use in policies(params, stage)), None)


def parent_datasets(params: Params) -> list[ParentDataset]:
    """Return the datasets that a pipeline reads: a mixture's parents, those that are cloned."""
    if params.is_mixture:
        return list(params.policy.parents)
    found = (cloned(params, stage) for stage in trains(params))
    return [parent for parent in found if parent is not None]


def source_file(path: str, root: Path) -> Path:
    """Return the path of the file that a source names.

    ``..`` is resolved lexically, as in the dependency that DVC records.
    """
    return Path(os.path.normpath(root / os.path.expanduser(path)))


def check_source(where: str, source: Source, root: Path) -> None:
    """Refuse a source that names nothing, a missing file, or an unusable address.

    Raises:
        ConfigError: says what to give instead. No address with a password is recorded.
    """
    path, address = source.path, source.address
    if path is None and address is None:
        raise ConfigError(f"{where}: give {where}.path=FILE, or an address and its sha256")
    if address is not None and not address.startswith("shipped:"):
        check_address(address, where)
    place = source_file(path or "", root)
    if place.is_relative_to(root):
        inside(root, place)
    else:
        refuse_tracked_links(place)
    if path is not None and re.match("[A-Za-z][A-Za-z0-9+.-]+:", path):
        # DVC would take it for a URL, and contact another machine.
        raise ConfigError(f"{where}.path is {path!r}; expected a file, or {where}.address=ADDRESS")
    if path is not None and not place.is_file():
        if place.is_dir():
            raise ConfigError(f"{where}.path: {path!r} is a folder, expected a file")
        raise ConfigError(f"{where}.path: no file {path!r} (relative paths start at {root})")
    sha256 = source.sha256
    if path is None and sha256 is None:
        raise ConfigError(
            f"{where}: the address {address!r} needs {where}.sha256; or download the file, check "
            f"that it is the one you want, and pass {where}.path=FILE"
        )
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ConfigError(f"{where}.sha256 is {sha256!r}; expected 64 lowercase hexadecimal digits")


def made_environments(params: Params, stage: str) -> list[Environment]:
    """Return the environments that a stage makes."""
    own, evaluation = params.env, params.ref_scores.environment
    if stage in ("train", "train_expert", "collect"):
        return [own]
    if stage in ("ref_scores", "checkpoint_scores"):
        return [evaluation]
    return {"validate": [own, evaluation], "card": [own]}.get(stage, [])


def named_places(params: Params, stage: str, root: Path) -> list[str]:
    """Return the paths that arguments of a stage's environments and policies name, as given.

    A folder counts if it lies in the workspace, and is not the workspace itself. The files that a
    model in the workspace names count as well.

    Raises:
        LinkError: a place in the workspace is, or holds, a symlink.
        TrustError: it is, or holds, a pipe or a device; see also :func:`referenced_files`.
    """
    values: list[Any] = [[env.kwargs, env.all_wrappers] for env in made_environments(params, stage)]
    values += [use.settings.arguments for use in policies(params, stage)]
    given = {os.path.expanduser(text) for _, text in texts("", values)}
    named = {path for path in given if _is_named(source_file(path, root), root)}
    for path in [*named]:
        referenced = referenced_files(source_file(path, root), root)
        named |= {str(file) for file in referenced if _is_named(file, root)}
    return sorted(named)


def _is_named(place: Path, root: Path) -> bool:
    if not place.is_relative_to(root):
        return os.path.isfile(place)
    inner = place.relative_to(root)
    if not inner.parts or inner.parts[0] in _INTERNAL:
        return False
    if is_there := os.path.lexists(place):
        check_folder(place, root)
    return is_there
