"""Provide the policies that choose the actions of datasets and of their reference scores.

Each policy has one file and one line in ``POLICIES``. Other packages register theirs under the
entry-point group ``minari_pipe.policies`` (name: the dotted name that configs use; value:
``module:Class``). Modules load on first use, so that a stage depends only on the policy it runs.
"""

from __future__ import annotations

from typing import Any

from minari_pipe.core.plugins import entry_points, load

#: Names that a config's ``_target_`` may use, with the place of each definition.
POLICIES = {
    "minari_pipe.policies.RandomPolicy": "minari_pipe.policies.random:RandomPolicy",
    "minari_pipe.policies.SB3Policy": "minari_pipe.policies.sb3:SB3Policy",
    "minari_pipe.policies.DemonstrationPolicy": (
        "minari_pipe.policies.demonstrations:DemonstrationPolicy"
    ),
    "minari_pipe.policies.ScriptedPolicy": "minari_pipe.policies.scripted:ScriptedPolicy",
}

#: The module of the policy that adds noise to the actions of another one.
NOISY = "minari_pipe.policies.noisy"

#: The modules of behaviour cloning: the algorithm ``bc``, and its training.
BC = "minari_pipe.policies.bc"
CLONING = "minari_pipe.policies.cloning"

#: Controllers for ``ScriptedPolicy`` that come with the package.
CONTROLLERS = {
    f"minari_pipe.policies.controllers.{name}": f"minari_pipe.policies.controllers.{module}:{name}"
    for module, names in {
        "fetch": ("FetchArm",),
        "grids": ("BabyAIExpert", "GridShortestPath"),
        "mazes": ("AntMazeGait", "PointMazeWaypoints"),
        "metaworld": ("MetaWorldExpert",),
    }.items()
    for name in names
}

ENTRY_POINTS = "minari_pipe.policies"


def registered_policies() -> dict[str, str]:
    """Return ``POLICIES`` and the policies of other installed packages."""
    points = entry_points(ENTRY_POINTS)
    return {**{p.name: p.value for p in points}, **POLICIES}


def __getattr__(name: str) -> Any:
    return load(f"{__name__}.{name}", POLICIES)
