"""The commands of ``minari-pipe`` except runs. Only this package and the pipeline print."""

from __future__ import annotations

from minari_pipe.cli.app import app

__all__ = ["app"]
