"""Replaces a training by a published checkpoint when a released version is reproduced.

Only ``minari-pipe reproduce`` sets the environment variable, for one run in a separate workspace;
files in a workspace cannot set it.
"""

from __future__ import annotations

import os
from pathlib import Path

from minari_pipe.core.files.swap import copy_tree
from minari_pipe.pipeline.execution.stage import StageRun

#: Names a folder with the outputs of training stages, below ``PIPELINE/STAGE``.
GIVEN_VARIABLE = "MINARI_PIPE_GIVEN_TRAININGS"


def take_given(run: StageRun) -> bool:
    """Copy the output of a training stage if it is given; return whether it is."""
    folder = os.environ.get(GIVEN_VARIABLE)
    given = Path(folder, run.name, run.stage) if folder else None
    if given is None or not given.is_dir():
        return False
    with run.output(run.stage) as out:
        copy_tree(given, out)
    run.say("using the published checkpoint instead of training")
    return True
