"""Engines run the blocks of a stage. They decide how long that takes, never a byte of the result.

Each engine is one file here, and one line of ``ENGINES`` in
:mod:`minari_pipe.pipeline.config.engine_names`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.engine_names import find_engine
from minari_pipe.pipeline.config.oc_env import resolved
from minari_pipe.pipeline.execution.engines.base import Engine, usable_cores
from minari_pipe.pipeline.execution.shared_blocks import local_folder
from minari_pipe.pipeline.workspace_links import check_named_folder


def crowded(settings: schema.Engine) -> str | None:
    """Return a warning if there are more workers than usable cores, else ``None``."""
    n, cores = settings.n_workers, usable_cores()
    if n is None or n <= cores or settings.name == "local" or settings.address is not None:
        return None
    return (
        f"engine.n_workers is {n}, but this process may use only {cores} cores; unless the "
        f"environment waits for something else, {cores} workers are faster"
    )


def make_engine(settings: schema.Engine) -> Engine:
    """Return the engine that the section ``engine`` of a config describes.

    A block with a time limit needs a process that can be killed, also with ``local``.

    Raises:
        ConfigError: there is no such engine, or it cannot be started.
        LinkError: ``engine.storage`` is a folder that a symlink leads to, or that holds one.
        MissingDependencyError: the engine needs a package that is not installed.
    """
    name, address, storage = settings.name, settings.address, settings.storage
    settings = replace(
        settings,
        address=resolved(address) if address else address,
        storage=resolved(storage) if storage else storage,
    )
    if name == "local" and settings.block_timeout_s is not None:
        name, settings = "processes", replace(settings, n_workers=1)
    if settings.storage and (folder := local_folder(settings.storage)) is not None:
        check_named_folder(folder, Path.cwd())  # stages run at the root of the workspace
    module, _, attribute = find_engine(name).partition(":")
    engine = getattr(importlib.import_module(module), attribute)(settings)
    assert isinstance(engine, Engine)
    return engine
