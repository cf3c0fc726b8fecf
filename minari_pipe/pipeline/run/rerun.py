"""Run a pipeline as its ``params.yaml`` records it.

    python -m minari_pipe.pipeline.run.rerun NAME

``minari-pipe reproduce`` runs this in a separate workspace. Recorded overrides come from a file,
not from the user, so they allow nothing that the user did not allow.
"""

from __future__ import annotations

import os
import sys

from minari_pipe.core.messages import message_of, print_line
from minari_pipe.errors import ConfigError, ReportedError, Stopped
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.config.mixtures import recomposed
from minari_pipe.pipeline.processes import stop_with_ancestors
from minari_pipe.pipeline.run.driver import run_pipeline
from minari_pipe.pipeline.signals import stop_on_signals
from minari_pipe.pipeline.workspace import check_pipeline_name
from minari_pipe.pipeline.workspace_links import open_root


def main() -> int:
    """Run the command and return the exit code."""
    try:
        _run(sys.argv[1])
    except ReportedError:
        return 1
    except Exception as exc:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print_line("error", message_of(exc))
        return 1
    return 0


def _run(name: str) -> None:
    root = open_root()
    params = dvc_yaml.read_params(check_pipeline_name(name), root) or {}
    composed = recomposed(params.get("overrides") or [f"+dataset={name}"], root)
    if composed.name != name:
        raise ConfigError(
            f"pipelines/{name}/params.yaml belongs to pipeline {composed.name!r} according to conf/"
        )
    run_pipeline(name, composed.config, composed.overrides, is_parent=True)


if __name__ == "__main__":
    try:
        stop_on_signals()
        stop_with_ancestors()  # no other process can use the result
        code = main()
    except Stopped as stopped:
        # The workspace is deleted anyway. Python would wait for DVC's hashing threads.
        os._exit(stopped.exit_code)
    sys.exit(code)
