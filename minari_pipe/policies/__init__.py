"""Policies: what chooses the actions of a dataset and of its reference scores.

One file and one line of ``POLICIES`` each; a third party's package announces its own through the
entry-point group ``minari_pipe.policies`` (name: the dotted name that configs use; value:
``module:Class``). Modules load when first used, so that a stage depends only on the policy it runs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

POLICIES = {
    "minari_pipe.policies.RandomPolicy": "minari_pipe.policies.random:RandomPolicy",
    "minari_pipe.policies.SB3Policy": "minari_pipe.policies.sb3:SB3Policy",
    "minari_pipe.policies.DemonstrationPolicy": (
        "minari_pipe.policies.demonstrations:DemonstrationPolicy"
    ),
    "minari_pipe.policies.ScriptedPolicy": "minari_pipe.policies.scripted:ScriptedPolicy",
}
"""Registered names that a config's ``_target_`` may give, with where they are defined."""

CONTROLLERS = {
    "minari_pipe.policies.controllers.PointMazeWaypoints": (
        "minari_pipe.policies.controllers:PointMazeWaypoints"
    ),
}
"""Callables that come with the package, for ``ScriptedPolicy``."""

ENTRY_POINTS = "minari_pipe.policies"


def registered_policies() -> dict[str, str]:
    """``POLICIES`` and those of installed packages."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {**{p.name: p.value for p in points}, **POLICIES}


def __getattr__(name: str) -> Any:
    target = POLICIES.get(f"{__name__}.{name}")
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
