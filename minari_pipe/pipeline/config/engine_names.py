"""Maps the values of ``engine.name`` to the classes that implement the engines.

Third-party packages register engines through the entry-point group ``minari_pipe.engines``
(name: the value of ``engine.name``; value: ``module:Class``). Modules are imported on first use,
so that a stage does not depend on an engine.
"""

from __future__ import annotations

from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import ConfigError, did_you_mean

ENGINES = {
    "local": "minari_pipe.pipeline.execution.engines.local:LocalEngine",
    "processes": "minari_pipe.pipeline.execution.engines.processes:ProcessesEngine",
    "ray": "minari_pipe.pipeline.execution.engines.ray:RayEngine",
}

ENTRY_POINTS = "minari_pipe.engines"


def registered_engines() -> dict[str, str]:
    """Return ``ENGINES`` and the engines of installed packages."""
    points = entry_points(ENTRY_POINTS)
    return {**{p.name: p.value for p in points}, **ENGINES}


def find_engine(name: str) -> str:
    """Return ``module:Class`` of the engine called ``name``.

    Raises:
        ConfigError: there is no such engine; the message suggests the nearest name.
    """
    known = registered_engines()
    if name not in known:
        raise ConfigError(
            f"unknown engine.name {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}"
        )
    return known[name]
