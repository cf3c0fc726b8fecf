"""Completes the config of a dataset that is made from others: a mixture, or a cloned policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config import dvc_yaml, hydra_compose
from minari_pipe.pipeline.config.policy_refs import divided, parent_datasets
from minari_pipe.pipeline.config.schema import Cloning, Config, PolicySettings
from minari_pipe.pipeline.config.shares import exact_shares
from minari_pipe.pipeline.config.tasks import choices, some_of
from minari_pipe.pipeline.config.typed import MISSING
from minari_pipe.pipeline.config.validate_config import filled


class Parent(NamedTuple):
    """A dataset that others are made from, as configured in the workspace."""

    composed: hydra_compose.Composed
    scores: str
    """The pipeline that measures its reference scores."""


def recomposed(
    overrides: list[str], root: Path, *, seen: tuple[str, ...] = ()
) -> hydra_compose.Composed:
    """Compose recorded overrides again, with those recorded for the family's pipeline.

    ``root``, ``seen`` and the errors are those of :func:`completed`.
    """
    found = hydra_compose.recompose(overrides)
    if family := found.config.family_name:
        more = divided((dvc_yaml.read_params(family, root) or {}).get("overrides", []))[1]
        if more:
            found = hydra_compose.recompose([*overrides, *more])
    return found._replace(config=completed(found.config, root, seen=seen))


def completed(config: Config, root: Path, *, seen: tuple[str, ...] = ()) -> Config:
    """Return ``config`` with what it takes from the datasets that it is made from.

    A mixture takes their environment, reference scores and ids, a cloned policy the id.

    Args:
        config: as composed; returned unchanged if it has no parents.
        root: the workspace.
        seen: this pipeline and those that have it as a parent, to detect cycles.

    Raises:
        ConfigError: a parent does not exist, or the parents cannot be mixed.
    """
    policy, env = config.policy, config.env
    if not policy.is_mixture:
        return _with_cloned(config, root, seen)
    if "scores" in policy.arguments:
        return config
    given = policy.arguments["parents"]
    found = {name: _parent(name, root, seen, "policy.parents") for name in exact_shares(given)}
    (first, one), *others = found.items()
    for name, other in others:
        _check_alike(first, one, name, other)
    own = one.composed.config
    if env.id not in (MISSING, own.env.id):
        raise ConfigError(
            f"env.id is {env.id!r}, but the environment of {first} is {own.env.id!r}; a mixture "
            f"uses the environment of its parents: leave env out"
        )
    parents = [  # a list keeps the order: params.yaml sorts keys
        {"dataset": name, "id": parent.composed.config.dataset.id, "share": given[name]}
        for name, parent in found.items()
    ]
    policy = policy.with_arguments(parents=parents, scores=one.scores)
    return replace(config, env=own.env, ref_scores=own.ref_scores, policy=policy)


def _with_cloned(config: Config, root: Path, seen: tuple[str, ...]) -> Config:
    """Return ``config`` with the ids of the datasets that its policies learn the actions of."""

    def with_id(policy: PolicySettings, where: str) -> PolicySettings:
        train = policy.train
        if not isinstance(train, Cloning) or isinstance(train.dataset, Mapping):
            return policy
        one = _parent(train.dataset, root, seen, f"{where}.train.dataset").composed
        parent = {"dataset": train.dataset, "id": one.config.dataset.id}
        return policy.with_arguments(train={**policy.arguments["train"], "dataset": parent})

    scores = config.ref_scores
    if scores.expert:
        scores = replace(scores, expert=with_id(scores.expert, "ref_scores.expert"))
    return replace(config, policy=with_id(config.policy, "policy"), ref_scores=scores)


def parents(config: Config, root: Path) -> list[hydra_compose.Composed]:
    """Return the composed parents of a completed config, an empty list if it has none."""
    found = parent_datasets(config)
    return [_parent(parent.dataset, root, (), "").composed for parent in found]


def _parent(name: str, root: Path, seen: tuple[str, ...], where: str) -> Parent:
    known = choices()
    if name not in known:
        raise ConfigError(
            f"{where}: no dataset {name!r}.{did_you_mean(name, known)} Known: "
            f"{some_of([*known], 'minari-pipe recipes')}"
        )
    if name in seen:
        raise ConfigError(f"{name} is made from itself: {' -> '.join([*seen, name])}")
    overrides = (dvc_yaml.read_params(name, root) or {}).get("overrides") or known[name]
    found = recomposed(overrides, root, seen=(*seen, name))
    return Parent(found, found.config.scores_pipeline(found.name))


def _check_alike(first: str, one: Parent, name: str, other: Parent) -> None:
    a, b = filled(one.composed.config), filled(other.composed.config)
    for key, value in vars(a.env).items():
        if value != (others := vars(b.env)[key]):
            raise ConfigError(
                f"a mixture needs one environment: env.{key} is {value!r} for {first}, but "
                f"{others!r} for {name}"
            )
    for key, one_score, other_score in (
        ("ref_min_score", a.ref_scores.ref_min_score, b.ref_scores.ref_min_score),
        ("ref_max_score", a.ref_scores.ref_max_score, b.ref_scores.ref_max_score),
    ):
        if None not in (one_score, other_score) and one_score != other_score:
            raise ConfigError(
                f"a mixture needs parents with the same {key}: ref_scores.{key} is {one_score} for "
                f"{first}, but {other_score} for {name}"
            )
