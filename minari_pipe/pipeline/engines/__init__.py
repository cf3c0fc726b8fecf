"""Engines: what runs the blocks of a stage. They decide how long that takes, never a byte of it.

One file and one line of ``ENGINES`` each; a third party's package announces its own through the
entry-point group ``minari_pipe.engines`` (name: the one that ``engine.name`` gives; value:
``module:Class``). Modules load when first used, so that a stage does not depend on an engine.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.engines.base import Engine, usable_cores
from minari_pipe.pipeline.oc_env import resolved

ENGINES = {
    "local": "minari_pipe.pipeline.engines.local:LocalEngine",
    "processes": "minari_pipe.pipeline.engines.processes:ProcessesEngine",
    "ray": "minari_pipe.pipeline.engines.ray:RayEngine",
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


def crowded(settings: dict[str, Any]) -> str | None:
    """What to say of more workers than this machine has cores for, if that is so."""
    n, cores = settings["n_workers"], usable_cores()
    if n is None or n <= cores or settings["name"] == "local" or settings["address"] is not None:
        return None
    return (
        f"engine.n_workers is {n}, this process may use {cores} cores: unless the environment "
        f"waits for something else, {cores} workers are faster"
    )


def make_engine(settings: dict[str, Any]) -> Engine:
    """The engine that the keys of ``engine`` in a config describe.

    A block that has a time limit needs a process that can be ended, also with ``local``.

    Raises:
        ConfigError: there is no such engine, or it cannot be started.
        MissingDependencyError: it needs a package that is not installed.
    """
    given = {key: settings[key] for key in ("address", "storage") if settings.get(key)}
    places = {key: resolved(text) for key, text in given.items()}
    name, settings = settings["name"], {**settings, **places}
    if name == "local" and settings["block_timeout_s"] is not None:
        name, settings = "processes", {**settings, "n_workers": 1}
    module, _, attribute = find_engine(name).partition(":")
    engine = getattr(importlib.import_module(module), attribute)(settings)
    assert isinstance(engine, Engine)
    return engine
