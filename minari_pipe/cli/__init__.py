"""``minari-pipe``: the commands beside a run. Only this and the pipeline print anything."""

from __future__ import annotations

from minari_pipe.cli.app import app

__all__ = ["app"]
