"""Datasets that are mixed from others: what their config takes from their parents."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline import compose, graph
from minari_pipe.pipeline.params import filled
from minari_pipe.pipeline.uses import divided, is_mixture, scores_pipeline

_TOLERANCE = Fraction(1, 10**6)  # three times 0.333333


class Parent(NamedTuple):
    """A dataset that others are mixed from, as the workspace makes it."""

    composed: compose.Composed
    scores: str
    """The pipeline that has its reference scores."""


def exact_shares(parents: dict[str, float]) -> dict[str, Fraction]:
    """The shares of the steps, exactly: the decimals that were written, scaled to sum to 1.

    Raises:
        ConfigError: there are no parents, a share is not positive, or they do not sum to 1.

    Example:
        >>> exact_shares({"medium": 0.9, "expert": 0.1})
        {'medium': Fraction(9, 10), 'expert': Fraction(1, 10)}
    """
    if not parents:
        raise ConfigError(
            "policy.parents names no dataset; expected datasets with their shares of the steps, "
            "e.g. policy.parents={cartpole_medium: 0.5, cartpole_expert: 0.5}"
        )
    for name, share in parents.items():
        if not 0 < share <= 1:  # also for NaN
            raise ConfigError(
                f"policy.parents.{name} is {share}; expected a share of the steps, above 0 and at "
                f"most 1"
            )
    exact = {name: Fraction(repr(float(share))) for name, share in parents.items()}
    total = sum(exact.values(), Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        told = " + ".join(f"{name} {share}" for name, share in parents.items())
        raise ConfigError(f"the shares of policy.parents sum to {float(total)}, not to 1: {told}")
    return {name: share / total for name, share in exact.items()}


def recomposed(overrides: list[str], root: Path, *, seen: tuple[str, ...] = ()) -> compose.Composed:
    """Compose recorded overrides again, with those that the family's pipeline records.

    Arguments and errors as of :func:`completed`.
    """
    found = compose.recompose(overrides)
    family = found.config.get("family")
    if family:
        more = divided((graph.read_params(family["name"], root) or {}).get("overrides", []))[1]
        if more:
            found = compose.recompose([*overrides, *more])
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


def parents(config: dict[str, Any], root: Path) -> list[compose.Composed]:
    """What each parent of a completed mixture comes to; none of any other dataset."""
    if not is_mixture(config):
        return []
    return [_parent(p["dataset"], root, ()).composed for p in config["policy"]["parents"]]


def _parent(name: str, root: Path, seen: tuple[str, ...]) -> Parent:
    known = compose.datasets()
    if name not in known:
        raise ConfigError(
            f"policy.parents: no dataset {name!r}.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}"
        )
    if name in seen:
        raise ConfigError(f"{name} is mixed from itself: {' -> '.join([*seen, name])}")
    overrides = (graph.read_params(name, root) or {}).get("overrides") or [f"+dataset={name}"]
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
