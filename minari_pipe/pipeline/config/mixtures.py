"""Datasets that are mixed from others: what their config takes from their parents."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config import conf_files, dvc_yaml, hydra_compose
from minari_pipe.pipeline.config.policy_refs import divided, family_of, is_mixture, scores_pipeline
from minari_pipe.pipeline.config.shares import exact_shares
from minari_pipe.pipeline.config.validate_config import filled


class Parent(NamedTuple):
    """A dataset that others are mixed from, as the workspace makes it."""

    composed: hydra_compose.Composed
    scores: str
    """The pipeline that has its reference scores."""


def recomposed(
    overrides: list[str], root: Path, *, seen: tuple[str, ...] = ()
) -> hydra_compose.Composed:
    """Compose recorded overrides again, with those that the family's pipeline records.

    Arguments and errors as of :func:`completed`.
    """
    found = hydra_compose.recompose(overrides)
    if family := family_of(found.config):
        more = divided((dvc_yaml.read_params(family, root) or {}).get("overrides", []))[1]
        if more:
            found = hydra_compose.recompose([*overrides, *more])
    return found._replace(config=completed(found.config, root, seen=seen))


def completed(config: dict[str, Any], root: Path, *, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """``config`` with what a mixture has from its parents: environment and reference scores.

    Args:
        config: as composed; returned as it is unless it is that of a mixture.
        root: the workspace.
        seen: the mixtures that this one is a parent of.

    Raises:
        ConfigError: a parent is not there, or they do not belong together.
    """
    if not is_mixture(config) or "scores" in config["policy"]:
        return config
    given = config["policy"]["parents"]
    found = {name: _parent(name, root, seen) for name in exact_shares(given)}
    (first, one), *others = found.items()
    for name, other in others:
        _check_alike(first, one, name, other)
    env = config["env"]
    if env["id"] not in ("???", one.composed.config["env"]["id"]):
        raise ConfigError(
            f"env.id is {env['id']!r}, the environment of {first} is "
            f"{one.composed.config['env']['id']!r}; a mixture has that of its parents: leave env "
            f"out"
        )
    parents = [  # a list, because params.yaml sorts keys
        {"dataset": name, "id": parent.composed.config["dataset"]["id"], "share": given[name]}
        for name, parent in found.items()
    ]
    return {
        **config,
        "env": one.composed.config["env"],
        "ref_scores": one.composed.config["ref_scores"],
        "policy": {**config["policy"], "parents": parents, "scores": one.scores},
    }


def parents(config: dict[str, Any], root: Path) -> list[hydra_compose.Composed]:
    """What each parent of a completed mixture comes to; none of any other dataset."""
    if not is_mixture(config):
        return []
    return [_parent(p["dataset"], root, ()).composed for p in config["policy"]["parents"]]


def _parent(name: str, root: Path, seen: tuple[str, ...]) -> Parent:
    known = conf_files.datasets()
    if name not in known:
        raise ConfigError(
            f"policy.parents: no dataset {name!r}.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}"
        )
    if name in seen:
        raise ConfigError(f"{name} is mixed from itself: {' -> '.join([*seen, name])}")
    overrides = (dvc_yaml.read_params(name, root) or {}).get("overrides") or [f"+dataset={name}"]
    found = recomposed(overrides, root, seen=(*seen, name))
    return Parent(found, scores_pipeline(found.name, found.config))


def _check_alike(first: str, one: Parent, name: str, other: Parent) -> None:
    a, b = filled(one.composed.config), filled(other.composed.config)
    for key in ("id", "kwargs", "wrappers"):
        if a["env"][key] != b["env"][key]:
            raise ConfigError(
                f"a mixture needs one environment: env.{key} of {first} is {a['env'][key]!r}, of "
                f"{name} it is {b['env'][key]!r}"
            )
    for key in ("ref_min_score", "ref_max_score"):
        declared = a["ref_scores"][key], b["ref_scores"][key]
        if None not in declared and declared[0] != declared[1]:
            raise ConfigError(
                f"a mixture needs parents with the same {key}: ref_scores.{key} of {first} is "
                f"{declared[0]}, of {name} it is {declared[1]}"
            )
