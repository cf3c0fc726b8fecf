"""Where each engine is defined, by the name that ``engine.name`` gives.

A third party's package announces its own through the entry-point group ``minari_pipe.engines``
(name: the one that ``engine.name`` gives; value: ``module:Class``). Modules load when first used,
so that a stage does not depend on an engine.
"""

from __future__ import annotations

import importlib.metadata

from minari_pipe.errors import ConfigError, did_you_mean

ENGINES = {
    "local": "minari_pipe.pipeline.execution.engines.local:LocalEngine",
    "processes": "minari_pipe.pipeline.execution.engines.processes:ProcessesEngine",
    "ray": "minari_pipe.pipeline.execution.engines.ray:RayEngine",
}

ENTRY_POINTS = "minari_pipe.engines"


def registered_engines() -> dict[str, str]:
    """``ENGINES`` and those of installed packages."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {**{p.name: p.value for p in points}, **ENGINES}


def find_engine(name: str) -> str:
    """Where the engine called ``name`` is defined.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    known = registered_engines()
    if name not in known:
        raise ConfigError(
            f"unknown engine.name {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}"
        )
    return known[name]
