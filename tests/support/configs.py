"""Configs composed in this process."""

from __future__ import annotations

from hydra.core.global_hydra import GlobalHydra

from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.config.hydra_compose import Composed


def composed(*words: str) -> Composed:
    """The config of a command line."""
    GlobalHydra.instance().clear()
    return hydra_compose.recompose(list(words))
